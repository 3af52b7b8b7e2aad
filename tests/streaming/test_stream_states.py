"""What operators along the frames carry from chunk to chunk, so that chunks give what the whole gives."""

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from stream_models import (
    CHUNKINGS,
    assert_streams,
    chunked,
    expected_of,
    int64_at_run_time,
    over,
    plan_of,
    random,
    rows,
    shown,
    streamed,
    whole,
)
from texts import random_feed

import rnn_lowering as rl

pytestmark = pytest.mark.filterwarnings("ignore:no state is carried")


STATES = rows("""
# float[2, 3, time] X
x[2, 3, 2]
    p = Pad (X, [0, 0, 2, 0, 0, 0])  Y = Conv (p, K[3, 3, 3])
    p = Pad (X, [0, 0, 2, 0, 0, 0], 0.5)  Y = Conv (p, K[3, 3, 3])
    Y = Conv <pads = [2, 0]> (X, K[3, 3, 3])
    Y = Conv <pads = [2, 0], group = 3> (X, K[3, 1, 3])
    Y = Conv <pads = [2, 0]> (X, K[3, 3, 3], bias[3])
    c = Conv <pads = [2, 2]> (X, K[3, 3, 3])  Y = Slice (c, [0], [-2], [2])
    c = Conv <pads = [2, 2]> (X, K[3, 3, 3])  r = Relu (c)  Y = Slice (r, [0], [-2], [2])
    p = Pad (X, [0, 0, 2, 0, 0, 2])  c = Conv (p, K[3, 3, 3])  Y = Slice (c, [0], [-2], [2])
    p = Pad (X, [0, 0, 2, 0, 0, 0])  Y = Slice (p, [0], [-2], [2])
    p = Concat <axis = 2> (lead[2, 3, 2], X)  Y = Conv (p, K[3, 3, 3])
    Y = MaxPool <kernel_shape = [3], pads = [2, 0], strides = [1]> (X)
    Y = AveragePool <kernel_shape = [3], pads = [2, 0], count_include_pad = 1> (X)
    Y = ConvTranspose <pads = [0, 2]> (X, K[3, 3, 3])
    p = Pad (X, [0, 0, 2, 0, 0, 0])  Y = ConvTranspose <pads = [2, 2]> (p, K[3, 3, 3])
x[2, 3, 4]
    Y = Conv <pads = [4, 0], dilations = [2]> (X, K[3, 3, 3])
x[2, 3, 6]
    p = Pad (X, [0, 0, 6, 0, 0, 0])  a = Conv (p, K[3, 3, 3])  b = Relu (a)  c = Conv (b, K)  Y = Conv (c, K)
x[2, 3, 2]  x[2, 3, 2]
    a = Conv <pads = [2, 0]> (X, K[3, 3, 3])  b = Conv <pads = [2, 0]> (a, K)  Y = Add (b, X)
    p = Pad (X, [0, 0, 2, 0, 0, 0])  a = Conv <pads = [2, 0]> (p, K[3, 3, 3])  Y = Conv (a, K)
x[2, 3, 1]
    Y = Conv <auto_pad = "SAME_LOWER"> (X, K[3, 3, 2])
none
    Y = Conv (X, K[3, 3, 1])
x[2, 3, 2]  x[2, 3, 4]  x[2, 3, 8]
    a = Conv <pads = [2, 2]> (X, K[3, 3, 3])  b = Slice (a, [0], [-2], [2])  c = Relu (b)  d = Add (c, X)
        e = Conv <pads = [4, 4], dilations = [2]> (d, L[3, 3, 3])  f = Slice (e, [0], [-4], [2])  g = Relu (f)
        h = Add (g, d)  i = Conv <pads = [8, 8], dilations = [4]> (h, M[3, 3, 3])  j = Slice (i, [0], [-8], [2])
        k = Relu (j)  Y = Add (k, h)

# float[batch, time, 3] X
x[batch, 1, 3]
    c = Slice (X, [0], [-1], [1])  Y = Pad (c, [0, 1, 0, 0, 0, 0])
    Y = Pad (X, [0, 1, 0, 0, -1, 0])
    f = Slice (X, [0], [1], [1])  q = Shape (f)  z = ConstantOfShape (q)  c = Slice (X, [0], [-1], [1])
        Y = Concat <axis = 1> (z, c)
    f = Slice (X, [0], [1], [1])  q = Shape (f)  z = Expand (0.0, q)  c = Slice (X, [0], [-1], [1])
        Y = Concat <axis = 1> (z, c)
    p = Pad (X, [0, 1, 0, 0, 0, 0])  Y = Slice (p, [0], [-1], [1])
    c = Slice (X, [0], [-1], [1])  b = Pad (c, [0, 1, 0, 0, 0, 0])  Y = Sub (X, b)
    c = Slice (X, [0], [-1], [1])  a = Tanh (c)  Y = Pad (a, [0, 1, 0, 0, 0, 0])
    c = Slice (X, [0], [-1], [1])  Y = Concat <axis = 1> (lead[2, 1, 3], c)
    s = Shape (X)  n = Gather (s, [0])  k = Concat <axis = 0> (n, [1], [3])  o = Expand (zeros[1, 1, 3], k)
        c = Slice (X, [0], [-1], [1])  Y = Concat <axis = 1> (o, c)
    p = Pad (X, [0, 1, 0, 0, 0, 0])  Y = Slice (p, [-1], far, [1])
    p = Pad (X, [0, 1, 0, 0, 0, 0])  Y = Slice (p, [-2], far, [1])
x[batch, 2, 3]
    Y = Pad (X, [0, 2, 0, 0, -2, 0])
    p = Pad (X, [0, 2, 0, 0, 0, 0])  q = Shape (p)  n = Gather (q, 1)  m = Sub (n, 2)  r = Range (0, m, 1)
        u = Unsqueeze (r, [0])  w = Add (u, [[0], [1], [2]])  g = Gather <axis = 1> (p, w)
        Y = ReduceMean <keepdims = 0> (g, [1])
    p = Pad (X, [0, 2, 0, 0, 0, 0])  q = Shape (p)  n = Gather (q, 1)  m = Sub (n, 2)  r = Range (0, m, 1)
        u = Unsqueeze (r, [0])  w = Add (u, [[0], [2]])  g = Gather <axis = 1> (p, w)
        Y = ReduceMean <keepdims = 0> (g, [1])
    f = Slice (X, [0], [2], [1])  s = Shape (f)  o = ConstantOfShape (s)  c = Slice (X, [0], [-2], [1])
        Y = Concat <axis = 1> (o, c)
t[1]  sum[batch, 1, 3]
    h = Shape (X)  n = Gather (h, 1)  m = Mul (n, 4)  k = Add (m, 1)  r = Range (4, k, 4)  c = Cast <to = 1> (r)
        u = Unsqueeze (c, [1])  s = CumSum (X, 1)  Y = Div (s, u)
    h = Shape (X)  n = Gather (h, 1)  f = Cast <to = 1> (n)  m = Mul (f, 4.0)  k = Add (m, 1.0)
        r = Range (4.0, k, 4.0)  u = Unsqueeze (r, [1])  s = CumSum (X, 1)  Y = Div (s, u)
t[1]  x[batch, 1, 3]
    f = Slice (X, [0], [1], [1])  c = Slice (X, [0], [-1], [1])  b = Concat <axis = 1> (f, c)  Y = Sub (X, b)
    p = Pad <mode = "edge"> (X, [0, 1, 0, 0, 0, 0])  Y = Slice (p, [0], [-1], [1])
    f = Slice (X, [0], [1], [1])  Y = Sub (X, f)
    f = Slice (X, [0], [1], [1])  a = Div (f, X)  b = Max (X, f)  Y = Add (a, b)
    a = Sigmoid (X)  f = Slice (a, [0], [1], [1])  g = Greater (X, f)  Y = Where (g, f, X)
x[batch, 2, 3]  t[1]  x[batch, 1, 3]
    p = Pad (X, [0, 2, 0, 0, 0, 0], 0.5)  f = Slice (p, [0], [1], [1])  q = Sub (p, f)
        Y = Slice (q, [0], [-2], [1])
t[1]  x[batch, 2, 3]
    p = Pad <mode = "edge"> (X, [0, 2, 0, 0, 0, 0])  q = Transpose <perm = [0, 2, 1]> (p)
        Y = Conv <kernel_shape = [3]> (q, kernel[3, 3, 3])
sum[batch, 1, 3]
    Y = CumSum (X, 1)
    Y = CumSum <exclusive = 1> (X, 1)
x[batch, 2, 3]  sum[batch, 1, 3]
    p = Pad (X, [0, 2, 0, 0, 0, 0])  c = CumSum (p, 1)  Y = Slice (c, [0], [-2], [1])
t[1]  sum[batch, 1, 3]
    a = CumSum (X, 1)  s = Shape (X)  t = Gather (s, 1)  tv = Unsqueeze (t, [0])  n = Add (t, 1)
        r = Range (1, n, 1)  c = Unsqueeze (r, [1])  f = Cast <to = 1> (c)  m = Div (a, f)  Y = Sub (X, m)
x[batch, 1, 3]  x[batch, 1, 3]
    z = Pad (X, [0, 1, 0, 0, -1, 0])  v = Slice (z, [0], [-1], [1])  w = Pad (v, [0, 1, 0, 0, 0, 0])  Y = Neg (w)
t[1]  h[1, batch, 4]
    s = Shape (X)  n = Gather (s, 0)  r = Range (0, n, 1)  f = Cast <to = 1> (r)  c = Unsqueeze (f, [0, 2])
        h0 = Concat <axis = 2> (c, c, c, c)  x = Transpose <perm = [1, 0, 2]> (X)
        y = GRU <hidden_size = 4> (x, W, R, B, , h0)  Y = Squeeze (y, [1])
t[1]  sum[batch, 1, 3]  x[batch, 1, 3]
    z = Shape (X)  n = Gather (z, 0)  which = Equal (n, 2)
        Y = If (which) <then_branch = left () => (float[d, e, f] y) { s = Shape (X)  t = Gather (s, 1)
        r = Range (0, t, 1)  c = Unsqueeze (r, [1])  f = Cast <to = 1> (c)  a = CumSum (X, 1)  m = Add (a, f)
        p = Pad <mode = "edge"> (m, [0, 1, 0, 0, 0, 0])  d = Slice (p, [0], [-1], [1])  y = Sub (m, d) },
        else_branch = right () => (float[g, h, i] w) { w = Neg (X) }>

# float[batch, time, 3] X { s = Shape (X)  t = Gather (s, 1)
t[1]
    r = Range (0, t, 1)  c = Unsqueeze (r, [1])  f = Cast <to = 1> (c)  Y = Add (X, f)
    tf = Cast <to = 1> (t)  z = Cast <to = 1> (0)  o = Cast <to = 1> (1)  r = Range (z, tf, o)
        c = Reshape (r, [-1, 1])  a = Mul (c, freq[1, 3])  n = Sin (a)  Y = Add (X, n)
    n = Add (t, 1)  r = Range (1, n, 1)  c = Unsqueeze (r, [1])  f = Cast <to = 1> (c)  Y = Div (X, f)
    r = Range (0, t, 1)  d = Mul (r, 2)  e = Add (d, 1)  c = Unsqueeze (e, [1])  f = Cast <to = 1> (c)
        Y = Add (X, f)
    r = Range (0, t, 1)  c = Unsqueeze (r, [1])  f = Cast <to = 1> (c)  g = Neg (f)  h = Sqrt (f)  a = Add (X, g)
        Y = Add (a, h)
    tv = Unsqueeze (t, [0])  Y = Slice (places[400, 3], [0], tv, [0])
    r = Range (0, t, 1)  Y = Gather (places[400, 3], r)
    r = Range (0, t, 1)  p = Gather (places[400, 3], r)  Y = Add (X, p)
    tv = Unsqueeze (t, [0])  r = Range (0, t, 1)  u = Unsqueeze (r, [0])  n = Gather (s, 0)
        nv = Unsqueeze (n, [0])  q = Concat <axis = 0> (nv, tv)  e = Expand (u, q)  p = Gather (places[400, 3], e)
        Y = Add (X, p)
    tv = Unsqueeze (t, [0])  p = Slice (places[400, 3], [0], tv, [0])  Y = Add (X, p)
sum[1, 1, 1]  sum[batch, 1, 3]
    tv = Unsqueeze (t, [0])  q = Concat <axis = 0> ([1], tv, [1])  o = ConstantOfShape <value = float[1] {1.0}> (q)
        n = CumSum (o, 1)  a = CumSum (X, 1)  Y = Div (a, n)

# float[batch, time, 3] X { s = Shape (X)  t = Gather (s, [1])
none
    n = Gather (s, [0])  k = Concat <axis = 0> (n, t, [3])  Y = Reshape (X, k)
    Y = Slice (X, [0], t, [1])
    p = Pad (X, [0, 0, 0, 0, 2, 0])  Y = Slice (p, [0], t, [1])
    a = Add (t, [3])  b = Sub (a, [3])  Y = Slice (X, [0], b, [1])
    k = Concat <axis = 0> ([1], t, [3])  e = Expand (zeros[1, 1, 3], k)  Y = Add (X, e)
    n = Gather (s, [0])  k = Concat <axis = 0> (n, t, [3])  e = ConstantOfShape <value = float[1] {0.5}> (k)
        Y = Add (X, e)
    k = Concat <axis = 0> ([1], t, [3])  r = Shape (k)  o = ConstantOfShape <value = int64[1] {1}> (r)
        m = Mul (o, [-1])  q = Equal (k, m)  w = Where (q, o, k)  e = Expand (zeros[1, 1, 3], w)  Y = Add (X, e)
    k = Concat <axis = 0> ([1], t, [3])  a = Abs (k)  e = Expand (zeros[1, 1, 3], a)  Y = Add (X, e)
    m = Max (t, [1])  Y = Slice (X, [0], m, [1])
    c = Greater (t, [0])  Y = If (c) <then_branch = a () => (float[d, e, f] y) { y = Neg (X) },
        else_branch = b () => (float[g, h, i] z) { z = Identity (X) }>
    n = Gather (s, [0])  p = Mul (n, t)  k = Concat <axis = 0> (p, [3])  f = Reshape (X, k)  g = Tanh (f)
        q = Concat <axis = 0> (n, t, [3])  Y = Reshape (g, q)

# float[batch, 1, time, 8] X
h[1, batch, 5]  x[batch, 1, 2, 8]
    c = Conv <pads = [2, 1, 0, 1], strides = [1, 2]> (X, K[4, 1, 3, 3])  r = Elu (c)
        flat = Transpose <perm = [2, 0, 1, 3]> (r)  x = Reshape (flat, [0, 0, 16])
        y = GRU <hidden_size = 5> (x, W[1, 15, 16], R[1, 15, 5])  Y = Neg (y)
x[batch, 1, 1, 8]
    Y = Conv <auto_pad = "SAME_LOWER", strides = [1, 2]> (X, K[4, 1, 2, 3])

# float[batch, 3, time] X
h[1, batch, 4]  x[batch, 3, 2]
    c = Conv <pads = [2, 2]> (X, K[3, 3, 3])  t = Transpose <perm = [2, 0, 1]> (c)  s = Slice (t, [0], [-2], [0])
        Y = GRU <hidden_size = 4> (s, W, R, B)
x[batch, 3, 2]
    sizes = Shape (X)  n = Gather (sizes, 0)  which = Equal (n, 2)
        Y = If (which) <then_branch = t () => (float[d, e, f] y) { y = Conv <pads = [2, 0]> (X, K[3, 3, 3]) },
        else_branch = u () => (float[g, h, i] z) { z = Neg (X) }>

# float[batch, time, 3] X, float[batch, 2] side
t[1]  h[1, batch, 4]
    m = Gemm (side, into[2, 4])  h = Tanh (m)  h0 = Unsqueeze (h, [0])  x = Transpose <perm = [1, 0, 2]> (X)
        y = GRU <hidden_size = 4> (x, W, R, B, , h0)  Y = Squeeze (y, [1])

# float[batch, time, 3] X, float[3, batch, 4] side
t[1]  h[1, batch, 4]
    h0 = Slice (side, [0], [1], [0])  x = Transpose <perm = [1, 0, 2]> (X)
        y = GRU <hidden_size = 4> (x, W, R, B, , h0)  Y = Squeeze (y, [1])

# float[batch, time, 3] X => int64[] Y
t[1]
    s = Shape (X)  t = Gather (s, 1)  r = Range (0, t, 1)  Y = Unsqueeze (r, [0])

# float[time, batch, 3] X
h[1, batch, 4]
    s = Shape (X)  t = Gather (s, [0])  n = Gather (s, [1])  e = Expand (t, n)  l = Cast <to = 6> (e)
        Y = GRU <hidden_size = 4> (X, W, R, B, l)

# float[batch, 3, time, 8] X
none
    v = MeanVarianceNormalization <axes = [1, 3]> (X)  Y = Neg (v)
""")


