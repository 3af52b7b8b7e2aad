"""A stream computes what the whole computes: which states come out, under which names, and what else it says."""

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import stream_nets
from running import session
from stream_models import (
    CHUNKINGS,
    assert_streams,
    chunked,
    net,
    over,
    plan_of,
    random,
    recurrent,
    shown,
    streamed,
    whole,
)

import rnn_lowering as rl

X = {"X": random((11, 2, 3))}
TIME_FIRST = "float[time, batch, 3] X"
GRU = "Y = GRU <hidden_size = 4> (X, W, R, B)"
LSTM = "LSTM <hidden_size = 4> (X, W[1, 16, 3], R[1, 16, 4]"


def plain() -> onnx.ModelProto:
    return over(f"{TIME_FIRST} => float[time, 1, batch, 4] Y", GRU)


# Which states


def test_the_metadata_are_those_that_hosts_rely_on() -> None:
    model = plain()
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
    plan = plan_of(assert_streams(over(TIME_FIRST, f"Y = {LSTM})"), {"time": None}, X))
    assert [s["input"] for s in plan["states"]] == ["past_Y_h", "past_Y_c"]


def test_a_last_state_counts_after_the_last_chunk() -> None:
    model = over(f"{TIME_FIRST} => float[] Y, float[] H", GRU.replace("Y =", "Y, H ="))
    assert plan_of(assert_streams(model, "time", X))["outputs"] == {"Y": 0, "H": None}


BATCH = "shape = Shape (X)  n = Gather (shape, [1])  sizes = Concat <axis = 0> ([1], n, [4])"


@pytest.mark.parametrize(
    ("before", "shape"),
    [
        ("H0 = Identity (same)", (1, 1, 4)),
        ("H0 = Identity (start[1, 2, 4])", (1, 2, 4)),
        (f"{BATCH}  H0 = Expand (row[1, 1, 4], sizes)", (1, 1, 4)),
        (f"{BATCH}  H0 = ConstantOfShape <value = float[1] {{0.25}}> (sizes)", (1, 1, 1)),
    ],
)
def test_constant_initial_states_are_what_the_first_call_receives(before: str, shape: tuple[int, ...]) -> None:
    same = {"same": random((1, 1, 4), 3).repeat(2, 1)}
    model = over(TIME_FIRST, f"{before}  Y = GRU <hidden_size = 4> (X, W, R, B, , H0)", same)
    (state,) = plan_of(assert_streams(model, "time", X))["states"]
    assert np.shape(state["initial"]) == shape


def test_layout_1_has_the_batch_first() -> None:
    model = over("float[batch, time, 3] X", "Y = GRU <layout = 1, hidden_size = 4> (X, W, R, B)")
    stepped = streamed(model, "time", "auto")  # onnxruntime has no layout 1
    assert shown(plan_of(stepped)) == "h[batch, 1, 4]"
    feed = {"X": random((2, 11, 3))}
    expected = whole(rl.lower(model), feed)["Y"]
    for sizes in CHUNKINGS:
        np.testing.assert_allclose(chunked(stepped, feed, sizes)["Y"], expected, rtol=0, atol=1e-6)


def test_an_input_that_is_a_state_stays_and_gets_its_output() -> None:
    model = over(f"{TIME_FIRST}, float[1, batch, 4] H0", "Y = GRU <hidden_size = 4> (X, W, R, B, , H0)")
    stepped = streamed(model, "time")
    plan = plan_of(stepped)
    assert [(s["input"], s["output"]) for s in plan["states"]] == [("H0", "present_Y_h")]
    assert plan["inputs"] == {"X": 0}
    start = {"H0": random((1, 2, 4), 5)}
    got = chunked(stepped, X, [4], start)["Y"]
    np.testing.assert_allclose(got, whole(model, {**X, **start})["Y"], rtol=0, atol=1e-6)


STACKED = """g (int64[time, batch] X, float[2, batch, 4] h0, float[2, batch, 4] c0)
    => (float[t, batch, 9] logits, float[2, batch, 4] hn, float[2, batch, 4] cn) {
    x = Gather (table[20, 3], X)
    h1 = Slice (h0, [0], [1], [0])  h2 = Gather (h0, [1])
    c1 = Slice (c0, [0], [1], [0])  c2 = Slice (c0, [1], [2], [0])
    y1, p1, q1 = LSTM <hidden_size = 4> (x, W[1, 16, 3], R[1, 16, 4], B[1, 32], , h1, c1)  z1 = Squeeze (y1, [1])
    y2, p2, q2 = LSTM <hidden_size = 4> (z1, vW[1, 16, 4], vR[1, 16, 4], vB[1, 32], , h2, c2)
    z2 = Squeeze (y2, [1])  logits = MatMul (z2, out[4, 9])
    hn = Concat <axis = 0> (p1, p2)  cn = Concat <axis = 0> (q1, q2) }"""


