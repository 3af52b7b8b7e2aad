"""Cells with masks: those that are lengths, and those that are none.

Each is `before | scanned | step`: nodes before the Scan, what it scans beside X, and the nodes of a step, which has
a row x [2, 3], rows m of what is scanned, and the states h and c [2, 4]. `steps` is the number of rows of X, `lens`
an input [2]. `new` is the new state, `old` is h; the step gives h1, and y if it is stacked.
"""

import re
from dataclasses import dataclass

import numpy as np
import onnx
from cases import Arrays
from odd_cells import MACROS
from stream_models import net, rows

LENGTHS = """
Where, of rows that Range makes
    RANGE a = Unsqueeze (r, [1]) b = Unsqueeze (lens, [0]) m0 = Less (a, b) | bool m = m0 | NEW
        k = Unsqueeze (m, [1]) h1 = Where (k, new, h) y = Where (k, new, 0.0)
products of a mask of floats
    RANGE a = Unsqueeze (r, [1]) b = Unsqueeze (lens, [0]) l = Less (a, b) m0 = Cast <to = 1> (l) | float m = m0
        | NEW
        k = Unsqueeze (m, [1]) p = Mul (k, new) q = Sub (1.0, k) s = Mul (h, q) h1 = Add (p, s) y = Mul (new, k)
the difference times the mask
    RANGE a = Unsqueeze (r, [1]) b = Unsqueeze (lens, [0]) l = Less (a, b) m0 = Cast <to = 1> (l) | float m = m0
        | NEW
        k = Unsqueeze (m, [1]) d = Sub (new, h) e = Mul (k, d) h1 = Add (h, e) y = Mul (k, h1)
a mask [batch, time] that is transposed
    RANGE a = Unsqueeze (r, [0]) b = Unsqueeze (lens, [1]) l = Less (a, b) m0 = Transpose <perm = [1, 0]> (l)
        | bool m = m0 | NEW k = Unsqueeze (m, [1]) h1 = Where (k, new, h) y = Where (k, new, 0.0)
not at or behind the end
    RANGE a = Unsqueeze (r, [1]) b = Unsqueeze (lens, [0]) m0 = GreaterOrEqual (a, b) | bool m = m0 | NEW
        k = Unsqueeze (m, [1]) h1 = Where (k, h, new) y = Where (k, 0.0, new)
at most the last frame
    RANGE a = Unsqueeze (r, [1]) last = Sub (lens, 1) b = Unsqueeze (last, [0]) m0 = LessOrEqual (a, b)
        | bool m = m0 | NEW k = Unsqueeze (m, [1]) h1 = Where (k, new, h) y = Where (k, new, 0.0)
only the last state
    RANGE a = Unsqueeze (r, [1]) b = Unsqueeze (lens, [0]) m0 = Less (a, b) | bool m = m0 | NEW
        k = Unsqueeze (m, [1]) h1 = Where (k, new, h)
both states of an LSTM
    RANGE a = Unsqueeze (r, [1]) b = Unsqueeze (lens, [0]) m0 = Less (a, b) | bool m = m0 | LSTM
        k = Unsqueeze (m, [1]) h1 = Where (k, new, h) c1 = Where (k, newc, c) y = Where (k, new, 0.0)
a GRU
    RANGE a = Unsqueeze (r, [1]) b = Unsqueeze (lens, [0]) m0 = Less (a, b) | bool m = m0 | GRU
        k = Unsqueeze (m, [1]) h1 = Where (k, new, h) y = Where (k, new, 0.0)
lengths that are clamped before
    RANGE n = Min (lens, steps) a = Unsqueeze (r, [1]) b = Unsqueeze (n, [0]) m0 = Less (a, b) | bool m = m0 | NEW
        k = Unsqueeze (m, [1]) h1 = Where (k, new, h) y = Where (k, new, 0.0)
rank 3 before the Scan
    RANGE a = Unsqueeze (r, [1, 2]) b = Unsqueeze (lens, [0, 2]) m0 = Less (a, b) | bool m = m0 | NEW
        h1 = Where (m, new, h) y = Where (m, new, 0.0)
"""
"""Each is raised, with sequence_lens."""

