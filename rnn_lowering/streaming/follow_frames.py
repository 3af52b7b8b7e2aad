"""Follow the frames of a stream through a model, from its inputs to its outputs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from shlex import quote
from typing import TypeVar

import onnx_ir as ir

from rnn_lowering.errors import NodeRef, UnsupportedError
from rnn_lowering.facts.infer import infer
from rnn_lowering.facts.known import SizingError, add_initializers
from rnn_lowering.facts.numbers import UnfollowedError, evaluate, numbers_vary
from rnn_lowering.facts.operators import bodies_of, captured_values, inputs_of, operator_of, reached, values_used
from rnn_lowering.facts.size import size
from rnn_lowering.flags import set_dims
from rnn_lowering.nodes.kinds import is_recurrent
from rnn_lowering.nodes.spec import node_ref
from rnn_lowering.streaming.alignment import frame_by_frame
from rnn_lowering.streaming.anchored_sizes import AnchoredSizes
from rnn_lowering.streaming.attention.position_rows import cut_table
from rnn_lowering.streaming.attention.scores import compared, of_pairs
from rnn_lowering.streaming.attention.shifts import compared_by_distance
from rnn_lowering.streaming.flow import Flow
from rnn_lowering.streaming.frames import FirstFrame, Frames, Framing, Pairs, Pooled, Unframed, WholeSequenceValue
from rnn_lowering.streaming.operators.cuts_and_joins import joined_along, padded, picked, sliced
from rnn_lowering.streaming.operators.frame_numbers import numbering, of_first_frame, settle_comparison
from rnn_lowering.streaming.operators.pooling import (
    POOLINGS,
    contracted,
    deviating,
    of_pooled,
    pooled,
    softmaxed,
    summed,
)
from rnn_lowering.streaming.operators.recurrences import frames_compared, pad_in_front, recurrent, scanned
from rnn_lowering.streaming.operators.resizing import resized
from rnn_lowering.streaming.operators.windows import check_paddings, overlapped, transformed, transposed, windowed
from rnn_lowering.streaming.sizes import CHUNK, LARGEST_UNIT, TIME, StreamValues, TimeInputs


def follow(
    model: ir.Model,
    time: TimeInputs,
    loops: Mapping[NodeRef, UnsupportedError],
    max_frames: int | None = None,
    anchored: AnchoredSizes | None = None,
) -> Flow:
    """Return the framing of each value of a model.

    Args:
        model: A sorted model without functions; it is not changed.
        time: The input axes that hold frames.
        loops: Its Loops that could not become Scans, each with the error.
        max_frames: The cache of an attention to all past frames has as many rows; None: it grows.
        anchored: The sequences for which nodes read sizes from other values; None: nodes read their own.

    If a size is an integer only for multiples of a number of frames, the model requires such a multiple.

    Raises:
        UnsupportedError: A node reads other frames, or its rule is not known.
    """
    units: list[tuple[NodeRef | None, int]] = [] if anchored is None else [(anchored.node, anchored.unit)]
    while True:
        known, fewest = StreamValues.start(model, time.sizes()), 1 if anchored is None else anchored.fewest
        flow = Flow(known, units=units, loops=loops, max_frames=max_frames, fewest_frames=fewest)
        flow.data.update(model.graph.inputs)
        flow.known.unit = unit = math.lcm(*(multiple for _, multiple in units))
        for value in model.graph.inputs:
            axis = time.axes.get(value.name or "")
            if axis is not None:
                flow.framings[value] = Frames(axis, rate=Fraction(time.rate(value.name or "")))
        try:
            _follow_graph(flow, model.graph)
            _check_outputs(flow, model.graph)
        except UnsupportedError as error:
            if unit % flow.known.wanted == 0 or math.lcm(unit, flow.known.wanted) > LARGEST_UNIT:
                raise
            units = [*flow.units, (error.node, flow.known.wanted)]
        else:
            return flow


def _follow_graph(flow: Flow, graph: ir.Graph) -> None:
    add_initializers(flow.known, graph)
    for node in graph:
        if not node.outputs:
            continue
        outputs = [v for v in node.outputs if v.name]
        try:
            framings = _follow_node(flow, node)
        except SizingError as error:
            raise flow.refuse(
                error.node,
                f"does not work with another number of frames: {error.reason}",
                "did the exporter fix the length? Export with a dynamic time axis",
            ) from error
        flow.framings.update((v, m) for v, m in zip(outputs, framings, strict=True) if m is not None)
        if _holds_data(flow, node):
            flow.data.update(outputs)


def _holds_data(flow: Flow, node: ir.Node) -> bool:
    """Whether a node computes from what inputs hold, or at random; else from constants, sizes and positions."""
    if node.op_type in ("Shape", "Size") and node.domain == "":
        return False
    return operator_of(node).random or not flow.data.isdisjoint(values_used(node))


def _follow_node(flow: Flow, node: ir.Node) -> list[Framing]:
    """Return the framings of the named outputs of a node: those of the first rule that knows what it reads."""
    if node.domain == "" and node.op_type == "If":
        return _branches(flow, node)
    check_paddings(flow, node)
    if node.op_type in ("Div", "Slice") and node.domain == "":
        flow.known.shortest = flow.shortest  # a bound may be the size of what is read before
    infer(flow.known, node)
    if node.op_type == "Slice" and _is_positional(flow, node):
        cut_table(flow.known, node)
    return next(framings for rule in _BY_WHAT_IS_READ if (framings := rule(flow, node)) is not None)


def _of_scores(flow: Flow, node: ir.Node) -> list[Framing] | None:
    return of_pairs(flow, node) if _reads(flow, node, Pairs) else None


def _of_sizes(flow: Flow, node: ir.Node) -> list[Framing] | None:
    if node.op_type not in ("Shape", "Size") or node.domain:
        return None
    whole = _reads(flow, node, WholeSequenceValue)
    if whole and node.inputs[0] not in flow.known.shapes:
        return [*whole]
    evaluate(flow.known, node)
    return [None]


def _of_whole_sequence(flow: Flow, node: ir.Node) -> list[Framing] | None:
    whole = _reads(flow, node, WholeSequenceValue)
    if not whole:
        return None
    if not _reads(flow, node, *_STREAMED) or _is_positional(flow, node):
        return _of_whole(flow, node, whole[0])
    if (scores := compared_by_distance(flow, node)) is None:
        raise whole[0].error
    return scores


def _of_frames(flow: Flow, node: ir.Node) -> list[Framing] | None:
    if not _reads(flow, node, *_STREAMED):
        return None
    return _of_positions(flow, node) if _is_positional(flow, node) else _rule(flow, node)


def _of_frame_numbers(flow: Flow, node: ir.Node) -> list[Framing] | None:
    if not any(map(flow.is_timed, values_used(node))):
        return None
    try:
        return numbering(flow, node)
    except UnsupportedError as error:
        return _of_whole(flow, node, WholeSequenceValue(error))


_STREAMED = (Frames, Pooled, Unframed, FirstFrame)

K = TypeVar("K")


def _reads(flow: Flow, node: ir.Node, *kinds: type[K]) -> list[K]:
    """Return the framings of these kinds of what a node reads."""
    return [framing for v in values_used(node) if isinstance(framing := flow.framings.get(v), kinds)]


def _is_positional(flow: Flow, node: ir.Node) -> bool:
    """Whether a node reads positions, sizes and constants only."""
    return flow.data.isdisjoint(values_used(node))


def _without_stream(flow: Flow, node: ir.Node) -> list[Framing]:
    """Return the framings of outputs that depend on the length of the stream, or on nothing of it."""
    outputs = [v for v in node.outputs if v.name]
    try:
        evaluate(flow.known, node)
    except UnfollowedError:
        if settle_comparison(flow, node):
            return [None]
        if _adds_equal_frames(flow, node):
            return _of_positions(flow, node)
        return _of_whole(flow, node, WholeSequenceValue(_not_a_size(flow, node)))
    if all(v in flow.known.contents for v in outputs) or not any(map(flow.is_timed, values_used(node))):
        return [None] * len(outputs)
    return _of_positions(flow, node)


_BY_WHAT_IS_READ = (
    _of_scores,
    _of_sizes,
    _of_whole_sequence,
    of_first_frame,
    _of_frames,
    _of_frame_numbers,
    _without_stream,
)
"""The rules of a node in their order: each returns None for a node that reads nothing of what it knows."""


def _adds_equal_frames(flow: Flow, node: ir.Node) -> bool:
    """Whether a node overlaps frames that are all equal, such as the squared windows that divide an overlap-add."""
    if node.op_type != "Col2Im" or node.domain or node.inputs[0] is None:
        return False
    dims = flow.known.shapes.get(node.inputs[0], ())
    return any(dim.varies for dim in dims) and not numbers_vary(flow.known, node.inputs[0])


def _of_positions(flow: Flow, node: ir.Node) -> list[Framing]:
    """Return the framings of outputs that are computed from positions or sizes. An attention may read what depends
    on the whole sequence: its mask."""
    edits = len(flow.edits)
    try:
        return _rule(flow, node)
    except UnsupportedError as error:
        del flow.edits[edits:]
        return _of_whole(flow, node, WholeSequenceValue(error))


def _not_a_size(flow: Flow, node: ir.Node) -> UnsupportedError:
    if node.op_type == "Range":
        step = flow.known.constant(node.inputs[2])
        if step is not None and not float(step.reshape(-1)[0]).is_integer():
            return flow.refuse(node, "counts frames in steps that are no whole number", "count by 1, then multiply")
        return flow.refuse(
            node,
            "counts frames in a way that needs the whole sequence",
            "start the Range at a constant whole number, with a constant step",
        )
    return flow.refuse(
        node,
        "uses the number of frames, which a stream never knows, other than as a size",
        "sizes may be the number of frames times a constant, plus a constant",
    )


def _of_whole(flow: Flow, node: ir.Node, framing: WholeSequenceValue) -> list[Framing]:
    """Return the framings of outputs that depend on the whole sequence."""
    outputs = [v for v in node.outputs if v.name]
    for value in outputs:
        _forget_sizes(flow, node, value)
    return [framing] * len(outputs)


def _forget_sizes(flow: Flow, node: ir.Node, output: ir.Value) -> None:
    """Forget the shape of an output if it depends on the whole sequence; but the shapes of masks are followed."""
    lost = set() if _makes_masks(node) and _is_positional(flow, node) else {TIME, CHUNK}
    dims = flow.known.shapes.get(output, ())
    if any(isinstance(symbol, int) or symbol in lost for dim in dims for symbol in dim.symbols):
        del flow.known.shapes[output]


def _makes_masks(node: ir.Node) -> bool:
    row = operator_of(node)
    return (
        row.elementwise or row.keeps_order or row.moves or node.op_type in ("GatherND", "MatMul", "Range", "Trilu")
    )


def _rule(flow: Flow, node: ir.Node) -> list[Framing]:
    if node.op_type == "Scan" and node.domain == "":
        return scanned(flow, node)
    if bodies_of(node):
        raise _loop_error(flow, node)
    if any(isinstance(flow.framings.get(v), Pooled) for v in node.inputs if v is not None):
        return of_pooled(flow, node)
    if is_recurrent(node):
        return recurrent(flow, node)
    scores = compared(flow, node)
    if scores is not None:
        return scores
    framings = _along_frames(flow, node) if node.domain == "" else None
    framings = frame_by_frame(flow, node) if framings is None else framings
    for value, framing in zip([v for v in node.outputs if v.name], framings, strict=True):
        if isinstance(framing, WholeSequenceValue):
            _forget_sizes(flow, node, value)
    return framings


def _along_frames(flow: Flow, node: ir.Node) -> list[Framing] | None:
    """Return the framings of the outputs of an operator that acts along the frames; None if it does not."""
    if node.op_type in _JOINING and (joined_frames := _JOINING[node.op_type](flow, node)) is not None:
        return joined_frames
    value, rule = node.inputs[0] if node.inputs else None, ALONG_FRAMES.get(node.op_type)
    framing = None if rule is None or value is None else flow.read(value, node)
    return rule(flow, node, framing) if rule is not None and isinstance(framing, Frames) else None


ALONG_FRAMES = {
    **dict.fromkeys(POOLINGS, pooled),
    "AveragePool": windowed,
    "Col2Im": overlapped,
    "Conv": windowed,
    "ConvInteger": windowed,
    "ConvTranspose": transposed,
    "CumProd": summed,
    "CumSum": summed,
    "Gather": picked,
    "LpPool": windowed,
    "MaxPool": windowed,
    "Pad": padded,
    "QLinearConv": windowed,
    "Resize": resized,
    "STFT": transformed,
    "Slice": sliced,
    "Softmax": softmaxed,
    "Upsample": resized,
}
"""Operators that may act along the frames of their first input."""

_JOINING = {"Concat": joined_along, "Einsum": contracted, "MatMul": contracted, "Sub": deviating}
"""Operators that may join frames of one input with others."""


def _branches(flow: Flow, node: ir.Node) -> list[Framing]:
    condition, names = node.inputs[0], ["then_branch", "else_branch"]
    if condition is not None and flow.is_timed(condition):
        if isinstance(whole := flow.framings.get(condition), WholeSequenceValue):
            raise whole.error
        raise _unlike(flow, node, "its condition depends on the stream")
    constant, before = flow.known.constant(condition), _count_states(flow)
    if constant is not None:
        names = names[:1] if constant.all() else names[1:]
    ends = [_follow_branch(flow, node, name) for name in names]
    if constant is None and condition is not None and _count_states(flow) > before:
        _check_same_branch(flow, node, condition)
    framings = [[flow.framings.get(v) for v in values] for values in ends]
    for framing in (framing for branch in framings for framing in branch):
        if isinstance(framing, Pooled | Pairs):
            raise framing.error
    if any(branch != framings[0] for branch in framings):
        raise _unlike(flow, node, "the frames of its branches differ in axis, rate or position")
    for output, values in zip(node.outputs, zip(*ends, strict=True), strict=True):
        _merge_facts(flow, node, output, values)
    return [framing for v, framing in zip(node.outputs, framings[0], strict=True) if v.name]


def _unlike(flow: Flow, node: ir.Node, reason: str) -> UnsupportedError:
    """Return the error for an If whose branches a stream cannot choose."""
    return flow.refuse(node, reason, "compute both branches, then choose with Where")


def _follow_branch(flow: Flow, node: ir.Node, name: str) -> Sequence[ir.Value]:
    """Follow the frames through a branch of an If; return its outputs."""
    graph, scope = node.attributes[name].as_graph(), flow.scope
    if len(graph.outputs) != len(node.outputs):
        raise flow.refuse(
            node, "its branches have different numbers of outputs", "check the model with onnx.checker"
        )
    flow.scope = f"{scope} > {node_ref(node, '').name} (If) {name}"
    _follow_graph(flow, graph)
    flow.scope = scope
    return list(graph.outputs)


def _count_states(flow: Flow) -> int:
    """Return the number of states found so far; not the number of frames, which every call counts."""
    return len(flow.recurrent) + sum(edit.carries for edit in flow.edits)


def _check_same_branch(flow: Flow, node: ir.Node, condition: ir.Value) -> None:
    """Refuse states in branches that an input chooses: another call may take another branch."""

    def before(value: ir.Value) -> list[ir.Value]:
        source = value.producer()
        read = [] if source is None else [*inputs_of(value), *captured_values(source)]
        of_sizes = source is not None and source.domain == "" and source.op_type in ("Shape", "Size")
        return [v for v in read if not of_sizes or not _has_fixed_sizes(flow, v)]

    choosing = [value for value in reached([condition], before) if value.is_graph_input()]
    for value in sorted(choosing, key=lambda v: flow.framings.get(v) is None):
        raise _choosing(flow, node, value)


def _choosing(flow: Flow, node: ir.Node, value: ir.Value) -> UnsupportedError:
    """Return the error for states in branches that an input chooses, by its sizes if it has frames."""
    may_skip = "a call may skip a state in its branches, since"
    if flow.framings.get(value) is None:
        hint = f"fix that input: --set-input {quote(value.name or '')}=VALUE"
        return flow.refuse(node, f"{may_skip} input '{value.name}' chooses the branch", hint)
    names = [symbol for dim in flow.known.shapes[value] for symbol in dim.symbols if isinstance(symbol, str)]
    sizes = set_dims(names)
    hint = f"fix them: {sizes}" if sizes else "compute both branches, then choose with Where"
    return flow.refuse(node, f"{may_skip} the sizes of input '{value.name}' choose the branch", hint)


def _has_fixed_sizes(flow: Flow, value: ir.Value) -> bool:
    """Whether the sizes of a value are equal in all calls, as the sizes of inputs are."""
    dims = flow.known.shapes.get(value)
    named = dims is not None and all(isinstance(symbol, str) for dim in dims for symbol in dim.symbols)
    return value.is_graph_input() or named


def _merge_facts(flow: Flow, node: ir.Node, output: ir.Value, values: Sequence[ir.Value]) -> None:
    """Record for an output of If the facts on which its branches agree."""
    known = flow.known
    if values[0] in known.types:
        known.types[output] = known.types[values[0]]
    shapes = {known.shapes.get(v) for v in values}
    contents = {str(known.contents[v].tolist()) if v in known.contents else "" for v in values}
    if any(numbers_vary(known, v) for v in values) and len(contents) > 1:
        raise _unlike(flow, node, "its branches depend on the number of frames in different ways")
    ranks = {None if shape is None else len(shape) for shape in shapes}
    if len(ranks) == 1 and None not in ranks:
        dims = [list(dict.fromkeys(d)) for d in zip(*(shape for shape in shapes if shape is not None), strict=True)]
        if any(len(d) > 1 and any(dim.varies for dim in d) for d in dims):
            raise _unlike(flow, node, "its branches have different numbers of frames")
        known.shapes[output] = tuple(d[0] if len(d) == 1 else known.unknown() for d in dims)
    if len(contents) == len(shapes) == 1 and values[0] in known.contents:
        known.contents[output] = known.contents[values[0]]


def _loop_error(flow: Flow, node: ir.Node) -> UnsupportedError:
    """Return the error for a Loop that reads the stream or holds a recurrent node."""
    error = flow.loops.get(node_ref(node, flow.scope))
    if error is not None:
        return error
    recurrent = next((n for graph in bodies_of(node) for n in graph.all_nodes() if is_recurrent(n)), None)
    if recurrent is not None:
        scope = f"{flow.scope} > {node_ref(node, '').name} ({node.op_type}) body"
        return UnsupportedError(
            "a node in a loop body has a state per iteration",
            hint="export without the loop",
            node=node_ref(recurrent, scope),
        )
    return flow.refuse(
        node, "loops over values of the stream in a way that is not supported", "export without the loop"
    )


def _check_outputs(flow: Flow, graph: ir.Graph) -> None:
    for value in graph.outputs:
        node = value.producer()
        if node is None:
            continue
        framing = flow.read(value, node)
        if not isinstance(framing, Frames):
            continue
        if not framing.one_by_one:
            compared = frames_compared(framing)
            hint = "trim it with a Slice" if framing.extra > 0 else pad_in_front(framing)
            raise flow.refuse(node, f"output '{value.name}' has {compared} the stream", hint)
        if framing.outer != size(1):
            raise flow.refuse(
                node,
                f"output '{value.name}' holds the frames of several rows, one row after another",
                "undo the Reshape before it",
            )
        flow.framings[value] = framing
