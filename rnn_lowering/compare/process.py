"""A process of its own in which models run, since a native kernel may crash or never end."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from types import TracebackType
from typing import Any

import numpy as np

from rnn_lowering.compare.session import Session
from rnn_lowering.compare.worker import STEPS, read_arrays, write_arrays
from rnn_lowering.files.locations import external_entries
from rnn_lowering.files.scratch import scratch_folder
from rnn_lowering.limits import RUN_FACTOR, most_bytes
from rnn_lowering.options import Check
from rnn_lowering.types import Array

_START = 60.0
"""Seconds for starting Python and importing onnxruntime, at least."""


_LATE = "timed out after {:g} seconds (raise the limit: --verify-timeout, timeout=; or give smaller inputs)"


class SessionError(Exception):
    """onnxruntime does not load or run the model.

    Attributes:
        crashed: Its process died.
        timed_out: It took longer than the runner's `timeout`.
        too_large: It needs more memory than the limit allows.
    """

    def __init__(
        self, reason: str, *, crashed: bool = False, timed_out: bool = False, too_large: bool = False
    ) -> None:
        self.crashed = crashed
        self.timed_out = timed_out
        self.too_large = too_large
        super().__init__(reason)

    def about(self, what: object) -> SessionError:
        """Return the same error about a part of the model."""
        return SessionError(
            f"{what}: {self}", crashed=self.crashed, timed_out=self.timed_out, too_large=self.too_large
        )

    @property
    def over_limit(self) -> bool:
        """Whether a limit of time or memory ended it: that says nothing of the model."""
        return self.timed_out or self.too_large


class Process:
    """A process that runs `rnn_lowering.compare.worker`.

    Its messages are read in a thread, since not every operating system can wait for a pipe with a time limit.

    Attributes:
        jobs: How many it was given.
    """

    def __init__(self) -> None:
        command = [sys.executable, "-m", "rnn_lowering.compare.worker"]
        pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
        self.jobs = 0
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=nowhere, env=_environment())
        self._messages: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
        self._reader = Thread(target=self._receive, daemon=True)
        self._reader.start()

    def messages(self, job: Mapping[str, Any], timeout: float | None) -> Iterator[dict[str, Any]]:
        """Send a job; yield the messages about it, without the last, which is "done".

        Args:
            job: What to do, as the module `worker` describes it.
            timeout: Seconds that each message may take; None for no limit.

        Raises:
            SessionError: A message did not come in time, or never will.
        """
        if not self.jobs:
            self._next(None if timeout is None else max(timeout, _START))
        self.jobs += 1
        with suppress(OSError):  # it has died, and its messages end
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(job).encode() + b"\n")
            self._process.stdin.flush()
        while not (message := self._next(timeout)).get("done"):
            yield message

    def _next(self, timeout: float | None) -> dict[str, Any]:
        try:
            message = self._messages.get(timeout=timeout)
        except Empty:
            raise SessionError(_LATE.format(timeout), timed_out=True) from None
        if message is None:
            raise SessionError(f"its process died (exit {self._process.wait()})", crashed=True)
        return message

    def _receive(self) -> None:
        for line in self._process.stdout or ():
            self._messages.put(json.loads(line))
        self._messages.put(None)

    def end(self) -> None:
        """Kill the process, whatever it does, and wait for its end."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError):  # what was still to be written no longer can be
                pipe and pipe.close()


def _environment() -> dict[str, str]:
    inherited = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *inherited])}


Outputs = Mapping[str, Array]
Ran = Callable[[], None]
"""Called after each run, in the process of the caller."""

_OWN = (1 << 30) + (1 << 24) * (os.cpu_count() or 1)
"""Bytes for onnxruntime itself and the stacks of its threads."""

_COPIES = 3
"""How many times onnxruntime may hold the weights, while it folds and rearranges them."""

_TOO_LARGE = "needs more than {:.1f} GB of memory beside its weights (raise the limit: --max-bytes, max_bytes)"


@dataclass(frozen=True)
class Run:
    """The result of a group of feeds.

    Attributes:
        feed: The feed that counts; "" where the model accepts none.
        error: Why it accepts none; "" where it does.
    """

    feed: str
    error: str
    folder: Path = field(repr=False)

    def outputs(self) -> Outputs:
        """Return the outputs by "number of the output:number of its part", a tensor being part 0.

        The arrays are mapped files, read-only and in C order, so `reshape(-1)` and slices are views: looking at
        them in blocks needs memory for a block only. They are valid as long as the runner is.
        """
        return read_arrays(self.folder)


@dataclass(frozen=True)
class Outcome:
    """The names of a model's outputs, and one run for each group of feeds."""

    names: tuple[str, ...]
    runs: tuple[Run, ...]

    def steps(self, number: int) -> list[dict[str, Array]]:
        """Return the outputs by name of each chunk of a feed, where it ran in `Chunks`."""
        with np.load(self.runs[number].folder / STEPS) as held:
            arrays = dict(held)
        count = 1 + max((int(key.split(":")[0]) for key in arrays), default=-1)
        return [{name: arrays[f"{k}:{n}"] for n, name in enumerate(self.names)} for k in range(count)]


