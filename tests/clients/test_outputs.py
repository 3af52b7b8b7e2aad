"""Outputs of a recurrent node that are outputs of the model and that its other nodes read too.

MNN and onnx2tf, the converter of LiteRT, fuse an activation with what it reads; pnnx, that of ncnn, aborts at
an Identity of an output, onnx2tf, RKNN and ezkl lose or reject it.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import Case
from onnx import helper
from oracle import GATES
from running import run
from texts import parse

import rnn_lowering as rl
from clients.driving import Job, assert_lowered_right, assert_right
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
    assert_lowered_right(client, dict(models()), tmp_path, to=to)


EMBEDDED = """
    embedded (KIND[4, 1] ids) => (float[4, 1, 1, 4] Y)
    <float[30, 3] E = {}, float[1, 16, 3] W = {}, float[1, 16, 4] R = {}> {
        x = Gather <axis = 0> (E, ids)
        Y = LSTM <hidden_size = 4> (x, W, R)
    }
"""


def test_rows_of_a_table_in_ncnn(tmp_path: Path) -> None:
    """pnnx looks up rows by uninitialized integers, and crashed at int32 in each run."""
    originals = {kind: parse(EMBEDDED.replace("KIND", kind), 15) for kind in ("int32", "int64")}
    feeds = {kind: {"ids": np.array([[3], [29], [0], [7]], kind)} for kind in originals}
    expected = {kind: run(original, feeds[kind]) for kind, original in originals.items()}
    jobs = {kind: (rl.lower(original, target="ncnn"), feeds[kind]) for kind, original in originals.items()}
    assert_right("ncnn", jobs, expected, tmp_path)
