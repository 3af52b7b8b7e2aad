"""Rows of a tensor that a model splits into a sequence, as Gather: few runtimes have sequences.

PyTorch's newer exporter takes the layers of a state so.
"""

from __future__ import annotations

import onnx_ir as ir

from rnn_lowering.decomposition.rewrites.inserting import Inserter
from rnn_lowering.facts.constants import constant_of
from rnn_lowering.facts.operators import is_of_default_domain
from rnn_lowering.model.model_sizes import take_over
from rnn_lowering.model.scopes import standard_nodes


def rows_taken(model: ir.Model) -> set[ir.Node]:
    """Return the nodes that `rows_by_gather` replaces."""
    return {node for pair in _rows(model) for node in pair}


def _rows(model: ir.Model) -> list[tuple[ir.Node, ir.Node]]:
    found = standard_nodes(model, "SequenceAt")
    return [(node, split) for scope, node in found if (split := _split_before(node, scope.opset))]


def rows_by_gather(model: ir.Model) -> int:
    """Write, in place, each SequenceAt of a tensor that is split into its rows as Gather; return their number."""
    found = _rows(model)
    if not found:
        return 0
    inserter = Inserter(model)
    for node, split in found:
        assert isinstance(node.graph, ir.Graph)
        axis = split.attributes.get_int("axis", 0)
        row = inserter.before(node, "Gather", [split.inputs[0], node.inputs[1]], {"axis": axis})
        if split.attributes.get_int("keepdims", 1):
            row = inserter.before(node, "Unsqueeze", [row, inserter.constant(node, [axis])])
        take_over(node.outputs[0], row)
        node.graph.remove(node, safe=True)
    for split in {split for _, split in found}:
        if not split.outputs[0].uses() and not split.outputs[0].is_graph_output() and split.graph is not None:
            split.graph.remove(split, safe=True)
    return len(found)


def _split_before(node: ir.Node, opset: int) -> ir.Node | None:
    """Return the SplitToSequence whose rows a SequenceAt takes; None if it takes others."""
    split = None if node.inputs[0] is None else node.inputs[0].producer()
    if split is None or split.op_type != "SplitToSequence" or not is_of_default_domain(split):
        return None
    size = split.inputs[1] if len(split.inputs) > 1 else None
    if size is None:
        return split
    number = constant_of(size, opset)
    is_row = number is not None and not number.shape and number.numpy().item() == 1
    # ONNX ignores keepdims = 0 here, and onnxruntime does not: such a node stays.
    return split if is_row and split.attributes.get_int("keepdims", 1) else None
