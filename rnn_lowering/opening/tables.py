"""Constants that differ between exports, as nodes that compute them at any size.

The shortest array shows a pattern, the others confirm it. A table of numbers, of which each export has the first
rows, has none: it is refused. A size is read by Shape, where the value is that has it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
import onnx_ir as ir

from rnn_lowering.emit.open_scopes import Names
from rnn_lowering.errors import NodeRef
from rnn_lowering.facts.known import KnownValues
from rnn_lowering.facts.size import Shape, Size, Symbol, size
from rnn_lowering.opening.evidence import Evidence, Integers, Number, refuse, told
from rnn_lowering.types import Array

_INT64, _DOUBLE, _FLOAT = ir.DataType.INT64, ir.DataType.DOUBLE, ir.DataType.FLOAT

_OF_POWER = {Fraction(1): (), Fraction(-1): ("Reciprocal",), Fraction(1, 2): ("Sqrt",)}
_OF_POWER[Fraction(-1, 2)] = ("Sqrt", "Reciprocal")


@dataclass
class Writer:
    """Writes nodes before a node.

    Attributes:
        names: Gives names to new nodes.
        known: Gets the type, the shape and the numbers of what is written.
        evidence: Has the values whose sizes the symbols are.
        place: The node before which nodes are written.
    """

    names: Names
    known: KnownValues
    evidence: Evidence
    place: ir.Node = field(init=False)
    _sizes: dict[Symbol, ir.Value] = field(default_factory=dict)

    def add(self, op_type: str, *inputs: ir.Value, **attributes: Any) -> ir.Value:
        """Write a node with one output."""
        node = self._node(op_type, inputs, attributes)
        assert self.place.graph is not None
        self.place.graph.insert_before(self.place, node)
        return node.outputs[0]

    def _node(self, op_type: str, inputs: Sequence[ir.Value], attributes: dict[str, Any]) -> ir.Node:
        name = self.names.unique(f"open/{op_type}")
        return ir.node(op_type, inputs, attributes, name=name, outputs=[ir.Value(name=self.names.unique(name))])

    def declared(self, value: ir.Value, dtype: ir.DataType, shape: Shape, numbers: Array | None = None) -> ir.Value:
        """Let the type, the shape and the numbers of a written value be known; return it."""
        value.type = ir.TensorType(dtype)
        self.known.types[value], self.known.shapes[value] = dtype, shape
        if numbers is not None:
            self.known.contents[value] = numbers
        return value

    def constant(self, array: Array) -> ir.Value:
        value = self.add("Constant", value=ir.tensor(array))
        return self.declared(value, ir.DataType.from_numpy(array.dtype), tuple(map(size, array.shape)), array)

    def integers(self, numbers: Sequence[int]) -> ir.Value:
        return self.constant(np.array(numbers, np.int64))

    # Sizes

    def size(self, number: Size) -> ir.Value:
        """Return a size as a tensor of one integer."""
        if number.constant is not None:
            return self.integers([int(number.constant)])
        total: ir.Value | None = None
        for monomial, factor in number.terms:
            parts = [self._of_symbol(symbol) for symbol in monomial]
            parts += [self.integers([int(factor)])] if factor != 1 or not parts else []
            term = parts[0]
            for part in parts[1:]:
                term = self.add("Mul", term, part)
            total = term if total is None else self.add("Add", total, term)
        assert total is not None
        return total

    def _of_symbol(self, symbol: Symbol) -> ir.Value:
        """Return the size that a symbol stands for; it is computed once, behind the value that has it."""
        if symbol not in self._sizes:
            value, axis = self.evidence.origins[symbol]
            shape = self._node("Shape", [value], {})
            index = self._node("Constant", [], {"value": ir.tensor(np.array([axis], np.int64))})
            found = self._node("Gather", [shape.outputs[0], index.outputs[0]], {"axis": 0})
            producer = value.producer()
            graph = value.graph if producer is None else producer.graph
            assert graph is not None
            if producer is None:
                graph.insert_before(graph[0], [shape, index, found])
            else:
                graph.insert_after(producer, [shape, index, found])
            self._sizes[symbol] = found.outputs[0]
        return self._sizes[symbol]

    def sizes(self, numbers: Sequence[Size]) -> ir.Value:
        """Return sizes as a tensor of rank 1, with what is known of it."""
        constants = [number.constant for number in numbers]
        if None not in constants:
            return self.integers([int(number or 0) for number in constants])
        held = np.empty(len(numbers), object)
        held[:] = list(numbers)
        return self.declared(self.joined([self.size(n) for n in numbers]), _INT64, (size(len(numbers)),), held)

    def joined(self, parts: Sequence[ir.Value], axis: int = 0) -> ir.Value:
        return self.add("Concat", *parts, axis=axis) if len(parts) > 1 else parts[0]

    # Numbers of any type

    def numbers(self, numbers: Sequence[Number | float], dtype: ir.DataType) -> ir.Value:
        """Return numbers as a tensor of rank 1."""
        return self.joined([self._number(number, dtype) for number in numbers])

    def _number(self, number: Number | float, dtype: ir.DataType) -> ir.Value:
        if not isinstance(number, Number):
            return self.constant(np.array([number], dtype.numpy()))
        computed, value = _DOUBLE if dtype == _DOUBLE else _FLOAT, self.size(number.size)
        if not dtype.is_floating_point():
            return self.cast(value, _INT64, dtype)
        value = self.cast(value, _INT64, computed)
        for op_type in _OF_POWER[number.power]:
            value = self.add(op_type, value)
        if number.factor != 1:
            value = self.add("Mul", value, self.constant(np.array([number.factor], computed.numpy())))
        return self.cast(value, computed, dtype)

    def cast(self, value: ir.Value, dtype: ir.DataType, to: ir.DataType) -> ir.Value:
        return value if dtype == to else self.add("Cast", value, to=int(to))

    def count(self, number: Size) -> ir.Value:
        """Return the integers from 0 up to a size."""
        limit = self.add("Reshape", self.size(number), self.integers([]))
        zero, one = (self.constant(np.array(n, np.int64)) for n in (0, 1))
        return self.add("Range", zero, limit, one)


# The rules of constants


_MOST_INTEGERS, _MOST_FLOATS = 64, 8
"""Maximum different numbers that are explained one by one."""

_MOST_RUNS = 64
"""Maximum runs of equal rows."""

_WIDEST = 32
"""Maximum columns beside the diagonal that are told one by one."""

_UNFOLDED = "export without folding: do_constant_folding=False, or optimize=False with dynamo"
_FIRST_WITH_MIN = 12
"""First opset whose Min and Max take integers."""

Arrays = Sequence[Array]
"""A constant in each export."""


@dataclass(frozen=True)
class Tables:
    """Explains the constants of a node.

    Attributes:
        writer: Writes nodes.
        node: The node that reads them.
        own: The shapes of the inputs of the node.
        what: What the constant is called in an error.
    """

    writer: Writer
    node: NodeRef
    own: Sequence[Shape]
    what: str

    def write(self, arrays: Arrays) -> ir.Value:
        """Return a constant as it is at any size.

        Raises:
            UnsupportedError: No rule explains it, or a number may be several sizes.
        """
        dtype = ir.DataType.from_numpy(arrays[0].dtype)
        if any(a.dtype != arrays[0].dtype or a.ndim != arrays[0].ndim for a in arrays):
            raise refuse(self.node, f"{self.what} has types or ranks that differ between the exports")
        shapes = zip(*(array.shape for array in arrays), strict=True)
        lengths = [self.number(f"axis {axis} of", numbers) for axis, numbers in enumerate(shapes)]
        if any(n.symbols for n in lengths) and self.writer.known.opset < _FIRST_WITH_MIN:
            raise refuse(self.node, f"{self.what} grows, which needs opset 12", hint="export at opset 13 or later")
        return self.writer.declared(self.explained(arrays, lengths), dtype, tuple(lengths))

    def number(self, what: str, numbers: Integers, *own: Shape) -> Size:
        """Return the size that explains numbers, such as "a run of" the constant; other shapes may explain them."""
        named = f"{what} {self.what}".lstrip()
        return self.writer.evidence.integer(self.node, named, numbers, [*self.own, *own])

    def explained(self, arrays: Arrays, lengths: Sequence[Size]) -> ir.Value:
        """Return what the first rule that explains arrays writes."""
        for rule in RULES:
            if (written := rule(self, arrays, lengths)) is not None:
                return written
        shapes = told(list(array.shape) for array in arrays)
        if _is_table(arrays):
            raise refuse(self.node, f"{self.what} is the first rows of a table, {shapes}", _UNFOLDED)
        raise refuse(self.node, f"{self.what} has {shapes} numbers that no rule explains", _UNFOLDED)

    def part(self, arrays: Arrays, lengths: Sequence[Size], axis: int, count: Size) -> ir.Value:
        """Return what writes rows that a rule has taken from arrays of some lengths."""
        return self.explained(arrays, [count if n == axis else length for n, length in enumerate(lengths)])

    def constant(self, array: Array) -> ir.Value:
        return self.writer.constant(np.ascontiguousarray(array).reshape(array.shape))


_Rule = Callable[[Tables, Arrays, Sequence[Size]], ir.Value | None]
"""Writes a constant as nodes; None where it does not apply."""


def _equal(tables: Tables, arrays: Arrays, lengths: Sequence[Size]) -> ir.Value | None:
    """One array in all exports."""
    same = all(are_equal(array, arrays[0]) for array in arrays)
    return tables.constant(arrays[0]) if same else None


def _numbers(tables: Tables, arrays: Arrays, lengths: Sequence[Size]) -> ir.Value | None:
    """As many numbers in each export; few are different, and each follows from a size."""
    if any(array.shape != arrays[0].shape for array in arrays):
        return None
    rows = np.stack([array.reshape(-1) for array in arrays], 1)
    unique, places = np.unique(rows, axis=0, return_inverse=True)
    is_float = arrays[0].dtype.kind not in "iu"
    if arrays[0].dtype.kind == "b" or len(unique) > (_MOST_FLOATS if is_float else _MOST_INTEGERS):
        count = int((rows != rows[:, :1]).any(1).sum())
        raise refuse(
            tables.node, f"{count:,} numbers of {tables.what} differ", hint="the weights differ: same seed?"
        )

    def explained(numbers: Sequence[float]) -> Number | float:
        if len(set(numbers)) == 1 or all(are_equal(np.array(n), np.array(numbers[0])) for n in numbers):
            return numbers[0]
        if is_float:
            whole = tuple(map(float, numbers))
            return tables.writer.evidence.number(tables.node, tables.what, whole, tables.own)
        return Number(tables.number("", tuple(map(int, numbers))))

    numbers = [explained(row.tolist()) for row in unique]
    values = tables.writer.numbers(numbers, ir.DataType.from_numpy(arrays[0].dtype))
    index = np.asarray(places, np.int64).reshape(arrays[0].shape)
    if len(numbers) > 1 or index.shape != (1,):
        values = tables.writer.add("Gather", values, tables.constant(index), axis=0)
    if not is_float:
        held = np.empty(len(numbers), object)
        held[:] = [n.size if isinstance(n, Number) else size(int(n)) for n in numbers]
        tables.writer.known.contents[values] = held.take(index.reshape(-1)).reshape(index.shape)
    return values


def _along(rule: Callable[[Tables, Arrays, Sequence[Size], int], ir.Value | None]) -> _Rule:
    """Return a rule that tries each axis that grows."""

    def along(tables: Tables, arrays: Arrays, lengths: Sequence[Size]) -> ir.Value | None:
        axes = [axis for axis, length in enumerate(lengths) if length.symbols]
        found = (rule(tables, arrays, lengths, axis) for axis in axes if min(a.shape[axis] for a in arrays))
        return next((written for written in found if written is not None), None)

    return along


@_along
def _runs(tables: Tables, arrays: Arrays, lengths: Sequence[Size], axis: int) -> ir.Value | None:
    """Equal rows, or a few runs of them: the length of each is a number or a size."""
    starts = [_starts_of_runs(array, axis) for array in arrays]
    if len(set(map(len, starts))) > 1 or len(starts[0]) > _MOST_RUNS or len(starts[0]) == arrays[0].shape[axis] > 1:
        return None
    firsts = [array.take(begin, axis) for array, begin in zip(arrays, starts, strict=True)]
    ends = (np.diff([*begin, a.shape[axis]]).tolist() for a, begin in zip(arrays, starts, strict=True))
    parts = []
    for n, numbers in enumerate(zip(*ends, strict=True)):
        count = lengths[axis] if len(starts[0]) == 1 else tables.number("a run of", numbers)
        row = tables.part([first.take([n], axis) for first in firsts], lengths, axis, size(1))
        shape = [count if n == axis else size(1) for n in range(arrays[0].ndim)]
        parts.append(tables.writer.add("Expand", row, tables.writer.sizes(shape)))
    return tables.writer.joined(parts, axis)


@_along
def _counted(tables: Tables, arrays: Arrays, lengths: Sequence[Size], axis: int) -> ir.Value | None:
    """Rows that grow by the same from one to the next."""
    if arrays[0].dtype.kind not in "iuf" or min(a.shape[axis] for a in arrays) < _FEWEST:
        return None
    if not all(np.isfinite(array).all() for array in arrays):
        return None
    first = [array.take([0], axis) for array in arrays]
    last = [array.take([-1], axis) for array in arrays]
    steps = [_step(a, b, array.shape[axis] - 1) for a, b, array in zip(first, last, arrays, strict=True)]
    for array, start, step in zip(arrays, first, steps, strict=True):
        places = np.arange(array.shape[axis]).reshape([-1 if n == axis else 1 for n in range(array.ndim)])
        wanted = start + step * places
        largest = float(np.abs(array).max()) if array.dtype.kind == "f" else 0.0
        if not np.allclose(array, wanted, rtol=0, atol=6 * _ROUNDING * largest):
            return None
    dtype = ir.DataType.from_numpy(arrays[0].dtype)
    begin, growth = (tables.part(each, lengths, axis, size(1)) for each in (first, steps))
    writer, shape = tables.writer, [-1 if n == axis else 1 for n in range(arrays[0].ndim)]
    count = writer.cast(writer.count(lengths[axis]), ir.DataType.INT64, dtype)
    rows = writer.add("Reshape", count, writer.integers(shape))
    return writer.add("Add", writer.add("Mul", rows, growth), begin)


@_along
def _repeated(tables: Tables, arrays: Arrays, lengths: Sequence[Size], axis: int) -> ir.Value | None:
    """Rows of which each is there several times in a row, or all again and again."""
    starts = [np.diff([*_starts_of_runs(a, axis), a.shape[axis]]) for a in arrays]
    times = tuple(int(each[0]) if (each == each[0]).all() else 1 for each in starts)
    if min(times) > 1:
        return _picked(tables, arrays, lengths, axis, times, "Div")
    periods = tuple(_period(array, axis) for array in arrays)
    if all(p and p < a.shape[axis] for p, a in zip(periods, arrays, strict=True)):
        return _picked(tables, arrays, lengths, axis, periods, "Mod")
    return None


def _picked(
    tables: Tables, arrays: Arrays, lengths: Sequence[Size], axis: int, times: tuple[int, ...], op_type: str
) -> ir.Value:
    """Write rows n // times, or rows n % times, of others."""
    by, length, divides = tables.number("a period of", times), lengths[axis], op_type == "Div"
    picks = ((range(0, a.shape[axis], k) if divides else range(k)) for a, k in zip(arrays, times, strict=True))
    rows = [array.take(pick, axis) for array, pick in zip(arrays, picks, strict=True)]
    counts = tuple(each.shape[axis] for each in rows)
    count = length.divided(by) if divides else by
    if len(set(counts)) == 1 or count is None or not count.is_integral:
        count = tables.number("the rows of", counts, (length, by))
    inner, writer = tables.part(rows, lengths, axis, count), tables.writer
    index = writer.add(op_type, writer.count(length), writer.size(by))
    return writer.add("Gather", inner, index, axis=axis)


