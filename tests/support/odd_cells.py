"""Steps that are an RNN, GRU or LSTM though they look odd, steps that are none though they look like one, and steps
that may be read either way.

Each is the body of a Scan over X [5, 2, 3] with the states h and c [2, 4], a row x [2, 3] and the results h1 and
c1; Y has h1 of each step, or y where there is one. `U(z)` is the sum of x Wz, h Rz and a bias, named uz.
"""

import re
from dataclasses import dataclass

import numpy as np
import onnx
from cases import Arrays
from onnx import helper
from stream_models import net, rows

CELLS = """
# RNN
a bias in parts, and factors of the sum
    a = MatMul (x, W[3,4]) b = Add (a, 0.3) d = MatMul (h, R[4,4]) e = Add (b, d) f = Mul (e, 0.5)
        g = Sub (f, p[4]) h1 = Tanh (g)
rows that are scaled and moved in the step
    m = Mul (x, k[3]) s = Add (m, l[3]) a = MatMul (s, W[3,4]) d = MatMul (h, R[4,4]) e = Add (a, d) h1 = Tanh (e)
the row is the sum, without a weight
    z = Concat <axis = 1> (x, [[0.0], [0.0]]) d = MatMul (h, R[4,4]) e = Add (z, d) h1 = Relu (e)
a weight that is split again
    l, r = Split <axis = 1> (x, [1, 2]) a = MatMul (l, V[1,4]) b = MatMul (r, W[2,4]) d = MatMul (h, R[4,4])
        s = Add (a, d) t = Add (s, b) h1 = Tanh (t)
units in another order for the product
    s = Gather <axis = 1> (h, [2, 0, 3, 1]) d = MatMul (s, R[4,4]) a = MatMul (x, W[3,4]) e = Add (a, d)
        h1 = Tanh (e)
a negative tanh of the negative sum
    U(z) n = Neg (uz) t = Tanh (n) h1 = Neg (t)
a product that Reshape and Transpose surround
    U(z) s = Reshape (uz, [2, 2, 2]) v = Transpose <perm = [0, 2, 1]> (s) t = Tanh (v) w = Reshape (t, [2, 4])
        h1 = Identity (w)
a scaled tanh
    U(z) s = Mul (uz, 0.6667) t = Tanh (s) h1 = Mul (t, 1.7159)
a tail of no effect
    U(z) t = Tanh (uz) zero = Sub (h, h) m = Mul (zero, x0[4]) h1 = Add (t, m)

# GRU
the minimal gated unit
    U(f) f = Sigmoid (uf) fh = Mul (f, h) a = MatMul (x, Wn[3,4]) d = MatMul (fh, Rn[4,4]) e = Add (a, d) n =
        Tanh (e)
        g = Sub (1.0, f) k = Mul (g, h) l = Mul (f, n) h1 = Add (k, l)
torch.lerp
    U(z) U(r) z = Sigmoid (uz) r = Sigmoid (ur) N1 w = Abs (z) near = Less (w, 0.5) s = Sub (h, n) zs = Mul (z, s)
        a0 = Add (n, zs) k = Sub (1.0, z) ks = Mul (s, k) a1 = Sub (h, ks) h1 = Where (near, a0, a1)
the reset gate of another unit
    U(z) U(r) z = Sigmoid (uz) r0 = Sigmoid (ur) r = Gather <axis = 1> (r0, [3, 0, 1, 2]) N0 UPDATE
n of another unit
    U(z) U(r) z = Sigmoid (uz) r = Sigmoid (ur) N1 k = Gather <axis = 1> (n, [1, 2, 3, 0]) d = Sub (h, k)
        e = Mul (z, d) h1 = Add (k, e)
z is one minus a Sigmoid
    U(z) U(r) z0 = Sigmoid (uz) z = Sub (1.0, z0) r = Sigmoid (ur) N1 UPDATE
z is swapped, and hard
    U(z) U(r) z = HardSigmoid <alpha = 0.2, beta = 0.5> (uz) r = HardSigmoid <alpha = 0.2, beta = 0.5> (ur) N0
        d = Sub (n, h) e = Mul (z, d) h1 = Add (h, e)
relu6 of the sums
    U(z) U(r) p = Add (uz, 3.0) q = Clip (p, 0.0, 6.0) z = Div (q, 6.0) s = Add (ur, 3.0) t = Clip (s, 0.0, 6.0)
        r = Mul (t, 0.16666667) N1 UPDATE
Keras' hard_sigmoid of old
    U(z) U(r) p = Mul (uz, 0.2) q = Add (p, 0.5) z = Clip (q, 0.0, 1.0) s = Mul (ur, 0.2) t = Add (s, 0.5)
        v = Max (t, 0.0) r = Min (v, 1.0) N0 UPDATE
all gates clipped
    U(z) U(r) cz = Clip (uz, -0.3, 0.3) cr = Clip (ur, -0.3, 0.3) z = Sigmoid (cz) r = Sigmoid (cr)
        a = MatMul (x, Wn[3,4]) d = MatMul (h, Rn[4,4]) rd = Mul (r, d) un = Add (a, rd) cn0 = Clip (un, -0.3, 0.3)
        n = Tanh (cn0) UPDATE

a Clip that tanh does not notice
    U(z) U(r) z = Sigmoid (uz) r = Sigmoid (ur) a = MatMul (x, Wn[3,4]) d = MatMul (h, Rn[4,4]) rd = Mul (r, d)
        un = Add (a, rd) v = Clip (un, -20.0, 20.0) n = Tanh (v) UPDATE

# LSTM
gates coupled
    U(i) U(o) U(g) i = Sigmoid (ui) o = Sigmoid (uo) g = Tanh (ug) ic = Mul (i, c) k = Sub (c, ic) ig = Mul (i, g)
        c1 = Add (k, ig) t = Tanh (c1) h1 = Mul (o, t)
a bias of one for the forget gate
    U(i) U(f) U(o) U(g) uf1 = Add (uf, 1.0) i = Sigmoid (ui) f = Sigmoid (uf1) o = Sigmoid (uo) g = Tanh (ug) C H
peepholes
    U(i) U(f) U(o) U(g) ci = Mul (c, Pi[4]) cf = Mul (Pf[4], c) vi = Add (ui, ci) vf = Add (cf, uf) i = Sigmoid (vi)
        f = Sigmoid (vf) g = Tanh (ug) C co = Mul (c1, Po[4]) vo = Add (uo, co) o = Sigmoid (vo) H
the functions of an LSTM without tanh
    U(i) U(f) U(o) U(g) i = Sigmoid (ui) f = Sigmoid (uf) o = Sigmoid (uo) g = Relu (ug) C t = Softsign (c1)
        h1 = Mul (t, o)
hard gates
    U(i) U(f) U(o) U(g) i = HardSigmoid (ui) f = HardSigmoid (uf) o = HardSigmoid (uo) g = Tanh (ug) C H
"""
"""Each is raised to the operator of its head."""

