"""Pass arrays between processes in mapped files, without copies."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path

import numpy as np

from rnn_lowering.types import Array

_ALIGNED = 64
"""Each array in a file begins at a multiple of this many bytes."""


def write_arrays(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write arrays of any names into one file: the length of its index, the index as JSON, the bytes of each array.

    Raises:
        ValueError: One holds Python objects.
    """
    if any(array.dtype.hasobject for array in arrays.values()):
        raise ValueError("an array holds Python objects")
    starts = accumulate((_rounded_up(array.nbytes) for array in arrays.values()), initial=0)
    index = [(n, a.dtype.str, a.shape, start) for (n, a), start in zip(arrays.items(), starts, strict=False)]
    head = json.dumps(index).encode()
    with path.open("wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        for (_, _, _, start), array in zip(index, arrays.values(), strict=True):
            file.seek(_first_byte(len(head)) + start)
            array.tofile(file)


def _rounded_up(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED


def _first_byte(head: int) -> int:
    return _rounded_up(8 + head)


class StoredArrays(Mapping[str, Array]):
    """The arrays in a file, by name. Each access maps the file anew, read-only, so that nothing stays in memory."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            index = json.loads(file.read(size))
        self._path, self._first = path, _first_byte(size)
        self._index = {name: (np.dtype(dtype), tuple(shape), start) for name, dtype, shape, start in index}

    def __getitem__(self, name: str) -> Array:
        dtype, shape, start = self._index[name]
        if not math.prod(shape):  # nothing can be mapped
            return np.zeros(shape, dtype)
        return np.memmap(self._path, dtype, "r", self._first + start, shape)

    def __contains__(self, name: object) -> bool:
        return name in self._index

    def __iter__(self) -> Iterator[str]:
        return iter(self._index)

    def __len__(self) -> int:
        return len(self._index)


def write_steps(path: Path, names: Sequence[str], steps: Sequence[Mapping[str, Array]]) -> None:
    """Write the outputs of steps, those of one name joined to one array: they are many and small."""
    write_arrays(path, {name: np.concatenate([step[name].reshape(-1) for step in steps]) for name in names})
    _shapes_of(path).write_text(json.dumps([[step[name].shape for name in names] for step in steps]))


def _shapes_of(path: Path) -> Path:
    return path.with_suffix(".json")


def read_steps(path: Path) -> list[dict[str, Array]]:
    """Return the outputs of each step by name."""
    joined = {name: np.asarray(array) for name, array in StoredArrays(path).items()}
    starts = dict.fromkeys(joined, 0)
    steps = []
    for shapes in json.loads(_shapes_of(path).read_text()):
        step = {}
        for name, shape in zip(joined, shapes, strict=True):
            end = starts[name] + math.prod(shape)
            step[name] = joined[name][starts[name] : end].reshape(shape)
            starts[name] = end
        steps.append(step)
    return steps
