"""Run a model chunk by chunk, with only onnxruntime and the model's metadata."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from rnn_lowering.errors import ModelFileError, OptionError, UnsupportedError
from rnn_lowering.streaming.metadata import KEY, State, StreamPlan
from rnn_lowering.types import Array, ArrayLike, wrong

_TYPES = {"float": "float32", "double": "float64"}
"""NumPy's names of onnxruntime's types, where they differ."""


class Stream:
    """Run a model made by `--stream` chunk by chunk; it keeps the states between calls.

    Args:
        model: The path of the model, its bytes, or an onnxruntime.InferenceSession.

    Attributes:
        plan: What the metadata specify.
        states: The states that the next call receives, by the names of the inputs; empty before the first call.

    Raises:
        ModelFileError: The model has no such metadata, or damaged ones.
        OptionError: What is given is not a model.

    Examples:
        >>> stream = rl.Stream(rl.lower(model, stream="seq").SerializeToString())
        >>> stream({"X": np.zeros((4, 1, 80), np.float32)})["Y"].shape  # the next 4 frames
        (4, 1, 80)
        >>> stream.reset()  # a new sequence
    """

    def __init__(self, model: str | os.PathLike[str] | bytes | Any) -> None:
        self.session = _session(model)
        text = self.session.get_modelmeta().custom_metadata_map.get(KEY)
        if text is None:
            raise ModelFileError(
                "the model is not a stream: its metadata has no " + KEY, hint="make one with --stream"
            )
        self.plan = StreamPlan.from_json(text)
        self._declared = {value.name: value.shape for value in self.session.get_inputs()}
        self._types = {value.name: _dtype(value.type) for value in self.session.get_inputs()}
        self._outputs = [value.name for value in self.session.get_outputs()]
        missing = {s.input for s in self.plan.states} - self._declared.keys()
        missing |= {s.output for s in self.plan.states} - set(self._outputs)
        if missing:
            raise ModelFileError(
                f"the stream's metadata names values that the model lacks: {', '.join(sorted(missing))}"
            )
        self.states: dict[str, Array] = {}

    def __call__(self, inputs: Mapping[str, ArrayLike]) -> dict[str, Array]:
        """Run the next chunk.

        Args:
            inputs: The inputs by name, without states: arrays of the types that the model has, or lists of numbers.

        Returns:
            The outputs by name, without states.

        Raises:
            OptionError: An input is missing or unknown, or its type or shape is not what the model expects.
            UnsupportedError: onnxruntime cannot run the chunk; the states stay as they are.
        """
        given = self._arrays(inputs, "input", self.plan.inputs)
        sizes = self._sizes(given)
        for state in self.plan.states:
            if state.input not in self.states:
                self.states[state.input] = self._initial(state, sizes)
            self._check_state(state, sizes)
        try:
            results = self.session.run(None, {**given, **self.states})
        except Exception as error:  # onnxruntime's errors have no common class
            raise UnsupportedError(f"onnxruntime cannot run this chunk: {' '.join(str(error).split())}") from error
        outputs = dict(zip(self._outputs, results, strict=True))
        self.states = {state.input: outputs[state.output] for state in self.plan.states}
        return {name: array for name, array in outputs.items() if name in self.plan.outputs}

    def reset(self, states: Mapping[str, ArrayLike] | None = None) -> None:
        """Start a new sequence.

        Args:
            states: What to start from, by the names of the inputs; others start from their initial values.

        Raises:
            OptionError: No state has such a name, or its type is not what the model expects.
        """
        self.states = self._arrays(states or {}, "state", [state.input for state in self.plan.states])

    def _arrays(self, given: Mapping[str, ArrayLike], what: str, known: Collection[str]) -> dict[str, Array]:
        """Return arrays that onnxruntime reads as they are meant.

        Args:
            given: Arrays, or what NumPy converts to them, by name.
            what: Which of "input" and "state" they are.
            known: The names that there are; all inputs must be given.
        """
        if not isinstance(given, Mapping):
            raise OptionError(f"a {type(given).__name__} is given", hint=f"give arrays by {what} name")
        if what == "input" and given.keys() != set(known):
            names = ", ".join(sorted(map(str, given))) or "none"
            raise OptionError(
                f"got the inputs {names}, expected {', '.join(sorted(known))}",
                hint="the stream keeps its states; set them with reset",
            )
        unknown = sorted(str(name) for name in given.keys() - set(known))
        if unknown:
            hint = f"its states: {', '.join(known) or 'none'}"
            raise OptionError(f"the model has no state '{unknown[0]}'", hint=hint)
        return {name: array_of_type(f"{what} '{name}'", held, self._types[name]) for name, held in given.items()}

    def _sizes(self, inputs: Mapping[str, Array]) -> dict[str, int]:
        """Return the sizes of open dimensions by name; every input must have the shape that is expected."""
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
                    f"input '{name}' has shape {list(shape)}, expected [{expected}]"
                    + ("" if axis is None else f", with the frames of the chunk on axis {axis}"),
                    hint="the batch size is fixed until reset",
                )
            axis = self.plan.inputs[name]
            if axis is not None and shape[axis] % self.plan.unit:
                raise OptionError(
                    f"a chunk of input '{name}' has {shape[axis]} frames on axis {axis}",
                    hint=f"give a multiple of {self.plan.unit}",
                )
        return sizes

    def _initial(self, state: State, sizes: Mapping[str, int]) -> Array:
        self._shape(state, sizes)
        try:
            return state.first(sizes)
        except (ValueError, TypeError, OverflowError) as error:
            raise ModelFileError(f"the initial value of state '{state.input}' does not fit: {error}") from error

    def _check_state(self, state: State, sizes: Mapping[str, int]) -> None:
        shape, held = self._shape(state, sizes), self.states[state.input].shape
        if held != shape:
            raise OptionError(
                f"state '{state.input}' has shape {list(held)}, but these inputs need {list(shape)}",
                hint="reset the stream to change the batch size",
            )

    def _shape(self, state: State, sizes: Mapping[str, int]) -> tuple[int, ...]:
        try:
            return state.sizes(sizes)
        except (KeyError, ValueError) as error:
            raise ModelFileError(f"the size {error} of state '{state.input}' is not that of an input") from error


def _dtype(text: str) -> np.dtype[Any] | None:
    """The NumPy type of an input whose type onnxruntime calls "tensor(float)" or so; None where it has none."""
    name = text.removeprefix("tensor(").removesuffix(")")
    try:
        return np.dtype(_TYPES.get(name, name))
    except TypeError:
        return None


def array_of_type(what: str, given: ArrayLike, dtype: np.dtype[Any] | None) -> Array:
    """Return an array of a type in this machine's byte order, the only one that onnxruntime reads.

    Raises:
        OptionError: It is an array of another type, or holds what is no number.
    """
    if np.ma.is_masked(given):
        raise OptionError(f"{what} has masked elements", hint="fill them")
    listed = isinstance(given, list | tuple | int | float)
    try:
        array = np.asarray(given)
        if listed and dtype is not None and np.can_cast(array.dtype, dtype, "same_kind"):
            array = np.asarray(given, dtype)
    except (ValueError, TypeError, OverflowError) as error:
        raise OptionError(
            f"{what} is not an array of numbers: {error}", hint="give rows of equal length"
        ) from error
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    if dtype is not None and dtype.kind not in "OSU" and array.dtype != dtype:
        raise OptionError(f"{what} has type {array.dtype}, expected {dtype}", hint=f'use .astype("{dtype}")')
    return array


def _session(model: Any) -> Any:
    if hasattr(model, "get_modelmeta"):
        return model
    import onnxruntime

    if not isinstance(model, bytes | str | os.PathLike):
        raise wrong("model", model, "a path, the bytes of a model (model.SerializeToString()) or a session")
    try:
        return onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's errors have no common class
        raise ModelFileError(f"onnxruntime cannot load the model: {' '.join(str(error).split())}") from error
