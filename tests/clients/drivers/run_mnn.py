"""Models in MNN, through its converter."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import _tools  # the converter itself: MNN.tools around it installs a package that reports its use
import MNN
import numpy as np
from jobs import Arrays, main, once


def load(model: Path, feed: Mapping[str, Any], names: list[str]) -> Callable[[], Arrays]:
    converted = str(model.with_suffix(".mnn"))
    arguments = ["mnnconvert", "-f", "ONNX", "--modelFile", str(model), "--MNNModel", converted]
    _tools.mnnconvert([*arguments, "--bizCode", "biz"])
    if not Path(converted).exists():
        raise RuntimeError("the converter wrote nothing")
    net = MNN.nn.load_module_from_file(converted, list(feed), names)
    given = []
    for array in feed.values():
        kind = {"float32": MNN.expr.float, "int32": MNN.expr.int, "int64": MNN.expr.int}[array.dtype.name]
        plain = array.astype(np.int32) if array.dtype == np.int64 else array
        given.append(MNN.expr.const(plain, list(plain.shape), MNN.expr.NCHW, kind))

    def call() -> Arrays:
        results = [MNN.expr.convert(r, MNN.expr.NCHW) for r in net.forward(given)]
        if len(results) < len(names):
            raise RuntimeError(f"MNN gives {len(results)} of {len(names)} outputs")
        return {name: result.read().copy() for name, result in zip(names, results, strict=True)}

    return call


if __name__ == "__main__":
    main(once(load))
