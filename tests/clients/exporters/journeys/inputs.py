"""What the journeys share: a net's inputs, written down in words, and their numbers.

    {"x": "batch time 8", "tokens": "<50: batch time", "lengths": "lengths: batch"}

The words are sizes; a name is an open axis. "<50" are whole numbers below 50, "lengths" those of sequences in a
batch, the first of which is the whole length.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

Words = Mapping[str, str]
Sizes = Mapping[str, int]

LENGTHS: tuple[Sizes, ...] = ({"batch": 2, "time": 12}, {"batch": 3, "time": 20})
"""The sizes of the open axes in each run; a net is exported at the first."""


def axes(words: str) -> list[str]:
    """The sizes of an input, as they are written."""
    return words.partition(":")[2].split() if ":" in words else words.split()


def shape(words: str, sizes: Sizes) -> tuple[int, ...]:
    """The sizes of an input as numbers."""
    return tuple(int(size) if size.isdigit() else sizes[size] for size in axes(words))


def open_axes(words: str) -> dict[int, str]:
    """The names of an input's open axes, by axis."""
    return {axis: size for axis, size in enumerate(axes(words)) if not size.isdigit()}


def feed(inputs: Words, sizes: Sizes, seed: int = 0) -> dict[str, Any]:
    """Numbers for each input."""
    random = np.random.default_rng(seed)
    return {name: _numbers(words, sizes, random) for name, words in inputs.items()}


def _numbers(words: str, sizes: Sizes, random: Any) -> Any:
    kind, _, _ = words.partition(":") if ":" in words else ("", "", "")
    if kind == "lengths":
        (count,) = shape(words, sizes)
        return np.array([sizes["time"] - 3 * n for n in range(count)], np.int64)
    if kind:
        return random.integers(0, int(kind.removeprefix("<")), shape(words, sizes))
    return random.standard_normal(shape(words, sizes)).astype(np.float32)


def fixed(inputs: Words, sizes: Sizes, names: Sequence[str] = ()) -> Words:
    """The inputs with all axes but `names` fixed."""
    parts = {n: words.partition(":") if ":" in words else ("", "", words) for n, words in inputs.items()}
    return {
        name: kind + colon + " ".join(a if a in names else str(sizes.get(a, a)) for a in held.split())
        for name, (kind, colon, held) in parts.items()
    }


def runs(inputs: Words, lengths: tuple[Sizes, ...]) -> Iterator[dict[str, Any]]:
    """The inputs of each run: one for each of the lengths, or one where no axis is open."""
    is_open = any(open_axes(words) for words in inputs.values())
    for seed, sizes in enumerate(lengths if is_open else lengths[:1]):
        yield feed(inputs, sizes, seed)
