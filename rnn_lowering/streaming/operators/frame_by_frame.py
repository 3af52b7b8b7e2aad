"""Operators that compute each frame from that frame only.

`AXIS_RULES` says along which axes an operator acts, and which axis of its output an axis of an input becomes. Its
frames may be on any axis along which it does not act. Operators that act along the frames are in the other modules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from rnn_lowering.facts.numbers import depends_on_time
from rnn_lowering.facts.operators import ELEMENTWISE
from rnn_lowering.facts.size import ONE, Size, product
from rnn_lowering.streaming.alignment import joined
from rnn_lowering.streaming.editor import input_of
from rnn_lowering.streaming.flow import Flow
from rnn_lowering.streaming.frames import Frames, Framing, Unframed

REARRANGING = frozenset(("Reshape", "Flatten", "Squeeze", "Unsqueeze"))

_SIZED = frozenset(("Expand", "Tile", "Resize", "Upsample", "Slice", *REARRANGING))
"""Operators whose other inputs may be sizes that depend on the number of frames."""

_READ_FIRST = _SIZED | {"OneHot", "Split", "TopK", "CumSum", "Pad"}
"""Operators whose other inputs are sizes, axes and the like; so are those of reductions."""


def data_slots(node: ir.Node) -> list[int]:
    """Return the slots of the inputs that a node reads as data, not as sizes or axes."""
    slots = [n for n, v in enumerate(node.inputs) if v is not None]
    first_only = node.op_type in _READ_FIRST or node.op_type.startswith("Reduce")
    return slots[:1] if first_only and node.domain == "" else slots


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
    known = _known_axes(flow, node)
    places = _places(flow, node, known, axes)
    _check_parameters(flow, node, known, axes, slots)
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
        if inner is None or outer is None or not outer.integral(1):
            continue
        moved = _at_rate(replace(framing, axis=axis, outer=outer), inner)
        if moved is not None and moved.size() == after[axis]:
            return flow.resampled(node, output, framing, moved)
    raise flow.refuse(node, "mixes the frames with other axes", "did the exporter fix the batch size or a length?")


def _at_rate(framing: Frames, inner: Size) -> Frames | None:
    """Return the framing at which `inner` elements become frames: their number multiplies the rate."""
    times = inner.constant
    if times is None:
        return replace(framing, inner=inner) if inner.integral(1) else None
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
        if depends_on_time(flow.known, value) and node.op_type not in _SIZED:
            raise flow.refuse(
                node,
                f"'{value.name}' depends on the number of frames, which a stream never knows",
                "only sizes may depend on it",
            )


def _check_spread(flow: Flow, node: ir.Node, data: Sequence[int], framing: Unframed | None) -> None:
    """Refuse a size that depends on the number of frames, unless it repeats one element without frames."""
    if not any(
        depends_on_time(flow.known, v) for n, v in enumerate(node.inputs) if v is not None and n not in data
    ):
        return
    if framing is Unframed.LAST:
        raise flow.refuse(
            node,
            "spreads a value that is known only after the last frame over all frames",
            "make that value an output",
        )
    before, after = flow.shape(input_of(node, data[0]), node), flow.shape(node.outputs[0], node)
    padded = (ONE,) * (len(after) - len(before)) + before
    once = all(old == ONE for old, dim in zip(padded, after, strict=True) if dim.timed)
    if node.op_type not in ("Expand", "Tile") or not once or not any(dim.timed for dim in after):
        raise flow.refuse(
            node,
            f"gives '{node.outputs[0].name}' a size that depends on the number of frames, but no data with frames",
            "compute it from values with frames",
        )


def _check_parameters(
    flow: Flow, node: ir.Node, known: Axes, axes: Mapping[int, int], slots: Iterable[int]
) -> None:
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
                    "give it size 1 there, or export with a dynamic time axis",
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


Label = int | str | tuple[str, int]


@dataclass(frozen=True)
class Axes:
    """How the axes of a node's inputs become those of its output, as the labels of an Einsum say it.

    Attributes:
        inputs: By slot, a label for each axis. An axis without one may not hold frames, and meets none; all axes of
            a slot that is absent may meet the frames.
        output: A label for each axis. An axis along which the node acts has a label that is not here.
    """

    inputs: Mapping[int, Sequence[Label]]
    output: Sequence[Label | None]

    def label(self, slot: int, axis: int) -> Label | None:
        """Return the label of an axis of an input; None if it has none."""
        labels = self.inputs.get(slot, ())
        return labels[axis] if axis < len(labels) else None


def coupled_axes(flow: Flow, node: ir.Node) -> list[int]:
    """Return the axes of the first input along which a node acts; none if unknown."""
    known = _axes_of(flow, node)
    return [] if known is None else [n for n, label in enumerate(known.inputs[0]) if label not in known.output]


def _known_axes(flow: Flow, node: ir.Node) -> Axes:
    """Return how the axes of a node's inputs become those of its output; refuse the node if that is unknown."""
    known = _axes_of(flow, node)
    if known is None:
        raise flow.refuse(
            node,
            "is not known to act on each frame alone",
            "docs/streaming.md lists the operators that a stream can contain",
        )
    return known


