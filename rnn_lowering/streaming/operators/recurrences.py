"""Recurrent nodes and Scans: along the frames, their states are carried from chunk to chunk.

A recurrent node along another axis treats each frame as a row of its batch, and carries nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import onnx_ir as ir

from rnn_lowering.errors import UnsupportedError, counted
from rnn_lowering.facts.infer import infer
from rnn_lowering.facts.known import add_initializers
from rnn_lowering.facts.numbers import UnfollowedError, evaluate
from rnn_lowering.facts.operators import bodies_of, captured_values, input_at, keeps_numbers
from rnn_lowering.facts.size import size
from rnn_lowering.loops.door import ScanBody, checked_axis, read_body
from rnn_lowering.nodes.kinds import DYNAMIC_QUANTIZE_LSTM, has_cell, has_steps, is_recurrent
from rnn_lowering.nodes.spec import node_ref
from rnn_lowering.streaming.alignment import joined
from rnn_lowering.streaming.counts import missing_frames
from rnn_lowering.streaming.editor import Editor, Emitter, input_of
from rnn_lowering.streaming.flow import MAIN_GRAPH, Flow, StatefulNode
from rnn_lowering.streaming.frames import Delay, FirstFrame, Frames, Framing, Unframed, WholeSequenceValue
from rnn_lowering.streaming.operators.node_states import axis_of_steps, state_slots, steps_and_batch


def recurrent(flow: Flow, node: ir.Node) -> list[Framing]:
    """Return the framing of Y. A node along the frames carries its state; a node along another axis does not."""
    if not has_steps(node):
        raise flow.refuse(node, "can be streamed only in its lowered form", "lower it first, or together")
    if node.op_type == "LinearAttention":
        return _linear_attention(flow, node)
    if not has_cell(node):
        raise flow.refuse(node, "its state cannot be carried from chunk to chunk", "lower it without --stream")
    framing = flow.read(input_of(node), node)
    outputs = [v for v in node.outputs if v.name]
    others = {n: v for n, v in enumerate(node.inputs[1:], 1) if v is not None}
    if any(flow.is_timed(others[n]) for n in (1, 2, 3, 7) if n in others):
        raise flow.refuse(node, "its weights depend on the stream", "make them constant")
    if not isinstance(framing, Frames):
        common, _ = joined(flow, node, [0, *others])
        if isinstance(common, Frames):
            raise flow.refuse(
                node,
                "its initial states or lengths have frames, but its input does not",
                "export with dynamic axes",
            )
        return [common] * len(outputs)
    if node.op_type == DYNAMIC_QUANTIZE_LSTM:
        raise flow.refuse(
            node,
            "rounds all frames of a sequence with one scale, which a stream never knows",
            "stream the float model instead",
        )
    sequence, batch = steps_and_batch(node)
    if framing.axis == batch:
        return _frames_as_batch(flow, node, framing)
    _check_axis(flow, node, framing, sequence)
    _check_forward(flow, node, others, framing)
    if 4 in others:
        _check_lengths(flow, node, others[4], framing)
    flow.recurrent.append(StatefulNode(node, framing.delay, framing.late))
    y, last = node.outputs[0], _last_state(flow, node, framing)
    return [flow.framed(node, v, replace(framing, axis=sequence)) if v is y else last for v in outputs]


def _check_axis(flow: Flow, node: ir.Node, framing: Frames, sequence: int) -> None:
    """Refuse frames along another axis than that of the steps."""
    if framing.outer != size(1):
        raise flow.refuse(node, "its frames are merged with another axis", "undo the Reshape before it")
    if framing.axis != sequence:
        steps = axis_of_steps(flow, node)
        way_out = f"name the time axis; the steps of the node are along {steps}" if steps else "name the time axis"
        raise flow.refuse(node, "takes the frames as features of one step", way_out)


def _last_state(flow: Flow, node: ir.Node, framing: Frames) -> Unframed | WholeSequenceValue:
    """Return the framing of the last states of a node. Late ones may only be carried by the stream."""
    if framing.late and (framing.extra > 0 or flow.scope != MAIN_GRAPH):
        return WholeSequenceValue(late_state_error(flow, node, framing.late))
    return Unframed.LAST


def late_state_error(flow: Flow, node: ir.Node, late: Delay) -> UnsupportedError:
    """Return the error of an output that has the late state of a node and is not its next value."""
    return flow.refuse(
        node,
        f"returns its last state, which comes {counted(late.frames, 'frame')} after the sequence has ended",
        "drop that output, since the stream carries the state, or give the node an initial state to return",
    )


def _linear_attention(flow: Flow, node: ir.Node) -> list[Framing]:
    """Return the framings of the outputs of a LinearAttention, which carries its state."""
    ((slot, _),) = state_slots(node).values()
    data = [n for n, v in enumerate(node.inputs) if v is not None and n != slot]
    framing, axes = joined(flow, node, data)
    _check_initial(flow, node, input_at(node, slot), "past_state")
    if not isinstance(framing, Frames):
        return [framing] * len(node.outputs)
    if set(axes.values()) != {1} or len(axes) < len(data) or not framing.plain:
        raise flow.refuse(
            node,
            "its frames are not along axis 1 of all its inputs",
            "transpose its inputs to [batch, frames, ...]",
        )
    if not framing.even or framing.rate != 1:
        raise flow.refuse(node, "does not read one frame for each of the stream", "trim its inputs with a Slice")
    flow.recurrent.append(StatefulNode(node, framing.delay))
    return [flow.framed(node, node.outputs[0], replace(framing, axis=1)), Unframed.LAST]


def _frames_as_batch(flow: Flow, node: ir.Node, framing: Frames) -> list[Framing]:
    """Return the framings of a node along another axis, which treats each frame as a row of the batch."""
    value = input_of(node)
    steps, batch = steps_and_batch(node)
    states = [slot for slot, _ in state_slots(node).values()]
    rows = [n for n in (4, *states) if n < len(node.inputs) and node.inputs[n] is not None]
    common, axes = joined(flow, node, [0, *rows])
    framing = replace(framing, ready=common.ready) if isinstance(common, Frames) else framing
    if any(axes.get(n) != (0 if n == 4 else batch) for n in rows):
        source = value.producer()
        if flow.shape(value, node)[steps] == size(1) and source is not None:
            raise flow.refuse(
                source,
                f"makes the frames the batch of {node_ref(node, '').name}, in sequences of 1",
                "did the exporter fix a length of 1? Export with a dynamic time axis",
            )
        raise flow.refuse(
            node,
            "its frames are its batch, but its initial states or lengths have a fixed batch size",
            "export with dynamic axes",
        )
    return [
        flow.framed(node, v, replace(framing, axis=2 * batch if n == 0 else batch))
        for n, v in enumerate(node.outputs)
        if v.name
    ]


def _check_forward(flow: Flow, node: ir.Node, others: dict[int, ir.Value], framing: Frames) -> None:
    """Refuse a node that a stream cannot run from its first frame to its last."""
    direction = node.attributes.get_string("direction", "forward")
    if direction not in ("forward", "foward"):
        raise flow.refuse(
            node,
            f"direction is {direction}: it starts at the last frame, which a stream has not seen yet",
            "train a forward model",
        )
    _check_one_by_one(flow, node, framing)
    if framing.delay and 4 in others:
        raise flow.refuse(
            node, f"has sequence_lens, and reads frames that come {framing.delay.frames} late", "drop sequence_lens"
        )
    for slot, _ in state_slots(node).values():
        _check_initial(flow, node, others.get(slot))


def _check_one_by_one(flow: Flow, node: ir.Node, framing: Frames) -> None:
    """Refuse frames that no chunk has, or that the whole sequence has not."""
    if framing.ready > min(framing.extra, 0):
        hint = "trim its input with a Slice" if framing.extra > 0 else pad_in_front(framing)
        raise flow.refuse(node, f"reads {frames_compared(framing)} the stream has", hint)


def _check_initial(flow: Flow, node: ir.Node, value: ir.Value | None, name: str = "initial state") -> None:
    """Refuse an initial state that is computed from the stream, unless it is from frame 0 only."""
    if value is not None and flow.is_timed(value) and not isinstance(flow.framings.get(value), FirstFrame):
        flow.read(value, node)
        raise flow.refuse(node, f"its {name} is computed from the stream", "make it an input of the model")


def frames_compared(framing: Frames) -> str:
    """Return "2 frames more than" or "not as many frames as", for "the stream has"."""
    more = framing.extra
    return f"{counted(more, 'frame')} more than" if more > 0 else "not as many frames as"


def pad_in_front(framing: Frames) -> str:
    """Return a hint for values whose last frames are cut off."""
    count = counted(framing.ready - framing.extra, "frame")
    return f"pad it in front by the {count} that are cut off at its end, or do not cut them off"


def _check_lengths(flow: Flow, node: ir.Node, lengths: ir.Value, framing: Frames) -> None:
    """Refuse lengths that are neither the number of frames nor an input that only recurrent nodes read."""
    if flow.framings.get(lengths) is not None:
        flow.read(lengths, node)
        raise flow.refuse(node, "its sequence_lens are computed from the stream", "make them an input of the model")
    constant = flow.known.contents.get(lengths)
    if constant is not None:
        if any(size(n) != framing.size() for n in constant.reshape(-1).tolist()):
            raise flow.refuse(
                node,
                f"its sequence_lens are constant: {[str(n) for n in constant.reshape(-1)[:8]]}",
                "make them an input of the model",
            )
        return
    value: ir.Value | None = lengths
    while value is not None and (producer := value.producer()) is not None:
        if not keeps_numbers(producer):
            raise flow.refuse(
                producer,
                "computes the sequence lengths, which differ in a chunk",
                "give sequence_lens as an input of the model",
            )
        value = producer.inputs[0]
    if framing.rate != 1 or framing.extra:
        raise flow.refuse(
            node,
            "its sequence_lens count other frames than those of the stream",
            "give the lengths of that layer as an input of the model",
        )
    if value is not None:
        _check_only_lengths(flow, value, value.name or "")
        flow.lengths.add(value)


def _check_only_lengths(flow: Flow, value: ir.Value, name: str) -> None:
    """Refuse lengths that a node reads as data: in a chunk they are not those of the whole sequence."""
    for node, slot in value.uses():
        if (is_recurrent(node) and slot == 4) or (node.domain == "" and node.op_type in ("Shape", "Size")):
            continue
        if not keeps_numbers(node) or slot != 0:
            raise flow.refuse(
                node, f"reads '{name}', the sequence lengths, which differ in a chunk", "give it its own input"
            )
        _check_only_lengths(flow, node.outputs[0], name)
    if value.is_graph_output():
        raise UnsupportedError(
            f"'{name}', the sequence lengths, is also an output, but differs in a chunk", hint="drop that output"
        )


def scanned(flow: Flow, node: ir.Node) -> list[Framing]:
    """Return the framings of the outputs of a Scan; one along the frames carries its states.

    Raises:
        InvalidNodeError: It breaks the specification of its operator.
        UnsupportedError: A step reads other frames than its own, or the frames are along another axis.
    """
    loop = read_body(node, flow.scope, flow.opset)
    assert isinstance(loop, ScanBody)
    states = len(loop.initial)
    for value in captured_values(node):
        _check_captured(flow, node, value)
    for initial in loop.initial:
        _check_initial(flow, node, initial)
    slots = range(states, len(node.inputs))
    framing, axes = joined(flow, node, list(slots))
    if not isinstance(framing, Frames):
        return [framing for value in node.outputs if value.name]
    _check_scanned(flow, node, loop, framing, [axes.get(slot) for slot in slots])
    _infer_outputs(flow, node, loop, framing)
    flow.recurrent.append(StatefulNode(node, late=framing.late))
    if framing.delay and states:
        flow.change(node, _keep_scan_states, framing.delay)
    last = _last_state(flow, node, framing)
    framings: list[Framing] = [last for value in loop.results if value.name]
    for value, axis in zip(loop.stacked, loop.stacked_axes, strict=False):
        if value.name:
            number = checked_axis(axis, len(flow.shape(value, node)), loop)
            framings.append(flow.framed(node, value, replace(framing, axis=number)))
    return framings


def _check_scanned(flow: Flow, node: ir.Node, loop: ScanBody, framing: Frames, axes: Sequence[int | None]) -> None:
    """Refuse a Scan that does not read the frames one by one, from the first to the last."""
    ranks = [len(flow.shape(x, node)) for x in loop.xs]
    numbers = [checked_axis(axis, rank, loop) for axis, rank in zip(loop.axes, ranks, strict=True)]
    if axes != numbers or not framing.plain:
        raise flow.refuse(
            node, "its frames are not along the axis that it scans", "scan along the axis of the frames"
        )
    if any((*loop.backwards, *loop.stacked_in_front)):
        raise flow.refuse(
            node,
            "goes backwards: it starts at the last frame, which a stream has not seen yet",
            "train a forward model",
        )
    _check_one_by_one(flow, node, framing)


def _check_captured(flow: Flow, node: ir.Node, value: ir.Value) -> None:
    """Refuse a value of the stream that every step reads."""
    if not flow.is_timed(value):
        return
    if isinstance(flow.framings.get(value), FirstFrame):
        raise flow.refuse(
            node,
            f"reads the first frame of the stream, '{value.name}', in every step",
            "a step may read its own frame only",
        )
    flow.read(value, node)
    raise flow.refuse(
        node,
        f"reads '{value.name}', which has all frames of the stream or depends on them, in every step",
        "a step may read its own frame only",
    )


def _infer_outputs(flow: Flow, node: ir.Node, loop: ScanBody, framing: Frames) -> None:
    """Infer the types and shapes of what a Scan returns, from its initial states and stacked rows."""
    known = flow.known
    add_initializers(known, loop.body)
    for value, outer in zip((*loop.state_inputs, *loop.row_inputs), (*loop.initial, *loop.xs), strict=True):
        if outer is None or outer not in known.types or outer not in known.shapes:
            raise flow.refuse(
                node, f"the shape of '{outer and outer.name}' is not known", "fix sizes with --set-dim"
            )
        known.types[value], known.shapes[value] = known.types[outer], known.shapes[outer]
    for value, axis in zip(loop.row_inputs, loop.axes, strict=True):
        shape = list(known.shapes[value])
        del shape[axis]
        known.shapes[value] = tuple(shape)
    for inner in loop.body:
        if not bodies_of(inner):
            infer(known, inner)
            with suppress(UnfollowedError):
                evaluate(known, inner)
    for value, first in zip(loop.results, loop.initial, strict=True):
        assert first is not None
        known.types[value], known.shapes[value] = known.types[first], known.shapes[first]
    for value, row, axis in zip(loop.stacked, loop.rows, loop.stacked_axes, strict=False):
        if row not in known.types or row not in known.shapes:
            raise flow.refuse(
                node,
                f"the shape of '{row.name}', which its steps return, is not known",
                "fix sizes with --set-dim, or move an If or Loop out of its steps",
            )
        shape = list(known.shapes[row])
        shape.insert(checked_axis(axis, len(shape) + 1, loop), framing.size())
        known.types[value], known.shapes[value] = known.types[row], tuple(shape)


def _keep_scan_states(editor: Editor, node: ir.Node, delay: Delay) -> None:
    """Keep the states of a Scan in steps whose frames are missing because of a delay."""
    body, xs = node.attributes["body"].as_graph(), node.attributes.get_int("num_scan_inputs", 0) or 0
    states = len(node.inputs) - xs
    node.resize_inputs(len(node.inputs) + 1)
    node.replace_input_with(states + xs, missing_frames(editor, delay))
    node.attributes["num_scan_inputs"] = ir.AttrInt64("num_scan_inputs", xs + 1)
    for name in ("scan_input_axes", "scan_input_directions"):
        if name in node.attributes:
            node.attributes[name] = ir.AttrInt64s(name, [*node.attributes[name].as_ints(), 0])
    row = ir.Value(name=editor.name("missing"), type=ir.TensorType(ir.DataType.BOOL), shape=ir.Shape([]))
    body.inputs.append(row)
    for n, (before, after) in enumerate(zip(body.inputs[:states], body.outputs[:states], strict=True)):
        emit = Emitter(editor, body, after=body[-1] if len(body) else None)
        kept = emit.chosen(row, before, after, before.dtype or input_of(node, n).dtype or ir.DataType.FLOAT)
        kept.type, kept.shape = after.type, after.shape
        body.outputs[n] = kept
