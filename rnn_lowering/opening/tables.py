"""Constants that differ between exports, as nodes that compute them at any size.

The shortest array shows a pattern, the others confirm it. A table of numbers, of which each export has the first
rows, has none: it is refused. A size is read by Shape, where the value is that has it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from rnn_lowering.emit.draft import Names
from rnn_lowering.errors import NodeRef
from rnn_lowering.facts.known import KnownValues
from rnn_lowering.facts.size import Shape, Size, Symbol, size
from rnn_lowering.opening.evidence import Evidence, Integers, graph_of, refuse, told
from rnn_lowering.opening.floats import Number
from rnn_lowering.types import Array

_INT64, _DOUBLE, _FLOAT = ir.DataType.INT64, ir.DataType.DOUBLE, ir.DataType.FLOAT


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
        array = np.ascontiguousarray(array).reshape(array.shape)
        value = self.add("Constant", value=ir.tensor(array))
        return self.declared(value, ir.DataType.from_numpy(array.dtype), tuple(map(size, array.shape)), array)

    def integers(self, numbers: Sequence[int]) -> ir.Value:
        return self.constant(np.array(numbers, np.int64))

    # Sizes

    def size(self, number: Size) -> ir.Value:
        """Return a size as a tensor of one integer."""
        terms = []
        for monomial, factor in number.terms:
            parts = [self._of_symbol(symbol) for symbol in monomial]
            parts += [self.integers([int(factor)])] if factor != 1 or not parts else []
            terms.append(self._folded("Mul", parts))
        return self._folded("Add", terms) if terms else self.integers([0])

    def _folded(self, op_type: str, parts: Sequence[ir.Value]) -> ir.Value:
        total = parts[0]
        for part in parts[1:]:
            total = self.add(op_type, total, part)
        return total

    def _of_symbol(self, symbol: Symbol) -> ir.Value:
        """Return the size that a symbol stands for; what a value has is read once, behind it."""
        if symbol not in self._sizes and symbol not in self.evidence.origins:
            dim, part, way = next(key for key, held in self.evidence.parts.items() if symbol in held.symbols)
            return self.add("Div", self.size(dim + way), self.integers([part]))
        if symbol not in self._sizes:
            value, axis = self.evidence.origins[symbol]
            shape = self._node("Shape", [value], {})
            index = self._node("Constant", [], {"value": ir.tensor(np.array([axis], np.int64))})
            found = self._node("Gather", [shape.outputs[0], index.outputs[0]], {"axis": 0})
            graph, producer = graph_of(value), value.producer()
            assert graph is not None
            if producer is None:
                graph.insert_before(graph[0], [shape, index, found])
            else:
                graph.insert_after(producer, [shape, index, found])
            self._sizes[symbol] = found.outputs[0]
        return self._sizes[symbol]

    def sizes(self, numbers: Sequence[Size]) -> ir.Value:
        """Return sizes as a tensor of rank 1, with what is known of it."""
        if not any(number.symbols for number in numbers):
            return self.integers([int(number.constant or 0) for number in numbers])
        held = np.empty(len(numbers), object)
        held[:] = list(numbers)
        return self.declared(self.joined([self.size(n) for n in numbers]), _INT64, (size(len(numbers)),), held)

    def joined(self, parts: Sequence[ir.Value], axis: int = 0) -> ir.Value:
        return self.add("Concat", *parts, axis=axis) if len(parts) > 1 else parts[0]

    # Numbers of any type

    def number(self, number: Number | float, dtype: ir.DataType) -> ir.Value:
        """Return a number as a tensor of one."""
        if not isinstance(number, Number):
            return self.constant(np.array([number], dtype.numpy()))
        computed = dtype if not dtype.is_floating_point() or dtype == _DOUBLE else _FLOAT
        value = self.cast(self.size(number.size), _INT64, computed)
        if number.over.symbols:
            value = self.add("Div", value, self.cast(self.size(number.over), _INT64, computed))
        for op_type in number.function.split():
            value = self.add(op_type, value)
        for op_type, n, nothing in (("Mul", number.factor, 1), ("Add", number.rest, 0)):
            if n != nothing:
                value = self.add(op_type, value, self.constant(np.array([n], computed.numpy())))
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

_FEWEST = 4
"""Fewer rows, in the longest, may count by chance."""

_ROUNDING = 2.0**-24
"""Half of the last bit of a float32, relative to it."""

_UNFOLDED = "export without folding: do_constant_folding=False, or optimize=False with dynamo"
_FIRST_WITH_MIN = 12
"""First opset whose Min and Max take integers."""

Arrays = Sequence[Array]
"""A constant in each export."""


class _UnexplainedError(Exception):
    """No rule explains a constant, or a part of it."""


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
        try:
            return self.writer.declared(self.explained(arrays, lengths), dtype, tuple(lengths))
        except _UnexplainedError:
            is_table = are_equal(arrays[-1][tuple(map(slice, arrays[0].shape))], arrays[0])
            texts = told(list(array.shape) for array in arrays)
            fact = (
                f"is the first rows of a table, {texts}"
                if is_table
                else f"has {texts} numbers that no rule explains"
            )
            raise refuse(self.node, f"{self.what} {fact}", _UNFOLDED) from None

    def number(self, what: str, numbers: Integers, *own: Shape) -> Size:
        """Return the size that explains numbers, such as "a run of" the constant; other shapes may explain them."""
        named = f"{what} {self.what}".lstrip()
        return self.writer.evidence.integer(self.node, named, numbers, [*self.own, *own])

    def explained(self, arrays: Arrays, lengths: Sequence[Size]) -> ir.Value:
        """Return what the first rule that explains arrays writes."""
        for rule in RULES:
            if (written := rule(self, arrays, lengths)) is not None:
                return written
        raise _UnexplainedError

    def rows(self, arrays: Arrays, lengths: Sequence[Size], axis: int, count: Size | int = 1) -> ir.Value:
        """Return what writes so many rows of arrays, which a rule has taken."""
        return self.explained(arrays, [size(count) if n == axis else each for n, each in enumerate(lengths)])


_Rule = Callable[[Tables, Arrays, Sequence[Size]], ir.Value | None]
"""Writes a constant as nodes; None where it does not apply."""


def _equal(tables: Tables, arrays: Arrays, lengths: Sequence[Size]) -> ir.Value | None:
    """One array in all exports."""
    same = all(are_equal(array, arrays[0]) for array in arrays)
    return tables.writer.constant(arrays[0]) if same else None


def _numbers(tables: Tables, arrays: Arrays, lengths: Sequence[Size]) -> ir.Value | None:
    """As many numbers in each export; few are different, and each follows from a size."""
    if any(array.shape != arrays[0].shape for array in arrays):
        return None
    rows = np.stack([array.reshape(-1) for array in arrays], 1)
    unique, places = np.unique(rows, axis=0, return_inverse=True)
    dtype, writer, is_float = ir.DataType.from_numpy(rows.dtype), tables.writer, rows.dtype.kind not in "iu"
    if rows.dtype.kind == "b" or len(unique) > (_MOST_FLOATS if is_float else _MOST_INTEGERS):
        fact = f"{int((rows != rows[:, :1]).any(1).sum()):,} numbers of {tables.what} differ"
        raise refuse(tables.node, fact, hint="the weights differ: same seed?")
    numbers: list[Number | float] = []
    for row in unique:
        if all(are_equal(number, row[0]) for number in row):
            numbers.append(row[0].item())
        elif is_float:
            whole = tuple(map(float, row))
            numbers.append(writer.evidence.number(tables.node, tables.what, whole, tables.own))
        else:
            numbers.append(Number(tables.number("", tuple(row.tolist()))))
    values = writer.joined([writer.number(number, dtype) for number in numbers])
    index = np.asarray(places, np.int64).reshape(arrays[0].shape)
    if len(numbers) > 1 or index.shape != (1,):
        values = writer.add("Gather", values, writer.constant(index), axis=0)
    if not is_float:
        held = np.empty(len(numbers), object)
        held[:] = [n.size if isinstance(n, Number) else size(int(n)) for n in numbers]
        writer.known.contents[values] = held.take(index.reshape(-1)).reshape(index.shape)
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
    ends = (np.diff([*begin, a.shape[axis]]).tolist() for a, begin in zip(arrays, starts, strict=True))
    counts, parts = list(zip(*ends, strict=True)), []
    growing = [numbers for numbers in counts if len(set(numbers)) > 1]
    rest = lengths[axis] - sum(numbers[0] for numbers in counts if numbers not in growing)
    for first, numbers in zip(zip(*starts, strict=True), counts, strict=True):
        count = rest if growing == [numbers] else tables.number("a run of", numbers)
        row = tables.rows([a.take([n], axis) for a, n in zip(arrays, first, strict=True)], lengths, axis)
        shape = [count if n == axis else size(1) for n in range(arrays[0].ndim)]
        parts.append(tables.writer.add("Expand", row, tables.writer.sizes(shape)))
    return tables.writer.joined(parts, axis)


@_along
def _counted(tables: Tables, arrays: Arrays, lengths: Sequence[Size], axis: int) -> ir.Value | None:
    """Rows that grow by the same from one to the next."""
    counts = [array.shape[axis] for array in arrays]
    if arrays[0].dtype.kind not in "iuf" or min(counts) < 2 or max(counts) < _FEWEST:
        return None
    if not all(np.isfinite(array).all() for array in arrays):
        return None
    starts, steps, along = [], [], [-1 if n == axis else 1 for n in range(arrays[0].ndim)]
    for array in arrays:
        count, start = array.shape[axis] - 1, array.take([0], axis)
        rest = array.take([-1], axis) - start
        step = rest // count if rest.dtype.kind in "iu" else (rest / count).astype(rest.dtype)
        bound = 6 * _ROUNDING * float(np.abs(array).max()) if array.dtype.kind == "f" else 0.0
        wanted = start + step * np.arange(count + 1).reshape(along)
        if not np.allclose(array, wanted, rtol=0, atol=bound):
            return None
        starts.append(start)
        steps.append(step)
    begin, growth = (tables.rows(each, lengths, axis) for each in (starts, steps))
    writer, dtype = tables.writer, ir.DataType.from_numpy(arrays[0].dtype)
    count = writer.cast(writer.count(lengths[axis]), _INT64, dtype)
    rows = writer.add("Reshape", count, writer.integers(along))
    return writer.add("Add", writer.add("Mul", rows, growth), begin)


@_along
def _repeated(tables: Tables, arrays: Arrays, lengths: Sequence[Size], axis: int) -> ir.Value | None:
    """Rows of which each is there several times in a row, or all again and again: row n // times, or n % times."""
    starts = [np.diff([*_starts_of_runs(a, axis), a.shape[axis]]) for a in arrays]
    even = ((each[:-1] == each[0]).all() and each[-1] <= each[0] for each in starts)  # the last may be cut
    times, op_type = tuple(int(each[0]) if same else 1 for each, same in zip(starts, even, strict=True)), "Div"
    if min(times) < 2:
        times, op_type = tuple(_period(array, axis) for array in arrays), "Mod"
    if not all(times) or any(count >= a.shape[axis] for count, a in zip(times, arrays, strict=True)):
        return None
    by, length, writer = tables.number("a period of", times), lengths[axis], tables.writer
    picks = ((slice(None, None, k) if op_type == "Div" else slice(k)) for k in times)
    rows = [np.moveaxis(np.moveaxis(a, axis, 0)[pick], 0, axis) for a, pick in zip(arrays, picks, strict=True)]
    counts = tuple(each.shape[axis] for each in rows)
    count = length.divided(by) if op_type == "Div" else by
    if op_type == "Div" and (part := by.constant) is not None and len(set(counts)) > 1:
        count = tables.writer.evidence.rounded(length, int(part), int(part) - 1)
    elif len(set(counts)) == 1 or count is None or not count.is_integral:
        count = tables.number("the rows of", counts, (length, by))
    inner = tables.rows(rows, lengths, axis, count)
    index = writer.add(op_type, writer.count(length), writer.size(by))
    return writer.add("Gather", inner, index, axis=axis)


