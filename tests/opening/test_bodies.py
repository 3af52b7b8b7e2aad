"""Numbers in the branches of an If and in the bodies of Scans and Loops follow a size too."""

from typing import Any

import onnx
import pytest
from frozen_nets import feeds
from running import assert_close, run
from texts import parse

import rnn_lowering as rl

IF = """g (float[1,{T},6] X, bool[1] c) => (float[1,{T},6] Y)
    <int64[4] s = {{1,{T},2,3}}, int64[3] u = {{1,{T},6}}> {{
    r = Reshape (X, s)
    y = If (c) <then_branch = a () => (float[1,{T},6] p) {{ h = Relu (r) p = Reshape (h, u) }},
        else_branch = b () => (float[1,{T},6] q) {{ k = Neg (r) q = Reshape (k, u) }}>
    Y = Add (y, X) }}"""

SCAN = """g (float[{T},1,2] X) => (float[1,2] last, float[{T},1,2] Y) <float[1,2] h = {{0,0}},
    int64[3] t = {{{T},1,2}}, float one = {{1}}> {{
    x = Expand (one, t) z = Mul (X, x)
    last, Y = Scan <num_scan_inputs = 1, body = b (float[1,2] s, float[1,2] r) => (float[1,2] s1, float[1,2] y) {{
        s1 = Add (s, r) y = Tanh (s1) }}> (h, z) }}"""

MEAN_IN_A_BODY = """g (float[{T},1,2] X) => (float[1,2] last, float[{T},1,2] Y) <float[1,2] h = {{0,0}},
    float n = {{{T}}}> {{
    last, Y = Scan <num_scan_inputs = 1, body = b (float[1,2] s, float[1,2] r) => (float[1,2] s1, float[1,2] y) {{
        q = Div (r, n) s1 = Add (s, q) y = Identity (s1) }}> (h, X) }}"""

LOOP = """g (float[{T},2] X) => (float[2] Y) <int64 n = {{{T}}}, bool yes = {{1}}, float[2] zero = {{0,0}}> {{
    Y = Loop (n, yes, zero) <body = b (int64 i, bool c, float[2] a) => (bool d, float[2] e) {{
        d = Identity (c) r = Gather (X, i) t = Mul (a, a) u = Add (r, t) e = Tanh (u) }}> }}"""

ROWS_IN_A_LOOP = """g (float[{T},2] X) => (float[{T},2] Y)
    <int64 n = {{3}}, bool yes = {{1}}, int64[2] s = {{{T},2}}> {{
    Y = Loop (n, yes, X) <body = b (int64 i, bool c, float[{T},2] a) => (bool d, float[{T},2] e) {{
        d = Identity (c) t = Tanh (a) e = Reshape (t, s) }}> }}"""

TEXTS = {"if": IF, "scan": SCAN, "mean": MEAN_IN_A_BODY, "loop": LOOP, "rows": ROWS_IN_A_LOOP}


def net(name: str, size: int) -> onnx.ModelProto:
    return parse(TEXTS[name].replace("{T}", str(size)).replace("{{", "{").replace("}}", "}"), 17)


def opened(name: str, to: Any = "keep") -> onnx.ModelProto:
    axis = "X:1" if name == "if" else "X:0"
    return rl.lower(net(name, 11), to, open_dims={axis: "t"}, also=[net(name, 160)])


@pytest.mark.parametrize("to", ["keep", "loop"])
@pytest.mark.parametrize("name", TEXTS)
def test_numbers_in_bodies(name: str, to: Any) -> None:
    new = opened(name, to)
    onnx.checker.check_model(new, full_check=True)
    for size in (3, 24, 200):
        truth = net(name, size)
        given = feeds(truth)
        assert_close(run(new, given), run(truth, given), "float32")


def test_a_number_in_a_branch_is_named_with_its_scope() -> None:
    _, report = rl.lower(net("if", 11), "keep", open_dims={"X:1": "t"}, also=[net("if", 160)], full=True)
    assert "Reshape node '-> q' in main graph > -> y (If) else_branch: 11 is t" in report.notes
