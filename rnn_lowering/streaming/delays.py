"""Nodes that read frames before or after the chunk: past frames are a state, and future frames a delay.

* Past frames: `with_past` records that a state keeps them and replaces the padding (`PastFrames`).
* Future frames: an operator that looks ahead returns a late value (`Frames.known`). Where values meet, `joined`
  decides their common delay, and `Wait` delays the earlier ones.

A value with delay 2 starts with 2 missing frames. Until frame 0 comes, states keep their initial values, and nodes
read the padding (`without_missing`). A state counts the frames so far, and so tells which frames are missing.

Example: with delay 2 and chunks of 3 frames, the first chunk holds [missing, missing, frame 0] and the second
[frame 1, frame 2, frame 3].
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from rnn_lowering.errors import counted
from rnn_lowering.facts.numbers import depends_on_time
from rnn_lowering.facts.parameters import TO_THE_END
from rnn_lowering.facts.size import TIME, Size
from rnn_lowering.nodes.node_spec import node_ref
from rnn_lowering.streaming.editor import Editor, Emitter, home, input_of
from rnn_lowering.streaming.flow import Flow, FramesEdit
from rnn_lowering.streaming.frame_counts import LengthSoFar, check_opset_of_delay, frame_indices, past_or_first
from rnn_lowering.streaming.frames import Delay, Frames, Framing, Unframed, WholeSequenceValue
from rnn_lowering.types import Array, ArrayLike

Initial = float | Array
"""Frames before the first chunk: a number, or an array with an entry for each along their axis."""


def joined(flow: Flow, node: ir.Node, slots: Sequence[int]) -> tuple[Frames | Unframed | None, dict[int, int]]:
    """Return the common framing of the inputs of a node, and the axis of the frames by input slot."""
    values = {slot: v for slot in slots if (v := node.inputs[slot]) is not None}
    own = [m for v in values.values() if isinstance(m := flow.framings.get(v), Frames)]
    own.sort(key=lambda frames: frames.known)
    by_slot: dict[int, Frames] = {}
    last = False
    for slot, value in values.items():
        constant = next((same for each in own if (same := _in_every_frame(flow, value, each)) is not None), None)
        framing = constant or _length(flow, node, slot, list(values.values())) or flow.framing(value, node)
        if isinstance(framing, Frames):
            by_slot[slot] = framing
        last = last or framing is Unframed.LAST
    if last and by_slot:
        raise flow.refuse(
            node, "joins each frame with a value that is known only after the last one", "make that value an output"
        )
    kinds = sorted({replace(frames, axis=0) for frames in by_slot.values()}, key=lambda kind: kind.known)
    if len({replace(kind, known=0) for kind in kinds}) > 1:
        raise flow.refuse(
            node, f"joins values whose frames are not aligned: {_listed(kinds)}", "trim the longer one with a Slice"
        )
    for slot, frames in by_slot.items():
        if frames.known > kinds[0].known:
            _wait(flow, node, slot, frames, kinds[0])
    axes = {slot: frames.axis for slot, frames in by_slot.items()}
    return (kinds[0] if kinds else Unframed.LAST if last else None), axes


def _in_every_frame(flow: Flow, value: ir.Value, frames: Frames) -> Frames | None:
    """Return the framing of a value that is equal in every frame, if its size matches `frames`."""
    dims = flow.known.shapes.get(value, ())
    timed = [axis for axis, dim in enumerate(dims) if dim.timed]
    if value in flow.framings or depends_on_time(flow.known, value) or len(timed) != 1:
        return None
    return replace(frames, axis=timed[0]) if dims[timed[0]] == frames.size() else None


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
    last = all(flow.framings.get(v) is Unframed.LAST for v in values if v is not value)
    if not (linear and whole and last):
        return None
    shape = tuple(int(dim.constant or 1) for dim in flow.known.shapes[value])
    flow.edits.append(LengthSoFar(node, slot, factor, offset, shape, dtype))
    return Unframed.LAST


def _listed(frames: Sequence[Frames]) -> str:
    return " and ".join(
        f"{f.known} before, {f.extra - f.known} behind"
        + (f", {f.rate} for each of the stream" if f.rate != 1 else "")
        + ("" if f.plain else f", merged {f.outer} x {f.inner}")
        for f in frames
    )


def _wait(flow: Flow, node: ir.Node, slot: int, framing: Frames, later: Frames) -> None:
    """Delay an input of a node until it has the delay of the other inputs."""
    value = input_of(node, slot)
    if not framing.plain:
        raise flow.refuse(
            node,
            f"joins values whose frames are not aligned: {_listed([framing, later])}",
            "trim the longer one with a Slice",
        )
    past = later.delay.frames - framing.delay.frames
    drop = past + framing.overlap - later.overlap
    flow.edits.append(Wait(*flow.edit_fields(node, value, framing), slot, past, drop))


@dataclass(frozen=True)
class Wait(FramesEdit):
    """Delays an input of a node until it has the delay of the other inputs.

    Attributes:
        slot: The slot of the input.
        past: The number of frames of the added delay.
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
            editor.made[key] = self._delayed(editor, source)
        self.node.replace_input_with(self.slot, editor.made[key])

    def _delayed(self, editor: Editor, value: ir.Value) -> ir.Value:
        emit, axis = editor.before(self.node), self.frames.axis
        if self.past:
            past = self.past_input(editor, "x", value.name, self.past)
            value = emit("Concat", past, value, axis=axis)
            editor.add_present(self.node, "x", past, self.last(emit, value, self.past), self.path)
        return emit.sliced(value, [axis], [0], [-self.drop])


