"""The sequences that a stream is compared on: their inputs, and the runs of both models.

The original runs on whole random sequences of many lengths, the stream on their chunks: of one frame, of a few, and
of ragged sizes.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import cycle
from types import MappingProxyType

import numpy as np
import onnx

from rnn_lowering.compare.feeds import candidate_feeds, recorded_inputs, take_feeds
from rnn_lowering.compare.options import Check
from rnn_lowering.compare.rounding import moved_by_half_a_rounding
from rnn_lowering.compare.runs.runner import Chunks, Outcome, Runner, SessionError
from rnn_lowering.compare.runs.sessions import (
    Session,
    misread_nodes,
    recurrent_inputs,
    repairs_note,
    session_of,
    session_with,
    states_returned,
)
from rnn_lowering.compare.sizes import given_in_runs, length_inputs, uses_of
from rnn_lowering.errors import OptionError
from rnn_lowering.files.reading import ModelSource
from rnn_lowering.streaming.metadata import State, StreamPlan, frames_in
from rnn_lowering.types import CHUNKS, ORIGINAL, Array, Progress, counter

_FRAMES = (19, 7, 50)
"""The numbers of frames of the random sequences, in turn, if the model leaves them open."""

FEW, RAGGED = 5, (3, 1, 4, 7, 2)
CHUNKS_OF = ((1,), (FEW,), RAGGED)
"""The sizes of their chunks, repeated until the sequence ends."""

BEGINNINGS = {
    7: (),
    19: (),
    50: (),
    210: ((6,), tuple(range(2, 21))),
    310: ((8,), (310,)),
    1009: ((16,), (250, 7, 100)),
}
"""Frames of one long sequence and of its beginnings -> the sizes of their chunks."""

_CALLS = 310
"""This many calls show all that a call can do, if no state counts frames, and no past frame is older than half of
them."""

_COUNTED = {"t", "sum", "pool"}
"""States that depend on the number of frames so far."""


@dataclass(frozen=True)
class ChunkedSequence:
    """A whole sequence and its chunks.

    Attributes:
        feed: The name of its inputs.
        started: The name of its inputs with the states for the first chunk.
        sizes: The number of frames of each chunk.
    """

    feed: str
    started: str
    sizes: tuple[int, ...]


def _time_axes(plan: StreamPlan) -> dict[str, int]:
    """Return the axis of the frames of each input that has one, by name."""
    return {name: axis for name, axis in plan.inputs.items() if axis is not None}


class Sequences:
    """The sequences of one comparison.

    Args:
        plan: How the stream is called.
        whole, graph: The original with open time axes, and the stream.
        declared: The number of frames that the original declares; None if it is open.
        runner: Writes and reads the inputs.
        check: The user's check.

    Attributes:
        axes: The time axes by input.
        uses: What the original does with its inputs.
        constants: The values of inputs that the stream no longer has.
        lengths: Inputs that are lengths of sequences.
        fixed: The number of frames of each sequence, if the original computes no others.
    """

    def __init__(
        self,
        plan: StreamPlan,
        whole: onnx.ModelProto,
        graph: onnx.ModelProto,
        declared: int | None,
        runner: Runner,
        check: Check,
    ) -> None:
        self.plan, self.whole, self.graph, self.runner, self.check = plan, whole, graph, runner, check
        self.declared = declared
        self.fixed: int | None = None
        self.axes = _time_axes(plan)
        self.constants = recorded_inputs(whole, graph)
        self.uses = uses_of(whole.graph)
        of_graph = {name for name in length_inputs(self.uses) if name not in self.axes}
        self.lengths = set(plan.lengths) or of_graph  # older streams do not name them

    def in_calls(self, frames: int) -> int:
        """Round a number of frames up to whole calls; if calls may have any size, multiply it by the unit."""
        if self.plan.frames is None:
            return frames * self.plan.unit
        return -(-frames // self.plan.frames) * self.plan.frames

    def in_units(self, chunks: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
        """Return sizes of chunks in frames for sizes in units."""
        return tuple(tuple(n * self.plan.unit for n in sizes) for sizes in chunks)

    def enough(self, lengths: Sequence[int]) -> int:
        """Return the smallest of these numbers of frames that shows all that a call of a fixed size can do."""
        frames = self.plan.frames or self.plan.unit
        past = self.plan.frames_late + sum(
            _frames_of(state, self.graph.graph) for state in self.plan.states if state.state == "x"
        )
        if 2 * past > _CALLS * frames or any(state.state in _COUNTED for state in self.plan.states):
            return max(lengths)
        return min((n for n in lengths if n >= _CALLS * frames), default=max(lengths))

    def beginning(self, feed: str, frames: int) -> str:
        """Write the first frames of a sequence; return the name of this feed."""
        given = self.runner.feed(feed)
        cut = self.plan.cut(given, 0, frames)
        return self.runner.write_feed(self._with_lengths_in_range({**given, **cut}))

    def feeds(self) -> Iterator[Iterator[dict[str, Array]]]:
        """Yield the alternative inputs of each run."""
        for run, given in enumerate(given_in_runs(self.check, self.whole.graph, self.uses)):
            yield self._alternatives(run, given)

    def _alternatives(self, run: int, given: Mapping[str, Array]) -> Iterator[dict[str, Array]]:
        """Yield alternative inputs of one run: of the usual length, or of that which the original declares."""
        for frames in dict.fromkeys((self._frames(run), self.declared or self._frames(run))):
            yield from self.made(run, frames, given)

    def made(
        self, run: int, frames: int, given: Mapping[str, Array] = MappingProxyType({})
    ) -> Iterator[dict[str, Array]]:
        """Yield alternative inputs of one run; those that are not given have this many frames."""
        fixed, declared = {**given, **self.constants}, self._declared(self.fixed or frames)
        for feed in candidate_feeds(self.whole, self.uses, run, self.check, declared, fixed):
            yield self._with_lengths_in_range(self._with_an_end(feed))

    def _with_an_end(self, feed: Mapping[str, Array]) -> Mapping[str, Array]:
        """Return the feed with zeros in its last frames, as a host gives them to a stream that is late."""
        late = self.plan.frames_late
        if not late or self.check.feeds is not None or self.count(feed) <= late:
            return feed
        ended = {name: array.copy() for name, array in feed.items()}
        for name, axis in self.axes.items():
            ended[name][(slice(None),) * axis + (slice(-late * int(self.plan.rate(name)), None),)] = 0
        return ended

    def _declared(self, frames: int) -> onnx.ModelProto:
        """Return the original's inputs with the sizes of the stream, of which some may be fixed."""
        fixed = {value.name: value for value in self.graph.graph.input}
        declared = onnx.ModelProto()
        declared.graph.input.extend(fixed.get(value.name, value) for value in self.whole.graph.input)
        for value in declared.graph.input:
            axis = self.plan.inputs.get(value.name)
            if axis is not None:
                value.type.tensor_type.shape.dim[axis].dim_value = frames * int(self.plan.rate(value.name))
        return declared

    def _frames(self, run: int) -> int:
        fixed = self.plan.frames
        if fixed is None:
            frames = max(self.in_calls(_FRAMES[run % len(_FRAMES)]), self.plan.shortest)
        else:
            frames = max(fixed * max(2, min(4 + run, 64 // fixed)), self.in_calls(self.plan.shortest))
        return min(frames + self.plan.frames_late, self.most or frames + self.plan.frames_late)

    @property
    def most(self) -> int | None:
        """The maximum number of frames of a sequence, in whole calls; None for any."""
        size = self.plan.frames or self.plan.unit
        return None if self.plan.max_frames is None else self.plan.max_frames // size * size

    def _with_lengths_in_range(self, feed: Mapping[str, Array]) -> dict[str, Array]:
        """Return the feed with lengths that are at most the number of frames."""
        frames = self.count(feed)
        return {k: np.minimum(a, frames).astype(a.dtype) if k in self.lengths else a for k, a in feed.items()}

    def count(self, feed: Mapping[str, Array]) -> int:
        """Return the number of frames of a sequence."""
        return frames_in(self.plan, feed)

    def in_chunks(self, feed: str, chunks: Sequence[Sequence[int]]) -> Iterator[ChunkedSequence]:
        """Yield one whole sequence in chunks of several sizes."""
        given = self.runner.feed(feed)
        frames, known = self.count(given), self._sizes(given)
        chunkings = dict.fromkeys(_chunk_sizes(frames, sizes) for sizes in chunks)
        states = {s.input: s.first(known) for s in self.plan.states if s.input not in given}
        taken = {value.name: given[value.name] for value in self.graph.graph.input if value.name in given}
        started = self.runner.write_feed({**taken, **states})
        for sizes in chunkings:
            fits = frames % (self.plan.frames or self.plan.unit) == 0
            if fits and (self.plan.frames is None or len(sizes) > 1):
                yield ChunkedSequence(feed, started, sizes)

    def _sizes(self, given: Mapping[str, Array]) -> dict[str, int]:
        """Return the sizes of open dimensions by name."""
        return {
            dim.dim_param: size
            for value in self.graph.graph.input
            if value.name in given
            for dim, size in zip(value.type.tensor_type.shape.dim, given[value.name].shape, strict=True)
            if dim.dim_param
        }


def _frames_of(state: State, graph: onnx.GraphProto) -> int:
    """Return how many past frames a state holds at most: its size where the frames of a chunk follow it."""
    shape = [1 if isinstance(dim, str) else dim for dim in state.shape]
    joins = [node for node in graph.node if node.op_type == "Concat" and state.input in node.input]
    axes = {attribute.i for node in joins for attribute in node.attribute if attribute.name == "axis"}
    return max((shape[axis] for axis in axes if axis in range(len(shape))), default=math.prod(shape))


def _chunk_sizes(frames: int, sizes: Sequence[int]) -> tuple[int, ...]:
    """Return the sizes of chunks, these in turn, the last one as much as is left."""
    chunks: list[int] = []
    for size in cycle(sizes):
        if sum(chunks) == frames:
            break
        chunks.append(min(size, frames - sum(chunks)))
    return tuple(chunks)


Expected = dict[str, dict[str, Array]]
"""The outputs of the original, by name, of each whole sequence."""


class StreamRuns:
    """Runs both models of a comparison.

    Attributes:
        runner: What runs them.
        check: The user's check, with feeds that fit the original.
        plan: How the stream is called.
        axes: The axis of the frames of each input that has one, by name.
        sequences: The inputs.
        original: The original's session, its time axes open.
        stream: The stream's session.
        values: The known values of each run of the original, by name.
        notes: What a user should know about how the models ran.
    """

    def __init__(
        self, original: ModelSource, stepped: ModelSource, runner: Runner, check: Check, progress: Progress | None
    ) -> None:
        self.runner, self._progress = runner, progress
        self.plan = StreamPlan.of({entry.key: entry.value for entry in stepped.proto.metadata_props})
        self.axes = _time_axes(self.plan)
        _check_axes(original, self.axes)
        late = {name: n for name, n in self.plan.delay.items() if name not in self.plan.outputs}
        self.original = session_with(
            original,
            runner.folder / "opened.onnx",
            recurrent_inputs(original.proto),
            self.axes,
            late,
            observed=True,
        )
        misread = misread_nodes(original.proto)
        self.stream = session_of(stepped, runner.folder, misread)
        opened = self.original.parsed
        self.check = take_feeds(check, [opened.graph], frames=True)
        for feed in self.check.feeds or ():
            _check_proportion(feed, self.plan)
        declared = _declared_frames(original.proto.graph, self.plan)
        self.sequences = Sequences(self.plan, opened, stepped.proto, declared, runner, self.check)
        self.names = [value.name for value in original.proto.graph.output]
        self.values: list[Mapping[str, Array]] = []
        self.notes = [repairs_note(misread)]
        self.leave_out([name for name in late if not states_returned(original.proto, name)])

    def leave_out(self, names: Collection[str]) -> None:
        """Do not compare these outputs, which return late states."""
        self.names = [name for name in self.names if name not in names]
        self.notes += [f"the state '{name}', which comes late, was not compared" for name in names]

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
        outputs = {}
        for run in outcome.accepted(all_must_run=all_must_run):
            tensors = run.tensors()
            self.values.append({**self.runner.feed(run.feed), **tensors})
            outputs[run.feed] = {name: tensors[name] for name in self.names if name in tensors}
        return outputs

    def computes_declared_frames(self) -> bool:
        """Whether the original takes more frames than it declares, but computes no more: its steps were traced."""
        declared = self.sequences.declared
        if declared is None or self.check.feeds is not None:
            return False
        feed = self.runner.write_feeds(self.sequences.made(0, self.sequences.in_calls(declared + 1)))[0]
        frames = self.sequences.count(self.runner.feed(feed))
        return any(
            array.shape[axis] != self.plan.frames_of(name, frames)
            for outputs in self.each_whole([feed]).values()
            for name, array in outputs.items()
            if (axis := self.plan.outputs.get(name)) is not None
        )

    def each_whole(self, feeds: Collection[str]) -> Expected:
        """Return the outputs of the original by name, by each of these feeds that it accepts."""
        with suppress(SessionError):
            return self.whole([[feed] for feed in feeds])
        outputs: Expected = {}
        for feed in feeds:  # it may crash with one of them
            with suppress(SessionError):
                outputs |= self.whole([[feed]])
        return outputs

    def of_moved_inputs(self, feed: str) -> dict[str, Array]:
        """Return the outputs of the original after each number of its inputs is moved by half a rounding."""
        given = moved_by_half_a_rounding(self.runner.feed(feed))
        (outputs,) = self.whole([[self.runner.write_feed(given)]]).values()
        return outputs

    def chunks(self, sequences: Sequence[ChunkedSequence]) -> Outcome:
        """Run the stream on the chunks of sequences.

        Raises:
            SessionError: It does not run.
        """
        ran = counter(self._progress, CHUNKS, len(sequences))
        groups, chunks = self._as_chunks(sequences, self.names)
        self.stream, outcome, why = self.runner.run_optimized_or_not(
            self.stream, groups, ran, chunks=chunks, may_crash=not self.original.optimize
        )
        self.notes.append(why and f"the stream runs {why}")
        return outcome

    def error_of_all_calls(self) -> str:
        """Return why a stream that loads fails at every call, with the first inputs of each run; "" if one runs."""
        feeds = [self.runner.write_feeds(feeds)[0] for feeds in self.sequences.feeds()]
        frames = self.plan.frames or self.plan.unit
        sequences = [s for feed in feeds for s in self.sequences.in_chunks(feed, ((frames,),))]
        groups, chunks = self._as_chunks(sequences, self.names)
        with suppress(SessionError):
            runs = self.runner.run(self.stream, groups, chunks=chunks).runs
            return runs[0].error if runs and all(run.error for run in runs) else ""
        return ""

    def error_without_optimizations(self, sequence: ChunkedSequence) -> str:
        """Return why the stream runs only with onnxruntime's optimizations; "" if it runs without them."""
        groups, chunks = self._as_chunks([sequence], self.names)
        plain, whole = replace(self.stream, optimize=False), replace(self.original, optimize=False)
        try:
            self.runner.run(plain, groups, chunks=chunks).accepted(all_must_run=True)
        except SessionError as error:
            reason = "" if error.over_limit else f"onnxruntime cannot run the stream without optimizations: {error}"
            with suppress(SessionError):
                self.runner.run(whole, [[sequence.feed]]).accepted(all_must_run=True)
                return reason
        return ""

    def chunks_in(self, session: Session, sequence: ChunkedSequence) -> list[dict[str, Array]]:
        """Return all outputs of another session of the stream, chunk by chunk."""
        groups, chunks = self._as_chunks([sequence], ())
        return self.runner.run(session, groups, chunks=chunks).steps(0)

    def _as_chunks(
        self, sequences: Sequence[ChunkedSequence], returned: Sequence[str]
    ) -> tuple[list[list[str]], Chunks]:
        chunks = Chunks(
            [sequence.sizes for sequence in sequences],
            {name: (axis, int(self.plan.rate(name))) for name, axis in self.axes.items()},
            sorted(self.sequences.lengths),
            {state.output: state.input for state in self.plan.states},
            returned,
        )
        return [[sequence.started] for sequence in sequences], chunks


def _declared_frames(graph: onnx.GraphProto, plan: StreamPlan) -> int | None:
    """Return the number of frames that the inputs of the original declare; None if it is open."""
    axes = _time_axes(plan)
    dims = {v.name: v.type.tensor_type.shape.dim[axes[v.name]] for v in graph.input if v.name in axes}
    return next((dim.dim_value // int(plan.rate(n)) for n, dim in dims.items() if dim.dim_value), None)


def _check_proportion(feed: Mapping[str, Array], plan: StreamPlan) -> None:
    """Refuse inputs of which one has more frames than belong to those of another."""
    counts = {name: feed[name].shape[axis] for name, axis in _time_axes(plan).items() if name in feed}
    if len({count / plan.rate(name) for name, count in counts.items()}) > 1:
        given = " and ".join(f"'{name}' {count}" for name, count in counts.items())
        rates = " and ".join(str(plan.rate(name)) for name in counts)
        raise OptionError(
            f"the inputs have unlike numbers of frames: {given}", hint=f"give {rates} for each frame of the stream"
        )


def _check_axes(original: ModelSource, axes: Mapping[str, int]) -> None:
    ranks = {value.name: len(value.type.tensor_type.shape.dim) for value in original.proto.graph.input}
    for name, axis in axes.items():
        if ranks.get(name, 0) <= axis:
            raise OptionError(
                f"the original has no input '{name}' with an axis {axis}",
                hint="give the model that the stream was made from",
            )
