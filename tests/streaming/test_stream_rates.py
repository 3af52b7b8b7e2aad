"""Operators that make several frames of one, or one of several, in the spellings of exporters."""

import re
from fractions import Fraction

import numpy as np
import onnx_ir as ir
import pytest
from stream_models import (
    assert_at_every_length,
    chunked,
    expected_of,
    over,
    plan_of,
    random,
    rows,
    shown,
    streamed,
    whole,
)
from texts import random_feed

import rnn_lowering as rl

SIGNAL = """u = Unsqueeze (p, [1])  e = Conv <strides = [4]> (u, C[8, 1, 8])  h = Shape (e)  l = Gather (h, [2])
        m = Sub (l, [1])  n = Mul (m, [4])  o = Add (n, [8])  q = Concat <axis = 0> ([1], o)
        f = Col2Im <strides = [1, 4]> (e, q, [1, 8])  w = Gather <axis = 1> (f, 0)  a = Gather <axis = 1> (w, 0)"""
"""An overlap-add, as in vocoders."""

ENVELOPE = """z = Concat <axis = 0> ([1], l, [8])  ex = Expand (squares, z)  et = Transpose <perm = [0, 2, 1]> (ex)
        ef = Col2Im <strides = [1, 4]> (et, q, [1, 8])  e0 = Gather <axis = 1> (ef, 0)
        b = Gather <axis = 1> (e0, 0)"""
"""The overlap-add of its squared windows."""

SQUARES = {"squares": (np.hanning(8) ** 2 + 0.1).astype(np.float32)}

