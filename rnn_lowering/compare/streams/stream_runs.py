"""Run the original on whole sequences, and its stream on their chunks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress

import numpy as np

from rnn_lowering.compare.feeds import take_feeds
from rnn_lowering.compare.runner.process import Chunks, Outcome, Runner, SessionError
from rnn_lowering.compare.runner.session import (
    Session,
    deciding_values,
    echoing_nodes,
    repairs_note,
    session_of,
    session_with,
)
from rnn_lowering.compare.streams.sequences import ChunkedSequence, Sequences, time_axes
from rnn_lowering.errors import ModelFileError, OptionError
from rnn_lowering.files.reading import ModelSource
from rnn_lowering.options import Check
from rnn_lowering.streaming.host.metadata import KEY, StreamPlan
from rnn_lowering.types import CHUNKS, ORIGINAL, Array, Progress, counter

Expected = dict[str, dict[str, Array]]
"""The outputs of the original, by name, of each whole sequence."""


class StreamRuns:
    """Runs both models of a comparison.

    Attributes:
        runner: What runs them.
        check: As the user asks for it; its feeds fit the original.
        plan: How the stream is driven.
        axes: The axis of the frames of each input that has one, by name.
        sequences: The inputs.
        original: The original's session, its time axes open.
        stream: The stream's session.
        taken: The values of each run of the original, by name, as far as they are known.
        notes: What a user should know about how they ran.
    """

    def __init__(
        self, original: ModelSource, stepped: ModelSource, runner: Runner, check: Check, progress: Progress | None
    ) -> None:
        self.runner, self._progress = runner, progress
        self.plan = _plan(stepped)
        self.axes = time_axes(self.plan)
        _check_axes(original, self.axes)
        self.original = session_with(original, runner.folder / "opened.onnx", deciding_values, self.axes)
        misread = echoing_nodes(original.proto)
        self.stream = session_of(stepped, runner.folder, misread)
        opened = self.original.parsed
        self.check = take_feeds(check, [opened.graph], frames=True)
        self.sequences = Sequences(self.plan, opened, stepped.proto, runner, self.check)
        self.names = [value.name for value in original.proto.graph.output]
        self.taken: list[Mapping[str, Array]] = []
        self.notes = [repairs_note(misread)]

    def whole(self, groups: Sequence[Sequence[str]]) -> Expected:
        """Return the outputs of the original by name, by the feed of each run that it accepts.

        Raises:
            SessionError: It does not run, or does not accept the inputs.
        """
        ran, all_must_run = counter(self._progress, ORIGINAL, len(groups)), self.check.feeds is not None
        self.original, outcome, why = self.runner.run_optimized_or_not(
            self.original, groups, ran, all_must_run=all_must_run
        )
        self.notes.append(why and f"the original runs {why}")
        found = {}
        for run in outcome.accepted(all_must_run=all_must_run):
            tensors = run.tensors()
            self.taken.append({**self.runner.feed(run.feed), **tensors})
            found[run.feed] = {name: tensors[name] for name in self.names if name in tensors}
        return found

    def each_whole(self, feeds: Collection[str]) -> Expected:
        """Return the outputs of the original by name, by each of these feeds that it accepts."""
        with suppress(SessionError):
            return self.whole([[feed] for feed in feeds])
        found: Expected = {}
        for feed in feeds:  # it may crash with one of them
            with suppress(SessionError):
                found |= self.whole([[feed]])
        return found

    def of_moved_inputs(self, feed: str) -> dict[str, Array]:
        """Return the outputs of the original after each number of its inputs is moved by half a rounding."""
        rng = np.random.default_rng(0)
        given = dict(self.runner.feed(feed))
        for name, array in given.items():
            if array.dtype.kind == "f":
                moved = 1 + rng.choice([-0.5, 0.5], array.shape) * np.finfo(array.dtype).eps
                given[name] = (array * moved).astype(array.dtype)
        (outputs,) = self.whole([[self.runner.write_feed(given)]]).values()
        return outputs

    def chunks(self, sequences: Sequence[ChunkedSequence]) -> Outcome:
        """Run the stream on the chunks of sequences.

        Raises:
            SessionError: It does not run.
        """
        ran = counter(self._progress, CHUNKS, len(sequences))
        groups, chunks = self._as_chunks(sequences, self.names)
        self.stream, outcome, why = self.runner.run_optimized_or_not(self.stream, groups, ran, chunks=chunks)
        self.notes.append(why and f"the stream runs {why}")
        return outcome

    def chunks_in(self, session: Session, sequence: ChunkedSequence) -> list[dict[str, Array]]:
        """Return all outputs of another session of the stream, chunk by chunk."""
        groups, chunks = self._as_chunks([sequence], ())
        return self.runner.run(session, groups, chunks=chunks).steps(0)

    def _as_chunks(
        self, sequences: Sequence[ChunkedSequence], returned: Sequence[str]
    ) -> tuple[list[list[str]], Chunks]:
        chunks = Chunks(
            [sequence.sizes for sequence in sequences],
            self.axes,
            sorted(self.sequences.lengths),
            {state.output: state.input for state in self.plan.states},
            returned,
        )
        return [[sequence.started] for sequence in sequences], chunks


def _plan(stepped: ModelSource) -> StreamPlan:
    held = [entry.value for entry in stepped.proto.metadata_props if entry.key == KEY]
    if not held:
        raise ModelFileError(f"'{stepped.path}' is not a stream: its metadata has no {KEY}")
    return StreamPlan.from_json(held[0])


def _check_axes(original: ModelSource, axes: Mapping[str, int]) -> None:
    ranks = {value.name: len(value.type.tensor_type.shape.dim) for value in original.proto.graph.input}
    for name, axis in axes.items():
        if ranks.get(name, 0) <= axis:
            raise OptionError(
                f"the original has no input '{name}' with an axis {axis}",
                hint="give the model that the stream was made from",
            )
