"""Recurrent nodes that share a loop, in the dialect of each target: lowered against the original."""

import random
from typing import Any

import numpy as np
from cases import Arrays

import rnn_lowering as rl
from fuzz.case import Case, Outcome, attempt
from fuzz.compare import judged_pair
from fuzz.nets.joined import in_a_body, net_of
from fuzz.sizes import feeds

CASES = 80
TARGETS = [*rl.TARGETS]


def generate(rng: random.Random) -> Case:
    """Make a net in a scope, for a form or a target, at known or open sizes."""
    target = rng.choice(TARGETS) if rng.random() < 0.6 else ""
    net = net_of(rng, (13, 17, 17) if target else (9, 11, 13, 14, 17, 18, 21, 26))
    T, N = net.T, net.N
    model = in_a_body(net) if rng.random() < 0.25 else net.model(net.opset, ir_version=8)
    lowering: dict[str, Any] = {"to": rng.choice(("auto", "scan", "loop", "loop", "unroll"))}
    if target:
        lowering = {"target": target}
    if net.dtype in ("float16", "bfloat16") and rng.random() < 0.5:
        lowering["compute"] = "float32"
    lengths = [T] if isinstance(T, int) else rng.sample((1, 2, 3, 4, 6, 11, 40), 3)
    batches = [N] if isinstance(N, int) else rng.sample((1, 2, 3, 5), 2)
    known = {}
    if isinstance(T, str) and (lowering.get("to") == "unroll" or rng.random() < (0.7 if target else 0.3)):
        known["T"] = lengths[0]
    if isinstance(N, str) and rng.random() < (0.7 if target else 0.3):
        known["N"] = batches[0]
    if known:
        lowering["dims"] = known
    lengths, batches = lengths[:1] if "T" in known else lengths, batches[:1] if "N" in known else batches
    sizes = [{"T": T, "N": N} for T, N in zip(lengths, batches * len(lengths), strict=False)]
    return Case(model, {"lowering": lowering, "sizes": sizes, "seed": rng.randrange(2**31)})


def judge(case: Case) -> Outcome:
    """Compare at several sizes, with lengths of 0 to T."""
    lowered = attempt(lambda: rl.lower(case.model, **case.options["lowering"]))
    if isinstance(lowered, Outcome):
        return lowered
    seeds = enumerate(case.options["sizes"], case.options["seed"])
    return judged_pair(
        case.model, lowered, [_with_lengths(feeds(case.model, sizes, seed)) for seed, sizes in seeds]
    )


def _with_lengths(feed: Arrays) -> Arrays:
    steps = feed["x"].shape[0] if "x" in feed else 1
    return {n: (a % (steps + 1)).astype(np.int32) if a.dtype == np.int32 else a for n, a in feed.items()}
