"""Streams of nets that look ahead: late by the least number of frames, and right from the first frame to the last.

The truth is what onnxruntime computes of the whole sequence, with zeros behind it as a host gives them at the end.
"""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from cases import Array, Arrays
from stream_models import CHUNKINGS, KEY, chunked, expected_of, net, plan_of, random, recurrent, streamed, whole
from thinning import thinned

import rnn_lowering as rl
from rnn_lowering.cli.command import main

LAYERS = ("GRU", "LSTM", "RNN")
CONSTANTS: dict[str, Array] = {
    **{"K": random((3, 3, 3), 1, 0.5), "K5": random((3, 3, 5), 2, 0.4), "D": random((3, 1, 3), 3)},
    **{"up": random((3, 3, 4), 4, 0.5), "one": np.array([1]), "axis": np.array([2]), "zero": np.array([0])},
    **{"two": np.array([2]), "far": np.array([2**63 - 1]), "minus1": np.array([-1])},
    **{"ahead": np.array([0, 0, -2, 0, 0, 2]), "cut": np.array([0, 0, -1, 0, 0, -1])},
    **{"behind": np.array([0, 0, 0, 0, 0, 2]), "back": np.array([0, 0, 2, 0, 0, 0])},
    **{"start": random((1, 3, 2), 5), "long": random((1, 3, 5), 6)},
    **{f"{op}{w}": a for op in LAYERS for w, a in recurrent(op, 3, 3).items()},
}
"""Weights, paddings and bounds, for the nets that name them."""


def layer(op: str, before: str, after: str) -> str:
    weights = ", ".join(f"{op}{w}" for w in "WRB")
    return (
        f"t{after} = Transpose <perm = [2, 0, 1]> ({before})"
        f" u{after} = {op} <hidden_size = 3> (t{after}, {weights})"
        f" s{after} = Squeeze (u{after}, one) {after} = Transpose <perm = [1, 2, 0]> (s{after})"
    )


def table(counted: str, fewer: str, source: str = "", offsets: str = "w4", step: int = 1) -> str:
    """Windows of frames as F.unfold writes them: `g` of shape [2, 3, window, frames], counted by `r`."""
    return (
        f"q = Shape ({counted}) n = Gather (q, by2) m = Sub (n, {fewer}) "
        f"r = Range (from0, m, {'from1' if step == 1 else 'by2'}) u = Unsqueeze (r, zero) "
        f"w = Add (u, {offsets}) g = Gather <axis = 2> ({source or counted}, w)"
    )


