"""Nets whose exporter froze a size: what is opened from exports at two or three sizes computes, at sizes between,
what an export at that size computes."""

import random

import rnn_lowering as rl
from fuzz.case import Case, Outcome, agreed, attempt, fault
from fuzz.nets.frozen import build, some_rows
from fuzz.oracles import Running, difference, feeds

CASES = 120
SIZES = ((11, 160), (11, 160), (11, 160, 37), (24, 37))


def generate(rng: random.Random) -> Case:
    """Make a net at the first of some sizes."""
    rows, seed, sizes = some_rows(rng), rng.randrange(1000), rng.choice(SIZES)
    judged = sorted(rng.sample(range(min(sizes) + 1, max(sizes)), 3))
    options = {"rows": [[name, list(numbers)] for name, numbers in rows], "seed": seed}
    return Case(build(rows, sizes[0], seed), {**options, "sizes": list(sizes), "judged": judged})


def judge(case: Case) -> Outcome:
    """Open the net, and compare it with exports at other sizes, which onnxruntime runs without optimizations."""
    rows, seed = case.options["rows"], case.options["seed"]
    also = [build(rows, size, seed) for size in case.options["sizes"][1:]]
    opened = attempt(lambda: rl.lower(case.model, "keep", open_dims={"X:1": "time"}, also=also))
    if isinstance(opened, Outcome):
        return opened
    running = Running(opened, exactly=True)
    for size in case.options["judged"]:
        truth = build(rows, size, seed)
        feed = feeds(truth, {}, seed)
        whole = Running(truth, exactly=True)
        got, expected = running(feed)["Y"], whole(feed)["Y"]
        if got.shape != expected.shape:
            return fault("another shape", f"{got.shape} for {expected.shape} at {size}")
        if text := difference(got, expected, near=whole.near):
            return fault("other numbers", f"at {size}: {text}")
    return agreed(len(case.options["judged"]))
