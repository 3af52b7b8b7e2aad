"""Outputs of a recurrent node that are outputs of the model and that its other nodes read too.

MNN and onnx2tf, the converter of LiteRT, fuse an activation with what it reads; pnnx, that of ncnn, aborts at
an Identity of an output, onnx2tf, RKNN and ezkl lose or reject it.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cases import Case
from onnx import helper
from oracle import GATES
from running import run

import rnn_lowering as rl
from clients.driving import Job, assert_right
from clients.trials import original

READERS = ("Relu", "Tanh", "Neg", "Identity")
TRIALS = [
    ("mnn", "unroll"),
    ("mnn", "loop"),
    ("ncnn", "unroll"),
    ("tract", "scan"),
    ("opencv", "unroll"),
    ("litert", "unroll"),
    ("ezkl", "unroll"),
    ("rknn", "unroll"),
    ("webnn", "unroll"),
]


def models() -> Iterator[tuple[str, Job]]:
    """A node, one of its outputs, and a node that reads it."""
    for op in GATES:
        for output in ("Y", "Y_h", "Y_c")[: 3 if op == "LSTM" else 2]:
            for reader in READERS:
                model, feed = original(Case("read", op, T=3, N=2, I=3, outputs=(output,)))
                (given,) = model.graph.output
                shape = [dim.dim_value for dim in given.type.tensor_type.shape.dim]
                model.graph.node.append(helper.make_node(reader, [output], ["read"]))
                model.graph.output.append(helper.make_tensor_value_info("read", 1, shape))
                yield f"{op} {output} {reader}", (model, feed)


@pytest.mark.parametrize(("client", "to"), TRIALS)
def test_outputs_that_nodes_read(client: Any, to: Any, tmp_path: Path) -> None:
    jobs = dict(models())
    lowered = {name: (rl.lower(model, target=client, to=to), feed) for name, (model, feed) in jobs.items()}
    assert_right(client, lowered, {name: run(*job) for name, job in jobs.items()}, tmp_path)