MOVED = "p = Pad (X, behind) m = Slice (p, two, far, axis)"
NETS: dict[str, tuple[str, int]] = {
    "both sides": ("Y = Conv <pads = [1, 1]> (X, K)", 1),
    "dilated, depthwise": ("Y = Conv <pads = [3, 3], dilations = [3], group = 3> (X, D)", 3),
    "no paddings": ("Y = Conv (X, K)", 2),
    "lags add up": ("a = Conv <pads = [1, 1]> (X, K) r = Relu (a) Y = Conv <pads = [2, 2]> (r, K5)", 3),
    "a skip waits": ("a = Conv <pads = [1, 1]> (X, K) b = Tanh (a) Y = Mul (b, X)", 1),
    "one buffer for two": (
        "a = Conv <pads = [2, 2]> (X, K5) b = Mul (a, X) c = Add (X, a) d = Conv <pads = [0, 1]> (X, start3) "
        "e = Sub (b, d) Y = Concat <axis = 1> (e, c)",
        2,
    ),
    "moved, then a causal convolution": (f"{MOVED} n = Neg (m) Y = Conv <pads = [4, 0]> (n, K5)", 2),
    "moved and back": (f"{MOVED} e = Exp (m) q = Pad (e, back, half) Y = Slice (q, zero, minus2, axis)", 0),
    "a negative Pad": ("m = Pad (X, ahead) s = Sigmoid (m) Y = Conv <pads = [2, 0]> (s, K)", 2),
    "cut at both sides": ("m = Pad (X, cut) d = Conv (X, K) Y = Add (m, d)", 2),
    "constants in front of what is late": (
        f"{MOVED} e = Exp (m) j = Concat <axis = 2> (start2rows, e) s = Slice (j, zero, minus2, axis) "
        "k = Concat <axis = 2> (longrows, s) Y = Slice (k, zero, minus5, axis)",
        0,
    ),
    "a maximum": ("Y = MaxPool <kernel_shape = [3], pads = [1, 1], strides = [1]> (X)", 1),
    "a maximum of what is late": (f"{MOVED} Y = MaxPool <kernel_shape = [3], pads = [2, 0], strides = [1]> (m)", 2),
    "a stride, then back": (
        "a = Conv <strides = [2], pads = [1, 2]> (X, K5) b = Tanh (a) "
        "Y = ConvTranspose <strides = [2], pads = [1, 1]> (b, up)",
        3,
    ),
    "upsampled": ("Y = ConvTranspose <strides = [2], pads = [1, 1]> (X, up)", 1),
    "every second": ("a = Slice (X, one, far, axis, two) Y = Conv <pads = [1, 1]> (a, K)", 2),
    **{
        f"{op} of what is late": (f"a = Conv <pads = [2, 2]> (X, K5) {layer(op, 'a', 'b')} Y = Add (b, X)", 2)
        for op in LAYERS
    },
    "two layers, each late": (
        f"{layer('GRU', 'X', 'g')} a = Conv <pads = [1, 1]> (g, K) {layer('LSTM', 'a', 'b')} "
        f"c = Conv <pads = [1, 1]> (b, K) {layer('RNN', 'c', 'd')} e = Conv <pads = [2, 0]> (d, K) Y = Add (e, X)",
        2,
    ),
    "windows by a table": (
        f"p = Pad (X, around) {table('p', 'from4')} o = Unsqueeze (X, axis) v = Mul (g, o) "
        "Y = ReduceMean <axes = [2], keepdims = 0> (v)",
        2,
    ),
    "windows by a table of what is late": (
        f"a = Conv <pads = [1, 1]> (X, K) p = Pad (a, around) {table('p', 'from4')} "
        "e = ReduceMax <axes = [2], keepdims = 0> (g) Y = Add (e, X)",
        3,
    ),
    "windows by a table without paddings, numbered": (
        f"{table('X', 'from4')} e = ReduceMean <axes = [2], keepdims = 0> (g) "
        "f = Cast <to = 1> (r) h = Mul (f, half) Y = Add (e, h)",
        4,
    ),
    "a table with windows that the next chunk completes": (
        f"b = Pad (X, back) p = Pad (X, around) {table('b', 'from0', 'p', 'w2')} "
        "e = ReduceMean <axes = [2], keepdims = 0> (g) Y = Slice (e, zero, minus2, axis)",
        0,
    ),
    "every second window by a table": (
        f"p = Pad (X, around) {table('p', 'from4', step=2)} Y = ReduceMean <axes = [2], keepdims = 0> (g)",
        2,
    ),
    "a sum of what is late": ("a = Conv <pads = [1, 1]> (X, K) Y = CumSum (a, by2)", 1),
    "a sum without its own frame": ("a = Conv <pads = [2, 2]> (X, K5) Y = CumSum <exclusive = 1> (a, by2)", 2),
    "a running mean, read by a layer": (
        "a = Conv <pads = [2, 2]> (X, K5) c = CumSum (a, by2) h = Shape (a) n = Gather (h, by2) "
        "m = Add (n, from1) r = Range (from1, m, from1) f = Cast <to = 1> (r) d = Div (c, f) "
        f"{layer('GRU', 'd', 'b')} e = Conv <pads = [1, 1]> (b, K) g = CumSum (e, by2) Y = Sub (g, d)",
        3,
    ),
    "a sum of ones": (
        "a = Conv <pads = [1, 1]> (X, K) h = Shape (a) o = ConstantOfShape <value = float[1] {1.0}> (h) "
        "n = CumSum (o, by2) c = CumSum (a, by2) Y = Div (c, n)",
        1,
    ),
    "positions of what is late": (
        "a = Conv <pads = [1, 1]> (X, K) h = Shape (a) n = Gather (h, by2) r = Range (from0, n, from1) "
        "f = Cast <to = 1> (r) k = Sin (f) v = Add (a, k) Y = Conv <pads = [2, 0]> (v, K)",
        1,
    ),
    "a layer between strides": (
        f"a = Conv <strides = [2], pads = [1, 2]> (X, K5) {layer('GRU', 'a', 'b')} "
        "Y = ConvTranspose <strides = [2], pads = [1, 1]> (b, up)",
        3,
    ),
}


