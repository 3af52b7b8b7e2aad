"""Sums, products, quotients and comparisons of polynomials."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial, reduce

import numpy as np
import onnx_ir as ir

from rnn_lowering.raising.polynomials import Atom, NotRaised, Polynomial, Variables, checked_size, close
from rnn_lowering.raising.rules.elements import EXACT, Given, Step, StepRule, as_numbers, as_polynomials, each
from rnn_lowering.types import Array

_MOST_BATCHES = 64
"""Maximum matrices of one product."""


def _fold(function: Callable[[Array, Array], Array], e: Step, node: ir.Node, given: Given) -> Array:
    arrays = [as_numbers(array) for array in given if array is not None]
    return np.asarray(reduce(function, arrays), object)


def _divide(e: Step, node: ir.Node, given: Given) -> Array | None:
    a, b = given
    assert a is not None
    assert b is not None
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


def _where(e: Step, node: ir.Node, given: Given) -> Array | None:
    condition, a, b = given
    assert condition is not None
    assert a is not None
    assert b is not None
    if condition.dtype != object:
        return np.where(condition, as_polynomials(a), as_polynomials(b))
    return each(lambda m, x, y: m * x + (1.0 - m) * y, condition, a, b)


def _truth(e: Step, node: ir.Node, given: Given) -> Array:
    """Return a comparison; `a < b` and `b > a` are the same."""
    a, b = given
    name = node.op_type
    if name.startswith("Greater"):
        a, b, name = b, a, name.replace("Greater", "Less")
    assert a is not None
    assert b is not None
    return each(lambda x, y: e.variables.truth((name, (x - y).key())), a, b)


def _not(e: Step, node: ir.Node, given: Given) -> Array:
    assert given[0] is not None
    return each(lambda m: 1.0 - m, given[0])


def _and(e: Step, node: ir.Node, given: Given) -> Array:
    return each(lambda a, b: a * b, *(array for array in given if array is not None))


def _or(e: Step, node: ir.Node, given: Given) -> Array:
    return each(lambda a, b: a + b - a * b, *(array for array in given if array is not None))


def _cast(e: Step, node: ir.Node, given: Given) -> Array | None:
    """Cast truths; between types of numbers something may be lost."""
    x, value, to = given[0], node.inputs[0], ir.DataType(node.attributes["to"].as_int())
    assert x is not None
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


def _reduce(e: Step, node: ir.Node, given: Given) -> Array:
    x = given[0]
    assert x is not None
    along = tuple(e.summed(node, x.ndim))
    total = np.asarray(np.sum(x, axis=along, keepdims=bool(node.attributes.get_int("keepdims", 1))), object)
    return total if node.op_type == "ReduceSum" else np.asarray(total * (total.size / x.size), object)


# Products


def _matmul(e: Step, node: ir.Node, given: Given) -> Array | None:
    a, b = given
    assert a is not None
    assert b is not None
    return product(e, a, b)


def product(e: Step, a: Array, b: Array) -> Array:
    """Return the product of two tensors, of which one has numbers."""
    left, right = a[None] if a.ndim == 1 else a, b[:, None] if b.ndim == 1 else b
    if left.dtype != object:
        found = np.swapaxes(_rows(e, np.swapaxes(right, -1, -2), np.swapaxes(left, -1, -2)), -1, -2)
    elif right.dtype != object:
        found = _rows(e, left, right)
    else:
        raise ValueError("a product of two values that are computed in the step")
    found = found[..., 0] if b.ndim == 1 else found
    return found[..., 0, :] if a.ndim == 1 and b.ndim > 1 else found[..., 0] if a.ndim == 1 else found


def _rows(e: Step, a: Array, matrices: Array) -> Array:
    """Return products of rows and matrices of numbers, as MatMul does for tensors of any rank."""
    if a.shape[-1] != matrices.shape[-2] or not np.isfinite(matrices).all():
        raise ValueError("shapes or numbers")
    lead = np.broadcast_shapes(a.shape[:-2], matrices.shape[:-2])
    given = np.broadcast_to(a, (*lead, *a.shape[-2:]))
    checked_size((*lead, a.shape[-2], matrices.shape[-1]))
    found = np.empty((*lead, a.shape[-2], matrices.shape[-1]), object)
    count = int(np.prod(matrices.shape[:-2]))
    if count > _MOST_BATCHES:
        raise NotRaised("its products are too large to recognise a cell")
    several = np.broadcast_to(matrices, (*lead, *matrices.shape[-2:]))
    one = matrices.reshape(matrices.shape[-2:]) if count == 1 else None
    for place in np.ndindex(*lead, a.shape[-2]):
        matrix = several[place[:-1]] if one is None else one
        found[place] = e.variables.product(tuple(given[place]), matrix)
    return found


def _gemm(e: Step, node: ir.Node, given: Given) -> Array:
    a, b, c = (*given, None)[:3]
    assert a is not None
    assert b is not None
    numbers = node.attributes
    a = a.T if numbers.get_int("transA", 0) else a
    b = b.T if numbers.get_int("transB", 0) else b
    alpha, beta = (numbers[name].as_float() if name in numbers else 1.0 for name in ("alpha", "beta"))
    found = product(e, a, b) * alpha
    return np.asarray(found if c is None else found + as_numbers(c) * beta, object)


def _einsum(e: Step, node: ir.Node, given: Given) -> Array | None:
    """Einsum of two tensors without labels that both have and that stay."""
    text = node.attributes["equation"].as_string().replace(" ", "")
    left, arrow, out = text.partition("->")
    labels = left.split(",")
    if not arrow or "." in text or len(labels) != len(given) or len(given) != 2:
        return None
    a, b = given
    summed = [c for c in labels[0] if c in labels[1]]
    free = [[c for c in each if c not in summed] for each in labels]
    if any(len({*each}) < len(each) for each in labels) or {*out} != {*free[0], *free[1]}:
        return None
    assert a is not None
    assert b is not None
    x = a.transpose([labels[0].index(c) for c in [*free[0], *summed]])
    y = b.transpose([labels[1].index(c) for c in [*summed, *free[1]]])
    inner, sizes = int(np.prod(x.shape[len(free[0]) :])), (*x.shape[: len(free[0])], *y.shape[len(summed) :])
    found = product(e, x.reshape(-1, inner), y.reshape(inner, -1)).reshape(sizes)
    return found.transpose([[*free[0], *free[1]].index(c) for c in out])


ARITHMETIC: dict[str, StepRule] = {
    "Add": partial(_fold, operator.add),
    "And": _and,
    "Cast": _cast,
    "Div": _divide,
    "Einsum": _einsum,
    **dict.fromkeys(("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"), _truth),
    "Gemm": _gemm,
    "MatMul": _matmul,
    "Mul": partial(_fold, operator.mul),
    "Neg": lambda e, node, given: -given[0],  # type: ignore[operator]
    "Not": _not,
    "Or": _or,
    **dict.fromkeys(("ReduceMean", "ReduceSum"), _reduce),
    "Sub": partial(_fold, operator.sub),
    "Sum": partial(_fold, operator.add),
    "Where": _where,
}
"""By operator, what it computes of polynomials."""
