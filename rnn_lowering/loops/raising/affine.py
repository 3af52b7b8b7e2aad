"""Affine functions of the rows and states of a step: their coefficients are the weights of a cell."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

import numpy as np

from rnn_lowering.limits import excess
from rnn_lowering.loops.raising.polynomials import (
    Atom,
    Column,
    Element,
    MatrixProduct,
    Monomial,
    NotRaised,
    Polynomial,
    Variables,
    all_close,
)
from rnn_lowering.types import Array

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
    _rows: dict[tuple[MatrixProduct, int], int | None] = field(default_factory=dict)
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
        variable = self.variables[monomial[0]] if len(monomial) == 1 else None
        return variable if isinstance(variable, Atom) else None

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
    spelled = {}
    for monomial, coefficient in polynomial.terms.items():
        names = tuple(u.spelling(variable, b) for variable in monomial)
        if None in names:
            return None
        spelled[names] = coefficient
    return frozenset(spelled.items())


def _affine_row(u: Unknowns, row: Array, b: int, gates: dict[tuple[int, int], int] | None) -> Affine:
    units = len(row)
    function = Affine(np.zeros(units), {})
    products: dict[MatrixProduct, list[tuple[int, float, int]]] = {}

    def add(name: Hashable, rows: Array, columns: Array, numbers: Array) -> None:
        if name not in function.parts:
            reason = excess("a weight", 8 * units * u.sizes[name])
            if reason:
                raise NotRaised(reason)
            function.parts[name] = np.zeros((units, u.sizes[name]))
        part = function.parts[name]
        if len({*rows.flat}) == rows.size and len({*columns.flat}) == columns.size:
            part[rows, columns] += numbers
        else:
            np.add.at(part, (rows, columns), numbers)

    for j, polynomial in enumerate(row):
        for monomial, coefficient in polynomial.terms.items():
            held = u.variables[monomial[0]] if len(monomial) == 1 else None
            if not monomial:
                function.constant[j] += coefficient
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
                np.add.at(function.constant, js, (numbers[:, ks] * scales).sum(1))
            else:
                add(name, js[:, None], ns[None], numbers[:, ks] * scales)
    return function


def _sources(
    u: Unknowns, product: MatrixProduct, b: int, gates: dict[tuple[int, int], int] | None
) -> dict[Hashable, tuple[Array, Array, Array]]:
    """Return, by state or source, the rows of the matrix, the units and the factors that a product combines."""
    sources: dict[Hashable, list[tuple[int, int, float]]] = {}
    for k, polynomial in enumerate(product.row):
        for monomial, coefficient in polynomial.terms.items():
            name, n = _factor(u, monomial, b, gates) if monomial else ("", 0)
            sources.setdefault(name, []).append((k, n, coefficient))
    return {
        name: (np.array(ks), np.array(ns), np.array(factors))
        for name, each in sources.items()
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