@dataclass(frozen=True)
class Chunks:
    """How feeds are cut into chunks, which run one after another.

    Attributes:
        sizes: For each feed the sizes of its chunks.
        axes: The axes along which inputs are cut, by name; others are the same in each chunk.
        lengths: Inputs that are lengths along that axis: they count down.
        carried: Outputs and the inputs that receive them in the next chunk.
    """

    sizes: Sequence[Sequence[int]]
    axes: Mapping[str, int] = field(default_factory=dict)
    lengths: Sequence[str] = ()
    carried: Mapping[str, str] = field(default_factory=dict)


class Runner:
    """A scratch folder and one process in which models run one after another; both end with the `with` block.

    Promises: the process is started at once, so that it imports onnxruntime while the caller prepares; at most one
    session exists at a time, and it serves all groups of a call; a job in whose course the process dies is tried
    once more in a fresh one, where earlier jobs cannot be the cause; no process outlives the block, nor, however it
    is killed, the caller.

    Args:
        timeout: Seconds for loading a model and for each of its runs; may be infinite.

    Attributes:
        folder: The scratch folder, for whatever the caller likes.
        timeout: Seconds; None for no limit.
    """

    def __init__(self, timeout: float = Check.timeout) -> None:
        self._scratch = scratch_folder()
        self.folder = self._scratch.__enter__()
        self.timeout = None if math.isinf(timeout) else timeout
        self._process: Process | None = None
        self._written = 0

    def __enter__(self) -> Runner:
        self._process = Process()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._end_process()
        finally:
            self._scratch.__exit__(kind, error, trace)

    def write_feed(self, feed: Mapping[str, Array]) -> str:
        """Write the inputs of a run to files; return the name that `run` and `feed` understand."""
        folder = self._new_folder("feed")
        write_arrays(folder, feed)
        return str(folder)

    def feed(self, name: str) -> Outputs:
        """Return the inputs that `write_feed` wrote, mapped and read-only."""
        return read_arrays(Path(name))

    def run(
        self,
        session: Session,
        groups: Sequence[Sequence[str]],
        ran: Ran = lambda: None,
        *,
        chunks: Chunks | None = None,
    ) -> Outcome:
        """Run groups of alternative feeds. Of each group the first feed counts that gives finite numbers, else the
        first that the model accepts.

        Args:
            groups: Names that `write_feed` gave.
            ran: Called after each group.
            chunks: How the first feed of each group is cut; `Outcome.steps` gives the outputs of each chunk.

        Raises:
            SessionError: The model does not load, the process died, or the time is up.
        """
        again = self._process is not None and self._process.jobs > 0
        try:
            return self._run(session, groups, ran, chunks)
        except SessionError as error:
            if not (error.crashed and again):
                raise
        return self._run(session, groups, lambda: None, chunks)

    def _run(self, session: Session, groups: Sequence[Sequence[str]], ran: Ran, chunks: Chunks | None) -> Outcome:
        if self._process is None:
            self._process = Process()
        out = self._new_folder("out")
        out.mkdir()
        job = {
            "model": str(session.model),
            "data": str(session.data or session.model.parent),
            "optimise": session.optimise,
            "threads": 1 if session.one_thread else 0,
            "groups": groups,
            "chunks": None if chunks is None else asdict(chunks),
            "out": str(out),
            "memory": _OWN + RUN_FACTOR * most_bytes() + _COPIES * _bytes_of_files(session),
        }
        names: tuple[str, ...] | None = None
        runs: list[Run] = []
        try:
            for message in self._process.messages(job, self.timeout):
                if message.get("too_large"):
                    raise SessionError(_TOO_LARGE.format(RUN_FACTOR * most_bytes() / 1e9), too_large=True)
                if "names" in message:
                    names = tuple(message["names"])
                elif names is None:
                    raise SessionError(message["error"])
                else:
                    group = groups[len(runs)]
                    feed = group[message["feed"]] if "feed" in message else ""
                    runs.append(Run(feed, message.get("error", ""), Path(message.get("out", out))))
                    ran()
        except SessionError as error:
            if error.crashed or error.over_limit:
                self._end_process()
            raise
        return Outcome(names or (), tuple(runs))

    def _new_folder(self, kind: str) -> Path:
        self._written += 1
        return self.folder / f"{kind}{self._written}"

    def _end_process(self) -> None:
        if self._process is not None:
            self._process.end()
            self._process = None


def _bytes_of_files(session: Session) -> int:
    """Count the bytes of a model's file and of those that it refers to."""
    folder = session.data or session.model.parent
    files = {session.model}
    with suppress(Exception):  # a model that cannot be read is onnxruntime's to refuse
        files |= {folder / entry.value for _, entry in external_entries(session.parsed)}
    return sum(file.stat().st_size for file in files if file.is_file())
