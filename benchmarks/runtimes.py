"""Time the recurrent node and each of its forms in the runtimes of tests/clients.

Each form takes turns with the native node in one process, on one thread, in the environment of the runtime
(`python -m clients.environments`, see tests/clients). Each result is compared with the original in onnxruntime; a
wrong or rejected one has no time. tinygrad needs a C compiler: CC, by default clang.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import rnn_lowering as rl
from benchmarks.models import Row, several
from benchmarks.runtime import geometric_mean
from rnn_lowering.targets.table import TARGETS

ROOT = Path(__file__).parents[1]
sys.path += [str(ROOT / "tests"), str(ROOT / "tests" / "support")]

from clients.driving import Job, judge, read, write  # noqa: E402
from clients.environments import CLIENTS, python, why_absent  # noqa: E402
from paths import MODELS  # noqa: E402
from running import run  # noqa: E402
from stored_models import variants  # noqa: E402

OPSET = 17
NATIVE = "native"
APART = "apart"
SIZES = ((100, 1, 32), (64, 1, 128), (64, 8, 256))
RUNTIMES = ("onnxruntime", "openvino", "tract", "tvm", "mnn", "ncnn", "iree", "opencv", "tinygrad")
SEVERAL = {
    "2 layers of LSTM 32": ("LSTM", (32, 32), 100, 1, True),
    "3 layers of GRU 16": ("GRU", (16, 16, 16), 100, 1, True),
    "2 GRU 8, batch of 33": ("GRU", (8, 8), 63, 33, False),
    "4 GRU 4": ("GRU", (4,) * 4, 63, 1, False),
}
"""Nodes that share a loop: operator, hidden sizes, T, N, and whether they are layers. The last two are like those
of GTCRN and UL-UNAS."""
REAL = {
    "github/Xiaobin-Rong__gtcrn/gtcrn_simple_v4.onnx": "auto0",
    "github/snakers4__silero-vad/silero_vad_16k_op15.onnx": "16k_b1",
    "github/breizhn__DTLN/model_1.onnx": "auto0",
    "exported/nets/nsnet2_op12.onnx": "b2t5",
}
"""Real models, and the inputs that each gets."""


@dataclass(frozen=True)
class Times:
    """What became of a variant: "right", "wrong", "rejects", or "refused" by the lowering; if right, the seconds of
    loading and of a call."""

    outcome: str
    load: float | None = None
    call: float | None = None


def report(seconds: float = 1.0, runtimes: Sequence[str] = RUNTIMES) -> dict[str, Any]:
    """Print a table for each runtime; return the figures as data."""
    results: dict[str, Any] = {}
    for runtime in runtimes:
        if runtime in CLIENTS and (reason := why_absent(runtime)):
            print(f"\n{reason}")
            continue
        print(
            f"\n{runtime}: milliseconds of a call (seconds until the first result); auto: what the target prefers\n"
        )
        rows: dict[str, dict[str, Times]] = {}
        for label, job in models().items():
            rows[label] = row = measured(runtime, job, seconds)
            cells = " | ".join(f"{name} {cell(times)}" for name, times in row.items())
            print(f"| {label} | {cells} |", flush=True)
        ratios = [ratio for row in rows.values() if (ratio := against_native(row))]
        if ratios:
            print(f"{runtime}: geometric mean {geometric_mean(ratios):.2f} of native, at most {max(ratios):.2f}")
        results[runtime] = {name: {k: vars(v) for k, v in row.items()} for name, row in rows.items()}
    return results


def models() -> dict[str, Job]:
    """The models that are measured, and their inputs."""
    rows = [Row(op, "forward", T, N, H, H) for op in ("LSTM", "GRU") for T, N, H in SIZES]
    inferred = onnx.shape_inference.infer_shapes  # some runtimes want the shapes of the outputs
    jobs: dict[str, Job] = {f"{r.op_type} {r.T} {r.N} {r.H}": (inferred(r.model(OPSET)), r.feed()) for r in rows}
    for name, (op, widths, T, N, stacked) in SEVERAL.items():
        model = inferred(several(op, widths, T, N, stacked=stacked, opset=OPSET))
        shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
        jobs[name] = (model, {"X": np.random.default_rng(1).standard_normal(shape).astype(np.float32)})
    for file, label in REAL.items() if MODELS.exists() else ():
        jobs[Path(file).stem] = (onnx.load(MODELS / file), dict(variants(file))[label])
    return jobs


def measured(runtime: Any, job: Job, seconds: float) -> dict[str, Times]:
    """Time a model as it is, as its target prefers it (auto; apart: a loop for each node), and in each form."""
    model, feed = job
    sizes = {name: array.shape for name, array in feed.items()}
    jobs = {NATIVE: job}
    refused: dict[str, Times] = {}
    same_as: dict[str, str] = {}
    for form in ("auto", APART, *TARGETS[runtime].forms):
        to: Any = "auto" if form == APART else form
        try:
            lowered = rl.lower(model, to, target=runtime, input_shapes=sizes, join=form != APART)
        except rl.UnsupportedError:
            refused[form] = Times("refused")
            continue
        same_as[form] = next((name for name, (other, _) in jobs.items() if other == lowered), form)
        jobs.setdefault(
            same_as[form], (lowered, {v.name: feed[v.name] for v in lowered.graph.input if v.name in feed})
        )
    expected = run(model, feed)
    times = timed(runtime, jobs, expected, seconds)
    if all(t.outcome == "rejects" for t in times.values()):  # its own node may end the process
        times |= timed(runtime, {name: j for name, j in jobs.items() if name != NATIVE}, expected, seconds)
    return times | {form: times[name] for form, name in same_as.items()} | refused


def timed(runtime: str, jobs: Mapping[str, Job], expected: dict[str, Any], seconds: float) -> dict[str, Times]:
    """Time variants of a model in a process of the runtime, in turns."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for name, job in jobs.items():
            write(folder / name, job[0], job[1])
        program = python(runtime) if runtime in CLIENTS else sys.executable
        command = [program, ROOT / "benchmarks" / "time_variants.py", runtime, folder, str(seconds)]
        drivers = str(ROOT / "rnn_lowering" / "targets" / "drivers")
        alone = {"OMP_NUM_THREADS": "1", "TVM_NUM_THREADS": "1", "OPENCV_FOR_THREADS_NUM": "1", "DEV": "CPU"}
        subprocess.run(
            command, env={**os.environ, **alone, "PYTHONPATH": drivers}, check=False, capture_output=True
        )
        found = folder / "times.json"
        times = json.loads(found.read_text()) if found.exists() else {}
        return {name: _judged(folder / name, times.get(name), expected) for name in jobs}


def _judged(folder: Path, times: Sequence[float] | None, expected: dict[str, Any]) -> Times:
    if times is None:
        return Times("rejects")
    outcome, _ = judge(read(folder), expected)
    return Times(outcome, *times) if outcome == "right" else Times(outcome)


def against_native(row: Mapping[str, Times]) -> float | None:
    """The ratio of the preferred form to native; None where one of them is not right."""
    native, auto = row[NATIVE].call, row["auto"].call
    return auto / native if native and auto else None


def cell(times: Times) -> str:
    if times.call is None or times.load is None:
        return times.outcome
    return f"{1e3 * times.call:.3g} ({times.load:.2g})"
