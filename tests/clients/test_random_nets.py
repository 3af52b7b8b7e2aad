"""Random nets of a few operators are right in runtimes, or refused."""

from pathlib import Path

import pytest

from clients.random_nets import measured

COUNT = 50
FIRST = 1_000_000
"""Nets that no one has looked at begin here."""


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore::rnn_lowering.RnnLoweringWarning")
@pytest.mark.parametrize("client", ["tract", "openvino", "opencv", "mnn"])
@pytest.mark.parametrize("first", range(FIRST, FIRST + 4 * COUNT, COUNT))
def test_nets_are_right_or_refused(client: str, first: int, tmp_path: Path) -> None:
    outcomes = measured(client, range(first, first + COUNT), tmp_path, blocks=())
    assert [outcome for outcome in outcomes if outcome[1] not in ("right", "refused")] == []
