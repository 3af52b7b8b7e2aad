"""Find recurrent nodes in the main graph, in bodies of If, Loop and Scan, and in functions."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from operator import attrgetter

import onnx_ir as ir

from rnn_lowering.errors import NodeRef, UnsupportedError
from rnn_lowering.facts.operators import (
    DEFAULT_DOMAIN,
    default_opset,
    graphs_of,
    graphs_within,
    is_of_default_domain,
    nodes_within,
    reached,
    with_attributes,
    with_bodies,
)
from rnn_lowering.nodes.kinds import calls_function, is_recurrent
from rnn_lowering.nodes.spec import node_ref

_RECURRENT = re.compile("lstm|gru|rnn|causalconvwithstate|linearattention|deltanet", re.IGNORECASE)

REPEATING = frozenset(("Loop", "Scan"))
"""The operators that repeat a body."""

LOWERED = "rnn_lowering.lowered"
"""Key of the mark in `ir.Node.meta` of a Loop or Scan that was emitted."""

ORIGIN = "rnn_lowering.origin"
"""Key in `ir.Node.meta` of the `NodeRef` of the Loop or Scan for which a node was emitted."""

ScopePath = tuple[str, ...]
"""Identifies a graph: the function, or "" for the main graph; then, for each node whose body contains the graph,
its first output, the attribute, and the number of the body in that attribute. Lowering does not change it."""

NodePlace = tuple[str, ...]
"""Identifies a node: the path of its graph and the name of its first output."""


@dataclass(frozen=True)
class Scope:
    """A graph of a model.

    Attributes:
        graph: The graph.
        path: Identifies it.
        text: Its description for messages, not always unique.
        opset: The version of the default domain that it imports.
        function: The function that it belongs to, if any.
        around: The operators of the nodes whose bodies contain it, the outermost first.
    """

    graph: ir.Graph
    path: ScopePath
    text: str
    opset: int
    function: ir.Function | None = None
    around: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RecurrentNode(Scope):
    """A recurrent node in a scope."""

    node: ir.Node

    @property
    def scope(self) -> str:
        """The description of the scope."""
        return self.text

    @property
    def place(self) -> NodePlace:
        return (*self.path, next((v.name for v in self.node.outputs if v.name), ""))

    @property
    def ref(self) -> NodeRef:
        return node_ref(self.node, self.scope)


def recurrent_nodes(model: ir.Model) -> Iterator[RecurrentNode]:
    """Yield the recurrent nodes of all scopes, in the order of the model."""
    for scope in _roots(model):
        yield from _recurrent(scope, model.functions)


def origin_of(node: ir.Node, scope: str = "main graph") -> NodeRef:
    """Return a node for an error: that of the original, if this one takes its place."""
    return node.meta.get(ORIGIN) or node_ref(node, scope)


def nodes_with_functions(model: ir.Model) -> Iterator[tuple[NodeRef, bool]]:
    """Yield the nodes of recurrent operators of which the model has a function, too, and whether they call it."""
    for scope, node in nodes_in_scopes(model) if model.functions else ():
        if is_recurrent(node) and node.op_identifier() in model.functions:
            yield node_ref(node, scope.text), calls_function(node, model.functions)


def scopes(model: ir.Model) -> Iterator[Scope]:
    """Yield every scope of a model, outer ones before their inner ones."""
    return reached(_roots(model), _scopes_in)


def _scopes_in(scope: Scope) -> Iterator[Scope]:
    for node in with_attributes(scope.graph):
        yield from inner_scopes(node, scope)


def nodes_in_scopes(model: ir.Model) -> Iterator[tuple[Scope, ir.Node]]:
    """Yield the nodes of all scopes, each with its scope, in the order of `scopes`."""
    pending = [*_roots(model)]
    while pending:
        scope, inner = pending.pop(), list[Scope]()
        for node in scope.graph:
            yield scope, node
            if node.attributes.data:
                inner += inner_scopes(node, scope)
        pending += inner


def foreign_nodes(model: ir.Model) -> Iterator[NodeRef]:
    """Yield recurrent nodes of other domains, which cannot be lowered: AttnLSTM of com.microsoft, ATen nodes of
    PyTorch's old exporter."""
    foreign = ((scope, node) for scope in scopes(model) for node in scope.graph if node.domain)
    for scope, node in foreign:
        operator = node.attributes.get("operator") if node.op_type == "ATen" else None
        name = node.op_type if operator is None or operator.is_ref() else str(operator.value)
        is_foreign = node.domain not in DEFAULT_DOMAIN and node.op_identifier() not in model.functions
        if is_foreign and not is_recurrent(node) and _RECURRENT.search(name):
            yield node_ref(node, scope.text)


def standard_nodes(model: ir.Model, *operators: str) -> Iterator[tuple[Scope, ir.Node]]:
    """Yield the nodes of some of ONNX's operators in all scopes; none whose attribute is one of a function."""
    for scope, node in nodes_in_scopes(model):
        if node.op_type in operators and is_of_default_domain(node):
            yield scope, node


def repeating_nodes(model: ir.Model, operators: Container[str] = REPEATING) -> Iterator[tuple[Scope, ir.Node]]:
    """Yield the Loops and Scans of all scopes, or those of one of these operators."""
    for scope in scopes(model):
        for node in [each for each in scope.graph if each.op_type in operators and each.domain in DEFAULT_DOMAIN]:
            yield scope, node