def test_stacked_states_are_paired_with_what_returns_them() -> None:
    model = net(STACKED)
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
    plan = plan_of(streamed(net(STACKED.replace("(p1, p2)", "(p2, p1)")), "time"))
    assert "h0" in plan["inputs"]
    assert "h0" not in [s["input"] for s in plan["states"]]


def test_rows_of_length_0_keep_their_state() -> None:
    head = f"{TIME_FIRST}, int32[batch] lens => float[] Y, float[] H, float[] C"
    feed = {"X": random((11, 3, 3)), "lens": np.array([11, 4, 1], np.int32)}
    plan = plan_of(assert_streams(over(head, f"Y, H, C = {LSTM}, , lens)"), "time", feed))
    assert plan["inputs"] == {"X": 0, "lens": None}


BRANCHES = """sizes = Shape (X)  n = Gather (sizes, 1)  which = Equal (n, 2)
    Y = If (which) <
        then_branch = a () => (float[t1, d1, n1, h1] y1) { [a] y1 = GRU <hidden_size = 4> (X, W, R, B) },
        else_branch = b () => (float[t2, d2, n2, h2] y2) {
            [b] y0, last = GRU <hidden_size = 4> (X, W, R, B) y2 = Neg (y0) }
    >"""


def test_states_go_through_both_branches_of_if() -> None:
    """Each call of a stream has the same batch size. A branch that is not taken keeps its state."""
    model = over(TIME_FIRST, BRANCHES)
    for batch in (2, 3):
        kept = assert_streams(model, "time", {"X": random((11, batch, 3))})
        assert [s["input"] for s in plan_of(kept)["states"]] == ["past_a_h", "past_b_h"]
    start = {"past_b_h": random((1, 2, 4), 4)}
    running = session(kept)
    results = running.run(["present_b_h"], X | {"past_a_h": random((1, 2, 4), 6), **start})
    np.testing.assert_array_equal(results[0], start["past_b_h"])


ONE_BRANCH = """{} Y = If ({}) <then_branch = t () => (float[d, e, f] y) {{ {} }},
    else_branch = u () => (float[g, h, i] z) {{ z = Neg (X) }}>"""
BY_INPUT = "float[batch, 3, time] X, bool which"


@pytest.mark.filterwarnings("ignore:no state is carried")
@pytest.mark.parametrize(
    "branch",
    [
        """x = Transpose <perm = [2, 0, 1]> (X)  r = GRU <hidden_size = 3> (x, V[1, 9, 3], S[1, 9, 3])
        s = Squeeze (r, [1])  y = Transpose <perm = [1, 2, 0]> (s)""",
        "y = Conv <pads = [2, 0]> (X, K[3, 3, 3])",
        "y = CumSum (X, 2)",
    ],
)
def test_a_state_in_a_branch_that_an_input_chooses(branch: str) -> None:
    feed = {"X": random((2, 3, 11)), "which": np.array(True)}
    model = over(BY_INPUT, ONE_BRANCH.format("", "which", branch))
    said = (
        "If node '-> Y' in main graph: a call may skip a state in its branches, since input 'which' chooses the "
        'branch; fix that input: set_inputs={"which": VALUE}'
    )
    with pytest.raises(rl.UnsupportedError, match=re.escape(said)):
        streamed(model, "time")
    for which in (True, False):
        stepped = rl.lower(model, "keep", stream="time", set_inputs={"which": which})
        expected = whole(model, {**feed, "which": np.array(which)})["Y"]
        got = chunked(stepped, {"X": feed["X"]}, [3, 1])["Y"]
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "nodes"),
    [
        ("which", "c = Not (which)"),
        (
            "which",
            """c = If (which) <then_branch = a () => (bool k) { k = Not (which) },
            else_branch = b () => (bool l) { l = Identity (which) }>""",
        ),
        ("S", "n = NonZero (S)  q = Size (n)  c = Greater (q, 2)"),
        ("S", "m = ReduceMax <keepdims = 0> (S)  c = Greater (m, 9.0)"),
    ],
)
def test_an_input_behind_the_condition_is_found(name: str, nodes: str) -> None:
    model = over(f"{BY_INPUT}, float[3] S", ONE_BRANCH.format(nodes, "c", "y = CumSum (X, 2)"))
    with pytest.raises(rl.UnsupportedError, match=f"since input '{name}' chooses the branch"):
        streamed(model, "time")


COUNTED = "q = Shape (X)  n = Gather (q, 2)  r = Range (0, n, 1)  f = Cast <to = 1> (r)  y = Add (X, f)"


