"""Operators along the frames: convolutions, poolings, paddings, Concat, Slice and Gather.

What reads frames before its own keeps these as a state: the chunk is put behind them, and its paddings over time
go. A node that looks ahead is refused with its number of frames.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from rnn_lowering.streaming.frame_by_frame import frame_by_frame
from rnn_lowering.streaming.frames import Flow, Frames, Framing, PastFrames, Trim, Unframed, WholeSequenceValue
from rnn_lowering.streaming.inference import TO_THE_END, pads, position, slice_bounds
from rnn_lowering.streaming.polynomials import Size, first_frames, size
from rnn_lowering.types import Array

WINDOWED = frozenset(("Conv", "ConvTranspose", "MaxPool", "AveragePool", "LpPool"))


@dataclass(frozen=True)
class _Window:
    """What a convolution reads along the frames: output j reads frames j * stride - left to + span."""

    span: int
    stride: int
    left: int
    right: int


def _framed_input(flow: Flow, node: ir.Node) -> tuple[ir.Value, Frames] | None:
    """What a node reads, where that holds frames."""
    value = node.inputs[0]
    framing = None if value is None else flow.framing(value, node)
    return (value, framing) if value is not None and isinstance(framing, Frames) else None


def windowed(flow: Flow, node: ir.Node) -> list[Framing]:
    """The framing of a convolution's or pooling's output; its past frames become a state."""
    held = _framed_input(flow, node)
    if held is None or held[1].axis < 2:
        return frame_by_frame(flow, node)
    value, framing = held
    if not framing.plain or any(v is not None and flow.is_timed(v) for v in node.inputs[1:]):
        raise flow.refuse(node, "its frames are merged with another axis, or its weights depend on them")
    if len([v for v in node.outputs if v.name]) > 1:
        raise flow.refuse(node, "returns positions, which would restart in each chunk")
    window, without = _window(flow, node, framing)
    stride, over = window.stride, window.left - window.span - 1
    if min(window.left, window.right) < 0:
        raise flow.refuse(node, "removes frames with its paddings", "use a Slice")
    known = (framing.known + over) // stride + 1
    if known < 0:
        raise _looks_ahead(flow, node, -(framing.known + over + 1), framing.extra - framing.known + window.right)
    extra = (framing.extra + over + window.right) // stride + 1
    settled = _settled(flow, node, framing, window.right, extra, known)
    if settled < known and stride > 1:
        raise flow.refuse(
            node, f"a stride of {stride} over time does not fit the frames that are cut off before it"
        )
    found = replace(framing, extra=extra, known=settled, stride=framing.stride * stride)
    if stride > 1:
        flow.strided.append((node, found.stride))
        flow.known.unit = math.lcm(flow.known.unit, found.stride)
    if window.left or window.right:
        initial = _before_first(flow, node, value) if window.left else 0.0
        _keep(flow, node, 0, framing, window.left, initial, without, known - settled)
    return [flow.resized(node, node.outputs[0], found)]


def _keep(
    flow: Flow,
    node: ir.Node,
    slot: int,
    framing: Frames,
    past: int,
    initial: float | Array,
    without: tuple[int, ...],
    drop: int,
) -> None:
    flow.contexts.append(
        PastFrames(node, slot, framing.axis, past, initial, framing.known, without, drop, flow.path)
    )


def _settled(flow: Flow, node: ir.Node, framing: Frames, right: int, extra: int, known: int) -> int:
    """How many frames a chunk has besides its own, once what the whole has lost at the end is taken off."""
    if framing.cut and right > 0:
        raise flow.refuse(
            node,
            f"puts {right} frames at the end after the last {framing.known - framing.extra} were cut off",
            "a stream never knows which frames are the last",
        )
    return min(known, max(extra, 0))


def _looks_ahead(flow: Flow, node: ir.Node, missing: int, behind: int) -> Exception:
    if behind > 0:
        frames = f"{missing} frame{'s' if missing > 1 else ''}"
        return flow.refuse(
            node,
            f"looks {frames} ahead, so the stream would need a delay of {frames}",
            "train with padding on the left only, so that it is causal",
        )
    return flow.refuse(node, f"has no result for the first {missing} frames", f"pad {missing} frames on the left")


def _window(flow: Flow, node: ir.Node, framing: Frames) -> tuple[_Window, tuple[int, ...]]:
    """Return what a node reads along the frames, and all its paddings without those over time."""
    n, attributes = framing.axis - 2, node.attributes
    value, weights = node.inputs[0], node.inputs[1] if len(node.inputs) > 1 else None
    assert value is not None
    shape = flow.shape(value, node)
    rank = len(shape) - 2
    kernel = attributes.get_ints("kernel_shape", ())
    if not kernel and weights is not None:
        kernel = [int(k) for dim in flow.shape(weights, node)[2:] if (k := dim.constant) is not None]
    if len(kernel or ()) != rank or attributes.get_int("ceil_mode") or attributes.get_ints("output_shape"):
        raise flow.refuse(node, "ceil_mode, output_shape or a missing kernel_shape do not fit chunks")
    dilations = attributes.get_ints("dilations", ()) or [1] * rank
    strides = attributes.get_ints("strides", ()) or [1] * rank
    spans = [(k - 1) * d for k, d in zip(kernel, dilations, strict=True)]
    amounts = _pads(flow, node, framing, spans, strides)
    left, right, span = amounts[n], amounts[n + rank], spans[n]
    if node.op_type == "ConvTranspose":  # the same as a Conv whose paddings are what this one does not cut off
        if strides[n] != 1 or any(attributes.get_ints("output_padding", ())[n : n + 1]):
            raise flow.refuse(node, f"a stride of {strides[n]} over time gives more frames than there are")
        left, right = span - left, span - right
    kept = span if node.op_type == "ConvTranspose" else 0
    without = [kept if axis % rank == n else pad for axis, pad in enumerate(amounts)]
    return _Window(span, strides[n], left, right), tuple(without)


def _pads(flow: Flow, node: ir.Node, framing: Frames, spans: Sequence[int], strides: Sequence[int]) -> list[int]:
    """The paddings of all spatial axes, first those at the starts."""
    value = node.inputs[0]
    assert value is not None
    sizes = [
        size(framing.extra + stride) if axis == framing.axis and framing.extra % stride == 0 else dim
        for axis, (dim, stride) in enumerate(zip(flow.shape(value, node)[2:], strides, strict=True), 2)
    ]  # of the frames any number that fits stands for all
    auto = node.attributes.get_string("auto_pad", "NOTSET") or "NOTSET"
    rank = len(sizes)
    if not auto.startswith("SAME"):
        given = node.attributes.get_ints("pads", ()) if auto == "NOTSET" else ()
        return list(given or [0] * 2 * rank)
    totals = [
        _same_total(flow, node, length, span, stride)
        for length, span, stride in zip(sizes, spans, strides, strict=True)
    ]
    less = [total // 2 for total in totals]
    more = [total - half for total, half in zip(totals, less, strict=True)]
    return [*less, *more] if auto == "SAME_UPPER" else [*more, *less]


def _same_total(flow: Flow, node: ir.Node, length: Size, span: int, stride: int) -> int:
    """The paddings that give one result for every `stride`."""
    if stride == 1:
        return span
    number = length.constant
    if number is None:
        raise flow.refuse(node, "its paddings depend on a size that is not fixed", "give the paddings as numbers")
    return max((math.ceil(number / stride) - 1) * stride + span + 1 - int(number), 0)


def _before_first(flow: Flow, node: ir.Node, value: ir.Value) -> float:
    """What a node's own padding is filled with."""
    if node.op_type == "MaxPool":
        dtype = flow.known.types[value].numpy()
        return float(np.finfo(dtype).min) if dtype.kind == "f" else float(np.iinfo(dtype).min)
    if node.op_type == "AveragePool" and not node.attributes.get_int("count_include_pad", 0):
        raise flow.refuse(
            node, "averages over fewer frames at the start", "set count_include_pad, or pad before it"
        )
    return 0.0


