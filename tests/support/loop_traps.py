"""Small models, each with a trap of Loop or Scan, and what each form makes of it."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from cases import Arrays
from texts import parse


@dataclass(frozen=True)
class Trap:
    """A model that may be misread.

    Attributes:
        name: What is special.
        text: The main graph, with what comes after its name.
        feeds: The inputs of each run.
        opset: Its opset.
        fix: The keywords of `lower`.
        refused: For each form that is refused a part of the message; "*" for all.
    """

    name: str
    text: str
    feeds: list[Arrays]
    opset: int = 17
    fix: dict[str, Any] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    @property
    def model(self) -> onnx.ModelProto:
        return parse(f"g {self.text}", self.opset)

    def refusal(self, form: str) -> str:
        return self.refused.get(form, self.refused.get("*", ""))


def numbers(*shape: int) -> Any:
    return (np.arange(np.prod(shape, dtype=int)).reshape(shape) / 7 - 0.6).astype(np.float32)


STEP = """(int64 i, bool c, float[2] s) => (bool c1, float[2] s1, float[2] o)"""
X, S = numbers(5, 2), numbers(2)
YES = "bool yes = {1}"

TRAPS = [
    Trap(
        "swapped states and a stacked x",
        """(float[2] a, float[2] b, float[5,2] X) => (float[2] p, float[2] q, float[T,2] Y)
        { p, q, Y = Scan <num_scan_inputs = 1, body = d (float[2] s, float[2] t, float[2] x)
            => (float[2] t1, float[2] s1, float[2] y) { t1 = Add (t, x) s1 = Identity (s) y = Identity (x) }>
          (a, b, X) }""",
        [{"a": S, "b": S + 1, "X": X}],
    ),
    Trap(
        "the number of the step is stacked",
        f"""(float[2] a) => (float[2] p, int64[T] Y) <{YES}, int64 M = {{4}}>
        {{ p, Y = Loop (M, yes, a) <body = d (int64 i, bool c, float[2] s) => (bool c, float[2] s1, int64 i)
            {{ s1 = Add (s, s) }}> }}""",
        [{"a": S}],
    ),
    Trap(
        "names of the body are names outside",
        f"""(float[2] s, float[5,2] X) => (float[2] Z, float[T,2] Y) <{YES}, int64 M = {{5}}, float[2] W = {{1, 2}}>
        {{ p, Y = Loop (M, yes, s) <body = d (int64 i, bool c, float[2] s) => (bool c1, float[2] s1, float[2] o)
            <float[2] W = {{3, 4}}>
            {{ x = Gather (X, i) w = Mul (x, W) s1 = Add (s, w) o = Mul (s1, W) c1 = Identity (c) }}>
          w = Mul (p, W) Z = Add (w, W) }}""",
        [{"s": S, "X": X}],
    ),
    Trap(
        "the first condition is false",
        f"""(float[2] a, float[5,2] X) => (float[2] p, float[T,2] Y) <bool no = {{0}}, int64 M = {{4}}>
        {{ p, Y = Loop (M, no, a) <body = d {STEP} {{ s1 = Add (s, s) o = Identity (s1) c1 = Identity (c) }}> }}""",
        [{"a": S, "X": X}],
    ),
    Trap(
        "no trips",
        f"""(float[2] a) => (float[2] p, float[T,2] Y) <{YES}, int64 M = {{0}}>
        {{ p, Y = Loop (M, yes, a)
            <body = d {STEP} {{ s1 = Add (s, s) o = Identity (s1) c1 = Identity (c) }}> }}""",
        [{"a": S}],
    ),
    Trap(
        "as many trips as rows",
        f"""(float[2] a, float[T,2] X) => (float[2] p, float[T,2] Y) <{YES}, int64 z = {{0}}>
        {{ sh = Shape (X) M = Gather (sh, z) p, Y = Loop (M, yes, a) <body = d {STEP}
            {{ x = Gather (X, i) s1 = Add (s, x) o = Mul (s1, s1) c1 = Identity (c) }}> }}""",
        [{"a": S, "X": numbers(n, 2)} for n in (5, 1, 0)],
    ),
    Trap(
        "a Slice along axes that are an input",
        f"""(float[2] a, float[5,2] X, int64[2] axes) => (float[2] p, float[T,2] Y)
        <{YES}, int64 M = {{3}}, int64[2] starts = {{0, 1}}, int64[2] ends = {{2147483647, 2147483647}}>
        {{ p, Y = Loop (M, yes, a) <body = d {STEP}
            {{ cut = Slice (X, starts, ends, axes) rows = Shape <end = 1> (cut) n = CastLike (rows, s)
               s1 = Add (s, n) o = Identity (s1) c1 = Identity (c) }}> }}""",
        [{"a": S, "X": X, "axes": np.asarray(axes)} for axes in ([0, 1], [1, 0])],
    ),
    Trap(
        "a loop without end",
        """(float[2] a) => (float[2] p) { p = Loop ("", "", a) <body = d (int64 i, bool c, float[2] s)
            => (bool c1, float[2] s1) { s1 = Add (s, s) c1 = Identity (c) }> }""",
        [],
        refused={"unroll": "more than 512 steps", "scan": "not known before it starts"},
    ),
    Trap(
        "as many trips as a negative quotient says, which is rounded towards 0",
        f"""(float[2] a) => (float[2] p, float[T,2] Y) <{YES}, int64 minus = {{-7}}, int64 two = {{2}}>
        {{ q = Div (minus, two) M = Neg (q) p, Y = Loop (M, yes, a) <body = d {STEP}
            {{ s1 = Add (s, s) o = Identity (s1) c1 = Identity (c) }}> }}""",
        [{"a": S}],
    ),
    Trap(
        "the last 3 rows of an axis that may have fewer",
        f"""(float[2] a, float[N,2] X) => (float[2] p, float[T,2] Y)
        <{YES}, int64 M = {{3}}, int64[1] start = {{-3}}, int64[1] end = {{2147483647}}, int64[1] axis = {{0}}>
        {{ p, Y = Loop (M, yes, a) <body = d {STEP}
            {{ cut = Slice (X, start, end, axis) rows = Shape <end = 1> (cut) n = CastLike (rows, s)
               s1 = Add (s, n) o = Identity (s1) c1 = Identity (c) }}> }}""",
        [{"a": S, "X": X}, {"a": S, "X": X[:2]}, {"a": S, "X": X[:0]}],
    ),
    Trap(
        "trips of shape 1",
        """(float[2] a) => (float[2] p, float[T,2] Y) <bool yes = {1}, int64[1] M = {100}, int64 two = {2}>
        { p, Y = Loop (M, yes, a) <body = d (int64 i, bool c, float[2] s) => (bool c1, float[2] s1, float[2] o)
            { s1 = Add (s, s) o = Identity (s1) c1 = Less (i, two) }> }""",
        [{"a": S}],
    ),
    Trap(
        "a float32 counter is rounded",
        f"""(float[2] a) => (float[2] p, float[T] Y) <{YES}, float t0 = {{0}}, float d = {{0.1}}, float e = {{1}}>
        {{ p, t, Y = Loop ("", yes, a, t0) <body = b (int64 i, bool c, float[2] s, float t)
            => (bool c1, float[2] s1, float t1, float o)
            {{ s1 = Add (s, s) t1 = Add (t, d) o = Identity (t1) c1 = Less (t1, e) }}> }}""",
        [{"a": S}],
    ),
    Trap(
        "a counter that goes down by 2, and rows from the end",
        f"""(float[2] a, float[5,2] X) => (float[2] p, float[T,2] Y)
        <{YES}, int32 k0 = {{4}}, int32 two = {{2}}, int32 z = {{0}}>
        {{ p, k, Y = Loop ("", yes, a, k0) <body = b (int64 i, bool c, float[2] s, int32 k)
            => (bool c1, float[2] s1, int32 k1, float[2] o)
            {{ x = Gather (X, k) s1 = Add (s, x) k1 = Sub (k, two) o = Identity (s1)
               c1 = GreaterOrEqual (k1, z) }}> }}""",
        [{"a": S, "X": X}],
    ),
    Trap(
        "a condition on data",
        f"""(float[2] a, float e) => (float[2] p) <{YES}, int64 M = {{4}}>
        {{ p = Loop (M, yes, a) <body = d (int64 i, bool c, float[2] s) => (bool c1, float[2] s1)
            {{ s1 = Add (s, s) m = ReduceMax <keepdims = 0> (s1) c1 = Less (m, e) }}> }}""",
        [{"a": S, "e": np.asarray(1, np.float32)}],
        refused={"unroll": "depends on data", "scan": "depends on data"},
    ),
    Trap(
        "trips that are an input",
        f"""(float[2] a, int64 n) => (float[2] p) <{YES}>
        {{ p = Loop (n, yes, a) <body = d (int64 i, bool c, float[2] s) => (bool c1, float[2] s1)
            {{ s1 = Add (s, s) c1 = Identity (c) }}> }}""",
        [{"a": S, "n": np.asarray(3)}],
        refused={"unroll": "not known"},
    ),
    Trap(
        "trips that are set",
        f"""(float[2] a, int64 n) => (float[2] p) <{YES}>
        {{ p = Loop (n, yes, a) <body = d (int64 i, bool c, float[2] s) => (bool c1, float[2] s1)
            {{ s1 = Add (s, s) c1 = Identity (c) }}> }}""",
        [{"a": S, "n": np.asarray(3)}],
        fix={"set_inputs": {"n": 3}},
    ),
    Trap(
        "a state that grows",
        f"""(float[1,2] a, float[5,2] X) => (float[K,2] p) <{YES}, int64 M = {{5}}, int64[1] ax = {{0}}>
        {{ p = Loop (M, yes, a) <body = d (int64 i, bool c, float[?,2] s) => (bool c1, float[?,2] s1)
            {{ x = Gather (X, i) y = Unsqueeze (x, ax) s1 = Concat <axis = 0> (s, y) c1 = Identity (c) }}> }}""",
        [{"a": numbers(1, 2), "X": X}],
    ),
    Trap(
        "a state that doubles",
        f"""(float[1,2] a) => (float[K,2] p) <{YES}, int64 M = {{3}}>
        {{ p = Loop (M, yes, a) <body = d (int64 i, bool c, float[?,2] s) => (bool c1, float[?,2] s1)
            {{ s1 = Concat <axis = 0> (s, s) c1 = Identity (c) }}> }}""",
        [{"a": numbers(1, 2)}],
        refused={"scan": "shape"},
    ),
    Trap(
        "rows that a state scatters",
        f"""(float[5,2] a, float[5,2] X) => (float[5,2] p) <{YES}, int64 M = {{5}}, int64[2] sh = {{1, 1}}>
        {{ p = Loop (M, yes, a) <body = d (int64 i, bool c, float[5,2] s) => (bool c1, float[5,2] s1)
            <int64[1] ax = {{0}}>
            {{ x = Gather (X, i) y = Unsqueeze (x, ax) k = Reshape (i, sh) z = Mul (y, y)
               s1 = ScatterND (s, k, z) c1 = Identity (c) }}> }}""",
        [{"a": numbers(5, 2), "X": X}],
    ),
    Trap(
        "axes and directions of a Scan",
        """(float[2] a, float[2,4,3] X, float[4,2] Z) => (float[2] p, float[2,T,3] Y, float[T,2] V)
        { p, Y, V = Scan <num_scan_inputs = 2, scan_input_axes = [-2, 0], scan_input_directions = [1, 0],
            scan_output_axes = [1, -2], scan_output_directions = [0, 1],
            body = d (float[2] s, float[2,3] x, float[2] z) => (float[2] s1, float[2,3] y, float[2] v)
            <int64[1] ax = {1}> { m = ReduceSum <keepdims = 0> (x, ax) n = Add (m, z) s1 = Add (s, n)
               y = Mul (x, x) v = Mul (s1, z) }> (a, X, Z) }""",
        [{"a": S, "X": numbers(2, 4, 3), "Z": numbers(4, 2)}],
    ),
    Trap(
        "an If on a counter, and one on data",
        f"""(float[2] a, float[5,2] X) => (float[2] p, float[T,2] Y) <{YES}, int64 M = {{5}}, int64 two = {{2}}>
        {{ p, Y = Loop (M, yes, a) <body = d {STEP} {{
            x = Gather (X, i) k = Less (i, two)
            y = If (k) <then_branch = u () => (float[2] t) {{ t = Add (x, s) }},
                        else_branch = v () => (float[2] e) {{ e = Sub (x, s) }}>
            m = ReduceMax <keepdims = 0> (y) pos = Less (m, one)
            s1 = If (pos) <then_branch = u () => (float[2] t) {{ w = Add (x, y) t = Add (w, x) }},
                           else_branch = v () => (float[2] e) {{ e = Identity (y) }}>
            o = Identity (s1) c1 = Identity (c) }}> }}""".replace("int64 two", "float one = {0.5}, int64 two"),
        [{"a": S, "X": X}],
    ),
    Trap(
        "a Loop in a Loop, in a branch of an If",
        f"""(float[2] a, float[3,2] X, bool k) => (float[2] p) <{YES}, int64 M = {{3}}, int64 two = {{2}}>
        {{ p = If (k) <then_branch = u () => (float[2] q) {{
            q = Loop (M, yes, a) <body = d (int64 i, bool c, float[2] s) => (bool c1, float[2] s1)
            {{ x = Gather (X, i)
               r = Loop (two, yes, s) <body = e (int64 j, bool g, float[2] t) => (bool g1, float[2] t1)
                {{ w = Mul (t, x) t1 = Add (w, x) g1 = Identity (g) }}>
               s1 = Add (r, x) c1 = Identity (c) }}> }},
            else_branch = v () => (float[2] e) {{ e = Identity (a) }}> }}""",
        [{"a": S, "X": numbers(3, 2), "k": np.asarray(k)} for k in (True, False)],
    ),
    Trap(
        "a body that returns its inputs, one first value for two states, one that is never read",
        f"""(float[2] a) => (float[2] p, float[T,2] Y) <{YES}, int64 M = {{3}}>
        {{ p, q, r, Y = Loop (M, yes, a, a, a) <body = d (int64 i, bool c, float[2] s, float[2] t, float[2] u)
            => (bool c, float[2] t, float[2] s1, float[2] u, float[2] t) {{ s1 = Add (s, t) }}> }}""",
        [{"a": S}],
    ),
    Trap(
        "a map: no state",
        """(float[4,2] X) => (float[T,2] Y) { Y = Scan <num_scan_inputs = 1, body = d (float[2] x) => (float[2] y)
            { y = Mul (x, x) }> (X) }""",
        [{"X": numbers(4, 2)}],
    ),
    Trap(
        "rows that no step reads",
        """(float[2] a, float[2] b, float[5,2] X) => (float[2] p, float[2] q, float[T,2] Y)
        { p, q, Y = Scan <num_scan_inputs = 1, body = d (float[2] s, float[2] t, float[2] x)
            => (float[2] s1, float[2] t1, float[2] y) { s1 = Add (s, t) t1 = Identity (s) y = Mul (s, t) }>
          (a, b, X) }""",
        [{"a": S, "b": S + 1, "X": X}],
    ),
    Trap(
        "no state that changes, before Loops without states",
        f"""(float[2] a, float[5,2] X) => (float[2] p, float[T,2] Y) <{YES}, int64 M = {{5}}>
        {{ p, Y = Loop (M, yes, a) <body = d {STEP}
            {{ x = Gather (X, i) o = Add (s, x) s1 = Identity (s) c1 = Identity (c) }}> }}""",
        [{"a": S, "X": X}],
        opset=10,
    ),
    Trap(
        "a Scan of opset 8",
        """(float[1,2] a, float[1,4,2] X) => (float[1,2] p) { p = Scan <num_scan_inputs = 1,
            body = d (float[2] s, float[2] x) => (float[2] s1) { s1 = Add (s, x) }> ("", a, X) }""",
        [],
        opset=8,
        refused={"*": "opset 8"},
    ),
    Trap(
        "axes are attributes",
        f"""(float[2] a, float[5,2] X) => (float[2] p, float[T,2] Y) <{YES}, int64 M = {{5}}>
        {{ p, Y = Loop (M, yes, a) <body = d {STEP} <int64[1] z = {{0}}>
            {{ k = Unsqueeze <axes = [0]> (i) x0 = Gather (X, k) x = Squeeze <axes = [0]> (x0) s1 = Add (s, x)
               m = ReduceSum <axes = [0]> (s1) o = Add (m, s) c1 = Identity (c) }}> }}""",
        [{"a": S, "X": X}],
        opset=10,
    ),
    Trap(
        "a list",
        f"""(float[2] a, float[5,2] X) => (float[5,2] Y, float[2] L) <{YES}, int64 M = {{5}}, int64 last = {{-1}}>
        {{ e = SequenceEmpty ()
          p, list = Loop (M, yes, a, e) <body = d (int64 i, bool c, float[2] s, seq(float[2]) l)
            => (bool c1, float[2] s1, seq(float[2]) l1)
            {{ x = Gather (X, i) s1 = Add (s, x) l1 = SequenceInsert (l, s1) c1 = Identity (c) }}>
          Y = ConcatFromSequence <axis = 0, new_axis = 1> (list) L = SequenceAt (list, last) }}""",
        [{"a": S, "X": X}],
        refused={"scan": "its state 'l' is a sequence, which a Scan cannot carry"},
    ),
    Trap(
        "the elements of a split sequence",
        f"""(float[2] a, float[5,2] X) => (float[2] p) <{YES}>
        {{ l = SplitToSequence <axis = 0, keepdims = 0> (X) M = SequenceLength (l)
          p = Loop (M, yes, a) <body = d (int64 i, bool c, float[2] s) => (bool c1, float[2] s1)
            {{ x = SequenceAt (l, i) s1 = Add (s, x) c1 = Identity (c) }}> }}""",
        [{"a": S, "X": X}],
    ),
    Trap(
        "a branch that nothing reads takes rows",
        f"""(float[2,3] a, float[T,2,3] X) => (float[2,3] p) <{YES}, int64 z = {{0}}, int64[2] sz = {{1, 2}}>
        {{ sh = Shape (X) M = Gather (sh, z)
          p = Loop (M, yes, a) <body = d (int64 i, bool c, float[2,3] s) => (bool c1, float[2,3] s1)
            {{ x = Gather (X, i) l, r = Split <axis = 1> (x, sz) v = Concat <axis = 1> (r, l) k = Less (i, z)
               w = If (k) <then_branch = u () => (float[2,3] t) {{ t = Add (x, v) }},
                           else_branch = q () => (float[2,3] e) {{ e = Sub (x, v) }}>
               s1 = Add (s, x) c1 = Identity (c) }}> }}""",
        [{"a": numbers(2, 3), "X": numbers(n, 2, 3)} for n in (3, 1, 0)],
    ),
]