@pytest.mark.few(12)
@pytest.mark.parametrize(("head", "states", "nodes"), STATES)
def test_states_are_carried(head: str, states: str, nodes: str) -> None:
    """Where a branch is chosen by the batch size, the other one keeps all of its states."""
    model = over(head, nodes)
    for batch in (2, 3) if "Equal (n, 2)" in nodes else (2,):
        plan = plan_of(assert_streams(model, "time", random_feed(model, time=17, batch=batch)))
        assert shown(plan) == states


@pytest.mark.few(1)
@pytest.mark.parametrize("nodes", ["Y = Range (0, t, 1)", "n = Mul (t, 2)  m = Add (n, 4)  Y = Range (4, m, 2)"])
def test_an_output_that_counts_frames(nodes: str) -> None:
    """It goes on in the next chunk, where nodes read it too."""
    for more in ("Z = Neg (X)", "f = Cast <to = 1> (Y)  u = Unsqueeze (f, [1])  Z = Add (X, u)"):
        head = "float[batch, time, 3] X => int64[] Y, float[] Z"
        model = over(head, f"s = Shape (X)  t = Gather (s, 1)  {nodes}  {more}")
        assert_streams(model, "time", random_feed(model, time=17, batch=2))
        assert_streams(model, "time=1", random_feed(model, time=17, batch=2), [[1]])
        plan = plan_of(streamed(model, "time"))
        assert (shown(plan), plan["outputs"]) == ("t[1]", {"Y": 0, "Z": 1})


