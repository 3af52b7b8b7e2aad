"""Poolings of all frames: the value so far is a state, and each chunk joins its own value with it.

Example: the mean of 4 frames is 2.0, and a chunk of 4 frames has the mean 4.0: the mean so far is 3.0.

* Sums, products, maxima, means and the like, and products that sum over the frames of both inputs: `RunningPool`.
* Sums and products at each frame, CumSum and CumProd: `RunningSum`.
* Sums with the weights of a softmax over the frames, and variances: `operators/weighted_sums`.

What is summed over the frames so far is float32 where the model has float16 or bfloat16 (`summed_in_float32`): a
sum of ones in float16 stops at 2,048.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import ml_dtypes
import numpy as np
import onnx_ir as ir

from rnn_lowering.streaming.alignment import FramesEdit, FramesRead, counts_so_far, summed_in_float32
from rnn_lowering.streaming.editor import Editor, Emitter, input_of
from rnn_lowering.streaming.frames import Delay, Flow, Frames, Framing, Unframed
from rnn_lowering.streaming.operators.frame_by_frame import coupled_axes, known_axes

_Join = Callable[[Emitter, ir.Value, ir.Value, ir.DataType], ir.Value]


def _operator(op_type: str) -> _Join:
    return lambda emit, first, second, dtype: emit(op_type, first, second)


def _root_of_squares(emit: Emitter, first: ir.Value, second: ir.Value, dtype: ir.DataType) -> ir.Value:
    return emit("Sqrt", emit("Add", emit("Mul", first, first), emit("Mul", second, second)))


def _log_sum_exp(emit: Emitter, first: ir.Value, second: ir.Value, dtype: ir.DataType) -> ir.Value:
    """Return the logarithm of the sum of two exponentials; negative infinity stands for an empty sum."""
    largest = emit("Max", emit("Max", first, second), emit.constant([lowest(dtype)], dtype))
    exponentials = [emit("Exp", emit("Sub", value, largest)) for value in (first, second)]
    return emit("Add", largest, log_of_sum(emit, *exponentials))


def log_of_sum(emit: Emitter, first: ir.Value, second: ir.Value) -> ir.Value:
    """Return the logarithm of a sum without an Add: OpenCV 5.0 takes Log(Exp(x) + y) for Softplus(x) for any y."""
    return emit("Log", emit("Sub", first, emit("Neg", second)))


def lowest(dtype: ir.DataType) -> float:
    """Return the lowest finite number of a type."""
    info = ml_dtypes.finfo if dtype.is_floating_point() else np.iinfo
    return float(info(dtype.numpy()).min)


def _minimum(dtype: ir.DataType) -> float:
    return -np.inf if dtype.is_floating_point() else lowest(dtype)


def _maximum(dtype: ir.DataType) -> float:
    return np.inf if dtype.is_floating_point() else float(np.iinfo(dtype.numpy()).max)


_JOINS: dict[str, tuple[_Join, Callable[[ir.DataType], float]]] = {
    "GlobalMaxPool": (_operator("Max"), _minimum),
    "ReduceL1": (_operator("Add"), lambda _: 0.0),
    "ReduceL2": (_root_of_squares, lambda _: 0.0),
    "ReduceLogSumExp": (_log_sum_exp, _minimum),
    "ReduceMax": (_operator("Max"), _minimum),
    "ReduceMin": (_operator("Min"), _maximum),
    "ReduceProd": (_operator("Mul"), lambda _: 1.0),
    "ReduceSum": (_operator("Add"), lambda _: 0.0),
    "ReduceSumSquare": (_operator("Add"), lambda _: 0.0),
}
"""By operator: what joins the value so far with that of a chunk, and the neutral value, the first state."""

_PRODUCTS: dict[str, tuple[_Join, Callable[[ir.DataType], float]]] = {
    "Einsum": (_operator("Add"), lambda _: 0.0),
    "MatMul": (_operator("Add"), lambda _: 0.0),
}
"""The same for products that sum over the frames of both inputs."""

_EXTREMES = ("GlobalMaxPool", "ReduceMax", "ReduceMin")
"""Those that round nothing, however many frames there are."""

MEANS = ("GlobalAveragePool", "ReduceMean")

POOLINGS = (*_JOINS, *MEANS)


def pooled(flow: Flow, node: ir.Node, framing: Frames) -> list[Framing] | None:
    """Return the framing of the output of a pooling: if it pools frames, it is final after the last one."""
    edit = running_pool(flow, node, framing)
    if edit is None:
        return None
    flow.edits.append(edit)
    return [Unframed.LAST]


def running_pool(flow: Flow, node: ir.Node, frames: Frames) -> RunningPool | None:
    """Return the edit of a node that pools frames; None if it pools none."""
    shape = flow.shape(node.outputs[0], node)
    if not shape or frames.axis not in coupled_axes(flow, node):
        return None
    if not is_exact(frames):
        raise flow.refuse(
            node,
            "pools frames that were padded, cut or moved before",
            "pool exactly the frames of the stream",
        )
    dtype, only_floats = flow.known.types[input_of(node)], ("ReduceL2", "ReduceLogSumExp", *MEANS)
    if dtype == ir.DataType.BOOL or (node.op_type in only_floats and not dtype.is_floating_point()):
        raise flow.refuse(node, f"pools frames of type {dtype.name.lower()}", "cast them to float before it")
    return RunningPool(node, input_of(node), frames)


def is_exact(framing: Frames) -> bool:
    """Whether the chunks have exactly the frames of the whole: no padding, nothing after the end."""
    return framing.plain and not framing.overlap and framing.extra == framing.ready


@dataclass(frozen=True)
class RunningPool(FramesEdit):
    """Joins the pooled value of a chunk with the value so far.

    Attributes:
        second: The frames of the second input of a product that sums over the frames of both.
    """

    second: FramesRead | None = None

    def pooled_past(self, editor: Editor, dtype: ir.DataType) -> ir.Value:
        """Add an input that takes the value so far."""
        return editor.add_past(self.node, "pool", dtype, editor.dims(self.node.outputs[0]))

    def finish(self, emit: Emitter, past: ir.Value, total: ir.Value, neutral: float = 0.0) -> None:
        """Make `total` the output of the node and the next state."""
        emit.instead_of(self.node.outputs[0], total)
        initial = None if neutral == 0 else np.full((1,) * len(past.shape or ()), neutral)
        emit.editor.add_present(self.node, "pool", past, total, initial)

    def apply(self, editor: Editor) -> None:
        node, value, own = self.node, self.node.outputs[0], editor.known.types[self.value]
        join, neutral_of = (_JOINS | _PRODUCTS).get(node.op_type, (None, lambda _: 0.0))
        of_log = node.op_type == "ReduceLogSumExp" and bool(self.frames.delay)
        self.skip_missing(editor, lowest(own) if of_log else neutral_of(own))
        if self.second is not None:  # 0 times NaN is NaN
            node.replace_input_with(1, self.second.without_missing(editor, input_of(node, 1), 0.0))
        slots = (0,) if self.second is None else (0, 1)
        dtype = own if node.op_type in _EXTREMES else summed_in_float32(editor, node, slots, own)
        past, emit = self.pooled_past(editor, dtype), editor.after(node)
        if of_log:
            value = _without_missing_logs(emit, value, own, dtype)
        total = self._mean(emit, past, value, dtype) if join is None else join(emit, past, value, dtype)
        editor.made["raw", node] = value
        editor.made["past", node] = past
        self.finish(emit, past, total, neutral_of(dtype))

    def skip_missing(self, editor: Editor, neutral: float = 0.0, slot: int = 0) -> None:
        """Replace the missing frames in an input with the neutral value."""
        source = input_of(self.node, slot)
        self.node.replace_input_with(slot, self.without_missing(editor, source, neutral))

    def _mean(self, emit: Emitter, past: ir.Value, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        before, own, total = counts_as(emit, self.frames.delay, dtype)
        weighted = emit("Mul", past, emit("Div", before, total))
        return emit("Add", weighted, emit("Mul", value, emit("Div", own, total)))


def _without_missing_logs(emit: Emitter, value: ir.Value, own: ir.DataType, dtype: ir.DataType) -> ir.Value:
    """Return the log-sum-exp of a chunk: -infinity if all its frames are missing. These have the lowest finite
    number of their type, since onnxruntime's result is wrong if the first exponent is -infinity."""
    all_missing = emit("Less", value, emit.constant([lowest(own) / 2], dtype))
    return emit("Where", all_missing, emit.constant([-np.inf], dtype), value)


