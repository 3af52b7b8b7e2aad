"""How many frames there were and are: computed at the start of each call, from a state that counts.

Numbers of frames are constants if all calls have the same.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Concatenate, ParamSpec

import onnx_ir as ir

from rnn_lowering.errors import UnsupportedError
from rnn_lowering.streaming.editor import Editor, Emitter
from rnn_lowering.streaming.frames import Delay

P = ParamSpec("P")
_OfModel = Callable[Concatenate[Editor, P], ir.Value]


def _computed_once(compute: _OfModel[P]) -> _OfModel[P]:
    """Let all edits of a model share the value that a function computes."""

    def shared(editor: Editor, /, *args: P.args, **kwargs: P.kwargs) -> ir.Value:
        key = (compute.__name__, args, tuple(kwargs.items()))
        return editor.once(key, lambda: compute(editor, *args, **kwargs))

    return shared


@_computed_once
def _so_far(editor: Editor) -> ir.Value:
    """Return the number of frames of the stream before this call, which is a state."""
    past = editor.add_past(None, "t", editor.count_type, [1])
    editor.add_present(past, editor.start("Add", past, _stream_frames(editor)))
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
    return editor.start.as_counts(editor.start.size_of(source, axis))


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


def _check_opset_of_delay(editor: Editor) -> None:
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
    _check_opset_of_delay(editor)
    number = _frames_in_call(editor, rate)
    number = editor.start("Add", number, editor.start.counts([more])) if more else number
    return number, _indices_in_call(editor, number)


@_computed_once
def _indices_in_call(editor: Editor, number: ir.Value) -> ir.Value:
    return editor.start.indices(number)


@_computed_once
def frame_indices(editor: Editor, rate: Fraction, more: int = 0) -> ir.Value:
    """Return the index of each frame of a value in this call, without its delay, and of `more` behind them."""
    first = frames_before(editor, rate)
    alone = editor.own_frames(rate) == 1 and not more
    return first if alone else editor.start("Add", first, numbers_in_call(editor, rate, more)[1])


@_computed_once
def missing_frames(editor: Editor, delay: Delay) -> ir.Value:
    """Return a mask of the frames in this call that are missing because of the delay."""
    _check_opset_of_delay(editor)
    limit = editor.start.counts([delay.frames])
    return editor.start("Less", frame_indices(editor, delay.rate), limit)


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
