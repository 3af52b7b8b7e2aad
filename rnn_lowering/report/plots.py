"""The plots of the page as SVG, in its colors: errors and signals of a node."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator

from rnn_lowering.compare.verify import NodeRun, distance
from rnn_lowering.types import Array

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
