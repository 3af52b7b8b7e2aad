"""Functions of polynomials: activations, and the Clips that exporters write them with."""

from __future__ import annotations

from functools import partial

import numpy as np
import onnx_ir as ir

from rnn_lowering.facts.parameters import parameter
from rnn_lowering.raising.polynomials import Atom, Polynomial, Variables, close, constant
from rnn_lowering.raising.rules.elements import Given, Step, StepRule, each
from rnn_lowering.types import Array

_LARGEST = 1e38
"""A bound of a Clip as large as this is none."""


def _function(name: str, e: Step, node: ir.Node, given: Given) -> Array:
    assert given[0] is not None
    alpha = _ALPHAS.get(name)
    if alpha is not None and "alpha" in node.attributes:
        alpha = node.attributes["alpha"].as_float()
    if name == "Tanh":
        return each(lambda p: e.variables.function(name, _without_wide_clip(e.variables, p)), given[0])
    return each(lambda p: e.variables.function(name, p, alpha), given[0])


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


def _relu(e: Step, node: ir.Node, given: Given) -> Array:
    assert given[0] is not None
    return each(lambda p: _rectified(e.variables, p), given[0])


def _hard_sigmoid(e: Step, node: ir.Node, given: Given) -> Array:
    assert given[0] is not None
    alpha = node.attributes["alpha"].as_float() if "alpha" in node.attributes else 0.2
    beta = node.attributes["beta"].as_float() if "beta" in node.attributes else 0.5
    return each(lambda p: e.variables.function("HardSigmoid", p * alpha + beta), given[0])


def _clip(e: Step, node: ir.Node, given: Given) -> Array:
    bounds: list[float | None] = [None, None]
    for n, name in enumerate(("min", "max")):
        held = parameter(node, name, e.opset)
        if isinstance(held, ir.Attr):
            bounds[n] = held.as_float()
        elif held is not None:
            bounds[n] = float(np.asarray(given[n + 1], np.float64).reshape(()))
    low, high = (None if bound is None or abs(bound) > _LARGEST else bound for bound in bounds)
    assert given[0] is not None
    return each(lambda p: _clipped(e.variables, p, low, high), given[0])


def _extremum(e: Step, node: ir.Node, given: Given) -> Array | None:
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
