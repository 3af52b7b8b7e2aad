"""Nets as exporters write them, in runtimes: what became of each is stored."""

from pathlib import Path
from typing import Any

import onnx
import pytest

from clients import journeys
from clients.driving import LENT, assert_right, run_python
from clients.environments import version
from clients.test_exporters_of_loops import named, runs_of

SAMPLE = (
    "tagger.dynamo",
    "autoencoder.older",
    "deepspeech2.older",
    "elman.fixed",
    "forecaster.int8",
    "video.keras",
    "elmo.int8",
    "activity.static",
    "convlstm.keras",
    "elmo.dynamo",
)
"""Those of the usual run: each was rejected or wrong in a runtime before."""

TIMES = 3
"""How often each of them is loaded and run: a runtime may be right by chance."""


def check(client: str, names: list[str], folder: Path, times: int = 1) -> None:
    """What becomes of journeys in a client is what is stored."""
    judged = journeys.measure(client, journeys.exported(names), folder, times)
    expected = journeys.stored()[client]["outcomes"]
    assert {name: what for name, what in judged.items() if what[0] != expected[name]} == {}


@pytest.mark.environments(*journeys.HOMES)
@pytest.mark.parametrize("client", journeys.SAMPLED)
def test_some_exports_are_right(client: str, tmp_path: Path) -> None:
    check(client, list(SAMPLE), tmp_path, TIMES)


@pytest.mark.exhaustive
@pytest.mark.long
@pytest.mark.environments(*journeys.HOMES)
@pytest.mark.parametrize("net", journeys.EXPORTERS)
@pytest.mark.parametrize("client", journeys.RUNTIMES)
def test_exports_do_what_they_did(client: str, net: str, tmp_path: Path) -> None:
    """A net that a runtime learns to run is to be noticed: measure again."""
    names = [name for name in journeys.stored()[client]["outcomes"] if name.endswith(f".{net}")]
    check(client, names, tmp_path)


@pytest.mark.environments("pytorch")
@pytest.mark.parametrize("client", journeys.OPEN)
def test_what_pytorch_exports_into_memory_is_lowered_there(client: Any, tmp_path: Path) -> None:
    """The pass on the program's own model, then the program saves it."""
    path = tmp_path / "net.onnx"
    run_python("pytorch", journeys.SCRIPTS / "in_memory.py", client, path, lent=[*LENT, journeys.SCRIPTS.parent])
    model = onnx.load(path)
    assert not {"GRU", "LSTM"} & {node.op_type for node in model.graph.node}
    runs = {str(n): (feed, named(model, outputs)) for n, (feed, outputs) in enumerate(runs_of(path))}
    jobs = {name: (model, feed) for name, (feed, _) in runs.items()}
    assert_right(client, jobs, {name: outputs for name, (_, outputs) in runs.items()}, tmp_path / "jobs")


@pytest.mark.parametrize("name", journeys.RUNTIMES)
def test_what_is_stored_is_of_the_version_of_today(name: str) -> None:
    """Every export ran, and none is wrong, or written and rejected."""
    entry = journeys.stored()[name]
    assert entry["version"] == version(name)
    assert entry["outcomes"].keys() == journeys.stored()["tract"]["outcomes"].keys()
    assert [j for j, what in entry["outcomes"].items() if what not in ("right", "refused")] == []
