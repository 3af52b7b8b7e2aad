"""Models of issues in which an exporter fixed a size: as exporters write them, with smaller layers."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from commands import Command
from running import assert_close, run
from texts import parse

import rnn_lowering as rl
from rnn_lowering.opening import lone_export

WEIGHTS = """float[1,8,3] W = {1,2,3,4,5,-6,7,8,-9,1,2,3,4,-5,6,7,8,9,1,-2,3,4,5,6},
    float[1,8,2] R = {1,2,-3,4,5,6,7,-8,9,1,2,3,-4,5,6,7}"""


def backward(size: int) -> onnx.ModelProto:
    """pytorch/pytorch#191855: a manual bidirectional LSTM, whose last Expand has the frames of the export."""
    return parse(BACKWARD.replace("six = {6}", f"six = {{{size}}}"), 18)


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


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def test_191855_the_length_in_an_expand() -> None:
    model = backward(6)
    lengths, long = np.array([6, 4]), np.array([9, 5])
    with pytest.raises(Exception, match="Expand"):
        run(model, {"X": numbers(2, 9, 3), "lengths": long})
    also, sizes = [backward(19)], {"time": (6, 19)}
    new, report = rl.lower(model, dims=sizes, open_dims={"X:1": "time"}, also=also, full=True)
    assert "Concat node '-> of_b' in main graph: 6 is time" in report.notes
    x = numbers(2, 6, 3)
    assert_close(run(new, {"X": x, "lengths": lengths}), run(model, {"X": x, "lengths": lengths}), "float32")
    right = parse(BACKWARD.replace("(rows, six, k2)", "(rows, frames, k2)"), 18)
    feed = {"X": numbers(2, 9, 3), "lengths": long}
    assert_close(run(new, feed), run(right, feed), "float32")


def test_191855_asks_for_the_size_of_the_export() -> None:
    with pytest.raises(rl.OptionError, match=r"is open already.*say which: dims=\{\"time\": \?\}"):
        rl.lower(backward(6), open_dims={"X:1": "time"})


def test_191855_is_compared_at_the_sizes_of_the_exports(rnn_lower: Command, tmp_path: Path) -> None:
    for size in (6, 19):
        onnx.save(backward(size), tmp_path / f"{size}.onnx")
    options = ("--set-dim", "time=6,19", "--open-dim", "X:1=time", "--also", tmp_path / "19.onnx")
    said = rnn_lower(tmp_path / "6.onnx", tmp_path / "o.onnx", *options)
    assert "verified (onnxruntime): 6 runs" in said.out
    assert "verified at time = 6 and 19" in said.out


TILED = f"""g (float[7,{{N}},3] X) => (float[7,1,{{N}},2] Y)
    <float[1,1,2] h = {{0.5,-1}}, int64[3] times = {{1,{{N}},1}}, {WEIGHTS}> {{
    a = Tile (h, times) Y = LSTM <hidden_size = 2> (X, W, R, "", "", a, a) }}"""
"""llvm/torch-mlir#4741: the states of a batch are repeated to a shape with its size."""


def test_4741_states_of_a_batch() -> None:
    def tiled(rows: int) -> onnx.ModelProto:
        return parse(TILED.replace("{N}", str(rows)), 17)

    new = rl.lower(tiled(5), open_dims={"X:1": "N"}, also=[tiled(12)])
    for rows in (1, 3, 20):
        given = {"X": numbers(7, rows, 3)}
        assert_close(run(new, given), run(tiled(rows), given), "float32")


def test_an_axis_that_was_open_stays_open() -> None:
    def net(size: int) -> onnx.ModelProto:
        return parse(
            f"""g (float[batch,{size},6] X) => (float[batch,{size},6] Y)
            <int64[4] s = {{0,{size},2,3}}, int64[3] u = {{0,{size},6}}> {{
            r = Reshape (X, s) v = Transpose <perm = [0,2,1,3]> (r) w = Transpose <perm = [0,2,1,3]> (v)
            Y = Reshape (w, u) }}""",
            17,
        )

    new = rl.lower(net(11), open_dims={"X:1": "t"}, also=[net(160)])
    assert [d.dim_param or d.dim_value for d in new.graph.input[0].type.tensor_type.shape.dim] == ["batch", "t", 6]
    assert [d.dim_param or d.dim_value for d in new.graph.output[0].type.tensor_type.shape.dim] == ["batch", "t", 6]
    x = numbers(3, 7, 6)
    assert_close(run(new, {"X": x}), {"Y": x}, "float32")


# Axes that are declared open, though the model runs at one size only

CLOSED = "'time' is declared open, but the model fits time = 6 only: to open it, export the net at another size too"


def test_191855_an_axis_that_is_not_open_is_said(rnn_lower: Command, tmp_path: Path) -> None:
    onnx.save(backward(6), tmp_path / "m.onnx")
    report = tmp_path / "report.json"
    said = rnn_lower(tmp_path / "m.onnx", tmp_path / "o.onnx", "--report", report)
    assert CLOSED in said.out
    assert CLOSED in json.loads(report.read_text())["verification"]["reason"]
    assert CLOSED in rnn_lower(tmp_path / "m.onnx", "--list").out


