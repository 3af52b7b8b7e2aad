"""What takes the place of nodes that pnnx cannot convert is right in ncnn."""

from pathlib import Path

import pytest
from nets_for_ncnn import nets_for_ncnn
from running import run

import rnn_lowering as rl
from clients.driving import assert_right

pytestmark = pytest.mark.environments("ncnn")


def test_other_nodes_are_right_in_ncnn(tmp_path: Path) -> None:
    nets = nets_for_ncnn()
    jobs = {name: (rl.lower(net, target="ncnn"), feed) for name, (net, feed) in nets.items()}
    assert_right("ncnn", jobs, {name: run(*net) for name, net in nets.items()}, tmp_path)
