"""RNN, GRU and LSTM in float64 NumPy, and how far rounding may move their outputs.

Attributes are read and steps computed independently of the lowering. Each row of a sequence is reversed within its
length before the steps, and its output after them, so one loop over time serves all directions. Rows that have
ended keep their state.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from functools import partial
from itertools import cycle, islice, product
from typing import Any

import numpy as np
import onnx_ir as ir

from rnn_lowering.compare.float64.node_reference import (
    FLOAT32_EPS,
    ROWS,
    NodeReference,
    Symbols,
    by_symbol,
    bytes_in_float64,
    check_size,
    largest,
    limits_of,
    moved_by_a_rounding,
)
from rnn_lowering.limits import most_bytes
from rnn_lowering.nodes.kinds import cell_named
from rnn_lowering.nodes.rnn import RecurrentSpec
from rnn_lowering.types import Array, array_of

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


# The reference of RNN, GRU, LSTM and DynamicQuantizeLSTM: `rnn_float64`, and inputs chosen by the attributes.
# Each row of a batch has its own magnitudes: pre-activations stay linear, saturate, or lie on both sides of each
# clip and threshold. If a term of the node affects none of these rows, rows are added. Open sizes vary.


_SIZES = ((1, 1), (5, 9), (2, 4), (70, 4), (33, 9), (3, 3), (4, 2))
"""(seq_length, batch_size) of the runs, where the node leaves them open."""

_SIZES_OF_PROVEN = ((1, 1), (5, 9), (33, 4))
"""Those of a node that is proven: its runs show only how it rounds."""

_INPUT_SIZE = 4
_PROBE_LENGTH = 3
_FEWEST_FEEDS, _MOST_FEEDS = 3, 12
_LARGEST, _LARGEST_HALF = 1e6, 1e2
"""Bounds of the standard deviation of X."""

_BUDGET = 1e9
"""About how many multiplications all runs of one node may take: a large node gets fewer, shorter runs."""

_PER_STEP = 3e5
"""The cost of a step beside its multiplications, in multiplications."""


@dataclass(frozen=True)
class _Magnitudes:
    """The magnitudes of one row: standard deviation of W * X, and bounds of the first state and of the others."""

    x: float
    first: float
    others: float


_USUAL = (_Magnitudes(1, 0.5, 0.5), _Magnitudes(6, 1, 3), _Magnitudes(0.05, 0.05, 0.05), _Magnitudes(1, 10, 10))
_OTHERS = tuple(_Magnitudes(*three) for three in product((1e-3, 0.1, 0.5, 2, 30, 1e3), (0.1, 1, 30), (0.1, 1, 30)))


def _numbers(spec: RecurrentSpec, T: int, N: int, width: int) -> int:
    """Return how many numbers X and Y of one run have."""
    return T * N * (width + len(spec.directions) * spec.hidden_size)


class RnnReference(NodeReference[RecurrentSpec]):
    """The reference of an RNN, GRU or LSTM; its attributes say how it quantizes what it multiplies."""

    @classmethod
    def of(cls, node: ir.Node, spec: RecurrentSpec) -> RnnReference:
        rounded = {ROUNDED: "zeros" if spec.gives_sequence else "held"} if spec.rounds else {}
        return cls(spec, {name: a.value for name, a in node.attributes.items() if not a.is_ref()} | rounded)

    def outputs(self, inputs: Mapping[str, Array]) -> Symbols:
        return evaluate(self.spec.op_type, self.attributes, inputs)

    def outputs_and_allowed(self, inputs: Mapping[str, Array]) -> tuple[Symbols, Symbols]:
        dtype = self.spec.dtype.numpy()
        return float64_of_node(self.spec.op_type, self.attributes, inputs, dtype)

    def feeds(self, names: Mapping[str, str], rng: np.random.Generator, *, is_proven: bool) -> list[Symbols]:
        make = _InputMaker(self, names, rng)
        rows = make.usual_rows() if is_proven else make.rows()
        sizes = make.sizes(len(rows), _SIZES_OF_PROVEN if is_proven else _SIZES)
        order = cycle(rows)
        return [make.feed(T, list(islice(order, N)), run) for run, (T, N) in enumerate(sizes)]

    def usual_feed(self, names: Mapping[str, str], rng: np.random.Generator, steps: int) -> Symbols:
        """Return inputs of one run, none of which saturates the node; see `feeds`."""
        spec, make = self.spec, _InputMaker(self, names, rng)
        T = max(steps, make.longest) if spec.seq_length is None else spec.seq_length
        N = ROWS if spec.batch_size is None else spec.batch_size
        check_size(spec, _numbers(spec, T, N, make.width))
        return make.feed(T, [_USUAL[0]] * N, 0)

    def single_rows(self, feeds: Sequence[Mapping[str, Array]]) -> list[Symbols]:
        """Return a feed for each row of the batch if the node rounds; nothing if its batch size is fixed above 1.

        A row of length 0 is left out if Y is not connected: the kernel then reads uninitialized memory.
        """
        spec = self.spec
        if not spec.rounds or spec.batch_size not in (None, 1):
            return []
        rows = [spec.of_rows(feed, slice(n, n + 1)) for feed in feeds for n in range(feed["X"].shape[1])]
        return [row for row in rows if spec.gives_sequence or row.get("sequence_lens", [1])[0]]

    def axes_of_a_row(self, symbol: str) -> tuple[int, ...]:
        """Return the axes that one direction of one row of the batch runs along."""
        return axes_of_a_row(symbol, bool(self.spec.layout))


class _InputMaker:
    """Makes the inputs of one node. Weights that are not constant are the same in all runs."""

    def __init__(self, node: RnnReference, names: Mapping[str, str], rng: np.random.Generator) -> None:
        self.node, self.spec, self.names, self.rng = node, node.spec, names, rng
        spec = node.spec
        self.dtype = spec.dtype.numpy()
        self.constants = {symbol: array_of(tensor) for symbol, tensor in spec.constants.items()}
        self.longest = int(self.constants.get("sequence_lens", np.ones(1)).max(initial=1))
        H, dirs = spec.hidden_size, len(spec.directions)
        gate_rows = len(spec.cell.gates) * H
        self.width = _INPUT_SIZE if spec.input_size is None else spec.input_size
        P = len(spec.cell.peepholes) * H
        shapes = {"W": (gate_rows, self.width), "R": (gate_rows, H), "B": (2 * gate_rows,), "P": (P,)}
        T, N = (1 if size is None else size for size in (spec.seq_length, spec.batch_size))
        weights = sum(dirs * math.prod(shapes[s]) for s in shapes if s in names)
        check_size(spec, weights + _numbers(spec, T, N, self.width))
        fed = {s: rng.uniform(-1, 1, (dirs, *shapes[s])) * H**-0.5 for s in shapes if s in names}
        self.weights: Symbols = {symbol: array.astype(self.dtype) for symbol, array in fed.items()}
        W = {**self.constants, **self.weights}["W"]
        norms = [float(np.linalg.norm(row.astype(np.float32))) for rows in W for row in rows]
        norm = float(np.median(norms)) if W.size else 0.0
        self.x_unit = 1 / norm if norm > 0 else 1.0

    def usual_rows(self) -> list[_Magnitudes]:
        """Return magnitudes of ordinary rows, and of those that meet bounds."""
        return [*_USUAL, *(_Magnitudes(1.5 * bound, 1, bound) for bound in self._bounds())]

    def rows(self) -> list[_Magnitudes]:
        """Choose the magnitudes of the rows, the most usual first."""
        usual = self.usual_rows()
        tried = [*usual, *_OTHERS]
        terms = 4 * len(self.spec.cell.gates) + 8
        if "X" not in self.names or terms * self._cost(_PROBE_LENGTH, len(tried)) > 2 * _BUDGET:
            return usual
        T = self.spec.seq_length
        inputs = self._probe(_PROBE_LENGTH if T is None else min(T, _PROBE_LENGTH), tried)
        return [*usual, *(tried[n] for n in _rows_that_matter(self.node, inputs, len(usual)))]

    def _probe(self, T: int, rows: Sequence[_Magnitudes]) -> Symbols:
        """Return all inputs of a run of full length, whatever batch size the node has."""
        batch_axis = 0 if self.spec.layout else 1
        inputs = {**self.constants, **self.feed(T, rows, 0)}
        inputs.pop("sequence_lens", None)
        for symbol in sorted(self.constants.keys() & {*self.spec.cell.initial_states}):
            order = np.arange(len(rows)) % max(inputs[symbol].shape[batch_axis], 1)
            inputs[symbol] = inputs[symbol].take(order, batch_axis)
        return inputs

    def _bounds(self) -> Iterator[float]:
        """Yield where pre-activations are bounded, or activations have a bend or a jump."""
        spec = self.spec
        if spec.clip:
            yield spec.clip
        for activation in {a for direction in spec.activations for a in direction}:
            if activation.name == "ThresholdedRelu" and activation.alpha:
                yield abs(activation.alpha)
            if activation.name == "HardSigmoid" and activation.alpha:
                yield max(abs(activation.beta), abs(1 - activation.beta)) / abs(activation.alpha)

    def sizes(self, rows: int, wanted: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Choose (seq_length, batch_size) of each run, so that all rows occur and the budget is kept.

        Args:
            rows: Their number.
            wanted: The sizes where the node leaves them open.
        """
        T, N = self.spec.seq_length, self.spec.batch_size
        least = self.longest
        open_sizes = [(max(t, least) if T is None else T, n if N is None else N) for t, n in wanted]
        sizes = list(dict.fromkeys(open_sizes))
        while sum(n for _, n in sizes) < 2 * rows and len(sizes) < _MOST_FEEDS:
            sizes.append(open_sizes[len(sizes) % len(open_sizes)])
        share, spent = _BUDGET / len(sizes), 0.0
        kept: list[tuple[int, int]] = []
        for t, n in sizes:
            while N is None and n > 1 and self._exceeds(t, n, share):
                n //= 2
            while T is None and t > least and self._exceeds(t, n, share):
                t = max(t // 2, least)
            spent += self._cost(t, n)
            if spent <= _BUDGET or len(kept) < _FEWEST_FEEDS:
                kept.append((t, n))
        return kept

    def _exceeds(self, T: int, N: int, share: float) -> bool:
        """Whether a run costs more than its share, or needs more bytes than the limit."""
        return self._cost(T, N) > share or bytes_in_float64(_numbers(self.spec, T, N, self.width)) > most_bytes()

    def _cost(self, T: int, N: int) -> float:
        """Estimate the multiplications of the reference in one run."""
        s = self.spec
        per_row = len(s.directions) * len(s.cell.gates) * s.hidden_size * (self.width + s.hidden_size)
        return T * (_PER_STEP * len(s.directions) + float(per_row) * max(N, 4))

    def feed(self, T: int, rows: Sequence[_Magnitudes], run: int) -> Symbols:
        """Return the inputs of one run."""
        N, spec = len(rows), self.spec
        limit = _LARGEST_HALF if self.dtype == np.float16 else _LARGEST
        x, first, others = np.array([astuple(row) for row in rows]).reshape(N, 3).T
        made: Symbols = dict(self.weights)
        if "X" in self.names:
            scale = np.minimum(x * self.x_unit, limit)[:, None]
            made["X"] = self._per_row(self.rng.standard_normal((T, N, self.width)) * scale)
        for n, symbol in enumerate(spec.cell.initial_states):
            if symbol in self.names:
                shape = len(spec.directions), N, spec.hidden_size
                made[symbol] = self._per_row(self.rng.uniform(-1, 1, shape) * (others if n else first)[:, None])
        if "sequence_lens" in self.names:
            made["sequence_lens"] = self._lengths(T, N, run)
        return by_symbol(made, self.names)

    def _per_row(self, array: Array) -> Array:
        """[seq or directions, batch, size] -> the node's type and layout."""
        return (array.swapaxes(0, 1) if self.spec.layout else array).astype(self.dtype)

    def _lengths(self, T: int, N: int, run: int) -> Array:
        """Choose lengths from 0 to T: T first (where there is one row, in every other run), 0 and 1 among them."""
        lengths = self.rng.integers(min(2, T), T + 1, N)
        special = [T, T // 2, 0, min(1, T)]
        for row in range(min(N, len(special))):
            lengths[row] = special[row if N > 1 else (0, run // 2 % 4)[run % 2]]
        return lengths.astype(np.int32)


_CLEARLY = 20
"""A fault in a term shows if the term changes the result by this many times the allowed difference."""


def _rows_that_matter(node: RnnReference, inputs: Symbols, chosen: int) -> list[int]:
    """Return the rows of the batch to add to the first `chosen` ones, so that each term matters to one of them.

    Args:
        inputs: All inputs of the node; all rows have full length.
        chosen: The number of rows that are always used.
    """
    truth, allowed = node.outputs_and_allowed(inputs)
    added: list[int] = []
    for other, other_inputs in _without_each_term(node, inputs):
        found = other.outputs(other_inputs)
        moved = [_by_row(node, (found[s] - truth[s]) / allowed[s], s) for s in node.spec.outputs]
        for by_row in np.max(moved, axis=0):  # of each direction
            used = max(by_row[:chosen].max(initial=0.0), by_row[added].max(initial=0.0))
            best = int(by_row.argmax())
            if used < _CLEARLY and by_row[best] > max(2 * used, 1.0):
                added.append(best)
    return added


def _by_row(node: RnnReference, array: Array, symbol: str) -> Array:
    """The largest magnitude, [directions, batch]."""
    largest: Array = np.nan_to_num(np.abs(array)).max(axis=node.axes_of_a_row(symbol), initial=0.0)
    return largest.T if node.spec.layout else largest


def _without_each_term(node: RnnReference, inputs: Symbols) -> Iterator[tuple[RnnReference, Symbols]]:
    """Yield the node without each gate of each weight, without each state and its clip, and with each parameter
    changed."""
    cell, attributes = cell_named(node.spec.op_type), node.attributes
    gates = len(cell.gates)
    weights = {"W": gates, "R": gates, "B": 2 * gates, "P": len(cell.peepholes)}
    parts = weights | dict.fromkeys(cell.initial_states, 1)
    for symbol, count in parts.items():
        if symbol in inputs:
            size = inputs[symbol].shape[1] // count
            for n in range(count):
                less = np.array(inputs[symbol])
                less[:, n * size : (n + 1) * size] = 0
                yield node, {**inputs, symbol: less}
    for name in ("activation_alpha", "activation_beta"):
        given = list(attributes.get(name, ()))
        for n, number in enumerate(given):
            moved = [*given[:n], 1.05 * number + 0.01, *given[n + 1 :]]
            yield replace(node, attributes={**attributes, name: moved}), inputs
    clip = attributes.get("clip")
    if clip is not None and np.isfinite(clip):
        yield replace(node, attributes={name: a for name, a in attributes.items() if name != "clip"}), inputs
        yield replace(node, attributes={**attributes, "clip": 1.1 * clip}), inputs
