"""A Resize along the last two axes as products with matrices.

MNN computes each cubic one wrongly, OpenVINO those that leave out what is outside (exclude_outside), OpenCV linear
ones where a scale gives no whole size. The matrix of an axis is what ONNX's reference makes of the identity.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper

from rnn_lowering.decomposition.adapted_model import AdaptedModel
from rnn_lowering.facts.operators import input_at
from rnn_lowering.targets.misread import aligns_corners, rounds
from rnn_lowering.types import Array, array_of

_SCALES, _SIZES = 2, 3
"""The inputs of a Resize that say how large its result is."""

_OF_FLOATS = 11
"""The first opset of a Resize with a cubic mode."""

_PLANE = 2
"""The axes of an image."""

_OTHERWISE = ("axes", "antialias", "keep_aspect_ratio_policy")
"""Attributes with which a scale is not that of its axis."""


class _Growth(NamedTuple):
    """How large a Resize makes each axis: its scale, or its size; `same` has the numbers of axes that stay."""

    slot: int
    numbers: Array
    same: Array


Kind = Literal["cubic", "excluding", "linear"]
"""Which nodes are written: cubic ones, those that leave out what is outside, or linear ones whose sizes are
rounded."""


def resizes(model: AdaptedModel, kind: Kind) -> set[ir.Node]:
    """Return the nodes that `multiply` replaces: along the last two axes, of known sizes."""
    return set(_growths(model, kind))


def _growths(model: AdaptedModel, kind: Kind) -> dict[ir.Node, _Growth]:
    wanted = [node for node in model.nodes("Resize", since=_OF_FLOATS) if _is_of_kind(node, kind)]
    found = {node: growth for node in wanted if (growth := _growth(node, model)) is not None}
    if kind != "linear":
        return found
    return {node: growth for node, growth in found.items() if _is_rounded(node, growth, model)}


def _is_rounded(node: ir.Node, growth: _Growth, model: AdaptedModel) -> bool:
    """Whether a scale gives no whole size; not a single element, which ONNX's reference puts elsewhere."""
    shape = model.shape_of(node.inputs[0])
    sizes = [] if shape is None else [size for size in shape[-_PLANE:] if isinstance(size, int)]
    single = any(
        size != size * scale < _PLANE for size, scale in zip(sizes, growth.numbers[-_PLANE:], strict=False)
    )
    return growth.slot == _SCALES and not single and rounds(shape, growth.numbers.tolist())


def _is_of_kind(node: ir.Node, kind: Kind) -> bool:
    mode = node.attributes.get_string("mode", "nearest")
    if kind == "linear":
        return mode == "linear" and not aligns_corners(node)
    return mode == "cubic" and (kind == "cubic" or node.attributes.get_int("exclude_outside", 0) != 0)


def multiply(model: AdaptedModel, kind: Kind) -> int:
    """Write, in place, each of them as products with matrices; return their number."""
    found = _growths(model, kind)
    for node, growth in found.items():
        value, shape, dtype = node.inputs[0], model.shape_of(node.inputs[0]), model.dtype_of(node.inputs[0])
        assert shape is not None
        assert dtype is not None
        for axis in (-1, -2):
            if growth.numbers[axis] != growth.same[axis]:
                size = shape[axis]
                assert isinstance(size, int)
                matrix = _matrix(node, growth, axis, size, model.opset)
                weights = model.constant(node, matrix if axis == -1 else matrix.T, dtype.numpy(), "weights")
                value = model.before(node, "MatMul", [value, weights] if axis == -1 else [weights, value])
        assert value is not None
        model.replace(node, value, node.inputs[1:])
    return len(found)


def _growth(node: ir.Node, model: AdaptedModel) -> _Growth | None:
    """Return the growth of each axis; None for a Resize of more axes than two."""
    shape, dtype = model.shape_of(node.inputs[0]), model.dtype_of(node.inputs[0])
    is_crop = node.attributes.get_string("coordinate_transformation_mode", "") == "tf_crop_and_resize"
    if is_crop or dtype is None or shape is None or not dtype.is_floating_point():
        return None
    if any(name in node.attributes for name in _OTHERWISE):
        return None
    known = np.array([size if isinstance(size, int) else -1 for size in shape])
    if (known[-_PLANE:] < 0).any():
        return None
    for slot, same in ((_SIZES, known), (_SCALES, np.ones(len(known)))):
        numbers = model.constant_of(input_at(node, slot))
        if numbers is not None and numbers.size:
            growth = _Growth(slot, array_of(numbers), same)
            changed = growth.numbers != same
            return growth if changed.any() and not changed[:-_PLANE].any() else None
    return None


def _matrix(node: ir.Node, growth: _Growth, axis: int, size: int, opset: int) -> Array:
    """Return the weights of each element of an axis in each element of the result."""
    from onnx.reference import ReferenceEvaluator  # takes a while to load

    one = ir.to_proto(node)
    one.input[:] = [*["x", "", ""][: growth.slot], "numbers"]
    one.output[:] = ["y"]
    values = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in ("x", "y")]
    first = size if growth.slot == _SIZES else 1
    numbers = numpy_helper.from_array(np.array([first, growth.numbers[axis]], growth.numbers.dtype), "numbers")
    graph = helper.make_graph([one], "axis", values[:1], values[1:], [numbers])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    (weights,) = ReferenceEvaluator(model).run(None, {"x": np.eye(size, dtype=np.float32)})
    return np.asarray(weights)
