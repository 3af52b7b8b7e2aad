"""Models in ncnn, converted by pnnx."""

import os
import re
import resource
import subprocess
import sysconfig
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ncnn
import numpy as np
from jobs import Arrays, main, once

READS = {"int64": "int32", "float16": "float32"}
"""What it reads inputs as, without an error if they are of another type: 16 bits are turned off below."""

KINDS = {"float32": "f32", "float16": "f16", "int32": "i32", "int64": "i64"}


MOST_BYTES, MOST_SECONDS = 8 << 30, 120
"""What pnnx may take."""


def load(model: Path, feed: Mapping[str, Any], names: list[str]) -> Callable[..., Arrays]:
    shapes = [f"[{','.join(map(str, a.shape))}]{KINDS[a.dtype.name]}" for a in feed.values()]
    convert(model, shapes)
    missing = [op for op in operators(model.with_suffix(".ncnn.param")) if "." in op or op[0].islower()]
    if missing:
        raise NotImplementedError(f"pnnx left {', '.join(sorted(set(missing)))}")
    batch = batch_axes(Path(model.stem + "_ncnn.py").read_text())
    net = ncnn.Net()
    net.opt.num_threads = 1
    for option in ("use_fp16_packed", "use_fp16_storage", "use_fp16_arithmetic", "use_bf16_storage"):
        setattr(net.opt, option, False)  # of 16 bits only where asked for: results are compared
    if net.load_param(f"{model.stem}.ncnn.param") or net.load_model(f"{model.stem}.ncnn.bin"):
        raise RuntimeError("ncnn does not load the converted model")

    def call(feed: Mapping[str, Any] = feed) -> Arrays:
        with net.create_extractor() as extractor:
            for n, array in enumerate(feed.values()):
                held = array.astype(READS.get(array.dtype.name, array.dtype))
                extractor.input(f"in{n}", ncnn.Mat(held, batch_index=batch[f"in{n}"]).clone())
            return {name: _output(extractor, f"out{n}", batch) for n, name in enumerate(names)}

    return call


def convert(model: Path, shapes: list[str]) -> None:
    """Call pnnx; end by its signal where it crashes."""
    pnnx = Path(sysconfig.get_path("purelib"), "pnnx", "pnnx")
    command = [str(pnnx), str(model), f"inputshape={','.join(shapes)}", "fp16=0"]
    code = subprocess.run(command, check=False, preexec_fn=_limited).returncode
    if code < 0:
        os.kill(os.getpid(), -code)
    if code:
        raise RuntimeError(f"pnnx ends with {code}")


def _limited() -> None:
    """It may not end, and take all memory."""
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (MOST_SECONDS, MOST_SECONDS))


def _output(extractor: Any, blob: str, batch: Mapping[str, int]) -> Any:
    code, mat = extractor.extract(blob)
    if code:
        raise RuntimeError(f"ncnn does not compute {blob}")
    return np.array(mat.numpy(batch_index=batch[blob]))


def operators(param: Path) -> list[str]:
    """The layers of a converted model."""
    return [line.split()[0] for line in param.read_text().splitlines()[2:]]


def batch_axes(script: str) -> dict[str, int]:
    """The axis of each input and output that pnnx uses as the batch, from the script that it writes."""
    given = re.findall(r'ex\.input\("(\w+)", ncnn\.Mat\(.*batch_index=(\d+)', script)
    taken = re.findall(r"(out\d+)\.numpy\(batch_index=(\d+)", script)
    return {blob: int(axis) for blob, axis in [*given, *taken]}


if __name__ == "__main__":
    main(once(load))
