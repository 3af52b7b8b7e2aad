"""Models in jaxonnxruntime, compiled by XLA for the CPU."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import onnx
from jaxonnxruntime import call_onnx, config
from jobs import Arrays, main, once

config.update("jaxort_only_allow_initializers_as_static_args", False)
config.update("jaxort_experimental_support_abtract_input_shape", True)


def load(model: Path, feed: Mapping[str, Any], names: list[str]) -> Callable[..., Arrays]:
    function, weights = call_onnx.call_onnx_model(onnx.load(model), dict(feed))
    compiled = jax.jit(function)

    def call(feed: Mapping[str, Any] = feed) -> Arrays:
        results = compiled(weights, dict(feed))
        return {name: np.asarray(result) for name, result in zip(names, results, strict=True)}

    return call


if __name__ == "__main__":
    main(once(load))