RATES = rows(
    """
# float[2, 3, time] X
unit 2, rate 1/2: x[2, 3, 1]
    Y = Conv <pads = [1, 0], strides = [2]> (X, K3[3, 3, 3])
    Y = Conv <pads = [1, 1], strides = [2]> (X, K[3, 3, 3])
unit 4, rate 1/4: x[2, 3, 1]  x[2, 3, 2]
    a = Conv <pads = [1, 0], strides = [2]> (X, K3[3, 3, 3])  b = Relu (a)
        Y = Conv <pads = [2, 0], strides = [2]> (b, K4[3, 3, 4])
unit 6, rate 1/6: x[2, 3, 2]
    p = Pad (X, [0, 0, 2, 0, 0, 0])  a = Conv <strides = [2]> (p, K4[3, 3, 4])
        Y = MaxPool <kernel_shape = [3], strides = [3]> (a)
unit 2, rate 1/2: none
    Y = AveragePool <kernel_shape = [2], strides = [2]> (X)
    a = Slice (X, [0], far, [2], [2])  b = Slice (X, [1], far, [2], [2])  Y = Concat <axis = 1> (a, b)
    Y = Resize <mode = "nearest"> (X, , [1.0, 1.0, 0.5])
    Y = Resize <mode = "nearest", nearest_mode = "round_prefer_ceil"> (X, , [1.0, 1.0, 0.5])
    Y = Resize <mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor">
        (X, , [1.0, 1.0, 0.5])
    s = Shape (X)  t = Gather (s, 2)  k = Div (t, 2)  u = Unsqueeze (k, [0])  q = Concat <axis = 0> ([2, 3], u)
        Y = Resize <mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor">
        (X, , , q)
unit 4, rate 1/4: none
    Y = Resize <mode = "nearest"> (X, , [1.0, 1.0, 0.25])
    Y = Resize <mode = "nearest", coordinate_transformation_mode = "tf_half_pixel_for_nn", nearest_mode = "floor">
        (X, , [1.0, 1.0, 0.25])
    Y = Resize <mode = "nearest", coordinate_transformation_mode = "half_pixel_symmetric", nearest_mode = "ceil">
        (X, , [1.0, 1.0, 0.25])
unit 2, rate 1, 0 late: x[2, 3, 2]
    c = Conv <pads = [1, 1]> (X, K[3, 3, 3])  h = Resize <mode = "nearest"> (c, , [1.0, 1.0, 0.5])
        Y = Resize <mode = "nearest"> (h, , [1.0, 1.0, 2.0])
unit 3, rate 1/3: none
    Y = Slice (X, [0], far, [2], [3])
    Y = Slice (X, [1], far, [2], [3])
unit 2, rate 1: x[2, 3, 2]  x[2, 3, 1]
    a = Conv <pads = [2, 0], strides = [2]> (X, K4[3, 3, 4])  b = ConvTranspose <strides = [2]> (a, K4, bias[3])
        Y = Slice (b, [0], [-2], [2])
unit 1, rate 3: x[2, 3, 1]
    b = ConvTranspose <strides = [3], output_padding = [1]> (X, K4[3, 3, 4], bias[3])
        Y = Slice (b, [0], [-2], [2])
unit 1, rate 2: x[2, 3, 1]
    Y = ConvTranspose <strides = [2], pads = [0, 2]> (X, K4[3, 3, 4])
unit 1, rate 3: none
    Y = ConvTranspose <strides = [3]> (X, K3[3, 3, 3])
    Y = ConvTranspose <strides = [3], output_padding = [1]> (X, K2[3, 3, 2], bias[3])
    Y = Resize <mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor">
        (X, , [1.0, 1.0, 3.0])
unit 1, rate 1: x[2, 3, 2]
    b = ConvTranspose <strides = [3]> (X, K1[3, 3, 1], bias[3])
        Y = Conv <pads = [2, 0], strides = [3]> (b, K3[3, 3, 3])
unit 1, rate 2: x[2, 3, 3]
    b = ConvTranspose <strides = [2], dilations = [3]> (X, K3[3, 3, 3])  Y = Slice (b, [0], [-5], [2])
unit 1, rate 2: x[2, 3, 2]
    p = Pad (X, [0, 0, 2, 0, 0, 0])  b = ConvTranspose <strides = [2], pads = [4, 2]> (p, K4[3, 3, 4])
        Y = Tanh (b)
unit 1, rate 2: none
    u = Unsqueeze (X, [3])  e = Tile (u, [1, 1, 1, 2])  Y = Reshape (e, [0, 3, -1])
unit 1, rate 4: none
    s = Shape (X)  t = Gather (s, 2)  k = Mul (t, 4)  u = Unsqueeze (k, [0])  q = Concat <axis = 0> ([2, 3], u)
        Y = Resize <mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor">
        (X, , , q)
    s = Shape (X)  t = Gather (s, 2)  k = Mul (t, 4)  f = Cast <to = 1> (k)  g = Cast <to = 1> (t)  h = Div (f, g)
        u = Unsqueeze (h, [0])  o = Cast <to = 1> ([1])  q = Concat <axis = 0> (o, o, u)
        Y = Resize <mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor">
        (X, , q)
unit 4, rate 1/4: none
    g = Reshape (X, [0, 3, -1, 4])  h = Transpose <perm = [3, 0, 2, 1]> (g)  r = Reshape (h, [4, -1, 3])
        y = GRU <hidden_size = 2, direction = "bidirectional"> (r, W[2, 6, 3], R[2, 6, 2], B[2, 12])
        m = ReduceMean (y, [1])  n = Reshape (m, [4, 2, -1, 2])  Y = Transpose <perm = [1, 3, 2, 0]> (n)
unit 1, rate 1: none
    u = Unsqueeze (X, [3])  w = Concat <axis = 3> (u, u, u)
        Y = ConvTranspose <strides = [1, 2], output_padding = [0, 1]> (w, frequencies[3, 2, 1, 3])
unit 2, rate 1/2: x[2, 3, 2]
    Y = Conv <pads = [2, 0], strides = [2]> (X, K[3, 3, 3])

# float[2, time, 3] X
unit 2, rate 1/2: t[1]  x[2, 1, 3]
    h = Slice (X, [1], far, [1], [2])  f = Slice (h, [0], [1], [1])  Y = Sub (h, f)
unit 1, rate 1, 1 late: x[2, 3, 2]  t[1]  x[2, 1, 3]
    f = Slice (X, [0], [1], [1])  t = Transpose <perm = [0, 2, 1]> (X)  c = Conv <pads = [1, 1]> (t, K[3, 3, 3])
        u = Transpose <perm = [0, 2, 1]> (c)  Y = Sub (u, f)
unit 2, rate 1/2: none
    s = Shape (X)  t = Gather (s, 1)  h = Div (t, 2)  c = Cast <to = 7> (h)  d = Cast <to = 7> (c)
        u = Unsqueeze (d, [0])  n = Gather (s, 0)  m = Unsqueeze (n, [0])  q = Concat <axis = 0> (m, u, [6])
        Y = Reshape (X, q)
    b = Shape <start = 0, end = 1> (X)  t = Shape <start = 1, end = 2> (X)  u = Squeeze (t)  h = Div (u, 2)
        v = Reshape (h, [-1])  q = Concat <axis = 0> (b, v, [6])  Y = Reshape <allowzero = 1> (X, q)
    s = Shape (X)  t = Gather (s, 1)  m = Add (t, 1)  h = Div (m, 2)  u = Unsqueeze (h, [0])  n = Gather (s, 0)
        b = Unsqueeze (n, [0])  q = Concat <axis = 0> (b, u, [6])  Y = Reshape (X, q)
unit 1, rate 2: none
    w = MatMul (X, wide[3, 6])  Y = Reshape (w, [0, -1, 3])
    b = Shape <start = 0, end = 1> (X)  t = Shape <start = 1, end = 2> (X)  u = Squeeze (t)  k = Mul (u, 2)
        v = Reshape (k, [-1])  q = Concat <axis = 0> (b, v, [3])  w = MatMul (X, wide[3, 6])
        Y = Reshape <allowzero = 1> (w, q)
unit 2, rate 1: none
    a = Reshape (X, [0, -1, 6])  b = Tanh (a)  Y = Reshape (b, [0, -1, 3])

# float[2, time] X
unit 4, rate 1/4: x[2, 4]
    p = Pad (X, [0, 4, 0, 0])  u = Unsqueeze (p, [2])  f = STFT (u, 4, window[8])
        Y = ReduceSumSquare <keepdims = 0> (f, [3])
unit 4, rate 1: x[2, 4]  x[2, 3, 1]
    p = Pad (X, [0, 4, 0, 0])  u = Unsqueeze (p, [1])  e = Conv <strides = [4]> (u, E[3, 1, 8])  r = Relu (e)
        d = ConvTranspose <strides = [4]> (r, D[3, 1, 8])  w = Reshape (d, [2, -1])  Y = Slice (w, [0], [-4], [1])
unit 4, rate 1: x[2, 4]  x[2, 8, 1]
    p = Pad (X, [0, 4, 0, 0])  u = Unsqueeze (p, [1])  e = Conv <strides = [4]> (u, C[8, 1, 8])  r = Relu (e)
        h = Shape (r)  l = Gather (h, 2)  m = Sub (l, 1)  n = Mul (m, 4)  o = Add (n, 8)  v = Unsqueeze (o, [0])
        q = Concat <axis = 0> ([1], v)  f = Col2Im <strides = [1, 4]> (r, q, [1, 8])  w = Gather <axis = 1> (f, 0)
        a = Gather <axis = 1> (w, 0)  Y = Slice (a, [0], [-4], [1])
unit 4, rate 1: x[2, 4]  x[2, 8, 1]  x[1, 8, 1]
    p = Pad (X, [0, 4, 0, 0])  SIGNAL  ENVELOPE  s = Slice (a, [0], [-4], [1])
        d = Slice (b, [0], [-4], [1])  Y = Div (s, d)
    p = Pad (X, [0, 4, 0, 0])  SIGNAL  ENVELOPE  s = Slice (a, [0], [-4], [1])
        d = Slice (b, [0], [-4], [1])  c = Clip (d, 0.1)  Y = Div (s, c)
unit 4, rate 1, 2 late: x[2, 4]  x[2, 8, 1]  x[1, 8, 1]
    p = Pad (X, [0, 4, 0, 0])  SIGNAL  ENVELOPE  s = Slice (a, [2], [-2], [1])
        d = Slice (b, [2], [-2], [1])  Y = Div (s, d)
unit 4, rate 1/4, 1 late: x[2, 4, 1]
    u = Unsqueeze (X, [2])  f = STFT (u, 4, window[8])  Y = ReduceSumSquare <keepdims = 0> (f, [3])
unit 4, rate 1/4, 0 late: x[2, 4]  sum[2, 1, 5]
    p = Pad (X, [0, 4, 0, 4])  u = Unsqueeze (p, [2])  f = STFT (u, 4, window[8])
        m = ReduceSumSquare <keepdims = 0> (f, [3])  c = CumSum (m, 1)  n = Slice (c, [0], [-1], [1])
        Y = Mul (n, 0.01)
unit 4, rate 1, 4 late: x[2, 1, 4]  t[1]  x[2, 8, 1]
    u = Unsqueeze (X, [1])  e = Conv <strides = [4]> (u, C[8, 1, 8])  r = Relu (e)  h = Shape (r)
        l = Gather (h, 2)  m = Sub (l, 1)  n = Mul (m, 4)  o = Add (n, 8)  v = Unsqueeze (o, [0])
        q = Concat <axis = 0> ([1], v)  f = Col2Im <strides = [1, 4]> (r, q, [1, 8])  w = Gather <axis = 1> (f, 0)
        a = Gather <axis = 1> (w, 0)  Y = Slice (a, [0], [-4], [1])
""".replace("SIGNAL", SIGNAL).replace("ENVELOPE", ENVELOPE)
)


