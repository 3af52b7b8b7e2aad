"""Poolings of what depends on all frames: sums with the weights of a softmax over them, and variances.

The weights of a softmax depend on all frames, and so do deviations from their mean. `Pooled` marks both until a sum
or a mean of them follows.

* Sums with the weights of a softmax over the frames (attention pooling): `RunningSoftmax`, `RunningWeightedSum`.
* Variances: `RunningVariance`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from rnn_lowering.facts.operators import operator_of, parameter
from rnn_lowering.streaming.alignment import FramesEdit, summed_in_float32, wide_type
from rnn_lowering.streaming.editor import Editor, NodeEdit, input_of
from rnn_lowering.streaming.frames import Flow, Frames, Framing, Pooled, Unframed
from rnn_lowering.streaming.operators.frame_by_frame import coupled_axes, frame_by_frame
from rnn_lowering.streaming.operators.pooling import (
    MEANS,
    POOLINGS,
    RunningPool,
    counts_as,
    is_exact,
    log_of_sum,
    lowest,
    running_pool,
)


def softmaxed(flow: Flow, node: ir.Node, framing: Frames) -> list[Framing] | None:
    """Return the framing of the output of a Softmax. Weights over the frames must be summed later."""
    if coupled_axes(flow, node) != [framing.axis]:
        return None
    if not is_exact(framing):
        raise flow.refuse(
            node, "weighs all frames, after some were padded, cut or moved", "pad on the left only, or not at all"
        )
    flow.edits.append(RunningSoftmax(node, input_of(node), framing))
    error = flow.refuse(
        node, "weighs each frame by all of them", "a stream can only have the sum of the weighted frames"
    )
    return [Pooled("weights", framing, node, error)]


@dataclass(frozen=True)
class RunningSoftmax(FramesEdit):
    """Computes the softmax of a chunk over the frames so far; "share" is what that leaves of the weights before."""

    def apply(self, editor: Editor) -> None:
        node, axis, own = self.node, self.frames.axis, editor.known.types[self.value]
        scores = self.without_missing(editor, input_of(node), lowest(own))
        dtype, emit = wide_type(own), editor.before(node)
        past = editor.add_past(node, "pool", dtype, editor.dims(self.value, {axis: 1}))
        scores = scores if dtype == own else emit("Cast", scores, to=int(dtype))
        largest = emit("Max", past, emit("ReduceMax", scores, axes=[axis], keepdims=1))
        exponentials = emit("Exp", emit("Sub", scores, largest))
        in_chunk = emit("ReduceSum", exponentials, axes=[axis], keepdims=1)
        before = emit("Exp", emit("Sub", past, largest))
        total = emit("Add", largest, log_of_sum(emit, before, in_chunk))
        weights = emit("Exp", emit("Sub", scores, total))
        editor.made["share", node] = emit("Exp", emit("Sub", past, total))
        weights = weights if dtype == own else emit("Cast", weights, to=int(own))
        weights.type = node.outputs[0].type
        editor.replace(node.outputs[0], weights, emit.graph)
        initial = np.full((1,) * len(past.shape or ()), lowest(own))
        editor.add_present(node, "pool", past, total, initial)


def deviating(flow: Flow, node: ir.Node) -> list[Framing] | None:
    """Return the framing of the output of a Sub. Deviations from the mean must be squared and summed later."""
    value, pool = input_of(node), _mean_of_all(flow, input_of(node, 1))
    framing = flow.framings.get(value)
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


def _mean_of_all(flow: Flow, value: ir.Value) -> ir.Node | None:
    """Return the node that pools all frames to their mean, if this value is the mean."""
    node = value.producer()
    pools = node is not None and node.op_type in MEANS and flow.framings.get(value) is Unframed.LAST
    return node if pools else None


def of_pooled(flow: Flow, node: ir.Node) -> list[Framing]:
    """Return the framing of the output of a node that reads weights or deviations.

    Raises:
        UnsupportedError: The node reads weights or deviations frame by frame.
    """
    by_slot = {n: m for n, v in enumerate(node.inputs) if v and isinstance(m := flow.framings.get(v), Pooled)}
    slots, pending = list(by_slot), next(iter(by_slot.values()))
    framing: Framing = None
    if node.domain or len(node.outputs) != 1:
        raise pending.error
    if node.op_type in POOLINGS and slots == [0]:
        framing = _pooled_again(flow, node, pending)
    elif pending.kind == "deviations" and _squares(flow, node, slots):
        framing = replace(pending, kind="squares")
    elif pending.kind == "weighted" and len(slots) == 1 and node.op_type == "Mul":
        framing = _multiplied(flow, node, slots[0], pending)
    elif pending.kind == "weights" and len(slots) == 1:
        has_axes = node.op_type != "Squeeze" or parameter(node, "axes", flow.opset) is not None
        if node.op_type == "MatMul":
            framing = _matrix_product(flow, node, slots[0], pending)
        elif operator_of(node).keeps_axes and slots == [0] and has_axes:
            framing = replace(pending, frames=_as_frames(flow, node, pending), moves=(*pending.moves, node))
        elif node.op_type == "Mul":
            frames = _as_frames(flow, node, pending)
            framing = replace(pending, kind="weighted", axis=pending.frames.axis, frames=frames)
    if framing is None:
        raise pending.error
    return [framing]


def _multiplied(flow: Flow, node: ir.Node, slot: int, pending: Pooled) -> Pooled | None:
    """Return the framing of weighted frames times frames, which are weighted too; None if that moves the axes."""
    frames, (before, after) = _as_frames(flow, node, pending), (input_of(node, slot), node.outputs[0])
    same = len(flow.shape(before, node)) == len(flow.shape(after, node)) and frames.axis == pending.frames.axis
    return pending if same else None


def _squares(flow: Flow, node: ir.Node, slots: list[int]) -> bool:
    """Whether a node squares the deviations at these inputs."""
    if node.op_type == "Mul":
        return slots == [0, 1] and node.inputs[0] is node.inputs[1]
    return node.op_type == "Pow" and slots == [0] and flow.known.number(node.inputs[1]) == 2


def _as_frames(flow: Flow, node: ir.Node, pending: Pooled) -> Frames:
    """Return the framing of the output of a node that acts on each frame alone, of weights or deviations."""
    edits, before = len(flow.edits), dict[ir.Value, Framing]()
    for value in node.inputs:
        if value is not None and isinstance(own := flow.framings.get(value), Pooled):
            before[value], flow.framings[value] = own, own.frames
    (framing,) = frame_by_frame(flow, node)
    flow.framings.update(before)
    if not isinstance(framing, Frames) or len(flow.edits) > edits:
        raise pending.error
    return framing


def _pooled_again(flow: Flow, node: ir.Node, pending: Pooled) -> Unframed | None:
    """Return the framing of a pooling of weights or deviations; None if a stream cannot pool them."""
    pool, axes = running_pool(flow, node, pending.frames), coupled_axes(flow, node)
    if pool is None:
        return None
    sums = node.op_type == "ReduceSum" and axes == [pending.frames.axis]
    mean = _mean_of_all(flow, input_of(pending.origin, 1)) if pending.kind == "squares" else None
    if pending.kind == "weighted" and sums:
        squeezed = None if node.attributes.get_int("keepdims", 1) else pending.axis
        flow.edits.append(RunningWeightedSum(node, pool, pending, squeezed))
    elif mean and coupled_axes(flow, mean) == axes and (node.op_type == "ReduceMean" or sums):
        flow.edits.append(RunningVariance(node, pool, pending, mean))
    else:
        return None
    return Unframed.LAST


def _matrix_product(flow: Flow, node: ir.Node, slot: int, pending: Pooled) -> Unframed | None:
    """Return the framing of weights times frames; None if they are not of the same frames."""
    value = input_of(node, 1 - slot)
    framing = flow.read(value, node)
    if not isinstance(framing, Frames) or framing != replace(pending.frames, axis=framing.axis):
        return None
    rank, own_rank = len(flow.shape(input_of(node, slot), node)), len(flow.shape(value, node))
    inner_axes = (rank - 1, own_rank - 2) if slot == 0 else (rank - 2, own_rank - 1)
    if (pending.frames.axis, framing.axis) != inner_axes or min(rank, own_rank) < 2:
        return None
    pool = RunningPool(node, value, framing)
    flow.edits.append(RunningWeightedSum(node, pool, pending, None, 1 - slot))
    return Unframed.LAST


@dataclass(frozen=True)
class RunningWeightedSum(NodeEdit):
    """Sums frames with the weights of a softmax: each chunk reduces the share of the frames before.

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
        slots = (0, 1) if self.node.op_type == "MatMul" else (self.slot,)
        dtype = summed_in_float32(editor, self.node, slots, editor.known.types[self.pool.value])
        past, emit = self.pool.pooled_past(editor, dtype), editor.after(self.node)
        share = editor.made["share", self.pending.origin]
        for node in self.pending.moves:
            share = emit.put(editor.again(node, share))
        if self.squeezed is not None:
            share = emit("Squeeze", share, axes=[self.squeezed])
        self.pool.finish(emit, past, emit("Add", emit("Mul", past, share), self.node.outputs[0]))


