"""Operators that make several frames of one, or one of several, in the spellings of exporters."""

from fractions import Fraction

import numpy as np
import onnx
import pytest
from cases import Array
from stream_models import chunked, expected_of, net, plan_of, random, recurrent, streamed, whole

import rnn_lowering as rl

NUMBERS: dict[str, Array] = {f"i{n}": np.array([n]) for n in (0, 1, 2, 3, 4, 5, 6, 16)} | {
    **{f"s{n}": np.array(n) for n in (0, 1, 2, 3, 4, 6)},
    **{"minus1": np.array([-1]), "minus2": np.array([-2]), "minus4": np.array([-4]), "minus8": np.array([-8])},
    **{
        "far": np.array([2**63 - 1]),
        "K3": random((3, 3, 3), 1),
        "K4": random((3, 3, 4), 2),
        "K1": random((3, 3, 1), 3),
    },
    **{"K2": random((3, 3, 2), 4), "bias": random((3,), 6)},
    **{"front2": np.array([0, 0, 2, 0, 0, 0])},
    **{"by3": np.array([1, 1, 3], np.float32)},
    **{"wide": random((3, 6), 7)},
    **{"pair": np.array([1, 1, 1, 2]), "rows": np.array([0, -1, 6]), "of3": np.array([0, -1, 3])},
    **{"segment": np.array([0, 3, -1, 4]), "back": np.array([0, 3, -1]), "block": np.array([1, 8])},
    **{"window": (random((8,), 8) + 1.5).astype(np.float32), "in_front4": np.array([0, 4, 0, 0])},
    **{"eight": np.array(8), "four": np.array(4), "D": random((3, 1, 8), 10)},
    **{"E": random((3, 1, 8), 11)},
    **{"frequencies": random((3, 2, 1, 3), 12), "wave": np.array([2, -1])},
    **{"around4": np.array([0, 4, 0, 4]), "hundredth": np.array(0.01, np.float32)},
    **{"minus5": np.array([-5]), "C": random((8, 1, 8), 14)},
    **{"to_rows": np.array([4, -1, 3]), "from_rows": np.array([4, 2, -1, 2])},
}
T1 = "s = Shape (X)  t = Gather (s, s1)"
T2 = "s = Shape (X)  t = Gather (s, s2)"


def rated(
    nodes: str, shape: str = "2, 3, time", opset: int = 18, outputs: str = "float[p, q, r] Y"
) -> onnx.ModelProto:
    used = {name: array for name, array in NUMBERS.items() if name in nodes}
    held = {**used, **(recurrent("GRU", 3, 2, directions=2) if "GRU" in nodes else {})}
    return net(f"g (float[{shape}] X) => ({outputs}) {{ {nodes} }}", held, opset)


FIRST, BATCH_FIRST = "2, 3, time", "2, time, 3"

