"""The figures of the page as SVG, in its colors: errors and signals of a node, and one step of it as emitted.

A step is drawn as a graph, in the symbols of the operator specification, from the node's cut-out lowered form.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import networkx as nx
import numpy as np
import onnx
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch
from matplotlib.path import Path as Curve
from matplotlib.ticker import LogLocator, MaxNLocator

from rnn_lowering.compare.verify import NodeRun, distance
from rnn_lowering.emit.open_scopes import STEP, SYMBOLS, WEIGHTS
from rnn_lowering.report.drawing import layered, placed
from rnn_lowering.types import Array

_POINTS = 72
"""Units of an SVG in an inch."""

_COLORS = {
    "ink": "#010101",
    "muted": "#020202",
    "line": "#030303",
    "surface": "#040404",
    "accent": "#050505",
    "tint": "#060606",
    "series-0": "#0a0a0a",
    "series-1": "#0b0b0b",
    "series-2": "#0c0c0c",
    "series-3": "#0d0d0d",
}
"""CSS custom property of the page -> the color that matplotlib draws with, which the property then replaces."""

MOST_SIGNALS = 4

_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": _COLORS["line"],
    "axes.labelcolor": _COLORS["muted"],
    "xtick.labelcolor": _COLORS["muted"],
    "ytick.labelcolor": _COLORS["muted"],
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "ytick.minor.size": 0,
    "text.color": _COLORS["ink"],
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": _COLORS["line"],
    "grid.linewidth": 0.5,
    "legend.frameon": False,
    "legend.handlelength": 1.2,
}


def _style(salt: str) -> Any:
    """Return the context in which figures are drawn and written; `salt` makes their identifiers unique."""
    return matplotlib.rc_context(_STYLE | {"svg.hashsalt": salt})


def _svg(figure: Figure) -> str:
    """Return a figure as an SVG element without fonts, style sheets and links; equal figures give equal text."""
    written = io.StringIO()
    figure.savefig(written, format="svg", transparent=True, metadata={"Date": None})
    text = written.getvalue()
    text = re.sub(r"<(metadata|style)\b.*?</\1>", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r'<svg [^>]*?viewBox="([^"]*)"[^>]*>', r'<svg viewBox="\1" aria-hidden="true">', text, count=1)
    text = re.sub(r'<g id="[^"]*"', "<g", text).replace("xlink:href", "href")
    text = re.sub(r"font-family: [^;]*; ", "", text)
    text = re.sub(r' d="[^"]*"', lambda path: re.sub(r"(\.\d\d)\d+", r"\1", path[0]).replace("\n", " "), text)
    for name, color in _COLORS.items():
        text = text.replace(color, f"var(--{name})")
    return "\n".join(line.strip() for line in text.splitlines() if line.strip())


def plot_errors(errors: Mapping[str, Array], along: str, salt: str) -> str:
    """Plot errors by their labels over `along`; the last one is highlighted."""
    with _style(salt):
        figure, axes = _figure_along(along)
        for n, (label, error) in enumerate(errors.items(), 1):
            last = n == len(errors)
            look = {"linewidth": 1.3} if last else {"linewidth": 3.2, "alpha": 0.55}
            _line(axes, error, "accent" if last else "muted", label=label, **look)
        shown = [error[(error > 0) & np.isfinite(error)] for error in errors.values()]
        if any(error.size for error in shown):
            _decades(axes, [error for error in shown if error.size])
        axes.legend(loc="lower left", bbox_to_anchor=(-0.13, 0.98), ncols=2, columnspacing=3.0)
        return _svg(figure)


def _decades(axes: Axes, errors: Sequence[Array]) -> None:
    """Set a logarithmic axis of whole decades for positive errors, at most two below the largest of each."""
    lowest = max(min(error.min() for error in errors), 0.01 * min(error.max() for error in errors))
    low, high = np.floor(np.log10(lowest)), np.floor(np.log10(max(error.max() for error in errors))) + 1
    axes.set_yscale("log", subs=())
    axes.set_ylim(10.0**low, 10.0**high)
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high - low < 2 else (1,)))
    axes.yaxis.set_major_formatter("{x:.0e}")


def plot_signals(original: Mapping[str, Array], lowered: Mapping[str, Array], along: str, salt: str) -> str:
    """Plot signals by their labels over `along`: those of the original as broad lines, the lowered ones dashed."""
    with _style(salt):
        figure, axes = _figure_along(along)
        for n, (label, signal) in enumerate(original.items()):
            _line(axes, signal, f"series-{n}", label=label, linewidth=2.6)
            _line(axes, lowered[label], "ink", linestyle=(0, (3, 2)), linewidth=0.9)
        axes.legend(loc="lower left", bbox_to_anchor=(-0.13, 0.98), ncols=MOST_SIGNALS, columnspacing=1.2)
        return _svg(figure)


def _figure_along(along: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(5.0, 2.1))
    axes = figure.add_axes((0.12, 0.21, 0.86, 0.65))
    axes.set_xlabel(along)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure, axes


def _line(axes: Axes, numbers: Array, color: str, **line: Any) -> None:
    marker = "o" if len(numbers) < 3 else ""  # a line needs two points to be seen
    axes.plot(np.arange(len(numbers)), numbers, color=_COLORS[color], marker=marker, **line)


@dataclass(frozen=True)
class NodeSeries:
    """The series of a run: of its original, of its lowered node, and of the operator specification in float64."""

    run: NodeRun

    @property
    def symbol(self) -> str:
        """The output that is plotted: Y, else a final state."""
        return min(self.run.expected)

    @property
    def over_time(self) -> bool:
        """Whether it has a row for each step."""
        return "T" in self.run.node.spec.axes(self.symbol)

    @property
    def along(self) -> str:
        """The unit of axis 0 of `series`, for the label of the axis."""
        return "time step" if self.over_time else "hidden unit"

    def series(self, outputs: Mapping[str, Array]) -> Array:
        """Return the output that is plotted, as [seq, dirs, batch, hidden]; a state as [hidden, dirs, batch, 1]."""
        spec, array = self.run.node.spec, outputs[self.symbol]
        axes, dirs = spec.axes(self.symbol), len(spec.directions)
        others = [n for n, axis in enumerate(axes) if axis is None]
        batch = axes.index("N")
        if not self.over_time:
            rows = array.shape[batch]
            states = array.transpose(*others, batch).reshape(dirs, -1, rows)
            return np.moveaxis(states, 0, 1)[..., None]
        by_steps = array.transpose(axes.index("T"), *others[:-1], batch, others[-1])
        return by_steps.reshape(by_steps.shape[0], dirs, *by_steps.shape[-2:])

    def errors(self) -> dict[str, Array]:
        """Return the largest absolute error at each position of axis 0 of `series`, for each run."""
        truth = self.series(self.run.expected)
        return {
            name: distance(truth, self.series(outputs)).max(axis=(1, 2, 3), initial=0.0)
            for name, outputs in self.run.outputs.items()
        }

    def largest(self) -> dict[str, dict[str, float]]:
        """Return the largest absolute error by output and run."""
        return {
            symbol: {
                name: float(distance(truth, outputs[symbol]).max(initial=0.0))
                for name, outputs in self.run.outputs.items()
            }
            for symbol, truth in self.run.expected.items()
        }

    def signals(self, outputs: Mapping[str, Array], most: int) -> dict[str, Array]:
        """Return at most `most` signals of the first row of the batch, by their labels."""
        signals = self.series(outputs)[:, :, 0]
        directions = self.run.node.spec.directions
        if self.over_time:
            ways = directions if len(directions) > 1 else ("unit",)
            labels = [f"{way} {h}" for way in ways for h in range(signals.shape[2])]
        else:
            labels = list(directions)
        flat = signals.reshape(len(signals), len(labels))
        chosen = sorted({round(n) for n in np.linspace(0, len(labels) - 1, most)})
        return {labels[n]: flat[:, n] for n in chosen}


_Labels = dict[str, str]

_WEIGHTS = ("W", "R", "B", "P")
_STATES = ("H", "C")
"""Symbols of the states that a step carries, in their order."""

_ROW, _HALF_BOX = 30.0, 9.0


def step_graph(lowered: onnx.GraphProto, names: Mapping[str, str]) -> nx.DiGraph:
    """Return one step of a lowered node as a graph.

    Each vertex has a `label` and a `kind`: "operator", "value", or "port", an input or output of the step.

    Args:
        lowered: The graph of the lowered node.
        names: Name of a value -> its symbol in the operator specification, for the inputs and outputs of the node.
    """
    step = _step(lowered)
    computed = {name for node in step.nodes for name in node.output}
    symbols = {name: _in_step(s) for node in step.nodes for name, s in _symbols(node).items()}
    origins = _Origins(lowered, step.inputs, names)
    ports = {v: symbols.get(v) or names.get(v) or label for v, label in step.outputs.items()}
    graph = nx.DiGraph()
    for n, node in enumerate(step.nodes):
        input_labels = {v: origins.symbol(v) for v in node.input if v not in computed}
        weights = dict.fromkeys(s for s in (*_weights(node), *input_labels.values()) if s in _WEIGHTS)
        ports |= {v: symbol for v, symbol in input_labels.items() if symbol and symbol not in _WEIGHTS}
        graph.add_node(n, label=" ".join([node.op_type, *weights]), kind="operator")
        graph.add_edges_from((v, n) for v in node.input if v in computed or v in ports)
        graph.add_edges_from((n, v) for v in node.output)
    for v in [v for v in graph if isinstance(v, str)]:
        graph.nodes[v].update(label=ports.get(v) or symbols.get(v, ""), kind="port" if v in ports else "value")
        if not graph.nodes[v]["label"]:
            graph.add_edges_from([(before, after) for before in graph.pred[v] for after in graph.succ[v]])
            graph.remove_node(v)
    return graph.subgraph(max(nx.weakly_connected_components(graph), key=len)).copy()


@dataclass(frozen=True)
class _DrawnStep:
    """The nodes of one step, and the labels of its inputs and outputs by name."""

    nodes: list[onnx.NodeProto]
    inputs: _Labels
    outputs: _Labels


def _step(lowered: onnx.GraphProto) -> _DrawnStep:
    loops = [node for node in lowered.node if node.op_type in ("Scan", "Loop")]
    if not loops:
        return _unrolled_step(lowered)
    loop, body = max(((node, _body(node)) for node in loops), key=lambda pair: len(pair[1].node))
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
    return _DrawnStep([node for node in body.node if node.op_type != "Constant"], input_labels, output_labels)


def _body(node: onnx.NodeProto) -> onnx.GraphProto:
    bodies: list[onnx.GraphProto] = [a.g for a in node.attribute if a.name == "body"]
    return bodies[0]


def _unrolled_step(lowered: onnx.GraphProto) -> _DrawnStep:
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
    return _DrawnStep(nodes, {}, dict(zip(output_labels, ["Hₜ", "Cₜ", *[""] * len(output_labels)], strict=False)))


class _Origins:
    """The values that the inputs of a step are computed from."""

    def __init__(self, lowered: onnx.GraphProto, input_labels: _Labels, names: Mapping[str, str]) -> None:
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
"""Symbol of a value that is computed before the step -> its label in the step."""


def _metadata(node: onnx.NodeProto) -> _Labels:
    return {entry.key: entry.value for entry in node.metadata_props}


def _symbols(node: onnx.NodeProto) -> _Labels:
    """Return the symbols of a node's outputs by their names."""
    return {n: s for n, s in zip(node.output, _metadata(node).get(SYMBOLS, "").split(","), strict=False) if s}


