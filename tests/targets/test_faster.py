"""What is emitted for the speed of a runtime computes the same: products by columns, an LSTM that is recognized."""

from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from case_list import BY_NAME
from cases import ALL_OPTIONAL, Case, expected, feed, model
from forms import exists
from onnx import helper, numpy_helper
from running import assert_close, bodies, nodes, operators, recurrent_left, run
from texts import FORMS
from thinning import thinned

import rnn_lowering as rl
from rnn_lowering.emit.composites import by_columns
from rnn_lowering.emit.dialect import Dialect
from rnn_lowering.emit.draft import Names
from rnn_lowering.emit.ops import Ops
from rnn_lowering.emit.tensor import Tensor
from rnn_lowering.targets import target as targets
from rnn_lowering.targets.runtimes.onnxruntime import gemms

OPSETS = [7, 10, 11, 13, 18, 21]
COLUMNS = [
    *[f"{op}_{name}" for op in ("RNN", "GRU", "LSTM") for name in ("plain", "lengths_bidirectional_nan")],
    "GRU_linear_before_reset_bidirectional",
    "GRU_weights_node_float16",
    "LSTM_clip_float64",
    "LSTM_layout_1_bidirectional",
    "RNN_x_unknown",
]

pytestmark = pytest.mark.filterwarnings("ignore::rnn_lowering.RnnLoweringWarning")


@pytest.fixture
def columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """All products of the target portable are emitted by columns."""
    by_columns_only = replace(targets.PORTABLE, instead=((("MatMul", partial(by_columns, least=1))),))
    monkeypatch.setattr(targets, "PORTABLE", by_columns_only)


@pytest.mark.few(4)
@pytest.mark.parametrize(("opset", "name"), thinned(list(product(OPSETS, COLUMNS)), 3))
@pytest.mark.usefixtures("columns")
def test_products_by_columns(name: str, opset: int) -> None:
    case = BY_NAME[name]
    if opset not in case.opsets:
        pytest.skip(f"not at opset {opset}")
    form: Any
    for form in FORMS:
        if exists(case, form, opset):
            lowered = rl.lower(model(case, opset), form)
            assert recurrent_left(lowered) == []
            assert_close(run(lowered, feed(case)), expected(case), case.dtype)


@pytest.mark.parametrize("dequantize", [False, True])
@pytest.mark.usefixtures("columns")
def test_integers_by_columns(dequantize: bool) -> None:
    """Weights that are stored as integers stay so, and as the node has them: nothing transposes them."""
    original = _quantized()
    given = {"X": np.random.default_rng(1).standard_normal((5, 2, 8)).astype(np.float32)}
    form: Any
    for form in FORMS:
        lowered = rl.lower(original, form, dequantize=dequantize)
        assert ("DequantizeLinear" in operators(lowered)) != dequantize
        assert_close(run(lowered, given), run(original, given))
        kept = {numpy_helper.to_array(tensor).shape[-2:] for tensor in lowered.graph.initializer if tensor.dims}
        assert form != "unroll" or (32, 8) in kept


