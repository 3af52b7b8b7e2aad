"""`Calibration`: the calls of a stream, each with its states, for onnxruntime's `quantize_static`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from rnn_lowering.argument_checks import wrong
from rnn_lowering.errors import OptionError, UnsupportedError, warn
from rnn_lowering.streaming.metadata import StreamPlan
from rnn_lowering.streaming.stream_runner import Stream
from rnn_lowering.types import Array, ArrayLike

try:
    from onnxruntime.quantization import CalibrationDataReader, QuantType
except ImportError as missing:
    raise UnsupportedError(
        f"rl.Calibration needs onnxruntime: {missing}", hint="pip install onnxruntime"
    ) from missing

REAL = "calibrate with sequences of the real signal"

_QUANT_TYPES = {8: None, 16: QuantType.QUInt16}


class Calibration(CalibrationDataReader):  # type: ignore[misc]
    """The calls of a stream over whole sequences, as `quantize_static` reads them.

    The past and the present of a state share one range, so no call converts between two scales.

    Args:
        model: The path of a stream, or an onnx.ModelProto.
        sequences: The inputs of each sequence by name, with all frames. Frames that do not fill a call are dropped.
        state_bits: 8, or 16 for states in QUInt16, which keeps small steps of a state.

    Attributes:
        extra_options: For `quantize_static`: the ranges of the states.

    Raises:
        ModelFileError: The model is not a stream.
        OptionError: There is no whole call, an input does not fit the model, or numbers are not finite.

    Examples:
        >>> step = rl.lower(model, stream="seq=1")
        >>> calibration = rl.Calibration(step, [{"X": np.zeros((3, 1, 80), np.float32)}])
        >>> sorted(calibration.get_next())
        ['X', 'past_gru_GRU_h', 'past_lstm_LSTM_c', 'past_lstm_LSTM_h']
        >>> # quantize_static(step, "int8.onnx", calibration, extra_options=calibration.extra_options)
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | onnx.ModelProto,
        sequences: Sequence[Mapping[str, ArrayLike]],
        *,
        state_bits: int = 8,
    ) -> None:
        if state_bits not in _QUANT_TYPES:
            raise OptionError(f"state_bits is {state_bits!r}", hint="give 8 or 16")
        self._recorder = Recorder(Stream(model).session)
        if not isinstance(sequences, Sequence) or not all(isinstance(inputs, Mapping) for inputs in sequences):
            raise wrong("sequences", sequences, "a list that has the inputs of each sequence by name")
        self._sequences = list(sequences)
        check_finite(self._sequences)
        self._left = self._calls()
        proto = model if isinstance(model, onnx.ModelProto) else onnx.load(model, load_external_data=False)
        self.extra_options = {"TensorQuantOverrides": self._overrides(proto, state_bits)}

    def get_next(self) -> dict[str, Array] | None:
        """Return the inputs of the next call with its states; None after the last call."""
        call = next(self._left, None)
        return None if call is None else dict(call.inputs)

    def rewind(self) -> None:
        """Begin with the first call again."""
        self._left = self._calls()

    def _calls(self) -> Iterator[RecordedCall]:
        for sequence in self._sequences:
            yield from self._recorder.calls(sequence)

    def _overrides(self, proto: onnx.ModelProto, state_bits: int) -> dict[str, list[dict[str, Any]]]:
        """Return the quantizer's settings of each state: one range for its past and its present."""
        plan = self._recorder.plan
        states = [s for s in plan.states if s.dtype.startswith("float")]
        ranges = {s.input: (np.float32(0), np.float32(0)) for s in states}  # a quantized range includes zero
        called = False
        for call in self._calls():
            called = True
            for s in states:
                low, high = ranges[s.input]
                both = np.append(call.inputs[s.input], call.outputs[s.output])
                ranges[s.input] = min(low, both.min()), max(high, both.max())
        if not called:
            raise no_whole_call(plan, self._sequences)
        producers = {name: node for node in proto.graph.node for name in node.output}
        kind = {} if _QUANT_TYPES[state_bits] is None else {"quant_type": _QUANT_TYPES[state_bits]}
        overrides: dict[str, list[dict[str, Any]]] = {}
        for s in states:
            low, high = ranges[s.input]
            for name in (s.input, _quantized_name(producers, s.output)):
                overrides[name] = [{"rmin": low, "rmax": high, **kind}]
        return overrides


@dataclass(frozen=True)
class RecordedCall:
    """What a stream got in a call and computed, with its states."""

    inputs: Mapping[str, Array]
    outputs: Mapping[str, Array]

    def __getitem__(self, name: str) -> Array:
        """Return an input or an output."""
        return self.inputs[name] if name in self.inputs else self.outputs[name]


