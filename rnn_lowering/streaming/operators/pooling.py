"""Poolings of all frames: the value so far is a state, and each chunk joins its own value with it.

Example: the mean of 4 frames is 2.0, and a chunk of 4 frames has the mean 4.0: the mean so far is 3.0.

* Sums, products, maxima, means and the like, and products that sum over the frames of both inputs: `RunningPool`.
* Sums and products at each frame, CumSum and CumProd: `_cumulate`.
* Sums with the weights of a softmax over the frames (attention pooling): `_normalize_so_far`, `_sum_weighted`.
* Variances: `_join_variances`.

The weights of a softmax depend on all frames, and so do deviations from their mean. `Pooled` marks both until a sum
or a mean of them follows.

What is summed over the frames so far is float32 where the model has float16 or bfloat16 (`_summed_in_float32`): a
sum of ones in float16 stops at 2,048.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import ml_dtypes
import numpy as np
import onnx_ir as ir

from rnn_lowering.facts.operators import operator_of, parameter
from rnn_lowering.streaming.alignment import FramesRead, coupled_axes, frame_by_frame, known_axes
from rnn_lowering.streaming.counts import counts_so_far
from rnn_lowering.streaming.editor import Editor, Emitter, input_of
from rnn_lowering.streaming.flow import Flow
from rnn_lowering.streaming.frames import Delay, Frames, Framing, Pooled, Unframed


def wide_type(dtype: ir.DataType) -> ir.DataType:
    """Return the type in which numbers of a type are summed over the frames so far."""
    return ir.DataType.FLOAT if dtype in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16) else dtype


def _summed_in_float32(editor: Editor, node: ir.Node, slots: Sequence[int], dtype: ir.DataType) -> ir.DataType:
    """Let a node compute in float32 what it computes of float16 or bfloat16; return the type in which it computes.

    Args:
        slots: Its inputs of that type.
        dtype: The type. Other types stay.
    """
    wide = wide_type(dtype)
    if wide == dtype:
        return dtype
    before, after, output = editor.before(node), editor.after(node), node.outputs[0]
    for slot in dict.fromkeys(slots):
        node.replace_input_with(slot, before("Cast", input_of(node, slot), to=int(wide)))
    after.instead_of(output, after("Cast", output, to=int(dtype)))
    output.type = ir.TensorType(wide)
    return wide


_Join = Callable[[Emitter, ir.Value, ir.Value, ir.DataType], ir.Value]


def _operator(op_type: str) -> _Join:
    return lambda emit, first, second, dtype: emit(op_type, first, second)


def _root_of_squares(emit: Emitter, first: ir.Value, second: ir.Value, dtype: ir.DataType) -> ir.Value:
    return emit("Sqrt", emit("Add", emit("Mul", first, first), emit("Mul", second, second)))


def _log_sum_exp(emit: Emitter, first: ir.Value, second: ir.Value, dtype: ir.DataType) -> ir.Value:
    """Return the logarithm of the sum of two exponentials; negative infinity stands for an empty sum."""
    largest = emit("Max", emit("Max", first, second), emit.constant([lowest(dtype)], dtype))
    exponentials = [emit("Exp", emit("Sub", value, largest)) for value in (first, second)]
    return emit("Add", largest, _log_of_sum(emit, *exponentials))


def _log_of_sum(emit: Emitter, first: ir.Value, second: ir.Value) -> ir.Value:
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

_MEANS = ("GlobalAveragePool", "ReduceMean")

POOLINGS = (*_JOINS, *_MEANS)


def pooled(flow: Flow, node: ir.Node, framing: Frames) -> list[Framing] | None:
    """Return the framing of the output of a pooling: if it pools frames, it is final after the last one."""
    edit = _running_pool(flow, node, framing)
    if edit is None:
        return None
    flow.keep(node, edit.apply)
    return [Unframed.LAST]


def _running_pool(flow: Flow, node: ir.Node, frames: Frames) -> RunningPool | None:
    """Return the edit of a node that pools frames; None if it pools none."""
    shape = flow.shape(node.outputs[0], node)
    if not shape or frames.axis not in coupled_axes(flow, node):
        return None
    if not _is_exact(frames):
        raise flow.refuse(
            node, "pools frames that were padded, cut or moved before", "pool exactly the frames of the stream"
        )
    dtype, only_floats = flow.known.types[input_of(node)], ("ReduceL2", "ReduceLogSumExp", *_MEANS)
    if dtype == ir.DataType.BOOL or (node.op_type in only_floats and not dtype.is_floating_point()):
        raise flow.refuse(node, f"pools frames of type {dtype.name.lower()}", "cast them to float before it")
    return RunningPool(node, input_of(node), frames)


def _is_exact(framing: Frames) -> bool:
    """Whether the chunks have exactly the frames of the whole: no padding, nothing after the end."""
    return framing.plain and not framing.overlap and framing.extra == framing.ready


@dataclass(frozen=True)
class RunningPool(FramesRead):
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
        emit.editor.add_present(past, total, neutral)

    def apply(self, editor: Editor) -> None:
        node, value, own = self.node, self.node.outputs[0], editor.known.types[self.value]
        join, neutral_of = (_JOINS | _PRODUCTS).get(node.op_type, (None, lambda _: 0.0))
        of_log = node.op_type == "ReduceLogSumExp" and bool(self.frames.delay)
        self.skip_missing(editor, lowest(own) if of_log else neutral_of(own))
        if self.second is not None:  # 0 times NaN is NaN
            node.replace_input_with(1, self.second.without_missing(editor, input_of(node, 1), 0.0))
        slots = (0,) if self.second is None else (0, 1)
        dtype = own if node.op_type in _EXTREMES else _summed_in_float32(editor, node, slots, own)
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
        before, own, total = _counts_as(emit, self.frames.delay, dtype)
        weighted = emit("Mul", past, emit("Div", before, total))
        return emit("Add", weighted, emit("Mul", value, emit("Div", own, total)))


def _without_missing_logs(emit: Emitter, value: ir.Value, own: ir.DataType, dtype: ir.DataType) -> ir.Value:
    """Return the log-sum-exp of a chunk: -infinity if all its frames are missing. These have the lowest finite
    number of their type, since onnxruntime's result is wrong if the first exponent is -infinity."""
    all_missing = emit("Less", value, emit.constant([lowest(own) / 2], dtype))
    return emit("Where", all_missing, emit.constant([-np.inf], dtype), value)


