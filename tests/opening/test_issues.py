"""Models of issues in which an exporter fixed a size: as exporters write them, with smaller layers."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from commands import Command
from running import assert_close, run
from texts import parse

import rnn_lowering as rl

WEIGHTS = """float[1,8,3] W = {1,2,3,4,5,-6,7,8,-9,1,2,3,4,-5,6,7,8,9,1,-2,3,4,5,6},
    float[1,8,2] R = {1,2,-3,4,5,6,7,-8,9,1,2,3,-4,5,6,7}"""

BACKWARD = f"""g (float[batch,time,3] X, int64[batch] lengths) => (float[batch,time,4] Y)
    <int64 zero = {{0}}, int64 one = {{1}}, int64[1] k0 = {{0}}, int64[1] k1 = {{1}}, int64[1] k2 = {{2}},
     int64[1] k3 = {{3}}, int64[1] six = {{6}}, float nothing = {{0}}, int64[3] merged = {{0,0,2}}, {WEIGHTS}> {{
    frames = Shape <start = 1, end = 2> (X) count = Squeeze (frames) rows = Shape <start = 0, end = 1> (lengths)
    steps = Range (zero, count, one) each = Unsqueeze (steps, k0) n = Unsqueeze (lengths, k1)
    inside = Less (each, n) last = Sub (n, one) turned = Sub (last, each)
    where = Where (inside, turned, each) index = Unsqueeze (where, k2)
    of_states = Concat <axis = 0> (k1, rows, k2) states = Expand (nothing, of_states)
    x = Transpose <perm = [1,0,2]> (X)
    f = LSTM <hidden_size = 2> (x, W, R, "", "", states, states)
    f1 = Transpose <perm = [0,2,1,3]> (f) f2 = Reshape (f1, merged) forward = Transpose <perm = [1,0,2]> (f2)
    of_x = Concat <axis = 0> (rows, frames, k3) i = Expand (index, of_x) backward = GatherElements <axis = 1> (X, i)
    y = Transpose <perm = [1,0,2]> (backward)
    b = LSTM <hidden_size = 2> (y, W, R, "", "", states, states)
    b1 = Transpose <perm = [0,2,1,3]> (b) b2 = Reshape (b1, merged) b3 = Transpose <perm = [1,0,2]> (b2)
    of_b = Concat <axis = 0> (rows, six, k2) j = Expand (index, of_b) b4 = GatherElements <axis = 1> (b3, j)
    Y = Concat <axis = -1> (forward, b4) }}"""
"""pytorch/pytorch#191855: a manual bidirectional LSTM, whose last Expand has the 6 frames of the export."""


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def test_191855_the_length_in_an_expand() -> None:
    model = parse(BACKWARD, 18)
    lengths, long = np.array([6, 4]), np.array([9, 5])
    with pytest.raises(Exception, match="Expand"):
        run(model, {"X": numbers(2, 9, 3), "lengths": long})
    new, report = rl.lower(model, dims={"time": 6}, open_dims={"X:1": "time"}, full=True)
    assert "Expand node '-> j' in main graph: 6 is time" in report.notes
    x = numbers(2, 6, 3)
    assert_close(run(new, {"X": x, "lengths": lengths}), run(model, {"X": x, "lengths": lengths}), "float32")
    right = parse(BACKWARD.replace("(rows, six, k2)", "(rows, frames, k2)"), 18)
    feed = {"X": numbers(2, 9, 3), "lengths": long}
    assert_close(run(new, feed), run(right, feed), "float32")


def test_191855_asks_for_the_size_of_the_export() -> None:
    with pytest.raises(rl.OptionError, match=r"is open already.*say which: dims=\{\"time\": \?\}"):
        rl.lower(parse(BACKWARD, 18), open_dims={"X:1": "time"})


def test_191855_is_compared_at_the_size_of_the_export(rnn_lower: Command, tmp_path: Path) -> None:
    onnx.save(parse(BACKWARD, 18), tmp_path / "m.onnx")
    options = ("--set-dim", "time=6", "--open-dim", "X:1=time")
    said = rnn_lower(tmp_path / "m.onnx", tmp_path / "o.onnx", *options)
    assert "verified (onnxruntime): 5 runs" in said.out
    assert "output 'Y' not compared at other sizes: each element may follow from all rows" in said.out


