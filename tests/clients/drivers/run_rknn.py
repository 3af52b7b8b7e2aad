"""Models in the simulator of rknn-toolkit2: the NPU of an RK3588 in float16."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jobs import Arrays, main, once
from rknn.api import RKNN


def load(model: Path, feed: Mapping[str, Any], names: list[str]) -> Callable[..., Arrays]:
    net = RKNN(verbose=False)
    net.config(target_platform="rk3588")
    inputs, shapes = list(feed), [list(array.shape) for array in feed.values()]
    steps: dict[str, Callable[[], Any]] = {
        "loads": lambda: net.load_onnx(str(model), inputs=inputs, input_size_list=shapes, outputs=names),
        "builds": lambda: net.build(do_quantization=False),
        "starts": lambda: net.init_runtime(),
    }
    for verb, step in steps.items():
        try:
            failed = step()
        except ValueError as error:  # a traceback of several errors
            said = [line for line in str(error).splitlines() if "Error" in line and not line.startswith(" ")]
            raise ValueError(said[-1] if said else str(error)) from error
        if failed:
            raise RuntimeError(f"RKNN not {verb} the model")

    def call(feed: Mapping[str, Any] = feed) -> Arrays:
        results = net.inference(inputs=list(feed.values()), data_format=["nchw"] * len(feed))
        if results is None:
            raise RuntimeError("RKNN computes nothing")
        return dict(zip(names, results, strict=True))

    return call


if __name__ == "__main__":
    main(once(load))
