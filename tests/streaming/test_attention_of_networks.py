"""Attention as networks have it: GPT, Llama, T5, decoders with a memory, axial attention; and what is near to it,
but is no stream. The oracle is onnxruntime on the original.
"""

from typing import Any

import numpy as np
import pytest
from stream_models import assert_at_every_length, chunked, expected_of, over, plan_of, random, rows, shown

import rnn_lowering as rl

WEIGHTS = {
    "by_distance": random([6, 1], 1),
    "buckets": random([8, 1], 2),
    "places": random([40, 4], 3),
    "angles": random([2], 4),
    "rotated": random([40, 4], 5),
    "bias": random([64], 6),
}
POSITIONS = """sh = Shape (X)  n = Gather (sh, 1)  r = Range (0, n, 1)  i = Unsqueeze (r, [1])
    j = Unsqueeze (r, [0])  n1 = Unsqueeze (n, [0])  d = Sub (i, j)  c = LessOrEqual (0, d)"""
SCORES = f"{POSITIONS}  kt = Transpose <perm = [0, 2, 1]> (X)  s = MatMul (X, kt)"
WEIGHED = "m = Where (c, q, -1e9)  w = Softmax (m)  Y = MatMul (w, X)"
MASKED = "m = Where (c, s, -1e9)  w = Softmax (m)"
HEADS = """q0 = MatMul (X, Q[8, 8])  k0 = MatMul (X, K[8, 4])  v0 = MatMul (X, V[8, 4])
    q4 = Reshape (q0, [0, 0, 2, 4])  q = Transpose <perm = [0, 2, 1, 3]> (q4)  k = Unsqueeze (k0, [1])
    v = Unsqueeze (v0, [1])"""
ROTATED = """qa, qb = Split <axis = 3, num_outputs = 2> (q)  qn = Neg (qb)  qh = Concat <axis = -1> (qn, qa)
    q1 = Mul (q, cs)  q2 = Mul (qh, sn)  qr = Add (q1, q2)
    ka, kb = Split <axis = 3, num_outputs = 2> (k)  kn = Neg (kb)  kh = Concat <axis = -1> (kn, ka)
    k1 = Mul (k, cs)  k2 = Mul (kh, sn)  kr = Add (k1, k2)"""
GROUPED = """b1 = Slice (sh, [0], [1])  ez = Concat <axis = 0> (b1, [1], [2], n1, [4])
    rz = Concat <axis = 0> (b1, [2], n1, [4])  ku = Unsqueeze (kr, [2])  ke = Expand (ku, ez)
    kx = Reshape (ke, rz)  vu = Unsqueeze (v, [2])  ve = Expand (vu, ez)  vx = Reshape (ve, rz)
    kt = Transpose <perm = [0, 1, 3, 2]> (kx)  s = MatMul (qr, kt)  m = Where (c, s, -1e9)
    w = Softmax (m)  o = MatMul (w, vx)  ot = Transpose <perm = [0, 2, 1, 3]> (o)
    Y = Reshape (ot, [0, 0, 8])"""
COMPUTED = """f = Cast <to = 1> (r)  f1 = Unsqueeze (f, [1])  an = Mul (f1, angles)
    a2 = Concat <axis = -1> (an, an)  cs = Cos (a2)  sn = Sin (a2)"""
