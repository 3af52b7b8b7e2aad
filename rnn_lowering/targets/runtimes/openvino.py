"""OpenVINO (`pip install openvino`): it runs a Scan of an LSTM as its own operator where it recognizes the step.

Its own import of recurrent operators is wrong for layout 1, peepholes, input_forget and two nodes on one X. A
recognized Scan takes 0.97 to 1.02 of the node's time. Chunks of a LinearAttention run 7 times as fast as its steps
in a loop (128 steps, 4 heads of 64x64).

It recognizes one product of X and H together, all gates split equally in the order i, c, f, o, and a number that is
added to f. Source: in OpenVINO, src/common/transformations/src/transformations/
{common_optimizations/lstm_cell_fusion.cpp (the step), op_conversions/convert_ti_to_sequences.cpp (the loop)}.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import onnx_ir as ir

from rnn_lowering.emit.composites import equal_parts
from rnn_lowering.emit.constants import literal
from rnn_lowering.emit.dialect import Dialect
from rnn_lowering.emit.ops import Ops
from rnn_lowering.emit.tensor import Tensor
from rnn_lowering.nodes.node_spec import NodeSpec
from rnn_lowering.nodes.rnn import RecurrentSpec
from rnn_lowering.recurrence.directions import by_steps
from rnn_lowering.recurrence.equivalents import Lower, lower_rnn
from rnn_lowering.recurrence.forms import Recurrence, Tensors, scan
from rnn_lowering.recurrence.weights import Operands
from rnn_lowering.targets.target import LOOP_DIALECT_OPSET, Target

_ACTIVATIONS = {"Relu", "Sigmoid", "Tanh"}

_NEXT_TO_NOTHING = 1e-30
"""Added in place of a zero, which OpenVINO would remove with its sum: too small to change any result."""


def recognized_lstm(spec: NodeSpec, opset: int) -> Lower | None:
    """Return what emits a node such that OpenVINO recognizes it, if it can.

    The sizes must be known: of two such loops over one input of unknown sizes OpenVINO computes the first wrongly,
    as of two LSTM nodes (rnn_sequences_optimization.cpp: a Transpose becomes a Reshape for all its users).
    """
    if opset < LOOP_DIALECT_OPSET or not isinstance(spec, RecurrentSpec):
        return None
    constant = spec.constants.keys() - spec.quantized.keys()
    fits = (
        spec.op_type == "LSTM"
        and spec.dtype == ir.DataType.FLOAT
        and {"W", "R"} <= constant
        and ("B" not in spec.inputs or "B" in constant)
        and "P" not in spec.inputs
        and spec.clip is None
        and not spec.input_forget
        and None not in (spec.seq_length, spec.batch_size)
        and {activation.name for group in spec.activations for activation in group} <= _ACTIVATIONS
    )
    if not fits:
        return None
    return partial(lower_rnn, repeat=partial(scan, stack=_stacked, swap=_swapped), recurrence=_recurrence)


def _recurrence(op: Ops, spec: RecurrentSpec, k: Operands, X: Tensor, init: Tensors) -> Recurrence:
    """Return the recurrence of a direction, over the rows of X itself."""
    W, R, b = (_in_order(op, tensor, k.hidden_size) for tensor in (k.W, op.concat(k.R, -1), k.Wb))
    WR = op.concat([W, R], 0)  # [input + hidden, 4*hidden]
    if b.is_zero:
        b = op.from_constant(literal(np.full(4 * k.hidden_size, _NEXT_TO_NOTHING), op.dtype, "bias"))

    def step(states: Tensors, rows: Tensors) -> tuple[Tensors, Tensors]:
        (h, c), (x,) = states, rows
        gates = op.concat([x, h], -1) @ WR + b  # [batch, 4*hidden]
        i, g, f, o = equal_parts(op, gates, k.hidden_size, 4)
        it, ct, ft, ot = k.f(i), k.g(g), k.f(f + op.constant(_NEXT_TO_NOTHING)), k.f(o)
        Ct = it * ct + ft * c
        Ht = k.h(Ct) * ot
        op.name(it=it, ot=ot, ft=ft, ct=ct, Ct=Ct, Ht=Ht)
        return [Ht, Ct], [Ht] if "Y" in spec.outputs else []

    return Recurrence(init, [by_steps(op, spec, X)], step)


def _in_order(op: Ops, tensor: Tensor, H: int) -> Tensor:
    """Return [..., i, o, f, c] as [..., i, c, f, o]."""
    i, o, f, c = op.split(tensor, [H] * 4)
    return op.concat([i, c, f, o], -1)


def _stacked(op: Ops, ys: Tensors, _: Tensors) -> tuple[Tensors, Callable[[Tensors], Tensors]]:
    """Stack states by an Unsqueeze and a Squeeze, which OpenVINO removes: it computes an Unsqueeze alone
    wrongly."""
    return [op.squeeze(op.unsqueeze(y, [0]), [0]) for y in ys], lambda stacked: stacked


def _swapped(op: Ops, x: Tensor) -> Tensor:
    """Return x [a, b, n] as [b, a, n] by a Transpose of rank 4: where OpenVINO runs a loop as its own LSTM it makes
    a Reshape of one of rank 3, for all that use it (rnn_sequences_optimization.cpp)."""
    return op.squeeze(op.transpose(op.unsqueeze(x, [1]), [2, 1, 0, 3]), [1])


TARGET = Target(
    "openvino",
    "2026.4.1",
    ("loop", "scan", "unroll"),
    attention=("loop", "scan", "unroll", "chunked"),
    exported_forms=("loop", "unroll"),  # a Scan whose rows no step uses has one step
    runs_exported=False,  # it rejects those of Keras and TensorFlow, or takes 30 times as long
    constants_in_scan=True,
    integer_products=True,
    own_scan=recognized_lstm,
    # When a bias of one number per channel follows ReduceSum, it adds channel 0's number to every channel.
    unsupported=("ReduceSum",),
    unroll_up_to=100,
    dialect=Dialect(dequantize_inside=True, join_up_to=128, stack_up_to=128),
)
