"""The tests of this folder have the mark `clients`; those of an environment that is absent are skipped, and those
whose run passed before (see runs.py)."""

from pathlib import Path

import pytest

from clients import runs

PARAMETERS = ("client", "exporter", "tool")
"""Those of tests that name an environment."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.clients)


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
