"""Models in TVM, through Relax."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
import tvm
from jobs import Arrays, main
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx


def run(model: Path, feed: Mapping[str, Any], names: list[str]) -> Arrays:
    proto = onnx.load(model)
    shapes = {name: list(array.shape) for name, array in feed.items()}
    types = {name: array.dtype.name for name, array in feed.items()}
    module = relax.get_pipeline("zero")(from_onnx(proto, shapes, types))
    machine = relax.VirtualMachine(tvm.compile(module, target="llvm"), tvm.cpu())
    results = machine["main"](*(tvm.runtime.tensor(array) for array in feed.values()))
    listed = [results] if hasattr(results, "numpy") else list(results)
    return {name: tensor.numpy() for name, tensor in zip(names, listed, strict=True)}


if __name__ == "__main__":
    main(run)
