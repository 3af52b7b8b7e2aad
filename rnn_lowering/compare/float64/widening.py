"""Other element types in a model: float64, to compute in, or float32, where a kernel lacks the type."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from rnn_lowering.model.protobuf import bodies_in

_FLOAT = onnx.TensorProto.FLOAT
"""The type of what ConstantOfShape makes without `value`."""


def widen(graph: Any, narrow: Collection[int], wide: int, folder: str = "") -> None:
    """Convert certain element types of a graph or function to another one, in place.

    Args:
        folder: The folder that the locations of external tensors start from.
    """
    for value in (*getattr(graph, "input", ()), *getattr(graph, "output", ())):
        if isinstance(value, onnx.ValueInfoProto) and value.type.tensor_type.elem_type in narrow:
            value.type.tensor_type.elem_type = wide
    for node in graph.node:
        if node.op_type == "ConstantOfShape" and not node.attribute:
            node.attribute.append(helper.make_attribute("value", helper.make_tensor("", _FLOAT, [1], [0.0])))
    attributes = [(node, attribute) for node in graph.node for attribute in node.attribute]
    for tensor in (*getattr(graph, "initializer", ()), *(a.t for _, a in attributes if a.HasField("t"))):
        if tensor.data_type in narrow:
            array = numpy_helper.to_array(tensor, folder).astype(helper.tensor_dtype_to_np_dtype(wide))
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    for body in (body for node in graph.node for body in bodies_in(node)):
        del body.value_info[:]
        widen(body, narrow, wide, folder)
    for node, attribute in attributes:
        if attribute.name in ("to", "dtype") and attribute.i in narrow:
            attribute.i = wide
        numbers = node.op_type == "Constant" and attribute.name in ("value_float", "value_floats")
        if numbers and onnx.TensorProto.FLOAT in narrow:
            array = np.asarray(helper.get_attribute_value(attribute), helper.tensor_dtype_to_np_dtype(wide))
            attribute.CopyFrom(helper.make_attribute("value", numpy_helper.from_array(array)))
