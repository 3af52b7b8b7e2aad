"""Values with a delay: a node before them reads future frames.

An operator that looks ahead returns a late value (`Frames.known`). Where values meet, `joined` decides their common
delay, and `Wait` adds it to the earlier ones. `without_missing` replaces the frames that are missing at the start.

A value with delay 2 starts with 2 missing frames. Until frame 0 comes, states keep their initial values, and nodes
read the padding. A state counts the frames so far, and so tells which frames are missing.

Example: with delay 2 and chunks of 3 frames, the first chunk holds [missing, missing, frame 0] and the second
[frame 1, frame 2, frame 3].
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from rnn_lowering.errors import UnsupportedError, counted
from rnn_lowering.inference.polynomials import TIME, Size
from rnn_lowering.inference.shape_arithmetic import depends_on_time
from rnn_lowering.spec.node_spec import node_ref
from rnn_lowering.streaming.editor import Editor, home, input_of
from rnn_lowering.streaming.frames.flow import Flow, FramesEdit
from rnn_lowering.streaming.frames.frame_counts import LengthSoFar, frame_indices
from rnn_lowering.streaming.frames.framing import Delay, Frames, Framing, Unframed, WholeSequenceValue
from rnn_lowering.types import ArrayLike


def joined(flow: Flow, node: ir.Node, slots: Sequence[int]) -> tuple[Frames | Unframed | None, dict[int, int]]:
    """Return the common framing of the inputs of a node, and the axis of the frames by input slot."""
    values = {slot: v for slot in slots if (v := node.inputs[slot]) is not None}
    own = [held for v in values.values() if isinstance(held := flow.framings.get(v), Frames)]
    own.sort(key=lambda held: held.known)
    framed: dict[int, Frames] = {}
    last = False
    for slot, value in values.items():
        held = next((same for each in own if (same := _same_as(flow, value, each)) is not None), None)
        found = held or _length(flow, node, slot, list(values.values())) or flow.framing(value, node)
        if isinstance(found, Frames):
            framed[slot] = found
        last = last or found is Unframed.LAST
    if last and framed:
        raise flow.refuse(
            node, "joins each frame with a value that is known only after the last one", "make that value an output"
        )
    kinds = sorted({replace(held, axis=0) for held in framed.values()}, key=lambda kind: kind.known)
    if len({replace(kind, known=0) for kind in kinds}) > 1:
        raise flow.refuse(
            node, f"joins values whose frames are not aligned: {_apart(kinds)}", "trim the longer one with a Slice"
        )
    for slot, held in framed.items():
        if held.known > kinds[0].known:
            _wait(flow, node, slot, held, kinds[0])
    axes = {slot: held.axis for slot, held in framed.items()}
    return (kinds[0] if kinds else Unframed.LAST if last else None), axes


def _length(flow: Flow, node: ir.Node, slot: int, values: Sequence[ir.Value]) -> Unframed | None:
    """Return the framing of a number computed from the length, if a node reads it with a pooled value."""
    value = node.inputs[slot]
    numbers = flow.known.numbers(value) if value is not None and depends_on_time(flow.known, value) else None
    if value is None or numbers is None or len(numbers) != 1 or flow.framings.get(value) is not None:
        return None
    number, dtype = numbers[0].whole(), flow.known.types[value]
    factor, offset = number.coefficient(TIME), number.coefficient()
    linear = number == Size.symbol(TIME) * factor + offset
    whole = factor.denominator == offset.denominator == 1 or dtype.is_floating_point()
    if not linear or not whole or not all(_is_last(flow, v) for v in values if v is not value):
        return None
    shape = tuple(int(dim.constant or 1) for dim in flow.known.shapes[value])
    flow.edits.append(LengthSoFar(node, slot, factor, offset, shape, dtype))
    return Unframed.LAST


def _is_last(flow: Flow, value: ir.Value) -> bool:
    return flow.framings.get(value) is Unframed.LAST


def _wait(flow: Flow, node: ir.Node, slot: int, framing: Frames, later: Frames) -> None:
    """Delay an input of a node until it has the delay of the other inputs."""
    value = input_of(node, slot)
    if not framing.plain:
        raise flow.refuse(
            node,
            f"joins values whose frames are not aligned: {_apart([framing, later])}",
            "trim the longer one with a Slice",
        )
    past = later.delay.frames - framing.delay.frames
    drop = past + framing.overlap - later.overlap
    flow.edits.append(Wait(*flow.at(node, value, framing), slot, past, drop))


def resampled(flow: Flow, node: ir.Node, before: Frames, after: Frames) -> list[Framing]:
    """Return the framing of the output of a node, and note how far it looks ahead: what the delay grows by."""
    more = after.delay.frames / after.rate - before.delay.frames / before.rate
    if more > 0:
        flow.ahead.append((node_ref(node, flow.scope), math.ceil(more)))
    return [flow.resampled(node, node.outputs[0], after)]


def _same_as(flow: Flow, value: ir.Value, frames: Frames) -> Frames | None:
    """Return the framing of a value that is equal in every frame, if its size matches `frames`."""
    dims = flow.known.shapes.get(value, ())
    timed = [axis for axis, dim in enumerate(dims) if dim.timed]
    if value in flow.framings or depends_on_time(flow.known, value) or len(timed) != 1:
        return None
    return replace(frames, axis=timed[0]) if dims[timed[0]] == frames.size() else None


def last_state(
    flow: Flow, node: ir.Node, framing: Frames, states: Sequence[ir.Value]
) -> Unframed | WholeSequenceValue:
    """Return the framing of the last states of a node. If they are late, only the stream may carry them."""
    late = framing.extra - framing.known
    if not late:
        return Unframed.LAST
    error = flow.refuse(
        node,
        f"returns its last state, which comes {counted(late, 'frame')} after the sequence has ended",
        "drop that output, since the stream carries the state, or give the node an initial state to return",
    )
    if framing.extra > 0 or flow.path:
        return WholeSequenceValue(error)
    flow.late_states.update((v, error) for v in states if v.name)
    return Unframed.LAST


def _apart(frames: Sequence[Frames]) -> str:
    return " and ".join(
        f"{f.known} before, {f.extra - f.known} behind"
        + (f", {f.rate} for each of the stream" if f.rate != 1 else "")
        + ("" if f.plain else f", merged {f.outer} x {f.inner}")
        for f in frames
    )


@dataclass(frozen=True)
class Wait(FramesEdit):
    """Delay an input of a node until it has the delay of the other inputs.

    Attributes:
        slot: Which of the inputs.
        past: The number of frames of the delay.
        drop: The number of frames at the end of the input that only the next chunk uses.
    """

    slot: int
    past: int
    drop: int

    @property
    def carries(self) -> bool:  # type: ignore[override]
        return self.past > 0

    def apply(self, editor: Editor) -> None:
        source = input_of(self.node, self.slot)
        frames = self.frames
        key = ("wait", source, home(self.node), frames.axis, self.past, frames.overlap, self.drop)
        if key not in editor.made:
            editor.made[key] = self._held_back(editor, source)
        self.node.replace_input_with(self.slot, editor.made[key])

    def _held_back(self, editor: Editor, source: ir.Value) -> ir.Value:
        emit, axis, held = editor.before(self.node), self.frames.axis, source
        if self.past:
            past = self.past_input(editor, "x", source.name, self.past)
            held = emit("Concat", past, source, axis=axis)
            editor.add_present(self.node, "x", past, self.last(emit, held, self.past), self.path)
        return emit.sliced(held, [axis], [0], [-self.drop])


def missing_frames(editor: Editor, delay: Delay) -> ir.Value:
    """Return a mask of the frames in this call that are missing because of the delay."""
    if editor.opset < 9:
        raise UnsupportedError("a stream that looks ahead needs opset 9", hint="convert the model first")
    if delay not in editor.made:
        limit = editor.start.counts([delay.frames])
        editor.made[delay] = editor.start("Less", frame_indices(editor, delay.rate), limit)
    return editor.made[delay]


def without_missing(editor: Editor, edit: FramesEdit, value: ir.Value, early: ArrayLike) -> ir.Value:
    """Return what a node reads, with other numbers for the frames that are missing because of a delay.

    Args:
        edit: The edit of the node.
        value: What the node reads.
        early: The other numbers: one, or an array with an entry along the axis of the frames per frame of delay.
    """
    delay, axis, rank = edit.frames.delay, edit.frames.axis, len(edit.shape)
    if not delay:
        return value
    emit, numbers = editor.before(edit.node), np.atleast_1d(np.asarray(early, edit.dtype.numpy()))
    missing, fill = missing_frames(editor, delay), emit.constant(numbers, edit.dtype)
    if numbers.size > 1:
        index = frame_indices(editor, delay.rate)
        within = emit("Where", missing, index, editor.start.counts([delay.frames - 1]))
        fill = emit("Gather", fill, within, axis=axis)
    if editor.own_frames(delay.rate) != 1:
        missing = emit("Reshape", missing, emit.constant([-1 if n == axis else 1 for n in range(rank)]))
    return emit("Where", missing, fill, value)
