"""Models in tinygrad's ONNX runner; from the third call on the kernels of the second run without Python between."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jobs import Arrays, main, once

os.environ.setdefault("DEV", "PYTHON")

from tinygrad import Tensor, TinyJit
from tinygrad.nn import onnx

# Else the elements of its left side, here of H, are computed anew for every column of its right side.
onnx.onnx_ops["MatMul"] = lambda a, b: a.contiguous() @ b


def load(model: Path, feed: Mapping[str, Any], names: list[str]) -> Callable[..., Arrays]:
    runner = onnx.OnnxRunner(model)

    @TinyJit  # type: ignore[untyped-decorator, unused-ignore]
    def compute(**inputs: Tensor) -> list[Tensor]:
        results = runner(inputs)
        held = set(map(id, inputs.values()))  # an output that is an input would stay that of the second run
        found = [results[name] for name in names]
        wanted = [tensor.clone() if id(tensor) in held else tensor.contiguous() for tensor in found]
        Tensor.realize(*wanted)  # at once: what they share is computed once
        return wanted

    def call(feed: Mapping[str, Any] = feed) -> Arrays:
        inputs = {name: Tensor(array).realize() for name, array in feed.items()}
        return {name: result.numpy() for name, result in zip(names, compute(**inputs), strict=True)}

    return call


if __name__ == "__main__":
    main(once(load))
