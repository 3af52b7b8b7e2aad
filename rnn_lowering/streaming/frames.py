"""The frames in each value of a model: their axis, number and order.

A value has T * rate + extra frames in all. After t frames, t * rate + known of them are final. If `known` is
negative, the value has a delay of -known frames, and its first chunks start with that many frames of no meaning.

Example, with T = 10 and t = 4:

* Pad of 2 on the left: extra 2, known 2. The value has 12 frames, and 6 are final: the padding and frames 0 to 3.
* Conv of kernel 3 with padding 1 and 1: extra 0, known -1. The value has 10 frames, and 3 are final: frame 3 reads
  frame 4. The delay is 1.
* Resize by 2 of that Conv: rate 2, extra 0, known -2. The value has 20 frames, and 6 are final. The delay is 2.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

import onnx_ir as ir

from rnn_lowering.errors import NodeRef, UnsupportedError
from rnn_lowering.model.scopes import ORIGIN
from rnn_lowering.spec.node_spec import node_ref
from rnn_lowering.streaming.delays import Delay, LengthSoFar, Wait
from rnn_lowering.streaming.edit import NodeEdit
from rnn_lowering.streaming.inference import Shape, SymbolicValues
from rnn_lowering.streaming.polynomials import CHUNK, ONE, TIME, Size, product
from rnn_lowering.streaming.shape_arithmetic import depends_on_time
from rnn_lowering.types import Array


@dataclass(frozen=True)
class Frames:
    """The axis of a value that holds frames, of size outer * frames * inner.

    Attributes:
        axis: The axis, from 0.
        outer, inner: What a Reshape merged with the frames: position (o * frames + t) * inner + i.
        extra: The whole value has T * rate + `extra` frames: more by padding, fewer (negative) by a cut.
        known: After t frames of the stream, t * rate + `known` frames are final. Padding at the end makes `known`
            smaller than `extra`; a cut at the end makes `known` larger.
        rate: Frames of the value per frame of the stream.
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
        """The number of extra frames in each chunk: `known`, or 0 if `known` is negative."""
        return max(self.known, 0)

    @property
    def delay(self) -> Delay:
        """The delay: -`known` frames, or 0 if `known` is positive."""
        return Delay(max(-self.known, 0), self.rate)

    @property
    def plain(self) -> bool:
        """Whether the axis holds frames only."""
        return self.outer == self.inner == ONE

    @property
    def even(self) -> bool:
        """Whether `extra` and `known` are both 0."""
        return self.extra == self.known == 0

    @property
    def one_by_one(self) -> bool:
        """Whether neither a chunk nor the whole has extra frames; a delay is allowed."""
        return self.known <= self.extra <= 0

    @property
    def cut(self) -> bool:
        """Whether a cut removes frames at the end of the sequence."""
        return self.extra < self.known


class Unframed(enum.Enum):
    """A value without frames that is final after the last frame only."""

    LAST = enum.auto()


@dataclass(frozen=True)
class WholeSequenceValue:
    """A value that depends on the whole sequence. A node that reads the value raises `error`."""

    error: UnsupportedError


@dataclass(frozen=True)
class FirstFrame:
    """Frame 0 of a value, along an axis. Only the first chunk contains the frame."""

    axis: int
    error: UnsupportedError


@dataclass(frozen=True)
class Counter:
    """A value that counts frames: `step` * t + `offsets` at frame t. In a chunk, t starts from 0 again.

    Attributes:
        frames: The framing of the value.
        step: The increment per frame.
        offsets: The value at frame 0: an array with one entry along the axis of the frames.
    """

    frames: Frames
    step: int
    offsets: Array = field(compare=False)


@dataclass(frozen=True)
class Pooled:
    """Frames that a stream can only sum. A node that reads a single frame raises `error`.

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
        path: The If nodes around the node, each with its branch.
        delay: Delay of the input; the state keeps its initial value until frame 0 comes.
    """

    node: ir.Node
    path: tuple[tuple[ir.Node, str], ...]
    delay: Delay | None = None


