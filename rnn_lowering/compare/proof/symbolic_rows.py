"""Arrays whose elements are lanes of polynomials: `SymbolicRows` keeps what they stand for.

An element of a symbolic array names its row, a polynomial, and its lane. What an operator moves it moves whatever
it is, so NumPy does. What it computes it computes for all lanes of a row at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from hashlib import blake2b
from itertools import groupby
from typing import NamedTuple

import numpy as np
import onnx
import onnx_ir as ir

from rnn_lowering.compare.proof.polynomials import (
    ZERO,
    Algebra,
    BoundedPolynomial,
    Effort,
    UnprovenError,
    number,
)
from rnn_lowering.types import Array, array_of

_ELEMENT = np.dtype([("lane", "<i4"), ("row", "<i4")])
"""An element of a symbolic array. Rows of one element for all lanes are below 0."""

_MOST_AT_ONCE = 1 << 24

_COLUMNS_AT_ONCE = 1 << 18
"""Numbers of a matrix that are read at once."""

_MOST_KEPT = 1 << 12
"""So many bytes of an array are kept as they are."""


def refuse_large(*sizes: int) -> None:
    """Raise if an array of these sizes would take much memory: what is proven may come from a file."""
    if math.prod(sizes) > _MOST_AT_ONCE:
        raise UnprovenError("too large")


def is_symbolic(array: Array) -> bool:
    """Whether elements are polynomials."""
    return array.dtype == _ELEMENT


def numbers_of(tensor: onnx.TensorProto) -> Array:
    """Return the numbers of a tensor; large ones stay in their file until they are computed with."""
    return of_known_type(array_of(ir.serde.deserialize_tensor(tensor, "/")))


def of_known_type(array: Array) -> Array:
    """Return numbers as those of a type of NumPy's own: a small float as a float64."""
    if array.dtype.kind in "OSUc":
        raise UnprovenError("a constant is no real number")
    return array if array.dtype.kind in "biuf" else array.astype(np.float64)


def floats(array: Array) -> Array:
    """Return numbers as float64."""
    if array.dtype == object:
        raise UnprovenError("a size is computed with")
    return np.asarray(array, np.float64)


def contents(array: Array) -> Hashable:
    """Return what arrays of the same elements share."""
    whole = array.tobytes()
    return array.shape, whole if len(whole) < _MOST_KEPT else blake2b(whole, digest_size=16).digest()


def columns_at_once(matrix: Array) -> Iterator[Array]:
    """Yield the columns of a matrix as the rows of blocks in float64, of which the whole may be too large."""
    width = max(1, _COLUMNS_AT_ONCE // max(1, len(matrix)))
    for first in range(0, matrix.shape[1], width):
        yield np.ascontiguousarray(floats(matrix[:, first : first + width]).T)


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

    def __init__(self, effort: Effort, slack: float) -> None:
        self.algebra = Algebra(effort, slack)
        self._rows: list[BoundedPolynomial] = [ZERO]
        self._known: dict[Hashable, int] = {}
        self._firsts: dict[BoundedPolynomial, int] = {}
        self._parts: dict[tuple[int, int], BoundedPolynomial] = {}
        self._results: dict[Hashable, BoundedPolynomial] = {}
        self._arrays: dict[Hashable, tuple[int, Array, list[BoundedPolynomial]]] = {}
        self._columns: dict[Hashable, tuple[int, int]] = {}
        self._sizes: list[int] = []
        self._of_matrices: dict[Hashable, list[Columns]] = {}
        self._places: dict[Hashable, Array] = {}
        self._constants: dict[int, tuple[onnx.TensorProto, Array]] = {}
        self._rows_of: dict[int, tuple[Array, list[BoundedPolynomial]]] = {}
        self._repetitions = 0

    def begin_run(self) -> None:
        """Forget which arrays and states there are. Equal polynomials keep their atoms."""
        self._rows_of = {}
        self.algebra.begin_run()

    def fresh(self) -> int:
        """Return a name that no other repetition has, not even one of the same node."""
        self._repetitions += 1
        return self._repetitions

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

    def kept(self, compute: Callable[[], Array], *key: Hashable) -> Array:
        """Return an array that the runs of a proof compute again and again, until a state in it gets a name."""
        named, array, values = self._arrays.get(key, (-1, None, []))
        is_old = named != self.algebra.named and any(self.algebra.settled(value) is not value for value in values)
        if array is None or is_old:
            array = compute()
            values = [value for _, _, (value,) in self.runs(array)]
        self._arrays[key] = self.algebra.named, array, values
        view = array.view()  # of which moves and marks are known for itself
        return self._with_rows(view, values) if len(values) * _lanes(array) == array.size else view

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

    def are_whole(self, columns: Array) -> bool:
        """Whether the rows of a symbolic array are polynomials, not put together from parts of several."""
        return sum(1 for _ in self.runs(columns)) == len(columns)

    def place_of(self, matrix: Array) -> Hashable:
        """Return where a matrix is, and keep it there."""
        place = matrix.__array_interface__["data"][0], matrix.shape, matrix.strides, matrix.dtype
        self._places.setdefault(place, matrix)
        return place

    def columns_of(self, matrix: Array) -> list[Columns]:
        """Return the columns of a matrix that are not 0, as parts of blocks of columns that were seen before."""
        place = self.place_of(matrix)
        if place not in self._of_matrices:
            self.algebra.count(matrix.size // 1000)
            names = self._names_of_symbols(matrix) if is_symbolic(matrix) else self._names(matrix)
            self._of_matrices[place] = list(self._parts_of_blocks(names))
        return self._of_matrices[place]

    def _names(self, matrix: Array) -> list[Hashable]:
        """Return what equal columns of numbers share; None for zeros."""
        columns = (column for block in columns_at_once(matrix) for column in block)
        return [blake2b(column, digest_size=16).digest() if column.any() else None for column in columns]

    def _names_of_symbols(self, matrix: Array) -> list[Hashable]:
        """Return what equal columns that are whole polynomials share; None for zeros."""
        columns = (part for _, _, (part,) in self.runs(matrix.T))
        return [(len(matrix), self.algebra.identity(part)) if part.terms else None for part in columns]

    def _parts_of_blocks(self, names: Sequence[Hashable]) -> Iterator[Columns]:
        for is_new, group in groupby(names, lambda name: name is not None and name not in self._columns):
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
