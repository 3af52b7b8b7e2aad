"""Nodes that a runtime computes wrongly because of their attributes or neighbours are replaced, or refused."""

from typing import Any

import numpy as np
import onnx
import pytest
from nets_for_mnn import OF_ONE_AXIS, of_one_axis
from running import assert_close, nodes, operators, run
from texts import parse, random_feed

import rnn_lowering as rl

NETS: dict[str, tuple[Any, str, str]] = {
    name: ("openvino", operator, f"(float[N, 4] x) => (float[N, 4] y) {{ y = {operator} <{zeros}> (x) }}")
    for name, operator, zeros in [
        ("alpha of HardSigmoid", "HardSigmoid", "alpha = 0.0, beta = 0.5"),
        ("beta of HardSigmoid", "HardSigmoid", "alpha = 1.0, beta = 0.0"),
        ("alpha of Selu", "Selu", "alpha = 0.0"),
        ("gamma of Selu", "Selu", "gamma = 0.0"),
    ]
}
INTEGERS = """(float[N, 4] x) => (float[N, 4] y)
    <float s = {{0.1}}, int8 z = {{0}}, float t = {{0.00390625}}, int8 low = {{-128}}> {{
    a = QuantizeLinear (x, s, z) b = DequantizeLinear (a, s, z) {}
    d = QuantizeLinear (c, t, low) y = DequantizeLinear (d, t, low) }}"""
