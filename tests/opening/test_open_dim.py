"""`--open-dim`: numbers that were the size of an axis follow it, and what may mean something else is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from commands import Command
from running import assert_close, run
from texts import parse

import rnn_lowering as rl

WEIGHTS = """float[1,8,3] W = {1,2,3,4,5,-6,7,8,-9,1,2,3,4,-5,6,7,8,9,1,-2,3,4,5,6},
    float[1,8,2] R = {1,2,-3,4,5,6,7,-8,9,1,2,3,-4,5,6,7}"""
ENDS = "int64[1] zero = {0}, int64[1] four = {4}, int64[1] one = {1}"

OPENED = {
    "heads": """(float[1,4,6] X) => (float[1,4,6] Y) <int64[4] s = {1,4,2,3}, int64[3] u = {1,4,6}> {
        r = Reshape (X, s) w = Transpose <perm = [0,2,1,3]> (r) v = Transpose <perm = [0,2,1,3]> (w)
        q = Relu (v) Y = Reshape (q, u) }""",
    "heads as long as the sequence": """(float[1,4,8] X) => (float[1,4,8] Y)
        <int64[4] s = {1,4,2,4}, int64[3] u = {1,4,-1}> { r = Reshape (X, s) q = Tanh (r) Y = Reshape (q, u) }""",
    "a Slice that an Add needs": f"""(float[1,4,2] X) => (float[1,4,2] Y) <{ENDS}> {{
        q = Slice (X, zero, four, one) w = Relu (q) Y = Add (w, X) }}""",
    "an Expand": """(float[1,4,3] X) => (float[1,4,4] Y) <float[1,1,1] c = {5}, int64[3] s = {1,4,1}> {
        e = Expand (c, s) z = Mul (X, e) w = ReduceMax <axes = [2]> (z) Y = Concat <axis = 2> (X, w) }""",
    "positions": """(float[1,4,2] X) => (float[1,4,2] Y)
        <int64 a = {0}, int64 n = {4}, int64 d = {1}, int64[2] ax = {0,2}> {
        e = Range (a, n, d) f = Cast <to = 1> (e) g = Unsqueeze (f, ax) Y = Add (X, g) }""",
    "zeros as a constant": """(float[1,4,2] X) => (float[1,4,2] Y) <float[1,4,2] z = {3,4,3,4,3,4,3,4}> {
        Y = Add (X, z) }""",
    "first states": f"""(float[4,1,3] X) => (float[4,1,1,2] Y) <int64[3] s = {{1,1,2}}, {WEIGHTS}> {{
        h = ConstantOfShape (s) Y = LSTM <hidden_size = 2> (X, W, R, "", "", h, h) }}""",
    "a table that is cut": f"""(float[1,4,1] X) => (float[1,4,1] Y) <float[9,1] t = {{1,2,3,4,5,6,7,8,9}},
        {ENDS}> {{
        p = Slice (t, zero, four, zero) Y = Add (X, p) }}""",
}
"""Axes 0 and 1 have 1 and 4, and each frame follows from itself and those before."""


def model_of(text: str) -> onnx.ModelProto:
    return parse(f"g {text}", 13)


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("name", OPENED)
def test_rows_and_prefixes_are_those_of_the_original(name: str) -> None:
    model = model_of(OPENED[name])
    steps, batch = (0, 1) if name == "first states" else (1, 0)
    new = rl.lower(model, open_dims={f"X:{steps}": "t", f"X:{batch}": "b"})
    onnx.checker.check_model(new, full_check=True)
    width = model.graph.input[0].type.tensor_type.shape.dim[2].dim_value
    x = numbers(4, 3, width) if steps == 0 else numbers(3, 4, width)
    places = {"t": steps, "b": batch if steps else 2}
    rows = [run(model, {"X": np.take(x, [n], batch)})["Y"] for n in range(3)]
    whole = np.concatenate(rows, places["b"])
    assert_close(run(new, {"X": x}), {"Y": whole}, "float32")
    for count in (1, 3):
        got = run(new, {"X": np.take(x, range(count), steps)})
        assert_close(got, {"Y": np.take(whole, range(count), places["t"])}, "float32")
    longer = run(new, {"X": np.concatenate([x, x], steps)})["Y"]
    assert_close({"Y": np.take(longer, range(4), places["t"])}, {"Y": whole}, "float32")


MERGED = """(float[1,4,6] X) => (float[1,4,6] Y) <int64[2] s = {4,6}, int64[3] u = {1,4,6}> {
    r = Reshape (X, s) q = Tanh (r) Y = Reshape (q, u) }"""


def test_merged_axes_are_split_again_where_one_is_open() -> None:
    new, x = rl.lower(model_of(MERGED), open_dims={"X:1": "t"}), numbers(1, 7, 6)
    assert_close(run(new, {"X": x}), {"Y": np.tanh(x)}, "float32")
    with pytest.raises(rl.UnsupportedError, match="which number is a size is not known"):
        rl.lower(model_of(MERGED), open_dims={"X:1": "t", "X:0": "b"})  # of b * t frames: [b, t], or [1, b * t]?


def test_a_table_that_is_cut_ends() -> None:
    new = rl.lower(model_of(OPENED["a table that is cut"]), open_dims={"X:1": "t"})
    with pytest.raises(Exception, match="Add"):
        run(new, {"X": numbers(1, 10, 1)})


REFUSED = {
    "a Slice at the end": (
        f"(float[1,4,2] X) => (float[1,4,2] Y) <{ENDS}> {{ Y = Slice (X, zero, four, one) }}",
        "all of it, or the first 4 of a longer one",
    ),
    "an end that may be T - 1": (
        f"(float[1,5,2] X) => (float[1,4,2] Y) <{ENDS}> {{ Y = Slice (X, zero, four, one) }}",
        "does it count from the end",
    ),
    "the last row by its number": (
        "(float[1,4,2] X) => (float[1,2] Y) <int64 n = {3}> { Y = Gather <axis = 1> (X, n) }",
        "takes row 3 of 4: that row, or row -1?",
    ),
    "a table": (
        "(float[1,4,1] X) => (float[1,4,1] Y) <float[4,1] t = {1,2,3,4}> { Y = Add (X, t) }",
        "gets a constant 't' with 4 on axis 0, which must be t",
    ),
    "all frames as features": (
        "(float[1,4,1] X) => (float[1,1] Y) <float[4,1] w = {1,2,3,4}> {"
        " f = Flatten <axis = 1> (X) Y = MatMul (f, w) }",
        "gets a constant 'w' with 4 on axis 0",
    ),
    "a mean by a number": (
        "(float[1,4,2] X) => (float[1,1,2] Y) <float n = {4}, int64[1] a = {1}> {"
        " f = ReduceSum (X, a) Y = Div (f, n) }",
        "which may be its size",
    ),
    "the features of a recurrent node": (
        f"(float[4,3,1] Z, float[4,3,1] X) => (float[4,1,1,2] Y) <{WEIGHTS}, int64[3] s = {{4,1,3}}> {{"
        " x = Reshape (X, s) Y = LSTM <hidden_size = 2> (x, W, R) }",
        "gets a constant 'W' with 3 on axis 2, which must be t",
    ),
    "the units of a recurrent node": (
        "(float[1,2] X, float[1,8,3] W, float[1,8,2] R, float[4,1,3] Z) => (float[4,1,1,2] Y)"
        ' <int64[1] s = {0}> { h = Unsqueeze (X, s) Y = LSTM <hidden_size = 2> (Z, W, R, "", "", h) }',
        "has attributes that fix its directions and units",
    ),
    "the channels of a convolution": (
        "(float[1,3,4] X) => (float[1,1,4] Y) <float[1,3,1] w = {1,2,3}> { Y = Conv (X, w) }",
        "needs as many channels as its weights have",
    ),
    "frames that are split": (
        "(float[1,4,2] X) => (float[2,2,2] Y) <int64[3] s = {2,2,2}> { Y = Reshape (X, s) }",
        "which number is a size is not known",
    ),
    "another input": (
        "(float[1,4,2] X, float[1,4,2] Z) => (float[1,4,2] Y) { Y = Add (X, Z) }",
        "needs axis 1 of input 'Z', which has 4, to have t",
    ),
    "a Loop": (
        """(float[1,4,2] X, int64 n, bool c) => (float[1,4,2] Y) {
            Y = Loop (n, c, X) <body = a (int64 i, bool d, float[1,4,2] p) => (bool e, float[1,4,2] q) {
            e = Identity (d) q = Relu (p) }> }""",
        "has a body that gets an open size",
    ),
    "branches of different sizes": (
        """(float[1,4,2] X, bool c) => (float[1,k,2] Y) <int64[1] one = {1}> {
            Y = If (c) <then_branch = a () => (float[1,4,2] p) { p = Relu (X) },
            else_branch = b () => (float[1,1,2] q) { q = ReduceMax (X, one) }> }""",
        "has branches that give different sizes",
    ),
    "a table in a branch": (
        """(float[1,4,1] X, bool c) => (float[1,4,1] Y) <float[4,1] t = {1,2,3,4}> {
            Y = If (c) <then_branch = a () => (float[1,4,1] p) { p = Add (X, t) },
            else_branch = b () => (float[1,4,1] q) { q = Neg (X) }> }""",
        "gets a constant 't' with 4 on axis 0, which must be t",
    ),
    "an axis that is removed": (
        "(float[4,1,2] Z, float[1,1,2] X) => (float[1,2] Y) <int64[1] a = {1}> { Y = Squeeze (X, a) }",
        "removes an open axis",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_may_mean_something_else_is_refused(name: str) -> None:
    text, reason = REFUSED[name]
    with pytest.raises(rl.UnsupportedError) as error:
        rl.lower(parse(f"g {text}", 18 if "ReduceMax" in text else 13), open_dims={"X:1": "t"})
    assert reason in str(error.value)
    assert "in main graph" in str(error.value)
    assert name != "a table in a branch" or "(If) then_branch" in str(error.value)


def test_the_name_of_another_axis_is_refused() -> None:
    """The two axes would have one size from then on."""
    model = parse("g (float[T, 4] X) => (float[T, 4] Y) { Y = Relu (X) }")
    with pytest.raises(rl.OptionError, match="'T' is already the name of axis 0 of 'X'; choose another name"):
        rl.lower(model, open_dims={"X:1": "T"})


@pytest.mark.parametrize(
    ("dims", "reason"),
    [
        ({"X:5": "t"}, "the model has no axis 'X:5' to open"),
        ({"Q:0": "t"}, "axes of fixed size are X:0, X:1, X:2"),
        ({"X:1": "t", "X:2": "t"}, "'t' is the name of axes of 4 and 6"),
        ({"X:1": "a b"}, "a name, such as 'time'"),
    ],
)
def test_a_wrong_axis_is_an_error(dims: Any, reason: str) -> None:
    with pytest.raises(rl.OptionError) as error:
        rl.lower(model_of(OPENED["heads"]), open_dims=dims)
    assert reason in str(error.value)


def test_an_axis_that_is_open_is_an_error() -> None:
    model = model_of("(float[N,4] X) => (float[N,4] Y) { Y = Relu (X) }")
    with pytest.raises(rl.OptionError, match="axis 0 of 'X' is open already: its name is 'N'"):
        rl.lower(model, open_dims={"X:0": "t"})


def test_the_command_says_which_numbers_follow(rnn_lower: Command, tmp_path: Path) -> None:
    onnx.save(model_of(OPENED["first states"]), tmp_path / "m.onnx")
    said = rnn_lower(tmp_path / "m.onnx", tmp_path / "o.onnx", "--open-dim", "X:0=t", "--open-dim", "X:1=b")
    assert "ConstantOfShape node '-> h' in main graph: 1 is b" in said.out
    assert "verified" in said.out
    new = onnx.load(tmp_path / "o.onnx")
    assert [d.dim_param or d.dim_value for d in new.graph.input[0].type.tensor_type.shape.dim] == ["t", "b", 3]
    assert "LSTM" not in {node.op_type for node in new.graph.node}
    assert "INPUT:AXIS=NAME" in rnn_lower(tmp_path / "m.onnx", "--list", "--open-dim", "X").err


def test_a_stream_of_an_opened_axis() -> None:
    model = model_of(OPENED["first states"])
    step = rl.lower(model, open_dims={"X:0": "t"}, stream="t=1")
    stream, x = rl.Stream(step), numbers(4, 1, 3)
    parts = [stream({"X": x[n : n + 1]})["Y"] for n in range(4)]
    assert_close({"Y": np.concatenate(parts)}, run(model, {"X": x}), "float32")


def test_an_attribute_cannot_follow_a_size() -> None:
    model = parse(
        """g (float[1,4,2] X) => (float[1,4,2] Y) {
            q = Slice <axes = [1], starts = [0], ends = [4]> (X) Y = Add (q, X) }""",
        9,
    )
    with pytest.raises(rl.UnsupportedError, match="must be t"):
        rl.lower(model, open_dims={"X:1": "t"})


@pytest.mark.filterwarnings("ignore:no state is carried")
def test_a_stream_that_the_exported_length_prevents_names_the_option() -> None:
    model = model_of(OPENED["heads"])
    with pytest.raises(rl.UnsupportedError) as error:
        rl.lower(model, stream={"X:1": 1})
    assert 'the exporter fixed the length: add open_dims={"X:1": "frames"}' in str(error.value)
    step = rl.lower(model, stream={"X:1": 1}, open_dims={"X:1": "frames"})
    x = numbers(1, 4, 6)
    stream = rl.Stream(step)
    parts = [stream({"X": x[:, n : n + 1]})["Y"] for n in range(4)]
    assert_close({"Y": np.concatenate(parts, 1)}, run(model, {"X": x}), "float32")


def test_a_stream_that_no_option_makes_possible_names_none() -> None:
    text, _ = REFUSED["all frames as features"]
    with pytest.raises(rl.UnsupportedError) as error:
        rl.lower(model_of(text), stream={"X:1": 1})
    assert "open_dims" not in str(error.value)