def _counts_as(emit: Emitter, delay: Delay, dtype: ir.DataType) -> list[ir.Value]:
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
    flow.keep(node, partial(_cumulate, FramesRead(node, value, framing)))
    return [flow.framed(node, node.outputs[0], framing)]


_CUMULATIONS = {"CumProd": ("Mul", 1.0), "CumSum": ("Add", 0.0)}
"""What joins a value with the next one, and the number that changes nothing."""


def _cumulate(read: FramesRead, editor: Editor) -> None:
    """Add the sum so far to a CumSum along the frames, or multiply a CumProd by the product so far.

    Frames that are missing because of a delay count as 0, or as 1.
    """
    node, value = read.node, read.node.outputs[0]
    join, neutral = _CUMULATIONS[node.op_type]
    dims, own = editor.dims(read.value, {read.frames.axis: 1}), editor.known.types[read.value]
    node.replace_input_with(0, read.without_missing(editor, input_of(node), neutral))
    past = editor.add_past(node, "sum", _summed_in_float32(editor, node, (0,), own), dims)
    source = input_of(node)
    exclusive = node.attributes.get_int("exclusive", 0)
    if editor.own_frames(read.frames.rate) == 1 and not read.frames.overlap and not exclusive:
        emit = editor.before(node)
        present = emit(join, source, past)
        present.type = value.type
        editor.add_present(past, present, neutral)
        editor.replace_node(node, present)
        return
    emit = editor.after(node)
    total = emit(join, value, past)
    emit.instead_of(value, total)
    present = read.last(emit, emit(join, total, source) if exclusive else total, 1)
    editor.add_present(past, present, neutral)


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
    if replace(first, axis=second.axis) != second or not _is_exact(first):
        raise flow.refuse(
            node,
            "sums products of frames that were padded, cut or moved before",
            "multiply exactly the frames of the stream",
        )
    flow.keep(node, RunningPool(node, values[0], first, FramesRead(node, values[1], second)).apply)
    return [Unframed.LAST]


# Poolings of what depends on all frames: sums with the weights of a softmax over them, and variances


def softmaxed(flow: Flow, node: ir.Node, framing: Frames) -> list[Framing] | None:
    """Return the framing of the output of a Softmax. Weights over the frames must be summed later."""
    if coupled_axes(flow, node) != [framing.axis]:
        return None
    if not _is_exact(framing):
        raise flow.refuse(
            node, "weighs all frames, after some were padded, cut or moved", "pad on the left only, or not at all"
        )
    flow.keep(node, partial(_normalize_so_far, FramesRead(node, input_of(node), framing)))
    error = flow.refuse(
        node, "weighs each frame by all of them", "a stream can only have the sum of the weighted frames"
    )
    return [Pooled("weights", framing, node, error)]


