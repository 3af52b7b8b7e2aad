"""A recurrent node, or the part of a lowered model that replaces it, as a model of its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir

from rnn_lowering.model.scopes import Found, bodies_of, scopes
from rnn_lowering.spec.node import RecurrentSpec, default_opset
from rnn_lowering.verification.stored_tensors import StoredTensors

_NEWEST_RUNNABLE = 26
"""The newest opset that onnxruntime runs; the operators that a lowering emits are the same in 27 and 28."""


def order_of_nodes(model: ir.Model) -> dict[ir.Node, int]:
    """Return the position of each node of a model, those of outer scopes first."""
    return {node: n for n, node in enumerate(node for scope in scopes(model) for node in scope.graph)}


def cut_out(
    model: ir.Model,
    order: Mapping[ir.Node, int],
    outputs: list[ir.Value],
    feeds: Mapping[str, str],
    spec: RecurrentSpec,
    tensors: StoredTensors | None = None,
) -> onnx.ModelProto | None:
    """Return the part of a model between the values of `feeds` and `outputs`, None where it needs others.

    Args:
        order: That of the nodes of the model.
    """
    stop = set(feeds.values())
    needed: set[ir.Node] = set()
    initializers: dict[str, ir.TensorProtocol] = {}
    inputs: set[str] = set()
    pending = list(outputs)
    while pending:
        value = pending.pop()
        node = value.producer()
        if value.name in stop:
            inputs.add(value.name)
        elif node is not None:
            pending += () if node in needed else _needs(node)
            needed.add(node)
        elif value.const_value is None:
            return None
        else:
            initializers[value.name or ""] = value.const_value
    nodes = sorted(needed, key=order.__getitem__)
    given = {name: symbol for symbol, name in feeds.items() if name in inputs}
    opset = default_opset(model.opset_imports)
    return _model(nodes, initializers, given, spec, opset, tensors or StoredTensors())


def whole(
    entry: Found, spec: RecurrentSpec, feeds: Mapping[str, str], tensors: StoredTensors | None = None
) -> onnx.ModelProto:
    """Return the node itself as a model from the values of `feeds` to its connected outputs."""
    constants = {spec.inputs[symbol].name or "": tensor for symbol, tensor in spec.stored.items()}
    given = {name: symbol for symbol, name in feeds.items()}
    return _model([entry.node], constants, given, spec, entry.opset, tensors or StoredTensors())


def _model(
    nodes: Iterable[ir.Node],
    initializers: Mapping[str, ir.TensorProtocol],
    inputs: Mapping[str, str],
    spec: RecurrentSpec,
    opset: int,
    tensors: StoredTensors,
) -> onnx.ModelProto:
    """Return a model of some nodes as onnxruntime's CPU runs it: bfloat16 as float32, an opset that it knows.

    Args:
        inputs: Name of the value -> symbol of the operator specification.
    """
    graph = onnx.GraphProto(name="node")
    graph.node.extend(_node(node, tensors) for node in nodes)
    graph.initializer.extend(tensors.proto(t, name, widen=True) for name, t in initializers.items())
    for name, symbol in inputs.items():
        dtype = onnx.TensorProto.INT32 if symbol == "sequence_lens" else int(spec.dtype)
        rank = {"sequence_lens": 1, "B": 2, "P": 2}.get(symbol, 3)
        graph.input.append(onnx.helper.make_tensor_value_info(name, dtype, [None] * rank))
    for value in spec.outputs.values():
        graph.output.append(onnx.helper.make_tensor_value_info(value.name or "", int(spec.dtype), None))
    _widen(graph)
    others = sorted({node.domain for node in graph.node} - {""})
    versions = {"": min(opset, _NEWEST_RUNNABLE), **dict.fromkeys(others, 1)}
    imports = [onnx.helper.make_opsetid(domain, version) for domain, version in versions.items()]
    return onnx.helper.make_model(graph, opset_imports=imports, ir_version=10)


def _node(node: ir.Node, tensors: StoredTensors) -> onnx.NodeProto:
    """Return a node whose bodies refer to their tensors as `tensors` does, wherever the model has them."""
    proto: onnx.NodeProto = ir.to_proto(node)
    bodies = {a.name: a.as_graph() for a in node.attributes.values() if a.type == ir.AttributeType.GRAPH}
    for attribute in proto.attribute:
        if attribute.name in bodies:
            _hold(attribute.g, bodies[attribute.name], tensors)
    return proto


def _hold(proto: onnx.GraphProto, body: ir.Graph, tensors: StoredTensors) -> None:
    for tensor in proto.initializer:
        held = body.initializers[tensor.name].const_value
        if isinstance(held, ir.ExternalTensor):
            tensor.CopyFrom(tensors.proto(held, tensor.name, widen=True))
    for n, node in enumerate(body):
        proto.node[n].CopyFrom(_node(node, tensors))


def _needs(node: ir.Node) -> Iterator[ir.Value]:
    """Yield the values that a node uses, also those that its bodies use from outside."""
    yield from (v for v in node.inputs if v is not None)
    for body in bodies_of(node):
        inside = {body, *body.subgraphs()}
        for inner in body.all_nodes():
            for value in inner.inputs:
                producer = None if value is None else value.producer()
                home = value and (value.graph if producer is None else producer.graph)
                if value is not None and home not in inside:
                    yield value


def sized(model: onnx.ModelProto, shapes: Mapping[str, Sequence[int]]) -> onnx.ModelProto:
    """Return a copy of a model whose inputs have shapes."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for value in copy.graph.input:
        for dim, size in zip(value.type.tensor_type.shape.dim, shapes.get(value.name, ()), strict=False):
            dim.dim_value = size
    return copy


def _widen(graph: onnx.GraphProto) -> None:
    half, full = onnx.TensorProto.BFLOAT16, onnx.TensorProto.FLOAT
    for info in (*graph.input, *graph.output, *graph.value_info):
        if info.type.tensor_type.elem_type == half:
            info.type.tensor_type.elem_type = full
    attributes = [a for node in graph.node for a in node.attribute]
    for tensor in (*graph.initializer, *(a.t for a in attributes if a.HasField("t"))):
        if tensor.data_type == half:
            name, array = tensor.name, onnx.numpy_helper.to_array(tensor).astype(np.float32)
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, name))
    for attribute in attributes:
        if attribute.name == "to" and attribute.i == half:
            attribute.i = full
        if attribute.HasField("g"):
            _widen(attribute.g)
