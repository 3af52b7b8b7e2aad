"""What aligns frames: how many there are, edits of a node along them, and values that meet in a node.

Numbers of frames are constants if all calls have the same, and else computed at the start of each call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from shlex import quote
from typing import Concatenate, ParamSpec

import numpy as np
import onnx_ir as ir

from rnn_lowering.errors import UnsupportedError
from rnn_lowering.facts.numbers import numbers_vary
from rnn_lowering.facts.operators import TO_THE_END, operator_of, values_used
from rnn_lowering.facts.size import Shape, size
from rnn_lowering.streaming.editor import Editor, Emitter, NodeEdit, home, input_of
from rnn_lowering.streaming.frames import NO_DELAY, Delay, FirstFrame, Flow, FrameNumbers, Frames, Unframed
from rnn_lowering.streaming.sizes import in_chunk, in_whole, linear
from rnn_lowering.types import Array, ArrayLike

P = ParamSpec("P")
_OfModel = Callable[Concatenate[Editor, P], ir.Value]


def _computed_once(compute: _OfModel[P]) -> _OfModel[P]:
    """Let all edits of a model share the value that a function computes."""

    def shared(editor: Editor, /, *args: P.args, **kwargs: P.kwargs) -> ir.Value:
        key = (compute.__name__, args, tuple(kwargs.items()))
        if key not in editor.made:
            editor.made[key] = compute(editor, *args, **kwargs)
        return editor.made[key]

    return shared


@_computed_once
def _so_far(editor: Editor) -> ir.Value:
    """Return the number of frames of the stream before this call, which is a state."""
    past = editor.add_past(None, "t", editor.count_type, [1])
    editor.add_present(None, "t", past, editor.start("Add", past, _stream_frames(editor)))
    return past


def _stream_frames(editor: Editor) -> ir.Value:
    """Return the number of frames of the stream in this call."""
    fixed = editor.time.frames
    return _size_of_input(editor) if fixed is None else editor.start.counts([fixed])


@_computed_once
def _size_of_input(editor: Editor) -> ir.Value:
    """Return the number of frames of the stream in this call, from the shape of an input."""
    name, axis = next(iter(editor.time.axes.items()))
    source = next(v for v in editor.model.graph.inputs if v.name == name)
    start = editor.start
    return start.as_counts(start("Gather", start("Shape", source), start.constant([axis]), axis=0))


@_computed_once
def frames_before(editor: Editor, rate: Fraction) -> ir.Value:
    """Return the number of frames before this call of a value with this rate and no delay."""
    return _at_rate(editor.start, _so_far(editor), rate)


@_computed_once
def _frames_in_call(editor: Editor, rate: Fraction) -> ir.Value:
    return _at_rate(editor.start, _stream_frames(editor), rate)


def _at_rate(emit: Emitter, number: ir.Value, rate: Fraction) -> ir.Value:
    for op_type, factor in (("Mul", rate.numerator), ("Div", rate.denominator)):
        if factor != 1:
            number = emit(op_type, number, emit.counts([factor]))
    return number


def check_opset_of_delay(editor: Editor) -> None:
    """Refuse a state behind a look-ahead if the opset lacks an operator for it.

    Raises:
        UnsupportedError: It is older than 9, or 11 if calls may have any number of frames.
    """
    if editor.own_frames(Fraction(1)) is not None:
        if editor.opset < 9:
            raise UnsupportedError(
                "a state behind a look-ahead needs opset 9", hint="convert the model first: onnx.version_converter"
            )
    elif editor.opset < 11:
        first = "convert it to opset 9 and " if editor.opset < 9 else ""
        raise UnsupportedError(
            "a state behind a look-ahead, with any number of frames in a call, needs opset 11",
            hint=f"convert the model first (onnx.version_converter), or {first}give the number of frames",
        )


def numbers_in_call(editor: Editor, rate: Fraction, more: int = 0) -> tuple[ir.Value, ir.Value]:
    """Return the number n of frames of a value in this call, with `more` than the stream has, and the indices 0 to
    n - 1."""
    count = editor.own_frames(rate)
    if count is not None:
        return editor.start.counts([count + more]), editor.start.counts(range(count + more))
    check_opset_of_delay(editor)
    number = _frames_in_call(editor, rate)
    number = editor.start("Add", number, editor.start.counts([more])) if more else number
    return number, _indices_in_call(editor, number)


@_computed_once
def _indices_in_call(editor: Editor, number: ir.Value) -> ir.Value:
    start = editor.start
    first, step = (start.constant(n, editor.count_type) for n in (0, 1))
    return start("Range", first, start("Squeeze", number, axes=[0]), step)


@_computed_once
def frame_indices(editor: Editor, rate: Fraction, more: int = 0) -> ir.Value:
    """Return the index of each frame of a value in this call, without its delay, and of `more` behind them."""
    first = frames_before(editor, rate)
    alone = editor.own_frames(rate) == 1 and not more
    return first if alone else editor.start("Add", first, numbers_in_call(editor, rate, more)[1])


def missing_frames(editor: Editor, delay: Delay) -> ir.Value:
    """Return a mask of the frames in this call that are missing because of the delay."""
    check_opset_of_delay(editor)
    if delay not in editor.made:
        limit = editor.start.counts([delay.frames])
        editor.made[delay] = editor.start("Less", frame_indices(editor, delay.rate), limit)
    return editor.made[delay]


@_computed_once
def _frames_after(editor: Editor, rate: Fraction) -> ir.Value:
    return editor.start("Add", frames_before(editor, rate), _frames_in_call(editor, rate))


def counts_so_far(editor: Editor, delay: Delay) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Return three counts of frames: real before this call, all in this call, real so far (at least 1)."""
    before, own, start = frames_before(editor, delay.rate), _frames_in_call(editor, delay.rate), editor.start
    if not delay:
        return before, own, _frames_after(editor, delay.rate)
    missing, counts = start.counts([delay.frames]), []
    for number, minimum in ((before, 0), (start("Add", before, own), 1)):
        bound = start.counts([minimum])
        real = start("Sub", number, missing)
        counts.append(start("Where", start("Less", real, bound), bound, real))
    return counts[0], own, counts[1]


