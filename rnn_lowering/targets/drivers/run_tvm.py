"""Models in TVM, through Relax."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import onnx
import tvm
from jobs import Arrays, main, once
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx


def load(model: Path, feed: Mapping[str, Any], names: list[str]) -> Callable[..., Arrays]:
    proto = onnx.load(model)
    shapes = {name: list(array.shape) for name, array in feed.items()}
    types = {name: array.dtype.name for name, array in feed.items()}
    module = relax.get_pipeline("zero")(from_onnx(proto, shapes, types))
    machine = relax.VirtualMachine(compiled(module), tvm.cpu())
    given = variables(feed)

    def call(other: Mapping[str, Any] | None = None) -> Arrays:
        results = machine["main"](*(given if other is None else variables(other)))
        listed = [results] if hasattr(results, "numpy") else list(results)
        return {name: tensor.numpy() for name, tensor in zip(names, listed, strict=True)}

    return call


def compiled(module: Any) -> Any:
    """Compile for this processor, or for any where LLVM makes invalid code for this one."""
    cpu = tvm.target.codegen.llvm_get_system_cpu()
    target = tvm.target.Target({"kind": "llvm", "mcpu": cpu, "fast-math-reassoc": True})
    try:
        return tvm.compile(module, target=target)
    except Exception as error:
        if "LLVM module verification failed" not in str(error):
            raise
        return tvm.compile(module, target="llvm")


def variables(feed: Mapping[str, Any]) -> list[Any]:
    return [tvm.runtime.tensor(array) for array in feed.values()]


if __name__ == "__main__":
    main(once(load))
