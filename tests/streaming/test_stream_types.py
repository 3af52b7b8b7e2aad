"""States of every type: onnxruntime has no Where of some of them."""

import numpy as np
import onnx
import pytest
from stream_models import CHUNKINGS, chunked, expected_of, net, over, plan_of, random, streamed

import rnn_lowering as rl

AHEAD = "a = Conv <pads = [1, 1]> (X, K[3, 3, 3])"
TYPES = ("bool", "int8", "int16", "uint16", "uint64", "float16")
CODES = {name: onnx.TensorProto.DataType.Value(name.upper()) for name in TYPES}


def assert_right(model: onnx.ModelProto, dtype: str, frames: str = "") -> None:
    """Compare a stream with a state of this type with the whole, and let it be verified."""
    stepped = streamed(model, f"time{frames}", delay=True)
    plan, feed = plan_of(stepped), {"X": 3 * random((2, 3, 24), 1)}
    assert dtype in {state["dtype"] for state in plan["states"]}
    expected = expected_of(plan, model, feed)["Y"]
    for sizes in ([int(frames[1:])],) if frames else CHUNKINGS:
        np.testing.assert_allclose(
            chunked(stepped, feed, sizes)["Y"], expected, rtol=0, atol=1e-5, err_msg=str(sizes)
        )
    if dtype == "bool":
        check = rl.verify_stream(model, stepped)
        assert check.status == "verified", str(check)


@pytest.mark.parametrize("frames", ["", "=1"])
@pytest.mark.parametrize("dtype", TYPES)
def test_the_first_frame_of_any_type_is_repeated(dtype: str, frames: str) -> None:
    number = "m = Greater (X, 0.0)" if dtype == "bool" else f"r = Abs (X)  m = Cast <to = {CODES[dtype]}> (r)"
    nodes = f"""{number}  first = Slice (m, [0], [1], [2])  cut = Slice (m, [0], [-1], [2])
        p = Concat <axis = 2> (first, cut)  Y = Cast <to = 1> (p)"""
    assert_right(over("float[2, 3, time] X", nodes), dtype, frames)


@pytest.mark.parametrize("frames", ["", "=1"])
@pytest.mark.parametrize("dtype", TYPES)
def test_the_padding_of_late_frames_has_any_type(dtype: str, frames: str) -> None:
    nodes = f"""{AHEAD}  g = Greater (a, 0.0)  m = Cast <to = {CODES[dtype]}> (g)
        p = Concat <axis = 2> (ones, m)  q = Cast <to = 1> (p)  Y = Conv (q, L[3, 3, 3])"""
    ones = np.ones((2, 3, 2), dtype)
    assert_right(over("float[2, 3, time] X", nodes, {"ones": ones}), dtype, frames)


@pytest.mark.parametrize("frames", ["", "=1", "=4"])
@pytest.mark.parametrize(
    ("dtype", "start", "step"),
    [
        ("bool", "{1, 0, 1, 0, 1, 0}", "g = Greater (x, z) s1 = Xor (s, g)"),
        ("uint64", "{9, 0, 1, 0, 1, 5}", "b = Abs (x) i = Cast <to = 13> (b) s1 = Add (s, i)"),
    ],
)
def test_a_scan_behind_a_look_ahead_carries_any_type(dtype: str, start: str, step: str, frames: str) -> None:
    text = f"""g (float[2, 3, time] X) => (float[2, 3, time] Y) <{dtype}[2, 3] s0 = {start}, float z = {{0}}> {{
        a = Conv <pads = [1, 1]> (X, K)
        sn, y = Scan <num_scan_inputs = 1, scan_input_axes = [2], scan_output_axes = [2], body = b
            ({dtype}[2, 3] s, float[2, 3] x) => ({dtype}[2, 3] s1, float[2, 3] o) {{
            {step} o = Cast <to = 1> (s1) }}> (s0, a)
        Y = Relu (y) }}"""
    assert_right(net(text, {"K": random((3, 3, 3), 4)}), dtype, frames)
