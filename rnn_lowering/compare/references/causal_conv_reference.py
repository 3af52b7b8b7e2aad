"""CausalConvWithState in float64 NumPy, and inputs for it."""

from __future__ import annotations

import math
from collections.abc import Mapping

import ml_dtypes
import numpy as np

from rnn_lowering.compare.references.node_reference import (
    NodeReference,
    Symbols,
    by_symbol,
    check_size,
    sizes_of_runs,
)
from rnn_lowering.spec.causal_conv import CausalConvSpec
from rnn_lowering.types import Array

_SIZES = ((2, 5), (1, 1), (3, 33), (2, 2))
"""(batch_size, length) where the node leaves them open."""

_MAGNITUDES = (1.0, 30.0, 0.05)
"""Of the rows of a batch, in turn: SiLU is nearly linear, or it is saturated."""

_CHANNELS, _ROWS = 3, 3

_SLOPE = 1.1
"""The largest slope of SiLU."""


class CausalConvReference(NodeReference[CausalConvSpec]):
    """The reference of a CausalConvWithState: output frames one by one."""

    def outputs(self, inputs: Mapping[str, Array]) -> Symbols:
        frames, weight = self._frames(inputs), _wide(inputs["weight"])[:, 0]
        sums = self._sums(frames, weight) + _wide(inputs.get("bias", np.zeros(len(weight))))[:, None]
        if self.attributes.get("activation", "none") in ("silu", "swish"):
            sums = sums * 0.5 * (1 + np.tanh(0.5 * sums))
        state = frames[:, :, frames.shape[2] - self._reach(weight) :]
        return {
            "output": self._placed(sums, inputs["input"]),
            "present_state": self._placed(state, inputs["input"]),
        }

    def outputs_and_allowed(self, inputs: Mapping[str, Array]) -> tuple[Symbols, Symbols]:
        info = ml_dtypes.finfo(self.spec.dtype.numpy())  # type: ignore[no-untyped-call]
        frames, weight = np.abs(self._frames(inputs)), np.abs(_wide(inputs["weight"])[:, 0])
        terms = self._sums(frames, weight) + np.abs(_wide(inputs.get("bias", np.zeros(len(weight)))))[:, None]
        level = float(info.eps) * _SLOPE * (weight.shape[1] + 4) * terms
        level = np.where(terms < float(info.max) ** 0.75, level + float(info.tiny), np.inf)
        truth = self.outputs(inputs)
        allowed = {
            "output": self._placed(level, inputs["input"]),
            "present_state": np.zeros(truth["present_state"].shape),
        }
        return truth, allowed

    def feeds(self, names: Mapping[str, str], rng: np.random.Generator) -> list[Symbols]:
        return [self._feed(names, rng, N, L, _MAGNITUDES) for N, L in sizes_of_runs(self.spec, _SIZES)]

    def usual_feed(self, names: Mapping[str, str], rng: np.random.Generator, steps: int) -> Symbols:
        spec = self.spec
        N = _ROWS if spec.batch_size is None else spec.batch_size
        return self._feed(names, rng, N, steps if spec.seq_length is None else spec.seq_length, _MAGNITUDES[:1])

    def _feed(
        self, names: Mapping[str, str], rng: np.random.Generator, N: int, L: int, magnitudes: tuple[float, ...]
    ) -> Symbols:
        spec = self.spec
        axes = _channel_axes(spec)
        C, k = math.prod(axes), spec.kernel_size
        check_size(spec, 2 * N * C * (L + spec.state_length) + C * k)
        of_rows = np.resize(np.array(magnitudes), N).reshape(N, 1, 1)
        made = {
            "input": self._shaped(rng.standard_normal((N, C, L)) * of_rows, axes),
            "past_state": self._shaped(rng.standard_normal((N, C, spec.state_length)) * of_rows, axes),
            "weight": rng.standard_normal((C, 1, k)) * k**-0.5,
            "bias": rng.standard_normal(C),
        }
        return {symbol: array.astype(spec.dtype.numpy()) for symbol, array in by_symbol(made, names).items()}

    def _last(self) -> bool:
        return bool(self.attributes.get("channels_last", 0))

    def _reach(self, weight: Array) -> int:
        return int(weight.shape[1] - 1) * int(self.attributes.get("dilation", 1))

    def _frames(self, inputs: Mapping[str, Array]) -> Array:
        """Return the past frames and the input, [batch, channels, frames]."""
        x, weight = self._channels_first(_wide(inputs["input"])), inputs["weight"][:, 0]
        before = np.zeros((*x.shape[:2], self._reach(weight)))
        if "past_state" in inputs:
            before = self._channels_first(_wide(inputs["past_state"]))
        return np.concatenate([before, x], axis=2)

    def _sums(self, frames: Array, weight: Array) -> Array:
        """Return the weighted sums, [batch, channels, length]."""
        step, reach = int(self.attributes.get("dilation", 1)), self._reach(weight)
        sums = np.zeros((*frames.shape[:2], frames.shape[2] - reach))
        for t in range(sums.shape[2]):
            sums[:, :, t] = (frames[:, :, t : t + reach + 1 : step] * weight).sum(axis=2)
        return sums

    def _channels_first(self, array: Array) -> Array:
        if not self._last():
            return array
        return array.reshape(*array.shape[:2], math.prod(array.shape[2:])).swapaxes(1, 2)

    def _placed(self, array: Array, like: Array) -> Array:
        """Return [batch, channels, frames] with the axes of an input."""
        return self._shaped(array, like.shape[2:]) if self._last() else array

    def _shaped(self, array: Array, axes: tuple[int, ...]) -> Array:
        if not self._last():
            return array
        return array.swapaxes(1, 2).reshape(array.shape[0], array.shape[2], *axes)


def _wide(array: Array) -> Array:
    return np.asarray(array, np.float64)


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
