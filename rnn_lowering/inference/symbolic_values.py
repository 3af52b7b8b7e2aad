"""What is known of each value before a model runs: its type, its shape, and the numbers that follow from shapes.

A size is an exact polynomial of the number of frames and of other open sizes (`Size`). The size of a value in the
whole model and that in a chunk may differ by a constant, since a chunk has the frames that are known early and none
of those at the end. `CHUNK` is 0 in the whole and 1 in a chunk: one polynomial holds both.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from itertools import count

import numpy as np
import onnx
import onnx_ir as ir

from rnn_lowering.emit.versions import parameter
from rnn_lowering.spec.node_outputs import numbers_in
from rnn_lowering.spec.node_spec import default_opset
from rnn_lowering.types import Array

TIME, CHUNK = 0, 1
"""The symbols of the frames of a stream and of what a chunk has more than the whole."""

Symbol = int | str
"""TIME, CHUNK, a larger number for an unknown size, -n for min(frames, n), or the name of an open axis."""

Monomial = tuple[Symbol, ...]

LARGEST = 1 << 22
"""Maximum elements of a constant that is evaluated; of a larger one only the shape is known."""

LARGEST_UNIT = 1 << 16
"""The largest multiple of frames that a stream takes per call, unless the strides of its nodes need more."""

_LARGEST_SENT = 1 << 12
"""Maximum elements of a constant that ONNX's inference sees."""


@dataclass(frozen=True)
class Size:
    """A polynomial: sorted terms with their coefficients, none of which is 0."""

    terms: tuple[tuple[Monomial, Fraction], ...]

    @classmethod
    def of(cls, terms: Mapping[Monomial, Fraction]) -> Size:
        return cls(tuple(sorted(((m, c) for m, c in terms.items() if c), key=_order)))

    @classmethod
    def symbol(cls, symbol: Symbol) -> Size:
        return cls((((symbol,), Fraction(1)),))

    @property
    def constant(self) -> Fraction | None:
        """The constant; None if the polynomial has a symbol."""
        if not self.terms:
            return Fraction(0)
        return self.terms[0][1] if self.terms[0][0] == () and len(self.terms) == 1 else None

    @property
    def symbols(self) -> set[Symbol]:
        return {symbol for monomial, _ in self.terms for symbol in monomial}

    @property
    def timed(self) -> bool:
        """Whether the number of frames occurs in it."""
        return any(isinstance(symbol, int) and symbol <= CHUNK for symbol in self.symbols)

    def coefficient(self, *monomial: Symbol) -> Fraction:
        return dict(self.terms).get(monomial, Fraction(0))

    def whole(self) -> Size:
        """Return the size in the whole model."""
        return Size(tuple((m, c) for m, c in self.terms if CHUNK not in m))

    def integral(self, unit: int) -> bool:
        """Whether it is an integer for every multiple of `unit` frames."""
        return all((c * unit ** m.count(TIME)).denominator == 1 for m, c in self.terms)

    @property
    def unit(self) -> int | None:
        """The smallest number of frames whose multiples make it an integer; None if there is none."""
        if any(c.denominator > 1 and TIME not in m for m, c in self.terms):
            return None
        return math.lcm(*(c.denominator for _, c in self.terms))

    def chunk(self) -> Size:
        """Return the size in a chunk."""
        return Size.of(_summed(((tuple(s for s in m if s != CHUNK)), c) for m, c in self.terms))

    @property
    def least(self) -> Fraction | None:
        """A lower bound, when all sizes of inputs are at least 1; None if none is known."""
        least = Fraction(0)
        for monomial, coefficient in self.terms:
            if (coefficient < 0 and monomial) or CHUNK in monomial:
                return None
            if all(isinstance(s, str) or s == TIME for s in monomial):
                least += coefficient
        return least

    def at_least(self, bound: Fraction | int) -> bool:
        """Whether it is never below a bound, as far as is known."""
        return self.least is not None and self.least >= bound

    @property
    def never_negative(self) -> bool:
        """Whether it is never negative, as far as is known; it must be an integer."""
        return self.least is not None and self.least > -1

    def at_most(self, bound: Fraction | int) -> bool:
        return (-self).at_least(-bound) if self.constant is None else self.constant <= bound

    def at(self, sizes: Mapping[Symbol, int]) -> Fraction:
        """Evaluate it for given values of its symbols."""
        total = Fraction(0)
        for monomial, coefficient in self.terms:
            for symbol in monomial:
                coefficient *= sizes[symbol]
            total += coefficient
        return total

    def __add__(self, other: Term) -> Size:
        return Size.of(_summed((*self.terms, *size(other).terms)))

    def __neg__(self) -> Size:
        return Size(tuple((m, -c) for m, c in self.terms))

    def __sub__(self, other: Term) -> Size:
        return self + -size(other)

    def __rsub__(self, other: Term) -> Size:
        return size(other) - self

    def __mul__(self, other: Term) -> Size:
        pairs = ((m, n, a * b) for m, a in self.terms for n, b in size(other).terms)
        return Size.of(_summed((tuple(sorted((*m, *n), key=_name)), c) for m, n, c in pairs))

    __radd__ = __add__
    __rmul__ = __mul__

    def divided(self, other: Term) -> Size | None:
        """Return the exact quotient; None if it is not a polynomial."""
        divisor, rest, quotient = size(other), self, size(0)
        if not divisor.terms:
            return None
        lead, scale = max(divisor.terms, key=_degree)
        while rest.terms:
            monomial, coefficient = max(rest.terms, key=_degree)
            left = _without(monomial, lead)
            if left is None:
                return None
            part = Size(((left, coefficient / scale),))
            quotient, rest = quotient + part, rest - part * divisor
        return quotient

    def rounded_down(self) -> Size:
        """Round the constant part down, in the whole and in a chunk; the rest must be an integer."""
        first, more = self.coefficient(), self.coefficient(CHUNK)
        below, chunk = math.floor(first), math.floor(first + more)
        return self - first - Size.symbol(CHUNK) * more + below + Size.symbol(CHUNK) * (chunk - below)

    def __str__(self) -> str:
        return (
            " + ".join(
                "*".join([str(c)] * (c != 1 or not m) + [_text(symbol) for symbol in m]) for m, c in self.terms
            )
            or "0"
        )


