"""What MNN computes wrongly of tensors of four and more axes, done in tensors of fewer.

A Slice with a negative step ends the process, and pads along the first axis are other numbers. A Gemm of a
transposed first matrix is wrong too. A Conv in groups along one axis of open size is rejected behind some nodes,
and right along two. An AveragePool counts no more pads behind an axis than before it. Behind a Pad by zeros at
both ends of one axis, parts of a Reshape are other rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir

from rnn_lowering.decomposition.adapted_model import AdaptedModel
from rnn_lowering.facts.constants import bounds_at, integers_at
from rnn_lowering.facts.operators import input_at
from rnn_lowering.types import array_of

_OF_AXES = 18
"""The first opset of a Pad that names axes."""

_MANY_AXES = 4
"""From so many axes of a tensor on they are wrong."""

_ROWS = 3
"""The axes of what a Conv along one axis reads."""

_AXES_OF_INPUTS = 13
"""The first opset of an Unsqueeze whose axes are an input."""

_OF_INPUTS = 11
"""The first opset at which the bounds of a Slice and the numbers of a Pad are inputs."""


def transpose_apart(model: AdaptedModel) -> int:
    """Transpose, in place, the first matrix of each Gemm by a node of its own; return the number of Gemms."""
    nodes = [node for node in model.nodes("Gemm") if node.attributes.get_int("transA", 0)]
    for node in nodes:
        node.replace_input_with(0, model.before(node, "Transpose", node.inputs[:1], perm=[1, 0]))
        del node.attributes["transA"]
    return len(nodes)


def convolve_planes(model: AdaptedModel) -> int:
    """Give each Conv in groups along an axis of open size another one, of size 1, in place; return their number."""
    nodes = [node for node in model.nodes("Conv", since=_AXES_OF_INPUTS) if _has_groups_of_rows(node, model)]
    for node in nodes:
        row = model.constant(node, [2])
        x, weights = (model.before(node, "Unsqueeze", [value, row]) for value in node.inputs[:2])
        attributes = {name: _of_planes(name, attribute) for name, attribute in node.attributes.items()}
        planes = model.before(node, "Conv", [x, weights, *node.inputs[2:]], **attributes)
        model.replace(node, model.before(node, "Squeeze", [planes, row]))
    return len(nodes)


def _has_groups_of_rows(node: ir.Node, model: AdaptedModel) -> bool:
    """Whether a Conv along one axis of open size is in groups of which each is not one channel alone."""
    shape, weights = model.shape_of(node.inputs[0]), model.constant_of(node.inputs[1])
    groups = node.attributes.get_int("group", 1)
    if shape is None or len(shape) != _ROWS or isinstance(shape[-1], int) or weights is None or groups == 1:
        return False
    return tuple(weights.shape.numpy()[:2]) != (groups, 1)


def _of_planes(name: str, attribute: ir.Attr) -> object:
    """Return an attribute of a Conv along one axis with that of an axis of size 1 in front."""
    if name == "pads":
        begin, end = attribute.as_ints()
        return [0, begin, 0, end]
    return [1, *attribute.as_ints()] if name in ("kernel_shape", "strides", "dilations") else attribute.value


def flips_of_planes(model: AdaptedModel) -> set[ir.Node]:
    """Return each Slice that `flip_rows` replaces: with a negative step, of known bounds and sizes."""
    return {node for node in model.nodes("Slice", since=_OF_INPUTS) if _rows_of(node, model)}


def flip_rows(model: AdaptedModel) -> int:
    """Write, in place, each of them as one of three axes for each of its axes; return their number."""
    nodes = {node: (_sizes(node, model), _rows_of(node, model)) for node in flips_of_planes(model)}
    for node, (sizes, bounds) in nodes.items():
        value = node.inputs[0]
        assert sizes is not None
        for axis, (start, end, step) in bounds.items():
            flat = model.before(node, "Reshape", [value], shape=_in_three(sizes, axis))
            rows = model.before(node, "Slice", [flat], starts=[start], ends=[end], axes=[1], steps=[step])
            size = sizes[axis]
            sizes[axis] = None if size is None else _count_of(size, start, end, step)
            value = model.before(node, "Reshape", [rows], shape=[-1 if n is None else n for n in sizes])
        assert value is not None
        model.replace(node, value, node.inputs[1:])
    return len(nodes)


def _count_of(size: int, start: int, end: int, step: int) -> int:
    """Return how many rows a Slice takes: a backwards one that begins before the first row begins at it."""
    first, last = (bound + size if bound < 0 else bound for bound in (start, end))
    if step < 0:
        first, last = min(max(first, 0), size - 1), min(max(last, -1), size - 1)
    else:
        first, last = (min(max(bound, 0), size) for bound in (first, last))
    return max(0, -((first - last) // step))


def _sizes(node: ir.Node, model: AdaptedModel) -> list[int | None] | None:
    """Return the sizes of a tensor of many axes, all but one of them known."""
    shape = model.shape_of(node.inputs[0])
    sizes = [size if isinstance(size, int) else None for size in shape or ()]
    return sizes if len(sizes) >= _MANY_AXES and sizes.count(None) <= 1 else None


def _in_three(sizes: Sequence[int | None], axis: int) -> list[int]:
    """Return the shape of a tensor whose axes before and behind one are joined."""
    groups = sizes[:axis], sizes[axis : axis + 1], sizes[axis + 1 :]
    return [-1 if None in group else math.prod(size or 0 for size in group) for group in groups]


def _rows_of(node: ir.Node, model: AdaptedModel) -> dict[int, Sequence[int]]:
    """Return the start, end and step of each axis of a Slice; nothing if it is not replaced."""
    sizes, bounds = _sizes(node, model), bounds_at(node, model.opset) or []
    if sizes is None or all(step > 0 for *_, step in bounds):
        return {}
    if any(step < 0 and sizes[axis] is None for axis, *_, step in bounds):
        return {}
    return {axis % len(sizes): bound for axis, *bound in bounds}


def pad_every_axis(model: AdaptedModel) -> str | None:
    """Write, in place, the pads of each Pad that names axes for all axes; return what was done, for the user."""
    count = 0
    for node in model.nodes("Pad", since=_OF_AXES):
        shape, pads, axes = (
            model.shape_of(node.inputs[0]),
            integers_at(node, "pads", model.opset),
            input_at(node, 3),
        )
        numbers = None if axes is None else model.constant_of(axes)
        if shape is None or pads is None or numbers is None:
            continue
        named = [int(axis) % len(shape) for axis in array_of(numbers).reshape(-1)]
        half = len(pads) // 2
        whole = [
            [dict(zip(named, part, strict=True)).get(n, 0) for n in range(len(shape))]
            for part in (pads[:half], pads[half:])
        ]
        node.replace_input_with(1, model.constant(node, [*whole[0], *whole[1]]))
        node.resize_inputs(3)
        count += 1
    return f"takes no Pad of some axes: wrote the pads of {count} for all" if count else None


def pads_of_batches(model: AdaptedModel) -> set[ir.Node]:
    """Return each Pad that `pad_batches` replaces: along the first axis of four, or along some of more."""
    return {node for node in model.nodes("Pad", since=_OF_INPUTS) if _axes_apart(node, model)}


def pad_batches(model: AdaptedModel) -> int:
    """Pad, in place, these axes of each of them in a tensor of three axes; return their number."""
    nodes = {node: (_sizes(node, model), _axes_apart(node, model)) for node in pads_of_batches(model)}
    for node, (sizes, axes) in nodes.items():
        pads = integers_at(node, "pads", model.opset)
        assert sizes is not None
        assert pads is not None
        rank, value = len(sizes), node.inputs[0]
        for axis in axes:
            begin, end = pads[axis], pads[rank + axis]
            flat = model.before(node, "Reshape", [value], shape=_in_three(sizes, axis))
            ends = model.constant(node, [0, begin, 0, 0, end, 0])
            padded = model.before(node, "Pad", [flat, ends, *node.inputs[2:3]], **node.attributes)
            size = sizes[axis]
            sizes[axis] = None if size is None else size + begin + end
            value = model.before(node, "Reshape", [padded], shape=[-1 if n is None else n for n in sizes])
            pads[axis] = pads[rank + axis] = 0
        node.replace_input_with(0, value)
        node.replace_input_with(1, model.constant(node, pads))
        if not any(pads):
            assert value is not None
            model.replace(node, value)
    return len(nodes)


def _axes_apart(node: ir.Node, model: AdaptedModel) -> list[int]:
    """Return the axes that are padded apart; none of a Pad that is not replaced."""
    sizes, pads = _sizes(node, model), integers_at(node, "pads", model.opset)
    if sizes is None or not pads or len(pads) != 2 * len(sizes) or len(node.inputs) > len(("x", "pads", "number")):
        return []
    rank = len(sizes)
    axes = range(rank if rank > _MANY_AXES else 1)
    return [axis for axis in axes if pads[axis] > 0 or pads[rank + axis] > 0]


def pad_counted(model: AdaptedModel) -> int:
    """Put a Pad, in place, before each AveragePool that counts more pads behind an axis than before it; return
    their number."""
    nodes = [node for node in model.nodes("AveragePool") if _counts_ends(node)]
    for node in nodes:
        ends = node.attributes.get_ints("pads", ())
        half = len(ends) // 2
        pads = [0, 0, *ends[:half], 0, 0, *ends[half:]]
        node.replace_input_with(0, model.before(node, "Pad", node.inputs[:1], pads=pads))
        for name in ("pads", "count_include_pad"):
            del node.attributes[name]
    return len(nodes)


def _counts_ends(node: ir.Node) -> bool:
    pads = node.attributes.get_ints("pads", ())
    behind = zip(pads[: len(pads) // 2], pads[len(pads) // 2 :], strict=True)
    return node.attributes.get_int("count_include_pad", 0) != 0 and any(end > begin for begin, end in behind)


def part_pads(model: AdaptedModel) -> int:
    """Write, in place, each Pad by zeros at both ends of one axis as two; return their number."""
    nodes = [node for node in model.nodes("Pad", since=_OF_INPUTS) if _pads_both_ends(node, model)]
    for node in nodes:
        pads = integers_at(node, "pads", model.opset) or []
        half, others = len(pads) // 2, list(node.inputs[2:])
        first, last = pads[:half] + [0] * half, [0] * half + pads[half:]
        before = model.before(
            node, "Pad", [node.inputs[0], model.constant(node, first), *others], **node.attributes
        )
        node.replace_input_with(0, before)
        node.replace_input_with(1, model.constant(node, last))
    return len(nodes)


def _pads_both_ends(node: ir.Node, model: AdaptedModel) -> bool:
    pads, fill = integers_at(node, "pads", model.opset), input_at(node, 2)
    number = None if fill is None else model.constant_of(fill)
    zeros = fill is None or (number is not None and not array_of(number).any())
    if not pads or not zeros or node.attributes.get_string("mode", "constant") != "constant":
        return False
    half = len(pads) // 2
    padded = [(a, b) for a, b in zip(pads[:half], pads[half:], strict=True) if a or b]
    return len(padded) == 1 and min(padded[0]) > 0
