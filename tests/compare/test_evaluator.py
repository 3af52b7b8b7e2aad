"""onnx's evaluator, as repaired, computes what onnxruntime does; where it does not, it is refused as a truth."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from evaluator_cases import DIFFERS, NodeCase, difference, node_cases
from running import run
from texts import parse

from rnn_lowering.compare.float64.evaluator import MISCOMPUTED, OPERATORS, evaluate_model

HELD = json.loads(DIFFERS.read_text())["differs"]


def test_what_differs_is_repaired_or_refused() -> None:
    repaired = {operator.__name__ for operator in OPERATORS if not operator.op_domain}
    assert HELD.keys() - MISCOMPUTED <= repaired
    assert {"Softmax", "BatchNormalization", "Resize"} <= HELD.keys()


@pytest.fixture(scope="module")
def cases() -> list[NodeCase]:
    return list(node_cases())


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore")
def test_onnxs_own_cases_of_all_opsets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cases: list[NodeCase]
) -> None:
    monkeypatch.setenv("ALLOW_RELEASED_ONNX_OPSET_ONLY", "0")
    found = {
        (case.name, case.since): difference(case, evaluate_model, tmp_path / "node.onnx")
        for case in cases
        if case.operator not in MISCOMPUTED
    }
    assert sum(text == "" for text in found.values()) > 2000
    assert {key: text for key, text in found.items() if text} == {}


BODY = """(int64 i, bool go, float[2] s) => (bool on, float[2] t, float[2] u) {
    on = Less (i, two) t = Mul (s, f) u = Add (t, f) }"""
NODES = {
    "Softmax over two axes": (12, "float[2,3,4] X", "Y = Softmax <axis = 1> (X)"),
    "Softmax without an axis": (9, "float[2,3,4] X", "Y = Softmax (X)"),
    "Softmax over an axis that counts from the end": (11, "float[2,3,4] X", "Y = Softmax <axis = -1> (X)"),
    "Softmax of today": (13, "float[2,3,4] X", "Y = Softmax <axis = 1> (X)"),
    "LogSoftmax over all axes": (10, "float[2,3,4] X", "Y = LogSoftmax <axis = 0> (X)"),
    "Hardmax over two axes": (12, "float[2,3,4] X", "Y = Hardmax (X)"),
    "BatchNormalization of opset 9": (9, "float[2,2,4] X", "Y = BatchNormalization (X, f, f, f, f)"),
    "BatchNormalization of opset 15": (15, "float[2,2,4] X", "Y = BatchNormalization (X, f, f, f, f)"),
    **{
        f"a Loop with {given or 'nothing'}": (
            17,
            "float[2] X",
            f"""last, rows = Loop <body = b {BODY}> ({", ".join(given.replace(" ", "").split("and"))}, X)
            Y = Add (rows, last)""",
        )
        for given in ("three and ", "three and yes", " and yes", " and ")
    },
    "an absent input behind an output that has no name": (
        13,
        "float[4,3,2] X",
        """W = Constant <value = float[1,6,2] {1,2,3,4,5,6,7,8,9,1,2,3}> ()  , h = GRU <hidden_size = 2> (X, W, W)
        half = Constant <value = float {0.5}> ()  Y = Clip (h, , half)""",
    ),
    "a Loop that ends by its condition": (
        17,
        "float[2] X",
        f"last, rows = Loop <body = b {BODY}> (, yes, X) Y = Add (rows, last)",
    ),
}


@pytest.mark.parametrize("name", NODES)
def test_the_evaluator_as_repaired(name: str, tmp_path: Path) -> None:
    opset, declared, nodes = NODES[name]
    model = parse(
        f"""main ({declared}) => (float[a,b] Y)
        <float[2] f = {{2, 3}}, int64 two = {{2}}, int64 three = {{3}}, bool yes = {{1}}> {{ {nodes} }}""",
        opset=opset,
        ir_version=8,
    )
    model.graph.output[0].type.tensor_type.ClearField("shape")
    onnx.save(model, tmp_path / "model.onnx")
    shape = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim]
    feed: Any = {"X": np.random.default_rng(0).standard_normal(shape).astype(np.float32)}
    found = evaluate_model(tmp_path / "model.onnx", feed)["0:0"]
    expected = run(model, feed, optimize=False)["Y"]
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_zeros_without_a_value_are_of_float64(tmp_path: Path) -> None:
    """Else a state of float32, and all that is computed of it."""
    model = parse("main () => (float[3] Y) <int64[1] n = {3}> { zeros = ConstantOfShape (n) Y = Exp (zeros) }")
    onnx.save(model, tmp_path / "model.onnx")
    assert evaluate_model(tmp_path / "model.onnx", {})["0:0"].dtype == np.float64
