"""Compare a stream, chunk by chunk, with the original on whole sequences, and name the first node that differs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from rnn_lowering.compare.coverage import constant_outputs, undetermined_outputs, untaken_branches, zero_weights
from rnn_lowering.compare.judgement import compare, least_precise
from rnn_lowering.compare.options import Check, Tolerance
from rnn_lowering.compare.result import (
    CHUNKED,
    COMPARE_ELSEWHERE,
    OPTIMIZATIONS,
    RunCheck,
    RunInput,
    Verification,
    over_all,
)
from rnn_lowering.compare.rounding import UncertainIntegers
from rnn_lowering.compare.runs.runner import Chunks, Outcome, Runner, SessionError
from rnn_lowering.compare.runs.sessions import Session, has_fixed, nodes_by_output, session_with
from rnn_lowering.compare.streams.sequences import (
    BEGINNINGS,
    CHUNKS_OF,
    FEW,
    RAGGED,
    ChunkedSequence,
    Expected,
    StreamRuns,
)
from rnn_lowering.compare.streams.stream_output import StreamOutput
from rnn_lowering.compare.whole import ModelComparison
from rnn_lowering.errors import UnsupportedError, counted
from rnn_lowering.facts.constants import constant_of
from rnn_lowering.files.external_data import save
from rnn_lowering.files.reading import ModelSource, parse_file
from rnn_lowering.model.scopes import recurrent_nodes
from rnn_lowering.passes.lower import LowerRecurrentPass
from rnn_lowering.types import Array, Progress

_TOO_SHORT = "no sequence is long enough for two chunks (give longer inputs: --test-shape, --test-input)"
_ENDS = "no sequence is long enough for two chunks: it has at most {} (a larger --max-frames, or fewer per call)"
_LOWERED_ORIGINAL, _LOWERED_STREAM = "lowered_original.onnx", "lowered_stream.onnx"

_SECONDS = 20.0
"""Maximum seconds for a long sequence; if it would take more, a shorter one runs."""

BRIEF_SECONDS = 0.5
"""Beyond the number of frames that can reveal a fault, go on only if the run takes at most this many seconds."""


_Steady = Mapping[str, Mapping[str, int]]
"""The number of frames to compare, by output, for each whole sequence."""


def _lowered(model: ir.Model, path: Path) -> ModelSource:
    """Return a model file with loops in place of the recurrent nodes of a model."""
    LowerRecurrentPass("loop")(model)
    save(model, path, f"{path.name}.data")
    return parse_file(path)


class StreamComparison:
    """A comparison of a stream with the original.

    Attributes:
        runnable: The original, or what it was lowered to because onnxruntime does not run it.
        precision: By output the least precise type on the way to it.
        branches: The branches of the original.
        unsteady: Outputs that a rounding of the inputs changes -> the first such frame.
        until: By whole sequence how many frames of such outputs were compared.
        uncertain: The integers that may be one unit more or less.
        longest: The number of frames of the longest sequence that is compared.
        seconds_per_frame: The time of the stream in the last run.
    """

    def __init__(
        self, original: ModelSource, stepped: ModelSource, runner: Runner, check: Check, progress: Progress | None
    ) -> None:
        self.runner = runner
        self.original, self.stepped, self.runnable = original, stepped, original
        self.runs = StreamRuns(original, stepped, runner, check, progress)
        self.plan, self.sequences, self.check = self.runs.plan, self.runs.sequences, self.runs.check
        self.precision = least_precise(original.proto)
        self.branches = self.runs.original.branches
        self.unsteady: dict[str, int] = {}
        self.until: dict[str, Mapping[str, int]] = {}
        self.uncertain = UncertainIntegers(runner, self.check.tolerance, self.runs.axes)
        self.longest, self.seconds_per_frame = 0, 0.0

    def result(self) -> Verification:
        """Compare the stream with the original; raise the errors of `verify_stream`."""
        if self.runs.computes_declared_frames():
            self.sequences.fixed = self.sequences.declared
        try:
            expected = self.runs.whole([self.runner.write_feeds(feeds) for feeds in self.sequences.feeds()])
        except SessionError as error:
            if error.over_limit:
                return self._not_verified(f"the original {error}", over_limit=True)
            if name := _bfloat16_of(self.stepped.proto.graph):
                return self._not_verified(f"onnxruntime passes no bfloat16 to or from Python, which '{name}' is")
            reason = f"onnxruntime cannot run the original: {error}"
            if not self._use_lowered_original():
                if self.check.feeds is None and (fault := self._fault_of_all_calls()):
                    return Verification("failed", CHUNKED, reason=f"the stream fails at every call: {fault}")
                return self._not_verified(f"{reason}; {COMPARE_ELSEWHERE}")
            self.runs.notes.append(
                f"{reason}; it was lowered for whole sequences, each node compared with float64 NumPy"
            )
            return self.result()
        except UnsupportedError as error:  # the inputs would be too large
            return self._not_verified(str(error))
        try:
            return self._compare_all(expected)
        except SessionError as error:
            if error.over_limit:
                return self._not_verified(f"the stream {error}", over_limit=True)
            if self._use_lowered_stream():
                return self._compare_all(expected)
            return Verification("failed", self._method(), reason=f"onnxruntime cannot run the stream: {error}")

    def _too_short(self) -> str:
        most, call = self.plan.max_frames, self.plan.frames or self.plan.unit
        return _TOO_SHORT if most is None or most >= 2 * call else _ENDS.format(counted(most, "frame"))

    def _not_verified(self, reason: str, *, over_limit: bool = False) -> Verification:
        return Verification("not verified", CHUNKED, reason=reason, over_limit=over_limit)

    def _compare_all(self, expected: Expected) -> Verification:
        """Compare random sequences, then a long one; note what they do not show."""
        chunks = self.sequences.in_units(CHUNKS_OF) if self.plan.frames is None else ((self.plan.frames,),)
        sequences = [s for feed in expected for s in self.sequences.in_chunks(feed, chunks)]
        if not sequences:
            return self._not_verified(self._too_short())
        runs, expected = self._judged(sequences, expected)
        self.longest = max(sum(s.sizes) for s in sequences)
        if not _wrong(runs) and self._may_be_long():
            runs += self._compare_long()
        wrong = first_wrong(runs)
        if not wrong and self._may_be_long() and self._goes_on():
            wrong = f"runs on after frame {self.plan.max_frames}, the last one"
            status, reason = "failed", wrong
        elif wrong:
            status, reason = "failed", wrong + self._first_node(next(iter(expected)))
        elif fault := self.runs.error_without_optimizations(sequences[0]):
            status, reason = "failed", fault
        elif not any(map(self._was_compared, next(iter(expected.values())))):
            return self._not_verified("; ".join(filter(None, self._not_covered(expected))))
        else:
            integers = self.uncertain.note(over_all(runs))
            notes = [integers, *self.runs.notes, *self._not_covered(expected)]
            status, reason = "verified", "; ".join(dict.fromkeys(filter(None, notes)))
        return Verification(status, self._method(), len(runs), over_all(runs), reason, tuple(runs))

    def _judged(self, sequences: Sequence[ChunkedSequence], expected: Expected) -> tuple[list[RunCheck], Expected]:
        """Compare chunks; if outputs differ, again with uncertain integers, without optimizations, and up to the
        frames that a rounding of the inputs changes. Return the runs, and what they were compared with."""
        runs = self._in_chunks(sequences, expected)
        if _wrong(runs) and self._find_uncertain_integers(expected, runs):
            runs = self._in_chunks(sequences, expected)
        if _wrong(runs):
            runs, expected = self._as_defined(sequences, expected, runs)
        if _wrong(runs):
            steady = {feed: self._steady(feed, outputs) for feed, outputs in expected.items()}
            runs = self._in_chunks(sequences, expected, steady)
        return runs, expected

    def _not_covered(self, expected: Expected) -> Iterator[str]:
        """Yield notes on what the comparison does not show."""
        random = undetermined_outputs(self.original.proto)
        for name, n in self.unsteady.items():
            if not self._was_compared(name):
                yield f"output '{name}' was not compared: {random.get(name, 'rounding the inputs changes it')}"
                continue
            where = f" from frame {n} on: compared up to there" if n else ": not compared in all runs"
            yield f"rounding the inputs changes output '{name}'{where}"
        yield untaken_branches(self.branches, self.runs.values)
        yield from zero_weights(self._weights())
        yield from constant_outputs(expected.values())

    def _was_compared(self, name: str) -> bool:
        """Whether frames of an output were compared in any run."""
        return any(frames.get(name) != 0 for frames in self.until.values())

    def _weights(self) -> Iterator[tuple[str, object, ir.TensorProtocol | None]]:
        for entry in recurrent_nodes(self.original.model):
            for symbol, value in zip("WR", entry.node.inputs[1:3], strict=False):
                yield symbol, entry.ref, None if value is None else constant_of(value, entry.opset)

    def _as_defined(
        self, sequences: Sequence[ChunkedSequence], expected: Expected, runs: list[RunCheck]
    ) -> tuple[list[RunCheck], Expected]:
        """Compare again without onnxruntime's optimizations, if they change the outputs of the original."""
        original, stream = self.runs.original, self.runs.stream
        with suppress(SessionError):
            self.runs.original = replace(original, optimize=False)
            plain = self.runs.whole([[feed] for feed in expected])
            tolerance = self.check.tolerance
            outputs = [
                (plain[feed][n], array) for feed, by_name in expected.items() for n, array in by_name.items()
            ]
            if any(compare(without, array, tolerance)[1] for without, array in outputs):
                again = self._in_chunks(sequences, plain)
                if _wrong(again):
                    self.runs.stream = replace(stream, optimize=False)
                    again = self._in_chunks(sequences, plain)
                if not _wrong(again):
                    self.runs.notes.append(OPTIMIZATIONS)
                    return again, plain
        self.runs.original, self.runs.stream = original, stream
        return runs, expected

    def _in_chunks(
        self, sequences: Sequence[ChunkedSequence], expected: Expected, steady: _Steady | None = None
    ) -> list[RunCheck]:
        """Run the stream on chunks of sequences; compare the outputs with those of whole sequences."""
        outcome = self._run_in_chunks(sequences)
        self.seconds_per_frame = outcome.seconds / sum(sum(s.sizes) for s in sequences)
        runs = []
        for n, sequence in enumerate(sequences):
            parts, until = outcome.steps(n), (steady or {}).get(sequence.feed, {})
            self.until[sequence.feed] = until
            checks = [
                self._output(name, sequence.feed).compare_chunks(array, parts, sequence.sizes, until.get(name))
                for name, array in expected[sequence.feed].items()
            ]
            given = self.runner.feed(sequence.feed)
            inputs = tuple(RunInput.of(k, a, are_lengths=k in self.sequences.lengths) for k, a in given.items())
            runs.append(RunCheck(inputs, tuple(checks)))
        return runs

    def _run_in_chunks(self, sequences: Sequence[ChunkedSequence]) -> Outcome:
        return self.runs.chunks(sequences)

    def _may_be_long(self) -> bool:
        """Whether the user leaves the number of frames open."""
        return self.check.feeds is None and not self.runs.axes.keys() & (self.check.shapes or {}).keys()

    def _compare_long(self) -> list[RunCheck]:
        """Compare one long sequence and its beginnings, which the original must compute as parts of the whole."""
        longest = self._long_sequence()
        if longest is None:
            return []
        feed, whole = longest
        frames = self.sequences.count(self.runner.feed(feed))
        shorter = {self.sequences.beginning(feed, n): n for n in reversed(self._lengths()) if n < frames}
        expected, lengths = {feed: whole, **self.runs.each_whole(shorter)}, {feed: frames, **shorter}
        if self.plan.frames is None:
            self.longest = frames
            chunks = {self.sequences.in_calls(n): self.sequences.in_units(of_n) for n, of_n in BEGINNINGS.items()}
            usual = self.sequences.in_units(CHUNKS_OF)
            chunked = {part: chunks.get(lengths[part], usual) for part in expected}
        else:
            self.longest = self._called([lengths[part] for part in expected])
            chunked = {part: ((self.plan.frames,),) for part in expected if lengths[part] == self.longest}
        sequences = [s for part, sizes in chunked.items() for s in self.sequences.in_chunks(part, sizes)]

        def compared(steady: Mapping[str, int]) -> list[RunCheck]:
            beginnings = self._beginnings(expected, feed, steady)
            return [*beginnings, *self._in_chunks(sequences, expected, dict.fromkeys(expected, steady))]

        runs = compared({})
        if _wrong(runs) and self._find_uncertain_integers(expected, runs):
            runs = compared({})
        return compared(self._steady(feed, whole)) if _wrong(runs) else runs

    def _lengths(self) -> list[int]:
        """Return the numbers of frames of the long sequences to try, the greatest first."""
        lengths, most = {self.sequences.in_calls(n) for n in BEGINNINGS}, self.sequences.most
        if most:
            lengths = {*(n for n in lengths if n < most), most}
        return sorted((n for n in lengths if n >= self.plan.shortest), reverse=True)

    def _goes_on(self) -> bool:
        """Whether the stream runs after its last frame, where the metadata name one."""
        most, size = self.sequences.most, self.plan.frames or self.plan.unit
        if not most or most * self.seconds_per_frame > _SECONDS:
            return False
        late = self.plan.frames_late
        feed = self.runner.write_feeds(self.sequences.made(0, most + size + late))[0]
        chunks = [size] if self.plan.frames else [most, size + late]
        try:
            self.runs.chunks([*self.sequences.in_chunks(feed, [chunks])])
        except SessionError:
            return False
        return True

    def _called(self, lengths: Sequence[int]) -> int:
        """Return which of these lengths runs through a stream whose calls have a fixed size."""
        enough = self.sequences.enough(lengths)
        return max(n for n in lengths if n <= enough or n * self.seconds_per_frame <= BRIEF_SECONDS)

    def _long_sequence(self) -> tuple[str, dict[str, Array]] | None:
        """Return the longest sequence that the original accepts, and its outputs; None if it accepts none."""
        refused = ""
        for frames in (n for n in self._lengths() if n > self.longest):
            if frames * self.seconds_per_frame > _SECONDS:
                refused = f"{frames} would take too long"
                continue
            try:
                groups = [self.runner.write_feeds(self.sequences.made(0, frames))]
                ((feed, outputs),) = self.runs.whole(groups).items()
            except (SessionError, UnsupportedError) as error:
                refused = f"the original does not run with {frames}: {error}"
                if isinstance(error, SessionError) and error.over_limit:
                    break
                continue
            if self.sequences.count(self.runner.feed(feed)) == frames:
                self._note_longest(frames, refused)
                return feed, outputs
        self._note_longest(self.longest, refused)
        return None

    def _note_longest(self, frames: int, refused: str) -> None:
        if refused:
            self.runs.notes.append(f"no sequence of more than {frames} frames was compared ({refused})")

    def _beginnings(self, expected: Expected, feed: str, steady: Mapping[str, int]) -> Iterator[RunCheck]:
        """Compare the original's outputs for each beginning with the first frames of its outputs for the whole."""
        for part, outputs in expected.items():
            frames = self.sequences.count(self.runner.feed(part))
            checks = [
                self._output(name, feed).compare_beginning(array, expected[feed][name], frames, steady.get(name))
                for name, array in outputs.items()
                if self.plan.outputs.get(name) is not None and array.ndim == expected[feed][name].ndim
            ]
            if any(not check.passed for check in checks):
                yield RunCheck((), tuple(checks))

    def _output(self, name: str, feed: str = "") -> StreamOutput:
        uncertain, precision = self.uncertain.of(feed, name), self.precision.get(name, "")
        return StreamOutput(self.plan, name, self.check.tolerance, uncertain, precision)

    def _find_uncertain_integers(self, expected: Expected, runs: Sequence[RunCheck]) -> bool:
        return self.uncertain.look_for(self.runnable, self.runs.original, expected, runs)

    def _steady(self, feed: str, outputs: Mapping[str, Array]) -> dict[str, int]:
        """Return the `steady_frames` of each unstable output; none if the user gives a tolerance."""
        if self.check.tolerance != Tolerance():
            return {}
        try:
            moved_outputs = self.runs.of_moved_inputs(feed)
        except SessionError:
            return {}
        steady, drawn = {}, undetermined_outputs(self.original.proto)
        for name, array in outputs.items():
            frames = 0 if name in drawn else self._output(name).steady_frames(array, moved_outputs[name])
            if frames is not None:
                steady[name] = frames
                self.unsteady[name] = min(frames, self.unsteady.get(name, frames))
        return steady

    def _use_lowered_original(self) -> bool:
        """Put lowered nodes into the original if they agree with float64; return whether it was done."""
        if self.runnable is not self.original or has_fixed(self.original.proto, self.runs.axes):
            return False
        path = self.runner.folder / _LOWERED_ORIGINAL
        check = replace(self.check, feeds=None, shapes=None)
        lowered = _lowered(self.original.new_model(), path)
        if not ModelComparison(self.original, lowered, self.runner, check, None).result():
            return False
        self.runs.original, self.runnable = Session(path), lowered
        self.runs.leave_out([name for name in self.plan.delay if name not in self.plan.outputs])
        return True

    def _use_lowered_stream(self) -> bool:
        """Lower the nodes that a stream kept, if the original was lowered to run; return whether it was done."""
        if self.runnable is self.original or not self._lower_stream():
            return False
        self.runs.notes.append("so were the nodes that the stream kept")
        return True

    def _lower_stream(self) -> bool:
        """Lower the nodes that a stream kept; return whether there are any."""
        path = self.runner.folder / _LOWERED_STREAM
        model = self.stepped.new_model()
        if path.exists() or not any(recurrent_nodes(model)):
            return False
        self.stepped, self.runs.stream = _lowered(model, path), Session(path)
        return True

    def _fault_of_all_calls(self) -> str:
        """Return why a stream fails at every call, also without the nodes that it kept, which onnxruntime may lack;
        "" if one runs."""
        fault = self.runs.error_of_all_calls()
        return self.runs.error_of_all_calls() if fault and self._lower_stream() else fault

    def _method(self) -> str:
        sizes = f"of 1, of {FEW} and of {', '.join(map(str, RAGGED))} frames"
        if self.plan.frames is not None:
            sizes = f"of {counted(self.plan.frames, 'frame')}"
        elif self.plan.unit > 1:
            sizes = sizes.replace(" frames", f" times {self.plan.unit} frames")
        return f"{CHUNKED} {sizes}" + (f", sequences of up to {self.longest} frames" if self.longest else "")

    def _first_node(self, feed: str) -> str:
        """Name the first node of the original whose frames differ from those of the chunks."""
        sequence = next(self.sequences.in_chunks(feed, ((self.plan.frames or self.plan.unit,),)))
        try:
            names, others = nodes_by_output(self.runnable.proto), nodes_by_output(self.stepped.proto)
            folder, axes = self.runner.folder, self.runs.axes
            whole = session_with(self.runnable, folder / "whole_values.onnx", names, axes)
            inner = session_with(self.stepped, folder / "chunk_values.onnx", others)
            (values,) = self.runner.run(whole, [[feed]], chunks=Chunks([[1]])).steps(0)
            parts = self.runs.chunks_in(inner, sequence)
        except (SessionError, ValueError, OSError):
            return ""
        for name in (n for n in names if n in others and n in values):
            arrays = [part[name] for part in parts]
            if _chunks_differ(values[name], arrays, self.check.tolerance, self.plan.frames_late):
                return f"; the first node that differs: {names[name]}"
        return ""