def _normalize_so_far(read: FramesRead, editor: Editor) -> None:
    """Compute the softmax of a chunk over the frames so far; "share" is what that leaves of the weights before."""
    node, axis, own = read.node, read.frames.axis, editor.known.types[read.value]
    scores = read.without_missing(editor, input_of(node), lowest(own))
    dtype, emit = wide_type(own), editor.before(node)
    past = editor.add_past(node, "pool", dtype, editor.dims(read.value, {axis: 1}))
    scores = scores if dtype == own else emit("Cast", scores, to=int(dtype))
    largest = emit("Max", past, emit("ReduceMax", scores, axes=[axis], keepdims=1))
    exponentials = emit("Exp", emit("Sub", scores, largest))
    in_chunk = emit("ReduceSum", exponentials, axes=[axis], keepdims=1)
    before = emit("Exp", emit("Sub", past, largest))
    total = emit("Add", largest, _log_of_sum(emit, before, in_chunk))
    weights = emit("Exp", emit("Sub", scores, total))
    editor.made["share", node] = emit("Exp", emit("Sub", past, total))
    weights = weights if dtype == own else emit("Cast", weights, to=int(own))
    weights.type = node.outputs[0].type
    editor.replace(node.outputs[0], weights, emit.graph)
    editor.add_present(past, total, lowest(own))


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
    pools = node is not None and node.op_type in _MEANS and flow.framings.get(value) is Unframed.LAST
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
    pool, axes = _running_pool(flow, node, pending.frames), coupled_axes(flow, node)
    if pool is None:
        return None
    sums = node.op_type == "ReduceSum" and axes == [pending.frames.axis]
    mean = _mean_of_all(flow, input_of(pending.origin, 1)) if pending.kind == "squares" else None
    if pending.kind == "weighted" and sums:
        squeezed = None if node.attributes.get_int("keepdims", 1) else pending.axis
        flow.keep(node, partial(_sum_weighted, pool, pending, squeezed, 0))
    elif mean and coupled_axes(flow, mean) == axes and (node.op_type == "ReduceMean" or sums):
        flow.keep(node, partial(_join_variances, pool, pending, mean))
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
    flow.keep(node, partial(_sum_weighted, pool, pending, None, 1 - slot))
    return Unframed.LAST


def _sum_weighted(pool: RunningPool, pending: Pooled, squeezed: int | None, slot: int, editor: Editor) -> None:
    """Sum frames with the weights of a softmax: each chunk reduces the share of the frames before.

    Args:
        pool: The sum.
        pending: The origin of the weights, and the nodes that moved them.
        squeezed: The axis of the frames in the weights, if the sum drops it.
        slot: The input of the sum that has the frames.
    """
    pool.skip_missing(editor, slot=slot)
    slots = (0, 1) if pool.node.op_type == "MatMul" else (slot,)
    dtype = _summed_in_float32(editor, pool.node, slots, editor.known.types[pool.value])
    past, emit = pool.pooled_past(editor, dtype), editor.after(pool.node)
    share = editor.made["share", pending.origin]
    for node in pending.moves:
        share = emit.put(editor.again(node, share))
    if squeezed is not None:
        share = emit("Squeeze", share, axes=[squeezed])
    pool.finish(emit, past, emit("Add", emit("Mul", past, share), pool.node.outputs[0]))


def _join_variances(pool: RunningPool, pending: Pooled, mean_node: ir.Node, editor: Editor) -> None:
    """Join the mean or sum of squared deviations of a chunk, from its own mean, with that of the frames before.

    Args:
        pool: The mean or sum.
        pending: The origin of the deviations: the node that subtracts the mean.
        mean_node: The node of the mean.
    """
    node, origin, mean = pool.node, pending.origin, editor.made["raw", mean_node]
    delay, own_type = pool.frames.delay, editor.known.types[pool.value]
    pool.skip_missing(editor)
    dtype = _summed_in_float32(editor, node, (0,), own_type)
    emit = editor.before(origin) if delay else editor.after(node)
    before, in_chunk, total = _counts_as(emit, delay, dtype)
    own = in_chunk
    if delay:
        own = emit("Sub", total, before)
        mean = emit("Mul", mean, emit("Div", in_chunk, own))
        emit = editor.after(node)
    subtracted = mean if dtype == own_type else editor.before(origin)("Cast", mean, to=int(own_type))
    origin.replace_input_with(1, subtracted)
    past = pool.pooled_past(editor, dtype)
    shift = emit("Sub", mean, editor.made["past", mean_node])
    squares = emit.put(editor.again(node, emit("Mul", shift, shift)))
    share, rest = emit("Div", before, total), emit("Div", own, total)
    if node.op_type == "ReduceMean":
        new = emit("Mul", node.outputs[0], emit("Div", in_chunk, total))
        within = emit("Add", emit("Mul", past, share), new)
        between = emit("Mul", squares, emit("Mul", share, rest))
    else:
        within, between = emit("Add", past, node.outputs[0]), emit("Mul", squares, emit("Mul", before, rest))
    pool.finish(emit, past, emit("Add", within, between))
