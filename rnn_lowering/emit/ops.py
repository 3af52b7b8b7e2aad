"""`Ops`: emit primitive operators at any opset into the current graph.

Callers say what an operator does; `Ops` knows how the opset writes it. On constants and symbolic zeros most
operators emit no node: they become expressions (`emit/constants`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from itertools import accumulate

import onnx_ir as ir

from rnn_lowering.emit.constants import Constant, Zeros, elementwise, zeros_of
from rnn_lowering.emit.dialect import since
from rnn_lowering.emit.open_scopes import OpenScopes
from rnn_lowering.emit.tensor import Tensor, broadcast_shape, concat_shape, static
from rnn_lowering.facts.operators import TO_THE_END
from rnn_lowering.types import Dims

_FLOAT, _INT64 = ir.DataType.FLOAT, ir.DataType.INT64


class Ops(OpenScopes):
    """Emits operators into the innermost open scope."""

    @cached_property
    def _unsqueezed(self) -> dict[ir.Value, tuple[list[int], Tensor]]:
        """By value that an Unsqueeze computes: the axes that it inserted, and what had none of them."""
        return {}

    # Arithmetic

    def binary(self, op_type: str, a: Tensor, b: Tensor) -> Tensor:
        """Emit Add, Sub, Mul, Div or MatMul, for + - * / @ of tensors."""
        is_product = op_type == "MatMul"
        shape = _product_shape(a.shape, b.shape) if is_product else broadcast_shape(a.shape, b.shape)
        if a.is_zero or b.is_zero:
            return self._with_zero(op_type, a, b, shape)
        if isinstance(a.value, Constant) and isinstance(b.value, Constant) and not is_product:
            return self.from_constant(elementwise(op_type, a.value, b.value))
        instead: Tensor | None = self.substitute(op_type, a, b)
        if instead is not None:
            return instead
        result = self.emit(op_type, [a, b], shape)
        if not is_product:
            return Tensor(result.value, result.dtype, result.shape, self.binary, terms=(a, b))
        if result.rank == 2:
            self.matrices.add(self.value(result))
        return result

    def _with_zero(self, op_type: str, a: Tensor, b: Tensor, shape: Dims) -> Tensor:
        if op_type in ("Mul", "MatMul"):
            return self.zero(shape)
        if b.is_zero:
            return a
        return self.neg(b) if op_type == "Sub" else b

    def neg(self, x: Tensor) -> Tensor:
        return x if x.is_zero else self.unary("Neg", x)

    def unary(self, op_type: str, x: Tensor, **attributes: float) -> Tensor:
        """Emit an element-wise operator of one input."""
        return self.substitute(op_type, x, **attributes) or self.emit(op_type, [x], x.shape, **attributes)

    def sum(self, x: Tensor, axis: int) -> Tensor:
        """Return the sums along an axis, which stays as one of size 1."""
        if x.shape[axis] == 1:
            return x
        shape = x.shape_with(axis, 1)
        if x.is_zero:
            return self.zero(shape)
        return self.substitute("ReduceSum", x, axis) or self.emit("ReduceSum", [x], shape, axes=[axis])

    def conv(self, x: Tensor, weight: Tensor, bias: Tensor, dilation: int = 1) -> Tensor:
        """Convolve each channel of x [batch, channels, frames] with its row of weight [channels, 1, k], without
        padding, and add its bias [channels]."""
        instead: Tensor | None = self.substitute("Conv", x, weight, bias, dilation)
        if instead is not None:
            return instead
        N, _, frames = x.shape
        C, _, k = weight.shape
        assert C is not None
        assert k is not None
        shape = (N, C, None if frames is None else frames - (k - 1) * dilation)
        inputs = [x, weight] if bias.is_zero else [x, weight, bias]
        sizes = {"group": C, "kernel_shape": [k], "dilations": [dilation]}
        return self.emit("Conv", inputs, shape, **sizes)

    def clip(self, x: Tensor, bound: float) -> Tensor:
        """Bound x to [-bound, bound]."""
        return self.substitute("Clip", x, bound) or self._clip(x, bound)

    @since(1)
    def _clip(self, x: Tensor, bound: float) -> Tensor:
        """Clip; float64 by Relu: onnxruntime has no float64 kernel of Clip before version 12
        (OperatorKernels.md)."""
        if self.dtype != ir.DataType.DOUBLE:
            return self._clip_12(x, bound)
        limit = self.constant(bound)
        over, under = self.unary("Relu", x - limit), self.unary("Relu", self.neg(x + limit))
        return x - over + under

    @_clip.since(12)
    def _clip_12(self, x: Tensor, bound: float) -> Tensor:
        return self.emit("Clip", [x], x.shape, min=-bound, max=bound)

    def cast(self, x: Tensor, dtype: ir.DataType) -> Tensor:
        if x.dtype == dtype:
            return x
        if x.is_zero:
            return replace(x, dtype=dtype)
        if isinstance(x.value, Constant):
            return self.from_constant(x.value.cast(dtype))
        return self.emit("Cast", [x], x.shape, dtype, to=int(dtype))

    # Conditions

    def less(self, a: Tensor, b: Tensor) -> Tensor:
        if isinstance(a.value, Constant) and isinstance(b.value, Constant):
            return self.from_constant(elementwise("Less", a.value, b.value))
        return self._less(a, b)

    @since(1)
    def _less(self, a: Tensor, b: Tensor) -> Tensor:
        """Less-1 and Less-7 compare floats only: integers are cast."""
        if a.dtype.is_floating_point():
            return self._less_9(a, b)
        return self._less_9(self.cast(a, _FLOAT), self.cast(b, _FLOAT))

    @_less.since(9)
    def _less_9(self, a: Tensor, b: Tensor) -> Tensor:
        less = self.emit("Less", [a, b], broadcast_shape(a.shape, b.shape), ir.DataType.BOOL)
        self.declare([less])  # jaxonnxruntime casts declared values only
        return less

    def both(self, a: Tensor, b: Tensor) -> Tensor:
        return self.emit("And", [a, b], broadcast_shape(a.shape, b.shape))

    def above(self, x: Tensor, threshold: float) -> Tensor:
        """Return 1 where x > threshold, else 0, of the type of x."""
        return self.substitute("Less", x, threshold) or self.cast(self.less(self.constant(threshold), x), x.dtype)

    @since(1)
    def zero_unless(self, condition: Tensor, x: Tensor) -> Tensor:
        """Return x where the condition [1] is true, else 0; before opset 9 x must be finite."""
        return x * self.cast(condition, self.dtype)

    @zero_unless.since(9)
    def _zero_unless_9(self, condition: Tensor, x: Tensor) -> Tensor:
        return self.emit("Where", [condition, x, self.constant(0.0)], x.shape, x.dtype)

    @since(9)
    def where(self, condition: Tensor, a: Tensor, b: Tensor) -> Tensor:
        """Return a where the condition is true, else b."""
        return self.emit("Where", [condition, a, b], broadcast_shape(condition.shape, a.shape, b.shape), a.dtype)

    def largest(self, x: Tensor) -> Tensor:
        """Return the largest number of all, with the rank of x."""
        return self.emit("ReduceMax", [x], (1,) * x.rank)

    # Moving numbers

    def transpose(self, x: Tensor, perm: Sequence[int]) -> Tensor:
        if isinstance(x.value, Constant):
            return self.from_constant(x.value.transposed(perm))
        shape = tuple(x.shape[axis] for axis in perm)
        return self.emit("Transpose", [x], shape, perm=list(perm))

    def transpose_last(self, x: Tensor) -> Tensor:
        """Swap the last two axes."""
        return self.transpose(x, [*range(x.rank - 2), x.rank - 1, x.rank - 2])

    def split(self, x: Tensor, sizes: Sequence[int], axis: int = -1) -> list[Tensor]:
        """Split x into parts of the given sizes along an axis."""
        if len(sizes) == 1:
            return [x]
        axis %= x.rank
        shapes = [x.shape_with(axis, size) for size in sizes]
        if x.is_zero:
            return [self.zero(shape) for shape in shapes]
        if not isinstance(x.value, Constant):
            instead: list[Tensor] | None = self.substitute("Split", x, sizes, axis)
            types = [x.dtype] * len(sizes)
            return instead or self.emit_all("Split", [x], shapes, types, axis=axis, split=list(sizes))
        ends = accumulate(sizes)
        slices = [x.value.sliced(axis, end - size, end) for size, end in zip(sizes, ends, strict=True)]
        return [self.zero(part.shape) if isinstance(part, Zeros) else self.from_constant(part) for part in slices]

    def slice(self, x: Tensor, axis: int, start: int, end: int | None) -> Tensor:
        """Return x from `start` to before `end` along an axis; a negative one counts from the end, None is the
        end."""
        size = x.shape[axis]
        if size is not None:
            start, end = (n + size if n < 0 else n for n in (start, size if end is None else end))
            length: int | None = end - start
        elif start < 0:
            length = (end or 0) - start if end is None or end < 0 else None
        else:
            length = end - start if end is not None and end >= 0 else None
        if size is not None and length == size:
            return x
        bounds = {"starts": [start], "ends": [TO_THE_END if end is None else end], "axes": [axis]}
        return self.emit("Slice", [x], x.shape_with(axis, length), **bounds)

    def concat(self, parts: Sequence[Tensor], axis: int) -> Tensor:
        if len(parts) == 1:
            return parts[0]
        axis %= parts[0].rank
        shape = concat_shape([p.shape for p in parts], axis)
        if all(p.is_zero for p in parts):
            return self.zero(shape)
        parts = [self.from_constant(zeros_of(p.dtype, static(p.shape))) if p.is_zero else p for p in parts]
        constants = [p.value for p in parts if isinstance(p.value, Constant)]
        if len(constants) == len(parts):
            return self.from_constant(constants[0].followed_by(constants[1:], axis))
        return self.emit("Concat", parts, shape, axis=axis)

    def unsqueeze(self, x: Tensor, axes: Sequence[int]) -> Tensor:
        """Insert dimensions of 1 at the given (non-negative) axes of the result."""
        dims = list(x.shape)
        for axis in sorted(axes):
            dims.insert(axis, 1)
        result = self._reshaping("Unsqueeze", x, axes, tuple(dims))
        if isinstance(result.value, ir.Value):
            self._unsqueezed[result.value] = list(axes), x
        return result

    def squeeze(self, x: Tensor, axes: Sequence[int]) -> Tensor:
        """Drop dimensions of 1."""
        return self._reshaping("Squeeze", x, axes, tuple(d for n, d in enumerate(x.shape) if n not in axes))

    def _reshaping(self, op_type: str, x: Tensor, axes: Sequence[int], shape: Dims) -> Tensor:
        if x.is_zero:
            return self.zero(shape)
        if isinstance(x.value, Constant):
            return self.from_constant(x.value.reshaped(static(shape)))
        return self.emit(op_type, [x], shape, axes=list(axes))

    def without_first_axis(self, x: Tensor) -> Tensor:
        """Drop the first axis, of 1; where an Unsqueeze has just added it, return what was before: onnxruntime
        copies what either takes from or gives to the outside of a graph."""
        axes, source = self._source(x)
        return source if axes == [0] else self.squeeze(x, [0])

    def _source(self, x: Tensor) -> tuple[list[int], Tensor]:
        """Return the axes that an Unsqueeze has just inserted, and what was before; no axes and x if none has."""
        return self._unsqueezed.get(x.value, ([], x)) if isinstance(x.value, ir.Value) else ([], x)

    def flatten(self, x: Tensor) -> Tensor:
        """Reshape [..., n] to [rows, n]."""
        instead: Tensor | None = self.substitute("Flatten", x)
        return instead or self.emit("Flatten", [x], x.rows_and_columns, axis=x.rank - 1)

    def reshape(self, x: Tensor, shape: Dims, sizes: Sequence[Tensor] = ()) -> Tensor:
        """Reshape x.

        Args:
            x: A tensor.
            shape: The new shape; without `sizes`, an unknown size is that of x at the same axis.
            sizes: The new sizes, each an int64 [1]; 0 stands for that of x at the same axis, -1 for what is left.
        """
        if x.is_zero:
            return self.zero(shape)
        to = self.concat(sizes, axis=0) if sizes else self.constant([size or 0 for size in shape])
        if not sizes and None not in shape:
            while self._source(x)[0]:
                x = self._source(x)[1]
        return self.emit("Reshape", [x, to], shape)

    def take(self, x: Tensor, index: Tensor) -> Tensor:
        """Return x[index] along axis 0: x [rows, ...] -> [*index.shape, ...]."""
        shape = (*index.shape, *x.shape[1:])
        return self.substitute("Gather", x, index) or self.emit("Gather", [x, index], shape, axis=0)

    # Sizes that may be known at run time only

    def dim(self, x: Tensor, axis: int) -> Tensor:
        """Return the size of an axis as int64 [1]."""
        size = x.shape[axis]
        if size is not None:
            return self.constant([size])
        shape = self.emit("Shape", [x], (x.rank,), _INT64)
        return self.emit("Gather", [shape, self.constant([axis])], (1,), axis=0)


def _product_shape(a: Dims, b: Dims) -> Dims:
    """Return the shape of [..., m, k] @ [..., k, n]."""
    return (*broadcast_shape(a[:-2], b[:-2]), a[-2], b[-1])
