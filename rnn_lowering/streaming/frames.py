"""The frames in each value of a model: their axis, number and order.

A value has T * rate + extra frames in all. After t frames, t * rate + ready of them are final. If `ready` is
negative, the value has a delay of -ready frames, and its first chunks start with that many frames of no meaning.

Example, with T = 10 and t = 4:

* Pad of 2 on the left: extra 2, ready 2. The value has 12 frames, and 6 are final: the padding and frames 0 to 3.
* Conv of kernel 3 with padding 1 and 1: extra 0, ready -1. The value has 10 frames, and 3 are final: frame 3 reads
  frame 4. The delay is 1.
* Resize by 2 of that Conv: rate 2, extra 0, ready -2. The value has 20 frames, and 6 are final. The delay is 2.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np
import onnx_ir as ir

from rnn_lowering.errors import UnsupportedError
from rnn_lowering.facts.size import ONE, Size
from rnn_lowering.streaming.sizes import CHUNK, FRAMES, StreamValues
from rnn_lowering.types import Array


@dataclass(frozen=True)
class Delay:
    """The delay of a value in its own frames, and its rate: its frames per frame of the stream.

    A delay of 0 frames is false.
    """

    frames: int
    rate: Fraction

    def __bool__(self) -> bool:
        return self.frames > 0

    @property
    def of_stream(self) -> Fraction:
        """The delay in frames of the stream."""
        return self.frames / self.rate


NO_DELAY = Delay(0, Fraction(1))


@dataclass(frozen=True)
class Frames:
    """The axis of a value that holds frames, of size outer * frames * inner.

    Attributes:
        axis: The axis, from 0.
        outer, inner: What a Reshape merged with the frames: position (o * frames + t) * inner + i.
        extra: The whole value has T * rate + `extra` frames: more by padding, fewer (negative) by a cut.
        ready: After t frames of the stream, t * rate + `ready` frames are final. Padding at the end makes `ready`
            smaller than `extra`; a cut at the end makes `ready` larger.
        rate: Frames of the value per frame of the stream.
    """

    axis: int
    outer: Size = ONE
    inner: Size = ONE
    extra: int = 0
    ready: int = 0
    rate: Fraction = Fraction(1)

    def size(self) -> Size:
        """The size of the axis."""
        frames = FRAMES * self.rate + self.extra
        return (frames + Size.symbol(CHUNK) * (self.overlap - self.extra)) * self.outer * self.inner

    @property
    def overlap(self) -> int:
        """The number of extra frames in each chunk: `ready`, or 0 if `ready` is negative."""
        return max(self.ready, 0)

    @property
    def delay(self) -> Delay:
        """The delay: -`ready` frames, or 0 if `ready` is positive."""
        return Delay(max(-self.ready, 0), self.rate)

    @property
    def late(self) -> Delay:
        """How many frames come after the sequence has ended."""
        return Delay(self.extra - self.ready, self.rate)

    @property
    def plain(self) -> bool:
        """Whether the axis holds frames only."""
        return self.outer == self.inner == ONE

    @property
    def even(self) -> bool:
        """Whether `extra` and `ready` are both 0."""
        return self.extra == self.ready == 0

    @property
    def one_by_one(self) -> bool:
        """Whether neither a chunk nor the whole has extra frames; a delay is allowed."""
        return self.ready <= self.extra <= 0

    @property
    def cut(self) -> bool:
        """Whether a cut removes frames at the end of the sequence."""
        return self.extra < self.ready

    def padded(self, left: int, right: int) -> Frames:
        """Return the framing with frames added before and behind; negative numbers cut frames off."""
        return replace(self, extra=self.extra + left + right, ready=self.ready + left)

    def windows(self, length: int, stride: int) -> Frames:
        """Return the framing with one frame for each window of `length` frames, `stride` frames apart."""
        extra, ready = ((n - length) // stride + 1 for n in (self.extra, self.ready))
        return replace(self, extra=extra, ready=ready, rate=self.rate / stride)

    def repeated(self, times: int) -> Frames:
        """Return the framing with `times` frames for each frame."""
        return replace(self, extra=self.extra * times, ready=self.ready * times, rate=self.rate * times)


class Unframed(enum.Enum):
    """A value without frames that is final after the last frame only."""

    LAST = enum.auto()


@dataclass(frozen=True)
class WholeSequenceValue:
    """A value that depends on the whole sequence. A node that reads the value raises `error`."""

    error: UnsupportedError


@dataclass(frozen=True)
class FirstFrame:
    """Frame 0 of a value, or what is computed from it alone. Only the first chunk contains the frame. A node that
    cannot read it raises `error`."""

    error: UnsupportedError


@dataclass(frozen=True)
class FrameNumbers:
    """Numbers of frames: `step` * t + `offsets` at frame t. In a chunk, t starts from 0 again.

    Attributes:
        frames: The framing of the value.
        step: The increment per frame.
        offsets: The value at frame 0: an array with one entry along the axis of the frames.
    """

    frames: Frames
    step: int
    offsets: Array = field(compare=False)

    def of_first(self, count: int) -> Array:
        """Return the numbers of the first `count` frames."""
        shape = [count if axis == self.frames.axis else 1 for axis in range(self.offsets.ndim)]
        return self.offsets + self.step * np.arange(count).reshape(shape)


@dataclass(frozen=True)
class Pooled:
    """Frames that a stream can only sum. A node that reads a single frame raises `error`.

    Attributes:
        kind: "weights" of a softmax over them, frames that are "weighted" so, "deviations" from their mean, or the
            "squares" of these.
        frames: Their framing.
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


