"""Which nodes of several exports correspond: those that depend on an input, in their order.

What is computed from constants alone is compared where it is read. A node that an export lacks, since it does
nothing at its size, is added to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from rnn_lowering.emit.draft import Names
from rnn_lowering.errors import UnsupportedError
from rnn_lowering.facts.constants import constant_of, is_steady
from rnn_lowering.facts.operators import TO_THE_END
from rnn_lowering.types import Array, array_of

_LEFT_OUT = ("Slice", "Pad", "Identity")
"""Operators that exporters leave out where they do nothing; dynamo writes an Identity for them."""

_SHAPES = {("Reshape", 1), ("Expand", 1), ("Slice", 1), ("Slice", 2), ("Pad", 1), ("TopK", 1), ("Resize", 3)}
"""By operator and slot, integers that are compared as they are, however they are computed."""

_STEPS = 4
"""The slot of the steps of a Slice."""

Row = Sequence[ir.Node]
"""A node in each export."""

Values = Sequence[ir.Value | None]
"""A value in each export, if it is there."""


@dataclass
class Alignment:
    """Pairs values and nodes of several exports.

    Attributes:
        opset: The opset of all.
        names: Gives names to what is added, for each export.
        unlike: Returns the error for nodes that do not correspond.
        partners: By value of another export, the value of the first one.
    """

    opset: int
    names: Sequence[Names]
    unlike: Callable[[ir.Node, str], UnsupportedError]
    partners: dict[ir.Value, ir.Value] = field(default_factory=dict)
    _all: dict[ir.Value, Values] = field(default_factory=dict)
    _constants: set[ir.Value] = field(default_factory=set)
    _added: dict[ir.Value, list[ir.Value]] = field(default_factory=dict)

    def pair(self, *values: Sequence[ir.Value]) -> None:
        """Let values of all exports correspond."""
        for row in zip(*values, strict=True):
            self.partners |= dict.fromkeys(row, row[0])
            self._all[row[0]] = row

    def are_alike(self, values: Values) -> bool:
        """Whether values correspond."""
        return len({None if value is None else self.partners.get(value, value) for value in values}) == 1

    def rows(self, graphs: Sequence[ir.Graph], *, complete: bool) -> Iterator[Row]:
        """Yield the nodes of graphs that correspond; nodes that an export lacks are added if it is to be completed.

        Raises:
            UnsupportedError: They are not the same net.
        """
        queues = [[*self._active(graph)][::-1] for graph in graphs]
        while any(queues):
            heads = [queue[-1] if queue else None for queue in queues]
            if (row := _same_operator(heads)) is not None:
                for queue in queues:
                    queue.pop()
                yield from self._row(row)
            elif not complete or not self._complete(graphs, queues, heads):
                raise self._unlike(heads)
        for n, values in enumerate(zip(*(graph.outputs for graph in graphs), strict=True)):
            for graph, value, found in zip(graphs, values, self._brought(values), strict=True):
                if found is not None and found is not value and not value.is_graph_input():
                    found.name, value.name = value.name, found.name
                    graph.outputs[n] = found
            yield from self._computing(values) or ()

    def _unlike(self, heads: Sequence[ir.Node | None]) -> UnsupportedError:
        first, *others = nodes = [node for node in heads if node is not None]
        kind = first.op_identifier()
        fact = "has other inputs or outputs" if len(nodes) == len(heads) else "has none here"
        other = next((node for node in others if node.op_identifier() != kind), None)
        return self.unlike(first, f"another {fact if other is None else f'has {other.op_type} here'}")

    def _active(self, graph: ir.Graph) -> Iterator[ir.Node]:
        """Yield the nodes that depend on an input."""
        for node in graph:
            inputs = [value for value in node.inputs if value is not None]
            if node.op_type == "Constant" or (inputs and all(map(self._is_constant, inputs)) and is_steady(node)):
                self._constants.update(node.outputs)
            else:
                yield node

    def _is_constant(self, value: ir.Value | None) -> bool:
        return value is None or value in self._constants or _tensor(value) is not None

    def _row(self, row: Row) -> Iterator[Row]:
        """Yield what computes the constants that nodes read, then the nodes."""
        for slot, values in enumerate(zip(*(node.inputs for node in row), strict=True)):
            brought = self._brought(values)
            for node, value, found in zip(row, values, brought, strict=True):
                if found is not value:
                    node.replace_input_with(slot, found)
            if (row[0].op_type, slot) in _SHAPES and self._fold(row, slot, moved=True):
                continue
            if (computing := self._computing(brought)) is None:
                self._fold(row, slot)
            yield from computing or ()
        self.pair(*(node.outputs for node in row))
        yield row

    # Constants

    def _computing(self, values: Values) -> list[Row] | None:
        """Return the nodes that compute constants; None if they differ between the exports."""
        found: dict[ir.Node, Row] = {}
        if not self._collect(values, found):
            return None
        for row in found.values():
            self.pair(*(node.outputs for node in row))
        return [*found.values()]

    def _collect(self, values: Values, found: dict[ir.Node, Row]) -> bool:
        """Add the nodes that compute constants, after those before them; return whether they correspond."""
        if self.are_alike(values) or None in values or not all(map(self._is_constant, values)):
            return True
        nodes = [None if value is None else value.producer() for value in values]
        if all(node is None or node.op_type == "Constant" for node in nodes):
            return True
        row = _same_operator(nodes)
        if row is None or found.get(row[0], row) != row:
            return False
        inputs = () if row[0] in found else zip(*(node.inputs for node in row), strict=True)
        if not all(self._collect(each, found) for each in inputs):
            return False
        found.setdefault(row[0], row)
        return True

    def _fold(self, row: Row, slot: int, *, moved: bool = False) -> bool:
        """Replace computed constants by their numbers, or those only that are moved and differ; return whether."""
        values = [node.inputs[slot] for node in row]
        if None in values or self.are_alike(values) or not all(map(self._is_constant, values)):
            return False
        tensors = [constant_of(value, self.opset, every=not moved) for value in values]
        arrays = [array_of(tensor) for tensor in tensors if tensor is not None]
        same = all(np.array_equal(array, arrays[0]) for array in arrays)
        if len(arrays) < len(row) or (moved and same):
            return False
        for names, node, array in zip(self.names, row, arrays, strict=True):
            node.replace_input_with(slot, self._constant(array, node, names))
        return True

    def _constant(self, array: Array, before: ir.Node, names: Names) -> ir.Value:
        tensor = ir.tensor(np.ascontiguousarray(array).reshape(array.shape))
        constant = self._node("Constant", [], {"value": tensor}, names)
        assert before.graph is not None
        before.graph.insert_before(before, constant)
        self._constants.update(constant.outputs)
        return constant.outputs[0]

    @staticmethod
    def _node(op_type: str, inputs: Values, attributes: dict[str, ir.TensorProtocol], names: Names) -> ir.Node:
        name = names.unique(f"open/{op_type}")
        return ir.node(op_type, inputs, attributes, name=name, outputs=[ir.Value(name=names.unique(name))])

    # Nodes that an export lacks

    def _brought(self, values: Values) -> Values:
        """Return values, or what added nodes make of them, if these correspond and the values do not."""
        for aim in () if self.are_alike(values) else values:
            found = [self._behind(value, aim) for value in values]
            if self.are_alike(found):
                return found
        return values

    def _behind(self, value: ir.Value | None, aim: ir.Value | None) -> ir.Value | None:
        """Return a value, or what added nodes make of it, if that corresponds to another."""
        if value is None or self.are_alike((aim, value)):
            return value
        later = (self._behind(added, aim) for added in self._added.get(value, ()))
        return next((found for found in later if self.are_alike((aim, found))), value)

    def _complete(
        self, graphs: Sequence[ir.Graph], queues: Sequence[list[ir.Node]], heads: Sequence[ir.Node | None]
    ) -> bool:
        """Add a node that does nothing to the exports that lack it; return whether there is one."""
        for op_type in _LEFT_OUT:
            source = next((node for node in heads if node and node.op_identifier() == ("", op_type, "")), None)
            if source is None or (numbers := self._numbers_of_nothing(source)) is None:
                continue
            source_of = self._all.get(self.partners.get(source.inputs[0]))  # type: ignore[arg-type]
            if source_of is None:
                continue
            for n, node in enumerate(heads):
                if node is None or node.op_type != op_type:
                    self._add_nothing(n, graphs[n], queues[n], source, source_of[n], numbers)
            return True
        return False

    def _add_nothing(
        self,
        n: int,
        graph: ir.Graph,
        queue: list[ir.Node],
        source: ir.Node,
        given: ir.Value | None,
        numbers: Mapping[int, Array],
    ) -> None:
        """Add to export `n` a node that does nothing, or make it of an Identity."""
        node = queue[-1] if queue else None
        if node is None or node.op_type != "Identity" or node.inputs[0] is not given or given is None:
            added = self._node(source.op_type, [given], {}, self.names[n])
            if node is None:
                graph.append(added)
            else:
                graph.insert_before(node, added)
            queue.append(added)
            assert given is not None
            self._added.setdefault(given, []).append(added.outputs[0])
            node = added
        node.op_type = source.op_type
        node.attributes.update(source.attributes)
        node.resize_inputs(len(source.inputs))
        for slot, array in numbers.items():
            node.replace_input_with(slot, self._constant(array, node, self.names[n]))

    def _numbers_of_nothing(self, source: ir.Node) -> dict[int, Array] | None:
        """Return the constants, by slot, with which an operator does nothing; None if there are none."""
        if source.op_type == "Identity":
            return {}
        given = {slot: value for slot, value in enumerate(source.inputs) if slot and value is not None}
        if not given or not all(map(self._is_constant, given.values())):
            return None
        tensors = {slot: constant_of(value, self.opset, every=True) for slot, value in given.items()}
        found = {slot: array_of(tensor) for slot, tensor in tensors.items() if tensor is not None}
        if len(found) < len(given):
            return None
        found[1] = np.zeros_like(found[1])
        if source.op_type == "Slice":
            found[2] = np.full_like(found[2], TO_THE_END)
            return found if (found.get(_STEPS, np.ones(1)) == 1).all() else None
        return found


def _tensor(value: ir.Value) -> ir.TensorProtocol | None:
    return ir.convenience.get_const_tensor(value)


def _same_operator(nodes: Sequence[ir.Node | None]) -> Row | None:
    """Return the nodes of all exports, if they have one operator and as many inputs and outputs."""
    found = [node for node in nodes if node is not None]
    kinds = {(node.op_identifier(), len(node.inputs), len(node.outputs)) for node in found}
    return found if len(found) == len(nodes) and len(kinds) == 1 else None
