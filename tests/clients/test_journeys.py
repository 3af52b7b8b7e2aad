"""Nets as exporters write them, in runtimes: what became of each is stored."""

from pathlib import Path
from typing import Any

import onnx
import pytest

from clients import journeys
from clients.driving import LENT, assert_right, run_python
from clients.environments import HERE, version
from clients.runs import present
from clients.test_exporters_of_loops import named, runs_of


@pytest.mark.environments("pytorch")
def test_some_exports_are_right(tmp_path: Path) -> None:
    """One for each that a runtime failed on, in the runtimes that are installed."""
    journeys.export(tmp_path / "exported", journeys.DEFAULT)
    paths = sorted((tmp_path / "exported").glob("*.onnx"))
    assert len(paths) == len(journeys.DEFAULT)
    for client in present(journeys.NONE_FAILS):
        judged = journeys.measure(client, paths, tmp_path / client)
        expected = journeys.stored()[client]["outcomes"]
        assert {name: what for name, what in judged.items() if what[0] != expected[name]} == {}, client


@pytest.mark.exhaustive
@pytest.mark.long
@pytest.mark.environments("pytorch")
@pytest.mark.parametrize("net", journeys.EXPORTERS)
def test_exports_do_what_they_did(net: str, tmp_path: Path) -> None:
    """A net that a runtime learns to run is to be noticed: measure again."""
    names = [name for name in journeys.stored()["tract"]["outcomes"] if name.endswith(f".{net}")]
    journeys.export(tmp_path / "exported", names)
    paths = sorted((tmp_path / "exported").glob("*.onnx"))
    for client in present(journeys.RUNTIMES):
        expected = journeys.stored()[client]["outcomes"]
        judged = journeys.measure(client, paths, tmp_path / client)
        assert {name: what for name, what in judged.items() if what[0] != expected[name]} == {}, client


@pytest.mark.environments("pytorch")
@pytest.mark.parametrize("client", journeys.OPEN)
def test_what_pytorch_exports_into_memory_is_lowered_there(client: Any, tmp_path: Path) -> None:
    """The pass on the program's own model, then the program saves it."""
    path = tmp_path / "net.onnx"
    run_python("pytorch", HERE / "exporters" / "in_memory.py", client, path, lent=LENT)
    model = onnx.load(path)
    assert not {"GRU", "LSTM"} & {node.op_type for node in model.graph.node}
    runs = {str(n): (feed, named(model, outputs)) for n, (feed, outputs) in enumerate(runs_of(path))}
    jobs = {name: (model, feed) for name, (feed, _) in runs.items()}
    assert_right(client, jobs, {name: outputs for name, (_, outputs) in runs.items()}, tmp_path / "jobs")


@pytest.mark.parametrize("name", journeys.RUNTIMES)
def test_what_is_stored_is_of_the_version_of_today(name: str) -> None:
    entry = journeys.stored()[name]
    assert entry["version"] == version(name)
    assert list(entry["outcomes"]) == list(journeys.stored()["tract"]["outcomes"])
    if name in journeys.NONE_FAILS:
        assert set(entry["outcomes"].values()) <= {"right", "refused"}


def test_the_table_of_the_page_is_that_of_what_is_stored() -> None:
    assert journeys.in_page() == journeys.table(journeys.stored())
