"""`quantize_stream`: a stream in integers, by onnxruntime's quantizer, and how far it is from the float one."""

from __future__ import annotations

import logging
import os
import tempfile
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnxruntime.quantization import QuantType, quantize_static

from rnn_lowering.argument_checks import feeds, one_of, why_no_arrays
from rnn_lowering.argument_checks import text as text_of
from rnn_lowering.errors import (
    ModelFileError,
    OptionError,
    RnnLoweringError,
    UnsupportedError,
    boundary,
    counted,
    warn,
)
from rnn_lowering.options import BITS
from rnn_lowering.streaming.integers.calibration import Calibration, chunks_of, no_whole_call
from rnn_lowering.streaming.stream_runner import Stream
from rnn_lowering.targets.names import TargetName
from rnn_lowering.targets.table import target_named
from rnn_lowering.types import Array, ArrayLike, PathLike

_ACTIVATIONS = {"w8a8": QuantType.QInt8, "w8a16": QuantType.QUInt16}

_PER_CHANNEL = 13
"""First opset whose DequantizeLinear has a scale for each channel."""

_POOR = 10.0
"""Below this many dB a warning advises 16 bits."""

_SATURATED = 3.0
"""Loss in dB by onnxruntime's integer kernels that a warning names."""


@dataclass(frozen=True)
class Quantization:
    """How far a quantized stream is from the float one.

    Attributes:
        bits: "w8a8" or "w8a16": the bits of weights and of activations.
        sequences: The number of sequences of the calibration, which both streams ran.
        snr: The signal-to-noise ratio of each output in dB: the float output against the difference. Infinite
            where nothing differs.

    Examples:
        >>> print(rl.Quantization("w8a16", 2, {"Y": 51.25}))
        quantized to w8a16: signal-to-noise ratio against float on the 2 sequences given: Y 51.2 dB
    """

    bits: str
    sequences: int
    snr: dict[str, float]

    def __str__(self) -> str:
        ratios = ", ".join(f"{name} {ratio:.1f} dB" for name, ratio in self.snr.items())
        ran = counted(self.sequences, "sequence")
        return f"quantized to {self.bits}: signal-to-noise ratio against float on the {ran} given: {ratios}"


def quantize_stream(
    model: PathLike | onnx.ModelProto,
    sequences: Sequence[Mapping[str, ArrayLike]] | PathLike,
    *,
    bits: str = "w8a8",
    target: TargetName = "portable",
) -> tuple[onnx.ModelProto, Quantization]:
    """Return a stream with QuantizeLinear and DequantizeLinear around its operators, as NPUs take it.

    Weights have 8 bits, with a scale for each channel from opset 13 on. Activations and states have 8 or 16. The
    ranges are those of a run of the float stream.

    Args:
        model: A stream of a fixed number of frames for each call, or its path.
        sequences: Whole sequences by input name; or a .npy file, a .npz file with an array for each input, or a
            folder of such files.
        bits: "w8a8", or "w8a16" for activations and states of 16 bits, which needs opset 21.
        target: The runtime. For QNN, activations of 8 bits are unsigned.

    Returns:
        The quantized stream, and how far it is from the given one.

    Raises:
        OptionError: The sequences do not fit the stream, or hold no whole call; or there is no such target.
        ModelFileError: The model is not a stream, or a file cannot be read.
        UnsupportedError: The stream takes any number of frames, the quantizer fails, or the difference is larger
            than the output.

    Examples:
        >>> step = rl.lower(model, stream="seq=1")
        >>> frames = np.linspace(-1, 1, 1280, dtype=np.float32).reshape(16, 1, 80)
        >>> quantized, made = rl.quantize_stream(step, [{"X": frames}], bits="w8a16")
        >>> made.snr["Y"] > 30
        True
    """
    with boundary():
        one_of("bits", BITS)("bits", bits)
        signed = target_named(text_of("target", target)).signed_activations
        activations = _ACTIVATIONS[bits] if signed or bits != "w8a8" else QuantType.QUInt8
        return _quantize_stream(model, sequences, bits, activations)


def _quantize_stream(
    model: PathLike | onnx.ModelProto,
    sequences: Sequence[Mapping[str, ArrayLike]] | PathLike,
    bits: str,
    activations: QuantType,
) -> tuple[onnx.ModelProto, Quantization]:
    proto = model if isinstance(model, onnx.ModelProto) else None
    stream = Stream(proto.SerializeToString() if proto else model)
    refuse_open_frames([stream.plan.frames])
    sequences = _read_all(sequences, list(stream.plan.inputs))
    calibration = Calibration(model, sequences, state_bits=16 if bits == "w8a16" else 8)
    quantized = _quantized(proto or onnx.load(Path(model)), calibration, activations)
    result = Quantization(bits, len(sequences), _ratios(calibration, stream, quantized, optimized=False))
    _judge(result)
    if bits == "w8a8":
        _compare_kernels(result, _ratios(calibration, stream, quantized, optimized=True))
    return quantized, result


def _quantized(model: onnx.ModelProto, calibration: Calibration, activations: QuantType) -> onnx.ModelProto:
    opset = next(each.version for each in model.opset_import if not each.domain)
    copy = onnx.ModelProto()
    copy.CopyFrom(model)  # the quantizer takes the weights out of the model that it gets
    with tempfile.TemporaryDirectory() as folder, _quiet():
        made = Path(folder, "quantized.onnx")
        try:
            quantize_static(
                copy,
                made,
                calibration,
                per_channel=opset >= _PER_CHANNEL,
                activation_type=activations,
                weight_type=QuantType.QInt8,
                extra_options=calibration.extra_options,
            )
        except RnnLoweringError:
            raise
        except Exception as error:  # the quantizer's errors have no common class
            text = " ".join(str(error).split())
            raise UnsupportedError(f"onnxruntime's quantizer cannot quantize the stream: {text}") from error
        return onnx.load(made)


