"""Which axes an operator couples: it acts on each frame by itself where these hold none."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import onnx_ir as ir

from rnn_lowering.streaming.frames import Flow, Frames, Framing, Unframed

Coupled = Iterable[tuple[int, int]]
"""Pairs of the number of an input and an axis."""

REARRANGING = frozenset(("Reshape", "Flatten", "Squeeze", "Unsqueeze"))

_ELEMENTWISE = frozenset(
    (
        *("Abs", "Acos", "Acosh", "Add", "And", "Asin", "Asinh", "Atan", "Atanh", "BitShift", "BitwiseAnd"),
        *("BitwiseNot", "BitwiseOr", "BitwiseXor", "Cast", "CastLike", "Ceil", "Celu", "Clip", "Cos", "Cosh"),
        *("DequantizeLinear", "Div", "Dropout", "Elu", "Equal", "Erf", "Exp", "Expand", "Floor", "Gelu", "Greater"),
        *("GreaterOrEqual", "HardSigmoid", "HardSwish", "Identity", "IsInf", "IsNaN", "LeakyRelu", "Less"),
        *("LessOrEqual", "Log", "Max", "Mean", "Min", "Mish", "Mod", "Mul", "Neg", "Not", "OneHot", "Or", "PRelu"),
        *("Pow", "QuantizeLinear", "Reciprocal", "Relu", "Round", "Selu", "Shrink", "Sigmoid", "Sign", "Sin"),
        *("Sinh", "Softplus", "Softsign", "Sqrt", "Sub", "Sum", "Swish", "Tan", "Tanh", "ThresholdedRelu", "Tile"),
        *("Transpose", "Where", "Xor", "Resize", "Upsample"),  # the last two: a size that changes is noticed
    )
)

_READ_FIRST = frozenset(
    ("Expand", "Tile", "Resize", "Upsample", "OneHot", "Split", "TopK", "CumSum", "Slice", "Pad")
)
"""Operators whose other inputs are sizes, axes and the like; so are those of reductions."""


def data_inputs(node: ir.Node) -> list[ir.Value]:
    """The inputs that a node reads as data, not as sizes or axes."""
    given = [v for v in node.inputs if v is not None]
    first_only = node.op_type in _READ_FIRST or node.op_type in REARRANGING or node.op_type.startswith("Reduce")
    return given[:1] if first_only else given


def frame_by_frame(flow: Flow, node: ir.Node) -> list[Framing]:
    """The framings of the outputs of a node that acts on each frame by itself.

    Raises:
        UnsupportedError: It does not, or it is not known to.
    """
    values = data_inputs(node)
    framing = flow.joined(node, values)
    outputs = [v for v in node.outputs if v.name]
    if node.op_type in REARRANGING and node.domain == "":
        return [flow.rearranged(node, values[0], v) for v in outputs]
    if isinstance(framing, Frames) or framing is Unframed.UNIFORM:
        _refuse_coupling(flow, node)
    elif framing is None and node.op_type not in ("Expand", "Tile"):
        return [None] * len(outputs)
    return [flow.framed(node, v, framing) for v in outputs]


def _refuse_coupling(flow: Flow, node: ir.Node) -> None:
    coupled = _coupled(flow, node)
    if coupled is None:
        raise flow.refuse(
            node,
            "is not known to act on each frame by itself",
            "docs/streaming.md lists the operators that a stream may go through",
        )
    for slot, axis in coupled:
        value = node.inputs[slot] if slot < len(node.inputs) else None
        framing = None if value is None else flow.framing(value, node)
        if (
            value is not None
            and isinstance(framing, Frames)
            and framing.axis == axis % len(flow.shape(value, node))
        ):
            raise flow.refuse(
                node, f"looks beyond its frame: it acts along axis {framing.axis}, which holds the frames"
            )


def _coupled(flow: Flow, node: ir.Node) -> Coupled | None:
    """Return what a node couples, None where it is not known."""
    if node.domain:
        return None
    if node.op_type in _ELEMENTWISE:
        return ()
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
    """All axes from that of the attribute `axis` on."""

    def rule(flow: Flow, node: ir.Node) -> Coupled:
        rank, axis = _rank(flow, node), node.attributes.get_int("axis", default) or 0
        return [(0, n) for n in range(axis % max(rank, 1), rank)]

    return rule


def _all_from(first: int) -> Callable[[Flow, ir.Node], Coupled]:
    """All axes from `first` on."""
    return lambda flow, node: [(0, n) for n in range(first, _rank(flow, node))]


def _reduction(flow: Flow, node: ir.Node) -> Coupled:
    axes: Iterable[int] = node.attributes.get_ints("axes", ())
    given = node.inputs[1] if len(node.inputs) > 1 else None
    if given is not None:
        held = flow.constant(given)
        axes = range(_rank(flow, node)) if held is None else held.reshape(-1).tolist()
    if not axes and node.attributes.get_int("noop_with_empty_axes"):
        return []
    return [(0, axis) for axis in axes or range(_rank(flow, node))]


def _input_axis(flow: Flow, node: ir.Node) -> Coupled:
    """The axis that the second input gives."""
    given = node.inputs[1]
    held = None if given is None else flow.constant(given)
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
