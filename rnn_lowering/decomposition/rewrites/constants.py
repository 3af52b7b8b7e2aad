"""Constants as every runtime reads them: numbers as tensors, zero points in the shape of their scales.

Without its number tract takes a fill for one of float64, OpenCV fails, and MNN has other numbers in every third
run. TVM, onnx2tf and esp-ppq read only the tensor of a Constant; OpenCV and MNN give a single number an axis.
jaxonnxruntime takes sizes and axes from initializers only.
OpenCV compares the shapes of a scale and its zero point; onnxruntime's quantizer writes the scale of a bias with an
axis, and its zero point without.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import LiftConstantsToInitializersPass

from rnn_lowering.decomposition.rewrites.inserting import Inserter
from rnn_lowering.facts.constants import constant_of
from rnn_lowering.facts.operators import default_opset
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


def store_constants(model: ir.Model) -> int:
    """Make initializers of Constants, in place; return their number."""
    before = _number_of_constants(model)
    if before and model.ir_version >= _APART:
        LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    return before - _number_of_constants(model)


_APART = 4
"""The first version of the format in which an initializer is no input."""


def _number_of_constants(model: ir.Model) -> int:
    return sum(scope.function is None for scope, _ in standard_nodes(model, "Constant"))


_OF_INTEGERS = ("QuantizeLinear", "DequantizeLinear")


def shape_as_scales(model: ir.Model) -> int:
    """Give each constant zero point of one number the shape of its scale, in place; return how many had another."""
    opset, insert, changed = default_opset(model.opset_imports), Inserter(model), 0
    for _, node in standard_nodes(model, *_OF_INTEGERS):
        scale, zero = (constant_of(v, opset) if v is not None else None for v in [*node.inputs[1:], None, None][:2])
        if scale is not None and zero is not None and scale.size == zero.size == 1 and scale.shape != zero.shape:
            numbers = zero.numpy().reshape(scale.numpy().shape)
            node.replace_input_with(2, insert.constant(node, numbers, numbers.dtype, "zero_point"))
            changed += 1
    return changed
