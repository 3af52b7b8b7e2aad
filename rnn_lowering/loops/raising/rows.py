"""The rows that a step reads, and where a tensor of a step has the batch and the units.

Rows are followed back to a sequence X, through one product with constants at most. What an exporter or
`loops/hoisting` computes of all rows at once, as X W + b and its parts, belongs to the cell, whose weights are W
and b. Only nodes that do the same with each row are followed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import onnx_ir as ir

from rnn_lowering.emit.ops import Ops
from rnn_lowering.emit.tensor import Tensor
from rnn_lowering.facts.operators import (
    TO_THE_END,
    axes_by_rule,
    bounds_of,
    integers_of,
    is_of_default_domain,
    parameter,
    takes_all,
)
from rnn_lowering.facts.size import ONE, Size, size
from rnn_lowering.loops.raising.step import StepEvaluator
from rnn_lowering.types import Array

_CALCULATES = ("Add", "Sub", "Mul", "Div")

_CUTS = ("Slice", "Split", "Gather")


@dataclass(frozen=True)
class Source:
    """A sequence that a step reads a row of.

    Attributes:
        value: The sequence.
        axis: Its axis of the steps.
        backwards: Whether step i reads row T - 1 - i.
        flips: The values that hold the same rows in the other order, and of what, from the rows on.
    """

    value: ir.Value
    axis: int = 0
    backwards: bool = False
    flips: tuple[tuple[ir.Value, ir.Value], ...] = field(default=(), compare=False)

    def of(self, value: ir.Value, axis: int | None = None) -> Source:
        """Return another sequence of the same rows."""
        return replace(self, value=value, axis=self.axis if axis is None else axis)

    def flipped(self, value: ir.Value) -> Source:
        """Return another sequence of the rows in the other order."""
        return replace(self, value=value, backwards=not self.backwards, flips=(*self.flips, (self.value, value)))


def follow_rows(rows: ir.Value, walk: RowWalk, *, flips: bool = True) -> Source:
    """Return the sequence behind rows [steps, ...].

    Args:
        rows: What a step reads a row of.
        walk: Follows its axis of the steps.
        flips: Whether to follow rows that are put in reverse order.
    """
    best = source = Source(rows)
    multiplied = False
    while (node := source.value.producer()) is not None:
        link = walk.behind(node, source)
        if link is None or (link.backwards and not flips):
            break
        product = node.op_type in ("MatMul", "Gemm")
        if multiplied and (product or node.op_type in _CALCULATES):
            break
        multiplied |= product
        flipped, source = link.backwards != source.backwards, link
        if flipped or product or (not multiplied and node.op_type in (*_CUTS, *_CALCULATES)):
            best = source
    return best


@dataclass(frozen=True)
class RowWalk:
    """Follows the axis of the steps from a value to what it is computed of.

    Attributes:
        outside: Computes values outside of the step.
    """

    outside: StepEvaluator

    def rank(self, value: ir.Value) -> int | None:
        """Return the rank of a value; None if unknown."""
        shape = self.outside.shape(value)
        return None if shape is None else len(shape)

    def numbers(self, value: ir.Value | None) -> Array | None:
        """Return the numbers of a constant; None for another value."""
        return self.outside.numbers(value)

    def behind(self, node: ir.Node, of: Source) -> Source | None:
        """Return the sequence that a node reads; None if the node does not do the same with each row."""
        if node.op_type not in _FOLLOWED or not is_of_default_domain(node):
            return None
        arrays = {slot: self.numbers(value) for slot, value in enumerate(node.inputs) if value is not None}
        slots = [slot for slot, array in arrays.items() if array is None]
        data = node.inputs[slots[0]] if len(slots) == 1 else None
        rank = None if data is None else self.rank(data)
        if data is None or rank is None or (slots[0] and node.op_type not in _OF_EITHER):
            return None
        shapes = {slot: [None] * rank if a is None else [*map(size, a.shape)] for slot, a in arrays.items()}
        if node.op_type == "MatMul" and len(shapes[1]) != _RANK_OF_MATRIX:
            return None
        return self._turned(node, data, of, rank) or self._along(node, slots[0], of, shapes)

    def _along(
        self, node: ir.Node, slot: int, of: Source, shapes: Mapping[int, Sequence[Size | None]]
    ) -> Source | None:
        """Return what a node reads along the axis of the steps, if its constants are the same in each step."""
        values, data = list(node.inputs), node.inputs[slot]
        axes = axes_by_rule(
            node, self.outside.opset, lambda v: shapes[values.index(v)], partial(self.integers, node)
        )
        axis = None if axes is None else axes.axis_behind(slot, of.axis)
        if axes is None or axis is None or data is None:
            return None
        places = {n: axes.axis_behind(n, of.axis) for n in shapes if n != slot}
        same = all(place is None or shapes[n][place] == ONE for n, place in places.items())
        return of.of(data, axis) if same else None

    def _turned(self, node: ir.Node, data: ir.Value, of: Source, rank: int) -> Source | None:
        """Return what a Slice or Gather takes all rows of, in the same or in the other order."""
        if node.op_type == "Slice":
            bounds = bounds_of(*(self.integers(node, name) for name in ("starts", "ends", "axes", "steps")))
            cuts = {axis % rank: bound for axis, *bound in bounds}
            start, end, stride = cuts.get(of.axis, (0, TO_THE_END, 1))
            if takes_all(start, end, stride):
                return of.of(data)
            last = start == -1 or start >= TO_THE_END
            return of.flipped(data) if last and stride == -1 and end <= -TO_THE_END and len(cuts) == 1 else None
        index = self.numbers(node.inputs[1]) if node.op_type == "Gather" else None
        if index is None or index.ndim != 1 or (node.attributes.get_int("axis", 0) or 0) % rank != of.axis:
            return None
        length = None if data.shape is None else data.shape[of.axis]
        flips = length == index.size and np.array_equal(index, np.arange(index.size)[::-1])
        return of.flipped(data) if flips else None

    def integers(self, node: ir.Node, name: str) -> list[int]:
        """Return a parameter that is a list of integers; none if it is absent or not known."""
        held = parameter(node, name, self.outside.opset)
        numbers = held if isinstance(held, ir.Attr) else self.numbers(held)
        return [] if numbers is None else integers_of(numbers)


_OF_EITHER = ("Add", "Sub", "Mul")
"""Operators that do the same with the rows of either input."""

_FOLLOWED = (*_CALCULATES, *_CUTS, "Gemm", "Identity", "MatMul", "Squeeze", "Transpose", "Unsqueeze")

_RANK_OF_MATRIX = 2


def row_of(evaluator: StepEvaluator, source: Source, rows: ir.Value, shape: Sequence[int]) -> Array | None:
    """Compute a row of `rows` from the same row of the source.

    Args:
        evaluator: Computes the nodes between both, and nothing else.
        source: The sequence.
        rows: What a step reads a row of.
        shape: The shape of the sequence, with numbers for open sizes, without the axis of the steps.
    """
    of = evaluator.variables.elements(source, shape)
    evaluator.bind(source.value, np.expand_dims(of, source.axis))
    for value, other in reversed(source.flips):
        evaluator.bind(value, evaluator.find(other))
    array = evaluator.find(rows)
    return None if array is None or array.dtype != object else array[0]


# Where a tensor of a step has its sequences of the batch and its units. The step of a cell computes [batch,
# units]. Exporters also write [units], [units, batch], or axes of size 1 between.


@dataclass(frozen=True)
class Layout:
    """The axes of a tensor that hold the batch and the units.

    Attributes:
        shape: The shape, with numbers for open sizes.
        batch, units: The axis of each; None if there is none, since the size is 1.
    """

    shape: tuple[int, ...]
    batch: int | None
    units: int | None

    @property
    def _held(self) -> list[int]:
        """The axes that hold the batch and the units, where there are such axes."""
        return [axis for axis in (self.batch, self.units) if axis is not None]

    @property
    def _others(self) -> list[int]:
        """The other axes, whose size is 1."""
        return [axis for axis in range(len(self.shape)) if axis not in self._held]

    @property
    def _absent(self) -> list[int]:
        """Which axes of [batch, units] the tensor lacks."""
        return [n for n, axis in enumerate((self.batch, self.units)) if axis is None]

    def _is_swapped(self) -> bool:
        return self._held != sorted(self._held)

    @property
    def sizes(self) -> tuple[int, int]:
        """The number of sequences and of units."""
        return tuple(1 if axis is None else self.shape[axis] for axis in (self.batch, self.units))  # type: ignore[return-value]

    def matrix(self, array: Array) -> Array:
        """Return an array of this shape as [batch, units]."""
        return array.transpose([*self._others, *self._held]).reshape(self.sizes)

    def places(self) -> Array:
        """Return the number of each element of the tensor as [batch, units]."""
        return self.matrix(np.arange(int(np.prod(self.shape))).reshape(self.shape))

    def to_matrix(self, op: Ops, x: Tensor, lead: int) -> Tensor:
        """Return a tensor [lead..., *shape] as [lead..., batch, units]."""
        if self._others:
            x = op.squeeze(x, [lead + axis for axis in self._others])
        if self._is_swapped():
            x = op.transpose(x, [*range(lead), lead + 1, lead])
        return op.unsqueeze(x, [lead + n for n in self._absent]) if self._absent else x

    def from_matrix(self, op: Ops, x: Tensor, lead: int) -> Tensor:
        """Return a tensor [lead..., batch, units] as [lead..., *shape]."""
        if self._absent:
            x = op.squeeze(x, [lead + n for n in self._absent])
        if self._is_swapped():
            x = op.transpose(x, [*range(lead), lead + 1, lead])
        return op.unsqueeze(x, [lead + axis for axis in self._others]) if self._others else x


def layouts(shape: Sequence[int], batch: int | None = None, open_axes: Sequence[int] = ()) -> Iterator[Layout]:
    """Yield the layouts that a shape may have, the usual one first.

    Args:
        shape: The shape.
        batch: The number of sequences, if known.
        open_axes: Axes of open sizes, which are the batch.
    """
    dims = tuple(shape)
    axes = [axis for axis, size in enumerate(dims) if size != 1 or axis in open_axes]
    if len(axes) > 2:
        return
    places: list[tuple[int | None, int | None]] = []
    if len(axes) == 2:
        places = [(axes[0], axes[1]), (axes[1], axes[0])]
    elif axes:
        places = [(None, axes[0]), (axes[0], None)]
        if axes[0] < len(dims) - 1:  # [batch, 1]: as [1, units], sequences would share what is not finite
            places.reverse()
    else:
        places = [(None, None)]
    for each in places:
        layout = Layout(dims, *each)
        if any(axis is not None and axis != layout.batch for axis in open_axes):
            continue
        if batch is None or layout.sizes[0] == batch:
            yield layout
