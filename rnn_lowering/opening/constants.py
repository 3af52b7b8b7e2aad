"""Constants that have any number of rows: equal ones, such as zeros, and positions 0, 1, 2 and so on."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from rnn_lowering.types import Array

_FIRST_WITH_AXES = 13
"""First opset whose Unsqueeze has its axes as an input."""

_FEWEST = 3
"""Fewer positions may be something else."""


def rows_are_equal(array: Array, axis: int) -> bool:
    """Whether an array has rows, and all are equal."""
    return array.shape[axis] > 0 and bool((array == np.take(array, [0], axis)).all())


def rows_count(array: Array, axis: int) -> bool:
    """Whether the rows of an array are the numbers 0, 1, 2 and so on."""
    rows = array.shape[axis]
    is_list = array.dtype.kind in "iu" and array.size == rows >= _FEWEST
    return is_list and bool((array.reshape(-1) == np.arange(rows)).all())


def let_grow(
    reader: ir.Node, value: ir.Value, array: Array, axis: int, opset: int, name: Callable[[str], str]
) -> bool:
    """Compute a constant before a reader by nodes whose numbers say how many rows there are; return whether that is
    possible.

    Args:
        reader: The node that reads it.
        value: The constant.
        array: What it holds.
        axis: The axis of the rows.
        opset: The opset of the model.
        name: Returns a name for a node of an operator.
    """
    if rows_are_equal(array, axis):
        row, shape = np.take(array, [0], axis), np.array(array.shape, np.int64)
        nodes = [_constant(row), _constant(shape)]
        nodes.append(ir.node("Expand", [node.outputs[0] for node in nodes]))
    elif rows_count(array, axis):
        nodes = [_constant(np.array(n, array.dtype)) for n in (0, array.size, 1)]
        nodes.append(ir.node("Range", [node.outputs[0] for node in nodes]))
        others = [n for n in range(array.ndim) if n != axis]
        if others and opset >= _FIRST_WITH_AXES:
            nodes.append(_constant(np.array(others, np.int64)))
            nodes.append(ir.node("Unsqueeze", [nodes[3].outputs[0], nodes[4].outputs[0]]))
        elif others:
            nodes.append(ir.node("Unsqueeze", [nodes[3].outputs[0]], {"axes": others}))
    else:
        return False
    assert reader.graph is not None
    for node in nodes:
        node.name = node.outputs[0].name = name(f"open/{node.op_type}")
        reader.graph.insert_before(reader, node)
    for slot, used in enumerate(reader.inputs):
        if used is value:
            reader.replace_input_with(slot, nodes[-1].outputs[0])
    return True


def _constant(array: Array) -> ir.Node:
    return ir.node("Constant", [], {"value": ir.tensor(array)})
