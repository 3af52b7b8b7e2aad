"""Polynomials over atoms, whose coefficients carry a bound of rounding; functions of them in a normal form.

A polynomial stands for a row of elements that are computed alike, its lanes. An atom is a part of a row of an
input, a function of a polynomial, or the name of a polynomial: a state of the specification. A coefficient is one
number, or one for each lane. Two polynomials are equal if their coefficients are, within their bounds. Equal
arguments make the same atom, so equal results have the same terms.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from threading import Event
from typing import Any

import numpy as np

Monomial = tuple[int, ...]
Numbers = Any
"""A float, or an array with one for each lane."""
Coefficient = tuple[Numbers, Numbers]
"""Numbers, and by how much rounding may have moved them."""

_EXACT = 2.0**-50
"""A few roundings of float64, in which coefficients are computed."""

_SAME = 2.0**-40
"""Numbers of one model that should be the same are so near."""

_PARTIAL = frozenset({"1/x", "Exp", "Log", "Pow", "Reciprocal", "Sqrt"})
"""They have no number for some numbers, or a large one: what is lowered has none that the node has not."""

_MOST_HIDDEN = 2.0**-10
"""Rounding explains no larger number: so much is lost where float32 numbers above 8,000 cancel."""

_MOST_TERMS = 4000

MOST_FUNCTIONS = 60_000
"""About 2 seconds, for all nodes of a model."""


class UnprovenError(Exception):
    """Why something is not proven."""


class Effort:
    """How many functions the proofs of a model may still compute: they stand beside runs that take seconds.

    Args:
        given_up: Whether another thread, which asked for the proofs, needs them no more.
    """

    def __init__(self, given_up: Event | None = None) -> None:
        self.left, self._given_up = MOST_FUNCTIONS, given_up or Event()

    @property
    def is_spent(self) -> bool:
        """Whether nothing more may be computed."""
        return self.left < 0 or self._given_up.is_set()

    def take(self, functions: int) -> None:
        """Count functions that are computed.

        Raises:
            UnprovenError: They are too many.
        """
        self.left -= functions
        if self.is_spent:
            raise UnprovenError("too large")


class BoundedPolynomial:
    """A sum of products of atoms. Atoms below 0 are 0 or 1: their powers are themselves."""

    __slots__ = ("terms",)

    def __init__(self, terms: dict[Monomial, Coefficient]) -> None:
        self.terms = terms

    def __add__(self, other: BoundedPolynomial) -> BoundedPolynomial:
        terms = dict(self.terms)
        for monomial, coefficient in other.terms.items():
            if monomial in terms:
                _add(terms, monomial, *coefficient)
            else:
                terms[monomial] = coefficient
        return BoundedPolynomial(terms)

    def __neg__(self) -> BoundedPolynomial:
        return BoundedPolynomial({monomial: (-v, bound) for monomial, (v, bound) in self.terms.items()})

    def __sub__(self, other: BoundedPolynomial) -> BoundedPolynomial:
        return self + -other

    def complement(self) -> BoundedPolynomial:
        """Return 1 minus this."""
        return ONE - self

    def __mul__(self, other: BoundedPolynomial) -> BoundedPolynomial:
        if not self.terms or not other.terms:
            return ZERO
        if other is ONE or self is ONE:
            return self if other is ONE else other
        if len(self.terms) * len(other.terms) > _MOST_TERMS:
            raise UnprovenError("too large")
        terms: dict[Monomial, Coefficient] = {}
        for a, (v, of_v) in self.terms.items():
            for b, (w, of_w) in other.terms.items():
                _add(terms, _product(a, b), *_times(v, of_v, w, of_w))
        return BoundedPolynomial(terms)

    @property
    def number(self) -> Coefficient | None:
        """The numbers that it is; None if it has atoms."""
        if len(self.terms) > 1:
            return None
        return self.terms.get((), None if self.terms else (0.0, 0.0))

    @property
    def atom(self) -> int | None:
        """The atom that it is; None if it is none."""
        if len(self.terms) != 1:
            return None
        ((monomial, (v, bound)),) = self.terms.items()
        is_one = isinstance(v, float) and v == 1.0 and isinstance(bound, float) and not bound
        return monomial[0] if len(monomial) == 1 and is_one else None


def _add(terms: dict[Monomial, Coefficient], monomial: Monomial, value: Numbers, bound: Numbers) -> None:
    """Add a term in place; a sum that the rounding of float64 explains is 0."""
    rounding = 0.0
    if monomial in terms:
        other, of_other = terms[monomial]
        rounding = _EXACT * (abs(value) + abs(other))
        bound = bound + of_other + rounding
        value = value + other
    is_none = (abs(value) <= rounding) & (bound <= _MOST_HIDDEN)
    if not _all(is_none):
        if any_of(is_none):
            value, bound = np.where(is_none, 0.0, value), np.where(is_none, 0.0, bound)
        terms[monomial] = value, bound
    else:
        terms.pop(monomial, None)


def any_of(bits: Any) -> bool:
    return bool(bits.any() if isinstance(bits, np.ndarray) else bits)


def _all(bits: Any) -> bool:
    return bool(bits.all() if isinstance(bits, np.ndarray) else bits)


def _times(v: Numbers, of_v: Numbers, w: Numbers, of_w: Numbers) -> Coefficient:
    """Return the product of two numbers with their bounds; that with 1 or -1 is exact."""
    bound = abs(v) * of_w + abs(w) * of_v + of_v * of_w
    exact = (isinstance(v, float) and abs(v) == 1) or (isinstance(w, float) and abs(w) == 1)
    return v * w, bound if exact else bound + _EXACT * abs(v * w)


def _product(a: Monomial, b: Monomial) -> Monomial:
    if not a or not b:
        return a or b
    atoms = sorted(a + b)
    if atoms[0] >= 0:
        return tuple(atoms)
    return tuple(x for n, x in enumerate(atoms) if x >= 0 or n == 0 or atoms[n - 1] != x)


def number(value: Numbers, bound: Numbers = 0.0) -> BoundedPolynomial:
    """Return numbers as a polynomial."""
    terms: dict[Monomial, Coefficient] = {}
    _add(terms, (), _single(value), _single(bound))
    return BoundedPolynomial(terms)


def _single(numbers: Any) -> Numbers:
    """Return a float if all lanes have it."""
    if isinstance(numbers, float):
        return numbers
    array = np.asarray(numbers, np.float64)
    return float(array.flat[0]) if array.size and (array == array.flat[0]).all() else array


ZERO, ONE = number(0.0), number(1.0)

Function = Callable[..., BoundedPolynomial]


class _Alike:
    """Equal polynomials, of which those of the lowered model are the same: a difference would be one of roundings,
    which it could multiply.

    Attributes:
        first: The first one.
        atom: That of all of them.
        is_state: Whether they are a state of the specification.
    """

    def __init__(self, first: BoundedPolynomial, atom: int) -> None:
        self.first, self.atom, self.is_state = first, BoundedPolynomial({(atom,): (1.0, 0.0)}), False
        self._lowered: BoundedPolynomial | None = None

    def check(self, value: BoundedPolynomial) -> None:
        """Raise if one of the lowered model is another one than those before it."""
        if self._lowered is None:
            self._lowered = value
        elif value is not self._lowered and any(
            any_of(abs(v - self._lowered.terms[monomial][0]) > _SAME * abs(v))
            for monomial, (v, _) in value.terms.items()
        ):
            raise UnprovenError("rounding makes numbers equal that are not")


def _are_same(a: BoundedPolynomial, b: BoundedPolynomial) -> bool:
    """Whether all coefficients are the same numbers, of polynomials that have the same terms."""
    return all(np.array_equal(v, b.terms[monomial][0]) for monomial, (v, _) in a.terms.items())


class Algebra:
    """The atoms of one proof.

    Args:
        effort: How many functions may be computed.
        slack: How far a coefficient may be from an equal one at most, in times of it or of 1.

    Attributes:
        is_specified: Whether it is the specification that computes, not the lowered model.
    """

    def __init__(self, effort: Effort, slack: float) -> None:
        self.count, self.slack = effort.take, slack
        self._labels: dict[int, Hashable] = {}
        self._lanes: dict[int, int] = {}
        self._whole: dict[int, tuple[int, int]] = {}
        self._atoms: dict[Hashable, BoundedPolynomial] = {}
        self.is_specified = True
        self._alike: dict[frozenset[Monomial], list[_Alike]] = {}
        self._sizes_of_states: set[int] = set()
        self._named: set[int] = set()
        self._functions: dict[Hashable, Function] = {}
        self._positive: set[int] = set()
        self._positive_sums: dict[frozenset[Monomial], list[BoundedPolynomial]] = {}
        self._count = 0

    def begin_run(self) -> None:
        """Forget what is an input and which state is which: the next run has other states."""
        self._labels.clear()
        self.is_specified = True

    def end(self) -> None:
        """Drop what refers to the algebra itself, so all of it goes with the last who uses it."""
        self._functions.clear()

    @property
    def named(self) -> int:
        """How many states have names."""
        return len(self._named)

    def symbol(self, lanes: int, label: Hashable) -> BoundedPolynomial:
        """Return the atom of a row of an input."""
        symbol = self.atom(lanes, "symbol", lanes, label)
        self._labels[symbol.atom or 0] = label
        return symbol

    def label(self, value: BoundedPolynomial) -> tuple[Any, int] | None:
        """Return which input or state has a polynomial as a part, and where that begins."""
        whole, first = self._whole.get(value.atom or 0, (value.atom or 0, 0))
        return (self._labels[whole], first) if whole in self._labels else None

    def state(self, value: BoundedPolynomial, lanes: int, label: Hashable) -> BoundedPolynomial:
        """Return the atom that stands for a row of a state of the specification; a number stays."""
        if value.number is not None or self.label(value) is not None:
            return value
        if value.atom not in self._named:
            alike = self._alike_of(value)
            value, alike.is_state = alike.atom, True
            self._named.add(value.atom or 0)
            self._lanes[value.atom or 0] = lanes
            self._sizes_of_states.add(len(alike.first.terms))
        self._labels.setdefault(value.atom or 0, label)
        return value

    def settled(self, value: BoundedPolynomial) -> BoundedPolynomial:
        """Return the atom of a state that a polynomial equals, else the polynomial."""
        if len(value.terms) not in self._sizes_of_states:
            return value
        states = (alike for alike in self._alike.get(frozenset(value.terms), ()) if alike.is_state)
        return value if (alike := self._found(value, states)) is None else alike.atom

    def _found(self, value: BoundedPolynomial, classes: Iterable[_Alike]) -> _Alike | None:
        """Return those that a polynomial equals."""
        for alike in classes:
            if alike.first is value or self.equal(value, alike.first):
                if not self.is_specified:
                    alike.check(value)
                return alike
        return None

    def _alike_of(self, value: BoundedPolynomial) -> _Alike:
        """Return those that a polynomial equals, at first it alone."""
        classes = self._alike.setdefault(frozenset(value.terms), [])
        if (alike := self._found(value, classes)) is None:
            self._count += 1
            classes.append(alike := _Alike(value, self._count))
            if not self.is_specified:
                alike.check(value)
        return alike

    def equal(self, a: BoundedPolynomial, b: BoundedPolynomial) -> bool:
        """Return whether all coefficients are equal, within their bounds. None of them is 0 within its bound."""
        others = b.terms
        if len(a.terms) != len(others):
            return False
        for monomial, (v, of_v) in a.terms.items():
            coefficient = others.get(monomial)
            if coefficient is None:
                return False
            w, of_w = coefficient
            if isinstance(v, float) and isinstance(w, float) and v == w:
                continue
            if v is not w and self._is_far(v, w, of_v + of_w + _EXACT * abs(v)):
                return False
        return True

    def _is_far(self, v: Numbers, w: Numbers, bound: Numbers) -> bool:
        far = abs(v - w)
        if isinstance(far, float) and isinstance(bound, float):
            return not far <= min(bound, self.slack * max(abs(v), 1.0))
        return not _all(far <= np.minimum(bound, self.slack * np.maximum(abs(v), 1.0)))

    def identity(self, value: BoundedPolynomial) -> int:
        """Return a number that equal polynomials share."""
        atom = value.atom
        return (self._alike_of(value).atom.atom or 0) if atom is None else atom

    def atom(self, lanes: int, *key: Hashable, is_bit: bool = False) -> BoundedPolynomial:
        """Return the atom of a key."""
        if key not in self._atoms:
            if not self.is_specified and key[0] in _PARTIAL:
                raise UnprovenError("a function that is not of all numbers")
            self._count += 1
            self._lanes[self._count] = lanes
            self._atoms[key] = BoundedPolynomial({(-self._count if is_bit else self._count,): (1.0, 0.0)})
        return self._atoms[key]

    @property
    def unit(self) -> BoundedPolynomial:
        """The atom that is a factor of all integers that are data."""
        return self.atom(1, "unit")

    def without_unit(self, value: BoundedPolynomial) -> BoundedPolynomial:
        """Return integers as numbers, and numbers as they are."""
        unit = self.unit.atom or 0
        counts = {monomial.count(unit) for monomial in value.terms}
        if not counts & {1}:
            return value
        if counts != {1}:
            raise UnprovenError("integers are data")
        terms = {tuple(x for x in monomial if x != unit): pair for monomial, pair in value.terms.items()}
        return BoundedPolynomial(terms)

    def split_terms(self, value: BoundedPolynomial) -> list[tuple[BoundedPolynomial, BoundedPolynomial]]:
        """Return the terms of a polynomial, each as a factor that all lanes have and one of the lanes."""
        found = []
        for monomial, coefficient in value.terms.items():
            of_all = tuple(atom for atom in monomial if self._lanes[abs(atom)] == 1)
            of_lanes = tuple(atom for atom in monomial if self._lanes[abs(atom)] > 1)
            is_array = any(isinstance(x, np.ndarray) for x in coefficient)
            pair = ((1.0, 0.0), coefficient) if is_array else (coefficient, (1.0, 0.0))
            found.append((BoundedPolynomial({of_all: pair[0]}), BoundedPolynomial({of_lanes: pair[1]})))
        return found

    def common_factor(self, rows: list[BoundedPolynomial]) -> tuple[BoundedPolynomial, list[BoundedPolynomial]]:
        """Return a factor that all lanes of all rows have, and the rows without it."""
        split = [self.split_terms(row) for row in rows]
        (first, _), *_ = split[0]
        if all(len(terms) == 1 and terms[0][0].terms == first.terms for terms in split):
            return first, [terms[0][1] for terms in split]
        return ONE, rows

    def lanes(self, value: BoundedPolynomial) -> int:
        """Return how many elements a polynomial stands for; 1 if all lanes of a row are this one."""
        for monomial, numbers in value.terms.items():
            for atom in monomial:
                if (lanes := self._lanes[abs(atom)]) > 1:
                    return lanes
            for x in numbers:
                if isinstance(x, np.ndarray):
                    return len(x)
        return 1

    def cut(self, value: BoundedPolynomial, first: int, end: int) -> BoundedPolynomial:
        """Return some lanes of a polynomial."""
        if (first, end) == (0, self.lanes(value)):
            return value
        terms: dict[Monomial, Coefficient] = {}
        for monomial, numbers in value.terms.items():
            parts = [x[first:end] if isinstance(x, np.ndarray) else x for x in numbers]
            _add(terms, tuple(sorted(self._cut_atom(atom, first, end) for atom in monomial)), *map(_single, parts))
        return BoundedPolynomial(terms)

    def _cut_atom(self, atom: int, first: int, end: int) -> int:
        if self._lanes[abs(atom)] == 1:
            return atom
        sign, (whole, start) = (1 if atom > 0 else -1), self._whole.get(abs(atom), (abs(atom), 0))
        first, end = start + first, start + end
        if (first, end) == (0, self._lanes[whole]):
            return sign * whole
        (monomial,) = self.atom(end - first, "lanes", whole, first, end).terms
        part = monomial[0]
        self._whole[part] = whole, first
        if whole in self._positive:
            self._positive.add(part)
        return sign * part

    def function(self, of: Callable[..., BoundedPolynomial], *parameters: BoundedPolynomial) -> Function:
        """Return a function of polynomials with parameters: the same one for the same parameters."""
        key = of, *(parameter.number for parameter in parameters)
        return self._functions.setdefault(key, lambda *x: of(self, *x, *parameters))

    def applied(self, name: str, of_numbers: Callable[[Any], Any], x: BoundedPolynomial) -> BoundedPolynomial:
        """Return a function of numbers, which is an atom for each other polynomial."""
        if x.number is None:
            return self.atom(self.lanes(x), name, self.identity(x))
        value, bound = x.number
        result = of_numbers(value)
        if any_of(bound != 0):
            near = [abs(of_numbers(value + sign * bound) - result) for sign in (-1, 1)]
            return number(result, 2 * np.maximum(*near) + _EXACT)
        return number(result, _EXACT * abs(result))

    def is_positive(self, x: BoundedPolynomial) -> bool:
        """Return whether it is one term of atoms that are positive, and so is its number; or a noted sum."""
        if len(x.terms) != 1:
            return any(_are_same(x, noted) for noted in self._positive_sums.get(frozenset(x.terms), ()))
        ((monomial, (v, _)),) = x.terms.items()
        return bool(monomial) and self._positive.issuperset(monomial) and not any_of(v < 0)

    def positive(self, x: BoundedPolynomial) -> BoundedPolynomial:
        """Note that it is; return it."""
        if x.atom is not None:
            self._positive.add(x.atom)
        elif len(x.terms) > 1:
            self._positive_sums.setdefault(frozenset(x.terms), []).append(x)
        return x
