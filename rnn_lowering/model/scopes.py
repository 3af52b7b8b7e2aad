"""The recurrent nodes of a model: in the main graph, in bodies of If, Loop and Scan at any depth, in functions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from rnn_lowering.errors import NodeRef
from rnn_lowering.spec.node import default_opset, is_recurrent, node_ref


@dataclass(frozen=True)
class Found:
    """A recurrent node, the graph that holds it, that scope's name and the opset it imports."""

    node: ir.Node
    graph: ir.Graph
    scope: str
    opset: int
    function: ir.Function | None = None

    @property
    def ref(self) -> NodeRef:
        return node_ref(self.node, self.scope)


def recurrent_nodes(model: ir.Model) -> Iterator[Found]:
    """Yield the recurrent nodes of all scopes, in the order of the model."""
    yield from _walk(model.graph, "main graph", default_opset(model.opset_imports), None)
    for function in model.functions.values():
        yield from _walk(function.graph, _function_scope(function), default_opset(function.opset_imports), function)


def graphs_by_scope(model: ir.Model) -> Iterator[tuple[str, ir.Graph]]:
    """Yield every graph of a model with its scope's name, which two may share where nodes have the same name."""
    pending = [("main graph", model.graph)]
    pending += [(_function_scope(function), function.graph) for function in model.functions.values()]
    while pending:
        scope, graph = pending.pop()
        yield scope, graph
        pending += [body for node in graph for body in _bodies(node, scope)]


def _function_scope(function: ir.Function) -> str:
    return f"function {function.domain}::{function.name}"


def _walk(graph: ir.Graph, scope: str, opset: int, function: ir.Function | None) -> Iterator[Found]:
    for node in graph:
        if is_recurrent(node):
            yield Found(node, graph, scope, opset, function)
        for inner, body in _bodies(node, scope):
            yield from _walk(body, inner, opset, function)


def _bodies(node: ir.Node, scope: str) -> Iterator[tuple[str, ir.Graph]]:
    for name, attribute in node.attributes.items():
        if attribute.is_ref():
            continue
        bodies: tuple[ir.Graph, ...] = ()
        if attribute.type == ir.AttributeType.GRAPH:
            bodies = (attribute.as_graph(),)
        elif attribute.type == ir.AttributeType.GRAPHS:
            bodies = attribute.as_graphs()
        for body in bodies:
            yield f"{scope} > {node_ref(node, '').name} ({node.op_type}) {name}", body


def all_names(model: ir.Model) -> Iterator[str]:
    """Yield every name of a node or value in any scope of a model."""
    for graph in (model.graph, *(function.graph for function in model.functions.values())):
        for scope in (graph, *graph.subgraphs()):
            yield from (v.name for v in (*scope.inputs, *scope.initializers.values()) if v.name)
            for node in scope:
                yield from (v.name for v in node.outputs if v.name)
                if node.name:
                    yield node.name
