"""Affine functions of the rows and states of a step, whose coefficients are weights; their layouts and rows."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import onnx_ir as ir

from rnn_lowering.emit.ops import Ops
from rnn_lowering.emit.tensor import Tensor
from rnn_lowering.facts.operators import TO_THE_END, axes_by_rule, integers_of, is_of_default_domain, parameter
from rnn_lowering.facts.size import ONE, Size, size
from rnn_lowering.limits import excess
from rnn_lowering.loops.raising.polynomials import (
    CLOSE,
    Atom,
    Column,
    Element,
    Monomial,
    NotRaised,
    Polynomial,
    Product,
    Variables,
)
from rnn_lowering.loops.raising.step import StepEvaluator
from rnn_lowering.loops.value_facts import bounds_of, takes_all
from rnn_lowering.types import Array

H, C = "h", "c"
"""The states, as places of coefficients."""


@dataclass
class Unknowns:
    """The variables of a step, by what they stand for.

    Attributes:
        variables: All.
        places: For each element of a state or source, what it belongs to, the sequence, and the unit.
        sizes: The number of units or features of each.
    """

    variables: Variables
    places: dict[tuple[Hashable, int], tuple[Hashable, int, int]] = field(default_factory=dict)
    sizes: dict[Hashable, int] = field(default_factory=dict)
    _rows: dict[tuple[Product, int], int | None] = field(default_factory=dict)
    _numbers: dict[Hashable, int] = field(default_factory=dict)

    def add(self, of: Hashable, name: Hashable, places: Array) -> None:
        """Add a tensor, whose elements [batch, units] have these numbers."""
        self.sizes[name] = places.shape[1]
        for (b, j), place in np.ndenumerate(places):
            self.places[of, int(place)] = name, b, j

    def place(self, variable: int) -> tuple[Hashable, int, int] | None:
        """Return what a variable is an element of, the sequence, and the unit."""
        element = self.variables[variable]
        return self.places.get((element.of, element.index)) if isinstance(element, Element) else None

    def spelling(self, variable: int, b: int) -> Hashable:
        """Return what a variable is, whatever the sequence; None if it belongs to another sequence."""
        held = self.variables[variable]
        if isinstance(held, Column):
            product = held.product
            if (product, b) not in self._rows:
                row = tuple(_spelling(self, p, b) for p in product.row)
                numbered = self._numbers.setdefault((id(product.matrix), row), len(self._numbers))
                self._rows[product, b] = None if None in row else numbered
            known = self._rows[product, b]
            return None if known is None else (known, held.column)
        place = self.place(variable)
        return None if place is None or place[1] != b else (place[0], place[2])

    def atom(self, monomial: Monomial) -> Atom | None:
        """Return the function that a monomial of one variable is."""
        found = self.variables[monomial[0]] if len(monomial) == 1 else None
        return found if isinstance(found, Atom) else None

    def is_atom(self, variable: int) -> bool:
        return isinstance(self.variables[variable], Atom)

    def is_state(self, variable: int, name: str, b: int, j: int) -> bool:
        """Whether a variable is this element of a state."""
        return self.place(variable) == (name, b, j)


@dataclass
class Affine:
    """Affine functions of a row and of the states, one for each unit.

    Attributes:
        constant: The constants [units].
        parts: By source or state, the coefficients [units, features].
    """

    constant: Array
    parts: dict[Hashable, Array]

    def part(self, name: Hashable, size: int) -> Array:
        return self.parts.get(name, np.zeros((len(self.constant), size)))

    def __neg__(self) -> Affine:
        return Affine(-self.constant, {name: -part for name, part in self.parts.items()})

    def equals(self, other: Affine) -> bool:
        """Whether all coefficients are as good as equal."""
        mine = {"": self.constant, **self.parts}
        others = {"": other.constant, **other.parts}
        pairs = [(mine.get(name), others.get(name)) for name in mine.keys() | others.keys()]
        return all(all_close(0.0 if a is None else a, 0.0 if b is None else b) for a, b in pairs)


def all_close(a: Array | float, b: Array | float) -> bool:
    """Whether numbers are equal but for rounding, compared with the largest."""
    return bool(np.all(np.abs(a - b) <= CLOSE * np.max(np.abs(b), initial=np.max(np.abs(a), initial=0.0))))


def affine(u: Unknowns, arguments: Array, gates: dict[tuple[int, int], int] | None = None) -> Affine:
    """Return polynomials [batch, units] as affine functions, the same for each sequence.

    Args:
        u: What the variables are.
        arguments: The polynomials.
        gates: If given, states are multiplied by functions: takes the function by sequence and unit of the state.

    Raises:
        NotRaised: They are not affine, not the same, or name another sequence.
    """
    first = _affine_row(u, arguments[0], 0, gates)
    spelled = [_spelling(u, p, 0) for p in arguments[0]]
    for b, row in enumerate(arguments[1:], 1):
        if gates is None and [_spelling(u, p, b) for p in row] == spelled:
            continue  # the same to the letter
        if not _affine_row(u, row, b, gates).equals(first):
            raise NotRaised("its weights differ between the sequences of the batch")
    return first


def _spelling(u: Unknowns, polynomial: Polynomial, b: int) -> Hashable:
    """Return a polynomial with the units of its variables in their place; None if it names another sequence."""
    found = {}
    for monomial, coefficient in polynomial.terms.items():
        names = tuple(u.spelling(variable, b) for variable in monomial)
        if None in names:
            return None
        found[names] = coefficient
    return frozenset(found.items())


def _affine_row(u: Unknowns, row: Array, b: int, gates: dict[tuple[int, int], int] | None) -> Affine:
    units = len(row)
    found = Affine(np.zeros(units), {})
    products: dict[Product, list[tuple[int, float, int]]] = {}

    def add(name: Hashable, rows: Array, columns: Array, numbers: Array) -> None:
        if name not in found.parts:
            reason = excess("a weight", 8 * units * u.sizes[name])
            if reason:
                raise NotRaised(reason)
            found.parts[name] = np.zeros((units, u.sizes[name]))
        part = found.parts[name]
        if len({*rows.flat}) == rows.size and len({*columns.flat}) == columns.size:
            part[rows, columns] += numbers
        else:
            np.add.at(part, (rows, columns), numbers)

    for j, polynomial in enumerate(row):
        for monomial, coefficient in polynomial.terms.items():
            held = u.variables[monomial[0]] if len(monomial) == 1 else None
            if not monomial:
                found.constant[j] += coefficient
            elif isinstance(held, Column):
                products.setdefault(held.product, []).append((j, coefficient, held.column))
            else:
                name, n = _factor(u, monomial, b, gates)
                add(name, np.array([j]), np.array([n]), np.array([coefficient]))
    for product, uses in products.items():
        js, factors, columns = (np.array(each) for each in zip(*uses, strict=True))
        numbers = factors[:, None] * product.matrix.astype(np.float64)[:, columns].T  # [uses, rows of the matrix]
        for name, (ks, ns, scales) in _sources(u, product, b, gates).items():
            if name == "":
                np.add.at(found.constant, js, (numbers[:, ks] * scales).sum(1))
            else:
                add(name, js[:, None], ns[None], numbers[:, ks] * scales)
    return found


def _sources(
    u: Unknowns, product: Product, b: int, gates: dict[tuple[int, int], int] | None
) -> dict[Hashable, tuple[Array, Array, Array]]:
    """Return, by state or source, the rows of the matrix, the units and the factors that a product combines."""
    found: dict[Hashable, list[tuple[int, int, float]]] = {}
    for k, polynomial in enumerate(product.row):
        for monomial, coefficient in polynomial.terms.items():
            name, n = _factor(u, monomial, b, gates) if monomial else ("", 0)
            found.setdefault(name, []).append((k, n, coefficient))
    return {
        name: (np.array(ks), np.array(ns), np.array(factors))
        for name, each in found.items()
        for ks, ns, factors in [zip(*each, strict=True)]
    }


def _factor(
    u: Unknowns, monomial: Monomial, b: int, gates: dict[tuple[int, int], int] | None
) -> tuple[Hashable, int]:
    """Return the state or source of a monomial, and the unit."""
    rest = monomial
    functions = [v for v in monomial if u.is_atom(v)]
    if gates is not None and len(monomial) == 2 and len(functions) == 1:
        rest = tuple(v for v in monomial if v != functions[0])
    place = u.place(rest[0]) if len(rest) == 1 else None
    if place is None:
        raise NotRaised("a gate is no activation of W x + R h + b")
    name, sequence, n = place
    if sequence != b:
        raise NotRaised("it mixes the sequences of the batch")
    if gates is not None and name == H:
        if rest is monomial:
            raise NotRaised("its hidden gate uses both R h and R (r h)")
        if gates.setdefault((b, n), functions[0]) != functions[0]:
            raise NotRaised("its reset gates differ between products")
    elif rest is not monomial:
        raise NotRaised("its reset gate is applied to more than the state")
    return name, n


# Where a tensor of a step has its sequences of the batch and its units. The step of a cell computes [batch,
# units]. Exporters also write [units], [units, batch], or axes of size 1 between.


@dataclass(frozen=True)
class Layout:
    """The axes of a tensor that hold the batch and the units.

    Attributes:
        shape: The shape, with numbers for open sizes.
        batch, units: The axis of each; None if there is none, since the size is 1.
    """

    shape: tuple[int, ...]
    batch: int | None
    units: int | None

    @property
    def _held(self) -> list[int]:
        """The axes that hold the batch and the units, where there are such axes."""
        return [axis for axis in (self.batch, self.units) if axis is not None]

    @property
    def _others(self) -> list[int]:
        """The other axes, whose size is 1."""
        return [axis for axis in range(len(self.shape)) if axis not in self._held]

    @property
    def _absent(self) -> list[int]:
        """Which axes of [batch, units] the tensor lacks."""
        return [n for n, axis in enumerate((self.batch, self.units)) if axis is None]

    def _is_swapped(self) -> bool:
        return self._held != sorted(self._held)

    @property
    def sizes(self) -> tuple[int, int]:
        """The number of sequences and of units."""
        return tuple(1 if axis is None else self.shape[axis] for axis in (self.batch, self.units))  # type: ignore[return-value]

    def matrix(self, array: Array) -> Array:
        """Return an array of this shape as [batch, units]."""
        return array.transpose([*self._others, *self._held]).reshape(self.sizes)

    def places(self) -> Array:
        """Return the number of each element of the tensor as [batch, units]."""
        return self.matrix(np.arange(int(np.prod(self.shape))).reshape(self.shape))

    def to_matrix(self, op: Ops, x: Tensor, lead: int) -> Tensor:
        """Return a tensor [lead..., *shape] as [lead..., batch, units]."""
        if self._others:
            x = op.squeeze(x, [lead + axis for axis in self._others])
        if self._is_swapped():
            x = op.transpose(x, [*range(lead), lead + 1, lead])
        return op.unsqueeze(x, [lead + n for n in self._absent]) if self._absent else x

    def from_matrix(self, op: Ops, x: Tensor, lead: int) -> Tensor:
        """Return a tensor [lead..., batch, units] as [lead..., *shape]."""
        if self._absent:
            x = op.squeeze(x, [lead + n for n in self._absent])
        if self._is_swapped():
            x = op.transpose(x, [*range(lead), lead + 1, lead])
        return op.unsqueeze(x, [lead + axis for axis in self._others]) if self._others else x


def layouts(shape: Sequence[int], batch: int | None = None, open_axes: Sequence[int] = ()) -> Iterator[Layout]:
    """Yield the layouts that a shape may have, the usual one first.

    Args:
        shape: The shape.
        batch: The number of sequences, if known.
        open_axes: Axes of open sizes, which are the batch.
    """
    dims = tuple(shape)
    axes = [axis for axis, size in enumerate(dims) if size != 1 or axis in open_axes]
    if len(axes) > 2:
        return
    found: list[tuple[int | None, int | None]] = []
    if len(axes) == 2:
        found = [(axes[0], axes[1]), (axes[1], axes[0])]
    elif axes:
        found = [(None, axes[0]), (axes[0], None)]
        if axes[0] < len(dims) - 1:  # [batch, 1]: as [1, units], sequences would share what is not finite
            found.reverse()
    else:
        found = [(None, None)]
    for each in found:
        layout = Layout(dims, *each)
        if any(axis is not None and axis != layout.batch for axis in open_axes):
            continue
        if batch is None or layout.sizes[0] == batch:
            yield layout


# Follows the rows that a step reads back to a sequence X, through one product with constants at most. What an
# exporter or `loops/hoisting` computes of all rows at once, as X W + b and its parts, belongs to the cell, whose
# weights are W and b. Only nodes that do the same with each row are followed.


_CALCULATES = ("Add", "Sub", "Mul", "Div")

_CUTS = ("Slice", "Split", "Gather")


@dataclass(frozen=True)
class Source:
    """A sequence that a step reads a row of.

    Attributes:
        value: The sequence.
        axis: Its axis of the steps.
        backwards: Whether step i reads row T - 1 - i.
        flips: The values that hold the same rows in the other order, and of what, from the rows on.
    """

    value: ir.Value
    axis: int = 0
    backwards: bool = False
    flips: tuple[tuple[ir.Value, ir.Value], ...] = field(default=(), compare=False)

    def of(self, value: ir.Value, axis: int | None = None) -> Source:
        """Return another sequence of the same rows."""
        return replace(self, value=value, axis=self.axis if axis is None else axis)

    def flipped(self, value: ir.Value) -> Source:
        """Return another sequence of the rows in the other order."""
        return replace(self, value=value, backwards=not self.backwards, flips=(*self.flips, (self.value, value)))


def follow_rows(rows: ir.Value, walk: RowWalk, *, flips: bool = True) -> Source:
    """Return the sequence behind rows [steps, ...].

    Args:
        rows: What a step reads a row of.
        walk: Follows its axis of the steps.
        flips: Whether to follow rows that are put in reverse order.
    """
    best = source = Source(rows)
    multiplied = False
    while (node := source.value.producer()) is not None:
        link = walk.behind(node, source)
        if link is None or (link.backwards and not flips):
            break
        product = node.op_type in ("MatMul", "Gemm")
        if multiplied and (product or node.op_type in _CALCULATES):
            break
        multiplied |= product
        flipped, source = link.backwards != source.backwards, link
        if flipped or product or (not multiplied and node.op_type in (*_CUTS, *_CALCULATES)):
            best = source
    return best


@dataclass(frozen=True)
class RowWalk:
    """Follows the axis of the steps from a value to what it is computed of.

    Attributes:
        outside: Computes values outside of the step.
    """

    outside: StepEvaluator

    def rank(self, value: ir.Value) -> int | None:
        """Return the rank of a value; None if unknown."""
        shape = self.outside.shape(value)
        return None if shape is None else len(shape)

    def numbers(self, value: ir.Value | None) -> Array | None:
        """Return the numbers of a constant; None for another value."""
        return self.outside.numbers(value)

    def behind(self, node: ir.Node, of: Source) -> Source | None:
        """Return the sequence that a node reads; None if the node does not do the same with each row."""
        if node.op_type not in _FOLLOWED or not is_of_default_domain(node):
            return None
        arrays = {slot: self.numbers(value) for slot, value in enumerate(node.inputs) if value is not None}
        slots = [slot for slot, array in arrays.items() if array is None]
        data = node.inputs[slots[0]] if len(slots) == 1 else None
        rank = None if data is None else self.rank(data)
        if data is None or rank is None or (slots[0] and node.op_type not in _OF_EITHER):
            return None
        shapes = {slot: [None] * rank if a is None else [*map(size, a.shape)] for slot, a in arrays.items()}
        if node.op_type == "MatMul" and len(shapes[1]) != _RANK_OF_MATRIX:
            return None
        return self._turned(node, data, of, rank) or self._along(node, slots[0], of, shapes)

    def _along(
        self, node: ir.Node, slot: int, of: Source, shapes: Mapping[int, Sequence[Size | None]]
    ) -> Source | None:
        """Return what a node reads along the axis of the steps, if its constants are the same in each step."""
        values, data = list(node.inputs), node.inputs[slot]
        axes = axes_by_rule(
            node, self.outside.opset, lambda v: shapes[values.index(v)], partial(self.integers, node)
        )
        axis = None if axes is None else axes.axis_behind(slot, of.axis)
        if axes is None or axis is None or data is None:
            return None
        places = {n: axes.axis_behind(n, of.axis) for n in shapes if n != slot}
        same = all(place is None or shapes[n][place] == ONE for n, place in places.items())
        return of.of(data, axis) if same else None

    def _turned(self, node: ir.Node, data: ir.Value, of: Source, rank: int) -> Source | None:
        """Return what a Slice or Gather takes all rows of, in the same or in the other order."""
        if node.op_type == "Slice":
            bounds = bounds_of(*(self.integers(node, name) for name in ("starts", "ends", "axes", "steps")))
            cuts = {axis % rank: bound for axis, *bound in bounds}
            start, end, stride = cuts.get(of.axis, (0, TO_THE_END, 1))
            if takes_all(start, end, stride):
                return of.of(data)
            last = start == -1 or start >= TO_THE_END
            return of.flipped(data) if last and stride == -1 and end <= -TO_THE_END and len(cuts) == 1 else None
        index = self.numbers(node.inputs[1]) if node.op_type == "Gather" else None
        if index is None or index.ndim != 1 or (node.attributes.get_int("axis", 0) or 0) % rank != of.axis:
            return None
        length = None if data.shape is None else data.shape[of.axis]
        flips = length == index.size and np.array_equal(index, np.arange(index.size)[::-1])
        return of.flipped(data) if flips else None

    def integers(self, node: ir.Node, name: str) -> list[int]:
        """Return a parameter that is a list of integers; none if it is absent or not known."""
        held = parameter(node, name, self.outside.opset)
        found = held if isinstance(held, ir.Attr) else self.numbers(held)
        return [] if found is None else integers_of(found)


_OF_EITHER = ("Add", "Sub", "Mul")
"""Operators that do the same with the rows of either input."""

_FOLLOWED = (*_CALCULATES, *_CUTS, "Gemm", "Identity", "MatMul", "Squeeze", "Transpose", "Unsqueeze")

_RANK_OF_MATRIX = 2


def row_of(evaluator: StepEvaluator, source: Source, rows: ir.Value, shape: Sequence[int]) -> Array | None:
    """Compute a row of `rows` from the same row of the source.

    Args:
        evaluator: Computes the nodes between both, and nothing else.
        source: The sequence.
        rows: What a step reads a row of.
        shape: The shape of the sequence, with numbers for open sizes, without the axis of the steps.
    """
    of = evaluator.variables.elements(source, shape)
    evaluator.bind(source.value, np.expand_dims(of, source.axis))
    for value, other in reversed(source.flips):
        evaluator.bind(value, evaluator.find(other))
    found = evaluator.find(rows)
    return None if found is None or found.dtype != object else found[0]