def _bfloat16_of(graph: onnx.GraphProto) -> str:
    """Return the name of an input or output in bfloat16; "" if there is none."""
    infos = (*graph.input, *graph.output)
    return next((v.name for v in infos if v.type.tensor_type.elem_type == onnx.TensorProto.BFLOAT16), "")


def _wrong(runs: Sequence[RunCheck]) -> bool:
    return any(run.wrong for run in runs)


def first_wrong(runs: Sequence[RunCheck]) -> str:
    """Return which output differs first, and how; "" if none does."""
    return next((f"output '{c.name}': {c.reason}" for run in runs for c in run.outputs if not c.passed), "")


def _chunks_differ(whole: Array, arrays: Sequence[Array], tolerance: Tolerance, late: int = 0) -> bool:
    """Whether chunks of an inner value, joined along the axis on which their sizes add up, differ from the whole.

    Args:
        late: The maximum number of frames by which it may be late.
    """
    if any(array.ndim != whole.ndim for array in arrays) or whole.dtype.kind != "f":
        return False
    axes = [a for a in range(whole.ndim) if sum(array.shape[a] for array in arrays) == whole.shape[a] != 1]
    others = [a for a in axes if any(array.shape[a] != whole.shape[a] for array in arrays)]
    grown = [a for a in range(whole.ndim) if any(array.shape[a] != whole.shape[a] for array in arrays)]
    if len(others) != 1 or grown != others:
        return False
    joined = np.concatenate(arrays, others[0])
    kept = np.arange(joined.shape[others[0]])
    return all(
        compare(whole.take(kept[: len(kept) - n], others[0]), joined.take(kept[n:], others[0]), tolerance)[1]
        for n in range(min(late + 1, len(kept)))
    )
