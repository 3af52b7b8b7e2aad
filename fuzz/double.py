"""A model in float64: ONNX's reference evaluator, with recurrent operators of its own.

RNN, GRU and LSTM are those of tests/support/oracle.py. Float64 decides where onnxruntime and the package differ by
rounding, and stands in where onnxruntime has no kernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnx.inliner
from cases import FORMALS, RESULTS, Array, Arrays
from onnx import TensorProto, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from oracle import GATES, evaluate
from running import nodes

FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)
MS = "com.microsoft"


def truth(model: onnx.ModelProto, feed: Mapping[str, Array]) -> Arrays:
    """Return what a model computes in float64."""
    # The evaluator does not give functions its new operators, and takes an output "" for every input "".
    double = onnx.inliner.inline_local_functions(model) if model.functions else model
    double = onnx.ModelProto.FromString(double.SerializeToString())
    _widen(double)
    for number, node in enumerate(nodes(double)):
        node.output[:] = [name or f"unused_{number}_{place}" for place, name in enumerate(node.output)]
    given = {name: array.astype(np.float64) if _is_float(array) else array for name, array in feed.items()}
    with np.errstate(all="ignore"):
        results: Any = ReferenceEvaluator(double, new_ops=OPERATORS).run(None, given)
    return dict(zip((output.name for output in double.graph.output), results, strict=True))


def _is_float(array: Array) -> bool:
    return array.dtype.kind == "f" or array.dtype.name == "bfloat16"


def _widen(message: Any) -> None:
    """Let all tensors and declared types of floats, at any depth, be of float64."""
    if isinstance(message, onnx.TensorProto):
        if message.data_type in FLOATS:
            wide = numpy_helper.from_array(numpy_helper.to_array(message).astype(np.float64), message.name)
            message.CopyFrom(wide)
    elif isinstance(message, onnx.TypeProto.Tensor):
        message.elem_type = TensorProto.DOUBLE if message.elem_type in FLOATS else message.elem_type
    elif isinstance(message, onnx.AttributeProto) and message.name in ("to", "dtype"):
        message.i = TensorProto.DOUBLE if message.i in FLOATS else message.i
    else:
        for field, value in message.ListFields():
            if field.message_type is not None:
                for inner in value if not hasattr(value, "ListFields") else [value]:
                    _widen(inner)


def _attention(given: list[Array], rule: str, heads: tuple[int, int], scale: float) -> list[Array]:
    """Return output and state of LinearAttention: one step after another, all rows at once."""
    query, key, value, past, decay, beta = given
    queries, states = heads
    B, T = query.shape[:2]
    dk, dv = query.shape[2] // queries, value.shape[2] // states
    q, v = query.reshape(B, T, queries, dk), value.reshape(B, T, states, dv)
    k = key.reshape(B, T, -1, dk)
    k = np.repeat(k, states // k.shape[2], axis=2)
    total = max(queries, states)
    q = np.repeat(q, total // queries, axis=2)
    S = np.zeros((B, states, dk, dv)) if past is None else past.astype(np.float64)
    y = np.zeros((B, T, total, dv))
    for t in range(T):
        if rule in ("gated", "gated_delta"):
            S = np.exp(decay[:, t]).reshape(B, states, -1, 1) * S
        new = v[:, t]
        if rule in ("delta", "gated_delta"):
            new = beta[:, t].reshape(B, -1, 1) * (new - np.einsum("bhkv,bhk->bhv", S, k[:, t]))
        S = S + np.einsum("bhk,bhv->bhkv", k[:, t], new)
        y[:, t] = np.einsum("bhkv,bhk->bhv", np.repeat(S, total // states, axis=1), q[:, t])
    return [y.reshape(B, T, total * dv) * (scale or dk**-0.5), S]


class LinearAttention(OpRun):
    op_domain = ""

    def _run(
        self,
        query: Array,
        key: Array,
        value: Array,
        past: Any = None,
        decay: Any = None,
        beta: Any = None,
        q_num_heads: int = 0,
        kv_num_heads: int = 0,
        update_rule: str | None = None,
        scale: float | None = None,
        chunk_size: int | None = None,
    ) -> tuple[Array, ...]:
        heads = q_num_heads, kv_num_heads
        given = [query, key, value, past, decay, beta]
        return tuple(_attention(given, update_rule or "gated_delta", heads, scale or 0.0))


class LinearAttentionOfMicrosoft(LinearAttention):
    op_domain = MS


class CausalConvWithState(OpRun):
    op_domain = ""

    def _run(
        self,
        x: Array,
        weight: Array,
        bias: Any = None,
        past: Any = None,
        activation: str | None = None,
        dilation: int | None = None,
        channels_last: int | None = None,
        ndim: int | None = None,
    ) -> tuple[Array, ...]:
        dilation, kernel = dilation or 1, weight.shape[2]
        shape = x.shape
        if channels_last:
            x = np.moveaxis(x.reshape(*shape[:2], -1), 2, 1)
            past = None if past is None else np.moveaxis(past.reshape(*past.shape[:2], x.shape[1]), 2, 1)
        rows, T = (kernel - 1) * dilation, x.shape[2]
        past = np.zeros((*x.shape[:2], rows)) if past is None else past
        z = np.concatenate([past, x], 2)
        y = sum(weight[:, 0, j][:, None] * z[:, :, j * dilation : j * dilation + T] for j in range(kernel))
        y = y if bias is None else y + bias[:, None]
        y = y / (1 + np.exp(-y)) if activation in ("silu", "swish") else y
        state = z[:, :, T:]
        if channels_last:
            y = np.moveaxis(y, 1, 2).reshape(shape)
            state = np.moveaxis(state, 1, 2).reshape(shape[0], rows, *shape[2:])
        return np.asarray(y), state


class CausalConvOfMicrosoft(CausalConvWithState):
    op_domain = MS


CausalConvOfMicrosoft.__name__ = "CausalConvWithState"
LinearAttentionOfMicrosoft.__name__ = "LinearAttention"


def _softplus(x: Array) -> Array:
    return np.logaddexp(0, x)


def _sigmoid(x: Array) -> Array:
    return 0.5 * (1 + np.tanh(0.5 * x))


class LinearAttentionGate(OpRun):
    op_domain = MS

    def _run(self, a: Array, bias: Array, scale: Array, b: Any = None) -> tuple[Array, ...]:
        decay = scale * _softplus(a + bias)
        return (decay,) if b is None else (decay, _sigmoid(b))


class GatedRMSNorm(OpRun):
    op_domain = MS

    def _run(
        self, x: Array, scale: Array, gate: Array, activation: str | None = None, epsilon: float | None = None
    ) -> tuple[Array]:
        groups = x.reshape(*x.shape[:-1], -1, len(scale))
        normed = groups / np.sqrt((groups**2).mean(-1, keepdims=True) + (1e-5 if epsilon is None else epsilon))
        factor = _sigmoid(gate) if activation == "sigmoid" else gate * _sigmoid(gate)
        return ((normed * scale).reshape(x.shape) * factor,)


class GatedDeltaNet(OpRun):
    op_domain = MS

    def _run(
        self,
        q: Array,
        k: Array,
        v: Array,
        lens: Any = None,
        decay: Any = None,
        beta: Any = None,
        state: Any = None,
        a_log: Any = None,
        bias: Any = None,
        update_rule: str | None = None,
        gate_activation: str | None = None,
        beta_activation: str | None = None,
        qk_l2_norm: int | None = None,
        scale: float | None = None,
        gate_lower_bound: float | None = None,
        chunk_size: int | None = None,
    ) -> tuple[Array, ...]:
        gate, (B, T, heads, _), states = gate_activation or "none", q.shape, v.shape[2]
        if qk_l2_norm:
            least = 1e-6 if gate in ("sigmoid", "kda") else 1e-12
            q, k = (x / np.sqrt((x**2).sum(-1, keepdims=True) + least) for x in (q, k))
        if decay is not None:
            each = (slice(None), *(None,) * (decay.ndim - 3))
            if gate in ("qwen", "softplus"):
                decay = -np.exp(a_log)[each] * _softplus(decay + bias[each])
            elif gate != "none":
                bound = -5.0 if gate_lower_bound is None else gate_lower_bound
                decay = bound * _sigmoid(np.exp(a_log)[each] * (decay + bias[each]))
            decay = decay.reshape(B, T, -1)
        if beta is not None and beta_activation == "sigmoid":
            beta = _sigmoid(beta)
        past = None if state is None else state.swapaxes(2, 3)
        given = [q.reshape(B, T, -1), k.reshape(B, T, -1), v.reshape(B, T, -1), past, decay, beta]
        y, new = _attention(given, update_rule or "gated_delta", (heads, states), scale or 0.0)
        return y.reshape(B, T, states, -1), new.swapaxes(2, 3)


def _recurrent(op_type: str) -> type[OpRun]:
    """Return RNN, GRU or LSTM as tests/support/oracle.py computes it."""

    class Recurrent(OpRun):
        op_domain = ""

        def _run(self, *given: Any, **attributes: Any) -> tuple[Array, ...]:
            inputs = {s: array for s, array in zip(FORMALS[op_type], given, strict=False) if array is not None}
            held = {a.name: onnx.helper.get_attribute_value(a) for a in self.onnx_node.attribute}
            texts = {
                name: value.decode()
                if isinstance(value, bytes)
                else [v.decode() if isinstance(v, bytes) else v for v in value]
                if isinstance(value, list)
                else value
                for name, value in held.items()
            }
            results = evaluate(op_type, texts, inputs)
            return tuple(results[s] for s in RESULTS[op_type])[: len(self.onnx_node.output)]

    Recurrent.__name__ = op_type
    return Recurrent


_OWN = (LinearAttention, LinearAttentionOfMicrosoft, CausalConvWithState, CausalConvOfMicrosoft)
_MORE = (LinearAttentionGate, GatedRMSNorm, GatedDeltaNet)
OPERATORS: list[type[OpRun]] = [*_OWN, *_MORE, *map(_recurrent, GATES)]
