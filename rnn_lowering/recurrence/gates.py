"""The equivalents of LinearAttentionGate and GatedRMSNorm, in float32 as onnxruntime's kernels compute."""

from __future__ import annotations

from rnn_lowering.emit.ops import Ops
from rnn_lowering.emit.tensor import Tensor
from rnn_lowering.recurrence.recurrence import Fold
from rnn_lowering.recurrence.weights import float_input
from rnn_lowering.spec.gates import AttentionGateSpec, GatedNormSpec


def lower_attention_gate(op: Ops, spec: AttentionGateSpec, _: Fold) -> dict[str, Tensor]:
    """Emit the equivalent of a LinearAttentionGate; return its outputs by their names in the specification."""
    rows, heads = (spec.batch_size, spec.seq_length, spec.heads), (spec.heads,)
    found = {}
    if "decay" in spec.outputs:
        total = float_input(op, spec, "a", rows) + float_input(op, spec, "dt_bias", heads)
        found["decay"] = op.unary("Softplus", total) * float_input(op, spec, "decay_scale", heads)
    if "beta" in spec.outputs:
        found["beta"] = op.unary("Sigmoid", float_input(op, spec, "b", rows))
    return {symbol: op.cast(tensor, spec.dtype) for symbol, tensor in found.items()}


def lower_gated_norm(op: Ops, spec: GatedNormSpec, _: Fold) -> dict[str, Tensor]:
    """Emit the equivalent of a GatedRMSNorm; return its output by its name in the specification."""
    C, width = spec.group, spec.shape[-1]
    x, gate = (float_input(op, spec, symbol, spec.shape) for symbol in ("X", "gate"))
    scale = float_input(op, spec, "scale", (C,))
    grouped = width != C
    if grouped:
        groups = None if width is None else width // C
        kept = [op.constant([0])] * (len(spec.shape) - 1)
        count = op.constant([-1 if groups is None else groups])
        x = op.reshape(x, (*spec.shape[:-1], groups, C), [*kept, count, op.constant([C])])
    mean = op.sum(x * x, x.rank - 1) * op.constant(1 / C)
    y = x / op.unary("Sqrt", mean + op.constant(spec.epsilon)) * scale
    if grouped:
        y = op.reshape(y, spec.shape, [*kept, op.constant([-1 if width is None else width])])
    opened = op.unary("Sigmoid", gate)
    y = y * (gate * opened if spec.silu else opened)
    return {"Y": op.cast(y, spec.dtype)} if "Y" in spec.outputs else {}
