"""A size: an exact polynomial of open sizes and of counters."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple


class Counter(NamedTuple):
    """A symbol of a number that a model never fixes: it differs from call to call, or from step to step.

    Attributes:
        order: Its place among the symbols; below that of unknown sizes.
        name: Its text.
        least: Its least value; None: no bound of a size with it is known.
    """

    order: int
    name: str
    least: int | None = 0


STEP = Counter(2, "step")
"""The number of the step of a Loop."""


NUMBERS = 1 << 40
"""The first symbol of a number that may be negative, as a size may not."""


Symbol = Counter | int | str
"""A counter, a number for an unknown size, or the name of an open axis."""


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
    def varies(self) -> bool:
        """Whether a counter occurs in it."""
        return any(isinstance(symbol, Counter) for symbol in self.symbols)

    @property
    def is_integral(self) -> bool:
        """Whether it is an integer at all sizes."""
        return all(c.denominator == 1 for _, c in self.terms)

    def coefficient(self, *monomial: Symbol) -> Fraction:
        return dict(self.terms).get(monomial, Fraction(0))

    def replaced(self, symbol: Symbol, number: Term) -> Size:
        """Return the size with a number in place of a symbol."""
        if symbol not in self.symbols:
            return self
        total = size(0)
        for monomial, coefficient in self.terms:
            term = Size.of({tuple(each for each in monomial if each != symbol): coefficient})
            for _ in range(monomial.count(symbol)):
                term = term * number
            total = total + term
        return total

    @property
    def least(self) -> Fraction | None:
        """A lower bound, when all sizes of inputs are at least 1; None if none is known."""
        least = Fraction(0)
        for monomial, coefficient in self.terms:
            bounds = [_least(symbol) for symbol in monomial]
            if (coefficient < 0 and monomial) or None in bounds:
                return None
            least += coefficient * math.prod(bound or 0 for bound in bounds)
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


ONE = size(1)


def product(sizes: Iterable[Size]) -> Size:
    total = size(1)
    for one in sizes:
        total = total * one
    return total


def _name(symbol: Symbol) -> str:
    order = symbol.order if isinstance(symbol, Counter) else symbol
    return f"{order:09d}" if isinstance(order, int) else f"~{order}"


def _least(symbol: Symbol) -> int | None:
    """Return the least value of a symbol."""
    if isinstance(symbol, Counter):
        return symbol.least
    return 1 if isinstance(symbol, str) else None if symbol >= NUMBERS else 0


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
    return symbol.name if isinstance(symbol, Counter) else f"?{symbol}" if isinstance(symbol, int) else symbol


Shape = tuple[Size, ...]


PartialShape = Sequence[Size | None]
