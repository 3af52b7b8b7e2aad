"""Poolings of all frames as running values: after each chunk those of the frames so far."""

import numpy as np
import onnx
import pytest
from stream_models import CHUNKINGS, chunked, over, plan_of, random, rows, streamed, whole
from thinning import thinned

POOLS = [
    nodes
    for _, _, nodes in rows("""
    Y = ReduceMean (g, [1])
    Y = ReduceMean <keepdims = 0> (g, [1, 2])
    Y = ReduceSum <keepdims = 0> (g, [1])
    Y = ReduceSumSquare (g, [1])
    e = Exp (g)  r = Sqrt (e)  q = Sqrt (r)  Y = ReduceProd (q, [1])
    Y = ReduceMax <keepdims = 0> (g, [1])
    Y = ReduceMin (g, [1])
    c = Mul (g, 10.0)  i = Cast <to = 6> (c)  m = ReduceMax <keepdims = 0> (i, [1])  Y = Cast <to = 1> (m)
    a = ReduceL1 (g, [1])  b = ReduceL2 (g, [1])  Y = Concat <axis = -1> (a, b)
    c = Mul (g, 100.0)  Y = ReduceLogSumExp (c, [1])
    z = Sub (g, g)  l = Log (z)  Y = ReduceLogSumExp (l, [1])
    t = Transpose <perm = [0, 2, 1]> (g)  a = GlobalAveragePool (t)  b = GlobalMaxPool (t)  Y = Add (a, b)
    s = ReduceSum <keepdims = 0> (g, [1])  h = Shape (g)  n = Gather (h, 1)  f = Cast <to = 1> (n)  Y = Div (s, f)
    m = ReduceMean (g, [1])  d = Sub (g, m)  q = Mul (d, d)  Y = ReduceMean <keepdims = 0> (q, [1])
    m = ReduceMean (g, [1])  d = Sub (g, m)  q = Pow (d, 2.0)  s = ReduceSum (q, [1])  h = Shape (g)
        n = Gather (h, 1)  f = Cast <to = 1> (n)  k = Sub (f, 1.0)  v = Div (s, k)  Y = Sqrt (v)
    m = ReduceMean (g, [1])  p = Mul (g, g)  q = ReduceMean (p, [1])  r = Mul (m, m)  Y = Sub (q, r)
    a = MatMul (g, score[4, 1])  w = Softmax <axis = 1> (a)  v = Mul (w, g)  Y = ReduceSum <keepdims = 0> (v, [1])
    b = MatMul (g, score[4, 1])  a = Mul (b, 100.0)  w = Softmax <axis = 1> (a)  v = Mul (g, w)
        Y = ReduceSum (v, [1])
    a = MatMul (g, score[4, 1])  w = Softmax <axis = 1> (a)  t = Transpose <perm = [0, 2, 1]> (w)
        Y = MatMul (t, g)
    a = MatMul (g, score[4, 1])  w = Softmax <axis = 1> (a)  t = Transpose <perm = [0, 2, 1]> (g)
        Y = MatMul (t, w)
    a = MatMul (g, heads[4, 2])  w = Softmax <axis = 1> (a)  u = Unsqueeze (w, [3])  z = Unsqueeze (g, [2])
        v = Mul (u, z)  Y = ReduceSum <keepdims = 0> (v, [1])
    a = MatMul (g, score[4, 1])  w = Softmax <axis = 1> (a)  v = Mul (w, g)  m = ReduceSum (v, [1])  p = Mul (g, g)
        z = Mul (w, p)  q = ReduceSum (z, [1])  r = Mul (m, m)  s = Sub (q, r)  Y = Concat <axis = -1> (m, s)
    t = Transpose <perm = [0, 2, 1]> (g)  c = Conv (t, K[4, 4, 3])  a = GlobalAveragePool (c)
        b = GlobalMaxPool (c)  Y = Concat <axis = 1> (a, b)
    m = ReduceMean <keepdims = 0> (g, [1])  l = MatMul (m, heads[4, 2])  Y = Softmax <axis = -1> (l)
    t = Transpose <perm = [0, 2, 1]> (g)  Y = MatMul (t, g)
    a = MatMul (g, heads[4, 2])  w = Softmax <axis = -1> (a)  Y = Einsum <equation = "btk,btd->bkd"> (w, g)
    Y = Einsum <equation = "btc,btd->cd"> (g, g)
    t = Transpose <perm = [0, 2, 1]> (g)  c = Cast <to = 6> (t)  u = Cast <to = 6> (g)  p = MatMul (c, u)
        Y = Cast <to = 1> (p)
    a = MatMul (g, score[4, 1])  w = Softmax <axis = 1> (a)  v = Mul (w, g)  z = Mul (v, g)
        Y = ReduceSum <keepdims = 0> (z, [1])
""")
]
"""Of g, the outputs of a GRU over X: [batch, time, 4]."""

