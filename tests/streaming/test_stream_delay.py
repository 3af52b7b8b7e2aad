"""Streams of nets that look ahead: late by the least number of frames, and right from the first frame to the last.

The truth is what onnxruntime computes of the whole sequence, with zeros behind it as a host gives them at the end.
"""

import json
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from cases import Arrays
from oracle import GATES
from stream_models import (
    CHUNKINGS,
    KEY,
    chunked,
    expected_of,
    hosted,
    over,
    pieces,
    plan_of,
    random,
    rows,
    streamed,
    whole,
)
from thinning import thinned

import rnn_lowering as rl
from rnn_lowering.cli.command import main

CONV = "float[2, 3, time] X"
SKIP = "a = Conv <pads = [1, 1]> (X, K[3, 3, 3])  b = Tanh (a)  Y = Mul (b, X)"
STRIDES = """a = Conv <strides = [2], pads = [1, 2]> (X, K5[3, 3, 5])  b = Tanh (a)
        Y = ConvTranspose <strides = [2], pads = [1, 1]> (b, up[3, 3, 4])"""
LAYERS = """g = layer.GRU (X)  a = Conv <pads = [1, 1]> (g, K[3, 3, 3])  b = layer.LSTM (a)
        c = Conv <pads = [1, 1]> (b, K)  d = layer.RNN (c)  e = Conv <pads = [2, 0]> (d, K)  Y = Add (e, X)"""
MEAN = """a = Conv <pads = [2, 2]> (X, K5[3, 3, 5])  c = CumSum (a, 2)  h = Shape (a)  n = Gather (h, 2)
        m = Add (n, 1)  r = Range (1, m, 1)  f = Cast <to = 1> (r)  d = Div (c, f)  b = layer.GRU (d)
        e = Conv <pads = [1, 1]> (b, K[3, 3, 3])  g = CumSum (e, 2)  Y = Sub (g, d)"""

