"""Models in the runtime of a target: each in a process of its own, with limits of time and memory.

What a runtime prints is kept back: only its last lines are told, where a model does not run.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np

from rnn_lowering.compare.runner import Session, memory_of
from rnn_lowering.errors import printable
from rnn_lowering.files.one_file import external_entries
from rnn_lowering.files.reading import ModelSource
from rnn_lowering.targets.drivers.jobs import write_arrays
from rnn_lowering.targets.installed import Runtime
from rnn_lowering.types import Array

_TO_START = 60.0
"""The fewest seconds that a driver gets to import its runtime."""

_LONGEST = 10_000_000
"""The seconds of a job without a time limit."""

_MOST_TEXT = 400
"""The characters that are told of what a runtime says."""

_NO_MEMORY = ("MemoryError", "bad_alloc", "bad allocation", "annot allocate memory")
_LATE = "not done after"


class TargetError(Exception):
    """A runtime does not run a model; the text says why."""


@dataclass(frozen=True)
class RuntimeRuns:
    """Runs a model in a runtime.

    Attributes:
        runtime: The runtime.
        model: The model.
        scratch: A folder, in which the jobs get their own.
        timeout: Seconds for loading the model and running it once; None for no limit.
    """

    runtime: Runtime
    model: ModelSource
    scratch: Path
    timeout: float | None

    def outputs(
        self,
        feeds: Sequence[Mapping[str, Array]],
        calls: Sequence[Mapping[str, Any]] = (),
        ran: Callable[[], None] = lambda: None,
    ) -> list[dict[str, Array]]:
        """Run the model on inputs; return the outputs of each by name.

        Args:
            calls: For each, how the model is called several times: calls.json of `drivers/jobs.py`.
            ran: Called for each, once all are run.

        Raises:
            TargetError: It does not load or run, takes too long, or needs too much memory.
        """
        folder = Path(mkdtemp(dir=self.scratch))
        memory = memory_of(Session(self.model.path, proto=self.model.proto))
        (folder / "limits.json").write_text(json.dumps({"memory": memory}))
        jobs = [folder / f"{n:03}" for n in range(len(feeds))]
        for n, (job, feed) in enumerate(zip(jobs, feeds, strict=True)):
            self._write(job, feed)
            if calls:
                (job / "calls.json").write_text(json.dumps(calls[n]))
        said = self._drive(folder, len(jobs))
        found = []
        for job, feed in zip(jobs, feeds, strict=True):
            found.append(self._read(job, feed, said))
            ran()
        return found

    def _write(self, job: Path, feed: Mapping[str, Array]) -> None:
        job.mkdir()
        places = [Path(entry.value) for _, entry in external_entries(self.model.proto)]
        if any(place.is_absolute() or ".." in place.parts for place in places):
            raise TargetError("its data file is outside of its folder")
        _link(self.model.path, job / "model.onnx")
        for place in dict.fromkeys(places):
            (job / place).parent.mkdir(parents=True, exist_ok=True)
            _link(self.model.path.parent / place, job / place)
        graph = self.model.proto.graph
        ordered = {v.name: np.asarray(feed[v.name]) for v in graph.input if v.name in feed}
        if odd := [name for name, array in ordered.items() if array.dtype.kind not in "biuf"]:
            raise TargetError(f"its input '{odd[0]}' has a type that NumPy does not store")
        write_arrays(job / "feed.npz", ordered)
        (job / "outputs.txt").write_text("\n".join(output.name for output in graph.output), "utf-8")

    def _drive(self, folder: Path, jobs: int) -> str:
        """Run the driver; return the last line that it prints."""
        seconds = _LONGEST if self.timeout is None else min(self.timeout, _LONGEST)
        process = subprocess.Popen(
            [self.runtime.python, str(self.runtime.driver), str(folder), f"{seconds:g}"],
            env=self.runtime.environment,
            cwd=folder,
            stdin=subprocess.PIPE,  # the driver ends when it is closed
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        printed = _Printed(process)
        start = max(seconds, _TO_START)
        try:
            process.wait(start + jobs * (seconds + 1))
        except subprocess.TimeoutExpired:
            return f"{_LATE} {start:.0f} s"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # what it started too
            process.wait()
            printed.end()
        return printed.last_line

    def _read(self, job: Path, feed: Mapping[str, Array], said: str) -> dict[str, Array]:
        if (job / "result.npz").exists() and not (job / "error.txt").exists():
            with suppress(OSError, ValueError, EOFError), np.load(job / "result.npz") as held:
                return {name: held[name] for name in held.files}
            raise TargetError("an output is no array of numbers")
        told = _text_of(job / "error.txt")
        if not told:
            raise TargetError(f"its driver does not start: {_short(said)}")
        kind, _, why = told.partition(": ")
        if _LATE in why:
            raise TargetError(f"{_sizes(feed)} it is {why} (raise the limit: --verify-timeout)")
        last = _last(_text_of(job / "log.txt"), 2)
        more = f" ({_short(last)})" if last and last not in why else ""
        limit = " (raise the limit of memory: --max-bytes)" if any(text in told for text in _NO_MEMORY) else ""
        verb = "its process ends" if kind == "crashes" else "it does not load or run"
        raise TargetError(f"{_sizes(feed)} {verb}: {_short(why)}{more}{limit}")


def _link(source: Path, place: Path) -> None:
    try:
        os.link(source, place)
    except OSError:  # another file system
        shutil.copyfile(source, place)


def _text_of(path: Path) -> str:
    return path.read_text("utf-8", "replace") if path.exists() else ""


def _last(text: str, count: int = 1) -> str:
    """Return the last lines of a text as one."""
    return " / ".join([line.strip() for line in text.splitlines() if line.strip()][-count:])


def _short(text: str) -> str:
    return printable(text.partition("Stack backtrace")[0].rstrip(), _MOST_TEXT)


def _sizes(feed: Mapping[str, Array]) -> str:
    name, array = next(iter(feed.items()), ("no inputs", None))
    return f"with {name} {list(array.shape)}" if array is not None else f"with {name}"


class _Printed:
    """The end of what a process prints."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process, self._end = process, b""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with suppress(ValueError, OSError):  # it is closed
            while part := os.read(self._process.stdout.fileno(), 1 << 16):
                self._end = (self._end + part)[-(1 << 16) :]

    def end(self) -> None:
        self._reader.join(1)
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError):
                pipe and pipe.close()

    @property
    def last_line(self) -> str:
        return _last(self._end.decode(errors="replace"))
