"""Loops and Scans that exporters write, in the forms that they can be given, and in onnxruntime beside its own GRU.

Each model is written here as the exporter writes it. Microseconds of a call, medians of runs that take turns.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper, parser

import rnn_lowering as rl
from benchmarks.runtimes import cell, timed
from benchmarks.timing import medians
from rnn_lowering.targets.table import TARGETS

from running import run  # isort: skip  # in a folder that benchmarks.runtimes adds to the path

_RANDOM = np.random.default_rng(0)
FORMS = ("scan", "loop", "unroll")


def _model(text: str, weights: Mapping[str, Sequence[int]], opset: int = 17) -> onnx.ModelProto:
    """Return a model with random weights of these shapes."""
    model: onnx.ModelProto = parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> {text}')
    for name, shape in weights.items():
        array = _RANDOM.uniform(-1, 1, shape) / np.sqrt(shape[0])
        model.graph.initializer.append(numpy_helper.from_array(array.astype(np.float32), name))
    return model


def keras_gru(T: int = 64, H: int = 64) -> onnx.ModelProto:
    """A GRU of Keras, by tf2onnx: weights are carried, the row is read by a counter, conditions are on floats."""
    G = 3 * H
    return _model(
        f"""g (float[1,{T},{H}] X) => (float[1,{T},{H}] Y) <float fz = {{0}}, int32 zero = {{0}},
        int64[1] k0 = {{0}},
        int64[1] k1 = {{1}}, int64[2] size = {{1, {H}}}> {{
        Xt = Transpose <perm = [1, 0, 2]> (X) shape = Shape (Xt) small = Cast <to = 6> (shape)
        t = Slice (small, k0, k1, k0) n = Squeeze (t, k0) nf = Cast <to = 1> (n) first = Less (fz, nf)
        M = Cast <to = 7> (n) h0 = Expand (fz, size)
        time, last, m, w, r, bw, br, Yt = Loop (M, first, zero, h0, n, W, R, bW, bR) <body = d
            (int64 i, bool go, int32 t0, float[1,{H}] h, int32 n0, float[{H},{G}] w0, float[{H},{G}] r0,
            float[{G}] b0,
            float[{G}] c0) => (bool go1, int32 t1, float[1,{H}] h1, int32 n1, float[{H},{G}] w1, float[{H},{G}] r1,
            float[{G}] b1, float[{G}] c1, float[1,{H}] o)
            <int32 one = {{1}}, float fone = {{1}}> {{
            x = Gather (Xt, t0) xw0 = MatMul (x, w0) xw = Add (xw0, b0) xz, xr, xh = Split <axis = 1> (xw)
            hr0 = MatMul (h, r0) hr = Add (hr0, c0) hz, hg, hh = Split <axis = 1> (hr)
            za = Add (xz, hz) z = Sigmoid (za) ra = Add (xr, hg) rr = Sigmoid (ra)
            rh = Mul (rr, hh) ha = Add (xh, rh) hn = Tanh (ha)
            zh = Mul (z, h) zi = Sub (fone, z) zn = Mul (zi, hn) h1 = Add (zh, zn) o = Identity (h1)
            t1 = Add (t0, one) fi = Cast <to = 1> (i) fn = Cast <to = 1> (n0) ft = Cast <to = 1> (t1)
            a = Less (fi, fn) b = Less (ft, fn) go1 = And (a, b)
            n1 = Identity (n0) w1 = Identity (w0) r1 = Identity (r0) b1 = Identity (b0) c1 = Identity (c0) }}>
        Y = Transpose <perm = [1, 0, 2]> (Yt) }}""",
        {"W": (H, G), "R": (H, G), "bW": (G,), "bR": (G,)},
    )


def native_gru(T: int = 64, H: int = 64) -> onnx.ModelProto:
    """The same sizes as a GRU node."""
    return _model(
        f"""g (float[{T},1,{H}] X) => (float[{T},1,1,{H}] Y)
        {{ Y = GRU <hidden_size = {H}, linear_before_reset = 1> (X, W, R, B) }}""",
        {"W": (1, 3 * H, H), "R": (1, 3 * H, H), "B": (1, 6 * H)},
    )


def lstm_decoder(steps: int = 10, H: int = 64) -> onnx.ModelProto:
    """A scripted decoder of PyTorch: an LSTM cell of Linear layers that gets its output back, and a list."""
    return _model(
        f"""g (float[1,{H}] x, float[1,{H}] h0, float[1,{H}] c0) => (float[1,{steps},{H}] Y)
        <bool yes = {{1}}, int64 M = {{{steps}}}> {{
        empty = SequenceEmpty ()
        xn, hn, cn, all = Loop (M, yes, x, h0, c0, empty) <body = d
            (int64 i, bool go, float[1,{H}] x0, float[1,{H}] h, float[1,{H}] c, seq(float[1,{H}]) s) =>
            (bool go1, float[1,{H}] y, float[1,{H}] h1, float[1,{H}] c1, seq(float[1,{H}]) s1) {{
            a = Gemm <transB = 1> (x0, W, bW) b = Gemm <transB = 1> (h, R, bR) g = Add (a, b)
            gi, gf, gg, go0 = Split <axis = 1> (g) si = Sigmoid (gi) sf = Sigmoid (gf) tg = Tanh (gg)
            so = Sigmoid (go0)
            fc = Mul (sf, c) ig = Mul (si, tg) c1 = Add (fc, ig) tc = Tanh (c1) h1 = Mul (so, tc)
            y = Gemm <transB = 1> (h1, V, bV) s1 = SequenceInsert (s, y) go1 = Identity (go) }}>
        Y = ConcatFromSequence <axis = 1, new_axis = 1> (all) }}""",
        {"W": (4 * H, H), "R": (4 * H, H), "bW": (4 * H,), "bR": (4 * H,), "V": (H, H), "bV": (H,)},
    )


def mamba(T: int = 64, D: int = 128, N: int = 16) -> onnx.ModelProto:
    """The selective scan of Mamba as torch.jit.script writes it: rows through Slices of everything, and a list."""
    rows = "".join(
        f"""a{n} = Constant <value = int64[1] {{0}}> ()
        e{n} = Constant <value = int64[1] {{9223372036854775807}}> ()
        f{n} = Constant <value = int64[1] {{0}}> () q{n} = Constant <value = int64[1] {{1}}> ()
        all{n} = Slice ({value}, a{n}, e{n}, f{n}, q{n}) {row} = Gather <axis = 1> (all{n}, i) """
        for n, (value, row) in enumerate({"u": "ui", "delta": "di", "B": "bi", "C": "ci"}.items())
    )
    return _model(
        f"""g (float[1,{T},{D}] u, float[1,{T},{D}] delta, float[1,{T},{N}] B, float[1,{T},{N}] C)
        => (float[1,{T},{D}] Y) <bool yes = {{1}}> {{
        shape = Shape (u) one = Constant <value = int64 {{1}}> () M = Gather (shape, one)
        size = Constant <value = int64[3] {{1, {D}, {N}}}> () h0 = ConstantOfShape <value = float[1] {{0}}> (size)
        empty = SequenceEmpty ()
        hn, all = Loop (M, yes, h0, empty) <body = d
            (int64 i, bool go, float[1,{D},{N}] h, seq(float[1,{D}]) s) =>
            (bool go1, float[1,{D},{N}] h1, seq(float[1,{D}]) s1) {{
            {rows}
            ax = Constant <value = int64[1] {{-1}}> () ay = Constant <value = int64[1] {{1}}> ()
            dc = Unsqueeze (di, ax) da = Mul (dc, A) decay = Exp (da) du = Mul (di, ui) dv = Unsqueeze (du, ax)
            bc = Unsqueeze (bi, ay) write = Mul (dv, bc) kept = Mul (decay, h) h1 = Add (kept, write)
            cc = Unsqueeze (ci, ay) hc = Mul (h1, cc) y = ReduceSum <keepdims = 0> (hc, ax)
            s1 = SequenceInsert (s, y) go1 = Identity (go) }}>
        Y = ConcatFromSequence <axis = 1, new_axis = 1> (all) }}""",
        {"A": (D, N)},
    )


def small_scan(T: int = 100) -> onnx.ModelProto:
    """A Scan of two operators, as PyTorch writes a leaky sum."""
    return _model(
        f"""g (float[{T},2,6] X) => (float[{T},2,6] Y) <float[2,6] zeros = {{0,0,0,0,0,0,0,0,0,0,0,0}}> {{
        last, Y = Scan <num_scan_inputs = 1, body = d (float[2,6] s, float[2,6] x) => (float[2,6] s1, float[2,6] o)
            {{ k = Mul (decay, s) s1 = Add (k, x) o = Relu (s1) }}> (zeros, X) }}""",
        {"decay": (6,)},
    )


def small_loop(T: int = 100) -> onnx.ModelProto:
    """A Loop of two operators over rows."""
    return _model(
        f"""g (float[{T},3] X, float[3] s0) => (float[3] sn, float[{T},3] Y)
        <bool yes = {{1}}, float half = {{0.5}}>
        {{ shape = Shape (X) zero = Constant <value = int64 {{0}}> () M = Gather (shape, zero)
        sn, Y = Loop (M, yes, s0) <body = d (int64 i, bool c, float[3] s) => (bool c1, float[3] s1, float[3] o)
            {{ x = Gather (X, i) k = Mul (s, half) s1 = Add (k, x) o = Relu (s1) c1 = Identity (c) }}> }}""",
        {},
    )


def twenty_nodes(T: int = 1000) -> onnx.ModelProto:
    """A Loop of 20 nodes in its body, beside the Gather of a row."""
    kinds = ("Tanh (v{0})", "Sigmoid (v{0})", "Add (v{0}, x)", "Mul (v{0}, x)")
    step = " ".join(f"v{n + 1} = {kinds[n % 4].format(n)}" for n in range(17))
    return _model(
        f"""g (float[{T},1,8] X, float[1,8] s0) => (float[1,8] sn, float[{T},1,8] Y)
        <int64 M = {{{T}}}, bool yes = {{1}}>
        {{ sn, Y = Loop (M, yes, s0) <body = d (int64 i, bool c, float[1,8] s)
            => (bool c1, float[1,8] s1, float[1,8] o) {{ x = Gather (X, i) v0 = Abs (s) {step}
            s1 = Tanh (v17) o = Relu (s1) c1 = Identity (c) }}> }}""",
        {},
    )


MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    "Keras GRU, H = I = 64, T = 64": keras_gru,
    "scripted LSTM decoder, H = 64, 10 steps": lstm_decoder,
    "scripted Mamba, D = 128, N = 16, T = 64": mamba,
    "small Scan, T = 100": small_scan,
    "small Loop, T = 100": small_loop,
}


def feed_of(model: onnx.ModelProto) -> dict[str, Any]:
    """Return random inputs of a model."""
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in model.graph.input}
    return {name: _RANDOM.uniform(-1, 1, shape).astype(np.float32) for name, shape in shapes.items()}


def variants(model: onnx.ModelProto, target: Any) -> dict[str, onnx.ModelProto]:
    """Return a model as it is, and in every form that it can be given."""
    found = {"original": model}
    raised = rl.lower(model, raise_loops=True)
    if raised != model:
        found["raised"] = raised
    form: Any
    for form in FORMS:
        try:
            found[form] = rl.lower(model, form, lower_loops=True, target=target)
        except rl.UnsupportedError:
            continue
    return found


def report(seconds: float = 1.0) -> dict[str, dict[str, float]]:
    """Print the table of onnxruntime, for the target of its name; return microseconds by model and form."""
    print(f"\n| microseconds of a call | original | {' | '.join(FORMS)} |\n|---|---|{'---|' * len(FORMS)}")
    results: dict[str, dict[str, float]] = {}
    for name, make in MODELS.items():
        model = make()
        models, feed = variants(model, "onnxruntime"), feed_of(model)
        given = {**models, "native": native_gru()} if make is keras_gru else models
        feeds = [feed_of(m) if key == "native" else _inputs(m, feed) for key, m in given.items()]
        times = dict(zip(given, medians([*given.values()], feeds, seconds * len(given)), strict=True))
        results[name] = {key: 1e6 * taken for key, taken in times.items()}
        cells = [f"{1e6 * times[f]:.0f} ({times[f] / times['original']:.2f})" if f in times else "-" for f in FORMS]
        native = f", native {1e6 * times['native']:.0f}" if "native" in times else ""
        native += f", raised {1e6 * times['raised']:.0f}" if "raised" in times else ""
        print(f"| {name}{native} | {1e6 * times['original']:.0f} | {' | '.join(cells)} |", flush=True)
    return results


def _inputs(model: onnx.ModelProto, feed: Mapping[str, Any]) -> dict[str, Any]:
    return {value.name: feed[value.name] for value in model.graph.input}


def in_runtimes(seconds: float = 1.0, names: Sequence[str] = ("tract", "openvino", "mnn")) -> dict[str, Any]:
    """Print milliseconds of a call in other runtimes, as exported and in each form of the target; return them."""
    results: dict[str, Any] = {}
    runtime: Any
    for runtime in names:
        print(f"\n{runtime}: milliseconds of a call (seconds until the first result)\n")
        for name, make in MODELS.items():
            model = make()
            feed = feed_of(model)
            jobs = {"original": (model, feed)}
            form: Any
            for form in TARGETS[runtime].loop_forms:
                with suppress(rl.UnsupportedError):
                    jobs[form] = rl.lower(model, form, lower_loops=True, target=runtime), feed
            expected = run(model, feed)
            times = timed(runtime, jobs, expected, seconds)
            if all(taken.outcome == "rejects" for taken in times.values()):  # the original may end the process
                del jobs["original"]
                times |= timed(runtime, jobs, expected, seconds)
            results[f"{runtime}: {name}"] = {form: vars(taken) for form, taken in times.items()}
            print(
                f"| {name} | {' | '.join(f'{form} {cell(taken)}' for form, taken in times.items())} |", flush=True
            )
    return results
