"""Negative indices are counted from the start where a runtime knows none."""

from typing import Any

import numpy as np
import onnx
import pytest
from cases import Arrays
from onnx import TensorProto, helper
from running import assert_close, nodes, run
from texts import parse, random_feed

import rnn_lowering as rl

PLACES = [[0, -1], [1, -2], [-3, 2]]
INDEXED = {
    "GatherElements": ("y = GatherElements <axis = 1> (x, i)", PLACES, ("mnn",)),
    "ScatterElements": ("y = ScatterElements <axis = -1> (x, i, x2)", PLACES, ("mnn",)),
    "GatherND": ("y = GatherND (x, i)", [[-1, -2], [1, 3]], ("mnn", "opencv", "tract")),
    "ScatterND": ("y = ScatterND (x, i, x1)", [[-1], [0]], ("tract",)),
    "batches": ("y = GatherND <batch_dims = 1> (x, i)", [[-1], [0], [2]], ("mnn", "opencv", "tract")),
}


@pytest.mark.parametrize("is_constant", [True, False])
@pytest.mark.parametrize(
    ("name", "target"), [(name, t) for name, (*_, targets) in INDEXED.items() for t in targets]
)
def test_indices_count_from_the_start(name: str, target: Any, is_constant: bool) -> None:
    text, places, _ = INDEXED[name]
    given, shape = np.array(places), ", ".join(map(str, np.shape(places)))
    numbers = ", ".join(map(str, given.reshape(-1).tolist()))
    held = f"int64[{shape}] i = {{{numbers}}}, float[2, 4] x1 = {{}}, float[3, 2] x2 = {{}}"
    inputs = "float[3, 4] x"
    if not is_constant:
        inputs, held = f"{inputs}, int64[{shape}] i", held.partition("}, ")[2]
    net = parse(f"g ({inputs}) => (float[a] y) <{held}> {{ {text} }}", 17)
    net.graph.output[0].type.tensor_type.ClearField("shape")
    lowered, report = rl.lower(net, target=target, full=True)
    assert any("takes no negative indices" in note for note in report.notes)
    assert rl.lower(lowered, target=target).SerializeToString() == lowered.SerializeToString()
    feed = {"x": random_feed(net)["x"]} | ({} if is_constant else {"i": given})
    assert_counted(lowered, net, feed)


def assert_counted(lowered: onnx.ModelProto, net: onnx.ModelProto, feed: Arrays) -> None:
    """The last node gets indices from 0 on, and the results of both nets are the same."""
    *_, last = nodes(lowered)
    lowered.graph.node.append(helper.make_node("Identity", [last.input[1]], ["counted"]))
    dtype = helper.np_dtype_to_tensor_dtype(feed["i"].dtype) if "i" in feed else TensorProto.INT64
    lowered.graph.output.append(helper.make_tensor_value_info("counted", dtype, None))
    outputs = run(lowered, feed)
    assert (outputs.pop("counted") >= 0).all()
    assert_close(outputs, run(net, feed))


OPEN = {
    "GatherElements": ("float[3, T] x, {} [3, 2] i", "y = GatherElements <axis = -1> (x, i)", PLACES),
    "GatherND": ("float[T, U] x, {} [2, 2] i", "y = GatherND (x, i)", [[-1, -2], [1, 3]]),
    "rows": ("float[T, U] x, {} [2, 1] i", "y = GatherND (x, i)", [[-1], [1]]),
    "batches": ("float[3, T, U] x, {} [3, 1] i", "y = GatherND <batch_dims = 1> (x, i)", [[-1], [0], [2]]),
}


@pytest.mark.parametrize(("name", "dtype"), [*((name, "int64") for name in OPEN), ("GatherElements", "int32")])
def test_an_open_size_is_that_of_the_run(name: str, dtype: str) -> None:
    inputs, text, places = OPEN[name]
    net = parse(f"g ({inputs.format(dtype)}) => (float[a] y) {{ {text} }}", 17)
    net.graph.output[0].type.tensor_type.ClearField("shape")
    lowered = rl.lower(net, target="mnn")
    assert [node.op_type for node in nodes(lowered)][-2] == "Where"
    assert rl.lower(lowered, target="mnn").SerializeToString() == lowered.SerializeToString()
    feed = random_feed(net, T=4, U=5) | {"i": np.array(places, dtype)}
    assert_counted(lowered, net, feed)


