"""`Runner`: runs models in a child process, so that a crash or hang of a native kernel stays there."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import count, islice
from pathlib import Path
from types import TracebackType
from typing import overload

from rnn_lowering.child import Child, ChildError, ChildOwner, Message
from rnn_lowering.compare.options import Check
from rnn_lowering.compare.runs.sessions import Session
from rnn_lowering.compare.runs.worker import StoredArrays, read_steps, write_arrays
from rnn_lowering.files.data_folders import external_entries
from rnn_lowering.files.scratch import scratch_folder
from rnn_lowering.limits import RUN_FACTOR, most_bytes
from rnn_lowering.types import Array

_LATE = "timed out after {:g} seconds (raise the limit: --verify-timeout; or give smaller inputs)"


class SessionError(Exception):
    """onnxruntime does not load or run the model.

    Attributes:
        crashed: Its process died.
        over_limit: It took longer, or needs more memory, than allowed. The model may be right.
    """

    def __init__(self, reason: str, *, crashed: bool = False, over_limit: bool = False) -> None:
        self.crashed, self.over_limit = crashed, over_limit
        super().__init__(reason)

    def about(self, what: object) -> SessionError:
        """Return the same error about a part of the model."""
        return SessionError(f"{what}: {self}", crashed=self.crashed, over_limit=self.over_limit)


class NotAcceptedError(SessionError):
    """onnxruntime loads the model but does not accept the inputs."""


Outputs = Mapping[str, Array]
_Ran = Callable[[], None]
"""Called after each run, in the calling process."""

_OWN = (1 << 30) + (1 << 24) * (os.cpu_count() or 1)
"""Bytes for onnxruntime itself and the stacks of its threads."""

_COPIES = 3
"""Maximum copies of the weights that onnxruntime makes while it folds and rearranges them."""

_COPIES_IN_FLOAT64 = 8
"""Maximum copies of the weights that an evaluation holds: messages and arrays, both twice as wide."""

_WORKER = "rnn_lowering.compare.runs.worker"

_TOO_LARGE = "needs more than {:.1f} GB of memory beside its weights (raise the limit: --max-bytes)"


@dataclass(frozen=True)
class Run:
    """The result of a group of feeds.

    Attributes:
        feed: The feed that counts; "" if the model accepts none.
        error: Why it accepts none; "" if it accepts one.
        finite: Whether all its outputs are finite.
        names: The names of its outputs.
        path: The folder of their arrays.
    """

    feed: str
    error: str
    finite: bool
    names: tuple[str, ...]
    path: Path = field(repr=False)

    def outputs(self) -> Outputs:
        """Return the outputs by "number of the output:number of its part", a tensor being part 0.

        The arrays are mapped files, read-only and in C order. A slice of `reshape(-1)` is a view, so blocks of a
        large array need little memory. They are valid as long as the runner is.
        """
        return StoredArrays(self.path)

    def tensors(self) -> dict[str, Array]:
        """Return the outputs that are tensors, by name."""
        return tensors_by_name(self.names, self.outputs())


def tensors_by_name(names: Sequence[str], outputs: Outputs) -> dict[str, Array]:
    """Return the outputs that are tensors, by name."""
    return {name: outputs[f"{n}:0"] for n, name in enumerate(names) if f"{n}:0" in outputs}


class Alternatives(Sequence[str]):
    """Names of alternative feeds for one run. The first feed is written at once, the others when their names are
    read."""

    def __init__(self, names: Iterable[str]) -> None:
        self._unread = iter(names)
        self._read = list(islice(self._unread, 1))

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> list[str]: ...

    def __getitem__(self, index: int | slice) -> str | list[str]:
        end = index.stop if isinstance(index, slice) else index + 1
        self._read += islice(self._unread, None if end is None else max(0, end - len(self._read)))
        return self._read[index]

    def __len__(self) -> int:
        return len(self[:])


@dataclass(frozen=True)
class Outcome:
    """The names of a model's outputs, one run for each group of feeds, and the seconds that chunks took."""

    names: tuple[str, ...]
    runs: tuple[Run, ...]
    seconds: float = 0.0

    def steps(self, number: int) -> list[dict[str, Array]]:
        """Return the outputs by name of each chunk of a feed that ran in `Chunks`."""
        return read_steps(self.runs[number].path)

    def accepted(self, *, all_must_run: bool) -> list[Run]:
        """Return the runs of the feeds that the model accepts.

        Raises:
            NotAcceptedError: It accepts no feed; or not all, although all must run.
        """
        accepted = [run for run in self.runs if not run.error]
        errors = [run.error for run in self.runs if run.error]
        if not accepted or (all_must_run and errors):
            raise NotAcceptedError(errors[0] if errors else "no runs were requested")
        return accepted


