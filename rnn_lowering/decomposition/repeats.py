"""Tile and Expand of axes of size 1, as Gather.

tract puts a product before the Tile or the Expand of its operand. It then rejects the model, or with an open length
returns one row without an error. A Gather stays where it is. OpenVINO repeats other rows where a Tile of open sizes
repeats several axes. tract loses an axis of a product of a fill whose size is open.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from rnn_lowering.decomposition.adapted_model import AdaptedModel
from rnn_lowering.facts.constants import bounds_at
from rnn_lowering.facts.known import KnownValues
from rnn_lowering.facts.node_outputs import MOST_SENT
from rnn_lowering.facts.numbers import evaluate
from rnn_lowering.facts.operators import TO_THE_END, in_order, is_of_default_domain, operator_of
from rnn_lowering.facts.size import Size
from rnn_lowering.facts.size import size as as_size
from rnn_lowering.model.model_sizes import VARIES
from rnn_lowering.types import Array, array_of

_Dim = int | ir.SymbolicDim

_ZERO = ir.tensor([0])

_CONSTANT_OF_SHAPE = 9
"""The first opset of the operator."""


def repeat_by_gather(model: AdaptedModel) -> int:
    """Write, in place, each Tile and Expand of a computed value that repeats axes of size 1 as Gather; return their
    number."""
    return _repeat_all(model.nodes("Tile", "Expand", since=_CONSTANT_OF_SHAPE, in_functions=False), model)


def repeat_several_apart(model: AdaptedModel) -> int:
    """Write, in place, each Tile of open sizes that repeats several axes as a Gather or Concat for each; return
    their number."""
    counts = {
        n: model.constant_of(n.inputs[1]) for n in model.nodes("Tile", in_functions=False) if len(n.inputs) == 2
    }
    found = {n: array_of(each).tolist() for n, each in counts.items() if each is not None and _is_open(n, model)}
    several = {n: each for n, each in found.items() if sum(count != 1 for count in each) > 1 and min(each) > 0}
    for node, each in several.items():
        value = node.inputs[0]
        assert value is not None
        for axis, count in enumerate(each):
            value = _copied(value, axis, count, node, model)
        model.replace(node, value)
    return len(several)


def _is_open(node: ir.Node, model: AdaptedModel) -> bool:
    shape = model.shape_of(node.inputs[0])
    return shape is None or not shape.is_static()


def _copied(value: ir.Value, axis: int, count: int, node: ir.Node, model: AdaptedModel) -> ir.Value:
    """Return so many copies of a value of a node that repeats it, one behind the other along an axis."""
    shape = model.shape_of(node.inputs[0])
    if count == 1:
        return value
    if shape is not None and shape[axis] == 1:
        return model.before(node, "Gather", [value, model.constant(node, [0] * count)], axis=axis)
    return model.before(node, "Concat", [value] * count, axis=axis)


def expand_fills(model: AdaptedModel) -> int:
    """Write, in place, each ConstantOfShape of floats and each Expand of one float, to open and known sizes, as an
    Expand of a constant, unless Scans read it alone; return their number."""
    numbers, fills = _Counts(model), model.nodes("ConstantOfShape", "Expand", in_functions=False)
    nodes = {node: _row_of(node, model, numbers) for node in fills}
    found = {node: row for node, row in nodes.items() if row is not None}
    for node, row in found.items():
        constant = model.constant(node, row, row.dtype)
        model.replace(node, model.before(node, "Expand", [constant, node.inputs[-1]]))
    return len(found)


def _row_of(node: ir.Node, model: AdaptedModel, numbers: _Counts) -> Array | None:
    """Return a fill with one row along each axis of open size; None if it stays as it is."""
    number, sizes = _fill(node, model), node.inputs[-1]
    scanned = all(use.node.op_type == "Scan" for use in node.outputs[0].uses())
    if scanned or sizes is None or number is None or number.dtype.kind != "f":
        return None
    known = [None if size is None else size.constant for size in numbers.of(sizes) or ()]
    row = [1 if size is None else int(size) for size in known]
    if None not in known or not any(known) or math.prod(row) > MOST_SENT:
        return None
    return np.full(row, number.reshape(()))


def _fill(node: ir.Node, model: AdaptedModel) -> Array | None:
    """Return the one number that a node repeats; None if it repeats others."""
    if node.op_type == "Expand":
        held = model.constant_of(node.inputs[0])
        return array_of(held) if held is not None and held.size == 1 else None
    value = node.attributes.get_tensor("value")
    return np.zeros(1, np.float32) if value is None else array_of(value)


def _repeat_all(nodes: Sequence[ir.Node], model: AdaptedModel) -> int:
    numbers, whole = _Counts(model), [node for node in nodes if len(node.inputs) == 2 and None not in node.inputs]
    return sum(_repeat(node, model, numbers) for node in whole)


class _Counts:
    """What integers that follow from constants and sizes are, of a model whose nodes are replaced by equal ones."""

    def __init__(self, model: AdaptedModel) -> None:
        self._model, self._done = model, set[ir.Value]()
        self._known = KnownValues({**model.model.opset_imports, "": model.opset}, any_size=True)

    def of(self, value: ir.Value) -> Sequence[Size | None] | None:
        """Return the elements of a vector, None for an unknown one; None if it is unknown how many there are."""
        for each in in_order(value, self._needed, self._done):
            self._follow(each)
        shape = self._known.static_shape(value)
        return None if shape is None or len(shape) != 1 else self._known.numbers(value) or [None] * shape[0]

    def size(self, dim: _Dim) -> Size:
        """Return a size; one without a name is another than all others."""
        if isinstance(dim, int):
            return as_size(dim)
        return self._known.unknown() if dim.value in (None, VARIES) else Size.symbol(str(dim.value))

    def _needed(self, value: ir.Value) -> Sequence[ir.Value | None]:
        node = value.producer()
        reads = node is not None and node.op_type not in ("Shape", "Size") and self._small(value) is None
        return node.inputs if node is not None and reads else ()

    def _small(self, value: ir.Value) -> ir.TensorProtocol | None:
        tensor = self._model.constant_of(value)
        return None if tensor is None or tensor.size > MOST_SENT else tensor

    def _follow(self, value: ir.Value) -> None:
        """Add what is known of a value, once that of what it follows from is added."""
        node, tensor = value.producer(), self._small(value)
        self._done.add(value)
        self._declare(value)
        if tensor is not None:
            self._known.contents[value] = array_of(tensor)
        elif node is not None and is_of_default_domain(node):
            if node.op_type in ("Shape", "Size") and node.inputs[0] is not None:
                self._declare(node.inputs[0])
            try:
                evaluate(self._known, node)
            except Exception:  # evaluation has no common error: nothing is known
                return

    def _declare(self, value: ir.Value) -> None:
        dtype, shape = self._model.dtype_of(value), self._model.shape_of(value)
        if dtype is not None:
            self._known.types[value] = dtype
        if shape is not None and value not in self._known.shapes:
            self._known.shapes[value] = tuple(map(self.size, shape))


def _repeat(node: ir.Node, model: AdaptedModel, numbers: _Counts) -> bool:
    """Put a Gather for each repeated axis of size 1 in the place of a node, with a node for the axes that may be
    repeated too; return False if there is no Gather."""
    x, counts = node.inputs
    shape = None if model.constant_of(x) is not None else model.shape_of(x)
    each = None if counts is None else numbers.of(counts)
    if x is None or counts is None or shape is None or each is None:
        return False
    new = max(len(each) - len(shape), 0)  # an Expand may add axes
    ones = _last_rows(x, model)
    sizes: list[_Dim] = [*[1] * new, *(1 if axis in ones else size for axis, size in enumerate(shape))]
    first = len(sizes) - len(each)
    repeated = [n for n, number in enumerate(each, first) if sizes[n] == 1 and number != as_size(1)]
    others = [n for n in range(first, len(sizes)) if sizes[n] != 1]
    open_axes = [n for n in others if not _keeps(node, numbers.size(sizes[n]), each[n - first])]
    if open_axes and not repeated:
        return False
    value = model.before(node, "Unsqueeze", [x], axes=[*range(new)]) if new else x
    for axis in repeated:
        zeros = _zeros(_At(counts, axis - first), each[axis - first], node, model, numbers)
        value = model.before(node, "Gather", [value, zeros], axis=axis)
    if open_axes:
        value = _repeat_others(value, [n in repeated for n in range(first, len(sizes))], node, model)
    elif value is x:
        value = model.before(node, "Identity", [x])
    after = {n: each[n - first] for n in repeated} | dict.fromkeys(open_axes)
    model.known[value] = _repeated(node, sizes, after, model)
    model.replace(node, value, [counts])
    return True


def _repeat_others(value: ir.Value, done: Sequence[bool], node: ir.Node, model: AdaptedModel) -> ir.Value:
    """Return a value repeated as often as a node does, but along the axes where that is done."""
    counts, ones = node.inputs[1], [model.constant(node, done, np.bool_), model.constant(node, 1)]
    return model.before(node, node.op_type, [value, model.before(node, "Where", [*ones, counts])])


def _repeated(node: ir.Node, sizes: list[_Dim], counts: Mapping[int, Size | None], model: AdaptedModel) -> ir.Value:
    """Return a value of the type and shape of a node's result, whose axes are repeated so often."""
    dtype, inferred = model.dtype_of(node.inputs[0]), model.shape_of(node.outputs[0])
    after: list[_Dim | None] = list(sizes)
    for axis, count in counts.items():
        number = None if count is None else count.constant
        known = inferred is not None and len(inferred) == len(sizes)
        after[axis] = int(number) if number is not None else inferred[axis] if inferred and known else None
    return ir.Value(type=None if dtype is None else ir.TensorType(dtype), shape=ir.Shape(after))


