"""Random nodes that stay native are right in their runtimes; `python -m clients.native NAME` runs many more."""

import warnings

import pytest

import rnn_lowering as rl
from clients import native
from rnn_lowering.targets.table import TARGETS

CASES = 60


@pytest.mark.parametrize("client", [n for n, t in TARGETS.items() if t.native is not None and t.native.right])
def test_nodes_that_stay_are_right(client: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", rl.RnnLoweringWarning)
        inside, _ = native.sorted_trials(client, CASES, 0, seed=100)
        found = native.outcomes(client, inside)
    assert found == dict.fromkeys(inside, ("right", ""))
