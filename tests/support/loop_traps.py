"""Small models, each with a trap of Loop or Scan, and what each form makes of it."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from cases import Arrays
from stream_models import net, rows


@dataclass(frozen=True)
class Trap:
    """A model that may be misread.

    Attributes:
        name: What is special.
        model: The model.
        feeds: The inputs of each run.
        fix: The keywords of `lower`.
        refused: For each form that is refused a part of the message; "*" for all.
    """

    name: str
    model: onnx.ModelProto
    feeds: list[Arrays]
    fix: dict[str, Any]
    refused: dict[str, str]

    def refusal(self, form: str) -> str:
        return self.refused.get(form, self.refused.get("*", ""))


def numbers(*shape: int) -> Any:
    return (np.arange(np.prod(shape, dtype=int)).reshape(shape) / 7 - 0.6).astype(np.float32)


NETS = rows("""
# float[2] a, float[2] b, float[5,2] X => float[2] p, float[2] q, float[T,2] Y
swapped states and a stacked x
    p, q, Y = Scan <num_scan_inputs = 1, body = d (float[2] s, float[2] t, float[2] x)
        => (float[2] t1, float[2] s1, float[2] y) { t1 = Add (t, x) s1 = Identity (s) y = Identity (x) }> (a, b, X)
rows that no step reads
    p, q, Y = Scan <num_scan_inputs = 1, body = d (float[2] s, float[2] t, float[2] x)
        => (float[2] s1, float[2] t1, float[2] y) { s1 = Add (s, t) t1 = Identity (s) y = Mul (s, t) }> (a, b, X)

# float[2] a => float[2] p, int64[T] Y
the number of the step is stacked
    p, Y = Loop (4, True, a) <body = d (int64 i, bool c, float[2] s) => (bool c, float[2] s1, int64 i) {
        s1 = Add (s, s) }>

# float[2] s, float[5,2] X => float[2] Z, float[T,2] Y <bool yes = {1}, int64 M = {5}, float[2] W = {1, 2}>
names of the body are names outside
    p, Y = Loop (M, yes, s) <body = d STEP <float[2] W = {3, 4}> { x = Gather (X, i) w = Mul (x, W) s1 = Add (s, w)
        o = Mul (s1, W) c1 = Identity (c) }> w = Mul (p, W) Z = Add (w, W)

# float[2] a, float[5,2] X => float[2] p, float[T,2] Y
the first condition is false
    p, Y = Loop (4, False, a) <body = d STEP { s1 = Add (s, s) o = Identity (s1) c1 = Identity (c) }>
an If on a counter, and one on data
    p, Y = Loop (5, True, a) <body = d STEP { x = Gather (X, i) k = Less (i, 2) y = If (k) <then_branch = u ()
        => (float[2] t) { t = Add (x, s) }, else_branch = v () => (float[2] e) { e = Sub (x, s) }>
        m = ReduceMax <keepdims = 0> (y) pos = Less (m, 0.5) s1 = If (pos) <then_branch = u () => (float[2] t) {
        w = Add (x, y) t = Add (w, x) }, else_branch = v () => (float[2] e) { e = Identity (y) }> o = Identity (s1)
        c1 = Identity (c) }>
no state that changes, before Loops without states
    p, Y = Loop (5, True, a) <body = d STEP { x = Gather (X, i) o = Add (s, x) s1 = Identity (s) c1 = Identity (c)
        }>
axes are attributes
    p, Y = Loop (5, True, a) <body = d STEP <int64[1] z = {0}> { k = Unsqueeze <axes = [0]> (i) x0 = Gather (X, k)
        x = Squeeze <axes = [0]> (x0) s1 = Add (s, x) m = ReduceSum <axes = [0]> (s1) o = Add (m, s)
        c1 = Identity (c) }>

# float[2] a => float[2] p, float[T,2] Y
no trips
    p, Y = Loop (0, True, a) <body = d STEP { s1 = Add (s, s) o = Identity (s1) c1 = Identity (c) }>
as many trips as a negative quotient says, which is rounded towards 0
    q = Div (-7, 2) M = Neg (q) p, Y = Loop (M, True, a) <body = d STEP { s1 = Add (s, s) o = Identity (s1)
        c1 = Identity (c) }>
trips of shape 1
    p, Y = Loop ([100], True, a) <body = d STEP { s1 = Add (s, s) o = Identity (s1) c1 = Less (i, 2) }>
