"""Primitive operators in the version of each opset; outside of emit/ nothing depends on the opset."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import onnx
import onnx_ir as ir

from rnn_lowering.emit.builder import Emitter
from rnn_lowering.emit.constants import Constant, Zeros, all_constant, elementwise, literal, one_hot, zeros_of
from rnn_lowering.emit.faster import are_rows, as_rows, by_columns
from rnn_lowering.emit.rewrite import RANK
from rnn_lowering.emit.substitutes import above, bounded, difference, lacks_difference, parts, positive_part
from rnn_lowering.emit.tensors import Tensor, broadcast, concatenated, static
from rnn_lowering.emit.versions import since
from rnn_lowering.types import Dims

_FAR_BEFORE_FIRST = -(2**31)
"""End of a backwards Slice; not the smallest int64, which some runtimes get wrong."""

_LONGEST_WRITTEN = 1 << 20

_INT64 = ir.DataType.INT64


class Ops(Emitter):
    """Emits primitive operators of one opset into the open scope; on constants they are computed at once."""

    def exists(self, op_type: str) -> bool:
        """Return whether the default domain has an operator at this opset."""
        return bool(onnx.defs.has(op_type, self.opset, ""))

    def _lacks(self, op_type: str) -> bool:
        return op_type in self.dialect.unsupported

    # Arithmetic

    def add(self, a: Tensor, b: Tensor) -> Tensor:
        if a.is_zero or b.is_zero:
            return b if a.is_zero else a
        return self._binary("Add", a, b)

    def sub(self, a: Tensor, b: Tensor) -> Tensor:
        if a.is_zero or b.is_zero:
            return self.neg(b) if a.is_zero else a
        if all_constant((a.value, b.value)) is None and lacks_difference(self, a, b):
            return difference(self, a, b)
        return self._binary("Sub", a, b)

    def mul(self, a: Tensor, b: Tensor) -> Tensor:
        if a.is_zero or b.is_zero:
            return self.zero(broadcast(a.shape, b.shape))
        return self._binary("Mul", a, b)

    def div(self, a: Tensor, b: Tensor) -> Tensor:
        return self._binary("Div", a, b)

    def _binary(self, op_type: str, a: Tensor, b: Tensor) -> Tensor:
        if isinstance(a.value, Constant) and isinstance(b.value, Constant):
            return self.known(elementwise(op_type, a.value, b.value))
        (result,) = self.emit(op_type, [a, b], [broadcast(a.shape, b.shape)], [a.dtype])
        return replace(result, terms=(a, b))

    def matmul(self, a: Tensor, b: Tensor) -> Tensor:
        """Return a [..., m, k] @ b [k, n] as [..., m, n]."""
        shape = (*a.shape[:-1], b.shape[-1])
        if a.is_zero:
            return self.zero(shape)
        many_rows = (a.shape[-2] or 1) >= self.dialect.columns_from_batch
        if many_rows and isinstance(b.value, Constant) and b.value.shape[0] >= self.dialect.columns_from:
            return by_columns(self, a, b.value)
        (product,) = self.emit("MatMul", [a, b], [shape])
        self.value(product).meta[RANK] = product.rank
        return product

    def neg(self, x: Tensor) -> Tensor:
        return x if x.is_zero else self.unary("Neg", x)

    def unary(self, op_type: str, x: Tensor, **attributes: float) -> Tensor:
        """An element-wise operator of one input."""
        if op_type == "Relu":
            return positive_part(self, x)
        return self.emit(op_type, [x], [x.shape], [x.dtype], **attributes)[0]

    def clip(self, x: Tensor, bound: float) -> Tensor:
        """Bound x to [-bound, bound]."""
        return bounded(self, x, bound) if self._lacks("Clip") else self._clip(x, bound)

    @since(1)
    def _clip(self, x: Tensor, bound: float) -> Tensor:
        if self.dtype == ir.DataType.DOUBLE:
            return self._clip_by_relu(x, bound)
        return self.unary("Clip", x, min=-bound, max=bound)

    @_clip.since(11)
    def _clip_11(self, x: Tensor, bound: float) -> Tensor:
        if self.dtype == ir.DataType.DOUBLE:
            return self._clip_by_relu(x, bound)
        return self._clip_12(x, bound)

    @_clip.since(12)
    def _clip_12(self, x: Tensor, bound: float) -> Tensor:
        return self.emit("Clip", [x, self.constant(-bound), self.constant(bound)], [x.shape])[0]

    def _clip_by_relu(self, x: Tensor, bound: float) -> Tensor:
        """Clip float64, for which onnxruntime has no kernel of Clip before version 12 (see its
        OperatorKernels.md)."""
        limit = self.constant(bound)
        over, under = self.unary("Relu", x - limit), self.unary("Relu", self.neg(x + limit))
        return x - over + under

    def less(self, a: Tensor, b: Tensor) -> Tensor:
        if isinstance(a.value, Constant) and isinstance(b.value, Constant):
            return self.known(elementwise("Less", a.value, b.value))
        return self._less(a, b)

    @since(1)
    def _less(self, a: Tensor, b: Tensor) -> Tensor:
        """Less-1 and Less-7 compare floats only: integers are cast."""
        if a.dtype.is_floating_point():
            return self._less_9(a, b)
        return self._less_9(self.cast(a, ir.DataType.FLOAT), self.cast(b, ir.DataType.FLOAT))

    @_less.since(9)
    def _less_9(self, a: Tensor, b: Tensor) -> Tensor:
        less = self.emit("Less", [a, b], [broadcast(a.shape, b.shape)], [ir.DataType.BOOL])
        self.declare(less)  # jaxonnxruntime casts declared values only
        return less[0]

    def above(self, x: Tensor, threshold: float) -> Tensor:
        """Return 1 where x > threshold, else 0, of the type of x."""
        if self._lacks("Less"):
            return above(self, x, threshold)
        return self.cast(self.less(self.constant(threshold), x), x.dtype)

    @since(1)
    def zero_unless(self, condition: Tensor, x: Tensor) -> Tensor:
        """Return x where the condition [1] is true, else 0; before opset 9 x must be finite."""
        return x * self.cast(condition, self.dtype)

    @zero_unless.since(9)
    def _zero_unless_9(self, condition: Tensor, x: Tensor) -> Tensor:
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
            return self.known(x.value.cast(dtype))
        return self.emit("Cast", [x], [x.shape], [dtype], to=int(dtype))[0]

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
