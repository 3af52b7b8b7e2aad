"""How a primitive operator is spelt at a given opset: nothing above this module and `sizes` knows one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from rnn_lowering.emit.builder import Emitter
from rnn_lowering.emit.rewrite import RANK
from rnn_lowering.emit.tensors import Constant, Tensor, broadcast, constant_zeros, static
from rnn_lowering.types import Array, Dims

_FAR_BEFORE_FIRST = -(2**31)
"""End of a backwards Slice; not the smallest int64, which some runtimes get wrong."""

_LONGEST_WRITTEN = 1 << 20


class Ops(Emitter):
    """Emits primitive operators of one opset, in the scope that is open."""

    # Arithmetic

    def add(self, a: Tensor, b: Tensor) -> Tensor:
        if a.is_zero or b.is_zero:
            return b if a.is_zero else a
        return self._binary("Add", np.add, a, b)

    def sub(self, a: Tensor, b: Tensor) -> Tensor:
        if a.is_zero or b.is_zero:
            return self.neg(b) if a.is_zero else a
        return self._binary("Sub", np.subtract, a, b)

    def mul(self, a: Tensor, b: Tensor) -> Tensor:
        if a.is_zero or b.is_zero:
            return self.zero(broadcast(a.shape, b.shape))
        return self._binary("Mul", np.multiply, a, b)

    def div(self, a: Tensor, b: Tensor) -> Tensor:
        return self._binary("Div", np.divide, a, b)

    def _binary(self, op_type: str, function: Callable[..., Array], a: Tensor, b: Tensor) -> Tensor:
        shape = broadcast(a.shape, b.shape)
        folded = self._folded(op_type, function, shape, a, b)
        return folded or replace(self.emit(op_type, [a, b], [shape], [a.dtype])[0], terms=(a, b))

    def matmul(self, a: Tensor, b: Tensor) -> Tensor:
        """a [..., m, k] @ b [k, n]."""
        shape = (*a.shape[:-1], b.shape[-1])
        if a.is_zero:
            return self.zero(shape)
        (product,) = self.emit("MatMul", [a, b], [shape])
        self.value(product).meta[RANK] = product.rank
        return product

    def neg(self, x: Tensor) -> Tensor:
        return x if x.is_zero else self.unary("Neg", x)

    def unary(self, op_type: str, x: Tensor, **attributes: float) -> Tensor:
        """An element-wise operator of one input."""
        return self.emit(op_type, [x], [x.shape], [x.dtype], **attributes)[0]

    def clip(self, x: Tensor, bound: float) -> Tensor:
        """Bound x to [-bound, bound]."""
        if self.dtype == ir.DataType.DOUBLE and self.opset < 12:  # onnxruntime: no kernel
            limit = self.constant(bound)
            over, under = self.unary("Relu", x - limit), self.unary("Relu", self.neg(x + limit))
            return x - over + under
        if "Clip" in self.spelling.composed:
            (floored,) = self.emit("Max", [x, self.constant(-bound)], [x.shape])
            return self.emit("Min", [floored, self.constant(bound)], [x.shape])[0]
        if self.opset < 11:
            return self.unary("Clip", x, min=-bound, max=bound)
        return self.emit("Clip", [x, self.constant(-bound), self.constant(bound)], [x.shape])[0]

    def less(self, a: Tensor, b: Tensor) -> Tensor:
        shape = broadcast(a.shape, b.shape)
        folded = self._folded("Less", np.less, shape, a, b)
        if folded is not None:
            assert isinstance(folded.value, Constant)
            return self.known(Constant(ir.DataType.BOOL, folded.value.shape, folded.value.read, "mask"))
        if self.opset < 9 and not a.dtype.is_floating_point():
            a, b = self.cast(a, ir.DataType.FLOAT), self.cast(b, ir.DataType.FLOAT)
        less = self.emit("Less", [a, b], [shape], [ir.DataType.BOOL])
        self.declare(less)  # jaxonnxruntime casts declared values only
        return less[0]

    def above(self, x: Tensor, threshold: float) -> Tensor:
        """Return 1 where x > threshold, else 0, of the type of x."""
        if "Less" not in self.spelling.composed:
            return self.cast(self.less(self.constant(threshold), x), x.dtype)
        one, over = self.constant(1.0), self.unary("Relu", x - self.constant(threshold))
        return one - self.unary("Relu", one - self.unary("Ceil", over))

    def zero_unless(self, condition: Tensor, x: Tensor) -> Tensor:
        """x where the condition [1] is true, else 0; before opset 9 x is finite."""
        if self.opset < 9:
            return x * self.cast(condition, self.dtype)
        return self.emit("Where", [condition, x, self.constant(0.0)], [x.shape])[0]

    @staticmethod
    def is_true(mask: Tensor) -> bool:
        """Whether a mask is known to be true everywhere."""
        return isinstance(mask.value, Constant) and bool(mask.value.read().all())

    # Data movement

    def cast(self, x: Tensor, dtype: ir.DataType) -> Tensor:
        if x.dtype == dtype:
            return x
        if isinstance(x.value, Constant):
            held = x.value
            key = None if held.key is None else (("Cast", dtype), held.key)
            return self.known(Constant(dtype, held.shape, lambda: _cast(held.read(), dtype), held.name, key))
        return self.emit("Cast", [x], [x.shape], [dtype], to=int(dtype))[0]

    def transpose(self, x: Tensor, perm: Sequence[int]) -> Tensor:
        shape = tuple(x.shape[axis] for axis in perm)
        return (
            self._folded(("Transpose", *perm), lambda a: a.transpose(perm), shape, x)
            or self.emit("Transpose", [x], [shape], [x.dtype], perm=list(perm))[0]
        )

    def split(self, x: Tensor, sizes: Sequence[int], axis: int = -1) -> list[Tensor]:
        """Cut x into parts of the given sizes."""
        if len(sizes) == 1:
            return [x]
        axis %= x.rank
        shapes = [(*x.shape[:axis], size, *x.shape[axis + 1 :]) for size in sizes]
        if x.is_zero:
            return [self.zero(shape) for shape in shapes]
        if isinstance(x.value, Constant):
            ends = np.cumsum(sizes).tolist()
            return [
                self._cut(x, axis, end - size, end, shape)
                for size, end, shape in zip(sizes, ends, shapes, strict=True)
            ]
        types = [x.dtype] * len(sizes)
        if self.opset < 13:
            return self.emit("Split", [x], shapes, types, axis=axis, split=list(sizes))
        return self.emit("Split", [x, self.constant(list(sizes))], shapes, types, axis=axis)

    def _cut(self, x: Tensor, axis: int, start: int, end: int, shape: Dims) -> Tensor:
        where = (slice(None),) * axis + (slice(start, end),)
        part = self._folded(("Slice", axis, start, end), lambda a: a[where], shape, x)
        assert part is not None
        return part

    def concat(self, parts: Sequence[Tensor], axis: int) -> Tensor:
        if len(parts) == 1:
            return parts[0]
        axis %= parts[0].rank
        sizes = [p.shape[axis] for p in parts]
        total = None if None in sizes else sum(s for s in sizes if s is not None)
        shape = tuple(
            total if n == axis else next((p.shape[n] for p in parts if p.shape[n] is not None), None)
            for n in range(parts[0].rank)
        )
        if all(p.is_zero for p in parts):
            return self.zero(shape)
        parts = [self.known(constant_zeros(p.dtype, static(p.shape))) if p.is_zero else p for p in parts]
        folded = self._folded(("Concat", axis), lambda *arrays: np.concatenate(arrays, axis), shape, *parts)
        return folded or self.emit("Concat", parts, [shape], [parts[0].dtype], axis=axis)[0]

    def unsqueeze(self, x: Tensor, axes: Sequence[int]) -> Tensor:
        """Insert dimensions of 1 at the given (non-negative) axes of the result."""
        dims = list(x.shape)
        for axis in sorted(axes):
            dims.insert(axis, 1)
        return self._reshaping("Unsqueeze", x, axes, tuple(dims))

    def squeeze(self, x: Tensor, axes: Sequence[int]) -> Tensor:
        """Drop dimensions of 1."""
        return self._reshaping("Squeeze", x, axes, tuple(d for n, d in enumerate(x.shape) if n not in axes))

    def _reshaping(self, op_type: str, x: Tensor, axes: Sequence[int], shape: Dims) -> Tensor:
        if x.is_zero:
            return self.zero(shape)
        if isinstance(x.value, Constant):
            sizes = static(shape)
            folded = self._folded(("Reshape", sizes), lambda a: a.reshape(sizes), shape, x)
            assert folded is not None
            return folded
        if self.opset < 13:
            return self.emit(op_type, [x], [shape], [x.dtype], axes=list(axes))[0]
        return self.emit(op_type, [x, self.constant(list(axes))], [shape], [x.dtype])[0]

    def flatten(self, x: Tensor) -> Tensor:
        """[..., n] as [rows, n]."""
        sizes = x.shape[:-1]
        rows = None if None in sizes else math.prod(static(sizes))
        return self.emit("Flatten", [x], [(rows, x.shape[-1])], [x.dtype], axis=x.rank - 1)[0]

    def can_flip(self, x: Tensor) -> bool:
        """Whether `flip` is possible: a Slice with steps needs opset 10."""
        return is_short(x.shape[0]) or self.opset >= 10

    def reshape(self, x: Tensor, sizes: Sequence[Tensor], shape: Dims) -> Tensor:
        """x with the given sizes, each an int64 [1]; a size of 0 is that of x."""
        return self.emit("Reshape", [x, self.concat(sizes, axis=0)], [shape], [x.dtype])[0]

    def flip(self, x: Tensor) -> Tensor:
        """Reverse x along axis 0: by a Gather of constant indices where the length is known, else by a Slice
        with step -1."""
        length = x.shape[0]
        if length == 1:
            return x
        if isinstance(x.value, Constant):
            folded = self._folded("Flip", lambda a: a[::-1], x.shape, x)
            assert folded is not None
            return folded
        if length is not None and is_short(length):
            return self.take(x, self.constant(range(length - 1, -1, -1)))
        bounds = [self.constant([n]) for n in (-1, _FAR_BEFORE_FIRST, 0, -1)]  # starts, ends, axes, steps
        return self.emit("Slice", [x, *bounds], [x.shape], [x.dtype])[0]

    # Run-time sizes

    def dim(self, x: Tensor, axis: int) -> Tensor:
        """The size of an axis, int64 [1]."""
        size = x.shape[axis]
        if size is not None:
            return self.constant([size])
        shape = self.emit("Shape", [x], [(x.rank,)], [ir.DataType.INT64])[0]
        return self.emit("Gather", [shape, self.constant([axis])], [(1,)], [ir.DataType.INT64], axis=0)[0]

    def loop_inputs(self) -> tuple[Tensor, Tensor]:
        """The first two inputs of a Loop body: the iteration number and the condition, of rank 0."""
        return self.body_input("i", ir.DataType.INT64, ()), self.body_input("going", ir.DataType.BOOL, ())

    def true(self) -> Tensor:
        """The condition of a Loop that runs all its iterations."""
        return self.known(Constant(ir.DataType.BOOL, (), lambda: np.array(True), "true"))

    def take(self, x: Tensor, index: Tensor) -> Tensor:
        """x[index] along axis 0: [rows, ...] -> [*index.shape, ...]."""
        if index.rank == 2 and "Gather" in self.spelling.composed:
            return self._picked(x, index)
        return self.emit("Gather", [x, index], [(*index.shape, *x.shape[1:])], [x.dtype], axis=0)[0]

    def _picked(self, x: Tensor, index: Tensor) -> Tensor:
        """`take` of rows [rows, n], which are finite, by a constant index [a, b]: a product with rows of ones."""
        assert isinstance(index.value, Constant)
        read, (rows, width) = index.value.read, static(x.shape)
        a, b = static(index.shape)
        chosen = self.known(Constant(x.dtype, (a * b, rows), lambda: _one_hot(read(), rows, x.dtype), "chosen"))
        sizes = [self.constant([size]) for size in (a, b, width)]
        return self.reshape(chosen @ x, sizes, (a, b, width))


def is_short(length: int | None) -> bool:
    """Whether something of this many numbers is written out, rather than made at run time."""
    return length is not None and length <= _LONGEST_WRITTEN


def _cast(array: Array, dtype: ir.DataType) -> Array:
    return array.astype(dtype.numpy())


def _one_hot(index: Array, rows: int, dtype: ir.DataType) -> Array:
    return _cast(index.reshape(-1, 1) == np.arange(rows), dtype)
