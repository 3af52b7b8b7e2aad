"""Layers of Keras around a GRU, exported by `export(format="onnx")` with fixed sizes.

    python functions_of_keras.py FOLDER [NAME.PLACE.keras ...]

See functions_of_pytorch.py.
"""

# mypy: disable-error-code="misc, no-any-return"

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import keras
import onnx
import tensorflow as tf
from exported import numbers, save_runs
from parts import halves_left, part
from table_of_keras import LAYERS, SIZE, STEPS

TOGETHER = 16
"""The layers of an export."""


def rows() -> Any:
    return keras.Input((STEPS, SIZE), batch_size=2, name="x")


def exports() -> Iterator[str]:
    """All that a layer can be part of: rows of floats are a GRU's input."""
    for name, layer in LAYERS.items():
        yield f"{name}.after.keras"
        found = layer(rows())
        if isinstance(found, keras.KerasTensor) and found.dtype == "float32" and len(found.shape) == len("NTC"):
            yield f"{name}.before.keras"


def net_of(names: list[str], place: str) -> tuple[keras.Model, list[int]]:
    """A net with the outputs of several layers, and how many outputs each has."""
    keras.utils.set_random_seed(0)
    x, found = rows(), list[Any]()
    behind = keras.layers.GRU(SIZE, return_sequences=True)(x) * 3 if place == "after" else None
    for name in names:
        y = LAYERS[name](x if behind is None else behind)
        y = y if behind is not None else keras.layers.GRU(SIZE, return_sequences=True)(y)
        found.append(tf.nest.flatten(y))
    return keras.Model(x, [y for each in found for y in each]), [len(each) for each in found]


def save(names: list[str], place: str, folder: Path) -> None:
    """Write nets as Keras does, and their runs."""
    net, counts = net_of(names, place)
    feed = {"x": numbers(2, STEPS, SIZE, seed=1)}
    computed = tf.nest.flatten(net(feed["x"]))
    with tempfile.NamedTemporaryFile(suffix=".onnx") as file:
        net.export(file.name, format="onnx", verbose=False)
        whole = onnx.load(file.name)
    returned = [value.name for value in whole.graph.output]
    for name, count in zip(names, counts, strict=True):
        path, values = folder / f"{name}.{place}.keras.onnx", computed[:count]
        model = part(whole, returned[:count])
        if len(model.graph.input) > 1:
            raise ValueError(f"constants of {name} became inputs")
        onnx.save(model, path)
        save_runs(path, [feed], lambda _, values=values: values)
        returned, computed = returned[count:], computed[count:]


def attempt(names: list[str], place: str, folder: Path) -> None:
    """Write all at once, or each part that can be."""
    for half in halves_left(names, lambda some: save(some, place, folder), folder, f"{place}.keras"):
        attempt(half, place, folder)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        print(*exports(), sep="\n")
    wanted: dict[str, list[str]] = {}
    for name, place, _ in (export.split(".") for export in sys.argv[2:]):
        wanted.setdefault(place, []).append(name)
    for place, names in wanted.items():
        for start in range(0, len(names), TOGETHER):
            attempt(names[start : start + TOGETHER], place, Path(sys.argv[1]))
