"""Pad by constants with its mode, a pad for each axis and the number that fills: ncnn loads no other."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from rnn_lowering.decomposition.rewrites.inserting import Inserter
from rnn_lowering.facts.constants import constant_of
from rnn_lowering.facts.operators import default_opset
from rnn_lowering.model.model_sizes import inferred_values
from rnn_lowering.model.scopes import standard_nodes

_OF_INPUTS = 11
"""The first opset of a Pad whose pads are an input."""


def spell_pads(model: ir.Model) -> int:
    """Write each constant Pad of a value of known type and rank in full, in place; return their number."""
    opset = default_opset(model.opset_imports)
    found = [
        node
        for scope, node in standard_nodes(model, "Pad")
        if scope.function is None
        and opset >= _OF_INPUTS
        and node.attributes.get_string("mode", "constant") == "constant"
    ]
    known, inserter = dict(inferred_values(model)) if found else {}, Inserter(model)
    return sum(_spell(node, opset, known, inserter) for node in found)


def _spell(node: ir.Node, opset: int, known: dict[ir.Value, ir.Value], inserter: Inserter) -> bool:
    x, pads, number, axes = [*node.inputs, None, None][:4]
    value = None if x is None else known.get(x, x)
    if value is None or value.shape is None or value.dtype is None or pads is None:
        return False
    widths = None if pads is None else constant_of(pads, opset)
    along = None if axes is None else constant_of(axes, opset)
    if widths is None or (axes is not None and along is None):
        return False
    if number is not None and axes is None and "mode" in node.attributes:
        return False
    rank = len(value.shape)
    chosen = range(rank) if along is None else [int(axis) % rank for axis in along.numpy()]
    full = np.zeros((2, rank), np.int64)
    full[:, list(chosen)] = widths.numpy().reshape(2, -1)
    node.attributes["mode"] = ir.AttrString("mode", "constant")
    fill = number if number is not None else inserter.constant(node, 0, value.dtype.numpy(), "fill")
    node.resize_inputs(3)
    node.replace_input_with(1, inserter.constant(node, full.reshape(-1)))
    node.replace_input_with(2, fill)
    return True
