"""Loops and Scans along the frames give their states to the caller; other rows than a step's own are refused."""

from typing import Any

import numpy as np
import onnx
import pytest
from cases import Arrays
from loop_models import LOOPS, as_meant, entries, feeds, operators
from stream_models import CHUNKINGS, chunked, expected_of, net, plan_of, random, whole

import rnn_lowering as rl

SUMS = """<float half = {{0.5}}, bool yes = {{1}}> {{ {trips}
    sn, Y = Loop (M, yes, s0) <body = b (int64 i, bool c, float[N,3] s) => (bool c1, float[N,3] s1, float[N,3] o) {{
        {row} d = Mul (s, half) s1 = Add (d, x) o = Relu (s1) c1 = Identity (c) }}> }}"""
GRAPH = "g (float[T,N,3] X, float[N,3] s0) => (float[N,3] sn, float[T,N,3] Y) "


def summing(row: str, trips: str = "sh = Shape (X) z = Constant <value = int64 {0}> () M = Gather (sh, z)") -> Any:
    """A Loop that adds rows to its state."""
    return net(GRAPH + SUMS.format(row=row, trips=trips))


TF = net(
    """g (float[N,T,3] X) => (float[N,4] last, float[N,T,4] Y)
    <float fz = {0}, int32 zero = {0}, int64[1] k0 = {0}, int64[1] k1 = {1}, float[3,4] W, float[4,4] R> {
    Xt = Transpose <perm = [1, 0, 2]> (X) sh = Shape (Xt) sh32 = Cast <to = 6> (sh) ts = Slice (sh32, k0, k1, k0)
    n = Squeeze (ts, k0) nf = Cast <to = 1> (n) c0 = Less (fz, nf) M = Cast <to = 7> (n)
    k2 = Constant <value = int64[1] {2}> () four = Constant <value = int64[1] {4}> ()
    batch = Slice (sh, k1, k2, k0) size = Concat <axis = 0> (batch, four) h0 = Expand (fz, size)
    time, last, a, b, c, Yt = Loop (M, c0, zero, h0, n, W, R) <body = d
        (int64 i, bool go, int32 t, float[N,4] h, int32 m, float[3,4] w, float[4,4] r)
        => (bool go1, int32 t1, float[N,4] h1, int32 m1, float[3,4] w1, float[4,4] r1, float[N,4] o)
        <int32 one = {1}> {
        x = Gather (Xt, t) xw = MatMul (x, w) hr = MatMul (h, r) sum = Add (xw, hr) h1 = Tanh (sum)
        o = Identity (h1)
        t1 = Add (t, one) fi = Cast <to = 1> (i) fm = Cast <to = 1> (m) ft = Cast <to = 1> (t1)
        ca = Less (fi, fm) cb = Less (ft, fm) go1 = And (ca, cb) m1 = Identity (m) w1 = Identity (w)
        r1 = Identity (r) }>
    Y = Transpose <perm = [1, 0, 2]> (Yt) }""",
    {"W": random((3, 4), 1), "R": random((4, 4), 2)},
)

WHILE = net("""g (float[T,3] X) => (float[T,3] Y) <int64 zero = {0}, float[3] s0 = {1, 2, 3}> {
    sh = Shape (X) T = Gather (sh, zero) c0 = Less (zero, T)
    k, s, Y = Loop ("", c0, zero, s0) <body = d (int64 i, bool go, int64 k, float[3] s)
        => (bool go1, int64 k1, float[3] s1, float[3] o) <int64[1] ax = {0}, int64 one = {1}, int64[1] ones = {1}> {
        from = Unsqueeze (k, ax) k1 = Add (k, one) till = Unsqueeze (k1, ax) row = Slice (X, from, till, ax, ones)
        x = Squeeze (row, ax) f = Cast <to = 1> (i) y = Add (x, f) s1 = Sub (y, s) o = Abs (s1)
        go1 = Less (k1, T) }> }""")

