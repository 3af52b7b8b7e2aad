"""MNN (`pip install MNN`): no Scan; its own recurrent operators are wrong with most attributes."""

from __future__ import annotations

from functools import partial

import onnx_ir as ir

from rnn_lowering.emit.composites import as_transpose, by_columns, max_of_outputs
from rnn_lowering.emit.constants import zeros_of
from rnn_lowering.emit.dialect import Dialect
from rnn_lowering.emit.ops import Ops
from rnn_lowering.emit.tensor import Tensor
from rnn_lowering.targets.native import (
    COMMON,
    OTHER_ACTIVATIONS,
    RESET_AFTER,
    Excluded,
    NativeRule,
    Speed,
    features,
)
from rnn_lowering.targets.target import Target
from rnn_lowering.types import Dims


def zeros_of_float32(op: Ops, shape: Tensor, dims: Dims) -> Tensor:
    """Emit ConstantOfShape in float32 and cast it: in float16 it stays unset."""
    value = zeros_of(ir.DataType.FLOAT, (1,)).tensor("")
    made = op.emit("ConstantOfShape", [shape], dims, ir.DataType.FLOAT, value=value)
    return op.cast(made, op.dtype)


def conv_of_images(op: Ops, x: Tensor, weight: Tensor, bias: Tensor, dilation: int) -> Tensor:
    """Emit a Conv of one row of pixels: an output that a Conv of rank 3 computes has a fourth axis in MNN."""
    (N, C, frames), k = x.shape, weight.shape[-1]
    rows, weights = op.unsqueeze(x, [2]), op.unsqueeze(weight, [2])
    shape = (N, C, 1, None if frames is None or k is None else frames - (k - 1) * dilation)
    inputs = [rows, weights] if bias.is_zero else [rows, weights, bias]
    sizes = {"group": C, "kernel_shape": [1, k], "dilations": [1, dilation]}
    return op.squeeze(op.emit("Conv", inputs, shape, **sizes), [2])


RULE = NativeRule(
    "3.6.1",
    "2026-11-23",
    features(
        "RNN, GRU, LSTM, forward, bidirectional, linear_before_reset, initial state, constant initial state,"
        "no initial_h, initial_c without initial_h, initial_c of zeros or none, Y_c beside others,"
        "named outputs, written hidden_size, a shared X, I = 1, T = 1, N above 1, no activations, open T,"
        "open N, float, opset 7 to 21, opset 22, flipped X and Y, transposed X and Y"
    )
    | COMMON,
    (
        Excluded(("flipped X and Y", "open T"), "computes reverse wrongly, and flips an open T wrongly"),
        *(Excluded((name,), f"ignores {name}") for name in ("clip", "input_forget", "P", "sequence_lens")),
        *(Excluded((name,), "ignores activations") for name in OTHER_ACTIVATIONS),
        Excluded(("linear_before_reset 0",), "computes linear_before_reset 0 wrongly"),
        Excluded(("GRU", "open T"), "computes a GRU wrongly if T is open"),
        Excluded(("LSTM", "open T", "initial state"), "crashes with an initial state of an LSTM if T is open"),
        Excluded(("T = 1", "initial_c without initial_h"), "crashes with initial_c and no initial_h if T is 1"),
        Excluded(("computed weights",), "rejects weights that are no constants"),
    ),
    (
        Speed(("LSTM",), 100, 1, {16: 0.18, 32: 0.23, 64: 0.71, 128: 0.78, 256: 0.86}),
        Speed(("LSTM",), 10, 8, {16: 0.29, 32: 0.39, 64: 0.63, 128: 1.16, 256: 1.41}),
        Speed(RESET_AFTER, 100, 1, {16: 0.47, 32: 0.23, 64: 0.48, 128: 0.81, 256: 0.84}),
        Speed(RESET_AFTER, 10, 8, {16: 0.27, 32: 0.37, 64: 0.59, 128: 1.09, 256: 1.31}),
        Speed(("LSTM",), 1, 1, {32: 0.95}),
        Speed(RESET_AFTER, 1, 1, {32: 0.95}),
        Speed(("RNN",), 1, 1, {32: 1.01, 128: 1.0}),
        Speed(("RNN",), 10, 1, {16: 1.15, 32: 1.18, 64: 1.27, 128: 2.87, 256: 1.75}),
        Speed(("RNN",), 100, 8, {16: 2.07, 32: 1.84, 64: 1.64, 128: 1.83, 256: 1.92}),
        Speed(("RNN",), 50, 1, {8: 1.02, 32: 1.12, 64: 1.84}, nodes=2),
        Speed(("RNN",), 50, 1, {8: 0.5, 32: 0.6}, nodes=4),
        Speed(("RNN", "bidirectional"), 50, 1, {8: 2.08, 32: 1.24, 64: 1.07, 128: 2.13}),
        Speed(("RNN", "bidirectional"), 50, 8, {8: 1.21, 32: 1.51, 64: 2.85, 128: 2.32}),
        Speed(("RNN", "open T"), 100, 1, {16: 2.0, 32: 3.01, 64: 2.79, 128: 3.76, 256: 3.15}),
        Speed(("RNN", "open T"), 100, 8, {16: 2.9, 32: 3.04, 64: 3.28, 128: 1.84, 256: 1.61}),
        Speed(("LSTM", "open T"), 100, 1, {32: 0.75, 128: 1.0}),  # runs gave 0.7 to 0.8, and 0.8 to 1.2
    ),
)
"""Measured with 897 random nodes in it. An output without a name makes others wrong, so each gets one."""

TARGET = Target(
    "mnn",
    "3.6.1",
    ("unroll", "loop"),
    attention=("unroll", "loop", "chunked"),
    unsupported=("Softplus",),
    integer_products=False,
    quantizes=False,  # by the range of the data, whatever the scale is
    loop_from=128,
    # It computes a Slice with step -1 of unknown length wrongly.
    dialect=Dialect(reverse_in_loop=True, join_up_to=128, stack_up_to=128),
    # Products of a batch are 1.3 to 60 times faster by columns; those of one row are not.
    instead=(
        ("MatMul", partial(by_columns, least=1, batch=2)),
        ("ConstantOfShape", zeros_of_float32),
        ("Conv", conv_of_images),
    ),
    # It fuses Relu with Add, Sub, Mul, Div, Max, Min or Softsign before it, and loses what these compute ("Can't
    # find output"): the cell state of Keras' LSTM(activation="relu").
    finish=(max_of_outputs,),
    # It loses an output that a Relu reads. An output of Reshape, Squeeze or Unsqueeze loses its shape if
    # an activation, Abs, Neg, Exp or Clip reads it.
    outputs_apart=as_transpose,
    empty_tensors=False,
    native=RULE,
)
