"""Where the vertices of a small graph stand in a picture: in layers, near their neighbors."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import networkx as nx
import numpy as np

Vertex = Hashable
Layers = list[list[Vertex]]

_GAP, _MARGIN = 10.0, 4.0


def half_of(label: str) -> float:
    """Return half of the width of a label's box; 0 without a label."""
    return 3.0 * len(label) + 6.0 if label else 0.0


def layered(graph: nx.DiGraph) -> tuple[Layers, Layers]:
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


def placed(graph: nx.DiGraph, layers: Layers) -> tuple[dict[Vertex, float], float]:
    """Order the vertices of each layer by the positions of their neighbors; return positions and the total
    width. A vertex is as wide as its label, or as twice its `half`."""
    half = {v: graph.nodes[v].get("half", half_of(graph.nodes[v]["label"])) for v in graph}
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
