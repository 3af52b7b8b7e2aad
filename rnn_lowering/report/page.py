"""The report as an HTML page: lowered nodes, differences, and plots."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files

import onnx

from rnn_lowering.compare.verify import LOWERED_NODE, ORIGINAL_NODE, NodeRun, RunNodes
from rnn_lowering.errors import RnnLoweringError, printable, version
from rnn_lowering.libraries import onnxruntime, without_onnxruntime
from rnn_lowering.report.file_report import FileReport, Graphs
from rnn_lowering.report.use import code, commands, elsewhere, host_loop, install

try:
    import jinja2
    import networkx as nx
    from markupsafe import Markup, escape

    from rnn_lowering.report.drawing import changed_parts, draw
    from rnn_lowering.report.plots import MOST_SIGNALS, NodeSeries, plot_errors, plot_signals
    from rnn_lowering.report.step import step_graph
except ImportError as missing:
    raise RnnLoweringError(
        f"an HTML report needs jinja2, matplotlib and networkx ({missing})",
        hint="pip install jinja2 matplotlib networkx",
    ) from missing

MOST_NODES = 24
"""Maximum number of nodes with plots."""


@dataclass(frozen=True)
class Picture:
    """An SVG with its title and caption."""

    svg: Markup
    title: str
    caption: str


@dataclass(frozen=True)
class Section:
    """One node on the page.

    Attributes:
        notes: How it was run, and what did not run.
        plots: Plots over time.
        step: The drawing of one step.
        largest: The largest error against float64 by output and run.
    """

    notes: tuple[str, ...]
    plots: tuple[Picture, ...] = ()
    step: Picture | None = None
    largest: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


def render(report: FileReport, run_nodes: RunNodes, graphs: Graphs) -> str:
    """Return the page about a lowering, verified or not.

    Args:
        report: What was done.
        run_nodes: Runs nodes on their own.
        graphs: Returns the main graphs of the original and of the result.
    """
    return _template().render(
        report=report,
        check=report.verification,
        sections=_sections(report, run_nodes),
        graphs=_graphs(graphs),
        date=_date(),
        use=_whole(code(report)) if report.written else [],
        commands=_whole(commands(report)),
        install=install(report),
        elsewhere=elsewhere(report),
        host=host_loop(report.stream, report.target).splitlines() if report.stream is not None else [],
        end=Markup("\n"),
        versions={"rnn-lowering": version(), "onnx": onnx.__version__, **_runtime()},
    )


def _whole(lines: Sequence[str]) -> list[Markup]:
    """Return lines of code for the page, which are not shortened: they must run."""
    return [escape(printable(line, len(line))) for line in lines]


def _runtime() -> dict[str, str]:
    """Return the version of onnxruntime, if it is installed."""
    return {} if without_onnxruntime("it") else {"onnxruntime": onnxruntime("a page").__version__}


def _date() -> str:
    """Return the date of the page: now, or SOURCE_DATE_EPOCH if it is set, for reproducible pages."""
    seconds = os.environ.get("SOURCE_DATE_EPOCH", "")
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(int(seconds) if seconds.isdecimal() else time.time()))


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined, finalize=_shown
    )
    return environment.from_string(
        files("rnn_lowering.report").joinpath("page.html.j2").read_text(encoding="utf-8")
    )


def _shown(value: object) -> object:
    """Return a value for the page: text from a model is shortened and control characters are escaped."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _graphs(graphs: Graphs) -> list[Picture]:
    """Return the drawings of what changed, before and after; none if nothing did."""
    before, after = changed_parts(*graphs())
    if not before.changed + after.changed:
        return []
    return [
        Picture(draw(part.graph).svg(), title, f"{part.changed:,} of {part.nodes:,} nodes")
        for title, part in (("Before", before), ("After", after))
    ]


def _sections(report: FileReport, run_nodes: RunNodes) -> list[Section]:
    shown = report.nodes[:MOST_NODES]
    if report.stream is not None:
        return []
    try:
        runs = run_nodes([node.place for node in shown])
    except RnnLoweringError as error:
        return [Section((f"No plots: {error}.",))] * len(shown)
    return [
        _section(runs[node.place], f"node{n}")
        if node.place in runs
        else Section(("This node cannot be run on its own.",))
        for n, node in enumerate(shown)
    ]


def _section(run: NodeRun, salt: str) -> Section:
    series = NodeSeries(run)
    length, _, batch, _ = series.series(run.expected).shape
    final = "its final states, since the output of all steps is not connected"
    note = f"Run on one random input, batch {batch}: {f'{length} steps' if series.over_time else final}."
    failures = (f"No result, {name}: {reason}" for name, reason in run.failures.items())
    return Section((note, *failures), tuple(_plots(series, salt)), _step(run), series.largest())


def _plots(series: NodeSeries, salt: str) -> Iterator[Picture]:
    outputs, expected = series.run.outputs, series.run.expected
    if LOWERED_NODE not in outputs or not expected[series.symbol].size:
        return
    yield Picture(
        Markup(plot_errors(series.errors(), series.along, f"{salt}-errors")),
        f"Absolute error of {series.symbol} against float64",
        f"The largest over batch, directions and hidden units, by {series.along}."
        if series.over_time
        else "The largest over batch and directions, by hidden unit.",
    )
    before = series.signals(outputs.get(ORIGINAL_NODE, expected), MOST_SIGNALS)
    after = series.signals(outputs[LOWERED_NODE], MOST_SIGNALS)
    colored = ORIGINAL_NODE if ORIGINAL_NODE in outputs else "the operator specification in float64"
    yield Picture(
        Markup(plot_signals(before, after, series.along, f"{salt}-signals")),
        f"Signals of {series.symbol}",
        f"Colored: {colored}. Dashed: lowered. The first row of the batch.",
    )


def _step(run: NodeRun) -> Picture:
    node, spec, cut = run.node, run.node.spec, run.node.cut
    assert cut is not None
    names = {name: symbol for symbol, name in node.feeds.items()}
    names |= {value.name or "": symbol for symbol, value in spec.outputs.items()}
    graph = step_graph(cut.graph, names)
    labels = set(nx.get_node_attributes(graph, "label").values())
    caption = "XWₜ: a row of the product with W, computed for all steps at once. " if "XWₜ" in labels else ""
    ragged = "sequence_lens" in spec.inputs
    caption += "Steps beyond a sequence's length are left out of the outputs after the last one. " if ragged else ""
    caption += "Each direction has such a step." if "X" not in labels and len(spec.directions) > 1 else ""
    return Picture(draw(graph).svg(), "One step as emitted", caption)