class Recorder:
    """Runs a stream over sequences, and keeps each call: also those of zeros behind a sequence, for late outputs.

    Args:
        session: A session of the stream.
        more: The number of its last outputs that the stream does not have.
    """

    def __init__(self, session: Any, more: int = 0) -> None:
        self._session, self._own = session, len(session.get_outputs()) - more
        self._names = [value.name for value in session.get_outputs()]
        self._made: list[RecordedCall] = []
        self._stream = Stream(self)
        self.plan = self._stream.plan

    def calls(self, sequence: Mapping[str, ArrayLike]) -> Iterator[RecordedCall]:
        """Yield the calls of a sequence."""
        self._stream.reset()
        for chunk in chunks_of(self.plan, sequence):
            self._stream(chunk)
            yield self._made.pop()
        if self._stream.states and self.plan.frames_late:
            self._stream.flush()
            yield from self._made
            self._made.clear()

    def run(self, _: None, inputs: dict[str, Array]) -> list[Array]:
        """Run a call, as a session does."""
        results = self._session.run(None, inputs)
        self._made.append(RecordedCall(inputs, dict(zip(self._names, results, strict=True))))
        return results[: self._own]  # type: ignore[no-any-return]

    def get_modelmeta(self) -> Any:
        return self._session.get_modelmeta()

    def get_inputs(self) -> Any:
        return self._session.get_inputs()

    def get_outputs(self) -> Any:
        return self._session.get_outputs()[: self._own]


def chunks_of(plan: StreamPlan, sequence: Mapping[str, ArrayLike]) -> Iterator[dict[str, Array]]:
    """Yield the inputs of each call: as many frames as the stream takes, or all at once if it takes any."""
    arrays = {name: np.asarray(array) for name, array in sequence.items()}
    axes = {name: axis for name, axis in plan.inputs.items() if axis is not None and name in arrays}
    if any(axis >= arrays[name].ndim for name, axis in axes.items()):
        yield arrays  # the stream says what is wrong with it
        return
    length = min((arrays[name].shape[axis] // int(plan.rate(name)) for name, axis in axes.items()), default=1)
    size = plan.frames or length // plan.unit * plan.unit
    lengths_of = [name for name in plan.lengths if name in arrays]
    for start in range(0, length - size + 1, size) if size else ():
        chunk = arrays | plan.cut(arrays, start, start + size)
        lengths = {name: np.clip(arrays[name] - start, 0, size).astype(arrays[name].dtype) for name in lengths_of}
        yield chunk | lengths


def name_of(number: int, count: int) -> str:
    """Return what messages call a sequence."""
    return f"sequence {number + 1} of {count}"


def check_finite(sequences: Sequence[Mapping[str, ArrayLike]], names: Sequence[object] = ()) -> None:
    """Refuse sequences with infinities or NaN.

    Args:
        names: What the sequences are called; else they are counted.

    Raises:
        OptionError: There are such numbers.
    """
    for number, sequence in enumerate(sequences):
        for name, given in sequence.items():
            array = np.asarray(given)
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                where = f"'{names[number]}'" if names else name_of(number, len(sequences))
                text = f"input '{name}' has numbers in {where} that are not finite (infinities or NaN)"
                raise OptionError(text, hint="repair them, or leave this sequence out")


def check_signal(plan: StreamPlan, sequences: Sequence[Mapping[str, ArrayLike]]) -> None:
    """Refuse sequences that are 0 everywhere; warn of an input that is.

    Raises:
        OptionError: There is no signal.
    """
    arrays = [(name, np.asarray(each)) for sequence in sequences for name, each in sequence.items()]
    timed = [
        (name, array) for name, array in arrays if array.dtype.kind == "f" and plan.inputs.get(name) is not None
    ]
    heard = {name for name, array in timed if array.any()}
    if timed and not heard:
        raise OptionError("the sequences are 0 everywhere, so there is nothing to measure", hint=REAL)
    for name in sorted({name for name, _ in timed} - heard):
        warn(f"input '{name}' is 0 in all sequences, so no range behind it is measured: {REAL}")


def no_whole_call(plan: StreamPlan, sequences: Sequence[Mapping[str, ArrayLike]]) -> OptionError:
    """Return the error for sequences that are shorter than a call; it names the shortest input of the first one."""
    told = []
    for name, array in sequences[0].items() if sequences else ():
        axis, shape = plan.inputs.get(name), np.shape(array)
        if axis is not None and axis < len(shape):
            needed = int((plan.frames or plan.unit) * plan.rate(name))
            text = f"input '{name}' has shape {list(shape)}, and a call takes {needed} on axis {axis}"
            told.append((shape[axis] / needed, text))
    _, why = min(told, default=(0, "no sequence is given"))
    return OptionError(f"the sequences hold no whole call: {why}", hint="give longer sequences")


def _quantized_name(producers: Mapping[str, onnx.NodeProto], output: str) -> str:
    """Return the tensor that the quantizer rounds for an output: an Identity only renames it."""
    while output in producers and producers[output].op_type == "Identity":
        output = producers[output].input[0]
    return output
