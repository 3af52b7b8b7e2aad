"""Compare a stream, chunk by chunk, with the original on whole sequences.

The original runs on whole random sequences; the result on the same in chunks of one frame, of a few and of ragged
sizes, one sequence after another in one session. Where they differ, values inside both tell the first node.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from rnn_lowering.compare.coverage import constant_outputs, untaken, zero_weights
from rnn_lowering.compare.feeds import take_feeds
from rnn_lowering.compare.result import (
    CHUNKED,
    COMPARE_ELSEWHERE,
    OPTIMIZATIONS,
    RunCheck,
    RunInput,
    Verification,
    over_all,
)
from rnn_lowering.compare.runner.process import Chunks, Outcome, Ran, Runner, SessionError
from rnn_lowering.compare.runner.session import (
    Session,
    deciding_values,
    echoing_nodes,
    has_fixed,
    nodes_by_output,
    repairs_note,
    session_of,
    session_with,
)
from rnn_lowering.compare.streams.outputs import chunks_differ, compare_beginning, compare_output
from rnn_lowering.compare.streams.sequences import BEGINNINGS, CHUNKS_OF, FEW, RAGGED, ChunkedSequence, Sequences
from rnn_lowering.compare.tolerance import allowance, compare, distance
from rnn_lowering.compare.whole import ModelComparison
from rnn_lowering.errors import ModelFileError, OptionError, UnsupportedError
from rnn_lowering.files.external_data import save
from rnn_lowering.files.reading import ModelSource, parse_file
from rnn_lowering.model.scopes import recurrent_nodes
from rnn_lowering.options import Check, Tolerance
from rnn_lowering.passes.lower import LowerRecurrentPass
from rnn_lowering.spec.constant_values import constant_of
from rnn_lowering.streaming.host.metadata import KEY, StreamPlan
from rnn_lowering.types import CHUNKS, ORIGINAL, Array, Progress, counter

_TOO_SHORT = "no sequence has two chunks (give longer inputs: --test-shape, --feed)"
_LOWERED_ORIGINAL = "lowered_original.onnx"

_SECONDS = 20.0
"""About as much is spent on a long sequence; where it would take more, a shorter one is compared."""

BRIEF_SECONDS = 0.5
"""As much may be spent on frames that tell nothing new."""


Expected = dict[str, dict[str, Array]]
"""The outputs of the original, by name, of each whole sequence."""

Steady = Mapping[str, Mapping[str, int]]


class StreamComparison:
    """One comparison: the files, the plan in the stream's metadata, and what runs them."""

    def __init__(
        self, original: ModelSource, stepped: ModelSource, runner: Runner, check: Check, progress: Progress | None
    ) -> None:
        self.runner, self.progress = runner, progress
        self.original, self.stepped = original, stepped
        self.ran = original
        self.graph = stepped.proto
        held = [entry.value for entry in self.graph.metadata_props if entry.key == KEY]
        if not held:
            raise ModelFileError(f"'{stepped.path}' is not a stream: its metadata has no {KEY}")
        self.plan = StreamPlan.from_json(held[0])
        self.axes = {name: axis for name, axis in self.plan.inputs.items() if axis is not None}
        ranks = {value.name: len(value.type.tensor_type.shape.dim) for value in original.proto.graph.input}
        for name, axis in self.axes.items():
            if ranks.get(name, 0) <= axis:
                raise OptionError(
                    f"the original has no input '{name}' with an axis {axis}",
                    hint="give the model that the stream was made from",
                )
        self.fixed = has_fixed(original.proto, self.axes)
        self.session = session_with(original, runner.folder / "opened.onnx", deciding_values, self.axes)
        self.whole = self.session.parsed
        misread = echoing_nodes(original.proto)
        self.check = take_feeds(check, [self.whole.graph], frames=True)
        self.stream = session_of(stepped, runner.folder, misread)
        self.sequences = Sequences(self.plan, self.whole, self.graph, runner, self.check)
        self.names = [value.name for value in original.proto.graph.output]
        self.taken: list[Mapping[str, Array]] = []
        self.notes = [repairs_note(misread)]
        self.unsteady: dict[str, int] = {}
        self.longest, self.seconds_per_frame = 0, 0.0

    def result(self) -> Verification:
        """Compare the stream with the original; raise the errors of `verify_stream`."""
        try:
            expected = self._run_whole([self.runner.write_feeds(feeds) for feeds in self.sequences.feeds()])
        except SessionError as error:
            if error.over_limit:
                return Verification("not verified", CHUNKED, reason=f"the original {error}")
            reason = f"onnxruntime cannot run the original: {error}"
            if not self._use_lowered_original():
                return Verification("not verified", CHUNKED, reason=f"{reason}; {COMPARE_ELSEWHERE}")
            self.notes.append(
                f"{reason}; it was lowered for whole sequences, each node compared with float64 NumPy"
            )
            return self.result()
        except UnsupportedError as error:  # the inputs would be too large
            return Verification("not verified", CHUNKED, reason=str(error))
        try:
            return self._compare_all(expected)
        except SessionError as error:
            if error.over_limit:
                return Verification("not verified", self._method(), reason=f"the stream {error}")
            return Verification("failed", self._method(), reason=f"onnxruntime cannot run the stream: {error}")

    def _compare_all(self, expected: Expected) -> Verification:
        """Compare random sequences, then a long one; note what they do not cover."""
        chunks = self.sequences.in_units(CHUNKS_OF) if self.plan.frames is None else ((self.plan.frames,),)
        sequences = [s for feed in expected for s in self.sequences.in_chunks(feed, chunks)]
        if not sequences:
            return Verification("not verified", CHUNKED, reason=_TOO_SHORT)
        runs = self._in_chunks(sequences, expected)
        if any(run.wrong for run in runs):
            runs, expected = self._as_defined(sequences, expected, runs)
        if any(run.wrong for run in runs):
            runs = self._in_chunks(sequences, expected, {f: self._steady(f, held) for f, held in expected.items()})
        self.longest = max(sum(s.sizes) for s in sequences)
        if not any(run.wrong for run in runs) and self._may_be_long():
            runs += self._compare_long()
        wrong = next((f"output '{c.name}': {c.reason}" for run in runs for c in run.outputs if not c.passed), "")
        if wrong:
            wrong += self._first_node(next(iter(expected)))
        else:
            self.notes += [
                f"a rounding of the inputs changes output '{name}' from frame {n} on: compared up to there"
                if n
                else f"a rounding of the inputs changes output '{name}': not compared in all runs"
                for name, n in self.unsteady.items()
            ]
            self.notes += [untaken(self.whole.graph, self.taken), *zero_weights(self._weights())]
            self.notes += constant_outputs(expected.values())
        reason = wrong or "; ".join(dict.fromkeys(filter(None, self.notes)))
        return Verification(
            "failed" if wrong else "verified", self._method(), len(runs), over_all(runs), reason, tuple(runs)
        )

    def _weights(self) -> Iterator[tuple[str, object, ir.TensorProtocol | None]]:
        for entry in recurrent_nodes(self.original.model):
            for symbol, value in zip("WR", entry.node.inputs[1:3], strict=False):
                yield symbol, entry.ref, None if value is None else constant_of(value, entry.opset)

    def _as_defined(
        self, sequences: Sequence[ChunkedSequence], expected: Expected, runs: list[RunCheck]
    ) -> tuple[list[RunCheck], Expected]:
        """Compare again without onnxruntime's optimizations, if they change the outputs of the original."""
        before, stream = self.session, self.stream
        with suppress(SessionError):
            self.session = replace(before, optimize=False)
            plain = self._run_whole([[feed] for feed in expected])
            tolerance = self.check.tolerance
            if any(compare(plain[f][n], a, tolerance)[1] for f, held in expected.items() for n, a in held.items()):
                again = self._in_chunks(sequences, plain)
                if any(run.wrong for run in again):
                    self.stream = replace(stream, optimize=False)
                    again = self._in_chunks(sequences, plain)
                if not any(run.wrong for run in again):
                    self.notes.append(OPTIMIZATIONS)
                    return again, plain
        self.session, self.stream = before, stream
        return runs, expected

    def _in_chunks(
        self, sequences: Sequence[ChunkedSequence], expected: Expected, steady: Steady | None = None
    ) -> list[RunCheck]:
        """Run the stream on chunks of sequences; compare the outputs with those of whole sequences.

        Args:
            steady: Up to which of its frames an output is compared, by name, of each whole sequence.
        """
        outcome = self._run_chunks(self.stream, sequences)
        self.seconds_per_frame = outcome.seconds / sum(sum(s.sizes) for s in sequences)
        runs = []
        for n, sequence in enumerate(sequences):
            parts = outcome.steps(n)
            checks = [
                compare_output(
                    *(self.plan, name, sequence.sizes, array, parts, self.check.tolerance),
                    (steady or {}).get(sequence.feed, {}).get(name),
                )
                for name, array in expected[sequence.feed].items()
            ]
            given = self.runner.feed(sequence.feed)
            inputs = tuple(RunInput.of(k, a, are_lengths=k in self.sequences.lengths) for k, a in given.items())
            runs.append(RunCheck(inputs, tuple(checks)))
        return runs

    def _may_be_long(self) -> bool:
        """Whether the user leaves the number of frames open."""
        return self.check.feeds is None and not self.axes.keys() & (self.check.shapes or {}).keys()

    def _compare_long(self) -> list[RunCheck]:
        """Compare one long sequence and its beginnings, which the original must compute as parts of the whole."""
        base = self._long_sequence()
        if base is None:
            return []
        feed, whole = base
        frames = self.sequences.count(self.runner.feed(feed))
        lengths = [n for n in map(self.sequences.in_calls, BEGINNINGS) if n < frames]
        shorter = {self.sequences.beginning(feed, n): n for n in lengths}
        expected = {feed: whole, **self._run_each(shorter)}
        sizes = {self.sequences.in_calls(n): self.sequences.in_units(sizes) for n, sizes in BEGINNINGS.items()}
        fixed = None if self.plan.frames is None else ((self.plan.frames,),)
        taken = [shorter.get(begun, frames) for begun in expected]
        self.longest = frames if fixed is None else self._called(taken)
        sequences = [
            sequence
            for begun in expected
            for n in [shorter.get(begun, frames)]
            for sequence in self.sequences.in_chunks(begun, fixed or sizes[n])
            if fixed is None or n == self.longest
        ]
        found = [*self._beginnings(expected, feed, {}), *self._in_chunks(sequences, expected)]
        if any(run.wrong for run in found):
            steady = self._steady(feed, whole)
            of_all = dict.fromkeys(expected, steady)
            found = [*self._beginnings(expected, feed, steady), *self._in_chunks(sequences, expected, of_all)]
        return found

    def _called(self, lengths: Sequence[int]) -> int:
        """Return the number of frames, one of these, that run through a stream with calls of a fixed size."""
        enough = self.sequences.enough(lengths)
        return max(n for n in lengths if n <= enough or n * self.seconds_per_frame <= BRIEF_SECONDS)

    def _long_sequence(self) -> tuple[str, dict[str, Array]] | None:
        """Return the longest sequence of those to try that the original takes, and its outputs; None for none."""
        refused = ""
        for frames in sorted({self.sequences.in_calls(n) for n in BEGINNINGS if n > self.longest}, reverse=True):
            if frames * self.seconds_per_frame > _SECONDS:
                refused = f"{frames} would take too long"
                continue
            try:
                ((feed, outputs),) = self._run_whole(
                    [self.runner.write_feeds(self.sequences.made(0, frames))]
                ).items()
            except (SessionError, UnsupportedError) as error:
                refused = f"the original does not run with {frames}: {error}"
                if isinstance(error, SessionError) and error.over_limit:
                    break
                continue
            if self.sequences.count(self.runner.feed(feed)) == frames:
                self.notes.append(
                    f"no sequence of more than {frames} frames was compared ({refused})" * bool(refused)
                )
                return feed, outputs
        self.notes.append(
            f"no sequence of more than {self.longest} frames was compared ({refused})" * bool(refused)
        )
        return None

    def _beginnings(self, expected: Expected, feed: str, steady: Mapping[str, int]) -> Iterator[RunCheck]:
        """Compare what the original computes of beginnings with the beginnings of what it computes of the whole."""
        for begun, outputs in expected.items():
            frames = self.sequences.count(self.runner.feed(begun))
            checks = [
                compare_beginning(
                    *(self.plan, name, frames, array, expected[feed][name], self.check.tolerance), steady.get(name)
                )
                for name, array in outputs.items()
                if self.plan.outputs.get(name) is not None and array.ndim == expected[feed][name].ndim
            ]
            if any(not check.passed for check in checks):
                yield RunCheck((), tuple(checks))

    def _steady(self, feed: str, outputs: Mapping[str, Array]) -> dict[str, int]:
        """Return the frame from which on an output is too unstable to compare, by name; 0 for one without frames.

        It is unstable where a rounding of the inputs moves it by more than a quarter of the tolerance.
        """
        if self.check.tolerance != Tolerance():
            return {}
        rng = np.random.default_rng(0)
        given = dict(self.runner.feed(feed))
        for name, array in given.items():
            if array.dtype.kind == "f":
                moved = 1 + rng.choice([-0.5, 0.5], array.shape) * np.finfo(array.dtype).eps
                given[name] = (array * moved).astype(array.dtype)
        try:
            (moved_outputs,) = self._run_whole([[self.runner.write_feed(given)]]).values()
        except SessionError:
            return {}
        found = {}
        for name, array in outputs.items():
            axis = self.plan.outputs.get(name)
            far = distance(array, moved_outputs[name]) > allowance(array, self.check.tolerance) / 4
            if far.any():
                others = tuple(a for a in range(far.ndim) if a != axis)
                found[name] = 0 if axis is None else int(far.any(axis=others).argmax())
                self.unsteady[name] = min(found[name], self.unsteady.get(name, found[name]))
        return found

    def _use_lowered_original(self) -> bool:
        """Use the original with lowered nodes instead, if these agree with float64; return whether it was done."""
        if self.session.model.name == _LOWERED_ORIGINAL or self.fixed:
            return False
        path = self.runner.folder / _LOWERED_ORIGINAL
        model = self.original.new_model()
        LowerRecurrentPass("loop")(model)
        save(model, path, f"{path.name}.data")
        lowered, check = parse_file(path), replace(self.check, feeds=None, shapes=None)
        if not ModelComparison(self.original, lowered, self.runner, check, None).result():
            return False
        self.session, self.ran = Session(path), lowered
        return True

    def _method(self) -> str:
        sizes = f"of 1, of {FEW} and of {', '.join(map(str, RAGGED))} frames"
        if self.plan.frames is not None:
            sizes = f"of {self.plan.frames} frame{'s'[: self.plan.frames > 1]}"
        elif self.plan.unit > 1:
            sizes = sizes.replace(" frames", f" times {self.plan.unit} frames")
        return f"{CHUNKED} {sizes}" + (f", sequences of up to {self.longest} frames" if self.longest else "")

    def _run_whole(self, groups: Sequence[Sequence[str]]) -> Expected:
        """Return the outputs of the original by name, by the feed of each run that it accepts."""
        ran = counter(self.progress, ORIGINAL, len(groups))
        self.session, outcome = self._run("the original", self.session, groups, ran)
        accepted = [run for run in outcome.runs if not run.error]
        errors = [run.error for run in outcome.runs if run.error]
        if not accepted or (errors and self.check.feeds is not None):
            raise SessionError(errors[0] if errors else "no runs were requested")
        found = {}
        for run in accepted:
            outputs = run.outputs()
            named = {name: outputs[f"{n}:0"] for n, name in enumerate(outcome.names) if f"{n}:0" in outputs}
            self.taken.append({**self.runner.feed(run.feed), **named})
            found[run.feed] = {name: named[name] for name in self.names if name in named}
        return found

    def _run_each(self, feeds: Collection[str]) -> Expected:
        """Return the outputs of the original by name, by each of these feeds that it takes."""
        with suppress(SessionError):
            return self._run_whole([[feed] for feed in feeds])
        found: Expected = {}
        for feed in feeds:  # it may crash with one of them
            with suppress(SessionError):
                found |= self._run_whole([[feed]])
        return found

    def _run_chunks(self, session: Session, sequences: Sequence[ChunkedSequence]) -> Outcome:
        chunks = Chunks(
            [sequence.sizes for sequence in sequences],
            self.axes,
            sorted(self.sequences.lengths),
            {state.output: state.input for state in self.plan.states},
            self.names if session is self.stream else (),
        )
        ran = counter(self.progress, CHUNKS, len(sequences))
        used, outcome = self._run("the stream", session, [[s.started] for s in sequences], ran, chunks)
        self.stream = used if session is self.stream else self.stream
        for run in outcome.runs:
            if run.error:
                raise SessionError(run.error)
        return outcome

    def _run(
        self,
        what: str,
        session: Session,
        groups: Sequence[Sequence[str]],
        ran: Ran,
        chunks: Chunks | None = None,
    ) -> tuple[Session, Outcome]:
        """Run a model, without optimizations if onnxruntime fails with them; return the session that ran."""
        try:
            return session, self.runner.run(session, groups, ran, chunks=chunks)
        except SessionError as error:
            if error.over_limit or not session.optimize:
                raise
            plain = replace(session, optimize=False)
            try:
                outcome = self.runner.run(plain, groups, chunks=chunks)
            except SessionError:
                raise error from None
            self.notes.append(f"{what} runs only with onnxruntime's optimizations disabled: {error}")
            return plain, outcome

    def _first_node(self, feed: str) -> str:
        """Name the first node of the original whose frames differ from those of the chunks."""
        sequence = next(self.sequences.in_chunks(feed, ((self.plan.frames or self.plan.unit,),)))
        try:
            whole = session_with(self.ran, self.runner.folder / "whole_values.onnx", nodes_by_output, self.axes)
            inner = session_with(self.stepped, self.runner.folder / "chunk_values.onnx", nodes_by_output)
            names, others = nodes_by_output(whole.parsed), nodes_by_output(inner.parsed)
            (values,) = self.runner.run(whole, [[feed]], chunks=Chunks([[1]])).steps(0)
            parts = self._run_chunks(inner, [sequence]).steps(0)
        except (SessionError, ValueError, OSError):
            return ""
        for name in (n for n in names if n in others and n in values):
            arrays = [part[name] for part in parts]
            if chunks_differ(values[name], arrays, self.check.tolerance, self.plan.frames_late):
                return f"; the first node that differs: {names[name]}"
        return ""
