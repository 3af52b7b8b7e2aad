"""Functions and layers around a recurrence, as exporters write them, are right in runtimes, or refused."""

from pathlib import Path

import pytest

from clients import functions

CLIENTS = ("opencv", "mnn")

SAMPLES = {
    "pytorch": ("to_long.after.older", "softplus_of_large.after.older", "triu.after.older", "equal.after.older"),
    "keras": ("log_sigmoid_of_large.after.keras", "GlobalMaxPooling3D.after.keras"),
}
"""By exporter those of the usual run: each was wrong in a runtime before."""

PLACES = (
    *(("pytorch", place) for place in ("after.older", "after.dynamo", "after.fixed", "before.older")),
    *(("keras", place) for place in ("after.keras", "before.keras")),
)
"""By exporter where functions stand: before the recurrence dynamo writes the same nodes."""


def check(client: str, names: list[str], folder: Path) -> None:
    paths = functions.exported(functions.kept(), names)
    assert paths
    for start in range(0, len(paths), functions.TOGETHER):
        judged = functions.measure(client, paths[start : start + functions.TOGETHER], folder / str(start))
        assert {name: what for name, what in judged.items() if what[0] not in ("right", "refused")} == {}


@pytest.mark.parametrize("exporter", SAMPLES)
@pytest.mark.parametrize("client", CLIENTS)
def test_some_functions_are_right(client: str, exporter: str, tmp_path: Path) -> None:
    check(client, list(SAMPLES[exporter]), tmp_path)


@pytest.mark.exhaustive
@pytest.mark.long
@pytest.mark.parametrize(("exporter", "place"), PLACES)
@pytest.mark.parametrize("client", CLIENTS)
def test_every_function_is_right_or_refused(client: str, exporter: str, place: str, tmp_path: Path) -> None:
    names = [name for name in functions.run_script(exporter).split() if name.endswith(place)]
    check(client, names, tmp_path)
