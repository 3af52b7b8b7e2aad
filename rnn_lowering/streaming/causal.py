"""Operators along the frames: convolutions, poolings, paddings and what trims them keep their past as a state.

A value that starts `before` frames early (after a padding on the left) is in a chunk so many frames longer, and a
convolution without paddings removes them again. A node that looks ahead is refused with its number of frames.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from rnn_lowering.streaming.frame_rules import frame_by_frame
from rnn_lowering.streaming.frames import Context, Flow, Frames, Framing, Unframed
from rnn_lowering.types import Array

WINDOWED = frozenset(("Conv", "ConvTranspose", "MaxPool", "AveragePool", "LpPool"))


@dataclass(frozen=True)
class _Window:
    """What a convolution reads along the frames: output j reads frames j * stride - left to + span."""

    span: int
    stride: int
    left: int
    right: int


def windowed(flow: Flow, node: ir.Node) -> list[Framing]:
    """The framing of a convolution's or pooling's output; its past frames become a state."""
    value = node.inputs[0]
    framing = None if value is None else flow.framing(value, node)
    if not isinstance(framing, Frames) or framing.axis < 2 or value is None:
        return frame_by_frame(flow, node)
    if not framing.plain or flow.joined(node, [v for v in node.inputs[1:] if v is not None]) is not None:
        raise flow.refuse(node, "its frames are merged with another axis, or its weights depend on them")
    if len([v for v in node.outputs if v.name]) > 1:
        raise flow.refuse(node, "gives positions, which would start anew with each chunk")
    window, pads = _window(flow, node, framing)
    before, behind = framing.before + window.left - window.span, framing.behind + window.right
    if window.stride > 1:
        before, behind = before + window.stride - 1, 0
    if before < 0:
        raise _looks_ahead(flow, node, -before, framing.behind + window.right)
    if window.stride > 1:
        if before >= window.stride or not framing.stride == 1:
            raise flow.refuse(node, f"a stride of {window.stride} over time with such paddings does not fit chunks")
        flow.strided.append((node, window.stride))
        before = 0
    if window.left or window.right:
        overlap = framing.before + min(framing.behind, 0)
        initial = _before_first(flow, node, value) if window.left else 0.0
        flow.contexts.append(Context(node, 0, framing.axis, window.left, initial, overlap, pads, flow.path))
    found = replace(framing, before=before, behind=behind, stride=framing.stride * window.stride)
    return [flow.framed(node, node.outputs[0], found)]


def _looks_ahead(flow: Flow, node: ir.Node, missing: int, behind: int) -> Exception:
    if behind > 0:
        frames = f"{missing} frame{'s' if missing > 1 else ''}"
        return flow.refuse(
            node,
            f"looks {frames} ahead: the stream would have to wait for a delay of {frames}",
            "pad on the left only when training, so that it is causal",
        )
    return flow.refuse(node, f"gives nothing for the first {missing} frames", f"pad {missing} frames on the left")


def _window(flow: Flow, node: ir.Node, framing: Frames) -> tuple[_Window, tuple[int, ...]]:
    """Return what a node reads along the frames, and all its paddings without those over time."""
    n, attributes = framing.axis - 2, node.attributes
    value, weights = node.inputs[0], node.inputs[1] if len(node.inputs) > 1 else None
    assert value is not None
    shape = flow.shape(value, node)
    rank = len(shape) - 2
    kernel = attributes.get_ints("kernel_shape", ())
    if not kernel and weights is not None:
        kernel = flow.shape(weights, node)[2:]
    if not kernel or attributes.get_int("ceil_mode") or attributes.get_ints("output_shape"):
        raise flow.refuse(node, "ceil_mode, output_shape or a missing kernel_shape do not fit chunks")
    dilations = attributes.get_ints("dilations", ()) or [1] * rank
    strides = attributes.get_ints("strides", ()) or [1] * rank
    spans = [(k - 1) * d for k, d in zip(kernel, dilations, strict=True)]
    pads = _pads(node, shape[2:], spans, strides)
    left, right, span = pads[n], pads[n + rank], spans[n]
    if node.op_type == "ConvTranspose":  # the same as a Conv whose paddings are what this one does not cut off
        if strides[n] != 1 or any(attributes.get_ints("output_padding", ())):
            raise flow.refuse(node, f"a stride of {strides[n]} over time gives more frames than there are")
        left, right = span - left, span - right
    kept = span if node.op_type == "ConvTranspose" else 0
    without = [kept if axis % rank == n else pad for axis, pad in enumerate(pads)]
    return _Window(span, strides[n], left, right), tuple(without)


def _pads(node: ir.Node, sizes: tuple[int, ...], spans: Sequence[int], strides: Sequence[int]) -> list[int]:
    """The paddings of all spatial axes, first those at the starts."""
    auto = node.attributes.get_string("auto_pad", "NOTSET")
    rank = len(sizes)
    if not auto.startswith("SAME"):
        given = node.attributes.get_ints("pads", ()) if auto == "NOTSET" else ()
        return list(given or [0] * 2 * rank)
    totals = [
        max((math.ceil(size / stride) - 1) * stride + span + 1 - size, 0)
        for size, span, stride in zip(sizes, spans, strides, strict=True)
    ]
    less = [total // 2 for total in totals]
    more = [total - half for total, half in zip(totals, less, strict=True)]
    return [*less, *more] if auto == "SAME_UPPER" else [*more, *less]


def _before_first(flow: Flow, node: ir.Node, value: ir.Value) -> float:
    """What a node's own padding is filled with."""
    if node.op_type == "MaxPool":
        dtype = flow.short.types[value].numpy()
        return float(np.finfo(dtype).min) if dtype.kind == "f" else float(np.iinfo(dtype).min)
    if node.op_type == "AveragePool" and not node.attributes.get_int("count_include_pad", 0):
        raise flow.refuse(
            node, "averages over fewer frames at the start", "set count_include_pad, or pad before it"
        )
    return 0.0


