"""Run the suite in a runtime and judge each feature: right, wrong, rejects or crashes, and why."""

import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from clients.driving import Job, drive
from clients.environments import CLIENTS
from running import OF_RUNTIMES

import rnn_lowering as rl
from conformance.suite import Stored, read_arrays, write_arrays

SECONDS = 60
"""The most that a command may take for one feature."""

PLACEHOLDERS = ("{model}", "{data}", "{output}")

Arrays = dict[str, npt.NDArray[Any]]


class CommandError(Exception):
    """A command that cannot run any model."""


@dataclass(frozen=True)
class Outcome:
    """What became of a feature.

    Attributes:
        kind: "right", "wrong", "rejects" or "crashes".
        reason: Why, unless it is right.
    """

    kind: str
    reason: str = ""


def in_runtime(
    runtime: str, features: Iterable[Stored], lowering: rl.Lowering | None
) -> Iterator[tuple[str, Outcome]]:
    """Yield the outcome of each feature in a runtime of tests/clients, which runs all of them first.

    Args:
        lowering: How the models are lowered before; None: they stay as exported.
    """
    chosen, jobs, refused = list(features), dict[str, Job](), dict[str, Outcome]()
    for feature in chosen:
        model = _model(feature, lowering)
        if isinstance(model, Outcome):
            refused[feature.name] = model
        else:
            jobs[feature.name] = model, feature.arrays("input")
    with tempfile.TemporaryDirectory() as folder:
        got = drive(runtime, jobs, Path(folder))
    for feature in chosen:
        result = got.get(feature.name, "")
        if feature.name in refused:
            yield feature.name, refused[feature.name]
        elif isinstance(result, str):
            kind, _, reason = result.partition(": ")
            yield feature.name, Outcome(kind, one_line(reason))
        else:
            yield feature.name, judge(feature, result, CLIENTS[runtime].precision)


def by_command(
    command: str, features: Iterable[Stored], lowering: rl.Lowering | None = None
) -> Iterator[tuple[str, Outcome]]:
    """Run a command on each feature and yield the outcome.

    {model} is the model, {data} the folder with input_0.pb and so on, {output} one for output_0.pb and so on.
    An exit code other than 0 is a rejection, an end by a signal or after the time limit a crash.

    Args:
        lowering: How the models are lowered before; None: they stay as exported.
    """
    for feature in features:
        model = _model(feature, lowering)
        yield feature.name, model if isinstance(model, Outcome) else _by_command(command, feature, model)


def check(command: str, plain: Stored) -> None:
    """Run a command on a model that every runtime computes.

    Raises:
        CommandError: It does not compute that model.
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise CommandError(f"the command cannot be read: {error}") from error
    if missing := [name for name in PLACEHOLDERS if name not in command]:
        raise CommandError(f"the command lacks {', '.join(missing)}")
    if shutil.which(words[0]) is None:
        raise CommandError(f"there is no program {words[0]}")
    outcome = _by_command(command, plain, onnx.load(plain.folder / "model.onnx"))
    if outcome.kind != "right":
        said = f"it {_VERBS[outcome.kind]} ({outcome.reason})"
        raise CommandError(f"the command does not compute {plain.label}: {said}")


_VERBS = {"wrong": "returns something else", "rejects": "fails", "crashes": "crashes"}


def _model(feature: Stored, lowering: rl.Lowering | None) -> onnx.ModelProto | Outcome:
    model = onnx.load(feature.folder / "model.onnx")
    if lowering is None:
        return model
    try:
        return rl.lower(model, lowering)
    except rl.RnnLoweringError as error:
        return Outcome("rejects", f"rnn-lower: {error}")


def _by_command(command: str, feature: Stored, model: onnx.ModelProto) -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        onnx.save(model, path)
        try:
            return judge(feature, called(command, path, feature.arrays("input"), list(feature.arrays("output"))))
        except EndedError as ended:
            return ended.outcome


class EndedError(Exception):
    """A command ended without the outputs of a model.

    Attributes:
        outcome: What became of the model.
    """

    def __init__(self, kind: str, reason: str) -> None:
        self.outcome = Outcome(kind, reason.removesuffix(": "))


def called(command: str, model: Path, feed: Mapping[str, npt.NDArray[Any]], names: list[str]) -> Arrays:
    """Run a command on a model; return the outputs, which have these names.

    Args:
        feed: The inputs, in the order of the model's.

    Raises:
        EndedError: It does not write them.
    """
    with tempfile.TemporaryDirectory() as folder:
        data, output = Path(folder) / "data", Path(folder) / "output"
        output.mkdir()
        write_arrays(data, "input", feed)
        values = dict(zip(PLACEHOLDERS, (model, data, output), strict=True))
        words = shlex.split(command)
        for name, value in values.items():
            words = [word.replace(name, str(value)) for word in words]
        _run(words)
        return _outputs(output, names)


def _run(words: list[str]) -> None:
    try:
        done = subprocess.run(words, capture_output=True, check=False, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        raise EndedError("crashes", f"no end within {SECONDS} s") from None
    said = one_line(done.stderr.decode(errors="replace") or done.stdout.decode(errors="replace"))
    if done.returncode < 0:
        raise EndedError("crashes", f"{signal.Signals(-done.returncode).name}: {said}")
    if done.returncode:
        raise EndedError("rejects", f"exit code {done.returncode}: {said}")


def _outputs(folder: Path, names: list[str]) -> Arrays:
    try:
        got = list(read_arrays(folder, "output").values())
    except Exception as error:  # protobuf's have no types
        raise EndedError("wrong", f"its output files cannot be read: {one_line(str(error))}") from error
    if len(got) != len(names):
        raise EndedError("wrong", f"it writes {len(got)} of {len(names)} outputs")
    return dict(zip(names, got, strict=True))


def judge(feature: Stored, got: Arrays, precision: str = "float32") -> Outcome:
    """Compare the outputs of a feature with those that are expected; `precision`: in what they were computed."""
    rtol, atol = map(max, zip(OF_RUNTIMES[precision], (feature.rtol, feature.atol), strict=True))
    for name, wanted in feature.arrays("output").items():
        array = got.get(name)
        if array is None or array.shape != wanted.shape:
            shape = "absent" if array is None else f"of shape {list(array.shape)}"
            return Outcome("wrong", f"output {name} is {shape}, not of shape {list(wanted.shape)}")
        exact, near = wanted.astype(np.float64), np.asarray(array).astype(np.float64)
        if not np.allclose(near, exact, rtol, atol, equal_nan=True):
            with np.errstate(invalid="ignore"):
                difference = np.max(np.abs(near - exact))
            return Outcome("wrong", f"output {name} differs by {difference:.1g}")
    return Outcome("right")


def one_line(said: str, most: int = 200) -> str:
    """The last line that is said: of a Python error its message."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return lines[-1][:most] if lines else ""
