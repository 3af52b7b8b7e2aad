"""Nodes that stay, or are written otherwise, since a target computes them wrongly without an error."""

from typing import Any

import numpy as np
import pytest
from running import operators, run
from texts import parse

import rnn_lowering as rl

ROUNDED = """g (float[5, 2, 3] x) => (float[5, 2, 4] a, float[5, 2, 4] b, float[5, 2, 4] c)
    <float[1, 12, 3] W = {{}}, float[1, 12, 4] R = {{}}, float s = {{0.0117}}, float r = {{0.25}},
     {type} z = {{{zero}}}, {type} q = {{{back}}}> {{
    y, h = GRU <hidden_size = 4> (x, W, R)  i1 = Constant <value_ints = [1]> ()  v = Squeeze (y, i1)
    w = Mul (v, v)  i = QuantizeLinear (v, s{given})  a = DequantizeLinear (i, s{given})
    b = DequantizeLinear (i, r{other})  j = QuantizeLinear (w, r{given})  c = DequantizeLinear (j, r{given}) }}"""


@pytest.mark.parametrize("target", ["mnn", "opencv", "ncnn"])
@pytest.mark.parametrize(
    ("dtype", "zero", "back"),
    [("int8", 3, 3), ("int8", -128, 127), ("uint8", 0, None), ("uint8", 200, 1), ("int16", -9, 300)],
)
def test_rounding_between_nodes_gives_the_same_floats(target: Any, dtype: str, zero: int, back: int | None) -> None:
    """To the bit, halves and saturated numbers included."""
    given, other = ("", "") if back is None else (", z", ", q")
    text = ROUNDED.format(type=dtype, zero=zero, back=back or 0, given=given, other=other)
    model = parse(text, opset=21)
    feed = {"x": np.random.default_rng(3).standard_normal((5, 2, 3)).astype(np.float32) * 3}
    lowered, report = rl.lower(model, target=target, full=True)
    assert not operators(lowered) & {"QuantizeLinear", "DequantizeLinear", "Round"}
    assert (
        f"{target} computes QuantizeLinear wrongly: wrote 2 QuantizeLinear as arithmetic on floats" in report.notes
    )
    states = {"v", "w"}  # of the original and of the lowered model, so that only the rounding is compared
    outputs = [run(_with_outputs(each, states), feed, optimize=False) for each in (model, lowered)]
    for name, (input_name, scale, offset) in {"a": ("v", "s", 0), "b": ("v", "r", 1), "c": ("w", "r", 0)}.items():
        s = {"s": np.float32(0.0117), "r": np.float32(0.25)}
        by = s["s"] if input_name == "v" else s["r"]
        bounds = np.iinfo(dtype)
        integers = np.clip(np.rint(outputs[1][input_name] / by) + zero, bounds.min, bounds.max)
        subtracted = (back if back is not None else 0) if offset else zero
        assert np.array_equal(outputs[1][name], (integers - subtracted).astype(np.float32) * s[scale])
        assert np.abs(outputs[0][name] - outputs[1][name]).max() <= s[scale] * 1.001


def test_halves_and_the_ends_of_the_type_are_rounded_to_the_same_integers() -> None:
    numbers = np.array([0.5, 1.5, 2.5, -0.5, -1.5, 126.5, 127.5, 400, -400, 1e30, -1e30, 0], np.float32)
    model = parse("""g (float[1, 1, 3] x, float[12] n) => (float[12] a, float[1, 1, 1, 2] y)
        <float[1, 2, 3] W = {}, float[1, 2, 2] R = {}, float s = {1}, int8 z = {0}> {
        y, h = RNN <hidden_size = 2> (x, W, R)  i = QuantizeLinear (n, s, z)  a = DequantizeLinear (i, s, z) }""")
    feed = {"x": np.zeros((1, 1, 3), np.float32), "n": numbers}
    assert np.array_equal(run(rl.lower(model, target="mnn"), feed)["a"], run(model, feed)["a"])


def _with_outputs(model: Any, names: set[str]) -> Any:
    from onnx import TensorProto, helper

    copy = type(model)()
    copy.CopyFrom(model)
    copy.graph.output.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in sorted(names))
    return copy