def _axes_of(flow: Flow, node: ir.Node) -> Axes | None:
    """Return how the axes of a node's inputs become those of its output; None if unknown."""
    if node.domain:
        return None
    if node.op_type in ELEMENTWISE:
        return _elementwise(flow, node, [n for n, v in enumerate(node.inputs) if v is not None])
    rule = AXIS_RULES.get(node.op_type) or (_reduction if node.op_type.startswith("Reduce") else None)
    return None if rule is None else rule(flow, node)


def _rank(flow: Flow, node: ir.Node, slot: int = 0) -> int:
    value = node.inputs[slot]
    return 0 if value is None else len(flow.shape(value, node))


def _axis(node: ir.Node, default: int, rank: int) -> int:
    return (node.attributes.get_int("axis", default) or 0) % max(rank, 1)


def _elementwise(flow: Flow, node: ir.Node, slots: Sequence[int] = (0,)) -> Axes:
    """Inputs are broadcast."""
    after = len(flow.shape(node.outputs[0], node))
    return Axes(_aligned(flow, node, slots, after), range(after))


def _aligned(flow: Flow, node: ir.Node, slots: Iterable[int], rank: int) -> dict[int, Sequence[Label]]:
    """Return the labels of inputs that are broadcast to a rank: their last axes meet."""
    return {slot: range(rank - _rank(flow, node, slot), rank) for slot in slots}


def _acting(flow: Flow, node: ir.Node, along: Iterable[int], slots: Sequence[int] = (0,)) -> Axes:
    """The node acts along these axes, and keeps all."""
    rank = _rank(flow, node)
    acted = {axis % max(rank, 1) for axis in along}
    return Axes(dict.fromkeys(slots, range(rank)), [None if n in acted else n for n in range(rank)])


Rule = Callable[[Flow, ir.Node], Axes | None]


def _alone(flow: Flow, node: ir.Node) -> Axes:
    """Act along no axis."""
    return _acting(flow, node, ())


def _along(default: int, slots: Callable[[ir.Node], Sequence[int]] = lambda node: (0,)) -> Rule:
    """Act along the attribute `axis`."""
    return lambda flow, node: _acting(flow, node, [_axis(node, default, _rank(flow, node))], slots(node))


def _from_axis(default: int) -> Callable[[Flow, ir.Node], Axes]:
    """Act along all axes from the attribute `axis` on."""

    def rule(flow: Flow, node: ir.Node) -> Axes:
        rank = _rank(flow, node)
        return _acting(flow, node, range(_axis(node, default, rank), rank))

    return rule


def _all_from(first: int) -> Rule:
    """Act along all axes from `first` on."""
    return lambda flow, node: _acting(flow, node, range(first, _rank(flow, node)))


