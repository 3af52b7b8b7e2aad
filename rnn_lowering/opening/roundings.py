"""Parts of a size that are rounded: which functions of a size are some numbers, and which size tells most apart."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from math import gcd, isqrt
from typing import Any

import numpy as np

from rnn_lowering.types import Array

_PARTS, _LARGE_PARTS = range(2, 17), (20, 24, 25, 32, 48, 50, 64, 100, 128)
_USUAL = (2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 25, 32, 48, 50, 64, 100, 128)
_MOST_TIMES = 4
_MOST_RESTS = 8
"""A rival that is a multiple has at most this rest."""

_MOST_SIZES = 400
"""So many sizes of a further export are tried."""


@dataclass(frozen=True)
class Rounded:
    """factor * ((size + way) // part) + whole * size + rest; a half may go to the even number, as round does."""

    part: int
    way: int
    factor: int
    whole: int
    even: int = 0
    rest: int = 0

    def at(self, sizes: Array) -> Array:
        """Return the numbers at some sizes."""
        return _at(sizes, self.part, self.way, self.factor, self.whole, self.even) + self.rest

    @property
    def is_usual(self) -> bool:
        """Whether a part is rounded up or down, once or to a multiple."""
        rounded = self.way in (0, self.part - 1) and self.part in _USUAL and not self.rest and not self.even
        return rounded and (self.whole != 0 or self.factor in (1, self.part))

    def is_told_by(self, numbers: Sequence[int]) -> bool:
        """Whether so many numbers tell a function that is usual.

        What is left, and what fills up, may be few numbers: these must all differ, or rise and fall.
        """
        if len(numbers) == 2:
            return self.factor == 1 and not self.whole and min(map(abs, numbers)) > 1
        turns = len(numbers) > 3 and {1, -1} <= {*np.sign(np.diff(numbers)).tolist()}
        return len({*numbers}) == len(numbers) or (abs(self.factor) == self.part and turns)


def _at(sizes: Array, part: Any, way: Any, factor: Any, whole: Any, even: Any) -> Array:
    is_half = (sizes % part * 2 == part) & (sizes // part % 2 == 0)
    found: Array = factor * ((sizes + way) // part - even * is_half) + whole * sizes
    return found


@cache
def _family() -> Array:
    """Return part, way, factor, whole and even of each function: usual ones, and their rivals."""
    found = [(part, way, times, 0, 0) for part in _LARGE_PARTS for way in range(part) for times in (1, part)]
    for part in _PARTS:
        times = [(n, 0) for n in dict.fromkeys((*range(1, _MOST_TIMES + 1), part))]
        found += [(part, way, *each, 0) for each in (*times, (-1, 1)) for way in range(part)]
        found += [(part, part // 2, 1, 0, 1)] if part % 2 == 0 else []
    for part in (*_PARTS, *_LARGE_PARTS):
        found += [(part, 0, -part, 1, 0), (part, part - 1, part, -1, 0)]  # what is left, what fills up
    return np.array(found, np.int64)


def fitting(numbers: Sequence[int], sizes: Sequence[int], rests: Iterable[int]) -> Iterator[Rounded]:
    """Yield the functions that are these numbers at sizes; a part once has a small rest, others one of some."""
    family, wanted, held = _family(), np.array(numbers, np.int64), np.array(sizes, np.int64)
    left = wanted - _at(held, *family.T[:, :, None])
    is_once = ((np.abs(family[:, 2]) == 1) | (family[:, 3] != 0)) & (family[:, 4] == 0)
    most = np.where(is_once, 1, _MOST_RESTS * (family[:, 2] == family[:, 0]))
    once = np.abs(left[:, 0]) <= most
    fits = (left == left[:, :1]).all(1) & (once | np.isin(left[:, 0], [*rests]))
    for (part, way, factor, whole, even), rest in zip(family[fits].tolist(), left[fits, 0].tolist(), strict=True):
        yield Rounded(part, way, factor, whole, even, rest)


def telling(sizes: Sequence[int], *rivals: Sequence[Array]) -> int:
    """Return a size between others that tells most functions apart.

    Args:
        sizes: The sizes of the exports.
        rivals: Functions as their numbers from size 0 on; first of all those of the first group.
    """
    step, least, most = gcd(*sizes), min(sizes), max(sizes)
    tried = [n for n in range(least + step, min(most, least + step * _MOST_SIZES), step) if n not in sizes]
    family = _family()
    family = family[(family[:, 0] <= _PARTS[-1]) & (family[:, 2] == 1)].T[:, :, None]

    def told(size: int) -> tuple[int, ...]:
        values = _at(np.array([*sizes, size], np.int64), *family)
        apart = (len({int(row[size]) for row in group if size < len(row)}) for group in rivals)
        return *apart, len(np.unique(values, axis=0)), -abs(size - isqrt(least * most))

    return max(tried, key=told, default=most + step)
