"""Driving a model chunk by chunk: onnxruntime and the metadata in the model, nothing else."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from rnn_lowering.errors import ModelFileError, OptionError
from rnn_lowering.streaming.plan import KEY, State, StreamPlan
from rnn_lowering.types import Array


class Stream:
    """A stream through a model that `--stream` made: it keeps the states between calls.

    stream = rl.Stream("chunk.onnx")
    outputs = stream({"X": chunk})   # the next frames; by name the outputs that are no states
    stream.reset()                   # a new sequence

    Args:
        model: The path of the model, its bytes, or an onnxruntime.InferenceSession.

    Attributes:
        plan: What the metadata specify.
        states: The states that the next call receives, by the names of the inputs; empty before the first call.

    Raises:
        ModelFileError: The model has no such metadata, or damaged ones.
    """

    def __init__(self, model: str | os.PathLike[str] | bytes | Any) -> None:
        self.session = _session(model)
        text = self.session.get_modelmeta().custom_metadata_map.get(KEY)
        if text is None:
            raise ModelFileError("the model is no stream: its metadata lack " + KEY, hint="make one with --stream")
        self.plan = StreamPlan.from_json(text)
        self._declared = {value.name: value.shape for value in self.session.get_inputs()}
        self._outputs = [value.name for value in self.session.get_outputs()]
        missing = {s.input for s in self.plan.states} - self._declared.keys()
        missing |= {s.output for s in self.plan.states} - set(self._outputs)
        if missing:
            raise ModelFileError(f"the stream's metadata name what the model lacks: {', '.join(sorted(missing))}")
        self.states: dict[str, Array] = {}
        self._given: dict[str, Array] = {}

    def __call__(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run the next chunk.

        Args:
            inputs: The inputs by name, without states.

        Returns:
            The outputs by name, without states.

        Raises:
            OptionError: An input is missing or unknown, or a shape is not what the model expects.
        """
        sizes = self._sizes(inputs)
        for state in self.plan.states:
            if state.input not in self.states:
                self.states[state.input] = self._initial(state, sizes)
            self._check_state(state, sizes)
        results = self.session.run(None, {**inputs, **self.states})
        outputs = dict(zip(self._outputs, results, strict=True))
        self.states = {state.input: outputs[state.output] for state in self.plan.states}
        return {name: array for name, array in outputs.items() if name in self.plan.outputs}

    def reset(self, states: Mapping[str, Array] | None = None) -> None:
        """Start a new sequence.

        Args:
            states: What to start from, by the names of the inputs; others start from their initial values.

        Raises:
            OptionError: No state has such a name.
        """
        given = dict(states or {})
        unknown = given.keys() - {state.input for state in self.plan.states}
        if unknown:
            raise OptionError(
                f"the model has no state '{sorted(unknown)[0]}'",
                hint=f"its states: {', '.join(state.input for state in self.plan.states) or 'none'}",
            )
        self.states = given

    def _sizes(self, inputs: Mapping[str, Array]) -> dict[str, int]:
        """Return the sizes of open dimensions by name; every input must have the shape that is expected."""
        wanted = self.plan.inputs.keys()
        if inputs.keys() != wanted:
            raise OptionError(
                f"given are the inputs {', '.join(sorted(inputs)) or 'none'}, expected {', '.join(sorted(wanted))}",
                hint="states are kept by the stream itself; start from others with reset",
            )
        sizes: dict[str, int] = {}
        for name, array in inputs.items():
            declared, shape = self._declared[name], np.shape(array)
            fits = len(shape) == len(declared) and all(
                (size == d) if isinstance(d, int) else sizes.setdefault(d, size) == size
                for size, d in zip(shape, declared, strict=True)
            )
            if not fits:
                expected = ", ".join(f"{d}={sizes[d]}" if d in sizes else str(d) for d in declared)
                axis = self.plan.inputs[name]
                raise OptionError(
                    f"input '{name}' has shape {list(shape)}, expected is [{expected}]"
                    + ("" if axis is None else f", with the frames of the chunk on axis {axis}"),
                    hint="the batch size stays until reset",
                )
        return sizes

    def _initial(self, state: State, sizes: Mapping[str, int]) -> Array:
        shape, dtype = self._shape(state, sizes), np.dtype(state.dtype)
        if isinstance(state.initial, str):
            return np.zeros(shape, dtype)
        try:
            return np.broadcast_to(np.asarray(state.initial, dtype), shape).copy()
        except ValueError as error:
            raise ModelFileError(f"the initial value of state '{state.input}' does not fit: {error}") from error

    def _check_state(self, state: State, sizes: Mapping[str, int]) -> None:
        shape, held = self._shape(state, sizes), self.states[state.input].shape
        if held != shape:
            raise OptionError(
                f"state '{state.input}' has shape {list(held)}, but these inputs need {list(shape)}",
                hint="reset the stream before a batch of another size",
            )

    def _shape(self, state: State, sizes: Mapping[str, int]) -> tuple[int, ...]:
        try:
            return state.sizes(sizes)
        except (KeyError, ValueError) as error:
            raise ModelFileError(f"the size {error} of state '{state.input}' is that of no input") from error


def _session(model: Any) -> Any:
    if hasattr(model, "get_modelmeta"):
        return model
    import onnxruntime

    held = model if isinstance(model, bytes) else os.fspath(model)
    try:
        return onnxruntime.InferenceSession(held, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's errors have no common class
        raise ModelFileError(f"onnxruntime cannot load the model: {' '.join(str(error).split())}") from error