def padded(flow: Flow, node: ir.Node) -> list[Framing]:
    """The framing of a Pad's output; frames that it puts before the stream become a state."""
    value, output = node.inputs[0], node.outputs[0]
    framing = None if value is None else flow.framing(value, node)
    if not isinstance(framing, Frames) or value is None:
        return [framing if framing is None else flow.framed(node, output, framing)]
    rank = len(flow.shape(value, node))
    pads = _given_pads(flow, node, rank)
    left, right = pads[framing.axis], pads[framing.axis + rank]
    if left == right == 0:
        return [flow.framed(node, output, framing)]
    if (node.attributes.get_string("mode", "constant")) != "constant" or min(left, right) < 0 or not framing.plain:
        raise flow.refuse(node, "pads the frames with what is not a constant, or cuts them off", "use a Slice")
    without = tuple(0 if axis % rank == framing.axis else pad for axis, pad in enumerate(pads))
    overlap = framing.before + min(framing.behind, 0)
    flow.contexts.append(Context(node, 0, framing.axis, left, _filling(flow, node), overlap, without, flow.path))
    return [
        flow.framed(node, output, replace(framing, before=framing.before + left, behind=framing.behind + right))
    ]


def _given_pads(flow: Flow, node: ir.Node, rank: int) -> list[int]:
    """The paddings of all axes, first those at the starts."""
    if flow.opset < 11:
        return list(node.attributes.get_ints("pads", ()) or [0] * 2 * rank)
    given = _parameter(flow, node, 1)
    chosen = node.inputs[3] if len(node.inputs) > 3 else None
    axes = range(rank) if chosen is None else [int(a) % rank for a in _parameter(flow, node, 3)]
    pads = [0] * 2 * rank
    for n, axis in enumerate(axes):
        pads[axis], pads[axis + rank] = int(given[n]), int(given[n + len(axes)])
    return pads


def _filling(flow: Flow, node: ir.Node) -> float:
    if flow.opset < 11:
        return float(node.attributes.get_float("value", 0.0) or 0.0)
    return float(_parameter(flow, node, 2).reshape(-1)[0]) if len(node.inputs) > 2 and node.inputs[2] else 0.0


def _parameter(flow: Flow, node: ir.Node, slot: int) -> Array:
    value = node.inputs[slot]
    held = None if value is None else flow.constant(value)
    if held is None:
        raise flow.refuse(node, f"input {slot} is no constant, or depends on the number of frames")
    return held.reshape(-1)


def joined_along(flow: Flow, node: ir.Node) -> list[Framing]:
    """The framing of a Concat's output; constant frames before the stream become a state."""
    values = [v for v in node.inputs if v is not None]
    rank = len(flow.shape(values[0], node))
    axis = (node.attributes.get_int("axis", 1) or 0) % max(rank, 1)
    framings = {v: flow.framings.get(v) for v in values}
    along = [n for n, v in enumerate(values) if isinstance(m := framings[v], Frames) and m.axis == axis]
    if not along:
        return frame_by_frame(flow, node)
    (first, *others), rest = along, [v for n, v in enumerate(values) if n not in along]
    framing = framings[values[first]]
    constants = {v: held for v in rest if (held := flow.constant(v)) is not None}
    if others or len(constants) < len(rest) or not isinstance(framing, Frames) or not framing.plain:
        raise flow.refuse(
            node, "joins frames with others along the axis of time", "only constants can be put there"
        )
    lead = [constants[v] for v in values[:first]]
    left = sum(array.shape[axis] for array in lead)
    right = sum(constants[v].shape[axis] for v in values[first + 1 :])
    initial: float | Array = np.concatenate(lead, axis) if lead else 0.0
    overlap = framing.before + min(framing.behind, 0)
    flow.contexts.append(
        Context(node, node.inputs.index(values[first]), axis, left, initial, overlap, (), flow.path)
    )
    return [
        flow.framed(
            node, node.outputs[0], replace(framing, before=framing.before + left, behind=framing.behind + right)
        )
    ]


def picked(flow: Flow, node: ir.Node) -> list[Framing]:
    """The framing of a Gather's output: the last frame, where it picks one."""
    value, index = node.inputs[0], node.inputs[1]
    framing = None if value is None else flow.framing(value, node)
    if value is None or index is None or not isinstance(framing, Frames):
        return frame_by_frame(flow, node)
    shape = flow.shape(value, node)
    if (node.attributes.get_int("axis", 0) or 0) % len(shape) != framing.axis:
        return frame_by_frame(flow, node)
    held = [sized.constant(index) for sized in (flow.short, flow.long)]
    sizes = [framing.size(count) for count in flow.counts]
    last = all(
        h is not None and h.size == 1 and int(h.item()) in (-1, n - 1) for h, n in zip(held, sizes, strict=True)
    )
    if last and framing.even and framing.plain:
        return [Unframed.LAST]
    raise flow.refuse(
        node, "picks frames by their position in the whole sequence", "only the last one can be picked"
    )
