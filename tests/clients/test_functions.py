"""Functions and layers around a recurrence, as exporters write them, are right in runtimes, or refused."""

from pathlib import Path

import pytest

from clients import functions

CLIENTS = ("opencv", "mnn")

SAMPLE = ("to_long.after.older", "softplus_of_large.after.older", "triu.after.older", "equal.after.older")
"""Those of the usual run: each was wrong in a runtime before."""

PLACES = ("after.older", "after.dynamo", "after.fixed", "before.older")
"""Before the recurrence dynamo writes the same nodes."""


def check(client: str, names: list[str], folder: Path) -> None:
    paths = functions.exported(functions.kept(), names)
    assert paths
    for start in range(0, len(paths), functions.TOGETHER):
        judged = functions.measure(client, paths[start : start + functions.TOGETHER], folder / str(start))
        assert {name: what for name, what in judged.items() if what[0] not in ("right", "refused")} == {}


@pytest.mark.environments("pytorch")
@pytest.mark.parametrize("client", CLIENTS)
def test_some_functions_are_right(client: str, tmp_path: Path) -> None:
    check(client, list(SAMPLE), tmp_path)


@pytest.mark.exhaustive
@pytest.mark.long
@pytest.mark.environments("pytorch")
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("client", CLIENTS)
def test_every_function_is_right_or_refused(client: str, place: str, tmp_path: Path) -> None:
    names = [name for name in functions.run_script("pytorch").split() if name.endswith(place)]
    check(client, names, tmp_path)
