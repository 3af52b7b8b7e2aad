"""The proof chunk by chunk catches what can be wrong in a stream, and names the first step and the node."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from running import optimizations_change
from stream_models import net, plan_of, random, recurrent, streamed
from texts import parse

import rnn_lowering as rl
from rnn_lowering.compare.streams import chunk_by_chunk

pytestmark = pytest.mark.usefixtures("workers_here")

GRU = recurrent("GRU", 3, 4)
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


def verified(original: onnx.ModelProto, stepped: onnx.ModelProto, **check: Any) -> rl.Verification:
    return rl.verify_stream(original, stepped, **check)


def with_plan(model: onnx.ModelProto, change: Callable[[dict[str, Any]], Any]) -> onnx.ModelProto:
    plan = plan_of(model)
    change(plan)
    for entry in model.metadata_props:
        entry.value = json.dumps(plan)
    return model


def node(model: onnx.ModelProto, name: str) -> onnx.NodeProto:
    found: onnx.NodeProto = next(n for n in model.graph.node if n.name == name or name in n.output)
    return found


def swap(plan: dict[str, Any]) -> None:
    a, b = plan["states"]
    a["output"], b["output"] = b["output"], a["output"]


PLANS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "swapped states": (swap, "from frame 1 on; the first node that differs: GRU node 'one'"),
    "a wrong initial value": (
        lambda plan: plan["states"][0].update(initial="zeros"),
        "from frame 0 on; the first node that differs: GRU node 'one'",
    ),
    "a mistaken output axis": (lambda plan: plan["outputs"].update(Y=2), "output 'Y'"),
    "a mistaken input axis": (lambda plan: plan["inputs"].update(X=1), ""),
    "the last state as frames": (lambda plan: plan["outputs"].update(last=0), "output 'last'"),
}
INPUTS = {
    "a state that is not fed back": (
        "present_two_h",
        0,
        "past_two_h",
        "from frame 1 on; the first node that differs: GRU node 'two'",
    ),
    "the state of the wrong layer": ("two", 5, "past_one_h", "the first node that differs: GRU node 'two'"),
}
"""An input of a node becomes another value."""


@pytest.mark.few(1)
@pytest.mark.parametrize("to", ["keep", "auto"])
def test_what_is_right_is_verified(to: str) -> None:
    check = verified(TWO, streamed(TWO, "time", to))
    assert check
    assert check.runs == 15
    assert check.method.startswith(
        "onnxruntime, in chunks of 1, of 5 and of 3, 1, 4, 7, 2 frames, sequences of up to"
    )
    shapes = {run.inputs[0].shape for run in check.each_run}
    assert {7, 19, 50, 210, 310, 1009} == {frames for frames, *_ in shapes}
    assert len({batch for _, batch, _ in shapes}) == 3  # in the same session


@pytest.mark.few(4)
@pytest.mark.parametrize("name", [*PLANS, *INPUTS])
def test_what_is_wrong_is_found(name: str) -> None:
    stepped = streamed(TWO, "time")
    if name in PLANS:
        change, fact = PLANS[name]
        with_plan(stepped, change)
    else:
        changed, slot, value, fact = INPUTS[name]
        node(stepped, changed).input[slot] = value
    check = verified(TWO, stepped)
    assert check.status == "failed"
    assert fact in check.reason


def test_a_convolution_that_looks_at_its_neighbors_is_found() -> None:
    """As a tool makes it that brings out the recurrent states alone."""
    text = """g (float[batch, 3, time] X) => (float[t, d, n, h] Y) {{
        [seen] c = Conv {} x = Transpose <perm = [2, 0, 1]> (c)  Y = GRU <hidden_size = 4> (x, W, R, B) }}"""
    weights = {**GRU, "K": random((3, 3, 3), 2), "K1": random((3, 3, 1), 2)}
    naive = streamed(net(text.format("(X, K1)"), weights), "time")
    seen = node(naive, "seen")
    naive.graph.initializer.append(numpy_helper.from_array(weights["K"], "K"))
    seen.input[1] = "K"
    seen.attribute.append(helper.make_attribute("pads", [1, 1]))
    check = verified(net(text.format("<pads = [1, 1]> (X, K)"), weights), naive)
    assert check.status == "failed"
    assert "first in call 1 (chunks of 1, 1, 1, 1, 1, 1, ... frames), from frame 0 on" in check.reason
    assert "the first node that differs: Conv node 'seen'" in check.reason


def test_what_enters_a_node_is_finite() -> None:
    """A native kernel hides NaN, a lowered node does not: a logarithm is given positive numbers."""
    model = one(start="x = Log (X)")
    assert verified(model, streamed(model, "time=1", "auto"))


def test_fixed_frames_are_the_only_chunks() -> None:
    check = verified(TWO, streamed(TWO, "time=4", "auto"), runs=2)
    assert check
    assert (check.runs, check.method) == (3, "onnxruntime, in chunks of 4 frames, sequences of up to 1012 frames")


def test_a_fixed_length_is_opened_in_the_original() -> None:
    model = net("g (float[4, 2, 3] X) => (float[4, 1, 2, 4] Y) { Y = GRU <hidden_size = 4> (X, W, R, B) }", GRU)
    assert verified(model, streamed(model, "X:0=4", "auto"))


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("kind", "time", "layout"),
    [("float", "time", "layout = 1, "), ("double", "batch", "")],
    ids=["layout", "double"],
)
def test_an_original_that_onnxruntime_cannot_run_is_lowered_for_it(kind: str, time: str, layout: str) -> None:
    """onnxruntime has no layout 1 and no kernel for float64."""
    model = net(
        f"""g ({kind}[batch, time, 3] X) => ({kind}[a, b, c, d] Y) {{
            [only] Y = GRU <{layout}hidden_size = 4> (X, W, R, B) }}""",
        {name: array.astype(np.float64 if kind == "double" else np.float32) for name, array in GRU.items()},
    )
    stepped = streamed(model, time, "auto")
    check = verified(model, stepped)
    assert check
    assert "it was lowered for whole sequences, each node compared with float64" in check.reason
    if kind == "double":
        node(stepped, "present_only_h").input[0] = "past_only_h"
        assert verified(model, stepped).status == "failed"
    kept = streamed(model, time)
    check = verified(model, kept)
    assert check
    assert "so were the nodes that the stream kept" in check.reason
    node(kept, "present_only_h").input[0] = "past_only_h"
    assert verified(model, kept).status == "failed"


def test_an_output_that_the_stream_lost_is_missed() -> None:
    lost = with_plan(streamed(TWO, "time"), lambda plan: plan["outputs"].pop("last"))
    assert verified(TWO, lost)  # it is still given, and right
    del lost.graph.output[[value.name for value in lost.graph.output].index("last")]
    check = verified(TWO, lost)
    assert check.status == "failed"
    assert "output 'last': the stream does not return it" in check.reason


@pytest.mark.few(1)
@pytest.mark.parametrize("frames", ["none", "half"])
def test_a_late_output_without_its_frames_is_missed(frames: str) -> None:
    """What came is right, as far as it goes."""
    original = net(
        """g (float[batch, 3, time] X) => (float[t, d, batch, 4] Y) {
            c = Conv <pads = [1, 1]> (X, K)  x = Transpose <perm = [2, 0, 1]> (c)
            Y = GRU <hidden_size = 4> (x, W, R, B) }""",
        {**GRU, "K": random((3, 3, 3), 2)},
    )
    stepped = streamed(original, "time", delay=1)
    assert plan_of(stepped)["delay"] == {"Y": 1}
    assert verified(original, stepped)
    node(stepped, "Y").output[0] = "all"
    chosen = {"none": "few = Sub (n, n)", "half": "few = Div (n, two)"}[frames]
    ends = onnx.parser.parse_graph(
        f"""g (float[t, d, n, 4] all) => (float[t, d, n, 4] Y) {{
            n = Shape <start = 0, end = 1> (all)  zero = Constant <value_ints = [0]> ()
            two = Constant <value_ints = [2]> ()  {chosen}  Y = Slice (all, zero, few) }}"""
    )
    stepped.graph.node.extend(ends.node)
    check = verified(original, stepped)
    assert check.status == "failed"
    assert "output 'Y': the stream returns" in check.reason


@pytest.mark.parametrize("rows", [16, 12], ids=["the original runs at its length", "the original never runs"])
def test_a_stream_that_fails_at_every_call(rows: int) -> None:
    """As with a parameter that has a row for each frame of a fixed length."""
    text = """g (float[16, 2, 3] X) => (float[16, 1, 2, 4] Y) {{
        [only] y = GRU <hidden_size = 4> (X, W, R, B)  Y = {} }}"""
    weights = {**GRU, "slope": random((rows, 1, 1, 1))}
    original = net(text.format("PRelu (y, slope)"), weights)
    stepped = streamed(net(text.format("Identity (y)"), weights), "X:0=4")
    last = node(stepped, "Y")
    last.op_type = "PRelu"
    last.input.append("slope")
    if not any(tensor.name == "slope" for tensor in stepped.graph.initializer):
        stepped.graph.initializer.extend(t for t in original.graph.initializer if t.name == "slope")
    check = verified(original, stepped)
    assert check.status == "failed", check
    assert "cannot run the stream" in check.reason or "fails at every call" in check.reason
    assert "PRelu" in check.reason


def test_a_stream_is_not_failed_for_a_kernel_that_onnxruntime_lacks() -> None:
    """It has none of an LSTM in float64, neither for the original nor for the stream that keeps the node."""
    text = "g (double[16, 2, 3] X) => (double[16, 1, 2, 4] Y) { Y = LSTM <hidden_size = 4> (X, W, R) }"
    original = net(text, {"W": random((1, 16, 3)).astype(np.float64), "R": random((1, 16, 4)).astype(np.float64)})
    check = verified(original, streamed(original, "X:0=1"))
    assert check.status == "not verified", check
    assert "onnxruntime cannot run the original" in check.reason


def test_a_fixed_length_that_cannot_be_opened_is_compared_at_that_length() -> None:
    text = """g (float[16, 2, 3] X) => (float[16, 1, 2, 4] Y) {{
        [only] y = GRU <hidden_size = 4> (X, W, R, B)  Y = {} }}"""
    original = net(text.format("Reshape (y, same)"), {**GRU, "same": np.array([16, 1, 2, 4])})
    stepped = streamed(net(text.format("Identity (y)"), GRU), "X:0=4")
    check = verified(original, stepped)
    assert check, check
    assert {run.inputs[0].shape[0] for run in check.each_run} == {16}
    node(stepped, "Y").op_type = "Neg"
    assert verified(original, stepped).status == "failed"


def test_given_feeds_are_whole_sequences_and_a_tolerance_counts() -> None:
    check = verified(TWO, streamed(TWO, "time"), feeds=[{"X": random((9, 2, 4))}])
    assert check
    assert {run.inputs[0].shape for run in check.each_run} == {(9, 2, 4)}
    assert not verified(TWO, streamed(TWO, "time", "loop"), tolerance=rl.Tolerance(rtol=0, atol=0))


def test_a_stream_without_metadata_is_refused() -> None:
    with pytest.raises(rl.ModelFileError, match=r"^the model is not a stream: .*; make one with stream="):
        verified(TWO, TWO)


# Faults that depend on the number of frames


def one(
    end: str = "Y = Identity (y)", start: str = "x = Identity (X)", weights: dict[str, Any] = GRU
) -> onnx.ModelProto:
    """A GRU with nodes before its `x` and behind its `y`."""
    numbers = {"zero": 0, "200": 200, "300": 300, "400": 400}
    constants = {
        **{f"at_{name}": np.array([number]) for name, number in numbers.items()},
        **{"first": np.array(0), "step": np.array(1), "axes": np.array([1, 2])},
        **{"once": np.ones(1, np.float32), "twice": np.full(1, 2, np.float32)},
        "table": np.zeros((100, 4), np.float32),
    }
    text = f"""g (float[time, batch, 3] X) => (float[e, d, batch, 4] Y, float[1, batch, 4] last) {{
        {start} [only] y, last = GRU <hidden_size = 4> (x, W, R, B) {end} }}"""
    return net(text, {**weights, **constants})


@pytest.mark.few(1)
@pytest.mark.parametrize("size", [6, 8, 12, 16])
def test_a_state_that_chunks_of_one_size_do_not_change(size: int) -> None:
    stale = streamed(one(), "time")
    present = node(stale, "present_only_h")
    new = onnx.parser.parse_graph(
        f"""g (float[t, n, 3] X) => (float[d, n, 4] present_only_h) {{
            shape = Shape <start = 0, end = 1> (X)  size = Constant <value_ints = [{size}]> ()
            same = Equal (shape, size)  present_only_h = Where (same, past_only_h, new_h) }}"""
    )
    present.output[list(present.output).index("present_only_h")] = "new_h"
    stale.graph.node.extend(new.node)
    assert verified(one(), stale).status == "failed"


COUNTING = """n = Shape <start = 0, end = 1> (X)  more = Greater (n, at_300)
    factor = Where (more, twice, once)  Y = Mul (y, factor)"""
BEGINNING = ("the original computes the first", "frames differently if more follow")
OTHER_WHOLES: dict[str, tuple[dict[str, Any], str, float, tuple[str, ...]]] = {
    "a slice": ({"start": "x = Slice (X, at_zero, at_200)"}, "time", 60, ("output 'Y'",)),
    "beginnings that depend on what follows": ({"end": COUNTING}, "time", 60, BEGINNING),
    "in chunks of 1": ({"end": COUNTING}, "time=1", 60, BEGINNING),
    "in chunks of 16": ({"end": COUNTING}, "time=16", 60, BEGINNING),
    "the end of slow ones": (
        {"end": "Y = Slice (y, at_zero, at_400)"},
        "time=1",
        0,
        ("output 'Y': it has 400 frames for 1009 input frames",),
    ),
}
"""The whole, its stream, after how many seconds a stream counts as slow, and what the reason says."""


@pytest.mark.few(1)
@pytest.mark.parametrize("name", OTHER_WHOLES)
def test_long_sequences_show_another_whole(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fields, stream, seconds, facts = OTHER_WHOLES[name]
    monkeypatch.setattr(chunk_by_chunk, "BRIEF_SECONDS", float(seconds))
    check = verified(one(**fields), streamed(one(), stream))
    assert check.status == "failed"
    for fact in facts:
        assert fact in check.reason


FRAMES_OF_SLOW = {
    "Y = GRU <hidden_size = 4> (X, W, R, B)": 310,
    "c = CumSum (X, zero)  Y = GRU <hidden_size = 4> (c, W, R, B)": 1009,
    "x = Transpose <perm = [1, 2, 0]> (X)  Y = Conv <pads = [4, 0], dilations = [2]> (x, K)": 310,
    "x = Transpose <perm = [1, 2, 0]> (X)  Y = Conv <pads = [400, 0], dilations = [200]> (x, K)": 1009,
}


@pytest.mark.few(2)
@pytest.mark.parametrize("nodes", FRAMES_OF_SLOW)
@pytest.mark.filterwarnings("ignore:no state is carried")
def test_slow_streams_run_as_many_frames_as_tell_something_new(monkeypatch: pytest.MonkeyPatch, nodes: str) -> None:
    """Each call of one frame does the same, unless it counts; a long past is full after as many frames."""
    monkeypatch.setattr(chunk_by_chunk, "BRIEF_SECONDS", 0.0)
    sizes = "a, b, c" if "Conv" in nodes else "a, b, c, d"
    weights = {**GRU, "zero": np.array(0), "K": random((4, 3, 3))}
    model = net(f"g (float[time, 2, 3] X) => (float[{sizes}] Y) {{ {nodes} }}", weights)
    check = verified(model, streamed(model, "time=1"))
    assert check, check.reason
    assert check.method.endswith(f"sequences of up to {FRAMES_OF_SLOW[nodes]} frames")


def test_a_length_that_the_original_does_not_take() -> None:
    """As positions in a table do."""
    positions = """n = Shape <start = 0, end = 1> (X)  k = Squeeze (n)  t = Range (first, k, step)
        r = Gather (table, t)  rows = Unsqueeze (r, axes)  Y = Add (y, rows)"""
    check = verified(one(positions), streamed(one(), "time"))
    assert check, check.reason
    assert "no sequence of more than 50 frames was compared (the original does not run with 210" in check.reason


def test_a_net_that_makes_much_of_a_rounding() -> None:
    """After some frames nothing can be compared: it is compared before, where a fault is found."""
    weights = {name: array if name == "B" else 8 * array for name, array in recurrent("RNN", 3, 32).items()}
    wild = net(
        """g (float[time, batch, 3] X) => (float[t, d, batch, 32] Y) {
            [only] Y = RNN <hidden_size = 32> (X, W, R, B) }""",
        weights,
    )
    stepped = streamed(wild, "time", "scan")
    check = verified(wild, stepped)
    assert check, check.reason
    assert "rounding the inputs changes output 'Y' from frame" in check.reason
    for each in stepped.graph.node:
        each.input[:] = ["past" if name == "past_only_h" else name for name in each.input]
    stepped.graph.node.insert(0, helper.make_node("Neg", ["past_only_h"], ["past"]))
    assert verified(wild, stepped).status == "failed"


# What runs did not see


CHOSEN = """g (float[time, batch, 3] X) => (float[time, d, batch, 4] Y)
    <float[1,12,3] W = {}, float[1,12,3] V = {}, float[1,12,4] R = {}, float[1,24] B = {}, int64 one = {1},
     int64 two = {2}, float far = {9}> {
    sizes = Shape (X)  n = Gather (sizes, one)  fast = Equal (n, two)
    [choice] y = If (fast) <
        then_branch = t () => (float[time, d, batch, 4] a) { [quick] a = GRU <hidden_size = 4> (X, W, R, B) },
        else_branch = e () => (float[time, d, batch, 4] b) { [slow] b = GRU <hidden_size = 4> (X, V, R, B) }>
    Y = Identity (y) }"""


@pytest.mark.few(1)
@pytest.mark.parametrize("branch", ["then_branch", "else_branch"])
def test_a_state_that_one_branch_does_not_change(branch: str) -> None:
    original = parse(CHOSEN)
    stepped = streamed(original, "time")
    assert verified(original, stepped)
    (body,) = [a.g for n in stepped.graph.node if n.op_type == "If" for a in n.attribute if a.name == branch]
    (past,) = [name for name in body.node[0].input if name.startswith("past_")]
    present = body.node[0].output[1]
    body.node[0].output[1] = "unused"
    body.node.insert(1, helper.make_node("Identity", [past], [present]))
    check = verified(original, stepped)
    assert check.status == "failed"
    assert "out of tolerance; first in call 2" in check.reason


def test_branches_that_no_run_took() -> None:
    original = parse(CHOSEN.replace("fast = Equal (n, two)", "top = ReduceMax (W)  fast = Greater (top, far)"))
    check = verified(original, streamed(original, "time"))
    assert check
    assert "the runs may have missed then_branch of If node 'choice'" in check.reason


def test_lengths_that_have_the_axis_of_the_frames() -> None:
    """They are cut with the frames, and do not count down."""
    original = net(
        """g (float[5, time, 3] X, int32[time] lens) => (float[time, d, 1, 4] Y) {
            none, last = GRU <hidden_size = 4> (X, W, R, B, lens)
            rows = Squeeze (last, first)  x = Unsqueeze (rows, second)
            Y = GRU <hidden_size = 4> (x, vW, vR, vB) }""",
        {**GRU, **recurrent("GRU", 4, 4, "v", seed=1), "first": np.array([0]), "second": np.array([1])},
    )
    stepped = streamed(original, "time")
    assert plan_of(stepped)["inputs"] == {"X": 1, "lens": 0}
    assert verified(original, stepped)


@pytest.mark.usefixtures("own_processes")
def test_a_stream_that_kills_the_optimizer_is_told() -> None:
    """onnxruntime's crashes on a float16 Transpose before a MatMul."""
    original = parse(
        """g (float16[2, time, 3] X) => (float16[time, 2, 4] Y) <float16[1,12,3] W = {}, float16[1,12,4] R = {},
            float16[1,24] B = {}, float16[3,3] M = {}, int64[1] one = {1}> {
            x = Transpose <perm = [1, 0, 2]> (X)  z = MatMul (x, M)
            y = GRU <hidden_size = 4> (z, W, R, B)  Y = Squeeze (y, one) }"""
    )
    check = verified(original, streamed(original, "time=2", "unroll"), runs=1)
    assert check
    assert "the stream runs only with onnxruntime's optimizations disabled: its process died" in check.reason


