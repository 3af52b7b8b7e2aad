"""The result in the runtime of its target, compared with the original in onnxruntime.

A model with open axes runs at two sizes, a stream call by call.

Each model runs in a process of its own, with limits of time and memory. What a runtime prints is kept back: only
its last lines are told, where a model does not run.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np

from rnn_lowering.compare.options import Check
from rnn_lowering.compare.result import IN_CHUNKS, JUDGED, RunCheck, RunInput, Verification, over_all
from rnn_lowering.compare.runs.runner import Alternatives, Outcome, Outputs, Runner, SessionError, memory_of
from rnn_lowering.compare.runs.sessions import Session
from rnn_lowering.compare.streams.chunk_by_chunk import StreamComparison, first_wrong
from rnn_lowering.compare.streams.sequences import FEW, ChunkedSequence, Expected
from rnn_lowering.compare.whole import ModelComparison
from rnn_lowering.errors import UnsupportedError, counted, printable
from rnn_lowering.files.data_folders import external_entries
from rnn_lowering.files.reading import ModelSource
from rnn_lowering.targets.drivers.jobs import write_arrays
from rnn_lowering.targets.installed import Runtime
from rnn_lowering.types import TARGET, Array, Progress, counter

_FEWEST_RUNS = 3
"""The runs of which two are chosen: they have other sizes, unless all are fixed."""

_INSTEAD = "compared with the result in onnxruntime, which cannot run the original"
_NOTHING = "nothing to compare with: {} (give other inputs: --test-input, --test-shape)"


def model_in_target(whole: ModelComparison, runtime: Runtime) -> Verification:
    """Compare the models of a comparison, the lowered one in a runtime."""
    check = replace(whole.check, runs=max(whole.check.runs, _FEWEST_RUNS))
    models = (whole.original, whole.lowered, whole.runner)
    return ModelInTarget(*models, check, whole.progress, whole.prepared, runtime=runtime).result()


@dataclass(frozen=True)
class ModelInTarget(ModelComparison):
    """A comparison of two models, the lowered one in a runtime."""

    runtime: Runtime = field(kw_only=True)

    def result(self) -> Verification:
        try:
            session, expected, note = self._expected(self._write_feeds())
        except (SessionError, UnsupportedError) as error:
            return Verification("not verified", str(self.runtime), reason=_NOTHING.format(error))
        feeds = self._few(list(expected))
        ran = counter(self.progress, TARGET, len(feeds))
        runs = RuntimeRuns(self.runtime, self.lowered, self.runner.folder, self.runner.timeout)
        try:
            found = runs.outputs([self.runner.feed(feed) for feed in feeds], ran=ran)
        except TargetError as error:
            return _told(Verification("failed", reason=str(error)), self.runtime)
        after = [self._as_expected(expected[feed], outputs) for feed, outputs in zip(feeds, found, strict=True)]
        pairs = {feed: (expected[feed], outputs) for feed, outputs in zip(feeds, after, strict=True)}
        result = self._compare(pairs)
        if not result and not note:
            if self.uncertain.look_for(self.original, session, pairs, result.each_run):
                result = self._compare(pairs)
            if not result and (undetermined := self._undetermined(result, session, expected)):
                return Verification("not verified", str(self.runtime), reason=undetermined)
            result = result or self._judged(result, session, pairs)
        return _told(result, self.runtime, notes=(note,))

    def _expected(self, groups: list[Alternatives]) -> tuple[Session, dict[str, Outputs], str]:
        """Return what runs in onnxruntime, its outputs by feed, and a note if it is not the original.

        Raises:
            SessionError: Neither model runs.
        """
        try:
            session, expected, _ = self._run_original(groups)
        except SessionError as error:
            if error.over_limit:
                raise
        else:
            return session, expected, ""
        session, outcome, _ = self.runner.run_optimized_or_not(self._sessions[True], groups, all_must_run=False)
        runs = outcome.accepted(all_must_run=False)
        return session, {run.feed: run.outputs() for run in runs}, _INSTEAD

    def _few(self, feeds: list[str]) -> list[str]:
        """Return the first inputs, and those with other sizes or switches in which most sizes are in another order:
        the last of several."""
        seen = {feed: self._sizes(feed) for feed in feeds}
        others = [feed for feed in reversed(feeds) if seen[feed] != seen[feeds[0]]]
        return [feeds[0], *sorted(others, key=lambda feed: -_swapped(seen[feeds[0]], seen[feed]))[:1]]

    def _sizes(self, feed: str) -> list[RunInput]:
        given = self.runner.feed(feed)
        return [RunInput.of(name, array, are_lengths=False) for name, array in given.items()]

    def _as_expected(self, before: Outputs, after: Mapping[str, Array]) -> Outputs:
        """Return the outputs of the runtime by index; integers in the type of the original, if it holds them."""
        keys = {f"{n}:0": name for n, name in enumerate(self.names) if name in after}
        return {key: _in_type_of(before.get(key), after[name]) for key, name in keys.items()}


def _swapped(first: Sequence[RunInput], second: Sequence[RunInput]) -> int:
    """Return of how many two open sizes the smaller one is the larger one in other inputs."""
    others = {each.name: each.shape for each in second}
    sizes = {pair for each in first for pair in zip(each.shape, others.get(each.name, ()), strict=False)}
    return sum((a - c) * (b - d) < 0 for (a, b), (c, d) in combinations(sizes, 2) if a != b and c != d)


def _in_type_of(expected: Array | None, array: Array) -> Array:
    """Return integers or booleans in the type of others: runtimes without int64 return int32."""
    if expected is None or array.dtype == expected.dtype or {array.dtype.kind, expected.dtype.kind} - {*"biu"}:
        return array
    converted = array.astype(expected.dtype)
    return converted if np.array_equal(converted, array) else array


class StreamInTarget(StreamComparison):
    """A comparison of a stream in a runtime with the original on whole sequences."""

    def __init__(
        self,
        original: ModelSource,
        stepped: ModelSource,
        runner: Runner,
        check: Check,
        progress: Progress | None,
        runtime: Runtime,
    ) -> None:
        check = replace(check, runs=max(check.runs, _FEWEST_RUNS))
        super().__init__(original, stepped, runner, check, progress)
        self.runtime, self._progress = runtime, progress
        self._ran: Outcome | None = None

    def result(self) -> Verification:
        try:
            expected = self.runs.whole([self.runner.write_feeds(feeds) for feeds in self.sequences.feeds()])
        except (SessionError, UnsupportedError) as error:
            runs_there = isinstance(error, SessionError) and not error.over_limit
            if runs_there and self._use_lowered_original():
                return self.result()
            return Verification("not verified", str(self.runtime), reason=_NOTHING.format(error))
        sequences = self._few(expected)
        if not sequences:
            return Verification("not verified", str(self.runtime), reason=self._too_short())
        sizes = dict.fromkeys(sequence.sizes[0] for sequence in sequences)
        method = f"{IN_CHUNKS} of {' and of '.join(counted(n, 'frame') for n in sizes)}"
        try:
            runs, _ = self._judged(sequences, expected)
        except TargetError as error:
            return _told(Verification("failed", reason=str(error)), self.runtime, method)
        wrong = first_wrong(runs)
        found = Verification("failed" if wrong else "verified", "", len(runs), over_all(runs), wrong, tuple(runs))
        return _told(found, self.runtime, method)

    def _few(self, expected: Expected) -> list[ChunkedSequence]:
        """Return two sequences in calls of one size, which is another one in each if it is open."""
        frames = {feed: self.sequences.count(self.runner.feed(feed)) for feed in expected}
        first = next(iter(expected))
        feeds = [first, *[feed for feed in expected if frames[feed] != frames[first]][-1:]]
        chosen = []
        for feed, size in zip(feeds, (1, FEW), strict=False):
            call = self.plan.frames or size * self.plan.unit
            calls = next(n for n in range(call, 0, -1) if n % self.plan.unit == 0 and frames[feed] % n == 0)
            chosen += list(self.sequences.in_chunks(feed, ((self.plan.frames or calls,),)))
        return chosen

    def _as_defined(
        self, sequences: Sequence[ChunkedSequence], expected: Expected, runs: list[RunCheck]
    ) -> tuple[list[RunCheck], Expected]:
        """Return what is given: the runtime has its own optimizations, and runs once."""
        return runs, expected

    def _run_in_chunks(self, sequences: Sequence[ChunkedSequence]) -> Outcome:
        """Run the stream in the runtime, once.

        Raises:
            TargetError: It does not run there.
        """
        if self._ran is None:
            ran = counter(self._progress, TARGET, len(sequences))
            runs = RuntimeRuns(self.runtime, self.stepped, self.runner.folder, self.runner.timeout)
            feeds = [self.runner.feed(sequence.started) for sequence in sequences]
            called = runs.outputs(feeds, [self._calls(sequence.sizes[0]) for sequence in sequences], ran=ran)
            parts = [list(self._parts(outputs, s.sizes)) for outputs, s in zip(called, sequences, strict=True)]
            self._ran = _Calls((), (), 1.0, tuple(parts))
        return self._ran

    def _calls(self, frames: int) -> dict[str, Any]:
        """Return how the stream is called with so many frames: see `once` of `drivers/jobs.py`."""
        plan = self.plan
        return {
            "frames": frames,
            "axes": {**plan.inputs, **plan.outputs},
            "fed_back": {state.output: state.input for state in plan.states},
            "grows": {state.input: state.grows for state in plan.states if state.grows is not None},
            "rates": {name: int(plan.rate(name)) for name, axis in plan.inputs.items() if axis is not None},
            "lengths": sorted(self.sequences.lengths),
        }

    def _parts(self, outputs: Mapping[str, Array], sizes: Sequence[int]) -> Iterator[dict[str, Array]]:
        """Yield the outputs of each call: the frames of all in equal parts."""
        timed = {name: axis for name, axis in self.plan.outputs.items() if axis is not None and name in outputs}
        split = {name: np.array_split(outputs[name], len(sizes), axis) for name, axis in timed.items()}
        for n in range(len(sizes)):
            yield {**outputs, **{name: arrays[n] for name, arrays in split.items()}}


@dataclass(frozen=True)
class _Calls(Outcome):
    """The outputs of the calls of each sequence."""

    each: tuple[list[dict[str, Array]], ...] = ()

    def steps(self, number: int) -> list[dict[str, Array]]:
        return self.each[number]


def _told(found: Verification, runtime: Runtime, method: str = "", notes: Sequence[str] = ()) -> Verification:
    """Return a result whose method is the runtime; it says if another version was measured."""
    judged = JUDGED[JUDGED.index(",") :] if found.method == JUDGED else ""
    other = f"measured with {runtime.measured}" if runtime.version != runtime.measured else ""
    reason = "; ".join(filter(None, (found.reason, *notes, other)))
    return replace(found, method=f"{runtime}{method}{judged}", reason=reason)


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
        results = []
        for job, feed in zip(jobs, feeds, strict=True):
            results.append(self._read(job, feed, said))
            ran()
        return results

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
        start, said = max(seconds, _TO_START), folder / "driver.txt"
        with said.open("wb") as printed:
            process = subprocess.Popen(
                [self.runtime.python, str(self.runtime.driver), str(folder), f"{seconds:g}"],
                env=self.runtime.environment,
                cwd=folder,
                stdin=subprocess.PIPE,  # the driver ends when it is closed
                stdout=printed,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        with process:
            try:
                process.wait(start + jobs * (seconds + 1))
            except subprocess.TimeoutExpired:
                return f"{_LATE} {start:.0f} s"
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # what it started too
        return _last(_text_of(said))

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
