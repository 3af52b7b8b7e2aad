"""A Softmax over an open number of keys, set apart from its products for runtimes that join them and are wrong."""

from __future__ import annotations

import onnx_ir as ir

from rnn_lowering.emit.draft import Names
from rnn_lowering.facts.operators import default_opset
from rnn_lowering.model.scopes import all_names
from rnn_lowering.streaming.operators.in_place_of import InPlaceOf

_ANY_AXIS_OPSET = 13
"""The first opset whose Softmax does not flatten the axes behind its own."""


def set_softmax_apart(model: ir.Model) -> None:
    """Put an Unsqueeze before each Softmax over an axis of open size, and a Squeeze behind it."""
    opset = default_opset(model.opset_imports)
    nodes = [node for node in model.graph.all_nodes() if node.op_type == "Softmax" and node.domain == ""]
    names = Names(all_names(model)) if nodes else None
    for node in nodes:
        value = node.inputs[0]
        axis = node.attributes.get_int("axis", -1 if opset >= _ANY_AXIS_OPSET else 1) or 0
        if names is None or value is None or (value.shape is not None and isinstance(value.shape[axis], int)):
            continue
        emit = InPlaceOf(node, names, opset)
        weights = emit("Softmax", emit("Unsqueeze", value, axes=[0]), axis=axis if axis < 0 else axis + 1)
        emit.replace(emit("Squeeze", weights, axes=[0]))
