"""Values that meet in a node: their frames must be the same, and the earlier ones wait for the latest.

`joined` decides the common framing. An operator that looks ahead returns a late value (`Frames.ready`): `Wait`
delays the earlier values that it meets.

Example: with delay 2 and chunks of 3 frames, the first chunk holds [missing, missing, frame 0] and the second
[frame 1, frame 2, frame 3].
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from shlex import quote

import numpy as np
import onnx_ir as ir

from rnn_lowering.facts.bodies import values_used
from rnn_lowering.facts.numbers import depends_on_time
from rnn_lowering.facts.operators import operator_of
from rnn_lowering.facts.size import TIME, Shape, Size
from rnn_lowering.streaming.editor import Editor, NodeEdit, home, input_of
from rnn_lowering.streaming.edits import FramesEdit
from rnn_lowering.streaming.flow import Flow
from rnn_lowering.streaming.frame_counts import counts_so_far, of_type, past_or_first
from rnn_lowering.streaming.frames import NO_DELAY, FirstFrame, Frames, Unframed


def joined(flow: Flow, node: ir.Node, slots: Sequence[int]) -> tuple[Frames | Unframed | None, dict[int, int]]:
    """Return the common framing of the inputs of a node, and the axis of the frames by input slot."""
    values = {slot: v for slot in slots if (v := node.inputs[slot]) is not None}
    own = [m for v in values.values() if isinstance(m := flow.framings.get(v), Frames)]
    own.sort(key=lambda frames: frames.ready)
    by_slot: dict[int, Frames] = {}
    last = False
    for slot, value in values.items():
        first = flow.framings.get(value)
        if isinstance(first, FirstFrame) and own and operator_of(node).elementwise:
            flow.edits.append(KeepFirst(node, value, slot))
            continue
        constant = next((same for each in own if (same := _in_every_frame(flow, value, each)) is not None), None)
        framing = constant or _length(flow, node, slot, list(values.values())) or flow.read(value, node)
        if isinstance(framing, Frames):
            by_slot[slot] = framing
        last = last or framing is Unframed.LAST
    if last and by_slot:
        raise flow.refuse(
            node, "joins each frame with a value that is known only after the last one", "make that value an output"
        )
    kinds = sorted({replace(frames, axis=0) for frames in by_slot.values()}, key=lambda kind: kind.ready)
    if len({replace(kind, ready=0) for kind in kinds}) > 1:
        numbers = _fitting_numbers(flow, node, by_slot)
        raise flow.refuse(
            node,
            f"joins values whose frames are not aligned: {_listed(kinds)}",
            f"give {numbers}" if numbers else "trim the longer one with a Slice",
        )
    for slot, frames in by_slot.items():
        if frames.ready > kinds[0].ready:
            _wait(flow, node, slot, frames, kinds[0])
    axes = {slot: frames.axis for slot, frames in by_slot.items()}
    return (kinds[0] if kinds else Unframed.LAST if last else None), axes


def _fitting_numbers(flow: Flow, node: ir.Node, by_slot: Mapping[int, Frames]) -> str:
    """Return the options with numbers of frames of the inputs of the model that give the inputs of a node one rate.

    It is "" if there are none, or the model has other inputs with frames.
    """
    given: dict[ir.Value, set[Fraction]] = {}
    for slot, framing in by_slot.items():
        for source, frames in _sources(flow, input_of(node, slot)).items():
            given.setdefault(source, set()).add(frames.rate / framing.rate)
    timed = {v: f.axis for v, f in flow.framings.items() if v.is_graph_input() and isinstance(f, Frames)}
    counts = {source: min(numbers) for source, numbers in given.items() if len(numbers) == 1}
    if len({framing.rate for framing in by_slot.values()}) == 1 or counts.keys() != timed.keys():
        return ""
    whole = math.lcm(*(count.denominator for count in counts.values()))
    fewest = {source: int(count * whole) for source, count in counts.items()}
    texts = (f"{v.name}:{timed[v]}={n // math.gcd(*fewest.values())}" for v, n in fewest.items())
    return " ".join(f"--stream {quote(text)}" for text in texts)


def _sources(flow: Flow, value: ir.Value) -> dict[ir.Value, Frames]:
    """Return the inputs of the model whose frames are in a value."""
    seen, pending = dict[ir.Value, Frames](), [value]
    while pending:
        current = pending.pop()
        framing = flow.framings.get(current)
        if current not in seen and isinstance(framing, Frames):
            seen[current] = framing
            node = current.producer()
            pending += [] if node is None else values_used(node)
    return {each: framing for each, framing in seen.items() if each.is_graph_input()}


def _in_every_frame(flow: Flow, value: ir.Value, frames: Frames) -> Frames | None:
    """Return the framing of a value that is equal in every frame, if its size matches `frames`."""
    dims = flow.known.shapes.get(value, ())
    timed = [axis for axis, dim in enumerate(dims) if dim.timed]
    if value in flow.framings or depends_on_time(flow.known, value) or len(timed) != 1:
        return None
    return replace(frames, axis=timed[0]) if dims[timed[0]] == frames.size() else None


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
    last = all(flow.framings.get(v) is Unframed.LAST for v in values if v is not value)
    if not (linear and whole and last):
        return None
    flow.change(node, _count_so_far, slot, factor, offset, flow.known.shapes[value], dtype)
    return Unframed.LAST


def _listed(frames: Sequence[Frames]) -> str:
    return " and ".join(
        f"{f.ready} before, {f.extra - f.ready} behind"
        + (f", {f.rate} for each of the stream" if f.rate != 1 else "")
        + ("" if f.plain else f", merged {f.outer} x {f.inner}")
        for f in frames
    )


def _wait(flow: Flow, node: ir.Node, slot: int, framing: Frames, later: Frames) -> None:
    """Delay an input of a node until it has the delay of the other inputs."""
    value = input_of(node, slot)
    if not framing.plain:
        raise flow.refuse(
            node,
            f"joins values whose frames are not aligned: {_listed([framing, later])}",
            "trim the longer one with a Slice",
        )
    past = later.delay.frames - framing.delay.frames
    drop = past + framing.overlap - later.overlap
    flow.edits.append(Wait(node, value, framing, slot, past, drop))


@dataclass(frozen=True)
class Wait(FramesEdit):
    """Delays an input of a node until it has the delay of the other inputs.

    Attributes:
        slot: The slot of the input.
        past: The number of frames of the added delay.
        drop: The number of frames at the end of the input that only the next chunk uses.
    """

    slot: int
    past: int
    drop: int

    @property
    def carries(self) -> bool:  # type: ignore[override]
        return self.past > 0

    def apply(self, editor: Editor) -> None:
        source = input_of(self.node, self.slot)
        frames = self.frames
        key = ("wait", source, home(self.node), frames.axis, self.past, frames.overlap, self.drop)
        if key not in editor.made:
            editor.made[key] = self._delayed(editor, source)
        self.node.replace_input_with(self.slot, editor.made[key])

    def _delayed(self, editor: Editor, value: ir.Value) -> ir.Value:
        emit, axis = editor.before(self.node), self.frames.axis
        if self.past:
            past = self.past_input(editor, "x", self.past)
            value = emit("Concat", past, value, axis=axis)
            editor.add_present(self.node, "x", past, self.last(emit, value, self.past))
        return emit.sliced(value, [axis], [0], [-self.drop])


@dataclass(frozen=True)
class KeepFirst(NodeEdit):
    """Lets a node read a value of frame 0 in each chunk: it is a state, and in the first call that of the chunk.

    Attributes:
        node: The node.
        value: The value of frame 0.
        slot: The input of the node that is this value.
    """

    node: ir.Node
    value: ir.Value
    slot: int

    def apply(self, editor: Editor) -> None:
        first = input_of(self.node, self.slot)
        key = ("first", first, home(self.node))
        if key not in editor.made:
            past = editor.add_past(self.node, "x", editor.known.types[self.value], editor.dims(self.value))
            editor.made[key] = past_or_first(editor, self.node, past, first)
            editor.add_present(self.node, "x", past, editor.made[key])
        self.node.replace_input_with(self.slot, editor.made[key])


def _count_so_far(
    editor: Editor, node: ir.Node, slot: int, factor: Fraction, offset: Fraction, shape: Shape, dtype: ir.DataType
) -> None:
    """Replace a number that is frames * `factor` + `offset`: of the sequence, then of the frames so far."""
    emit = editor.before(node)
    _, _, total = counts_so_far(editor, NO_DELAY)
    number = of_type(emit, node, total, dtype)
    for op_type, by in (("Mul", factor), ("Add", offset)):
        number = emit(op_type, number, emit.constant(np.array([float(by)]).astype(dtype.numpy()), dtype))
    sizes = [int(dim.constant or 1) for dim in shape]
    node.replace_input_with(slot, emit("Reshape", number, emit.constant(sizes)))
