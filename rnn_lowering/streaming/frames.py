"""The frames in each value of a model: their axis, number and order.

One account holds for every operator. Of a whole sequence of T frames a value has T * rate + `extra`. While it is
streamed, `known` more than the frames so far are certain: paddings on the left are known early. A chunk holds
the `known` frames besides its own, and none of those that only the end decides. What looks ahead has fewer than the
frames so far: `known` is negative, and each frame comes `lag` frames after its turn. Until the first one has come,
a chunk holds frames that mean nothing.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

import onnx_ir as ir

from rnn_lowering.errors import NodeRef, UnsupportedError
from rnn_lowering.spec.node_spec import node_ref
from rnn_lowering.streaming.edit import NodeEdit, Path
from rnn_lowering.streaming.inference import Shape, SymbolicValues
from rnn_lowering.streaming.lateness import Lateness, LengthSoFar, Wait
from rnn_lowering.streaming.polynomials import CHUNK, ONE, TIME, Size, product
from rnn_lowering.streaming.shape_arithmetic import depends_on_time
from rnn_lowering.types import Array


@dataclass(frozen=True)
class Frames:
    """The axis of a value that holds frames, of size outer * frames * inner.

    Attributes:
        axis: The axis, from 0.
        outer, inner: What a Reshape merged with the frames: position (o * frames + t) * inner + i.
        extra: How many frames the whole has more than the stream: paddings, or (negative) frames that are cut off.
        known: How many more than its own a chunk has: those that are certain before their turn. Less than `extra`
            where the end of the sequence is padded; more where its last frames are cut off.
        rate: How many frames it has for each frame of the stream.
    """

    axis: int
    outer: Size = ONE
    inner: Size = ONE
    extra: int = 0
    known: int = 0
    rate: Fraction = Fraction(1)

    def size(self) -> Size:
        """The size of the axis."""
        frames = Size.symbol(TIME) * self.rate + self.extra
        return (frames + Size.symbol(CHUNK) * (self.overlap - self.extra)) * self.outer * self.inner

    @property
    def overlap(self) -> int:
        """How many frames a chunk has besides its own."""
        return max(self.known, 0)

    @property
    def lag(self) -> int:
        """How many frames after its turn each one comes."""
        return max(-self.known, 0)

    @property
    def lateness(self) -> Lateness | None:
        """None where each frame comes in its turn."""
        return Lateness(self.lag, self.rate) if self.lag else None

    @property
    def plain(self) -> bool:
        """Whether the axis holds frames only."""
        return self.outer == self.inner == ONE

    @property
    def even(self) -> bool:
        """Whether a chunk has exactly its own frames, and the whole no others."""
        return self.extra == self.known == 0

    @property
    def one_by_one(self) -> bool:
        """Whether a chunk has as many as it has frames, and the whole no others, though they may be late."""
        return self.known <= self.extra <= 0

    @property
    def cut(self) -> bool:
        """Whether the whole lacks frames at the end that a chunk still has."""
        return self.extra < self.known


class Unframed(enum.Enum):
    """What holds no frames: a value that is known after the last frame only."""

    LAST = enum.auto()


@dataclass(frozen=True)
class WholeSequenceValue:
    """A value that a chunk cannot tell, since it depends on the whole sequence: what reads it raises `error`."""

    error: UnsupportedError


@dataclass(frozen=True)
class FirstFrame:
    """The first frame of a value, along an axis: known from the first chunk on, but no later one has it."""

    axis: int
    error: UnsupportedError


@dataclass(frozen=True)
class Counter:
    """The numbers of frames: at frame t they are `step` * t + `offsets`, in a chunk counted from its own first.

    Attributes:
        frames: Where its frames are.
        step: How far it counts for each of them.
        offsets: What it starts with: an array with one entry along the axis of the frames.
    """

    frames: Frames
    step: int
    offsets: Array = field(compare=False)


@dataclass(frozen=True)
class Pooled:
    """Frames of which only a sum over all of them can be known: what reads one of them raises `error`.

    Attributes:
        kind: "weights" of a softmax over them, frames that are "weighted" so, "deviations" from their mean, or the
            "squares" of these.
        frames: How they are held.
        origin: The Softmax, or the node that subtracts the mean.
        moves: The nodes that rearranged the weights.
        axis: The axis of the frames in the weights.
    """

    kind: str
    frames: Frames
    origin: ir.Node
    error: UnsupportedError
    moves: tuple[ir.Node, ...] = ()
    axis: int = 0


Framing = Frames | Pooled | Unframed | WholeSequenceValue | FirstFrame | Counter | None
"""None: it does not depend on the stream, but for its length where its shape or numbers say so."""


@dataclass(frozen=True)
class StatefulNode:
    """A node whose state is carried from chunk to chunk.

    Attributes:
        node: The node.
        path: The nodes If around it, each with its branch.
        late: How late what it reads is: its state stays as it is until the first frame has come.
    """

    node: ir.Node
    path: tuple[tuple[ir.Node, str], ...]
    late: Lateness | None = None


@dataclass
class Flow:
    """What has been found of a model, node by node.

    Attributes:
        known: Types, shapes and constants.
        scope: Name of the graph that is being read.
        path: The nodes If around that graph, each with the name of the branch.
        framings: By value; those that are absent do not depend on the stream.
        recurrent, edits: What is to be changed for a stream, in the order of the model.
        units: Nodes that need a multiple of so many frames.
        counted: Counters that a node reads as data, so that these must go on counting in the next chunk.
        paths: The nodes If around counters.
        caches: By output the Concat nodes that put frames before those of the stream which an input may hold.
        tails: Values that are the last frames of these, as many as were put before.
        means: By value the nodes that pool all frames to their mean.
        ahead: Nodes that look ahead, and by how many frames of the stream.
    """

    known: SymbolicValues
    scope: str = "main graph"
    path: tuple[tuple[ir.Node, str], ...] = ()
    framings: dict[ir.Value, Framing] = field(default_factory=dict)
    recurrent: list[StatefulNode] = field(default_factory=list)
    edits: list[NodeEdit] = field(default_factory=list)
    units: list[tuple[NodeRef | None, int]] = field(default_factory=list)
    counted: dict[ir.Value, list[ir.Node]] = field(default_factory=dict)
    paths: dict[ir.Value, Path] = field(default_factory=dict)
    caches: dict[ir.Value, ir.Node] = field(default_factory=dict)
    tails: dict[ir.Value, ir.Node] = field(default_factory=dict)
    means: dict[ir.Value, ir.Node] = field(default_factory=dict)
    ahead: list[tuple[NodeRef, int]] = field(default_factory=list)

    @property
    def opset(self) -> int:
        return self.known.opset

    def refuse(self, node: ir.Node, reason: str, hint: str = "") -> UnsupportedError:
        return UnsupportedError(reason, hint=hint, node=node_ref(node, self.scope))

    @property
    def unit(self) -> int:
        """What divides the number of frames."""
        return self.known.unit

    def require_multiple(self, node: NodeRef | None, unit: int) -> None:
        """Require that `unit` divides the number of frames, for a node."""
        if self.unit % unit:
            self.units.append((node, unit))
            self.known.unit = math.lcm(self.unit, unit)

    def resampled(self, node: ir.Node, output: ir.Value, framing: Frames) -> Frames:
        """The framing of an output that has another number of frames for each frame of the stream."""
        self.require_multiple(node_ref(node, self.scope), framing.rate.denominator)
        return self.resized(node, output, framing)

    def shape(self, value: ir.Value, node: ir.Node) -> Shape:
        """The shape of a value."""
        if value not in self.known.shapes:
            raise self.refuse(node, f"the shape of '{value.name}' is not known, so neither is its axis of time")
        return self.known.shapes[value]

    def is_timed(self, value: ir.Value) -> bool:
        """Whether a value depends on the stream or on its length."""
        timed = any(dim.timed for dim in self.known.shapes.get(value, ()))
        return self.framings.get(value) is not None or timed or depends_on_time(self.known, value)

    def framing(self, value: ir.Value, node: ir.Node) -> Frames | Unframed | None:
        """Where a value that a node reads as data has its frames."""
        framing = self.framings.get(value)
        if isinstance(framing, WholeSequenceValue | FirstFrame | Pooled):
            raise framing.error
        if isinstance(framing, Counter):
            self.counted.setdefault(value, []).append(node)
            return framing.frames
        if framing is not None:
            return framing
        if depends_on_time(self.known, value):
            raise self.refuse(
                node,
                f"'{value.name}' depends on the number of frames, which a stream never knows",
                "only sizes may depend on it",
            )
        return self.by_size(value, node) if any(dim.timed for dim in self.known.shapes.get(value, ())) else None

    def by_size(self, value: ir.Value, node: ir.Node) -> Frames:
        """The framing of a value that is the same in each frame or counts them: only its size tells of these."""
        axes = [axis for axis, dim in enumerate(self.known.shapes[value]) if dim.timed]
        if len(axes) == 1:
            dim = self.known.shapes[value][axes[0]]
            rate, extra = dim.coefficient(TIME), dim.coefficient()
            if rate > 0 and extra.denominator == 1:
                known = int(extra + dim.coefficient(CHUNK))
                if known < 0:
                    raise self.refuse(node, f"'{value.name}' lacks {-known} of the frames of each chunk")
                found = Frames(axes[0], extra=int(extra), known=known, rate=rate)
                if found.size() == dim:
                    return found
        raise self.refuse(node, f"the shape of '{value.name}' depends on the number of frames in other ways")

    def joined(self, node: ir.Node, slots: Sequence[int]) -> tuple[Frames | Unframed | None, dict[int, int]]:
        """What the values that a node reads have in common, and by slot the axis where each has its frames."""
        values = {slot: v for slot in slots if (v := node.inputs[slot]) is not None}
        own = [held for v in values.values() if isinstance(held := self.framings.get(v), Frames)]
        own.sort(key=lambda held: held.known)
        framed: dict[int, Frames] = {}
        last = False
        for slot, value in values.items():
            held = next((same for each in own if (same := self._same_as(value, each)) is not None), None)
            found = held or self._length(node, slot, list(values.values())) or self.framing(value, node)
            if isinstance(found, Frames):
                framed[slot] = found
            last = last or found is Unframed.LAST
        if last and framed:
            raise self.refuse(node, "joins each frame with a value that is known only after the last one")
        kinds = sorted({replace(held, axis=0) for held in framed.values()}, key=lambda kind: kind.known)
        if len({replace(kind, known=0) for kind in kinds}) > 1:
            raise self.refuse(node, f"joins values whose frames are not aligned: {_apart(kinds)}")
        for slot, held in framed.items():
            if held.known > kinds[0].known:
                self._wait(node, slot, held, kinds[0])
        axes = {slot: held.axis for slot, held in framed.items()}
        return (kinds[0] if kinds else Unframed.LAST if last else None), axes

    def _length(self, node: ir.Node, slot: int, values: Sequence[ir.Value]) -> Unframed | None:
        """The framing of a number that depends on the number of frames, read together with what is pooled."""
        value = node.inputs[slot]
        numbers = self.known.numbers(value) if value is not None and depends_on_time(self.known, value) else None
        if value is None or numbers is None or len(numbers) != 1 or self.framings.get(value) is not None:
            return None
        number, dtype = numbers[0].whole(), self.known.types[value]
        factor, offset = number.coefficient(TIME), number.coefficient()
        linear = number == Size.symbol(TIME) * factor + offset
        whole = factor.denominator == offset.denominator == 1 or dtype.is_floating_point()
        if not linear or not whole or not all(self._is_last(v) for v in values if v is not value):
            return None
        shape = tuple(int(dim.constant or 1) for dim in self.known.shapes[value])
        self.edits.append(LengthSoFar(node, slot, factor, offset, shape, dtype))
        return Unframed.LAST

    def _is_last(self, value: ir.Value) -> bool:
        return self.framings.get(value) is Unframed.LAST

    def _wait(self, node: ir.Node, slot: int, framing: Frames, later: Frames) -> None:
        """Let an input of a node wait for those that are later."""
        value = node.inputs[slot]
        assert value is not None
        if not framing.plain:
            raise self.refuse(node, f"joins values whose frames are not aligned: {_apart([framing, later])}")
        past = later.lag - framing.lag
        drop = past + framing.overlap - later.overlap
        wait = Wait(
            node,
            slot,
            framing.axis,
            past,
            framing.overlap,
            drop,
            self.path,
            self.shape(value, node),
            self.known.types[value],
        )
        self.edits.append(wait)

    def note_ahead(self, node: ir.Node, before: Frames, after: Frames) -> None:
        """Note a node that looks ahead: what it returns is later than what it reads."""
        more = after.lag / after.rate - before.lag / before.rate
        if more > 0:
            self.ahead.append((node_ref(node, self.scope), math.ceil(more)))

    def _same_as(self, value: ir.Value, frames: Frames) -> Frames | None:
        """The framing of a value that is the same in each frame, where its size is that of `frames`."""
        dims = self.known.shapes.get(value, ())
        timed = [axis for axis, dim in enumerate(dims) if dim.timed]
        if value in self.framings or depends_on_time(self.known, value) or len(timed) != 1:
            return None
        return replace(frames, axis=timed[0]) if dims[timed[0]] == frames.size() else None

    def framed(self, node: ir.Node, output: ir.Value, framing: Frames) -> Frames:
        """The framing of an output that keeps one result for each frame, checked against its shape."""
        shape = self.shape(output, node)
        if any(dim.timed for axis, dim in enumerate(shape) if axis != framing.axis):
            raise self.refuse(node, "compares frames with each other")
        if framing.axis >= len(shape) or shape[framing.axis] != framing.size():
            raise self.refuse(node, "does not return one result per frame")
        return framing

    def resized(self, node: ir.Node, output: ir.Value, framing: Frames) -> Frames:
        """The framing of an output whose number of frames a rule over time tells."""
        shape = list(self.shape(output, node))
        shape[framing.axis] = framing.size()
        self.known.shapes[output] = tuple(shape)
        return self.framed(node, output, framing)

    def rearranged(self, node: ir.Node, slot: int, output: ir.Value) -> Frames | Unframed | None:
        """The framing of an output with the elements of an input in the same order, in another shape."""
        value = node.inputs[slot]
        assert value is not None
        framing = self.framing(value, node)
        if not isinstance(framing, Frames):
            return framing
        before, after = self.shape(value, node), self.shape(output, node)
        if after[: framing.axis + 1] == before[: framing.axis + 1]:
            return self.framed(node, output, framing)
        inner_total = product(before[framing.axis + 1 :]) * framing.inner
        outer_total = product(before[: framing.axis]) * framing.outer
        for axis in range(len(after)):
            inner = inner_total.divided(product(after[axis + 1 :]))
            outer = outer_total.divided(product(after[:axis]))
            if inner is None or outer is None or not outer.integral(1):
                continue
            found = _at_rate(replace(framing, axis=axis, outer=outer), inner)
            if found is not None and found.size() == after[axis]:
                return self.resampled(node, output, found)
        raise self.refuse(
            node, "mixes the frames with other axes", "did the exporter fix the batch size or a length?"
        )


def _at_rate(framing: Frames, inner: Size) -> Frames | None:
    """The framing with `inner` elements for each frame: a number of these is a rate, since each or several of them
    count as a frame."""
    times = inner.constant
    if times is None:
        return replace(framing, inner=inner) if inner.integral(1) else None
    extra, known = framing.extra * times, framing.known * times
    if times <= 0 or extra.denominator > 1 or known.denominator > 1:
        return None
    return replace(framing, inner=ONE, extra=int(extra), known=int(known), rate=framing.rate * times)


def _apart(frames: Sequence[Frames]) -> str:
    return " and ".join(
        f"{f.known} before, {f.extra - f.known} behind"
        + (f", {f.rate} for each of the stream" if f.rate != 1 else "")
        + ("" if f.plain else f", merged {f.outer} x {f.inner}")
        for f in frames
    )