def _of_difference(tables: Tables, arrays: Arrays, lengths: Sequence[Size]) -> ir.Value | None:
    """On two axes a function of column minus row: numbers beside the diagonal, constant or linear on both sides."""
    grown = [axis for axis, length in enumerate(lengths) if length.symbols]
    if len(grown) != 2 or not all(array.size for array in arrays):
        return None
    lines = [_diagonals(np.moveaxis(array, grown, (0, 1))) for array in arrays]
    found = [line for line in lines if line is not None]
    middles = [array.shape[grown[0]] - 1 for array in arrays]
    if len(found) < len(lines):
        return None
    above, below = (_side(found, middles, sign) for sign in (1, -1))
    if above is None or below is None:
        return None
    (high, up), (low, down) = above, below
    table = found[0][middles[0] - low : middles[0] + high + 1]
    writer, add = tables.writer, tables.writer.add
    column, row = writer.count(lengths[grown[1]]), writer.count(lengths[grown[0]])
    far = add("Sub", column, add("Reshape", row, writer.integers([-1, 1])))
    near = add("Min", add("Max", far, writer.integers([-low])), writer.integers([high]))
    value = add("Gather", tables.constant(table), add("Add", near, writer.integers([low])), axis=0)
    dtype = ir.DataType.from_numpy(table.dtype)
    beyond = add("Reshape", add("Sub", far, near), writer.integers([0, 0, *[1] * (table.ndim - 1)]))
    for slope, bound in ((up, "Max"), (down, "Min")):
        if slope.any():
            part = writer.cast(add(bound, beyond, writer.integers([0])), ir.DataType.INT64, dtype)
            value = add("Add", value, add("Mul", part, tables.constant(slope)))
    order = [n for n in range(arrays[0].ndim) if n not in grown]
    return add("Transpose", value, perm=np.argsort([*grown, *order]).tolist())


