"""Nodes that read frames before the chunk: a state keeps these frames and replaces the padding."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from rnn_lowering.emit.versions import TO_THE_END
from rnn_lowering.inference.symbolic_values import Shape
from rnn_lowering.streaming.editor import Editor, NodeEdit, Path, dim_of, home, producer
from rnn_lowering.streaming.frames.delays import replaced
from rnn_lowering.streaming.frames.flow import Flow
from rnn_lowering.streaming.frames.frame_counts import after_the_start
from rnn_lowering.streaming.frames.framing import Delay, Frames
from rnn_lowering.types import Array


@dataclass(frozen=True)
class PastFrames(NodeEdit):
    """A node that reads frames before the chunk: `past` of them.

    Attributes:
        node: A convolution, a pooling, a Pad or a Concat.
        slot: The input whose past it keeps.
        axis: The axis of the frames in what it reads.
        past: The number of past frames; 0 if the edit only removes padding.
        initial: The past frames of the first chunk: a number, or an array with `past` entries along `axis`. None:
            the model computes them.
        overlap: The number of extra frames of the input in each chunk.
        pads: The new padding of the node, in the order of its attribute: 0 along the frames.
        drop: The number of frames at the end of the input that only the next chunk uses.
        path: The If nodes around the node, each with its branch.
        shape, dtype: Shape and element type of the past frames.
        output_padding: The new output_padding of a transposed convolution, or None to keep it.
        first: Input slot of the computed frames before the first chunk (for a Pad: of the data).
        skip: The number of frames at the start of the input that the node does not use.
        delay: Delay of the input; `early` replaces the missing frames. None: no replacement is needed.
        early: The replacement: a number, or an array with one entry along `axis` per frame of delay.

    Example: a causal Conv of kernel 3 has `past` 2. With chunks of 4 frames it reads 2 + 4 frames and returns 4.
    The last 2 of the 6 are the next state.
    """

    node: ir.Node
    slot: int
    axis: int
    past: int
    initial: float | Array | None
    overlap: int
    pads: tuple[int, ...]
    drop: int
    path: Path
    shape: Shape
    dtype: ir.DataType
    output_padding: tuple[int, ...] | None = None
    first: int | None = None
    skip: int = 0
    delay: Delay | None = None
    early: float | Array | None = 0.0

    @property
    def carries(self) -> bool:  # type: ignore[override]
        return self.past > 0 or bool(self.delay)

    @property
    def source(self) -> ir.Value:
        """The current input of the node."""
        value = self.node.inputs[self.slot]
        assert value is not None
        return value

    def apply(self, editor: Editor) -> None:
        if not self.past:
            self._put_before(editor, None)
            return
        name = self.source.name
        dims = [self.past if n == self.axis else dim_of(dim, n, name) for n, dim in enumerate(self.shape)]
        past = editor.add_past(self.node, "x", self.dtype, dims)
        inner = self._put_before(editor, past)
        assert inner is not None
        initial = np.asarray(self.initial)
        editor.add_present(
            self.node, "x", past, inner, self.path, initial.reshape(initial.shape or (1,) * len(dims))
        )

    def _put_before(self, editor: Editor, past: ir.Value | None) -> ir.Value | None:
        """Put the past frames before what the node reads; return the frames for the next chunk.

        Args:
            past: The past frames, an input of the model. None: the node only loses its padding.
        """
        node = self.node
        graph = home(node)
        before = self._without_padding(editor, graph) if node.op_type == "Pad" else self.source
        if self.delay:
            early = np.asarray(self.early, self.dtype.numpy())
            early = early if early.ndim else early.reshape(1)
            before = replaced(editor, before, self.delay, self.axis, len(self.shape), early, node)
        if past is None:
            joined = before
        else:
            if self.first is not None:
                past = after_the_start(editor, node, past, self._first(editor, graph))
            (joined,) = editor.node("Concat", [past, before], axis=self.axis)
            graph.insert_before(node, [producer(joined)])
        read = joined
        if self.drop or self.skip:
            read = editor.sliced(joined, graph, [self.axis], [self.skip], [-self.drop or TO_THE_END])
            graph.insert_before(node, [producer(read)])
        if node.op_type in ("Pad", "Concat"):
            editor.replace(node.outputs[0], read, graph)
        else:
            node.replace_input_with(0, read)
            if self.pads:
                node.attributes["pads"] = ir.AttrInt64s("pads", self.pads)
                node.attributes.pop("auto_pad", None)
            if self.output_padding is not None:
                node.attributes["output_padding"] = ir.AttrInt64s("output_padding", self.output_padding)
        present = None
        if past is not None:
            end = -self.overlap or TO_THE_END
            start = -(self.past + self.overlap)
            present = editor.sliced(joined, graph, [self.axis], [start], [end])
            graph.insert_after(node, [producer(present)])
        if node.op_type in ("Pad", "Concat"):
            graph.remove(node, safe=True)
        return present

    def _first(self, editor: Editor, graph: ir.Graph) -> ir.Value:
        """Return the frames before the first chunk."""
        value = self.node.inputs[self.first or 0]
        assert value is not None
        if self.node.op_type == "Pad":
            value = editor.sliced(value, graph, [self.axis], [0], [1])
            graph.insert_before(self.node, [producer(value)])
        return value

    def _without_padding(self, editor: Editor, graph: ir.Graph) -> ir.Value:
        """Return the data of a Pad, padded along the other axes only."""
        node = self.node
        if not any(self.pads):
            return self.source
        fill = node.inputs[2] if len(node.inputs) > 2 else None
        more = {} if fill is None else {"constant_value": fill}
        (value,) = editor.node("Pad", [self.source], graph, pads=self.pads, **more)
        kept = [a for name, a in node.attributes.items() if name in ("value", "mode")]
        producer(value).attributes.update({a.name: a for a in kept})
        graph.insert_before(node, [producer(value)])
        return value


def keep(
    flow: Flow,
    node: ir.Node,
    framing: Frames,
    past: int,
    initial: float | Array | None,
    pads: tuple[int, ...],
    drop: int,
    *,
    before: int,
    slot: int = 0,
    output_padding: tuple[int, ...] | None = None,
    first: int | None = None,
) -> None:
    """Record that a node reads `past` frames before the chunk. If `past` is negative, the node skips that many.

    Args:
        initial: A number, or an array with `before` entries.
        before: The number of frames that the node reads before frame 0; 0 if they have no effect.
    """
    value = node.inputs[slot]
    assert value is not None
    shape = flow.shape(node.outputs[0] if node.op_type == "Pad" else value, node)
    begin, axis = before - framing.delay.frames, framing.axis
    edit = PastFrames(
        node,
        slot,
        axis,
        max(past, 0),
        _entries(initial, axis, begin - past, past),
        framing.overlap,
        pads,
        drop,
        flow.path,
        shape,
        flow.known.types[value],
        output_padding,
        first,
        max(-past, 0),
        framing.delay if before > 0 else None,
        _entries(initial, axis, begin, framing.delay.frames),
    )
    flow.edits.append(edit)


def _entries(initial: float | Array | None, axis: int, first: int, count: int) -> float | Array | None:
    """Return `count` entries from index `first`; a negative index gives entry 0, which nothing uses."""
    if initial is None or isinstance(initial, float) or count <= 0:
        return 0.0 if count <= 0 else initial
    return initial.take(np.maximum(np.arange(first, first + count), 0), axis)


def settled(flow: Flow, node: ir.Node, framing: Frames, right: int, extra: int, known: int) -> int:
    """Return the number of extra frames in each chunk, without the frames that the end of the sequence loses."""
    if framing.cut and right > 0:
        raise flow.refuse(
            node,
            f"puts {right} frames at the end after the last {framing.known - framing.extra} were cut off",
            "a stream never knows which frames are the last",
        )
    return min(known, max(extra, 0))


def framed_input(flow: Flow, node: ir.Node) -> tuple[ir.Value, Frames] | None:
    """Return the first input of a node and its framing, or None if the input has no frames."""
    value = node.inputs[0]
    framing = None if value is None else flow.framing(value, node)
    return (value, framing) if value is not None and isinstance(framing, Frames) else None
