"""Rows of the batch: none depends on the others, so that large outputs are judged a few rows at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rnn_lowering.spec.node import RecurrentSpec
from rnn_lowering.types import Array

_AXES = {"X": 1, "sequence_lens": 0, "initial_h": 1, "initial_c": 1, "Y": 2, "Y_h": 1, "Y_c": 1}
"""The axis of the batch where layout is 0; where it is 1, it is the first of all."""

_BLOCK = 1 << 23
"""Numbers of Y of the rows that are judged together."""


def blocks_of_rows(spec: RecurrentSpec, X: Array, outputs: Mapping[str, Array]) -> Iterator[slice]:
    """Yield slices of the batch for which Y is small; all of it where an output does not have these rows."""
    steps, rows = X.shape[:2][:: -1 if spec.layout else 1]
    at_once = max(1, _BLOCK // max(1, steps * len(spec.directions) * spec.hidden_size))
    if at_once >= rows or not all(_has_rows(array, symbol, spec, rows) for symbol, array in outputs.items()):
        yield slice(None)
        return
    for start in range(0, rows, at_once):
        yield slice(start, start + at_once)


def _has_rows(array: Array, symbol: str, spec: RecurrentSpec, rows: int) -> bool:
    return array.ndim == (4 if symbol == "Y" else 3) and array.shape[0 if spec.layout else _AXES[symbol]] == rows


def of_rows(arrays: Mapping[str, Array], spec: RecurrentSpec, rows: slice) -> dict[str, Array]:
    """Return inputs or outputs of some rows, by symbol; weights have none."""
    if rows == slice(None):
        return dict(arrays)
    return {
        symbol: array[_index(symbol, spec, rows)] if symbol in _AXES else array for symbol, array in arrays.items()
    }


def _index(symbol: str, spec: RecurrentSpec, rows: slice) -> tuple[slice, ...]:
    axis = 0 if spec.layout else _AXES[symbol]
    return (*[slice(None)] * axis, rows)
