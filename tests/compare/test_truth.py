"""Float64 of a whole model is a truth only where it is right: no wrong model is verified by it."""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from texts import parse

import rnn_lowering as rl

pytestmark = pytest.mark.usefixtures("workers_here")

BEHIND = """main (float[T,N,2] X) => (float[T,N,5] Y)
    <float[1,16,2] W = {{}}, float[1,16,4] R = {{}}, float[1,32] B = {{}}, float[4,5] V = {{}}, int64 steps = {{3}},
     float[5] s = {{}}, float[5] b = {{}}, float[5] m = {{}}, float[5] v = {{1, 2, 3, 4, 5}}> {{
    y, Y_h = LSTM <hidden_size = 4> (X, W, R, B)  z = Squeeze <axes = [1]> (y)  w = MatMul (z, V)  {end} }}"""
LOOP = """Y = Loop <body = body (int64 i, bool go, float[T,N,5] s) => (bool on, float[T,N,5] t) {
    on = Identity (go)  o = Sin (s)  t = Add (s, o) }> (steps, , w)"""
FLAT = "a = Softsign (w)  Y = Softmax <axis = 1> (a)"
NORMALIZED = """n = Transpose <perm = [0, 2, 1]> (w)  c = BatchNormalization (n, s, b, m, v)
    Y = Transpose <perm = [0, 2, 1]> (c)"""


def behind(end: str) -> onnx.ModelProto:
    return parse(BEHIND.format(end=end), opset=12)


def changed(model: onnx.ModelProto, name: str, number: float) -> onnx.ModelProto:
    """Multiply the last number of a tensor."""
    (tensor,) = (t for t in model.graph.initializer if t.name == name)
    array = numpy_helper.to_array(tensor).copy()
    array.reshape(-1)[-1] *= number
    tensor.CopyFrom(numpy_helper.from_array(array.astype(array.dtype), name))
    return model


WRONG = {
    "a flipped output weight before a Softmax over two axes": (FLAT, changed(behind(FLAT), "V", -1)),
    "another function before a Softmax over two axes": (FLAT, behind(FLAT.replace("Softsign", "Tanh"))),
    "a flipped output weight before a LogSoftmax over two axes": (
        FLAT.replace("Softmax", "LogSoftmax"),
        changed(behind(FLAT.replace("Softmax", "LogSoftmax")), "V", -1),
    ),
    "a flipped output weight before a BatchNormalization": (NORMALIZED, changed(behind(NORMALIZED), "V", -1)),
    "a flipped output weight before a Loop without condition": (LOOP, changed(behind(LOOP), "V", -1)),
    "one step less of a Loop without condition": (LOOP, changed(behind(LOOP), "steps", 2 / 3)),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", WRONG)
def test_what_onnxs_evaluator_computes_otherwise_verifies_nothing_wrong(name: str) -> None:
    end, wrong = WRONG[name]
    assert rl.verify(behind(end), rl.lower(behind(end)), runs=2)
    check = rl.verify(behind(end), rl.lower(wrong), runs=2)
    assert check.status == "failed", check


AMPLIFIED = "large = Mul (w, factor)  a = Sin (large)"
"""The sine of a large number shows what rounding is."""


def amplified(end: str, factor: float = 30000) -> onnx.ModelProto:
    return parse(
        BEHIND.replace("int64 steps", f"float factor = {{{{{factor}}}}}, int64 steps").format(end=end), opset=12
    )


TRUTHS = {
    "Softmax": f"{AMPLIFIED}  Y = Softmax <axis = 1> (a)",
    "BatchNormalization": f"{AMPLIFIED} {NORMALIZED.replace('(w)', '(a)')}",
    "Loop": f"{AMPLIFIED} {LOOP.replace(', w)', ', a)')}",
}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", TRUTHS)
def test_what_is_repaired_is_a_truth(name: str) -> None:
    """Rounding, which the original amplifies, is told from a fault."""
    original = amplified(TRUTHS[name])
    check = rl.verify(original, rl.lower(original), runs=2)
    assert check, check
    assert check.method == "onnxruntime, differences judged by float64 NumPy"
    assert "the outputs are as close to float64 as the original's" in check.reason
    assert "compared 'Y' within" in check.reason
    wrong = amplified(TRUTHS[name], 30030)
    assert rl.verify(original, rl.lower(wrong), runs=2).status == "failed"


def test_what_is_refused_as_truth_is_said() -> None:
    """The evaluator and onnxruntime differ on Resize: what rounding does to the original decides."""
    resized = f"""{AMPLIFIED}  f = Unsqueeze <axes = [0]> (a)
        g = Resize <coordinate_transformation_mode = "asymmetric"> (f, v, four)  Y = Squeeze <axes = [0]> (g)"""
    text = BEHIND.replace("int64 steps", "float factor = {{30000}}, float[4] four = {{1, 1, 1, 1}}, int64 steps")
    original = parse(text.format(end=resized), opset=12)
    check = rl.verify(original, rl.lower(original), runs=2)
    assert check, check
    assert "float64 was not used" in check.reason
    assert "onnx's evaluator computes Resize otherwise" in check.reason
    assert (
        rl.verify(original, rl.lower(changed(parse(text.format(end=resized), opset=12), "V", -1)), runs=2).status
        == "failed"
    )


def test_a_truth_that_is_far_from_the_original_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is wrong in it: here, Sin."""
    from onnx.reference.ops import op_sin

    monkeypatch.setattr(op_sin.Sin, "_run", lambda _, x: (np.cos(x),))
    original = amplified(f"{AMPLIFIED}  Y = Add (a, a)")
    check = rl.verify(original, rl.lower(original), runs=2)
    assert check, check
    assert "float64 was not used" in check.reason
    assert "further from the original than rounding explains" in check.reason
    check = rl.verify(original, rl.lower(changed(amplified(f"{AMPLIFIED}  Y = Add (a, a)"), "V", -1)), runs=2)
    assert check.status == "failed"
    assert "further from the original than rounding explains" in check.reason


HIDDEN = """main (float[T,3,2] X) => (float[T,12] Y)
    <float[1,16,2] W = {{}}, float[1,16,4] R = {{}}, int64[1] zero = {{0}}, int64[1] twelve = {{12}},
     int64 axis = {{{axis}}}> {{
    y, Y_h = LSTM <hidden_size = 4> (X, W, R)  sizes = Shape (X)  T = Gather (sizes, axis)
    first = Unsqueeze (T, zero)  shape = Concat <axis = 0> (first, twelve)  Y = Reshape (y, shape) }}"""
"""onnxruntime's optimizer makes the first size of the Reshape -1."""


def test_what_onnxruntimes_optimizer_hides_is_not_verified() -> None:
    original, wrong = (parse(HIDDEN.format(axis=axis), opset=13) for axis in (0, 2))
    assert rl.verify(original, rl.lower(original), runs=2)
    check = rl.verify(original, rl.lower(wrong), runs=2)
    assert check.status == "failed"
    assert "without optimizations" in check.reason


def test_what_onnxruntimes_optimizer_hides_in_a_stream_is_not_verified() -> None:
    original = parse(HIDDEN.format(axis=0), opset=13)
    stream = rl.lower(original, stream="T")
    assert rl.verify_stream(original, stream, check=rl.Check(runs=1))
    (axis,) = (tensor for tensor in stream.graph.initializer if tensor.name == "axis")
    axis.CopyFrom(numpy_helper.from_array(np.array(2), "axis"))
    check = rl.verify_stream(original, stream, check=rl.Check(runs=1))
    assert check.status == "failed"
    assert "without optimizations" in check.reason