RULES: Sequence[_Rule] = (_equal, _numbers, _runs, _counted, _repeated, _of_difference)
"""In the order in which they are tried."""

_ROUNDING = 2.0**-24
"""Half of the last bit of a float32, relative to it."""

_FEWEST = 4
"""Fewer rows may count by chance."""


# Arrays


def are_equal(first: Array | None, second: Array | None) -> bool:
    """Whether two arrays are equal, floats but for their rounding."""
    if first is None or second is None or first.shape != second.shape or first.dtype != second.dtype:
        return first is second
    if first.dtype.kind == "f" and first.tobytes() != second.tobytes():
        return bool(np.allclose(first, second, rtol=8 * _ROUNDING, atol=0, equal_nan=True))
    return first.tobytes() == second.tobytes() or bool((first == second).all())


def _starts_of_runs(array: Array, axis: int) -> list[int]:
    """Return the first row of each run of equal rows."""
    rows = np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1)
    return [0, *(np.flatnonzero((rows[1:] != rows[:-1]).any(1)) + 1).tolist()]


def _step(first: Array, last: Array, steps: int) -> Array:
    rest = last - first
    return rest // steps if rest.dtype.kind in "iu" else (rest / steps).astype(rest.dtype)


def _period(array: Array, axis: int) -> int:
    """Return after how many rows all rows come again; 0 for none that is seen twice."""
    rows = np.moveaxis(array, axis, 0)
    again = np.flatnonzero((rows == rows[0]).reshape(len(rows), -1).all(1))[1:]
    return next((int(p) for p in again if 2 * p <= len(rows) and (rows[p:] == rows[:-p]).all()), 0)


