"""Models in OpenVINO, on its CPU."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import openvino
from jobs import Arrays, main


def run(model: Path, feed: Mapping[str, Any], names: list[str]) -> Arrays:
    # Where a processor has bfloat16, OpenVINO would compute in it.
    compiled = openvino.compile_model(str(model), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    results = compiled(dict(feed))
    return {name: results[name] for name in names}


if __name__ == "__main__":
    main(run)
