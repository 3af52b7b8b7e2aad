"""A model with open axes is compared at other sizes than the original has, row by row or up to each row."""

from pathlib import Path

import onnx
import pytest
from commands import Command
from texts import parse

import rnn_lowering as rl

pytestmark = pytest.mark.usefixtures("workers_here")

LSTM = """float[1,8,3] W = {1,2,3,4,5,-6,7,8,-9,1,2,3,4,-5,6,7,8,9,1,-2,3,4,5,6},
    float[1,8,2] R = {1,2,-3,4,5,6,7,-8,9,1,2,3,-4,5,6,7}"""
TWO = LSTM.replace("[1,", "[2,").replace(",6}", ",6,1,2,3,4,5,-6,7,8,-9,1,2,3,4,-5,6,7,8,9,1,-2,3,4,5,6}")
TWO = TWO.replace(",6,7}", ",6,7,1,2,-3,4,5,6,7,-8,9,1,2,3,-4,5,6,7}")

COMPARED = {
    "frame by frame": "(float[1,4,3] X) => (float[1,4,3] Y) { Y = Relu (X) }",
    "up to each frame": f"""(float[4,1,3] X) => (float[4,1,1,2] Y) <{LSTM}> {{
        Y = LSTM <hidden_size = 2> (X, W, R) }}""",
    "lengths": f"""(float[4,2,3] X, int32[2] n) => (float[4,1,2,2] Y) <{LSTM}> {{
        Y = LSTM <hidden_size = 2> (X, W, R, "", n) }}""",
    "sums": """(float[1,4,3] X) => (float[1,4,3] Y) <int64 a = {1}> { Y = CumSum (X, a) }""",
    "axes that are merged and split": """(float[2,4,3] X) => (float[2,4,3] Y)
        <int64[2] s = {8,3}, float[3,3] w = {1,2,3,4,5,6,7,8,9}, int64[3] u = {2,4,3}> {
        r = Reshape (X, s) q = MatMul (r, w) Y = Reshape (q, u) }""",
    "a convolution": """(float[1,3,6] X) => (float[1,1,6] Y) <float[1,3,3] w = {1,2,3,4,5,6,7,8,9}> {
        Y = Conv <pads = [1,1]> (X, w) }""",
    "a convolution of the past": """(float[1,2,6] X) => (float[1,2,6] Y)
        <float[2,1,3] w = {1,2,3,4,5,6}, int64[6] p = {0,0,2,0,0,0}> {
        a = Pad (X, p) c = Conv <group = 2> (a, w) Y = Add (c, X) }""",
    "positions": """(float[1,4,2] X) => (float[1,4,2] Y)
        <int64 a = {0}, int64 n = {4}, int64 d = {1}, int64[2] ax = {0,2}> {
        e = Range (a, n, d) f = Cast <to = 1> (e) g = Unsqueeze (f, ax) Y = Add (X, g) }""",
    "frames without the last": """(float[1,4,2] X) => (float[1,3,2] Y)
        <int64[1] a = {0}, int64[1] b = {-1}, int64[1] c = {1}> { Y = Slice (X, a, b, c) }""",
    "a batch with attention": """(float[2,4,3] X) => (float[2,4,3] Y) { k = Transpose <perm = [0,2,1]> (X)
        s = MatMul (X, k) p = Softmax <axis = -1> (s) Y = MatMul (p, X) }""",
}
NOT_COMPARED = {
    "backward": f"(float[4,1,3] X) => (float[4,1,1,2] Y) <{LSTM}> {{"
    ' Y = LSTM <hidden_size = 2, direction = "reverse"> (X, W, R) }',
    "both ways": f"(float[4,1,3] X) => (float[4,2,1,2] Y) <{TWO}> {{"
    ' Y = LSTM <hidden_size = 2, direction = "bidirectional"> (X, W, R) }',
    "the last state": f"(float[4,1,3] X) => (float[1,1,2] Y) <{LSTM}> {{"
    " y, Y = LSTM <hidden_size = 2> (X, W, R) }",
    "attention to all": """(float[1,4,3] X) => (float[1,4,3] Y) { k = Transpose <perm = [0,2,1]> (X)
        s = MatMul (X, k) p = Softmax <axis = -1> (s) Y = MatMul (p, X) }""",
    "less the mean": """(float[1,4,3] X) => (float[1,4,3] Y) { m = ReduceMean <axes = [1]> (X) Y = Sub (X, m) }""",
    "sums from the end": """(float[1,4,3] X) => (float[1,4,3] Y) <int64 a = {1}> {
        Y = CumSum <reverse = 1> (X, a) }""",
    "times the number of frames": """(float[1,4,3] X) => (float[1,4,3] Y) {
        s = Shape (X) i = Constant <value = int64 {1}> () n = Gather (s, i) f = Cast <to = 1> (n)
        Y = Mul (X, f) }""",
}


