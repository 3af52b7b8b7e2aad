"""Tensors known at lowering time, as expressions over tensors of the model.

Equal expressions are equal tensors, so a graph holds each only once. An expression is evaluated when the model is
written: until then no copy of a large weight is in memory. Constants that the model stores as integers stay
integers (`Dequantized`): operations move the integers, and the graph dequantizes them.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
import onnx_ir as ir

from rnn_lowering.types import Array, array_of, dequantized_numbers

_BLOCK_BYTES = 1 << 24
"""Bytes of a mapped file that are copied before their memory is released."""

_EAGER_SIZE = 1024
"""Maximum elements of a constant that is evaluated at once; a larger one is evaluated when it is written."""

_LITERAL_SIZE = 16
"""Maximum elements of a constant that is compared by its numbers; a larger one is compared by its expression."""

_FIRST_DEQUANTIZE, FIRST_WITH_AXIS, _FIRST_WITH_BLOCKS = 10, 13, 21
"""First opsets with DequantizeLinear, with its axis and with its blocks: https://onnx.ai/onnx/operators/onnx__DequantizeLinear.html."""


@dataclass(frozen=True)
class Constant:
    """A tensor known at lowering time; abstract, but no ABC, since `isinstance` is slow with those.

    Attributes:
        name: The name of its initializer, without prefix and number.
    """

    dtype: ir.DataType
    shape: tuple[int, ...]
    name: str = field(compare=False)

    def read(self) -> Array:
        """Compute the array."""
        raise NotImplementedError

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @cached_property
    def symbol(self) -> str:
        """The name of the first tensor of the model that it is computed from; "" if there is none."""
        flat = (
            o for operand in vars(self).values() for o in (operand if isinstance(operand, tuple) else (operand,))
        )
        return next((o.symbol for o in flat if isinstance(o, Constant) and o.symbol), "")

    def transposed(self, perm: Sequence[int]) -> Constant:
        shape = tuple(self.shape[axis] for axis in perm)
        return Transposed(self.dtype, shape, self.name, self, tuple(perm))

    def sliced(self, axis: int, start: int, end: int) -> Constant:
        """Return the slice from `start` to before `end` along an axis."""
        shape = (*self.shape[:axis], end - start, *self.shape[axis + 1 :])
        return Derived(self.dtype, shape, self.name, _sliced, (self,), (axis, start, end))

    def reshaped(self, shape: tuple[int, ...]) -> Constant:
        return Derived(self.dtype, shape, self.name, np.reshape, (self,), (shape,))

    def flipped(self) -> Constant:
        """Return the tensor reversed along axis 0."""
        return Derived(self.dtype, self.shape, self.name, np.flip, (self,), (0,))

    def cast(self, dtype: ir.DataType) -> Constant:
        return Derived(dtype, self.shape, self.name, np.asarray, (self,))

    def followed_by(self, others: Sequence[Constant], axis: int) -> Constant:
        """Return the concatenation of this tensor and others along an axis."""
        parts = (self, *others)
        shape = list(self.shape)
        shape[axis] = sum(part.shape[axis] for part in parts)
        name = next((part.name for part in parts if not isinstance(part, Zeros)), self.name)
        return Concat(self.dtype, tuple(shape), name, parts, axis)

    def key(self) -> Hashable:
        """Return a key under which a scope caches the tensor, so that it is written once: its numbers if it is
        small, since different expressions may have the same, else the expression."""
        return self if self.size > _LITERAL_SIZE else literal(self.read(), self.dtype)

    def tensor(self, name: str) -> ir.TensorProtocol:
        """Return the tensor of an initializer or Constant node: evaluated if small, else a lazy one."""

        def evaluate() -> ir.TensorProtocol:
            return ir.Tensor(_contiguous(self.read()).reshape(self.shape), dtype=self.dtype, name=name)

        if self.size <= _EAGER_SIZE:
            return evaluate()
        return ir.LazyTensor(evaluate, dtype=self.dtype, shape=ir.Shape(self.shape), name=name)


@dataclass(frozen=True)
class Literal(Constant):
    """Numbers, as the bytes of an array in C order."""

    data: bytes

    def key(self) -> Hashable:
        return self

    def read(self) -> Array:
        return np.frombuffer(self.data, self.dtype.numpy()).reshape(self.shape)