@dataclass(frozen=True)
class Chunks:
    """The chunks of each feed, which run one after another.

    Attributes:
        sizes: The sizes of the chunks of each feed.
        axes: By name, the axis along which an input is cut, and its frames for each frame of the sizes; other
            inputs are the same in each chunk.
        lengths: Inputs that are lengths along that axis: they count down.
        carried: Output -> the input that receives it in the next chunk.
        returned: Outputs to return; empty for all.
    """

    sizes: Sequence[Sequence[int]]
    axes: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    lengths: Sequence[str] = ()
    carried: Mapping[str, str] = field(default_factory=dict)
    returned: Sequence[str] = ()


class Runner(ChildOwner):
    """Runs models one after another in a child process, with a scratch folder; both end with the `with` block.

    Promises:
        The process starts at once: it imports onnxruntime while the caller prepares.
        At most one session exists at a time, and those that are loaded ahead; it serves all groups of a call whose
        first feed is accepted.
        If the process dies during a job, the job is tried once more in a new one: an earlier job may be the cause.
        No process outlives the block, nor the caller, however that is killed.

    Args:
        timeout: Seconds for loading a model and for each of its runs; may be infinite.

    Attributes:
        folder: The scratch folder, also for files of the caller.
        timeout: Seconds; None for no limit.
    """

    def __init__(self, timeout: float = Check.timeout) -> None:
        self._scratch = scratch_folder()
        self.folder = self._scratch.__enter__()
        self.timeout = None if math.isinf(timeout) else timeout
        self._written = 0
        self._ahead: dict[int, Session] = {}
        self._numbers = count()

    def __enter__(self) -> Runner:
        self._child = Child(_WORKER)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.end_child()
        finally:
            self._scratch.__exit__(kind, error, trace)

    def write_feed(self, feed: Mapping[str, Array]) -> str:
        """Write the inputs of a run to a file; return a name for `run` and `feed`."""
        path = self._new_path("feed")
        write_arrays(path, feed)
        return str(path)

    def write_feeds(self, feeds: Iterable[Mapping[str, Array]]) -> Alternatives:
        """Return names for alternative feeds of one run; those that `run` does not need are never made."""
        return Alternatives(self.write_feed(feed) for feed in feeds)

    def feed(self, name: str) -> Outputs:
        """Return the inputs that `write_feed` wrote, mapped and read-only."""
        return StoredArrays(Path(name))

    def load(self, session: Session) -> None:
        """Have a small model loaded while the caller goes on. It is kept until one runs that is not loaded, or was
        loaded after it."""
        self._child = self._child or Child(_WORKER)
        number = next(self._numbers)
        self._ahead[number] = session
        self._child.tell({**_job(session, [], None, self.folder), "load": number})

    def run(
        self,
        session: Session,
        groups: Sequence[Sequence[str]],
        ran: _Ran = lambda: None,
        *,
        chunks: Chunks | None = None,
    ) -> Outcome:
        """Run groups of alternative feeds. In each group, the first feed with finite outputs counts, else the first
        that the model accepts.

        Args:
            groups: Names that `write_feed` or `write_feeds` gave.
            ran: Called after each group.
            chunks: How the first feed of each group is cut; `Outcome.steps` gives the outputs of each chunk.

        Raises:
            SessionError: The model does not load, the process died, or the time is up.
        """
        first = self._run_or_retry(session, [group[:1] for group in groups], ran, chunks)
        again = [n for n, run in enumerate(first.runs) if not run.finite and len(groups[n]) > 1]
        if not again:
            return first
        others = self._run_or_retry(session, [groups[n][:] for n in again], lambda: None, chunks)
        runs = dict(enumerate(first.runs)) | dict(zip(again, others.runs, strict=True))
        return replace(first, runs=tuple(runs.values()))

    def run_optimized_or_not(
        self,
        session: Session,
        groups: Sequence[Sequence[str]],
        ran: _Ran = lambda: None,
        *,
        chunks: Chunks | None = None,
        all_must_run: bool = True,
        may_crash: bool = True,
    ) -> tuple[Session, Outcome, str]:
        """Run as `run` does; if that fails, run without onnxruntime's optimizations, which refuse some models or
        crash on them.

        Args:
            all_must_run: A group of which no feed is accepted is a failure, too.
            may_crash: A process that dies is no failure if it does not die without optimizations.

        Returns:
            The session that ran, its outcome, and why it ran without optimizations; "" if it did not.

        Raises:
            SessionError: It fails both times; the error is that of the first.
        """

        def run(session: Session, ran: _Ran) -> Outcome:
            outcome = self.run(session, groups, ran, chunks=chunks)
            if all_must_run:
                outcome.accepted(all_must_run=True)
            return outcome

        try:
            return session, run(session, ran), ""
        except SessionError as error:
            if error.over_limit or not session.optimize or (error.crashed and not may_crash):
                raise
            plain = replace(session, optimize=False)
            with suppress(SessionError):
                return plain, run(plain, lambda: None), f"only with onnxruntime's optimizations disabled: {error}"
            raise

    def _run_or_retry(
        self, session: Session, groups: Sequence[Sequence[str]], ran: _Ran, chunks: Chunks | None
    ) -> Outcome:
        """Run groups; do it again in a new process if the process dies and has done other jobs, or exceeds a limit
        and has loaded other models ahead."""
        used = self._child is not None and self._child.jobs > 0
        others = any(held is not session for held in self._ahead.values())
        try:
            return self._run(session, groups, ran, chunks)
        except SessionError as error:
            if not (error.crashed and used) and not (error.over_limit and others):
                raise
        return self._run(session, groups, lambda: None, chunks)

    def float64(self, model: Path, feed: str) -> Outputs:
        """Return the outputs of a model in float64, by index.

        Raises:
            SessionError: They cannot be computed.
        """
        out = self._new_path("float64")
        memory = RUN_FACTOR * most_bytes() + _COPIES_IN_FLOAT64 * model.stat().st_size
        job = {"model": str(model), "float64": feed, "out": str(out), "memory": memory}
        try:
            (answer,) = self._ask(job)
        except SessionError:
            self.end_child()
            raise
        if "error" in answer:
            raise SessionError(answer["error"])
        return StoredArrays(out)

    def _ask(self, job: Message) -> Iterator[Message]:
        number = job.get("loaded")
        self._ahead = {} if number is None else {n: held for n, held in self._ahead.items() if n >= number}
        self._child = self._child or Child(_WORKER)
        try:
            yield from self._child.ask(job, self.timeout)
        except ChildError as error:
            if error.late:
                raise SessionError(_LATE.format(self.timeout), over_limit=True) from None
            raise SessionError(f"its process died (exit {error.exit})", crashed=True) from None

    def _run(self, session: Session, groups: Sequence[Sequence[str]], ran: _Ran, chunks: Chunks | None) -> Outcome:
        out = self._new_path("out")
        out.mkdir()
        names: tuple[str, ...] | None = None
        runs: list[Run] = []
        seconds = 0.0
        try:
            number = next((n for n, held in self._ahead.items() if held is session), None)
            for message in self._ask({**_job(session, groups, chunks, out), "loaded": number}):
                if message.get("too_large"):
                    raise SessionError(_TOO_LARGE.format(RUN_FACTOR * most_bytes() / 1e9), over_limit=True)
                if names is not None:
                    runs.append(_run_of(message, groups[len(runs)], names, out))
                    seconds += message.get("seconds", 0.0)
                    ran()
                elif "names" in message:
                    names = tuple(message["names"])
                else:
                    raise SessionError(message["error"])
        except SessionError as error:
            if error.crashed or error.over_limit:
                self.end_child()
                self._ahead.clear()
            raise
        return Outcome(names or (), tuple(runs), seconds)

    def _new_path(self, kind: str) -> Path:
        self._written += 1
        return self.folder / f"{kind}{self._written}"


