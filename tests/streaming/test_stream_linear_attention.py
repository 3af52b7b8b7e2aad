"""Streams of CausalConvWithState: the state is brought out, or the pair of input and output stays."""

from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest
from causal_conv import MS, STANDARD, ConvCase, expected, feed, model
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
@pytest.mark.parametrize("name", CONVS)
@pytest.mark.filterwarnings("ignore:no state is carried")
def test_a_convolution_in_chunks(name: str, frames: str) -> None:
    case: ConvCase = replace(CONVS[name], length=6)
    original = model(case)
    stream, report = rl.lower(original, stream=f"length{frames}", full=True)
    assert "CausalConvWithState" not in {node.op_type for node in stream.graph.node}
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


def test_a_convolution_is_verified_in_chunks() -> None:
    original = model(OPEN)
    check = rl.verify_stream(original, rl.lower(original, stream="length"))
    assert check.status == "verified", check.reason


def test_the_pass_alone_says_what_to_do() -> None:
    with pytest.raises(rl.UnsupportedError, match=r"'conv' .*: its frames are followed in its equivalent only"):
        rl.StreamPass("length")(ir.from_proto(model(OPEN)))
