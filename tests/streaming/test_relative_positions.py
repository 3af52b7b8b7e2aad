"""Relative positions stream: the product of queries and rows by distance, and what moves its columns to the keys.

Conformers and Transformer-XL have them. A sequence of T frames has rows for the distances T - 1 to 1 - T, or to 0;
column T - 1 - i + j of row i is moved to column j. The oracle is onnxruntime on the original.
"""

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from stream_models import chunked, expected_of, over, plan_of, random, rows

import rnn_lowering as rl

HEAD = "float[batch, time, 8] X"
_DOWN = np.arange(63, -64, -1.0)[:, None] * 0.3 ** np.arange(4)
WEIGHTS = {
    "table": np.concatenate([np.sin(_DOWN), np.cos(_DOWN)], -1)[None].astype(np.float32),
    "short": np.concatenate([np.sin(_DOWN), np.cos(_DOWN)], -1)[None, 53:74].astype(np.float32),  # 10 to -10
    "f": (0.3 ** np.arange(4)).astype(np.float32),
    "U": random((2, 4), 1),
    "steep": np.arange(1, 65, dtype=np.float32)[:, None],
}
SIZES = """sh = Shape (X)  b1 = Slice (sh, [0], [1])  n1 = Slice (sh, [1], [2])  n = Squeeze (n1)  u = Sub (n, 1)
    two = Mul (n1, [2])  odd = Sub (two, [1])"""
MASK = "r = Range (0, n, 1)  i = Unsqueeze (r, [1])  j = Unsqueeze (r, [0])  d = Sub (i, j)  c = LessOrEqual (0, d)"
HEADS = """q0 = MatMul (X, Q[8, 8])  k0 = MatMul (X, K[8, 8])  v0 = MatMul (X, V[8, 8])
    q4 = Reshape (q0, [0, -1, 2, 4])  k4 = Reshape (k0, [0, -1, 2, 4])  v4 = Reshape (v0, [0, -1, 2, 4])
    qu = Add (q4, U)  q = Transpose <perm = [0, 2, 1, 3]> (q4)  qv = Transpose <perm = [0, 2, 1, 3]> (qu)
    k = Transpose <perm = [0, 2, 3, 1]> (k4)  v = Transpose <perm = [0, 2, 1, 3]> (v4)  s = MatMul (q, k)"""
DISTANCES = """m1 = Neg (n)  a = Cast <to = 1> (u)  e = Cast <to = 1> (m1)  g = Range (a, e, -1.0)
    g1 = Unsqueeze (g, [1])  fg = Mul (g1, f)  sn = Sin (fg)  cs = Cos (fg)  sc = Concat <axis = -1> (sn, cs)
    rows = Unsqueeze (sc, [0])"""
PRODUCT = """p0 = MatMul (rows, P[8, 8])  p4 = Reshape (p0, [1, -1, 2, 4])  p = Transpose <perm = [0, 2, 3, 1]> (p4)
    o = MatMul (qv, p)"""
GEMM = """r2 = Squeeze (rows, [0])  p0 = Gemm <transB = 0> (r2, P[8, 8], bias[8])
    p4 = Reshape (p0, [1, -1, 2, 4])  p = Transpose <perm = [0, 2, 3, 1]> (p4)  o = MatMul (qv, p)"""
EINSUM = """p0 = MatMul (rows, P[8, 8])  p4 = Reshape (p0, [-1, 2, 4])
    o = Einsum <equation = "bhid,jhd->bhij"> (qv, p4)"""
SHIFT = """pd = Pad (o, [0, 0, 0, 1, 0, 0, 0, 0])  z1 = Concat <axis = 0> (b1, [2], [-1], n1)  x1 = Reshape (pd, z1)
    x2 = Slice (x1, [1], [9223372036854775807], [2])  z2 = Concat <axis = 0> (b1, [2], n1, odd)
    x3 = Reshape (x2, z2)  x4 = Slice (x3, [0], n1, [3])"""
SUM = "t = Add (s, x4)  y = Mul (t, 0.5)"
WEIGHED = """w = Softmax <axis = -1> (m)  h = MatMul (w, v)  ht = Transpose <perm = [0, 2, 1, 3]> (h)
    Y = Reshape (ht, [0, -1, 8])"""
