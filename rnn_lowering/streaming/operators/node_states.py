"""The state of a recurrent node or Scan becomes an input and an output of the model (`expose_state`).

A state does not change in rows of length 0, nor before frame 0 if the frames are late.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import onnx_ir as ir

from rnn_lowering.errors import UnsupportedError
from rnn_lowering.facts.operators import TO_THE_END, input_at, is_used
from rnn_lowering.nodes.kinds import cell_of, has_cell
from rnn_lowering.streaming.counts import frames_before, missing_frames, numbers_in_call, past_or_first
from rnn_lowering.streaming.editor import Editor, dim_of, input_of, label_of
from rnn_lowering.streaming.flow import Flow, StatefulNode
from rnn_lowering.streaming.frames import Delay
from rnn_lowering.streaming.metadata import Dim
from rnn_lowering.streaming.operators.pooling import wide_type
from rnn_lowering.types import Array


@dataclass(frozen=True)
class NodeState:
    """A state of one recurrent node, and its source.

    Attributes:
        recurrent: The node.
        kind: "h", "c", "s", or "state0" and so on of a Scan.
        constant: The initial value if it is constant: an array that broadcasts to the state.
        input: The model input that is the initial value. Without a constant or an input, the model computes the
            initial value from inputs without frames.
        output: The model output that returns the next value of `input`, or None.
    """

    recurrent: StatefulNode
    kind: str
    constant: Array | None
    input: ir.Value | None = None
    output: ir.Value | None = None

    @property
    def node(self) -> ir.Node:
        return self.recurrent.node

    @property
    def slot(self) -> int:
        """The input of the node that holds the state."""
        return state_slots(self.node)[self.kind][0]

    @property
    def initial(self) -> ir.Value | None:
        """The initial value in the node."""
        return input_at(self.node, self.slot)


def state_slots(node: ir.Node) -> dict[str, tuple[int, int]]:
    """Return the kinds of states of a recurrent node, each with its input slot and its output slot."""
    if node.op_type == "Scan":
        states = len(node.inputs) - (node.attributes.get_int("num_scan_inputs", 0) or 0)
        return {f"state{n}": (n, n) for n in range(states)}
    if node.op_type == "LinearAttention":
        return {"s": (3, 1)}
    return cell_of(node).state_slots()


def lengths_of(node: ir.Node) -> ir.Value | None:
    """Return the sequence_lens of a recurrent node."""
    return input_at(node, 4) if has_cell(node) else None


def steps_and_batch(node: ir.Node) -> tuple[int, int]:
    """Return the axes of the steps and of the batch in X and Y of an RNN, GRU or LSTM."""
    return (1, 0) if node.attributes.get_int("layout", 0) == 1 else (0, 1)


def axis_of_steps(flow: Flow, node: ir.Node) -> str:
    """Return the axis along which an RNN, GRU or LSTM runs, for a message; "" if it is not known."""
    axis, x = steps_and_batch(node)[0], input_of(node)
    with suppress(UnsupportedError, KeyError):
        steps = dim_of(flow.known.shapes[x][axis], axis, x.name)
        return f"'{steps}'" if isinstance(steps, str) else f"an axis of {steps}"
    return ""


def input_name(node: ir.Node, kind: str) -> str:
    """Return the name of the input of a state in the operator's specification."""
    if has_cell(node):
        return f"initial_{kind}"
    return "past_state" if kind == "s" else kind


def dims_of(editor: Editor, state: NodeState) -> list[Dim]:
    """Return the dimensions of a state: those that its input declares, or that the operator specifies."""
    node = state.node
    if has_cell(node):
        steps, batch_axis = steps_and_batch(node)
        dims = [editor.dim(input_of(node), batch_axis), editor.dim(input_of(node, 2), 2)]
        dims.insert(steps, 1)
    else:
        dims = editor.dims(_value_like(state))
    if state.input is None:
        return dims
    declared = editor.dims(state.input)
    if state.input is not state.initial:
        return declared
    return [own if isinstance(own, int) else dim for own, dim in zip(declared, dims, strict=True)]


def _value_like(state: NodeState) -> ir.Value:
    """Return a value with the type and shape of a state of a LinearAttention or Scan."""
    return input_of(state.node, state.slot) if state.node.op_type == "Scan" else state.node.outputs[1]


