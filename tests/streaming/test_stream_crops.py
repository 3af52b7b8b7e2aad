"""Cuts and paddings by the size of another value, as skips around convolutions without padding have them."""

import re

import onnx_ir as ir
import pytest
from stream_models import assert_at_every_length, over, rows, shown

import rnn_lowering as rl


def of_size(value: str) -> str:
    """The number of frames of a value, n; that of X, t; and their difference, d."""
    return f"""s = Shape ({value})  n = Gather (s, [2])  a = Shape (X)  t = Gather (a, [2])  d = Sub (t, n)
        m = Neg (n)  h = Div (d, [2])"""


VALID = f"y = Conv (X, K[3, 3, 3])  {of_size('y')}"
WIDE = f"y = Conv (X, K[3, 3, 5])  {of_size('y')}"
GRU = """u = Transpose <perm = [2, 0, 1]> (z)  v = GRU <hidden_size = 4> (u, W, R, B)  w = Squeeze (v, [1])
        Y = Transpose <perm = [1, 2, 0]> (w)"""

RIGHT = rows(f"""
# float[2, 3, time] X
2 late, 2 short: x[2, 3, 2]  x[2, 3, 2]
    {VALID}  x = Slice (X, [0], n, [2])  Y = Add (x, y)
    {VALID}  e = Min (n, t)  x = Slice (X, [0], e, [2])  Y = Add (x, y)
    {VALID}  e = Max (n, [0])  x = Slice (X, [0], e, [2])  Y = Add (x, y)
    {VALID}  r = Less ([0], n)  e = Where (r, n, t)  x = Slice (X, [0], e, [2])  Y = Add (x, y)
    {VALID}  r = Greater ([0], n)  e = Where (r, t, n)  x = Slice (X, [0], e, [2])  Y = Add (x, y)
    {VALID}  z = Slice (X, [0], n, [2])  Y = Concat <axis = 1> (z, y)
2 late, 2 short: x[2, 3, 2]
    {VALID}  x = Slice (X, m, far, [2])  Y = Add (x, y)
    {VALID}  x = Slice (X, d, t, [2])  Y = Add (x, y)
2 late, 2 short: x[2, 3, 2]  x[2, 3, 1]
    {VALID}  e = Add (h, n)  x = Slice (X, h, e, [2])  Y = Add (x, y)
4 late, 4 short: x[2, 3, 4]  x[2, 3, 2]  x[2, 3, 1]
    {WIDE}  z = Conv (X, K3[3, 3, 3])  c = Shape (z)  b = Gather (c, [2])  f = Sub (b, n)  g = Div (f, [2])
        e = Add (g, n)  x = Slice (z, g, e, [2])  Y = Add (x, y)
3 late, 3 short: x[2, 3, 1]  x[2, 3, 2]
    y = Conv (X, K[3, 3, 2])  r = Tanh (y)  {of_size("r")}  x = Slice (X, m, far, [2])  z = Add (x, r)
        w = Conv <dilations = [2]> (z, L[3, 3, 2])  b = Shape (w)  c = Gather (b, [2])  e = Neg (c)
        z2 = Slice (z, e, far, [2])  r2 = Slice (r, e, far, [2])  q = Add (w, z2)  Y = Add (q, r2)
2 late, 2 short: t[1]  h[1, 2, 4]  x[2, 3, 2]
    {VALID}  x = Slice (X, m, far, [2])  z = Add (x, y)  {GRU}
8 late, 8 short: x[2, 3, 2]  x[2, 3, 2]  x[2, 3, 4]  x[2, 6, 2]
    y = Conv (X, K[3, 3, 3])  p = MaxPool <kernel_shape = [2], strides = [2]> (y)  b = Conv (p, L[3, 3, 3])
        u = ConvTranspose <strides = [2]> (b, U[3, 3, 2])  {of_size("u")}  c = Slice (y, [0], n, [2])
        j = Concat <axis = 1> (u, c)  Y = Conv (j, M[3, 6, 3])
2 late: x[2, 3, 2]  x[2, 3, 2]  t[1]  x[2, 3, 2]
    {VALID}  p = Concat <axis = 0> ([0, 0], d, [0, 0, 0])  x = Pad <mode = "edge"> (y, p)  Y = Add (x, X)
in time: x[2, 3, 2]  t[1]
    {VALID}  p = Concat <axis = 0> ([0, 0], d, [0, 0, 0])  x = Pad (y, p)  Y = Add (x, X)
    {VALID}  p = Concat <axis = 0> ([0, 1], d, [0, 0, 0])  x = Pad (y, p)  Y = Neg (x)
2 late: x[2, 3, 2]  x[2, 3, 2]
    {VALID}  p = Concat <axis = 0> ([0, 0, 0, 0, 0], d)  x = Pad (y, p)  Y = Add (x, X)
2 late: x[2, 3, 4]  t[1]  x[2, 3, 2]
    {WIDE}  p = Concat <axis = 0> ([0, 0], h, [0, 0], h)  x = Pad (y, p)  Y = Add (x, X)
in time: x[2, 3, 2]
    y = Conv <pads = [2, 0]> (X, K[3, 3, 3])  {of_size("y")}  p = Concat <axis = 0> ([0, 0], d, [0, 0, 0])
        x = Pad (y, p)  Y = Add (x, X)
    q = Pad (X, [0, 0, 2, 0, 0, 0])  y = Conv (q, K[3, 3, 3])  b = Slice (q, [0], [-2], [2])  {of_size("b")}
        p = Concat <axis = 0> ([0, 0, 0, 0, 0], d)  x = Pad (y, p)  Y = Add (x, X)
""")

