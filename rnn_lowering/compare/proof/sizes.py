"""`SymbolicSize`: an integer that follows from an open size, a length or a counter. What it meets decides whether a
proof at a few sizes holds at every size.

Each has a form: a polynomial of the open sizes T and N, lengths and counters, whose coefficients are small. So none
can be the number 7, or 200, whatever a graph adds. Comparisons are of two such numbers, or of one with -1, 0 or 1:
the sizes of a proof have each of their outcomes.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import Any

from rnn_lowering.compare.proof.polynomials import UnprovenError

Form = Mapping[tuple[str, ...], int]
"""Products of symbols, and how often each occurs; () is the number."""

_UNBOUNDED = 2**31 - 1
"""A bound of a Slice from here on means the end."""

_DEGREE = 3


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
            for b, n in _form(other).items():
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
    plain = form.get((), 0)
    if not form.keys() - {()}:
        if plain != value:
            raise UnprovenError("numbers of one range are subtracted")
        return value
    if abs(plain) > 1 or max(map(abs, form.values())) > 2 or max(map(len, form)) > _DEGREE:
        raise UnprovenError(f"a size is computed as {_text(form)}")
    size = SymbolicSize(value)
    size.form = form
    return size


def symbol(value: int, name: str) -> SymbolicSize:
    """Return a number that a symbol stands for."""
    size = SymbolicSize(value)
    size.form = {(name,): 1}
    return size


def _form(other: Any) -> Form:
    if isinstance(other, SymbolicSize):
        return other.form
    check_constant(other)
    return {(): int(other)}


def check_constant(value: Any) -> None:
    """Raise if a size meets a number other than -1, 0 and 1."""
    if not isinstance(value, SymbolicSize) and abs(int(value)) > 1:
        raise UnprovenError(f"a size meets the number {int(value)}")


def difference(a: Any, b: Any) -> int:
    """Return a - b, to compare two numbers.

    Raises:
        UnprovenError: One follows from sizes, and their difference is not one of two symbols and -1, 0 or 1.
    """
    if not (isinstance(a, SymbolicSize) or isinstance(b, SymbolicSize)):
        return int(a) - int(b)
    far = a - b
    form = getattr(far, "form", {})
    symbols = form.keys() - {()}
    if len(symbols) > 2 or any(len(s) > 1 or abs(form[s]) > 1 for s in symbols):
        raise UnprovenError(f"a comparison depends on {_text(form)}")
    return int(far)


def _text(form: Form) -> str:
    return " + ".join(f"{count} {' '.join(symbols)}".strip() for symbols, count in form.items())


class RunSizes:
    """The sizes of axes in a run at sizes that no constant of the models has.

    Args:
        sizes: Those that are open, by name; the number of a product of two is none of them either.
        fixed: The sizes and integers of the models; None if nothing is open.
    """

    def __init__(self, sizes: Mapping[str, int], fixed: frozenset[int] | None) -> None:
        self.fixed = fixed
        self._forms: dict[int, Form] = {value: {(name,): 1} for name, value in sizes.items()}
        self._is_one_to_one = True
        for (a, m), (b, n) in combinations(sorted(sizes.items()), 2):
            self._is_one_to_one &= m != n and m * n not in self._forms
            self._forms[m * n] = {(a, b): 1}

    def is_clear(self) -> bool:
        """Whether each size that is open, times those that are not, is none of those that are not."""
        assert self.fixed is not None
        products = {value * size for value in self._forms for size in self.fixed if size}
        products.add(max(self._forms) + 1)  # all rows, and one of zeros
        return self._is_one_to_one and products.isdisjoint(self.fixed)

    def is_open(self, size: int) -> bool:
        """Whether an axis of this size is open."""
        return self.fixed is not None and size not in self.fixed

    def of(self, size: int) -> int:
        """Return a size of an array as what it is at every size."""
        if not self.is_open(size):
            return size
        if size not in self._forms:
            raise UnprovenError("a size is not one of the input's")
        return sized(size, self._forms[size])

    def check_rows(self, size: int, *numbers: Any) -> None:
        """Raise if numbers choose rows of an axis in a way that few sizes do not show."""
        for value in numbers:
            if self.is_open(size) and abs(int(value)) < _UNBOUNDED:
                check_constant(value)
            elif isinstance(value, SymbolicSize) and not self.is_open(size):
                raise UnprovenError("a size chooses a row of a constant")

    def check_new(self, size: int) -> None:
        """Raise if an axis that became longer or shorter has the size of a constant."""
        if size > 1 and self.fixed is not None and size in self.fixed:
            raise UnprovenError("a size cannot be told from a constant")
