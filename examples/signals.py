"""Generate test signals and their Fourier frames: used by the training scripts and the examples.

A signal is a voice-like tone: it glides, has harmonics, and pauses between syllables. To tell it from steady
colored noise, a network needs memory over time.
"""

import guide
import numpy as np
from numpy.typing import NDArray

RATE = 8000
FRAME = 256
HOP = FRAME // 2
BINS = FRAME // 2 + 1
HARMONICS = 12
LEVEL = 0.1  # root mean square of every noisy signal, so that the network need not learn about loudness

Signals = NDArray[np.float32]  # (signal, sample)
Spectra = NDArray[np.complex64]  # (signal, frame, bin)

# Its square overlap-adds to one at half a frame, so that it serves before and after the mask.
_WINDOW = np.sqrt(np.hanning(FRAME + 1)[:-1]).astype(np.float32)


def noisy_signals(
    rng: np.random.Generator, count: int, seconds: float, snr: tuple[float, float]
) -> tuple[Signals, Signals]:
    """Return clean signals and the same with noise, each at its own ratio (dB) between the two of `snr`."""
    samples = round(seconds * RATE)
    clean = _unit_power(_tones(rng, count, samples))
    noise = _unit_power(_colored_noise(rng, count, samples))
    noisy = clean + noise * 10 ** (-rng.uniform(*snr, (count, 1)) / 20)
    gain = LEVEL / np.sqrt(np.mean(noisy**2, axis=1, keepdims=True))
    return (clean * gain).astype(np.float32), (noisy * gain).astype(np.float32)


def to_spectra(signals: Signals) -> Spectra:
    """Return the short-time Fourier transform; silence is added so that every sample is in two frames."""
    samples = signals.shape[1]
    padded = np.pad(signals, ((0, 0), (HOP, HOP + -samples % HOP)))
    frames = np.lib.stride_tricks.sliding_window_view(padded, FRAME, axis=1)[:, ::HOP]
    return np.fft.rfft(frames * _WINDOW).astype(np.complex64)


def to_signals(spectra: Spectra, samples: int) -> Signals:
    """Undo `to_spectra` by overlapping and adding the frames."""
    frames = np.fft.irfft(spectra, FRAME) * _WINDOW
    count, times, _ = frames.shape
    padded = np.zeros((count, times + 1, HOP))
    padded[:, :-1] += frames[:, :, :HOP]
    padded[:, 1:] += frames[:, :, HOP:]
    return padded.reshape(count, -1)[:, HOP : HOP + samples].astype(np.float32)


def mean_snr(clean: Signals, estimate: Signals) -> float:
    """Return the signal-to-noise ratio in dB, averaged over the signals."""
    wanted = np.sum(clean.astype(np.float64) ** 2, axis=1)
    unwanted = np.sum((estimate.astype(np.float64) - clean) ** 2, axis=1)
    return float(np.mean(10 * np.log10(wanted / unwanted)))


def _tones(rng: np.random.Generator, count: int, samples: int) -> Signals:
    """Return gliding harmonic tones, cut into syllables by an envelope."""
    pitch = 2 ** _wander(rng, count, samples, knots_per_second=3, low=np.log2(90), high=np.log2(400))
    phase = (2 * np.pi / RATE * np.cumsum(pitch, axis=1) % (2 * np.pi)).astype(np.float32)
    envelope = np.clip(_wander(rng, count, samples, knots_per_second=6, low=-2, high=2), 0, 1)
    tilt = rng.uniform(0.5, 1.5, (count, 1))
    total = np.zeros((count, samples), np.float32)
    for harmonic in range(1, HARMONICS + 1):
        audible = harmonic * pitch < 0.45 * RATE
        strength = harmonic**-tilt * rng.uniform(0.2, 1, (count, 1))
        total += (strength * audible).astype(np.float32) * np.sin(harmonic * phase)
    return total * envelope.astype(np.float32)


def _colored_noise(rng: np.random.Generator, count: int, samples: int) -> Signals:
    """Return white noise under a random smooth color: a slope over frequency and a few broad humps."""
    spectrum = np.fft.rfft(rng.standard_normal((count, samples), np.float32))
    position = np.linspace(0, 1, spectrum.shape[1])
    decibels = rng.uniform(-25, 10, (count, 1)) * position
    for cycles in (1, 2, 3):
        height, shift = rng.uniform(0, 5, (count, 1)), rng.uniform(0, 2 * np.pi, (count, 1))
        decibels += height * np.cos(np.pi * cycles * position + shift)
    return np.fft.irfft(spectrum * 10 ** (decibels / 20), samples).astype(np.float32)


def _wander(
    rng: np.random.Generator, count: int, samples: int, *, knots_per_second: float, low: float, high: float
) -> NDArray[np.float64]:
    """Return curves that run straight from one random value to the next."""
    knots = rng.uniform(low, high, (count, int(samples / RATE * knots_per_second) + 2))
    position = np.arange(samples) / RATE * knots_per_second
    return np.stack([np.interp(position, np.arange(row.size), row) for row in knots])


def _unit_power(signals: Signals) -> Signals:
    """Return the signals scaled to a mean square of one; a silent one stays silent."""
    power: Signals = np.mean(signals**2, axis=1, keepdims=True)
    return (signals / np.sqrt(np.maximum(power, 1e-12))).astype(np.float32)


if __name__ == "__main__":
    guide.only_imported()
