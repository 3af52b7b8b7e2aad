"""Models as C of emx-onnx-cgen, compiled by the compiler of this system."""

import ctypes
import re
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from emx_onnx_cgen.cli import main as emx
from jobs import Arrays, main, once

TYPES = {"_Float16": "float16", "float": "float32", "double": "float64", "bool": "bool"}
"""Those of C whose names NumPy does not have; int64_t and the like are int64."""


def load(model: Path, feed: Mapping[str, Any], names: list[str]) -> Callable[..., Arrays]:
    written = model.with_suffix(".c")
    sizes = [f"--input-dim={name}={size}" for name, size in open_sizes(onnx.load(model), feed).items()]
    if emx(["compile", str(model), str(written), "--model-name=model", "--large-weight-threshold=0", *sizes]):
        raise RuntimeError("emx-onnx-cgen writes no C")
    library = written.with_suffix(".so")
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", library, written, "-lm"], check=True)
    function = ctypes.CDLL(str(library)).model
    function.restype = None
    outputs = parameters(written.read_text())[len(feed) :]
    empty = without_elements(onnx.load(model))

    def call(feed: Mapping[str, Any] = feed) -> Arrays:
        results = [np.zeros(shape, dtype) for dtype, shape in outputs]
        given = [np.ascontiguousarray(array) for array in feed.values()]
        function(*(array.ctypes.data_as(ctypes.c_void_p) for array in (*given, *results)))
        found = dict(zip(names, results, strict=True))
        return found | {name: np.zeros(shape, found[name].dtype) for name, shape in empty.items()}

    return call


def without_elements(model: onnx.ModelProto) -> dict[str, list[int]]:
    """The shapes of the outputs that have a size of 0: C has no such array, and emx-onnx-cgen declares 1 for it."""
    dims = {value.name: value.type.tensor_type.shape.dim for value in model.graph.output}
    known = {name: of for name, of in dims.items() if all(dim.HasField("dim_value") for dim in of)}
    sizes = {name: [dim.dim_value for dim in of] for name, of in known.items()}
    return {name: shape for name, shape in sizes.items() if 0 in shape}


def open_sizes(model: onnx.ModelProto, feed: Mapping[str, Any]) -> dict[str, int]:
    """The open sizes of the inputs by their names."""
    inputs = {value.name: value.type.tensor_type.shape.dim for value in model.graph.input}
    pairs = (pair for name, array in feed.items() for pair in zip(inputs[name], array.shape, strict=True))
    return {dim.dim_param: size for dim, size in pairs if dim.dim_param}


def parameters(text: str) -> list[tuple[str, tuple[int, ...]]]:
    """The types and shapes of the parameters of the function `model`."""
    (declaration,) = re.findall(r"^(?:_Bool|void) model\(([^)]*)\) \{", text, re.MULTILINE)
    declared = re.findall(r"(?:const )?(\w+) \w+((?:\[[^]]*\])+)", declaration)
    return [
        (TYPES.get(kind, kind.removesuffix("_t")), tuple(map(int, re.findall(r"(\d+)\]", sizes))))
        for kind, sizes in declared
    ]


if __name__ == "__main__":
    main(once(load))
