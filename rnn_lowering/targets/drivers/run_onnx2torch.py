"""Models in PyTorch, converted by onnx2torch."""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import torch
from jobs import Arrays, main, once

# For NonMaxSuppression and RoiAlign alone; of PyPI's only one fits each build of torch.
sys.modules["torchvision"] = sys.modules["torchvision.ops"] = MagicMock()

import onnx2torch  # noqa: E402


def load(model: Path, feed: Mapping[str, Any], names: list[str]) -> Callable[..., Arrays]:
    module = converted(model)

    def call(feed: Mapping[str, Any] = feed) -> Arrays:
        with torch.no_grad():
            results = module(*map(torch.from_numpy, feed.values()))
        listed = results if isinstance(results, (list, tuple)) else [results]
        return {name: tensor.numpy() for name, tensor in zip(names, listed, strict=True)}

    return call


def converted(model: Path) -> Any:
    """The module of PyTorch."""
    return onnx2torch.convert(str(model)).eval()


if __name__ == "__main__":
    main(once(load))