@dataclass(frozen=True)
class Term:
    """A mask or a bias that a node gives to scores.

    Attributes:
        node: The node: a Where, an Add or a Sub; a Mul for weights.
        slot: Its input with the mask or the bias.
        axes: The axes of the pairs in its output, as in `Pairs`.
        removes: For a Where, the value of the condition for which a key is removed; None for what is added.
        factor: By how much later nodes multiply what is added, below 0 for a Sub.
    """

    node: ir.Node
    slot: int
    axes: tuple[int, int]
    removes: bool | None = None
    factor: float = 1.0

    @property
    def scores_slot(self) -> int:
        """The input of the node with the scores, or weights."""
        return 1 - self.slot if self.removes is None else 2 if self.removes else 1

    def fill(self, known: StreamValues) -> float | None:
        """Return what a Where puts in place of a score; None for other nodes."""
        return None if self.removes is None else known.number(self.node.inputs[3 - self.scores_slot])


@dataclass(frozen=True)
class DistanceRows:
    """A value with a row for each distance of two frames: from T - 1 down to 1 - T, or down to `least`.

    Attributes:
        source: The Range, or the Slice of a table, from which it is computed. At a distance d the Range has, or the
            Slice takes the row of, the number base - step * d.
        chain: The nodes behind it that compute each row from itself, in their order.
        dims: Its sizes, None for the number of distances.
        base, step: See `source`.
        most: The number of frames after which the table ends; None for a Range.
        least: The least distance; None if it is 1 - T.
        targets: The sizes that each Reshape gives, likewise.
    """

    source: ir.Node
    chain: tuple[ir.Node, ...]
    dims: tuple[int | None, ...]
    base: int
    step: int
    most: int | None
    least: int | None
    targets: Mapping[ir.Node, tuple[int | None, ...]] = field(compare=False)


@dataclass(frozen=True)
class ByDistance:
    """Scores that a product gives to each query and distance, before they are moved to the pairs of frames.

    Attributes:
        product: The product of the queries and the rows of the distances.
        rows: These rows, its second input.
        scores: The scores before they are moved: the products, or scaled ones.
        last: The node that returns a score for each pair.
    """

    product: ir.Node
    rows: DistanceRows
    scores: ir.Value
    last: ir.Node


@dataclass(frozen=True)
class Pairs:
    """A number for each pair of frames: scores of attention, or weights. A node that cannot read it raises `error`.

    Attributes:
        frames: The framing of both axes; its own axis has no meaning.
        axes: The axes with the frames of the first and of the second input of the product.
        product: The node that computes the scores.
        terms: The masks and biases of the scores, in their order.
        softmax: The node that computes the weights; None for scores.
        columns: Which of both axes has the keys: 0 or 1.
        of_nan: Whether it says which weights are NaN.
        by_distance: The scores by distance that were added to those of the product, or are all if the product is
            theirs.
        again: The masks of the weights, which may change no weight of a key that the scores keep.
    """

    frames: Frames
    axes: tuple[int, int]
    product: ir.Node
    error: UnsupportedError
    terms: tuple[Term, ...] = ()
    softmax: ir.Node | None = None
    columns: int = 1
    of_nan: bool = False
    by_distance: tuple[ByDistance, ...] = ()
    again: tuple[Term, ...] = ()

    @property
    def is_by_distance(self) -> bool:
        """Whether they compare no keys, only distances."""
        return any(each.product is self.product for each in self.by_distance)

    @property
    def rows_and_columns(self) -> tuple[int, int]:
        """The axis of the queries, and the axis of the keys."""
        return self.axes[1 - self.columns], self.axes[self.columns]

    def axes_of(self, term: Term) -> tuple[int, int]:
        """Return the axes of the queries and of the keys in the output of a term."""
        return term.axes[1 - self.columns], term.axes[self.columns]


@dataclass(frozen=True)
class Shifting(Pairs):
    """Scores by distance on their way to pairs: row i has the distances from T - 1 down, in so many columns.

    Attributes:
        rows: The rows of the distances.
        scores: The scores before they are moved.
        stage: How many of the nodes were passed that move column T - 1 - i + j to j.
        lead: The sizes of the axes before the queries.
        count: The number of frames.
    """

    rows: DistanceRows | None = None
    scores: ir.Value | None = None
    stage: int = 0
    lead: tuple[Size, ...] = ()
    count: Size = ONE


Framing = Frames | Pairs | Pooled | Unframed | WholeSequenceValue | FirstFrame | FrameNumbers | None
"""None: the value does not depend on the frames. Its shape or numbers may depend on the number of frames."""
