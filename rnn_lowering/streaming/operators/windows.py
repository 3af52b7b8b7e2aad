"""Operators that read a window of frames: convolutions, poolings, STFT. The past frames are a state.

`windowed` finds the window of a convolution over time, `read_window` the framing of what it returns, and `KeepRows`
edits the node: it reads a state in front of the chunk instead of its padding. A Pad and a Concat that put frames in
front are windows of one frame (`cuts_and_joins`).

Example: a causal Conv of kernel 3 reads 2 rows before the chunk. With chunks of 4 frames it reads 2 + 4 rows and
returns 4. The last 2 of the 6 are the next state.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import onnx_ir as ir

from rnn_lowering.facts.known import shape_of
from rnn_lowering.facts.operators import TO_THE_END, input_at
from rnn_lowering.facts.size import Size, size
from rnn_lowering.streaming.alignment import FramesRead
from rnn_lowering.streaming.counts import frame_indices, past_or_first
from rnn_lowering.streaming.editor import Editor, Emitter, input_of
from rnn_lowering.streaming.flow import Flow
from rnn_lowering.streaming.frames import Frames, Framing
from rnn_lowering.streaming.operators.pooling import lowest
from rnn_lowering.types import Array


def set_attributes(editor: Editor, node: ir.Node, attributes: Mapping[str, ir.Attr | None]) -> None:
    """Set attributes of a node, and remove those that are None."""
    for name, attribute in attributes.items():
        if attribute is None:
            node.attributes.pop(name, None)
        else:
            node.attributes[name] = attribute


# The state


@dataclass(frozen=True)
class Computed:
    """Rows that the model computes in the first call: an input of the node, or the first row of one."""

    slot: int
    first_row: bool = False


Initial = float | Array | Computed
"""The rows before frame 0: a number, an array with an entry for each along their axis, or computed ones."""


@dataclass(frozen=True)
class KeepRows(FramesRead):
    """Lets a node read rows of an input before the chunk: they are a state.

    Attributes:
        slot: The input.
        rows: How many rows before the chunk the node reads; if negative, how many of the chunk it skips.
        initial: The rows before frame 0.
        left: How many rows are before frame 0; 0 if they have no effect.
        drop: How many rows at the end of the chunk only the next chunk uses.
    """

    slot: int
    rows: int
    initial: Initial = 0.0
    left: int = 0
    drop: int = 0

    def record(self, flow: Flow) -> None:
        """Record the change."""
        missing = self.left > 0 and bool(self.frames.delay)
        flow.keep(self.node, self.apply, carries=self.rows > 0 or missing)

    def apply(self, editor: Editor) -> None:
        node, axis, delay = self.node, self.frames.axis, self.frames.delay.frames
        past = self.past_input(editor, "x", self.rows) if self.rows > 0 else None
        value, emit = input_of(node, self.slot), editor.before(node)
        if delay and self.left > 0:
            value = self.without_missing(editor, value, self._before_frame_0(delay, delay))
        if past is not None:
            value = emit("Concat", self._chosen(emit, past), value, axis=axis)
        own = value
        if self.drop or self.rows < 0:
            own = emit.sliced(value, [axis], [max(-self.rows, 0)], [-self.drop or TO_THE_END])
        node.replace_input_with(self.slot, own)
        if past is not None:
            first = self._before_frame_0(delay + self.rows, self.rows)
            editor.add_present(past, self.last(editor.after(node), value, self.rows), first)

    def _before_frame_0(self, first: int, count: int) -> float | Array:
        """Return `count` rows, `first` rows before frame 0; nothing uses what lies before `initial`."""
        if isinstance(self.initial, Computed):
            return 0.0
        if isinstance(self.initial, float):
            return self.initial
        start = self.left - first
        return self.initial.take(np.maximum(np.arange(start, start + count), 0), self.frames.axis)

    def _chosen(self, emit: Emitter, past: ir.Value) -> ir.Value:
        """Return the rows before the chunk: the state, or in the first call those that the model computes."""
        if not isinstance(self.initial, Computed):
            return past
        first = input_of(self.node, self.initial.slot)
        if self.initial.first_row:
            first = emit.sliced(first, [self.frames.axis], [0], [1])
        return past_or_first(emit.editor, self.node, past, first)


@dataclass(frozen=True)
class Window:
    """The rows that a node reads for each result: result j reads `span` + 1 rows from row j * stride - left on.

    Attributes:
        right: How many rows it reads after the last one.
        initial: The rows before frame 0.
    """

    span: int = 0
    stride: int = 1
    left: int = 0
    right: int = 0
    initial: Initial = 0.0


def read_window(flow: Flow, node: ir.Node, before: Frames, window: Window, slot: int = 0) -> list[Framing]:
    """Return the framing of the output of a node that reads a window, and record that a state keeps past frames."""
    after = before.padded(window.left, window.right).windows(window.span + 1, window.stride)
    final = settled(flow, node, before, after, window.right)
    drop, rows = after.ready - final.ready, rows_before(before, final, window.left, window.stride)
    if drop and window.stride > 1:
        raise flow.refuse(
            node,
            f"a stride of {window.stride} over time does not fit the frames that are cut off before it",
            "cut off a multiple of the stride",
        )
    if rows or window.left or window.right:
        value = node.outputs[0] if node.op_type == "Pad" else input_of(node, slot)
        KeepRows(node, value, before, slot, rows, window.initial, window.left, drop).record(flow)
    return [flow.resampled(node, node.outputs[0], before, final)]


def settled(flow: Flow, node: ir.Node, before: Frames, after: Frames, right: int = 0) -> Frames:
    """Return `after` with `ready` lowered, so no chunk emits frames that a cut at the end removes.

    Args:
        before, after: The framings of what the node reads and returns on a whole sequence.
        right: The number of frames that it adds at the end.
    """
    if before.cut and right > 0:
        raise flow.refuse(
            node,
            f"puts {right} frames at the end after the last {before.ready - before.extra} were cut off",
            "a stream never knows which frames are the last",
        )
    return replace(after, ready=min(after.ready, max(after.extra, 0)))


def rows_before(before: Frames, after: Frames, left: int = 0, stride: int = 1) -> int:
    """Return the number of rows that a node reads before the chunk, or minus the number that it skips.

    Args:
        before, after: The framings of what it reads and returns.
        left: The number of rows that it reads before frame 0.
        stride: The number of rows from one result to the next.
    """
    return left - before.delay.frames + after.delay.frames * stride


# Convolutions, poolings and STFT


def windowed(flow: Flow, node: ir.Node, framing: Frames) -> list[Framing] | None:
    """Return the framing of the output of a convolution or pooling over time: a state replaces its paddings."""
    if len([v for v in node.outputs if v.name]) > 1:
        raise flow.refuse(node, "returns positions, which would restart in each chunk", "drop the second output")
    if framing.axis < 2:
        return None
    window, pads = _window_of(flow, node, framing)
    initial = _padding_value(flow, node) if window.left else 0.0
    edits = len(flow.edits)
    framings = read_window(flow, node, framing, replace(window, initial=initial))
    if len(flow.edits) > edits:
        flow.change(node, set_attributes, paddings(pads, framing.axis - 2))
    if node.op_type == "AveragePool" and window.left and not node.attributes.get_int("count_include_pad", 0):
        _average_over_frames(flow, node, window, framings)
    return framings


def _average_over_frames(flow: Flow, node: ir.Node, window: Window, framings: Sequence[Framing]) -> None:
    """Let the first averages be over fewer frames. Such a window has zeros from the state, which count."""
    (after,) = framings
    dilations = node.attributes.get_ints("dilations", ())
    if not isinstance(after, Frames) or after.overlap or max(dilations or [1]) > 1 or window.left > window.span:
        raise flow.refuse(
            node, "averages over fewer frames at the start", "set count_include_pad, or pad before it"
        )
    starts = range(-window.left, 0, window.stride)
    kernel = window.span + 1
    flow.change(node, _multiply_first, after, [kernel / (kernel + start) for start in starts])


def _multiply_first(editor: Editor, node: ir.Node, frames: Frames, factors: Sequence[float]) -> None:
    """Multiply the first results of a node by a factor each."""
    value, emit = node.outputs[0], editor.after(node)
    dtype, limit = editor.known.types[value], emit.counts([frames.delay.frames + len(factors)])
    index = frame_indices(editor, frames.delay.rate)
    index = emit("Where", emit("Less", index, limit), index, limit)
    factor = emit("Gather", emit.constant([*[1.0] * frames.delay.frames, *factors, 1.0], dtype), index, axis=0)
    along = emit.along(factor, frames.axis, len(editor.known.shapes[value]))
    emit.instead_of(value, emit("Mul", value, along))


def paddings(pads: Sequence[int], axis: int, left: int = 0, right: int = 0) -> dict[str, ir.Attr | None]:
    """Return the attributes of a node with these paddings along one spatial axis."""
    rank = len(pads) // 2
    padding_of_axes = [left if n == axis else right if n == axis + rank else pad for n, pad in enumerate(pads)]
    return {"pads": ir.AttrInt64s("pads", padding_of_axes), "auto_pad": None}


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
    # the default, written out: ONNX's inference takes an absent `onesided` as 0
    onesided = ir.AttrInt64("onesided", node.attributes.get_int("onesided", 1))
    flow.change(node, set_attributes, {"onesided": onesided})
    return read_window(flow, node, framing, Window(int(length) - 1, int(step)))


def check_paddings(flow: Flow, node: ir.Node) -> None:
    """Refuse negative paddings of a convolution or pooling; ONNX's inference does so from some version on."""
    if node.domain == "" and node.op_type != "Pad" and min(node.attributes.get_ints("pads", ()) or [0]) < 0:
        raise flow.refuse(node, "has negative paddings", "cut frames with a Slice")


