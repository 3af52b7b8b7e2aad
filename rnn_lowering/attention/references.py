"""LinearAttention and its relatives of com.microsoft in float64 NumPy, and inputs for them.

LinearAttention is computed step by step. GatedDeltaNet adds gates around it. LinearAttentionGate and GatedRMSNorm
compute element by element.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun

from rnn_lowering.attention.causal_conv import CausalConvSpec
from rnn_lowering.attention.gated_delta_net import AttentionGateSpec, GatedDeltaNetSpec, GatedNormSpec
from rnn_lowering.attention.linear_attention import LinearAttentionSpec
from rnn_lowering.compare.float64.node_reference import (
    FLOAT32_EPS,
    Attributes,
    ShapedReference,
    Spec,
    Symbols,
    attributes_of,
    in_type,
    largest,
    limits_of,
    moved_by_a_rounding,
)
from rnn_lowering.types import Array, Dims

_RULES = {"linear": (), "gated": ("decay",), "delta": ("beta",), "gated_delta": ("decay", "beta")}
"""The optional inputs that each update rule uses."""

_INPUTS = ("query", "key", "value", "past_state", "decay", "beta")

_OF_SIZE, _OF_SHOWN = 16, 8
"""Allowed roundings: of the largest number in the row, and of the difference that float32 shows."""

_ROW_KINDS = ("plain", "weak and strong decays", "equal keys", "positive keys")
_FEWEST = 3
_BUDGET = 4e8
"""About how many multiplications all runs of one node may take: a large node gets fewer, shorter runs."""


@np.errstate(over="ignore", invalid="ignore", under="ignore")
def evaluate(attributes: Attributes, inputs: Mapping[str, Array]) -> Symbols:
    """Return output and present_state, computed in the type of the query.

    Args:
        attributes: Those of the node as Python values.
        inputs: By their names in the operator specification.
    """
    dtype, (B, T, width) = inputs["query"].dtype.type, inputs["query"].shape
    given = {symbol: np.asarray(array, dtype) for symbol, array in inputs.items()}
    used = _used_inputs(attributes)
    queries, states = attributes["q_num_heads"], attributes["kv_num_heads"]
    d = width // queries
    q = given["query"].reshape(B, T, queries, d)
    k = given["key"].reshape(B, T, -1, d)
    v = given["value"].reshape(B, T, states, given["value"].shape[2] // states)
    k = np.repeat(k, states // k.shape[2], axis=2)
    if queries < states:
        q = np.repeat(q, states // queries, axis=2)
    q = q.reshape(B, T, states, -1, d)
    scale = dtype(np.float32(attributes.get("scale", 0.0)) or 1 / np.sqrt(np.float64(d)))
    S = np.array(given.get("past_state", np.zeros((B, states, d, v.shape[3]), dtype)))
    O = np.zeros((B, T, states, q.shape[3], v.shape[3]), dtype)  # noqa: E741
    for t in range(T):
        if "decay" in used:
            S = S * np.exp(given["decay"][:, t].reshape(B, states, -1, 1))
        u = v[:, t, :, None]
        if "beta" in used:
            u = given["beta"][:, t, :, None, None] * (u - k[:, t, :, None] @ S)
        S = S + k[:, t, :, :, None] * u
        O[:, t] = scale * q[:, t] @ S
    return {"output": O.reshape(B, T, -1), "present_state": S}


def _used_inputs(attributes: Attributes) -> tuple[str, ...]:
    return _RULES[attributes.get("update_rule", "gated_delta")]


class _StateReference(ShapedReference[Spec]):
    """The reference of a node that updates a state step by step, in float32 where its type is narrower."""

    @np.errstate(over="ignore", invalid="ignore", under="ignore")
    def allowed(self, given: Symbols, truth: Symbols) -> Symbols:
        rounded = self.computed(in_type(moved_by_a_rounding(given, given), np.float32))
        allowed: Symbols = {}
        for symbol, array in truth.items():
            eps, tiny, too_large = limits_of(self.spec.dtype_of(symbol).numpy())
            axes = tuple(range(1, array.ndim))
            size, shown = largest(array, axes), largest(rounded[symbol] - array, axes)
            level = _OF_SIZE * FLOAT32_EPS * size + _OF_SHOWN * shown + eps * np.abs(array) + tiny
            allowed[symbol] = np.where(np.isfinite(level) & (size < too_large), level, np.inf)
        return allowed


class LinearAttentionReference(_StateReference[LinearAttentionSpec]):
    """The reference of a LinearAttention."""

    SIZES = ((4, 5), (1, 1), (2, 70), (4, 2), (3, 33), (1, 3))

    def computed(self, given: Symbols) -> Symbols:
        return evaluate(self.attributes, given)

    def sizes(self) -> list[tuple[int, int]]:
        """Return the sizes of the runs; a large node gets fewer and shorter ones."""
        sizes = super().sizes()
        sizes += sizes[:1] * (_FEWEST - len(sizes))
        kept: list[tuple[int, int]] = []
        spent = 0.0
        for N, T in sizes:
            steps = T if self.spec.seq_length is not None else min(T, max(1, int(_BUDGET / 4 / self._cost(N, 1))))
            spent += self._cost(N, steps)
            if kept and spent > _BUDGET:
                break
            kept.append((N, steps))
        return kept

    def _cost(self, N: int, T: int) -> float:
        """Return about how many multiplications one run takes."""
        return 4.0 * T * N * self.spec.state_heads * self.spec.key_size * self.spec.value_size

    def shapes(self, N: int, T: int) -> dict[str, tuple[int, ...]]:
        spec = self.spec
        return {
            "query": (N, T, spec.query_heads * spec.key_size),
            "key": (N, T, spec.key_heads * spec.key_size),
            "value": (N, T, spec.state_heads * spec.value_size),
            "past_state": (N, spec.state_heads, spec.key_size, spec.value_size),
            "decay": (N, T, spec.state_heads * (spec.decay_size or 1)),
            "beta": (N, T, spec.beta_heads or spec.state_heads),
        }

    def numbers(self, symbol: str, shape: tuple[int, ...], run: int, rng: np.random.Generator) -> Array:
        """Return an input: keys of length 1, so that the delta rule does not amplify; decays at most 0. Each row of
        the batch is of another kind."""
        if symbol == "decay":
            numbers = -rng.uniform(0.001, 0.3, shape)
        elif symbol == "beta":
            numbers = rng.uniform(0, 1, shape)
        else:
            numbers = super().numbers(symbol, shape, run, rng)
        for row, of_row in enumerate(numbers):
            kind = _ROW_KINDS[(run + row) % len(_ROW_KINDS)]
            if symbol == "decay" and kind == "weak and strong decays":
                of_row[rng.random(of_row.shape) < 0.2] = -20
                of_row[rng.random(of_row.shape) < 0.1] = -np.inf
            if symbol == "key" and kind == "equal keys":
                of_row[:] = of_row[:1]
            if symbol == "key" and kind == "positive keys":
                of_row[:] = np.abs(of_row)
        if symbol == "key":
            heads = numbers.reshape(*shape[:2], -1, self.spec.key_size)
            numbers = (heads / np.linalg.norm(heads, axis=-1, keepdims=True)).reshape(shape)
        return numbers


class LinearAttention(OpRun):
    """LinearAttention of ONNX for onnx's evaluator, in the type of the query."""

    op_domain = ""

    def _run(self, *inputs: Array | None, **_: Any) -> tuple[Array, ...]:
        given = {s: a for s, a in zip(_INPUTS, inputs, strict=False) if a is not None}
        results = evaluate(dict(attributes_of(self.onnx_node)), given)
        return results["output"], results["present_state"]


