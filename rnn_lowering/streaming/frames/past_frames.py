"""Nodes that read frames before the chunk: a state keeps these frames and replaces the padding."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from rnn_lowering.emit.versions import TO_THE_END
from rnn_lowering.streaming.editor import Editor, Emitter, input_of
from rnn_lowering.streaming.frames.delays import resampled, without_missing
from rnn_lowering.streaming.frames.flow import Flow, FramesEdit
from rnn_lowering.streaming.frames.frame_counts import after_the_start
from rnn_lowering.streaming.frames.framing import Frames, Framing
from rnn_lowering.types import Array

Initial = float | Array
"""Frames before the first chunk: a number, or an array with an entry for each along their axis."""


@dataclass(frozen=True)
class PastFrames(FramesEdit):
    """A convolution, a pooling, a Pad or a Concat that reads `past` frames before the chunk.

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
    def _replaced(self) -> bool:
        """Whether the node only puts frames before others, so that the past replaces it."""
        return self.node.op_type in ("Pad", "Concat")

    def apply(self, editor: Editor) -> None:
        source = input_of(self.node, self.slot)
        past = self.past_input(editor, "x", source.name, self.past) if self.past else None
        emit = editor.before(self.node)
        value = self._without_padding(emit, source)
        if self.early is not None:
            value = without_missing(editor, self, value, self.early)
        if past is not None:
            before = past if self.first is None else after_the_start(editor, self.node, past, self._first(emit))
            value = emit("Concat", before, value, axis=self.frames.axis)
        self._read(editor, emit, value)
        if past is not None:
            present = self.last(editor.after(self.node), value, self.past)
            initial = np.asarray(self.initial)
            initial = initial.reshape(initial.shape or (1,) * len(self.shape))
            editor.add_present(self.node, "x", past, present, self.path, initial)
        if self._replaced:
            emit.graph.remove(self.node, safe=True)

    def _read(self, editor: Editor, emit: Emitter, value: ir.Value) -> None:
        """Let the node read a value, without padding; or put the value in its place."""
        node = self.node
        if self.drop or self.skip:
            value = emit.sliced(value, [self.frames.axis], [self.skip], [-self.drop or TO_THE_END])
        if self._replaced:
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
        kept = [a for name, a in node.attributes.items() if name in ("value", "mode")]
        emit.nodes[-1].attributes.update({a.name: a for a in kept})
        return padded


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
    read = node.outputs[0] if node.op_type == "Pad" else input_of(node, slot)
    delay, axis = frames.delay.frames, frames.axis
    kept = PastFrames(
        *flow.at(node, read, frames),
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
    flow.edits.append(kept)


def _entries(initial: Initial | None, axis: int, first: int, count: int) -> Initial | None:
    """Return `count` entries from index `first`; a negative index gives entry 0, which nothing uses."""
    if initial is None or isinstance(initial, float) or count <= 0:
        return 0.0 if count <= 0 else initial
    return initial.take(np.maximum(np.arange(first, first + count), 0), axis)


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
        left, right: How many frames it adds before and behind.
        stride: How many frames it moves by for each result.
        initial, slot, pads, first: As for `keep`.
    """
    found = settled(flow, node, before, after, right)
    drop, past = after.known - found.known, past_of(before, found, left, stride)
    if drop and stride > 1:
        raise flow.refuse(
            node,
            f"a stride of {stride} over time does not fit the frames that are cut off before it",
            "cut off a multiple of the stride",
        )
    if past or left or right:
        keep(flow, node, before, past, left=left, initial=initial, slot=slot, drop=drop, pads=pads, first=first)
    return resampled(flow, node, before, found)


def past_of(before: Frames, after: Frames, left: int = 0, stride: int = 1) -> int:
    """Return how many frames before the chunk a node reads; negative: how many of the chunk it skips.

    Args:
        before, after: The framings of what it reads and returns.
        left: How many frames it reads before frame 0.
        stride: How many frames it moves by for each result.
    """
    return left - before.delay.frames + after.delay.frames * stride


def settled(flow: Flow, node: ir.Node, before: Frames, after: Frames, right: int = 0) -> Frames:
    """Return the framing of an output without the frames of each chunk that the end of the sequence loses.

    Args:
        before, after: The framings of what the node reads and returns.
        right: How many frames it puts at the end.
    """
    if before.cut and right > 0:
        raise flow.refuse(
            node,
            f"puts {right} frames at the end after the last {before.known - before.extra} were cut off",
            "a stream never knows which frames are the last",
        )
    return replace(after, known=min(after.known, max(after.extra, 0)))