BETWEEN = {
    "at once": "c = Softmax <axis = -1> (b)",
    "behind others": "o = Neg (b) p = Neg (o) c = Softmax <axis = -1> (p)",
    "before others": "o = Softmax <axis = -1> (b) p = Neg (o) c = Neg (p)",
    "behind an Add": "o = Add (b, s) c = Softmax <axis = -1> (o)",
}
REVERSED = {
    "whole": ("batch_axis = 1, time_axis = 0", "7, 7, 7, 7"),
    "rows": ("batch_axis = 0, time_axis = 1", "4, 4, 4, 4, 4, 4, 4"),
    "ragged": ("batch_axis = 1, time_axis = 0", "7, 1, 3, 4"),
    "ragged rows": ("batch_axis = 0, time_axis = 1", "4, 1, 3, 4, 2, 1, 3"),
}
NETS |= {
    f"ReverseSequence, {name}, rank {rank}": (
        "mnn",
        "ReverseSequence",
        f"(float[{sizes}] x) => (float[{sizes}] y) <int64[{len(lengths.split(','))}] n = {{{lengths}}}>"
        f" {{ c = Neg (x) r = ReverseSequence <{axes}> (c, n) y = Neg (r) }}",
    )
    for name, (axes, lengths) in REVERSED.items()
    for rank, sizes in ((2, "7, 4"), (3, "7, 4, 3"), (5, "7, 4, 2, 1, 3"))
}
NETS |= {
    f"Tile {counts}": (
        "ncnn",
        "Tile",
        f"(float[{sizes}] x) => (float[{out}] y) <int64[3] n = {{{counts}}}> {{ y = Tile (x, n) }}",
    )
    for counts, sizes, out in (
        ("1, 5, 1", "2, 1, 4", "2, 5, 4"),
        ("2, 3, 2", "2, 3, 4", "4, 9, 8"),
        ("1, 1, 1", "2, 3, 4", "2, 3, 4"),
    )
}
NETS |= {
    f"{text} in {target}": (
        target,
        text.split()[0],
        f"(float[N, 4, 5, 6] x) => (float[a, b, c, d] y) {{ y = {text} (x) }}",
    )
    for target, texts in {
        "mnn": (
            "LpPool <kernel_shape = [2, 3]>",
            "LpPool <kernel_shape = [2, 3], p = 1, pads = [1, 1, 0, 1], strides = [2, 1]>",
            "LpPool <kernel_shape = [2, 3], p = 3>",
            "Hardmax <axis = 1>",
            "Shrink <lambd = 0.3, bias = 0.2>",
        ),
        "opencv": ("LpPool <kernel_shape = [2, 3], p = 3>", "GlobalLpPool <p = 3>", "GlobalLpPool <p = 1>"),
    }.items()
    for text in texts
}
NETS |= {
    f"a lone axis in {target}": (
        target,
        "Einsum",
        """(float[N, 4, 3] x) => (float[N, 4, 2] y) <float[5, 3, 2] k = {}> {
        y = Einsum <equation = "abc,dce->abe"> (x, k) }""",
    )
    for target in ("mnn", "opencv")
}
NETS |= {f"Softmax {name}": ("tract", "Softmax", INTEGERS.format(body)) for name, body in BETWEEN.items()}
NETS |= {
    f"{operator} {attributes}": (
        "openvino",
        operator,
        f"(float[N, 4, 3] x) => (float[{out}] y) {{ e = Exp (x) y = {operator} <{attributes}> (e) }}",
    )
    for operator in ("ReduceLogSum", "ReduceLogSumExp")
    for attributes, out in (("axes = [-1]", "N, 4, 1"), ("axes = [0, 2], keepdims = 0", "4"))
}
NETS |= {
    f"{operator} {attributes} in {target}": (
        target,
        operator,
        f"(float[N, 4, 3] x) => (float[{out}] y) <float k = {{200}}>"
        f" {{ e = Mul (x, k) y = {operator} <{attributes}> (e) }}",
    )
    for target, some in {
        "tract": ("ReduceLogSumExp",),
        "opencv": ("ReduceLogSumExp",),
        "openvino": ("ReduceL1",),
        "mnn": ("ReduceL1", "ReduceL2", "ReduceLogSumExp", "ReduceSumSquare"),
    }.items()
    for operator in some
    for attributes, out in (("axes = [-1]", "N, 4, 1"), ("axes = [0, 2], keepdims = 0", "4"))
}
NETS |= {
    f"LogSoftmax in {target}": (
        target,
        "LogSoftmax",
        "(float[N, 4] x) => (float[N, 4] y) <float k = {200}> { e = Mul (x, k) y = LogSoftmax <axis = 1> (e) }",
    )
    for target in ("tract", "opencv")
}
NETS |= {
    "an axis that is not written": (
        "mnn",
        "LogSoftmax",
        "(float[N, 4] x) => (float[N, 4] y) { y = LogSoftmax (x) }",
    ),
    "NaN": ("mnn", "IsNaN", "(float[N, 4] x) => (bool[N, 4] y) { l = Log (x) y = IsNaN (l) }"),
    "infinities": (
        "mnn",
        "IsInf",
        "(float[N, 4] x) => (bool[N, 4] y) <float z = {0}> { l = Div (x, z) y = IsInf (l) }",
    ),
    "large numbers in Softplus": (
        "tract",
        "Softplus",
        "(float[N, 4] x) => (float[N, 4] y) <float k = {200}> { e = Mul (x, k) y = Softplus (e) }",
    ),
    "booleans that are equal": (
        "tract",
        "Equal",
        "(float[N, 4] x) => (bool[N, 4] y) <float k = {0}> { a = Less (x, k) b = Greater (x, k) y = Equal (a, b) }",
    ),
    "alpha of Celu": ("tract", "Celu", "(float[N, 4] x) => (float[N, 4] y) { y = Celu <alpha = 1.5> (x) }"),
    "remainders of negative integers": (
        "tract",
        "Mod",
        """(float[N, 4] x) => (float[N, 4] y) <float k = {9}, int64[4] n = {3, -3, 4, -1}>
        { e = Mul (x, k) i = Cast <to = 7> (e) m = Mod (i, n) y = Cast <to = 1> (m) }""",
    ),
    "an infinity of doubles": (
        "tract",
        "IsInf",
        "(double[N, 4] x) => (bool[N, 4] y) { d = Sub (x, x) l = Log (d) y = IsInf <detect_positive = 0> (l) }",
    ),
    "rows that are chosen": (
        "tract",
        "Compress",
        "(float[7, 4] x) => (float[M, 4] y) <bool[5] c = {1, 0, 1, 1, 0}> { y = Compress <axis = 0> (x, c) }",
    ),
    "sums of chosen rows": (
        "mnn",
        "ScatterND",
        """(float[2, 3, 2] x, float[3, 2] u) => (float[2, 3, 2] y) <int64[3, 2] i = {0, 2, -1, 0, 0, -1}>
        { y = ScatterND <reduction = "add"> (x, i, u) }""",
    ),
}
NETS |= {
    f"{name} of integers": (
        "tract",
        operator,
        f"(float[3, 4] x) => (float[{out}] y) <int64 two = {{2}}, int64[4] n = {{3, 1, 2, 3}}, int64[3, 4] j ="
        f" {{-9, 2, 3, 4, 5, 6, 7, 8, 9, 9, 3, 1}}> {{ i = Cast <to = 7> (x) t = Transpose (j) {body}"
        f" y = Cast <to = 1> (z) }}",
    )
    for name, operator, out, body in (
        ("MatMul", "MatMul", "3, 3", "z = MatMul (i, t)"),
        ("Einsum", "Einsum", "3, 3", 'z = Einsum <equation = "ab,cb->ac"> (i, j)'),
        ("Pow", "Pow", "3, 4", "z = Pow (i, two)"),
        ("ReduceSumSquare", "ReduceSumSquare", "3, 1", "z = ReduceSumSquare <axes = [1]> (i)"),
        ("ReverseSequence", "ReverseSequence", "3, 4", "z = ReverseSequence (i, n)"),
    )
}
NETS |= {
    "Equal of floats": (
        "mnn",
        "Equal",
        "(float[N, 4] x) => (bool[N, 4] y) { r = Floor (x) n = Neg (r) y = Equal (r, n) }",
    ),
    "remainders of floats": (
        "mnn",
        "Mod",
        """(float[N, 4] x) => (float[N, 4] y) <float k = {9}, float[4] n = {3, -3, 2.5, -0.7}>
        { e = Mul (x, k) y = Mod <fmod = 1> (e, n) }""",
    ),
    "Equal of booleans": (
        "opencv",
        "Equal",
        "(float[N, 4] x) => (bool[N, 4] y) { n = Neg (x) a = Less (x, n) b = Greater (x, x) y = Equal (a, b) }",
    ),
    "Abs of integers": (
        "opencv",
        "Abs",
        "(float[N, 4] x) => (float[N, 4] y) { i = Cast <to = 7> (x) j = Abs (i) y = Cast <to = 1> (j) }",
    ),
    "Neg of int32": (
        "opencv",
        "Neg",
        "(float[N, 4] x) => (float[N, 4] y) { i = Cast <to = 6> (x) j = Neg (i) y = Cast <to = 1> (j) }",
    ),
    **{
        f"Softplus for {target}": (
            target,
            "Softplus",
            "(float[N, 4] x) => (float[N, 4] y) { e = Exp (x) y = Softplus (e) }",
        )
        for target in ("mnn", "opencv")
    },
}
FINE: dict[str, tuple[Any, str]] = {
    "a comparison with a row": ("mnn", "(float[N, 4] x, float[4] b) => (bool[N, 4] y) { y = Greater (x, b) }"),
    "Equal of integers": ("mnn", "(int64[N, 4] x) => (bool[N, 4] y) { n = Neg (x) y = Equal (x, n) }"),
    "a pool of whole windows": (
        "opencv",
        "(float[1, 4, 8] x) => (float[1, 4, 2] y)"
        " { y = AveragePool <ceil_mode = 1, kernel_shape = [4], strides = [4]> (x) }",
    ),
    "a sum of doubles": ("opencv", "(double[N, 4] x) => (double[N, 4] y) { y = Add (x, x) }"),
    "no 0": ("openvino", "(float[N, 4] x) => (float[N, 4] y) { y = HardSigmoid <alpha = 1.0> (x) }"),
    "floats": ("tract", "(float[N, 4] x) => (float[N, 4] y) { y = Softmax (x) }"),
    "a product": ("tract", INTEGERS.format("o = Softmax (b) p = Transpose (o) c = MatMul (o, p)")),
    "between products": (
        "tract",
        INTEGERS.format("o = Transpose (b) p = MatMul (b, o) m = Softmax (p) c = MatMul (m, b)"),
    ),
    **{
        f"integers {where} only": (
            "tract",
            "(float[N, 4] x) => (float[N, 4] y) <float s = {0.1}, int8 z = {0}> {" + nodes + "}",
        )
        for where, nodes in (
            ("before it", "a = QuantizeLinear (x, s, z) b = DequantizeLinear (a, s, z) y = Softmax (b)"),
            ("behind it", "c = Softmax (x) a = QuantizeLinear (c, s, z) y = DequantizeLinear (a, s, z)"),
        )
    },
    "a product of two": ("tract", "(float[N, 4] x, float[N, 4] y) => (float[N, 4] z) { z = Mul (x, y) }"),
    "a square of floats": ("tract", "(float[N, 4] x) => (float[N, 4] y) { y = Mul (x, x) }"),
    "reductions with a function": (
        "openvino",
        "(float[N, 4] x) => (float[N, 1] y) { y = ReduceL2 <axes = [1]> (x) }",
    ),
    "another runtime": ("mnn", "(float[N, 4] x) => (float[N, 4] y) { y = Selu <gamma = 0.0> (x) }"),
}