RATES: dict[str, tuple[str, str, int, str, list[int]]] = {
    # a net, the shape of X, the least number of frames, the rate of Y, the past frames
    "a stride": ("Y = Conv <pads = [1, 0], strides = [2]> (X, K3)", FIRST, 2, "1/2", [1]),
    "stride after stride": (
        """a = Conv <pads = [1, 0], strides = [2]> (X, K3)  b = Relu (a)
            Y = Conv <pads = [2, 0], strides = [2]> (b, K4)""",
        FIRST,
        4,
        "1/4",
        [1, 2],
    ),
    "strides of 2 and 3 with Pad": (
        """p = Pad (X, front2)  a = Conv <strides = [2]> (p, K4)
            Y = MaxPool <kernel_shape = [3], strides = [3]> (a)""",
        FIRST,
        6,
        "1/6",
        [2],
    ),
    "a mean of two": ("Y = AveragePool <kernel_shape = [2], strides = [2]> (X)", FIRST, 2, "1/2", []),
    "every third frame": ("Y = Slice (X, i0, far, i2, i3)", FIRST, 3, "1/3", []),
    "every third frame from the second on": ("Y = Slice (X, i1, far, i2, i3)", FIRST, 3, "1/3", []),
    "a stride and back by a kernel that is trimmed": (
        """a = Conv <pads = [2, 0], strides = [2]> (X, K4)  b = ConvTranspose <strides = [2]> (a, K4, bias)
            Y = Slice (b, i0, minus2, i2)""",
        FIRST,
        2,
        "1",
        [2, 1],
    ),
    "upsampling with output_padding": (
        """b = ConvTranspose <strides = [3], output_padding = [1]> (X, K4, bias)  Y = Slice (b, i0, minus2, i2)""",
        FIRST,
        1,
        "3",
        [1],
    ),
    "upsampling trimmed by its paddings": (
        "Y = ConvTranspose <strides = [2], pads = [0, 2]> (X, K4)",
        FIRST,
        1,
        "2",
        [1],
    ),
    "upsampling with a kernel of the stride": ("Y = ConvTranspose <strides = [3]> (X, K3)", FIRST, 1, "3", []),
    "upsampling with gaps": (
        "Y = ConvTranspose <strides = [3], output_padding = [1]> (X, K2, bias)",
        FIRST,
        1,
        "3",
        [],
    ),
    "upsampling, dilated": (
        "b = ConvTranspose <strides = [2], dilations = [3]> (X, K3)  Y = Slice (b, i0, m5, i2)".replace(
            "m5", "minus5"
        ),
        FIRST,
        1,
        "2",
        [3],
    ),
    "upsampling of padded frames": (
        "p = Pad (X, front2)  b = ConvTranspose <strides = [2], pads = [4, 2]> (p, K4)  Y = Tanh (b)",
        FIRST,
        1,
        "2",
        [2],
    ),
    "stacking, legacy": (
        f"""{T1}  h = Div (t, s2)  c = Cast <to = 7> (h)  d = Cast <to = 7> (c)  u = Unsqueeze (d, i0)
            n = Gather (s, s0)  m = Unsqueeze (n, i0)  q = Concat <axis = 0> (m, u, i6)  Y = Reshape (X, q)""",
        BATCH_FIRST,
        2,
        "1/2",
        [],
    ),
    "stacking, dynamo": (
        """b = Shape <start = 0, end = 1> (X)  t = Shape <start = 1, end = 2> (X)  u = Squeeze (t)  h = Div (u, s2)
            v = Reshape (h, minus1)  q = Concat <axis = 0> (b, v, i6)  Y = Reshape <allowzero = 1> (X, q)""",
        BATCH_FIRST,
        2,
        "1/2",
        [],
    ),
    "stacking, rounded up": (
        f"""{T1}  m = Add (t, s1)  h = Div (m, s2)  u = Unsqueeze (h, i0)  n = Gather (s, s0)
            b = Unsqueeze (n, i0)  q = Concat <axis = 0> (b, u, i6)  Y = Reshape (X, q)""",
        BATCH_FIRST,
        2,
        "1/2",
        [],
    ),
    "stacking of even and odd frames": (
        "a = Slice (X, i0, far, i2, i2)  b = Slice (X, i1, far, i2, i2)  Y = Concat <axis = 1> (a, b)",
        FIRST,
        2,
        "1/2",
        [],
    ),
    "a pixel shuffle": ("w = MatMul (X, wide)  Y = Reshape (w, of3)", BATCH_FIRST, 1, "2", []),
    "a pixel shuffle, dynamo": (
        """b = Shape <start = 0, end = 1> (X)  t = Shape <start = 1, end = 2> (X)  u = Squeeze (t)
            k = Mul (u, s2)  v = Reshape (k, minus1)  q = Concat <axis = 0> (b, v, i3)  w = MatMul (X, wide)
            Y = Reshape <allowzero = 1> (w, q)""",
        BATCH_FIRST,
        1,
        "2",
        [],
    ),
    "stacked and shuffled": ("a = Reshape (X, rows)  b = Tanh (a)  Y = Reshape (b, of3)", BATCH_FIRST, 2, "1", []),
    "repeat_interleave": (
        "u = Unsqueeze (X, i3)  e = Tile (u, pair)  Y = Reshape (e, back)",
        FIRST,
        1,
        "2",
        [],
    ),
    "nearest, scales": (
        """Y = Resize <mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor">
            (X, , by3)""",
        FIRST,
        1,
        "3",
        [],
    ),
    "nearest, sizes": (
        f"""{T2}  k = Mul (t, s4)  u = Unsqueeze (k, i0)  q = Concat <axis = 0> (i2, i3, u)
            Y = Resize <mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor">
            (X, , , q)""",
        FIRST,
        1,
        "4",
        [],
    ),
    "nearest, a quotient of sizes": (
        f"""{T2}  k = Mul (t, s4)  f = Cast <to = 1> (k)  g = Cast <to = 1> (t)  h = Div (f, g)
            u = Unsqueeze (h, i0)  o = Cast <to = 1> (i1)  q = Concat <axis = 0> (o, o, u)
            Y = Resize <mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor">
            (X, , q)""",
        FIRST,
        1,
        "4",
        [],
    ),
    "segments with a bidirectional node": (
        """g = Reshape (X, segment)  h = Transpose <perm = [3, 0, 2, 1]> (g)  r = Reshape (h, to_rows)
            y = GRU <hidden_size = 2, direction = "bidirectional"> (r, W, R, B)
            m = ReduceMean (y, i1)  n = Reshape (m, from_rows)  Y = Transpose <perm = [1, 3, 2, 0]> (n)""",
        FIRST,
        4,
        "1/4",
        [],
    ),
    "an STFT": (
        """p = Pad (X, in_front4)  u = Unsqueeze (p, i2)  f = STFT (u, four, window)
            Y = ReduceSumSquare <keepdims = 0> (f, i3)""",
        "2, time",
        4,
        "1/4",
        [4],
    ),
    "an encoder with a hop of 4 and overlap-add": (
        """p = Pad (X, in_front4)  u = Unsqueeze (p, i1)  e = Conv <strides = [4]> (u, E)  r = Relu (e)
            d = ConvTranspose <strides = [4]> (r, D)  w = Reshape (d, wave)  Y = Slice (w, i0, minus4, i1)""",
        "2, time",
        4,
        "1",
        [4, 1],
    ),
    "overlap-add by Col2Im": (
        """p = Pad (X, in_front4)  u = Unsqueeze (p, i1)  e = Conv <strides = [4]> (u, C)  r = Relu (e)
            h = Shape (r)  l = Gather (h, s2)  m = Sub (l, s1)  n = Mul (m, s4)  o = Add (n, eight)
            v = Unsqueeze (o, i0)  q = Concat <axis = 0> (i1, v)  f = Col2Im <strides = [1, 4]> (r, q, block)
            w = Gather <axis = 1> (f, s0)  a = Gather <axis = 1> (w, s0)  Y = Slice (a, i0, minus4, i1)""",
        "2, time",
        4,
        "1",
        [4, 1],
    ),
    "a stride and output_padding of the frequencies": (
        """u = Unsqueeze (X, i3)  w = Concat <axis = 3> (u, u, u)
            Y = ConvTranspose <strides = [1, 2], output_padding = [0, 1]> (w, frequencies)""",
        FIRST,
        1,
        "1",
        [],
    ),
}


