"""Pools along three axes, which MNN computes wrongly, as two: along the last two axes, then along the first.

The largest number of a box, or its mean, is that of its columns' own, also at the edges. For OpenCV, means count no
pads where there are none.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import onnx_ir as ir

from rnn_lowering.decomposition.adapted_model import AdaptedModel
from rnn_lowering.targets.misread import begins_behind, pads, windows_of

_VOLUME = 3
"""The axes along which these pools are."""

_OF_INPUTS = 5
"""The first opset of a Reshape whose shape is an input."""


def pools_of_volumes(model: AdaptedModel) -> set[ir.Node]:
    """Return the pools that `part_pools` replaces: of known sizes, save the batch, not dilated or rounded up."""
    return {node for node in model.nodes("AveragePool", "MaxPool", since=_OF_INPUTS) if _can_part(node, model)}


def part_pools(model: AdaptedModel) -> int:
    """Write, in place, each of them as two pools; return their number."""
    found = pools_of_volumes(model)
    for node in found:
        _part(node, model)
    return len(found)


def _can_part(node: ir.Node, model: AdaptedModel) -> bool:
    shape = model.shape_of(node.inputs[0])
    if shape is None or not _known(shape[1:]) or len(node.attributes.get_ints("kernel_shape", ())) != _VOLUME:
        return False
    plain = node.attributes.get_string("auto_pad", "NOTSET") in ("NOTSET", "VALID") and len(node.outputs) == 1
    dilated = max(node.attributes.get_ints("dilations", (1,))) > 1
    return plain and not dilated and not node.attributes.get_int("ceil_mode", 0)


def _known(sizes: Iterable[int | ir.SymbolicDim]) -> bool:
    return all(isinstance(size, int) for size in sizes)


def _part(node: ir.Node, model: AdaptedModel) -> None:
    N, C, *sizes = (size if isinstance(size, int) else -1 for size in model.shape_of(node.inputs[0]) or ())
    kernel, others = list(node.attributes.get_ints("kernel_shape")), dict(node.attributes)
    strides = list(node.attributes.get_ints("strides", (1,) * _VOLUME))
    around = list(node.attributes.get_ints("pads", (0,) * 2 * _VOLUME))
    whole = [size + around[n] + around[n + _VOLUME] for n, size in enumerate(sizes)]
    found = [(size - k) // stride + 1 for size, k, stride in zip(whole, kernel, strides, strict=True)]
    for name in ("auto_pad", "kernel_shape", "strides", "pads", "dilations"):
        others.pop(name, None)

    def pool(x: ir.Value | None, shape: list[int], k: list[int], s: list[int], p: list[int]) -> ir.Value:
        planes = model.before(node, "Reshape", [x], shape=shape)
        return model.before(node, node.op_type, [planes], kernel_shape=k, strides=s, pads=p, **others)

    rows = pool(node.inputs[0], [N, C * sizes[0], *sizes[1:]], kernel[1:], strides[1:], [*around[1:3], *around[4:]])
    columns = [N, C, sizes[0], math.prod(found[1:])]
    value = pool(rows, columns, [kernel[0], 1], [strides[0], 1], [around[0], 0, around[_VOLUME], 0])
    model.replace(node, model.before(node, "Reshape", [value], shape=[N, C, *found]))


def count_no_pads(model: AdaptedModel) -> int:
    """Let each AveragePool that is rounded up and has no pads count none, in place; return their number."""
    pools = [node for node in model.nodes("AveragePool") if node.attributes.get_int("ceil_mode", 0)]
    found = [node for node in pools if node.attributes.get_int("count_include_pad", 0) and not pads(node)]
    for node in found:
        del node.attributes["count_include_pad"]
    return len(found)


def floored_pools(model: AdaptedModel) -> set[ir.Node]:
    """Return each pool that is rounded up for a window behind the input only: ONNX has none there."""
    return {node for node in model.nodes("AveragePool", "MaxPool") if _rounds_for_nothing(node, model)}


def floor_pools(model: AdaptedModel) -> int:
    """Round each of them down, in place; return their number."""
    found = floored_pools(model)
    for node in found:
        del node.attributes["ceil_mode"]
    return len(found)


def _rounds_for_nothing(node: ir.Node, model: AdaptedModel) -> bool:
    windows = windows_of(node, model.shape_of(node.inputs[0]))
    known = windows is not None and all(isinstance(each.size, int) for each in windows)
    return known and any(map(begins_behind, windows or ())) and not any(each.adds for each in windows or ())