SCAN = net("""g (float[N,T,2] X, float[T,2] Z, float[N,2] a, float[N,2] e) => (float[N,2] an, float[N,2,T] Y)
    <float k = {2}> {
    b = Mul (e, k) one = Constant <value = int64 {1}> ()
    an, bn, cn, Y = Scan <num_scan_inputs = 2, scan_input_axes = [-2, 0], scan_output_axes = [-1], body = d
        (float[N,2] s, float[N,2] t, int64 n, float[N,2] x, float[2] z)
        => (float[N,2] s1, float[N,2] t1, int64 n1, float[N,2] o) {
        y = Mul (x, z) s1 = Add (t, y) t1 = Mul (s, k) n1 = Add (n, one) f = Cast <to = 1> (n) o = Add (s1, f) }>
        (a, b, one, X, Z) }""")

DEEP = net(
    """g (float[1,2,T] X) => (float[1,4,T] Y)
    <int64 two = {2}, bool yes = {1}, float[4,2,3] K, float[4,4] R, float half = {0.5}> {
    F = Conv <pads = [2, 0]> (X, K) sh = Shape (F) M = Gather (sh, two)
    z = Constant <value = float[1,4] {0, 0, 0, 0}> ()
    an, A = Loop (M, yes, z) <body = d (int64 i, bool c, float[1,4] s) => (bool c1, float[1,4] s1, float[1,4] o) {
        x = Gather <axis = 2> (F, i) m = MatMul (s, R) s1 = Add (m, x) o = Tanh (s1) c1 = Identity (c) }>
    bn, B = Scan <num_scan_inputs = 1, scan_output_axes = [2], body = e (float[1,4] s, float[1,4] x)
        => (float[1,4] s1, float[1,4] o) { m = Mul (s, half) s1 = Add (m, x) o = Relu (s1) }> (z, A)
    Y = Sigmoid (B) }""",
    {"K": random((4, 2, 3), 3), "R": random((4, 4), 4)},
)

AHEAD = onnx.ModelProto()
AHEAD.CopyFrom(DEEP)
AHEAD.graph.node[0].attribute[0].ints[:] = [1, 1]

LSTM = net(
    """g (float[T,1,2] X, float[1,1,3] h0) => (float[T,1,1,3] Y) <float[1,12,2] W, float[1,12,3] R> {
    hn, Y = Scan <num_scan_inputs = 1, body = d (float[1,1,3] h, float[1,2] x) => (float[1,1,3] h1, float[1,1,3] o)
        <int64[1] ax = {0}> { r = Unsqueeze (x, ax) o4, h1 = LSTM <hidden_size = 3> (r, W, R, "", "", h)
        o = Squeeze (o4, ax) }> (h0, X) }""",
    {"W": random((1, 12, 2), 5), "R": random((1, 12, 3), 6)},
)

LIST = net("""g (float[1,T,3] X) => (float[1,T,3] Y) <bool yes = {1}, float half = {0.5}> {
    sh = Shape (X) one = Constant <value = int64 {1}> () M = Gather (sh, one) empty = SequenceEmpty ()
    z = Constant <value = float[1,3] {0, 0, 0}> ()
    hn, all = Loop (M, yes, z, empty) <body = d (int64 i, bool c, float[1,3] h, seq(float[1,3]) s)
        => (bool c1, float[1,3] h1, seq(float[1,3]) s1) { x = Gather <axis = 1> (X, i) k = Mul (h, half)
        h1 = Add (k, x) y = Tanh (h1) s1 = SequenceInsert (s, y) c1 = Identity (c) }>
    Y = ConcatFromSequence <axis = 1, new_axis = 1> (all) }""")

