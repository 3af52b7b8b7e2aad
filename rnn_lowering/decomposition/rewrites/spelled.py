"""Nodes with all that they mean by default: pads, strides, sizes and orders.

ncnn loads a Pad with its mode, a pad for each axis and the number that fills, and crashes at a Split without sizes.

OpenCV pads both sides alike where a Conv or a pool is to keep a size (auto_pad). tract crashes at negative pads,
which crop, and MNN computes them wrongly: they are a Slice. MNN loses the axis of a ScatterElements that is written
behind a reduction, also behind "none".
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from rnn_lowering.decomposition.rewrites.inserting import Inserter
from rnn_lowering.errors import UnsupportedError
from rnn_lowering.facts.constants import constant_of
from rnn_lowering.facts.operators import default_opset, input_at, parameter
from rnn_lowering.model.model_sizes import Inferred, inferred_values
from rnn_lowering.model.scopes import standard_nodes
from rnn_lowering.nodes.kinds import node_ref
from rnn_lowering.targets.target import Target
from rnn_lowering.types import Array

_OF_INPUTS = 11
"""The first opset of a Pad whose pads are an input."""


def spell_pads(model: ir.Model) -> int:
    """Write each constant Pad of a value of known type and rank in full, in place; return their number."""
    opset = default_opset(model.opset_imports)
    found = [
        node
        for scope, node in standard_nodes(model, "Pad")
        if scope.function is None
        and opset >= _OF_INPUTS
        and node.attributes.get_string("mode", "constant") == "constant"
    ]
    known, inserter = dict(inferred_values(model)) if found else {}, Inserter(model)
    return sum(_spell(node, opset, known, inserter) for node in found)


def crop_by_slice(model: ir.Model) -> int:
    """Write what each Pad of constant pads crops as a Slice in front of it, in place; return their number."""
    opset, inserter = default_opset(model.opset_imports), Inserter(model)
    nodes = [node for _, node in standard_nodes(model, "Pad") if opset >= _OF_INPUTS]
    return sum(_crop(node, opset, inserter) for node in nodes)


def _crop(node: ir.Node, opset: int, inserter: Inserter) -> bool:
    widths, axes = _constant_pads(node, opset)
    if widths is None or (widths >= 0).all():
        return False
    begins, ends = widths
    behind = np.where(ends < 0, ends, np.iinfo(np.int64).max)
    slices = [inserter.constant(node, numbers) for numbers in (np.maximum(-begins, 0), behind, axes)]
    node.replace_input_with(0, inserter.before(node, "Slice", (node.inputs[0], *slices)))
    node.replace_input_with(1, inserter.constant(node, np.maximum(widths, 0).reshape(-1), np.int64, "pads"))
    return True


def _constant_pads(node: ir.Node, opset: int) -> tuple[Array | None, Array]:
    """Return the pads of a Pad, [2, axes], and their axes; None for pads that are not constant."""
    values = [input_at(node, slot) for slot in (1, 3)]
    pads, axes = (None if value is None else constant_of(value, opset) for value in values)
    if pads is None or (values[1] is not None and axes is None):
        return None, np.zeros(0, np.int64)
    widths = pads.numpy().reshape(2, -1)
    return widths, np.arange(widths.shape[1]) if axes is None else axes.numpy()


def _spell(node: ir.Node, opset: int, known: dict[ir.Value, ir.Value], inserter: Inserter) -> bool:
    x, number = node.inputs[0], input_at(node, 2)
    value = None if x is None else known.get(x, x)
    widths, axes = _constant_pads(node, opset)
    if value is None or value.shape is None or value.dtype is None or widths is None:
        return False
    if number is not None and input_at(node, 3) is None and "mode" in node.attributes:
        return False
    rank = len(value.shape)
    full = np.zeros((2, rank), np.int64)
    full[:, axes % rank] = widths
    node.attributes["mode"] = ir.AttrString("mode", "constant")
    fill = number if number is not None else inserter.constant(node, 0, value.dtype.numpy(), "fill")
    node.resize_inputs(3)
    node.replace_input_with(1, inserter.constant(node, full.reshape(-1)))
    node.replace_input_with(2, fill)
    return True


def plain_scatters(model: ir.Model) -> int:
    """Leave out the reduction of each ScatterElements that has none, in place; return their number."""
    count = 0
    for _, node in standard_nodes(model, "ScatterElements"):
        if node.attributes.get_string("reduction", "") == "none":
            del node.attributes["reduction"]
            count += 1
    return count


def spell_strides(model: ir.Model) -> int:
    """Write the strides of each pool along one axis that has none, in place; return their number."""
    count = 0
    for _, node in standard_nodes(model, "AveragePool", "MaxPool"):
        kernel = node.attributes.get_ints("kernel_shape", ())
        if len(kernel) == 1 and "strides" not in node.attributes:
            node.attributes.add(ir.AttrInt64s("strides", [1]))
            count += 1
    return count


def spell_splits(model: ir.Model) -> int:
    """Write the sizes of each Split that has none, where they are known, in place; return their number."""
    opset = default_opset(model.opset_imports)
    found = [node for _, node in standard_nodes(model, "Split") if parameter(node, "split", opset) is None]
    known, inserter = inferred_values(model) if found else {}, Inserter(model)
    return sum(_spell_split(node, opset, known, inserter) for node in found)


def _spell_split(node: ir.Node, opset: int, known: Inferred, inserter: Inserter) -> bool:
    axis, shapes = node.attributes.get_int("axis", 0), [known.get(v, v).shape for v in node.outputs]
    sizes = [None if shape is None else shape[axis] for shape in shapes]
    if not all(isinstance(size, int) for size in sizes):
        return False
    node.attributes.pop("num_outputs", None)
    if opset >= _SIZES_OF_INPUTS:
        node.resize_inputs(2)
        node.replace_input_with(1, inserter.constant(node, sizes))
    else:
        node.attributes.add(ir.AttrInt64s("split", [int(str(size)) for size in sizes]))
    return True


def spell_orders(model: ir.Model) -> int:
    """Write the order of axes of each Transpose that has none, in place; return their number."""
    found = [node for _, node in standard_nodes(model, "Transpose") if "perm" not in node.attributes]
    known, count = inferred_values(model) if found else {}, 0
    for node in found:
        shape = known.get(node.outputs[0], node.outputs[0]).shape
        if shape is not None:
            node.attributes.add(ir.AttrInt64s("perm", range(len(shape) - 1, -1, -1)))
            count += 1
    return count


_SIZES_OF_INPUTS = 13
"""The first opset of a Split whose sizes are an input."""


_SAME = ("SAME_UPPER", "SAME_LOWER")


def spell_same_pads(model: ir.Model) -> int:
    """Write the pads of each Conv and pool that are to keep a size, where they are known; return their number."""
    known = _same_pads(model)
    for node, pads in known:
        if pads is not None:
            del node.attributes["auto_pad"]
            node.attributes["pads"] = ir.AttrInt64s("pads", pads)
    return sum(pads is not None for _, pads in known)


def same_padded(model: ir.Model) -> set[ir.Node]:
    """Return the nodes whose pads are written."""
    return {node for node, pads in _same_pads(model) if pads is not None}


def refuse_same_pads(model: ir.Model, target: Target) -> Iterator[UnsupportedError]:
    """Yield an error for each of them whose pads follow from a size that is not known."""
    for node, pads in _same_pads(model):
        if pads is None:
            reason = f"{target.name} pads both sides alike, and the size that decides its pads is not known"
            yield UnsupportedError(
                reason, hint="fix the sizes of the inputs, or export with pads", node=node_ref(node)
            )


def _same_pads(model: ir.Model) -> list[tuple[ir.Node, list[int] | None]]:
    nodes = [
        node
        for _, node in standard_nodes(model, "Conv", "MaxPool", "AveragePool")
        if node.attributes.get_string("auto_pad", "NOTSET") in _SAME
    ]
    known = inferred_values(model) if nodes else {}
    return [(node, _pads(node, known)) for node in nodes]


def _pads(node: ir.Node, known: Inferred) -> list[int] | None:
    """Return the pads before and behind each axis, by the formula of Conv's page; None if a size is not known."""
    x = node.inputs[0]
    shape = None if x is None else known.get(x, x).shape
    kernel = _ints(node, "kernel_shape", _shape_of_weights(node, known))
    if shape is None or kernel is None:
        return None
    ones = [1] * len(kernel)
    strides = _ints(node, "strides", ones) or ones
    if _ints(node, "dilations", ones) != ones or not len(kernel) == len(strides) == len(shape) - 2:
        return None  # onnxruntime has no dilations with such pads
    sizes = [1 if stride == 1 else size for size, stride in zip(list(shape)[2:], strides, strict=True)]
    if not all(isinstance(size, int) for size in sizes):
        return None
    begins, ends = [], []
    for size, k, stride in zip(map(int, sizes), kernel, strides, strict=True):  # type: ignore[arg-type]
        total = max(0, (-(-size // stride) - 1) * stride + k - size)
        less, more = total // 2, total - total // 2
        upper = node.attributes.get_string("auto_pad", "") == "SAME_UPPER"
        begins.append(less if upper else more)
        ends.append(more if upper else less)
    return [*begins, *ends]


def _shape_of_weights(node: ir.Node, known: Inferred) -> list[int] | None:
    weights = node.inputs[1] if node.op_type == "Conv" else None
    shape = None if weights is None else known.get(weights, weights).shape
    sizes = [] if shape is None else [size for size in list(shape)[2:] if isinstance(size, int)]
    return sizes if shape is not None and len(sizes) == len(shape) - 2 else None


def _ints(node: ir.Node, name: str, default: list[int] | None) -> list[int] | None:
    attribute = node.attributes.get(name)
    return default if attribute is None else list(attribute.as_ints())
