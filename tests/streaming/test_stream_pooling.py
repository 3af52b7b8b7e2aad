"""Poolings of all frames as running values: after each chunk those of the frames so far."""

import numpy as np
import onnx
import pytest
from paths import MODELS
from running import session
from stream_models import CHUNKINGS, chunked, net, plan_of, random, recurrent, streamed, whole
from thinning import thinned

import rnn_lowering as rl

POOLS = {
    "mean": "Y = ReduceMean (g, one1)",
    "mean over frequencies, too": "Y = ReduceMean <keepdims = 0> (g, last2)",
    "sum": "Y = ReduceSum <keepdims = 0> (g, one1)",
    "sum of squares": "Y = ReduceSumSquare (g, one1)",
    "product": "e = Exp (g) r = Sqrt (e) q = Sqrt (r) Y = ReduceProd (q, one1)",
    "maximum": "Y = ReduceMax <keepdims = 0> (g, one1)",
    "minimum": "Y = ReduceMin (g, one1)",
    "of integers": "c = Mul (g, ten) i = Cast <to = 6> (c) m = ReduceMax <keepdims = 0> (i, one1) "
    "Y = Cast <to = 1> (m)",
    "norms": "a = ReduceL1 (g, one1) b = ReduceL2 (g, one1) Y = Concat <axis = -1> (a, b)",
    "log-sum-exp": "c = Mul (g, hundred) Y = ReduceLogSumExp (c, one1)",
    "log-sum-exp of nothing": "z = Sub (g, g) l = Log (z) Y = ReduceLogSumExp (l, one1)",
    "global": "t = Transpose <perm = [0, 2, 1]> (g) a = GlobalAveragePool (t) b = GlobalMaxPool (t) Y = Add (a, b)",
    "mean by the length": "s = ReduceSum <keepdims = 0> (g, one1) h = Shape (g) n = Gather (h, at1) "
    "f = Cast <to = 1> (n) Y = Div (s, f)",
    "variance": "m = ReduceMean (g, one1) d = Sub (g, m) q = Mul (d, d) Y = ReduceMean <keepdims = 0> (q, one1)",
    "deviation, unbiased": "m = ReduceMean (g, one1) d = Sub (g, m) q = Pow (d, two) s = ReduceSum (q, one1) "
    "h = Shape (g) n = Gather (h, at1) f = Cast <to = 1> (n) k = Sub (f, unit) v = Div (s, k) Y = Sqrt (v)",
    "mean and squares": "m = ReduceMean (g, one1) p = Mul (g, g) q = ReduceMean (p, one1) r = Mul (m, m) "
    "Y = Sub (q, r)",
    "attention": "a = MatMul (g, score) w = Softmax <axis = 1> (a) v = Mul (w, g) "
    "Y = ReduceSum <keepdims = 0> (v, one1)",
    "attention, scores apart": "b = MatMul (g, score) a = Mul (b, hundred) w = Softmax <axis = 1> (a) "
    "v = Mul (g, w) Y = ReduceSum (v, one1)",
    "attention, a product": "a = MatMul (g, score) w = Softmax <axis = 1> (a) t = Transpose <perm = [0, 2, 1]> (w) "
    "Y = MatMul (t, g)",
    "attention, turned": "a = MatMul (g, score) w = Softmax <axis = 1> (a) t = Transpose <perm = [0, 2, 1]> (g) "
    "Y = MatMul (t, w)",
    "two heads": "a = MatMul (g, heads) w = Softmax <axis = 1> (a) u = Unsqueeze (w, end) z = Unsqueeze (g, axis2) "
    "v = Mul (u, z) Y = ReduceSum <keepdims = 0> (v, one1)",
    "statistics": "a = MatMul (g, score) w = Softmax <axis = 1> (a) v = Mul (w, g) m = ReduceSum (v, one1) "
    "p = Mul (g, g) z = Mul (w, p) q = ReduceSum (z, one1) r = Mul (m, m) s = Sub (q, r) "
    "Y = Concat <axis = -1> (m, s)",
    "without padding": "t = Transpose <perm = [0, 2, 1]> (g) c = Conv (t, K) a = GlobalAveragePool (c) "
    "b = GlobalMaxPool (c) Y = Concat <axis = 1> (a, b)",
    "then a classifier": "m = ReduceMean <keepdims = 0> (g, one1) l = MatMul (m, heads) "
    "Y = Softmax <axis = -1> (l)",
}
"""Of g, the outputs of a GRU over X: [batch, time, 4]."""