Term = Size | Fraction | int


def size(number: Term) -> Size:
    """Return a number as a polynomial."""
    return number if isinstance(number, Size) else _constant(number)


@lru_cache(1 << 12)
def _constant(number: Fraction | int) -> Size:
    return Size((((), Fraction(number)),)) if number else Size(())


def _summed(terms: Iterable[tuple[Monomial, Fraction]]) -> dict[Monomial, Fraction]:
    total: dict[Monomial, Fraction] = {}
    for monomial, coefficient in terms:
        total[monomial] = total.get(monomial, Fraction(0)) + coefficient
    return total


def first_frames(count: int) -> Size:
    """Return how many frames `x[:, :count]` has: a shorter sequence has fewer."""
    return Size.symbol(-count)


ONE = size(1)


def product(sizes: Iterable[Size]) -> Size:
    total = size(1)
    for one in sizes:
        total = total * one
    return total


def _name(symbol: Symbol) -> str:
    return f"{symbol:09d}" if isinstance(symbol, int) else f"~{symbol}"


def _order(term: tuple[Monomial, Fraction]) -> list[str]:
    return [_name(symbol) for symbol in term[0]]


def _degree(term: tuple[Monomial, Fraction]) -> tuple[int, list[str]]:
    return len(term[0]), [_name(symbol) for symbol in term[0]]


def _without(monomial: Monomial, part: Monomial) -> Monomial | None:
    left = list(monomial)
    for symbol in part:
        if symbol not in left:
            return None
        left.remove(symbol)
    return tuple(left)


def _text(symbol: Symbol) -> str:
    if isinstance(symbol, str):
        return symbol
    return {TIME: "frames", CHUNK: "chunk"}.get(symbol, f"?{symbol}" if symbol > 0 else f"min(frames, {-symbol})")


def in_chunk(number: Size, frames: int | None) -> int | None:
    """Return a size if every chunk has the same, else None."""
    if not number.symbols <= ({CHUNK} if frames is None else {TIME, CHUNK}):
        return None
    found = number.at({CHUNK: 1} if frames is None else {TIME: frames, CHUNK: 1})
    stays = found >= 0 or number.constant is not None  # -1 from sizes is none that a Reshape is to find
    return int(found) if stays and found.denominator == 1 else None


# Types, shapes and numbers


Shape = tuple[Size, ...]

PartialShape = Sequence[Size | None]


class SizingError(Exception):
    """A node does not accept the sizes that it gets."""

    def __init__(self, node: ir.Node, reason: str) -> None:
        self.node = node
        self.reason = " ".join(reason.split())
        super().__init__(self.reason)


