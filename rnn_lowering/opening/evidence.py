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

import numpy as np
import onnx_ir as ir

from rnn_lowering.errors import NodeRef, UnsupportedError
from rnn_lowering.facts.size import Shape, Size, Symbol, product, size
from rnn_lowering.opening.floats import Floats, Number, ratios, scaled, shifted, whole
from rnn_lowering.opening.roundings import Rounded, fitting, telling
from rnn_lowering.types import Array

PAGE = "frozen-axis.md"
"""The page about exports at two sizes."""

SIZES = "export at sizes such as 11 and 160"

_TRIED = 1200
"""Functions of a size are one if they are equal at so many."""

_WIDE = 13
"""Beside sizes of one axis that differ by less, most numbers of another are one with some rest."""

_FEWEST_FLOATS = 3
"""Fewer different floats are rather two branches of the code than a size that is rounded."""

_UNEXPLAINED = ", which no size explains"

_SHARE = 4
"""An offset beside a multiple of a size is at most this part of it."""

Integers = tuple[int, ...]
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


@dataclass
class Evidence:
    """The sizes of the exports.

    Attributes:
        values: By symbol its size in each export: first the axes that are opened.
        axes: The symbols of the axes that are opened, and what they are.
        sizes: The sizes of values so far, in their order, and what they are.
        origins: By symbol, the value and the axis that it is the size of.
        parts: By size, part and way, what (size + way) // part is.
        rows: By symbol, its numbers at many sizes of the axes; none for one that is read from a value alone.
    """

    values: dict[Symbol, Integers]
    axes: _Pool = field(init=False)
    sizes: dict[Size, Integers] = field(init=False)
    origins: dict[Symbol, tuple[ir.Value, int]] = field(default_factory=dict)
    parts: dict[tuple[Size, int, int], Size] = field(default_factory=dict)
    rows: dict[Symbol, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.axes = {Size.symbol(symbol): held for symbol, held in self.values.items()}
        self.sizes = dict(self.axes)
        for n, symbol in enumerate(self.values):
            self.rows[symbol] = np.arange(_TRIED, dtype=np.int64) * (2 * n + 1) + n

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
        symbol = _name(value, axis)
        self.values[symbol], self.origins[symbol] = numbers, (value, axis)
        return Size.symbol(symbol)

    def rounded(self, dim: Size, part: int, way: int, origin: tuple[ir.Value, int] | None = None) -> Size:
        """Return (dim + way) // part, a symbol that is read from a value if one has it."""
        more, way = divmod(way, part)
        if (whole := dim.divided(part)) is not None and whole.is_integral:
            return whole + more
        if (key := (dim, part, way)) not in self.parts:
            numbers = tuple((held + way) // part for held in self.numbers_of(dim) or ())
            shift = 0 if origin is None else more  # what a value has may be more
            symbol = f"({text_of(dim + way)}) // {part}" if origin is None else _name(*origin)
            self.values[symbol] = tuple(n + shift for n in numbers)
            if origin is not None:
                self.origins[symbol] = origin
            if (row := self.row(dim)) is not None:
                self.rows[symbol] = (row + way) // part + shift
            self.parts[key] = Size.symbol(symbol) - shift
        return self.parts[key] + more

    def row(self, dim: Size) -> Array | None:
        """Return the numbers of a size at many sizes of the axes; None if they are not known."""
        if not dim.symbols <= self.rows.keys():
            return None
        terms = [int(n) * math.prod(self.rows[symbol] for symbol in monomial) for monomial, n in dim.terms]
        return np.broadcast_to(np.array(sum(terms), np.int64), (_TRIED,))

    def distinct(self, dims: Iterable[Size]) -> list[Size]:
        """Return one of the sizes that are equal at any size of the axes."""
        found: dict[Size | bytes, Size] = {}
        for dim in dims:
            row = self.row(dim)
            found.setdefault(dim if row is None else row.tobytes(), dim)
        return [*found.values()]

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

    def integers(self, numbers: Integers, own: Sequence[Shape] = (), fewest: int = 2) -> list[Size]:
        """Return the sizes that may explain integers: those of the first rule that has any.

        Fewer different numbers are not rounded.
        """
        pools = {"own": self.known(own), "axes": self.axes, "all": self.sizes}
        wide = _WIDE * (len(self.axes) > 1)
        for pool, rule in INTEGER_RULES:
            if candidates := [*rule(numbers, pools[pool], wide)]:
                alike = (dim for dim, held in self.sizes.items() if held == numbers)
                return list(dict.fromkeys([*candidates, *alike]))
        return self._rounded(numbers) if len({*numbers}) >= fewest else []

    def _rounded(self, numbers: Integers) -> list[Size]:
        """Return the sizes that may explain integers as a rounded part of an axis, or as the rest of it."""
        found = []
        for dim, rounding, sign in self._roundings(numbers):
            in_order = [n for _, n in sorted(zip(self.axes[dim], numbers, strict=True))]
            if rounding.is_usual and rounding.is_told_by([sign * n for n in in_order]):
                part = self.rounded(dim, rounding.part, rounding.way)
                found.append((part * rounding.factor + dim * rounding.whole) * sign)
        return self.distinct(found)

    def _roundings(self, numbers: Integers, rests: Iterable[int] = (0,)) -> Iterator[tuple[Size, Rounded, int]]:
        """Yield the axis, the rounding and the sign of what may be integers."""
        sign = -1 if max(numbers, default=1) <= 0 else 1
        for dim, held in self.axes.items() if numbers else ():
            if len(self.axes) == 1 or max(held) - min(held) >= _WIDE:
                for rounding in fitting([sign * n for n in numbers], held, [sign * rest for rest in rests]):
                    yield dim, rounding, sign

    def _rows(self, numbers: Integers, rest: int = 0, *, usual: bool = False) -> list[Array]:
        """Return the roundings that integers may be, at many sizes."""
        found = dict[bytes, Array]()
        for dim, rounding, sign in self._roundings(numbers, (0, rest)):
            if rounding.is_usual or not usual:
                (axis,) = dim.symbols
                row = sign * rounding.at(self.rows[axis])
                found[row.tobytes()] = row
        return [*found.values()]

    def number(self, node: NodeRef, what: str, numbers: Floats, own: Sequence[Shape]) -> Number:
        """Return what explains floats, as `integer` does."""
        fact = f"{what} is {told(numbers)}"
        for inverse in (False, True):
            integers = whole(numbers, inverse)
            if integers is not None and (sizes := self.integers(integers, own, _FEWEST_FLOATS)):
                only = self._only(node, fact, sizes, integers, {})
                return Number(only, "Reciprocal" if inverse else "")
        axes = {dim * n: tuple(n * k for k in held) for dim, held in self.axes.items() for n in (1, 2, 3, 4)}
        rules = (scaled, self.axes), (scaled, self.sizes), (ratios, {**self.sizes, **axes}), (shifted, self.axes)
        found = next((found for rule, pool in rules if (found := [*rule(numbers, pool)])), [])
        alike = self._distinct_numbers(found)
        if len(alike) != 1:
            texts = " or ".join(text_of(each.size) for each in alike[:3])
            raise refuse(node, f"{fact}{f' and may be of {texts}' if alike else _UNEXPLAINED}", self.third())
        for dim in (alike[0].size, alike[0].over):
            if dim.symbols and (held := self.numbers_of(dim)) is not None:
                self._only(node, fact, [dim], held, {})
        return alike[0]

    def _distinct_numbers(self, candidates: Iterable[Number]) -> list[Number]:
        """Return one of the numbers that are equal at any size of the axes."""
        found: list[tuple[Number, Array | None]] = []
        for each in candidates:
            size_row, over = self.row(each.size), self.row(each.over)
            row = None if size_row is None or over is None else each.at(size_row, over)[8:]
            if row is None or not any(other is not None and np.allclose(row, other, 1e-5, 0) for _, other in found):
                found.append((each, row))
        return [each for each, _ in found]

    def _only(self, node: NodeRef, fact: str, found: Sequence[Size], numbers: Integers, own: _Pool) -> Size:
        """Return the only candidate, or the only one that depends on opened axes alone.

        Refuse one that is rounded, if another rounding has these numbers, and one that only a value has, if two
        exports say so.
        """
        if not found:
            raise refuse(node, f"{fact}{_UNEXPLAINED}", self.third(numbers))
        alike, of_axes = self.distinct(found), [dim for dim in found if dim.symbols <= self._opened]
        only = next((left[0] for left in (alike, of_axes) if len(left) == 1), None)
        if only is None:
            texts = " or ".join(map(text_of, alike[:3]))
            raise refuse(node, f"{fact} and may be {texts}", self.third(numbers, alike))
        if only in own or only.symbols <= self._opened:
            return only
        row, rivals = self.row(only), self._rows(numbers, int(only.coefficient()))
        if len(numbers) < 3 if row is None else any((rival != row).any() for rival in rivals):
            raise refuse(node, f"{fact}, and {text_of(only)} by chance or always", self.third(numbers, [only]))
        return only

    def third(self, numbers: Integers = (), found: Iterable[Size] = ()) -> str:
        """Return the advice to give a further export, at sizes that tell apart what numbers may be."""
        of_sizes = [row for dim in found if (row := self.row(dim)) is not None]
        groups = [*of_sizes, *self._rows(numbers, usual=True)], self._rows(numbers)
        groups = groups if len(self.axes) == 1 else ([], [])  # rows are numbers at sizes of the first axis
        sizes = (f"{dim} = {telling(held, *groups)}" for dim, held in self.axes.items())
        return f"give one more export, at {told(sizes)}: --also MIDDLE.onnx"

    @property
    def _opened(self) -> set[Symbol]:
        return {symbol for dim in self.axes for symbol in dim.symbols}

    def of_axes(self, pool: Mapping[Size, Integers], numbers: Integers) -> Size | None:
        """Return the only size in a pool that is these numbers and depends on opened axes alone."""
        alike = [dim for dim, held in pool.items() if held == numbers and dim.symbols <= self._opened]
        return alike[0] if len(alike) == 1 else None


def _name(value: ir.Value, axis: int) -> Symbol:
    return f"size {axis} of {value.name}"


def graph_of(value: ir.Value) -> ir.Graph | ir.Function | None:
    producer = value.producer()
    return value.graph if producer is None else producer.graph


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


def _near_square(numbers: Integers, pool: _Pool, wide: int) -> Iterator[Size]:
    """Yield a size times one that is a little less or more: the scores of all distances between its rows."""
    for dim, held in pool.items():
        for rest in (-1, 1, -2, 2):
            if tuple(n * (n + rest) for n in held) == numbers:
                yield dim * (dim + rest)


_size = _rule(lambda factor, rest, held: (factor, rest) == (1, 0))
_multiple = _rule(lambda factor, rest, held: factor > 0 and rest == 0, products=True)
_offset = _rule(lambda factor, rest, held: abs(factor) == 1)
_linear = _rule(lambda factor, rest, held: all(_SHARE * abs(rest) <= abs(factor * dim) for dim in held))

INTEGER_RULES: Sequence[tuple[str, _Rule]] = (
    ("own", _multiple),
    ("all", _size),
    ("axes", _multiple),
    ("all", _multiple),
    ("axes", _near_square),
    ("axes", _offset),
    ("all", _offset),
    ("axes", _linear),
    ("all", _linear),
)
"""Where a rule looks: at sizes of the node's own inputs, at the opened axes, at the sizes of all values before."""
