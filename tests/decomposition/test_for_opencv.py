"""Pads that keep a size, and products that are broadcast, are written for OpenCV as it computes them right."""

import numpy as np
import pytest
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
        with pytest.raises(rl.UnsupportedError, match=r"Conv node .*pads both sides alike.*; fix the sizes"):
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
