"""Frames that are cut out of the stream, picked from it or repeated: Slice, also with steps, Gather and Resize."""

from __future__ import annotations

from dataclasses import dataclass, replace

import onnx_ir as ir

from rnn_lowering.emit.versions import TO_THE_END
from rnn_lowering.inference.polynomials import Size, size
from rnn_lowering.inference.shape_inference import position, slice_bounds
from rnn_lowering.streaming.editor import Editor, NodeEdit, input_of
from rnn_lowering.streaming.frames.delays import Wait, resampled
from rnn_lowering.streaming.frames.flow import Flow
from rnn_lowering.streaming.frames.framing import Counter, FirstFrame, Frames, Framing, Unframed, WholeSequenceValue
from rnn_lowering.streaming.frames.past_frames import keep, past_of, settled


@dataclass(frozen=True)
class Trim(NodeEdit):
    """A Slice over the frames, with its starts and ends in a chunk for all axes."""

    node: ir.Node
    axes: tuple[int, ...]
    starts: tuple[int, ...]
    ends: tuple[int, ...]
    steps: tuple[int, ...]
    carries = False

    def apply(self, editor: Editor) -> None:
        """Set the starts and ends of the Slice to those in a chunk."""
        node, emit, value = self.node, editor.before(self.node), input_of(self.node)
        whole = set(self.starts) == {0} and set(self.ends) == {TO_THE_END} and set(self.steps) == {1}
        own = value if whole else emit.sliced(value, self.axes, self.starts, self.ends, self.steps)
        editor.replace(node.outputs[0], own, emit.graph)
        emit.graph.remove(node, safe=True)


def sliced(flow: Flow, node: ir.Node, framing: Frames) -> list[Framing] | None:
    """Return the framing of the output of a Slice. If the Slice trims frames, record its cut of a chunk."""
    value, output = input_of(node), node.outputs[0]
    shape = flow.shape(value, node)
    bounds = slice_bounds(flow.known, node, len(shape))
    if bounds is None:
        raise flow.refuse(node, "starts or ends are not constant", "cut by constants")
    if any(b.timed for axis, held in bounds.items() if axis != framing.axis for b in held):
        raise flow.refuse(node, "cuts other axes by the number of frames", "cut by constants")
    if framing.axis not in bounds:
        return [flow.framed(node, output, framing)]
    first, last, step = bounds[framing.axis]
    if step.constant is None or step.constant < 1:
        raise flow.refuse(
            node, "reverses the frames, or its steps are not constant", "cut by constants, with positive steps"
        )
    length = shape[framing.axis]
    begin, end = position(first, length), position(last, length)
    begin = first if begin is None and (first.constant or 0) > 0 else begin
    left = None if begin is None else begin.whole().constant
    right = None if end is None else (length - end).whole().constant
    if left == right == 0 and step == size(1) and _stays_whole(first, last, length):
        return [flow.resized(node, output, framing)]
    if step == size(1) and end == length and (count := _last_frames(framing, length, begin)):
        cache = flow.caches.get(value)
        if cache is not None and len(bounds) == 1 and count == framing.known:
            flow.tails[output] = cache
        return [Unframed.LAST]
    alone = framing.plain and not framing.delay and len(bounds) == 1
    if step == size(1) and begin == size(0) and end == size(1) and alone:
        return [FirstFrame(framing.axis, _by_position(flow, node).error)]
    if left is None or right is None or not framing.plain:
        return [_by_position(flow, node)]
    return _trimmed(flow, node, framing, bounds, int(left), int(right))


def _last_frames(framing: Frames, length: Size, begin: Size | None) -> int:
    """Return the number of last frames from `begin` on, or 0 if a chunk may lack some of them."""
    count = None if begin is None else (length - begin).constant
    surely = framing.plain and framing.extra == framing.known and count is not None
    return int(count or 0) if surely and count is not None and 1 <= count <= framing.overlap + 1 else 0


