"""Copies of a body, in which other values stand for its inputs.

What follows from constants and sizes is computed (`value_facts`): counters, conditions and bounds of slices
disappear, and an If on a counter becomes its branch. What is the same in two copies is written once. So a body is
not cloned, as `model/copying.py` clones a function: 1,000 clones of `if i == 0` would be inferred and folded one
by one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import onnx_ir as ir

from rnn_lowering.emit.constants import leaf
from rnn_lowering.emit.ops import Ops
from rnn_lowering.facts.known import Known
from rnn_lowering.facts.operators import (
    DEFAULT_DOMAIN,
    bodies_of,
    bounds_of,
    graphs_of,
    may_differ,
    parameter,
    takes_all,
)
from rnn_lowering.loops.body import LoopBody, ScanBody, read_body
from rnn_lowering.loops.step_values import SHARED_SIZE, BodyValues, LoopLimits, is_constant
from rnn_lowering.loops.value_facts import Elements, Facts, Item, KnownTensor, common_kind, number_of
from rnn_lowering.model.scopes import REPEATING
from rnn_lowering.nodes.spec import node_ref


class BodyWriter(BodyValues):
    """Writes copies of the body of a Loop or Scan, and of the bodies in it.

    Args:
        op: Emits into the graph of the Loop or Scan.
        facts: Facts about the model.
        repeat: Emits the equivalent of the Loop or Scan.
        limits: The limits of all nested steps, and of nodes.
        nested: Emits the equivalents of the Loops and Scans in its body; `repeat` by default.
        strict_scans: Whether a Scan that scans nothing, or cuts at computed positions, is refused.
        needs_steps: Whether a Scan that may have no step gets no If around it.
        stays: Loops and Scans that keep their operators in a body.
        some_rows: Whether no size is 0, and step i may read row i only, as in a stream.

    Attributes:
        steps: The number of steps that were unrolled.
        assumes_steps: Whether such a Scan was emitted.
        moved: Nodes that are not copied, since what they compute is there already.
    """

    def __init__(
        self,
        op: Ops,
        facts: Facts,
        repeat: RepeatBody,
        limits: LoopLimits,
        *,
        nested: RepeatBody | None = None,
        strict_scans: bool = False,
        needs_steps: bool = False,
        stays: Collection[ir.Node] = (),
        some_rows: bool = False,
    ) -> None:
        super().__init__(op, facts, limits)
        self.strict_scans, self.needs_steps = strict_scans, needs_steps
        self.stays = stays
        self.some_rows = some_rows
        self.steps, self.assumes_steps = 0, False
        self.moved: set[ir.Node] = set()
        self._repeat = repeat
        self._repeat_nested = nested or repeat
        self._written: list[dict[Hashable, list[Item]]] = [{}]

    def write(self, node: ir.Node, scope: str) -> list[Item]:
        """Emit the equivalent of a Loop or Scan; return an item for each of its outputs.

        Raises:
            InvalidNodeError: It breaks the specification of its operator.
            UnsupportedError: It cannot be repeated so, or a limit is exceeded.
        """
        loop = read_body(node, scope, self.facts.opset)
        self.outermost = loop.ref
        return self._repeat(self, loop)

    @contextmanager
    def inner_scope(self) -> Iterator[None]:
        with super().inner_scope():
            self._written.append(dict(self._written[-1]))
            yield
            self._written.pop()

    def copy_nodes(self, graph: ir.Graph, used: set[ir.Value] | None = None) -> None:
        """Emit the nodes of a body; with `used`, only the nodes that compute these values."""
        done: set[ir.Node] = set()
        for node in graph:
            if node in self.moved or node in done or (used is not None and used.isdisjoint(node.outputs)):
                continue
            if node.op_type == "Slice" and (slices := self._split_slices(node)):
                done.update(slices)
                continue
            results = self.results_of(node)
            self._items.update(zip(node.outputs, results, strict=False))

    def _split_slices(self, node: ir.Node) -> list[ir.Node]:
        """Emit a Split if a Slice and other Slices together take all of a value; return these Slices."""
        data = node.inputs[0]
        item = self.item(data)
        kind = self.facts.kind(item)
        if data is None or kind is None or not isinstance(item, ir.Value) or node.domain not in DEFAULT_DOMAIN:
            return []
        users = dict.fromkeys(user for user, index in data.uses() if index == 0 and user.graph is node.graph)
        slices = [user for user in users if user.op_type == "Slice" and user not in self.moved]
        parts = [_part([self.item(value) for value in each.inputs[1:]], kind) for each in slices]
        ordered = sorted((*part, n) for n, part in enumerate(parts) if part is not None)
        if len(slices) < 2 or len(ordered) < len(slices):
            return []
        axes, starts, ends, order = zip(*ordered, strict=True)
        if len({*axes}) > 1 or (*starts, kind.dims[axes[0]]) != (0, *ends):
            return []
        sizes = [end - start for start, end in zip(starts, ends, strict=True)]
        for n, part in zip(order, self.op.split(self.tensor(item, self.outermost), sizes, axes[0]), strict=True):
            self.bind(slices[n].outputs, [self.value_of(part)])
        return slices

    def results_of(self, node: ir.Node) -> Sequence[Item]:
        """Return the outputs of a node of a body in the current step; emit the node if they are not known."""
        items = [self.item(value) for value in node.inputs]
        if node.domain not in DEFAULT_DOMAIN:
            return self.copy_node(node, items)
        if node.op_type in REPEATING and node not in self.stays:
            return self._repeat_nested(self, read_body(node, f"{self.outermost} > body", self.facts.opset))
        if node.op_type == "If" and (condition := number_of(items[0])) is not None:
            return self._branch(node, "then_branch" if condition else "else_branch")
        if node.op_type == "Identity":
            return items
        if node.op_type == "Slice" and self.is_whole(items):
            return items[:1]
        results = self._constant_parts(node, items) if node.op_type == "Split" else None
        results = results or self.results_of_sequence(node, items)
        if results is not None:
            return results
        arrays = self.facts.evaluate(node, items)
        if arrays is not None and all(array.size <= SHARED_SIZE or array.dtype.kind != "f" for array in arrays):
            return [KnownTensor(array) for array in arrays]
        return self.copy_node(node, items)

    def _constant_parts(self, node: ir.Node, items: Sequence[Item]) -> list[Item] | None:
        """Return the parts of a constant as constants; None if a Split is of no constant."""
        source = items[0].value if isinstance(items[0], KnownTensor) else items[0]
        absent = parameter(node, "split", self.facts.opset) is None
        if absent or not isinstance(source, ir.Value) or not is_constant(source) or source.const_value is None:
            return None
        axis = node.attributes.get_int("axis", 0) or 0
        known = self.op.from_constant(leaf(source.const_value, source, "const"))
        sizes = self.split_sizes(node, known.shape[axis]) if -known.rank <= axis < known.rank else None
        return [self.value_of(part) for part in self.op.split(known, sizes, axis)] if sizes and all(sizes) else None

    def _branch(self, node: ir.Node, name: str) -> list[Item]:
        (branch,) = graphs_of(node.attributes[name])
        self.copy_nodes(branch)
        return [self.item(value) for value in branch.outputs]

    def is_whole(self, items: Sequence[Item]) -> bool:
        """Whether a Slice takes everything."""
        bounds = _bounds(items[1:])
        return bounds is not None and all(takes_all(*rest) for _, *rest in bounds)

    def copy_node(self, node: ir.Node, items: Sequence[Item]) -> list[Item]:
        """Emit a copy of a node, once for equal inputs, and return its outputs."""
        bodies = bodies_of(node)
        key: Hashable = None
        if not bodies and not may_differ(node):
            key = node, tuple(map(_key, items))
            if key in self._written[-1]:
                return self._written[-1][key]
        given = [self.value(item) for item in items]
        attributes = [self._attribute(attribute) for attribute in node.attributes.values()]
        new = self.new_node(node.op_type, given, attributes, len(node.outputs), domain=node.domain)
        for old, output in zip(node.outputs, new.outputs, strict=True):
            output.name = output.name if old.name else ""
            if bodies and isinstance(old.type, ir.TensorType) and old.type.dtype != ir.DataType.UNDEFINED:
                self.facts.declare(output, self.facts.kind(old) or Known(old.type.dtype))
        kinds = self._kinds_of_branches(attributes) if node.op_type == "If" else self.facts.infer(node, items)
        if node.op_type == "SequenceAt" and isinstance(items[0], Elements):
            kinds = [common_kind([self.facts.kind(element) for element in items[0].items])]
        for output, kind in zip(new.outputs, kinds, strict=False):
            self.facts.declare(output, kind)
        if node.op_type == "Add" and kinds[0] is not None:
            self._note_product(new, kinds[0])
        if key is not None:
            self._written[-1][key] = list(new.outputs)
        return list(new.outputs)

    def _note_product(self, total: ir.Node, kind: Known) -> None:
        """Note a product of matrices to which an Add adds something of its shape or less: a Gemm does both."""
        value = total.inputs[0]
        product = None if value is None else value.producer()
        if product is None or product.op_type != "MatMul" or value is None or self.facts.kind(value) != kind:
            return
        if kind.dtype != ir.DataType.FLOAT:
            return
        shapes = [self.facts.shape(v) for v in product.inputs]
        if all(shape is not None and len(shape) == 2 for shape in shapes):
            self.op.matrices.add(value)

    def _kinds_of_branches(self, attributes: Sequence[ir.Attr]) -> list[Known | None]:
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
        """Return a copy of a branch or body for this step."""
        with self.op.body(), self.inner_scope():
            if not all(value in self._items for value in graph.initializers.values()):
                self.bring_constants([graph])
            inputs = [self.input_like(value) for value in graph.inputs]
            self.bind(graph.inputs, inputs)
            self.copy_nodes(graph)
            return self.body_graph(inputs, [self.item(v) for v in graph.outputs], [v.type for v in graph.outputs])

    # Sequences

    def results_of_sequence(self, node: ir.Node, items: Sequence[Item]) -> list[Item] | None:
        """Return the output of a node on a sequence with known elements; None for any other node."""
        name = node.op_type
        if name == "SequenceEmpty":
            return [Elements((), self.value(self.copy_node(node, [])[0]))]
        if name == "SequenceConstruct":
            return [Elements(tuple(items))]
        if name == "SplitToSequence":
            return self._split_to_sequence(node, items)
        if not items or not isinstance(items[0], Elements):
            return None
        elements = items[0].items
        if name == "SequenceLength":
            return [KnownTensor(np.asarray(len(elements), np.int64))]
        if name in ("SequenceInsert", "SequenceErase", "SequenceAt"):
            return self._at(name, elements, items)
        if name == "ConcatFromSequence" and elements:
            return [self._joined(node, elements)]
        return None

    def _split_to_sequence(self, node: ir.Node, items: Sequence[Item]) -> list[Item] | None:
        """Return the elements of a SplitToSequence; None if their number is unknown, or too large."""
        ref = self.outermost or node_ref(node, "")
        kind, sizes = self.facts.kind(items[0]), items[1] if len(items) > 1 else None
        if kind is None or kind.shape is None or not (sizes is None or isinstance(sizes, KnownTensor)):
            return None
        axis = (node.attributes.get_int("axis", 0) or 0) % max(len(kind.shape), 1)
        length = kind.dims[axis]
        if length is None or length > self.limits.steps:
            return None
        if sizes is None or not sizes.array.ndim:
            size = 1 if sizes is None else max(int(sizes.array), 1)
            parts = [min(size, length - start) for start in range(0, length, size)]
        else:
            parts = sizes.array.tolist()
        elements = self.op.split(self.tensor(items[0], ref), parts, axis) if parts else []
        if sizes is None and not node.attributes.get_int("keepdims", 1):
            elements = [self.op.squeeze(part, [axis]) for part in elements]
        return [Elements(tuple(map(self.value_of, elements)))] if elements else None

    def _at(self, name: str, elements: tuple[Item, ...], items: Sequence[Item]) -> list[Item] | None:
        """Return the output of an operator on one position of a sequence; None if unknown."""
        at = 2 if name == "SequenceInsert" else 1
        size = len(elements)
        last = size if name == "SequenceInsert" else size - 1
        position = number_of(items[at]) if len(items) > at and items[at] is not None else last
        if position is None or not -size <= position <= last:
            return None
        n = int(position)
        n += size if n < 0 else 0
        if name == "SequenceAt":
            return [elements[n]]
        inserted = items[1:2] if name == "SequenceInsert" else ()
        return [Elements((*elements[:n], *inserted, *elements[n + (name == "SequenceErase") :]))]

    def _joined(self, node: ir.Node, elements: Sequence[Item]) -> Item:
        """Return the output of a ConcatFromSequence on these elements."""
        axis, ref = node.attributes["axis"].as_int(), self.outermost or node_ref(node, "")
        if node.attributes.get_int("new_axis", 0):
            return self.stack(elements, axis, ref)
        tensors = [self.tensor(element, ref) for element in elements]
        return self.value_of(self.op.concat(tensors, axis))


def _key(item: Item) -> Hashable:
    if isinstance(item, KnownTensor):
        return item.key()
    return tuple(map(_key, item.items)) if isinstance(item, Elements) else item


RepeatBody = Callable[[BodyWriter, "LoopBody | ScanBody"], "list[Item]"]
"""Emits what stands for a Loop or Scan, and returns an item for each of its outputs."""


def _bounds(items: Sequence[Item]) -> list[tuple[int, int, int, int]] | None:
    """Return the axis, start, end and step of each axis that a Slice names; None if unknown.

    Args:
        items: Its starts, ends, axes and steps.
    """
    if len(items) < 2 or not all(item is None or isinstance(item, KnownTensor) for item in items):
        return None
    given = [item.array.ravel().tolist() if isinstance(item, KnownTensor) else [] for item in items]
    try:
        return bounds_of(*given)
    except ValueError:  # it is invalid
        return None


def _part(items: Sequence[Item], kind: Known) -> tuple[int, int, int] | None:
    """Return the one axis that a Slice shortens, its start and its end.

    Args:
        items: The starts, ends, axes and steps of the Slice.
        kind: The type and shape of its data.
    """
    bounds, rank = _bounds(items) or [], len(kind.dims)
    shortened = [(axis, start, end) for axis, start, end, step in bounds if not takes_all(start, end, step)]
    if len(shortened) != 1 or any(step != 1 or not -rank <= axis < rank for axis, _, _, step in bounds):
        return None
    ((axis, start, end),) = shortened
    size = kind.dims[axis]
    return (axis % rank, start, min(end, size)) if size is not None and 0 <= start < min(end, size) else None
