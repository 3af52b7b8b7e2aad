"""Streams of LinearAttention and CausalConvWithState: states are brought out, or pairs of input and output stay."""

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from attention import Attention
from attention_blocks import BLOCKS, first_states
from causal_conv import STANDARD, ConvCase, arrays, expected, feed, model
from graphs import MS, Graph
from one_process import run_workers_here
from running import run

import rnn_lowering as rl

OPEN = replace(STANDARD, symbolic=True)
CONVS = {
    "no past": replace(OPEN, optional=("bias",)),
    "a pair": OPEN,
    "half": replace(OPEN, dtype="float16"),
    "constant past": replace(OPEN, domain=MS, batch=1, constants=("weight", "bias", "past_state")),
    "channels last": replace(OPEN, domain=MS, channels_last=True, dilation=2, optional=()),
    "kernel 1": replace(OPEN, domain=MS, kernel=1, optional=()),
}


@pytest.fixture(autouse=True)
def workers_here(monkeypatch: pytest.MonkeyPatch) -> None:
    run_workers_here(monkeypatch)


@pytest.mark.parametrize("frames", ["", "=1", "=3"])
@pytest.mark.parametrize("target", ["portable", "onnxruntime"])
@pytest.mark.parametrize("name", CONVS)
@pytest.mark.filterwarnings("ignore:no state is carried")
def test_a_convolution_in_chunks(name: str, target: Any, frames: str) -> None:
    case: ConvCase = replace(CONVS[name], length=6)
    original = model(case)
    stream, report = rl.lower(original, target=target, stream=f"length{frames}", full=True)
    operators = {node.op_type for node in stream.graph.node}
    assert "CausalConvWithState" not in operators
    assert ("Conv" in operators) == (frames != "=1" or case.dilation > 1), operators  # a Mul and a ReduceSum
    assert [node.form for node in report.nodes] == ["unroll"]
    assert stream.opset_import[0].version == (21 if case.domain else 17)
    assert report.stream is not None
    states = report.stream.states
    assert len(states) == (case.kernel > 1)
    if "past_state" in feed(case):
        assert [(state.input, state.output) for state in states] == [("past_state", "present_state")]
    whole, given = expected(case), feed(case)
    held = {s.input: given.get(s.input, s.first({"batch": case.batch})) for s in states}
    axis, outputs = 1 if case.channels_last else 2, []
    for part in np.split(given["input"], 6 if frames == "=1" else 2, axis):
        got = run(stream, {"input": part} | held)
        held = {s.input: got[s.output] for s in states}
        outputs.append(got["output"])
    near = 3e-3 if case.dtype == "float16" else 3e-6
    np.testing.assert_allclose(np.concatenate(outputs, axis), whole["output"], rtol=near, atol=near)


@pytest.mark.parametrize("length", [1, 6])
@pytest.mark.parametrize("kernel", [1, 4])
@pytest.mark.filterwarnings("ignore:no state is carried")
def test_a_convolution_of_a_fixed_length_in_chunks(kernel: int, length: int) -> None:
    """What takes its place holds for any number of frames, also for one that was exported with one or six."""
    case = ConvCase(domain=MS, kernel=kernel, length=length, optional=("past_state",) if kernel > 1 else ())
    original = model(case)
    original.graph.value_info.extend(original.graph.output)
    stream = rl.lower(original, stream="input:2")
    longer = replace(case, length=7)
    given = feed(longer)
    whole = expected(longer, {"weight": arrays(case)["weight"]} | given)
    got = run(stream, given)
    np.testing.assert_allclose(got["output"], whole["output"], rtol=3e-6, atol=3e-6)


@pytest.mark.parametrize("target", ["qnn", "iree"])
def test_a_convolution_in_frames_for_a_runtime_that_needs_its_length(target: Any) -> None:
    """The frames of a call are its length; chunks of any length have none."""
    case = ConvCase(domain=MS, length=6, optional=("past_state",))
    stream = rl.lower(model(case), target=target, stream="input:2=1")
    given, outputs = feed(case), []
    state = given["past_state"]
    for frame in np.split(given["input"], 6, 2):
        got = run(stream, {"input": frame, "past_state": state})
        state = got["present_state"]
        outputs.append(got["output"])
    np.testing.assert_allclose(np.concatenate(outputs, 2), expected(case)["output"], rtol=3e-6, atol=3e-6)
    with pytest.raises(rl.UnknownSizeError, match=f"{target} needs a known sequence length"):
        rl.lower(model(case), target=target, stream="input:2")


@pytest.mark.filterwarnings("ignore:no state is carried")
def test_a_convolution_of_kernel_1_in_fixed_chunks_for_a_runtime_that_needs_images() -> None:
    case = replace(CONVS["kernel 1"], length=3, optional=("bias",))
    original = model(case)
    del original.graph.output[1]  # present_state has no elements, which MNN does not return
    stream = rl.lower(original, target="mnn", stream="length=3")
    np.testing.assert_allclose(run(stream, feed(case))["output"], expected(case)["output"], rtol=3e-6, atol=3e-6)