ALL = "m = Where (c, y, -1e4)"
WINDOW = "e5 = Less (d, 5)  ce = And (c, e5)  m = Where (ce, y, -1e4)"


def net(mask: str = ALL, **parts: str) -> onnx.ModelProto:
    """Return an attention with relative positions; a part may be another one."""
    own = {"distances": DISTANCES, "product": PRODUCT, "shift": SHIFT, "sum": SUM, "weighed": WEIGHED} | parts
    return over(HEAD, "\n".join([SIZES, MASK, HEADS, *list(own.values())[:-1], mask, own["weighed"]]), WEIGHTS)


def streamed(model: onnx.ModelProto, stream: str, **options: Any) -> onnx.ModelProto:
    held = ir.from_proto(model)
    rl.StreamPass(stream, True, **options)(held)
    proto = ir.to_proto(held)
    onnx.checker.check_model(proto, full_check=True)
    return proto


def assert_equal(model: onnx.ModelProto, stepped: onnx.ModelProto, frames: int, sizes: list[int]) -> None:
    feed = {"X": random((2, frames, 8), frames)}
    expected = expected_of(plan_of(stepped), model, feed)
    for name, array in chunked(stepped, feed, sizes).items():
        np.testing.assert_allclose(array, expected[name], rtol=0, atol=2e-5, err_msg=f"{frames} in {sizes}")


FROM_0 = DISTANCES.replace("m1 = Neg (n)", "m1 = Neg (1)")
XL = """zs = Concat <axis = 0> (b1, [2], n1, [1])  zr = Expand (0.0, zs)  pd = Concat <axis = -1> (zr, o)
    up = Add (n1, [1])  z1 = Concat <axis = 0> (b1, [2], up, n1)  x1 = Reshape (pd, z1)
    x2 = Slice (x1, [1], [9223372036854775807], [2])  os = Shape (o)  x4 = Reshape (x2, os)"""
TABLE = """c0 = Sub (64, n)  c1 = Add (63, n)  c2 = Unsqueeze (c0, [0])  c3 = Unsqueeze (c1, [0])
    rows = Slice (table, c2, c3, [1])"""
