"""The number of steps of a Loop before it starts, from numbers that are linear in the number of the step.

A state that grows by the same amount in each step is such a number (`Counters`). If a condition compares two of
them, the last step follows by a division: p + q i < b is true up to i = max(0, ceil((b - p) / q)), and there is one
step more. A condition on constants is evaluated step by step instead (`simulated_trips`).

Integers that are cast to floats count as integers, which is the same below 2^24.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from rnn_lowering.emit.tensor import Tensor
from rnn_lowering.errors import NodeRef, UnsupportedError
from rnn_lowering.inference.symbolic_values import Size
from rnn_lowering.loops.body import LoopBody, behind_identities
from rnn_lowering.loops.body_copy import BodyCopy
from rnn_lowering.loops.facts import TRUE, Item, KnownTensor, number_of
from rnn_lowering.spec.node_spec import DEFAULT_DOMAIN

ENDLESS = 1 << 62
"""The least number of steps that exporters write for a Loop that only its condition ends."""

_INT64 = ir.DataType.INT64
_RANGE_OPSET = 11
"""The first opset at which less than no steps can be counted."""
_MOST_SIMULATED = 1 << 12

_SHAPING = ("Identity", "Squeeze", "Unsqueeze", "Reshape")
_WIDE = (ir.DataType.INT64, ir.DataType.INT32, ir.DataType.FLOAT, ir.DataType.DOUBLE)
_COMPARISONS = ("Less", "LessOrEqual", "Greater", "GreaterOrEqual")


class UnknownTripsError(UnsupportedError):
    """The number of steps is unknown before the model runs.

    Args:
        value: What it follows from; None if that is in the body.
    """

    def __init__(
        self, reason: str, *, hint: str = "", node: NodeRef | None = None, value: ir.Value | None = None
    ) -> None:
        self.value = value
        super().__init__(reason, hint=hint, node=node)


def depends_on_data(node: NodeRef, value: ir.Value | None = None) -> UnknownTripsError:
    """Return the error of a Loop that ends by a condition on data."""
    return UnknownTripsError(
        "the number of its steps depends on data",
        hint="export it with a fixed number of steps, or keep it, for a runtime that runs Loop (--targets)",
        node=node,
        value=value,
    )


@dataclass(frozen=True)
class LoopTrips:
    """A number of steps.

    Attributes:
        tensor: The number as an int64 [1]; no step where it is 0 or less.
        known: The number, if known at lowering time.
        positive: Whether there is a step for certain.
        length: The size that the number is, if there is a step; None if it is not a size.
    """

    tensor: Tensor
    known: int | None
    positive: bool
    length: Line | None = None

    def are(self, rows: Line | None) -> bool:
        """Whether there are as many steps as rows."""
        if rows is None:
            return False
        return self.length == rows if rows.number is None else self.known == rows.number


def number_of_trips(counters: Counters) -> LoopTrips:
    """Emit the number of steps of a Loop into the open graph, and return it.

    Raises:
        UnsupportedError: It depends on data, or on conditions that are not linear in the number of the step.
    """
    copy, read = counters.copy, counters.read
    op = copy.op
    simulated = simulated_trips(copy, read)
    if simulated is not None:
        return LoopTrips(op.constant([simulated]), simulated, simulated > 0)
    limits = _Limits.of(counters)
    length = limits.length
    if length is not None and limits.first_follows and copy.some_rows:
        return LoopTrips(counters.emit(length), None, positive=True, length=length)
    bounds = [] if limits.most_is_length else [_steps_while_negative(counters, line) for line in limits.lines]
    if limits.most is not None:
        given = copy.tensor(limits.most, read.ref)
        bounds.insert(0, op.cast(given if given.rank == 1 else op.reshape(given, (1,)), _INT64))
    if not bounds:
        raise UnknownTripsError(
            "its number of steps is not known before it starts",
            hint="give it a number of steps, or a condition on a counter",
            node=read.ref,
        )
    trips = bounds[0]
    for bound in bounds[1:]:
        trips = op.where(op.less(trips, bound), trips, bound)
    first = copy.item(read.condition)
    if not (limits.most_is_length and limits.first_follows) and not _is_true(first):
        trips = trips * op.cast(op.reshape(copy.tensor(first, read.ref), (1,)), _INT64)
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


def simulated_trips(copy: BodyCopy, read: LoopBody) -> int | None:
    """Count the steps of a Loop by evaluating its condition; None if that needs unknown values."""
    given = [copy.item(value) for value in (read.trips, read.condition)]
    most, first = map(number_of, given)
    if any(item is not None and number is None for item, number in zip(given, (most, first), strict=True)):
        return None
    if first is not None and not first:
        return 0
    limit = ENDLESS if most is None else max(int(most), 0)
    needed = read.values_behind([read.going])
    states = [n for n, value in enumerate(read.state_inputs) if value in needed]
    nodes = [node for node in read.body if not needed.isdisjoint(node.outputs)]
    known: dict[ir.Value, Item] = {read.state_inputs[n]: copy.item(read.initial[n]) for n in states}
    for step in range(min(limit, _MOST_SIMULATED)):
        known |= {
            read.number: KnownTensor(np.asarray(step, np.int64)),
            read.going_input: TRUE,
        }
        for node in nodes:
            items = [None if v is None else known.get(v) or copy.item(v) for v in node.inputs]
            arrays = copy.facts.evaluate(node, items) if node.domain in DEFAULT_DOMAIN else None
            if arrays is None:
                return None
            known |= {output: KnownTensor(array) for output, array in zip(node.outputs, arrays, strict=True)}
        going = number_of(known.get(read.going) or copy.item(read.going))
        if going is None:
            return None
        if not going:
            return step + 1
        if not nodes:
            return limit if limit < ENDLESS else None
        after = [read.state_outputs[n] for n in states]
        known = {read.state_inputs[n]: known.get(v) or copy.item(v) for n, v in zip(states, after, strict=True)}
    return limit if limit <= _MOST_SIMULATED else None


@dataclass(frozen=True)
class _Limits:
    """What ends a Loop.

    Attributes:
        lines: The Loop goes on as long as all of them are negative.
        most: The most steps; None for no limit.
        length: The size that every limit gives as the number of steps, if there is a step.
        most_is_length: Whether `most` is that size.
        first_follows: Whether the first step is taken wherever that size is at least 1.
    """

    lines: Sequence[Line]
    most: Item
    length: Line | None
    most_is_length: bool
    first_follows: bool

    @classmethod
    def of(cls, counters: Counters) -> _Limits:
        read, copy = counters.read, counters.copy
        most, number = copy.item(read.trips), number_of(copy.item(read.trips))
        if number is not None and number >= ENDLESS:
            most = None
        lines = _comparisons(counters, read.going, read.body)
        limit = None if most is None or read.trips is None else counters.line_of_outside(read.trips)
        length = None if most is not None and limit is None else _length(lines, limit)
        follows = length is not None and _follows(counters, length)
        return cls(lines, most, length, length is not None and length == limit, follows)


def _length(lines: Sequence[Line], limit: Line | None) -> Line | None:
    """Return the size that every limit gives as the number of steps, if there is a step; None if there is none."""
    found = [Line(1).plus(line.start, -1) if line.rate == 1 else None for line in lines]
    found += [] if limit is None else [limit]
    least = min((line for line in found if line is not None), key=lambda line: line.constant, default=None)
    if least is None or not least.is_size or any(line is None or line.terms != least.terms for line in found):
        return None
    return least


def _follows(counters: Counters, length: Line) -> bool:
    """Whether the first condition is true where a size is at least 1."""
    first = counters.copy.item(counters.read.condition)
    if _is_true(first):
        return True
    try:
        lines = _comparisons(counters, first, None) if isinstance(first, ir.Value) else None
    except UnknownTripsError:
        return False
    return lines is not None and all(_is_negative(line, length) for line in lines)


def _comparisons(counters: Counters, going: ir.Value, home: ir.Graph | None) -> list[Line]:
    """Return lines that are all negative as long as a condition is true.

    Args:
        counters: The numbers of the Loop.
        going: The condition.
        home: The graph that computes it; None for any.
    """
    ref, value = counters.read.ref, behind_identities(going)
    item = counters.item_of_outside(value)
    if value is counters.read.going_input or (item is not None and _is_true(item)):
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
    if node.op_type not in _COMPARISONS or a is None or b is None:
        raise depends_on_data(ref)
    first, second = counters.line(a), counters.line(b)
    if first is None or second is None:
        raise depends_on_data(ref)
    return [first.plus(second, -1).plus(Line(-1 if node.op_type.endswith("OrEqual") else 0))]


def _steps_while_negative(counters: Counters, line: Line) -> Tensor:
    """Return the number of steps of a Loop that goes on while a line is negative."""
    op = counters.copy.op
    if line.rate <= 0:
        raise depends_on_data(counters.read.ref)
    reach = counters.emit(Line(line.rate - 1).plus(line.start, -1))
    zero = op.constant([0])
    reach = op.where(op.less(reach, zero), zero, reach)
    whole = reach if line.rate == 1 else op.emit("Div", [reach, op.constant([line.rate])], (1,))
    return whole + op.constant([1])


def _is_true(condition: Item) -> bool:
    """Whether a condition is true for certain; one that is left out is."""
    return condition is None or bool(number_of(condition))


def _is_negative(line: Line, length: Line) -> bool:
    """Whether a line is negative where a size is at least 1."""
    return any(
        each.number is not None and each.number <= most for each, most in ((line, -1), (line.plus(length), 0))
    )


# Numbers that are linear in the number of the step


@dataclass(frozen=True)
class Line:
    """A whole number that is linear in the number of the step: constant + the sum of terms + rate * i.

    A term is a size, or a value of one element, and its factor. A polynomial would not do: a value may hold 2 N
    where none holds N, and what is emitted needs a value.
    """

    constant: int = 0
    terms: tuple[tuple[Size | ir.Value, int], ...] = ()
    rate: int = 0

    def plus(self, other: Line, sign: int = 1) -> Line:
        sums: dict[Size | ir.Value, int] = dict(self.terms)
        for value, factor in other.terms:
            sums[value] = sums.get(value, 0) + sign * factor
        terms = tuple((value, factor) for value, factor in sums.items() if factor)
        return Line(self.constant + sign * other.constant, terms, self.rate + sign * other.rate)

    def times(self, factor: int) -> Line:
        terms = tuple((value, n * factor) for value, n in self.terms)
        return Line(self.constant * factor, terms, self.rate * factor)

    @property
    def start(self) -> Line:
        """The number in step 0."""
        return replace(self, rate=0)

    @property
    def number(self) -> int | None:
        """The number, if known and the same in each step."""
        return None if self.terms or self.rate else self.constant

    @property
    def is_size(self) -> bool:
        """Whether it is a size, and nothing else."""
        ((term, factor),) = self.terms if len(self.terms) == 1 else ((None, 0),)
        return not isinstance(term, ir.Value | None) and (self.constant, factor, self.rate) == (0, 1, 0)


STEP = Line(rate=1)
"""The number of the step."""


class Counters:
    """The numbers of a Loop that are linear in the number of the step.

    Args:
        copy: Copies the body later; it has items for the values outside.
        read: The Loop.
    """

    def __init__(self, copy: BodyCopy, read: LoopBody) -> None:
        self.copy = copy
        self.read = read
        self._invariant = read.invariant_states
        self._entered: set[ir.Value] = set()
        self._holders: dict[Size | ir.Value, ir.Value] = {}

    def line(self, value: ir.Value) -> Line | None:
        """Return a value of the body or from outside as a line; None if it is not linear."""
        read = self.read
        if value is read.number:
            return STEP
        if value in read.state_inputs:
            return self._line_of_state(list(read.state_inputs).index(value))
        node = value.producer()
        if node is None or node.graph is not read.body:
            return self.line_of_outside(value)
        if node.op_type == "Constant":
            return _whole_number(self.item_of_outside(value))
        if node.domain not in DEFAULT_DOMAIN or not node.inputs or node.inputs[0] is None:
            return None
        if _keeps_number(node):
            return self.line(node.inputs[0])
        if node.op_type not in ("Add", "Sub", "Mul") or node.inputs[1] is None:
            return None
        a, b = self.line(node.inputs[0]), self.line(node.inputs[1])
        if a is None or b is None:
            return None
        if node.op_type != "Mul":
            return a.plus(b, 1 if node.op_type == "Add" else -1)
        factor, other = (a, b) if a.number is not None else (b, a)
        return None if factor.number is None else other.times(factor.number)

    def line_of_outside(self, value: ir.Value) -> Line | None:
        """Return a value from around the Loop as a line."""
        item = self.copy.item(value)
        if isinstance(item, KnownTensor):
            return _whole_number(item)
        kind = self.copy.facts.kind(item)
        if kind is None or kind.shape is None or any(size != 1 for size in kind.shape):
            return None
        if kind.dtype.is_integer():
            size = self.copy.facts.size_in(item) if isinstance(item, ir.Value) else None
            self._holders.setdefault(size or value, value)
            return Line(terms=((size or value, 1),))
        node = value.producer()
        source = node.inputs[0] if node is not None and _keeps_number(node) else None
        return None if source is None else self.line_of_outside(source)

    def item_of_outside(self, value: ir.Value) -> Item:
        """Return the item of a value that is outside of the body, or that follows from constants in it."""
        node, body = value.producer(), self.read.body
        if node is not None and node.graph is body:
            arrays = self.copy.facts.evaluate(node, [self.copy.item(v) for v in node.inputs])
            return KnownTensor(arrays[0]) if arrays else None
        is_input = value.graph is body and node is None and value.is_graph_input()
        return None if is_input else self.copy.item(value)

    def count_of_rows(self, item: Item, axis: int) -> Line | None:
        """Return how many rows a value has along an axis."""
        kind = self.copy.facts.kind(item)
        size = None if kind is None else kind.dims[axis]
        if size is not None or not isinstance(item, ir.Value):
            return None if size is None else Line(size)
        symbol = self.copy.facts.size_of_axis(item, axis)
        return None if symbol is None else Line(terms=((symbol, 1),))

    def emit(self, line: Line) -> Tensor:
        """Emit the number in step 0 as an int64 [1]."""
        op = self.copy.op
        total = op.constant([line.constant])
        for term, factor in line.terms:
            given = self.copy.tensor(self.copy.item(self._holders[term]), self.read.ref)
            flat = op.cast(given if given.shape == (1,) else op.reshape(given, (1,)), _INT64)
            total = total + (flat if factor == 1 else flat * op.constant([factor]))
        return total

    def _line_of_state(self, n: int) -> Line | None:
        read = self.read
        initial = read.initial[n]
        if initial is None or read.state_inputs[n] in self._entered:
            return None
        start = self.line_of_outside(initial)
        if start is None or n in self._invariant:
            return start
        growth = self._growth(read.state_outputs[n], read.state_inputs[n])
        return None if growth is None else start.plus(Line(rate=growth))

    def _growth(self, value: ir.Value, state: ir.Value) -> int | None:
        """Return how much a state grows in a step: a constant."""
        value = behind_identities(value)
        if value is state:
            return 0
        node = value.producer()
        if node is None or node.graph is not self.read.body or node.domain not in DEFAULT_DOMAIN:
            return None
        if _keeps_number(node) and node.inputs[0] is not None:
            return self._growth(node.inputs[0], state)
        a, b = (*node.inputs[:2], None, None)[:2]
        if node.op_type not in ("Add", "Sub", "Mul") or a is None or b is None:
            return None
        for base, other in ((a, b), (b, a)):
            number = self._number_beside(other, state)
            if node.op_type == "Mul":
                if number == 1:  # paddle2onnx writes i * 1 + 1
                    return self._growth(base, state)
            elif number is not None and (node.op_type == "Add" or base is a):
                growth = self._growth(base, state)
                if growth is not None:
                    return growth + (number if node.op_type == "Add" else -number)
        return None

    def _number_beside(self, value: ir.Value, state: ir.Value) -> int | None:
        """Return the number that a value is in each step, whatever a state is."""
        self._entered.add(state)
        line = self.line(value)
        self._entered.discard(state)
        return None if line is None else line.number


def _keeps_number(node: ir.Node) -> bool:
    """Whether a node returns the whole number that it is given, in another type or shape."""
    if node.domain not in DEFAULT_DOMAIN:
        return False
    if node.op_type == "Concat":
        return len(node.inputs) == 1
    return node.op_type in _SHAPING or (node.op_type == "Cast" and node.attributes["to"].as_int() in _WIDE)


def _whole_number(item: Item) -> Line | None:
    """Return a known whole number."""
    number = number_of(item)
    return None if number is None or not np.isfinite(number) or number != int(number) else Line(int(number))