def made(label: str) -> onnx.ModelProto:
    nodes, _ = NETS[label]
    extra = {
        **{"start3": random((3, 3, 2), 7), "start2": random((3, 3, 2), 8), "half": np.array(0.5, np.float32)},
        **{"start2rows": np.repeat(CONSTANTS["start"], 2, 0), "longrows": np.repeat(CONSTANTS["long"], 2, 0)},
        **{"minus2": np.array([-2]), "minus5": np.array([-5]), "around": np.array([0, 0, 2, 0, 0, 2])},
        **{f"from{n}": np.array(n) for n in (0, 1, 4)},
        **{"by2": np.array(2), "w2": np.arange(3)[:, None], "w4": np.arange(5)[:, None]},
    }
    held = {
        name: array
        for name, array in {**CONSTANTS, **extra}.items()
        if name in nodes.replace("(", " ").replace(",", " ").replace(")", " ").split()
    }
    channels = 6 if "Concat <axis = 1>" in nodes else 3
    return net(f"g (float[2, 3, time] X) => (float[2, {channels}, t] Y) {{ {nodes} }}", held)


def assert_same(got: Arrays, expected: Arrays, said: str) -> None:
    for name, array in got.items():
        np.testing.assert_allclose(array, expected[name], rtol=0, atol=1e-5, err_msg=f"{name} {said}")


@pytest.mark.parametrize("label", thinned(list(NETS), 2))
def test_late_streams_give_what_the_whole_gives(label: str) -> None:
    model, delay = made(label), NETS[label][1]
    if delay:
        with pytest.raises(
            rl.UnsupportedError, match=rf"frames? ahead, .* delay of {delay} frames?; --delay {delay}"
        ):
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
    plan = plan_of(streamed(made("a running mean, read by a layer"), "time", delay=True))
    assert [s["input"] for s in plan["states"] if s["dtype"] == "int64"] == ["past_frames_t"]


def in_calls(stream: rl.Stream, x: Array, sizes: list[int]) -> Array:
    """What rl.Stream returns of a sequence, with flush."""
    parts, start, turn = [], 0, 0
    while start < x.shape[2]:
        count = min(sizes[turn % len(sizes)], x.shape[2] - start)
        parts.append(stream({"X": x[:, :, start : start + count]})["Y"])
        start, turn = start + count, turn + 1
    flushed = stream.flush()
    return np.concatenate([*parts, *flushed.values()], 2)


