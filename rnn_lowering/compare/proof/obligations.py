"""What must hold so that a lowered node is proven, and `prove`, which checks it.

1. The node and what replaced it compute equal polynomials, output by output, at a few lengths and batch sizes.
2. Sizes, lengths and counters meet only each other and -1, 0 and 1, so both do the same at all sizes (`sizes`).
3. After each step, each state of a loop is a state of the node, so they are equal at every length (`loops`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from rnn_lowering.compare.proof.equations import Specification
from rnn_lowering.compare.proof.loops import CONTROL
from rnn_lowering.compare.proof.machine import Machine, SymbolicRows
from rnn_lowering.compare.proof.operators import OPERATORS
from rnn_lowering.compare.proof.polynomials import Effort, UnprovenError
from rnn_lowering.compare.proof.sizes import RunSizes, symbol
from rnn_lowering.types import Array

_SMALL = ((1, 1), (2, 1), (1, 2), (1, 3))
"""(T, N) of runs where both are open, beside one at sizes that no constant has."""

_CANDIDATES = sorted(((T, N) for T in range(4, 40) for N in range(3, 40)), key=lambda sizes: sizes[0] * sizes[1])
_MOST_FIXED = 4096

_NO_SIZES = ("axis", "axes", "perm", "to")
"""Attributes whose integers are no sizes."""


@dataclass(frozen=True)
class Claim:
    """That a graph computes what nodes do.

    Attributes:
        nodes: Models of the nodes whose steps the graph may take, the claimed one last.
        lowered: The graph.
        shapes: The shape of each input at T and N.
        T, N: The length and batch size if the node fixes them; None if they are open.
        lengths: The inputs that are lengths of sequences.
        rounding: Half a rounding of 1 in the type of the node.
    """

    nodes: Sequence[onnx.ModelProto]
    lowered: onnx.ModelProto
    shapes: Mapping[str, Sequence[int | str]]
    T: int | None
    N: int | None
    lengths: frozenset[str]
    rounding: float


def prove(claim: Claim, effort: Effort | None = None) -> None:
    """Check a claim.

    Raises:
        UnprovenError: It is not proven, with the reason.
    """
    rows = SymbolicRows(effort or Effort())
    for T, N, axes in _sizes(claim):
        for lengths in _lengths(claim, T, N):
            _check_run(claim, rows, T, N, axes, lengths)


def _sizes(claim: Claim) -> Iterator[tuple[int, int, RunSizes]]:
    """Yield T and N of each run, and which sizes are open there: first those that no constant has."""

    def at(T: int, N: int) -> tuple[int, int]:
        return T if claim.T is None else claim.T, N if claim.N is None else claim.N

    if None in (claim.T, claim.N):
        fixed = frozenset({0, 1, *_integers(claim)})
        for T, N in map(at, *zip(*_CANDIDATES, strict=True)):
            axes = RunSizes(T if claim.T is None else None, N if claim.N is None else None, fixed)
            if axes.is_clear():
                yield T, N, axes
                break
        else:
            raise UnprovenError("too large")
    for T, N in dict.fromkeys(map(at, *zip(*_SMALL, strict=True))):
        yield T, N, RunSizes(None, None, None)


def _integers(claim: Claim) -> Iterator[int]:
    """Yield the sizes and small integers of all models."""
    yield from (size for shape in claim.shapes.values() for size in shape if isinstance(size, int))
    yield from (size for size in (claim.T, claim.N) if size)
    for model in (*claim.nodes, claim.lowered):
        yield from _integers_of(model.graph)


def _integers_of(graph: onnx.GraphProto) -> Iterator[int]:
    for tensor in graph.initializer:
        yield from _integers_in(tensor)
    for attribute in (a for node in graph.node for a in node.attribute):
        if attribute.name not in _NO_SIZES:
            yield from (attribute.i, *attribute.ints)
        if attribute.HasField("t"):
            yield from _integers_in(attribute.t)
        if attribute.HasField("g"):
            yield from _integers_of(attribute.g)


def _integers_in(tensor: onnx.TensorProto) -> Iterator[int]:
    yield from tensor.dims
    if tensor.data_type in (onnx.TensorProto.INT64, onnx.TensorProto.INT32) and np.prod(tensor.dims) < _MOST_FIXED:
        yield from map(int, onnx.numpy_helper.to_array(tensor, "/").flat)


def _lengths(claim: Claim, T: int, N: int) -> Iterator[list[int]]:
    """Yield lengths of the sequences, so that each row has each length; the longest may be shorter than T."""
    if not claim.lengths:
        yield [T] * N
        return
    every = [T, *range(T)]
    for first in range(len(every)):
        yield [every[(first + row) % len(every)] for row in range(N)]
    yield from ([length] * N for length in {0, max(T - 1, 0)} if N > 1)


def _check_run(claim: Claim, rows: SymbolicRows, T: int, N: int, axes: RunSizes, lengths: list[int]) -> None:
    """Compare the outputs at one T and N."""
    rows.begin_run()
    sizes: dict[int | str, Any] = {"T": T, "N": N}
    inputs = {
        name: _lengths_input(lengths, axes)
        if name in claim.lengths
        else rows.symbols([sizes.get(size, size) for size in shape], "input", name)
        for name, shape in claim.shapes.items()
    }
    specified = Specification(rows)
    outputs: list[Array] = []
    known = dict(inputs)
    for model in claim.nodes:
        outputs = specified.run(model.graph, known)
        known.update(zip((v.name for v in model.graph.output), outputs, strict=True))
    machine = Machine(rows, axes, claim.rounding, CONTROL, OPERATORS)
    for expected, got in zip(outputs, machine.run(claim.lowered.graph, inputs), strict=True):
        if expected.shape != got.shape:
            raise UnprovenError(f"the shapes differ at T = {T}, N = {N}")
        if not machine.equal(expected, got):
            raise UnprovenError(f"polynomials differ at T = {T}, N = {N}")


def _lengths_input(lengths: list[int], axes: RunSizes) -> Array:
    if axes.fixed is None:
        return np.array(lengths, np.int64)
    array = np.empty(len(lengths), object)
    array[:] = [symbol(value, f"length {n}") for n, value in enumerate(lengths)]
    return array
