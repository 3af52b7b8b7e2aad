"""Products of integers, and what selects by a condition: operators that exist from opset 11 on."""

from __future__ import annotations

import onnx_ir as ir

from rnn_lowering.emit.constants import literal
from rnn_lowering.emit.dequantized import Dequantized
from rnn_lowering.emit.ops import Ops
from rnn_lowering.emit.tensors import Tensor, broadcast

FIRST_OPSET = 11
"""Of DynamicQuantizeLinear."""

_OPSET_OF_SCALES_PER_COLUMN = 13
_UINT8, _INT32, _FLOAT = ir.DataType.UINT8, ir.DataType.INT32, ir.DataType.FLOAT


def integer_product(op: Ops, a: Tensor, weights: Dequantized) -> Tensor:
    """a [..., m, k] @ weights [k, n], where a is quantized to 8 bits by the range of all its numbers.

    The scales are multiplied first, as onnxruntime does: float(product) * (scale of a * scale of the weights).
    """
    stored = weights.stored(_OPSET_OF_SCALES_PER_COLUMN)
    assert stored is not None
    shape = (*a.shape[:-1], weights.shape[-1])
    types = [_UINT8, _FLOAT, _UINT8]
    quantized, scale, zero_point = op.emit("DynamicQuantizeLinear", [a], [a.shape, (), ()], types)
    other = op.known(literal(stored.zero_point, weights.integers.dtype, f"{weights.name}_zero_point"))
    inputs = [quantized, op.known(weights.integers), zero_point, other]
    (product,) = op.emit("MatMulInteger", inputs, [shape], [_INT32])
    return op.cast(product, _FLOAT) * (scale * op.known(literal(stored.scale, _FLOAT, f"{weights.name}_scale")))


def where(op: Ops, condition: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """a where the condition is true, else b."""
    return op.emit("Where", [condition, a, b], [broadcast(condition.shape, a.shape, b.shape)], [a.dtype])[0]


def largest(op: Ops, x: Tensor) -> Tensor:
    """The largest number of all, with the rank of x."""
    return op.emit("ReduceMax", [x], [(1,) * x.rank], [x.dtype])[0]
