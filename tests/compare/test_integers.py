"""Integer outputs that round real numbers: the next integer is as right where the real number is at a boundary."""

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from stream_models import net, recurrent, streamed
from texts import parse

import rnn_lowering as rl

pytestmark = pytest.mark.usefixtures("workers_here")

TEXT = """main (float[T,N,8] X) => ({type}[T,N,64] Y)
    <float[1,256,8] W = {{}}, float[1,256,64] R = {{}}, float[1,512] B = {{}}, int64[1] one = {{1}},
     float full = {{32767}}, float scale = {{0.00002}}, uint16 zero = {{32768}}, float low = {{-32768}}> {{
    y, Y_h = LSTM <hidden_size = 64> (X, W, R, B)  z = Squeeze (y, one)  {end} }}"""
ENDS = {
    "PCM": ("int16", "w = Mul (z, full)  Y = Cast <to = 5> (w)"),
    "PCM with a clip and a round": (
        "int16",
        "w = Mul (z, full)  c = Clip (w, low, full)  r = Round (c)  Y = Cast <to = 5> (r)",
    ),
    "QuantizeLinear": ("uint16", "Y = QuantizeLinear (z, scale, zero)"),
    "moved afterwards": (
        "int16",
        """w = Mul (z, full)  i = Cast <to = 5> (w)  t = Transpose <perm = [1, 0, 2]> (i)
        Y = Transpose <perm = [1, 0, 2]> (t)""",
    ),
}


def rounded(name: str) -> onnx.ModelProto:
    kind, end = ENDS[name]
    return parse(TEXT.format(type=kind, end=end), opset=21, ir_version=10)


