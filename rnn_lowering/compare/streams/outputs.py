"""Compare the outputs of chunks with those of whole sequences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

import numpy as np

from rnn_lowering.compare.result import OutputCheck
from rnn_lowering.compare.tolerance import compare
from rnn_lowering.options import Tolerance
from rnn_lowering.streaming.host.metadata import StreamPlan
from rnn_lowering.types import Array


def compare_output(
    plan: StreamPlan,
    name: str,
    sizes: Sequence[int],
    expected: Array,
    parts: Sequence[Mapping[str, Array]],
    tolerance: Tolerance,
    steady: int | None = None,
) -> OutputCheck:
    """Compare an output of the chunks of a sequence with that of the whole.

    Args:
        plan: How the stream is driven.
        name: The output.
        sizes: The number of frames of each chunk.
        expected: The original's output for the whole sequence.
        parts: The stream's outputs for each chunk, by name.
        steady: The number of frames to compare; None: all.
    """
    axis = plan.outputs.get(name)
    arrays = [part[name] for part in parts if name in part]
    if len(arrays) < len(parts):
        return OutputCheck.of(name, np.inf, "the stream does not return it")
    if axis is not None and (late := plan.delay.get(name, 0)):
        frames = sum(sizes)
        if expected.shape[axis] != plan.frames_of(name, frames):
            return OutputCheck.of(name, np.inf, f"it has {expected.shape[axis]} frames for {frames} input frames")
        arrays = _without_first(arrays, axis, late)
        expected = expected.take(range(sum(array.shape[axis] for array in arrays)), axis, mode="clip")
    try:
        got = arrays[-1] if axis is None else np.concatenate(arrays, axis)
    except ValueError as error:  # the axis is wrong
        return OutputCheck.of(name, np.inf, f"its chunks do not fit together along axis {axis}: {error}")
    if steady is not None and expected.shape == got.shape:
        kept = (slice(0),) if axis is None else (*[slice(None)] * axis, slice(steady))
        expected, got = expected[kept], got[kept]
    largest, reason = compare(expected, got, tolerance)
    if reason and axis is not None:
        reason = f"{reason}; {_first_difference(expected, arrays, axis, sizes, tolerance)}"
    return OutputCheck.of(name, largest, reason)


def compare_beginning(
    plan: StreamPlan,
    name: str,
    frames: int,
    beginning: Array,
    whole: Array,
    tolerance: Tolerance,
    steady: int | None,
) -> OutputCheck:
    """Compare the original's output for the first frames with the first frames of its output for the whole.

    Args:
        plan: How the stream is called: the frames that come late may differ at the end.
        name: The output.
        frames: The number of frames of the inputs of the beginning.
        beginning, whole: The two outputs.
        steady: The number of frames to compare; None: all.
    """
    axis = plan.outputs[name] or 0
    if beginning.shape[axis] != plan.frames_of(name, frames):
        return OutputCheck.of(name, np.inf, f"it has {beginning.shape[axis]} frames for {frames} input frames")
    sure = plan.frames_of(name, frames) - plan.delay.get(name, 0) + plan.short.get(name, 0)
    count = min(beginning.shape[axis], max(sure, 0), beginning.shape[axis] if steady is None else steady)
    largest, reason = compare(whole.take(range(count), axis), beginning.take(range(count), axis), tolerance)
    told = f"the original computes the first {frames} frames differently if more follow: {reason}"
    return OutputCheck.of(name, largest, told if reason else "")


def _first_difference(
    expected: Array, arrays: Sequence[Array], axis: int, sizes: Sequence[int], tolerance: Tolerance
) -> str:
    """Return a note on the first frame that differs."""
    ends = list(accumulate((array.shape[axis] for array in arrays), initial=0))
    for n, array in enumerate(arrays):
        part = expected.take(range(ends[n], min(ends[n + 1], expected.shape[axis])), axis)
        if compare(part, array, tolerance)[1]:
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


def chunks_differ(whole: Array, arrays: Sequence[Array], tolerance: Tolerance, late: int = 0) -> bool:
    """Whether chunks of an inner value, joined along the axis on which their sizes add up, differ from the whole.

    Args:
        late: The most frames by which it may be late.
    """
    if any(array.ndim != whole.ndim for array in arrays) or whole.dtype.kind != "f":
        return False
    axes = [a for a in range(whole.ndim) if sum(array.shape[a] for array in arrays) == whole.shape[a] != 1]
    others = [a for a in axes if any(array.shape[a] != whole.shape[a] for array in arrays)]
    if len(others) != 1:
        return False
    joined = np.concatenate(arrays, others[0])
    kept = np.arange(joined.shape[others[0]])
    return all(
        compare(whole.take(kept[: len(kept) - n], others[0]), joined.take(kept[n:], others[0]), tolerance)[1]
        for n in range(min(late + 1, len(kept)))
    )