@_computed_once
def _has_begun(editor: Editor, scalar: bool) -> ir.Value:
    """Return whether there were frames before this call, in the shape [], or [1] for values with axes."""
    if scalar:
        return editor.start("Squeeze", _has_begun(editor, False), axes=[0])
    zero = editor.start.counts([0])
    return editor.start("Less", zero, _so_far(editor))


def past_or_first(editor: Editor, node: ir.Node, past: ir.Value, first: ir.Value) -> ir.Value:
    """Return `past` if there were frames before this call, else `first`, for a node."""
    begun = _has_begun(editor, past.shape is not None and len(past.shape) == 0)
    chosen = editor.before(node).chosen(begun, past, first, past.dtype or ir.DataType.FLOAT)
    chosen.type = past.type
    return chosen


def of_type(emit: Emitter, node: ir.Node, number: ir.Value, dtype: ir.DataType) -> ir.Value:
    """Return a number of frames in a type.

    Args:
        emit: What emits a Cast if the number has another type.
        node: The node that reads it.

    Raises:
        UnsupportedError: It is needed in int64 by a runtime that counts in other integers.
    """
    editor = emit.editor
    if dtype == editor.count_type:
        return number
    if dtype == ir.DataType.INT64:
        raise UnsupportedError(
            f"reads numbers of frames as int64, and the target counts frames in {editor.count_type.name.lower()}",
            hint="cast the numbers to float in the model, or drop --target",
            node=editor.ref(node),
        )
    return emit("Cast", number, to=int(dtype))


_MOST_ELEMENTS = 64
"""Maximum elements of a value that becomes a constant."""


def fold_sizes(flow: Flow, editor: Editor) -> None:
    """Replace integers that are equal in every call with constants, since most runtimes do not fold them. The nodes
    that computed them become unused."""
    frames = editor.time.frames
    numbered = [value for value, framing in flow.framings.items() if isinstance(framing, FrameNumbers)]
    for value in [*flow.known.contents, *numbered]:
        node, dtype = value.producer(), flow.known.types.get(value)
        if node is None or node.op_type == "Constant" or not value.uses() or value.is_graph_output():
            continue
        if dtype is None or not dtype.is_integer():
            continue
        array = _numbers_in_chunk(flow, value, frames)
        if array is not None and node.graph is not None:
            constant = editor.constant(array.astype(dtype.numpy()), home(node))
            value.replace_all_uses_with(constant)


def _numbers_in_chunk(flow: Flow, value: ir.Value, frames: int | None) -> Array | None:
    """Return the numbers of a value if every chunk has the same; None otherwise."""
    framing = flow.framings.get(value)
    if isinstance(framing, FrameNumbers):
        count = in_chunk(framing.frames.size(), frames)
        few = count is not None and count * framing.offsets.size <= _MOST_ELEMENTS
        return framing.of_first(count) if few and count is not None else None
    shape = [in_chunk(dim, frames) for dim in flow.known.shapes.get(value, (size(_MOST_ELEMENTS + 1),))]
    if None in shape or np.prod([float(n or 0) for n in shape]) > _MOST_ELEMENTS:
        return None
    whole = np.broadcast_to(flow.known.contents[value], [int(n or 0) for n in shape])
    numbers = [in_chunk(size(n), frames) for n in whole.reshape(-1).tolist()]
    return None if None in numbers else np.array(numbers, np.int64).reshape(whole.shape)


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
            axes = range(len(editor.known.shapes[self.value]))
            missing = emit("Reshape", missing, emit.constant([-1 if n == axis else 1 for n in axes]))
        return emit.chosen(missing, fill, value, dtype)


@dataclass(frozen=True)
class FramesEdit(FramesRead, NodeEdit):
    """An edit of a node along the frames that it reads, which may add a state."""


def set_attributes(editor: Editor, node: ir.Node, attributes: Mapping[str, ir.Attr | None]) -> None:
    """Set attributes of a node, and remove those that are None."""
    for name, attribute in attributes.items():
        if attribute is None:
            node.attributes.pop(name, None)
        else:
            node.attributes[name] = attribute


def wide_type(dtype: ir.DataType) -> ir.DataType:
    """Return the type in which numbers of a type are summed over the frames so far."""
    return ir.DataType.FLOAT if dtype in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16) else dtype


def summed_in_float32(editor: Editor, node: ir.Node, slots: Sequence[int], dtype: ir.DataType) -> ir.DataType:
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


# Values that meet in a node: their frames must be the same, and the earlier ones wait for the latest. `joined`
# decides the common framing. An operator that looks ahead returns a late value (`Frames.ready`): `Wait` delays
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
            flow.edits.append(KeepFirst(node, value, slot))
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
    seen, pending = dict[ir.Value, Frames](), [value]
    while pending:
        current = pending.pop()
        framing = flow.framings.get(current)
        if current not in seen and isinstance(framing, Frames):
            seen[current] = framing
            node = current.producer()
            pending += [] if node is None else values_used(node)
    return {source: framing for source, framing in seen.items() if source.is_graph_input()}


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