NETS = {
    "all past frames": net(),
    "window": net(WINDOW),
    "table": net(distances=TABLE),
    "table and window": net(WINDOW, distances=TABLE),
    "Transformer-XL": net(distances=FROM_0, shift=XL),
    "Transformer-XL with a window": net(WINDOW, distances=FROM_0, shift=XL),
    "a Concat in front": net(
        shift="zs = Concat <axis = 0> (b1, [2], n1, [1])  zr = Expand (0.0, zs)  "
        "pd = Concat <axis = -1> (zr, o)" + SHIFT[SHIFT.index("  z1") :]
    ),
    "a size of torch": net(  # 2 * T**2 / T - 1
        shift=SHIFT.replace("odd", "od")
        .replace("x3 =", "x3 =")
        .replace("z2 =", "pw = Pow (n1, [2])  tw = Mul (pw, [2])  tq = Div (tw, n1)  od = Sub (tq, [1])  z2 =")
    ),
    "scaled before": net(shift=SHIFT.replace("pd = Pad (o,", "os = Mul (o, 0.7)  pd = Pad (os,")),
    "sliced twice": net(
        shift=SHIFT.replace(
            "x4 = Slice (x3, [0], n1, [3])", "xa = Slice (x3, [0], n1, [3])  x4 = Slice (xa, [0], n1, [3])"
        )
    ),
    "rows of integers": net(
        distances="""a = Sub (n, 1)  e = Neg (n)  g = Range (a, e, -1)  gf = Cast <to = 1> (g)
            g1 = Unsqueeze (gf, [1])  fg = Mul (g1, f)  sn = Sin (fg)  sc = Concat <axis = -1> (sn, fg)
            th = Tanh (sc)  rows = Unsqueeze (th, [0])"""
    ),
    "counted up": net(  # row c has the number of minus its distance
        distances="""a = Sub (1, n)  g = Range (a, n, 1)  gn = Neg (g)  gf = Cast <to = 1> (gn)
            g1 = Unsqueeze (gf, [1])  fg = Mul (g1, f)  sn = Sin (fg)  cs = Cos (fg)
            sc = Concat <axis = -1> (sn, cs)  rows = Unsqueeze (sc, [0])"""
    ),
    "a Gemm of a table of rank 2": net(product=GEMM),
    "a Gemm without a bias, transposed": net(
        product=GEMM.replace("<transB = 0>", "<transB = 1, alpha = 0.5>").replace(", bias[8])", ")")
    ),
    "weights for each head": net(
        product="p4 = MatMul (rows, P[2, 8, 4])  p = Transpose <perm = [0, 2, 1]> (p4)  o = MatMul (qv, p)"
    ),
    "a Gemm of transposed rows": net(
        product=GEMM.replace("p0 = Gemm <transB = 0> (r2,", "rt = Transpose (r2)  p0 = Gemm <transA = 1> (rt,")
    ),
    "a size that follows": net(product=PRODUCT.replace("[1, -1, 2, 4]", "[1, 0, -1, 4]")),
    "an Einsum": net(product=EINSUM),
    "an Einsum of queries before heads": net(product=EINSUM.replace("(qv,", "(qu,").replace("bhid,", "bihd,")),
    "an Einsum of such queries, ahead": net(
        "g2 = LessOrEqual (-2, d)  e5 = Less (d, 5)  ce = And (g2, e5)  m = Where (ce, y, -1e4)",
        product=EINSUM.replace("(qv,", "(qu,").replace("bhid,", "bihd,"),
    ),
    "an Einsum of rows for all heads": net(
        product='p0 = MatMul (rows, P[8, 4])  p = Squeeze (p0, [0])  o = Einsum <equation = "b h i d, j d"> (qv, p)'
    ),
    "an Einsum of rows for all sequences": net(
        product="""p0 = MatMul (rows, P[8, 8])  p4 = Reshape (p0, [1, -1, 2, 4])
            o = Einsum <equation = "bhid,bjhd->bhij"> (qv, p4)"""
    ),
    "all by Einsum": net(
        product=EINSUM.replace("(qv,", "(qu,").replace("bhid,", "bihd,"),
        sum='se = Einsum <equation = "bihd,bjhd->bhij"> (q4, k4)  t = Add (x4, se)  y = Mul (t, 0.5)',
        weighed="""w = Softmax <axis = -1> (m)  h = Einsum <equation = "bhij,bjhd->bihd"> (w, v4)
            Y = Reshape (h, [0, -1, 8])""",
    ),
    "Music Transformer": net(distances=FROM_0, product=EINSUM, shift=XL),
    "two frames ahead": net(
        "g2 = LessOrEqual (-2, d)  e5 = Less (d, 5)  ce = And (g2, e5)  m = Where (ce, y, -1e4)"
    ),
    "chunks of 4": net("ci = Div (i, 4)  cj = Div (j, 4)  cc = LessOrEqual (cj, ci)  m = Where (cc, y, -1e4)"),
}


@pytest.mark.few(2)
@pytest.mark.parametrize("name", NETS)
def test_relative_positions_stream(name: str) -> None:
    model, unit = NETS[name], 4 if "chunks" in name else 1
    assert_equal(model, streamed(model, f"time={unit}"), 16, [unit])
    assert_equal(model, streamed(model, f"time={4 * unit}"), 32, [4 * unit])
    assert_equal(model, streamed(model, "time"), 20 * unit, [unit, 3 * unit, 7 * unit, 2 * unit])


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", NETS)
def test_every_size_of_calls(name: str) -> None:
    model, unit = NETS[name], 4 if "chunks" in name else 1
    for frames, sizes in ((unit, [unit]), (3 * unit, [3 * unit]), (None, [unit, 4 * unit, 2 * unit, 9 * unit])):
        for most in (None, 60):
            stepped = streamed(model, "time" if frames is None else f"time={frames}", max_frames=most)
            for calls in (1, 2, 5):
                assert_equal(model, stepped, calls * sizes[0], sizes)


def test_a_window_needs_no_positions() -> None:
    """With one frame a call the rows by distance are a constant, and nothing is moved."""
    stepped = rl.lower(NETS["window"], stream="time=1")
    types = {node.op_type for node in stepped.graph.node}
    assert {"Range", "Sin", "Cos", "Pad", "Slice"} & types == {"Slice"}  # that of the past keys
    assert [s["state"] for s in plan_of(stepped)["states"]] == ["k", "v", "t"]


