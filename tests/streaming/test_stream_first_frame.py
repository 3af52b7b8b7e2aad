"""Frame 0, what is computed from it, and frames in front: right at every length, or refused by name."""

import re

import onnx_ir as ir
import pytest
from stream_models import assert_at_every_length, over, rows

import rnn_lowering as rl

F = "f = Slice (X, [0], [1], [1])"
G = "g = Gather <axis = 1> (X, 0)"
CUT = "l = Slice (X, [0], [-2], [1])"
DIFF = f"a = Slice (X, [1], far, [1])  b = Slice (X, [0], [-1], [1])  d = Sub (a, b)  {F}"
TO_CONV = "t = Transpose <perm = [0, 2, 1]>"
TWO = "s = Slice (X, [0], [2], [1])  n = Shape (s)  z = ConstantOfShape (n)"
SIZE = "s = Shape (X)  n = Gather (s, [1])"

RIGHT = rows(f"""
# float[batch, time, 3] X
t[1]  x[batch, 1, 3]
    {F}  Y = Sub (X, f)
    f = Gather <axis = 1> (X, [0])  Y = Sub (X, f)
    {G}  f = Unsqueeze (g, [1])  Y = Sub (X, f)
    {F}  g = Gather <axis = 1> (f, 0)  u = Unsqueeze (g, [1])  Y = Mul (X, u)
    {F}  e = Exp (f)  Y = Sub (X, e)
    {F}  m = MatMul (f, H[3, 3])  r = Sigmoid (m)  Y = Mul (X, r)
    {G}  f = Unsqueeze (g, [1])  l = Slice (X, [0], [-1], [1])  Y = Concat <axis = 1> (f, l)
    {F}  z = Mul (f, 0.0)  l = Slice (X, [0], [-1], [1])  Y = Concat <axis = 1> (z, l)
t[1]  x[batch, 1, 1]
    {F}  m = ReduceMax <keepdims = 1> (f, [2])  Y = Div (X, m)
    f = Slice (X, [0, 1], [1, 2], [1, 2])  Y = Mul (X, f)
t[1]  x[batch, 2, 3]
    {F}  {CUT}  Y = Concat <axis = 1> (f, f, l)
    {F}  r = Relu (f)  {CUT}  Y = Concat <axis = 1> (r, f, l)
    {F}  e = Expand (f, [1, 2, 1])  {CUT}  Y = Concat <axis = 1> (e, l)
    {F}  {CUT}  Y = Concat <axis = 1> (lead[2, 1, 3], f, l)
    {F}  c = Concat <axis = 1> (f, f, X)  {TO_CONV} (c)  Y = Conv (t, K[3, 3, 3])
x[batch, 1, 3]  t[1]
    {DIFF}  Y = Concat <axis = 1> (f, d)
    {DIFF}  m = Neg (f)  Y = Concat <axis = 1> (m, d)
x[batch, 2, 3]
    {TWO}  {CUT}  Y = Concat <axis = 1> (z, l)
    {TWO}  c = Concat <axis = 1> (z, X)  {TO_CONV} (c)  Y = Conv (t, K[3, 3, 3])
t[1]  h[1, batch, 4]
    {G}  m = MatMul (g, H[3, 4])  h = Unsqueeze (m, [0])  t = Transpose <perm = [1, 0, 2]> (X)
        y = GRU <hidden_size = 4> (t, W, R, B, , h)  s = Squeeze (y, [1])  Y = Transpose <perm = [1, 0, 2]> (s)
t[1]  h[1, batch, 4]  x[batch, 3, 2]
    {G}  m = MatMul (g, H[3, 4])  h = Unsqueeze (m, [0])  {TO_CONV} (X)  c = Conv <pads = [1, 1]> (t, K[3, 3, 3])
        x = Transpose <perm = [2, 0, 1]> (c)  y = GRU <hidden_size = 4> (x, W, R, B, , h)  s = Squeeze (y, [1])
        Y = Transpose <perm = [1, 0, 2]> (s)
t[1]
    {SIZE}  e = Add (n, [2])  p = Slice (table[80, 3], [2], e, [0])  Y = Add (X, p)
    {SIZE}  e = Add (n, [2])  p = Slice (table[1, 80, 3], [2], e, [1])  Y = Add (X, p)
none
    {SIZE}  e = Add (n, [3])  p = Slice (table[4, 3], [3], e, [0])  Y = Add (X, p)
""")