STREAMS: dict[str, tuple[onnx.ModelProto, dict[str, tuple[int, ...]], dict[str, Any], int]] = {
    "tf2onnx": (TF, {"X": (2, 17, 3)}, {}, 1),
    "a while that ends by its counter, and adds it": (WHILE, {"X": (17, 3)}, {}, 2),
    "torch.jit.script, rows along axis 1": (
        net(GRAPH.replace("float[T,N,3] X", "float[N,T,3] X") + SUMS.format(
            trips="sh = Shape (X) one = Constant <value = int64 {1}> () M = Gather (sh, one)",
            row="z = Constant <value = int64[1] {0}> () e = Constant <value = int64[1] {9223372036854775807}> () "
            "all = Slice (X, z, e, z) x = Gather <axis = 1> (all, i)")),
        {"X": (2, 17, 3), "s0": (2, 3)}, {}, 1,
    ),
    "jax2onnx, X is carried": (
        net(GRAPH.replace("s0)", "s0)") + """<int64 z = {0}, bool yes = {1}> { sh = Shape (X) M = Gather (sh, z)
        sn, Xn, Y = Loop (M, yes, s0, X) <body = b (int64 i, bool c, float[N,3] s, float[T,N,3] v)
        => (bool c1, float[N,3] s1, float[T,N,3] v1, float[N,3] o) { x = Gather (v, i) s1 = Max (s, x)
        o = Add (s, x) v1 = Identity (v) c1 = Identity (c) }> }"""),
        {"X": (17, 2, 3), "s0": (2, 3)}, {}, 1,
    ),
    "a Scan of other axes, and of an initial state that is computed": (
        SCAN, {"X": (2, 17, 2), "Z": (17, 2), "a": (2, 2), "e": (2, 2)}, {}, 4,
    ),
    "a Conv, a Loop and a Scan": (DEEP, {"X": (1, 2, 17)}, {}, 3),
    "behind a Conv that looks ahead": (AHEAD, {"X": (1, 2, 17)}, {"delay": True}, 4),
    "a list": (LIST, {"X": (1, 17, 3)}, {}, 1),
    "an LSTM in the body": (LSTM, {"X": (17, 1, 2), "h0": (1, 1, 3)}, {}, 1),
}  # fmt: skip


@pytest.mark.few(1)
@pytest.mark.parametrize("name", STREAMS)
def test_chunks_are_the_whole(name: str) -> None:
    model, shapes, options, states = STREAMS[name]
    feed: Arrays = {key: random(shape, 7) for key, shape in shapes.items()}
    form: Any
    for frames, form in (("", "auto"), ("", "loop"), ("=1", "auto"), ("=1", "scan"), ("=3", "unroll")):
        stepped = rl.lower(model, form, stream=f"T{frames}", lower_loops=form != "auto", **options)
        plan = plan_of(stepped)
        assert len(plan["states"]) == states
        assert not any(node.op_type == "Loop" for node in stepped.graph.node) or form == "loop"
        assert frames != "=1" or not operators(stepped) & {"Loop", "Scan"}
        named = {n: a for n, a in feed.items() if n in plan["inputs"]}
        given = {s["input"]: feed[s["input"]] for s in plan["states"] if s["input"] in feed}
        length = 17 if frames != "=3" else 15
        cut = {
            n: a if plan["inputs"][n] is None else a.take(range(length), plan["inputs"][n])
            for n, a in named.items()
        }
        expected = expected_of(plan, as_meant(model), cut | given)
        for sizes in CHUNKINGS if not frames else ([int(frames[1:])],):
            got = chunked(stepped, cut, sizes, given)
            for key, array in expected.items():
                np.testing.assert_allclose(got[key], array, rtol=1e-5, atol=1e-5, err_msg=f"{key} {sizes} {form}")


def test_a_state_that_the_model_has_is_that_of_the_stream() -> None:
    model = summing("x = Gather (X, i)")
    _, report = rl.lower(model, stream="T", full=True)
    assert report.stream is not None
    assert [(state.input, state.output) for state in report.stream.states] == [("s0", "sn")]
    assert [(loop.operator, loop.form) for loop in report.loops] == [("Loop", "scan")]


def test_a_new_sequence_starts_from_the_first_state() -> None:
    stream = rl.Stream(rl.lower(TF, stream="T").SerializeToString())
    first, second = random((2, 6, 3), 8), random((2, 6, 3), 9)
    for x in (first, second, first):
        parts = [stream({"X": x[:, n : n + 1]})["Y"] for n in range(6)]
        np.testing.assert_allclose(np.concatenate(parts, 1), whole(as_meant(TF), {"X": x})["Y"], atol=1e-6)
        stream.reset()


def test_the_report_says_why_a_scan_of_one_step_is_none() -> None:
    _, report = rl.lower(summing("x = Gather (X, i)"), stream="T=1", full=True)
    assert [(loop.form, loop.reason) for loop in report.loops][-1] == ("unroll", "a call has one step")
    kept = rl.lower(summing("x = Gather (X, i)"), "keep", stream="T=1")
    assert "Scan" in operators(kept)


