"""Compare arrays within a tolerance."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rnn_lowering.options import Tolerance
from rnn_lowering.types import Array

_BY_TYPE = {
    "float32": (1e-4, 1e-5),
    "float64": (1e-9, 1e-10),
    "float16": (1e-2, 2e-3),
    "bfloat16": (8e-2, 4e-2),
}


BLOCK = 1 << 20
"""Elements that are compared at once: the arrays may be files, larger than memory."""


def allowance(expected: Array, tolerance: Tolerance) -> Array:
    """Return the allowed difference of each element, in float64.

    The default absolute tolerance of a type is relative to the largest number if that is below 1: small outputs are
    compared as closely as others.
    """
    rtol, atol = _limits(expected, tolerance)
    allowed: Array = atol + rtol * _size(expected)
    return allowed


def _limits(expected: Array, tolerance: Tolerance) -> tuple[float, float]:
    """Return the relative and absolute tolerance for an array."""
    rtol, atol = _BY_TYPE.get(expected.dtype.name, (0.0, 0.0))
    if tolerance.atol is None and atol:
        atol *= min(1.0, max((_size(part).max() for part in blocks(expected)), default=0.0))
    return rtol if tolerance.rtol is None else tolerance.rtol, atol if tolerance.atol is None else tolerance.atol


def _size(array: Array) -> Array:
    size: Array = np.abs(np.where(np.isfinite(array), array, 0).astype(np.float64))
    return size


def blocks(array: Array) -> Iterator[Array]:
    """Yield the elements in blocks, in C order."""
    flat = array.reshape(-1)
    for start in range(0, array.size, BLOCK):
        yield flat[start : start + BLOCK]


def distance(a: Array, b: Array) -> Array:
    """Return the absolute difference by element, infinite if only one of the two is NaN."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    with np.errstate(invalid="ignore"):
        far = np.abs(a - b)
    far = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, far)
    return np.where(np.isnan(far), np.inf, far)


def compare(expected: Array | None, actual: Array | None, tolerance: Tolerance) -> tuple[float, str]:
    """Return the largest absolute difference, and the reason if it is out of tolerance."""
    if expected is None or actual is None:
        return np.inf, "a part is missing"
    if expected.dtype != actual.dtype or expected.shape != actual.shape:
        return np.inf, (f"{expected.dtype}{list(expected.shape)} became {actual.dtype}{list(actual.shape)}")
    pairs = zip(blocks(expected), blocks(actual), strict=True)
    if expected.dtype.name not in _BY_TYPE:
        wrong = sum(int((a != b).sum()) for a, b in pairs)
        return float(wrong > 0), f"{wrong} of {expected.size} elements differ" if wrong else ""
    rtol, atol = _limits(expected, tolerance)
    wrong, largest, one_sided = 0, 0.0, False
    for a, b in pairs:
        far = distance(a, b)
        wrong += int((far > atol + rtol * _size(a)).sum())
        largest = max(largest, float(far.max()))
        one_sided = one_sided or not np.array_equal(np.isnan(a), np.isnan(b))
    if wrong and np.isinf(largest) and one_sided:
        return largest, f"NaN in different places, {wrong} of {expected.size} elements differ"
    return (
        largest,
        f"largest difference {largest:.2g}, {wrong} of {expected.size} out of tolerance" if wrong else "",
    )
