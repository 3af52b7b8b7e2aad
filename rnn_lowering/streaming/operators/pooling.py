"""Poolings of all frames, and their sums so far (CumSum): the value so far is a state.

The poolings are sums, products, maxima, means, sums with the weights of a softmax over time, and the variance. Each
joins the value of the chunk with the value before.

Example: the mean of 4 frames is 2.0, and a chunk of 4 frames has the mean 4.0: the mean so far is 3.0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import onnx_ir as ir

from rnn_lowering.emit.versions import TO_THE_END, parameter
from rnn_lowering.inference.symbolic_values import Shape
from rnn_lowering.streaming.editor import Editor, NodeEdit, Path, dim_of, home, producer
from rnn_lowering.streaming.frames.delays import replaced
from rnn_lowering.streaming.frames.flow import Flow
from rnn_lowering.streaming.frames.frame_counts import counts_so_far
from rnn_lowering.streaming.frames.framing import Delay, Frames, Framing, Pooled, Unframed
from rnn_lowering.streaming.frames.past_frames import framed_input
from rnn_lowering.streaming.operators.frame_by_frame import coupled_axes, frame_by_frame

Join = Callable[["_Emitter", ir.Value, ir.Value], ir.Value]


class _Emitter:
    """Emits nodes after or before a node."""

    def __init__(self, editor: Editor, graph: ir.Graph, dtype: ir.DataType) -> None:
        self.editor, self.graph, self.dtype = editor, graph, dtype
        self.made: list[ir.Value] = []

    def __call__(self, op_type: str, *inputs: ir.Value, **attributes: int | Sequence[int]) -> ir.Value:
        (value,) = self.editor.node(op_type, inputs, self.graph, **attributes)
        self.made.append(value)
        return value

    def constant(self, number: float) -> ir.Value:
        return self.editor.constant(np.array([number], self.dtype.numpy()), self.graph)

    def reduced(self, op_type: str, value: ir.Value, axis: int) -> ir.Value:
        """A reduction along one axis, which stays."""
        return self(op_type, value, axes=[axis], keepdims=1)

    def squared(self, value: ir.Value) -> ir.Value:
        return self("Mul", value, value)


def _log_sum(emit: _Emitter, first: ir.Value, second: ir.Value) -> ir.Value:
    """Return the logarithm of the sum of two exponentials; negative infinity stands for an empty sum."""
    most = emit("Max", emit("Max", first, second), emit.constant(_lowest(emit.dtype)))
    parts = [emit("Exp", emit("Sub", value, most)) for value in (first, second)]
    return emit("Add", most, _log_of_sum(emit, *parts))


def _log_of_sum(emit: _Emitter, first: ir.Value, second: ir.Value) -> ir.Value:
    """Return the logarithm of a sum without an Add: OpenCV 5.0 takes Log(Exp(x) + y) for Softplus(x) for any y."""
    return emit("Log", emit("Sub", first, emit("Neg", second)))


def _root(emit: _Emitter, first: ir.Value, second: ir.Value) -> ir.Value:
    return emit("Sqrt", emit("Add", emit.squared(first), emit.squared(second)))


def _by(op_type: str) -> Join:
    return lambda emit, first, second: emit(op_type, first, second)


def _lowest(dtype: ir.DataType) -> float:
    held = dtype.numpy()
    return float(np.finfo(held).min if dtype.is_floating_point() else np.iinfo(held).min)


def _least(dtype: ir.DataType) -> float:
    return -np.inf if dtype.is_floating_point() else _lowest(dtype)


def _most(dtype: ir.DataType) -> float:
    return -_least(dtype) if dtype.is_floating_point() else float(np.iinfo(dtype.numpy()).max)


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
class RunningPool(NodeEdit):
    """A pooling of all frames.

    Attributes:
        axis: The axis of the frames.
        frames: The framing of the input.
        path: The If nodes around the node, each with its branch.
        shape, dtype: Shape and element type of the pooled value.
        rank: The rank of the input.
    """

    node: ir.Node
    axis: int
    frames: Frames
    path: Path
    shape: Shape
    dtype: ir.DataType
    rank: int

    def add_past(self, editor: Editor, kind: str = "pool") -> ir.Value:
        dims = [dim_of(dim, n, self.node.outputs[0].name) for n, dim in enumerate(self.shape)]
        return editor.add_past(self.node, kind, self.dtype, dims)

    def return_(self, editor: Editor, past: ir.Value, emit: _Emitter, total: ir.Value, before: float = 0.0) -> None:
        """Return `total` as the pooled value and the next state."""
        editor.put_behind(self.node.outputs[0], total, emit.made)
        initial = None if before == 0 else np.full((1,) * len(self.shape), before)
        editor.add_present(self.node, "pool", past, total, self.path, initial)

    def apply(self, editor: Editor) -> None:
        node, value = self.node, self.node.outputs[0]
        join, before = _JOINS.get(node.op_type, (None, lambda _: 0.0))
        neutral = before(self.dtype)
        past, emit = self.add_past(editor), _Emitter(editor, home(node), self.dtype)
        if node.op_type == "ReduceLogSumExp" and self.frames.delay:
            value = self._of_true_exponents(editor, emit, value)
        else:
            self.without_missing(editor, neutral)
        total = self._mean(editor, emit, past, value) if join is None else join(emit, past, value)
        editor.made["raw", node] = value
        editor.made["past", node] = past
        self.return_(editor, past, emit, total, neutral)

    def without_missing(self, editor: Editor, neutral: float = 0.0, slot: int = 0) -> None:
        """Replace the missing frames in an input by a number that changes nothing."""
        source, number = self.node.inputs[slot], np.array([neutral], self.dtype.numpy())
        assert source is not None
        if delay := self.frames.delay:
            read = replaced(editor, source, delay, self.axis, self.rank, number, self.node)
            self.node.replace_input_with(slot, read)

    def _of_true_exponents(self, editor: Editor, emit: _Emitter, value: ir.Value) -> ir.Value:
        """Return a log-sum-exp without missing frames, which have the lowest finite number: onnxruntime's result is
        wrong if the first exponent is -infinity."""
        lowest = _lowest(self.dtype)
        self.without_missing(editor, lowest)
        none = emit("Less", value, emit.constant(lowest / 2))
        return emit("Where", none, emit.constant(-np.inf), value)

    def _mean(self, editor: Editor, emit: _Emitter, past: ir.Value, value: ir.Value) -> ir.Value:
        before, own, total = _counts(editor, emit, self.frames)
        return emit(
            "Add", emit("Mul", past, emit("Div", before, total)), emit("Mul", value, emit("Div", own, total))
        )


def _counts(editor: Editor, emit: _Emitter, frames: Frames) -> list[ir.Value]:
    """Return the number of frames before a chunk, in the chunk, and in both."""
    return [emit("Cast", number, to=int(emit.dtype)) for number in counts_so_far(editor, frames.delay)]


def pooled(flow: Flow, node: ir.Node) -> list[Framing]:
    """Return the framing of the output of a pooling: final after the last frame if it pools frames."""
    value = node.inputs[0]
    held = flow.framings.get(value) if value is not None else None
    if isinstance(held, Pooled):
        return [_of_pooled(flow, node, held)]
    edit = _running(flow, node)
    if edit is None:
        return frame_by_frame(flow, node)
    flow.edits.append(edit)
    if node.op_type in _MEANS:
        flow.means[node.outputs[0]] = node
    return [Unframed.LAST]


def _running(flow: Flow, node: ir.Node, frames: Frames | None = None) -> RunningPool | None:
    """Return the edit of a node that pools frames, or None if a stream cannot."""
    held = framed_input(flow, node) if frames is None else None
    framing = frames or (None if held is None else held[1])
    value, output = node.inputs[0], node.outputs[0]
    if framing is None or value is None or len(flow.shape(output, node)) == 0:
        return None
    rank = len(flow.shape(value, node))
    axes = {axis % rank for _, axis in coupled_axes(flow, node) or ()}
    if framing.axis not in axes:
        return None
    dtype = flow.known.types[value]
    if not _exact(framing):
        raise flow.refuse(
            node,
            "pools frames that a stream has before or after their turn",
            "pool exactly the frames of the stream",
        )
    if not dtype.is_floating_point() and node.op_type in ("ReduceL2", "ReduceLogSumExp", *_MEANS):
        raise flow.refuse(node, f"pools frames of type {dtype.name.lower()}", "cast them to float before it")
    return RunningPool(node, framing.axis, framing, flow.path, flow.shape(output, node), dtype, rank)


def _exact(framing: Frames) -> bool:
    """Whether the frames of all chunks are those of the whole: none is padding, or comes after the end."""
    return framing.plain and not framing.overlap and framing.extra == framing.known


# Softmax over time, and what is summed with its weights


@dataclass(frozen=True)
class RunningSoftmax(NodeEdit):
    """A softmax over all frames: weights with the sum so far.

    Attributes:
        frames: The framing of the input.
        path: The If nodes around the node, each with its branch.
        shape, dtype: Shape and element type of the input.
    """

    node: ir.Node
    frames: Frames
    path: Path
    shape: Shape
    dtype: ir.DataType

    @property
    def axis(self) -> int:
        return self.frames.axis

    def apply(self, editor: Editor) -> None:
        node, graph, scores = self.node, home(self.node), self.node.inputs[0]
        assert scores is not None
        if delay := self.frames.delay:
            none = np.array([_lowest(self.dtype)], self.dtype.numpy())
            scores = replaced(editor, scores, delay, self.axis, len(self.shape), none, node)
        dims = [1 if n == self.axis else dim_of(dim, n, scores.name) for n, dim in enumerate(self.shape)]
        past, emit = editor.add_past(node, "pool", self.dtype, dims), _Emitter(editor, graph, self.dtype)
        most = emit("Max", past, emit.reduced("ReduceMax", scores, self.axis))
        own = emit.reduced("ReduceSum", emit("Exp", emit("Sub", scores, most)), self.axis)
        before = emit("Exp", emit("Sub", past, most))
        total = emit("Add", most, _log_of_sum(emit, before, own))
        weights = emit("Exp", emit("Sub", scores, total))
        editor.made["share", node] = emit("Exp", emit("Sub", past, total))
        graph.insert_before(node, [producer(value) for value in emit.made])
        weights.type = node.outputs[0].type
        editor.replace(node.outputs[0], weights, graph)
        initial = np.full((1,) * len(dims), _lowest(self.dtype))
        editor.add_present(node, "pool", past, total, self.path, initial)


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
        self.pool.without_missing(editor, slot=self.slot)
        past, emit = self.pool.add_past(editor), _Emitter(editor, home(self.node), self.pool.dtype)
        share = editor.made["share", self.pending.origin]
        for moved in self.pending.moves:
            share = emit.editor.again(moved, share)
            emit.made.append(share)
        if self.squeezed is not None:
            share = emit("Squeeze", share, axes=[self.squeezed])
        total = emit("Add", emit("Mul", past, share), self.node.outputs[0])
        self.pool.return_(editor, past, emit, total)


def softmaxed(flow: Flow, node: ir.Node) -> list[Framing]:
    """Return the framing of a Softmax. Weights over the frames must be summed later."""
    held = framed_input(flow, node)
    axes = None if held is None else {a % len(flow.shape(held[0], node)) for _, a in coupled_axes(flow, node) or ()}
    if held is None or axes != {held[1].axis}:
        return frame_by_frame(flow, node)
    value, framing = held
    if not _exact(framing):
        raise flow.refuse(node, "weighs frames that a stream has before or after their turn, over all of them")
    edit = RunningSoftmax(node, framing, flow.path, flow.shape(value, node), flow.known.types[value])
    flow.edits.append(edit)
    error = flow.refuse(
        node, "weighs each frame by all of them", "a stream can only have the sum of the weighted frames"
    )
    return [Pooled("weights", framing, node, error)]


# Deviations from the mean, and their squares


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
        node, emit = self.node, _Emitter(editor, home(self.node), self.pool.dtype)
        raw = editor.made["raw", self.mean]
        before, given, total = _counts(editor, emit, self.pool.frames)
        own = given
        if self.pool.frames.delay:
            own = emit("Sub", total, before)
            raw = emit("Mul", raw, emit("Div", given, own))
            home(node).insert_before(self.pending.origin, [producer(value) for value in emit.made])
            emit.made.clear()
        self.pending.origin.replace_input_with(1, raw)
        self.pool.without_missing(editor)
        past = self.pool.add_past(editor)
        apart = emit.squared(emit("Sub", raw, editor.made["past", self.mean]))
        between = editor.again(node, apart)
        emit.made.append(between)
        share, rest = emit("Div", before, total), emit("Div", own, total)
        if node.op_type == "ReduceMean":
            new = emit("Mul", node.outputs[0], emit("Div", given, total))
            inner = emit("Add", emit("Mul", past, share), new)
            outer = emit("Mul", between, emit("Mul", share, rest))
        else:
            inner, outer = emit("Add", past, node.outputs[0]), emit("Mul", between, emit("Mul", before, rest))
        self.pool.return_(editor, past, emit, emit("Add", inner, outer))


def deviating(flow: Flow, node: ir.Node) -> list[Framing]:
    """Return the framing of a Sub. Deviations of frames from their mean must be squared and summed later."""
    value, mean = node.inputs[0], node.inputs[1]
    pool = None if mean is None else flow.means.get(mean)
    framing = None if value is None else flow.framings.get(value)
    if pool is None or pool.inputs[0] is not value or not isinstance(framing, Frames):
        return frame_by_frame(flow, node)
    if not pool.attributes.get_int("keepdims", 1):
        return frame_by_frame(flow, node)
    error = flow.refuse(
        node,
        "subtracts from each frame the mean of all, known only after the last one (utterance normalization)",
        "normalize over the frames so far, or by constants",
    )
    return [Pooled("deviations", framing, node, error)]


def of_pooled(flow: Flow, node: ir.Node) -> list[Framing]:
    """The framings of the outputs of a node that reads weights or deviations.

    Raises:
        UnsupportedError: The node reads weights or deviations frame by frame.
    """
    slots = [n for n, v in enumerate(node.inputs) if isinstance(flow.framings.get(v), Pooled)]  # type: ignore[arg-type]
    value = node.inputs[slots[0]]
    held = flow.framings[value]  # type: ignore[index]
    assert isinstance(held, Pooled)
    if node.domain or len(node.outputs) != 1:
        raise held.error
    if node.op_type in POOLINGS and slots == [0]:
        return [_of_pooled(flow, node, held)]
    if node.op_type in ("Mul", "Pow") and held.kind == "deviations":
        squares = slots == [0, 1] and node.inputs[0] is node.inputs[1]
        exponent = flow.known.constant(node.inputs[1]) if node.op_type == "Pow" and slots == [0] else None
        if squares or (exponent is not None and exponent.size == 1 and exponent.reshape(-1)[0] == 2):
            return [replace(held, kind="squares")]
    if held.kind == "weights" and len(slots) == 1:
        if node.op_type == "MatMul":
            return [_matrix_product(flow, node, slots[0], held)]
        named = node.op_type != "Squeeze" or parameter(node, "axes", flow.opset) is not None
        if node.op_type in ("Identity", "Squeeze", "Transpose", "Unsqueeze") and slots == [0] and named:
            return [replace(held, frames=_as_frames(flow, node, held), moves=(*held.moves, node))]
        if node.op_type == "Mul":
            weighed = replace(held, kind="weighted", axis=held.frames.axis)
            return [replace(weighed, frames=_as_frames(flow, node, held))]
    raise held.error


def _as_frames(flow: Flow, node: ir.Node, held: Pooled) -> Frames:
    """The framing of the output of a node that acts on each frame alone, of weights or deviations."""
    edits, before = len(flow.edits), dict[ir.Value, Framing]()
    for value in node.inputs:
        if value is not None and isinstance(own := flow.framings.get(value), Pooled):
            before[value], flow.framings[value] = own, own.frames
    (found,) = frame_by_frame(flow, node)
    flow.framings.update(before)
    if not isinstance(found, Frames) or len(flow.edits) > edits:
        raise held.error
    return found


def _of_pooled(flow: Flow, node: ir.Node, held: Pooled) -> Framing:
    """Return the framing of a reduction of weights or deviations."""
    edit = _running(flow, node, held.frames)
    rank = len(flow.shape(node.inputs[0], node))  # type: ignore[arg-type]
    axes = {axis % rank for _, axis in coupled_axes(flow, node) or ()}
    keeps = bool(node.attributes.get_int("keepdims", 1))
    if edit is None:
        raise held.error
    if held.kind == "weighted" and node.op_type == "ReduceSum" and axes == {held.frames.axis}:
        flow.edits.append(RunningWeightedSum(node, edit, held, None if keeps else held.axis))
        return Unframed.LAST
    mean = flow.means.get(held.origin.inputs[1]) if held.kind == "squares" else None  # type: ignore[arg-type]
    sums = node.op_type == "ReduceSum" and axes == {held.frames.axis}
    if mean is not None and _axes(flow, mean) == axes and (node.op_type == "ReduceMean" or sums):
        flow.edits.append(RunningVariance(node, edit, held, mean))
        return Unframed.LAST
    raise held.error


def _axes(flow: Flow, node: ir.Node) -> set[int]:
    rank = len(flow.shape(node.inputs[0], node))  # type: ignore[arg-type]
    return {axis % rank for _, axis in coupled_axes(flow, node) or ()}


def _matrix_product(flow: Flow, node: ir.Node, slot: int, held: Pooled) -> Framing:
    """The framing of weights times frames."""
    value, output = node.inputs[1 - slot], node.outputs[0]
    framing = None if value is None else flow.framing(value, node)
    weights = node.inputs[slot]
    assert weights is not None
    if value is None or not isinstance(framing, Frames) or framing != replace(held.frames, axis=framing.axis):
        raise held.error
    ranks = [len(flow.shape(v, node)) for v in (weights, value)]
    places = (ranks[0] - (1 if slot == 0 else 2), ranks[1] - (2 if slot == 0 else 1))
    if min(ranks) < 2 or (held.frames.axis, framing.axis) != places:
        raise held.error
    shape, dtype = flow.shape(output, node), flow.known.types[weights]
    pool = RunningPool(node, framing.axis, held.frames, flow.path, shape, dtype, ranks[1])
    flow.edits.append(RunningWeightedSum(node, pool, held, None, 1 - slot))
    return Unframed.LAST


@dataclass(frozen=True)
class RunningSum(NodeEdit):
    """A CumSum along the frames.

    Attributes:
        axis: The axis of the frames.
        overlap: The number of extra frames of the input in each chunk.
        delay: Delay of the input; missing frames count as 0.
        path: The If nodes around the node, each with its branch.
        shape, dtype: Shape and element type of the sum.
        rate: Frames of the sum per frame of the stream.
    """

    node: ir.Node
    axis: int
    overlap: int
    path: Path
    shape: Shape
    dtype: ir.DataType
    rate: Fraction
    delay: Delay | None = None

    def apply(self, editor: Editor) -> None:
        """Add the sum so far to the chunk. The next state is the sum at the last frame of the chunk."""
        node, graph, value = self.node, home(self.node), self.node.outputs[0]
        dims = [1 if n == self.axis else dim_of(dim, n, value.name) for n, dim in enumerate(self.shape)]
        past = editor.add_past(node, "sum", self.dtype, dims)
        source = node.inputs[0]
        assert source is not None
        if self.delay:
            zeros = np.zeros(1, self.dtype.numpy())
            source = replaced(editor, source, self.delay, self.axis, len(self.shape), zeros, node)
            node.replace_input_with(0, source)
        exclusive = node.attributes.get_int("exclusive", 0)
        if editor.own_frames(self.rate) == 1 and not self.overlap and not exclusive:
            (total,) = editor.node("Add", [source, past])
            total.type = value.type
            graph.insert_before(node, [producer(total)])
            editor.replace(value, total, graph)
            graph.remove(node, safe=True)
            editor.add_present(node, "sum", past, total, self.path)
            return
        (total,) = editor.node("Add", [value, past])
        editor.put_behind(value, total, [total])
        last = total
        if exclusive:
            (last,) = editor.node("Add", [total, source])
            graph.insert_after(producer(total), [producer(last)])
        end = -self.overlap or TO_THE_END
        present = editor.sliced(last, graph, [self.axis], [-(self.overlap + 1)], [end])
        graph.insert_after(producer(last), [producer(present)])
        editor.add_present(node, "sum", past, present, self.path)


def summed(flow: Flow, node: ir.Node) -> list[Framing]:
    """The framing of a CumSum's output."""
    held, given = framed_input(flow, node), node.inputs[1]
    axis = None if given is None else flow.known.constant(given)
    if held is None or axis is None or int(axis.reshape(-1)[0]) % len(flow.shape(held[0], node)) != held[1].axis:
        return frame_by_frame(flow, node)
    value, framing = held
    if node.attributes.get_int("reverse", 0):
        raise flow.refuse(node, "sums from the last frame on, which a stream has not seen yet")
    if not framing.plain:
        raise flow.refuse(node, "its frames are merged with another axis")
    shape, dtype = flow.shape(value, node), flow.known.types[value]
    flow.edits.append(
        RunningSum(node, framing.axis, framing.overlap, flow.path, shape, dtype, framing.rate, framing.delay)
    )
    return [flow.framed(node, node.outputs[0], framing)]
