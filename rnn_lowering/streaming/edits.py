"""Edits of a node along the frames: the state that they add, and what the node reads before frame 0.

A value with delay 2 starts with 2 missing frames. Until frame 0 comes, states keep their initial values, and nodes
read their padding (`FramesRead.without_missing`). A state counts the frames so far, and so tells which are missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from rnn_lowering.facts.parameters import TO_THE_END
from rnn_lowering.streaming.editor import Editor, Emitter, NodeEdit, input_of
from rnn_lowering.streaming.frame_counts import frame_indices, missing_frames
from rnn_lowering.streaming.frames import Frames
from rnn_lowering.types import ArrayLike


@dataclass(frozen=True)
class FramesRead:
    """The frames that a node reads.

    Attributes:
        node: The node.
        value: What it reads, or a value of the same type and shape.
        frames: The framing of what it reads.
    """

    node: ir.Node
    value: ir.Value
    frames: Frames

    def past_input(self, editor: Editor, kind: str, rows: int = 1) -> ir.Value:
        """Add an input that takes rows of the value from call to call."""
        dims = editor.dims(self.value, {self.frames.axis: rows})
        return editor.add_past(self.node, kind, editor.known.types[self.value], dims)

    def last(self, emit: Emitter, value: ir.Value, rows: int) -> ir.Value:
        """Return the last rows of the chunk, for the next call, of a value that ends with its frames."""
        overlap = self.frames.overlap
        return emit.sliced(value, [self.frames.axis], [-(rows + overlap)], [-overlap or TO_THE_END])

    def without_missing(self, editor: Editor, value: ir.Value, early: ArrayLike) -> ir.Value:
        """Return what the node reads, with these numbers for the frames that are missing because of a delay.

        Args:
            value: What the node reads.
            early: The numbers: one, or an array with an entry for each frame of delay along the axis of the frames.
        """
        delay, axis, dtype = self.frames.delay, self.frames.axis, editor.known.types[self.value]
        if not delay:
            return value
        emit, numbers = editor.before(self.node), np.atleast_1d(np.asarray(early, dtype.numpy()))
        missing, fill = missing_frames(editor, delay), emit.constant(numbers, dtype)
        if numbers.size > 1:
            index = frame_indices(editor, delay.rate)
            within = emit("Where", missing, index, editor.start.counts([delay.frames - 1]))
            fill = emit("Gather", fill, within, axis=axis)
        if editor.own_frames(delay.rate) != 1:
            axes = range(len(editor.known.shapes[self.value]))
            missing = emit("Reshape", missing, emit.constant([-1 if n == axis else 1 for n in axes]))
        return emit.chosen(missing, fill, value, dtype)


@dataclass(frozen=True)
class FramesEdit(FramesRead, NodeEdit):
    """An edit of a node along the frames that it reads, which may add a state."""


def set_attributes(editor: Editor, node: ir.Node, attributes: Mapping[str, ir.Attr | None]) -> None:
    """Set attributes of a node, and remove those that are None."""
    for name, attribute in attributes.items():
        if attribute is None:
            node.attributes.pop(name, None)
        else:
            node.attributes[name] = attribute


def wide_type(dtype: ir.DataType) -> ir.DataType:
    """Return the type in which numbers of a type are summed over the frames so far."""
    return ir.DataType.FLOAT if dtype in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16) else dtype


def summed_in_float32(editor: Editor, node: ir.Node, slots: Sequence[int], dtype: ir.DataType) -> ir.DataType:
    """Let a node compute in float32 what it computes of float16 or bfloat16; return the type in which it computes.

    Args:
        slots: Its inputs of that type.
        dtype: The type. Other types stay.
    """
    wide = wide_type(dtype)
    if wide == dtype:
        return dtype
    before, after, output = editor.before(node), editor.after(node), node.outputs[0]
    for slot in dict.fromkeys(slots):
        node.replace_input_with(slot, before("Cast", input_of(node, slot), to=int(wide)))
    after.instead_of(output, after("Cast", output, to=int(dtype)))
    output.type = ir.TensorType(wide)
    return wide