def exported_loops(model: ir.Model, operators: Container[str] = REPEATING) -> Iterator[tuple[NodeRef, ir.Node]]:
    """Yield the Loops and Scans of all scopes that were not emitted, or those of one of these operators."""
    for scope, node in repeating_nodes(model, operators):
        if LOWERED not in node.meta:
            yield node_ref(node, scope.text), node


def operators_in(nodes: Iterable[ir.Node]) -> frozenset[str]:
    """Return the operators of nodes and of those in their bodies, recurrent ones left out; with their domain, if it
    is not ONNX's."""
    return frozenset(
        node.op_type if node.domain in DEFAULT_DOMAIN else f"{node.domain}.{node.op_type}"
        for outer in nodes
        for node in with_bodies(outer)
        if not is_recurrent(node)
    )


def _roots(model: ir.Model) -> Iterator[Scope]:
    yield Scope(model.graph, ("",), "main graph", default_opset(model.opset_imports))
    for identifier, function in model.functions.items():
        text = f"function {function.domain}::{function.name}"
        opset = default_opset(function.opset_imports)
        yield Scope(function.graph, ("::".join(identifier),), text, opset, function)


def _recurrent(scope: Scope, functions: Container[ir.OperatorIdentifier]) -> Iterator[RecurrentNode]:
    for node in scope.graph:
        if is_recurrent(node) and not calls_function(node, functions):
            yield RecurrentNode(**vars(scope), node=node)
        if node.attributes.data:
            for inner in inner_scopes(node, scope):
                yield from _recurrent(inner, functions)


def inner_scopes(node: ir.Node, scope: Scope) -> Iterator[Scope]:
    """Yield the scopes that the bodies of a node are."""
    for name, attribute in node.attributes.items():
        for n, body in enumerate(graphs_of(attribute)):
            first = next((v.name for v in node.outputs if v.name), "")
            path = (*scope.path, first, name, str(n))
            text = f"{scope.text} > {node_ref(node, '').name} ({node.op_type}) {name}"
            around = (*scope.around, node.op_type)
            yield replace(scope, graph=body, path=path, text=text, around=around)


def all_graphs(model: ir.Model) -> Iterator[ir.Graph]:
    """Yield the main graph, the graphs of functions, which `ir.Model.graphs` leaves out, and the bodies in each."""
    for graph in (model.graph, *(function.graph for function in model.functions.values())):
        yield from graphs_within(graph)


def all_names(model: ir.Model) -> Iterator[str]:
    """Yield every name of a node or value in any scope of a model."""
    return names_in(all_graphs(model))


def names_in(graphs: Iterable[ir.Graph]) -> Iterator[str]:
    """Yield every name of a node or value in these graphs, without their bodies."""
    for graph in graphs:
        outputs = chain.from_iterable(map(attrgetter("outputs"), graph))
        named = chain(graph.inputs, graph.initializers.values(), graph, outputs)
        yield from filter(None, map(attrgetter("name"), named))


def add_constant(graph: ir.Graph, name: str, tensor: ir.TensorProtocol) -> ir.Value:
    """Add a constant to a graph as an initializer."""
    kind, shape = ir.TensorType(tensor.dtype), ir.Shape(tensor.shape.numpy())
    value = ir.Value(name=name, type=kind, shape=shape, const_value=tensor)
    graph.register_initializer(value)
    return value


_FIRST_OPSET_OF_CAST = 6
"""As it is today; ONNX's converter does not know the earlier one: https://onnx.ai/onnx/operators/onnx__Cast.html."""

_FIRST_OPSET_OF_INTEGERS = 9
"""Of Constant: https://onnx.ai/onnx/operators/onnx__Constant.html."""


def constant_nodes(tensor: ir.TensorProtocol, opset: int) -> list[ir.Node]:
    """Return the nodes that produce a tensor; before opset 9 a Constant holds only floats, which are then cast."""
    floats_only = _FIRST_OPSET_OF_CAST <= opset < _FIRST_OPSET_OF_INTEGERS
    if not floats_only or tensor.dtype.is_floating_point():
        return [ir.node("Constant", [], {"value": tensor}, num_outputs=1)]
    floats = ir.tensor(tensor.numpy().astype("float64"))
    source = ir.node("Constant", [], {"value": floats}, num_outputs=1)
    return [source, ir.node("Cast", source.outputs, {"to": int(tensor.dtype)}, num_outputs=1)]


SORTED = "sorted the nodes by their dependencies"


def sort_nodes(model: ir.Model) -> bool:
    """Sort the nodes of every graph by their dependencies, in place; return False if they were sorted already.

    Raises:
        UnsupportedError: A value depends on itself.
    """
    graphs = (model.graph, *(function.graph for function in model.functions.values()))
    if all(_is_sorted(graph) for graph in graphs):
        return False
    try:
        for graph in graphs:
            graph.sort()
    except ValueError as error:
        raise UnsupportedError("the nodes cannot be sorted", hint="does a value depend on itself?") from error
    return True


def _is_sorted(graph: ir.Graph) -> bool:
    """Return whether every node, also in bodies, comes after those whose values it uses."""
    behind: set[ir.Node] = set()
    homes = {*graphs_within(graph)}
    for node in nodes_within(graph):
        for value in node.inputs:
            producer = None if value is None else value.producer()
            if producer is not None and producer not in behind and producer.graph in homes:
                return False
        behind.add(node)
    return True