NONE = """
any frames
    | bool m = given | NEW k = Unsqueeze (m, [1]) h1 = Where (k, new, h) y = Where (k, new, 0.0)
frames that are zeros
    a = Abs (X) b = ReduceMax <axes = [2], keepdims = 0> (a) m0 = Greater (b, 1.0) | bool m = m0 | NEW
        k = Unsqueeze (m, [1]) h1 = Where (k, new, h) y = Where (k, new, 0.0)
the last state is repeated
    RANGE a = Unsqueeze (r, [1]) b = Unsqueeze (lens, [0]) m0 = Less (a, b) | bool m = m0 | NEW
        k = Unsqueeze (m, [1]) h1 = Where (k, new, h) y = Identity (h1)
ones behind the end
    RANGE a = Unsqueeze (r, [1]) b = Unsqueeze (lens, [0]) m0 = Less (a, b) | bool m = m0 | NEW
        k = Unsqueeze (m, [1]) h1 = Where (k, new, h) y = Where (k, new, 1.0)
what the step would give behind the end
    RANGE a = Unsqueeze (r, [1]) b = Unsqueeze (lens, [0]) m0 = Less (a, b) | bool m = m0 | NEW
        k = Unsqueeze (m, [1]) h1 = Where (k, new, h) y = Identity (new)
zeros are the state behind the end
    RANGE a = Unsqueeze (r, [1]) b = Unsqueeze (lens, [0]) m0 = Less (a, b) | bool m = m0 | NEW
        k = Unsqueeze (m, [1]) h1 = Where (k, new, 0.0) y = Identity (h1)
old and new in each other's place
    RANGE a = Unsqueeze (r, [1]) b = Unsqueeze (lens, [0]) m0 = Less (a, b) | bool m = m0 | NEW
        k = Unsqueeze (m, [1]) h1 = Where (k, h, new) y = Where (k, 0.0, new)
only h has the mask
    RANGE a = Unsqueeze (r, [1]) b = Unsqueeze (lens, [0]) m0 = Less (a, b) | bool m = m0 | LSTM
        k = Unsqueeze (m, [1]) h1 = Where (k, new, h) c1 = Identity (newc) y = Where (k, new, 0.0)
a first state that is not zero
    RANGE a = Unsqueeze (r, [1]) b = Unsqueeze (lens, [0]) m0 = Less (a, b) | bool m = m0 | GIVEN NEW
        k = Unsqueeze (m, [1]) h1 = Where (k, new, h) y = Where (k, new, 0.0)
the other sequence's mask is used too
    RANGE a = Unsqueeze (r, [1]) b = Unsqueeze (lens, [0]) m0 = Less (a, b) | bool m = m0 | NEW
        k = Unsqueeze (m, [1]) f = Gather <axis = 0> (k, [1, 0]) g = And (k, f) h1 = Where (g, new, h)
        y = Where (g, new, 0.0)
lengths that are fractions
    RANGE f = Cast <to = 1> (lens) n = Mul (f, 0.7) g = Cast <to = 1> (r) a = Unsqueeze (g, [1]) b = Unsqueeze
        (n, [0])
        m0 = Less (a, b) | bool m = m0 | NEW k = Unsqueeze (m, [1]) h1 = Where (k, new, h) y = Where (k, new, 0.0)
a length for each unit
    RANGE a = Unsqueeze (r, [1, 2]) b = Unsqueeze (lens, [0, 2]) u = Add (b, [0, 1, 2, 0]) m0 = Less (a, u)
        | bool m = m0 | NEW h1 = Where (m, new, h) y = Where (m, new, 0.0)
frames from the end on
    RANGE z = Sub (steps, 1) t = Sub (z, r) a = Unsqueeze (t, [1]) b = Unsqueeze (lens, [0]) m0 = Less (a, b)
        | bool m = m0 | NEW k = Unsqueeze (m, [1]) h1 = Where (k, new, h) y = Where (k, new, 0.0)
every other frame
    RANGE t = Mul (r, -1) a = Unsqueeze (t, [1]) b = Unsqueeze (lens, [0]) m0 = Less (a, b) | bool m = m0 | NEW
        k = Unsqueeze (m, [1]) h1 = Where (k, new, h) y = Where (k, new, 0.0)
"""
"""None is raised."""

