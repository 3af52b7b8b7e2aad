"""What an error of a stream says is true, and what it advises helps."""

import re
from typing import Any

import numpy as np
import onnx
import pytest
from loop_models import operators
from stream_models import (
    assert_at_every_length,
    assert_streams,
    chunked,
    expected_of,
    net,
    over,
    plan_of,
    random,
    streamed,
    whole,
)

import rnn_lowering as rl
from rnn_lowering.flags import for_command

pytestmark = pytest.mark.filterwarnings("ignore:no state is carried")

TIMED, CHANNELS = "float[batch, time, 3] X", "float[2, 3, time] X"
LATE = "c = Conv <pads = [1, 1]> (X, K[3, 3, 3])"
LATE_GRU = f"{LATE}  x = Transpose <perm = [2, 0, 1]> (c)  Y = GRU <hidden_size = 4> (x, W, R)"


def refusal(model: onnx.ModelProto, stream: Any = "time", **options: Any) -> str:
    """The error, with options as the command spells them."""
    with pytest.raises(rl.UnsupportedError) as caught, for_command():
        rl.lower(model, stream=stream, **options)
    return str(caught.value)


def assert_right(model: onnx.ModelProto, stepped: onnx.ModelProto, feed: dict[str, Any], size: int) -> None:
    expected = expected_of(plan_of(stepped), model, feed)
    for name, array in chunked(stepped, feed, [size]).items():
        np.testing.assert_allclose(array, expected[name], rtol=0, atol=1e-5)


@pytest.mark.parametrize("equation", ["...i,ij->...j", "b...i,ij->b...j", "...i,ij", "bti,ij", "...ti,ij->...tj"])
def test_an_ellipsis_of_einsum_is_the_axes_without_a_letter(equation: str) -> None:
    model = over(TIMED, f'Y = Einsum <equation = "{equation}"> (X, K[3, 4])')
    assert_streams(model, "time", {"X": random((2, 9, 3))})


@pytest.mark.parametrize("equation", ["...i,jk->i", "...ti->...i", "b...i->bi"])
def test_an_einsum_over_the_frames_is_refused_by_its_axis(equation: str) -> None:
    second = ", K[3, 4]" if "," in equation else ""
    said = refusal(over(TIMED, f'Y = Einsum <equation = "{equation}"> (X{second})'))
    assert "acts along axis 1, which holds the frames" in said


def test_frames_that_are_cut_off_at_the_end_are_padded_in_front() -> None:
    cut = "c = Slice (X, [0], [-2], [1])"
    said = refusal(over(TIMED, f"{cut}  Y = Neg (c)"))
    assert said.endswith("pad it in front by the 2 frames that are cut off at its end, or do not cut them off")
    padded = f"{cut}  p = Pad (c, [0, 2, 0, 0, 0, 0])"
    assert_streams(over(TIMED, f"{padded}  Y = Neg (p)"), "time", {"X": random((2, 9, 3))})
    gru = "Y = GRU <hidden_size = 4, layout = 0> ({}, W, R)"
    first = TIMED.replace("batch, time", "time, batch")
    cut = "c = Slice (X, [0], [-2], [0])"
    assert "reads not as many frames" in (said := refusal(over(first, f"{cut}  {gru.format('c')}")))
    assert "pad it in front by the 2 frames" in said
    model = over(first, f"{cut}  p = Pad (c, [2, 0, 0, 0, 0, 0])  {gru.format('p')}")
    assert_streams(model, "time", {"X": random((9, 2, 3))})


def test_frames_that_are_too_many_are_trimmed() -> None:
    more = "c = Conv <pads = [2, 2]> (X, K[3, 3, 3])"
    assert refusal(over(CHANNELS, f"{more}  Y = Neg (c)")).endswith(
        "2 frames more than the stream; trim it with a Slice"
    )
    assert_streams(
        over(CHANNELS, f"{more}  s = Slice (c, [0], [-2], [2])  Y = Neg (s)"), "time", {"X": random((2, 3, 9))}
    )


RESIZED = 'Y = Resize <mode = "nearest"{}> (X, , [1.0, 1.0, {}.0])'
REPEATING = [("", "2 3 4 5 6 7 64 160")]
REPEATING += [(', coordinate_transformation_mode = "asymmetric", nearest_mode = "floor"', "2 3 64")]
REPEATING += [(', coordinate_transformation_mode = "asymmetric"', "2")]
REPEATING += [(', coordinate_transformation_mode = "pytorch_half_pixel"', "2 5")]
REPEATING += [(', nearest_mode = "round_prefer_ceil"', "2 5")]


@pytest.mark.few(6)
@pytest.mark.parametrize(("mode", "times"), [(m, n) for m, each in REPEATING for n in each.split()])
def test_a_resize_that_repeats_each_frame_is_a_stream(mode: str, times: str) -> None:
    """ONNX's default coordinates, half_pixel, repeat frames too."""
    model = over(CHANNELS, RESIZED.format(mode, times))
    stepped = assert_streams(model, "time", {"X": random((2, 3, 200))})
    assert plan_of(stepped)["rates"] == {"Y": times}


