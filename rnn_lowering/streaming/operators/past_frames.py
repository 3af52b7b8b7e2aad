"""Nodes that read frames before the chunk: they are kept as a state, put before the chunk, and paddings go."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from rnn_lowering.streaming.edit import Editor, NodeEdit, Path, dim_of, home, producer
from rnn_lowering.streaming.frames import Flow, Frames
from rnn_lowering.streaming.inference import TO_THE_END, Shape
from rnn_lowering.streaming.lateness import Lateness, replaced
from rnn_lowering.types import Array


@dataclass(frozen=True)
class PastFrames(NodeEdit):
    """A node that reads frames before the chunk: `past` of them.

    Attributes:
        node: A convolution, a pooling, a Pad or a Concat.
        slot: The input whose past it keeps.
        axis: The axis of the frames in what it reads.
        past: How many; 0 where only paddings are to go.
        initial: What they are before the first chunk: a number, or an array with `past` entries along `axis`; None
            where that is computed.
        overlap: How many frames more than the chunk's own its value has already.
        pads: The paddings that the node then has, in the form of its own: all of them, none over time.
        drop: How many frames at the end of what it reads are for the next chunk only.
        path: The nodes If around it, each with its branch.
        shape, dtype: Those of the past frames.
        output_padding: That of a transposed convolution, where it changes.
        first: The input that holds the frames before the first chunk, where these are computed; of a Pad the one
            with the first frame.
        skip: How many frames at the start of what it reads are of no use.
        late: How late that is: it reads `early` instead of frames that have not come. None where these are of no
            use.
        early: A number, or an array with as many entries along `axis` as that is late.
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
    late: Lateness | None = None
    early: float | Array | None = 0.0

    @property
    def carries(self) -> bool:  # type: ignore[override]
        return self.past > 0 or self.late is not None

    @property
    def source(self) -> ir.Value:
        """What it reads, as the model is now."""
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
            past: Those frames, an input of the model; None where the node needs none and only loses paddings.
        """
        node = self.node
        graph = home(node)
        before = self._without_padding(editor, graph) if node.op_type == "Pad" else self.source
        if self.late is not None:
            early = np.asarray(self.early, self.dtype.numpy())
            early = early if early.ndim else early.reshape(1)
            before = replaced(editor, before, self.late, self.axis, len(self.shape), early, node)
        if past is None:
            joined = before
        else:
            if self.first is not None:
                past = editor.started_or(node, past, self._first(editor, graph), self.path)
            (joined,) = editor.node("Concat", [past, before], axis=self.axis)
            graph.insert_before(node, [producer(joined)])
        read = joined
        if self.drop or self.skip:
            read = editor.sliced(joined, graph, [self.axis], [self.skip], [-self.drop or TO_THE_END], [1])
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
            present = editor.sliced(joined, graph, [self.axis], [start], [end], [1])
            graph.insert_after(node, [producer(present)])
        if node.op_type in ("Pad", "Concat"):
            graph.remove(node, safe=True)
        return present

    def _first(self, editor: Editor, graph: ir.Graph) -> ir.Value:
        """What is before the first chunk."""
        value = self.node.inputs[self.first or 0]
        assert value is not None
        if self.node.op_type == "Pad":
            value = editor.sliced(value, graph, [self.axis], [0], [1], [1])
            graph.insert_before(self.node, [producer(value)])
        return value

    def _without_padding(self, editor: Editor, graph: ir.Graph) -> ir.Value:
        """What a Pad reads, padded along the other axes as it was."""
        node = self.node
        if not any(self.pads):
            return self.source
        fill = node.inputs[2] if len(node.inputs) > 2 else None
        if editor.opset < 11:
            (value,) = editor.node("Pad", [self.source], pads=self.pads)
            kept = [a for name, a in node.attributes.items() if name in ("value", "mode")]
            producer(value).attributes.update({a.name: a for a in kept})
        else:
            rest = [fill] if fill is not None else []
            (value,) = editor.node("Pad", [self.source, editor.integers(self.pads, graph), *rest])
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
    """Note that a node reads `past` frames before the chunk, or (negative) so many fewer of the chunk.

    Args:
        initial: A number, or an array with `before` entries.
        before: How many frames it reads before the first of the whole; 0 where these are of no use.
    """
    value = node.inputs[slot]
    assert value is not None
    shape = flow.shape(node.outputs[0] if node.op_type == "Pad" else value, node)
    begin, axis = before - framing.lag, framing.axis
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
        framing.lateness if before > 0 else None,
        _entries(initial, axis, begin, framing.lag),
    )
    flow.edits.append(edit)


def _entries(initial: float | Array | None, axis: int, first: int, count: int) -> float | Array | None:
    """So many entries from one on; those before the first one are of no use."""
    if initial is None or isinstance(initial, float) or count <= 0:
        return 0.0 if count <= 0 else initial
    return initial.take(np.maximum(np.arange(first, first + count), 0), axis)


def settled(flow: Flow, node: ir.Node, framing: Frames, right: int, extra: int, known: int) -> int:
    """How many frames a chunk has besides its own, once what the whole has lost at the end is taken off."""
    if framing.cut and right > 0:
        raise flow.refuse(
            node,
            f"puts {right} frames at the end after the last {framing.known - framing.extra} were cut off",
            "a stream never knows which frames are the last",
        )
    return min(known, max(extra, 0))


def framed_input(flow: Flow, node: ir.Node) -> tuple[ir.Value, Frames] | None:
    """What a node reads, where that holds frames."""
    value = node.inputs[0]
    framing = None if value is None else flow.framing(value, node)
    return (value, framing) if value is not None and isinstance(framing, Frames) else None
