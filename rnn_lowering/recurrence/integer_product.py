"""The product of a DynamicQuantizeLSTM: both operands are 8-bit integers."""

from __future__ import annotations

import onnx_ir as ir

from rnn_lowering.emit.integer_constants import FIRST_WITH_AXIS, Dequantized
from rnn_lowering.emit.ops import Ops
from rnn_lowering.emit.tensor import Tensor
from rnn_lowering.emit.versions import since

_FLOAT, _UINT8 = ir.DataType.FLOAT, ir.DataType.UINT8


@since(11)
def integer_product(op: Ops, a: Tensor, weights: Tensor) -> Tensor:
    """Return a [..., m, k] @ weights [k, n], where the weights are `Dequantized`.

    DynamicQuantizeLinear rounds `a` to 8 bits by the range of all its numbers, MatMulInteger multiplies. The scales
    are multiplied first, as onnxruntime does: float(product) * (scale of a * scale of the weights).
    """
    shape, constant = (*a.shape[:-1], weights.shape[-1]), weights.value
    if a.is_zero:
        return op.zero(shape)
    assert isinstance(constant, Dequantized)
    stored = constant.stored(FIRST_WITH_AXIS)
    assert stored is not None
    weights_scale, weights_zero_point = map(op.known, stored.parts())
    types = [_UINT8, _FLOAT, _UINT8]
    integers, scale, zero_point = op.emit_all("DynamicQuantizeLinear", [a], [a.shape, (), ()], types)
    inputs = [integers, op.known(constant.integers), zero_point, weights_zero_point]
    product = op.emit("MatMulInteger", inputs, shape, ir.DataType.INT32)
    return op.cast(product, _FLOAT) * (scale * weights_scale)
