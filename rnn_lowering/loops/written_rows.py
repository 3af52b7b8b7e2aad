"""Find which rows of a tensor the steps write with ScatterND: step i row i, or the i-th row from the end.

Where there may be more rows than steps, the others are those of the initial tensor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from rnn_lowering.emit.ops import Ops
from rnn_lowering.errors import InvalidNodeError, UnsupportedError
from rnn_lowering.loops.body import LoopBody
from rnn_lowering.loops.body_copy import BodyCopy
from rnn_lowering.loops.body_repetition import unroll
from rnn_lowering.loops.body_values import LoopLimits
from rnn_lowering.loops.facts import Facts, Known, SizeOrName
from rnn_lowering.loops.step_counters import STEP, Counters, Line
from rnn_lowering.loops.trips import runs_once_per_row, simulated_trips
from rnn_lowering.spec.node_outputs import MOVING, moved_inputs
from rnn_lowering.spec.node_spec import DEFAULT_DOMAIN
from rnn_lowering.types import Array

_KEEPS_ORDER = ("Identity", "Reshape", "Unsqueeze", "Squeeze", "Flatten", "Expand")
"""Operators that keep the elements and their order where they keep their number."""

_MOST_NODES = 256
"""The most nodes that compute the index of a row."""

_GrowingArray = tuple[Array, Array]
"""The value of a tensor of integers in step 0, and its growth in each step."""


@dataclass(frozen=True)
class WrittenRows:
    """The rows that the steps write into a tensor.

    Attributes:
        row: What a step writes, with axes of size 1 in front.
        ones: The number of those.
        axis: The axis of the rows in the tensor.
        backwards: Whether step 0 writes the last row.
        steps: The number of steps, where that is less than the number of rows.
    """

    row: ir.Value
    ones: int
    axis: int
    backwards: bool
    steps: int | None


def written_rows(facts: Facts, read: LoopBody, write: ir.Node, initial: ir.Value, op: Ops) -> WrittenRows | None:
    """Return the rows that a ScatterND in the body of a Loop writes; None where that is not certain.

    Args:
        facts: Facts about the model.
        read: The Loop.
        write: The ScatterND.
        initial: The tensor before the first step.
        op: Emits into a graph of its own, which is dropped.
    """
    try:
        with op.body():
            return _written_rows(facts, read, write, initial, op)
    except (InvalidNodeError, UnsupportedError):
        return None


def _written_rows(facts: Facts, read: LoopBody, write: ir.Node, initial: ir.Value, op: Ops) -> WrittenRows | None:
    index, kind = write.inputs[1], facts.kind(initial)
    at = facts.kind(index)
    columns = at.dims[-1] if at is not None and at.shape else None
    if index is None or kind is None or not kind.shape or columns is None or not 1 <= columns <= len(kind.shape):
        return None
    axis = columns - 1
    row, ones = _row(facts, write, (*kind.shape[:axis], *kind.shape[columns:]))
    if row is None:
        return None
    copy = BodyCopy(op, facts, unroll, LoopLimits(0, 0))
    copy.bring_constants([read.body])
    items = [copy.item(value) for value in read.node.inputs]
    counters, length, front = Counters(copy, read, items), kind.dims[axis], kind.dims[:axis]
    steps = simulated_trips(copy, read, items)
    fills = runs_once_per_row(counters, initial, axis) if steps is None else steps == length
    if not fills and (steps is None or length is None or not 0 < steps < length):
        return None
    if _is_index_of_row(counters, index, STEP, front):
        return WrittenRows(row, ones, axis, backwards=False, steps=None if fills else steps)
    rows = counters.count_of_rows(initial, axis)
    if not fills or rows is None or not _is_index_of_row(counters, index, rows.plus(Line(-1, rate=-1)), front):
        return None
    return WrittenRows(row, ones, axis, backwards=True, steps=None)


def _row(facts: Facts, write: ir.Node, shape: tuple[SizeOrName, ...]) -> tuple[ir.Value | None, int]:
    """Return the value behind the one that is written that has the shape of a row, and the number of axes of size 1
    in front of it."""
    value = write.inputs[2]
    found: tuple[ir.Value | None, int] = None, 0
    while value is not None:
        node, kind = value.producer(), facts.kind(value)
        if node is None or node.graph is not write.graph:
            break
        given = None if kind is None else kind.shape
        ones = 0 if given is None else len(given) - len(shape)
        if given is not None and given == (*[1] * ones, *shape) and None not in given:
            found = value, ones
        if node.domain not in DEFAULT_DOMAIN or node.op_type not in _KEEPS_ORDER:
            break
        value = node.inputs[0]
    return found


def _is_index_of_row(counters: Counters, index: ir.Value, number: Line, front: tuple[int | None, ...]) -> bool:
    """Whether an index is that of each element of a row, in order.

    Args:
        counters: The numbers of the Loop.
        index: The index, of the body.
        number: The number of the row.
        front: The sizes before the axis of the rows.
    """
    body, columns = counters.read.body, len(front) + 1
    nodes = _nodes_behind(body, index)
    if len(nodes) > _MOST_NODES:
        return False
    arrays = _numbers(counters, body.inputs, number)
    for node in nodes:
        arrays |= dict(zip(node.outputs, _computed(counters.copy.facts, node, arrays), strict=False))
        arrays |= _numbers(counters, node.outputs, number)
    sizes = [size for size in front if size is not None]
    if index not in arrays or len(sizes) < len(front) or arrays[index][0].size != math.prod(sizes) * columns:
        return False
    start, growth = (each.reshape(-1, columns) for each in arrays[index])
    places = [[*place, 0] for place in np.ndindex(*sizes)]
    return start.size > 0 and np.array_equal(start, places) and bool(np.all(growth == [*[0] * len(sizes), 1]))


def _nodes_behind(body: ir.Graph, value: ir.Value) -> list[ir.Node]:
    """Return the nodes of a body that compute a value, in order."""
    values, pending = set[ir.Value](), [value]
    while pending:
        current = pending.pop()
        node = current.producer()
        if current not in values and node is not None and node.graph is body:
            pending += [given for given in node.inputs if given is not None]
        values.add(current)
    return [node for node in body if not values.isdisjoint(node.outputs)]


def _numbers(counters: Counters, values: Sequence[ir.Value], number: Line) -> dict[ir.Value, _GrowingArray]:
    """Return which values are the number of the row, counted from that of step 0."""
    found: dict[ir.Value, _GrowingArray] = {}
    for value in values:
        kind = counters.copy.facts.kind(value)
        if kind is not None and kind.shape is not None and {*kind.shape} <= {1} and counters.line(value) == number:
            array = np.zeros([1] * len(kind.shape), ir.DataType(kind.element).numpy())
            found[value] = array, array + 1
    return found


def _computed(facts: Facts, node: ir.Node, arrays: dict[ir.Value, _GrowingArray]) -> list[_GrowingArray]:
    """Return the outputs of a node; nothing if its numbers are not known."""
    known = [facts.known(value) for value in node.outputs]
    if all(item is not None for item in known):
        return [(item.array, np.zeros_like(item.array)) for item in known if item is not None]
    given: list[_GrowingArray | None] = []
    for value in node.inputs:
        item = None if value is None else facts.known(value)
        constant = None if item is None else (item.array, np.zeros_like(item.array))
        given.append(constant if value is None else arrays.get(value, constant))
    if None in given or node.domain not in DEFAULT_DOMAIN:
        return []
    starts, growths = ([Known(array[part]) for array in given if array is not None] for part in (0, 1))
    linear = len(given) if node.op_type in ("Add", "Sub") else moved_inputs(node) * (node.op_type in MOVING)
    if node.op_type in ("Shape", "Size"):
        growths = starts
    elif any(item.array.any() for item in growths[linear:]):
        return []
    found = facts.evaluate(node, starts)
    if found is None or node.op_type in ("Shape", "Size") or not any(g.array.any() for g in growths):
        return [(array, np.zeros_like(array)) for array in found or ()]
    grown = facts.evaluate(node, [*growths[:linear], *starts[linear:]])
    return list(zip(found, grown or (), strict=False))