def _of_difference(tables: Tables, arrays: Arrays, lengths: Sequence[Size]) -> ir.Value | None:
    """On two axes a function of column minus row: the first row and the first column have its numbers."""
    grown = [axis for axis, length in enumerate(lengths) if length.symbols]
    if len(grown) != 2 or not all(array.size for array in arrays):
        return None
    found, writer, add = [np.moveaxis(a, grown, (0, 1)) for a in arrays], tables.writer, tables.writer.add
    if any((array[1:, 1:] != array[:-1, :-1]).any() for array in found):
        return None
    others = [length for axis, length in enumerate(lengths) if axis not in grown]
    sides, counts = ([array[0] for array in found], [array[:, 0] for array in found]), []
    for side, axis in zip(sides, grown[::-1], strict=True):
        before = {_starts_of_runs(line, 0)[-1] for line in side}  # a fixed part may be longer than the axis
        counts.append(lengths[axis] + (before.pop() if len(before) == 1 else 0))
    parts = [tables.explained(side, [count, *others]) for side, count in zip(sides, counts, strict=True)]
    row = add("Reshape", writer.count(lengths[grown[0]]), writer.integers([-1, 1]))
    far, zero = add("Sub", writer.count(lengths[grown[1]]), row), writer.integers([0])
    behind = add("Sub", writer.size(counts[0]), far)
    value = add("Gather", writer.joined(parts), add("Where", add("Less", far, zero), behind, far), axis=0)
    order = [n for n in range(arrays[0].ndim) if n not in grown]
    return add("Transpose", value, perm=np.argsort([*grown, *order]).tolist())


