"""Measure the memory that lowering takes, for a model with more weights than protobuf can hold.

    python benchmarks/memory.py [--gib 2.2] [--to auto] [--inline]

It prints the size of the weights, the largest recurrent weight, the peak of resident memory and the time. Tensors
are streamed, so the peak should stay below a fifth of the weights plus the largest recurrent weight.
"""

import argparse
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper

LAYERS = 4
GATES = 4
BLOCK = 1 << 20


@dataclass(frozen=True)
class Measurement:
    """Bytes of the weights, of the largest recurrent weight and of the peak of resident memory; seconds."""

    weights: int
    largest: int
    peak: int
    seconds: float

    @property
    def streamed(self) -> bool:
        """Whether the peak is one of streaming."""
        return self.peak < self.weights / 5 + self.largest

    def __str__(self) -> str:
        sizes = {"weights": self.weights, "largest recurrent weight": self.largest, "peak memory": self.peak}
        lines = [f"{name:<25}{size / 2**20:>9.1f} MiB" for name, size in sizes.items()]
        verdict = "yes" if self.streamed else "NO"
        return "\n".join([*lines, f"{'time':<25}{self.seconds:>9.1f} s", f"{'peak is flat':<25}{verdict:>9}"])


def report(gib: float = 2.2, to: str = "auto", *, inline: bool = False) -> dict[str, float]:
    """Print the measurement; return it as data."""
    with tempfile.TemporaryDirectory(prefix="rnn-lower-benchmark-") as folder:
        measured = measure(Path(folder), gib, to, inline=inline)
    print(f"{measured}\n")
    return {**vars(measured), "streamed": measured.streamed}


def measure(folder: Path, gib: float, to: str = "auto", *, inline: bool = False) -> Measurement:
    """Lower a model with `gib` GiB of weights in a process of its own."""
    hidden = max(8, int(math.sqrt(gib * 2**30 / (LAYERS * 2 * GATES * 4))))
    source = write_model(folder / "model.onnx", hidden)
    if inline:  # in a process of its own: a child begins with the peak of its parent
        code = "import onnx, sys; onnx.save(onnx.load(sys.argv[1]), sys.argv[1])"
        subprocess.run([sys.executable, "-c", code, str(source)], check=True)
    start = time.perf_counter()
    command = [sys.executable, "-m", "rnn_lowering", str(source), str(folder / "lowered.onnx")]
    process = subprocess.Popen([*command, "--to", to, "--verify", "0", "--quiet"])
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise subprocess.CalledProcessError(os.waitstatus_to_exitcode(status), command)
    seconds = time.perf_counter() - start
    peak = usage.ru_maxrss * 1024
    largest = GATES * hidden * hidden * 4
    return Measurement(LAYERS * 2 * largest, largest, peak, seconds)


def write_model(path: Path, hidden: int) -> Path:
    """Write a model of LSTM layers with their weights in a data file beside it."""
    graph = onnx.GraphProto(name="layers")
    shape = [8, 1, hidden]
    graph.input.append(helper.make_tensor_value_info("X0", TensorProto.FLOAT, shape))
    graph.initializer.append(helper.make_tensor("directions", TensorProto.INT64, [1], [1]))
    with path.with_suffix(".data").open("wb") as data:
        for n in range(LAYERS):
            for symbol in "WR":
                dims = [1, GATES * hidden, hidden]
                graph.initializer.append(
                    _external(f"{symbol}{n}", dims, path.with_suffix(".data").name, data.tell())
                )
                for numbers in _blocks(math.prod(dims), seed=2 * n + (symbol == "R")):
                    data.write(numbers.tobytes())
            names = [f"X{n}", f"W{n}", f"R{n}"]
            graph.node.append(helper.make_node("LSTM", names, [f"Y{n}"], f"layer{n}", hidden_size=hidden))
            graph.node.append(helper.make_node("Squeeze", [f"Y{n}", "directions"], [f"X{n + 1}"]))
    graph.output.append(helper.make_tensor_value_info(f"X{LAYERS}", TensorProto.FLOAT, shape))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(model.SerializeToString())
    return path


def _external(name: str, dims: list[int], location: str, offset: int) -> TensorProto:
    tensor = TensorProto(name=name, dims=dims, data_type=TensorProto.FLOAT)
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, "offset": offset, "length": 4 * math.prod(dims)}.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def _blocks(count: int, seed: int) -> Iterator[npt.NDArray[np.float32]]:
    rng = np.random.default_rng(seed)
    for start in range(0, count, BLOCK):
        yield rng.random(min(BLOCK, count - start), np.float32) * 0.02 - 0.01


def main() -> int:
    arguments = argparse.ArgumentParser(description="Measure the memory that lowering takes.")
    arguments.add_argument("--gib", type=float, default=2.2, help="GiB of weights (default: 2.2)")
    arguments.add_argument("--to", default="auto", help="the form (default: auto)")
    arguments.add_argument("--inline", action="store_true", help="the weights are in the model (less than 2 GiB)")
    options = arguments.parse_args()
    return 0 if report(options.gib, options.to, inline=options.inline)["streamed"] else 1


if __name__ == "__main__":
    sys.exit(main())
