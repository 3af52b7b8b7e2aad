"""An output of a lowered node beside its operator in float64."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from rnn_lowering.compare.float64.node_reference import NodeReference
from rnn_lowering.compare.judgement.tolerance import distance
from rnn_lowering.nodes.kinds import AxisName, NodeSpec
from rnn_lowering.types import Array


@dataclass(frozen=True, eq=False)
class NodeOutput:
    """An output of a lowered node, beside its operator in float64.

    Attributes:
        reference: The node in float64.
        symbol: Its name in the operator specification.
        got: The output of the lowered node.
        expected: The output by the operator specification, in float64.
        allowed: The allowed difference, of the same shape; infinite for numbers that are not compared.
    """

    reference: NodeReference[Any]
    symbol: str
    got: Array
    expected: Array
    allowed: Array

    @property
    def spec(self) -> NodeSpec:
        """The specification of the node."""
        return cast(NodeSpec, self.reference.spec)

    @property
    def comparable(self) -> bool:
        return bool(self.got.shape == self.expected.shape)

    @property
    def largest(self) -> float:
        """The largest absolute difference; infinite where the shapes differ."""
        return float(self._far(self.got).max(initial=0.0)) if self.comparable else np.inf

    @property
    def right(self) -> bool:
        return self.comparable and not bool(self._wrong().any())

    def no_further(self, original: Array) -> bool:
        """Whether no row is further from float64 than what the original node computed, to within a rounding."""
        if not self.comparable or original.shape != self.expected.shape or original.dtype != self.got.dtype:
            return False
        axes = self.reference.axes_of_a_row(self.symbol)
        ours, theirs = (self._far(x).max(axis=axes, initial=0.0) for x in (self.got, original))
        return bool((ours <= theirs + np.finfo(original.dtype).eps).all())

    @property
    def reason(self) -> str:
        """The reason why the output is wrong."""
        if not self.comparable:
            return f"shape {list(self.expected.shape)} became {list(self.got.shape)}"
        wrong = self._wrong()
        wide = f"{wrong.sum()} of {wrong.size} out of tolerance{self._first(wrong)}"
        return f"largest difference {self.largest:.2g}, {wide}"

    def _far(self, array: Array) -> Array:
        return np.where(np.isfinite(self.allowed), distance(self.expected, array), 0.0)

    def _wrong(self) -> Array:
        wrong: Array = self._far(self.got) > self.allowed
        return wrong

    def _first(self, wrong: Array) -> str:
        axes = self.spec.axes(self.symbol)
        if "T" not in axes:
            return ""
        time = axes.index("T")
        order = np.flatnonzero(wrong.any(axis=tuple(axis for axis in range(wrong.ndim) if axis != time)))
        return f", from time step {order[-1 if self.spec.direction == 'reverse' else 0]}"


_ELEMENTS_AT_ONCE = 1 << 23
"""Maximum numbers in the outputs of rows that are compared together."""


def blocks_of_rows(spec: NodeSpec, data: Array, outputs: Mapping[str, Array]) -> Iterator[slice]:
    """Yield slices of the batch for which the outputs are small; the whole batch if an output has other rows."""
    rows = data.shape[spec.axes(spec.data).index("N")]
    largest = max((array.size for array in outputs.values()), default=0)
    at_once = max(1, _ELEMENTS_AT_ONCE * rows // max(1, largest))
    if at_once >= rows or not all(_has_rows(array, spec.axes(symbol), rows) for symbol, array in outputs.items()):
        yield slice(None)
        return
    for start in range(0, rows, at_once):
        yield slice(start, start + at_once)


def _has_rows(array: Array, axes: tuple[AxisName, ...], rows: int) -> bool:
    return array.ndim == len(axes) and array.shape[axes.index("N")] == rows
