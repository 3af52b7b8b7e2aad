"""The frames in each value of a model, from the input axes that `stream=` names on: their axis, number and order.

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
from rnn_lowering.facts.size import CHUNK, ONE, TIME, Size, size
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


NOT_LATE = Delay(0, Fraction(1))


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
        frames = Size.symbol(TIME) * self.rate + self.extra
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
    """Frame 0 of a value, along an axis. Only the first chunk contains the frame."""

    axis: int
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


Framing = Frames | Pooled | Unframed | WholeSequenceValue | FirstFrame | FrameNumbers | None
"""None: the value does not depend on the frames. Its shape or numbers may depend on the number of frames."""


_Shapes = Mapping[str, tuple[int | str, ...]]
"""By the name of an input the sizes of its axes: numbers or names."""


@dataclass(frozen=True)
class TimeInputs:
    """The axes of inputs that hold frames.

    Attributes:
        axes: The axis by the name of the input.
        frames: The number of frames of each call; None: any number.
        shapes: The sizes of all axes by the name of the input.
    """

    axes: Mapping[str, int]
    frames: int | None
    shapes: _Shapes

    @property
    def symbol(self) -> str:
        """The name of the time axis: that of the model, unless another axis has that name."""
        names = {d for name, axis in self.axes.items() if isinstance(d := self.shapes[name][axis], str)}
        if len(names) == 1 and not names & self.symbols:
            return names.pop()
        name = "frames"
        while name in self.symbols:
            name += "_"
        return name

    @property
    def symbols(self) -> set[str]:
        """The names of open axes other than time."""
        return {
            d
            for name, dims in self.shapes.items()
            for axis, d in enumerate(dims)
            if isinstance(d, str) and axis != self.axes.get(name)
        }

    def open_shape(self, name: str) -> list[int | str]:
        """Return the sizes of the axes of an input, with a name for the time axis."""
        return [self.symbol if axis == self.axes.get(name) else d for axis, d in enumerate(self.shapes[name])]

    def sizes(self) -> dict[str, tuple[Size, ...]]:
        """Return the shapes of all inputs, the time axes as the number of frames."""
        return {
            name: tuple(
                Size.symbol(TIME if axis == self.axes.get(name) else d)
                if isinstance(d, str) or axis == self.axes.get(name)
                else size(d)
                for axis, d in enumerate(dims)
            )
            for name, dims in self.shapes.items()
        }


def time_inputs(model: ir.Model, stream: Mapping[str, int | None]) -> TimeInputs:
    """Find the axes that `stream` names.

    Args:
        model: The model; it stays as it is.
        stream: For each axis (a symbolic dimension, or INPUT:AXIS) the number of frames in a call, None for any.

    Raises:
        UnsupportedError: An axis that the model does not have, two axes of one input, or numbers that contradict
            each other.
    """
    inputs = {v.name or "": v for v in model.graph.inputs if not v.is_initializer() and v.shape is not None}
    shapes = {name: _dims(name, value) for name, value in inputs.items()}
    axes: dict[str, int] = {}
    for text in stream:
        for name, axis in _named(text, shapes, model):
            if axes.setdefault(name, axis) != axis:
                raise UnsupportedError(
                    f"input '{name}' has two time axes, {axes[name]} and {axis}", hint="give one"
                )
    if not axes:
        raise UnsupportedError("no time axis is given", hint=_listing(shapes))
    frames = set(stream.values())
    if len(frames) > 1:
        raise UnsupportedError("the time axes have different numbers of frames", hint="give all the same number")
    (count,) = frames
    sizes = {d for name, axis in axes.items() if isinstance(d := shapes[name][axis], int)}
    if len(sizes) > 1:
        raise UnsupportedError(
            f"the time axes have {' and '.join(map(str, sorted(sizes)))} frames, but must have the same number",
            hint=_listing(shapes),
        )
    return TimeInputs(axes, count, shapes)


def _named(text: str, shapes: _Shapes, model: ir.Model) -> list[tuple[str, int]]:
    """Return the inputs and axes that a text names."""
    axes = _axes_of_size(shapes, text)
    twice = [name for name in dict(axes) if sum(n == name for n, _ in axes) > 1]
    if twice:
        places = " or ".join(f"{name}:{axis}" for name, axis in axes if name == twice[0])
        raise UnsupportedError(f"input '{twice[0]}' has '{text}' twice", hint=f"name the axis: {places}")
    if axes:
        return axes
    name, colon, axis = text.rpartition(":")
    if colon and name in shapes and axis.lstrip("-").isdigit():
        rank = len(shapes[name])
        if -rank <= int(axis) < rank:
            number = int(axis) % rank
            size = shapes[name][number]
            alike = _symbol(model, name, number) is not None and shapes[name].count(size) == 1
            return _axes_of_size(shapes, size) if alike else [(name, number)]
    raise UnsupportedError(f"no axis is called '{text}'", hint=_listing(shapes))


def _axes_of_size(shapes: _Shapes, size: int | str) -> list[tuple[str, int]]:
    return [(name, axis) for name, dims in shapes.items() for axis, d in enumerate(dims) if d == size]


def _symbol(model: ir.Model, name: str, axis: int) -> str | None:
    """Return the name that an axis of an input has in the model."""
    value = next(v for v in model.graph.inputs if v.name == name)
    dim = value.shape[axis] if value.shape is not None else None
    return dim.value if isinstance(dim, ir.SymbolicDim) else None


def _dims(name: str, value: ir.Value) -> tuple[int | str, ...]:
    """Return the sizes of the axes of an input: numbers or names; an axis without either gets a name."""
    dims = []
    for axis, dim in enumerate(value.shape or ()):
        known = dim if isinstance(dim, int) else dim.value
        dims.append(known if known is not None and known != -1 else f"{name}_{axis}")
    return tuple(dims)


def _listing(shapes: _Shapes) -> str:
    inputs = ", ".join(f"{name} [{', '.join(map(str, dims))}]" for name, dims in shapes.items())
    return f"the model's inputs: {inputs}; name a dimension, or INPUT:AXIS"