@pytest.mark.filterwarnings("ignore:no state is carried")
@pytest.mark.parametrize("branch", ["y = Tanh (X)", COUNTED])
def test_branches_without_a_state_may_differ_in_each_call(branch: str) -> None:
    model = over(BY_INPUT, ONE_BRANCH.format("", "which", branch))
    for which in (True, False):
        assert_streams(model, "time", {"X": random((2, 3, 11)), "which": np.array(which)})


@pytest.mark.filterwarnings("ignore:no state is carried .* node .* runs along an axis of 6")
def test_a_node_along_another_axis_has_no_state() -> None:
    """A bidirectional GRU over 6 frequencies of each frame; the frames are its batch."""
    nodes = """x = Transpose <perm = [2, 0, 1, 3]> (X)  flat = Reshape (x, [6, -1, 3])
        y = GRU <hidden_size = 4, direction = "bidirectional"> (flat, V[2, 12, 3], S[2, 12, 4])
        one = Transpose <perm = [0, 2, 1, 3]> (y)  four = Reshape (one, [6, 2, -1, 8])
        Y = Transpose <perm = [1, 2, 0, 3]> (four)"""
    kept = assert_streams(over("float[2, time, 6, 3] X", nodes), "time", {"X": random((2, 11, 6, 3))})
    assert plan_of(kept)["states"] == []


def test_names_are_unique_and_plain() -> None:
    model = over(
        f"{TIME_FIRST}, float[1, batch, 4] past_a_b_h => float[] Y, float[] Z",
        f"{GRU}  Z = GRU <hidden_size = 4> (X, W, R, B, , past_a_b_h)",
    )
    model.graph.node[0].name, model.graph.node[1].name = "a/b", "a.b µ"
    names = [s[k] for s in plan_of(streamed(model, "time"))["states"] for k in ("input", "output")]
    assert names == ["past_a_b_h_2", "present_a_b_h", "past_a_b_h", "present_a_b_h_2"]


# The time axis


def test_a_static_axis_is_opened() -> None:
    kept = assert_streams(over("float[11, 2, 3] X => float[11, 1, 2, 4] Y", GRU), {"X:0": None}, X)
    assert [d.dim_param or d.dim_value for d in kept.graph.input[0].type.tensor_type.shape.dim] == ["frames", 2, 3]


@pytest.mark.parametrize(("stream", "frames"), [("time=1", 1), ({"X:0": 5}, 5), ("X:-3=4", 4)])
def test_frames_are_fixed_throughout(stream: Any, frames: int) -> None:
    model = plain()
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
    "'time' of stream cannot be 0": "time=0",
    "'x' is not a number of frames": "time=x",
    "input 'X' has two time axes, 0 and 2": {"time": None, "X:2": None},
    "input 'X' has 1 and 2 frames in a call": {"time": 1, "X:0": 2},
    "the time axis has no name": "",
}


@pytest.mark.parametrize("message", BAD_AXES)
def test_a_wrong_axis_is_refused(message: str) -> None:
    model = over(f"{TIME_FIRST}, int32[batch] lens", "Y = GRU <hidden_size = 4> (X, W, R, B, lens)")
    with pytest.raises(rl.RnnLoweringError) as caught:
        streamed(model, BAD_AXES[message])
    assert message in str(caught.value)


def test_two_inputs_whose_axes_disagree_are_refused() -> None:
    model = net("g (float[7, 2] X, float[5, 2] Z) => (float[7, 2] Y) { Y = Neg (X) }")
    with pytest.raises(rl.UnsupportedError, match="have 7 and 5 frames, but must have the same number"):
        streamed(model, {"X:0": None, "Z:0": None})


# What cannot be a stream, beside test_stream_refusals.py


def test_unsorted_nodes_are_sorted() -> None:
    model = over(TIME_FIRST, "x = Neg (X)  Y = GRU <hidden_size = 4> (x, W, R, B)")
    expected = whole(model, X)["Y"]
    model.graph.node.insert(0, model.graph.node.pop())
    for stepped in (streamed(model, "time"), rl.lower(model, stream="time")):
        np.testing.assert_allclose(chunked(stepped, X, [4])["Y"], expected, rtol=0, atol=1e-6)


def test_a_model_that_is_not_valid_is_refused() -> None:
    """ONNX's inference may crash on such a model."""
    model = plain()
    model.graph.node.append(onnx.helper.make_node("Transpose", ["Y"], ["Z"], perm=[0], no_such=1))
    with pytest.raises(rl.UnsupportedError, match="the model is not valid"):
        rl.StreamPass("time")(ir.from_proto(model))


def test_constant_lengths_are_refused() -> None:
    model = over(TIME_FIRST, "Y = GRU <hidden_size = 4> (X, W, R, B, lens)", {"lens": np.array([11, 4], np.int32)})
    with pytest.raises(rl.UnsupportedError, match="sequence_lens are constant"):
        streamed(model, "time")


