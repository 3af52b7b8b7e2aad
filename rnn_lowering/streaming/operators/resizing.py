"""Frames that are repeated: Resize and Upsample."""

from __future__ import annotations

from dataclasses import replace

import onnx_ir as ir

from rnn_lowering.streaming.frame_by_frame import frame_by_frame
from rnn_lowering.streaming.frames import Flow, Framing
from rnn_lowering.streaming.operators.past_frames import framed_input


def resized(flow: Flow, node: ir.Node) -> list[Framing]:
    """Return the framing of the output of a Resize or Upsample that repeats each frame."""
    held = framed_input(flow, node)
    if held is None:
        return frame_by_frame(flow, node)
    value, framing = held
    before, after = flow.shape(value, node)[framing.axis], flow.shape(node.outputs[0], node)[framing.axis]
    ratio = after.divided(before)
    times = None if ratio is None else ratio.constant
    if times == 1 or times is None or any(v is not None and flow.framings.get(v) for v in node.inputs[1:]):
        return frame_by_frame(flow, node)
    if times.denominator > 1 or not framing.plain or not _repeats(node):
        raise flow.refuse(
            node,
            "interpolates between frames, so it looks ahead",
            "use mode nearest, nearest_mode floor, coordinates asymmetric, and a whole number as the scale",
        )
    found = replace(
        framing, extra=framing.extra * int(times), known=framing.known * int(times), rate=framing.rate * times
    )
    return [flow.resampled(node, node.outputs[0], found)]


def _repeats(node: ir.Node) -> bool:
    """Return whether each result is the frame at or before its position."""
    if node.attributes.get_string("mode", "nearest") != "nearest":
        return False
    if node.op_type == "Upsample":
        return True
    coordinates = node.attributes.get_string("coordinate_transformation_mode", "half_pixel")
    rounded = node.attributes.get_string("nearest_mode", "round_prefer_floor")
    return coordinates == "asymmetric" and rounded == "floor"
