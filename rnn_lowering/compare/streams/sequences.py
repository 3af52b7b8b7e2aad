"""Sequences that a stream is compared on: random inputs of many lengths, their beginnings, and their chunks.

Compare the outputs of chunks with those of whole sequences.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, cycle
from types import MappingProxyType

import numpy as np
import onnx

from rnn_lowering.compare.feeds import candidate_feeds, given_in_runs, length_inputs, recorded_inputs
from rnn_lowering.compare.result import OutputCheck
from rnn_lowering.compare.runner.process import Runner
from rnn_lowering.compare.tolerance import allowance, compare, distance
from rnn_lowering.options import Check, Tolerance
from rnn_lowering.streaming.metadata import State, StreamPlan
from rnn_lowering.types import Array

_FRAMES = (19, 7, 50)
"""Of the random sequences, where the model leaves them open."""

FEW, RAGGED = 5, (3, 1, 4, 7, 2)
CHUNKS_OF = ((1,), (FEW,), RAGGED)
"""Sizes of the chunks of these, in turn."""

BEGINNINGS = {
    7: (),
    19: (),
    50: (),
    210: ((6,), tuple(range(2, 21))),
    310: ((8,), (310,)),
    1009: ((16,), (250, 7, 100)),
}
"""Frames of one long sequence and of its beginnings, and the sizes of their chunks."""


_CALLS = 310
"""So many calls show all that a call can do, if all do the same and no past frame is older than half of them."""

_COUNTED = {"t", "sum", "pool"}
"""States whose meaning depends on the number of frames so far."""


@dataclass(frozen=True)
class ChunkedSequence:
    """A whole sequence and its chunks.

    Attributes:
        feed: The name of its inputs.
        started: The name of its inputs and the states that the first chunk receives.
        sizes: The number of frames of each chunk.
    """

    feed: str
    started: str
    sizes: tuple[int, ...]


def time_axes(plan: StreamPlan) -> dict[str, int]:
    """Return the axis of the frames of each input that has one, by name."""
    return {name: axis for name, axis in plan.inputs.items() if axis is not None}


class Sequences:
    """The sequences of one comparison.

    Args:
        plan: How the stream is driven.
        whole, graph: The original with open time axes, and the stream.
        runner: Writes and reads the inputs.
        check: What the caller asks for.

    Attributes:
        axes: The time axes by input.
        constants: The values of inputs that the stream no longer has.
        lengths: Inputs that are lengths of sequences.
    """

    def __init__(
        self, plan: StreamPlan, whole: onnx.ModelProto, graph: onnx.ModelProto, runner: Runner, check: Check
    ) -> None:
        self.plan, self.whole, self.graph, self.runner, self.check = plan, whole, graph, runner, check
        self.axes = time_axes(plan)
        self.constants = recorded_inputs(whole, graph)
        self.lengths = {name for name in length_inputs(whole.graph) if name not in self.axes}

    def in_calls(self, frames: int) -> int:
        """Round a number of frames up to whole calls; where calls may have any size, take it as one of units."""
        if self.plan.frames is None:
            return frames * self.plan.unit
        return -(-frames // self.plan.frames) * self.plan.frames

    def in_units(self, chunks: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
        """Return sizes of chunks in frames, given in units."""
        return tuple(tuple(n * self.plan.unit for n in sizes) for sizes in chunks)

    def enough(self, lengths: Sequence[int]) -> int:
        """Return the least of these numbers of frames that shows all that a call of a fixed size can do."""
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
        cut = {name: given[name].take(range(frames), axis) for name, axis in self.axes.items()}
        return self.runner.write_feed(self._with_lengths_in_range({**given, **cut}))

    def feeds(self) -> Iterator[Iterator[dict[str, Array]]]:
        """Yield the alternative inputs of each run."""
        for run, given in enumerate(given_in_runs(self.check, self.whole.graph)):
            yield self.made(run, self._frames(run), given)

    def made(
        self, run: int, frames: int, given: Mapping[str, Array] = MappingProxyType({})
    ) -> Iterator[dict[str, Array]]:
        """Yield alternative inputs of one run, of this many frames where they are not given."""
        fixed = {**given, **self.constants}
        for feed in candidate_feeds(
            self.whole, run, self.check.seed, self._declared(frames), fixed, self.check.shapes
        ):
            yield self._with_lengths_in_range(self._with_an_end(feed))

    def _with_an_end(self, feed: Mapping[str, Array]) -> Mapping[str, Array]:
        """Return the feed with zeros in its last frames, as a host gives them to a stream that is late."""
        late = self.plan.frames_late
        if not late or self.check.feeds is not None or self.count(feed) <= late:
            return feed
        ended = {name: array.copy() for name, array in feed.items()}
        for name, axis in self.axes.items():
            ended[name][(slice(None),) * axis + (slice(-late, None),)] = 0
        return ended

    def _declared(self, frames: int) -> onnx.ModelProto:
        """Return the original's inputs with the sizes of the stream, of which some may be fixed."""
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
            return self.in_calls(_FRAMES[run % len(_FRAMES)]) + self.plan.frames_late
        return fixed * max(2, min(4 + run, 64 // fixed)) + self.plan.frames_late

    def _with_lengths_in_range(self, feed: Mapping[str, Array]) -> dict[str, Array]:
        """Return the feed with lengths that are at most the number of frames."""
        frames = self.count(feed)
        return {k: np.minimum(a, frames).astype(a.dtype) if k in self.lengths else a for k, a in feed.items()}

    def count(self, feed: Mapping[str, Array]) -> int:
        """Return the number of frames of a sequence."""
        return next(int(feed[name].shape[axis]) for name, axis in self.axes.items())

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


@dataclass(frozen=True)
class StreamOutput:
    """An output of a stream, and how it is compared.

    Attributes:
        plan: How the stream is called.
        name: Its name.
        tolerance: The allowed differences.
    """

    plan: StreamPlan
    name: str
    tolerance: Tolerance

    @property
    def axis(self) -> int | None:
        """The axis of its frames; None if it has none."""
        return self.plan.outputs.get(self.name)

    def compare_chunks(
        self, expected: Array, parts: Sequence[Mapping[str, Array]], sizes: Sequence[int], steady: int | None
    ) -> OutputCheck:
        """Compare the output of the chunks of a sequence with that of the whole.

        Args:
            expected: The original's output for the whole sequence.
            parts: The stream's outputs for each chunk, by name.
            sizes: The number of frames of each chunk.
            steady: The number of frames to compare; None: all.
        """
        axis = self.axis
        arrays = [part[self.name] for part in parts if self.name in part]
        if len(arrays) < len(parts):
            return self._wrong("the stream does not return it")
        if axis is not None and (late := self.plan.delay.get(self.name, 0)):
            if fault := self._fault_of_length(expected, sum(sizes)):
                return self._wrong(fault)
            arrays = _without_first(arrays, axis, late)
            expected = expected.take(range(sum(array.shape[axis] for array in arrays)), axis, mode="clip")
        try:
            got = arrays[-1] if axis is None else np.concatenate(arrays, axis)
        except ValueError as error:  # the axis is wrong
            return self._wrong(f"its chunks do not fit together along axis {axis}: {error}")
        if steady is not None and expected.shape == got.shape:
            kept = (slice(0),) if axis is None else (*[slice(None)] * axis, slice(steady))
            expected, got = expected[kept], got[kept]
        largest, reason = compare(expected, got, self.tolerance)
        if reason and axis is not None:
            reason = f"{reason}; {self._first_difference(expected, arrays, axis, sizes)}"
        return OutputCheck.of(self.name, largest, reason)

    def compare_beginning(self, beginning: Array, whole: Array, frames: int, steady: int | None) -> OutputCheck:
        """Compare the original's output for the first frames with the first frames of its output for the whole.

        The frames that come late may differ at the end of the beginning.

        Args:
            beginning, whole: The two outputs.
            frames: The number of frames of the inputs of the beginning.
            steady: The number of frames to compare; None: all.
        """
        axis, plan = self.axis or 0, self.plan
        if fault := self._fault_of_length(beginning, frames):
            return self._wrong(fault)
        sure = plan.frames_of(self.name, frames) - plan.delay.get(self.name, 0) + plan.short.get(self.name, 0)
        count = min(beginning.shape[axis], max(sure, 0), beginning.shape[axis] if steady is None else steady)
        largest, reason = compare(
            whole.take(range(count), axis), beginning.take(range(count), axis), self.tolerance
        )
        told = f"the original computes the first {frames} frames differently if more follow: {reason}"
        return OutputCheck.of(self.name, largest, told if reason else "")

    def steady_frames(self, array: Array, moved: Array) -> int | None:
        """Return how many frames can be compared; None: all, 0 if it has no frames.

        The others are unstable: a rounding of the inputs moves them by more than a quarter of the tolerance.

        Args:
            array: The original's output.
            moved: Its output after each number of the inputs is moved by half a rounding.
        """
        far = distance(array, moved) > allowance(array, self.tolerance) / 4
        if not far.any():
            return None
        others = tuple(a for a in range(far.ndim) if a != self.axis)
        return 0 if self.axis is None else int(far.any(axis=others).argmax())

    def _wrong(self, reason: str) -> OutputCheck:
        return OutputCheck.of(self.name, np.inf, reason)

    def _fault_of_length(self, array: Array, frames: int) -> str:
        found = array.shape[self.axis or 0]
        right = found == self.plan.frames_of(self.name, frames)
        return "" if right else f"it has {found} frames for {frames} input frames"

    def _first_difference(self, expected: Array, arrays: Sequence[Array], axis: int, sizes: Sequence[int]) -> str:
        """Return a note on the first frame that differs."""
        ends = list(accumulate((array.shape[axis] for array in arrays), initial=0))
        for n, array in enumerate(arrays):
            part = expected.take(range(ends[n], min(ends[n + 1], expected.shape[axis])), axis)
            if compare(part, array, self.tolerance)[1]:
                text = ", ".join(map(str, sizes[:6])) + (", ..." if len(sizes) > 6 else "")
                return f"first in call {n + 1} (chunks of {text} frames), from frame {sum(sizes[:n])} on"
        return ""


def _without_first(arrays: Sequence[Array], axis: int, count: int) -> list[Array]:
    """Return chunks without their first `count` frames."""
    kept = []
    for array in arrays:
        kept.append(array[(slice(None),) * axis + (slice(min(count, array.shape[axis]), None),)])
        count -= min(count, array.shape[axis])
    return kept


def chunks_differ(whole: Array, arrays: Sequence[Array], tolerance: Tolerance, late: int = 0) -> bool:
    """Whether chunks of an inner value, joined along the axis on which their sizes add up, differ from the whole.

    Args:
        late: The most frames by which it may be late.
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