def _diagonals(array: Array) -> Array | None:
    """Return the numbers by column minus row, from the last row on; None if they do not depend on that alone."""
    if not (array[1:, 1:] == array[:-1, :-1]).all():
        return None
    return np.concatenate([array[:0:-1, 0], array[0]])


def _side(lines: Arrays, middles: Sequence[int], sign: int) -> tuple[int, Array] | None:
    """Return how many numbers beside the diagonal are told one by one, and by how much those behind them grow."""
    sides = [line[m:] if sign > 0 else line[m::-1] for line, m in zip(lines, middles, strict=True)]
    shortest = min(map(len, sides))
    first = sides[0][:shortest]
    if any(not are_equal(side[:shortest], first) for side in sides):
        return None
    longest = max(sides, key=len)
    for count in range(min(_WIDEST, shortest - 3)):
        rest = longest[count:]
        if (rest == rest[0]).all():
            return count, np.zeros(rest.shape[1:], rest.dtype)
        if rest.dtype.kind in "if" and np.isfinite(rest[[0, 1]]).all():
            slope = rest[1] - rest[0]
            steps = np.arange(len(rest)).reshape(-1, *[1] * (rest.ndim - 1))
            largest = float(np.abs(rest).max()) if rest.dtype.kind == "f" else 0.0
            if np.allclose(rest, rest[0] + slope * steps, rtol=0, atol=6 * _ROUNDING * largest):
                return count, slope * sign
    return None


def _is_table(arrays: Arrays) -> bool:
    """Whether the longest has the rows of the shorter ones at its start or end."""
    first, last = arrays[0], arrays[-1]
    if first.ndim != last.ndim or any(a > b for a, b in zip(first.shape, last.shape, strict=True)):
        return False
    head = last[tuple(map(slice, first.shape))]
    tail = last[tuple(slice(b - a, b) for a, b in zip(first.shape, last.shape, strict=True))]
    return are_equal(head, first) or are_equal(tail, first)