NETS = rows(f"""
# {CONV}
0 late
    p = Pad (X, [0, 0, 0, 0, 0, 2])  m = Slice (p, [2], far, [2])  e = Exp (m)
        q = Pad (e, [0, 0, 2, 0, 0, 0], 0.5)  Y = Slice (q, [0], [-2], [2])
    p = Pad (X, [0, 0, 0, 0, 0, 2])  m = Slice (p, [2], far, [2])  e = Exp (m)
        j = Concat <axis = 2> (two[2, 3, 2], e)  s = Slice (j, [0], [-2], [2])
        k = Concat <axis = 2> (five[2, 3, 5], s)  Y = Slice (k, [0], [-5], [2])
    b = Pad (X, [0, 0, 2, 0, 0, 0])  p = Pad (X, [0, 0, 2, 0, 0, 2])  q = Shape (b)  n = Gather (q, 2)
        m = Sub (n, 0)  r = Range (0, m, 1)  u = Unsqueeze (r, [0])  w = Add (u, [[0], [1], [2]])
        g = Gather <axis = 2> (p, w)  e = ReduceMean <keepdims = 0> (g, [2])  Y = Slice (e, [0], [-2], [2])
1 late
    Y = Conv <pads = [1, 1]> (X, K[3, 3, 3])
    {SKIP}
    Y = MaxPool <kernel_shape = [3], pads = [1, 1], strides = [1]> (X)
    Y = ConvTranspose <strides = [2], pads = [1, 1]> (X, up[3, 3, 4])
    a = Conv <pads = [1, 1]> (X, K[3, 3, 3])  Y = ConvTranspose <strides = [3]> (a, point[3, 3, 1], bias[3])
    a = Conv <pads = [1, 1]> (X, K[3, 3, 3])  Y = CumSum (a, 2)
    a = Conv <pads = [1, 1]> (X, K[3, 3, 3])  h = Shape (a)  o = ConstantOfShape <value = float[1] {{1.0}}> (h)
        n = CumSum (o, 2)  c = CumSum (a, 2)  Y = Div (c, n)
    a = Conv <pads = [1, 1]> (X, K[3, 3, 3])  h = Shape (a)  n = Gather (h, 2)  r = Range (0, n, 1)
        f = Cast <to = 1> (r)  k = Sin (f)  v = Add (a, k)  Y = Conv <pads = [2, 0]> (v, K)
2 late
    Y = Conv (X, K[3, 3, 3])
    a = Conv <pads = [2, 2]> (X, K5[3, 3, 5])  b = Mul (a, X)  c = Add (X, a)
        d = Conv <pads = [0, 1]> (X, start[3, 3, 2])  e = Sub (b, d)  Y = Concat <axis = 1> (e, c)
    p = Pad (X, [0, 0, 0, 0, 0, 2])  m = Slice (p, [2], far, [2])  n = Neg (m)
        Y = Conv <pads = [4, 0]> (n, K5[3, 3, 5])
    m = Pad (X, [0, 0, -2, 0, 0, 2])  s = Sigmoid (m)  Y = Conv <pads = [2, 0]> (s, K[3, 3, 3])
    m = Pad (X, [0, 0, -1, 0, 0, -1])  d = Conv (X, K[3, 3, 3])  Y = Add (m, d)
    p = Pad (X, [0, 0, 0, 0, 0, 2])  m = Slice (p, [2], far, [2])
        Y = MaxPool <kernel_shape = [3], pads = [2, 0], strides = [1]> (m)
    a = Slice (X, [1], far, [2], [2])  Y = Conv <pads = [1, 1]> (a, K[3, 3, 3])
    a = Conv <pads = [2, 2]> (X, K5[3, 3, 5])  b = layer.GRU (a)  Y = Add (b, X)
    a = Conv <pads = [2, 2]> (X, K5[3, 3, 5])  b = layer.LSTM (a)  Y = Add (b, X)
    a = Conv <pads = [2, 2]> (X, K5[3, 3, 5])  b = layer.RNN (a)  Y = Add (b, X)
    {LAYERS}
    p = Pad (X, [0, 0, 2, 0, 0, 2])  q = Shape (p)  n = Gather (q, 2)  m = Sub (n, 4)  r = Range (0, m, 1)
        u = Unsqueeze (r, [0])  w = Add (u, [[0], [1], [2], [3], [4]])  g = Gather <axis = 2> (p, w)
        o = Unsqueeze (X, [2])  v = Mul (g, o)  Y = ReduceMean <keepdims = 0> (v, [2])
    p = Pad (X, [0, 0, 2, 0, 0, 2])  q = Shape (p)  n = Gather (q, 2)  m = Sub (n, 4)  r = Range (0, m, 2)
        u = Unsqueeze (r, [0])  w = Add (u, [[0], [1], [2], [3], [4]])  g = Gather <axis = 2> (p, w)
        Y = ReduceMean <keepdims = 0> (g, [2])
    a = Conv <pads = [2, 2]> (X, K5[3, 3, 5])  Y = CumSum <exclusive = 1> (a, 2)
3 late
    Y = Conv <pads = [3, 3], dilations = [3], group = 3> (X, D[3, 1, 3])
    a = Conv <pads = [1, 1]> (X, K[3, 3, 3])  r = Relu (a)  Y = Conv <pads = [2, 2]> (r, K5[3, 3, 5])
    {STRIDES}
    a = Conv <pads = [1, 1]> (X, K[3, 3, 3])  p = Pad (a, [0, 0, 2, 0, 0, 2])  q = Shape (p)  n = Gather (q, 2)
        m = Sub (n, 4)  r = Range (0, m, 1)  u = Unsqueeze (r, [0])  w = Add (u, [[0], [1], [2], [3], [4]])
        g = Gather <axis = 2> (p, w)  e = ReduceMax <keepdims = 0> (g, [2])  Y = Add (e, X)
    {MEAN}
    a = Conv <strides = [2], pads = [1, 2]> (X, K5[3, 3, 5])  b = layer.GRU (a)
        Y = ConvTranspose <strides = [2], pads = [1, 1]> (b, up[3, 3, 4])
4 late
    q = Shape (X)  n = Gather (q, 2)  m = Sub (n, 4)  r = Range (0, m, 1)  u = Unsqueeze (r, [0])
        w = Add (u, [[0], [1], [2], [3], [4]])  g = Gather <axis = 2> (X, w)
        e = ReduceMean <keepdims = 0> (g, [2])  f = Cast <to = 1> (r)  h = Mul (f, 0.5)  Y = Add (e, h)
""")


def with_layers(nodes: str) -> str:
    """Write each `y = layer.GRU (x)` as a node along the time of [batch, channels, time], between Transposes."""
    return re.sub(r"(\w+) = layer\.([A-Z]+)(\d*) \((\w+)\)", _layer, nodes)