def _window_of(flow: Flow, node: ir.Node, framing: Frames) -> tuple[Window, list[int]]:
    """Return the window of a convolution along the frames, and its paddings of all spatial axes, starts first."""
    if not framing.plain or any(v is not None and flow.is_timed(v) for v in node.inputs[1:]):
        raise flow.refuse(
            node,
            "its frames are merged with another axis, or its weights depend on them",
            "undo the Reshape before it, and make the weights constant",
        )
    n, attributes = framing.axis - 2, node.attributes
    rank, kernel = len(flow.shape(input_of(node), node)) - 2, _kernel(flow, node)
    if len(kernel) != rank or attributes.get_ints("output_shape"):
        raise flow.refuse(
            node,
            "output_shape or a missing kernel_shape do not fit chunks",
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
    pads = _pads(flow, node, framing, spans, strides)
    window = Window(spans[n], strides[n], pads[n], pads[n + rank])
    if attributes.get_int("ceil_mode") and not _ends_with_frames(node, framing, window):
        raise flow.refuse(
            node,
            "ceil_mode adds a result behind the last whole window",
            "drop ceil_mode, or let kernel and paddings fit the stride",
        )
    return window, pads


def _kernel(flow: Flow, node: ir.Node) -> list[int]:
    """Return the sizes of the windows of a node, as far as they are known."""
    kernel, slot = node.attributes.get_ints("kernel_shape", ()), 3 if node.op_type == "QLinearConv" else 1
    weights = input_at(node, slot)
    if kernel or weights is None:
        return list(kernel or ())
    return [int(k) for dim in flow.shape(weights, node)[2:] if (k := dim.constant) is not None]


def _ends_with_frames(node: ir.Node, framing: Frames, window: Window) -> bool:
    """Whether the last window ends with the last frame that the node reads, in the whole and in each chunk."""
    counts = framing.extra + window.left + window.right, framing.ready + window.left
    explicit = node.attributes.get_string("auto_pad", "NOTSET") == "NOTSET"
    return explicit and all((count - window.span - 1) % window.stride == 0 for count in counts)


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
    if node.op_type in ("ConvInteger", "QLinearConv"):
        return constant_number(flow, node, input_at(node, 2))
    if node.op_type == "MaxPool":
        return lowest(flow.known.types[input_of(node)])
    return 0.0


def constant_number(flow: Flow, node: ir.Node, value: ir.Value | None) -> float:
    """Return the number that a node puts before the frames: 0 without one."""
    number = 0.0 if value is None else flow.known.number(value)
    if number is None:
        raise flow.refuse(
            node, "pads the frames with a number that is not constant", "give the number as a constant"
        )
    return number


# Operators in which each frame adds to several results: ConvTranspose and Col2Im (overlap-add).


def transposed(flow: Flow, node: ir.Node, framing: Frames) -> list[Framing] | None:
    """Return the framing of the output of a transposed convolution, in which each frame adds to several results.

    Past frames that add to the results of a chunk become a state. Paddings cut off what lies outside the chunk.
    """
    axis = framing.axis - 2
    if axis < 0:
        return None
    window, own_pads = _window_of(flow, node, framing)
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
        KeepRows(node, input_of(node), framing, 0, past, left=reached).record(flow)
        flow.change(node, set_attributes, attributes)
    return [flow.resampled(node, node.outputs[0], framing, final)]


def _overlap_add(read: FramesRead, past: int, added: int, rank: int, stride: int, cut: int, editor: Editor) -> None:
    """Put past columns before those of the chunk in a Col2Im with one column for each frame, in a larger image.

    Columns that are missing because of a delay count as 0.

    Args:
        read: The columns.
        past: The number of columns before the chunk that add to the chunk.
        added: The image axis along which the columns are added, from 0.
        rank: The number of image axes.
        stride: The distance of two columns in the image.
        cut: The part of the image after the chunk: the next chunk computes it, or it is beyond the end.
    """
    node, result, more = read.node, read.node.outputs[0], past * stride
    columns = read.without_missing(editor, input_of(node), 0.0)
    if past:
        state, emit = read.past_input(editor, "x", past), editor.before(node)
        columns = emit("Concat", state, columns, axis=2)
        present = read.last(emit, columns, past)
        wider = emit.constant([more if n == added else 0 for n in range(rank)])
        node.replace_input_with(1, emit("Add", input_of(node, 1), wider))
        editor.add_present(state, present)
    node.replace_input_with(0, columns)
    if past or cut:
        emit = editor.after(node)
        emit.instead_of(result, emit.sliced(result, [2 + added], [more], [-cut or TO_THE_END]))


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
    axes = [n for n, dim in enumerate(image) if dim.varies]
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
    read = FramesRead(node, input_of(node), framing)
    flow.keep(node, partial(_overlap_add, read, past, axis, rank, stride, cut))
    return [flow.resampled(node, node.outputs[0], framing, replace(final, axis=2 + axis))]