@pytest.mark.few(6)
@pytest.mark.filterwarnings("ignore:no state is carried")
@pytest.mark.parametrize(("head", "said", "nodes"), RATES)
def test_rates(head: str, said: str, nodes: str) -> None:
    """The least number of frames in a call, the frames of Y for each of X, how late they are, and the states."""
    model, delay = over(head, nodes, SQUARES), "late" in said
    anything = streamed(model, "time", delay=delay)
    plan = plan_of(anything)
    unit, rate, axis = plan["unit"], Fraction(plan["rates"]["Y"]), plan["outputs"]["Y"]
    late = f", {plan['delay'].get('Y', 0)} late" if delay else ""
    assert f"unit {unit}, rate {rate}{late}: {shown(plan)}" == said
    fixed = streamed(model, {"time": 2 * unit}, "auto", delay=delay)
    for count in (2, 6, 20):
        feed = random_feed(model, time=count * unit)
        for stepped, sizes in ((anything, [unit]), (anything, [3 * unit, unit, 4 * unit]), (fixed, [2 * unit])):
            expected = expected_of(plan_of(stepped), model, feed)["Y"]
            assert expected.shape[axis] == count * unit * rate - plan["short"].get("Y", 0)
            got = chunked(stepped, feed, sizes)["Y"]
            np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5, err_msg=f"{count} {sizes}")


