"""Loops that an exporter traced step by step: their steps become a node, whatever their number; what differs in one
step, or is no cell, stays. The truth is the model as it was traced, in onnxruntime."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from commands import Command
from onnx import TensorProto, helper, numpy_helper
from running import assert_close, nodes, run
from thinning import thinned

import rnn_lowering as rl

H, I = 4, 3  # noqa: E741
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
CELLS = ("RNN", "GRU", "LSTM", "joined LSTM", "GRU of Linears", "peephole LSTM")

pytestmark = pytest.mark.filterwarnings("ignore::rnn_lowering.RnnLoweringWarning")


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


def feed(model: onnx.ModelProto, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    shapes = {v.name: [d.dim_value or 3 for d in v.type.tensor_type.shape.dim] for v in model.graph.input}
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def cells(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in nodes(model) if node.op_type in GATES]


def assert_same(new: onnx.ModelProto, old: onnx.ModelProto) -> None:
    onnx.checker.check_model(new, full_check=True)
    assert_close(run(new, feed(old)), run(old, feed(old)), "float32")


VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "time first": {"axis": 0},
    "slices": {"rows": "Slice", "again": True},
    "a split": {"rows": "Split"},
    "from the end": {"rows": "end"},
    "backwards": {"backwards": True},
    "backwards from the end": {"backwards": True, "rows": "end", "again": True},
    "states": {"states": True},
    "open batch": {"N": "N", "head": True},
    "layers": {"layers": 3, "head": True},
    "backwards layers": {"layers": 2, "backwards": True, "rows": "Split", "again": True},
    "four steps": {"T": 4},
    "many steps": {"T": 40, "again": True, "states": True},
    "one sequence": {"N": 1, "axis": 0, "head": True},
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("cell", CELLS)
def test_steps_become_a_node(cell: str, variant: str) -> None:
    trace = Trace(cell, **VARIANTS[variant])
    old = trace.model()
    new = rl.lower(old, raise_loops=True)
    assert cells(new) == [cell.split()[-1] if "of" not in cell else "GRU"] * trace.layers
    assert len(new.graph.node) < 12 + 8 * trace.layers
    assert_same(new, old)


def another_weight(trace: Trace, t: int, first: int) -> None:
    """Its first product has other weights."""
    node = next(node for node in trace.nodes[first:] if node.op_type == "Gemm")
    name = node.input[1] if node.input[1] in trace.constants else f"W{trace.cell}"
    array = trace.constants.get(name)
    if array is not None:
        node.input[1] = trace.constant(array + np.float32(0.01))


def another_function(trace: Trace, t: int, first: int) -> None:
    """Its last Tanh is a Sigmoid."""
    node = [node for node in trace.nodes[first:] if node.op_type == "Tanh"][-1]
    node.op_type = "Sigmoid"


def another_row(trace: Trace, t: int, first: int) -> None:
    """It reads the row of the step before."""
    node = next(node for node in trace.nodes[first:] if node.op_type == "Gather")
    node.input[1] = trace.constant(np.int64(t - 1))


def swapped_gates(trace: Trace, t: int, first: int) -> None:
    """Two outputs of its Split are the other way round."""
    node = next(node for node in trace.nodes[first:] if node.op_type == "Split")
    node.output[0], node.output[1] = node.output[1], node.output[0]


CHANGES = (another_weight, another_function, another_row, swapped_gates)


@pytest.mark.parametrize("at", thinned([3, 0, 1, 2, 5, 6], 6))
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("T", [7, 14])
def test_a_step_that_differs_is_not_rolled_up(change: Any, at: int, T: int) -> None:
    """The steps beside it may be."""

    def changed(trace: Trace, t: int, first: int) -> None:
        if t == max(at, change is another_row):
            change(trace, t, first)

    old = Trace("LSTM", T=T, change=changed).model()
    plain = Trace("LSTM", T=T).model()
    new = rl.lower(old, raise_loops=True)
    a, b = (next(iter(run(model, feed(old)).values())) for model in (old, plain))
    assert not np.allclose(a, b, atol=1e-4)
    assert_same(new, old)
    if 0 < at < T - 1:
        assert [node.op_type for node in new.graph.node].count("Tanh") >= 2  # of the step that stays


def extra_outputs(old: onnx.ModelProto) -> Iterator[onnx.ModelProto]:
    """The model with one more output, for values of several kinds in steps of the middle and of the end."""
    for op_type in ("Gemm", "Split", "Sigmoid", "Tanh", "Mul", "Add"):
        named = [node for node in old.graph.node if node.op_type == op_type]
        for node in (named[len(named) // 2], named[-1]):
            model = onnx.ModelProto()
            model.CopyFrom(old)
            shape = [2, 4 * H] if op_type in ("Gemm",) else None
            model.graph.output.append(helper.make_tensor_value_info(node.output[0], TensorProto.FLOAT, shape))
            yield model


def test_what_is_read_of_a_step_stays_right() -> None:
    for old in extra_outputs(Trace("LSTM").model()):
        new = rl.lower(old, raise_loops=True)
        assert_close(run(new, feed(old)), run(old, feed(old)), "float32")


def test_a_folded_first_step_is_joined() -> None:
    """An exporter computes what follows from zeros: the product of the first state is its bias."""

    def folded(trace: Trace, t: int, first: int) -> None:
        if t == 0:
            node = next(n for n in trace.nodes if n.input[0] in trace.constants and n.op_type == "Gemm")
            bias = trace.constants[node.input[2]]
            trace.nodes.remove(node)
            trace.constant(np.tile(bias, (2, 1)), node.output[0])

    old = Trace("LSTM", change=folded).model()
    new = rl.lower(old, raise_loops=True)
    assert cells(new) == ["LSTM"]
    assert "Sigmoid" not in {node.op_type for node in new.graph.node}
    assert_same(new, old)


def test_a_first_step_of_another_constant_stays() -> None:
    """What stands for the product of the first state is not its bias."""

    def folded(trace: Trace, t: int, first: int) -> None:
        if t == 0:
            node = next(n for n in trace.nodes if n.input[0] in trace.constants and n.op_type == "Gemm")
            bias = trace.constants[node.input[2]]
            trace.nodes.remove(node)
            trace.constant(np.tile(bias, (2, 1)) * np.float32(1.001), node.output[0])

    old = Trace("LSTM", change=folded).model()
    new = rl.lower(old, raise_loops=True)
    assert cells(new) == ["LSTM"]
    assert "Sigmoid" in {node.op_type for node in new.graph.node}
    assert_same(new, old)


def test_two_loops_over_one_cell() -> None:
    """Both begin with the same zeros and have the same weights."""
    trace = Trace("GRU")
    first, second = (trace.constant(np.zeros((2, H), np.float32), name) for name in ("z0", "z1"))
    rows = [trace.row(t) for t in range(7)]
    states = [first, second]
    for n, factor in enumerate((1, 2)):
        for row in rows:
            x = row if factor == 1 else trace.add("Mul", row, trace.constant(np.float32(factor), "two"))
            (states[n],) = trace.step(0, x, (states[n],))
    old = trace.made([*states], 1)
    del old.graph.output[:]
    old.graph.output.extend(helper.make_tensor_value_info(s, TensorProto.FLOAT, [2, H]) for s in states)
    new = rl.lower(old, raise_loops=True)
    assert "GRU" in cells(new)
    assert_same(new, old)


def test_a_loop_that_is_no_cell_stays_unless_a_form_is_asked_for() -> None:
    trace = Trace("RNN")
    h, ys = trace.constant(np.zeros((2, H), np.float32)), []
    for t in range(9):
        h = trace.add("Sin", trace.add("Add", *trace.both(0, trace.row(t), h, I, H)))
        ys.append(trace.add("Unsqueeze", h, trace.integers(1)))
    trace.add("Concat", *ys, axis=1)
    trace.T = 9
    old = trace.made([trace.nodes[-1].output[0], h], 1)
    kept, report = rl.lower(old, raise_loops=True, full=True)
    assert kept == old
    assert any("9 traced steps stay, the first at '/net'" in note for note in report.notes)
    for form in ("scan", "loop"):
        new = rl.lower(old, raise_loops=True, to=form)
        assert form.title() in {node.op_type for node in new.graph.node}
        assert_same(new, old)


@pytest.mark.parametrize("target", ["tract", "opencv", "ncnn"])
def test_lowered_for_a_runtime(target: Any) -> None:
    old = Trace("LSTM", N=1, head=True).model()
    new, report = rl.lower(old, raise_loops=True, target=target, full=True)
    assert [node.operator for node in report.nodes] == ["LSTM"]
    assert_same(new, old)


@pytest.mark.parametrize("trace", [Trace(head=True, states=True), Trace("GRU", layers=2, rows="Split")])
def test_two_exports_open_the_number_of_steps(trace: Trace) -> None:
    short, long = (replace(trace, T=T, nodes=[], constants={}).model() for T in (11, 160))
    new = rl.lower(short, raise_loops=True, open_dims={"x:1": "time"}, also=[long])
    assert new.graph.input[0].type.tensor_type.shape.dim[1].dim_param == "time"
    for old in (short, long):
        wanted = [*run(old, feed(old)).values()]
        got = dict(zip((v.name for v in new.graph.output), wanted, strict=True))
        assert_close(run(new, feed(old)), got, "float32")


def test_a_traced_policy_as_a_stream(tmp_path: Path, rnn_lower: Command) -> None:
    """By the command: opened by two exports whose outputs have other names, and called row by row."""
    for T in (11, 24):
        onnx.save(Trace(T=T, head=True, states=True).model(), tmp_path / f"{T}.onnx")
    options = f"--raise-loops --open-dim x:1=time --also {tmp_path / '24.onnx'} --stream time=1"
    done = rnn_lower(tmp_path / "11.onnx", tmp_path / "step.onnx", *options.split())
    assert done.code == 0, done.err
    assert "verified at time = 11 and 24" in done.out
    step = onnx.load(tmp_path / "step.onnx")
    assert step.graph.input[0].type.tensor_type.shape.dim[1].dim_value == 1


def test_the_list_names_traced_loops(tmp_path: Path, rnn_lower: Command) -> None:
    path = tmp_path / "traced.onnx"
    onnx.save(Trace(again=True).model(), path)
    done = rnn_lower(path, "--list")
    assert "traced loop" in done.out
    assert "--raise-loops makes a node of its steps" in " ".join(done.out.split())
    assert "LSTM" in rnn_lower(path, "--list", "--raise-loops").out
