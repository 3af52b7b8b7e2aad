"""The numbers of ConstantOfShape and Constant, as every runtime reads them: as tensors.

Without its number tract takes a fill for one of float64, OpenCV fails, and MNN has other numbers in every third
run. TVM, onnx2tf and esp-ppq read only the tensor of a Constant; OpenCV and MNN give a single number an axis.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from rnn_lowering.model.scopes import standard_nodes


def write_fills(model: ir.Model) -> int:
    """Write the default number of each ConstantOfShape, in place; return how many had none."""
    found = [node for _, node in standard_nodes(model, "ConstantOfShape") if "value" not in node.attributes]
    for node in found:
        node.attributes.add(ir.AttrTensor("value", ir.tensor([0.0], ir.DataType.FLOAT)))
    return len(found)


_PLAIN = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}
"""The attributes of a Constant that have plain numbers, and their type."""


def write_tensors(model: ir.Model) -> int:
    """Write the plain numbers of each Constant as a tensor, in place; return how many had some."""
    count = 0
    for _, node in standard_nodes(model, "Constant"):
        for name, dtype in _PLAIN.items():
            if name in node.attributes:
                tensor = ir.tensor(np.array(node.attributes.pop(name).value, dtype))
                node.attributes.add(ir.AttrTensor("value", tensor))
                count += 1
    return count