CONSTANTS = {
    **recurrent("GRU", 3, 4),
    **{"one1": np.array([1]), "last2": np.array([1, 2]), "at1": np.array(1), "end": np.array([3])},
    **{"axis2": np.array([2]), "two": np.array(2.0, np.float32), "unit": np.array(1.0, np.float32)},
    **{
        "low": np.array(-3.0, np.float32),
        "ten": np.array(10.0, np.float32),
        "hundred": np.array(100.0, np.float32),
    },
    **{"score": random((4, 1), 1, 2.0), "heads": random((4, 2), 2, 2.0), "K": random((4, 4, 3), 3)},
}


AHEAD = """gb = Transpose <perm = [0, 2, 1]> (gf) gc = Conv (gb, K) gd = Conv <dilations = [2]> (gc, K)
    ge = Relu (gd) gl = Log (ge) gn = Clip (gl, low) g = Transpose <perm = [0, 2, 1]> (gn)"""
"""Six frames ahead."""


def made(nodes: str, ahead: bool = False) -> onnx.ModelProto:
    told = "x = Transpose <perm = [1, 0, 2]> (X) y = GRU <hidden_size = 4> (x, W, R, B) gs = Squeeze (y, one1) "
    told += f"{'gf' if ahead else 'g'} = Transpose <perm = [1, 0, 2]> (gs) {AHEAD if ahead else ''} {nodes}"
    words = set(told.replace("(", " ").replace(")", " ").replace(",", " ").split())
    held = {name: array for name, array in CONSTANTS.items() if name in words}
    model = net(f"g (float[batch, time, 3] X) => (float Y) {{ {told} }}", held, opset=18)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    return model


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


@pytest.mark.parametrize("label", POOLS)
def test_the_value_so_far_is_that_of_the_frames_so_far(label: str) -> None:
    model = made(POOLS[label])
    for to in ("keep", "auto"):
        stepped = streamed(model, "time", to)
        assert plan_of(stepped)["outputs"] == {"Y": None}
        compare_lengths(model, stepped, (3, 19, 50))
    compare_fixed(model)


