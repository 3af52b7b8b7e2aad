"""Recurrent nodes along the frames, which carry a state, and along other axes, which treat each frame alone."""

from __future__ import annotations

from dataclasses import replace

import onnx_ir as ir

from rnn_lowering.errors import UnsupportedError, counted
from rnn_lowering.inference.polynomials import size
from rnn_lowering.spec.kinds import has_steps, is_recurrent, kind_of
from rnn_lowering.spec.node_spec import node_ref
from rnn_lowering.spec.rnn import RecurrentSpec
from rnn_lowering.streaming.editor import input_of
from rnn_lowering.streaming.frames.delays import joined, last_state
from rnn_lowering.streaming.frames.flow import Flow, StatefulNode
from rnn_lowering.streaming.frames.framing import Frames, Framing, Unframed
from rnn_lowering.streaming.operators.recurrent_states import state_slots, steps_and_batch

_RESHAPED = frozenset(("Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze"))
"""Operators that lengths may go through on their way to a recurrent node."""


def recurrent(flow: Flow, node: ir.Node) -> list[Framing]:
    """Return the framing of Y. A node along the frames carries its state; a node along another axis does not."""
    if not has_steps(node):
        raise flow.refuse(node, "can be streamed only in its lowered form", "lower it first, or together")
    if node.op_type == "LinearAttention":
        return _attention(flow, node)
    if kind_of(node) is not RecurrentSpec:
        raise flow.refuse(node, "its state cannot be carried from chunk to chunk", "lower it without --stream")
    value = node.inputs[0]
    framing = None if value is None else flow.framing(value, node)
    outputs = [v for v in node.outputs if v.name]
    others = {n: v for n, v in enumerate(node.inputs[1:], 1) if v is not None}
    if any(flow.is_timed(others[n]) for n in (1, 2, 3, 7) if n in others):
        raise flow.refuse(node, "its weights depend on the stream", "make them constant")
    if not isinstance(framing, Frames):
        common, _ = joined(flow, node, [n for n, v in enumerate(node.inputs) if v is not None])
        if isinstance(common, Frames):
            raise flow.refuse(
                node,
                "its initial states or lengths have frames, but its input does not",
                "export with dynamic axes",
            )
        return [common] * len(outputs)
    if node.domain:
        raise flow.refuse(
            node,
            "rounds all frames of a sequence with one scale, which a stream never knows",
            "stream the float model instead",
        )
    sequence, batch = steps_and_batch(node)
    if framing.axis == batch:
        return _frames_as_batch(flow, node, framing)
    if framing.axis != sequence or framing.outer != size(1):
        raise flow.refuse(node, "its frames are merged with another axis", "undo the Reshape before it")
    _check_onward(flow, node, others, framing)
    if 4 in others:
        _check_lengths(flow, node, others[4], framing)
    flow.recurrent.append(StatefulNode(node, flow.path, framing.delay))
    y, last = node.outputs[0], last_state(flow, node, framing, node.outputs[1:])
    return [flow.framed(node, v, replace(framing, axis=sequence)) if v is y else last for v in outputs]


def _attention(flow: Flow, node: ir.Node) -> list[Framing]:
    """Carry the state of a LinearAttention if all its inputs have the frames along axis 1."""
    ((slot, _),) = state_slots(node).values()
    data = [n for n, v in enumerate(node.inputs) if v is not None and n != slot]
    framing, axes = joined(flow, node, data)
    past = node.inputs[slot] if len(node.inputs) > slot else None
    if past is not None and flow.is_timed(past):
        raise flow.refuse(node, "its past_state is computed from the stream", "make it an input of the model")
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
    flow.recurrent.append(StatefulNode(node, flow.path, framing.delay))
    return [flow.framed(node, node.outputs[0], replace(framing, axis=1)), Unframed.LAST]


def _frames_as_batch(flow: Flow, node: ir.Node, framing: Frames) -> list[Framing]:
    """Return the framings of a node along another axis, which treats each frame as a row of the batch."""
    value = input_of(node)
    steps, batch = steps_and_batch(node)
    rows = [n for n in (4, 5, 6) if n < len(node.inputs) and node.inputs[n] is not None]
    common, axes = joined(flow, node, [0, *rows])
    framing = replace(framing, known=common.known) if isinstance(common, Frames) else framing
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


def _check_onward(flow: Flow, node: ir.Node, others: dict[int, ir.Value], framing: Frames) -> None:
    """Refuse a node that a stream cannot run from its first frame to its last."""
    direction = node.attributes.get_string("direction", "forward")
    if direction not in ("forward", "foward"):
        raise flow.refuse(
            node,
            f"direction is {direction}: it starts at the last frame, which a stream has not seen yet",
            "train a forward model",
        )
    if framing.known > min(framing.extra, 0):
        raise flow.refuse(node, f"reads {number_of_frames(framing)} the stream has", "trim its input with a Slice")
    if framing.delay and 4 in others:
        raise flow.refuse(
            node, f"has sequence_lens, and reads frames that come {framing.delay.frames} late", "drop sequence_lens"
        )
    for slot in (5, 6):
        if slot in others and flow.is_timed(others[slot]):
            flow.framing(others[slot], node)
            raise flow.refuse(
                node, "its initial state is computed from the stream", "make it an input of the model"
            )


def number_of_frames(framing: Frames) -> str:
    more = framing.extra
    return f"{counted(more, 'frame')} more than" if more > 0 else "not as many frames as"


def _check_lengths(flow: Flow, node: ir.Node, lengths: ir.Value, framing: Frames) -> None:
    """Refuse lengths that are not the number of frames, nor an input that only recurrent nodes read."""
    if flow.framings.get(lengths) is not None:
        flow.framing(lengths, node)
        raise flow.refuse(node, "its sequence_lens are computed from the stream", "make them an input of the model")
    held = flow.known.contents.get(lengths)
    if held is not None:
        if any(size(n) != framing.size() for n in held.reshape(-1).tolist()):
            raise flow.refuse(
                node,
                f"its sequence_lens are constant: {[str(n) for n in held.reshape(-1)[:8]]}",
                "make them an input of the model",
            )
        return
    value: ir.Value | None = lengths
    while value is not None and (producer := value.producer()) is not None:
        if producer.domain or producer.op_type not in _RESHAPED:
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


def _check_only_lengths(flow: Flow, value: ir.Value, name: str) -> None:
    """Refuse lengths that a node reads as data: those of a chunk differ from those of the whole."""
    for use in value.uses():
        node = use.node
        if is_recurrent(node) and use.idx == 4:
            continue
        if node.domain == "" and node.op_type in ("Shape", "Size"):
            continue
        if node.domain == "" and node.op_type in _RESHAPED and use.idx == 0:
            _check_only_lengths(flow, node.outputs[0], name)
            continue
        raise flow.refuse(
            node,
            f"reads '{name}', the sequence lengths, which differ in a chunk",
            "give it its own input",
        )
    if value.is_graph_output():
        raise UnsupportedError(
            f"'{name}', the sequence lengths, is also an output, but differs in a chunk", hint="drop that output"
        )