FROM_THE_START = {
    "TopK": ("<int64[1] k = {2}>", "v, i = TopK (x, k) y = GatherElements <axis = 1> (x, i)"),
    "NonZero": ("", "p = NonZero (x) i = Transpose (p) y = GatherND (x, i)"),
}
UNKNOWN = {
    "values of TopK": ("<int64[1] k = {2}>", "v, w = TopK (x, k) i = Cast <to = 7> (v) y = GatherND (x, i)"),
    "a part": (
        "<int64[1] z = {0}, int64[1] m = {-1}>",
        "s = ReduceSum <keepdims = 0> (x) f = Cast <to = 7> (s) h = Reshape (f, m)"
        " i = Concat <axis = 0> (z, h) y = GatherND (x, i)",
    ),
}


@pytest.mark.parametrize("name", [*FROM_THE_START, *UNKNOWN])
def test_what_counts_from_the_start_stays(name: str) -> None:
    held, text = (FROM_THE_START | UNKNOWN)[name]
    net = parse(f"g (float[3, 4] x) => (float[a] y) {held} {{ {text} }}", 17)
    net.graph.output[0].type.tensor_type.ClearField("shape")
    found = [node.op_type for node in nodes(rl.lower(net, target="mnn"))]
    assert ("Where" in found) == (name in UNKNOWN)


def test_a_choice_of_the_net_counts_nothing() -> None:
    net = parse(
        """g (float[3, 4] x, int64[3, 2] i) => (float[3, 2] y) <int64 most = {2}, int64 last = {-1}> {
        above = Greater (most, i) chosen = Where (above, last, i) y = GatherElements <axis = 1> (x, chosen) }""",
        17,
    )
    lowered = rl.lower(net, target="mnn")
    assert [node.op_type for node in nodes(lowered)].count("Where") == 2
    feed = random_feed(net) | {"i": np.array([[0, 3], [1, 2], [3, 2]])}
    assert_close(run(lowered, feed), run(net, feed))


@pytest.mark.filterwarnings("ignore::rnn_lowering.RnnLoweringWarning")
def test_the_last_axis_of_one_hot_rows_is_written() -> None:
    """MNN takes the first one where none is written; it has not passed ONNX's own tests, which are of integers."""
    net = parse(
        """g (float[4, 6] x) => (float[4, 7] y) <float[2] ends = {0, 1}, int64 depth = {7}> {
        i = ArgMax <axis = 1, keepdims = 0> (x) y = OneHot (i, depth, ends) }"""
    )
    lowered = rl.lower(net, target="mnn")
    (node,) = (node for node in nodes(lowered) if node.op_type == "OneHot")
    assert [attribute.i for attribute in node.attribute] == [1]
    feed = random_feed(net)
    assert_close(run(lowered, feed), run(net, feed))


@pytest.mark.filterwarnings("ignore::rnn_lowering.RnnLoweringWarning")
@pytest.mark.parametrize("target", ["tract", "opencv", "mnn"])
@pytest.mark.parametrize("axis", ["", "<axis = 0>", "<axis = 1>"])
@pytest.mark.parametrize("opset", [11, 17])
def test_indices_beyond_a_depth_choose_nothing(target: Any, axis: str, opset: int) -> None:
    """A negative index counts from the depth; OpenCV and MNN chose wrongly without an error, tract ended."""
    net = parse(
        f"""g (int64[N, 6] i) => (float[a, b, c] y) <int64[1] depth = {{4}}, float[2] ends = {{-1, 2}}>
        {{ y = OneHot {axis} (i, depth, ends) }}""",
        opset,
    )
    lowered = rl.lower(net, target=target)
    (node,) = (node for node in nodes(lowered) if node.op_type == "OneHot")
    given = np.array([[0, 3, -1, -4, 4, -5], [1, 9, -9, 2, -2, 0]])
    names = [value.name for value in lowered.graph.output]
    lowered.graph.output.append(onnx.helper.make_tensor_value_info(node.input[0], onnx.TensorProto.INT64, None))
    got = run(lowered, {"i": given})
    assert np.array_equal(got[names[0]], run(net, {"i": given})["y"])
    assert ((got[node.input[0]] >= 0) & (got[node.input[0]] <= 4)).all()
    assert [node.op_type for node in nodes(rl.lower(lowered, target=target))].count("Where") == 2