def _layer(found: re.Match[str]) -> str:
    y, op, inputs, x = found.groups()
    rows = 3 * GATES[op]
    return f"""t{y} = Transpose <perm = [2, 0, 1]> ({x})
        u{y} = {op} <hidden_size = 3> (t{y}, W{y}[1, {rows}, {inputs or 3}], R{y}[1, {rows}, 3])
        s{y} = Squeeze (u{y}, [1])  {y} = Transpose <perm = [1, 2, 0]> (s{y})"""


def made(nodes: str, head: str = CONV) -> onnx.ModelProto:
    return over(head, with_layers(nodes))


def assert_same(got: Arrays, expected: Arrays, said: str) -> None:
    for name, array in got.items():
        np.testing.assert_allclose(array, expected[name], rtol=0, atol=1e-5, err_msg=f"{name} {said}")


@pytest.mark.few(2)
@pytest.mark.parametrize(("head", "said", "nodes"), thinned(NETS, 2))
def test_late_streams_give_what_the_whole_gives(head: str, said: str, nodes: str) -> None:
    model, delay = made(nodes, head), int(said.split()[0])
    if delay:
        allowed = rf"frames? ahead, .* delay of {delay} frames?; delay={delay}"
        with pytest.raises(rl.UnsupportedError, match=allowed):
            streamed(model, "time")
        with pytest.raises(rl.UnsupportedError, match=f"more than the {delay - 1} that" if delay > 1 else "ahead"):
            streamed(model, "time", delay=delay - 1)
    for to in ("keep", "auto"):
        stepped = streamed(model, "time", to, delay=delay)
        plan = plan_of(stepped)
        for frames in (12, 20):
            feed = {"X": random((2, 3, frames), frames)}
            expected = expected_of(plan, model, feed)
            for sizes in CHUNKINGS:
                chunks = [size * plan["unit"] for size in sizes]
                assert_same(chunked(stepped, feed, chunks), expected, f"{to} {frames} {chunks}")
            sure = expected["Y"].shape[2] + plan["short"].get("Y", 0) - plan["delay"].get("Y", 0)
            np.testing.assert_allclose(
                whole(model, feed)["Y"][:, :, :sure], expected["Y"][:, :, :sure], rtol=0, atol=1e-5
            )
        for number in (plan["unit"], 4):
            fixed = streamed(model, {"time": number}, to, delay=True)
            feed = {"X": random((2, 3, 12), 1)}
            expected = expected_of(plan_of(fixed), model, feed)
            assert_same(chunked(fixed, feed, [number]), expected, f"{to}, {number} in each call")


def test_frames_are_counted_once() -> None:
    """The divisor of a mean, and the states that hold still until the first true frame, read the same number."""
    plan = plan_of(streamed(made(MEAN), "time", delay=True))
    assert [s["input"] for s in plan["states"] if s["dtype"] == "int64"] == ["past_frames_t"]


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("nodes", "late"),
    [
        (SKIP, 1),
        ("Y = Conv (X, K[3, 3, 3])", 2),
        ("a = Conv <pads = [2, 2]> (X, K[3, 3, 5])  b = layer.GRU (a)  Y = Add (b, X)", 2),
        (STRIDES, 3),
    ],
)
def test_the_host_drops_the_first_frames_and_flushes_the_last_ones(nodes: str, late: int) -> None:
    model = made(nodes)
    for frames in (None, 2, 4):
        stream = rl.Stream(rl.lower(model, stream={"time": frames}, delay=late).SerializeToString())
        assert stream.plan.delay == {"Y": late}
        for length in (4, 12, 20):  # 4 frames are hardly more than the delay
            x = random((2, 3, length), length)
            got = hosted(stream, {"X": x}, [frames or 2 * (length % 3 + 1)])["Y"]
            expected = expected_of(stream.plan.to_dict(), model, {"X": x})["Y"]
            assert got.shape == whole(model, {"X": x})["Y"].shape
            np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5)
            with pytest.raises(rl.OptionError, match="the sequence has ended with flush; reset"):
                stream({"X": x})
            assert stream.flush() == {}
        stream.reset()
        with pytest.raises(rl.OptionError, match="nothing was given since the last reset"):
            stream.flush()