def padded(flow: Flow, node: ir.Node) -> list[Framing]:
    """The framing of a Pad's output; frames that it puts before the stream become a state."""
    held = _framed_input(flow, node)
    if held is None:
        return frame_by_frame(flow, node)
    (value, framing), output = held, node.outputs[0]
    rank = len(flow.shape(value, node))
    amounts = pads(flow.known, node, rank)
    left, right = (None if amounts is None else amounts[n].constant for n in (framing.axis, framing.axis + rank))
    if amounts is None or left is None or right is None:
        raise flow.refuse(node, "pads the frames by an amount that depends on their number, or is not known")
    if left == right == 0:
        return [flow.framed(node, output, framing)]
    numbers = [pad.constant for pad in amounts]
    mode = node.attributes.get_string("mode", "constant") or "constant"
    if mode != "constant":
        raise flow.refuse(
            node,
            f"pads with other frames (mode {mode}), which a stream has not seen yet",
            "pad with a constant",
        )
    if left < 0 or not framing.plain or None in numbers:
        raise flow.refuse(node, "cuts off the first frames, or pads frames that are merged with another axis")
    without = tuple(0 if n % rank == framing.axis else int(pad or 0) for n, pad in enumerate(numbers))
    extra, known = framing.extra + int(left + right), framing.known + int(left)
    settled = _settled(flow, node, framing, int(right), extra, known)
    _keep(flow, node, 0, framing, int(left), _filling(flow, node), without, known - settled)
    return [flow.resized(node, output, replace(framing, extra=extra, known=settled))]


