"""Numbers of a Loop that are linear in the number of the step: polynomials with the symbol `STEP`.

A state that grows by the same amount in each step is one. Integers that are cast to floats count as integers, which
is the same below 2^24.

What is emitted needs a value, and one may hold 2 N where none holds N. So each size and each value from outside is
a symbol of its own here, whatever polynomial it is.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from rnn_lowering.emit.tensor import Tensor
from rnn_lowering.facts.operators import DEFAULT_DOMAIN, operator_of
from rnn_lowering.facts.size import STEP, Size, size
from rnn_lowering.loops.body import LoopBody, behind_identities
from rnn_lowering.loops.body_copy import BodyCopy
from rnn_lowering.loops.facts import Item, KnownTensor, number_of

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
        copy: Copies the body later; it has items for the values outside.
        read: The Loop.
    """

    def __init__(self, copy: BodyCopy, read: LoopBody) -> None:
        self.copy = copy
        self.read = read
        self._invariant = read.invariant_states
        self._entered: set[ir.Value] = set()
        self._holders: dict[Size, ir.Value] = {}

    def line(self, value: ir.Value) -> Size | None:
        """Return a value of the body or from outside as a line; None if it is not linear."""
        read = self.read
        if value is read.number:
            return STEP_NUMBER
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
            return a + b if node.op_type == "Add" else a - b
        return a * b if a.constant is not None or b.constant is not None else None

    def line_of_outside(self, value: ir.Value) -> Size | None:
        """Return a value from around the Loop as a line."""
        item = self.copy.item(value)
        if isinstance(item, KnownTensor):
            return _whole_number(item)
        kind = self.copy.facts.kind(item)
        if kind is None or kind.shape is None or any(size != 1 for size in kind.dims):
            return None
        if kind.dtype.is_integer():
            held = self.copy.facts.size_in(item) if isinstance(item, ir.Value) else None
            symbol = self.copy.facts.symbol_of(value if held is None else held)
            self._holders.setdefault(symbol, value)
            return symbol
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

    def count_of_rows(self, item: Item, axis: int) -> Size | None:
        """Return how many rows a value has along an axis."""
        kind = self.copy.facts.kind(item)
        known = None if kind is None else kind.dims[axis]
        if known is not None or not isinstance(item, ir.Value):
            return None if known is None else size(known)
        rows = self.copy.facts.size_of_axis(item, axis)
        return None if rows is None else self.copy.facts.symbol_of(rows)

    def emit(self, count: Size) -> Tensor:
        """Emit a number that is the same in each step as an int64 [1]."""
        op = self.copy.op
        total = op.constant([int(count.coefficient())])
        for monomial, factor in count.terms:
            if not monomial:
                continue
            given = self.copy.tensor(self.copy.item(self._holders[Size.symbol(*monomial)]), self.read.ref)
            flat = op.cast(given if given.shape == (1,) else op.reshape(given, (1,)), _INT64)
            total = total + (flat if factor == 1 else flat * op.constant([int(factor)]))
        return total

    def _line_of_state(self, n: int) -> Size | None:
        read = self.read
        initial = read.initial[n]
        if initial is None or read.state_inputs[n] in self._entered:
            return None
        start = self.line_of_outside(initial)
        if start is None or n in self._invariant:
            return start
        growth = self._growth(read.state_outputs[n], read.state_inputs[n])
        return None if growth is None else start + STEP_NUMBER * growth

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
        return None if line is None or line.constant is None else int(line.constant)


def _keeps_number(node: ir.Node) -> bool:
    """Whether a node returns the whole number that it is given, in another type or shape."""
    if node.domain not in DEFAULT_DOMAIN:
        return False
    if node.op_type == "Concat":
        return len(node.inputs) == 1
    return operator_of(node).keeps_order or (node.op_type == "Cast" and node.attributes["to"].as_int() in _WIDE)


def _whole_number(item: Item) -> Size | None:
    """Return a known whole number."""
    number = number_of(item)
    return None if number is None or not np.isfinite(number) or number != int(number) else size(int(number))