LOOKING = [(', coordinate_transformation_mode = "asymmetric"', 3), (', nearest_mode = "ceil"', 2)]
LOOKING += [(', nearest_mode = "floor"', 2), (', coordinate_transformation_mode = "align_corners"', 3)]


@pytest.mark.parametrize(("mode", "times"), LOOKING)
def test_a_resize_that_does_not_repeat_is_refused_also_with_a_delay(mode: str, times: int) -> None:
    model = over(CHANNELS, RESIZED.format(mode, times))
    x = random((2, 3, 9))
    assert not np.array_equal(whole(model, {"X": x})["Y"], x.repeat(times, 2))  # it is no repetition
    said = refusal(model, delay=True)
    assert "is not known to repeat each frame; repeat each frame: mode nearest" in said
    assert "looks ahead" not in said


def test_what_is_advised_for_a_linear_resize() -> None:
    linear = 'Y = Resize <mode = "linear"{}> (X, , [1.0, 1.0, {}])'
    corners = ', coordinate_transformation_mode = "align_corners"'
    said = refusal(over(CHANNELS, linear.format(corners, 2.0)), delay=True)
    assert "mode linear, coordinates half_pixel or asymmetric, the frames only, by 2, 4, 8 or 1/2, 1/4, 1/8" in said
    for times in (2.0, 4.0, 8.0, 0.5, 0.25, 0.125):
        assert_at_every_length(over(CHANNELS, linear.format("", times)), "time")


def test_half_steps_are_counted_by_one_and_multiplied() -> None:
    count = "s = Shape (X)  t = Gather (s, 1)  f = Cast <to = 1> (t)"
    every = "u = Unsqueeze (r, [1])  v = Slice (u, [0], far, [0], [2])  Y = Add (X, v)"
    said = refusal(over(TIMED, f"{count}  r = Range (0.0, f, 0.5)  {every}"))
    assert said.endswith("counts frames in steps that are no whole number; count by 1, then multiply")
    advised = f"{count}  g = Mul (t, 2)  i = Range (0, g, 1)  h = Cast <to = 1> (i)  r = Mul (h, 0.5)  {every}"
    assert_streams(over(TIMED, advised), "time", {"X": random((2, 9, 3))})


@pytest.mark.few(3)
@pytest.mark.parametrize("opset", [7, 8, 9, 10])
@pytest.mark.parametrize("stream", ["time", "time=1", "time=4"])
@pytest.mark.parametrize("nodes", [LATE_GRU, f"{LATE}  Y = Conv <pads = [1, 1]> (c, L[3, 3, 3])"])
def test_what_an_old_opset_lacks_for_a_look_ahead_is_there_after_conversion(
    opset: int, stream: str, nodes: str
) -> None:
    model = over(CHANNELS, nodes, opset=opset)
    feed = {"X": random((2, 3, 12))}
    if opset >= 9 and "=" in stream:
        assert_right(model, rl.lower(model, stream=stream, delay=True), feed, int(stream[-1]))
        return
    said = refusal(model, stream, delay=True)
    (needed,) = (
        map(int, re.findall(r"needs (?:Where, which )?opset (\d+)", said)[:1]) if "Where" not in said else (9,)
    )
    assert needed == (9 if "=" in stream else 11)
    newer = onnx.version_converter.convert_version(model, needed)
    assert_right(newer, rl.lower(newer, stream=stream, delay=True), feed, 4 if "=4" in stream else 1)
    if needed == 11:
        assert ("or convert it to opset 9 and give" if opset < 9 else "or give the number of frames") in said
        nine = onnx.version_converter.convert_version(model, max(opset, 9))
        assert_right(nine, rl.lower(nine, stream="time=4", delay=True), feed, 4)


def test_one_late_convolution_needs_no_newer_opset() -> None:
    model = over(CHANNELS, LATE.replace("c =", "Y ="), opset=7)
    assert_right(model, rl.lower(model, stream="time", delay=True), {"X": random((2, 3, 12))}, 3)


def chosen(other: str, shape: str, axis: int) -> onnx.ModelProto:
    """A state in a branch that an axis of a value chooses."""
    return over(
        f"float[time, batch, 3] X, {other} => float[] Y",
        f"""{shape}  n = Gather (s, {axis})  c = Greater (n, 1)
        Y = If (c) <then_branch = t () => (float[i, j, k] P) {{
            g = GRU <hidden_size = 4> (X, W, R, B)  P = Squeeze (g, axis) }},
            else_branch = e () => (float[l, m, o] Q) {{ Q = MatMul (X, K) }}>""",
        {"axis": np.array([1]), "K": random((3, 4), 2)},
    )


SIZED = chosen("float[1, n, 3] b", "a = Add (X, b)  s = Shape (a)", 1)


def test_a_branch_that_sizes_choose_is_fixed_by_sizes() -> None:
    said = refusal(SIZED)
    assert "since the sizes of input 'X' choose the branch; fix them: --set-dim batch=?" in said
    sized = rl.lower(SIZED, stream="time", dims={"batch": 2})
    x, b = random((9, 2, 3)), random((1, 2, 3))
    np.testing.assert_allclose(
        chunked(sized, {"X": x, "b": b}, [4])["Y"], whole(SIZED, {"X": x, "b": b})["Y"], atol=1e-6
    )


