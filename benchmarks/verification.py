"""Measure the memory and time of a verified lowering, with all its processes (Linux only).

    python benchmarks/verification.py [weights|inline|node|output|steps ...] [--verify 0]

For each model it prints the peak of resident memory of all processes together and of the largest one, and the
seconds on the clock and of the processors.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

INTERVAL = 0.01


@dataclass(frozen=True)
class Usage:
    """Bytes of resident memory, over all processes and of one; seconds of wall clock and of processors."""

    total: int
    largest: int
    seconds: float
    busy: float

    def __str__(self) -> str:
        memory = f"{self.total / 2**20:>9.0f} MiB{self.largest / 2**20:>9.0f} MiB"
        return f"{memory}{self.seconds:>9.1f} s{self.busy:>9.1f} s"


def lstm(path: Path, *, T: int, N: int, width: int, hidden: int, layers: int, external: bool = False) -> None:
    """Write a model of LSTM nodes in a row."""
    rng = np.random.default_rng(0)
    graph = onnx.GraphProto(name="layers")
    graph.input.append(helper.make_tensor_value_info("x0", TensorProto.FLOAT, [T, N, width]))
    graph.initializer.append(numpy_helper.from_array(np.array([1]), "directions"))
    for n in range(layers):
        for symbol, columns in {"W": hidden if n else width, "R": hidden}.items():
            array = rng.standard_normal((1, 4 * hidden, columns), np.float32) * np.float32(hidden**-0.5)
            graph.initializer.append(numpy_helper.from_array(array, f"{symbol}{n}"))
        names = [f"x{n}", f"W{n}", f"R{n}"]
        graph.node.append(helper.make_node("LSTM", names, [f"y{n}"], f"layer{n}", hidden_size=hidden))
        graph.node.append(helper.make_node("Squeeze", [f"y{n}", "directions"], [f"x{n + 1}"]))
    graph.output.append(helper.make_tensor_value_info(f"x{layers}", TensorProto.FLOAT, [T, N, hidden]))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path, save_as_external_data=external, location=f"{path.name}.data")


CASES: dict[str, tuple[str, str, Callable[[Path], None]]] = {
    "weights": (
        "256 MiB of weights in a data file",
        "auto",
        lambda path: lstm(path, T=4, N=1, width=1024, hidden=1024, layers=8, external=True),
    ),
    "inline": (
        "256 MiB of weights in the model",
        "auto",
        lambda path: lstm(path, T=4, N=1, width=1024, hidden=1024, layers=8),
    ),
    "node": (
        "257 MiB of weights of one node",
        "auto",
        lambda path: lstm(path, T=4, N=1, width=2900, hidden=2900, layers=1, external=True),
    ),
    "output": (
        "256 MiB of output",
        "auto",
        lambda path: lstm(path, T=4096, N=1024, width=4, hidden=16, layers=1),
    ),
    "steps": (
        "313 steps written out",
        "unroll",
        lambda path: lstm(path, T=313, N=1, width=64, hidden=64, layers=1),
    ),
}


def measure(command: list[str]) -> Usage:
    """Run a command; look at its processes until it ends."""
    before, start, total, largest = os.times(), time.perf_counter(), 0, 0
    process = subprocess.Popen(command)
    while process.poll() is None:
        sizes = [_resident(pid) for pid in _tree(process.pid)]
        total, largest = max(total, sum(sizes)), max([largest, *sizes])
        time.sleep(INTERVAL)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    after = os.times()
    busy = sum(after[2:4]) - sum(before[2:4])
    return Usage(total, largest, time.perf_counter() - start, busy)


def _tree(pid: int) -> Iterator[int]:
    yield pid
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = task.read_text().split()
        except OSError:  # it has ended
            continue
        for child in children:
            yield from _tree(int(child))


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):  # it has ended
        return 0


def main() -> None:
    arguments = argparse.ArgumentParser(description="Measure the memory and time of verified lowerings.")
    arguments.add_argument("cases", nargs="*", help=f"of {', '.join(CASES)} (default: all)")
    arguments.add_argument("--verify", "0", action="store_true", help="lower only")
    options = arguments.parse_args()
    print(f"{'':<36}{'all':>13}{'largest':>13}{'clock':>11}{'busy':>11}")
    for name in options.cases or CASES:
        title, form, write = CASES[name]
        with tempfile.TemporaryDirectory(prefix="rnn-lower-benchmark-") as folder:
            path = Path(folder) / "model.onnx"
            write(path)
            command = [sys.executable, "-m", "rnn_lowering", str(path), str(path.with_name("lowered.onnx"))]
            more = ["--verify", "0"] if options.no_verify else []
            print(f"{title:<36}{measure([*command, '--to', form, '--quiet', *more])}", flush=True)


if __name__ == "__main__":
    main()