TRAPS = """
# GRU
r is applied to x W too
    U(z) U(r) U(n) z = Sigmoid (uz) r = Sigmoid (ur) rn = Mul (r, un) n = Tanh (rn) UPDATE
r is applied to all of the argument but a bias
    U(z) U(r) U(n) z = Sigmoid (uz) r = Sigmoid (ur) rn = Mul (r, un) m = Add (rn, b2[4]) n = Tanh (m) UPDATE
h R and (r h) R2
    U(z) U(r) U(n) z = Sigmoid (uz) r = Sigmoid (ur) rh = Mul (r, h) m = MatMul (rh, R2[4,4]) k = Add (un, m)
        n = Tanh (k) UPDATE
Sigmoid for z, Tanh for r
    U(z) U(r) z = Sigmoid (uz) r = Tanh (ur) N1 UPDATE
Sigmoid for z, HardSigmoid for r
    U(z) U(r) z = Sigmoid (uz) r = HardSigmoid (ur) N1 UPDATE
z of a unit with h of the next
    U(z) U(r) z = Sigmoid (uz) r = Sigmoid (ur) N1 k = Gather <axis = 1> (h, [1, 2, 3, 0]) d = Sub (k, n)
        e = Mul (z, d) h1 = Add (n, e)
zoneout
    U(z) U(r) z = Sigmoid (uz) r = Sigmoid (ur) N1 d = Sub (h, n) e = Mul (z, d) new = Add (n, e)
        p = Mul (new, 0.9) q = Mul (h, 0.1) h1 = Add (p, q)
z h + z n
    U(z) U(r) z = Sigmoid (uz) r = Sigmoid (ur) N1 k = Mul (z, h) l = Mul (z, n) h1 = Add (k, l)
two gates for old and new
    U(z) U(y) U(r) z = Sigmoid (uz) y = Sigmoid (uy) r = Sigmoid (ur) N1 k = Mul (z, h) l = Mul (y, n)
        h1 = Add (k, l)
the gates see the squared state
    hh = Mul (h, h) a = MatMul (x, Wz[3,4]) d = MatMul (hh, Rz[4,4]) s = Add (a, d) z = Sigmoid (s) U(r)
        r = Sigmoid (ur) N1 UPDATE
only n is clipped
    U(z) U(r) z = Sigmoid (uz) r = Sigmoid (ur) a = MatMul (x, Wn[3,4]) d = MatMul (h, Rn[4,4]) rd = Mul (r, d)
        un = Add (a, rd) v = Clip (un, -0.3, 0.3) n = Tanh (v) UPDATE
only n is clipped, in a GRU whose state is a factor
    U(z) U(r) z = Sigmoid (uz) r = HardSigmoid (ur) a = MatMul (x, Wn[3,4]) d = MatMul (h, Rn[4,4])
        rd = Mul (r, d) un = Add (a, rd) v = Clip (un, -0.3, 0.3) n = Tanh (v) UPDATE
only z is clipped
    U(z) U(r) v = Clip (uz, -0.3, 0.3) z = Sigmoid (v) r = Sigmoid (ur) N1 UPDATE
z and r clipped at other bounds
    U(z) U(r) v = Clip (uz, -0.3, 0.3) z = Sigmoid (v) w = Clip (ur, -0.4, 0.4) r = Sigmoid (w)
        a = MatMul (x, Wn[3,4]) d = MatMul (h, Rn[4,4]) rd = Mul (r, d) un = Add (a, rd) k = Clip (un, -0.3, 0.3)
        n = Tanh (k) UPDATE
a clip that is not symmetric
    U(z) U(r) v = Clip (uz, -0.2, 0.6) z = Sigmoid (v) w = Clip (ur, -0.2, 0.6) r = Sigmoid (w)
        a = MatMul (x, Wn[3,4]) d = MatMul (h, Rn[4,4]) rd = Mul (r, d) un = Add (a, rd) k = Clip (un, -0.2, 0.6)
        n = Tanh (k) UPDATE

# RNN
tanh by a quotient
    U(z) q = Mul (uz, uz) p = Add (q, 27.0) s = Mul (uz, p) t = Mul (q, 9.0) v = Add (t, 27.0) h1 = Div (s, v)
SiLU
    U(z) s = Sigmoid (uz) h1 = Mul (uz, s)
zoneout of an RNN
    U(z) t = Tanh (uz) p = Mul (t, 0.9) q = Mul (h, 0.1) h1 = Add (p, q)
what is left of the old state is added
    U(z) t = Tanh (uz) h1 = Add (t, h)
a little of the old state is added to what is stacked
    U(z) h1 = Tanh (uz) s = Mul (h, 0.0000009) y = Add (h1, s)
layer normalization
    U(z) m = ReduceMean <axes = [1]> (uz) d = Sub (uz, m) q = Mul (d, d) v = ReduceMean <axes = [1]> (q)
        e = Add (v, 0.00001) s = Sqrt (e) w = Div (d, s) h1 = Tanh (w)
two functions, each for half of the units
    U(z) l, r = Split <axis = 1> (uz, [2, 2]) a = Tanh (l) b = Relu (r) h1 = Concat <axis = 1> (a, b)
one function with two parameters
    U(z) l, r = Split <axis = 1> (uz, [2, 2]) a = Elu <alpha = 0.5> (l) b = Elu <alpha = 0.6> (r)
        h1 = Concat <axis = 1> (a, b)
rows of the batch mixed
    m = MatMul (M[2,2], h) a = MatMul (x, W[3,4]) d = MatMul (m, R[4,4]) s = Add (a, d) h1 = Tanh (s)
the mean over the batch
    m = ReduceMean <axes = [0]> (h) a = MatMul (x, W[3,4]) d = MatMul (m, R[4,4]) s = Add (a, d) h1 = Tanh (s)
other weights for each row of the batch
    e = Unsqueeze (x, [1]) a0 = MatMul (e, W[2,3,4]) a = Squeeze (a0, [1]) d = MatMul (h, R[4,4]) s = Add (a, d)
        h1 = Tanh (s)
another bias for each row of the batch
    U(z) s = Add (uz, b2[2,4]) h1 = Tanh (s)
another factor for each row of the batch
    U(z) s = Mul (uz, b2[2,1]) h1 = Tanh (s)
rows that multiply h
    l, r = Split <axis = 1> (x, [2, 1]) hr = Mul (h, r) a = MatMul (l, W[2,4]) d = MatMul (hr, R[4,4]) s = Add
        (a, d)
        h1 = Tanh (s)
a product with the transposed state
    t = Transpose (h) q = MatMul (t, h) d = MatMul (h, q) a = MatMul (x, W[3,4]) s = Add (a, d) h1 = Tanh (s)
a random factor
    n = RandomNormalLike (h) m = Mul (h, n) a = MatMul (x, W[3,4]) d = MatMul (m, R[4,4]) s = Add (a, d)
        h1 = Tanh (s)
a tanh in small factors that differ
    U(z) t = Tanh (uz) h1 = Mul (t, [0.0000001, 0.0000003, 0.0000001, 0.0000001])
a clip that is not symmetric, of a sum
    U(z) v = Clip (uz, -0.2, 0.6) h1 = Tanh (v)
a function of the function
    U(z) s = Sigmoid (uz) h1 = Tanh (s)
Sin
    U(z) h1 = Sin (uz)
an approximated GELU
    U(z) h1 = Gelu (uz)
Where on data, with branches that differ
    U(z) k = Less (uz, 0.0) m = Mul (uz, 0.1) t = Tanh (uz) h1 = Where (k, m, t)

# LSTM
h of the old c
    U(i) U(f) U(o) U(g) i = Sigmoid (ui) f = Sigmoid (uf) o = Sigmoid (uo) g = Tanh (ug) C t = Tanh (c)
        h1 = Mul (o, t)
o sees the old c
    U(i) U(f) U(o) U(g) co = Mul (c, Po[4]) vo = Add (uo, co) i = Sigmoid (ui) f = Sigmoid (uf) o = Sigmoid (vo)
        g = Tanh (ug) C H
a peephole of g
    U(i) U(f) U(o) U(g) cg = Mul (c, Pg[4]) vg = Add (ug, cg) i = Sigmoid (ui) f = Sigmoid (uf) o = Sigmoid (uo)
        g = Tanh (vg) C H
a full matrix as a peephole
    U(i) U(f) U(o) U(g) ci = MatMul (c, Pi[4,4]) vi = Add (ui, ci) i = Sigmoid (vi) f = Sigmoid (uf) o = Sigmoid
        (uo)
        g = Tanh (ug) C H
a peephole with a little of the next unit
    U(i) U(f) U(o) U(g) k = Gather <axis = 1> (c, [1, 2, 3, 0]) co = Mul (c, Pi[4]) ck = Mul (k, 0.0000003)
        ci = Add (co, ck) vi = Add (ui, ci) i = Sigmoid (vi) f = Sigmoid (uf) o = Sigmoid (uo) g = Tanh (ug) C H
a peephole of the next unit
    U(i) U(f) U(o) U(g) k = Gather <axis = 1> (c, [1, 2, 3, 0]) ci = Mul (k, Pi[4]) vi = Add (ui, ci)
        i = Sigmoid (vi) f = Sigmoid (uf) o = Sigmoid (uo) g = Tanh (ug) C H
c is clipped
    U(i) U(f) U(o) U(g) i = Sigmoid (ui) f = Sigmoid (uf) o = Sigmoid (uo) g = Tanh (ug) fc = Mul (f, c)
        ig = Mul (i, g) s = Add (fc, ig) c1 = Clip (s, -0.2, 0.2) H
Sigmoid for i, HardSigmoid for f
    U(i) U(f) U(o) U(g) i = Sigmoid (ui) f = HardSigmoid (uf) o = Sigmoid (uo) g = Tanh (ug) C H
Sigmoid for i and f, HardSigmoid for o
    U(i) U(f) U(o) U(g) i = Sigmoid (ui) f = Sigmoid (uf) o = HardSigmoid (uo) g = Tanh (ug) C H
no output gate
    U(i) U(f) U(g) i = Sigmoid (ui) f = Sigmoid (uf) g = Tanh (ug) C h1 = Tanh (c1)
i and f in each other's place for some units
    U(i) U(f) U(o) U(g) i0 = Sigmoid (ui) f0 = HardSigmoid (uf) s = Concat <axis = 1> (i0, f0)
        i = Gather <axis = 1> (s, [0, 1, 6, 7]) f = Gather <axis = 1> (s, [4, 5, 2, 3]) o = Sigmoid (uo) g = Tanh
        (ug)
        C H
f c of the next unit
    U(i) U(f) U(o) U(g) i = Sigmoid (ui) f = Sigmoid (uf) o = Sigmoid (uo) g = Tanh (ug)
        k = Gather <axis = 1> (c, [1, 2, 3, 0]) fc = Mul (f, k) ig = Mul (i, g) c1 = Add (fc, ig) H
a simple recurrent unit
    a = MatMul (x, W[3,4]) vf = Mul (c, v[4]) s = Add (a, vf) f = Sigmoid (s) U(g) fc = Mul (f, c) k = Sub (1.0, f)
        kg = Mul (k, a) c1 = Add (fc, kg) t = Tanh (c1) h1 = Mul (f, t)
c1 is stacked
    U(i) U(f) U(o) U(g) i = Sigmoid (ui) f = Sigmoid (uf) o = Sigmoid (uo) g = Tanh (ug) C H y = Identity (c1)
a projected state
    U(i) U(f) U(o) U(g) i = Sigmoid (ui) f = Sigmoid (uf) o = Sigmoid (uo) g = Tanh (ug) C t = Tanh (c1)
        p = Mul (o, t) h1 = MatMul (p, Wp[4,4])
c1 keeps g of the last step
    U(i) U(f) U(o) U(g) i = Sigmoid (ui) f = Sigmoid (uf) o = Sigmoid (uo) g = Tanh (ug) fc = Mul (f, c)
        ig = Mul (i, g) s = Add (fc, ig) t = Tanh (s) h1 = Mul (o, t) c1 = Identity (ig)
c1 in small factors that differ, for the output
    U(i) U(f) U(o) U(g) i = Sigmoid (ui) f = Sigmoid (uf) o = Sigmoid (uo) g = Tanh (ug) C
        s = Mul (c1, [0.0000001, 0.0000003, 0.0000001, 0.0000001]) t = Tanh (s) h1 = Mul (o, t)
c1 and a little more, for the output
    U(i) U(f) U(o) U(g) i = Sigmoid (ui) f = Sigmoid (uf) o = Sigmoid (uo) g = Tanh (ug) C
        s = Add (c1, 0.0000009) t = Tanh (s) h1 = Mul (o, t)
two cells in one loop
    U(i) h1 = Tanh (ui) a = MatMul (h1, V[4,4]) d = MatMul (c, Q[4,4]) s = Add (a, d) c1 = Tanh (s)
"""
"""Each stays as it is."""

