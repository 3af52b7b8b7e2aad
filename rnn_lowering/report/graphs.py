"""The part of a graph that a lowering changed, as a small graph for a picture: see `drawing`."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import networkx as nx
import onnx_ir as ir

from rnn_lowering.errors import printable
from rnn_lowering.facts.operators import bodies_of

MOST, MOST_INSIDE, MOST_BODIES, MOST_NEIGHBORS = 22, 18, 3, 6
"""The most changed nodes of a graph and of a body in it, bodies that are shown, and neighbors of changed nodes."""

MOST_PORTS = 10
"""The most inputs and outputs that are shown of a graph or a body."""

MOST_DEPTH = 2
"""The deepest body that is shown in another one."""

_MOST_LETTERS = 22

CHANGED, NEIGHBOR, PORT, REST = "changed", "neighbor", "port", "rest"
"""Kinds of vertices: a node that the other model lacks, one beside it, an input or output, and what is left out."""


@dataclass(frozen=True)
class ChangedPart:
    """What changed of one model.

    Attributes:
        graph: Vertices with `label`, `kind`, `name`, and `body`, a list of such graphs of the node's bodies.
        changed: How many nodes the other model lacks.
        nodes: How many there are.
    """

    graph: nx.DiGraph
    changed: int
    nodes: int


def changed_parts(before: ir.Graph, after: ir.Graph) -> tuple[ChangedPart, ChangedPart]:
    """Return the nodes of each graph that the other one lacks, and their neighbors."""
    keys = [{_key(node) for node in graph} for graph in (before, after)]
    return _part(before, keys[1]), _part(after, keys[0])


def _key(node: ir.Node) -> int:
    """Return what two equal nodes have in common."""
    names = [
        tuple(value.name if value is not None else "" for value in values) for values in (node.inputs, node.outputs)
    ]
    return hash((node.domain, node.op_type, *names, *(tuple(map(_key, body)) for body in bodies_of(node))))


def _part(graph: ir.Graph, others: set[int]) -> ChangedPart:
    changed = _changed(graph, others)
    count = sum(node.op_type != "Constant" for node in graph)
    return ChangedPart(_drawn(graph, changed, MOST, others), len(changed), count)


def _changed(graph: ir.Graph, others: set[int]) -> list[ir.Node]:
    """Return the nodes that the other model lacks."""
    return [node for node in graph if node.op_type != "Constant" and _key(node) not in others]


def _drawn(graph: ir.Graph, changed: Sequence[ir.Node], most: int, others: set[int], depth: int = 0) -> nx.DiGraph:
    """Return the first and the last of some nodes, what stands for the others, and what is beside them."""
    last = most // 3
    cut = changed[most - last : len(changed) - last] if len(changed) > most else []
    shown = [node for node in changed if node not in set(cut)]
    beside = _neighbors(shown, set(changed))[:MOST_NEIGHBORS]
    vertices: dict[ir.Node, Hashable] = dict.fromkeys(cut, REST)
    drawing = nx.DiGraph()
    if cut:
        drawing.add_node(REST, label=f"… {len(cut):,} more", kind=REST, name="", body=[])
    bodies = MOST_BODIES if depth < MOST_DEPTH else 0
    for n, node in enumerate([*shown, *beside]):
        kind = CHANGED if n < len(shown) else NEIGHBOR
        inside = bodies_of(node) if kind == CHANGED and bodies else []
        bodies -= bool(inside)
        drawing.add_node(
            n, label=_short(node.op_type), kind=kind, name=node.name or "", body=_inside(inside, others, depth)
        )
        vertices[node] = n
    _connect(drawing, graph, vertices, set(beside))
    if not nx.is_directed_acyclic_graph(drawing):  # of nodes in no order
        drawing.remove_edges_from(list(drawing.out_edges(REST)))
    return drawing


def _inside(bodies: Sequence[ir.Graph], others: set[int], depth: int) -> list[nx.DiGraph]:
    """Return the changed nodes of each body: all of one that is new."""
    drawings = [_drawn(body, _changed(body, others), MOST_INSIDE, others, depth + 1) for body in bodies]
    return [drawing for drawing in drawings if len(drawing)]


def _neighbors(shown: Sequence[ir.Node], changed: set[ir.Node]) -> list[ir.Node]:
    """Return unchanged nodes that give values to some nodes, or take theirs."""
    found: dict[ir.Node, None] = {}
    for node in shown:
        before = [value.producer() for value in node.inputs if value is not None]
        after = [user for value in node.outputs for user, _ in value.uses()]
        for other in [*before, *after]:
            if other is not None and other.graph is node.graph and other.op_type != "Constant":
                found[other] = None
    return [node for node in found if node not in changed]


def _connect(drawing: nx.DiGraph, graph: ir.Graph, vertices: dict[ir.Node, Hashable], beside: set[ir.Node]) -> None:
    """Add the edges, and the inputs and outputs of the graph that they lead to."""
    for node, vertex in vertices.items():
        for value in node.inputs:
            producer = value.producer() if value is not None else None
            if value is not None and value.is_graph_input() and value.graph is graph and not value.is_initializer():
                if node not in beside and _has_place(drawing, ("in", value.name)):
                    _add_port(drawing, ("in", value.name), value.name)
                    drawing.add_edge(("in", value.name), vertex)
            elif producer in vertices and vertices[producer] != vertex:
                both = {vertex, vertices[producer]}
                if REST not in both or not {node, producer} & beside:  # else a cycle through the rest is possible
                    drawing.add_edge(vertices[producer], vertex)
        for value in node.outputs:
            if value.is_graph_output() and node not in beside and _has_place(drawing, ("out", value.name)):
                _add_port(drawing, ("out", value.name), value.name)
                drawing.add_edge(vertex, ("out", value.name))


def _has_place(drawing: nx.DiGraph, port: Hashable) -> bool:
    return port in drawing or sum(isinstance(vertex, tuple) for vertex in drawing) < MOST_PORTS


def _add_port(drawing: nx.DiGraph, vertex: Hashable, name: str | None) -> None:
    drawing.add_node(vertex, label=_short(name or ""), kind=PORT, name=name or "", body=[])


def _short(text: str) -> str:
    text, half = printable(text), _MOST_LETTERS // 2
    return text if len(text) <= _MOST_LETTERS else f"{text[:half]}…{text[-half + 1 :]}"