def test_weights_of_zeros_are_told() -> None:
    original = one(weights={name: 0 * array for name, array in GRU.items()})
    check = verified(original, streamed(original, "time"))
    assert check
    assert "R of GRU node 'only' in main graph is all zeros" in check.reason
    assert "output 'Y' is 0 throughout" in check.reason


def test_outputs_without_a_number_are_told() -> None:
    original = one("n = Sub (once, once)  m = Div (n, n)  Y = Mul (y, m)")
    check = rl.verify(original, rl.lower(original))
    assert check
    assert "output 'Y' is nan throughout" in check.reason


def test_an_optimization_that_changes_the_original() -> None:
    """onnxruntime takes the zeros before a maximum for minus infinity."""
    original = net(
        """g (float[batch, 3, time] X) => (float[time, d, batch, 4] Y) {
            low = Sub (X, far)  p = Pad (low, pads)  z = MaxPool <kernel_shape = [3]> (p)
            x = Transpose <perm = [2, 0, 1]> (z)  Y = GRU <hidden_size = 4> (x, W, R, B) }""",
        {**GRU, "far": np.array(9, np.float32), "pads": np.array([0, 0, 2, 0, 0, 0])},
    )
    if not optimizations_change(original, {"X": random((2, 3, 9))}):
        pytest.skip("this onnxruntime does not have the fault")
    check = verified(original, streamed(original, "time"))
    assert check, check.reason
    assert "onnxruntime's optimizations change the original's outputs" in check.reason


DROPS = """g (float[time, 1, 3] X) => (float[time, d, 1, 4] Y{})
    <float[1, 12, 3] W = {{}}, float[1, 12, 4] R = {{}}, float half = {{0.5}}, bool yes = {{1}}> {{
    D = Dropout (X, half, yes)  Y = GRU <hidden_size = 4> (D, W, R) {} }}"""


def test_an_output_that_no_run_compares_is_named() -> None:
    original = parse(DROPS.format(", float[time, 1, 3] Z", "Z = Neg (X)"))
    check = verified(original, streamed(original, "time"))
    assert check
    assert check.reason == "output 'Y' was not compared: Dropout in training mode"
    alone = parse(DROPS.format("", ""))
    check = verified(alone, streamed(alone, "time"))
    assert check.status == "not verified"
    assert check.reason == "output 'Y' was not compared: Dropout in training mode"