ROUNDED = rows("""
# float[2, 3, time] X { s = Shape (X)  n = Gather (s, [2])
unit 4: none
    m = Mod (n, [4])  d = Sub ([4], m)  e = Mod (d, [4])  p = Concat <axis = 0> ([0, 0, 0, 0, 0], e)  x = Pad (X, p)
        c = Conv <strides = [4]> (x, K[3, 3, 4])  u = ConvTranspose <strides = [4]> (c, L[3, 3, 4])
        Y = Slice (u, [0], n, [2])
    o = Neg (n)  e = Mod (o, [4])  p = Concat <axis = 0> ([0, 0, 0, 0, 0], e)  x = Pad (X, p)
        Y = Conv <strides = [4]> (x, K[3, 3, 4])
    m = Mod (n, [4])  e = Sub ([4], m)  p = Concat <axis = 0> ([0, 0, 0, 0, 0], e)  x = Pad (X, p)
        c = Conv <strides = [4]> (x, K[3, 3, 4])  Y = Slice (c, [0], [-1], [2])
    m = Mod (n, [4])  f = Cast <to = 1> (m)  Y = Add (X, f)
    m = Mod (n, [4])  z = Equal (m, [0])  y = Squeeze (z, [0])  w = If (y) <then_branch = t () => (float[2, 3, a] o)
        { o = Identity (X) }, else_branch = e () => (float[2, 3, b] v) { v = Neg (X) }>
        Y = Conv <strides = [4]> (w, K[3, 3, 4])
unit 3: none
    t = Mul (n, [2])  m = Mod (t, [3])  d = Sub ([3], m)  e = Mod (d, [3])
        p = Concat <axis = 0> ([0, 0, 0, 0, 0], e)  x = Pad (X, p)  Y = Neg (x)
unit 2: x[2, 3, 2]
    c = Conv (X, K[3, 3, 3])  a = Shape (c)  b = Gather (a, [2])  m = Mod (b, [2])  d = Sub ([2], m)
        e = Mod (d, [2])  p = Concat <axis = 0> ([0, 0, 0, 0, 0], e)  x = Pad (c, p)
        Y = Conv <strides = [2]> (x, L[3, 3, 2])
""")

REFUSED = rows(f"""
# float[2, 3, time] X
picks frames by their position in the whole sequence
    y = Slice (X, [2], far, [2])  {of_size("y")}  x = Slice (X, m, far, [2])  Y = Add (x, y)
    {VALID}  c = Slice (y, [0], [-1], [2])  b = Shape (c)  e = Gather (b, [2])  f = Neg (e)
        x = Slice (X, f, far, [2])  Y = Add (x, c)
uses the number of frames, which a stream never knows, other than as a size
    {VALID}  e = Min (n, [5])  x = Slice (X, [0], e, [2])  Y = Add (x, y)
    {VALID}  f = Sub (n, [2])  e = Max (f, [0])  x = Slice (X, [0], e, [2])  Y = Neg (x)
    {VALID}  f = Greater (n, [2])  e = Where (f, n, t)  x = Slice (X, [0], e, [2])  Y = Neg (x)
""")


@pytest.mark.few(2)
@pytest.mark.parametrize(("head", "late", "nodes"), RIGHT)
@pytest.mark.filterwarnings("ignore:no state is carried")
def test_each_length_and_chunking_is_right(head: str, late: str, nodes: str) -> None:
    plan = assert_at_every_length(over(head, nodes), "time", most=60)
    delay, short = plan["delay"].get("Y"), plan["short"].get("Y")
    said = ", ".join([f"{delay} late"] * bool(delay) + [f"{short} short"] * bool(short)) or "in time"
    assert f"{said}: {shown(plan)}" == late


@pytest.mark.few(4)
@pytest.mark.parametrize(("head", "unit", "nodes"), ROUNDED)
@pytest.mark.filterwarnings("ignore:no state is carried")
def test_a_padding_to_a_multiple_makes_the_multiple_the_unit(head: str, unit: str, nodes: str) -> None:
    plan = assert_at_every_length(over(head, nodes), "time", most=60)
    assert f"unit {plan['unit']}: {shown(plan)}" == unit
    with pytest.raises(rl.UnsupportedError, match=f"the chunk size must be a multiple of {plan['unit']}"):
        rl.StreamPass("time=1", True)(ir.from_proto(over(head, nodes)))


@pytest.mark.parametrize(("head", "said", "nodes"), REFUSED)
def test_a_cut_that_depends_on_the_length_is_refused(head: str, said: str, nodes: str) -> None:
    """A start of -n is the first frame where n is 0: a cut may leave no frames, a convolution may not."""
    with pytest.raises(rl.UnsupportedError, match=re.escape(said)):
        rl.StreamPass("time", True)(ir.from_proto(over(head, nodes)))
