"""Convolutions of volumes and dilated pools are written by windows that are gathered, where a runtime has none."""

from typing import Any

import numpy as np
import onnx
import pytest
from running import assert_close, nodes, operators, run
from texts import parse, random_feed

import rnn_lowering as rl

CONVOLUTIONS = {
    "plain": "",
    "pads": "<pads = [1, 1, 0, 2, 1, 1]>",
    "strides": "<pads = [1, 0, 0, 0, 0, 0], strides = [2, 1, 2]>",
    "dilations": "<dilations = [2, 1, 1], pads = [2, 1, 1, 2, 1, 1]>",
}
POOLS = {
    "of one axis": ("5", "kernel_shape = [3], dilations = [2]"),
    "with pads": ("6, 5", "kernel_shape = [3, 2], dilations = [2, 2], pads = [2, 1, 1, 1]"),
    "with strides": ("9, 7", "kernel_shape = [2, 3], dilations = [3, 1], strides = [2, 2]"),
    "rounded up": ("8, 9", "kernel_shape = [2, 2], dilations = [2, 3], strides = [2, 3], ceil_mode = 1"),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.parametrize("bias", ["", ", b"])
def test_a_convolution_of_volumes_is_one_of_planes(name: str, bias: str) -> None:
    net = parse(
        f"""g (float[N, 2, 5, 6, 7] x) => (float[N, a, c, d, e] y)
        <float[3, 2, 2, 3, 3] w = {{}}, float[3] b = {{}}>
        {{ y = Conv {CONVOLUTIONS[name]} (x, w{bias}) }}""",
        17,
    )
    lowered = rl.lower(net, target="mnn")
    (node,) = (node for node in nodes(lowered) if node.op_type == "Conv")
    assert [len(a.ints) for a in node.attribute if a.name == "kernel_shape"] == [2]
    onnx.checker.check_model(lowered, full_check=True)
    feed = random_feed(net, N=2)
    assert_close(run(lowered, feed), run(net, feed))


@pytest.mark.parametrize("name", POOLS)
def test_a_dilated_pool_is_made_of_maxima(name: str) -> None:
    sizes, attributes = POOLS[name]
    out = ", ".join("abc"[: sizes.count(",") + 1])
    net = parse(f"g (float[N, 2, {sizes}] x) => (float[N, 2, {out}] y) {{ y = MaxPool <{attributes}> (x) }}", 17)
    lowered = rl.lower(net, target="mnn")
    assert "MaxPool" not in operators(lowered)
    feed = random_feed(net, N=2)
    assert np.array_equal(run(lowered, feed)["y"], run(net, feed)["y"])


REFUSED = {
    "groups": "float[2, 2, 5, 6, 7] x) => (float[2, 2, c, d, e] y) <float[2, 1, 2, 3, 3] w = {}>"
    " { y = Conv <group = 2> (x, w) }",
    "an open depth": "float[2, 2, T, 6, 7] x) => (float[2, 3, c, d, e] y) <float[3, 2, 2, 3, 3] w = {}>"
    " { y = Conv (x, w) }",
    "an open length": "float[2, 2, T] x) => (float[2, 2, a] y)"
    " { y = MaxPool <kernel_shape = [3], dilations = [2]> (x) }",
}


@pytest.mark.parametrize("name", REFUSED)
def test_others_are_refused(name: str) -> None:
    with pytest.raises(rl.UnsupportedError, match=r"mnn .* computes it w.*export the model without it"):
        rl.lower(parse(f"g ({REFUSED[name]}", 17), target="mnn")


@pytest.mark.parametrize("target", ["tract", "opencv"])
def test_signals_of_two_axes_get_channels(target: Any) -> None:
    """PyTorch writes them, and onnxruntime takes them."""
    net = parse(
        "g (float[N, L] x) => (float[N, F, 5, 2] y) <float[8] w = {}, int64 s = {3}> { y = STFT (x, s, w) }"
    )
    lowered, report = rl.lower(net, target=target, full=True)
    assert f"{target} takes signals of three axes: gave those of 1 STFT one of channels" in report.notes
    feed = random_feed(net, N=2, L=32)
    assert_close(run(lowered, feed), run(net, feed))