EITHER = """
lengths without their last bit
    RANGE half = Div (lens, 2) n = Mul (half, 2) a = Unsqueeze (r, [1]) b = Unsqueeze (n, [0]) m0 = Less (a, b)
        | bool m = m0 | NEW k = Unsqueeze (m, [1]) h1 = Where (k, new, h) y = Where (k, new, 0.0)
the other sequence's length
    RANGE a = Unsqueeze (r, [1]) b = Unsqueeze (lens, [0]) m0 = Less (a, b) | bool m = m0 | NEW
        k0 = Unsqueeze (m, [1]) k = Gather <axis = 0> (k0, [1, 0]) h1 = Where (k, new, h) y = Where (k, new, 0.0)
one length of all
    RANGE n0 = ReduceMax <axes = [0]> (lens) n = Expand (n0, [2]) a = Unsqueeze (r, [1]) b = Unsqueeze (n, [0])
        m0 = Less (a, b)
        | bool m = m0 | NEW k = Unsqueeze (m, [1]) h1 = Where (k, new, h) y = Where (k, new, 0.0)
a frame later
    RANGE t = Add (r, 1) a = Unsqueeze (t, [1]) b = Unsqueeze (lens, [0]) m0 = Less (a, b) | bool m = m0 | NEW
        k = Unsqueeze (m, [1]) h1 = Where (k, new, h) y = Where (k, new, 0.0)
twice the frame
    RANGE t = Mul (r, 2) a = Unsqueeze (t, [1]) b = Unsqueeze (lens, [0]) m0 = Less (a, b) | bool m = m0 | NEW
        k = Unsqueeze (m, [1]) h1 = Where (k, new, h) y = Where (k, new, 0.0)
a start and an end
    RANGE a = Unsqueeze (r, [1]) b = Unsqueeze (lens, [0]) l = Less (a, b) g = Greater (a, 0) m0 = And (l, g)
        | bool m = m0 | NEW k = Unsqueeze (m, [1]) h1 = Where (k, new, h) y = Where (k, new, 0.0)
the frame of the length only
    RANGE a = Unsqueeze (r, [1]) b = Unsqueeze (lens, [0]) m0 = Equal (a, b) | bool m = m0 | NEW
        k = Unsqueeze (m, [1]) h1 = Where (k, new, h) y = Where (k, new, 0.0)
behind the end
    RANGE a = Unsqueeze (r, [1]) b = Unsqueeze (lens, [0]) m0 = Greater (a, b) | bool m = m0 | NEW
        k = Unsqueeze (m, [1]) h1 = Where (k, new, h) y = Where (k, new, 0.0)
a head behind the mask
    RANGE a = Unsqueeze (r, [1]) b = Unsqueeze (lens, [0]) m0 = Less (a, b) | bool m = m0 | NEW
        k = Unsqueeze (m, [1]) h1 = Where (k, new, h) z = Where (k, new, 0.0) d = MatMul (z, V[4,2]) y = Sigmoid (d)
the mask of the row before
    RANGE a0 = Unsqueeze (r, [1]) b = Unsqueeze (lens, [0]) l = Less (a0, b) w = Slice (l, [0], [-1], [0])
        v = Slice (l, [0], [1], [0]) m0 = Concat <axis = 0> (v, w) | bool m = m0 | NEW k = Unsqueeze (m, [1])
        h1 = Where (k, new, h) y = Where (k, new, 0.0)
rows of a mask that are cut
    t0 = Add (steps, 2) r = Range (1, t0, 1) a0 = Unsqueeze (r, [1]) b = Unsqueeze (lens, [0]) l = Less (a0, b)
        m0 = Slice (l, [1], [9223372036854775807], [0]) | bool m = m0 | NEW k = Unsqueeze (m, [1])
        h1 = Where (k, new, h) y = Where (k, new, 0.0)
"""
"""Each is raised, and computes the same, or stays as it is."""

