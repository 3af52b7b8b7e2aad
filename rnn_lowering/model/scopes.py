"""Where recurrent nodes stand: the main graph, bodies of If, Loop and Scan at any depth, model-local functions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import onnx_ir as ir
from onnx_ir.passes.common import InlinePass, ShapeInferencePass

from rnn_lowering.errors import NodeRef, UnsupportedError
from rnn_lowering.spec.node import is_recurrent, node_ref


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


def default_opset(imports: dict[str, int]) -> int:
    """Return the version of the default domain."""
    return imports.get("", imports.get("ai.onnx", 1))


def all_names(model: ir.Model) -> Iterator[str]:
    """Yield every name of a node or value in any scope of a model."""
    for graph in (model.graph, *(function.graph for function in model.functions.values())):
        for scope in (graph, *graph.subgraphs()):
            yield from (v.name for v in (*scope.inputs, *scope.initializers.values()) if v.name)
            for node in scope:
                yield from (v.name for v in node.outputs if v.name)
                if node.name:
                    yield node.name


def inline_functions(model: ir.Model, wanted: Callable[[Found], bool]) -> None:
    """Inline, in place, the functions that hold a wanted node, and those that call them: only at the place of
    the call do attribute references, types and shapes become known.

    Raises:
        UnsupportedError: They cannot be inlined.
    """
    holders = {e.function.identifier() for e in recurrent_nodes(model) if e.function is not None and wanted(e)}
    before = 0
    while len(holders) > before:
        before = len(holders)
        for identifier, function in model.functions.items():
            if any(node.op_identifier() in holders for node in function.graph.all_nodes()):
                holders.add(identifier)
    if not holders:
        return
    try:
        InlinePass(criteria=lambda function: function.identifier() in holders)(model)
    except (ValueError, RuntimeError, ir.passes.InvariantError, ir.passes.PassError) as error:
        raise UnsupportedError(
            f"functions with recurrent nodes cannot be inlined: {error}",
            hint="inline them first (onnx.inliner.inline_local_functions)",
        ) from error


def sort_nodes(model: ir.Model) -> bool:
    """Sort the nodes of every graph by their dependencies, in place, where they are not; return whether.

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
        raise UnsupportedError(
            f"the nodes cannot be sorted: {error}", hint="does a value depend on itself?"
        ) from error
    return True


def _is_sorted(graph: ir.Graph) -> bool:
    """Whether every node, those of bodies included, stands behind those whose values it takes."""
    behind: set[ir.Node] = set()
    homes = {graph, *graph.subgraphs()}
    for node in graph.all_nodes():
        for value in node.inputs:
            producer = None if value is None else value.producer()
            if producer is not None and producer.graph in homes and producer not in behind:
                return False
        behind.add(node)
    return True


def infer_shapes(model: ir.Model) -> None:
    """Infer types and shapes, in place, as far as ONNX can; what it cannot is no error."""
    logger = logging.getLogger("onnx_ir.passes.common.shape_inference")
    before, logger.disabled = logger.disabled, True
    try:
        ShapeInferencePass(check_type=False, strict_mode=False)(model)
    finally:
        logger.disabled = before


def replace_content(
    model: ir.Model, graph: ir.Graph, functions: Mapping[ir.OperatorIdentifier, ir.Function]
) -> None:
    """Give a model another graph and other functions."""
    model.graph = graph
    model.functions.clear()
    model.functions.update(functions)


def clone(model: ir.Model) -> ir.Model:
    """Return a copy that shares the tensors.

    Raises:
        UnsupportedError: A node takes a value that nothing defines.
    """
    try:
        return model.clone()
    except (RuntimeError, ValueError) as error:
        cause = error.__cause__ or error
        reason = " ".join(str(cause).split())[:300]
        raise UnsupportedError(
            f"the model does not hang together: {reason}", hint="see what onnx.checker says"
        ) from error


@contextmanager
def inferred_shapes(model: ir.Model, found: list[Found]) -> Iterator[None]:
    """Let the inputs of nodes have, for a while, the types and shapes that ONNX infers from the graph's inputs.

    What a model declares of inner values may be wrong: it counts only where inference knows nothing.
    """
    before: list[tuple[ir.Value, ir.TypeProtocol | None, ir.Shape | None]] = []
    if any(not _declares_all(entry.node) for entry in found):
        bare = clone(model)
        for graph in bare.graphs():
            for output in (v for node in graph for v in node.outputs):
                output.shape = None
        infer_shapes(bare)
        for entry, twin in zip(recurrent_nodes(model), recurrent_nodes(bare), strict=True):
            for value, known in zip(entry.node.inputs, twin.node.inputs, strict=True):
                if value is not None and known is not None and value.producer() is not None:
                    before.append((value, value.type, value.shape))
                    value.type, value.shape = value.type or known.type, _merged(known.shape, value.shape)
    try:
        yield
    finally:
        for value, value_type, shape in reversed(before):
            value.type, value.shape = value_type, shape


def _declares_all(node: ir.Node) -> bool:
    """Whether no input of a node is computed, so that inference could add nothing."""
    return all(v is None or v.producer() is None for v in node.inputs)


def _merged(inferred: ir.Shape | None, declared: ir.Shape | None) -> ir.Shape | None:
    """Return an inferred shape, with declared sizes where it has none and no name either."""
    if inferred is None or declared is None or len(inferred) != len(declared):
        return inferred or declared
    return ir.Shape([d if _is_anonymous(i) else i for i, d in zip(inferred, declared, strict=True)])


def _is_anonymous(dim: int | ir.SymbolicDim) -> bool:
    return isinstance(dim, ir.SymbolicDim) and (dim.value is None or dim.value.startswith("unk__"))
