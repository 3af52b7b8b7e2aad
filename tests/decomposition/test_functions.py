"""The functions of basic operators, each run as it is written, compute what onnxruntime does for the operator."""

from typing import Any

import numpy as np
import pytest
from cases import Arrays
from commands import child
from paths import EXAMPLES
from running import assert_close, run
from texts import parse, random_feed

from rnn_lowering.decomposition import functions


def floats(**numbers: float) -> Arrays:
    return {name: np.array(number, np.float32) for name, number in numbers.items()}


OF_ROWS: Arrays = {
    name: np.array(numbers, np.int64)
    for name, numbers in {"zero": 0, "one": 1, "two": 2, "column": [-1, 1], "row": [1, -1], "rest": [-1]}.items()
}
FLOATS, LARGEST = "(float[3, 4] x) => (float[3, 4] y)", float(np.finfo(np.float32).max)
LIMITS = {"axes": np.array([1], np.int64)} | floats(least=-LARGEST, most=LARGEST)
LIMITS_17 = {"given": np.array([1]), "axes": [1]} | floats(least=-LARGEST, most=LARGEST)

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "gather": ("(float[2, 4] x, int64[2] i) => (float[2, 2] y) { y = Gather <axis = -1> (x, i) }", {"axis": 1}),
    "less": ("(float[3, 4] x, float[4] b) => (bool[3, 4] y) { y = Less (x, b) }", {}),
    "hard_sigmoid": (
        f"{FLOATS} {{ y = HardSigmoid <alpha = 0.4, beta = 0.3> (x) }}",
        floats(alpha=0.4, beta=0.3, zero=0, one=1),
    ),
    "selu": (
        f"{FLOATS} {{ y = Selu <alpha = 1.5, gamma = 0.7> (x) }}",
        floats(alpha=1.5, gamma=0.7, zero=0),
    ),
    "shrink": (
        f"{FLOATS} {{ y = Shrink <lambd = 0.3, bias = 0.2> (x) }}", floats(lambd=0.3, below=-0.3, bias=0.2, zero=0)
    ),
    "celu": (f"{FLOATS} {{ y = Celu <alpha = 0.7> (x) }}", floats(alpha=0.7)),
    "celu_of_any_alpha": (f"{FLOATS} {{ y = Celu <alpha = -1.5> (x) }}", floats(alpha=-1.5, zero=0, one=1)),
    "softplus": (f"{FLOATS} {{ y = Softplus (x) }}", floats(zero=0, one=1)),
    "log_sum_exp": (
        "(float[3, 4] x) => (float[3, 1] y) <int64[1] a = {1}> { y = ReduceLogSumExp (x, a) }", LIMITS
    ),
    "log_sum_exp_without_axes": (
        "(float[3, 4] x) => (float[3] y) <int64[1] a = {1}> { y = ReduceLogSumExp <keepdims = 0> (x, a) }", LIMITS
    ),
    "log_sum_exp_17": (
        "(float[3, 4] x) => (float[3, 1] y) <int64[1] a = {1}> { y = ReduceLogSumExp (x, a) }", LIMITS_17
    ),
    "log_sum_exp_17_without_axes": (
        "(float[3, 4] x) => (float[3] y) <int64[1] a = {1}> { y = ReduceLogSumExp <keepdims = 0> (x, a) }",
        LIMITS_17,
    ),
    "log_sum_17": (
        "(float[3, 4] x) => (float[3] y) <int64[1] a = {1}> { y = ReduceLogSum <keepdims = 0> (x, a) }",
        {"given": np.array([1]), "keepdims": 0},
    ),
    "log_softmax_17": (
        "(float[3, 4] x) => (float[3, 4] y) { y = LogSoftmax <axis = 0> (x) }",
        {"given": np.array([0]), "axes": [0]},
    ),
    "l1_17": (
        "(float[3, 4] x) => (float[3] y) <int64[1] a = {1}> { y = ReduceL1 <keepdims = 0> (x, a) }",
        {"given": np.array([1]), "keepdims": 0},
    ),
    "l2_17": (
        "(float[3, 4] x) => (float[3, 1] y) <int64[1] a = {1}> { y = ReduceL2 (x, a) }",
        {"given": np.array([1]), "keepdims": 1},
    ),
    "sum_square_17": (
        "(float[3, 4] x) => (float[1, 4] y) <int64[1] a = {0}> { y = ReduceSumSquare (x, a) }",
        {"given": np.array([0]), "keepdims": 1},
    ),
    "equal": ("(float[3] x, float[3] z) => (bool[3] y) { y = Equal (x, z) }", {}),
    "not_zero": ("(float[3] x) => (bool[3] y) { y = Cast <to = 9> (x) }", floats(zero=0)),
    "equal_booleans": ("(bool[3] c, bool[3] d) => (bool[3] y) { y = Equal (c, d) }", {}),
    "absolute": ("(float[3] x) => (float[3] y) { y = Abs (x) }", floats(zero=0)),
    "absolute_9": ("(float[3] x) => (float[3] y) { y = Abs (x) }", floats(zero=0)),
    "sign": ("(float[3] x) => (float[3] y) { y = Sign (x) }", floats(zero=0, one=1, minus=-1)),
    "negative": ("(float[3] x) => (float[3] y) { y = Neg (x) }", floats(zero=0)),
    "is_nan": ("(float[4] x) => (bool[4] y) { y = IsNaN (x) }", floats(zero=0)),
    "is_inf": ("(float[4] x) => (bool[4] y) { y = IsInf (x) }", floats(number=np.inf)),
    "is_equal": ("(float[4] x) => (bool[4] y) { y = IsInf <detect_negative = 0> (x) }", floats(number=np.inf)),
    "compress": (
        "(float[3, 2] x, bool[3] c) => (float[M, 2] y) { y = Compress <axis = 0> (x, c) }",
        {"flat": np.array([-1]), "axis": 0},
    ),
    "compress_numbers": (
        "(float[3, 2] x, bool[3] c) => (float[M] y) { y = Compress (x, c) }", {"flat": np.array([-1])}
    ),
    "product_as_sum": (
        "(float[5, 3, 4] x, float[4, 2] b) => (float[5, 3, 2] y) { y = MatMul (x, b) }",
        {"last": np.array([-1]), "before": np.array([-3]), "along": np.array([-2])},
    ),
    "integer_remainder": ("(int64[12] n, int64[12] d) => (int64[12] y) { y = Mod (n, d) }", {}),
    "signed_remainder": ("(float[3] x, float[3] z) => (float[3] y) { y = Mod <fmod = 1> (x, z) }", floats(zero=0)),
    "square": ("(float[3, 4] x) => (float[3, 4] y) { y = Mul (x, x) }", {}),
    "scatter_nd_sum": (
        "(float[2, 3, 2] x, int64[3, 2] j, float[3, 2] u) => (float[2, 3, 2] y)"
        " { y = ScatterND <reduction = 'add'> (x, j, u) }",
        {
            name: np.array(numbers)
            for name, numbers in {
                "sizes": [2, 3], "strides": [3, 1], "flat": [1, 3, 2], "below": [0], "last": [-1], "along": [1],
                "rows": range(6), "parts": [1, 3, 2], "whole": [6, 2], "shape": [2, 3, 2], "column": [-1, 1],
            }.items()
        } | floats(zero=0),
    ),
    "reverse_sequence": (
        "(float[7, 3, 2] x, int64[3] i) => (float[7, 3, 2] y) { y = ReverseSequence (x, i) }",
        OF_ROWS | {"others": np.array([2], np.int64)},
    ),
    "reverse_sequence_of_numbers": (
        "(float[7, 3] x, int64[3] i) => (float[7, 3] y) { y = ReverseSequence (x, i) }", OF_ROWS
    ),
    "reverse_sequence_of_rows": (
        """(float[3, 7] x, int64[3] i) => (float[3, 7] y)
        { y = ReverseSequence <time_axis = 1, batch_axis = 0> (x, i) }""",
        {"swap": [1, 0]},
    ),
    "scatter_sum": (
        """(float[4] x, int64[3] i, float[3] u) => (float[4] y)
        { y = ScatterElements <axis = 0, reduction = 'add'> (x, i, u) }""",
        {
            "rows": np.arange(4),
            "below": np.arange(-4, 0),
            "zero": np.zeros((), np.float32),
            "behind": np.array([1]),
            "along": np.array([0]),
        },
    ),
    "squeeze": (
        "(float[2, 1, 4] x) => (float[2, 4] y) <int64[1] a = {-2}> { y = Squeeze (x, a) }",
        {"axes": np.array([-2], np.int64), "given": np.array([1], np.int64)},
    ),
    "unsqueeze": (
        "(float[2, 4] x) => (float[2, 1, 4] y) <int64[1] a = {-2}> { y = Unsqueeze (x, a) }",
        {"axes": np.array([-2], np.int64), "given": np.array([1], np.int64)},
    ),
    "dft": (
        "(float[2, 2, 1] x) => (float[2, 2, 2] y) { y = DFT <axis = 1> (x) }",
        {
            "flat": np.array([0, 2], np.int64),
            "waves": np.array([[1, 0, 1, 0], [1, 0, -1, 0]], np.float32),  # x[0] + x[1] and x[0] - x[1]
            "parts": np.array([0, 2, 2], np.int64),
            "order": [0, 1, 2],
            "back": [0, 1, 2],
        },
    ),
    "stft": (
        "(float[2, 6, 1] x) => (float[2, 5, 2, 2] y) <int64 s = {1}, int64 n = {2}> { y = STFT (x, s, \"\", n) }",
        {
            "waves": np.array([[[1, 1]], [[1, -1]], [[0, 0]], [[0, 0]]], np.float32),
            "shape": np.array([0, 2, 2, -1], np.int64),
            "strides": [1],
        },
    ),
}  # fmt: skip
"""By function, a node of its operator, and what the function is given besides the node's inputs."""


