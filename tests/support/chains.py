"""Models with recurrent nodes in a row, each followed by nodes that a lowering does not concern."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
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
    nodes, tensors, width = [], [], features
    rng = np.random.default_rng(len(links))
    for n, link in enumerate(links):
        nodes += _nodes(link, n)
        tensors += _tensors(link, n, width, rng)
        width = link.dirs * link.hidden
    nodes.append(helper.make_node("Relu", [f"x{len(links) - 1}"], ["out"], "last"))
    infos = [
        helper.make_tensor_value_info(k, TensorProto.FLOAT, [*dims, w])
        for k, w in (("X", features), ("out", width))
    ]
    graph = helper.make_graph(nodes, "chain", infos[:1], infos[1:], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def _nodes(link: Link, n: int) -> list[onnx.NodeProto]:
    """The node and what brings its Y into the shape of an X."""
    inputs = [f"x{n - 1}" if n else "X", f"W{n}", f"R{n}", f"B{n}"]
    node = helper.make_node(link.op_type, inputs, [f"Y{n}"], link.name, hidden_size=link.hidden)
    node.attribute.extend(helper.make_attribute(key, value) for key, value in link.attributes.items())
    return [
        node,
        helper.make_node("Transpose", [f"Y{n}"], [f"turned{n}"], f"turn{n}", perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", [f"turned{n}", f"merged{n}"], [f"x{n}"], f"merge{n}"),
    ]


def _tensors(link: Link, n: int, width: int, rng: np.random.Generator) -> list[TensorProto]:
    rows = GATES[link.op_type] * link.hidden
    shapes = {"W": (link.dirs, rows, width), "R": (link.dirs, rows, link.hidden), "B": (link.dirs, 2 * rows)}
    arrays = {f"{symbol}{n}": rng.uniform(-0.5, 0.5, shape).astype(np.float32) for symbol, shape in shapes.items()}
    sizes = np.array([0, 0, link.dirs * link.hidden])
    return [numpy_helper.from_array(array, name) for name, array in (*arrays.items(), (f"merged{n}", sizes))]
