"""What takes the place of other nodes that a runtime rejects or misreads is right there."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nets_for_mnn import OF_ONE_AXIS, of_one_axis
from nets_for_ncnn import nets_for_ncnn
from nets_of_parts import NETS
from running import run
from texts import parse

from clients.driving import assert_lowered_right, assert_right, with_feeds


@pytest.mark.environments("ncnn")
def test_what_pnnx_cannot_convert(tmp_path: Path) -> None:
    assert_lowered_right("ncnn", nets_for_ncnn(), tmp_path)


@pytest.mark.parametrize("client", NETS)
def test_parts_of_nets(client: Any, tmp_path: Path) -> None:
    assert_lowered_right(client, with_feeds(NETS[client]), tmp_path)


NET = """g (float[2, 3, 6] x) => (float[a, b, c] y) <float[4, 3, 2] k = {{}}, float[4] w = {{}}, float[4] b = {{}},
    float[2] ones = {{1, 1}}, float[2] zeros = {{0, 0}}, int64[3] groups = {{0, 2, -1}},
    int64[3] whole = {{2, 4, 5}},
    float[3] s = {{1, 1, 2}}> {{ t = Conv (x, k) {} }}"""

BEHIND_A_CONV = {
    "InstanceNormalization": "y = InstanceNormalization (t, w, b)",
    "a norm of groups": "g = Reshape (t, groups) n = InstanceNormalization (g, ones, zeros) y = Reshape (n, whole)",
    "a linear Resize": 'r = Tanh (t) y = Resize <mode = "linear"> (r, , s)',
    "a Resize of the nearest": 'r = Tanh (t) y = Resize <mode = "nearest"> (r, , s)',
}


@pytest.mark.environments("mnn")
def test_nodes_along_one_axis_in_mnn(tmp_path: Path) -> None:
    nets = {name: of_one_axis(nodes) for name, nodes in OF_ONE_AXIS.items()}
    assert_lowered_right("mnn", with_feeds(nets), tmp_path)


BYTES = """g (float[4, 6] x, float[4, 6] w) => ({}[a, b] y) {{
    b = Less (x, w) u = Cast <to = 2> (b) t = {} y = Cast <to = {}> (t) }}"""


@pytest.mark.environments("mnn")
def test_bytes_in_mnn(tmp_path: Path) -> None:
    """It moves and converts what is made uint8; PyTorch's exporter writes masks so."""
    moves = {"kept": "Identity (u)", "joined": "Concat <axis = 1> (u, u)"}
    types = {"float": 1, "int32": 6}
    nets = {f"{m} {t}": parse(BYTES.format(t, moves[m], types[t]), 17) for m in moves for t in types}
    assert_lowered_right("mnn", with_feeds(nets), tmp_path)


@pytest.mark.environments("opencv")
def test_nodes_of_three_axes_in_opencv(tmp_path: Path) -> None:
    """Behind a Conv it runs norms in rank 4 only; a linear Resize of a height of 1 reads other memory."""
    nets = {name: parse(NET.format(nodes)) for name, nodes in BEHIND_A_CONV.items()}
    assert_lowered_right("opencv", with_feeds(nets), tmp_path)


MASKS = {
    "chosen": "m = And (b, c) y = Where (m, x, z)",
    "not chosen": "m = Not (b) y = Where (m, z, x)",
    "counted": "i = Cast <to = 7> (b) s = ReduceSum (i) f = Cast <to = 1> (s) y = Mul (x, f)",
}


@pytest.mark.parametrize("client", ["tract", "openvino", "opencv", "mnn"])
def test_masks_that_are_inputs(client: Any, tmp_path: Path) -> None:
    """MNN takes booleans as integers."""
    head = "g (float[4, 3] x, bool[4, 3] b) => (float[4, 3] y) <float z = {0}>"
    random = np.random.default_rng(0)
    x, b = random.standard_normal((4, 3)).astype(np.float32), random.integers(0, 2, (4, 3)).astype(bool)
    nets = {name: parse(f"{head} {{ c = Greater (x, z) {net} }}", 17) for name, net in MASKS.items()}
    assert_lowered_right(client, {name: (net, {"x": x, "b": b}) for name, net in nets.items()}, tmp_path)


