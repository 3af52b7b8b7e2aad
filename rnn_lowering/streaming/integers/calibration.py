"""`Calibration`: the calls of a stream, each with its states, for onnxruntime's `quantize_static`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from rnn_lowering.argument_checks import wrong
from rnn_lowering.errors import OptionError, UnsupportedError
from rnn_lowering.streaming.metadata import StreamPlan
from rnn_lowering.streaming.stream_runner import Stream
from rnn_lowering.types import Array, ArrayLike

try:
    from onnxruntime.quantization import CalibrationDataReader, QuantType
except ImportError as missing:
    raise UnsupportedError(
        f"rl.Calibration needs onnxruntime: {missing}", hint="pip install onnxruntime"
    ) from missing

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
        OptionError: There is no whole call, or an input does not fit the model.

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
        self._stream = Stream(model.SerializeToString() if isinstance(model, onnx.ModelProto) else model)
        if not isinstance(sequences, Sequence) or not all(isinstance(inputs, Mapping) for inputs in sequences):
            raise wrong("sequences", sequences, "a list that has the inputs of each sequence by name")
        self._sequences = list(sequences)
        self._left = self._calls()
        proto = model if isinstance(model, onnx.ModelProto) else onnx.load(model, load_external_data=False)
        self.extra_options = {"TensorQuantOverrides": self._overrides(proto, state_bits)}

    def get_next(self) -> dict[str, Array] | None:
        """Return the inputs of the next call with its states; None after the last call."""
        return next(self._left, None)

    def rewind(self) -> None:
        """Begin with the first call again."""
        self._left = self._calls()

    def chunked(self) -> Iterator[Iterator[dict[str, Array]]]:
        """Yield the inputs of the calls of each sequence, without states."""
        for sequence in self._sequences:
            yield chunks_of(self._stream.plan, sequence)

    def _calls(self) -> Iterator[dict[str, Array]]:
        for chunks in self.chunked():
            self._stream.reset()
            for chunk in chunks:
                feed = self._stream.feed(chunk)
                self._stream(chunk)
                yield feed

    def _overrides(self, proto: onnx.ModelProto, state_bits: int) -> dict[str, list[dict[str, Any]]]:
        """Return the quantizer's settings of each state: one range for its past and its present."""
        states = [s for s in self._stream.plan.states if s.dtype.startswith("float")]
        ranges = {s.input: (np.float32(0), np.float32(0)) for s in states}  # a quantized range includes zero
        called = False
        for feed in self._calls():
            called = True
            for name, (low, high) in ranges.items():
                both = np.append(feed[name], self._stream.states[name])
                ranges[name] = min(low, both.min()), max(high, both.max())
        if not called:
            raise no_whole_call(self._stream.plan, self._sequences)
        producers = {name: node for node in proto.graph.node for name in node.output}
        kind = {} if _QUANT_TYPES[state_bits] is None else {"quant_type": _QUANT_TYPES[state_bits]}
        overrides: dict[str, list[dict[str, Any]]] = {}
        for s in states:
            low, high = ranges[s.input]
            for name in (s.input, _quantized_name(producers, s.output)):
                overrides[name] = [{"rmin": low, "rmax": high, **kind}]
        return overrides


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