def test_a_node_without_outputs_is_no_obstacle() -> None:
    """All outputs of a recurrent node are optional."""
    model = plain()
    model.graph.node.add(op_type="GRU", input=["X", "W", "R"]).attribute.add(name="hidden_size", type=2, i=4)
    assert plan_of(streamed(model, "time"))["states"]


# What is left of the original


def without_use(model: onnx.ModelProto) -> tuple[list[str], set[str]]:
    """The operators and the initializers of a model from which no output is computed."""
    used = {value.name for value in model.graph.output}
    dead = []
    for node in reversed(model.graph.node):
        if used & set(node.output):
            used |= set(read_by(node))
        else:
            dead.append(node.op_type)
    return dead, {tensor.name for tensor in model.graph.initializer} - used


def read_by(node: onnx.NodeProto) -> Iterator[str]:
    yield from node.input
    for body in (a.g for a in node.attribute):
        yield from (value.name for value in body.output)
        for inner in body.node:
            yield from read_by(inner)


@pytest.mark.parametrize("name", ["enhancer", "keras_batch_first", "keyword_spotter", "language_model"])
@pytest.mark.parametrize("stream", ["time", "time=1"])
def test_nothing_is_left_of_old_initial_states_and_paddings(name: str, stream: str) -> None:
    model, _ = getattr(stream_nets, name)()
    stepped = without_use(streamed(model, stream))
    assert stepped[0] == []
    assert stepped[1] <= without_use(model)[1]


@pytest.mark.parametrize(
    "unused",
    [
        "first = Slice (X, [0], [5], [0])  nothing = Reshape (first, [5, -1])",  # a chunk may have fewer frames
        "nothing = ReduceMean (X, [0])",
        "x = Transpose <perm = [1, 2, 0]> (X)  nothing = Conv (x, K[3, 3, 5])",
        'nothing = GRU <hidden_size = 4, direction = "reverse"> (X, W, R, B)',
    ],
)
def test_what_no_output_needs_is_not_in_a_stream(unused: str) -> None:
    model = over(TIME_FIRST, f"{unused}  Y = GRU <hidden_size = 4> (X, W, R, B)", {"never": random((2,))})
    stepped = assert_streams(model, "time", {"X": random((9, 2, 3))})
    assert without_use(stepped) == ([], set())
    assert [state["input"] for state in plan_of(stepped)["states"]] == ["past_Y_h"]


def test_a_node_that_only_a_branch_used_goes_with_its_use() -> None:
    model = net(
        """g (float[time, batch, 3] X) => (float[t, d, n, h] Y) {
            shape = Shape (X)
            batch = Gather (shape, one)
            go = Less (batch, four)
            start_shape = Concat <axis = 0> (one, batch, four)
            Y = If (go) <
                then_branch = a () => (float[t, d, n, h] P) {
                    start = ConstantOfShape (start_shape)
                    P = GRU <hidden_size = 4> (X, W, R, B, , start) },
                else_branch = b () => (float[t, d, n, h] Q) { Q = GRU <hidden_size = 4> (X, W, R, B) }> }""",
        {**recurrent("GRU", 3, 4), "one": np.array([1]), "four": np.array([4])},
    )
    stepped = assert_streams(model, "time", {"X": random((9, 2, 3))})
    kept = [node.op_type for node in stepped.graph.node if node.op_type != "Identity"]
    assert kept == ["Shape", "Gather", "Less", "If"]
    assert {tensor.name for tensor in stepped.graph.initializer} == {"W", "R", "B", "one", "four"}


@pytest.mark.parametrize("stream", ["time", "time=1"])
@pytest.mark.parametrize("to", ["keep", "scan"])
def test_denotations_of_axes_stay(stream: str, to: str) -> None:
    model = plain()
    meant = {"X": ["TIME", "DATA_BATCH", "DATA_FEATURE"], "Y": ["TIME", "DIRECTION", "", "DATA_FEATURE"]}
    for value in (*model.graph.input, *model.graph.output):
        for dim, text in zip(value.type.tensor_type.shape.dim, meant[value.name], strict=True):
            dim.denotation = text
    values = [*(made := streamed(model, stream, to).graph).input, *made.output]
    kept = {v.name: [dim.denotation for dim in v.type.tensor_type.shape.dim] for v in values}
    assert {name: kept[name] for name in meant} == meant


def test_an_axis_along_which_nothing_is_carried_is_warned_of() -> None:
    model = over(
        f"{TIME_FIRST}, float[1, batch, 4] start", "[only] Y = GRU <hidden_size = 4> (X, W, R, B, , start)"
    )
    said = (
        r"no state is carried from chunk to chunk along axis 1 of 'X' \(batch\) and axis 1 of 'start' \(batch\); "
        "GRU node 'only' in main graph runs along 'time'; 'start' is an initial state"
    )
    with pytest.warns(rl.RnnLoweringWarning, match=said):
        rl.lower(model, "keep", stream="batch")
