"""Frames that Pad and Concat add before and after the stream."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from rnn_lowering.emit.versions import parameter
from rnn_lowering.inference.polynomials import first_frames
from rnn_lowering.inference.shape_inference import pads
from rnn_lowering.streaming.editor import input_of
from rnn_lowering.streaming.frames.flow import Flow
from rnn_lowering.streaming.frames.framing import FirstFrame, Frames, Framing
from rnn_lowering.streaming.frames.past_frames import with_past
from rnn_lowering.types import Array


def padded(flow: Flow, node: ir.Node, framing: Frames) -> list[Framing] | None:
    """Return the framing of the output of a Pad. Frames added before the stream become a state."""
    rank = len(flow.shape(input_of(node), node))
    amounts = pads(flow.known, node, rank)
    left, right = (None if amounts is None else amounts[n].constant for n in (framing.axis, framing.axis + rank))
    if amounts is None or left is None or right is None:
        raise flow.refuse(
            node,
            "pads the frames by an amount that depends on their number, or is not known",
            "give the paddings as numbers",
        )
    if left == right == 0:
        return [flow.framed(node, node.outputs[0], framing)]
    numbers = [pad.constant for pad in amounts]
    mode = node.attributes.get_string("mode", "constant") or "constant"
    if mode != "constant" and (mode != "edge" or right or sum(pad is None or pad != 0 for pad in numbers) > 1):
        raise flow.refuse(
            node,
            f"pads with other frames (mode {mode}), which a stream has not seen yet",
            "pad with a constant, or in front with the first frame (mode edge)",
        )
    if not framing.plain or None in numbers:
        raise flow.refuse(node, "pads frames that are merged with another axis", "pad before the Reshape")
    without = tuple(0 if n % rank == framing.axis else int(pad or 0) for n, pad in enumerate(numbers))
    made, first = framing.padded(int(left), int(right)), mode == "edge"
    if first and (left < 0 or framing.delay):
        raise flow.refuse(
            node, "repeats or cuts off the first frame of a value that comes late", "pad with a constant"
        )
    lead, initial = (0, None) if first else (None, _filling(flow, node))
    return with_past(
        *(flow, node, framing, made),
        left=int(left),
        right=int(right),
        initial=initial,
        pads=without,
        first=lead,
    )


def _filling(flow: Flow, node: ir.Node) -> float:
    value = parameter(node, "constant_value", flow.opset)
    if not isinstance(value, ir.Value):  # its name was another where it was an attribute
        return float(node.attributes.get_float("value", 0.0) or 0.0)
    held = flow.known.constant(value)
    if held is None:
        raise flow.refuse(
            node, "pads the frames with a number that is not constant", "give the number as a constant"
        )
    return float(held.reshape(-1)[0])


def joined_along(flow: Flow, node: ir.Node) -> list[Framing] | None:
    """Return the framing of the output of a Concat. Frames before the stream become a state."""
    values = [v for v in node.inputs if v is not None]
    rank = len(flow.shape(values[0], node))
    axis = (node.attributes.get_int("axis", 1) or 0) % max(rank, 1)
    rest = {n: held for n, v in enumerate(values) if (held := _constant_frames(flow, v, axis)) is not None}
    computed = _computed_frames(flow, values, axis)
    framings = {n: flow.framing(v, node) for n, v in enumerate(values) if n not in rest and n != computed}
    along = [n for n, m in framings.items() if isinstance(m, Frames) and m.axis == axis]
    if not along:
        return None
    framing = framings[along[0]]
    if len(framings) > 1 or not isinstance(framing, Frames) or not framing.plain:
        raise flow.refuse(
            node,
            "joins frames with others along the time axis",
            "only constants, an input or the first frame can be joined there, in front",
        )
    slot = node.inputs.index(values[along[0]])
    if computed is not None:
        return _behind_computed(flow, node, framing, slot, bool(rest))
    lead = [held for n, held in rest.items() if n < along[0]]
    left = sum(held.shape[axis] for held in lead)
    right = sum(held.shape[axis] for n, held in rest.items() if n > along[0])
    _check_shortest(flow, node, framing, [values[n] for n in rest], left)
    before = _concatenated(lead, axis) if left else 0.0
    made = framing.padded(left, right)
    return with_past(flow, node, framing, made, left=left, right=right, initial=before, slot=slot)


def _computed_frames(flow: Flow, values: Sequence[ir.Value], axis: int) -> int | None:
    """Return the index of the value with frames of the first chunk only: frame 0, or frames from an input."""
    known = flow.known
    fixed = [v in known.shapes and known.shapes[v][axis].constant is not None for v in values]
    given = [not flow.is_timed(v) and v not in known.contents for v in values]
    first = [isinstance(flow.framings.get(v), FirstFrame) for v in values]
    found = [n for n in range(len(values)) if first[n] or (given[n] and fixed[n])]
    return found[0] if len(found) == 1 and any(v in flow.framings for v in values[found[0] + 1 :]) else None


def _behind_computed(flow: Flow, node: ir.Node, framing: Frames, slot: int, others: bool) -> list[Framing]:
    """Return the framing of a stream after frames from an input, or after copies of frame 0."""
    lead = input_of(node)
    first = flow.framings.get(lead)
    if others or slot != 1 or (isinstance(first, FirstFrame) and first.axis != framing.axis):
        raise flow.refuse(node, "joins the frames of the stream with others and with constants", "use two Concats")
    if framing.delay:
        raise flow.refuse(
            node,
            "puts computed frames before frames that come late",
            "put constants there: the stream keeps past frames itself",
        )
    left = int(flow.shape(lead, node)[framing.axis].constant or 0)
    if framing.even and first is None:
        flow.caches[node.outputs[0]] = node
    made = framing.padded(left, 0)
    return with_past(flow, node, framing, made, left=left, initial=None, slot=slot, first=0)


def _check_shortest(flow: Flow, node: ir.Node, framing: Frames, constants: Sequence[ir.Value], left: int) -> None:
    """Refuse constants that lose frames in a shorter sequence, unless a cut removes as many."""
    short = [v for v in constants if any(dim.timed for dim in flow.known.shapes[v])]
    if short and (len(constants) > 1 or framing.known or not left or left != -framing.extra):
        raise flow.refuse(
            node,
            f"'{short[0].name}' has fewer frames in a shorter sequence",
            "keep the last frames in an input of the model",
        )


def _constant_frames(flow: Flow, value: ir.Value, axis: int) -> Array | None:
    """Return a constant that Concat joins to frames, in full size along the axis of the frames."""
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
