"""The equivalents of LinearAttentionGate, GatedRMSNorm and GatedDeltaNet, computed in float32."""

from __future__ import annotations

from dataclasses import replace

from rnn_lowering.emit.ops import Ops
from rnn_lowering.emit.tensor import Tensor
from rnn_lowering.recurrence.equivalents.linear_attention_node import lower_linear_attention
from rnn_lowering.recurrence.recurrence import Repeat
from rnn_lowering.recurrence.weights import node_input
from rnn_lowering.spec.gated_delta_net import GatedDeltaNetSpec
from rnn_lowering.spec.gates import AttentionGateSpec, GatedNormSpec
from rnn_lowering.types import Dims


def lower_attention_gate(op: Ops, spec: AttentionGateSpec, _: Repeat) -> dict[str, Tensor]:
    """Emit the equivalent of a LinearAttentionGate; return its outputs by their names in the specification."""
    rows, heads = (spec.batch_size, spec.seq_length, spec.heads), (spec.heads,)
    found = {}
    if "decay" in spec.outputs:
        total = node_input(op, spec, "a", rows) + node_input(op, spec, "dt_bias", heads)
        found["decay"] = op.unary("Softplus", total) * node_input(op, spec, "decay_scale", heads)
    if "beta" in spec.outputs:
        found["beta"] = op.unary("Sigmoid", node_input(op, spec, "b", rows))
    return {symbol: op.cast(tensor, spec.dtype) for symbol, tensor in found.items()}


def lower_gated_norm(op: Ops, spec: GatedNormSpec, _: Repeat) -> dict[str, Tensor]:
    """Emit the equivalent of a GatedRMSNorm; return its output by its name in the specification."""
    C, width = spec.group, spec.shape[-1]
    x, gate = (node_input(op, spec, symbol, spec.shape) for symbol in ("X", "gate"))
    scale = node_input(op, spec, "scale", (C,))
    grouped = width != C
    if grouped:
        groups = None if width is None else width // C
        # OpenCV reads a 0 behind another Reshape as the size before both.
        kept = [op.constant([size or 0]) for size in spec.shape[:-1]]
        count = op.constant([-1 if groups is None else groups])
        x = op.reshape(x, (*spec.shape[:-1], groups, C), [*kept, count, op.constant([C])])
    mean = op.sum(x * x, x.rank - 1) * op.constant(1 / C)
    y = x / op.unary("Sqrt", mean + op.constant(spec.epsilon)) * scale
    if grouped:
        y = op.reshape(y, spec.shape, [*kept, op.constant([-1 if width is None else width])])
    opened = op.unary("Sigmoid", gate)
    y = y * (gate * opened if spec.silu else opened)
    return {"Y": op.cast(y, spec.dtype)} if "Y" in spec.outputs else {}


def lower_gated_delta_net(op: Ops, spec: GatedDeltaNetSpec, repeat: Repeat) -> dict[str, Tensor]:
    """Emit the equivalent of a node; return its connected outputs by their names in the operator specification."""
    inner = spec.attention
    inputs = {symbol: op.value(tensor) for symbol, tensor in _inputs(op, spec).items()}
    names = {"output": "output", "final_state": "present_state"}
    wanted = {names[symbol]: value for symbol, value in spec.outputs.items()}
    found = lower_linear_attention(op, replace(inner, inputs=inputs, outputs=wanted), repeat)
    rows = (spec.batch_size, spec.seq_length)
    outputs = {}
    if "output" in found:
        outputs["output"] = op.reshape(found["output"], (*rows, inner.output_heads, inner.value_size))
    if "present_state" in found:
        outputs["final_state"] = op.transpose(found["present_state"], [0, 1, 3, 2])
    return {symbol: op.cast(tensor, spec.dtype_of(symbol)) for symbol, tensor in outputs.items()}


def _inputs(op: Ops, spec: GatedDeltaNetSpec) -> dict[str, Tensor]:
    """Return the inputs of the LinearAttention, by their names there."""
    inner = spec.attention
    key, value = (inner.query_heads, inner.key_size), (inner.state_heads, inner.value_size)
    found = {
        "query": _packed(op, spec, "query", key),
        "key": _packed(op, spec, "key", key),
        "value": _packed(op, spec, "value", value),
    }
    if "initial_state" in spec.inputs:
        shape = (spec.batch_size, inner.state_heads, inner.value_size, inner.key_size)
        found["past_state"] = op.transpose(node_input(op, spec, "initial_state", shape), [0, 1, 3, 2])
    if inner.rule.decays:
        found["decay"] = _decay(op, spec)
    if inner.rule.corrects:
        beta = node_input(op, spec, "beta", (spec.batch_size, spec.seq_length, inner.state_heads))
        found["beta"] = op.unary("Sigmoid", beta) if spec.squashes_beta else beta
    return found


def _decay(op: Ops, spec: GatedDeltaNetSpec) -> Tensor:
    inner = spec.attention
    heads: Dims = (inner.state_heads,)
    each = (*heads, inner.decay_size) if spec.rank("decay") == 4 else heads
    decay = node_input(op, spec, "decay", (spec.batch_size, spec.seq_length, *each))
    if spec.computes_decay:
        rate, bias = (node_input(op, spec, symbol, heads) for symbol in ("a_log", "dt_bias"))
        if len(each) == 2:
            rate, bias = (op.unsqueeze(x, [1]) for x in (rate, bias))
        rate = op.unary("Exp", rate)
        if spec.lower_bound is None:
            decay = op.unary("Softplus", decay + bias) * op.neg(rate)
        else:
            decay = op.unary("Sigmoid", (decay + bias) * rate) * op.constant(spec.lower_bound)
    return _joined(op, spec, decay) if len(each) == 2 else decay


def _packed(op: Ops, spec: GatedDeltaNetSpec, symbol: str, each: tuple[int, int]) -> Tensor:
    """Return an input [batch, length, heads, size] as [batch, length, heads * size]."""
    x = node_input(op, spec, symbol, (spec.batch_size, spec.seq_length, *each))
    if spec.normalizes and symbol != "value":
        x = x / op.unary("Sqrt", op.sum(x * x, 3) + op.constant(spec.least_square))
    return _joined(op, spec, x)


def _joined(op: Ops, spec: GatedDeltaNetSpec, x: Tensor) -> Tensor:
    width = (x.shape[2] or 1) * (x.shape[3] or 1)
    return op.reshape(x, (spec.batch_size, spec.seq_length, width))
