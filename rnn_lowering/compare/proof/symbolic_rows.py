"""Arrays whose elements are lanes of polynomials: `SymbolicRows` keeps what they stand for.

An element of a symbolic array names its row, a polynomial, and its lane. What an operator moves it moves whatever
it is, so NumPy does. What it computes it computes for all lanes of a row at once.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import accumulate, chain, groupby, pairwise
from typing import Any, NamedTuple

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
    number,
)
from rnn_lowering.types import Array, array_of

_ELEMENT = np.dtype("V8")
"""An element of a symbolic array: an integer, of which the lower half is the lane and the upper half the row; rows
of one element for all lanes are below 0. NumPy moves such elements, and computes nothing with them."""

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


class NodeCall(NamedTuple):
    """A node of a graph: its operator, the names of its inputs and outputs, and its attributes."""

    operator: str
    inputs: Sequence[str]
    outputs: Sequence[str]
    attributes: Mapping[str, Any]


def _call(node: onnx.NodeProto) -> NodeCall:
    name = node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    return NodeCall(name, list(node.input), list(node.output), attributes)


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


def _names(columns: Array) -> Iterator[Hashable]:
    """Yield what equal columns of numbers share, whatever their type; None for zeros."""
    singles = columns.astype(np.float32)
    as_singles, are_given = (singles == columns).all(1).tolist(), (columns != 0).any(1).tolist()
    for n, (as_single, is_given) in enumerate(zip(as_singles, are_given, strict=True)):
        numbers = singles[n] if as_single else columns[n]
        yield (as_single, blake2b(numbers, digest_size=16).digest()) if is_given else None


def _lanes(array: Array) -> int:
    return array.shape[-1] or 1 if array.ndim else 1


def _codes(array: Array) -> Array:
    """Return elements as integers, row by row: the next lane is one more, the same in all lanes is below 0."""
    return np.ascontiguousarray(array).view(np.int64).reshape(-1, _lanes(array))


def _from(first: int, lanes: int) -> Array:
    """Return elements as integers."""
    return np.arange(first, first + lanes) if first >= 0 else np.full(lanes, first)


def _ends(codes: Array) -> list[int]:
    """Return where lanes stop to follow each other."""
    are_ends = np.empty(codes.shape, np.bool_)
    are_ends[:, -1] = True
    nexts = codes[:, 1:]
    np.not_equal(nexts - codes[:, :-1], nexts >= 0, out=are_ends[:, :-1])
    return (are_ends.ravel().nonzero()[0] + 1).tolist()


Part = tuple[BoundedPolynomial, int]
"""A polynomial, and how many lanes it has."""


class Parts:
    """What a symbolic array is made of. Arrays of the same shape and elements share one, in all runs of a proof.

    Attributes:
        ends: Where each part ends in the flattened array.
        values: The polynomial of each part.
    """

    __slots__ = ("ends", "values")

    def __init__(self, ends: Sequence[int], values: Sequence[BoundedPolynomial]) -> None:
        self.ends, self.values = ends, values


_NONE, _NO_CODES = (-1, np.empty(0), Parts((), ())), np.empty(0, np.int64)


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
        self._arrays: dict[Hashable, tuple[int, Array, Parts]] = {}
        self._columns: dict[Hashable, tuple[int, int]] = {}
        self._sizes: list[int] = []
        self._of_matrices: dict[Hashable, list[Columns]] = {}
        self._places: dict[Hashable, Array] = {}
        self._constants: dict[int, tuple[onnx.TensorProto, Array]] = {}
        self._calls: dict[int, tuple[onnx.GraphProto, list[NodeCall]]] = {}
        self._parts_of: dict[int, tuple[Array, Parts]] = {}
        self._known_parts: dict[Hashable, Parts] = {}
        self._repetitions = 0

    def begin_run(self) -> None:
        """Forget which arrays and states there are. Equal polynomials keep their atoms."""
        self._parts_of = {}
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

    def calls(self, graph: onnx.GraphProto) -> list[NodeCall]:
        """Return the nodes of a graph."""
        if id(graph) not in self._calls:
            self._calls[id(graph)] = graph, list(map(_call, graph.node))
        return self._calls[id(graph)][1]

    def of(self, *parts: Part, shape: Sequence[int]) -> Array:
        """Return the elements that polynomials stand for as an array; none of them is in two rows."""
        firsts = [self._first(value) for value, lanes in parts if lanes]
        lanes = [lanes for _, lanes in parts if lanes]
        are_rows = len(lanes) == math.prod(shape[:-1])
        if are_rows and len(lanes) > 1:
            column = np.array(firsts, np.int64)[:, None]
            codes = column + (column >= 0) * np.arange(lanes[0])
        else:
            ranges = list(map(_from, firsts, lanes))
            codes = ranges[0] if len(ranges) == 1 else np.concatenate([_NO_CODES, *ranges])
        array = codes.view(_ELEMENT).reshape(shape)
        if are_rows or not any(code == last < 0 for last, code in pairwise(firsts)):  # one number is one part
            self._note(array, [*accumulate(lanes)], [self._rows[abs(code >> 32)] for code in firsts])
        return array

    def _note(self, array: Array, ends: Sequence[int], values: Sequence[BoundedPolynomial]) -> None:
        """Note the parts of an array."""
        self._parts_of[id(array)] = array, self._known_parts.setdefault(contents(array), Parts(ends, values))

    def split(self, array: Array, sizes: Sequence[int]) -> list[Array]:
        """Return pieces of the rows along the last axis of an array, of which the parts are known too."""
        starts, width = [0, *accumulate(sizes)], array.shape[-1]
        pieces = [array[..., start : start + size] for start, size in zip(starts, sizes, strict=False)]
        of_pieces: list[list[Part]] = [[] for _ in sizes]
        for first, end, (value,) in self.runs(array):
            n = bisect_right(starts, first % width) - 1
            if end - first > starts[n + 1] - first % width:
                return pieces
            of_pieces[n].append((value, end - first))
        for piece, parts in zip(pieces, of_pieces, strict=True):
            self._note(piece, [*accumulate(lanes for _, lanes in parts)], [value for value, _ in parts])
        return pieces

    def _first(self, value: BoundedPolynomial) -> int:
        """Return the first element of a polynomial as an integer."""
        code = self._firsts.get(value)
        if code is None:
            is_one, atom = self.algebra.lanes(value) == 1, value.atom
            row = self._row(value, atom or (value.number if is_one else None) or value)
            code = self._firsts[value] = (-row if is_one else row) << 32
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
        named, array, parts = self._arrays.get(key, _NONE)
        if named != self.algebra.named:
            if named < 0 or any(self.algebra.settled(value) is not value for value in parts.values):
                array = compute()
                parts = self.parts_of(array)
            self._arrays[key] = self.algebra.named, array, parts
        view = array.view()  # of which moves and marks are known for itself
        self._parts_of[id(view)] = view, parts
        return view

    def symbols(self, shape: Sequence[int], *name: Hashable) -> Array:
        """Return an array of new symbols; what is along the last axis is a row."""
        *rows, lanes = shape or (1,)
        symbols = [self.algebra.symbol(lanes, (*name, *index)) for index in np.ndindex(*rows)]
        return self.of(*((symbol, lanes) for symbol in symbols), shape=shape)

    def entries(self, array: Array) -> list[Array]:
        """Return the entries along the first axis of an array; the parts of symbolic ones are known too."""
        entries = [array[n, ...] for n in range(len(array))]
        if is_symbolic(array) and array.ndim > 1:
            self.note_pieces(array, entries)
        return entries

    def note_pieces(self, array: Array, pieces: Sequence[Array]) -> None:
        """Note the parts of pieces of an array, which have its rows in the same order."""
        parts, first, before = self.parts_of(array), 0, 0
        for piece in pieces:
            end = bisect_right(parts.ends, before + piece.size)
            self._note(piece, [n - before for n in parts.ends[first:end]], parts.values[first:end])
            first, before = end, before + piece.size

    def zeros(self, shape: Sequence[int]) -> Array:
        """Return an array of zeros."""
        return np.full(tuple(shape), self.of((ZERO, 1), shape=(1,))[0])

    def of_numbers(self, values: Array, bounds: Array) -> Array:
        """Return numbers, with their bounds, as elements."""
        lanes = _lanes(values)
        rows = zip(values.reshape(-1, lanes), bounds.reshape(-1, lanes), strict=True)
        return self.of(*((number(*row), lanes) for row in rows), shape=values.shape)

    def runs(self, *arrays: Array) -> Iterator[tuple[int, int, tuple[BoundedPolynomial, ...]]]:
        """Return where lanes follow each other in all of these flattened arrays, and their polynomials."""
        found = [self.parts_of(array) for array in arrays]
        ends, values = found[0].ends, [parts.values for parts in found]
        if any(parts.ends != ends for parts in found[1:]):
            ends = sorted(set(ends).union(*(parts.ends for parts in found[1:])))
            values = [self._values(_codes(array), ends) for array in arrays]
        return zip((0, *ends), ends, zip(*values, strict=True), strict=False)

    def parts_of(self, array: Array) -> Parts:
        """Return the parts of an array."""
        known = self._parts_of.get(id(array))
        if known is None:
            key = contents(array)
            if key not in self._known_parts:
                codes = _codes(array)
                ends = _ends(codes)
                self._known_parts[key] = Parts(ends, self._values(codes, ends))
            known = self._parts_of[id(array)] = array, self._known_parts[key]
        return known[1]

    def _values(self, codes: Array, ends: Sequence[int]) -> list[BoundedPolynomial]:
        """Return the polynomials of parts, which end in the rows of an array at these places."""
        firsts = [0, *ends][:-1]
        return [
            self._part(code, end - first)
            for code, first, end in zip(codes.ravel()[firsts].tolist(), firsts, ends, strict=True)
        ]

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

    def columns_of(self, matrix: Array, width: int) -> list[Columns]:
        """Return the columns of a matrix that are not 0, as parts of blocks of columns that were seen before, or of
        new ones, which begin at multiples of a width."""
        place = self.place_of(matrix)
        if place not in self._of_matrices:
            self.algebra.count(matrix.size // 1000)
            if is_symbolic(matrix):
                names = self._names_of_symbols(matrix)
            else:
                names = [*chain.from_iterable(map(_names, columns_at_once(matrix)))]
            self._of_matrices[place] = list(self._parts_of_blocks(names, width))
        return self._of_matrices[place]

    def _names_of_symbols(self, matrix: Array) -> list[Hashable]:
        """Return what equal columns that are whole polynomials share; None for zeros."""
        columns = (part for _, _, (part,) in self.runs(matrix.T))
        return [(len(matrix), self.algebra.identity(part)) if part.terms else None for part in columns]

    def _parts_of_blocks(self, names: Sequence[Hashable], width: int) -> Iterator[Columns]:
        new = [name is not None and name not in self._columns for name in names]
        for (is_new, _), group in groupby(range(len(names)), lambda n: (new[n], n // width)):
            if is_new:
                block = [names[n] for n in group]
                for lane, name in enumerate(block):
                    self._columns.setdefault(name, (len(self._sizes), lane))
                self._sizes.append(len(block))
        places = [self._columns.get(name, (-1, 0)) for name in names]
        starts = [n for n, (b, lane) in enumerate(places) if n == 0 or places[n - 1] != (b, lane - 1)]
        for first, end in zip(starts, [*starts[1:], len(places)], strict=True):
            number_of_block, start = places[first]
            if number_of_block >= 0:
                yield Columns(first, end, number_of_block, start, self._sizes[number_of_block])
