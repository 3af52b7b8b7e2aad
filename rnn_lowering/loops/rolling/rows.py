"""Rows: what a step takes of a tensor at its own number, as in X[t]."""

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
        index: Which row it is.
        taken: What takes it.
    """

    source: int
    axis: int
    keeps_axis: bool
    index: int
    taken: Computation

    def other(self, graph: NumberedGraph, index: int) -> int | None:
        """Return the number of another row, if it is taken in the same way."""
        if self.taken.signature[0] == "Split":
            return self.taken.outputs[index] if 0 <= index < len(self.taken.outputs) else None
        moved = {1: index, 2: index + 1} if self.taken.signature[0] == "Slice" else {1: index}
        inputs = list(self.taken.inputs)
        for slot, integer in moved.items():
            like = inputs[slot]
            inputs[slot] = None if like is None else graph.constant(like, integer)
            if inputs[slot] is None:
                return None
        found = graph.find(self.taken.signature, inputs)
        return None if found is None else found.outputs[0]

    @property
    def place(self) -> tuple[int, int, bool]:
        return self.source, self.axis, self.keeps_axis


def row_of(graph: NumberedGraph, number: int) -> Row | None:
    """Return a value as a row of a tensor; None if it is none."""
    computation = graph.producers.get(number)
    if computation is None or computation.inputs[0] is None:
        return None
    node, source = computation.node, computation.inputs[0]
    axis, integers = node.attributes.get_int("axis", 0) or 0, [
        None if n is None else graph.integers.get(n) for n in computation.inputs[1:]
    ]
    if node.op_type == "Split":
        sizes = node.attributes.get_ints("split", None) or (integers[0] if integers else None)
        place = number - computation.outputs.start
        return Row(source, axis, True, place, computation) if sizes is not None and {*sizes} == {1} else None
    known = [array.ravel() for array in integers if array is not None and array.size == 1]
    if not integers or len(known) != len(integers):
        return None
    first = int(known[0][0])
    if node.op_type == "Gather" and first >= 0 <= axis:
        keeps_axis = integers[0] is not None and integers[0].ndim > 0
        return Row(source, axis, keeps_axis, first, computation) if len(known) == 1 else None
    if node.op_type != "Slice" or len(known) not in _PARTS_OF_A_SLICE:
        return None
    end, axis, step = int(known[1][0]), int(known[2][0]), int(known[3][0]) if len(known) > 3 else 1
    shape = graph.values[source][0].shape
    size = shape[axis] if shape is not None and 0 <= axis < len(shape) else None
    whole = isinstance(size, int) and 0 <= first < size and (end, step) == (first + 1, 1)
    return Row(source, axis, True, first, computation) if whole else None
