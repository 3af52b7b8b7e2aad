"""Values with a delay: a node before them reads future frames.

A value with delay 2 starts with 2 missing frames. Until frame 0 comes, states keep their initial values, and nodes
read the padding. A state counts the frames so far, and so tells which frames are missing.

Example: with delay 2 and chunks of 3 frames, the first chunk holds [missing, missing, frame 0] and the second
[frame 1, frame 2, frame 3].
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import onnx_ir as ir

from rnn_lowering.emit.versions import TO_THE_END
from rnn_lowering.errors import UnsupportedError
from rnn_lowering.model.scopes import ORIGIN
from rnn_lowering.spec.node_spec import node_ref
from rnn_lowering.streaming.edit import Editor, NodeEdit, Path, dim_of, home, producer
from rnn_lowering.streaming.inference import Shape
from rnn_lowering.streaming.metadata import State
from rnn_lowering.types import Array


@dataclass(frozen=True)
class Delay:
    """By how many of its frames a value is late, and its rate: frames of the value per frame of the stream.

    A delay of 0 frames is false.
    """

    frames: int
    rate: Fraction

    def __bool__(self) -> bool:
        return self.frames > 0


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
        index = _index(editor, delay)
        (within,) = editor.node("Where", [missing, index, editor.counts([delay.frames - 1])])
        (fill,) = editor.node("Gather", [fill, within], axis=axis)
        graph.insert_before(node, [producer(within), producer(fill)])
    if _count(editor, delay) != 1:
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
    if _count(editor, delay) != 1:
        none_has = editor.sliced(none_has, graph, [0], [-1], [TO_THE_END])
        new.append(none_has)
    (kept,) = editor.node("Where", [none_has, initial, final])
    editor.put_behind(final, kept, [*new, kept])
    return kept


def skip_missing(editor: Editor, node: ir.Node, delay: Delay, dtype: ir.DataType) -> None:
    """Start a recurrent node at its frame 0: move the missing frames to the end, beyond `sequence_lens`."""
    if _count(editor, delay) == 1:
        return
    graph = home(node)
    sequence, batch = (1, 0) if node.attributes.get_int("layout", 0) == 1 else (0, 1)
    number, turns = _numbers(editor, delay)
    skipped = _clipped(
        editor, _calculated(editor, "Sub", editor.counts([delay.frames]), _start(editor, delay)), number
    )
    last = _calculated(editor, "Sub", number, editor.counts([1]))
    taken = _clipped(editor, _calculated(editor, "Add", turns, skipped), last)
    put = _clipped(editor, _calculated(editor, "Sub", turns, skipped), last)
    there = _calculated(editor, "Sub", number, skipped)
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


def after_the_start(editor: Editor, node: ir.Node, past: ir.Value, first: ir.Value) -> ir.Value:
    """Return `past` if there were frames before this call, else `first`, for a node."""
    if "after the start" not in editor.made:
        zero = editor.counts([0])
        editor.made["after the start"] = _calculated(editor, "Less", zero, _so_far(editor))
    (chosen,) = editor.node("Where", [editor.made["after the start"], past, first])
    chosen.type = past.type
    home(node).insert_before(node, [producer(chosen)])
    return chosen


def counts_so_far(editor: Editor, delay: Delay) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Return three counts of frames: real before this call, all in this call, real so far (at least 1)."""
    key = ("counts", delay)
    before, own = _start(editor, delay), _number(editor, delay)
    if not delay:
        if key not in editor.made:
            editor.made[key] = _calculated(editor, "Add", before, own)
        return before, own, editor.made[key]
    missing, bounds = editor.counts([delay.frames]), []
    for number, least in ((before, 0), (_calculated(editor, "Add", before, own), 1)):
        bound = editor.counts([least])
        true = _calculated(editor, "Sub", number, missing)
        bounds.append(_calculated(editor, "Where", _calculated(editor, "Less", true, bound), bound, true))
    return bounds[0], own, bounds[1]


@dataclass(frozen=True)
class LengthSoFar(NodeEdit):
    """A number computed from the length, recomputed from the frames seen so far.

    Attributes:
        slot: The input slot of the number.
        factor, offset: The number is frames * `factor` + `offset`.
        shape, dtype: Shape and element type of the number.
    """

    node: ir.Node
    slot: int
    factor: Fraction
    offset: Fraction
    shape: tuple[int, ...]
    dtype: ir.DataType
    carries = False

    def apply(self, editor: Editor) -> None:
        graph = home(self.node)
        _, _, total = counts_so_far(editor, Delay(0, Fraction(1)))
        number = of_type(editor, self.node, total, self.dtype)
        made = [] if number is total else [number]
        for op_type, by in (("Mul", self.factor), ("Add", self.offset)):
            held = editor.constant(np.array([float(by)]).astype(self.dtype.numpy()), graph)
            (number,) = editor.node(op_type, [number, held])
            made.append(number)
        (number,) = editor.node("Reshape", [number, editor.integers(self.shape, graph)])
        graph.insert_before(self.node, [producer(value) for value in (*made, number)])
        self.node.replace_input_with(self.slot, number)


# Numbers of frames, computed at the start of the main graph


def frames_before(editor: Editor, rate: Fraction) -> ir.Value:
    """Return the number of frames before this call, of a value without a delay: `rate` per frame of the stream."""
    return _start(editor, Delay(0, rate))


