"""What operators are emitted on: values that are read like the operator pages.

A tensor is one of
* a value of the graph that is being built,
* a `Constant`, known at lowering time: operations on constants are folded, not emitted, and an initializer
  appears in whichever (sub)graph first uses one,
* a symbolic zero (an absent bias, peephole or initial state): operations on it vanish.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import onnx_ir as ir

from rnn_lowering.types import Array, Dims

_BLOCK_BYTES = 1 << 24


@dataclass(frozen=True, eq=False)
class Constant:
    """A tensor known at lowering time. It is read when it is written out, so that no copy of a large weight
    is held meanwhile.

    Attributes:
        read: Computes it.
        name: What an initializer of it is called.
        key: Equal for equal constants that were computed alike from the same value of the model; None: unknown.
    """

    dtype: ir.DataType
    shape: tuple[int, ...]
    read: Callable[[], Array]
    name: str = "const"
    key: Any = None

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def tensor(self, name: str) -> ir.TensorProtocol:
        """Return the tensor of an initializer or Constant node: an array if small, else a lazy one."""

        def evaluate() -> ir.TensorProtocol:
            return ir.Tensor(_contiguous(self.read()).reshape(self.shape), dtype=self.dtype, name=name)

        if self.size <= 1024:
            return evaluate()
        return ir.LazyTensor(evaluate, dtype=self.dtype, shape=ir.Shape(self.shape), name=name)


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


@lru_cache(maxsize=64)
def constant_zeros(dtype: ir.DataType, shape: tuple[int, ...]) -> Constant:
    return Constant(dtype, shape, lambda: np.zeros(shape, dtype.numpy()), "zeros")


def _contiguous(view: Array) -> Array:
    """Copy a view in blocks, giving back the memory of a mapped file as it goes."""
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