def _first_only(rule: Rule) -> Rule:
    """Let the other inputs meet no axis that may hold frames: each has entries per channel, or gives a type."""

    def of_first(flow: Flow, node: ir.Node) -> Axes | None:
        first = rule(flow, node)
        return first and Axes({**dict.fromkeys(range(len(node.inputs)), ()), **first.inputs}, first.output)

    return of_first


def _normalization(flow: Flow, node: ir.Node) -> Axes:
    """Act along all axes from the attribute `axis` on; scale and bias are broadcast."""
    slots = [n for n, v in enumerate(node.inputs) if v is not None]
    return Axes(_aligned(flow, node, slots, _rank(flow, node)), _from_axis(-1)(flow, node).output)


def _quantization(flow: Flow, node: ir.Node) -> Axes | None:
    """Act along no axis. A scale of rank 1 is along the attribute `axis`; blocks with a scale each are unknown."""
    rank = _rank(flow, node)
    scales = [_axis(node, 1, rank)] if _rank(flow, node, 1) else []
    labels = {0: range(rank), **dict.fromkeys(range(1, len(node.inputs)), scales)}
    return None if _rank(flow, node, 1) > 1 else Axes(labels, range(rank))


def _softmax(flow: Flow, node: ir.Node) -> Axes | None:
    return (_along(-1) if flow.opset >= 13 else _from_axis(1))(flow, node)


def _without_kept(node: ir.Node, acting: Axes) -> Axes:
    """Drop the axes along which a reduction acts, if it does not keep them."""
    kept = node.attributes.get_int("keepdims", 1)
    return acting if kept else Axes(acting.inputs, [label for label in acting.output if label is not None])


def _reduction(flow: Flow, node: ir.Node) -> Axes:
    sizes, rank = flow.known.parameter(node, "axes"), _rank(flow, node)
    numbers = [None] if sizes is None else [n.constant for n in sizes]
    axes = range(rank) if None in numbers else [int(n or 0) for n in numbers]
    if not axes and not node.attributes.get_int("noop_with_empty_axes"):
        axes = range(rank)
    return _without_kept(node, _acting(flow, node, axes))


def _arg(flow: Flow, node: ir.Node) -> Axes:
    return _without_kept(node, _acting(flow, node, [_axis(node, 0, _rank(flow, node))]))


def _cum_sum(flow: Flow, node: ir.Node) -> Axes:
    """Act along the axis in the second input."""
    axis = flow.known.constant(node.inputs[1])
    axes = range(_rank(flow, node)) if axis is None or axis.size != 1 else axis.reshape(-1).tolist()
    return _acting(flow, node, axes)


def _mean_variance(flow: Flow, node: ir.Node) -> Axes:
    return _acting(flow, node, node.attributes.get_ints("axes", ()) or (0, 2, 3))


def _batch_normalization(flow: Flow, node: ir.Node) -> Axes:
    training = node.attributes.get_int("training_mode", 0)
    return _acting(flow, node, range(_rank(flow, node)) if training else [1])


def _matmul(flow: Flow, node: ir.Node) -> Axes:
    ranks = [_rank(flow, node, slot) for slot in (0, 1)]
    batch: list[list[Label]] = [[("batch", n) for n in range(rank - 2, 0, -1)] for rank in (*ranks, max(ranks))]
    rows: list[Label] = ["row"] if ranks[0] > 1 else []
    columns: list[Label] = ["column"] if ranks[1] > 1 else []
    inputs = {0: [*batch[0], *rows, "inner"], 1: [*batch[1], "inner", *columns]}
    return Axes(inputs, [*batch[2], *rows, *columns])


def _gemm(flow: Flow, node: ir.Node) -> Axes:
    first, second = (node.attributes.get_int(name, 0) for name in ("transA", "transB"))
    added = "mn"[2 - _rank(flow, node, 2) :] if len(node.inputs) > 2 else ""
    return Axes({0: "km" if first else "mk", 1: "nk" if second else "kn", 2: added}, "mn")