def plus(model: onnx.ModelProto, number: int) -> onnx.ModelProto:
    """Add a number to the integers."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    (last,) = (node for node in copy.graph.node if "Y" in node.output)
    last.output[0] = "before"
    elem_type = copy.graph.output[0].type.tensor_type.elem_type
    dtype = helper.tensor_dtype_to_np_dtype(elem_type)
    copy.graph.initializer.append(numpy_helper.from_array(np.array(number).astype(dtype), "more"))
    nodes = [helper.make_node("Cast", ["before"], ["wide"], to=onnx.TensorProto.INT32)]
    nodes += [helper.make_node("Cast", ["more"], ["many"], to=onnx.TensorProto.INT32)]
    nodes += [
        helper.make_node("Add", ["wide", "many"], ["sum"]),
        helper.make_node("Cast", ["sum"], ["Y"], to=elem_type),
    ]
    copy.graph.node.extend(nodes)
    return copy


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ENDS)
def test_one_unit_where_the_number_before_is_at_a_boundary(name: str) -> None:
    original = rounded(name)
    check = rl.verify(original, rl.lower(original))
    assert check, check
    assert check.max_abs == 1, "no integer differs: the case shows nothing"
    assert "integers of 'Y' differ by one unit" in check.reason


def test_the_number_before_is_an_output_too() -> None:
    original = rounded("QuantizeLinear")
    original.graph.output.add(name="z").type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    lowered = rl.lower(original)
    check = rl.verify(original, lowered, runs=1)
    assert check, check
    assert "integers of 'Y' differ by one unit" in check.reason
    assert rl.verify(original, plus(lowered, 2), runs=1).status == "failed"


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ENDS)
def test_another_number_fails(name: str) -> None:
    original = rounded(name)
    for number in (1, 2):
        check = rl.verify(original, rl.lower(plus(original, number)), runs=1)
        assert check.status == "failed"
        assert "out of" in check.reason or "elements differ" in check.reason


def test_another_rounding_fails() -> None:
    original = rounded("PCM")
    for other in ("Floor", "Round"):
        end = f"w = Mul (z, full)  r = {other} (w)  Y = Cast <to = 5> (r)"
        wrong = parse(TEXT.format(type="int16", end=end), opset=21, ir_version=10)
        assert rl.verify(original, rl.lower(wrong), runs=1).status == "failed"


def test_a_tolerance_counts_for_integers() -> None:
    original = rounded("PCM")
    lowered = rl.lower(plus(original, 2))
    assert not rl.verify(original, lowered, runs=1)
    assert not rl.verify(original, lowered, runs=1, tolerance=rl.Tolerance(atol=1))
    check = rl.verify(original, lowered, runs=1, tolerance=rl.Tolerance(atol=3))
    assert check, check
    assert 2 <= check.max_abs <= 3


def test_integers_of_a_stream() -> None:
    original = net(
        """g (float[time, batch, 8] X) => (int16[time, batch, 16] Y) {
            y = GRU <hidden_size = 16> (X, W, R, B)  z = Squeeze (y, one)  w = Mul (z, full)
            Y = Cast <to = 5> (w) }""",
        {**recurrent("GRU", 8, 16), "one": np.array([1]), "full": np.array(32767, np.float32)},
    )
    check = rl.verify_stream(original, streamed(original, "time", "scan"))
    assert check, check
    assert check.max_abs == 1, "no integer differs: the case shows nothing"
    assert "integers of 'Y' differ by one unit" in check.reason
    check = rl.verify_stream(original, plus(streamed(original, "time", "scan"), 1))
    assert check.status == "failed"


PICKS = {
    "TopK": ("int64[T,N,2]", "v, Y = TopK (s, two)"),
    "ArgMax": ("int64[T,N]", "Y = ArgMax <axis = -1, keepdims = 0> (s)"),
    "ArgMin": ("int32[T,1,4]", "i = ArgMin <axis = 1> (s)  Y = Cast <to = 6> (i)"),
}


def picking(name: str, near: float, *, swapped: bool = False, twice: bool = False) -> onnx.ModelProto:
    """A model whose two largest scores differ by a share of them, along each axis."""
    kind, end = PICKS[name]
    if twice:
        end = end.replace("Y", "i") + "  f = Gather <axis = -1> (i, none)  Y = Concat <axis = -1> (f, f)"
    net = parse(
        f"""main (float[T,2,8] X) => ({kind} Y)
        <float[1,32,8] W = {{}}, float[1,32,8] R = {{}}, int64[1] two = {{2}}, int64[1] none = {{0}},
         int64[1] one = {{1}}, int64[2] first = {{0, 0}}> {{
        y, Y_h = LSTM <hidden_size = 8> (X, W, R)  z = Squeeze (y, one)  g = Gather <axis = 1> (z, first)
        p = MatMul (g, M)  q = Mul (p, rows)  s = Abs (q)  {end} }}""".replace("N", "2")
    )
    share = np.array([1, 1 + near], np.float32)[:: -1 if swapped else 1]
    column = np.random.default_rng(0).normal(size=(8, 1))
    M = np.concatenate([column * share, column * [0.5, -0.5]], 1).astype(np.float32)
    for key, array in (("M", M), ("rows", share.reshape(1, 2, 1))):
        net.graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(array), key))
    return net


@pytest.mark.parametrize("name", PICKS)
def test_indices_may_pick_numbers_that_are_equal_up_to_the_tolerance(name: str) -> None:
    close, apart = picking(name, 1e-6), picking(name, 1e-2)
    check = rl.verify(close, rl.lower(picking(name, 1e-6, swapped=True)), runs=1)
    assert check, check
    assert check.max_abs, "no index differs: the case shows nothing"
    assert "indices of 'Y' differ, where they pick numbers that are equal" in check.reason
    assert rl.verify(apart, rl.lower(picking(name, 1e-2, swapped=True)), runs=1).status == "failed"


def test_an_index_is_there_once() -> None:
    assert rl.verify(picking("TopK", 1e-6), rl.lower(picking("TopK", 1e-6, twice=True)), runs=1).status == "failed"
