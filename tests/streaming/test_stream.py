"""A stream computes what the whole computes: which states come out, under which names, and what is refused."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from cases import Array
from running import session
from stream_models import (
    CHUNKINGS,
    assert_streams,
    chunked,
    net,
    plan_of,
    random,
    recurrent,
    streamed,
    whole,
)

import rnn_lowering as rl

GRU = recurrent("GRU", 3, 4)
LSTM = recurrent("LSTM", 3, 4)
X = {"X": random((11, 2, 3))}

PLAIN_GRU = """g (float[time, batch, 3] X) => (float[t, 1, batch, 4] Y)
    { Y = GRU <hidden_size = 4> (X, W, R, B) }"""


def one(
    node: str, inputs: str = "", outputs: str = "float[t, d, n, h] Y", weights: Mapping[str, Array] | None = None
) -> onnx.ModelProto:
    operator = "LSTM" if "LSTM" in node else "GRU"
    text = f"g (float[time, batch, 3] X{inputs}) => ({outputs}) {{ {node} }}"
    return net(text, {**(LSTM if operator == "LSTM" else GRU), **(weights or {})})


# Which states


def test_the_metadata_are_those_that_hosts_rely_on() -> None:
    model = net(PLAIN_GRU, GRU)
    model.graph.node[0].name = "/a/GRU"
    plan = plan_of(assert_streams(model, "time", X))
    state = {"input": "past_a_GRU_h", "output": "present_a_GRU_h", "node": "/a/GRU", "state": "h"}
    assert plan == {
        "version": 1,
        "frames": None,
        "inputs": {"X": 0},
        "outputs": {"Y": 0},
        "states": [{**state, "shape": [1, "batch", 4], "dtype": "float32", "initial": "zeros"}],
        "unit": 1,
        "rates": {"Y": "1"},
        "delay": {},
        "short": {},
    }


def test_an_lstm_has_two_states_and_unconnected_outputs_are_made() -> None:
    model = one("Y = LSTM <hidden_size = 4> (X, W, R, B)")
    plan = plan_of(assert_streams(model, {"time": None}, X))
    assert [s["input"] for s in plan["states"]] == ["past_Y_h", "past_Y_c"]


def test_a_last_state_counts_after_the_last_chunk() -> None:
    model = one(
        "Y, H = GRU <hidden_size = 4> (X, W, R, B)", outputs="float[t, 1, batch, 4] Y, float[1, batch, 4] H"
    )
    assert plan_of(assert_streams(model, "time", X))["outputs"] == {"Y": 0, "H": None}


CONSTANTS = {
    "an initializer": ("", {"H0": random((1, 1, 4), 3).repeat(2, 1)}),
    "rows of their own": ("", {"H0": random((1, 2, 4), 3)}),
    "broadcast": (
        "shape = Shape (X) n = Gather (shape, one) sizes = Concat <axis = 0> (one, n, four)"
        "H0 = Expand (row, sizes)",
        {"row": random((1, 1, 4), 3), "one": np.array([1]), "four": np.array([4])},
    ),
    "a constant of the batch size": (
        "shape = Shape (X) n = Gather (shape, one) sizes = Concat <axis = 0> (one, n, four)"
        "H0 = ConstantOfShape <value = float[1] {0.25}> (sizes)",
        {"one": np.array([1]), "four": np.array([4])},
    ),
}


@pytest.mark.parametrize("label", CONSTANTS)
def test_constant_initial_states_are_what_the_first_call_receives(label: str) -> None:
    before, weights = CONSTANTS[label]
    model = one(f"{before} Y = GRU <hidden_size = 4> (X, W, R, B, , H0)", weights=weights)
    (state,) = plan_of(assert_streams(model, "time", X))["states"]
    assert np.shape(state["initial"]) == ((1, 2, 4) if label == "rows of their own" else (1, 1, 4))


def test_layout_1_has_the_batch_first() -> None:
    model = net(
        """g (float[batch, time, 3] X) => (float[n, t, d, h] Y) {
            Y = GRU <layout = 1, hidden_size = 4> (X, W, R, B) }""",
        GRU,
    )
    stepped = streamed(model, "time", "auto")  # onnxruntime has no layout 1
    (state,) = plan_of(stepped)["states"]
    assert state["shape"] == ["batch", 1, 4]
    feed = {"X": random((2, 11, 3))}
    expected = whole(rl.lower(model), feed)["Y"]
    for sizes in CHUNKINGS:
        np.testing.assert_allclose(chunked(stepped, feed, sizes)["Y"], expected, rtol=0, atol=1e-6)


def test_an_input_that_is_a_state_stays_and_gets_its_output() -> None:
    model = one("Y = GRU <hidden_size = 4> (X, W, R, B, , H0)", ", float[1, batch, 4] H0")
    plan = plan_of(streamed(model, "time"))
    assert [(s["input"], s["output"]) for s in plan["states"]] == [("H0", "present_Y_h")]
    assert plan["inputs"] == {"X": 0}
    start = {"H0": random((1, 2, 4), 5)}
    got = chunked(streamed(model, "time"), X, [4], start)["Y"]
    np.testing.assert_allclose(got, whole(model, {**X, **start})["Y"], rtol=0, atol=1e-6)


STACKED = """g (int64[time, batch] X, float[2, batch, 4] h0, float[2, batch, 4] c0)
    => (float[t, batch, 9] logits, float[2, batch, 4] hn, float[2, batch, 4] cn) {
    x = Gather (table, X)
    h1 = Slice (h0, zero, one, zero)  h2 = Gather (h0, second)
    c1 = Slice (c0, zero, one, zero)  c2 = Slice (c0, one, two, zero)
    y1, p1, q1 = LSTM <hidden_size = 4> (x, W, R, B, , h1, c1)
    z1 = Squeeze (y1, one)
    y2, p2, q2 = LSTM <hidden_size = 4> (z1, vW, vR, vB, , h2, c2)
    z2 = Squeeze (y2, one)
    logits = MatMul (z2, out)
    hn = Concat <axis = 0> (p1, p2)
    cn = Concat <axis = 0> (q1, q2)
}"""


def stacked(text: str = STACKED) -> onnx.ModelProto:
    numbers = {"zero": np.array([0]), "one": np.array([1]), "two": np.array([2]), "second": np.array([1])}
    tables = {"table": random((20, 3), 1), "out": random((4, 9), 2)}
    return net(text, {**LSTM, **recurrent("LSTM", 4, 4, "v"), **numbers, **tables})


def test_stacked_states_are_paired_with_what_returns_them() -> None:
    model = stacked()
    kept = streamed(model, "time")
    plan = plan_of(kept)
    assert [(s["input"], s["output"], s["state"]) for s in plan["states"]] == [("h0", "hn", "h"), ("c0", "cn", "c")]
    assert plan["states"][0]["node"] == "-> y1, -> y2"
    assert plan["outputs"] == {"logits": 0}
    assert len(kept.graph.output) == 3
    feed = {"X": np.random.default_rng(0).integers(0, 20, (11, 2))}
    start = {"h0": random((2, 2, 4), 7), "c0": random((2, 2, 4), 8)}
    expected = whole(model, {**feed, **start})["logits"]
    for sizes in CHUNKINGS:
        np.testing.assert_allclose(chunked(kept, feed, sizes, start)["logits"], expected, rtol=0, atol=1e-6)


def test_states_returned_in_another_order_are_not_paired() -> None:
    plan = plan_of(streamed(stacked(STACKED.replace("(p1, p2)", "(p2, p1)")), "time"))
    assert "h0" in plan["inputs"]
    assert "h0" not in [s["input"] for s in plan["states"]]


LENS = "X, W, R, B, lens"


def test_rows_of_length_0_keep_their_state() -> None:
    model = one(
        f"Y, H, C = LSTM <hidden_size = 4> ({LENS})",
        ", int32[batch] lens",
        "float[t, 1, batch, 4] Y, float[1, batch, 4] H, float[1, batch, 4] C",
    )
    feed = {"X": random((11, 3, 3)), "lens": np.array([11, 4, 1], np.int32)}
    plan = plan_of(assert_streams(model, "time", feed))
    assert plan["inputs"] == {"X": 0, "lens": None}


BRANCHES = """g (float[time, batch, 3] X) => (float[t, d, n, h] Y) {
    sizes = Shape (X)  n = Gather (sizes, one)  which = Equal (n, two)
    Y = If (which) <
        then_branch = a () => (float[t1, d1, n1, h1] y1) { [a] y1 = GRU <hidden_size = 4> (X, W, R, B) },
        else_branch = b () => (float[t2, d2, n2, h2] y2) {
            [b] y0, last = GRU <hidden_size = 4> (X, W, R, B) y2 = Neg (y0) }
    >
}"""


BY_BATCH = {**GRU, "one": np.array(1), "two": np.array(2)}


@pytest.mark.parametrize("batch", [2, 3])
def test_states_go_through_both_branches_of_if(batch: int) -> None:
    """Each call of a stream has the same batch size."""
    plan = plan_of(assert_streams(net(BRANCHES, BY_BATCH), "time", {"X": random((11, batch, 3))}))
    assert [s["input"] for s in plan["states"]] == ["past_a_h", "past_b_h"]


def test_a_branch_that_is_not_taken_keeps_its_state() -> None:
    kept = streamed(net(BRANCHES, BY_BATCH), "time")
    start = {"past_b_h": random((1, 2, 4), 4)}
    running = session(kept)
    feed = {"X": random((11, 2, 3)), "past_a_h": random((1, 2, 4), 6), **start}
    names = [o.name for o in running.get_outputs()]
    np.testing.assert_array_equal(
        dict(zip(names, running.run(None, feed), strict=True))["present_b_h"], start["past_b_h"]
    )


BY_INPUT = "g (float[batch, 3, time] X, bool which{}) => (float[a, b, c] Y) {{ {} }}"
ONE_BRANCH = """{} Y = If ({}) <then_branch = t () => (float[d, e, f] y) {{ {} }},
    else_branch = u () => (float[g, h, i] z) {{ z = Neg (X) }}>"""
IN_BRANCH = {
    "a recurrent layer": """x = Transpose <perm = [2, 0, 1]> (X)  r = GRU <hidden_size = 3> (x, W, R, B)
        s = Squeeze (r, i1)  y = Transpose <perm = [1, 2, 0]> (s)""",
    "past frames": "y = Conv <pads = [2, 0]> (X, K)",
    "a sum": "y = CumSum (X, two)",
}
BRANCH_WEIGHTS = {
    **recurrent("GRU", 3, 3),
    **{"K": random((3, 3, 3)), "i1": np.array([1]), "zero": np.array(0), "one": np.array(1), "two": np.array(2)},
}


@pytest.mark.filterwarnings("ignore:no state is carried")
@pytest.mark.parametrize("label", IN_BRANCH)
def test_a_state_in_a_branch_that_an_input_chooses(label: str) -> None:
    feed = {"X": random((2, 3, 11)), "which": np.array(True)}
    model = net(BY_INPUT.format("", ONE_BRANCH.format("", "which", IN_BRANCH[label])), BRANCH_WEIGHTS)
    said = (
        "If node '-> Y' in main graph: a call may skip a state in its branches, since input 'which' chooses the "
        "branch; fix that input: --set-input which=VALUE"
    )
    with pytest.raises(rl.UnsupportedError, match=said):
        streamed(model, "time")
    for which in (True, False):
        stepped = rl.lower(model, "keep", stream="time", set_inputs={"which": which})
        expected = whole(model, {**feed, "which": np.array(which)})["Y"]
        got = chunked(stepped, {"X": feed["X"]}, [3, 1])["Y"]
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5)


DECIDING = {
    "which": "c = Not (which)",
    "which, through another If": """c = If (which) <then_branch = a () => (bool k) { k = Not (which) },
        else_branch = b () => (bool l) { l = Identity (which) }>""",
    "S, by how many of it are not zero": "n = NonZero (S)  q = Size (n)  c = Greater (q, two)",
    "S, by its values": "m = ReduceMax <keepdims = 0> (S)  c = Greater (m, far)",
}


@pytest.mark.parametrize("label", DECIDING)
def test_an_input_behind_the_condition_is_found(label: str) -> None:
    branches = ONE_BRANCH.format(DECIDING[label], "c", IN_BRANCH["a sum"])
    weights = {**BRANCH_WEIGHTS, "far": np.array(9, np.float32)}
    model = net(BY_INPUT.format(", float[3] S", branches), weights)
    with pytest.raises(rl.UnsupportedError, match=f"since input '{label.split(',')[0]}' chooses the branch"):
        streamed(model, "time")


COUNTED = "q = Shape (X)  n = Gather (q, two)  r = Range (zero, n, one)  f = Cast <to = 1> (r)  y = Add (X, f)"


@pytest.mark.filterwarnings("ignore:no state is carried")
@pytest.mark.parametrize("branch", ["y = Tanh (X)", COUNTED])
def test_branches_without_a_state_may_differ_in_each_call(branch: str) -> None:
    model = net(BY_INPUT.format("", ONE_BRANCH.format("", "which", branch)), BRANCH_WEIGHTS)
    for which in (True, False):
        assert_streams(model, "time", {"X": random((2, 3, 11)), "which": np.array(which)})


@pytest.mark.filterwarnings("ignore:no state is carried .* node .* runs along an axis of 6")
def test_a_node_along_another_axis_has_no_state() -> None:
    """A bidirectional GRU over 6 frequencies of each frame; the frames are its batch."""
    weights = {
        **recurrent("GRU", 3, 4, directions=2),
        "shape": np.array([6, -1, 3]),
        "back": np.array([6, 2, -1, 8]),
    }
    model = net(
        """g (float[2, time, 6, 3] X) => (float[a, b, c, d] Z) {
            x = Transpose <perm = [2, 0, 1, 3]> (X)  flat = Reshape (x, shape)
            y = GRU <hidden_size = 4, direction = "bidirectional"> (flat, W, R, B)
            one = Transpose <perm = [0, 2, 1, 3]> (y)  four = Reshape (one, back)
            Z = Transpose <perm = [1, 2, 0, 3]> (four) }""",
        weights,
    )
    assert plan_of(assert_streams(model, "time", {"X": random((2, 11, 6, 3))}))["states"] == []


def test_names_are_unique_and_plain() -> None:
    model = net(
        """g (float[time, batch, 3] X, float[1, batch, 4] past_a_b_h) => (float[a, b, c, d] Y, float[e, f, g, h] Z)
        {
            Y = GRU <hidden_size = 4> (X, W, R, B)  Z = GRU <hidden_size = 4> (X, W, R, B, , past_a_b_h) }""",
        GRU,
    )
    model.graph.node[0].name, model.graph.node[1].name = "a/b", "a.b µ"
    names = [s[k] for s in plan_of(streamed(model, "time"))["states"] for k in ("input", "output")]
    assert names == ["past_a_b_h_2", "present_a_b_h", "past_a_b_h", "present_a_b_h_2"]


# The time axis


def test_a_static_axis_is_opened() -> None:
    model = net("g (float[11, 2, 3] X) => (float[11, 1, 2, 4] Y) { Y = GRU <hidden_size = 4> (X, W, R, B) }", GRU)
    kept = assert_streams(model, {"X:0": None}, X)
    assert [d.dim_param or d.dim_value for d in kept.graph.input[0].type.tensor_type.shape.dim] == ["frames", 2, 3]


@pytest.mark.parametrize(("stream", "frames"), [("time=1", 1), ({"X:0": 5}, 5), ("X:-3=4", 4)])
def test_frames_are_fixed_throughout(stream: Any, frames: int) -> None:
    model = net(PLAIN_GRU, GRU)
    lowered = streamed(model, stream, "auto")
    assert plan_of(lowered)["frames"] == frames
    assert lowered.graph.input[0].type.tensor_type.shape.dim[0].dim_value == frames
    assert lowered.graph.output[0].type.tensor_type.shape.dim[0].dim_value == frames
    assert frames > 1 or not {"Scan", "Loop"} & {n.op_type for n in lowered.graph.node}
    feed = {"X": random((20, 2, 3))}
    got = chunked(lowered, feed, [frames])["Y"]
    np.testing.assert_allclose(got, whole(model, feed)["Y"], rtol=0, atol=1e-6)


BAD_AXES = {
    "no axis is called 'T'; the model's inputs: X [time, batch, 3], lens [batch]": "T",
    "no axis is called 'X:7'": "X:7",
    "no axis is called 'Q:0'": "Q:0",
    "stream['time'] cannot be 0": "time=0",
    "'x' is not a number of frames": "time=x",
    "input 'X' has two time axes, 0 and 2": {"time": None, "X:2": None},
    "the time axes have different numbers of frames": {"time": 1, "X:0": 2},
    "the time axis has no name": "",
}


@pytest.mark.parametrize("message", BAD_AXES)
def test_a_wrong_axis_is_refused(message: str) -> None:
    model = one(f"Y = GRU <hidden_size = 4> ({LENS})", ", int32[batch] lens")
    with pytest.raises(rl.RnnLoweringError) as caught:
        streamed(model, BAD_AXES[message])
    assert message in str(caught.value)


def test_two_inputs_whose_axes_disagree_are_refused() -> None:
    model = net("g (float[7, 2] X, float[5, 2] Z) => (float[7, 2] Y) { Y = Neg (X) }")
    with pytest.raises(rl.UnsupportedError, match="have 5 and 7 frames, but must have the same number"):
        streamed(model, {"X:0": None, "Z:0": None})


# What cannot be a stream

HEAD = "g (float[time, batch, 3] X) => (float[a, b, c, d] Y)"
REFUSED: dict[str, tuple[str, str]] = {
    "bidirectional": (
        'y = GRU <hidden_size = 4, direction = "reverse"> (X, W, R, B) Y = Neg (y)',
        "GRU node '-> y' in main graph: direction is reverse",
    ),
    "a state of the data": (
        "last = Gather (X, minus) h0 = MatMul (last, wide) Y = GRU <hidden_size = 4> (X, W, R, B, , h0)",
        "GRU node '-> Y' in main graph: its initial state is computed from the stream",
    ),
    "the first frame": (
        "x = Slice (X, zero, one, zero) y = Sub (X, x) Y = GRU <hidden_size = 4> (y, W, R, B)",
        "Slice node '-> x' in main graph: picks frames by their position",
    ),
    "the last frame in all": (
        "x = Slice (X, minus, far, zero) y = Sub (X, x) Y = GRU <hidden_size = 4> (y, W, R, B)",
        "Sub node '-> y' in main graph: joins each frame with a value that is known only after the last one",
    ),
    "the mean of all frames": (
        "m = ReduceMean <axes = [0]> (X) x = Sub (X, m) Y = GRU <hidden_size = 4> (x, W, R, B)",
        "Sub node '-> x' in main graph: subtracts the mean of all frames",
    ),
    "a softmax over time": (
        "x = Softmax <axis = 0> (X) Y = GRU <hidden_size = 4> (x, W, R, B)",
        "Softmax node '-> x' in main graph: weighs each frame by all of them",
    ),
    "frames in reverse": (
        "x = Slice (X, minus, near, zero, minus) Y = GRU <hidden_size = 4> (x, W, R, B)",
        "reverses the frames",
    ),
    "attention": (
        "q = Transpose <perm = [1, 0, 2]> (X) k = Transpose <perm = [1, 2, 0]> (X) s = MatMul (q, k)"
        "y = Unsqueeze (s, zero) Y = Neg (y)",
        "MatMul node '-> s' in main graph: compares frames with each other",
    ),
    "a batch folded in": (
        "x = Reshape (X, mixed) Y = GRU <hidden_size = 4> (x, W, R, B)",
        "Reshape node '-> x' in main graph: mixes the frames with other axes",
    ),
    "frames cut into pieces": (
        "x = Reshape (X, fours) Y = Neg (x)",
        "Reshape node '-> x' in main graph: mixes the frames with other axes",
    ),
    "a length folded in": (
        "x = Reshape (X, fixed) Y = GRU <hidden_size = 4> (x, W, R, B)",
        "did the exporter fix the length?",
    ),
    "an operator of elsewhere": (
        "x = other.FFT (X) Y = GRU <hidden_size = 4> (x, W, R, B)",
        "is not known to act on each frame alone",
    ),
}


@pytest.mark.parametrize("label", REFUSED)
def test_what_looks_beyond_its_frame_is_refused_by_name(label: str) -> None:
    nodes, message = REFUSED[label]
    numbers = {"zero": [0], "one": [1], "two": [2], "minus": [-1], "near": [-(2**31)], "far": [2**31]}
    numbers |= {"mixed": [2, -1, 3], "fixed": [11, 2, 3], "fours": [-1, 4], "onetwo": [1, 2]}
    weights = {name: np.array(held) for name, held in numbers.items()} | {
        "zero1": np.array(0),
        "one1": np.array(1),
        "wide": random((3, 4)),
    }
    text = f'<ir_version: 8, opset_import: ["": 17, "other": 1]> {HEAD} {{ {nodes} }}'
    model = onnx.parser.parse_model(text)
    for name, array in {**GRU, **weights}.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    held = ir.from_proto(model)
    before = ir.to_proto(held).SerializeToString(deterministic=True)
    with pytest.raises(rl.UnsupportedError) as caught:
        rl.StreamPass("time")(held)
    assert message in str(caught.value)
    assert ir.to_proto(held).SerializeToString(deterministic=True) == before


def test_nodes_in_a_loop_are_refused() -> None:
    model = net(
        """g (float[time, batch, 3] X, int64 n) => (float[a, b, c] Y) {
            Y = Loop (n, , X) <body = b (int64 i, bool go, float[p, q, 3] x) => (bool go2, float[p, q, 3] x2) {
                go2 = Identity (go) [inner] y = GRU <hidden_size = 3> (x, W, R, B)  x2 = Squeeze (y, one) }> }""",
        {**recurrent("GRU", 3, 3), "one": np.array([1])},
    )
    with pytest.raises(rl.UnsupportedError, match="Loop node '-> Y' in main graph: its initial state is comp"):
        streamed(model, "time")


def test_unsorted_nodes_are_sorted() -> None:
    model = one("x = Neg (X) Y = GRU <hidden_size = 4> (x, W, R, B)")
    expected = whole(model, X)["Y"]
    model.graph.node.insert(0, model.graph.node.pop())
    for stepped in (streamed(model, "time"), rl.lower(model, stream="time")):
        np.testing.assert_allclose(chunked(stepped, X, [4])["Y"], expected, rtol=0, atol=1e-6)


def test_a_model_that_is_not_valid_is_refused() -> None:
    """ONNX's inference may crash on such a model."""
    model = one("Y = GRU <hidden_size = 4> (X, W, R, B)")
    model.graph.node.append(onnx.helper.make_node("Transpose", ["Y"], ["Z"], perm=[0], no_such=1))
    with pytest.raises(rl.UnsupportedError, match="the model is not valid"):
        rl.StreamPass("time")(ir.from_proto(model))


def test_constant_lengths_are_refused() -> None:
    model = one(f"Y = GRU <hidden_size = 4> ({LENS})", weights={"lens": np.array([11, 4], np.int32)})
    with pytest.raises(rl.UnsupportedError, match="sequence_lens are constant"):
        streamed(model, "time")


def test_a_node_without_outputs_is_no_obstacle() -> None:
    """All outputs of a recurrent node are optional."""
    model = net(PLAIN_GRU, GRU)
    model.graph.node.add(op_type="GRU", input=["X", "W", "R"]).attribute.add(name="hidden_size", type=2, i=4)
    assert plan_of(streamed(model, "time"))["states"]
