"""Functions of polynomials in a normal form: whatever is written as one of them is made of these.

Each is odd, or becomes the same for x and -x in another way, so that a sign is no difference.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rnn_lowering.compare.proof.polynomials import (
    ONE,
    ZERO,
    Algebra,
    BoundedPolynomial,
    Function,
    UnprovenError,
    any_of,
    number,
)


def tanh(k: Algebra, x: BoundedPolynomial) -> BoundedPolynomial:
    return -k.applied("Tanh", np.tanh, -x) if _is_negative(x) else k.applied("Tanh", np.tanh, x)


def sigmoid(k: Algebra, x: BoundedPolynomial) -> BoundedPolynomial:
    if _is_negative(x):
        return ONE - k.applied("Sigmoid", _sigmoid, -x)
    return k.applied("Sigmoid", _sigmoid, x)


def relu(k: Algebra, x: BoundedPolynomial) -> BoundedPolynomial:
    if _is_negative(x):
        return k.positive(x + relu(k, -x))
    return x if k.is_positive(x) else k.positive(k.applied("Relu", lambda v: np.maximum(v, 0.0), x))


def absolute(k: Algebra, x: BoundedPolynomial) -> BoundedPolynomial:
    return relu(k, x) + relu(k, -x)


def above(k: Algebra, x: BoundedPolynomial) -> BoundedPolynomial:
    """Return 1 if x > 0, else 0."""
    if x.number is not None:
        return number((x.number[0] > 0) * 1.0)
    return k.atom(k.lanes(x), "Above", k.identity(x), is_bit=True)


def greater(k: Algebra, a: BoundedPolynomial, b: BoundedPolynomial) -> BoundedPolynomial:
    for monomial in a.terms.keys() | b.terms.keys():
        (v, of_v), (w, of_w) = (x.terms.get(monomial, (0.0, 0.0)) for x in (a, b))
        if any_of((abs(v - w) <= of_v + of_w) & (of_v + of_w > 0)):
            raise UnprovenError("rounding decides a comparison")
    return above(k, a - b)


def exp(k: Algebra, x: BoundedPolynomial) -> BoundedPolynomial:
    return k.applied("Exp", np.exp, x)


def log(k: Algebra, x: BoundedPolynomial) -> BoundedPolynomial:
    return k.applied("Log", np.log, x)


def divided(k: Algebra, a: BoundedPolynomial, b: BoundedPolynomial) -> BoundedPolynomial:
    return a * k.applied("1/x", _inverse, b)


def maximum(k: Algebra, a: BoundedPolynomial, b: BoundedPolynomial) -> BoundedPolynomial:
    return b + relu(k, a - b)


def minimum(k: Algebra, a: BoundedPolynomial, b: BoundedPolynomial) -> BoundedPolynomial:
    return b - relu(k, b - a)


FUNCTIONS: dict[str, Function] = {
    "Neg": lambda k, x: -x,
    "Add": lambda k, a, b: a + b,
    "Sub": lambda k, a, b: a - b,
    "Mul": lambda k, a, b: a * b,
    "Div": divided,
    "Max": maximum,
    "Min": minimum,
    "Less": lambda k, a, b: greater(k, b, a),
    "Greater": greater,
    "LessOrEqual": lambda k, a, b: ONE - greater(k, a, b),
    "GreaterOrEqual": lambda k, a, b: ONE - greater(k, b, a),
    "And": lambda k, a, b: a * b,
    "Or": lambda k, a, b: a + b - a * b,
    "Not": lambda k, x: ONE - x,
    "Where": lambda k, bit, a, b: b + bit * (a - b),
    "Tanh": tanh,
    "Sigmoid": sigmoid,
    "Relu": relu,
    "Abs": absolute,
    "Exp": exp,
    "Log": log,
    "Affine": lambda k, x, alpha, beta: alpha * x + beta,
    "ScaledTanh": lambda k, x, alpha, beta: alpha * tanh(k, beta * x),
    "Elu": lambda k, x, alpha: relu(k, x) + (exp(k, -relu(k, -x)) - ONE) * alpha,
    "LeakyRelu": lambda k, x, alpha: relu(k, x) - relu(k, -x) * alpha,
    "ThresholdedRelu": lambda k, x, alpha: relu(k, x - alpha) + above(k, x - alpha) * alpha,
    "HardSigmoid": lambda k, x, alpha, beta: minimum(k, maximum(k, alpha * x + beta, ZERO), ONE),
    "Softplus": lambda k, x: relu(k, x) + log(k, exp(k, -absolute(k, x)) + ONE),
    "Softsign": lambda k, x: divided(k, x, absolute(k, x) + ONE),
}
"""By the name of the operator or activation: of polynomials, then its parameters."""


def _sigmoid(x: Any) -> Any:
    return 0.5 * (1 + np.tanh(0.5 * x))


def _inverse(x: Any) -> Any:
    if any_of(x == 0):
        raise UnprovenError("a division by 0")
    return 1 / x


def _is_negative(x: BoundedPolynomial) -> bool:
    """Return whether the first number of the last term is below 0: it is not for both x and -x."""
    if x.number is not None:
        return False
    value = x.terms[max(x.terms)][0]
    return bool((value[value != 0][0] if isinstance(value, np.ndarray) else value) < 0)
