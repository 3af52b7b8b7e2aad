"""LinearAttentionGate and GatedRMSNorm in float64 NumPy, and inputs for them."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from rnn_lowering.compare.references.node_reference import ShapedReference, Symbols, in_float64, limits_of
from rnn_lowering.spec.gates import AttentionGateSpec, GatedNormSpec
from rnn_lowering.types import Array, Dims

_MAGNITUDES = (1.0, 30.0, 1e-3)
"""Gates are open, saturated or in the middle; epsilon matters."""

_ROUNDINGS = 8

_OPEN = 3
"""The size of an axis that is neither the batch nor the length, where the node leaves it open."""


class AttentionGateReference(ShapedReference[AttentionGateSpec]):
    """The reference of a LinearAttentionGate."""

    MAGNITUDES = _MAGNITUDES

    def outputs(self, inputs: Mapping[str, Array]) -> Symbols:
        given = in_float64(inputs)
        found = {"decay": given["decay_scale"] * np.logaddexp(0, given["a"] + given["dt_bias"])}
        return found | ({"beta": _sigmoid(given["b"])} if "b" in given else {})

    def outputs_and_allowed(self, inputs: Mapping[str, Array]) -> tuple[Symbols, Symbols]:
        truth, given = self.outputs(inputs), in_float64(inputs)
        terms = (np.abs(given["a"]) + np.abs(given["dt_bias"]) + 1) * np.abs(given["decay_scale"])
        level = _ROUNDINGS * limits_of(self.spec.dtype.numpy())[0]
        return truth, {s: level * (terms if s == "decay" else np.ones(a.shape)) for s, a in truth.items()}

    def shapes(self, N: int, T: int) -> Mapping[str, tuple[int, ...]]:
        rows = _closed((N, T, self.spec.heads), N, T)
        return {"a": rows, "b": rows, "dt_bias": rows[2:], "decay_scale": rows[2:]}


class GatedNormReference(ShapedReference[GatedNormSpec]):
    """The reference of a GatedRMSNorm."""

    MAGNITUDES = _MAGNITUDES

    def outputs(self, inputs: Mapping[str, Array]) -> Symbols:
        given = in_float64(inputs)
        opened = _sigmoid(given["gate"]) * (1 if self.attributes.get("activation") == "sigmoid" else given["gate"])
        return {"Y": self._normalized(given) * opened}

    def _normalized(self, given: Mapping[str, Array]) -> Array:
        x, scale = given["X"], given["scale"]
        grouped = x.reshape(*x.shape[:-1], x.shape[-1] // len(scale), len(scale))
        size = np.sqrt((grouped**2).mean(axis=-1, keepdims=True) + self.attributes.get("epsilon", 1e-5))
        return np.asarray((grouped / size * scale).reshape(x.shape))

    def outputs_and_allowed(self, inputs: Mapping[str, Array]) -> tuple[Symbols, Symbols]:
        given = in_float64(inputs)
        # A gate that is closed, at -20, is as far from 0 in a kernel as an open one from its number.
        size = np.abs(self._normalized(given)) * (1 + np.abs(given["gate"]))
        roundings = _ROUNDINGS + math.log2(len(given["scale"]) + 1)
        return self.outputs(inputs), {"Y": limits_of(self.spec.dtype.numpy())[0] * roundings * size}

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
