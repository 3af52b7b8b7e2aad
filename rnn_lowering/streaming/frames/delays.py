"""Values with a delay: a node before them reads future frames.

A value with delay 2 starts with 2 missing frames. Until frame 0 comes, states keep their initial values, and nodes
read the padding. A state counts the frames so far, and so tells which frames are missing.

Example: with delay 2 and chunks of 3 frames, the first chunk holds [missing, missing, frame 0] and the second
[frame 1, frame 2, frame 3].
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from rnn_lowering.emit.versions import TO_THE_END
from rnn_lowering.errors import UnsupportedError
from rnn_lowering.inference.polynomials import TIME, Size
from rnn_lowering.inference.shape_arithmetic import depends_on_time
from rnn_lowering.inference.symbolic_values import Shape
from rnn_lowering.spec.node_spec import node_ref
from rnn_lowering.streaming.editor import Editor, NodeEdit, Path, dim_of, home, producer
from rnn_lowering.streaming.frames.flow import Flow
from rnn_lowering.streaming.frames.frame_counts import (
    LengthSoFar,
    at_start,
    frame_indices,
    frames_before,
    numbers_in_call,
)
from rnn_lowering.streaming.frames.framing import Delay, Frames, Unframed, WholeSequenceValue
from rnn_lowering.types import Array


def joined(flow: Flow, node: ir.Node, slots: Sequence[int]) -> tuple[Frames | Unframed | None, dict[int, int]]:
    """Return the common framing of the inputs of a node, and the axis of the frames by input slot."""
    values = {slot: v for slot in slots if (v := node.inputs[slot]) is not None}
    own = [held for v in values.values() if isinstance(held := flow.framings.get(v), Frames)]
    own.sort(key=lambda held: held.known)
    framed: dict[int, Frames] = {}
    last = False
    for slot, value in values.items():
        held = next((same for each in own if (same := _same_as(flow, value, each)) is not None), None)
        found = held or _length(flow, node, slot, list(values.values())) or flow.framing(value, node)
        if isinstance(found, Frames):
            framed[slot] = found
        last = last or found is Unframed.LAST
    if last and framed:
        raise flow.refuse(node, "joins each frame with a value that is known only after the last one")
    kinds = sorted({replace(held, axis=0) for held in framed.values()}, key=lambda kind: kind.known)
    if len({replace(kind, known=0) for kind in kinds}) > 1:
        raise flow.refuse(node, f"joins values whose frames are not aligned: {_apart(kinds)}")
    for slot, held in framed.items():
        if held.known > kinds[0].known:
            _wait(flow, node, slot, held, kinds[0])
    axes = {slot: held.axis for slot, held in framed.items()}
    return (kinds[0] if kinds else Unframed.LAST if last else None), axes


def _length(flow: Flow, node: ir.Node, slot: int, values: Sequence[ir.Value]) -> Unframed | None:
    """Return the framing of a number computed from the length, if a node reads it with a pooled value."""
    value = node.inputs[slot]
    numbers = flow.known.numbers(value) if value is not None and depends_on_time(flow.known, value) else None
    if value is None or numbers is None or len(numbers) != 1 or flow.framings.get(value) is not None:
        return None
    number, dtype = numbers[0].whole(), flow.known.types[value]
    factor, offset = number.coefficient(TIME), number.coefficient()
    linear = number == Size.symbol(TIME) * factor + offset
    whole = factor.denominator == offset.denominator == 1 or dtype.is_floating_point()
    if not linear or not whole or not all(_is_last(flow, v) for v in values if v is not value):
        return None
    shape = tuple(int(dim.constant or 1) for dim in flow.known.shapes[value])
    flow.edits.append(LengthSoFar(node, slot, factor, offset, shape, dtype))
    return Unframed.LAST


def _is_last(flow: Flow, value: ir.Value) -> bool:
    return flow.framings.get(value) is Unframed.LAST


def _wait(flow: Flow, node: ir.Node, slot: int, framing: Frames, later: Frames) -> None:
    """Delay an input of a node until it has the delay of the other inputs."""
    value = node.inputs[slot]
    assert value is not None
    if not framing.plain:
        raise flow.refuse(node, f"joins values whose frames are not aligned: {_apart([framing, later])}")
    past = later.delay.frames - framing.delay.frames
    drop = past + framing.overlap - later.overlap
    wait = Wait(
        node,
        slot,
        framing.axis,
        past,
        framing.overlap,
        drop,
        flow.path,
        flow.shape(value, node),
        flow.known.types[value],
    )
    flow.edits.append(wait)


def note_ahead(flow: Flow, node: ir.Node, before: Frames, after: Frames) -> None:
    """Record a node whose output has a larger delay than its input."""
    more = after.delay.frames / after.rate - before.delay.frames / before.rate
    if more > 0:
        flow.ahead.append((node_ref(node, flow.scope), math.ceil(more)))


def _same_as(flow: Flow, value: ir.Value, frames: Frames) -> Frames | None:
    """Return the framing of a value that is equal in every frame, if its size matches `frames`."""
    dims = flow.known.shapes.get(value, ())
    timed = [axis for axis, dim in enumerate(dims) if dim.timed]
    if value in flow.framings or depends_on_time(flow.known, value) or len(timed) != 1:
        return None
    return replace(frames, axis=timed[0]) if dims[timed[0]] == frames.size() else None


def last_state(
    flow: Flow, node: ir.Node, framing: Frames, states: Sequence[ir.Value]
) -> Unframed | WholeSequenceValue:
    """Return the framing of the last states of a node. If they are late, only the stream may carry them."""
    late = framing.extra - framing.known
    if not late:
        return Unframed.LAST
    error = flow.refuse(
        node,
        f"returns its last state, which comes {late} frame{'s'[: late != 1]} after the sequence has ended",
        "drop that output, since the stream carries the state, or give the node an initial state to return",
    )
    if framing.extra > 0 or flow.path:
        return WholeSequenceValue(error)
    flow.late_states.update((v, error) for v in states if v.name)
    return Unframed.LAST


def _apart(frames: Sequence[Frames]) -> str:
    return " and ".join(
        f"{f.known} before, {f.extra - f.known} behind"
        + (f", {f.rate} for each of the stream" if f.rate != 1 else "")
        + ("" if f.plain else f", merged {f.outer} x {f.inner}")
        for f in frames
    )


@dataclass(frozen=True)
class Wait(NodeEdit):
    """Delay an input of a node until it has the delay of the other inputs.

    Attributes:
        node, slot: The node, and which of its inputs.
        axis: The axis of the frames.
        past: The number of frames of the delay.
        overlap: The number of extra frames of the input in each chunk.
        drop: The number of frames at the end of the input that only the next chunk uses.
        path: The If nodes around the node, each with its branch.
        shape, dtype: Those of the input.
    """

    node: ir.Node
    slot: int
    axis: int
    past: int
    overlap: int
    drop: int
    path: Path
    shape: Shape
    dtype: ir.DataType

    @property
    def carries(self) -> bool:  # type: ignore[override]
        return self.past > 0

    def apply(self, editor: Editor) -> None:
        source, graph = self.node.inputs[self.slot], home(self.node)
        assert source is not None
        key = ("wait", source, graph, self.axis, self.past, self.overlap, self.drop)
        if key not in editor.made:
            editor.made[key] = self._held_back(editor, source, graph)
        self.node.replace_input_with(self.slot, editor.made[key])

    def _held_back(self, editor: Editor, source: ir.Value, graph: ir.Graph) -> ir.Value:
        joined = source
        if self.past:
            dims = [self.past if n == self.axis else dim_of(d, n, source.name) for n, d in enumerate(self.shape)]
            past = editor.add_past(self.node, "x", self.dtype, dims)
            (joined,) = editor.node("Concat", [past, source], axis=self.axis)
            end = -self.overlap or TO_THE_END
            present = editor.sliced(joined, graph, [self.axis], [-self.past - self.overlap], [end])
            graph.insert_before(self.node, [producer(joined), producer(present)])
            editor.add_present(self.node, "x", past, present, self.path)
        read = editor.sliced(joined, graph, [self.axis], [0], [-self.drop])
        graph.insert_before(self.node, [producer(read)])
        return read


def replaced(
    editor: Editor, value: ir.Value, delay: Delay, axis: int, rank: int, early: Array, node: ir.Node
) -> ir.Value:
    """Replace the missing frames of a value before a node.

    Args:
        early: The replacement: a number, or an array with one entry along `axis` per frame of delay.
    """
    graph = home(node)
    missing, fill = missing_frames(editor, delay), editor.constant(early, graph)
    if early.size > 1:
        index = frame_indices(editor, delay.rate)
        (within,) = editor.node("Where", [missing, index, editor.counts([delay.frames - 1])])
        (fill,) = editor.node("Gather", [fill, within], axis=axis)
        graph.insert_before(node, [producer(within), producer(fill)])
    if editor.own_frames(delay.rate) != 1:
        shape = editor.integers([-1 if n == axis else 1 for n in range(rank)], graph)
        (missing,) = editor.node("Reshape", [missing, shape])
        graph.insert_before(node, [producer(missing)])
    (read,) = editor.node("Where", [missing, fill, value])
    graph.insert_before(node, [producer(read)])
    return read


def held_until_first(editor: Editor, node: ir.Node, delay: Delay, final: ir.Value, initial: ir.Value) -> ir.Value:
    """Return the final state of a recurrent node, or the initial state if the chunk holds missing frames only."""
    graph, none_has = home(node), missing_frames(editor, delay)
    new = []
    if editor.own_frames(delay.rate) != 1:
        none_has = editor.sliced(none_has, graph, [0], [-1], [TO_THE_END])
        new.append(none_has)
    (kept,) = editor.node("Where", [none_has, initial, final])
    editor.put_behind(final, kept, [*new, kept])
    return kept


def skip_missing(editor: Editor, node: ir.Node, delay: Delay, dtype: ir.DataType) -> None:
    """Start a recurrent node at its frame 0: move the missing frames to the end, beyond `sequence_lens`."""
    if editor.own_frames(delay.rate) == 1:
        return
    graph = home(node)
    sequence, batch = (1, 0) if node.attributes.get_int("layout", 0) == 1 else (0, 1)
    number, turns = numbers_in_call(editor, delay.rate)
    skipped = _clipped(
        editor, at_start(editor, "Sub", editor.counts([delay.frames]), frames_before(editor, delay.rate)), number
    )
    last = at_start(editor, "Sub", number, editor.counts([1]))
    taken = _clipped(editor, at_start(editor, "Add", turns, skipped), last)
    put = _clipped(editor, at_start(editor, "Sub", turns, skipped), last)
    there = at_start(editor, "Sub", number, skipped)
    x, y = node.inputs[0], node.outputs[0]
    assert x is not None
    (moved,) = editor.node("Gather", [x, taken], axis=sequence)
    (sizes,) = editor.node("Shape", [x])
    (rows,) = editor.node("Gather", [sizes, editor.integers([batch], graph)], axis=0)
    (short,) = editor.node("Cast", [there], to=ir.DataType.INT32.value)
    (lengths,) = editor.node("Expand", [short, rows])
    graph.insert_before(node, [producer(v) for v in (moved, sizes, rows, short, lengths)])
    node.resize_inputs(max(len(node.inputs), 5))
    node.replace_input_with(0, moved)
    node.replace_input_with(4, lengths)
    if y.name:
        (back,) = editor.node("Gather", [y, put], axis=sequence)
        back.type = ir.TensorType(dtype)
        editor.put_behind(y, back, [back])


def missing_frames(editor: Editor, delay: Delay) -> ir.Value:
    """Return a mask of the frames in this call that are missing because of the delay."""
    if editor.opset < 9:
        raise UnsupportedError("a stream that looks ahead needs opset 9", hint="convert the model first")
    if delay not in editor.made:
        limit = editor.counts([delay.frames])
        editor.made[delay] = at_start(editor, "Less", frame_indices(editor, delay.rate), limit)
    return editor.made[delay]


def _clipped(editor: Editor, number: ir.Value, most: ir.Value) -> ir.Value:
    """Clip numbers to 0 and a maximum."""
    zero = editor.counts([0])
    below = at_start(editor, "Less", number, zero)
    number = at_start(editor, "Where", below, zero, number)
    return at_start(editor, "Where", at_start(editor, "Less", most, number), most, number)