COUNTERS = """
the length is above the row
    RANGE a = Unsqueeze (r, [1]) b = Unsqueeze (lens, [0]) m0 = Greater (b, a) | bool m = m0 | NEW
        k = Unsqueeze (m, [1]) h1 = Where (k, new, h) y = Where (k, new, 0.0)
a row earlier
    RANGE t = Sub (r, 1) a = Unsqueeze (t, [1]) b = Unsqueeze (lens, [0]) m0 = Less (a, b) | bool m = m0 | NEW
        k = Unsqueeze (m, [1]) h1 = Where (k, new, h) y = Where (k, new, 0.0)
numbers that skip one
    twice = Mul (steps, 2) r = Range (0, twice, 2) a = Unsqueeze (r, [1]) b = Unsqueeze (lens, [0]) m0 = Less (a, b)
        | bool m = m0 | NEW k = Unsqueeze (m, [1]) h1 = Where (k, new, h) y = Where (k, new, 0.0)
"""
"""Each counts in another way; the first is raised."""

RESET = MACROS["N1"].replace("(r,", "(rr,")
COMPARED = """
the number of the step of a Loop
    l = Less (i, lens) k = Unsqueeze (l, [1]) h1 = Where (k, new, h) y = Where (k, new, 0.0)
the other way round, as floats
    g = GreaterOrEqual (i, lens) u = Unsqueeze (g, [1]) k = Cast <to = 1> (u) q = Sub (1.0, k) a = Mul (k, h)
        p = Mul (q, new) h1 = Add (a, p) y = Mul (q, new)
the next step is at most the length
    n = Add (i, 1) l = LessOrEqual (n, lens) k = Unsqueeze (l, [1]) h1 = Where (k, new, h) y = Where (k, new, 0.0)
"""
"""Steps of a Loop that compare in the body; each is raised."""

COMPARED_OTHERWISE = """
every other step
    n = Mul (i, 2) l = Less (n, lens) k = Unsqueeze (l, [1]) h1 = Where (k, new, h) y = Where (k, new, 0.0)
from the length on
    l = Less (lens, i) k = Unsqueeze (l, [1]) h1 = Where (k, new, h) y = Where (k, new, 0.0)
the step of the length
    l = Equal (i, lens) k = Unsqueeze (l, [1]) h1 = Where (k, new, h) y = Where (k, new, 0.0)
lengths without their last bit
    half = Div (lens, 2) even = Mul (half, 2) l = Less (i, even) k = Unsqueeze (l, [1]) h1 = Where (k, new, h)
        y = Where (k, new, 0.0)
a factor of the mask that a cast cuts
    l = Less (i, lens) k = Unsqueeze (l, [1]) a = Where (k, 0.5, 0.0) b = Cast <to = 7> (a) f = Cast <to = 1> (b)
        m = Mul (f, 2.0) q = Sub (1.0, m) p = Mul (m, new) s = Mul (q, h) h1 = Add (p, s) y = Mul (m, new)
on data
    l = ReduceMax <axes = [1], keepdims = 0> (x) m = Less (l, 1.0) k = Unsqueeze (m, [1]) h1 = Where (k, new, h)
        y = Where (k, new, 0.0)
"""
"""None of these is."""

STEPS = {
    "NEW": "U(n) new = Tanh (un)",
    "LSTM": "U(i) U(f) U(o) U(g) i = Sigmoid (ui) f = Sigmoid (uf) o = Sigmoid (uo) g = Tanh (ug) fc = Mul (f, c)"
    " ig = Mul (i, g) newc = Add (fc, ig) tc = Tanh (newc) new = Mul (o, tc)",
    "GRU": f"U(z) U(r) z = Sigmoid (uz) rr = Sigmoid (ur) {RESET} dd = Sub (h, n) ee = Mul (z, dd)"
    " new = Add (n, ee)",
}
LENS = ([3, 5], [5, 1], [0, 2], [9, 4], [-1, 5])
"""Lengths of runs: some are larger than the number of rows, or below 0."""


