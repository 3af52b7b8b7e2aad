"""Follow the frames of a stream through a model, from its inputs to its outputs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from shlex import quote

import onnx_ir as ir

from rnn_lowering.errors import NodeRef, UnsupportedError
from rnn_lowering.model.scopes import bodies_of, values_used
from rnn_lowering.spec.kinds import has_steps, is_recurrent, kind_of
from rnn_lowering.spec.node_spec import node_ref
from rnn_lowering.spec.rnn import RecurrentSpec
from rnn_lowering.streaming.frame_by_frame import frame_by_frame
from rnn_lowering.streaming.frames import (
    FirstFrame,
    Flow,
    Frames,
    Framing,
    Pooled,
    StatefulNode,
    Unframed,
    WholeSequenceValue,
)
from rnn_lowering.streaming.inference import LARGEST_UNIT, SizingError, add_initializers, start
from rnn_lowering.streaming.operators.counters import counting
from rnn_lowering.streaming.operators.cuts import picked, resized, sliced
from rnn_lowering.streaming.operators.joins import joined_along, padded
from rnn_lowering.streaming.operators.pooling import POOLINGS, deviating, of_pooled, pooled, softmaxed, summed
from rnn_lowering.streaming.operators.scans import scanned
from rnn_lowering.streaming.operators.windows import overlapped, transformed, transposed, windowed
from rnn_lowering.streaming.polynomials import size
from rnn_lowering.streaming.shape_arithmetic import UnfollowedError, depends_on_time, evaluate
from rnn_lowering.streaming.time_inputs import TimeInputs

_RESHAPED = frozenset(("Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze"))
"""Operators that lengths may go through on their way to a recurrent node."""


def follow(model: ir.Model, time: TimeInputs, loops: Mapping[NodeRef, UnsupportedError]) -> Flow:
    """Return the framing of each value of a model.

    Args:
        model: A sorted model without functions; it is not changed.
        time: The input axes that hold frames.
        loops: Its Loops that could not become Scans, each with the reason.

    If a size is an integer only for multiples of a number of frames, the model requires such a multiple.

    Raises:
        UnsupportedError: A node reads other frames, or its rule is not known.
    """
    found: list[tuple[NodeRef | None, int]] = []
    while True:
        flow = Flow(start(model, time.sizes()), units=found, loops=loops)
        flow.known.unit = unit = math.lcm(*(multiple for _, multiple in found))
        for value in model.graph.inputs:
            axis = time.axes.get(value.name or "")
            if axis is not None:
                flow.framings[value] = Frames(axis)
        try:
            _follow_graph(flow, model.graph)
            _check_outputs(flow, model.graph)
        except UnsupportedError as error:
            if unit % flow.known.wanted == 0 or math.lcm(unit, flow.known.wanted) > LARGEST_UNIT:
                raise
            found = [*flow.units, (error.node, flow.known.wanted)]
        else:
            return flow


def _follow_graph(flow: Flow, graph: ir.Graph) -> None:
    add_initializers(flow.known, graph)
    for node in graph:
        if not node.outputs:  # it gives nothing that could be known
            continue
        outputs = [v for v in node.outputs if v.name]
        try:
            framings = _follow_node(flow, node)
        except SizingError as error:
            raise _does_not_fit(flow, error) from error
        flow.framings.update((v, m) for v, m in zip(outputs, framings, strict=True) if m is not None)


def _does_not_fit(flow: Flow, error: SizingError) -> UnsupportedError:
    return flow.refuse(
        error.node,
        f"does not work with another number of frames: {error.reason}",
        "did the exporter fix the length? Export with a dynamic time axis",
    )


def _follow_node(flow: Flow, node: ir.Node) -> list[Framing]:
    """Return the framings of the named outputs of a node."""
    outputs = [v for v in node.outputs if v.name]
    if node.domain == "" and node.op_type == "If":
        return _branches(flow, node)
    flow.known.infer(node)
    read = values_used(node)
    lost = next((m for v in read if isinstance(m := flow.framings.get(v), WholeSequenceValue)), None)
    streamed = any(isinstance(flow.framings.get(v), Frames | Pooled | Unframed | FirstFrame) for v in read)
    if node.op_type in ("Shape", "Size") and node.domain == "":
        return _size_of(flow, node, lost)
    if lost is not None:
        if streamed:
            raise lost.error
        return _all_lost(flow, outputs, lost)
    if streamed:
        return _rule(flow, node)
    if any(flow.is_timed(v) for v in read):
        try:
            found = counting(flow, node)
        except UnsupportedError as error:
            return _all_lost(flow, outputs, WholeSequenceValue(error))
        if found is not None:
            return found
    return _without_stream(flow, node, read)


def _size_of(flow: Flow, node: ir.Node, lost: WholeSequenceValue | None) -> list[Framing]:
    value = node.inputs[0]
    if lost is not None and value not in flow.known.shapes:
        return [lost]
    evaluate(flow.known, node)
    return [None]


def _without_stream(flow: Flow, node: ir.Node, read: Sequence[ir.Value]) -> list[Framing]:
    """Return the framings of outputs that depend on the length of the stream, or on nothing of it."""
    outputs = [v for v in node.outputs if v.name]
    try:
        evaluate(flow.known, node)
    except UnfollowedError:
        return _all_lost(flow, outputs, _not_a_size(flow, node))
    if all(v in flow.known.contents for v in outputs) or not any(flow.is_timed(v) for v in read):
        return [None] * len(outputs)
    edits = len(flow.edits)
    try:
        return _rule(flow, node)
    except UnsupportedError as error:
        del flow.edits[edits:]
        return _all_lost(flow, outputs, WholeSequenceValue(error))


def _not_a_size(flow: Flow, node: ir.Node) -> WholeSequenceValue:
    if node.op_type == "Range":
        return WholeSequenceValue(flow.refuse(node, "counts the frames in a way that a chunk cannot tell"))
    return WholeSequenceValue(
        flow.refuse(
            node,
            "uses the number of frames, which a stream never knows, other than as a size",
            "sizes may be the number of frames times a constant, plus a constant",
        )
    )


def _all_lost(flow: Flow, outputs: Sequence[ir.Value], lost: WholeSequenceValue) -> list[Framing]:
    """Mark outputs that depend on the whole sequence; keep only shapes that do not depend on it."""
    for value in outputs:
        dims = flow.known.shapes.get(value, ())
        if any(isinstance(symbol, int) and symbol >= 0 for dim in dims for symbol in dim.symbols):
            del flow.known.shapes[value]
    return [lost] * len(outputs)


def _rule(flow: Flow, node: ir.Node) -> list[Framing]:
    if node.op_type == "Scan" and node.domain == "":
        return scanned(flow, node)
    if bodies_of(node):
        raise _repeats(flow, node)
    if any(isinstance(flow.framings.get(v), Pooled) for v in node.inputs if v is not None):
        return of_pooled(flow, node)
    if is_recurrent(node):
        return _recurrent(flow, node)
    rule = _RULES.get(node.op_type, frame_by_frame) if node.domain == "" else frame_by_frame
    framings = rule(flow, node)
    for value, framing in zip([v for v in node.outputs if v.name], framings, strict=True):
        if isinstance(framing, WholeSequenceValue):
            _all_lost(flow, [value], framing)
    return framings


_RULES = {
    **dict.fromkeys(POOLINGS, pooled),
    **dict.fromkeys(("AveragePool", "Conv", "LpPool", "MaxPool"), windowed),
    "Col2Im": overlapped,
    "Concat": joined_along,
    "ConvTranspose": transposed,
    "CumSum": summed,
    "Gather": picked,
    "Pad": padded,
    "Resize": resized,
    "STFT": transformed,
    "Slice": sliced,
    "Softmax": softmaxed,
    "Sub": deviating,
    "Upsample": resized,
}
"""Operators that may act along the frames."""


def _branches(flow: Flow, node: ir.Node) -> list[Framing]:
    condition = node.inputs[0]
    if condition is not None and flow.is_timed(condition):
        if isinstance(lost := flow.framings.get(condition), WholeSequenceValue):
            raise lost.error
        raise flow.refuse(node, "its condition depends on the stream")
    held = flow.known.constant(condition)
    taken = ("then_branch", "else_branch") if held is None else ("then_branch" if held.all() else "else_branch",)
    scope, path = flow.scope, flow.path
    found: list[list[Framing]] = []
    ends: list[list[ir.Value]] = []
    before = _carried(flow)
    for name in taken:
        graph = node.attributes[name].as_graph()
        flow.scope, flow.path = f"{scope} > {node_ref(node, '').name} (If) {name}", (*path, (node, name))
        _follow_graph(flow, graph)
        found.append([flow.framings.get(v) for v in graph.outputs])
        ends.append(list(graph.outputs))
        if len(graph.outputs) != len(node.outputs):
            raise flow.refuse(node, "its branches have different numbers of outputs")
    flow.scope, flow.path = scope, path
    if held is None and condition is not None and _carried(flow) > before:
        _check_same_branch(flow, node, condition)
    for framing in (framing for framings in found for framing in framings):
        if isinstance(framing, Pooled):
            raise framing.error
    if any(framings != found[0] for framings in found):
        raise flow.refuse(node, "its branches hold their frames differently")
    for output, values in zip(node.outputs, zip(*ends, strict=True), strict=True):
        _agree(flow, node, output, values)
    return [framing for v, framing in zip(node.outputs, found[0], strict=True) if v.name]


def _carried(flow: Flow) -> int:
    """Return the number of states found so far, without the number of frames, which every call counts."""
    return len(flow.recurrent) + sum(edit.carries for edit in flow.edits)


def _check_same_branch(flow: Flow, node: ir.Node, condition: ir.Value) -> None:
    """Refuse states in branches if another call may take another branch: an input decides."""
    seen, inner = {condition}, set[ir.Value]()
    left = [condition]
    while left:
        value = left.pop()
        source = value.producer()
        if source is None:
            if value.is_graph_input() and value not in inner:
                raise flow.refuse(
                    node,
                    f"a state in its branches would miss calls, since input '{value.name}' chooses the branch",
                    f"fix that input: --set-input {quote(value.name or '')}=VALUE (set_inputs=)",
                )
            continue
        read = [v for v in source.inputs if v is not None]
        if source.domain == "" and source.op_type in ("Shape", "Size"):
            read = [v for v in read if not _has_steady_sizes(flow, v)]
        for body in bodies_of(source):
            inner.update(body.inputs)
            read += [*body.outputs, *(v for n in body.all_nodes() for v in n.inputs if v is not None)]
        left += [v for v in dict.fromkeys(read) if v not in seen]
        seen.update(read)


def _has_steady_sizes(flow: Flow, value: ir.Value) -> bool:
    """Whether the sizes of a value are the same in all calls: those of inputs, or computed from these."""
    dims = flow.known.shapes.get(value)
    named = dims is not None and all(isinstance(symbol, str) for dim in dims for symbol in dim.symbols)
    return value.is_graph_input() or named


def _agree(flow: Flow, node: ir.Node, output: ir.Value, values: Sequence[ir.Value]) -> None:
    """Record for an output of If the facts on which its branches agree."""
    known = flow.known
    if values[0] in known.types:
        known.types[output] = known.types[values[0]]
    shapes = {known.shapes.get(v) for v in values}
    contents = {str(known.contents[v].tolist()) if v in known.contents else "" for v in values}
    if any(depends_on_time(known, v) for v in values) and len(contents) > 1:
        raise flow.refuse(node, "its branches depend on the number of frames in different ways")
    ranks = {None if shape is None else len(shape) for shape in shapes}
    if len(ranks) == 1 and None not in ranks:
        dims = [list(dict.fromkeys(d)) for d in zip(*(shape for shape in shapes if shape is not None), strict=True)]
        if any(len(d) > 1 and any(dim.timed for dim in d) for d in dims):
            raise flow.refuse(node, "its branches have different numbers of frames")
        known.shapes[output] = tuple(d[0] if len(d) == 1 else known.unknown() for d in dims)
    if len(contents) == len(shapes) == 1 and values[0] in known.contents:
        known.contents[output] = known.contents[values[0]]


def _repeats(flow: Flow, node: ir.Node) -> UnsupportedError:
    """Refuse a Loop that reads the stream or holds a recurrent node."""
    refused = flow.loops.get(node_ref(node, flow.scope))
    if refused is not None:
        return refused
    recurrent = next((n for graph in bodies_of(node) for n in graph.all_nodes() if is_recurrent(n)), None)
    if recurrent is not None:
        scope = f"{flow.scope} > {node_ref(node, '').name} ({node.op_type}) body"
        return UnsupportedError("a node in a loop body has a state per iteration", node=node_ref(recurrent, scope))
    return flow.refuse(node, "repeats over values of the stream: it is not known how", "export without the loop")


def _recurrent(flow: Flow, node: ir.Node) -> list[Framing]:
    """Return the framing of Y. A node along the frames carries its state; a node along another axis does not."""
    if not has_steps(node):
        raise flow.refuse(node, "its frames are followed in its equivalent only", "lower it first, or together")
    if node.op_type == "LinearAttention":
        return _attention(flow, node)
    if kind_of(node) is not RecurrentSpec:
        raise flow.refuse(node, "its state cannot be carried from chunk to chunk", "lower it without --stream")
    value = node.inputs[0]
    framing = None if value is None else flow.framing(value, node)
    outputs = [v for v in node.outputs if v.name]
    others = {n: v for n, v in enumerate(node.inputs[1:], 1) if v is not None}
    if any(flow.is_timed(others[n]) for n in (1, 2, 3, 7) if n in others):
        raise flow.refuse(node, "its weights depend on the stream")
    if not isinstance(framing, Frames):
        joined, _ = flow.joined(node, [n for n, v in enumerate(node.inputs) if v is not None])
        if isinstance(joined, Frames):
            raise flow.refuse(node, "its initial states or lengths have frames, but its input does not")
        return [joined] * len(outputs)
    if node.domain:
        raise flow.refuse(
            node,
            "rounds all frames of a sequence by one range, which a stream never knows",
            "stream the float model instead",
        )
    batch_first = node.attributes.get_int("layout", 0) == 1
    sequence, batch = (1, 0) if batch_first else (0, 1)
    if framing.axis == batch:
        return _frames_as_batch(flow, node, framing, batch_first)
    if framing.axis != sequence or framing.outer != size(1):
        raise flow.refuse(node, "its frames are merged with another axis")
    _check_onward(flow, node, others, framing)
    if 4 in others:
        _check_lengths(flow, node, others[4], framing)
    flow.recurrent.append(StatefulNode(node, flow.path, framing.delay))
    y, last = node.outputs[0], flow.last_state(node, framing, node.outputs[1:])
    return [flow.framed(node, v, replace(framing, axis=sequence)) if v is y else last for v in outputs]


def _attention(flow: Flow, node: ir.Node) -> list[Framing]:
    """Carry the state of a LinearAttention if all its inputs have the frames along axis 1."""
    data = [n for n, v in enumerate(node.inputs) if v is not None and n != _PAST_STATE]
    framing, axes = flow.joined(node, data)
    past = node.inputs[_PAST_STATE] if len(node.inputs) > _PAST_STATE else None
    if past is not None and flow.is_timed(past):
        raise flow.refuse(node, "its past_state is computed from the stream", "make it an input of the model")
    if not isinstance(framing, Frames):
        return [framing] * len(node.outputs)
    if set(axes.values()) != {1} or len(axes) < len(data) or not framing.plain:
        raise flow.refuse(node, "its frames are not along axis 1 of all its inputs")
    if not framing.even or framing.rate != 1:
        raise flow.refuse(node, "does not read one frame for each of the stream", "trim its inputs with a Slice")
    flow.recurrent.append(StatefulNode(node, flow.path, framing.delay))
    return [flow.framed(node, node.outputs[0], replace(framing, axis=1)), Unframed.LAST]


_PAST_STATE = 3
"""The number of that input of a LinearAttention."""


def _frames_as_batch(flow: Flow, node: ir.Node, framing: Frames, batch_first: bool) -> list[Framing]:
    """Return the framings of a node along another axis, which treats each frame as a row of the batch."""
    value = node.inputs[0]
    assert value is not None
    length = flow.shape(value, node)[1 if batch_first else 0]
    rows = [n for n in (4, 5, 6) if n < len(node.inputs) and node.inputs[n] is not None]
    joined, axes = flow.joined(node, [0, *rows])
    framing = replace(framing, known=joined.known) if isinstance(joined, Frames) else framing
    if any(axes.get(n) != (0 if n == 4 or batch_first else 1) for n in rows):
        source = value.producer()
        if length == size(1) and source is not None:
            raise flow.refuse(
                source,
                f"makes the frames the batch of {node_ref(node, '').name}, in sequences of 1",
                "did the exporter fix a length of 1? Export with a dynamic time axis",
            )
        raise flow.refuse(
            node, "its frames are its batch, but its initial states or lengths have a fixed batch size"
        )
    at = {0: 0 if batch_first else 2}
    return [
        flow.framed(node, v, replace(framing, axis=at.get(n, 0 if batch_first else 1)))
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
        raise flow.refuse(node, f"reads {_number_of_frames(framing)} the stream has", "trim its input with a Slice")
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


def _number_of_frames(framing: Frames) -> str:
    more = framing.extra
    return f"{more} frame{'s'[: more != 1]} more than" if more > 0 else "not as many frames as"


def _check_lengths(flow: Flow, node: ir.Node, lengths: ir.Value, framing: Frames) -> None:
    """Refuse lengths that are not the number of frames, nor an input that only recurrent nodes read."""
    if flow.framings.get(lengths) is not None:
        flow.framing(lengths, node)
        raise flow.refuse(node, "its sequence_lens are computed from the stream")
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
        raise flow.refuse(node, "its sequence_lens count other frames than those of the stream")
    if value is not None:
        _check_only_lengths(flow, value, value.name or "")


def _check_only_lengths(flow: Flow, value: ir.Value, name: str) -> None:
    """Refuse lengths that a node reads as data: the lengths of a chunk differ from those of the whole."""
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
        raise UnsupportedError(f"'{name}', the sequence lengths, is also an output, but differs in a chunk")


def _check_outputs(flow: Flow, graph: ir.Graph) -> None:
    for value in graph.outputs:
        node = value.producer()
        if node is None:
            continue
        framing = flow.framing(value, node)
        if not isinstance(framing, Frames):
            continue
        if not framing.one_by_one:
            more = _number_of_frames(framing)
            raise flow.refuse(node, f"output '{value.name}' has {more} the stream", "trim it with a Slice")
        if framing.outer != size(1):
            raise flow.refuse(
                node, f"output '{value.name}' holds the frames of several rows, one row after another"
            )
        flow.framings[value] = framing
