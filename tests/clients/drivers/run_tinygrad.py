"""Models in tinygrad's ONNX runner."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jobs import Arrays, main

os.environ.setdefault("DEV", "PYTHON")

from tinygrad import Tensor
from tinygrad.nn.onnx import OnnxRunner


def run(model: Path, feed: Mapping[str, Any], names: list[str]) -> Arrays:
    results = OnnxRunner(model)({name: Tensor(array) for name, array in feed.items()})
    return {name: results[name].numpy() for name in names}


if __name__ == "__main__":
    main(run)
