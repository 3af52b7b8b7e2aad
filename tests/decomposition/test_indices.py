"""Negative indices are counted from the start where a runtime knows none."""

from typing import Any

import numpy as np
import pytest
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
    (node,) = (node for node in nodes(lowered) if "ND" in node.op_type or "Elements" in node.op_type)
    lowered.graph.node.append(helper.make_node("Identity", [node.input[1]], ["counted"]))
    lowered.graph.output.append(helper.make_tensor_value_info("counted", TensorProto.INT64, None))
    outputs = run(lowered, feed)
    assert (outputs.pop("counted") >= 0).all()
    assert_close(outputs, run(net, feed))


@pytest.mark.parametrize("dtype", ["int64", "int32"])
def test_an_open_size_is_that_of_the_run(dtype: str) -> None:
    net = parse(
        f"g (float[3, T] x, {dtype}[3, 2] i) => (float[3, 2] y) {{ y = GatherElements <axis = -1> (x, i) }}", 17
    )
    lowered = rl.lower(net, target="mnn")
    assert [node.op_type for node in nodes(lowered)][-2:] == ["Where", "GatherElements"]
    feed = random_feed(net, T=5) | {"i": np.array(PLACES, dtype)}
    assert_close(run(lowered, feed), run(net, feed))


def test_what_counts_from_the_start_stays() -> None:
    net = parse(
        """g (float[3, 4] x) => (float[3, 2] y) <int64[1] k = {2}> {
        v, i = TopK (x, k) y = GatherElements <axis = 1> (x, i) }""",
        17,
    )
    assert [node.op_type for node in nodes(rl.lower(net, target="mnn"))] == ["TopK", "GatherElements"]


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
