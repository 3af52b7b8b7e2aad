"""Operators that act on each frame alone, with frames on any axis but their own; near misses are refused."""

from typing import Any

import numpy as np
import pytest
from stream_models import assert_streams, over, random, rows, streamed, whole

import rnn_lowering as rl

pytestmark = pytest.mark.filterwarnings("ignore:no state is carried")

WEIGHTS: dict[str, Any] = {
    "M": random((3, 4), 4),
    "MT": random((4, 3), 5),
    "MS": random((3, 4), 8),
    "M1": random((3, 1, 4), 9),
    "V13": random((1, 3), 7),
    "V3": random((3,), 6),
    "S": np.float32(0.05),
    "Z": np.uint8(131),
    "Z0": np.int8(3),
    "SV": np.array([0.01, 0.02, 0.03, 0.5], np.float32),
    "ZV": np.array([0, 3, -4, 5], np.int8),
    "ROWS": np.array([120, 130, 140], np.uint8),
    "I": np.random.default_rng(1).integers(-128, 128, (3, 4)).astype(np.int8),
    "IT": np.random.default_rng(2).integers(0, 256, (5, 3)).astype(np.uint8),
    "PLACES": np.array([[[2], [0]], [[1], [2]]], np.int64),
}

SAME = rows("""
# float[2, time, 3] X
MatMulInteger
    q = QuantizeLinear (X, S, Z)  i = MatMulInteger (q, I, Z)  Y = Cast <to = 1> (i)
    q = QuantizeLinear (X, S, Z)  i = MatMulInteger (q, I, Z, ZV)  Y = Cast <to = 1> (i)
    q = QuantizeLinear (X, S, Z)  i = MatMulInteger (q, I)  f = Cast <to = 1> (i)
        g = Mul (f, SV)  p = Pad (g, [0, 2, 0, 0, 0, 0])  c = Slice (p, [0], [-2], [1])  Y = Add (c, g)
QLinearMatMul
    q = QuantizeLinear (X, S, Z)  i = QLinearMatMul (q, S, Z, I, S, Z0, S, Z)  Y = DequantizeLinear (i, S, Z)
    q = QuantizeLinear (X, S, Z)  i = QLinearMatMul (q, S, Z, I, SV, ZV, S, Z)  Y = DequantizeLinear (i, S, Z)
ScatterElements
    i = ArgMax <axis = 2> (X)  z = Mul (X, 0.0)  m = ReduceMax <keepdims = 1> (X, [2])
        Y = ScatterElements <axis = 2> (z, i, m)
    i = ArgMin <axis = 2> (X)  m = ReduceMax <keepdims = 1> (X, [2])
        Y = ScatterElements <axis = 2, reduction = "add"> (X, i, m)
ScatterND
    t = Transpose <perm = [2, 0, 1]> (X)  e = Exp (t)  u = Slice (e, [1], [2], [0])
        Y = ScatterND <reduction = "add"> (t, [[2]], u)
    t = Transpose <perm = [2, 0, 1]> (X)  m = ReduceMax <keepdims = 0> (X, [2])  u = Unsqueeze (m, [0])
        w = Concat <axis = 0> (u, u)  z = ScatterND (t, [[2], [0]], w)  b = Transpose <perm = [1, 0, 2]> (z)
        Y = Conv <pads = [2, 0]> (b, K[3, 3, 3])
    t = Transpose <perm = [2, 0, 1]> (X)  m = ReduceMax <keepdims = 0> (X, [2])  u = Slice (m, [0], [1], [0])
        Y = ScatterND (t, [[2, 1]], u)
com.microsoft
    g = com.microsoft.Gelu (X)  Y = Transpose <perm = [2, 0, 1]> (g)
    g = com.microsoft.FastGelu (X, V3)  p = Pad (g, [0, 2, 0, 0, 0, 0])  Y = Slice (p, [0], [-2], [1])
    g = com.microsoft.BiasGelu (X, V3)  h = com.microsoft.FastGelu (g)  Y = com.microsoft.QuickGelu (h)
FusedMatMul
    g = com.microsoft.FusedMatMul <alpha = 0.5> (X, M)  p = Pad (g, [0, 2, 0, 0, 0, 0])
        Y = Slice (p, [0], [-2], [1])
    Y = com.microsoft.FusedMatMul <transB = 1> (X, MT)
    t = Transpose <perm = [0, 2, 1]> (X)  Y = com.microsoft.FusedMatMul <transA = 1, transB = 1> (t, MT)
    t = Transpose <perm = [0, 2, 1]> (X)  g = com.microsoft.FusedMatMul <transA = 1> (MS, t)
        Y = Conv <pads = [2, 0]> (g, K[3, 4, 3])
    u = Unsqueeze (X, [3])  g = com.microsoft.FusedMatMul <transA = 1> (u, MS)  Y = Relu (g)
Einsum
    Y = Einsum <equation = "...c,cd->...d"> (X, M)
    Y = Einsum <equation = "btc,cd"> (X, M)
DFT
    u = Unsqueeze (X, [3])  Y = DFT <axis = 2, onesided = 1> (u)
    u = Unsqueeze (X, [3])  a = DFT <axis = 2> (u, 8)  Y = DFT <axis = 2, inverse = 1> (a)
# float[2, 3, time] X
frames are the columns
    q = QuantizeLinear (X, S, Z)  i = MatMulInteger (IT, q, Z, Z)  Y = Cast <to = 1> (i)
    q = QuantizeLinear (X, S, Z)  i = QLinearMatMul (IT, S, Z, q, S, Z, S, Z)  Y = DequantizeLinear (i, S, Z)
    u = Unsqueeze (X, [3])  Y = DFT <axis = 1> (u)
    q = QuantizeLinear (X, S, Z)  i = MatMulInteger (IT, q, Z, Z)  f = Cast <to = 1> (i)
        s = Mul (f, 0.001)  Y = Conv <pads = [2, 0]> (s, K[3, 5, 3])
""")

