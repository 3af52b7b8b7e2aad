"""The number of steps of a Loop, before it starts.

If a condition compares two numbers that are linear in the number of the step (`linear_counts`), the last step
follows by a division: p + q i < b is true up to i = max(0, ceil((b - p) / q)), and there is one step more. Of two
conditions that must hold the first to fail ends the Loop, of two where one is enough the last (`step_limits`). A
condition on constants is evaluated step by step instead (`simulated_trips`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from rnn_lowering.emit.tensor import Tensor
from rnn_lowering.errors import UnknownTripsError
from rnn_lowering.facts.operators import DEFAULT_DOMAIN
from rnn_lowering.facts.size import Size
from rnn_lowering.loops.body import LoopBody
from rnn_lowering.loops.body_copy import BodyCopy
from rnn_lowering.loops.linear_counts import Counters
from rnn_lowering.loops.step_limits import ENDLESS, StepLimit, step_limits
from rnn_lowering.loops.value_facts import TRUE, Item, KnownTensor, number_of

_INT64 = ir.DataType.INT64
_RANGE_OPSET = 11
"""First opset whose Range accepts a negative limit; before it, the number of steps is at least 0."""
_MOST_SIMULATED = 1 << 12


@dataclass(frozen=True)
class LoopTrips:
    """A number of steps.

    Attributes:
        tensor: The number as an int64 [1]; no step where it is 0 or less.
        static_count: The number, if known at lowering time.
        positive: Whether there is a step for certain.
        length: The size that equals the number, if there is a step; None if no size does.
    """

    tensor: Tensor
    static_count: int | None
    positive: bool
    length: Size | None = None

    def equal_rows(self, rows: Size | None) -> bool:
        """Whether there are as many steps as rows."""
        if rows is None:
            return False
        return self.length == rows if rows.constant is None else self.static_count == rows.constant


def number_of_trips(counters: Counters) -> LoopTrips:
    """Emit the number of steps of a Loop into the open graph, and return it.

    Raises:
        UnsupportedError: It depends on data, or on conditions that are not linear in the number of the step.
    """
    copy, loop = counters.copy, counters.loop
    op = copy.op
    simulated = simulated_trips(copy, loop)
    if simulated is not None:
        return LoopTrips(op.constant([simulated]), simulated, simulated > 0)
    limits = _Limits.of(counters)
    length = limits.length
    if length is not None and limits.first_follows and copy.some_rows:
        return LoopTrips(counters.emit(length), None, positive=True, length=length)
    bounds = [] if limits.most_is_length else [each.steps(counters) for each in limits.conditions]
    if limits.most is not None:
        given = copy.tensor(limits.most, loop.ref)
        bounds.insert(0, op.cast(given if given.rank == 1 else op.reshape(given, (1,)), _INT64))
    if not bounds:
        raise UnknownTripsError(
            "its number of steps is not known before it starts",
            hint="give it a number of steps, or a condition on a counter",
            node=loop.ref,
        )
    trips = bounds[0]
    for bound in bounds[1:]:
        trips = op.where(op.less(trips, bound), trips, bound)
    first = copy.item(loop.cond)
    if not (limits.most_is_length and limits.first_follows) and not _is_true(first):
        trips = trips * op.cast(op.reshape(copy.tensor(first, loop.ref), (1,)), _INT64)
    if op.opset < _RANGE_OPSET and trips.number is None:
        zero = op.constant([0])
        trips = op.where(op.less(trips, zero), zero, trips)
    if trips.number is None:
        return LoopTrips(trips, None, positive=False, length=length)
    known = max(trips.number, 0)
    return LoopTrips(op.constant([known]), known, bool(known), length)


def runs_once_per_row(counters: Counters, item: Item, axis: int) -> bool:
    """Whether there is a step for each row of a value along an axis of unknown size.

    Raises:
        UnsupportedError: The number of steps depends on data.
    """
    limits = _Limits.of(counters)
    return (
        limits.length is not None and limits.length == counters.count_of_rows(item, axis) and limits.first_follows
    )


def simulated_trips(copy: BodyCopy, loop: LoopBody) -> int | None:
    """Count the steps of a Loop by evaluating its condition; None if that needs unknown values."""
    given = [copy.item(value) for value in (loop.trips, loop.cond)]
    most, first = map(number_of, given)
    if any(item is not None and number is None for item, number in zip(given, (most, first), strict=True)):
        return None
    if first is not None and not first:
        return 0
    limit = ENDLESS if most is None else max(int(most), 0)
    needed = loop.values_behind([loop.cond_out])
    states = [n for n, value in enumerate(loop.state_inputs) if value in needed]
    nodes = [node for node in loop.body if not needed.isdisjoint(node.outputs)]
    known: dict[ir.Value, Item] = {loop.state_inputs[n]: copy.item(loop.initial[n]) for n in states}
    for step in range(min(limit, _MOST_SIMULATED)):
        known |= {
            loop.number: KnownTensor(np.asarray(step, np.int64)),
            loop.cond_in: TRUE,
        }
        for node in nodes:
            items = [None if v is None else known.get(v) or copy.item(v) for v in node.inputs]
            arrays = copy.facts.evaluate(node, items) if node.domain in DEFAULT_DOMAIN else None
            if arrays is None:
                return None
            known |= {output: KnownTensor(array) for output, array in zip(node.outputs, arrays, strict=True)}
        going = number_of(known.get(loop.cond_out) or copy.item(loop.cond_out))
        if going is None:
            return None
        if not going:
            return step + 1
        if not nodes:
            return limit if limit < ENDLESS else None
        after = [loop.state_outputs[n] for n in states]
        known = {loop.state_inputs[n]: known.get(v) or copy.item(v) for n, v in zip(states, after, strict=True)}
    return limit if limit <= _MOST_SIMULATED else None


@dataclass(frozen=True)
class _Limits:
    """The end of a Loop.

    Attributes:
        conditions: The Loop goes on as long as all of them hold.
        most: The maximum number of steps; None for no limit.
        length: The size that every limit gives as the number of steps, if there is a step.
        most_is_length: Whether `most` is that size.
        first_follows: Whether the first step is taken wherever that size is at least 1.
    """

    conditions: Sequence[StepLimit]
    most: Item
    length: Size | None
    most_is_length: bool
    first_follows: bool

    @classmethod
    def of(cls, counters: Counters) -> _Limits:
        loop, copy = counters.loop, counters.copy
        most, number = copy.item(loop.trips), number_of(copy.item(loop.trips))
        if number is not None and number >= ENDLESS:
            most = None
        conditions = step_limits(counters, loop.cond_out, loop.body)
        limit = None if most is None or loop.trips is None else counters.line_of_outside(loop.trips)
        length = None if most is not None and limit is None else _length(counters, conditions, limit)
        follows = length is not None and _follows(counters, length)
        return cls(conditions, most, length, length is not None and length == limit, follows)


def _length(counters: Counters, conditions: Sequence[StepLimit], limit: Size | None) -> Size | None:
    """Return the size that every limit gives as the number of steps, if there is a step; None if there is none."""
    counts = [each.count for each in conditions]
    found = [count for count in counts if count is not None]
    found += [] if limit is None else [limit]
    least = min(found, key=lambda count: count.coefficient(), default=None)
    if least is None or not counters.copy.facts.is_size(least) or None in counts:
        return None
    return least if all((count - least).constant is not None for count in found) else None


def _follows(counters: Counters, length: Size) -> bool:
    """Whether the first condition is true where a size is at least 1."""
    first = counters.copy.item(counters.loop.cond)
    if _is_true(first):
        return True
    try:
        conditions = step_limits(counters, first, None) if isinstance(first, ir.Value) else None
    except UnknownTripsError:
        return False
    return conditions is not None and all(each.holds(length) for each in conditions)


def _is_true(condition: Item) -> bool:
    """Whether a condition is true for certain; one that is left out is."""
    return condition is None or bool(number_of(condition))