def test_a_loop_in_a_step_stays_if_its_steps_cannot_be_counted() -> None:
    """The Scan around it goes all the same: a call has one step."""
    inner = """<float one = {{1}}> {{ {trips}
        sn, Y = Scan <num_scan_inputs = 1, body = b (float[N,3] s, float[N,3] x) => (float[N,3] s1, float[N,3] o) {{
            e = ReduceMax <keepdims = 0> (x) t = Less (one, e) never = Constant <value = int64 {{9}}> ()
            k = Loop (never, t, x) <body = c (int64 i, bool go, float[N,3] v) => (bool more, float[N,3] w) {{
                w = Sub (v, one) m = ReduceMax <keepdims = 0> (w) more = Less (one, m) }}>
            s1 = Add (s, k) o = Add (s, x) }}> (s0, X) }}"""
    model = net(GRAPH + inner.format(trips=""))
    stepped = rl.lower(model, stream="T=1")
    feed = {"X": 3 * random((9, 2, 3), 1), "s0": random((2, 3), 2)}
    got = chunked(stepped, {"X": feed["X"]}, [1], {"s0": feed["s0"]})
    np.testing.assert_allclose(got["Y"], whole(model, feed)["Y"], rtol=1e-5, atol=1e-5)


@pytest.mark.few(1)
@pytest.mark.parametrize("model", [TF, WHILE], ids=["TF", "WHILE"])
def test_a_stream_of_a_loop_is_verified(model: onnx.ModelProto) -> None:
    check = rl.verify_stream(model, rl.lower(model, stream="T"), runs=1)
    assert check.status == "verified", str(check)


REFUSED = {
    "k = Constant <value = int64 {1}> () j = Add (i, k) x = Gather (X, j)": "row i . 1 of 'X', but a stream",
    "k = Constant <value = int64 {2}> () j = Mul (i, k) x = Gather (X, j)": "row 2 i . 0 of 'X', but a stream",
    "k = Constant <value = int64 {1}> () l = Sub (M, k) j = Sub (l, i) x = Gather (X, j)": "rows from the end on",
    "k = Constant <value = int64 {0}> () x = Gather (X, k)": "reads 'X', which has all frames",
    "x = ReduceMean <axes = [0], keepdims = 0> (X)": "in every step",
    "y = Gather (X, i) n = Cast <to = 1> (M) x = Mul (y, n)": "which a stream never knows",
}


@pytest.mark.parametrize("row", REFUSED)
def test_other_rows_are_refused_by_name(row: str) -> None:
    model = summing(row)
    model.graph.node[-1].name = "sum"
    with pytest.raises(rl.UnsupportedError, match=REFUSED[row]) as caught:
        rl.lower(model, stream="T")
    assert str(caught.value).startswith("Loop node 'sum' in main graph: ")


def test_other_loops_are_refused_by_name() -> None:
    fixed = summing("x = Gather (X, i)", "M = Constant <value = int64 {7}> ()")
    data = summing("x = Gather (X, i)")
    data.graph.node[-1].attribute[0].g.node[-1].CopyFrom(onnx.helper.make_node("IsNaN", ["e"], ["c1"]))
    data.graph.node[-1].attribute[0].g.node.insert(4, onnx.helper.make_node("ReduceMax", ["o"], ["e"], keepdims=0))
    text = """{ sn, Y = Scan <num_scan_inputs = 1, scan_input_directions = [1], body = b
        (float[N,3] s, float[N,3] x) => (float[N,3] s1, float[N,3] r) {
        s1 = Add (s, x) r = Relu (s1) }> (s0, X) }"""
    back = net(GRAPH + text)
    across = net(
        GRAPH
        + """{ sn, Y = Scan <num_scan_inputs = 1, scan_input_axes = [1], body = b
        (float[N,3] s, float[T,3] x) => (float[N,3] s1, float[T,3] o) { s1 = Abs (s) o = Relu (x) }> (s0, X) }"""
    )
    for model, reason in (
        (fixed, "takes 7 steps whatever the number of frames"),
        (data, "the number of its steps depends on data"),
        (back, "goes backwards"),
        (across, "not along the axis that it scans"),
    ):
        model.graph.node[-1].name = "sum"
        with pytest.raises(rl.UnsupportedError, match=reason) as caught:
            rl.lower(model, stream="T")
        assert " node 'sum' in main graph: " in str(caught.value)