@dataclass
class Flow:
    """The framings and edits found so far, node by node.

    Attributes:
        known: Types, shapes and constants.
        scope: Name of the graph that is being read.
        path: The nodes If around that graph, each with the name of the branch.
        framings: Framing by value; a value without an entry does not depend on the stream.
        recurrent, edits: The changes that a stream needs, in the order of the model.
        units: Pairs of a node and the number that must divide the number of frames.
        counted: Counters that a node reads as data. They must continue in the next chunk.
        caches: By output the Concat nodes that put frames before those of the stream which an input may hold.
        tails: Values with the last frames of a cache, as many as the cache holds.
        means: By value the nodes that pool all frames to their mean.
        ahead: Pairs of a node that reads future frames and the number of these, in frames of the stream.
        late_states: Last states that are late, with the error of an output that is not their next value.
        loops: Loops that are no Scans, each with the reason.
    """

    known: SymbolicValues
    scope: str = "main graph"
    path: tuple[tuple[ir.Node, str], ...] = ()
    framings: dict[ir.Value, Framing] = field(default_factory=dict)
    recurrent: list[StatefulNode] = field(default_factory=list)
    edits: list[NodeEdit] = field(default_factory=list)
    units: list[tuple[NodeRef | None, int]] = field(default_factory=list)
    counted: dict[ir.Value, list[ir.Node]] = field(default_factory=dict)
    caches: dict[ir.Value, ir.Node] = field(default_factory=dict)
    tails: dict[ir.Value, ir.Node] = field(default_factory=dict)
    means: dict[ir.Value, ir.Node] = field(default_factory=dict)
    ahead: list[tuple[NodeRef, int]] = field(default_factory=list)
    late_states: dict[ir.Value, UnsupportedError] = field(default_factory=dict)
    loops: Mapping[NodeRef, UnsupportedError] = field(default_factory=dict)

    @property
    def opset(self) -> int:
        return self.known.opset

    def refuse(self, node: ir.Node, reason: str, hint: str = "") -> UnsupportedError:
        return UnsupportedError(reason, hint=hint, node=node.meta.get(ORIGIN) or node_ref(node, self.scope))

    @property
    def unit(self) -> int:
        """The number that must divide the number of frames."""
        return self.known.unit

    def require_multiple(self, node: NodeRef | None, unit: int) -> None:
        """Require that `unit` divides the number of frames, for a node."""
        if self.unit % unit:
            self.units.append((node, unit))
            self.known.unit = math.lcm(self.unit, unit)

    def resampled(self, node: ir.Node, output: ir.Value, framing: Frames) -> Frames:
        """Return the framing of an output with another rate."""
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
        """Return the framing of a value that a node reads as data."""
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
        """Return the framing of a counter, or of a value that is equal in every frame, from its size."""
        found, lacking = self.counted_by_size(value, node)
        if lacking:
            raise self.refuse(node, f"'{value.name}' lacks {lacking} of the frames of each chunk")
        return found

    def counted_by_size(self, value: ir.Value, node: ir.Node) -> tuple[Frames, int]:
        """Return the framing that the size of a value tells, and how many frames the value lacks in each chunk."""
        axes = [axis for axis, dim in enumerate(self.known.shapes[value]) if dim.timed]
        if len(axes) == 1:
            dim = self.known.shapes[value][axes[0]]
            rate, extra = dim.coefficient(TIME), dim.coefficient()
            if rate > 0 and extra.denominator == 1:
                known = int(extra + dim.coefficient(CHUNK))
                found, lacking = Frames(axes[0], extra=int(extra), known=max(known, 0), rate=rate), max(-known, 0)
                if found.size() - Size.symbol(CHUNK) * lacking == dim:
                    return found, lacking
        raise self.refuse(node, f"the shape of '{value.name}' depends on the number of frames in other ways")

    def joined(self, node: ir.Node, slots: Sequence[int]) -> tuple[Frames | Unframed | None, dict[int, int]]:
        """Return the common framing of the inputs of a node, and the axis of the frames by input slot."""
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
        """Return the framing of a number computed from the length, if a node reads it with a pooled value."""
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
        """Delay an input of a node until it has the delay of the other inputs."""
        value = node.inputs[slot]
        assert value is not None
        if not framing.plain:
            raise self.refuse(node, f"joins values whose frames are not aligned: {_apart([framing, later])}")
        past = later.delay.frames - framing.delay.frames
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
        """Record a node whose output has a larger delay than its input."""
        more = after.delay.frames / after.rate - before.delay.frames / before.rate
        if more > 0:
            self.ahead.append((node_ref(node, self.scope), math.ceil(more)))

    def _same_as(self, value: ir.Value, frames: Frames) -> Frames | None:
        """Return the framing of a value that is equal in every frame, if its size matches `frames`."""
        dims = self.known.shapes.get(value, ())
        timed = [axis for axis, dim in enumerate(dims) if dim.timed]
        if value in self.framings or depends_on_time(self.known, value) or len(timed) != 1:
            return None
        return replace(frames, axis=timed[0]) if dims[timed[0]] == frames.size() else None

    def framed(self, node: ir.Node, output: ir.Value, framing: Frames) -> Frames:
        """Return the framing of an output with one result per frame, checked against its shape."""
        shape = self.shape(output, node)
        if any(dim.timed for axis, dim in enumerate(shape) if axis != framing.axis):
            raise self.refuse(node, "compares frames with each other")
        if framing.axis >= len(shape) or shape[framing.axis] != framing.size():
            raise self.refuse(node, "does not return one result per frame")
        return framing

    def resized(self, node: ir.Node, output: ir.Value, framing: Frames) -> Frames:
        """Return the framing of an output whose operator changes the number of frames."""
        shape = list(self.shape(output, node))
        shape[framing.axis] = framing.size()
        self.known.shapes[output] = tuple(shape)
        return self.framed(node, output, framing)

    def last_state(
        self, node: ir.Node, framing: Frames, states: Sequence[ir.Value]
    ) -> Unframed | WholeSequenceValue:
        """Return the framing of the last states of a node. If they are late, only the stream may carry them."""
        late = framing.extra - framing.known
        if not late:
            return Unframed.LAST
        error = self.refuse(
            node,
            f"returns its last state, which comes {late} frame{'s'[: late != 1]} after the sequence has ended",
            "drop that output, since the stream carries the state, or give the node an initial state to return",
        )
        if framing.extra > 0 or self.path:
            return WholeSequenceValue(error)
        self.late_states.update((v, error) for v in states if v.name)
        return Unframed.LAST

    def rearranged(self, node: ir.Node, slot: int, output: ir.Value) -> Frames | Unframed | None:
        """Return the framing of an output that reshapes an input and keeps the order of its elements."""
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
    """Return the framing at which `inner` elements become frames: their number multiplies the rate."""
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
