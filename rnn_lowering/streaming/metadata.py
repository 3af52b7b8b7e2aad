"""The metadata of a stream: how a host calls it, as Python data and as JSON in the model.

`metadata_props["rnn_lowering.stream"]` holds it; docs/streaming-reference.md describes its fields.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from rnn_lowering.errors import ModelFileError
from rnn_lowering.types import Array

if TYPE_CHECKING:
    import onnx_ir as ir


KEY = "rnn_lowering.stream"
VERSION = 1

_TYPES = (
    *("float32", "float64", "float16", "bfloat16", "bool"),
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
)

LONGEST_DELAY = 1 << 22
"""Maximum delay in frames that metadata may name."""

MOST_ELEMENTS = 1 << 28
"""Maximum elements of a state that metadata may name; above it, the state is refused."""

Dim = int | str
"""A size, the name of an open dimension of the inputs, or a multiple of it such as "2*name"."""


@dataclass(frozen=True)
class State:
    """A value that a host passes from call to call.

    Attributes:
        input: The input that takes it.
        output: The output to pass to the next call.
        node: The node, or the nodes, whose state it is.
        state: "h" or "c" of a recurrent node; "s" of a LinearAttention; "state0" of a Scan, and so on; "x": past
            frames; "k" and "v": past keys and values of an attention; "p": its rows by distance so far; "sum": the
            sum so far; "pool": a pooled value so far; "t": the number of frames so far.
        shape: Its shape.
        dtype: The name of its NumPy type.
        initial: What the first call receives: "zeros", or nested lists of numbers that broadcast to `shape`.
            Infinities and NaN, which JSON lacks, are the texts "Infinity", "-Infinity" and "NaN".
        grows: The axis that has no rows at first, and more after each call; None if all sizes stay.

    Examples:
        >>> plan = rl.Stream(rl.lower(model, stream="seq").SerializeToString()).plan
        >>> plan.states[0].input, plan.states[0].state, plan.states[0].shape
        ('past_lstm_LSTM_h', 'h', (1, 1, 16))
    """

    input: str
    output: str
    node: str
    state: str
    shape: tuple[Dim, ...]
    dtype: str
    initial: Any = "zeros"
    grows: int | None = None

    def sizes(self, known: Mapping[str, int]) -> tuple[int, ...]:
        """Return the shape, given the sizes of open dimensions by name.

        Raises:
            KeyError: A size is unknown.
            ValueError: The state is too large.
        """
        sizes = tuple(dim if isinstance(dim, int) else _size_of_dim(dim, known) for dim in self.shape)
        if math.prod(sizes) > MOST_ELEMENTS:
            raise ValueError(f"{list(sizes)}")
        return sizes

    def first(self, known: Mapping[str, int]) -> Array:
        """Return the array for the first call, given the sizes of open dimensions by name.

        Raises:
            KeyError: A size is unknown.
            ValueError: The initial value has no numbers, or does not broadcast to the shape.
        """
        if self.initial == "zeros":
            return np.zeros(self.sizes(known), self.dtype)
        initial = np.asarray(self.initial)
        initial = initial.astype(np.float64) if initial.dtype.kind == "U" else initial  # infinities are texts
        return np.broadcast_to(initial, self.sizes(known)).astype(self.dtype)


def _size_of_dim(dim: str, known: Mapping[str, int]) -> int:
    if dim in known:
        return known[dim]
    times, _, name = dim.partition("*")
    return int(times) * known[name]


def initial_of(array: Array | None) -> Any:
    """Return the initial value of a state as JSON; None means zeros. Where all numbers along an axis are equal, it
    has one of them."""
    if array is None or not array.any():
        return "zeros"
    for axis in range(array.ndim):
        one = array.take([0], axis)
        if ((array == one) | ((array != array) & (one != one))).all():  # NaN is not itself
            array = one
    return _as_json(array.tolist() if array.dtype.kind in "iu" else array.astype(np.float64).tolist())


def _as_json(numbers: Any) -> Any:
    if isinstance(numbers, list):
        return [_as_json(each) for each in numbers]
    if math.isfinite(numbers):
        return numbers
    return "NaN" if math.isnan(numbers) else "Infinity" if numbers > 0 else "-Infinity"


@dataclass(frozen=True)
class StreamPlan:
    """How to call a stream: its frames, inputs, outputs and states.

    Attributes:
        frames: Frames per call; None: any number.
        inputs, outputs: The axis of the frames of each, by name; None if it has none. States are not among them.
        states: The values to pass from call to call.
        unit: The number of frames of each call is a multiple of this.
        rates: How many frames an output has for each frame of the stream, by name: "1", "15" or "1/8"; and those
            inputs that have several, if inputs have unlike numbers.
        delay: The delay of an output in its own frames, by name; absent: 0. Drop this many frames at the start;
            the last ones come after zeros that follow the sequence (`frames_late`). If an output returns a state
            (`hn`), give as many frames of zeros after the sequence, then read it; more zeros change it.
        short: How many frames fewer than the sequence an output has, by name; absent: 0.
        lengths: The inputs that are lengths of rows; each call takes the lengths in its chunk. Other inputs without
            frames are the same in each call.
        shortest: The minimum number of frames of a sequence. Of a shorter one the original may cut off more frames
            than there are.
        max_frames: The maximum number of frames of a sequence; the next one is an error. None: any number.

    Examples:
        >>> plan = rl.Stream(rl.lower(model, stream="seq=1").SerializeToString()).plan
        >>> plan.frames, plan.inputs, plan.outputs
        (1, {'X': 0}, {'Y': 0})
    """

    frames: int | None
    inputs: Mapping[str, int | None]
    outputs: Mapping[str, int | None]
    states: tuple[State, ...]
    unit: int = 1
    rates: Mapping[str, str] = field(default_factory=dict)
    delay: Mapping[str, int] = field(default_factory=dict)
    short: Mapping[str, int] = field(default_factory=dict)
    lengths: tuple[str, ...] = ()
    shortest: int = 1
    max_frames: int | None = None

    @property
    def frames_late(self) -> int:
        """The number of zero frames that a host gives after the sequence, because outputs are late."""
        late = max((self.zeros_for(name) for name in self.delay), default=0)
        size = self.frames or self.unit
        return -(-late // size) * size

    def zeros_for(self, output: str) -> int:
        """Return the number of zero frames after the sequence until an output is complete."""
        return math.ceil(self.delay.get(output, 0) / self.rate(output))

    def rate(self, name: str) -> Fraction:
        """Return the number of frames of an output or an input for each frame of the stream."""
        return Fraction(self.rates.get(name, 1))

    def count(self, shapes: Mapping[str, Sequence[int]]) -> int:
        """Return the number of frames of the stream in inputs of these shapes, by name; 0 if none has frames."""
        axes = {name: axis for name, axis in self.inputs.items() if axis is not None}
        return next((shapes[name][axis] // int(self.rate(name)) for name, axis in axes.items()), 0)

    def cut(self, arrays: Mapping[str, Array], start: int, stop: int) -> dict[str, Array]:
        """Return the inputs that have frames from one frame of the stream to another."""
        timed = [(name, axis, int(self.rate(name))) for name, axis in self.inputs.items() if axis is not None]
        return {
            name: arrays[name][(slice(None),) * axis + (slice(start * rate, stop * rate),)]
            for name, axis, rate in timed
            if name in arrays
        }

    def frames_of(self, output: str, frames: int) -> int:
        """Return the number of frames of an output, for a sequence of `frames` frames of the stream."""
        return max(int(frames * self.rate(output)) - self.short.get(output, 0), 0)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, as in the JSON."""
        states = [asdict(state) | {"shape": list(state.shape)} for state in self.states]
        return {"version": VERSION, **asdict(self), "states": states, "lengths": list(self.lengths)}

    def to_json(self) -> str:
        data = self.to_dict()
        absent = {"lengths": [], "shortest": self.unit, "max_frames": None}
        data["states"] = [{k: v for k, v in s.items() if k != "grows" or v is not None} for s in data["states"]]
        return json.dumps({k: v for k, v in data.items() if k not in absent or v != absent[k]}, allow_nan=False)

    def write(self, model: ir.Model) -> None:
        """Write the JSON into the metadata of a model."""
        model.metadata_props[KEY] = self.to_json()

    @classmethod
    def of(cls, metadata: Mapping[str, str]) -> StreamPlan:
        """Read the metadata of a model.

        Raises:
            ModelFileError: They are not those of a stream.
        """
        if KEY not in metadata:
            raise ModelFileError(
                f"the model is not a stream: its metadata has no {KEY}",
                hint="make one with --stream AXIS (AXIS: the time dimension)",
            )
        return cls.from_json(metadata[KEY])

    @classmethod
    def from_json(cls, text: str) -> StreamPlan:
        """Read the JSON of a model.

        Raises:
            ModelFileError: It is not what `to_json` writes.
        """
        try:
            data = json.loads(text)
            if data["version"] != VERSION:
                raise ModelFileError(f"the stream's metadata has version {data['version']}, not {VERSION}")
            plan = cls(
                frames=data["frames"],
                inputs=data["inputs"],
                outputs=data["outputs"],
                states=tuple(_state(state) for state in data["states"]),
                unit=data.get("unit", 1),
                rates={name: _rate(rate) for name, rate in data.get("rates", {}).items()},
                delay=data.get("delay", {}),
                short=data.get("short", {}),
                lengths=tuple(data.get("lengths", ())),
                shortest=data.get("shortest", data.get("unit", 1)),
                max_frames=data.get("max_frames"),
            )
            plan._check()
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, ZeroDivisionError) as error:
            raise ModelFileError(f"the stream's metadata is damaged: {error!r}") from error
        return plan

    def _check(self) -> None:
        """Raise if a field has the wrong type, or a state appears twice."""
        axes = [axis for axis in (*self.inputs.values(), *self.outputs.values(), self.frames) if axis is not None]
        if not all(_is_count(axis, 0) for axis in axes) or self.frames == 0:
            raise ValueError("an axis or the frames are not a number")
        if not _is_count(self.unit) or (self.frames or 0) % self.unit:
            raise ValueError(f"the unit is {self.unit}")
        if not _is_count(self.shortest):
            raise ValueError(f"the shortest sequence has {self.shortest} frames")
        if self.max_frames is not None and not _is_count(self.max_frames):
            raise ValueError(f"the longest sequence has {self.max_frames} frames")
        self._check_rates()
        self._check_names()

    def _check_rates(self) -> None:
        unlike = [name for name in self.inputs if self.rate(name) != 1]
        if any(self.rate(name).denominator > 1 or self.inputs[name] is None for name in unlike):
            raise ValueError(f"the rates of inputs are {[self.rates[name] for name in unlike]}")
        if unlike and self.frames is None:
            raise ValueError("inputs have unlike numbers of frames, but calls may have any")

    def _check_names(self) -> None:
        if not all(name in self.inputs and self.inputs[name] is None for name in self.lengths):
            raise ValueError(f"lengths are not inputs without frames: {list(self.lengths)}")
        framed = {name for name, axis in self.outputs.items() if axis is not None}
        for late, known in ((self.delay, framed | {s.output for s in self.states}), (self.short, framed)):
            if not all(_is_count(n) and n <= LONGEST_DELAY and name in known for name, n in late.items()):
                raise ValueError(f"a delay is not a number of frames of an output: {dict(late)}")
        for names in ([s.input for s in self.states], [s.output for s in self.states]):
            if len(set(names)) < len(names):
                raise ValueError("a state is named twice")