def of_type(editor: Editor, node: ir.Node, number: ir.Value, dtype: ir.DataType) -> ir.Value:
    """Return a number of frames in a type, by a Cast that is in no graph yet where it has another.

    Args:
        node: The node that needs it.

    Raises:
        UnsupportedError: It is needed in int64 by a runtime that counts in other integers.
    """
    if dtype == editor.count_type:
        return number
    if dtype == ir.DataType.INT64:
        graph = home(node)
        scope = "main graph" if graph is editor.model.graph else f"branch '{graph.name}'"
        raise UnsupportedError(
            f"reads numbers of frames as int64, and the target counts frames in {editor.count_type.name.lower()}",
            hint="cast the numbers to float in the model, or drop --target",
            node=node.meta.get(ORIGIN) or node_ref(node, scope),
        )
    return editor.node("Cast", [number], to=int(dtype))[0]


def _so_far(editor: Editor) -> ir.Value:
    """The number of frames of the stream before this call."""
    if "so far" not in editor.made:
        past = editor.add_input(editor.name("past_frames_t"), editor.count_type, [1])
        editor.made["so far"] = past
        total = _calculated(editor, "Add", past, _given(editor))
        present = editor.add_output(editor.name("present_frames_t"), total, past, ())
        dtype = editor.count_type.numpy().name
        editor.states.append(State(past.name or "", present.name or "", "", "t", (1,), dtype))
    return editor.made["so far"]


def _given(editor: Editor) -> ir.Value:
    """The number of frames of the stream in this call."""
    time, main = editor.time, editor.model.graph
    assert time is not None
    if time.frames is not None:
        return editor.counts([time.frames])
    if "given" not in editor.made:
        name, axis = next(iter(time.axes.items()))
        source = next(v for v in main.inputs if v.name == name)
        (sizes,) = editor.node("Shape", [source])
        (given,) = editor.node("Gather", [sizes, editor.integers([axis], main)], axis=0)
        editor.at_start([producer(sizes), producer(given)])
        if editor.count_type != ir.DataType.INT64:
            (given,) = editor.node("Cast", [given], to=int(editor.count_type))
            editor.at_start([producer(given)])
        editor.made["given"] = given
    return editor.made["given"]


def _count(editor: Editor, delay: Delay) -> int | None:
    """Return the number of frames in each call of a value with a delay, or None if calls differ."""
    assert editor.time is not None
    return None if editor.time.frames is None else int(editor.time.frames * delay.rate)


def _numbers(editor: Editor, delay: Delay) -> tuple[ir.Value, ir.Value]:
    """Return the number n of frames of a value in this call, and the indices 0 to n - 1."""
    main, count = editor.model.graph, _count(editor, delay)
    if count is not None:
        return editor.counts([count]), editor.counts(range(count))
    if editor.opset < 11:
        raise UnsupportedError(
            "a stream that looks ahead, with any number of frames in a call, needs opset 11",
            hint="convert the model first, or give the number of frames",
        )
    key = ("numbers", delay.rate)
    if key not in editor.made:
        number = _number(editor, delay)
        first, step = (editor.constant(np.array(n, editor.count_type.numpy()), main) for n in (0, 1))
        (scalar,) = editor.node("Squeeze", [number], axes=[0])
        (turns,) = editor.node("Range", [first, scalar, step])
        editor.at_start([producer(scalar), producer(turns)])
        editor.made[key] = turns
    return _number(editor, delay), editor.made[key]


def _number(editor: Editor, delay: Delay) -> ir.Value:
    """Return the number of frames of a value in this call."""
    key = ("number", delay.rate)
    if key not in editor.made:
        editor.made[key] = _at_rate(editor, _given(editor), delay.rate)
    return editor.made[key]


def _start(editor: Editor, delay: Delay) -> ir.Value:
    """Return the number of frames of a value before this call, without its delay."""
    key = ("start", delay.rate)
    if key not in editor.made:
        editor.made[key] = _at_rate(editor, _so_far(editor), delay.rate)
    return editor.made[key]


def _index(editor: Editor, delay: Delay) -> ir.Value:
    """Return the index of each frame of a value in this call, without its delay."""
    key = ("index", delay.rate)
    if key not in editor.made:
        start = _start(editor, delay)
        alone = _count(editor, delay) == 1
        editor.made[key] = start if alone else _calculated(editor, "Add", start, _numbers(editor, delay)[1])
    return editor.made[key]


def missing_frames(editor: Editor, delay: Delay) -> ir.Value:
    """Return a mask of the frames in this call that are missing because of the delay."""
    if editor.opset < 9:
        raise UnsupportedError("a stream that looks ahead needs opset 9", hint="convert the model first")
    if delay not in editor.made:
        limit = editor.counts([delay.frames])
        editor.made[delay] = _calculated(editor, "Less", _index(editor, delay), limit)
    return editor.made[delay]


def _at_rate(editor: Editor, number: ir.Value, rate: Fraction) -> ir.Value:
    for op_type, factor in (("Mul", rate.numerator), ("Div", rate.denominator)):
        if factor != 1:
            number = _calculated(editor, op_type, number, editor.counts([factor]))
    return number


def _clipped(editor: Editor, number: ir.Value, most: ir.Value) -> ir.Value:
    """Clip numbers to 0 and a maximum."""
    zero = editor.counts([0])
    below = _calculated(editor, "Less", number, zero)
    number = _calculated(editor, "Where", below, zero, number)
    return _calculated(editor, "Where", _calculated(editor, "Less", most, number), most, number)


def _calculated(editor: Editor, op_type: str, *inputs: ir.Value) -> ir.Value:
    (result,) = editor.node(op_type, inputs)
    editor.at_start([producer(result)])
    return result
