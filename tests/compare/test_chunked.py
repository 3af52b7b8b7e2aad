"""The proof chunk by chunk catches what can be wrong in a stream, and names the first step and the node."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from running import optimizations_change
from stream_models import net, plan_of, random, recurrent, streamed

import rnn_lowering as rl
from rnn_lowering.compare.streams import chunk_by_chunk
from rnn_lowering.compare.verify import verify_stream

pytestmark = pytest.mark.usefixtures("workers_here")

TWO = net(
    """g (float[time, batch, 4] X) => (float[t, d, batch, 4] Y, float[1, batch, 4] last) {
        shape = Shape (X)  n = Gather (shape, one)  sizes = Concat <axis = 0> (one, n, width)
        start = Expand (row, sizes)
        [one] y = GRU <hidden_size = 4> (X, W, R, B, , start)
        x = Squeeze (y, one)
        [two] Y, last = GRU <hidden_size = 4> (x, vW, vR, vB) }""",
    {
        **recurrent("GRU", 4, 4),
        **recurrent("GRU", 4, 4, "v", seed=1),
        **{"one": np.array([1]), "width": np.array([4]), "row": random((1, 1, 4), 3)},
    },
)


def verified(original: onnx.ModelProto, stepped: onnx.ModelProto, folder: Path, **check: Any) -> Any:
    onnx.save(original, folder / "original.onnx")
    onnx.save(stepped, folder / "stepped.onnx")
    return verify_stream(folder / "original.onnx", folder / "stepped.onnx", check=rl.Check(**check))


def with_plan(model: onnx.ModelProto, change: Callable[[dict[str, Any]], None]) -> onnx.ModelProto:
    plan = plan_of(model)
    change(plan)
    for entry in model.metadata_props:
        entry.value = json.dumps(plan)
    return model


def node(model: onnx.ModelProto, name: str) -> onnx.NodeProto:
    found: onnx.NodeProto = next(n for n in model.graph.node if n.name == name or name in n.output)
    return found


def swapped_states(model: onnx.ModelProto) -> onnx.ModelProto:
    def swap(plan: dict[str, Any]) -> None:
        a, b = plan["states"]
        a["output"], b["output"] = b["output"], a["output"]

    return with_plan(model, swap)


def not_fed_back(model: onnx.ModelProto) -> onnx.ModelProto:
    node(model, "present_two_h").input[0] = "past_two_h"
    return model


def wrong_initial_value(model: onnx.ModelProto) -> onnx.ModelProto:
    return with_plan(model, lambda plan: plan["states"][0].update(initial="zeros"))


def state_of_the_wrong_layer(model: onnx.ModelProto) -> onnx.ModelProto:
    node(model, "two").input[5] = "past_one_h"
    return model


def mistaken_output_axis(model: onnx.ModelProto) -> onnx.ModelProto:
    return with_plan(model, lambda plan: plan["outputs"].update(Y=2))


def mistaken_input_axis(model: onnx.ModelProto) -> onnx.ModelProto:
    return with_plan(model, lambda plan: plan["inputs"].update(X=1))


def last_state_taken_for_frames(model: onnx.ModelProto) -> onnx.ModelProto:
    return with_plan(model, lambda plan: plan["outputs"].update(last=0))


DAMAGES: dict[Callable[[onnx.ModelProto], onnx.ModelProto], str] = {
    swapped_states: "from frame 1 on; the first node that differs: GRU node 'one'",
    not_fed_back: "from frame 1 on; the first node that differs: GRU node 'two'",
    wrong_initial_value: "from frame 0 on; the first node that differs: GRU node 'one'",
    state_of_the_wrong_layer: "the first node that differs: GRU node 'two'",
    mistaken_output_axis: "output 'Y'",
    mistaken_input_axis: "",
    last_state_taken_for_frames: "output 'last'",
}


@pytest.mark.parametrize("to", ["keep", "auto"])
def test_what_is_right_is_verified(tmp_path: Path, to: str) -> None:
    check = verified(TWO, streamed(TWO, "time", to), tmp_path)
    assert check
    assert check.runs == 15
    assert check.method.startswith(
        "onnxruntime, in chunks of 1, of 5 and of 3, 1, 4, 7, 2 frames, sequences of up to"
    )
    shapes = {run.inputs[0].shape for run in check.each_run}
    assert {7, 19, 50, 210, 310, 1009} == {frames for frames, *_ in shapes}
    assert len({batch for _, batch, _ in shapes}) == 3  # in the same session


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_what_is_wrong_is_found(tmp_path: Path, damage: Callable[[onnx.ModelProto], onnx.ModelProto]) -> None:
    check = verified(TWO, damage(streamed(TWO, "time")), tmp_path)
    assert check.status == "failed"
    assert DAMAGES[damage] in check.reason


CONV = """g (float[batch, 3, time] X) => (float[t, d, n, h] Y) {
    [seen] c = Conv <pads = [1, 1]> (X, K)  x = Transpose <perm = [2, 0, 1]> (c)
    [state] Y = GRU <hidden_size = 4> (x, W, R, B) }"""


def test_a_convolution_that_looks_at_its_neighbors_is_found(tmp_path: Path) -> None:
    """As a tool makes it that brings out the recurrent states alone."""
    weights = {**recurrent("GRU", 3, 4), "K": random((3, 3, 3), 2)}
    framewise = net(CONV.replace("<pads = [1, 1]> (X, K)", "(X, K1)"), {**weights, "K1": random((3, 3, 1), 2)})
    naive = streamed(framewise, "time")
    seen = node(naive, "seen")
    seen.input[1] = "K"
    seen.attribute.append(helper.make_attribute("pads", [1, 1]))
    check = verified(net(CONV, weights), naive, tmp_path)
    assert check.status == "failed"
    assert "first in call 1 (chunks of 1, 1, 1, 1, 1, 1, ... frames), from frame 0 on" in check.reason
    assert "the first node that differs: Conv node 'seen'" in check.reason


def test_what_enters_a_node_is_finite(tmp_path: Path) -> None:
    """A native kernel hides NaN, a lowered node does not: a logarithm is given positive numbers."""
    model = net(
        """g (float[time, batch, 3] X) => (float[t, d, n, h] Y) {
            x = Log (X)  Y = LSTM <hidden_size = 4> (x, W, R, B) }""",
        recurrent("LSTM", 3, 4),
    )
    assert verified(model, streamed(model, "time=1", "auto"), tmp_path)


def test_fixed_frames_are_the_only_chunks(tmp_path: Path) -> None:
    check = verified(TWO, streamed(TWO, "time=4", "auto"), tmp_path, runs=2)
    assert check
    assert (check.runs, check.method) == (3, "onnxruntime, in chunks of 4 frames, sequences of up to 1012 frames")


def test_a_fixed_length_is_opened_in_the_original(tmp_path: Path) -> None:
    model = net(
        "g (float[4, 2, 3] X) => (float[4, 1, 2, 4] Y) { Y = GRU <hidden_size = 4> (X, W, R, B) }",
        recurrent("GRU", 3, 4),
    )
    assert verified(model, streamed(model, "X:0=4", "auto"), tmp_path)


@pytest.mark.parametrize("attribute", ["layout = 1, ", ""])
def test_an_original_that_onnxruntime_cannot_run_is_lowered_for_it(tmp_path: Path, attribute: str) -> None:
    """onnxruntime has no layout 1 and no kernel for float64."""
    kind, weights = "float", recurrent("GRU", 3, 4)
    if not attribute:
        kind, weights = "double", {name: array.astype(np.float64) for name, array in weights.items()}
    model = net(
        f"""g ({kind}[batch, time, 3] X) => ({kind}[a, b, c, d] Y) {{
            [only] Y = GRU <{attribute}hidden_size = 4> (X, W, R, B) }}""",
        weights,
    )
    time = "time" if attribute else "batch"
    stepped = streamed(model, time, "auto")
    check = verified(model, stepped, tmp_path)
    assert check
    assert "it was lowered for whole sequences, each node compared with float64" in check.reason
    if attribute:
        return
    node(stepped, "present_only_h").input[0] = "past_only_h"
    assert verified(model, stepped, tmp_path).status == "failed"


def test_an_output_that_the_stream_lost_is_missed(tmp_path: Path) -> None:
    lost = with_plan(streamed(TWO, "time"), lambda plan: plan["outputs"].pop("last"))
    assert verified(TWO, lost, tmp_path)  # it is still given, and right
    del lost.graph.output[[value.name for value in lost.graph.output].index("last")]
    check = verified(TWO, lost, tmp_path)
    assert check.status == "failed"
    assert "output 'last': the stream does not return it" in check.reason


def test_given_feeds_are_whole_sequences(tmp_path: Path) -> None:
    check = verified(TWO, streamed(TWO, "time"), tmp_path, feeds=[{"X": random((9, 2, 4))}])
    assert check
    assert {run.inputs[0].shape for run in check.each_run} == {(9, 2, 4)}


def test_a_tolerance_counts(tmp_path: Path) -> None:
    exact = rl.Tolerance(rtol=0, atol=0)
    assert not verified(TWO, streamed(TWO, "time", "loop"), tmp_path, tolerance=exact)


def test_a_stream_without_metadata_is_refused(tmp_path: Path) -> None:
    with pytest.raises(rl.ModelFileError, match="is not a stream"):
        verified(TWO, TWO, tmp_path)


# Faults that depend on the number of frames


ONE = """g (float[time, batch, 3] X) => (float[time, d, batch, 4] Y, float[1, batch, 4] last) {
    [only] Y, last = GRU <hidden_size = 4> (X, W, R, B) }"""


@pytest.mark.parametrize("size", [6, 8, 12, 16])
def test_a_state_that_chunks_of_one_size_do_not_change(tmp_path: Path, size: int) -> None:
    original = net(ONE, recurrent("GRU", 3, 4))
    stale = streamed(original, "time")
    present = next(n for n in stale.graph.node if "present_only_h" in n.output)
    new = onnx.parser.parse_graph(
        f"""g (float[t, n, 3] X) => (float[d, n, 4] present_only_h) {{
            shape = Shape <start = 0, end = 1> (X)  size = Constant <value_ints = [{size}]> ()
            same = Equal (shape, size)  present_only_h = Where (same, past_only_h, new_h) }}"""
    )
    present.output[list(present.output).index("present_only_h")] = "new_h"
    stale.graph.node.extend(new.node)
    assert verified(original, stale, tmp_path).status == "failed"


def test_a_slice_that_long_sequences_exceed(tmp_path: Path) -> None:
    weights = recurrent("GRU", 3, 4)
    seen = net(
        ONE.replace("{", "{ x = Slice (X, zero, most)").replace("(X, W", "(x, W"),
        {**weights, "zero": np.array([0]), "most": np.array([200])},
    )
    check = verified(seen, streamed(net(ONE, weights), "time"), tmp_path)
    assert check.status == "failed"
    assert "output 'Y'" in check.reason


@pytest.mark.parametrize("stream", ["time", "time=1", "time=16"])
def test_beginnings_that_depend_on_what_follows(tmp_path: Path, stream: str) -> None:
    weights = recurrent("GRU", 3, 4)
    plain = ONE.replace("Y, last =", "y, last =")
    loud = net(
        plain.replace(
            "B) }",
            """B) n = Shape <start = 0, end = 1> (X)  more = Greater (n, most)
            factor = Where (more, two, one)  Y = Mul (y, factor) }""",
        ),
        {**weights, "most": np.array([300]), "one": np.ones(1, np.float32), "two": np.full(1, 2, np.float32)},
    )
    stepped = streamed(net(plain.replace("B) }", "B) Y = Identity (y) }"), weights), stream)
    check = verified(loud, stepped, tmp_path)
    assert check.status == "failed"
    assert "the original computes the first" in check.reason
    assert "frames differently if more follow" in check.reason


FRAMES_OF_SLOW = {
    "Y = GRU <hidden_size = 4> (X, W, R, B)": 310,
    "c = CumSum (X, zero)  Y = GRU <hidden_size = 4> (c, W, R, B)": 1009,
    "x = Transpose <perm = [1, 2, 0]> (X)  Y = Conv <pads = [4, 0], dilations = [2]> (x, K)": 310,
    "x = Transpose <perm = [1, 2, 0]> (X)  Y = Conv <pads = [400, 0], dilations = [200]> (x, K)": 1009,
}


@pytest.mark.parametrize("nodes", FRAMES_OF_SLOW)
@pytest.mark.filterwarnings("ignore:no state is carried")
def test_slow_streams_run_as_many_frames_as_tell_something_new(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, nodes: str
) -> None:
    """Each call of one frame does the same, unless it counts; a long past is full after as many frames."""
    monkeypatch.setattr(chunk_by_chunk, "BRIEF_SECONDS", 0.0)
    weights = {**recurrent("GRU", 3, 4), "zero": np.array(0), "K": random((4, 3, 3))}
    model = net(
        f"g (float[time, 2, 3] X) => (float[a, b, c, d] Y) {{ {nodes} }}".replace(
            ", d]", "]" if "Conv" in nodes else ", d]"
        ),
        weights,
    )
    check = verified(model, streamed(model, "time=1"), tmp_path)
    assert check, check.reason
    assert check.method.endswith(f"sequences of up to {FRAMES_OF_SLOW[nodes]} frames")


def test_slow_streams_and_an_original_that_forgets_the_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(chunk_by_chunk, "BRIEF_SECONDS", 0.0)
    weights = recurrent("GRU", 3, 4)
    cut = net(
        ONE.replace("Y, last =", "y, last =").replace("B) }", "B) Y = Slice (y, zero, most) }"),
        {**weights, "zero": np.array([0]), "most": np.array([400])},
    )
    check = verified(cut, streamed(net(ONE, weights), "time=1"), tmp_path)
    assert check.status == "failed"
    assert "output 'Y': it has 400 frames for 1009 input frames" in check.reason


def test_a_length_that_the_original_does_not_take(tmp_path: Path) -> None:
    """As positions in a table do."""
    weights = recurrent("GRU", 3, 4)
    positions = """n = Shape <start = 0, end = 1> (X)  k = Squeeze (n)  t = Range (first, k, step)
        r = Gather (table, t)  rows = Unsqueeze (r, axes)  Y = Add (y, rows) }"""
    constants = {"table": np.zeros((100, 4), np.float32), "axes": np.array([1, 2])}
    table = net(
        ONE.replace("Y, last =", "y, last =").replace("B) }", f"B) {positions}"),
        {**weights, **constants, "first": np.array(0), "step": np.array(1)},
    )
    stepped = streamed(net(ONE, weights), "time")
    check = verified(table, stepped, tmp_path)
    assert check, check.reason
    assert "no sequence of more than 50 frames was compared (the original does not run with 210" in check.reason


def test_a_net_that_makes_much_of_a_rounding(tmp_path: Path) -> None:
    """After some frames nothing can be compared: it is compared before, where a fault is found."""
    weights = {name: array if name == "B" else 8 * array for name, array in recurrent("RNN", 3, 32).items()}
    wild = net(ONE.replace("GRU", "RNN").replace("4", "32"), weights)
    stepped = streamed(wild, "time", "scan")
    check = verified(wild, stepped, tmp_path)
    assert check, check.reason
    assert "rounding the inputs changes output 'Y' from frame" in check.reason
    stepped.graph.node.append(helper.make_node("Neg", ["kept"], ["past"]))
    for each in stepped.graph.node[:-1]:
        each.input[:] = ["past" if name == "past_only_h" else name for name in each.input]
    stepped.graph.node.insert(0, stepped.graph.node.pop())
    stepped.graph.node[0].input[0] = "past_only_h"
    assert verified(wild, stepped, tmp_path).status == "failed"


# What runs did not see


CHOSEN = """g (float[time, batch, 3] X) => (float[time, d, batch, 4] Y) {
    sizes = Shape (X)  n = Gather (sizes, one)  fast = Equal (n, two)
    y = If (fast) <
        then_branch = t () => (float[time, d, batch, 4] a) { [quick] a = GRU <hidden_size = 4> (X, W, R, B) },
        else_branch = e () => (float[time, d, batch, 4] b) { [slow] b = GRU <hidden_size = 4> (X, V, R, B) }>
    Y = Identity (y) }"""


@pytest.mark.parametrize("branch", ["then_branch", "else_branch"])
def test_a_state_that_one_branch_does_not_change(tmp_path: Path, branch: str) -> None:
    sizes = {"one": np.array(1), "two": np.array(2)}
    original = net(CHOSEN, {**recurrent("GRU", 3, 4), "V": recurrent("GRU", 3, 4, seed=2)["W"], **sizes})
    stepped = streamed(original, "time")
    assert verified(original, stepped, tmp_path, runs=2)
    (body,) = [a.g for n in stepped.graph.node if n.op_type == "If" for a in n.attribute if a.name == branch]
    (past,) = [name for name in body.node[0].input if name.startswith("past_")]
    present = body.node[0].output[1]
    body.node[0].output[1] = "unused"
    body.node.insert(1, helper.make_node("Identity", [past], [present]))
    check = verified(original, stepped, tmp_path, runs=2)
    assert check.status == "failed"
    assert "out of tolerance; first in call 2" in check.reason


def test_branches_that_no_run_took(tmp_path: Path) -> None:
    text = CHOSEN.replace("sizes = Shape (X)  n = Gather (sizes, one)  fast = Equal (n, two)", "").replace(
        "y = If (fast)", "top = ReduceMax <keepdims = 0> (W)  fast = Greater (top, far)  [choice] y = If (fast)"
    )
    weights = {**recurrent("GRU", 3, 4), "V": recurrent("GRU", 3, 4, seed=2)["W"], "far": np.array(9, np.float32)}
    original = net(text, weights)
    check = verified(original, streamed(original, "time"), tmp_path)
    assert check
    assert "the runs may have missed then_branch of If node 'choice'" in check.reason


def test_lengths_that_have_the_axis_of_the_frames(tmp_path: Path) -> None:
    """They are cut with the frames, and do not count down."""
    original = net(
        """g (float[5, time, 3] X, int32[time] lens) => (float[time, d, 1, 4] Y) {
            none, last = GRU <hidden_size = 4> (X, W, R, B, lens)
            rows = Squeeze (last, first)  x = Unsqueeze (rows, second)
            Y = GRU <hidden_size = 4> (x, vW, vR, vB) }""",
        {
            **recurrent("GRU", 3, 4),
            **recurrent("GRU", 4, 4, "v", seed=1),
            **{"first": np.array([0]), "second": np.array([1])},
        },
    )
    stepped = streamed(original, "time")
    assert plan_of(stepped)["inputs"] == {"X": 1, "lens": 0}
    assert verified(original, stepped, tmp_path)


@pytest.mark.usefixtures("own_processes")
def test_a_stream_that_kills_the_optimizer_is_told(tmp_path: Path) -> None:
    """onnxruntime's crashes on a float16 Transpose before a MatMul."""
    weights = {name: array.astype(np.float16) for name, array in recurrent("GRU", 3, 4).items()}
    original = net(
        """g (float16[2, time, 3] X) => (float16[time, 2, 4] Y) {
            x = Transpose <perm = [1, 0, 2]> (X)  z = MatMul (x, M)
            y = GRU <hidden_size = 4> (z, W, R, B)  Y = Squeeze (y, one) }""",
        {**weights, "M": random((3, 3)).astype(np.float16), "one": np.array([1])},
    )
    check = verified(original, streamed(original, "time=2", "unroll"), tmp_path, runs=1)
    assert check
    assert "the stream runs only with onnxruntime's optimizations disabled: its process died" in check.reason


