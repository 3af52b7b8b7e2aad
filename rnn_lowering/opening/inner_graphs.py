"""Open sizes in the branches of an If and the body of a Scan: what they get from outside, and what they return."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from rnn_lowering.facts.bodies import bodies_of
from rnn_lowering.facts.known import KnownValues
from rnn_lowering.facts.size import Shape

_FIRST_SCAN_WITHOUT_BATCH = 9


@dataclass(frozen=True)
class OuterValue:
    """The value outside that a value of an inner graph comes from. With `rows`, the one outside has that axis too.

    Attributes:
        value: The other value.
        rows: The axis of the rows that are taken one by one; None if both have the same axes.
    """

    value: ir.Value
    rows: int | None = None

    def axis(self, axis: int) -> int:
        """Return the axis of the other value for one of this value."""
        return axis if self.rows is None or axis < self.rows else axis + 1


def is_followed(node: ir.Node, opset: int) -> bool:
    """Whether the sizes in the bodies of a node are followed."""
    return not node.domain and (
        node.op_type == "If" or (node.op_type == "Scan" and opset >= _FIRST_SCAN_WITHOUT_BATCH)
    )


def scan_axes(node: ir.Node) -> tuple[list[int], list[int]]:
    """Return the axes of the rows of each input that a Scan takes apart, and of each output that it stacks."""
    count = node.attributes.get_int("num_scan_inputs", 0) or 0
    states = len(node.inputs) - count
    given = node.attributes.get_ints("scan_input_axes") or [0] * count
    stacked = node.attributes.get_ints("scan_output_axes") or [0] * (len(node.outputs) - states)
    return list(given), list(stacked)


def state_count(node: ir.Node) -> int:
    """Return the number of states of a Scan."""
    return len(node.inputs) - (node.attributes.get_int("num_scan_inputs", 0) or 0)


def given_to(node: ir.Node, known: KnownValues) -> Iterator[tuple[ir.Value, OuterValue]]:
    """Yield each input of the body of a Scan, with the value that it is or is a row of."""
    if node.op_type != "Scan":
        return
    axes = [*[None] * state_count(node), *scan_axes(node)[0]]
    for inner, outer, axis in zip(bodies_of(node)[0].inputs, node.inputs, axes, strict=True):
        if outer is not None:
            rank = len(known.shapes.get(outer, ())) or 1
            yield inner, OuterValue(outer, None if axis is None else axis % rank)


def shape_in(place: OuterValue, known: KnownValues) -> Shape | None:
    """Return the shape of an input of a body."""
    shape = known.shapes.get(place.value)
    if shape is None or place.rows is None:
        return shape
    return (*shape[: place.rows], *shape[place.rows + 1 :])


def returned(node: ir.Node, n: int) -> list[tuple[ir.Value, int | None]]:
    """Return the values in bodies that output n is, or that are its rows, along which axis of the output."""
    values = [body.outputs[n] for body in bodies_of(node)]
    if node.op_type == "If" or n < state_count(node):
        return [(value, None) for value in values]
    return [(value, scan_axes(node)[1][n - state_count(node)]) for value in values]


def shapes_out(node: ir.Node, n: int, known: KnownValues) -> Sequence[Shape]:
    """Return the shapes that output n of a node may have; none where one is unknown."""
    shapes = []
    for value, axis in returned(node, n):
        shape = known.shapes.get(value)
        if shape is None:
            return []
        if axis is not None:
            whole = known.shape(node.inputs[state_count(node)])
            place = axis % (len(shape) + 1)
            shape = (*shape[:place], whole[scan_axes(node)[0][0]], *shape[place:])
        shapes.append(shape)
    return list(dict.fromkeys(shapes))
