"""Convolutions, poolings and paddings along time keep their past frames; those that look ahead are refused."""

from typing import Any

import numpy as np
import pytest
from cases import Array
from stream_models import CHUNKINGS, assert_streams, chunked, net, plan_of, random, recurrent, streamed, whole

import rnn_lowering as rl

X = {"X": random((2, 3, 17))}
K3 = random((3, 3, 3), 1)
NUMBERS = {
    "pads": np.array([0, 0, 2, 0, 0, 0]),
    "both": np.array([0, 0, 2, 0, 0, 2]),
    "deep": np.array([0, 0, 6, 0, 0, 0]),
    "zero": np.array([0]),
    "minus2": np.array([-2]),
    "minus1": np.array([-1]),
    "two": np.array([2]),
    "far": np.array([2**31 - 1]),
    "axis": np.array([2]),
    "half": np.array(0.5, np.float32),
    "lead": np.zeros((2, 3, 2), np.float32),
}


def along(nodes: str, **weights: Array) -> Any:
    """A net over [batch, channels, time] = [2, 3, time]."""
    used = {name: array for name, array in NUMBERS.items() if name in nodes}
    return net(f"g (float[2, 3, time] X) => (float[a, b, c] Y) {{ {nodes} }}", {**used, **weights})


CAUSAL: dict[str, tuple[str, dict[str, Array], list[int]]] = {
    "a padding and a convolution": ("p = Pad (X, pads)  Y = Conv (p, K)", {"K": K3}, [2]),
    "a padding of another number": ("p = Pad (X, pads, half)  Y = Conv (p, K)", {"K": K3}, [2]),
    "a padding on the left of the convolution": ("Y = Conv <pads = [2, 0]> (X, K)", {"K": K3}, [2]),
    "dilated": ("Y = Conv <pads = [4, 0], dilations = [2]> (X, K)", {"K": K3}, [4]),
    "depthwise": ("Y = Conv <pads = [2, 0], group = 3> (X, K)", {"K": random((3, 1, 3), 2)}, [2]),
    "with a bias": ("Y = Conv <pads = [2, 0]> (X, K, bias)", {"K": K3, "bias": random((3,), 3)}, [2]),
    "padded on both sides and trimmed": (
        "c = Conv <pads = [2, 2]> (X, K)  Y = Slice (c, zero, minus2, axis)",
        {"K": K3},
        [2],
    ),
    "trimmed after its activation": (
        "c = Conv <pads = [2, 2]> (X, K)  r = Relu (c)  Y = Slice (r, zero, minus2, axis)",
        {"K": K3},
        [2],
    ),
    "padded on both sides by a node and trimmed": (
        "p = Pad (X, both)  c = Conv (p, K)  Y = Slice (c, zero, minus2, axis)",
        {"K": K3},
        [2],
    ),
    "one padding for three": (
        "p = Pad (X, deep)  a = Conv (p, K)  b = Relu (a)  c = Conv (b, K)  Y = Conv (c, K)",
        {"K": K3},
        [6],
    ),
    "three in a row": (
        "a = Conv <pads = [2, 0]> (X, K)  b = Conv <pads = [2, 0]> (a, K)  Y = Add (b, X)",
        {"K": K3},
        [2, 2],
    ),
    "a padding before one with its own": (
        "p = Pad (X, pads)  a = Conv <pads = [2, 0]> (p, K)  Y = Conv (a, K)",
        {"K": K3},
        [2, 2],
    ),
    "a delay": ("p = Pad (X, pads)  Y = Slice (p, zero, minus2, axis)", {}, [2]),
    "constants before the frames": ("p = Concat <axis = 2> (lead, X)  Y = Conv (p, K)", {"K": K3}, [2]),
    "a largest value": ("Y = MaxPool <kernel_shape = [3], pads = [2, 0], strides = [1]> (X)", {}, [2]),
    "a mean": (
        "Y = AveragePool <kernel_shape = [3], pads = [2, 0], count_include_pad = 1> (X)",
        {},
        [2],
    ),
    "a transposed convolution": ("Y = ConvTranspose <pads = [0, 2]> (X, K)", {"K": K3}, [2]),
    "a padding and a transposed convolution": (
        "p = Pad (X, pads)  Y = ConvTranspose <pads = [2, 2]> (p, K)",
        {"K": K3},
        [2],
    ),
    "SAME_LOWER of two": ('Y = Conv <auto_pad = "SAME_LOWER"> (X, K)', {"K": random((3, 3, 2), 1)}, [1]),
    "one frame": ("Y = Conv (X, K)", {"K": random((3, 3, 1), 1)}, []),
}


