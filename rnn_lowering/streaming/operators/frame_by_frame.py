"""Operators that compute each frame from that frame only.

`facts/operators` says along which axes an operator acts, and which axis of its output an axis of an input becomes.
Its frames may be on any axis along which it does not act. Operators that act along the frames are in the other
modules.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import onnx_ir as ir

from rnn_lowering.facts.axes import Axes
from rnn_lowering.facts.known import constants_of
from rnn_lowering.facts.numbers import numbers_vary
from rnn_lowering.facts.operators import axes_by_rule, operator_of
from rnn_lowering.facts.size import ONE, Size, product
from rnn_lowering.streaming.alignment import joined
from rnn_lowering.streaming.editor import input_of
from rnn_lowering.streaming.frames import Flow, Frames, Framing, Unframed


def data_slots(node: ir.Node) -> list[int]:
    """Return the slots of the inputs that a node reads as data, not as sizes or axes."""
    return [n for n, v in enumerate(node.inputs) if v is not None][: operator_of(node).data or None]


def _keeps_order(node: ir.Node) -> bool:
    return operator_of(node).keeps_order and node.op_type != "Identity"


def frame_by_frame(flow: Flow, node: ir.Node) -> list[Framing]:
    """Return the framings of the outputs of a node that computes each frame from that frame only.

    Raises:
        UnsupportedError: The node reads other frames, or its rule is not known.
    """
    slots = data_slots(node)
    _check_sizes(flow, node, slots)
    edits = len(flow.edits)
    framing, axes = joined(flow, node, slots)
    outputs = [v for v in node.outputs if v.name]
    if not isinstance(framing, Frames):
        _check_spread(flow, node, slots, framing)
        return [framing] * len(outputs)
    if _keeps_order(node):
        return [_rearranged(flow, node, slots[0], v) for v in outputs]
    known = known_axes(flow, node)
    places = _places(flow, node, known, axes)
    check_parameters(flow, node, known, axes, slots)
    if len(places) > 1 or None in places:
        raise flow.refuse(
            node,
            "compares frames with each other: they are on different axes of its inputs",
            "transpose one of them",
        )
    axis = next(place for place in places if place is not None)
    framed = flow.resized if len(flow.edits) > edits else flow.framed
    return [framed(node, v, replace(framing, axis=axis)) for v in outputs]


def _rearranged(flow: Flow, node: ir.Node, slot: int, output: ir.Value) -> Frames | Unframed | None:
    """Return the framing of an output that reshapes an input and keeps the order of its elements."""
    value = input_of(node, slot)
    framing = flow.read(value, node)
    if not isinstance(framing, Frames):
        return framing
    before, after = flow.shape(value, node), flow.shape(output, node)
    if after[: framing.axis + 1] == before[: framing.axis + 1]:
        return flow.framed(node, output, framing)
    inner_total = product(before[framing.axis + 1 :]) * framing.inner
    outer_total = product(before[: framing.axis]) * framing.outer
    for axis in range(len(after)):
        inner = inner_total.divided(product(after[axis + 1 :]))
        outer = outer_total.divided(product(after[:axis]))
        if inner is None or outer is None or not outer.is_integral:
            continue
        moved = _at_rate(replace(framing, axis=axis, outer=outer), inner)
        if moved is not None and moved.size() == after[axis]:
            return flow.resampled(node, output, framing, moved)
    raise flow.refuse(
        node,
        "mixes the frames with other axes",
        "did the exporter fix the batch size or a length? Export with dynamic axes, or open one (--open-dim)",
    )


def _at_rate(framing: Frames, inner: Size) -> Frames | None:
    """Return the framing at which `inner` elements become frames: their number multiplies the rate."""
    times = inner.constant
    if times is None:
        return replace(framing, inner=inner) if inner.is_integral else None
    extra, ready = framing.extra * times, framing.ready * times
    if times <= 0 or extra.denominator > 1 or ready.denominator > 1:
        return None
    return replace(framing, inner=ONE, extra=int(extra), ready=int(ready), rate=framing.rate * times)


def _check_sizes(flow: Flow, node: ir.Node, data: Sequence[int]) -> None:
    """Refuse sizes and axes that depend on the frames, or on their number if the operator has no size input."""
    for value in (v for n, v in enumerate(node.inputs) if v is not None and n not in data):
        if flow.framings.get(value) is not None:
            flow.read(value, node)
            raise flow.refuse(node, f"takes a size from the stream: '{value.name}'", "compute it from a shape")
        if numbers_vary(flow.known, value) and not operator_of(node).sized:
            raise flow.refuse(
                node,
                f"'{value.name}' depends on the number of frames, which a stream never knows",
                "only sizes may depend on it",
            )


def _check_spread(flow: Flow, node: ir.Node, data: Sequence[int], framing: Unframed | None) -> None:
    """Refuse a size that depends on the number of frames, unless it repeats one element without frames."""
    if not any(numbers_vary(flow.known, v) for n, v in enumerate(node.inputs) if v is not None and n not in data):
        return
    if framing is Unframed.LAST:
        raise flow.refuse(
            node,
            "spreads a value that is known only after the last frame over all frames",
            "make that value an output",
        )
    before, after = flow.shape(input_of(node, data[0]), node), flow.shape(node.outputs[0], node)
    padded = (ONE,) * (len(after) - len(before)) + before
    once = all(old == ONE for old, dim in zip(padded, after, strict=True) if dim.varies)
    if node.op_type not in ("Expand", "Tile") or not once or not any(dim.varies for dim in after):
        raise flow.refuse(
            node,
            f"gives '{node.outputs[0].name}' a size that depends on the number of frames, but no data with frames",
            "compute it from values with frames",
        )


def check_parameters(flow: Flow, node: ir.Node, known: Axes, axes: Mapping[int, int], slots: Iterable[int]) -> None:
    """Refuse an input with an entry for each frame of a fixed length: the axis that meets the frames has size 1.

    Args:
        known: How the node's axes meet.
        axes: The axis of the frames, by slot.
        slots: The inputs that the node reads as data.
    """
    of_frames = {known.label(slot, axis) for slot, axis in axes.items()}
    for slot in slots:
        value = input_of(node, slot)
        labels = known.inputs.get(slot)
        if labels is not None and of_frames.isdisjoint(labels):
            continue
        for axis, dim in enumerate(flow.shape(value, node)):
            meets = labels is None or known.label(slot, axis) in of_frames
            if meets and dim != ONE and axis != axes.get(slot):
                raise flow.refuse(
                    node,
                    f"axis {axis} of '{value.name}' has size {dim} and meets the frames, but has none itself",
                    f"name it in --stream too: '{value.name}:{axis}'"
                    if value.is_graph_input()
                    else "give it size 1 there, or export with a dynamic time axis",
                )


def _places(flow: Flow, node: ir.Node, known: Axes, axes: Mapping[int, int]) -> set[int | None]:
    """Return the axes of the output that hold the frames, from their axis in each input; None for an unknown one.

    Raises:
        UnsupportedError: The node acts along the frames.
    """
    places: set[int | None] = set()
    for slot, axis in axes.items():
        label = known.label(slot, axis)
        if label is not None and label not in known.output:
            raise flow.refuse(
                node,
                f"looks beyond its frame: it acts along axis {axis}, which holds the frames",
                "let it act along another axis",
            )
        places.add(None if label is None else known.output.index(label))
    return places


def coupled_axes(flow: Flow, node: ir.Node) -> list[int]:
    """Return the axes of the first input along which a node acts; none if unknown."""
    known = _axes_of(flow, node)
    return [] if known is None else [n for n, label in enumerate(known.inputs[0]) if label not in known.output]


def known_axes(flow: Flow, node: ir.Node) -> Axes:
    """Return how the axes of a node's inputs become those of its output; refuse the node if that is unknown."""
    known = _axes_of(flow, node)
    if known is None:
        raise flow.refuse(
            node,
            "is not known to act on each frame alone",
            "docs/streaming-reference.md lists the operators that a stream can contain",
        )
    return known


def _axes_of(flow: Flow, node: ir.Node) -> Axes | None:
    """Return how the axes of a node's inputs become those of its output; None if unknown."""
    numbers = partial(constants_of, flow.known, node)
    return axes_by_rule(node, flow.opset, lambda value: flow.shape(value, node), numbers)
