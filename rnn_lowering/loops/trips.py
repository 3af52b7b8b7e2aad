"""The number of steps of a Loop, before it starts. It follows from numbers that are linear in the step.

Such a number is a polynomial with the symbol `STEP`.

A state that grows by the same amount in each step is one. Integers that are cast to floats count as integers, which
is the same below 2^24.

A number can be emitted only if some value holds it. A value may hold 2 N while no value holds N, so each size and
each value from outside is a symbol of its own here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
import onnx_ir as ir

from rnn_lowering.emit.tensor import Tensor
from rnn_lowering.errors import NodeRef, UnknownTripsError
from rnn_lowering.facts.known import Known
from rnn_lowering.facts.operators import DEFAULT_DOMAIN, keeps_numbers
from rnn_lowering.facts.size import STEP, Size, size
from rnn_lowering.loops.body import LoopBody, behind_identities
from rnn_lowering.loops.body_copy import BodyWriter
from rnn_lowering.loops.value_facts import TRUE, Item, KnownTensor, number_of

_INT64 = ir.DataType.INT64
_WIDE = (ir.DataType.INT64, ir.DataType.INT32, ir.DataType.FLOAT, ir.DataType.DOUBLE)


STEP_NUMBER = Size.symbol(STEP)
"""The number of the step."""


def rate_of(count: Size) -> int:
    """Return how much a number grows in each step."""
    return int(count.coefficient(STEP))


def first_of(count: Size) -> Size:
    """Return a number in step 0."""
    return count - STEP_NUMBER * rate_of(count)


class Counters:
    """The numbers of a Loop that are linear in the number of the step.

    Args:
        writer: Writes the body later; it has items for the values outside.
        loop: The Loop.
    """

    def __init__(self, writer: BodyWriter, loop: LoopBody) -> None:
        self.writer = writer
        self.loop = loop
        self._invariant = loop.invariant_states
        self._holders: dict[Size, ir.Value] = {}
        self._lines: dict[ir.Value, Size | None] = {}
        self._step = _CountedStep(self, {})

    def numbers(self, value: ir.Value) -> list[Size] | None:
        """Return the elements of a value of the body, or from outside, in each step; None if unknown."""
        return self._step.numbers(value)

    def line(self, value: ir.Value) -> Size | None:
        """Return a value of the body or from outside as a line; None if it is not linear."""
        count = _only(self.numbers(value))
        return count if count is not None and self._is_linear(count) else None

    def _is_linear(self, count: Size) -> bool:
        """Whether a number is whole, and a multiple of the step plus multiples of numbers from outside."""
        known = {STEP}.union(*(holder.symbols for holder in self._holders))
        linear = all(len(monomial) <= 1 for monomial, _ in count.terms)
        return linear and count.symbols <= known and count.is_integral

    def line_of_outside(self, value: ir.Value) -> Size | None:
        """Return a value from around the Loop as a line."""
        item = self.writer.item(value)
        if isinstance(item, KnownTensor):
            return _whole_number(item)
        kind = self.writer.facts.kind(item)
        if kind is None or kind.shape is None or any(size != 1 for size in kind.dims):
            return None
        if kind.dtype.is_integer():
            held = self.writer.facts.size_in(item) if isinstance(item, ir.Value) else None
            symbol = self.writer.facts.symbol_of(value if held is None else held)
            self._holders.setdefault(symbol, value)
            return symbol
        node = value.producer()
        source = node.inputs[0] if node is not None and _keeps_number(node) else None
        return None if source is None else self.line_of_outside(source)

    def item_of_outside(self, value: ir.Value) -> Item:
        """Return the item of a value that is outside of the body, or that follows from constants in it."""
        node, body = value.producer(), self.loop.body
        if node is not None and node.graph is body:
            arrays = self.writer.facts.evaluate(node, [self.writer.item(v) for v in node.inputs])
            return KnownTensor(arrays[0]) if arrays else None
        is_input = value.graph is body and node is None and value.is_graph_input()
        return None if is_input else self.writer.item(value)

    def count_of_rows(self, item: Item, axis: int) -> Size | None:
        """Return how many rows a value has along an axis."""
        kind = self.writer.facts.kind(item)
        known = None if kind is None else kind.dims[axis]
        if known is not None or not isinstance(item, ir.Value):
            return None if known is None else size(known)
        rows = self.writer.facts.size_of_axis(item, axis)
        return None if rows is None else self.writer.facts.symbol_of(rows)

    def emit(self, count: Size) -> Tensor:
        """Emit a number that is the same in each step as an int64 [1]."""
        op = self.writer.op
        total = op.constant([int(count.coefficient())])
        for monomial, factor in count.terms:
            if not monomial:
                continue
            given = self.writer.tensor(self.writer.item(self._holders[Size.symbol(*monomial)]), self.loop.ref)
            flat = op.cast(given if given.shape == (1,) else op.reshape(given, (1,)), _INT64)
            total = total + (flat if factor == 1 else flat * op.constant([int(factor)]))
        return total

    def line_of_input(self, value: ir.Value) -> Size | None:
        """Return an input of the body as a line; None if it is not linear."""
        loop = self.loop
        if value is loop.number:
            return STEP_NUMBER
        if value in loop.state_inputs and value not in self._lines:
            self._lines[value] = None  # while it is looked for: what depends on it is unknown
            self._lines[value] = self._line_of_state(list(loop.state_inputs).index(value))
        return self._lines.get(value)

    def kind_of_initial(self, value: ir.Value) -> Known | None:
        """Return the type and shape of a state before step 0; None if a node of the body asks for a shape.

        paddle2onnx writes counters that are [] there and [1] from then on.
        """
        loop = self.loop
        initial = dict(zip(loop.state_inputs, loop.initial, strict=True)).get(value)
        if initial is None or any(node.op_type in ("Shape", "Size") for node in loop.body.all_nodes()):
            return None
        return self.writer.facts.kind(self.writer.item(initial))

    def _line_of_state(self, n: int) -> Size | None:
        loop, initial = self.loop, self.loop.initial[n]
        first = None if initial is None else self.line_of_outside(initial)
        if first is None or n in self._invariant:
            return first
        before = loop.state_inputs[n]
        symbol = self.writer.facts.symbol_of(before)
        after = _only(_CountedStep(self, {before: symbol}).numbers(loop.state_outputs[n]))
        growth = None if after is None else (after - symbol).constant
        return None if growth is None or growth.denominator > 1 else first + STEP_NUMBER * growth


class _CountedStep:
    """The numbers of the values of a body in one step.

    Args:
        counters: The numbers of the Loop.
        states: Numbers of states at the start of the step; other states are lines.
    """

    def __init__(self, counters: Counters, states: Mapping[ir.Value, Size]) -> None:
        self._counters = counters
        self._states = states
        self._values = counters.writer.facts.without_values()
        self._seen: set[ir.Value] = set()

    def numbers(self, value: ir.Value) -> list[Size] | None:
        """Return the elements of a value of the body or from outside; None if unknown."""
        pending, facts = [value], self._counters.writer.facts
        while pending:
            current = pending.pop()
            node = current.producer()
            if current in self._seen:
                continue
            if node is None or node.graph is not self._counters.loop.body:
                self._seen.add(current)
                self._add_input(current)
            elif missing := [v for v in facts.read_by(node) if v not in self._seen]:
                pending += [current, *missing]
            else:
                self._seen.update(node.outputs)
                facts.follow(self._values, node)
                self._follow_range(node)
        return self._values.numbers(value)

    def _follow_range(self, node: ir.Node) -> None:
        """Add the number that a node takes from a Range outside, as paddle2onnx writes `for i in range(n)`."""
        counters, values, (numbers, place, steps) = self._counters, self._values, _taken(node)
        line = None if place is None else _only(values.numbers(place))
        forwards = steps is None or _only(values.numbers(steps)) == size(1)
        start, delta = (
            (None, None) if numbers is None or not forwards else self._range(counters.writer.item(numbers))
        )
        if place is None or line is None or start is None or delta is None or delta.constant is None:
            return
        first = first_of(line).constant
        if first is not None and first >= 0 and rate_of(line) > 0:  # numbers below 0 count from the end
            shape = np.shape(values.contents[place]) if node.op_type == "Gather" else ()
            values.contents[node.outputs[0]] = np.full(shape, start + line * int(delta.constant), object)

    def _range(self, item: Item) -> tuple[Size | None, Size | None]:
        """Return the first number of a Range, and how much it grows; twice None for another item."""
        if isinstance(item, KnownTensor):
            grows = item.array.ndim == 1 and item.array.size > 1 and item.array.dtype.kind in "iu"
            growth = {int(n) for n in np.diff(item.array)} if grows else set()
            return (size(int(item.array[0])), size(*growth)) if len(growth) == 1 else (None, None)
        made = _computed(item)
        if made is None or made.op_type != "Range" or made.domain not in DEFAULT_DOMAIN:
            return None, None
        line = self._counters.line_of_outside
        first, growth_of = made.inputs[0], made.inputs[2]
        return (None if first is None else line(first)), (None if growth_of is None else line(growth_of))

    def _add_input(self, value: ir.Value) -> None:
        """Add a value that no node of the body computes."""
        counters, facts = self._counters, self._counters.writer.facts
        inside = value.graph is counters.loop.body and value.is_graph_input()
        item = value if inside else counters.writer.item(value)
        kind = facts.kind(item)
        if kind is None or kind.shape is None:
            kind = counters.kind_of_initial(value) or kind
        if kind is None:
            return
        self._values.declare(value, kind)
        if isinstance(item, KnownTensor):
            self._values.contents[value] = item.array
        elif kind.is_static and set(kind.dims) <= {1}:
            found = counters.line_of_input(value) if inside else counters.line_of_outside(value)
            number = self._states.get(value, found)
            if number is not None:
                self._values.contents[value] = np.full(kind.dims, number, object)


def _taken(node: ir.Node) -> tuple[ir.Value | None, ir.Value | None, ir.Value | None]:
    """Return a vector, the place of the one element that a node takes from it, and the steps of a Slice."""
    data = node.inputs[0] if node.inputs and node.domain in DEFAULT_DOMAIN else None
    if node.op_type == "Gather":
        return data, node.inputs[1], None
    sliced = None if data is None or node.op_type != "Squeeze" else data.producer()
    if sliced is None or sliced.op_type != "Slice" or len(sliced.inputs) < 3:
        return None, None, None
    whole, first, *_, steps = (*sliced.inputs, None, None)[:5]
    return whole, first, steps  # the Squeeze fails unless it is one element


def _computed(item: Item) -> ir.Node | None:
    """Return the node that computes an item, through Identity."""
    node = item.producer() if isinstance(item, ir.Value) else None
    while node is not None and node.op_type == "Identity" and node.inputs[0] is not None:
        node = node.inputs[0].producer()
    return node


def _only(numbers: list[Size] | None) -> Size | None:
    return numbers[0] if numbers is not None and len(numbers) == 1 else None


def _keeps_number(node: ir.Node) -> bool:
    """Whether a node returns the whole number that it is given, in another type or shape."""
    if node.op_type == "Concat":
        return node.domain in DEFAULT_DOMAIN and len(node.inputs) == 1
    return keeps_numbers(node) and (node.op_type != "Cast" or node.attributes["to"].as_int() in _WIDE)


def _whole_number(item: Item) -> Size | None:
    """Return a known whole number."""
    number = number_of(item)
    return None if number is None or not np.isfinite(number) or number != int(number) else size(int(number))


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


class StepLimit:
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
class _Negative(StepLimit):
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
class _Nonzero(StepLimit):
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
class _Zero(StepLimit):
    """A line is 0."""

    line: Size


@dataclass(frozen=True)
class _OneOf(StepLimit):
    """One of several is true, each of which stays false from some step on."""

    alternatives: Sequence[Sequence[StepLimit]]

    def steps(self, counters: Counters) -> Tensor:
        op = counters.writer.op

        def pick(least: bool) -> Callable[[Tensor, Tensor], Tensor]:
            return lambda a, b: op.where(op.less(*((a, b) if least else (b, a))), a, b)

        found = [reduce(pick(True), [each.steps(counters) for each in limits]) for limits in self.alternatives]
        return reduce(pick(False), found)

    def holds(self, length: Size) -> bool:
        return any(all(each.holds(length) for each in limits) for limits in self.alternatives)


def step_limits(
    counters: Counters, going: ir.Value, home: ir.Graph | None, *, wanted: bool = True
) -> list[StepLimit]:
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
        return step_limits(counters, a, home, wanted=wanted is (node.op_type == "Cast"))
    if a is None or b is None:
        raise depends_on_data(counters.loop.ref)
    if node.op_type in ("And", "Or"):
        if wanted is (node.op_type == "And"):
            return [limit for each in (a, b) for limit in step_limits(counters, each, home, wanted=wanted)]
        open_ones = [each for each in (a, b) if _truth(counters, behind_identities(each)) is not (not wanted)]
        return _one_of(counters, [step_limits(counters, each, home, wanted=wanted) for each in open_ones])
    for given, other in ((a, b), (b, a)):
        truth = _truth(counters, behind_identities(other)) if node.op_type in ("Equal", "Xor") else None
        if truth is not None:
            return step_limits(counters, given, home, wanted=(truth is wanted) is (node.op_type == "Equal"))
    return [_comparison(counters, node, a, b, wanted=wanted)]


def _truth(counters: Counters, value: ir.Value) -> bool | None:
    """Return a condition that is the same in each step; None if it is not known."""
    if value is counters.loop.cond_in:
        return True
    item = counters.item_of_outside(value)
    kind = counters.writer.facts.kind(item)
    number = number_of(item) if kind is not None and kind.dtype == ir.DataType.BOOL else None
    return None if number is None else bool(number)


def _comparison(counters: Counters, node: ir.Node, a: ir.Value, b: ir.Value, *, wanted: bool) -> StepLimit:
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


def _one_of(counters: Counters, alternatives: Sequence[list[StepLimit]]) -> list[StepLimit]:
    """Return a condition that is true if all limits of one alternative are."""
    if [] in alternatives:
        return []
    if len(alternatives) == 1:
        return alternatives[0]
    singles = [limits[0] for limits in alternatives if len(limits) == 1]
    less = [each.line for each in singles if isinstance(each, _Negative)]
    equal = [each.line for each in singles if isinstance(each, _Zero)]
    if len(less) == len(equal) == 1 and less[0] in (equal[0], -equal[0]):
        return [_Negative(less[0] - 1)]  # a < b or a == b
    followed = all(isinstance(each, (_Negative, _OneOf)) for limits in alternatives for each in limits)
    if not alternatives or not followed:
        raise depends_on_data(counters.loop.ref)
    return [_OneOf(alternatives)]


# The number of steps of a Loop, before it starts. If a condition compares two numbers that are linear in the
# number of the step (`Counters`), the last step follows by a division: p + q i < b is true up to i = max(0,
# ceil((b - p) / q)), and there is one step more. Of two conditions that must hold the first to fail ends the
# Loop, of two where one is enough the last (`step_limits`). A condition on constants is evaluated step by step
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
    bounds = [] if limits.most_is_length else [each.steps(counters) for each in limits.conditions]
    if limits.most is not None:
        given = writer.tensor(limits.most, loop.ref)
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
    first = writer.item(loop.cond)
    if not (limits.most_is_length and limits.first_follows) and not _is_true(first):
        trips = trips * op.cast(op.reshape(writer.tensor(first, loop.ref), (1,)), _INT64)
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
        if not nodes:
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

    conditions: Sequence[StepLimit]
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
    if least is None or not counters.writer.facts.is_size(least) or None in counts:
        return None
    return least if all((count - least).constant is not None for count in found) else None


def _follows(counters: Counters, length: Size) -> bool:
    """Whether the first condition is true where a size is at least 1."""
    first = counters.writer.item(counters.loop.cond)
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
