"""Operators in which each frame adds to several results: ConvTranspose and Col2Im (overlap-add)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import onnx_ir as ir

from rnn_lowering.facts.parameters import TO_THE_END
from rnn_lowering.facts.size import size
from rnn_lowering.streaming.editor import Editor, input_of
from rnn_lowering.streaming.edits import FramesEdit, set_attributes
from rnn_lowering.streaming.flow import Flow
from rnn_lowering.streaming.frames import Frames, Framing
from rnn_lowering.streaming.operators.windows import KeepRows, paddings, settled, window_of


def transposed(flow: Flow, node: ir.Node, framing: Frames) -> list[Framing] | None:
    """Return the framing of the output of a transposed convolution, in which each frame adds to several results.

    Past frames that add to the results of a chunk become a state. Paddings cut off what lies outside the chunk.
    """
    axis = framing.axis - 2
    if axis < 0:
        return None
    window, own_pads = window_of(flow, node, framing)
    output_padding = list(node.attributes.get_ints("output_padding", ()) or [0] * (len(own_pads) // 2))
    span, stride, left = window.span, window.stride, window.left
    right = span + 1 - stride - window.right + output_padding[axis]
    whole = framing.repeated(stride).padded(-left, right)
    final = settled(flow, node, framing, whole, right)
    delay, late = framing.delay.frames, final.delay.frames
    past = max((late - left + span) // stride - delay, 0)
    beyond = span + 1 - stride + whole.ready - final.ready
    attributes = paddings(own_pads, axis, (delay + past) * stride + left - late, max(beyond, 0))
    padding = [max(-beyond, 0) if n == axis else pad for n, pad in enumerate(output_padding)]
    reached = max((span - left) // stride, 0)
    pads = attributes["pads"]
    if past or (delay and reached) or (pads and list(pads.as_ints()), padding) != (own_pads, output_padding):
        if padding != output_padding:
            attributes["output_padding"] = ir.AttrInt64s("output_padding", padding)
        flow.edits.append(KeepRows(node, input_of(node), framing, 0, past, left=reached))
        flow.change(node, set_attributes, attributes)
    return [flow.resampled(node, node.outputs[0], framing, final)]


@dataclass(frozen=True)
class OverlapAdd(FramesEdit):
    """Puts past columns before those of the chunk in a Col2Im with one column for each frame, in a larger image.

    Columns that are missing because of a delay count as 0.

    Attributes:
        past: The number of columns before the chunk that add to the chunk.
        added: The image axis along which the columns are added, from 0.
        rank: The number of image axes.
        stride: The distance of two columns in the image.
        cut: The part of the image after the chunk: the next chunk computes it, or it is beyond the end.
    """

    past: int
    added: int
    rank: int
    stride: int
    cut: int

    def apply(self, editor: Editor) -> None:
        node, result, more = self.node, self.node.outputs[0], self.past * self.stride
        columns = self.without_missing(editor, input_of(node), 0.0)
        if self.past:
            past, emit = self.past_input(editor, "x", self.past), editor.before(node)
            columns = emit("Concat", past, columns, axis=2)
            present = self.last(emit, columns, self.past)
            wider = emit.constant([more if n == self.added else 0 for n in range(self.rank)])
            node.replace_input_with(1, emit("Add", input_of(node, 1), wider))
            editor.add_present(node, "x", past, present)
        node.replace_input_with(0, columns)
        if self.past or self.cut:
            emit = editor.after(node)
            own = emit.sliced(result, [2 + self.added], [more], [-self.cut or TO_THE_END])
            emit.instead_of(result, own)


def overlapped(flow: Flow, node: ir.Node, framing: Frames) -> list[Framing] | None:
    """Return the framing of the output of a Col2Im, in which each column adds to several results."""
    image, block = flow.known.numbers_of_input(node, 1), flow.known.numbers_of_input(node, 2)
    if image is None or block is None or framing.axis != 2 or not framing.plain:
        raise flow.refuse(
            node, "its columns are not the frames, or its sizes are not known", "give one column for each frame"
        )
    rank = len(image)
    strides, dilations = (
        list(node.attributes.get_ints(name, ()) or [1] * rank) for name in ("strides", "dilations")
    )
    axes = [n for n, dim in enumerate(image) if dim.timed]
    spans = [(int(k.constant or 1) - 1) * d + 1 for k, d in zip(block, dilations, strict=True)]
    alone = all(image[n] == size(spans[n]) for n in range(rank) if n not in axes)
    if len(axes) != 1 or not alone or any(node.attributes.get_ints("pads", ())):
        raise flow.refuse(
            node,
            "adds its columns along several axes, or cuts some of the result off",
            "add along time only, without pads",
        )
    (axis,) = axes
    span, stride = spans[axis], strides[axis]
    if span < stride or image[axis] != (framing.size() - 1) * stride + span:
        raise flow.refuse(
            node, "its size is not that of all its columns together", "make the image as long as all columns"
        )
    whole = framing.repeated(stride).padded(0, span - stride)
    final = settled(flow, node, framing, whole, span - stride)
    cut = span - stride + whole.ready - final.ready
    past = (span - 1) // stride
    flow.edits.append(OverlapAdd(node, input_of(node), framing, past, axis, rank, stride, cut))
    return [flow.resampled(node, node.outputs[0], framing, replace(final, axis=2 + axis))]
