"""`Stream`: runs a model chunk by chunk, with only onnxruntime and the model's metadata."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from rnn_lowering.argument_checks import array_of_type, integer, wrong
from rnn_lowering.errors import ModelFileError, OptionError, UnsupportedError, counted
from rnn_lowering.libraries import onnxruntime
from rnn_lowering.streaming.metadata import State, StreamPlan, frames_in
from rnn_lowering.types import Array, ArrayLike, PathLike

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

_TYPES = {"float": "float32", "double": "float64"}
"""NumPy's names of onnxruntime's types, where they differ."""

_FLUSH_SIZE = 1024
"""Maximum frames of zeros per call of `flush`, for streams that take any number."""


class Stream:
    """Run a model made by `--stream` chunk by chunk; it keeps the states between calls.

    Args:
        model: A ModelProto, an onnx_ir Model, the path of the model, its bytes, or an onnxruntime.InferenceSession.

    The first frames of a delayed output mean nothing and are dropped: a call may return fewer frames, and `flush`
    returns the last ones.

    Attributes:
        plan: How to call it, from the metadata.
        states: The states that the next call receives, by the names of the inputs; empty before the first call.

    Raises:
        ModelFileError: The model has no such metadata, or they are damaged.
        OptionError: The argument is not a model.

    Examples:
        >>> stream = rl.Stream(rl.lower(model, stream="seq"))
        >>> stream
        <Stream: any number of frames in each call, X:0 -> Y:0, 3 states>
        >>> stream({"X": np.zeros((4, 1, 80), np.float32)})["Y"].shape  # the next 4 frames
        (4, 1, 80)
        >>> stream.reset()  # a new sequence
    """

    def __init__(self, model: onnx.ModelProto | ir.Model | PathLike | bytes | Any) -> None:
        self.session = _session(model)
        self.plan = StreamPlan.of(self.session.get_modelmeta().custom_metadata_map)
        self._declared = {value.name: value.shape for value in self.session.get_inputs()}
        self._types = {value.name: _dtype(value.type) for value in self.session.get_inputs()}
        self._outputs = [value.name for value in self.session.get_outputs()]
        self._check_plan()
        self.states: dict[str, Array] = {}
        self._begin()

    def __repr__(self) -> str:
        def named(values: Mapping[str, int | None]) -> str:
            return ", ".join(name if axis is None else f"{name}:{axis}" for name, axis in values.items())

        plan = self.plan
        frames = counted(plan.frames, "frame") if plan.frames else "any number of frames"
        states = counted(len(plan.states), "state")
        return f"<Stream: {frames} in each call, {named(plan.inputs)} -> {named(plan.outputs)}, {states}>"

    def _begin(self, frames: int = 0) -> None:
        """Start as after so many frames of a sequence."""
        self._frames, self._last, self._ended = frames, dict[str, Array](), False
        self._returned = {name: int(frames * self.plan.rate(name)) for name in self.plan.outputs}

    def _check_plan(self) -> None:
        """Raise if the metadata do not match the inputs and outputs of the model."""
        plan, states = self.plan, {s.input: s for s in self.plan.states}
        for what, named, of_model in (
            ("inputs", [*plan.inputs, *states], self._declared),
            ("outputs", [*plan.outputs, *(s.output for s in plan.states)], self._outputs),
        ):
            others = sorted(set(named) ^ set(of_model))
            if others or len(named) > len(of_model):
                raise ModelFileError(
                    f"the stream's metadata and the model have other {what}: {', '.join(others) or 'one twice'}",
                    hint="make the stream again",
                )
        for name, axis in plan.inputs.items():
            declared = self._declared[name]
            sizes = [dim if isinstance(dim, int) else None for dim in declared]
            frames = plan.frames and plan.frames * plan.rate(name)
            if axis is not None and (axis >= len(sizes) or sizes[axis] != frames):
                raise ModelFileError(f"the stream's metadata has the frames of input '{name}' on axis {axis}")
        for name, state in states.items():
            declared = self._declared[name]
            fits = len(declared) == len(state.shape) and all(
                own == dim or isinstance(dim, str) or not isinstance(own, int)
                for own, dim in zip(declared, state.shape, strict=True)
            )
            own = self._types[name]
            if not fits or (own is not None and own != _dtype(state.dtype)):
                raise ModelFileError(
                    f"the stream's metadata has a state '{name}' of {state.dtype} {list(state.shape)}, "
                    f"but the model has one of {own} {declared}"
                )

    def __call__(self, inputs: Mapping[str, ArrayLike]) -> dict[str, Array]:
        """Run the next chunk.

        Args:
            inputs: The inputs by name, without states: arrays of the types that the model has, or lists of numbers.

        Returns:
            The outputs by name, without states.

        Raises:
            OptionError: An input is missing or unknown, its type or shape is not what the model expects, the
                sequence was flushed, or the chunk goes on after the last frame of the stream (`max_frames`).
            UnsupportedError: onnxruntime cannot run the chunk; the states stay as they are.
        """
        if self._ended:
            raise OptionError("the sequence has ended with flush", hint="reset the stream before the next one")
        arrays = self._arrays(inputs, "input", self.plan.inputs)
        self._sizes(arrays)
        frames = frames_in(self.plan, arrays)
        self._check_end(frames)
        outputs = self._run(arrays)
        self._check_frames(outputs, frames)
        self._last = arrays
        self._frames += frames
        return {name: self._kept(name, array) for name, array in outputs.items()}

    def feed(self, inputs: Mapping[str, ArrayLike]) -> dict[str, Array]:
        """Return the inputs of the model for the next chunk: these arrays and the states.

        Raises:
            OptionError: As for a call.
        """
        arrays = self._arrays(inputs, "input", self.plan.inputs)
        return arrays | self._next_states(arrays)

    def flush(self) -> dict[str, Array]:
        """End the sequence: return the last frames of the outputs that are late.

        Frames of zeros follow the sequence, as many as the stream is late. Then `states` has the states after the
        last frame. Only `reset` begins another sequence.

        Returns:
            The outputs that are late, by name.

        Raises:
            OptionError: Nothing was given since the last reset.
            UnsupportedError: onnxruntime cannot run a chunk.

        Examples:
            >>> stream = rl.Stream(rl.lower(model, stream="seq"))
            >>> _ = stream({"X": np.zeros((4, 1, 80), np.float32)})
            >>> stream.flush()  # no output is late
            {}
        """
        if not self._last:
            raise OptionError("nothing was given since the last reset", hint="give a chunk first")
        if self._ended:
            return {}
        before = dict(self.states), dict(self._returned)
        self._ended = True
        try:
            return self._late_frames()
        except UnsupportedError:  # it can be called again
            self._ended = False
            self.states, self._returned = before
            raise

    def _late_frames(self) -> dict[str, Array]:
        """Run the frames of zeros behind the sequence; return the outputs that come with them."""
        parts: dict[str, list[Array]] = {name: [] for name in self.plan.delay if name in self.plan.outputs}
        complete = {state.input: self.plan.zeros_for(state.output) for state in self.plan.states}
        given, last = 0, self._complete(complete, 0)
        while given < self.plan.frames_late:
            stop = min(n for n in (*complete.values(), self.plan.frames_late) if n > given)
            size = self.plan.frames or min(stop - given, max(_FLUSH_SIZE // self.plan.unit, 1) * self.plan.unit)
            outputs = self._run({name: self._zeros(name, array, size) for name, array in self._last.items()})
            for name in parts:
                parts[name].append(self._kept(name, outputs[name]))
            given += size
            last |= self._complete(complete, given)
        self.states = last
        return {n: np.concatenate(arrays, self.plan.outputs[n] or 0) for n, arrays in parts.items() if arrays}

    def _complete(self, zeros: Mapping[str, int], given: int) -> dict[str, Array]:
        """Return, by input, the states that are final after so many zeros."""
        return {name: array for name, array in self.states.items() if zeros[name] == given}

    def _check_frames(self, outputs: Mapping[str, Array], frames: int) -> None:
        """Raise if an output has another number of frames than the metadata say."""
        for name, axis in self.plan.outputs.items():
            shape = outputs[name].shape
            if axis is not None and (axis >= len(shape) or shape[axis] != frames * self.plan.rate(name)):
                raise ModelFileError(
                    f"output '{name}' has shape {list(shape)}; "
                    f"in the stream's metadata its frames are on axis {axis}",
                    hint="make the stream again",
                )

    def _zeros(self, name: str, array: Array, frames: int) -> Array:
        """Return an input for after the sequence: frames of zeros; an input without frames unchanged."""
        axis = self.plan.inputs[name]
        if axis is None:
            return array
        own = frames * int(self.plan.rate(name))
        return np.zeros((*array.shape[:axis], own, *array.shape[axis + 1 :]), array.dtype)

    def _kept(self, name: str, array: Array) -> Array:
        """Return an output without the frames before and after the sequence."""
        axis, late = self.plan.outputs[name], self.plan.delay.get(name, 0)
        if axis is None or not late:
            return array
        first = self._returned[name]
        self._returned[name] += array.shape[axis]
        end = late + self.plan.frames_of(name, self._frames) if self._ended else self._returned[name]
        return array[(slice(None),) * axis + (slice(max(late - first, 0), max(end - first, 0)),)]

    def _run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run the model on the next chunk; keep the states."""
        states = self._next_states(inputs)
        try:
            results = self.session.run(None, {**inputs, **states})
        except Exception as error:  # onnxruntime's errors have no common class
            raise UnsupportedError(f"onnxruntime cannot run this chunk: {' '.join(str(error).split())}") from error
        outputs = dict(zip(self._outputs, results, strict=True))
        self.states = {state.input: outputs[state.output] for state in self.plan.states}
        return {name: outputs[name] for name in self._outputs if name in self.plan.outputs}

    def _next_states(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Return the states for the next chunk: what the last one returned, or the initial states."""
        sizes, states = self._sizes(inputs), dict(self.states)
        for state in self.plan.states:
            try:
                shape = state.sizes(sizes)
            except (KeyError, ValueError) as error:
                text = f"the size {error} of state '{state.input}' is not that of an input"
                raise ModelFileError(text) from error
            if state.input not in states:
                states[state.input] = _initial(state, sizes)
            own_shape = states[state.input].shape
            if len(own_shape) == len(shape) and state.grows is not None:
                shape = tuple(own_shape[n] if n == state.grows else dim for n, dim in enumerate(shape))
            if own_shape != shape:
                raise OptionError(
                    f"state '{state.input}' has shape {list(own_shape)}, but these inputs need {list(shape)}",
                    hint="reset the stream to change the batch size" if self._last else "",
                )
        return states

    def reset(self, states: Mapping[str, ArrayLike] | None = None, *, frames: int | None = None) -> None:
        """Start a new sequence, or go on with one.

        Args:
            states: What to start from, by the names of the inputs; others start from their initial values.
            frames: After how many frames of their sequence these states were returned; 0: a new sequence. The
                first frames of a late output are dropped once in a sequence, and `max_frames` counts all frames.
                None: as many as the state "t" counts, else 0.

        Raises:
            OptionError: No state has such a name, its type is not what the model expects, or the number of frames
                does not fit the states or the stream. Also if `frames` is needed: an output is late, and no state
                counts the frames.

        Examples:
            >>> stream = rl.Stream(rl.lower(model, stream="seq"))
            >>> _ = stream({"X": np.zeros((4, 1, 80), np.float32)})
            >>> saved = stream.states
            >>> stream.reset(saved, frames=4)  # also another Stream of this model
        """
        held = self._arrays(states or {}, "state", [state.input for state in self.plan.states])
        before = self._frames_before(held, frames)
        self.states = held
        self._begin(before)

    def _frames_before(self, held: Mapping[str, Array], frames: int | None) -> int:
        """Return the number of frames after which states were returned, as the caller or a state says."""
        counts = [state.input for state in self.plan.states if state.state == "t"]
        numbers = [integer()(f"state '{n}'", int(held[n].max(initial=0)) if n in held else 0) for n in counts]
        if frames is None:
            if not counts and self._goes_on(held):
                raise OptionError(
                    "these may be the states of a sequence that goes on, whose first frames are not dropped again",
                    hint="say after how many frames they were returned: frames=N, or frames=0 for a new sequence",
                )
            return numbers[0] if numbers else 0
        frames = integer()("frames", frames)
        if frames % self.plan.unit:
            raise OptionError(
                f"no call ends after {counted(frames, 'frame')}", hint=f"give a multiple of {self.plan.unit}"
            )
        if numbers and frames != numbers[0]:
            raise OptionError(
                f"state '{counts[0]}' is that after {counted(numbers[0], 'frame')}, not after {frames}",
                hint="leave out frames, or give all states of that call",
            )
        return frames

    def _goes_on(self, held: Mapping[str, Array]) -> bool:
        """Whether a sequence with late outputs may go on from these states."""
        kinds = {state.input: state.state for state in self.plan.states}
        of_frames = {name for name, kind in kinds.items() if kind not in ("h", "c")}  # the others may begin one
        return self.plan.frames_late > 0 and len(held) > 0 and (of_frames or set(kinds)) <= held.keys()

    def _arrays(self, given: Mapping[str, ArrayLike], what: str, known: Collection[str]) -> dict[str, Array]:
        """Return the inputs as arrays that onnxruntime reads correctly.

        Args:
            given: Arrays, or what NumPy converts to them, by name.
            what: Which of "input" and "state" they are.
            known: The known names; all inputs must be given.
        """
        if not isinstance(given, Mapping):
            raise OptionError(f"the {what}s cannot be {type(given).__name__}", hint=f"give arrays by {what} name")
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
        return {name: array_of_type(f"{what} '{name}'", each, self._types[name]) for name, each in given.items()}

    def _sizes(self, inputs: Mapping[str, Array]) -> dict[str, int]:
        """Return the sizes of open dimensions by name; raise if an input has an unexpected shape."""
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
                    + ("" if axis is None else f", with the frames of the chunk on axis {axis}")
                )
            axis = self.plan.inputs[name]
            if axis is not None and (not shape[axis] or shape[axis] % self.plan.unit):
                raise OptionError(
                    f"a chunk of input '{name}' has {shape[axis]} frames on axis {axis}",
                    hint=f"give a multiple of {self.plan.unit}"
                    if shape[axis]
                    else f"give {counted(self.plan.unit, 'frame')} or more",
                )
        self._check_lengths(inputs)
        return sizes

    def _check_end(self, frames: int) -> None:
        """Raise if a chunk goes on after the last frame of the stream."""
        most = self.plan.max_frames
        if most is not None and self._frames + frames > most:
            raise OptionError(
                f"a sequence has at most {counted(most, 'frame')} (max_frames), but this chunk of "
                f"{counted(frames, 'frame')} comes after {self._frames}",
                hint="reset the stream, or lower with a larger max_frames",
            )

    def _check_lengths(self, inputs: Mapping[str, Array]) -> None:
        """Raise if a length is greater than the number of frames of the chunk: it belongs to a whole sequence."""
        frames = frames_in(self.plan, inputs)
        for name in self.plan.lengths:
            if (longest := int(inputs[name].max(initial=0))) > frames:
                raise OptionError(
                    f"input '{name}' has a length of {longest} in a chunk of {counted(frames, 'frame')}",
                    hint=f"give the lengths in this chunk: np.clip(lengths - frames_before, 0, {frames})",
                )


def _initial(state: State, sizes: Mapping[str, int]) -> Array:
    try:
        return state.first(sizes)
    except (ValueError, TypeError, OverflowError, MemoryError) as error:
        raise ModelFileError(f"the initial value of state '{state.input}' does not fit: {error}") from error


def _dtype(text: str) -> np.dtype[Any] | None:
    """Return the NumPy type for a type of onnxruntime, such as "tensor(float)"; None if there is none."""
    name = text.removeprefix("tensor(").removesuffix(")")
    try:
        return np.dtype(_TYPES.get(name, name))
    except TypeError:
        return None


def _message(model: Any) -> onnx.ModelProto:
    import onnx  # a path or bytes need neither
    import onnx_ir as ir

    from rnn_lowering.model.protobuf import as_proto

    if not isinstance(model, onnx.ModelProto | ir.Model):
        give = "an onnx.ModelProto, an onnx_ir.Model, a path, the bytes of a model or a session"
        raise wrong("model", model, give)
    return as_proto(model) if isinstance(model, ir.Model) else model


def _session(model: Any) -> Any:
    if hasattr(model, "get_modelmeta"):
        return model
    if not isinstance(model, bytes | str | os.PathLike):
        model = _message(model).SerializeToString()
    runtime = onnxruntime("a Stream")
    try:
        return runtime.InferenceSession(model, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's errors have no common class
        raise ModelFileError(f"onnxruntime cannot load the model: {' '.join(str(error).split())}") from error