EITHER = """
# RNN
old h is stacked
    U(z) h1 = Tanh (uz) y = Identity (h)
a head that mixes old and new
    U(z) h1 = Tanh (uz) y = Add (h1, h)
a head that sees x
    U(z) h1 = Tanh (uz) a = MatMul (x, V[3,4]) y = Add (h1, a)
a mean over the units as a head
    U(z) h1 = Tanh (uz) y = ReduceMean <axes = [1]> (h1)
a mean over the batch as a head
    U(z) h1 = Tanh (uz) y = ReduceMean <axes = [0]> (h1)
a softmax over the batch as a head
    U(z) h1 = Tanh (uz) y = Softmax <axis = 0> (h1)
a transposed head
    U(z) h1 = Tanh (uz) y = Transpose (h1)
a head that Reshape joins
    U(z) h1 = Tanh (uz) y = Reshape (h1, [-1])
a head that Reshape keeps
    U(z) h1 = Tanh (uz) y = Reshape (h1, [0, 2, 2])
a head by Slice and Concat of the batch
    U(z) h1 = Tanh (uz) p = Slice (h1, [0], [1], [0]) q = Slice (h1, [1], [2], [0]) y = Concat <axis = 0> (q, p)
a head that Gather takes from the batch
    U(z) h1 = Tanh (uz) y = Gather <axis = 0> (h1, 1)
a head of Gemm
    U(z) h1 = Tanh (uz) d = Gemm <transB = 1> (h1, V[5,4], v[5]) y = Sigmoid (d)
a head that adds a matrix
    U(z) h1 = Tanh (uz) y = Add (h1, v[2,4])
a head that adds the row axis of a cube
    U(z) h1 = Tanh (uz) y = Add (h1, v[3,2,4])
a head of a size
    U(z) h1 = Tanh (uz) s = Shape (h1) f = Cast <to = 1> (s) y = ReduceSum (f)
a head of LayerNormalization from axis 0
    U(z) h1 = Tanh (uz) y = LayerNormalization <axis = 0> (h1, g[2,4])
a head that Flatten joins
    U(z) h1 = Tanh (uz) y = Flatten <axis = 0> (h1)
a head that is normalized over all
    U(z) h1 = Tanh (uz) m = ReduceMax (h1) y = Div (h1, m)
a head of random numbers
    U(z) h1 = Tanh (uz) n = RandomNormalLike (h1) k = Mul (n, 0.0) y = Add (h1, k)
a head of ArgMax
    U(z) h1 = Tanh (uz) a = ArgMax <axis = -1, keepdims = 0> (h1) y = Cast <to = 1> (a)
a head that an Expand makes larger
    U(z) h1 = Tanh (uz) y = Expand (h1, [3, 1, 1])
a head that Tile repeats
    U(z) h1 = Tanh (uz) y = Tile (h1, [1, 2])
a head that Pad surrounds
    U(z) h1 = Tanh (uz) y = Pad (h1, [0, 1, 0, 0])
a head of CumSum
    U(z) h1 = Tanh (uz) y = CumSum (h1, 0)
a head that is Squeezed of nothing
    U(z) h1 = Tanh (uz) s = Unsqueeze (h1, [0]) y = Squeeze (s, [0])
tanh by a Sigmoid
    U(z) t = Mul (uz, 2.0) s = Sigmoid (t) d = Mul (s, 2.0) h1 = Sub (d, 1.0)
a line
    U(z) h1 = Identity (uz)
a step that forgets h
    a = MatMul (x, W[3,4]) z = Mul (h, 0.0) s = Add (a, z) h1 = Tanh (s)
a sum that is large
    a = MatMul (x, W[3,4]) d = MatMul (h, R[4,4]) s = Add (a, d) t = Mul (s, 100.0) h1 = Tanh (t)

# GRU
a constant update gate
    U(r) r = Sigmoid (ur) N1 s = Sigmoid (c0[4]) k = Sub (1.0, s) p = Mul (k, n) q = Mul (s, h) h1 = Add (p, q)
a bias and a reset of the reset product
    U(z) U(r) z = Sigmoid (uz) r = Sigmoid (ur) a = MatMul (x, Wn[3,4]) d = MatMul (h, Rn[4,4]) d1 = Add (d, b3[4])
        rd = Mul (r, d1) rb = Mul (r, b4[4]) s = Add (a, rd) t = Add (s, rb) n = Tanh (t) UPDATE

# LSTM
peepholes while coupled
    U(i) U(o) U(g) ci = Mul (c, Pi[4]) vi = Add (ui, ci) i = Sigmoid (vi) o = Sigmoid (uo) g = Tanh (ug)
        k = Sub (1.0, i) kc = Mul (k, c) ig = Mul (i, g) c1 = Add (kc, ig) H
no function of c
    U(i) U(f) U(o) U(g) i = Sigmoid (ui) f = Sigmoid (uf) o = Sigmoid (uo) g = Tanh (ug) C h1 = Mul (o, c1)
g and i of one function
    U(i) U(f) U(o) U(g) i = Sigmoid (ui) f = Sigmoid (uf) o = Sigmoid (uo) g = Sigmoid (ug) C t = Sigmoid (c1)
        h1 = Mul (o, t)
i, o, f and g of one sum
    U(i) i = Sigmoid (ui) f = Identity (i) o = Identity (i) g = Tanh (ui) C H
"""
"""Each is raised, and computes the same, or stays as it is."""

