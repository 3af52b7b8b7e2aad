"""The tests of this folder have the mark `clients`; those of an environment that is absent are skipped, and those
whose run passed before (see runs.py)."""

from pathlib import Path

import pytest

from clients import runs
from clients.environments import why_absent

PARAMETERS = ("client", "exporter", "tool")
"""Those of tests that name an environment."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.clients)


@pytest.fixture(autouse=True)
def _runs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip a test where what a parameter names is absent, or what `@pytest.mark.environments(...)` does; one whose
    run is stored may go on, since it needs no client where the run is the same."""
    callspec = getattr(request.node, "callspec", None)
    given = [callspec.params[name] for name in PARAMETERS if callspec and name in callspec.params]
    marked = [name for mark in request.node.iter_markers("environments") for name in mark.args]
    reason = next((why for name in (*given, *marked) if (why := why_absent(name))), None)
    again = not request.config.getoption("markexpr")
    test = runs.Test(request.node.nodeid, request.path, reason, again)
    if reason and (again or test.name not in runs.stored()):
        pytest.skip(reason)
    monkeypatch.setattr(runs.Current, "test", test)
    request.node.user_properties.append((runs.PROPERTY, test.digests))
