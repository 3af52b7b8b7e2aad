"""Operators that compute numbers, element by element or as products, in the version of each opset."""

from __future__ import annotations

from dataclasses import replace

import onnx
import onnx_ir as ir

from rnn_lowering.emit.builder import Emitter
from rnn_lowering.emit.constants import Constant, all_constant, elementwise
from rnn_lowering.emit.faster import by_columns
from rnn_lowering.emit.rewrite import RANK
from rnn_lowering.emit.substitutes import above, bounded, difference, lacks_difference, positive_part
from rnn_lowering.emit.tensors import Tensor, broadcast
from rnn_lowering.emit.versions import since


class ArithmeticOps(Emitter):
    """Emits operators that compute numbers; `Ops` has those that move them too."""

    def exists(self, op_type: str) -> bool:
        """Return whether the default domain has an operator at this opset."""
        return bool(onnx.defs.has(op_type, self.opset, ""))

    def _lacks(self, op_type: str) -> bool:
        return op_type in self.dialect.unsupported

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

    def cast(self, x: Tensor, dtype: ir.DataType) -> Tensor:
        if x.dtype == dtype:
            return x
        if isinstance(x.value, Constant):
            return self.known(x.value.cast(dtype))
        return self.emit("Cast", [x], [x.shape], [dtype], to=int(dtype))[0]
