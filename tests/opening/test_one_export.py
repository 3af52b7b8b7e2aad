"""One export is enough where no node of it knows a size; else it is refused, with the way out."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from commands import Command
from frozen_nets import CONV, LSTM, NETS, W66, axes_of_t, feeds, made
from running import run

import rnn_lowering as rl
from rnn_lowering.facts.constants import constant_of
from rnn_lowering.opening import lone_export

_0 = np.array([0])
TURNED = "t = Transpose <perm = [0,2,1]> (X)"
NUMBERS = np.random.default_rng(1).normal(size=9)
LAYERS = {"m": W66, "n": W66[0], "g": np.ones(6), "k": np.zeros(6)}
ENOUGH = {
    "an LSTM": ("X:0", "float[{},2,6] X", "float[{},1,2,4] Y", "Y, h = LSTM <hidden_size = 4> (X, W, R)", LSTM),
    "an LSTM of a batch of 1": (
        "X:1",
        "float[5,{},6] X",
        "float[5,1,{},4] Y",
        "Y, h = LSTM <hidden_size = 4> (X, W, R)",
        LSTM,
    ),
    "an LSTM and a layer": (
        "X:0",
        "float[{},2,6] X",
        "float[{},2,6] Y",
        "y, h = LSTM <hidden_size = 4> (X, W, R) s = Squeeze (y, a) Y = MatMul (s, m)",
        {**LSTM, "a": np.array([1]), "m": W66[:4]},
    ),
    "layers, means and a maximum": (
        "X:1",
        "float[2,{},6] X",
        "float[2,6] Y",
        "a = MatMul (X, m) b = Softmax <axis = 1> (a) c = Add (b, X) d = ReduceMean <axes = [1]> (c) e = Mul (X, d)"
        " Y = ReduceMax <axes = [1], keepdims = 0> (e)",
        LAYERS,
    ),
    "products of rows": (
        "X:1",
        "float[2,{},6] X",
        "float[2,6,6] Y",
        f"{TURNED} Y = MatMul (t, X)",
        {},
    ),
    "a convolution that keeps the size, and the last row": (
        "X:2",
        "float[2,6,{}] X",
        "float[2,6] Y",
        "a = Conv <pads = [2,2], dilations = [2]> (X, w) b = Conv <pads = [2,0], strides = [1]> (a, w)"
        " Y = Gather <axis = 2> (b, last)",
        {"w": CONV, "last": np.array(-1)},
    ),
    "states of the batch": (
        "X:0",
        "float[{},2,6] X",
        "float[{},1,2,4] Y",
        "s = Shape (X) n = Gather (s, k) u = Unsqueeze (n, a) c = Concat <axis = 0> (one, u, four)"
        " h = Expand (zero, c) Y, l = LSTM <hidden_size = 4> (X, W, R, , , h, h)",
        {**LSTM, "k": np.array(1), "a": _0, "one": _0 + 1, "four": _0 + 4, "zero": np.float32(0)},
    ),
    "layers": (
        "X:1",
        "float[2,{},6] X",
        "float[2,{},6] Y",
        "a = MatMul (X, m) b = Add (a, n) c = Relu (b) d = LayerNormalization (c, g, k) Y = Add (d, X)",
        LAYERS,
    ),
}


def net(name: str, size: int) -> tuple[str, onnx.ModelProto]:
    axis, given, returned, nodes, constants = ENOUGH[name]
    return axis, made(given.format(size), returned.format(size), nodes, **constants)


@pytest.mark.parametrize("name", ENOUGH)
def test_one_export_is_enough(name: str) -> None:
    axis, model = net(name, 1 if "of 1" in name else 20)
    new, report = rl.lower(model, "keep", open_dims={axis: "time"}, full=True)
    assert report.notes == ["assumed: no weight follows from time, which one export does not show"]
    for size in (3, 20, 51):
        _, truth = net(name, size)
        given = feeds(truth)
        for output, array in run(truth, given).items():
            np.testing.assert_allclose(run(new, given)[output], array, 1e-5, 1e-5)


def test_the_line_says_what_one_export_does_not_show(rnn_lower: Command, tmp_path: Path) -> None:
    _, model = net("layers", 20)
    onnx.save(model, tmp_path / "m.onnx")
    said = rnn_lower(tmp_path / "m.onnx", tmp_path / "o.onnx", "--open-dim", "X:1=time")
    assert "verified at time = 20;" in said.out
    assert said.out.count("assumed: no weight follows from time") == 1
    alone = rnn_lower(tmp_path / "m.onnx", tmp_path / "o.onnx", "--open-dim", "X:1=time", "--force", "--verify", 0)
    assert alone.out.count("assumed: no weight follows from time") == 1


FROZEN = sorted(NETS.keys() - {"unrolled", "a_slice_that_is_left_out"})
"""Nets with numbers that follow the size: not those whose exporter left something out."""


@pytest.mark.parametrize("name", FROZEN)
def test_a_number_that_may_be_a_size_is_refused(name: str) -> None:
    with pytest.raises(rl.UnsupportedError, match="add the larger one: also") as caught:
        rl.lower(NETS[name](24), "keep", open_dims=axes_of_t(NETS[name], 24, 37))
    assert caught.value.page == "frozen-axis.md"


NOT_ENOUGH = {
    "an epsilon of 1 / T": "Y = LayerNormalization <epsilon = 0.04166> (X, ones)",
    "a bias of T % 8": "Y = Add (X, zeros)",
    "T as the number of columns": "Y = MatMul (X, square)",
    "a diagonal": "Y = MatMul (X, diagonal)",
    "the slope of a LeakyRelu": "Y = LeakyRelu <alpha = 0.04166> (X)",
    "weights behind a sum": "s = ReduceSum <keepdims = 1> (X, axis) Y = MatMul (s, weights)",
    "an operator without a schema": "z = ConstantFill <value = 0.04166> (axis) Y = Add (X, z)",
    "a pool": f"{TURNED} Y = MaxPool <kernel_shape = [2], strides = [2]> (t)",
    "pads that end at the last row": f"{TURNED} Y = Conv <strides = [2], pads = [0,0]> (t, two)",
    "pads behind": f"{TURNED} Y = Conv <pads = [0,2]> (t, three)",
    "a number of a branch": "m = ReduceMax <keepdims = 0> (X) c = Greater (m, m) s = If (c) <then_branch = "
    "t () => (float t) { t = Constant <value_float = 24.0> () }, else_branch = e () => (float e) "
    "{ e = Constant <value_float = 2.0> () }> Y = Div (X, s)",
}


@pytest.mark.parametrize("name", NOT_ENOUGH)
def test_what_may_follow_from_the_size_is_refused(name: str) -> None:
    constants = {
        "ones": np.ones(24),
        "zeros": np.zeros(24),
        "square": np.random.default_rng(0).normal(size=(24, 24)),
        "diagonal": np.eye(24) / 24,
        "axis": np.array([1]),
        "weights": np.random.default_rng(0).normal(size=(24, 6)),
        "two": np.random.default_rng(0).normal(size=(6, 24, 2)),
        "three": np.random.default_rng(0).normal(size=(6, 24, 3)),
    }
    model = made("float[2,24,24] X", "float[a,b,c] Y", NOT_ENOUGH[name], 17, **constants)
    with pytest.raises(rl.UnsupportedError, match="one export does not tell"):
        rl.lower(model, "keep", open_dims={"X:1": "time"})


EXPONENT = "e = Exp (X) p = ReduceProd <axes = [1], keepdims = 0> (e) Y = Pow (p, k)"
LOOKS_LIKE_WEIGHTS: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "the exponent of a geometric mean": ("X:1", "float[2,12,6] X", EXPONENT, {"k": np.float32(1 / 12)}),
    "multiples of a frequency": ("X:1", "float[2,24,9] X", "Y = Mul (X, k)", {"k": np.arange(9) * 6.28 / 24}),
    "powers of a decay": ("X:1", "float[2,24,9] X", "Y = Mul (X, k)", {"k": np.exp(-np.arange(9) / 24)}),
    "steps up to T": ("X:1", "float[2,12,9] X", "Y = Mul (X, k)", {"k": np.linspace(0.5, 12.25, 9)}),
    "the first row of a table": ("X:1", "float[2,1,9] X", "Y = Add (X, k)", {"k": NUMBERS[None]}),
    "a table of T + 1 rows": (
        "X:1",
        "float[2,12,1] X",
        "i = ArgMax <axis = 1, keepdims = 0> (X) Y = Gather (k, i)",
        {"k": np.random.default_rng(2).normal(size=(13, 9))},
    ),
    "a kernel of 2 T - 1": (
        "X:2",
        "float[2,1,12] X",
        "Y = Conv <pads = [11,11]> (X, k)",
        {"k": np.random.default_rng(2).normal(size=(1, 1, 23))},
    ),
    "weights behind a product over time": (
        "X:0",
        "float[24,9] X",
        "g = Gemm <transA = 1> (X, X) Y = Mul (g, k)",
        {"k": NUMBERS},
    ),
    "weights behind a Scan over time": (
        "X:0",
        "float[24,9] X",
        "s = Scan <num_scan_inputs = 1, body = b (float[9] h, float[9] x) => (float[9] g) { g = Add (h, x) }>"
        " (k, X) Y = Mul (s, k)",
        {"k": NUMBERS},
    ),
    "states of all rows": (
        "X:1",
        "float[2,12] X",
        "r = Reshape (X, all) u = Unsqueeze (r, ends) Y, h = LSTM <hidden_size = 4> (u, W, R, , , z)",
        {
            "W": LSTM["W"][:, :, :1],
            "R": LSTM["R"],
            "z": np.zeros((1, 24, 4)),
            "all": _0 - 1,
            "ends": np.array([0, 2]),
        },
    ),
}


@pytest.mark.parametrize("name", LOOKS_LIKE_WEIGHTS)
def test_numbers_that_look_like_weights_are_refused(name: str) -> None:
    axis, given, nodes, constants = LOOKS_LIKE_WEIGHTS[name]
    model = made(given, "float Y", nodes, 17, **constants)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    with pytest.raises(rl.UnsupportedError, match="one export does not tell whether it follows time"):
        rl.lower(model, "keep", open_dims={axis: "time"})


def test_weights_that_are_joined_are_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Concat of a weight of 256 MB would take a gigabyte."""
    read: list[str | None] = []

    def reading(value: ir.Value, opset: int) -> ir.TensorProtocol | None:
        read.append(value.name)
        return constant_of(value, opset)

    monkeypatch.setattr(lone_export, "constant_of", reading)
    nodes = "a = Concat <axis = 1> (m, m) b = Concat <axis = 1> (a, m) Y = MatMul (X, b)"
    rl.lower(made("float[2,20,6] X", "float[2,20,18] Y", nodes, m=W66), "keep", open_dims={"X:1": "time"})
    assert read == ["m"]
    with pytest.raises(rl.UnsupportedError, match="its B may follow from it"):
        rl.lower(made("float[2,20,6] X", "float[a,b,c] Y", nodes, m=W66[:, :1] * 0 + 3), open_dims={"X:1": "time"})


def test_states_of_a_batch_of_1_are_refused() -> None:
    nodes = "Y = LSTM <hidden_size = 4> (X, W, R, , , h)"
    model = made("float[5,1,6] X", "float[5,1,1,4] Y", nodes, 17, **LSTM, h=np.zeros((1, 1, 4)))
    with pytest.raises(rl.UnsupportedError, match="initial_h may follow from it"):
        rl.lower(model, "keep", open_dims={"X:1": "batch"})


def test_an_export_without_rows_is_refused() -> None:
    model = net("an LSTM", 0)[1]
    with pytest.raises(rl.OptionError, match="a size of 0 for 'time' tells nothing"):
        rl.lower(model, "keep", open_dims={"X:0": "time"})
