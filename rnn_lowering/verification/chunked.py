"""Whether a stream computes what the original computes of whole sequences: chunk by chunk, its states fed back.

The original runs on whole random sequences; the result on the same in chunks of one frame, of a few and of ragged
sizes, one sequence after another in one session. Where they differ, values inside both tell the first node.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

import numpy as np
import onnx
import onnx_ir as ir

from rnn_lowering.boundary import boundary
from rnn_lowering.errors import ModelFileError, UnsupportedError
from rnn_lowering.files.external_data import save
from rnn_lowering.files.reading import Parsed, parse_file
from rnn_lowering.limits import limited
from rnn_lowering.model.set_inputs import recorded
from rnn_lowering.options import Check
from rnn_lowering.passes.lower import LowerRecurrentPass
from rnn_lowering.progress import CHUNKS, ORIGINAL, Progress, counter
from rnn_lowering.streaming.plan import KEY, StreamPlan
from rnn_lowering.types import Array
from rnn_lowering.verification.chunk_parts import differ, initial, split, where
from rnn_lowering.verification.comparing import compared
from rnn_lowering.verification.extra_outputs import has_fixed, session_with_all_values, session_with_open_axes
from rnn_lowering.verification.given_inputs import check_given
from rnn_lowering.verification.model_files import Given, as_file
from rnn_lowering.verification.process import SessionError
from rnn_lowering.verification.random_inputs import candidates, length_inputs
from rnn_lowering.verification.result import (
    CHUNKED,
    COMPARE_ELSEWHERE,
    OutputCheck,
    RunCheck,
    RunInput,
    Verification,
    over_all,
)
from rnn_lowering.verification.runner import Chunks, Outcome, Ran, Runner, Session
from rnn_lowering.verification.tolerance import compare

_TOO_SHORT = "no sequence has two chunks (give longer inputs: --test-shape, --feed)"
_LOWERED_ORIGINAL = "lowered_original.onnx"
_FEW, _RAGGED = 5, (3, 1, 4, 7, 2)
_FRAMES = (19, 11, 23)  # of the sequences of the runs, where the model leaves them open


@dataclass(frozen=True)
class _Sequence:
    """A whole sequence by the name of its inputs, the same with the states that the first chunk receives, and the
    number of frames of each chunk."""

    feed: str
    started: str
    sizes: tuple[int, ...]


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
        original, stepped: A model and the stream that was made of it, or their paths, or what was parsed there.
        check: How they are compared: `runs` is the number of sequences.
        trust_external_data: Read data files outside the folders of the models.
        progress: Called as progress(phase, done, total) when a phase begins and after each run.

    Returns:
        A result that is true only when every sequence agreed in every chunking; `method` names these.

    Raises:
        ModelFileError: `stepped` is no stream.
    """
    check = check or Check()
    with boundary(), limited(check.max_bytes), Runner(check.timeout) as runner, ExitStack() as pipes:
        first, second = (
            as_file(model, runner.folder / f"model{n}.onnx", trust_external_data, pipes)
            for n, model in enumerate((original, stepped))
        )
        comparison = _Comparison(first, second, runner, check, progress)
        check_given([comparison.whole.graph], check.feeds or (), check.shapes or {})
        return comparison.result()


