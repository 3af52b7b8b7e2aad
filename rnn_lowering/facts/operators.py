"""What the operators of ONNX do: `OPERATORS` has a row for each.

It says how an operator uses axes, whether it acts on each element or only moves elements, and which inputs are
sizes. Other modules ask `operator_of(node)`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import onnx
import onnx_ir as ir

from rnn_lowering.facts import axes as rules
from rnn_lowering.facts.axes import AxisRule

DEFAULT_DOMAIN = ("", "ai.onnx")
"""The two names of ONNX's own domain. In the intermediate form a node has the first, an opset import either."""


def default_opset(imports: Mapping[str, int]) -> int:
    """Return the version of the default domain among opset imports."""
    return next((imports[name] for name in DEFAULT_DOMAIN if name in imports), 1)


@dataclass(frozen=True)
class Operator:
    """What an operator does. The defaults claim nothing.

    Attributes:
        axes: Returns how a node uses its axes (`facts/axes`).
        elementwise: It acts on each element by itself, of inputs that broadcast.
        boolean: It is element-wise and returns booleans of inputs of another type.
        same_shape: The first output has the shape of the first input.
        moves: The outputs have elements of the first input, or of all inputs (Concat), and no others.
        keeps_order: It moves all elements, in their order.
        keeps_axes: It moves all elements; axes change places, or have size 1 and come or go.
        data: The number of first inputs that are data. Those behind it are sizes, axes, positions and the like.
        sized: What is behind the data are the sizes of the output, or the positions of a cut.
        exact: Every runtime computes the same integers, and rounds real numbers once.
        may_fail: It may fail on some values of valid type and shape (integer division and strings do not count).
        random: The results differ each time.
        foldable: Exporters write it between a constant and a recurrent node.
    """

    axes: AxisRule | None = None
    elementwise: bool = False
    boolean: bool = False
    same_shape: bool = False
    moves: bool = False
    keeps_order: bool = False
    keeps_axes: bool = False
    data: int | None = None
    sized: bool = False
    exact: bool = False
    may_fail: bool = True
    random: bool = False
    foldable: bool = False


def _each_of(names: str, row: Operator) -> dict[str, Operator]:
    return dict.fromkeys(names.split(), row)


_FUNCTION = Operator(rules.broadcast, elementwise=True, may_fail=False)
_ARITHMETIC = Operator(rules.broadcast, elementwise=True, exact=True, may_fail=False)
_TEST = Operator(rules.broadcast, elementwise=True, boolean=True, exact=True, may_fail=False)
_MOVES = Operator(moves=True, exact=True, may_fail=False, foldable=True)
_RESHAPES = replace(_MOVES, keeps_order=True)
_REDUCTION = Operator(rules.reduction, data=1)
_EXACT_REDUCTION = Operator(rules.reduction, data=1, exact=True)
_CHANNELS = Operator(rules.first_only(rules.all_from(1, keeps=True)), same_shape=True)
_SOFTMAX = Operator(rules.softmax, same_shape=True)
_NORMALIZATION = Operator(rules.normalization, same_shape=True)
_RANDOM = Operator(random=True)
_RANDOM_LIKE = Operator(random=True, same_shape=True)
_WRITE = Operator(same_shape=True, exact=True)

