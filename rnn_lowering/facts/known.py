"""What is known of each value before a model runs: its type, its shape, and the numbers that follow from shapes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from itertools import count
from typing import TypeVar

import numpy as np
import onnx
import onnx_ir as ir

from rnn_lowering.facts.axes import Axes
from rnn_lowering.facts.node_outputs import MOST_SENT, numbers_in
from rnn_lowering.facts.operators import axes_by_rule, default_opset, parameter
from rnn_lowering.facts.size import NUMBERS, STEP, PartialShape, Shape, Size, Symbol, size
from rnn_lowering.types import Array

LARGEST = 1 << 22
"""Maximum elements of a constant that is evaluated; of a larger one only the shape is known."""


# Types, shapes and numbers


class SizingError(Exception):
    """A node does not accept the sizes that it gets."""

    def __init__(self, node: ir.Node, reason: str) -> None:
        self.node = node
        self.reason = " ".join(reason.split())
        super().__init__(self.reason)


@dataclass(frozen=True)
class Known:
    """The type and shape of a value, as far as they are known.

    Attributes:
        dtype: The element type, or UNDEFINED.
        shape: The sizes, None for an unknown one; None for an unknown rank.
    """

    dtype: ir.DataType
    shape: tuple[Size | None, ...] | None = None

    @classmethod
    def at(cls, dtype: ir.DataType | None, dims: Iterable[object] | None) -> Known:
        """Return what is known of a value of a type and of dimensions, each known only if it is a number."""
        shape = None if dims is None else (size(d) if isinstance(d, int) and d >= 0 else None for d in dims)
        return cls(dtype or ir.DataType.UNDEFINED, None if shape is None else tuple(shape))

    @cached_property
    def dims(self) -> tuple[int | None, ...]:
        """The sizes that are numbers, and None for each other; empty for an unknown rank."""
        constants = (None if dim is None else dim.constant for dim in self.shape or ())
        return tuple(None if number is None else int(number) for number in constants)

    @property
    def is_static(self) -> bool:
        """Whether all sizes are numbers."""
        return self.shape is not None and None not in self.dims

    @property
    def row(self) -> Known:
        """What is known of a row: without the first axis."""
        return Known(self.dtype, None if self.shape is None else self.shape[1:])

    def stacked(self, rows: Size | int | None) -> Known:
        """Return what is known of so many of them, along a new first axis."""
        first = size(rows) if isinstance(rows, int) else rows
        return Known(self.dtype, None if self.shape is None else (first, *self.shape))


Kind = TypeVar("Kind", bound="KnownValues")


@dataclass
class KnownValues:
    """Types, shapes and numbers of values, as far as they are known.

    Attributes:
        opsets: The version of each domain.
        types: Element types by value.
        shapes: By value; values of an unknown rank are absent.
        contents: Numbers by value, if they follow from constants and sizes: an array that broadcasts to the shape.
            Numbers that depend on open sizes are `Size`, in an array of objects.
        any_size: Whether results must hold for axes of any size, 0 included. If not, an axis has as many rows as
            its Slices take: `x[-3:]` has 3.
    """

    opsets: Mapping[str, int]
    types: dict[ir.Value, ir.DataType] = field(default_factory=dict)
    shapes: dict[ir.Value, Shape] = field(default_factory=dict)
    contents: dict[ir.Value, Array] = field(default_factory=dict)
    any_size: bool = False
    _named: dict[str, Size] = field(default_factory=dict)
    _labels: dict[Size, str] = field(default_factory=dict)
    _unknown: dict[str, Size] = field(default_factory=dict)
    _keys: dict[Symbol, str] = field(default_factory=dict)
    _symbols: Iterator[int] = field(default_factory=lambda: count(STEP.order + 1))

    @classmethod
    def start(cls: type[Kind], model: ir.Model, inputs: Mapping[str, Shape]) -> Kind:
        """Return what is known of inputs with these shapes."""
        known = cls({**model.opset_imports, "": default_opset(model.opset_imports)})
        for value in model.graph.inputs:
            if value.name and value.name in inputs:
                known.shapes[value] = tuple(inputs[value.name])
            elif value.shape is not None and value.shape.is_static():
                known.shapes[value] = tuple(size(n) for n in value.shape.numpy())
            if value.dtype is not None:
                known.types[value] = value.dtype
        return known

    @property
    def opset(self) -> int:
        return self.opsets[""]

    def without_values(self) -> KnownValues:
        """Return one that knows no value, and in which equal keys give the same symbols as here."""
        shared = {"_unknown": self._unknown, "_keys": self._keys, "_symbols": self._symbols}
        return KnownValues(self.opsets, any_size=self.any_size, **shared)  # type: ignore[arg-type]

    # What a room may know better, of its counters

    def denominator(self, number: Size) -> int:
        """Return a number whose product with another one is an integer at all sizes."""
        return math.lcm(*(coefficient.denominator for _, coefficient in number.terms))

    def is_whole(self, number: Size) -> bool:
        """Return whether a number is an integer at all sizes."""
        return self.denominator(number) == 1

    def floor(self, number: Size) -> Size | None:
        """Return a number rounded down; None if the result is no polynomial."""
        fraction = number.coefficient() % 1
        return number - fraction if self.is_whole(number - fraction) else None

    def never_negative(self, number: Size) -> bool:
        """Return whether an integer is never negative, as far as is known."""
        return number.never_negative

    def divides_down(self, quotient: Size) -> bool:
        """Return whether a division of integers rounds down, as it does where the quotient is not negative."""
        return quotient.at_least(0)

    def rows_up_to(self, end: int, length: Size) -> Size | None:
        """Return the smaller one of a number and a size; None if there is no symbol of it."""
        return None

    # Values

    def shape(self, value: ir.Value | None) -> Shape:
        """Return the shape of a value; () for none, and for an unknown rank."""
        return self.shapes.get(value, ()) if value is not None else ()

    def constant(self, value: ir.Value | None) -> Array | None:
        """Return the value as an array if it is the same at all sizes, else None."""
        array, shape = (None, None) if value is None else (self.contents.get(value), self.static_shape(value))
        if array is None or array.dtype == object or shape is None or math.prod(shape) > LARGEST:
            return None
        return np.broadcast_to(array, shape)

    def numbers(self, value: ir.Value | None) -> list[Size] | None:
        """Return the elements of a value that holds sizes; None if unknown."""
        array = None if value is None else self.contents.get(value)
        if value is None or array is None or array.size > MOST_SENT or array.dtype.kind not in "iufO":
            return None
        if array.shape != self.static_shape(value) or (array.dtype.kind == "f" and not np.isfinite(array).all()):
            return None
        return [n if isinstance(n, Size) else size(Fraction(n)) for n in array.reshape(-1).tolist()]

    def number(self, value: ir.Value | None) -> float | None:
        """Return the one number of a constant; None for another value."""
        array = self.constant(value)
        return None if array is None or array.size != 1 else float(array.reshape(-1)[0])

    def numbers_of_input(self, node: ir.Node, slot: int) -> list[Size] | None:
        """Return the sizes that an input of a node holds; None if it is absent or they are unknown."""
        return self.numbers(node.inputs[slot]) if has(node, slot) else None

    def parameter(self, node: ir.Node, name: str) -> list[Size] | None:
        """Return the numbers of an attribute or input: none if it is absent, None if unknown."""
        holder = parameter(node, name, self.opset)
        if isinstance(holder, ir.Value):
            return self.numbers(holder)
        return [] if holder is None else [size(Fraction(n)) for n in holder.value]

    def unknown(self, key: str = "", *, negative: bool = False) -> Size:
        """Return a symbol for an unknown size, or a number that may be negative: equal keys give equal symbols."""
        if not key:
            return Size.symbol(next(self._symbols) + NUMBERS * negative)
        if key not in self._unknown:
            symbol = next(self._symbols) + NUMBERS * negative
            self._unknown[key], self._keys[symbol] = Size.symbol(symbol), key
        return self._unknown[key]

    def is_named(self, dim: Size) -> bool:
        """Return whether each unknown size in a size has a key."""
        return dim.symbols <= self._keys.keys()

    def of(self, value: ir.Value) -> Known | None:
        """Return the type and shape of a value; a size is unknown if an unknown size without a key is in it."""
        if value not in self.types:
            return None
        shape = self.shapes.get(value)
        dims = None if shape is None else tuple(dim if self.is_named(dim) else None for dim in shape)
        return Known(self.types[value], dims)

    def declare(self, value: ir.Value, known: Known) -> None:
        """Set the type and shape of a value."""
        self.types[value] = known.dtype
        if known.shape is not None:
            self.shapes[value] = tuple(self.unknown() if dim is None else dim for dim in known.shape)

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
        if array is None or array.size > MOST_SENT:
            return None
        return np.ascontiguousarray(array).reshape(array.shape)


def add_initializers(known: KnownValues, graph: ir.Graph) -> None:
    """Add the types, shapes and contents of initializers; one that is an input has no fixed contents."""
    for value in graph.initializers.values():
        if value.const_value is not None:
            most = -1 if value.is_graph_input() else LARGEST  # a caller may give other numbers
            add_tensor(known, value, value.const_value, most)


def add_tensor(known: KnownValues, value: ir.Value, tensor: ir.TensorProtocol, most: int = LARGEST) -> None:
    """Add the type and shape of a constant, and its numbers if they are not more than `most`."""
    known.types[value], known.shapes[value] = tensor.dtype, tuple(map(size, tensor.shape.numpy()))
    if tensor.size <= most and (array := numbers_in(tensor)) is not None:
        known.contents[value] = array


def has(node: ir.Node, slot: int) -> bool:
    return len(node.inputs) > slot and node.inputs[slot] is not None


def shape_of(known: KnownValues, node: ir.Node, slot: int = 0) -> Shape | None:
    value = node.inputs[slot] if has(node, slot) else None
    return None if value is None else known.shapes.get(value)


def axes_of(known: KnownValues, node: ir.Node) -> Axes | None:
    """Return how a node uses its axes; None if that is unknown, or the node is invalid."""
    return axes_by_rule(node, known.opset, known.shapes.__getitem__, lambda name: constants_of(known, node, name))


def constants_of(known: KnownValues, node: ir.Node, name: str) -> list[int] | None:
    """Return a parameter of a node as integers: none if it is absent, None if it is unknown or depends on sizes."""
    sizes = known.parameter(node, name)
    numbers = None if sizes is None else [number.constant for number in sizes]
    return None if numbers is None or None in numbers else [int(number or 0) for number in numbers]