REFUSED = {
    "integers of a product": (
        "mnn",
        "q = QuantizeLinear (h, s, z)  y = MatMulInteger (q, k)",
        "QuantizeLinear node '-> q' in main graph: mnn computes it wrongly.* MatMulInteger uses its integers; ",
    ),
    "an output": ("opencv", "y = QuantizeLinear (h, s, z)", "its integers are an output"),
    "a scale for each column": (
        "mnn",
        "q = QuantizeLinear <axis = 2> (h, ss, zz)  y = DequantizeLinear <axis = 2> (q, ss, zz)",
        "its scale or its zero point is no constant",
    ),
    "another scale behind it": (
        "opencv",
        "q = QuantizeLinear (h, s, z)  y = DequantizeLinear <axis = 2> (q, ss, zz)",
        "the scale behind it is no constant",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_stays_and_would_be_wrong_is_refused(name: str) -> None:
    target: Any
    target, nodes, message = REFUSED[name]
    kind = {"integers of a product": "int32", "an output": "int8"}.get(name, "float")
    model = parse(f"""g (float[5, 2, 3] x) => ({kind}[a, b, c] y)
        <float[1, 12, 3] W = {{}}, float[1, 12, 4] R = {{}}, float s = {{0.1}}, int8 z = {{3}},
         int8[4, 1] k = {{1, 2, 3, 4}}, float[4] ss = {{1, 2, 3, 4}},
         int8[4] zz = {{0, 0, 0, 0}}, int64[1] one = {{1}}> {{
        g, h = GRU <hidden_size = 4> (x, W, R)  {nodes} }}""")
    with pytest.raises(rl.UnsupportedError, match=message):
        rl.lower(model, target=target)
    rl.lower(model)


def test_reductions_whose_axes_are_attributes_stay() -> None:
    model = parse(
        """g (float[5, 2, 3] x) => (float[a, b, c] y) <float[1, 12, 3] W = {}, float[1, 12, 4] R = {}> {
        g, h = GRU <hidden_size = 4> (x, W, R)  y = ReduceSum <axes = [1]> (h) }""",
        opset=12,
    )
    assert "ReduceSum" in operators(rl.lower(model, target="ncnn"))


NESTED = """g (float[4, {T}, 2, 3] x) => (float[2] last, float[4, {T}, 1, 2, 5] ys)
    <float[1, 15, 3] W = {{}}, float[1, 15, 5] R = {{}}, float[2] s0 = {{1, 2}}, float half = {{0.5}}> {{
    last, ys = Scan <num_scan_inputs = 1, body = b (float[2] s, float[{T}, 2, 3] row)
        => (float[2] s1, float[{T}, 1, 2, 5] y) {{
        y, yh = GRU <hidden_size = 5> (row, W, R)  s1 = Mul (s, half) }}> (s0, x) }}"""
ROWS = """g (float[4, 3] x) => (float s, float[4, 3] ys) <float s0 = {1}> {
    s, ys = Scan <num_scan_inputs = 1, body = b (float s, float[3] row) => (float s1, float[3] y) {
        e, y = Scan <num_scan_inputs = 1, body = i (float t, float c) => (float t1, float q) {
            t1 = Add (t, c)  q = Mul (t1, c) }> (s, row)
        s1 = Mul (s, s) }> (s0, x) }"""


def test_no_scan_is_in_a_scan_for_tract() -> None:
    """The outer one is unrolled; one that is kept may have unrolled steps in it."""
    model, feed = parse(NESTED.format(T=6)), {"x": np.random.default_rng(1).random((4, 6, 2, 3), np.float32)}
    lowered, report = rl.lower(model, target="tract", full=True)
    assert [loop.form for loop in report.loops] == ["unroll"]
    assert np.allclose(run(lowered, feed)["ys"], run(model, feed)["ys"], atol=1e-5)
    kept = rl.lower(model, target="tract", except_="Scan")
    assert np.allclose(run(kept, feed)["ys"], run(model, feed)["ys"], atol=1e-5)
    with pytest.raises(rl.UnsupportedError, match=r"GRU node '-> y' .*: tract computes a Scan in .* wrongly"):
        rl.lower(model, "scan", target="tract", except_="Scan")
    with pytest.raises(rl.UnsupportedError, match="length is not known"):
        rl.lower(parse(NESTED.format(T="T")), target="tract", except_="Scan")


def test_scans_of_the_model_in_a_scan_are_unrolled_or_refused_for_tract() -> None:
    model, feed = parse(ROWS), {"x": np.random.default_rng(1).random((4, 3), np.float32)}
    assert np.allclose(run(rl.lower(model, target="tract"), feed)["ys"], run(model, feed)["ys"], atol=1e-5)
    with pytest.raises(rl.UnsupportedError, match=r"'-> e' .* a Scan wrongly; unroll one of them \(to=.unroll.\)"):
        rl.lower(model, target="tract", except_="Scan")
