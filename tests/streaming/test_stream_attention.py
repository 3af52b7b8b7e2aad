"""Causal self-attention becomes a stream with its past keys and values; a mask that is no function of the distance,
or that keeps later frames, is refused by name.

The oracle is onnxruntime on the original, at many lengths; i are the numbers of the queries, j those of the keys.
"""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from cases import Array
from onnx import numpy_helper
from running import run
from stream_models import chunked, expected_of, net, over, plan_of, rows, shown

import rnn_lowering as rl
from rnn_lowering.cli.command import main

POSITIONS = (
    "sh = Shape (X)  n = Gather (sh, 1)  r = Range (0, n, 1)  i = Unsqueeze (r, [1])  j = Unsqueeze (r, [0])"
)
SCORES = f"kt = Transpose <perm = [0, 2, 1]> (X)  s = MatMul (X, kt)  {POSITIONS}"
WEIGHED = "w = Softmax (m)  Y = MatMul (w, X)"
STREAMS = rows(
    """
# float[batch, time, 4] X { SCORES
k[batch, 4, 0]  v[batch, 0, 4]
    c = LessOrEqual (j, i)  m = Where (c, s, -1e9)  WEIGHED
    c = Less (i, j)  m = Where (c, -1e4, s)  WEIGHED
    n1 = Unsqueeze (n, [0])  z = Concat <axis = 0> (n1, n1)  f = Expand (1.0, z)  t = Trilu <upper = 0> (f)
        e = Equal (t, 0.0)  b = Where (e, -3.4028234663852886e38, 0.0)  m = Add (s, b)  WEIGHED
    n1 = Unsqueeze (n, [0])  z = Concat <axis = 0> (n1, n1)  f = ConstantOfShape (z)  g = Add (f, 1.0)
        t = Trilu (g, 1)  e = Greater (t, 0.5)  m = Where (e, -1e9, s)  WEIGHED
    d = Sub (i, j)  f = Cast <to = 1> (d)  c = GreaterOrEqual (f, 0.0)  b = Where (c, 0.0, -1e9)  m = Add (s, b)
        WEIGHED
    q = Tanh (s)  p = Mul (q, 5.0)  c = LessOrEqual (j, i)  b = Where (c, -0.0, 1e9)  m = Sub (p, b)  WEIGHED
    c = LessOrEqual (j, i)  b = Where (c, s, -1e9)  m = Div (b, 2.0)  WEIGHED
    c = Less (j, i)  d = Equal (i, j)  e = Or (c, d)  m = Where (e, s, -1e9)  w = Softmax (m)  u = Identity (w)
        Y = MatMul (u, X)
    c = LessOrEqual (j, i)  m = Where (c, s, -1e9)  p = Softmax (m)  w = Where (c, p, 0.0)  Y = MatMul (w, X)
    c = LessOrEqual (j, i)  x = Not (c)  m = Where (x, -1e9, s)  p = Softmax (m)  w = Where (x, 0.0, p)
        Y = MatMul (w, X)
    c = LessOrEqual (j, i)  m = Where (c, s, -1e9)  p = Softmax (m)  e = Less (i, j)  u = Where (e, 0.0, p)
        f = Cast <to = 1> (c)  w = Mul (f, u)  Y = MatMul (w, X)
    c = LessOrEqual (j, i)  m = Where (c, s, -1e9)  p = Softmax (m)  n1 = Unsqueeze (n, [0])
        z = Concat <axis = 0> (n1, n1)  f = Expand (1.0, z)  t = Trilu <upper = 0> (f)  w = Mul (p, t)
        Y = MatMul (w, X)
k[batch, 4, 4]  v[batch, 4, 4]  t[1]
    d = Sub (i, j)  c = LessOrEqual (0, d)  e = Less (d, 5)  g = And (c, e)  m = Where (g, s, -1e9)
        w = Softmax (m)  o = IsNaN (w)  u = Where (o, 0.0, w)  Y = MatMul (u, X)
    d = Sub (i, j)  c = LessOrEqual (0, d)  e = Less (d, 5)  g = And (c, e)  m = Where (g, s, -1e9)  WEIGHED
    d = Sub (i, j)  c = LessOrEqual (0, d)  h = Less (d, 5)  g = And (h, c)  m = Where (g, s, -1e9)
        p = Softmax (m)  w = Where (g, p, 0.0)  Y = MatMul (w, X)
    d = Sub (i, j)  c = LessOrEqual (0, d)  h = Less (d, 5)  g = And (h, c)  m = Where (g, s, -1e9)
        p = Softmax (m)  w = Where (c, p, 0.0)  Y = MatMul (w, X)
    d = Sub (i, j)  c = LessOrEqual (0, d)  h = Less (d, 5)  g = And (h, c)  m = Where (g, s, -1e9)
        p = Softmax (m)  q = Less (d, 9)  f = Cast <to = 1> (q)  w = Mul (p, f)  Y = MatMul (w, X)
    d = Sub (i, j)  c = LessOrEqual (0, d)  e = Less (d, 5)  p = Where (c, s, -1e9)  m = Where (e, p, -1e9)  WEIGHED
    d = Sub (j, i)  a = Abs (d)  e = Less (a, 5)  c = LessOrEqual (j, i)  g = And (c, e)  x = Not (g)
        m = Where (x, -1e9, s)  WEIGHED
    n1 = Unsqueeze (n, [0])  z = Concat <axis = 0> (n1, n1)  f = ConstantOfShape (z)  g = Add (f, 1.0)
        t = Trilu <upper = 0> (g)  u = Trilu (t, -4)  c = Cast <to = 9> (u)  m = Where (c, s, -1e9)  WEIGHED
    d = Sub (i, j)  f = Cast <to = 1> (d)  b = Mul (f, -0.3)  q = Add (s, b)  c = LessOrEqual (0, d)
        e = Less (d, 5)  g = And (c, e)  m = Where (g, q, -1e9)  WEIGHED
    d = Sub (i, j)  p = Clip (d, 0, 4)  b = Gather (table[5], p)  h = Equal (p, d)  q = Add (s, b)
        m = Where (h, q, -1e9)  WEIGHED
k[batch, 4, 6]  v[batch, 6, 4]  t[1]
    d = Sub (i, j)  a = Equal (d, 0)  b = Equal (d, 3)  c = Equal (d, 6)  e = Or (a, b)  g = Or (e, c)
        m = Where (g, s, -1e9)  WEIGHED
    p = Div (i, 3)  q = Div (j, 3)  d = Sub (p, q)  c = LessOrEqual (0, d)  e = LessOrEqual (d, 2)  g = And (c, e)
        m = Where (g, s, -1e9)  WEIGHED
k[batch, 4, 0]  v[batch, 0, 4]  t[1]
    d = Sub (i, j)  p = Clip (d, 0, 5)  b = Gather (table[6], p)  q = Add (s, b)  c = LessOrEqual (j, i)
        m = Where (c, q, -1e9)  WEIGHED
    p = Div (i, 3)  q = Div (j, 3)  c = LessOrEqual (q, p)  m = Where (c, s, -1e9)  WEIGHED
    p = Div (i, 3)  q = Div (j, 3)  c = LessOrEqual (q, p)  m = Where (c, s, -1e9)  v = Softmax (m)
        f = Cast <to = 1> (c)  w = Mul (v, f)  Y = MatMul (w, X)
    c = LessOrEqual (j, i)  m = Where (c, s, -1e9)  p = Softmax (m)  n1 = Unsqueeze (n, [0])
        e = Concat <axis = 0> (n1, n1)  u = Slice (LOWER, [0, 0], e)  z = Equal (u, 0)  w = Where (z, 0.0, p)
        Y = MatMul (w, X)
    e = Unsqueeze (n, [0])  t = Slice (LOWER, [0], e, [0])  u = Slice (t, [0], e, [1])  z = Equal (u, 0)
        m = Where (z, -1e9, s)  WEIGHED
    n1 = Unsqueeze (n, [0])  e = Concat <axis = 0> (n1, n1)  u = Slice (LOWER, [0, 0], e)  z = Equal (u, 0)
        m = Where (z, -1e9, s)  WEIGHED
x[batch, 3, 4]  k[batch, 4, 7]  v[batch, 7, 4]  t[1]
    d = Sub (i, j)  a = Abs (d)  c = Less (a, 4)  k = LessOrEqual (d, 4)  g0 = LessOrEqual (-3, d)  g = And (g0, k)
        m = Where (g, s, -1e9)  WEIGHED
x[batch, 4, 1]  x[batch, 3, 4]  k[batch, 4, 7]  v[batch, 7, 4]  t[1]
    xt = Transpose <perm = [0, 2, 1]> (X)  cv = Conv <pads = [1, 0]> (xt, K[4, 4, 2])
        Z = Transpose <perm = [0, 2, 1]> (cv)  s2 = MatMul (X, cv)  d = Sub (i, j)  c = LessOrEqual (-3, d)
        e = LessOrEqual (d, 4)  g = And (c, e)  m = Where (g, s2, -1e9)  WEIGHED
x[batch, 4, 1]  t[1]  k[batch, 4, 0]  v[batch, 0, 4]
    xt = Transpose <perm = [0, 2, 1]> (X)  cv = Conv <pads = [0, 1]> (xt, K[4, 4, 2])
        Z = Transpose <perm = [0, 2, 1]> (cv)  s2 = MatMul (Z, cv)  c = LessOrEqual (j, i)
        m = Where (c, s2, -1e9)  w = Softmax (m)  Y = MatMul (w, Z)
x[batch, 4, 1]  t[1]  k[batch, 4, 4]  v[batch, 4, 4]
    xt = Transpose <perm = [0, 2, 1]> (X)  cv = Conv <pads = [0, 1]> (xt, K[4, 4, 2])
        Z = Transpose <perm = [0, 2, 1]> (cv)  s2 = MatMul (Z, cv)  d = Sub (i, j)  c = LessOrEqual (0, d)
        e = Less (d, 5)  g = And (c, e)  m = Where (g, s2, -1e9)  w = Softmax (m)  Y = MatMul (w, Z)
x[batch, 4, 1]  x[batch, 4, 1]  x[batch, 1, 4]  t[1]  k[batch, 4, 3]  v[batch, 3, 4]  x[batch, 4, 1]
    xt = Transpose <perm = [0, 2, 1]> (X)  cv = Conv <pads = [0, 1]> (xt, K[4, 4, 2])  b = Add (cv, xt)
        Z = Transpose <perm = [0, 2, 1]> (b)  s2 = MatMul (Z, b)  d = Sub (i, j)  c = LessOrEqual (-1, d)
        e = Less (d, 3)  g = And (c, e)  m = Where (g, s2, -1e9)  w = Softmax (m)  A = MatMul (w, Z)
        t = Transpose <perm = [0, 2, 1]> (A)  u = Conv <pads = [1, 0]> (t, L[4, 4, 2])
        Y = Transpose <perm = [0, 2, 1]> (u)
k[batch, 4, 0]  v[batch, 0, 4]  k[batch, 4, 0]  v[batch, 0, 4]
    c = LessOrEqual (j, i)  m = Where (c, s, -1e9)  w1 = Softmax (m)  Z = MatMul (w1, X)  A = Add (Z, X)
        At = Transpose <perm = [0, 2, 1]> (A)  s2 = MatMul (A, At)  m2 = Where (c, s2, -1e9)  w2 = Softmax (m2)
        Y = MatMul (w2, A)
k[batch, 0, 4]  v[batch, 4, 0]
    s2 = MatMul (X, kt)  c = LessOrEqual (i, j)  m = Where (c, s2, -1e9)  w = Softmax <axis = 1> (m)
        Z = MatMul (kt, w)  Y = Transpose <perm = [0, 2, 1]> (Z)
k[batch, 0, 4]  v[batch, 0, 4]
    s2 = Einsum <equation = "bid,bjd->bij"> (X, X)  c = LessOrEqual (j, i)  m = Where (c, s2, -1e9)
        w = Softmax (m)  Y = Einsum <equation = "bij,bjd->bid"> (w, X)
k[batch, 2, 2, 0]  v[batch, 2, 0, 2]
    x4 = Reshape (X, [0, 0, 2, 2])  q = Transpose <perm = [0, 2, 1, 3]> (x4)
        k = Transpose <perm = [0, 2, 3, 1]> (x4)  s2 = MatMul (q, k)
        c = LessOrEqual (j, i)  m = Where (c, s2, -1e9)  w = Softmax (m)  o = MatMul (w, q)
        t = Transpose <perm = [0, 2, 1, 3]> (o)  Y = Reshape (t, [0, 0, 4])
k[2*batch, 2, 4]  v[2*batch, 4, 2]  t[1]
    x4 = Reshape (X, [0, 0, 2, 2])  q4 = Transpose <perm = [0, 2, 1, 3]> (x4)  b = Slice (sh, [0], [1])
        n1 = Unsqueeze (n, [0])  b2 = Mul (b, [2])  z3 = Concat <axis = 0> (b2, n1, [2])  q = Reshape (q4, z3)
        k = Transpose <perm = [0, 2, 1]> (q)  s2 = MatMul (q, k)  z4 = Concat <axis = 0> (b, [2], n1, n1)
        s4 = Reshape (s2, z4)  d = Sub (i, j)  c = LessOrEqual (0, d)  e = Less (d, 5)  g = And (c, e)
        m = Where (g, s4, -1e9)  w4 = Softmax (m)  z5 = Concat <axis = 0> (b2, n1, n1)  w = Reshape (w4, z5)
        o = MatMul (w, q)  z6 = Concat <axis = 0> (b, [2], n1, [2])  o4 = Reshape (o, z6)
        t = Transpose <perm = [0, 2, 1, 3]> (o4)  Y = Reshape (t, [0, 0, 4])
t[1]  k[batch, 4, 0]  v[batch, 0, 4]
    f = Cast <to = 1> (i)  a = Mul (f, angle[4])  p = Sin (a)  q = Add (X, p)  k = Transpose <perm = [0, 2, 1]> (q)
        s2 = MatMul (q, k)  c = LessOrEqual (j, i)  m = Where (c, s2, -1e9)  WEIGHED
k[batch, 4, 4]  v[batch, 4, 4]  t[1]
    d = Sub (i, j)  q = Div (d, 5)  e = LessOrEqual (q, 0)  c = LessOrEqual (0, d)  a = And (c, e)
        m = Where (a, s, -1e9)  WEIGHED
    d = Sub (i, j)  f = Cast <to = 1> (d)  q = Div (f, 5.0)  h = Cast <to = 7> (q)  e = LessOrEqual (h, 0)
        c = LessOrEqual (0, d)  g = And (c, e)  m = Where (g, s, -1e9)  WEIGHED
    d = Sub (i, j)  f = Cast <to = 1> (d)  q = Div (f, 5.0)  h = Floor (q)  e = Equal (h, 0.0)
        m = Where (e, s, -1e9)  WEIGHED
""".replace("WEIGHED", WEIGHED).replace("SCORES", SCORES)
)
LOWER = {"LOWER": np.tril(np.ones((320, 320), np.int64))}


