"""A Pad of mode reflect along time, as around a centred STFT: late, and right from the first frame on."""

import re

import onnx_ir as ir
import pytest
from stream_models import assert_at_every_length, over, rows, shown

import rnn_lowering as rl

BOTH = 'p = Pad <mode = "reflect"> (X, [0, 4, 0, 4])'
INVERSE = "w = Squeeze (d, [1])  Y = Slice (w, [4], [-4], [1])"

RIGHT = rows(f"""
# float[2, time] X
2 late, from 8: x[2, 8]  t[1]  x[2, 4, 1]
    {BOTH}  u = Unsqueeze (p, [2])  f = STFT (u, 4, window[8])  m = ReduceSumSquare <keepdims = 0> (f, [3])
        Y = Slice (m, [0], [-1], [1])
12 late, from 8: x[2, 8]  t[1]  x[2, 1, 4]  x[2, 6, 1]
    {BOTH}  u = Unsqueeze (p, [1])  e = Conv <strides = [4]> (u, E[6, 1, 8])
        d = ConvTranspose <strides = [4]> (e, D[6, 1, 8])  {INVERSE}
12 late, from 8: t[1]  h[1, 2, 4]  x[2, 8]  x[2, 1, 4]  x[2, 4, 1]
    {BOTH}  u = Unsqueeze (p, [1])  e = Conv <strides = [4]> (u, E[3, 1, 8])  t = Transpose <perm = [2, 0, 1]> (e)
        v = GRU <hidden_size = 4> (t, W, R, B)  q = Squeeze (v, [1])  z = Transpose <perm = [1, 2, 0]> (q)
        d = ConvTranspose <strides = [4]> (z, D[4, 1, 8])  {INVERSE}
6 late, from 4: x[2, 6]  t[1]  x[2, 1, 3]
    p = Pad <mode = "reflect"> (X, [0, 3, 0, 0])  u = Unsqueeze (p, [1])  Y = Conv (u, E[6, 1, 4])
6 late, from 3: x[2, 4]  t[1]  x[2, 1, 4]  x[2, 6]
    p = Pad <mode = "reflect"> (X, [0, 2, 0, 2])  u = Unsqueeze (p, [1])  c = Conv (u, E[1, 1, 5])
        w = Squeeze (c, [1])  Y = Add (w, X)
7 late, from 3: x[2, 1, 2]  x[2, 1, 4]  t[1]  x[2, 1, 4]
    a = Unsqueeze (X, [1])  c = Conv <pads = [1, 1]> (a, C[1, 1, 3])
        p = Pad <mode = "reflect"> (c, [0, 0, 2, 0, 0, 2])  Y = Conv (p, E[6, 1, 5])
8 late, from 5: x[2, 1, 2]  x[2, 1, 4]  t[1]  x[2, 1, 4]
    a = Unsqueeze (X, [1])  c = Conv (a, C[1, 1, 3])  p = Pad <mode = "reflect"> (c, [0, 0, 2, 0, 0, 2])
        Y = Conv (p, E[6, 1, 5])
6 late, from 6: x[2, 1, 4]  t[1]  x[2, 1, 4]
    a = Unsqueeze (X, [1])  c = Conv <strides = [2]> (a, C[1, 1, 2])
        p = Pad <mode = "reflect"> (c, [0, 0, 2, 0, 0, 2])  Y = Conv (p, E[6, 1, 5])
6 late, from 2: x[2, 2]  t[1]  x[2, 1, 2]  x[2, 1, 2]  x[2, 1, 2]
    p = Pad <mode = "reflect"> (X, [0, 1, 0, 1])  u = Unsqueeze (p, [1])  c = Conv (u, C[1, 1, 3])
        q = Pad <mode = "reflect"> (c, [0, 0, 1, 0, 0, 1])  Y = Conv (q, D[6, 1, 3])
2 late, from 3: x[2, 1, 2]
    p = Pad <mode = "reflect"> (X, [0, 0, 0, 2])  u = Unsqueeze (p, [1])  Y = Conv (u, E[6, 1, 3])
""")