def expose_state(editor: Editor, flow: Flow, state: NodeState, dims: Sequence[Dim], initial: Array | None) -> None:
    """Make a state an input and an output.

    Args:
        dims: Its dimensions.
        initial: What the first call receives, an array that broadcasts to the state; None for zeros.
    """
    node, slot = state.node, state.slot
    lengths = lengths_of(node)
    if editor.opset < 9 and lengths is not None:
        raise flow.refuse(node, "a stream with sequence_lens needs opset 9", "convert the model first")
    own = flow.known.types[input_of(node, 2) if has_cell(node) else _value_like(state)]
    past, dtype = state.input, own
    if past is None:
        dtype = wide_type(own) if node.op_type == "LinearAttention" else own  # which sums over all frames
        past = editor.add_past(node, state.kind, dtype, dims)
        _begin(editor, state, past, own)
    final = _final(editor, state, dtype, own)
    before = input_of(node, slot)
    if delay := state.recurrent.delay:
        if state.kind == "h":
            _start_at_frame_0(editor, node, delay, dtype)
        final = _keep_until_frame_0(editor, node, delay, final, before)
    elif lengths is not None and lengths not in flow.known.contents:
        final = _keep_empty_rows(editor, node, final, before)
    if state.output is not None:
        editor.add_pair(node, state.kind, past, state.output, dims, initial)
        return
    if past is state.input:
        editor.take_past(node, state.kind, past, dims)
    editor.add_present(past, final, initial)


def _begin(editor: Editor, state: NodeState, past: ir.Value, own: ir.DataType) -> None:
    """Let a node start from a past state, and in the first call from what the model computes."""
    node, slot, dtype = state.node, state.slot, past.dtype
    first = state.initial if state.constant is None else None
    node.resize_inputs(max(len(node.inputs), slot + 1))
    if first is not None and dtype is not None and dtype != own:
        first = editor.before(node)("Cast", first, to=int(dtype))
    node.replace_input_with(slot, past if first is None else past_or_first(editor, node, past, first))


def _final(editor: Editor, state: NodeState, dtype: ir.DataType, own: ir.DataType) -> ir.Value:
    """Return the final state of a node, of a type; those who read it get it in its own type."""
    node, output = state.node, state_slots(state.node)[state.kind][1]
    node.resize_outputs(max(len(node.outputs), output + 1))
    final = node.outputs[output]
    if not final.name:
        final.name = editor.name(f"{label_of(node)}_Y_{state.kind}")
    if dtype != own and is_used(final):
        emit = editor.after(node)
        emit.instead_of(final, emit("Cast", final, to=int(own)))
    final.type = ir.TensorType(dtype) if dtype != own else final.type or ir.TensorType(dtype)
    return final


def _keep_empty_rows(editor: Editor, node: ir.Node, output: ir.Value, past: ir.Value) -> ir.Value:
    """Return the final state with the past state in rows of length 0; all readers get it."""
    emit, lengths = editor.after(node), input_of(node, 4)
    empty = emit("Equal", lengths, emit.constant([0], ir.DataType.INT32))
    mask = emit("Unsqueeze", empty, axes=[steps_and_batch(node)[0], 2])
    kept = emit("Where", mask, past, output)
    kept.type = past.type
    emit.instead_of(output, kept)
    return kept


def _keep_until_frame_0(
    editor: Editor, node: ir.Node, delay: Delay, final: ir.Value, initial: ir.Value
) -> ir.Value:
    """Return the final state, or the initial state if all frames of the chunk are missing; all readers get it."""
    emit, missing = editor.after(node), missing_frames(editor, delay)
    if editor.own_frames(delay.rate) != 1:
        missing = emit.sliced(missing, [0], [-1], [TO_THE_END])
    kept = emit.chosen(missing, initial, final, initial.dtype or ir.DataType.FLOAT)
    emit.instead_of(final, kept)
    return kept


def _start_at_frame_0(editor: Editor, node: ir.Node, delay: Delay, dtype: ir.DataType) -> None:
    """Start a recurrent node at its frame 0: move the missing frames to the end, beyond `sequence_lens`."""
    if editor.own_frames(delay.rate) == 1:
        return
    start, counts = editor.start, editor.start.counts
    sequence, batch = steps_and_batch(node)
    number, indices = numbers_in_call(editor, delay.rate)
    missing = start.clipped(start("Sub", counts([delay.frames]), frames_before(editor, delay.rate)), number)
    last = start("Sub", number, counts([1]))
    from_frame_0 = start.clipped(start("Add", indices, missing), last)
    back = start.clipped(start("Sub", indices, missing), last)
    length = start("Sub", number, missing)
    x, y, emit = input_of(node), node.outputs[0], editor.before(node)
    moved = emit("Gather", x, from_frame_0, axis=sequence)
    rows = emit.size_of(x, batch)
    lengths = emit("Expand", emit("Cast", length, to=ir.DataType.INT32.value), rows)
    node.resize_inputs(max(len(node.inputs), 5))
    node.replace_input_with(0, moved)
    node.replace_input_with(4, lengths)
    if y.name:
        behind = editor.after(node)
        moved_back = behind("Gather", y, back, axis=sequence)
        moved_back.type = ir.TensorType(dtype)
        behind.instead_of(y, moved_back)
