"""A host of streams that knows nothing but the metadata, as docs/streaming-reference.md describes them."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import cycle
from math import ceil
from typing import Any

import numpy as np
import onnx
from cases import Array, Arrays

from fuzz.oracles import Running

Plan = dict[str, Any]


def plan_of(model: onnx.ModelProto) -> Plan:
    """Return the metadata of a stream."""
    (text,) = [entry.value for entry in model.metadata_props if entry.key == "rnn_lowering.stream"]
    plan: Plan = json.loads(text)
    assert plan["version"] == 1
    numbers = {"unit": 1, "shortest": 1, "max_frames": None}
    return {**numbers, "rates": {}, "delay": {}, "short": {}, "lengths": []} | plan


@dataclass
class Host:
    """A host of one stream.

    Attributes:
        stepped: The stream.
        run: Runs it; without, `oracles.Running` does.
    """

    stepped: onnx.ModelProto
    run: Callable[[Arrays], Arrays] | None = None

    def __post_init__(self) -> None:
        self.plan, self.running = plan_of(self.stepped), self.run or Running(self.stepped)
        declared = {v.name: v.type.tensor_type.shape.dim for v in self.stepped.graph.input}
        self._dims = {name: [d.dim_param for d in dims] for name, dims in declared.items()}

    @property
    def call(self) -> int:
        """The frames that a call has, or a multiple of."""
        return int(self.plan["frames"] or self.plan["unit"])

    @property
    def most(self) -> int | None:
        """The frames of the longest sequence of whole calls; None for any number."""
        longest = self.plan["max_frames"]
        return None if longest is None else int(longest) // self.call * self.call

    @property
    def late(self) -> int:
        """The frames of zeros that bring the last frames of each output, in whole calls."""
        delays = ((name, n) for name, n in self.plan["delay"].items() if name in self.plan["outputs"])
        frames = max((ceil(n / Fraction(self.plan["rates"].get(name, 1))) for name, n in delays), default=0)
        return -(-frames // self.call) * self.call

    def frames(self, feed: Arrays) -> int:
        """Return how many frames a sequence has."""
        return next(int(feed[name].shape[axis]) for name, axis in self.plan["inputs"].items() if axis is not None)

    def until(self, state: str) -> int:
        """Return after how many frames of zeros a state of the model itself is that of the last frame."""
        delay, rate = self.plan["delay"].get(state, 0), Fraction(self.plan["rates"].get(state, 1))
        frames: int = ceil(delay / rate)
        return frames

    def flushed(self, feed: Arrays, zeros: int | None = None) -> Arrays:
        """Return a sequence with zeros behind it: as many as bring the outputs that are late."""
        inputs, count = self.plan["inputs"], self.late if zeros is None else zeros
        return {name: _longer(a, inputs.get(name), count) for name, a in feed.items()}

    def __call__(self, feed: Arrays, sizes: Sequence[int], zeros: int | None = None) -> tuple[Arrays, Arrays]:
        """Return the outputs of a sequence, and the states behind it, both by name.

        Args:
            sizes: The frames of each call, repeated as often as needed.
            zeros: The frames of zeros behind the sequence; without, those that bring the late outputs.
        """
        plan, parts = self.plan, list[Arrays]()
        frames, longer = self.frames(feed), self.flushed(feed, zeros)
        states = self._initial(feed)
        for start, end in _pieces(self.frames(longer), sizes):
            chunk = {n: self._part(n, longer[n], start, end) for n in plan["inputs"]}
            parts.append(self.running({**chunk, **states}))
            before, states = states, {s["input"]: parts[-1][s["output"]] for s in plan["states"]}
            for state in plan["states"]:
                _check(state, before[state["input"]], states[state["input"]])
        outputs: Arrays = {}
        for name, axis in plan["outputs"].items():
            outputs[name] = parts[-1][name]
            if axis is not None:
                joined = np.concatenate([part[name] for part in parts], axis)
                outputs[name] = self.of_sequence(name, joined, frames, plan["delay"].get(name, 0))
        return outputs, {state["output"]: states[state["input"]] for state in plan["states"]}

    def of_sequence(self, name: str, array: Array, frames: int, first: int = 0) -> Array:
        """Return those frames of an output that belong to a sequence: `short` fewer than its rate says."""
        count = int(frames * Fraction(self.plan["rates"].get(name, 1))) - self.plan["short"].get(name, 0)
        axis = self.plan["outputs"][name]
        here = slice(first, first + max(count, 0))
        cut: Array = array[(slice(None),) * (axis % array.ndim) + (here,)]
        return cut

    def _part(self, name: str, array: Array, start: int, end: int) -> Array:
        axis = self.plan["inputs"][name]
        if name in self.plan["lengths"]:
            return np.clip(array.astype(np.int64) - start, 0, end - start).astype(array.dtype)
        return array if axis is None else array.take(range(start, end), axis)

    def _initial(self, feed: Arrays) -> Arrays:
        """Return the first states: those that are inputs of the whole too are what it is fed."""
        sizes = {
            dim: size
            for name in self.plan["inputs"]
            for dim, size in zip(self._dims[name], feed[name].shape, strict=True)
            if dim
        }
        return {s["input"]: feed.get(s["input"], _first(s, sizes)) for s in self.plan["states"]}


def _first(state: Mapping[str, Any], sizes: Mapping[str, int]) -> Array:
    shape = []
    for size in state["shape"]:
        times, _, name = str(size).rpartition("*")
        shape.append(size if isinstance(size, int) else int(times or 1) * sizes.get(name, 2))
    held = state["initial"]
    dtype: Any = state["dtype"]
    if dtype == "bfloat16":
        from ml_dtypes import bfloat16 as dtype
    return np.broadcast_to(0 if held == "zeros" else np.array(_parsed(held)), shape).astype(dtype)


def _check(state: Mapping[str, Any], before: Array, after: Array) -> None:
    """Raise if a state has another type or shape after a call; one that grows is longer along its axis only."""
    axis = state.get("grows")
    grown = list(before.shape)
    if axis is not None:
        assert after.shape[axis] > before.shape[axis], f"{state['input']} of {before.shape} does not grow"
        grown[axis] = after.shape[axis]
    assert [*after.shape] == grown, f"{state['input']} of {before.shape} becomes {after.shape}"


def _parsed(held: Any) -> Any:
    """Return nested numbers; three have names, since JSON lacks them."""
    if isinstance(held, list):
        return [_parsed(item) for item in held]
    return float(held.replace("Infinity", "inf")) if isinstance(held, str) else held


def _longer(array: Array, axis: int | None, frames: int) -> Array:
    if axis is None or not frames:
        return array
    zeros = np.zeros_like(array.take([0] * frames, axis))
    return np.concatenate([array, zeros], axis)


def _pieces(length: int, sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    start, turns = 0, cycle(sizes)
    while start < length:
        end = min(start + next(turns), length)
        yield start, end
        start = end
