"""Graphs on symbols: `Machine` runs them, and `SymbolicRows` keeps arrays whose elements are lanes of polynomials.

An element of a symbolic array names its row, a polynomial, and its lane. What an operator moves it moves whatever
it is, so NumPy does. What it computes it computes for all lanes of a row at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import partial, reduce
from hashlib import blake2b
from itertools import chain, groupby, zip_longest
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper

from rnn_lowering.compare.proof.axes import CHOSEN, Moves, RunSizes
from rnn_lowering.compare.proof.polynomials import (
    ZERO,
    Algebra,
    BoundedPolynomial,
    Effort,
    Numbers,
    UnprovenError,
    equal,
    number,
)
from rnn_lowering.types import Array, array_of

Values = Mapping[str, Array]
Operator = Callable[..., Any]

_ELEMENT = np.dtype([("lane", "<i4"), ("row", "<i4")])
"""An element of a symbolic array. Rows of one element for all lanes are below 0."""

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


def _array(value: Any) -> Array:
    """Return an array: NumPy makes an element of an array of objects that has no axis."""
    return value if isinstance(value, np.ndarray) else np.array(value, object)


def _columns(matrix: Array) -> Iterator[Array]:
    """Yield the columns of a matrix as the rows of blocks in float64, of which the whole may be too large."""
    width = max(1, _COLUMNS_AT_ONCE // max(1, len(matrix)))
    for first in range(0, matrix.shape[1], width):
        yield np.ascontiguousarray(floats(matrix[:, first : first + width]).T)


def _listed(outputs: Any) -> list[Any]:
    return outputs if isinstance(outputs, list) else [outputs]


def _lanes(array: Array) -> int:
    return array.shape[-1] or 1 if array.ndim else 1


Part = tuple[BoundedPolynomial, int]
"""A polynomial, and how many lanes it has."""


class Columns(NamedTuple):
    """Columns of a matrix: where they are, the number of their block, where in it they begin, and its length."""

    first: int
    end: int
    block: int
    start: int
    lanes: int


class SymbolicRows:
    """The rows of the symbolic arrays of a proof.

    Attributes:
        algebra: The atoms.
    """

    def __init__(self, effort: Effort) -> None:
        self.algebra = Algebra(effort)
        self._rows: list[BoundedPolynomial] = [ZERO]
        self._known: dict[Hashable, int] = {}
        self._firsts: dict[BoundedPolynomial, int] = {}
        self._parts: dict[tuple[int, int], BoundedPolynomial] = {}
        self._results: dict[Hashable, BoundedPolynomial] = {}
        self._columns: dict[bytes, tuple[int, int]] = {}
        self._sizes: list[int] = []
        self._of_matrices: dict[Hashable, tuple[list[Columns], Array]] = {}
        self._constants: dict[int, tuple[onnx.TensorProto, Array]] = {}
        self._rows_of: dict[int, tuple[Array, list[BoundedPolynomial]]] = {}
        self._repetitions = 0

    def begin_run(self) -> None:
        """Forget which arrays and states there are. Equal polynomials keep their atoms."""
        self._rows_of = {}
        self.algebra.begin_run()

    def fresh(self, *name: Hashable) -> Hashable:
        """Return a name that no other repetition has, not even one of the same node."""
        self._repetitions += 1
        return (*name, self._repetitions)

    def constant(self, tensor: onnx.TensorProto) -> Array:
        """Return the numbers of a tensor, in each run the same array."""
        if id(tensor) not in self._constants:
            self._constants[id(tensor)] = tensor, numbers_of(tensor)
        return self._constants[id(tensor)][1]

    def of(self, *parts: Part, shape: Sequence[int]) -> Array:
        """Return the elements that polynomials stand for as an array."""
        parts = tuple(part for part in parts if part[1])
        width = shape[-1] if shape else 1
        firsts = np.array([self._first(value) for value, _ in parts], np.int64)
        if all(lanes == width for _, lanes in parts):
            codes = firsts[:, None] + (firsts >= 0)[:, None] * np.arange(width)
            values = [self._rows[abs(code >> 32)] for code in firsts.tolist()]
            return self._with_rows(codes.view(_ELEMENT).reshape(shape), values)
        lanes = np.array([lanes for _, lanes in parts], np.int64)
        codes = np.repeat(firsts, lanes)
        codes += (np.arange(len(codes)) - np.repeat(lanes.cumsum() - lanes, lanes)) * (codes >= 0)
        return codes.view(_ELEMENT).reshape(shape)

    def _first(self, value: BoundedPolynomial) -> int:
        """Return the first element of a polynomial as an integer."""
        code = self._firsts.get(value)
        if code is None:
            key = value.number if value.atom is None else value.atom
            is_one = self.algebra.lanes(value) == 1
            row = self._row(value, value if key is None or not (is_one or value.atom) else key)
            code = (-row if is_one else row) << 32
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

    def symbols(self, shape: Sequence[int], *name: Hashable) -> Array:
        """Return an array of new symbols; what is along the last axis is a row."""
        *rows, lanes = shape or (1,)
        symbols = [self.algebra.symbol(lanes, (*name, *index)) for index in np.ndindex(*rows)]
        return self.of(*((symbol, lanes) for symbol in symbols), shape=shape)

    def zeros(self, shape: Sequence[int]) -> Array:
        """Return an array of zeros."""
        return np.full(tuple(shape), self.of((ZERO, 1), shape=(1,))[0])

    def of_numbers(self, values: Array, bounds: Array) -> Array:
        """Return numbers, with their bounds, as elements."""
        lanes = _lanes(values)
        rows = zip(values.reshape(-1, lanes), bounds.reshape(-1, lanes), strict=True)
        return self.of(*((number(*row), lanes) for row in rows), shape=values.shape)

    def runs(self, *arrays: Array) -> Iterator[tuple[int, int, list[BoundedPolynomial]]]:
        """Yield where lanes follow each other in all of these flattened arrays, and their polynomials."""
        if not arrays[0].size:
            return
        lanes = _lanes(arrays[0])
        whole = [self._rows_of.get(id(array), (None, None))[1] for array in arrays]
        if None not in whole:
            parts = zip(*whole, strict=True)
            yield from ((n * lanes, (n + 1) * lanes, list(of_row)) for n, of_row in enumerate(parts))
            return
        codes = [np.ascontiguousarray(x).view(np.int64).reshape(-1, lanes) for x in arrays]
        starts = np.ones(codes[0].shape, np.bool_)
        if lanes > 1:
            nexts = starts[:, 1:]
            nexts[...] = False
            for of_array in codes:
                nexts |= of_array[:, 1:] - of_array[:, :-1] != (of_array[:, 1:] >= 0)
        firsts = starts.ravel().nonzero()[0]
        ends = [*firsts[1:].tolist(), starts.size]
        counts = [end - first for first, end in zip(firsts.tolist(), ends, strict=True)]
        of_arrays = [
            [self._part(code, count) for code, count in zip(of_array.ravel()[firsts].tolist(), counts, strict=True)]
            for of_array in codes
        ]
        if len(counts) * lanes == arrays[0].size:
            for array, values in zip(arrays, of_arrays, strict=True):
                self._with_rows(array, values)
        for first, end, *of_run in zip(firsts.tolist(), ends, *of_arrays, strict=True):
            yield first, end, of_run

    def _with_rows(self, array: Array, values: list[BoundedPolynomial]) -> Array:
        """Keep what each row along the last axis of an array is, until the next run; return the array."""
        self._rows_of[id(array)] = array, values
        return array

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

    def columns_of(self, matrix: Array) -> list[Columns]:
        """Return the columns of a matrix that are not 0, as parts of blocks of columns that were seen before."""
        place = matrix.__array_interface__["data"][0], matrix.shape, matrix.strides
        if place not in self._of_matrices:
            self.algebra.count(matrix.size // 1000)
            self._of_matrices[place] = list(self._parts_of_blocks(matrix)), matrix  # which keeps its place
        return self._of_matrices[place][0]

    def _parts_of_blocks(self, matrix: Array) -> Iterator[Columns]:
        columns = (column for block in _columns(matrix) for column in block)
        names = [blake2b(column, digest_size=16).digest() if column.any() else b"" for column in columns]
        for is_new, group in groupby(names, lambda name: bool(name) and name not in self._columns):
            if is_new:
                block = list(group)
                for lane, name in enumerate(block):
                    self._columns.setdefault(name, (len(self._sizes), lane))
                self._sizes.append(len(block))
        places = [self._columns.get(name, (-1, 0)) for name in names]
        starts = [n for n, (b, lane) in enumerate(places) if n == 0 or places[n - 1] != (b, lane - 1)]
        for first, end in zip(starts, [*starts[1:], len(places)], strict=True):
            number_of_block, start = places[first]
            if number_of_block >= 0:
                yield Columns(first, end, number_of_block, start, self._sizes[number_of_block])


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
        marks_of: The marks of their outputs.
        taken: How many steps the last loop or node took; None if that is open.
    """

    taken: int | None = None

    def __init__(
        self,
        rows: SymbolicRows,
        axes: RunSizes,
        rounding: float,
        control: Mapping[str, Operator],
        operators: Mapping[str, Operator],
        marks_of: Operator,
    ) -> None:
        self.rows, self.algebra, self.axes, self.rounding = rows, rows.algebra, axes, rounding
        self.control, self.operators, self.marks_of = control, operators, marks_of
        self._lifted: dict[int, tuple[Array, Array]] = {}
        self._moves: dict[int, tuple[Array, Moves]] = {}
        self._shapes: dict[int, Array] = {}
        self._marks: dict[int, tuple[Array, Array]] = {}

    def moves(self, *arrays: Array | None) -> Moves:
        """Return how far rows of these arrays were moved."""
        return reduce(Moves.__or__, (self._moves[id(x)][1] for x in arrays if id(x) in self._moves), Moves())

    def moved(self, array: Array, moves: Moves) -> Array:
        """Return an array, of which is noted how far its rows were moved."""
        if self.axes.noted(moves):
            self._moves[id(array)] = array, moves
        return array

    def known(self, array: Array, moves: Moves) -> Array:
        """Return an array, of which is noted how far its rows were moved; how they were chosen does not matter any
        more if all are states of the node, or zeros."""
        if moves[CHOSEN] and is_symbolic(array):
            parts = [part for _, _, (part,) in self.rows.runs(array)]
            labels = [self.algebra.label(part) for part in parts if part.terms]
            if all(label and label[0][:1] == ("state",) for label in labels):
                moves = Moves({name: far for name, far in moves.items() if name != CHOSEN})
        if self.moves(array) == moves:
            return array
        return self.moved(self.arranged(array, np.ndarray.view), moves)

    def marks(self, array: Array | None) -> Array | None:
        """Return which sequence each element follows; None if none does."""
        return self._marks[id(array)][1] if id(array) in self._marks else None

    def marked(self, array: Array, marks: Array) -> Array:
        """Return an array, of which is noted which sequence each element follows."""
        if marks.any():
            self._marks[id(array)] = array, np.broadcast_to(marks, array.shape)
        return array

    def arranged(self, array: Array, arrange: Callable[[Array], Array]) -> Array:
        """Return the elements of an array in another arrangement."""
        result, marks = arrange(array), self.marks(array)
        return result if marks is None else self.marked(result, arrange(marks))

    def rows_of(self, array: Array, axis: int) -> int:
        """Return how many rows an array has; 0 for a shape, whose rows are no rows of an open axis."""
        return 0 if id(array) in self._shapes else array.shape[axis]

    def stepped(self, step: Callable[[], list[Array]], states: slice, name: Hashable, number: int) -> list[Array]:
        """Return what a step of a loop returns; `equations` names the states among it."""
        return step()

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
        name = node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"
        if name in self.control:
            return list(self.control[name](self, node, values))
        if name not in self.operators:
            raise UnprovenError(f"{node.op_type} has no equation")
        if node.op_type == "Split":
            attributes.setdefault("num_outputs", len(node.output))
        inputs = [values[name] if name else None for name in node.input]
        shapes = (array.shape[::-1] for array in inputs if array is not None)
        refuse_large(*map(max, zip_longest(*shapes, fillvalue=1)))
        outputs = list(map(_array, _listed(self.operators[node.op_type](self, attributes, *inputs))))
        if node.op_type == "Shape" or (node.op_type in ("Gather", "Slice") and id(inputs[0]) in self._shapes):
            self._shapes[id(outputs[0])] = outputs[0]
            return outputs
        marks = list(map(self.marks, inputs))
        if any(of is not None for of in marks):
            outputs = list(
                map(self.marked, outputs, self.marks_of(self, node.op_type, attributes, inputs, marks, outputs))
            )
        moves = self.moves(*inputs)
        return [self.moved(x, moves | self.moves(x)) for x in outputs]

    def lifted(self, array: Array) -> Array:
        """Return numbers as elements."""
        if is_symbolic(array):
            return array
        if array.dtype == object:
            raise UnprovenError("a size is computed with")
        if id(array) not in self._lifted:
            values = array.astype(np.float64)
            self._lifted[id(array)] = array, self.rows.of_numbers(values, self.halves(values))
        return self._lifted[id(array)][1]

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
        broad = [self.lifted(array) for array in arrays]
        if any(array.shape != broad[0].shape for array in broad):
            width = max(array.shape[-1] if array.ndim else 1 for array in broad)
            broad = list(np.broadcast_arrays(*(self._in_all_lanes(array, width) for array in broad)))
        values = [
            (self.algebra.settled(self.rows.computed(function, *parts)), end - first)
            for first, end, parts in self.rows.runs(*broad)
        ]
        return self.rows.of(*values, shape=broad[0].shape)

    def _in_all_lanes(self, array: Array, width: int) -> Array:
        """Return elements that are to be those of all lanes of a row as rows of their own."""
        if width == 1 or (array.ndim and array.shape[-1] != 1):
            return array
        return self.rows.of(*((part, 1) for _, _, (part,) in self.rows.runs(array)), shape=array.shape)

    def sum(self, *arrays: Array) -> Array:
        """Return the sum of arrays."""
        return reduce(partial(self.elementwise, BoundedPolynomial.__add__), arrays)

    def times(self, a: Array, b: Array) -> Array:
        """Return the product of arrays, element by element."""
        return self.elementwise(BoundedPolynomial.__mul__, a, b)

    def equal(self, a: Array, b: Array) -> bool:
        """Whether all elements are equal."""
        return all(equal(*parts) for _, _, parts in self.rows.runs(self.lifted(a), self.lifted(b)))

    # Products

    def product(self, a: Array, b: Array) -> Array:
        """Return the product of matrices, [..., M, K] and [..., K, J]."""
        if self.axes.is_open(a.shape[-1]):
            raise UnprovenError("a sum over an open axis")
        if not (is_symbolic(a) or is_symbolic(b)):
            refuse_large(*a.shape[:-1], *b.shape[:-2], b.shape[-1])
            if b.ndim != 2 or not b.size:
                return np.asarray(np.matmul(floats(a), floats(b)))
            return np.concatenate([np.matmul(floats(a), columns.T) for columns in _columns(b)], -1)
        if not is_symbolic(a):
            return np.swapaxes(self.product(np.swapaxes(b, -1, -2), np.swapaxes(a, -1, -2)), -1, -2)
        if a.shape[-1] != b.shape[-2]:
            raise UnprovenError("matrices do not fit")
        of_each = self._symbolic_product if is_symbolic(b) else self._product
        if a.ndim == b.ndim == 2:
            return of_each(a, b)
        if b.ndim == 2:
            return of_each(a.reshape(math.prod(a.shape[:-1]), len(b)), b).reshape(*a.shape[:-1], b.shape[1])
        batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        a, b = (np.broadcast_to(m, (*batch, *m.shape[-2:])) for m in (a, b))
        shape = (*batch, a.shape[-2], b.shape[-1])
        parts = [of_each(a[index], b[index]) for index in np.ndindex(batch)]
        return np.stack(parts).reshape(shape) if parts else self.rows.zeros(shape)

    def _symbolic_product(self, a: Array, b: Array) -> Array:
        rows = [part for _, _, (part,) in self.rows.runs(b)]
        if len(b) > 1 and len(rows) == len(b) and all(self.algebra.lanes(row) > 1 for row in rows):
            return self._contraction(a, rows, b.shape[1])
        terms = [self.times(a[:, k, None], b[k]) for k in range(len(b))]
        return self.sum(*terms) if terms else self.rows.zeros((len(a), b.shape[1]))

    def _contraction(self, a: Array, rows: list[BoundedPolynomial], width: int) -> Array:
        """Return the product of rows with a matrix whose rows are polynomials.

        It is linear in both: a product of lanes with rows is an atom, and what all of them have is a factor.
        """
        factor, rows = self.algebra.common_factor(rows)
        names = tuple(map(self.algebra.identity, rows))
        sums = [ZERO] * len(a)
        for first, end, (part,) in self.rows.runs(a):
            row, k = divmod(first, len(rows))
            for of_all, of_lanes in self.algebra.split_terms(part):
                self.algebra.count(1)
                key = "contraction", self.algebra.identity(of_lanes), names[k : k + end - first]
                sums[row] += of_all * self.algebra.atom(width, *key)
        return self.rows.of(*((self.algebra.settled(x * factor), width) for x in sums), shape=(len(a), width))

    def _product(self, a: Array, matrix: Array) -> Array:
        """Return the product of rows with each column of numbers.

        The product of a part of a row that has atoms is an atom of that part and a block of columns.
        """
        (height, depth), width = a.shape, matrix.shape[1]
        terms: list[list[list[Part]]] = [[] for _ in range(height)]
        for first, end, (part,) in self.rows.runs(a) if depth else ():
            row, rows = first // depth, slice(first % depth, first % depth + end - first)
            if part.number is None:
                terms[row].append(self._of_atoms(part, matrix[rows]))
            elif part.terms:
                terms[row].append(self._of_numbers(*part.number, matrix[rows]))
        sums = zip_longest(*(of_row or [[(ZERO, width)]] for of_row in terms), fillvalue=[(ZERO, width)])
        arrays = [self.rows.of(*chain.from_iterable(rows), shape=(height, width)) for rows in sums]
        return self.sum(*arrays) if arrays else self.rows.zeros((height, width))

    def _of_numbers(self, value: Numbers, bound: Numbers, matrix: Array) -> list[Part]:
        """Return the product of a row of numbers with each column."""
        values, bounds = (np.broadcast_to(x, len(matrix)) for x in (value, bound))
        products: list[Array] = []
        far: list[Array] = []
        for columns in _columns(matrix):
            sizes, halves = np.abs(columns), self.halves(columns)
            products.append(columns @ values)
            far.append((halves + 2.0**-48 * sizes) @ np.abs(values) + (sizes + halves) @ bounds)
        return [(number(np.concatenate(products), np.concatenate(far)), matrix.shape[1])]

    def _of_atoms(self, row: BoundedPolynomial, matrix: Array) -> list[Part]:
        """Return the product of a row with each column of a matrix: atoms of the row and of blocks of columns."""
        n, of_row, values = 0, self.algebra.identity(row), list[Part]()
        for first, end, block, start, lanes in self.rows.columns_of(matrix):
            self.algebra.count(1)
            value = self.algebra.cut(self.algebra.atom(lanes, "dot", of_row, block), start, start + end - first)
            values += [(ZERO, first - n), (self.algebra.settled(value), end - first)]
            n = end
        return [*values, (ZERO, matrix.shape[1] - n)]
