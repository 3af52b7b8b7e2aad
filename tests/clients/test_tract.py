"""tract runs lowered models of an open length: one loaded model, sequences of any length."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from cases import Arrays, Case, expected
from oracle import GATES
from running import run
from stream_models import plan_of
from texts import parse, random_feed

import rnn_lowering as rl
from clients.driving import assert_lowered_right, assert_right, drive, judge, run_python
from clients.trials import cases, original

pytestmark = pytest.mark.environments("tract")

OPEN = """
import sys, numpy as np, tract
for path in sys.argv[1:]:
    inference, feed = tract.onnx().load(path + ".onnx"), np.load(path + ".npz")
    names = [inference.input_name(n) for n in range(inference.input_count())]
    for n, name in enumerate(names):
        sizes, kind = [str(size) for size in feed[name].shape], feed[name].dtype.name
        if name == "X":
            sizes[int(feed["axis"])] = "T"
        inference.set_input_fact(n, ",".join([*sizes, kind.replace("float", "f").replace("int", "i")]))
    model = inference.into_model().into_runnable()
    results = [tensor.to_numpy() for tensor in model.run([feed[name] for name in names])]
    np.savez(path + ".out.npz", *results)
"""


STATE = """
import sys, numpy as np, tract
for path in sys.argv[1:]:
    inference, feed = tract.onnx().load(path + ".onnx"), np.load(path + ".npz")
    names = [inference.input_name(n) for n in range(inference.input_count())]
    for n, name in enumerate(names):
        inference.set_input_fact(n, ",".join([*map(str, feed[name].shape), "f32"]))
    state = inference.into_model().into_runnable().spawn_state()
    np.savez(path + ".out.npz", *(state.run([feed[name] for name in names])[0].to_numpy() for _ in range(2)))