class _Comparison:
    """One comparison: the files, the plan in the stream's metadata, and what runs them."""

    def __init__(
        self, original: Parsed, stepped: Parsed, runner: Runner, check: Check, progress: Progress | None
    ) -> None:
        self.runner, self.check, self.progress = runner, check, progress
        self.original, self.stepped = original, stepped
        self.ran = original
        self.graph = stepped.proto
        held = [entry.value for entry in self.graph.metadata_props if entry.key == KEY]
        if not held:
            raise ModelFileError(f"'{stepped.path}' is no stream: its metadata lack {KEY}")
        self.plan = StreamPlan.from_json(held[0])
        self.axes = {name: axis for name, axis in self.plan.inputs.items() if axis is not None}
        self.fixed = has_fixed(original.proto, self.axes)
        self.session, self.whole = session_with_open_axes(original, runner.folder, self.axes)
        self.lengths = length_inputs(self.whole.graph)
        self.note = ""

    def result(self) -> Verification:
        """Compare."""
        try:
            names, expected = self._run_whole()
        except SessionError as error:
            if error.over_limit:
                return Verification("not verified", CHUNKED, reason=f"the original {error}")
            self.note = f"onnxruntime cannot run the original: {error}"
            if not self._use_lowered_original():
                return Verification("not verified", CHUNKED, reason=f"{self.note}; {COMPARE_ELSEWHERE}")
            return self.result()
        except UnsupportedError as error:  # the inputs would be too large
            return Verification("not verified", CHUNKED, reason=str(error))
        sequences = [s for feed in expected for s in self._sequences(feed)]
        if not sequences:
            return Verification("not verified", CHUNKED, reason=_TOO_SHORT)
        try:
            outcome = self._run_chunks(Session(self.stepped.path, proto=self.stepped.proto), sequences)
        except SessionError as error:
            if error.over_limit:
                return Verification("not verified", self._method(), reason=f"the stream {error}")
            return Verification("failed", self._method(), reason=f"onnxruntime cannot run the stream: {error}")
        runs, reasons = [], []
        for n, sequence in enumerate(sequences):
            parts = outcome.steps(n)
            checks = [self._compare(name, sequence, expected[sequence.feed][name], parts) for name in names]
            given = self.runner.feed(sequence.feed)
            inputs = tuple(RunInput.of(k, a, are_lengths=k in self.lengths) for k, a in given.items())
            runs.append(RunCheck(inputs, tuple(checks)))
            reasons += [f"output '{c.name}': {c.reason}" for c in checks if not c.passed]
        reason = reasons[0] + self._first_node(next(iter(expected))) if reasons else self.note
        status = "failed" if reasons else "verified"
        return Verification(status, self._method(), len(runs), over_all(runs), reason, tuple(runs))

    def _use_lowered_original(self) -> bool:
        """Use the original with lowered nodes instead, if these agree with float64; return whether it was done."""
        if self.session.model.name == _LOWERED_ORIGINAL or self.fixed:
            return False
        path = self.runner.folder / _LOWERED_ORIGINAL
        model = self.original.new_model()
        LowerRecurrentPass("loop")(model)
        save(model, path, f"{path.name}.data")
        if not compared(self.original, path, check=replace(self.check, feeds=None, shapes=None)):
            return False
        self.session, self.ran = Session(path), parse_file(path)
        self.note += "; it was lowered for whole sequences, each node compared with float64 NumPy"
        return True

    def _method(self) -> str:
        if self.plan.frames is not None:
            return f"{CHUNKED} of {self.plan.frames} frame{'s'[: self.plan.frames > 1]}"
        return f"{CHUNKED} of 1, of {_FEW} and of {', '.join(map(str, _RAGGED))} frames"

    def _run_whole(self) -> tuple[list[str], dict[str, dict[str, Array]]]:
        """Return the names of the original's outputs, and their values by the feed of each run."""
        groups = [[self.runner.write_feed(f) for f in feeds] for feeds in self._feeds()]
        outcome = self._run(self.session, groups, counter(self.progress, ORIGINAL, len(groups)))
        accepted = [run for run in outcome.runs if not run.error]
        errors = [run.error for run in outcome.runs if run.error]
        if not accepted or (errors and self.check.feeds is not None):
            raise SessionError(errors[0] if errors else "no runs were asked for")
        names = [value.name for value in self.original.proto.graph.output]
        found = {}
        for run in accepted:
            outputs = run.outputs()
            found[run.feed] = {name: outputs[f"{n}:0"] for n, name in enumerate(names) if f"{n}:0" in outputs}
        return names, found

    def _feeds(self) -> Iterator[list[dict[str, Array]]]:
        """Yield the alternative inputs of each run."""
        given = self.check.feeds
        constants = recorded(ir.from_proto(self.whole), ir.from_proto(self.graph))
        for run in range(self.check.runs if given is None else len(given)):
            fixed = {**(given[run] if given is not None else {}), **constants}
            declared = self._declared(self._frames(run))
            feeds = candidates(self.whole, run, self.check.seed, declared, fixed, self.check.shapes)
            yield [self._with_lengths_in_range(feed) for feed in feeds]

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
        return _FRAMES[run % len(_FRAMES)] if fixed is None else fixed * max(2, min(4 + run, 64 // fixed))

    def _with_lengths_in_range(self, feed: Mapping[str, Array]) -> dict[str, Array]:
        """Return the feed with lengths that are at most the number of frames."""
        frames = self._count(feed)
        return {k: np.minimum(a, frames).astype(a.dtype) if k in self.lengths else a for k, a in feed.items()}

    def _count(self, feed: Mapping[str, Array]) -> int:
        return next(int(feed[name].shape[axis]) for name, axis in self.plan.inputs.items() if axis is not None)

    def _sequences(self, feed: str) -> Iterator[_Sequence]:
        """Yield the chunkings of one whole sequence."""
        given = self.runner.feed(feed)
        frames, known = self._count(given), self._sizes(given)
        if self.plan.frames is not None:
            count, rest = divmod(frames, self.plan.frames)
            chunkings = [(self.plan.frames,) * count] if not rest and count > 1 else []
        else:
            chunkings = list(dict.fromkeys(split(frames, sizes) for sizes in ((1,), (_FEW,), _RAGGED)))
        states = {s.input: initial(s, known) for s in self.plan.states if s.input not in given}
        taken = {value.name: given[value.name] for value in self.graph.graph.input if value.name in given}
        started = self.runner.write_feed({**taken, **states})
        for sizes in chunkings:
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
        outcome = self._run(session, [[s.started] for s in sequences], ran, chunks)
        for run in outcome.runs:
            if run.error:
                raise SessionError(run.error)
        return outcome

    def _run(
        self, session: Session, groups: Sequence[Sequence[str]], ran: Ran, chunks: Chunks | None = None
    ) -> Outcome:
        """Run, without onnxruntime's optimiser where that crashes or refuses the model."""
        try:
            return self.runner.run(session, groups, ran, chunks=chunks)
        except SessionError as error:
            if error.over_limit:
                raise
            try:
                return self.runner.run(replace(session, optimise=False), groups, chunks=chunks)
            except SessionError:
                raise error from None

    def _compare(
        self, name: str, sequence: _Sequence, expected: Array, parts: Sequence[Mapping[str, Array]]
    ) -> OutputCheck:
        axis = self.plan.outputs.get(name)
        arrays = [part[name] for part in parts if name in part]
        if len(arrays) < len(parts):
            return OutputCheck(name, np.inf, False, "the stream does not give it")
        try:
            got = arrays[-1] if axis is None else np.concatenate(arrays, axis)
        except ValueError as error:  # the axis is wrong
            return OutputCheck(name, np.inf, False, f"its chunks do not fit together along axis {axis}: {error}")
        largest, reason = compare(expected, got, self.check.tolerance)
        if reason and axis is not None:
            reason = f"{reason}; {where(expected, arrays, axis, sequence.sizes, self.check.tolerance)}"
        return OutputCheck(name, largest, not reason, reason)

    def _first_node(self, feed: str) -> str:
        """Name the first node of the original whose frames differ from those of the chunks."""
        sequence = next(self._sequences(feed))
        try:
            whole, names = session_with_all_values(self.ran, self.runner.folder, "whole", self.axes)
            inner, others = session_with_all_values(self.stepped, self.runner.folder, "chunks", {})
            (values,) = self.runner.run(whole, [[feed]], chunks=Chunks([[1]])).steps(0)
            parts = self._run_chunks(inner, [sequence]).steps(0)
        except (SessionError, ValueError, OSError):
            return ""
        for name in (n for n in names if n in others and n in values):
            if differ(values[name], [part[name] for part in parts], self.check.tolerance):
                return f"; the first node that differs: {names[name]}"
        return ""
