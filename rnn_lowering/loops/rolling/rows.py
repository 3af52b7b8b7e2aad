"""Rows: what a step takes of a tensor at its own number, as in X[t], and numbers that grow with it."""

from __future__ import annotations

from dataclasses import dataclass

from rnn_lowering.loops.rolling.numbering import Computation, NumberedGraph

_PARTS_OF_A_SLICE = (3, 4)
"""Start, end and axis, and the step."""


@dataclass(frozen=True)
class Row:
    """A row of a tensor.

    Attributes:
        source: The number of the tensor.
        axis: The axis along which the rows lie.
        keeps_axis: Whether the row has that axis, of size 1.
        index: Which row it is; below 0 if it is counted from the end.
        taken: What takes it.
    """

    source: int
    axis: int
    keeps_axis: bool
    index: int
    taken: Computation

    def other(self, graph: NumberedGraph, index: int) -> int | None:
        """Return the number of another row, if it is taken in the same way."""
        if (index < 0) != (self.index < 0):
            return None
        if self.taken.signature[0] == "Split":
            return self.taken.outputs[index] if index < len(self.taken.outputs) else None
        moved = {1: index, 2: index + 1} if self.taken.signature[0] == "Slice" else {1: index}
        inputs = list(self.taken.inputs)
        for slot, integer in moved.items():
            like = inputs[slot]
            inputs[slot] = None if like is None else graph.constant(like, integer)
            if inputs[slot] is None:
                return None
        found = graph.find(self.taken.signature, inputs)
        return None if found is None else found.outputs[0]

    def is_beside(self, other: Row | StepCount) -> bool:
        """Whether another row is one of the same tensor."""
        place = self.source, self.axis, self.keeps_axis
        return isinstance(other, Row) and place == (other.source, other.axis, other.keeps_axis)


@dataclass(frozen=True)
class StepCount:
    """A constant that grows with the number of the step.

    Attributes:
        like: Its number.
        index: Its integer.
    """

    like: int
    index: int

    def other(self, graph: NumberedGraph, index: int) -> int | None:
        """Return the number of the constant with another integer."""
        return graph.constant(self.like, index)

    def is_beside(self, other: Row | StepCount) -> bool:
        return isinstance(other, StepCount)


def row_of(graph: NumberedGraph, number: int) -> Row | StepCount | None:
    """Return a value as a row of a tensor, or as a number; None if it is neither."""
    computation = graph.producers.get(number)
    if computation is None:
        integer = graph.integers.get(number)
        return StepCount(number, int(integer.ravel()[0])) if integer is not None and integer.size == 1 else None
    node, source = computation.node, computation.inputs[0] if computation.inputs else None
    if source is None or node.op_type not in ("Split", "Gather", "Slice"):
        return None
    axis = node.attributes.get_int("axis", 0) or 0
    integers = [None if n is None else graph.integers.get(n) for n in computation.inputs[1:]]
    if node.op_type == "Split":
        sizes = node.attributes.get_ints("split", None) or (integers[0] if integers else None)
        place = number - computation.outputs.start
        return Row(source, axis, True, place, computation) if sizes is not None and {*sizes} == {1} else None
    known = [array.ravel() for array in integers if array is not None and array.size == 1]
    if not integers or len(known) != len(integers):
        return None
    first = int(known[0][0])
    if node.op_type == "Gather":
        keeps_axis = integers[0] is not None and integers[0].ndim > 0
        whole = axis >= 0 and (first >= 0 or graph.size(source, axis) is not None)
        return Row(source, axis, keeps_axis, first, computation) if whole and len(known) == 1 else None
    if len(known) not in _PARTS_OF_A_SLICE:
        return None
    end, axis, step = int(known[1][0]), int(known[2][0]), int(known[3][0]) if len(known) > 3 else 1
    whole = 0 <= first < (graph.size(source, axis) or 0) and (end, step) == (first + 1, 1)
    return Row(source, axis, True, first, computation) if whole else None