@dataclass(frozen=True)
class RunningVariance(NodeEdit):
    """Joins the mean or sum of squared deviations of a chunk, from its own mean, with that of the frames before.

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
        node, origin, mean = self.node, self.pending.origin, editor.made["raw", self.mean]
        delay, own_type = self.pool.frames.delay, editor.known.types[self.pool.value]
        self.pool.skip_missing(editor)
        dtype = summed_in_float32(editor, node, (0,), own_type)
        emit = editor.before(origin) if delay else editor.after(node)
        before, in_chunk, total = counts_as(emit, delay, dtype)
        own = in_chunk
        if delay:
            own = emit("Sub", total, before)
            mean = emit("Mul", mean, emit("Div", in_chunk, own))
            emit = editor.after(node)
        subtracted = mean if dtype == own_type else editor.before(origin)("Cast", mean, to=int(own_type))
        origin.replace_input_with(1, subtracted)
        past = self.pool.pooled_past(editor, dtype)
        shift = emit("Sub", mean, editor.made["past", self.mean])
        squares = emit.put(editor.again(node, emit("Mul", shift, shift)))
        share, rest = emit("Div", before, total), emit("Div", own, total)
        if node.op_type == "ReduceMean":
            new = emit("Mul", node.outputs[0], emit("Div", in_chunk, total))
            within = emit("Add", emit("Mul", past, share), new)
            between = emit("Mul", squares, emit("Mul", share, rest))
        else:
            within, between = emit("Add", past, node.outputs[0]), emit("Mul", squares, emit("Mul", before, rest))
        self.pool.finish(emit, past, emit("Add", within, between))