@dataclass
class SymbolicValues:
    """Types, shapes and numbers of values, as far as they are known.

    Attributes:
        opsets: The version of each domain.
        types: Element types by value.
        shapes: By value; values of an unknown rank are absent.
        contents: Numbers by value, if they follow from constants and sizes: an array that broadcasts to the shape.
            Numbers that depend on open sizes are `Size`, in an array of objects.
        any_size: Whether results must hold for axes of any size, 0 included. If not, as for a stream, an axis has
            as many rows as its Slices take: `x[-3:]` has 3.
        unit: The number of frames is a multiple of it.
        wanted: The number of frames must be a multiple of it for all sizes to be integers.
    """

    opsets: Mapping[str, int]
    types: dict[ir.Value, ir.DataType] = field(default_factory=dict)
    shapes: dict[ir.Value, Shape] = field(default_factory=dict)
    contents: dict[ir.Value, Array] = field(default_factory=dict)
    any_size: bool = False
    unit: int = 1
    wanted: int = 1
    _named: dict[str, Size] = field(default_factory=dict)
    _labels: dict[Size, str] = field(default_factory=dict)
    _unknown: dict[str, Size] = field(default_factory=dict)
    _keys: dict[Size, str] = field(default_factory=dict)
    _symbols: Iterator[int] = field(default_factory=lambda: count(CHUNK + 1))

    @property
    def opset(self) -> int:
        return self.opsets[""]

    def without_values(self) -> SymbolicValues:
        """Return one that knows no value, and in which equal keys give the same symbols as here."""
        shared = {"_unknown": self._unknown, "_keys": self._keys, "_symbols": self._symbols}
        return SymbolicValues(self.opsets, any_size=self.any_size, **shared)  # type: ignore[arg-type]

    def is_whole(self, number: Size) -> bool:
        """Return whether a size is an integer for every number of frames; if not, `wanted` gets its unit."""
        unit = number.unit
        if unit is not None and self.unit % unit and unit <= LARGEST_UNIT:
            self.wanted = math.lcm(self.wanted, unit)
        return number.integral(self.unit)

    def constant(self, value: ir.Value | None) -> Array | None:
        """Return the value as an array if it is the same at all sizes, else None."""
        array, shape = (None, None) if value is None else (self.contents.get(value), self.static_shape(value))
        if array is None or array.dtype == object or shape is None or math.prod(shape) > LARGEST:
            return None
        return np.broadcast_to(array, shape)

    def numbers(self, value: ir.Value | None) -> list[Size] | None:
        """Return the elements of a value that holds sizes; None if unknown."""
        array = None if value is None else self.contents.get(value)
        if value is None or array is None or array.size > _LARGEST_SENT or array.dtype.kind not in "iufO":
            return None
        if array.shape != self.static_shape(value) or (array.dtype.kind == "f" and not np.isfinite(array).all()):
            return None
        return [n if isinstance(n, Size) else size(Fraction(n)) for n in array.reshape(-1).tolist()]

    def numbers_of_input(self, node: ir.Node, slot: int) -> list[Size] | None:
        """Return the sizes that an input of a node holds; None if it is absent or they are unknown."""
        return self.numbers(node.inputs[slot]) if has(node, slot) else None

    def parameter(self, node: ir.Node, name: str) -> list[Size] | None:
        """Return the numbers of an attribute or input: none if it is absent, None if unknown."""
        given = parameter(node, name, self.opset)
        if isinstance(given, ir.Value):
            return self.numbers(given)
        return [] if given is None else [size(Fraction(n)) for n in given.value]

    def unknown(self, key: str = "") -> Size:
        """Return a symbol for an unknown size: equal keys give equal symbols."""
        if not key:
            return Size.symbol(next(self._symbols))
        if key not in self._unknown:
            self._add_key(key, Size.symbol(next(self._symbols)))
        return self._unknown[key]

    def _add_key(self, key: str, dim: Size) -> str:
        self._unknown[key], self._keys[dim] = dim, key
        return key

    def number_or_name(self, dim: Size) -> int | str | None:
        """Return a size as a number or a key, for which `unknown` gives it again; None if it depends on an unknown
        size without a key."""
        if dim.constant is not None:
            return int(dim.constant)
        if dim in self._keys:
            return self._keys[dim]
        return self._add_key(str(dim), dim) if self.named_terms(dim) else None

    def named_terms(self, dim: Size) -> list[tuple[Fraction, list[str]]] | None:
        """Return a size as a sum of products, each a factor and keys of unknown sizes; None if one has no key."""
        if not all(Size.symbol(symbol) in self._keys for symbol in dim.symbols):
            return None
        return [
            (factor, [self._keys[Size.symbol(symbol)] for symbol in monomial]) for monomial, factor in dim.terms
        ]

    def static_shape(self, value: ir.Value) -> tuple[int, ...] | None:
        """Return the shape of a value if all its sizes are numbers."""
        dims = [dim.constant for dim in self.shapes[value]] if value in self.shapes else [None]
        return None if None in dims else tuple(int(dim or 0) for dim in dims)

    def static_type(self, value: ir.Value) -> tuple[int, tuple[int, ...]] | None:
        """Return the element type and the shape of a value; None if one of them is unknown."""
        shape = self.static_shape(value)
        return None if value not in self.types or shape is None else (int(self.types[value]), shape)

    def add(self, value: ir.Value, found: onnx.TypeProto) -> None:
        """Add the type and shape that ONNX infers."""
        if found.HasField("tensor_type") and found.tensor_type.elem_type:
            self.types[value] = ir.DataType(found.tensor_type.elem_type)
            if found.tensor_type.HasField("shape"):
                self.set_shape(value, [self._size(dim) for dim in found.tensor_type.shape.dim])

    def set_shape(self, value: ir.Value, dims: PartialShape) -> None:
        """Set the sizes of a value; None keeps the size that it has, or is a new unknown one."""
        before = self.shapes.get(value, ())
        fallback = before if len(before) == len(dims) else [None] * len(dims)
        self.shapes[value] = tuple(
            dim if dim is not None else old if old is not None else self.unknown()
            for dim, old in zip(dims, fallback, strict=True)
        )

    def _size(self, dim: onnx.TensorShapeProto.Dimension) -> Size | None:
        return size(dim.dim_value) if dim.HasField("dim_value") else self._named.get(dim.dim_param)

    def type_of(self, value: ir.Value) -> onnx.TypeProto:
        """Return the type and shape of a value for ONNX's inference."""
        shape = self.shapes.get(value)
        dims = None if shape is None else [self._number_or_label(dim) for dim in shape]
        return onnx.helper.make_tensor_type_proto(int(self.types[value]), dims)

    def _number_or_label(self, dim: Size) -> int | str:
        """Return a number, or a name for ONNX's inference; not its text, which two sizes may share."""
        constant = dim.constant
        if constant is not None:
            return int(constant)
        label = self._labels.setdefault(dim, f"d{len(self._labels)}")
        self._named[label] = dim
        return label

    def data(self, value: ir.Value) -> Array | None:
        """Return the numbers of a value for ONNX's inference; None if unknown, or too many."""
        is_number = value in self.contents and self.types[value] != ir.DataType.STRING
        array = self.constant(value) if is_number else None
        if array is None or array.size > _LARGEST_SENT:
            return None
        return np.ascontiguousarray(array).reshape(array.shape)


