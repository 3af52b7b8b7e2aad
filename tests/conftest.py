"""What all tests share: child processes are kept from test to test."""

import gc
import hashlib
import json
import logging
import os
import subprocess
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import one_thread  # noqa: F401  # before what imports NumPy
import pytest
from kept_proofs import keep_proofs, leave_out_proofs_of_nodes, leave_out_proofs_of_streams
from one_process import Kept, keep_processes, run_workers_here
from provoked import expected, recorded
from thinning import rest_of_products

# Containers often forbid bytecode; then each process compiles the package anew.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

pytest_plugins = ["commands", "clients.runs", "processor_time"]
"""Fixtures of the command; what was run in clients before; what the run took."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Tests of clients are not even found where none is to run."""
    return (
        collection_path == Path(__file__).parent / "clients" and "not clients" in config.option.markexpr
    ) or None


def pytest_collection(session: pytest.Session) -> None:
    """The tests that are found stay until the end, so nobody looks for garbage among them."""
    gc.disable()


def pytest_collection_finish(session: pytest.Session) -> None:
    gc.freeze()
    gc.set_threshold(50_000)  # models are many small objects, among which there is little garbage
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem(collector: pytest.Module) -> Generator[None, Any, Any]:
    """Mark what only combines anew as exhaustive; where exhaustive tests are not to run, they are not collected."""
    found = yield
    if not isinstance(found, list):
        return found
    for item in rest_of_products(found):
        if item.nodeid not in expected():
            item.add_marker(pytest.mark.exhaustive)
    marks = collector.config.option.markexpr
    if "not exhaustive" not in marks or " or " in marks:
        return found
    return [item for item in found if item.get_closest_marker("exhaustive") is None]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out exhaustive tests of other shares; tests that take long start first, so that no process waits for
    one at the end."""
    if (shares := config.getoption("--share")) > 1:
        left = {item for item in items if _is_of_another_share(item, shares)}
        config.hook.pytest_deselected(items=[*left])
        items[:] = [item for item in items if item not in left]
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


def _is_of_another_share(item: pytest.Item, shares: int) -> bool:
    if item.get_closest_marker("exhaustive") is None:
        return False
    from clients.runs import of_files  # a plugin, which pytest is to import first

    number = int(hashlib.sha256(f"{item.nodeid} {of_files()}".encode()).hexdigest(), 16)
    return number % shares > 0


@pytest.fixture(scope="session", autouse=True)
def kept() -> Iterator[None]:
    """The proofs, also of fixtures that many tests share, and the child processes, which end with the last test."""
    with pytest.MonkeyPatch.context() as patch:
        keep_proofs(patch)
        yield
    Kept.end_all()


@pytest.fixture(autouse=True)
def _children(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.path.parent.name in ("streaming", "opening"):
        leave_out_proofs_of_streams(monkeypatch)
    if request.path.parent.name in ("decomposition", "files", "loops", "model", "opening", "recurrence", "targets"):
        leave_out_proofs_of_nodes(monkeypatch)
    if "own_processes" not in request.fixturenames:
        keep_processes(monkeypatch)
        if "workers_here" in request.fixturenames:
            run_workers_here(monkeypatch)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--share", metavar="N", type=int, default=1, help="run one in N exhaustive tests, others after each change"
    )
    parser.addoption("--hints", metavar="FILE", help="append each test and the hints that it provokes, as JSON")


@pytest.fixture(autouse=True)
def _hints(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test that is to provoke hints does."""
    test, path = request.node.nodeid, request.config.getoption("--hints")
    if path is None and test not in expected():
        yield
        return
    with recorded() as found:
        yield
    if path is not None:
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps([test, sorted(found)]) + "\n")
    assert expected().get(test, set()) <= found, "it is named in tests/support/hints_provoked.json"


@pytest.fixture
def quiet() -> Iterator[None]:
    """Libraries log nothing below errors: the quantizer advises to run its own preprocessing."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture
def own_processes() -> None:
    """For tests of processes, and models that end theirs: each call starts those that it needs."""


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[subprocess.Popen[bytes]]]:
    """The child processes that the test starts; none may be left."""
    found: list[subprocess.Popen[bytes]] = []

    class Recorded(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            found.append(self)

    monkeypatch.setattr(subprocess, "Popen", Recorded)
    yield found
    assert all(process.returncode is not None for process in found)


@pytest.fixture
def workers_here() -> None:
    """For tests of what a comparison finds: it runs models in this process."""