def with_past(
    flow: Flow,
    node: ir.Node,
    before: Frames,
    after: Frames,
    *,
    left: int = 0,
    right: int = 0,
    stride: int = 1,
    initial: Initial | None = 0.0,
    slot: int = 0,
    pads: tuple[int, ...] = (),
    first: int | None = None,
) -> list[Framing]:
    """Return the framing of the output of a node that reads past frames, and record that a state keeps them.

    Args:
        before, after: The framings of what it reads and of what it returns on a whole sequence.
        left, right: The numbers of frames that it adds before and after.
        stride: The number of frames from one result to the next.
        initial, slot, pads, first: As for `keep`.
    """
    final = settled(flow, node, before, after, right)
    drop, past = after.known - final.known, past_of(before, final, left, stride)
    if drop and stride > 1:
        raise flow.refuse(
            node,
            f"a stride of {stride} over time does not fit the frames that are cut off before it",
            "cut off a multiple of the stride",
        )
    if past or left or right:
        keep(flow, node, before, past, left=left, initial=initial, slot=slot, drop=drop, pads=pads, first=first)
    return resampled(flow, node, before, final)


def settled(flow: Flow, node: ir.Node, before: Frames, after: Frames, right: int = 0) -> Frames:
    """Return `after` with `known` lowered, so no chunk emits frames that a cut at the end removes.

    Args:
        before, after: The framings of what the node reads and returns.
        right: The number of frames that it adds at the end.
    """
    if before.cut and right > 0:
        raise flow.refuse(
            node,
            f"puts {right} frames at the end after the last {before.known - before.extra} were cut off",
            "a stream never knows which frames are the last",
        )
    return replace(after, known=min(after.known, max(after.extra, 0)))


def past_of(before: Frames, after: Frames, left: int = 0, stride: int = 1) -> int:
    """Return the number of frames that a node reads before the chunk, or minus the number that it skips.

    Args:
        before, after: The framings of what it reads and returns.
        left: The number of frames that it reads before frame 0.
        stride: The number of frames from one result to the next.
    """
    return left - before.delay.frames + after.delay.frames * stride


def keep(
    flow: Flow,
    node: ir.Node,
    frames: Frames,
    past: int,
    *,
    left: int = 0,
    initial: Initial | None = 0.0,
    slot: int = 0,
    drop: int = 0,
    pads: tuple[int, ...] = (),
    output_padding: tuple[int, ...] | None = None,
    first: int | None = None,
) -> None:
    """Record that a node reads `past` frames before the chunk. If `past` is negative, the node skips that many.

    Args:
        left: The number of frames that the node reads before frame 0; 0 if they have no effect.
        initial: These frames: a number, or an array with `left` entries. None: the model computes them.
    """
    value = node.outputs[0] if node.op_type == "Pad" else input_of(node, slot)
    delay, axis = frames.delay.frames, frames.axis
    edit = PastFrames(
        *flow.edit_fields(node, value, frames),
        slot,
        past=max(past, 0),
        initial=_entries(initial, axis, left - delay - past, past),
        early=_entries(initial, axis, left - delay, delay) if left > 0 else None,
        drop=drop,
        skip=max(-past, 0),
        pads=pads,
        output_padding=output_padding,
        first=first,
    )
    flow.edits.append(edit)


def _entries(initial: Initial | None, axis: int, first: int, count: int) -> Initial | None:
    """Return `count` entries from index `first`; a negative index gives entry 0, which nothing uses."""
    if initial is None or isinstance(initial, float) or count <= 0:
        return 0.0 if count <= 0 else initial
    return initial.take(np.maximum(np.arange(first, first + count), 0), axis)


