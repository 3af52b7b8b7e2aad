"""A model in float64: ONNX's reference evaluator, with recurrent operators of its own.

RNN, GRU and LSTM are those of tests/support/oracle.py. Float64 decides where onnxruntime and the package differ by
rounding, and stands in where onnxruntime has no kernel. The same in the types of the model shows how far rounding
goes. Onnxruntime does not: it computes originals in float32, for want of kernels in float16, and leaves out Casts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx.inliner
from cases import FORMALS, RESULTS, Array, Arrays
from onnx import TensorProto
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from onnx.reference.ops import op_loop
from oracle import GATES, evaluate
from running import nodes

from fuzz.element_types import retype

FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)
MS = "com.microsoft"

OVERFLOWS = "a type of the model overflows, also on a hundredth of the inputs"
MARGIN = 16
"""How many times as large as a number what leads to it may be: sums whose parts cancel, products before a scale."""


class BeyondRangeError(ArithmeticError):
    """A number is near the largest of its type: another order of the same steps may pass it."""


def truth(model: onnx.ModelProto, feed: Mapping[str, Array], rounded: bool = False) -> Arrays:
    """Return what a model computes in float64.

    Args:
        rounded: Whether values, and states after each step, are of the types of the model instead.

    Raises:
        BeyondRangeError: A type of the model, if `rounded`, does not hold what a recurrent operator computes.
    """
    # The evaluator does not give functions its new operators, and takes an output "" for every input "".
    double = onnx.inliner.inline_local_functions(model) if model.functions else model
    double = onnx.ModelProto.FromString(double.SerializeToString())
    for number, node in enumerate(nodes(double)):
        node.output[:] = [name or f"unused_{number}_{place}" for place, name in enumerate(node.output)]
    given = dict(feed)
    if not rounded:
        retype(double, FLOATS, TensorProto.DOUBLE)
        given = {name: array.astype(np.float64) if _is_float(array) else array for name, array in feed.items()}
    with np.errstate(all="ignore"):
        results: Any = ReferenceEvaluator(double, new_ops=OPERATORS).run(None, given)
    return dict(zip((output.name for output in double.graph.output), results, strict=True))


def within_range(model: onnx.ModelProto, feed: Arrays) -> Arrays | None:
    """Return the first of a feed, its tenth and its hundredth at which no type of the model overflows.

    Returns:
        The feed itself, if that is not known; None, if all three overflow.
    """
    floats = [name for name, array in feed.items() if _is_float(array)]
    for part in (1, 10, 100):
        less = feed | {n: (feed[n] / part).astype(feed[n].dtype) for n in floats} if part > 1 else feed
        try:
            truth(model, less, rounded=True)
        except BeyondRangeError:
            continue
        except Exception:
            return feed
        return less
    return None


def _is_float(array: Array) -> bool:
    return array.dtype.kind == "f" or array.dtype.name == "bfloat16"


def _held(array: Array, kind: Any) -> Array:
    """Return numbers as a type holds them."""
    finfo: Any = ml_dtypes.finfo
    if kind != np.float64 and (np.abs(array) > float(finfo(kind).max) / MARGIN).any():
        raise BeyondRangeError(str(kind))
    return array.astype(kind)


def _attention(given: list[Array], rule: str, heads: tuple[int, int], scale: float) -> list[Array]:
    """Return output and state of LinearAttention: one step after another, all rows at once."""
    kind, kept = given[0].dtype, (given[0] if given[3] is None else given[3]).dtype
    query, key, value = (_held(array, kind).astype(np.float64) for array in given[:3])
    past, decay, beta = (None if array is None else array.astype(np.float64) for array in given[3:])
    queries, states = heads
    B, T = query.shape[:2]
    dk, dv = query.shape[2] // queries, value.shape[2] // states
    q, v = query.reshape(B, T, queries, dk), value.reshape(B, T, states, dv)
    k = key.reshape(B, T, -1, dk)
    k = np.repeat(k, states // k.shape[2], axis=2)
    total = max(queries, states)
    q = np.repeat(q, total // queries, axis=2)
    S = np.zeros((B, states, dk, dv)) if past is None else past
    y = np.zeros((B, T, total, dv))
    for t in range(T):
        if rule in ("gated", "gated_delta"):
            S = np.exp(decay[:, t]).reshape(B, states, -1, 1) * S
        new = v[:, t]
        if rule in ("delta", "gated_delta"):
            new = beta[:, t].reshape(B, -1, 1) * (new - np.einsum("bhkv,bhk->bhv", S, k[:, t]))
        S = _held(S + np.einsum("bhk,bhv->bhkv", k[:, t], new), kept).astype(np.float64)
        y[:, t] = np.einsum("bhkv,bhk->bhv", np.repeat(S, total // states, axis=1), q[:, t])
    return [_held(y.reshape(B, T, total * dv) * (scale or dk**-0.5), kind), S.astype(kept)]


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
        shape, kind = x.shape, x.dtype
        x, weight = x.astype(np.float64), weight.astype(np.float64)
        if channels_last:
            x = np.moveaxis(x.reshape(*shape[:2], -1), 2, 1)
            past = None if past is None else np.moveaxis(past.reshape(*past.shape[:2], x.shape[1]), 2, 1)
        rows, T = (kernel - 1) * dilation, x.shape[2]
        past = np.zeros((*x.shape[:2], rows)) if past is None else past
        z = np.concatenate([past.astype(np.float64), x], 2)
        y = sum(weight[:, 0, j][:, None] * z[:, :, j * dilation : j * dilation + T] for j in range(kernel))
        y = y if bias is None else y + bias.astype(np.float64)[:, None]
        y = y * _sigmoid(y, kind) if activation in ("silu", "swish") else y
        state = z[:, :, T:]
        if channels_last:
            y = np.moveaxis(y, 1, 2).reshape(shape)
            state = np.moveaxis(state, 1, 2).reshape(shape[0], rows, *shape[2:])
        return _held(np.asarray(y), kind), state.astype(kind)


class CausalConvOfMicrosoft(CausalConvWithState):
    op_domain = MS


CausalConvOfMicrosoft.__name__ = "CausalConvWithState"
LinearAttentionOfMicrosoft.__name__ = "LinearAttention"


def _softplus(x: Array) -> Array:
    return np.logaddexp(0, x)


def _sigmoid(x: Array, kind: Any) -> Array:
    """Return Sigmoid; in types below float64 to some 1e-7, as kernels have it: 0 from about -18 on."""
    exact = 0.5 * (1 + np.tanh(0.5 * x))
    return exact if kind == np.float64 else np.round(exact * 2**23) / 2**23


class LinearAttentionGate(OpRun):
    op_domain = MS

    def _run(self, a: Array, bias: Array, scale: Array, b: Any = None) -> tuple[Array, ...]:
        decay = scale * _softplus(a + bias)
        return (decay,) if b is None else (decay, _sigmoid(b, b.dtype).astype(b.dtype))


class GatedRMSNorm(OpRun):
    op_domain = MS

    def _run(
        self, x: Array, scale: Array, gate: Array, activation: str | None = None, epsilon: float | None = None
    ) -> tuple[Array]:
        groups = x.reshape(*x.shape[:-1], -1, len(scale))
        normed = groups / np.sqrt((groups**2).mean(-1, keepdims=True) + (1e-5 if epsilon is None else epsilon))
        factor = _sigmoid(gate, gate.dtype) * (1 if activation == "sigmoid" else gate)
        return (((normed * scale).reshape(x.shape) * factor).astype(x.dtype),)


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
        gate, (B, T, heads, dk), states = gate_activation or "none", q.shape, v.shape[2]
        if qk_l2_norm:
            least = 1e-6 if gate in ("sigmoid", "kda") else 1e-12
            doubles = (x.astype(np.float64) for x in (q, k))
            q, k = ((x / np.sqrt((x**2).sum(-1, keepdims=True) + least)).astype(q.dtype) for x in doubles)
        if decay is not None:
            each = (slice(None), *(None,) * (decay.ndim - 3))
            if gate in ("qwen", "softplus"):
                decay = -np.exp(a_log)[each] * _softplus(decay + bias[each])
            elif gate != "none":
                bound = -5.0 if gate_lower_bound is None else gate_lower_bound
                decay = bound * _sigmoid(np.exp(a_log)[each] * (decay + bias[each]), q.dtype)
            decay = decay.reshape(B, T, -1)
        if beta is not None and beta_activation == "sigmoid":
            beta = _sigmoid(beta, q.dtype)
        if state is None:
            state = np.zeros((B, states, v.shape[3], dk), np.float64 if q.dtype == np.float64 else np.float32)
        past = state.swapaxes(2, 3)
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
            return tuple(_held(results[s], given[0].dtype) for s in RESULTS[op_type])[: len(self.onnx_node.output)]

    Recurrent.__name__ = op_type
    return Recurrent


class Loop(op_loop.Loop):
    """Loop: ONNX's takes no step without a condition, and joins stacked outputs along an axis that they have."""

    op_domain = ""

    def _run(self, *given: Any, context: Any = None, attributes: Any = None, **_: Any) -> tuple[Any, ...]:
        this: Any = self
        count, condition, *held = given
        names, rows = this.body.input_names, list[Any]()
        still, limit = condition is None or bool(condition), np.inf if count is None else int(count)
        while still and len(rows) < limit:
            inside = dict(zip(names, (np.array(len(rows)), np.array(still), *held), strict=True))
            goes_on, *outputs = this._run_body({**(context or {}), **inside}, attributes=attributes)
            held, still = outputs[: len(held)], condition is None or bool(goes_on)
            rows.append(outputs[len(held) :])
        if self.K and not rows:
            raise NotImplementedError("a Loop without steps stacks rows of unknown shape")
        return (*held, *(np.stack(row) for row in zip(*rows, strict=True)))


_OWN = (LinearAttention, LinearAttentionOfMicrosoft, CausalConvWithState, CausalConvOfMicrosoft)
_MORE = (Loop, LinearAttentionGate, GatedRMSNorm, GatedDeltaNet)
OPERATORS: list[type[OpRun]] = [*_OWN, *_MORE, *map(_recurrent, GATES)]
