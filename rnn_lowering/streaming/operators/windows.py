"""Operators that read windows of frames (convolutions, poolings, STFT) or add to them (ConvTranspose, Col2Im)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from rnn_lowering.facts.known import shape_of
from rnn_lowering.facts.parameters import TO_THE_END
from rnn_lowering.facts.size import Size, size
from rnn_lowering.streaming.delays import keep, resampled, settled, with_past, without_missing
from rnn_lowering.streaming.editor import Editor, NodeEdit, input_of
from rnn_lowering.streaming.flow import Flow, FramesEdit
from rnn_lowering.streaming.frames import Frames, Framing
from rnn_lowering.streaming.operators.pooling import lowest


@dataclass(frozen=True)
class _Window:
    """The window of a convolution: output j reads `span` frames from frame j * stride - left on.

    Attributes:
        pads: The paddings of all spatial axes, first those at the starts.
    """

    span: int
    stride: int
    left: int
    right: int
    pads: tuple[int, ...]

    def with_pads(self, axis: int, left: int = 0, right: int = 0) -> tuple[int, ...]:
        """Return the paddings with these along one spatial axis."""
        rank = len(self.pads) // 2
        return tuple(left if n == axis else right if n == axis + rank else pad for n, pad in enumerate(self.pads))


def windowed(flow: Flow, node: ir.Node, framing: Frames) -> list[Framing] | None:
    """Return the framing of the output of a convolution or pooling. Its past frames become a state."""
    if framing.axis < 2:
        return None
    window = _window(flow, node, framing)
    left, right, stride = window.left, window.right, window.stride
    after = framing.padded(left, right).windows(window.span + 1, stride)
    initial = _padding_value(flow, node) if left else 0.0
    pads = window.with_pads(framing.axis - 2)
    return with_past(flow, node, framing, after, left=left, right=right, stride=stride, initial=initial, pads=pads)


def transformed(flow: Flow, node: ir.Node, framing: Frames) -> list[Framing] | None:
    """Return the framing of the output of an STFT, which reads windows as a convolution without paddings."""
    steps = flow.known.numbers_of_input(node, 1)
    lengths = flow.known.numbers_of_input(node, 3) or list((shape_of(flow.known, node, 2) or ())[:1])
    step, length = ((v[0].constant if v and len(v) == 1 else None) for v in (steps, lengths))
    if framing.axis != 1 or not framing.plain or not step or not length:
        raise flow.refuse(
            node,
            "its signal is not the stream, or its frames have no constant length and step",
            "give a constant frame_step, and a window of known length",
        )
    flow.edits.append(OneSided(node))
    return with_past(flow, node, framing, framing.windows(int(length), int(step)), stride=int(step))


@dataclass(frozen=True)
class OneSided(NodeEdit):
    """An STFT with its default written out: ONNX's inference takes an absent `onesided` as 0."""

    node: ir.Node
    carries = False

    def apply(self, editor: Editor) -> None:
        """Write the attribute."""
        attributes = self.node.attributes
        attributes["onesided"] = ir.AttrInt64("onesided", attributes.get_int("onesided", 1))


