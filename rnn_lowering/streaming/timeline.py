"""Following the frames of a stream through a model, from its inputs to its outputs."""

from __future__ import annotations

from dataclasses import replace

import onnx_ir as ir

from rnn_lowering.errors import UnsupportedError
from rnn_lowering.model.scopes import bodies_of
from rnn_lowering.spec.node import default_opset, is_recurrent, node_ref
from rnn_lowering.streaming.causal import WINDOWED, joined_along, padded, picked, windowed
from rnn_lowering.streaming.frame_rules import frame_by_frame
from rnn_lowering.streaming.frames import Flow, Frames, Framing, Recurrent, Unframed
from rnn_lowering.streaming.sized import Sized, SizingError, sized
from rnn_lowering.streaming.time_inputs import TimeInputs
from rnn_lowering.streaming.trimming import sliced
from rnn_lowering.types import Array

COUNTS = (96, 192)
"""The two numbers of frames at which a model is evaluated: many strides divide them."""

_OTHER_SIZES = (2, 16, 64, 1)
"""Sizes of other open axes that are tried in turn."""


def follow(model: ir.Model, time: TimeInputs) -> tuple[Flow, int]:
    """Return where each value of a model has its frames, and the size of other open axes at which that was found.

    Args:
        model: Sorted, and without functions; it stays as it is.
        time: The axes of its inputs that hold frames.

    Raises:
        UnsupportedError: A node looks beyond its frame, or it is not known whether it does.
    """
    short, long, size = _at_two_lengths(model, time)
    flow = Flow(short, long, COUNTS, default_opset(model.opset_imports))
    for value in model.graph.inputs:
        axis = time.axes.get(value.name or "")
        if axis is not None:
            flow.framings[value] = Frames(axis)
    _follow_graph(flow, model.graph)
    _check_outputs(flow, model.graph)
    return flow, size


def _at_two_lengths(model: ir.Model, time: TimeInputs) -> tuple[Sized, Sized, int]:
    failure: SizingError | None = None
    fixed: dict[ir.Value, Array] = {}
    for size in _OTHER_SIZES:
        try:
            short, long = (sized(model, time.shapes(count, size), fixed) for count in COUNTS)
            return short, long, size
        except SizingError as error:
            failure = error
    assert failure is not None
    raise UnsupportedError(
        f"does not work with another number of frames: {failure.reason}",
        hint="was the length folded into a constant by the exporter? Export with a dynamic time axis",
        node=node_ref(failure.node, "the model"),
    ) from failure


def _follow_graph(flow: Flow, graph: ir.Graph) -> None:
    for node in graph:
        outputs = [v for v in node.outputs if v.name]
        if all(v in flow.short.fixed for v in outputs):
            continue
        framings = _follow_node(flow, node)
        flow.framings.update((v, m) for v, m in zip(outputs, framings, strict=True) if m is not None)


def _follow_node(flow: Flow, node: ir.Node) -> list[Framing]:
    """The framings of the named outputs of a node."""
    outputs = [v for v in node.outputs if v.name]
    if all(flow.short.constant(v) is not None for v in outputs):
        return [None] * len(outputs)  # what follows from sizes is judged where it is read as data
    if node.domain == "" and node.op_type == "If":
        return _branches(flow, node)
    if any(a.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for a in node.attributes.values()):
        return _opaque(flow, node, len(outputs))
    if is_recurrent(node):
        return _recurrent(flow, node)
    rule = _RULES.get(node.op_type, frame_by_frame) if node.domain == "" else frame_by_frame
    return rule(flow, node)


_RULES = {
    "Pad": padded,
    "Slice": sliced,
    "Concat": joined_along,
    "Gather": picked,
    **dict.fromkeys(WINDOWED, windowed),
}


def _branches(flow: Flow, node: ir.Node) -> list[Framing]:
    condition = node.inputs[0]
    if condition is not None and flow.framings.get(condition) is not None:
        raise flow.refuse(node, "its condition depends on the stream")
    held = None if condition is None else flow.constant(condition)
    taken = ("then_branch", "else_branch") if held is None else ("then_branch" if held.all() else "else_branch",)
    scope, path = flow.scope, flow.path
    found: list[list[Framing]] = []
    for name in taken:
        graph = node.attributes[name].as_graph()
        flow.scope, flow.path = f"{scope} > {node_ref(node, '').name} (If) {name}", (*path, (node, name))
        _follow_graph(flow, graph)
        found.append([flow.framings.get(v) for v in graph.outputs])
    flow.scope, flow.path = scope, path
    if any(framings != found[0] for framings in found):
        raise flow.refuse(node, "its branches hold their frames differently")
    return [framing for v, framing in zip(node.outputs, found[0], strict=True) if v.name]


