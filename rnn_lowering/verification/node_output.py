"""One output of a lowered node beside float64: whether it is right, and where it first differs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rnn_lowering.spec.node import RecurrentSpec
from rnn_lowering.types import Array
from rnn_lowering.verification.rounding import axes_of_a_row
from rnn_lowering.verification.tolerance import distance


@dataclass(frozen=True, eq=False)
class NodeOutput:
    """An output of a lowered node, and what it should be.

    Attributes:
        spec: What the node specifies.
        symbol: Y, Y_h or Y_c.
        got: What the lowered node computes.
        expected: The same by the operator specification, in float64.
        allowed: By how much it may differ, of the same shape; infinite where nothing is compared.
    """

    spec: RecurrentSpec
    symbol: str
    got: Array
    expected: Array
    allowed: Array

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
        axes = axes_of_a_row(self.symbol, bool(self.spec.layout))
        ours, theirs = (self._far(x).max(axis=axes, initial=0.0) for x in (self.got, original))
        return bool((ours <= theirs + np.finfo(original.dtype).eps).all())

    @property
    def reason(self) -> str:
        """What is wrong."""
        if not self.comparable:
            return f"shape {list(self.expected.shape)} became {list(self.got.shape)}"
        wrong = self._wrong()
        return f"largest difference {self.largest:.2g}, {wrong.sum()} of {wrong.size} too far{self._first(wrong)}"

    def _far(self, array: Array) -> Array:
        return np.where(np.isfinite(self.allowed), distance(self.expected, array), 0.0)

    def _wrong(self) -> Array:
        wrong: Array = self._far(self.got) > self.allowed
        return wrong

    def _first(self, wrong: Array) -> str:
        if self.symbol != "Y":
            return ""
        time = 1 if self.spec.layout else 0
        order = np.flatnonzero(wrong.any(axis=tuple(axis for axis in range(wrong.ndim) if axis != time)))
        return f", from time step {order[-1] if self.spec.directions == ('reverse',) else order[0]}"
