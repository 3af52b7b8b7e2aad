"""States of every type: onnxruntime has no Where of some of them."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from cases import Array
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
        check = rl.verify_stream(model, stepped, runs=1)
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


@pytest.mark.few(2)
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


STEPS = {
    "bool": ("m = Not (before)", "g = ReduceMax <keepdims = 0> (x)  k = Greater (g, z)  s1 = Xor (s, k)"),
    "float": ("m = Neg (before)", "g = ReduceMax <keepdims = 0> (x)  s1 = Sub (g, s)"),
    "float16": ("m = Neg (before)", "g = ReduceMax <keepdims = 0> (x)  k = Cast <to = 10> (g)  s1 = Sub (k, s)"),
    "int64": ("m = Neg (before)", "g = ReduceMax <keepdims = 0> (x)  k = Cast <to = 7> (g)  s1 = Sub (k, s)"),
    "uint64": ("m = Add (before, before)", "s1 = Add (s, one)"),
    "uint16": ("m = Identity (before)", "i = Cast <to = 6> (s)  j = Add (i, i)  s1 = Cast <to = 4> (j)"),
}
"""A first state that is computed, and the next one, of numbers without axes."""


@pytest.mark.parametrize("frames", ["", "=1", "=4"])
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("opset", [11, 16, 21])
@pytest.mark.parametrize("dtype", STEPS)
def test_a_state_without_axes_has_none(dtype: str, opset: int, late: bool, frames: str) -> None:
    """The number of frames has the shape [1], which must not become that of the state."""
    first, step = STEPS[dtype]
    code = onnx.TensorProto.DataType.Value(dtype.upper())
    text = f"""g (float[2, 3, time] X, float flag) => (float[2, 3, t] Y) {{
        before = Cast <to = {code}> (flag)  {first}
        a = {"Conv <pads = [1, 1]> (X, K)" if late else "Relu (X)"}
        sn, y = Scan <num_scan_inputs = 1, scan_input_axes = [2], scan_output_axes = [2], body = b
            ({dtype} s, float[2, 3] x) => ({dtype} s1, float[2, 3] o) {{
            {step}  f = Cast <to = 1> (s)  o = Add (x, f) }}> (m, a)
        Y = Relu (y) }}"""
    numbers: dict[str, Array] = {
        "z": np.array(0.5, np.float32),
        "one": np.array(1, np.uint64),
        "K": random((3, 3, 3), 4),
    }
    model = net(text, {name: array for name, array in numbers.items() if f" {name})" in text}, opset)
    stepped = streamed(model, f"time{frames}", delay=late)
    plan = plan_of(stepped)
    feed = {"X": random((2, 3, 24), 1), "flag": np.array(1.5, np.float32)}
    assert [s["shape"] for s in plan["states"] if s["state"] == "state0"] == [[]]
    session = rl.Stream(stepped.SerializeToString())
    session({"X": feed["X"][:, :, : 4 if frames != "=1" else 1], "flag": feed["flag"]})
    assert {state.input: [*session.states[state.input].shape] for state in session.plan.states} == {
        state.input: [*state.shape] for state in session.plan.states
    }
    expected = expected_of(plan, model, feed)
    for sizes in ([int(frames[1:])],) if frames else CHUNKINGS:
        for name, array in chunked(stepped, feed, sizes).items():
            assert array.shape == expected[name].shape
            np.testing.assert_allclose(array, expected[name], rtol=1e-3, atol=1e-3, err_msg=str(sizes))


@pytest.mark.parametrize("dtype", ["float", "int64", "bool"])
def test_a_number_of_the_first_frame_has_no_axes(dtype: str) -> None:
    code = onnx.TensorProto.DataType.Value(dtype.upper())
    nodes = f"""f = Slice (X, [0], [1], [2])  m = ReduceMax <keepdims = 0> (f)  c = Cast <to = {code}> (m)
        d = Cast <to = 1> (c)  e = Add (d, 0.5)  Y = Mul (X, e)"""
    model = over("float[2, 3, time] X", nodes)
    stepped = streamed(model, "time")
    assert {(s["state"], str(s["shape"])) for s in plan_of(stepped)["states"]} == {("t", "[1]"), ("x", "[]")}
    feed = {"X": 3 * random((2, 3, 24), 1)}
    expected = expected_of(plan_of(stepped), model, feed)["Y"]
    for sizes in CHUNKINGS:
        np.testing.assert_allclose(chunked(stepped, feed, sizes)["Y"], expected, rtol=1e-5, atol=1e-5)


def test_a_boolean_state_without_axes_is_verified(tmp_path: Path) -> None:
    text = """g (float[time, 3] X, bool flag) => (float[time, 3] Y) {
        m = Not (flag)
        sn, Y = Scan <num_scan_inputs = 1, body = b (bool s, float[3] x) => (bool s1, float[3] o) {
            g = ReduceMax <keepdims = 0> (x)  k = Greater (g, z)  s1 = Xor (s, k)
            f = Cast <to = 1> (s)  o = Add (x, f) }> (m, X) }"""
    onnx.save(net(text, {"z": np.array(0.5, np.float32)}, 16), tmp_path / "in.onnx")
    check = rl.lower_file(tmp_path / "in.onnx", tmp_path / "out.onnx", stream="time").verification
    assert check is not None
    assert check.status == "verified"
