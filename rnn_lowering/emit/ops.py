"""Primitive operators in the version of each opset; outside of emit/ nothing depends on the opset."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

import onnx_ir as ir

from rnn_lowering.emit.arithmetic import ArithmeticOps
from rnn_lowering.emit.constants import Constant, Zeros, all_constant, literal, one_hot, zeros_of
from rnn_lowering.emit.faster import are_rows, as_rows
from rnn_lowering.emit.substitutes import parts
from rnn_lowering.emit.tensors import Tensor, concatenated, static
from rnn_lowering.emit.versions import since
from rnn_lowering.types import Dims

_FAR_BEFORE_FIRST = -(2**31)
"""End of a backwards Slice; not the smallest int64, which some runtimes get wrong."""

_LONGEST_WRITTEN = 1 << 20

_INT64 = ir.DataType.INT64


class Ops(ArithmeticOps):
    """Emits primitive operators of one opset into the open scope; on constants they are computed at once. Here are
    those that move numbers and tell sizes."""

    def transpose(self, x: Tensor, perm: Sequence[int]) -> Tensor:
        if isinstance(x.value, Constant):
            return self.known(x.value.transposed(perm))
        shape = tuple(x.shape[axis] for axis in perm)
        return self.emit("Transpose", [x], [shape], [x.dtype], perm=list(perm))[0]

    def split(self, x: Tensor, sizes: Sequence[int], axis: int = -1) -> list[Tensor]:
        """Split x into parts of the given sizes along an axis."""
        if len(sizes) == 1:
            return [x]
        axis %= x.rank
        if x.is_zero:
            return [self.zero((*x.shape[:axis], size, *x.shape[axis + 1 :])) for size in sizes]
        if not isinstance(x.value, Constant):
            if are_rows(self, x, sizes, axis):
                rows, axis = as_rows(self, x, len(sizes))
                return [self.squeeze(row, [axis]) for row in self.split(rows, [1] * len(sizes), axis)]
            return parts(self, x, sizes, axis) if self._lacks("Split") else self._split(x, sizes, axis)
        ends = accumulate(sizes)
        slices = [x.value.sliced(axis, end - size, end) for size, end in zip(sizes, ends, strict=True)]
        return [self.zero(part.shape) if isinstance(part, Zeros) else self.known(part) for part in slices]

    @since(1)
    def _split(self, x: Tensor, sizes: Sequence[int], axis: int) -> list[Tensor]:
        shapes = [(*x.shape[:axis], size, *x.shape[axis + 1 :]) for size in sizes]
        return self.emit("Split", [x], shapes, [x.dtype] * len(sizes), axis=axis, split=list(sizes))

    @_split.since(13)
    def _split_13(self, x: Tensor, sizes: Sequence[int], axis: int) -> list[Tensor]:
        shapes = [(*x.shape[:axis], size, *x.shape[axis + 1 :]) for size in sizes]
        return self.emit("Split", [x, self.constant(list(sizes))], shapes, [x.dtype] * len(sizes), axis=axis)

    def concat(self, parts: Sequence[Tensor], axis: int) -> Tensor:
        if len(parts) == 1:
            return parts[0]
        axis %= parts[0].rank
        shape = concatenated([p.shape for p in parts], axis)
        if all(p.is_zero for p in parts):
            return self.zero(shape)
        parts = [self.known(zeros_of(p.dtype, static(p.shape))) if p.is_zero else p for p in parts]
        constants = all_constant(p.value for p in parts)
        if constants is not None:
            return self.known(constants[0].followed_by(constants[1:], axis))
        return self.emit("Concat", parts, [shape], [parts[0].dtype], axis=axis)[0]

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
            return self.known(x.value.reshaped(static(shape)))
        return self._with_axes(op_type, x, axes, shape)

    @since(1)
    def _with_axes(self, op_type: str, x: Tensor, axes: Sequence[int], shape: Dims) -> Tensor:
        return self.emit(op_type, [x], [shape], [x.dtype], axes=list(axes))[0]

    @_with_axes.since(13)
    def _with_axes_13(self, op_type: str, x: Tensor, axes: Sequence[int], shape: Dims) -> Tensor:
        return self.emit(op_type, [x, self.constant(list(axes))], [shape], [x.dtype])[0]

    def flatten(self, x: Tensor) -> Tensor:
        """Reshape [..., n] to [rows, n]."""
        rows = None if None in x.shape[:-1] else math.prod(static(x.shape[:-1]))
        return self.emit("Flatten", [x], [(rows, x.shape[-1])], [x.dtype], axis=x.rank - 1)[0]

    def reshape(self, x: Tensor, shape: Dims, sizes: Sequence[Tensor] = ()) -> Tensor:
        """Reshape x; a shape that is not known has sizes, each an int64 [1], of which 0 keeps a size."""
        to = self.concat(sizes, axis=0) if sizes else self.constant(list(static(shape)))
        return self.emit("Reshape", [x, to], [shape], [x.dtype])[0]

    @since(1)
    def can_flip(self, x: Tensor) -> bool:
        """Return whether `flip` is possible: by constant indices, or (from opset 10 on) by a Slice with steps."""
        return is_short(x.shape[0])

    @can_flip.since(10)
    def _can_flip_10(self, x: Tensor) -> bool:
        return True

    def flip(self, x: Tensor) -> Tensor:
        """Reverse x along axis 0: by a Gather of constant indices where the length is known, else by a Slice
        with step -1."""
        length = x.shape[0]
        if length == 1:
            return x
        if isinstance(x.value, Constant):
            return self.known(x.value.flipped())
        if length is not None and is_short(length):
            return self.take(x, self.constant(range(length - 1, -1, -1)))
        bounds = [self.constant([n]) for n in (-1, _FAR_BEFORE_FIRST, 0, -1)]  # starts, ends, axes, steps
        return self.emit("Slice", [x, *bounds], [x.shape], [x.dtype])[0]

    # Run-time sizes

    def dim(self, x: Tensor, axis: int) -> Tensor:
        """Return the size of an axis as int64 [1]."""
        size = x.shape[axis]
        if size is not None:
            return self.constant([size])
        shape = self.emit("Shape", [x], [(x.rank,)], [_INT64])[0]
        return self.emit("Gather", [shape, self.constant([axis])], [(1,)], [_INT64], axis=0)[0]

    def loop_inputs(self) -> tuple[Tensor, Tensor]:
        """Return the first two inputs of a Loop body: the iteration number and the condition, both of rank 0."""
        return self.body_input("i", _INT64, ()), self.body_input("going", ir.DataType.BOOL, ())

    def true(self) -> Tensor:
        """Return the condition of a Loop that runs all its iterations."""
        return self.known(literal(True, ir.DataType.BOOL, "true"))

    def take(self, x: Tensor, index: Tensor) -> Tensor:
        """Return x[index] along axis 0: x [rows, ...] -> [*index.shape, ...]."""
        if index.rank == 2 and isinstance(index.value, Constant) and self._lacks("Gather"):
            return self._rows_by_product(x, index.value)
        if index.rank == 0 and self.dialect.gather_by_rank_1:
            return self.squeeze(self.take(x, self.reshape(index, (1,))), [0])
        return self.emit("Gather", [x, index], [(*index.shape, *x.shape[1:])], [x.dtype], axis=0)[0]

    def _rows_by_product(self, x: Tensor, index: Constant) -> Tensor:
        """Return x[index] for finite x [rows, n] and an index [a, b] as a product with one-hot rows."""
        (rows, width), (a, b) = static(x.shape), index.shape
        chosen = self.known(one_hot(index, rows, x.dtype))
        return self.reshape(chosen @ x, (a, b, width))


def is_short(length: int | None) -> bool:
    """Return whether a constant of this many numbers is stored in the model, not computed at run time."""
    return length is not None and length <= _LONGEST_WRITTEN
