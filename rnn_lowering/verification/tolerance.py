"""Which arrays count as equal."""

from __future__ import annotations

import numpy as np

from rnn_lowering.options import Tolerance
from rnn_lowering.types import Array

_BY_TYPE = {
    "float32": (1e-4, 1e-5),
    "float64": (1e-9, 1e-10),
    "float16": (1e-2, 2e-3),
    "bfloat16": (8e-2, 4e-2),
}


def allowance(expected: Array, tolerance: Tolerance) -> Array:
    """By how much each element may differ from what is expected, in float64.

    The default absolute tolerance of a type is relative to the largest number where that is below 1: what is small
    throughout is compared as closely as the rest.
    """
    rtol, atol = _BY_TYPE.get(expected.dtype.name, (0.0, 0.0))
    rtol = rtol if tolerance.rtol is None else tolerance.rtol
    size = np.abs(np.where(np.isfinite(expected), expected, 0).astype(np.float64))
    atol = atol * min(1.0, size.max(initial=0.0)) if tolerance.atol is None else tolerance.atol
    allowed: Array = atol + rtol * size
    return allowed


def distance(a: Array, b: Array) -> Array:
    """Element-wise absolute difference; infinite where only one of the two is NaN."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    with np.errstate(invalid="ignore"):
        far = np.abs(a - b)
    far = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, far)
    return np.where(np.isnan(far), np.inf, far)


def compare(expected: Array | None, actual: Array | None, tolerance: Tolerance) -> tuple[float, str]:
    """Return the largest absolute difference and, where the arrays are not equal enough, why."""
    if expected is None or actual is None:
        return np.inf, "a part is missing"
    if expected.dtype != actual.dtype or expected.shape != actual.shape:
        return np.inf, (f"{expected.dtype}{list(expected.shape)} became {actual.dtype}{list(actual.shape)}")
    if expected.dtype.name not in _BY_TYPE:
        wrong = int((expected != actual).sum())
        return float(wrong > 0), f"{wrong} of {expected.size} elements differ" if wrong else ""
    wrong = int((distance(expected, actual) > allowance(expected, tolerance)).sum())
    largest = float(distance(expected, actual).max(initial=0.0))
    if wrong and np.isinf(largest) and not np.array_equal(np.isnan(expected), np.isnan(actual)):
        return largest, f"NaN in different places, {wrong} of {expected.size} elements differ"
    return largest, f"largest difference {largest:.2g}, {wrong} of {expected.size} too far" if wrong else ""
