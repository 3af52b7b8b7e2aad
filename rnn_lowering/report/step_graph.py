"""The graph of one step of a lowered node, in the symbols of the operator specification, and its drawing."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import networkx as nx
import numpy as np
import onnx
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch
from matplotlib.path import Path as Curve

from rnn_lowering.emit.names import STEP, SYMBOLS, WEIGHTS
from rnn_lowering.report.plots import COLORS, UNIT, style, svg

Labels = dict[str, str]
Vertex = Hashable
Layers = list[list[Vertex]]

_WEIGHTS = ("W", "R", "B", "P")
_STATES = ("H", "C")
"""Symbols of the states that a step carries, in their order."""

_ROW, _GAP, _MARGIN, _HALF_BOX = 30.0, 10.0, 4.0, 9.0


def step_graph(lowered: onnx.GraphProto, names: Mapping[str, str]) -> nx.DiGraph:
    """Return one step of a lowered node as a graph.

    Each vertex has a `label` and a `kind`: "operator", "value", or "port", an input or output of the step.

    Args:
        lowered: The graph of the lowered node.
        names: Name of a value -> its symbol in the operator specification, for the inputs and outputs of the node.
    """
    step = _step(lowered)
    made = {name for node in step.nodes for name in node.output}
    symbols = {name: _in_step(s) for node in step.nodes for name, s in _symbols(node).items()}
    origins = _Origins(lowered, step.inputs, names)
    ports = {v: symbols.get(v) or names.get(v) or label for v, label in step.outputs.items()}
    graph = nx.DiGraph()
    for n, node in enumerate(step.nodes):
        input_labels = {v: origins.symbol(v) for v in node.input if v not in made}
        weights = dict.fromkeys(s for s in (*_weights(node), *input_labels.values()) if s in _WEIGHTS)
        ports |= {v: symbol for v, symbol in input_labels.items() if symbol and symbol not in _WEIGHTS}
        graph.add_node(n, label=" ".join([node.op_type, *weights]), kind="operator")
        graph.add_edges_from((v, n) for v in node.input if v in made or v in ports)
        graph.add_edges_from((n, v) for v in node.output)
    for v in [v for v in graph if isinstance(v, str)]:
        graph.nodes[v].update(label=ports.get(v) or symbols.get(v, ""), kind="port" if v in ports else "value")
        if not graph.nodes[v]["label"]:
            graph.add_edges_from([(before, after) for before in graph.pred[v] for after in graph.succ[v]])
            graph.remove_node(v)
    return graph.subgraph(max(nx.weakly_connected_components(graph), key=len)).copy()


@dataclass(frozen=True)
class _Step:
    """The nodes of one step, and the labels of its inputs and outputs by name."""

    nodes: list[onnx.NodeProto]
    inputs: Labels
    outputs: Labels


def _step(lowered: onnx.GraphProto) -> _Step:
    loops = [node for node in lowered.node if node.op_type in ("Scan", "Loop")]
    if not loops:
        return _unrolled_step(lowered)
    loop, body = max(((node, _body(node)) for node in loops), key=lambda found: len(found[1].node))
    inputs, outputs = ([value.name for value in values] for values in (body.input, body.output))
    if loop.op_type == "Loop":
        number, inputs, outputs, rows = inputs[:1], inputs[2:], outputs[1:], 0
    else:
        number, rows = [], next(a.i for a in loop.attribute if a.name == "num_scan_inputs")
    states = len(inputs) - rows
    input_labels = dict.fromkeys(number, "i") | dict(
        zip(inputs, (f"{s}ₜ₋₁" for s in _STATES[:states]), strict=False)
    )
    input_labels |= dict.fromkeys(inputs[states:], "XWₜ")
    output_labels = dict(zip(outputs, [*(f"{s}ₜ" for s in _STATES[:states]), "Yₜ"], strict=False))
    return _Step([node for node in body.node if node.op_type != "Constant"], input_labels, output_labels)


def _body(node: onnx.NodeProto) -> onnx.GraphProto:
    bodies: list[onnx.GraphProto] = [a.g for a in node.attribute if a.name == "body"]
    return bodies[0]


def _unrolled_step(lowered: onnx.GraphProto) -> _Step:
    """Return the last step of an unrolled node that has metadata; all nodes if there is only one step."""
    steps: dict[str, list[onnx.NodeProto]] = {}
    for node in lowered.node:
        if step := _metadata(node).get(STEP):
            steps.setdefault(step, []).append(node)
    most = max(map(len, steps.values()), default=0)
    fullest = [nodes for nodes in steps.values() if len(nodes) == most] or [list(lowered.node)]
    nodes = fullest[-1]
    inside = {node.name for node in nodes}
    used = {name for node in lowered.node if node.name not in inside for name in node.input}
    used |= {value.name for value in lowered.output}
    symbols = {name: symbol for node in nodes for name, symbol in _symbols(node).items()}
    output_labels = sorted(
        (n for node in nodes for n in node.output if n in used), key=lambda n: symbols.get(n, "")
    )
    return _Step(nodes, {}, dict(zip(output_labels, ["Hₜ", "Cₜ", *[""] * len(output_labels)], strict=False)))


class _Origins:
    """Where the inputs of a step come from."""

    def __init__(self, lowered: onnx.GraphProto, input_labels: Labels, names: Mapping[str, str]) -> None:
        self._producers = {name: node for node in lowered.node for name in node.output}
        self._known = dict(names) | input_labels

    def symbol(self, name: str) -> str:
        """Return the symbol of the value that a value is computed from; "" if it has none."""
        while True:
            producer = self._producers.get(name)
            symbol = _symbols(producer).get(name, "") if producer is not None else ""
            known = self._known.get(name) or _BEFORE.get(symbol, "")
            if known or producer is None or not producer.input:
                return known
            name = producer.input[1 if producer.op_type == "Concat" else 0]


_BEFORE = {"Ht": "Hₜ₋₁", "Ct": "Cₜ₋₁", "XW": "XWₜ"}
"""Symbol of a value that was computed before the step -> its label in the step."""


def _metadata(node: onnx.NodeProto) -> Labels:
    return {entry.key: entry.value for entry in node.metadata_props}


def _symbols(node: onnx.NodeProto) -> Labels:
    """Return the symbols of a node's outputs by their names."""
    return {n: s for n, s in zip(node.output, _metadata(node).get(SYMBOLS, "").split(","), strict=False) if s}


