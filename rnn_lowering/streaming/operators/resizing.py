"""Resize and Upsample along the frames: they repeat each frame, take one of several, or interpolate between frames.

Between frames a result is the mean of two of them, with weights. A linear Resize reads a frame ahead for it, so the
stream is late. Example: twice as many frames, half_pixel. Result 2 * i is 0.25 * x[i - 1] + 0.75 * x[i], result
2 * i + 1 is 0.75 * x[i] + 0.25 * x[i + 1]. Before frame 0 there is frame 0 again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import onnx_ir as ir

from rnn_lowering.facts.operators import TO_THE_END
from rnn_lowering.facts.size import size
from rnn_lowering.streaming.counts import frame_indices, frames_before
from rnn_lowering.streaming.editor import Editor, input_of
from rnn_lowering.streaming.flow import Flow
from rnn_lowering.streaming.frames import Frames, Framing
from rnn_lowering.streaming.operators.cuts_and_joins import trimmed
from rnn_lowering.streaming.operators.windows import (
    KeepRows,
    Window,
    read_window,
    rows_before,
    set_attributes,
    settled,
)


def resized(flow: Flow, node: ir.Node, framing: Frames) -> list[Framing] | None:
    """Return the framing of the output of a Resize or Upsample that repeats each frame, or takes one of several."""
    before, after = (flow.shape(v, node)[framing.axis] for v in (input_of(node), node.outputs[0]))
    times = ratio.constant if (ratio := after.divided(before)) is not None else None
    if times == 1 or times is None or any(v is not None and flow.framings.get(v) for v in node.inputs[1:]):
        return None
    hint = "repeat each frame: mode nearest, nearest_mode floor, coordinates asymmetric, a whole number as scale"
    if node.attributes.get_string("mode", "nearest") != "nearest":
        return _interpolated(flow, node, framing, times)
    first = _first_taken(flow, node, times) if _others_stay(flow, node, framing) and framing.plain else None
    if first is not None:
        bounds = {framing.axis: (size(first), size(TO_THE_END), size(times.denominator))}
        return trimmed(flow, node, framing, bounds, first, 0)
    if times.denominator > 1 or not framing.plain or not _repeats(node, int(times)):
        raise flow.refuse(node, "is not known to repeat each frame", hint)
    return [flow.resampled(node, node.outputs[0], framing, framing.repeated(int(times)))]


def _repeats(node: ir.Node, times: int) -> bool:
    """Return whether a Resize of mode nearest repeats each frame this often: whether the results in the place of
    frame 0, from the positions of which all others differ by whole frames, are frame 0."""
    if node.op_type == "Upsample":
        return True
    coordinates, rounding = _coordinates(node)
    if coordinates not in _POSITIONS or rounding not in _ROUNDINGS:
        return False
    positions = [_POSITIONS[coordinates](Fraction(n), Fraction(times)) for n in range(times)]
    return all(_ROUNDINGS[rounding](position) == 0 for position in positions)


def _coordinates(node: ir.Node) -> tuple[str, str]:
    coordinates = node.attributes.get_string(_COORDINATES, "half_pixel") or "half_pixel"
    return coordinates, node.attributes.get_string("nearest_mode", "round_prefer_floor") or "round_prefer_floor"


def _first_taken(flow: Flow, node: ir.Node, scale: Fraction) -> int | None:
    """Return the first frame that a Resize of mode nearest takes, if it takes one of each 2, 4, 8 and so on.

    At such a scale all positions are exact, and differ by whole frames from that of result 0.
    """
    coordinates, rounding = _coordinates(node)
    step = scale.denominator
    exact = scale.numerator == 1 and step > 1 and not step & (step - 1) and flow.opset >= 11
    if not exact or coordinates not in _POSITIONS or rounding not in _ROUNDINGS:
        return None
    first = _ROUNDINGS[rounding](_POSITIONS[coordinates](Fraction(0), scale))
    single = 0 if coordinates == "pytorch_half_pixel" else first  # what the only result of a sequence is
    return first if single == first < step else None


_HALF = Fraction(1, 2)

_POSITIONS: dict[str, Callable[[Fraction, Fraction], Fraction]] = {
    "asymmetric": lambda n, times: n / times,
    "half_pixel": lambda n, times: (n + _HALF) / times - _HALF,
    "half_pixel_symmetric": lambda n, times: (n + _HALF) / times - _HALF,
    "pytorch_half_pixel": lambda n, times: (n + _HALF) / times - _HALF,
    "tf_half_pixel_for_nn": lambda n, times: (n + _HALF) / times,
}
"""By coordinate_transformation_mode, the position in the frames of result n at a scale."""

_LINEAR = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "asymmetric")
"""The coordinates in which results that are equally far apart in the frames are so everywhere."""

_COORDINATES = "coordinate_transformation_mode"

_FIRST_RESIZE = 10
"""The opset whose Resize has asymmetric coordinates only."""

_SIZES = 3
"""The input of a Resize with the sizes of the result."""

_ROUNDINGS: dict[str, Callable[[Fraction], int]] = {
    "floor": math.floor,
    "ceil": math.ceil,
    "round_prefer_floor": lambda position: math.ceil(position - _HALF),
    "round_prefer_ceil": lambda position: math.floor(position + _HALF),
}
"""By nearest_mode, the frame at a position."""


def _interpolated(flow: Flow, node: ir.Node, framing: Frames, times: Fraction) -> list[Framing]:
    """Return the framing of the output of a linear Resize; record that a state keeps the frames that it reads."""
    old = node.op_type == "Upsample" or flow.opset == _FIRST_RESIZE
    coordinates = "asymmetric" if old else _coordinates(node)[0]
    repeats_first = times > 1 and coordinates != "asymmetric"
    if not _is_linear(flow, node, framing, times) or (repeats_first and framing.overlap):
        raise flow.refuse(
            node,
            "interpolates between frames in a way that is not known",
            "mode linear, coordinates half_pixel or asymmetric, the frames only, by 2, 4, 8 or 1/2, 1/4, 1/8",
        )
    flow.change(node, _scale_by, framing.axis, len(flow.shape(input_of(node), node)), float(times))
    if times < 1:
        if coordinates == "pytorch_half_pixel":  # which takes the first frame where the result has one only
            flow.change(node, set_attributes, {_COORDINATES: ir.AttrString(_COORDINATES, "half_pixel")})
            flow.require_frames(framing, 2 * times.denominator)
        return read_window(flow, node, framing, Window(times.denominator - 1, times.denominator))
    left, number = int(repeats_first), int(times)
    after = framing.padded(left, 1).windows(left + 2, 1)
    final = settled(flow, node, framing, after, 1)
    rows = rows_before(framing, final, left)
    KeepRows(node, input_of(node), framing, 0, rows, drop=after.ready - final.ready).record(flow)
    if repeats_first:
        flow.change(node, _repeat_first, framing, rows)
    flow.change(node, _cut_ends, framing.axis, left * number, number)
    return [flow.resampled(node, node.outputs[0], framing, final.repeated(number))]


def _is_linear(flow: Flow, node: ir.Node, framing: Frames, times: Fraction) -> bool:
    """Whether a Resize interpolates linearly between frames, at positions that floats hold exactly."""
    step = times.numerator * times.denominator
    exact = 1 in (times.numerator, times.denominator) and not step & (step - 1)
    plain = not any(name in node.attributes for name in ("antialias", "exclude_outside", "axes"))
    stretched = node.attributes.get_string("keep_aspect_ratio_policy", "stretch") == "stretch"
    known = node.op_type == "Upsample" or flow.opset == _FIRST_RESIZE or _coordinates(node)[0] in _LINEAR
    of_mode = node.attributes.get_string("mode", "nearest") == "linear" and known
    return of_mode and exact and plain and stretched and framing.plain and _others_stay(flow, node, framing)


def _others_stay(flow: Flow, node: ir.Node, framing: Frames) -> bool:
    """Whether a node changes the size of the axis of the frames only."""
    before, after = (list(flow.shape(v, node)) for v in (input_of(node), node.outputs[0]))
    before[framing.axis] = after[framing.axis]
    return before == after


def _scale_by(editor: Editor, node: ir.Node, axis: int, rank: int, times: float) -> None:
    """Give a Resize its scales in place of its sizes, which hold for the whole sequence only."""
    if len(node.inputs) <= _SIZES or node.inputs[_SIZES] is None:
        return
    scales = [times if n == axis else 1.0 for n in range(rank)]
    node.replace_input_with(_SIZES - 1, editor.before(node).constant(scales, ir.DataType.FLOAT))
    node.resize_inputs(_SIZES)


def _repeat_first(editor: Editor, node: ir.Node, frames: Frames, rows: int) -> None:
    """Let a node read frame 0 in the row before it, of rows before the chunk and the chunk."""
    emit, axis, rate = editor.before(node), frames.axis, frames.rate
    value, rank = input_of(node), len(editor.known.shapes[node.outputs[0]])
    before = emit("Sub", frames_before(editor, rate), emit.counts(range(rows, 0, -1)))
    index = emit("Concat", before, frame_indices(editor, rate), axis=0)
    here = emit("Equal", index, emit.counts([frames.delay.frames - 1]))
    mask = emit.along(here, axis, rank)
    next_rows = emit.sliced(value, [axis], [1], [TO_THE_END])
    last = emit.sliced(value, [axis], [-1], [TO_THE_END])
    dtype = editor.known.types[node.outputs[0]]
    shifted = emit("Concat", next_rows, last, axis=axis)
    node.replace_input_with(0, emit.chosen(mask, shifted, value, dtype))


def _cut_ends(editor: Editor, node: ir.Node, axis: int, first: int, last: int) -> None:
    """Cut off results that belong to the rows at both ends of what a node reads."""
    emit, output = editor.after(node), node.outputs[0]
    emit.instead_of(output, emit.sliced(output, [axis], [first], [-last]))
