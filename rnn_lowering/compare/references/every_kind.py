"""The table of references, one for each kind of recurrent nodes; and a whole model in float64.

For a whole model, types are widened to float64, and onnx's evaluator runs it with these references.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from rnn_lowering.compare.references.attention_reference import (
    AttentionGateReference,
    GatedDeltaNetReference,
    GatedNormReference,
    LinearAttention,
    LinearAttentionOfMicrosoft,
    LinearAttentionReference,
)
from rnn_lowering.compare.references.causal_conv_reference import CausalConvReference
from rnn_lowering.compare.references.node_reference import NodeReference
from rnn_lowering.compare.references.rnn_float64 import GRU, LSTM, RNN
from rnn_lowering.compare.references.rnn_reference import RnnReference
from rnn_lowering.model.messages import bodies_in
from rnn_lowering.spec.causal_conv import CausalConvSpec
from rnn_lowering.spec.gated_delta_net import AttentionGateSpec, GatedDeltaNetSpec, GatedNormSpec
from rnn_lowering.spec.linear_attention import LinearAttentionSpec
from rnn_lowering.spec.node_spec import NodeSpec
from rnn_lowering.spec.rnn import RecurrentSpec
from rnn_lowering.types import Array

REFERENCES: dict[type[NodeSpec], type[NodeReference[Any]]] = {
    RecurrentSpec: RnnReference,
    CausalConvSpec: CausalConvReference,
    AttentionGateSpec: AttentionGateReference,
    GatedNormSpec: GatedNormReference,
    GatedDeltaNetSpec: GatedDeltaNetReference,
    LinearAttentionSpec: LinearAttentionReference,
}
"""By kind."""

OPERATORS: tuple[type[OpRun], ...] = (RNN, GRU, LSTM, LinearAttention, LinearAttentionOfMicrosoft)
"""Operators that onnx's evaluator lacks, or does not compute in float64."""


def reference_of(node: ir.Node, spec: NodeSpec) -> NodeReference[Any]:
    """Return the reference of a node."""
    return REFERENCES[type(spec)].of(node, spec)


_REAL = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)


def evaluate_model(model: Path, feed: Mapping[str, Array]) -> dict[str, Array]:
    """Return the tensors that a model returns, by "number of the output:0"."""
    proto = onnx.load(model)
    del proto.graph.value_info[:]
    for graph in (proto.graph, *proto.functions):
        widen(graph, _REAL, onnx.TensorProto.DOUBLE)
    inputs = {name: _wide(array) for name, array in feed.items()}
    outputs: Any = ReferenceEvaluator(proto, new_ops=list(OPERATORS)).run(None, inputs)
    return {f"{n}:0": output for n, output in enumerate(outputs) if isinstance(output, np.ndarray)}


def _wide(array: Array) -> Array:
    return array.astype(np.float64) if array.dtype.kind == "f" or array.dtype.name == "bfloat16" else array


def widen(graph: Any, narrow: Collection[int], wide: int) -> None:
    """Convert certain element types of a graph or function to another one, in place."""
    for value in (*getattr(graph, "input", ()), *getattr(graph, "output", ())):
        if isinstance(value, onnx.ValueInfoProto) and value.type.tensor_type.elem_type in narrow:
            value.type.tensor_type.elem_type = wide
    attributes = [(node, attribute) for node in graph.node for attribute in node.attribute]
    for tensor in (*getattr(graph, "initializer", ()), *(a.t for _, a in attributes if a.HasField("t"))):
        if tensor.data_type in narrow:
            array = numpy_helper.to_array(tensor).astype(helper.tensor_dtype_to_np_dtype(wide))
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    for body in (body for node in graph.node for body in bodies_in(node)):
        del body.value_info[:]
        widen(body, narrow, wide)
    for node, attribute in attributes:
        if attribute.name in ("to", "dtype") and attribute.i in narrow:
            attribute.i = wide
        numbers = node.op_type == "Constant" and attribute.name in ("value_float", "value_floats")
        if numbers and onnx.TensorProto.FLOAT in narrow:
            array = np.asarray(helper.get_attribute_value(attribute), helper.tensor_dtype_to_np_dtype(wide))
            attribute.CopyFrom(helper.make_attribute("value", numpy_helper.from_array(array)))
