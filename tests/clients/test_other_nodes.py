"""What takes the place of other nodes that a runtime rejects or misreads is right there."""

from pathlib import Path

import numpy as np
import pytest
from nets_for_ncnn import nets_for_ncnn
from running import run
from texts import parse, random_feed

import rnn_lowering as rl
from clients.driving import assert_right


@pytest.mark.environments("ncnn")
def test_what_pnnx_cannot_convert(tmp_path: Path) -> None:
    nets = nets_for_ncnn()
    jobs = {name: (rl.lower(net, target="ncnn"), feed) for name, (net, feed) in nets.items()}
    assert_right("ncnn", jobs, {name: run(*net) for name, net in nets.items()}, tmp_path)


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


@pytest.mark.environments("opencv")
def test_nodes_of_three_axes_in_opencv(tmp_path: Path) -> None:
    """Behind a Conv it runs norms in rank 4 only; a linear Resize of a height of 1 reads other memory."""
    nets = {name: parse(NET.format(nodes)) for name, nodes in BEHIND_A_CONV.items()}
    feeds = {name: random_feed(net) for name, net in nets.items()}
    jobs = {name: (rl.lower(net, target="opencv"), feeds[name]) for name, net in nets.items()}
    assert_right("opencv", jobs, {name: run(net, feeds[name]) for name, net in nets.items()}, tmp_path)


@pytest.mark.environments("litert")
def test_names_with_a_colon_in_litert(tmp_path: Path) -> None:
    """Keras has the output "Identity:0"."""
    net = parse("g (float[2, 5] x) => (float[2, 5] y) { y = Tanh (x) }")
    net.graph.input[0].name = net.graph.node[0].input[0] = "in:0"
    net.graph.output[0].name = net.graph.node[0].output[0] = "Identity:0"
    feed = {"in:0": np.ones((2, 5), np.float32)}
    assert_right("litert", {"names": (net, feed)}, {"names": run(net, feed)}, tmp_path)
