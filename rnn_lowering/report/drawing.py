"""A small graph as SVG in the colors of the page; bodies of nodes are boxes within."""

from __future__ import annotations

from dataclasses import dataclass

import networkx as nx
from markupsafe import Markup, escape

from rnn_lowering.errors import printable
from rnn_lowering.report.layout import Vertex, half_of, layered, placed

_HALF, _APART, _TITLE, _EDGE = 9.0, 14.0, 16.0, 6.0
"""Half the height of a box, the space between layers, the height of a title, and the space inside a box."""


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
        return Markup(f'<svg class="graph" {size} {box} aria-hidden="true">{self.elements}</svg>')


def draw(graph: nx.DiGraph) -> Drawing:
    """Draw a graph of `graphs` from top to bottom."""
    bodies = {v: [draw(body) for body in data["body"]] for v, data in graph.nodes(data=True)}
    for v, inside in bodies.items():
        if inside:
            half = max(
                half_of(graph.nodes[v]["label"]), sum(d.width for d in inside) / 2 + _EDGE * (len(inside) + 1) / 2
            )
            graph.nodes[v]["half"] = half
    halves = {
        v: max((d.height for d in inside), default=0.0) / 2 + _TITLE / 2 + _EDGE if inside else _HALF
        for v, inside in bodies.items()
    }
    paths, layers = layered(graph)
    x, width = placed(graph, layers)
    y, tall_of, top = dict[Vertex, float](), dict[Vertex, float](), _EDGE
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
    half = float(str(data.get("half", half_of(str(data["label"])))))
    shape = (
        f'x="{x - half:.1f}" y="{y - half_height:.1f}" width="{2 * half:.1f}" height="{2 * half_height:.1f}" rx="4"'
    )
    named = f"<title>{escape(printable(data['name']))}</title>" if data["name"] else ""
    at = y - half_height + _EDGE + 6 if inside else y + 3.5
    label = f'<text x="{x:.1f}" y="{at:.1f}">{escape(data["label"])}</text>'
    parts, left = [], x - half + _EDGE
    for drawing in inside:
        top = y - half_height + _TITLE
        parts.append(f'<g transform="translate({left:.1f} {top:.1f})">{drawing.elements}</g>')
        left += drawing.width + _EDGE
    return f'<g class="{data["kind"]}">{named}<rect {shape}/>{label}</g>{"".join(parts)}'
