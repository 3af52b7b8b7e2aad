"""A run of a client is repeated when something that decides its outcome changed, and not otherwise."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from cases import Arrays, Case

from clients import environments, runs
from clients.driving import Job, run_python
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
    shutil.copytree(environments.PACKAGED, tmp_path / "packaged", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(runs, "DRIVERS", (tmp_path / "packaged", tmp_path / "drivers"))
    monkeypatch.setattr(runs, "STORED", tmp_path / "runs.json")
    return tmp_path


@pytest.mark.parametrize(
    "name", ["tract.txt", "packaged/run_tract.py", "packaged/jobs.py", "driving.py", "outcomes.json"]
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
PASSED = "nothing changed since it passed"
ABSENT = "tract is not installed"


@pytest.fixture
def begin(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Begin:
    """Begins a test, and its runs."""

    def in_test(*models: onnx.ModelProto, absent: bool = False, again: bool = False) -> None:
        monkeypatch.setattr(runs, "why_absent", lambda client: ABSENT if absent else None)
        test = runs.Test("the test", Path(__file__), ("tract",), again, make=False)
        test.begin()
        monkeypatch.setattr(runs.Current, "test", test)
        for model in models:
            job: Job = (model, FEED)
            runs.begin("tract", {"job": job}, None)

    return in_test


def test_a_run_that_passed_is_left_out(begin: Begin) -> None:
    runs.keep({"the test": [digest()]})
    with pytest.raises(pytest.skip.Exception, match=PASSED):
        begin(MODEL)
    with pytest.raises(pytest.skip.Exception, match=PASSED):
        begin(MODEL, absent=True)


def test_a_run_that_changed_is_repeated_if_the_client_is_there(begin: Begin) -> None:
    runs.keep({"the test": [digest()]})
    begin(onnx.ModelProto())
    begin(MODEL, again=True)
    with pytest.raises(pytest.skip.Exception, match=ABSENT):
        begin(onnx.ModelProto(), absent=True)


@pytest.mark.parametrize("digests", [[], [digest(), digest(onnx.ModelProto())]])
def test_a_test_that_is_no_single_run_is_left_out_if_no_file_changed(
    begin: Begin, monkeypatch: pytest.MonkeyPatch, digests: list[str]
) -> None:
    runs.keep({"the test": digests})
    with pytest.raises(pytest.skip.Exception, match=PASSED):
        begin(absent=True)
    begin(MODEL, onnx.ModelProto(), again=True)
    runs.of_files.cache_clear()
    monkeypatch.setattr(runs, "READ", runs.READ[1:])
    begin(MODEL, onnx.ModelProto())
    with pytest.raises(pytest.skip.Exception, match=ABSENT):
        begin(absent=True)
    runs.of_files.cache_clear()


def test_what_is_not_stored_needs_its_environment(begin: Begin) -> None:
    begin(MODEL)
    with pytest.raises(pytest.skip.Exception, match=ABSENT):
        begin(absent=True)


def test_a_program_that_comes_before_a_run_needs_its_environment(begin: Begin) -> None:
    """What an exporter writes is in the digest of the run, so it is not yet known whether that passed."""
    runs.keep({"the test": [digest()]})
    begin(absent=True)
    with pytest.raises(pytest.skip.Exception, match=ABSENT):
        run_python("tract", "export.py")


def test_a_test_without_one_of_its_clients_is_not_stored(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    begin()
    assert runs.present(["tract", "mnn"]) == ["tract", "mnn"]
    monkeypatch.setattr(runs, "why_absent", {"tract": None, "mnn": "gone"}.get)
    assert runs.present(["tract", "mnn"]) == ["tract"]
    assert runs.Current.test
    runs.keep({"the test": runs.Current.test.digests})
    assert not runs.stored().keys() & {"the test"}


def test_what_changed_is_left_out_if_no_time_is_left(folder: Path) -> None:
    test = runs.Test("new", Path(__file__), (), again=False, make=False, within=0)
    with pytest.raises(pytest.skip.Exception, match="no time is left"):
        test.begin()


def test_an_environment_is_made_when_a_test_needs_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, and not one that is made by name."""
    tried: list[str] = []

    def make(client: str) -> None:
        tried.append(client)
        (folder / f"{client}.failed").write_text("no such version")

    monkeypatch.setattr(environments, "ROOT", folder)
    monkeypatch.setattr(environments, "_make", make)
    for name, said in {"tract": "no such version", "qnn": "read its licence"}.items():
        for _ in range(2):
            with pytest.raises(pytest.skip.Exception, match=said):
                runs.Test("new", Path(__file__), (name,), again=False, make=True).begin()
    assert tried == ["tract"]


def test_a_third_of_the_exhaustive_tests_is_chosen() -> None:
    """The same in each process, or xdist would say so."""
    tests = Path(__file__).parents[1] / "raising" / "test_changed_loops.py"
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "--collect-only", "-p", "no:cacheprovider", str(tests)]
    found = [
        {line for line in printed.splitlines() if "::" in line}
        for options in (["-m", "exhaustive"], ["-m", "exhaustive", "--share=3"], ["--share=3"], [])
        if (printed := subprocess.run([*command, *options], capture_output=True, text=True, check=True).stdout)
    ]
    every, third, default_of_share, default = found
    assert len(every) / 4 < len(third) < len(every) / 2.5
    assert third < every
    assert default_of_share == default
