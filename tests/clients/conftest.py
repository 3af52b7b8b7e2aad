"""The tests of this folder have the mark `clients`; those of an environment that is absent are skipped, and those
whose run passed before (see runs.py)."""

from collections.abc import Generator
from typing import Any

import pytest

from clients import runs

PARAMETERS = ("client", "exporter", "tool")
"""Those of tests that name an environment."""


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makemodule() -> Generator[None, Any, Any]:
    module = yield
    module.add_marker(pytest.mark.clients)
    return module


@pytest.fixture(autouse=True)
def _runs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip a test where what a parameter or `@pytest.mark.environments(...)` names is absent, and one that passed
    before if nothing changed: see runs.py."""
    callspec = getattr(request.node, "callspec", None)
    given = [callspec.params[name] for name in PARAMETERS if callspec and name in callspec.params]
    marked = [name for mark in request.node.iter_markers("environments") for name in mark.args]
    option = request.config.getoption
    test = runs.Test(
        request.node.nodeid,
        request.path,
        (*given, *marked),
        again=not option("markexpr"),
        make=option(runs.MAKE),
        within=option(runs.WITHIN),
    )
    test.begin()
    monkeypatch.setattr(runs.Current, "test", test)
    request.node.user_properties.append((runs.PROPERTY, test.digests))
