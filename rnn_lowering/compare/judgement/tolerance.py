"""Which outputs count as equal: within a tolerance, which depends on their type."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rnn_lowering.compare.options import Tolerance
from rnn_lowering.types import Array

_BY_TYPE = {
    "float32": (1e-4, 1e-5),
    "float64": (1e-9, 1e-10),
    "float16": (1e-2, 2e-3),
    "bfloat16": (8e-2, 4e-2),
}
"""Relative and absolute tolerance by element type; arrays of other types must be equal."""

BLOCK = 1 << 20
"""Elements that are compared at once: arrays may be files that are larger than memory."""


def allowance(expected: Array, tolerance: Tolerance, precision: str = "") -> Array:
    """Return the allowed difference of each element, in float64; `precision` as in `compare`.

    If the largest number is below 1, the default absolute tolerance is multiplied by it: small outputs are compared
    as closely as others.
    """
    rtol, atol = _limits(expected, tolerance, precision)
    allowed: Array = atol + rtol * _magnitudes(expected)
    return allowed


def _limits(expected: Array, tolerance: Tolerance, precision: str) -> tuple[float, float]:
    """Return the relative and absolute tolerance for an array."""
    name = expected.dtype.name
    rtol, atol = _BY_TYPE.get(precision if precision and name in _BY_TYPE else name, (0.0, 0.0))
    if tolerance.atol is None and atol:
        atol *= min(1.0, max((_magnitudes(part).max() for part in blocks(expected)), default=0.0))
    return rtol if tolerance.rtol is None else tolerance.rtol, atol if tolerance.atol is None else tolerance.atol


def _magnitudes(array: Array) -> Array:
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


def compare(
    expected: Array | None,
    actual: Array | None,
    tolerance: Tolerance,
    uncertain: Array | None = None,
    precision: str = "",
) -> tuple[float, str]:
    """Return the largest absolute difference, and the reason if it is out of tolerance.

    Args:
        expected, actual: Two outputs; None for a missing one.
        tolerance: The user's tolerance. Integers must be equal without one.
        uncertain: Which integers may be one unit more or less; None: none.
        precision: The least precise type on the way to real numbers; "" for their own.
    """
    if expected is None or actual is None:
        return np.inf, "a part is missing"
    if expected.dtype != actual.dtype or expected.shape != actual.shape:
        return np.inf, (f"{expected.dtype}{list(expected.shape)} became {actual.dtype}{list(actual.shape)}")
    if expected.dtype.name not in _BY_TYPE:
        return _compare_exact(expected, actual, tolerance, uncertain)
    pairs = zip(blocks(expected), blocks(actual), strict=True)
    rtol, atol = _limits(expected, tolerance, precision)
    wrong, largest, one_sided = 0, 0.0, False
    for a, b in pairs:
        far = distance(a, b)
        wrong += int((far > atol + rtol * _magnitudes(a)).sum())
        largest = max(largest, float(far.max()))
        one_sided = one_sided or not np.array_equal(np.isnan(a), np.isnan(b))
    if wrong and np.isinf(largest) and one_sided:
        return largest, f"NaN in different places, {wrong} of {expected.size} elements differ"
    return (
        largest,
        f"largest difference {largest:.2g}, {wrong} of {expected.size} out of tolerance" if wrong else "",
    )


def _compare_exact(
    expected: Array, actual: Array, tolerance: Tolerance, uncertain: Array | None
) -> tuple[float, str]:
    """Compare integers, booleans or texts."""
    units = np.zeros(expected.shape, bool) if uncertain is None else uncertain
    rtol, atol = (tolerance.rtol or 0.0, tolerance.atol or 0.0) if expected.dtype.kind in "iu" else (0.0, 0.0)
    wrong, largest = 0, 0.0
    for a, b, unit in zip(blocks(expected), blocks(actual), blocks(units), strict=True):
        other = a != b
        if not other.any():
            continue
        far = distance(a, b) if a.dtype.kind in "iu" else np.ones(a.shape)
        far = np.where(other, np.maximum(far, 1.0), 0.0)  # float64 does not tell large integers apart
        largest = max(largest, float(far.max()))
        allowed = atol + rtol * _magnitudes(a) if atol or rtol else 0.0
        wrong += int((far > np.maximum(allowed, unit)).sum())
    text = f", by up to {largest:.4g}" if expected.dtype.kind in "iu" else ""
    return largest, f"{wrong} of {expected.size} elements differ{text}" if wrong else ""