def test_a_norm_and_a_gate_of_a_fixed_length_in_chunks() -> None:
    rng = np.random.default_rng(0)
    graph = Graph()
    x = graph.node("MatMul", graph.input("x", [2, 6, 4]), graph.constant(rng.standard_normal((4, 4)), np.float32))
    scale = graph.constant(rng.uniform(0.5, 1.5, 2), np.float32)
    y = graph.node("GatedRMSNorm", x, scale, graph.node("Tanh", x), domain=MS)
    bias, factor = (graph.constant(rng.standard_normal(4), np.float32) for _ in range(2))
    graph.node("LinearAttentionGate", y, bias, factor, outputs=["decay"], domain=MS)
    graph.output("decay", [2, 6, 4])
    original = graph.model(21, [MS], ir_version=10)
    with pytest.warns(rl.RnnLoweringWarning, match="no state is carried"):
        stream = rl.lower(original, stream="x:1")
    given = rng.standard_normal((2, 6, 4)).astype(np.float32)
    parts = [run(stream, {"x": part})["decay"] for part in np.split(given, [1, 3], 1)]
    np.testing.assert_allclose(np.concatenate(parts, 1), run(original, {"x": given})["decay"], rtol=3e-6, atol=3e-6)


def test_a_convolution_is_verified_in_chunks() -> None:
    original = model(OPEN)
    check = rl.verify_stream(original, rl.lower(original, stream="length"))
    assert check.status == "verified", check.reason


def test_the_pass_alone_says_what_to_do() -> None:
    with pytest.raises(rl.UnsupportedError, match=r"'conv' .*: can be streamed only in its lowered form"):
        rl.StreamPass("length")(ir.from_proto(model(OPEN)))


ATTENTIONS = {
    "a pair": Attention(open="BT", T=6),
    "no state": Attention(open="BT", T=6, state=False),
    "standard": Attention(open="BT", T=6, domain="", rule="delta", state=False),
    "groups, by key": Attention(open="T", T=6, Hq=4, rule="gated", by_key=True, state=False),
    "half, its state in float": Attention(open="BT", T=6, dtype="float16"),
}


@pytest.mark.parametrize("frames", ["", "=1", "=3"])
@pytest.mark.parametrize("name", ATTENTIONS)
def test_an_attention_in_chunks(name: str, frames: str) -> None:
    node = ATTENTIONS[name]
    stream, report = rl.lower(node.model(), stream=f"T{frames}", full=True)
    assert "LinearAttention" not in {n.op_type for n in stream.graph.node}
    assert report.stream is not None
    (state,) = report.stream.states
    pair = ("past_state", "present_state") if node.state else ("past_attention_s", "present_attention_s")
    assert (state.input, state.output, state.state) == (*pair, "s")
    assert state.dtype == "float32"  # it is a sum over all frames
    given, outputs = node.feed(), []
    held = given.pop("past_state", state.first({"B": node.B}))
    count = 6 if frames == "=1" else 2
    parts = {symbol: np.split(array, count, 1) for symbol, array in given.items()}
    for n in range(count):
        got = run(stream, {symbol: part[n] for symbol, part in parts.items()} | {state.input: held})
        held = got[state.output]
        outputs.append(got["output"])
    whole = node.expected(node.feed())
    near = 5e-3 if node.dtype == "float16" else 5e-6
    np.testing.assert_allclose(np.concatenate(outputs, 1), whole["output"], rtol=near, atol=near)
    np.testing.assert_allclose(held, whole["present_state"], rtol=near, atol=near)


def test_the_state_of_an_attention_in_float16_is_a_sum_in_float32() -> None:
    """A sum in float16 would stop where a frame is less than half of its last digit."""
    node = Attention(open="BT", T=6, dtype="float16", rule="linear", state=False)
    stream, report = rl.lower(node.model(), stream="T", full=True)
    assert report.stream is not None
    (state,) = report.stream.states
    assert state.dtype == "float32"
    rng, held = np.random.default_rng(1), state.first({"B": node.B})
    given = {
        k: rng.uniform(0, 0.3, (len(v), 6000, *v.shape[2:])).astype(np.float16) for k, v in node.feed().items()
    }
    for start in range(0, 6000, 20):
        got = run(stream, {k: v[:, start : start + 20] for k, v in given.items()} | {state.input: held})
        held = got[state.output]
    whole = run(rl.lower(node.model()), given)
    np.testing.assert_allclose(got["output"][:, -1], whole["output"][:, -1], rtol=2**-9)
    np.testing.assert_allclose(got["present_state"], whole["present_state"], rtol=2**-9)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", BLOCKS)
def test_models_in_the_shape_of_real_ones_keep_their_pairs(name: str) -> None:
    """One model for the prompt and for each token behind it."""
    original = BLOCKS[name]
    stream, report = rl.lower(original, stream="T", full=True)
    assert report.stream is not None
    pairs = {(state.input, state.output) for state in report.stream.states}
    assert pairs == {(n, n.replace("past", "present")) for n in first_states(original)}
    if name.startswith("qwen"):
        check = rl.verify_stream(original, stream, runs=1)
        assert check.status == "verified", check.reason


def test_frames_along_another_axis_are_refused() -> None:
    text = """<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>
        main (float[T,1,4] x) => (float[T,1,4] o) {
            [attention] o, p = com.microsoft.LinearAttention
                <q_num_heads = 1, kv_num_heads = 1, update_rule = "linear"> (x, x, x)
        }"""
    with pytest.raises(
        rl.UnsupportedError, match=r"'attention' .*: its frames are not along axis 1 of all its inputs"
    ):
        rl.lower(onnx.parser.parse_model(text), stream="T")
