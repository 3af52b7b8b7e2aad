"""Models in OpenVINO, on its CPU."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import openvino
from jobs import Arrays, main, once


def load(model: Path, feed: Mapping[str, Any], names: list[str]) -> Callable[..., Arrays]:
    # Where a processor has bfloat16, OpenVINO would compute in it.
    options = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
    compiled = openvino.compile_model(str(model), "CPU", options)

    def call(feed: Mapping[str, Any] = feed) -> Arrays:
        results = compiled(dict(feed))
        return {name: results[name] for name in names}

    return call


if __name__ == "__main__":
    main(once(load))
