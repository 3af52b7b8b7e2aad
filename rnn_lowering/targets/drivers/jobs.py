"""What the drivers share: a folder of jobs, each run in a process of its own, since some runtimes abort.

A job is a folder with model.onnx, feed.npz (the inputs in the order of the graph), outputs.txt (the names of the
outputs, one a line) and, for a model that is called several times, calls.json (see `once`). It ends with result.npz
or with error.txt: "rejects: ..." where the runtime raised an error, "crashes: ..." where it took its process down
or was not done in time. log.txt has the end of what was printed. Only NumPy is needed, whatever the runtime.

limits.json beside the jobs has the bytes of "memory" that a job may take; with it, all ends when stdin is closed.
"""

import json
import multiprocessing
import os
import signal
import sys
import threading
import traceback
import zipfile
from collections.abc import Callable, Iterator, Mapping
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

_KEPT = 1 << 16
"""The bytes that are kept of what a job prints, its last ones."""


def main(run: Run) -> None:
    """Run every job of the folder given on the command line, each for at most the seconds given there.

    run(model, feed, names) returns the outputs by name.
    """
    folder, seconds = Path(sys.argv[1]), float(sys.argv[2])
    limits, memory = folder / "limits.json", None
    if limits.exists():
        memory = json.loads(limits.read_text())["memory"]
        threading.Thread(target=_end_with_stdin, daemon=True).start()
    for job in sorted(path for path in folder.iterdir() if path.is_dir()):
        _attempt(run, job, seconds, memory)


def _end_with_stdin() -> None:
    while os.read(0, 1):
        pass
    os.killpg(0, signal.SIGKILL)


def once(load: Load) -> Run:
    """Return what loads a model and calls it once, or as calls.json says, once for so many frames of its inputs:

    "frames" of each call; "axes" of inputs and outputs, null for those that have no frames; "fed_back": the inputs
    that are states, by the outputs of the call before; "grows": the axis of states that grow in each call; if there
    are any, "rates": by input how many of its own frames belong to a frame; "lengths": inputs that count down.
    """

    def run(model: Path, feed: Feed, names: list[str]) -> Arrays:
        told = model.with_name("calls.json")
        if not told.exists():
            return load(model, feed, names)()
        plan = json.loads(told.read_text())
        axes, fed_back = plan["axes"], plan["fed_back"]
        states = {name: feed[name] for name in fed_back.values()}
        call, calls = None, []
        for own in _calls_of(feed, plan):
            own |= states
            call = call or load(model, own, names)
            calls.append(call(own))
            new = {name: calls[-1][output] for output, name in fed_back.items()}
            shapes = {name: a.shape if name in plan["grows"] else states[name].shape for name, a in new.items()}
            states = {name: a.reshape(shapes[name]).astype(states[name].dtype) for name, a in new.items()}
        parts = {name: [outputs[name] for outputs in calls] for name in names}
        return {n: x[-1] if axes.get(n) is None else np.concatenate(x, axes[n]) for n, x in parts.items()}

    return run


def _calls_of(feed: Feed, plan: Mapping[str, Any]) -> Iterator[Arrays]:
    """Yield the inputs of each call, without the states of the call before."""
    rates = {name: plan.get("rates", {}).get(name, 1) for name in feed if plan["axes"].get(name) is not None}
    axes, frames = plan["axes"], plan["frames"]
    for start in range(0, min(feed[name].shape[axes[name]] // rate for name, rate in rates.items()), frames):
        own = dict(feed)
        for name, rate in rates.items():
            own[name] = feed[name].take(np.arange(start * rate, (start + frames) * rate), axes[name])
        for name in plan.get("lengths", ()):
            own[name] = np.clip(feed[name] - start, 0, frames).astype(feed[name].dtype)
        yield own


def each_time(run: Run) -> Load:
    """Return what loads a model anew for each call."""
    return lambda model, feed, names: lambda given=feed: run(model, given, names)


def _attempt(run: Run, folder: Path, seconds: float, memory: "int | None") -> None:
    reads, writes = os.pipe()
    process = multiprocessing.get_context("fork").Process(target=_child, args=(run, folder, writes, memory))
    process.start()
    os.close(writes)
    printed = [b""]
    reader = threading.Thread(target=_keep_end, args=(reads, printed), daemon=True)
    reader.start()
    process.join(seconds)
    late = process.is_alive()
    if late:
        process.kill()
        process.join()
    reader.join(1)  # a process that the job started may still print
    (folder / "log.txt").write_bytes(printed[0])
    if late:
        (folder / "error.txt").write_text(f"crashes: not done after {seconds:.0f} s")
    elif not (folder / "result.npz").exists() and not (folder / "error.txt").exists():
        code = process.exitcode or 0
        end = f"signal {-code}" if code < 0 else f"exit code {code}"
        (folder / "error.txt").write_text(f"crashes: {end}: {_last_line(folder / 'log.txt')}")


def _keep_end(pipe: int, printed: list[bytes]) -> None:
    while part := os.read(pipe, _KEPT):
        printed[0] = (printed[0] + part)[-_KEPT:]


def _child(run: Run, folder: Path, output: int, memory: "int | None") -> None:
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(folder)
    try:
        if memory is not None:
            _limit(memory)
        with np.load(folder / "feed.npz") as held:
            feed = {name: held[name] for name in held.files}
        results = run(folder / "model.onnx", feed, (folder / "outputs.txt").read_text().splitlines())
        write_arrays(folder / "partial.npz", {name: np.asarray(array) for name, array in results.items()})
        (folder / "partial.npz").rename(folder / "result.npz")
    except BaseException as error:  # what a runtime raises is what is asked for, PanicException of Rust included
        (folder / "traceback.txt").write_text(traceback.format_exc())
        said = " ".join(str(error).split())[:300]
        (folder / "error.txt").write_text(f"rejects: {type(error).__name__}: {said}")


def write_arrays(path: Path, arrays: Feed) -> None:
    """Write arrays of any names as numpy.savez does, which takes some names as its own arguments."""
    with zipfile.ZipFile(path, "w") as file:
        for name, array in arrays.items():
            with file.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, array)


def _limit(memory: int) -> None:
    """Limit what this process takes beside what it has, and the files that it writes."""
    import resource

    try:
        pages = int(Path("/proc/self/statm").read_text().split()[5])
    except OSError:  # not Linux
        return
    for kind, most in (
        (resource.RLIMIT_DATA, pages * resource.getpagesize() + memory),
        (resource.RLIMIT_FSIZE, memory),
    ):
        hard = resource.getrlimit(kind)[1]
        resource.setrlimit(kind, (most if hard < 0 else min(most, hard), hard))


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else ""
