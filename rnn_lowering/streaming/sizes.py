"""Sizes in a stream: polynomials of the number of frames, which axes of the inputs have.

The size of a value in the whole model and that in a chunk may differ by a constant, since a chunk has the frames
that are known early and none of those at the end. `CHUNK` is 0 in the whole and 1 in a chunk.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
import onnx_ir as ir

from rnn_lowering.argument_checks import meant
from rnn_lowering.errors import OptionError, UnsupportedError
from rnn_lowering.facts.known import KnownValues
from rnn_lowering.facts.size import Counter, Size, size
from rnn_lowering.nodes.spec import axis_by_name
from rnn_lowering.types import Array

TIME, CHUNK = Counter(0, "frames", 1), Counter(1, "chunk", None)
"""The number of frames of a stream; 1 in a chunk and 0 in the whole."""

FRAMES = Size.symbol(TIME)

LARGEST_UNIT = 1 << 16
"""The largest multiple of frames that a stream takes per call, unless the strides of its nodes need more."""


def least_of(*limits: int | None) -> int | None:
    """Return the least of some limits, where None is no limit."""
    return min((limit for limit in limits if limit is not None), default=None)


def first_frames(count: int) -> Size:
    """Return how many frames `x[:, :count]` has: a shorter sequence has fewer."""
    return Size.symbol(Counter(-count, f"min(frames, {count})"))


def in_whole(number: Size) -> Size:
    """Return a size in the whole model."""
    return number.replaced(CHUNK, 0)


def in_chunk(number: Size, frames: int | None) -> int | None:
    """Return a size if every chunk has the same, else None."""
    if not number.symbols <= ({CHUNK} if frames is None else {TIME, CHUNK}):
        return None
    in_each = number.at({CHUNK: 1} if frames is None else {TIME: frames, CHUNK: 1})
    stays = in_each >= 0 or number.constant is not None  # -1 from sizes is none that a Reshape is to find
    return int(in_each) if stays and in_each.denominator == 1 else None


def _of_longer(number: Size, frames: int) -> Size:
    """Return a size for a sequence that has so many frames more."""
    return number.replaced(TIME, FRAMES + frames) if frames else number


def linear(number: Size) -> tuple[Fraction, Fraction] | None:
    """Return a factor and an offset of which a size is frames * factor + offset; None if it has another form."""
    factor, offset = number.coefficient(TIME), number.coefficient()
    return (factor, offset) if number == FRAMES * factor + offset else None


@dataclass
class StreamValues(KnownValues):
    """What is known of values whose sizes depend on the number of frames.

    Attributes:
        unit: The number of frames is a multiple of it.
        shortest: The number of frames is at least this.
        wanted: The number of frames must be a multiple of it for all sizes to be integers.
        floors: Whether a sequence may be taken to have enough frames for no dividend to be negative.
        fewest: As many frames are enough for the divisions so far, if `floors`.
    """

    unit: int = 1
    shortest: int = 1
    wanted: int = 1
    floors: bool = False
    fewest: int = 1

    def denominator(self, number: Size) -> int:
        return math.lcm(*((c * self.unit ** m.count(TIME)).denominator for m, c in number.terms))

    def is_whole(self, number: Size) -> bool:
        """Return whether a size is an integer for every number of frames; if not, `wanted` gets its unit."""
        unit = super().denominator(number)
        possible = all(c.denominator == 1 or TIME in m for m, c in number.terms)
        if possible and self.unit % unit and unit <= LARGEST_UNIT:
            self.wanted = math.lcm(self.wanted, unit)
        return super().is_whole(number)

    def floor(self, number: Size) -> Size | None:
        """Round the constant part down, in the whole and in a chunk; the rest must be an integer."""
        first, more = number.coefficient(), number.coefficient(CHUNK)
        below, chunk = math.floor(first), math.floor(first + more)
        rounded = number - first + below + Size.symbol(CHUNK) * (chunk - below - more)
        return rounded if self.is_whole(rounded) else None

    def in_sequence(self, numbers: Array) -> Array:
        """Return sizes in the whole model, of sequences with so many frames more than `shortest`."""
        sizes = [_of_longer(in_whole(size(n)), self.shortest - 1) for n in numbers.reshape(-1).tolist()]
        return np.array([*sizes, None], object)[:-1].reshape(numbers.shape)

    def never_negative(self, number: Size) -> bool:
        return _of_longer(in_whole(number), self.shortest - 1).never_negative

    def divides_down(self, quotient: Size) -> bool:
        in_sequence = _of_longer(in_whole(quotient), self.shortest - 1)
        in_call = _of_longer(quotient.replaced(CHUNK, 1), self.unit - 1)
        if in_sequence.at_least(0) and in_call.at_least(0):
            return True
        factor, offset = linear(quotient) or (0, 0)
        if not self.floors or factor <= 0:
            return False
        self.fewest = max(self.fewest, math.ceil(-offset / factor))
        return True

    def rows_up_to(self, end: int, length: Size) -> Size | None:
        return first_frames(end) if length == FRAMES else None


# The axes of the inputs that hold frames: those that `stream=` names.


_Shapes = Mapping[str, tuple[int | str, ...]]
"""By the name of an input the sizes of its axes: numbers or names."""


@dataclass(frozen=True)
class TimeInputs:
    """The axes of inputs that hold frames.

    Attributes:
        axes: The axis by the name of the input.
        frames: The number of frames of the stream in each call; None: any number.
        shapes: The sizes of all axes by the name of the input.
        rates: How many frames an input has for each frame of the stream, by its name; absent: 1.
    """

    axes: Mapping[str, int]
    frames: int | None
    shapes: _Shapes
    rates: Mapping[str, int] = field(default_factory=dict)

    def rate(self, name: str) -> int:
        """Return how many frames an input has for each frame of the stream."""
        return self.rates.get(name, 1)

    @property
    def symbol(self) -> str:
        """The name of the time axis, as the model has it unless another axis has the same name."""
        of_stream = [name for name in self.axes if self.rate(name) == 1]
        names = {d for name in of_stream if isinstance(d := self.shapes[name][self.axes[name]], str)}
        if len(names) == 1 and not names & self.symbols:
            return names.pop()
        return self._unused("frames")

    def _unused(self, name: str) -> str:
        while name in self.symbols:
            name += "_"
        return name

    def symbol_of(self, name: str) -> str:
        """The name of the time axis of an input."""
        return self.symbol if self.rate(name) == 1 else self._unused(f"{self.symbol}_times_{self.rate(name)}")

    def in_calls(self) -> dict[str, int]:
        """The sizes of the time axes in each call, by their names; empty if calls have any number of frames."""
        frames = self.frames
        return {} if frames is None else {self.symbol_of(name): frames * self.rate(name) for name in self.axes}

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
        symbol = self.symbol_of(name)
        return [symbol if axis == self.axes.get(name) else d for axis, d in enumerate(self.shapes[name])]

    def sizes(self) -> dict[str, tuple[Size, ...]]:
        """Return the shapes of all inputs, the time axes as the number of frames."""
        return {
            name: tuple(
                FRAMES * self.rate(name)
                if axis == self.axes.get(name)
                else Size.symbol(d)
                if isinstance(d, str)
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
            A frame of the stream is their greatest common divisor.

    Raises:
        OptionError: An axis that the model does not have.
        UnsupportedError: Two axes of one input, or numbers that contradict each other.
    """
    inputs = {v.name or "": v for v in model.graph.inputs if not v.is_initializer() and v.shape is not None}
    shapes = {name: _dims(name, value) for name, value in inputs.items()}
    axes: dict[str, int] = {}
    counts: dict[str, int | None] = {}
    for text, count in stream.items():
        for name, axis in _named(text, shapes, model):
            if axes.setdefault(name, axis) != axis:
                raise UnsupportedError(
                    f"input '{name}' has two time axes, {axes[name]} and {axis}", hint="give one"
                )
            if counts.setdefault(name, count) != count:
                raise UnsupportedError(
                    f"input '{name}' has {counts[name]} and {count} frames in a call", hint="give one number"
                )
    if not axes:
        raise UnsupportedError("no time axis is given", hint=_listing(shapes))
    frames, rates = _rates(counts)
    _check_sizes(axes, shapes, rates)
    return TimeInputs(axes, frames, shapes, rates)


