"""Models in tract, with the shapes of the feed."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import tract
from jobs import Arrays, main, once


def load(model: Path, feed: Mapping[str, Any], names: list[str]) -> Callable[..., Arrays]:
    inference = tract.onnx().load(model)
    order = [inference.input_name(n) for n in range(inference.input_count())]
    for n, name in enumerate(order):
        kind = {"float32": "f32", "float64": "f64", "float16": "f16"}.get(feed[name].dtype.name)
        kind = kind or feed[name].dtype.name.replace("int", "i")
        inference.set_input_fact(n, ",".join([*map(str, feed[name].shape), kind]))
    runnable = inference.into_model().into_runnable()

    def call(feed: Mapping[str, Any] = feed) -> Arrays:
        results = runnable.run([feed[name] for name in order])
        return {name: tensor.to_numpy() for name, tensor in zip(names, results, strict=True)}

    return call


if __name__ == "__main__":
    main(once(load))
