"""Follow open sizes through a graph: find the numbers that stand for an exported size.

Each node is inferred twice, at the exported sizes and with a symbol for each open one. Axes that must be equal (see
`facts/axes`) tell which number must be an open size; what reads such a number then holds the symbol, and the walk
starts again. A number that may be a size or not is refused.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

import numpy as np
import onnx_ir as ir

from rnn_lowering.emit.open_scopes import Names
from rnn_lowering.errors import UnsupportedError
from rnn_lowering.facts.axes import Axes, NodeShapes, alone
from rnn_lowering.facts.infer import infer, slice_bounds
from rnn_lowering.facts.known import KnownValues, SizingError, add_initializers
from rnn_lowering.facts.numbers import UnfollowedError, evaluate
from rnn_lowering.facts.operators import (
    bodies_of,
    captured_values,
    operator_of,
    parameter,
    values_used,
    with_bodies,
)
from rnn_lowering.facts.size import Shape, Size, Symbol, product, size
from rnn_lowering.model.scopes import scopes
from rnn_lowering.nodes.kinds import is_recurrent
from rnn_lowering.opening.node_sizes import (
    OuterValue,
    OwnSizes,
    Sums,
    given_to,
    is_followed,
    let_grow,
    read_reshape,
    returned,
    rows_are_equal,
    rows_count,
    shape_in,
    shapes_out,
    state_count,
)
from rnn_lowering.opening.questions import SCOPE, Opened, Questions, ref, refuse
from rnn_lowering.types import Array

_SIZES_IN = {"Reshape": "shape", "Expand": "shape", "ConstantOfShape": "input", "Slice": "ends", "Range": "limit"}
"""By operator, the parameter whose numbers may be sizes."""

_KNOWN_WITHOUT_AXES = frozenset(
    (
        "Reshape",
        "ConstantOfShape",
        "Range",
        "Shape",
        "Size",
        "Constant",
        "Split",
        "Pad",
        "Resize",
        "Flatten",
        "GRU",
        "LSTM",
        "RNN",
    )
)
"""Operators whose sizes are followed without a row for their axes."""


class _AgainError(Exception):
    """A number of a node is an open size: this node and those behind it are followed again."""

    def __init__(self, node: ir.Node) -> None:
        super().__init__()
        self.node = node


_WITH_CHANNELS = (
    *("BatchNormalization", "Conv", "ConvInteger", "ConvTranspose"),
    *("GroupNormalization", "InstanceNormalization", "QLinearConv"),
)
"""Operators with weights for each channel, axis 1."""

_OF_ROWS = "TNI"
"""The axes of a recurrent node that no attribute fixes: steps, rows and inputs."""

_OWN_SIZES = ("GatherElements", "ScatterElements", "ScatterND", "Scatter")
"""Operators whose inputs may have any sizes along the same axis."""


@dataclass
class SizeWalk:
    """Follows open sizes through the main graph of a model.

    Attributes:
        model: The sorted model.
        opset: Its opset.
        axes: By input and axis, the symbol of its size.
        exported: By symbol, the size that the model was exported with.
        names: Gives names to new nodes.
        free: The symbols of axes that were open before: what the model says of them holds at all sizes.
        opened: By node, the parameter whose numbers are sizes.
    """

    model: ir.Model
    opset: int
    axes: Mapping[tuple[str, int], str]
    exported: dict[Symbol, int]
    names: Names
    free: frozenset[str] = frozenset()
    opened: dict[ir.Node, Opened] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.questions = Questions(self.exported, self.free)

    def run(self) -> None:
        """Find the numbers that were sizes, and what is known of each value.

        Raises:
            UnsupportedError: A number may be a size or not, or a node cannot have other sizes.
        """
        graph = self.model.graph
        self.was = KnownValues.start(self.model, self._input_shapes(exported=True))
        self.known = KnownValues.start(self.model, self._input_shapes())
        self.sums = Sums(self.known, self.questions)
        self.readings: dict[ir.Node, Shape] = {}
        self.told: dict[ir.Node, Opened] = {}
        self.outer: dict[ir.Value, OuterValue] = {}
        self.holders: dict[ir.Node, ir.Node] = {}
        for scope in scopes(self.model):
            for node in scope.graph:
                node.meta[SCOPE] = scope.text
        for facts in (self.was, self.known):
            add_initializers(facts, graph)
        followed: set[ir.Node] = set()
        while left := [node for node in graph if node not in followed]:
            try:
                for node in left:
                    self._follow_or_refuse(node)
                    followed.add(node)
            except _AgainError as again:
                followed -= self._forgotten(again.node, followed)
        for question in self.questions.asked.values():
            raise refuse(question.node, question.fact)
        for node in graph.all_nodes():
            self._check_cut(node)

    def _forgotten(self, node: ir.Node, followed: Container[ir.Node]) -> set[ir.Node]:
        """Forget what is known of the outputs of a node, and of the nodes behind it; return these nodes."""
        readers = defaultdict[ir.Value, list[ir.Node]](list)
        for each in self.model.graph:
            for value in values_used(each):
                readers[value].append(each)
        while node in self.holders:
            node = self.holders[node]
        pending, found = [node], set[ir.Node]()
        while pending:
            each = pending.pop()
            found |= {*with_bodies(each)}
            for value in (value for inner in with_bodies(each) for value in inner.outputs):
                for facts in (self.known.types, self.known.shapes, self.known.contents):
                    facts.pop(value, None)
                self.sums.values.discard(value)
                pending += [reader for reader in readers[value] if reader in followed and reader not in found]
        for each in found:
            self.opened.pop(each, None)
        self.opened |= {each: self.told[each] for each in found & self.told.keys()}
        self.questions.forget(found)
        return found

    def _follow_or_refuse(self, node: ir.Node) -> None:
        try:
            self._follow(node)
        except SizingError as error:
            raise self._unanswered(node) or refuse(node, f"does not fit another size: {error.reason}") from error
        except UnfollowedError as error:
            raise refuse(node, "depends on an open size in a way that is not followed") from error

    def _input_shapes(self, exported: bool = False) -> dict[str, Shape]:
        """Return the shapes of the inputs: open ones, or those that the model was exported with."""
        shapes = {}
        for value in self.model.graph.inputs:
            if value.shape is not None and value.name:
                symbols = [self.axes.get((value.name, n)) for n in range(len(value.shape))]
                sizes = [self.exported[s] if s else int(str(value.shape[n])) for n, s in enumerate(symbols)]
                shapes[value.name] = tuple(
                    size(count) if exported or not symbol else Size.symbol(symbol)
                    for symbol, count in zip(symbols, sizes, strict=True)
                )
        return shapes

    def _is_open(self, value: ir.Value | None) -> bool:
        numbers = None if value is None else self.known.contents.get(value)
        return any(dim.symbols for dim in self.known.shape(value)) or (
            numbers is not None and numbers.dtype == object
        )

    # One node

    def _follow(self, node: ir.Node) -> None:
        if not all(value in self.was.shapes for value in node.outputs):
            infer(self.was, node)
            evaluate(self.was, node)
        is_open = any(map(self._is_open, node.inputs)) or node in self.opened
        if bodies_of(node) and (is_open or any(map(self._is_open, captured_values(node)))):
            self._follow_bodies(node)
            return
        self._read_reshape(node)
        self._read_expand(node)
        with_sizes = self._with_opened(node)
        self._infer(node, with_sizes)
        self.sums.check(node, counts=node.op_type == "Range" and node in self.opened)
        if not any(map(self._is_open, (*node.inputs, *node.outputs))) and node not in self.opened:
            return
        self._check_known(node)
        self._check_picked(node)
        for first, axis, other, place in self._equal_axes(node):
            self._make_equal(node, first, axis, other, place)
        self._check_sizes(node)

    def _follow_bodies(self, node: ir.Node) -> None:
        """Follow the sizes in the branches of an If, or in the body of a Scan."""
        if not is_followed(node, self.opset):
            raise refuse(node, "has a body that gets an open size")
        for inner, place in given_to(node, self.was):
            self.outer[inner] = place
            for facts in (self.was, self.known):
                shape = shape_in(place, facts)
                if shape is None or place.value not in facts.types:
                    raise refuse(node, "has a body that gets an open size")
                facts.shapes[inner], facts.types[inner] = shape, facts.types[place.value]
            if place.value in self.sums.values:
                self.sums.values.add(inner)
        for first, axis, other, end in self._lengths_of_scan(node):
            self._make_equal(node, first, axis, other, end)
        for body in bodies_of(node):
            for facts in (self.was, self.known):
                add_initializers(facts, body)
            for each in list(body):
                self.holders[each] = node
                self._follow_or_refuse(each)
        self._leave_bodies(node)

    def _leave_bodies(self, node: ir.Node) -> None:
        """Set the sizes that a node with bodies returns."""
        for n, value in enumerate(node.outputs):
            inner = [each for each, _ in returned(node, n)]
            state = node.inputs[n] if node.op_type == "Scan" and n < state_count(node) else None
            for axis in range(0 if state is None else len(self.known.shape(inner[0]))):
                if state is not None:
                    self._make_equal(node, inner[0], axis, state, axis)
            for facts in (self.was, self.known):
                shapes = shapes_out(node, n, facts)
                if len(shapes) != 1 or inner[0] not in facts.types:
                    raise refuse(node, "has branches that give different sizes")
                facts.types[value], facts.shapes[value] = facts.types[inner[0]], shapes[0]
            if node.op_type == "Scan" or any(each in self.sums.values for each in inner):
                self.sums.values.add(value)
        self._check_sizes(node)

    def _lengths_of_scan(self, node: ir.Node) -> Iterator[tuple[ir.Value, int, ir.Value, int]]:
        """Yield the axes that a Scan takes apart, which must have the same size."""
        rows = [place for _, place in given_to(node, self.was) if place.rows is not None]
        for first in rows:
            for other in rows:
                yield first.value, first.rows or 0, other.value, other.rows or 0

    def _with_opened(self, node: ir.Node) -> Mapping[ir.Value, Array]:
        """Return the numbers of an opened parameter that is an input."""
        opened = self.opened.get(node)
        given = None if opened is None else parameter(node, opened.name, self.opset)
        if opened is None or not isinstance(given, ir.Value):
            return {}
        numbers = np.empty(len(opened.numbers), object)
        numbers[:] = opened.numbers
        return {given: numbers.reshape(self.was.static_shape(given) or ())}

    def _infer(self, node: ir.Node, numbers: Mapping[ir.Value, Array]) -> None:
        """Infer the sizes of outputs, with other numbers for some inputs."""
        before = {value: self.known.contents.get(value) for value in numbers}
        self.known.contents.update(numbers)
        try:
            infer(self.known, node)
            if node in self.readings:
                self.known.set_shape(node.outputs[0], self.readings.pop(node))
            OwnSizes(self.known, self.questions, self._tell).set(node)
            evaluate(self.known, node)
        finally:
            for value, array in before.items():
                self.known.contents.pop(value, None)
                if array is not None:
                    self.known.contents[value] = array

    def _read_reshape(self, node: ir.Node) -> None:
        """Read the numbers of a Reshape."""
        if node.op_type != "Reshape" or node.domain or node in self.opened:
            return
        numbers = self.was.parameter(node, "shape")
        held = parameter(node, "shape", self.opset)
        constant = not isinstance(held, ir.Value) or not self._is_open(held)
        before = self.known.shape(node.inputs[0])
        if not numbers or not constant or not any(dim.symbols for dim in before):
            return
        target = [int(n.constant or 0) for n in numbers]
        readings = read_reshape(before, target, self.exported)
        written = [self._written(target, before, reading) for reading in readings]
        if len(readings) == 1:
            self.opened[node] = Opened(node, "shape", written[0])
            return
        texts = ", ".join(map(str, before)), ", ".join(map(str, target))
        fact = f"makes [{texts[1]}] of [{texts[0]}]: which number is a size is not known"
        if not readings:
            raise refuse(node, fact)
        self.readings[node] = self.questions.reshaped(node, readings, written, fact)

    @staticmethod
    def _written(target: Sequence[int], before: Shape, found: Shape) -> tuple[Size, ...]:
        """Return the numbers of a Reshape for the sizes that it gives: a 0 or -1 stays where it gives the size."""
        stays = [
            kept == -1 or (kept == 0 and n < len(before) and before[n] == found[n]) for n, kept in enumerate(target)
        ]
        return tuple(size(target[n]) if stays[n] else dim for n, dim in enumerate(found))

    def _read_expand(self, node: ir.Node) -> None:
        """Let the numbers of an Expand that meet an open axis be its size."""
        held = parameter(node, "shape", self.opset) if node.op_type == "Expand" else None
        opened = self.opened.get(node)
        numbers = list(opened.numbers) if opened else self.known.parameter(node, "shape") if held else None
        if not numbers or not isinstance(held, ir.Value):
            return
        before = self.known.shape(node.inputs[0])
        padded = (size(1),) * (len(numbers) - len(before)) + before[-len(numbers) :]
        grown = [
            dim if dim.symbols and number.constant not in (1, None) else number
            for dim, number in zip(padded, numbers, strict=True)
        ]
        if grown != numbers:
            self.opened[node] = Opened(node, "shape", tuple(grown))

    # Checks

    def _check_known(self, node: ir.Node) -> None:
        operator = operator_of(node)
        known = operator.axes is not None or operator.same_shape or node.op_type in _KNOWN_WITHOUT_AXES
        if not known or node.domain not in ("", "com.microsoft"):
            raise refuse(node, f"gets an open size, and what {node.op_type} does to its axes is not known")
        if node.op_type in _WITH_CHANNELS and any(dim.symbols for dim in self.known.shape(node.inputs[0])[1:2]):
            raise refuse(node, "needs as many channels as its weights have")
        for slot, labels in _recurrent_axes(node).inputs.items() if is_recurrent(node) else ():
            dims = self.known.shape(node.inputs[slot]) if slot < len(node.inputs) else ()
            if any(dim.symbols and str(label) not in _OF_ROWS for dim, label in zip(dims, labels, strict=False)):
                raise refuse(node, "has attributes that fix its directions and units")

    def _check_picked(self, node: ir.Node) -> None:
        """Check that no row is picked that may be the last one, or the only one."""
        if node.op_type not in ("Gather", "Squeeze") or not self.known.shape(node.inputs[0]):
            return
        shape = self.known.shape(node.inputs[0])
        if node.op_type == "Squeeze":
            axes = self._numbers(node, "axes") or [n for n, dim in enumerate(shape) if dim.at(self.exported) == 1]
            for axis in axes:
                self._answer(shape[axis % len(shape)], size(1))
            if any(shape[axis % len(shape)].symbols for axis in axes):
                raise refuse(node, "removes an open axis")
            return
        dim = shape[(node.attributes.get_int("axis", 0) or 0) % len(shape)]
        rows = self.known.numbers_of_input(node, 1)
        late = [row for row in rows or () if row.constant is not None and row.constant > 0]
        if late and not self.questions.is_free(dim):
            whole = int(dim.at(self.exported))
            raise refuse(node, f"takes row {late[-1]} of {whole}: that row, or row {late[-1] - whole}?")

    def _equal_axes(self, node: ir.Node) -> Iterator[tuple[ir.Value, int, ir.Value, int]]:
        """Yield pairs of axes of inputs that must have the same size, unless one is broadcast."""
        if node.op_type in _OWN_SIZES:
            return
        axes = _recurrent_axes(node) if is_recurrent(node) else self._axes(node)
        held: dict[object, list[tuple[ir.Value, int]]] = {}
        for slot, labels in ({} if axes is None else axes.inputs).items():
            value = node.inputs[slot] if slot < len(node.inputs) else None
            for n, label in enumerate(labels if value is not None else ()):
                if value is not None and n < len(self.known.shape(value)):
                    held.setdefault(label, []).append((value, n))
        for group in held.values():
            for value, axis in group:
                for other, place in group:
                    yield value, axis, other, place

    def _axes(self, node: ir.Node) -> Axes | None:
        rule = operator_of(node).axes
        if rule is None and operator_of(node).same_shape:
            rule = alone
        if rule is None:
            return None
        if node.op_type == "Concat":
            return self._joined(node)
        given = NodeShapes(
            node, self.opset, lambda value: self.known.shapes[value], lambda name: self._numbers(node, name)
        )
        try:
            return rule(given)
        except (LookupError, ValueError, ArithmeticError, TypeError):
            return None

    def _joined(self, node: ir.Node) -> Axes | None:
        """Return the axes of a Concat: those along it have sizes of their own. None if nothing is known of them."""
        rank = len(self.known.shape(node.inputs[0]))
        if not rank:
            return None
        along = (node.attributes.get_int("axis", 1) or 0) % rank
        slots = {n: [f"{n}" if axis == along else axis for axis in range(rank)] for n in range(len(node.inputs))}
        return Axes(slots, [None if axis == along else axis for axis in range(rank)])

    def _numbers(self, node: ir.Node, name: str) -> list[int] | None:
        found = self.known.parameter(node, name)
        if found is None or any(n.constant is None for n in found):
            return None
        return [int(n.constant or 0) for n in found]

    def _make_equal(self, node: ir.Node, first: ir.Value, axis: int, other: ir.Value, place: int) -> None:
        """Make an axis as long as an open one, if both must have the same size."""
        must = is_recurrent(node) or node.op_type in ("Concat", "Scan")
        grown, fixed = self.known.shape(first)[axis], self.known.shape(other)[place]
        if not grown.symbols or grown == fixed or (fixed == size(1) and not must):
            return
        if self.questions.among([grown, fixed]):
            self._answer_equal(grown, fixed, must=must, whole=self._cannot_grow(other, place))
            return
        if fixed.symbols:
            raise refuse(node, f"gets axes of {grown} and {fixed}, which must have the same size")
        if fixed.constant is not None and grown.symbols <= self.free:
            raise self._runs_at_one_size(node, grown, fixed)
        if fixed.constant != grown.at(self.exported):
            raise refuse(node, f"gets axes of {grown} and {fixed}, which do not fit")
        self._open(node, other, place, grown)

    def _runs_at_one_size(self, node: ir.Node, grown: Size, fixed: Size) -> UnsupportedError:
        """Return the error about an axis that is declared open and must have one size."""
        place = next((place for place, symbol in self.axes.items() if grown == Size.symbol(symbol)), None)
        way = place and f"--set-dim {grown}={fixed} --open-dim {place[0]}:{place[1]}={grown}"
        return refuse(node, f"runs at {grown} = {fixed} only", *([f"open this axis too: {way}"] if way else ()))

    def _answer_equal(self, grown: Size, fixed: Size, *, must: bool, whole: bool) -> None:
        """Answer a question by two sizes that must be equal, unless an axis of size 1 may be broadcast.

        Args:
            grown: A size that is open.
            fixed: The other one.
            must: Whether nothing is broadcast.
            whole: Whether the other one, if it is a number, cannot be another.
        """
        first, other = grown.at(self.exported), fixed.at(self.exported)
        if first != other:
            small = grown if first == 1 else fixed
            if min(first, other) == 1:
                self._answer(small, size(1))
        elif (first != 1 or must) and (fixed.symbols or whole):
            self._answer(grown, fixed)

    def _answer(self, first: Size, other: Size) -> None:
        """Start again with the numbers for which two sizes are equal, if these are known now."""
        opened = self.questions.solved(first, other)
        if opened is not None:
            held = self.opened.get(opened.node)
            if held is not None and held.name != opened.name:
                raise refuse(opened.node, "has starts and ends that may count from the end")
            self._tell(opened)

    def _tell(self, opened: Opened) -> NoReturn:
        """Let a node have numbers that other axes tell, and start again there."""
        self.told[opened.node] = opened
        raise _AgainError(opened.node)

    def _cannot_grow(self, value: ir.Value, axis: int) -> bool:
        """Whether a value has a fixed size: an input whose axis is not open, or a table with rows that differ."""
        node, array = value.producer(), self.was.constant(value)
        if value in self.outer:
            return False
        if node is not None and node.op_type != "Constant":
            return False
        return array is None or not (rows_are_equal(array, axis) or rows_count(array, axis))

    def _unanswered(self, node: ir.Node) -> UnsupportedError | None:
        """Return the error about a question that the inputs of a node follow from."""
        dims = [dim for value in (*node.inputs, *node.outputs) for dim in self.known.shape(value)]
        return next((refuse(each.node, each.fact) for each in self.questions.among(dims)), None)

    def _open(self, reader: ir.Node, value: ir.Value, axis: int, grown: Size) -> None:
        """Let an axis of a value have an open size: follow it back to the number that says its size."""
        if value in self.outer:
            holder = reader
            while not any(value in body.inputs for body in bodies_of(holder)):
                holder = self.holders[holder]
            self._open(holder, self.outer[value].value, self.outer[value].axis(axis), grown)
        node = value.producer()
        if node is not None and bodies_of(node) and is_followed(node, self.opset):
            self._open_in_bodies(node, value, axis, grown)
        if node is None or node.op_type == "Constant":
            array = self.was.constant(value)
            if (
                array is None
                or value.is_graph_input()
                or value not in reader.inputs
                or not let_grow(reader, value, array, axis, self.opset, self.names.unique)
            ):
                raise self._no_number(reader, value, axis, grown)
            raise _AgainError(reader)
        name = _SIZES_IN.get(node.op_type)
        if name is not None and (place := self._place(node, value, axis)) is not None:
            numbers = self.opened[node].numbers if node in self.opened else self.known.parameter(node, name)
            if numbers and numbers[place] == size(int(grown.at(self.exported))):
                self._tell(Opened(node, name, (*numbers[:place], grown, *numbers[place + 1 :])))
        if node.op_type == "GatherElements" and node.inputs[1] is not None:
            self._open(node, node.inputs[1], axis, grown)  # the indices give the shape
        axes = self._axes(node)
        label = None if axes is None or axis >= len(axes.output) else axes.output[axis]
        for slot, labels in ({} if axes is None else axes.inputs).items():
            source = node.inputs[slot] if slot < len(node.inputs) else None
            if label is not None and source is not None and label in labels:
                back = [*map(str, labels)].index(str(label))
                if self.known.shape(source)[back] != size(1):
                    self._open(node, source, back, grown)
        raise refuse(
            node,
            f"gives an axis of {self.known.shape(value)[axis]} that must be {grown} at {ref(reader)}",
        )

    def _open_in_bodies(self, node: ir.Node, value: ir.Value, axis: int, grown: Size) -> None:
        """Let an axis of what an If or a Scan returns have an open size."""
        for inner, rows in returned(node, node.outputs.index(value)):
            place = None if rows is None else rows % len(self.known.shape(value))
            if place == axis:
                for given, of_scan in ((each.value, each.rows) for _, each in given_to(node, self.was)):
                    if of_scan is not None and self.known.shape(given)[of_scan] != grown:
                        self._open(node, given, of_scan, grown)
            else:
                back = axis if place is None or axis < place else axis - 1
                if self.known.shape(inner)[back] != grown:
                    self._open(node, inner, back, grown)

    def _place(self, node: ir.Node, value: ir.Value, axis: int) -> int | None:
        """Return which number of the parameter of a node says the size of an axis of its output."""
        if node.op_type != "Slice":
            return axis if node.op_type in ("Reshape", "Expand", "ConstantOfShape") else 0
        axes = self._numbers(node, "axes") or [*range(len(self.known.shape(value)))]
        bounds = slice_bounds(self.was, node, len(self.known.shape(value))) or {}
        whole = axis in bounds and bounds[axis][0] == size(0) and bounds[axis][2] == size(1)
        return [n % len(self.known.shape(value)) for n in axes].index(axis) if whole else None

    def _no_number(self, reader: ir.Node, value: ir.Value, axis: int, grown: Size) -> UnsupportedError:
        count = self.known.shape(value)[axis]
        if value.is_graph_input():
            return refuse(
                reader,
                f"needs axis {axis} of input '{value.name}', which has {count}, to have {grown}",
                f"--open-dim {value.name}:{axis}={grown}",
            )
        return refuse(reader, f"gets a constant '{value.name}' with {count} on axis {axis}, which must be {grown}")

    def _check_cut(self, node: ir.Node) -> None:
        """Check that no Slice takes just what the axis had: this may be all of it, or a part of a longer one."""
        shape = self.known.shape(node.inputs[0]) if node.op_type == "Slice" else ()
        for axis, (first, last, _) in (slice_bounds(self.known, node, len(shape)) or {}).items() if shape else ():
            whole = (
                not self.questions.is_free(shape[axis])
                and last.constant == shape[axis].at(self.exported)
                and first == size(0)
            )
            if whole and node not in self.opened:
                raise refuse(
                    node, f"takes 0 to {last} of an axis of {last}: all of it, or the first {last} of a longer one?"
                )

    def _check_sizes(self, node: ir.Node) -> None:
        """Check that the sizes of the outputs are known, and those that they were."""
        if node.op_type == "Reshape" and not node.domain:
            shapes = self.known.shape(node.inputs[0]), self.known.shape(node.outputs[0])
            if product(shapes[0]) != product(shapes[1]) and not self.questions.among(shapes[1]):
                raise refuse(node, "does not have all elements at another size")
        for value in node.outputs:
            if not value.name or value not in self.was.shapes:
                continue
            before, now = self.was.shapes[value], self.known.shapes.get(value)
            if (
                now is None
                or len(now) != len(before)
                or any(not dim.symbols <= self.exported.keys() for dim in now)
            ):
                raise self._unanswered(node) or refuse(node, "gives a size that does not follow from the open ones")
            if any(dim.at(self.exported) != old.constant for dim, old in zip(now, before, strict=True)):
                raise refuse(node, "gives other sizes than it did")


def _recurrent_axes(node: ir.Node) -> Axes:
    """Return the axes of a recurrent node's inputs: steps, rows, inputs, directions, gates and units."""
    first = node.attributes.get_int("layout", 0)
    states = "NDH" if first else "DNH"
    slots: dict[int, str] = {0: "NTI" if first else "TNI", 1: "DGI", 2: "DGH", 4: "N", 5: states, 6: states}
    slots |= {3: "DB", 7: "DP"}
    return Axes(slots, "")
