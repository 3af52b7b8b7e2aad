"""Tests of clients that need no repetition, since they passed and nothing that decides their outcome changed.

runs.json has a digest for each test that passed. For a test that runs models once, it is that of the run: of the
client's requirements and driver, the models and their inputs as they are now, the test's module, and what is stored
of the client. For any other it is that of all files that such tests read. If it is the same, `pytest -m clients`
skips the test, also where the client is absent. `pytest -m ''` runs all; with `--keep-runs` it stores what passed.
With `--make-environments` a client is installed when a test needs it; with `--within` no test starts too late. What
computes the expected numbers is not in the digest of a run: the other tests prove that.
"""

import hashlib
import json
import platform
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import onnx
import pytest
from cases import Arrays

from clients.environments import CLIENTS, DRIVERS, HERE, HERE_TOO, home, make_once, requirements, why_absent

KEEP = "--keep-runs"
MAKE = "--make-environments"
WITHIN = "--within"
STORED = HERE / "runs.json"
PROPERTY = "client run"
"""Of a test report: the digests of the runs."""

JUDGES = ("driving.py", "measuring.py")
"""The modules beside this one that compare outcomes."""

REPOSITORY = HERE.parents[1]
READ = ("rnn_lowering", "tests/clients", "tests/support", "examples", "docs", "README.md", "pyproject.toml")
"""What tests of clients read. The models beside the checkout stay the same."""

UNCHANGED = "nothing changed since it passed (pytest -m '' runs it again)"
TOO_LATE = "something changed since it passed, and no time is left (pytest -m clients runs it)"
STARTED = time.monotonic()


@dataclass
class Test:
    """The test that runs.

    Attributes:
        name: Its node id.
        module: Its file.
        environments: Those that it names.
        again: Whether all is run.
        make: Whether environments are made that are absent.
        within: In how many seconds after the start of all tests it must begin.
        digests: Of its runs so far.
    """

    __test__ = False
    name: str
    module: Path
    environments: tuple[str, ...]
    again: bool
    make: bool
    within: float = float("inf")
    digests: list[str] = field(default_factory=list)

    def begin(self) -> None:
        """Skip the test if nothing at all changed, or if an environment is absent and no run of it is stored."""
        passed = None if self.again else stored().get(self.name)
        if passed == of_files():
            pytest.skip(UNCHANGED)
        if passed is None or passed.startswith(OF_FILES):
            self.require()

    def begin_run(self, digest: str) -> None:
        """Skip the test if this is its first run, and passed; or if an environment is absent."""
        self.digests.append(digest)
        if not self.again and self.digests == [stored().get(self.name)]:
            pytest.skip(UNCHANGED)
        self.require()

    def require(self, *clients: str) -> None:
        """Skip the test if no time is left, or an environment is absent: of those that it names, without others."""
        if time.monotonic() - STARTED > self.within:
            pytest.skip(TOO_LATE)
        if reason := next((why for name in clients or self.environments if (why := self.why_absent(name))), None):
            pytest.skip(reason)

    def why_absent(self, client: str) -> str | None:
        """Why a client cannot be run here, None where it can."""
        return make_once(client) if self.make else why_absent(client)


class Current:
    """The test that runs now, None outside of tests."""

    test: Test | None = None


def begin(client: str, jobs: Mapping[str, tuple[onnx.ModelProto, Arrays]], calls: object) -> None:
    """Skip the test that runs now if its run passed before, or if the client is absent."""
    test = Current.test
    if test is None:
        return
    if client in HERE_TOO:
        test.require()
    else:
        test.begin_run(digest_of(client, jobs, calls, test.module))


def begin_script(client: str) -> None:
    """Skip the test that runs now if a client is absent in which it runs a program, say an exporter."""
    if Current.test:
        Current.test.require(client)


def present(clients: Iterable[str]) -> list[str]:
    """Those of some clients in which the test that runs now can run models."""
    test, clients = Current.test, list(clients)
    found = [client for client in clients if (test.why_absent if test else why_absent)(client) is None]
    if test and found != clients:
        test.digests.append(INCOMPLETE)
    return found


def digest_of(client: str, jobs: Mapping[str, tuple[onnx.ModelProto, Arrays]], calls: object, module: Path) -> str:
    """Return the digest of a run: see the text of this module."""
    digest = hashlib.sha256(repr((*_machine(), calls)).encode())
    files = [requirements(client), *_drivers(client), module, *(HERE / name for name in JUDGES)]
    for path in files:
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    digest.update(json.dumps(_outcomes(client), sort_keys=True).encode())
    for name, (model, feed) in jobs.items():
        parts: list[bytes] = [name.encode(), model.SerializeToString(deterministic=True)]
        for key, array in feed.items():
            parts += [repr((key, array.dtype.str, array.shape)).encode(), array.tobytes()]
        for part in parts:
            digest.update(hashlib.sha256(part).digest())
    return digest.hexdigest()[:16]


INCOMPLETE = "a client is absent"
"""Stands for the run that is missing: such a test is not stored."""

OF_FILES = "files "
"""Begins a digest of all files."""


@cache
def of_files() -> str:
    """Return the digest of all files that tests of clients read."""
    digest = hashlib.sha256(repr(_machine()).encode())
    for named in READ:
        path = REPOSITORY / named
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file() and file != STORED and not {"__pycache__", "node_modules"} & {*file.parts}:
                digest.update(repr(file.relative_to(REPOSITORY).as_posix()).encode())
                digest.update(hashlib.sha256(file.read_bytes()).digest())
    return f"{OF_FILES}{digest.hexdigest()[:16]}"


def stored() -> dict[str, str]:
    """The digest of each test that passed."""
    read: dict[str, str] = json.loads(STORED.read_text()) if STORED.exists() else {}
    return read


def keep(passed: Mapping[str, list[str]]) -> None:
    """Store the tests that passed, each with the digests of its runs."""
    whole = {name: digests for name, digests in passed.items() if INCOMPLETE not in digests}
    new = {name: digests[0] if len(digests) == 1 else of_files() for name, digests in whole.items()}
    STORED.write_text(json.dumps(stored() | new, indent=0, sort_keys=True) + "\n")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(KEEP, action="store_true", help="store what passed in clients in tests/clients/runs.json")
    parser.addoption(MAKE, action="store_true", help="install a client when a test needs it")
    parser.addoption(
        WITHIN, type=float, default=float("inf"), help="start no test of a client after so many seconds"
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption(KEEP) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Keeper())


class _Keeper:
    """Keeps the digests of the tests that pass, from all processes."""

    def __init__(self) -> None:
        self.passed: dict[str, list[str]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        digests = dict(report.user_properties).get(PROPERTY)
        if isinstance(digests, list) and report.when == "call" and report.passed:
            self.passed[report.nodeid] = digests

    def pytest_sessionfinish(self) -> None:
        keep(self.passed)


def _machine() -> tuple[object, ...]:
    return platform.machine(), sys.platform, sys.version_info[:2]


def _drivers(client: str) -> Iterable[Path]:
    """What runs a client: all files of its name, and what all drivers share."""
    names = {name.replace("-", "_") for name in (client, home(client))} | {"jobs"}
    if client in CLIENTS and CLIENTS[client].in_browser:
        names |= {"in_page", "onnxruntime_web"}  # which it imports
    files = [path for folder in DRIVERS for path in sorted(folder.glob("*"))]
    return [path for path in files if path.stem.removeprefix("run_") in names]


def _outcomes(client: str) -> Any:
    read = [json.loads(path.read_text()) for path in sorted(HERE.glob("outcomes*.json"))]
    return [entries.get(client) for entries in read]