PRODUCTS = rows("""
# float[2, time, 3] X
    Y = CumProd (a, 1)
    Y = CumProd <exclusive = 1> (a, 1)
    b = Pad (a, [0, 2, 0, 0, 0, 0], 0.5)  c = CumProd (b, -2)  Y = Slice (c, [0], [-2], [1])
    t = Transpose <perm = [0, 2, 1]> (a)  b = Conv <pads = [1, 1]> (t, K[3, 3, 3])  c = Exp (b)
        Y = CumProd (c, 2)
""")


@pytest.mark.parametrize(("head", "_", "nodes"), PRODUCTS)
def test_the_product_so_far(head: str, _: str, nodes: str) -> None:
    """Numbers around 1, whose products stay large enough to be compared."""
    model, late = over(head, f"h = Mul (X, 0.3)  a = Exp (h)  {nodes}", opset=26), "pads" in nodes
    for stream, sizes in (("time", [1]), ("time", [5, 3, 1, 4]), ("time=1", [1]), ("time=4", [4])):
        stepped = streamed(model, stream, delay=late)
        plan = plan_of(stepped)
        assert [s["initial"] for s in plan["states"] if s["state"] == "sum"] == [[[[1.0]]]]
        for count in (4, 8, 20):
            feed = {"X": random((2, count, 3), count)}
            got, expected = chunked(stepped, feed, sizes)["Y"], expected_of(plan, model, feed)["Y"]
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=0, err_msg=f"{stream} {sizes} {count}")


