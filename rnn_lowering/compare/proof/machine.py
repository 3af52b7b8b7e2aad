"""Graphs on symbols: `Machine` runs them, and `SymbolicRows` keeps arrays whose elements are lanes of polynomials.

An element of a symbolic array names its row, a polynomial, and its lane. What an operator moves it moves whatever
it is, so NumPy does. What it computes it computes for all lanes of a row at once; where a graph does not keep rows
together, each row has one lane.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import partial, reduce
from hashlib import blake2b
from itertools import groupby, takewhile, zip_longest
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper

from rnn_lowering.compare.proof.polynomials import (
    ZERO,
    Algebra,
    BoundedPolynomial,
    Effort,
    UnprovenError,
    equal,
    number,
)
from rnn_lowering.compare.proof.sizes import RunSizes
from rnn_lowering.types import Array, array_of

Values = Mapping[str, Array]
Operator = Callable[..., Any]

_ELEMENT = np.dtype([("lane", "<i4"), ("row", "<i4")])
"""An element of a symbolic array. Rows of one number for all lanes are below 0."""

_MOST_AT_ONCE = 1 << 24

_COLUMNS_AT_ONCE = 1 << 18
"""Numbers of a matrix that are read at once."""


def refuse_large(*sizes: int) -> None:
    """Raise if an array of these sizes would take much memory: what is proven may come from a file."""
    if math.prod(sizes) > _MOST_AT_ONCE:
        raise UnprovenError("too large")


def is_symbolic(array: Array) -> bool:
    """Whether elements are polynomials."""
    return array.dtype == _ELEMENT


def numbers_of(tensor: onnx.TensorProto) -> Array:
    """Return the numbers of a tensor; large ones stay in their file until they are computed with."""
    array = array_of(ir.serde.deserialize_tensor(tensor, "/"))
    return array if array.dtype.kind in "biuf" else array.astype(np.float64)


def floats(array: Array) -> Array:
    """Return numbers as float64."""
    if array.dtype == object:
        raise UnprovenError("a size is computed with")
    return np.asarray(array, np.float64)


def _columns(matrix: Array) -> Iterator[Array]:
    """Yield the columns of a matrix as the rows of blocks in float64, of which the whole may be too large."""
    width = max(1, _COLUMNS_AT_ONCE // max(1, len(matrix)))
    for first in range(0, matrix.shape[1], width):
        yield np.ascontiguousarray(floats(matrix[:, first : first + width]).T)


class SymbolicRows:
    """The rows of symbolic arrays.

    Args:
        one_by_one: Each row has one lane.

    Attributes:
        algebra: The atoms.
        products: The columns of matrices, by their place in memory; see `Machine`.
    """

    def __init__(self, effort: Effort, one_by_one: bool) -> None:
        self.algebra, self.one_by_one = Algebra(effort), one_by_one
        self._rows: list[BoundedPolynomial] = [ZERO]
        self._known: dict[Hashable, int] = {}
        self._firsts: dict[BoundedPolynomial, int] = {}
        self._parts: dict[tuple[int, int], BoundedPolynomial] = {}
        self._results: dict[Hashable, BoundedPolynomial] = {}
        self._columns: dict[bytes, tuple[int, int]] = {}
        self._blocks: list[list[bytes]] = []
        self._constants: dict[int, tuple[onnx.TensorProto, Array]] = {}
        self.products: dict[Hashable, Any] = {}

    def constant(self, tensor: onnx.TensorProto) -> Array:
        """Return the numbers of a tensor, in each run the same array."""
        if id(tensor) not in self._constants:
            self._constants[id(tensor)] = tensor, numbers_of(tensor)
        return self._constants[id(tensor)][1]

    def of(self, *values: tuple[BoundedPolynomial, int]) -> Array:
        """Return the elements that polynomials stand for, each with its number of lanes, as a vector."""
        firsts = np.array([self._first(value) for value, _ in values], np.int64)
        counts = [lanes for _, lanes in values]
        if counts and counts.count(counts[0]) == len(counts):
            return (firsts[:, None] + (firsts >= 0)[:, None] * np.arange(counts[0])).ravel().view(_ELEMENT)
        lanes = np.array(counts, np.int64)
        codes = np.repeat(firsts, lanes)
        codes += (np.arange(len(codes)) - np.repeat(lanes.cumsum() - lanes, lanes)) * (codes >= 0)
        return codes.view(_ELEMENT)

    def _first(self, value: BoundedPolynomial) -> int:
        """Return the first element of a polynomial as an integer."""
        code = self._firsts.get(value)
        if code is None:
            numbers, atom = value.number, value.atom
            if numbers is not None and isinstance(numbers[0], float) and isinstance(numbers[1], float):
                code = -self._row(value, numbers) << 32
            else:
                code = self._row(value, value if atom is None else atom) << 32
            self._firsts[value] = code
        return code

    def _row(self, value: BoundedPolynomial, key: Hashable) -> int:
        """Return the number of the row with a key."""
        row = self._known.setdefault(key, len(self._rows))
        if row == len(self._rows):
            self._rows.append(value)
        return row

    def computed(self, function: Callable[..., BoundedPolynomial], *of: BoundedPolynomial) -> BoundedPolynomial:
        """Return a function of polynomials, which the runs of a proof compute again and again."""
        key = (function, *of)
        result = self._results.get(key)
        if result is None:
            self.algebra.count(1)
            result = self._results[key] = function(*of)
        return result

    def pieces(self, lanes: int) -> Iterator[tuple[int, int]]:
        """Yield where the rows of that many elements begin and end."""
        yield from ((n, n + 1) for n in range(lanes)) if self.one_by_one else [(0, lanes)]

    def symbols(self, shape: Sequence[int], *name: Hashable) -> Array:
        """Return an array of new symbols; what is along the last axis is a row."""
        array = np.zeros(tuple(shape), _ELEMENT)
        for index in np.ndindex(array.shape[:-1]):
            for first, end in self.pieces(array.shape[-1]):
                symbol = self.algebra.symbol(end - first, (*name, *index), first)
                array[index][first:end] = self.of((symbol, end - first))
        return array

    def zeros(self, shape: Sequence[int]) -> Array:
        """Return an array of zeros."""
        return np.full(tuple(shape), self.of((ZERO, 1))[0])

    def of_numbers(self, values: Array, bounds: Array) -> Array:
        """Return numbers, with their bounds, as elements."""
        lanes = max(1, values.shape[-1]) if values.ndim else 1
        rows = zip(values.reshape(-1, lanes), bounds.reshape(-1, lanes), strict=True)
        pieces = [(v[n:end], bound[n:end]) for v, bound in rows for n, end in self.pieces(lanes)]
        return self.of(*((number(v, bound), len(v)) for v, bound in pieces)).reshape(values.shape)

    def runs(self, *arrays: Array) -> Iterator[tuple[int, int, list[BoundedPolynomial]]]:
        """Yield where lanes follow each other in all of these flattened arrays, and their polynomials."""
        lanes = max(1, arrays[0].shape[-1]) if arrays[0].ndim else 1
        codes = [np.ascontiguousarray(x).view(np.int64).reshape(-1, lanes) for x in arrays]
        starts = np.ones(codes[0].shape, np.bool_)
        if not self.one_by_one and lanes > 1:
            nexts = starts[:, 1:]
            nexts[...] = False
            for of_array in codes:
                nexts |= of_array[:, 1:] - of_array[:, :-1] != (of_array[:, 1:] >= 0)
        firsts = starts.ravel().nonzero()[0]
        ends = [*firsts[1:].tolist(), starts.size]
        of_starts = zip(*(of_array.ravel()[firsts].tolist() for of_array in codes), strict=True)
        for first, end, of_start in zip(firsts.tolist(), ends, of_starts, strict=True):
            yield first, end, [self._part(code, end - first) for code in of_start]

    def _part(self, code: int, lanes: int) -> BoundedPolynomial:
        """Return the polynomial of an element and those after it in its row."""
        part = self._parts.get((code, lanes))
        if part is None:
            row, lane = code >> 32, code & 0xFFFFFFFF
            part = self._rows[abs(row)]
            if row >= 0 and (lane or lanes != self.algebra.lanes(part)):
                part = self.algebra.cut(part, lane, lane + lanes)
            self._parts[code, lanes] = part
        return part

    def blocks(self, matrix: Array) -> Iterator[tuple[int, int, int, int, int]]:
        """Yield the columns of a matrix that are not 0, as parts of blocks of columns that were seen before.

        Yields:
            Where they begin and end; the number of the block, where in it they begin, and its length.
        """
        columns = (column for block in _columns(matrix) for column in block)
        names = [blake2b(column, digest_size=16).digest() if column.any() else b"" for column in columns]
        for is_new, group in groupby(names, lambda name: bool(name) and name not in self._columns):
            if is_new:
                self._add_block(list(group))
        first = 0
        while first < len(names):
            block, start = self._columns.get(names[first], (0, 0))
            alike = zip(names[first:], self._blocks[block][start:], strict=False) if names[first] else ()
            count = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], alike))
            if count:
                yield first, first + count, block, start, len(self._blocks[block])
            first += count or 1

    def _add_block(self, names: list[bytes]) -> None:
        for lane, name in enumerate(names):
            self._columns.setdefault(name, (len(self._blocks), lane))
        self._blocks.append(names)


class Machine:
    """Runs graphs on symbols.

    Attributes:
        rows: The rows of symbolic arrays.
        algebra: Their atoms.
        axes: Which sizes are open.
        rounding: Half a rounding of 1 in the type of stored numbers: by so much each may differ from the number
            that it stands for.
        control: What runs loops and recurrent nodes, by operator.
        operators: The others.
    """

    def __init__(
        self,
        rows: SymbolicRows,
        axes: RunSizes,
        rounding: float,
        control: Mapping[str, Operator],
        operators: Mapping[str, Operator],
    ) -> None:
        self.rows, self.algebra, self.axes, self.rounding = rows, rows.algebra, axes, rounding
        self.control, self.operators = control, operators

    def run(self, graph: onnx.GraphProto, outer: Values, inputs: Sequence[Array] = ()) -> list[Array]:
        """Return the outputs of a graph."""
        values = dict(outer)
        values.update(zip((value.name for value in graph.input), inputs, strict=False))
        for tensor in graph.initializer:
            if tensor.name not in values:
                values[tensor.name] = self.rows.constant(tensor)
        for node in graph.node:
            results = self.node(node, values)
            values.update((name, array) for name, array in zip(node.output, results, strict=False) if name)
        return [values[value.name] for value in graph.output]

    def node(self, node: onnx.NodeProto, values: Values) -> Sequence[Array]:
        """Return the outputs of a node."""
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        control = self.control.get(node.op_type) if node.domain in ("", "ai.onnx") else None
        if control is not None:
            return list(control(self, node, values))
        if node.op_type not in self.operators or node.domain not in ("", "ai.onnx"):
            raise UnprovenError(f"{node.op_type} has no equation")
        inputs = [values[name] if name else None for name in node.input]
        shapes = (array.shape[::-1] for array in inputs if array is not None)
        refuse_large(*map(max, zip_longest(*shapes, fillvalue=1)))
        outputs = self.operators[node.op_type](self, attributes, *inputs)
        return outputs if isinstance(outputs, list) else [outputs]

    def lifted(self, array: Array) -> Array:
        """Return numbers as elements."""
        if is_symbolic(array):
            return array
        if array.dtype == object:
            raise UnprovenError("a size is computed with")
        values = array.astype(np.float64)
        return self.rows.of_numbers(values, self.halves(values))

    def halves(self, values: Array) -> Array:
        """Return half the distance of each number to the next one of the type of stored numbers."""
        magnitudes = np.abs(values)
        if not np.isfinite(magnitudes).all():
            raise UnprovenError("a constant is infinite")
        return self.rounding * np.where(
            magnitudes > 0, np.exp2(np.floor(np.log2(np.maximum(magnitudes, 1e-300)))), 0
        )

    def half(self, value: float) -> float:
        """Return half the distance of a number to the next one of the type of stored numbers."""
        return float(self.halves(np.array(value)))

    def elementwise(self, function: Callable[..., BoundedPolynomial], *arrays: Array) -> Array:
        """Return a function of polynomials, element by element; an element that is a state becomes its atom."""
        broad = np.broadcast_arrays(*map(self.lifted, arrays))
        values = [
            (self.settled(self.rows.computed(function, *parts)), end - first)
            for first, end, parts in self.rows.runs(*broad)
        ]
        return self.rows.of(*values).reshape(broad[0].shape)

    def sum(self, *arrays: Array) -> Array:
        """Return the sum of arrays."""
        return reduce(partial(self.elementwise, BoundedPolynomial.__add__), arrays)

    def settled(self, computed: BoundedPolynomial) -> BoundedPolynomial:
        """Return a polynomial, one that is a state as its atom."""
        return self.algebra.settled(computed)

    def equal(self, a: Array, b: Array) -> bool:
        """Whether all elements are equal."""
        return all(equal(*parts) for _, _, parts in self.rows.runs(self.lifted(a), self.lifted(b)))

    # Products

    def product(self, a: Array, b: Array) -> Array:
        """Return the product of matrices, [..., M, K] and [..., K, J]."""
        if not (is_symbolic(a) or is_symbolic(b)):
            refuse_large(*a.shape[:-1], *b.shape[:-2], b.shape[-1])
            if b.ndim != 2 or not b.size:
                return np.asarray(np.matmul(floats(a), floats(b)))
            return np.concatenate([np.matmul(floats(a), columns.T) for columns in _columns(b)], -1)
        if not is_symbolic(a):
            return np.swapaxes(self.product(np.swapaxes(b, -1, -2), np.swapaxes(a, -1, -2)), -1, -2)
        batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        a, b = (np.broadcast_to(m, (*batch, *m.shape[-2:])) for m in (a, b))
        if a.shape[-1] != b.shape[-2]:
            raise UnprovenError("matrices do not fit")
        shape = (*batch, a.shape[-2], b.shape[-1])
        of_each = self._symbolic_product if is_symbolic(b) else self._product
        parts = [of_each(a[index], b[index]) for index in np.ndindex(batch)]
        return np.stack(parts).reshape(shape) if parts else self.rows.zeros(shape)

    def _symbolic_product(self, a: Array, b: Array) -> Array:
        terms = [self.elementwise(BoundedPolynomial.__mul__, a[:, k, None], b[k]) for k in range(len(b))]
        return self.sum(*terms) if terms else self.rows.zeros((len(a), b.shape[1]))

    def _product(self, a: Array, matrix: Array) -> Array:
        """Return the product of rows with each column of numbers.

        The product of a part of a row that has atoms is an atom of that part and a column.
        """
        terms: list[Array] = []
        shape = len(a), matrix.shape[1]
        ends = [0] * len(a)
        for row, first, end, parts in self._segments(a):
            if all(part.number is not None and not part.terms for part in parts):
                continue
            if len(terms) <= ends[row]:
                terms.append(self.rows.zeros(shape))
            if any(part.number is None for part in parts):
                product = self._of_atoms(parts, matrix, first, end)
            else:
                product = self._of_numbers(a[row, first:end], matrix[first:end])
            terms[ends[row]][row] = product
            ends[row] += 1
        return self.sum(*terms) if terms else self.rows.zeros(shape)

    def _segments(self, a: Array) -> Iterator[tuple[int, int, int, list[BoundedPolynomial]]]:
        """Yield the parts of each row: where it is, and those of inputs and states by their rows."""
        width = a.shape[1]
        if not self.rows.one_by_one:
            for first, end, parts in self.rows.runs(a):
                yield first // width, first % width, first % width + end - first, parts
            return
        each = [part for _, _, (part,) in self.rows.runs(a)]
        for row in range(len(a)):
            first = 0
            for _, group in groupby(each[row * width : (row + 1) * width], self._label):
                segment = list(group)
                yield row, first, first + len(segment), segment
                first += len(segment)

    def _label(self, x: BoundedPolynomial) -> Hashable:
        if x.number is not None:
            return "number"
        return None if x.atom is None else self.algebra.labels.get(x.atom, (None, 0))[0]

    def _of_numbers(self, row: Array, matrix: Array) -> Array:
        """Return the product of a row of numbers with each column."""
        values, bounds = np.zeros((2, len(row)))
        for first, end, (part,) in self.rows.runs(row):
            values[first:end], bounds[first:end] = part.number or (0.0, 0.0)
        products: list[Array] = []
        far: list[Array] = []
        for columns in _columns(matrix):
            sizes, halves = np.abs(columns), self.halves(columns)
            products.append(columns @ values)
            far.append((halves + 2.0**-48 * sizes) @ np.abs(values) + (sizes + halves) @ bounds)
        return self.rows.of_numbers(np.concatenate(products), np.concatenate(far))

    def _of_atoms(self, parts: Sequence[BoundedPolynomial], matrix: Array, first: int, end: int) -> Array:
        """Return the product of some columns of a row with each column of a matrix: an atom of both."""
        of_row, n = tuple(map(self.algebra.identity, parts)), 0
        values: list[tuple[BoundedPolynomial, int]] = []
        for start, stop, column in self._columns_of(matrix, first, end):
            self.algebra.count(1)
            if self.rows.one_by_one:
                value = self._of_column(parts, of_row, *column)
            else:
                block, lane, lanes = column
                value = self.algebra.atom(lanes, "dot", of_row, block)
                if lanes > stop - start:
                    value = self.algebra.cut(value, lane, lane + stop - start)
            values += [(ZERO, start - n), (self.settled(value), stop - start)]
            n = stop
        return self.rows.of(*values, (ZERO, matrix.shape[1] - n))

    def _of_column(
        self,
        parts: Sequence[BoundedPolynomial],
        of_row: Sequence[int],
        places: list[int],
        numbers: tuple[float, ...],
    ) -> BoundedPolynomial:
        if len(places) == 1:
            return parts[places[0]] * number(numbers[0], self.half(numbers[0]))
        return self.algebra.atom(1, "dot", tuple(of_row[k] for k in places), numbers)

    def _columns_of(self, matrix: Array, first: int, end: int) -> list[tuple[int, int, Any]]:
        """Return the columns of some rows of a matrix that are not 0: where they are, and what they are."""
        place = matrix.__array_interface__["data"][0], matrix.shape, matrix.strides, first, end
        if place not in self.rows.products:
            rows = matrix[first:end]
            self.algebra.count(rows.size // 1000)
            columns: list[tuple[int, int, Any]]
            if self.rows.one_by_one:
                columns = [
                    (n, n + 1, (column.nonzero()[0].tolist(), tuple(column[column != 0].tolist())))
                    for n, column in enumerate(column for block in _columns(rows) for column in block)
                    if column.any()
                ]
            else:
                columns = [(start, stop, block) for start, stop, *block in self.rows.blocks(rows)]
            self.rows.products[place] = columns, matrix  # which keeps its place
        of_matrix: list[tuple[int, int, Any]] = self.rows.products[place][0]
        return of_matrix