def literal(numbers: object, dtype: ir.DataType, name: str = "const") -> Literal:
    """Return numbers as a constant of a type."""
    array = np.asarray(numbers).astype(dtype.numpy(), order="C")
    return Literal(dtype, array.shape, name, array.tobytes())


@dataclass(frozen=True)
class Leaf(Constant):
    """A tensor of the model; two with the same source, a value of the model, are equal."""

    source: Hashable
    tensor_: ir.TensorProtocol = field(compare=False)

    @cached_property
    def symbol(self) -> str:
        return self.name

    def read(self) -> Array:
        return array_of(self.tensor_)


def leaf(tensor: ir.TensorProtocol, source: Hashable, name: str) -> Leaf:
    """Return a tensor of the model, from the value `source`, as a constant."""
    return Leaf(tensor.dtype, tuple(int(d) for d in tensor.shape.numpy()), name, source, tensor)


@dataclass(frozen=True)
class Zeros(Constant):
    def read(self) -> Array:
        return np.zeros(self.shape, self.dtype.numpy())


def zeros_of(dtype: ir.DataType, shape: tuple[int, ...]) -> Zeros:
    return Zeros(dtype, shape, "zeros")


@dataclass(frozen=True)
class Transposed(Constant):
    of: Constant
    perm: tuple[int, ...]

    def read(self) -> Array:
        return self.of.read().transpose(self.perm)

    def transposed(self, perm: Sequence[int]) -> Constant:
        both = tuple(self.perm[axis] for axis in perm)
        return self.of if both == tuple(sorted(both)) else self.of.transposed(both)


@dataclass(frozen=True)
class Derived(Constant):
    """What a function of NumPy returns of constants, in the type of this one.

    Attributes:
        function: The function.
        parts: The constants.
        parameters: What it takes behind them.
    """

    function: Callable[..., Array]
    parts: tuple[Constant, ...]
    parameters: tuple[Hashable, ...] = ()

    def read(self) -> Array:
        found = self.function(*(part.read() for part in self.parts), *self.parameters)
        return found.astype(self.dtype.numpy(), copy=False)


def _sliced(array: Array, axis: int, start: int, end: int) -> Array:
    return array[(slice(None),) * axis + (slice(start, end),)]


@dataclass(frozen=True)
class Concat(Constant):
    parts: tuple[Constant, ...]
    axis: int

    def read(self) -> Array:
        return np.concatenate([part.read() for part in self.parts], self.axis)

    def sliced(self, axis: int, start: int, end: int) -> Constant:
        ends = accumulate(part.shape[self.axis] for part in self.parts)
        for part, stop in zip(self.parts, ends, strict=True):
            if (axis, start, end) == (self.axis, stop - part.shape[axis], stop):
                return part
        return super().sliced(axis, start, end)


_FUNCTIONS: dict[str, Callable[[Array, Array], Any]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
    "Less": np.less,
}


def elementwise(op_type: str, a: Constant, b: Constant) -> Constant:
    """Return `a` and `b`, of one type, combined by Add, Sub, Mul, Div or Less, with broadcasting."""
    dtype, name = (ir.DataType.BOOL, "mask") if op_type == "Less" else (a.dtype, a.name)
    return Derived(dtype, np.broadcast_shapes(a.shape, b.shape), name, _FUNCTIONS[op_type], (a, b))


def row_product(row: Constant, matrix: Constant) -> Constant:
    """Return row [m] @ matrix [m, n]: [n], computed in float64 and rounded once; a row of one number stands for m
    equal ones."""
    return Derived(matrix.dtype, matrix.shape[1:], "added", _product, (row, matrix))


def _product(row: Array, matrix: Array) -> Array:
    return np.broadcast_to(row.astype(np.float64), matrix.shape[:1]) @ matrix.astype(np.float64)


def one_hot(index: Constant, count: int, dtype: ir.DataType) -> Constant:
    """Return one-hot rows: row n is 1 at position index[n] and 0 elsewhere, [index.size, count]."""
    return Derived(dtype, (index.size, count), "chosen", _chosen, (index,), (count,))


def _chosen(index: Array, count: int) -> Array:
    return index.reshape(-1, 1) == np.arange(count)  # type: ignore[no-any-return]


