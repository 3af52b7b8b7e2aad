"""Time variants of one model in a client's environment: each takes turns with `native` in one process.

    python benchmarks/time_variants.py CLIENT FOLDER SECONDS    (the drivers of the package in PYTHONPATH)

FOLDER has a job of `jobs.py` for each variant. The script writes result.npz or error.txt into each, and
times.json: for each variant the seconds until the first result and the median of a call.
"""

import importlib
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np


def main(client: str, folder: Path, seconds: float) -> None:
    """Load every variant, check that it runs, time those that do."""
    load = importlib.import_module(f"run_{client}").load
    jobs = sorted(path for path in folder.iterdir() if path.is_dir())
    loads: dict[str, float] = {}
    calls: dict[str, Callable[[], Any]] = {}
    for job in jobs:
        os.chdir(job)
        try:
            start = time.perf_counter()
            call = loaded(load, job)
            np.savez(job / "result.npz", **call())
            loads[job.name], calls[job.name] = time.perf_counter() - start, call
        except BaseException as error:
            (job / "error.txt").write_text(f"rejects: {type(error).__name__}: {' '.join(str(error).split())[:300]}")
    take_turns(calls, 0)
    taken = take_turns(calls, seconds)
    (folder / "times.json").write_text(json.dumps({name: (loads[name], taken[name]) for name in calls}))


def loaded(load: Callable[..., Callable[[], Any]], job: Path) -> Callable[[], Any]:
    """Load a job with the feed that it has."""
    with np.load(job / "feed.npz") as held:
        feed = {name: held[name] for name in held.files}
    return load(job / "model.onnx", feed, (job / "outputs.txt").read_text().splitlines())


def take_turns(calls: dict[str, Callable[[], Any]], seconds: float) -> dict[str, float]:
    """Return the median seconds of each call. If more than two took turns, each would find its code and its weights
    gone from the caches, and an unrolled model take up to twice as long."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    order = random.Random(0)  # what runs before leaves its data in the caches
    for variant in [name for name in calls if name != "native"] or calls:
        pair = [(name, calls[name]) for name in ("native", variant) if name in calls]
        end, rounds = time.perf_counter() + seconds * len(pair), 0
        while rounds < 3 or time.perf_counter() < end:
            rounds += 1
            for name, call in order.sample(pair, len(pair)):
                start = time.perf_counter()
                call()
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(taken) for name, taken in times.items()}


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]).resolve(), float(sys.argv[3]))
