"""RNN, GRU and LSTM in float64 NumPy, and how far rounding may move their outputs.

Attributes are read and steps computed independently of the lowering. Each row of a sequence is reversed within its
length before the steps, and its output after them, so one loop over time serves all directions. Rows that have
ended keep their state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from rnn_lowering.compare.float64.node_reference import (
    FLOAT32_EPS,
    Symbols,
    largest,
    limits_of,
    moved_by_a_rounding,
)
from rnn_lowering.nodes.kinds import cell_named
from rnn_lowering.types import Array

Function = Callable[[Array], Array]

ROUNDED = "rounded products"
"""An attribute that says how rows that have ended are rounded with the others (DynamicQuantizeLSTM)."""

_LARGE = 1 << 21
"""A gate's weight of more numbers is converted in parts, each while it is used. About so many numbers of X are
multiplied with W at once."""

_ACTIVATIONS: dict[str, tuple[Callable[..., Array], float | None, float | None]] = {
    "relu": (lambda x, a, b: np.maximum(x, 0), None, None),
    "tanh": (lambda x, a, b: np.tanh(x), None, None),
    "sigmoid": (lambda x, a, b: 0.5 * (1 + np.tanh(0.5 * x)), None, None),
    "affine": (lambda x, a, b: a * x + b, 0.0, 0.0),
    "leakyrelu": (lambda x, a, b: np.where(x < 0, a * x, x), 0.01, None),
    "thresholdedrelu": (lambda x, a, b: np.where(x > a, x, 0), 0.0, None),
    "scaledtanh": (lambda x, a, b: a * np.tanh(b * x), 0.0, 0.0),
    "hardsigmoid": (lambda x, a, b: np.minimum(np.maximum(a * x + b, 0), 1), 0.2, 0.5),
    "elu": (lambda x, a, b: np.where(x < 0, a * np.expm1(np.minimum(x, 0)), x), 1.0, None),
    "softsign": (lambda x, a, b: x / (1 + np.abs(x)), None, None),
    "softplus": (lambda x, a, b: np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))), None, None),
}
"""Name -> (function of x, alpha and beta; default alpha; default beta); None for a parameter that it lacks."""

_FACTORS = {"float32": (4, 16, 8), "float64": (4, 16, 8), "float16": (2, 4, 4), "bfloat16": (1, 1, 2)}
"""Allowed roundings: of 1, since gates are near 1; of the largest number in the row; and of the
difference that float32 shows. float16 kernels compute in float32 and round only their inputs and outputs; bfloat16
runs in float32 with rounded constants."""

_BAND = 8
"""Allowed roundings of a pre-activation near a threshold."""


@np.errstate(over="ignore", invalid="ignore")
def evaluate(
    op_type: str, attributes: Mapping[str, Any], inputs: Mapping[str, Array], dtype: Any = np.float64
) -> Symbols:
    """Return Y and the final states, as Y_h.

    Args:
        op_type: The operator of a `Cell`.
        attributes: Python values by attribute name; defaults are the operator specification's, except where
            onnxruntime's differ (parameters of Affine, ScaledTanh and ThresholdedRelu are 0). With `ROUNDED`, X
            and H are rounded to 8 bits before products; rows that have ended enter as "zeros", or are "held".
        inputs: X, W, R and what else is connected, by their names in the operator specification.
        dtype: The type to compute in; float32 shows what rounding does to the result.
    """
    page = {name: a if name in ("W", "R") else np.asarray(a, dtype) for name, a in inputs.items()}
    batch_first = bool(attributes.get("layout", 0))
    X = page["X"].swapaxes(0, 1) if batch_first else page["X"]
    T, N = X.shape[:2]
    dirs, H = page["R"].shape[0], page["R"].shape[2]
    lengths = np.asarray(inputs.get("sequence_lens", np.full(N, T)), np.int64)
    ended = attributes.get(ROUNDED)
    if ended:
        X = _rounded(X, X[: lengths.max(initial=0)])
    cell, (equation, default) = cell_named(op_type), EQUATIONS[op_type]
    functions = _functions(attributes, default * dirs)
    Y, finals = np.zeros((T, dirs, N, H), dtype), []
    alive, rows = np.arange(T)[:, None, None] < lengths[:, None], np.arange(N)
    all_alive: Array = np.all(alive, (1, 2))
    for d in range(dirs):
        order = _order(T, lengths, attributes.get("direction") == "reverse" or d == 1)
        states = [_initial(page, name, d, (N, H), batch_first) for name in cell.initial_states]
        weights: dict[str, Array] = {name: page[name][d] for name in ("W", "R", "B", "P") if name in page}
        k = _Direction(attributes, weights, [next(functions) for _ in default], H, dtype)
        for t, x in enumerate(k.of_X(X, order)):
            given = states
            if ended:
                h = np.where(t - 1 < lengths[:, None], states[0], 0.0) if ended == "zeros" and t else states[0]
                given = [_rounded(h, h), *states[1:]]
            new = equation(k, x, *given)
            if not all_alive[t]:
                new = [np.where(alive[t], n, old) for n, old in zip(new, states, strict=True)]
            states, Y[t, d] = new, new[0]
        Y[:, d] = np.where(alive, Y[order, d, rows], 0.0)
        finals.append([np.where(lengths[:, None] > 0, s, 0.0) for s in states])
    by_state = zip(cell.states, zip(*finals, strict=True), strict=True)
    stacked = {f"Y_{state}": np.stack(parts, axis=1 if batch_first else 0) for state, parts in by_state}
    return {"Y": Y.transpose(2, 0, 1, 3) if batch_first else Y, **stacked}


@np.errstate(over="ignore", invalid="ignore")
def float64_of_node(
    op_type: str, attributes: Mapping[str, Any], inputs: Mapping[str, Array], dtype: Any
) -> tuple[Symbols, Symbols]:
    """Return the outputs of a node in float64, and by how much a correct lowering may differ from them.

    Args:
        op_type, attributes, inputs: As in `evaluate`.
        dtype: The type of the node.

    Returns:
        Two dictionaries by symbol, of equal shapes. What is allowed is infinite for rows that exceed the type.
    """
    batch_first = bool(attributes.get("layout", 0))
    eps, _, too_large = limits_of(dtype)
    of_one, of_size, of_shown = _FACTORS[np.dtype(dtype).name]
    truth = evaluate(op_type, attributes, inputs)
    moved = moved_by_a_rounding(inputs, ("X", *cell_named(op_type).initial_states))
    rounded = evaluate(op_type, attributes, moved, np.float32)
    beside = [evaluate(op_type, a, inputs) for a in _thresholds_beside(attributes, eps)]
    if attributes.get(ROUNDED):  # a rounding may move a number by a step of the 8 bits: as far as all do
        without = {name: value for name, value in attributes.items() if name != ROUNDED}
        beside.append(evaluate(op_type, without, inputs))
    allowed: Symbols = {}
    for symbol, array in truth.items():
        axes = axes_of_a_row(symbol, batch_first)
        shown = largest(rounded[symbol] - array, axes) / FLOAT32_EPS
        size = largest(array, axes)
        level = eps * (of_one + of_size * size + of_shown * shown)
        for other in beside:
            level = level + 2 * largest(other[symbol] - array, axes)
        allowed[symbol] = np.where(np.isfinite(level) & (size < too_large), level, np.inf)
    return truth, _same_rows(truth, allowed, batch_first)


def axes_of_a_row(symbol: str, batch_first: bool) -> tuple[int, ...]:
    """The axes of an output that one direction of one row of the batch runs along."""
    if symbol != "Y":
        return (2,)
    return (1, 3) if batch_first else (0, 3)


def _rounded(array: Array, over: Array) -> Array:
    """Quantize by the range of `over` and dequantize, as DynamicQuantizeLinear and DequantizeLinear do."""
    single, over = array.astype(np.float32), over.astype(np.float32)
    least, most = over.min(initial=0), over.max(initial=0)
    scale = (most - least) / np.float32(255) or np.float32(1)
    zero_point = np.rint(np.clip(-least / scale, 0, 255))
    quantized = np.clip(np.rint(single / scale) + zero_point, 0, 255)
    return np.asarray((quantized - zero_point).astype(array.dtype) * array.dtype.type(scale))


def _functions(attributes: Mapping[str, Any], default: Sequence[str]) -> Iterator[Function]:
    """Yield the activations of all directions, each with its parameters from the two queues."""
    queues = [iter(attributes.get(f"activation_{name}", ())) for name in ("alpha", "beta")]
    for name in list(attributes.get("activations", ())) or default:
        function, *defaults = _ACTIVATIONS[name.lower()]
        taken = [None if d is None else np.float32(next(q, d)) for q, d in zip(queues, defaults, strict=True)]
        alpha, beta = (None if p is None else float(p) for p in taken)
        yield partial(function, a=alpha, b=beta)


def _order(T: int, lengths: Array, backwards: bool) -> Array:
    """Which step of X each row reads at each time, [seq, batch]; also the time at which each step of Y is made."""
    forwards = np.repeat(np.arange(T)[:, None], len(lengths), axis=1)
    within = lengths[None, :] - 1 - forwards
    return np.where(within >= 0, within, forwards) if backwards else forwards


def _initial(page: Mapping[str, Array], name: str, d: int, shape: tuple[int, int], batch_first: bool) -> Array:
    if name not in page:
        return np.zeros(shape, page["X"].dtype)
    return page[name][:, d] if batch_first else page[name][d]


def _product(weights: Array, x: Array) -> Array:
    """Return x W^T; of weights that are not converted yet, a part at a time."""
    if weights.dtype == x.dtype:
        return x @ weights.T
    count = max(1, _LARGE // weights.shape[1])
    parts = (weights[n : n + count].astype(x.dtype) for n in range(0, len(weights), count))
    return np.concatenate([x @ part.T for part in parts], axis=-1)


class _Direction:
    """The weights, activations and attributes of one direction."""

    def __init__(
        self, attributes: Mapping[str, Any], k: Mapping[str, Array], functions: list[Function], H: int, dtype: Any
    ) -> None:
        gates = k["W"].shape[0] // H
        self.attributes, self.functions, self.H = attributes, functions, H
        self.W, self.R = (k[n] if k[n].size > gates * _LARGE else np.asarray(k[n], dtype) for n in "WR")
        self.Wb, self.Rb = np.split(k.get("B", np.zeros(2 * gates * H, dtype)), 2)
        self.P = k["P"].reshape(-1, H) if "P" in k else None
        bound = attributes.get("clip")
        self.bound = np.inf if bound is None or np.isnan(bound) or bound < 0 else bound

    def of_X(self, X: Array, order: Array) -> Iterator[Array]:
        """Yield W Xt + Wb, [gates, batch, hidden], step by step in an order, [seq, batch]; many steps are
        multiplied at once."""
        (T, N), rows = order.shape, np.arange(order.shape[1])
        count = max(1, _LARGE // max(1, N * sum(self.W.shape)))
        for first in range(0, T, count):
            x = X[order[first : first + count], rows]
            product = _product(self.W, x.reshape(len(x) * N, X.shape[2])) + self.Wb
            gates = self._by_gate(product)
            yield from gates.reshape(len(gates), len(x), N, self.H).swapaxes(0, 1)

    def of_H(self, h: Array, gate: int = 0) -> Array:
        """Return R h + Rb, [gates, batch, hidden], from a gate on."""
        first = gate * self.H
        return self._by_gate(_product(self.R[first:], h) + self.Rb[first:])

    def _by_gate(self, array: Array) -> Array:
        return array.reshape(len(array), array.shape[1] // self.H, self.H).swapaxes(0, 1)

    def activated(self, number: int, x: Array) -> Array:
        """Return activation f (0), g (1) or h (2) of a clipped pre-activation."""
        return self.functions[number](x if self.bound == np.inf else np.clip(x, -self.bound, self.bound))


def _rnn(k: _Direction, x: Array, h: Array) -> list[Array]:
    return [k.activated(0, x[0] + k.of_H(h)[0])]


def _gru(k: _Direction, x: Array, h: Array) -> list[Array]:
    of_h = k.of_H(h)
    z, r = k.activated(0, x[:2] + of_h[:2])
    hidden = r * of_h[2] if k.attributes.get("linear_before_reset", 0) else k.of_H(r * h, 2)[0]
    return [(1 - z) * k.activated(1, x[2] + hidden) + z * h]


def _lstm(k: _Direction, x: Array, h: Array, c: Array) -> list[Array]:
    gates = x + k.of_H(h)
    i, o, f = k.activated(0, gates[:3]) if k.P is None else gates[:3]
    if k.P is not None:
        i, f = (k.activated(0, gate + P * c) for gate, P in ((i, k.P[0]), (f, k.P[2])))
    f = 1 - i if k.attributes.get("input_forget", 0) else f
    new = f * c + i * k.activated(1, gates[3])
    o = o if k.P is None else k.activated(0, o + k.P[1] * new)
    return [o * k.functions[2](new), new]


EQUATIONS: dict[str, tuple[Callable[..., list[Array]], list[str]]] = {
    "RNN": (_rnn, ["Tanh"]),
    "GRU": (_gru, ["Sigmoid", "Tanh"]),
    "LSTM": (_lstm, ["Sigmoid", "Tanh", "Tanh"]),
}
"""By the operator of a `Cell`: the step from W Xt + Wb, [gates, batch, hidden], and the states to the next states,
and the default activations."""


def _same_rows(truth: Symbols, allowed: Symbols, batch_first: bool) -> Symbols:
    """If a row overflows in one output, skip it in all."""
    axes = {symbol: 0 if batch_first else array.ndim - 2 for symbol, array in truth.items()}
    levels = {symbol: np.moveaxis(level, axes[symbol], 0) for symbol, level in allowed.items()}
    beyond = np.any([np.isinf(level).any(axis=tuple(range(1, level.ndim))) for level in levels.values()], axis=0)
    for symbol, level in levels.items():
        level[beyond] = np.inf
        allowed[symbol] = np.broadcast_to(np.moveaxis(level, 0, axes[symbol]), truth[symbol].shape)
    return allowed


def _thresholds_beside(attributes: Mapping[str, Any], eps: float) -> Iterator[dict[str, Any]]:
    """Yield attributes whose thresholds are a little lower and higher: an activation that jumps turns a rounding
    into the whole jump."""
    if any(str(name).lower() == "thresholdedrelu" for name in attributes.get("activations", ())):
        alphas = attributes.get("activation_alpha", ())
        for sign in (-1, 1):
            moved = [alpha + sign * _BAND * eps * max(1.0, abs(alpha)) for alpha in alphas]
            yield {**attributes, "activation_alpha": moved}