@dataclass(frozen=True)
class PastFrames(FramesEdit):
    """Lets a convolution, a pooling, a Pad or a Concat read `past` frames before the chunk, which are a state.

    Attributes:
        slot: The input whose past it keeps.
        past: The number of past frames; 0 if the edit only removes padding.
        initial: The past frames of the first chunk. None: the model computes them.
        early: What replaces the frames that are missing because of a delay. None: they stay.
        drop: The number of frames at the end of the input that only the next chunk uses.
        skip: The number of frames at the start of the input that the node does not use.
        pads: The new padding of the node, in the order of its attribute: 0 along the frames.
        output_padding: The new output_padding of a transposed convolution, or None to keep it.
        first: Input slot of the computed frames before the first chunk (for a Pad: of the data).

    Example: a causal Conv of kernel 3 has `past` 2. With chunks of 4 frames it reads 2 + 4 frames and returns 4.
    The last 2 of the 6 are the next state.
    """

    slot: int
    past: int
    initial: Initial | None
    early: Initial | None
    drop: int = 0
    skip: int = 0
    pads: tuple[int, ...] = ()
    output_padding: tuple[int, ...] | None = None
    first: int | None = None

    @property
    def carries(self) -> bool:  # type: ignore[override]
        return self.past > 0 or (self.early is not None and bool(self.frames.delay))

    @property
    def _replaces_node(self) -> bool:
        """Whether the node only puts frames before others, which the past frames do."""
        return self.node.op_type in ("Pad", "Concat")

    def apply(self, editor: Editor) -> None:
        source = input_of(self.node, self.slot)
        past = self.past_input(editor, "x", source.name, self.past) if self.past else None
        emit = editor.before(self.node)
        value = self._without_padding(emit, source)
        if self.early is not None:
            value = without_missing(editor, self, value, self.early)
        if past is not None:
            before = past if self.first is None else past_or_first(editor, self.node, past, self._first(emit))
            value = emit("Concat", before, value, axis=self.frames.axis)
        self._read(editor, emit, value)
        if past is not None:
            present = self.last(editor.after(self.node), value, self.past)
            initial = np.asarray(self.initial)
            initial = initial.reshape(initial.shape or (1,) * len(self.shape))
            editor.add_present(self.node, "x", past, present, self.path, initial)
        if self._replaces_node:
            emit.graph.remove(self.node, safe=True)

    def _read(self, editor: Editor, emit: Emitter, value: ir.Value) -> None:
        """Make a value the input of the node, without padding, or replace the node with it."""
        node = self.node
        if self.drop or self.skip:
            value = emit.sliced(value, [self.frames.axis], [self.skip], [-self.drop or TO_THE_END])
        if self._replaces_node:
            editor.replace(node.outputs[0], value, emit.graph)
            return
        node.replace_input_with(0, value)
        if self.pads:
            node.attributes["pads"] = ir.AttrInt64s("pads", self.pads)
            node.attributes.pop("auto_pad", None)
        if self.output_padding is not None:
            node.attributes["output_padding"] = ir.AttrInt64s("output_padding", self.output_padding)

    def _first(self, emit: Emitter) -> ir.Value:
        """Return the computed frames before the first chunk."""
        value = input_of(self.node, self.first or 0)
        return emit.sliced(value, [self.frames.axis], [0], [1]) if self.node.op_type == "Pad" else value

    def _without_padding(self, emit: Emitter, value: ir.Value) -> ir.Value:
        """Return what the node reads; the data of a Pad are padded along the other axes only."""
        node = self.node
        if node.op_type != "Pad" or not any(self.pads):
            return value
        fill = node.inputs[2] if len(node.inputs) > 2 else None
        more = {} if fill is None else {"constant_value": fill}
        padded = emit("Pad", value, pads=self.pads, **more)
        kept = {name: a for name, a in node.attributes.items() if name in ("value", "mode")}
        emit.nodes[-1].attributes.update(kept)
        return padded


def resampled(flow: Flow, node: ir.Node, before: Frames, after: Frames) -> list[Framing]:
    """Return the framing of the output of a node, and note how many more frames it looks ahead."""
    more = after.delay.frames / after.rate - before.delay.frames / before.rate
    if more > 0:
        flow.ahead.append((node_ref(node, flow.scope), math.ceil(more)))
    return [flow.resampled(node, node.outputs[0], after)]


def last_state(
    flow: Flow, node: ir.Node, framing: Frames, states: Sequence[ir.Value]
) -> Unframed | WholeSequenceValue:
    """Return the framing of the last states of a node. Late ones may only be carried by the stream."""
    late = framing.late
    if not late:
        return Unframed.LAST
    error = flow.refuse(
        node,
        f"returns its last state, which comes {counted(late.frames, 'frame')} after the sequence has ended",
        "drop that output, since the stream carries the state, or give the node an initial state to return",
    )
    if framing.extra > 0 or flow.path:
        return WholeSequenceValue(error)
    flow.late_states.update((v, error) for v in states if v.name)
    return Unframed.LAST


def missing_frames(editor: Editor, delay: Delay) -> ir.Value:
    """Return a mask of the frames in this call that are missing because of the delay."""
    check_opset_of_delay(editor)
    if delay not in editor.made:
        limit = editor.start.counts([delay.frames])
        editor.made[delay] = editor.start("Less", frame_indices(editor, delay.rate), limit)
    return editor.made[delay]


def without_missing(editor: Editor, edit: FramesEdit, value: ir.Value, early: ArrayLike) -> ir.Value:
    """Return what a node reads, with these numbers for the frames that are missing because of a delay.

    Args:
        edit: The edit of the node.
        value: What the node reads.
        early: The numbers: one, or an array with an entry for each frame of delay along the axis of the frames.
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
    return emit.chosen(missing, fill, value, edit.dtype)