def _quantized() -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    tensors = [
        numpy_helper.from_array(rng.integers(-90, 90, (1, 32, 8)).astype(np.int8), f"{symbol}_q") for symbol in "WR"
    ]
    tensors += [helper.make_tensor("scale", 1, [], [0.01]), helper.make_tensor("zero", 3, [], [3])]
    made = [helper.make_node("DequantizeLinear", [f"{symbol}_q", "scale", "zero"], [symbol]) for symbol in "WR"]
    made.append(helper.make_node("LSTM", ["X", "W", "R"], ["Y"], "recurrent", hidden_size=8))
    values = [helper.make_tensor_value_info(name, 1, shape) for name, shape in (("X", [5, 2, 8]), ("Y", None))]
    graph = helper.make_graph(made, "quantized", values[:1], values[1:], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_only_of_batches_in_mnn() -> None:
    """A vector times a matrix is as fast there; H of a batch times a matrix is 2 to 60 times slower."""
    for N, swapped in ((1, False), (2, True)):
        case = Case("batch", "LSTM", N=N, outputs=("Y",))
        lowered = rl.lower(model(case, 17), target="mnn")
        assert ("Transpose" in operators(lowered)) == swapped
        assert_close(run(lowered, feed(case)), expected(case))


MATRIX_STEPS: dict[str, dict[str, Any]] = {
    "plain": {},
    "one row": {"N": 1},
    "one step": {"T": 1},
    "everything": {"attributes": {"direction": "bidirectional"}, "optional": ALL_OPTIONAL},
    "layout": {"attributes": {"layout": 1, "direction": "reverse"}, "optional": ("B", "initial_h")},
    "lengths": {"optional": ("sequence_lens",), "lengths": (5, 0, 3)},
    "only states": {"outputs": ("Y_h",)},
    "float16": {"dtype": "float16"},
}


@pytest.mark.few(4)
@pytest.mark.parametrize("op_type", ["RNN", "GRU", "LSTM"])
@pytest.mark.parametrize("name", MATRIX_STEPS)
def test_steps_are_of_matrices_in_opencv(name: str, op_type: str) -> None:
    case = Case("matrices", op_type, **MATRIX_STEPS[name])
    lowered = rl.lower(model(case, 17), "unroll", target="opencv")
    inferred = onnx.shape_inference.infer_shapes(lowered, strict_mode=True).graph.value_info
    assert {len(v.type.tensor_type.shape.dim) for v in inferred if "MatMul" in v.name} == {2}
    assert_close(run(lowered, feed(case)), expected(case))


@pytest.mark.parametrize("target", ["opencv", "ncnn"])
def test_steps_of_an_open_batch_size_are_not(target: Any) -> None:
    case = Case("open", "GRU", x="batch")
    lowered = rl.lower(model(case, 17), "unroll", target=target)
    assert "Flatten" not in operators(lowered)
    assert_close(run(lowered, feed(case)), expected(case))


def test_small_products_are_not_by_columns_in_tvm() -> None:
    """There the transposes cost more than they save."""
    for size, swapped in ((32, False), (64, True)):
        lowered = rl.lower(model(Case("size", "RNN", I=size, H=size), 17), target="tvm")
        assert ("Transpose" in operators(lowered)) == swapped


@pytest.mark.parametrize(("size", "loops"), [(64, set()), (128, {"Loop"})])
def test_large_nodes_are_loops_in_mnn(size: int, loops: set[str]) -> None:
    lowered = rl.lower(model(Case("size", "LSTM", I=size, H=size), 17), target="mnn")
    assert operators(lowered) & {"Loop", "Scan"} == loops


@pytest.mark.few(1)
@pytest.mark.parametrize("opset", [9, 13, 21])
@pytest.mark.parametrize(("op_type", "alike"), [("GRU", 2), ("LSTM", 4)])
def test_gates_of_one_row_are_split_as_rows_in_tract(op_type: str, alike: int, opset: int) -> None:
    """It computes a product once for each part of it, but not where the parts are of a Reshape."""
    options: list[dict[str, Any]] = [{}, {"direction": "bidirectional"}, {"clip": 0.3}]
    places = product(((1, 0), (2, 1), (5, 1)), (("B",), ALL_OPTIONAL))
    for ((N, axis), optional), attributes in zip(places, options * 2, strict=True):
        case = Case("row", op_type, attributes, N=N, H=5, optional=optional)
        lowered = rl.lower(model(case, opset), "scan", target="tract")
        body_nodes = [n for scan in nodes(lowered) for body in bodies(scan) for n in body.node]
        gates = [n for n in body_nodes if n.op_type == "Split" and len(n.output) == alike]
        assert {a.i for n in gates for a in n.attribute if a.name == "axis"} == {axis}
        assert any(n.op_type == "Reshape" for n in body_nodes) == (N < 5)
        assert_close(run(lowered, feed(case)), expected(case))


@pytest.mark.parametrize(("x", "by_scan"), [("symbolic", True), ("static", False)])
def test_a_scan_of_an_open_length_runs_in_reverse_for_tract(x: Any, by_scan: bool) -> None:
    case = Case("reverse", "GRU", {"direction": "bidirectional"}, x=x)
    lowered = rl.lower(model(case, 17), target="tract")
    named = {a.name for node in nodes(lowered) if node.op_type == "Scan" for a in node.attribute}
    assert (named >= {"scan_input_directions", "scan_output_directions"}) == by_scan
    assert "Slice" not in operators(lowered)
    assert_close(run(lowered, feed(case)), expected(case))


RECOGNIZED: dict[str, dict[str, Any]] = {
    "plain": {},
    "no bias": {"optional": ()},
    "states": {"optional": ("B", "initial_h", "initial_c"), "attributes": {"direction": "bidirectional"}},
    "reverse": {"attributes": {"direction": "reverse"}},
    "layout": {"attributes": {"layout": 1, "direction": "bidirectional"}, "optional": ("initial_h", "initial_c")},
    "lengths": {"optional": ("B", "sequence_lens"), "lengths": (5, 0, 3)},
    "relu": {"attributes": {"activations": ["Sigmoid", "Relu", "Tanh"]}},
    "only Y_h": {"outputs": ("Y_h",)},
    "batch of one": {"N": 1},
}


@pytest.mark.parametrize("opset", [10, 13, 14, 18, 21])
@pytest.mark.parametrize("name", RECOGNIZED)
def test_an_lstm_that_openvino_recognizes(name: str, opset: int, caplog: pytest.LogCaptureFixture) -> None:
    case = Case("recognized", "LSTM", **RECOGNIZED[name])
    if opset not in case.opsets:
        pytest.skip(f"not at opset {opset}")
    lowered = rl.lower(model(case, opset), target="openvino")
    assert not caplog.records
    scans = [node for node in nodes(lowered) if node.op_type == "Scan"]
    assert len(scans) == (2 if case.attributes.get("direction") == "bidirectional" else 1)
    steps = [[n.op_type for n in body.node] for scan in scans for body in bodies(scan)]
    assert all(step.count("MatMul") == 1 for step in steps)
    assert all("Concat" in step for step in steps)
    assert_close(run(lowered, feed(case)), expected(case))


UNRECOGNIZED: dict[str, dict[str, Any]] = {
    "clip": {"attributes": {"clip": 0.3}},
    "peepholes": {"optional": ("B", "P")},
    "input_forget": {"attributes": {"input_forget": 1}},
    "activation": {"attributes": {"activations": ["HardSigmoid", "Tanh", "Tanh"]}},
    "unknown sizes": {"x": "symbolic"},
    "unknown batch": {"x": "batch"},
    "computed weights": {"weights": "input"},
    "computed weights, no bias": {"weights": "input", "optional": ()},
    "double": {"dtype": "float64"},
}


@pytest.mark.few(3)
@pytest.mark.parametrize("name", UNRECOGNIZED)
def test_an_lstm_that_it_does_not_recognize(name: str) -> None:
    """It is unrolled where it is known to be short, else a Loop."""
    short = set() if name != "unknown sizes" else {"Loop"}
    form: Any
    for form, T, loops in (("auto", 5, short), ("auto", 101, {"Loop"}), ("scan", 5, {"Scan"})):
        case = Case("unrecognized", "LSTM", T=T, **UNRECOGNIZED[name])
        if form == "scan" and case.weights == "input":
            with pytest.raises(rl.UnsupportedError, match=r"use to=.loop. or to=.unroll."):
                rl.lower(model(case, 17), form, target="openvino")
            continue
        lowered = rl.lower(model(case, 17), form, target="openvino")
        assert operators(lowered) & {"Loop", "Scan"} == loops
        assert "scan_input_axes" not in {a.name for node in lowered.graph.node for a in node.attribute}
        assert_close(run(lowered, feed(case)), expected(case), case.dtype)


def test_it_recognizes_neither_integers_nor_loops() -> None:
    """Weights that are stored as integers stay so, and a Loop that was asked for is emitted as for others."""
    given = {"X": np.random.default_rng(1).standard_normal((5, 2, 8)).astype(np.float32)}
    integers = rl.lower(_quantized(), "scan", target="openvino")
    (scan,) = (node for node in nodes(integers) if node.op_type == "Scan")
    inside = {node.op_type for body in bodies(scan) for node in body.node}
    assert "DequantizeLinear" in inside
    assert "Concat" not in inside
    assert_close(run(integers, given, optimize=False), run(_quantized(), given))
    loop = rl.lower(model(BY_NAME["LSTM_plain"], 17), "loop", target="openvino")
    (node,) = (node for node in nodes(loop) if node.op_type == "Loop")
    assert "Concat" not in {inner.op_type for body in bodies(node) for inner in body.node}


def emitted(rank: int, more: str = "", *, gemm: bool = True) -> list[str]:
    """The operators of a body of x @ w + x and what `more` asks for."""
    op = Ops(17, Names(()), "n", ir.DataType.FLOAT, Dialect(), finish=[gemms] if gemm else [])
    with op.body():
        shape = (1, 2, 2)[3 - rank :]
        x, w = op.body_input("x", ir.DataType.FLOAT, shape), op.body_input("w", ir.DataType.FLOAT, (2, 2))
        product = x @ w
        outputs: list[Tensor] = [x + product if more == "product second" else product + x]
        if more == "used twice":
            outputs.append(op.unary("Tanh", product))
        if more == "leaves the body":
            outputs.append(product)
        graph = op.body_graph([x, w], outputs)
    return [node.op_type for node in graph]


def test_a_product_and_its_sum_are_a_gemm_where_that_computes_the_same() -> None:
    assert emitted(2) == ["Gemm"]
    assert emitted(2, gemm=False) == ["MatMul", "Add"]
    assert emitted(3) == ["MatMul", "Add"]  # a Gemm is of rank 2
    for more in ("used twice", "leaves the body", "product second"):
        assert "Gemm" not in emitted(2, more)