def test_a_loop_behind_the_last_state_of_another_is_refused_by_name() -> None:
    model = net("""g (float[T,3] X, float[3] s0) => (float[T,3] Z) <bool yes = {1}, int64 zero = {0}> {
        sh = Shape (X) M = Gather (sh, zero)
        sn = Loop (M, yes, s0) <body = b (int64 i, bool c, float[3] s) => (bool c1, float[3] s1) {
            x = Gather (X, i) s1 = Add (s, x) c1 = Identity (c) }>
        t0 = Relu (sn)
        tn, Z = Loop ("", yes, t0) <body = d (int64 j, bool go, float[3] t) => (bool go1, float[3] t1, float[3] o)
            <int64 one = {1}> {
            y = Gather (X, j) t1 = Add (t, y) o = Relu (t1) k = Add (j, one) go1 = Less (k, M) }> }""")
    with pytest.raises(rl.UnsupportedError, match="its initial state is computed from the stream"):
        rl.lower(model, stream="T")


@pytest.mark.few(4)
@pytest.mark.parametrize(
    "entry", [each for each in entries() if not each.values[0] or each.values[0].get("stream")]
)
def test_loops_of_exporters(entry: dict[str, Any]) -> None:
    model = onnx.load(LOOPS / entry["file"])
    ((axis, frames),) = entry["stream"].items()
    if entry["file"] in STREAMED:
        stepped = rl.lower(model, stream={axis: frames})
        plan = plan_of(stepped)
        assert len(plan["states"]) == 1
        assert not operators(stepped) & {"Loop", "Scan"}
        for feed in feeds(entry):
            given = {s["input"]: feed[s["input"]] for s in plan["states"] if s["input"] in feed}
            named = {n: a for n, a in feed.items() if n in plan["inputs"]}
            expected = expected_of(plan, as_meant(model), named | given)
            got = chunked(stepped, named, [frames], given)
            for key, array in expected.items():
                np.testing.assert_allclose(got[key], array, rtol=1e-5, atol=1e-5)
    else:
        with pytest.raises(rl.UnsupportedError):
            rl.lower(model, stream={axis: frames})


STREAMED = {"dynamo_scan_ema.onnx", "hand_loop_leaky_sum.onnx", "keras_gru_last.onnx", "tf_cumprod.onnx"}


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("target", "frames", "kept"),
    [(name, "=1", set()) for name in ("portable", "onnxruntime", "mnn", "openvino", "tract", "tvm", "burn")]
    + [
        ("tvm", "=3", set()),
        ("tract", "=3", {"Scan"}),
        ("mnn", "", {"Loop"}),
        ("openvino", "", {"Loop"}),
        ("tract", "", {"Scan"}),
    ],
)
def test_a_stream_has_the_form_that_the_target_runs(target: Any, frames: str, kept: set[str]) -> None:
    sizes = {"N": 2} if target == "tvm" else None
    stepped = rl.lower(TF, stream=f"T{frames}", target=target, dims=sizes)
    assert operators(stepped) & {"Loop", "Scan"} == kept
    feed = {"X": random((2, 6, 3), 11)}
    got = chunked(stepped, feed, [int(frames[1:] or 3)])
    for key, array in whole(as_meant(TF), feed).items():
        np.testing.assert_allclose(got[key], array, rtol=1e-5, atol=1e-5)


CHOOSING = """g (float[T,N,3] X, float[N,3] s0) => (float[T,N,3] Y) {{ sh = Shape (X)  M = Gather (sh, 0)
    sn, Y = Loop (M, yes, s0) <body = b (int64 i, bool c, float[N,3] s) => (bool c1, float[N,3] s1, float[N,3] o) {{
        {nodes}  d = Mul (s, half)  s1 = Add (d, x)  o = Tanh (s1)  c1 = Identity (c) }}> }}"""
NUMBERS = {
    "yes": np.array(True),
    "half": np.array(0.5, np.float32),
    **{name: np.array(n) for n, name in enumerate(("zero", "one", "two"))},
    "line": np.ones((1, 3), np.float32),
    "nought": np.array(0.0, np.float32),
    "K": random((3, 3), 1),
    "few": random((2, 3), 2),
}