MACROS = {
    "N1": "an = MatMul (x, Wn[3,4]) dn = MatMul (h, Rn[4,4]) en = Add (dn, Bn[4]) rn = Mul (r, en)"
    " un = Add (an, rn) n = Tanh (un)",
    "N0": "rh = Mul (r, h) an = MatMul (x, Wn[3,4]) dn = MatMul (rh, Rn[4,4]) un = Add (an, dn) n = Tanh (un)",
    "UPDATE": "dd = Sub (h, n) ee = Mul (z, dd) h1 = Add (n, ee)",
    "C": "fc = Mul (f, c) ig = Mul (i, g) c1 = Add (fc, ig)",
    "H": "tc = Tanh (c1) h1 = Mul (o, tc)",
}


@dataclass(frozen=True)
class Odd:
    """A step of the tables.

    Attributes:
        name: What is odd.
        op_type: The operator that it is, or looks like.
        model: A Scan of it.
    """

    name: str
    op_type: str
    model: onnx.ModelProto

    def __str__(self) -> str:
        return self.name

    def feed(self) -> Arrays:
        return feed_of(self.model)


def feed_of(model: onnx.ModelProto) -> Arrays:
    """Random inputs of known sizes."""
    rng = np.random.default_rng(5)
    held = {tensor.name for tensor in model.graph.initializer}
    inputs = [v for v in model.graph.input if v.name not in held]
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in inputs}
    return {name: rng.normal(0, 1, shape).astype(np.float32) for name, shape in shapes.items()}


