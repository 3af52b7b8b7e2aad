"""Loops that an exporter traced step by step: their steps become a node, whatever their number; what differs in one
step, or is no cell, stays. The truth is the model as it was traced, in onnxruntime."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from commands import Command
from onnx import TensorProto, helper
from running import assert_close, nodes, run
from thinning import exhaustive, thinned
from traced_loops import CELLS, GATES, H, I, Trace

import rnn_lowering as rl

pytestmark = pytest.mark.filterwarnings("ignore::rnn_lowering.RnnLoweringWarning")


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


@pytest.mark.few(5)
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


def extra_outputs(old: onnx.ModelProto, op_type: str) -> Iterator[onnx.ModelProto]:
    """The model with one more output, for a value of a step of the middle, and of the end."""
    named = [node for node in old.graph.node if node.op_type == op_type]
    for node in (named[len(named) // 2], named[-1]):
        model = onnx.ModelProto()
        model.CopyFrom(old)
        shape = [2, 4 * H] if op_type in ("Gemm",) else None
        model.graph.output.append(helper.make_tensor_value_info(node.output[0], TensorProto.FLOAT, shape))
        yield model


@pytest.mark.few(3)
@pytest.mark.parametrize("op_type", ["Gemm", "Split", "Sigmoid", "Tanh", "Mul", "Add"])
def test_what_is_read_of_a_step_stays_right(op_type: str) -> None:
    for old in extra_outputs(Trace("LSTM", T=4).model(), op_type):
        new = rl.lower(old, raise_loops=True)
        assert_close(run(new, feed(old)), run(old, feed(old)), "float32")


@pytest.mark.parametrize("rows", ["Gather", "Split"])
def test_one_product_more_is_no_step(rows: str) -> None:
    """Of the last state, with the weights of the steps: there is no row for it."""
    trace = Trace("RNN", rows=rows)
    old = trace.model()
    last = old.graph.output[1].name
    product = next(node for node in old.graph.node if node.op_type == "Gemm" and node.input[1] == "Wh0")
    more = helper.make_node("Gemm", [last, *product.input[1:]], ["more"], "/net/more", transB=1)
    old.graph.node.append(more)
    old.graph.output.append(helper.make_tensor_value_info("more", TensorProto.FLOAT, [2, H]))
    new = rl.lower(old, raise_loops=True)
    assert cells(new) == ["RNN"]
    assert_same(new, old)


@pytest.mark.parametrize("N", [2, "N"])
def test_nodes_in_no_order(N: Any) -> None:
    old = Trace("GRU", N=N, again=True).model()
    mixed = onnx.ModelProto()
    mixed.CopyFrom(old)
    del mixed.graph.node[:]
    mixed.graph.node.extend(reversed(old.graph.node))
    new = rl.lower(mixed, raise_loops=True)
    assert cells(new) == ["GRU"]
    assert_close(run(new, feed(old)), run(old, feed(old)), "float32")


def with_folded_step(factor: float) -> onnx.ModelProto:
    """An LSTM of whose first product the bias is left, times a factor: an exporter computed it."""

    def folded(trace: Trace, t: int, first: int) -> None:
        if t == 0:
            node = next(n for n in trace.nodes if n.input[0] in trace.constants and n.op_type == "Gemm")
            bias = trace.constants[node.input[2]]
            trace.nodes.remove(node)
            trace.constant(np.tile(bias, (2, 1)) * np.float32(factor), node.output[0])

    return Trace("LSTM", change=folded).model()


@pytest.mark.parametrize(("factor", "stays"), [(1, False), (1.001, True)])
def test_a_folded_first_step_is_joined_if_it_is_that_of_zeros(factor: float, stays: bool) -> None:
    old = with_folded_step(factor)
    new = rl.lower(old, raise_loops=True)
    assert cells(new) == ["LSTM"]
    assert ("Sigmoid" in {node.op_type for node in new.graph.node}) == stays
    assert_same(new, old)


class _Table(Trace):
    """A step takes its row by a table of one index: the row has an axis more."""

    def row(self, t: int) -> str:
        row = self.add("Gather", "x", self.constant(np.full((1, 1), t)), axis=self.axis)
        return str(self.add("Squeeze", row, self.integers(self.axis, self.axis + 1)))


@pytest.mark.parametrize("axis", [0, 1])
def test_a_table_of_indices_takes_rows(axis: int) -> None:
    traced = _Table("GRU of Linears", axis=axis).model()
    assert_same(rl.lower(traced, "scan", raise_loops=True), traced)


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


@pytest.mark.few(2)
@pytest.mark.parametrize("target", ["tract", "opencv", "ncnn"])
def test_lowered_for_a_runtime(target: Any) -> None:
    old = Trace("LSTM", N=1, head=True).model()
    new, report = rl.lower(old, raise_loops=True, target=target, full=True)
    assert [node.operator for node in report.nodes] == ["LSTM"]
    assert_same(new, old)


@pytest.mark.few(1)
@pytest.mark.parametrize("steps", [40, exhaustive(160)])
@pytest.mark.parametrize("trace", [Trace(head=True, states=True), Trace("GRU", layers=2, rows="Split")])
def test_two_exports_open_the_number_of_steps(trace: Trace, steps: int) -> None:
    short, long = (replace(trace, T=T, nodes=[], constants={}).model() for T in (11, steps))
    with pytest.raises(rl.UnsupportedError, match=r"a loop was traced step by step: add raise_loops=True"):
        rl.lower(short, open_dims={"x:1": "time"}, also=[long])
    new = rl.lower(short, raise_loops=True, open_dims={"x:1": "time"}, also=[long])
    assert new.graph.input[0].type.tensor_type.shape.dim[1].dim_param == "time"
    for old in (short, long):
        wanted = [*run(old, feed(old)).values()]
        got = dict(zip((v.name for v in new.graph.output), wanted, strict=True))
        assert_close(run(new, feed(old)), got, "float32")


def test_a_traced_policy_as_a_stream(tmp_path: Path, rnn_lower: Command) -> None:
    """By the command: opened by two exports whose outputs have other names, and called row by row."""
    for T in (5, 8):
        onnx.save(Trace(T=T, head=True, states=True).model(), tmp_path / f"{T}.onnx")
    options = f"--raise-loops --open-dim x:1=time --also {tmp_path / '8.onnx'} --stream time=1"
    done = rnn_lower(tmp_path / "5.onnx", tmp_path / "step.onnx", *options.split())
    assert done.code == 0, done.err
    assert "verified at time = 5 and 8" in done.out
    step = onnx.load(tmp_path / "step.onnx")
    assert step.graph.input[0].type.tensor_type.shape.dim[1].dim_value == 1


def test_the_list_names_traced_loops(tmp_path: Path, rnn_lower: Command) -> None:
    path = tmp_path / "traced.onnx"
    onnx.save(Trace(again=True).model(), path)
    done = rnn_lower(path, "--list")
    assert "traced loop" in done.out
    assert "--raise-loops makes a node of its steps" in " ".join(done.out.split())
    assert "LSTM" in rnn_lower(path, "--list", "--raise-loops").out
