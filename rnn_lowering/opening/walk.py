"""One walk over the exports of a net, node by node: what differs is explained by a size and written so.

The sizes of each export are inferred, and those of the opened model with a symbol for each opened axis. A size that
inference loses, such as that of a strided convolution, gets a symbol of its own, which is read from its value.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import onnx_ir as ir

from rnn_lowering.emit.draft import Names
from rnn_lowering.errors import NodeRef, UnsupportedError
from rnn_lowering.facts.axes import Label
from rnn_lowering.facts.infer import infer, slice_bounds
from rnn_lowering.facts.known import Known, KnownValues, SizingError, add_initializers, axes_of
from rnn_lowering.facts.node_outputs import numbers_in
from rnn_lowering.facts.numbers import evaluate
from rnn_lowering.facts.operators import TO_THE_END, bodies_of, has_bodies, operator_of
from rnn_lowering.facts.size import PartialShape, Shape, Size, size
from rnn_lowering.model.model_sizes import Inferred, inferred_values
from rnn_lowering.model.scopes import all_names, scopes
from rnn_lowering.nodes.spec import node_ref
from rnn_lowering.opening.alignment import Alignment
from rnn_lowering.opening.differences import Difference
from rnn_lowering.opening.evidence import SIZES, Evidence, Integers, refuse, text_of, told
from rnn_lowering.opening.tables import Writer, are_equal
from rnn_lowering.passes.report import ASSUMED
from rnn_lowering.types import Array

_OF_ANY_SIZES = ("GatherElements", "ScatterElements", "ScatterND", "Scatter")
"""Operators whose inputs may have any sizes along the same axis."""

_WINDOWED = ("Conv", "ConvTranspose", "AveragePool", "LpPool", "MaxPool")
_FIRST_OF_WINDOWS = 2
"""The first axis along which windows move."""

_ALIKE = "export both with the same code, seed, exporter and opset, without folding"

_GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


def known_at(model: ir.Model, sizes: Mapping[str, int], inferred: Inferred) -> KnownValues:
    """Return what is known of a model at sizes of its open axes.

    Args:
        model: The model.
        sizes: By the name of an axis, its size.
        inferred: The types and shapes of what comes into bodies, and of nodes that have one.

    Raises:
        SizingError: A node does not accept its sizes.
    """
    known = KnownValues.start(model, shapes_at(model, sizes))

    def declare(values: Sequence[ir.Value]) -> None:
        for value in values:
            held = inferred.get(value, value)
            if (dtype := held.dtype or value.dtype) is not None:
                known.declare(value, Known.at(dtype, held.shape))

    for graph in model.graphs():
        add_initializers(known, graph)
        declare(() if graph is model.graph else graph.inputs)
        for node in graph:
            if bodies_of(node):
                declare(node.outputs)
            else:
                infer(known, node)
                evaluate(known, node)
    return known


def shapes_at(model: ir.Model, sizes: Mapping[str, int]) -> dict[str, Shape]:
    """Return the shapes of inputs at sizes of their open axes; the others stay open."""

    def at(dim: int | ir.SymbolicDim, name: str) -> Size:
        name = "" if isinstance(dim, int) else dim.value or name
        return size(dim) if isinstance(dim, int) else size(sizes[name]) if name in sizes else Size.symbol(name)

    given = [(value.name or "", value.shape) for value in model.graph.inputs if value.shape is not None]
    return {name: tuple(at(dim, f"{name}_{n}") for n, dim in enumerate(shape)) for name, shape in given}


@dataclass
class ExportWalk:
    """Opens the first of several exports, in place.

    Attributes:
        models: The exports, sorted and without functions, whose opened axes have names; the first is opened.
        writer: Writes nodes into the opened model.
        known: What is known of each export at its sizes.
    """

    models: Sequence[ir.Model]
    writer: Writer
    known: list[KnownValues] = field(default_factory=list)

    @property
    def opened(self) -> KnownValues:
        """What is known of the opened model."""
        return self.writer.known

    @property
    def evidence(self) -> Evidence:
        """The sizes of the exports."""
        return self.writer.evidence

    def run(self) -> list[str]:
        """Open the model; return what was changed, as text.

        Raises:
            UnsupportedError: The exports are not the same net, or no size explains what differs.
        """
        self.scopes = {scope.graph: scope.text for model in self.models for scope in scopes(model)}
        graphs = [model.graph for model in self.models]
        names = [self.writer.names, *(Names(all_names(model)) for model in self.models[1:])]
        self.alignment = Alignment(self.opened.opset, names, lambda node, fact: _unlike(self._ref(node), fact))
        self.alignment.pair(*([value for value in graph.inputs if not value.is_initializer()] for graph in graphs))
        rows = list(self.alignment.rows(graphs, complete=True))
        for n, model in enumerate(self.models):
            sizes = {str(symbol): held[n] for symbol, held in self.evidence.values.items()}
            inferred = inferred_values(model) if has_bodies(model.graph) else {}
            with self._fitting():
                self.known.append(known_at(model, sizes, inferred))
        return list(self._follow_graphs(graphs, rows))

    def _ref(self, node: ir.Node) -> NodeRef:
        graph = node.graph
        return node_ref(node, self.scopes.get(graph, "main graph") if isinstance(graph, ir.Graph) else "main graph")

    @contextmanager
    def _fitting(self) -> Iterator[None]:
        try:
            yield
        except SizingError as error:
            raise refuse(self._ref(error.node), f"does not fit another size: {error.reason}") from error

    # Graphs

    def _follow_graphs(self, graphs: Sequence[ir.Graph], rows: Iterable[Sequence[ir.Node]]) -> Iterator[str]:
        add_initializers(self.opened, graphs[0])
        for node in graphs[0]:
            if node.op_type == "Constant":
                self._infer(node)
        for nodes in rows:
            yield from self._follow(nodes)
        for values in zip(*(graph.outputs for graph in graphs), strict=True):
            if self._differing(values, ref := NodeRef(str(values[0].name), "output", self.scopes[graphs[0]])):
                raise _unlike(ref, "it is another constant")

    def _follow(self, nodes: Sequence[ir.Node]) -> Iterator[str]:
        first, ref = nodes[0], self._ref(nodes[0])
        slots = enumerate(zip(*(node.inputs for node in nodes), strict=True))
        constants = {slot: arrays for slot, values in slots if (arrays := self._differing(values, ref))}
        attributes = self._attributes(ref, nodes)
        if constants or attributes:
            yield from Difference(first, ref, constants, attributes, self.writer).open()
        yield from _assumed(first, ref)
        for graphs in zip(*map(bodies_of, nodes), strict=True):
            self.alignment.pair(*(graph.inputs for graph in graphs))
            self._settle_all([graph.inputs for graph in graphs], None)
            yield from self._follow_graphs(graphs, [*self.alignment.rows(graphs, complete=False)])
            self.evidence.leave(graphs[0])
        self._infer(first)
        self._check_equal(first, ref)
        self._settle_all([node.outputs for node in nodes], ref)

    def _infer(self, node: ir.Node) -> None:
        with self._fitting():
            if not bodies_of(node):
                infer(self.opened, node)
                evaluate(self.opened, node)

    # What is alike and what differs

    def _differing(self, values: Sequence[ir.Value | None], ref: NodeRef) -> list[Array]:
        """Return a constant in each export if it differs, nothing for one that is equal or computed alike."""
        if self.alignment.are_alike(values):
            return []
        tensors = [_tensor(value) for value in values]
        if None in tensors:
            raise _unlike(ref, "another reads other values")
        if all(tensor is tensors[0] for tensor in tensors):
            return []
        arrays = [numbers_in(tensor) for tensor in tensors if tensor is not None]
        if all(are_equal(arrays[0], array) for array in arrays[1:]):
            return []
        if any(array is None for array in arrays):
            raise _unlike(ref, "its constants are no numbers")
        return [array for array in arrays if array is not None]

    def _attributes(self, ref: NodeRef, nodes: Sequence[ir.Node]) -> dict[str, list[ir.Attr]]:
        """Return the attributes that differ, in each export."""
        differ = {}
        for name in dict.fromkeys(name for node in nodes for name in node.attributes):
            held = [node.attributes[name] for node in nodes if name in node.attributes]
            if len(held) < len(nodes) or len({attribute.type for attribute in held}) > 1:
                raise _unlike(ref, f"another has another {name}")
            if held[0].type not in _GRAPHS and any(not _same(held[0], other) for other in held[1:]):
                differ[name] = held
        return differ

    # Sizes of the opened model

    def _check_equal(self, node: ir.Node, ref: NodeRef) -> None:
        """Refuse sizes that a node needs to be equal, which two exports may have by chance."""
        axes = axes_of(self.opened, node) if node.op_type not in _OF_ANY_SIZES else None
        if axes is None or len(self.models) > 2:
            return
        groups: dict[Label, dict[Size, None]] = {}
        for slot, labels in axes.inputs.items():
            value = node.inputs[slot] if slot < len(node.inputs) else None
            for label, dim in zip(labels, self.opened.shape(value), strict=False):
                if dim in self.evidence.sizes and (node.op_type != "Concat" or label in axes.output):
                    groups.setdefault(label, {})[dim] = None
        for dims in map(self.evidence.distinct, groups.values()):
            if len(dims) > 1:
                names, third = told(text_of(dim) for dim in dims), self.evidence.third(found=dims)
                raise refuse(ref, f"needs equal sizes, and {names} are, perhaps by chance", third)

    def _settle_all(self, rows: Sequence[Sequence[ir.Value]], ref: NodeRef | None) -> None:
        """Set the sizes of values: each is that of every export, at its size."""
        for values in zip(*rows, strict=True):
            value, was = values[0], [known.shapes.get(v) for known, v in zip(self.known, values, strict=True)]
            if value not in self.opened.types and values[0] in self.known[0].types:
                self.opened.types[value] = self.known[0].types[value]
            shapes = [shape for shape in was if shape is not None]
            if len(shapes) < len(was) or len(set(map(len, shapes))) > 1:
                continue
            found: PartialShape = self.opened.shapes.get(value, ())
            sizes = found if len(found) == len(shapes[0]) else [None] * len(shapes[0])
            dims = [self._dim(value, n, dim, [s[n] for s in shapes], ref) for n, dim in enumerate(sizes)]
            self.opened.shapes[value] = tuple(dims)
            self.evidence.add(tuple(dims))

    def _dim(self, value: ir.Value, axis: int, dim: Size | None, was: Sequence[Size], ref: NodeRef | None) -> Size:
        """Return a size of the opened model for those of the exports."""
        free = {symbol for each in was for symbol in each.symbols}
        if dim is not None and dim.symbols <= self.evidence.values.keys() | free:
            if all(self.evidence.in_export(dim, n) == each for n, each in enumerate(was)):
                return dim
            if ref is not None and not free:
                sizes = told(str(each) for each in was)
                raise refuse(ref, f"gives axis {axis} a size of {dim}, but the exports have {sizes}", SIZES)
        if len(set(was)) == 1:
            return was[0]
        if any(each.constant is None for each in was):
            return self.opened.unknown()
        numbers = tuple(int(each.constant or 0) for each in was)
        found = self._of_alike(value, numbers) or self._of_slice(value, axis, numbers)
        return found or self._of_window(value, axis, numbers) or self.evidence.own_symbol(value, axis, numbers)

    def _of_alike(self, value: ir.Value, numbers: Integers) -> Size | None:
        """Return a size with these numbers that depends on axes alone: of an input of an element-wise node, or any
        one for a value that comes into or out of a body."""
        node = value.producer()
        if node is None or bodies_of(node):
            return self.evidence.of_axes(self.evidence.sizes, numbers)
        inputs = node.inputs if operator_of(node).elementwise else ()
        return self.evidence.of_axes(self.evidence.known(map(self.opened.shape, inputs)), numbers)

    def _of_slice(self, value: ir.Value, axis: int, numbers: Integers) -> Size | None:
        """Return the number of rows that a Slice takes, if there are as many."""
        node = value.producer()
        rank = 0 if node is None or node.op_type != "Slice" else len(self.opened.shape(node.inputs[0]))
        bounds = slice_bounds(self.opened, node, rank) if node is not None and rank else None
        first, last, step = (bounds or {}).get(axis, (size(0), size(0), None))
        if node is None or step != size(1):
            return None
        length, far = self.opened.shape(node.inputs[0])[axis], last.constant
        behind = [(self.evidence.numbers_of(bound) or (0,))[0] < 0 for bound in (first, last)]
        end = length if far is not None and far >= TO_THE_END else length + last if behind[1] else last
        begin = length + first if behind[0] else first
        return end - begin if self.evidence.numbers_of(end - begin) == numbers else None

    def _of_window(self, value: ir.Value, axis: int, numbers: Integers) -> Size | None:
        """Return the size behind a window along an axis: (size + r) // stride of one value, and a number."""
        node, n = value.producer(), axis - _FIRST_OF_WINDOWS
        if node is None or node.op_type not in _WINDOWED or n < 0:
            return None
        before, given = self.opened.shape(node.inputs[0])[axis], node.attributes
        if (held := self.evidence.sizes.get(before)) is None:
            return None
        stride, kernel = (given.get_ints("strides") or {n: 1})[n], given.get_ints("kernel_shape")
        rests = {number - stride * count for number, count in zip(numbers, held, strict=True)}
        if (stride == 1 or node.op_type == "ConvTranspose") and len(rests) == 1:
            return before * stride + rests.pop()
        span = int(kernel[n] if kernel else self.opened.shape(node.inputs[1])[axis].constant or 0)
        span = (span - 1) * (given.get_ints("dilations") or {n: 1})[n] + 1
        pads = given.get_ints("pads") or ()
        padded = sum(pads[n :: len(pads) // 2 or 1])
        if tuple((count + padded - span) // stride + 1 for count in held) != numbers:
            return None
        return self.evidence.rounded(before, stride, padded - span + stride, (value, axis))


def _assumed(node: ir.Node, ref: NodeRef) -> Iterator[str]:
    """Yield that a boolean constant is the same at any size: it may be a comparison that was folded."""
    for value in node.inputs if node.op_type != "Loop" else ():
        if value is not None and value.dtype == ir.DataType.BOOL and _tensor(value) is not None:
            yield f"{ASSUMED}'{value.name}' of {ref} is the same at any size"


def _unlike(ref: NodeRef, fact: str) -> UnsupportedError:
    return refuse(ref, f"the exports differ from this node on: {fact}", _ALIKE)


def _tensor(value: ir.Value | None) -> ir.TensorProtocol | None:
    """Return the tensor of an initializer or a Constant."""
    return None if value is None else ir.convenience.get_const_tensor(value)


def _same(first: ir.Attr, second: ir.Attr) -> bool:
    if first.is_ref() or second.is_ref() or first.type != ir.AttributeType.TENSOR:
        return first == second
    return are_equal(numbers_in(first.as_tensor()), numbers_in(second.as_tensor()))
