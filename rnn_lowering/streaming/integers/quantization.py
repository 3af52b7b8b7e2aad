"""`quantize_stream`: a stream in integers, by onnxruntime's quantizer, and how far it is from the float one."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnxruntime.quantization import QuantType

from rnn_lowering.argument_checks import feeds, flag, one_of, why_no_arrays
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
from rnn_lowering.streaming.integers.calibration import (
    REAL,
    Calibration,
    check_finite,
    check_signal,
    chunks_of,
    name_of,
    no_whole_call,
)
from rnn_lowering.streaming.integers.fills import with_near_fills
from rnn_lowering.streaming.integers.quantizer import opset_of, quantized, session_of
from rnn_lowering.streaming.options import BITS
from rnn_lowering.streaming.stream_runner import Stream
from rnn_lowering.targets.names import TargetName
from rnn_lowering.targets.target import target_named
from rnn_lowering.types import Array, ArrayLike, PathLike, in_brackets

_ACTIVATIONS = {"w8a8": QuantType.QInt8, "w8a16": QuantType.QUInt16}

_POOR = 10.0
"""Below this many dB a stream is made only if it is forced."""

_SHOWN = 6
"""Maximum of nodes in float that a message names."""

_SATURATED = 3.0
"""Loss in dB by onnxruntime's integer kernels that a warning names."""


@dataclass(frozen=True)
class Quantization:
    """How far a quantized stream is from the float one.

    Attributes:
        bits: "w8a8" or "w8a16": the bits of weights and of activations.
        sequences: The number of sequences of the calibration, which both streams ran.
        snr: The signal-to-noise ratio of each output in dB: the float output against the difference. Infinite
            where nothing differs. Of an output without frames, the last value of each sequence counts.
        in_float: The nodes that compute in float, since onnxruntime's quantizer does not know or not take them.

    Examples:
        >>> print(rl.Quantization("w8a16", 2, {"Y": 51.25}))
        quantized to w8a16: signal-to-noise ratio against float on the 2 sequences given: Y 51.2 dB
    """

    bits: str
    sequences: int
    snr: dict[str, float]
    in_float: tuple[str, ...] = ()

    __repr__ = in_brackets

    def __str__(self) -> str:
        measured = ", ".join(f"{name} {ratio:.1f} dB" for name, ratio in self.snr.items()) or "no output has floats"
        ran = counted(self.sequences, "sequence")
        shown = [*self.in_float[:_SHOWN], *([f"{more} more"] if (more := len(self.in_float) - _SHOWN) > 0 else [])]
        left = f"; in float: {', '.join(shown)}" if shown else ""
        return f"quantized to {self.bits}: signal-to-noise ratio against float on the {ran} given: {measured}{left}"


