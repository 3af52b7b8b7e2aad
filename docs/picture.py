"""Draw an LSTM node and what becomes of it, the picture of the README, by the drawing of the HTML report.

python docs/picture.py [FILE.svg]    (docs/lstm.svg by default; needs `pip install ".[html]"`)
"""

import re
import sys
from pathlib import Path

import networkx as nx
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import rnn_lowering as rl
from rnn_lowering.report import plots

PICTURE = Path(__file__).with_name("lstm.svg")
INPUTS, OUTPUTS = ("X", "W", "R", "B"), ("Y", "Y_h", "Y_c")
INPUT, HIDDEN = 8, 6


def lstm() -> onnx.ModelProto:
    """A model of one LSTM node."""
    rows = 4 * HIDDEN
    shapes = {"W": (1, rows, INPUT), "R": (1, rows, HIDDEN), "B": (1, 2 * rows)}
    weights = [numpy_helper.from_array(np.ones(shape, np.float32), name) for name, shape in shapes.items()]
    node = helper.make_node("LSTM", INPUTS, OUTPUTS, name="lstm", hidden_size=HIDDEN)
    states = {name: [1, "batch", HIDDEN] for name in ("Y_h", "Y_c")}
    declared = {"X": ["seq", "batch", INPUT], "Y": ["seq", 1, "batch", HIDDEN], **states}
    values = {n: helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n, shape in declared.items()}
    graph = helper.make_graph([node], "lstm", [values["X"]], [values[n] for n in OUTPUTS], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def as_it_was() -> nx.DiGraph:
    """The node with its inputs and outputs."""
    graph = nx.DiGraph()
    graph.add_node("LSTM", label="LSTM", kind="operator")
    graph.add_nodes_from((name, {"label": name, "kind": "port"}) for name in (*INPUTS, *OUTPUTS))
    graph.add_edges_from((name, "LSTM") for name in INPUTS)
    graph.add_edges_from(("LSTM", name) for name in OUTPUTS)
    return graph


def picture() -> str:
    """The node on the left, the body of the Scan on the right, as SVG in the colors of the report."""
    lowered = rl.lower(lstm(), to="scan")
    after = plots.step_graph(lowered.graph, {name: name for name in ("X", *OUTPUTS)})
    panels = [plots.draw_step(graph, salt)[0] for graph, salt in ((as_it_was(), "before"), (after, "after"))]
    sizes = [tuple(map(float, re.findall(r"[\d.]+", panel.split('"')[1])[2:])) for panel in panels]
    (before_width, before_height), (width, height) = sizes
    left, top, gap = 16.0, 42.0, 64.0
    start = left + before_width + gap
    whole = (start + width + 24.0, top + height + 20.0)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {whole[0]:.0f} {whole[1]:.0f}" role="img">',
        "<title>An LSTM node, and one step of the Scan that takes its place</title>",
        f"<style>{_colors()} text {{ font-family: system-ui, sans-serif; font-size: 9px }}</style>",
        '<rect width="100%" height="100%" fill="var(--ground)"/>',
        f'<rect x="{start - 8:.0f}" y="{top - 8:.0f}" width="{width + 16:.0f}" height="{height + 16:.0f}" rx="6" '
        'fill="none" stroke="var(--muted)" stroke-dasharray="4 3"/>',
        _text(left + before_width / 2, 22, "one node"),
        _text(start + width / 2, 22, "the body of a Scan: one step"),
        _text(left + before_width + gap / 2 - 4, top + height / 2, "\N{RIGHTWARDS ARROW}", size=22),
        _placed(panels[0], left, top + (height - before_height) / 2, sizes[0]),
        _placed(panels[1], start, top, sizes[1]),
        "</svg>\n",
    ]
    return "\n".join(parts)


def _colors() -> str:
    """The colors of the report, by day and by night."""
    page = Path(plots.__file__).with_name("page.html.j2").read_text(encoding="utf-8")
    day, night = re.findall(r":root \{(.*?)\}", page, re.DOTALL)[:2]
    return " ".join(f":root {{{day}}} @media (prefers-color-scheme: dark) {{ :root {{{night}}} }}".split())


def _text(x: float, y: float, text: str, size: int = 11) -> str:
    style = f"font-size: {size}px; fill: var(--ink)"
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="middle" style="{style}">{text}</text>'


def _placed(panel: str, x: float, y: float, size: tuple[float, ...]) -> str:
    where = f'<svg x="{x:.1f}" y="{y:.1f}" width="{size[0]:.1f}" height="{size[1]:.1f}"'
    return panel.replace("<svg", where, 1).replace(' aria-hidden="true"', "", 1)


if __name__ == "__main__":
    Path(sys.argv[1] if len(sys.argv) > 1 else PICTURE).write_text(picture(), encoding="utf-8")
