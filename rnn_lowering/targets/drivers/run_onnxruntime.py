"""Models in onnxruntime, on one thread."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import onnxruntime
from jobs import Arrays, main, once


def load(model: Path, feed: Mapping[str, Any], names: list[str]) -> Callable[..., Arrays]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])

    def call(feed: Mapping[str, Any] = feed) -> Arrays:
        return dict(zip(names, session.run(names, dict(feed)), strict=True))

    return call


if __name__ == "__main__":
    main(once(load))
