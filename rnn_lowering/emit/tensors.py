"""What operators are emitted on: values that are read like the operator specification.

A tensor is one of
* a value of the graph that is being built,
* a `Constant`, known at lowering time: operations on constants are folded, not emitted, and an initializer
  appears in whichever (sub)graph first uses one,
* a symbolic zero (an absent bias, peephole or initial state): operations on it vanish.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import onnx_ir as ir

from rnn_lowering.emit.constants import Constant
from rnn_lowering.types import Dims


class Arithmetic(Protocol):
    """What the operators of a `Tensor` call."""

    def add(self, a: Tensor, b: Tensor) -> Tensor: ...

    def sub(self, a: Tensor, b: Tensor) -> Tensor: ...

    def mul(self, a: Tensor, b: Tensor) -> Tensor: ...

    def matmul(self, a: Tensor, b: Tensor) -> Tensor: ...


@dataclass(frozen=True, eq=False)
class Tensor:
    """A value with its known dimensions and the arithmetic that its operators call.

    Attributes:
        value: Of the graph, or a constant; None: a symbolic zero.
        terms: What it is the sum or product of, where it is one that was just emitted.
    """

    value: ir.Value | Constant | None
    dtype: ir.DataType
    shape: Dims
    op: Arithmetic
    terms: tuple[Tensor, ...] = ()

    @property
    def is_zero(self) -> bool:
        return self.value is None

    @property
    def rank(self) -> int:
        return len(self.shape)

    def __add__(self, other: Tensor) -> Tensor:
        return self.op.add(self, other)

    def __sub__(self, other: Tensor) -> Tensor:
        return self.op.sub(self, other)

    def __mul__(self, other: Tensor) -> Tensor:
        return self.op.mul(self, other)

    def __matmul__(self, other: Tensor) -> Tensor:
        return self.op.matmul(self, other)


def broadcast(*shapes: Dims) -> Dims:
    """Return the dimensions of an element-wise result; None where they are not known."""
    rank = max(len(s) for s in shapes)
    padded = [(1,) * (rank - len(s)) + tuple(s) for s in shapes]

    def one(dims: tuple[int | None, ...]) -> int | None:
        sizes = [d for d in dims if d != 1]
        known = [d for d in sizes if d is not None]
        return known[0] if known else (None if sizes else 1)

    return tuple(one(dims) for dims in zip(*padded, strict=True))


def static(shape: Dims) -> tuple[int, ...]:
    sizes = tuple(d for d in shape if d is not None)
    if len(sizes) != len(shape):
        raise AssertionError(f"a constant needs known dimensions, not {shape}")
    return sizes