@pytest.mark.parametrize("label", ["a skip waits", "no paddings", "GRU of what is late", "a stride, then back"])
def test_the_host_drops_the_first_frames_and_flushes_the_last_ones(label: str) -> None:
    model, late = made(label), NETS[label][1]
    for frames in (None, 2, 4):
        stream = rl.Stream(rl.lower(model, stream={"time": frames}, delay=late).SerializeToString())
        assert stream.plan.delay == {"Y": late}
        for length in (4, 12, 20):  # 4 frames are hardly more than the delay
            x = random((2, 3, length), length)
            got = in_calls(stream, x, [frames or 2 * (length % 3 + 1)])
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
    x, weights = random((2, 3, 12)), {"K": CONSTANTS["K"], "bias": np.ones(3, np.float32)}
    for nodes, exact in (
        ("a = Conv <pads = [1, 1]> (X, K, bias) Y = Tanh (a)", True),
        ("a = Exp (X) Y = Conv <pads = [1, 1]> (a, K, bias)", False),
    ):
        model = net(f"g (float[2, 3, time] X) => (float[2, 3, t] Y) {{ {nodes} }}", weights)
        got = in_calls(rl.Stream(rl.lower(model, stream="time", delay=True).SerializeToString()), x, [5])
        expected = whole(model, {"X": x})["Y"]
        np.testing.assert_allclose(got[:, :, :-1], expected[:, :, :-1], rtol=0, atol=1e-5)
        assert np.allclose(got, expected, rtol=0, atol=1e-5) == exact


def test_the_comparison_runs_late_streams_to_their_end() -> None:
    model = made("two layers, each late")
    stepped = rl.lower(model, stream="time", delay=True)
    found = rl.verify_stream(model, stepped)
    assert found.status == "verified"
    assert "sequences of up to 1009 frames" in found.method
    for delay in ({"Y": 1}, {}):
        wrong = onnx.ModelProto.FromString(stepped.SerializeToString())
        (entry,) = [p for p in wrong.metadata_props if p.key == KEY]
        entry.value = json.dumps({**plan_of(stepped), "delay": delay})
        assert rl.verify_stream(model, wrong).status == "failed"


def test_the_command_and_its_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, out = tmp_path / "model.onnx", tmp_path / "step.onnx"
    onnx.save(made("a skip waits"), model)
    command = [str(model), str(out), "--stream", "time=1"]
    assert main(command) == 1
    assert "delay of 1 frame; --delay 1" in capsys.readouterr().err
    assert not out.exists()
    assert main([*command, "--delay", "--require-verified"]) == 0
    said = capsys.readouterr().out
    assert "then the same with 1 frame of zeros, since the stream is late" in said
    assert "joined along axis 2, without the first 1 frame, which come before the sequence's" in said
    assert "verified" in said
    assert main([*command, "--delay", "3", "--force"]) == 0
    with pytest.raises(rl.OptionError, match="delay cannot be -1"):
        rl.Lowering(stream="time", delay=-1)
    assert main([str(model), str(tmp_path / "out.onnx"), "--delay"]) == 1
    assert "a delay needs a stream" in capsys.readouterr().err


def test_what_is_late_and_cannot_be_told_is_refused() -> None:
    nodes = "a = Conv <pads = [1, 1]> (X, K) Y = Gather <axis = 2> (a, minus1)"
    held = {name: CONSTANTS[name] for name in ("K", "minus1")}
    model = net(f"g (float[2, 3, time] X) => (float[2, 3, 1] Y) {{ {nodes} }}", held)
    with pytest.raises(rl.UnsupportedError, match="picks frames by their position"):
        streamed(model, "time", delay=True)


def test_windows_of_slices_look_ahead() -> None:
    """As a deep filter reads two frames on both sides: `x[:, :, k : k + T]` of the padded frames."""
    nodes = "p = Pad (X, pads) h = Shape (X) n = Slice (h, two, three) s = Mul (X, w0) "
    for k in range(5):
        nodes += f"e{k} = Add (n, k{k}) s{k} = Slice (p, k{k}, e{k}, two) m{k} = Mul (s{k}, w{k}) "
    nodes += "a = Add (m0, m1) b = Add (a, m2) c = Add (b, m3) d = Add (c, m4) Y = Add (d, s)"
    held = {f"k{k}": np.array([k]) for k in range(5)} | {f"w{k}": random((1, 3, 1), k) for k in range(5)}
    held |= {"pads": np.array([0, 0, 2, 0, 0, 2]), "two": np.array([2]), "three": np.array([3])}
    model = net(f"g (float[2, 3, time] X) => (float[2, 3, t] Y) {{ {nodes} }}", held)
    stepped, feed = streamed(model, "time", delay=2), {"X": random((2, 3, 19))}
    assert plan_of(stepped)["delay"] == {"Y": 2}
    for sizes in CHUNKINGS:  # the paddings stand behind the input: exact to the end
        assert_same(chunked(stepped, feed, sizes), whole(model, feed), str(sizes))


