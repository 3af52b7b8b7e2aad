"""Generate recordings of whistles in noise: used to train and test the keyword spotter.

Three "words" that anyone can whistle: one that rises, one that falls, and two short ones of one pitch.
"""

import guide
import numpy as np
from numpy.typing import NDArray
from signals import HOP, RATE, Signals

NAMES = ("nothing", "rise", "fall", "twice")
SURE = 0.8
"""A whistle is heard when its probability exceeds this, once until the probability is below half of it."""

Labels = NDArray[np.int64]  # (signal, frame): the index in NAMES


def recordings(rng: np.random.Generator, count: int, seconds: float) -> tuple[Signals, Labels]:
    """Return recordings with a whistle about every second, and the word that each frame ends or has just ended.

    The last frames of a word have the label -1: it may be told or not.
    """
    samples = round(seconds * RATE)
    frames = -(-samples // HOP) + 1
    found = np.zeros((count, samples), np.float32)
    labels = np.zeros((count, frames), np.int64)
    for n in range(count):
        start = rng.uniform(0.1, 0.6)
        while (end := start + rng.uniform(0.3, 0.5)) + 0.2 < seconds:
            word = int(rng.integers(1, len(NAMES)))
            first, last = round(start * RATE), round(end * RATE)
            found[n, first:last] += whistle(rng, NAMES[word], last - first)
            labels[n, last // HOP - 3 : last // HOP + 1] = -1
            labels[n, last // HOP + 1 : last // HOP + 6] = word
            start = end + rng.uniform(0.4, 0.9)
        noise = rng.standard_normal(samples).astype(np.float32)
        found[n] += np.convolve(noise, [1, rng.uniform(-0.9, 0.9)], "same") * 10 ** rng.uniform(-2.5, -1)
    return (found * rng.uniform(0.1, 0.5, (count, 1))).astype(np.float32), labels


def whistle(rng: np.random.Generator, name: str, samples: int) -> NDArray[np.float32]:
    """Return one whistle of a name."""
    position = np.linspace(0, 1, samples)
    low, ratio = rng.uniform(700, 1400), rng.uniform(1.4, 2)
    pitch = {"rise": low * ratio**position, "fall": low * ratio ** (1 - position)}.get(name, np.full(samples, low))
    loud = np.sin(np.pi * position) ** 0.5 if name != "twice" else np.abs(np.sin(2 * np.pi * position)) ** 0.5
    if name == "twice":
        loud *= np.abs(position - 0.5) > rng.uniform(0.08, 0.15)
    return (np.sin(2 * np.pi * np.cumsum(pitch) / RATE) * loud).astype(np.float32)


def heard(probabilities: NDArray[np.float32]) -> list[tuple[str, int]]:
    """Return the whistles of (frame, name) probabilities, and the frame in which each is heard."""
    found, armed = [], True
    for frame, row in enumerate(probabilities[:, 1:]):
        if armed and row.max() > SURE:
            found.append((NAMES[1 + int(row.argmax())], frame))
            armed = False
        armed = armed or row.max() < SURE / 2
    return found


if __name__ == "__main__":
    guide.only_imported()
