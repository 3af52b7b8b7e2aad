"""Tensors with + - * / @, for code that reads like the equations of the operator specification.

A tensor is one of
* a value of the graph that is being built,
* a `Constant`, known at lowering time: operations on constants are folded, not emitted, and each (sub)graph that
  uses one gets an initializer,
* a symbolic zero (an absent bias, peephole or initial state): operations on it are not emitted either.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from rnn_lowering.emit.constants import Constant
from rnn_lowering.types import Dims


@dataclass(eq=False, slots=True)
class Tensor:
    """A value with its type and its dimensions as far as they are known.

    Nobody changes one; it is not frozen because that takes four times as long to make.

    Attributes:
        value: A value of the graph or a constant; None for a symbolic zero.
        binary: Emits Add, Sub, Mul, Div or MatMul: `Ops.binary`.
        terms: The two operands, if it is the result of an emitted element-wise operator.
    """

    value: ir.Value | Constant | None
    dtype: ir.DataType
    shape: Dims
    binary: Callable[[str, Tensor, Tensor], Tensor]
    terms: tuple[Tensor, ...] = ()

    @property
    def is_zero(self) -> bool:
        return self.value is None

    @property
    def number(self) -> int | None:
        """The number of an int64 [1]; None if it is known at run time only."""
        return int(self.value.read()[0]) if isinstance(self.value, Constant) else None

    @property
    def is_true(self) -> bool:
        """Whether it is a mask that is known to be true everywhere."""
        return isinstance(self.value, Constant) and bool(self.value.read().all())

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def rows_and_columns(self) -> Dims:
        """The shape of it as a matrix: [rows, n] of [..., n]."""
        return (None if None in self.shape[:-1] else math.prod(static(self.shape[:-1])), self.shape[-1])

    def shape_with(self, axis: int, size: int | None) -> Dims:
        """Return the shape with another size of an axis."""
        axis %= self.rank
        return (*self.shape[:axis], size, *self.shape[axis + 1 :])

    def __add__(self, other: Tensor) -> Tensor:
        return self.binary("Add", self, other)

    def __sub__(self, other: Tensor) -> Tensor:
        return self.binary("Sub", self, other)

    def __mul__(self, other: Tensor) -> Tensor:
        return self.binary("Mul", self, other)

    def __truediv__(self, other: Tensor) -> Tensor:
        return self.binary("Div", self, other)

    def __matmul__(self, other: Tensor) -> Tensor:
        """Multiply [..., m, k] by [k, n]: [..., m, n]."""
        return self.binary("MatMul", self, other)


def broadcast_shape(*shapes: Dims) -> Dims:
    """Return the shape of an element-wise result, None for unknown dimensions."""
    if shapes.count(shapes[0]) == len(shapes):
        return shapes[0]
    rank = max(len(s) for s in shapes)
    padded = [(1,) * (rank - len(s)) + tuple(s) for s in shapes]

    def one(dims: tuple[int | None, ...]) -> int | None:
        sizes = [d for d in dims if d != 1]
        known = [d for d in sizes if d is not None]
        return known[0] if known else (None if sizes else 1)

    return tuple(one(dims) for dims in zip(*padded, strict=True))


def concat_shape(shapes: Sequence[Dims], axis: int) -> Dims:
    """Return the shape of a concatenation, None for unknown dimensions."""
    sizes = [shape[axis] for shape in shapes]
    total = None if None in sizes else sum(s for s in sizes if s is not None)
    return tuple(
        total if n == axis else next((shape[n] for shape in shapes if shape[n] is not None), None)
        for n in range(len(shapes[0]))
    )


def static(shape: Dims) -> tuple[int, ...]:
    """Return a shape whose dimensions are all known."""
    sizes = tuple(d for d in shape if d is not None)
    if len(sizes) != len(shape):
        raise AssertionError(f"a constant needs known dimensions, not {shape}")
    return sizes
