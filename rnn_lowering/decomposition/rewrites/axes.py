"""Nodes whose operands get the axes and channels that a runtime takes, and reductions whose axes are an attribute.

OpenCV runs a Resize in rank 4 only, and these norms behind a Conv, whose layout they read; ncnn runs all in rank 4.
A linear Resize of a height of 1 reads other memory in OpenCV; of a width of 1 it is right. It multiplies matrices
of two and more axes of batches right only where both have the same; neither it nor MNN multiplies vectors. pnnx
adds constant vectors to a Gemm only, and leaves out alpha without them.

It reduces tensors of five and more axes right along two of them at once, and along some of three.

pnnx ignores axes that are an input, as all reductions have them from opset 18 on and ReduceSum from 13 on, or ncnn
does not load them. It loads no ReduceMax or ReduceMin of several axes.

onnxruntime-web 1.30 is wrong on WebGPU with a multiple of 3 input channels, but not of 4 nor 3 itself, and a
multiple of 4 output channels. With one more output channel, which is cut off, it is right. Measured with 1 to
10, 12, 13, 16, 33, 129 and 132 input channels, and 1 to 5, 8, 16 and 128 output channels: wrong are 6, 9, 33
and 129 with 4, 8, 16 and 128.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from rnn_lowering.decomposition.adapted_model import AdaptedModel
from rnn_lowering.errors import UnsupportedError, counted
from rnn_lowering.facts.constants import constant_of, integers_at
from rnn_lowering.facts.operators import input_at, is_of_default_domain
from rnn_lowering.model.opsets import import_opset, opset_without
from rnn_lowering.model.replace import drop_unused
from rnn_lowering.model.scopes import Scope, recurrent_nodes, standard_nodes
from rnn_lowering.nodes.spec import node_ref
from rnn_lowering.targets.target import Target
from rnn_lowering.types import Array, array_of

_AXES_OF_INPUTS = 13
"""The first opset of an Unsqueeze whose axes are an input."""

_NORMS = ("GroupNormalization", "InstanceNormalization")

_SCALES = 2
"""The input of scales of a Resize; that of sizes is the next."""


def run_in_rank_4(model: AdaptedModel) -> int:
    """Write each Resize and norm of three axes in rank 4, with one of size 1, in place; return their number."""
    return _in_rank_4(model, "Resize", *_NORMS)


def resize_in_rank_4(model: AdaptedModel) -> int:
    """Write each Resize of three axes so; return their number."""
    return _in_rank_4(model, "Resize")


def _in_rank_4(model: AdaptedModel, *operators: str) -> int:
    count = 0
    for node in model.nodes(*operators, since=_AXES_OF_INPUTS):
        x = node.inputs[0]
        shape = model.shape_of(x)
        others = _others(node, model) if shape is not None and len(shape) == 3 else None
        if others is not None:
            axis = model.constant(node, [3 if node.op_type == "Resize" else 2])
            longer = model.before(node, "Unsqueeze", [x, axis])
            result = model.before(node, node.op_type, [longer, *others], **node.attributes)
            model.replace(node, model.before(node, "Squeeze", [result, axis]))
            count += 1
    return count


def _others(node: ir.Node, model: AdaptedModel) -> Sequence[ir.Value | None] | None:
    """Return the other inputs of a node in rank 4; None if it cannot be written so."""
    if node.op_type in _NORMS:
        return node.inputs[1:]
    place = next((n for n, value in enumerate(node.inputs) if n >= _SCALES and value is not None), None)
    constant = None if place is None else model.constant_of(node.inputs[place])
    if place is None or constant is None or constant.size != 3 or node.inputs[1] is not None:
        return None
    if "axes" in node.attributes:
        return None
    numbers = array_of(constant)
    return [*[None] * (place - 1), model.constant(node, np.append(numbers, 1), numbers.dtype)]


_OPTIONAL_BIAS = 11
"""The first opset of a Gemm that needs no bias."""


def add_biases(model: AdaptedModel) -> int:
    """Write each Gemm with factors, or with a bias that is no constant vector, in steps, in place; return their
    number."""
    return sum(
        _add_bias(node, model) for node in model.nodes("Gemm", since=_OPTIONAL_BIAS) if _has_terms(node, model)
    )


def add_biases_of_halves(model: AdaptedModel) -> int:
    """Write each Gemm of float16 with a bias in steps, in place; return their number."""
    nodes = [node for node in model.nodes("Gemm", since=_OPTIONAL_BIAS) if input_at(node, 2) is not None]
    return sum(_add_bias(n, model) for n in nodes if model.dtype_of(n.outputs[0]) == ir.DataType.FLOAT16)


def add_columns(model: AdaptedModel) -> int:
    """Set apart, in place, each sum of a product and a constant that has a number for each row; return their
    number."""
    gemms = [n for n in model.nodes("Gemm", since=_OPTIONAL_BIAS) if _is_column(model.shape_of(input_at(n, 2)))]
    count = sum(_add_bias(node, model) for node in gemms)
    for node in model.nodes("Add"):
        for slot, column in ((0, node.inputs[1]), (1, node.inputs[0])):
            value = node.inputs[slot]
            source = None if value is None else value.producer()
            is_product = source is not None and source.op_type in ("Gemm", "MatMul")
            if is_product and model.constant_of(column) is not None and _is_column(model.shape_of(column)):
                node.replace_input_with(slot, model.before(node, "Identity", [value]))
                count += 1
    return count


def _is_column(shape: ir.Shape | None) -> bool:
    return shape is not None and len(shape) >= len("MN") and shape[-2] != 1 == shape[-1]


def _factors(node: ir.Node) -> list[float]:
    return [node.attributes.get_float(name, 1.0) for name in ("alpha", "beta")]


def _has_terms(node: ir.Node, model: AdaptedModel) -> bool:
    bias, shape = input_at(node, 2), model.shape_of(node.outputs[0])
    constant = model.constant_of(bias)
    is_vector = bias is None or (constant is not None and shape is not None and list(constant.shape) == [shape[1]])
    return not is_vector or _factors(node)[: 1 if bias is None else 2] not in ([1], [1, 1])


def _add_bias(node: ir.Node, model: AdaptedModel) -> bool:
    bias, dtype = input_at(node, 2), model.dtype_of(node.outputs[0])
    if model.shape_of(node.outputs[0]) is None or dtype is None:
        return False
    attributes = {name: held for name, held in node.attributes.items() if name not in ("alpha", "beta")}
    terms = [model.before(node, "Gemm", node.inputs[:2], **attributes), *([] if bias is None else [bias])]
    for n, factor in enumerate(_factors(node)[: len(terms)]):
        if factor != 1:
            terms[n] = model.before(node, "Mul", [terms[n], model.constant(node, factor, dtype.numpy(), "factor")])
    model.replace(node, model.before(node, "Add", terms) if len(terms) > 1 else terms[0])
    return True


_MOST_BATCHES = 1
"""So many axes of batches are broadcast right."""


def write_vectors(model: AdaptedModel, *, both: bool = False) -> int:
    """Give each vector that a MatMul or MatMulInteger takes a second axis, in place; return the number of nodes.

    Args:
        model: The model.
        both: A MatMul only where both operands are vectors.
    """
    found = []
    for node in model.nodes("MatMul", "MatMulInteger", since=_AXES_OF_INPUTS):
        shapes = list(map(model.shape_of, node.inputs[:2]))
        ranks = [len(shape or ()) for shape in shapes]
        if None not in shapes and (max(ranks) == 1 if both and node.op_type == "MatMul" else 1 in ranks):
            found.append((node, ranks))
    for node, ranks in found:
        operands, lost = list(node.inputs), []
        for place, rank in enumerate(ranks):
            if rank == 1:
                operands[place] = model.before(node, "Unsqueeze", [operands[place]], axes=[-1 if place else 0])
                lost.append(-1 if place else -2)
        result = model.before(node, node.op_type, operands)
        model.replace(node, model.before(node, "Squeeze", [result], axes=lost))
    return len(found)


def write_batches(model: AdaptedModel) -> int:
    """Give both matrices of each MatMul of several axes of batches the same ones, in place; return the number of
    nodes."""
    count = 0
    for node, shapes in _products(model):
        batch = _unlike_batches(shapes)
        if batch is None:
            continue
        for place, shape in enumerate(shapes):
            if shape[:-2] != batch:
                whole = model.before(node, "Expand", [node.inputs[place]], shape=[*batch, *shape[-2:]])
                node.replace_input_with(place, whole)
        count += 1
    return count


def _products(model: AdaptedModel) -> list[tuple[ir.Node, list[tuple[int, ...]]]]:
    """Return each MatMul and the shapes of its operands, where they are known."""
    shapes = [(n, list(map(model.shape_of, n.inputs))) for n in model.nodes("MatMul", since=_AXES_OF_INPUTS)]
    fixed = [(node, [shape.numpy() for shape in both if shape and shape.is_static()]) for node, both in shapes]
    return [(node, both) for node, both in fixed if len(both) == len(node.inputs)]


def _unlike_batches(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...] | None:
    """Return the batches of the product where operands have others, and where that matters."""
    a, b = (shape[:-2] for shape in shapes)
    if a == b or not (a and b) or max(len(a), len(b)) <= _MOST_BATCHES:
        return None
    return np.broadcast_shapes(a, b)


_SLICE_OF_INPUTS = 10
"""The opset from which on the bounds of a Slice are inputs."""


def add_output_channels(model: AdaptedModel) -> int:
    """Add an output channel to such convolutions of constant weights, in place; return their number."""
    count = 0
    for node in list(model.graph) if model.opset >= _SLICE_OF_INPUTS else ():
        if node.op_type != "Conv" or not is_of_default_domain(node):
            continue
        constants = [model.constant_of(value) for value in node.inputs[1:]]
        if None not in constants and _is_wrong(node, constants[0]):
            _widen(node, [each.numpy() for each in constants if each is not None], model)
            count += 1
    return count


def _is_wrong(node: ir.Node, weights: ir.TensorProtocol | None) -> bool:
    assert weights is not None
    outputs, inputs = (int(size) for size in weights.shape.numpy()[:2])
    in_threes = inputs > 3 and inputs % 3 == 0 and inputs % 4 != 0
    return in_threes and outputs % 4 == 0 and node.attributes.get_int("group", 1) == 1


def _widen(node: ir.Node, constants: Sequence[Array], model: AdaptedModel) -> None:
    """Give a Conv a last output channel of zeros, and cut it off."""
    given, count, output = node.inputs[1:], len(constants[0]), node.outputs[0]
    for index, array in enumerate(constants, 1):
        wide = np.concatenate([array, np.zeros((1, *array.shape[1:]), array.dtype)])
        node.replace_input_with(index, model.constant(node, wide, array.dtype, "wide"))
    numbers = {"first": 0, "count": count, "axis": 1}
    bounds = [model.constant(node, [number], hint=hint) for hint, number in numbers.items()]
    model.behind(output, "Slice", bounds, suffix="wide")
    if output.shape is not None:
        output.shape = ir.Shape([count + 1 if axis == 1 else size for axis, size in enumerate(output.shape)])
    drop_unused(given)


# Reductions


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
