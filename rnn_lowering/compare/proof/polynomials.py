"""Polynomials over atoms, whose coefficients carry a bound of rounding; functions of them in a normal form.

An atom is an element of an input, a function of a polynomial, or the name of a polynomial: a state of the
specification. Two polynomials are equal if their coefficients are, within their bounds. Equal arguments make the
same atom, so equal results have the same terms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence

Monomial = tuple[int, ...]
Coefficient = tuple[float, float]
"""A number, and by how much rounding may have moved it."""

_EXACT = 2.0**-50
"""A few roundings of float64, in which coefficients are computed."""

_MOST_TERMS = 4000

MOST_ELEMENTS = 450_000
"""About 2 seconds, for all nodes of a model."""


class UnprovenError(Exception):
    """Why something is not proven."""


class Effort:
    """How many elements the proofs of a model may still compute: they stand beside runs that take seconds."""

    def __init__(self) -> None:
        self.left = MOST_ELEMENTS

    def take(self, elements: int) -> None:
        """Count elements that are computed.

        Raises:
            UnprovenError: They are too many.
        """
        self.left -= elements
        if self.left < 0:
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

    def __mul__(self, other: BoundedPolynomial) -> BoundedPolynomial:
        if not self.terms or not other.terms:
            return ZERO
        if other is ONE or self is ONE:
            return self if other is ONE else other
        if len(self.terms) == len(other.terms) == 1:
            ((a, (v, of_v)),), ((b, (w, of_w)),) = self.terms.items(), other.terms.items()
            return BoundedPolynomial({_product(a, b): _times(v, of_v, w, of_w)})
        if len(self.terms) * len(other.terms) > _MOST_TERMS:
            raise UnprovenError("too large")
        terms: dict[Monomial, Coefficient] = {}
        for a, (v, of_v) in self.terms.items():
            for b, (w, of_w) in other.terms.items():
                _add(terms, _product(a, b), *_times(v, of_v, w, of_w))
        return BoundedPolynomial(terms)

    @property
    def number(self) -> Coefficient | None:
        """The number that it is; None if it has atoms."""
        if len(self.terms) > 1:
            return None
        return self.terms.get((), None if self.terms else (0.0, 0.0))

    @property
    def atom(self) -> int | None:
        """The atom that it is; None if it is none."""
        (monomial, coefficient), *others = self.terms.items() or [((), (0.0, 0.0))]
        return monomial[0] if len(monomial) == 1 and coefficient == (1.0, 0.0) and not others else None


def _add(terms: dict[Monomial, Coefficient], monomial: Monomial, value: float, bound: float) -> None:
    """Add a term in place; a sum that rounding explains is 0."""
    if monomial in terms:
        other, of_other = terms[monomial]
        bound += of_other + _EXACT * (abs(value) + abs(other))
        value += other
    if abs(value) > bound:
        terms[monomial] = value, bound
    else:
        terms.pop(monomial, None)


def _times(v: float, of_v: float, w: float, of_w: float) -> Coefficient:
    """Return the product of two numbers with their bounds; that with 1 or -1 is exact."""
    bound = abs(v) * of_w + abs(w) * of_v + of_v * of_w
    return v * w, bound if abs(v) == 1 or abs(w) == 1 else bound + _EXACT * abs(v * w)


def _product(a: Monomial, b: Monomial) -> Monomial:
    if not a or not b:
        return a or b
    atoms = sorted(a + b)
    return tuple(x for n, x in enumerate(atoms) if x >= 0 or n == 0 or atoms[n - 1] != x)


def number(value: float, bound: float = 0.0) -> BoundedPolynomial:
    """Return a number as a polynomial."""
    return BoundedPolynomial({(): (value, bound)} if abs(value) > bound else {})


ZERO, ONE = number(0.0), number(1.0)


def combination(numbers: Iterable[Coefficient], of: Iterable[BoundedPolynomial]) -> BoundedPolynomial:
    """Return a sum of polynomials, each times a number."""
    terms: dict[Monomial, Coefficient] = {}
    for (w, of_w), polynomial in zip(numbers, of, strict=True):
        for monomial, (v, of_v) in polynomial.terms.items():
            _add(terms, monomial, *_times(v, of_v, w, of_w))
    return BoundedPolynomial(terms)


def equal(a: BoundedPolynomial, b: BoundedPolynomial) -> bool:
    """Return whether all coefficients are equal, within their bounds. None of them is 0 within its bound."""
    others = b.terms
    if len(a.terms) != len(others):
        return False
    for monomial, (v, of_v) in a.terms.items():
        coefficient = others.get(monomial)
        if coefficient is None or abs(v - coefficient[0]) > of_v + coefficient[1] + _EXACT * abs(v):
            return False
    return True


class Algebra:
    """The atoms of one proof.

    Attributes:
        labels: What an atom is that is an element of an input or of a state: its row, and its place in it.
    """

    def __init__(self, effort: Effort) -> None:
        self.count = effort.take
        self.labels: dict[int, tuple[Hashable, int]] = {}
        self._atoms: dict[Hashable, BoundedPolynomial] = {}
        self._alike: dict[frozenset[Monomial], list[tuple[BoundedPolynomial, int]]] = {}
        self._states: dict[frozenset[Monomial], list[tuple[BoundedPolynomial, BoundedPolynomial]]] = {}
        self._sizes_of_states: set[int] = set()
        self._positive: set[int] = set()
        self._rows: dict[tuple[int, ...], int] = {}
        self._count = 0

    def symbol(self, row: Hashable, place: int) -> BoundedPolynomial:
        """Return a new atom: an element of a row."""
        self._count += 1
        self.labels[self._count] = row, place
        return BoundedPolynomial({(self._count,): (1.0, 0.0)})

    def state(self, value: BoundedPolynomial, row: Hashable, place: int) -> BoundedPolynomial:
        """Return the atom that stands for a state of the specification; a number stays."""
        if value.number is not None or value.atom in self.labels:
            return value
        named = self.settled(value)
        if named is value:
            named = self.symbol(row, place)
            self._states.setdefault(frozenset(value.terms), []).append((value, named))
            self._sizes_of_states.add(len(value.terms))
        return named

    def settled(self, value: BoundedPolynomial) -> BoundedPolynomial:
        """Return the atom of a state that a polynomial equals, else the polynomial."""
        if len(value.terms) not in self._sizes_of_states:
            return value
        for state, named in self._states.get(frozenset(value.terms), ()):
            if equal(value, state):
                return named
        return value

    def identity(self, value: BoundedPolynomial) -> int:
        """Return a number that equal polynomials share."""
        if (atom := value.atom) is not None:
            return atom
        alike = self._alike.setdefault(frozenset(value.terms), [])
        for other, named in alike:
            if other is value or equal(value, other):
                return named
        self._count += 1
        alike.append((value, self._count))
        return self._count

    def atom(self, *key: Hashable, is_bit: bool = False) -> BoundedPolynomial:
        """Return the atom of a key."""
        if key not in self._atoms:
            self._count += 1
            self._atoms[key] = BoundedPolynomial({(-self._count if is_bit else self._count,): (1.0, 0.0)})
        return self._atoms[key]

    def row(self, polynomials: Sequence[BoundedPolynomial]) -> int:
        """Return a number that equal rows share."""
        identities = tuple(map(self.identity, polynomials))
        if identities not in self._rows:
            self._count += 1
            self._rows[identities] = self._count
        return self._rows[identities]

    def _function(self, name: str, of_number: Callable[[float], float], x: BoundedPolynomial) -> BoundedPolynomial:
        if x.number is None:
            return self.atom(name, self.identity(x))
        value, bound = x.number
        if bound:
            near = [of_number(value + sign * bound) for sign in (-1, 1)]
            return number(of_number(value), 2 * max(abs(v - of_number(value)) for v in near) + _EXACT)
        return number(of_number(value), _EXACT * abs(of_number(value)))

    # Functions. Each is odd, or becomes the same for x and -x in another way, so that a sign is no difference.

    def tanh(self, x: BoundedPolynomial) -> BoundedPolynomial:
        return -self._function("Tanh", math.tanh, -x) if _is_negative(x) else self._function("Tanh", math.tanh, x)

    def sigmoid(self, x: BoundedPolynomial) -> BoundedPolynomial:
        if _is_negative(x):
            return ONE - self._function("Sigmoid", _sigmoid, -x)
        return self._function("Sigmoid", _sigmoid, x)

    def relu(self, x: BoundedPolynomial) -> BoundedPolynomial:
        if _is_negative(x):
            return x + self.relu(-x)
        if len(x.terms) == 1 and self._positive.issuperset(next(iter(x.terms))):
            return x
        result = self._function("Relu", lambda v: max(v, 0.0), x)
        if result.atom is not None:
            self._positive.add(result.atom)
        return result

    def abs(self, x: BoundedPolynomial) -> BoundedPolynomial:
        return self.relu(x) + self.relu(-x)

    def above(self, x: BoundedPolynomial) -> BoundedPolynomial:
        """Return 1 if x > 0, else 0."""
        if x.number is not None:
            return ONE if x.number[0] > 0 else ZERO
        return self.atom("Above", self.identity(x), is_bit=True)

    def exp(self, x: BoundedPolynomial) -> BoundedPolynomial:
        return self._function("Exp", math.exp, x)

    def log(self, x: BoundedPolynomial) -> BoundedPolynomial:
        return self._function("Log", math.log, x)

    def divided(self, a: BoundedPolynomial, b: BoundedPolynomial) -> BoundedPolynomial:
        return a * self._function("1/x", lambda v: 1 / v, b)

    def maximum(self, a: BoundedPolynomial, b: BoundedPolynomial) -> BoundedPolynomial:
        return b + self.relu(a - b)

    def minimum(self, a: BoundedPolynomial, b: BoundedPolynomial) -> BoundedPolynomial:
        return b - self.relu(b - a)

    def elu(self, x: BoundedPolynomial, alpha: BoundedPolynomial) -> BoundedPolynomial:
        return self.relu(x) + (self.exp(-self.relu(-x)) - ONE) * alpha

    def leaky_relu(self, x: BoundedPolynomial, alpha: BoundedPolynomial) -> BoundedPolynomial:
        return self.relu(x) - self.relu(-x) * alpha

    def thresholded_relu(self, x: BoundedPolynomial, alpha: BoundedPolynomial) -> BoundedPolynomial:
        return self.relu(x - alpha) + self.above(x - alpha) * alpha

    def hard_sigmoid(
        self, x: BoundedPolynomial, alpha: BoundedPolynomial, beta: BoundedPolynomial
    ) -> BoundedPolynomial:
        return self.minimum(self.maximum(alpha * x + beta, ZERO), ONE)

    def softplus(self, x: BoundedPolynomial) -> BoundedPolynomial:
        return self.relu(x) + self.log(self.exp(-self.abs(x)) + ONE)

    def softsign(self, x: BoundedPolynomial) -> BoundedPolynomial:
        return self.divided(x, self.abs(x) + ONE)


def _sigmoid(x: float) -> float:
    return 0.5 * (1 + math.tanh(0.5 * x))


def _is_negative(x: BoundedPolynomial) -> bool:
    return x.number is None and x.terms[max(x.terms)][0] < 0
