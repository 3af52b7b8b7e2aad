"""Compare a stream, chunk by chunk, with the original on whole sequences.

The original runs on whole random sequences; the result on the same in chunks of one frame, of a few and of ragged
sizes, one sequence after another in one session. Where they differ, values inside both tell the first node.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from itertools import accumulate, cycle
from time import monotonic

import numpy as np
import onnx
import onnx_ir as ir

from rnn_lowering import types
from rnn_lowering.compare.coverage import constant_outputs, runs_for, untaken, zero_weights
from rnn_lowering.compare.feeds import candidate_feeds, length_inputs, take_feeds
from rnn_lowering.compare.process import Chunks, Outcome, Ran, Runner, SessionError
from rnn_lowering.compare.result import (
    CHUNKED,
    COMPARE_ELSEWHERE,
    OPTIMIZATIONS,
    OutputCheck,
    RunCheck,
    RunInput,
    Verification,
    over_all,
)
from rnn_lowering.compare.session import (
    Session,
    echoing_nodes,
    has_fixed,
    repairs_note,
    session_of,
    session_with_all_values,
    session_with_open_axes,
)
from rnn_lowering.compare.tolerance import allowance, compare, distance
from rnn_lowering.compare.verify import Given, as_file, compare_models
from rnn_lowering.errors import ModelFileError, OptionError, UnsupportedError, boundary
from rnn_lowering.files.external_data import save
from rnn_lowering.files.reading import ModelSource, parse_file
from rnn_lowering.limits import limited
from rnn_lowering.model.fixed_inputs import recorded
from rnn_lowering.model.scopes import recurrent_nodes
from rnn_lowering.options import Check, Tolerance, check_of
from rnn_lowering.passes.lower import LowerRecurrentPass
from rnn_lowering.spec.constants import constant_of
from rnn_lowering.streaming.metadata import KEY, State, StreamPlan
from rnn_lowering.types import CHUNKS, ORIGINAL, Array, Progress, counter, given_progress

_TOO_SHORT = "no sequence has two chunks (give longer inputs: --test-shape, --feed)"
_LOWERED_ORIGINAL = "lowered_original.onnx"

_FRAMES = (19, 7, 50)
"""Of the random sequences, where the model leaves them open."""

_FEW, _RAGGED = 5, (3, 1, 4, 7, 2)
_CHUNKS = ((1,), (_FEW,), _RAGGED)
"""Sizes of the chunks of these, in turn."""

_BEGINNINGS = {
    7: (),
    19: (),
    50: (),
    210: ((6,), tuple(range(2, 21))),
    310: ((8,), (310,)),
    1009: ((16,), (250, 7, 100)),
}
"""Frames of one long sequence and of its beginnings, and the sizes of their chunks."""

_SECONDS = 20.0
"""About as much is spent on a long sequence; where it would take more, a shorter one is compared."""


@dataclass(frozen=True)
class _Sequence:
    """A whole sequence by the name of its inputs, the same with the states that the first chunk receives, and the
    number of frames of each chunk."""

    feed: str
    started: str
    sizes: tuple[int, ...]


Expected = dict[str, dict[str, Array]]
"""The outputs of the original, by name, of each whole sequence."""

Steady = Mapping[str, Mapping[str, int]]


def verify_stream(
    original: Given,
    stepped: Given,
    *,
    check: Check | None = None,
    trust_external_data: bool = False,
    progress: Progress | None = None,
) -> Verification:
    """Run the original on whole sequences and a stream on their chunks, and compare all outputs of the original.

    Args:
        original: A model or its path.
        stepped: The stream that was made of it, or its path.
        check: How they are compared: `runs` is the number of sequences.
        trust_external_data: Read data files outside the folders of the models.
        progress: Called as progress(phase, done, total) when a phase begins and after each run.

    Returns:
        A result that is true only when every sequence agreed in every chunking; `method` names these.

    Raises:
        ModelFileError: `stepped` is not a stream.

    Examples:
        >>> bool(rl.verify_stream(model, rl.lower(model, stream="seq"), check=rl.Check(runs=1)))
        True
    """
    check = check_of(check, {}, verify_stream)
    trust = types.flag("trust_external_data", trust_external_data)
    progress = given_progress(progress)
    with boundary(), limited(check.max_bytes), Runner(check.timeout) as runner, ExitStack() as pipes:
        first, second = (
            as_file(model, runner.folder / f"model{n}.onnx", trust, pipes)
            for n, model in enumerate(
                given if isinstance(given, ModelSource) else types.model_or_path(name, given)
                for name, given in (("original", original), ("stepped", stepped))
            )
        )
        return _Comparison(first, second, runner, check, progress).result()


class _Comparison:
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
        self.session, self.whole = session_with_open_axes(original, runner.folder, self.axes)
        misread = echoing_nodes(original.proto)
        self.check = take_feeds(check, [self.whole.graph], frames=True)
        self.stream = session_of(stepped, runner.folder, misread)
        self.lengths = {name for name in length_inputs(self.whole.graph) if name not in self.axes}
        self.names = [value.name for value in original.proto.graph.output]
        self.taken: list[Mapping[str, Array]] = []
        self.notes = [repairs_note(misread)]
        self.unsteady: dict[str, int] = {}
        self.longest, self.seconds_per_frame = 0, 0.0

    def result(self) -> Verification:
        """Compare."""
        try:
            expected = self._run_whole([[self.runner.write_feed(f) for f in feeds] for feeds in self._feeds()])
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
        """Compare the random sequences, then a long one; say what that cannot show."""
        chunks = self._in_units(_CHUNKS) if self.plan.frames is None else ((self.plan.frames,),)
        sequences = [s for feed in expected for s in self._sequences(feed, chunks)]
        if not sequences:
            return Verification("not verified", CHUNKED, reason=_TOO_SHORT)
        start = monotonic()
        runs = self._in_chunks(sequences, expected)
        self.seconds_per_frame = (monotonic() - start) / sum(sum(s.sizes) for s in sequences)
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
        self, sequences: Sequence[_Sequence], expected: Expected, runs: list[RunCheck]
    ) -> tuple[list[RunCheck], Expected]:
        """Compare without onnxruntime's optimizations where these change what the original computes."""
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
        self, sequences: Sequence[_Sequence], expected: Expected, steady: Steady | None = None
    ) -> list[RunCheck]:
        """Run the stream on chunks of sequences and compare their outputs with those of the whole.

        Args:
            steady: Up to which of its frames an output is compared, by name, of each whole sequence.
        """
        outcome = self._run_chunks(self.stream, sequences)
        runs = []
        for n, sequence in enumerate(sequences):
            parts = outcome.steps(n)
            checks = [
                self._compare(name, sequence, array, parts, (steady or {}).get(sequence.feed, {}).get(name))
                for name, array in expected[sequence.feed].items()
            ]
            given = self.runner.feed(sequence.feed)
            inputs = tuple(RunInput.of(k, a, are_lengths=k in self.lengths) for k, a in given.items())
            runs.append(RunCheck(inputs, tuple(checks)))
        return runs

    def _may_be_long(self) -> bool:
        """Whether the number of frames is ours to choose."""
        return self.check.feeds is None and not self.axes.keys() & (self.check.shapes or {}).keys()

    def _compare_long(self) -> list[RunCheck]:
        """Compare one long sequence and its beginnings, which the original must compute as parts of the whole."""
        base = self._long_sequence()
        if base is None:
            return []
        feed, whole = base
        frames = self._count(self.runner.feed(feed))
        shorter = {self._beginning(feed, n): n for n in map(self._in_calls, _BEGINNINGS) if n < frames}
        expected = {feed: whole}
        for beginning in shorter:
            with suppress(SessionError):  # a length that the original does not take
                expected |= self._run_whole([[beginning]])
        sizes = {self._in_calls(n): self._in_units(sizes) for n, sizes in _BEGINNINGS.items()}
        sequences = [
            sequence
            for begun in expected
            for n in [shorter.get(begun, frames)]
            for sequence in self._sequences(begun, sizes[n] if self.plan.frames is None else ((self.plan.frames,),))
            if self.plan.frames is None or n == frames
        ]
        self.longest = frames
        found = [*self._beginnings(expected, feed, {}), *self._in_chunks(sequences, expected)]
        if any(run.wrong for run in found):
            steady = self._steady(feed, whole)
            of_all = dict.fromkeys(expected, steady)
            found = [*self._beginnings(expected, feed, steady), *self._in_chunks(sequences, expected, of_all)]
        return found

    def _long_sequence(self) -> tuple[str, dict[str, Array]] | None:
        """Return the longest sequence of those to try that the original takes, and its outputs; None for none."""
        refused = ""
        for frames in sorted({self._in_calls(n) for n in _BEGINNINGS if n > self.longest}, reverse=True):
            if frames * self.seconds_per_frame > _SECONDS:
                refused = f"{frames} would take too long"
                continue
            try:
                ((feed, outputs),) = self._run_whole(
                    [[self.runner.write_feed(f) for f in self._made(0, frames)]]
                ).items()
            except (SessionError, UnsupportedError) as error:
                refused = f"the original does not run with {frames}: {error}"
                if isinstance(error, SessionError) and error.over_limit:
                    break
                continue
            if self._count(self.runner.feed(feed)) == frames:
                self.notes.append(
                    f"no sequence of more than {frames} frames was compared ({refused})" * bool(refused)
                )
                return feed, outputs
        self.notes.append(
            f"no sequence of more than {self.longest} frames was compared ({refused})" * bool(refused)
        )
        return None

    def _in_calls(self, frames: int) -> int:
        """Round up to whole chunks; of units, where these may have any number."""
        if self.plan.frames is None:
            return frames * self.plan.unit
        return -(-frames // self.plan.frames) * self.plan.frames

    def _in_units(self, chunks: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(n * self.plan.unit for n in sizes) for sizes in chunks)

    def _beginning(self, feed: str, frames: int) -> str:
        given = self.runner.feed(feed)
        cut = {name: given[name].take(range(frames), axis) for name, axis in self.axes.items()}
        return self.runner.write_feed(self._with_lengths_in_range({**given, **cut}))

    def _beginnings(self, expected: Expected, feed: str, steady: Mapping[str, int]) -> Iterator[RunCheck]:
        """Compare what the original computes of beginnings with the beginnings of what it computes of the whole."""
        for begun, outputs in expected.items():
            frames = self._count(self.runner.feed(begun))
            checks = []
            for name, array in outputs.items():
                axis = self.plan.outputs.get(name)
                if axis is None or begun == feed or array.ndim != expected[feed][name].ndim:
                    continue
                sure = (
                    self.plan.frames_of(name, frames) - self.plan.delay.get(name, 0) + self.plan.short.get(name, 0)
                )
                count = min(array.shape[axis], max(sure, 0), steady.get(name, array.shape[axis]))
                part, beginning = (a.take(range(count), axis) for a in (expected[feed][name], array))
                largest, reason = compare(part, beginning, self.check.tolerance)
                told = f"the original computes the first {frames} frames differently if more follow: {reason}"
                checks.append(OutputCheck(name, largest, not reason, told if reason else ""))
            if any(not check.passed for check in checks):
                yield RunCheck((), tuple(checks))

    def _steady(self, feed: str, outputs: Mapping[str, Array]) -> dict[str, int]:
        """Return by name up to which frame an output is compared, where a rounding of the inputs moves it by a good
        part of the tolerance; 0 for one without frames."""
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
        if not compare_models(self.original, path, check=replace(self.check, feeds=None, shapes=None)):
            return False
        self.session, self.ran = Session(path), parse_file(path)
        return True

    def _method(self) -> str:
        sizes = f"of 1, of {_FEW} and of {', '.join(map(str, _RAGGED))} frames"
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

    def _feeds(self) -> Iterator[Iterator[dict[str, Array]]]:
        """Yield the alternative inputs of each run."""
        given = self.check.feeds
        runs = runs_for(self.whole.graph, self.check.runs) if given is None else len(given)
        for run in range(runs):
            yield self._made(run, self._frames(run), None if given is None else given[run])

    def _made(self, run: int, frames: int, given: Mapping[str, Array] | None = None) -> Iterator[dict[str, Array]]:
        constants = recorded(ir.from_proto(self.whole), ir.from_proto(self.graph))
        fixed = {**(given or {}), **constants}
        for feed in candidate_feeds(
            self.whole, run, self.check.seed, self._declared(frames), fixed, self.check.shapes
        ):
            yield self._with_lengths_in_range(self._with_an_end(feed))

    def _with_an_end(self, feed: Mapping[str, Array]) -> Mapping[str, Array]:
        """Return the feed with zeros in its last frames, as a host gives them to a stream that is late."""
        late = self.plan.frames_late
        if not late or self.check.feeds is not None or self._count(feed) <= late:
            return feed
        ended = {name: array.copy() for name, array in feed.items()}
        for name, axis in self.axes.items():
            ended[name][(slice(None),) * axis + (slice(-late, None),)] = 0
        return ended

    def _declared(self, frames: int) -> onnx.ModelProto:
        """The original's inputs as the stream has them, which may have fixed sizes, with so many frames."""
        fixed = {value.name: value for value in self.graph.graph.input}
        declared = onnx.ModelProto()
        declared.graph.input.extend(fixed.get(value.name, value) for value in self.whole.graph.input)
        for value in declared.graph.input:
            axis = self.plan.inputs.get(value.name)
            if axis is not None:
                value.type.tensor_type.shape.dim[axis].dim_value = frames
        return declared

    def _frames(self, run: int) -> int:
        fixed = self.plan.frames
        if fixed is None:
            return self._in_calls(_FRAMES[run % len(_FRAMES)]) + self.plan.frames_late
        return fixed * max(2, min(4 + run, 64 // fixed)) + self.plan.frames_late

    def _with_lengths_in_range(self, feed: Mapping[str, Array]) -> dict[str, Array]:
        """Return the feed with lengths that are at most the number of frames."""
        frames = self._count(feed)
        return {k: np.minimum(a, frames).astype(a.dtype) if k in self.lengths else a for k, a in feed.items()}

    def _count(self, feed: Mapping[str, Array]) -> int:
        return next(int(feed[name].shape[axis]) for name, axis in self.plan.inputs.items() if axis is not None)

    def _sequences(self, feed: str, chunks: Sequence[Sequence[int]]) -> Iterator[_Sequence]:
        """Yield one whole sequence in chunks of several sizes."""
        given = self.runner.feed(feed)
        frames, known = self._count(given), self._sizes(given)
        chunkings = dict.fromkeys(chunk_sizes(frames, sizes) for sizes in chunks)
        states = {s.input: first_state(s, known) for s in self.plan.states if s.input not in given}
        taken = {value.name: given[value.name] for value in self.graph.graph.input if value.name in given}
        started = self.runner.write_feed({**taken, **states})
        for sizes in chunkings:
            fits = frames % (self.plan.frames or self.plan.unit) == 0
            if fits and (self.plan.frames is None or len(sizes) > 1):
                yield _Sequence(feed, started, sizes)

    def _sizes(self, given: Mapping[str, Array]) -> dict[str, int]:
        """The sizes of open dimensions by name."""
        return {
            dim.dim_param: size
            for value in self.graph.graph.input
            if value.name in given
            for dim, size in zip(value.type.tensor_type.shape.dim, given[value.name].shape, strict=True)
            if dim.dim_param
        }

    def _run_chunks(self, session: Session, sequences: Sequence[_Sequence]) -> Outcome:
        chunks = Chunks(
            [sequence.sizes for sequence in sequences],
            self.axes,
            sorted(self.lengths),
            {state.output: state.input for state in self.plan.states},
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
        """Run, without onnxruntime's optimizer where that crashes or refuses the model; return how it ran, too."""
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

    def _compare(
        self,
        name: str,
        sequence: _Sequence,
        expected: Array,
        parts: Sequence[Mapping[str, Array]],
        steady: int | None = None,
    ) -> OutputCheck:
        axis = self.plan.outputs.get(name)
        arrays = [part[name] for part in parts if name in part]
        if len(arrays) < len(parts):
            return OutputCheck(name, np.inf, False, "the stream does not return it")
        if axis is not None and (late := self.plan.delay.get(name, 0)):
            frames = sum(sequence.sizes)
            if expected.shape[axis] != self.plan.frames_of(name, frames):
                return OutputCheck(name, np.inf, False, f"it has {expected.shape[axis]} frames of {frames}")
            arrays = without_first(arrays, axis, late)
            expected = expected.take(range(sum(array.shape[axis] for array in arrays)), axis, mode="clip")
        try:
            got = arrays[-1] if axis is None else np.concatenate(arrays, axis)
        except ValueError as error:  # the axis is wrong
            return OutputCheck(name, np.inf, False, f"its chunks do not fit together along axis {axis}: {error}")
        if steady is not None and expected.shape == got.shape:
            kept = (slice(0),) if axis is None else (*[slice(None)] * axis, slice(steady))
            expected, got = expected[kept], got[kept]
        largest, reason = compare(expected, got, self.check.tolerance)
        if reason and axis is not None:
            reason = f"{reason}; {first_difference(expected, arrays, axis, sequence.sizes, self.check.tolerance)}"
        return OutputCheck(name, largest, not reason, reason)

    def _first_node(self, feed: str) -> str:
        """Name the first node of the original whose frames differ from those of the chunks."""
        sequence = next(self._sequences(feed, ((self.plan.frames or self.plan.unit,),)))
        try:
            whole, names = session_with_all_values(self.ran, self.runner.folder, "whole", self.axes)
            inner, others = session_with_all_values(self.stepped, self.runner.folder, "chunks", {})
            (values,) = self.runner.run(whole, [[feed]], chunks=Chunks([[1]])).steps(0)
            parts = self._run_chunks(inner, [sequence]).steps(0)
        except (SessionError, ValueError, OSError):
            return ""
        for name in (n for n in names if n in others and n in values):
            arrays = [part[name] for part in parts]
            if chunks_differ(values[name], arrays, self.check.tolerance, self.plan.frames_late):
                return f"; the first node that differs: {names[name]}"
        return ""


def chunk_sizes(frames: int, sizes: Sequence[int]) -> tuple[int, ...]:
    """Return the sizes of chunks, these in turn, the last one as much as is left."""
    chunks: list[int] = []
    for size in cycle(sizes):
        if sum(chunks) == frames:
            break
        chunks.append(min(size, frames - sum(chunks)))
    return tuple(chunks)


def first_state(state: State, known: Mapping[str, int]) -> Array:
    """Return what the first chunk receives, with the sizes of open dimensions by name."""
    return state.first(known)


def first_difference(
    expected: Array, arrays: Sequence[Array], axis: int, sizes: Sequence[int], tolerance: Tolerance
) -> str:
    """Say from which frame on the chunks differ."""
    ends = list(accumulate((array.shape[axis] for array in arrays), initial=0))
    for n, array in enumerate(arrays):
        part = expected.take(range(ends[n], min(ends[n + 1], expected.shape[axis])), axis)
        if compare(part, array, tolerance)[1]:
            text = ", ".join(map(str, sizes[:6])) + (", ..." if len(sizes) > 6 else "")
            return f"first in step {n + 1} of chunks of {text} frames, from frame {sum(sizes[:n])} on"
    return ""


def without_first(arrays: Sequence[Array], axis: int, count: int) -> list[Array]:
    """Return chunks without so many frames at the start of the first ones."""
    kept = []
    for array in arrays:
        kept.append(array[(slice(None),) * axis + (slice(min(count, array.shape[axis]), None),)])
        count -= min(count, array.shape[axis])
    return kept


def chunks_differ(whole: Array, arrays: Sequence[Array], tolerance: Tolerance, late: int = 0) -> bool:
    """Whether chunks of an inner value differ from the whole, along the axis that they add up to.

    Args:
        late: By how many frames it may be late.
    """
    if any(array.ndim != whole.ndim for array in arrays) or whole.dtype.kind != "f":
        return False
    axes = [a for a in range(whole.ndim) if sum(array.shape[a] for array in arrays) == whole.shape[a] != 1]
    others = [a for a in axes if any(array.shape[a] != whole.shape[a] for array in arrays)]
    if len(others) != 1:
        return False
    joined = np.concatenate(arrays, others[0])
    kept = np.arange(joined.shape[others[0]])
    return all(
        compare(whole.take(kept[: len(kept) - n], others[0]), joined.take(kept[n:], others[0]), tolerance)[1]
        for n in range(min(late + 1, len(kept)))
    )
