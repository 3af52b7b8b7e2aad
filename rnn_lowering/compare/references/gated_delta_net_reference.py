"""GatedDeltaNet in float64 NumPy: its gates, around LinearAttention; and inputs for it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rnn_lowering.compare.references.linear_attention_reference import evaluate, used_inputs
from rnn_lowering.compare.references.node_reference import (
    FLOAT32_EPS,
    ShapedReference,
    Symbols,
    in_float64,
    largest,
    limits_of,
)
from rnn_lowering.spec.gated_delta_net import GatedDeltaNetSpec
from rnn_lowering.types import Array

_OF_SIZE = 64
"""How many roundings of the largest number in the row are allowed."""

_LEAST_SQUARES = {"sigmoid": 1e-6, "kda": 1e-6}
"""What qk_l2_norm adds to the square of a length, as measured, by gate_activation; else 1e-12."""


class GatedDeltaNetReference(ShapedReference[GatedDeltaNetSpec]):
    """The reference of a GatedDeltaNet."""

    def outputs(self, inputs: Mapping[str, Array]) -> Symbols:
        given, attributes = in_float64(inputs), self.attributes
        q, k, v = given["query"], given["key"], given["value"]
        if attributes.get("qk_l2_norm", 0):
            least = _LEAST_SQUARES.get(attributes.get("gate_activation", "none"), 1e-12)
            q, k = (x / np.sqrt((x * x).sum(-1, keepdims=True) + least) for x in (q, k))
        parts = {"query": q, "key": k, "value": v}
        used = used_inputs(attributes)
        if "decay" in used:
            parts["decay"] = self._decay(given)
        if "beta" in used:
            beta = given["beta"]
            parts["beta"] = 1 / (1 + np.exp(-beta)) if attributes.get("beta_activation") == "sigmoid" else beta
        packed = {symbol: array.reshape(*array.shape[:2], -1) for symbol, array in parts.items()}
        if "initial_state" in given:
            packed["past_state"] = given["initial_state"].swapaxes(
                2, 3
            )  # [batch, heads, value, key] -> [.., key, value]
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

    def outputs_and_allowed(self, inputs: Mapping[str, Array]) -> tuple[Symbols, Symbols]:
        truth = self.outputs(inputs)
        eps, _, _ = limits_of(self.spec.dtype.numpy())
        allowed = {}
        for symbol, array in truth.items():
            size = largest(array, tuple(range(1, array.ndim)))
            level = _OF_SIZE * FLOAT32_EPS * (size + 1) + (eps * np.abs(array) if symbol == "output" else 0)
            allowed[symbol] = np.broadcast_to(level, array.shape)
        return truth, allowed

    def shapes(self, N: int, T: int) -> Mapping[str, tuple[int, ...]]:
        a = self.spec.attention
        heads = (a.state_heads,)
        return {
            **dict.fromkeys(("query", "key"), (N, T, a.query_heads, a.key_size)),
            "value": (N, T, a.state_heads, a.value_size),
            "decay": (N, T, *heads, a.key_size) if self.spec.rank("decay") == 4 else (N, T, *heads),
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