def _filling(flow: Flow, node: ir.Node) -> float:
    if flow.opset < 11:
        return float(node.attributes.get_float("value", 0.0) or 0.0)
    value = node.inputs[2] if len(node.inputs) > 2 else None
    if value is None:
        return 0.0
    held = flow.known.constant(value)
    if held is None:
        raise flow.refuse(node, "pads the frames with a number that is not constant")
    return float(held.reshape(-1)[0])


def joined_along(flow: Flow, node: ir.Node) -> list[Framing]:
    """The framing of a Concat's output; constant frames before the stream become a state."""
    values = [v for v in node.inputs if v is not None]
    rank = len(flow.shape(values[0], node))
    axis = (node.attributes.get_int("axis", 1) or 0) % max(rank, 1)
    rest = {n: held for n, v in enumerate(values) if (held := _constant_frames(flow, v, axis)) is not None}
    framings = {n: flow.framing(v, node) for n, v in enumerate(values) if n not in rest}
    along = [n for n, m in framings.items() if isinstance(m, Frames) and m.axis == axis]
    if not along:
        return frame_by_frame(flow, node)
    framing = framings[along[0]]
    if len(framings) > 1 or not isinstance(framing, Frames) or not framing.plain:
        raise flow.refuse(
            node, "joins frames with others along the axis of time", "only constants can be joined there"
        )
    lead = [held for n, held in rest.items() if n < along[0]]
    left = sum(held.shape[axis] for held in lead)
    right = sum(held.shape[axis] for n, held in rest.items() if n > along[0])
    _check_shortest(flow, node, framing, [values[n] for n in rest], left)
    extra, known = framing.extra + left + right, framing.known + left
    settled = _settled(flow, node, framing, right, extra, known)
    slot = node.inputs.index(values[along[0]])
    _keep(flow, node, slot, framing, left, _concatenated(lead, axis) if left else 0.0, (), known - settled)
    return [flow.resized(node, node.outputs[0], replace(framing, extra=extra, known=settled))]


def _check_shortest(flow: Flow, node: ir.Node, framing: Frames, constants: Sequence[ir.Value], left: int) -> None:
    """Refuse constants of fewer frames in a shorter sequence, unless as many are cut off behind them."""
    short = [v for v in constants if any(dim.timed for dim in flow.known.shapes[v])]
    if short and (len(constants) > 1 or framing.known or not left or left != -framing.extra):
        raise flow.refuse(node, f"'{short[0].name}' has fewer frames in a shorter sequence")


def _constant_frames(flow: Flow, value: ir.Value, axis: int) -> Array | None:
    """A constant that is put beside frames, whole along their axis."""
    held, shape = flow.known.contents.get(value), flow.known.shapes.get(value)
    if held is None or shape is None or held.dtype == object:
        return None
    symbol = next(iter(shape[axis].symbols), 0)
    short = isinstance(symbol, int) and symbol < 0 and shape[axis] == first_frames(-symbol)
    count = -symbol if short and isinstance(symbol, int) else shape[axis].constant
    if count is None:
        return None
    return np.broadcast_to(held, (*held.shape[:axis], int(count), *held.shape[axis + 1 :]))


