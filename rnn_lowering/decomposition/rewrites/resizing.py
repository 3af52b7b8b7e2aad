"""Resize of rank 3 as one of rank 4, with an axis of size 1 before the last: OpenCV runs only those."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from rnn_lowering.decomposition.rewrites.inserting import Inserter
from rnn_lowering.facts.constants import constant_of
from rnn_lowering.facts.operators import default_opset
from rnn_lowering.model.model_sizes import Inferred, inferred_values, take_over
from rnn_lowering.model.scopes import standard_nodes
from rnn_lowering.types import array_of

_AXES_OF_INPUTS = 13
"""The first opset of an Unsqueeze whose axes are an input."""

_SCALES = 2
"""The input of scales; that of sizes is the next."""


def resize_in_rank_4(model: ir.Model) -> int:
    """Write each Resize of three axes by constant scales or sizes in rank 4, in place; return their number."""
    opset = default_opset(model.opset_imports)
    found = [node for scope, node in standard_nodes(model, "Resize") if scope.opset >= _AXES_OF_INPUTS]
    if not found:
        return 0
    known, inserter = inferred_values(model), Inserter(model)
    return sum(_rewrite(node, opset, known, inserter) for node in found)


def _rewrite(node: ir.Node, opset: int, known: Inferred, inserter: Inserter) -> bool:
    x, roi = node.inputs[:2]
    place = next((n for n, value in enumerate(node.inputs) if n >= _SCALES and value is not None), None)
    shape = None if x is None else known.get(x, x).shape
    given = None if place is None else node.inputs[place]
    constant = None if given is None else constant_of(given, opset)
    known_parts = shape is not None and constant is not None and constant.size == len(shape) == 3
    if x is None or place is None or constant is None or not known_parts:
        return False
    if roi is not None or "axes" in node.attributes:
        return False
    numbers = array_of(constant)
    longer = inserter.constant(node, np.insert(numbers, 2, 1), numbers.dtype)
    axis = inserter.constant(node, [2])
    inputs = [inserter.before(node, "Unsqueeze", [x, axis]), *[None] * (place - 1), longer]
    resized = inserter.before(node, "Resize", inputs, dict(node.attributes))
    take_over(node.outputs[0], inserter.before(node, "Squeeze", [resized, axis]))
    assert isinstance(node.graph, ir.Graph)
    node.graph.remove(node, safe=True)
    return True