def _last_rows(value: ir.Value, model: AdaptedModel) -> list[int]:
    """Return the axes along which a value is the last row of another one, or nothing of nothing."""
    node, rank = value.producer(), len(model.shape_of(value) or ())
    if node is None or node.op_type != "Slice" or not is_of_default_domain(node):
        return []
    bounds = bounds_at(node, model.opset) or []
    return [axis % rank for axis, start, end, step in bounds if start == -1 and end >= TO_THE_END and step == 1]


def _keeps(node: ir.Node, size: Size, number: Size | None) -> bool:
    """Whether a node cannot repeat an axis of a size: Expand repeats those of size 1 only, to the given size."""
    if number == as_size(1):
        return True
    return node.op_type == "Expand" and (size.constant is not None or size == number)


class _At(NamedTuple):
    """An element of a vector."""

    vector: ir.Value
    place: int


def _zeros(at: _At, number: Size | None, node: ir.Node, model: AdaptedModel, numbers: _Counts) -> ir.Value:
    """Return for a node as many zeros as a vector says at a place."""
    if number is not None and number.constant is not None:
        return model.constant(node, [0] * int(number.constant))
    count, place = _source(at, number, model, numbers)
    if list(model.shape_of(count) or ()) != [1]:
        count = model.before(node, "Gather", [count, model.constant(node, [place])], axis=0)
    return model.before(node, "ConstantOfShape", [count], value=_ZERO)


