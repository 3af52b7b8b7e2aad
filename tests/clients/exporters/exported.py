"""What the exporters share: each writes models to the folder of the command line, and what its framework computes.

NAME.onnx is the model, NAME.npz its inputs and the framework's outputs, for each run of the model: "0 in x" is the
input x of the first run, "0 out 1" its second output.
"""

import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Feed = Mapping[str, Any]
Compute = Callable[[Feed], Sequence[Any]]


def save_runs(path: Path, feeds: Sequence[Feed], compute: Compute) -> None:
    """Write the inputs of each run and what the framework computes of them beside a model."""
    arrays: dict[str, Any] = {}
    for run, feed in enumerate(feeds):
        arrays |= {f"{run} in {name}": np.asarray(array) for name, array in feed.items()}
        arrays |= {f"{run} out {n}": np.asarray(array) for n, array in enumerate(compute(feed))}
    np.savez(path.with_suffix(".npz"), **arrays)


def numbers(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def main(exports: Mapping[str, Callable[[Path], None]]) -> None:
    """Call each export with the file that it writes; one that fails leaves NAME.error."""
    folder = Path(sys.argv[1])
    for name, export in exports.items():
        try:
            export(folder / f"{name}.onnx")
        except Exception as error:
            traceback.print_exc()
            (folder / f"{name}.error").write_text(f"{type(error).__name__}: {error}")
