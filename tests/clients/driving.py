"""Models run by a client's driver, in the client's environment, and what became of them."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
from cases import Arrays
from running import OF_RUNTIMES, assert_close, run
from stream_models import initial_states, plan_of, with_zeros_behind
from texts import random_feed

import rnn_lowering as rl
from clients import runs
from clients.environments import CLIENTS, HERE, PACKAGED, ROOT, driver, python

Job: TypeAlias = tuple[onnx.ModelProto, Arrays]
"""A model and its inputs."""

PACKAGES = [path for path in sys.path if path.endswith("site-packages")]
LENT: list[str | Path] = [*PACKAGES, HERE.parents[1]]
"""This project and what it needs, to lend it to another environment."""

SECONDS_PER_JOB = 60

SECONDS_PER_SCRIPT = 900
"""The most that a script may take: TensorFlow exports its cells in a minute, on a busy machine in several."""

OUTCOMES = ("right", "wrong", "rejects", "crashes")


def drive(
    client: str,
    jobs: Mapping[str, Job],
    folder: Path,
    calls: Mapping[str, Mapping[str, Any]] | None = None,
    seconds: int = SECONDS_PER_JOB,
) -> dict[str, Arrays | str]:
    """Run models in a client; return the outputs of each, or its error: "rejects: ..." or "crashes: ...".

    A test whose run passed before is skipped: see runs.py.

    Args:
        calls: By job, how the model is called for so many frames of its feed: see `once` of jobs.py.
        seconds: The most that a job may take.
    """
    runs.begin(client, jobs, calls)
    folders = {name: folder / f"{n:03}" for n, name in enumerate(jobs)}
    for name, (model, feed) in jobs.items():
        write(folders[name], model, feed)
        if calls:
            (folders[name] / "calls.json").write_text(json.dumps(calls[name]))
    done = subprocess.run(
        [python(client), driver(client), folder, str(seconds)],
        env={
            **os.environ,
            "PYTHONPATH": str(PACKAGED),
            "XDG_CACHE_HOME": str(ROOT / "cache"),
            "OMP_NUM_THREADS": "1",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"the driver of {client} failed:\n{done.stderr}")
    return {name: read(path) for name, path in folders.items()}


def judge(got: Arrays | str, expected: Arrays, precision: str = "float32") -> tuple[str, str]:
    """Return one of OUTCOMES and what is to be said about it; `precision`: the type whose tolerance holds."""
    if isinstance(got, str):
        outcome, _, said = got.partition(": ")
        return outcome, said
    try:
        assert_close(got, expected, precision, tolerances=OF_RUNTIMES)
    except AssertionError as error:
        return "wrong", " ".join(str(error).split())
    return "right", ""


def assert_right(client: str, jobs: Mapping[str, Job], expected: Mapping[str, Arrays], folder: Path) -> None:
    """Run models in a client and compare all of them."""
    got = drive(client, jobs, folder)
    precision = CLIENTS[client].precision
    outcomes = {name: judge(got[name], expected[name], precision) for name in jobs}
    assert outcomes == dict.fromkeys(jobs, ("right", ""))


def assert_lowered_right(client: Any, originals: Mapping[str, Job], folder: Path, **options: Any) -> None:
    """Run what models become for a client, with their feeds, and compare it with the models in onnxruntime."""
    jobs = {name: (rl.lower(model, target=client, **options), feed) for name, (model, feed) in originals.items()}
    assert_right(client, jobs, {name: run(*job) for name, job in originals.items()}, folder)


def with_feeds(nets: Mapping[str, onnx.ModelProto]) -> dict[str, Job]:
    """Return models with random inputs."""
    return {name: (net, random_feed(net, N=5, T=3)) for name, net in nets.items()}


def in_calls(client: str, streams: Mapping[str, Job], folder: Path) -> dict[str, Arrays | str]:
    """Run streams on whole sequences call by call, driven by nothing but their metadata; see `drive`."""
    plans = {name: plan_of(step) for name, (step, _) in streams.items()}
    jobs = {
        name: (step, with_zeros_behind(plans[name], feed) | initial_states(plans[name], {}))
        for name, (step, feed) in streams.items()
    }
    calls = {
        name: {
            "frames": plan["frames"],
            "axes": plan["inputs"] | plan["outputs"],
            "fed_back": {state["output"]: state["input"] for state in plan["states"]},
            "grows": {state["input"]: state["grows"] for state in plan["states"] if "grows" in state},
        }
        for name, plan in plans.items()
    }
    return drive(client, jobs, folder, calls)


def fault(plan: Mapping[str, Any], got: Arrays | str, expected: Arrays, atol: float) -> str:
    """Return the error, or "wrong: ..." where outputs differ from those of the whole sequence; "" for none."""
    if isinstance(got, str):
        return got
    for name, axis in plan["outputs"].items():
        array, first = got[name], plan["delay"].get(name, 0)
        if axis is not None:
            array = array.take(range(first, first + expected[name].shape[axis]), axis)
        if array.shape != expected[name].shape or not np.allclose(array, expected[name], rtol=0, atol=atol):
            return f"wrong: {name} {array.shape}"
    return ""


def run_python(client: str, *arguments: str | Path, lent: Sequence[str | Path] = (), **options: Any) -> str:
    """Run Python in a client's environment; return what it prints. A test is skipped where that is absent.

    Args:
        lent: Folders of modules that it gets beside its own, as in `LENT`.
        options: `cwd`, and variables of its environment.
    """
    runs.begin_script(client)
    folder = options.pop("cwd", None)
    path = {"PYTHONPATH": os.pathsep.join(map(str, lent))} if lent else {}
    done = subprocess.run(
        [python(client), *arguments],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", **path, **options},
        capture_output=True,
        text=True,
        timeout=SECONDS_PER_SCRIPT,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def write(folder: Path, model: onnx.ModelProto, feed: Arrays) -> None:
    folder.mkdir(parents=True)
    onnx.save(model, folder / "model.onnx")
    ordered: dict[str, Any] = {v.name: feed[v.name] for v in model.graph.input if v.name in feed}
    np.savez(folder / "feed.npz", **ordered)
    (folder / "outputs.txt").write_text("\n".join(output.name for output in model.graph.output))


def read(folder: Path) -> Arrays | str:
    if (folder / "error.txt").exists():
        return (folder / "error.txt").read_text()
    try:
        with np.load(folder / "result.npz") as held:
            return {name: held[name] for name in held.files}
    except ValueError:  # an object, not numbers
        return "rejects: an output is no array"