def _judge(result: Quantization) -> None:
    """Raise if an output is lost; warn if it is poor."""
    output, ratio = min(result.snr.items(), key=lambda each: each[1], default=("", np.inf))
    more = "calibrate with sequences of the real signal" + ", or use w8a16" * (result.bits == "w8a8")
    if ratio < 0:
        text = f"quantized to {result.bits}, output '{output}' differs by more than it holds: {ratio:.1f} dB"
        raise UnsupportedError(text, hint=more)
    if ratio < _POOR:
        warn(f"output '{output}' is only {ratio:.1f} dB above its difference from float: {more}")


def _compare_kernels(result: Quantization, optimized: Mapping[str, float]) -> None:
    """Warn if onnxruntime's kernels for int8 spoil an output on this processor."""
    for name, here in optimized.items():
        if here < result.snr[name] - _SATURATED:
            warn(
                f"onnxruntime on this processor computes output '{name}' with {here:.1f} dB, not with the "
                f"{result.snr[name]:.1f} dB that the model has: without VNNI its products of int8 saturate; "
                "disable its optimizations, or run the model elsewhere"
            )


def _ratios(
    calibration: Calibration, stream: Stream, model: onnx.ModelProto, *, optimized: bool
) -> dict[str, float]:
    """Return the signal-to-noise ratio of each float output, by onnxruntime's integer kernels if `optimized`."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    quantized = Stream(session)
    signal, noise = defaultdict[str, float](float), defaultdict[str, float](float)
    for chunks in calibration.chunked():
        stream.reset()
        quantized.reset()
        for chunk in chunks:
            for name, (exact, other) in _pairs(stream(chunk), quantized(chunk)):
                signal[name] += float(np.square(exact).sum())
                noise[name] += float(np.square(exact - other).sum())
    with np.errstate(divide="ignore"):
        return {n: float(10 * np.log10(np.divide(signal[n], noise[n]))) if noise[n] else np.inf for n in signal}


def _pairs(exact: Mapping[str, Array], other: Mapping[str, Array]) -> Iterator[tuple[str, tuple[Array, Array]]]:
    for name, array in exact.items():
        if array.dtype.kind == "f":
            yield name, (array.astype(np.float64), other[name].astype(np.float64))


def refuse_open_frames(frames: Collection[int | None]) -> None:
    """Refuse streams for any number of frames: the quantizer skips what is in their loops."""
    if None in frames:
        raise UnsupportedError(
            "a stream for any number of frames has loops, whose operators the quantizer skips",
            hint="make it with a number of frames: AXIS=1",
        )


def fitting_sequences(model: Path, given: Sequence[Mapping[str, ArrayLike]] | Path) -> list[dict[str, Array]]:
    """Return the sequences for the stream in a file, without running it.

    Raises:
        ModelFileError: A file cannot be read.
        OptionError: The sequences do not fit the stream, or hold no whole call.
    """
    stream = Stream(model)
    sequences = _read_all(given, list(stream.plan.inputs))
    chunks = [chunk for sequence in sequences for chunk in chunks_of(stream.plan, sequence)]
    if not chunks:
        raise no_whole_call(stream.plan, sequences)
    for chunk in chunks:
        stream.feed(chunk)  # checks names, types and shapes
    return sequences


def sequence_files(path: Path) -> list[Path]:
    """Return a file, or the .npy and .npz files of a folder in the order of their names.

    Raises:
        ModelFileError: The file cannot be read.
        OptionError: The folder has none.
    """
    files = sorted(f for f in path.iterdir() if f.suffix in (".npy", ".npz")) if path.is_dir() else [path]
    if not files:
        raise OptionError(f"folder '{path}' has no .npy or .npz file", hint="give one file for each sequence")
    for file in files:
        with _opened(file):
            pass
    return files


def _read_all(given: Sequence[Mapping[str, ArrayLike]] | PathLike, inputs: Sequence[str]) -> list[dict[str, Array]]:
    """Return sequences by the names of inputs: those given, or those in a .npy file (of the only input), in a .npz
    file (by input name), or in each such file of a folder."""
    if isinstance(given, str | os.PathLike):
        return [_read(file, inputs) for file in sequence_files(Path(given))]
    return feeds("sequences", given)


def _read(file: Path, inputs: Sequence[str]) -> dict[str, Array]:
    with _opened(file) as loaded:
        if not isinstance(loaded, np.ndarray):
            return {name: loaded[name] for name in loaded.files}
        if len(inputs) != 1:
            hint = f"save a .npz file with the arrays {', '.join(inputs)}"
            raise OptionError(f"'{file}' has one array, but the stream has {len(inputs)} inputs", hint=hint)
        return {inputs[0]: loaded}


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    """Yield the array or the arrays of a file."""
    try:
        with open(file, "rb") as opened:
            yield np.load(opened, allow_pickle=False)
    except RnnLoweringError:  # also an OptionError, which is a ValueError
        raise
    except (OSError, ValueError, EOFError) as error:
        raise ModelFileError(
            why_no_arrays(f"'{file}'", ".npy or .npz", error),
            hint="" if isinstance(error, OSError) else "save arrays with numpy.save",
        ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Drop the quantizer's advice to run its own preprocessing, which it logs."""
    root, dropped = logging.getLogger(), lambda record: record.levelno >= logging.ERROR
    root.addFilter(dropped)
    try:
        yield
    finally:
        root.removeFilter(dropped)