def test_an_axis_that_is_open_is_not_said_to_be_closed(rnn_lower: Command, tmp_path: Path) -> None:
    right = parse(BACKWARD.replace("(rows, six, k2)", "(rows, frames, k2)"), 18)
    onnx.save(right, tmp_path / "m.onnx")
    assert "declared open" not in rnn_lower(tmp_path / "m.onnx", "--list").out
    assert "declared open" not in rnn_lower(tmp_path / "m.onnx", tmp_path / "o.onnx").out


FROZEN = """g (float[batch,time,6] X) => (float[batch,50,6] Y) <int64[3] s = {50,-1,6}> {
    steps = Transpose <perm = [1,0,2]> (X) y = Reshape (steps, s) Y = Transpose <perm = [1,0,2]> (y) }"""


@pytest.mark.parametrize("steps", [50, 48], ids=["no tried size is a multiple", "some tried sizes are multiples"])
def test_a_reshape_to_frozen_steps_that_would_give_the_batch_another_size(
    rnn_lower: Command, tmp_path: Path, steps: int
) -> None:
    onnx.save(parse(FROZEN.replace("50", str(steps)), 17), tmp_path / "m.onnx")
    closed = f"'time' is declared open, but the model fits time = {steps} only: to open it, export the net"
    assert closed in rnn_lower(tmp_path / "m.onnx", "--list").out
    with pytest.raises(rl.UnsupportedError, match=f"is not valid at these sizes: .*; {closed}"):
        rl.lower(tmp_path / "m.onnx", dims={"time": 7, "batch": 1})


def test_a_size_that_fits_is_named_where_the_batch_takes_what_is_left() -> None:
    """As torch exports attention behind an LSTM: the shapes behind the Reshape follow from the input."""
    text = """g (float[batch,time,6] X) => (float[batch,time,6] Y) <int64[3] s = {30,-1,6}> {
        steps = Transpose <perm = [1,0,2]> (X) y = Reshape (steps, s) shape = Shape (X) Y = Reshape (y, shape) }"""
    with pytest.raises(rl.UnsupportedError, match=r'that the model supports, such as dims={"time": 30}$'):
        rl.lower(parse(text, 17), dims={"batch": 1, "time": 20})


def test_a_model_of_many_nodes_is_not_tried_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lone_export, "_MOST_NODES", 1)
    with pytest.raises(rl.UnsupportedError, match=r"give sizes that the model supports$"):
        rl.lower(parse(FROZEN, 17), dims={"time": 7, "batch": 1})


OPEN = {
    "steps and rows in one axis": "(float[time,batch,6] X) => (float[pairs,2,6] Y) <int64[3] s = {-1,2,6}> "
    "{ Y = Reshape (X, s) }",
    "an output that is declared with the name of another axis": "(float[batch,6,time] X) => (float[batch,batch] Y) "
    "<int64[2] s = {0,-1}> { Y = Reshape (X, s) }",
    "an output that is declared with another rank": "(float[batch,time,6] X) => (float[time,batch,5] Y) "
    "<int64[2] s = {0,-1}, int64[1] k0 = {0}, int64[1] k5 = {5}, int64[1] k1 = {1}> "
    "{ rows = Reshape (X, s) Y = Slice (rows, k0, k5, k1) }",
    "an output of five rows that is declared to have the batch": "(float[batch,time,6] X) => (float[batch,6] Y) "
    "<int64[1] k1 = {1}, int64[2] of = {5,6}> { sum = ReduceMax <axes = [0,1], keepdims = 0> (X) "
    "Y = Expand (sum, of) }",
}


@pytest.mark.parametrize("name", OPEN)
def test_axes_that_no_exporter_froze(name: str, rnn_lower: Command, tmp_path: Path) -> None:
    onnx.save(parse(f"g {OPEN[name]}", 17), tmp_path / "m.onnx")
    assert "declared open" not in rnn_lower(tmp_path / "m.onnx", "--list").out


def test_a_reshape_to_the_size_of_the_export() -> None:
    model = parse("g (float[time,32] X) => (float[20,32] Y) <int64[2] s = {20,32}> { Y = Reshape (X, s) }", 17)
    assert rl.lower(model) == model
    with pytest.raises(rl.OptionError, match="is open already"):
        rl.lower(model, open_dims={"X:0": "time"})


def test_a_declared_size_that_the_runs_contradict_is_opened(rnn_lower: Command, tmp_path: Path) -> None:
    text = f"""g (float[time,batch,3] X) => (float[11,1,batch,2] Y) <{WEIGHTS}> {{
        Y = LSTM <hidden_size = 2> (X, W, R) }}"""
    onnx.save(parse(text, 17), tmp_path / "m.onnx")
    said = rnn_lower(tmp_path / "m.onnx", tmp_path / "o.onnx")
    assert "opened declared sizes of outputs that the runs contradict: axis 0 of 'Y'" in said.out
    dims = onnx.load(tmp_path / "o.onnx").graph.output[0].type.tensor_type.shape.dim
    assert [dim.dim_param or dim.dim_value for dim in dims] == [0, 1, "batch", 2]
