"""Which axes of the inputs hold frames: those that `stream=` names."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

import onnx_ir as ir

from rnn_lowering.argument_checks import meant
from rnn_lowering.errors import UnsupportedError
from rnn_lowering.facts.size import Size, size
from rnn_lowering.streaming.sizes import FRAMES

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
        UnsupportedError: An axis that the model does not have, two axes of one input, or numbers that contradict
            each other.
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
    raise UnsupportedError(f"no axis is called '{text}'", hint=_listing(shapes) + meant(text, names))


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
