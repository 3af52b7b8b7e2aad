"""Convert models to protobuf messages, without what onnx_ir adds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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


def mentions(message: onnx.ModelProto, *words: str) -> bool:
    """Return whether a message without large tensors has one of these words: if not, no node has such an operator,
    and none need be looked at."""
    stored = message.SerializeToString()
    return any(word.encode() in stored for word in words)


def graphs_in(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield a graph and the bodies in it."""
    yield graph
    for node in graph.node:
        if node.attribute:
            for body in bodies_in(node):
                yield from graphs_in(body)


def mark_undeclared(graphs: Iterable[tuple[ir.Graph, GraphMessage]]) -> None:
    """Mark initializers that have no value_info in the message of their graph: onnx_ir would add one, and
    `to_message` leaves it out."""
    for graph, message in graphs:
        declared = {info.name for info in message.value_info}
        for name, value in graph.initializers.items():
            if name not in declared:
                value.meta[_UNDECLARED] = True


def to_message(model: ir.Model) -> onnx.ModelProto:
    """Return a model as a message, without the value_info that `mark_undeclared` did not see.

    Raises:
        onnx_ir.serde.SerdeError: It cannot be serialized.
    """
    undeclared = [value for value in model.graph.initializers.values() if _UNDECLARED in value.meta]
    with _without_types(v for v in undeclared if not (v.is_graph_input() or v.is_graph_output())):
        proto: onnx.ModelProto = ir.to_proto(model)
    for graph, message in graphs_with_messages(model, proto):
        names = {name for name, value in graph.initializers.items() if _UNDECLARED in value.meta}
        kept = [info for info in message.value_info if info.name not in names]
        if len(kept) < len(message.value_info):
            del message.value_info[:]
            message.value_info.extend(kept)
    return proto


@contextmanager
def _without_types(values: Iterable[ir.Value]) -> Iterator[None]:
    """Let values have no type and shape in the block: onnx_ir then makes no value_info, which takes it long."""
    had = [(value, value.type, value.shape) for value in values]
    for value, _, _ in had:
        value.type = value.shape = None
    try:
        yield
    finally:
        for value, kind, shape in had:
            value.type, value.shape = kind, shape


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
    for n, node in enumerate(graph):
        if node.attributes.data and (bodies := bodies_of(node)):
            for body, message_of_body in zip(bodies, bodies_in(message.node[n]), strict=True):
                yield from pairs_in(body, message_of_body)


def message_for_inference(model: ir.Model, *, without_shapes: bool = False) -> onnx.ModelProto:
    """Return a message of the model without its large tensors, which become inputs of the main graph.

    Args:
        model: The model.
        without_shapes: Whether the computed values of the main graph are declared without shapes.

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
        _Description(proto, without_shapes=without_shapes).write(model.graph, proto.graph)
    return proto


class _Description:
    """Writes graphs without their large tensors into the message of a model."""

    def __init__(self, model: onnx.ModelProto, *, without_shapes: bool) -> None:
        self._main = model.graph
        self._are_inputs = model.ir_version < _FIRST_WITH_OWN_INITIALIZERS
        self._without_shapes = without_shapes
        self._declared: dict[str, onnx.ValueInfoProto | None] = {}

    def write(self, graph: ir.Graph, proto: onnx.GraphProto) -> None:
        main = proto is self._main
        proto.name = graph.name or "graph"
        proto.input.extend(ir.serde.serialize_value(value) for value in graph.inputs)
        self._write_tensors(graph, proto)
        for node in graph:
            message = proto.node.add()
            self._write_node(node, message)
            if not node.name and node.outputs and main:
                message.name = f"-> {node.outputs[0].name}"  # inference names nodes in its errors
            for value in node.outputs:
                if (value.type or value.shape) and value.name and not value.is_graph_output():
                    self._write_value(value, proto.value_info.add(), computed=main)
        for value in graph.outputs:
            self._write_value(value, proto.output.add(), computed=main and value.producer() is not None)

    def _write_value(self, value: ir.Value, proto: onnx.ValueInfoProto, *, computed: bool) -> None:
        """Write what is declared of a value; `computed`: it is one of the main graph."""
        if not (computed and self._without_shapes):
            ir.serde.serialize_value_into(proto, value)
            return
        proto.name = value.name or ""
        if value.type is not None:
            ir.serde.serialize_type_into(proto.type, value.type)

    def _write_node(self, node: ir.Node, proto: onnx.NodeProto) -> None:
        """Write what inference and the checker read of a node: onnx_ir takes twice as long for all of it."""
        proto.op_type = node.op_type
        for field in ("name", "domain", "overload"):
            if text := getattr(node, field):
                setattr(proto, field, text)
        proto.input.extend(["" if value is None else value.name or "" for value in node.inputs])
        outputs = [value.name or "" for value in node.outputs]
        while outputs and not outputs[-1]:
            outputs.pop()
        proto.output.extend(outputs)
        for name, attribute in node.attributes.data.items():
            if bodies := graphs_of(attribute):
                message = proto.attribute.add(name=name, type=int(attribute.type))
                is_one = attribute.type == ir.AttributeType.GRAPH
                for body in bodies:
                    self.write(body, message.g if is_one else message.graphs.add())
            elif attribute.is_ref():
                ir.serde.serialize_reference_attribute_into(proto.attribute.add(), attribute)
            else:
                ir.serde.serialize_attribute_into(proto.attribute.add(), attribute)

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