def attention(head: str, nodes: str) -> onnx.ModelProto:
    return over(head, nodes, LOWER, 18)


def feed_of(frames: int, batch: int = 2, seed: int = 0) -> dict[str, Array]:
    return {"X": np.random.default_rng((seed, frames)).standard_normal((batch, frames, 4)).astype(np.float32)}


def streamed(model: onnx.ModelProto, stream: str, **options: Any) -> onnx.ModelProto:
    held = ir.from_proto(model)
    rl.StreamPass(stream, True, **options)(held)
    proto = ir.to_proto(held)
    onnx.checker.check_model(proto, full_check=True)
    return proto


def assert_equal(
    model: onnx.ModelProto, stepped: onnx.ModelProto, frames: int, sizes: list[int], batch: int
) -> None:
    feed = feed_of(frames, batch)
    expected = expected_of(plan_of(stepped), model, feed)
    got = chunked(stepped, feed, sizes)
    for name, array in got.items():
        np.testing.assert_allclose(array, expected[name], rtol=0, atol=2e-5, err_msg=f"{frames} in {sizes}")


@pytest.mark.few(5)
@pytest.mark.parametrize(("number", "head", "states", "nodes"), [(n, *row) for n, row in enumerate(STREAMS)])
def test_attention_streams(number: int, head: str, states: str, nodes: str) -> None:
    model, unit = attention(head, nodes), 3 if "Div (i, 3)" in nodes else 1
    stepped = streamed(model, f"time={unit}")
    assert shown(plan_of(stepped)) == states
    assert_equal(model, stepped, 12 * unit, [unit], 1)
    if number % 3:
        return
    if number % 2 and "Equal (d, 3)" not in nodes:  # its mask has gaps
        assert_equal(model, streamed(model, "time"), 20 * unit, [unit, 4 * unit, 2 * unit, 9 * unit], 2)
    else:
        assert_equal(model, streamed(model, f"time={3 * unit}"), 12 * unit, [3 * unit], 2)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("head", "states", "nodes"), STREAMS)
def test_every_size_of_calls(head: str, states: str, nodes: str) -> None:
    model, unit = attention(head, nodes), 3 if "Div (i, 3)" in nodes else 1
    for frames, sizes in ((unit, [unit]), (3 * unit, [3 * unit]), (None, [unit, 4 * unit, 2 * unit, 9 * unit])):
        if frames is None and "Equal (d, 3)" in nodes:
            continue  # its mask has gaps
        stepped = streamed(model, "time" if frames is None else f"time={frames}")
        for length in (1, 2, 5, 12, 40, 100):
            assert_equal(model, stepped, length * sizes[0], sizes, 1 + length % 3)