WINDOW = np.sqrt(0.5 - 0.5 * np.cos(np.pi * np.arange(8) / 4))
ANGLES = np.pi * np.outer(np.arange(5), np.arange(8)) / 4
BASIS = (np.concatenate([np.cos(ANGLES), -np.sin(ANGLES)]) * WINDOW)[:, None].astype(np.float32)
SPECTRA: dict[str, Array] = {
    **{"A": BASIS, "I": (BASIS * np.array([1, 2, 2, 2, 1] * 2)[:, None, None] / 8).astype(np.float32)},
    **{"around4": np.array([0, 0, 4, 0, 0, 4]), "sides": np.array([0, 4, 0, 4]), "K": random((10, 10, 3), 2, 0.3)},
    **{"zero": np.array([0]), "one": np.array([1]), "two": np.array([2]), "minus1": np.array([-1])},
    **{"minus4": np.array([-4]), "four": np.array([4]), "hop": np.array(4), "win": WINDOW.astype(np.float32)},
    **{"hop2": np.array(2), **recurrent("GRU", 10, 3, "GRU"), "V": random((10, 3, 1), 3)},
}
STFT = "p = Pad (X, around4) z = Conv <strides = [4]> (p, A)"
OPERATOR = "x = Squeeze (X, one) p = Pad (x, sides) w = Unsqueeze (p, minus1)"
CENTRED: dict[str, tuple[str, int, float]] = {
    "there and back": (f"{STFT} Y = ConvTranspose <strides = [4], pads = [4, 4]> (z, I)", 4, 1),
    "a mask": (
        f"{STFT} {layer('GRU', 'z', 'b')} m = Conv (b, V) s = Sigmoid (m) v = Mul (z, s) "
        "y = ConvTranspose <strides = [4]> (v, I) Y = Slice (y, four, minus4, two)",
        4,
        1,
    ),
    "a mask with a look-ahead of one": (
        f"{STFT} a = Conv <pads = [1, 1]> (z, K) {layer('GRU', 'a', 'b')} m = Conv (b, V) s = Sigmoid (m) "
        "v = Mul (z, s) Y = ConvTranspose <strides = [4], pads = [4, 4]> (v, I)",
        8,
        1,
    ),
    "the operator": (f"{OPERATOR} s = STFT (w, hop, win) Y = Slice (s, zero, minus1, one)", 0, 1 / 4),
    "the operator with a small hop": (
        f"{OPERATOR} s = STFT (w, hop2, win) Y = Slice (s, zero, minus1, one)",
        1,
        1 / 2,
    ),
}


def spectral(nodes: str, outputs: str) -> onnx.ModelProto:
    words = nodes.replace("(", " ").replace(",", " ").replace(")", " ").split()
    held = {name: array for name, array in SPECTRA.items() if name in words}
    return net(f"g (float[2, 1, time] X) => ({outputs} Y) {{ {nodes} }}", held)


