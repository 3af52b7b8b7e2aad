"""What several exports of a net say: the sizes that each has, and which sizes explain a number that differs.

A number that is equal in all exports is no size. One that differs must be explained by one size alone, or the model
is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import combinations_with_replacement, pairwise

import onnx_ir as ir

from rnn_lowering.errors import NodeRef, UnsupportedError
from rnn_lowering.facts.size import Shape, Size, Symbol, product, size

PAGE = "frozen-axis.md"
"""The page about exports at two sizes."""

SIZES = "export at sizes such as 11 and 160"
THIRD = f"{SIZES}, or give a third export in between: --also MIDDLE.onnx"

_CLOSE = 2e-6
"""Relative distance of floats that count as equal: what rounding to float32 explains, a few times."""

_MOST_PARTS = 17
_SHARE = 4
"""An offset beside a multiple of a size is at most this part of it."""

Integers = tuple[int, ...]
Floats = tuple[float, ...]
"""A number in each export, which are in the order of the files."""


def refuse(node: NodeRef, fact: str, hint: str = SIZES) -> UnsupportedError:
    """Return the error that refuses a node."""
    error = UnsupportedError(fact, hint=hint, node=node)
    error.page = PAGE
    return error


def told(numbers: Iterable[object]) -> str:
    """Return numbers of the exports as text: 24 and 37."""
    *first, last = map(str, numbers)
    return f"{', '.join(first)} and {last}" if first else last


def text_of(number: Size) -> str:
    """Return a size as one writes it: t - 2."""
    text = ""
    for monomial, factor in sorted(number.terms, key=lambda term: not term[0]):
        names = "*".join(map(str, monomial))
        times = "" if abs(factor) == 1 and names else str(abs(factor)) + "*" * bool(names)
        sign = " - " if factor < 0 else " + "
        text += (sign if text else sign.strip(" +")) + times + names
    return text or "0"


@dataclass(frozen=True)
class Number:
    """A number that changes with a size: factor * size ** power."""

    size: Size
    power: Fraction = Fraction(1)
    factor: float = 1.0


@dataclass
class Evidence:
    """The sizes of the exports.

    Attributes:
        axes: The symbols of the axes that are opened.
        values: By symbol its size in each export.
        origins: By symbol that no axis of an input has, the value and the axis that it is the size of.
        sizes: The sizes of values so far, in their order.
    """

    axes: frozenset[Symbol]
    values: dict[Symbol, Integers] = field(default_factory=dict)
    origins: dict[Symbol, tuple[ir.Value, int]] = field(default_factory=dict)
    sizes: dict[Size, Integers] = field(default_factory=dict)

    @classmethod
    def of(cls, values: Mapping[str, Integers]) -> Evidence:
        """Start with the sizes of the opened axes."""
        made = cls(frozenset(values))
        for symbol, held in values.items():
            made.values[symbol] = made.sizes[Size.symbol(symbol)] = held
        return made

    def in_export(self, dim: Size, n: int) -> Size:
        """Return a size as export `n` has it; axes that were open before stay symbols."""
        for symbol in dim.symbols & self.values.keys():
            dim = dim.replaced(symbol, self.values[symbol][n])
        return dim

    def add(self, shape: Shape) -> None:
        """Add the sizes of a value that differ between the exports."""
        for dim in shape:
            if dim not in self.sizes and dim.symbols and (numbers := self.sizes_of(dim)) is not None:
                self.sizes[dim] = numbers

    @property
    def known_symbols(self) -> set[Symbol]:
        """The symbols of axes, and of values that can be read here."""
        return {symbol for dim in self.sizes for symbol in dim.symbols}

    def leave(self, graph: ir.Graph) -> None:
        """Forget the sizes of values in a body, which are known only there."""
        gone = {symbol for symbol, (value, _) in self.origins.items() if _graph_of(value) is graph}
        self.sizes = {dim: numbers for dim, numbers in self.sizes.items() if not dim.symbols & gone}

    def known(self, shapes: Iterable[Shape]) -> dict[Size, Integers]:
        """Return the sizes in shapes that differ between the exports."""
        return {dim: self.sizes[dim] for shape in shapes for dim in shape if dim in self.sizes}

    def sizes_of(self, dim: Size) -> Integers | None:
        """Return what a size is in each export; None if it has a symbol of another axis."""
        if not dim.symbols <= self.values.keys():
            return None
        count = len(next(iter(self.values.values())))
        return tuple(int(self.in_export(dim, n).constant or 0) for n in range(count))

    # Numbers

    def integer(self, node: NodeRef, what: str, numbers: Integers, own: Sequence[Shape]) -> Size:
        """Return the size that explains integers; a number that is the same in all exports is none.

        Args:
            node: The node that has them.
            what: What they are, in an error.
            numbers: The integers.
            own: The shapes of the node's inputs.
        """
        if len(set(numbers)) == 1:
            return size(numbers[0])
        found = self._only(node, what, numbers, self.integers(numbers, own))
        if found not in self.known(own):
            self._check_measured(node, what, numbers, found)
        return found

    def _check_measured(self, node: NodeRef, what: str, numbers: Sequence[float], found: Size) -> None:
        """Refuse a size that a value has, such as that behind a stride, if two exports say so, or a number beside
        it if all exports round alike: it is rounded."""
        beside = found not in self.sizes and any(_round_alike(numbers, self.values[axis]) for axis in self.axes)
        if (len(numbers) < 3 or beside) and not found.symbols <= self.axes:
            fact = f"{what} is {told(numbers)}, and {text_of(found)} by chance or always"
            raise refuse(node, fact, THIRD)

    def integers(self, numbers: Integers, own: Sequence[Shape] = ()) -> list[Size]:
        """Return the sizes that may explain integers: those of the first rule that has any."""
        axes = {Size.symbol(symbol): self.values[symbol] for symbol in self.axes}
        pools = {"own": self.known(own), "axes": axes, "all": self.sizes}
        for pool, rule in INTEGER_RULES:
            if candidates := list(dict.fromkeys(rule(numbers, pools[pool]))):
                return list(dict.fromkeys([*candidates, *_is_size(numbers, self.sizes)]))
        return []

    def number(self, node: NodeRef, what: str, numbers: Floats, own: Sequence[Shape]) -> Number:
        """Return what explains floats, as `integer` does."""
        for power in _FLOAT_POWERS:
            whole = _whole(numbers, power)
            if whole is not None and (sizes := self.integers(whole, own)):
                chosen = self._only(node, what, numbers, sizes)
                self._check_measured(node, what, whole, chosen)
                return Number(chosen, power)
        for pool in ({Size.symbol(symbol): self.values[symbol] for symbol in self.axes}, self.sizes):
            scaled = {each: each.size for each in _scaled(numbers, pool)}
            if scaled:
                chosen = self._only(node, what, numbers, list(dict.fromkeys(scaled.values())))
                self._check_measured(node, what, numbers, chosen)
                return next(each for each, held in scaled.items() if held == chosen)
        raise refuse(node, f"{what} is {told(numbers)}, which no size explains")

    def _only(self, node: NodeRef, what: str, numbers: Sequence[float], found: Sequence[Size]) -> Size:
        """Return the only candidate, or the only one that depends on opened axes alone."""
        of_axes = [dim for dim in found if dim.symbols <= self.axes]
        for left in (found, of_axes):
            if len(left) == 1:
                return left[0]
        if not found:
            raise refuse(node, f"{what} is {told(numbers)}, which no size explains")
        names = " or ".join(text_of(dim) for dim in found[:3])
        raise refuse(node, f"{what} is {told(numbers)} and may be {names}", THIRD)


def _round_alike(numbers: Sequence[float], sizes: Integers) -> bool:
    """Whether a part of a size, rounded in several ways, is these numbers but for a number that is the same."""
    for part in range(2, _MOST_PARTS):
        ways = range(part)
        rests = ({n - (held + way) // part for n, held in zip(numbers, sizes, strict=True)} for way in ways)
        if sum(len(rest) == 1 for rest in rests) > 1:
            return True
    return False


def _graph_of(value: ir.Value) -> ir.Graph | ir.Function | None:
    producer = value.producer()
    return value.graph if producer is None else producer.graph


# The rules of integers: each yields the sizes that may explain them. The first that yields any decides.

_Pool = dict[Size, Integers]


def _is_size(numbers: Integers, pool: _Pool) -> Iterator[Size]:
    yield from (dim for dim, held in pool.items() if held == numbers)


def _is_multiple(numbers: Integers, pool: _Pool) -> Iterator[Size]:
    """Yield sizes, their multiples, and products of two."""
    yield from _is_size(numbers, pool)
    for dim, held in pool.items():
        factors = {Fraction(number, size) for number, size in zip(numbers, held, strict=True) if size}
        if len(factors) == 1 and 0 not in held and (factor := factors.pop()).denominator == 1 and factor > 1:
            yield dim * factor
    for pair in combinations_with_replacement(pool, 2) if 0 not in numbers else ():
        if tuple(a * b for a, b in zip(*(pool[dim] for dim in pair), strict=True)) == numbers:
            yield product(pair)


def _is_offset(numbers: Integers, pool: _Pool) -> Iterator[Size]:
    """Yield a size and a number that is the same in all exports, also counted back."""
    for dim, held in pool.items() if 0 not in numbers else ():
        for sign in (1, -1):
            rests = {number - sign * size for number, size in zip(numbers, held, strict=True)}
            if len(rests) == 1:
                yield dim * sign + rests.pop()


def _is_linear(numbers: Integers, pool: _Pool) -> Iterator[Size]:
    """Yield a multiple of a size and a small number."""
    for dim, held in pool.items() if 0 not in numbers else ():
        steps = {
            Fraction(number - numbers[0], size - held[0])
            for number, size in zip(numbers[1:], held[1:], strict=True)
            if size != held[0]
        }
        factor = steps.pop() if len(steps) == 1 else Fraction(0)
        rests = {number - factor * size for number, size in zip(numbers, held, strict=True)}
        if abs(factor) < 1 or factor.denominator != 1 or len(rests) > 1:
            continue
        rest = rests.pop()
        if all(_SHARE * abs(rest) <= abs(factor * size) for size in held):
            yield dim * factor + rest


INTEGER_RULES: Sequence[tuple[str, Callable[[Integers, _Pool], Iterator[Size]]]] = (
    ("own", _is_multiple),
    ("all", _is_size),
    ("axes", _is_multiple),
    ("all", _is_multiple),
    ("axes", _is_offset),
    ("all", _is_offset),
    ("axes", _is_linear),
    ("all", _is_linear),
)
"""Where a rule looks: at sizes of the node's own inputs, at the opened axes, at the sizes of all values before."""