def test_one_frame_a_call_needs_no_mask_of_all_frames() -> None:
    types = [node.op_type for node in streamed(CAUSAL, "time=1").graph.node]
    assert {"Where", "Less", "Range", "Gather", "Shape"}.isdisjoint(types)


def of_title(title: str) -> tuple[str, str]:
    head, _, nodes = next(row for row in STREAMS if row[1] == title)
    return head, nodes


CAUSAL = attention(*of_title("k[batch, 4, 0]  v[batch, 0, 4]"))
WINDOW = attention(*of_title("k[batch, 4, 4]  v[batch, 4, 4]  t[1]"))


def test_the_metadata_say_what_grows() -> None:
    plan = plan_of(streamed(CAUSAL, "time=1"))
    assert [state["grows"] for state in plan["states"]] == [2, 1]
    assert "max_frames" not in plan
    assert ["grows" in state for state in plan_of(streamed(WINDOW, "time=1"))["states"]] == [False] * 3


def test_a_host_runs_a_stream_that_grows() -> None:
    stream = rl.Stream(streamed(CAUSAL, "time"))
    for batch in (1, 3):
        feed = feed_of(20, batch)["X"]
        parts = [stream({"X": feed[:, a:b]})["Y"] for a, b in ((0, 1), (1, 8), (8, 9), (9, 20))]
        np.testing.assert_allclose(np.concatenate(parts, 1), run(CAUSAL, {"X": feed})["Y"], rtol=0, atol=1e-5)
        assert stream.states[stream.plan.states[0].input].shape == (batch, 4, 20)
        stream.reset()


