"""Models in tract, with the shapes of the feed."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import tract
from jobs import Arrays, main, once

_P = "P"
"""The number of rows of states that grow."""


def load(model: Path, feed: Mapping[str, Any], names: list[str]) -> Callable[..., Arrays]:
    inference = tract.onnx().load(model)
    order = [inference.input_name(n) for n in range(inference.input_count())]
    told = model.with_name("calls.json")
    grows = json.loads(told.read_text())["grows"] if told.exists() else {}
    for n, name in enumerate(order):
        dtype = feed[name].dtype
        kind = "bool" if dtype.kind == "b" else f"{dtype.kind}{8 * dtype.itemsize}"
        inference.set_input_fact(
            n,
            ",".join(
                [*(_P if grows.get(name) == axis else str(d) for axis, d in enumerate(feed[name].shape)), kind]
            ),
        )
    runnable = inference.into_model().into_runnable()

    def call(feed: Mapping[str, Any] = feed) -> Arrays:
        results = runnable.run([feed[name] for name in order])
        return {name: tensor.to_numpy() for name, tensor in zip(names, results, strict=True)}

    return call


if __name__ == "__main__":
    main(once(load))