@pytest.mark.parametrize("opset", [13, 17])
@pytest.mark.parametrize("name", NETS)
def test_it_is_replaced(name: str, opset: int) -> None:
    target, operator, text = NETS[name]
    if "ScatterElements" in text or "ScatterND" in text:
        opset += 3
    model = parse(f"g {text}", opset)
    lowered, report = rl.lower(model, target=target, full=True)
    assert [each.node.operator for each in report.replaced] == [operator]
    assert operator not in operators(lowered)
    onnx.checker.check_model(lowered, full_check=True)
    feed = random_feed(model, N=5)
    assert_close(run(lowered, feed, optimize=False), run(model, feed, optimize=False), "float32")


@pytest.mark.parametrize("opset", [11, 17, 18])
@pytest.mark.parametrize("operator", ["ArgMax", "ArgMin"])
def test_mnn_compares_the_largest_of_integers(operator: str, opset: int) -> None:
    """It compares their bits as those of floats."""
    model = parse(
        f"""g (float[N, 4, 3] x) => (int64[N, 3] y) <float k = {{3}}> {{ m = Mul (x, k) i = Cast <to = 6> (m)
        y = {operator} <axis = -2, keepdims = 0> (i) }}""",
        opset,
    )
    lowered = rl.lower(model, target="mnn")
    assert operators(lowered) == {"Mul", "Cast", "Equal", "ArgMax", operator.replace("Arg", "Reduce")} | (
        {"Constant"} if opset == 18 else set()
    )
    feed = random_feed(model, N=5)
    assert_close(run(lowered, feed), run(model, feed))
    last = parse(
        "g (int32[N, 4] x) => (int64[N, 1] y) { y = ArgMax <axis = 1, select_last_index = 1> (x) }", max(opset, 12)
    )
    with pytest.raises(rl.UnsupportedError, match="computes it of floats only"):
        rl.lower(last, target="mnn")


def test_mnn_is_refused_what_is_sorted() -> None:
    text = "g (float[6] x) => (float[n] y) {{ y = Unique <sorted = {}> (x) }}"
    with pytest.raises(rl.UnsupportedError, match="computes it without sorting"):
        rl.lower(parse(text.format(1)), target="mnn")


@pytest.mark.parametrize("name", FINE)
def test_others_stay(name: str) -> None:
    target, text = FINE[name]
    model = parse(f"g {text}")
    assert rl.lower(model, target=target).SerializeToString() == model.SerializeToString()


def test_what_cannot_be_replaced_is_refused_or_kept() -> None:
    """Before opset 13 Softmax is of several axes at once, and has no function; of which is not known here."""
    model = parse(f"g {INTEGERS.format(BETWEEN['at once'])}", 12)
    model.graph.input[0].type.tensor_type.ClearField("shape")
    model.graph.output[0].type.tensor_type.ClearField("shape")
    with pytest.raises(
        rl.UnsupportedError,
        match=r"tract .* computes it wrongly between .*export the model without it.*keep_rest=True",
    ):
        rl.lower(model, target="tract")
    with pytest.warns(rl.RnnLoweringWarning, match="left for tract: Softmax node .* computes wrongly between"):
        kept = rl.lower(model, target="tract", keep_rest=True)
    assert kept.SerializeToString() == model.SerializeToString()


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_mnn_is_given_no_exact_gelu(approximate: str) -> None:
    """It computes each by the approximation with Tanh; of a sum of an Erf and 1 it makes one."""
    text = f'g (float[N, 4] x) => (float[N, 4] y) {{ y = Gelu <approximate = "{approximate}"> (x) }}'
    model = parse(text, 20, 10)
    lowered = rl.lower(model, target="mnn")
    assert ("Gelu" in operators(lowered)) == (approximate == "tanh")
    feed = random_feed(model, N=5)
    assert_close(run(lowered, feed), run(model, feed), "float32")


SCATTERED = """g (float[4, 3] x, float[2, 3] u) => (float[4, 3] y) <int64[2, 3] i = {0, 1, 2, 0, -3, 3}>
    { y = ScatterElements <reduction = "REDUCTION"> (x, i, u) }"""


@pytest.mark.parametrize("reduction", ["max", "min"])
def test_mnn_gets_the_largest_of_what_is_scattered(reduction: str) -> None:
    model = parse(SCATTERED.replace("REDUCTION", reduction), 18)
    lowered = rl.lower(model, target="mnn")
    assert "ScatterElements" not in operators(lowered)
    feed = random_feed(model)
    assert_close(run(lowered, feed), run(model, feed), "float32")


def test_mnn_is_refused_other_reductions_of_what_is_scattered() -> None:
    model = parse(SCATTERED.replace("REDUCTION", "mul"), 18)
    with pytest.raises(rl.UnsupportedError, match=r"mnn .* computes it without its reduction; export"):
        rl.lower(model, target="mnn")


def test_tract_gets_no_square_of_integers() -> None:
    model = parse("g (int64[3, 4] x) => (int64[3, 4] y) { y = Mul (x, x) }", 17)
    lowered = rl.lower(model, target="tract")
    assert [len(set(node.input)) for node in lowered.graph.node if node.op_type == "Mul"] == [2]
    feed: Any = {"x": np.arange(-6, 6).reshape(3, 4)}
    assert np.array_equal(run(lowered, feed)["y"], feed["x"] ** 2)


def test_mnn_gets_an_einsum_of_three_as_two() -> None:
    model = parse(
        """g (float[2, 4, 3] x, float[5, 4] a, float[2, 6, 5] c) => (float[2, 3, 6] y)
        { y = Einsum <equation = "bik,ji,bmj->bkm"> (x, a, c) }""",
        17,
    )
    lowered = rl.lower(model, target="mnn")
    assert max(len(node.input) for node in lowered.graph.node if node.op_type == "Einsum") == 2
    feed = random_feed(model)
    assert_close(run(lowered, feed), run(model, feed), "float32")


