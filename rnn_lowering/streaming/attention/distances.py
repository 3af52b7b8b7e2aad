"""What is known of a value that is computed from positions only: is it a function of the distance alone?

A mask of attention has a row for each query i and a column for each key j. It can be streamed if it depends on
i - j alone, or on i // c and j // c. This is derived from the graph: `Positions` follows sums of positions
(`Numbers`), and functions of one difference of positions (`Distances`), which become constant or linear beyond
some distance. Nothing is sampled: the numbers up to that distance show the mask at every length.

Example: `Less(Unsqueeze(i, 1), Unsqueeze(j, 0))` compares 1 * i with 1 * j. The difference is a multiple of i - j,
so the result is a function of the distance, and constant beyond a distance of 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np
import onnx_ir as ir

from rnn_lowering.facts.infer import slice_bounds
from rnn_lowering.facts.known import KnownValues
from rnn_lowering.facts.node_outputs import compute_node
from rnn_lowering.facts.operators import in_order, input_at, inputs_of, operator_of
from rnn_lowering.facts.size import ONE, Size, size
from rnn_lowering.streaming.attention.positions import (
    COMPARED,
    CURVED,
    DISTANCE,
    LARGEST_CONSTANT,
    LARGEST_STEP,
    LINEAR,
    TAILS,
    Numbers,
    UnknownError,
    bound_of,
    decision_of,
    difference_of,
    is_exact,
    returns_integers,
)
from rnn_lowering.streaming.sizes import in_whole, least_of, linear
from rnn_lowering.types import Array

_EXACT_CASTS = (ir.DataType.INT32, ir.DataType.INT64, ir.DataType.FLOAT, ir.DataType.DOUBLE)
"""The types that hold every number of a frame."""

_OF_LENGTH = "depends on the number of frames"
_OF_POSITION = "depends on the position itself, not on the distance"

_MATRIX_RANK = 2

_LARGEST_INTEGER = 1 << 53
"""float64 holds all integers up to it."""


@dataclass(frozen=True)
class Distances:
    """A function of the distance between the positions on two axes: that on the first minus that on the second.

    Attributes:
        axes: The axes, the lower one first.
        reach: Beyond this distance the tails say what it is.
        tails: On the side of negative distances, and of positive ones.
        cell: It may also depend on the position modulo this.
        rows: It is known for this many frames only; None for any number.
    """

    axes: tuple[int, int]
    reach: int
    tails: tuple[Numbers, Numbers]
    cell: int = 1
    rows: int | None = None


@dataclass(frozen=True)
class PositionTable:
    """The first rows of a constant along some axes, as many as there are frames."""

    array: Array = field(compare=False)
    axes: frozenset[int]


_ROUNDING = ("Add", "Cast", "Div", "Mul", "Sub", "Sum")
"""The operators that round real numbers."""

_LARGEST_REAL, _ROUNDED_BOUND = 1 << 64, 1 + 2.0**-20
"""The largest factor of distances that real numbers hold, and by what rounding multiplies a bound."""

_ROUNDED = "rounds positions, or multiplies them by large numbers"

Found = Numbers | Distances | PositionTable


class Positions:
    """Follows positions through the nodes of one model.

    Args:
        known: The types, shapes and numbers of its values.
    """

    def __init__(self, known: KnownValues) -> None:
        self.known = known
        self._found: dict[ir.Value, Found | UnknownError] = {}

    def of(self, value: ir.Value) -> Found:
        """Return what is known of a value that is computed from positions and constants.

        Raises:
            UnknownError: It is not known to depend on the distance alone.
        """
        for current in in_order(value, self._needed, self._found):
            try:
                self._found[current] = self._computed(current)
            except UnknownError as error:
                self._found[current] = error
        return _known(self._found[value])

    def _needed(self, value: ir.Value) -> list[ir.Value]:
        return [] if value in self.known.contents else inputs_of(value)

    def _computed(self, value: ir.Value) -> Found:
        node, held = value.producer(), self._read(value)
        if held is not None:
            return held
        if node is None or node.domain or len(node.outputs) != 1:
            raise UnknownError("is an input, or computed from the stream")
        row, shape = operator_of(node), self.known.shapes.get(value)
        if shape is None:
            raise UnknownError("has no known shape")
        if row.elementwise:
            return self._elementwise(node, shape)
        if node.op_type not in _RULES:
            raise UnknownError(f"is computed by {node.op_type}")
        return _RULES[node.op_type](self, node, shape)

    def _read(self, value: ir.Value) -> Found | None:
        """Return a constant, or a size; None for other values."""
        array = self.known.contents.get(value)
        if array is None:
            return None
        if array.dtype != object:
            if array.dtype.kind not in "iufb" or not array.size or np.isnan(array.astype(np.float64)).any():
                raise UnknownError("has no numbers")
            numbers = array.astype(np.float64)
            if array.dtype.kind in "iu" and np.abs(numbers).max() > _LARGEST_INTEGER:
                raise UnknownError("has too large numbers")
            return Numbers(low=float(numbers.min()), high=float(numbers.max()))
        sizes_held = {size(n) for n in array.reshape(-1)}
        form = linear(in_whole(next(iter(sizes_held))))
        if len(sizes_held) > 1 or form is None:
            raise UnknownError("depends on sizes")
        frames, constant = form
        sizes = Numbers(frames=frames, low=float(constant), high=float(constant))
        dtype = self.known.types.get(value)
        whole = replace(sizes, frames=Fraction(round(frames))) if dtype and dtype.is_integer() else sizes
        if not is_exact(whole) or dtype not in _EXACT_CASTS:
            raise UnknownError(_OF_LENGTH)
        return sizes

    def found(self, node: ir.Node, slot: int = 0) -> Found | UnknownError:
        """Return what is known of an input, or why nothing is."""
        value = input_at(node, slot)
        return UnknownError("is absent") if value is None else self._found[value]

    def input(self, node: ir.Node, slot: int = 0) -> Found:
        return _known(self.found(node, slot))

    def dims(self, node: ir.Node, slot: int = 0) -> tuple[Size, ...] | None:
        value = input_at(node, slot)
        return None if value is None else self.known.shapes.get(value)

    # Element by element

    def _elementwise(self, node: ir.Node, shape: tuple[Size, ...]) -> Found:
        given: list[Found | UnknownError] = []
        for slot in (slot for slot, value in enumerate(node.inputs) if value is not None):
            try:
                given.append(self._broadcast(node, slot, shape))
            except UnknownError as error:
                given.append(error)
        return self._absorbed(node, given) or self._of_all(node, [_known(each) for each in given])

    def _broadcast(self, node: ir.Node, slot: int, shape: tuple[Size, ...]) -> Found:
        """Return an input on the axes of the output."""
        found, dims = self.input(node, slot), self.dims(node, slot)
        offset = len(shape) - len(dims or ())
        if dims is None or any(d not in (ONE, shape[n + offset]) for n, d in enumerate(dims)):
            raise UnknownError("has other sizes")
        return _moved(found, lambda axis: axis + offset)

    def _absorbed(self, node: ir.Node, given: Sequence[Found | UnknownError]) -> Found | None:
        """Return a result that one input decides: `False and x`, and a Where whose condition is constant."""
        uniform = [each.uniform if isinstance(each, Numbers) else None for each in given]
        decisive = {"And": 0.0, "Or": 1.0}.get(node.op_type)
        if decisive is not None and decisive in uniform:
            return Numbers(low=decisive, high=decisive)
        if node.op_type == "Where" and uniform[0] is not None:
            return _known(given[1 if uniform[0] else 2])
        return None

    def _of_all(self, node: ir.Node, given: Sequence[Found]) -> Found:
        numbers = [each for each in given if isinstance(each, Numbers)]
        if len(numbers) == len(given) and (result := self._of_numbers(node, numbers)) is not None:
            return result
        return self._of_distances(node, [as_distances(each) for each in given])

    def _of_numbers(self, node: ir.Node, given: Sequence[Numbers]) -> Found | None:
        """Return a sum of positions, or a constant; None for other functions of positions."""
        rule = LINEAR.get(node.op_type)
        linear = CURVED if rule is None else rule(self.known, node, given, 0)[0]
        if linear.steps or linear.frames:
            if not self._holds_positions(node):
                raise UnknownError(_cast_reason(node))
            if is_exact(linear):
                return linear
            try:
                list(map(as_distances, given))
            except UnknownError as error:
                raise error if str(error) == _OF_LENGTH else UnknownError(_ROUNDED) from None
            return None
        if node.op_type in COMPARED:
            difference = difference_of(given)
            if (decided := decision_of(node.op_type, difference)) is not None:
                return Numbers(low=float(decided), high=float(decided))
            if isinstance(distances := as_distances(difference), Distances):
                return self._of_distances(node, [distances, Numbers()])
        if all(each.is_constant for each in given):
            value = self._scalar(node, [each.uniform for each in given])
            if value is not None:
                return Numbers(low=value, high=value)
            bound = self._bound(node, [each.bound for each in given])
            return Numbers(low=-bound, high=bound)
        return None

    def _of_distances(self, node: ir.Node, given: Sequence[Distances | Numbers]) -> Found:
        """Return a function of functions of one distance."""
        varying = [each for each in given if isinstance(each, Distances)]
        axes = {each.axes for each in varying}
        if len(axes) != 1:
            raise UnknownError("compares more than two positions")
        if not self._holds_positions(node) and any(not t.is_constant for each in varying for t in each.tails):
            raise UnknownError(_cast_reason(node))
        reach, tails = max(each.reach for each in varying), list[Numbers]()
        for side in (0, 1):
            parts = [each.tails[side] if isinstance(each, Distances) else each for each in given]
            tail, needed = self._tail(node, parts, (-1, 1)[side])
            tails.append(tail)
            reach = max(reach, needed)
        cell = math.lcm(*(each.cell for each in varying))
        rows = least_of(*(each.rows for each in varying))
        return Distances(axes.pop(), reach, (tails[0], tails[1]), cell, rows)

    def _tail(self, node: ir.Node, parts: Sequence[Numbers], sign: int) -> tuple[Numbers, int]:
        """Return what a function is at large distances of a sign, and from which distance on."""
        if node.op_type == "Where" and parts[0].uniform is not None:
            return parts[1 if parts[0].uniform else 2], 0
        if all(part.is_constant for part in parts):
            value = self._scalar(node, [part.uniform for part in parts])
            bound = self._bound(node, [part.bound for part in parts]) if value is None else 0.0
            return (Numbers.tail(Fraction(0), bound) if value is None else Numbers(low=value, high=value)), 0
        rule = TAILS.get(node.op_type)
        tail, reach = (CURVED, 0) if rule is None else rule(self.known, node, parts, sign)
        return self._stored(node, tail, parts), reach

    def _stored(self, node: ir.Node, tail: Numbers, parts: Sequence[Numbers]) -> Numbers:
        """Return a tail as its type holds it: integers must not wrap, and real numbers are rounded."""
        dtype, slope = self.known.types.get(node.outputs[0]), tail.slope
        if dtype is None or dtype == ir.DataType.BOOL:
            return tail
        if dtype.is_integer():
            return tail if abs(slope) <= LARGEST_STEP and tail.bound <= LARGEST_CONSTANT else CURVED
        if slope and not 1 / _LARGEST_REAL <= abs(slope) <= _LARGEST_REAL:
            return CURVED
        short = all(_is_short(part.slope or part.uniform) for part in parts) and _is_short(slope)
        exact = short and tail.bound * LARGEST_STEP <= LARGEST_CONSTANT
        if exact or node.op_type not in _ROUNDING:
            return tail
        return Numbers.tail(slope, tail.bound * _ROUNDED_BOUND + float(abs(slope)), exact=False)

    def _scalar(self, node: ir.Node, values: Sequence[float | None]) -> float | None:
        """Return the number that an element-wise node computes from numbers; None if it is not known, or if
        runtimes round it differently."""
        inputs = [value for value in node.inputs if value is not None]
        if any(value is None for value in values) or any(value not in self.known.types for value in inputs):
            return None
        if len(inputs) != len(values):
            return None
        with np.errstate(all="ignore"):
            arrays = {
                value: np.array(number).astype(self.known.types[value].numpy())
                for value, number in zip(inputs, values, strict=True)
            }
        results = compute_node(node, arrays, self.known.opset)
        results = results if results and results[0].dtype.kind in "iufb" else []
        number = float(results[0].reshape(-1)[0]) if results else math.nan
        whole = math.isinf(number) or (number.is_integer() and abs(number) <= LARGEST_CONSTANT)
        same = operator_of(node).exact or (whole and not returns_integers(self.known, node))
        return None if math.isnan(number) or not same else number

    def _bound(self, node: ir.Node, bounds: Sequence[float]) -> float:
        """Return a bound of the absolute value of what a node computes from constants with these bounds."""
        dtype, bound = self.known.types.get(node.outputs[0]), bound_of(node, bounds)
        if dtype is None or not dtype.is_integer():
            return bound * _ROUNDED_BOUND
        return bound if dtype.is_signed() and bound <= LARGEST_CONSTANT else math.inf

    def _holds_positions(self, node: ir.Node) -> bool:
        """Whether a node returns numbers in a type that holds every position, or booleans."""
        dtype = self.known.types.get(node.outputs[0])
        return dtype in _EXACT_CASTS or dtype == ir.DataType.BOOL

    # Moving elements

    def _rearranged(self, node: ir.Node, shape: tuple[Size, ...]) -> Found:
        found, before = self.input(node), self.dims(node)
        old = [n for n, dim in enumerate(before or ()) if dim != ONE]
        new = [n for n, dim in enumerate(shape) if dim != ONE]
        if before is None or [before[n] for n in old] != [shape[n] for n in new]:
            raise UnknownError("mixes positions with other axes")
        return _moved(found, dict(zip(old, new, strict=True)).__getitem__)

    def _transposed(self, node: ir.Node, shape: tuple[Size, ...]) -> Found:
        perm = list(node.attributes.get_ints("perm", ()) or reversed(range(len(shape))))
        return _moved(self.input(node), perm.index)

    def _expanded(self, node: ir.Node, shape: tuple[Size, ...]) -> Found:
        return self._broadcast(node, 0, shape)

    def _ranged(self, node: ir.Node, shape: tuple[Size, ...]) -> Found:
        first, step = self.found(node, 0), self.found(node, 2)
        uniform = step.uniform if isinstance(step, Numbers) else None
        known = shape[0].varies and self._holds_positions(node)
        if not isinstance(first, Numbers) or first.steps or not uniform or not known:
            raise UnknownError("counts in a way that is not known")
        counted = replace(first, steps={0: Fraction(uniform)})
        if not is_exact(counted):
            raise UnknownError("counts in steps that are rounded")
        return counted

    def _triangle(self, node: ir.Node, shape: tuple[Size, ...]) -> Found:
        found = self.input(node)
        k = Numbers() if input_at(node, 1) is None else self.found(node, 1)
        if not isinstance(k, Numbers) or k.uniform is None:
            raise UnknownError(_OF_LENGTH)
        axes = (len(shape) - 2, len(shape) - 1)
        before = as_distances(found)
        if shape[axes[0]] != shape[axes[1]] or not shape[axes[0]].varies:
            raise UnknownError("is a triangle of other axes")
        if isinstance(before, Numbers):
            before = Distances(axes, 0, (before, before))
        if before.axes != axes:
            raise UnknownError("compares more than two positions")
        # `upper` keeps the keys behind the query: negative distances
        upper = bool(node.attributes.get_int("upper", 1))
        tails = (before.tails[0], Numbers()) if upper else (Numbers(), before.tails[1])
        return replace(before, reach=max(before.reach, abs(int(k.uniform)) + 1), tails=tails)

    def _picked(self, node: ir.Node, shape: tuple[Size, ...]) -> Found:
        """Rows of a constant, by a function of the distance."""
        index, table, dims = self.input(node, 1), self.found(node), self.dims(node)
        if not isinstance(table, Numbers) or not table.is_constant or dims is None:
            raise UnknownError("picks from a table that is not constant")
        distances = as_distances(index)
        if not isinstance(distances, Distances):
            raise UnknownError("picks by numbers that are not known")
        axis = (node.attributes.get_int("axis", 0) or 0) % len(dims) if node.op_type == "Gather" else 0
        if node.op_type == "GatherND" and (node.attributes.get_int("batch_dims", 0) or 0) > 0:
            raise UnknownError("picks from several tables")
        tails = [Numbers.tail(Fraction(0), table.bound) if t.is_constant else CURVED for t in distances.tails]
        picked = replace(distances, tails=(tails[0], tails[1]))
        return _moved(picked, lambda own: own + axis)

    def _cut(self, node: ir.Node, shape: tuple[Size, ...]) -> Found:
        """A constant that is cut to the number of frames."""
        value, dims, found = input_at(node, 0), self.dims(node), self.found(node)
        bounds = None if dims is None else slice_bounds(self.known, node, len(dims))
        array, cut = self.known.constant(value), frozenset[int]()
        if isinstance(found, PositionTable):
            array, cut = found.array, found.axes
        if array is None or bounds is None or dims is None:
            raise UnknownError("cuts positions")
        known = [array.shape[n] if n in cut and n < array.ndim else dim.constant or 0 for n, dim in enumerate(dims)]
        if known != [*array.shape]:
            raise UnknownError("cuts positions")
        for axis, (first, last, step) in bounds.items():
            whole = first == size(0) and step == size(1)
            if whole and last.varies and last == shape[axis] and axis not in cut:
                cut |= {axis}
            elif not (whole and last.constant is not None and last.constant >= array.shape[axis]):
                raise UnknownError("cuts a table elsewhere than at the number of frames")
        return _of_table(PositionTable(array, cut))


def _known(found: Found | UnknownError) -> Found:
    if isinstance(found, UnknownError):
        raise found
    return found


def _moved(found: Found, place: Callable[[int], int]) -> Found:
    """Return what is known of a value whose axes have other places."""
    if isinstance(found, Numbers):
        return replace(found, steps={place(axis): step for axis, step in found.steps.items()})
    if isinstance(found, PositionTable):
        raise UnknownError("moves a table")
    first, second = (place(axis) for axis in found.axes)
    if first < second:
        return replace(found, axes=(first, second))
    return replace(found, axes=(second, first), tails=(_turned(found.tails[1]), _turned(found.tails[0])))


def _turned(tail: Numbers) -> Numbers:
    """Return a tail with the other sign of the distance."""
    return replace(tail, steps={axis: -step for axis, step in tail.steps.items()})


def _of_table(table: PositionTable) -> Found:
    """Return what a table is that is cut along two axes: the number of its diagonals is the distance."""
    if len(table.axes) < _MATRIX_RANK:
        return table
    if len(table.axes) > _MATRIX_RANK:
        raise UnknownError("is a table of more than two positions")
    axes = sorted(table.axes)
    rows = min(table.array.shape[axis] for axis in axes)
    matrix = np.moveaxis(table.array, axes, (-2, -1))[..., :rows, :rows]
    if not np.array_equal(matrix[..., 1:, 1:], matrix[..., :-1, :-1]):
        raise UnknownError(_OF_POSITION)
    past, ahead = matrix[..., :, 0], matrix[..., 0, :]
    tails, reach = list[Numbers](), 0
    for line in (ahead, past):
        differs = [n for n in range(rows) if (line[..., n] != line[..., -1]).any()]
        reach = max(reach, differs[-1] + 1 if differs else 0)
        last = line[..., -1].astype(np.float64)
        tails.append(Numbers(low=float(last.min()), high=float(last.max())))
    return Distances((axes[0], axes[1]), reach, (tails[0], tails[1]), rows=rows)


def _is_short(number: Fraction | float | None) -> bool:
    """Whether a factor or a constant has so few binary digits that sums and products with positions are exact."""
    if number is None or math.isinf(number):
        return False
    exact = Fraction(number)
    return abs(exact) <= LARGEST_STEP and (exact * LARGEST_STEP).denominator == 1


def as_distances(found: Found) -> Distances | Numbers:
    """Return a sum of positions as a function of the distance; a constant as it is.

    Raises:
        UnknownError: It depends on the position itself.
    """
    if isinstance(found, PositionTable):
        raise UnknownError(_OF_POSITION)
    if isinstance(found, Distances):
        return found
    numbers = found
    if numbers.frames:
        raise UnknownError(_OF_LENGTH)
    if not numbers.steps:
        return numbers
    axes = tuple(sorted(numbers.steps))
    if len(axes) != _MATRIX_RANK or numbers.steps[axes[0]] != -numbers.steps[axes[1]]:
        raise UnknownError(_OF_POSITION)
    slope, cell = numbers.steps[axes[0]], numbers.cell
    tail = Numbers({DISTANCE: slope}, low=numbers.low, high=numbers.high)
    if cell > 1:
        tail = Numbers.tail(slope / cell, numbers.bound + float(abs(slope)), exact=False)
    return Distances((axes[0], axes[1]), 0, (tail, tail), cell)


_RULES = {
    "Expand": Positions._expanded,
    "Gather": Positions._picked,
    "GatherND": Positions._picked,
    "Range": Positions._ranged,
    "Reshape": Positions._rearranged,
    "Slice": Positions._cut,
    "Squeeze": Positions._rearranged,
    "Flatten": Positions._rearranged,
    "Transpose": Positions._transposed,
    "Trilu": Positions._triangle,
    "Unsqueeze": Positions._rearranged,
}


def _cast_reason(node: ir.Node) -> str:
    dtype = ir.DataType(node.attributes.get_int("to", 0) or 0) if node.op_type == "Cast" else None
    return f"casts positions to {dtype.name.lower()}" if dtype else "has positions in a type that is too narrow"
