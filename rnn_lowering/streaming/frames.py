"""The framing of each value of a model: on which axis a stream's frames are, and in what order.

The model is evaluated at two numbers of frames (`sized`): an axis that grows holds frames. What a rule then has to
know of an operator is only which axes it couples.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir

from rnn_lowering.errors import UnsupportedError
from rnn_lowering.spec.node import node_ref
from rnn_lowering.streaming.sized import Shape, Sized
from rnn_lowering.types import Array


@dataclass(frozen=True)
class Frames:
    """The axis of a value that holds frames, of size outer * frames * inner.

    Attributes:
        axis: The axis, from 0.
        outer, inner: What a Reshape merged with the frames: position (o * frames + t) * inner + i.
        before: How many frames there are before the first of the stream: paddings on the left.
        behind: How many there are after the last one; negative where the last ones are cut off.
        stride: How many frames of the stream make one of this value.
    """

    axis: int
    outer: int = 1
    inner: int = 1
    before: int = 0
    behind: int = 0
    stride: int = 1

    def size(self, frames: int) -> int:
        """The size of the axis for a whole stream of `frames`."""
        return self.outer * (frames // self.stride + self.before + self.behind) * self.inner

    @property
    def plain(self) -> bool:
        """Whether the axis holds frames only."""
        return self.outer == self.inner == 1

    @property
    def even(self) -> bool:
        """Whether there is exactly one for each frame (or each `stride`) of the stream."""
        return self.before == self.behind == 0


class Unframed(enum.Enum):
    """What holds no frames: a value of the last frame or of all of them; a constant that is the same in each."""

    LAST = enum.auto()
    UNIFORM = enum.auto()


Framing = Frames | Unframed | None
"""None: it does not depend on the stream."""


@dataclass(frozen=True)
class Recurrent:
    """A node whose state is carried from chunk to chunk; `path`: the nodes If around it, each with its branch."""

    node: ir.Node
    path: tuple[tuple[ir.Node, str], ...]


@dataclass(frozen=True)
class Context:
    """A node that reads frames before the chunk: `past` of them.

    Attributes:
        node: A convolution, a pooling, a Pad or a Concat.
        slot: The input whose past it keeps.
        axis: The axis of the frames in what it reads.
        past: How many; 0 where only paddings are to go.
        initial: What they are before the first chunk: a number, or an array with `past` entries along `axis`.
        overlap: How many frames more than the chunk's own its value has already.
        pads: The paddings that the node then has, in the form of its own: all of them, none over time.
        path: The nodes If around it, each with its branch.
    """

    node: ir.Node
    slot: int
    axis: int
    past: int
    initial: float | Array
    overlap: int
    pads: tuple[int, ...]
    path: tuple[tuple[ir.Node, str], ...]

    @property
    def source(self) -> ir.Value:
        """What it reads, as the model is now."""
        value = self.node.inputs[self.slot]
        assert value is not None
        return value


@dataclass(frozen=True)
class Trim:
    """A Slice over the frames, and what it cuts out of a chunk: starts and ends of all its axes."""

    node: ir.Node
    axes: tuple[int, ...]
    starts: tuple[int, ...]
    ends: tuple[int, ...]
    steps: tuple[int, ...]


@dataclass
class Flow:
    """What has been found of a model, node by node.

    Attributes:
        short, long: The model at two numbers of frames.
        counts: These numbers.
        scope: Name of the graph that is being read.
        path: The nodes If around that graph, each with the name of the branch.
        framings: By value; those that are absent do not depend on the stream.
        recurrent, contexts, trims: What is to be changed for a stream, in the order of the model.
        strided: Nodes that make one frame of several, and of how many.
    """

    short: Sized
    long: Sized
    counts: tuple[int, int]
    opset: int
    scope: str = "main graph"
    path: tuple[tuple[ir.Node, str], ...] = ()
    framings: dict[ir.Value, Framing] = field(default_factory=dict)
    recurrent: list[Recurrent] = field(default_factory=list)
    contexts: list[Context] = field(default_factory=list)
    trims: list[Trim] = field(default_factory=list)
    strided: list[tuple[ir.Node, int]] = field(default_factory=list)

    def refuse(self, node: ir.Node, reason: str, hint: str = "") -> UnsupportedError:
        return UnsupportedError(reason, hint=hint, node=node_ref(node, self.scope))

    def shape(self, value: ir.Value, node: ir.Node) -> Shape:
        """The shape of a value at the smaller number of frames."""
        if value not in self.short.shapes or value not in self.long.shapes:
            raise self.refuse(node, f"the shape of '{value.name}' is not known, so neither is its axis of time")
        return self.short.shapes[value]

    def grown(self, value: ir.Value, node: ir.Node) -> int | None:
        """The axis of a value that grows with the frames, None where there is none."""
        before, after = self.shape(value, node), self.long.shapes[value]
        if len(before) != len(after):
            raise self.refuse(node, f"the rank of '{value.name}' depends on the number of frames")
        axes = [axis for axis, pair in enumerate(zip(before, after, strict=True)) if pair[0] != pair[1]]
        if len(axes) > 1:
            raise self.refuse(node, f"compares frames with each other: axes {axes} of '{value.name}' hold frames")
        return axes[0] if axes else None

    def constant(self, value: ir.Value) -> Array | None:
        """The constant that a value is at both numbers of frames; None where there is none or they differ."""
        first, second = self.short.constant(value), self.long.constant(value)
        same = first is not None and second is not None and np.array_equal(first, second)
        return first if same else None

    def framing(self, value: ir.Value, node: ir.Node) -> Framing:
        """Where a value that a node reads as data has its frames."""
        if value in self.framings:
            return self.framings[value]
        first, second = self.short.constant(value), self.long.constant(value)
        if first is None or second is None:
            if self.short.shapes.get(value) != self.long.shapes.get(value):
                raise self.refuse(
                    node, f"the shape of '{value.name}' depends on the number of frames in other ways"
                )
            return None
        if np.array_equal(first, second):
            return None
        axis = self.grown(value, node)
        if axis is not None and all(
            np.array_equal(a, a.take([0], axis) + np.zeros_like(a)) for a in (first, second)
        ):
            return Unframed.UNIFORM
        raise self.refuse(
            node,
            f"'{value.name}' depends on the number of frames, or counts them",
            "what counts frames would start anew with each chunk",
        )

    def joined(self, node: ir.Node, values: Sequence[ir.Value]) -> Framing:
        """What the values that a node reads have in common; their axes may be different ones."""
        framings = [self.framing(value, node) for value in values]
        frames = list(dict.fromkeys(replace(m, axis=0) for m in framings if isinstance(m, Frames)))
        if len(frames) > 1:
            raise self.refuse(node, f"joins values whose frames are not side by side: {_apart(frames)}")
        if frames and Unframed.LAST in framings:
            raise self.refuse(node, "joins each frame with what is known after the last one only")
        if frames:
            return frames[0]
        return next((m for m in (Unframed.LAST, Unframed.UNIFORM) if m in framings), None)

    def framed(self, node: ir.Node, output: ir.Value, framing: Framing) -> Framing:
        """The framing of an output that keeps one result for each frame of `framing`."""
        axis = self.grown(output, node)
        if framing is Unframed.UNIFORM or (framing is None and axis is not None):
            size = self.short.shapes[output][axis] if axis is not None else 0
            framing = Frames(0) if size == self.counts[0] else framing
        if not isinstance(framing, Frames):
            if axis is not None:
                raise self.refuse(node, f"it is not known how '{output.name}' holds the frames")
            return framing
        if axis is None:
            raise self.refuse(node, "joins all frames into one")
        found = replace(framing, axis=axis)
        sizes = [held.shapes[output][axis] for held in (self.short, self.long)]
        if sizes != [found.size(count) for count in self.counts]:
            raise self.refuse(node, "does not give one result for each frame")
        return found

    def rearranged(self, node: ir.Node, value: ir.Value, output: ir.Value) -> Framing:
        """The framing of an output with the elements of `value` in the same order, in another shape."""
        framing = self.framing(value, node)
        if not isinstance(framing, Frames):
            return framing
        axis = self.grown(output, node)
        before, after = self.shape(value, node), self.shape(output, node)
        if axis is None:
            raise self.refuse(node, "mixes the frames with other axes")
        stride = math.prod(before[framing.axis + 1 :]) * framing.inner
        inner, rest = divmod(stride, math.prod(after[axis + 1 :]))
        frames = framing.size(self.counts[0]) // (framing.outer * framing.inner)
        outer, more = divmod(after[axis], max(inner * frames, 1))
        if rest or more or not inner or not outer:
            raise self.refuse(
                node, "mixes the frames with other axes", "was the batch size folded in by an exporter?"
            )
        return self.framed(node, output, replace(framing, axis=axis, inner=inner, outer=outer))


def _apart(frames: Sequence[Frames]) -> str:
    return " and ".join(
        f"{f.before} before, {f.behind} behind" + ("" if f.plain else f", merged {f.outer} x {f.inner}")
        for f in frames
    )
