"""Models with recurrent nodes in a row, each followed by nodes that a lowering does not concern."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from cases import Arrays
from graphs import Graph
from oracle import GATES


@dataclass(frozen=True, eq=False)
class Link:
    """A recurrent node with a name."""

    op_type: str
    name: str
    attributes: Mapping[str, Any] = field(default_factory=dict)
    hidden: int = 4

    @property
    def dirs(self) -> int:
        return 2 if self.attributes.get("direction") == "bidirectional" else 1


def chain(
    *links: Link, opset: int = 17, dims: Sequence[int | str | None] = ("seq", "batch"), features: int = 3
) -> onnx.ModelProto:
    """A model X [*dims, features] -> the links -> Relu -> `out`; from opset 5, as its Reshape has two inputs."""
    graph, width, x = Graph(), features, "X"
    graph.input("X", [*dims, features])
    rng = np.random.default_rng(len(links))
    for n, link in enumerate(links):
        names = [graph.constant(array, name=f"{symbol}{n}") for symbol, array in _weights(link, width, rng).items()]
        width = link.dirs * link.hidden
        merged = graph.constant([0, 0, width], name=f"merged{n}")
        attributes = {"hidden_size": link.hidden, **link.attributes}
        graph.node(link.op_type, x, *names, outputs=[f"Y{n}"], name=link.name, **attributes)
        graph.node("Transpose", f"Y{n}", outputs=[f"turned{n}"], name=f"turn{n}", perm=[0, 2, 1, 3])
        x = graph.node("Reshape", f"turned{n}", merged, outputs=[f"x{n}"], name=f"merge{n}")
    graph.node("Relu", x, outputs=["out"], name="last")
    graph.output("out", [*dims, width])
    return graph.model(opset)


def _weights(link: Link, width: int, rng: np.random.Generator) -> Arrays:
    rows = GATES[link.op_type] * link.hidden
    shapes = {"W": (link.dirs, rows, width), "R": (link.dirs, rows, link.hidden), "B": (link.dirs, 2 * rows)}
    return {symbol: rng.uniform(-0.5, 0.5, shape).astype(np.float32) for symbol, shape in shapes.items()}
