"""Runs of clients that need no repetition: the same test passed with the same models in the same client before.

runs.json has a digest for each test that runs models once: of the client's requirements and driver, the models and
their inputs as they are now, the test's module, and what is stored of the client. If it is the same, `pytest -m
clients` skips the run, also where the client is absent. `pytest -m ''` runs all; with `--keep-runs` it stores the
digests of what passed. What computes the expected numbers is not in a digest: the other tests prove that.
"""

import hashlib
import json
import platform
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx
import pytest
from cases import Arrays

from clients.environments import CLIENTS, HERE, HERE_TOO, home, requirements

OPTION = "--keep-runs"
STORED = HERE / "runs.json"
PROPERTY = "client run"
"""Of a test report: the digest of a run."""

JUDGES = ("driving.py", "measuring.py")
"""The modules beside this one that compare outcomes."""


@dataclass
class Test:
    """The test that runs.

    Attributes:
        name: Its node id.
        module: Its file.
        absent: Why the client cannot be run here; None where it can.
        again: Whether all is run.
        digests: Of its runs so far.
    """

    __test__ = False
    name: str
    module: Path
    absent: str | None
    again: bool
    digests: list[str] = field(default_factory=list)

    def passed_before(self, digest: str) -> bool:
        """Whether this is the only run of the test, and passed."""
        return not self.again and stored().get(self.name) == [digest]


class Current:
    """The test that runs now, None outside of tests."""

    test: Test | None = None


def begin(client: str, jobs: Mapping[str, tuple[onnx.ModelProto, Arrays]], calls: object) -> None:
    """Skip the test that runs now if its run passed before, or if the client is absent."""
    test = Current.test
    if test is None:
        return
    if client not in HERE_TOO:
        test.digests.append(digest_of(client, jobs, calls, test.module))
        if test.passed_before(test.digests[-1]):
            pytest.skip("nothing of this run changed since it passed (pytest -m '' runs it again)")
    if test.absent:
        pytest.skip(test.absent)


def digest_of(client: str, jobs: Mapping[str, tuple[onnx.ModelProto, Arrays]], calls: object, module: Path) -> str:
    """Return the digest of a run: see the text of this module."""
    digest = hashlib.sha256(repr((platform.machine(), sys.platform, sys.version_info[:2], calls)).encode())
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


def stored() -> dict[str, list[str]]:
    """The digests of the runs of each test that passed."""
    read: dict[str, list[str]] = json.loads(STORED.read_text()) if STORED.exists() else {}
    return read


def keep(passed: Mapping[str, list[str]]) -> None:
    """Store the digests of tests that passed."""
    kept = {name: digests for name, digests in (stored() | dict(passed)).items() if digests}
    STORED.write_text(json.dumps(kept, indent=0, sort_keys=True) + "\n")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(OPTION, action="store_true", help="store what passed in clients in tests/clients/runs.json")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption(OPTION) and not hasattr(config, "workerinput"):
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


def _drivers(client: str) -> Iterable[Path]:
    """What runs a client: all files of its name, and what all drivers share."""
    names = {name.replace("-", "_") for name in (client, home(client))} | {"jobs"}
    if client in CLIENTS and CLIENTS[client].in_browser:
        names |= {"in_page", "onnxruntime_web"}  # which it imports
    found = (HERE / "drivers").glob("*")
    return [path for path in sorted(found) if path.stem.removeprefix("run_") in names]


def _outcomes(client: str) -> Any:
    read = [json.loads(path.read_text()) for path in sorted(HERE.glob("outcomes*.json"))]
    return [entries.get(client) for entries in read]
