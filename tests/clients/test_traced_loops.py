"""Loops over cells that PyTorch's exporters traced step by step: they become nodes, and two exports open their
length. What is no cell stays. The truth is what PyTorch computes."""

from pathlib import Path
from typing import Any

import onnx
import pytest
from raised import cells
from running import assert_close, run

import rnn_lowering as rl
from clients.driving import PACKAGES, Job, assert_right, run_python
from clients.environments import HERE, environment
from clients.runs import present
from clients.test_exporters_of_loops import Models, named, runs_of

RUNTIMES: tuple[Any, ...] = ("tract", "openvino")
NODES = {"layers": 3, "bidirectional": 4}
"""How many nodes a net has; the others have one."""

MOST_OTHERS = 24


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    folder = tmp_path_factory.mktemp("traced")
    own = environment("pytorch").glob("lib/python*/site-packages")
    run_python("pytorch", HERE / "exporters" / "traced_loops_of_torch.py", folder, lent=[*own, *PACKAGES])
    assert not [path.read_text() for path in folder.glob("*.error")]
    return {path.stem: (onnx.load(path), runs_of(path)) for path in folder.glob("*.onnx")}


def nets(models: Models) -> dict[str, tuple[Any, Any]]:
    """By net and exporter, its exports at both lengths."""
    both = sorted({name.rpartition(".")[0] for name in models})
    return {name: (models[f"{name}.11"], models[f"{name}.24"]) for name in both if not name.startswith("trap_")}


@pytest.mark.environments("pytorch")
def test_traced_loops_become_nodes(models: Models) -> None:
    assert len(models) == 44
    for name, (model, runs) in models.items():
        new = rl.lower(model, raise_loops=True)
        if not name.startswith("trap_"):
            assert len(cells(new)) == NODES.get(name.split(".")[0], 1), name
            assert len(new.graph.node) < MOST_OTHERS, name
        elif "decoder" in name:
            assert new == model, name
        for feed, outputs in runs:
            assert_close(run(new, feed), named(model, outputs), "float32", name)


@pytest.mark.environments("pytorch")
def test_two_exports_open_the_length(models: Models, tmp_path: Path) -> None:
    """In onnxruntime at both lengths, and in the runtimes that are installed at a third one."""
    opened = {
        name: rl.lower(short, raise_loops=True, open_dims={"x:1": "time"}, also=[long])
        for name, ((short, _), (long, _)) in nets(models).items()
    }
    for name, each in nets(models).items():
        for _, runs in each:
            for feed, outputs in runs:
                assert_close(run(opened[name], feed), named(opened[name], outputs), "float32", name)
    client: Any
    for client in present(RUNTIMES):
        jobs: dict[str, Job] = {}
        wanted = {}
        for name, (_, (_, runs)) in nets(models).items():
            feed, outputs = runs[0]
            jobs[name] = rl.lower(opened[name], target=client, dims={"time": feed["x"].shape[1]}), feed
            wanted[name] = named(opened[name], outputs)
        assert_right(client, jobs, wanted, tmp_path / client)
