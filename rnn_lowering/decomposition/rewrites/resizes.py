"""A Resize along the last two axes as products with matrices, or to sizes in place of by scales.

tract takes aligned corners for those of the sizes before they are rounded. MNN computes each cubic Resize wrongly
and rounds no place up,
OpenVINO those that leave out what is outside (exclude_outside), OpenCV others where a scale gives no whole size.
The matrix of an axis is what ONNX's reference makes of the identity; of the nearest, what float32 makes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Literal, NamedTuple

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper

from rnn_lowering.decomposition.adapted_model import AdaptedModel
from rnn_lowering.facts.operators import input_at
from rnn_lowering.model.replace import drop_unused
from rnn_lowering.targets.misread import aligns_corners, rounds, rounds_up
from rnn_lowering.types import Array, array_of

_SCALES, _SIZES = 2, 3
"""The inputs of a Resize that say how large its result is."""

_OF_FLOATS = 11
"""The first opset of a Resize with a cubic mode."""

_PLANE, _ROWS = 2, 3
"""The axes of an image, and of signals."""

_USUAL = {"antialias": 0, "keep_aspect_ratio_policy": "stretch", "axes": ()}
"""The values of attributes with which a scale is that of its axis."""


def _is_otherwise(node: ir.Node) -> bool:
    return any(node.attributes[name].value != usual for name, usual in _USUAL.items() if name in node.attributes)


class _Growth(NamedTuple):
    """How large a Resize makes each axis: its scale, or its size; `same` has the numbers of axes that stay."""

    slot: int
    numbers: Array
    same: Array


Kind = Literal["cubic", "excluding", "rounded", "upward"]
"""Which nodes are written: cubic ones, those that leave out what is outside, others whose sizes are rounded, or
those that take the element behind a place.
"""


def resizes(model: AdaptedModel, kind: Kind) -> set[ir.Node]:
    """Return the nodes that `multiply` replaces: along the last two axes, of known sizes."""
    return set(_growths(model, kind))


def _growths(model: AdaptedModel, kind: Kind) -> dict[ir.Node, _Growth]:
    wanted = [node for node in model.nodes("Resize", since=_OF_FLOATS) if _is_of_kind(node, kind)]
    growths = {node: growth for node in wanted if (growth := _growth(node, model)) is not None}
    if kind == "rounded":
        return {node: growth for node, growth in growths.items() if _is_rounded(node, growth, model)}
    return growths


def _is_rounded(node: ir.Node, growth: _Growth, model: AdaptedModel) -> bool:
    """Whether a scale gives no whole size, or a linear one reads beyond the only row of an image."""
    shape, mode = model.shape_of(node.inputs[0]), node.attributes.get_string("mode", "nearest")
    if mode == "linear" and shape is not None and len(shape) > _ROWS and shape[-_PLANE] == 1:
        return True
    of_scales = growth.slot == _SCALES and not (aligns_corners(node) and mode != "nearest")
    return of_scales and rounds(node, shape, growth.numbers.tolist())


_PLACES = ("half_pixel", "pytorch_half_pixel", "asymmetric")
"""The modes in which it is known which element is the nearest."""


def _places_of(node: ir.Node) -> str:
    return node.attributes.get_string("coordinate_transformation_mode") or "half_pixel"


def _is_of_kind(node: ir.Node, kind: Kind) -> bool:
    mode, places = node.attributes.get_string("mode", "nearest"), _places_of(node)
    if kind == "upward":
        return rounds_up(node) and places in (*_PLACES, "align_corners")
    if kind == "rounded":
        return places in _PLACES or mode != "nearest"
    return mode == "cubic" and (kind == "cubic" or node.attributes.get_int("exclude_outside", 0) != 0)


def multiply(model: AdaptedModel, kind: Kind) -> int:
    """Write, in place, each of them as products with matrices; return their number."""
    growths = _growths(model, kind)
    for node, growth in growths.items():
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
    return len(growths)


def _growth(node: ir.Node, model: AdaptedModel) -> _Growth | None:
    """Return the growth of each axis; None for a Resize of more axes than two."""
    shape, dtype = model.shape_of(node.inputs[0]), model.dtype_of(node.inputs[0])
    is_crop = _places_of(node) == "tf_crop_and_resize"
    if is_crop or dtype is None or shape is None or not dtype.is_floating_point():
        return None
    if _is_otherwise(node):
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


_HALF = np.float32(0.5)

_ROUNDED: Mapping[str, Callable[[Array], Array]] = {
    "floor": np.floor,
    "ceil": np.ceil,
    "round_prefer_floor": lambda places: np.ceil(places - _HALF),
    "round_prefer_ceil": lambda places: np.floor(places + _HALF),
}
"""By the mode of the nearest, which element it is."""


def _nearest(node: ir.Node, growth: _Growth, axis: int, size: int) -> Array:
    """Return the weights of a Resize of the nearest: in float32, in which runtimes compute the places."""
    number, of_sizes = growth.numbers[axis], growth.slot == _SIZES
    factor = np.float32(number) / np.float32(size) if of_sizes else np.float32(number)
    count = int(number) if of_sizes else int(factor * np.float32(size))
    mode, steps = _places_of(node), np.arange(count, dtype=np.float32)
    if count == 1 and mode in ("pytorch_half_pixel", "align_corners"):
        places = steps
    elif mode == "align_corners":
        places = steps * np.float32(size - 1) / np.float32(count - 1)
    else:
        offset = np.float32(0) if mode == "asymmetric" else _HALF
        places = (steps + offset) / factor - offset
    rounded = _ROUNDED[node.attributes.get_string("nearest_mode", "round_prefer_floor")](places)
    weights = np.zeros((size, count), np.float32)
    weights[np.clip(rounded, 0, size - 1).astype(np.int64), np.arange(count)] = 1
    return weights


def _matrix(node: ir.Node, growth: _Growth, axis: int, size: int, opset: int) -> Array:
    """Return the weights of each element of an axis in each element of the result."""
    if node.attributes.get_string("mode", "nearest") == "nearest":
        return _nearest(node, growth, axis, size)
    from onnx.reference import ReferenceEvaluator  # takes a while to load

    one = ir.to_proto(node)
    slot: int = growth.slot
    number = growth.numbers[axis]
    if aligns_corners(node) and slot == _SCALES:  # of the sizes that are rounded
        slot, number = _SIZES, np.int64(np.float32(number) * np.float32(size))
    one.input[:] = [*["x", "", ""][:slot], "numbers"]
    one.output[:] = ["y"]
    values = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in ("x", "y")]
    first = size if slot == _SIZES else 1
    numbers = numpy_helper.from_array(np.array([first, number]).astype(number.dtype), "numbers")
    graph = helper.make_graph([one], "axis", values[:1], values[1:], [numbers])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    (made,) = ReferenceEvaluator(model).run(None, {"x": np.eye(size, dtype=np.float32)})
    weights = np.asarray(made)
    if weights.shape[1] == 1 and _places_of(node) == "pytorch_half_pixel":  # which the reference puts elsewhere
        weights = np.eye(size, 1, dtype=np.float32)
    return weights


_NO_SCALES = 13
"""The first opset of a Resize that needs no scales beside its sizes."""

_MOST_PARTS = 64
"""The largest denominator of a scale of an open size: floats hold their product exactly."""


def write_sizes(model: AdaptedModel) -> int:
    """Write, in place, the sizes of each Resize that aligns corners and rounds them; return their number."""
    nodes = sized_resizes(model)
    for node in nodes:
        ratios = _ratios(node, model)
        parts = [[ratio.numerator for ratio in ratios or ()], [ratio.denominator for ratio in ratios or ()]]
        sizes = model.before(node, "Shape", [node.inputs[0]])
        for operator, factors in zip(("Mul", "Div"), parts, strict=True):
            sizes = model.before(node, operator, [sizes, model.constant(node, factors)])
        scales = node.inputs[_SCALES]
        node.resize_inputs(_SIZES + 1)
        node.replace_input_with(_SCALES, None)
        node.replace_input_with(_SIZES, sizes)
        drop_unused([scales])
    return len(nodes)


def sized_resizes(model: AdaptedModel) -> set[ir.Node]:
    """Return the nodes whose sizes `write_sizes` writes."""
    return {node for node in model.nodes("Resize", since=_NO_SCALES) if _ratios(node, model) is not None}


def _ratios(node: ir.Node, model: AdaptedModel) -> list[Fraction] | None:
    """Return by what each size is multiplied, before it is rounded down; None for any other Resize."""
    shape, scales = model.shape_of(node.inputs[0]), model.constant_of(input_at(node, _SCALES))
    if shape is None or scales is None or scales.size != len(shape) or not aligns_corners(node):
        return None
    numbers = array_of(scales).tolist()
    if _is_otherwise(node) or not rounds(node, shape, numbers):
        return None
    ratios = [_ratio(size, scale) for size, scale in zip(shape, numbers, strict=True)]
    known = [ratio for ratio in ratios if ratio is not None]
    return known if len(known) == len(ratios) else None


def _ratio(size: int | ir.SymbolicDim, scale: float) -> Fraction | None:
    """Return the ratio of the size behind and a size, where that is known; else its scale, if it is exact."""
    if isinstance(size, int) and size > 0:
        return Fraction(int(np.float32(scale) * np.float32(size)), size)
    exact = Fraction(scale)
    return exact if exact.denominator <= _MOST_PARTS else None