def test_a_product_from_the_last_frame_on_is_refused() -> None:
    model = over("float[2, time, 3] X", "Y = CumProd <reverse = 1> (X, 1)", opset=26)
    with pytest.raises(rl.UnsupportedError, match="multiplies from the last frame on"):
        streamed(model, "time")


@pytest.mark.parametrize("opset", [9, 10, 11, 18, 21])
def test_older_and_newer_forms_of_padding_and_slice(opset: int) -> None:
    pads = "Pad <pads = [0, 0, 2, 0, 0, 2]> (X)" if opset < 11 else "Pad (X, [0, 0, 2, 0, 0, 2])"
    cut = "<starts = [0], ends = [-2], axes = [2]> (c)" if opset < 10 else "(c, [0], [-2], [2])"
    model = over("float[2, 3, time] X", f"p = {pads}  c = Conv (p, K[3, 3, 3])  Y = Slice {cut}", opset=opset)
    assert_streams(model, "time", random_feed(model, time=17))


def test_the_first_state_has_the_number_of_the_padding() -> None:
    nodes = "p = Pad (X, [0, 0, 2, 1, 0, 0, 0, 1], 0.5)  Y = Conv (p, K[4, 1, 3, 3])"
    model = over("float[batch, 1, time, 8] X", nodes)
    plan = plan_of(assert_streams(model, "time", random_feed(model, time=17, batch=2)))
    assert (shown(plan), plan["states"][0]["initial"]) == ("x[batch, 1, 2, 10]", [[[[0.5]]]])