def transposed(flow: Flow, node: ir.Node, framing: Frames) -> list[Framing] | None:
    """Return the framing of the output of a transposed convolution, in which each frame adds to several results.

    Past frames that add to the results of a chunk become a state. Paddings cut off what lies outside the chunk.
    """
    axis = framing.axis - 2
    if axis < 0:
        return None
    window = _window(flow, node, framing)
    output_padding = tuple(node.attributes.get_ints("output_padding", ()) or [0] * (len(window.pads) // 2))
    span, stride, left = window.span, window.stride, window.left
    right = span + 1 - stride - window.right + output_padding[axis]
    whole = framing.repeated(stride).padded(-left, right)
    final = settled(flow, node, framing, whole, right)
    delay, late = framing.delay.frames, final.delay.frames
    past = max((late - left + span) // stride - delay, 0)
    beyond = span + 1 - stride + whole.known - final.known
    pads = window.with_pads(axis, (delay + past) * stride + left - late, max(beyond, 0))
    padding = tuple(max(-beyond, 0) if n == axis else pad for n, pad in enumerate(output_padding))
    reached = max((span - left) // stride, 0)
    if past or (delay and reached) or (pads, padding) != (window.pads, output_padding):
        changed = None if padding == output_padding else padding
        keep(flow, node, framing, past, left=reached, pads=pads, output_padding=changed)
    return resampled(flow, node, framing, final)


def check_paddings(flow: Flow, node: ir.Node) -> None:
    """Refuse negative paddings of a convolution or pooling; ONNX's inference does so from some version on."""
    padded = node.domain == "" and node.op_type in ("AveragePool", "Conv", "ConvTranspose", "LpPool", "MaxPool")
    if padded and min(node.attributes.get_ints("pads", ()) or [0]) < 0:
        raise flow.refuse(node, "has negative paddings", "cut frames with a Slice")


def _window(flow: Flow, node: ir.Node, framing: Frames) -> _Window:
    """Return the window that a node reads along the frames."""
    if not framing.plain or any(v is not None and flow.is_timed(v) for v in node.inputs[1:]):
        raise flow.refuse(
            node,
            "its frames are merged with another axis, or its weights depend on them",
            "undo the Reshape before it, and make the weights constant",
        )
    if len([v for v in node.outputs if v.name]) > 1:
        raise flow.refuse(node, "returns positions, which would restart in each chunk", "drop the second output")
    n, attributes = framing.axis - 2, node.attributes
    weights = node.inputs[1] if len(node.inputs) > 1 else None
    rank = len(flow.shape(input_of(node), node)) - 2
    kernel = attributes.get_ints("kernel_shape", ())
    if not kernel and weights is not None:
        kernel = [int(k) for dim in flow.shape(weights, node)[2:] if (k := dim.constant) is not None]
    if len(kernel or ()) != rank or attributes.get_int("ceil_mode") or attributes.get_ints("output_shape"):
        raise flow.refuse(
            node,
            "ceil_mode, output_shape or a missing kernel_shape do not fit chunks",
            "give the kernel and the paddings as numbers",
        )
    dilations = attributes.get_ints("dilations", ()) or [1] * rank
    strides = attributes.get_ints("strides", ()) or [1] * rank
    if "Pool" in node.op_type and max(dilations) > 1 and attributes.get_string("auto_pad", "").startswith("SAME"):
        raise flow.refuse(
            node,
            "has dilations and auto_pad SAME_UPPER or SAME_LOWER, for which onnxruntime ignores the dilations",
            "give the paddings as numbers",
        )
    spans = [(k - 1) * d for k, d in zip(kernel, dilations, strict=True)]
    amounts = _pads(flow, node, framing, spans, strides)
    return _Window(spans[n], strides[n], amounts[n], amounts[n + rank], tuple(amounts))


def _pads(flow: Flow, node: ir.Node, framing: Frames, spans: Sequence[int], strides: Sequence[int]) -> list[int]:
    """Return the paddings of all spatial axes, first those at the starts."""
    auto = node.attributes.get_string("auto_pad", "NOTSET") or "NOTSET"
    if not auto.startswith("SAME"):
        pads = node.attributes.get_ints("pads", ()) if auto == "NOTSET" else ()
        return list(pads or [0] * 2 * len(spans))
    sizes = [
        size(framing.extra + stride) if axis == framing.axis and framing.extra % stride == 0 else dim
        for axis, (dim, stride) in enumerate(zip(flow.shape(input_of(node), node)[2:], strides, strict=True), 2)
    ]  # any number of frames that fits stands for all
    if node.op_type == "ConvTranspose" and any(stride > 1 for stride in strides):
        raise flow.refuse(node, "its paddings depend on the sizes of its result", "give the paddings as numbers")
    totals = [
        _same_total(flow, node, length, span, stride)
        for length, span, stride in zip(sizes, spans, strides, strict=True)
    ]
    smaller, larger = [total // 2 for total in totals], [total - total // 2 for total in totals]
    return [*smaller, *larger] if auto == "SAME_UPPER" else [*larger, *smaller]


def _same_total(flow: Flow, node: ir.Node, length: Size, span: int, stride: int) -> int:
    """Return the padding of an axis that gives one result for each `stride` elements."""
    if stride == 1:
        return span
    number = length.constant
    if number is None:
        raise flow.refuse(node, "its paddings depend on a size that is not fixed", "give the paddings as numbers")
    return max((math.ceil(number / stride) - 1) * stride + span + 1 - int(number), 0)


def _padding_value(flow: Flow, node: ir.Node) -> float:
    """Return the number with which a node pads."""
    if node.op_type == "MaxPool":
        return lowest(flow.known.types[input_of(node)])
    if node.op_type == "AveragePool" and not node.attributes.get_int("count_include_pad", 0):
        raise flow.refuse(
            node, "averages over fewer frames at the start", "set count_include_pad, or pad before it"
        )
    return 0.0


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
        source = input_of(node)
        columns = without_missing(editor, self, source, 0.0)
        if self.past:
            past, emit = self.past_input(editor, "x", source.name, self.past), editor.before(node)
            columns = emit("Concat", past, columns, axis=2)
            present = self.last(emit, columns, self.past)
            wider = emit.constant([more if n == self.added else 0 for n in range(self.rank)])
            node.replace_input_with(1, emit("Add", input_of(node, 1), wider))
            editor.add_present(node, "x", past, present, self.path)
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
    cut = span - stride + whole.known - final.known
    place = flow.edit_fields(node, input_of(node), framing)
    flow.edits.append(OverlapAdd(*place, (span - 1) // stride, axis, rank, stride, cut))
    return resampled(flow, node, framing, replace(final, axis=2 + axis))
