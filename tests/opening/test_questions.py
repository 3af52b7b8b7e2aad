"""Numbers that may follow an open size or not: what another axis tells is done, and the rest is refused."""

import numpy as np
import onnx
import pytest
from running import assert_close, run
from texts import parse

import rnn_lowering as rl

pytestmark = pytest.mark.usefixtures("workers_here")

SLICES = """int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[1] four = {4},
    int64[1] late = {-2}, int64[1] end = {9223372036854775807}"""
TABLE = "float[1,4,1] t = {1,2,3,4}"


ROWS = np.arange(1, 5, dtype=np.float32)[None, :, None]


def model_of(text: str, opset: int = 18) -> onnx.ModelProto:
    return parse(f"g {text}", opset)


def cut(text: str, shape: str = "1,4,2", more: str = "") -> str:
    return f"(float[1,6,2] X) => (float[{shape}] Y) <{SLICES}{more}> {{ {text} }}"


ANSWERED = {
    "a start, by a sum with all but the last": (
        cut("a = Slice (X, two, end, one) b = Slice (X, zero, late, one) Y = Add (a, b)"),
        lambda x: x[:, 2:] + x[:, :-2],
        None,
    ),
    "a start, by a table": (
        cut("a = Slice (X, two, end, one) Y = Add (a, t)", more=f", {TABLE}"),
        lambda x: x[:, -4:] + ROWS,
        "Slice node '-> a' in main graph: 2 is -4",
    ),
    "an end, by a sum with all but the first": (
        cut(
            "a = Slice (X, zero, four, one) b = Slice (X, two, end, one) c = Slice (X, zero, late, one)"
            " d = Add (a, c) Y = Add (d, b)"
        ),
        lambda x: 2 * x[:, :-2] + x[:, 2:],
        "Slice node '-> a' in main graph: 4 is -2",
    ),
    "an end, by a table": (
        cut("a = Slice (X, zero, four, one) Y = Add (a, t)", more=f", {TABLE}"),
        lambda x: x[:, :4] + ROWS,
        None,
    ),
    "a last row that is repeated": (
        cut("a = Slice (X, five, end, one) Y = Add (a, X)", "1,6,2", ", int64[1] five = {5}"),
        lambda x: x[:, -1:] + x,
        "5 is -1",
    ),
    "a last row that loses its axis": (
        cut("a = Slice (X, five, end, one) Y = Squeeze (a, one)", "1,2", ", int64[1] five = {5}"),
        lambda x: x[:, -1],
        "5 is -1",
    ),
    "rows backward": (
        cut(
            "Y = Slice (X, back, first, one, back)",
            "1,6,2",
            ", int64[1] back = {-1}, int64[1] first = {-2147483648}",
        ),
        lambda x: x[:, ::-1],
        None,
    ),
    "a padding that a convolution takes away": (
        """(float[1,2,6] X) => (float[1,2,6] Y) <int64[6] p = {0,0,2,0,0,0}, float[2,1,3] w = {1,2,3,4,5,6}> {
        a = Pad (X, p) c = Conv <group = 2> (a, w) Y = Add (c, X) }""",
        None,
        None,
    ),
    "a padding to a length": (
        """(float[1,6,2] X) => (float[1,8,2] Y)
        <int64[6] p = {0,0,0,0,2,0}, float[1,8,1] t = {1,2,3,4,5,6,7,8}> { a = Pad (X, p) Y = Add (a, t) }""",
        lambda x: (
            np.pad(x, ((0, 0), (0, 8 - x.shape[1]), (0, 0))) + np.arange(1, 9, dtype=np.float32)[None, :, None]
        ),
        "Pad node '-> a' in main graph: 2 is -t + 8",
    ),
    "parts": (
        """(float[1,6,2] X) => (float[1,4,2] Y, float[1,2,2] Z) <int64[2] s = {4,2}, float[1,2,1] t = {1,2}> {
        Y, b = Split <axis = 1> (X, s) Z = Add (b, t) }""",
        lambda x: x[:, :-2],
        "Split node '-> Y' in main graph: 4 is t - 2",
    ),
    "a size that is doubled": (
        """(float[1,1,6] X) => (float[1,1,12] Y) <int64[3] s = {1,1,12}, int64[3] twice = {1,1,2}> {
        a = Resize <mode = "nearest"> (X, "", "", s) b = Tile (X, twice) Y = Add (a, b) }""",
        lambda x: np.repeat(x, 2, -1) + np.tile(x, 2),
        "Resize node '-> a' in main graph: 12 is 2*t",
    ),
    "a size that is fixed": (
        """(float[1,1,6] X) => (float[1,1,3] Y) <int64[3] s = {1,1,3}, float[1,1,3] w = {1,2,3}> {
        a = Resize <mode = "nearest"> (X, "", "", s) Y = Add (a, w) }""",
        None,
        None,
    ),
}


