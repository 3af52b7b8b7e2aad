"""Col2Im along the frames: overlap-add, whose columns that still add to the chunk are its past."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from rnn_lowering.emit.versions import TO_THE_END
from rnn_lowering.streaming.delays import Delay, replaced
from rnn_lowering.streaming.edit import Editor, NodeEdit, Path, dim_of, home, producer
from rnn_lowering.streaming.frames import Flow, Framing
from rnn_lowering.streaming.inference import Shape
from rnn_lowering.streaming.operators.past_frames import framed_input, settled
from rnn_lowering.streaming.polynomials import size


@dataclass(frozen=True)
class OverlapAdd(NodeEdit):
    """A Col2Im with one column for each frame.

    Attributes:
        past: The number of columns before the chunk that add to the chunk.
        overlap: The number of extra columns of the input in each chunk.
        axis: The image axis along which the columns are added, from 0.
        rank: The number of image axes.
        stride: The distance of two columns in the image.
        cut: The part of the image after the chunk: the next chunk computes it, or it is beyond the end.
        delay: Delay of the columns; missing columns count as 0.
        path: The If nodes around the node, each with its branch.
        shape, dtype: Shape and element type of the columns.
    """

    node: ir.Node
    past: int
    overlap: int
    axis: int
    rank: int
    stride: int
    cut: int
    delay: Delay | None
    path: Path
    shape: Shape
    dtype: ir.DataType

    def apply(self, editor: Editor) -> None:
        """Put the past columns before the chunk's, in a larger image; cut off what is not the chunk's."""
        node, graph = self.node, home(self.node)
        columns, image, result = node.inputs[0], node.inputs[1], node.outputs[0]
        assert columns is not None
        assert image is not None
        if self.delay:
            zeros = np.zeros(1, self.dtype.numpy())
            columns = replaced(editor, columns, self.delay, 2, len(self.shape), zeros, node)
            node.replace_input_with(0, columns)
        if self.past:
            dims = [self.past if n == 2 else dim_of(dim, n, columns.name) for n, dim in enumerate(self.shape)]
            past = editor.add_past(node, "x", self.dtype, dims)
            (joined,) = editor.node("Concat", [past, columns], axis=2)
            start, end = -(self.past + self.overlap), -self.overlap or TO_THE_END
            present = editor.sliced(joined, graph, [2], [start], [end])
            more = [self.past * self.stride if n == self.axis else 0 for n in range(self.rank)]
            (larger,) = editor.node("Add", [image, editor.integers(more, graph)])
            graph.insert_before(node, [producer(v) for v in (joined, present, larger)])
            node.replace_input_with(0, joined)
            node.replace_input_with(1, larger)
            editor.add_present(node, "x", past, present, self.path)
        if self.past or self.cut:
            bounds = [self.past * self.stride], [-self.cut or TO_THE_END]
            own = editor.sliced(result, graph, [2 + self.axis], *bounds)
            own.type = result.type
            editor.put_behind(result, own, [own])


def overlapped(flow: Flow, node: ir.Node) -> list[Framing]:
    """The framing of a Col2Im's output: each column adds to `stride` results and those behind."""
    held, known = framed_input(flow, node), flow.known
    image, block = known.given(node, 1), known.given(node, 2)
    if held is None or image is None or block is None or held[1].axis != 2 or not held[1].plain:
        raise flow.refuse(node, "its columns are not the frames, or its sizes are not known")
    framing, rank = held[1], len(image)
    strides, dilations = (
        list(node.attributes.get_ints(name, ()) or [1] * rank) for name in ("strides", "dilations")
    )
    axes = [n for n, dim in enumerate(image) if dim.timed]
    spans = [(int(k.constant or 1) - 1) * d + 1 for k, d in zip(block, dilations, strict=True)]
    alone = all(image[n] == size(spans[n]) for n in range(rank) if n not in axes)
    if len(axes) != 1 or not alone or any(node.attributes.get_ints("pads", ())):
        raise flow.refuse(node, "adds its columns along several axes, or cuts some of the result off")
    (axis,) = axes
    span, stride = spans[axis], strides[axis]
    if span < stride or image[axis] != (framing.size() - 1) * stride + span:
        raise flow.refuse(node, "its size is not that of all its columns")
    extra, certain = framing.extra * stride + span - stride, framing.known * stride
    kept = settled(flow, node, framing, span - stride, extra, certain)
    past, cut = (span - 1) // stride, span - stride + certain - kept
    value = held[0]
    flow.edits.append(
        OverlapAdd(
            *(node, past, framing.overlap, axis, rank, stride, cut, framing.delay, flow.path),
            *(flow.shape(value, node), known.types[value]),
        )
    )
    found = replace(framing, axis=2 + axis, extra=extra, known=kept, rate=framing.rate * stride)
    return [flow.resampled(node, node.outputs[0], found)]