@pytest.mark.parametrize(
    "nodes",
    ["c = Slice (X, [0], [-1], [2])  Y = Pad (c, [0, 0, 1, 0, 0, 0])", "Y = CumSum (X, [2])"],
)
def test_a_state_has_the_name_of_the_output_that_its_node_computes(nodes: str) -> None:
    """The node has no name of its own, and what replaces it takes its output."""
    state = plan_of(streamed(over("float[2, 3, time] X", nodes), {"time": 1}))["states"][0]
    kind = state["state"]
    assert (state["input"], state["output"], state["node"]) == (f"past_Y_{kind}", f"present_Y_{kind}", "-> Y")


CACHES = rows("""
# float[batch, time, 3] X, float[batch, 2, 3] cache => float[] Y, float[] n
cache
    c = Concat <axis = 1> (cache, X)  n = Slice (c, [-2], far, [1])  Y = Slice (c, [0], [-2], [1])
    o = Transpose <perm = [0, 2, 1]> (cache)  x = Transpose <perm = [0, 2, 1]> (X)
        c = Concat <axis = 2> (o, x)  m = Slice (c, [-2], far, [2])  n = Transpose <perm = [0, 2, 1]> (m)
        Y = Slice (c, [0], [-2], [2])

# float[batch, time, 3] X, float[batch, 2, 3] cache
past_frames_t, past_c_x
    c = Concat <axis = 1> (cache, X)  Y = Slice (c, [0], [-2], [1])

# float[batch, time, 3] X, float[2, batch, 2, 3] cache => float[] Y, float[] n
cache
    a, b = Split <axis = 0, num_outputs = 2> (cache)  a1 = Squeeze (a, [0])  b1 = Squeeze (b, [0])
        c = Concat <axis = 1> (a1, X)  m = Slice (c, [-2], far, [1])  h = Slice (c, [0], [-2], [1])  r = Relu (h)
        d = Concat <axis = 1> (b1, r)  o = Slice (d, [-2], far, [1])  Y = Slice (d, [0], [-2], [1])
        m1 = Unsqueeze (m, [0])  o1 = Unsqueeze (o, [0])  n = Concat <axis = 0> (m1, o1)
past_frames_t, past_c_x, past_d_x
    a, b = Split <axis = 0, num_outputs = 2> (cache)  a1 = Squeeze (a, [0])  b1 = Squeeze (b, [0])
        c = Concat <axis = 1> (a1, X)  m = Slice (c, [-2], far, [1])  h = Slice (c, [0], [-2], [1])  r = Relu (h)
        d = Concat <axis = 1> (b1, r)  o = Slice (d, [-2], far, [1])  Y = Slice (d, [0], [-2], [1])
        m1 = Unsqueeze (m, [0])  o1 = Unsqueeze (o, [0])  n = Concat <axis = 0> (o1, m1)
""")


