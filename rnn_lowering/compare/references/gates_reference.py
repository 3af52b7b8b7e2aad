"""LinearAttentionGate and GatedRMSNorm in float64 NumPy, and inputs for them."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping

import ml_dtypes
import numpy as np

from rnn_lowering.compare.references.node_reference import NodeReference, Spec, Symbols, by_symbol, check_size
from rnn_lowering.spec.gates import AttentionGateSpec, GatedNormSpec
from rnn_lowering.types import Array, Dims

_SIZES = ((2, 5), (1, 1), (3, 4))
"""Sizes of the first two axes where the node leaves them open."""

_MAGNITUDES = (1.0, 30.0, 1e-3)
"""Of the rows of a batch, in turn: gates are open, saturated or in the middle; epsilon matters."""

_ROUNDINGS = 8

_OPEN = 3


class _GateReference(NodeReference[Spec]):
    """The reference of a node without steps: its inputs follow from their shapes."""

    @abstractmethod
    def shapes(self, sizes: tuple[int, int]) -> Mapping[str, tuple[int, ...]]:
        """Return the shapes of all inputs, with sizes for the open axes."""

    def feeds(self, names: Mapping[str, str], rng: np.random.Generator) -> list[Symbols]:
        return [_feed(self, names, rng, self.shapes(sizes), _MAGNITUDES) for sizes in _SIZES]

    def usual_feed(self, names: Mapping[str, str], rng: np.random.Generator, steps: int) -> Symbols:
        return _feed(self, names, rng, self.shapes((_OPEN, steps)), _MAGNITUDES[:1])


class AttentionGateReference(_GateReference[AttentionGateSpec]):
    """The reference of a LinearAttentionGate."""

    def outputs(self, inputs: Mapping[str, Array]) -> Symbols:
        given = {symbol: np.asarray(array, np.float64) for symbol, array in inputs.items()}
        found = {"decay": given["decay_scale"] * np.logaddexp(0, given["a"] + given["dt_bias"])}
        return found | ({"beta": _sigmoid(given["b"])} if "b" in given else {})

    def outputs_and_allowed(self, inputs: Mapping[str, Array]) -> tuple[Symbols, Symbols]:
        truth = self.outputs(inputs)
        given = {symbol: np.asarray(array, np.float64) for symbol, array in inputs.items()}
        terms = (np.abs(given["a"]) + np.abs(given["dt_bias"]) + 1) * np.abs(given["decay_scale"])
        eps = _eps(self.spec)
        return truth, {
            s: _ROUNDINGS * eps * (terms if s == "decay" else np.ones(a.shape)) for s, a in truth.items()
        }

    def shapes(self, sizes: tuple[int, int]) -> Mapping[str, tuple[int, ...]]:
        spec = self.spec
        rows = _closed((spec.batch_size, spec.seq_length, spec.heads), sizes)
        return {"a": rows, "b": rows, "dt_bias": rows[2:], "decay_scale": rows[2:]}


class GatedNormReference(_GateReference[GatedNormSpec]):
    """The reference of a GatedRMSNorm."""

    def outputs(self, inputs: Mapping[str, Array]) -> Symbols:
        gate = np.asarray(inputs["gate"], np.float64)
        opened = _sigmoid(gate) * (1 if self.attributes.get("activation") == "sigmoid" else gate)
        return {"Y": self._normalized(inputs) * opened}

    def _normalized(self, inputs: Mapping[str, Array]) -> Array:
        x, scale = (np.asarray(inputs[symbol], np.float64) for symbol in ("X", "scale"))
        grouped = x.reshape(*x.shape[:-1], x.shape[-1] // len(scale), len(scale))
        size = np.sqrt((grouped**2).mean(axis=-1, keepdims=True) + self.attributes.get("epsilon", 1e-5))
        return np.asarray((grouped / size * scale).reshape(x.shape))

    def outputs_and_allowed(self, inputs: Mapping[str, Array]) -> tuple[Symbols, Symbols]:
        # A gate that is closed, at -20, is as far from 0 in a kernel as an open one from its number.
        size = np.abs(self._normalized(inputs)) * (1 + np.abs(np.asarray(inputs["gate"], np.float64)))
        roundings = _ROUNDINGS + math.log2(len(inputs["scale"]) + 1)
        return self.outputs(inputs), {"Y": _eps(self.spec) * roundings * size}

    def shapes(self, sizes: tuple[int, int]) -> Mapping[str, tuple[int, ...]]:
        spec = self.spec
        *rows, width = spec.shape
        shape = (*_closed(tuple(rows), sizes), spec.group * 2 if width is None else width)
        return {"X": shape, "gate": shape, "scale": (spec.group,)}


def _feed(
    node: NodeReference[Spec],
    names: Mapping[str, str],
    rng: np.random.Generator,
    shapes: Mapping[str, tuple[int, ...]],
    magnitudes: tuple[float, ...],
) -> Symbols:
    """Return inputs of these shapes; the rows of a batch have magnitudes in turn."""
    check_size(node.spec, 2 * sum(math.prod(shape) for shape in shapes.values()))
    made = {}
    for symbol, shape in shapes.items():
        array = rng.standard_normal(shape)
        if "N" in node.spec.axes(symbol):
            array = array * np.resize(np.array(magnitudes), shape[0]).reshape(-1, *[1] * (len(shape) - 1))
        made[symbol] = array.astype(node.spec.dtype_of(symbol).numpy())
    return by_symbol(made, names)


def _closed(shape: Dims, sizes: tuple[int, int]) -> tuple[int, ...]:
    """Return a shape with sizes for the axes that are open."""
    open_sizes = (*sizes, *[_OPEN] * len(shape))
    return tuple(other if size is None else size for size, other in zip(shape, open_sizes, strict=False))


def _sigmoid(x: Array) -> Array:
    return np.asarray(0.5 * (1 + np.tanh(0.5 * x)))


def _eps(spec: AttentionGateSpec | GatedNormSpec) -> float:
    return float(ml_dtypes.finfo(spec.dtype.numpy()).eps)  # type: ignore[no-untyped-call]
