"""`Flow`: the framing of each value of a model, and the edits that a stream needs, found node by node."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Concatenate, ParamSpec

import onnx_ir as ir

from rnn_lowering.errors import NodeRef, UnsupportedError, counted
from rnn_lowering.facts.numbers import numbers_vary
from rnn_lowering.facts.size import Shape, Size
from rnn_lowering.model.scopes import origin_of
from rnn_lowering.nodes.spec import node_ref
from rnn_lowering.streaming.editor import Editor, NodeEdit
from rnn_lowering.streaming.frames import (
    NO_DELAY,
    Delay,
    FirstFrame,
    FrameNumbers,
    Frames,
    Framing,
    Pairs,
    Pooled,
    Unframed,
    WholeSequenceValue,
)
from rnn_lowering.streaming.sizes import CHUNK, TIME, StreamValues, least_of

P = ParamSpec("P")

MAIN_GRAPH = "main graph"
"""The scope of the nodes that are in no branch."""


@dataclass(frozen=True)
class StatefulNode:
    """A node whose state is carried from chunk to chunk.

    Attributes:
        node: The node.
        delay: Delay of the input; the state keeps its initial value until frame 0 comes.
        late: How long after the sequence has ended the last state comes.
    """

    node: ir.Node
    delay: Delay | None = None
    late: Delay = NO_DELAY


@dataclass
class Flow:
    """The framings and edits found so far, node by node.

    Attributes:
        known: Types, shapes and constants.
        scope: Name of the graph that is being read.
        framings: Framing by value; a value without an entry does not depend on the stream.
        recurrent, edits: The changes that a stream needs, in the order of the model.
        units: Pairs of a node and the number that must divide the number of frames.
        numbers_read: By value, the nodes that read numbers of frames as data. These continue in the next chunk.
        caches: The Concat nodes that put frames before those of the stream, which an input may hold; each with the
            values that are its last frames, as many as it puts there.
        ahead: Pairs of a node that reads future frames and the number of these, in frames of the stream.
        loops: Loops that could not become Scans, each with the error.
        lengths: Inputs of the model that are sequence lengths.
        max_frames: The cache of an attention to all past frames has as many rows; None: it grows.
        data: The values that are computed from what inputs hold, not from sizes only.
        replaced: The inputs of nodes that edits of attention replace: masks and biases.
        attended: The product of each attention, and the node that weighs its values.
        fewest_frames: The number of frames that a sequence must have, though no node cuts off as many.
        last_frame: The number of frames after which a stream ends; None: never.
        last_call: The number of frames after which no more may be fed, with the zeros behind a late stream.
    """

    known: StreamValues
    scope: str = MAIN_GRAPH
    framings: dict[ir.Value, Framing] = field(default_factory=dict)
    recurrent: list[StatefulNode] = field(default_factory=list)
    edits: list[NodeEdit] = field(default_factory=list)
    units: list[tuple[NodeRef | None, int]] = field(default_factory=list)
    numbers_read: dict[ir.Value, list[ir.Node]] = field(default_factory=dict)
    caches: dict[ir.Node, list[ir.Value]] = field(default_factory=dict)
    ahead: list[tuple[NodeRef, int]] = field(default_factory=list)
    loops: Mapping[NodeRef, UnsupportedError] = field(default_factory=dict)
    lengths: set[ir.Value] = field(default_factory=set)
    max_frames: int | None = None
    data: set[ir.Value] = field(default_factory=set)
    replaced: set[tuple[ir.Node, int]] = field(default_factory=set)
    attended: dict[ir.Node, ir.Node] = field(default_factory=dict)
    fewest_frames: int = 1
    last_frame: int | None = None
    last_call: int | None = None

    @property
    def opset(self) -> int:
        return self.known.opset

    def refuse(self, node: ir.Node, reason: str, hint: str = "") -> UnsupportedError:
        return UnsupportedError(reason, hint=hint, node=origin_of(node, self.scope))

    @property
    def unit(self) -> int:
        """The number that must divide the number of frames."""
        return self.known.unit

    @property
    def shortest(self) -> int:
        """The number of frames of the shortest sequence from which no node cuts off or takes more than it has."""
        needed = self.fewest_frames
        for value, framing in self.framings.items():
            frames = framing.frames if isinstance(framing, FrameNumbers | Pooled) else framing
            if isinstance(frames, Frames):
                node = value.producer()
                least = 0 if node is not None and node.op_type == "Slice" else 1
                needed = max(needed, math.ceil((least - frames.extra) / frames.rate))
        return -(-needed // self.unit) * self.unit

    def change(
        self,
        node: ir.Node,
        function: Callable[Concatenate[Editor, ir.Node, P], None],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> None:
        """Record a change of a node that adds no state: a call of a function."""
        self.edits.append(NodeEdit(node, lambda editor: function(editor, node, *args, **kwargs)))

    def keep(self, node: ir.Node, make: Callable[[Editor], None], *, carries: bool = True) -> None:
        """Record a change of a node that adds a state, if it carries one."""
        self.edits.append(NodeEdit(node, make, carries))

    def require_frames(self, frames: Frames, count: int) -> None:
        """Require a sequence in which a value has so many frames."""
        self.fewest_frames = max(self.fewest_frames, math.ceil((count - frames.extra) / frames.rate))

    def require_multiple(self, node: NodeRef | None, unit: int) -> None:
        """Require that `unit` divides the number of frames, for a node."""
        if self.unit % unit:
            self.units.append((node, unit))
            self.known.unit = math.lcm(self.unit, unit)

    def resampled(self, node: ir.Node, output: ir.Value, before: Frames, after: Frames) -> Frames:
        """Return the framing of an output of another rate or delay; note how far it looks ahead."""
        more = after.delay.of_stream - before.delay.of_stream
        if more > 0:
            self.ahead.append((node_ref(node, self.scope), math.ceil(more)))
        self.require_multiple(node_ref(node, self.scope), after.rate.denominator)
        return self.resized(node, output, after)

    def shape(self, value: ir.Value, node: ir.Node) -> Shape:
        """Return the shape of a value that a node reads or returns."""
        if value not in self.known.shapes:
            raise self.refuse(
                node,
                f"the shape of '{value.name}' is not known, so its time axis cannot be found",
                "fix sizes with --set-dim",
            )
        return self.known.shapes[value]

    def is_timed(self, value: ir.Value) -> bool:
        """Whether a value depends on the stream or on its length."""
        timed = any(dim.varies for dim in self.known.shapes.get(value, ()))
        return self.framings.get(value) is not None or timed or numbers_vary(self.known, value)

    def read(self, value: ir.Value, node: ir.Node) -> Frames | Unframed | None:
        """Return the framing of a value for a node that reads it as data; note which frame numbers are data."""
        framing = self.framings.get(value)
        if isinstance(framing, WholeSequenceValue | FirstFrame | Pairs | Pooled):
            raise framing.error
        if isinstance(framing, FrameNumbers):
            self.numbers_read.setdefault(value, []).append(node)
            self._note_rows(node, value, framing)
            return framing.frames
        if framing is not None:
            return framing
        if numbers_vary(self.known, value):
            raise self.refuse(
                node,
                f"'{value.name}' depends on the number of frames, which a stream never knows",
                "only sizes may depend on it",
            )
        return self.by_size(value, node) if any(dim.varies for dim in self.known.shapes.get(value, ())) else None

    def _note_rows(self, node: ir.Node, value: ir.Value, numbers: FrameNumbers) -> None:
        """Note the end of a stream whose frame numbers pick rows of a table."""
        table = node.inputs[0] if node.op_type == "Gather" and node.domain == "" else None
        if table is None or node.inputs[1] is not value or self.is_timed(table) or numbers.step < 1:
            return
        shape = self.known.shapes.get(table, ())
        axis = node.attributes.get_int("axis", 0) or 0
        rows = shape[axis].constant if -len(shape) <= axis < len(shape) else None
        if rows is not None:
            self.end_with(numbers.frames, (int(rows) - 1 - int(numbers.offsets.max(initial=0))) // numbers.step + 1)

    def end_with(self, frames: Frames, rows: int) -> None:
        """Let the stream end, with the zeros behind a late one, when a value has this many frames."""
        last = int((rows - frames.extra) / frames.rate)
        self.last_frame, self.last_call = least_of(last, self.last_frame), least_of(last, self.last_call)

    def by_size(self, value: ir.Value, node: ir.Node) -> Frames:
        """Return the framing of numbers of frames, or of a value that is equal in every frame, from its size."""
        frames, lacking = self.frames_and_lacking(value, node)
        if lacking:
            raise self.refuse(
                node,
                f"'{value.name}' has {counted(lacking, 'frame')} fewer than the chunk",
                "count as many frames as the other inputs have",
            )
        return frames

    def frames_and_lacking(self, value: ir.Value, node: ir.Node) -> tuple[Frames, int]:
        """Return the framing that follows from the size of a value, and how many frames each chunk lacks."""
        axes = [axis for axis, dim in enumerate(self.known.shapes[value]) if dim.varies]
        if len(axes) == 1:
            dim = self.known.shapes[value][axes[0]]
            rate, extra = dim.coefficient(TIME), dim.coefficient()
            if rate > 0 and extra.denominator == 1:
                ready = int(extra + dim.coefficient(CHUNK))
                frames, lacking = Frames(axes[0], extra=int(extra), ready=max(ready, 0), rate=rate), max(-ready, 0)
                if frames.size() - Size.symbol(CHUNK) * lacking == dim:
                    return frames, lacking
        raise self.refuse(
            node,
            f"the shape of '{value.name}' depends on the number of frames in a way that a stream cannot follow",
            "sizes may be the number of frames times a constant, plus a constant",
        )

    def framed(self, node: ir.Node, output: ir.Value, framing: Frames) -> Frames:
        """Return the framing of an output with one result per frame, checked against its shape."""
        shape = self.shape(output, node)
        if any(dim.varies for axis, dim in enumerate(shape) if axis != framing.axis):
            raise self.refuse(node, "compares frames with each other", "let it act on each frame alone")
        if framing.axis >= len(shape) or shape[framing.axis] != framing.size():
            raise self.refuse(node, "does not return one result per frame", "let it act on each frame alone")
        return framing

    def resized(self, node: ir.Node, output: ir.Value, framing: Frames) -> Frames:
        """Return the framing of an output whose operator changes the number of frames."""
        shape = list(self.shape(output, node))
        shape[framing.axis] = framing.size()
        self.known.shapes[output] = tuple(shape)
        return self.framed(node, output, framing)