SUMS = {
    "one operand": '(float[4, 3] x) => (float y) { y = Einsum <equation = "ij->"> (x) }',
    "two operands": '(float[4, 3] x, float[3, 4] z) => (float y) { y = Einsum <equation = "ij,ji->"> (x, z) }',
    "two vectors": "(float[4] x, float[4] z) => (float y) { y = MatMul (x, z) }",
}


@pytest.mark.parametrize("client", ["tract", "openvino", "opencv", "mnn"])
def test_sums_along_all_axes(client: Any, tmp_path: Path) -> None:
    assert_lowered_right(client, with_feeds({name: parse(f"g {net}", 17) for name, net in SUMS.items()}), tmp_path)


ROUNDED = {
    f"{mode}, {places}, by {scale}": f"""g (float[1, 3, {size}] x) => (float[1, 3, n] y)
        <float[3] s = {{1, 1, {scale}}}> {{
        y = Resize <mode = "{mode}", coordinate_transformation_mode = "{places}"> (x, , s) }}"""
    for mode in ("linear", "nearest")
    for places in ("align_corners", "half_pixel", "asymmetric")
    for size, scale in ((7, 2.5), (9, 0.7), (33, 1.5))
}


@pytest.mark.parametrize("client", ["tract", "openvino", "opencv", "mnn"])
def test_sizes_that_are_rounded(client: Any, tmp_path: Path) -> None:
    assert_lowered_right(client, with_feeds({name: parse(net, 17) for name, net in ROUNDED.items()}), tmp_path)


PADDED = {
    f"{op} of {size} by {stride}, {pads}": (
        f"float[1, 4, 1, {size}]",
        f'y = {op} <auto_pad = "{pads}", strides = [1, {stride}], kernel_shape = [1, 3]> (x{k})',
    )
    for op, k in (("Conv", ", k"), ("MaxPool", ""), ("AveragePool", ""))
    for size, stride in ((8, 2), (9, 2), (9, 3))
    for pads in ("SAME_UPPER", "SAME_LOWER")
}
PRODUCTS = {
    "unlike batches": ("float[6, 2, 3, 4]", "y = MatMul (x, m)"),
    "batches of one": ("float[2, 1, 3, 4]", "n = Unsqueeze (m, first) y = MatMul (x, n)"),
    "five axes": ("float[2, 3, 2, 1, 4]", "y = MatMul (x, m)"),
    "a vector": ("float[2, 3, 4]", "y = MatMul (x, v)"),
    "a vector before": ("float[3, 4]", "t = Transpose (x) y = MatMul (v, t)"),
}


@pytest.mark.environments("opencv")
def test_unlike_sides_and_batches_in_opencv(tmp_path: Path) -> None:
    """It pads both sides alike, and takes the batches of the one operand for those of the other."""
    nets = {
        name: parse(
            f"g ({x} x) => (float[{', '.join('abcde'[: axes(name)])}] y) <float[4, 4, 1, 3] k = {{}}, "
            f"float[2, 4, 5] m = {{}}, float[4] v = {{}}, int64[1] first = {{0}}> {{ {nodes} }}"
        )
        for name, (x, nodes) in (PADDED | PRODUCTS).items()
    }
    assert_lowered_right("opencv", with_feeds(nets), tmp_path)


def axes(name: str) -> int:
    return {"five axes": 5, "a vector": 2, "a vector before": 1}.get(name, 4)


@pytest.mark.environments("litert")
def test_names_with_a_colon_in_litert(tmp_path: Path) -> None:
    """Keras has the output "Identity:0"."""
    net = parse("g (float[2, 5] x) => (float[2, 5] y) { y = Tanh (x) }")
    net.graph.input[0].name = net.graph.node[0].input[0] = "in:0"
    net.graph.output[0].name = net.graph.node[0].output[0] = "Identity:0"
    feed = {"in:0": np.ones((2, 5), np.float32)}
    assert_right("litert", {"names": (net, feed)}, {"names": run(net, feed)}, tmp_path)
