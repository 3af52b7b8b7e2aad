"""Pads that keep a size, and products that are broadcast, are written for OpenCV as it computes them right."""

import numpy as np
import pytest
from onnx import numpy_helper
from running import assert_close, nodes, run
from texts import parse, random_feed

import rnn_lowering as rl

PADDED = [
    (op, pads, size, stride)
    for op in ("Conv", "MaxPool", "AveragePool")
    for pads in ("SAME_UPPER", "SAME_LOWER")
    for size, stride in ((8, 2), (9, 3), (7, 1))
]


@pytest.mark.parametrize(("op", "pads", "size", "stride"), PADDED)
def test_pads_that_keep_a_size_are_numbers(op: str, pads: str, size: int, stride: int) -> None:
    net = parse(
        f"""g (float[1, 4, {size}] x) => (float[1, 4, n] y) <float[4, 4, 4] k = {{}}> {{ y = {op}
        <auto_pad = "{pads}", strides = [{stride}], kernel_shape = [4]> (x{", k" * (op == "Conv")}) }}"""
    )
    lowered = rl.lower(net, target="opencv")
    (node,) = (node for node in nodes(lowered) if node.op_type == op)
    assert "auto_pad" not in {attribute.name for attribute in node.attribute}
    feed = random_feed(net)
    assert_close(run(lowered, feed), run(net, feed))


@pytest.mark.parametrize(("stride", "k"), [(1, 3), (2, 3), (1, 4)])
def test_pads_of_an_open_size_are_numbers_or_refused(stride: int, k: int) -> None:
    """Of stride 1 they follow from the kernel alone."""
    net = parse(
        f"""g (float[1, 4, time] x) => (float[1, 4, n] y) <float[4, 4, {k}] k = {{}}> {{
        y = Conv <auto_pad = "SAME_UPPER", strides = [{stride}]> (x, k) }}"""
    )
    if stride > 1:
        with pytest.raises(rl.UnsupportedError, match=r"Conv node .*pads both sides alike.*dims={\"time\": \?}"):
            rl.lower(net, target="opencv")
        return
    lowered = rl.lower(net, target="opencv")
    feed = {"x": np.random.default_rng(0).standard_normal((1, 4, 9), np.float32)}
    assert_close(run(lowered, feed), run(net, feed))