"""


def test_a_state_keeps_what_scans_hold(tmp_path: Path) -> None:
    """As docs/runtimes.md says: only what has no Scan gives the same in the second call of a State."""
    models: dict[str, onnx.ModelProto] = {}
    for op in GATES:
        model, feed = original(Case("state", op, T=4, N=1, outputs=("Y",), x="length"))
        models[f"{op} native"] = model
        models[f"{op} scan"] = rl.lower(model, target="tract", to="scan")
        models[f"{op} unroll"] = rl.lower(model, target="tract", to="unroll", dims={"seq": 4})
        step = models[f"{op} stream"] = rl.lower(model, target="tract", stream={"seq": 1})
        past = {s["input"]: np.ones(s["shape"], s["dtype"]) for s in plan_of(step)["states"]}
        for form in ("native", "scan", "unroll", "stream"):
            given: dict[str, Any] = {"X": feed["X"][:1], **past} if form == "stream" else feed
            np.savez(tmp_path / f"{op} {form}.npz", **given)
    for name, net in models.items():
        onnx.save(net, tmp_path / f"{name}.onnx")
    run_python("tract", "-c", STATE, *(tmp_path / name for name in models))
    for name in models:
        with np.load(tmp_path / f"{name}.out.npz") as held:
            first, second = held.values()
        assert bool(np.abs(first - second).max() > 0.1) == name.endswith(("native", "scan")), name


INTEGERS = """g (float[3, 4, 8] x) => (float[3, 4, 8] y)
    <float s = {0.1}, int8 z = {0}, float t = {0.00390625}, int8 low = {-128}> {
    a = QuantizeLinear (x, s, z) b = DequantizeLinear (a, s, z) c = Softmax <axis = -1> (b)
    d = QuantizeLinear (c, t, low) y = DequantizeLinear (d, t, low) }"""


def test_a_softmax_between_integers(tmp_path: Path) -> None:
    """tract takes it for elementwise there: each weight becomes 1, or next to it."""
    net = parse(INTEGERS)
    feed: Arrays = {"x": np.random.default_rng(0).normal(0, 3, (3, 4, 8)).astype(np.float32)}
    wanted = run(net, feed, optimize=False)
    jobs = {"before": (net, feed), "after": (rl.lower(net, target="tract"), feed)}
    got = drive("tract", jobs, tmp_path)
    assert {name: judge(got[name], wanted)[0] for name in jobs} == {"before": "wrong", "after": "right"}


def test_the_length_may_be_open(tmp_path: Path) -> None:
    """Both directions: what tract knows of the lengths of two Scans has to be the same."""
    known = {name: dataclasses.replace(case, x="symbolic") for name, case in cases().items()}
    paths = {name: tmp_path / str(n) for n, name in enumerate(known)}
    outputs = {}
    for name, case in known.items():
        net, feed = original(case)
        lowered = rl.lower(net, target="tract")
        onnx.save(lowered, paths[name].with_suffix(".onnx"))
        given: dict[str, Any] = {"axis": case.attributes.get("layout", 0), **feed}
        np.savez(paths[name].with_suffix(".npz"), **given)
        outputs[name] = [value.name for value in lowered.graph.output]
    run_python("tract", "-c", OPEN, *paths.values())
    for name, case in known.items():
        with np.load(f"{paths[name]}.out.npz") as got:
            results = dict(zip(outputs[name], got.values(), strict=True))
        assert judge(results, expected(case)) == ("right", ""), name


def test_rows_that_a_loop_joins(tmp_path: Path) -> None:
    """tract 0.23.9 does not end with a Scan whose rows get an axis that is removed behind it."""
    model = parse("""g (float[5,3] X) => (float[n,3] Y)
        <int64 five = {5}, bool yes = {1}, float[1,3] zero = {0, 0, 0}> {
        Y = Loop (five, yes, zero) <body = b (int64 i, bool c, float[a,3] h) => (bool c1, float[b,3] h1) {
            x = Gather (X, i) y = Tanh (x) axis = Constant <value = int64[1] {0}> ()
            row = Unsqueeze (y, axis) h1 = Concat <axis = 0> (h, row) c1 = Identity (c) }> }""")
    x = np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)
    wanted = np.concatenate([np.zeros((1, 3), np.float32), np.tanh(x)])
    assert_right("tract", {"rows": (rl.lower(model, target="tract"), {"X": x})}, {"rows": {"Y": wanted}}, tmp_path)


STEPS_OF_TWO = """g (float[T, N, 3] x, float[T, N, 4] z) => (float[N, 5] y)
    <float[1, 6, 3] W = {}, float[1, 6, 4] V = {}, float[1, 6, 2] R = {}, float[2, 5] K = {}, int64[1] zero = {0},
    int64[1] one = {1}, int64[1] minus = {-1}, int64[1] end = {9223372036854775807}, int64[2] flat = {-1, 2}> {
    a = GRU <hidden_size = 2, linear_before_reset = 1> (x, W, R) a1 = Squeeze (a, one)
    , b = GRU <hidden_size = 2, linear_before_reset = 1> (z, V, R) right = Squeeze (b, zero)
    l = Slice (a1, BOUNDS, zero) left = DROPPED sum = Add (left, right) y = MatMul (sum, K) }"""


@pytest.mark.parametrize("bounds", ["minus, end", "zero, one"])
@pytest.mark.parametrize("dropped", ["Squeeze (l, zero)", "Reshape (l, flat)"])
def test_a_step_of_a_scan_is_added_to_another_scan(bounds: str, dropped: str, tmp_path: Path) -> None:
    """tract moves the Slice of it without end."""
    net = parse(STEPS_OF_TWO.replace("BOUNDS", bounds).replace("DROPPED", dropped), 17)
    jobs = {str(T): (net, random_feed(net, T=T, N=N)) for T, N in ((4, 2), (7, 3), (1, 1))}
    assert_lowered_right("tract", jobs, tmp_path, to="scan")


MEETINGS = {
    "each step with each": "p = Unsqueeze (at, two) q = Unsqueeze (bt, one) sum = Add (p, q)",
    "products of Tanh": "v = Tanh (a1) p = Unsqueeze (v, one) q = Unsqueeze (b1, zero) sum = Mul (p, q)",
    "steps with a last state": """l = Squeeze (state, zero) q = Unsqueeze (l, one)
        p = Add (at, q) sum = Unsqueeze (p, two)""",
    "steps with the largest numbers": """l = ReduceMax <axes = [0], keepdims = 0> (b1) q = Unsqueeze (l, one)
        p = Add (at, q) sum = Unsqueeze (p, two)""",
}
TWO_SCANS = """g (float[N, T, 3] x, float[N, U, 4] z) => (float[a, b, c, 5] y)
    <float[1, 6, 3] W = {{}}, float[1, 6, 4] V = {{}}, float[1, 6, 2] R = {{}}, float[2, 5] K = {{}},
    int64[1] zero = {{0}}, int64[1] one = {{1}}, int64[1] two = {{2}}> {{
    xt = Transpose <perm = [1, 0, 2]> (x) zt = Transpose <perm = [1, 0, 2]> (z)
    a = GRU <hidden_size = 2, linear_before_reset = 1> (xt, W, R) a1 = Squeeze (a, one)
    b, state = GRU <hidden_size = 2, linear_before_reset = 1> (zt, V, R) b1 = Squeeze (b, one)
    at = Transpose <perm = [1, 0, 2]> (a1) bt = Transpose <perm = [1, 0, 2]> (b1) {} y = MatMul (sum, K) }}"""


def test_rows_of_two_scans_meet(tmp_path: Path) -> None:
    """As in the joint network of a transducer: tract would move axes between both Scans without end."""
    nets = {
        name: parse(TWO_SCANS.format(meeting).replace("{{", "{").replace("}}", "}"))
        for name, meeting in MEETINGS.items()
    }
    jobs = {
        f"{name} {T} {U}": (net, random_feed(net, N=N, T=T, U=U))
        for name, net in nets.items()
        for N, T, U in ((2, 5, 3), (1, 1, 4), (2, 1, 4))
    }
    assert_lowered_right("tract", jobs, tmp_path, to="scan")


SCANNED = """g (float[T, batch] x, float[batch, 4] h0) => (float[batch, 4] last, float[T, batch, 4] y) {
    last, y = Scan <num_scan_inputs = 1, body = b (float[batch, 4] h, float[batch] xt)
    => (float[batch, 4] h2, float[batch, 4] row) <float[4] k = {0.1, 0.2, 0.3, 0.4}, int64[1] zero = {0}> {
    u = Unsqueeze (xt, zero) q = Transpose (u) d = Sub (q, k) h1 = ADDED
    h2 = Tanh (h1) row = Identity (h2) }> (h0, x) }"""
ADDED = {"to a constant": "Add (h, d)", "to a state": "Add (q, h)"}


def test_numbers_of_a_row_are_repeated(tmp_path: Path) -> None:
    """As in a phased LSTM; the name of a size in the body is no size that tract knows."""
    nets = {name: parse(SCANNED.replace("ADDED", added)) for name, added in ADDED.items()}
    jobs = {f"{name} {T}": (net, random_feed(net, T=T, batch=2)) for name, net in nets.items() for T in (5, 1)}
    assert_lowered_right("tract", jobs, tmp_path)


def test_an_output_that_declares_another_shape(tmp_path: Path) -> None:
    """Its shape is corrected, and those of computed values still do not say how sizes are called."""
    net = parse("""g (float[T, N, 3] x) => (float[T, N, 7] y) <float[1, 6, 3] W = {}, float[1, 6, 2] R = {}> {
        t = Tanh (x) h = GRU <hidden_size = 2> (t, W, R) s = Squeeze (h) y = Concat <axis = 2> (s, t) }""")
    lowered = rl.lower(net, target="tract", to="scan")
    feed = random_feed(net, T=4, N=2)
    assert_right("tract", {"y": (lowered, feed)}, {"y": run(net, feed)}, tmp_path)


REPEATS = {
    "Abs": "w = Constant <value_ints = [-1]> () r = Concat <axis = 0> (w, t, w) a = Abs (r) e = Expand (m, a)",
    "Where": """w = Constant <value_ints = [-1]> () q = Constant <value_int = -1> () o = Constant <value_int = 1> ()
        r = Concat <axis = 0> (w, t, w) k = Equal (r, q) a = Where (k, o, r) e = Expand (m, a)""",
    "Max": "s = Shape (X) s1 = Shape (m) a = Max (s, s1) e = Expand (m, a)",
    "new axes": "f = ReduceMax <axes = [0, 1], keepdims = 0> (X) s = Shape (X) e = Expand (f, s)",
    "ScatterElements": """o = Constant <value_ints = [1, 1, 1]> () r = ScatterElements (o, one, t)
        e = Tile (m, r)""",
    "Div": "s = Shape (X) s1 = Shape (m) a = Div (s, s1) e = Tile (m, a)",
}


def test_repeated_rows_are_multiplied(tmp_path: Path) -> None:
    """tract puts the product in front: with an open length it would return one row."""
    nets = {
        name: parse(
            f"""g (float[2, T, 3] X) => (float[2, T, 2] y) <float[3, 2] K = {{}}, int64[1] one = {{1}}> {{
            m = ReduceMax <axes = [1], keepdims = 1> (X) t = Shape <start: int = 1, end: int = 2> (X)
            {repeat} y = MatMul (e, K) }}""",
            17,
        )
        for name, repeat in REPEATS.items()
    }
    feed = random_feed(nets["Abs"], T=5)
    for name, net in nets.items():
        onnx.save(rl.lower(net, target="tract"), tmp_path / f"{name}.onnx")
        given: dict[str, Any] = {"axis": 1, **feed}
        np.savez(tmp_path / f"{name}.npz", **given)
    run_python("tract", "-c", OPEN, *(tmp_path / name for name in nets))
    for name, net in nets.items():
        with np.load(tmp_path / f"{name}.out.npz") as got:
            assert judge(dict(zip("y", got.values(), strict=True)), run(net, feed)) == ("right", ""), name
    assert_lowered_right("tract", {name: (net, feed) for name, net in nets.items()}, tmp_path / "known")