GRU = """x = Transpose <perm = [1, 0, 2]> (X)  y = GRU <hidden_size = 4> (x, W, R, B)  gs = Squeeze (y, [1])
    g = Transpose <perm = [1, 0, 2]> (gs)"""
AHEAD = f"""{GRU.replace(" g =", " gf =")}  gb = Transpose <perm = [0, 2, 1]> (gf)  gc = Conv (gb, G[4, 4, 3])
    gd = Conv <dilations = [2]> (gc, H[4, 4, 3])  ge = Relu (gd)  gl = Log (ge)  gn = Clip (gl, -3.0)
    g = Transpose <perm = [0, 2, 1]> (gn)"""
"""Six frames ahead."""


def made(nodes: str, before: str = GRU) -> onnx.ModelProto:
    return over("float[batch, time, 3] X", f"{before}  {nodes}")


def compare_lengths(model: onnx.ModelProto, stepped: onnx.ModelProto, lengths: tuple[int, ...]) -> None:
    """Compare Y after the last chunk, in all chunkings, so of its beginnings too."""
    for length in lengths:
        feed = {"X": random((2, length, 3), length, 3.0)}
        expected = whole(model, feed)["Y"]
        for sizes in CHUNKINGS if length < 50 else [[20, 7]]:
            got = chunked(stepped, feed, sizes)["Y"]
            np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4, err_msg=f"{length} {sizes}")


def compare_fixed(model: onnx.ModelProto) -> None:
    stepped, feed = streamed(model, {"time": 4}, delay=True), {"X": random((2, 20, 3), 1)}
    np.testing.assert_allclose(chunked(stepped, feed, [4])["Y"], whole(model, feed)["Y"], rtol=1e-4, atol=1e-4)


@pytest.mark.few(3)
@pytest.mark.parametrize("nodes", POOLS)
def test_the_value_so_far_is_that_of_the_frames_so_far(nodes: str) -> None:
    model = made(nodes)
    for to in ("keep", "auto"):
        stepped = streamed(model, "time", to)
        assert plan_of(stepped)["outputs"] == {"Y": None}
        compare_lengths(model, stepped, (3, 19, 50))
    compare_fixed(model)


@pytest.mark.few(2)
@pytest.mark.parametrize("opset", [12, 13, 17, 18, 21])
def test_older_and_newer_forms_of_axes(opset: int) -> None:
    """ReduceSum and Squeeze take axes as an input from 13 on, the other reductions from 18 on."""

    def reduced(op_type: str, first: int, value: str = "g") -> str:
        return f"{op_type} <axes = [1]> ({value})" if opset < first else f"{op_type} ({value}, [1])"

    weighed = "u = MatMul (g, score[4, 1])  w = Softmax <axis = 1> (u)  v = Mul (w, g)  d = "
    nodes = f"""{GRU if opset >= 13 else GRU.replace("Squeeze (y, [1])", "Squeeze <axes = [1]> (y)")}
        a = {reduced("ReduceSum", 13)}  b = {reduced("ReduceMax", 18)}  c = {reduced("ReduceLogSumExp", 18)}
        {weighed + reduced("ReduceSum", 13, "v") if opset >= 13 else "d = Neg (a)"}
        Y = Concat <axis = 1> (a, b, c, d)"""
    model = over("float[batch, time, 3] X", nodes, opset=opset)
    for stepped in (streamed(model, "time", "auto"), streamed(model, "time", "keep")):
        compare_lengths(model, stepped, (19,))