REFUSED = rows(f"""
# float[batch, time, 3] X
picks frames by their position
    {F}  {CUT}  Y = Concat <axis = 1> (f, l, f)
    {G}  l = Gather <axis = 1> (X, -1)  Y = Sub (l, g)
    {G}  c = Cast <to = 7> (g)  a = Abs (c)  e = Gather (table[9, 3], a)  m = ReduceSum <keepdims = 0> (e, [1])
        u = Unsqueeze (m, [1])  Y = Mul (X, u)
    f = Gather <axis = 1> (X, [0])  r = RandomNormalLike (f)  Y = Mul (X, r)
    f = Gather <axis = 1> (X, [0, 0])  {CUT}  Y = Concat <axis = 1> (f, l)
    f = Gather <axis = 1> (X, [1])  Y = Sub (X, f)
    {TO_CONV} (X)  c = Conv <pads = [1, 1]> (t, K[3, 3, 3])  f = Slice (c, [0], [1], [2])  Y = Sub (c, f)
axis 0 of 'g' has size batch and meets the frames
    {G}  Y = Sub (X, g)
joins the frames of the stream with others on both sides, or with some that a short sequence lacks
    {F}  {TWO}  l = Slice (X, [0], [-3], [1])  Y = Concat <axis = 1> (f, z, l)
    {F}  {CUT}  Y = Concat <axis = 1> (f, l, lead[2, 1, 3])
puts computed frames before frames that come late
    {DIFF}  Y = Concat <axis = 1> (f, f, d)
    a = Slice (X, [2], far, [1])  {CUT}  d = Sub (a, l)  {F}  Y = Concat <axis = 1> (f, f, d)
'z' has fewer frames in a shorter sequence
    {TWO}  l = Slice (X, [2], far, [1])  Y = Concat <axis = 1> (l, z)
uses the number of frames, which a stream never knows, other than as a size
    {SIZE}  e = Add (n, [5])  p = Slice (table[3, 3], [5], e, [0])  Y = Add (X, p)
    {SIZE}  p = Slice (table[80, 3], [-2], n, [0])  Y = Add (X, p)
'p' has 2 frames fewer than the chunk
    {SIZE}  p = Slice (table[80, 3], [2], n, [0])  Y = Add (X, p)
""")


@pytest.mark.parametrize(("head", "states", "nodes"), RIGHT)
@pytest.mark.filterwarnings("ignore:no state is carried")
def test_each_length_and_chunking_is_right(head: str, states: str, nodes: str) -> None:
    plan = assert_at_every_length(over(head, nodes), "time")
    assert "  ".join(f"{s['state']}{s['shape']}".replace("'", "") for s in plan["states"]) == states.replace(
        "none", ""
    )


@pytest.mark.parametrize(("head", "said", "nodes"), REFUSED)
def test_what_a_stream_cannot_know_is_refused(head: str, said: str, nodes: str) -> None:
    with pytest.raises(rl.UnsupportedError, match=re.escape(said)):
        rl.StreamPass("time", True)(ir.from_proto(over(head, nodes)))


def test_constants_of_the_first_frames_need_a_sequence_with_these() -> None:
    nodes = f"{TWO}  c = Concat <axis = 1> (z, X)  {TO_CONV} (c)  Y = Conv (t, K[3, 3, 3])"
    plan = rl.StreamPass("time")(ir.from_proto(over("float[batch, time, 3] X", nodes))).plan
    assert plan.shortest == 2
