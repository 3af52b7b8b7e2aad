"""The number of steps of a Loop, before it starts.

If a condition compares two numbers that are linear in the number of the step (`linear_counts`), the last step
follows by a division: p + q i < b is true up to i = max(0, ceil((b - p) / q)), and there is one step more. A
condition on constants is evaluated step by step instead (`simulated_trips`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from rnn_lowering.emit.tensor import Tensor
from rnn_lowering.errors import NodeRef, UnknownTripsError
from rnn_lowering.facts.operators import DEFAULT_DOMAIN, operator_of
from rnn_lowering.facts.size import Size
from rnn_lowering.loops.body import LoopBody, behind_identities
from rnn_lowering.loops.body_copy import BodyCopy
from rnn_lowering.loops.linear_counts import Counters, first_of, rate_of
from rnn_lowering.loops.value_facts import TRUE, Item, KnownTensor, number_of

ENDLESS = 1 << 62
"""A trip count this large means "no limit"."""

_INT64 = ir.DataType.INT64
_RANGE_OPSET = 11
"""First opset whose Range accepts a negative limit; before it, the number of steps is at least 0."""
_MOST_SIMULATED = 1 << 12


def depends_on_data(node: NodeRef, value: ir.Value | None = None) -> UnknownTripsError:
    """Return the error of a Loop that ends by a condition on data."""
    return UnknownTripsError(
        "the number of its steps depends on data",
        hint="export it with a fixed number of steps",
        node=node,
        value=value,
    )


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
    bounds = [] if limits.most_is_length else [_steps_while_negative(counters, line) for line in limits.lines]
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
        lines: The Loop goes on as long as all of them are negative.
        most: The maximum number of steps; None for no limit.
        length: The size that every limit gives as the number of steps, if there is a step.
        most_is_length: Whether `most` is that size.
        first_follows: Whether the first step is taken wherever that size is at least 1.
    """

    lines: Sequence[Size]
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
        lines = _comparisons(counters, loop.cond_out, loop.body)
        limit = None if most is None or loop.trips is None else counters.line_of_outside(loop.trips)
        length = None if most is not None and limit is None else _length(counters, lines, limit)
        follows = length is not None and _follows(counters, length)
        return cls(lines, most, length, length is not None and length == limit, follows)


def _length(counters: Counters, lines: Sequence[Size], limit: Size | None) -> Size | None:
    """Return the size that every limit gives as the number of steps, if there is a step; None if there is none."""
    found = [1 - first_of(line) for line in lines if rate_of(line) == 1]
    found += [] if limit is None else [limit]
    least = min(found, key=lambda count: count.coefficient(), default=None)
    if least is None or not counters.copy.facts.is_size(least) or any(rate_of(line) != 1 for line in lines):
        return None
    return least if all((count - least).constant is not None for count in found) else None


def _follows(counters: Counters, length: Size) -> bool:
    """Whether the first condition is true where a size is at least 1."""
    first = counters.copy.item(counters.loop.cond)
    if _is_true(first):
        return True
    try:
        lines = _comparisons(counters, first, None) if isinstance(first, ir.Value) else None
    except UnknownTripsError:
        return False
    return lines is not None and all(_is_negative(line, length) for line in lines)


def _comparisons(counters: Counters, going: ir.Value, home: ir.Graph | None) -> list[Size]:
    """Return lines that are all negative as long as a condition is true.

    Args:
        counters: The numbers of the Loop.
        going: The condition.
        home: The graph that computes it; None for any.
    """
    ref, value = counters.loop.ref, behind_identities(going)
    item = counters.item_of_outside(value)
    if value is counters.loop.cond_in or (item is not None and _is_true(item)):
        return []
    node = value.producer()
    if node is None or home not in (None, node.graph) or node.domain not in DEFAULT_DOMAIN:
        raise depends_on_data(ref)
    a, b = (*node.inputs[:2], None, None)[:2]
    if node.op_type == "Cast" and a is not None:
        return _comparisons(counters, a, home)
    if node.op_type == "And" and a is not None and b is not None:
        return [*_comparisons(counters, a, home), *_comparisons(counters, b, home)]
    if node.op_type in ("Greater", "GreaterOrEqual"):
        a, b = b, a
    if not (operator_of(node).boolean and node.op_type != "Equal") or a is None or b is None:
        raise depends_on_data(ref)
    first, second = counters.line(a), counters.line(b)
    if first is None or second is None:
        raise depends_on_data(ref)
    return [first - second - (1 if node.op_type.endswith("OrEqual") else 0)]


def _steps_while_negative(counters: Counters, line: Size) -> Tensor:
    """Return the number of steps of a Loop that goes on while a line is negative."""
    op = counters.copy.op
    rate = rate_of(line)
    if rate <= 0:
        raise depends_on_data(counters.loop.ref)
    reach = counters.emit(rate - 1 - first_of(line))
    zero = op.constant([0])
    reach = op.where(op.less(reach, zero), zero, reach)
    whole = reach if rate == 1 else op.emit("Div", [reach, op.constant([rate])], (1,))
    return whole + op.constant([1])


def _is_true(condition: Item) -> bool:
    """Whether a condition is true for certain; one that is left out is."""
    return condition is None or bool(number_of(condition))


def _is_negative(line: Size, length: Size) -> bool:
    """Whether a line is negative where a size is at least 1."""
    pairs = (line, -1), (line + length, 0)
    return any(each.constant is not None and each.constant <= most for each, most in pairs)
