"""Sequences in chunks: their sizes, the states they start from, and where chunks differ from the whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, cycle

import numpy as np

from rnn_lowering.options import Tolerance
from rnn_lowering.streaming.plan import State
from rnn_lowering.types import Array
from rnn_lowering.verification.tolerance import compare


def split(frames: int, sizes: Sequence[int]) -> tuple[int, ...]:
    """Return the sizes of chunks, these in turn, the last one as much as is left."""
    chunks: list[int] = []
    for size in cycle(sizes):
        if sum(chunks) == frames:
            break
        chunks.append(min(size, frames - sum(chunks)))
    return tuple(chunks)


def initial(state: State, known: Mapping[str, int]) -> Array:
    """Return what the first chunk receives, with the sizes of open dimensions by name."""
    return state.first(known)


def where(expected: Array, arrays: Sequence[Array], axis: int, sizes: Sequence[int], tolerance: Tolerance) -> str:
    """Say from which frame on the chunks differ."""
    ends = list(accumulate((array.shape[axis] for array in arrays), initial=0))
    for n, array in enumerate(arrays):
        part = expected.take(range(ends[n], min(ends[n + 1], expected.shape[axis])), axis)
        if compare(part, array, tolerance)[1]:
            text = ", ".join(map(str, sizes[:6])) + (", ..." if len(sizes) > 6 else "")
            return f"first in step {n + 1} of chunks of {text} frames, from frame {sum(sizes[:n])} on"
    return ""


def differ(whole: Array, arrays: Sequence[Array], tolerance: Tolerance) -> bool:
    """Whether chunks of an inner value differ from the whole, along the axis that they add up to."""
    if any(array.ndim != whole.ndim for array in arrays) or whole.dtype.kind != "f":
        return False
    axes = [a for a in range(whole.ndim) if sum(array.shape[a] for array in arrays) == whole.shape[a] != 1]
    others = [a for a in axes if any(array.shape[a] != whole.shape[a] for array in arrays)]
    if len(others) != 1:
        return False
    return bool(compare(whole, np.concatenate(arrays, others[0]), tolerance)[1])
