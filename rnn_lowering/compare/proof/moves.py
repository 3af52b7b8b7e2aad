"""Operators that move elements, whatever these are, so NumPy does; and what they note of sizes and moves."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np

from rnn_lowering.compare.proof.axes import Moves
from rnn_lowering.compare.proof.machine import Machine, Operator
from rnn_lowering.compare.proof.polynomials import UnprovenError
from rnn_lowering.compare.proof.sizes import SymbolicSize
from rnn_lowering.compare.proof.symbolic_rows import is_symbolic, refuse_large
from rnn_lowering.types import Array


def plain(array: Array | Sequence[Any]) -> list[int]:
    """Return integers that no size decides."""
    values = list(np.asarray(array, object).flat)
    if any(isinstance(value, SymbolicSize) for value in values):
        raise UnprovenError("a size is no such number")
    return [int(value) for value in values]


def sizes_made(m: Machine, shape: Array) -> list[int]:
    """Return the sizes of a new array."""
    for size in shape.flat:
        m.axes.made(size)
    return [int(size) for size in shape.flat]


def _reshape(m: Machine, x: Array, shape: Array, *, allowzero: int = 0) -> Array:
    wanted = sizes_made(m, shape)
    if not allowzero:
        wanted = [x.shape[n] if size == 0 else size for n, size in enumerate(wanted)]
    return _reshaped(m, x, wanted)


def _reshaped(m: Machine, x: Array, shape: Sequence[int]) -> Array:
    result = x.reshape(shape)
    m.axes.check_order(x.shape, result.shape)
    return result


def _flatten(m: Machine, x: Array, *, axis: int = 1) -> Array:
    axis += x.ndim * (axis < 0)
    return _reshaped(m, x, [int(np.prod(x.shape[:axis])), int(np.prod(x.shape[axis:]))])


def _of_axes(change: Operator) -> Operator:
    """Return an operator that names axes, in an attribute or an input."""

    def operator(m: Machine, x: Array, given: Array | None = None, /, *, axes: Sequence[int] = ()) -> Array:
        if not (axes if given is None else given.ndim == 1 and given.size):
            raise UnprovenError("no axes are named")
        return np.asarray(change(x, tuple(axes if given is None else plain(given))))

    return operator


def _concat(m: Machine, *parts: Array, axis: int) -> Array:
    before = m.moves(*parts)
    for part in parts:
        m.check_stays(part, *part.shape)
    if any(map(is_symbolic, parts)):
        parts = tuple(map(m.lifted, parts))
    result, sizes = np.concatenate(parts, axis), [part.shape[axis] for part in parts]
    opened = list(filter(m.axes.is_open, sizes))
    if len(parts) > 1 and opened:
        first, closed = sizes.index(opened[0]), sum(sizes) - sum(opened)
        in_front = closed if len(opened) > 1 else sum(sizes[:first])
        moves = [m.axes.beside(size, in_front) + m.axes.behind(size, closed - in_front) for size in opened]
        m.moved(result, reduce(Moves.__or__, moves) + before)
    m.axes.joined(sizes, result.shape[axis])
    return result


def _split(
    m: Machine,
    x: Array,
    given: Array | None = None,
    /,
    *,
    axis: int = 0,
    split: Sequence[int] = (),
    num_outputs: int = 0,
) -> list[Array]:
    if m.axes.is_open(x.shape[axis]):
        raise UnprovenError("an open axis is split")
    count = num_outputs or len(m.asked)
    sizes = (list(split) or [x.shape[axis] // count] * count) if given is None else plain(given)
    if sum(sizes) != x.shape[axis]:
        raise UnprovenError("Split has other sizes")
    m.axes.closed(*sizes)
    if is_symbolic(x) and axis in (-1, x.ndim - 1):
        return m.rows.split(x, sizes)
    pieces = np.split(x, np.cumsum(sizes)[:-1], axis)
    if is_symbolic(x) and axis == 0:
        m.rows.note_pieces(x, pieces)
    return pieces


def _slice(m: Machine, x: Array, *given: Array | None, **of_attributes: Sequence[int]) -> Array:
    names = ("starts", "ends", "axes", "steps")
    parts: dict[str, Sequence[Any]] = dict(of_attributes)
    parts |= {name: list(array.flat) for name, array in zip(names, given, strict=False) if array is not None}
    if parts.keys() - set(names):
        raise UnprovenError("Slice has other attributes")
    starts, ends, steps = parts["starts"], parts["ends"], parts.get("steps", [1] * len(parts["starts"]))
    m.check_stays(x, *x.shape)
    for axis, start, end, step in zip(
        plain(parts.get("axes", range(len(starts)))), starts, ends, steps, strict=True
    ):
        size = x.shape[axis]
        moves = m.axes.chosen(size, start) + m.axes.chosen(size, end, past=int(np.sign(step)))
        if isinstance(step, SymbolicSize) or (abs(step) != 1 and m.axes.is_open(size)):
            raise UnprovenError("an open axis is sliced in steps")
        rows = _rows(size, int(start), int(end), int(step))
        before = m.axes.from_the_end(m.moves(x)) if min(start, end, step) < 0 else m.moves(x)
        x = m.moved(np.take(x, rows, axis), reduce(Moves.__add__, map(m.moves, given), moves + before))
        m.axes.sliced(size, x.shape[axis], start, end)
    return x


def _rows(size: int, start: int, end: int, step: int) -> list[int]:
    """Return the rows that a Slice takes: Python's rule, but for an end that is before the first row in reverse."""
    low, high = (0, size) if step > 0 else (-1, size - 1)
    start, end = (min(max(v + size if v < 0 else v, low), high) for v in (start, end))
    return list(range(start, end, step))


def _gather(m: Machine, x: Array, index: Array, *, axis: int = 0) -> Array:
    m.check_stays(x, *x.shape)
    before = m.axes.from_the_end(m.moves(x)) if min(index.flat, default=0) < 0 else m.moves(x)
    moves = m.axes.chosen(x.shape[axis], *index.flat, alone=True) + before + m.moves(index)
    rows = index.astype(np.int64)
    if rows.size and not (-x.shape[axis] <= rows.min() and rows.max() < x.shape[axis]):
        raise UnprovenError("an index is beyond its axis")
    refuse_large(x.size // max(1, x.shape[axis]), np.size(rows))
    shape = *x.shape[: axis % x.ndim], *rows.shape, *x.shape[axis % x.ndim + 1 :]
    return m.moved(np.take(x, rows.ravel(), axis).reshape(shape), moves)


def _expand(m: Machine, x: Array, shape: Array) -> Array:
    sizes = np.broadcast_shapes(x.shape, tuple(sizes_made(m, shape)))
    refuse_large(*sizes)
    return np.broadcast_to(x, sizes)


MOVES: dict[str, Operator] = {
    "Identity": lambda m, x: x,
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Transpose": lambda m, x, *, perm=None: np.transpose(x, perm),
    "Squeeze": _of_axes(np.squeeze),
    "Unsqueeze": _of_axes(np.expand_dims),
    "Concat": _concat,
    "Split": _split,
    "Slice": _slice,
    "Gather": _gather,
    "Expand": _expand,
}
"""Those that move the elements of their first input, or of all."""
