"""An output of a stream: its chunks are compared with the original's output for the whole sequence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from rnn_lowering.compare.judgement import allowance, compare, distance
from rnn_lowering.compare.options import Tolerance
from rnn_lowering.compare.result import OutputCheck
from rnn_lowering.streaming.metadata import StreamPlan
from rnn_lowering.types import Array


@dataclass(frozen=True)
class StreamOutput:
    """An output of a stream, and how it is compared.

    Attributes:
        plan: How the stream is called.
        name: Its name.
        tolerance: The allowed differences.
        uncertain: Which integers of the whole may be one unit more or less; None: none.
        precision: The least precise type on the way to it; "" for its own.
    """

    plan: StreamPlan
    name: str
    tolerance: Tolerance
    uncertain: Array | None = None
    precision: str = ""

    @property
    def axis(self) -> int | None:
        """The axis of its frames; None if it has none."""
        return self.plan.outputs.get(self.name)

    def compare_chunks(
        self, expected: Array, parts: Sequence[Mapping[str, Array]], sizes: Sequence[int], steady: int | None
    ) -> OutputCheck:
        """Compare the output of the chunks of a sequence with that of the whole.

        Args:
            expected: The original's output for the whole sequence.
            parts: The stream's outputs for each chunk, by name.
            sizes: The number of frames of each chunk.
            steady: The number of frames to compare; None: all.
        """
        axis = self.axis
        arrays = [part[self.name] for part in parts if self.name in part]
        if len(arrays) < len(parts):
            return self._wrong("the stream does not return it")
        if axis is not None and (late := self.plan.delay.get(self.name, 0)):
            if fault := self._fault_of_length(expected, sum(sizes)):
                return self._wrong(fault)
            due, came = int(sum(sizes) * self.plan.rate(self.name)), sum(array.shape[axis] for array in arrays)
            if came != due:
                return self._wrong(f"the stream returns {came} of its {due} frames")
            arrays = _without_first(arrays, axis, late)
            expected = expected.take(range(min(max(due - late, 0), expected.shape[axis])), axis)
        try:
            got = arrays[-1] if axis is None else np.concatenate(arrays, axis)
        except ValueError as error:  # the axis is wrong
            return self._wrong(f"its chunks do not fit together along axis {axis}: {error}")
        if steady is not None and expected.shape == got.shape:
            kept = (slice(0),) if axis is None else (*[slice(None)] * axis, slice(steady))
            expected, got = expected[kept], got[kept]
        largest, reason = compare(expected, got, self.tolerance, self._uncertain(expected), self.precision)
        if reason and axis is not None:
            reason = f"{reason}; {self._first_difference(expected, arrays, axis, sizes)}"
        return OutputCheck.of(self.name, largest, reason)

    def compare_beginning(self, beginning: Array, whole: Array, frames: int, steady: int | None) -> OutputCheck:
        """Compare the original's output for the first frames with the first frames of its output for the whole.

        The frames that come late may differ at the end of the beginning.

        Args:
            beginning, whole: The two outputs.
            frames: The number of frames of the inputs of the beginning.
            steady: The number of frames to compare; None: all.
        """
        axis, plan = self.axis or 0, self.plan
        if fault := self._fault_of_length(beginning, frames):
            return self._wrong(fault)
        sure = plan.frames_of(self.name, frames) - plan.delay.get(self.name, 0) + plan.short.get(self.name, 0)
        count = min(beginning.shape[axis], max(sure, 0), beginning.shape[axis] if steady is None else steady)
        whole, beginning = whole.take(range(count), axis), beginning.take(range(count), axis)
        largest, reason = compare(whole, beginning, self.tolerance, self._uncertain(whole), self.precision)
        if reason:
            reason = f"the original computes the first {frames} frames differently if more follow: {reason}"
        return OutputCheck.of(self.name, largest, reason)

    def steady_frames(self, array: Array, moved: Array) -> int | None:
        """Return how many frames can be compared; None: all, 0 if it has no frames.

        The others are unstable: a rounding of the inputs moves them by more than a quarter of the tolerance.

        Args:
            array: The original's output.
            moved: Its output after each number of the inputs is moved by half a rounding.
        """
        far = distance(array, moved) > allowance(array, self.tolerance, self.precision) / 4
        if not far.any():
            return None
        others = tuple(a for a in range(far.ndim) if a != self.axis)
        return 0 if self.axis is None else int(far.any(axis=others).argmax())

    def _uncertain(self, expected: Array) -> Array | None:
        """Return which integers of the first frames of the whole may be one unit more or less."""
        if self.uncertain is None or self.uncertain.ndim != expected.ndim:
            return None
        return self.uncertain[tuple(map(slice, expected.shape))]

    def _wrong(self, reason: str) -> OutputCheck:
        return OutputCheck.of(self.name, np.inf, reason)

    def _fault_of_length(self, array: Array, frames: int) -> str:
        count = array.shape[self.axis or 0]
        right = count == self.plan.frames_of(self.name, frames)
        return "" if right else f"it has {count} frames for {frames} input frames"

    def _first_difference(self, expected: Array, arrays: Sequence[Array], axis: int, sizes: Sequence[int]) -> str:
        """Return a note on the first frame that differs."""
        ends = list(accumulate((array.shape[axis] for array in arrays), initial=0))
        for n, array in enumerate(arrays):
            part = expected.take(range(ends[n], min(ends[n + 1], expected.shape[axis])), axis)
            if compare(part, array, self.tolerance, precision=self.precision)[1]:
                text = ", ".join(map(str, sizes[:6])) + (", ..." if len(sizes) > 6 else "")
                return f"first in call {n + 1} (chunks of {text} frames), from frame {sum(sizes[:n])} on"
        return ""


def _without_first(arrays: Sequence[Array], axis: int, count: int) -> list[Array]:
    """Return chunks without their first `count` frames."""
    kept = []
    for array in arrays:
        kept.append(array[(slice(None),) * axis + (slice(min(count, array.shape[axis]), None),)])
        count -= min(count, array.shape[axis])
    return kept
