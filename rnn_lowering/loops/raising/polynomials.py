"""Polynomials: what a step computes, element by element.

An element of a value of a step is a polynomial with numbers as coefficients. Its variables (`Variables`) are the
elements of the states and of the rows, functions of polynomials, as in tanh(2 x + h), and the columns of products
with a matrix of constants, which are not multiplied out. A tensor is a NumPy array of polynomials.

The order of operations, the names and the operators of an exporter leave no trace in it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from rnn_lowering.types import Array

Monomial = tuple[int, ...]
"""The variables that are multiplied, sorted; () for a constant."""

CLOSE = 1e-6
"""Coefficients that differ by less are equal: constants are float32."""

_ROUNDING = 1e-14
"""A sum that is smaller than its terms by this factor is what rounding leaves of 0."""

_MOST_TERMS = 1 << 12
"""Maximum terms of a polynomial; a cell's has few."""

MOST_ELEMENTS = 1 << 20
"""Maximum elements of a tensor of polynomials."""

_DENSE = 2
"""A product with a matrix that has more numbers in a column than this is not multiplied out."""


class NotRaised(Exception):  # noqa: N818 - no error: the Loop stays
    """Why a Loop or Scan is not raised, as a sentence for users."""


class Polynomial:
    """A sum of coefficients times monomials.

    A Boolean variable has a negative number; it is its own square.
    """

    __slots__ = ("terms",)
    __array_ufunc__ = None

    def __init__(self, terms: dict[Monomial, float]) -> None:
        self.terms = terms

    def __add__(self, other: Polynomial | float) -> Polynomial:
        terms = dict(self.terms)
        for monomial, coefficient in _terms(other).items():
            before = terms.get(monomial)
            if not coefficient:
                continue
            if before is None:
                terms[monomial] = coefficient
            elif abs(before + coefficient) > _ROUNDING * abs(coefficient):
                terms[monomial] = before + coefficient
            else:
                del terms[monomial]
        if len(terms) > _MOST_TERMS:
            raise NotRaised("its step is too large to recognise a cell in it")
        return Polynomial(terms)

    def __mul__(self, other: Polynomial | float) -> Polynomial:
        if not isinstance(other, Polynomial):
            return Polynomial({m: c * other for m, c in self.terms.items()} if other else {})
        if len(self.terms) * len(other.terms) > _MOST_TERMS:
            raise NotRaised("its step is too large to recognise a cell in it")
        total = Polynomial({})
        for monomial, coefficient in other.terms.items():
            terms: dict[Monomial, float] = {}
            for m, c in self.terms.items():
                key = _joined(m, monomial)
                terms[key] = terms.get(key, 0.0) + c * coefficient
            total = total + Polynomial(terms) if total.terms else Polynomial(terms)
        return total

    def __neg__(self) -> Polynomial:
        return Polynomial({m: -c for m, c in self.terms.items()})

    def __sub__(self, other: Polynomial | float) -> Polynomial:
        return self + -other

    def __rsub__(self, other: float) -> Polynomial:
        return -self + other

    __radd__, __rmul__ = __add__, __mul__

    def __repr__(self) -> str:
        return " + ".join(f"{c:g} {m}" for m, c in self.terms.items()) or "0"

    @property
    def number(self) -> float | None:
        """The number, if there is no variable."""
        if not self.terms:
            return 0.0
        return self.terms[()] if len(self.terms) == 1 and () in self.terms else None

    @property
    def variable(self) -> int | None:
        """The variable, if there is nothing else."""
        if len(self.terms) != 1:
            return None
        ((monomial, coefficient),) = self.terms.items()
        return monomial[0] if len(monomial) == 1 and abs(coefficient - 1) < CLOSE else None

    def key(self) -> Hashable:
        """Return what equal polynomials have in common."""
        return frozenset((m, c if c.is_integer() else float(f"{c:.9g}")) for m, c in self.terms.items())

    def equals(self, other: Polynomial) -> bool:
        """Whether all coefficients are as good as equal."""
        keys = self.terms.keys() | other.terms.keys()
        return all(all_close(self.terms.get(m, 0.0), other.terms.get(m, 0.0)) for m in keys)

    def at(self, variable: int, number: float) -> Polynomial:
        """Return the polynomial with a number in place of a variable; not in the functions that it contains."""
        total = Polynomial({})
        for m, c in self.terms.items():
            rest = tuple(v for v in m if v != variable)
            total = total + Polynomial({rest: c * number ** (len(m) - len(rest))})
        return total


def checked_size(shape: Sequence[int]) -> int:
    """Return the number of elements of a tensor of polynomials.

    Raises:
        NotRaised: There are too many.
    """
    count = math.prod(map(int, shape))
    if count > MOST_ELEMENTS:
        raise NotRaised("its states and rows are too large to recognise a cell; give the batch a symbolic size")
    return count


def close(a: float, b: float) -> bool:
    """Whether two numbers are equal but for the rounding of float32; see `all_close`."""
    return abs(a - b) <= CLOSE * max(abs(a), abs(b))


def all_close(a: Array | float, b: Array | float) -> bool:
    """Whether numbers are equal but for rounding; 0 is only 0, as what small ones multiply may be large."""
    return bool(np.all(np.abs(a - b) <= CLOSE * np.maximum(np.abs(a), np.abs(b))))


def constant(number: float) -> Polynomial:
    """Return a number as a polynomial."""
    return Polynomial({(): float(number)} if number else {})