@pytest.mark.parametrize("frames", [1, 3, None])
def test_max_frames_gives_fixed_shapes_and_an_end(frames: int | None) -> None:
    stepped = streamed(CAUSAL, "time" if frames is None else f"time={frames}", max_frames=12)
    plan = plan_of(stepped)
    assert plan["max_frames"] == 12
    assert shown(plan) == "k[batch, 4, 11]  v[batch, 11, 4]  t[1]"
    for length in (3, 12):
        assert_equal(CAUSAL, stepped, length, [frames or 4], 2)
    with pytest.raises(Exception, match="out of"):
        chunked(stepped, feed_of(12 + (frames or 1)), [frames or 4])
    stream = rl.Stream(stepped)
    calls = -(-12 // (frames or 1))
    for _ in range(calls):
        stream(feed_of(frames or 1))
    before = dict(stream.states)
    with pytest.raises(rl.OptionError, match=r"has at most 12 frames .* comes after 12; reset the stream"):
        stream(feed_of(frames or 1))
    assert stream.states.keys() == before.keys()
    assert all(stream.states[name] is before[name] for name in before)
    stream.reset()
    stream(feed_of(frames or 1))


def test_a_bias_of_all_distances_needs_max_frames() -> None:
    model = attention(
        "float[batch, time, 4] X",
        f"""{SCORES}  d = Sub (i, j)  f = Cast <to = 1> (d)  b = Mul (f, -0.3)  q = Add (s, b)
        c = LessOrEqual (j, i)
        m = Where (c, q, -1e9)  {WEIGHED}""",
    )
    with pytest.raises(rl.UnsupportedError, match=r"all past frames.*cache of fixed size; max_frames=N"):
        streamed(model, "time=1")
    for stream, sizes in (("time=1", [1]), ("time=3", [3]), ("time", [2, 5, 1])):
        assert_equal(model, streamed(model, stream, max_frames=30), 30, sizes, 2)


def test_a_bias_that_removes_past_keys_far_away() -> None:
    nodes = "d = Sub (i, j)  c = LessOrEqual (0, d)  a = Where (c, s, -1e9)  u = Mod (d, 40)  e = Less (u, 20)"
    model = attention(
        "float[batch, time, 4] X", f"{SCORES}  {nodes}  b = Where (e, 0.0, -1e9)  m = Add (a, b)  {WEIGHED}"
    )
    stepped = streamed(model, "time=1", max_frames=90)
    assert_equal(model, stepped, 90, [1], 1)


@pytest.mark.filterwarnings("ignore:left for ncnn")
def test_targets_with_fixed_sizes_need_max_frames() -> None:
    for target in ("mnn", "tvm"):
        with pytest.raises(rl.UnsupportedError, match=r"grows, and .* needs a cache of fixed size; max_frames=N"):
            rl.lower(CAUSAL, target=target, stream="time=1", dims={"batch": 1})
        lowered = rl.lower(CAUSAL, target=target, stream="time=1", dims={"batch": 1}, max_frames=8)
        assert_equal(CAUSAL, lowered, 8, [1], 1)


def test_openvino_gets_a_softmax_apart_from_its_products() -> None:
    """It joins them in one kernel, which is wrong if the number of keys grows. That of a window is fixed."""
    for model, most, apart in ((CAUSAL, None, True), (CAUSAL, 8, False), (WINDOW, None, False)):
        lowered = rl.lower(model, target="openvino", stream="time=1", max_frames=most)
        nodes = [node.op_type for node in lowered.graph.node]
        assert [nodes.count(op) for op in ("Unsqueeze", "Softmax", "Squeeze")] == [int(apart), 1, int(apart)]
        assert_equal(model, lowered, 8, [1], 2)


@pytest.mark.parametrize("window", ["", "  z = Less (o, 5)  c = And (c0, z)"])
def test_a_mask_of_chunks_and_distances(window: str) -> None:
    """It depends on the position in a chunk too, and a bias sees the whole chunk."""
    last = "c" if window else "c0"
    model = attention(
        "float[batch, time, 4] X",
        f"""{SCORES}  p = Div (i, 3)  q = Div (j, 3)  d = Sub (p, q)  a = LessOrEqual (0, d)  e = LessOrEqual (d, 2)
        g = And (a, e)  o = Sub (i, j)  f = LessOrEqual (0, o)  c0 = And (f, g){window}
        u = Cast <to = 1> (o)  v = Mul (u, 0.3)  q2 = Add (s, v)  m = Where ({last}, q2, -1e9)  {WEIGHED}""",
    )
    for frames in (3, 6):
        assert_equal(model, streamed(model, f"time={frames}"), 30, [frames], 2)
    with pytest.raises(rl.UnsupportedError, match="its mask has gaps"):
        streamed(model, "time")


@pytest.mark.parametrize("stream", ["time=3", "time=6", "time"])
@pytest.mark.parametrize("last", [1, 2])
def test_a_bias_in_chunks(stream: str, last: int) -> None:
    model = attention(
        "float[batch, time, 4] X",
        f"""{SCORES}  p = Div (i, 3)  q = Div (j, 3)  d = Sub (p, q)  a = LessOrEqual (0, d)
        e = LessOrEqual (d, {last})  g = And (a, e)
        o = Sub (i, j)  u = Cast <to = 1> (o)  v = Mul (u, 0.3)  q2 = Add (s, v)
        m = Where (g, q2, -1e9)  {WEIGHED}""",
    )
    assert_equal(model, streamed(model, stream), 30, [3] if stream == "time=3" else [6], 2)


def test_the_end_of_a_late_stream() -> None:
    head, nodes = next(
        (head, nodes) for head, states, nodes in STREAMS if states.startswith("x[batch, 4, 1]  t[1]")
    )
    model = attention(head, nodes)
    stepped = streamed(model, "time=1", max_frames=12)
    assert_equal(model, stepped, 12, [1], 2)
    assert rl.verify_stream(model, stepped, runs=1).status == "verified"
    with pytest.raises(rl.UnsupportedError, match="ends after frame 12, and comes 1 late, which is no multiple"):
        streamed(model, "time=3", max_frames=12)


def test_attention_behind_strides_and_cuts() -> None:
    """Its frames are others than those of the stream."""
    for stride, kernel, unit in ((2, 2, 2), (3, 3, 3), (1, 3, 1)):
        model = attention(
            "float[batch, time, 4] X",
            f"""xt = Transpose <perm = [0, 2, 1]> (X)  cv = Conv <strides = [{stride}]> (xt, K[4, 4, {kernel}])
            Z = Transpose <perm = [0, 2, 1]> (cv)  s = MatMul (Z, cv)  sh = Shape (Z)  n = Gather (sh, 1)
            r = Range (0, n, 1)  i = Unsqueeze (r, [1])  j = Unsqueeze (r, [0])
            d = Sub (i, j)  c = LessOrEqual (0, d)  e = Less (d, 5)  g = And (c, e)  p = Clip (d, 0, 4)
            b = Gather (table[5], p)  q = Add (s, b)  m = Where (g, q, -1e9)  w = Softmax (m)  Y = MatMul (w, Z)""",
        )
        assert_equal(model, streamed(model, f"time={unit}"), 24, [unit], 2)
        assert_equal(model, streamed(model, "time"), 24, [unit, 3 * unit], 2)


def test_a_table_behind_an_upsampling() -> None:
    """It has 40 rows, and a call brings three frames."""
    model = attention(
        "float[batch, time, 4] X",
        """xt = Transpose <perm = [0, 2, 1]> (X)  cv = ConvTranspose <strides = [3]> (xt, K[4, 4, 3])
        Z = Transpose <perm = [0, 2, 1]> (cv)  s = MatMul (Z, cv)  sh = Shape (Z)  n = Gather (sh, 1)
        e = Unsqueeze (n, [0])  h = Slice (LOWER, [0], [40], [0])  t = Slice (h, [0], e, [0])
        u = Slice (t, [0], e, [1])  z = Equal (u, 0)  r = Range (0, n, 1)  i = Unsqueeze (r, [1])
        j = Unsqueeze (r, [0])  d = Sub (i, j)  p = Clip (d, 0, 20)  b = Gather (table[21], p)  q = Add (s, b)
        m = Where (z, -1e9, q)  w = Softmax (m)  Y = MatMul (w, Z)""",
    )
    stepped = streamed(model, "time=1")
    assert plan_of(stepped)["max_frames"] == 13
    assert_equal(model, stepped, 13, [1], 2)


@pytest.mark.few(1)
@pytest.mark.parametrize("frames", [1, 3, None])
def test_zeros_behind_a_late_stream_come_before_the_end(frames: int | None) -> None:
    """The first layer sees the zeros that the second one waits for."""
    model = attention(
        "float[batch, time, 4] X",
        f"""{SCORES}  c = LessOrEqual (j, i)  m = Where (c, s, -1e9)  w1 = Softmax (m)  Z = MatMul (w1, X)
        zt = Transpose <perm = [0, 2, 1]> (Z)  s2 = MatMul (Z, zt)  d = Sub (i, j)  a = LessOrEqual (-2, d)
        e = Less (d, 4)  g = And (a, e)  m2 = Where (g, s2, -1e9)  w = Softmax (m2)  Y = MatMul (w, Z)""",
    )
    stepped = streamed(model, "time" if frames is None else f"time={frames}", max_frames=12)
    most = {1: 10, 3: 9, None: 10}[frames]
    assert plan_of(stepped)["max_frames"] == most
    assert_equal(model, stepped, most, [frames or 5], 2)
    assert rl.verify_stream(model, stepped, runs=1).status == "verified"
    with pytest.raises(rl.UnsupportedError, match="ends after 2 frames, of which 2 are the zeros behind"):
        streamed(model, "time=1", max_frames=2)


def test_max_frames_needs_a_stream() -> None:
    with pytest.raises(rl.OptionError, match=r"a maximum of frames needs a stream; add stream"):
        rl.lower(CAUSAL, max_frames=8)


@pytest.mark.parametrize("frames", [4, 8])
def test_max_frames_is_a_multiple_of_the_frames_of_a_call(frames: int) -> None:
    match = f"6 frames is no multiple of the {frames} frames of a call; give a multiple: max_frames=8"
    with pytest.raises(rl.OptionError, match=match):
        rl.lower(CAUSAL, stream=f"time={frames}", max_frames=6)
    with pytest.raises(rl.OptionError, match=match):
        rl.StreamPass(f"time={frames}", max_frames=6)


def test_max_frames_without_an_attention_to_all_frames_is_noted() -> None:
    for model, noted in ((WINDOW, True), (CAUSAL, False)):
        _, report = rl.lower(model, stream="time=1", max_frames=8, full=True)
        assert any("max_frames had no effect" in note for note in report.notes) == noted


def test_a_cache_that_is_too_large() -> None:
    with pytest.raises(rl.UnsupportedError, match=r"over the limit of .*; use a smaller max_frames"):
        rl.lower(CAUSAL, stream="time=1", max_frames=10**9)


def test_a_stream_of_one_call_is_not_compared() -> None:
    found = rl.verify_stream(CAUSAL, streamed(CAUSAL, "time=8", max_frames=8))
    assert found.status == "not verified"
    assert "it has at most 8 frames (a larger max_frames, or fewer" in found.reason


@pytest.mark.parametrize(
    "given",
    [["--stream", "time", "--max-frames", "0"], ["--stream", "time", "--max-frames", "-3"], ["--max-frames", "3"]],
)
def test_a_wrong_maximum_is_wrong_usage(
    given: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx.save(CAUSAL, tmp_path / "in.onnx")
    try:
        code: object = main([str(tmp_path / "in.onnx"), str(tmp_path / "out.onnx"), *given])
    except SystemExit as ended:
        code = ended.code
    assert code == 2
    assert ("must be 1 or more" if "--stream" in given else "needs a stream") in capsys.readouterr().err
    assert not (tmp_path / "out.onnx").exists()


def test_a_table_ends_the_stream() -> None:
    head, nodes = next((head, nodes) for head, _, nodes in STREAMS if "Slice (LOWER" in nodes)
    stream = rl.Stream(streamed(attention(head, nodes), "time=1"))
    assert stream.plan.max_frames == 320
    first = {"k": np.zeros((1, 4, 319)), "v": np.zeros((1, 319, 4)), "t": np.array([319])}
    stream.reset({state.input: first[state.state].astype(state.dtype) for state in stream.plan.states})
    stream(feed_of(1, 1))
    with pytest.raises(rl.OptionError, match=r"at most 320 frames .* comes after 320"):
        stream(feed_of(1, 1))
    states = {s.input: first[s.state].astype(s.dtype) + (s.state == "t") for s in stream.plan.states}
    with pytest.raises(Exception, match="out of"):
        stream.session.run(None, feed_of(1, 1) | states)


COMPARED = [
    pytest.param(CAUSAL, "time=1", {}, id="all frames"),
    pytest.param(CAUSAL, "time", {"max_frames": 40}, id="40 frames"),
    pytest.param(WINDOW, "time", {}, id="window", marks=pytest.mark.exhaustive),
    pytest.param(CAUSAL, "time", {}, id="all frames, any number", marks=pytest.mark.exhaustive),
    pytest.param(CAUSAL, "time=3", {"max_frames": 42}, id="42 frames, 3 at once", marks=pytest.mark.exhaustive),
]


@pytest.mark.few(1)
@pytest.mark.parametrize(("model", "stream", "options"), COMPARED)
def test_the_comparison_runs(model: onnx.ModelProto, stream: str, options: Any) -> None:
    result = rl.verify_stream(model, rl.lower(model, stream=stream, **options))
    assert (result.status, result.reason) == ("verified", "")


def _node(model: onnx.ModelProto, op_type: str) -> onnx.NodeProto:
    found: onnx.NodeProto = next(node for node in model.graph.node if node.op_type == op_type)
    return found


def _constant(model: onnx.ModelProto, name: str, change: Any) -> None:
    (tensor,) = [tensor for tensor in model.graph.initializer if tensor.name == name]
    tensor.CopyFrom(numpy_helper.from_array(change(numpy_helper.to_array(tensor)), name))


def _producer(model: onnx.ModelProto, name: str) -> onnx.NodeProto:
    found: onnx.NodeProto = next(node for node in model.graph.node if name in node.output)
    return found


def _zero(model: onnx.ModelProto, node: onnx.NodeProto, slot: int) -> None:
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(1, np.int64), "zero"))
    node.input[slot] = "zero"


LEARNED = {
    "cut": "n1 = Unsqueeze (n, [0])  p = Slice (wpe[20, 4], [0], n1, [0])",
    "picked": "p = Gather (wpe[20, 4], r)",
    "picked from the third row on": "r2 = Add (r, 2)  p = Gather (wpe[20, 4], r2)",
}


@pytest.mark.parametrize(("name", "last"), list(zip(LEARNED, (20, 20, 18), strict=True)))
def test_learned_positions_end_the_stream(name: str, last: int) -> None:
    """The metadata say after how many frames, and the next one is an error."""
    model = over("float[1, time, 4] X", f"{POSITIONS}  {LEARNED[name]}  a = Add (X, p)  Y = CumSum (a, 1)")
    stepped = streamed(model, "time=1")
    assert plan_of(stepped)["max_frames"] == last
    feed = feed_of(last, 1)
    np.testing.assert_allclose(chunked(stepped, feed, [1])["Y"], run(model, feed)["Y"], rtol=0, atol=1e-5)
    with pytest.raises(Exception, match=r"out of data bounds|indices element"):
        chunked(stepped, feed_of(last + 1, 1), [1])
    assert rl.verify_stream(model, stepped, runs=1).status == "verified"