TABLES = "a2 = Slice (rotated, [0], n1, [0])  cs = Cos (a2)  sn = Sin (a2)"
STREAMS = rows(
    """
# float[batch, time, 4] X, float[batch, 7, 4] M
a decoder with a memory: k[batch, 4, 0]  v[batch, 0, 4]
    SCORES  m = Where (c, s, -1e9)  w = Softmax (m)  A = MatMul (w, X)  mt = Transpose <perm = [0, 2, 1]> (M)
        s2 = MatMul (A, mt)  w2 = Softmax (s2)  Y = MatMul (w2, M)
# float[batch, time, 4] X, float[batch, time, 4] Z
two streams: k[batch, 4, 0]  v[batch, 0, 4]
    POSITIONS  kt = Transpose <perm = [0, 2, 1]> (Z)  s = MatMul (X, kt)  m = Where (c, s, -1e9)
        w = Softmax (m)  Y = MatMul (w, Z)
# float[batch, time, 3, 4] X
axial attention: k[batch, 3, 4, 0]  v[batch, 3, 0, 4]
    POSITIONS  xt = Transpose <perm = [0, 1, 3, 2]> (X)  s = MatMul (X, xt)  w = Softmax (s)  A = MatMul (w, X)
        F = Transpose <perm = [0, 2, 1, 3]> (A)  ft = Transpose <perm = [0, 1, 3, 2]> (F)  s2 = MatMul (F, ft)
        m = Where (c, s2, -1e9)  w2 = Softmax (m)  C = MatMul (w2, F)  Y = Transpose <perm = [0, 2, 1, 3]> (C)
# float[batch, time, 4] X
values of another size: k[batch, 4, 0]  v[batch, 0, 6]
    SCORES  v = MatMul (X, V[4, 6])  m = Where (c, s, -1e9)  w = Softmax (m)  Y = MatMul (w, v)
a learned bias by distance: k[batch, 4, 0]  v[batch, 0, 4]  t[1]
    SCORES  p = Clip (d, 0, 5)  u = Unsqueeze (p, [2])  b = GatherND (by_distance, u)
        bt = Transpose <perm = [2, 0, 1]> (b)  q = Add (s, bt)  WEIGHED
buckets of T5: k[batch, 4, 39]  v[batch, 39, 4]  t[1]
    SCORES  pd = Max (d, 0)  f = Cast <to = 1> (pd)  f1 = Div (f, 4.0)  fm = Max (f1, 1.0)  l = Log (fm)
        l2 = Div (l, 2.0794)  l3 = Mul (l2, 4.0)  li = Cast <to = 7> (l3)  l4 = Add (li, 4)  l5 = Min (l4, 7)
        sm = Less (pd, 4)  bk = Where (sm, pd, l5)  b = Gather (buckets, bk)
        bt = Transpose <perm = [2, 0, 1]> (b)  q = Add (s, bt)  WEIGHED
learned positions of GPT: t[1]  k[batch, 4, 0]  v[batch, 0, 4]
    POSITIONS  g = Gather (places, r)  h = Add (X, g)  kt = Transpose <perm = [0, 2, 1]> (h)  s = MatMul (h, kt)
        m = Where (c, s, -1e9)  w = Softmax (m)  Y = MatMul (w, h)
# float[batch, time, 8] X
grouped keys of Llama: t[1]  k[batch, 2, 4, 0]  v[batch, 2, 0, 4]
    POSITIONS  HEADS  COMPUTED  ROTATED  GROUPED
rotations in a table: t[1]  k[batch, 2, 4, 0]  v[batch, 2, 0, 4]
    POSITIONS  HEADS  TABLES  ROTATED  GROUPED
# float[batch, time, 2, 4] X
frames before heads: k[batch, 0, 2, 4]  v[batch, 0, 2, 4]
    POSITIONS  s = Einsum <equation = "b q h d, b k h d -> b h q k"> (X, X)  MASKED
        Y = Einsum <equation = "bhqk,bkhd->bqhd"> (w, X)
keys and values as first operands: k[batch, 0, 2, 4]  v[batch, 0, 2, 4]
    POSITIONS  s = Einsum <equation = "BSNH,BTNH->BNTS"> (X, X)  MASKED
        Y = Einsum <equation = "BSNH,BNTS->BTNH"> (X, w)
scores of keys before queries: k[batch, 0, 2, 4]  v[batch, 0, 2, 4]
    POSITIONS  s = Einsum <equation = "bkhd,bqhd->bhkq"> (X, X)  ct = Transpose <perm = [1, 0]> (c)
        m = Where (ct, s, -1e9)  w = Softmax <axis = 2> (m)  Y = Einsum <equation = "bhkq,bkhd->bqhd"> (w, X)
an ellipsis: k[batch, 2, 0, 4]  v[batch, 2, 0, 4]
    POSITIONS  t = Transpose <perm = [0, 2, 1, 3]> (X)  s = Einsum <equation = "...qd,...kd->...qk"> (t, t)
        MASKED  y = Einsum <equation = "...qk,...kd->...qd"> (w, t)  Y = Transpose <perm = [0, 2, 1, 3]> (y)
one key for all heads: k[batch, 0, 4]  v[batch, 0, 4]
    POSITIONS  k = Gather <axis = 2> (X, 0)  s = Einsum <equation = "bqhd,bkd->bhqk"> (X, k)  MASKED
        Y = Einsum <equation = "bhqk,bkd->bqhd"> (w, k)
# float[batch, time, 6, 4] X
groups of heads: k[batch, 0, 2, 4]  v[batch, 0, 2, 4]
    POSITIONS  q = Reshape (X, [0, 0, 2, 3, 4])  k = Slice (X, [0], [2], [2])
        s = Einsum <equation = "bqgrd,bkgd->bgrqk"> (q, k)  MASKED
        Y = Einsum <equation = "bgrqk,bkgd->bqgrd"> (w, k)
# float[time, batch, 2, 4] X
frames on the first axis: k[0, batch, 2, 4]  v[0, batch, 2, 4]
    sh = Shape (X)  n = Gather (sh, 0)  r = Range (0, n, 1)  i = Unsqueeze (r, [1, 2, 3])
        j = Unsqueeze (r, [0, 2, 3])  c = LessOrEqual (j, i)  s = Einsum <equation = "ibnd,jbnd->ijbn"> (X, X)
        m = Where (c, s, -1e9)  w = Softmax <axis = 1> (m)  Y = Einsum <equation = "ijbn,jbnd->ibnd"> (w, X)
"""
)
PARTS = {
    **{"SCORES": SCORES, "POSITIONS": POSITIONS, "WEIGHED": WEIGHED, "HEADS": HEADS, "ROTATED": ROTATED},
    **{"GROUPED": GROUPED, "COMPUTED": COMPUTED, "TABLES": TABLES, "MASKED": MASKED},
}


