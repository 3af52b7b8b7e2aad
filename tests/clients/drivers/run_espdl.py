"""Models in float in the executor of esp-ppq, the quantizer of ESP-DL."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from esp_ppq.api import load_onnx_graph
from esp_ppq.executor import TorchExecutor
from jobs import Arrays, main, once


def load(model: Path, feed: Mapping[str, Any], names: list[str]) -> Callable[..., Arrays]:
    graph = load_onnx_graph(str(model))
    executor = TorchExecutor(graph, device="cpu")

    def call(feed: Mapping[str, Any] = feed) -> Arrays:
        read = {name: torch.from_numpy(array) for name, array in feed.items() if name in graph.inputs}
        try:
            results = executor.forward(read, names)
        except RuntimeError as error:  # "Op Execution Error", because of another
            raise error.__cause__ or error from None
        return {name: tensor.numpy() for name, tensor in zip(names, results, strict=True)}

    return call


if __name__ == "__main__":
    main(once(load))
