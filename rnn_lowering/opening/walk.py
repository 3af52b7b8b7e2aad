"""One walk over the exports of a net, node by node: what differs is explained by a size and written so.

The sizes of each export are inferred, and those of the opened model with a symbol for each opened axis. A size that
inference loses, such as that of a strided convolution, gets a symbol of its own, which is read from its value.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product as combinations
from itertools import zip_longest

import onnx_ir as ir

from rnn_lowering.errors import NodeRef, UnsupportedError
from rnn_lowering.facts.axes import Label
from rnn_lowering.facts.infer import infer, slice_bounds
from rnn_lowering.facts.known import KnownValues, SizingError, add_initializers, axes_of
from rnn_lowering.facts.node_outputs import numbers_in
from rnn_lowering.facts.numbers import UnfollowedError, evaluate
from rnn_lowering.facts.operators import TO_THE_END, bodies_of, input_slots, is_of_default_domain, operator_of
from rnn_lowering.facts.size import PartialShape, Shape, Size, product, size
from rnn_lowering.model.model_sizes import Inferred, inferred_values
from rnn_lowering.model.scopes import scopes
from rnn_lowering.nodes.kinds import node_ref
from rnn_lowering.opening.evidence import SIZES, THIRD, Evidence, Integers, refuse, text_of, told
from rnn_lowering.opening.tables import Arrays, Tables, Writer, are_equal
from rnn_lowering.passes.report import ASSUMED
from rnn_lowering.types import Array

_WINDOWED = ("Conv", "ConvTranspose", "AveragePool", "LpPool", "MaxPool")
_OF_ANY_SIZES = ("GatherElements", "ScatterElements", "ScatterND", "Scatter")
"""Operators whose inputs may have any sizes along the same axis."""

_FIRST_OF_WINDOWS = 2
"""The first axis along which windows move."""

_ALIKE = "export both with the same code, seed, exporter and opset, without folding"

_GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


@dataclass
class ExportWalk:
    """Opens the first of several exports, in place.

    Attributes:
        models: The exports, sorted and without functions; the first is opened.
        known: What is known of each export.
        writer: Writes nodes into the opened model.
        partners: By value of another export, the value of the first one.
        windows: By size, stride and r, what (size + r) // stride is.
    """

    models: Sequence[ir.Model]
    known: Sequence[KnownValues]
    writer: Writer
    partners: dict[ir.Value, ir.Value] = field(default_factory=dict)
    windows: dict[Hashable, Size] = field(default_factory=dict)

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
        self.scopes = {scope.graph: scope.text for scope in scopes(self.models[0])}
        bodies = any(bodies_of(node) for node in self.models[0].graph)
        self.inferred: list[Inferred] = [inferred_values(model) if bodies else {} for model in self.models]
        graphs = [model.graph for model in self.models]
        self._pair(*([value for value in graph.inputs if not value.is_initializer()] for graph in graphs))
        return list(self._follow_graphs(graphs))

    def _ref(self, node: ir.Node) -> NodeRef:
        graph = node.graph
        return node_ref(node, self.scopes.get(graph, "main graph") if isinstance(graph, ir.Graph) else "main graph")

    def _pair(self, *values: Sequence[ir.Value]) -> None:
        for first, *others in zip(*values, strict=True):
            self.partners |= dict.fromkeys((first, *others), first)

    # Graphs

    def _follow_graphs(self, graphs: Sequence[ir.Graph]) -> Iterator[str]:
        for known, graph in zip((*self.known, self.opened), (*graphs, graphs[0]), strict=True):
            add_initializers(known, graph)
            for node in graph:
                if node.op_type == "Constant":
                    infer(known, node)
                    evaluate(known, node)
        rows = [[node for node in graph if node.op_type != "Constant"] for graph in graphs]
        for nodes in zip_longest(*rows):
            yield from self._follow(nodes)
        for values in zip(*(graph.outputs for graph in graphs), strict=True):
            if self._differing(values, ref := NodeRef(str(values[0].name), "output", self.scopes[graphs[0]])):
                raise _unlike(ref, "it is another constant")

    def _follow(self, row: Sequence[ir.Node | None]) -> Iterator[str]:
        nodes = [node for node in row if node is not None]
        first, ref = nodes[0], self._ref(nodes[0])
        if len(nodes) < len(row):
            raise _unlike(ref, "another has none here")
        for node in nodes[1:]:
            if node.op_identifier() != first.op_identifier():
                raise _unlike(ref, f"another has {node.op_type} here")
            if (len(node.inputs), len(node.outputs)) != (len(first.inputs), len(first.outputs)):
                raise _unlike(ref, "another has other inputs or outputs")
        for known, node in zip(self.known, nodes, strict=True):
            self._infer(known, node, ref)
        slots = enumerate(zip(*(node.inputs for node in nodes), strict=True))
        constants = {slot: arrays for slot, values in slots if (arrays := self._differing(values, ref))}
        attributes = self._attributes(ref, nodes)
        if constants or attributes:
            yield from _Differences(first, ref, constants, attributes, self.writer).open()
        yield from _assumed(first, ref)
        self._pair(*(node.outputs for node in nodes))
        yield from self._follow_bodies(nodes)
        self._infer(self.opened, first, ref)
        self._check_equal(first, ref)
        for values in zip(*(node.outputs for node in nodes), strict=True):
            self._settle(values, ref)

    def _infer(self, known: KnownValues, node: ir.Node, ref: NodeRef) -> None:
        if bodies_of(node):
            return
        try:
            infer(known, node)
            evaluate(known, node)
        except SizingError as error:
            raise refuse(ref, f"does not fit another size: {error.reason}") from error
        except UnfollowedError as error:
            raise refuse(ref, "depends on a size in a way that is not followed") from error

    def _follow_bodies(self, nodes: Sequence[ir.Node]) -> Iterator[str]:
        node, bodies = nodes[0], list(zip(*map(bodies_of, nodes), strict=True))
        for graphs in bodies:
            self._pair(*(graph.inputs for graph in graphs))
            for n, values in enumerate(zip(*(graph.inputs for graph in graphs), strict=True)):
                self._take_inferred(values, _shape_in(node, n, self.opened))
            yield from self._follow_graphs(graphs)
            self.evidence.leave(graphs[0])
        for n, values in enumerate(zip(*(node.outputs for node in nodes), strict=True) if bodies else ()):
            self._take_inferred(values, _shape_out(node, n, self.opened))

    def _take_inferred(self, values: Sequence[ir.Value], expected: Shape | None) -> None:
        """Take the type and shape of a value of a body, or of a node that has one, from those of its model.

        Args:
            values: The value in each export.
            expected: Its shape in the opened model, if it is as in the exports.
        """
        for known, value, inferred in zip(self.known, values, self.inferred, strict=True):
            held = inferred.get(value, value)
            if (dtype := held.dtype or value.dtype) is not None:
                known.types[value] = self.opened.types[values[0]] = dtype
            if held.shape is not None:
                dims = (size(dim) if isinstance(dim, int) else known.unknown() for dim in held.shape)
                known.shapes[value] = tuple(dims)
        if expected is not None and all(dim.symbols <= self.evidence.known_symbols for dim in expected):
            self.opened.shapes[values[0]] = expected
        self._settle(values, None)

    # What is alike and what differs

    def _differing(self, values: Sequence[ir.Value | None], ref: NodeRef) -> list[Array]:
        """Return a constant in each export if it differs, nothing for one that is equal or computed alike."""
        computed = {None if value is None else self.partners.get(value, value) for value in values}
        if len(computed) == 1:
            return []
        if not all(value is not None and _is_constant(value) for value in values):
            raise _unlike(ref, "another reads other values")
        arrays = [_array(value) for value in values if value is not None]
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
        for dims in groups.values():
            if len(dims) > 1:
                names = told(text_of(dim) for dim in dims)
                raise refuse(ref, f"needs equal sizes, and {names} are, perhaps by chance", THIRD)

    def _settle(self, values: Sequence[ir.Value], ref: NodeRef | None) -> None:
        """Set the sizes of a value: each is that of every export, at its size."""
        was = [known.shapes.get(value) for known, value in zip(self.known, values, strict=True)]
        shapes = [shape for shape in was if shape is not None]
        if len(shapes) < len(was) or len(set(map(len, shapes))) > 1:
            return
        value, found = values[0], self.opened.shapes.get(values[0])
        fits = found is not None and len(found) == len(shapes[0])
        sizes: PartialShape = found if found is not None and fits else (None,) * len(shapes[0])
        dims = [self._dim(value, axis, dim, [s[axis] for s in shapes], ref) for axis, dim in enumerate(sizes)]
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
        return (
            self._of_input(value, numbers)
            or self._of_slice(value, axis, numbers)
            or self._of_window(value, axis, numbers)
            or self._own(value, axis, numbers)
        )

    def _of_input(self, value: ir.Value, numbers: Integers) -> Size | None:
        """Return the size of an input of an element-wise node that has these sizes, if it depends on axes alone."""
        node = value.producer()
        if node is None or not operator_of(node).elementwise:
            return None
        sizes = self.evidence.known(self.opened.shape(given) for given in node.inputs)
        alike = [dim for dim, held in sizes.items() if held == numbers and dim.symbols <= self.evidence.axes]
        return alike[0] if len(alike) == 1 else None

    def _of_slice(self, value: ir.Value, axis: int, numbers: Integers) -> Size | None:
        """Return the number of rows that a Slice takes, if there are as many."""
        node = value.producer()
        rank = 0 if node is None or node.op_type != "Slice" else len(self.opened.shape(node.inputs[0]))
        bounds = slice_bounds(self.opened, node, rank) if node is not None and rank else None
        first, last, step = (bounds or {}).get(axis, (None, None, None))
        if first is None or last is None or step != size(1):
            return None
        return last - first if self.evidence.sizes_of(last - first) == numbers else None

    def _of_window(self, value: ir.Value, axis: int, numbers: Integers) -> Size | None:
        """Return the size behind a window along an axis: (size + r) // stride of one value, and a number."""
        node = value.producer()
        if node is None or node.op_type not in _WINDOWED or axis < _FIRST_OF_WINDOWS:
            return None
        before, given, n = self.opened.shape(node.inputs[0])[axis], node.attributes, axis - _FIRST_OF_WINDOWS
        if (held := self.evidence.sizes.get(before)) is None:
            return None
        stride, kernel = (given.get_ints("strides") or {n: 1})[n], given.get_ints("kernel_shape")
        rests = {number - stride * count for number, count in zip(numbers, held, strict=True)}
        if (stride == 1 or node.op_type == "ConvTranspose") and len(rests) == 1:
            return before * stride + rests.pop()
        span = int(kernel[n] if kernel else self.opened.shape(node.inputs[1])[axis].constant or 0)
        span = (span - 1) * (given.get_ints("dilations") or {n: 1})[n] + 1
        pads = given.get_ints("pads")
        padded = sum(pads[n :: len(pads) // 2]) if pads else 0
        more, rest = divmod(padded - span, stride)
        if tuple((count + padded - span) // stride + 1 for count in held) != numbers:
            return None
        key = (before, stride, rest)
        if key not in self.windows:
            self.windows[key] = self._own(value, axis, numbers) - more
        return self.windows[key] + more

    def _own(self, value: ir.Value, axis: int, numbers: Integers) -> Size:
        """Return a symbol that is read from the value."""
        symbol = f"size {axis} of {value.name}"
        self.evidence.values[symbol], self.evidence.origins[symbol] = numbers, (value, axis)
        return Size.symbol(symbol)


# Sizes of what bodies get and return


def _rows(node: ir.Node, slot: int, name: str) -> int | None:
    """Return along which axis a Scan takes apart an input, or stacks an output; None for states."""
    scanned = node.attributes.get_int("num_scan_inputs", 0) or 0
    n = slot - (len(node.inputs) - scanned)
    return None if n < 0 else (node.attributes.get_ints(name) or {n: 0})[n]


def _shape_in(node: ir.Node, n: int, known: KnownValues) -> Shape | None:
    """Return the shape that input n of a body has if it is that of a value outside, or of its rows."""
    outer = node.inputs[n] if n < len(node.inputs) else None
    shape = None if outer is None else known.shapes.get(outer)
    axis = _rows(node, n, "scan_input_axes") if node.op_type == "Scan" else None
    return shape if shape is None or axis is None else (*shape[:axis], *shape[axis:][1:])


def _shape_out(node: ir.Node, n: int, known: KnownValues) -> Shape | None:
    """Return the shape of output n of a node, from what its bodies return."""
    shift = 1 if node.op_type == "Loop" else 0
    outputs = [body.outputs[n + shift :] for body in bodies_of(node)]
    shapes = {known.shapes.get(rest[0]) if rest else None for rest in outputs}
    shape = shapes.pop() if len(shapes) == 1 else None
    if node.op_type == "Scan" and shape is not None and (axis := _rows(node, n, "scan_output_axes")) is not None:
        whole = known.shape(node.inputs[-1])
        first = _rows(node, len(node.inputs) - 1, "scan_input_axes") or 0
        return (*shape[:axis], *whole[first : first + 1], *shape[axis:])
    return shape


def _assumed(node: ir.Node, ref: NodeRef) -> Iterator[str]:
    """Yield that a boolean constant is the same at any size: it may be a comparison that was folded."""
    if node.op_type == "Loop":
        return
    for value in node.inputs:
        if value is not None and value.dtype == ir.DataType.BOOL and _is_constant(value):
            yield f"{ASSUMED}'{value.name}' of {ref} is the same at any size"


def _unlike(ref: NodeRef, fact: str) -> UnsupportedError:
    return refuse(ref, f"the exports differ from this node on: {fact}", _ALIKE)


def _is_constant(value: ir.Value) -> bool:
    producer = value.producer()
    return value.is_initializer() if producer is None else producer.op_type == "Constant"


def _array(value: ir.Value) -> Array | None:
    tensor = ir.convenience.get_const_tensor(value)
    return None if tensor is None else numbers_in(tensor)


def _same(first: ir.Attr, second: ir.Attr) -> bool:
    if first.is_ref() or second.is_ref() or first.type != ir.AttributeType.TENSOR:
        return first == second
    return are_equal(numbers_in(first.as_tensor()), numbers_in(second.as_tensor()))


# What a node becomes whose constants or attributes differ between the exports.


@dataclass(frozen=True)
class _Differences:
    """A node, and what differs between the exports.

    Attributes:
        node: The node of the first export, which is opened.
        ref: What to call it.
        constants: By slot, what the constant is in each export.
        attributes: By name, what the attribute is in each export.
        writer: Writes nodes into the opened model.
    """

    node: ir.Node
    ref: NodeRef
    constants: Mapping[int, Arrays]
    attributes: Mapping[str, Sequence[ir.Attr]]
    writer: Writer

    @property
    def known(self) -> KnownValues:
        """What is known of the opened model."""
        return self.writer.known

    @property
    def evidence(self) -> Evidence:
        return self.writer.evidence

    @property
    def own(self) -> list[Shape]:
        """The shapes of its inputs."""
        return [self.known.shape(value) for value in self.node.inputs]

    def open(self) -> list[str]:
        """Change the node; return what changed.

        Raises:
            UnsupportedError: No rule explains what differs.
        """
        self.writer.place, notes = self.node, []
        if self.attributes:
            rule = _ATTRIBUTES.get(self.node.op_type) if is_of_default_domain(self.node) else None
            notes = [rule(self) if rule else ""]
            if not notes[0]:
                name, given = next(iter(self.attributes.items()))
                text = told(a.value if a.type != ir.AttributeType.TENSOR else "a tensor" for a in given)
                raise refuse(
                    self.ref,
                    f"its attribute {name} is {text}, which cannot be a size",
                    hint="export at opset 13 or later",
                )
        for slot, arrays in self.constants.items():
            whole = arrays[0].dtype == "int64" and arrays[0].ndim == 1 and len({a.shape for a in arrays}) == 1
            notes.append(f"{self.ref}: {(self._open_sizes if whole else self._open_table)(slot, arrays)}")
        return notes

    def _name(self, slot: int) -> str:
        """Return the name of an input in the schema of the operator."""
        slots = input_slots(self.node.op_type, self.known.opset) if is_of_default_domain(self.node) else {}
        return next((name for name, place in slots.items() if place == slot), f"input {slot}")

    def _open_table(self, slot: int, arrays: Arrays) -> str:
        value = Tables(self.writer, self.ref, self.own, self._name(slot)).write(arrays)
        self.node.replace_input_with(slot, value)
        return f"{self._name(slot)} follows the size"

    def _open_sizes(self, slot: int, arrays: Arrays) -> str:
        """Write integers of which some are sizes."""
        columns: list[Integers] = list(zip(*(array.tolist() for array in arrays), strict=True))
        place = (self.node.op_type, slot) if is_of_default_domain(self.node) else ("", 0)
        fixed = self._of_reshape(columns) if place == ("Reshape", 1) else {}
        explained = partial(self.evidence.integer, self.ref, self._name(slot), own=self.own)
        numbers = [fixed.get(n) or explained(column) for n, column in enumerate(columns)]
        written = _WRITTEN[place](self, numbers) if place in _WRITTEN else numbers
        self.node.replace_input_with(slot, self.writer.sizes(written))
        changed = (f"{c[0]} is {text_of(n)}" for c, n in zip(columns, numbers, strict=True) if len(set(c)) > 1)
        return " and ".join(changed)

    def _of_reshape(self, columns: Sequence[Integers]) -> dict[int, Size]:
        """Return numbers of a Reshape by their place, as far as the product of all decides them."""
        before, zero = self.own[0], not self.node.attributes.get_int("allowzero", 0)
        differ = [n for n, numbers in enumerate(columns) if len(set(numbers)) > 1]
        kept = [(n, c[0]) for n, c in enumerate(columns) if n not in differ]
        if not before or any(number == -1 for _, number in kept):
            return {}
        rest = product(before[n] if zero and not number and n < len(before) else size(number) for n, number in kept)
        if len(differ) == 1:
            whole = product(before).divided(rest)
            return {differ[0]: whole} if whole is not None and whole.is_integral else {}
        choices = combinations(*(self.evidence.integers(columns[n], self.own) for n in differ))
        fits = [choice for choice in choices if product(choice) * rest == product(before)]
        return dict(zip(differ, fits[0], strict=True)) if len(fits) == 1 else {}


# How numbers of a node are written: what stands for a size of its input takes no computation.


def _as_reshape(of: _Differences, numbers: Sequence[Size]) -> list[Size]:
    """Write -1 and 0 where they give the sizes."""
    before, found = of.own[0], list(numbers)
    if not of.node.attributes.get_int("allowzero", 0):
        found = [size(0) if n.symbols and k < len(before) and before[k] == n else n for k, n in enumerate(found)]
    left = [k for k, n in enumerate(found) if n.symbols]
    if len(left) == 1 and size(-1) not in found:
        found[left[0]] = size(-1)
    return found


def _as_expand(of: _Differences, numbers: Sequence[Size]) -> list[Size]:
    """Write 1 where the input has the size."""
    before, start = of.own[0], len(numbers) - len(of.own[0])
    return [size(1) if k >= start and n.symbols and before[k - start] == n else n for k, n in enumerate(numbers)]


def _as_cut(of: _Differences, numbers: Sequence[Size]) -> list[Size]:
    """Write numbers that count from the end, and the end itself."""
    axes, before = of.known.parameter(of.node, "axes"), of.own[0]
    if axes is None or not before or any(axis.constant is None for axis in axes):
        return list(numbers)
    places = [int(axis.constant or 0) for axis in axes] or range(len(numbers))
    found = []
    for number, axis in zip(numbers, places, strict=True):
        rest = (number - before[axis]).constant if number.symbols else None
        counted = number if rest is None or rest > 0 else size(rest)
        found.append(size(TO_THE_END) if rest == 0 else counted)
    return found


_WRITTEN: Mapping[tuple[str, int], Callable[[_Differences, Sequence[Size]], list[Size]]] = {
    ("Reshape", 1): _as_reshape,
    ("Expand", 1): _as_expand,
    ("Slice", 1): _as_cut,
    ("Slice", 2): _as_cut,
}
"""By operator and slot."""


# The rules of attributes: each changes a node and returns what changed, or "" where it does not apply.


def _integers(node: ir.Node, name: str, default: int, count: int) -> list[int]:
    return list(node.attributes.get_ints(name) or [default] * count)


def _pool(of: _Differences) -> str:
    """A pool over whole axes: it becomes a reduction of them."""
    node, before, kernels = of.node, of.own[0], of.attributes.get("kernel_shape", ())
    plain = {*of.attributes} <= {"kernel_shape", "strides"} and len(node.outputs) == 1
    if not plain or not kernels or node.attributes.get_string("auto_pad", "NOTSET") != "NOTSET":
        return ""
    columns = list(zip(*(kernel.as_ints() for kernel in kernels), strict=True))
    whole = [n for n, numbers in enumerate(columns) if len(set(numbers)) > 1]
    pads, strides = (
        _integers(node, name, d, len(columns) * k) for name, d, k in (("pads", 0, 2), ("strides", 1, 1))
    )
    steps = list(zip(*(held.as_ints() for held in of.attributes.get("strides", ())), strict=True))
    moved = any(len(set(numbers)) > 1 and n not in whole for n, numbers in enumerate(steps))
    fits = all(of.evidence.sizes.get(before[n + 2]) == columns[n] for n in whole)
    if moved or not fits or any(pads[n] or pads[n + len(columns)] for n in whole) or "dilations" in node.attributes:
        return ""
    axes, value, writer = [n + 2 for n in whole], node.inputs[0], of.writer
    assert value is not None
    reduction = "ReduceMean" if node.op_type == "AveragePool" else "ReduceMax"
    if "axes" in input_slots(reduction, of.known.opset):
        reduced = writer.add(reduction, value, writer.integers(axes), keepdims=1)
    else:
        reduced = writer.add(reduction, value, axes=axes, keepdims=1)
    shape = tuple(size(1) if n in axes else dim for n, dim in enumerate(before))
    node.replace_input_with(0, writer.declared(reduced, of.known.types[value], shape))
    for name, held in (("kernel_shape", [c[0] for c in columns]), ("strides", strides)):
        node.attributes[name] = ir.AttrInt64s(name, [1 if n in whole else each for n, each in enumerate(held)])
    return f"{of.ref}: it reduces all of axis {told(axes)}"


def _transposed(of: _Differences) -> str:
    """The sizes that a ConvTranspose gives: pads say the same."""
    node, before, weights = of.node, of.own[0], of.own[1]
    kernel = _integers(node, "kernel_shape", 0, 0) or [int(dim.constant or 0) for dim in weights[2:]]
    wanted = [list(a.as_ints())[-len(kernel) :] for a in of.attributes.get("output_shape", ())]
    names = ("strides", 1), ("dilations", 1), ("output_padding", 0)
    strides, dilations, more = (_integers(node, name, default, len(kernel)) for name, default in names)
    pads: list[list[int]] = [[], []]
    for n, length in enumerate(kernel):
        full = (before[n + 2] - 1) * strides[n] + dilations[n] * (length - 1) + 1 + more[n]
        rests = {of.evidence.in_export(full, k) - held[n] for k, held in enumerate(wanted)}
        rest = rests.pop().constant if len(rests) == 1 else None
        if rest is None or rest < 0:
            return ""
        half, last = int(rest) // 2, node.attributes.get_string("auto_pad", "NOTSET") == "SAME_UPPER"
        pads[last].append(int(rest) - half)
        pads[not last].append(half)
    node.attributes.pop("output_shape")
    node.attributes.pop("auto_pad", None)
    node.attributes["pads"] = ir.AttrInt64s("pads", [*pads[0], *pads[1]])
    return f"{of.ref}: pads in place of output_shape"


_ATTRIBUTES = {"AveragePool": _pool, "MaxPool": _pool, "ConvTranspose": _transposed}
"""By operator."""