OPERATORS: Mapping[str, Operator] = {
    # Element-wise
    **_each_of(
        "Acos Acosh Asin Asinh Atan Atanh BitCast BitShift Celu Cos Cosh Elu Erf Exp Gelu HardSigmoid HardSwish "
        "LeakyRelu Log Mean Mish PRelu Pow Reciprocal Selu Shrink Sigmoid Sin Sinh Softplus Softsign Sqrt SwiGLU "
        "Swish Tan Tanh ThresholdedRelu",
        _FUNCTION,
    ),
    **_each_of(
        "Abs Add And BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Ceil Clip Div Floor Max Min Mod Mul Neg Not Or "
        "Relu Round Sign Sub Sum Where Xor",
        _ARITHMETIC,
    ),
    **_each_of("Equal Greater GreaterOrEqual IsInf IsNaN Less LessOrEqual", _TEST),
    "Cast": Operator(rules.broadcast, elementwise=True, exact=True, may_fail=False, foldable=True),
    "CastLike": Operator(rules.first_only(rules.alone), same_shape=True, exact=True),
    # Moving elements
    "Concat": replace(_MOVES, axes=rules.joining),
    "Expand": replace(_MOVES, axes=rules.repeated, data=1, sized=True),
    "Flatten": replace(_RESHAPES, foldable=False),
    "Gather": replace(_MOVES, axes=rules.gather, may_fail=True),
    "GatherElements": Operator(rules.gather_elements, moves=True, exact=True),
    "GatherND": Operator(moves=True, exact=True),
    "Identity": replace(_RESHAPES, axes=rules.broadcast, elementwise=True, keeps_axes=True),
    "Reshape": replace(_RESHAPES, axes=rules.reshaped, data=1, sized=True),
    "Slice": replace(_MOVES, axes=rules.sliced, data=1, sized=True),
    "Split": replace(_MOVES, axes=rules.along_axis(0), data=1),
    "Squeeze": replace(_RESHAPES, axes=rules.squeezed, keeps_axes=True, data=1),
    "Tile": Operator(rules.repeated, moves=True, data=1, sized=True, exact=True),
    "Transpose": replace(_MOVES, axes=rules.transposition, keeps_axes=True),
    "Unsqueeze": replace(_RESHAPES, axes=rules.unsqueezed, keeps_axes=True, data=1),
    # Reading, writing and making elements
    "CenterCropPad": Operator(data=1, sized=True),
    "Col2Im": Operator(data=1),
    "Constant": Operator(exact=True, foldable=True),
    "ConstantOfShape": Operator(data=0, exact=True, foldable=True),
    "EyeLike": Operator(same_shape=True),
    "OneHot": Operator(rules.one_hot, data=1),
    "Pad": Operator(data=1),
    "Range": Operator(data=0, exact=True),
    "ReverseSequence": Operator(same_shape=True),
    **_each_of("Scatter TensorScatter", _WRITE),
    "ScatterElements": replace(_WRITE, axes=rules.written),
    "ScatterND": replace(_WRITE, axes=rules.written_at),
    "Shape": Operator(exact=True, may_fail=False, foldable=True),
    "Size": Operator(exact=True, may_fail=False),
    "TopK": Operator(rules.along_axis(-1), data=1),
    "Trilu": Operator(same_shape=True, data=1, exact=True),
    # Along axes
    **_each_of("ArgMax ArgMin", Operator(rules.arg_reduction)),
    **_each_of("ReduceMax ReduceMin ReduceProd ReduceSum", _EXACT_REDUCTION),
    **_each_of("ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMean ReduceSumSquare", _REDUCTION),
    **_each_of("Hardmax LogSoftmax Softmax", _SOFTMAX),
    **_each_of("LayerNormalization RMSNormalization", _NORMALIZATION),
    **_each_of("GroupNormalization InstanceNormalization", _CHANNELS),
    **_each_of("AveragePool LpPool MaxPool", Operator(rules.all_from(1))),
    **_each_of("Conv ConvTranspose", Operator(rules.first_only(rules.all_from(1)))),
    "ConvInteger": Operator(rules.first_only(rules.all_from(1)), exact=True),
    "QLinearConv": Operator(rules.first_only(rules.all_from(1))),
    **_each_of("GlobalAveragePool GlobalLpPool GlobalMaxPool", Operator(rules.all_from(2))),
    "DequantizeLinear": Operator(rules.quantization, same_shape=True, foldable=True),
    "QuantizeLinear": Operator(rules.quantization, same_shape=True),
    "BatchNormalization": Operator(rules.first_only(rules.batch_normalization), same_shape=True),
    "CumProd": Operator(rules.cumulation, same_shape=True, data=1),
    "CumSum": Operator(rules.cumulation, same_shape=True, data=1, exact=True),
    "DFT": Operator(rules.transform, data=1),
    "Dropout": Operator(rules.alone, same_shape=True),
    "Einsum": Operator(rules.einsum),
    "Gemm": Operator(rules.gemm),
    "LRN": Operator(rules.along_channels, same_shape=True),
    "LpNormalization": Operator(rules.along_axis(-1, keeps=True), same_shape=True),
    "MatMul": Operator(rules.matmul, may_fail=False),
    "MatMulInteger": Operator(rules.integer_product(0, 1, [2], [3]), exact=True),
    "MeanVarianceNormalization": Operator(rules.mean_variance, same_shape=True),
    "QLinearMatMul": Operator(rules.integer_product(0, 3, [1, 2, 6, 7], [4, 5])),
    "Resize": Operator(rules.resized, data=1, sized=True),
    "Upsample": Operator(rules.resized, data=1, sized=True),
    # Random
    **_each_of("Bernoulli RandomNormalLike RandomUniformLike", _RANDOM_LIKE),
    **_each_of("Multinomial RandomNormal RandomUniform", _RANDOM),
}
"""By the operator's name, of the default domain."""

OF_MICROSOFT: Mapping[str, Operator] = {
    **_each_of("BiasGelu FastGelu Gelu QuickGelu", Operator(rules.broadcast, same_shape=True)),
    "FusedMatMul": Operator(rules.fused_matmul),
}
"""By the operator's name, of com.microsoft. A bias is broadcast to the first input."""

_UNKNOWN = Operator()


def operator_of(node: ir.Node | onnx.NodeProto) -> Operator:
    """Return what the operator of a node does."""
    if node.domain == "com.microsoft":
        return OF_MICROSOFT.get(node.op_type, _UNKNOWN)
    return OPERATORS.get(node.op_type, _UNKNOWN) if node.domain in DEFAULT_DOMAIN else _UNKNOWN


def may_differ(node: ir.Node) -> bool:
    """Whether a node may return something else each time; Dropout does so in training."""
    return operator_of(node).random or (node.op_type == "Dropout" and node.domain in DEFAULT_DOMAIN)


def keeps_numbers(node: ir.Node) -> bool:
    """Whether a node returns the numbers of its input, in another shape or type."""
    return operator_of(node).keeps_order or (node.op_type == "Cast" and node.domain in DEFAULT_DOMAIN)


def moved_inputs(node: ir.Node | onnx.NodeProto) -> int:
    """Return the number of data inputs of a node that moves elements: all for Concat, one for the others."""
    return len(node.inputs if isinstance(node, ir.Node) else node.input) if node.op_type == "Concat" else 1


def is_of_default_domain(node: ir.Node) -> bool:
    """Whether a node's operator is ONNX's own and no attribute refers to an attribute of a function."""
    return node.domain == "" and not any(attribute.is_ref() for attribute in node.attributes.values())
