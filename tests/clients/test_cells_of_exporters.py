"""Cells as exporters write them, in Loops and Scans: each becomes a node, and what is no cell stays. The truth is
what the exporting framework computes."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from raised import cells, loops
from running import assert_close, run

import rnn_lowering as rl
from clients.driving import PACKAGES, Job, assert_right, run_python
from clients.environments import HERE, environment
from clients.runs import present
from clients.test_exporters_of_loops import Models, named, runs_of

EXPORTERS = ("keras", "pytorch", "jax", "paddle", "onnxscript")
SCRIPTS = {"pytorch": "cells_of_torch.py"}
BESIDE = {"keras": ("tf-keras",)}
"""An exporter -> environments whose packages it needs too."""

RUNTIMES = ("tract", "openvino", "mnn")

STAYS = ("rnn_of_fori_loop",)
"""A Slice at a computed number, as JAX indexes in a fori_loop, is no row."""


def exported(exporter: str, folder: Path) -> Models:
    """The cells of an exporter."""
    names = [exporter, *BESIDE.get(exporter, ())]
    own = [path for name in names for path in environment(name).glob("lib/python*/site-packages")]
    script = HERE / "exporters" / SCRIPTS.get(exporter, f"cells_of_{exporter}.py")
    run_python(exporter, script, folder, lent=[*own, *PACKAGES], JAX_PLATFORMS="cpu")
    assert not [path.read_text() for path in folder.glob("*.error")]
    return {path.stem: (onnx.load(path), runs_of(path)) for path in folder.glob("*.onnx")}


@pytest.mark.parametrize(
    "exporter", [pytest.param(name, marks=pytest.mark.environments(*BESIDE.get(name, ()))) for name in EXPORTERS]
)
def test_cells_become_nodes(exporter: str, tmp_path: Path) -> None:
    """At every length; then in the runtimes that are installed, lowered for each."""
    models = exported(exporter, tmp_path)
    assert len(models) > 2
    raised = {name: rl.lower(model, raise_loops=True) for name, (model, _) in models.items()}
    for name, (model, runs) in models.items():
        new = raised[name]
        if name.startswith("trap_") or name in STAYS:
            assert new == model
            continue
        assert cells(new), name
        assert not loops(new), name
        if name.startswith("masked"):
            assert all(node.input[4] for node in new.graph.node if node.op_type in cells(new)), name
        for feed, outputs in runs:
            assert_close(run(new, feed), named(model, outputs), "float32", name)
    for client in present(RUNTIMES):
        check_client(client, {name: models[name] for name in models if not name.startswith("trap_")}, tmp_path)


def check_client(client: Any, models: Models, folder: Path) -> None:
    """Run models in a client, raised and lowered for the shapes of their inputs."""
    jobs: dict[str, Job] = {}
    wanted = {}
    for name, (model, runs) in models.items():
        feed, outputs = runs[-1]
        shapes = {key: array.shape for key, array in feed.items()}
        jobs[name] = rl.lower(model, target=client, raise_loops=True, input_shapes=shapes), feed
        wanted[name] = named(model, outputs)
    assert_right(client, jobs, wanted, folder / client)


@pytest.mark.environments("keras", "tf-keras")
def test_raised_nodes_of_keras_are_quantized(tmp_path: Path) -> None:
    """onnxruntime quantizes an LSTM node; it does not look into a Loop, and has no GRU of integers. Without
    VNNI its products of int8 saturate, unless weights have 7 bits."""
    from onnxruntime.quantization import quantize_dynamic

    models = exported("keras", tmp_path)
    for name, integers in (("lstm_hard", {"DynamicQuantizeLSTM"}), ("gru_dense", {"MatMulInteger"})):
        model, runs = models[name]
        onnx.save(rl.lower(model, raise_loops=True), tmp_path / "raised.onnx")
        quantize_dynamic(tmp_path / "raised.onnx", tmp_path / "quantized.onnx", reduce_range=True)
        quantized = onnx.load(tmp_path / "quantized.onnx")
        assert {node.op_type for node in quantized.graph.node} >= integers
        for feed, outputs in runs:
            for key, array in named(model, outputs).items():
                assert np.abs(run(quantized, feed)[key] - array).max() < 0.1