def _opaque(flow: Flow, node: ir.Node, outputs: int) -> list[Framing]:
    """A Loop or Scan: it may not see the stream, nor hold a recurrent node."""
    inner = [n for graph in bodies_of(node) for n in graph.all_nodes()]
    recurrent = next((n for n in inner if is_recurrent(n)), None)
    if recurrent is not None:
        scope = f"{flow.scope} > {node_ref(node, '').name} ({node.op_type}) body"
        raise UnsupportedError(
            "a node in a body that repeats has a state for each turn", node=node_ref(recurrent, scope)
        )
    read = {v for n in (node, *inner) for v in n.inputs if v is not None}
    if any(flow.framings.get(v) is not None for v in read):
        raise flow.refuse(node, "repeats over values of the stream: it is not known how", "export without the loop")
    return [None] * outputs


def _recurrent(flow: Flow, node: ir.Node) -> list[Framing]:
    """Y keeps its frames; a node along the frames is to carry its state, one along another axis is not."""
    value = node.inputs[0]
    framing = None if value is None else flow.framing(value, node)
    outputs = [v for v in node.outputs if v.name]
    others = {n: v for n, v in enumerate(node.inputs[1:], 1) if v is not None}
    if not isinstance(framing, Frames):
        joined = flow.joined(node, [v for v in node.inputs if v is not None])
        return [joined if joined is Unframed.LAST else None] * len(outputs)
    if any(flow.framings.get(others[n]) is not None for n in (1, 2, 3, 7) if n in others):
        raise flow.refuse(node, "its weights depend on the stream")
    batch_first = node.attributes.get_int("layout", 0) == 1
    sequence, batch = (1, 0) if batch_first else (0, 1)
    if framing.axis == batch:
        if any(flow.grown(others[n], node) is None for n in (4, 5, 6) if n in others):
            raise flow.refuse(node, "its frames are its batch, and its initial states or lengths have a fixed one")
        return [flow.framed(node, v, flow.joined(node, [value, *others.values()])) for v in outputs]  # type: ignore[list-item]
    if framing.axis != sequence or framing.outer != 1:
        raise flow.refuse(node, "its frames are merged with another axis")
    _check_onward(flow, node, others, framing)
    if 4 in others:
        _check_lengths(flow, node, others[4], framing)
    flow.recurrent.append(Recurrent(node, flow.path))
    y = node.outputs[0]
    framings = {
        v: (flow.framed(node, y, replace(framing, axis=sequence)) if v is y else Unframed.LAST) for v in outputs
    }
    return list(framings.values())


def _check_onward(flow: Flow, node: ir.Node, others: dict[int, ir.Value], framing: Frames) -> None:
    """Refuse a node that a stream cannot run from its first frame to its last."""
    direction = node.attributes.get_string("direction", "forward")
    if direction not in ("forward", "foward"):
        raise flow.refuse(
            node,
            f"direction is {direction}: it starts at the last frame, which a stream has not seen yet",
            "train a forward one",
        )
    if not framing.even:
        raise flow.refuse(
            node,
            f"reads {framing.before + framing.behind} frames more than the stream has",
            "trim its input with a Slice",
        )
    for slot in (5, 6):
        if slot in others and flow.framings.get(others[slot]) is not None:
            raise flow.refuse(
                node, "its initial state is computed from the stream", "make it an input of the model"
            )


def _check_lengths(flow: Flow, node: ir.Node, lengths: ir.Value, framing: Frames) -> None:
    """Refuse constant lengths but those that are the number of frames."""
    held = [known.constant(lengths) for known in (flow.short, flow.long)]
    if flow.framings.get(lengths) is not None:
        raise flow.refuse(node, "its sequence_lens are computed from the stream")
    for array, count in zip(held, flow.counts, strict=True):
        if array is not None and not (array == framing.size(count)).all():
            raise flow.refuse(
                node, f"its sequence_lens are constant: {array.tolist()[:8]}", "make them an input of the model"
            )


def _check_outputs(flow: Flow, graph: ir.Graph) -> None:
    for value in graph.outputs:
        framing = flow.framings.get(value)
        node = value.producer()
        if not isinstance(framing, Frames) or node is None:
            continue
        if not framing.even:
            more = framing.before + framing.behind
            raise flow.refuse(
                node, f"output '{value.name}' has {more} frames more than the stream", "trim it with a Slice"
            )
        if framing.outer != 1:
            raise flow.refuse(
                node, f"output '{value.name}' holds the frames of several rows, one row after another"
            )