def _job(session: Session, groups: Sequence[Sequence[str]], chunks: Chunks | None, out: Path) -> Message:
    return {
        "model": str(session.model),
        "data": str(session.data or session.model.parent),
        "optimize": session.optimize,
        "threads": 1 if session.one_thread or chunks else 0,  # chunks are small: threads would only wait
        "packs": session.has_many_weights,
        "groups": groups,
        "chunks": None if chunks is None else asdict(chunks),
        "out": str(out),
        "memory": memory_of(session),
    }


def memory_of(session: Session) -> int:
    """Return how many bytes a run of a model may take."""
    return _OWN + RUN_FACTOR * most_bytes() + _COPIES * _bytes_of_files(session)


def _run_of(message: Message, group: Sequence[str], names: tuple[str, ...], out: Path) -> Run:
    feed = group[message["feed"]] if "feed" in message else ""
    finite = bool(message.get("finite"))
    return Run(feed, message.get("error", ""), finite, names, Path(message.get("out", out)))


def _bytes_of_files(session: Session) -> int:
    """Return the total size of a model's file and its data files."""
    folder = session.data or session.model.parent
    files = {session.model}
    with suppress(Exception):  # a model that cannot be read is onnxruntime's to refuse
        if session.is_external:
            files |= {folder / entry.value for _, entry in external_entries(session.parsed)}
    return sum(file.stat().st_size for file in files if file.is_file())
