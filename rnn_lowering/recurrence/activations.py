"""The eleven activation functions of the recurrent operators: one row each.

A formula takes the emitter, the argument and the activation's alpha and beta. The operators of the same
name are used where they have a kernel; `compose` holds the formula of primitive operators for the types
that have none (onnxruntime has no float64 kernel for six of them).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rnn_lowering.emit.ops import Ops
from rnn_lowering.emit.tensors import Tensor

Formula = Callable[[Ops, Tensor, float, float], Tensor]


@dataclass(frozen=True)
class ActivationRow:
    """An activation function.

    Attributes:
        alpha: Its default, None where it takes none.
        beta: Its default, None where it takes none.
        operator: Its formula as one ONNX operator, or the usual few.
        compose: Its formula in Exp, Log, Abs, Neg, Relu and arithmetic; None where `operator` always has kernels.
        defaults_disputed: onnxruntime's defaults (given here) are not the operator pages'.
    """

    alpha: float | None
    beta: float | None
    operator: Formula
    compose: Formula | None = None
    defaults_disputed: bool = False


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
    return op.div(x, op.unary("Abs", x) - op.constant(-1.0))


ACTIVATIONS: dict[str, ActivationRow] = {
    "Relu": ActivationRow(None, None, lambda op, x, a, b: op.unary("Relu", x)),
    "Tanh": ActivationRow(None, None, lambda op, x, a, b: op.unary("Tanh", x)),
    "Sigmoid": ActivationRow(None, None, lambda op, x, a, b: op.unary("Sigmoid", x)),
    "Affine": ActivationRow(
        0.0, 0.0, lambda op, x, a, b: x * op.constant(a) + op.constant(b), defaults_disputed=True
    ),
    "ScaledTanh": ActivationRow(
        0.0,
        0.0,
        lambda op, x, a, b: op.unary("Tanh", x * op.constant(b)) * op.constant(a),
        defaults_disputed=True,
    ),
    "LeakyRelu": ActivationRow(0.01, None, lambda op, x, a, b: op.unary("LeakyRelu", x, alpha=a), _leaky_relu),
    "ThresholdedRelu": ActivationRow(
        0.0,
        None,
        lambda op, x, a, b: op.unary("ThresholdedRelu", x, alpha=a),
        _thresholded_relu,
        defaults_disputed=True,
    ),
    "HardSigmoid": ActivationRow(
        0.2, 0.5, lambda op, x, a, b: op.unary("HardSigmoid", x, alpha=a, beta=b), _hard_sigmoid
    ),
    "Elu": ActivationRow(1.0, None, lambda op, x, a, b: op.unary("Elu", x, alpha=a), _elu),
    "Softsign": ActivationRow(None, None, lambda op, x, a, b: op.unary("Softsign", x), _softsign),
    "Softplus": ActivationRow(None, None, lambda op, x, a, b: op.unary("Softplus", x), _softplus),
}

CANONICAL_NAMES = {name.lower(): name for name in ACTIVATIONS}