RULES: Sequence[_Rule] = (_equal, _numbers, _runs, _counted, _repeated, _of_difference)
"""In the order in which they are tried."""


# Arrays

_PART = 1 << 20
"""So many numbers are compared at once."""


def are_equal(first: Array | None, second: Array | None) -> bool:
    """Whether two arrays are equal, floats but for their rounding."""
    if first is None or second is None or first.shape != second.shape or first.dtype != second.dtype:
        return first is second
    ones, others = (array.reshape(-1) for array in (first, second))
    parts = ((ones[n : n + _PART], others[n : n + _PART]) for n in range(0, ones.size, _PART))
    if first.dtype.kind == "f":
        return all(np.allclose(one, other, rtol=8 * _ROUNDING, atol=0, equal_nan=True) for one, other in parts)
    return all(bool((one == other).all()) for one, other in parts)


def _starts_of_runs(array: Array, axis: int) -> list[int]:
    """Return the first row of each run of equal rows."""
    rows = np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1)
    return [0, *(np.flatnonzero((rows[1:] != rows[:-1]).any(1)) + 1).tolist()]


def _period(array: Array, axis: int) -> int:
    """Return after how many rows all rows come again; 0 for none that is seen twice."""
    rows = np.moveaxis(array, axis, 0)
    again = np.flatnonzero((rows == rows[0]).reshape(len(rows), -1).all(1))[1:]
    return next((int(p) for p in again if 2 * p <= len(rows) and (rows[p:] == rows[:-p]).all()), 0)