@pytest.mark.filterwarnings("ignore:no state is carried")
@pytest.mark.parametrize("label", RATES)
def test_rates(label: str) -> None:
    nodes, shape, unit, rate, past = RATES[label]
    rank = (
        4
        if "frequencies" in label or "bidirectional" in label
        else 2
        if shape == "2, time" and "add" in label
        else 3
    )
    model = rated(nodes, shape, outputs=f"float[{', '.join('pqrs'[:rank])}] Y")
    stepped = {None: streamed(model, "time"), 2 * unit: streamed(model, {"time": 2 * unit}, "auto")}
    plan = plan_of(stepped[None])
    axis = plan["outputs"]["Y"]
    assert (plan["unit"], plan["rates"]) == (unit, {"Y": rate})
    states = [s["shape"] for s in plan["states"] if s["state"] == "x"]
    assert all(frames in dims for frames, dims in zip(past, states, strict=True))
    for count in (2, 6, 20):
        sizes = [int(d) if d.isdigit() else count * unit for d in shape.split(", ")]
        feed = {"X": random(sizes, count)}
        expected = whole(model, feed)["Y"]
        assert expected.shape[axis] == count * unit * Fraction(rate)
        for chunks in ([unit], [3 * unit, unit, 4 * unit]):
            got = chunked(stepped[None], feed, chunks)["Y"]
            np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5, err_msg=f"{count} {chunks}")
        got = chunked(stepped[2 * unit], feed, [2 * unit])["Y"]
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("hop", [128, 160, 320])
def test_hops_of_any_size(hop: int) -> None:
    """An encoder and a decoder with windows of two hops, a GRU between them."""
    weights = {**recurrent("GRU", 3, 3), "E": random((3, 1, 2 * hop), 1, 0.1), "D": random((3, 1, 2 * hop), 2, 0.1)}
    weights |= {
        "front": np.array([0, 0, hop, 0, 0, 0]),
        "i1": np.array([1]),
        "i0": np.array([0]),
        "i2": np.array([2]),
    }
    model = net(
        f"""g (float[2, 1, time] X) => (float[p, q, r] Y) {{
            p = Pad (X, front)  e = Conv <strides = [{hop}]> (p, E)  r = Relu (e)
            x = Transpose <perm = [2, 0, 1]> (r)  y = GRU <hidden_size = 3> (x, W, R, B)  s = Squeeze (y, i1)
            m = Transpose <perm = [1, 2, 0]> (s)  k = Mul (m, r)  d = ConvTranspose <strides = [{hop}]> (k, D)
            Y = Slice (d, i0, last, i2) }}""",
        {**weights, "last": np.array([-hop])},
    )
    assert plan_of(streamed(model, "time"))["unit"] == hop
    with pytest.raises(rl.UnsupportedError, match=f"must be a multiple of {hop}; give time={hop}"):
        streamed(model, {"time": hop // 2})
    feed = {"X": random((2, 1, 7 * hop), 3)}
    expected = whole(model, feed)["Y"]
    for stream, chunks in (("time", [hop, 3 * hop]), ({"time": hop}, [hop])):
        np.testing.assert_allclose(chunked(streamed(model, stream), feed, chunks)["Y"], expected, rtol=0, atol=1e-5)
    assert rl.verify_stream(model, streamed(model, "time"), check=rl.Check(runs=1))


LATE: dict[str, tuple[str, str, int]] = {
    "an STFT without paddings": (
        "u = Unsqueeze (X, i2)  f = STFT (u, four, window)  Y = ReduceSumSquare <keepdims = 0> (f, i3)",
        "1/4",
        1,
    ),
    "an STFT, centred, and a running mean": (
        """p = Pad (X, around4)  u = Unsqueeze (p, i2)  f = STFT (u, four, window)
            m = ReduceSumSquare <keepdims = 0> (f, i3)  c = CumSum (m, s1)  n = Slice (c, i0, minus1, i1)
            Y = Mul (n, hundredth)""",
        "1/4",
        0,
    ),
    "overlap-add of what is late": (
        """u = Unsqueeze (X, i1)  e = Conv <strides = [4]> (u, C)  r = Relu (e)
            h = Shape (r)  l = Gather (h, s2)  m = Sub (l, s1)  n = Mul (m, s4)  o = Add (n, eight)
            v = Unsqueeze (o, i0)  q = Concat <axis = 0> (i1, v)  f = Col2Im <strides = [1, 4]> (r, q, block)
            w = Gather <axis = 1> (f, s0)  a = Gather <axis = 1> (w, s0)  Y = Slice (a, i0, minus4, i1)""",
        "1",
        4,
    ),
}


@pytest.mark.filterwarnings("ignore:no state is carried")
@pytest.mark.parametrize("label", LATE)
def test_rates_of_what_is_late(label: str) -> None:
    nodes, rate, delay = LATE[label]
    model = rated(
        nodes, "2, time", outputs=f"float[{'p, q, r' if 'without' in label or 'centred' in label else 'p, q'}] Y"
    )
    stepped = streamed(model, "time", delay=True)
    plan = plan_of(stepped)
    assert (plan["unit"], plan["rates"], plan["delay"]) == (4, {"Y": rate}, {"Y": delay} if delay else {})
    for count in (3, 20):
        feed = {"X": random((2, 4 * count), count)}
        expected = expected_of(plan, model, feed)["Y"]
        for chunks in ([4], [12, 4, 16]):
            np.testing.assert_allclose(chunked(stepped, feed, chunks)["Y"], expected, rtol=0, atol=1e-5)


REFUSED: dict[str, tuple[str, str]] = {
    "linear": ('Y = Resize <mode = "linear"> (X, , by3)', "interpolates between frames, so it looks ahead"),
    "half a pixel ahead": ('Y = Resize <mode = "nearest"> (X, , by3)', "interpolates between frames"),
    "a ratio of axes that it keeps": (
        "b = Shape <end = 2> (X)  t = Shape <start = 2> (X)  d = Mul (t, i2)  z = Concat <axis = 0> (b, d)"
        '  Y = Resize <keep_aspect_ratio_policy = "not_larger", mode = "nearest", nearest_mode = "floor", '
        'coordinate_transformation_mode = "asymmetric"> (X, , , z)',
        "does not return one result per frame",
    ),
    "rates that differ": (
        "a = Slice (X, i0, far, i2, i2)  b = Slice (a, i0, far, i2, i2)  Y = Concat <axis = 1> (a, b)",
        "not aligned: .* 1/2 for each of the stream and .* 1/4",
    ),
    "a stride that is not trimmed": (
        "Y = ConvTranspose <strides = [2]> (X, K4)",
        "output 'Y' has 2 frames more than",
    ),
    "an STFT without frames before": (
        "u = Transpose <perm = [0, 2, 1]> (X)  c = Slice (u, i0, i1, i2)  Y = STFT (c, four, window)",
        "STFT node '-> Y' in main graph: looks 4 frames ahead",
    ),
}


@pytest.mark.parametrize("label", REFUSED)
def test_what_is_refused(label: str) -> None:
    nodes, message = REFUSED[label]
    with pytest.raises(rl.UnsupportedError, match=message):
        streamed(rated(nodes, outputs="float[p, q, r, o] Y" if "STFT" in nodes else "float[p, q, r] Y"), "time")
