"""Nodes that share a loop, or unrolled steps, in the runtimes whose targets join them, and in the portable form."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from running import run

import rnn_lowering as rl
from benchmarks.models import Row, several
from clients.driving import Job, assert_right

FORMS = {
    "tract": ("scan", "unroll"),
    "openvino": ("scan", "loop", "unroll"),
    "iree": ("scan",),
    "mnn": ("loop", "unroll"),
    "opencv": ("loop", "unroll"),
    "onnxruntime-web": ("scan", "loop"),
}
PORTABLE = ("tract", "openvino", "onnxruntime-web")
T, N = 5, 2


def models() -> dict[str, onnx.ModelProto]:
    found = {
        "3 layers of GRU": several("GRU", (4, 3, 5), T, N, stacked=True),
        "2 layers of LSTM": several("LSTM", (4, 3), T, N, stacked=True),
        "GRU side by side": several("GRU", (4, 3), T, N, stacked=False),
        "GRU both ways": Row("GRU", "bidirectional", T, N, 3, 4).model(17),
        "LSTM both ways": Row("LSTM", "bidirectional", T, N, 3, 4).model(17),
    }
    return {name: onnx.shape_inference.infer_shapes(model) for name, model in found.items()}


@pytest.mark.parametrize("client", FORMS)
def test_joined_nodes_compute_what_they_did(client: str, tmp_path: Path) -> None:
    jobs: dict[str, Job] = {}
    expected = {}
    for name, model in models().items():
        shape = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim]
        feed = {"X": np.random.default_rng(0).standard_normal(shape).astype(np.float32)}
        form: Any
        for form in FORMS[client]:
            target: Any
            for target in (client, "portable") if client in PORTABLE and form != "unroll" else (client,):
                key, lowered = f"{name}, {form}, {target}", rl.lower(model, form, target=target)
                if "GRU" in name:  # OpenVINO makes its own kernels of an LSTM
                    assert lowered != rl.lower(model, form, target=target, join=False), key
                jobs[key], expected[key] = (lowered, feed), run(model, feed)
    assert_right(client, jobs, expected, tmp_path)