def _is_count(number: object, least: int = 1) -> bool:
    """Whether a number is an integer, not a bool, of at least 1."""
    return type(number) is int and number >= least


def frames_in(plan: StreamPlan, arrays: Mapping[str, Array]) -> int:
    """Return the number of frames of the stream in a chunk, or in a whole sequence."""
    return plan.count({name: array.shape for name, array in arrays.items()})


def _rate(text: str) -> str:
    if not re.fullmatch(r"[1-9]\d{0,8}(/[1-9]\d{0,8})?", text):
        raise ValueError(f"the rate is {text[:20]}")
    return str(Fraction(text))


def _state(fields: Mapping[str, Any]) -> State:
    state = State(**{**fields, "shape": tuple(fields["shape"])})
    texts = (state.input, state.output, state.node, state.state, state.dtype)
    if not all(isinstance(text, str) for text in texts):
        raise ValueError("a name is not text")
    if state.initial != "zeros" and not isinstance(state.initial, list):
        raise ValueError("an initial value is neither zeros nor numbers")
    if state.dtype not in _TYPES:
        raise ValueError(f"type {state.dtype}")
    if not all(isinstance(d, str) or (type(d) is int and d >= 0) for d in state.shape):
        raise ValueError(f"shape {list(state.shape)}")
    if state.grows is not None and (
        type(state.grows) is not int or state.shape[state.grows : state.grows + 1] != (0,)
    ):
        raise ValueError(f"axis {state.grows} of {list(state.shape)} grows")
    return state