@pytest.mark.parametrize(("head", "states", "nodes"), CACHES)
def test_caches_of_the_caller(head: str, states: str, nodes: str) -> None:
    """One that comes back, also that of two layers in one input, is a state; any other one starts states."""
    model = over(head, nodes)
    feed = random_feed(model, time=17, batch=2)
    stepped = streamed(model, "time")
    assert ", ".join(s["input"] for s in plan_of(stepped)["states"]) == states
    expected = whole(model, feed)
    for sizes in CHUNKINGS:
        got = chunked(stepped, feed, sizes, {"cache": feed["cache"]} if states == "cache" else {})
        for name, array in got.items():
            np.testing.assert_allclose(array, expected[name], rtol=0, atol=1e-6, err_msg=f"{name} {sizes}")


IN_INT64 = "places[400, 3], e)"
BATCH_FIRST = "float[batch, time, 3] X"
COUNTING = [
    nodes for head, states, nodes in STATES if head == BATCH_FIRST and "t[1]" in states and "h[" not in states
]
COUNTING += [
    """q = Transpose <perm = [0, 2, 1]> (X)  c = Conv <pads = [1, 1]> (q, K[3, 3, 3])
        x = Transpose <perm = [2, 0, 1]> (c)  y = GRU <hidden_size = 4> (x, W, R, B)  Y = Squeeze (y, [1])""",
    "Y = ReduceMean (X, [1])",
    "s = Shape (X)  t = Gather (s, 1)  n = Cast <to = 1> (t)  a = ReduceSum (X, [1])  Y = Div (a, n)",
]


