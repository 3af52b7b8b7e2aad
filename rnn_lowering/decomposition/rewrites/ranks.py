"""Resize and norms of three axes in rank 4, with an axis of size 1.

OpenCV runs a Resize in rank 4 only, and these norms behind a Conv, whose layout they read; ncnn runs all in rank 4.
A linear Resize of a height of 1 reads other memory in OpenCV; of a width of 1 it is right.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from rnn_lowering.decomposition.rewrites.inserting import Inserter
from rnn_lowering.facts.constants import constant_of
from rnn_lowering.facts.operators import default_opset
from rnn_lowering.model.model_sizes import inferred_values, take_over
from rnn_lowering.model.scopes import standard_nodes
from rnn_lowering.types import array_of

_AXES_OF_INPUTS = 13
"""The first opset of an Unsqueeze whose axes are an input."""

_NORMS = ("GroupNormalization", "InstanceNormalization")

_SCALES = 2
"""The input of scales of a Resize; that of sizes is the next."""


def run_in_rank_4(model: ir.Model) -> int:
    """Write each such node of three axes in rank 4, in place; return their number."""
    opset = default_opset(model.opset_imports)
    found = [node for scope, node in standard_nodes(model, "Resize", *_NORMS) if scope.opset >= _AXES_OF_INPUTS]
    if not found:
        return 0
    known, inserter = inferred_values(model), Inserter(model)
    count = 0
    for node in found:
        x = node.inputs[0]
        shape = None if x is None else known.get(x, x).shape
        others = _others(node, opset, inserter) if shape is not None and len(shape) == 3 else None
        if x is not None and others is not None:
            _rewrite(node, x, others, inserter)
            count += 1
    return count


def _others(node: ir.Node, opset: int, inserter: Inserter) -> Sequence[ir.Value | None] | None:
    """Return the other inputs of a node in rank 4; None if it cannot be written so."""
    if node.op_type in _NORMS:
        return node.inputs[1:]
    place = next((n for n, value in enumerate(node.inputs) if n >= _SCALES and value is not None), None)
    given = None if place is None else node.inputs[place]
    constant = None if given is None else constant_of(given, opset)
    if place is None or constant is None or constant.size != 3 or node.inputs[1] is not None:
        return None
    if "axes" in node.attributes:
        return None
    numbers = array_of(constant)
    return [*[None] * (place - 1), inserter.constant(node, np.append(numbers, 1), numbers.dtype)]


def _rewrite(node: ir.Node, x: ir.Value, others: Sequence[ir.Value | None], inserter: Inserter) -> None:
    axis = inserter.constant(node, [3 if node.op_type == "Resize" else 2])
    longer = inserter.before(node, "Unsqueeze", [x, axis])
    result = inserter.before(node, node.op_type, [longer, *others], dict(node.attributes))
    take_over(node.outputs[0], inserter.before(node, "Squeeze", [result, axis]))
    assert isinstance(node.graph, ir.Graph)
    node.graph.remove(node, safe=True)