def gates_of_blocks(
    blocks: Mapping[tuple[int, int], Constant], heights: Sequence[int], widths: Sequence[int], gates: int
) -> Constant:
    """Return the matrices of gates side by side, [sum of heights, gates * sum of widths], each made of blocks.

    Args:
        blocks: By row and column, those of every gate or of the first ones side by side; the others are zero.
        heights, widths: The sizes of the rows and of the columns of blocks.
        gates: The number of gates.
    """
    first, layout = next(iter(blocks.values())), (tuple(blocks), tuple(heights), tuple(widths), gates)
    shape = sum(heights), gates * sum(widths)
    return Derived(first.dtype, shape, first.name, _of_blocks, tuple(blocks.values()), (layout,))


def _of_blocks(*given: Any) -> Array:
    *arrays, (places, heights, widths, gates) = given
    matrices = np.zeros((sum(heights), gates, sum(widths)), arrays[0].dtype)
    tops, lefts = ([0, *accumulate(sizes)] for sizes in (heights, widths))
    for (row, column), array in zip(places, arrays, strict=True):
        height, width, count = heights[row], widths[column], array.shape[-1] // widths[column]
        block = matrices[tops[row] : tops[row + 1], :count, lefts[column] : lefts[column + 1]]
        block[...] = array.reshape(height, count, width)
    return matrices.reshape(len(matrices), -1)


