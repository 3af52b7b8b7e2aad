"""Products of integers that are quantized at run time become products of floats on demand (`dequantize`)."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from running import evaluated, operators, run
from texts import parse

import rnn_lowering as rl

INTEGERS = {"DynamicQuantizeLinear", "MatMulInteger", "ConvInteger"}
PLAIN: dict[str, Any] = {"x": [5, 2, 3], "weights": [3, 4], "zero": [], "scale": []}
KINDS: dict[str, dict[str, Any]] = {
    "one zero point": PLAIN,
    "of each column": PLAIN | {"zero": [4], "scale": [4]},
    "of one element": PLAIN | {"zero": [1], "scale": [1]},
    "a matrix": PLAIN | {"x": [5, 3]},
    "a vector": PLAIN | {"x": [3]},
    "many matrices": PLAIN | {"x": [2, 5, 3], "weights": [2, 3, 4]},
    "images": PLAIN
    | {"x": [1, 2, 6, 5], "weights": [4, 1, 3, 2], "product": "ConvInteger <pads = [1, 0, 2, 1], group = 2>"},
}


def quantized(
    x: list[int],
    weights: list[int],
    zero: list[int],
    scale: list[int],
    *,
    product: str = "MatMulInteger",
    dtype: str = "uint8",
    factor: str = "Mul (s, ws)",
    last: str = "Mul (f, ss)",
    extra: str = "",
    outputs: str = "",
) -> onnx.ModelProto:
    """Return a model of one product of integers beside an RNN."""
    model = parse(
        f"""g (float[1, 1, 2] a, float{x} x) => (float[1, 1, 1, 2] r, float y{outputs})
        <float[1, 2, 2] W = {{}}, float[1, 2, 2] R = {{}}> {{
        r, h = RNN <hidden_size = 2> (a, W, R)  q, s, z = DynamicQuantizeLinear (x)  p = {product} (q, w, z, wz)
        f = Cast <to = 1> (p)  ss = {factor}  y = {last} {extra} }}"""
    )
    rng, (low, high) = np.random.default_rng(1), (-90, 90) if dtype == "int8" else (10, 200)
    numbers = {"w": rng.integers(low, high, weights), "wz": rng.integers(0, 9, zero)}
    tensors = {name: np.asarray(array, dtype) for name, array in numbers.items()}
    tensors["ws"] = np.asarray(rng.uniform(0.005, 0.02, scale), np.float32)
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in tensors.items())
    del model.graph.output[1].type.tensor_type.shape.dim[:]
    model.graph.output[1].type.tensor_type.ClearField("shape")
    return model


def feed_of(model: onnx.ModelProto) -> dict[str, Any]:
    rng = np.random.default_rng(2)
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in model.graph.input}
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


@pytest.mark.few(2)
@pytest.mark.parametrize("target", ["opencv", "mnn", "ncnn", "portable"])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("name", KINDS)
def test_a_product_is_that_of_the_floats(name: str, dtype: str, target: Any) -> None:
    model = quantized(**KINDS[name], dtype=dtype)
    feed = feed_of(model)
    lowered, report = rl.lower(model, target=target, dequantize=True, full=True)
    assert not operators(lowered) & INTEGERS
    assert any("1 product of integers became floats" in note for note in report.notes)
    w, wz, ws = (
        numpy_helper.to_array(t).astype(np.float64) for t in model.graph.initializer if t.name in ("w", "wz", "ws")
    )
    found = run(lowered, feed)["y"]
    if name != "images":
        np.testing.assert_allclose(found, feed["x"] @ ((w - wz) * ws), rtol=1e-4, atol=1e-5)
    step = (max(feed["x"].max(), 0) - min(feed["x"].min(), 0)) / 255
    rounded = step * np.abs((w - wz) * ws).sum()
    assert np.abs(found - run(model, feed, optimize=False)["y"]).max() <= rounded
    result = rl.verify(model, lowered, runs=1)
    assert result, str(result)


def test_without_the_option_the_node_is_refused_with_it_as_the_way_out() -> None:
    for target in ("opencv", "mnn", "ncnn"):
        with pytest.raises(rl.UnsupportedError, match=r"DynamicQuantizeLinear .*\(dequantize=True\)"):
            rl.lower(quantized(**PLAIN), target=target)
    assert operators(rl.lower(quantized(**PLAIN))) >= {"DynamicQuantizeLinear", "MatMulInteger"}


@pytest.mark.parametrize("target", ["mnn", "ncnn"])
def test_a_preview_makes_floats_too(target: Any) -> None:
    model = quantized(**PLAIN)
    assert len(rl.preview(model, target=target)) > 1
    assert [each.form for each in rl.preview(model, target=target, dequantize=True)] == ["unroll"]


OTHERS: dict[str, dict[str, Any]] = {
    "the integers are used": {"extra": "v = Cast <to = 1> (p)", "outputs": ", float v"},
    "the scale is used": {"extra": "v = Identity (s)", "outputs": ", float v"},
    "another scale": {"factor": "Mul (ws, ws)"},
    "the scale twice": {"factor": "Mul (s, s)"},
    "no product at the end": {"last": "Add (f, ss)"},
    "the scale is squared": {"last": "Mul (ss, ss)  v = Identity (f)", "outputs": ", float v"},
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_such_product_stays_right_or_is_refused(name: str) -> None:
    model = quantized(**PLAIN, **OTHERS[name])
    feed = feed_of(model)
    before, after = (run(each, feed) for each in (model, rl.lower(model, dequantize=True)))
    for key in before:
        np.testing.assert_allclose(after[key], before[key], atol=0.1 if name == "the scale is used" else 1e-6)
    for dequantize in (False, True):
        with pytest.raises(rl.UnsupportedError, match=r"opencv rejects .* export the model without it"):
            rl.lower(model, target="opencv", dequantize=dequantize)


def test_wrong_weights_are_noticed() -> None:
    """By a run of the original in floats: the difference is smaller than what rounding to 8 bits may change."""
    model = quantized(**PLAIN)
    lowered = rl.lower(model, dequantize=True)
    (weights,) = [t for t in lowered.graph.initializer if list(t.dims) == [3, 4]]
    weights.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weights) * np.float32(1.002), weights.name))
    result = rl.verify(model, lowered, runs=1)
    assert not result
    assert "compared with the original in floats" in str(result)


def test_in_a_body() -> None:
    model = quantized(**PLAIN)
    inner = [n for n in model.graph.node if n.op_type != "RNN"]
    graph = onnx.helper.make_graph(inner, "then", [], [onnx.helper.make_tensor_value_info("y", 1, None)])
    other = onnx.parser.parse_graph("other () => (float o) { m = ReduceMax <keepdims = 0> (x)  o = Neg (m) }")
    del model.graph.node[1:]
    model.graph.input.append(onnx.helper.make_tensor_value_info("go", onnx.TensorProto.BOOL, []))
    node = onnx.helper.make_node("If", ["go"], ["out"], then_branch=graph, else_branch=other)
    model.graph.node.append(node)
    model.graph.output[1].name = "out"
    lowered = rl.lower(model, dequantize=True)
    assert not operators(lowered) & INTEGERS
    feed = {**feed_of(quantized(**PLAIN)), "go": np.array(True)}
    np.testing.assert_allclose(run(lowered, feed)["out"], run(model, feed)["out"], atol=0.1)
    assert rl.verify(model, lowered, runs=1)


@pytest.mark.parametrize("target", ["opencv", "mnn", "ncnn"])
@pytest.mark.parametrize("factor", ["k = Mul (s, ws)", ""])
@pytest.mark.parametrize("moved", ["Gather (t, i)", "Gather (u, i)"])
def test_a_product_of_rows_of_a_table_is_one_of_floats(moved: str, factor: str, target: Any) -> None:
    """As a quantizer writes a Linear layer behind an embedding: nothing is quantized at run time."""
    model = parse(f"""g (float[1, 1, 2] a, int64[5] i) => (float[1, 1, 1, 2] r, float[5, 4] y)
        <float[1, 2, 2] W = {{1, 2, 3, 4}}, float[1, 2, 2] R = {{1, 1, 2, 1}}, float s = {{0.013}}, uint8 z = {{3}},
         uint8 wz = {{90}}, float ws = {{0.02}}{"" if factor else ", float k = {0.00026}"}> {{
        r, h = RNN <hidden_size = 2> (a, W, R)  u = Transpose (v)  m = {moved}  p = MatMulInteger (m, w, z, wz)
        f = Cast <to = 1> (p)  {factor}  y = Mul (f, k) }}""")
    rng = np.random.default_rng(0)
    for name, shape in {"t": [9, 3], "v": [3, 9], "w": [3, 4]}.items():
        model.graph.initializer.append(numpy_helper.from_array(rng.integers(0, 200, shape).astype(np.uint8), name))
    with pytest.raises(rl.UnsupportedError, match=r"MatMulInteger .*\(dequantize=True\)"):
        rl.lower(model, target=target)
    lowered = rl.lower(model, target=target, dequantize=True)
    assert not operators(lowered) & INTEGERS
    feed: dict[str, Any] = {"a": np.zeros((1, 1, 2), np.float32), "i": np.arange(5)}
    np.testing.assert_allclose(run(lowered, feed)["y"], run(model, feed)["y"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("target", ["mnn", "ncnn"])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("moved", ["Identity (r)", "Transpose <perm = [1, 0, 2]> (r)", "Unsqueeze (r, one)"])
def test_a_quantized_embedding_is_one_of_floats(moved: str, dtype: str, target: Any) -> None:
    """To the bit: MNN computes its DequantizeLinear wrongly without an error, and pnnx has none."""
    model = parse(f"""g (float[1, 1, 2] a, int64[3, 5] i) => (float[1, 1, 1, 2] r2, float y)
        <float[1, 2, 2] W = {{}}, float[1, 2, 2] R = {{}}, float s = {{0.013}}, {dtype} z = {{3}},
         int64[1] one = {{1}}> {{
        r2, h = RNN <hidden_size = 2> (a, W, R)  r = Gather (t, i)  m = {moved}
        y = DequantizeLinear (m, s, z) }}""")
    model.graph.output[1].type.tensor_type.ClearField("shape")
    table = np.random.default_rng(0).integers(0, 120, [9, 4]).astype(dtype)
    model.graph.initializer.append(numpy_helper.from_array(table, "t"))
    lowered = rl.lower(model, target=target)
    assert "DequantizeLinear" not in operators(lowered)
    feed: dict[str, Any] = {"a": np.zeros((1, 1, 2), np.float32), "i": np.arange(15).reshape(3, 5) % 9}
    assert np.array_equal(run(lowered, feed)["y"], run(model, feed)["y"])


@pytest.mark.parametrize("target", ["mnn", "ncnn"])
def test_an_embedding_that_several_nodes_make_floats_of_is_one_of_floats(target: Any) -> None:
    """As a quantizer writes it where the rows are transposed for one reader: a DequantizeLinear for each."""
    model = parse("""g (float[1, 1, 2] a, int64[3, 5] i) => (float[1, 1, 1, 2] r2, float y, float y2, int64 y3)
        <float[1, 2, 2] W = {1, 2, 3, 4}, float[1, 2, 2] R = {1, 1, 2, 1}, float s = {0.013}, uint8 z = {3}> {
        r2, h = RNN <hidden_size = 2> (a, W, R)  r = Gather (t, i)  y = DequantizeLinear (r, s, z)
        m = Transpose <perm = [1, 0, 2]> (r)  f = DequantizeLinear (m, s, z)  y2 = Tanh (f)  y3 = Shape (r) }""")
    for output in model.graph.output[1:]:
        output.type.tensor_type.ClearField("shape")
    table = np.random.default_rng(0).integers(0, 120, [9, 4]).astype(np.uint8)
    model.graph.initializer.append(numpy_helper.from_array(table, "t"))
    lowered = rl.lower(model, target=target, keep_rest=True)
    assert "DequantizeLinear" not in operators(lowered)
    feed: dict[str, Any] = {"a": np.zeros((1, 1, 2), np.float32), "i": np.arange(15).reshape(3, 5) % 9}
    for name, expected in run(model, feed).items():
        assert np.array_equal(run(lowered, feed)[name], expected)


_QUANTIZED = """g (float[1, 1, 2] a, int64[3] i, float[3, 4] c, float k)
    => (float[1, 1, 1, 2] r2, float[3, 4] y)
    <float[1, 2, 2] W = {{1, 2, 3, 4}}, float[1, 2, 2] R = {{1, 1, 2, 1}}, float s = {{0.013}}, uint8 z = {{3}},
     float[4] ss = {{0.01, 0.02, 0.03, 0.04}}, uint8[4] zs = {{1, 2, 3, 4}},
     uint8[3, 4] t = {{9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 255, 254}}, float[3] st = {{0.1, 0.2, 0.3}},
     float s2 = {{0.02}}, int32[4] b = {{-5, 6, 70000, 8}}> {{
    r2, h = RNN <hidden_size = 2> (a, W, R)  {} }}"""


@pytest.mark.few(3)
@pytest.mark.parametrize(
    "made",
    [
        "w = DequantizeLinear (t, s, z)  y = Add (c, w)",
        "w = DequantizeLinear <axis = 1> (t, ss, zs)  y = Add (c, w)",
        "w = DequantizeLinear <axis = -2> (t, st)  y = Add (c, w)",
        "w = DequantizeLinear <axis = 0> (b, ss)  y = Add (c, w)",
        "r = Gather (t, i)  w = DequantizeLinear (r, s2, z)  v = DequantizeLinear (r, s, z)  y = Add (v, w)",
    ],
)
def test_integers_that_become_floats_for_mnn_do_so_by_arithmetic(made: str) -> None:
    """It computes a DequantizeLinear of many scales as 0, and of one scale wrongly as the weight of a Conv."""
    model = parse(_QUANTIZED.format(made))
    lowered = rl.lower(model, target="mnn")
    assert "DequantizeLinear" not in operators(lowered)
    feed = {"a": np.zeros((1, 1, 2), np.float32), "i": np.array([2, 0, 1]), "c": np.ones((3, 4), np.float32)}
    feed["k"] = np.array(1, np.float32)
    assert np.array_equal(run(lowered, feed)["y"], run(model, feed)["y"])


@pytest.mark.parametrize("made", ["y = DequantizeLinear (t, k, z)", "r = Cast <to = 2> (c)  y = Cast <to = 1> (r)"])
def test_what_mnn_makes_of_integers_wrongly_is_refused(made: str) -> None:
    with pytest.raises(rl.UnsupportedError, match=r"Dequanti.* computes it wrongly, or crashes|Cast.* only behind"):
        rl.lower(parse(_QUANTIZED.format(made)), target="mnn")


CONVS = {
    "groups": (
        "uint8[3, 4, 6, 5] x, int8[4, 2, 3, 2] w, uint8 a, int8 b",
        "<pads = [1, 0, 2, 1], group = 2> (x, w, a, b)",
    ),
    "no zero point of the weights": (
        "int8[3, 2, 9] x, uint8[4, 2, 3] w, int8 a",
        '<auto_pad = "SAME_UPPER"> (x, w, a)',
    ),
    "no zero points": ("uint8[3, 2, 9] x, uint8[4, 2, 3] w", "<strides = [2]> (x, w)"),
    "sums beyond 2 ** 24": ("uint8[3, 600, 3] x, uint8[2, 600, 2] w, uint8 b", '(x, w, "", b)'),
}


@pytest.mark.parametrize("name", CONVS)
@pytest.mark.parametrize("target", ["tvm", "litert"])
def test_a_conv_of_integers_that_a_runtime_lacks_becomes_one_of_floats(name: str, target: Any) -> None:
    """LiteRT has one of images with constant weights. Sums of onnxruntime itself are wrong on some processors."""
    inputs, node = CONVS[name]
    model = parse(f"g ({inputs}) => (int32[A, B, C] y) {{ y = ConvInteger {node} }}", 17)
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    model.graph.output[0].type.tensor_type.ClearField("shape")
    rng, feed = np.random.default_rng(0), {}
    for value in model.graph.input:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        low, high = (0, 9) if value.name in "ab" else (np.iinfo(dtype).min, np.iinfo(dtype).max + 1)
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        feed[value.name] = rng.integers(low, high, shape).astype(dtype)
    lowered = rl.lower(model, target=target)
    assert "ConvInteger" not in operators(lowered)
    np.testing.assert_array_equal(run(lowered, feed)["y"], evaluated(model, feed)["y"])


def test_a_conv_of_integers_that_no_float_holds_stays() -> None:
    model = parse(
        "g (uint8[1, 5000, 1] x, uint8[1, 5000, 1] w) => (int32[1, 1, 1] y) { y = ConvInteger (x, w) }", 17
    )
    with pytest.warns(rl.RnnLoweringWarning, match="left for tvm: ConvInteger node"):
        assert "ConvInteger" in operators(rl.lower(model, target="tvm"))
