"""onnxruntime's QNN execution provider (`pip install onnxruntime-qnn`): the HTP of a phone, in float16.

Measured in the simulator of the HTP, with no node on the CPU.
"""

from __future__ import annotations

import onnx_ir as ir

from rnn_lowering.emit.dialect import Dialect
from rnn_lowering.emit.ops import Ops
from rnn_lowering.emit.tensor import Tensor
from rnn_lowering.targets.native import COMMON, Excluded, NativeRule, features
from rnn_lowering.targets.target import STATIC, KnownValue, Target

_FLAT = 88.0
"""Beyond it, and its negative, exp(x) is infinite or next to 0 in float32, and far earlier in float16."""


def bounded_exp(op: Ops, x: Tensor) -> Tensor:
    """Clip before Exp: the HTP's is 131008 at -300."""
    return op.emit("Exp", [op.clip(x, _FLAT)], x.shape)


_MOST_AXES_OF_HALVES = 4


def misreads(node: ir.Node, known: KnownValue) -> str:
    """Return how it computes a MatMul or Pad wrongly without an error, or ""."""
    if node.op_type == "MatMul" and _is_wide_product_of_halves(node, known):
        return "wrongly with float16 tensors of 5 axes"
    if node.op_type == "Pad" and _pads_with_the_largest(node, known):
        return "wrongly behind a negative zero point: quantize activations to unsigned integers"
    return ""


def _is_wide_product_of_halves(node: ir.Node, known: KnownValue) -> bool:
    """Whether a MatMul has two float16 tensors of 5 axes, neither of them a constant."""
    given = [known(value) for value in node.inputs if value is not None]
    halves = all(value.dtype == ir.DataType.FLOAT16 and value.const_value is None for value in given)
    return halves and any(len(value.shape or ()) > _MOST_AXES_OF_HALVES for value in given)


def _pads_with_the_largest(node: ir.Node, known: KnownValue) -> bool:
    """Whether a Pad without a value as its input has integers whose zero point is negative, or unknown."""
    padded, value = node.inputs[0], [*node.inputs, None, None][2]
    source = None if padded is None else padded.producer()
    if value is not None or source is None or source.op_type != "DequantizeLinear":
        return False
    zero = [*source.inputs, None][2]
    tensor = None if zero is None else known(zero).const_value
    return zero is not None and (tensor is None or bool((tensor.numpy() < 0).any()))


RULE = NativeRule(
    "2.7.0",
    "2026-11-23",
    features(
        "GRU, forward, reverse, bidirectional, no activations, linear_before_reset, linear_before_reset 0,"
        "initial state, constant initial state, no initial_h, named outputs, written hidden_size,"
        "transposed X and Y, a shared X, computed weights, I = 1, T = 1, N above 1, float, opset 7 to 21, opset 22"
    )
    | COMMON,
    (
        Excluded(("LSTM",), "computes an LSTM ten times less exactly than its basic operators"),
        Excluded(("RNN",), "has no RNN"),
        Excluded(("clip",), "rejects clip"),
    ),
    simulated=True,
)
"""Measured with 600 random nodes in it. Of an LSTM, h and c are off by 0.01 where lowered ones are by 0.001; with
input_forget it is wrong. Activations that are no defaults, and sequence_lens, are rejected."""

TARGET = Target(
    "qnn",
    "onnxruntime-qnn 2.7.0",
    ("unroll",),
    other_names=("onnxruntimeqnn",),
    attention=("chunked",),  # steps have 6 axes
    dialect=Dialect(zeros_apart=True),  # else it joins the outputs of two chunks wrongly, without an error
    unsupported=("Softplus", "Softsign"),
    sizes=STATIC,
    most_axes=5,
    empty_tensors=False,
    integer_products=False,
    instead=(("Exp", bounded_exp),),
    misreads=misreads,
    signed_activations=False,
    native=RULE,
)