def _contiguous(view: Array) -> Array:
    """Return a contiguous copy of a view, made in blocks; memory of a mapped file is released after each block."""
    base: Any = view
    while isinstance(base, np.ndarray | memoryview):
        base = base.base if isinstance(base, np.ndarray) else base.obj
    if not isinstance(base, mmap.mmap) or view.nbytes <= _BLOCK_BYTES:
        return np.array(view, order="C")
    copy = np.empty(view.shape, view.dtype)
    axis = int(np.argmax(np.abs(view.strides)))
    count = -(-view.nbytes // _BLOCK_BYTES)
    for rows in np.array_split(np.arange(view.shape[axis]), count):
        block = (slice(None),) * axis + (slice(int(rows[0]), int(rows[-1]) + 1) if rows.size else slice(0),)
        copy[block] = view[block]
        base.madvise(mmap.MADV_DONTNEED)
    return copy


@dataclass(frozen=True)
class QuantParameters:
    """The scales and zero points of a DequantizeLinear: one number for all integers, or one per index of `axis`, or
    one per `block` of indices."""

    scale: Literal
    zero_point: Literal
    axis: int | None = None
    block: int = 0

    def parts(self, extra: tuple[int, ...] = ()) -> list[Constant]:
        """Return scale and zero point for integers with `extra` leading axes."""
        parts = self.scale, self.zero_point
        return [part.reshaped((*extra, *part.shape)) for part in parts] if self.block else [*parts]

    def attributes(self, extra: int) -> dict[str, int]:
        """Return the attributes for integers with this many extra leading axes."""
        numbers = {} if self.axis is None else {"axis": self.axis + extra}
        return numbers | ({"block_size": self.block} if self.block else {})


@dataclass(frozen=True)
class Dequantized(Constant):
    """(integers - zero_point) * scale, computed in the type of the scale.

    Attributes:
        integers: Of the same shape.
        scale, zero_point: Of the same shape, or of rank 0.
    """

    integers: Constant
    scale: Constant
    zero_point: Constant

    def read(self) -> Array:
        found = dequantized_numbers(self.integers.read(), self.scale.read(), self.zero_point.read())
        return found.astype(self.dtype.numpy())

    def transposed(self, perm: Sequence[int]) -> Constant:
        return self._moved(lambda part: part.transposed(perm))

    def sliced(self, axis: int, start: int, end: int) -> Constant:
        return self._moved(lambda part: part.sliced(axis, start, end))

    def reshaped(self, shape: tuple[int, ...]) -> Constant:
        return self._moved(lambda part: part.reshaped(shape))

    def flipped(self) -> Constant:
        return self._moved(Constant.flipped)

    def cast(self, dtype: ir.DataType) -> Constant:
        return replace(self, dtype=dtype)

    def followed_by(self, others: Sequence[Constant], axis: int) -> Constant:
        parts = [other for other in others if isinstance(other, Dequantized) and other._kind == self._kind]
        if len(parts) < len(others):
            return super().followed_by(others, axis)
        alike = all(part._uniform and part._uniform == self._uniform for part in parts)
        first, rest = (self, parts) if alike else (self._spread(), [part._spread() for part in parts])
        return first._moved(lambda part, *more: part.followed_by(more, axis), *rest)

    def stored(self, opset: int) -> QuantParameters | None:
        """Return the parameters of DequantizeLinear; None if the opset cannot express them, or floats are
        smaller."""
        if opset < _FIRST_DEQUANTIZE:
            return None
        scale, zero_point = self.scale.read(), self.zero_point.read()
        varies = _varying_axes(scale, zero_point)
        if not varies:
            return self._stored(_picked(scale), _picked(zero_point))
        if len(varies) == 1 and opset >= FIRST_WITH_AXIS:
            (axis,) = varies
            return self._stored(_picked(scale, axis), _picked(zero_point, axis), axis)
        return self._blocked(scale, zero_point) if opset >= _FIRST_WITH_BLOCKS else None

    def _blocked(self, scale: Array, zero_point: Array) -> QuantParameters | None:
        """Return the largest blocks of equal scales and zero points, along whichever axis they run."""
        least = 8 * self.scale.dtype.itemsize // max(8 * self.dtype.itemsize - self.integers.dtype.bitwidth, 1)
        sizes = ((axis, block) for axis, size in enumerate(self.shape) for block in _divisors(size))
        for axis, block in sorted(sizes, key=lambda found: -found[1]):
            if block > least and all(_is_blocked(part, axis, block) for part in (scale, zero_point)):
                step = (*(slice(None),) * axis, slice(None, None, block))
                return self._stored(scale[step], zero_point[step], axis, block)
        return None

    def _stored(self, scale: Array, zero_point: Array, axis: int | None = None, block: int = 0) -> QuantParameters:
        return QuantParameters(
            literal(scale, self.scale.dtype, f"{self.name}_scale"),
            literal(zero_point, self.zero_point.dtype, f"{self.name}_zero_point"),
            axis,
            block,
        )

    @property
    def _kind(self) -> tuple[object, ...]:
        return self.dtype, self.integers.dtype, self.scale.dtype

    @property
    def _uniform(self) -> object:
        """Key of a single scale and zero point; None if they vary along an axis."""
        return (self.scale.key(), self.zero_point.key()) if self.scale.shape == () else None

    def _spread(self) -> Dequantized:
        full = [
            Derived(part.dtype, self.shape, part.name, np.broadcast_to, (part,), (self.shape,))
            for part in (self.scale, self.zero_point)
        ]
        return Dequantized(self.dtype, self.shape, self.name, self.integers, *full)

    def _moved(self, move: Callable[..., Constant], *others: Dequantized) -> Dequantized:
        """Apply an operation to the integers and, if they vary, to the scales and zero points."""
        integers = move(self.integers, *(other.integers for other in others))
        scale, zero_point = self.scale, self.zero_point
        if scale.shape:
            scale = move(scale, *(other.scale for other in others))
            zero_point = move(zero_point, *(other.zero_point for other in others))
        return Dequantized(self.dtype, integers.shape, self.name, integers, scale, zero_point)


def dequantized_constant(integers: Constant, scale: Constant, zero_point: Constant) -> Dequantized:
    """Return dequantized integers as a constant, of the type of their scale."""
    return Dequantized(scale.dtype, integers.shape, integers.name, integers, scale, zero_point)


def _varying_axes(*arrays: Array) -> list[int]:
    """Return the axes along which numbers differ."""
    return [
        axis
        for axis in range(arrays[0].ndim)
        if any((array != array.take([0], axis)).any() for array in arrays if array.size)
    ]


def _picked(array: Array, axis: int | None = None) -> Array:
    """Return the numbers along an axis, or the only number if there is no axis."""
    return array[tuple(slice(None) if n == axis else 0 for n in range(array.ndim))]


def _divisors(size: int) -> Iterator[int]:
    return (number for number in range(1, size + 1) if size % number == 0)


def _is_blocked(array: Array, axis: int, block: int) -> bool:
    shape = (*array.shape[:axis], array.shape[axis] // block, block, *array.shape[axis + 1 :])
    blocks = array.reshape(shape)
    return bool((blocks == blocks.take([0], axis + 1)).all())
