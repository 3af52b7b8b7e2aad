"""The eleven activation functions: each as its ONNX operator, and in simpler operators.

onnxruntime has no float64 kernel for six of the operators, and some runtimes lack others. The formulas are those in
onnxruntime's onnxruntime/core/providers/cpu/rnn/rnn_helpers.cc and https://onnx.ai/onnx/operators/onnx__LSTM.html.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import onnx_ir as ir

from rnn_lowering.emit.ops import Ops
from rnn_lowering.emit.tensor import Tensor
from rnn_lowering.nodes.rnn import ActivationSpec

Function = Callable[[Tensor], Tensor]

Formula = Callable[[Ops, Tensor, float, float], Tensor]
"""Emits an activation of a tensor with these alpha and beta."""


@dataclass(frozen=True)
class ActivationFormula:
    """An activation function as operators.

    Attributes:
        operator: Emits one ONNX operator, or the few that every runtime supports.
        compose: Emits Exp, Log, Abs, Neg, Relu and arithmetic; None if `operator` always has kernels.
    """

    operator: Formula
    compose: Formula | None = None


def _thresholded_relu(op: Ops, x: Tensor, alpha: float, _: float) -> Tensor:
    # x where x > alpha: relu(x - alpha) is positive exactly there, and 0 * inf never arises.
    return op.unary("Relu", x - op.constant(alpha)) + op.above(x, alpha) * op.constant(alpha)


def _elu(op: Ops, x: Tensor, alpha: float, _: float) -> Tensor:
    negative = op.neg(op.unary("Relu", op.neg(x)))  # min(x, 0)
    return op.unary("Relu", x) + (op.unary("Exp", negative) - op.constant(1.0)) * op.constant(alpha)


def _softplus(op: Ops, x: Tensor, _a: float, _b: float) -> Tensor:
    # log(1 + e^x) without its overflow: max(x, 0) + log(1 + e^-|x|).
    tail = op.unary("Exp", op.neg(op.unary("Abs", x)))
    return op.unary("Relu", x) + op.unary("Log", tail + op.constant(1.0))


def _hard_sigmoid(op: Ops, x: Tensor, alpha: float, beta: float) -> Tensor:
    one = op.constant(1.0)
    line = x * op.constant(alpha) + op.constant(beta)
    return one - op.unary("Relu", one - op.unary("Relu", line))  # min(max(line, 0), 1)


def _leaky_relu(op: Ops, x: Tensor, alpha: float, _: float) -> Tensor:
    return op.unary("Relu", x) - op.unary("Relu", op.neg(x)) * op.constant(alpha)


def _softsign(op: Ops, x: Tensor, _a: float, _b: float) -> Tensor:
    # A Sub: of the sum |x| + 1 ncnn's converter would make a Softsign again, which ncnn lacks.
    return x / (op.unary("Abs", x) - op.constant(-1.0))


FORMULAS: dict[str, ActivationFormula] = {
    "Relu": ActivationFormula(lambda op, x, a, b: op.unary("Relu", x)),
    "Tanh": ActivationFormula(lambda op, x, a, b: op.unary("Tanh", x)),
    "Sigmoid": ActivationFormula(lambda op, x, a, b: op.unary("Sigmoid", x)),
    "Affine": ActivationFormula(lambda op, x, a, b: x * op.constant(a) + op.constant(b)),
    "ScaledTanh": ActivationFormula(lambda op, x, a, b: op.unary("Tanh", x * op.constant(b)) * op.constant(a)),
    "LeakyRelu": ActivationFormula(lambda op, x, a, b: op.unary("LeakyRelu", x, alpha=a), _leaky_relu),
    "ThresholdedRelu": ActivationFormula(
        lambda op, x, a, b: op.unary("ThresholdedRelu", x, alpha=a), _thresholded_relu
    ),
    "HardSigmoid": ActivationFormula(
        lambda op, x, a, b: op.unary("HardSigmoid", x, alpha=a, beta=b), _hard_sigmoid
    ),
    "Elu": ActivationFormula(lambda op, x, a, b: op.unary("Elu", x, alpha=a), _elu),
    "Softsign": ActivationFormula(lambda op, x, a, b: op.unary("Softsign", x), _softsign),
    "Softplus": ActivationFormula(lambda op, x, a, b: op.unary("Softplus", x), _softplus),
}
"""By the name of the activation."""


def activation_function(op: Ops, activation: ActivationSpec) -> Function:
    """Return an activation of one tensor: its operator if runtimes have a kernel, else its formula.

    One that is a constant still reads the tensor: tract folds a product with 0, and rejects a loop whose state is a
    constant then.
    """
    constant = _constant_of(activation)
    if constant is not None:
        return lambda x: _zero_like(op, x) + op.constant(constant)
    row = FORMULAS[activation.name]
    lacks_kernel = op.dtype == ir.DataType.DOUBLE or not op.exists(activation.name)
    formula = row.compose if row.compose is not None and lacks_kernel else row.operator
    return lambda x: formula(op, x, activation.alpha, activation.beta)


def _constant_of(activation: ActivationSpec) -> float | None:
    """Return the number that an activation always returns; None if it depends on its argument."""
    alpha, beta = activation.alpha, activation.beta
    if activation.name == "Affine" and not alpha:
        return beta
    if activation.name == "HardSigmoid" and not alpha:
        return max(0.0, min(1.0, beta))
    return 0.0 if activation.name == "ScaledTanh" and not (alpha and beta) else None


def _zero_like(op: Ops, x: Tensor) -> Tensor:
    """Return zeros in the shape of a tensor, as max(-max(x, 0), 0)."""
    return op.unary("Relu", op.neg(op.unary("Relu", x)))