def test_weights_of_zeros_are_told(tmp_path: Path) -> None:
    original = net(ONE, {name: 0 * array for name, array in recurrent("GRU", 3, 4).items()})
    check = verified(original, streamed(original, "time"), tmp_path)
    assert check
    assert "R of GRU node 'only' in main graph is all zeros" in check.reason
    assert "output 'Y' is 0 throughout" in check.reason


def test_an_optimization_that_changes_the_original(tmp_path: Path) -> None:
    """onnxruntime takes the zeros before a maximum for minus infinity."""
    original = net(
        """g (float[batch, 3, time] X) => (float[time, d, batch, 4] Y) {
            low = Sub (X, far)  p = Pad (low, pads)  z = MaxPool <kernel_shape = [3]> (p)
            x = Transpose <perm = [2, 0, 1]> (z)  Y = GRU <hidden_size = 4> (x, W, R, B) }""",
        {**recurrent("GRU", 3, 4), "far": np.array(9, np.float32), "pads": np.array([0, 0, 2, 0, 0, 0])},
    )
    if not optimizations_change(original, {"X": random((2, 3, 9))}):
        pytest.skip("this onnxruntime does not have the fault")
    check = verified(original, streamed(original, "time"), tmp_path)
    assert check, check.reason
    assert "onnxruntime's optimizations change the original's outputs" in check.reason