@pytest.mark.parametrize("opset", [12, 13, 17, 18, 21])
def test_older_and_newer_forms_of_axes(opset: int) -> None:
    """ReduceSum and Squeeze take axes as an input from 13 on, the other reductions from 18 on."""

    def reduced(op_type: str, first: int, value: str = "g") -> str:
        axes, given = (", axes = [1]", "") if opset < first else ("", ", one1")
        return f"{op_type} <keepdims = 1{axes}> ({value}{given})"

    attention = f"""u = MatMul (g, score) w = Softmax <axis = 1> (u) v = Mul (w, g)
        d = {reduced("ReduceSum", 13, "v")}"""
    squeezed = "Squeeze <axes = [1]> (y)" if opset < 13 else "Squeeze (y, one1)"
    nodes = f"""x = Transpose <perm = [1, 0, 2]> (X) y = GRU <hidden_size = 4> (x, W, R, B) gs = {squeezed}
        g = Transpose <perm = [1, 0, 2]> (gs) a = {reduced("ReduceSum", 13)}
        b = {reduced("ReduceMax", 18)} c = {reduced("ReduceLogSumExp", 18)}
        {"" if opset < 13 else attention} Y = Concat <axis = 1> (a, b, c{"" if opset < 13 else ", d"})"""
    held = {name: CONSTANTS[name] for name in ("W", "R", "B", "one1", "score")[: 3 if opset < 13 else 5]}
    model = net(f"g (float[batch, time, 3] X) => (float[batch, parts, 4] Y) {{ {nodes} }}", held, opset)
    feed = {"X": random((2, 19, 3), 5, 3.0)}
    for stepped in (streamed(model, "time", "auto"), streamed(model, "time", "keep")):
        got = chunked(stepped, feed, [4, 7])["Y"]
        np.testing.assert_allclose(got, whole(model, feed)["Y"], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("label", thinned(list(POOLS), 2))
def test_pools_of_what_looks_ahead(label: str) -> None:
    """Behind convolutions without padding, after each chunk that has brought a true frame."""
    model = made(POOLS[label], ahead=True)
    for to in ("keep", "auto"):
        stepped = streamed(model, "time", to, delay=True)
        plan = plan_of(stepped)
        assert (plan["outputs"], plan["delay"]) == ({"Y": None}, {})
        compare_lengths(model, stepped, (9, 19, 50))
    compare_fixed(model)


def test_many_frames_do_not_wear_the_mean_down() -> None:
    """A sum in float32 would lose digits; the mean so far does not."""
    model = made(POOLS["mean"])
    stepped = streamed(model, "time")
    feed = {"X": np.concatenate([random((1, 20_000, 3), 1) + 5], 1)}
    exact = whole(made("Y = Identity (g)"), feed)["Y"].astype(np.float64).mean(1, keepdims=True)
    np.testing.assert_allclose(chunked(stepped, feed, [16])["Y"], exact, rtol=2e-6)


REFUSED = {
    "utterance normalization": (
        "m = ReduceMean (g, one1) d = Sub (g, m) q = Mul (d, d) v = ReduceMean (q, one1) "
        "e = Sqrt (v) Y = Div (d, e)",
        "Sub node .* subtracts the mean of all frames, which is known only after the last one .utterance normal",
    ),
    "each frame by the maximum": (
        "m = ReduceMax (g, one1) Y = Div (g, m)",
        "joins each frame with a value that is known only after the last one",
    ),
    "weights as frames": (
        "a = MatMul (g, score) w = Softmax <axis = 1> (a) Y = Mul (w, g)",
        "Softmax node .* weighs each frame by all of them; a stream can only have the sum",
    ),
    "weights, not linear": (
        "a = MatMul (g, score) w = Softmax <axis = 1> (a) q = Mul (w, w) v = Mul (q, g) Y = ReduceSum (v, one1)",
        "weighs each frame by all of them",
    ),
    "a maximum of weights": (
        "a = MatMul (g, score) w = Softmax <axis = 1> (a) Y = ReduceMax (w, one1)",
        "weighs each frame by all of them",
    ),
    "deviations from the mean of others": (
        "n = Neg (g) m = ReduceMean (n, one1) d = Sub (g, m) q = Mul (d, d) Y = ReduceMean (q, one1)",
        "joins each frame with a value that is known only after the last one",
    ),
    "a mean times each frame": (
        "h = Shape (g) n = Gather (h, at1) f = Cast <to = 1> (n) Y = Div (g, f)",
        "depends on the number of frames, which a stream never knows",
    ),
    "pooled with paddings": (
        "t = Transpose <perm = [0, 2, 1]> (g) c = Conv <pads = [2, 2]> (t, K) Y = GlobalAveragePool (c)",
        "pools frames that were padded, cut or moved before",
    ),
    "pooled ahead": (
        "t = Transpose <perm = [0, 2, 1]> (g) c = Conv <pads = [1, 1]> (t, K) Y = GlobalAveragePool (c)",
        "pools frames that were padded, cut or moved before",
    ),
}


@pytest.mark.parametrize("label", REFUSED)
def test_what_reads_a_pooled_value_frame_by_frame_is_refused(label: str) -> None:
    nodes, message = REFUSED[label]
    with pytest.raises(rl.UnsupportedError, match=message):
        streamed(made(nodes), "time", delay=True)


@pytest.mark.shared
@pytest.mark.parametrize("file", ["classifier_attention.dynamo", "classifier_mean_max.legacy"])
def test_classifiers_of_pytorch(file: str) -> None:
    path = MODELS / "streams" / f"{file}.onnx"
    if not path.exists():
        pytest.skip("the stored models are not there")
    model = onnx.load(path)
    stepped = rl.lower(model, stream="time")
    assert rl.verify_stream(model, stepped).status == "verified"
    assert session(stepped) is not None
