"""CausalConvWithState in float64 NumPy, and inputs for it."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from rnn_lowering.compare.references.node_reference import ShapedReference, Symbols, in_float64, limits_of
from rnn_lowering.nodes.causal_conv import CausalConvSpec
from rnn_lowering.types import Array

_CHANNELS = 3

_SLOPE = 1.1
"""The largest slope of SiLU."""


class CausalConvReference(ShapedReference[CausalConvSpec]):
    """The reference of a CausalConvWithState: output frames one by one."""

    MAGNITUDES = (1.0, 30.0, 0.05)  # SiLU is nearly linear, or it is saturated

    def outputs(self, inputs: Mapping[str, Array]) -> Symbols:
        given = in_float64(inputs)
        frames = self._frames(given)
        sums = self._sums(frames, given)
        if self.attributes.get("activation", "none") in ("silu", "swish"):
            sums = sums * 0.5 * (1 + np.tanh(0.5 * sums))
        state = frames[:, :, frames.shape[2] - self._reach(given) :]
        return {
            "output": self._placed(sums, inputs["input"]),
            "present_state": self._placed(state, inputs["input"]),
        }

    def allowed(self, inputs: Mapping[str, Array], truth: Symbols) -> Mapping[str, Array | float]:
        eps, tiny, too_large = limits_of(self.spec.dtype.numpy())
        given = {symbol: np.abs(array) for symbol, array in in_float64(inputs).items()}
        terms = self._sums(self._frames(given), given)
        level = eps * _SLOPE * (given["weight"].shape[2] + 4) * terms
        level = np.where(terms < too_large, level + tiny, np.inf)
        return {"output": self._placed(level, inputs["input"]), "present_state": 0.0}

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
