"""Run time of the lowered models against onnxruntime's native kernels.

Ratios to the native kernel, medians of runs that are interleaved in one process, on one thread.
"""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

import rnn_lowering as rl
from benchmarks.models import Row, rows

FORMS = ("scan", "loop", "unroll")


def measure(row: Row, forms: Sequence[str], seconds: float) -> dict[str, float]:
    """Return the milliseconds of the native kernel and the ratio of each form to it."""
    original = row.model()
    sessions = [_session(original), *(_session(rl.lower(original, form, max_unroll=row.T)) for form in forms)]
    feed = row.feed()
    times: list[list[float]] = [[] for _ in sessions]
    for session in sessions:
        session.run(None, feed)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[0]) < 5:
        for taken, session in zip(times, sessions, strict=True):
            start = time.perf_counter()
            session.run(None, feed)
            taken.append(time.perf_counter() - start)
    native, *lowered = (float(np.median(taken)) for taken in times)
    return {"native_ms": native * 1e3} | {f: t / native for f, t in zip(forms, lowered, strict=True)}


def _session(model: onnx.ModelProto) -> Any:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def geometric_mean(values: Sequence[float]) -> float:
    return float(np.exp(np.mean(np.log(values))))


def report(seconds: float = 1.0, forms: Sequence[str] = ("scan", "loop")) -> list[dict[str, Any]]:
    """Print the table; return it as data."""
    print(f"{'node':26}{'T':>6}{'N':>4}{'I':>5}{'H':>5}{'native ms':>11}" + "".join(f"{f:>9}" for f in forms))
    results = []
    for row in rows():
        found = measure(row, forms, seconds)
        results.append(vars(row) | found)
        print(
            f"{row!s:26}{row.T:6}{row.N:4}{row.I:5}{row.H:5}{found['native_ms']:11.2f}"
            + "".join(f"{found[form]:9.2f}" for form in forms),
            flush=True,
        )
    means = {form: geometric_mean([r[form] for r in results]) for form in forms}
    print("geometric mean".ljust(57) + "".join(f"{means[form]:9.2f}" for form in forms))
    return results