@pytest.mark.filterwarnings("ignore:no state is carried")
@pytest.mark.parametrize("label", CAUSAL)
def test_past_frames_are_kept(label: str) -> None:
    nodes, weights, past = CAUSAL[label]
    plan = plan_of(assert_streams(along(nodes, **weights), "time", X))
    assert [s["shape"][2] for s in plan["states"]] == past
    assert all(s["state"] == "x" and s["input"].endswith("_x") for s in plan["states"])


@pytest.mark.parametrize("opset", [9, 10, 11, 18, 21])
def test_older_and_newer_forms_of_padding_and_slice(opset: int) -> None:
    pad = "Pad <pads = [0, 0, 2, 0, 0, 2]> (X)" if opset < 11 else "Pad (X, both)"
    cut = "<starts = [0], ends = [-2], axes = [2]> (c)" if opset < 10 else "(c, zero, minus2, axis)"
    nodes = f"p = {pad}  c = Conv (p, K)  Y = Slice {cut}"
    used = {name: array for name, array in NUMBERS.items() if name in nodes}
    model = net(f"g (float[2, 3, time] X) => (float[a, b, c] Y) {{ {nodes} }}", {**used, "K": K3}, opset)
    assert_streams(model, "time", X)


def test_time_and_frequency() -> None:
    """Conv2d over [batch, 1, time, 8], stride 2 and symmetric paddings over frequency, causal over time."""
    model = net(
        """g (float[batch, 1, time, 8] X) => (float[a, b, c, d] Y) {
            c = Conv <pads = [2, 1, 0, 1], strides = [1, 2]> (X, K)  r = Elu (c)
            flat = Transpose <perm = [2, 0, 1, 3]> (r)  x = Reshape (flat, shape)
            y = GRU <hidden_size = 5> (x, W, R, B)  Y = Neg (y) }""",
        {"K": random((4, 1, 3, 3), 1), "shape": np.array([0, 0, 16]), **recurrent("GRU", 16, 5)},
    )
    plan = plan_of(assert_streams(model, "time", {"X": random((2, 1, 17, 8))}))
    assert [s["shape"] for s in plan["states"]] == [[1, "batch", 5], ["batch", 1, 2, 8]]


def test_a_trimmed_convolution_before_a_recurrent_node() -> None:
    model = net(
        """g (float[batch, 3, time] X) => (float[a, b, c, d] Y) {
            c = Conv <pads = [2, 2]> (X, K)  t = Transpose <perm = [2, 0, 1]> (c)
            s = Slice (t, zero, minus2, zero)  Y = GRU <hidden_size = 5> (s, W, R, B) }""",
        {"K": K3, "zero": NUMBERS["zero"], "minus2": NUMBERS["minus2"], **recurrent("GRU", 3, 5)},
    )
    assert len(plan_of(assert_streams(model, "time", X))["states"]) == 2


def test_paddings_of_other_axes_stay() -> None:
    model = net(
        """g (float[batch, 1, time, 8] X) => (float[a, b, c, d] Y) {
            p = Pad (X, pads, half)  Y = Conv (p, K) }""",
        {"K": random((4, 1, 3, 3), 1), "pads": np.array([0, 0, 2, 1, 0, 0, 0, 1]), "half": NUMBERS["half"]},
    )
    (state,) = plan_of(assert_streams(model, "time", {"X": random((2, 1, 17, 8))}))["states"]
    assert state["shape"] == ["batch", 1, 2, 10]
    assert state["initial"] == [[[[0.5]]]]


def test_same_paddings_with_strides_over_frequency() -> None:
    model = net(
        """g (float[batch, 1, time, 9] X) => (float[a, b, c, d] Y) {
            Y = Conv <auto_pad = "SAME_LOWER", strides = [1, 2]> (X, K) }""",
        {"K": random((4, 1, 2, 3), 1)},
    )
    assert_streams(model, "time", {"X": random((2, 1, 17, 9))})


def test_states_in_branches() -> None:
    model = net(
        """g (float[batch, 3, time] X) => (float[a, b, c] Y) {
            sizes = Shape (X)  n = Gather (sizes, i0)  which = Equal (n, two)
            Y = If (which) <
                then_branch = t () => (float[d, e, f] y1) { y1 = Conv <pads = [2, 0]> (X, K) },
                else_branch = u () => (float[g, h, i] y2) { y2 = Neg (X) }
            > }""",
        {"K": K3, "i0": np.array(0), "two": np.array(2)},
    )
    for batch in (2, 3):
        assert_streams(model, "time", {"X": random((batch, 3, 17))})


