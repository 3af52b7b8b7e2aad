"""Which axes of a model's inputs are time, as `stream=` names them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import onnx_ir as ir

from rnn_lowering.errors import UnsupportedError
from rnn_lowering.inference.polynomials import TIME, Size, size


@dataclass(frozen=True)
class TimeInputs:
    """The axes of inputs that hold frames.

    Attributes:
        axes: The axis by the name of the input.
        frames: The number of frames of each call; None: any number.
        others: The sizes of all axes by the name of the input: numbers or names.
        static: The number of frames that the model has now; None if it is open.
    """

    axes: Mapping[str, int]
    frames: int | None
    others: Mapping[str, tuple[int | str, ...]]
    static: int | None

    @property
    def symbol(self) -> str:
        """The name of the time axis: that of the model, unless another axis has that name."""
        names = {d for name, axis in self.axes.items() if isinstance(d := self.others[name][axis], str)}
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
            for name, dims in self.others.items()
            for axis, d in enumerate(dims)
            if isinstance(d, str) and axis != self.axes.get(name)
        }

    def opened(self, name: str) -> list[int | str]:
        """Return the sizes of the axes of an input, with a name for the time axis."""
        return [self.symbol if axis == self.axes.get(name) else d for axis, d in enumerate(self.others[name])]

    def sizes(self) -> dict[str, tuple[Size, ...]]:
        """Return the shapes of all inputs, the time axes as the number of frames."""
        return {
            name: tuple(
                Size.symbol(TIME if axis == self.axes.get(name) else d)
                if isinstance(d, str) or axis == self.axes.get(name)
                else size(d)
                for axis, d in enumerate(dims)
            )
            for name, dims in self.others.items()
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
    others = {name: _dims(name, value) for name, value in inputs.items()}
    axes: dict[str, int] = {}
    for text in stream:
        for name, axis in _named(text, others, model):
            if axes.setdefault(name, axis) != axis:
                raise UnsupportedError(
                    f"input '{name}' has two time axes, {axes[name]} and {axis}", hint="give one"
                )
    if not axes:
        raise UnsupportedError("no time axis is given", hint=_listing(others))
    frames = set(stream.values())
    if len(frames) > 1:
        raise UnsupportedError("the time axes have different numbers of frames", hint="give all the same number")
    (count,) = frames
    sizes = {d for name, axis in axes.items() if isinstance(d := others[name][axis], int)}
    if len(sizes) > 1:
        raise UnsupportedError(
            f"the time axes have {' and '.join(map(str, sorted(sizes)))} frames, but must have the same number",
            hint=_listing(others),
        )
    return TimeInputs(axes, count, others, next(iter(sizes), None))


def _named(text: str, others: Mapping[str, tuple[int | str, ...]], model: ir.Model) -> list[tuple[str, int]]:
    """Return the inputs and axes that a text names."""
    found = [(name, axis) for name, dims in others.items() for axis, d in enumerate(dims) if d == text]
    doubled = [name for name in dict(found) if sum(n == name for n, _ in found) > 1]
    if doubled:
        places = " or ".join(f"{name}:{axis}" for name, axis in found if name == doubled[0])
        raise UnsupportedError(f"input '{doubled[0]}' has '{text}' twice", hint=f"name the axis: {places}")
    if found:
        return found
    name, colon, axis = text.rpartition(":")
    if colon and name in others and axis.lstrip("-").isdigit():
        rank = len(others[name])
        if -rank <= int(axis) < rank:
            number = int(axis) % rank
            symbol = others[name][number]
            declared = _declared(model, name, number)
            if declared is None:
                return [(name, number)]
            return [(n, a) for n, dims in others.items() for a, d in enumerate(dims) if d == symbol]
    raise UnsupportedError(f"no axis is called '{text}'", hint=_listing(others))


def _declared(model: ir.Model, name: str, axis: int) -> str | None:
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


def _listing(others: Mapping[str, tuple[int | str, ...]]) -> str:
    shapes = ", ".join(f"{name} [{', '.join(map(str, dims))}]" for name, dims in others.items())
    return f"the model's inputs: {shapes}; name a dimension, or INPUT:AXIS"