# The rules of floats

_FLOAT_POWERS = (Fraction(1), Fraction(-1), Fraction(1, 2), Fraction(-1, 2))
"""A float, its inverse, its square or the inverse of that may be an integer that is a size."""


def _whole(numbers: Floats, power: Fraction) -> Integers | None:
    """Return integers whose power the floats are; None if there are none."""
    if 0 in numbers or (abs(power) < 1 and min(numbers) < 0):
        return None
    found = [number ** float(1 / power) for number in numbers]
    whole = tuple(map(round, found))
    close = all(_are_close(number, near) and near for number, near in zip(found, whole, strict=True))
    return whole if close else None


def _scaled(numbers: Floats, pool: _Pool) -> Iterator[Number]:
    """Yield a factor times a power of a size, or of one that is one or two more or less, if the factor is whole."""
    for dim, held in pool.items():
        for power in _FLOAT_POWERS:
            for offset in (0, 1, -1, 2, -2):
                if min(held) + offset < 1:
                    continue
                factors = [x / (n + offset) ** float(power) for x, n in zip(numbers, held, strict=True)]
                whole = any(_are_close(f, round(f)) and round(f) for f in (factors[0], 1 / (factors[0] or 1)))
                if factors[0] and all(_are_close(f, factors[0]) for f in factors) and (whole or not offset):
                    yield Number(dim + offset, power, factors[0])


def _are_close(first: float, second: float) -> bool:
    return abs(first - second) <= _CLOSE * abs(second)


_FEWEST = 7
"""Sizes that differ by less decide badly."""


def deciding(sizes: Collection[int]) -> str:
    """Return why sizes of exports decide badly; "" if they decide well."""
    steps = [b - a for a, b in pairwise(sorted(sizes))]
    if max(steps) < _FEWEST:
        return f"differ by {told(steps)} only"
    rests = list(steps)
    for prime in (2, 3, 5, 7):
        while any(rest % prime == 0 for rest in rests):
            rests = [rest // prime if rest % prime == 0 else rest for rest in rests]
    return "" if max(rests) > 1 or max(steps) == _FEWEST else f"differ by {told(steps)}, a product of small numbers"
