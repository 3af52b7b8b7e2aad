"""Arrays in files, by name, so that two processes share them without both holding them in memory."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from rnn_lowering.types import Array

STEPS = "steps.npz"
"""The outputs of chunks, by \"number of the chunk:number of the output\", in one file: they are many and small."""

_NAMES = "names.json"


def write_arrays(folder: Path, arrays: Mapping[str, Array]) -> None:
    """Write arrays of any names into a new folder.

    Raises:
        ValueError: One holds Python objects.
    """
    folder.mkdir()
    for n, array in enumerate(arrays.values()):
        np.save(folder / f"{n}.npy", array, allow_pickle=False)
    (folder / _NAMES).write_text(json.dumps(list(arrays)))


class StoredArrays(Mapping[str, Array]):
    """The arrays of a folder. Each access maps the file again, read-only, so that what was read does not stay in
    memory."""

    def __init__(self, folder: Path) -> None:
        names = json.loads((folder / _NAMES).read_text())
        self._files = {name: folder / f"{n}.npy" for n, name in enumerate(names)}

    def __getitem__(self, name: str) -> Array:
        array: Array = np.load(self._files[name], mmap_mode="r")
        return array

    def __contains__(self, name: object) -> bool:
        return name in self._files

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


def read_arrays(folder: Path) -> StoredArrays:
    """Return the arrays that `write_arrays` wrote into a folder."""
    return StoredArrays(folder)
