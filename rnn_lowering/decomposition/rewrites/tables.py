"""Tables of integers whose rows become floats, such as quantized embeddings, as tables of floats.

The results are the same numbers: each element becomes a float by itself.
"""

from __future__ import annotations

import onnx_ir as ir

from rnn_lowering.decomposition.rewrites.inserting import Inserter
from rnn_lowering.facts.constants import constant_of
from rnn_lowering.facts.operators import default_opset, is_of_default_domain
from rnn_lowering.model.model_sizes import take_over
from rnn_lowering.model.replace import drop_unused
from rnn_lowering.model.scopes import standard_nodes
from rnn_lowering.types import array_of, dequantized_numbers

_MOVES = ("Gather", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze")
"""Operators that move the elements of their first input."""


def tables_as_floats(model: ir.Model) -> int:
    """Make floats of tables, in place; return how many DequantizeLinear nodes are left out."""
    opset, inserter, nodes = default_opset(model.opset_imports), Inserter(model), nodes_of_tables(model)
    for node in nodes:
        _replace(node, opset, inserter)
    return len(nodes)


def nodes_of_tables(model: ir.Model) -> list[ir.Node]:
    """Return the DequantizeLinear nodes that `tables_as_floats` leaves out; none in a function."""
    opset = default_opset(model.opset_imports)
    nodes = [node for scope, node in standard_nodes(model, "DequantizeLinear") if scope.function is None]
    return [node for node in nodes if _fits(node, opset)]


def _fits(node: ir.Node, opset: int) -> bool:
    """Return whether a DequantizeLinear has one scale, and its integers are moved elements of a constant."""
    moves, tensors = _moves(node), [None if v is None else constant_of(v, opset) for v in node.inputs[1:]]
    if not moves or moves[0].inputs[0] is None or len(tensors) != 2:
        return False
    scale, zero = tensors
    if scale is None or zero is None or scale.dtype != ir.DataType.FLOAT or scale.size != 1 or zero.size != 1:
        return False
    return constant_of(moves[0].inputs[0], opset) is not None


def _replace(node: ir.Node, opset: int, inserter: Inserter) -> None:
    """Leave out a DequantizeLinear: the elements that move are floats."""
    moves, graph, inputs = _moves(node), node.graph, [value for value in node.inputs if value is not None]
    old = moves[0].inputs[0]
    assert old is not None
    assert isinstance(graph, ir.Graph)
    table, scale, zero = (constant_of(value, opset) for value in (old, *inputs[1:]))
    assert table is not None
    assert scale is not None
    assert zero is not None
    parts = [array_of(table), array_of(scale).reshape(()), array_of(zero).reshape(())]
    numbers = dequantized_numbers(*parts)
    floats = inserter.constant(node, numbers, numbers.dtype, "floats")
    moves[0].replace_input_with(0, floats)
    for move in moves:
        move.outputs[0].type = _FLOAT
    take_over(node.outputs[0], moves[-1].outputs[0])
    graph.remove(node, safe=True)
    drop_unused([old, *inputs[1:]])


def _moves(node: ir.Node) -> list[ir.Node]:
    """Return the nodes of its graph that only move elements for a node, in order."""
    moves, value = list[ir.Node](), node.inputs[0]
    while value is not None and (mover := value.producer()) is not None:
        alone = len(list(value.uses())) == 1 and not value.is_graph_output() and mover.graph is node.graph
        if mover.op_type not in _MOVES or not is_of_default_domain(mover) or not alone:
            break
        moves.insert(0, mover)
        value = mover.inputs[0]
    return moves


_FLOAT = ir.TensorType(ir.DataType.FLOAT)