a body that returns its inputs, one first value for two states, one that is never read
    p, q, r, Y = Loop (3, True, a, a, a) <body = d (int64 i, bool c, float[2] s, float[2] t, float[2] u)
        => (bool c, float[2] t, float[2] s1, float[2] u, float[2] t) { s1 = Add (s, t) }>

# float[2] a, float[T,2] X => float[2] p, float[T,2] Y
as many trips as rows
    sh = Shape (X) M = Gather (sh, 0) p, Y = Loop (M, True, a) <body = d STEP { x = Gather (X, i) s1 = Add (s, x)
        o = Mul (s1, s1) c1 = Identity (c) }>
rows that a Slice takes
    sh = Shape (X) M = Gather (sh, 0) p, Y = Loop (M, True, a) <body = d STEP { k = Unsqueeze (i, [0])
        n = Add (k, [1]) cut = Slice (X, k, n, [0]) x = Squeeze (cut, [0]) s1 = Add (s, x) o = Identity (x)
        c1 = Identity (c) }>

# float[2] a, float[5,2] X, int64[2] axes => float[2] p, float[T,2] Y
a Slice along axes that are an input
    p, Y = Loop (3, True, a) <body = d STEP { cut = Slice (X, [0, 1], [2147483647, 2147483647], axes)
        rows = Shape <end = 1> (cut) n = CastLike (rows, s) s1 = Add (s, n) o = Identity (s1) c1 = Identity (c) }>

# float[2] a => float[2] p
a loop without end
    p = Loop ("", "", a) <body = d (int64 i, bool c, float[2] s) => (bool c1, float[2] s1) { s1 = Add (s, s)
        c1 = Identity (c) }>

# float[2] a, float[N,2] X => float[2] p, float[T,2] Y
the last 3 rows of an axis that may have fewer
    p, Y = Loop (3, True, a) <body = d STEP { cut = Slice (X, [-3], [2147483647], [0]) rows = Shape <end = 1> (cut)
        n = CastLike (rows, s) s1 = Add (s, n) o = Identity (s1) c1 = Identity (c) }>

# float[2] a => float[2] p, float[T] Y
a float32 counter is rounded
    p, t, Y = Loop ("", True, a, 0.0) <body = b (int64 i, bool c, float[2] s, float t)
        => (bool c1, float[2] s1, float t1, float o) { s1 = Add (s, s) t1 = Add (t, 0.1) o = Identity (t1)
        c1 = Less (t1, 1.0) }>

# float[2] a, float[5,2] X => float[2] p, float[T,2] Y <int32 k0 = {4}, int32 two = {2}, int32 z = {0}>
a counter that goes down by 2, and rows from the end
    p, k, Y = Loop ("", True, a, k0) <body = b (int64 i, bool c, float[2] s, int32 k)
        => (bool c1, float[2] s1, int32 k1, float[2] o) { x = Gather (X, k) s1 = Add (s, x) k1 = Sub (k, two)
        o = Identity (s1) c1 = GreaterOrEqual (k1, z) }>

# float[2] a, float e => float[2] p
a condition on data
    p = Loop (4, True, a) <body = d (int64 i, bool c, float[2] s) => (bool c1, float[2] s1) { s1 = Add (s, s)
        m = ReduceMax <keepdims = 0> (s1) c1 = Less (m, e) }>

# float[2] a, int64 n => float[2] p
trips that are an input
    p = Loop (n, True, a) <body = d (int64 i, bool c, float[2] s) => (bool c1, float[2] s1) { s1 = Add (s, s)
        c1 = Identity (c) }>
trips that are set
    p = Loop (n, True, a) <body = d (int64 i, bool c, float[2] s) => (bool c1, float[2] s1) { s1 = Add (s, s)
        c1 = Identity (c) }>

# float[1,2] a, float[5,2] X => float[K,2] p
a state that grows
    p = Loop (5, True, a) <body = d (int64 i, bool c, float[?,2] s) => (bool c1, float[?,2] s1) { x = Gather (X, i)
        y = Unsqueeze (x, [0]) s1 = Concat <axis = 0> (s, y) c1 = Identity (c) }>

# float[1,2] a => float[K,2] p
a state that doubles
    p = Loop (3, True, a) <body = d (int64 i, bool c, float[?,2] s) => (bool c1, float[?,2] s1) {
        s1 = Concat <axis = 0> (s, s) c1 = Identity (c) }>

# float[5,2] a, float[5,2] X => float[5,2] p
rows that a state scatters
    p = Loop (5, True, a) <body = d (int64 i, bool c, float[5,2] s) => (bool c1, float[5,2] s1) <int64[1] ax = {0}>
        { x = Gather (X, i) y = Unsqueeze (x, ax) k = Reshape (i, [1, 1]) z = Mul (y, y) s1 = ScatterND (s, k, z)
        c1 = Identity (c) }>