@pytest.mark.parametrize("target", ["mnn", "opencv", "tract"])
@pytest.mark.parametrize("operator", ["ReduceLogSumExp", "ReduceL2"])
def test_reductions_whose_axes_are_an_input(operator: str, target: Any) -> None:
    model = parse(
        f"""g (float[4, 3] x) => (float[4] y) <int64[1] a = {{1}}, float k = {{300}}>
        {{ b = Mul (x, k) y = {operator} <keepdims = 0> (b, a) }}""",
        18,
    )
    lowered = rl.lower(model, target=target)
    assert (operator in operators(lowered)) == (operator == "ReduceL2" and target != "mnn")
    feed = random_feed(model)
    assert_close(run(lowered, feed), run(model, feed), "float32")


def test_mnn_gets_a_resize_in_rank_4_and_differences_the_other_way_round() -> None:
    """It computes a linear Resize of three axes as zeros, and makes a norm of x s + (-m) s along whatever axes."""
    model = parse(
        """g (float[2, 3, 8] x, float[2, 1, 16] s, float[2, 1, 1] m) => (float[2, 3, 16] y)
        <float[3] scales = {1, 1, 2}> {
        z = Resize <mode = "linear"> (x, , scales) a = Mul (z, s) n = Neg (m) b = Mul (n, s) y = Add (a, b) }""",
        17,
    )
    lowered = rl.lower(model, target="mnn")
    (add,) = [node for node in lowered.graph.node if node.op_type == "Add"]
    assert list(add.input) == ["b", "a"]
    (resize,) = [node for node in lowered.graph.node if node.op_type == "Resize"]
    (scales,) = [tensor for tensor in lowered.graph.initializer if tensor.name == resize.input[2]]
    assert list(scales.dims) == [4]
    feed = random_feed(model)
    assert_close(run(lowered, feed), run(model, feed), "float32")


def test_tract_gets_the_size_of_a_triangle_as_a_number() -> None:
    model = parse(
        """g (float[N, 4] x) => (float[N, 4] y) <int64 one = {1}, int64 zero = {0}> {
        s = Shape (x) n = Gather (s, zero) k = Sub (one, n) y = Trilu <upper = 0> (x, k) }""",
        17,
    )
    lowered = rl.lower(model, target="tract")
    assert "CastLike" in operators(lowered)
    feed = random_feed(model, N=5)
    assert_close(run(lowered, feed), run(model, feed), "float32")


PRODUCT = """g ({0}[1, 3, 2, 4, 4] x, {0}[1, 3, 2, 4, 4] y) => ({0}[1, 3, 2, 4, 4] z) {{
    a = Relu (x)  z = MatMul (a, y) }}"""


def test_qnn_is_refused_a_product_of_halves_of_5_axes() -> None:
    with pytest.raises(rl.UnsupportedError, match=r"qnn .* computes it wrongly with float16 tensors of 5 axes"):
        rl.lower(parse(PRODUCT.format("float16"), 17), target="qnn")


@pytest.mark.parametrize("numbers", ["float", "double"])
def test_qnn_gets_other_products_as_they_are(numbers: str) -> None:
    model = parse(PRODUCT.format(numbers), 17)
    assert rl.lower(model, target="qnn").SerializeToString() == model.SerializeToString()


PADDED = """g (float[2, 4] x) => (float[2, 6] z)
    <float s = {{0.01}}, {1} p = {{{2}}}, int64[4] pads = {{0, 1, 0, 1}}, float value = {{0}}> {{
    a = QuantizeLinear (x, s, p)  b = DequantizeLinear (a, s, p)  c = Pad (b, pads{0})
    d = QuantizeLinear (c, s, p)  z = DequantizeLinear (d, s, p) }}"""


@pytest.mark.filterwarnings("ignore:left for qnn")
@pytest.mark.parametrize(
    ("value", "integers", "zero", "wrong"),
    [
        ("", "int8", -5, True),
        ("", "int16", -5, True),
        (", value", "int8", -5, False),
        ("", "int8", 0, False),
        ("", "uint8", 5, False),
    ],
)
def test_qnn_is_refused_a_pad_behind_a_negative_zero_point(
    value: str, integers: str, zero: int, wrong: bool
) -> None:
    """The HTP pads with the largest integer."""
    model = parse(PADDED.format(value, integers, zero), 21, 10)
    if not wrong:
        assert "Pad" in operators(rl.lower(model, target="qnn"))
        return
    with pytest.raises(rl.UnsupportedError, match=r"qnn .* wrongly behind a negative zero point: .* unsigned"):
        rl.lower(model, target="qnn")


@pytest.mark.filterwarnings("ignore:left for qnn")
def test_qnn_is_refused_a_pad_behind_an_unknown_zero_point() -> None:
    """Without one it is 0."""
    text = """g (float[2, 4] x, int8 given) => (float[2, 6] z)
        <float s = {{0.01}}, int64[4] pads = {{0, 1, 0, 1}}> {{
        p = Identity (given)  a = QuantizeLinear (x, s{0})  b = DequantizeLinear (a, s{0})
        c = Pad (b, pads)  d = QuantizeLinear (c, s{0})  z = DequantizeLinear (d, s{0}) }}"""
    assert "Pad" in operators(rl.lower(parse(text.format(""), 21, 10), target="qnn"))
    with pytest.raises(rl.UnsupportedError, match="wrongly behind a negative zero point"):
        rl.lower(parse(text.format(", p"), 21, 10), target="qnn")


@pytest.mark.parametrize("given", ["r, s", "r, r, n"])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_a_resize_of_three_axes_for_opencv(mode: str, given: str) -> None:
    text = "g (float[2, 3, T] x) => (float[2, 3, S] y) <float[3] s = {1, 1, 2}, int64[3] n = {2, 3, 14}> { "
    net = parse(f'{text}y = Resize <mode = "{mode}"> (x) }}', 17)
    net.graph.node[0].input[:] = [name.strip() for name in f"x, {given.replace('r', '')}".split(",")]
    lowered = rl.lower(net, target="opencv")
    assert [n.op_type for n in lowered.graph.node] == ["Unsqueeze", "Resize", "Squeeze"]
    feed = random_feed(net, T=7)
    assert_close(run(lowered, feed), run(net, feed))