@pytest.mark.few(2)
@pytest.mark.parametrize("name", ["all past frames", "table", "Transformer-XL", "an Einsum"])
def test_a_call_of_one_frame_computes_one_row(name: str) -> None:
    """The others are those of the call before."""
    stepped = rl.lower(NETS[name], stream="time=1")
    assert "Range" not in {node.op_type for node in stepped.graph.node}
    states = {state["state"]: state for state in plan_of(stepped)["states"]}
    assert states.keys() == {"k", "v", "p", "t"}
    assert states["p"]["shape"][states["p"]["grows"]] == 0
    assert_equal(NETS[name], stepped, 40, [1])


def test_the_comparison_finds_rows_in_other_order() -> None:
    stepped = rl.lower(NETS["all past frames"], stream="time=1")
    (joined,) = [n for n in stepped.graph.node if n.op_type == "Concat" and n.input[1] == "past_o_p"]
    joined.input[:] = joined.input[::-1]
    assert rl.verify_stream(NETS["all past frames"], stepped, runs=1).status == "failed"


@pytest.mark.parametrize("frames", [1, 2])
def test_a_stream_ends_with_its_table(frames: int) -> None:
    short = net(distances=TABLE.replace("64", "11").replace("63", "10").replace("(table,", "(short,"))
    stepped = streamed(short, f"time={frames}")
    most = 11 // frames * frames
    assert plan_of(stepped)["max_frames"] == 11
    assert_equal(short, stepped, most, [frames])
    with pytest.raises(Exception, match="out of"):
        chunked(stepped, {"X": random((1, most + frames, 8), 1)}, [frames])


def test_a_window_goes_on_behind_the_end_of_its_table() -> None:
    """It reads the first rows only. The original ends there."""
    short = net(WINDOW, distances=TABLE.replace("64", "11").replace("63", "10").replace("(table,", "(short,"))
    stepped = streamed(short, "time=1")
    assert "max_frames" not in plan_of(stepped)
    feed = {"X": random((2, 40, 8), 40)}
    expected = expected_of(plan_of(stepped), NETS["table and window"], feed)["Y"]
    np.testing.assert_allclose(chunked(stepped, feed, [1])["Y"], expected, rtol=0, atol=2e-5)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["all past frames", "window"])
@pytest.mark.parametrize(("stream", "most"), [("time=3", 30), ("time=1", None), ("time=3", None), ("time", None)])
def test_the_comparison_finds_a_distance_off_by_one(name: str, stream: str, most: int | None) -> None:
    original = NETS[name]
    right = rl.lower(original, stream=stream, max_frames=most)
    assert rl.verify_stream(original, right, runs=1).status == "verified"
    later = net(
        ALL if name == "all past frames" else WINDOW,
        distances=DISTANCES.replace("fg = Mul (g1, f)", "g2 = Add (g1, 1.0)  fg = Mul (g2, f)"),
    )
    assert rl.verify_stream(original, rl.lower(later, stream=stream, max_frames=most), runs=1).status == "failed"