def _check_sizes(axes: Mapping[str, int], shapes: _Shapes, rates: Mapping[str, int]) -> None:
    """Refuse sizes of time axes that are not in the proportion of the rates."""
    sizes = {name: d for name, axis in axes.items() if isinstance(d := shapes[name][axis], int)}
    if len({Fraction(d, rates.get(name, 1)) for name, d in sizes.items()}) < 2:
        return
    said = f"the time axes have {' and '.join(map(str, dict.fromkeys(sizes.values())))} frames"
    if not rates:
        raise UnsupportedError(f"{said}, but must have the same number", hint=_listing(shapes))
    proportion = " and ".join(dict.fromkeys(str(rates.get(name, 1)) for name in sizes))
    raise UnsupportedError(f"{said}, but must have them as {proportion}", hint=_listing(shapes))


def _rates(counts: Mapping[str, int | None]) -> tuple[int | None, dict[str, int]]:
    """Return how many frames of the stream a call has, and how many frames of an input make one of them.

    Inputs with one frame for one of the stream are left out.
    """
    given = [count for count in counts.values() if count is not None]
    if not given:
        return None, {}
    if len(given) < len(counts):
        raise UnsupportedError(
            "the time axes have different numbers of frames", hint="give all the same number, or a number for each"
        )
    frames = math.gcd(*given)
    return frames, {name: count // frames for name, count in counts.items() if count not in (None, frames)}


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
    names = dict.fromkeys(d for dims in shapes.values() for d in dims if isinstance(d, str))
    raise OptionError(f"no axis is called '{text}'", hint=_listing(shapes) + meant(text, names))


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
    if not shapes:
        return "no input has a shape: export the model with them"
    inputs = ", ".join(f"{name} [{', '.join(map(str, dims))}]" for name, dims in shapes.items())
    name, dims = next(iter(shapes.items()))
    free = [axis for axis, dim in enumerate(dims) if isinstance(dim, str) and axis_by_name(dim) != "N"]
    axis = free[0] if free else min(1, len(dims) - 1)
    return f"the model's inputs: {inputs}; name the time dimension, or INPUT:AXIS, such as {name}:{axis}"
