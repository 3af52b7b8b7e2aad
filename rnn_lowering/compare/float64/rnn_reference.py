"""The reference of an RNN, GRU, LSTM or DynamicQuantizeLSTM, and inputs for it, chosen by its attributes.

Each row of a batch has its own magnitudes: pre-activations stay linear, saturate, or lie on both sides of each
clip and threshold. If a term of the node affects none of these rows, rows are added. Open sizes vary.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from itertools import cycle, islice, product

import numpy as np
import onnx_ir as ir

from rnn_lowering.compare.float64.node_reference import (
    ROWS,
    NodeReference,
    Symbols,
    by_symbol,
    bytes_in_float64,
    check_size,
)
from rnn_lowering.compare.float64.rnn_equations import ROUNDED, axes_of_a_row, evaluate, float64_of_node
from rnn_lowering.limits import most_bytes
from rnn_lowering.nodes.kinds import cell_named
from rnn_lowering.nodes.rnn import RecurrentSpec
from rnn_lowering.types import Array, array_of

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
        norms = sorted(float(np.linalg.norm(row.astype(np.float32))) for rows in W for row in rows)
        middle = norms[(len(norms) - 1) // 2 : len(norms) // 2 + 1]  # np.median imports numpy.ma
        norm = sum(middle) / max(len(middle), 1)
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
        without = other.outputs(other_inputs)
        moved = [_by_row(node, (without[s] - truth[s]) / allowed[s], s) for s in node.spec.outputs]
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
