"""Writes rolled steps as a Scan in the place of their nodes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import onnx_ir as ir

from rnn_lowering.emit.draft import Names
from rnn_lowering.facts.operators import inputs_and_attributes, is_used
from rnn_lowering.loops.rolling.numbering import Computation, NumberedGraph
from rnn_lowering.loops.rolling.steps import RolledSteps, Row, StepCount
from rnn_lowering.model.model_sizes import Inferred, inferred_values, take_over
from rnn_lowering.model.replace import drop_unused
from rnn_lowering.model.scopes import add_constant
from rnn_lowering.types import Array

_INTEGER = ir.TensorType(ir.DataType.INT64)


def name_of(steps: RolledSteps) -> str:
    """Return a name for a loop: where the first product of its steps stands, as exporters name their nodes."""
    number = next(values[n] for values in steps.values for n in steps.product.outputs if n in values)
    first = steps.graph.producers[number].node
    return str(first.name).rpartition("/")[0] or f"{first.name or first.op_type}_steps"


class ScanWriter:
    """Writes the Scan of some steps.

    Args:
        steps: The steps.
        model: The model of their graph.
        names: Gives names.
    """

    def __init__(self, steps: RolledSteps, model: ir.Model, names: Names) -> None:
        self.steps, self.graph, self.model, self.names = steps, steps.graph, model, names
        self.name = names.unique(name_of(steps))

    def write(self) -> None:
        """Put the Scan in the place of the steps. The nodes of the graph are not sorted then."""
        joins = [*_joins_of(self.steps)]
        replaced = {*self._traced(), *_unsqueezed(joins, self._count), *(join.node for join in joins)}
        last, states = self.steps.values[-1], self.steps.step.states
        finals = {last[after]: state for state, after in states.items() if after in last}
        uses = self._needed([*self._outside(replaced)])
        stacked = {n for n, t, _ in uses if t < self._count - 1 or last[n] not in finals}
        stacks = [*dict.fromkeys([*(join.stack for join in joins), *map(_StackedValue, sorted(stacked))])]
        scan = self._scan(stacks)
        outputs = dict(zip([*states, *stacks], scan.outputs, strict=True))
        for join in joins:
            self._replace(join, outputs[join.stack])
        for number, t, value in uses:
            if number in stacked:
                self._take_over(
                    value, self._emit("Gather", [outputs[_StackedValue(number)], self.constant(t)], axis=0)
                )
        for number, state in finals.items():
            for value in self.graph.values[number]:
                if self._is_read(value, {*replaced, scan}):
                    self._take_over(value, outputs[state])
        unused = (value for node in replaced for value in node.outputs)
        drop_unused([*unused])

    # What is read of the graph

    @property
    def _count(self) -> int:
        return len(self.steps.values)

    def _traced(self) -> Iterator[ir.Node]:
        """Yield the nodes of the steps."""
        for values in self.steps.values:
            for computation in self.steps.step.body:
                if computation.outputs[0] in values:
                    yield from self.graph.producers[values[computation.outputs[0]]].nodes

    @staticmethod
    def _is_read(value: ir.Value, nodes: Collection[ir.Node]) -> bool:
        """Whether the caller or another node than these reads a value."""
        return value.is_graph_output() or any(use.node not in nodes for use in value.uses())

    def _outside(self, replaced: Collection[ir.Node]) -> Iterator[tuple[int, int, ir.Value]]:
        """Yield each value of a step that is read outside: what it is, its step, and the value."""
        for number in (number for computation in self.steps.step.body for number in computation.outputs):
            for t, values in enumerate(self.steps.values):
                for value in self.graph.values[values[number]] if number in values else ():
                    if self._is_read(value, replaced):
                        yield number, t, value

    def _needed(self, uses: list[tuple[int, int, ir.Value]]) -> list[tuple[int, int, ir.Value]]:
        """Return the uses for which the Scan must stack a value. One that no state decides, or that only the first
        step has, as the product of first states that two loops share, is computed as it was."""
        step = self.steps.step
        of_states, later = {*step.states}, {*step.states.values(), *(number for number, t, _ in uses if t)}
        for computation in step.body:
            if not of_states.isdisjoint(computation.inputs):
                of_states.update(computation.outputs)
        return [use for use in uses if use[0] in of_states and use[0] in later]

    # What is written

    @cached_property
    def kinds(self) -> Inferred:
        """Values with the types and shapes of those of the model, as far as they follow from its inputs."""
        return inferred_values(self.model)

    def _value(self, number: int) -> ir.Value:
        return self.graph.values[number][0]

    def _kind(self, number: int) -> ir.Value:
        """Return a value with the type and shape of another one."""
        value = self._value(number)
        known = value.type is not None and value.shape is not None
        return value if known else self.kinds.get(value, value)

    @property
    def has_types(self) -> bool:
        """Whether the types of all that a step reads are known."""
        step = self.steps.step
        return all(self._kind(number).type is not None for number in (*step.states, *step.rows))

    @cached_property
    def _place(self) -> ir.Node:
        """The first node of the steps."""
        traced = {*self._traced()}
        return next(node for node in self.graph.graph if node in traced)

    def _emit(self, op_type: str, inputs: Sequence[ir.Value], **attributes: Any) -> ir.Value:
        return self._insert(self._node(op_type, inputs, attributes)).outputs[0]

    def _insert(self, node: ir.Node) -> ir.Node:
        self.graph.graph.insert_before(self._place, node)
        return node

    def _node(
        self, op_type: str, inputs: Sequence[ir.Value], attributes: dict[str, Any], outputs: int = 1
    ) -> ir.Node:
        given, rest = inputs_and_attributes(op_type, self.graph.opset, inputs, attributes, self.constant)
        node = ir.node(op_type, given, rest, num_outputs=outputs, name=self.names.unique(f"{self.name}/{op_type}"))
        for n, value in enumerate(node.outputs):
            value.name = self.names.unique(f"{node.name}.{n}" if outputs > 1 else str(node.name))
        return node

    def constant(self, numbers: int | Sequence[int] | Array) -> ir.Value:
        """Add numbers to the graph; plain ones are int64."""
        array = numbers if isinstance(numbers, np.ndarray) else np.asarray(numbers, np.int64)
        name = self.names.unique(f"{self.name}/const")
        return add_constant(self.graph.graph, name, ir.tensor(array, name=name))

    def _scan(self, stacks: Sequence[_StackedValue]) -> ir.Node:
        step = self.steps.step
        initial = [self._value(self.steps.values[0][state]) for state in step.states]
        rows = [self._rows(row, stride) for row, stride in step.rows.values()]
        if not rows:  # a Scan has one
            rows = [(self.constant(range(self._count)), 0, False)]
        directions = {
            "scan_input_axes": [axis for _, axis, _ in rows],
            "scan_input_directions": [int(backwards) for _, _, backwards in rows],
            "scan_output_axes": [stack.axis for stack in stacks],
            "scan_output_directions": [int(stack.backwards) for stack in stacks],
        }
        attributes = {"body": self._body(stacks), "num_scan_inputs": len(rows)}
        attributes |= {name: numbers for name, numbers in directions.items() if any(numbers)}
        inputs = [*initial, *(source for source, _, _ in rows)]
        scan = self._insert(self._node("Scan", inputs, attributes, len(step.states) + len(stacks)))
        scan.name = self.name
        return scan

    def _rows(self, row: Row | StepCount, stride: int) -> tuple[ir.Value, int, bool]:
        """Return the tensor whose rows a Scan reads, its axis, and whether it is read from the end."""
        indices = [row.index + stride * (self.steps.first + n) for n in range(self._count)]
        if isinstance(row, StepCount):
            like = self.graph.integers[row.like]
            return self.constant(np.stack([np.full_like(like, index) for index in indices])), 0, False
        source, size = self._value(row.source), self.graph.size(row.source, row.axis)
        low, high = (index + (size or 0) * (index < 0) for index in (min(indices), max(indices)))
        if (low, high + 1, abs(stride)) != (0, size, 1):
            ends = {"starts": [low], "ends": [high + 1], "axes": [row.axis], "steps": [abs(stride)]}
            source = self._emit("Slice", [source], **ends)
        return source, row.axis, stride < 0

    def _body(self, stacks: Sequence[_StackedValue]) -> ir.Graph:
        """Return the body: one step, whose outputs are values of their own."""
        step, nodes = self.steps.step, list[ir.Node]()
        inputs = [self._input(number) for number in step.states]
        copies = dict(zip(step.states, inputs, strict=True)) | {n: self._value(n) for n in step.outer}
        for number, (row, _) in step.rows.items():
            axis = row.axis if isinstance(row, Row) and row.keeps_axis else None
            inputs.append(self._input(number, without=axis))
            copies[number] = inputs[-1]
            if axis is not None:
                nodes.append(self._node("Unsqueeze", inputs[-1:], {"axes": [axis]}))
                copies[number] = nodes[-1].outputs[0]
        if not step.rows:
            inputs.append(ir.Value(name=self.names.unique(f"{self.name}/t"), type=_INTEGER, shape=ir.Shape(())))
        nodes += [self._copy(computation, copies) for computation in step.body]
        outputs: list[ir.Value] = []
        for number in (*step.states.values(), *(stack.value for stack in stacks)):
            value = copies[number]
            if value in outputs or value in inputs or number in step.outer:
                nodes.append(self._node("Identity", [value], {}))
                value = nodes[-1].outputs[0]
            value.type = value.type or self._kind(number).type
            outputs.append(value)
        return ir.Graph(inputs, outputs, nodes=nodes, name=f"{self.name}/step")

    def _input(self, number: int, without: int | None = None) -> ir.Value:
        """Return an input of the body like a value, without one of its axes."""
        kind = self._kind(number)
        shape = None if kind.shape is None else [*kind.shape]
        if shape is not None and without is not None:
            del shape[without]
        name = self.names.unique(f"{self.name}/{kind.name}")
        return ir.Value(name=name, type=kind.type, shape=None if shape is None else ir.Shape(shape))

    def _copy(self, computation: Computation, copies: dict[int, ir.Value]) -> ir.Node:
        """Return a copy of a node for the body."""
        old = computation.node
        inputs = [None if number is None else copies[number] for number in computation.inputs]
        name = self.names.unique(f"{self.name}/{old.op_type}")
        node = ir.Node("", old.op_type, inputs, old.attributes.values(), num_outputs=len(old.outputs), name=name)
        for number, value, of_old in zip(computation.outputs, node.outputs, old.outputs, strict=True):
            value.name = self.names.unique(f"{self.name}/{of_old.name}")
            value.type = self._kind(number).type
            copies[number] = value
        return node

    def _replace(self, join: _Join, stacked: ir.Value) -> None:
        """Put a stacked output in the place of what a Concat joins."""
        inputs = [*join.node.inputs[: join.first], stacked, *join.node.inputs[join.first + self._count :]]
        given = [value for value in inputs if value is not None]
        joined = stacked if len(given) == 1 else self._emit("Concat", given, axis=join.stack.axis)
        self._take_over(join.node.outputs[0], joined)

    def _take_over(self, old: ir.Value, new: ir.Value) -> None:
        """Put a value in the place of another; an output of the graph gets one of its own."""
        if old.is_graph_output() and is_used(new):
            new = self._emit("Identity", [new])
        take_over(old, new)


# Concats that stack what each step computed, as torch.stack(ys, 1) is exported.


@dataclass(frozen=True)
class _StackedValue:
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
class _Join:
    """A Concat of what all steps computed.

    Attributes:
        node: The Concat.
        first: Which input is the first of them.
        stack: What they are together.
    """

    node: ir.Node
    first: int
    stack: _StackedValue


def _joins_of(steps: RolledSteps) -> Iterator[_Join]:
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


def _unsqueezed(joins: Iterable[_Join], count: int) -> Iterator[ir.Node]:
    """Yield the Unsqueezes that only these joins read, each of `count` steps."""
    joins = [*joins]
    joined = {join.node for join in joins}
    for join in joins:
        for value in join.node.inputs[join.first : join.first + count]:
            node = None if value is None else value.producer()
            if node is not None and all(use.node in joined for use in node.outputs[0].uses()):
                yield node


def _join(graph: NumberedGraph, node: ir.Node, rows: Mapping[int, tuple[int, int]], count: int) -> _Join | None:
    axis = node.attributes.get_int("axis", None)
    if node.op_type != "Concat" or node.domain or axis is None:
        return None
    taken = [_unsqueezed_row(graph, value, axis, rows) for value in node.inputs]
    first = next((n for n, row in enumerate(taken) if row is not None), 0)
    run = [row for row in taken[first : first + count] if row is not None]
    order = [t for _, t in run]
    if len({number for number, _ in run}) != 1 or sorted(order) != [*range(count)]:
        return None
    if order not in ([*range(count)], [*range(count)][::-1]):
        return None
    return _Join(node, first, _StackedValue(run[0][0], axis, order[0] > 0))


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