def odd(table: str) -> list[Odd]:
    """The steps of a table."""
    return [Odd(name, head.strip(), of_step(head.strip(), nodes)) for head, name, nodes in rows(table)]


def of_step(op_type: str, step: str, opset: int = 17) -> onnx.ModelProto:
    """A Scan of a step."""
    step = re.sub(
        r"\bU\((\w)\)",
        r"x_\1 = MatMul (x, W\1[3,4]) h_\1 = MatMul (h, R\1[4,4]) s_\1 = Add (x_\1, h_\1) "
        r"u\1 = Add (s_\1, b\1[4])",
        step,
    )
    for name, text in MACROS.items():
        step = re.sub(rf"\b{name}\b(?! *[=,)(])", text, step)
    if "y = " not in step:
        step += " y = Identity (h1)"
    states = "float[2,4] h, float[2,4] c" if op_type == "LSTM" else "float[2,4] h"
    results = "float[2,4] h1, float[2,4] c1" if op_type == "LSTM" else "float[2,4] h1"
    last, first = ("hn, cn", "initial_h, initial_c") if op_type == "LSTM" else ("hn", "initial_h")
    made = net(
        f"""g (float[5,2,3] X, {states.replace(" h", " initial_h").replace(" c", " initial_c")}) => (float Y,
        {", ".join(f"float[2,4] {name}" for name in last.split(", "))}) {{ {last}, Y = Scan <num_scan_inputs = 1,
        body = step ({states}, float[2,3] x) => ({results}, float y) {{ {step} }}> ({first}, X) }}""",
        opset=20 if "Gelu" in step else opset,
    )
    _declare(made)
    return made


def _declare(model: onnx.ModelProto) -> None:
    """Declare the shape of y, which onnxruntime asks for."""
    body = next(a.g for a in model.graph.node[-1].attribute if a.name == "body")
    inner = onnx.GraphProto()
    inner.CopyFrom(body)
    inner.output[-1].type.tensor_type.ClearField("shape")
    inner.initializer.extend(model.graph.initializer)
    inferred = onnx.shape_inference.infer_shapes(helper.make_model(inner, opset_imports=model.opset_import))
    body.output[-1].CopyFrom(inferred.graph.output[-1])
