"""Polynomials: what a step computes, element by element.

An element of a value of a step is a polynomial with numbers as coefficients. Its variables (`Variables`) are the
elements of the states and of the rows, functions of polynomials, as in tanh(2 x + h), and the columns of products
with a matrix of constants, which are not multiplied out. A tensor is a NumPy array of polynomials.

The order of operations, the names and the operators of an exporter leave no trace in it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from rnn_lowering.limits import excess
from rnn_lowering.types import Array

Monomial = tuple[int, ...]
"""The variables that are multiplied, sorted; () for a constant."""

_CLOSE = 1e-6
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
        return monomial[0] if len(monomial) == 1 and abs(coefficient - 1) < _CLOSE else None

    def key(self) -> Hashable:
        """Return what equal polynomials have in common."""
        return frozenset((m, c if c.is_integer() else float(f"{c:.9g}")) for m, c in self.terms.items())

    def equals(self, other: Polynomial) -> bool:
        """Whether all coefficients are as good as equal."""
        keys = self.terms.keys() | other.terms.keys()
        return all(close(self.terms.get(m, 0.0), other.terms.get(m, 0.0)) for m in keys)

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
    """Whether two numbers are equal but for the rounding of float32."""
    return abs(a - b) <= _CLOSE * max(1.0, abs(a), abs(b))


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
class _Product:
    """A row of polynomials, to be multiplied by a matrix [len(row), columns]."""

    row: tuple[Polynomial, ...]
    matrix: Array


@dataclass(frozen=True)
class Column:
    """An element of a product."""

    product: _Product
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
        self._products: dict[Hashable, _Product] = {}
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
            self._products[key] = _Product(tuple(row), matrix)
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


# Affine functions of the rows and states of a step, whose coefficients are weights.


H, C = "h", "c"
"""The states, as places of coefficients."""


@dataclass
class Unknowns:
    """The variables of a step, by what they stand for.

    Attributes:
        variables: All.
        places: For each element of a state or source, what it belongs to, the sequence, and the unit.
        sizes: The number of units or features of each.
    """

    variables: Variables
    places: dict[tuple[Hashable, int], tuple[Hashable, int, int]] = field(default_factory=dict)
    sizes: dict[Hashable, int] = field(default_factory=dict)
    _rows: dict[tuple[_Product, int], int | None] = field(default_factory=dict)
    _numbers: dict[Hashable, int] = field(default_factory=dict)

    def add(self, of: Hashable, name: Hashable, places: Array) -> None:
        """Add a tensor, whose elements [batch, units] have these numbers."""
        self.sizes[name] = places.shape[1]
        for (b, j), place in np.ndenumerate(places):
            self.places[of, int(place)] = name, b, j

    def place(self, variable: int) -> tuple[Hashable, int, int] | None:
        """Return what a variable is an element of, the sequence, and the unit."""
        element = self.variables[variable]
        return self.places.get((element.of, element.index)) if isinstance(element, Element) else None

    def spelling(self, variable: int, b: int) -> Hashable:
        """Return what a variable is, whatever the sequence; None if it belongs to another sequence."""
        held = self.variables[variable]
        if isinstance(held, Column):
            product = held.product
            if (product, b) not in self._rows:
                row = tuple(_spelling(self, p, b) for p in product.row)
                numbered = self._numbers.setdefault((id(product.matrix), row), len(self._numbers))
                self._rows[product, b] = None if None in row else numbered
            known = self._rows[product, b]
            return None if known is None else (known, held.column)
        place = self.place(variable)
        return None if place is None or place[1] != b else (place[0], place[2])

    def atom(self, monomial: Monomial) -> Atom | None:
        """Return the function that a monomial of one variable is."""
        found = self.variables[monomial[0]] if len(monomial) == 1 else None
        return found if isinstance(found, Atom) else None

    def is_atom(self, variable: int) -> bool:
        return isinstance(self.variables[variable], Atom)

    def is_state(self, variable: int, name: str, b: int, j: int) -> bool:
        """Whether a variable is this element of a state."""
        return self.place(variable) == (name, b, j)


@dataclass
class Affine:
    """Affine functions of a row and of the states, one for each unit.

    Attributes:
        constant: The constants [units].
        parts: By source or state, the coefficients [units, features].
    """

    constant: Array
    parts: dict[Hashable, Array]

    def part(self, name: Hashable, size: int) -> Array:
        return self.parts.get(name, np.zeros((len(self.constant), size)))

    def __neg__(self) -> Affine:
        return Affine(-self.constant, {name: -part for name, part in self.parts.items()})

    def equals(self, other: Affine) -> bool:
        """Whether all coefficients are as good as equal."""
        mine = {"": self.constant, **self.parts}
        others = {"": other.constant, **other.parts}
        pairs = [(mine.get(name), others.get(name)) for name in mine.keys() | others.keys()]
        return all(all_close(0.0 if a is None else a, 0.0 if b is None else b) for a, b in pairs)


def all_close(a: Array | float, b: Array | float) -> bool:
    """Whether numbers are equal but for rounding, compared with the largest."""
    return bool(np.all(np.abs(a - b) <= _CLOSE * np.max(np.abs(b), initial=np.max(np.abs(a), initial=0.0))))


def affine(u: Unknowns, arguments: Array, gates: dict[tuple[int, int], int] | None = None) -> Affine:
    """Return polynomials [batch, units] as affine functions, the same for each sequence.

    Args:
        u: What the variables are.
        arguments: The polynomials.
        gates: If given, states are multiplied by functions: takes the function by sequence and unit of the state.

    Raises:
        NotRaised: They are not affine, not the same, or name another sequence.
    """
    first = _affine_row(u, arguments[0], 0, gates)
    spelled = [_spelling(u, p, 0) for p in arguments[0]]
    for b, row in enumerate(arguments[1:], 1):
        if gates is None and [_spelling(u, p, b) for p in row] == spelled:
            continue  # the same to the letter
        if not _affine_row(u, row, b, gates).equals(first):
            raise NotRaised("its weights differ between the sequences of the batch")
    return first


def _spelling(u: Unknowns, polynomial: Polynomial, b: int) -> Hashable:
    """Return a polynomial with the units of its variables in their place; None if it names another sequence."""
    found = {}
    for monomial, coefficient in polynomial.terms.items():
        names = tuple(u.spelling(variable, b) for variable in monomial)
        if None in names:
            return None
        found[names] = coefficient
    return frozenset(found.items())


def _affine_row(u: Unknowns, row: Array, b: int, gates: dict[tuple[int, int], int] | None) -> Affine:
    units = len(row)
    found = Affine(np.zeros(units), {})
    products: dict[_Product, list[tuple[int, float, int]]] = {}

    def add(name: Hashable, rows: Array, columns: Array, numbers: Array) -> None:
        if name not in found.parts:
            reason = excess("a weight", 8 * units * u.sizes[name])
            if reason:
                raise NotRaised(reason)
            found.parts[name] = np.zeros((units, u.sizes[name]))
        part = found.parts[name]
        if len({*rows.flat}) == rows.size and len({*columns.flat}) == columns.size:
            part[rows, columns] += numbers
        else:
            np.add.at(part, (rows, columns), numbers)

    for j, polynomial in enumerate(row):
        for monomial, coefficient in polynomial.terms.items():
            held = u.variables[monomial[0]] if len(monomial) == 1 else None
            if not monomial:
                found.constant[j] += coefficient
            elif isinstance(held, Column):
                products.setdefault(held.product, []).append((j, coefficient, held.column))
            else:
                name, n = _factor(u, monomial, b, gates)
                add(name, np.array([j]), np.array([n]), np.array([coefficient]))
    for product, uses in products.items():
        js, factors, columns = (np.array(each) for each in zip(*uses, strict=True))
        numbers = factors[:, None] * product.matrix.astype(np.float64)[:, columns].T  # [uses, rows of the matrix]
        for name, (ks, ns, scales) in _sources(u, product, b, gates).items():
            if name == "":
                np.add.at(found.constant, js, (numbers[:, ks] * scales).sum(1))
            else:
                add(name, js[:, None], ns[None], numbers[:, ks] * scales)
    return found


def _sources(
    u: Unknowns, product: _Product, b: int, gates: dict[tuple[int, int], int] | None
) -> dict[Hashable, tuple[Array, Array, Array]]:
    """Return, by state or source, the rows of the matrix, the units and the factors that a product combines."""
    found: dict[Hashable, list[tuple[int, int, float]]] = {}
    for k, polynomial in enumerate(product.row):
        for monomial, coefficient in polynomial.terms.items():
            name, n = _factor(u, monomial, b, gates) if monomial else ("", 0)
            found.setdefault(name, []).append((k, n, coefficient))
    return {
        name: (np.array(ks), np.array(ns), np.array(factors))
        for name, each in found.items()
        for ks, ns, factors in [zip(*each, strict=True)]
    }


def _factor(
    u: Unknowns, monomial: Monomial, b: int, gates: dict[tuple[int, int], int] | None
) -> tuple[Hashable, int]:
    """Return the state or source of a monomial, and the unit."""
    rest = monomial
    functions = [v for v in monomial if u.is_atom(v)]
    if gates is not None and len(monomial) == 2 and len(functions) == 1:
        rest = tuple(v for v in monomial if v != functions[0])
    place = u.place(rest[0]) if len(rest) == 1 else None
    if place is None:
        raise NotRaised("a gate is no activation of W x + R h + b")
    name, sequence, n = place
    if sequence != b:
        raise NotRaised("it mixes the sequences of the batch")
    if gates is not None and name == H:
        if rest is monomial:
            raise NotRaised("its hidden gate uses both R h and R (r h)")
        if gates.setdefault((b, n), functions[0]) != functions[0]:
            raise NotRaised("its reset gates differ between products")
    elif rest is not monomial:
        raise NotRaised("its reset gate is applied to more than the state")
    return name, n
