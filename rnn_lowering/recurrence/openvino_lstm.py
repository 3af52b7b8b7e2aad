"""The LSTM step that OpenVINO recognizes in a Scan, to run its own kernel.

Source: src/common/transformations/src/transformations/ in OpenVINO, common_optimizations/lstm_cell_fusion.cpp (the
cell) and op_conversions/convert_ti_to_sequences.cpp (the loop). It wants one product of X and H together, all gates
split equally in the order i, c, f, o, and a number that is added to f.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from rnn_lowering.emit.constants import literal
from rnn_lowering.emit.ops import Ops
from rnn_lowering.emit.substitutes import equal_parts
from rnn_lowering.emit.tensor import Tensor
from rnn_lowering.recurrence.recurrence import Step, Tensors
from rnn_lowering.recurrence.weights import Operands
from rnn_lowering.spec.rnn import RecurrentSpec

_ACTIVATIONS = {"Relu", "Sigmoid", "Tanh"}

_NEXT_TO_NOTHING = 1e-30
"""Added in place of a zero, which OpenVINO would remove with its sum: too small to change any result."""


def is_recognizable(spec: RecurrentSpec) -> bool:
    """Return whether the step of a node can have this shape.

    Its sizes must be known: of two such loops over one input of unknown sizes OpenVINO computes the first wrongly,
    as of two LSTM nodes (rnn_sequences_optimization.cpp: a Transpose becomes a Reshape for all its users).
    """
    constant = spec.constants.keys() - spec.quantized.keys()
    return (
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


def recognized_step(op: Ops, spec: RecurrentSpec, k: Operands) -> Step:
    """Return the step of a Scan over X itself, [seq, batch, input]."""
    W, R, b = (_in_order(op, tensor, k.hidden_size) for tensor in (k.W, op.concat(k.R, -1), k.Wb))
    WR = op.concat([W, R], 0)  # [input + hidden, 4*hidden]
    if b.is_zero:
        b = op.known(literal(np.full(4 * k.hidden_size, _NEXT_TO_NOTHING), op.dtype, "bias"))

    def step(states: Tensors, rows: Tensors) -> tuple[Tensors, Tensors]:
        (h, c), (x,) = states, rows
        gates = op.concat([x, h], -1) @ WR + b  # [batch, 4*hidden]
        i, g, f, o = equal_parts(op, gates, k.hidden_size, 4)
        it, ct, ft, ot = k.f(i), k.g(g), k.f(f + op.constant(_NEXT_TO_NOTHING)), k.f(o)
        Ct = it * ct + ft * c
        Ht = k.h(Ct) * ot
        op.name(it=it, ot=ot, ft=ft, ct=ct, Ct=Ct, Ht=Ht)
        return [Ht, Ct], [Ht] if "Y" in spec.outputs else []

    return step


def _in_order(op: Ops, tensor: Tensor, H: int) -> Tensor:
    """Return [..., i, o, f, c] as [..., i, c, f, o]."""
    i, o, f, c = op.split(tensor, [H] * 4)
    return op.concat([i, c, f, o], -1)