def counts_as(emit: Emitter, delay: Delay, dtype: ir.DataType) -> list[ir.Value]:
    """Return the numbers of frames before a chunk, in the chunk, and in both, as numbers of a type."""
    return [emit("Cast", number, to=int(dtype)) for number in counts_so_far(emit.editor, delay)]


def summed(flow: Flow, node: ir.Node, framing: Frames) -> list[Framing] | None:
    """Return the framing of the output of a CumSum or CumProd."""
    value, axis = input_of(node), flow.known.constant(input_of(node, 1))
    if axis is None or int(axis.reshape(-1)[0]) % len(flow.shape(value, node)) != framing.axis:
        return None
    if node.attributes.get_int("reverse", 0):
        verb = "sums" if node.op_type == "CumSum" else "multiplies"
        raise flow.refuse(node, f"{verb} from the last frame on, which a stream has not seen yet", "drop reverse")
    if not framing.plain:
        raise flow.refuse(node, "its frames are merged with another axis", "undo the Reshape before it")
    flow.edits.append(RunningSum(node, value, framing))
    return [flow.framed(node, node.outputs[0], framing)]


_CUMULATIONS = {"CumProd": ("Mul", 1.0), "CumSum": ("Add", 0.0)}
"""What joins a value with the next one, and the number that changes nothing."""


