"""Frames that meet in a node: `joined` aligns those of its inputs, `frame_by_frame` finds those of its outputs.

`facts/operators` says along which axes an operator acts, and which axis of its output an axis of an input becomes.
Its frames may be on any axis along which it does not act. Operators that act along the frames are in `operators/`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from shlex import quote

import numpy as np
import onnx_ir as ir

from rnn_lowering.facts.axes import Axes
from rnn_lowering.facts.known import constants_of
from rnn_lowering.facts.numbers import numbers_vary
from rnn_lowering.facts.operators import TO_THE_END, axes_by_rule, operator_of, reached, values_used
from rnn_lowering.facts.size import ONE, Shape, Size, product
from rnn_lowering.streaming.counts import counts_so_far, frame_indices, missing_frames, of_type, past_or_first
from rnn_lowering.streaming.editor import Editor, Emitter, home, input_of
from rnn_lowering.streaming.flow import Flow
from rnn_lowering.streaming.frames import NO_DELAY, FirstFrame, Frames, Framing, Unframed
from rnn_lowering.streaming.sizes import in_whole, linear
from rnn_lowering.types import ArrayLike

# Edits of a node along the frames: the state that they add, and what the node reads before frame 0. A value with
# delay 2 starts with 2 missing frames. Until frame 0 comes, states keep their initial values, and nodes read
# their padding (`FramesRead.without_missing`). A state counts the frames so far, and so tells which are missing.


@dataclass(frozen=True)
class FramesRead:
    """The frames that a node reads.

    Attributes:
        node: The node.
        value: What it reads, or a value of the same type and shape.
        frames: The framing of what it reads.
    """

    node: ir.Node
    value: ir.Value
    frames: Frames

    def past_input(self, editor: Editor, kind: str, rows: int = 1) -> ir.Value:
        """Add an input that takes rows of the value from call to call."""
        dims = editor.dims(self.value, {self.frames.axis: rows})
        return editor.add_past(self.node, kind, editor.known.types[self.value], dims)

    def last(self, emit: Emitter, value: ir.Value, rows: int) -> ir.Value:
        """Return the last rows of the chunk, for the next call, of a value that ends with its frames."""
        overlap = self.frames.overlap
        return emit.sliced(value, [self.frames.axis], [-(rows + overlap)], [-overlap or TO_THE_END])

    def without_missing(self, editor: Editor, value: ir.Value, early: ArrayLike) -> ir.Value:
        """Return what the node reads, with these numbers for the frames that are missing because of a delay.

        Args:
            value: What the node reads.
            early: The numbers: one, or an array with an entry for each frame of delay along the axis of the frames.
        """
        delay, axis, dtype = self.frames.delay, self.frames.axis, editor.known.types[self.value]
        if not delay:
            return value
        emit, numbers = editor.before(self.node), np.atleast_1d(np.asarray(early, dtype.numpy()))
        missing, fill = missing_frames(editor, delay), emit.constant(numbers, dtype)
        if numbers.size > 1:
            index = frame_indices(editor, delay.rate)
            within = emit("Where", missing, index, editor.start.counts([delay.frames - 1]))
            fill = emit("Gather", fill, within, axis=axis)
        if editor.own_frames(delay.rate) != 1:
            missing = emit.along(missing, axis, len(editor.known.shapes[self.value]))
        return emit.chosen(missing, fill, value, dtype)


# Values that meet in a node: their frames must be the same, and the earlier ones wait for the latest. `joined`
# decides the common framing. An operator that looks ahead returns a late value (`Frames.ready`): `wait` delays
# the earlier values that it meets. Example: with delay 2 and chunks of 3 frames, the first chunk holds [missing,
# missing, frame 0] and the second [frame 1, frame 2, frame 3].


def joined(flow: Flow, node: ir.Node, slots: Sequence[int]) -> tuple[Frames | Unframed | None, dict[int, int]]:
    """Return the common framing of the inputs of a node, and the axis of the frames by input slot."""
    values = {slot: v for slot in slots if (v := node.inputs[slot]) is not None}
    framings = [m for v in values.values() if isinstance(m := flow.framings.get(v), Frames)]
    framings.sort(key=lambda frames: frames.ready)
    by_slot: dict[int, Frames] = {}
    last = False
    for slot, value in values.items():
        first = flow.framings.get(value)
        if isinstance(first, FirstFrame) and framings and operator_of(node).elementwise:
            flow.keep(node, partial(_keep_first, node, value, slot))
            continue
        constant = next((same for own in framings if (same := _in_every_frame(flow, value, own)) is not None), None)
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
    rates: dict[ir.Value, set[Fraction]] = {}
    for slot, framing in by_slot.items():
        for source, frames in _sources(flow, input_of(node, slot)).items():
            rates.setdefault(source, set()).add(frames.rate / framing.rate)
    timed = {v: f.axis for v, f in flow.framings.items() if v.is_graph_input() and isinstance(f, Frames)}
    counts = {source: min(numbers) for source, numbers in rates.items() if len(numbers) == 1}
    if len({framing.rate for framing in by_slot.values()}) == 1 or counts.keys() != timed.keys():
        return ""
    whole = math.lcm(*(count.denominator for count in counts.values()))
    fewest = {source: int(count * whole) for source, count in counts.items()}
    texts = (f"{v.name}:{timed[v]}={n // math.gcd(*fewest.values())}" for v, n in fewest.items())
    return " ".join(f"--stream {quote(text)}" for text in texts)


def _sources(flow: Flow, value: ir.Value) -> dict[ir.Value, Frames]:
    """Return the inputs of the model whose frames are in a value."""

    def before(current: ir.Value) -> list[ir.Value]:
        node = current.producer() if isinstance(flow.framings.get(current), Frames) else None
        return [] if node is None else values_used(node)

    sources = ((v, flow.framings.get(v)) for v in reached([value], before) if v.is_graph_input())
    return {source: framing for source, framing in sources if isinstance(framing, Frames)}


def _in_every_frame(flow: Flow, value: ir.Value, frames: Frames) -> Frames | None:
    """Return the framing of a value that is equal in every frame, if its size matches `frames`."""
    dims = flow.known.shapes.get(value, ())
    timed = [axis for axis, dim in enumerate(dims) if dim.varies]
    if value in flow.framings or numbers_vary(flow.known, value) or len(timed) != 1:
        return None
    return replace(frames, axis=timed[0]) if dims[timed[0]] == frames.size() else None


def _length(flow: Flow, node: ir.Node, slot: int, values: Sequence[ir.Value]) -> Unframed | None:
    """Return the framing of a number computed from the length, if a node reads it with a pooled value."""
    value = node.inputs[slot]
    numbers = flow.known.numbers(value) if value is not None and numbers_vary(flow.known, value) else None
    if value is None or numbers is None or len(numbers) != 1 or flow.framings.get(value) is not None:
        return None
    form, dtype = linear(in_whole(numbers[0])), flow.known.types[value]
    last = all(flow.framings.get(v) is Unframed.LAST for v in values if v is not value)
    if form is None or not last or not (dtype.is_floating_point() or all(n.denominator == 1 for n in form)):
        return None
    flow.change(node, _count_so_far, slot, *form, flow.known.shapes[value], dtype)
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
    wait(flow, FramesRead(node, value, framing), slot, past, drop)


def wait(flow: Flow, read: FramesRead, slot: int, past: int, drop: int) -> None:
    """Delay an input of a node until it has the delay of the other inputs.

    Args:
        read: What the node reads.
        slot: The slot of the input.
        past: The number of frames of the added delay.
        drop: The number of frames at the end of the input that only the next chunk uses.
    """
    node, frames = read.node, read.frames

    def delayed(editor: Editor, value: ir.Value) -> ir.Value:
        emit = editor.before(node)
        if past:
            state = read.past_input(editor, "x", past)
            value = emit("Concat", state, value, axis=frames.axis)
            editor.add_present(state, read.last(emit, value, past))
        return emit.sliced(value, [frames.axis], [0], [-drop])

    def make(editor: Editor) -> None:
        source = input_of(node, slot)
        key = ("wait", source, home(node), frames.axis, past, frames.overlap, drop)
        node.replace_input_with(slot, editor.once(key, lambda: delayed(editor, source)))

    flow.keep(node, make, carries=past > 0)


def _keep_first(node: ir.Node, value: ir.Value, slot: int, editor: Editor) -> None:
    """Let a node read a value of frame 0 in each chunk: it is a state, and in the first call that of the chunk."""
    first = input_of(node, slot)

    def kept() -> ir.Value:
        past = editor.add_past(node, "x", editor.known.types[value], editor.dims(value))
        chosen = past_or_first(editor, node, past, first)
        editor.add_present(past, chosen)
        return chosen

    node.replace_input_with(slot, editor.once(("first", first, home(node)), kept))


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


# Operators that compute each frame from that frame only


def frame_by_frame(flow: Flow, node: ir.Node) -> list[Framing]:
    """Return the framings of the outputs of a node that computes each frame from that frame only.

    Raises:
        UnsupportedError: The node reads other frames, or its rule is not known.
    """
    slots = [n for n, value in enumerate(node.inputs) if value is not None][: operator_of(node).data or None]
    _check_sizes(flow, node, slots)
    edits = len(flow.edits)
    framing, axes = joined(flow, node, slots)
    outputs = [v for v in node.outputs if v.name]
    if not isinstance(framing, Frames):
        _check_spread(flow, node, slots, framing)
        return [framing] * len(outputs)
    if operator_of(node).keeps_order and node.op_type != "Identity":
        return [_rearranged(flow, node, slots[0], v) for v in outputs]
    known = known_axes(flow, node)
    places = _places(flow, node, known, axes)
    check_parameters(flow, node, known, axes, slots)
    if len(places) > 1 or None in places:
        raise flow.refuse(
            node,
            "compares frames with each other: they are on different axes of its inputs",
            "transpose one of them",
        )
    axis = next(place for place in places if place is not None)
    framed = flow.resized if len(flow.edits) > edits else flow.framed
    return [framed(node, v, replace(framing, axis=axis)) for v in outputs]


def _rearranged(flow: Flow, node: ir.Node, slot: int, output: ir.Value) -> Frames | Unframed | None:
    """Return the framing of an output that reshapes an input and keeps the order of its elements."""
    value = input_of(node, slot)
    framing = flow.read(value, node)
    if not isinstance(framing, Frames):
        return framing
    before, after = flow.shape(value, node), flow.shape(output, node)
    if after[: framing.axis + 1] == before[: framing.axis + 1]:
        return flow.framed(node, output, framing)
    inner_total = product(before[framing.axis + 1 :]) * framing.inner
    outer_total = product(before[: framing.axis]) * framing.outer
    for axis in range(len(after)):
        inner = inner_total.divided(product(after[axis + 1 :]))
        outer = outer_total.divided(product(after[:axis]))
        if inner is None or outer is None or not outer.is_integral:
            continue
        moved = _at_rate(replace(framing, axis=axis, outer=outer), inner)
        if moved is not None and moved.size() == after[axis]:
            return flow.resampled(node, output, framing, moved)
    raise flow.refuse(
        node,
        "mixes the frames with other axes",
        "did the exporter fix the batch size or a length? Export with dynamic axes, or open one (--open-dim)",
    )


def _at_rate(framing: Frames, inner: Size) -> Frames | None:
    """Return the framing at which `inner` elements become frames: their number multiplies the rate."""
    times = inner.constant
    if times is None:
        return replace(framing, inner=inner) if inner.is_integral else None
    extra, ready = framing.extra * times, framing.ready * times
    if times <= 0 or extra.denominator > 1 or ready.denominator > 1:
        return None
    return replace(framing, inner=ONE, extra=int(extra), ready=int(ready), rate=framing.rate * times)


def _check_sizes(flow: Flow, node: ir.Node, data: Sequence[int]) -> None:
    """Refuse sizes and axes that depend on the frames, or on their number if the operator has no size input."""
    for value in (v for n, v in enumerate(node.inputs) if v is not None and n not in data):
        if flow.framings.get(value) is not None:
            flow.read(value, node)
            raise flow.refuse(node, f"takes a size from the stream: '{value.name}'", "compute it from a shape")
        if numbers_vary(flow.known, value) and not operator_of(node).sized:
            raise flow.refuse(
                node,
                f"'{value.name}' depends on the number of frames, which a stream never knows",
                "only sizes may depend on it",
            )


def _check_spread(flow: Flow, node: ir.Node, data: Sequence[int], framing: Unframed | None) -> None:
    """Refuse a size that depends on the number of frames, unless it repeats one element without frames."""
    if not any(numbers_vary(flow.known, v) for n, v in enumerate(node.inputs) if v is not None and n not in data):
        return
    if framing is Unframed.LAST:
        raise flow.refuse(
            node,
            "spreads a value that is known only after the last frame over all frames",
            "make that value an output",
        )
    before, after = flow.shape(input_of(node, data[0]), node), flow.shape(node.outputs[0], node)
    padded = (ONE,) * (len(after) - len(before)) + before
    once = all(old == ONE for old, dim in zip(padded, after, strict=True) if dim.varies)
    if node.op_type not in ("Expand", "Tile") or not once or not any(dim.varies for dim in after):
        raise flow.refuse(
            node,
            f"gives '{node.outputs[0].name}' a size that depends on the number of frames, but no data with frames",
            "compute it from values with frames",
        )


def check_parameters(flow: Flow, node: ir.Node, known: Axes, axes: Mapping[int, int], slots: Iterable[int]) -> None:
    """Refuse an input with an entry for each frame of a fixed length: the axis that meets the frames has size 1.

    Args:
        known: How the node's axes meet.
        axes: The axis of the frames, by slot.
        slots: The inputs that the node reads as data.
    """
    of_frames = {known.label(slot, axis) for slot, axis in axes.items()}
    for slot in slots:
        value = input_of(node, slot)
        labels = known.inputs.get(slot)
        if labels is not None and of_frames.isdisjoint(labels):
            continue
        for axis, dim in enumerate(flow.shape(value, node)):
            meets = labels is None or known.label(slot, axis) in of_frames
            if meets and dim != ONE and axis != axes.get(slot):
                raise flow.refuse(
                    node,
                    f"axis {axis} of '{value.name}' has size {dim} and meets the frames, but has none itself",
                    f"name it in --stream too: '{value.name}:{axis}'"
                    if value.is_graph_input()
                    else "give it size 1 there, or export with a dynamic time axis",
                )


def _places(flow: Flow, node: ir.Node, known: Axes, axes: Mapping[int, int]) -> set[int | None]:
    """Return the axes of the output that hold the frames, from their axis in each input; None for an unknown one.

    Raises:
        UnsupportedError: The node acts along the frames.
    """
    places: set[int | None] = set()
    for slot, axis in axes.items():
        label = known.label(slot, axis)
        if label is not None and label not in known.output:
            raise flow.refuse(
                node,
                f"looks beyond its frame: it acts along axis {axis}, which holds the frames",
                "let it act along another axis",
            )
        places.add(None if label is None else known.output.index(label))
    return places


def coupled_axes(flow: Flow, node: ir.Node) -> list[int]:
    """Return the axes of the first input along which a node acts; none if unknown."""
    known = _axes_of(flow, node)
    return [] if known is None else [n for n, label in enumerate(known.inputs[0]) if label not in known.output]


def known_axes(flow: Flow, node: ir.Node) -> Axes:
    """Return how the axes of a node's inputs become those of its output; refuse the node if that is unknown."""
    known = _axes_of(flow, node)
    if known is None:
        raise flow.refuse(
            node,
            "is not known to act on each frame alone",
            "docs/streaming-reference.md lists the operators that a stream can contain",
        )
    return known


def _axes_of(flow: Flow, node: ir.Node) -> Axes | None:
    """Return how the axes of a node's inputs become those of its output; None if unknown."""
    numbers = partial(constants_of, flow.known, node)
    return axes_by_rule(node, flow.opset, lambda value: flow.shape(value, node), numbers)
