"""Tensors known at lowering time, as expressions over tensors of the model that can be compared and evaluated.

Equal expressions are equal tensors, so a graph holds each only once. An expression is evaluated when the model is
written: until then no copy of a large weight is in memory. A subclass can override the methods that make new
expressions, for example to keep integers that the graph dequantizes as integers.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
import onnx_ir as ir

from rnn_lowering.types import Array, array_of

_BLOCK_BYTES = 1 << 24
_EAGER_SIZE = 1024
_LITERAL_SIZE = 16


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
        """The name of the first tensor of the model that it is computed from; "" where there is none."""
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
        return Sliced(self.dtype, shape, self.name, self, axis, start, end)

    def reshaped(self, shape: tuple[int, ...]) -> Constant:
        return Reshaped(self.dtype, shape, self.name, self)

    def flipped(self) -> Constant:
        """Return the tensor reversed along axis 0."""
        return Flipped(self.dtype, self.shape, self.name, self)

    def cast(self, dtype: ir.DataType) -> Constant:
        return Cast(dtype, self.shape, self.name, self)

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
class Sliced(Constant):
    of: Constant
    axis: int
    start: int
    end: int

    def read(self) -> Array:
        return self.of.read()[(slice(None),) * self.axis + (slice(self.start, self.end),)]


@dataclass(frozen=True)
class Reshaped(Constant):
    of: Constant

    def read(self) -> Array:
        return self.of.read().reshape(self.shape)


@dataclass(frozen=True)
class Flipped(Constant):
    of: Constant

    def read(self) -> Array:
        return self.of.read()[::-1]


@dataclass(frozen=True)
class Cast(Constant):
    of: Constant

    def read(self) -> Array:
        return self.of.read().astype(self.dtype.numpy())


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


@dataclass(frozen=True)
class Elementwise(Constant):
    """A binary operator, one of `_FUNCTIONS`, with broadcasting."""

    op_type: str
    a: Constant
    b: Constant

    def read(self) -> Array:
        result: Array = _FUNCTIONS[self.op_type](self.a.read(), self.b.read())
        return result


_FUNCTIONS: dict[str, Callable[[Array, Array], Any]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
    "Less": np.less,
}


def elementwise(op_type: str, a: Constant, b: Constant) -> Elementwise:
    """Return `a` and `b`, of one type, combined by Add, Sub, Mul, Div or Less."""
    dtype, name = (ir.DataType.BOOL, "mask") if op_type == "Less" else (a.dtype, a.name)
    return Elementwise(dtype, np.broadcast_shapes(a.shape, b.shape), name, op_type, a, b)


@dataclass(frozen=True)
class RowProduct(Constant):
    """The product of a row and a matrix, computed in float64 and rounded once."""

    row: Constant
    matrix: Constant

    def read(self) -> Array:
        matrix = self.matrix.read().astype(np.float64)
        row = np.broadcast_to(self.row.read().astype(np.float64), matrix.shape[:1])
        return (row @ matrix).astype(self.dtype.numpy())


def row_product(row: Constant, matrix: Constant) -> RowProduct:
    """Return row [m] @ matrix [m, n]: [n]; a row of one number stands for m equal ones."""
    return RowProduct(matrix.dtype, matrix.shape[1:], "added", row, matrix)


@dataclass(frozen=True)
class OneHot(Constant):
    """One-hot rows: row n is 1 at position index[n] and 0 elsewhere, [index.size, count]."""

    index: Constant

    def read(self) -> Array:
        rows: Array = self.index.read().reshape(-1, 1) == np.arange(self.shape[1])
        return rows.astype(self.dtype.numpy())


def one_hot(index: Constant, count: int, dtype: ir.DataType) -> OneHot:
    return OneHot(dtype, (index.size, count), "chosen", index)


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
