"""Arrays in files, by name: what passes between processes without being held in both."""

from __future__ import annotations

import json
from collections.abc import Mapping
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


def read_arrays(folder: Path) -> dict[str, Array]:
    """Return the arrays of a folder, mapped and read-only: a part is in memory only while it is looked at."""
    names = json.loads((folder / _NAMES).read_text())
    return {name: np.load(folder / f"{n}.npy", mmap_mode="r") for n, name in enumerate(names)}
