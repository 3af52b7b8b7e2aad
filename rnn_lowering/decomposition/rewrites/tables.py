"""Tables of integers whose rows become floats, such as quantized embeddings, as tables of floats.

The results are the same numbers: each element becomes a float by itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from rnn_lowering.decomposition.rewrites.inserting import Inserter
from rnn_lowering.facts.constants import constant_of
from rnn_lowering.facts.operators import default_opset, is_of_default_domain, moved_inputs, operator_of
from rnn_lowering.model.model_sizes import take_over
from rnn_lowering.model.replace import drop_unused
from rnn_lowering.model.scopes import standard_nodes
from rnn_lowering.types import Array, array_of, dequantized_numbers


@dataclass(frozen=True)
class IntegerTable:
    """A constant of integers whose elements are moved, and become floats by one scale only.

    Attributes:
        moves: The nodes that move its elements, the one that reads the table first.
        readers: The DequantizeLinear nodes behind them.
        numbers: The table in floats.
    """

    moves: list[ir.Node]
    readers: list[ir.Node]
    numbers: Array


def tables_as_floats(model: ir.Model) -> int:
    """Make floats of tables, in place; return how many DequantizeLinear nodes are left out."""
    inserter, tables = Inserter(model), _tables(model)
    for table in tables:
        _replace(table, inserter)
    return sum(len(table.readers) for table in tables)


def nodes_of_tables(model: ir.Model) -> list[ir.Node]:
    """Return the DequantizeLinear nodes that `tables_as_floats` leaves out; none in a function."""
    return [node for table in _tables(model) for node in table.readers]


def _tables(model: ir.Model) -> list[IntegerTable]:
    opset = default_opset(model.opset_imports)
    readers = [node for scope, node in standard_nodes(model, "DequantizeLinear") if scope.function is None]
    firsts = dict.fromkeys(first for node in readers if (first := _first_move(node)) is not None)
    return [table for first in firsts if (table := _table(first, opset)) is not None]


def _table(first: ir.Node, opset: int) -> IntegerTable | None:
    """Return the table that a node reads; None unless its moved elements become floats by one scale only."""
    moves, readers, pending = [first], list[ir.Node](), [*first.outputs]
    for value in pending:
        for node, index in value.uses():
            if value.is_graph_output() or index or node.graph is not first.graph or node.domain:
                return None
            if _moves(node):
                moves.append(node)
                pending += node.outputs
            elif node.op_type == "DequantizeLinear":
                readers.append(node)
            elif node.op_type not in ("Shape", "Size"):
                return None
    table, scales = _constant(first.inputs[0], opset), {_scale(node, opset) for node in readers}
    scale = scales.pop() if len(scales) == 1 else None
    if table is None or scale is None:
        return None
    factor, zero = scale
    return IntegerTable(moves, readers, dequantized_numbers(table, np.array(factor, np.float32), np.array(zero)))


def _scale(node: ir.Node, opset: int) -> tuple[float, int] | None:
    """Return the scale and the zero point of a DequantizeLinear; None unless both are constants of one number."""
    scale, *zero = (_constant(value, opset) for value in node.inputs[1:])
    if scale is None or scale.size != 1 or scale.dtype != np.float32 or not is_of_default_domain(node):
        return None
    if not zero:
        return float(scale.item()), 0
    return None if zero[0] is None or zero[0].size != 1 else (float(scale.item()), int(zero[0].item()))


def _constant(value: ir.Value | None, opset: int) -> Array | None:
    tensor = None if value is None else constant_of(value, opset)
    return None if tensor is None else array_of(tensor)


def _replace(table: IntegerTable, inserter: Inserter) -> None:
    """Leave out the DequantizeLinear nodes of a table: the elements that move are floats."""
    first, *_ = table.moves
    old = first.inputs[0]
    first.replace_input_with(0, inserter.constant(first, table.numbers, table.numbers.dtype, "floats"))
    for value in (output for move in table.moves for output in move.outputs):
        value.type = ir.TensorType(ir.DataType.FLOAT)
    for node in table.readers:
        integers, *rest = node.inputs
        assert integers is not None
        assert node.graph is not None
        floats = integers
        if node.outputs[0].is_graph_output() and len(list(integers.uses())) > 1:
            floats = inserter.before(node, "Identity", [integers])
        take_over(node.outputs[0], floats)
        node.graph.remove(node, safe=True)
        drop_unused([value for value in rest if value is not None])
    drop_unused([value for value in (old,) if value is not None])


def _first_move(node: ir.Node) -> ir.Node | None:
    """Return the first of the nodes of its graph that only move elements for a node."""
    first, value = None, node.inputs[0]
    while value is not None and (mover := value.producer()) is not None:
        if not _moves(mover) or mover.graph is not node.graph:
            break
        first, value = mover, mover.inputs[0]
    return first


def _moves(node: ir.Node) -> bool:
    """Whether a node only moves elements of its first input."""
    return is_of_default_domain(node) and operator_of(node).moves and moved_inputs(node) == 1