LinearAttentionOfMicrosoft = type("LinearAttention", (LinearAttention,), {"op_domain": "com.microsoft"})


_MAGNITUDES = (1.0, 30.0, 1e-3)
"""Gates are open, saturated or in the middle; epsilon matters."""

_ROUNDINGS = 8

_OPEN = 3
"""The size of an axis that is neither the batch nor the length, where the node leaves it open."""


class AttentionGateReference(ShapedReference[AttentionGateSpec]):
    """The reference of a LinearAttentionGate."""

    MAGNITUDES = _MAGNITUDES

    def computed(self, given: Symbols) -> Symbols:
        results = {"decay": given["decay_scale"] * np.logaddexp(0, given["a"] + given["dt_bias"])}
        return results | ({"beta": _sigmoid(given["b"])} if "b" in given else {})

    def allowed(self, given: Symbols, truth: Symbols) -> Mapping[str, Array | float]:
        terms = (np.abs(given["a"]) + np.abs(given["dt_bias"]) + 1) * np.abs(given["decay_scale"])
        level = _ROUNDINGS * limits_of(self.spec.dtype.numpy())[0]
        return {"decay": level * terms, "beta": level}

    def shapes(self, N: int, T: int) -> Mapping[str, tuple[int, ...]]:
        rows = _closed((N, T, self.spec.heads), N, T)
        return {"a": rows, "b": rows, "dt_bias": rows[2:], "decay_scale": rows[2:]}


