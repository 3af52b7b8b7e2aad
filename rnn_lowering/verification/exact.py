"""A whole model in float64: onnx's reference evaluator, with recurrent nodes by `reference`.

Called as `python -m rnn_lowering.verification.exact MODEL FEED RESULT BYTES`: FEED and RESULT are folders, BYTES is
the memory that it may take. It is slow, so the caller sets a time limit.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from rnn_lowering.limits import RUN_FACTOR, limit_memory, most_bytes
from rnn_lowering.types import Array
from rnn_lowering.verification import reference
from rnn_lowering.verification.arrays import read_arrays, write_arrays
from rnn_lowering.verification.tolerance import distance

_NARROW = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)
_WIDE = onnx.TensorProto.DOUBLE

_COPIES = 8
"""How many times the weights in a file may be held: as messages, as arrays, and both twice as wide."""

_TIMES = 4
"""How many times as far from float64 as the original another rounding may be."""


def no_further(
    model: Path, feed: Path, pairs: Mapping[int, tuple[Array, Array]], scratch: Path, timeout: float | None
) -> bool | None:
    """Return whether outputs are about as close to float64 as the original's; None where that is not known.

    Args:
        model: The original.
        feed: Folder of the inputs.
        pairs: Outputs of the original and of the lowered model, by their numbers.
        scratch: A folder to make, for the float64 outputs.
        timeout: Seconds; None for no limit.
    """
    memory = str(RUN_FACTOR * most_bytes() + _COPIES * model.stat().st_size)
    command = [sys.executable, "-m", "rnn_lowering.verification.exact", str(model), str(feed), str(scratch), memory]
    path = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])
    try:
        done = subprocess.run(
            command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, timeout=timeout, check=False
        )
    except subprocess.TimeoutExpired:
        return None
    if done.returncode:
        return None
    truth = read_arrays(scratch)
    return all(_no_further(truth.get(str(n)), before, after) for n, (before, after) in pairs.items())


def _no_further(truth: Array | None, before: Array, after: Array) -> bool:
    if truth is None or before.dtype.kind != "f" or not truth.shape == before.shape == after.shape:
        return False
    theirs, ours = (float(distance(truth, x).max(initial=0.0)) for x in (before, after))
    return bool(np.isfinite(ours)) and ours <= _TIMES * theirs


def main(model: str, feed: str, result: str, memory: str) -> None:
    """Evaluate a model on the arrays of one folder; write its outputs by number to another."""
    limit_memory(int(memory))
    proto = onnx.load(model)
    del proto.graph.value_info[:]
    for graph in (proto.graph, *proto.functions):
        _widen(graph)
    inputs = {name: _wide(array) for name, array in read_arrays(Path(feed)).items()}
    outputs = ReferenceEvaluator(proto, new_ops=[RNN, GRU, LSTM]).run(None, inputs)
    held = {str(n): output for n, output in enumerate(outputs) if isinstance(output, np.ndarray)}
    write_arrays(Path(result), held)


def _wide(array: Array) -> Array:
    return array.astype(np.float64) if array.dtype.kind == "f" or array.dtype.name == "bfloat16" else array


def _widen(graph: Any) -> None:
    """Let a graph or function hold and make float64 where it has another type of real numbers, in place."""
    for value in (*getattr(graph, "input", ()), *getattr(graph, "output", ())):
        if isinstance(value, onnx.ValueInfoProto) and value.type.tensor_type.elem_type in _NARROW:
            value.type.tensor_type.elem_type = _WIDE
    for tensor in getattr(graph, "initializer", ()):
        _widen_tensor(tensor)
    for node in graph.node:
        for attribute in list(node.attribute):
            _widen_attribute(node, attribute)


def _widen_attribute(node: onnx.NodeProto, attribute: onnx.AttributeProto) -> None:
    if attribute.HasField("g"):
        del attribute.g.value_info[:]
        _widen(attribute.g)
    if attribute.HasField("t"):
        _widen_tensor(attribute.t)
    if attribute.name in ("to", "dtype") and attribute.i in _NARROW:
        attribute.i = _WIDE
    if node.op_type == "Constant" and attribute.name in ("value_float", "value_floats"):
        array = np.asarray(helper.get_attribute_value(attribute), np.float64)
        attribute.CopyFrom(helper.make_attribute("value", numpy_helper.from_array(array)))


def _widen_tensor(tensor: onnx.TensorProto) -> None:
    if tensor.data_type in _NARROW:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float64), tensor.name))


class _Recurrent(OpRun):
    """A recurrent operator."""

    op_domain = ""

    def _run(self, *inputs: Array | None, **_: Any) -> tuple[Array, ...]:
        node = self.onnx_node
        schema = onnx.defs.get_schema(node.op_type)
        symbols = [formal.name for formal in schema.inputs]
        given = {s: a for s, a in zip(symbols, inputs, strict=False) if a is not None and a.size}
        found = reference.evaluate(node.op_type, dict(_attributes(node)), given)
        return tuple(found[formal.name] for formal in schema.outputs[: len(node.output)])


def _attributes(node: onnx.NodeProto) -> Iterator[tuple[str, Any]]:
    for attribute in node.attribute:
        value = helper.get_attribute_value(attribute)
        if isinstance(value, list):
            value = [item.decode() if isinstance(item, bytes) else item for item in value]
        yield attribute.name, value.decode() if isinstance(value, bytes) else value


class RNN(_Recurrent):
    """RNN by `reference`."""


class GRU(_Recurrent):
    """GRU by `reference`."""


class LSTM(_Recurrent):
    """LSTM by `reference`."""


if __name__ == "__main__":
    main(*sys.argv[1:])