def network(head: str, nodes: str) -> Any:
    for name, text in PARTS.items():
        nodes = nodes.replace(name, text)
    return over(head, nodes, WEIGHTS)


@pytest.mark.few(2)
@pytest.mark.parametrize(("head", "title", "nodes"), STREAMS, ids=[title.split(":")[0] for _, title, _ in STREAMS])
def test_it_streams(head: str, title: str, nodes: str) -> None:
    model, (_, states) = network(head, nodes), title.split(": ")
    most = 40 if "39" in states else None
    assert shown(plan_of(rl.lower(model, stream="time=1", max_frames=most))) == states
    if most is None:
        assert_at_every_length(model, "time", 40)
        return
    stepped = rl.lower(model, stream="time", max_frames=most)
    for frames in (1, 2, 7, 23, 40):
        feed = {"X": random([2, frames, 4], frames)}
        expected = expected_of(plan_of(stepped), model, feed)["Y"]
        for sizes in ([1], [3, 1, 4]):
            np.testing.assert_allclose(chunked(stepped, feed, sizes)["Y"], expected, rtol=0, atol=1e-5)


REFUSED = rows(
    """
# float[2, time, 4] X, bool[time, time] mask
input 'mask' has two time axes, 0 and 1; give one
    SCORES  q = Where (mask, s, -1e9)  WEIGHED
# float[2, time, 4] X
TopK node '-> tv' in main graph: compares frames with each other: it reads scores of pairs of frames in a way
    SCORES  k3 = Div (n, 3)  k4 = Add (k3, 1)  k5 = Unsqueeze (k4, [0])  m0 = Where (c, s, -1e9)
        tv, ti = TopK (m0, k5)  lo = ReduceMin (tv, [-1])  g = GreaterOrEqual (m0, lo)  q = Where (g, m0, -1e9)
        WEIGHED
Greater node '-> g' in main graph: uses the number of frames, which a stream never knows, other than as a size
    SCORES  g = Greater (n, 250)  q = If (g) <then_branch = a () => (float[] z) { z = Identity (s) },
        else_branch = b () => (float[] y) { y = Where (c, s, -1e9) }>  WEIGHED
its mask or bias 'b' depends on the number of frames; use a mask or a bias of i - j
    SCORES  e = Sub (n, 1)  p = Sub (e, j)  b = Gather (bias, p)  q = Add (s, b)  WEIGHED
Div node '-> q' in main graph: scales scores by 'l', which depends on positions or on the number of frames
    SCORES  f = Cast <to = 1> (n)  l = Sqrt (f)  q = Div (s, l)  WEIGHED
Mul node '-> w' in main graph: scales scores by 'D', which depends on positions or on the number of frames
    SCORES  f = Cast <to = 1> (d)  g = Pow (0.9, f)  D = Where (c, g, 0.0)  w = Mul (s, D)  Y = MatMul (w, X)
Where node '-> w' in main graph: its mask sets 0, which does not remove a frame
    SCORES  w = Where (c, s, 0.0)  Y = MatMul (w, X)
Sub node '-> Z' in main graph: subtracts the mean of all frames
    POSITIONS  mu = ReduceMean <keepdims = 1> (X, [1])  Z = Sub (X, mu)  kt = Transpose <perm = [0, 2, 1]> (Z)
        s = MatMul (Z, kt)  q = Identity (s)  WEIGHED
MatMul node '-> s' in main graph: joins values whose frames are not aligned
    POSITIONS  X2 = Slice (X, [0], far, [1], [2])  kt = Transpose <perm = [0, 2, 1]> (X2)  s = MatMul (X, kt)
        w = Softmax (s)  Y = MatMul (w, X2)
Einsum node '-> q' in main graph: compares frames with each other: they are on different axes of its inputs
    POSITIONS  q = Einsum <equation = "bid,bjd,->bij"> (X, X, 0.5)  WEIGHED
weighs other frames than it compares; give values the frames of the keys
    POSITIONS  K1 = Slice (X, [1], far, [1])  kp = Pad (K1, [0, 0, 0, 0, 1, 0])
        kt = Transpose <perm = [0, 2, 1]> (kp)  q = MatMul (X, kt)  WEIGHED
"""
)


@pytest.mark.parametrize(("head", "message", "nodes"), REFUSED)
def test_it_is_refused(head: str, message: str, nodes: str) -> None:
    """Among them a retention: scores that decay with the distance, without a Softmax."""
    with pytest.raises(rl.UnsupportedError) as caught:
        rl.lower(network(head, nodes), stream="X:1=1", delay=True)
    assert message in str(caught.value)
