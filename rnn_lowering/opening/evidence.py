"""What several exports of a net say: the sizes that each has, and which size explains a number that differs.

A number that is equal in all exports is no size. One that differs must be explained by one size alone, or the model
is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import combinations_with_replacement
from itertools import product as product_of

import onnx_ir as ir

from rnn_lowering.errors import NodeRef, UnsupportedError
from rnn_lowering.facts.size import Shape, Size, Symbol, product, size

PAGE = "frozen-axis.md"
"""The page about exports at two sizes."""

SIZES = "export at sizes such as 11 and 160"
THIRD = f"{SIZES}, or give a third export in between: --also MIDDLE.onnx"

_CLOSE = 2e-6
"""Relative distance of floats that count as equal: what rounding to float32 explains, a few times."""

_MOST_ROUNDED = 50_000
"""The inverse of a float32 may be off by a tenth from here on."""

_MOST_PARTS = 17
_MOST_ROUNDED_PARTS = 9
_TRIED = 720
_FEWEST_PARTS = 11
_WIDE = 13
"""Beside sizes of one axis that differ by less, most numbers of another are one with some rest."""

_SHARE = 4
"""An offset beside a multiple of a size is at most this part of it."""

Integers = tuple[int, ...]
Floats = tuple[float, ...]
"""A number in each export, which are in the order of the files."""

_Pool = Mapping[Size, Integers]


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
        values: By symbol its size in each export: first the axes that are opened.
        axes: The symbols of the axes that are opened, and what they are.
        sizes: The sizes of values so far, in their order, and what they are.
        origins: By symbol, the value and the axis that it is the size of.
        parts: By size, part and way, what (size + way) // part is.
    """

    values: dict[Symbol, Integers]
    axes: _Pool = field(init=False)
    sizes: dict[Size, Integers] = field(init=False)
    origins: dict[Symbol, tuple[ir.Value, int]] = field(default_factory=dict)
    parts: dict[tuple[Size, int, int], Size] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.axes = {Size.symbol(symbol): held for symbol, held in self.values.items()}
        self.sizes = dict(self.axes)

    def in_export(self, dim: Size, n: int) -> Size:
        """Return a size as export `n` has it; axes that were open before stay symbols."""
        for symbol in dim.symbols & self.values.keys():
            dim = dim.replaced(symbol, self.values[symbol][n])
        return dim

    def numbers_of(self, dim: Size) -> Integers | None:
        """Return what a size is in each export; None if it has a symbol of another axis."""
        found = [self.in_export(dim, n).constant for n in range(len(next(iter(self.values.values()))))]
        return None if None in found else tuple(int(number or 0) for number in found)

    def own_symbol(self, value: ir.Value, axis: int, numbers: Integers) -> Size:
        """Return a new symbol, which is read from a value."""
        symbol = f"size {axis} of {value.name}"
        self.values[symbol], self.origins[symbol] = numbers, (value, axis)
        return Size.symbol(symbol)

    def rounded(self, dim: Size, part: int, way: int, origin: tuple[ir.Value, int] | None = None) -> Size:
        """Return (dim + way) // part, a symbol that is read from a value if one has it."""
        more, way = divmod(way, part)
        if (key := (dim, part, way)) not in self.parts:
            numbers = tuple((held + way) // part for held in self.sizes[dim])
            if origin is not None:
                self.parts[key] = self.own_symbol(*origin, tuple(n + more for n in numbers)) - more
            else:
                symbol = f"({text_of(dim + way)}) // {part}"
                self.parts[key], self.values[symbol] = Size.symbol(symbol), numbers
        return self.parts[key] + more

    def add(self, shape: Shape) -> None:
        """Add the sizes of a value that differ between the exports."""
        for dim in shape:
            if dim not in self.sizes and dim.symbols and (numbers := self.numbers_of(dim)) is not None:
                self.sizes[dim] = numbers

    def leave(self, graph: ir.Graph) -> None:
        """Forget the sizes of values in a body, which are known only there."""
        gone = {symbol for symbol, (value, _) in self.origins.items() if graph_of(value) is graph}
        self.sizes = {dim: numbers for dim, numbers in self.sizes.items() if not dim.symbols & gone}
        self.parts = {key: held for key, held in self.parts.items() if not (held.symbols | key[0].symbols) & gone}

    def known(self, shapes: Iterable[Shape]) -> dict[Size, Integers]:
        """Return the sizes in shapes that differ between the exports."""
        return {dim: self.sizes[dim] for shape in shapes for dim in shape if dim in self.sizes}

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
        found = self.integers(numbers, own)
        return self._only(node, f"{what} is {told(numbers)}", found, numbers, self.known(own))

    def integers(self, numbers: Integers, own: Sequence[Shape] = ()) -> list[Size]:
        """Return the sizes that may explain integers: those of the first rule that has any."""
        pools = {"own": self.known(own), "axes": self.axes, "all": self.sizes}
        wide = _WIDE * (len(self.axes) > 1)
        for pool, rule in INTEGER_RULES:
            if candidates := [*rule(numbers, pools[pool], wide)]:
                alike = (dim for dim, held in self.sizes.items() if held == numbers)
                return list(dict.fromkeys([*candidates, *alike]))
        return self._rounded(numbers) if len(numbers) > 2 else []

    def _rounded(self, numbers: Integers) -> list[Size]:
        """Return the sizes that may explain integers as a rounded part of an axis, or as the rest of it.

        Those that are the same at any size are one. Two exports at least must have been rounded.
        """
        found: dict[Integers, Size] = {}
        for dim, held in self.axes.items():
            narrow = len(self.axes) > 1 and max(held) - min(held) < _WIDE
            for part, way, factor, whole in () if narrow else _roundings():
                one = [factor * ((n + way) // part) + whole * n for n in held]
                if one == [*numbers] and sum(n % part > 0 for n in held) > 1:
                    row = tuple(factor * ((n + way) // part) + whole * n for n in range(_TRIED))
                    found.setdefault(row, self.rounded(dim, part, way) * factor + dim * whole)
        return [*found.values()]

    def number(self, node: NodeRef, what: str, numbers: Floats, own: Sequence[Shape]) -> Number:
        """Return what explains floats, as `integer` does."""
        fact = f"{what} is {told(numbers)}"
        for power in _FLOAT_POWERS[:2]:
            whole = _whole(numbers, power)
            if whole is not None and (sizes := self.integers(whole, own)):
                return Number(self._only(node, fact, sizes, whole), power)
        pools = (self.axes, self.sizes)
        scaled = next((found for pool in pools if (found := [*_scaled(numbers, pool)])), [])
        chosen = self._only(node, fact, [*dict.fromkeys(each.size for each in scaled)], numbers)
        return next(each for each in scaled if each.size == chosen)

    def _only(
        self, node: NodeRef, fact: str, found: Sequence[Size], numbers: Sequence[float], own: _Pool | None = None
    ) -> Size:
        """Return the only candidate, or the only one that depends on opened axes alone.

        Refuse one that a value has, such as that behind a stride, if two exports say so, or a number beside it if
        all exports round alike: it is rounded.
        """
        of_axes = [dim for dim in found if dim.symbols <= self._opened]
        only = next((left[0] for left in (found, of_axes) if len(left) == 1), None)
        if only is None:
            if not found:
                raise refuse(node, f"{fact}, which no size explains", THIRD if len(numbers) == 2 else SIZES)
            raise refuse(node, f"{fact} and may be {' or '.join(map(text_of, found[:3]))}", THIRD)
        beside = only not in self.sizes and any(_round_alike(numbers, held) for held in self.axes.values())
        if only not in (own or ()) and not only.symbols <= self._opened and (len(numbers) < 3 or beside):
            raise refuse(node, f"{fact}, and {text_of(only)} by chance or always", THIRD)
        return only

    @property
    def _opened(self) -> set[Symbol]:
        return {symbol for dim in self.axes for symbol in dim.symbols}

    def of_axes(self, pool: Mapping[Size, Integers], numbers: Integers) -> Size | None:
        """Return the only size in a pool that is these numbers and depends on opened axes alone."""
        alike = [dim for dim, held in pool.items() if held == numbers and dim.symbols <= self._opened]
        return alike[0] if len(alike) == 1 else None


def graph_of(value: ir.Value) -> ir.Graph | ir.Function | None:
    producer = value.producer()
    return value.graph if producer is None else producer.graph


def _round_alike(numbers: Sequence[float], sizes: Integers) -> bool:
    """Whether a part of a size, rounded in several ways, is these numbers but for a number that is the same."""
    for part in range(2, _MOST_PARTS):
        ways = range(part)
        rests = ({n - (held + way) // part for n, held in zip(numbers, sizes, strict=True)} for way in ways)
        if sum(len(rest) == 1 for rest in rests) > 1:
            return True
    return False


# The rules of integers: a number is factor * size + rest, or a product of two sizes. The first that fits decides.


def line(numbers: Integers, held: Integers) -> tuple[int, int] | None:
    """Return the factor and the rest with which a size is these numbers; None if there are none."""
    pairs = [*zip(numbers, held, strict=True)]
    rises = {Fraction(n - numbers[0], h - held[0]) for n, h in pairs if h != held[0]}
    factor = rises.pop() if len(rises) == 1 else Fraction(1, 2)
    rests = {n - factor * h for n, h in pairs}
    return (int(factor), int(rests.pop())) if factor.denominator == 1 and len(rests) == 1 else None


_Fits = Callable[[int, int, Integers], bool]
_Rule = Callable[[Integers, _Pool, int], Iterator[Size]]


def _rule(fits: _Fits, *, products: bool = False) -> _Rule:
    """Yield the sizes in a pool whose factor and rest fit; of numbers with a 0, only the size itself.

    A size that differs by less than `wide` between the exports has no rest.
    """

    def rule(numbers: Integers, pool: _Pool, wide: int) -> Iterator[Size]:
        for dim, held in pool.items():
            factor, rest = line(numbers, held) or (0, 0)
            told = (factor, rest) == (1, 0) or (factor and 0 not in numbers)
            if told and (not rest or max(held) - min(held) >= wide) and fits(factor, rest, held):
                yield dim * factor + rest
        for pair in combinations_with_replacement(pool, 2) if products and 0 not in numbers else ():
            if tuple(a * b for a, b in zip(*(pool[dim] for dim in pair), strict=True)) == numbers:
                yield product(pair)

    return rule


_size = _rule(lambda factor, rest, held: (factor, rest) == (1, 0))
_multiple = _rule(lambda factor, rest, held: factor > 0 and rest == 0, products=True)
_offset = _rule(lambda factor, rest, held: abs(factor) == 1)
_linear = _rule(lambda factor, rest, held: all(_SHARE * abs(rest) <= abs(factor * dim) for dim in held))

INTEGER_RULES: Sequence[tuple[str, _Rule]] = (
    ("own", _multiple),
    ("all", _size),
    ("axes", _multiple),
    ("all", _multiple),
    ("axes", _offset),
    ("all", _offset),
    ("axes", _linear),
    ("all", _linear),
)
"""Where a rule looks: at sizes of the node's own inputs, at the opened axes, at the sizes of all values before."""


def _roundings() -> Iterator[tuple[int, int, int, int]]:
    """Yield part, way, factor and whole: factor * ((size + way) // part) + whole * size may be a number."""
    parts = ((part, way) for part in range(2, _MOST_ROUNDED_PARTS) for way in (0, part - 1))
    yield from ((*each, *terms) for each, terms in product_of(parts, ((1, 0), (-1, 0), (-1, 1))))


# The rules of floats

_FLOAT_POWERS = (Fraction(1), Fraction(-1), Fraction(1, 2), Fraction(-1, 2))
"""A float or its inverse may be an integer that is a size; a factor times one of these powers may be the float."""


def _whole(numbers: Floats, power: Fraction) -> Integers | None:
    """Return integers whose power the floats are, as far as rounding leaves it certain; None if there are none."""
    found = [number ** int(power) if number else 0.0 for number in numbers]
    certain = (n == round(n) or abs(n) < _MOST_ROUNDED for n in found)
    near = all(map(_near, found, map(round, found)))
    return tuple(map(round, found)) if near and all(certain) else None


def _scaled(numbers: Floats, pool: _Pool) -> Iterator[Number]:
    """Yield a factor times a power of a size, or of one that is one or two more or less, if the factor is whole.

    Sizes with a ratio of small numbers, such as 2 to 3, do not tell: many numbers have it.
    """
    for dim, held in pool.items():
        for power in _FLOAT_POWERS:
            for offset in (0, 1, -1, 2, -2):
                common = math.gcd(*(n + offset for n in held))
                if min(held) + offset < 1 or max(held) + offset < _FEWEST_PARTS * common:
                    continue
                factors = [x / (n + offset) ** float(power) for x, n in zip(numbers, held, strict=True)]
                whole = any(_near(f, round(f)) for f in (factors[0], 1 / (factors[0] or 1)))
                if all(_near(f, factors[0]) for f in factors) and (whole or not offset):
                    yield Number(dim + offset, power, factors[0])


def _near(number: float, other: float) -> bool:
    return other != 0 and abs(number - other) <= _CLOSE * abs(other)
