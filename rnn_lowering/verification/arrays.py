"""Named arrays in one .npz file. Names come from models: whatever they hold, they are data in the file, never the
names of its entries or of arguments."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from rnn_lowering.types import Array


def write_arrays(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write arrays: entry 0 holds their names as JSON in UTF-8, entries 1, 2, ... the arrays in that order."""
    names = np.frombuffer(json.dumps(list(arrays)).encode(), np.uint8)
    np.savez(path, allow_pickle=False, **{str(n): a for n, a in enumerate((names, *arrays.values()))})


def read_arrays(path: Path) -> dict[str, Array]:
    """Read what `write_arrays` wrote."""
    with np.load(path, allow_pickle=False) as held:
        names = json.loads(held["0"].tobytes())
        return {name: held[str(n)] for n, name in enumerate(names, 1)}