def test_paddings_of_the_input_end_exactly() -> None:
    """What stands behind the input are zeros, as a host gives them; behind an inner value they are not."""
    x = random((2, 3, 12))
    for nodes, exact in (
        ("a = Conv <pads = [1, 1]> (X, K[3, 3, 3], [1.0, 1.0, 1.0])  Y = Tanh (a)", True),
        ("a = Exp (X)  Y = Conv <pads = [1, 1]> (a, K[3, 3, 3], [1.0, 1.0, 1.0])", False),
    ):
        model = made(nodes)
        stream = rl.Stream(rl.lower(model, stream="time", delay=True).SerializeToString())
        got = hosted(stream, {"X": x}, [5])["Y"]
        expected = whole(model, {"X": x})["Y"]
        np.testing.assert_allclose(got[:, :, :-1], expected[:, :, :-1], rtol=0, atol=1e-5)
        assert np.allclose(got, expected, rtol=0, atol=1e-5) == exact


def test_the_comparison_runs_late_streams_to_their_end() -> None:
    model = made(LAYERS)
    stepped = rl.lower(model, stream="time", delay=True)
    found = rl.verify_stream(model, stepped, runs=1)
    assert found.status == "verified"
    assert "sequences of up to 1009 frames" in found.method
    for delay in ({"Y": 1}, {}):
        wrong = onnx.ModelProto.FromString(stepped.SerializeToString())
        (entry,) = [p for p in wrong.metadata_props if p.key == KEY]
        entry.value = json.dumps({**plan_of(stepped), "delay": delay})
        assert rl.verify_stream(model, wrong, runs=1).status == "failed"


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("nodes", "frames", "told"),
    [
        ("Y = Conv <pads = [1, 1]> (X, K[3, 3, 3])", 1, "drop the first frame, which is before the sequence; then"),
        ("Y = Conv <pads = [0, 2]> (X, K[3, 3, 3])", 1, "drop the first 2 frames, which are before the sequence;"),
        (
            "a = Conv <pads = [1, 1]> (X, K[3, 3, 3])  Y = Conv <strides = [2], pads = [1, 1]> (a, L[3, 3, 3])",
            2,
            "then keep 1 for every 2 frames of the sequence\n",
        ),
    ],
)
def test_the_command_tells_which_frames_to_keep(
    nodes: str, frames: int, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx.save(made(nodes), tmp_path / "model.onnx")
    command = [str(tmp_path / "model.onnx"), str(tmp_path / "step.onnx"), "--stream", f"time={frames}", "--delay"]
    assert main(command) == 0
    assert told in capsys.readouterr().out


def test_the_command_and_its_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, out = tmp_path / "model.onnx", tmp_path / "step.onnx"
    onnx.save(made(SKIP), model)
    command = [str(model), str(out), "--stream", "time=1"]
    assert main(command) == 1
    assert "delay of 1 frame; --delay 1" in capsys.readouterr().err
    assert not out.exists()
    assert main([*command, "--delay", "--require-verified"]) == 0
    said = capsys.readouterr().out
    assert "then the same with 1 frame of zeros: the outputs come late" in said
    assert "joined along axis 2: drop the first frame, which is before the sequence; then keep as many" in said
    assert "verified" in said
    assert main([*command, "--delay", "3", "--force"]) == 0
    with pytest.raises(rl.OptionError, match="delay cannot be -1"):
        rl.Lowering(stream="time", delay=-1)
    with pytest.raises(SystemExit, match="2"):
        main([str(model), str(tmp_path / "out.onnx"), "--delay"])
    assert "a delay needs a stream" in capsys.readouterr().err


def test_windows_of_slices_look_ahead() -> None:
    """As a deep filter reads two frames on both sides: `x[:, :, k : k + T]` of the padded frames."""
    nodes = "p = Pad (X, [0, 0, 2, 0, 0, 2])  h = Shape (X)  n = Slice (h, [2], [3])  s = Neg (X)"
    for k in range(5):
        nodes += f"  e{k} = Add (n, [{k}])  s{k} = Slice (p, [{k}], e{k}, [2])  m{k} = Mul (s{k}, w{k}[1, 3, 1])"
    model = made(f"{nodes}  Y = Sum (m0, m1, m2, m3, m4, s)")
    stepped, feed = streamed(model, "time", delay=2), {"X": random((2, 3, 19))}
    assert plan_of(stepped)["delay"] == {"Y": 2}
    for sizes in CHUNKINGS:  # the paddings stand behind the input: exact to the end
        assert_same(chunked(stepped, feed, sizes), whole(model, feed), str(sizes))


WINDOW = np.sqrt(0.5 - 0.5 * np.cos(np.pi * np.arange(8) / 4))
ANGLES = np.pi * np.outer(np.arange(5), np.arange(8)) / 4
BASIS = (np.concatenate([np.cos(ANGLES), -np.sin(ANGLES)]) * WINDOW)[:, None].astype(np.float32)
SPECTRA = {"A": BASIS, "I": (BASIS * np.array([1, 2, 2, 2, 1] * 2)[:, None, None] / 8).astype(np.float32)}
SPECTRA["win"] = WINDOW.astype(np.float32)
BACK = "Y = ConvTranspose <strides = [4], pads = [4, 4]> (z, I)"
CENTRED = rows(f"""
# float[2, 1, time] X {{ p = Pad (X, [0, 0, 4, 0, 0, 4])  z = Conv <strides = [4]> (p, A)
4 late, delay=4
    {BACK}
    b = layer.GRU10 (z)  m = Conv (b, V[10, 3, 1])  s = Sigmoid (m)  v = Mul (z, s)
        y = ConvTranspose <strides = [4]> (v, I)  Y = Slice (y, [4], [-4], [2])
8 late, delay=8
    a = Conv <pads = [1, 1]> (z, K[10, 10, 3])  b = layer.GRU10 (a)  m = Conv (b, V[10, 3, 1])  s = Sigmoid (m)
        v = Mul (z, s)  Y = ConvTranspose <strides = [4], pads = [4, 4]> (v, I)

# float[2, 1, time] X {{ x = Squeeze (X, [1])  p = Pad (x, [0, 4, 0, 4])  w = Unsqueeze (p, [-1])
0 late
    s = STFT (w, 4, win)  Y = Slice (s, [0], [-1], [1])
1 late, delay=2
    s = STFT (w, 2, win)  Y = Slice (s, [0], [-1], [1])
""")


@pytest.mark.few(1)
@pytest.mark.parametrize(("head", "said", "nodes"), CENTRED)
def test_a_centred_stft_is_a_delay(head: str, said: str, nodes: str) -> None:
    """The padding is that of the input: the whole model's result, to the end."""
    model = over(head, with_layers(nodes), SPECTRA)
    late, _, option = said.partition(" late, ")
    if option:
        with pytest.raises(rl.UnsupportedError, match=f"; {option} "):
            streamed(model, "time")
    for to in ("keep", "auto"):
        for frames, sizes in ((None, [4]), (None, [8, 4, 12]), (4, [4]), (8, [8])):
            stepped = streamed(model, {"time": frames}, to, delay=True)
            assert plan_of(stepped)["delay"].get("Y", 0) == int(late.split()[0])
            feed = {"X": random((2, 1, 48), 1)}
            expected = whole(model, feed)
            assert_same(chunked(stepped, feed, sizes), expected, f"{to} {sizes}")
    if nodes.endswith(BACK):
        np.testing.assert_allclose(expected["Y"], feed["X"], rtol=0, atol=1e-5)


def test_a_state_of_the_caller_waits_for_the_first_frame() -> None:
    """States that the model takes and returns are the stream's: after the last frame they are the model's."""
    model = over(
        f"{CONV}, float[1, 2, 3] h0, float[1, 2, 3] c0 => float[] Y, float[] hn, float[] cn",
        """a = Conv <pads = [2, 2]> (X, K[3, 3, 5])  l = Transpose <perm = [2, 0, 1]> (a)
        u, hn, c = LSTM <hidden_size = 3> (l, W[1, 12, 3], R[1, 12, 3], , , h0, c0)  v = Squeeze (u, [1])
        Y = Transpose <perm = [1, 2, 0]> (v)  cn = Identity (c)""",
    )
    with pytest.raises(rl.UnsupportedError, match=r"looks 2 frames ahead, .*; delay=2 "):
        streamed(model, "time")
    given = {name: random((1, 2, 3), n) for n, name in enumerate(("h0", "c0"))}
    feed = {"X": random((2, 3, 9), 3), **given}
    expected = whole(model, feed)
    for to, frames, sizes in (("keep", None, [2, 3]), ("auto", None, [2, 7]), ("auto", 1, [1])):
        stepped = streamed(model, {"time": frames}, to, delay=2)
        pairs = {(state["input"], state["output"]) for state in plan_of(stepped)["states"]}
        assert pairs >= {("h0", "hn"), ("c0", "cn")}
        assert_same(chunked(stepped, feed, sizes, given), {"Y": expected["Y"]}, f"{to} {sizes}")
        stream = rl.Stream(stepped.SerializeToString())
        stream.reset(given)
        stream({"X": feed["X"][:, :, : sizes[0]]})
        assert_same({name: stream.states[name] for name in given}, given, f"before the first frame, {to}")
        for start in range(sizes[0], 9, frames or 7):
            stream({"X": feed["X"][:, :, start : start + (frames or 7)]})
        stream.flush()
        assert_same({"hn": stream.states["h0"], "cn": stream.states["c0"]}, expected, f"{to} {sizes}")


STATE = """l = Transpose <perm = [2, 0, 1]> (a)  u, hn, cn = LSTM <hidden_size = 3>
    (l, W[1, 12, 3], R[1, 12, 3], , , h0, c0)  v = Squeeze (u, [1])  g = Transpose <perm = [1, 2, 0]> (v)"""
LOOKING = "a = Conv <pads = [1, 1]> (X, K[3, 3, 3], b[3])"
RETURNED = {
    "a valid convolution": (f"a = Conv (X, K[3, 3, 3], b[3])  {STATE}  Y = Tanh (g)", None),
    "a look-ahead": (f"{LOOKING}  {STATE}  Y = Tanh (g)", 1),
    "an output that comes later": (f"{LOOKING}  {STATE}  Y = Conv <pads = [2, 2]> (g, K5[3, 3, 5])", 1),
    "an output without frames": (f"{LOOKING}  {STATE}  Y = ReduceMax (X, [2])", 1),
    "a stride absorbs some of the delay": (
        f"a = Conv <pads = [2, 2]> (X, K5[3, 3, 5], b[3])  {STATE}  Y = Conv <strides = [2]> (g, point[3, 3, 1])",
        2,
    ),
    "a rate of 1/2": (f"a = Conv <pads = [1, 2], strides = [2]> (X, K5[3, 3, 5])  {STATE}  Y = Tanh (g)", 2),
    "a rate of 2": (f"{LOOKING}  c = ConvTranspose <strides = [2]> (a, up[3, 3, 2])  "
                    f"{STATE.replace('(a)', '(c)')}  Y = Tanh (g)", 1),
    "a Scan": (f"""{LOOKING}  l = Transpose <perm = [2, 0, 1]> (a)  hn, u = Scan <num_scan_inputs = 1, body = s
        (float[1, 2, 3] h, float[2, 3] x) => (float[1, 2, 3] n, float[1, 2, 3] y) {{ n = Sub (x, h)  y = Exp (n) }}>
        (h0, l)  cn = Identity (c0)  v = Squeeze (u, [1])  Y = Transpose <perm = [1, 2, 0]> (v)""", 1),
}  # fmt: skip


def with_states(nodes: str) -> onnx.ModelProto:
    outputs = "float[] Y, float[] hn" + ", float[] cn" * ("LSTM" in nodes)
    given = "float[1, 2, 3] h0" + ", float[1, 2, 3] c0" * ("LSTM" in nodes)
    return over(f"{CONV}, {given} => {outputs}", nodes.replace("cn = Identity (c0)", ""))


@pytest.mark.few(1)
@pytest.mark.usefixtures("workers_here")
@pytest.mark.parametrize("name", RETURNED)
def test_the_states_after_flush_are_those_of_the_last_frame(name: str) -> None:
    nodes, zeros = RETURNED[name]
    model = with_states(nodes)
    feed = {"X": random((2, 3, 12), 3), "h0": random((1, 2, 3), 1), "c0": random((1, 2, 3), 2)}
    given = {n: a for n, a in feed.items() if n in {value.name for value in model.graph.input}}
    expected = whole(model, given)
    for frames, sizes in ((None, [2]), (None, [12]), (None, [4, 8]), (zeros or 4, [zeros or 4])):
        stepped = rl.lower(model, stream={"time": frames}, delay=True)
        stream = rl.Stream(stepped.SerializeToString())
        assert stream.plan.zeros_for("hn") == (zeros or 0)
        stream.reset({n: a for n, a in given.items() if n != "X"})
        for start, end in pieces(12, sizes):
            stream({"X": feed["X"][:, :, start:end]})
        stream.flush()
        got = {s.output: stream.states[s.input] for s in stream.plan.states if s.output in expected}
        assert {"hn"} <= got.keys() <= {"hn", "cn"}
        assert_same(got, expected, f"{frames} {sizes}")
    stepped = rl.lower(model, stream="time", delay=True)
    assert rl.verify_stream(model, stepped, runs=1).status == "verified"


@pytest.mark.usefixtures("workers_here")
def test_the_comparison_sees_a_state_of_another_frame() -> None:
    """Also where a padding in the net makes the last state differ from that of the stream."""
    inner = f"x = Exp (X)  {LOOKING.replace('(X', '(x')}  {STATE}  Y = Tanh (g)"
    delays = ({"Y": 1, "hn": 2, "cn": 1}, {"Y": 1, "hn": 1}, {"Y": 1})
    for nodes, wrong in ((RETURNED["a look-ahead"][0], delays), (inner, delays[2:])):
        model = with_states(nodes)
        stepped = rl.lower(model, stream="time", delay=True)
        assert rl.verify_stream(model, stepped, runs=1).status == "verified"
        for delay in wrong:
            (entry,) = [p for p in stepped.metadata_props if p.key == KEY]
            entry.value = json.dumps({**plan_of(stepped), "delay": delay})
            found = rl.verify_stream(model, stepped, runs=1)
            assert found.status == "failed"
            assert "output 'hn'" in found.reason or "output 'cn'" in found.reason


def test_a_last_state_within_a_call_is_refused() -> None:
    nodes, _ = RETURNED["a look-ahead"]
    model = with_states(nodes)
    said = "'hn', 1 frame after .* where no call of 4 frames ends; drop that output, .* or give calls of 1 frame"
    with pytest.raises(rl.UnsupportedError, match=said):
        streamed(model, {"time": 4}, delay=True)
    with pytest.raises(rl.UnsupportedError, match="looks 1 frame ahead"):
        streamed(model, "time")
    del model.graph.output[1:]  # as the hint says
    stepped = streamed(model, {"time": 4}, delay=True)
    feed = {"X": random((2, 3, 12), 3)}
    states = {"h0": random((1, 2, 3), 1), "c0": random((1, 2, 3), 2)}
    expected = whole(model, feed | states)
    assert_same(chunked(stepped, feed, [4], states), expected, "without the outputs")
    with pytest.raises(
        rl.UnsupportedError, match=r"1 frame after .* no call of 2 frames ends; drop that output, [^,]*$"
    ):
        streamed(
            with_states(f"{LOOKING}  {STATE}  Y = Conv <strides = [2], pads = [1, 0]> (g, K)"), "time", delay=True
        )


@pytest.mark.usefixtures("workers_here")
def test_states_that_come_at_different_times_need_outputs_of_their_own() -> None:
    layers = """t = Transpose <perm = [2, 0, 1]> (X)
        u, p = RNN <hidden_size = 3> (t, W[1, 3, 3], R[1, 3, 3], , , h1)
        v = Squeeze (u, [1])  g = Transpose <perm = [1, 2, 0]> (v)  a = Conv <pads = [1, 1]> (g, K[3, 3, 3])
        l = Transpose <perm = [2, 0, 1]> (a)  m, q = RNN <hidden_size = 3> (l, W, R, , , h2)  n = Squeeze (m, [1])
        Y = Transpose <perm = [1, 2, 0]> (n)"""
    one = f"h1, h2 = Split <axis = 0, num_outputs = 2> (h0)  {layers}  hn = Concat <axis = 0> (p, q)"
    with pytest.raises(
        rl.UnsupportedError, match="'hn' with states that come earlier or later; drop that output, "
    ):
        streamed(over(f"{CONV}, float[2, 2, 3] h0 => float[] Y, float[] hn", one), "time", delay=True)
    head = f"{CONV}, float[1, 2, 3] h1, float[1, 2, 3] h2 => float[] Y, float[] p, float[] q"
    model = over(head, layers)
    stepped = streamed(model, "time", delay=True)
    assert plan_of(stepped)["delay"] == {"Y": 1, "q": 1}
    assert rl.verify_stream(model, stepped, runs=1).status == "verified"
