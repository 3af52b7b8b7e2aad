"""The number of steps of a Loop, before it starts. It follows from the conditions on which the Loop goes on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
import onnx_ir as ir

from rnn_lowering.emit.tensor import Tensor
from rnn_lowering.errors import NodeRef, UnknownTripsError
from rnn_lowering.facts.operators import DEFAULT_DOMAIN
from rnn_lowering.facts.size import Size
from rnn_lowering.loops.body import LoopBody, behind_identities
from rnn_lowering.loops.body_copy import BodyWriter
from rnn_lowering.loops.counters import Counters, first_of, rate_of
from rnn_lowering.loops.value_facts import TRUE, Item, KnownTensor, number_of

# The conditions on which a Loop goes on, as numbers of steps. Each compares two numbers that are linear in the
# number of the step: their difference is a line p + q i. A Loop ends after the first step whose condition is
# false. Not, And and Or are followed, Not down to the comparisons.


ENDLESS = 1 << 62
"""A trip count this large means "no limit"."""

_COMPARISONS = ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")


def depends_on_data(node: NodeRef, value: ir.Value | None = None) -> UnknownTripsError:
    """Return the error of a Loop that ends by a condition on data."""
    return UnknownTripsError(
        "the number of its steps depends on data",
        hint="export it with a fixed number of steps",
        node=node,
        value=value,
    )


class _StepLimit:
    """A condition on which a Loop goes on; each kind of condition is a class.

    Attributes:
        count: The number of steps that it gives wherever that is at least 1; None if it is no polynomial.
    """

    count: Size | None = None

    def steps(self, counters: Counters) -> Tensor:
        """Emit the number of steps until it is false, as an int64 [1].

        Raises:
            UnknownTripsError: It depends on data.
        """
        raise depends_on_data(counters.loop.ref)

    def holds(self, length: Size) -> bool:
        """Whether it is true where a size is at least 1."""
        return False


@dataclass(frozen=True)
class _Negative(_StepLimit):
    """A line is negative."""

    line: Size

    @property
    def count(self) -> Size | None:  # type: ignore[override]
        return 1 - first_of(self.line) if rate_of(self.line) == 1 else None

    def steps(self, counters: Counters) -> Tensor:
        op, rate = counters.writer.op, rate_of(self.line)
        if rate <= 0:
            raise depends_on_data(counters.loop.ref)
        reach = counters.emit(rate - 1 - first_of(self.line))
        zero = op.constant([0])
        reach = op.where(op.less(reach, zero), zero, reach)
        whole = reach if rate == 1 else op.emit("Div", [reach, op.constant([rate])], (1,))
        return whole + op.constant([1])

    def holds(self, length: Size) -> bool:
        pairs = (self.line, -1), (self.line + length, 0)
        return any(each.constant is not None and each.constant <= most for each, most in pairs)


@dataclass(frozen=True)
class _Nonzero(_StepLimit):
    """A line is not 0: one that begins above 0 never is."""

    line: Size

    @property
    def _upwards(self) -> Size:
        return self.line if rate_of(self.line) >= 0 else -self.line

    @property
    def count(self) -> Size | None:  # type: ignore[override]
        return _Negative(self._upwards).count

    def steps(self, counters: Counters) -> Tensor:
        op = counters.writer.op
        if rate_of(self._upwards) != 1:  # a larger one may step over 0
            raise depends_on_data(counters.loop.ref)
        reach = counters.emit(-first_of(self._upwards))
        never = op.less(reach, op.constant([0]))
        return op.where(never, op.constant([ENDLESS]), reach + op.constant([1]))

    def holds(self, length: Size) -> bool:
        return _Negative(self.line).holds(length) or _Negative(-self.line).holds(length)


@dataclass(frozen=True)
class _Zero(_StepLimit):
    """A line is 0."""

    line: Size


@dataclass(frozen=True)
class _OneOf(_StepLimit):
    """One of several is true, each of which stays false from some step on."""

    alternatives: Sequence[Sequence[_StepLimit]]

    def steps(self, counters: Counters) -> Tensor:
        op = counters.writer.op

        def pick(least: bool) -> Callable[[Tensor, Tensor], Tensor]:
            return lambda a, b: op.where(op.less(*((a, b) if least else (b, a))), a, b)

        counts = [reduce(pick(True), [each.steps(counters) for each in limits]) for limits in self.alternatives]
        return reduce(pick(False), counts)

    def holds(self, length: Size) -> bool:
        return any(all(each.holds(length) for each in limits) for limits in self.alternatives)


def _step_limits(
    counters: Counters, going: ir.Value, home: ir.Graph | None, *, wanted: bool = True
) -> list[_StepLimit]:
    """Return what is all true as long as a condition is.

    Args:
        counters: The numbers of the Loop.
        going: The condition.
        home: The graph that computes it; None for any.
        wanted: What the condition must be: true, or false.

    Raises:
        UnknownTripsError: It depends on data.
    """
    value = behind_identities(going)
    if _truth(counters, value) is wanted:
        return []
    node = value.producer()
    if node is None or home not in (None, node.graph) or node.domain not in DEFAULT_DOMAIN:
        raise depends_on_data(counters.loop.ref)
    a, b = (*node.inputs[:2], None, None)[:2]
    if node.op_type in ("Cast", "Not") and a is not None:
        return _step_limits(counters, a, home, wanted=wanted is (node.op_type == "Cast"))
    if a is None or b is None:
        raise depends_on_data(counters.loop.ref)
    if node.op_type in ("And", "Or"):
        if wanted is (node.op_type == "And"):
            return [limit for each in (a, b) for limit in _step_limits(counters, each, home, wanted=wanted)]
        open_ones = [each for each in (a, b) if _truth(counters, behind_identities(each)) is not (not wanted)]
        return _one_of(counters, [_step_limits(counters, each, home, wanted=wanted) for each in open_ones])
    for operand, other in ((a, b), (b, a)):
        truth = _truth(counters, behind_identities(other)) if node.op_type in ("Equal", "Xor") else None
        if truth is not None:
            return _step_limits(counters, operand, home, wanted=(truth is wanted) is (node.op_type == "Equal"))
    return [_comparison(counters, node, a, b, wanted=wanted)]


def _truth(counters: Counters, value: ir.Value) -> bool | None:
    """Return a condition that is the same in each step; None if it is not known."""
    if value is counters.loop.cond_in:
        return True
    item = counters.item_of_outside(value)
    kind = counters.writer.facts.kind(item)
    number = number_of(item) if kind is not None and kind.dtype == ir.DataType.BOOL else None
    return None if number is None else bool(number)


def _comparison(counters: Counters, node: ir.Node, a: ir.Value, b: ir.Value, *, wanted: bool) -> _StepLimit:
    """Return a comparison of two numbers, or its opposite."""
    first, second = counters.line(a), counters.line(b)
    if node.op_type not in _COMPARISONS or first is None or second is None:
        raise depends_on_data(counters.loop.ref)
    difference = first - second
    if node.op_type == "Equal":
        return _Zero(difference) if wanted else _Nonzero(difference)
    if node.op_type.startswith("Greater") is wanted:
        difference = -difference  # a > b is b < a, and a < b is false where b <= a
    return _Negative(difference - (1 if node.op_type.endswith("OrEqual") is wanted else 0))


def _one_of(counters: Counters, alternatives: Sequence[list[_StepLimit]]) -> list[_StepLimit]:
    """Return a condition that is true if all limits of one alternative are."""
    if [] in alternatives:
        return []
    if len(alternatives) == 1:
        return alternatives[0]
    singles = [limits[0] for limits in alternatives if len(limits) == 1]
    less = [limit.line for limit in singles if isinstance(limit, _Negative)]
    equal = [limit.line for limit in singles if isinstance(limit, _Zero)]
    if len(less) == len(equal) == 1 and less[0] in (equal[0], -equal[0]):
        return [_Negative(less[0] - 1)]  # a < b or a == b
    followed = all(isinstance(limit, (_Negative, _OneOf)) for limits in alternatives for limit in limits)
    if not alternatives or not followed:
        raise depends_on_data(counters.loop.ref)
    return [_OneOf(alternatives)]


# The number of steps of a Loop, before it starts. If a condition compares two numbers that are linear in the
# number of the step (`Counters`), the last step follows by a division: p + q i < b is true up to i = max(0,
# ceil((b - p) / q)), and there is one step more. Of two conditions that must hold the first to fail ends the
# Loop, of two where one is enough the last (`_step_limits`). A condition on constants is evaluated step by step
# instead (`simulated_trips`).


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
    writer, loop = counters.writer, counters.loop
    op = writer.op
    simulated = simulated_trips(writer, loop)
    if simulated is not None:
        return LoopTrips(op.constant([simulated]), simulated, simulated > 0)
    limits = _Limits.of(counters)
    length = limits.length
    if length is not None and limits.first_follows and writer.some_rows:
        return LoopTrips(counters.emit(length), None, positive=True, length=length)
    bounds = [] if limits.most_is_length else [limit.steps(counters) for limit in limits.conditions]
    if limits.most is not None:
        most = writer.tensor(limits.most, loop.ref)
        bounds.insert(0, op.cast(most if most.rank == 1 else op.reshape(most, (1,)), ir.DataType.INT64))
    if not bounds:
        raise UnknownTripsError(
            "its number of steps is not known before it starts",
            hint="give it a number of steps, or a condition on a counter",
            node=loop.ref,
        )
    trips = bounds[0]
    for bound in bounds[1:]:
        trips = op.where(op.less(trips, bound), trips, bound)
    first = writer.item(loop.cond)
    if not (limits.most_is_length and limits.first_follows) and not _is_true(first):
        trips = trips * op.cast(op.reshape(writer.tensor(first, loop.ref), (1,)), ir.DataType.INT64)
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


def simulated_trips(writer: BodyWriter, loop: LoopBody) -> int | None:
    """Count the steps of a Loop by evaluating its condition; None if that needs unknown values."""
    given = [writer.item(value) for value in (loop.trips, loop.cond)]
    most, first = map(number_of, given)
    if any(item is not None and number is None for item, number in zip(given, (most, first), strict=True)):
        return None
    if first is not None and not first:
        return 0
    limit = ENDLESS if most is None else max(int(most), 0)
    needed = loop.values_behind([loop.cond_out])
    states = [n for n, value in enumerate(loop.state_inputs) if value in needed]
    nodes = [node for node in loop.body if not needed.isdisjoint(node.outputs)]
    known: dict[ir.Value, Item] = {loop.state_inputs[n]: writer.item(loop.initial[n]) for n in states}
    for step in range(min(limit, _MOST_SIMULATED)):
        known |= {
            loop.number: KnownTensor(np.asarray(step, np.int64)),
            loop.cond_in: TRUE,
        }
        for node in nodes:
            items = [None if v is None else known.get(v) or writer.item(v) for v in node.inputs]
            arrays = writer.facts.evaluate(node, items) if node.domain in DEFAULT_DOMAIN else None
            if arrays is None:
                return None
            known |= {output: KnownTensor(array) for output, array in zip(node.outputs, arrays, strict=True)}
        going = number_of(known.get(loop.cond_out) or writer.item(loop.cond_out))
        if going is None:
            return None
        if not going:
            return step + 1
        if not states and loop.number not in needed:  # each step decides as this one
            return limit if limit < ENDLESS else None
        after = [loop.state_outputs[n] for n in states]
        known = {loop.state_inputs[n]: known.get(v) or writer.item(v) for n, v in zip(states, after, strict=True)}
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

    conditions: Sequence[_StepLimit]
    most: Item
    length: Size | None
    most_is_length: bool
    first_follows: bool

    @classmethod
    def of(cls, counters: Counters) -> _Limits:
        loop, writer = counters.loop, counters.writer
        most, number = writer.item(loop.trips), number_of(writer.item(loop.trips))
        if number is not None and number >= ENDLESS:
            most = None
        conditions = _step_limits(counters, loop.cond_out, loop.body)
        limit = None if most is None or loop.trips is None else counters.line_of_outside(loop.trips)
        length = None if most is not None and limit is None else _length(counters, conditions, limit)
        follows = length is not None and _follows(counters, length)
        return cls(conditions, most, length, length is not None and length == limit, follows)


def _length(counters: Counters, conditions: Sequence[_StepLimit], limit: Size | None) -> Size | None:
    """Return the size that every limit gives as the number of steps, if there is a step; None if there is none."""
    counts = [condition.count for condition in conditions]
    known = [count for count in counts if count is not None]
    known += [] if limit is None else [limit]
    least = min(known, key=lambda count: count.coefficient(), default=None)
    if least is None or not counters.writer.facts.is_size(least) or None in counts:
        return None
    return least if all((count - least).constant is not None for count in known) else None


def _follows(counters: Counters, length: Size) -> bool:
    """Whether the first condition is true where a size is at least 1."""
    first = counters.writer.item(counters.loop.cond)
    if _is_true(first):
        return True
    try:
        conditions = _step_limits(counters, first, None) if isinstance(first, ir.Value) else None
    except UnknownTripsError:
        return False
    return conditions is not None and all(limit.holds(length) for limit in conditions)


def _is_true(condition: Item) -> bool:
    """Whether a condition is true for certain; one that is left out is."""
    return condition is None or bool(number_of(condition))
