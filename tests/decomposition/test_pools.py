"""Pools along three axes are written as two where a runtime has none."""

from typing import Any

import pytest
from running import assert_close, nodes, run
from texts import parse, random_feed

import rnn_lowering as rl

POOLS = {
    "a mean": "AveragePool <kernel_shape = [2, 3, 2], strides = [2, 1, 2]>",
    "no pads": "AveragePool <kernel_shape = [3, 2, 3], pads = [1, 0, 1, 2, 1, 1], strides = [2, 1, 1]>",
    "with pads": "AveragePool <kernel_shape = [3, 3, 3], pads = [1, 1, 1, 1, 1, 1], count_include_pad = 1>",
    "the largest": "MaxPool <kernel_shape = [2, 3, 3], pads = [1, 0, 1, 0, 1, 1], strides = [1, 2, 1]>",
    "along channels": "AveragePool <kernel_shape = [3, 1, 1], pads = [1, 0, 0, 1, 0, 0]>",
}


@pytest.mark.parametrize("name", POOLS)
def test_a_pool_of_volumes_is_two_of_planes(name: str) -> None:
    net = parse(f"g (float[N, 3, 5, 4, 6] x) => (float[N, b, c, d, e] y) {{ y = {POOLS[name]} (x) }}", 17)
    lowered = rl.lower(net, target="mnn")
    kernels = [
        list(attribute.ints)
        for node in nodes(lowered)
        for attribute in node.attribute
        if attribute.name == "kernel_shape"
    ]
    assert [len(kernel) for kernel in kernels] == [2, 2]
    feed = random_feed(net, N=2)
    assert_close(run(lowered, feed), run(net, feed))


@pytest.mark.parametrize("attribute", ["ceil_mode = 1", 'auto_pad = "SAME_UPPER"'])
def test_one_whose_edges_are_rounded_is_refused(attribute: str) -> None:
    pool = f"MaxPool <kernel_shape = [2, 3, 3], strides = [2, 2, 2], {attribute}>"
    net = parse(f"g (float[2, 3, 5, 4, 6] x) => (float[a, b, c, d, e] y) {{ y = {pool} (x) }}", 17)
    with pytest.raises(rl.UnsupportedError, match=r"MaxPool node .*computes it wrongly along three axes"):
        rl.lower(net, target="mnn")


@pytest.mark.parametrize("padded", ["", ', auto_pad = "NOTSET", pads = [0, 0]'])
def test_pads_are_not_counted_where_there_are_none(padded: str) -> None:
    """OpenCV counts what is beyond them where it rounds up; with pads it is refused."""
    pool = f"AveragePool <kernel_shape = [3], strides = [2], ceil_mode = 1, count_include_pad = 1{padded}>"
    net = parse(f"g (float[N, 2, 8] x) => (float[N, 2, a] y) {{ y = {pool} (x) }}", 19)
    lowered = rl.lower(net, target="opencv")
    assert not any(a.name == "count_include_pad" for node in nodes(lowered) for a in node.attribute)
    feed = random_feed(net, N=2)
    assert_close(run(lowered, feed), run(net, feed))


BEHIND = {
    "a maximum": "MaxPool <kernel_shape = [{}2], strides = [{}3], ceil_mode = 1>",
    "a mean": "AveragePool <kernel_shape = [{}1], strides = [{}3], ceil_mode = 1>",
}


@pytest.mark.parametrize("name", BEHIND)
@pytest.mark.parametrize("target", ["mnn", "opencv", "openvino"])
def test_no_window_begins_behind_the_input(target: Any, name: str) -> None:
    """ONNX leaves it out; each of these runtimes has one more."""
    pool = BEHIND[name].format("", "")
    net = parse(f"g (float[1, 2, 6] x) => (float[1, 2, a] y) {{ y = {pool} (x) }}", 19)
    lowered = rl.lower(net, target=target)
    assert not [a for node in nodes(lowered) for a in node.attribute if a.name == "ceil_mode"]
    feed = random_feed(net)
    assert_close(run(lowered, feed), run(net, feed))


@pytest.mark.parametrize(("sizes", "first"), [("T", ""), ("7, 6", "2, ")])
@pytest.mark.parametrize("target", ["mnn", "opencv", "openvino"])
def test_a_window_that_may_begin_behind_is_refused(target: Any, sizes: str, first: str) -> None:
    """One that begins before the end is needed along another axis, or the size is open."""
    pool, out = BEHIND["a maximum"].format(first, first), "a, b" if first else "a"
    net = parse(f"g (float[1, 2, {sizes}] x) => (float[1, 2, {out}] y) {{ y = {pool} (x) }}", 19)
    with pytest.raises(rl.UnsupportedError, match=r"computes it with a window behind the input"):
        rl.lower(net, target=target)
