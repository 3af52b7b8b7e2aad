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
from raised import is_raised
from running import run
from stream_models import net
from thinning import exhaustive

from rnn_lowering.raising.polynomials import Atom, Column, Element, Truth, Variables
from rnn_lowering.raising.step import RULES, Evaluator

STEPS = {
    "a sum along no axis": "a = ReduceSum <noop_with_empty_axes = 1> (hr) u = Add (xw, a) h1 = Tanh (u)",
    "a sum along no axis of a list": """n = Slice ([0], [0], [0]) a = ReduceSum <noop_with_empty_axes = 1> (hr, n)
        u = Add (xw, a) h1 = Tanh (u)""",
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


EACH = [*((op_type, TYPES) for op_type in RULES), *(exhaustive((op_type, OTHER_TYPES)) for op_type in RULES)]


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
    e = Evaluator(variables, model.opset_imports[""], lambda _: None, lambda _: (), lambda v: v.dtype)
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