# float[2] a, float[2,4,3] X, float[4,2] Z => float[2] p, float[2,T,3] Y, float[T,2] V
axes and directions of a Scan
    p, Y, V = Scan <num_scan_inputs = 2, scan_input_axes = [-2, 0], scan_input_directions = [1, 0],
        scan_output_axes = [1, -2], scan_output_directions = [0, 1], body = d (float[2] s, float[2,3] x, float[2] z)
        => (float[2] s1, float[2,3] y, float[2] v) <int64[1] ax = {1}> { m = ReduceSum <keepdims = 0> (x, ax)
        n = Add (m, z) s1 = Add (s, n) y = Mul (x, x) v = Mul (s1, z) }> (a, X, Z)

# float[2] a, float[3,2] X, bool k => float[2] p
a Loop in a Loop, in a branch of an If
    p = If (k) <then_branch = u () => (float[2] q) { q = Loop (3, True, a) <body = d (int64 i, bool c, float[2] s)
        => (bool c1, float[2] s1) { x = Gather (X, i) r = Loop (2, True, s) <body = e (int64 j, bool g, float[2] t)
        => (bool g1, float[2] t1) { w = Mul (t, x) t1 = Add (w, x) g1 = Identity (g) }> s1 = Add (r, x)
        c1 = Identity (c) }> }, else_branch = v () => (float[2] e) { e = Identity (a) }>

# float[2] a, float[4,2] X => float[2] p, float[2,T] Y
states before each step, stacked along axis 1 from the last one on, and rows that nothing reads
    p, V, Y = Scan <num_scan_inputs = 1, scan_output_axes = [0, 1], scan_output_directions = [0, 1],
        body = d (float[2] s, float[2] x) => (float[2] s1, float[2] x, float[2] s) { s1 = Tanh (s) }> (a, X)

# float[4,2] X => float[T,2] Y
a map: no state
    Y = Scan <num_scan_inputs = 1, body = d (float[2] x) => (float[2] y) { y = Mul (x, x) }> (X)

# float[1,2] a, float[1,4,2] X => float[1,2] p
a Scan of opset 8
    p = Scan <num_scan_inputs = 1, body = d (float[2] s, float[2] x) => (float[2] s1) { s1 = Add (s, x)
        }> ("", a, X)

# float[2] a, float[5,2] X => float[5,2] Y, float[2] L
a list
    e = SequenceEmpty () p, list = Loop (5, True, a, e) <body = d (int64 i, bool c, float[2] s, seq(float[2]) l)
        => (bool c1, float[2] s1, seq(float[2]) l1) { x = Gather (X, i) s1 = Add (s, x) l1 = SequenceInsert (l, s1)
        c1 = Identity (c) }> Y = ConcatFromSequence <axis = 0, new_axis = 1> (list) L = SequenceAt (list, -1)

# float[2] a, float[5,2] X => float[2] p
the elements of a split sequence
    l = SplitToSequence <axis = 0, keepdims = 0> (X) M = SequenceLength (l)
        p = Loop (M, True, a) <body = d (int64 i, bool c, float[2] s) => (bool c1, float[2] s1) {
        x = SequenceAt (l, i) s1 = Add (s, x) c1 = Identity (c) }>

# float[2,3] a, float[T,2,3] X => float[2,3] p
the row at a row of a Range, and a Slice without steps
    sh = Shape (X) M = Gather (sh, 0) r = Range (0, M, 1) p = Loop (M, True, a) <body = d (int64 i, bool c,
        float[2,3] s) => (bool c1, float[2,3] s1) { k = Gather (r, i) k0 = Unsqueeze (k, [0]) k1 = Add (k0, [1])
        cut = Slice (X, k0, k1, [0]) x = Squeeze (cut, [0]) s1 = Add (s, x) c1 = Identity (c) }>
a Gather at a place of shape 1, and what Squeeze leaves of it
    sh = Shape (X) M = Gather (sh, 0) p = Loop (M, True, a) <body = d (int64 i, bool c, float[2,3] s)
        => (bool c1, float[2,3] s1) { k = Reshape (i, [1]) g = Gather (X, k) x = Squeeze (g, [0]) s1 = Add (s, x)
        c1 = Identity (c) }>
