"""What operators of ONNX do: which act on each element, which only move elements, which are random."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

DEFAULT_DOMAIN = ("", "ai.onnx")
"""The two names of ONNX's own domain. In the intermediate form a node has the first, an opset import either."""


def default_opset(imports: Mapping[str, int]) -> int:
    """Return the version of the default domain among opset imports."""
    return next((imports[name] for name in DEFAULT_DOMAIN if name in imports), 1)


RANDOM = frozenset(
    ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial")
)
"""Operators whose results differ each time."""


ELEMENTWISE = frozenset(
    (
        *("Abs", "Acos", "Acosh", "Add", "And", "Asin", "Asinh", "Atan", "Atanh", "BitShift", "BitwiseAnd"),
        *("BitwiseNot", "BitwiseOr", "BitwiseXor", "Cast", "Ceil", "Celu", "Clip", "Cos", "Cosh", "Div", "Elu"),
        *("Equal", "Erf", "Exp", "Floor", "Gelu", "Greater", "GreaterOrEqual", "HardSigmoid", "HardSwish"),
        *("Identity", "IsInf", "IsNaN", "LeakyRelu", "Less", "LessOrEqual", "Log", "Max", "Mean", "Min", "Mish"),
        *("Mod", "Mul", "Neg", "Not", "Or", "PRelu", "Pow", "Reciprocal", "Relu", "Round", "Selu", "Shrink"),
        *("Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Sub", "Sum", "Swish", "Tan", "Tanh"),
        *("ThresholdedRelu", "Where", "Xor"),
    )
)
"""Operators that act on each element by itself, of inputs that broadcast."""


SAME_SHAPE = frozenset(
    (
        *("BatchNormalization", "CastLike", "CumSum", "DequantizeLinear", "Dropout", "GroupNormalization"),
        *("Hardmax", "InstanceNormalization", "LRN", "LayerNormalization", "LogSoftmax", "LpNormalization"),
        *("MeanVarianceNormalization", "QuantizeLinear", "RMSNormalization", "Softmax"),
    )
)
"""Operators whose first output has the shape of the first input."""


MOVING = frozenset(
    (
        *("Concat", "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Identity", "Reshape", "Slice"),
        *("Split", "Squeeze", "Tile", "Transpose", "Unsqueeze"),
    )
)
"""Operators that move elements of all inputs (Concat) or of the first one."""


def moved_inputs(node: ir.Node) -> int:
    """Return how many of the first inputs of a node of `MOVING` are those whose elements it moves."""
    return len(node.inputs) if node.op_type == "Concat" else 1


def is_of_default_domain(node: ir.Node) -> bool:
    """Whether a node's operator is ONNX's own and no attribute refers to those of a function."""
    return node.domain == "" and not any(attribute.is_ref() for attribute in node.attributes.values())
