"""A Loop or Scan as a recurrence (init, xs, step). Read this module first.

Each of these is decided in turn:

1. A list or tensor that gets a row in each step becomes a stacked output (`stacked_states`, before all else).
2. A value that is carried but never changes is a constant of the loop. The other carried values are its states, and
   those before the first step are init.
3. The number of steps follows before the loop starts (`trips`). Where it does not, only a Loop can repeat the step.
4. What a step reads at a number that grows with each step, as in X[i], is a row, and X one of xs.
5. What depends on rows and constants only leaves the step and is computed for all steps at once (`hoisting`). The
   results are xs too.

`loop_forms` repeats the result. The forms of recurrence/ cannot: they carry tensors of known rank with a batch
axis. A Loop carries lists and scalars too, may end on a condition, and an unrolled `if i == 0` differs by step.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from contextlib import suppress
from dataclasses import dataclass

import onnx_ir as ir

from rnn_lowering.emit.composites import can_flip, count, flip
from rnn_lowering.emit.constants import Constant
from rnn_lowering.emit.ops import Ops
from rnn_lowering.emit.tensor import Tensor
from rnn_lowering.errors import InvalidNodeError, UnknownTripsError, UnsupportedError
from rnn_lowering.facts.operators import is_used, parameter
from rnn_lowering.facts.size import Size, size
from rnn_lowering.loops.body import LoopBody, ScanBody, TakenRow, checked_axis
from rnn_lowering.loops.body_copy import BodyWriter
from rnn_lowering.loops.counters import STEP_NUMBER, Counters, first_of, rate_of
from rnn_lowering.loops.hoisting import HoistedBody, hoist_invariants
from rnn_lowering.loops.trips import LoopTrips, number_of_trips
from rnn_lowering.loops.value_facts import Item, KnownTensor


@dataclass(frozen=True)
class LoopRecurrence:
    """A Loop or Scan as a recurrence.

    Attributes:
        loop: The Loop or Scan.
        carried: Its carried values before the first step, constants of the loop included.
        states: Which of them are states that something depends on.
        stacked: Which of the stacked outputs are used.
        xs: By value of the body, which is a row in each step, the rows of all steps, [steps, ...].
        used: The values of the body that something depends on.
        trips: The number of steps; None if unknown before the first one.
    """

    loop: LoopBody | ScanBody
    carried: Sequence[Item]
    states: Sequence[int]
    stacked: Sequence[int]
    xs: dict[ir.Value, Tensor]
    used: set[ir.Value]
    trips: LoopTrips | None

    @property
    def init(self) -> list[Item]:
        """The values of the states before the first step."""
        return [self.carried[n] for n in self.states]

    @property
    def state_inputs(self) -> list[ir.Value]:
        """The states at the start of a step, as values of the body."""
        return [self.loop.state_inputs[n] for n in self.states]

    @property
    def returned(self) -> list[ir.Value]:
        """The results of a step: the next states, and the rows to stack."""
        states = (self.loop.state_outputs[n] for n in self.states)
        return [*states, *(self.loop.rows[n] for n in self.stacked)]

    def step(
        self,
        writer: BodyWriter,
        states: Sequence[Item],
        rows: Sequence[Item],
        number: Item = None,
        going: Item = None,
    ) -> list[Item]:
        """Emit a step into the open body; return the next states and the rows to stack.

        Args:
            writer: Writes the body.
            states: The states before it.
            rows: A row of each of xs.
            number, going: The number of the step of a Loop, and the condition that it gets.
        """
        writer.bring_constants([self.loop.body])
        writer.bind(self.state_inputs, states)
        if isinstance(self.loop, LoopBody):
            writer.bind((self.loop.number, self.loop.cond_in), [number, going])
        writer.bind(list(self.xs), rows)
        writer.bring_captured_constants(self.loop.body)
        writer.copy_nodes(self.loop.body, self.used)
        return [writer.item(value) for value in self.returned]

    def results(self, found: Sequence[Item]) -> list[Item]:
        """Return an item for each output of the node, given the final states and the stacked outputs."""
        results: list[Item] = [*self.carried, *[None] * len(self.loop.rows)]
        places = (*self.states, *(len(self.carried) + n for n in self.stacked))
        for place, item in zip(places, found, strict=True):
            results[place] = item
        return results


def loop_as_recurrence(
    writer: BodyWriter, loop: LoopBody, *, gathers: bool, constants: bool = True, trips: LoopTrips | None = None
) -> LoopRecurrence:
    """Return a Loop as a recurrence, whose xs are emitted into the open graph.

    Args:
        writer: Writes the body later.
        loop: The Loop.
        gathers: Whether rows that a Gather takes, and nothing else, are among xs.
        constants: Whether rows of constants are; their numbers are unknown then.
        trips: The number of steps, if it was emitted.
    """
    writer.bring_constants([loop.body])
    invariant = _bind_invariant(writer, loop)
    counters = Counters(writer, loop)
    if trips is None:
        with suppress(UnknownTripsError):
            trips = number_of_trips(counters)

    def find_rows(node: ir.Node) -> Tensor | None:
        of_constant = node.op_type != "Gather" or isinstance(writer.item(node.inputs[0]), KnownTensor)
        if trips is None or (of_constant and not constants):
            return None
        return _rows_of(counters, trips, node, splits=not constants)

    body = hoist_invariants(writer, loop, {}, find_rows, invariant)
    if not gathers:
        body.keep_gathers()
    return _as_recurrence(writer, loop, invariant, body, trips)


def scan_as_recurrence(
    writer: BodyWriter, loop: ScanBody, excluded: Container[ir.Value] = (), *, flips: bool = True
) -> LoopRecurrence:
    """Return a Scan as a recurrence, whose xs are emitted into the open graph.

    Args:
        writer: Writes the body later.
        loop: The Scan.
        excluded: Rows that are not among xs.
        flips: Whether rows that are read backwards are put into the order of the steps.
    """
    op = writer.op
    writer.bring_constants([loop.body])
    xs, axes, length = scanned_inputs(writer, loop)
    trips = LoopTrips(op.dim(xs[0], axes[0]), length, positive=True)
    rows = {}
    for value, x, axis, backwards in zip(loop.row_inputs, xs, axes, loop.backwards, strict=True):
        if value in excluded:
            continue
        rows[value] = _in_front(writer, op.given(writer.value_of(x), x.dtype, x.shape), axis)
        if backwards and flips:
            rows[value] = reversed_rows(writer, rows[value])
    invariant = _bind_invariant(writer, loop)
    body = hoist_invariants(writer, loop, rows, lambda _: None, invariant)
    return _as_recurrence(writer, loop, invariant, body, trips)


def _bind_invariant(writer: BodyWriter, loop: LoopBody | ScanBody) -> list[ir.Value]:
    """Let the initial values stand for the states that never change; return these, as values of the body."""
    invariant = sorted(loop.invariant_states)
    inputs = [loop.state_inputs[n] for n in invariant]
    writer.bind(inputs, [writer.item(loop.initial[n]) for n in invariant])
    return inputs


def scanned_inputs(writer: BodyWriter, loop: ScanBody) -> tuple[list[Tensor], list[int], int | None]:
    """Return what a Scan scans, the axes of the steps, and the number of steps; None if no size is known.

    Raises:
        InvalidNodeError: There is no such axis, or the sizes differ.
        UnsupportedError: A rank is unknown.
    """
    xs = [writer.tensor(writer.item(value), loop.ref) for value in loop.xs]
    axes = [checked_axis(axis, x.rank, loop) for x, axis in zip(xs, loop.axes, strict=True)]
    lengths = {x.shape[axis] for x, axis in zip(xs, axes, strict=True)} - {None}
    if len(lengths) > 1:
        raise InvalidNodeError(
            f"its scanned inputs have different lengths: {sorted(map(str, lengths))}", node=loop.ref
        )
    return xs, axes, next(iter(lengths), None)


def _as_recurrence(
    writer: BodyWriter,
    loop: LoopBody | ScanBody,
    invariant: Container[ir.Value],
    body: HoistedBody,
    trips: LoopTrips | None,
) -> LoopRecurrence:
    """Return a Loop or Scan without the states and outputs that nothing uses."""
    writer.moved |= body.moved
    stacked = [n for n, value in enumerate(loop.stacked) if value.name and is_used(value)]
    final = [loop.state_inputs[n] for n, value in enumerate(loop.results) if is_used(value)]
    going = [loop.cond_out] if trips is None and isinstance(loop, LoopBody) else []
    used = loop.values_behind([*(loop.rows[n] for n in stacked), *final, *going], writer.moved)
    carried = [writer.item(value) for value in loop.initial]
    states = [n for n, value in enumerate(loop.state_inputs) if value not in invariant and value in used]
    xs = {value: x for value, x in body.rows.items() if value in used}
    return LoopRecurrence(loop, carried, states, stacked, xs, used, trips)


def reversed_rows(writer: BodyWriter, x: Tensor) -> Tensor:
    """Return rows in reverse order."""
    op = writer.op
    if can_flip(op.opset, x.shape[0]):
        return writer.declared(flip(op, x))
    rows = op.dim(x, 0)
    return writer.declared(op.take(x, rows - op.constant([1]) - count(op, rows)))


def rows_along(op: Ops, x: Tensor, axis: int) -> Tensor:
    """Move the first axis of a tensor, the rows, to another place."""
    return op.transpose(x, [*range(1, axis + 1), 0, *range(axis + 1, x.rank)]) if axis else x


# Rows that a Loop reads


def _rows_of(counters: Counters, trips: LoopTrips, node: ir.Node, *, splits: bool) -> Tensor | None:
    """Return the rows that a node takes, one in each step; None if it takes something else."""
    writer = counters.writer
    taken = _row_taken(counters, node, trips)
    if taken is None or not writer.facts.shape(writer.item(taken[0])):
        return None
    data, index, axis = taken
    item, line = writer.item(data), counters.line(index)
    x = writer.tensor(item, counters.loop.ref)
    axis %= x.rank
    if line != STEP_NUMBER or not trips.equal_rows(counters.count_of_rows(item, axis)):
        if writer.some_rows and x.shape[axis] is None:
            _check_row_of_stream(counters, index, trips, data)
        at = positions(counters, index, trips)
        if at is None:
            return None
        x = writer.declared(_rows_at(writer, x, axis, at, trips.static_count, splits=splits))
    return _in_front(writer, x, axis)


def _row_taken(counters: Counters, node: ir.Node, trips: LoopTrips) -> tuple[ir.Value, ir.Value, int] | None:
    """Return a value, the position of a row in it, and the axis of its rows, if a node takes a row."""
    writer, taken = counters.writer, TakenRow.of(node)
    if taken is None:
        return None
    source, squeezed = taken.node, writer.integers(parameter(node, "axes", writer.op.opset)) or []
    if source.op_type == "Gather":
        axis = [source.attributes.get_int("axis", 0) or 0]
        shape = writer.facts.shape(taken.place)
        fits = shape == () if source is node else shape == (size(1),) and squeezed == axis
    else:
        axes, steps = (*source.inputs[3:5], None, None)[:2]
        axis, stride = writer.integers(axes) or [], [1] if steps is None else writer.integers(steps) or []
        single = len(axis) == 1 and squeezed == axis and len(stride) == 1 and stride[0] > 0
        start = counters.line(taken.place) if single else None
        fits = start is not None and rate_of(start) != 0 and _is_never_negative(start, trips)
    return (taken.data, taken.place, axis[0]) if fits else None


def _is_never_negative(line: Size, trips: LoopTrips) -> bool:
    """Whether a number is at least 0 in each step."""
    steps = trips.length if trips.static_count is None else size(trips.static_count)
    ends = [first_of(line)]
    if rate_of(line) < 0:
        ends = [] if steps is None else [first_of(line) + (steps - 1) * rate_of(line)]
    return bool(ends) and all(end.constant is not None and end.constant >= 0 for end in ends)


def _check_row_of_stream(counters: Counters, index: ir.Value, trips: LoopTrips, data: ir.Value) -> None:
    """Refuse a row that is not row i in step i, and a number of steps that is always the same.

    Raises:
        UnsupportedError: The row or the number of steps is such.
    """
    line, ref = counters.line(index), counters.loop.ref
    rate = 0 if line is None else rate_of(line)
    if line is None or not rate:
        return
    if line != STEP_NUMBER:
        number = "i" if rate == 1 else f"{rate} i"
        row = f"row {number} + {line.coefficient()}" if rate > 0 else "rows from the end on"
        raise UnsupportedError(
            f"in step i it reads {row} of '{data.name}', but a stream has only row i",
            hint="start at the first frame, with one frame in each step",
            node=ref,
        )
    if trips.static_count is not None:
        raise UnsupportedError(
            f"it takes {trips.static_count} steps whatever the number of frames",
            hint="did the exporter fix the length? Export with a dynamic time axis",
            node=ref,
        )


def positions(counters: Counters, index: ir.Value, trips: LoopTrips) -> Tensor | None:
    """Return the number in each step as an int64 [steps]; None if it is the same in each, or not linear."""
    op, line = counters.writer.op, counters.line(index)
    rate = 0 if line is None else rate_of(line)
    if line is None or not rate:
        return None
    numbers = count(op, trips.tensor)
    if rate != 1:
        numbers = numbers * op.constant([rate])
    first = first_of(line)
    return numbers if first == size(0) else numbers + counters.emit(first)


def _rows_at(
    writer: BodyWriter, x: Tensor, axis: int, positions: Tensor, steps: int | None, *, splits: bool
) -> Tensor:
    """Return the rows of a tensor at positions: a Slice if they are consecutive; otherwise with `splits` parts of a
    Split, since pnnx misreads a Gather."""
    length = x.shape[axis]
    numbers = positions.value.read().tolist() if isinstance(positions.value, Constant) else []
    if length is not None and numbers and 0 <= min(numbers) <= max(numbers) < length:
        if numbers == list(range(numbers[0], numbers[-1] + 1)):
            return writer.op.slice(x, axis, numbers[0], numbers[-1] + 1)
        if splits and length <= writer.limits.steps:
            parts = writer.op.split(x, [1] * length, axis)
            return writer.op.concat([parts[n] for n in numbers], axis)
    shape = (*x.shape[:axis], steps, *x.shape[axis + 1 :])
    return writer.op.emit("Gather", [x, positions], shape, axis=axis)


def _in_front(writer: BodyWriter, x: Tensor, axis: int) -> Tensor:
    """Return a tensor with an axis as its first one."""
    order = [axis, *(n for n in range(x.rank) if n != axis)]
    return writer.declared(writer.op.transpose(x, order)) if axis else x
