"""Nets as streams: chunks against the whole sequence in onnxruntime without optimizations."""

import random

from random_streams import NETS, judged

from fuzz.case import Case, Outcome, agreed, fault

CASES = 60


def generate(rng: random.Random) -> Case:
    """Make a net whose frames are shifted, cut, counted or pooled."""
    return Case(NETS[rng.choice([*NETS])](rng.randrange(2**31)))


def judge(case: Case) -> Outcome:
    """Compare the stream with the whole."""
    text = judged(case.model)
    if text == "accepted":
        return agreed(1)
    return Outcome("refused") if text == "refused" else fault(text.partition(":")[0], text)
