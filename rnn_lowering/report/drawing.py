"""The part of a graph that a lowering changed, and any small graph, as SVG in the colors of the page."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import networkx as nx
import numpy as np
import onnx_ir as ir
from markupsafe import Markup, escape

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
    neighbors: dict[ir.Node, None] = {}
    for node in shown:
        before = [value.producer() for value in node.inputs if value is not None]
        after = [user for value in node.outputs for user, _ in value.uses()]
        for other in [*before, *after]:
            if other is not None and other.graph is node.graph and other.op_type != "Constant":
                neighbors[other] = None
    return [node for node in neighbors if node not in changed]


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


_HALF, _APART, _TITLE, _EDGE = 9.0, 14.0, 16.0, 6.0
"""Half the height of a box, the space between layers, the height of a title, and the space inside a box."""


_LEAST = 0.6
"""How much smaller a page may show a drawing that is wider than its place: its letters stay legible."""


@dataclass(frozen=True)
class Drawing:
    """Elements of SVG with their size."""

    elements: str
    width: float
    height: float

    def svg(self) -> Markup:
        """Return it as a whole."""
        size = f'width="{self.width:.0f}" height="{self.height:.0f}"'
        box = f'viewBox="0 0 {self.width:.0f} {self.height:.0f}"'
        least = f'style="min-width: {_LEAST * self.width:.0f}px"'
        return Markup(f'<svg class="graph" {size} {box} {least} aria-hidden="true">{self.elements}</svg>')


def draw(graph: nx.DiGraph) -> Drawing:
    """Draw a graph from top to bottom, as `ChangedPart` has one; vertices may lack a name and bodies."""
    bodies = {v: [draw(body) for body in data.get("body", ())] for v, data in graph.nodes(data=True)}
    for v, inside in bodies.items():
        if inside:
            half = max(
                _half_of(graph.nodes[v]["label"]), sum(d.width for d in inside) / 2 + _EDGE * (len(inside) + 1) / 2
            )
            graph.nodes[v]["half"] = half
    halves = {
        v: max((d.height for d in inside), default=0.0) / 2 + _TITLE / 2 + _EDGE if inside else _HALF
        for v, inside in bodies.items()
    }
    paths, layers = _layered(graph)
    x, width = _placed(graph, layers)
    y, tall_of, top = dict[_Vertex, float](), dict[_Vertex, float](), _EDGE
    for layer in layers:
        tall = max(halves.get(v, 0.0) for v in layer)
        y |= dict.fromkeys(layer, top + tall)
        tall_of |= dict.fromkeys(layer, tall)
        top += 2 * tall + _APART
    lines = []
    for path in paths:
        points = [(x[v], y[v] + side * tall_of[v]) for v in path for side in (-1, 1)]  # straight beside a tall box
        (x0, y0), (x1, y1) = ((x[v], y[v]) for v in (path[0], path[-1]))
        lines.append(_edge([(x0, y0 + halves[path[0]]), *points[1:-1], (x1, y1 - halves[path[-1]])]))
    boxes = [_box(graph.nodes[v], x[v], y[v], halves[v], bodies[v]) for v in bodies]
    return Drawing("".join([*lines, *boxes]), width, top - _APART + _EDGE)


def _edge(points: list[tuple[float, float]]) -> str:
    """Return a line through points with an arrow at its end, vertical in each."""
    (x, y), *others = points
    text = f"M{x:.1f} {y:.1f}"
    for to_x, to_y in others:
        middle = (y + to_y) / 2
        text += f"C{x:.1f} {middle:.1f} {to_x:.1f} {middle:.1f} {to_x:.1f} {to_y:.1f}"
        x, y = to_x, to_y
    return f'<path d="{text}M{x - 3:.1f} {y - 5:.1f}L{x:.1f} {y:.1f}L{x + 3:.1f} {y - 5:.1f}"/>'


def _box(data: dict[str, object], x: float, y: float, half_height: float, inside: list[Drawing]) -> str:
    half = float(str(data.get("half", _half_of(str(data["label"])))))
    shape = (
        f'x="{x - half:.1f}" y="{y - half_height:.1f}" width="{2 * half:.1f}" height="{2 * half_height:.1f}" rx="4"'
    )
    named = f"<title>{escape(printable(data['name']))}</title>" if data.get("name") else ""
    at = y - half_height + _EDGE + 6 if inside else y + 3.5
    label = f'<text x="{x:.1f}" y="{at:.1f}">{escape(data["label"])}</text>'
    parts, left = [], x - half + _EDGE
    for drawing in inside:
        top = y - half_height + _TITLE
        parts.append(f'<g transform="translate({left:.1f} {top:.1f})">{drawing.elements}</g>')
        left += drawing.width + _EDGE
    return f'<g class="{data["kind"]}">{named}<rect {shape}/>{label}</g>{"".join(parts)}'


# Where the vertices of a small graph stand in a picture: in layers, near their neighbors.


_Vertex = Hashable
_Layers = list[list[_Vertex]]

_GAP, _MARGIN = 10.0, 4.0


def _half_of(label: str) -> float:
    """Return half of the width of a label's box; 0 without a label."""
    return 3.0 * len(label) + 6.0 if label else 0.0