def test_zero_points_get_the_shape_of_their_scales_for_opencv() -> None:
    net = parse(
        """g (float[2, 4] x) => (float[2, 4] y) <int32[4] b = {1, 2, 3, 4}, float[1] s = {0.1}, int32 z = {0},
        int8[2, 4] w = {1, 2, 3, 4, 5, 6, 7, 8}, float[4] each = {1, 2, 3, 4}, int8[4] points = {0, 1, 2, 3}> {
        c = DequantizeLinear (b, s, z)  a = Add (x, c)
        d = DequantizeLinear <axis = 1> (w, each, points)  y = Mul (a, d) }""",
        17,
    )
    lowered = rl.lower(net, target="opencv")
    shapes = {tensor.name: list(tensor.dims) for tensor in lowered.graph.initializer}
    pairs = [node.input[1:] for node in lowered.graph.node if node.op_type == "DequantizeLinear"]
    assert [(shapes[scale], shapes[zero]) for scale, zero in pairs] == [([1], [1]), ([4], [4])]
    feed = random_feed(net)
    assert_close(run(lowered, feed), run(net, feed))


SEQUENCES = {
    "a row": "s = SplitToSequence <axis = 0, keepdims = 0> (x) y = SequenceAt (s, one)",
    "a row of another axis": "s = SplitToSequence <axis = -1, keepdims = 0> (x) y = SequenceAt (s, last)",
    "a row that keeps its axis": "s = SplitToSequence <axis = 1> (x) y = SequenceAt (s, n)",
    "a part of one row": "s = SplitToSequence <axis = 1> (x, one) y = SequenceAt (s, last)",
    "a part of two rows": "s = SplitToSequence <axis = -1> (x, two) y = SequenceAt (s, one)",
    "the rest of the rows": "s = SplitToSequence <axis = 1> (x, two) y = SequenceAt (s, one)",
    "a part of its own size": "s = SplitToSequence <axis = 2> (x, parts) y = SequenceAt (s, one)",
    "the last part": "s = SplitToSequence <axis = 2> (x, parts) y = SequenceAt (s, last)",
}


@pytest.mark.parametrize("target", ["tract", "openvino", "opencv", "ncnn", "litert", "mnn"])
@pytest.mark.parametrize("name", SEQUENCES)
def test_rows_of_a_sequence_are_gathered(name: str, target: Any) -> None:
    text = "g (float[2, 3, 4] x, int64 n) => (float[I] y) <int64 one = {1}, int64 last = {-1}, int64 two = {2},"
    text += " int64[3] parts = {1, 2, 1}> { "
    net = parse(f"{text}{SEQUENCES[name]} }}", 17)
    net.graph.output[0].type.tensor_type.ClearField("shape")
    if target == "ncnn" and "(s, n)" in SEQUENCES[name]:
        with pytest.raises(rl.UnsupportedError, match="ncnn takes inputs of 1 to 4 axes, but 'n' has 0"):
            rl.lower(net, target=target)
        return
    lowered = rl.lower(net, target=target)
    assert not operators(lowered) & {"SplitToSequence", "SequenceAt"}
    feed: dict[str, Any] = {**random_feed(net), "n": np.array(2)}
    assert_close(run(lowered, feed), run(net, feed))


def test_parts_at_computed_places_stay() -> None:
    text = "g (float[4, 3] x, int64 n) => (float[2, 3] y) <int64 two = {2}> { s = SplitToSequence (x, two) "
    net = parse(text + "y = SequenceAt (s, n) }", 17)
    assert "SequenceAt" in operators(rl.lower(net, target="openvino"))


@pytest.mark.parametrize("target", ["tract", "opencv", "ncnn", "litert"])
def test_sequences_that_stay_are_refused(target: Any) -> None:
    """All but one of the rows."""
    net = parse("""g (float[4, 3] x) => (float[a, b] y) <int64 one = {1}> {
        s = SplitToSequence <axis = 0> (x) t = SequenceErase (s, one)
        y = ConcatFromSequence <axis = 0> (t) }""")
    with pytest.raises(
        rl.UnsupportedError, match="has no sequences of tensors; export the model with Split or Slice"
    ):
        rl.lower(net, target=target)
    assert_close(run(rl.lower(net, target="openvino"), random_feed(net)), run(net, random_feed(net)))


@pytest.mark.parametrize("target", ["tvm", "litert", "espdl", "opencv", "mnn", "iree"])
@pytest.mark.parametrize(
    "given", ["value_int = 2", "value_ints = [2, 1]", "value_float = 0.5", "value_floats = [0.5, 2.0]"]
)
def test_the_numbers_of_constants_become_tensors(given: str, target: Any) -> None:
    """TVM, onnx2tf and esp-ppq reject others; OpenCV and MNN give a single number an axis."""
    model = parse(f"g (float[2, 2] x) => (float[2, 2] y) {{ c = Constant <{given}> ()  {{}} }}".replace("{}", USED))
    lowered = rl.lower(model, target=target)
    constants = [node for node in lowered.graph.node if node.op_type == "Constant"]
    assert all([a.name for a in node.attribute] == ["value"] for node in constants)
    feed = {"x": np.array([[1, 2], [3, 4]], np.float32)}
    np.testing.assert_array_equal(run(lowered, feed)["y"], run(model, feed)["y"])


@pytest.mark.parametrize("name", OF_ONE_AXIS)
def test_nodes_along_one_axis_in_mnn(name: str) -> None:
    model = of_one_axis(OF_ONE_AXIS[name])
    lowered = rl.lower(model, target="mnn")
    made = {node.op_type for node in lowered.graph.node for value in node.output if value == "y"}
    assert made <= {"Max", "Tanh", "AveragePool", "Transpose"}
    pools = [node for node in lowered.graph.node if "Pool" in node.op_type]
    assert all("strides" in {a.name for a in node.attribute} for node in pools)
    assert_close(run(lowered, random_feed(model)), run(model, random_feed(model)))


USED = "f = Cast <to = 1> (c)  y = Mul (x, f)"


@pytest.mark.parametrize(("operator", "count"), [("Concat <axis = 1> (t, x)", 1), ("Mul (t, x)", 0)])
def test_a_sum_of_a_sum_that_is_joined_too_is_set_apart_for_litert(operator: str, count: int) -> None:
    net = parse(
        f"""g (float[1, 2, 5] x, float[1, 2, 5] g) => (float[a, b, c] y)
        <float[2, 2, 1] v = {{}}, float[2, {2 + 2 * count}, 1] w = {{}}> {{ h = Conv (x, v)  t = Add (g, h)
        q = {operator}  r = Conv (q, w)  a = Add (t, r)  y = MaxPool <kernel_shape = [2]> (a) }}""",
        17,
    )
    lowered, feed = rl.lower(net, target="litert"), random_feed(net)
    assert [node.op_type for node in lowered.graph.node].count("Reshape") == count
    assert_close(run(lowered, feed), run(net, feed))