def _weights(node: onnx.NodeProto) -> list[str]:
    return _metadata(node).get(WEIGHTS, "").split(",")


def _in_step(symbol: str) -> str:
    """Return the label of a symbol such as Ht or it; "" for a symbol that has no time index."""
    return f"{symbol[0]}ₜ" if len(symbol) == 2 and symbol[1] == "t" else ""


def draw_step(graph: nx.DiGraph, salt: str) -> tuple[str, float]:
    """Draw a step graph from top to bottom; return the SVG and its width in inches."""
    paths, layers = _layered(graph)
    x, width = _placed(graph, layers)
    height = _ROW * len(layers)
    y = {v: height - _ROW * (n + 0.5) for n, layer in enumerate(layers) for v in layer}
    with style(salt):
        figure = Figure(figsize=(width / UNIT, height / UNIT))
        axes = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(0, height))
        axes.set_axis_off()
        for *path, end in paths:
            axes.add_patch(_arrow([*((x[v], y[v]) for v in path), (x[end], y[end] + _HALF_BOX)]))
        for v, data in graph.nodes(data=True):
            if data["label"]:
                _box(axes, x[v], y[v], data["label"], data["kind"])
        return svg(figure), width / UNIT


def _layered(graph: nx.DiGraph) -> tuple[Layers, Layers]:
    """Return the edges as paths and the vertices by layers. An input is in the layer above the first operator that
    uses it; a long edge has a bend in each layer that it crosses, which is added to the graph."""
    level = {v: n for n, layer in enumerate(nx.topological_generations(graph)) for v in layer}
    for v in [v for v in graph if not graph.pred[v] and graph.succ[v]]:
        level[v] = min(level[after] for after in graph.succ[v]) - 1
    paths: Layers = []
    for a, b in list(graph.edges):
        bends = [(a, b, n) for n in range(level[a] + 1, level[b])]
        level |= {bend: bend[2] for bend in bends}
        graph.remove_edge(a, b)
        graph.add_nodes_from(bends, label="")
        nx.add_path(graph, [a, *bends, b])
        paths.append([a, *bends, b])
    return paths, [[v for v in graph if level[v] == n] for n in sorted(set(level.values()))]


def _placed(graph: nx.DiGraph, layers: Layers) -> tuple[dict[Vertex, float], float]:
    """Order the vertices of each layer by the positions of their neighbors; return positions and the total
    width."""
    half = {v: 3.0 * len(label) + 6.0 if label else 0.0 for v, label in graph.nodes(data="label")}
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
    layer: Sequence[Vertex], want: Mapping[Vertex, float], half: Mapping[Vertex, float]
) -> dict[Vertex, float]:
    """Return positions near the wanted ones, in the same order, without overlaps."""
    halves = np.array([half[v] for v in layer])
    packed = np.cumsum(2 * halves + _GAP) - halves
    slack = np.array([want[v] for v in layer]) - packed
    middle = (np.maximum.accumulate(slack) + np.minimum.accumulate(slack[::-1])[::-1]) / 2
    return dict(zip(layer, (middle + packed).tolist(), strict=True))


def _arrow(points: Sequence[tuple[float, float]]) -> FancyArrowPatch:
    """Return a smooth arrow through points, vertical at its ends."""
    at = np.array(points)
    tangents = np.gradient(at, axis=0)
    tangents[[0, -1]] *= [0.0, 1.5]
    third = tangents / 3
    curves = np.stack([at[:-1] + third[:-1], at[1:] - third[1:], at[1:]], axis=1).reshape(-1, 2)
    codes = [Curve.MOVETO, *[Curve.CURVE4] * len(curves)]
    path = Curve(np.concatenate([at[:1], curves]), codes)
    return FancyArrowPatch(path=path, arrowstyle="-|>", mutation_scale=7, color=COLORS["muted"], linewidth=0.9)


def _box(axes: Axes, x: float, y: float, label: str, kind: str) -> None:
    fill, edge = {"operator": ("surface", "line"), "value": ("surface", "surface"), "port": ("tint", "tint")}[kind]
    box = {"boxstyle": "round,pad=0.35,rounding_size=0.5", "facecolor": COLORS[fill], "edgecolor": COLORS[edge]}
    color = COLORS["ink" if kind == "operator" else "accent"]
    axes.text(x, y, label, ha="center", va="center", color=color, bbox=box)
