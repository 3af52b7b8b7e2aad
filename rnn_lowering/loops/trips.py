"""The number of steps of a Loop, computed before it starts.

A condition decides on the next step. Where it compares whole numbers that grow by the same amount in each step
with others that never change, the last step follows by a division: for a < b, where a is p + q i in step i, it is
max(0, ceil((b - p) / q)), and the number of steps is one more. Integers that are cast to floats are compared as
integers, which is the same below 2^24.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from rnn_lowering.emit.run_time_sizes import count
from rnn_lowering.emit.tensor import Tensor
from rnn_lowering.errors import NodeRef, UnsupportedError
from rnn_lowering.loops.body import LoopBody, ScanBody
from rnn_lowering.loops.body_copy import BodyCopy
from rnn_lowering.loops.facts import Item, Known
from rnn_lowering.loops.lengths import Length, length_in, length_of_axis
from rnn_lowering.spec.node_spec import DEFAULT_DOMAIN

_INT64 = ir.DataType.INT64
_RANGE_OPSET = 11
"""The first opset at which less than no steps can be counted."""
_MOST_SIMULATED = 1 << 12
_ENDLESS = 1 << 62
"""A number of steps that exporters write for a Loop that only its condition ends."""

_SHAPING = ("Identity", "Squeeze", "Unsqueeze", "Reshape")
_WIDE = (ir.DataType.INT64, ir.DataType.INT32, ir.DataType.FLOAT, ir.DataType.DOUBLE)


class UnknownTripsError(UnsupportedError):
    """The number of steps is not known before the model runs.

    Args:
        value: What it follows from; None where that is in the body.
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
        tensor: It as an int64 [1]; none or less is no step.
        known: It, where it is known at lowering time.
        positive: Whether there is a step for certain.
        length: The size that it is, where there is a step; None where it is none.
    """

    tensor: Tensor
    known: int | None
    positive: bool
    length: Line | None = None


def invariant_states(read: LoopBody | ScanBody) -> set[int]:
    """Return which states are what they were before in each step."""
    pairs = zip(read.state_inputs, read.state_outputs, strict=True)
    return {n for n, (before, after) in enumerate(pairs) if _source(after) is before}


def _source(value: ir.Value) -> ir.Value:
    """Return what Identities return."""
    node = value.producer()
    while node is not None and node.op_type == "Identity" and node.domain in DEFAULT_DOMAIN and node.inputs[0]:
        value = node.inputs[0]
        node = value.producer()
    return value


def number_of_trips(copy: BodyCopy, read: LoopBody, items: Sequence[Item]) -> LoopTrips:
    """Emit the number of steps of a Loop into the open graph, and return it.

    Raises:
        UnsupportedError: It depends on data, or on conditions that are not linear in the number of the step.
    """
    simulated = simulated_trips(copy, read, items)
    if simulated is not None:
        return LoopTrips(copy.op.constant([simulated]), simulated, simulated > 0)
    return Counters(copy, read, items).trips()


def simulated_trips(copy: BodyCopy, read: LoopBody, items: Sequence[Item]) -> int | None:
    """Count the steps of a Loop by evaluating its condition; None if that needs unknown values."""
    most, first = (items[n] if len(items) > n else None for n in (0, 1))
    if not all(item is None or (isinstance(item, Known) and item.array.size == 1) for item in (most, first)):
        return None
    limit = max(int(most.array.reshape(())), 0) if isinstance(most, Known) else _ENDLESS
    if isinstance(first, Known) and not first.array.reshape(()):
        return 0
    states, nodes = _needed(read)
    known: dict[ir.Value, Item] = {read.state_inputs[n]: items[2 + n] for n in states}
    for step in range(min(limit, _MOST_SIMULATED)):
        known |= {read.number: Known(np.asarray(step, np.int64)), read.going_input: Known(np.asarray(True))}
        for node in nodes:
            given = [None if v is None else known.get(v) or copy.item(v) for v in node.inputs]
            found = copy.facts.evaluate(node, given) if node.domain in DEFAULT_DOMAIN else None
            if found is None:
                return None
            known |= {output: Known(array) for output, array in zip(node.outputs, found, strict=True)}
        going = known.get(read.going) or copy.item(read.going)
        if not isinstance(going, Known) or going.array.size != 1:
            return None
        if not nodes and going.array.reshape(()):
            return limit if limit < _ENDLESS else None
        if not going.array.reshape(()):
            return step + 1
        after = {read.state_inputs[n]: known.get(read.state_outputs[n]) for n in states}
        known = {
            v: item or copy.item(read.state_outputs[n]) for (v, item), n in zip(after.items(), states, strict=True)
        }
    return limit if limit <= _MOST_SIMULATED else None


def _needed(read: LoopBody) -> tuple[list[int], list[ir.Node]]:
    """Return the states and, in order, the nodes of the body that compute its condition."""
    places = {value: n for n, value in enumerate(read.state_inputs)}
    values, pending = set[ir.Value](), [read.going]
    while pending:
        value = pending.pop()
        if value in values:
            continue
        values.add(value)
        node = value.producer()
        if node is not None and node.graph is read.body:
            pending += [v for v in node.inputs if v is not None]
        if value in places:
            pending.append(read.state_outputs[places[value]])
    states = [n for value, n in places.items() if value in values]
    return states, [node for node in read.body if not values.isdisjoint(node.outputs)]


@dataclass(frozen=True)
class Line:
    """A whole number that is linear in the number of the step: constant + the sum of terms + rate * i.

    A term is a size, or a value of one element, and its factor.
    """

    constant: int = 0
    terms: tuple[tuple[Length | ir.Value, int], ...] = ()
    rate: int = 0

    def plus(self, other: Line, sign: int = 1) -> Line:
        sums: dict[Length | ir.Value, int] = dict(self.terms)
        for value, factor in other.terms:
            sums[value] = sums.get(value, 0) + sign * factor
        terms = tuple((value, factor) for value, factor in sums.items() if factor)
        return Line(self.constant + sign * other.constant, terms, self.rate + sign * other.rate)

    @property
    def is_size(self) -> bool:
        """Whether it is a size, and nothing else."""
        ((term, factor),) = self.terms if len(self.terms) == 1 else ((None, 0),)
        return not isinstance(term, ir.Value | None) and (self.constant, factor, self.rate) == (0, 1, 0)


class Counters:
    """The numbers in the body of a Loop that are linear in the number of the step, and the conditions on them."""

    def __init__(self, copy: BodyCopy, read: LoopBody, items: Sequence[Item]) -> None:
        self.copy = copy
        self.read = read
        self.items = items
        self.invariant = invariant_states(read)
        self._entered: set[ir.Value] = set()
        self._holders: dict[Length | ir.Value, ir.Value] = {}

    def trips(self) -> LoopTrips:
        op, most = self.copy.op, self._most()
        lines, limit, length = self._limits(most)
        first = self.items[1] if len(self.items) > 1 else None
        follows = length is not None and self._follows(first, length)
        if length is not None and follows and self.copy.some_rows:
            return LoopTrips(self._emit(length), None, positive=True, length=length)
        bounds = [] if length is not None and length == limit else [self._after(line) for line in lines]
        if most is not None:
            given = self.copy.tensor(most, self.read.ref)
            bounds.insert(0, op.cast(given if given.rank == 1 else op.reshape(given, (1,)), _INT64))
        if not bounds:
            raise UnknownTripsError(
                "it has no end that is known before it starts",
                hint="give it a number of steps, or a condition on a counter",
                node=self.read.ref,
            )
        trips = bounds[0]
        for bound in bounds[1:]:
            trips = self._smaller(trips, bound)
        if not (follows and length == limit) and first is not None and not _is_true(first):
            taken = op.cast(op.reshape(self.copy.tensor(first, self.read.ref), (1,)), _INT64)
            trips = trips * taken
        if op.opset < _RANGE_OPSET and trips.number is None:
            zero = op.constant([0])
            trips = op.where(op.less(trips, zero), zero, trips)
        known = None if trips.number is None else max(trips.number, 0)
        return LoopTrips(trips if known is None else op.constant([known]), known, bool(known), length)

    def _most(self) -> Item:
        """Return the most steps; None where there is no limit."""
        most = self.items[0] if self.items else None
        endless = isinstance(most, Known) and int(most.array.reshape(-1)[0]) >= _ENDLESS
        return None if endless else most

    def _limits(self, most: Item) -> tuple[list[Line], Line | None, Line | None]:
        """Return the conditions, the most steps and the number of steps as lines."""
        lines = self._comparisons(self.read.going, self.read.body)
        limit = None if most is None or self.read.trips is None else self._line_of_outside(self.read.trips, most)
        return lines, limit, None if most is not None and limit is None else self._length(lines, limit)

    def _length(self, lines: Sequence[Line], limit: Line | None) -> Line | None:
        """Return the number of steps, where there is one, if it is a size by every condition."""
        found = [Line(1).plus(replace(line, rate=0), -1) if line.rate == 1 else None for line in lines]
        found += [] if limit is None else [limit]
        least = min((line for line in found if line is not None), key=lambda line: line.constant, default=None)
        if least is None or not least.is_size or any(line is None or line.terms != least.terms for line in found):
            return None
        return least

    def _follows(self, first: Item, length: Line) -> bool:
        """Whether the first condition is true where a size is at least 1."""
        if first is None or _is_true(first):
            return True
        try:
            lines = self._comparisons(first, None) if isinstance(first, ir.Value) else None
        except UnknownTripsError:
            return False
        return lines is not None and all(_is_negative(line, length) for line in lines)

    def is_length(self, item: Item, axis: int, trips: LoopTrips) -> bool:
        """Whether there are as many steps as a value has rows along an axis."""
        kind = self.copy.facts.kind(item)
        size = None if kind is None else kind.dims[axis]
        if size is not None or not isinstance(item, ir.Value):
            return size is not None and trips.known == size
        return trips.length == Line(terms=((length_of_axis(self.copy.facts, item, axis), 1),))

    def fills(self, item: Item, axis: int) -> bool:
        """Whether the number of steps, which is not known, is that of the rows of a value along an axis.

        Raises:
            UnsupportedError: It depends on data.
        """
        _, _, length = self._limits(self._most())
        first = self.items[1] if len(self.items) > 1 else None
        return length is not None and length == self._rows_of(item, axis) and self._follows(first, length)

    def _rows_of(self, item: Item, axis: int) -> Line | None:
        """Return how many rows a value has along an axis."""
        kind = self.copy.facts.kind(item)
        size = None if kind is None else kind.dims[axis]
        if size is not None or not isinstance(item, ir.Value):
            return None if size is None else Line(size)
        return Line(terms=((length_of_axis(self.copy.facts, item, axis), 1),))

    def check_row(self, value: ir.Value, trips: LoopTrips, data: ir.Value) -> None:
        """Refuse, for a stream, a row that is not row i in step i, and a number of steps that is always the same.

        Raises:
            UnsupportedError: It is so.
        """
        line, ref = self._line(value), self.read.ref
        if line is None or not line.rate:
            return
        if line == Line(rate=1) and trips.known is not None:
            raise UnsupportedError(
                f"it takes {trips.known} steps whatever the number of frames",
                hint="did the exporter fix the length? Export with a dynamic time axis",
                node=ref,
            )
        if line != Line(rate=1):
            count = "i" if line.rate == 1 else f"{line.rate} i"
            row = f"row {count} + {line.constant}" if line.rate > 0 else "rows from the end on"
            raise UnsupportedError(
                f"in step i it reads {row} of '{data.name}', where a stream has row i",
                hint="start at the first frame, with one frame in each step",
                node=ref,
            )

    def positions(self, value: ir.Value, trips: LoopTrips) -> Tensor | None:
        """Return what a number is in each step, as an int64 [steps]: it grows in each; None where it is no line."""
        line = self._line(value)
        if line is None or not line.rate:
            return None
        numbers = count(self.copy.op, trips.tensor)
        if line.rate != 1:
            numbers = numbers * self.copy.op.constant([line.rate])
        start = replace(line, rate=0)
        return numbers if start == Line() else numbers + self._emit(start)

    def counts_up(self, value: ir.Value) -> bool:
        """Whether a number grows in each step and is never negative."""
        line = self._line(value)
        return line is not None and not line.terms and line.constant >= 0 and line.rate > 0

    def counts(self, value: ir.Value) -> bool:
        """Whether a value is the number of the step."""
        return self._line(value) == Line(rate=1)

    def counts_down(self, value: ir.Value, item: Item, axis: int) -> bool:
        """Whether a value is the number of a row of another one along an axis, from the last row on."""
        rows = self._rows_of(item, axis)
        return rows is not None and self._line(value) == rows.plus(Line(-1, rate=-1))

    def _smaller(self, a: Tensor, b: Tensor) -> Tensor:
        return self.copy.op.where(self.copy.op.less(a, b), a, b)

    def _after(self, left: Line) -> Tensor:
        """Return the number of steps of a Loop that goes on while a line is negative."""
        op = self.copy.op
        if left.rate <= 0:
            raise depends_on_data(self.read.ref)
        reach = self._emit(Line(left.rate - 1).plus(replace(left, rate=0), -1))
        zero = op.constant([0])
        reach = op.where(op.less(reach, zero), zero, reach)
        whole = reach if left.rate == 1 else op.emit("Div", [reach, op.constant([left.rate])], [(1,)], [_INT64])[0]
        return whole + op.constant([1])

    def _emit(self, line: Line) -> Tensor:
        op = self.copy.op
        total = op.constant([line.constant])
        for term, factor in line.terms:
            given = self.copy.tensor(self.copy.item(self._holders[term]), self.read.ref)
            flat = op.cast(given if given.shape == (1,) else op.reshape(given, (1,)), _INT64)
            total = total + (flat if factor == 1 else flat * op.constant([factor]))
        return total

    def _comparisons(self, going: ir.Value, home: ir.Graph | None) -> list[Line]:
        """Return lines that are negative as long as a condition is true.

        Args:
            going: The condition.
            home: The graph that computes it; None for any.
        """
        value = _source(going)
        item = self._outside(value)
        if value is self.read.going_input or (isinstance(item, Known) and bool(item.array.all())):
            return []
        node = value.producer()
        if node is None or home not in (None, node.graph) or node.domain not in DEFAULT_DOMAIN:
            raise depends_on_data(self.read.ref)
        a, b = (*node.inputs[:2], None, None)[:2]
        if node.op_type == "Cast" and a is not None:
            return self._comparisons(a, home)
        if node.op_type == "And" and a is not None and b is not None:
            return [*self._comparisons(a, home), *self._comparisons(b, home)]
        if node.op_type in ("Greater", "GreaterOrEqual"):
            a, b = b, a
        if node.op_type not in _COMPARISONS or a is None or b is None:
            raise depends_on_data(self.read.ref)
        first, second = self._line(a), self._line(b)
        if first is None or second is None:
            raise depends_on_data(self.read.ref)
        return [first.plus(second, -1).plus(Line(-1 if node.op_type.endswith("OrEqual") else 0))]

    def _outside(self, value: ir.Value) -> Item:
        """Return the item of a value that is no part of the body."""
        node = value.producer()
        if node is not None and node.graph is self.read.body:
            found = self.copy.facts.evaluate(node, [self._known(v) for v in node.inputs])
            return Known(found[0]) if found else None
        return (
            None
            if value.graph is self.read.body and node is None and value.is_graph_input()
            else self._known(value)
        )

    def _known(self, value: ir.Value | None) -> Item:
        return None if value is None else self.copy.item(value)

    def _line(self, value: ir.Value) -> Line | None:
        """Return a value as a line; None where it is none."""
        read = self.read
        if value is read.number:
            return Line(rate=1)
        if value in read.state_inputs:
            return self._line_of_state(list(read.state_inputs).index(value))
        node = value.producer()
        if node is None or node.graph is not read.body:
            return self._line_of_outside(value)
        if node.op_type == "Constant":
            return _whole(self._outside(value))
        if node.domain not in DEFAULT_DOMAIN or not node.inputs or node.inputs[0] is None:
            return None
        if _keeps_number(node):
            return self._line(node.inputs[0])
        if node.op_type not in ("Add", "Sub", "Mul") or node.inputs[1] is None:
            return None
        a, b = self._line(node.inputs[0]), self._line(node.inputs[1])
        if a is None or b is None:
            return None
        if node.op_type != "Mul":
            return a.plus(b, 1 if node.op_type == "Add" else -1)
        factor, other = (a, b) if not a.terms and not a.rate else (b, a)
        if factor.terms or factor.rate:
            return None
        scaled = tuple((v, n * factor.constant) for v, n in other.terms)
        return Line(other.constant * factor.constant, scaled, other.rate * factor.constant)

    def _line_of_state(self, n: int) -> Line | None:
        read = self.read
        initial = read.initial[n]
        if initial is None or read.state_inputs[n] in self._entered:
            return None
        start = self._line_of_outside(initial, self.items[2 + n])
        if start is None or n in self.invariant:
            return start
        grown = self._growth(read.state_outputs[n], read.state_inputs[n], set())
        return None if grown is None else start.plus(Line(rate=grown))

    def _growth(self, value: ir.Value, state: ir.Value, entered: Collection[ir.Value]) -> int | None:
        """Return how much a state grows in a step: a constant."""
        value = _source(value)
        if value is state:
            return 0
        node = value.producer()
        if node is None or node.graph is not self.read.body or node.domain not in DEFAULT_DOMAIN:
            return None
        if _keeps_number(node) and node.inputs[0] is not None:
            return self._growth(node.inputs[0], state, entered)
        if node.op_type not in ("Add", "Sub", "Mul") or None in node.inputs[:2]:
            return None
        if node.op_type == "Mul":
            return self._growth_of_product(node, state, entered)
        for here, other, sign in ((0, 1, 1 if node.op_type == "Add" else -1), (1, 0, 1)):
            if here and node.op_type == "Sub":
                continue
            base, step = node.inputs[here], node.inputs[other]
            assert base is not None and step is not None  # noqa: PT018
            grown, by = self._growth(base, state, entered), self._step(step, state)
            if grown is not None and by is not None:
                return grown + sign * by
        return None

    def _growth_of_product(self, node: ir.Node, state: ir.Value, entered: Collection[ir.Value]) -> int | None:
        """Return how much a state times 1 grows in a step: paddle2onnx writes i * 1 + 1."""
        a, b = node.inputs[:2]
        assert a is not None and b is not None  # noqa: PT018
        if self._step(b, state) == 1:
            return self._growth(a, state, entered)
        return self._growth(b, state, entered) if self._step(a, state) == 1 else None

    def _step(self, value: ir.Value, state: ir.Value) -> int | None:
        self._entered.add(state)
        line = self._line(value)
        self._entered.discard(state)
        return line.constant if line is not None and not line.terms and not line.rate else None

    def _line_of_outside(self, value: ir.Value, item: Item = None) -> Line | None:
        """Return a value from around the Loop as a line."""
        item = item or self._known(value)
        if isinstance(item, Known):
            return _whole(item)
        kind = self.copy.facts.kind(item)
        if kind is None or kind.shape is None or any(size != 1 for size in kind.shape):
            return None
        if ir.DataType(kind.element).is_integer():
            found = length_in(self.copy.facts, item) if isinstance(item, ir.Value) else None
            self._holders.setdefault(found or value, value)
            return Line(terms=((found or value, 1),))
        node = value.producer()
        casts = node is not None and _keeps_number(node)
        source = node.inputs[0] if node is not None and casts else None
        return None if source is None else self._line_of_outside(source)


def _keeps_number(node: ir.Node) -> bool:
    """Whether a node returns the whole number that it is given, in another type or shape."""
    if node.domain not in DEFAULT_DOMAIN:
        return False
    single = node.op_type == "Concat" and len(node.inputs) == 1
    return (
        single or node.op_type in _SHAPING or (node.op_type == "Cast" and node.attributes["to"].as_int() in _WIDE)
    )


def _is_true(item: Item) -> bool:
    return isinstance(item, Known) and bool(item.array.all())


def _is_negative(line: Line, length: Line) -> bool:
    """Whether a line is negative where a size is at least 1."""
    return any(
        not each.terms and not each.rate and each.constant <= most
        for each, most in ((line, -1), (line.plus(length), 0))
    )


_COMPARISONS = ("Less", "LessOrEqual", "Greater", "GreaterOrEqual")


def _whole(item: Item) -> Line | None:
    """Return a known whole number."""
    if not isinstance(item, Known) or item.array.size != 1:
        return None
    number = item.array.reshape(()).item()
    return Line(int(number)) if np.isfinite(number) and number == int(number) else None