@pytest.mark.parametrize("rows", [(20, 12), (12, 20)], ids=str)
def test_the_table_that_ends_first_ends_the_stream(rows: tuple[int, int]) -> None:
    tables = "p = Gather (one[{}, 4], r)  q = Gather (other[{}, 4], r)".format(*rows)
    model = over("float[1, time, 4] X", f"{POSITIONS}  {tables}  s = Add (p, q)  a = Add (X, s)  Y = CumSum (a, 1)")
    assert plan_of(streamed(model, "time=1"))["max_frames"] == 12


def test_the_zeros_behind_a_late_stream_have_learned_positions_too() -> None:
    nodes = f"""{POSITIONS}  p = Gather (wpe[20, 4], r)  a = Add (X, p)  t = Transpose <perm = [0, 2, 1]> (a)
        c = Conv <pads = [1, 1]> (t, K[4, 4, 3])  Y = Transpose <perm = [0, 2, 1]> (c)"""
    model = over("float[1, time, 4] X", nodes)
    stepped = rl.lower(model, stream="time=1", delay=1)
    assert (plan_of(stepped)["max_frames"], plan_of(stepped)["delay"]) == (19, {"Y": 1})
    assert rl.verify_stream(model, stepped, runs=1).status == "verified"


def test_attention_in_float64_is_scaled_as_onnx_defines() -> None:
    """By a number in float32: by one in float64 the outputs are 1e-9 apart."""
    model = net(
        """g (double[2, time, 4] X) => (double[2, 2, time, 2] Y) { q = Reshape (X, [0, 0, 2, 2])
        t = Transpose <perm = [0, 2, 1, 3]> (q)  Y = Attention <is_causal = 1> (t, t, t) }""",
        opset=24,
    )
    feed = {"X": np.random.default_rng(1).standard_normal((2, 9, 4))}
    got = chunked(rl.lower(model, stream="time=1"), feed, [1])
    np.testing.assert_allclose(got["Y"], run(model, feed)["Y"], rtol=0, atol=1e-12)


def too_old(model: onnx.ModelProto) -> None:
    """The past rows are one frame too old."""
    for state in ("k", "v"):
        rows_kept = _producer(model, _producer(model, f"present_w_{state}").input[0])
        for name in rows_kept.input[1:3]:
            _constant(model, name, lambda array: np.where(array > 1000, -1, array - 1))


def in_other_order(model: onnx.ModelProto) -> None:
    """The past values come behind those of the call, unlike the keys."""
    joined = next(n for n in model.graph.node if n.op_type == "Concat" and n.input[0] == "past_w_v")
    joined.input[:] = joined.input[::-1]


def unmasked(model: onnx.ModelProto) -> None:
    """Keys before frame 0 are kept."""
    before = next(n for n in model.graph.node if n.op_type == "Sub" and n.input[1] == "past_frames_t")
    _constant(model, before.input[0], lambda array: array - 1000)


def not_carried(model: onnx.ModelProto) -> None:
    """The number of frames stays 0."""
    carried = _producer(model, _producer(model, "present_frames_t").input[0])
    _zero(model, carried, [*carried.input].index("past_frames_t") ^ 1)


def one_later(model: onnx.ModelProto) -> None:
    """The mask keeps one key more, as of Trilu(k + 1)."""
    masks = [t.name for t in model.graph.initializer if t.data_type == onnx.TensorProto.BOOL]
    if masks:
        _constant(model, masks[0], lambda array: np.roll(array, 1, -1))
        return
    later = next(n for n in model.graph.node if n.op_type == "Less" and "Sub" in n.input[0])
    _constant(model, later.input[1], lambda array: array - 1)


def upper_left(model: onnx.ModelProto) -> None:
    """The mask is that of the upper left corner, as of Trilu(k) where it should be Trilu(k + P)."""
    queries = next(
        n for n in model.graph.node if n.op_type == "Add" and "past_frames_t" in n.input and n is not _last(model)
    )
    _zero(model, queries, [*queries.input].index("past_frames_t"))


def _last(model: onnx.ModelProto) -> onnx.NodeProto:
    return _producer(model, _producer(model, "present_frames_t").input[0])


def without_end(model: onnx.ModelProto) -> None:
    """The stream goes on behind its last frame."""
    end = next(n for n in model.graph.node if n.op_type == "Gather" and n.input[0].startswith("stream_constant"))
    _constant(model, end.input[0], lambda array: np.zeros(100, array.dtype))


TRILU = attention(*next((head, nodes) for head, _, nodes in STREAMS if "Trilu (g, 1)" in nodes))
PLANTED = [
    (CAUSAL, "time=1", None, [in_other_order]),
    (CAUSAL, "time=3", None, [in_other_order, not_carried, one_later, upper_left]),
    (CAUSAL, "time", None, [in_other_order, not_carried, one_later, upper_left]),
    (CAUSAL, "time=1", 12, [too_old, in_other_order, unmasked, not_carried, without_end]),
    (CAUSAL, "time=3", 12, [too_old, in_other_order, unmasked, not_carried, one_later, without_end]),
    (CAUSAL, "time", 12, [too_old, in_other_order, unmasked, not_carried, one_later, without_end]),
    (TRILU, "time=3", None, [one_later, upper_left]),
    (TRILU, "time=3", 12, [one_later]),
    (WINDOW, "time=1", None, [too_old, in_other_order, unmasked, not_carried]),
    (WINDOW, "time=3", None, [too_old, in_other_order, unmasked, not_carried, one_later]),
    (WINDOW, "time", None, [too_old, in_other_order, unmasked, not_carried, one_later]),
]


@pytest.mark.few(1)
@pytest.mark.parametrize(("model", "stream", "most", "faults"), PLANTED)
def test_the_comparison_finds(model: onnx.ModelProto, stream: str, most: int | None, faults: list[Any]) -> None:
    stepped = rl.lower(model, stream=stream, max_frames=most)
    found = {}
    for fault in faults:
        planted = onnx.ModelProto()
        planted.CopyFrom(stepped)
        fault(planted)
        found[fault.__name__] = rl.verify_stream(model, planted, runs=1).status
    assert found == {fault.__name__: "failed" for fault in faults}
    assert rl.verify_stream(model, stepped, runs=1).status == "verified"


def test_the_comparison_finds_a_stream_that_goes_on() -> None:
    stepped = rl.lower(CAUSAL, stream="time=1", max_frames=12)
    node = _node(stepped, "Gather")
    _constant(stepped, node.input[0], lambda array: np.zeros(100, array.dtype))
    result = rl.verify_stream(CAUSAL, stepped, runs=1)
    assert (result.status, result.reason) == ("failed", "runs on after frame 12, the last one")


@pytest.mark.parametrize("most", [5, 60])
def test_a_stream_is_compared_up_to_its_last_frame(most: int) -> None:
    check = rl.verify_stream(CAUSAL, rl.lower(CAUSAL, stream="time", max_frames=most))
    assert check, check.reason
    assert check.method.endswith(f"sequences of up to {most} frames")


OPERATOR = rows(
    """
# float[batch, time, 4] X { SCORES
k[batch, 2, 2, 0]  v[batch, 2, 0, 2]
    Y = Attention <q_num_heads = 2, kv_num_heads = 2, is_causal = 1> (X, X, X)
    Y = Attention <q_num_heads = 2, kv_num_heads = 2, is_causal = 1, softcap = 0.7> (X, X, X)
    Y = Attention <q_num_heads = 2, kv_num_heads = 2, is_causal = 1, softmax_precision = 1> (X, X, X)
k[batch, 2, 4, 4]  v[batch, 2, 4, 4]  t[1]
    q = Concat <axis = 2> (X, X)  d = Sub (i, j)  c = LessOrEqual (0, d)  e = Less (d, 5)  g = And (c, e)
        A = Attention <q_num_heads = 2, kv_num_heads = 1, scale = 0.7> (q, X, X, g)  Y = Slice (A, [0], [4], [2])
k[batch, 2, 2, 4]  v[batch, 2, 4, 2]  t[1]
    x4 = Reshape (X, [0, 0, 2, 2])  q = Transpose <perm = [0, 2, 1, 3]> (x4)  d = Sub (i, j)  e = Less (d, 5)
        b = Where (e, 0.0, -1e9)  o = Attention <is_causal = 1> (q, q, q, b)
        t = Transpose <perm = [0, 2, 1, 3]> (o)  Y = Reshape (t, [0, 0, 4])
k[batch, 1, 4, 4]  v[batch, 1, 4, 4]  t[1]
    d = Sub (i, j)  g = Less (d, 5)
        Y = Attention <q_num_heads = 1, kv_num_heads = 1, is_causal = 1> (X, X, X, g)
    d = Sub (i, j)  e = Less (d, 5)  b = Where (e, 0.0, -1e9)
        Y = Attention <q_num_heads = 1, kv_num_heads = 1, is_causal = 1> (X, X, X, b, , )
""".replace("SCORES", SCORES)
)