@pytest.mark.parametrize(
    ("reader", "count"),
    [("Relu (h)", 1), ("Max (h, none)", 1), ("Identity (h)", 1), ("Reshape (h, same)", 1), ("Tanh (h)", 0)],
)
def test_outputs_that_litert_would_lose_become_sums(reader: str, count: int) -> None:
    """onnx2tf gives what computes h the name of the reader, and h is gone."""
    net = parse(
        f"""g (float[2, 3] x) => (float[2, 3] h, float[2, 3] y) <float none = {{0}}, int64[2] same = {{2, 3}}> {{
        h = Mul (x, x)  r = {reader}  y = Neg (r) }}""",
        17,
    )
    lowered, feed = rl.lower(net, target="litert"), random_feed(net)
    assert [node.op_type for node in lowered.graph.node].count("Add") == count
    readers = [node.op_type for node in lowered.graph.node if "h" in node.input]
    assert readers == ["Tanh"] * (1 - count)
    assert_close(run(lowered, feed), run(net, feed))


@pytest.mark.parametrize("operator", ["Concat <axis = 0>", "Max", "Min", "Mean", "Sum"])
def test_what_joins_a_single_tensor_is_a_copy_in_litert(operator: str) -> None:
    """LiteRT has no operator for what onnx2tf makes of it."""
    net = parse(f"g (float[2, 3] x) => (float[2, 3] y) {{ h = Neg (x)  r = {operator} (h)  y = Tanh (r) }}", 17)
    lowered, feed = rl.lower(net, target="litert"), random_feed(net)
    assert [node.op_type for node in lowered.graph.node] == ["Neg", "Identity", "Tanh"]
    assert_close(run(lowered, feed), run(net, feed))


@pytest.mark.parametrize(
    ("inputs", "node"),
    [
        ("float[2, 3, 4] x, float[4, 5] w, float[2, 6, 5] z", 'Einsum <equation = "bxi,ij,byj->bxy"> (x, w, z)'),
        (
            "float[2, 3] x, float[3, 4] w, float[4, 5] v, float[5] z",
            'Einsum <equation = "ab,bc,cd,d->a"> (x, w, v, z)',
        ),
    ],
)
def test_an_einsum_of_several_operands_becomes_products_of_two(inputs: str, node: str) -> None:
    """Each sees the sizes of those before it."""
    net = parse(f"g ({inputs}) => (float[A] y) {{ y = {node} }}", 17)
    net.graph.output[0].type.tensor_type.ClearField("shape")
    lowered, feed = rl.lower(net, target="litert"), random_feed(net)
    assert "Einsum" not in operators(lowered)
    assert_close(run(lowered, feed), run(net, feed))


def test_log_softmax_and_doubles_in_litert() -> None:
    """onnx2tf makes a LogSoftmax the logarithm of a Softmax, which is 0 for a masked score; no IsInf of doubles."""
    masked = parse("g (float[2, 3] x) => (float[2, 3] y) { y = LogSoftmax (x) }", 17)
    lowered, feed = rl.lower(masked, target="litert"), {"x": np.array([[0, -1e9, 1], [3, 2, 1]], np.float32)}
    assert "LogSoftmax" not in operators(lowered)
    assert_close(run(lowered, feed), run(masked, feed))
    doubles = parse("g (float[2] x) => (bool[2] y) { d = Cast <to = 11> (x)  y = IsInf (d) }", 17)
    with pytest.raises(rl.UnsupportedError, match="computes it in float32 only"):
        rl.lower(doubles, target="litert")


