"""onnxruntime's quantizer: nodes that it fails on stay in float."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import onnx
import onnx.version_converter
import onnxruntime
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static

from rnn_lowering.errors import RnnLoweringError
from rnn_lowering.facts.operators import DEFAULT_DOMAIN
from rnn_lowering.streaming.integers.calibration import Calibration
from rnn_lowering.types import Array

_FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE)
_BETWEEN = ("QuantizeLinear", "DequantizeLinear", "Identity", "Constant")
"""Operators that compute nothing in a quantized model."""

_PER_CHANNEL = 13
"""First opset whose DequantizeLinear has a scale for each channel."""

_HALF_SCALES = 19
"""First opset whose DequantizeLinear has scales of float16."""


def quantized(
    model: onnx.ModelProto, calibration: Calibration, activations: QuantType
) -> tuple[onnx.ModelProto, tuple[str, ...]]:
    """Return a stream in integers, and its nodes that compute in float.

    Raises:
        Exception: The quantizer fails, though not on single nodes: its errors have no common class.
    """
    model, shown = _named(_with_scales(model))
    left: list[str] = []
    try:
        made = _run(model, calibration, calibration.extra_options, activations)
    except RnnLoweringError:
        raise
    except Exception:
        left = _failing(model, calibration, activations, list(shown))
        calibration.rewind()
        made = _run(model, calibration, calibration.extra_options, activations, nodes_to_exclude=left)
    in_float = {*left, *_with_floats(made)}
    return made, tuple(text for name, text in shown.items() if name in in_float)


def _with_floats(model: onnx.ModelProto) -> Iterator[str]:
    """Yield the nodes of a quantized model that read floats which come from no DequantizeLinear."""
    graph, types = model.graph, _types(model)
    done = {name for node in graph.node if node.op_type == "DequantizeLinear" for name in node.output}
    for node in graph.node:
        reads = {types.get(name) for name in node.input if name not in done}
        if node.op_type not in _BETWEEN and not reads.isdisjoint(_FLOATS):
            yield node.name


def _types(model: onnx.ModelProto) -> dict[str, int]:
    """Return the element types of the values, by name."""
    graph = onnx.shape_inference.infer_shapes(model).graph
    values = {v.name: v.type.tensor_type.elem_type for v in (*graph.value_info, *graph.input, *graph.output)}
    return values | {tensor.name: tensor.data_type for tensor in graph.initializer}


def _with_scales(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model of an opset whose DequantizeLinear has scales of the model's types."""
    if opset_of(model) >= _HALF_SCALES or onnx.TensorProto.FLOAT16 not in _types(model).values():
        return model
    return onnx.version_converter.convert_version(model, _HALF_SCALES)


def opset_of(model: onnx.ModelProto) -> int:
    return int(next(each.version for each in model.opset_import if each.domain in DEFAULT_DOMAIN))


def _failing(
    model: onnx.ModelProto, calibration: Calibration, activations: QuantType, names: list[str]
) -> list[str]:
    """Return which of these nodes the quantizer fails on, by halves."""
    calibration.rewind()
    first = calibration.get_next()
    try:
        _run(model, _Once(first), calibration.extra_options, activations, nodes_to_quantize=names)
    except Exception:
        if len(names) == 1:
            return names
        halves = names[: len(names) // 2], names[len(names) // 2 :]
        return [name for half in halves for name in _failing(model, calibration, activations, half)]
    return []


class _Once(CalibrationDataReader):  # type: ignore[misc]
    """The inputs of one call."""

    def __init__(self, inputs: dict[str, Array] | None) -> None:
        self._left = inputs

    def get_next(self) -> dict[str, Array] | None:
        inputs, self._left = self._left, None
        return inputs


def _run(
    model: onnx.ModelProto,
    calls: CalibrationDataReader,
    extra_options: dict[str, Any],
    activations: QuantType,
    **nodes: Sequence[str],
) -> onnx.ModelProto:
    """Return the model that the quantizer makes, which onnxruntime can load."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)  # the quantizer takes the weights out of the model that it gets
    with tempfile.TemporaryDirectory() as folder, _quiet():
        file = Path(folder, "quantized.onnx")
        quantize_static(
            copy,
            file,
            calls,
            per_channel=opset_of(model) >= _PER_CHANNEL,
            activation_type=activations,
            weight_type=QuantType.QInt8,
            extra_options=extra_options,
            **nodes,
        )
        made = onnx.load(file)
    session_of(made)
    return made


def session_of(model: onnx.ModelProto, *, optimized: bool = False) -> onnxruntime.InferenceSession:
    """Return a session that computes operators as they are defined, or with onnxruntime's integer kernels."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _named(model: onnx.ModelProto) -> tuple[onnx.ModelProto, dict[str, str]]:
    """Return a copy whose nodes all have a name of their own, by which the quantizer knows them, and what messages
    call each of these."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    shown: dict[str, str] = {}
    for node in copy.graph.node:
        text = f"{node.op_type} node '{node.name or f'-> {node.output[0]}'}'"
        if not node.name or node.name in shown:
            node.name = next(n for k in count() if (n := f"{node.op_type}_{k}") not in shown)
        shown[node.name] = text
    return copy, shown


@contextmanager
def _quiet() -> Iterator[None]:
    """Drop the quantizer's advice to run its own preprocessing, which it logs."""
    root, dropped = logging.getLogger(), lambda record: record.levelno >= logging.ERROR
    root.addFilter(dropped)
    try:
        yield
    finally:
        root.removeFilter(dropped)
