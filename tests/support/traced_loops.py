"""Nets as exporters trace loops over cells: the nodes of each step, one after the other."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

H, I = 4, 3  # noqa: E741
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
CELLS = ("RNN", "GRU", "LSTM", "joined LSTM", "GRU of Linears", "peephole LSTM")


@dataclass
class Trace:
    """A net as it is traced: nodes are added step by step.

    Attributes:
        cell: What a step computes.
        T, N: The number of steps and the batch size; N is open if it is a text.
        axis: The axis of time in x and y.
        rows: How a step takes its row: "Gather", "Slice", "Split" or "end", a Gather that counts from the end.
        backwards: Whether the last row comes first.
        states: Whether the first states are inputs.
        layers: How many cells follow each other in a step.
        head: Whether each step has an output layer.
        again: Whether each step has constants of its own, and Identities of weights, as the older exporter writes.
        change: Changes what one step computes: gets its number and the nodes from `first` on.
    """

    cell: str = "LSTM"
    T: int = 7
    N: int | str = 2
    axis: int = 1
    rows: str = "Gather"
    backwards: bool = False
    states: bool = False
    layers: int = 1
    head: bool = False
    again: bool = False
    change: Callable[["Trace", int, int], None] = lambda trace, t, first: None
    count: int = 0
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: dict[str, np.ndarray] = field(default_factory=dict)

    def add(self, op_type: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        self.count += 1
        names = [f"v{self.count}_{n}" for n in range(outputs)]
        name = f"/net/{op_type}_{self.count}"
        self.nodes.append(helper.make_node(op_type, inputs, names, name, **attributes))
        return names[0] if outputs == 1 else names

    def constant(self, array: Any, name: str = "") -> str:
        name = name or f"c{len(self.constants)}"
        self.constants[name] = np.asarray(array)
        return name

    def integers(self, *numbers: int) -> str:
        array = np.array(numbers, np.int64)
        return self.constant(array) if self.again else self.constant(array, f"i{numbers}")

    def weight(self, name: str, *shape: int) -> str:
        rng = np.random.default_rng(sum(map(ord, name)))
        self.constant((0.5 * rng.normal(size=shape)).astype(np.float32), name)
        return str(self.add("Identity", name)) if self.again else name

    def linear(self, name: str, x: str, rows: int, columns: int) -> str:
        weights = self.weight(f"W{name}", columns, rows), self.weight(f"b{name}", columns)
        return str(self.add("Gemm", x, *weights, transB=1))

    def row(self, t: int) -> str:
        one = self.constant(np.int64(t) if self.rows == "Gather" else np.int64(t - self.T))
        if self.rows in ("Gather", "end"):
            return str(self.add("Gather", "x", one, axis=self.axis))
        if self.rows == "Split":
            return str(self.add("Squeeze", self.split[t], self.integers(self.axis)))
        bounds = (self.integers(n) for n in (t, t + 1, self.axis))
        return str(self.add("Squeeze", self.add("Slice", "x", *bounds), self.integers(self.axis)))

    def step(self, layer: int, x: str, state: Sequence[str]) -> tuple[str, ...]:
        size, h, gates = I if not layer else H, state[0], GATES.get(self.cell.split()[-1], 3)
        if self.cell == "RNN":
            return (self.add("Tanh", self.add("Add", *self.both(layer, x, h, size, H))),)
        if self.cell == "GRU of Linears":
            return (self.gru_of_linears(layer, x, h, size),)
        if self.cell == "GRU":
            xs, hs = (self.parts(each, 3) for each in self.both(layer, x, h, size, 3 * H))
            r, z = (self.add("Sigmoid", self.add("Add", xs[n], hs[n])) for n in (0, 1))
            n = self.add("Tanh", self.add("Add", xs[2], self.add("Mul", hs[2], r)))
            return (self.add("Add", self.add("Mul", self.add("Sub", h, n), z), n),)
        if self.cell == "joined LSTM":
            both = self.add("Concat", x, h, axis=1)
            summed = self.linear(f"{layer}", both, size + H, 4 * H)
        else:
            summed = self.add("Add", *self.both(layer, x, h, size, 4 * H))
        i, f, g, o = self.parts(summed, gates)
        c = state[1]
        if self.cell == "peephole LSTM":
            i, f = (self.add("Add", s, self.add("Mul", self.weight(f"P{layer}{s == f}", H), c)) for s in (i, f))
        i, f = self.add("Sigmoid", i), self.add("Sigmoid", f)
        c = self.add("Add", self.add("Mul", f, c), self.add("Mul", i, self.add("Tanh", g)))
        return self.add("Mul", self.add("Sigmoid", o), self.add("Tanh", c)), c

    def both(self, layer: int, x: str, h: str, size: int, columns: int) -> tuple[str, str]:
        return self.linear(f"x{layer}", x, size, columns), self.linear(f"h{layer}", h, H, columns)

    def parts(self, value: str, count: int) -> list[str]:
        return list(self.add("Split", value, self.integers(*[H] * count), outputs=count, axis=1))

    def gru_of_linears(self, layer: int, x: str, h: str, size: int) -> str:
        def of(gate: str, state: str) -> str:
            a, b = self.linear(f"{gate}x{layer}", x, size, H), self.linear(f"{gate}h{layer}", state, H, H)
            return str(self.add("Add", a, b))

        z, r = (self.add("Sigmoid", of(gate, h)) for gate in "zr")
        n = self.add("Tanh", of("n", self.add("Mul", r, h)))
        rest = self.add("Sub", self.constant(np.float32(1), "one"), z)
        return str(self.add("Add", self.add("Mul", rest, n), self.add("Mul", z, h)))

    def first(self, layer: int, n: int) -> str:
        if self.states:
            return f"s{layer}{n}"
        if not isinstance(self.N, str):
            return self.constant(np.zeros((self.N, H), np.float32))
        shape = self.add("Concat", self.add("Shape", "x", end=1), self.integers(H), axis=0)
        return str(self.add("ConstantOfShape", shape))

    def model(self) -> onnx.ModelProto:
        count = 2 if self.cell.endswith("LSTM") else 1
        if self.rows == "Split":
            sizes = self.integers(*[1] * self.T)
            self.split = self.add("Split", "x", sizes, outputs=self.T, axis=self.axis)
        states = [tuple(self.first(layer, n) for n in range(count)) for layer in range(self.layers)]
        ys = []
        for t in range(self.T)[:: -1 if self.backwards else 1]:
            first = len(self.nodes)
            y = self.row(t)
            for layer in range(self.layers):
                states[layer] = self.step(layer, y, states[layer])
                y = states[layer][0]
            self.change(self, t, first)
            if self.head:
                y = self.add("Sigmoid", self.linear("head", y, H, 2))
            ys.append(self.add("Unsqueeze", y, self.integers(self.axis)))
        self.add("Concat", *(ys[::-1] if self.backwards else ys), axis=self.axis)
        return self.made([self.nodes[-1].output[0], *(name for state in states for name in state)], count)

    def made(self, outputs: Sequence[str], count: int) -> onnx.ModelProto:
        x, y = ([self.N, self.T, size] for size in (I, 2 if self.head else H))
        for shape in (x, y) if self.axis == 0 else ():
            shape[:2] = shape[1::-1]
        given = [(f"s{layer}{n}", [self.N, H]) for layer in range(self.layers) for n in range(count)]
        inputs = [("x", x), *(given if self.states else [])]
        results = zip(outputs, [y] + [[self.N, H]] * (len(outputs) - 1), strict=True)
        graph = helper.make_graph(
            self.nodes,
            "traced",
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in results],
            [numpy_helper.from_array(array, name) for name, array in self.constants.items()],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


FUNCTIONS = ("Tanh", "Sigmoid", "Relu")
ARITHMETIC = ("Add", "Mul", "Sub")


def random_trace(rng: random.Random) -> onnx.ModelProto:
    """A traced loop; in one of three a node of a step is another one."""
    trace = Trace(
        rng.choice(CELLS),
        T=rng.choice((4, 5, 7, 12)),
        N=rng.choice((1, 2, "N")),
        axis=rng.randrange(2),
        rows=rng.choice(("Gather", "Slice", "Split", "end")),
        backwards=rng.random() < 0.3,
        states=rng.random() < 0.4,
        layers=rng.choice((1, 1, 2)),
        head=rng.random() < 0.4,
        again=rng.random() < 0.5,
    )
    if rng.random() < 0.33:
        at = rng.randrange(trace.T)
        trace.change = lambda trace, t, first: change_a_node(trace, rng, first) if t == at else None
    return trace.model()


def change_a_node(trace: Trace, rng: random.Random, first: int) -> None:
    """Change one of the nodes from `first` on: its operator, the order of its inputs or outputs, or its weights."""
    node = rng.choice(trace.nodes[first:])
    for kind in (FUNCTIONS, ARITHMETIC):
        if node.op_type in kind:
            node.op_type = rng.choice([op_type for op_type in kind if op_type != node.op_type])
    if node.op_type == "Split" and len(node.output) > 1:
        node.output[0], node.output[1] = node.output[1], node.output[0]
    if node.op_type == "Gemm" and (weights := trace.constants.get(node.input[1])) is not None:
        node.input[1] = trace.constant(weights * np.float32(1.01))
    if node.op_type == "Concat":
        node.input[0], node.input[-1] = node.input[-1], node.input[0]
