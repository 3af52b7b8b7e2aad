"""Scans along the frames: a step reads one frame, and the states are carried from chunk to chunk."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

import onnx_ir as ir

from rnn_lowering.inference.shape_arithmetic import UnfollowedError, evaluate
from rnn_lowering.inference.shape_inference import infer
from rnn_lowering.inference.symbolic_values import add_initializers
from rnn_lowering.loops.body import ScanBody, checked_axis, read_body
from rnn_lowering.model.scopes import bodies_of, values_used
from rnn_lowering.streaming.editor import Editor, NodeEdit
from rnn_lowering.streaming.frames.delays import joined, last_state, missing_frames
from rnn_lowering.streaming.frames.flow import Flow, StatefulNode
from rnn_lowering.streaming.frames.framing import Delay, FirstFrame, Frames, Framing


def scanned(flow: Flow, node: ir.Node) -> list[Framing]:
    """Return the framings of the outputs of a Scan; one along the frames carries its states.

    Raises:
        InvalidNodeError: It breaks the specification of its operator.
        UnsupportedError: A step reads other frames than its own, or the frames are along another axis.
    """
    read = read_body(node, flow.scope, flow.opset)
    assert isinstance(read, ScanBody)
    states = len(read.initial)
    for value in _captured(read.body):
        _check_captured(flow, node, value)
    for first in read.initial:
        if first is not None and flow.is_timed(first):
            flow.framing(first, node)
            raise flow.refuse(
                node, "its initial state is computed from the stream", "make it an input of the model"
            )
    slots = range(states, len(node.inputs))
    framing, axes = joined(flow, node, list(slots))
    if not isinstance(framing, Frames):
        return [framing for value in node.outputs if value.name]
    ranks = [len(flow.shape(x, node)) for x in read.xs]
    numbers = [checked_axis(axis, rank, read) for axis, rank in zip(read.axes, ranks, strict=True)]
    scanned_axes = dict(zip(slots, numbers, strict=True))
    if axes != scanned_axes or not framing.plain:
        raise flow.refuse(
            node, "its frames are not along the axis that it scans", "scan along the axis of the frames"
        )
    if any((*read.backwards, *read.stacked_in_front)):
        raise flow.refuse(
            node,
            "goes backwards: it starts at the last frame, which a stream has not seen yet",
            "train a forward model",
        )
    if framing.known > 0 or framing.extra:
        raise flow.refuse(node, "does not read one frame for each of the stream", "trim its inputs with a Slice")
    _infer_outputs(flow, node, read, framing)
    flow.recurrent.append(StatefulNode(node, flow.path))
    if framing.delay and states:
        flow.edits.append(StatesHeld(node, framing.delay))
    last = last_state(flow, node, framing, read.results)
    found: list[Framing] = [last for value in read.results if value.name]
    for value, axis in zip(read.stacked, read.stacked_axes, strict=False):
        if value.name:
            number = checked_axis(axis, len(flow.shape(value, node)), read)
            found.append(flow.framed(node, value, replace(framing, axis=number)))
    return found


@dataclass(frozen=True)
class StatesHeld(NodeEdit):
    """Keep the states of a Scan in steps whose frames are missing because of a delay."""

    node: ir.Node
    delay: Delay

    def apply(self, editor: Editor) -> None:
        node, body = self.node, self.node.attributes["body"].as_graph()
        xs = node.attributes.get_int("num_scan_inputs", 0) or 0
        states = len(node.inputs) - xs
        node.resize_inputs(len(node.inputs) + 1)
        node.replace_input_with(states + xs, missing_frames(editor, self.delay))
        node.attributes["num_scan_inputs"] = ir.AttrInt64("num_scan_inputs", xs + 1)
        for name in ("scan_input_axes", "scan_input_directions"):
            if name in node.attributes:
                node.attributes[name] = ir.AttrInt64s(name, [*node.attributes[name].as_ints(), 0])
        row = ir.Value(name=editor.name("missing"), type=ir.TensorType(ir.DataType.BOOL), shape=ir.Shape([]))
        body.inputs.append(row)
        for n, (before, after) in enumerate(zip(body.inputs[:states], body.outputs[:states], strict=True)):
            where = editor.node("Where", [row, before, after], body)
            body.append(where)
            (kept,) = where.outputs
            kept.type, kept.shape = after.type, after.shape
            body.outputs[n] = kept


def _captured(body: ir.Graph) -> Iterator[ir.Value]:
    """Yield what a body uses of the graphs around it."""
    graphs = (body, *body.subgraphs())
    own = {value for graph in graphs for value in (*graph.inputs, *graph.initializers.values())}
    own |= {value for node in body.all_nodes() for value in node.outputs}
    used = [*(value for node in body for value in values_used(node)), *body.outputs]
    yield from dict.fromkeys(value for value in used if value not in own)


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
    flow.framing(value, node)
    raise flow.refuse(
        node,
        f"reads '{value.name}', which has all frames of the stream or depends on them, in every step",
        "a step may read its own frame only",
    )


def _infer_outputs(flow: Flow, node: ir.Node, read: ScanBody, framing: Frames) -> None:
    """Add the types and shapes of what a Scan returns: those of its first states, and of rows."""
    known = flow.known
    add_initializers(known, read.body)
    given = [*read.initial, *read.xs]
    for value, outer in zip((*read.state_inputs, *read.row_inputs), given, strict=True):
        if outer is None or outer not in known.types or outer not in known.shapes:
            raise flow.refuse(
                node, f"the shape of '{outer and outer.name}' is not known", "fix sizes with --set-dim (dims=)"
            )
        known.types[value], known.shapes[value] = known.types[outer], known.shapes[outer]
    for value, axis in zip(read.row_inputs, read.axes, strict=True):
        shape = list(known.shapes[value])
        del shape[axis]
        known.shapes[value] = tuple(shape)
    for inner in read.body:
        if not bodies_of(inner):
            infer(known, inner)
            with suppress(UnfollowedError):
                evaluate(known, inner)
    for value, first in zip(read.results, read.initial, strict=True):
        assert first is not None
        known.types[value], known.shapes[value] = known.types[first], known.shapes[first]
    for value, row, axis in zip(read.stacked, read.rows, read.stacked_axes, strict=False):
        if row not in known.types or row not in known.shapes:
            raise flow.refuse(
                node,
                f"the shape of '{row.name}', which its steps return, is not known",
                "fix sizes with --set-dim (dims=)",
            )
        shape = list(known.shapes[row])
        shape.insert(checked_axis(axis, len(shape) + 1, read), framing.size())
        known.types[value], known.shapes[value] = known.types[row], tuple(shape)
