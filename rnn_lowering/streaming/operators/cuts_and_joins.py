"""Operators that cut, pick or add frames: Slice, Gather, Pad and Concat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np
import onnx_ir as ir

from rnn_lowering.facts.infer import pads, position, slice_bounds
from rnn_lowering.facts.numbers import concatenated
from rnn_lowering.facts.operators import TO_THE_END, input_at, parameter
from rnn_lowering.facts.size import Counter, Size, size
from rnn_lowering.streaming.alignment import FramesRead, wait
from rnn_lowering.streaming.counts import frame_indices, frames_before, numbers_in_call, past_or_first
from rnn_lowering.streaming.editor import Editor, input_of
from rnn_lowering.streaming.flow import Flow
from rnn_lowering.streaming.frames import FirstFrame, FrameNumbers, Frames, Framing, Unframed, WholeSequenceValue
from rnn_lowering.streaming.operators.windows import (
    Computed,
    KeepRows,
    Window,
    constant_number,
    read_window,
    rows_before,
    settled,
)
from rnn_lowering.streaming.sizes import first_frames, in_whole
from rnn_lowering.types import Array


def sliced(flow: Flow, node: ir.Node, framing: Frames) -> list[Framing] | None:
    """Return the framing of the output of a Slice; record its cut of a chunk if it cuts frames."""
    value, output = input_of(node), node.outputs[0]
    shape = flow.shape(value, node)
    bounds = slice_bounds(flow.known, node, len(shape))
    if bounds is None:
        raise flow.refuse(node, "starts or ends are not constant", "cut by constants")
    if any(b.varies for axis, own in bounds.items() if axis != framing.axis for b in own):
        raise flow.refuse(node, "cuts other axes by the number of frames", "cut by constants")
    if framing.axis not in bounds:
        return [flow.framed(node, output, framing)]
    first, last, step = bounds[framing.axis]
    if step.constant is None or step.constant < 1:
        raise flow.refuse(
            node, "reverses the frames, or its steps are not constant", "cut by constants, with positive steps"
        )
    length = shape[framing.axis]
    begin, end = (position(flow.known, bound, length) for bound in (first, last))
    begin = first if begin is None and (first.constant or 0) > 0 else begin
    left = None if begin is None else in_whole(begin).constant
    right = None if end is None else in_whole(length - end).constant
    in_each_chunk = first.constant is not None and (last.constant is not None or last == length)
    if left == right == 0 and step == size(1) and in_each_chunk:
        return [flow.resized(node, output, framing)]
    if step == size(1) and end == length and (count := _last_frames(framing, length, begin)):
        cache = value.producer()
        if cache in flow.caches and len(bounds) == 1 and count == framing.ready:
            flow.caches[cache].append(output)
        return [Unframed.LAST]
    if step == size(1) and begin == size(0) and end == size(1) and framing.plain and not framing.delay:
        return [FirstFrame(_by_position(flow, node).error)]
    if left is None or right is None or not framing.plain:
        return [_by_position(flow, node)]
    return trimmed(flow, node, framing, bounds, int(left), int(right))


def trimmed(
    flow: Flow, node: ir.Node, framing: Frames, bounds: dict[int, tuple[Size, Size, Size]], left: int, right: int
) -> list[Framing]:
    """Return the framing of a Slice that drops `left` and `right` frames; record its cut of a chunk."""
    step = int(bounds[framing.axis][2].constant or 1)
    whole = framing.padded(-left, -right).windows(1, step)
    final = settled(flow, node, framing, whole)
    others = {axis: [b.constant for b in own] for axis, own in bounds.items() if axis != framing.axis}
    if any(None in own for own in others.values()):
        raise flow.refuse(node, "cuts frames and an axis of another size that is not fixed", "use two Slices")
    in_chunk = {axis: [max(min(int(n or 0), TO_THE_END), -TO_THE_END) for n in own] for axis, own in others.items()}
    beyond = (whole.ready - final.ready) * step
    in_chunk[framing.axis] = [-rows_before(framing, final, -left, step), -beyond or TO_THE_END, step]
    starts, ends, steps = zip(*in_chunk.values(), strict=True)
    flow.change(node, _cut, tuple(in_chunk), starts, ends, steps)
    return [flow.resampled(node, node.outputs[0], framing, final)]


def _cut(
    editor: Editor,
    node: ir.Node,
    axes: Sequence[int],
    starts: Sequence[int],
    ends: Sequence[int],
    steps: Sequence[int],
) -> None:
    """Replace a Slice over all frames with one over the frames of a chunk."""
    emit, value = editor.before(node), input_of(node)
    whole = set(starts) == {0} and set(ends) == {TO_THE_END} and set(steps) == {1}
    in_chunk = value if whole else emit.sliced(value, axes, starts, ends, steps)
    editor.replace_node(node, in_chunk)


def _last_frames(framing: Frames, length: Size, begin: Size | None) -> int:
    """Return the number of frames from `begin` to the end; 0 if a chunk may lack some of them."""
    count = None if begin is None else (length - begin).constant
    if count is None or not framing.plain or framing.extra != framing.ready:
        return 0
    return int(count) if 1 <= count <= framing.overlap + 1 else 0


def _by_position(flow: Flow, node: ir.Node) -> WholeSequenceValue:
    hint = "only the last one can be picked"
    if node.op_type == "Slice":
        hint += "; a stream never knows whether it is shorter than a constant end"
    return WholeSequenceValue(flow.refuse(node, "picks frames by their position in the whole sequence", hint))


def picked(flow: Flow, node: ir.Node, framing: Frames) -> list[Framing] | None:
    """Return the framing of the output of a Gather that picks the last frame, or a window around each frame."""
    shape, index = flow.shape(input_of(node), node), input_of(node, 1)
    if (node.attributes.get_int("axis", 0) or 0) % len(shape) != framing.axis:
        return None
    if isinstance(table := flow.framings.get(index), FrameNumbers):
        return _around(flow, node, framing, table)
    numbers = flow.known.numbers(index)
    last = index not in flow.framings and numbers in ([size(-1)], [shape[framing.axis] - 1])
    if last and _last_frames(framing, shape[framing.axis], shape[framing.axis] - 1):
        return [Unframed.LAST]
    if index not in flow.framings and numbers == [size(0)] and framing.plain and not framing.delay:
        return [FirstFrame(_by_position(flow, node).error)]
    return [_by_position(flow, node)]


def _around(flow: Flow, node: ir.Node, framing: Frames, table: FrameNumbers) -> list[Framing]:
    """Return the framing of windows that a table of frame numbers picks."""
    frames, offsets = table.frames, table.offsets
    if not framing.plain or table.step < 1 or frames.rate * table.step != framing.rate:
        raise flow.refuse(
            node, "picks frames at another rate than that of its table", "give the table one row for each frame"
        )
    if int(offsets.min()) < 0:
        raise flow.refuse(node, "picks a frame before the first one, which is the last one", "pad them in front")
    ready = min(framing.windows(int(offsets.max()) + 1, table.step).ready, frames.ready)
    after = replace(frames, axis=framing.axis + frames.axis, ready=ready)
    if beyond := frames.ready - after.overlap:  # windows at the end of the table read frames of the next chunk
        wait(flow, FramesRead(node, input_of(node, 1), frames), slot=1, past=0, drop=beyond)
    if rows := rows_before(framing, after, stride=table.step):
        KeepRows(node, input_of(node), framing, 0, rows).record(flow)
    return [flow.resampled(node, node.outputs[0], framing, after)]


def padded(flow: Flow, node: ir.Node, framing: Frames) -> list[Framing] | None:
    """Return the framing of the output of a Pad. The frames that it adds before the stream become a state."""
    rank = len(flow.shape(input_of(node), node))
    amounts, along = pads(flow.known, node, rank) or [], (framing.axis, framing.axis + rank)
    numbers = [(in_whole(pad) if n in along else pad).constant for n, pad in enumerate(amounts)]
    left, right = (numbers[n] for n in along) if numbers else (None, None)
    if left is None or right is None:
        raise flow.refuse(
            node,
            "pads the frames by an amount that depends on their number, or is not known",
            "give the paddings as numbers",
        )
    if all(amounts[n] == size(0) for n in along):
        return [flow.framed(node, node.outputs[0], framing)]
    mode = node.attributes.get_string("mode", "constant") or "constant"
    if mode != "constant":
        return _padded_with_frames(flow, node, framing, mode, numbers)
    if not framing.plain or None in numbers:
        raise flow.refuse(node, "pads frames that are merged with another axis", "pad before the Reshape")
    others = [0 if n in along else int(pad or 0) for n, pad in enumerate(numbers)]
    if any(others):
        flow.change(node, _pad_others, others)
    fill = parameter(node, "constant_value", flow.opset)
    initial = float(node.attributes.get_float("value", 0.0) or 0.0)  # the name of the attribute
    initial = constant_number(flow, node, fill) if isinstance(fill, ir.Value) else initial
    return _in_front(flow, node, framing, Window(left=int(left), right=int(right), initial=initial))


def _padded_with_frames(
    flow: Flow, node: ir.Node, framing: Frames, mode: str, amounts: Sequence[Fraction | None]
) -> list[Framing]:
    """Return the framing of a Pad of another mode than constant: frames of the stream come before it.

    Behind it too, but a stream does not know where it ends: there the next frames come, or zeros.
    """
    rank = len(amounts) // 2
    left, right = (int(amounts[n] or 0) for n in (framing.axis, framing.axis + rank))
    others = any(amount != 0 for n, amount in enumerate(amounts) if n % rank != framing.axis)
    plain = framing.plain and not framing.overlap and not framing.cut and not others
    if mode == "reflect" and plain and left >= 1 and right >= 0:
        return _with_first_frames(flow, node, framing, left, right, reflects=True)
    if others or right < 0 or not (mode == "edge" or (mode == "reflect" and left == 0)):
        raise flow.refuse(
            node,
            f"pads with other frames (mode {mode}), which a stream has not seen yet",
            "pad with a constant, or over time alone with mode edge or reflect",
        )
    if not framing.plain:
        raise flow.refuse(node, "pads frames that are merged with another axis", "pad before the Reshape")
    if mode == "reflect":
        flow.require_frames(framing, right + 1)
    if left < 0 or (left and framing.delay and framing.cut):
        raise flow.refuse(
            node, "repeats or cuts off the first frame of a value that comes late", "pad with a constant"
        )
    if left and framing.delay:
        return _with_first_frames(flow, node, framing, left, right, reflects=False)
    initial = Computed(0, first_row=True) if left else 0.0
    return _in_front(flow, node, framing, Window(left=left, right=right, initial=initial))


def _pad_others(editor: Editor, node: ir.Node, pads: Sequence[int]) -> None:
    """Let a Pad read what is padded along the axes without frames already."""
    emit, fill = editor.before(node), input_at(node, 2)
    more = {} if fill is None else {"constant_value": fill}
    padded = emit("Pad", input_of(node), pads=pads, **more)
    kept = {name: a for name, a in node.attributes.items() if name in ("value", "mode")}
    emit.nodes[-1].attributes.update(kept)
    node.replace_input_with(0, padded)


def _in_front(flow: Flow, node: ir.Node, framing: Frames, window: Window, slot: int = 0) -> list[Framing]:
    """Return the framing of the output of a Pad or Concat, which the state that it adds replaces."""
    framings = read_window(flow, node, framing, window, slot)
    flow.change(node, Editor.replace_by_input, slot)
    return framings


def joined_along(flow: Flow, node: ir.Node) -> list[Framing] | None:
    """Return the framing of the output of a Concat. The frames that it puts before the stream become a state."""
    values = [v for v in node.inputs if v is not None]
    rank = len(flow.shape(values[0], node))
    axis = (node.attributes.get_int("axis", 1) or 0) % max(rank, 1)
    if (alone := _joined_with_nothing(flow, node, values, axis)) is not None:
        return [alone]
    constants = {n: array for n, v in enumerate(values) if (array := _constant_frames(flow, v, axis)) is not None}
    computed = _computed_in_front(flow, values, axis)
    framings = {n: flow.read(v, node) for n, v in enumerate(values) if n not in (*constants, *computed)}
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
    if computed:
        return _after_computed(flow, node, framing, slot)
    before = [array for n, array in constants.items() if n < along[0]]
    left = sum(array.shape[axis] for array in before)
    right = sum(array.shape[axis] for n, array in constants.items() if n > along[0])
    for n, array in constants.items():
        _require_frames(flow, node, values[n], array.shape[axis], n > along[0])
    initial = concatenated(before, axis) if left else 0.0
    return _in_front(flow, node, framing, Window(left=left, right=right, initial=initial), slot)


def _joined_with_nothing(flow: Flow, node: ir.Node, values: Sequence[ir.Value], axis: int) -> Frames | None:
    """Return the framing of frames that a Concat joins with values of size 0 along an axis; None for other ones."""
    some = [v for v in values if flow.shape(v, node)[axis] != size(0)]
    if len(values) == 1 or len(some) != 1 or not isinstance(flow.framings.get(some[0]), Frames):
        return None
    framing = flow.read(some[0], node)
    assert isinstance(framing, Frames)
    flow.change(node, Editor.replace_by_input, node.inputs.index(some[0]))
    return flow.resized(node, node.outputs[0], framing)


def _after_computed(flow: Flow, node: ir.Node, framing: Frames, slot: int) -> list[Framing]:
    """Return the framing of a stream after frames from an input, or after copies of frame 0."""
    alone, cached = slot == 1, flow.framings.get(input_of(node)) is None
    window = _window_after_computed(flow, node, framing, slot)
    if alone and cached and framing.even:
        flow.caches[node] = []
    if framing.delay:
        flow.change(node, Editor.replace_by_input, 1)
        return [flow.resized(node, node.outputs[0], framing.padded(window.left, 0))]
    return _in_front(flow, node, framing, window, 1)


def _require_frames(flow: Flow, node: ir.Node, value: ir.Value, count: int, behind: bool) -> None:
    """Require a sequence of so many frames if a constant has fewer in a shorter one, as `zeros_like(x[:, :2])` has.
    Refuse such a constant behind the frames."""
    if not any(dim.varies for dim in flow.known.shapes[value]):
        return
    if behind:
        raise flow.refuse(
            node,
            f"'{value.name}' has fewer frames in a shorter sequence",
            "keep the last frames in an input of the model",
        )
    flow.fewest_frames = max(flow.fewest_frames, count)


def _constant_frames(flow: Flow, value: ir.Value, axis: int) -> Array | None:
    """Return a constant that Concat joins to frames, in full size along their axis; None for other values."""
    array, shape = flow.known.contents.get(value), flow.known.shapes.get(value)
    if array is None or shape is None or array.dtype == object:
        return None
    symbol = next(iter(shape[axis].symbols), 0)
    short = isinstance(symbol, Counter) and shape[axis] == first_frames(-symbol.order)
    count = -symbol.order if short and isinstance(symbol, Counter) else shape[axis].constant
    if count is None:
        return None
    return np.broadcast_to(array, (*array.shape[:axis], int(count), *array.shape[axis + 1 :]))


# A Pad of mode reflect: the frames before the first are the next ones backwards, as around a centred STFT. The
# first n frames of the result are x[n], ..., x[1], so the stream is n frames late: with x[j + n] comes frame j of
# the result. It is x[n - j] for j < n, then x[j - n]. With n = 2 the result is x[2], x[1], x[0], x[1] and so on.
# Behind the last frame the result is that of a sequence padded with zeros, as for every padding inside a net.


def _with_first_frames(
    flow: Flow, node: ir.Node, framing: Frames, left: int, right: int, reflects: bool
) -> list[Framing]:
    """Return the framing of a Pad that puts the first frames of the stream before them: of mode reflect, along the
    frames alone, or of mode edge in front of frames that come late.

    With mode edge, frame j of the result is x[max(j - left, 0)], and comes with x[j]: the stream is `left` frames
    later than with a constant, but frame 0 is there.
    """
    later = left if reflects else 0
    late = replace(framing, extra=framing.extra + left + right, ready=framing.ready - later)
    final = settled(flow, node, framing, late, right)
    if reflects:
        flow.require_frames(framing, max(left, right) + 1)
    KeepRows(node, node.outputs[0], framing, 0, left + later).record(flow)
    flow.change(node, _reflect if reflects else _repeat_first, framing, left)
    return [flow.resampled(node, node.outputs[0], framing, final)]


def _reflect(editor: Editor, node: ir.Node, frames: Frames, left: int) -> None:
    """Pick the frames of the result, in place of a Pad, from the last 2 * `left` frames and the chunk."""
    emit, delay = editor.before(node), frames.delay.frames
    number, index = numbers_in_call(editor, frames.rate)
    twice = emit("Mul", frames_before(editor, frames.rate), emit.counts([2]))
    backwards = emit("Sub", emit("Sub", emit.counts([4 * left + 2 * delay]), twice), index)
    last = emit("Add", number, emit.counts([2 * left - 1]))
    within = emit.clipped(backwards, last)  # indices of frames that mean nothing may be others
    early = emit("Less", frame_indices(editor, frames.rate), emit.counts([2 * left + delay]))
    picked = emit("Gather", input_of(node), emit("Where", early, within, index), axis=frames.axis)
    editor.replace_node(node, picked)


def _repeat_first(editor: Editor, node: ir.Node, frames: Frames, left: int) -> None:
    """Pick the frames of the result, in place of a Pad, from the last `left` frames and the chunk."""
    emit = editor.before(node)
    number, index = numbers_in_call(editor, frames.rate)
    first = emit("Sub", emit.counts([frames.delay.frames + left]), frames_before(editor, frames.rate))
    from_first = emit("Where", emit("Less", index, first), first, index)  # Max of integers needs opset 12
    last = emit("Add", number, emit.counts([left - 1]))
    picked = emit("Gather", input_of(node), emit.clipped(from_first, last), axis=frames.axis)
    editor.replace_node(node, picked)


# Frames that the model computes, from frame 0 or an input, in front of the stream


def _computed_in_front(flow: Flow, values: list[ir.Value], axis: int) -> list[int]:
    """Return the indices of values that are frames of the first chunk only: frame 0, or frames from an input."""

    def is_computed(value: ir.Value) -> bool:
        if isinstance(flow.framings.get(value), FirstFrame):
            return True
        shape = flow.known.shapes.get(value)
        fixed = shape is not None and shape[axis].constant is not None
        return fixed and not flow.is_timed(value) and value not in flow.known.contents

    computed = [n for n, v in enumerate(values) if is_computed(v)]
    return computed if computed and any(v in flow.framings for v in values[max(computed) + 1 :]) else []


def _window_after_computed(flow: Flow, node: ir.Node, framing: Frames, slot: int) -> Window:
    """Return the window of a Concat of computed frames and a stream: how many frames they are. Record its changes.

    Args:
        framing: The framing of the stream.
        slot: The input of the node that has the stream.
    """
    counts = [flow.shape(input_of(node, n), node)[framing.axis].constant for n in range(slot)]
    if slot + 1 != len(node.inputs) or None in counts:
        raise flow.refuse(
            node,
            "joins the frames of the stream with others on both sides, or with some that a short sequence lacks",
            "use two Concats",
        )
    left = int(sum(count or 0 for count in counts))
    delay = framing.delay
    if delay and (delay.frames != left or delay.of_stream > flow.unit):
        raise flow.refuse(
            node,
            "puts computed frames before frames that come late",
            "put constants there: the stream keeps past frames itself",
        )
    if slot > 1:
        flow.change(node, _join_in_front, slot)
    if delay:
        flow.change(node, _in_place_of_missing, framing)
    return Window(left=left, initial=Computed(0))


def _join_in_front(editor: Editor, node: ir.Node, slot: int) -> None:
    """Let a Concat read one value in front of the stream: a Concat of those that it reads there."""
    axis, stream = node.attributes["axis"].as_int(), input_of(node, slot)
    front = editor.before(node)("Concat", *(input_of(node, n) for n in range(slot)), axis=axis)
    front.type = input_of(node).type
    node.resize_inputs(2)
    node.replace_input_with(0, front)
    node.replace_input_with(1, stream)


def _in_place_of_missing(editor: Editor, node: ir.Node, frames: Frames) -> None:
    """Let a Concat read computed frames in place of as many missing ones, all of which are in the first call."""
    front, stream, emit = input_of(node), input_of(node, 1), editor.before(node)
    real = emit.sliced(stream, [frames.axis], [frames.delay.frames], [TO_THE_END])
    first = emit("Concat", front, real, axis=frames.axis)
    chosen = past_or_first(editor, node, stream, first)
    chosen.type = stream.type
    node.replace_input_with(1, chosen)
