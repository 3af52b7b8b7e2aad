"""Run the suite in a runtime and judge each feature: right, wrong, rejects or crashes."""

import shlex
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from clients.driving import Job, drive

import rnn_lowering as rl
from conformance.suite import Stored, read_arrays

SECONDS = 60
"""The most that a command may take for one feature."""

Arrays = dict[str, npt.NDArray[np.generic]]


def in_runtime(runtime: str, features: Iterable[Stored], *, lowered: bool) -> dict[str, str]:
    """Return the outcome of each feature in a runtime of tests/clients, as it is or lowered for it.

    A model that rnn-lower refuses for the runtime counts as rejected.
    """
    chosen, jobs, outcomes = list(features), dict[str, Job](), dict[str, str]()
    for feature in chosen:
        model = onnx.load(feature.folder / "model.onnx")
        try:
            jobs[feature.name] = (rl.lower(model, target=runtime) if lowered else model, feature.arrays("input"))
        except rl.RnnLoweringError:
            outcomes[feature.name] = "rejects"
    with tempfile.TemporaryDirectory() as folder:
        got = drive(runtime, jobs, Path(folder))
    for feature in chosen:
        if feature.name in got:
            result = got[feature.name]
            outcomes[feature.name] = result.partition(":")[0] if isinstance(result, str) else judge(feature, result)
    return {feature.name: outcomes[feature.name] for feature in chosen}


def by_command(command: str, features: Iterable[Stored]) -> dict[str, str]:
    """Return the outcome of each feature, run by a command: {model} is the model, {data} the folder with
    input_0.pb and so on, {output} a folder for its output_0.pb and so on.

    An exit code other than 0 is a rejection, an end by a signal or after the time limit a crash.
    """
    outcomes = {}
    for feature in features:
        with tempfile.TemporaryDirectory() as output:
            names = {"{model}": "model.onnx", "{data}": "test_data_set_0"}
            words = shlex.split(command)
            for placeholder, name in names.items():
                words = [word.replace(placeholder, str(feature.folder / name)) for word in words]
            outcomes[feature.name] = _one(feature, [w.replace("{output}", output) for w in words], Path(output))
    return outcomes


def _one(feature: Stored, words: list[str], output: Path) -> str:
    try:
        done = subprocess.run(words, capture_output=True, check=False, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return "crashes"
    if done.returncode:
        return "crashes" if done.returncode < 0 else "rejects"
    got = list(read_arrays(output, "output").values())
    names = list(feature.arrays("output"))
    return judge(feature, dict(zip(names, got, strict=True))) if len(got) == len(names) else "wrong"


def judge(feature: Stored, got: Arrays) -> str:
    """Return "right" or "wrong"."""
    for name, wanted in feature.arrays("output").items():
        array = got.get(name)
        if array is None or array.shape != wanted.shape:
            return "wrong"
        exact, near = wanted.astype(np.float64), np.asarray(array).astype(np.float64)
        if not np.allclose(near, exact, feature.rtol, feature.atol, equal_nan=True):
            return "wrong"
    return "right"