def model_of(text: str) -> onnx.ModelProto:
    return parse(f"g {text}", 17 if "ReduceMean" in text else 18)


def axis(name: str, text: str) -> str:
    return "X:0" if "LSTM" in text or name == "a batch with attention" else "X:2" if "Conv" in text else "X:1"


@pytest.mark.parametrize("name", COMPARED)
def test_outputs_are_compared_at_other_sizes(name: str) -> None:
    model = model_of(COMPARED[name])
    opened = rl.lower(model, open_dims={axis(name, COMPARED[name]): "rows"})
    found = rl.verify(model, opened, runs=1)
    assert found.status == "verified", str(found)
    assert "output 'Y' compared at other sizes too" in found.reason
    place = int(axis(name, COMPARED[name])[-1])
    assert len({given.shape[place] for run in found.each_run for given in run.inputs if given.name == "X"}) == 3


@pytest.mark.parametrize("name", NOT_COMPARED)
def test_outputs_that_follow_from_all_rows_are_not_compared(name: str) -> None:
    model = model_of(NOT_COMPARED[name])
    found = rl.verify(model, rl.lower(model, open_dims={axis(name, NOT_COMPARED[name]): "rows"}), runs=1)
    assert found.status == "verified", str(found)
    assert "output 'Y' not compared at other sizes" in found.reason
    assert "too" not in found.reason


WRONG = {
    "the number of rows is added": (
        COMPARED["frame by frame"],
        """(float[1,rows,3] X) => (float[1,rows,3] Y) <float four = {4}> { s = Shape (X)
        i = Constant <value = int64 {1}> () n = Gather (s, i) f = Cast <to = 1> (n) d = Sub (f, four)
        r = Relu (X) Y = Add (r, d) }""",
        "rows = 2, output 'Y'",
    ),
    "rows in another order": (
        COMPARED["frame by frame"],
        """(float[1,rows,3] X) => (float[1,rows,3] Y) <int64[1] a = {4}, int64[1] z = {0}, int64[1] e = {9}> {
        f = Slice (X, z, a, o) b = Slice (X, a, e, o) c = Concat <axis = 1> (b, f) Y = Relu (c) }""".replace(
            "<int64[1] a", "<int64[1] o = {1}, int64[1] a"
        ),
        "rows = 7, output 'Y'",
    ),
    "rows that are left out": (
        COMPARED["frame by frame"],
        """(float[1,rows,3] X) => (float[1,m,3] Y) <int64[1] a = {4}, int64[1] z = {0}, int64[1] o = {1}> {
        f = Slice (X, z, a, o) Y = Relu (f) }""",
        "has shape [1, 4, 3], not [1, 7, 3]",
    ),
    "a row of a batch that reads another": (
        COMPARED["a batch with attention"].replace("2,4", "1,4"),
        """(float[rows,4,3] X) => (float[rows,4,3] Y) <int64[1] a = {0}> { k = Transpose <perm = [0,2,1]> (X)
        s = MatMul (X, k) p = Softmax <axis = -1> (s) q = MatMul (p, X)
        r = ReduceSum (q, a) t = Sub (r, q) Y = Add (q, t) }""",
        "rows = 2, output 'Y'",
    ),
    "no other size at all": (
        COMPARED["frame by frame"],
        """(float[1,rows,3] X) => (float[1,rows,3] Y) <float[1,4,3] z = {0,0,0,0,0,0,0,0,0,0,0,0}> {
        r = Relu (X) Y = Add (r, z) }""",
        "no other size of rows runs",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_model_that_is_right_at_one_size_only_fails(name: str) -> None:
    text, wrong, reason = WRONG[name]
    found = rl.verify(model_of(text), model_of(wrong), runs=1)
    assert found.status == "failed", str(found)
    assert reason in found.reason


def test_a_table_ends_at_one_of_the_sizes() -> None:
    model = model_of("""(float[1,4,1] X) => (float[1,4,1] Y) <float[5,1] t = {1,2,3,4,5}, int64[1] z = {0},
        int64[1] n = {4}> { p = Slice (t, z, n, z) Y = Add (X, p) }""")
    found = rl.verify(model, rl.lower(model, open_dims={"X:1": "rows"}), runs=1)
    assert found.status == "verified"
    assert "compared at other sizes too (rows = 2)" in found.reason
    assert "does not run with rows = 7" in found.reason


def test_the_command_compares_at_all_sizes(rnn_lower: Command, tmp_path: Path) -> None:
    onnx.save(model_of(COMPARED["up to each frame"]), tmp_path / "m.onnx")
    said = rnn_lower(tmp_path / "m.onnx", tmp_path / "o.onnx", "--open-dim", "X:0=t", "--open-dim", "X:1=b")
    assert "verified (onnxruntime): 7 runs" in said.out
    assert (
        "output 'Y' compared at other sizes too (t = 2, b = 1 / t = 7, b = 1 / t = 4, b = 2 / t = 7, b = 2)"
        in said.out
    )