@pytest.mark.few(3)
@pytest.mark.parametrize(("head", "states", "nodes"), OPERATOR)
def test_the_operator_streams(head: str, states: str, nodes: str) -> None:
    model = over(head, nodes, opset=23)
    for stream, sizes in (("time=1", [1]), ("time", [2, 5, 1])):
        stepped = streamed(model, stream)
        if sizes == [1]:
            assert shown(plan_of(stepped)) == states
        assert_equal(model, stepped, 24, sizes, 2)


LAST_3 = "k[batch, 2, 2, 3]  v[batch, 2, 3, 2]  t[1]"


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("window", "states"),
    [
        ("is_causal = 1, left_window_size = 3", LAST_3),
        ("left_window_size = 3, right_window_size = 0, softcap = 2.0", LAST_3),
        ("right_window_size = 0", "k[batch, 2, 2, 0]  v[batch, 2, 0, 2]"),
        (
            "left_window_size = 4, right_window_size = 2",
            "x[batch, 2, 2, 2]  k[batch, 2, 2, 6]  v[batch, 2, 6, 2]  t[1]",
        ),
    ],
)
def test_the_operator_with_a_window_streams(window: str, states: str) -> None:
    node = f"Y = Attention <q_num_heads = 2, kv_num_heads = 2, {window}> (X, X, X)"
    model = over("float[batch, time, 4] X", node, opset=25)
    for stream, sizes in (("time=1", [1]), ("time", [2, 5, 1])):
        stepped = streamed(model, stream)
        if sizes == [1]:
            assert shown(plan_of(stepped)) == states
        assert_equal(model, stepped, 24, sizes, 2)


OPERATORS_OF_MICROSOFT = rows(
    """
# float[batch, time, 4] X => float[batch, time, 4] Y { SCORES
k[batch, 2, 2, 0]  v[batch, 2, 0, 2]
    Y = com.microsoft.MultiHeadAttention <num_heads = 2, unidirectional = 1> (X, X, X)
    Y = com.microsoft.MultiHeadAttention <num_heads = 2, unidirectional = 1, scale = 0.3> (X, X, X, bias[12])
    Y = com.microsoft.Attention <num_heads = 2, unidirectional = 1> (X, W[4, 12], bias[12])
    c = LessOrEqual (j, i)  b = Where (c, 0.0, -1e9)  u = Unsqueeze (b, [0, 1])
        Y = com.microsoft.MultiHeadAttention <num_heads = 2> (X, X, X, , , u)
k[batch, 2, 2, 4]  v[batch, 2, 4, 2]  t[1]
    d = Sub (i, j)  e = Less (d, 5)  b = Where (e, 0.0, -1e9)  u = Unsqueeze (b, [0, 1])
        Y = com.microsoft.MultiHeadAttention <num_heads = 2, unidirectional = 1> (X, X, X, , , u)
k[batch, 2, 2, 0]  v[batch, 2, 0, 2]  k[batch, 4, 1, 0]  v[batch, 4, 0, 1]
    A = com.microsoft.Attention <num_heads = 2, unidirectional = 1> (X, W[4, 12], bias[12])  C = Add (A, X)
        Y = com.microsoft.MultiHeadAttention <num_heads = 4, unidirectional = 1, scale = 0.4> (C, C, C)
""".replace("SCORES", SCORES)
)


@pytest.mark.parametrize(("head", "states", "nodes"), OPERATORS_OF_MICROSOFT)
def test_the_operators_of_microsoft_stream(head: str, states: str, nodes: str) -> None:
    model = over(head, nodes, opset=17)
    for stream, sizes in (("time=1", [1]), ("time", [2, 5, 1])):
        stepped = streamed(model, stream)
        if sizes == [1]:
            assert shown(plan_of(stepped)) == states
        assert_equal(model, stepped, 24, sizes, 2)


@pytest.mark.parametrize(
    "node",
    [
        "MultiHeadAttention <num_heads = 2, unidirectional = 1> (X, X, X, , valid)",
        "MultiHeadAttention <num_heads = 2, unidirectional = 1, do_rotary = 1> (X, X, X)",
        "Attention <num_heads = 2, unidirectional = 1, qkv_hidden_sizes = [4, 4, 4]> (X, W[4, 12], bias[12])",
        "Attention <num_heads = 3, unidirectional = 1> (X, W[4, 12], bias[12])",
    ],
)
def test_other_forms_of_these_operators_are_refused_by_name(node: str) -> None:
    head = "float[2, time, 4] X, int32[2, time] valid => float[2, time, 4] Y"
    with pytest.raises(rl.UnsupportedError, match=r"Attention node '-> Y' in main graph: is not known"):
        streamed(over(head, f"Y = com.microsoft.{node}", opset=17), "X:1=1")


@pytest.mark.parametrize("window", ["", ", local_window_size = 3"])
def test_attention_of_grouped_queries_is_refused_by_name(window: str) -> None:
    """Its lengths are an input: they may be others than those of the sequence."""
    nodes = f"""sh = Shape (X)  n = Gather (sh, 1)  t = Cast <to = 6> (n)  e = Sub (n, 1)  u = Unsqueeze (e, [0])
        f = Expand (u, [2])  l = Cast <to = 6> (f)  k = Slice (X, [0], [8], [2])
        Y = com.microsoft.GroupQueryAttention <num_heads = 2, kv_num_heads = 1{window}> (X, k, k, , , l, t)"""
    head = "float[2, time, 16] X => float[2, time, 16] Y"
    model = over(head, nodes, opset=17)
    assert run(model, {"X": np.ones((2, 5, 16), np.float32)})["Y"].shape == (2, 5, 16)
    with pytest.raises(
        rl.UnsupportedError, match=r"GroupQueryAttention node '-> Y' .* depends on the number of frames"
    ):
        streamed(model, "time=1")
    given = over(f"{head.replace(' =>', ', int32[2] l =>')}", nodes.replace("l = Cast", "z = Cast"), opset=17)
    with pytest.raises(rl.UnsupportedError, match=r"GroupQueryAttention node '-> Y' in main graph: "):
        streamed(given, "X:1=1")


def test_without_unidirectional_later_frames_are_seen() -> None:
    model = over("float[2, time, 4] X", "Y = com.microsoft.MultiHeadAttention <num_heads = 2> (X, X, X)", opset=17)
    with pytest.raises(rl.UnsupportedError, match=r"'-> Y' .*weighs each frame by all of them"):
        streamed(model, "time=1")


CACHES = "float[2, 1, 3, 4] k, float[2, 1, 3, 4] v => float[] Y, float[] p, float[] q"
KEPT_BY_NAME = {
    "caches": (CACHES, "Y, p, q = Attention <ONE, is_causal = 1> (X, X, X, , k, v)"),
    "constant caches": (
        "=> float[] Y, float[] p, float[] q",
        "Y, p, q = Attention <ONE, is_causal = 1> (X, X, X, , K[2, 1, 3, 4], K)",
    ),
    "lengths": ("int64[2] n", "Y = Attention <ONE, is_causal = 1> (X, X, X, , , , n)"),
    "scores": ("=> float[] Y, float[] s", "Y, , , s = Attention <ONE, is_causal = 1> (X, X, X)"),
    "precision": ("", "Y = Attention <ONE, is_causal = 1, softmax_precision = 10> (X, X, X)"),
    "a mask of one key": ("", "Y = Attention <ONE, is_causal = 1> (X, X, X, m[1, 1])"),
}


@pytest.mark.parametrize("name", KEPT_BY_NAME)
def test_other_forms_of_the_operator_are_refused_by_name(name: str) -> None:
    more, nodes = KEPT_BY_NAME[name]
    head = f"float[2, time, 4] X{'' if more[:1] in ('', '=') else ','} {more}".rstrip()
    nodes = nodes.replace("ONE", "q_num_heads = 1, kv_num_heads = 1")
    with pytest.raises(rl.UnsupportedError, match="Attention node '-> Y' in main graph: is not known"):
        streamed(over(head, nodes, opset=24), "X:1=1")


EMPTY = {"empty": np.zeros((2, 1, 0, 4), np.float32)}


@pytest.mark.few(1)
@pytest.mark.parametrize("outputs", ["Y", "Y, p, q"])
@pytest.mark.parametrize("behind", ["Y", "Z"])
def test_caches_without_rows(outputs: str, behind: str) -> None:
    """The keys and values are then those of the stream, and may be outputs."""
    node = "Attention <q_num_heads = 1, kv_num_heads = 1, is_causal = 1> (X, X, X, , empty, empty)"
    nodes = f"{behind}, p, q = {node}" + ("  Y = Tanh (Z)" if behind == "Z" else "")
    for given in ("float[2, time, 4] X => ", "float[2, time, 4] X, float[2, 1, 0, 4] empty => "):
        head = given + ", ".join(f"float[] {name}" for name in outputs.split(", "))
        constant = {} if "empty" in given else EMPTY
        model = over(head, nodes, constant, 24)
        feed = feed_of(24) | ({} if constant else EMPTY)
        for stream, sizes in (("X:1=1", [1]), ("X:1", [2, 5, 1])):
            stepped = streamed(model, stream)
            got, expected = chunked(stepped, feed, sizes), expected_of(plan_of(stepped), model, feed)
            for name in outputs.split(", "):
                np.testing.assert_allclose(got[name], expected[name], rtol=0, atol=2e-5)


