"""Poolings of all frames, and their sums so far (CumSum): the value so far is a state.

The poolings are sums, products, maxima and means. Each joins the value of the chunk with the value before.

Example: the mean of 4 frames is 2.0, and a chunk of 4 frames has the mean 4.0: the mean so far is 3.0.

Weighted poolings: attention pooling (a softmax over time), and the variance.

The weights of a softmax depend on all frames, and so do deviations from their mean. `Pooled` marks both until a sum
or a mean of them follows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from rnn_lowering.emit.versions import parameter
from rnn_lowering.inference.symbolic_values import Shape
from rnn_lowering.streaming.delays import without_missing
from rnn_lowering.streaming.editor import Editor, Emitter, NodeEdit, dim_of, input_of
from rnn_lowering.streaming.flow import Flow, FramesEdit
from rnn_lowering.streaming.frame_counts import counts_so_far
from rnn_lowering.streaming.frames import Delay, Frames, Framing, Pooled, Unframed
from rnn_lowering.streaming.operators.frame_by_frame import coupled_axes, frame_by_frame

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


@dataclass(frozen=True)
class RunningSoftmax(FramesEdit):
    """A softmax over all frames: weights with the sum so far."""

    def apply(self, editor: Editor) -> None:
        node, axis, least, scores = self.node, self.frames.axis, lowest(self.dtype), input_of(self.node)
        scores = without_missing(editor, self, scores, least)
        past, emit = self.past_input(editor, "pool", scores.name), editor.before(node)
        most = emit("Max", past, emit("ReduceMax", scores, axes=[axis], keepdims=1))
        exponents = emit("Exp", emit("Sub", scores, most))
        own = emit("ReduceSum", exponents, axes=[axis], keepdims=1)
        before = emit("Exp", emit("Sub", past, most))
        total = emit("Add", most, log_of_sum(emit, before, own))
        weights = emit("Exp", emit("Sub", scores, total))
        editor.made["share", node] = emit("Exp", emit("Sub", past, total))
        weights.type = node.outputs[0].type
        editor.replace(node.outputs[0], weights, emit.graph)
        editor.add_present(node, "pool", past, total, self.path, np.full((1,) * len(self.shape), least))


@dataclass(frozen=True)
class RunningWeightedSum(NodeEdit):
    """A sum of frames with the weights of a softmax: each chunk reduces the share of the frames before.

    Attributes:
        pool: The sum.
        pending: The origin of the weights, and the nodes that moved them.
        squeezed: The axis of the frames in the weights, if the sum drops it.
        slot: The input of the sum that has the frames.
    """

    node: ir.Node
    pool: RunningPool
    pending: Pooled
    squeezed: int | None
    slot: int = 0

    def apply(self, editor: Editor) -> None:
        self.pool.skip_missing(editor, slot=self.slot)
        past, emit = self.pool.pooled_past(editor), editor.after(self.node)
        share = editor.made["share", self.pending.origin]
        for moved in self.pending.moves:
            share = emit.put(editor.again(moved, share))
        if self.squeezed is not None:
            share = emit("Squeeze", share, axes=[self.squeezed])
        self.pool.give(emit, past, emit("Add", emit("Mul", past, share), self.node.outputs[0]))


def softmaxed(flow: Flow, node: ir.Node, framing: Frames) -> list[Framing] | None:
    """Return the framing of the output of a Softmax. Weights over the frames must be summed later."""
    if coupled_axes(flow, node) != [framing.axis]:
        return None
    if not is_exact(framing):
        raise flow.refuse(
            node, "weighs all frames, after some were padded, cut or moved", "pad on the left only, or not at all"
        )
    flow.edits.append(RunningSoftmax(*flow.at(node, input_of(node), framing)))
    error = flow.refuse(
        node, "weighs each frame by all of them", "a stream can only have the sum of the weighted frames"
    )
    return [Pooled("weights", framing, node, error)]


@dataclass(frozen=True)
class RunningVariance(NodeEdit):
    """The mean or sum of squared deviations from the mean of all frames.

    Attributes:
        pool: The mean or sum.
        pending: The origin of the deviations: the node that subtracts the mean.
        mean: The node of the mean.
    """

    node: ir.Node
    pool: RunningPool
    pending: Pooled
    mean: ir.Node

    def apply(self, editor: Editor) -> None:
        """Take the deviations from the mean of the chunk, and add those of its mean from the one before."""
        node, delay, raw = self.node, self.pool.frames.delay, editor.made["raw", self.mean]
        emit = editor.before(self.pending.origin) if delay else editor.after(node)
        before, given, total = counts_as(emit, delay, self.pool.dtype)
        own = given
        if delay:
            own = emit("Sub", total, before)
            raw = emit("Mul", raw, emit("Div", given, own))
            emit = editor.after(node)
        self.pending.origin.replace_input_with(1, raw)
        self.pool.skip_missing(editor)
        past = self.pool.pooled_past(editor)
        apart = emit("Sub", raw, editor.made["past", self.mean])
        between = emit.put(editor.again(node, emit("Mul", apart, apart)))
        share, rest = emit("Div", before, total), emit("Div", own, total)
        if node.op_type == "ReduceMean":
            new = emit("Mul", node.outputs[0], emit("Div", given, total))
            inner = emit("Add", emit("Mul", past, share), new)
            outer = emit("Mul", between, emit("Mul", share, rest))
        else:
            inner, outer = emit("Add", past, node.outputs[0]), emit("Mul", between, emit("Mul", before, rest))
        self.pool.give(emit, past, emit("Add", inner, outer))


def deviating(flow: Flow, node: ir.Node) -> list[Framing] | None:
    """Return the framing of the output of a Sub. Deviations from the mean must be squared and summed later."""
    value, mean = node.inputs[0], node.inputs[1]
    pool = None if mean is None else flow.means.get(mean)
    framing = None if value is None else flow.framings.get(value)
    if pool is None or pool.inputs[0] is not value or not isinstance(framing, Frames):
        return None
    if not pool.attributes.get_int("keepdims", 1):
        return None
    error = flow.refuse(
        node,
        "subtracts the mean of all frames, which is known only after the last one (utterance normalization)",
        "normalize over the frames so far, or by constants",
    )
    return [Pooled("deviations", framing, node, error)]


def of_pooled(flow: Flow, node: ir.Node) -> list[Framing]:
    """Return the framing of the output of a node that reads weights or deviations.

    Raises:
        UnsupportedError: The node reads weights or deviations frame by frame.
    """
    given = {n: held for n, v in enumerate(node.inputs) if v and isinstance(held := flow.framings.get(v), Pooled)}
    slots, held = list(given), next(iter(given.values()))
    found: Framing = None
    if node.domain or len(node.outputs) != 1:
        raise held.error
    if node.op_type in POOLINGS and slots == [0]:
        found = _of_pooling(flow, node, held)
    elif held.kind == "deviations" and _squares(flow, node, slots):
        found = replace(held, kind="squares")
    elif held.kind == "weights" and len(slots) == 1:
        named = node.op_type != "Squeeze" or parameter(node, "axes", flow.opset) is not None
        if node.op_type == "MatMul":
            found = _matrix_product(flow, node, slots[0], held)
        elif node.op_type in ("Identity", "Squeeze", "Transpose", "Unsqueeze") and slots == [0] and named:
            found = replace(held, frames=_as_frames(flow, node, held), moves=(*held.moves, node))
        elif node.op_type == "Mul":
            found = replace(held, kind="weighted", axis=held.frames.axis, frames=_as_frames(flow, node, held))
    if found is None:
        raise held.error
    return [found]


def _squares(flow: Flow, node: ir.Node, slots: list[int]) -> bool:
    """Whether a node squares the deviations at these inputs."""
    if node.op_type == "Mul":
        return slots == [0, 1] and node.inputs[0] is node.inputs[1]
    exponent = flow.known.constant(node.inputs[1]) if node.op_type == "Pow" and slots == [0] else None
    return exponent is not None and exponent.size == 1 and exponent.reshape(-1)[0] == 2


def _as_frames(flow: Flow, node: ir.Node, held: Pooled) -> Frames:
    """Return the framing of the output of a node that acts on each frame alone, of weights or deviations."""
    edits, before = len(flow.edits), dict[ir.Value, Framing]()
    for value in node.inputs:
        if value is not None and isinstance(own := flow.framings.get(value), Pooled):
            before[value], flow.framings[value] = own, own.frames
    (found,) = frame_by_frame(flow, node)
    flow.framings.update(before)
    if not isinstance(found, Frames) or len(flow.edits) > edits:
        raise held.error
    return found


def _of_pooling(flow: Flow, node: ir.Node, held: Pooled) -> Unframed | None:
    """Return the framing of a pooling of weights or deviations, or None if a stream cannot pool them."""
    pool, axes = running_pool(flow, node, held.frames), coupled_axes(flow, node)
    sums = node.op_type == "ReduceSum" and axes == [held.frames.axis]
    mean = flow.means.get(held.origin.inputs[1]) if held.kind == "squares" else None  # type: ignore[arg-type]
    if pool is not None and held.kind == "weighted" and sums:
        squeezed = None if node.attributes.get_int("keepdims", 1) else held.axis
        flow.edits.append(RunningWeightedSum(node, pool, held, squeezed))
    elif pool is not None and mean and coupled_axes(flow, mean) == axes and (node.op_type == "ReduceMean" or sums):
        flow.edits.append(RunningVariance(node, pool, held, mean))
    else:
        return None
    return Unframed.LAST


def _matrix_product(flow: Flow, node: ir.Node, slot: int, held: Pooled) -> Unframed | None:
    """Return the framing of weights times frames, or None if they are not of the same frames."""
    weights, value = node.inputs[slot], node.inputs[1 - slot]
    framing = None if value is None else flow.framing(value, node)
    if weights is None or value is None or not isinstance(framing, Frames):
        return None
    ranks = [len(flow.shape(v, node)) for v in (weights, value)]
    places = (ranks[0] - (1 if slot == 0 else 2), ranks[1] - (2 if slot == 0 else 1))
    if framing != replace(held.frames, axis=framing.axis) or min(ranks) < 2:
        return None
    if (held.frames.axis, framing.axis) != places:
        return None
    pool = RunningPool(*flow.at(node, value, framing), flow.shape(node.outputs[0], node))
    flow.edits.append(RunningWeightedSum(node, pool, held, None, 1 - slot))
    return Unframed.LAST
