"""Nodes that a runtime computes wrongly beside certain others: something is put between them.

onnx2tf 2.6.9 writes a model that LiteRT rejects where a sum is both an operand of a sum and in a Concat before its
other operand: between both sums comes a Reshape to the same shape. It loses an output of the model that a Relu or
another node that it fuses reads too: such an output becomes a sum with 0.

MNN 3.6.1 gives an output of the model that is a Conv along one axis an axis of 1 at its end. It returns an output
that nodes read too in another shape, or not at all.

MNN makes a Gelu of x * (Erf(x / sqrt 2) + 1) / 2, and computes that by its approximation with Tanh, which is off by
up to 5e-4. Of a difference, Erf(...) - -1, it makes none.

OpenCV makes one of two Reshapes in a row, in which a 0 means a size of what the first one reads. It leaves out a
Cast behind a Mul of floats and a constant, and takes the Log of a sum of an Exp and any number for a Softplus.

OpenVINO takes a product with a Concat that has a negative part for a rotary embedding, whatever the tables are.

ncnn takes batches out of tensors: a Conv, an embedding or a norm makes a batch of its first axis there, and so of
that axis wherever it goes. ncnn then computes each row by itself, also what acts along that axis, and each row
meets all rows of a constant. Where rows of one batch meet, a tensor of one axis is put in between: it has no batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache, partial
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from rnn_lowering.decomposition.adapted_model import AdaptedModel
from rnn_lowering.errors import UnsupportedError
from rnn_lowering.facts.axes import Axes, Label, Mixed
from rnn_lowering.facts.constants import integers_at
from rnn_lowering.facts.operators import (
    DEFAULT_DOMAIN,
    TO_THE_END,
    axes_by_rule,
    operator_of,
    parameter,
    reached,
)
from rnn_lowering.model.scopes import origin_of
from rnn_lowering.types import array_of

_FUSED = ("Clip", "LeakyRelu", "PRelu", "Relu")
"""Operators that MNN computes with the Conv before them."""

_MAX_OF_ANY = 8
"""The opset from which on Max takes any number of inputs of any shape."""


def end_convolutions(model: AdaptedModel) -> int:
    """Put a Max behind each output of a model that is a Conv along one axis, in place; return their number."""
    count = 0
    for value in list(model.graph.outputs) if model.opset >= _MAX_OF_ANY else ():
        node = value.producer()
        while node is not None and node.op_type in _FUSED and node.inputs[0] is not None:
            node = node.inputs[0].producer()
        weights = node.inputs[1] if node is not None and node.op_type in ("Conv", "ConvTranspose") else None
        if len(model.shape_of(weights) or ()) == len("OIW"):
            model.behind(value, "Max", [value], suffix="Conv")
            count += 1
    return count


def compute_copies(model: AdaptedModel) -> None:
    """Make a Max of each Identity of floats that is an output of a model, in place.

    An output that has no numbers stays: ExecuTorch aborts at a Max of it.
    """
    for value in list(model.graph.outputs) if model.opset >= _MAX_OF_ANY else ():
        node = value.producer()
        if node is None or node.op_type != "Identity" or node.domain not in DEFAULT_DOMAIN:
            continue
        if value.shape is not None and 0 in value.shape:
            continue
        if isinstance(value.type, ir.TensorType) and value.dtype == ir.DataType.FLOAT:
            new = ir.node("Max", [node.inputs[0], node.inputs[0]], name=node.name)
            model.graph.insert_after(node, new)
            model.replace(node, new.outputs[0])


_MATRIX = 2
"""The axes of a matrix, which no Conv takes."""


def set_sums_apart(model: AdaptedModel) -> int:
    """Put a Reshape between each Add and its operands that are sums which a Concat takes too, in place; return
    their number."""
    count = 0
    for node in model.nodes("Add") if model.nodes("Conv", "ConvTranspose") else ():
        for slot, value in enumerate(node.inputs):
            sizes = model.shape_of(value)
            if value is None or sizes is None or len(sizes) <= _MATRIX or not sizes.is_static():
                continue
            if _is_joined_sum(value):
                node.replace_input_with(slot, model.before(node, "Reshape", [value], shape=list(sizes)))
                count += 1
    return count


def _is_joined_sum(value: ir.Value) -> bool:
    """Whether a value follows element by element from a sum that a Concat takes, also element by element."""

    def before(value: ir.Value) -> Sequence[ir.Value | None]:
        node = value.producer()
        return node.inputs if node is not None and _passes(node) else ()

    def behind(value: ir.Value) -> list[ir.Value]:
        return [use.node.outputs[0] for use in value.uses() if _passes(use.node)]

    sums = [v for v in reached([value], before) if (node := v.producer()) is not None and node.op_type == "Add"]
    return any(use.node.op_type == "Concat" for v in reached(sums, behind) for use in v.uses())


def _passes(node: ir.Node) -> bool:
    return operator_of(node).elementwise and node.op_type != "Add"


def part_reshapes(model: AdaptedModel) -> int:
    """Put an Identity between each Reshape that keeps a size (0) and the one it reads; return their number."""
    count = 0
    for node in model.nodes("Reshape"):
        x, shape = node.inputs[0], parameter(node, "shape", model.opset)
        before = None if x is None else x.producer()
        numbers = model.constant_of(shape) if isinstance(shape, ir.Value) else None
        if (
            before is not None
            and before.op_type == "Reshape"
            and numbers is not None
            and 0 in array_of(numbers)
            and not node.attributes.get_int("allowzero", 0)
        ):
            node.replace_input_with(0, model.before(node, "Identity", [x]))
            count += 1
    return count


def part_pairs(model: AdaptedModel) -> int:
    """Put an Identity between each Cast and the Mul of floats that it reads, and each Log and the sum of an Exp and
    another number than 1; return their number."""
    nodes = [node for node in model.nodes("Cast", "Log") if _joins(node, model)]
    for node in nodes:
        node.replace_input_with(0, model.before(node, "Identity", node.inputs[:1]))
    return len(nodes)


def _joins(node: ir.Node, model: AdaptedModel) -> bool:
    x = node.inputs[0]
    before, dtype = None if x is None else x.producer(), model.dtype_of(x)
    if before is None or dtype is None or not dtype.is_floating_point():
        return False
    if node.op_type == "Cast":
        return before.op_type == "Mul" and dtype != node.attributes.get_int("to", 0)
    if before.op_type != "Add" or not any(_is_exponential(value) for value in before.inputs):
        return False
    constants = [numbers for value in before.inputs if (numbers := model.constant_of(value)) is not None]
    return not any((array_of(numbers) == 1).all() for numbers in constants)


def _is_exponential(value: ir.Value | None) -> bool:
    node = None if value is None else value.producer()
    return node is not None and node.op_type == "Exp"


def subtract_from_erf(model: AdaptedModel) -> int:
    """Write each sum of an Erf and a constant as a difference, in place; return their number."""
    count = 0
    for node in model.nodes("Add"):
        erf, number = node.inputs if model.constant_of(node.inputs[1]) is not None else node.inputs[::-1]
        source, tensor = None if erf is None else erf.producer(), model.constant_of(number)
        if tensor is not None and source is not None and source.op_type == "Erf":
            negative = model.constant(node, -tensor.numpy(), tensor.dtype.numpy())
            model.replace(node, model.before(node, "Sub", [erf, negative]), [number])
            count += 1
    return count


def sign_rotations(model: AdaptedModel) -> int:
    """Let a product with signs take the place of the Neg in each Concat that is multiplied, in place; return how
    many were changed."""
    return sum(_sign(node, model) for node in model.nodes("Concat"))


def _sign(node: ir.Node, model: AdaptedModel) -> bool:
    """Put a Concat and a product with 1 and -1 in the place of a Concat; return False if nothing is negative."""
    sources = [None if value is None else value.producer() for value in node.inputs]
    negative = [source is not None and source.op_type == "Neg" for source in sources]
    axis, shapes = node.attributes.get_int("axis", 0), [model.shape_of(value) for value in node.inputs]
    sizes = [shape[axis] for shape in shapes if shape is not None]
    known = [size for size in sizes if isinstance(size, int)]
    dtype = model.dtype_of(node.outputs[0])
    is_read = any(use.node.op_type == "Mul" for use in node.outputs[0].uses())
    if not any(negative) or not is_read or len(known) < len(shapes) or dtype is None:
        return False
    rank = len(shapes[0] or ())
    signs = np.repeat(np.where(negative, -1, 1), known)
    row = signs.reshape([-1 if n == axis % rank else 1 for n in range(rank)])
    parts = [s.inputs[0] if s and n else v for v, s, n in zip(node.inputs, sources, negative, strict=True)]
    joined, unused = model.before(node, "Concat", parts, axis=axis), list(node.inputs)
    signed = model.before(node, "Mul", [joined, model.constant(node, row, dtype.numpy(), "signs")])
    model.replace(node, signed, unused)
    return True


def swap_differences(model: AdaptedModel) -> int:
    """Swap the terms of each sum of a product and a product with a Neg, in place; return their number."""
    nodes = [node for node in model.nodes("Add") if _is_product(node.inputs[0]) and _has_negative(node.inputs[1])]
    for node in nodes:
        first, second = node.inputs
        node.replace_input_with(0, second)
        node.replace_input_with(1, first)
    return len(nodes)


def _is_product(value: ir.Value | None) -> bool:
    node = None if value is None else value.producer()
    return node is not None and node.op_type == "Mul"


def _has_negative(value: ir.Value | None) -> bool:
    """Whether a value is a product with a Neg."""
    node = None if value is None or not _is_product(value) else value.producer()
    factors = [] if node is None else [each.producer() for each in node.inputs if each is not None]
    return any(factor is not None and factor.op_type == "Neg" for factor in factors)


def part_outputs(model: AdaptedModel) -> int:
    """Give each output that nodes read too a Transpose that moves nothing, in place; return their number."""
    count = 0
    for value in dict.fromkeys(model.graph.outputs):
        uses = list(value.uses()) if value.producer() is not None else []
        shape = model.shape_of(value) if uses else None
        if shape is not None and len(shape):
            model.behind(value, "Transpose", [], {"perm": [*range(len(shape))]}, suffix="read")
            for use in uses:
                use.node.replace_input_with(use.idx, value)
            count += 1
    return count


_IN_PLACE = ("Clip", "Dropout", "Identity", "Max", "Min", "Relu", "Reshape")
"""Operators that onnx2tf may fuse with the node before them, or leave out: that node's output has their name then.
Of Max and Min with a number it makes a Relu or Clip."""

_SUMS_OF_NUMBERS = 7
"""The opset from which on Add takes a single number."""


def sum_outputs(model: AdaptedModel) -> int:
    """Add 0 to each output that onnx2tf would lose, behind what nodes read, in place; return their number."""
    count = 0
    for value in dict.fromkeys(model.graph.outputs) if model.opset >= _SUMS_OF_NUMBERS else ():
        node, dtype, uses = value.producer(), model.dtype_of(value), list(value.uses())
        if node is None or dtype not in _SUMMED or not any(u.node.op_type in _IN_PLACE for u in uses):
            continue
        zero = model.constant(node, 0, dtype.numpy(), "zero")
        model.behind(value, "Add", [zero], suffix="read")
        for use in uses:
            use.node.replace_input_with(use.idx, value)
        count += 1
    return count


_SUMMED = (ir.DataType.FLOAT, ir.DataType.INT32, ir.DataType.INT64)

# Batches


class _BatchAxis(NamedTuple):
    """An axis of a value that may be a batch."""

    value: ir.Value
    axis: int


def set_batches_apart(model: AdaptedModel) -> int:
    """Put tensors of one axis between operators of batches and what joins rows of a batch, in place; return how
    many values are set apart."""
    batches = _Batches(model)
    parted = [
        (nodes, value, batches.sizes(value)) for value in batches.values() if (nodes := batches.nodes_apart(value))
    ]
    for each in parted:
        _set_apart(*each, model)
    return len(parted)


def _set_apart(
    nodes: Sequence[ir.Node], value: ir.Value, shape: Sequence[int | ir.SymbolicDim], model: AdaptedModel
) -> None:
    """Let nodes read a value through a tensor of one axis.

    Raises:
        UnsupportedError: Two of its sizes are unknown.
    """
    sizes, first = [size if isinstance(size, int) else -1 for size in shape], nodes[0]
    if sizes.count(-1) > 1:
        reason = f"ncnn takes the batch out of what it reads, '{value.name}', of which several sizes are not known"
        raise UnsupportedError(
            reason,
            hint="fix the sizes of the inputs (--set-dim, --set-shape), or use another runtime",
            node=origin_of(first),
        )
    before = partial(model.before, first)
    flat = before("Reshape", [value], shape=[-1])
    # Without a node in between, pnnx leaves out both Reshapes.
    cuts = [before("Slice", [flat], starts=[a], ends=[b], axes=[0]) for a, b in [(0, 1), (1, TO_THE_END)]]
    whole = before("Reshape", [before("Concat", cuts, axis=0)], shape=sizes)
    for node in nodes:
        for slot, read in enumerate(node.inputs):
            if read is value:
                node.replace_input_with(slot, whole)


class _Batches:
    """The axes of the values of a model that stays as it is, those together that are one batch if one is."""

    def __init__(self, model: AdaptedModel) -> None:
        self._model, self._graph, self._tensor = model, model.graph, cache(model.constant_of)
        self._next: dict[_BatchAxis, _BatchAxis] = {}
        self._starting = {node for node in self._graph if self._starts(node)}
        acted = list[_BatchAxis]()
        for node in self._graph:
            for places, acts in () if node in self._starting else self._met(node):
                self._join(places)
                acted += places if acts else []
        batches = {self._first(_BatchAxis(value, 0)) for node in self._starting for value in self._rows(node)}
        self._joined = {self._first(place) for place in acted if self._is_long(place)}
        self._joined |= {self._first(place) for place in self._next if self._is_constant(place)}
        self._joined |= {first for value in self.values() for first in self._misplaced(value, batches)}
        self._joined &= batches

    def values(self) -> Iterator[ir.Value]:
        """Yield the values of at least two axes."""
        values = dict.fromkeys(v for node in self._graph for v in (*node.inputs, *node.outputs) if v is not None)
        yield from (value for value in values if len(self.sizes(value)) > 1)

    def nodes_apart(self, value: ir.Value) -> list[ir.Node]:
        """Return the nodes that must read a value without a batch, or as one, unlike the node that computes it."""
        place = _BatchAxis(value, 0)
        if self._first(place) not in self._joined or not self._is_long(place) or self._tensor(value) is not None:
            return []
        readers = {use.node for use in value.uses() if use.node.graph is self._graph}
        apart = {node for node in readers if (node in self._starting) != (value.producer() in self._starting)}
        return [node for node in self._graph if node in apart] if apart else []

    def sizes(self, value: ir.Value) -> tuple[int | ir.SymbolicDim, ...]:
        """Return the sizes of a value; none if its rank is unknown."""
        tensor = self._tensor(value)
        if tensor is not None:
            return tuple(tensor.shape.numpy())
        return tuple(self._model.shape_of(value) or ())

    def _starts(self, node: ir.Node) -> bool:
        """Whether a node makes a batch of the first axis of what it reads and returns."""
        row = operator_of(node)
        if node.op_type == "Gather" and node.inputs[0] is not None:
            return self._tensor(node.inputs[0]) is not None and bool(self._rows(node))
        if node.op_type == "ReduceMean":  # of a norm that is written out
            axes = self._axes(node)
            return axes is not None and 0 in axes.output and len(axes.output) == len(axes.inputs[0])
        keeps = (row.elementwise and node.op_type != "PRelu") or row.moves or node.op_type in _KEEP
        return not keeps and bool(self._rows(node))

    def _rows(self, node: ir.Node) -> list[ir.Value]:
        """Return what a node computes, and reads of what is computed."""
        read = [value for value in node.inputs if value is not None and self._tensor(value) is None]
        return [*read, *node.outputs] if read else []

    def _met(self, node: ir.Node) -> Iterator[tuple[list[_BatchAxis], bool]]:
        """Yield the places that a node joins, and whether it acts along them."""
        axes = self._axes(node)
        if axes is None:
            yield from self._views(node)
            return
        for label in dict.fromkeys(label for labels in axes.inputs.values() for label in labels):
            read = [(node.inputs[slot], n) for slot, n in _labelled(axes, label)]
            written = [(value, n) for value in node.outputs for n in _written(axes, label)]
            places = [_BatchAxis(v, n) for v, n in [*read, *written] if v is not None and len(self.sizes(v)) > 1]
            yield places, label not in axes.output

    def _axes(self, node: ir.Node) -> Axes | None:
        def ranks(value: ir.Value) -> list[None]:
            return [None] * len(self.sizes(value))

        return axes_by_rule(node, self._model.opset, ranks, lambda name: integers_at(node, name, self._model.opset))

    def _views(self, node: ir.Node) -> Iterator[tuple[list[_BatchAxis], bool]]:
        """Yield the same of a node whose use of axes is not known: those that have their size and place still."""
        read = [value for value in node.inputs[:1] if value is not None]
        for x, y in ((x, y) for x in read for y in node.outputs):
            pairs = zip(self.sizes(x), self.sizes(y), strict=False)
            for n, (before, behind) in enumerate(pairs):
                same = before == behind
                if same or not operator_of(node).keeps_order:
                    yield [_BatchAxis(x, n), _BatchAxis(y, n)], not same
                if not same and operator_of(node).keeps_order:
                    break

    def _join(self, places: Sequence[_BatchAxis]) -> None:
        for place in places:
            self._next[self._first(place)] = self._first(places[0])

    def _first(self, place: _BatchAxis) -> _BatchAxis:
        """Return the place that stands for all that are one batch with a place."""
        while (other := self._next.setdefault(place, place)) != place:
            self._next[place] = self._next.setdefault(other, other)
            place = other
        return place

    def _is_long(self, place: _BatchAxis) -> bool:
        sizes = self.sizes(place.value)
        return place.axis < len(sizes) and sizes[place.axis] != 1

    def _is_constant(self, place: _BatchAxis) -> bool:
        return self._is_long(place) and self._tensor(place.value) is not None

    def _misplaced(self, value: ir.Value, batches: set[_BatchAxis]) -> list[_BatchAxis]:
        """Return the batches of a value that has two of them, or one as the last of two axes."""
        rank = len(self.sizes(value))
        firsts = [self._first(_BatchAxis(value, n)) for n in range(rank) if self._is_long(_BatchAxis(value, n))]
        own = [first for first in firsts if first in batches]
        last = rank == _MATRIX and self._first(_BatchAxis(value, 1)) in batches
        return own if last or len(own) > 1 else []


_KEEP = (
    *("Constant", "ConstantOfShape", "Shape", "Size", "Range", "Pad", "Softmax", "LogSoftmax"),
    *("MatMul", "Gemm", "Einsum", "ReduceMax", "ReduceMin", "ReduceSum", "ReduceProd", "ReduceL1", "ReduceL2"),
)
"""Operators beside those that act on each element or move elements that make no batch."""


def _labelled(axes: Axes, label: Label) -> Iterator[tuple[int, int]]:
    """Yield the inputs and their axes that have a label."""
    for slot, labels in axes.inputs.items():
        yield from ((slot, n) for n, other in enumerate(labels) if other == label)


def _written(axes: Axes, label: Label) -> list[int]:
    """Return the axes of an output that have a label, or that a node makes of it."""
    if label in axes.output:
        return [n for n, other in enumerate(axes.output) if other == label]
    made = (Mixed(label), None if isinstance(label, int) else Mixed(label))
    return [n for n, other in enumerate(axes.output) if other in made and (other is not None or n == label)]