@pytest.mark.parametrize("label", CENTRED)
def test_a_centred_stft_is_a_delay(label: str) -> None:
    """The padding is that of the input: the whole model's result, to the end."""
    nodes, delay, rate = CENTRED[label]
    model = spectral(nodes, "float[2, 1, t]" if rate == 1 else "float[2, t, 5, 2]")
    if delay:
        with pytest.raises(rl.UnsupportedError, match=f"; --delay {delay if rate == 1 else 2} "):
            streamed(model, "time")
    for to in ("keep", "auto"):
        for frames, sizes in ((None, [4]), (None, [8, 4, 12]), (4, [4]), (8, [8])):
            stepped = streamed(model, {"time": frames}, to, delay=True)
            assert plan_of(stepped)["delay"].get("Y", 0) == delay
            feed = {"X": random((2, 1, 48), 1)}
            expected = whole(model, feed)
            assert_same(chunked(stepped, feed, sizes), expected, f"{to} {sizes}")
    if label == "there and back":
        np.testing.assert_allclose(expected["Y"], feed["X"], rtol=0, atol=1e-5)


def test_what_a_centred_stft_cannot_be_is_named() -> None:
    for nodes, said in (
        (
            STFT.replace("Pad", 'Pad <mode = "reflect">') + " Y = Slice (z, zero, minus1, two)",
            r"Pad node '-> p' .*\(mode reflect\)",
        ),
        (f"{STFT} Y = Identity (z)", "output 'Y' has 1 frame more than the stream; trim it with a Slice"),
    ):
        with pytest.raises(rl.UnsupportedError, match=said):
            streamed(spectral(nodes, "float[2, 10, t]"), "time", delay=True)


LATE_LSTM = (
    "a = Conv <pads = [2, 2]> (X, K5) l = Transpose <perm = [2, 0, 1]> (a) "
    "u, hn, c = LSTM <hidden_size = 3> (l, LSTMW, LSTMR, LSTMB, , h0, c0) v = Squeeze (u, one) "
    "Y = Transpose <perm = [1, 2, 0]> (v) cn = Identity (c)"
)
STATE = "float[1, 2, 3]"


def with_states(nodes: str, inputs: str, outputs: str) -> onnx.ModelProto:
    words = nodes.replace("(", " ").replace(",", " ").replace(")", " ").split()
    named = CONSTANTS | {"minus2": np.array([-2])}
    held = {name: array for name, array in named.items() if name in words}
    return net(f"g (float[2, 3, time] X, {inputs}) => (float[2, 3, t] Y, {outputs}) {{ {nodes} }}", held)


def test_a_state_of_the_caller_waits_for_the_first_frame() -> None:
    """States that the model takes and returns are the stream's: after the last frame they are the model's."""
    model = with_states(LATE_LSTM, f"{STATE} h0, {STATE} c0", f"{STATE} hn, {STATE} cn")
    with pytest.raises(rl.UnsupportedError, match=r"looks 2 frames ahead, .*; --delay 2 "):
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


@pytest.mark.parametrize(
    ("nodes", "inputs", "outputs", "said"),
    [
        (
            f"{LATE_LSTM} e = Neg (hn)",
            f"{STATE} h0, {STATE} c0",
            f"{STATE} hn, {STATE} cn, {STATE} e",
            "LSTM node .* last state, which comes 2 frames after .*; drop that output",
        ),
        (
            LATE_LSTM.replace(", , h0, c0", ""),
            "float[1] z",
            f"{STATE} hn, {STATE} cn",
            "LSTM node .* last state, which comes 2 frames after .*; drop that output",
        ),
        (
            "a = Conv <pads = [1, 1]> (X, K) j = Concat <axis = 2> (cache, a) Y = Conv (j, K) "
            "new = Slice (j, minus2, far, axis)",
            "float[2, 3, 2] cache",
            "float[2, 3, 2] new",
            "Concat node .* before frames that come late; put constants there",
        ),
    ],
)
def test_late_states_that_a_stream_cannot_carry_are_refused(
    nodes: str, inputs: str, outputs: str, said: str
) -> None:
    model = with_states(nodes, inputs, outputs)
    for delay in (False, True):
        with pytest.raises(rl.UnsupportedError, match=said):
            streamed(model, "time", delay=delay)