def _concatenated(arrays: Sequence[Array], axis: int) -> Array:
    shape = np.broadcast_shapes(*(a.take([0], axis).shape for a in arrays if a.shape[axis]))
    return np.concatenate(
        [np.broadcast_to(a, (*shape[:axis], a.shape[axis], *shape[axis + 1 :])) for a in arrays if a.shape[axis]],
        axis,
    )


def sliced(flow: Flow, node: ir.Node) -> list[Framing]:
    """The framing of a Slice's output; where it trims frames, what it is to cut out of a chunk is noted."""
    held = _framed_input(flow, node)
    if held is None:
        return frame_by_frame(flow, node)
    (value, framing), output = held, node.outputs[0]
    shape = flow.shape(value, node)
    bounds = slice_bounds(flow.known, node, len(shape))
    if bounds is None:
        raise flow.refuse(node, "starts or ends are not constant")
    if any(b.timed for axis, held in bounds.items() if axis != framing.axis for b in held):
        raise flow.refuse(node, "cuts other axes by the number of frames")
    if framing.axis not in bounds:
        return [flow.framed(node, output, framing)]
    first, last, step = bounds[framing.axis]
    if step != size(1):
        raise flow.refuse(node, "reverses the frames, or leaves some of them out")
    length = shape[framing.axis]
    begin, end = position(first, length), position(last, length)
    left = None if begin is None else begin.whole().constant
    right = None if end is None else (length - end).whole().constant
    if left == right == 0 and _stays_whole(first, last, length):
        return [flow.resized(node, output, framing)]
    if framing.even and framing.plain and right == 0 and begin == length - 1:
        return [Unframed.LAST]
    if left is None or right is None or not framing.plain:
        return [_by_position(flow, node)]
    return [_trimmed(flow, node, framing, bounds, int(left), int(right))]


def _stays_whole(first: Size, last: Size, length: Size) -> bool:
    """Whether bounds that keep all frames of the whole keep all of a chunk."""
    return first.constant is not None and (last.constant is not None or last == length)


def _by_position(flow: Flow, node: ir.Node) -> WholeSequenceValue:
    return WholeSequenceValue(
        flow.refuse(
            node,
            "picks frames by their position in the whole sequence",
            "only the last one can be picked"
            + (
                "; a stream never knows whether it is shorter than a constant end"
                if node.op_type == "Slice"
                else ""
            ),
        )
    )


def _trimmed(
    flow: Flow, node: ir.Node, framing: Frames, bounds: dict[int, tuple[Size, Size, Size]], left: int, right: int
) -> Framing:
    extra, known = framing.extra - left - right, framing.known - left
    if known < 0:
        raise flow.refuse(node, f"drops the first {-known} frames")
    if framing.cut and left:
        raise flow.refuse(node, "drops the first frames after the last ones were cut off")
    settled = min(known, max(extra, 0))
    cut = known - settled
    numbers = {axis: [b.constant for b in held] for axis, held in bounds.items() if axis != framing.axis}
    if any(None in held for held in numbers.values()):
        raise flow.refuse(node, "cuts frames and an axis of another size that is not fixed", "use two Slices")
    here = {axis: [max(min(int(n or 0), TO_THE_END), -TO_THE_END) for n in held] for axis, held in numbers.items()}
    here[framing.axis] = [left, -cut if cut else TO_THE_END, 1]
    starts, ends, steps = zip(*here.values(), strict=True)
    flow.trims.append(Trim(node, tuple(here), starts, ends, steps))
    return flow.resized(node, node.outputs[0], replace(framing, extra=extra, known=settled))


def picked(flow: Flow, node: ir.Node) -> list[Framing]:
    """The framing of a Gather's output: the last frame, where it picks one."""
    held, index = _framed_input(flow, node), node.inputs[1]
    if held is None or index is None:
        return frame_by_frame(flow, node)
    value, framing = held
    shape = flow.shape(value, node)
    if (node.attributes.get_int("axis", 0) or 0) % len(shape) != framing.axis:
        return frame_by_frame(flow, node)
    numbers = flow.known.numbers(index)
    last = index not in flow.framings and numbers in ([size(-1)], [shape[framing.axis] - 1])
    if last and framing.even and framing.plain:
        return [Unframed.LAST]
    return [_by_position(flow, node)]
