"""What a step computes with each operator is what onnxruntime computes, or is not known."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from cases import Array, Arrays
from operator_rules import NODES, OTHER_TYPES, TYPES, RuleNode, rule_nodes
from raised import assert_same_as, cells, is_raised, loops
from running import run
from stream_models import net
from thinning import exhaustive

import rnn_lowering as rl
from rnn_lowering.loops.raising.polynomials import Atom, Column, Element, Truth, Variables
from rnn_lowering.loops.raising.step import RULES, StepEvaluator

STEPS = {
    "a sum along no axis": "a = ReduceSum <noop_with_empty_axes = 1> (hr) u = Add (xw, a) h1 = Tanh (u)",
    "a sum along no axis of a list": """n = Slice ([0], [0], [0]) a = ReduceSum <noop_with_empty_axes = 1> (hr, n)
        u = Add (xw, a) h1 = Tanh (u)""",
    "a mean": "j = Concat <axis = 0> (xw, hr) u = ReduceMean <axes = [0], keepdims = 1> (j) h1 = Tanh (u)",
}
"""The step of a Scan over X [5, 1, 3] with the state h [1, 4], x W and h R."""


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_a_step_is_raised_right_or_stays(step: str) -> None:
    model = net(
        f"""g (float[5,1,3] X, float[1,4] h0) => (float[1,4] hn, float[5,1,4] Y) {{
        hn, Y = Scan <num_scan_inputs = 1, body = step (float[1,4] h, float[1,3] x) => (float[1,4] h1, float[1,4] y)
        {{ xw = MatMul (x, W[3,4]) hr = MatMul (h, R[4,4]) {step} y = Identity (h1) }}> (h0, X) }}"""
    )
    rng = np.random.default_rng(1)
    feed = {"X": rng.normal(0, 1, (5, 1, 3)), "h0": rng.normal(0, 1, (1, 4))}
    is_raised(model, [{name: array.astype(np.float32) for name, array in feed.items()}])


SCALARS = {
    "a row": ("X", "a = Mul (x, 0.7) c = Mul (h, 0.5) u = Add (a, c) n = Neg (u) h1 = Tanh (n)"),
    "a row of scaled rows": ("S", "c = Mul (h, 0.5) u = Add (x, c) h1 = Tanh (u)"),
    "a row that a length masks": (
        "X",
        """k = Less (i, l) a = Mul (x, 0.7) c = Mul (h, 0.5) u = Add (a, c) t = Tanh (u) h1 = Where (k, t, h)
        y0 = Where (k, h1, 0.0)""",
    ),
    "a part of a matrix": (
        "X",
        """w = Unsqueeze (x, [0]) p = MatMul (w, W[1,4]) a = Gather (p, 2) n = Neg (a) c = Mul (h, 0.5)
        u = Add (n, c) h1 = Tanh (u)""",
    ),
    "a product of vectors": ("X", "w = Expand (x, [2]) a = MatMul (w, [0.3, 0.5]) u = Add (a, h) h1 = Tanh (u)"),
}
"""What a Scan scans, and its step with a state h and rows x and i of rank 0."""


@pytest.mark.parametrize(("rows", "step"), SCALARS.values(), ids=SCALARS)
def test_a_step_of_scalars_is_raised_right_or_stays(rows: str, step: str) -> None:
    model = net(
        f"""g (float[5] X, int64 l) => (float hn, float[5] Y) {{ S = Mul (X, 0.7)
        hn, Y = Scan <num_scan_inputs = 2, body = step (float h, float x, int64 i) => (float h1, float y)
            {{ {step} y = Identity ({"y0" if "y0" in step else "h1"}) }}> (0.0, {rows}, [0, 1, 2, 3, 4]) }}"""
    )
    X = np.random.default_rng(1).normal(0, 1, 5).astype(np.float32)
    assert is_raised(model, [{"X": X, "l": np.array(3)}])


KALMAN_FILTER = """g (float[6,2] Z, float[3] m0, float[3,3] P0) => (float[3] mn, float[6,3] M) {
    mn, Pn, M = Loop (6, "", m0, P0) <body = filter (int64 i, bool go, float[3] m, float[3,3] P) =>
        (bool going, float[3] m1, float[3,3] P1, float[3] y) { going = Identity (go)
        z = Gather (Z, i) ahead = MatMul (F[3,3], m) FP = MatMul (F, P) Ft = Transpose (F) FPF = MatMul (FP, Ft)
        Pa = Add (FPF, 0.1) Ht = Transpose (H[2,3]) HP = MatMul (H, Pa) HPH = MatMul (HP, Ht) S0 = MatMul (HPH, HPH)
        S = Add (S0, [[1.0, 0.0], [0.0, 1.0]]) row0 = Gather (S, 0) row1 = Gather (S, 1)
        a = Gather (row0, 0) b = Gather (row0, 1) c = Gather (row1, 0) d = Gather (row1, 1)
        ad = Mul (a, d) bc = Mul (b, c) determinant = Sub (ad, bc) mb = Neg (b) mc = Neg (c)
        au = Unsqueeze (a, [0]) bu = Unsqueeze (mb, [0]) cu = Unsqueeze (mc, [0]) du = Unsqueeze (d, [0])
        flat = Concat <axis = 0> (du, bu, cu, au) adjoint = Reshape (flat, [2, 2])
        inverse = Div (adjoint, determinant) PH = MatMul (Pa, Ht) K = MatMul (PH, inverse)
        Hm = MatMul (H, ahead) error = Sub (z, Hm)
        Ke = MatMul (K, error) m1 = Add (ahead, Ke) KH = MatMul (K, H) KHP = MatMul (KH, Pa) P1 = Sub (Pa, KHP)
        y = Identity (m1) }> }"""
"""As torch.jit.script exports one: the inverse of the 2 x 2 matrix S by its elements, which are scalars."""


def test_a_filter_that_inverts_a_matrix_by_scalars_stays_and_is_unrolled() -> None:
    model = net(KALMAN_FILTER)
    rng = np.random.default_rng(1)
    feed = {"Z": rng.normal(0, 1, (6, 2)), "m0": rng.normal(0, 1, 3), "P0": np.eye(3)}
    feed = {name: array.astype(np.float32) for name, array in feed.items()}
    assert not is_raised(model, [feed])
    assert_same_as(model, rl.lower(model, "unroll"), feed)


CHUNKS = {
    "the size that torch reads": """sh = Shape (g) n = Gather (sh, [1]) m = Add (n, [3]) q = Div (m, [4])""",
    "through integers of 32 bits": """sh = Shape (g) s = Cast <to = 6> (sh) batch, k = Split <axis = 0> (s, [1, 1])
        n = Cast <to = 7> (k) q = Div (n, [4])""",
    "behind a Concat": """sh = Shape (g) two = Concat <axis = 0> ([8], sh) n = Slice (two, [-1], [9], [0])
        q = Div (n, [4])""",
}
"""How a step computes the size of a gate from the gates g, whose first axis is an open batch."""

BATCH_FIRST = """g (float[N,T,3] X) => (float[N,T,4] Y, float[N,4] hn) { xs = Shape (X)
    n0 = Slice (xs, [0], [1], [0]) hs = Concat <axis = 0> (n0, [4]) T = Gather (xs, 1) h0 = ConstantOfShape (hs)
    cn, hn, Ys = Loop (T, "", h0, h0) <body = step (int64 i, bool go, float[P,4] c, float[P,4] h) =>
        (bool going, float[P,4] c1, float[P,4] h1, float[P,4] y) { going = Identity (go)
        whole = Slice (X, [0], [9223372036854775807], [0], [1]) x = Gather <axis = 1> (whole, i)
        a = MatMul (x, W[3,16]) b = MatMul (h, R[4,16]) g0 = Add (a, b) g = Add (g0, p[16]) SIZE
        q2 = Mul (q, [2]) q3 = Mul (q, [3]) q4 = Mul (q, [4])
        gi = Slice (g, [0], q, [1]) gf = Slice (g, q, q2, [1]) gg = Slice (g, q2, q3, [1])
        go1 = Slice (g, q3, q4, [1])
        f = Sigmoid (gf) fc = Mul (f, c) in = Sigmoid (gi) t = Tanh (gg) it = Mul (in, t) c1 = Add (fc, it)
        o = Sigmoid (go1) u = Tanh (c1) h1 = Mul (o, u) y = Identity (h1) }>
    Y = Transpose <perm = [1, 0, 2]> (Ys) }"""
"""An LSTM over [N, T, 3] as torch.jit.script exports it."""


@pytest.mark.few(2)
@pytest.mark.parametrize("name", CHUNKS)
def test_gates_are_split_by_a_size_beside_an_open_one(name: str) -> None:
    model = net(BATCH_FIRST.replace("SIZE", CHUNKS[name]))
    X = np.random.default_rng(1).normal(0, 1, (2, 5, 3)).astype(np.float32)
    assert is_raised(model, [{"X": X}, {"X": X[:1, :3]}])


ONE_STEP = {
    "RNN": """Yt, ht = RNN <hidden_size = 4> (xt, W[1,4,3], R[1,4,4], B[1,8], "", h0)""",
    "GRU": """Yt, ht = GRU <hidden_size = 4> (xt, W[1,12,3], R[1,12,4], B[1,24], "", h0)""",
    "GRU, reset after": """Yt, ht = GRU <hidden_size = 4, linear_before_reset = 1> (xt, W[1,12,3], R[1,12,4],
        B[1,24], "", h0)""",
    "LSTM": """c0 = Unsqueeze (c, [0]) Yt, ht, ct = LSTM <hidden_size = 4> (xt, W[1,16,3], R[1,16,4],
        B[1,32], "", h0, c0) c1 = Squeeze (ct, [0])""",
}
"""What torch.jit.script writes into a Loop for an RNNCell, a GRUCell and an LSTMCell."""


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ONE_STEP)
def test_a_node_in_each_step_becomes_one_node(name: str) -> None:
    first, inputs, outputs, last = ", z", ", float[P,4] c", ", float[P,4] c1", "cn, "
    if name != "LSTM":
        first = inputs = outputs = last = ""
    model = net(
        f"""g (float[N,T,3] X) => (float[T,N,4] Y, float[N,4] hn) {{ xs = Shape (X)
        n0 = Slice (xs, [0], [1], [0]) hs = Concat <axis = 0> (n0, [4]) T = Gather (xs, 1) z = ConstantOfShape (hs)
        hn, {last}Y = Loop (T, "", z{first}) <body = step (int64 i, bool go, float[P,4] h{inputs}) =>
            (bool going, float[P,4] h1{outputs}, float[P,4] y) {{ going = Identity (go)
            x = Gather <axis = 1> (X, i) xt = Unsqueeze (x, [0]) h0 = Unsqueeze (h, [0]) {ONE_STEP[name]}
            h1 = Squeeze (ht, [0]) y = Identity (h1) }}> }}"""
    )
    X = np.random.default_rng(1).normal(0, 1, (2, 5, 3)).astype(np.float32)
    assert is_raised(model, [{"X": X}, {"X": X[:1, :3]}])
    assert cells(rl.lower(model, raise_loops=True)) == [name[:4].rstrip(",")]
    assert not loops(rl.lower(model, raise_loops=True))


def test_gates_that_are_split_by_an_open_size_stay() -> None:
    """With a batch of 4 it looks like an LSTM."""
    model = net(BATCH_FIRST.replace("SIZE", "sh = Shape (g) n = Gather (sh, [0]) q = Add (n, [0])"))
    X = np.random.default_rng(1).normal(0, 1, (4, 5, 3)).astype(np.float32)
    assert not is_raised(model, [{"X": X}])


EACH = [*((op_type, TYPES) for op_type in RULES), *(exhaustive((op_type, OTHER_TYPES)) for op_type in RULES)]


@pytest.mark.few(4)
@pytest.mark.parametrize(("op_type", "types"), EACH)
def test_each_operator_is_computed_as_by_onnxruntime(op_type: str, types: tuple[str, ...]) -> None:
    """Numbers in the place of the variables give what onnxruntime computes; what is not known is left out."""
    known = types != TYPES
    for node in rule_nodes(op_type, types):
        found = polynomials_of(node)
        wanted = outputs_of(node) if found is not None else None
        if found is None or wanted is None:
            continue
        known = True
        for got, expected in zip(found, wanted, strict=True):
            assert got.shape == expected.shape, node.name
            np.testing.assert_allclose(got, expected, 1e-4, 1e-5, err_msg=node.name)
    assert known, "no node of it is known"


def test_each_attribute_has_two_values() -> None:
    """One of them may be that it is absent."""
    values: dict[tuple[str, str], set[str]] = {}
    for op_type in RULES:
        for opset in (13, 18, 21):
            for name in onnx.defs.get_schema(op_type, opset, "").attributes:
                values[op_type, name] = {str(given.get(name)) for _, given in NODES[op_type]}
    assert {key for key, several in values.items() if len(several) < 2} == set()


def polynomials_of(node: RuleNode) -> list[Array] | None:
    """What the step computes of a node, with the numbers in the place of its variables; None if it is not known."""
    model = ir.from_proto(node.model)
    (inner,) = model.graph
    variables = Variables()
    e = StepEvaluator(variables, model.opset_imports[""], lambda _: None, lambda _: (), lambda v: v.dtype)
    for value in model.graph.inputs:
        array = node.feed[value.name or ""]
        make = variables.truths if array.dtype == bool else variables.elements
        e.bind(value, make(value.name, array.shape))
    found = [e.find(value) for value in inner.outputs]
    known, numbers = [array for array in found if array is not None], Numbers(variables, node.feed)
    return [numbers.of(array) for array in known] if len(known) == len(found) else None


def outputs_of(node: RuleNode) -> list[Array] | None:
    """What onnxruntime computes; None if it has no kernel of the type, or refuses the shapes."""
    try:
        return [*run(node.model, node.feed).values()]
    except Exception:  # its errors have no common class
        return None


class Numbers:
    """Numbers in the place of variables."""

    def __init__(self, variables: Variables, feed: Arrays) -> None:
        self.variables = variables
        self.feed = feed

    def of(self, array: Array) -> Array:
        if array.dtype != object:
            return array
        flat = np.array([self._number(p.terms.items()) for p in array.ravel()])
        return flat.reshape(array.shape)

    def _number(self, terms: Iterable[tuple[tuple[int, ...], float]]) -> float:
        return sum(c * math.prod(self._variable(v) for v in m) for m, c in terms)

    def _variable(self, number: int) -> float:
        held: Any = self.variables[number]
        key: Any = held.key if isinstance(held, Truth) else held
        if isinstance(key, Element):
            return float(self.feed[str(key.of)].flat[key.index])
        if isinstance(held, Column):
            row, matrix = held.product.row, held.product.matrix
            return float(sum(self._number(p.terms.items()) * matrix[k, held.column] for k, p in enumerate(row)))
        if isinstance(held, Atom):
            return FUNCTIONS[held.name](self._number(held.argument.terms.items()), held.alpha)
        name, terms = key
        difference = self._number(terms)
        return float({"Less": difference < 0, "LessOrEqual": difference <= 0, "Equal": difference == 0}[name])


FUNCTIONS: dict[str, Callable[[float, Any], float]] = {
    "Abs": lambda x, _: abs(x),
    "Elu": lambda x, alpha: x if x > 0 else alpha * math.expm1(x),
    "Exp": lambda x, _: math.exp(x),
    "HardSigmoid": lambda x, _: max(0.0, min(1.0, x)),
    "LeakyRelu": lambda x, alpha: x if x > 0 else alpha * x,
    "Relu": lambda x, _: max(x, 0.0),
    "Sigmoid": lambda x, _: 1 / (1 + math.exp(-x)),
    "Softplus": lambda x, _: math.log1p(math.exp(x)),
    "Softsign": lambda x, _: x / (1 + abs(x)),
    "Tanh": lambda x, _: math.tanh(x),
    "ThresholdedRelu": lambda x, alpha: x if x > alpha else 0.0,
}
