"""Operators that compute each frame from that frame only: the axes that they couple, and the output framing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import onnx_ir as ir

from rnn_lowering.inference.polynomials import ONE, Size, product
from rnn_lowering.inference.shape_arithmetic import depends_on_time
from rnn_lowering.spec.node_outputs import ELEMENTWISE
from rnn_lowering.streaming.editor import input_of
from rnn_lowering.streaming.frames.delays import joined
from rnn_lowering.streaming.frames.flow import Flow
from rnn_lowering.streaming.frames.framing import Frames, Framing, Unframed

Coupled = Iterable[tuple[int, int]]
"""Pairs of the number of an input and an axis."""

REARRANGING = frozenset(("Reshape", "Flatten", "Squeeze", "Unsqueeze"))

_BY_ELEMENT = ELEMENTWISE | {
    *("CastLike", "DequantizeLinear", "Dropout", "Expand", "OneHot", "QuantizeLinear", "Resize", "Tile"),
    *("Transpose", "Upsample"),  # Resize and Upsample: a size that changes is noticed
}

_SIZED = frozenset(("Expand", "Tile", "Resize", "Upsample", "Slice", *REARRANGING))
"""Operators whose other inputs may be sizes that depend on the number of frames."""

_READ_FIRST = _SIZED | {"OneHot", "Split", "TopK", "CumSum", "Pad"}
"""Operators whose other inputs are sizes, axes and the like; so are those of reductions."""


def data_slots(node: ir.Node) -> list[int]:
    """Return the slots of the inputs that a node reads as data, not as sizes or axes."""
    given = [n for n, v in enumerate(node.inputs) if v is not None]
    first_only = node.op_type in _READ_FIRST or node.op_type.startswith("Reduce")
    return given[:1] if first_only and node.domain == "" else given


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
    if node.op_type in REARRANGING and node.domain == "":
        return [_rearranged(flow, node, slots[0], v) for v in outputs]
    _refuse_coupling(flow, node, axes)
    places = {_moved(flow, node, slot, axis) for slot, axis in axes.items()}
    if len(places) > 1 or None in places:
        raise flow.refuse(node, "compares frames with each other: they are on different axes of its inputs")
    axis = next(place for place in places if place is not None)
    framed = flow.resized if len(flow.edits) > edits else flow.framed
    return [framed(node, v, replace(framing, axis=axis)) for v in outputs]


def _rearranged(flow: Flow, node: ir.Node, slot: int, output: ir.Value) -> Frames | Unframed | None:
    """Return the framing of an output that reshapes an input and keeps the order of its elements."""
    value = input_of(node, slot)
    framing = flow.framing(value, node)
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
        if inner is None or outer is None or not outer.integral(1):
            continue
        found = _at_rate(replace(framing, axis=axis, outer=outer), inner)
        if found is not None and found.size() == after[axis]:
            return flow.resampled(node, output, found)
    raise flow.refuse(node, "mixes the frames with other axes", "did the exporter fix the batch size or a length?")


def _at_rate(framing: Frames, inner: Size) -> Frames | None:
    """Return the framing at which `inner` elements become frames: their number multiplies the rate."""
    times = inner.constant
    if times is None:
        return replace(framing, inner=inner) if inner.integral(1) else None
    extra, known = framing.extra * times, framing.known * times
    if times <= 0 or extra.denominator > 1 or known.denominator > 1:
        return None
    return replace(framing, inner=ONE, extra=int(extra), known=int(known), rate=framing.rate * times)


def _check_sizes(flow: Flow, node: ir.Node, data: Sequence[int]) -> None:
    """Refuse sizes and axes that depend on the frames, or on their number if the operator has no size input."""
    for value in (v for n, v in enumerate(node.inputs) if v is not None and n not in data):
        if flow.framings.get(value) is not None:
            flow.framing(value, node)
            raise flow.refuse(node, f"takes a size from the stream: '{value.name}'")
        if depends_on_time(flow.known, value) and node.op_type not in _SIZED:
            raise flow.refuse(node, f"'{value.name}' depends on the number of frames, which a stream never knows")


def _check_spread(flow: Flow, node: ir.Node, data: Sequence[int], framing: Unframed | None) -> None:
    """Refuse a size that depends on the number of frames, unless it repeats one element without frames."""
    sizes = [v for n, v in enumerate(node.inputs) if v is not None and n not in data]
    if not any(depends_on_time(flow.known, v) for v in sizes):
        return
    if framing is Unframed.LAST:
        raise flow.refuse(node, "spreads a value that is known only after the last frame over all frames")
    value = node.inputs[data[0]]
    before = () if value is None else flow.shape(value, node)
    after = flow.shape(node.outputs[0], node)
    padded = (ONE,) * (len(after) - len(before)) + before
    once = all(old == ONE for old, dim in zip(padded, after, strict=True) if dim.timed)
    if node.op_type not in ("Expand", "Tile") or not once or not any(dim.timed for dim in after):
        raise flow.refuse(
            node,
            f"gives '{node.outputs[0].name}' a size that depends on the number of frames, but no data with frames",
        )


def _moved(flow: Flow, node: ir.Node, slot: int, axis: int) -> int | None:
    """Return the output axis for an axis of an input, or None if it is not known."""
    value = input_of(node, slot)
    rank, after = len(flow.shape(value, node)), len(flow.shape(node.outputs[0], node))
    if node.op_type in ELEMENTWISE or node.op_type in ("Expand", "Tile"):
        return axis + after - rank
    if node.op_type in _MOVED:
        return _MOVED[node.op_type](flow, node, slot, axis)
    if node.op_type.startswith("Reduce"):
        return _kept(node, axis, [a % rank for _, a in _reduction(flow, node)])
    return axis if slot == 0 or node.op_type in ("Concat", "GatherElements") else None


def _kept(node: ir.Node, axis: int, reduced: Iterable[int]) -> int:
    return axis if node.attributes.get_int("keepdims", 1) else axis - sum(n < axis for n in set(reduced))


def _moved_by_matmul(flow: Flow, node: ir.Node, slot: int, axis: int) -> int:
    ranks, after = [_rank(flow, node, 0), _rank(flow, node, 1)], len(flow.shape(node.outputs[0], node))
    if ranks[1 - slot] > 1:
        return axis + after - ranks[slot]
    return axis if slot == 0 or axis < ranks[1] - 2 else after - 1


def _moved_by_gather(flow: Flow, node: ir.Node, slot: int, axis: int) -> int:
    along = (node.attributes.get_int("axis", 0) or 0) % _rank(flow, node)
    if slot == 1:
        return along + axis
    return axis if axis < along else axis + _rank(flow, node, 1) - 1


def _moved_by_one_hot(flow: Flow, node: ir.Node, slot: int, axis: int) -> int:
    added = (node.attributes.get_int("axis", -1) or 0) % (_rank(flow, node) + 1)
    return axis if axis < added else axis + 1


def _moved_by_einsum(flow: Flow, node: ir.Node, slot: int, axis: int) -> int | None:
    left, _, right = (node.attributes.get_string("equation", "") or "").replace(" ", "").partition("->")
    place = right.find(left.split(",")[slot][axis]) if "." not in left else -1
    return None if place < 0 else place


def _moved_by_arg(flow: Flow, node: ir.Node, slot: int, axis: int) -> int:
    return _kept(node, axis, [(node.attributes.get_int("axis", 0) or 0) % _rank(flow, node)])


def _moved_by_transpose(flow: Flow, node: ir.Node, slot: int, axis: int) -> int:
    rank = _rank(flow, node)
    return list(node.attributes.get_ints("perm", ()) or reversed(range(rank))).index(axis)


def _moved_by_gemm(flow: Flow, node: ir.Node, slot: int, axis: int) -> int:
    return slot if slot < 2 else axis + 2 - _rank(flow, node, 2)


_MOVED: dict[str, Callable[[Flow, ir.Node, int, int], int | None]] = {
    "ArgMax": _moved_by_arg,
    "ArgMin": _moved_by_arg,
    "Einsum": _moved_by_einsum,
    "Gather": _moved_by_gather,
    "Gemm": _moved_by_gemm,
    "MatMul": _moved_by_matmul,
    "OneHot": _moved_by_one_hot,
    "Transpose": _moved_by_transpose,
}


def _refuse_coupling(flow: Flow, node: ir.Node, axes: dict[int, int]) -> None:
    coupled = coupled_axes(flow, node)
    if coupled is None:
        raise flow.refuse(
            node,
            "is not known to act on each frame alone",
            "docs/streaming.md lists the operators that a stream can contain",
        )
    for slot, axis in coupled:
        if slot in axes and axes[slot] == axis % _rank(flow, node, slot):
            raise flow.refuse(
                node, f"looks beyond its frame: it acts along axis {axes[slot]}, which holds the frames"
            )


def coupled_axes(flow: Flow, node: ir.Node) -> Coupled | None:
    """Return the axes that a node couples, or None if they are not known."""
    if node.domain:
        return None
    if node.op_type in _BY_ELEMENT:
        cropped = node.attributes.get_string("coordinate_transformation_mode", "") == "tf_crop_and_resize"
        return None if cropped else ()
    rule = _RULES.get(node.op_type) or (_reduction if node.op_type.startswith("Reduce") else None)
    return None if rule is None else list(rule(flow, node))


def _rank(flow: Flow, node: ir.Node, slot: int = 0) -> int:
    value = node.inputs[slot]
    return 0 if value is None else len(flow.shape(value, node))


def _axis(default: int) -> Callable[[Flow, ir.Node], Coupled]:
    return lambda flow, node: [(0, node.attributes.get_int("axis", default) or 0)]


def _softmax(flow: Flow, node: ir.Node) -> Coupled:
    if flow.opset >= 13:
        return [(0, node.attributes.get_int("axis", -1) or 0)]
    return _from_axis(1)(flow, node)


def _from_axis(default: int) -> Callable[[Flow, ir.Node], Coupled]:
    """Couple all axes from the attribute `axis` on."""

    def rule(flow: Flow, node: ir.Node) -> Coupled:
        rank, axis = _rank(flow, node), node.attributes.get_int("axis", default) or 0
        return [(0, n) for n in range(axis % max(rank, 1), rank)]

    return rule


def _all_from(first: int) -> Callable[[Flow, ir.Node], Coupled]:
    """Couple all axes from `first` on."""
    return lambda flow, node: [(0, n) for n in range(first, _rank(flow, node))]


def _reduction(flow: Flow, node: ir.Node) -> Coupled:
    given = flow.known.parameter(node, "axes")
    held = [] if given is None else [n.constant for n in given]
    axes = range(_rank(flow, node)) if given is None or None in held else [int(n or 0) for n in held]
    if not axes and node.attributes.get_int("noop_with_empty_axes"):
        return []
    return [(0, axis) for axis in axes or range(_rank(flow, node))]


def _input_axis(flow: Flow, node: ir.Node) -> Coupled:
    """Couple the axis in the second input."""
    given = node.inputs[1]
    held = None if given is None else flow.known.constant(given)
    return [(0, int(held))] if held is not None and held.size == 1 else _all_from(0)(flow, node)


def _mean_variance(flow: Flow, node: ir.Node) -> Coupled:
    return [(0, axis) for axis in node.attributes.get_ints("axes", None) or (0, 2, 3)]


def _matmul(flow: Flow, node: ir.Node) -> Coupled:
    return [(0, -1), (1, -2 if _rank(flow, node, 1) > 1 else -1)]


def _gemm(flow: Flow, node: ir.Node) -> Coupled:
    transposed = [node.attributes.get_int(name, 0) for name in ("transA", "transB")]
    return [(0, 0 if transposed[0] else 1), (1, 1 if transposed[1] else 0)]


def _einsum(flow: Flow, node: ir.Node) -> Coupled:
    left, arrow, right = (node.attributes.get_string("equation", "") or "").replace(" ", "").partition("->")
    if not arrow or "." in left:
        return [(slot, axis) for slot in range(len(node.inputs)) for axis in range(_rank(flow, node, slot))]
    terms = enumerate(left.split(","))
    return [(slot, axis) for slot, term in terms for axis, label in enumerate(term) if label not in right]


def _gather(flow: Flow, node: ir.Node) -> Coupled:
    return [(0, node.attributes.get_int("axis", 0) or 0)]


def _batch_normalization(flow: Flow, node: ir.Node) -> Coupled:
    return _all_from(0)(flow, node) if node.attributes.get_int("training_mode", 0) else [(0, 1)]


def _convolution(flow: Flow, node: ir.Node) -> Coupled:
    return _all_from(1)(flow, node)  # along time it has a rule of its own


_RULES: dict[str, Callable[[Flow, ir.Node], Coupled]] = {
    "ArgMax": _axis(0),
    "ArgMin": _axis(0),
    "AveragePool": _convolution,
    "BatchNormalization": _batch_normalization,
    "Concat": lambda flow, node: [
        (slot, node.attributes.get_int("axis", 1) or 0) for slot in range(len(node.inputs))
    ],
    "Conv": _convolution,
    "ConvTranspose": _convolution,
    "CumSum": _input_axis,
    "Einsum": _einsum,
    "Gather": _gather,
    "GatherElements": lambda flow, node: [(slot, node.attributes.get_int("axis", 0) or 0) for slot in (0, 1)],
    "Gemm": _gemm,
    "GlobalAveragePool": _all_from(2),
    "GlobalLpPool": _all_from(2),
    "GlobalMaxPool": _all_from(2),
    "GroupNormalization": _all_from(1),
    "Hardmax": _softmax,
    "InstanceNormalization": _all_from(1),
    "LRN": lambda flow, node: [(0, 1)],
    "LayerNormalization": _from_axis(-1),
    "LogSoftmax": _softmax,
    "LpNormalization": _axis(-1),
    "LpPool": _convolution,
    "MatMul": _matmul,
    "MaxPool": _convolution,
    "MeanVarianceNormalization": _mean_variance,
    "RMSNormalization": _from_axis(-1),
    "Softmax": _softmax,
    "Split": _axis(0),
    "TopK": _axis(-1),
}