REFUSED = rows("""
# float[2, time, 3] X
acts along axis 1, which holds the frames
    u = Unsqueeze (X, [3])  Y = DFT <axis = 1> (u)
    i = ArgMax <axis = 1> (X)  m = ReduceMax <keepdims = 1> (X, [1])  Y = ScatterElements <axis = 1> (X, i, m)
compares frames with each other
    Y = com.microsoft.FusedMatMul <transB = 1> (X, X)
looks beyond its frame
    Y = com.microsoft.FusedMatMul <transA = 1> (X, X)
acts along axis 1, which holds the frames
    Y = ScatterND (X, [[0, 0]], V13)
has size 3 and meets the frames
    t = Transpose <perm = [0, 2, 1]> (X)  Y = ScatterND (t, [[0, 0]], V13)
is not known to act on each frame alone
    Y = com.microsoft.FusedMatMul <transBatchB = 1> (X, M1)
    q, s, z = DynamicQuantizeLinear (X)  i = MatMulInteger (q, I, z)  Y = Cast <to = 1> (i)
# float[2, 3, time] X
has size 3 and meets the frames
    Y = com.microsoft.BiasGelu (X, V3)
# float[2, 3, 3] X
has size 3 and meets the frames
    q = QuantizeLinear (X, S, Z)  i = MatMulInteger (q, I, ROWS)  Y = Cast <to = 1> (i)
""")


@pytest.mark.few(5)
@pytest.mark.parametrize(("head", "what", "nodes"), SAME)
def test_computes_what_the_whole_does(head: str, what: str, nodes: str) -> None:
    model = over(head, nodes, WEIGHTS, opset=18)
    for length in (1, 17, 40):
        feed = {"X": random((2, length, 3) if "time, 3" in head else (2, 3, length), length)}
        assert_streams(model, "time", feed)
    for frames in (1, 4):
        feed = {"X": random((2, 40, 3) if "time, 3" in head else (2, 3, 40), 5)}
        assert_streams(model, f"time={frames}", feed, [[frames]])


def test_the_axis_of_a_dft_is_an_input_from_opset_20_on() -> None:
    model = over("float[2, time, 3] X", "u = Unsqueeze (X, [3])  Y = DFT (u, , 2)", opset=20)
    assert_streams(model, "time", {"X": random((2, 19, 3))})
    for axis in ("1", "-3"):
        nodes = f"u = Unsqueeze (X, [3])  Y = DFT (u, , {axis})"
        with pytest.raises(rl.UnsupportedError, match="acts along axis 1, which holds the frames"):
            streamed(over("float[2, time, 3] X", nodes, opset=20), "time")


@pytest.mark.parametrize(("head", "message", "nodes"), REFUSED)
def test_a_near_miss_is_refused(head: str, message: str, nodes: str) -> None:
    model = over(head, nodes, WEIGHTS, opset=18)
    if "ROWS" not in nodes:  # valid by ONNX, but onnxruntime lacks it
        whole(model, {"X": random((2, 3, 3))})
    with pytest.raises(rl.UnsupportedError, match=message):
        streamed(model, "time" if "time" in head else "X:1=1")