def start(model: ir.Model, inputs: Mapping[str, Shape]) -> SymbolicValues:
    """Return what is known of inputs with these shapes."""
    known = SymbolicValues({**model.opset_imports, "": default_opset(model.opset_imports)})
    for value in model.graph.inputs:
        if value.name and value.name in inputs:
            known.shapes[value] = tuple(inputs[value.name])
        elif value.shape is not None and value.shape.is_static():
            known.shapes[value] = tuple(size(n) for n in value.shape.numpy())
        if value.dtype is not None:
            known.types[value] = value.dtype
    return known


def add_initializers(known: SymbolicValues, graph: ir.Graph) -> None:
    """Add the types, shapes and contents of initializers; one that is an input has no fixed contents."""
    for value in graph.initializers.values():
        tensor = value.const_value
        if tensor is None:
            continue
        known.types[value] = tensor.dtype
        known.shapes[value] = tuple(size(n) for n in tensor.shape.numpy())
        small = not value.is_graph_input() and tensor.size <= LARGEST
        if small and (array := numbers_in(tensor)) is not None:
            known.contents[value] = array


def has(node: ir.Node, slot: int) -> bool:
    return len(node.inputs) > slot and node.inputs[slot] is not None


def shape_of(known: SymbolicValues, node: ir.Node, slot: int = 0) -> Shape | None:
    value = node.inputs[slot] if has(node, slot) else None
    return None if value is None else known.shapes.get(value)