@pytest.mark.few(8)
@pytest.mark.parametrize("frames", [1, 4])
@pytest.mark.parametrize("nodes", [nodes for nodes in COUNTING if IN_INT64 not in nodes])
def test_on_webgpu_frames_are_counted_in_int32(nodes: str, frames: int) -> None:
    """WebGPU computes nothing in int64; the host makes the counter in the type that the metadata specify."""
    model = over(BATCH_FIRST, nodes)
    feed = random_feed(model, time=16, batch=2)
    lowering: Any = {"target": "onnxruntime-webgpu", "dims": {"batch": 2}, "delay": True}
    stepped = rl.lower(model, stream={"time": frames}, **lowering)
    assert {s["dtype"] for s in plan_of(stepped)["states"] if s["state"] == "t"} == {"int32"}
    assert not int64_at_run_time(stepped)
    expected = expected_of(plan_of(stepped), model, feed)
    for name, array in chunked(stepped, feed, [frames]).items():
        np.testing.assert_allclose(array, expected[name], rtol=0, atol=1e-5, err_msg=name)


def test_positions_that_a_node_needs_in_int64_are_refused_for_webgpu() -> None:
    (nodes,) = [nodes for nodes in COUNTING if IN_INT64 in nodes]
    said = "Expand node '-> e' in main graph: reads numbers of frames as int64, and the target counts .* in int32"
    with pytest.raises(rl.UnsupportedError, match=said):
        rl.lower(over(BATCH_FIRST, nodes), target="onnxruntime-webgpu", stream="time=1", dims={"batch": 2})
    with pytest.raises(rl.OptionError, match="count_type cannot be"):
        rl.StreamPass("time", count_type=ir.DataType.FLOAT)


@pytest.mark.parametrize("opset", [2, 6])
def test_paddings_that_were_an_attribute_are_constant_after_the_conversion(opset: int) -> None:
    """At IR version 3 an initializer is an input, so its numbers may change."""
    nodes = "p = Pad <pads = [0, 0, 2, 0, 0, 0]> (X)  Y = MaxPool <kernel_shape = [3]> (p)"
    model = over("float[2, 3, time] X", nodes, opset=opset)
    model.ir_version = 3
    stepped = streamed(model, "time")
    assert [value.name for value in stepped.graph.input] == ["X", "past_p_x"]
    feed = {"X": random((2, 3, 9), 1)}
    np.testing.assert_allclose(chunked(stepped, feed, [2])["Y"], whole(model, feed)["Y"], rtol=0, atol=1e-6)


@pytest.mark.parametrize("end", ["n = Identity (t)", "n = Add (t, [2])", "n = Mul (t, [2])"])
def test_the_only_row_of_a_table_serves_every_frame(end: str) -> None:
    nodes = (
        f"s = Shape (X)  t = Slice (s, [1], [2])  {end}  p = Slice (table[1, 1, 3], [0], n, [1])  Y = Add (X, p)"
    )
    model = over("float[batch, time, 3] X", nodes)
    assert shown(plan_of(assert_streams(model, "time", {"X": random((2, 19, 3))}))) == "none"
    assert_streams(model, "time=1", {"X": random((2, 19, 3))}, [[1]])


@pytest.mark.parametrize("repeat", ["Gather <axis = 1> (h, [0, 0])", "Expand (h, [1, 2, 4])"])
def test_rows_that_start_from_one_input_are_carried_apart(repeat: str) -> None:
    nodes = f"h0 = {repeat}  Y, end = GRU <hidden_size = 4> (X, W, R, B, , h0)  last = Gather <axis = 1> (end, [0])"
    model = over("float[time, 2, 3] X, float[1, 1, 4] h => float[time, 1, 2, 4] Y, float[1, 1, 4] last", nodes)
    assert_streams(model, "time", random_feed(model, time=7))