REFUSED: dict[str, tuple[Any, str, str]] = {
    "BitShift": (
        "opencv",
        'i = Cast <to = 13> (x) j = BitShift <direction = "RIGHT"> (i, i) y = Cast <to = 1> (j)',
        "of other types than uint64",
    ),
    "Bits": (
        "openvino",
        'i = Cast <to = 2> (x) j = BitShift <direction = "LEFT"> (i, i) y = Cast <to = 1> (j)',
        "of uint32 only",
    ),
    "AveragePool": (
        "opencv",
        "y = AveragePool <kernel_shape = [3], pads = [1, 1], ceil_mode = 1, count_include_pad = 1> (x)",
        "with ceil_mode as if what is beyond the pads were counted",
    ),
    "MatMul": (
        "opencv",
        "d = Cast <to = 11> (x) t = Transpose <perm = [0, 2, 1]> (d) f = MatMul (d, t) y = Cast <to = 1> (f)",
        "in float32 only",
    ),
    "Einsum": (
        "mnn",
        'd = Einsum <equation = "abb->ab"> (x) y = Identity (d)',
        "with each label of an operand once only",
    ),
    "Mul": (
        "opencv",
        "k = Constant <value = double[1] {2.0}> () d = Cast <to = 11> (x) f = Mul (d, k) y = Cast <to = 1> (f)",
        "in float32 only",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_function_computes_is_refused(name: str) -> None:
    target, body, how = REFUSED[name]
    model = parse(f"g (float[2, 4, 7] x) => (float[2, a, b] y) {{ {body} }}", 19)
    with pytest.raises(rl.UnsupportedError, match=f"node .*computes it {how}; export"):
        rl.lower(model, target=target)


SUMS = {
    "one operand": ("(float[N, 3] x) => (float y)", 'y = Einsum <equation = "ij->"> (x)', {"ReduceSum"}),
    "two operands": (
        "(float[N, 3] x, float[3, N] z) => (float y)",
        'y = Einsum <equation = "ij,ji->"> (x, z)',
        {"ReduceSum", "Mul", "Transpose"},
    ),
    "two vectors": (
        "(float[N] x, float[N] z) => (float y)",
        "y = MatMul (x, z)",
        {"Unsqueeze", "MatMul", "Squeeze"},
    ),
}
SUMMED: list[tuple[Any, str, bool]] = [
    ("tract", "one operand", True),
    ("opencv", "one operand", True),
    ("mnn", "one operand", True),
    ("mnn", "two operands", True),
    ("tract", "two operands", False),
    ("tract", "two vectors", True),
    ("openvino", "two vectors", False),
]


@pytest.mark.every_pair
@pytest.mark.parametrize(("target", "name", "is_written"), SUMMED)
def test_sums_along_all_axes(target: Any, name: str, is_written: bool) -> None:
    """tract returns one operand as it is; MNN and OpenCV crash."""
    signature, body, operators_after = SUMS[name]
    net = parse(f"g {signature} {{ {body} }}", 17)
    lowered = rl.lower(net, target=target)
    assert operators(lowered) == (operators_after if is_written else operators(net))
    feed = random_feed(net, N=5)
    assert_close(run(lowered, feed), run(net, feed))


BYTES = {
    "of a comparison": ("b = Less (x, z) u = Cast <to = 2> (b) y = Cast <to = 1> (u)", ""),
    "of floats that are moved": ("a = Abs (x) u = Cast <to = 2> (a) t = Transpose (u) y = Cast <to = 6> (t)", ""),
    "of an input": ("i = Identity (x) u = Cast <to = 2> (i) y = Cast <to = 1> (u)", "only behind other nodes"),
    "that are added": ("a = Abs (x) u = Cast <to = 2> (a) s = Add (u, u) y = Cast <to = 1> (s)", "only where no"),
    "that become booleans": ("a = Abs (x) u = Cast <to = 2> (a) y = Cast <to = 9> (u)", "only where no"),
}


@pytest.mark.parametrize("name", BYTES)
def test_casts_to_bytes_in_mnn(name: str) -> None:
    """It crashes at those of inputs, and at arithmetic of bytes."""
    body, how = BYTES[name]
    net = parse(f"g (float[3, 4] x, float[3, 4] z) => (float[A, B] y) {{ {body} }}", 17)
    if how:
        with pytest.raises(rl.UnsupportedError, match=f"computes it {how}"):
            rl.lower(net, target="mnn")
    else:
        casts = [node.attribute for node in nodes(rl.lower(net, target="mnn")) if node.op_type == "Cast"]
        assert casts == [node.attribute for node in nodes(net) if node.op_type == "Cast"]


@pytest.mark.parametrize("dtype", ["float", "int64", "int32"])
def test_mnn_gets_comparisons_where_numbers_become_booleans(dtype: str) -> None:
    """It keeps the integer that a number is cut to."""
    model = parse(f"g ({dtype}[6] x) => (float[6] y) {{ b = Cast <to = 9> (x) y = Cast <to = 1> (b) }}", 17)
    lowered = rl.lower(model, target="mnn")
    assert [node.attribute[0].i for node in nodes(lowered) if node.op_type == "Cast"] == [1]
    numbers = np.array([-2, 0, 0.4, -0.0, 3, np.nan]) if dtype == "float" else np.array([-2, 0, 1, 0, 3, 9])
    x = numbers.astype({"float": np.float32}.get(dtype, dtype))
    assert run(lowered, {"x": x})["y"].tolist() == (x != 0).astype(float).tolist()


@pytest.mark.parametrize("exponent", ["three", "n"])
def test_mnn_gets_exponents_of_the_type_of_the_base(exponent: str) -> None:
    model = parse(
        f"g (float[2, 4] x, int32[4] n) => (float[2, 4] y) <int64 three = {{3}}> {{ y = Pow (x, {exponent}) }}", 17
    )
    lowered = rl.lower(model, target="mnn")
    (pow_node,) = (node for node in nodes(lowered) if node.op_type == "Pow")
    assert pow_node.input[1] != exponent
    feed = random_feed(model) | {"n": np.array([0, 1, 2, 3], np.int32)}
    assert_close(run(lowered, feed), run(model, feed))
    assert rl.lower(lowered, target="mnn").SerializeToString() == lowered.SerializeToString()


@pytest.mark.parametrize("pads", ["0, 0, 1, 0, 0, 2", "0, 5, 0, 0, 9, 3"])
@pytest.mark.parametrize("target", ["mnn", "openvino", "tract"])
def test_pads_that_wrap_are_cut_and_joined(target: Any, pads: str) -> None:
    """Also those of more rows than there are."""
    text = f'p = Constant <value = int64[6] {{{pads}}}> () y = Pad <mode = "wrap"> (x, p)'
    model = parse(f"g (float[2, 4, 7] x) => (float[a, b, c] y) {{ {text} }}", 19)
    lowered = rl.lower(model, target=target)
    assert operators(lowered) <= {"Slice", "Concat", "Identity", "Constant"}
    x = random_feed(model)["x"]
    widths = np.array(pads.split(", "), int).reshape(2, 3).T
    assert np.array_equal(run(lowered, {"x": x})["y"], np.pad(x, widths, "wrap"))


@pytest.mark.parametrize("steps", [1, 7])
@pytest.mark.parametrize("target", ["mnn", "openvino", "tract"])
def test_pads_that_wrap_at_an_open_size_are_gathered(target: Any, steps: int) -> None:
    text = 'p = Constant <value = int64[4] {0, 3, 2, 2}> () y = Pad <mode = "wrap"> (x, p)'
    lowered = rl.lower(parse(f"g (float[3, T] x) => (float[5, U] y) {{ {text} }}", 19), target=target)
    assert "Pad" not in operators(lowered)
    x = np.arange(3 * steps, dtype=np.float32).reshape(3, steps)
    assert np.array_equal(run(lowered, {"x": x})["y"], np.pad(x, ((0, 2), (3, 2)), "wrap"))


@pytest.mark.parametrize(("upper", "k"), [(1, 1), (1, -2), (0, 1)])
@pytest.mark.parametrize(("rows", "columns"), [(9, 4), (4, 9), (5, 5)])
def test_opencv_keeps_a_triangle_of_many_rows_by_a_mask(upper: int, k: int, rows: int, columns: int) -> None:
    model = parse(
        f"""g (float[2, {rows}, {columns}] x) => (float[2, {rows}, {columns}] y) <int64 k = {{{k}}}>
        {{ y = Trilu <upper = {upper}> (x, k) }}"""
    )
    lowered = rl.lower(model, target="opencv")
    assert ("Trilu" in operators(lowered)) == (not upper or rows <= columns)
    feed = random_feed(model)
    assert np.array_equal(run(lowered, feed)["y"], run(model, feed)["y"])


@pytest.mark.parametrize("upper", [0, 1])
@pytest.mark.parametrize("k", ["", "1", "-2", "q"])
@pytest.mark.parametrize("dtype", ["float", "bool"])
def test_opencv_keeps_a_triangle_of_open_sizes_by_a_mask(upper: int, k: str, dtype: str) -> None:
    """The diagonal may be computed, too."""
    number = "q = Sub (two, t)" if k == "q" else f"q = Constant <value_int = {k or 0}> ()"
    model = parse(
        f"""g (float[T, U] x) => (bool[T, U] y) <float zero = {{0}}, int64 two = {{2}}, int64 first = {{0}}> {{
        s = Shape (x) t = Gather (s, first) {number} d = Greater (x, zero)
        c = Trilu <upper = {upper}> ({"x" if dtype == "float" else "d"}{", q" if k else ""})
        y = Cast <to = 9> (c) }}"""
    )
    lowered = rl.lower(model, target="opencv")
    assert ("Trilu" in operators(lowered)) == (not upper)
    for T, U in ((9, 4), (4, 9), (1, 1)):
        x = random_feed(model, T=T, U=U)["x"]
        kept = (np.triu if upper else np.tril)(x, 2 - T if k == "q" else int(k or 0))
        wanted = kept != 0 if dtype == "float" else kept > 0
        assert np.array_equal(run(lowered, {"x": x})["y"], wanted)


@pytest.mark.parametrize("opset", [9, 11, 12])
@pytest.mark.parametrize(("operator", "dtype"), [("Abs", 7), ("Abs", 6), ("Neg", 6), ("Sign", 7), ("Sign", 6)])
def test_opencv_computes_integers_of_older_opsets(operator: str, dtype: int, opset: int) -> None:
    text = f"i = Cast <to = {dtype}> (x) j = {operator} (i) y = Cast <to = 1> (j)"
    model = parse(f"g (float[4] x) => (float[4] y) {{ {text} }}", opset)
    lowered = rl.lower(model, target="opencv")
    assert operator not in operators(lowered)
    x = np.array([-7.5, 0, 1, 300], np.float32)
    assert np.array_equal(run(lowered, {"x": x})["y"], run(model, {"x": x})["y"])


OLD: dict[str, tuple[Any, str]] = {
    "a choice": (
        "mnn",
        "c = Greater (x, z) m = ReduceMax <axes = [1]> (x) w = Where (c, m, k) y = Cast <to = 1> (w)",
    ),
    "a comparison": (
        "mnn",
        "m = ReduceMax <axes = [1]> (x) n = ReduceMin <axes = [2]> (x) c = Greater (n, m) y = Cast <to = 1> (c)",
    ),
    "booleans": ("opencv", "a = Greater (x, z) b = Less (x, z) c = Equal (a, b) y = Cast <to = 1> (c)"),
    **{
        f"{operator} in {target}": (target, f"e = Exp (x) y = {operator} <{axes}> (e)")
        for target, operator, axes in (
            ("mnn", "ReduceL1", "axes = [1]"),
            ("mnn", "ReduceL2", "axes = [0, -1]"),
            ("mnn", "ReduceSumSquare", "axes = [2], keepdims = 0"),
            ("openvino", "ReduceLogSum", "axes = [1, 2]"),
            ("opencv", "ReduceLogSumExp", "axes = [1], keepdims = 0"),
            ("tract", "ReduceLogSumExp", "keepdims = 1"),
        )
    },
}


@pytest.mark.parametrize("opset", [9, 11, 12])
@pytest.mark.parametrize("name", OLD)
def test_older_opsets(name: str, opset: int) -> None:
    """What is written in the place of a node is what its opset has."""
    target, body = OLD[name]
    if "-1" in body and opset < 11:
        body = body.replace("-1", "2")
    result = "i, j" if "keepdims = 0" in body else "i, j, l"
    head = f"g (float[N, 4, 3] x) => (float[{result}] y) <float z = {{0}}, float[3] k = {{1, 2, 3}}>"
    model = parse(f"{head} {{ {body} }}", opset)
    lowered, report = rl.lower(model, target=target, full=True)
    assert len(report.replaced) == 1
    onnx.checker.check_model(lowered, full_check=True)
    feed = random_feed(model, N=5)
    assert_close(run(lowered, feed), run(model, feed))


@pytest.mark.parametrize("operator", ["Greater", "GreaterOrEqual", "Less", "LessOrEqual"])
def test_mnn_compares_no_row_with_a_column(operator: str) -> None:
    model = parse(
        f"""g (float[5, 4] x, float[5] b) => (bool[5, 4, 5] y) <int64[3] s = {{5, 4, 1}}>
        {{ c = Reshape (x, s) y = {operator} (c, b) }}"""
    )
    lowered, report = rl.lower(model, target="mnn", full=True)
    assert [each.node.operator for each in report.replaced] == [operator]
    assert [node.op_type for node in lowered.graph.node].count("Expand") == 2
    feed = random_feed(model)
    assert np.array_equal(run(lowered, feed)["y"], run(model, feed)["y"])


def test_a_row_of_open_size_is_compared_with_a_column() -> None:
    """MNN compares numbers of one shape only, as the lengths of sequences with the numbers of steps."""
    net = parse(
        "g (float[T, N] x) => (bool[T, N] y)"
        " <int64 z = {0}, int64 o = {1}, int64[2] c = {-1, 1}, int64[2] r = {1, -1}>"
        "{ s = Shape (x) t = Gather (s, z) n = Gather (s, o) a = Range (z, t, o) b = Range (z, n, o)"
        "  p = Reshape (a, c) q = Reshape (b, r) y = Greater (p, q) }",
        17,
    )
    lowered = rl.lower(net, target="mnn")
    assert [node.op_type for node in lowered.graph.node][-3:] == ["Expand", "Expand", "Greater"]
    feed = random_feed(net, T=5, N=3)
    assert_close(run(lowered, feed), run(net, feed))


@pytest.mark.parametrize("opset", [9, 18])
@pytest.mark.parametrize("target", ["tract", "opencv", "mnn", "openvino"])
def test_the_logarithm_of_a_sigmoid_is_right_where_the_sigmoid_is_0(target: Any, opset: int) -> None:
    text = "g (float[2, 4] x) => (float[2, 4] y, float[2, 4] s) { s = Sigmoid (x) y = Log (s) }"
    x = np.array([[-180, -100, -60, -17], [-1, 0, 5, 180]], np.float32)
    got = run(rl.lower(parse(text, opset), target=target), {"x": x})
    assert_close(got, {"y": -np.logaddexp(0, -x.astype(np.float64)), "s": got["s"]})
