"""Loops and Scans as today's exporters write them, each in an environment of its own, in every form and in runtimes
that run few of the originals. The truth is what the exporting framework computes."""

import json
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
import pytest
from cases import Array, Arrays
from loop_models import as_meant, operators
from running import assert_close, run

import rnn_lowering as rl
from clients.driving import PACKAGES, Job, drive, judge, run_python
from clients.environments import HERE, environment
from clients.runs import present

EXPORTERS = {
    "keras": "of_keras.py",
    "pytorch": "of_torch.py",
    "jax": "of_jax.py",
    "sklearn": "of_sklearn.py",
    "paddle": "of_paddle.py",
    "onnxscript": "of_onnxscript.py",
}
"""An environment -> what exports in it; onnxscript is in that of the tests."""

REFUSED = {
    ("keras/masked_gru", "scan"): "may change",  # with an open batch
    ("keras/masked_gru_of_5", "scan"): "may change",
    ("pytorch/script_data", "scan"): "depends on data",
    ("pytorch/script_data", "unroll"): "depends on data",
    ("pytorch/script_decoder", "scan"): "is a sequence",
    ("jax/while_of_data", "scan"): "depends on data",
    ("jax/while_of_data", "unroll"): "depends on data",
}
"""A model and a form that it cannot have -> what is said."""

OUTCOMES = json.loads((HERE / "outcomes_of_loops.json").read_text())
"""Of each model: which clients compute it as it is exported, and which reject its equivalent, and for what.
"refused: " and what is said, where it is not lowered for a client."""

RUNTIMES = ("tvm", "ncnn", "tract", "mnn", "opencv")
SCALARS = {"ncnn": "jax/scan"}
"""A client -> a model whose numbers it gets right, and not that an output has no axis."""

Runs: TypeAlias = list[tuple[Arrays, list[Any]]]
Models: TypeAlias = dict[str, tuple[onnx.ModelProto, Runs]]


def exported(exporter: str, folder: Path) -> Models:
    """The models of an exporter, and for each run the inputs and the outputs of its framework."""
    own = environment(exporter).glob("lib/python*/site-packages")
    run_python(
        exporter,
        HERE / "exporters" / EXPORTERS[exporter],
        folder,
        lent=[*own, *PACKAGES],
        JAX_PLATFORMS="cpu",
    )
    return {f"{exporter}/{path.stem}": (onnx.load(path), runs_of(path)) for path in folder.glob("*.onnx")}


def runs_of(path: Path) -> Runs:
    found: dict[str, tuple[Arrays, list[Array]]] = {}
    with np.load(path.with_suffix(".npz")) as held:
        for key in held.files:
            number, kind, name = key.split(" ", 2)
            feed, outputs = found.setdefault(number, ({}, []))
            if kind == "in":
                feed[name] = held[key]
            else:
                outputs.append(held[key])
    return list(found.values())


def named(model: onnx.ModelProto, outputs: list[Array]) -> Arrays:
    return dict(zip((value.name for value in model.graph.output), outputs, strict=True))


def check_form(name: str, model: onnx.ModelProto, form: Any, feed: Arrays, outputs: list[Array]) -> None:
    """Lower a model, with the sizes of its inputs where they are needed, and compare with the framework."""
    shapes = {key: array.shape for key, array in feed.items()} if form == "unroll" else None
    if (name, form) in REFUSED:
        with pytest.raises(rl.UnsupportedError, match=REFUSED[name, form]):
            rl.lower(model, form, lower_loops=True, input_shapes=shapes)
        return
    lowered = rl.lower(model, form, lower_loops=True, input_shapes=shapes)
    onnx.checker.check_model(lowered, full_check=True)
    assert not operators(lowered) & ({"Loop", "Scan", "LSTM"} - {form.title()})
    assert_close(run(lowered, feed), named(model, outputs), "float32", f"{name} {form}")


@pytest.mark.filterwarnings("ignore:left for ncnn")
@pytest.mark.parametrize("exporter", EXPORTERS)
def test_loops_as_they_are_exported(exporter: str, tmp_path: Path) -> None:
    """In every form at every length; then in the runtimes that are installed, as exported and lowered for each."""
    models = exported(exporter, tmp_path)
    assert sorted(models) == sorted(name for name in OUTCOMES if name.startswith(f"{exporter}/"))
    for name, (model, runs) in models.items():
        for feed, outputs in runs:
            assert_close(run(as_meant(model), feed), named(model, outputs), "float32", name)
            for form in ("scan", "loop", "unroll"):
                check_form(name, model, form, feed, outputs)
    for client in present(RUNTIMES):
        check_client(client, models, tmp_path / client)


def check_client(client: Any, models: Models, folder: Path) -> None:
    """Run models in a client as they are exported, and lowered for the shapes of their inputs."""
    jobs: dict[str, Job] = {}
    right, wanted = {}, {}
    for name, (model, runs) in models.items():
        feed, outputs = runs[-1]
        before = f"{name} as exported"
        jobs[before], wanted[before] = (model, feed), named(model, outputs)
        right[before] = client in OUTCOMES[name]["as exported"].split()
        shapes = {key: array.shape for key, array in feed.items()}
        _, _, refusal = OUTCOMES[name]["rejected"].get(client, "").partition("refused: ")
        if (name, "unroll") in REFUSED and "loop" not in rl.TARGETS[client].loop_forms:
            refusal = REFUSED[name, "unroll"]
        if refusal:
            with pytest.raises(rl.UnsupportedError, match=refusal):
                rl.lower(model, target=client, input_shapes=shapes)
            continue
        jobs[name], wanted[name] = (rl.lower(model, target=client, input_shapes=shapes), feed), wanted[before]
        right[name] = client not in OUTCOMES[name]["rejected"]
    found = drive(client, jobs, folder)
    judged = {job: judge(found[job], wanted[job]) for job in jobs}
    other = {job: said for job, said in judged.items() if (said[0] == "right") != right[job]}
    assert not other, client
    wrong = {name for name in models if judged.get(name, ("", ""))[0] == "wrong"}
    assert wrong <= {SCALARS.get(client)}, client
