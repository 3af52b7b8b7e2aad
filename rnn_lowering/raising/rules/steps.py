"""RNN, GRU and LSTM nodes of one step: torch writes its LSTMCell as such a node in a Loop."""

from __future__ import annotations

from functools import partial

import numpy as np
import onnx_ir as ir

from rnn_lowering.raising.rules.arithmetic import product
from rnn_lowering.raising.rules.elements import Given, Step, StepRule, as_numbers, as_polynomials, each
from rnn_lowering.types import Array


def _node(gates: int, e: Step, node: ir.Node, given: Given) -> list[Array] | None:
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
    new = _function(e, "Tanh", of_x + of_h(h, 0, 1)) if gates == 1 else None
    if new is None:
        linear = bool(node.attributes.get_int("linear_before_reset", 0))
        z, r = np.split(_function(e, "Sigmoid", of_x[:, : 2 * size] + of_h(h, 0, 2)), 2, 1)
        inner = r * of_h(h, 2, 3) if linear else of_h(r * h, 2, 3)
        n = _function(e, "Tanh", of_x[:, 2 * size :] + inner)
        new = n - z * n + z * h
    return [new[None, None], new[None]]


def _lstm(e: Step, sums: Array, c: Array) -> list[Array]:
    i, o, f, g = np.split(sums, 4, 1)
    i, o, f = (_function(e, "Sigmoid", gate) for gate in (i, o, f))
    c = f * c + i * _function(e, "Tanh", g)
    h = o * _function(e, "Tanh", c)
    return [h[None, None], h[None], c[None]]


def _of_state(e: Step, R: Array, bias: Array, state: Array, first: int, last: int) -> Array:
    """Return the sums of a state for some of the gates."""
    rows = slice(first * R.shape[-1], last * R.shape[-1])
    return _sums(product(e, state, np.ascontiguousarray(R[rows].T)), bias[rows])


def _sums(array: Array, bias: Array) -> Array:
    return np.asarray(array + as_numbers(bias), object)


def _function(e: Step, name: str, array: Array) -> Array:
    return each(lambda p: e.variables.function(name, p), array)


STEPS: dict[str, StepRule] = {"GRU": partial(_node, 3), "LSTM": partial(_node, 4), "RNN": partial(_node, 1)}
"""By operator, what it computes of polynomials in one step."""
