"""`Machine` runs graphs on symbols: it knows how far rows were moved, and which sequence an element follows."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial, reduce
from itertools import chain, zip_longest
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from rnn_lowering.compare.proof.axes import CHOSEN, Moves, RunSizes
from rnn_lowering.compare.proof.polynomials import ZERO, BoundedPolynomial, Numbers, UnprovenError, number
from rnn_lowering.compare.proof.symbolic_rows import (
    NodeCall,
    Part,
    SymbolicRows,
    columns_at_once,
    contents,
    is_symbolic,
    refuse_large,
)
from rnn_lowering.types import Array

Values = Mapping[str, Array]
Operator = Callable[..., Any]


HALF_ROUNDINGS = {
    ir.DataType.FLOAT: 2.0**-24,
    ir.DataType.DOUBLE: 2.0**-53,
    ir.DataType.FLOAT16: 2.0**-11,
    ir.DataType.BFLOAT16: 2.0**-8,
}
"""Half a rounding of 1, by type."""


_NOWHERE = Moves()

_PRODUCTS = ("MatMul", "MatMulInteger")
"""Operators whose outputs are not as large as their inputs together."""


def _array(value: Any) -> Array:
    """Return an array: NumPy makes an element of an array that has no axis."""
    if isinstance(value, np.ndarray):
        return value
    return np.asarray(value) if isinstance(value, np.generic) else np.array(value, object)


def _listed(outputs: Any) -> list[Any]:
    return outputs if isinstance(outputs, list) else [outputs]


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
        asked: Which outputs the node has whose operator is called.
    """

    taken: int | None = None
    asked: Sequence[bool] = ()

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
        self._moves: dict[int, tuple[Array, Moves]] = {}
        self._marks: dict[int, tuple[Array, Array]] = {}

    def moves(self, *arrays: Array | None) -> Moves:
        """Return how far rows of these arrays were moved."""
        found = [self._moves[id(x)][1] for x in arrays if id(x) in self._moves]
        return reduce(Moves.__or__, found) if found else _NOWHERE

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

    def check_stays(self, array: Array, *sizes: int) -> None:
        """Raise if numbers that follow a length or a size would be moved along an open axis of these sizes."""
        follows = array.dtype == object or (self.marks(array) is not None and not is_symbolic(array))
        if follows and any(map(self.axes.is_open, sizes)):
            raise UnprovenError("numbers that follow a length or a size are moved")

    def arranged(self, array: Array, arrange: Callable[[Array], Array]) -> Array:
        """Return the elements of an array in another arrangement."""
        result, marks = arrange(array), self.marks(array)
        return result if marks is None else self.marked(result, arrange(marks))

    def stepped(self, step: Callable[[], list[Array]], states: slice, name: Hashable, number: int) -> list[Array]:
        """Return what a step of a loop returns; `equations` names the states among it."""
        return step()

    def run(self, graph: onnx.GraphProto, outer: Values, inputs: Sequence[Array] = ()) -> list[Array]:
        """Return the outputs of a graph."""
        values = dict(outer)
        values.update(zip((value.name for value in graph.input), inputs, strict=False))
        given = {value.name for value in graph.input}
        if graph.sparse_initializer:
            raise UnprovenError("a constant is sparse")
        for tensor in graph.initializer:
            if tensor.name not in given:
                values[tensor.name] = self.rows.constant(tensor)
                self.axes.closed(*values[tensor.name].shape)
        for call in self.rows.calls(graph):
            results = self.call(call, values)
            for array in results:
                self.axes.check_known(array)
            values.update(zip(call.outputs, results, strict=False))
        return [values[value.name] for value in graph.output]

    def call(self, call: NodeCall, values: Values) -> Sequence[Array]:
        """Return the outputs of a node."""
        name, inputs = call.operator, [values[name] if name else None for name in call.inputs]
        self.asked = list(map(bool, call.outputs))
        if name in self.control:
            return list(self.control[name](self, values, *inputs, **call.attributes))
        if name not in self.operators:
            raise UnprovenError(f"{name.rpartition('.')[2]} has no equation")
        if name not in _PRODUCTS:
            shapes = {array.shape[::-1] for array in inputs if array is not None}
            refuse_large(*map(max, zip_longest(*shapes, fillvalue=1)))
        outputs = list(map(_array, _listed(self.operators[name](self, *inputs, **call.attributes))))
        if name == "Shape":
            return outputs
        marks = list(map(self.marks, inputs))
        if any(of is not None for of in marks):
            found = self.marks_of(self, name, call.attributes, inputs, marks, outputs)
            outputs = list(map(self.marked, outputs, found))
        moves = self.moves(*inputs)
        return [self.moved(x, moves | self.moves(x)) for x in outputs] if moves else outputs

    def lifted(self, array: Array) -> Array:
        """Return numbers as elements."""
        if is_symbolic(array):
            return array
        if array.dtype == object:
            raise UnprovenError("a size is computed with")
        if array.dtype.kind in "iu":
            raise UnprovenError("integers are data")
        values = array.astype(np.float64)
        key = type(self).halves, self.rounding, contents(values)
        return self.rows.kept(lambda: self.rows.of_numbers(values, self.halves(values)), *key)

    def halves(self, values: Array) -> Array:
        """Return half the distance of each number to the next one of the type of stored numbers."""
        magnitudes = np.abs(values)
        if not np.isfinite(magnitudes).all():
            raise UnprovenError("a constant is infinite")
        return self.rounding * np.where(
            magnitudes > 0, np.exp2(np.floor(np.log2(np.maximum(magnitudes, 1e-300)))), 0
        )

    def keeps(self, to: int) -> bool:
        """Return whether a type keeps data but for the rounding of the node's own type: that, or a wider one."""
        half = HALF_ROUNDINGS.get(ir.DataType(to), 1.0)
        is_wide = to in (ir.DataType.FLOAT, ir.DataType.DOUBLE)
        return half == self.rounding or (is_wide and half < self.rounding)

    def half(self, value: float) -> float:
        """Return half the distance of a number to the next one of the type of stored numbers."""
        return float(self.halves(np.array(value)))

    def elementwise(self, function: Callable[..., BoundedPolynomial], *arrays: Array) -> Array:
        """Return a function of polynomials, element by element; an element that is a state becomes its atom."""
        given = list(map(self.lifted, arrays))
        compute = partial(self._elementwise, function, given)
        return self.rows.kept(compute, function, *map(self.rows.parts_of, given))

    def _elementwise(self, function: Callable[..., BoundedPolynomial], broad: list[Array]) -> Array:
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
        return all(self.algebra.equal(*parts) for _, _, parts in self.rows.runs(self.lifted(a), self.lifted(b)))

    # Products

    def product(self, a: Array, b: Array, width: int = 0) -> Array:
        """Return the product of matrices, [..., M, K] and [..., K, J]; new columns become blocks of `width`, or one
        block."""
        if self.axes.is_open(a.shape[-1]):
            raise UnprovenError("a sum over an open axis")
        batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        refuse_large(*batch, a.shape[-2], b.shape[-1])
        if not (is_symbolic(a) or is_symbolic(b)):
            if not (a.any() and b.any()):
                return np.asarray(np.matmul(a, b))
            a = self.lifted(a)
        if not is_symbolic(a):
            return np.swapaxes(self.product(np.swapaxes(b, -1, -2), np.swapaxes(a, -1, -2)), -1, -2)
        if a.shape[-1] != b.shape[-2]:
            raise UnprovenError("matrices do not fit")
        of_each = partial(self._symbolic_product if is_symbolic(b) else self._product, width or max(1, b.shape[-1]))
        if a.ndim == b.ndim == 2:
            return of_each(a, b)
        if b.ndim == 2:
            rows = self._in_shape(a, math.prod(a.shape[:-1]), len(b))
            return self._in_shape(of_each(rows, b), *a.shape[:-1], b.shape[1])
        a, b = (np.broadcast_to(m, (*batch, *m.shape[-2:])) for m in (a, b))
        shape = (*batch, a.shape[-2], b.shape[-1])
        parts = [of_each(a[index], b[index]) for index in np.ndindex(batch)]
        return np.stack(parts).reshape(shape) if parts else self.rows.zeros(shape)

    def _in_shape(self, rows: Array, *shape: int) -> Array:
        """Return rows along other axes."""
        self.rows.note_pieces(rows, [result := rows.reshape(shape)])
        return result

    def _symbolic_product(self, width: int, a: Array, b: Array) -> Array:
        depth = len(b)
        parts = {(first % depth, end - first) for first, end, _ in self.rows.runs(a)} if depth > 1 else ()
        if parts and all(self.rows.are_whole(b[k : k + size].T) for k, size in parts):
            return self._product(width, a, b)
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

    def _product(self, width: int, a: Array, matrix: Array) -> Array:
        """Return the product of rows with each column of a matrix, each of numbers or a polynomial."""
        key = type(self).halves, self.rounding, self.rows.parts_of(a), self.rows.place_of(matrix)
        return self.rows.kept(lambda: self._new_product(width, a, matrix), *key)

    def _new_product(self, width: int, a: Array, matrix: Array) -> Array:
        """Return a product that was not computed yet.

        The product of a part of a row that has atoms is an atom of that part and a block of columns.
        """
        (height, depth), zeros = a.shape, [(ZERO, matrix.shape[1])]
        terms: list[list[list[Part]]] = [[] for _ in range(height)]
        for first, end, (part,) in self.rows.runs(a) if depth else ():
            row, rows = first // depth, slice(first % depth, first % depth + end - first)
            if part.number is None or (part.terms and is_symbolic(matrix)):
                terms[row].append(self._of_atoms(width, part, matrix[rows]))
            elif part.terms:
                terms[row].append(self._of_numbers(*part.number, matrix[rows]))
        sums = zip_longest(*(of_row or [zeros] for of_row in terms), fillvalue=zeros)
        shape = height, matrix.shape[1]
        arrays = [self.rows.of(*chain.from_iterable(rows), shape=shape) for rows in sums]
        return self.sum(*arrays) if arrays else self.rows.zeros(shape)

    def _of_numbers(self, value: Numbers, bound: Numbers, matrix: Array) -> list[Part]:
        """Return the product of a row of numbers with each column."""
        values, bounds = (np.broadcast_to(x, len(matrix)) for x in (value, bound))
        products: list[Array] = []
        far: list[Array] = []
        for columns in columns_at_once(matrix):
            sizes, halves = np.abs(columns), self.halves(columns)
            products.append(columns @ values)
            far.append((halves + 2.0**-48 * sizes) @ np.abs(values) + (sizes + halves) @ bounds)
        return [(number(np.concatenate(products), np.concatenate(far)), matrix.shape[1])]

    def _of_atoms(self, width: int, row: BoundedPolynomial, matrix: Array) -> list[Part]:
        """Return the product of a row with each column of a matrix: atoms of the row and of blocks of columns."""
        n, of_row, values = 0, self.algebra.identity(row), list[Part]()
        for first, end, block, start, lanes in self.rows.columns_of(matrix, width):
            self.algebra.count(1)
            value = self.algebra.cut(self.algebra.atom(lanes, "dot", of_row, block), start, start + end - first)
            values += [(ZERO, first - n), (self.algebra.settled(value), end - first)]
            n = end
        return [*values, (ZERO, matrix.shape[1] - n)]