REFUSED = rows(
    """
# distances
compares frames with each other: it reads scores of pairs of frames in a way that is not known
    e = Cast <to = 1> (n)  g = Range (0.0, e, 1.0)  g1 = Unsqueeze (g, [1])  fg = Mul (g1, f)  sn = Sin (fg)
        cs = Cos (fg)  sc = Concat <axis = -1> (sn, cs)  rows = Unsqueeze (sc, [0])
counts frames in a way that needs the whole sequence
    m1 = Neg (n)  a = Cast <to = 1> (n)  e = Cast <to = 1> (m1)  g = Range (a, e, -1.0)  g1 = Unsqueeze (g, [1])
        fg = Mul (g1, f)  sn = Sin (fg)  cs = Cos (fg)  sc = Concat <axis = -1> (sn, cs)  rows = Unsqueeze (sc, [0])
    m1 = Neg (n)  a = Cast <to = 1> (u)  e = Cast <to = 1> (m1)  g = Range (a, e, -1.0)  g1 = Unsqueeze (g, [1])
        gs = ReduceMax (g1)  gd = Div (g1, gs)  fg = Mul (gd, f)  sn = Sin (fg)  cs = Cos (fg)
        sc = Concat <axis = -1> (sn, cs)  rows = Unsqueeze (sc, [0])
    m1 = Neg (n)  a = Cast <to = 1> (u)  e = Cast <to = 1> (m1)  g = Range (a, e, -1.0)  g1 = Unsqueeze (g, [1])
        fg = Mul (g1, f)  sn = Sin (fg)  cs = CumSum (sn, 0)  sc = Concat <axis = -1> (sn, cs)
        rows = Unsqueeze (sc, [0])
# shift
MatMul node '-> o' in main graph: compares frames with distances: it reads scores by distance in a way that is not
    pd = Pad (o, [0, 0, 0, 0, 0, 0, 0, 1])  z1 = Concat <axis = 0> (b1, [2], [-1], n1)  x1 = Reshape (pd, z1)
        x2 = Slice (x1, [1], [9223372036854775807], [2])  z2 = Concat <axis = 0> (b1, [2], n1, odd)
        x3 = Reshape (x2, z2)  x4 = Slice (x3, [0], n1, [3])
    pd = Pad (o, [0, 0, 0, 1, 0, 0, 0, 0])  z1 = Concat <axis = 0> (b1, [2], [-1], n1)  x1 = Reshape (pd, z1)
        x2 = Slice (x1, [0], [-1], [2])  z2 = Concat <axis = 0> (b1, [2], n1, odd)
        x3 = Reshape (x2, z2)  x4 = Slice (x3, [0], n1, [3])
    pd = Pad (o, [0, 0, 0, 1, 0, 0, 0, 0])  z1 = Concat <axis = 0> (b1, [2], [-1], n1)  x1 = Reshape (pd, z1)
        x2 = Slice (x1, [1], [9223372036854775807], [2])  z2 = Concat <axis = 0> (b1, [2], n1, odd)
        x3 = Reshape (x2, z2)  un = Unsqueeze (u, [0])  x4 = Slice (x3, un, [9223372036854775807], [3])
    x4 = Slice (o, [0], n1, [3])
# product
counts frames in a way that needs the whole sequence
    p0 = MatMul (rows, P[8, 8])  p4 = Reshape (p0, [-1, 2, 4])
        es = Einsum <equation = "bhid,jhd->bhji"> (qv, p4)  o = Transpose <perm = [0, 1, 3, 2]> (es)
    p0 = MatMul (rows, P[8, 8])  p4 = Reshape (p0, [-1, 2, 4])
        o = Einsum <equation = "jhd,bhid->bhij"> (p4, qv)
Einsum node '-> es' in main graph: compares frames with distances: it reads scores by distance in a way that is not
    p0 = MatMul (rows, P[8, 8])  p4 = Reshape (p0, [-1, 2, 4])
        es = Einsum <equation = "bhid,jhd->hbij"> (qv, p4)  o = Transpose <perm = [1, 0, 2, 3]> (es)
"""
)


@pytest.mark.few(7)
@pytest.mark.parametrize(("part", "reason", "nodes"), REFUSED)
def test_other_rows_and_shifts_are_refused(part: str, reason: str, nodes: str) -> None:
    with pytest.raises(rl.UnsupportedError) as refused:
        streamed(net(**{part: nodes}), "time=1")
    assert reason in str(refused.value)


def test_what_else_is_refused() -> None:
    from_0 = net(
        "ci = Div (i, 4)  cj = Div (j, 4)  cc = LessOrEqual (cj, ci)  m = Where (cc, y, -1e4)",
        distances=FROM_0,
        shift=XL,
    )
    with pytest.raises(
        rl.UnsupportedError, match="sees later frames, for which it has no relative positions; count"
    ):
        streamed(from_0, "time=4")
    for total in ("t = Sub (s, x4)  y = Mul (t, 0.5)", "y = Mul (x4, 0.5)", "y = Max (s, x4)"):
        with pytest.raises(rl.UnsupportedError, match="scores"):
            streamed(net(sum=total), "time=1")
    twice = """w = Softmax <axis = -1> (m)  h1 = MatMul (w, v)  ce = Less (d, 3)  cg = And (c, ce)
        m2 = Where (cg, y, -1e4)  w2 = Softmax <axis = -1> (m2)  h2 = MatMul (w2, v)  h = Add (h1, h2)
        ht = Transpose <perm = [0, 2, 1, 3]> (h)  Y = Reshape (ht, [0, -1, 8])"""
    with pytest.raises(rl.UnsupportedError, match="scores that are read twice"):
        streamed(net(weighed=twice), "time=1")
