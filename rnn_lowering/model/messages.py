"""A model as a protobuf message, and what onnx_ir's conversion adds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import onnx
import onnx_ir as ir

from rnn_lowering.errors import UnsupportedError, deepest_cause
from rnn_lowering.model.scopes import bodies_of

GraphMessage = onnx.GraphProto | onnx.FunctionProto

_UNDECLARED = "rnn_lowering.undeclared"
"""Key of the mark in `ir.Value.meta`."""


def bodies_in(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the graphs in the attributes of a node, in the order of `bodies_of`."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def nodes_in(graph: GraphMessage) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of a graph, each followed by those of its bodies."""
    for node in graph.node:
        yield node
        for body in bodies_in(node):
            yield from nodes_in(body)


def graphs_in(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield a graph and the bodies in it."""
    yield graph
    for node in nodes_in(graph):
        yield from bodies_in(node)


def mark_undeclared(model: ir.Model, proto: onnx.ModelProto) -> None:
    """Mark the initializers whose types and shapes the message of a model does not declare: onnx_ir adds those of
    the tensors, and `to_message` leaves them out."""
    for graph, message in _pairs(model, proto):
        declared = {info.name for info in message.value_info}
        for name, value in graph.initializers.items():
            if name not in declared:
                value.meta[_UNDECLARED] = True


def to_message(model: ir.Model) -> onnx.ModelProto:
    """Return a model as a message, which declares nothing that `mark_undeclared` has seen undeclared.

    Raises:
        onnx_ir.serde.SerdeError: It cannot be serialized.
    """
    proto: onnx.ModelProto = ir.to_proto(model)
    for graph, message in _pairs(model, proto):
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
    with writing():
        return to_message(model)


@contextmanager
def writing() -> Iterator[None]:
    """Raise `UnsupportedError` where a node or a tensor cannot be serialized in the block."""
    try:
        yield
    except (ir.serde.SerdeError, TypeError, ValueError) as error:
        cause = " ".join(str(deepest_cause(error)).split())
        raise UnsupportedError(
            f"the model cannot be written: {cause}", hint="do its types fit its values (onnx.checker)?"
        ) from error


def _pairs(model: ir.Model, proto: onnx.ModelProto) -> Iterator[tuple[ir.Graph, GraphMessage]]:
    """Yield every graph and function of a model with its message, also those in bodies."""
    yield from pairs_in(model.graph, proto.graph)
    functions = {(f.domain, f.name, f.overload): f for f in proto.functions}
    for identifier, function in model.functions.items():
        yield from pairs_in(function.graph, functions[identifier])


def pairs_in(graph: ir.Graph, message: GraphMessage) -> Iterator[tuple[ir.Graph, GraphMessage]]:
    """Yield a graph and the bodies in it, each with its message."""
    yield graph, message
    for node, described in zip(graph, message.node, strict=True):
        for body, inner in zip(bodies_of(node), bodies_in(described), strict=True):
            yield from pairs_in(body, inner)
