"""The states of recurrent nodes: their inputs and outputs, and rows and calls in which they stay as they are."""

from __future__ import annotations

import onnx_ir as ir

from rnn_lowering.emit.versions import TO_THE_END
from rnn_lowering.streaming.editor import Editor, Emitter, input_of
from rnn_lowering.streaming.frames.delays import missing_frames
from rnn_lowering.streaming.frames.frame_counts import frames_before, numbers_in_call
from rnn_lowering.streaming.frames.framing import Delay


def state_slots(node: ir.Node) -> dict[str, tuple[int, int]]:
    """Return the kinds of states that a recurrent node has, each with the input and the output that hold it."""
    if node.op_type == "Scan":
        states = len(node.inputs) - (node.attributes.get_int("num_scan_inputs", 0) or 0)
        return {f"state{n}": (n, n) for n in range(states)}
    if node.op_type == "LinearAttention":
        return {"s": (3, 1)}
    return {"h": (5, 1)} | ({"c": (6, 2)} if node.op_type == "LSTM" else {})


def lengths_of(node: ir.Node) -> ir.Value | None:
    """Return sequence_lens of a recurrent node."""
    return node.inputs[4] if "h" in state_slots(node) and len(node.inputs) > 4 else None


def steps_and_batch(node: ir.Node) -> tuple[int, int]:
    """Return the axes of the steps and of the batch in X and Y of an RNN, GRU or LSTM."""
    return (1, 0) if node.attributes.get_int("layout", 0) == 1 else (0, 1)


def keep_where_empty(editor: Editor, node: ir.Node, output: ir.Value, past: ir.Value) -> ir.Value:
    """Keep the past state in rows of length 0, for all readers of the final state, and return the result."""
    emit, lengths = editor.after(node), input_of(node, 4)
    empty = emit("Equal", lengths, emit.constant([0], ir.DataType.INT32))
    mask = emit("Unsqueeze", empty, axes=[steps_and_batch(node)[0], 2])
    kept = emit("Where", mask, past, output)
    kept.type = past.type
    emit.instead_of(output, kept)
    return kept


def held_until_first(editor: Editor, node: ir.Node, delay: Delay, final: ir.Value, initial: ir.Value) -> ir.Value:
    """Return the final state of a recurrent node, or the initial state if the chunk holds missing frames only."""
    emit, none_has = editor.after(node), missing_frames(editor, delay)
    if editor.own_frames(delay.rate) != 1:
        none_has = emit.sliced(none_has, [0], [-1], [TO_THE_END])
    kept = emit("Where", none_has, initial, final)
    emit.instead_of(final, kept)
    return kept


def skip_missing(editor: Editor, node: ir.Node, delay: Delay, dtype: ir.DataType) -> None:
    """Start a recurrent node at its frame 0: move the missing frames to the end, beyond `sequence_lens`."""
    if editor.own_frames(delay.rate) == 1:
        return
    start, counts = editor.start, editor.start.counts
    sequence, batch = steps_and_batch(node)
    number, turns = numbers_in_call(editor, delay.rate)
    skipped = _clipped(start, start("Sub", counts([delay.frames]), frames_before(editor, delay.rate)), number)
    last = start("Sub", number, counts([1]))
    taken = _clipped(start, start("Add", turns, skipped), last)
    put = _clipped(start, start("Sub", turns, skipped), last)
    there = start("Sub", number, skipped)
    x, y, emit = input_of(node), node.outputs[0], editor.before(node)
    moved = emit("Gather", x, taken, axis=sequence)
    rows = emit("Gather", emit("Shape", x), emit.constant([batch]), axis=0)
    lengths = emit("Expand", emit("Cast", there, to=ir.DataType.INT32.value), rows)
    node.resize_inputs(max(len(node.inputs), 5))
    node.replace_input_with(0, moved)
    node.replace_input_with(4, lengths)
    if y.name:
        behind = editor.after(node)
        back = behind("Gather", y, put, axis=sequence)
        back.type = ir.TensorType(dtype)
        behind.instead_of(y, back)


def _clipped(emit: Emitter, number: ir.Value, most: ir.Value) -> ir.Value:
    """Clip numbers to 0 and a maximum."""
    zero = emit.counts([0])
    number = emit("Where", emit("Less", number, zero), zero, number)
    return emit("Where", emit("Less", most, number), most, number)
