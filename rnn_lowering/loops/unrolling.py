"""Write the steps of a Loop or Scan one after the other.

Each step is a copy of the body in which a value stands for each input. What follows from constants and sizes is
computed (`facts`): counters, conditions and the bounds of slices disappear, and an If on a counter becomes its
branch. What is the same in two steps is written once.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import onnx_ir as ir

from rnn_lowering.emit.constants import leaf, literal
from rnn_lowering.emit.ops import Ops
from rnn_lowering.emit.tensor import Tensor
from rnn_lowering.errors import InvalidNodeError, NodeRef, UnsupportedError
from rnn_lowering.loops.body import LoopBody, ScanBody, read_body
from rnn_lowering.loops.errors import UnknownTripsError
from rnn_lowering.loops.facts import CHANCE, Elements, Facts, Item, Known, TensorKind, common_kind, is_plain
from rnn_lowering.model.scopes import REPEATING, bodies_of, graphs_of
from rnn_lowering.spec.node_spec import DEFAULT_DOMAIN, node_ref
from rnn_lowering.types import array_of

_SHARED_SIZE = 1024
"""Constants of bodies up to this size are compared by their numbers; larger ones are not read."""

_DATA = "the number of its steps depends on data"
_DATA_HINT = (
    "export it with a fixed number of steps, or pick a runtime that runs Loop (--targets) and drop --loops or --to"
)


class Unroller:
    """Emits the steps of the Loops and Scans of one graph.

    Args:
        op: Emits into that graph.
        facts: Facts about the model.
        most_steps, most_nodes: The limits of all nested steps, and of nodes.
    """

    def __init__(self, op: Ops, facts: Facts, most_steps: int, most_nodes: int) -> None:
        self.op = op
        self.facts = facts
        self.most_steps = most_steps
        self.most_nodes = most_nodes
        self.steps = 0
        self._emitted = 0
        self._items: dict[ir.Value, Item] = {}
        self._written: list[dict[Hashable, list[Item]]] = [{}]
        self._bodies: set[ir.Graph] = set()
        self._outermost: NodeRef | None = None

    def unroll(self, node: ir.Node, scope: str) -> list[Item]:
        """Emit the steps of a Loop or Scan of the graph; return an item for each of its outputs.

        Raises:
            InvalidNodeError: It breaks the specification of its operator.
            UnsupportedError: The number of its steps is not known, or over a limit.
        """
        self.steps = 0
        read = read_body(node, scope, self.facts.opset)
        self._outermost = read.ref
        self._bodies = {read.body, *read.body.subgraphs()}
        for body in self._bodies:
            for value in body.initializers.values():
                self._items[value] = self._constant(value)
        items = [self.item(value) for value in node.inputs]
        return self._loop(read, items) if isinstance(read, LoopBody) else self._scan(read, items)

    def of_sequence(self, node: ir.Node) -> list[Item] | None:
        """Emit what a node of the graph makes of a sequence with known elements; None where it stays."""
        return self._of_sequence(node, [self.item(value) for value in node.inputs])

    def item(self, value: ir.Value | None) -> Item:
        """Return what stands for a value in the current step."""
        if value is None:
            return None
        if value not in self._items:
            self._items[value] = self._found(value)
        return self._items[value]

    def _found(self, value: ir.Value) -> Item:
        return self.facts.known(value) or self.facts.elements(value) or value

    def _constant(self, value: ir.Value) -> Item:
        """Return an initializer of a body."""
        tensor = value.const_value
        if tensor is None:
            raise InvalidNodeError(f"the initializer '{value.name}' has no tensor", node=self._outermost)
        if tensor.size <= _SHARED_SIZE and is_plain(tensor.dtype):
            return Known(array_of(tensor))
        return self._made(self.op.known(leaf(tensor, value, "const")))

    # Values that are emitted

    def value(self, item: Item) -> ir.Value | None:
        """Return a value of the graph for an item."""
        if item is None or isinstance(item, ir.Value):
            return item
        if item.value is not None:
            return item.value
        if isinstance(item, Elements):
            return self._sequence(item)
        return self._made(self._literal(item))

    def _literal(self, item: Known) -> Tensor:
        return self.op.known(literal(item.array, ir.DataType.from_numpy(item.array.dtype)))

    def _made(self, tensor: Tensor) -> ir.Value:
        """Return the value of a tensor, whose type and shape are known then."""
        value = self.op.value(tensor)
        if self.facts.kind(value) is None:
            self.facts.declare(value, TensorKind(int(tensor.dtype), tensor.shape))
        return value

    def _tensor(self, item: Item, ref: NodeRef) -> Tensor:
        """Return an item as a tensor of known rank."""
        if isinstance(item, Known):
            return self._literal(item)
        kind = self.facts.kind(item)
        if not isinstance(item, ir.Value) or kind is None or kind.shape is None:
            raise UnsupportedError(
                "the rank of what it scans or stacks does not follow from the model's inputs",
                hint="fix the shapes of the inputs (--input-shape)",
                node=ref,
            )
        return self.op.given(item, ir.DataType(kind.element), kind.dims)

    def _sequence(self, elements: Elements) -> ir.Value:
        given = [self.value(item) for item in elements.items]
        if not given:
            raise UnsupportedError("an empty sequence cannot be written", node=self._outermost)
        node = self._new("SequenceConstruct", given)
        return node.outputs[0]

    def _new(
        self,
        op_type: str,
        given: Sequence[ir.Value | None],
        attributes: Sequence[ir.Attr] = (),
        outputs: int = 1,
        domain: str = "",
    ) -> ir.Node:
        self._emitted += 1
        if self._emitted > self.most_nodes:
            raise UnsupportedError(
                f"its steps would be more than {self.most_nodes:,} nodes",
                hint="raise the limit (--max-nodes N) if this is intended",
                node=self._outermost,
            )
        name = self.op.unique_name(op_type)
        node = ir.Node(domain, op_type, given, attributes, num_outputs=outputs, name=name)
        for n, output in enumerate(node.outputs):
            output.name = name if outputs == 1 else f"{name}.{n}"
        self.op.nodes.append(node)
        return node

    # Steps

    def _count(self, most: int) -> None:
        self.steps += 1
        if self.steps > self.most_steps:
            needed = f"{most:,}" if self.steps < most < 1 << 62 else f"more than {self.most_steps:,}"
            raise UnsupportedError(
                f"{needed} steps are more than the limit of {self.most_steps} for unrolling",
                hint=f"raise the limit (--max-unroll {most if self.steps < most < 1 << 62 else 'N'})",
                node=self._outermost,
            )

    def _loop(self, read: LoopBody, items: Sequence[Item]) -> list[Item]:
        trips, going, states = self._trips(read, items), self._first(read, items), list(items[2:])
        rows: list[list[Item]] = []
        most = (1 << 63) - 1 if trips is None else trips
        while going and len(rows) < most:
            self._count(most)
            outputs = self._step(read.body, [*self._start(len(rows)), *states], len(rows))
            states = outputs[1 : 1 + len(states)]
            rows.append(outputs[1 + len(states) :])
            going = len(rows) < most and self._is_true(outputs[0], read)
        if not rows:
            return [*states, *self._empty(read, self._kinds_of_outputs(read.body, states)[1 + len(states) :])]
        used = zip(read.stacked, zip(*rows, strict=True), strict=False)
        return [*states, *(self._stack(each, 0, read.ref) if v.name else None for v, each in used)]

    def _trips(self, read: LoopBody, items: Sequence[Item]) -> int | None:
        """Return the most steps; None for no limit."""
        given = items[0] if items else None
        if given is None:
            return None
        if not isinstance(given, Known) or given.array.size != 1:
            raise UnknownTripsError("the number of its steps is not known", node=read.ref, value=read.trips)
        return max(int(given.array.reshape(())), 0)

    def _first(self, read: LoopBody, items: Sequence[Item]) -> bool:
        given = items[1] if len(items) > 1 else None
        if given is None:
            return True
        if not isinstance(given, Known) or given.array.size != 1:
            raise UnknownTripsError(_DATA, hint=_DATA_HINT, node=read.ref, value=read.condition)
        return bool(given.array.reshape(()))

    def _is_true(self, going: Item, read: LoopBody) -> bool:
        if not isinstance(going, Known) or going.array.size != 1:
            raise UnknownTripsError(_DATA, hint=_DATA_HINT, node=read.ref, value=None)
        return bool(going.array.reshape(()))

    def _scan(self, read: ScanBody, items: Sequence[Item]) -> list[Item]:
        count = len(read.initial)
        states = list(items[:count])
        columns = [
            self._rows(item, axis, backwards, read)
            for item, axis, backwards in zip(items[count:], read.axes, read.backwards, strict=True)
        ]
        lengths = {len(rows) for rows in columns}
        if len(lengths) > 1:
            raise InvalidNodeError(f"the lengths of what it scans differ: {sorted(lengths)}", node=read.ref)
        stacked: list[list[Item]] = []
        for n, rows in enumerate(zip(*columns, strict=True)):
            self._count(len(columns[0]))
            outputs = self._step(read.body, [*states, *rows], n)
            states = outputs[:count]
            stacked.append(outputs[count:])
        if not stacked:
            raise UnsupportedError(
                "a Scan of no steps has no result in onnxruntime", hint="fix a length of 1 or more", node=read.ref
            )
        results = []
        for value, rows, axis, in_front in zip(
            read.stacked, zip(*stacked, strict=True), read.stacked_axes, read.stacked_in_front, strict=False
        ):
            each = rows[::-1] if in_front else rows
            results.append(self._stack(each, axis, read.ref) if value.name else None)
        return [*states, *results]

    def _step(self, body: ir.Graph, given: Sequence[Item], number: int) -> list[Item]:
        self._items.update(zip(body.inputs, given, strict=True))
        with self.op.under(str(number)):
            self._nodes(body)
            return [self.item(value) for value in body.outputs]

    def _rows(self, item: Item, axis: int, backwards: bool, read: ScanBody) -> list[Item]:
        x = self._tensor(item, read.ref)
        if not -x.rank <= axis < x.rank:
            raise InvalidNodeError(f"it scans axis {axis} of {x.rank}", node=read.ref)
        axis %= x.rank
        length = x.shape[axis]
        if length is None:
            value = item if isinstance(item, ir.Value) else None
            raise UnknownTripsError("the number of its steps is not known", node=read.ref, value=value)
        if length > self.most_steps:
            self.steps = self.most_steps
            self._count(length)
        if isinstance(item, Known):
            rows: list[Item] = [Known(np.take(item.array, n, axis)) for n in range(length)]
        elif not length:
            rows = []
        else:
            rows = [self._made(self.op.squeeze(x_n, [axis])) for x_n in self.op.split(x, [1] * length, axis)]
        return rows[::-1] if backwards else rows

    def _stack(self, rows: Sequence[Item], axis: int, ref: NodeRef) -> Item:
        if all(isinstance(row, Known) for row in rows):
            arrays = [row.array for row in rows if isinstance(row, Known)]
            if len({array.shape for array in arrays}) == 1 and -arrays[0].ndim - 1 <= axis <= arrays[0].ndim:
                return Known(np.stack(arrays, axis))
        tensors = [self._tensor(row, ref) for row in rows]
        rank = tensors[0].rank + 1
        if not -rank <= axis < rank:
            raise InvalidNodeError(f"it stacks along axis {axis} of {rank}", node=ref)
        sizes = list(zip(*(t.shape for t in tensors), strict=False))
        if len({t.rank for t in tensors}) > 1 or any(len({*dims} - {None}) > 1 for dims in sizes):
            raise UnsupportedError("what its steps stack has different shapes", node=ref)
        return self._made(self.op.concat([self.op.unsqueeze(t, [axis % rank]) for t in tensors], axis % rank))

    # Steps of a Loop that has none

    def _kinds_of_outputs(self, body: ir.Graph, states: Sequence[Item]) -> list[TensorKind | None]:
        """Return what the first step of a Loop would compute, without writing it."""
        with self.op.body(), self._apart():
            try:
                kinds = [self.facts.kind(item) for item in self._step(body, [*self._start(0), *states], 0)]
            except UnsupportedError:
                kinds = [None] * len(body.outputs)
            for node in self.op.nodes:
                detach(node)
        return kinds

    def _start(self, number: int) -> list[Item]:
        """Return the number of a step, and that it is taken."""
        return [Known(np.asarray(number, np.int64)), Known(np.asarray(True))]

    def _empty(self, read: LoopBody, kinds: Sequence[TensorKind | None]) -> list[Item]:
        results: list[Item] = []
        for value, kind in zip(read.stacked, kinds, strict=False):
            if not value.name:
                results.append(None)
                continue
            if kind is None or not kind.is_static:
                raise UnsupportedError(
                    f"it has no step, and the sizes of its empty output '{value.name}' are not known",
                    hint="fix the sizes of all inputs (--input-shape), or give it a step",
                    node=read.ref,
                )
            dtype = ir.DataType(kind.element).numpy()
            results.append(Known(np.zeros((0, *(d or 0 for d in kind.dims)), dtype)))
        return results

    @contextmanager
    def _apart(self) -> Iterator[None]:
        """What is written in the block is not used after it."""
        self._written.append(dict(self._written[-1]))
        yield
        self._written.pop()

    # The nodes of a step

    def _nodes(self, graph: ir.Graph) -> None:
        for node in graph:
            self._items.update(zip(node.outputs, self._results(node), strict=False))

    def _results(self, node: ir.Node) -> Sequence[Item]:
        items = [self.item(value) for value in node.inputs]
        standard = node.domain in DEFAULT_DOMAIN
        if standard and node.op_type in REPEATING:
            return self._nested(node, items)
        if standard and node.op_type == "If" and isinstance(items[0], Known) and items[0].array.size == 1:
            return self._branch(node, "then_branch" if items[0].array.reshape(()) else "else_branch")
        if standard and node.op_type == "Identity":
            return items
        if standard and node.op_type == "Slice" and self._is_whole(items):
            return items[:1]
        found = self._of_sequence(node, items) if standard else None
        if found is not None:
            return found
        arrays = self.facts.evaluate(node, items) if standard else None
        if arrays is not None and all(array.size <= _SHARED_SIZE or array.dtype.kind != "f" for array in arrays):
            return [Known(array) for array in arrays]
        return self._copied(node, items)

    def _nested(self, node: ir.Node, items: Sequence[Item]) -> list[Item]:
        read = read_body(node, f"{self._outermost} > body", self.facts.opset)
        return self._loop(read, items) if isinstance(read, LoopBody) else self._scan(read, items)

    def _branch(self, node: ir.Node, name: str) -> list[Item]:
        (branch,) = graphs_of(node.attributes[name])
        self._nodes(branch)
        return [self.item(value) for value in branch.outputs]

    def _is_whole(self, items: Sequence[Item]) -> bool:
        """Whether a Slice takes everything."""
        if len(items) < 3:
            return False
        starts, ends, *others = (item.array if isinstance(item, Known) else None for item in items[1:])
        steps = others[1] if len(others) > 1 and items[4] is not None else np.ones(1)
        if starts is None or ends is None or steps is None:
            return False
        return bool(np.all(starts == 0) and np.all(ends >= np.iinfo(ends.dtype).max) and np.all(steps == 1))

    def _copied(self, node: ir.Node, items: Sequence[Item]) -> list[Item]:
        bodies = bodies_of(node)
        key: Hashable = None
        if not bodies and node.op_type not in CHANCE:
            key = node, tuple(map(_key, items))
            if key in self._written[-1]:
                return self._written[-1][key]
        given = [self.value(item) for item in items]
        attributes = [self._attribute(attribute) for attribute in node.attributes.values()]
        copy = self._new(node.op_type, given, attributes, len(node.outputs), domain=node.domain)
        for old, new in zip(node.outputs, copy.outputs, strict=True):
            new.name = new.name if old.name else ""
            if bodies and isinstance(old.type, ir.TensorType) and old.type.dtype != ir.DataType.UNDEFINED:
                self.facts.declare(new, TensorKind(int(old.type.dtype), None))
        kinds = self._kinds_of_branches(attributes) if node.op_type == "If" else self.facts.infer(node, items)
        for new, kind in zip(copy.outputs, kinds, strict=False):
            self.facts.declare(new, kind)
        if key is not None:
            self._written[-1][key] = list(copy.outputs)
        return list(copy.outputs)

    def _kinds_of_branches(self, attributes: Sequence[ir.Attr]) -> list[TensorKind | None]:
        """Return what the branches of an If have in common."""
        branches = [[self.facts.kind(v) for v in graph.outputs] for a in attributes for graph in graphs_of(a)]
        return [common_kind(kinds) for kinds in zip(*branches, strict=False)]

    def _attribute(self, attribute: ir.Attr) -> ir.Attr:
        if attribute.type == ir.AttributeType.GRAPH and not attribute.is_ref():
            return ir.AttrGraph(attribute.name, self._graph(attribute.as_graph()))
        if attribute.type == ir.AttributeType.GRAPHS and not attribute.is_ref():
            return ir.AttrGraphs(attribute.name, [self._graph(graph) for graph in attribute.as_graphs()])
        return attribute

    def _graph(self, graph: ir.Graph) -> ir.Graph:
        """Return a copy of a branch or body as it is in this step."""
        with self.op.body(), self._apart():
            inputs = [ir.Value(name=self.op.unique_name(v.name or "in"), type=v.type) for v in graph.inputs]
            self._items.update(zip(graph.inputs, inputs, strict=True))
            self._nodes(graph)
            outputs: list[ir.Value] = []
            for old in graph.outputs:
                value = self.own_value(self.item(old), outputs)
                value.type = value.type or old.type
                outputs.append(value)
            return ir.Graph(
                inputs,
                outputs,
                nodes=self.op.nodes,
                initializers=self.op.initializers,
                name=self.op.unique_name(graph.name or "body"),
            )

    def own_value(self, item: Item, others: Sequence[ir.Value]) -> ir.Value:
        """Return a value that a node of the open graph computes, and that is none of others."""
        value = self.value(item)
        if value is None:
            raise UnsupportedError("it returns a value that is left out", node=self._outermost)
        producer = value.producer()
        if value in others or producer is None or not any(node is producer for node in reversed(self.op.nodes)):
            copy = self._new("Identity", [value]).outputs[0]
            self.facts.declare(copy, self.facts.kind(item))
            return copy
        return value

    # Sequences

    def _of_sequence(self, node: ir.Node, items: Sequence[Item]) -> list[Item] | None:
        """Return what a node makes of a sequence with known elements; None for any other node."""
        name = node.op_type
        if name == "SequenceEmpty":
            return [Elements((), self.value(self._copied(node, [])[0]))] if node.graph in self._bodies else None
        if name == "SequenceConstruct":
            return [Elements(tuple(items))] if node.graph in self._bodies else None
        if name == "SplitToSequence":
            return self._split(node, items)
        if not items or not isinstance(items[0], Elements):
            return None
        elements = items[0].items
        if name == "SequenceLength":
            return [Known(np.asarray(len(elements), np.int64))]
        if name in ("SequenceInsert", "SequenceErase", "SequenceAt"):
            return self._at(name, elements, items)
        if name == "ConcatFromSequence" and elements:
            return [self._joined(node, elements)]
        return None

    def _split(self, node: ir.Node, items: Sequence[Item]) -> list[Item] | None:
        ref = self._outermost or node_ref(node, "")
        attribute, keep = node.attributes.get("axis"), node.attributes.get("keepdims")
        kind, sizes = self.facts.kind(items[0]), items[1] if len(items) > 1 else None
        if kind is None or kind.shape is None or not (sizes is None or isinstance(sizes, Known)):
            return None
        axis = (attribute.as_int() if attribute else 0) % max(len(kind.shape), 1)
        length = kind.dims[axis]
        if length is None or length > self.most_steps:
            return None
        if sizes is None or not sizes.array.ndim:
            size = 1 if sizes is None else max(int(sizes.array), 1)
            parts = [min(size, length - start) for start in range(0, length, size)]
        else:
            parts = sizes.array.tolist()
        found = self.op.split(self._tensor(items[0], ref), parts, axis) if parts else []
        if sizes is None and keep is not None and not keep.as_int():
            found = [self.op.squeeze(part, [axis]) for part in found]
        return [Elements(tuple(map(self._made, found)))] if found else None

    def _at(self, name: str, elements: tuple[Item, ...], items: Sequence[Item]) -> list[Item] | None:
        at = 2 if name == "SequenceInsert" else 1
        position = items[at] if len(items) > at else None
        if position is not None and not isinstance(position, Known):
            return None
        last = len(elements) if name == "SequenceInsert" else len(elements) - 1
        n = last if position is None else int(position.array.reshape(()))
        size = len(elements)
        if not -size <= n <= last:
            return None
        n += size if n < 0 else 0
        if name == "SequenceAt":
            return [elements[n]]
        inserted = items[1:2] if name == "SequenceInsert" else ()
        return [Elements((*elements[:n], *inserted, *elements[n + (name == "SequenceErase") :]))]

    def _joined(self, node: ir.Node, elements: Sequence[Item]) -> Item:
        axis = node.attributes["axis"].as_int()
        new_axis = node.attributes.get("new_axis")
        ref = self._outermost or node_ref(node, "")
        if new_axis is not None and new_axis.as_int():
            return self._stack(elements, axis, ref)
        tensors = [self._tensor(element, ref) for element in elements]
        return self._made(self.op.concat(tensors, axis))


def _key(item: Item) -> Hashable:
    if isinstance(item, Known):
        return item.key()
    return tuple(map(_key, item.items)) if isinstance(item, Elements) else item


def detach(node: ir.Node) -> None:
    """Let a node that is dropped use nothing, nor the nodes in its bodies."""
    for inner in (node, *(n for body in bodies_of(node) for n in body.all_nodes())):
        for index in range(len(inner.inputs)):
            inner.replace_input_with(index, None)
