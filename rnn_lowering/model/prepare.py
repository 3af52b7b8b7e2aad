"""What is done to a model before its nodes are read: inlining, sorting."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from rnn_lowering.errors import UnsupportedError
from rnn_lowering.model.scopes import Found, recurrent_nodes


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


def inline_all(model: ir.Model) -> None:
    """Inline, in place, every function.

    Raises:
        UnsupportedError: They cannot be inlined.
    """
    if not model.functions:
        return
    try:
        InlinePass()(model)
    except (ValueError, RuntimeError, ir.passes.InvariantError, ir.passes.PassError) as error:
        raise UnsupportedError(
            f"its functions cannot be inlined: {error}",
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
