"""Models in MNN, through its converter."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import _tools  # the converter itself: MNN.tools around it installs a package that reports its use
import MNN
import numpy as np
from jobs import Arrays, main, once


def load(model: Path, feed: Mapping[str, Any], names: list[str]) -> Callable[..., Arrays]:
    converted = str(model.with_suffix(".mnn"))
    arguments = ["mnnconvert", "-f", "ONNX", "--modelFile", str(model), "--MNNModel", converted]
    _tools.mnnconvert([*arguments, "--bizCode", "biz"])
    if not Path(converted).exists():
        raise RuntimeError("the converter wrote nothing")
    net = MNN.nn.load_module_from_file(converted, list(feed), names)
    given = variables(feed)

    def call(other: Mapping[str, Any] | None = None) -> Arrays:
        results = net.forward(given if other is None else variables(other))
        if len(results) < len(names):
            raise RuntimeError(f"MNN gives {len(results)} of {len(names)} outputs")
        plain = [MNN.expr.convert(result, MNN.expr.NCHW) for result in results]
        return {name: result.read().copy() for name, result in zip(names, plain, strict=True)}

    return call


def variables(feed: Mapping[str, Any]) -> list[Any]:
    """The inputs as MNN takes them; it has no int64, and booleans are integers."""
    kinds = {"float32": MNN.expr.float, "int32": MNN.expr.int, "uint8": MNN.expr.uint8, "int8": MNN.expr.int8}
    plain = [a.astype(np.int32) if a.dtype in (np.int64, np.bool_) else a for a in feed.values()]
    return [MNN.expr.const(a, list(a.shape), MNN.expr.NCHW, kinds[a.dtype.name]) for a in plain]


if __name__ == "__main__":
    main(once(load))