@pytest.mark.parametrize("name", CASES)
def test_a_function_computes_its_operator(name: str) -> None:
    text, given = CASES[name]
    model = parse(f"g {text}".replace("'", '"'), opset=18)
    feed = random_feed(model) | ({"i": np.array([3, 1, 2], np.int64)} if "[3] i" in text else {})
    feed |= {"i": np.array([3, 1], np.int64)} if "[2] i" in text else {}
    feed |= {name: np.array([True, False, name == "c"]) for name in "cd" if f"bool[3] {name}" in text}
    feed |= {"j": np.array([[0, 2], [-1, 0], [0, -1]])} if "[3, 2] j" in text else {}
    feed |= {"x": np.array([1, np.nan, np.inf, -np.inf], np.float32)} if "bool[4] y" in text else {}
    feed |= {"n": np.arange(-6, 6), "d": np.array([3, -3, 4, -1] * 3)} if "int64[12] n" in text else {}
    y = getattr(functions, name)(*(feed[each.name] for each in model.graph.input), **given)
    assert_close({"y": y}, run(model, feed), "float32")


OLDER = {"squeeze_11": ("Squeeze", (2, 1, 4), (2, 4)), "unsqueeze_11": ("Unsqueeze", (2, 4), (2, 1, 4))}


@pytest.mark.parametrize("name", OLDER)
def test_a_function_of_older_operators(name: str) -> None:
    operator, before, after = OLDER[name]
    x = np.random.default_rng(0).standard_normal(before).astype(np.float32)
    sizes = [", ".join(map(str, shape)) for shape in (before, after)]
    text = f"g (float[{sizes[0]}] x) => (float[{sizes[1]}] y) {{ y = {operator} <axes = [-2]> (x) }}"
    assert_close({"y": getattr(functions, name)(x, given=[1])}, run(parse(text, opset=11), {"x": x}), "float32")


def test_every_function_is_tried() -> None:
    written = {name for name, value in vars(functions).items() if hasattr(value, "to_function_proto")}
    assert written == {*CASES, *OLDER}


@pytest.mark.few(1)
@pytest.mark.parametrize(("lowers", "imports"), [("", False), ("body_of(ir.node('Selu', [x]), 13, [one])", True)])
def test_onnxscript_is_imported_when_a_node_needs_it(lowers: str, imports: bool) -> None:
    code = f"""
import sys
from rnn_lowering.libraries import load_late
load_late()
import onnx_ir as ir, rnn_lowering as rl
from rnn_lowering.decomposition.formulas import Operand, body_of
rl.lower(sys.argv[1], target="tract")
x, one = ir.Value(name="x"), Operand(ir.DataType.FLOAT)
body_of(ir.node("HardSwish", [x]), 14, [one])
{lowers}
print("onnxscript" in sys.modules)
"""
    done = child(EXAMPLES / "model.onnx", code=code)
    assert done.stdout == f"{imports}\n", done.stderr
