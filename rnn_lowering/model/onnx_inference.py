"""ONNX's own inference of types and shapes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import onnx
import onnx_ir as ir

from rnn_lowering.model import native
from rnn_lowering.model.messages import pairs_in, writing
from rnn_lowering.model.scopes import bodies_of, graphs_of
from rnn_lowering.spec.node import default_opset
from rnn_lowering.types import in_memory


def infer_shapes(model: ir.Model) -> None:
    """Infer types and shapes, in place; what ONNX cannot infer is no error."""
    for value, info in _read(model.graph, native.infer_shapes(_described(model)).graph):
        shape = ir.serde.deserialize_type_proto_for_shape(info.type)
        value_type = ir.serde.deserialize_type_proto_for_type(info.type)
        value.shape = value.shape if shape is None else shape
        if value_type is not None and value_type.dtype != value.dtype:
            value.type = value_type


def is_sound(model: ir.Model) -> bool:
    """Return whether ONNX's inference, which libraries run in this process, can neither crash nor hang."""
    return native.is_sound(_described(model))


def fault_of(model: ir.Model) -> str:
    """Return the error of strict inference of all types and shapes, in one line; empty where there is none."""
    return native.fault_of(_described(model))


def problem_of(model: ir.Model, *, infer: bool = True) -> str:
    """Return the error of ONNX's checker, or else of strict inference, in one line; empty where there is none."""
    return native.problem_of(_described(model), infer=infer)


def is_anonymous(dim: int | ir.SymbolicDim) -> bool:
    """Return whether a dimension has neither a size nor a name from the model."""
    return isinstance(dim, ir.SymbolicDim) and (dim.value is None or dim.value.startswith("unk__"))


def _described(model: ir.Model) -> onnx.ModelProto:
    """Return a message of the model without its large tensors, which become inputs of the main graph.

    Raises:
        UnsupportedError: A node or a tensor cannot be serialized.
    """
    imports = {**model.opset_imports, "": default_opset(model.opset_imports)}
    proto = onnx.ModelProto(ir_version=model.ir_version)
    proto.opset_import.extend(
        onnx.helper.make_opsetid(domain, version) for domain, version in imports.items() if domain != "ai.onnx"
    )
    with writing():
        proto.functions.extend(ir.to_proto(function) for function in model.functions.values())
        _describe(model.graph, proto.graph, proto.graph)
    return proto


def _describe(graph: ir.Graph, proto: onnx.GraphProto, main: onnx.GraphProto) -> None:
    proto.name = graph.name or "graph"
    proto.input.extend(ir.serde.serialize_value(value) for value in graph.inputs)
    inputs = {value.name for value in graph.inputs}
    for value in graph.initializers.values():
        tensor = value.const_value
        if tensor is None or not value.name:
            continue
        declared = value.name in inputs or _declared(value.name, tensor, proto, main)
        if not declared or tensor.nbytes <= native.SMALL:
            proto.initializer.append(_with_data(tensor))
            proto.initializer[-1].name = value.name
    for node in graph:
        _describe_node(node, proto.node.add(), main)
        known = (v for v in node.outputs if v.name and not v.is_graph_output() and (v.type or v.shape))
        proto.value_info.extend(ir.serde.serialize_value(value) for value in known)
    proto.output.extend(ir.serde.serialize_value(value) for value in graph.outputs)


def _with_data(tensor: ir.TensorProtocol) -> onnx.TensorProto:
    """Return the proto of a tensor, with its data where that is in another file: the checker reads none."""
    if isinstance(tensor, ir.ExternalTensor):
        with suppress(OSError, ValueError):  # it has errors of its own where it is used
            tensor = in_memory(tensor)
    return ir.serde.serialize_tensor(tensor)


def _declared(name: str, tensor: ir.TensorProtocol, proto: onnx.GraphProto, main: onnx.GraphProto) -> bool:
    """Declare the type and shape of an initializer; return False if another body's differ, under the same name."""
    info = onnx.helper.make_tensor_value_info(name, int(tensor.dtype), tensor.shape.numpy())
    if proto is main or tensor.nbytes <= native.SMALL:
        (proto.input if proto is main else proto.value_info).append(info)
        return True
    same = [given for given in main.input if given.name == name]
    if not same:
        main.input.append(info)
    return not same or same == [info]


def _describe_node(node: ir.Node, proto: onnx.NodeProto, main: onnx.GraphProto) -> None:
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
        held = proto.attribute.add(name=name, type=int(attribute.type))
        for body in bodies:
            _describe(body, held.g if attribute.type == ir.AttributeType.GRAPH else held.graphs.add(), main)


def _read(graph: ir.Graph, proto: onnx.GraphProto) -> Iterator[tuple[ir.Value, onnx.ValueInfoProto]]:
    """Yield the values of a graph and its bodies with their declarations in a message of the graph."""
    for scope, message in pairs_in(graph, proto):
        infos = {info.name: info for info in (*message.input, *message.value_info, *message.output)}
        for value in (*scope.inputs, *(v for node in scope for v in node.outputs)):
            if value.name in infos:
                yield value, infos[value.name]