PRODUCTS = {
    "unlike batches": ("float[6, 2, 3, 4]", "y = MatMul (x, m)"),
    "five axes": ("float[2, 3, 2, 1, 4]", "y = MatMul (x, m)"),
    "a vector": ("float[2, 3, 4]", "y = MatMul (x, v)"),
    "a vector before": ("float[4, 3]", "y = MatMul (v, x)"),
    "two vectors": ("float[4]", "y = MatMul (x, v)"),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_has_matrices_of_the_same_batches(name: str) -> None:
    x, text = PRODUCTS[name]
    out = {"unlike batches": "a, b, c, d", "five axes": "a, b, c, d, e", "a vector": "a, b", "two vectors": ""}
    shape = out.get(name, "a")
    kind = f"float[{shape}]" if shape else "float"
    net = parse(f"g ({x} x) => ({kind} y) <float[2, 4, 5] m = {{}}, float[4] v = {{}}> {{ {text} }}")
    lowered, report = rl.lower(net, target="opencv", full=True)
    assert any("MatMul" in note for note in report.notes)
    feed = random_feed(net)
    assert_close(run(lowered, feed), run(net, feed))


def test_integers_are_gathered_by_initializers() -> None:
    """Behind a Gather by a Constant, OpenCV takes the floats of a Cast for integers, and rejects the rest."""
    net = parse(
        """g (int64[2, 3] m, float[2, 3] x) => (float[2] y) {
        k = Constant <value = int64 {1}> () g = Gather <axis = 1> (m, k) c = Cast <to = 1> (g)
        f = Gather <axis = 1> (x, k) y = Mul (c, f) }"""
    )
    lowered = rl.lower(net, target="opencv")
    stored = {tensor.name for tensor in lowered.graph.initializer}
    assert [node.input[1] in stored for node in nodes(lowered) if node.op_type == "Gather"] == [True, False]
    feed = random_feed(net) | {"m": np.array([[1, 2, 3], [4, 5, 6]])}
    assert_close(run(lowered, feed), run(net, feed))


@pytest.mark.parametrize("opset", [9, 17])
def test_a_cast_does_not_read_a_product_of_floats(opset: int) -> None:
    net = parse(
        """g (float[2, 3] x) => (int64[2, 3] y, float[2, 3] z) <float k = {3.0}, int64 n = {2}> {
        a = Mul (x, k) y = Cast <to = 7> (a) b = Mul (y, n) z = Cast <to = 1> (b) }""",
        opset,
    )
    lowered = rl.lower(net, target="opencv")
    assert [node.op_type for node in nodes(lowered)] == ["Mul", "Identity", "Cast", "Mul", "Cast"]
    feed = random_feed(net)
    assert_close(run(lowered, feed), run(net, feed))


@pytest.mark.parametrize("opset", [9, 17])
def test_a_tanh_is_bounded_once(opset: int) -> None:
    net = parse("g (float[2, 3] x) => (float[2, 3] y) { a = Tanh (x) b = Neg (a) y = Tanh (b) }", opset)
    lowered = rl.lower(net, target="opencv")
    assert [node.op_type for node in nodes(lowered)] == ["Clip", "Tanh", "Neg", "Clip", "Tanh"]
    assert rl.lower(lowered, target="opencv").SerializeToString() == lowered.SerializeToString()
    feed = {"x": np.array([[-60, 60, 0.5], [50, 1, 0]], np.float32)}
    assert_close(run(lowered, feed), run(net, feed))


@pytest.mark.parametrize(("number", "apart"), [("2.0", True), ("1.0", False)])
def test_a_logarithm_reads_no_sum_of_an_exponential(number: str, apart: bool) -> None:
    """Of 1 + exp(x) it is a Softplus."""
    net = parse(
        f"""g (float[2, 3] x) => (float[2, 3] y) {{ k = Constant <value = float[1] {{{number}}}> ()
        a = Exp (x) b = Add (a, k) y = Log (b) }}"""
    )
    lowered = rl.lower(net, target="opencv")
    assert ("Identity" in {node.op_type for node in nodes(lowered)}) == apart
    feed = random_feed(net)
    assert_close(run(lowered, feed), run(net, feed))


@pytest.mark.parametrize("opset", [11, 18])
def test_a_reduction_to_a_number_keeps_its_axes(opset: int) -> None:
    net = parse(
        """g (float[2, 3] x) => (float y) { a = ReduceMax <keepdims = 0> (x) b = ReduceMin <keepdims = 0> (x)
        c = Sub (a, b) d = Div (x, c) y = ReduceMean <keepdims = 0> (d) }""",
        opset,
    )
    net.graph.output[0].type.tensor_type.shape.SetInParent()
    lowered = rl.lower(net, target="opencv")
    kept = [node.op_type for node in nodes(lowered)]
    assert kept == ["ReduceMax", "Squeeze", "ReduceMin", "Squeeze", "Sub", "Div", "ReduceMean"]
    feed = random_feed(net)
    assert_close(run(lowered, feed), run(net, feed))


WRITTEN = """m = ReduceMean <axes = [-1]> (x) d = Sub (x, m) q = Pow (d, two) v = ReduceMean <axes = [-1]> (q)
    e = Add (v, eps) s = Sqrt (e) o = Div (d, s) y = Mul (o, w)"""
NORMS = {
    "a layer": ("y = LayerNormalization <axis = 2> (x, w)", 17, ["ReduceMean", "Sub", "LayerNormalization"]),
    "layers": ("y = LayerNormalization <axis = -2> (x, of_two)", 17, ["ReduceMean", "Sub", "LayerNormalization"]),
    "written out": (WRITTEN, 13, ["ReduceMean", "Sub", "ReduceMean", "Sub", "Pow"]),
    "channels": (
        "y = InstanceNormalization (x, c, z)",
        17,
        ["ReduceMean", "Sub", "Unsqueeze", "InstanceNormalization"],
    ),
    "groups": (
        "y = GroupNormalization <num_groups = 2> (x, c, z)",
        21,
        ["Reshape", "ReduceMean", "Sub", "Reshape", "Unsqueeze", "GroupNormalization"],
    ),
}


@pytest.mark.parametrize("name", NORMS)
def test_norms_read_numbers_less_their_mean(name: str) -> None:
    text, opset, operators = NORMS[name]
    net = parse(
        f"""g (float[2, 4, 6] x) => (float[2, 4, 6] y) <float[6] w = {{1, 2, 3, 4, 5, 6}},
        float eps = {{1e-5}}, float[4, 6] of_two = {{}}, float[4] c = {{1, 2, 3, 4}}, float[4] z = {{0, 0, 0, 1}},
        float two = {{2}}> {{ {text} }}""",
        opset,
    )
    lowered = rl.lower(net, target="opencv")
    assert [node.op_type for node in nodes(lowered)][: len(operators)] == operators
    assert rl.lower(lowered, target="opencv").SerializeToString() == lowered.SerializeToString()
    feed = random_feed(net)
    assert_close(run(lowered, feed), run(net, feed))


REDUCED = {
    "a mean": ("ReduceMean <axes = [1, 2, 4], keepdims = 0> (x)", 2),
    "a mean that keeps axes": ("ReduceMean <axes = [0, -2, 1, 2]> (x)", 5),
    "all": ("ReduceMax <keepdims = 0> (x)", 0),
    "squares": ("ReduceSumSquare <axes = [1, 2, 3]> (x)", 5),
    "a sum": ("ReduceSum <keepdims = 0> (x, three)", 2),
}


@pytest.mark.parametrize("name", REDUCED)
def test_tensors_of_five_axes_are_reduced_along_two_at_a_time(name: str) -> None:
    text, rank = REDUCED[name]
    out = f"float[{', '.join('abcde'[:rank])}]" if rank else "float"
    net = parse(f"g (float[2, 3, 2, 4, 3] x) => ({out} y) <int64[3] three = {{1, 2, 3}}> {{ y = {text} }}")
    lowered = rl.lower(net, target="opencv")
    reductions = [node for node in nodes(lowered) if node.op_type.startswith("Reduce")]
    assert len(reductions) > 1
    assert rl.lower(lowered, target="opencv").SerializeToString() == lowered.SerializeToString()
    feed = random_feed(net)
    assert_close(run(lowered, feed), run(net, feed))


KERNELS = {
    "of one axis": ("2, 4, 20", "5, 4, 9", "pads = [4, 4]"),
    "strides": ("2, 4, 20", "5, 4, 9", "pads = [4, 3], strides = [4]"),
    "groups": ("2, 4, 20", "6, 2, 9", "group = 2"),
    "a row": ("1, 2, 3, 20", "3, 2, 1, 9", "pads = [0, 4, 0, 4]"),
    "a column": ("1, 2, 20, 3", "3, 2, 9, 1", 'auto_pad = "VALID"'),
}


@pytest.mark.parametrize("is_constant", [True, False])
@pytest.mark.parametrize("name", KERNELS)
def test_no_kernel_has_nine_numbers_in_a_row(name: str, is_constant: bool) -> None:
    """OpenCV takes them for three by three."""
    sizes, kernel, attributes = KERNELS[name]
    given, held = (f", float[{kernel}] w", "") if not is_constant else ("", f"<float[{kernel}] w = {{}}>")
    text = f"g (float[{sizes}] x{given}) => (float[a] y) {held} {{ y = Conv <{attributes}> (x, w) }}"
    net = parse(text, 17)
    net.graph.output[0].type.tensor_type.ClearField("shape")
    lowered = rl.lower(net, target="opencv")
    (node,) = (node for node in nodes(lowered) if node.op_type == "Conv")
    assert [max(a.ints) for a in node.attribute if a.name == "kernel_shape"] == [10]
    feed = random_feed(net)
    assert_close(run(lowered, feed, optimize=False), run(net, feed))


FINE = {
    "a square": ("1, 2, 9, 9", "3, 2, 3, 3", ""),
    "a dilated row": ("2, 4, 20", "5, 4, 9", "<dilations = [2]>"),
    "a box": ("1, 2, 9, 9, 9", "3, 2, 9, 1, 1", ""),
}


@pytest.mark.parametrize("name", FINE)
def test_other_kernels_stay(name: str) -> None:
    sizes, kernel, attributes = FINE[name]
    out = ", ".join("abcde"[: sizes.count(",") + 1])
    net = parse(
        f"g (float[{sizes}] x) => (float[{out}] y) <float[{kernel}] w = {{}}> {{ y = Conv {attributes} (x, w) }}",
        17,
    )
    assert rl.lower(net, target="opencv").graph.node == net.graph.node


DIVIDED = {
    "a Softmax": ("m = ReduceMax <axes = [1, 2]> (x) d = Sub (x, m) e = Exp (d) s = ReduceSum (e, two)", "e", True),
    "of all": ("e = Exp (x) s = ReduceSum (e)", "e", True),
    "a norm": ("s = ReduceL2 <axes = [1, 2]> (x)", "x", True),
    "along one axis": ("e = Exp (x) s = ReduceSum (e, one)", "e", False),
}


@pytest.mark.parametrize("name", DIVIDED)
def test_sums_along_several_axes_are_set_apart(name: str) -> None:
    text, divided, is_apart = DIVIDED[name]
    net = parse(
        f"""g (float[2, 3, 4] x) => (float[2, 3, 4] y) <int64[1] one = {{1}}, int64[2] two = {{1, 2}}>
        {{ {text} y = Div ({divided}, s) }}""",
        17,
    )
    lowered = rl.lower(net, target="opencv")
    assert ("Identity" in [node.op_type for node in nodes(lowered)]) == is_apart
    feed = random_feed(net)
    assert_close(run(lowered, feed), run(net, feed))


@pytest.mark.parametrize("operator", ["ReduceMin", "ReduceL1", "ReduceMean"])
def test_three_of_four_axes_are_reduced_in_parts(operator: str) -> None:
    text = f"y = {operator} <axes = [0, 1, 3], keepdims = 0> (x)"
    net = parse(f"g (float[4, 5, 3, 4] x) => (float[3] y) {{ {text} }}", 17)
    lowered = rl.lower(net, target="opencv")
    axes = [a.ints for node in nodes(lowered) for a in node.attribute if a.name == "axes"]
    assert max(map(len, axes)) <= 2
    feed = random_feed(net)
    assert_close(run(lowered, feed), run(net, feed))


def test_states_that_start_from_one_tensor_have_copies_of_it() -> None:
    """Keras starts both states of an LSTM so; OpenCV makes one state of them."""
    net = parse(
        """g (float[T, N, 3] x, float[1, N, 2] h) => (float[T, 1, N, 2] y)
        <float[1, 8, 3] W = {}, float[1, 8, 2] R = {}> { y = LSTM <hidden_size = 2> (x, W, R, , , h, h) }"""
    )
    lowered = rl.lower(net, target="opencv")
    (loop,) = (node for node in nodes(lowered) if node.op_type == "Loop")
    assert len(set(loop.input)) == len(loop.input)
    feed = random_feed(net, T=4, N=2)
    assert_close(run(lowered, feed), run(net, feed))


def test_sizes_are_joined_without_empty_ones() -> None:
    net = parse(
        """g (float[N, 4] x) => (float[N, a, b] y) <int64[1] zero = {0}, int64[2] sizes = {2, 2}>
        { all = Shape (x) n = Gather (all, zero) to = Concat <axis = 0> (n, sizes) y = Reshape (x, to) }"""
    )
    net.graph.initializer.append(numpy_helper.from_array(np.zeros(0, np.int64), "none"))
    next(node for node in net.graph.node if node.op_type == "Concat").input.append("none")
    lowered = rl.lower(net, target="opencv")
    assert [len(node.input) for node in nodes(lowered) if node.op_type == "Concat"] == [2]
    feed = random_feed(net, N=3)
    assert_close(run(lowered, feed), run(net, feed))


def test_a_gelu_of_an_erf_is_a_difference() -> None:
    """OpenCV 5 crashes at the order of its products that PyTorch's newer exporter writes."""
    net = parse(
        """g (float[N, 8] x) => (float[N, 8] y) <float s = {1.4142135}, float one = {1.0}, float half = {0.5}>
        { d = Div (x, s) e = Erf (d) a = Add (e, one) m = Mul (half, a) y = Mul (x, m) }"""
    )
    lowered = rl.lower(net, target="opencv")
    assert [node.op_type for node in nodes(lowered)] == ["Div", "Erf", "Sub", "Mul", "Mul"]
    feed = random_feed(net, N=3)
    assert_close(run(lowered, feed), run(net, feed))


def test_a_hard_sigmoid_is_written_without_its_default() -> None:
    """With it OpenCV makes a HardSwish of a product with any other tensor, without an error."""
    net = parse(
        """g (float[T, 1, 3] x, float[T, 1, 1, 2] z) => (float[T, 1, 1, 2] y)
        <float[1, 8, 3] W = {}, float[1, 8, 2] R = {}> { h = LSTM <hidden_size = 2, activation_alpha = [0.16666667],
        activation_beta = [0.5], activations = ["HardSigmoid", "Tanh", "Tanh"]> (x, W, R)
        g = HardSigmoid <alpha = 0.16666667, beta = 0.5> (h) y = Mul (z, g) }"""
    )
    lowered = rl.lower(net, target="opencv", dims={"T": 3})
    found = [node for node in nodes(lowered) if node.op_type == "HardSigmoid"]
    assert found
    assert all({a.name for a in node.attribute} <= {"alpha"} for node in found)
    feed = random_feed(net, T=3)
    assert_close(run(lowered, feed), run(net, feed))