@pytest.mark.parametrize("axis", [0, 1])
def test_an_axis_is_named_by_its_input_where_two_have_one_name(axis: int) -> None:
    model = over("float[time, time] X", "Y = Neg (X)")
    assert "name the axis: X:0 or X:1" in refusal(model)
    stepped = streamed(model, f"X:{axis}")
    x = random((5, 7))
    assert plan_of(stepped)["inputs"] == {"X": axis}
    np.testing.assert_array_equal(chunked(stepped, {"X": x}, [2])["Y"], -x)


@pytest.mark.few(4)
@pytest.mark.filterwarnings("ignore:left for ncnn")
@pytest.mark.parametrize(
    ("target", "model", "options"),
    [
        *((name, over(CHANNELS, LATE_GRU), {"delay": True}) for name in ("tvm", "iree", "tinygrad")),
        *(
            (name, over("float[time, 2, 3] X", "Y = GRU <hidden_size = 4> (X, W, R)"), {})
            for name in ("tvm", "iree")
        ),
        ("iree", over("float[time, batch, 3] X", "Y = GRU <hidden_size = 4> (X, W, R)"), {}),
        (
            "tvm",
            over(
                "float[2, 3, time] X",
                "c = Conv <strides = [2]> (X, K[3, 3, 2])  x = Transpose <perm = [2, 0, 1]> (c)"
                "  Y = GRU <hidden_size = 4> (x, W, R)",
            ),
            {},
        ),
    ],
)
def test_a_target_that_needs_a_length_gets_the_frames_of_a_call(
    target: Any, model: onnx.ModelProto, options: dict[str, Any]
) -> None:
    """No option fixes a state, which the stream has added, or the open length of a stream."""
    said = refusal(model, "time", target=target, **options)
    (frames,) = re.findall(r"--stream time=(\d+)", said)
    assert not any(text in said for text in ("past_", "--set-dim time", "sequence_lens"))
    dims = dict.fromkeys(re.findall(r"--set-dim (\w+)=", said), 2)
    stepped = rl.lower(model, stream=f"time={frames}", target=target, dims=dims, **options)
    assert plan_of(stepped)["frames"] == int(frames)


def test_a_loop_for_such_a_target_gets_them_too() -> None:
    text = """g (float[T, 2, 3] X, float[2, 3] s0) => (float[2, 3] sn, float[T, 2, 3] Y) {
        sn, Y = Scan <num_scan_inputs = 1, body = b (float[2, 3] s, float[2, 3] x)
            => (float[2, 3] s1, float[2, 3] o) { s1 = Add (s, x) o = Relu (s1) }> (s0, X) }"""
    said = refusal(net(text), "T", target="tvm")
    assert "--stream T=1" in said
    assert "--set-dim T" not in said
    assert not operators(rl.lower(net(text), stream="T=1", target="tvm")) & {"Scan", "Loop"}


@pytest.mark.filterwarnings("ignore:left for ncnn")
def test_ncnn_says_constant_lengths_only_of_a_net_that_has_lengths() -> None:
    late = over(CHANNELS, LATE_GRU)
    for stream in ("time", "time=4"):
        said = refusal(late, stream, target="ncnn", delay=True)
        assert "ncnn cannot start a layer behind a look-ahead within a call" in said
    counted = refusal(late, "time=1", target="ncnn", delay=True)
    assert "ncnn computes with floats only, and takes integers as indices of a table" in counted
    ragged = "float[time, 2, 3] X, int32[2] lens"
    said = refusal(over(ragged, "Y = GRU <hidden_size = 4> (X, W, R, , lens)"), "time=1", target="ncnn")
    why = "pnnx converts no arithmetic of integers"
    assert said.endswith(f"ncnn needs constant sequence_lens: {why}; export the model without sequence_lens")
    rl.lower(over("float[time, 2, 3] X", "Y = GRU <hidden_size = 4> (X, W, R)"), stream="time=1", target="ncnn")


@pytest.mark.parametrize(
    ("shape", "axis"), [("s = Shape (X)", 1), ("s = Shape (b)", 0), ("a = Neg (b)  s = Shape (a)", 0)]
)
def test_sizes_that_are_equal_in_all_calls_may_choose(shape: str, axis: int) -> None:
    model = chosen("float[n, 3] b", shape, axis)
    feed = {"X": random((9, 2, 3)), "b": random((2, 3))}
    stepped = rl.lower(model, stream="time")
    np.testing.assert_allclose(chunked(stepped, feed, [4])["Y"], whole(model, feed)["Y"], atol=1e-6)


def test_a_size_that_follows_from_numbers_may_change_from_call_to_call() -> None:
    said = refusal(chosen("float[n, 3] b", "a = NonZero (b)  s = Shape (a)", 1))
    assert "a call may skip a state in its branches, since input 'b' chooses the branch" in said