def _terms(given: Polynomial | float) -> dict[Monomial, float]:
    return given.terms if isinstance(given, Polynomial) else constant(given).terms


def _joined(a: Monomial, b: Monomial) -> Monomial:
    if not a or not b:
        return a or b
    both = tuple(sorted(a + b))
    return both if both[0] > 0 else tuple(v for n, v in enumerate(both) if v > 0 or v not in both[:n])


@dataclass(frozen=True)
class Element:
    """An element of a state or of a row.

    Attributes:
        of: What it is an element of.
        index: Its place, in the order of the elements.
    """

    of: Hashable
    index: int


@dataclass(frozen=True, eq=False)
class MatrixProduct:
    """A row of polynomials, to be multiplied by a matrix [len(row), columns]."""

    row: tuple[Polynomial, ...]
    matrix: Array


@dataclass(frozen=True)
class Column:
    """An element of a product."""

    product: MatrixProduct
    column: int


@dataclass(frozen=True)
class Atom:
    """A function of a polynomial, such as tanh(2 x + h).

    Attributes:
        name: The ONNX operator. HardSigmoid is max(0, min(1, argument)).
        alpha: Its attribute, for Elu, LeakyRelu and ThresholdedRelu.
        argument: What it is a function of.
    """

    name: str
    alpha: float | None
    argument: Polynomial


@dataclass(frozen=True)
class Truth:
    """A Boolean that depends on data: of a row, or of a comparison."""

    key: Hashable


Variable = Element | Column | Atom | Truth


class Variables:
    """The variables of polynomials, by their numbers."""

    def __init__(self) -> None:
        self._all: dict[int, Variable] = {}
        self._numbers: dict[Hashable, int] = {}
        self._products: dict[Hashable, MatrixProduct] = {}
        self._matrices: list[Array] = []

    def __getitem__(self, number: int) -> Variable:
        return self._all[number]

    def _variable(self, key: Hashable, variable: Variable, sign: int = 1) -> Polynomial:
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = sign * (len(self._all) + 1)
            self._all[number] = variable
        return Polynomial({(number,): 1.0})

    def elements(self, of: Hashable, shape: Sequence[int]) -> Array:
        """Return a tensor of unknown elements."""
        return self._tensor(shape, lambda n: self._variable((Element, of, n), Element(of, n)))

    def truths(self, of: Hashable, shape: Sequence[int]) -> Array:
        """Return a tensor of unknown Booleans."""
        return self._tensor(shape, lambda n: self.truth(Element(of, n)))

    @staticmethod
    def _tensor(shape: Sequence[int], make: Any) -> Array:
        count = checked_size(shape)
        flat = np.empty(count, object)
        flat[:] = [make(n) for n in range(count)]
        return flat.reshape(shape)

    def truth(self, key: Hashable) -> Polynomial:
        """Return a Boolean, the same for the same key."""
        return self._variable((Truth, key), Truth(key), -1)

    def function(self, name: str, argument: Polynomial, alpha: float | None = None) -> Polynomial:
        """Return a function of a polynomial, the same for the same polynomial."""
        return self._variable((name, alpha, argument.key()), Atom(name, alpha, argument))

    def product(self, row: Sequence[Polynomial], matrix: Array) -> list[Polynomial]:
        """Return the columns of the product of a row and a matrix of numbers."""
        if not matrix.size or np.count_nonzero(matrix, axis=0).max() <= _DENSE:
            return [_sum(row, column) for column in matrix.T]
        key = id(matrix), tuple(p.key() for p in row)
        if key not in self._products:
            self._products[key] = MatrixProduct(tuple(row), matrix)
            self._matrices.append(matrix)
        product = self._products[key]
        return [self._variable((id(product), n), Column(product, n)) for n in range(matrix.shape[1])]


def _sum(row: Sequence[Polynomial], factors: Array) -> Polynomial:
    total = Polynomial({})
    for k in np.flatnonzero(factors).tolist():
        total = total + row[k] * float(factors[k])
    return total


# Arrays of polynomials and of numbers.


REAL = (ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.BOOL)
"""Types that polynomials stand for."""

EXACT = (*REAL, ir.DataType.INT32, ir.DataType.INT64)
"""The same and integers that no sum of lengths leaves."""

_LARGEST_INTEGER = 1 << 31
"""Maximum of integers beside unknown ones: sums of larger ones may be rounded."""


def as_polynomials(array: Array) -> Array:
    """Return an array of polynomials for one of numbers."""
    if array.dtype == object:
        return array
    flat = np.empty(array.size, object)
    flat[:] = [constant(number) for number in _checked(array).ravel().tolist()]
    return flat.reshape(array.shape)


def as_numbers(array: Array) -> Array:
    """Return numbers as Python's, which polynomials take."""
    return array if array.dtype == object else _checked(array).astype(np.float64).astype(object)


def _checked(array: Array) -> Array:
    """Return numbers that can be coefficients.

    Raises:
        ValueError: One is infinite or none, or is too large an integer.
    """
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ValueError("no number")
    if array.dtype.kind in "iu" and array.size and max(-int(array.min()), int(array.max())) > _LARGEST_INTEGER:
        raise ValueError("a large integer")
    return array


def each(function: Callable[..., Polynomial], *arrays: Array) -> Array:
    """Apply a function to each element, which broadcast."""
    if not np.broadcast(*arrays).size:
        raise ValueError("empty")
    return np.asarray(np.frompyfunc(function, len(arrays), 1)(*map(as_polynomials, arrays)), object)