def _source(at: _At, number: Size | None, model: AdaptedModel, numbers: _Counts) -> _At:
    """Return where an element comes from: before Concats, and before what leaves it as it is, such as an Abs."""
    node = at.vector.producer()
    if node is None or not is_of_default_domain(node):
        return at
    if node.op_type == "Concat":
        source = _part(node, at.place, model)
    elif operator_of(node).elementwise and node.op_type != "Cast" and number is not None:
        source = _unchanged(node, at.place, number, numbers)
    else:
        source = None
    return at if source is None else _source(source, number, model, numbers)


def _unchanged(node: ir.Node, place: int, number: Size, numbers: _Counts) -> _At | None:
    """Return the element of an input that has a number too, at the same place; None if there is none."""
    for vector in node.inputs:
        each = None if vector is None else numbers.of(vector)
        at = place if each is not None and len(each) > 1 else 0
        if vector is not None and each and each[at] == number:
            return _At(vector, at)
    return None


def _part(concat: ir.Node, place: int, model: AdaptedModel) -> _At | None:
    """Return the element of an input that a Concat has at a place; None if it is not known which."""
    for vector in concat.inputs:
        shape = model.shape_of(vector)
        if vector is None or shape is None or not shape.is_static():
            return None
        (length,) = shape.numpy()
        if place < length:
            return _At(vector, place)
        place -= length
    return None
