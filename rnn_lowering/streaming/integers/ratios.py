"""How far a stream in integers is from the float one, over whole sequences."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from rnn_lowering.errors import OptionError
from rnn_lowering.streaming.integers.calibration import REAL, chunks_of, name_of
from rnn_lowering.streaming.stream_runner import Stream
from rnn_lowering.types import Array, ArrayLike


def ratios(exact: Stream, other: Stream, sequences: Sequence[Mapping[str, ArrayLike]]) -> dict[str, float]:
    """Return the signal-to-noise ratio of each float output in dB: infinite where nothing differs, and NaN where
    numbers of the other stream are not finite.

    Late streams are flushed. Of an output without frames, the last value of each sequence counts.

    Raises:
        OptionError: An output has no frame yet, is 0 everywhere, or is not finite in float.
    """
    signal, noise, compared = (defaultdict[str, float](float) for _ in range(3))
    for number in range(len(sequences)):
        for name, array, integers in _pairs(exact, other, sequences[number]):
            if not np.isfinite(array).all():
                text = f"output '{name}' of the float stream is not finite in {name_of(number, len(sequences))}"
                raise OptionError(text, hint=REAL)
            compared[name] += array.size
            signal[name] += float(np.square(array).sum())
            noise[name] += float(np.square(array - integers).sum())
    for name in compared:
        if not compared[name]:
            raise OptionError(
                f"the sequences end before a frame of output '{name}' comes", hint="give longer sequences"
            )
        if not signal[name]:
            raise OptionError(f"output '{name}' is 0 in all sequences, so there is nothing to measure", hint=REAL)
    return {name: _decibels(signal[name], noise[name]) for name in compared}


def _decibels(signal: float, noise: float) -> float:
    if not np.isfinite(noise):
        return np.nan
    return float(10 * (np.log10(signal) - np.log10(noise))) if noise else np.inf


def _pairs(exact: Stream, other: Stream, sequence: Mapping[str, ArrayLike]) -> Iterator[tuple[str, Array, Array]]:
    """Yield what both streams return for a sequence, by the names of outputs."""
    axes, last = exact.plan.outputs, dict[str, tuple[Array, Array]]()
    for one, two in _returned(exact, other, sequence):
        for name, array in one.items():
            if array.dtype.kind == "f":
                pair = array.astype(np.float64), two[name].astype(np.float64)
                if axes[name] is None:
                    last[name] = pair
                else:
                    yield name, *pair
    for state in exact.plan.states:
        if not state.output.startswith("present_") and state.dtype.startswith("float") and exact.states:
            last[state.output] = exact.states[state.input].astype(float), other.states[state.input].astype(float)
    for name, pair in last.items():
        yield name, *pair


def _returned(
    exact: Stream, other: Stream, sequence: Mapping[str, ArrayLike]
) -> Iterator[tuple[dict[str, Array], ...]]:
    """Yield what both streams return, call by call."""
    exact.reset()
    other.reset()
    for chunk in chunks_of(exact.plan, sequence):
        yield exact(chunk), other(chunk)
    if exact.states:
        yield exact.flush(), other.flush()
