"""Models in a runtime, each called on two feeds: python again.py NAME FOLDER SECONDS, with jobs as in jobs.py.

A job also has again.npz, the second feed, and open.json: by input, the axes whose sizes are open, with their names.
The outputs of the second feed are "NAME again".
"""

import importlib
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jobs import Arrays, main


@dataclass(frozen=True)
class Fact:
    """What a runtime is told of an input: sizes, or their names."""

    shape: tuple[int | str, ...]
    dtype: Any


def run(model: Path, feed: Mapping[str, Any], names: list[str]) -> Arrays:
    axes = json.loads(model.with_name("open.json").read_text())
    facts = {name: _fact(array, axes.get(name, {})) for name, array in feed.items()}
    call = LOAD(model, facts if CLIENT == "tract" else feed, names)
    outputs = {name: np.array(array) for name, array in call(feed).items()}
    with np.load(model.with_name("again.npz")) as held:
        others = call({name: held[name] for name in held.files})
    return outputs | {f"{name} again": array for name, array in others.items()}


def _fact(array: Any, names: Mapping[str, str]) -> Fact:
    return Fact(tuple(names.get(str(axis), size) for axis, size in enumerate(array.shape)), array.dtype)


if __name__ == "__main__":
    CLIENT = sys.argv.pop(1).replace("-", "_")
    LOAD = importlib.import_module(f"run_{CLIENT}").load
    main(run)
