"""Concats that stack what each step computed, as torch.stack(ys, 1) is exported."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from rnn_lowering.loops.rolling.numbering import NumberedGraph
from rnn_lowering.loops.rolling.steps import RolledSteps


@dataclass(frozen=True)
class StackedValue:
    """What a Scan stacks.

    Attributes:
        value: The number of a value of a step.
        axis: The axis of the steps in the result.
        backwards: Whether the last step comes first.
    """

    value: int
    axis: int = 0
    backwards: bool = False


@dataclass(frozen=True)
class Join:
    """A Concat of what all steps computed.

    Attributes:
        node: The Concat.
        first: Which input is the first of them.
        stack: What they are together.
    """

    node: ir.Node
    first: int
    stack: StackedValue


def joins_of(steps: RolledSteps) -> Iterator[Join]:
    """Yield each Concat of one value of all steps, in their order or the other way, once."""
    rows = {
        values[number]: (number, t)
        for t, values in enumerate(steps.values)
        for computation in steps.step.body
        for number in computation.outputs
        if number in values
    }
    graph = steps.graph
    readers = dict.fromkeys(use.node for number in rows for value in graph.values[number] for use in value.uses())
    adds_axis = [node for node in readers if _added_axis(graph, node) is not None]
    for concat in dict.fromkeys(use.node for node in adds_axis for use in node.outputs[0].uses()):
        join = _join(graph, concat, rows, len(steps.values))
        if join is not None:
            yield join


def unsqueezed(joins: Iterable[Join], count: int) -> Iterator[ir.Node]:
    """Yield the Unsqueezes that only these joins read, each of `count` steps."""
    joins = [*joins]
    joined = {join.node for join in joins}
    for join in joins:
        for value in join.node.inputs[join.first : join.first + count]:
            node = None if value is None else value.producer()
            if node is not None and all(use.node in joined for use in node.outputs[0].uses()):
                yield node


def _join(graph: NumberedGraph, node: ir.Node, rows: Mapping[int, tuple[int, int]], count: int) -> Join | None:
    axis = node.attributes.get_int("axis", None)
    if node.op_type != "Concat" or node.domain or axis is None:
        return None
    found = [_unsqueezed_row(graph, value, axis, rows) for value in node.inputs]
    first = next((n for n, row in enumerate(found) if row is not None), 0)
    run = [row for row in found[first : first + count] if row is not None]
    order = [t for _, t in run]
    if len({number for number, _ in run}) != 1 or sorted(order) != [*range(count)]:
        return None
    if order not in ([*range(count)], [*range(count)][::-1]):
        return None
    return Join(node, first, StackedValue(run[0][0], axis, order[0] > 0))


def _unsqueezed_row(
    graph: NumberedGraph, value: ir.Value | None, axis: int, rows: Mapping[int, tuple[int, int]]
) -> tuple[int, int] | None:
    """Return which value of which step a Concat along an axis reads through an Unsqueeze."""
    node = None if value is None else value.producer()
    if node is None or node.inputs[0] is None or _added_axis(graph, node) != axis:
        return None
    return rows.get(graph.of(node.inputs[0]))


def _added_axis(graph: NumberedGraph, node: ir.Node) -> int | None:
    """Return the axis that an Unsqueeze adds; None if the node is none."""
    if node.op_type != "Unsqueeze" or node.domain:
        return None
    axes = node.attributes.get_ints("axes", None)
    if axes is None and len(node.inputs) > 1 and node.inputs[1] is not None:
        array = graph.integers.get(graph.of(node.inputs[1]))
        axes = None if array is None else array.ravel().tolist()
    return axes[0] if axes is not None and len(axes) == 1 and axes[0] >= 0 else None