@pytest.mark.parametrize("name", ANSWERED)
def test_another_axis_tells(name: str) -> None:
    text, computed, change = ANSWERED[name]
    model = model_of(text)
    axis = 2 if "float[1,1,6] X" in text or "float[1,2,6] X" in text else 1
    new, report = rl.lower(model, open_dims={f"X:{axis}": "t"}, full=True)
    onnx.checker.check_model(new, full_check=True)
    assert [note for note in report.notes if " is " in note] == ([] if change is None else report.notes[:1])
    assert change is None or change in report.notes[0]
    found = rl.verify(model, new, runs=1)
    assert found.status == "verified", str(found)
    for count in (6, 7, 8, 5) if computed is not None else ():
        shape = (1, 1, count) if axis == 2 else (1, count, 2)
        x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
        assert computed is not None
        assert_close({"Y": run(new, {"X": x})["Y"]}, {"Y": computed(x)}, "float32")


MERGED = """(float[1,4,3] X) => (float[1,4,3] Y) <int64[2] s = {4,3}, int64[3] u = {1,4,3},
    float[3,3] w = {1,2,3,4,5,6,7,8,9}> {
    r = Reshape (X, s) q = MatMul (r, w) v = Reshape (q, u) Y = Add (v, X) }"""


def test_a_batch_and_frames_that_were_merged_are_split_as_a_sum_says() -> None:
    model = model_of(MERGED)
    new = rl.lower(model, open_dims={"X:0": "b", "X:1": "t"})
    found = rl.verify(model, new, runs=1)
    assert (
        "output 'Y' compared at other sizes too (b = 2, t = 4 / b = 1, t = 2 / b = 1, t = 7 / b = 2, t = 7)"
        in found.reason
    )


REFUSED = {
    "a start": (cut("Y = Slice (X, two, end, one)"), "starts at 2 of an axis of 6: does it count from the end?"),
    "an end": (cut("Y = Slice (X, zero, four, one)"), "ends at 4 of an axis of 6: does it count from the end?"),
    "both": (
        cut("Y = Slice (X, one, four, one)", "1,3,2"),
        "ends at 4 of an axis of 6: does it count from the end?",
    ),
    "two starts that tell of each other": (
        cut("a = Slice (X, two, end, one) b = Tanh (a) Y = Mul (a, b)"),
        "starts at 2 of an axis of 6",
    ),
    "a sum over what is left": (
        cut("a = Slice (X, two, end, one) Y = ReduceSum (a, one)", "1,1,2"),
        "starts at 2 of an axis of 6",
    ),
    "a start that a constant with equal rows follows": (
        cut("a = Slice (X, two, end, one) Y = Add (a, z)", more=", float[1,4,1] z = {0,0,0,0}"),
        "starts at 2 of an axis of 6",
    ),
    "a row": (
        "(float[1,6,2] X) => (float[1,2] Y) <int64 n = {2}> { Y = Gather <axis = 1> (X, n) }",
        "takes row 2 of 6: that row, or row -4?",
    ),
    "a padding": (
        "(float[1,6,2] X) => (float[1,8,2] Y) <int64[6] p = {0,0,0,0,2,0}> { Y = Pad (X, p) }",
        "pads an axis of 6 by 2: at other sizes too?",
    ),
    "parts": (
        """(float[1,6,2] X) => (float[1,4,2] Y, float[1,2,2] Z) <int64[2] s = {4,2}> {
        Y, Z = Split <axis = 1> (X, s) }""",
        "splits an axis of 6 into 4, 2: which number is a size is not known",
    ),
    "three parts": (
        """(float[1,6,2] X) => (float[1,3,2] Y, float[1,2,2] Z, float[1,1,2] U) <int64[3] s = {3,2,1}> {
        Y, Z, U = Split <axis = 1> (X, s) }""",
        "splits an axis of 6 into 3, 2, 1",
    ),
    "a Resize": (
        """(float[1,1,6] X) => (float[1,1,12] Y) <int64[3] s = {1,1,12}> {
        Y = Resize <mode = "nearest"> (X, "", "", s) }""",
        "resizes an open axis to 12: at other sizes too?",
    ),
    "a Resize by a scale": (
        """(float[1,1,6] X) => (float[1,1,12] Y) <float[3] s = {1,1,2}> {
        Y = Resize <mode = "nearest"> (X, "", s) }""",
        "resizes an axis of 6 by 2: at other sizes too?",
    ),
    "positions from 0 to 1": (
        """(float[1,6,2] X) => (float[1,6,2] Y) <int64 a = {0}, int64 n = {6}, int64 d = {1}, int64[2] ax = {0,2},
        float five = {5}> { e = Range (a, n, d) f = Cast <to = 1> (e) q = Div (f, five) g = Unsqueeze (q, ax)
        Y = Add (X, g) }""",
        "scales a sum over an open axis by 5, which may be its size",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_nothing_tells_is_refused(name: str) -> None:
    text, reason = REFUSED[name]
    with pytest.raises(rl.UnsupportedError) as error:
        rl.lower(model_of(text), open_dims={"X:2" if "float[1,1,6] X" in text else "X:1": "t"})
    assert reason in str(error.value)
