"""Writes rolled steps as a Scan in the place of their nodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import onnx_ir as ir

from rnn_lowering.emit.open_scopes import Names
from rnn_lowering.facts.operators import inputs_and_attributes, is_used
from rnn_lowering.loops.rolling.numbering import Computation
from rnn_lowering.loops.rolling.rows import Row, StepCount
from rnn_lowering.loops.rolling.steps import RolledSteps
from rnn_lowering.model.model_sizes import Inferred, inferred_values, take_over
from rnn_lowering.model.replace import drop_unused

_INTEGER = ir.TensorType(ir.DataType.INT64)

Stack = tuple[int, int, bool]
"""A value of a step, the axis along which it is stacked, and whether the last step comes first."""


@dataclass(frozen=True)
class Join:
    """A Concat of what steps computed.

    Attributes:
        node: The Concat.
        first: The first input that a step computed.
        stack: What it joins.
    """

    node: ir.Node
    first: int
    stack: Stack


class ScanWriter:
    """Writes the Scan of some steps.

    Args:
        steps: The steps.
        model: The model of their graph.
        names: Gives names.
    """

    def __init__(self, steps: RolledSteps, model: ir.Model, names: Names) -> None:
        self.steps, self.graph, self.model, self.names = steps, steps.graph, model, names
        self.name = names.unique(_name(steps))
        self.first: ir.Node = min(self._traced(), key=self._places().__getitem__)
        self.stacks: dict[Stack, ir.Value] = {}

    def write(self) -> ir.Node:
        """Put the Scan in the place of the steps, and return it; the graph must be sorted then."""
        joins = list(self._joins())
        used = {join.node for join in joins} | {*self._traced()} | {*self._unsqueezed(joins)}
        last, states = self.steps.values[-1], self.steps.step.states
        finals = {last[b]: a for a, b in states.items() if b in last}
        uses = self._needed(list(self._outside(used)))
        stacked = {n for n, t, _ in uses if t < len(self.steps.values) - 1 or last[n] not in finals}
        uses = [use for use in uses if use[0] in stacked]
        stacks = list(dict.fromkeys([*(join.stack for join in joins), *((n, 0, False) for n, _, _ in uses)]))
        scan = self._scan(stacks)
        self.stacks = dict(zip(stacks, scan.outputs[len(states) :], strict=True))
        for join in joins:
            self._replace(join)
        by_state = dict(zip(states, scan.outputs, strict=False))
        for n, t, value in uses:
            index = self._constant(np.int64(t))
            row = self._emit("Gather", [self.stacks[n, 0, False], index], {"axis": 0})
            self._take_over(value, row)
        for number, state in finals.items():
            for value in self.graph.values[number]:
                if any(use.node not in used and use.node is not scan for use in value.uses()) or value.is_graph_output():
                    self._take_over(value, by_state[state])
        unused = [*(join.node for join in joins), *self._traced()]
        drop_unused([value for node in unused for value in node.outputs])
        return scan

    # What is read of the graph

    def _traced(self) -> Iterator[ir.Node]:
        """Yield the nodes of the steps."""
        for values in self.steps.values:
            for computation in self.steps.step.body:
                if computation.outputs[0] in values:
                    yield from self.graph.producers[values[computation.outputs[0]]].nodes

    def _places(self) -> dict[ir.Node, int]:
        return {node: n for n, node in enumerate(self.graph.graph)}

    def _outside(self, used: set[ir.Node]) -> Iterator[tuple[int, int, ir.Value]]:
        """Yield each value of a step that other nodes or the caller use: what it is, its step, and the value."""
        for computation in self.steps.step.body:
            for number in computation.outputs:
                for t, values in enumerate(self.steps.values):
                    for value in self.graph.values[values[number]] if number in values else ():
                        if value.is_graph_output() or any(use.node not in used for use in value.uses()):
                            yield number, t, value

    def _needed(self, uses: list[tuple[int, int, ir.Value]]) -> list[tuple[int, int, ir.Value]]:
        """Return the uses for which the Scan must stack a value. One that no state decides, or that only the first
        step has, as the product of first states that two loops share, is computed as it was."""
        states = {*self.steps.step.states}
        of_states, later = set(states), {number for number, t, _ in uses if t}
        for computation in self.steps.step.body:
            if not of_states.isdisjoint(computation.inputs):
                of_states.update(computation.outputs)
        later.update(self.steps.step.states.values())
        return [use for use in uses if use[0] in of_states and use[0] in later]

    def _joins(self) -> Iterator[Join]:
        """Yield each Concat of one value of all steps, in their order or the other way, once."""
        seen = set[ir.Node]()
        rows = {
            values[number]: (number, t)
            for t, values in enumerate(self.steps.values)
            for computation in self.steps.step.body
            for number in computation.outputs
            if number in values
        }
        count = len(self.steps.values)
        for node in {use.node: None for n in rows for value in self.graph.values[n] for use in value.uses()}:
            axis = self._unsqueezed_axis(node)
            if axis is None:
                continue
            for concat in [use.node for use in node.outputs[0].uses()]:
                if concat in seen or concat.op_type != "Concat" or concat.domain:
                    continue
                if concat.attributes.get_int("axis", None) != axis:
                    continue
                found = [self._row_of_join(value, axis, rows) for value in concat.inputs]
                first = next(n for n, row in enumerate(found) if row is not None)
                run = found[first : first + count]
                numbers = {row[0] for row in run if row is not None}
                order = [row[1] for row in run if row is not None]
                backwards = order == [*range(count)][::-1]
                if len(numbers) == 1 and (order == [*range(count)] or backwards):
                    seen.add(concat)
                    yield Join(concat, first, (numbers.pop(), axis, backwards))

    def _row_of_join(self, value: ir.Value | None, axis: int, rows: dict[int, tuple[int, int]]) -> tuple[int, int] | None:
        node = None if value is None else value.producer()
        if node is None or self._unsqueezed_axis(node) != axis or node.inputs[0] is None:
            return None
        return rows.get(self.graph.of(node.inputs[0]))

    def _unsqueezed_axis(self, node: ir.Node) -> int | None:
        """Return the axis that an Unsqueeze adds."""
        if node.op_type != "Unsqueeze" or node.domain:
            return None
        axes = node.attributes.get_ints("axes", None)
        if axes is None and len(node.inputs) > 1 and node.inputs[1] is not None:
            array = self.graph.integers.get(self.graph.of(node.inputs[1]))
            axes = None if array is None else array.ravel().tolist()
        return axes[0] if axes is not None and len(axes) == 1 and axes[0] >= 0 else None

    def _unsqueezed(self, joins: Iterable[Join]) -> Iterator[ir.Node]:
        """Yield the nodes that only joins use."""
        joined = {join.node for join in joins}
        for join in joins:
            for value in join.node.inputs[join.first : join.first + len(self.steps.values)]:
                node = None if value is None else value.producer()
                if node is not None and all(use.node in joined for use in node.outputs[0].uses()):
                    yield node

    # What is written

    def _value(self, number: int) -> ir.Value:
        return self.graph.values[number][0]

    def _kind(self, number: int) -> ir.Value:
        value = self._value(number)
        known = value.type is not None and value.shape is not None
        return value if known else self.kinds.get(value, value)

    @cached_property
    def kinds(self) -> Inferred:
        """Values with the types and shapes of those of the model, as far as they follow from its inputs."""
        return inferred_values(self.model)

    def _emit(self, op_type: str, inputs: Sequence[ir.Value], attributes: dict[str, object]) -> ir.Value:
        return self._insert(self._node(op_type, inputs, attributes)).outputs[0]

    def _insert(self, node: ir.Node) -> ir.Node:
        self.graph.graph.insert_before(self.first, node)
        return node

    def _node(self, op_type: str, inputs: Sequence[ir.Value], attributes: dict[str, object], outputs: int = 1) -> ir.Node:
        given, rest = inputs_and_attributes(
            op_type, self.graph.opset, inputs, attributes, lambda array: self._constant(np.asarray(array, np.int64))
        )
        node = ir.node(op_type, given, rest, num_outputs=outputs, name=self.names.unique(f"{self.name}/{op_type}"))
        for n, value in enumerate(node.outputs):
            value.name = self.names.unique(f"{node.name}.{n}" if outputs > 1 else str(node.name))
        return node

    def _constant(self, array: np.generic | np.ndarray) -> ir.Value:
        name = self.names.unique(f"{self.name}/const")
        tensor = ir.tensor(np.asarray(array), name=name)
        value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(tensor.shape), const_value=tensor)
        self.graph.graph.register_initializer(value)
        return value

    def _rows(self, number: int) -> tuple[ir.Value, int, bool]:
        """Return the tensor whose rows a Scan reads, its axis, and whether it is read from the end."""
        row, stride = self.steps.step.rows[number]
        count, first = len(self.steps.values), row.index + stride * self.steps.first
        last = first + stride * (count - 1)
        if isinstance(row, StepCount):
            like = self.graph.integers[row.like]
            return self._constant(np.stack([np.full_like(like, first + stride * n) for n in range(count)])), 0, False
        source, size = self._value(row.source), self.graph.size(row.source, row.axis)
        low, high = (min(first, last), max(first, last)) if first >= 0 else sorted(
            ((size or 0) + first, (size or 0) + last)
        )
        if (low, high + 1, abs(stride)) != (0, size, 1):
            ends = {"starts": [low], "ends": [high + 1], "axes": [row.axis], "steps": [abs(stride)]}
            source = self._emit("Slice", [source], ends)
        return source, row.axis, stride < 0

    def _scan(self, stacks: Sequence[Stack]) -> ir.Node:
        step = self.steps.step
        rows = [self._rows(number) for number in step.rows]
        if not rows:  # a Scan has one
            rows = [(self._constant(np.arange(len(self.steps.values))), 0, False)]
        first = self.steps.values[0]
        initial = [self._value(first[state]) for state in step.states]
        attributes = {
            "body": self._body(stacks),
            "num_scan_inputs": len(rows),
            "scan_input_axes": [axis for _, axis, _ in rows],
            "scan_input_directions": [int(back) for _, _, back in rows],
            "scan_output_axes": [axis for _, axis, _ in stacks],
            "scan_output_directions": [int(back) for _, _, back in stacks],
        }
        inputs = [*initial, *(source for source, _, _ in rows)]
        given = {name: value for name, value in attributes.items() if value != []}
        scan = self._insert(self._node("Scan", inputs, given, len(step.states) + len(stacks)))
        scan.name = self.name
        return scan

    def _body(self, stacks: Sequence[Stack]) -> ir.Graph:
        """Return the body: one step, whose outputs are values of their own."""
        step, copies = self.steps.step, dict[int, ir.Value]()
        nodes: list[ir.Node] = []
        inputs = [self._input(number) for number in step.states]
        copies.update(zip(step.states, inputs, strict=True))
        if not step.rows:
            inputs.append(ir.Value(name=self.names.unique(f"{self.name}/t"), type=_INTEGER, shape=ir.Shape(())))
        for number, (row, _) in step.rows.items():
            inputs.append(self._input(number, row.axis if isinstance(row, Row) and row.keeps_axis else None))
            copies[number] = inputs[-1]
            if isinstance(row, Row) and row.keeps_axis:
                nodes.append(self._node("Unsqueeze", [inputs[-1]], {"axes": [row.axis]}))
                copies[number] = nodes[-1].outputs[0]
        copies.update((number, self._value(number)) for number in step.outer)
        for computation in step.body:
            nodes.append(self._copy(computation, copies))
        outputs: list[ir.Value] = []
        for number in [*step.states.values(), *(number for number, _, _ in stacks)]:
            value = copies[number]
            if value in outputs or value in inputs or number in step.outer:
                nodes.append(self._node("Identity", [value], {}))
                value = nodes[-1].outputs[0]
            kind = self._kind(number)
            value.type = value.type or kind.type
            outputs.append(value)
        return ir.Graph(inputs, outputs, nodes=nodes, name=f"{self.name}/step")

    def _input(self, number: int, without: int | None = None) -> ir.Value:
        """Return an input of the body, like a value, without one of its axes."""
        kind = self._kind(number)
        shape = None if kind.shape is None else [*kind.shape]
        if shape is not None and without is not None:
            del shape[without]
        name = self.names.unique(f"{self.name}/{kind.name}")
        return ir.Value(name=name, type=kind.type, shape=None if shape is None else ir.Shape(shape))

    def _copy(self, computation: Computation, copies: dict[int, ir.Value]) -> ir.Node:
        old = computation.node
        inputs = [None if number is None else copies[number] for number in computation.inputs]
        name = self.names.unique(f"{self.name}/{old.op_type}")
        node = ir.Node("", old.op_type, inputs, old.attributes.values(), num_outputs=len(old.outputs), name=name)
        for number, value, of_old in zip(computation.outputs, node.outputs, old.outputs, strict=True):
            value.name = self.names.unique(f"{self.name}/{of_old.name}")
            value.type = self._kind(number).type
            copies[number] = value
        return node

    def _replace(self, join: Join) -> None:
        """Put a stacked output in the place of what a Concat joins."""
        stacked, count = self.stacks[join.stack], len(self.steps.values)
        rest = [*join.node.inputs[: join.first], stacked, *join.node.inputs[join.first + count :]]
        joined = stacked if len(rest) == 1 else self._emit("Concat", rest, {"axis": join.stack[1]})
        self._take_over(join.node.outputs[0], joined)

    def _take_over(self, old: ir.Value, new: ir.Value) -> None:
        if old.is_graph_output() and (new.is_graph_output() or is_used(new)):
            new = self._emit("Identity", [new], {})
        take_over(old, new)


def _name(steps: RolledSteps) -> str:
    """Return a name for the loop: where the nodes of its first step stand, as exporters name them."""
    number = next(values[n] for values in steps.values for n in steps.product.outputs if n in values)
    first = steps.graph.producers[number].node
    return str(first.name).rpartition("/")[0] or f"{first.name or first.op_type}_steps"
