"""A whole model in float64, by onnx's evaluator: with the operators that it computes otherwise repaired or refused.

`tests/compare/test_evaluator.py` runs ONNX's own test cases, and says what differs from onnxruntime.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from onnx.reference.ops.op_loop import Loop as LoopOfOnnx

from rnn_lowering.attention.references import LinearAttention, LinearAttentionOfMicrosoft
from rnn_lowering.compare.float64.as_floats import widen
from rnn_lowering.compare.float64.node_reference import attributes_of
from rnn_lowering.compare.float64.rnn_equations import evaluate
from rnn_lowering.model.protobuf import nodes_in
from rnn_lowering.nodes.kinds import CELLS
from rnn_lowering.types import Array

MISCOMPUTED = frozenset(("Attention", "DynamicQuantizeLinear", "MaxUnpool", "Resize"))
"""Operators that the evaluator computes otherwise than onnxruntime in some cases: a model with one has no truth."""

_SOFTMAX_ALONG_ONE_AXIS = 13
"""Since this opset, Softmax and its relatives work along one axis, before along all from the axis on."""

_BATCH_NORMALIZATION_IN_TRAINING = 14
"""Since this opset, an attribute says whether BatchNormalization is in training, before its number of outputs."""


class _Recurrent(OpRun):
    """A recurrent operator for onnx's evaluator, in float64."""

    op_domain = ""

    def _run(self, *inputs: Array | None, **_: Any) -> tuple[Array, ...]:
        node = self.onnx_node
        schema = onnx.defs.get_schema(node.op_type)
        symbols = [formal.name for formal in schema.inputs]
        given = {s: a for s, a in zip(symbols, inputs, strict=False) if a is not None and a.size}
        found = evaluate(node.op_type, dict(attributes_of(node)), given)
        return tuple(found[formal.name] for formal in schema.outputs[: len(node.output)])


_RECURRENT: list[type[OpRun]] = [type(name, (_Recurrent,), {}) for domain, name in CELLS if not domain]
"""RNN, GRU and LSTM."""


class _Softmax(OpRun):
    """Softmax and its relatives of all opsets."""

    op_domain = ""

    def _run(self, x: Array, **_: Any) -> tuple[Array, ...]:
        along_one = self.run_params["opsets"][""] >= _SOFTMAX_ALONG_ONE_AXIS
        axis = dict(attributes_of(self.onnx_node)).get("axis", -1 if along_one else 1)
        if along_one:
            return (self.of_rows(np.moveaxis(x, axis, -1), axis),)
        axis += x.ndim if axis < 0 else 0
        rows = x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))
        return (self.of_rows(rows, -1).reshape(x.shape),)

    def of_rows(self, x: Array, axis: int) -> Array:
        """Return the result along the last axis of `x`, with that axis moved to `axis`."""
        return np.moveaxis(self.along_last(x) if x.size else x, -1, axis)

    def along_last(self, x: Array) -> Array:
        powers = np.exp(x - x.max(axis=-1, keepdims=True))
        return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


class _LogSoftmax(_Softmax):
    def along_last(self, x: Array) -> Array:
        x = x - x.max(axis=-1, keepdims=True)
        return np.asarray(x - np.log(np.exp(x).sum(axis=-1, keepdims=True)))


class _Hardmax(_Softmax):
    def along_last(self, x: Array) -> Array:
        first = x.argmax(axis=-1)[..., None]
        return np.asarray(np.arange(x.shape[-1]) == first, x.dtype)


class _BatchNormalization(OpRun):
    """BatchNormalization of all opsets, outside of training before opset 14."""

    op_domain = ""

    def _run(self, *inputs: Array, **given: Any) -> tuple[Array, ...]:
        attributes = dict(attributes_of(self.onnx_node))
        training = attributes.get("training_mode", 0)
        if self.run_params["opsets"][""] < _BATCH_NORMALIZATION_IN_TRAINING:
            training = len(self.onnx_node.output) > 1
        if training or attributes.get("spatial", 1) != 1:
            raise NotImplementedError("BatchNormalization in training, or not spatial")
        x, scale, bias, mean, var = (
            a if n == 0 else a.reshape(-1, *[1] * (inputs[0].ndim - 2)) for n, a in enumerate(inputs)
        )
        return (np.asarray(scale * (x - mean) / np.sqrt(var + attributes.get("epsilon", 1e-5)) + bias),)


class _Loop(LoopOfOnnx):
    """Loop, with or without a number of steps and a condition."""

    op_domain = ""

    def _run(
        self, *inputs: Any, context: Any = None, attributes: Any = None, bindings: Any = None, **_: Any
    ) -> Any:
        this: Any = self
        body = this.body
        trip_count, condition, *held = inputs
        _, _, *names = body.input_names
        rows: list[list[Any]] = [[] for _ in body.output_names[1 + len(names) :]]
        going, step = condition is None or bool(np.all(condition)), 0
        while going and (trip_count is None or step < np.max(trip_count)):
            given = {**(context or {}), **dict(zip(names, held, strict=True))}
            given |= zip(body.input_names[:2], (np.array(step), np.array(going)), strict=True)
            goes_on, *outputs = this._run_body(given, attributes=attributes, bindings=bindings)
            held = outputs[: len(names)]
            for row, found in zip(rows, outputs[len(names) :], strict=True):
                row.append(found)
            going, step = bool(np.all(goes_on)), step + 1
        if rows and not step:
            raise NotImplementedError("a Loop without a step stacks rows of an unknown shape")
        return self._check_and_fix_outputs((*held, *(np.stack(row) for row in rows)))


_REPAIRED: dict[str, type[OpRun]] = {
    "Softmax": _Softmax,
    "LogSoftmax": _LogSoftmax,
    "Hardmax": _Hardmax,
    "BatchNormalization": _BatchNormalization,
    "Loop": _Loop,
}
"""By operator."""

OPERATORS: tuple[type[OpRun], ...] = (
    *_RECURRENT,
    LinearAttention,
    LinearAttentionOfMicrosoft,
    *(type(name, (operator,), {}) for name, operator in _REPAIRED.items()),
)
"""Operators that onnx's evaluator lacks, computes otherwise, or does not compute in float64."""

_REAL = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)


def evaluate_model(model: Path, feed: Mapping[str, Array]) -> dict[str, Array]:
    """Return the tensors that a model returns, by "number of the output:0".

    Raises:
        NotImplementedError: The evaluator computes an operator otherwise.
    """
    proto = onnx.load(model)
    nodes = [node for graph in (proto.graph, *proto.functions) for node in nodes_in(graph)]
    if miscomputed := {node.op_type for node in nodes if node.domain in ("", "ai.onnx")} & MISCOMPUTED:
        raise NotImplementedError(f"onnx's evaluator computes {', '.join(sorted(miscomputed))} otherwise")
    for number, node in enumerate(nodes):  # an output "" would be the value of every input ""
        node.output[:] = [name or f"rnn_lowering_unused_{number}_{n}" for n, name in enumerate(node.output)]
    del proto.graph.value_info[:]
    for graph in (proto.graph, *proto.functions):
        widen(graph, _REAL, onnx.TensorProto.DOUBLE)
    inputs = {name: _wide(array) for name, array in feed.items()}
    outputs: Any = ReferenceEvaluator(proto, new_ops=list(OPERATORS)).run(None, inputs)
    return {f"{n}:0": output for n, output in enumerate(outputs) if isinstance(output, np.ndarray)}


def _wide(array: Array) -> Array:
    return array.astype(np.float64) if array.dtype.kind == "f" or array.dtype.name == "bfloat16" else array
