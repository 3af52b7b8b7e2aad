"""A model in other element types, to compare with: without rounding to 8 bits (`as_floats`), or wider (`widen`)."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from copy import deepcopy
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from rnn_lowering.emit.draft import Names
from rnn_lowering.model.protobuf import bodies_in, nodes_in
from rnn_lowering.nodes.kinds import DYNAMIC_QUANTIZE_LSTM

_FLOATS = {"MatMulInteger": "MatMul", "ConvInteger": "Conv"}


def as_floats(original: onnx.ModelProto, lowered: onnx.ModelProto) -> onnx.ModelProto | None:
    """Return a model whose products are of floats where those of the lowered model are; None if all are as before.

    The scales stay: x is divided by its own before the product. A DynamicQuantizeLSTM becomes an LSTM.
    """
    kept = {node.output[0] for node in nodes_in(lowered.graph) if node.op_type in _FLOATS}
    products = [n for n in nodes_in(original.graph) if n.op_type in _FLOATS and n.output[0] not in kept]
    if not products:
        return None
    proto = deepcopy(original)
    names = Names(name for node in nodes_in(proto.graph) for name in (*node.input, *node.output))
    names.unique("")
    _rewrite(proto.graph, {node.output[0] for node in products}, names, {})
    return proto


def _rewrite(
    graph: onnx.GraphProto, products: Collection[str], names: Names, outer: dict[str, tuple[str, str]]
) -> None:
    """Rewrite a graph and the bodies in it, in place; `outer` has the nodes that quantize, by their integers."""
    quantizers, nodes = dict(outer), list[onnx.NodeProto]()
    for node in graph.node:
        for body in bodies_in(node):
            _rewrite(body, products, names, quantizers)
        if node.op_type == "DynamicQuantizeLinear":
            quantizers[node.output[0]] = node.input[0], node.output[1]
        if node.op_type == DYNAMIC_QUANTIZE_LSTM:
            nodes += _lstm(node, names)
        elif node.output and node.output[0] in products and node.input[0] in quantizers:
            nodes += _product(node, *quantizers[node.input[0]], names)
        else:
            nodes.append(node)
    changed = [deepcopy(node) for node in nodes]
    del graph.node[:], graph.value_info[:]
    graph.node.extend(changed)


def _product(node: onnx.NodeProto, x: str, scale: str, names: Names) -> Iterator[onnx.NodeProto]:
    divided, weights = names.unique("divided"), names.unique("weights")
    yield helper.make_node("Div", [x, scale], [divided])
    yield helper.make_node("Cast", [node.input[1]], [weights], to=onnx.TensorProto.FLOAT)
    if len(node.input) > 3 and node.input[3]:
        zero, moved = names.unique("zero"), names.unique("moved")
        yield helper.make_node("Cast", [node.input[3]], [zero], to=onnx.TensorProto.FLOAT)
        yield helper.make_node("Sub", [weights, zero], [moved])
        weights = moved
    product = helper.make_node(_FLOATS[node.op_type], [divided, weights], node.output)
    product.attribute.extend(node.attribute)
    yield product


def _lstm(node: onnx.NodeProto, names: Names) -> Iterator[onnx.NodeProto]:
    """Yield an LSTM of the floats of its W and R, whose gates are rows there."""
    X, W, R, B, lengths, H, C, P, *quantized = map(str, node.input)  # the last four must be there
    floats = []
    shape = names.unique("shape")
    yield helper.make_node(
        "Constant", [], [shape], value=helper.make_tensor("", onnx.TensorProto.INT64, [3], [0, 1, -1])
    )
    for integers, scale, zero in ((W, *quantized[:2]), (R, *quantized[2:])):
        parts = [names.unique(name) for name in ("integers", "scale", "zero")]
        for name, part in zip((integers, scale, zero), parts, strict=True):
            yield helper.make_node("Cast", [name], [f"{part}_float"], to=onnx.TensorProto.FLOAT)
            if name != integers:
                yield helper.make_node("Reshape", [f"{part}_float", shape], [part])
        moved, product, turned = (names.unique(name) for name in ("moved", "product", "turned"))
        yield helper.make_node("Sub", [f"{parts[0]}_float", parts[2]], [moved])
        yield helper.make_node("Mul", [moved, parts[1]], [product])
        yield helper.make_node("Transpose", [product], [turned], perm=[0, 2, 1])
        floats.append(turned)
    lstm = helper.make_node("LSTM", [X, *floats, B, lengths, H, C, P], node.output, node.name)
    lstm.attribute.extend(node.attribute)
    yield lstm


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