def _stays_whole(first: Size, last: Size, length: Size) -> bool:
    """Return whether bounds that keep all frames of the whole also keep all frames of a chunk."""
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
) -> list[Framing]:
    step = int(bounds[framing.axis][2].constant or 1)
    made = framing.padded(-left, -right).windows(1, step)
    found = settled(flow, node, framing, made)
    numbers = {axis: [b.constant for b in held] for axis, held in bounds.items() if axis != framing.axis}
    if any(None in held for held in numbers.values()):
        raise flow.refuse(node, "cuts frames and an axis of another size that is not fixed", "use two Slices")
    here = {axis: [max(min(int(n or 0), TO_THE_END), -TO_THE_END) for n in held] for axis, held in numbers.items()}
    cut = (made.known - found.known) * step
    here[framing.axis] = [-past_of(framing, found, -left, step), -cut or TO_THE_END, step]
    starts, ends, steps = zip(*here.values(), strict=True)
    flow.edits.append(Trim(node, tuple(here), starts, ends, steps))
    return resampled(flow, node, framing, found)


def picked(flow: Flow, node: ir.Node, framing: Frames) -> list[Framing] | None:
    """Return the framing of the output of a Gather that picks the last frame, or a window around each frame."""
    shape, index = flow.shape(input_of(node), node), input_of(node, 1)
    if (node.attributes.get_int("axis", 0) or 0) % len(shape) != framing.axis:
        return None
    if isinstance(counter := flow.framings.get(index), Counter):
        return _around(flow, node, framing, counter)
    numbers = flow.known.numbers(index)
    last = index not in flow.framings and numbers in ([size(-1)], [shape[framing.axis] - 1])
    if last and _last_frames(framing, shape[framing.axis], shape[framing.axis] - 1):
        return [Unframed.LAST]
    return [_by_position(flow, node)]


def _around(flow: Flow, node: ir.Node, framing: Frames, counter: Counter) -> list[Framing]:
    """Return the framing of windows that a table of frame numbers picks."""
    frames, offsets = counter.frames, counter.offsets
    if not framing.plain or counter.step < 1 or frames.rate * counter.step != framing.rate:
        raise flow.refuse(
            node, "picks frames at another rate than that of its table", "give the table one row for each frame"
        )
    if int(offsets.min()) < 0:
        raise flow.refuse(node, "picks a frame before the first one, which is the last one", "pad them in front")
    there = framing.windows(int(offsets.max()) + 1, counter.step).known
    found = replace(frames, axis=framing.axis + frames.axis, known=min(there, frames.known))
    table = input_of(node, 1)
    if beyond := frames.known - found.overlap:  # windows at the end of the table read frames of the next chunk
        flow.edits.append(Wait(*flow.at(node, table, frames), slot=1, past=0, drop=beyond))
    if past := past_of(framing, found, stride=counter.step):
        keep(flow, node, framing, past)
    return resampled(flow, node, framing, found)


def resized(flow: Flow, node: ir.Node, framing: Frames) -> list[Framing] | None:
    """Return the framing of the output of a Resize or Upsample that repeats each frame."""
    before, after = (flow.shape(v, node)[framing.axis] for v in (input_of(node), node.outputs[0]))
    ratio = after.divided(before)
    times = None if ratio is None else ratio.constant
    if times == 1 or times is None or any(v is not None and flow.framings.get(v) for v in node.inputs[1:]):
        return None
    if times.denominator > 1 or not framing.plain or not _repeats(node):
        raise flow.refuse(
            node,
            "interpolates between frames, so it looks ahead",
            "use mode nearest, nearest_mode floor, coordinates asymmetric, and a whole number as the scale",
        )
    return resampled(flow, node, framing, framing.repeated(int(times)))


def _repeats(node: ir.Node) -> bool:
    """Return whether each result is the frame at or before its position."""
    if node.attributes.get_string("mode", "nearest") != "nearest":
        return False
    if node.op_type == "Upsample":
        return True
    coordinates = node.attributes.get_string("coordinate_transformation_mode", "half_pixel")
    rounded = node.attributes.get_string("nearest_mode", "round_prefer_floor")
    return coordinates == "asymmetric" and rounded == "floor"