def _einsum(flow: Flow, node: ir.Node) -> Axes:
    """An ellipsis stands for the axes that have no letter; without an arrow the result has the letters that are
    there once, in order."""
    left, arrow, right = (node.attributes.get_string("equation", "") or "").replace(" ", "").partition("->")
    terms, letters = left.split(","), left.replace(".", "").replace(",", "")
    right = right if arrow else "..." * ("." in left) + "".join(c for c in sorted(letters) if letters.count(c) == 1)
    dots = [_rank(flow, node, slot) - len(term.replace(".", "")) for slot, term in enumerate(terms)]

    def labels(term: str, count: int) -> list[Label]:
        before, mark, behind = term.partition("...")
        return [*before, *(("dots", n) for n in range(count - 1, -1, -1) if mark), *behind]

    inputs = {slot: labels(term, dots[slot]) for slot, term in enumerate(terms)}
    return Axes(inputs, labels(right, max(dots)))


def _gather(flow: Flow, node: ir.Node) -> Axes:
    data = range(_rank(flow, node))
    axis, rows = _axis(node, 0, len(data)), [("row", n) for n in range(_rank(flow, node, 1))]
    return Axes({0: data, 1: rows}, [*data[:axis], *rows, *data[axis + 1 :]])


def _gather_elements(flow: Flow, node: ir.Node) -> Axes:
    """Act along `axis`, and along the frames of indices into data without frames: these have a number for each."""
    acting = _acting(flow, node, [_axis(node, 0, _rank(flow, node))])
    data, indices = (flow.shape(input_of(node, slot), node) for slot in (0, 1))
    labels = [("number", n) if indices[n].timed and not data[n].timed else n for n in range(len(data))]
    return Axes({**acting.inputs, 1: labels}, acting.output)


def _one_hot(flow: Flow, node: ir.Node) -> Axes:
    data = range(_rank(flow, node))
    added = _axis(node, -1, len(data) + 1)
    return Axes({0: data}, [*data[:added], None, *data[added:]])


def _transpose(flow: Flow, node: ir.Node) -> Axes:
    data = range(_rank(flow, node))
    return Axes({0: data}, list(node.attributes.get_ints("perm", ()) or reversed(data)))


def _resize(flow: Flow, node: ir.Node) -> Axes | None:
    """Act along no axis: `Flow.framed` refuses a changed size."""
    cropped = node.attributes.get_string("coordinate_transformation_mode", "") == "tf_crop_and_resize"
    return None if cropped else _acting(flow, node, ())


AXIS_RULES: dict[str, Rule] = {
    **dict.fromkeys(("AveragePool", "LpPool", "MaxPool"), _all_from(1)),
    **dict.fromkeys(("Conv", "ConvTranspose"), _first_only(_all_from(1))),
    **dict.fromkeys(("DequantizeLinear", "QuantizeLinear"), _quantization),
    **dict.fromkeys(("Expand", "Tile"), _elementwise),
    **dict.fromkeys(("GroupNormalization", "InstanceNormalization"), _first_only(_all_from(1))),
    **dict.fromkeys(("GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool"), _all_from(2)),
    "ArgMax": _arg,
    "ArgMin": _arg,
    "BatchNormalization": _first_only(_batch_normalization),
    "CastLike": _first_only(_alone),
    "Concat": _along(1, lambda node: range(len(node.inputs))),
    "CumSum": _cum_sum,
    "Dropout": _alone,
    "Einsum": _einsum,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "Gemm": _gemm,
    "Hardmax": _softmax,
    "LRN": lambda flow, node: _acting(flow, node, [1]),
    "LayerNormalization": _normalization,
    "LogSoftmax": _softmax,
    "LpNormalization": _along(-1),
    "MatMul": _matmul,
    "MeanVarianceNormalization": _mean_variance,
    "OneHot": _one_hot,
    "RMSNormalization": _normalization,
    "Resize": _resize,
    "Softmax": _softmax,
    "Split": _along(0),
    "TopK": _along(-1),
    "Transpose": _transpose,
    "Upsample": _resize,
}
"""How operators act along axes; along time, some have a rule of their own."""
