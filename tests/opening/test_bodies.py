"""Open sizes in the branches of an If and in the body of a Scan."""

from typing import Any

import numpy as np
import onnx
import pytest
from running import assert_close, run
from texts import parse

import rnn_lowering as rl

IF = """g (float[1,4,6] X, bool[1] c) => (float[1,4,6] Y) <int64[4] s = {1,4,2,3}, int64[3] u = {1,4,6},
    float[1,4,1] zeros = {0,0,0,0}> {
    r = Reshape (X, s)
    y = If (c) <then_branch = a () => (float[1,4,6] p) { h = Relu (r) g = Reshape (h, u) p = Add (g, zeros) },
        else_branch = b () => (float[1,4,6] q) { k = Neg (r) q = Reshape (k, u) }>
    Y = Add (y, X) }"""

SCAN = """g (float[4,1,2] X) => (float[1,2] last, float[4,1,2] Y) <float[1,2] h = {0,0}, int64[3] t = {4,1,2},
    float one = {1}> {
    x = Expand (one, t) z = Mul (X, x)
    last, Y = Scan <num_scan_inputs = 1, body = b (float[1,2] s, float[1,2] r) => (float[1,2] s1, float[1,2] y) {
        s1 = Add (s, r) y = Tanh (s1) }> (h, z) }"""

GATED = """g (float[4,1,2] X) => (float[4,1,2] Y) <float[1,2] h = {0,0}, float[1,2] k = {0.5,0.25}> {
    a, Y = Scan <num_scan_inputs = 1, body = b (float[1,2] s, float[1,2] r) => (float[1,2] s1, float[1,2] y) {
        g = Mul (s, k) s1 = Add (g, r) y = Tanh (s1) }> (h, X) }"""

TWO_SCANS = """g (float[4,1,2] X) => (float[4,1,2] Y) <float[1,2] h = {0,0}, int64[3] t = {4,1,2}> {
    zeros = ConstantOfShape (t)
    a, Y = Scan <num_scan_inputs = 2, body = b (float[1,2] s, float[1,2] r, float[1,2] q) =>
        (float[1,2] s1, float[1,2] y) { s0 = Add (s, r) s1 = Add (s0, q) y = Tanh (s1) }> (h, X, zeros) }"""


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("branch", [True, False])
def test_branches_of_an_if(branch: bool) -> None:
    model = parse(IF, 17)
    new = rl.lower(model, open_dims={"X:1": "t", "X:0": "b"})
    onnx.checker.check_model(new, full_check=True)
    x, c = numbers(3, 4, 6), np.array([branch])
    rows = [run(model, {"X": x[n : n + 1], "c": c})["Y"] for n in range(3)]
    assert_close(run(new, {"X": x, "c": c}), {"Y": np.concatenate(rows)}, "float32")
    longer = np.concatenate([x, x, x], 1)
    assert_close(run(new, {"X": longer, "c": c}), {"Y": np.concatenate([np.concatenate(rows)] * 3, 1)}, "float32")


@pytest.mark.parametrize("text", [SCAN, GATED, TWO_SCANS])
@pytest.mark.parametrize("form", ["keep", "loop"])
def test_rows_of_a_scan(text: str, form: Any) -> None:
    model = parse(text, 17)
    new = rl.lower(model, form, open_dims={"X:0": "t", "X:1": "b"})
    onnx.checker.check_model(new, full_check=True)
    x = numbers(4, 3, 2)
    rows = [run(model, {"X": x[:, n : n + 1]}) for n in range(3)]
    whole = {name: np.concatenate([row[name] for row in rows], -2) for name in rows[0]}
    assert_close(run(new, {"X": x}), whole, "float32")
    assert_close({"Y": run(new, {"X": x[:3]})["Y"]}, {"Y": whole["Y"][:3]}, "float32")
    assert_close({"Y": run(new, {"X": np.concatenate([x, x])})["Y"][:4]}, {"Y": whole["Y"]}, "float32")


def test_a_number_in_a_branch_is_named_with_its_scope() -> None:
    _, report = rl.lower(parse(IF, 17), open_dims={"X:1": "t"}, full=True)
    assert "Reshape node '-> q' in main graph > -> y (If) else_branch: 4 is t" in report.notes
