"""Models to measure: one recurrent node each, with uniform weights up to 1 / sqrt(H)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
SIZES = ((1000, 1, 32, 32), (256, 1, 64, 128), (64, 1, 128, 256), (100, 1, 512, 512), (64, 8, 128, 256))


@dataclass(frozen=True)
class Row:
    """One model: T steps, batch N, input I, hidden H."""

    op_type: str
    direction: str
    T: int
    N: int
    I: int  # noqa: E741
    H: int
    lengths: bool = False

    def __str__(self) -> str:
        return f"{self.op_type} {self.direction}{', lens' if self.lengths else ''}"

    def model(self, opset: int = 11) -> onnx.ModelProto:
        """The model, with a static shape."""
        dirs = 2 if self.direction == "bidirectional" else 1
        rows, rng = GATES[self.op_type] * self.H, np.random.default_rng(0)
        shapes = {"W": (dirs, rows, self.I), "R": (dirs, rows, self.H), "B": (dirs, 2 * rows)}
        bound = self.H**-0.5
        weights = [
            numpy_helper.from_array(rng.uniform(-bound, bound, shape).astype(np.float32), name)
            for name, shape in shapes.items()
        ]
        inputs = [helper.make_tensor_value_info("X", onnx.TensorProto.FLOAT, [self.T, self.N, self.I])]
        names = ["X", "W", "R", "B"]
        if self.lengths:
            inputs.append(helper.make_tensor_value_info("lens", onnx.TensorProto.INT32, [self.N]))
            names.append("lens")
        results = ["Y", "Y_h", "Y_c"] if self.op_type == "LSTM" else ["Y", "Y_h"]
        attributes: dict[str, Any] = {"linear_before_reset": 1} if self.op_type == "GRU" else {}
        node = helper.make_node(
            self.op_type, names, results, "rnn", hidden_size=self.H, direction=self.direction, **attributes
        )
        outputs = [helper.make_tensor_value_info(r, onnx.TensorProto.FLOAT, None) for r in results]
        graph = helper.make_graph([node], "benchmark", inputs, outputs, weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=7)

    def feed(self) -> dict[str, np.ndarray]:
        """Its inputs."""
        rng = np.random.default_rng(1)
        feed: dict[str, np.ndarray] = {"X": rng.standard_normal((self.T, self.N, self.I)).astype(np.float32)}
        if self.lengths:
            feed["lens"] = np.linspace(self.T, self.T // 2, self.N).astype(np.int32)
        return feed


def rows() -> list[Row]:
    """The 35 models of the table."""
    table = [Row(op, d, *size) for d in ("forward", "bidirectional") for op in GATES for size in SIZES]
    table += [Row(op, "forward", 30, 64, 256, 512) for op in GATES]
    return [*table, Row("LSTM", "forward", *SIZES[4], True), Row("GRU", "bidirectional", *SIZES[4], True)]


def several(
    op_type: str, sizes: Sequence[int], T: int, N: int, *, stacked: bool, opset: int = 17
) -> onnx.ModelProto:
    """A model of nodes of hidden sizes: layers, or side by side, each with some of the features as its X."""
    rng, nodes, tensors, outputs = np.random.default_rng(0), [], [], []
    width = sizes[0] if stacked else sum(sizes)
    x = "X"
    if not stacked:
        tensors.append(numpy_helper.from_array(np.array(sizes, np.int64), "sizes"))
        nodes.append(helper.make_node("Split", ["X", "sizes"], [f"X{n}" for n in range(len(sizes))], axis=2))
    tensors.append(numpy_helper.from_array(np.array([1], np.int64), "axis"))
    for n, H in enumerate(sizes):
        rows, I = GATES[op_type] * H, sizes[max(n - 1, 0)] if stacked else H  # noqa: E741
        shapes = {"W": (1, rows, I), "R": (1, rows, H), "B": (1, 2 * rows)}
        made = {f"{s}{n}": (rng.uniform(-1, 1, shape) * H**-0.5).astype(np.float32) for s, shape in shapes.items()}
        tensors += [numpy_helper.from_array(array, name) for name, array in made.items()]
        attributes: dict[str, Any] = {"linear_before_reset": 1} if op_type == "GRU" else {}
        given = [x if stacked else f"X{n}", *made]
        nodes.append(helper.make_node(op_type, given, [f"Y{n}"], f"rnn{n}", hidden_size=H, **attributes))
        nodes.append(helper.make_node("Squeeze", [f"Y{n}", "axis"], [f"x{n}"]))
        x = f"x{n}"
        if not stacked or n == len(sizes) - 1:
            outputs.append(helper.make_tensor_value_info(x, onnx.TensorProto.FLOAT, [T, N, H]))
    inputs = [helper.make_tensor_value_info("X", onnx.TensorProto.FLOAT, [T, N, width])]
    graph = helper.make_graph(nodes, "benchmark", inputs, outputs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