every other row, at a row of a Range
    sh = Shape (X) N = Gather (sh, 0) r = Range (0, N, 2) w = Shape (r) M = Squeeze (w, [0])
        p = Loop (M, True, a) <body = d (int64 i, bool c, float[2,3] s) => (bool c1, float[2,3] s1) {
        k = Gather (r, i) x = Gather (X, k) s0 = Mul (s, 0.5) s1 = Add (s0, x) c1 = Identity (c) }>
rows from the last on, at a row of a Range that a negative number takes
    r = Range (0, 3, 1) p = Loop (3, True, a) <body = d (int64 i, bool c, float[2,3] s)
        => (bool c1, float[2,3] s1) { m = Sub (i, 3) k = Gather (r, m) x = Gather (X, k) s0 = Mul (s, 0.5)
        s1 = Add (s0, x) c1 = Identity (c) }>
a branch that nothing reads takes rows
    sh = Shape (X) M = Gather (sh, 0) p = Loop (M, True, a) <body = d (int64 i, bool c, float[2,3] s)
        => (bool c1, float[2,3] s1) { x = Gather (X, i) l, r = Split <axis = 1> (x, [1, 2])
        v = Concat <axis = 1> (r, l) k = Less (i, 0) w = If (k) <then_branch = u () => (float[2,3] t) {
        t = Add (x, v) }, else_branch = q () => (float[2,3] e) { e = Sub (x, v) }> s1 = Add (s, x) c1 = Identity (c)
        }>
""")
STEP = "(int64 i, bool c, float[2] s) => (bool c1, float[2] s1, float[2] o)"

FEEDS: dict[str, list[Arrays]] = {
    "swapped states and a stacked x": [{"b": numbers(2) + 1}],
    "rows that no step reads": [{"b": numbers(2) + 1}],
    "as many trips as rows": [{"X": numbers(n, 2)} for n in (5, 1, 0)],
    "rows that a Slice takes": [{"X": numbers(n, 2)} for n in (5, 1, 0)],
    "a Slice along axes that are an input": [{"axes": np.asarray(axes)} for axes in ([0, 1], [1, 0])],
    "a loop without end": [],
    "the last 3 rows of an axis that may have fewer": [{"X": numbers(n, 2)} for n in (5, 2, 0)],
    "a condition on data": [{"e": np.asarray(1, np.float32)}],
    "trips that are an input": [{"n": np.asarray(3)}],
    "trips that are set": [{"n": np.asarray(3)}],
    "a Loop in a Loop, in a branch of an If": [{"k": np.asarray(k)} for k in (True, False)],
    "a Scan of opset 8": [],
    "the row at a row of a Range, and a Slice without steps": [{"X": numbers(n, 2, 3)} for n in (3, 1, 0)],
    "a Gather at a place of shape 1, and what Squeeze leaves of it": [{"X": numbers(n, 2, 3)} for n in (3, 1)],
    "every other row, at a row of a Range": [{"X": numbers(n, 2, 3)} for n in (4, 3, 1, 0)],
    "rows from the last on, at a row of a Range that a negative number takes": [{"X": numbers(3, 2, 3)}],
    "a branch that nothing reads takes rows": [{"X": numbers(n, 2, 3)} for n in (3, 1, 0)],
}
"""Inputs of each run beside those that `numbers` gives; one run where there is no entry."""

OPSETS = {
    "no state that changes, before Loops without states": 10,
    "a Scan of opset 8": 8,
    "axes are attributes": 10,
}
REFUSED = {
    "a loop without end": {"unroll": "more than 512 steps", "scan": "not known before it starts"},
    "a condition on data": {"unroll": "depends on data", "scan": "depends on data"},
    "trips that are an input": {"unroll": "not known"},
    "a state that doubles": {"scan": "shape"},
    "a Scan of opset 8": {"*": "opset 8"},
    "a list": {"scan": "its state 'l' is a sequence, which a Scan cannot carry"},
}
FIXES = {"trips that are set": {"set_inputs": {"n": 3}}}


def _trap(head: str, name: str, nodes: str) -> Trap:
    ends, _, held = head.partition(" <")
    inputs, _, outputs = ends.partition(" => ")
    held = f"<{held}" if held else ""
    text = f"g ({inputs}) => ({outputs}) {held} {{ {nodes.replace('STEP', STEP)} }}"
    model = net(text, opset=OPSETS.get(name, 17))
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in model.graph.input}
    runs = FEEDS.get(name, [{}])
    feeds = [{n: given[n] if n in given else numbers(*shape) for n, shape in shapes.items()} for given in runs]
    return Trap(name, model, feeds, FIXES.get(name, {}), REFUSED.get(name, {}))


TRAPS = [_trap(*row) for row in NETS]
