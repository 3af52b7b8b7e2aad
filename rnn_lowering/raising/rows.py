"""Follows the rows that a step reads back to a sequence X, through one product with constants at most.

What an exporter or `loops/hoisting` computes of all rows at once, as X W + b and its parts, belongs to the cell,
whose weights are W and b. Only nodes that do the same with each row are followed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir

from rnn_lowering.facts.operators import is_of_default_domain
from rnn_lowering.facts.parameters import integers_of, parameter
from rnn_lowering.raising.step import Evaluator
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
        rank: Returns the rank of a value; None if unknown.
        numbers: Returns the numbers of a constant; None if it is none.
        opset: The version of the default domain.
    """

    rank: Callable[[ir.Value], int | None]
    numbers: Callable[[ir.Value | None], Array | None]
    opset: int

    def behind(self, node: ir.Node, of: Source) -> Source | None:
        """Return the sequence that a node reads; None if the node does not do the same with each row."""
        data = next((v for v in node.inputs if v is not None and self.numbers(v) is None), None)
        if data is None or not is_of_default_domain(node):
            return None
        ranks = self.rank(data), self.rank(of.value)
        others = [v for v in node.inputs if v is not None and v is not data]
        if None in ranks or any(self.numbers(v) is None for v in others) or of.axis >= (ranks[0] or 0) + 1:
            return None
        rule = _RULES.get(node.op_type)
        return None if rule is None else rule(self, node, data, of, ranks[0] or 0)

    def integers(self, node: ir.Node, name: str) -> list[int] | None:
        """Return a parameter that is a list of integers; None if it is absent or not known."""
        held = parameter(node, name, self.opset)
        found = held if isinstance(held, ir.Attr) else self.numbers(held)
        return None if found is None else integers_of(found)


def _identity(walk: RowWalk, node: ir.Node, data: ir.Value, of: Source, rank: int) -> Source | None:
    return of.of(data)


def _transpose(walk: RowWalk, node: ir.Node, data: ir.Value, of: Source, rank: int) -> Source | None:
    perm = walk.integers(node, "perm") or list(range(rank))[::-1]
    return of.of(data, perm[of.axis])


def _squeeze(walk: RowWalk, node: ir.Node, data: ir.Value, of: Source, rank: int) -> Source | None:
    axes = walk.integers(node, "axes")
    if not axes:
        return None
    kept = [axis for axis in range(rank) if axis not in {a % rank for a in axes}]
    return of.of(data, kept[of.axis])


def _unsqueeze(walk: RowWalk, node: ir.Node, data: ir.Value, of: Source, rank: int) -> Source | None:
    axes = walk.integers(node, "axes") or []
    added = {a % (rank + len(axes)) for a in axes}
    kept = [axis for axis in range(rank + len(added)) if axis not in added]
    return of.of(data, kept.index(of.axis)) if of.axis in kept else None


def _split(walk: RowWalk, node: ir.Node, data: ir.Value, of: Source, rank: int) -> Source | None:
    axis = (node.attributes.get_int("axis", 0) or 0) % rank
    return None if axis == of.axis else of.of(data)


def _slice(walk: RowWalk, node: ir.Node, data: ir.Value, of: Source, rank: int) -> Source | None:
    starts, ends, axes = (walk.integers(node, name) for name in ("starts", "ends", "axes"))
    steps = walk.integers(node, "steps") if len(node.inputs) > 4 else None
    if starts is None or ends is None:
        return None
    axes = list(range(len(starts))) if axes is None else axes
    bounds = {a % rank: each for a, *each in zip(axes, starts, ends, steps or [1] * len(axes), strict=True)}
    if of.axis not in bounds:
        return of.of(data)
    start, end, stride = bounds[of.axis]
    if (start, stride) == (0, 1) and end >= _FAR:
        return of.of(data)
    flips = (start == -1 or start >= _FAR) and stride == -1 and end <= -_FAR and len(bounds) == 1
    return of.flipped(data) if flips else None


_FAR = 2**31 - 1


def _gather(walk: RowWalk, node: ir.Node, data: ir.Value, of: Source, rank: int) -> Source | None:
    axis, index = (node.attributes.get_int("axis", 0) or 0) % rank, walk.numbers(node.inputs[1])
    if node.inputs[0] is not data or index is None or index.ndim > 1:
        return None
    if not index.ndim:
        return of.of(data, of.axis + (of.axis >= axis))
    if axis != of.axis:
        return of.of(data)
    shape = data.shape
    length = None if shape is None else shape[axis]
    flips = length == index.size and np.array_equal(index, np.arange(index.size)[::-1])
    return of.flipped(data) if flips else None


def _calculate(walk: RowWalk, node: ir.Node, data: ir.Value, of: Source, rank: int) -> Source | None:
    if len(node.inputs) != 2 or walk.rank(of.value) != rank:
        return None
    other = node.inputs[1] if node.inputs[0] is data else node.inputs[0]
    array = walk.numbers(other)
    if array is None or (node.op_type == "Div" and node.inputs[0] is not data):
        return None
    axis = of.axis - rank + array.ndim
    return of.of(data) if axis < 0 or array.shape[axis] == 1 else None


def _matmul(walk: RowWalk, node: ir.Node, data: ir.Value, of: Source, rank: int) -> Source | None:
    matrix = walk.numbers(node.inputs[1])
    fits = matrix is not None and matrix.ndim == 2 and rank > 1 and of.axis < rank - 1
    return of.of(data) if fits else None


def _gemm(walk: RowWalk, node: ir.Node, data: ir.Value, of: Source, rank: int) -> Source | None:
    bias = walk.numbers(node.inputs[2]) if len(node.inputs) > 2 else None
    single = bias is None or bias.ndim < 2 or bias.shape[0] == 1
    fits = node.inputs[0] is data and of.axis == 0 and not node.attributes.get_int("transA", 0) and single
    return of.of(data, 0) if fits else None


_Rule = Callable[[RowWalk, ir.Node, ir.Value, Source, int], "Source | None"]

_RULES: dict[str, _Rule] = {
    **dict.fromkeys(_CALCULATES, _calculate),
    "Gather": _gather,
    "Gemm": _gemm,
    "Identity": _identity,
    "MatMul": _matmul,
    "Slice": _slice,
    "Split": _split,
    "Squeeze": _squeeze,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}
"""By operator, what its rows are rows of."""


def row_of(evaluator: Evaluator, source: Source, rows: ir.Value, shape: Sequence[int]) -> Array | None:
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
    found = evaluator.find(rows)
    return None if found is None or found.dtype != object else found[0]
