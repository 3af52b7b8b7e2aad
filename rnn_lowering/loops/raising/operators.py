"""What operators compute of polynomials: sums and products, functions, moves of elements, cells of one step."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from rnn_lowering.facts.node_outputs import NodeModel, numbered
from rnn_lowering.facts.operators import moved_inputs, parameter
from rnn_lowering.loops.raising.polynomials import (
    EXACT,
    MOST_ELEMENTS,
    Atom,
    NotRaised,
    Polynomial,
    Variables,
    as_numbers,
    as_polynomials,
    checked_size,
    close,
    constant,
    each,
)
from rnn_lowering.types import Array

if TYPE_CHECKING:
    from rnn_lowering.loops.raising.step import StepEvaluator

Given = Sequence["Array | None"]
"""The inputs of a node; None for those that are absent."""

StepRule = Callable[["StepEvaluator", ir.Node, Given], "Array | list[Array] | None"]
"""Computes the outputs of a node; None if they are unknown."""

_MOST_BATCHES = 64
"""Maximum matrices of one product."""


def _present(given: Given) -> list[Array]:
    """Return the inputs that a node has."""
    return [array for array in given if array is not None]


def _fold(function: Callable[[Array, Array], Array], e: StepEvaluator, node: ir.Node, given: Given) -> Array:
    return np.asarray(reduce(function, map(as_numbers, _present(given))), object)


def _divide(e: StepEvaluator, node: ir.Node, given: Given) -> Array | None:
    a, b = _present(given)
    if b.dtype != object:
        if not b.all():
            raise ValueError("a quotient by 0")
        return np.asarray(a * as_numbers(1.0 / b.astype(np.float64)), object)
    return each(partial(_quotient, e.variables), a, b)


def _quotient(variables: Variables, a: Polynomial, b: Polynomial) -> Polynomial:
    """Return a / (1 + exp(-u)) as a Sigmoid, u / (1 + |u|) as a Softsign."""
    exponents = [m for m in b.terms if m]
    if len(exponents) == 1 and len(exponents[0]) == 1 and all(close(c, 1.0) for c in b.terms.values()):
        exponent = variables[exponents[0][0]]
        if () in b.terms and isinstance(exponent, Atom) and exponent.name == "Exp":
            return a * variables.function("Sigmoid", -exponent.argument)
        if () in b.terms and isinstance(exponent, Atom) and exponent.name == "Abs" and a.equals(exponent.argument):
            return variables.function("Softsign", a)
    raise ValueError("a quotient")


def _where(e: StepEvaluator, node: ir.Node, given: Given) -> Array | None:
    condition, a, b = _present(given)
    if condition.dtype != object:
        return np.where(condition, as_polynomials(a), as_polynomials(b))
    return each(lambda m, x, y: m * x + (1.0 - m) * y, condition, a, b)


def _truth(e: StepEvaluator, node: ir.Node, given: Given) -> Array:
    """Return a comparison; `a < b` and `b > a` are the same."""
    (a, b), name = _present(given), node.op_type
    if name.startswith("Greater"):
        a, b, name = b, a, name.replace("Greater", "Less")
    return each(lambda x, y: e.variables.truth((name, (x - y).key())), a, b)


def _cast(e: StepEvaluator, node: ir.Node, given: Given) -> Array | None:
    """Cast truths; between types of numbers something may be lost."""
    (x,), value, to = _present(given), node.inputs[0], ir.DataType(node.attributes["to"].as_int())
    same = value is not None and e.dtype(value) == to
    return x if same or (to in _CASTS and all(map(_is_truth, x.ravel()))) else None


def _is_truth(p: Polynomial) -> bool:
    """Whether a polynomial is 0 or 1, whatever its variables are."""
    variables = {v for monomial in p.terms for v in monomial}
    if len(variables) > _MOST_TRUTHS or any(v > 0 for v in variables):
        return False
    if not variables:
        return p.number in (0, 1)
    v = min(variables)
    return _is_truth(p.at(v, 0)) and _is_truth(p.at(v, 1))


_MOST_TRUTHS = 4
"""Maximum Booleans of a polynomial that is cast."""

_CASTS = (*EXACT, ir.DataType.FLOAT16, ir.DataType.INT8, ir.DataType.UINT8)


def _reduce(e: StepEvaluator, node: ir.Node, given: Given) -> Array:
    x = _present(given)[0]
    along = tuple(e.summed(node, x.ndim))
    total = np.asarray(np.sum(x, axis=along, keepdims=bool(node.attributes.get_int("keepdims", 1))), object)
    return total if node.op_type == "ReduceSum" else np.asarray(total * (total.size / x.size), object)


# Products


def product(e: StepEvaluator, a: Array, b: Array) -> Array:
    """Return the product of two tensors, of which one has numbers."""
    left, right = a[None] if a.ndim == 1 else a, b[:, None] if b.ndim == 1 else b
    if left.dtype != object:
        products = np.swapaxes(_rows(e, np.swapaxes(right, -1, -2), np.swapaxes(left, -1, -2)), -1, -2)
    elif right.dtype != object:
        products = _rows(e, left, right)
    else:
        raise ValueError("a product of two values that are computed in the step")
    products = products[..., 0] if b.ndim == 1 else products
    return products[..., 0, :] if a.ndim == 1 and b.ndim > 1 else products[..., 0] if a.ndim == 1 else products


def _rows(e: StepEvaluator, a: Array, matrices: Array) -> Array:
    """Return products of rows and matrices of numbers, as MatMul does for tensors of any rank."""
    if a.shape[-1] != matrices.shape[-2] or not np.isfinite(matrices).all():
        raise ValueError("shapes or numbers")
    lead = np.broadcast_shapes(a.shape[:-2], matrices.shape[:-2])
    given = np.broadcast_to(a, (*lead, *a.shape[-2:]))
    checked_size((*lead, a.shape[-2], matrices.shape[-1]))
    products = np.empty((*lead, a.shape[-2], matrices.shape[-1]), object)
    count = int(np.prod(matrices.shape[:-2]))
    if count > _MOST_BATCHES:
        raise NotRaised("its products are too large to recognise a cell")
    several = np.broadcast_to(matrices, (*lead, *matrices.shape[-2:]))
    one = matrices.reshape(matrices.shape[-2:]) if count == 1 else None
    for place in np.ndindex(*lead, a.shape[-2]):
        matrix = several[place[:-1]] if one is None else one
        products[place] = e.variables.product(tuple(given[place]), matrix)
    return products


def _gemm(e: StepEvaluator, node: ir.Node, given: Given) -> Array:
    a, b, *c = _present(given)
    numbers = node.attributes
    a = a.T if numbers.get_int("transA", 0) else a
    b = b.T if numbers.get_int("transB", 0) else b
    alpha, beta = (numbers.get_float(name, 1.0) for name in ("alpha", "beta"))
    products = product(e, a, b) * alpha
    return np.asarray(products + as_numbers(c[0]) * beta if c else products, object)


def _einsum(e: StepEvaluator, node: ir.Node, given: Given) -> Array | None:
    """Einsum of two tensors without labels that both have and that stay."""
    text = node.attributes["equation"].as_string().replace(" ", "")
    left, arrow, out = text.partition("->")
    labels = left.split(",")
    if not arrow or "." in text or len(labels) != len(given) or len(given) != 2:
        return None
    a, b = _present(given)
    summed = [c for c in labels[0] if c in labels[1]]
    free = [[c for c in each if c not in summed] for each in labels]
    if any(len({*each}) < len(each) for each in labels) or {*out} != {*free[0], *free[1]}:
        return None
    x = a.transpose([labels[0].index(c) for c in [*free[0], *summed]])
    y = b.transpose([labels[1].index(c) for c in [*summed, *free[1]]])
    inner, sizes = int(np.prod(x.shape[len(free[0]) :])), (*x.shape[: len(free[0])], *y.shape[len(summed) :])
    products = product(e, x.reshape(-1, inner), y.reshape(inner, -1)).reshape(sizes)
    return products.transpose([[*free[0], *free[1]].index(c) for c in out])


ARITHMETIC: dict[str, StepRule] = {
    "Add": partial(_fold, operator.add),
    "And": lambda e, node, given: each(lambda a, b: a * b, *_present(given)),
    "Cast": _cast,
    "Div": _divide,
    "Einsum": _einsum,
    **dict.fromkeys(("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"), _truth),
    "Gemm": _gemm,
    "MatMul": lambda e, node, given: product(e, *_present(given)),
    "Mul": partial(_fold, operator.mul),
    "Neg": lambda e, node, given: -given[0],  # type: ignore[operator]
    "Not": lambda e, node, given: each(lambda m: 1.0 - m, *_present(given)),
    "Or": lambda e, node, given: each(lambda a, b: a + b - a * b, *_present(given)),
    **dict.fromkeys(("ReduceMean", "ReduceSum"), _reduce),
    "Sub": partial(_fold, operator.sub),
    "Sum": partial(_fold, operator.add),
    "Where": _where,
}
"""By operator, what it computes of polynomials."""


# Functions of polynomials: activations, and the Clips that exporters write them with.


_LARGEST = 1e38
"""A bound of a Clip as large as this is none."""


def _function(name: str, e: StepEvaluator, node: ir.Node, given: Given) -> Array:
    alpha = _ALPHAS.get(name)
    if alpha is not None and "alpha" in node.attributes:
        alpha = node.attributes["alpha"].as_float()
    if name == "Tanh":
        return each(lambda p: e.variables.function(name, _without_wide_clip(e.variables, p)), *_present(given))
    return each(lambda p: e.variables.function(name, p, alpha), *_present(given))


def _without_wide_clip(variables: Variables, p: Polynomial) -> Polynomial:
    """Return u of Clip(u, -c, c) where tanh does not notice it."""
    bound, functions = -p.terms.get((), 0.0), [m for m in p.terms if m]
    if bound >= _SATURATED and len(functions) == 1 and len(functions[0]) == 1:
        atom = variables[functions[0][0]]
        if isinstance(atom, Atom) and atom.name == "HardSigmoid" and close(p.terms[functions[0]], 2 * bound):
            return atom.argument * (2 * bound) - bound
    return p


_SATURATED = 10.0
"""From here on tanh is 1 in float32."""

_ALPHAS = {"Elu": 1.0, "LeakyRelu": 0.01, "ThresholdedRelu": 1.0}


def _relu(e: StepEvaluator, node: ir.Node, given: Given) -> Array:
    return each(lambda p: _rectified(e.variables, p), *_present(given))


def _hard_sigmoid(e: StepEvaluator, node: ir.Node, given: Given) -> Array:
    alpha, beta = (node.attributes.get_float(name, number) for name, number in (("alpha", 0.2), ("beta", 0.5)))
    return each(lambda p: e.variables.function("HardSigmoid", p * alpha + beta), *_present(given))


def _clip(e: StepEvaluator, node: ir.Node, given: Given) -> Array:
    bounds: list[float | None] = [None, None]
    for n, name in enumerate(("min", "max")):
        held = parameter(node, name, e.opset)
        if isinstance(held, ir.Attr):
            bounds[n] = held.as_float()
        elif held is not None:
            bounds[n] = float(np.asarray(given[n + 1], np.float64).reshape(()))
    low, high = (None if bound is None or abs(bound) > _LARGEST else bound for bound in bounds)
    return each(lambda p: _clipped(e.variables, p, low, high), _present(given)[0])


def _extremum(e: StepEvaluator, node: ir.Node, given: Given) -> Array | None:
    """Max or Min of one tensor and a number."""
    if len(given) != 2:
        return None
    x, bound = given if given[1] is not None and given[1].dtype != object else given[::-1]
    if x is None or bound is None or bound.dtype == object:
        return None
    limit = _at_least if node.op_type == "Max" else _at_most
    return each(lambda p, b: limit(e.variables, p, b.number), x, bound)


def _clipped(variables: Variables, p: Polynomial, low: float | None, high: float | None) -> Polynomial:
    """Return a Clip, by the HardSigmoid max(0, min(1, u)) if it has two bounds."""
    if low is None or high is None:
        p = p if low is None else _at_least(variables, p, low)
        return p if high is None else _at_most(variables, p, high)
    if high <= low:
        raise ValueError("bounds")
    return variables.function("HardSigmoid", (p - low) * (1.0 / (high - low))) * (high - low) + low


def _at_least(variables: Variables, p: Polynomial, low: float) -> Polynomial:
    """Return max(p, low); max(min(u, high), low) is a Clip."""
    width, u = _relu_below(variables, p - low)
    if u is not None:  # p is min(., high): p - low = width - Relu(u)
        return variables.function("HardSigmoid", constant(1.0) - u * (1.0 / width)) * width + low
    return variables.function("Relu", p - low) + low


def _at_most(variables: Variables, p: Polynomial, high: float) -> Polynomial:
    """Return min(p, high); min(max(u, low), high) is a Clip."""
    width, u = _relu_below(variables, constant(high) - p)
    if u is not None:  # p is max(., low): high - p = width - Relu(u)
        return variables.function("HardSigmoid", u * (1.0 / width)) * width + (high - width)
    return constant(high) - variables.function("Relu", constant(high) - p)


def _rectified(variables: Variables, p: Polynomial) -> Polynomial:
    """Return max(p, 0); k - Relu(k - Relu(u)) is min(max(u, 0), k)."""
    width, u = _relu_below(variables, p)
    if u is not None:
        return constant(width) - variables.function("HardSigmoid", u * (1.0 / width)) * width
    return variables.function("Relu", p)


def _relu_below(variables: Variables, p: Polynomial) -> tuple[float, Polynomial | None]:
    """Return k and u of a polynomial k - Relu(u)."""
    width, functions = p.terms.get((), 0.0), [m for m in p.terms if m]
    if width > 0 and len(functions) == 1 and len(functions[0]) == 1 and close(p.terms[functions[0]], -1.0):
        atom = variables[functions[0][0]]
        if isinstance(atom, Atom) and atom.name == "Relu":
            return width, atom.argument
    return width, None


FUNCTIONS: dict[str, StepRule] = {
    "Clip": _clip,
    "HardSigmoid": _hard_sigmoid,
    **dict.fromkeys(("Max", "Min"), _extremum),
    "Relu": _relu,
    **{
        name: partial(_function, name)
        for name in ("Abs", "Elu", "Exp", "LeakyRelu", "Sigmoid", "Softplus", "Softsign", "Tanh", "ThresholdedRelu")
    },
}
"""By operator, what it computes of polynomials."""


# Operators that only move elements.


def moved(e: StepEvaluator, node: ir.Node, given: Given) -> list[Array] | None:
    """Return the outputs of a node that moves elements: onnx moves their numbers."""
    count = moved_inputs(node)
    data = [array for array in given[:count] if array is not None]
    numbers, model = numbered(data), NodeModel.of(node, e.opset)
    inputs = [*numbers, *given[count:]]
    if model.bytes_of_outputs(inputs) > MOST_ELEMENTS * numbers[0].itemsize:
        raise ValueError("too large")
    symbolic, places = any(array.dtype == object for array in data), model.compute(inputs)
    elements = np.concatenate([(as_polynomials(array) if symbolic else array).ravel() for array in data])
    return None if places is None else [elements[each] for each in places]


_MOVING = "Concat Expand Flatten Gather Identity Reshape Slice Split Squeeze Tile Transpose Unsqueeze"

MOVES: dict[str, StepRule] = dict.fromkeys(_MOVING.split(), moved)
"""By operator, where it moves elements."""


# RNN, GRU and LSTM nodes of one step: torch writes its LSTMCell as such a node in a Loop.


def _node(gates: int, e: StepEvaluator, node: ir.Node, given: Given) -> list[Array] | None:
    """Return Y, Y_h and Y_c of a node with one step, one direction, and the usual activations."""
    x, W, R, B, lens, h, c, P = (*given, *[None] * 8)[:8]
    if x is None or W is None or R is None or lens is not None or P is not None:
        return None
    if node.inputs[0] is None or 0 in e.open_axes(node.inputs[0]):
        return None  # it may have other numbers of steps
    weights = [W, R, *([] if B is None else [B])]
    if x.shape[0] != 1 or any(array.dtype == object or array.shape[0] != 1 for array in weights):
        return None
    size = R.shape[-1]
    zeros = as_polynomials(np.zeros((x.shape[1], size)))
    h, c = (zeros if state is None else as_polynomials(state[0]) for state in (h, c))
    bias = np.zeros(2 * gates * size) if B is None else B[0].astype(np.float64)
    of_x = _sums(product(e, as_polynomials(x[0]), W[0].T), bias[: gates * size])
    of_h = partial(_of_state, e, R[0], bias[gates * size :])
    if gates == 4:
        return _lstm(e, of_x + of_h(h, 0, 4), c)
    new = _function_at(e, "Tanh", of_x + of_h(h, 0, 1)) if gates == 1 else None
    if new is None:
        linear = bool(node.attributes.get_int("linear_before_reset", 0))
        z, r = np.split(_function_at(e, "Sigmoid", of_x[:, : 2 * size] + of_h(h, 0, 2)), 2, 1)
        inner = r * of_h(h, 2, 3) if linear else of_h(r * h, 2, 3)
        n = _function_at(e, "Tanh", of_x[:, 2 * size :] + inner)
        new = n - z * n + z * h
    return [new[None, None], new[None]]


def _lstm(e: StepEvaluator, sums: Array, c: Array) -> list[Array]:
    i, o, f, g = np.split(sums, 4, 1)
    i, o, f = (_function_at(e, "Sigmoid", gate) for gate in (i, o, f))
    c = f * c + i * _function_at(e, "Tanh", g)
    h = o * _function_at(e, "Tanh", c)
    return [h[None, None], h[None], c[None]]


def _of_state(e: StepEvaluator, R: Array, bias: Array, state: Array, first: int, last: int) -> Array:
    """Return the sums of a state for some of the gates."""
    rows = slice(first * R.shape[-1], last * R.shape[-1])
    return _sums(product(e, state, np.ascontiguousarray(R[rows].T)), bias[rows])


def _sums(array: Array, bias: Array) -> Array:
    return np.asarray(array + as_numbers(bias), object)


def _function_at(e: StepEvaluator, name: str, array: Array) -> Array:
    return each(lambda p: e.variables.function(name, p), array)


STEPS: dict[str, StepRule] = {"GRU": partial(_node, 3), "LSTM": partial(_node, 4), "RNN": partial(_node, 1)}
"""By operator, what it computes of polynomials in one step."""
