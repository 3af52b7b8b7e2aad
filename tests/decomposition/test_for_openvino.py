"""What OpenVINO computes wrongly around recurrent nodes is written in another way, with the same numbers."""

from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper
from running import assert_close, operators, run
from texts import parse, random_feed

import rnn_lowering as rl

ROTARY = """g (float[N, T, 4] x, float[T, 1] p) => (float[N, T, 4] y)
    <int64[1] a = {0}, int64[1] b = {2}, int64[1] c = {4}, int64[1] last = {2}> {
    l = Slice (x, a, b, last) r = Slice (x, b, c, last) n = Neg (r) t = Concat <axis = -1> (n, l)
    cos = Cos (p) sin = Sin (p) u = Mul (x, cos) v = Mul (t, sin) y = Add (u, v)
}"""


def test_a_rotary_embedding_has_signs() -> None:
    """OpenVINO has a kernel for it, which reads beyond tables of one column, and is 0.005 off with others."""
    net = parse(ROTARY, 17)
    lowered, report = rl.lower(net, target="openvino", full=True)
    assert report.notes == ["openvino computes rotary embeddings wrongly: multiplied 1 of them by signs"]
    assert "Neg" not in operators(lowered)
    feed = random_feed(net, N=2, T=5)
    assert_close(run(lowered, feed), run(net, feed))


@pytest.mark.parametrize("target", ["openvino", "tract"])
def test_computed_pads_that_wrap_are_refused(target: Any) -> None:
    net = parse('g (float[N, 4] x, int64[4] p) => (float[M, U] y) { y = Pad <mode = "wrap"> (x, p) }', 19)
    with pytest.raises(rl.UnsupportedError, match=r"Pad node .* computes it in other modes only"):
        rl.lower(net, target=target)


def test_a_loss_that_ignores_an_index_is_composed() -> None:
    text = 'y = NegativeLogLikelihoodLoss <ignore_index = -100, reduction = "mean"> (x, i)'
    net = parse(f"g (float[N, 4] x) => (float y) {{ i = ArgMax <axis = 1, keepdims = 0> (x) {text} }}", 17)
    lowered = rl.lower(net, target="openvino")
    assert "NegativeLogLikelihoodLoss" not in operators(lowered)
    feed = random_feed(net, N=3)
    assert_close(run(lowered, feed), run(net, feed))


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_a_far_end_of_a_slice_is_open(dtype: str) -> None:
    """OpenVINO takes it for a size, and rejects a Loop that would need so much memory."""
    net = parse(
        f"""g (float[T, 1, 3] x) => (float[U, 1, 1, 2] y)
        <float[1, 8, 3] W = {{}}, float[1, 8, 2] R = {{}}, {dtype}[1] start = {{1000000000}},
        {dtype}[1] end = {{-1000000000}}, {dtype}[1] axis = {{0}}, {dtype}[1] step = {{-1}}>
        {{ r = Slice (x, start, end, axis, step) y = LSTM <hidden_size = 2> (r, W, R) }}""",
        17,
    )
    lowered = rl.lower(net, target="openvino")
    held = {tensor.name: numpy_helper.to_array(tensor) for tensor in lowered.graph.initializer}
    first = next(node for node in lowered.graph.node if node.op_type == "Slice")
    limits = np.iinfo(dtype)
    assert [held[name].tolist() for name in first.input[1:3]] == [[limits.max], [limits.min]]
    feed = random_feed(net, T=5)
    assert_close(run(lowered, feed), run(net, feed))


def test_a_branch_that_follows_from_sizes_is_taken() -> None:
    """OpenVINO rejects branches of other ranks, as PyTorch writes a squeeze, where only a constant decides."""
    net = parse(
        """g (float[T, N, 3] x) => (float[T, a] y)
        <float[1, 6, 3] W = {}, float[1, 6, 2] R = {}, int64[1] zero = {0}, int64[1] one = {1},
        int64[1] rest = {-1}> { h = GRU <hidden_size = 2> (x, W, R) all = Shape (h) t = Gather (all, zero)
        to = Concat <axis = 0> (t, one, rest) r = Reshape (h, to) sizes = Shape (r) s = Gather (sizes, one)
        is = Equal (s, one) y = If <then_branch = then () => (float[T, a] p) { p = Squeeze (r, one) },
        else_branch = other () => (float[T, b, c] q) { q = Identity (r) }> (is) }"""
    )
    lowered = rl.lower(net, target="openvino")
    assert "If" not in operators(lowered)
    feed = random_feed(net, T=4, N=2)
    assert_close(run(lowered, feed), run(net, feed))