def choosing(condition: str, one: str, other: str) -> onnx.ModelProto:
    """A Loop over X whose steps take one of two branches by g."""
    nodes = f"""{condition}  x = If (g) <then_branch = p () => (float[N,3] xa) {{ {one} }},
        else_branch = q () => (float[N,3] xb) {{ {other} }}>"""
    text = CHOOSING.format(nodes=nodes)
    return net(
        text,
        {
            name: array
            for name, array in NUMBERS.items()
            if name in text.replace(",", " ").split() or f"{name})" in text or f"({name}" in text
        },
    )


LATER, ROW = "g = Greater (i, zero)", "r = Gather (X, i)"
CHOSEN = {
    "what both read": (f"{ROW}  {LATER}", "xa = Mul (r, half)", "xb = Neg (r)"),
    "a row in each": (LATER, "ra = Gather (X, i)  xa = Mul (ra, half)", "rb = Gather (X, i)  xb = Neg (rb)"),
    "the state": (LATER, f"{ROW}  m = MatMul (s, K)  xa = Add (r, m)", "xb = Gather (X, i)"),
    "every other step": ("m = Mod (i, two)  g = Equal (m, zero)", f"{ROW}  xa = Tanh (r)", "xb = Gather (X, i)"),
    "by a row": (
        f"{ROW}  m = ReduceMax <keepdims = 0> (r)  g = Greater (m, nought)",
        "xa = Neg (r)",
        "xb = Tanh (r)",
    ),
    "one in another": (
        LATER,
        f"""{ROW}  h = Greater (i, two)  xa = If (h) <then_branch = a () => (float[N,3] u) {{ u = Mul (r, half) }},
            else_branch = b () => (float[N,3] v) {{ v = Neg (r) }}>""",
        "xb = Gather (X, i)",
    ),
}


@pytest.mark.parametrize("name", CHOSEN)
def test_an_if_in_a_step_becomes_a_choice(name: str) -> None:
    model = choosing(*CHOSEN[name])
    stepped = rl.lower(model, stream={"X:0": None})
    assert operators(stepped).isdisjoint({"If", "Loop"})
    plan = plan_of(stepped)
    for frames in (1, 2, 3, 7, 20):
        feed = {"X": random((frames, 2, 3), frames), "s0": random((2, 3), 5)}
        expected = whole(model, feed)["Y"]
        for sizes in CHUNKINGS:
            states = {s["input"]: feed["s0"] for s in plan["states"] if s["input"] == "s0"}
            got = chunked(stepped, feed, sizes, states)["Y"]
            np.testing.assert_allclose(got, expected, rtol=0, atol=1e-6, err_msg=f"{frames} {sizes}")


NOT_CHOSEN = {
    "a row before": (LATER, "k = Sub (i, one)  xa = Gather (X, k)", "xb = Gather (X, i)"),
    "the last row": ("g = Greater (i, one)", "xa = Gather (X, i)", "k = Sub (i, one)  xb = Gather (X, k)"),
    "the first row": (LATER, "xa = Gather (X, i)", "xb = Gather (X, zero)"),
    "a table with few rows": ("g = Less (i, two)", "t = Gather (few, i)  r = Gather (X, i)  xa = Add (r, t)",
                              "xb = Gather (X, i)"),
    "half of the frames": ("h = Div (M, two)  g = Less (i, h)", "xa = Gather (X, i)", f"{ROW}  xb = Neg (r)"),
    "another shape": (LATER, "xa = Gather (X, i)", "xb = Identity (line)"),
    "random numbers": (f"{ROW}  {LATER}", "z = RandomNormalLike (r)  xa = Add (r, z)", "xb = Neg (r)"),
    "a division by 0": (
        f"{ROW}  {LATER}",
        "z = Div (two, i)  f = Cast <to = 1> (z)  xa = Add (r, f)",
        "xb = Neg (r)",
    ),
    "a size of the step": (
        f"{ROW}  {LATER}",
        "u = Unsqueeze (i, [0])  z = ConstantOfShape (u)  w = ReduceSum (z)  xa = Add (r, w)",
        "xb = Neg (r)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NOT_CHOSEN)
def test_a_branch_that_may_fail_stays_and_is_refused(name: str) -> None:
    with pytest.raises(rl.UnsupportedError, match="Loop node '-> sn'"):
        rl.lower(choosing(*NOT_CHOSEN[name]), stream={"X:0": None})