@pytest.mark.few(1)
@pytest.mark.parametrize("nodes", thinned(POOLS, 4))
def test_pools_of_what_looks_ahead(nodes: str) -> None:
    """Behind convolutions without padding, after each chunk that has brought a true frame."""
    model = made(nodes, AHEAD)
    for to in ("keep", "auto"):
        stepped = streamed(model, "time", to, delay=True)
        plan = plan_of(stepped)
        assert (plan["outputs"], plan["delay"]) == ({"Y": None}, {})
        compare_lengths(model, stepped, (9, 19, 50))
    compare_fixed(model)


def test_many_frames_do_not_wear_the_mean_down() -> None:
    """A sum in float32 would lose digits; the mean so far does not."""
    model = made(POOLS[0])
    stepped = streamed(model, "time")
    feed = {"X": np.concatenate([random((1, 20_000, 3), 1) + 5], 1)}
    exact = whole(made("Y = Identity (g)"), feed)["Y"].astype(np.float64).mean(1, keepdims=True)
    np.testing.assert_allclose(chunked(stepped, feed, [16])["Y"], exact, rtol=2e-6)


NAN_BEFORE = """c = Conv (X, ones)  d = Sub (c, 2.5)  late = Sqrt (d)
    k = Clip (d, 0.0)  n = Clip (k, 0.0, 0.5)"""
"""What is NaN only while a convolution waits for its third frame, and what is a number then."""


@pytest.mark.parametrize("product", ["t = Transpose <perm = [0, 2, 1]> (n)  Y = MatMul (late, t)", "swapped"])
def test_a_product_over_frames_reads_no_missing_frame(product: str) -> None:
    """0 times NaN is NaN, so both inputs have 0 before frame 0."""
    if product == "swapped":
        product = "t = Transpose <perm = [0, 2, 1]> (late)  Y = MatMul (n, t)"
    ones = {"ones": np.eye(2, dtype=np.float32)[:, :, None].repeat(3, 2)}
    model = over("float[2, 2, time] X", f"{NAN_BEFORE}  {product}", ones)
    for stream in ({"X:2": None}, {"X:2": 1}):
        stepped, feed = streamed(model, stream, delay=True), {"X": 1 + random((2, 2, 30), 1) ** 2 / 8}
        assert np.isfinite(whole(model, feed)["Y"]).all()
        got = chunked(stepped, feed, [1])["Y"]
        np.testing.assert_allclose(got, whole(model, feed)["Y"], rtol=1e-5)


SUMS = {
    "ReduceSum": "Y = ReduceSum (X, [1])",
    "ReduceMean": "Y = ReduceMean (X, [1])",
    "ReduceL1": "Y = ReduceL1 (X, [1])",
    "ReduceL2": "Y = ReduceL2 (X, [1])",
    "ReduceSumSquare": "Y = ReduceSumSquare (X, [1])",
    "ReduceLogSumExp": "Y = ReduceLogSumExp (X, [1])",
    "GlobalAveragePool": "t = Transpose <perm = [0, 2, 1]> (X)  Y = GlobalAveragePool (t)",
    "MatMul": "t = Transpose <perm = [0, 2, 1]> (X)  Y = MatMul (t, X)",
    "Einsum": 'Y = Einsum <equation = "btc,btd->bcd"> (X, X)',
    "variance": "m = ReduceMean (X, [1])  d = Sub (X, m)  q = Mul (d, d)  Y = ReduceMean (q, [1])",
    "sum of squares": "m = ReduceMean (X, [1])  d = Sub (X, m)  q = Mul (d, d)  Y = ReduceSum (q, [1])",
    "weighted sum": "s = Softmax <axis = 1> (X)  m = Mul (s, X)  Y = ReduceSum (m, [1])",
    "weighted product": """a = ReduceSum (X, [2])  s = Softmax <axis = 1> (a)
        t = Transpose <perm = [0, 2, 1]> (s)  Y = MatMul (t, X)""",
    "CumSum": "Y = CumSum (X, 1)",
    "count of frames": "d = Sub (X, X)  o = Exp (d)  Y = ReduceSum (o, [1])",
    "counts of frames": "d = Sub (X, X)  o = Exp (d)  Y = CumSum (o, 1)",
    "exclusive": "Y = CumSum <exclusive = 1> (X, 1)",
}
"""Running values of X in float16; a sum of them needs more digits than float16 has."""


