"""What the drivers share: a folder of jobs, each run in a process of its own, since some runtimes abort.

A job is a folder with model.onnx, feed.npz (the inputs in the order of the graph), outputs.txt (the names of the
outputs, one a line) and, for a model that is called several times, calls.json (see `once`). It ends with result.npz
or with error.txt: "rejects: ..." where the runtime raised an error, "crashes: ..." where it took its process down
or was not done in time. Only NumPy is needed, whatever the runtime.
"""

import json
import multiprocessing
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Arrays = dict[str, npt.NDArray[Any]]
Feed = Mapping[str, npt.NDArray[Any]]
Run = Callable[[Path, Feed, list[str]], Arrays]
Load = Callable[[Path, Feed, list[str]], Callable[..., Arrays]]
"""Loads a model for the shapes and types of a feed; the result computes the outputs of that feed, or of another; in
OpenVINO, MNN and OpenCV of other sizes too."""


def main(run: Run) -> None:
    """Run every job of the folder given on the command line, each for at most the seconds given there.

    run(model, feed, names) returns the outputs by name.
    """
    for folder in sorted(path for path in Path(sys.argv[1]).iterdir() if path.is_dir()):
        _attempt(run, folder, float(sys.argv[2]))


def once(load: Load) -> Run:
    """Return what loads a model and calls it once, or as calls.json says, once for so many frames of its inputs:

    "frames" of each call; "axes" of inputs and outputs, null for those that have no frames; "fed_back": the inputs
    that are states, by the outputs of the call before; "grows": the axis of states that grow in each call.
    """

    def run(model: Path, feed: Feed, names: list[str]) -> Arrays:
        told = model.with_name("calls.json")
        if not told.exists():
            return load(model, feed, names)()
        plan = json.loads(told.read_text())
        axes, fed_back = plan["axes"], plan["fed_back"]
        states = {name: feed[name] for name in fed_back.values()}
        length = next(array.shape[axes[name]] for name, array in feed.items() if axes.get(name) is not None)
        call, calls = None, []
        for start in range(0, length, plan["frames"]):
            frames = range(start, start + plan["frames"])
            own = {n: a if axes.get(n) is None else a.take(frames, axes[n]) for n, a in feed.items()} | states
            call = call or load(model, own, names)
            calls.append(call(own))
            new = {name: calls[-1][output] for output, name in fed_back.items()}
            shapes = {name: a.shape if name in plan["grows"] else states[name].shape for name, a in new.items()}
            states = {name: a.reshape(shapes[name]).astype(states[name].dtype) for name, a in new.items()}
        parts = {name: [outputs[name] for outputs in calls] for name in names}
        return {n: x[-1] if axes.get(n) is None else np.concatenate(x, axes[n]) for n, x in parts.items()}

    return run


def each_time(run: Run) -> Load:
    """Return what loads a model anew for each call."""
    return lambda model, feed, names: lambda given=feed: run(model, given, names)


def _attempt(run: Run, folder: Path, seconds: float) -> None:
    process = multiprocessing.get_context("fork").Process(target=_child, args=(run, folder))
    process.start()
    process.join(seconds)
    late = process.is_alive()
    if late:
        process.kill()
        process.join()
    if late:
        (folder / "error.txt").write_text(f"crashes: not done after {seconds:.0f} s")
    elif not (folder / "result.npz").exists() and not (folder / "error.txt").exists():
        code = process.exitcode or 0
        end = f"signal {-code}" if code < 0 else f"exit code {code}"
        (folder / "error.txt").write_text(f"crashes: {end}: {_last_line(folder / 'log.txt')}")


def _child(run: Run, folder: Path) -> None:
    log = os.open(folder / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.chdir(folder)
    try:
        with np.load(folder / "feed.npz") as held:
            feed = {name: held[name] for name in held.files}
        results = run(folder / "model.onnx", feed, (folder / "outputs.txt").read_text().splitlines())
        arrays: dict[str, Any] = {name: np.asarray(array) for name, array in results.items()}
        np.savez(folder / "partial.npz", **arrays)
        (folder / "partial.npz").rename(folder / "result.npz")
    except BaseException as error:  # what a runtime raises is what is asked for, PanicException of Rust included
        traceback.print_exc()
        said = " ".join(str(error).split())[:300]
        (folder / "error.txt").write_text(f"rejects: {type(error).__name__}: {said}")


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else ""