EDGES = rows("""
# float[2, 3, time] X
1 late
    p = Pad <mode = "edge"> (X, [0, 0, 0, 0, 0, 1])  q = Pad (p, [0, 0, 1, 0, 0, 0])  Y = Conv (q, K[3, 3, 3])
1 late
    p = Pad <mode = "edge"> (X, [0, 0, 1, 0, 0, 1])  Y = Conv (p, K[3, 3, 3])
2 late
    p = Pad <mode = "edge"> (X, [0, 0, 2, 0, 0, 2])  Y = Conv <dilations = [2]> (p, K[3, 3, 3])
3 late
    c = Conv <pads = [1, 1]> (X, K[3, 3, 3])  p = Pad <mode = "edge"> (c, [0, 0, 1, 0, 0, 1])
        Y = Conv (p, L[3, 3, 3])
8 late
    c = Conv <pads = [2, 2]> (X, K[3, 3, 5])  p = Pad <mode = "edge"> (c, [0, 0, 3, 0, 0, 3])
        e = Conv (p, L[3, 3, 7])  Y = Slice (e, [0], far, [2])
4 late
    c = Conv (X, K[3, 3, 3])  p = Pad <mode = "edge"> (c, [0, 0, 2, 0, 0, 2])  Y = Conv (p, L[3, 3, 3])
2 late
    c = Conv <strides = [2]> (X, K[3, 3, 2])  p = Pad <mode = "edge"> (c, [0, 0, 2, 0, 0, 2])
        e = Conv (p, L[3, 3, 5])  t = Transpose <perm = [2, 0, 1]> (e)  g = GRU <hidden_size = 4> (t, W, R, B)
        s = Squeeze (g, [1])  Y = Transpose <perm = [1, 2, 0]> (s)
""")
"""Of mode edge: replicate padding as in vocoders, and deltas of features, behind what looks ahead too."""

REFUSED = rows("""
# float[2, time] X
pads with other frames (mode reflect), which a stream has not seen yet
    p = Pad (X, [0, 1, 0, 0])  Y = Pad <mode = "reflect"> (p, [0, 1, 0, 0])
    c = Slice (X, [0], [-2], [1])  Y = Pad <mode = "reflect"> (c, [0, 2, 0, 0])
pads with other frames (mode wrap), which a stream has not seen yet
    p = Pad <mode = "wrap"> (X, [0, 1, 0, 0])  Y = Slice (p, [0], [-1], [1])
has 2 frames more than the stream
    p = Pad <mode = "reflect"> (X, [0, 1, 0, 1])  Y = Neg (p)

# float[2, 3, time] X
pads with other frames (mode reflect), which a stream has not seen yet
    p = Pad <mode = "reflect"> (X, [0, 1, 1, 0, 1, 1])  Y = Conv (p, E[3, 5, 3])
""")


@pytest.mark.few(2)
@pytest.mark.parametrize(("head", "late", "nodes"), RIGHT)
def test_each_length_and_chunking_is_right(head: str, late: str, nodes: str) -> None:
    plan = assert_at_every_length(over(head, nodes), "time", most=60)
    assert f"{plan['delay']['Y']} late, from {plan['shortest']}: {shown(plan)}" == late


@pytest.mark.few(2)
@pytest.mark.parametrize(("head", "late", "nodes"), EDGES)
def test_the_edges_are_right(head: str, late: str, nodes: str) -> None:
    plan = assert_at_every_length(over(head, nodes), "time", most=40)
    assert f"{plan['delay']['Y']} late" == late


@pytest.mark.parametrize(("head", "said", "nodes"), REFUSED)
def test_other_paddings_are_refused(head: str, said: str, nodes: str) -> None:
    with pytest.raises(rl.UnsupportedError, match=re.escape(said)):
        rl.StreamPass("time", True)(ir.from_proto(over(head, nodes)))
