"""Convert models to protobuf messages, without what onnx_ir adds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import onnx
import onnx_ir as ir

from rnn_lowering.errors import UnsupportedError, deepest_cause
from rnn_lowering.facts.operators import bodies_of, default_opset, graphs_of
from rnn_lowering.types import in_memory

GraphMessage = onnx.GraphProto | onnx.FunctionProto

SMALL = 1000
"""Maximum bytes of a tensor that keeps its numbers for inference, since it may be a shape."""

_FIRST_WITH_OWN_INITIALIZERS = 4
"""Before this IR version an initializer is an input, too."""

_UNDECLARED = "rnn_lowering.undeclared"
"""Key of the mark in `ir.Value.meta`."""


def bodies_in(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the graphs in the attributes of a node, in the order of `bodies_of`."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def nodes_in(graph: GraphMessage) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of a graph, each followed by the nodes of its bodies."""
    for node in graph.node:
        yield node
        if node.attribute:  # for most nodes that is all
            for body in bodies_in(node):
                yield from nodes_in(body)


def graphs_in(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield a graph and the bodies in it."""
    yield graph
    for node in graph.node:
        if node.attribute:
            for body in bodies_in(node):
                yield from graphs_in(body)


def mark_undeclared(model: ir.Model, proto: onnx.ModelProto) -> None:
    """Mark initializers that have no value_info in the message: onnx_ir would add one, and `to_message` leaves it
    out."""
    for graph, message in graphs_with_messages(model, proto):
        declared = {info.name for info in message.value_info}
        for name, value in graph.initializers.items():
            if name not in declared:
                value.meta[_UNDECLARED] = True


def to_message(model: ir.Model) -> onnx.ModelProto:
    """Return a model as a message, without the value_info that `mark_undeclared` did not see.

    Raises:
        onnx_ir.serde.SerdeError: It cannot be serialized.
    """
    proto: onnx.ModelProto = ir.to_proto(model)
    for graph, message in graphs_with_messages(model, proto):
        undeclared = {name for name, value in graph.initializers.items() if value.meta.get(_UNDECLARED)}
        kept = [info for info in message.value_info if info.name not in undeclared]
        if len(kept) < len(message.value_info):
            del message.value_info[:]
            message.value_info.extend(kept)
    return proto


def as_proto(model: ir.Model) -> onnx.ModelProto:
    """Return a model as a message.

    Raises:
        UnsupportedError: A node or a tensor cannot be written.
    """
    with _serializing():
        return to_message(model)


@contextmanager
def _serializing() -> Iterator[None]:
    """Raise `UnsupportedError` if a node or a tensor cannot be serialized in the block."""
    try:
        yield
    except (ir.serde.SerdeError, TypeError, ValueError) as error:
        cause = " ".join(str(deepest_cause(error)).split())
        raise UnsupportedError(
            f"the model cannot be written: {cause}", hint="do the types fit the values? onnx.checker tells"
        ) from error


def graphs_with_messages(model: ir.Model, proto: onnx.ModelProto) -> Iterator[tuple[ir.Graph, GraphMessage]]:
    """Yield every graph and function of a model with its message, also those in bodies."""
    yield from pairs_in(model.graph, proto.graph)
    functions = {(f.domain, f.name, f.overload): f for f in proto.functions}
    for identifier, function in model.functions.items():
        yield from pairs_in(function.graph, functions[identifier])


def pairs_in(graph: ir.Graph, message: GraphMessage) -> Iterator[tuple[ir.Graph, GraphMessage]]:
    """Yield a graph and the bodies in it, each with its message."""
    yield graph, message
    for node, described in zip(graph, message.node, strict=True):
        if described.attribute:
            for body, message_of_body in zip(bodies_of(node), bodies_in(described), strict=True):
                yield from pairs_in(body, message_of_body)


def message_for_inference(model: ir.Model) -> onnx.ModelProto:
    """Return a message of the model without its large tensors, which become inputs of the main graph.

    Raises:
        UnsupportedError: A node or a tensor cannot be serialized.
    """
    imports = {**model.opset_imports, "": default_opset(model.opset_imports)}
    proto = onnx.ModelProto(ir_version=model.ir_version)
    proto.opset_import.extend(
        onnx.helper.make_opsetid(domain, version) for domain, version in imports.items() if domain != "ai.onnx"
    )
    with _serializing():
        proto.functions.extend(ir.to_proto(function) for function in model.functions.values())
        _Description(proto).write(model.graph, proto.graph)
    return proto


class _Description:
    """Writes graphs without their large tensors into the message of a model."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._main = model.graph
        self._are_inputs = model.ir_version < _FIRST_WITH_OWN_INITIALIZERS
        self._declared: dict[str, onnx.ValueInfoProto | None] = {}

    def write(self, graph: ir.Graph, proto: onnx.GraphProto) -> None:
        proto.name = graph.name or "graph"
        proto.input.extend(ir.serde.serialize_value(value) for value in graph.inputs)
        self._write_tensors(graph, proto)
        for node in graph:
            self._write_node(node, proto.node.add())
            if not node.name and node.outputs and proto is self._main:
                proto.node[-1].name = f"-> {node.outputs[0].name}"  # inference names nodes in its errors
            known = (v for v in node.outputs if v.name and not v.is_graph_output() and (v.type or v.shape))
            proto.value_info.extend(ir.serde.serialize_value(value) for value in known)
        proto.output.extend(ir.serde.serialize_value(value) for value in graph.outputs)

    def _write_node(self, node: ir.Node, proto: onnx.NodeProto) -> None:
        if not bodies_of(node):
            ir.serde.serialize_node_into(proto, node)
            return
        proto.op_type, proto.domain, proto.overload = node.op_type, node.domain, node.overload
        proto.input.extend("" if value is None else value.name or "" for value in node.inputs)
        proto.output.extend(value.name or "" for value in node.outputs)
        for name, attribute in node.attributes.items():
            bodies = graphs_of(attribute)
            if not bodies:
                ir.serde.serialize_attribute_into(proto.attribute.add(), attribute)
                continue
            message = proto.attribute.add(name=name, type=int(attribute.type))
            for body in bodies:
                self.write(body, message.g if attribute.type == ir.AttributeType.GRAPH else message.graphs.add())

    def _write_tensors(self, graph: ir.Graph, proto: onnx.GraphProto) -> None:
        """Add the initializers of a graph whose inputs are written; only the types and shapes of large ones."""
        inputs = {info.name: info for info in proto.input}
        if proto is self._main:
            self._declared = dict(inputs)
        for value in graph.initializers.values():
            name, tensor = value.name, value.const_value
            if not name or tensor is None:
                continue
            is_small = tensor.nbytes <= SMALL
            if is_small and proto is self._main and not self._are_inputs:
                self._declared.setdefault(name, None)
            elif name not in inputs and not self._declare(name, tensor, proto):
                is_small = True
            if is_small:
                message = proto.initializer.add()
                ir.serde.serialize_tensor_into(message, _with_data(tensor))
                message.name = name

    def _declare(self, name: str, tensor: ir.TensorProtocol, proto: onnx.GraphProto) -> bool:
        """Declare the type and shape of an initializer; return False if another body declares that name
        differently."""
        info = onnx.helper.make_tensor_value_info(name, int(tensor.dtype), tensor.shape.numpy())
        if proto is not self._main and tensor.nbytes <= SMALL:
            proto.value_info.append(info)
            return True
        same = self._declared.setdefault(name, info)
        if same is info:
            self._main.input.append(info)
        return same == info


def _with_data(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    """Return a tensor whose data is loaded if it is in another file: the checker reads no files."""
    if isinstance(tensor, ir.ExternalTensor):
        with suppress(OSError, ValueError):  # it raises errors of its own when it is used
            return in_memory(tensor)
    return tensor
