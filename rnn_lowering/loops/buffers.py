"""Tensors of which each step of a Loop writes a row, by ScatterND: the rows are stacked instead.

Nothing else in the body may depend on the tensor, and step i has to write row i, or the i-th one from the end.
Where there may be more rows than steps, the others are those of the initial tensor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from rnn_lowering.emit.ops import Ops
from rnn_lowering.emit.run_time_sizes import flip
from rnn_lowering.errors import InvalidNodeError, UnsupportedError
from rnn_lowering.loops.body import LoopBody, read_body
from rnn_lowering.loops.body_copy import BodyCopy, LoopLimits
from rnn_lowering.loops.facts import Facts, Known, SizeOrName, TensorKind
from rnn_lowering.loops.trips import Counters, simulated_trips
from rnn_lowering.loops.unrolling import unroll
from rnn_lowering.model.replace import take_over
from rnn_lowering.model.scopes import detach, values_used
from rnn_lowering.spec.node_outputs import MOVING, moved_inputs
from rnn_lowering.spec.node_spec import DEFAULT_DOMAIN
from rnn_lowering.types import Array

_KEEPS_ORDER = ("Identity", "Reshape", "Unsqueeze", "Squeeze", "Flatten", "Expand")
"""Operators that keep the elements and their order where they keep their number."""

_MOST_NODES = 256
"""The most nodes that compute the index of a row."""

_Line = tuple[Array, Array]
"""What a tensor of integers is in step 0, and how much it grows in each step."""


@dataclass(frozen=True)
class Buffer:
    """A state of which each step writes a row.

    Attributes:
        initial: What it is before the Loop.
        row: What a step writes, with axes of size 1 in front.
        axis: The axis of its rows.
        backwards: Whether step 0 writes the last row.
        steps: The number of steps, where that is less than the number of rows.
    """

    initial: ir.Value
    row: ir.Value
    axis: int
    backwards: bool
    steps: int | None

    def emit(self, facts: Facts, op: Ops, rows: ir.Value, final: ir.Value) -> None:
        """Emit what the stacked rows become after the Loop, in the place of the final state."""
        kind, row = facts.kind(self.initial), facts.kind(self.row)
        assert kind is not None
        assert kind.shape is not None
        assert row is not None
        dtype = ir.DataType(kind.element)
        length = kind.shape[self.axis] if self.steps is None else self.steps
        facts.declare(rows, TensorKind(kind.element, (length, *(row.shape or ()))))
        x = op.given(rows, dtype, TensorKind(kind.element, (length, *(row.shape or ()))).dims)
        more = x.rank - len(kind.shape)
        x = op.squeeze(x, list(range(1, 1 + more))) if more else x
        x = flip(op, x) if self.backwards else x
        x = op.transpose(x, [*range(1, self.axis + 1), 0, *range(self.axis + 1, x.rank)]) if self.axis else x
        if self.steps is not None:
            rest = op.slice(op.given(self.initial, dtype, kind.dims), self.axis, self.steps, None)
            x = op.concat([x, rest], self.axis)
        (value,) = [rows] if x.value is rows else op.outputs([x])
        take_over(final, value)
        facts.declare(value, kind)


class Buffers:
    """The states of a Loop of which each step writes a row.

    Args:
        facts: Facts about the model.
        node, body: The Loop and its body.
        op: Emits into a graph of its own, which is dropped.
    """

    def __init__(self, facts: Facts, node: ir.Node, body: ir.Graph, op: Ops) -> None:
        self._facts = facts
        self._node = node
        self._body = body
        self._op = op

    def find(self, n: int) -> Buffer | None:
        """Return a state as such a tensor; None where that is not certain."""
        try:
            with self._op.body():
                return self._find(n)
        except (InvalidNodeError, UnsupportedError):
            return None

    def _find(self, n: int) -> Buffer | None:
        body = self._body
        before, after, initial = body.inputs[2 + n], body.outputs[1 + n], self._node.inputs[2 + n]
        write, kind = after.producer(), self._facts.kind(initial)
        if (
            not self._node.outputs[n].name
            or write is None
            or initial is None
            or kind is None
            or not kind.shape
            or not _writes(write, body, before)
        ):
            return None
        index = write.inputs[1]
        at = self._facts.kind(index)
        columns = at.dims[-1] if at is not None and at.shape else None
        if index is None or columns is None or not 1 <= columns <= len(kind.shape):
            return None
        axis = columns - 1
        row = self._row(write, (*kind.shape[:axis], *kind.shape[columns:]))
        if row is None or not _only_writes(body, before, after, row):
            return None
        read = read_body(self._node, "", self._facts.opset)
        assert isinstance(read, LoopBody)
        copy = BodyCopy(self._op, self._facts, unroll, LoopLimits(0, 0))
        copy.bring_constants([body])
        items = [copy.item(value) for value in self._node.inputs]
        counters, size = Counters(copy, read, items), kind.dims[axis]
        steps = simulated_trips(copy, read, items)
        whole = counters.fills(initial, axis) if steps is None else steps == size
        if not whole and (steps is None or size is None or not 0 < steps < size):
            return None
        front = kind.dims[:axis]
        if self._is_at(body, index, counters.counts, front):
            return Buffer(initial, row, axis, backwards=False, steps=None if whole else steps)
        last = whole and self._is_at(body, index, lambda v: counters.counts_down(v, initial, axis), front)
        return Buffer(initial, row, axis, backwards=True, steps=None) if last else None

    def _row(self, write: ir.Node, shape: tuple[SizeOrName, ...]) -> ir.Value | None:
        """Return the first value that has the elements of what is written, in the shape of a row."""
        value, found = write.inputs[2], None
        while value is not None:
            node, kind = value.producer(), self._facts.kind(value)
            if node is None or node.graph is not write.graph:
                break
            given = None if kind is None else kind.shape
            more = 0 if given is None else len(given) - len(shape)
            if given is not None and given == (*[1] * more, *shape) and None not in given:
                found = value
            if node.domain not in DEFAULT_DOMAIN or node.op_type not in _KEEPS_ORDER:
                break
            value = node.inputs[0]
        return found

    def _is_at(
        self, body: ir.Graph, index: ir.Value, counts: Callable[[ir.Value], bool], front: tuple[int | None, ...]
    ) -> bool:
        """Whether an index is that of each element of a row, in order.

        Args:
            body, index: The body, and the index that it computes.
            counts: Whether a value is the number of the row.
            front: The sizes before the axis of the rows.
        """
        nodes, columns = _behind(body, index), len(front) + 1
        if len(nodes) > _MOST_NODES:
            return False
        lines = self._counted(body.inputs, counts)
        for node in nodes:
            lines |= dict(zip(node.outputs, self._lines(node, lines), strict=False))
            lines |= self._counted(node.outputs, counts)
        sizes = [size for size in front if size is not None]
        if index not in lines or len(sizes) < len(front) or lines[index][0].size != math.prod(sizes) * columns:
            return False
        start, growth = (each.reshape(-1, columns) for each in lines[index])
        places = [[*place, 0] for place in np.ndindex(*sizes)]
        return start.size > 0 and np.array_equal(start, places) and bool(np.all(growth == [*[0] * len(sizes), 1]))

    def _counted(self, values: Sequence[ir.Value], counts: Callable[[ir.Value], bool]) -> dict[ir.Value, _Line]:
        """Return which values are the number of the row."""
        kinds = {value: self._facts.kind(value) for value in values}
        arrays = {
            value: np.zeros([1] * len(kind.shape), ir.DataType(kind.element).numpy())
            for value, kind in kinds.items()
            if kind is not None and kind.shape is not None and {*kind.shape} <= {1} and counts(value)
        }
        return {value: (array, array + 1) for value, array in arrays.items()}

    def _lines(self, node: ir.Node, lines: dict[ir.Value, _Line]) -> list[_Line]:
        """Return what a node computes; nothing where its numbers are not known."""
        known = [self._facts.known(value) for value in node.outputs]
        if all(item is not None for item in known):
            return [(item.array, np.zeros_like(item.array)) for item in known if item is not None]
        given: list[_Line | None] = []
        for value in node.inputs:
            item = None if value is None else self._facts.known(value)
            constant = None if item is None else (item.array, np.zeros_like(item.array))
            given.append(constant if value is None else lines.get(value, constant))
        if None in given or node.domain not in DEFAULT_DOMAIN:
            return []
        starts, growths = ([Known(line[part]) for line in given if line is not None] for part in (0, 1))
        linear = len(given) if node.op_type in ("Add", "Sub") else moved_inputs(node) * (node.op_type in MOVING)
        if node.op_type in ("Shape", "Size"):
            growths = starts
        elif any(item.array.any() for item in growths[linear:]):
            return []
        found = self._facts.evaluate(node, starts)
        if found is None or node.op_type in ("Shape", "Size") or not any(g.array.any() for g in growths):
            return [(array, np.zeros_like(array)) for array in found or ()]
        grown = self._facts.evaluate(node, [*growths[:linear], *starts[linear:]])
        return list(zip(found, grown or (), strict=False))


def _writes(write: ir.Node, body: ir.Graph, before: ir.Value) -> bool:
    """Whether a node puts elements into a state."""
    plain = write.attributes.get_string("reduction", "none") == "none"
    standard = write.domain in DEFAULT_DOMAIN and write.op_type == "ScatterND" and len(write.inputs) == 3
    return standard and plain and write.graph is body and write.inputs[0] is before


def _users(body: ir.Graph, value: ir.Value) -> dict[ir.Node, None]:
    """Return the nodes of a body that depend on a value."""
    depends, users = {value}, dict[ir.Node, None]()
    for node in body:
        if not depends.isdisjoint(values_used(node)):
            users[node] = None
            depends.update(node.outputs)
    return users


def _only_writes(body: ir.Graph, before: ir.Value, after: ir.Value, row: ir.Value) -> bool:
    """Whether a body returns nothing that depends on a state but the state."""
    depends = {before, *(value for node in _users(body, before) for value in node.outputs)}
    returned = list(body.outputs)
    return returned.count(after) == 1 and depends.isdisjoint({*returned, row} - {after})


def drop_users(body: ir.Graph, value: ir.Value) -> None:
    """Drop the nodes of a body that depend on a value."""
    for node in reversed(_users(body, value)):
        detach(node)
        body.remove(node, safe=False)


def _behind(body: ir.Graph, value: ir.Value) -> list[ir.Node]:
    """Return the nodes of a body that compute a value, in order."""
    values, pending = set[ir.Value](), [value]
    while pending:
        current = pending.pop()
        node = current.producer()
        if current not in values and node is not None and node.graph is body:
            pending += [given for given in node.inputs if given is not None]
        values.add(current)
    return [node for node in body if not values.isdisjoint(node.outputs)]
