"""What MNN computes wrongly in many axes, of repeated operands and of columns is written in another way."""

import numpy as np
import onnx
import pytest
from running import assert_close, nodes, operators, run
from texts import parse, random_feed

import rnn_lowering as rl

FLIPS = {
    "one axis": ("-1", "-9223372036854775807", "2", "-1"),
    "two axes": ("-1, 3", "-9223372036854775807, 0", "0, 3", "-1, -2"),
    "a cut beside": ("1, -1", "3, -9223372036854775807", "3, 1", "1, -1"),
}


@pytest.mark.parametrize("name", FLIPS)
def test_a_flip_of_many_axes_is_one_of_three(name: str) -> None:
    starts, ends, axes, steps = FLIPS[name]
    n = starts.count(",") + 1
    held = ", ".join(
        f"int64[{n}] {k} = {{{v}}}" for k, v in (("s", starts), ("e", ends), ("a", axes), ("p", steps))
    )
    net = parse(f"g (float[2, 3, 4, 5] x) => (float[b, c, d, f] y) <{held}> {{ y = Slice (x, s, e, a, p) }}", 17)
    lowered = rl.lower(net, target="mnn")
    inferred = onnx.shape_inference.infer_shapes(lowered).graph
    ranks = {v.name: len(v.type.tensor_type.shape.dim) for v in (*inferred.value_info, *inferred.input)}
    assert {ranks[node.input[0]] for node in nodes(lowered) if node.op_type == "Slice"} == {3}
    feed = random_feed(net)
    assert np.array_equal(run(lowered, feed)["y"], run(net, feed)["y"])


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect"])
def test_the_first_of_many_axes_is_padded_in_two(mode: str) -> None:
    net = parse(
        f"""g (float[3, 2, 4, 5] x) => (float[b, c, d, f] y)
        <int64[8] p = {{1, 0, 2, 0, 2, 0, 0, 1}}, float n = {{1.5}}>
        {{ y = Pad <mode = "{mode}"> (x, p{", n" * (mode == "constant")}) }}""",
        17,
    )
    lowered = rl.lower(net, target="mnn")
    assert [node.op_type for node in nodes(lowered)] == ["Reshape", "Pad", "Reshape", "Pad"]
    feed = random_feed(net)
    assert np.array_equal(run(lowered, feed)["y"], run(net, feed)["y"])


@pytest.mark.parametrize("text", ["y = Slice (x, s, e, a, p)", "y = Pad (x, q)"])
def test_two_open_axes_of_many_are_refused(text: str) -> None:
    held = (
        "int64[1] s = {-1}, int64[1] e = {-9}, int64[1] a = {1}, int64[1] p = {-1}, int64[8] q = {1,0,0,0,0,0,0,0}"
    )
    net = parse(f"g (float[N, 3, T, 5] x) => (float[b, c, d, f] y) <{held}> {{ {text} }}", 17)
    with pytest.raises(
        rl.UnsupportedError,
        match=r"mnn .* computes it wrongly .* many axes; try fixed sizes .dims={\"N\": \?, \"T\": \?}.*, export",
    ):
        rl.lower(net, target="mnn")
    lowered = rl.lower(net, target="mnn", dims={"T": 4})
    feed = random_feed(net, N=2, T=4)
    assert_close(run(lowered, feed), run(net, feed))


@pytest.mark.parametrize("bounds", [(-2, -9999, -2), (-2, -9999, -1), (5, -9999, -1), (0, 2, 1), (-1, 0, -1)])
def test_a_slice_takes_so_many_rows(bounds: tuple[int, int, int]) -> None:
    start, end, step = bounds
    held = f"int64[2] s = {{{start}, -1}}, int64[2] e = {{{end}, -9}}, int64[2] p = {{{step}, -1}}"
    for size in (1, 2, 4):
        net = parse(
            f"""g (float[N, 3, {size}, 5] x) => (float[b, c, d, f] y) <{held}, int64[2] a = {{2, 3}}> {{
            t = Tanh (x) y = Slice (t, s, e, a, p) }}""",
            17,
        )
        feed = random_feed(net, N=2)
        expected = run(net, feed)
        if expected["y"].size:
            assert_close(run(rl.lower(net, target="mnn"), feed), expected)


