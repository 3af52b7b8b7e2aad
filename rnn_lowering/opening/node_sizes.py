"""Which numbers of a node are sizes of an open axis: of windows, cuts, Reshapes, constants, sums and bodies."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from itertools import product as combinations
from typing import ClassVar, NoReturn

import numpy as np
import onnx_ir as ir

from rnn_lowering.facts.infer import slice_bounds
from rnn_lowering.facts.known import KnownValues
from rnn_lowering.facts.operators import bodies_of
from rnn_lowering.facts.size import Shape, Size, Symbol, product, size
from rnn_lowering.opening.questions import Cut, Opened, Questions, refuse
from rnn_lowering.types import Array

WINDOWED = ("Conv", "AveragePool", "LpPool", "MaxPool")
"""Operators with windows."""


@dataclass(frozen=True)
class SlidingWindow:
    """A window that moves by one row.

    Attributes:
        span: How many rows it covers.
        before, after: How many rows of padding are at the start and at the end.
    """

    span: int
    before: int
    after: int


def sliding_window(node: ir.Node, axis: int, weights: Shape) -> SlidingWindow | None:
    """Return the window along an axis; None if it moves by more than one row, or is not known.

    Args:
        node: One of `WINDOWED`.
        axis: The axis of its input, 2 or higher.
        weights: The shape of its second input; empty for a pool.
    """
    given, n = node.attributes, axis - 2
    kernel = list(given.get_ints("kernel_shape") or [int(dim.constant or 0) for dim in weights[2:]])
    if n >= len(kernel) or not kernel[n] or given.get_int("ceil_mode"):
        return None
    strides, dilations, pads = (
        list(given.get_ints(name) or [default] * 2 * len(kernel))
        for name, default in (("strides", 1), ("dilations", 1), ("pads", 0))
    )
    span = dilations[n] * (kernel[n] - 1) + 1
    padded = {
        "NOTSET": (pads[n], pads[n + len(kernel)]),
        "VALID": (0, 0),
        "SAME_UPPER": ((span - 1) // 2, span // 2),
        "SAME_LOWER": (span // 2, (span - 1) // 2),
    }.get(given.get_string("auto_pad", "NOTSET") or "NOTSET")
    return None if padded is None or strides[n] != 1 else SlidingWindow(span, *padded)


# The sizes behind operators that cut, pad, split, resize or slide along an open axis.


@dataclass(frozen=True)
class OwnSizes:
    """Sets sizes that ONNX's inference does not know, or knows for the exported numbers only.

    Attributes:
        known: What is known of the values.
        questions: The numbers whose meaning is not known yet.
        tell: Lets a node have other numbers, and follows it again.
    """

    known: KnownValues
    questions: Questions
    tell: Callable[[Opened], NoReturn]

    def set(self, node: ir.Node) -> None:
        """Set the sizes of the outputs of a node, if it is such an operator."""
        rule = self._rules.get(node.op_type)
        if rule is not None and not node.domain and self.known.shape(node.inputs[0]):
            rule(self, node)

    def _slice(self, node: ir.Node) -> None:
        """Set the sizes of a Slice of an open axis from its numbers, until one is known to be a size."""
        shape = self.known.shape(node.inputs[0])
        bounds = slice_bounds(self.known, node, len(shape))
        if bounds is None or not any(shape[axis].symbols or bounds[axis][1].symbols for axis in bounds):
            return
        dims: list[Size | None] = [None if axis in bounds else dim for axis, dim in enumerate(shape)]
        starts, ends = (self.known.parameter(node, name) or [] for name in ("starts", "ends"))
        for n, (axis, each) in enumerate(bounds.items()):
            if not self.questions.is_free(shape[axis]) or each[1].symbols:
                dims[axis] = self.questions.cut(node, axis, shape[axis], each, Cut(node, starts, ends, n))
        self.known.set_shape(node.outputs[0], dims)

    def _pad(self, node: ir.Node) -> None:
        """Set the sizes of a padded open axis."""
        shape = self.known.shape(node.inputs[0])
        amounts, axes = self.known.parameter(node, "pads"), self.known.parameter(node, "axes")
        if not amounts or axes is None or any(axis.constant is None for axis in axes):
            return
        dims: list[Size | None] = [None] * len(shape)
        for n, axis in enumerate([int(axis.constant or 0) % len(shape) for axis in axes] or range(len(shape))):
            if not self.questions.is_free(shape[axis]):
                places = n, n + len(amounts) // 2
                dims[axis] = self.questions.padded(node, axis, shape[axis], amounts, places)
        self.known.set_shape(node.outputs[0], dims)

    def _split(self, node: ir.Node) -> None:
        """Set the sizes of the parts of an open axis."""
        shape, numbers = self.known.shape(node.inputs[0]), self.known.parameter(node, "split")
        axis = (node.attributes.get_int("axis", 0) or 0) % len(shape)
        if not numbers or self.questions.is_free(shape[axis]):
            return
        for value, part in zip(node.outputs, self.questions.parts(node, axis, shape[axis], numbers), strict=True):
            self.known.set_shape(value, [part if n == axis else None for n in range(len(shape))])

    def _resize(self, node: ir.Node) -> None:
        """Set the sizes of an open axis that is resized. The batch is not, where its size stays."""
        shape, numbers = self.known.shape(node.inputs[0]), self.known.parameter(node, "sizes")
        scales = self.known.parameter(node, "scales")
        dims: list[Size | None] = [None] * len(shape)
        for axis, dim in enumerate(shape):
            if self.questions.is_free(dim):
                continue
            if scales and len(scales) == len(shape):
                dims[axis] = self.questions.scaled(node, axis, dim, scales)
            elif numbers and len(numbers) == len(shape):
                if not axis and numbers[0].constant == dim.at(self.questions.exported):
                    self.tell(Opened(node, "sizes", (dim, *numbers[1:])))
                dims[axis] = self.questions.resized(node, axis, numbers) if axis else None
        if any(dims):
            self.known.set_shape(node.outputs[0], dims)

    def _windows(self, node: ir.Node) -> None:
        """Set the sizes behind a convolution or a pool whose window moves along an open axis."""
        before, weights = (self.known.shape(value) for value in (*node.inputs, None)[:2])
        dims: list[Size | None] = [None] * len(before)
        for axis, dim in enumerate(before[2:], 2):
            window = sliding_window(node, axis, weights if node.op_type == "Conv" else ()) if dim.symbols else None
            if window is not None:
                dims[axis] = dim + window.before + window.after + 1 - window.span
        if any(dims):
            self.known.set_shape(node.outputs[0], dims)

    _rules: ClassVar = {
        "Slice": _slice,
        "Pad": _pad,
        "Split": _split,
        **dict.fromkeys(("Resize", "Upsample"), _resize),
        **dict.fromkeys(WINDOWED, _windows),
    }


# Constants that have any number of rows: equal ones, such as zeros, and positions 0, 1, 2 and so on.


_FIRST_WITH_AXES = 13
"""First opset whose Unsqueeze has its axes as an input."""

_FEWEST = 3
"""Fewer positions may be something else."""


def rows_are_equal(array: Array, axis: int) -> bool:
    """Whether an array has rows, and all are equal."""
    return array.shape[axis] > 0 and bool((array == np.take(array, [0], axis)).all())


def rows_count(array: Array, axis: int) -> bool:
    """Whether the rows of an array are the numbers 0, 1, 2 and so on."""
    rows = array.shape[axis]
    is_list = array.dtype.kind in "iu" and array.size == rows >= _FEWEST
    return is_list and bool((array.reshape(-1) == np.arange(rows)).all())


def let_grow(
    reader: ir.Node, value: ir.Value, array: Array, axis: int, opset: int, name: Callable[[str], str]
) -> bool:
    """Compute a constant before a reader by nodes whose numbers say how many rows there are; return whether that is
    possible.

    Args:
        reader: The node that reads it.
        value: The constant.
        array: What it holds.
        axis: The axis of the rows.
        opset: The opset of the model.
        name: Returns a name for a node of an operator.
    """
    if rows_are_equal(array, axis):
        row, shape = np.take(array, [0], axis), np.array(array.shape, np.int64)
        nodes = [_constant(row), _constant(shape)]
        nodes.append(ir.node("Expand", [node.outputs[0] for node in nodes]))
    elif rows_count(array, axis):
        nodes = [_constant(np.array(n, array.dtype)) for n in (0, array.size, 1)]
        nodes.append(ir.node("Range", [node.outputs[0] for node in nodes]))
        others = [n for n in range(array.ndim) if n != axis]
        if others and opset >= _FIRST_WITH_AXES:
            nodes.append(_constant(np.array(others, np.int64)))
            nodes.append(ir.node("Unsqueeze", [nodes[3].outputs[0], nodes[4].outputs[0]]))
        elif others:
            nodes.append(ir.node("Unsqueeze", [nodes[3].outputs[0]], {"axes": others}))
    else:
        return False
    assert reader.graph is not None
    for node in nodes:
        node.name = node.outputs[0].name = name(f"open/{node.op_type}")
        reader.graph.insert_before(reader, node)
    for slot, used in enumerate(reader.inputs):
        if used is value:
            reader.replace_input_with(slot, nodes[-1].outputs[0])
    return True


def _constant(array: Array) -> ir.Node:
    return ir.node("Constant", [], {"value": ir.tensor(array)})


# How a Reshape with numbers is read once sizes of its input are open: which numbers grow with them.


Sizes = Mapping[Symbol, int]
"""By symbol, the size that the model was exported with."""


def read_reshape(before: Shape, numbers: Sequence[int], exported: Sizes) -> list[Shape]:
    """Return the sizes that a Reshape may give, with each open size where it can be: one shape for each reading.

    Both shapes are cut into the smallest parts with equal numbers of elements: an axis stays in its part, since no
    frame becomes part of another.

    Args:
        before: The shape of its input.
        numbers: The target, in which 0 is a size of the input and -1 what is left.
        exported: The sizes that the model was exported with.
    """
    was = [int(dim.at(exported)) for dim in before]
    now = [was[n] if number == 0 and n < len(was) else number for n, number in enumerate(numbers)]
    if -1 in now:
        now[now.index(-1)] = math.prod(was) // max(math.prod(n for n in now if n != -1), 1)
    parts = [
        _read_part([before[n] for n in given], [now[n] for n in target], exported)
        for given, target in _parts_of_reshape(was, now)
    ]
    return [tuple(chain(*reading)) for reading in combinations(*parts)]


def _parts_of_reshape(was: Sequence[int], now: Sequence[int]) -> Iterator[tuple[range, range]]:
    """Yield the axes of the input and of the target of each part."""
    i = j = 0
    while i < len(was) or j < len(now):
        first, second = i, j
        ones = _ones(was, i), _ones(now, j)
        if all(ones):  # axes of size 1 stand for themselves if there are as many, else for each other
            each = 1 if ones[0] == ones[1] else max(ones)
            i, j = min(i + each, i + ones[0]), min(j + each, j + ones[1])
            yield range(first, i), range(second, j)
            continue
        i, j = min(i + 1, len(was)), min(j + 1, len(now))
        while math.prod(was[first:i]) != math.prod(now[second:j]):
            if j == len(now) or (i < len(was) and math.prod(was[first:i]) < math.prod(now[second:j])):
                i += 1
            else:
                j += 1
        yield range(first, i), range(second, j)


def _ones(sizes: Sequence[int], start: int) -> int:
    end = start
    while end < len(sizes) and sizes[end] == 1:
        end += 1
    return end - start


def _read_part(dims: Sequence[Size], target: Sequence[int], exported: Sizes) -> list[list[Size]]:
    """Return the sizes that a part may have: its open sizes are factors of one number each."""
    total = product(dims)
    symbols = sorted(total.symbols, key=str)
    if not symbols:
        return [[size(number) for number in target]]
    if len(target) == 1:
        return [[total]]
    readings = []
    for places in combinations(range(len(target)), repeat=len(symbols)):
        held = [[s for s, place in zip(symbols, places, strict=True) if place == n] for n in range(len(target))]
        grown = [product(map(Size.symbol, each)) for each in held]
        factors = [number / each.at(exported) for number, each in zip(target, grown, strict=True)]
        sizes = [each * factor for each, factor in zip(grown, factors, strict=True)]
        if all(factor.denominator == 1 for factor in factors) and product(sizes) == total:
            readings.append(sizes)
    return readings


# Sums over an open axis: a number that scales one may be the size of the axis.


@dataclass
class Sums:
    """What follows from sums over open axes, and from counts of their rows.

    Attributes:
        known: What is known of the values.
        questions: Have the size that each symbol had.
        values: The values that do.
    """

    known: KnownValues
    questions: Questions
    values: set[ir.Value] = field(default_factory=set)

    def check(self, node: ir.Node, *, counts: bool) -> None:
        """Check that no sum is scaled by a number that may be the size of its axis.

        Args:
            node: The next node.
            counts: Whether it counts the rows.
        """
        data = [value for value in node.inputs if value is not None]
        summed = not self.values.isdisjoint(data)
        if node.op_type in ("Div", "Mul") and summed:
            for value in data:
                number = self.known.constant(value)
                if number is not None and number.size == 1 and self._may_be_size(float(number.reshape(-1)[0])):
                    found = f"{number.reshape(-1)[0]:g}"
                    raise refuse(node, f"scales a sum over an open axis by {found}, which may be its size")
        if summed or counts or any(self._is_contracted(node, value) for value in data):
            self.values.update(node.outputs)

    def _symbols(self, value: ir.Value) -> set[Symbol]:
        return {symbol for dim in self.known.shapes.get(value, ()) for symbol in dim.symbols}

    def _is_contracted(self, node: ir.Node, value: ir.Value) -> bool:
        return bool(self._symbols(value) - {symbol for output in node.outputs for symbol in self._symbols(output)})

    def _may_be_size(self, number: float) -> bool:
        """Whether a number is a size or its inverse; a variance has one less."""
        sizes = [n for n in self.questions.exported.values() if n > 1]
        counts = [count for n in sizes for count in (n, n - 1, n / (n - 1)) if count > 1]
        return any(abs(number - n) < 1e-6 * n or abs(number * n - 1) < 1e-6 for n in counts)


# Open sizes in the branches of an If and the body of a Scan: what they get from outside, and what they return.


_FIRST_SCAN_WITHOUT_BATCH = 9


@dataclass(frozen=True)
class OuterValue:
    """The value outside that a value of an inner graph comes from. With `rows`, the one outside has that axis too.

    Attributes:
        value: The other value.
        rows: The axis of the rows that are taken one by one; None if both have the same axes.
    """

    value: ir.Value
    rows: int | None = None

    def axis(self, axis: int) -> int:
        """Return the axis of the other value for one of this value."""
        return axis if self.rows is None or axis < self.rows else axis + 1


def is_followed(node: ir.Node, opset: int) -> bool:
    """Whether the sizes in the bodies of a node are followed."""
    return not node.domain and (
        node.op_type == "If" or (node.op_type == "Scan" and opset >= _FIRST_SCAN_WITHOUT_BATCH)
    )


def scan_axes(node: ir.Node) -> tuple[list[int], list[int]]:
    """Return the axes of the rows of each input that a Scan takes apart, and of each output that it stacks."""
    count = node.attributes.get_int("num_scan_inputs", 0) or 0
    states = len(node.inputs) - count
    given = node.attributes.get_ints("scan_input_axes") or [0] * count
    stacked = node.attributes.get_ints("scan_output_axes") or [0] * (len(node.outputs) - states)
    return list(given), list(stacked)


def state_count(node: ir.Node) -> int:
    """Return the number of states of a Scan."""
    return len(node.inputs) - (node.attributes.get_int("num_scan_inputs", 0) or 0)


def given_to(node: ir.Node, known: KnownValues) -> Iterator[tuple[ir.Value, OuterValue]]:
    """Yield each input of the body of a Scan, with the value that it is or is a row of."""
    if node.op_type != "Scan":
        return
    axes = [*[None] * state_count(node), *scan_axes(node)[0]]
    for inner, outer, axis in zip(bodies_of(node)[0].inputs, node.inputs, axes, strict=True):
        if outer is not None:
            rank = len(known.shapes.get(outer, ())) or 1
            yield inner, OuterValue(outer, None if axis is None else axis % rank)


def shape_in(place: OuterValue, known: KnownValues) -> Shape | None:
    """Return the shape of an input of a body."""
    shape = known.shapes.get(place.value)
    if shape is None or place.rows is None:
        return shape
    return (*shape[: place.rows], *shape[place.rows + 1 :])


def returned(node: ir.Node, n: int) -> list[tuple[ir.Value, int | None]]:
    """Return the values in bodies that output n is, or that are its rows, along which axis of the output."""
    values = [body.outputs[n] for body in bodies_of(node)]
    if node.op_type == "If" or n < state_count(node):
        return [(value, None) for value in values]
    return [(value, scan_axes(node)[1][n - state_count(node)]) for value in values]


def shapes_out(node: ir.Node, n: int, known: KnownValues) -> Sequence[Shape]:
    """Return the shapes that output n of a node may have; none where one is unknown."""
    shapes = []
    for value, axis in returned(node, n):
        shape = known.shapes.get(value)
        if shape is None:
            return []
        if axis is not None:
            whole = known.shape(node.inputs[state_count(node)])
            place = axis % (len(shape) + 1)
            shape = (*shape[:place], whole[scan_axes(node)[0][0]], *shape[place:])
        shapes.append(shape)
    return list(dict.fromkeys(shapes))
