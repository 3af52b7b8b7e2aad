"""Poolings of all frames, and their sums so far (CumSum): the value so far is a state.

The poolings are sums, products, maxima and means. Each joins the value of the chunk with the value before.

Example: the mean of 4 frames is 2.0, and a chunk of 4 frames has the mean 4.0: the mean so far is 3.0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from rnn_lowering.inference.symbolic_values import Shape
from rnn_lowering.streaming.editor import Editor, Emitter, dim_of, input_of
from rnn_lowering.streaming.frames.delays import without_missing
from rnn_lowering.streaming.frames.flow import Flow, FramesEdit
from rnn_lowering.streaming.frames.frame_counts import counts_so_far
from rnn_lowering.streaming.frames.framing import Delay, Frames, Framing, Unframed
from rnn_lowering.streaming.operators.frame_by_frame import coupled_axes

Join = Callable[[Emitter, ir.Value, ir.Value, ir.DataType], ir.Value]


def _by(op_type: str) -> Join:
    return lambda emit, first, second, dtype: emit(op_type, first, second)


def _root(emit: Emitter, first: ir.Value, second: ir.Value, dtype: ir.DataType) -> ir.Value:
    return emit("Sqrt", emit("Add", emit("Mul", first, first), emit("Mul", second, second)))


def _log_sum(emit: Emitter, first: ir.Value, second: ir.Value, dtype: ir.DataType) -> ir.Value:
    """Return the logarithm of the sum of two exponentials; negative infinity stands for an empty sum."""
    most = emit("Max", emit("Max", first, second), emit.constant([lowest(dtype)], dtype))
    parts = [emit("Exp", emit("Sub", value, most)) for value in (first, second)]
    return emit("Add", most, log_of_sum(emit, *parts))


def log_of_sum(emit: Emitter, first: ir.Value, second: ir.Value) -> ir.Value:
    """Return the logarithm of a sum without an Add: OpenCV 5.0 takes Log(Exp(x) + y) for Softplus(x) for any y."""
    return emit("Log", emit("Sub", first, emit("Neg", second)))


def lowest(dtype: ir.DataType) -> float:
    """Return the lowest finite number of a type."""
    held = dtype.numpy()
    return float(np.finfo(held).min if dtype.is_floating_point() else np.iinfo(held).min)


def _least(dtype: ir.DataType) -> float:
    return -np.inf if dtype.is_floating_point() else lowest(dtype)


def _most(dtype: ir.DataType) -> float:
    return np.inf if dtype.is_floating_point() else float(np.iinfo(dtype.numpy()).max)


_JOINS: dict[str, tuple[Join, Callable[[ir.DataType], float]]] = {
    "GlobalMaxPool": (_by("Max"), _least),
    "ReduceL1": (_by("Add"), lambda _: 0.0),
    "ReduceL2": (_root, lambda _: 0.0),
    "ReduceLogSumExp": (_log_sum, _least),
    "ReduceMax": (_by("Max"), _least),
    "ReduceMin": (_by("Min"), _most),
    "ReduceProd": (_by("Mul"), lambda _: 1.0),
    "ReduceSum": (_by("Add"), lambda _: 0.0),
    "ReduceSumSquare": (_by("Add"), lambda _: 0.0),
}
"""How the value so far is joined with that of a chunk, and what it is before the first, which changes nothing."""

_MEANS = ("GlobalAveragePool", "ReduceMean")

POOLINGS = (*_JOINS, *_MEANS)


@dataclass(frozen=True)
class RunningPool(FramesEdit):
    """A pooling of all frames.

    Attributes:
        pooled: The shape of its output.
    """

    pooled: Shape

    def pooled_past(self, editor: Editor) -> ir.Value:
        """Add an input that takes the value so far."""
        dims = [dim_of(dim, n, self.node.outputs[0].name) for n, dim in enumerate(self.pooled)]
        return editor.add_past(self.node, "pool", self.dtype, dims)

    def give(self, emit: Emitter, past: ir.Value, total: ir.Value, before: float = 0.0) -> None:
        """Let `total` be the output of the node and the next state."""
        emit.instead_of(self.node.outputs[0], total)
        initial = None if before == 0 else np.full((1,) * len(self.pooled), before)
        emit.editor.add_present(self.node, "pool", past, total, self.path, initial)

    def apply(self, editor: Editor) -> None:
        node, value = self.node, self.node.outputs[0]
        join, before = _JOINS.get(node.op_type, (None, lambda _: 0.0))
        neutral = before(self.dtype)
        past, emit = self.pooled_past(editor), editor.after(node)
        if node.op_type == "ReduceLogSumExp" and self.frames.delay:
            value = self._of_true_exponents(emit, value)
        else:
            self.skip_missing(editor, neutral)
        total = self._mean(emit, past, value) if join is None else join(emit, past, value, self.dtype)
        editor.made["raw", node] = value
        editor.made["past", node] = past
        self.give(emit, past, total, neutral)

    def skip_missing(self, editor: Editor, neutral: float = 0.0, slot: int = 0) -> None:
        """Replace the missing frames in an input by a number that changes nothing."""
        source = input_of(self.node, slot)
        self.node.replace_input_with(slot, without_missing(editor, self, source, neutral))

    def _mean(self, emit: Emitter, past: ir.Value, value: ir.Value) -> ir.Value:
        before, own, total = counts_as(emit, self.frames.delay, self.dtype)
        first = emit("Mul", past, emit("Div", before, total))
        return emit("Add", first, emit("Mul", value, emit("Div", own, total)))

    def _of_true_exponents(self, emit: Emitter, value: ir.Value) -> ir.Value:
        """Return a log-sum-exp without missing frames, which have the lowest finite number: onnxruntime's result is
        wrong if the first exponent is -infinity."""
        least = lowest(self.dtype)
        self.skip_missing(emit.editor, least)
        none = emit("Less", value, emit.constant([least / 2], self.dtype))
        return emit("Where", none, emit.constant([-np.inf], self.dtype), value)


def counts_as(emit: Emitter, delay: Delay, dtype: ir.DataType) -> list[ir.Value]:
    """Return the number of frames before a chunk, in the chunk, and in both, in a type."""
    return [emit("Cast", number, to=int(dtype)) for number in counts_so_far(emit.editor, delay)]


def pooled(flow: Flow, node: ir.Node, framing: Frames) -> list[Framing] | None:
    """Return the framing of the output of a pooling: final after the last frame if it pools frames."""
    edit = running_pool(flow, node, framing)
    if edit is None:
        return None
    flow.edits.append(edit)
    if node.op_type in _MEANS:
        flow.means[node.outputs[0]] = node
    return [Unframed.LAST]


def running_pool(flow: Flow, node: ir.Node, frames: Frames) -> RunningPool | None:
    """Return the edit of a node that pools frames; None if it does not, or a stream cannot."""
    value, shape = node.inputs[0], flow.shape(node.outputs[0], node)
    if value is None or not shape or frames.axis not in coupled_axes(flow, node):
        return None
    place = flow.at(node, value, frames)
    if not is_exact(frames):
        raise flow.refuse(
            node,
            "pools frames that were padded, cut or moved before",
            "pool exactly the frames of the stream",
        )
    edit = RunningPool(*place, shape)
    if not edit.dtype.is_floating_point() and node.op_type in ("ReduceL2", "ReduceLogSumExp", *_MEANS):
        raise flow.refuse(node, f"pools frames of type {edit.dtype.name.lower()}", "cast them to float before it")
    return edit


def is_exact(framing: Frames) -> bool:
    """Whether the chunks have exactly the frames of the whole: none is padding, none comes after the end."""
    return framing.plain and not framing.overlap and framing.extra == framing.known


@dataclass(frozen=True)
class RunningSum(FramesEdit):
    """A CumSum along the frames. Frames that are missing because of a delay count as 0."""

    def apply(self, editor: Editor) -> None:
        """Add the sum so far to the chunk. The next state is the sum at the last frame of the chunk."""
        node, source, value = self.node, input_of(self.node), self.node.outputs[0]
        past = self.past_input(editor, "sum", value.name)
        source = without_missing(editor, self, source, 0.0)
        node.replace_input_with(0, source)
        exclusive = node.attributes.get_int("exclusive", 0)
        if editor.own_frames(self.frames.rate) == 1 and not self.frames.overlap and not exclusive:
            emit = editor.before(node)
            present = emit("Add", source, past)
            present.type = value.type
            editor.replace(value, present, emit.graph)
            emit.graph.remove(node, safe=True)
        else:
            emit = editor.after(node)
            total = emit("Add", value, past)
            emit.instead_of(value, total)
            present = self.last(emit, emit("Add", total, source) if exclusive else total, 1)
        editor.add_present(node, "sum", past, present, self.path)


def summed(flow: Flow, node: ir.Node, framing: Frames) -> list[Framing] | None:
    """Return the framing of the output of a CumSum."""
    value, axis = input_of(node), flow.known.constant(input_of(node, 1))
    if axis is None or int(axis.reshape(-1)[0]) % len(flow.shape(value, node)) != framing.axis:
        return None
    if node.attributes.get_int("reverse", 0):
        raise flow.refuse(
            node, "sums from the last frame on, which a stream has not seen yet", "sum without reverse"
        )
    if not framing.plain:
        raise flow.refuse(node, "its frames are merged with another axis", "undo the Reshape before it")
    flow.edits.append(RunningSum(*flow.at(node, value, framing)))
    return [flow.framed(node, node.outputs[0], framing)]