class GatedNormReference(ShapedReference[GatedNormSpec]):
    """The reference of a GatedRMSNorm."""

    MAGNITUDES = _MAGNITUDES

    def computed(self, given: Symbols) -> Symbols:
        opened = _sigmoid(given["gate"]) * (1 if self.attributes.get("activation") == "sigmoid" else given["gate"])
        return {"Y": self._normalized(given) * opened}

    def _normalized(self, given: Mapping[str, Array]) -> Array:
        x, scale = given["X"], given["scale"]
        grouped = x.reshape(*x.shape[:-1], x.shape[-1] // len(scale), len(scale))
        size = np.sqrt((grouped**2).mean(axis=-1, keepdims=True) + self.attributes.get("epsilon", 1e-5))
        return np.asarray((grouped / size * scale).reshape(x.shape))

    def allowed(self, given: Symbols, truth: Symbols) -> Symbols:
        # Errors of a kernel's Sigmoid are absolute: a closed gate, at -20, is off by as much as an open one.
        size = np.abs(self._normalized(given)) * (1 + np.abs(given["gate"]))
        roundings = _ROUNDINGS + math.log2(len(given["scale"]) + 1)
        return {"Y": limits_of(self.spec.dtype.numpy())[0] * roundings * size}

    def shapes(self, N: int, T: int) -> Mapping[str, tuple[int, ...]]:
        *rows, width = self.spec.shape
        shape = (*_closed(tuple(rows), N, T), self.spec.group * 2 if width is None else width)
        return {"X": shape, "gate": shape, "scale": (self.spec.group,)}


def _closed(shape: Dims, N: int, T: int) -> tuple[int, ...]:
    """Return a shape with sizes for the axes that are open."""
    sizes = (N, T, *[_OPEN] * len(shape))
    return tuple(other if size is None else size for size, other in zip(shape, sizes, strict=False))


def _sigmoid(x: Array) -> Array:
    return np.asarray(0.5 * (1 + np.tanh(0.5 * x)))


_LEAST_SQUARES = {"sigmoid": 1e-6, "kda": 1e-6}
"""The number that qk_l2_norm adds to the square of a length, as measured, by gate_activation; else 1e-12."""


class GatedDeltaNetReference(_StateReference[GatedDeltaNetSpec]):
    """The reference of a GatedDeltaNet."""

    def computed(self, given: Symbols) -> Symbols:
        attributes = self.attributes
        q, k, v = given["query"], given["key"], given["value"]
        if attributes.get("qk_l2_norm", 0):
            least = _LEAST_SQUARES.get(attributes.get("gate_activation", "none"), 1e-12)
            q, k = (x / np.sqrt((x * x).sum(-1, keepdims=True) + least) for x in (q, k))
        parts = {"query": q, "key": k, "value": v}
        used = _used_inputs(attributes)
        if "decay" in used:
            parts["decay"] = self._decay(given)
        if "beta" in used:
            beta = given["beta"]
            parts["beta"] = 1 / (1 + np.exp(-beta)) if attributes.get("beta_activation") == "sigmoid" else beta
        packed = {symbol: array.reshape(*array.shape[:2], -1) for symbol, array in parts.items()}
        if "initial_state" in given:
            # [batch, heads, value, key] -> [batch, heads, key, value]
            packed["past_state"] = given["initial_state"].swapaxes(2, 3)
        heads = {"q_num_heads": q.shape[2], "kv_num_heads": v.shape[2]}
        found = evaluate({**attributes, **heads}, packed)
        return {
            "output": found["output"].reshape(v.shape),
            "final_state": found["present_state"].swapaxes(2, 3),
        }

    def _decay(self, given: Mapping[str, Array]) -> Array:
        """Return the decay that is applied, of [batch, length, states, 1 or key]."""
        g = given["decay"]
        g = g if g.ndim == 4 else g[..., None]
        gate = self.attributes.get("gate_activation", "none")
        if gate == "none":
            return g
        rate, g = np.exp(given["a_log"])[:, None], g + given["dt_bias"][:, None]
        if gate in ("softplus", "qwen"):
            return np.asarray(-rate * np.logaddexp(0, g))
        return np.asarray(float(self.attributes.get("gate_lower_bound", -5.0)) / (1 + np.exp(-rate * g)))

    def shapes(self, N: int, T: int) -> Mapping[str, tuple[int, ...]]:
        a = self.spec.attention
        heads = (a.state_heads,)
        return {
            **dict.fromkeys(("query", "key"), (N, T, a.query_heads, a.key_size)),
            "value": (N, T, a.state_heads, a.value_size),
            "decay": (N, T, *heads, a.key_size) if self.spec.has_key_decays else (N, T, *heads),
            "beta": (N, T, *heads),
            "initial_state": (N, a.state_heads, a.value_size, a.key_size),
            **dict.fromkeys(("a_log", "dt_bias"), heads),
        }

    def numbers(self, symbol: str, shape: tuple[int, ...], run: int, rng: np.random.Generator) -> Array:
        """Return an input: keys of length 1, so that the delta rule does not amplify; decays at most 0."""
        if symbol == "beta" and not self.spec.squashes_beta:
            return rng.uniform(0, 1, shape)
        numbers = super().numbers(symbol, shape, run, rng)
        if symbol == "key":
            numbers /= np.linalg.norm(numbers, axis=-1, keepdims=True)
        return -np.abs(numbers) if symbol == "decay" and not self.spec.computes_decay else numbers


# CausalConvWithState in float64 NumPy, and inputs for it.


_CHANNELS = 3

_SLOPE = 1.1
"""The largest slope of SiLU."""


class CausalConvReference(ShapedReference[CausalConvSpec]):
    """The reference of a CausalConvWithState: output frames one by one."""

    MAGNITUDES = (1.0, 30.0, 0.05)  # SiLU is nearly linear, or it is saturated

    def computed(self, given: Symbols) -> Symbols:
        frames = self._frames(given)
        sums = self._sums(frames, given)
        if self.attributes.get("activation", "none") in ("silu", "swish"):
            sums = sums * 0.5 * (1 + np.tanh(0.5 * sums))
        state = frames[:, :, frames.shape[2] - self._reach(given) :]
        return {
            "output": self._placed(sums, given["input"]),
            "present_state": self._placed(state, given["input"]),
        }

    def allowed(self, given: Symbols, truth: Symbols) -> Mapping[str, Array | float]:
        eps, tiny, too_large = limits_of(self.spec.dtype.numpy())
        sizes = {symbol: np.abs(array) for symbol, array in given.items()}
        terms = self._sums(self._frames(sizes), sizes)
        level = eps * _SLOPE * (given["weight"].shape[2] + 4) * terms
        level = np.where(terms < too_large, level + tiny, np.inf)
        return {"output": self._placed(level, given["input"]), "present_state": 0.0}

    def shapes(self, N: int, T: int) -> Mapping[str, tuple[int, ...]]:
        spec = self.spec
        channels = _channel_axes(spec)
        C = math.prod(channels)

        def of_frames(count: int) -> tuple[int, ...]:
            return (N, count, *channels) if spec.channels_last else (N, *channels, count)

        return {
            "input": of_frames(T),
            "past_state": of_frames(spec.state_length),
            "weight": (C, 1, spec.kernel_size),
            "bias": (C,),
        }

    def numbers(self, symbol: str, shape: tuple[int, ...], run: int, rng: np.random.Generator) -> Array:
        numbers = super().numbers(symbol, shape, run, rng)
        return numbers * shape[-1] ** -0.5 if symbol == "weight" else numbers

    def _last(self) -> bool:
        return bool(self.attributes.get("channels_last", 0))

    def _reach(self, given: Mapping[str, Array]) -> int:
        return int(given["weight"].shape[2] - 1) * int(self.attributes.get("dilation", 1))

    def _frames(self, given: Mapping[str, Array]) -> Array:
        """Return the past frames and the input, [batch, channels, frames]."""
        x = self._channels_first(given["input"])
        before = np.zeros((*x.shape[:2], self._reach(given)))
        if "past_state" in given:
            before = self._channels_first(given["past_state"])
        return np.concatenate([before, x], axis=2)

    def _sums(self, frames: Array, given: Mapping[str, Array]) -> Array:
        """Return the weighted sums and the bias, [batch, channels, length]."""
        weight, step, reach = given["weight"][:, 0], int(self.attributes.get("dilation", 1)), self._reach(given)
        sums = np.zeros((*frames.shape[:2], frames.shape[2] - reach))
        for t in range(sums.shape[2]):
            sums[:, :, t] = (frames[:, :, t : t + reach + 1 : step] * weight).sum(axis=2)
        return sums + given.get("bias", np.zeros(len(weight)))[:, None]

    def _channels_first(self, array: Array) -> Array:
        if not self._last():
            return array
        return array.reshape(*array.shape[:2], math.prod(array.shape[2:])).swapaxes(1, 2)

    def _placed(self, array: Array, like: Array) -> Array:
        """Return [batch, channels, frames] with the axes of an input."""
        if not self._last():
            return array
        return array.swapaxes(1, 2).reshape(array.shape[0], array.shape[2], *like.shape[2:])


def _channel_axes(spec: CausalConvSpec) -> tuple[int, ...]:
    """Choose the sizes of the axes of the channels that are not known."""
    axes = list(spec.channel_axes)
    known = math.prod(size for size in axes if size is not None)
    wanted = spec.channels if spec.channels is not None else known * _CHANNELS
    for n, size in enumerate(axes):
        if size is None:
            axes[n] = wanted // max(known, 1)
            known = wanted
    return tuple(size for size in axes if size is not None)
