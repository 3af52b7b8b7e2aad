"""Parts of nets that a runtime rejects or computes wrongly are written otherwise, with the same numbers."""

from typing import Any

import onnx
import pytest
from nets_of_parts import NETS
from running import assert_close, nodes, operators, run
from texts import parse, random_feed

import rnn_lowering as rl

CASES = [(target, name) for target, nets in NETS.items() for name in nets]


@pytest.mark.parametrize(("target", "name"), CASES)
def test_it_is_written_otherwise(target: Any, name: str) -> None:
    net = NETS[target][name]
    lowered, report = rl.lower(net, target=target, full=True)
    assert report.adapted or report.replaced
    feed = random_feed(net, N=5, T=3)
    assert_close(run(lowered, feed), run(net, feed))


def test_pads_that_crop_nothing_stay() -> None:
    net = parse("g (float[N, T] x) => (float[N, U] y) <int64[4] p = {0, 1, 0, 0}> { y = Pad (x, p) }")
    assert rl.lower(net, target="tract").graph == net.graph


def test_a_crop_of_some_axes() -> None:
    net = parse(
        """g (float[N, T, 4] x) => (float[N, U, 4] y) <int64[2] p = {-1, 2}, int64[1] a = {1}, float v = {5}> {
        y = Pad (x, p, v, a) }""",
        18,
    )
    lowered = rl.lower(net, target="tract")
    assert operators(lowered) == {"Slice", "Pad"}
    for size in (1, 5):
        feed = random_feed(net, N=2, T=size)
        assert_close(run(lowered, feed), run(net, feed))


def test_int32_is_clipped() -> None:
    net = parse("g (int32[3] x) => (int32[3] y) <int32 low = {2}> { y = Clip (x, low) }")
    assert operators(rl.lower(net, target="opencv")) == {"Clip"}


def test_a_clip_without_bounds_stays() -> None:
    net = parse("g (int64[3] x) => (int64[3] y) { y = Clip (x) }")
    assert operators(rl.lower(net, target="opencv")) == {"Clip"}


def test_outputs_that_no_node_reads_stay() -> None:
    net = parse("g (float[2, 3] x) => (float[2, 3] y, float[2, 3] z) { y = Tanh (x) z = Relu (x) }")
    lowered: onnx.ModelProto = rl.lower(net, target="mnn")
    assert "Transpose" not in {node.op_type for node in nodes(lowered)}
