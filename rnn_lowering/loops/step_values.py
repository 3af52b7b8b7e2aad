"""The values of a body in one step (`Item`), each as a value of the graph that is emitted for it."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import reduce

import numpy as np
import onnx_ir as ir

from rnn_lowering.emit.constants import leaf, literal
from rnn_lowering.emit.ops import Ops
from rnn_lowering.emit.tensor import Tensor
from rnn_lowering.errors import InvalidNodeError, NodeRef, UnsupportedError
from rnn_lowering.facts.known import Known
from rnn_lowering.facts.operators import parameter
from rnn_lowering.facts.size import Size
from rnn_lowering.loops.value_facts import Elements, Facts, Item, KnownTensor, is_plain
from rnn_lowering.model.scopes import LOWERED, REPEATING
from rnn_lowering.types import array_of

SHARED_SIZE = 1024
"""Constants of bodies up to this size are compared by their numbers; larger ones are not read."""


_FIRST_IDENTITY: dict[type, int] = {ir.SequenceType: 14, ir.OptionalType: 16}
"""First opset whose Identity takes values of a kind; earlier ones take tensors only."""


@dataclass(frozen=True)
class LoopLimits:
    """Maximum steps to unroll, and maximum nodes of all of them, nodes in bodies included."""

    steps: int
    nodes: int


class BodyValues:
    """The items of the values of a body, and what is emitted for them.

    Args:
        op: Emits into the graph of the Loop or Scan.
        facts: Facts about the model.
        limits: The limits of all nested steps, and of nodes.

    Attributes:
        outermost: The Loop or Scan, in messages.
    """

    def __init__(self, op: Ops, facts: Facts, limits: LoopLimits) -> None:
        self.op = op
        self.facts = facts
        self.limits = limits
        self.outermost: NodeRef | None = None
        self._emitted = 0
        self._items: dict[ir.Value, Item] = {}

    def bring_constants(self, bodies: Sequence[ir.Graph]) -> None:
        """Emit the constants of bodies into the open graph."""
        for body in bodies:
            for value in body.initializers.values():
                self._items[value] = self._constant(value)

    def bring_captured_constants(self, body: ir.Graph) -> None:
        """Emit the constants that a body captures into the open graph: several runtimes misread captured values."""
        for node in body.all_nodes():
            for value in node.inputs:
                item = self.item(value)
                source = item.value if isinstance(item, KnownTensor) else item
                if value is not None and isinstance(source, ir.Value) and is_constant(source):
                    self._items[value] = self._constant(source)

    def _constant(self, value: ir.Value) -> Item:
        """Return an initializer of a body."""
        tensor = value.const_value
        if tensor is None:
            raise InvalidNodeError(f"the initializer '{value.name}' has no tensor", node=self.outermost)
        if tensor.size <= SHARED_SIZE and is_plain(tensor.dtype):
            try:
                return KnownTensor(array_of(tensor))
            except Exception as error:  # whatever damaged tensors raise
                reason = f"the initializer '{value.name}' cannot be read: {' '.join(str(error).split())}"
                raise InvalidNodeError(reason, node=self.outermost) from error
        return self.value_of(self.op.from_constant(leaf(tensor, value, "const")))

    def item(self, value: ir.Value | None) -> Item:
        """Return what stands for a value in the current step."""
        if value is None:
            return None
        if value not in self._items:
            self._items[value] = self.facts.known_tensor(value) or self.facts.elements(value) or value
        return self._items[value]

    def bind(self, values: Sequence[ir.Value], items: Sequence[Item]) -> None:
        """Let items stand for values of a body in the current step."""
        self._items.update(zip(values, items, strict=True))

    @contextmanager
    def inner_scope(self) -> Iterator[None]:
        """In the block, the nodes and items of this scope are seen; after it, what the block added is not."""
        items = dict(self._items)
        yield
        self._items = items

    def value(self, item: Item) -> ir.Value | None:
        """Return a value of the graph for an item."""
        if item is None or isinstance(item, ir.Value):
            return item
        if item.value is not None:
            return item.value
        if isinstance(item, Elements):
            return self._sequence(item)
        return self.value_of(self._literal(item))

    def _literal(self, item: KnownTensor) -> Tensor:
        return self.op.from_constant(literal(item.array, ir.DataType.from_numpy(item.array.dtype)))

    def _sequence(self, elements: Elements) -> ir.Value:
        given = [self.value(item) for item in elements.items]
        if not given:
            raise UnsupportedError("an empty sequence cannot be written", node=self.outermost)
        node = self.new_node("SequenceConstruct", given)
        return node.outputs[0]

    def value_of(self, tensor: Tensor) -> ir.Value:
        """Return the value of a tensor, and declare its type and shape."""
        value = self.op.value(tensor)
        if self.facts.kind(value) is None:
            self._learn(value)
        if self.facts.kind(value) is None:
            self.facts.declare(value, Known.at(tensor.dtype, tensor.shape))
        return value

    def declared(self, tensor: Tensor) -> Tensor:
        """Declare the type and shape of a tensor, and return it."""
        self.value_of(tensor)
        return tensor

    def _learn(self, value: ir.Value) -> None:
        """Infer the type and shape of a value that was emitted, with the names of sizes."""
        node = value.producer()
        if node is None:
            return
        items: list[Item] = []
        for given in node.inputs:
            if given is not None and self.facts.kind(given) is None:
                self._learn(given)
            constant = None if given is None else given.const_value
            items.append(given)
            if constant is not None and constant.size <= SHARED_SIZE and is_plain(constant.dtype):
                with suppress(Exception):  # as in `Facts`
                    items[-1] = KnownTensor(array_of(constant), given)
        for output, kind in zip(node.outputs, self.facts.infer(node, items), strict=True):
            if kind is not None and kind.shape is not None:
                self.facts.declare(output, kind)

    def tensor(self, item: Item, ref: NodeRef | None) -> Tensor:
        """Return an item as a tensor of known rank."""
        if isinstance(item, KnownTensor):
            return self._literal(item)
        kind = self.facts.kind(item)
        if not isinstance(item, ir.Value) or kind is None or kind.shape is None:
            raise UnsupportedError(
                "the rank of a value that it scans or stacks is not known",
                hint="fix the shapes of the inputs (--set-shape)",
                node=ref,
            )
        return self.op.given(item, kind.dtype, kind.dims)

    def size(self, size: Size | None) -> Tensor | None:
        """Return a size as an int64 [1]; None if no input has it."""
        if size is not None and size.constant is not None:
            return self.op.constant([int(size.constant)])
        places = None if size is None else self.facts.places(size)
        if places is None:
            return None
        terms = [self._product(factor, factors) for factor, factors in places]
        return reduce(operator.add, terms)

    def _product(self, factor: int, places: Sequence[tuple[ir.Value, int]]) -> Tensor:
        """Return the product of a number and sizes, as an int64 [1]."""
        sizes = [self.op.dim(self.tensor(value, self.outermost), axis) for value, axis in places]
        sizes += [self.op.constant([factor])] if factor != 1 or not sizes else []
        return reduce(operator.mul, sizes)

    def integers(self, given: ir.Attr | ir.Value | None) -> list[int] | None:
        """Return the integers of an attribute or an input; None if unknown."""
        if isinstance(given, ir.Attr):
            return list(given.as_ints())
        item = self.item(given)
        return item.array.ravel().tolist() if isinstance(item, KnownTensor) else None

    def split_sizes(self, node: ir.Node, length: int | None) -> list[int] | None:
        """Return the sizes of the parts of a Split along an axis of this size; None if unknown."""
        given, count = parameter(node, "split", self.facts.opset), len(node.outputs)
        if given is None:
            return [length // count] * count if length is not None and length % count == 0 else None
        sizes = self.integers(given)
        fits = sizes is not None and len(sizes) == count and length in (None, sum(sizes)) and min(sizes) >= 0
        return sizes if fits else None

    def stack(self, rows: Sequence[Item], axis: int, ref: NodeRef) -> Item:
        """Return rows, joined along a new axis.

        Raises:
            InvalidNodeError: There is no such axis.
            UnsupportedError: The rows have different shapes, or a rank is unknown.
        """
        if all(isinstance(row, KnownTensor) for row in rows):
            arrays = [row.array for row in rows if isinstance(row, KnownTensor)]
            if len({array.shape for array in arrays}) == 1 and -arrays[0].ndim - 1 <= axis <= arrays[0].ndim:
                return KnownTensor(np.stack(arrays, axis))
        tensors = [self.tensor(row, ref) for row in rows]
        rank = tensors[0].rank + 1
        if not -rank <= axis < rank:
            raise InvalidNodeError(f"it stacks along axis {axis}, but the result has {rank} axes", node=ref)
        sizes = list(zip(*(t.shape for t in tensors), strict=False))
        if len({t.rank for t in tensors}) > 1 or any(len({*dims} - {None}) > 1 for dims in sizes):
            raise UnsupportedError("its steps return different shapes, which cannot be stacked", node=ref)
        return self.value_of(self.op.concat([self.op.unsqueeze(t, [axis % rank]) for t in tensors], axis % rank))

    def new_node(
        self,
        op_type: str,
        given: Sequence[ir.Value | None],
        attributes: Sequence[ir.Attr] = (),
        outputs: int = 1,
        domain: str = "",
    ) -> ir.Node:
        """Return a new node of the open graph.

        Raises:
            UnsupportedError: There are too many nodes.
        """
        self._emitted += 1
        if self._emitted > self.limits.nodes:
            raise UnsupportedError(
                f"its steps would be more than {self.limits.nodes:,} nodes",
                hint="raise the limit (--max-nodes N) if this is intended",
                node=self.outermost,
            )
        node = self.op.node(op_type, given, attributes, outputs, domain)
        if op_type in REPEATING:
            node.meta[LOWERED] = True
        return node

    def input_like(self, value: ir.Value) -> ir.Value:
        """Return a new input of a body in place of a given one."""
        new = ir.Value(name=self.op.unique_name("in"), type=value.type)
        self.facts.declare(new, self.facts.kind(value))
        return new

    def body_graph(
        self, inputs: Sequence[ir.Value], items: Sequence[Item], types: Sequence[ir.TypeProtocol | None]
    ) -> ir.Graph:
        """Return the open scope as a graph that returns these items."""
        outputs: list[ir.Value] = []
        for item, given in zip(items, types, strict=True):
            value = self.own_value(item, outputs)
            value.type = value.type or given
            outputs.append(value)
        return self.op.graph(inputs, outputs)

    def own_value(self, item: Item, others: Sequence[ir.Value]) -> ir.Value:
        """Return a value of the open graph for an item: a copy, if it comes from outside or is another output."""
        value = self.value(item)
        if value is None:
            raise UnsupportedError("one of its outputs has no value", node=self.outermost)
        producer = value.producer()
        if value in others or producer is None or not any(node is producer for node in reversed(self.op.nodes)):
            return self._copy_of(item, value)
        return value

    def _copy_of(self, item: Item, value: ir.Value) -> ir.Value:
        """Emit a copy of a value; an Identity of lists is newer than lists.

        Raises:
            UnsupportedError: It is a list with unknown elements that the opset cannot copy.
        """
        first = next((n for kind, n in _FIRST_IDENTITY.items() if isinstance(value.type, kind)), 1)
        if isinstance(item, Elements) and self.op.opset < _FIRST_IDENTITY[ir.SequenceType]:
            made = value.producer()
            if item.items:
                return self._sequence(item)
            if made is not None and made.op_type == "SequenceEmpty":
                return self.new_node("SequenceEmpty", [], list(made.attributes.values())).outputs[0]
        if self.op.opset < first:
            raise UnsupportedError(
                f"the list '{value.name}' cannot be copied at opset {self.op.opset}",
                hint=f"convert the model to opset {first} or later (onnx.version_converter)",
                node=self.outermost,
            )
        new = self.new_node("Identity", [value]).outputs[0]
        self.facts.declare(new, self.facts.kind(item))
        return new


def is_constant(value: ir.Value) -> bool:
    """Whether a value is an initializer that no user can set."""
    return value.const_value is not None and value.producer() is None and not value.is_graph_input()