PRODUCTS = {
    "a column": "y = Gemm <transB = 1> (x, w, c)",
    "a column behind": "m = MatMul (x, v) y = Add (m, c)",
    "transposed": "t = Transpose <perm = [1, 0]> (x) y = Gemm <transA = 1> (t, v, b)",
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_are_transposed_and_added_to_apart(name: str) -> None:
    held = "float[3, 5] w = {}, float[5, 3] v = {}, float[3, 1] c = {}, float[3] b = {}"
    net = parse(f"g (float[3, 5] x) => (float[3, 3] y) <{held}> {{ {PRODUCTS[name]} }}", 17)
    lowered = rl.lower(net, target="mnn")
    assert operators(lowered) & {"Identity", "Transpose"}
    assert not [a for node in nodes(lowered) for a in node.attribute if a.name == "transA"]
    assert [len(node.input) for node in nodes(lowered) if node.op_type == "Gemm"] in (
        [],
        [2 + (name != "a column")],
    )
    feed = random_feed(net)
    assert_close(run(lowered, feed), run(net, feed))


@pytest.mark.parametrize("operator", ["Add", "Sub", "Max"])
@pytest.mark.parametrize(("terms", "changed"), [("k, c", True), ("c, k", False)])
def test_a_number_has_one_axis_where_it_is_the_first_operand(operator: str, terms: str, changed: bool) -> None:
    net = parse(
        f"""g (float[2, 4, 5, 5] x) => (float[2, 4, 5, 5] y)
        <float[4, 4, 3, 3] w = {{}}, float[1, 1, 1, 1] k = {{3}}> {{
            c = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x, w) y = {operator} ({terms})
        }}""",
        17,
    )
    lowered = rl.lower(net, target="mnn")
    assert (lowered == net) == (not changed)
    (node,) = (node for node in nodes(lowered) if node.op_type == operator)
    shapes = {tensor.name: list(tensor.dims) for tensor in lowered.graph.initializer}
    assert [shapes[name] for name in node.input if name in shapes] == [[1] if changed else [1, 1, 1, 1]]
    feed = random_feed(net)
    assert_close(run(lowered, feed), run(net, feed))


CHOICES = {
    "a row": ("float[2, 3, 4] x, bool[2, 3, 4] c, float[4] r", "Where (c, x, r)", True),
    "open": ("float[N, T, 4] x, bool[N, 1, 4] c, float[T, 1] r", "Where (c, r, x)", True),
    "a mask and a number": ("float[N, T, 4] x, bool[N, 1, 1] c", "Where (c, x, lowest)", False),
}


@pytest.mark.parametrize("name", CHOICES)
def test_a_choice_is_of_tensors_of_one_shape(name: str) -> None:
    inputs, text, expands = CHOICES[name]
    net = parse(f"g ({inputs}) => (float[a, b, d] y) <float lowest = {{-1000}}> {{ y = {text} }}", 17)
    lowered = rl.lower(net, target="mnn")
    assert ("Expand" in operators(lowered)) == expands
    feed = random_feed(net, N=2, T=3) | {"c": np.random.default_rng(0).random((2, 3, 4)) > 0.5}
    feed["c"] = feed["c"][:, : 3 if name == "a row" else 1, : 1 if "number" in name else 4]
    assert_close(run(lowered, feed), run(net, feed))


GROUPS = {
    "two channels each": ("T", 8, 4, 8, "", True),
    "several outputs of a channel": ("T", 4, 4, 8, "", True),
    "strides and dilations": ("T", 6, 3, 6, ", strides = [2], dilations = [2], kernel_shape = [3]", True),
    "pads that keep a size": ("T", 8, 4, 8, ', auto_pad = "SAME_UPPER"', True),
    "a channel each": ("T", 8, 8, 8, "", False),
    "no groups": ("T", 8, 1, 8, "", False),
    "a known size": ("9", 8, 4, 8, "", False),
}


@pytest.mark.parametrize("name", GROUPS)
def test_groups_along_an_open_axis_are_those_of_planes(name: str) -> None:
    size, channels, groups, outputs, more, is_changed = GROUPS[name]
    pads = "" if "auto_pad" in more else ", pads = [1, 2]"
    net = parse(
        f"""g (float[N, {channels}, {size}] x) => (float[N, {outputs}, d] y)
        <float[{outputs}, {channels // groups}, 3] w = {{}}, float[{outputs}] b = {{}}> {{
        t = Tanh (x) c = Conv <group = {groups}{pads}{more}> (t, w, b) y = Tanh (c) }}""",
        17,
    )
    lowered = rl.lower(net, target="mnn")
    assert ("Unsqueeze" in operators(lowered)) == is_changed
    feed = random_feed(net, N=2, T=9)
    assert_close(run(lowered, feed), run(net, feed))
