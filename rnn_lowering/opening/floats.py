"""Floats that follow from sizes: which simple formulas of a size are some numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations, product

import numpy as np

from rnn_lowering.facts.size import Size, size
from rnn_lowering.types import Array

_CLOSE = 2e-6
"""Relative distance of floats that count as equal: what rounding to float32 explains, a few times."""

_MOST_ROUNDED = 50_000
"""The inverse of a float32 may be off by a tenth from here on."""

_FEWEST_PARTS = 11
_MOST_SIZES = 24
"""So many sizes are tried as parts of a ratio."""

_FACTORS = (1.0, -1.0, 0.5, -0.5, 2.0, -2.0)
"""Factors of a ratio."""

Floats = tuple[float, ...]
"""A number in each export, which are in the order of the files."""

FUNCTIONS: Mapping[str, Callable[[Array], Array]] = {
    "": lambda n: n,
    "Reciprocal": lambda n: 1 / n,
    "Sqrt": np.sqrt,
    "Sqrt Reciprocal": lambda n: 1 / np.sqrt(n),
    "Log": np.log,
}
"""By operators, one after the other, what they compute."""


_ONE = size(1)


@dataclass(frozen=True)
class Number:
    """A number that changes with sizes: factor * function(size / over) + rest."""

    size: Size
    function: str = ""
    factor: float = 1.0
    over: Size = _ONE
    rest: float = 0.0

    def at(self, sizes: Array, over: Array) -> Array:
        """Return the numbers at some sizes."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return self.factor * FUNCTIONS[self.function](sizes / over) + self.rest


def whole(numbers: Floats, inverse: bool) -> tuple[int, ...] | None:
    """Return integers that floats or their inverses are, as far as rounding leaves it certain; None for none."""
    found = [(1 / number if inverse else number) if number else 0.0 for number in numbers]
    certain = (n == round(n) or abs(n) < _MOST_ROUNDED for n in found)
    is_near = all(map(near, found, map(round, found)))
    return tuple(map(round, found)) if is_near and all(certain) else None


Pool = Mapping[Size, Sequence[int]]
"""Sizes, and their numbers in each export."""


def scaled(numbers: Floats, pool: Pool) -> Iterator[Number]:
    """Yield a factor times a function of a size, or of one that is one or two more or less, if it is told.

    A whole factor or a third export tells it. Sizes with a ratio of small numbers, such as 2 to 3, do not: many
    numbers have it.
    """
    for (dim, held), (name, function), offset in product(pool.items(), FUNCTIONS.items(), (0, 1, -1, 2, -2)):
        common, least = math.gcd(*(n + offset for n in held)), min(held) + offset
        if least < 1 + (name == "Log") or max(held) + offset < _FEWEST_PARTS * common:
            continue
        factors = [
            x / float(function(np.array(n + offset, np.float64))) for x, n in zip(numbers, held, strict=True)
        ]
        is_whole = any(near(f, round(f)) for f in (factors[0], 1 / (factors[0] or 1)))
        if all(near(f, factors[0]) for f in factors) and (is_whole or not offset or len(numbers) > 2):
            yield Number(dim + offset, name, factors[0])


def ratios(numbers: Floats, pool: Pool) -> Iterator[Number]:
    """Yield a ratio of two sizes, or of what is one less, or its half or double."""
    terms = [(dim - n, [k - n for k in held]) for dim, held in [*pool.items()][-_MOST_SIZES:] for n in (0, 1)]
    for (dim, held), (over, below) in permutations([term for term in terms if min(term[1]) > 0], 2):
        times = [x * b / a for x, a, b in zip(numbers, held, below, strict=True)]
        factor = next((n for n in _FACTORS if all(near(each, n) for each in times)), None)
        if factor is not None:
            yield Number(dim, "", factor, over)


def shifted(numbers: Floats, pool: Pool) -> Iterator[Number]:
    """Yield a function of a size times a factor, and a rest: two exports decide them, and a third confirms."""
    for (dim, held), (name, function) in product(pool.items(), FUNCTIONS.items()):
        values = function(np.array(held, np.float64))
        if len({*held}) > 2 and min(held) > 0:
            factor = (numbers[-1] - numbers[0]) / (values[-1] - values[0])
            rest = numbers[0] - factor * values[0]
            if all(near(x, factor * value + rest) for x, value in zip(numbers, values, strict=True)):
                yield Number(dim, name, float(factor), rest=float(rest))


def near(number: float, other: float) -> bool:
    """Whether a number is another but for rounding."""
    return bool(other != 0 and abs(number - other) <= _CLOSE * abs(other))
