"""Numbers of frames that a stream computes in each call, at the start of the main graph."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import onnx_ir as ir

from rnn_lowering.errors import UnsupportedError
from rnn_lowering.model.scopes import ORIGIN
from rnn_lowering.spec.node_spec import node_ref
from rnn_lowering.streaming.editor import Editor, NodeEdit, home, producer
from rnn_lowering.streaming.frames.framing import Delay
from rnn_lowering.streaming.host.metadata import State


def after_the_start(editor: Editor, node: ir.Node, past: ir.Value, first: ir.Value) -> ir.Value:
    """Return `past` if there were frames before this call, else `first`, for a node."""
    if "after the start" not in editor.made:
        zero = editor.counts([0])
        editor.made["after the start"] = at_start(editor, "Less", zero, _so_far(editor))
    (chosen,) = editor.node("Where", [editor.made["after the start"], past, first])
    chosen.type = past.type
    home(node).insert_before(node, [producer(chosen)])
    return chosen


def counts_so_far(editor: Editor, delay: Delay) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Return three counts of frames: real before this call, all in this call, real so far (at least 1)."""
    key = ("counts", delay)
    before, own = frames_before(editor, delay.rate), _number(editor, delay.rate)
    if not delay:
        if key not in editor.made:
            editor.made[key] = at_start(editor, "Add", before, own)
        return before, own, editor.made[key]
    missing, bounds = editor.counts([delay.frames]), []
    for number, least in ((before, 0), (at_start(editor, "Add", before, own), 1)):
        bound = editor.counts([least])
        true = at_start(editor, "Sub", number, missing)
        bounds.append(at_start(editor, "Where", at_start(editor, "Less", true, bound), bound, true))
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
        total = at_start(editor, "Add", past, _given(editor))
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


def numbers_in_call(editor: Editor, rate: Fraction) -> tuple[ir.Value, ir.Value]:
    """Return the number n of frames of a value in this call, and the indices 0 to n - 1."""
    main, count = editor.model.graph, editor.own_frames(rate)
    if count is not None:
        return editor.counts([count]), editor.counts(range(count))
    if editor.opset < 11:
        raise UnsupportedError(
            "a stream that looks ahead, with any number of frames in a call, needs opset 11",
            hint="convert the model first, or give the number of frames",
        )
    key = ("numbers", rate)
    if key not in editor.made:
        number = _number(editor, rate)
        first, step = (editor.constant(np.array(n, editor.count_type.numpy()), main) for n in (0, 1))
        (scalar,) = editor.node("Squeeze", [number], axes=[0])
        (turns,) = editor.node("Range", [first, scalar, step])
        editor.at_start([producer(scalar), producer(turns)])
        editor.made[key] = turns
    return _number(editor, rate), editor.made[key]


def _number(editor: Editor, rate: Fraction) -> ir.Value:
    """Return the number of frames of a value in this call."""
    key = ("number", rate)
    if key not in editor.made:
        editor.made[key] = _at_rate(editor, _given(editor), rate)
    return editor.made[key]


def frames_before(editor: Editor, rate: Fraction) -> ir.Value:
    """Return the number of frames before this call of a value with this rate and no delay."""
    key = ("start", rate)
    if key not in editor.made:
        editor.made[key] = _at_rate(editor, _so_far(editor), rate)
    return editor.made[key]


def frame_indices(editor: Editor, rate: Fraction) -> ir.Value:
    """Return the index of each frame of a value in this call, without its delay."""
    key = ("index", rate)
    if key not in editor.made:
        start = frames_before(editor, rate)
        alone = editor.own_frames(rate) == 1
        editor.made[key] = start if alone else at_start(editor, "Add", start, numbers_in_call(editor, rate)[1])
    return editor.made[key]


def _at_rate(editor: Editor, number: ir.Value, rate: Fraction) -> ir.Value:
    for op_type, factor in (("Mul", rate.numerator), ("Div", rate.denominator)):
        if factor != 1:
            number = at_start(editor, op_type, number, editor.counts([factor]))
    return number


def at_start(editor: Editor, op_type: str, *inputs: ir.Value) -> ir.Value:
    """Return the output of a new node at the start of the main graph."""
    (result,) = editor.node(op_type, inputs)
    editor.at_start([producer(result)])
    return result