@pytest.mark.parametrize("pads", [[2, 0], [1, 1], [1, 0]])
def test_strides_over_time_need_fitting_frames(pads: list[int]) -> None:
    model = along(f"Y = Conv <pads = {pads}, strides = [2]> (X, K)", K=K3)
    feed = {"X": random((2, 3, 16))}
    expected = whole(model, feed)["Y"]
    for frames in (2, 4, None):
        got = chunked(streamed(model, {"time": frames}, "auto"), feed, [frames or 6])["Y"]
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5)
    with pytest.raises(rl.UnsupportedError, match="the chunk size must be a multiple of 2; give time=2"):
        streamed(model, "time=3")


REFUSED: dict[str, tuple[str, str]] = {
    "ahead by one": ("Y = Conv <pads = [1, 1]> (X, K)", "looks 1 frame ahead, .* delay of 1 frame"),
    "ahead by two": ("Y = Conv <pads = [0, 2]> (X, K)", "looks 2 frames ahead, .* delay of 2 frames"),
    "ahead, dilated": ("Y = Conv <pads = [3, 3], dilations = [3]> (X, K)", "looks 3 frames ahead"),
    "without paddings": ("Y = Conv (X, K)", "looks 2 frames ahead, .* delay of 2 frames; --delay 2"),
    "more at the end": ("Y = Conv <pads = [2, 2]> (X, K)", "output 'Y' has 2 frames more than the stream"),
    "strides without paddings": ("Y = Conv <strides = [2]> (X, K)", "looks 2 frames ahead"),
    "a mean of fewer": (
        "Y = AveragePool <kernel_shape = [3], pads = [2, 0]> (X)",
        "averages over fewer frames at the start; set count_include_pad",
    ),
    "reflected": (
        'p = Pad <mode = "reflect"> (X, pads)  Y = Conv (p, K)',
        "pads with other frames .mode reflect., .*; pad with a constant",
    ),
    "joined with its past": (
        "p = Conv <pads = [2, 2]> (X, K)  s = Slice (p, zero, minus1, axis)  Y = Relu (s)",
        "output 'Y' has 1 frame more",
    ),
    "frames that are not side by side": (
        "p = Pad (X, pads)  q = Pad (X, both)  Y = Add (p, q)",
        "joins values whose frames are not aligned",
    ),
    "upsampled, not trimmed": (
        "Y = ConvTranspose <strides = [2]> (X, K)",
        "output 'Y' has 1 frame more than the stream",
    ),
    "upsampled, trimmed at the left": (
        "Y = ConvTranspose <strides = [2], pads = [1, 0]> (X, K)",
        "looks 1 frame ahead",
    ),
    "a pooling of all": (
        "m = GlobalAveragePool (X) Y = Sub (X, m)",
        "subtracts the mean of all frames, .*utterance normalization",
    ),
}


@pytest.mark.parametrize("label", REFUSED)
def test_what_does_not_fit_is_refused_with_the_reason(label: str) -> None:
    nodes, message = REFUSED[label]
    weights = {"K": K3} if "K)" in nodes else {}
    with pytest.raises(rl.UnsupportedError, match=message):
        streamed(along(nodes, **weights), "time")


@pytest.mark.parametrize("sizes", CHUNKINGS)
def test_a_temporal_convolutional_net_in_chunks(sizes: list[int]) -> None:
    """Dilations 1, 2, 4, residual connections, as exporters write them: padded on both sides, then trimmed."""
    nodes, last = "", "X"
    weights: dict[str, Array] = {}
    for n, dilation in enumerate((1, 2, 4)):
        span = 2 * dilation
        nodes += f"c{n} = Conv <pads = [{span}, {span}], dilations = [{dilation}]> ({last}, K{n})"
        nodes += f" s{n} = Slice (c{n}, zero, cut{n}, axis) r{n} = Relu (s{n}) h{n} = Add (r{n}, {last})"
        weights |= {f"K{n}": random((3, 3, 3), n), f"cut{n}": np.array([-span])}
        last = f"h{n}"
    model = along(f"{nodes} Y = Neg ({last})", **weights)
    assert_streams(model, "time", X, [sizes])