@dataclass(frozen=True)
class RunningSum(FramesEdit):
    """Adds the sum so far to a CumSum along the frames, or multiplies a CumProd by the product so far.

    Frames that are missing because of a delay count as 0, or as 1.
    """

    def apply(self, editor: Editor) -> None:
        node, value = self.node, self.node.outputs[0]
        join, neutral = _CUMULATIONS[node.op_type]
        dims, own = editor.dims(self.value, {self.frames.axis: 1}), editor.known.types[self.value]
        node.replace_input_with(0, self.without_missing(editor, input_of(node), neutral))
        past = editor.add_past(node, "sum", summed_in_float32(editor, node, (0,), own), dims)
        initial = np.full((1,) * len(past.shape or ()), neutral) if neutral else None
        source = input_of(node)
        exclusive = node.attributes.get_int("exclusive", 0)
        if editor.own_frames(self.frames.rate) == 1 and not self.frames.overlap and not exclusive:
            emit = editor.before(node)
            present = emit(join, source, past)
            present.type = value.type
            editor.add_present(node, "sum", past, present, initial)
            editor.replace_node(node, present)
            return
        emit = editor.after(node)
        total = emit(join, value, past)
        emit.instead_of(value, total)
        present = self.last(emit, emit(join, total, source) if exclusive else total, 1)
        editor.add_present(node, "sum", past, present, initial)


def contracted(flow: Flow, node: ir.Node) -> list[Framing] | None:
    """Return the framing of a product that sums over the frames of both inputs; None for other nodes."""
    values = [v for v in node.inputs if v is not None]
    framings = [flow.framings.get(v) for v in values]
    if node.domain or len(framings) != 2 or not flow.shape(node.outputs[0], node):
        return None
    first, second = framings
    if not isinstance(first, Frames) or not isinstance(second, Frames):
        return None
    axes = known_axes(flow, node)
    label = axes.label(0, first.axis)
    if label is None or label != axes.label(1, second.axis) or label in axes.output:
        return None
    if replace(first, axis=second.axis) != second or not is_exact(first):
        raise flow.refuse(
            node,
            "sums products of frames that were padded, cut or moved before",
            "multiply exactly the frames of the stream",
        )
    flow.edits.append(RunningPool(node, values[0], first, FramesRead(node, values[1], second)))
    return [Unframed.LAST]