@dataclass(frozen=True)
class Masked:
    """A cell with a mask."""

    name: str
    model: onnx.ModelProto

    def __str__(self) -> str:
        return self.name

    def feeds(self) -> list[Arrays]:
        """Inputs of each run; where T is open, of several lengths."""
        rng = np.random.default_rng(3)
        inputs = {v.name: v.type.tensor_type.shape.dim for v in self.model.graph.input}
        found = []
        for n, lens in enumerate(LENS):
            steps = inputs["X"][0].dim_value or 5 - n % 2
            feed: Arrays = {"X": rng.normal(0, 1, (steps, 2, 3)).astype(np.float32)}
            if "lens" in inputs:
                feed["lens"] = np.array(lens)
            if "given" in inputs:
                feed["given"] = rng.random((steps, 2)) < 0.5
            if "initial" in inputs:
                feed["initial"] = rng.normal(0, 1, (2, 4)).astype(np.float32)
            found.append(feed)
        return found


def masked(table: str, steps: str = "5") -> list[Masked]:
    """The cells of a table, over so many rows."""
    return [Masked(name, _model(text, steps)) for _, name, text in rows(table)]


def compared(table: str) -> list[Masked]:
    """The Loops of a table whose steps compare, over any number of rows."""
    return [Masked(name, _loop(text)) for _, name, text in rows(table)]


def _loop(step: str) -> onnx.ModelProto:
    return net(
        f"""g (float[T,2,3] X, int64[2] lens) => (float[2,4] hn, float[?,2,4] Y)
        <float[2,4] zeros = {{0, 0, 0, 0, 0, 0, 0, 0}}> {{ sh = Shape (X) steps = Gather (sh, 0)
        hn, Y = Loop (steps, True, zeros) <body = step (int64 i, bool c, float[2,4] h)
        => (bool c1, float[2,4] h1, float[2,4] y) {{ x = Gather (X, i) {_sums(STEPS["NEW"])} {step}
        c1 = Identity (c) }}> }}"""
    )


def _sums(step: str) -> str:
    return re.sub(
        r"\bU\((\w)\)",
        r"x_\1 = MatMul (x, W\1[3,4]) h_\1 = MatMul (h, R\1[4,4]) s_\1 = Add (x_\1, h_\1) u\1 = Add (s_\1, b\1[4])",
        step,
    )


def _model(text: str, steps: str) -> onnx.ModelProto:
    before, scanned, step = (part.strip() for part in text.split("|"))
    lstm, given = "LSTM" in step, "GIVEN" in step
    step = step.replace("GIVEN", "")
    for name, nodes in STEPS.items():
        step = re.sub(rf"\b{name}\b", nodes, step)
    step = _sums(step)
    before = before.replace("RANGE", "sh = Shape (X) steps = Gather (sh, 0) r = Range (0, steps, 1)")
    if "steps" in before and "sh =" not in before:
        before = f"sh = Shape (X) steps = Gather (sh, 0) {before}"
    kind, _, rest = scanned.partition(" m = ")
    shape = {"bool": "bool[2]", "float": "float[2]"}[kind]
    if "Where (m," in step:
        shape = "bool[2,4]" if "[0, 1, 2, 0]" in before else "bool[2,1]"
    stacked = " y = " in f" {step}"
    inputs = [f"float[{steps},2,3] X"]
    inputs += ["int64[2] lens"] if "lens" in before else []
    inputs += [f"bool[{steps},2] given"] if rest == "given" else []
    inputs += ["float[2,4] initial"] if given else []
    first = "initial" if given else "zeros"
    states = ["h", "c"] if lstm else ["h"]
    typed = ", ".join(f"float[2,4] {name}" for name in states)
    results = ", ".join(f"float[2,4] {name}1" for name in states) + (", float[2,?] y" if stacked else "")
    last = ", ".join(f"{name}n" for name in states)
    outputs = ", ".join(f"float[2,4] {name}n" for name in states) + (", float[?,2,?] Y" if stacked else "")
    return net(
        f"""g ({", ".join(inputs)}) => ({outputs}) <float[2,4] zeros = {{0, 0, 0, 0, 0, 0, 0, 0}}> {{ {before}
        {last}{", Y" if stacked else ""} = Scan <num_scan_inputs = 2, body = step ({typed}, float[2,3] x, {shape} m)
        => ({results}) {{ {step} }}> ({", ".join([first] * len(states))}, X, {rest}) }}"""
    )
