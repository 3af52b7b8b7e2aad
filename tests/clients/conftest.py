"""The tests of this folder have the mark `clients`; those of an environment that is absent are skipped."""

from pathlib import Path

import pytest

from clients.environments import why_absent

PARAMETERS = ("client", "exporter", "tool")
"""Those of tests that name an environment."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.clients)


@pytest.fixture(autouse=True)
def _present(request: pytest.FixtureRequest) -> None:
    """Skip a test where what a parameter names is absent, or what `@pytest.mark.environments(...)` does."""
    callspec = getattr(request.node, "callspec", None)
    given = [callspec.params[name] for name in PARAMETERS if callspec and name in callspec.params]
    marked = [name for mark in request.node.iter_markers("environments") for name in mark.args]
    if reason := next((why for name in (*given, *marked) if (why := why_absent(name))), None):
        pytest.skip(reason)
