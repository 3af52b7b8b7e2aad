"""A size: an exact polynomial of the number of frames and of other open sizes.

The size of a value in the whole model and that in a chunk may differ by a constant, since a chunk has the frames
that are known early and none of those at the end. `CHUNK` is 0 in the whole and 1 in a chunk.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

TIME, CHUNK, STEP = 0, 1, 2
"""Symbols: the number of frames of a stream; 1 in a chunk and 0 in the whole; the number of the step of a Loop."""


NUMBERS = 1 << 40
"""The first symbol of a number that may be negative, as a size may not."""


Symbol = int | str
"""TIME, CHUNK, STEP, a larger number for an unknown size, -n for min(frames, n), or the name of an open axis."""


Monomial = tuple[Symbol, ...]


@dataclass(frozen=True)
class Size:
    """A polynomial: sorted terms with their coefficients, none of which is 0."""

    terms: tuple[tuple[Monomial, Fraction], ...]

    @classmethod
    def of(cls, terms: Mapping[Monomial, Fraction]) -> Size:
        return cls(tuple(sorted(((m, c) for m, c in terms.items() if c), key=_order)))

    @classmethod
    def symbol(cls, symbol: Symbol) -> Size:
        return cls((((symbol,), Fraction(1)),))

    @property
    def constant(self) -> Fraction | None:
        """The constant; None if the polynomial has a symbol."""
        if not self.terms:
            return Fraction(0)
        return self.terms[0][1] if self.terms[0][0] == () and len(self.terms) == 1 else None

    @property
    def symbols(self) -> set[Symbol]:
        return {symbol for monomial, _ in self.terms for symbol in monomial}

    @property
    def timed(self) -> bool:
        """Whether the number of frames, or of the step, occurs in it."""
        return any(isinstance(symbol, int) and symbol <= STEP for symbol in self.symbols)

    def coefficient(self, *monomial: Symbol) -> Fraction:
        return dict(self.terms).get(monomial, Fraction(0))

    def whole(self) -> Size:
        """Return the size in the whole model."""
        return Size(tuple((m, c) for m, c in self.terms if CHUNK not in m))

    def integral(self, unit: int) -> bool:
        """Whether it is an integer for every multiple of `unit` frames."""
        return all((c * unit ** m.count(TIME)).denominator == 1 for m, c in self.terms)

    @property
    def unit(self) -> int | None:
        """The smallest number of frames whose multiples make it an integer; None if there is none."""
        if any(c.denominator > 1 and TIME not in m for m, c in self.terms):
            return None
        return math.lcm(*(c.denominator for _, c in self.terms))

    def chunk(self) -> Size:
        """Return the size in a chunk."""
        return Size.of(_summed(((tuple(s for s in m if s != CHUNK)), c) for m, c in self.terms))

    def of_longer(self, frames: int) -> Size:
        """Return the size for a sequence that has so many frames more."""
        if not frames or TIME not in self.symbols:
            return self
        time, total = Size.symbol(TIME) + frames, size(0)
        for monomial, coefficient in self.terms:
            term = size(coefficient)
            for symbol in monomial:
                term = term * (time if symbol == TIME else Size.symbol(symbol))
            total = total + term
        return total

    @property
    def least(self) -> Fraction | None:
        """A lower bound, when all sizes of inputs are at least 1; None if none is known."""
        least = Fraction(0)
        if any(isinstance(symbol, int) and symbol >= NUMBERS for symbol in self.symbols):
            return None
        for monomial, coefficient in self.terms:
            if (coefficient < 0 and monomial) or CHUNK in monomial:
                return None
            if all(isinstance(s, str) or s == TIME for s in monomial):
                least += coefficient
        return least

    def at_least(self, bound: Fraction | int) -> bool:
        """Whether it is never below a bound, as far as is known."""
        return self.least is not None and self.least >= bound

    @property
    def never_negative(self) -> bool:
        """Whether it is never negative, as far as is known; it must be an integer."""
        return self.least is not None and self.least > -1

    def at_most(self, bound: Fraction | int) -> bool:
        return (-self).at_least(-bound) if self.constant is None else self.constant <= bound

    def at(self, sizes: Mapping[Symbol, int]) -> Fraction:
        """Evaluate it for given values of its symbols."""
        total = Fraction(0)
        for monomial, coefficient in self.terms:
            for symbol in monomial:
                coefficient *= sizes[symbol]
            total += coefficient
        return total

    def __add__(self, other: Term) -> Size:
        return Size.of(_summed((*self.terms, *size(other).terms)))

    def __neg__(self) -> Size:
        return Size(tuple((m, -c) for m, c in self.terms))

    def __sub__(self, other: Term) -> Size:
        return self + -size(other)

    def __rsub__(self, other: Term) -> Size:
        return size(other) - self

    def __mul__(self, other: Term) -> Size:
        pairs = ((m, n, a * b) for m, a in self.terms for n, b in size(other).terms)
        return Size.of(_summed((tuple(sorted((*m, *n), key=_name)), c) for m, n, c in pairs))

    __radd__ = __add__
    __rmul__ = __mul__

    def divided(self, other: Term) -> Size | None:
        """Return the exact quotient; None if it is not a polynomial."""
        divisor, rest, quotient = size(other), self, size(0)
        if not divisor.terms:
            return None
        lead, scale = max(divisor.terms, key=_degree)
        while rest.terms:
            monomial, coefficient = max(rest.terms, key=_degree)
            left = _without(monomial, lead)
            if left is None:
                return None
            part = Size(((left, coefficient / scale),))
            quotient, rest = quotient + part, rest - part * divisor
        return quotient

    def rounded_down(self) -> Size:
        """Round the constant part down, in the whole and in a chunk; the rest must be an integer."""
        first, more = self.coefficient(), self.coefficient(CHUNK)
        below, chunk = math.floor(first), math.floor(first + more)
        return self - first - Size.symbol(CHUNK) * more + below + Size.symbol(CHUNK) * (chunk - below)

    def __str__(self) -> str:
        return (
            " + ".join(
                "*".join([str(c)] * (c != 1 or not m) + [_text(symbol) for symbol in m]) for m, c in self.terms
            )
            or "0"
        )


Term = Size | Fraction | int


def size(number: Term) -> Size:
    """Return a number as a polynomial."""
    return number if isinstance(number, Size) else _constant(number)


@lru_cache(1 << 12)
def _constant(number: Fraction | int) -> Size:
    return Size((((), Fraction(number)),)) if number else Size(())


def _summed(terms: Iterable[tuple[Monomial, Fraction]]) -> dict[Monomial, Fraction]:
    total: dict[Monomial, Fraction] = {}
    for monomial, coefficient in terms:
        total[monomial] = total.get(monomial, Fraction(0)) + coefficient
    return total


def first_frames(count: int) -> Size:
    """Return how many frames `x[:, :count]` has: a shorter sequence has fewer."""
    return Size.symbol(-count)


ONE = size(1)


def product(sizes: Iterable[Size]) -> Size:
    total = size(1)
    for one in sizes:
        total = total * one
    return total


def _name(symbol: Symbol) -> str:
    return f"{symbol:09d}" if isinstance(symbol, int) else f"~{symbol}"


def _order(term: tuple[Monomial, Fraction]) -> list[str]:
    return [_name(symbol) for symbol in term[0]]


def _degree(term: tuple[Monomial, Fraction]) -> tuple[int, list[str]]:
    return len(term[0]), [_name(symbol) for symbol in term[0]]


def _without(monomial: Monomial, part: Monomial) -> Monomial | None:
    left = list(monomial)
    for symbol in part:
        if symbol not in left:
            return None
        left.remove(symbol)
    return tuple(left)


def _text(symbol: Symbol) -> str:
    if isinstance(symbol, str):
        return symbol
    otherwise = f"?{symbol}" if symbol > 0 else f"min(frames, {-symbol})"
    return {TIME: "frames", CHUNK: "chunk", STEP: "step"}.get(symbol, otherwise)


def in_chunk(number: Size, frames: int | None) -> int | None:
    """Return a size if every chunk has the same, else None."""
    if not number.symbols <= ({CHUNK} if frames is None else {TIME, CHUNK}):
        return None
    found = number.at({CHUNK: 1} if frames is None else {TIME: frames, CHUNK: 1})
    stays = found >= 0 or number.constant is not None  # -1 from sizes is none that a Reshape is to find
    return int(found) if stays and found.denominator == 1 else None


Shape = tuple[Size, ...]


PartialShape = Sequence[Size | None]