ONE_ROW = f"""g (float[T,N,3] X) => (float[T,1,N,2] Y) <float[1,1,2] h = {{0,0}}, {WEIGHTS}> {{
    Y = LSTM <hidden_size = 2> (X, W, R, "", "", h, h) }}"""
"""onnx/onnx#3182: the states of one row, though the batch is declared open."""

TILED = f"""g (float[5,1,3] X) => (float[5,1,1,2] Y)
    <float[1,1,2] h = {{0.5,-1}}, int64[3] times = {{1,1,1}}, int64[3] s = {{1,1,2}}, {WEIGHTS}> {{
    a = Expand (h, s) Y = LSTM <hidden_size = 2> (X, W, R, "", "", a, a) }}"""
"""llvm/torch-mlir#4741: the states of a batch of 1 are repeated to a shape with this 1."""


@pytest.mark.parametrize(("text", "dims"), [(ONE_ROW, {"N": 1}), (TILED, {})])
def test_3182_and_4741_states_of_one_row(text: str, dims: dict[str, int]) -> None:
    model = parse(text, 17)
    x = numbers(5, 3, 3)
    with pytest.raises(Exception, match=r"nvalid|must have shape"):
        run(model, {"X": x})
    new = rl.lower(model, dims=dims, open_dims={"X:1": "N"})
    rows = [run(model, {"X": x[:, n : n + 1]})["Y"] for n in range(3)]
    assert_close(run(new, {"X": x}), {"Y": np.concatenate(rows, 2)}, "float32")


def test_3182_another_axis_says_that_the_batch_is_one() -> None:
    model = parse(ONE_ROW.replace("float[T,", "float[7,"), 17)
    with pytest.raises(rl.UnsupportedError) as error:
        rl.lower(model, open_dims={"X:0": "T"})
    assert "runs at N = 1 only" in str(error.value)
    assert 'dims={"N": 1}, open_dims={"X:1": "N"}' in str(error.value)
    rl.lower(model, dims={"N": 1}, open_dims={"X:0": "T", "X:1": "N"})


def test_an_axis_that_was_open_stays_open() -> None:
    model = parse(
        """g (float[batch,4,6] X) => (float[batch,4,6] Y) <int64[4] s = {0,4,2,3}, int64[3] u = {0,4,6}> {
        r = Reshape (X, s) v = Transpose <perm = [0,2,1,3]> (r) w = Transpose <perm = [0,2,1,3]> (v)
        Y = Reshape (w, u) }""",
        17,
    )
    new = rl.lower(model, open_dims={"X:1": "t"})
    assert [d.dim_param or d.dim_value for d in new.graph.input[0].type.tensor_type.shape.dim] == ["batch", "t", 6]
    x = numbers(3, 7, 6)
    assert_close(run(new, {"X": x}), {"Y": x}, "float32")
    assert "output 'Y' compared at other sizes too (t = 2 / t = 7)" in rl.verify(model, new).reason


def test_positions_that_were_folded_count_on() -> None:
    model = parse(
        """g (int64[1,4] X) => (float[1,4,2] Y)
        <int64[1,4] p = {0,1,2,3}, float[9,2] w = {1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7,8,9}> {
        a = Gather (w, X) b = Gather (w, p) Y = Add (a, b) }""",
        17,
    )
    new = rl.lower(model, open_dims={"X:1": "t"})
    x = np.array([[3, 1, 4, 1, 5, 8, 2]])
    table = np.array([1, 2, 3, 4, 5, 6, 7, 8, 9] * 2, np.float32).reshape(9, 2)
    assert_close(run(new, {"X": x}), {"Y": table[x] + table[None, :7]}, "float32")


def test_a_table_of_integers_that_does_not_count_is_refused() -> None:
    model = parse("g (int64[1,4] X) => (int64[1,4] Y) <int64[1,4] p = {0,1,2,4}> { Y = Add (X, p) }", 17)
    with pytest.raises(rl.UnsupportedError, match="gets a constant 'p' with 4 on axis 1"):
        rl.lower(model, open_dims={"X:1": "t"})