def quantize_stream(
    model: PathLike | onnx.ModelProto,
    sequences: Sequence[Mapping[str, ArrayLike]] | PathLike,
    *,
    bits: str = "w8a8",
    target: TargetName = "portable",
    force: bool = False,
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
        force: Also make a stream with an output below 10 dB; a warning names it.

    Returns:
        The quantized stream, and how far it is from the given one.

    Raises:
        OptionError: The sequences do not fit the stream, hold no whole call or end before an output comes; they, or
            an output in float, are 0 everywhere or not finite; or there is no such target.
        ModelFileError: The model is not a stream, or a file cannot be read.
        UnsupportedError: The stream takes any number of frames, the quantizer fails, or an output has less than
            10 dB or is not finite.

    Examples:
        >>> step = rl.lower(model, stream="seq=1")
        >>> frames = np.linspace(-1, 1, 1280, dtype=np.float32).reshape(16, 1, 80)
        >>> quantized, made = rl.quantize_stream(step, [{"X": frames}], bits="w8a16")
        >>> made.snr["Y"] > 30
        True
    """
    with boundary():
        one_of("bits", BITS)("bits", bits)
        text_of("target", target)
        return quantize(model, sequences, bits, target, flag("force", force))


def quantize(
    model: PathLike | onnx.ModelProto,
    sequences: Sequence[Mapping[str, ArrayLike]] | PathLike,
    bits: str,
    target: str,
    force: bool,
    forced_by: str = "force=True",
) -> tuple[onnx.ModelProto, Quantization]:
    """Do what `quantize_stream` does; an error says by which option it is forced."""
    signed = target_named(target).streams.signed_activations
    activations = _ACTIVATIONS[bits] if signed or bits != "w8a8" else QuantType.QUInt8
    exact = Stream(model)
    refuse_open_frames([exact.plan.frames])
    sequences = _read_all(sequences, list(exact.plan.inputs))
    check_finite(sequences)
    check_signal(exact.plan, sequences)
    proto = model if isinstance(model, onnx.ModelProto) else onnx.load(Path(model))
    ratios(exact, Stream(exact.session), sequences)  # refuses what cannot be measured
    near = with_near_fills(proto, exact.plan, sequences)
    calibration = Calibration(near, sequences, state_bits=16 if bits == "w8a16" else 8)
    integers, in_float = _quantized(near, calibration, activations)
    _refuse_opset(opset_of(integers), opset_of(proto), target)
    result = Quantization(bits, len(sequences), ratios(exact, Stream(session_of(integers)), sequences), in_float)
    _judge(result, "" if force else forced_by)
    if bits == "w8a8":
        _compare_kernels(result, ratios(exact, Stream(session_of(integers, optimized=True)), sequences))
    return integers, result


def _quantized(
    model: onnx.ModelProto, calibration: Calibration, activations: QuantType
) -> tuple[onnx.ModelProto, tuple[str, ...]]:
    """Return a stream in integers, and its nodes in float.

    Raises:
        UnsupportedError: The quantizer fails, or leaves all nodes in float.
    """
    try:
        integers, in_float = quantized(model, calibration, activations)
    except RnnLoweringError:
        raise
    except Exception as error:
        text = " ".join(str(error).split())
        raise UnsupportedError(f"onnxruntime's quantizer cannot quantize the stream: {text}") from error
    if not any(node.op_type == "QuantizeLinear" for node in integers.graph.node):
        raise UnsupportedError("onnxruntime's quantizer leaves all nodes of the stream in float")
    return integers, in_float


def _refuse_opset(opset: int, given: int, target: str) -> None:
    """Refuse a newer opset than that of the stream, if the target does not read it."""
    newest = target_named(target).newest_opset
    if newest and opset > max(newest, given):
        raise UnsupportedError(
            f"integers of this stream need opset {opset}, but {target} reads opsets up to {newest}",
            hint="use w8a8 and a float32 model",
        )


def _judge(result: Quantization, forced_by: str) -> None:
    """Raise if an output is lost, or poor; warn if it is poor and that is forced (by no option)."""
    made, more = f"quantized to {result.bits},", REAL + ", or use w8a16" * (result.bits == "w8a8")
    if broken := [name for name, ratio in result.snr.items() if np.isnan(ratio)]:
        raise UnsupportedError(
            f"{made} output '{broken[0]}' is not finite", hint=f"{more}, or keep the stream in float"
        )
    name, ratio = min(result.snr.items(), key=lambda each: each[1], default=("", -np.inf))
    if ratio >= _POOR:
        return
    poor = f"output '{name}' is only {ratio:.1f} dB above its difference from float"
    if not name:
        poor = "no output has floats, so nothing says how good the stream is"
    elif ratio < 0:
        poor = f"output '{name}' differs by more than it holds: {ratio:.1f} dB"
    if not forced_by:
        warn(f"{poor}: {more}")
        return
    hint = f"{more}, or keep the stream in float; {forced_by} writes it all the same"
    raise UnsupportedError(f"{made} {poor}" + f" (less than {_POOR:.0f} dB)" * bool(name), hint=hint)


def _compare_kernels(result: Quantization, optimized: Mapping[str, float]) -> None:
    """Warn if onnxruntime's kernels for int8 spoil an output on this processor."""
    for name, here in optimized.items():
        if not here >= result.snr[name] - _SATURATED:
            warn(
                f"onnxruntime on this processor computes output '{name}' with {here:.1f} dB, not with the "
                f"{result.snr[name]:.1f} dB that the model has: without VNNI its products of int8 saturate; "
                "disable its optimizations, or run the model elsewhere"
            )


def refuse_open_frames(frames: Collection[int | None]) -> None:
    """Refuse streams for any number of frames: the quantizer skips what is in their loops."""
    if None in frames:
        raise UnsupportedError(
            "a stream for any number of frames has loops, whose operators the quantizer skips",
            hint="make it with a number of frames, such as time=1",
        )


def fitting_sequences(model: Path, given: Sequence[Mapping[str, ArrayLike]] | Path) -> list[dict[str, Array]]:
    """Return the sequences for the stream in a file, without running it.

    Raises:
        ModelFileError: A file cannot be read.
        OptionError: The sequences do not fit the stream, hold no whole call, are not finite or have no signal.
    """
    stream = Stream(model)
    sequences = _read_all(given, list(stream.plan.inputs))
    check_finite(sequences, sequence_files(given) if isinstance(given, Path) else ())
    chunks = [chunk for sequence in sequences for chunk in chunks_of(stream.plan, sequence)]
    if not chunks:
        raise no_whole_call(stream.plan, sequences)
    for chunk in chunks:
        stream.feed(chunk)  # checks names, types and shapes
    check_signal(stream.plan, sequences)
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


def ratios(exact: Stream, other: Stream, sequences: Sequence[Mapping[str, ArrayLike]]) -> dict[str, float]:
    """Return the signal-to-noise ratio of each float output in dB: infinite where nothing differs, and NaN where
    numbers of the other stream are not finite.

    Late streams are flushed. Of an output without frames, the last value of each sequence counts.

    Raises:
        OptionError: An output has no frame yet, is 0 everywhere, or is not finite in float.
    """
    signal, noise, compared = (defaultdict[str, float](float) for _ in range(3))
    for number in range(len(sequences)):
        for name, array, integers in _pairs(exact, other, sequences[number]):
            if not np.isfinite(array).all():
                text = f"output '{name}' of the float stream is not finite in {name_of(number, len(sequences))}"
                raise OptionError(text, hint=REAL)
            compared[name] += array.size
            signal[name] += float(np.square(array).sum())
            noise[name] += float(np.square(array - integers).sum())
    for name in compared:
        if not compared[name]:
            raise OptionError(
                f"the sequences end before a frame of output '{name}' comes", hint="give longer sequences"
            )
        if not signal[name]:
            raise OptionError(f"output '{name}' is 0 in all sequences, so there is nothing to measure", hint=REAL)
    return {name: _decibels(signal[name], noise[name]) for name in compared}


def _decibels(signal: float, noise: float) -> float:
    if not np.isfinite(noise):
        return np.nan
    return float(10 * (np.log10(signal) - np.log10(noise))) if noise else np.inf


def _pairs(exact: Stream, other: Stream, sequence: Mapping[str, ArrayLike]) -> Iterator[tuple[str, Array, Array]]:
    """Yield what both streams return for a sequence, by the names of outputs."""
    axes, last = exact.plan.outputs, dict[str, tuple[Array, Array]]()
    for one, two in _returned(exact, other, sequence):
        for name, array in one.items():
            if array.dtype.kind == "f":
                pair = array.astype(np.float64), two[name].astype(np.float64)
                if axes[name] is None:
                    last[name] = pair
                else:
                    yield name, *pair
    for state in exact.plan.states:
        if not state.output.startswith("present_") and state.dtype.startswith("float") and exact.states:
            last[state.output] = exact.states[state.input].astype(float), other.states[state.input].astype(float)
    for name, pair in last.items():
        yield name, *pair


def _returned(
    exact: Stream, other: Stream, sequence: Mapping[str, ArrayLike]
) -> Iterator[tuple[dict[str, Array], ...]]:
    """Yield what both streams return, call by call."""
    exact.reset()
    other.reset()
    for chunk in chunks_of(exact.plan, sequence):
        yield exact(chunk), other(chunk)
    if exact.states:
        yield exact.flush(), other.flush()
