"""No stream that is accepted is wrong: random operators along the frames, random use of their number."""

from collections import Counter
from collections.abc import Callable

import onnx
import pytest
from stream_fuzz import by_length, chain, judged, pools, rates
from thinning import thinned

BATCHES = [(make, first) for first in range(0, 1000, 50) for make in (chain, by_length, rates, pools)]


@pytest.mark.parametrize(("make", "first"), thinned(BATCHES, 21))
@pytest.mark.filterwarnings("ignore::rnn_lowering.RnnLoweringWarning")
def test_no_accepted_stream_is_wrong(make: Callable[[int], onnx.ModelProto], first: int) -> None:
    outcomes = {seed: judged(make(seed)) for seed in range(first, first + 50)}
    assert {seed: text for seed, text in outcomes.items() if text not in ("accepted", "refused")} == {}
    assert Counter(outcomes.values())["accepted"] > 0