@pytest.mark.few(1)
@pytest.mark.parametrize("hop", [128, 160, 320])
def test_hops_of_any_size(hop: int) -> None:
    """An encoder and a decoder with windows of two hops, a GRU between them."""
    model = over(
        "float[2, 1, time] X",
        f"""p = Pad (X, [0, 0, {hop}, 0, 0, 0])  e = Conv <strides = [{hop}]> (p, E[3, 1, {2 * hop}])  r = Relu (e)
        x = Transpose <perm = [2, 0, 1]> (r)  y = GRU <hidden_size = 3> (x, W[1, 9, 3], R[1, 9, 3])
        s = Squeeze (y, [1])  m = Transpose <perm = [1, 2, 0]> (s)  k = Mul (m, r)
        d = ConvTranspose <strides = [{hop}]> (k, D[3, 1, {2 * hop}])  Y = Slice (d, [0], [-{hop}], [2])""",
    )
    assert plan_of(streamed(model, "time"))["unit"] == hop
    with pytest.raises(rl.UnsupportedError, match=f"must be a multiple of {hop}; give time={hop}"):
        streamed(model, {"time": hop // 2})
    feed = {"X": random((2, 1, 7 * hop), 3)}
    expected = whole(model, feed)["Y"]
    for stream, chunks in (("time", [hop, 3 * hop]), ({"time": hop}, [hop])):
        np.testing.assert_allclose(chunked(streamed(model, stream), feed, chunks)["Y"], expected, rtol=0, atol=1e-5)
    assert rl.verify_stream(model, streamed(model, "time"), check=rl.Check(runs=1))


SIZE = "n = Shape <start = 2, end = 3> (X)  m = Sub (n, [3])  d = Div (m, [2])  e = Add (d, [1])"
HALF = "n = Shape <start = 2, end = 3> (X)  d = Div (n, [2])  c = Conv <strides = [2]> (X, K[3, 3, 2])"
FLOORS = rows(f"""
# float[2, 3, time] X
unit 2, from 4
    {SIZE}  z = Concat <axis = 0> ([2, 3], e)  c = Conv <strides = [2]> (X, K[3, 3, 3])  Y = Reshape (c, z)
    {SIZE}  z = Concat <axis = 0> ([2, 3], e)  c = Conv <strides = [2]> (X, K[3, 3, 3])
        b = Expand (B[2, 3, 1], z)  Y = Add (c, b)
    {SIZE}  q = Squeeze (e, [0])  c = Conv <strides = [2]> (X, K[3, 3, 3])  r = Range (0, q, 1)
        f = Cast <to = 1> (r)  g = Sin (f)  Y = Add (c, g)
    {SIZE}  z = Concat <axis = 0> ([2, 3], e)  c = Conv <strides = [2]> (X, K[3, 3, 3])  r = Reshape (c, z)
        t = Transpose <perm = [2, 0, 1]> (r)  g = GRU <hidden_size = 4> (t, W, R, B)  s = Squeeze (g, [1])
        Y = Transpose <perm = [1, 2, 0]> (s)
    {SIZE}  z = Concat <axis = 0> ([2, 3], e)  c = MaxPool <kernel_shape = [3], strides = [2]> (X)
        Y = Reshape (c, z)
    {SIZE}  v = Mul (d, [2])  w = Add (v, [2])  z = Concat <axis = 0> ([2, 3], w)
        c = Conv <strides = [2]> (X, K[3, 3, 3])  u = ConvTranspose <strides = [2]> (c, U[3, 3, 2])
        Y = Reshape (u, z)
unit 4, from 8
    n = Shape <start = 2, end = 3> (X)  a = Div (n, [2])  m = Sub (a, [3])  d = Div (m, [2])  e = Add (d, [1])
        z = Concat <axis = 0> ([2, 3], e)  b = Conv <strides = [2]> (X, K[3, 3, 2])
        c = Conv <strides = [2]> (b, L[3, 3, 3])  Y = Reshape (c, z)
unit 4, from 4
    n = Shape <start = 2, end = 3> (X)  s = Squeeze (n, [0])  m = Add (s, -4)  d = Div (m, 4)  e = Add (d, 1)
        u = Unsqueeze (e, [0])  z = Concat <axis = 0> ([2, 3], u)  c = Conv <strides = [4]> (X, K[3, 3, 4])
        Y = Reshape (c, z)
unit 2, from 2
    {HALF}  s = ReduceSum (c, [2])  f = Cast <to = 1> (d)  Y = Div (s, f)
    n = Shape <start = 2, end = 3> (X)  d = Div (n, [2])  e = Mul (d, [2])  x = Slice (X, [0], e, [2])
        Y = Conv <strides = [2]> (x, K[3, 3, 2])
unit 8, from 8
    n = Shape <start = 2, end = 3> (X)  d = Div (n, [8])  e = Mul (d, [4])
        c = Conv <strides = [2]> (X, K[3, 3, 2])  Y = Slice (c, [0], e, [2])
""")
"""Sizes that torch.export computes from the number of frames, though a value has them."""


@pytest.mark.few(3)
@pytest.mark.filterwarnings("ignore:no state is carried")
@pytest.mark.parametrize(("head", "said", "nodes"), FLOORS)
def test_a_size_by_floor_division_is_that_of_a_value(head: str, said: str, nodes: str) -> None:
    plan = assert_at_every_length(over(head, nodes), "time")
    assert f"unit {plan['unit']}, from {plan.get('shortest', plan['unit'])}" == said


INVERSE = " ".join(f"{SIGNAL}  {ENVELOPE}  s = Slice (a, [0], [-4], [1])".split())
NO_SIZES = rows(f"""
# float[2, 3, time] X
Slice node '-> x' in main graph: picks frames by their position in the whole sequence
    {HALF}  x = Slice (X, [0], d, [2])  Y = Add (x, c)
Div node '-> Y' in main graph: 'f' depends on the number of frames, which a stream never knows
    {HALF}  f = Cast <to = 1> (d)  Y = Div (c, f)
Div node '-> h' in main graph: 'f' depends on the number of frames, which a stream never knows
    {HALF}  s = Squeeze (d, [0])  f = Cast <to = 1> (s)  r = Range (0, s, 1)  g = Cast <to = 1> (r)
        h = Div (g, f)  Y = Add (c, h)
its mask or bias 'g' depends on the number of frames
    {HALF}  t = Transpose <perm = [0, 2, 1]> (c)  s = MatMul (t, c)  h = Shape (c)  k = Gather (h, 2)
        r = Range (0, k, 1)  i = Unsqueeze (r, [1])  j = Unsqueeze (r, [0])  q = Sub (i, j)
        a = LessOrEqual (0, q)  b = Less (q, d)  g = And (a, b)  m = Where (g, s, -1e9)  w = Softmax (m)
        o = MatMul (w, t)  Y = Transpose <perm = [0, 2, 1]> (o)
# float[2, time] X {{ p = Pad (X, [0, 4, 0, 0])  {INVERSE}
joins each frame with a value that is known only after the last one
    d = Slice (b, [0], [-4], [1])  v = ReduceSum (d, [1])  Y = Div (s, v)
    d = Slice (b, [0], [-4], [1])  v = ReduceMax (d, [1])  Y = Div (s, v)
reverses the frames
    d = Slice (b, [0], [-4], [1])  v = Slice (d, [-1], [-99999], [1], [-1])  Y = Div (s, v)
'r' depends on the number of frames, which a stream never knows
    d = Slice (b, [0], [-4], [1])  r = Cast <to = 1> (l)  v = Div (d, r)  Y = Div (s, v)
# float[2, time, 3] X
joins frames with others along the time axis
    l = Slice (X, [-1], far, [1])  j = Concat <axis = 1> (X, l, l, l)  k = Transpose <perm = [0, 2, 1]> (j)
        c = Conv (k, K[3, 3, 4])  Y = Transpose <perm = [0, 2, 1]> (c)
    Y = Concat <axis = 1> (X, X)
""")


@pytest.mark.few(6)
@pytest.mark.parametrize(("head", "said", "nodes"), NO_SIZES)
def test_what_only_resembles_a_size_is_refused(head: str, said: str, nodes: str) -> None:
    with pytest.raises(rl.UnsupportedError, match=re.escape(said)):
        rl.StreamPass("time", True)(ir.from_proto(over(head, nodes, SQUARES)))


@pytest.mark.filterwarnings("ignore:no state is carried")
def test_frames_are_joined_with_nothing() -> None:
    """As many copies of the last frame as a multiple of 2 lacks, which a stream with the unit 2 never does."""
    nodes = """h = Shape (X)  n = Gather (h, [1])  a = Add (n, [1])  b = Div (a, [2])  c = Mul (b, [2])
        d = Sub (c, n)  l = Slice (X, [-1], far, [1])  z = Concat <axis = 0> ([2], d, [3])  e = Expand (l, z)
        j = Concat <axis = 1> (X, e)  y = Concat <axis = 0> ([2], b, [2, 3])  g = Reshape (j, y)
        Y = ReduceSum <keepdims = 0> (g, [2])"""
    plan = assert_at_every_length(over("float[2, time, 3] X", nodes), "time")
    assert plan["unit"] == 2