def test_a_window_to_the_right_alone_sees_all_frames_before() -> None:
    nodes = "Y = Attention <q_num_heads = 2, kv_num_heads = 2, right_window_size = 2> (X, X, X)"
    model = over("float[batch, time, 4] X", nodes, opset=25)
    assert_equal(model, streamed(model, "time=1"), 24, [1], 2)
    with pytest.raises(rl.UnsupportedError, match="weighs each frame by all of them"):
        streamed(over("float[batch, time, 4] X", nodes.replace("right", "left"), opset=25), "time=1")


REFUSED = rows(
    """
# float[2, time, 4] X { SCORES
Softmax node '-> w' in main graph: weighs each frame by all of them, also later ones; mask later frames with -inf
    w = Softmax (s)  Y = MatMul (w, X)
    c = LessOrEqual (j, i)  b = Where (c, 0.0, -1.0)  m = Add (s, b)  WEIGHED
    c = LessOrEqual (i, j)  m = Where (c, s, -1e9)  WEIGHED
    c = LessOrEqual (j, i)  m = Where (c, -1e9, s)  WEIGHED
    e = Equal (i, j)  m = Where (e, -1e9, s)  WEIGHED
    d = Sub (i, j)  a = Abs (d)  f = Cast <to = 1> (a)  g = Neg (f)  m = Add (s, g)  WEIGHED
    d = Sub (i, j)  e = Mod (d, 2)  z = Equal (e, 0)  c = LessOrEqual (0, d)  b = And (z, c)
        m = Where (b, s, -1e9)  WEIGHED
    d = Sub (i, j)  e = Mul (d, d)  z = Less (e, 50)  c = LessOrEqual (0, d)  b = And (z, c)
        m = Where (b, s, -1e9)  WEIGHED
    c = LessOrEqual (j, i)  m = Where (c, s, -1e9)  t = Transpose <perm = [0, 2, 1]> (m)  w = Softmax (t)
        Y = MatMul (w, X)
its mask sets -12, which does not remove a frame; use -inf, or a number of at most -1e4
    c = LessOrEqual (j, i)  m = Where (c, s, -12.0)  WEIGHED
Softmax node '-> p' in main graph: weighs each frame by all of them, also later ones
    c = LessOrEqual (j, i)  p = Softmax (s)  f = Cast <to = 1> (c)  m = Mul (p, f)  Y = MatMul (m, X)
compares frames with each other: it reads weights
    c = LessOrEqual (j, i)  m = Where (c, s, -1e9)  w = Softmax (m)  z = ReduceSum (w, [1])  v = Div (w, z)
        Y = MatMul (v, X)
    c = LessOrEqual (j, i)  m = Where (c, s, -1e9)  w = Softmax (m)  a = ArgMax <axis = -1, keepdims = 0> (w)
        Y = Cast <to = 1> (a)
compares frames with each other: it reads scores of pairs; scale them, add a bias and a mask of i - j
    x = ReduceMax (s, [-1])  q = Div (s, x)  c = LessOrEqual (j, i)  m = Where (c, q, -1e9)  WEIGHED
scales scores by 'f', which depends on positions or on the number of frames; scale scores by a constant
    c = LessOrEqual (j, i)  f = Cast <to = 1> (c)  m = Mul (s, f)  WEIGHED
scales scores by 'l', which depends on positions or on the number of frames
    c = LessOrEqual (j, i)  f = Cast <to = 1> (n)  l = Log (f)  q = Mul (s, l)  m = Where (c, q, -1e9)  WEIGHED
    c = LessOrEqual (j, i)  l = Cast <to = 1> (n)  q = Div (s, l)  m = Where (c, q, -1e9)  WEIGHED
weighs pairs of frames along another axis than the keys; use a Softmax over the keys
    c = LessOrEqual (j, i)  m = Where (c, s, -1e9)  w = Softmax <axis = 0> (m)  Y = MatMul (w, X)
weighs over its queries, not its keys; use a Softmax over the keys
    c = LessOrEqual (j, i)  m = Where (c, s, -1e9)  w = Softmax <axis = 1> (m)  Y = MatMul (w, X)
    c = LessOrEqual (j, i)  m = Where (c, s, -1e9)  w = Softmax (m)  t = Transpose <perm = [0, 2, 1]> (w)
        Y = MatMul (t, X)
its mask keeps no frame for frame 0; keep the diagonal of the mask
    c = Less (j, i)  m = Where (c, s, -1e9)  WEIGHED
its mask hides frame 0 from itself; keep the diagonal of the mask
    d = Sub (i, j)  a = Abs (d)  c = Equal (a, 1)  m = Where (c, s, -1e9)  WEIGHED
its mask or bias 'c' depends on the number of frames; use a mask or a bias of i - j
    a = Sub (n, 1)  p = Sub (a, i)  c = LessOrEqual (j, p)  m = Where (c, s, -1e9)  WEIGHED
    d = Sub (i, j)  e = Mod (d, n)  c = Less (e, 5)  m = Where (c, s, -1e9)  WEIGHED
    d = Sub (i, j)  e = Min (d, n)  c = LessOrEqual (0, e)  m = Where (c, s, -1e9)  WEIGHED
its mask or bias 'a' depends on the number of frames
    h = Div (n, 2)  d = Sub (i, j)  c = LessOrEqual (0, d)  e = Less (d, h)  a = And (c, e)
        m = Where (a, s, -1e9)  WEIGHED
    c = LessOrEqual (j, i)  g = Greater (n, 250)  a = Or (c, g)  m = Where (a, s, -1e9)  WEIGHED
    c = LessOrEqual (j, i)  z = Sub (n, 3)  p = LessOrEqual (z, i)  a = Or (c, p)  m = Where (a, s, -1e9)  WEIGHED
its mask or bias 'c' depends on the position itself, not on the distance
    h = Div (n, 4)  p = Div (i, h)  q = Div (j, h)  c = LessOrEqual (q, p)  m = Where (c, s, -1e9)  WEIGHED
    f = Cast <to = 1> (i)  g = Cast <to = 1> (j)  x = Cast <to = 1> (n)  p = Div (f, x)  q = Div (g, x)
        c = LessOrEqual (q, p)  m = Where (c, s, -1e9)  WEIGHED
    p = Mul (i, 2)  c = LessOrEqual (j, p)  m = Where (c, s, -1e9)  WEIGHED
its mask or bias 'a' depends on the position itself, not on the distance
    c = LessOrEqual (j, i)  p = Less (j, 10)  a = Or (c, p)  m = Where (a, s, -1e9)  WEIGHED
    c = LessOrEqual (j, i)  p = Less (i, 1)  a = Or (c, p)  m = Where (a, s, -1e9)  WEIGHED
its mask or bias 'z' depends on the position itself, not on the distance
    e = Concat <axis = 0> (n1, n1)  u = Slice (BENT, [0, 0], e)  z = Equal (u, 0)  m = Where (z, -1e9, s)  WEIGHED
its mask or bias 'c' casts positions to uint8
    p = Cast <to = 2> (i)  q = Cast <to = 2> (j)  c = LessOrEqual (q, p)  m = Where (c, s, -1e9)  WEIGHED
its mask or bias 'c' casts positions to float16
    p = Cast <to = 10> (i)  q = Cast <to = 10> (j)  c = LessOrEqual (q, p)  m = Where (c, s, -1e9)  WEIGHED
its mask or bias 'a' rounds positions, or multiplies them by large numbers
    f = Cast <to = 1> (i)  g = Cast <to = 1> (j)  p = Mul (f, 0.1)  q = Mul (g, 0.1)  d = Sub (p, q)
        c = LessOrEqual (0.0, d)  e = Less (d, 0.8)  a = And (c, e)  m = Where (a, s, -1e9)  WEIGHED
has a bias as large as its mask, so a key may not be removed; mask with -inf, after the bias
    c = LessOrEqual (j, i)  b = Where (c, 0.0, -1e9)  d = Where (c, 0.0, 1e9)  o = Add (s, b)  m = Add (o, d)
        WEIGHED
    d = Sub (j, i)  f = Cast <to = 1> (d)  c = LessOrEqual (d, 0)  b = Where (c, 0.0, -1e4)  o = Add (s, b)
        m = Add (o, f)  WEIGHED
changes scores after their mask, so keys may not be removed; mask the scores just before the Softmax
    c = LessOrEqual (j, i)  b = Where (c, s, -1e9)  m = Tanh (b)  WEIGHED
    c = LessOrEqual (j, i)  b = Where (c, s, -1e9)  m = Mul (b, -1.0)  WEIGHED
scales a mask, so that it does not remove a frame; use -inf
    c = LessOrEqual (j, i)  b = Where (c, s, -1e9)  m = Mul (b, 1e-6)  WEIGHED
MatMul node '-> s' in main graph: compares frames with each other; let it act on each frame alone, or be attention
    c = LessOrEqual (j, i)  m = Where (c, s, -1e9)  Y = Softmax (m)
    Y = Relu (s)
repeats scores along another axis; give scores and masks the same axes
    g = ReduceSum (X, [2])  u = Unsqueeze (g, [1])  q = Mul (s, u)  c = LessOrEqual (j, i)
        m = Where (c, q, -1e9)  WEIGHED
weighs values by scores that are read twice; compute the scores again
    c = LessOrEqual (j, i)  m = Where (c, s, -1e9)  w = Softmax (m)  C = MatMul (w, X)  D = MatMul (w, C)
        Y = Add (C, D)
gives scores two masks at once; use a Where or an Add for each
    c = LessOrEqual (j, i)  d = Sub (i, j)  f = Cast <to = 1> (d)  m = Where (c, s, f)  WEIGHED
its mask changes at a distance of more than 1024 frames; use a shorter window
    d = Sub (i, j)  c = LessOrEqual (0, d)  e = LessOrEqual (d, 5000)  g = And (c, e)  m = Where (g, s, -1e9)
        WEIGHED
sees frames behind its chunk of 4; let each frame see the end of its own chunk at most
    p = Div (i, 4)  q = Div (j, 4)  o = Add (p, 1)  c = LessOrEqual (q, o)  m = Where (c, s, -1e9)  WEIGHED
Softmax node '-> w' in main graph: sees chunks of 4 frames that come late; chunk the frames of the stream
    xt = Transpose <perm = [0, 2, 1]> (X)  cv = Conv <pads = [0, 1]> (xt, K[4, 4, 2])
        Z = Transpose <perm = [0, 2, 1]> (cv)  s2 = MatMul (Z, cv)  p = Div (i, 4)  q = Div (j, 4)
        c = LessOrEqual (q, p)  m = Where (c, s2, -1e9)  w = Softmax (m)  Y = MatMul (w, Z)
weighs other frames than it compares; give values the frames of the keys
    xt = Transpose <perm = [0, 2, 1]> (X)  cv = Conv <pads = [0, 1]> (xt, K[4, 4, 2])
        Z = Transpose <perm = [0, 2, 1]> (cv)  s2 = MatMul (Z, cv)  c = LessOrEqual (j, i)
        m = Where (c, s2, -1e9)  WEIGHED
its mask differs from head to head or from row to row; use one mask for all of them
    d = Sub (i, j)  c = LessOrEqual (0, d)  e = Less (d, HEADS)  g = And (c, e)  m = Where (g, s, -1e9)  WEIGHED
compares frames that were padded, cut or merged with another axis; compare exactly the frames of the stream
    P = Slice (X, [0], [-1], [1])  pt = Transpose <perm = [0, 2, 1]> (P)  s2 = MatMul (P, pt)  m = Tanh (s2)
        w = Softmax (m)  Y = MatMul (w, P)
adds a bias to scores whose last axes are not the queries and the keys; transpose the scores after the bias
    d = Sub (j, i)  p = Clip (d, 0, 5)  b = Gather (table[6], p)  q = Add (s, b)  c = LessOrEqual (i, j)
        m = Where (c, q, -1e9)  w = Softmax <axis = 1> (m)  t = Transpose <perm = [0, 2, 1]> (w)  Y = MatMul (t, X)
its mask has gaps, and calls have no fixed number of frames; give the number of frames; time
    d = Sub (i, j)  a = Equal (d, 0)  b = Equal (d, 3)  c = Or (a, b)  m = Where (c, s, -1e9)  WEIGHED
# float[2, time, 4] X, bool[2, time] valid { SCORES
its operand 'v' has frames, and meets scores of pairs of frames; build masks in the model, from positions
    v = Unsqueeze (valid, [1])  q = Where (v, s, -1e9)  c = LessOrEqual (j, i)  m = Where (c, q, -1e9)  WEIGHED
# float[2, time, 4] X { SCORES
its mask or bias 'e' may remove keys at any distance; use a mask or a bias of i - j
    d = Sub (i, j)  c = LessOrEqual (0, d)  m1 = Where (c, s, -1e9)  u = Mod (d, 100)  e = Less (u, 50)
        m = Where (e, m1, -1e9)  WEIGHED
    d = Sub (i, j)  c = LessOrEqual (0, d)  m1 = Where (c, s, -1e9)  f = Cast <to = 1> (d)  p = Add (f, 0.1)
        u = Sub (p, f)  e = LessOrEqual (u, 0.100001)  m = Where (e, m1, -1e9)  WEIGHED
Softmax node '-> p' in main graph: weighs each frame by all of them, also later ones
    c = LessOrEqual (j, i)  p = Softmax (s)  m = Where (c, p, 0.0)  Y = MatMul (m, X)
Where node '-> w' in main graph: changes weights of keys that the mask of the scores keeps; mask the scores alone
    AGAIN  d = Sub (i, j)  e = Less (d, 4)  w = Where (e, p, 0.0)  Y = MatMul (w, X)
    AGAIN  e = Equal (i, j)  w = Where (e, 0.0, p)  Y = MatMul (w, X)
    AGAIN  d = Sub (i, j)  e = Equal (d, 150)  w = Where (e, 0.0, p)  Y = MatMul (w, X)
    d = Sub (i, j)  c = LessOrEqual (0, d)  e = Less (d, 9)  g = And (c, e)  m = Where (g, s, -1e9)
        p = Softmax (m)  q = Less (d, 8)  w = Where (q, p, 0.0)  Y = MatMul (w, X)
Mul node '-> w' in main graph: changes weights of keys that the mask of the scores keeps; before the Softmax
    AGAIN  f = Cast <to = 1> (c)  g = Mul (f, 0.5)  w = Mul (p, g)  Y = MatMul (w, X)
    AGAIN  d = Sub (j, i)  f = Cast <to = 1> (d)  g = Exp (f)  w = Mul (p, g)  Y = MatMul (w, X)
    AGAIN  d = Sub (j, i)  f = Cast <to = 1> (d)  u = Relu (f)  g = Exp (u)  w = Mul (p, g)  Y = MatMul (w, X)
Mul node '-> w' in main graph: multiplies weights by numbers that are not finite; multiply by 0 or 1
    AGAIN  f = Where (c, 1.0, INFINITE)  w = Mul (p, f)  Y = MatMul (w, X)
its mask or bias 'e' depends on the position itself, not on the distance
    AGAIN  e = Less (j, 1)  w = Where (e, 0.0, p)  Y = MatMul (w, X)
    AGAIN  e = Less (i, 3)  w = Where (e, 0.0, p)  Y = MatMul (w, X)
its mask or bias 'e' depends on the number of frames
    AGAIN  z = Sub (n, 3)  e = Less (j, z)  w = Where (e, p, 0.0)  Y = MatMul (w, X)
compares frames with each other: it reads weights; multiply the weights with values
    AGAIN  w = Where (c, p, 0.1)  Y = MatMul (w, X)
    AGAIN  w = Where (c, 0.0, p)  z = ReduceSum (w, [-1])  v = Div (w, z)  Y = MatMul (v, X)
""".replace("WEIGHED", WEIGHED)
    .replace("AGAIN", "c = LessOrEqual (j, i)  m = Where (c, s, -1e9)  p = Softmax (m)")
    .replace("SCORES", SCORES + "  n1 = Unsqueeze (n, [0])")
)
BENT = LOWER["LOWER"].copy()
BENT[250:] = 1  # causal for 250 rows, then full


@pytest.mark.parametrize(("head", "title", "nodes"), REFUSED)
def test_what_is_no_causal_attention_is_refused(head: str, title: str, nodes: str) -> None:
    reason, *rest = title.split("; ")
    stream = {"X:1": None if "time" in rest else 1, **({"valid:1": 1} if "valid" in head else {})}
    held = {"BENT": BENT, "HEADS": np.array([3, 4]).reshape(2, 1, 1), "INFINITE": np.array(np.inf, np.float32)}
    with pytest.raises(rl.UnsupportedError) as refused:
        rl.StreamPass(stream, True)(ir.from_proto(over(head, nodes, held)))
    for text in (reason, *(text for text in rest if text != "time")):
        assert text in str(refused.value)