def _weights(node: onnx.NodeProto) -> list[str]:
    return _metadata(node).get(WEIGHTS, "").split(",")


def _in_step(symbol: str) -> str:
    """Return the label of a symbol such as Ht or it; "" for a symbol that has no time index."""
    return f"{symbol[0]}ₜ" if len(symbol) == 2 and symbol[1] == "t" else ""


def draw_step(graph: nx.DiGraph, salt: str) -> tuple[str, float]:
    """Draw a step graph from top to bottom; return the SVG and its width in inches."""
    paths, layers = layered(graph)
    x, width = placed(graph, layers)
    height = _ROW * len(layers)
    y = {v: height - _ROW * (n + 0.5) for n, layer in enumerate(layers) for v in layer}
    with _style(salt):
        figure = Figure(figsize=(width / _POINTS, height / _POINTS))
        axes = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(0, height))
        axes.set_axis_off()
        for *path, end in paths:
            axes.add_patch(_arrow([*((x[v], y[v]) for v in path), (x[end], y[end] + _HALF_BOX)]))
        for v, data in graph.nodes(data=True):
            if data["label"]:
                _box(axes, x[v], y[v], data["label"], data["kind"])
        return _svg(figure), width / _POINTS


def _arrow(points: Sequence[tuple[float, float]]) -> FancyArrowPatch:
    """Return a smooth arrow through points, vertical at its ends."""
    at = np.array(points)
    tangents = np.gradient(at, axis=0)
    tangents[[0, -1]] *= [0.0, 1.5]
    third = tangents / 3
    curves = np.stack([at[:-1] + third[:-1], at[1:] - third[1:], at[1:]], axis=1).reshape(-1, 2)
    codes = [Curve.MOVETO, *[Curve.CURVE4] * len(curves)]
    path = Curve(np.concatenate([at[:1], curves]), codes)
    return FancyArrowPatch(path=path, arrowstyle="-|>", mutation_scale=7, color=_COLORS["muted"], linewidth=0.9)


def _box(axes: Axes, x: float, y: float, label: str, kind: str) -> None:
    fill, edge = {"operator": ("surface", "line"), "value": ("surface", "surface"), "port": ("tint", "tint")}[kind]
    box = {"boxstyle": "round,pad=0.35,rounding_size=0.5", "facecolor": _COLORS[fill], "edgecolor": _COLORS[edge]}
    color = _COLORS["ink" if kind == "operator" else "accent"]
    axes.text(x, y, label, ha="center", va="center", color=color, bbox=box)
