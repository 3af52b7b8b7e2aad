"""The numbers of a Loop that are linear in the number of the step.

Such a number is a polynomial with the symbol `STEP`.

A state that grows by the same amount in each step is one. Integers that are cast to floats count as integers, which
is the same below 2^24.

A number can be emitted only if some value holds it. A value may hold 2 N while no value holds N, so each size and
each value from outside is a symbol of its own here.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from rnn_lowering.emit.tensor import Tensor
from rnn_lowering.facts.known import Known
from rnn_lowering.facts.operators import DEFAULT_DOMAIN, input_at, keeps_numbers
from rnn_lowering.facts.size import STEP, Size, size
from rnn_lowering.loops.body import LoopBody, TakenRow
from rnn_lowering.loops.body_copy import BodyWriter
from rnn_lowering.loops.value_facts import Item, KnownTensor, number_of

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
            count = self.writer.facts.size_in(item) if isinstance(item, ir.Value) else None
            symbol = self.writer.facts.symbol_of(value if count is None else count)
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
            number = self.writer.tensor(self.writer.item(self._holders[Size.symbol(*monomial)]), self.loop.ref)
            flat = op.cast(number if number.shape == (1,) else op.reshape(number, (1,)), ir.DataType.INT64)
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
        counters, values, taken = self._counters, self._values, TakenRow.of(node)
        line = None if taken is None else _only(values.numbers(taken.place))
        steps = input_at(taken.node, 4) if taken is not None else None
        if taken is None or line is None or not (steps is None or _only(values.numbers(steps)) == size(1)):
            return
        place, (start, delta) = taken.place, self._range(counters.writer.item(taken.data))
        if start is None or delta is None or delta.constant is None:
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
            line = counters.line_of_input(value) if inside else counters.line_of_outside(value)
            number = self._states.get(value, line)
            if number is not None:
                self._values.contents[value] = np.full(kind.dims, number, object)


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
