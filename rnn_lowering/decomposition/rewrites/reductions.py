"""Reductions whose axes are an attribute, which go along a few axes at a time, or keep their axes.

OpenCV reduces tensors of five and more axes right along two of them at once, and along some of three. OpenVINO adds
axes behind a reduction in place of before it, where they do not belong, and fails on axes from the end. It joins
what follows a reduction to it: then integers are others, and a row of three axes gets the vector of another one.

pnnx ignores axes that are an input, as all reductions have them from opset 18 on and ReduceSum from 13 on, or ncnn
does not load them. It loads no ReduceMax or ReduceMin of several axes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from rnn_lowering.decomposition.adapted_model import AdaptedModel
from rnn_lowering.errors import UnsupportedError, counted
from rnn_lowering.facts.constants import constant_of, integers_at
from rnn_lowering.facts.operators import input_at, operator_of, reached
from rnn_lowering.model.opsets import import_opset, opset_without
from rnn_lowering.model.scopes import Scope, recurrent_nodes, standard_nodes
from rnn_lowering.nodes.spec import node_ref
from rnn_lowering.targets.target import Target

_KINDS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")

REDUCTIONS = tuple(f"Reduce{kind}" for kind in _KINDS)

_OF_ATTRIBUTES = 17
"""The last opset at which axes are an attribute; those of ReduceSum are an input from opset 13 on."""

_ALONE = ("ReduceMax", "ReduceMin")
"""Those of one axis at a time."""


@dataclass(frozen=True)
class _Reduction:
    """A reduction that may be of floats.

    Attributes:
        node: The node.
        scope: The graph that it is in.
        axes: The axes that it reduces, in order, each with its size if it is known; None if they are unknown, or if
            they are those of a sum of which one size is.
        dtype: The type of its numbers, if it is known.
    """

    node: ir.Node
    scope: Scope
    axes: dict[int, int | None] | None
    dtype: ir.DataType | None

    @property
    def given(self) -> ir.Value | None:
        """The input that has the axes."""
        return input_at(self.node, 1)

    @property
    def is_written(self) -> bool:
        """Whether it can and must be written as other nodes."""
        several = self.node.op_type in _ALONE and len(self.axes or ()) > 1
        known = bool(self.axes) and self.dtype is not None and self.scope.function is None
        return known and (self.given is not None or several)


def reductions_by_attributes(model: AdaptedModel) -> set[ir.Node]:
    """Return the reductions by known axes: once these are attributes, all are right."""
    return {reduction.node for reduction in _reductions(model) if reduction.axes is not None}


def reduce_by_attributes(model: AdaptedModel) -> str | None:
    """Write the reductions by known axes at opset 17, in place, if every other node means the same there; return
    what was done, for the user."""
    found = [reduction for reduction in _reductions(model) if reduction.is_written]
    is_newer = model.opset > _OF_ATTRIBUTES
    splits = _equal_splits(model) if found and is_newer else {}
    lowered = [entry.node for entry in recurrent_nodes(model.model)]
    others = [*(reduction.node for reduction in found), *lowered, *splits]
    if not found or (is_newer and opset_without(model.model, others, _OF_ATTRIBUTES) > _OF_ATTRIBUTES):
        return None
    if is_newer:
        import_opset(model.model, _OF_ATTRIBUTES)
        model.opset = _OF_ATTRIBUTES
    for node, sizes in splits.items():
        del node.attributes["num_outputs"]
        node.resize_inputs(2)
        node.replace_input_with(1, model.constant(node, sizes))
    for reduction in found:
        _rewrite(reduction, model)
    return f"takes axes as an attribute only: wrote {counted(len(found), 'reduction')} so, as up to opset 17"


def _equal_splits(model: AdaptedModel) -> dict[ir.Node, list[int]]:
    """Return each Split of a known size that counts its parts, as opset 18 has it, with the sizes of these."""
    sizes = dict[ir.Node, list[int]]()
    for node in model.nodes("Split", in_functions=False):
        shape = model.shape_of(node.inputs[0])
        whole = None if shape is None else shape[node.attributes.get_int("axis", 0)]
        if "num_outputs" in node.attributes and isinstance(whole, int):
            part = -(-whole // len(node.outputs))
            last = whole - part * (len(node.outputs) - 1)
            sizes |= {node: [*[part] * (len(node.outputs) - 1), last]} if last >= 0 else {}
    return sizes


def refuse_reductions(model: AdaptedModel, target: Target) -> Iterator[UnsupportedError]:
    """Yield an error for each reduction of floats whose axes are an input."""
    for reduction in _reductions(model):
        given = reduction.given
        if given is None:
            continue
        hint = f"export the model at opset {_OF_ATTRIBUTES} (torch.onnx.export: dynamo=False, opset_version=17)"
        if constant_of(given, reduction.scope.opset) is None:
            hint = "export the model with constant axes, or use another runtime"
        elif reduction.axes is None:
            hint = "fix the sizes of the inputs (--set-shape): the number of terms must be known"
        ref = node_ref(reduction.node, reduction.scope.text)
        yield UnsupportedError(f"{target.name} ignores or rejects axes that are an input", hint=hint, node=ref)


def _reductions(model: AdaptedModel) -> Iterator[_Reduction]:
    for scope, node in list(standard_nodes(model.model, *REDUCTIONS)):
        x, dtype = node.inputs[0], model.dtype_of(node.inputs[0])
        if x is not None and (dtype is None or dtype.is_floating_point()):
            yield _Reduction(node, scope, _axes(node, model.shape_of(x), scope.opset), dtype)


def _axes(node: ir.Node, shape: ir.Shape | None, opset: int) -> dict[int, int | None] | None:
    axes = integers_at(node, "axes", opset)
    if shape is None or axes is None:
        return None
    if not axes and node.attributes.get_int("noop_with_empty_axes", 0) != 0:
        return None
    sizes = {axis: dim if isinstance(dim, int) else None for axis, dim in enumerate(shape)}
    found = {axis: sizes[axis] for axis in sorted({axis % len(sizes) for axis in axes or sizes})}
    return None if node.op_type == "ReduceSum" and not all(found.values()) else found


def _rewrite(reduction: _Reduction, model: AdaptedModel) -> None:
    """Put nodes with their axes as an attribute in the place of one; a sum is so many times the mean."""
    node, axes, is_sum = reduction.node, reduction.axes or {}, reduction.node.op_type == "ReduceSum"
    keeps, value = node.attributes.get_int("keepdims", 1), node.inputs[0]
    assert value is not None
    assert reduction.dtype is not None
    for step in [[axis] for axis in reversed(axes)] if node.op_type in _ALONE else [[*axes]]:
        operator = "ReduceMean" if is_sum else node.op_type
        value = model.before(node, operator, [value], axes=step, keepdims=keeps)
    if is_sum:
        count = math.prod(size or 0 for size in axes.values())
        number = model.constant(node, count, reduction.dtype.numpy(), "count")
        value = model.before(node, "Mul", [value, number])
    model.replace(node, value, node.inputs[1:])


_PARTED = {
    **{f"Reduce{kind}": f"Reduce{kind}" for kind in ("L1", "L2", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum")},
    "ReduceSumSquare": "ReduceSum",
}
"""By reduction what reduces its result along further axes."""

_MANY_AXES, _AT_ONCE = 4, 2
"""From so many axes of a tensor on OpenCV reduces so many of them right."""


def part_reductions(model: AdaptedModel) -> int:
    """Let each reduction of a tensor of many axes along several of them be several reductions, in place; return
    their number."""
    return sum(_part(node, model) for node in model.nodes(*_PARTED))


def _part(node: ir.Node, model: AdaptedModel) -> bool:
    shape, axes = model.shape_of(node.inputs[0]), integers_at(node, "axes", model.opset)
    keeps_all = node.attributes.get_int("noop_with_empty_axes", 0) != 0
    if shape is None or axes is None or len(shape) < _MANY_AXES or keeps_all:
        return False
    axes = sorted({axis % len(shape) for axis in axes or range(len(shape))})
    parts = [axes[n : n + _AT_ONCE] for n in range(0, len(axes), _AT_ONCE)]
    if len(parts) == 1:
        return False
    value = model.before(node, node.op_type, node.inputs[:1], axes=parts[0], keepdims=1)
    for part in parts[1:]:
        value = model.before(node, _PARTED[node.op_type], [value], axes=part, keepdims=1)
    if not node.attributes.get_int("keepdims", 1):
        value = model.before(node, "Squeeze", [value], axes=axes)
    model.replace(node, value, node.inputs[1:])
    return True


def keep_axes(model: AdaptedModel) -> int:
    """Let each reduction to a number that a node reads, or that is one of several outputs, keep its axes, in place,
    with a Squeeze behind it; return their number."""
    several, count = len(model.graph.outputs) > 1, 0
    for node in model.nodes(*REDUCTIONS, in_functions=False):
        value = node.outputs[0]
        shape, x = model.shape_of(value), model.shape_of(node.inputs[0])
        read = bool(value.uses()) or (several and value.is_graph_output())
        if shape is None or len(shape) > 0 or not x or not read:
            continue
        axes = list(range(len(x)))
        node.attributes["keepdims"] = ir.AttrInt64("keepdims", 1)
        if model.opset >= _AXES_OF_INPUTS:
            model.behind(value, "Squeeze", [model.constant(node, axes)], suffix="kept")
        else:
            model.behind(value, "Squeeze", [], {"axes": axes}, suffix="kept")
        value.shape = None
        count += 1
    return count


_AXES_OF_INPUTS = 13
"""The first opset of a Squeeze whose axes are an input."""


_WHOLE = {"GlobalAveragePool": "ReduceMean", "GlobalMaxPool": "ReduceMax"}
"""By pool of all the reduction that it is."""


def whole_pools(model: AdaptedModel) -> set[ir.Node]:
    """Return each pool of all along more axes than two."""
    nodes = model.nodes(*_WHOLE)
    return {node for node in nodes if len(model.shape_of(node.inputs[0]) or ()) > _MANY_AXES}


def reduce_whole_pools(model: AdaptedModel) -> int:
    """Write each of them as a reduction, in place; return their number."""
    nodes = {node: len(model.shape_of(node.inputs[0]) or ()) for node in whole_pools(model)}
    for node, rank in nodes.items():
        axes = [*range(2, rank)]
        value = model.before(node, _WHOLE[node.op_type], node.inputs[:1], axes=axes, keepdims=1)
        model.replace(node, value)
    return len(nodes)


_ADDS_AXES = ("Reshape", "Unsqueeze")


def reduce_without_axes(model: AdaptedModel) -> int:
    """Let, in place, each reduction behind a node that adds axes count its own from the start and keep none, with
    an Unsqueeze behind; return the number of those that did not."""
    return sum(_reduce_without_axes(node, model) for node in model.nodes(*REDUCTIONS))


def _reduce_without_axes(node: ir.Node, model: AdaptedModel) -> bool:
    x, axes = node.inputs[0], integers_at(node, "axes", model.opset)
    source, shape = None if x is None else x.producer(), model.shape_of(x)
    if source is None or source.op_type not in _ADDS_AXES or not axes or shape is None:
        return False
    counted_axes, keeps = sorted(axis % len(shape) for axis in axes), node.attributes.get_int("keepdims", 1) != 0
    if not keeps and counted_axes == sorted(axes):
        return False
    value = model.before(node, node.op_type, [x], axes=counted_axes, keepdims=0)
    value = model.before(node, "Unsqueeze", [value], axes=counted_axes) if keeps else value
    model.replace(node, value, node.inputs[1:])
    return True


# Reductions and what is computed of their results number by number

_ROWS = 3
"""The axes of a tensor, one of which is reduced."""

_POOLS = ("GlobalAveragePool", "GlobalMaxPool")
_BY_CHANNEL = ("BatchNormalization", "PRelu")


def set_vectors_apart(model: AdaptedModel) -> int:
    """Reduce, in place, tensors of three axes in four where a vector follows, and let a Max follow each reduction
    of integers; return the number of reductions."""
    return sum(_set_apart(node, model) for node in model.nodes(*REDUCTIONS, *_POOLS))


def _set_apart(node: ir.Node, model: AdaptedModel) -> bool:
    dtype, shape = model.dtype_of(node.outputs[0]), model.shape_of(node.inputs[0])
    readers = [use.node for value in reached(node.outputs, _followed) for use in value.uses()]
    if dtype is not None and dtype.is_integer():
        follows = any(operator_of(each).elementwise and each.op_type not in ("Cast", "Max") for each in readers)
        if follows:
            least = max(_LEAST, int(np.iinfo(dtype.numpy()).min))
            _bound(node, model.constant(node, least, dtype.numpy()), model)
        return follows
    axes = [2] if node.op_type in _POOLS else integers_at(node, "axes", model.opset) or []
    if shape is None or len(shape) != _ROWS or len(axes) != 1 or not any(_by_vector(n, model) for n in readers):
        return False
    _reduce_planes(node, axes[0] % _ROWS, model)
    return True


def _bound(node: ir.Node, least: ir.Value, model: AdaptedModel) -> None:
    """Let a Max with the least number follow a reduction, or a choice where there is none of integers."""
    value = node.outputs[0]
    if model.opset >= _MAX_OF_INTEGERS:
        model.behind(value, "Max", [least], suffix="reduced")
        return
    model.behind(value, "Where", [value, least], suffix="reduced")
    choice = next(use.node for use in least.uses())
    choice.replace_input_with(0, model.before(choice, "Greater", [value, least]))


_MAX_OF_INTEGERS = 12
"""The first opset at which a Max takes them."""


def _followed(value: ir.Value) -> list[ir.Value]:
    rows = ((use.node, operator_of(use.node)) for use in value.uses())
    return [node.outputs[0] for node, row in rows if row.elementwise or row.moves]


def _by_vector(node: ir.Node, model: AdaptedModel) -> bool:
    """Whether a node computes each number with one of a vector of constants."""
    held = [model.constant_of(value) for value in node.inputs if operator_of(node).elementwise]
    return node.op_type in _BY_CHANNEL or any(tensor is not None and tensor.size > 1 for tensor in held)


def _reduce_planes(node: ir.Node, axis: int, model: AdaptedModel) -> None:
    """Reduce a tensor of three axes as one of four, whose additional axis is reduced too."""
    wide, keeps = model.before(node, "Unsqueeze", [node.inputs[0]], axes=[axis]), 1
    if node.op_type in _POOLS:
        reduced = model.before(node, node.op_type, [wide])
    else:
        keeps = node.attributes.get_int("keepdims", 1)
        reduced = model.before(node, node.op_type, [wide], axes=[axis, axis + 1], keepdims=keeps)
    model.replace(node, model.before(node, "Squeeze", [reduced], axes=[axis]) if keeps else reduced)


_LEAST = -(1 << 31)
"""The least integer that OpenVINO computes with."""