@pytest.mark.few(4)
@pytest.mark.parametrize("frames", [None, 1])
@pytest.mark.parametrize("late", ["", "late"])
@pytest.mark.parametrize("name", SUMS)
def test_float16_is_summed_in_float32(name: str, late: str, frames: int | None) -> None:
    nodes = SUMS[name]
    if late:
        nodes = (
            f"r = Transpose <perm = [0, 2, 1]> (Z)  c = Conv (r, K)  X = Transpose <perm = [0, 2, 1]> (c)  {nodes}"
        )
    K = {"K": np.full((3, 3, 2), 0.16, np.float16)}
    model = over(f"float16[2, time, 3] {'Z' if late else 'X'} => float16[] Y", nodes, K)
    given = model.graph.input[0].name
    stepped = streamed(model, {f"{given}:1": frames}, delay=True)
    plan = plan_of(stepped)
    assert {s["dtype"] for s in plan["states"] if s["state"] in ("pool", "sum")} == {"float32"}
    feed = {given: np.random.default_rng(1).uniform(0.2, 0.8, (2, 5_000, 3)).astype(np.float16)}
    expected = whole(model, feed)["Y"]
    got = chunked(stepped, feed, [frames or 16])["Y"]
    assert got.dtype == np.float16
    if plan["outputs"]["Y"] is not None:  # a value at each frame
        got, expected = got[:, -1], expected[:, -1]
    np.testing.assert_allclose(got.astype(float), expected.astype(float), rtol=2**-9)


def test_the_mean_of_many_frames_in_float16() -> None:
    model = over("float16[1, time, 3] X => float16[] Y", "Y = ReduceMean (X, [1])")
    feed = {"X": np.random.default_rng(1).uniform(0.2, 0.8, (1, 20_000, 3)).astype(np.float16)}
    got = chunked(streamed(model, {"X:1": None}), feed, [16])["Y"]
    np.testing.assert_allclose(got, feed["X"].astype(float).mean(1, keepdims=True), rtol=2**-10)


@pytest.mark.parametrize(
    ("nodes", "dtype", "initial"),
    [
        ("w = Softmax <axis = 2> (c)  m = Mul (w, c)  p = ReduceSum (m, [2])", "float32", "lowest"),
        ("p = MaxPool <kernel_shape = [2], pads = [1, 0]> (c)", "bfloat16", "lowest"),
        ("p = ReduceLogSumExp (c, [2])", "float32", "-Infinity"),
        ("p = ReduceMax (c, [2])", "bfloat16", "-Infinity"),
    ],
)
def test_bfloat16_starts_from_its_own_lowest_number(nodes: str, dtype: str, initial: str) -> None:
    """onnxruntime has no such kernels."""
    net = over("float[2, 3, time] X", f"c = Cast <to = 16> (X)  {nodes}  Y = Cast <to = 1> (p)", opset=22)
    first = plan_of(streamed(net, "time"))["states"][0]
    assert first["dtype"] == dtype
    numbers = {str(number) for number in np.ravel(first["initial"])}
    assert numbers == {initial.replace("lowest", str(-(2.0 - 2.0**-7) * 2.0**127))}


@pytest.mark.parametrize("opset", [7, 8, 9])
def test_a_model_whose_initializers_are_inputs_gets_constants_that_its_opset_has(opset: int) -> None:
    """Before opset 9 a Constant node holds floats only; the number of frames is an int64."""
    model = over("float[batch, time, 3] X", "Y = ReduceMean <axes = [1]> (X)", opset=opset)
    model.ir_version = 3
    stepped = streamed(model, "time")
    assert not stepped.graph.initializer
    feed = {"X": random((2, 9, 3), 1)}
    np.testing.assert_allclose(chunked(stepped, feed, [2])["Y"], whole(model, feed)["Y"], rtol=0, atol=1e-6)
