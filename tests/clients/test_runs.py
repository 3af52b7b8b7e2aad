"""A run of a client is repeated when something that decides its outcome changed, and not otherwise."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from cases import Arrays, Case

from clients import environments, runs
from clients.driving import Job
from clients.trials import original

MODEL, FEED = original(Case("plain", "RNN"))


def digest(model: onnx.ModelProto = MODEL, feed: Arrays = FEED, calls: object = None, client: str = "tract") -> str:
    return runs.digest_of(client, {"job": (model, feed)}, calls, Path(__file__))


def test_models_inputs_and_calls_are_in_the_digest() -> None:
    other = onnx.ModelProto()
    other.CopyFrom(MODEL)
    other.graph.node[0].name = "other"
    of_zeros = {name: np.zeros_like(array) for name, array in FEED.items()}
    different = [digest(), digest(other), digest(feed=of_zeros), digest(calls={"job": 1}), digest(client="tvm")]
    assert len(set(different)) == len(different)
    assert digest() == digest()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of what says how clients are run, in place of this folder."""
    shutil.copytree(environments.HERE, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(runs, "HERE", tmp_path)
    monkeypatch.setattr(environments, "HERE", tmp_path)
    monkeypatch.setattr(runs, "STORED", tmp_path / "runs.json")
    return tmp_path


@pytest.mark.parametrize(
    "name", ["tract.txt", "drivers/run_tract.py", "drivers/jobs.py", "driving.py", "outcomes.json"]
)
def test_requirements_driver_and_judges_are_in_the_digest(folder: Path, name: str) -> None:
    before = digest()
    text = (folder / name).read_text()
    new = text.replace('"tract": {', '"tract": {"new": 1,', 1) if name.endswith("json") else f"{text}#"
    (folder / name).write_text(new)
    assert digest() != before


def test_another_driver_is_not_in_the_digest(folder: Path) -> None:
    pages = ("onnxruntime-webgpu", "webnn")
    before, of_page = digest(), {client: digest(client=client) for client in pages}
    (folder / "drivers" / "in_page.html").write_text("other")
    assert digest() == before
    assert not {digest(client=client) for client in pages} & {*of_page.values()}


Begin = Callable[..., None]


@pytest.fixture
def begin(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Begin:
    """Begins the runs of a test whose stored run is that of MODEL."""
    runs.keep({"the test": [digest()]})

    def in_test(*models: onnx.ModelProto, absent: str | None = None, again: bool = False) -> None:
        monkeypatch.setattr(runs.Current, "test", runs.Test("the test", Path(__file__), absent, again))
        for model in models:
            job: Job = (model, FEED)
            runs.begin("tract", {"job": job}, None)

    return in_test


def test_what_passed_before_is_skipped(begin: Begin) -> None:
    with pytest.raises(pytest.skip.Exception, match="nothing of this run changed"):
        begin(MODEL)
    with pytest.raises(pytest.skip.Exception, match="nothing of this run changed"):
        begin(MODEL, absent="tract is not installed")


def test_what_changed_runs_if_the_client_is_there(begin: Begin) -> None:
    begin(onnx.ModelProto())
    begin(MODEL, again=True)
    with pytest.raises(pytest.skip.Exception, match="tract is not installed"):
        begin(onnx.ModelProto(), absent="tract is not installed")


def test_a_test_of_several_runs_always_runs(begin: Begin) -> None:
    runs.keep({"the test": [digest(), digest(onnx.ModelProto())]})
    begin(MODEL, onnx.ModelProto())


def test_what_has_no_run_any_more_is_not_kept(folder: Path) -> None:
    runs.keep({"one": ["1"], "other": ["2"]})
    runs.keep({"one": []})
    assert runs.stored()["other"] == ["2"]
    assert "one" not in runs.stored()
