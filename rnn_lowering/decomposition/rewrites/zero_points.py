"""Zero points in the shape of their scales.

OpenCV compares both; onnxruntime's quantizer writes the scale of a bias with an axis, and its zero point without.
"""

from __future__ import annotations

import onnx_ir as ir

from rnn_lowering.decomposition.rewrites.inserting import Inserter
from rnn_lowering.facts.constants import constant_of
from rnn_lowering.facts.operators import default_opset
from rnn_lowering.model.scopes import standard_nodes

_OPERATORS = ("QuantizeLinear", "DequantizeLinear")


def shape_as_scales(model: ir.Model) -> int:
    """Give each constant zero point of one number the shape of its scale, in place; return how many had another."""
    opset, insert, changed = default_opset(model.opset_imports), Inserter(model), 0
    for _, node in standard_nodes(model, *_OPERATORS):
        scale, zero = (constant_of(v, opset) if v is not None else None for v in [*node.inputs[1:], None, None][:2])
        if scale is not None and zero is not None and scale.size == zero.size == 1 and scale.shape != zero.shape:
            numbers = zero.numpy().reshape(scale.numpy().shape)
            node.replace_input_with(2, insert.constant(node, numbers, numbers.dtype, "zero_point"))
            changed += 1
    return changed
