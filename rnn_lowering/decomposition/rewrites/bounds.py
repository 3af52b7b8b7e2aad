"""Bounds of numbers, as a runtime computes them right.

Of a norm that is clipped and expanded pnnx makes one along another axis, but not with a Max. OpenCV clips no
integers but int32, and its Tanh is NaN between 45 and 88. MNN loses a Squeeze in front of a Clip.

A Sigmoid of a large negative number is 0, or bounded, long before its logarithm is out of range: from -15 on in
tract, -87 in MNN, -88 in OpenCV and OpenVINO.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir

from rnn_lowering.decomposition.adapted_model import AdaptedModel
from rnn_lowering.decomposition.rewrites.reductions import REDUCTIONS
from rnn_lowering.facts.operators import input_at, is_of_default_domain

_OF_INPUTS = 11
"""The first opset of a Clip whose bounds are inputs."""

_MAX_OF_ALL = 12
"""The first opset at which Clip and Max take the same types."""


def bound_by_max(model: AdaptedModel) -> int:
    """Write each Clip of a reduction by a lower bound only as Max, in place; return their number."""
    return _bound(model, [clip for clip in _clips(model) if _is_lower_bound(clip)])


def bound_integers(model: AdaptedModel) -> int:
    """Write each Clip of integers but int32 as Max and Min, in place; return their number."""

    def is_integer(x: ir.Value | None) -> bool:
        dtype = model.dtype_of(x)
        return dtype is not None and dtype.is_integer() and dtype != ir.DataType.INT32

    return _bound(model, [clip for clip in _clips(model) if is_integer(clip.inputs[0])])


def bound_squeezed(model: AdaptedModel) -> int:
    """Write each Clip of floats behind a Squeeze as Max and Min, in place; return their number."""

    def is_squeezed(x: ir.Value | None) -> bool:
        source, dtype = None if x is None else x.producer(), model.dtype_of(x)
        return (
            source is not None and source.op_type == "Squeeze" and dtype is not None and dtype.is_floating_point()
        )

    return _bound(model, [clip for clip in _clips(model, since=_OF_INPUTS) if is_squeezed(clip.inputs[0])])


def _clips(model: AdaptedModel, since: int = _MAX_OF_ALL) -> list[ir.Node]:
    return [node for node in model.nodes("Clip", since=since) if any(node.inputs[1:])]


def _bound(model: AdaptedModel, clips: Sequence[ir.Node]) -> int:
    """Write Clips as Max and Min; return their number."""
    for node in clips:
        value = node.inputs[0]
        for operator, bound in zip(("Max", "Min"), node.inputs[1:], strict=False):
            value = value if bound is None else model.before(node, operator, [value, bound])
        assert value is not None
        model.replace(node, value)
    return len(clips)


def _is_lower_bound(clip: ir.Node) -> bool:
    x, (low, high, *_) = clip.inputs[0], (*clip.inputs[1:], None, None)
    source = None if x is None else x.producer()
    return source is not None and source.op_type in REDUCTIONS and low is not None and high is None


_FLAT = 20.0
"""From here on tanh is 1 in every element type."""

_NAN_FROM = 45.0
"""From here on it is NaN in OpenCV."""


def bound_tanh(model: AdaptedModel) -> int:
    """Clip what each Tanh of floats reads, in place; return how many had no bounds."""
    count = 0
    for node in model.nodes("Tanh"):
        x = node.inputs[0]
        before, dtype = None if x is None else x.producer(), model.dtype_of(x)
        if dtype is None or (before is not None and _is_bounded(before, model)):
            continue
        if model.opset < _OF_INPUTS:
            bounded = model.before(node, "Clip", [x], min=-_FLAT, max=_FLAT)
        else:
            bounds = [model.constant(node, number, dtype.numpy(), "bound") for number in (-_FLAT, _FLAT)]
            bounded = model.before(node, "Clip", [x, *bounds])
        node.replace_input_with(0, bounded)
        count += 1
    return count


def _is_bounded(node: ir.Node, model: AdaptedModel) -> bool:
    """Whether a node is a Clip that keeps what a Tanh reads below, as that of a lowered node."""
    if node.op_type != "Clip":
        return False
    high = input_at(node, 2)
    number = model.constant_of(high) if model.opset >= _OF_INPUTS else None
    most = number.numpy().item() if number is not None else node.attributes.get_float("max", math.inf)
    return bool(most < _NAN_FROM)


_MIN_OF_ANY = 8
"""The first opset of a Min that broadcasts."""


def write_logarithms(model: AdaptedModel) -> int:
    """Write each Log of a Sigmoid of x as min(x, 0) - log(1 + exp(-|x|)), in place; return their number."""
    return sum(_write_logarithm(node, model) for node in model.nodes("Log", since=_MIN_OF_ANY))


def _write_logarithm(node: ir.Node, model: AdaptedModel) -> bool:
    sigmoid, dtype = node.inputs[0], model.dtype_of(node.inputs[0])
    source = None if sigmoid is None else sigmoid.producer()
    if source is None or source.op_type != "Sigmoid" or not is_of_default_domain(source) or dtype is None:
        return False
    zero, one = (model.constant(node, number, dtype.numpy(), "number") for number in (0, 1))
    x = source.inputs[0]
    power = model.before(node, "Exp", [model.before(node, "Neg", [model.before(node, "Abs", [x])])])
    curve = model.before(node, "Log", [model.before(node, "Add", [power, one])])
    low = model.before(node, "Min", [x, zero])
    model.replace(node, model.before(node, "Sub", [low, curve]), [sigmoid])
    return True
