"""GatedDeltaNet in float64 NumPy, step by step, and inputs for it."""

from __future__ import annotations

import math
from collections.abc import Mapping

import ml_dtypes
import numpy as np

from rnn_lowering.compare.references.node_reference import (
    FLOAT32_EPS,
    NodeReference,
    Symbols,
    by_symbol,
    check_size,
    sizes_of_runs,
)
from rnn_lowering.spec.gated_delta_net import GatedDeltaNetSpec
from rnn_lowering.types import Array

_SIZES = ((2, 5), (1, 1), (3, 40))
"""(batch_size, length) where the node leaves them open."""

_OF_SIZE = 64
"""How many roundings of the largest number in the row are allowed."""
_LEAST_SQUARES = {"sigmoid": 1e-6, "kda": 1e-6}
"""What qk_l2_norm adds to the square of a length, as measured, by gate_activation; else 1e-12."""


class GatedDeltaNetReference(NodeReference[GatedDeltaNetSpec]):
    """The reference of a GatedDeltaNet."""

    def outputs(self, inputs: Mapping[str, Array]) -> Symbols:
        attributes = self.attributes
        given = {symbol: np.asarray(array, np.float64) for symbol, array in inputs.items()}
        rule = attributes.get("update_rule", "gated_delta")
        q, k, v = given["query"], given["key"], given["value"]
        states, d = v.shape[2], q.shape[3]
        if attributes.get("qk_l2_norm", 0):
            least = _LEAST_SQUARES.get(attributes.get("gate_activation", "none"), 1e-12)
            q, k = (x / np.sqrt((x * x).sum(-1, keepdims=True) + least) for x in (q, k))
        q, k = (np.repeat(x, states // x.shape[2], axis=2) for x in (q, k))
        scale = float(np.float32(attributes.get("scale", 0.0))) or d**-0.5
        S = given.get("initial_state", np.zeros((v.shape[0], states, v.shape[3], d)))  # [.., value, key]
        out = np.zeros(v.shape)
        for t in range(v.shape[1]):
            if rule in ("gated", "gated_delta"):
                g = given["decay"][:, t]
                g = g if g.ndim == 3 else g[..., None]
                g = self._decay(g, given)
                S = S * np.exp(g)[:, :, None, :]
            u = v[:, t]
            if rule in ("delta", "gated_delta"):
                beta = given["beta"][:, t][..., None]
                beta = 1 / (1 + np.exp(-beta)) if attributes.get("beta_activation") == "sigmoid" else beta
                u = beta * (u - (S * k[:, t, :, None]).sum(-1))
            S = S + u[..., None] * k[:, t, :, None]
            out[:, t] = scale * (S * q[:, t, :, None]).sum(-1)
        return {"output": out, "final_state": S}

    def _decay(self, g: Array, given: Mapping[str, Array]) -> Array:
        """Return the decay that is applied, of [batch, states, 1 or key]."""
        gate = self.attributes.get("gate_activation", "none")
        if gate == "none":
            return g
        rate, g = np.exp(given["a_log"])[:, None], g + given["dt_bias"][:, None]
        if gate in ("softplus", "qwen"):
            return np.asarray(-rate * np.logaddexp(0, g))
        return np.asarray(float(self.attributes.get("gate_lower_bound", -5.0)) / (1 + np.exp(-rate * g)))

    def outputs_and_allowed(self, inputs: Mapping[str, Array]) -> tuple[Symbols, Symbols]:
        truth = self.outputs(inputs)
        eps = float(ml_dtypes.finfo(self.spec.dtype.numpy()).eps)  # type: ignore[no-untyped-call]
        allowed = {}
        for symbol, array in truth.items():
            size = np.abs(array).max(axis=tuple(range(1, array.ndim)), keepdims=True, initial=0.0)
            level = _OF_SIZE * FLOAT32_EPS * (size + 1) + (eps * np.abs(array) if symbol == "output" else 0)
            allowed[symbol] = np.broadcast_to(level, array.shape)
        return truth, allowed

    def feeds(self, names: Mapping[str, str], rng: np.random.Generator) -> list[Symbols]:
        return [self._feed(names, rng, *size) for size in sizes_of_runs(self.spec, _SIZES)]

    def usual_feed(self, names: Mapping[str, str], rng: np.random.Generator, steps: int) -> Symbols:
        spec = self.spec
        T = steps if spec.seq_length is None else spec.seq_length
        return self._feed(names, rng, 3 if spec.batch_size is None else spec.batch_size, T)

    def _feed(self, names: Mapping[str, str], rng: np.random.Generator, N: int, T: int) -> Symbols:
        """Return inputs of one run: keys of length 1, so that the delta rule does not amplify; decays at most 0."""
        spec, a = self.spec, self.spec.attention
        heads = (a.state_heads,)
        shapes = {
            **dict.fromkeys(("query", "key"), (N, T, a.query_heads, a.key_size)),
            "value": (N, T, a.state_heads, a.value_size),
            "decay": (N, T, *heads, a.key_size) if spec.rank("decay") == 4 else (N, T, *heads),
            "beta": (N, T, *heads),
            "initial_state": (N, a.state_heads, a.value_size, a.key_size),
            **dict.fromkeys(("a_log", "dt_bias"), heads),
        }
        check_size(spec, sum(math.prod(shapes[symbol]) for symbol in names))
        made = {symbol: rng.standard_normal(shape) for symbol, shape in shapes.items()}
        made["key"] /= np.linalg.norm(made["key"], axis=-1, keepdims=True)
        if not spec.computes_decay:
            made["decay"] = -np.abs(made["decay"])
        if not spec.squashes_beta:
            made["beta"] = rng.uniform(0, 1, made["beta"].shape)
        return {s: array.astype(spec.dtype_of(s).numpy()) for s, array in by_symbol(made, names).items()}
