"""No stream that is accepted is wrong: random operators along the frames, random use of their number."""

from collections import Counter

import pytest
from random_streams import NETS, judged
from thinning import thinned

BATCHES = [(kind, first) for first in range(0, 1000, 50) for kind in NETS]


@pytest.mark.parametrize(("kind", "first"), thinned(BATCHES, 21))
@pytest.mark.filterwarnings("ignore::rnn_lowering.RnnLoweringWarning")
def test_no_accepted_stream_is_wrong(kind: str, first: int) -> None:
    outcomes = {seed: judged(NETS[kind](seed)) for seed in range(first, first + 50)}
    assert {seed: text for seed, text in outcomes.items() if text not in ("accepted", "refused")} == {}
    assert Counter(outcomes.values())["accepted"] > 0
