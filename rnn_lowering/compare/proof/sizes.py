"""`SymbolicSize`: an integer that follows from an open size, a length or a counter. What it meets decides whether a
proof at a few sizes holds at every size.

Each has a form: a polynomial of the open sizes T and N, lengths and counters, that has no number but -1, 0 and 1.
So none can be the number 7, or 200, whatever a graph adds. Comparisons are of two such numbers along the same axis,
or of one with 0: the sizes of a proof have each of their outcomes. Several times a size is so many rows of it.
Several times a number, and less than so many more, is only a row of an axis that was joined to so many rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rnn_lowering.compare.proof.polynomials import UnprovenError
from rnn_lowering.types import Array

Symbols = tuple[str, ...]
"""A product of symbols, sorted; () is the number."""

Form = Mapping[Symbols, int]
"""Products of symbols, and how often each occurs."""

LENGTH = "length "
"""The names of lengths begin so."""

_BELOW = " < "
"""Between the name of a length or a counter and that of the size which it is below, or at most."""

_DEGREE, _TIMES = 3, 2
"""So many factors may be in a product, and so often may one of lengths and counters occur."""


class SymbolicSize(int):
    """An integer with the form that it has at every size."""

    form: Form

    def __add__(self, other: Any) -> Any:
        form = dict(self.form)
        for symbols, count in _form(other).items():
            form[symbols] = form.get(symbols, 0) + count
        return sized(int(self) + int(other), form)

    __radd__ = __add__

    def __neg__(self) -> Any:
        return sized(-int(self), {symbols: -count for symbols, count in self.form.items()})

    def __sub__(self, other: Any) -> Any:
        return self + sized(-int(other), {symbols: -count for symbols, count in _form(other).items()})

    def __rsub__(self, other: Any) -> Any:
        return -self + other

    def __mul__(self, other: Any) -> Any:
        form: dict[tuple[str, ...], int] = {}
        for a, m in self.form.items():
            for b, n in getattr(other, "form", {(): int(other)}).items():
                symbols = tuple(sorted(a + b))
                form[symbols] = form.get(symbols, 0) + m * n
        return sized(int(self) * int(other), form)

    __rmul__ = __mul__


def sized(value: int, form: Mapping[tuple[str, ...], int]) -> int:
    """Return a number with its form; a plain one if that is a number.

    Raises:
        UnprovenError: The form is not one of those for which few sizes are enough.
    """
    form = {symbols: count for symbols, count in form.items() if count}
    if not form.keys() - {()}:
        if form.get((), 0) != value:
            raise UnprovenError("numbers of one range are subtracted")
        return value
    if not _is_plain(form):
        most = math.gcd(*(count for symbols, count in form.items() if symbols))
        if not any(_is_plain(in_units(form, unit)) for unit in (most, math.gcd(most, most // 2))):
            raise UnprovenError(f"a size is computed as {_text(form)}")
    size = SymbolicSize(value)
    size.form = form
    return size


def in_units(form: Form, unit: int) -> Form:
    """Return the unit of so many rows that a number is in, if its form is a multiple and less than a unit."""
    if any(count % unit for symbols, count in form.items() if symbols):
        raise UnprovenError(f"a size is computed as {_text(form)}")
    return {symbols: count // unit for symbols, count in form.items() if count // unit}


def check_plain(size: SymbolicSize) -> None:
    """Raise if a number is one of a row in a unit of rows."""
    if not _is_plain(size.form):
        raise UnprovenError(f"a size is computed as {_text(size.form)}")


def _is_plain(form: Form) -> bool:
    counted = (abs(count) for symbols, count in form.items() if any(map(is_counted, symbols)))
    small = abs(form.get((), 0)) <= 1 and max(counted, default=0) <= _TIMES
    return small and max(map(len, form), default=0) <= _DEGREE


def counter(value: int, name: str, end: int) -> int:
    """Return a number that counts from 0 to an end, a plain one if that is.

    Raises:
        UnprovenError: The end is not a size, or one more or less.
    """
    if not isinstance(end, SymbolicSize):
        return value
    names = [symbols for symbols in end.form if symbols]
    if len(names) != 1 or end.form[names[0]] != 1:
        raise UnprovenError(f"a counter ends at {_text(end.form)}")
    size = SymbolicSize(value)
    size.form = {(f"{name}{_BELOW}{' '.join(names[0])}",): 1}
    return size


def is_counted(name: str) -> bool:
    """Whether the name of a symbol is that of a length or a counter."""
    return _BELOW in name


def bound(name: str) -> str:
    """Return the name of the size that a symbol is below; that of a size is its own."""
    return name.rpartition(_BELOW)[2]


def _form(other: Any) -> Form:
    if isinstance(other, SymbolicSize):
        return other.form
    return {(): int(other)}


def difference(a: Any, b: Any) -> int:
    """Return a number with the sign of a - b, to compare two numbers.

    Raises:
        UnprovenError: One is none, or follows from sizes, and their difference is not that of two symbols of one
            axis, or of one and 0.
    """
    if not (isinstance(a, SymbolicSize) or isinstance(b, SymbolicSize)):
        if a != a or b != b:
            raise UnprovenError("a constant is no number")
        return int(a > b) - int(a < b)
    far = a - b
    form = getattr(far, "form", {})
    symbols = form.keys() - {()}
    axes = {bound(name) for names in symbols for name in names}
    if len(symbols) > 2 or len(axes) > 1 or any(len(s) > 1 or abs(form[s]) > 1 for s in symbols) or form.get(()):
        raise UnprovenError(f"a comparison depends on {_text(form)}")
    return int(far)


def _text(form: Form) -> str:
    return " + ".join(f"{count} {' '.join(symbols)}".strip() for symbols, count in form.items())


def integers(elements: Sequence[Any], shape: tuple[int, ...]) -> Array:
    """Return integers as an array: of objects, if some follow from sizes."""
    if any(isinstance(x, SymbolicSize) for x in elements):
        array = np.empty(len(elements), object)
        array[:] = elements
        return array.reshape(shape)
    return np.array([int(x) for x in elements], np.int64).reshape(shape)