def _layered(graph: nx.DiGraph) -> tuple[_Layers, _Layers]:
    """Return the edges as paths and the vertices by layers. An input is in the layer above the first operator that
    uses it; a long edge has a bend in each layer that it crosses, which is added to the graph."""
    level = {v: n for n, layer in enumerate(nx.topological_generations(graph)) for v in layer}
    for v in [v for v in graph if not graph.pred[v] and graph.succ[v]]:
        level[v] = min(level[after] for after in graph.succ[v]) - 1
    paths: _Layers = []
    for a, b in list(graph.edges):
        bends = [(a, b, n) for n in range(level[a] + 1, level[b])]
        level |= {bend: bend[2] for bend in bends}
        graph.remove_edge(a, b)
        graph.add_nodes_from(bends, label="")
        nx.add_path(graph, [a, *bends, b])
        paths.append([a, *bends, b])
    return paths, [[v for v in graph if level[v] == n] for n in sorted(set(level.values()))]


def _placed(graph: nx.DiGraph, layers: _Layers) -> tuple[dict[_Vertex, float], float]:
    """Order the vertices of each layer by the positions of their neighbors; return positions and the total
    width. A vertex is as wide as its label, or as twice its `half`."""
    half = {v: graph.nodes[v].get("half", _half_of(graph.nodes[v]["label"])) for v in graph}
    x = {v: 60.0 * n for layer in layers for n, v in enumerate(layer)}
    both = {v: [*graph.pred[v], *graph.succ[v]] for v in graph}
    for sweep in range(40):
        down = sweep % 2 == 0
        near = both if sweep > 20 else graph.pred if down else graph.succ
        for layer in layers if down else reversed(layers):
            want = {v: float(np.mean([x[m] for m in near[v]])) if near[v] else x[v] for v in layer}
            layer.sort(key=want.__getitem__)
            x |= _without_overlaps(layer, want, half)
    left = min(x[v] - half[v] for v in x) - _MARGIN
    right = max(x[v] + half[v] for v in x) + _MARGIN
    return {v: x[v] - left for v in x}, right - left


def _without_overlaps(
    layer: Sequence[_Vertex], want: Mapping[_Vertex, float], half: Mapping[_Vertex, float]
) -> dict[_Vertex, float]:
    """Return positions near the wanted ones, in the same order, without overlaps."""
    halves = np.array([half[v] for v in layer])
    packed = np.cumsum(2 * halves + _GAP) - halves
    slack = np.array([want[v] for v in layer]) - packed
    middle = (np.maximum.accumulate(slack) + np.minimum.accumulate(slack[::-1])[::-1]) / 2
    return dict(zip(layer, (middle + packed).tolist(), strict=True))
