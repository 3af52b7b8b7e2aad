"""The number of each ConstantOfShape, also the default.

Without it tract takes the fill for one of float64, OpenCV fails, and MNN has other numbers in every third run.
"""

from __future__ import annotations

import onnx_ir as ir

from rnn_lowering.model.scopes import standard_nodes


def write_fills(model: ir.Model) -> int:
    """Write the default number of each ConstantOfShape, in place; return how many had none."""
    found = [node for _, node in standard_nodes(model, "ConstantOfShape") if "value" not in node.attributes]
    for node in found:
        node.attributes.add(ir.AttrTensor("value", ir.tensor([0.0], ir.DataType.FLOAT)))
    return len(found)
