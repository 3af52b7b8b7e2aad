"""Recurrent nodes that share a loop, in the dialect of each target: lowered against the original."""

import random
from typing import Any

import numpy as np
from cases import Arrays

import rnn_lowering as rl
from fuzz.case import Case, Outcome, agreed, attempt, fault
from fuzz.nets.joined import in_a_body, net_of
from fuzz.oracles import Running, difference, steady
from fuzz.sizes import feeds

CASES = 250
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
    try:
        whole = Running(case.model)
    except Exception as error:
        return Outcome("invalid", "the original is not loaded", str(error)[:500])
    lowered = attempt(lambda: rl.lower(case.model, **case.options["lowering"]))
    if isinstance(lowered, Outcome):
        return lowered
    try:
        running = Running(lowered)
    except Exception as error:
        return fault("the result is not loaded", str(error)[:500])
    count = 0
    for number, sizes in enumerate(case.options["sizes"]):
        feed = _with_lengths(feeds(case.model, sizes, case.options["seed"] + number))
        try:
            expected = whole(feed)
        except Exception as error:
            return Outcome("invalid", "the original does not run", str(error)[:500])
        try:
            got = running(feed)
        except Exception as error:
            return fault("the result does not run", f"{sizes}: {str(error)[:400]}", count)
        if [*got] != [*expected]:
            return fault("other outputs", f"{[*got]}, not {[*expected]}", count)
        for name, array in expected.items():
            if text := difference(got[name], array, near=whole.near):
                if not steady(whole, feed):
                    return Outcome("invalid", "the original amplifies rounding", text)
                return fault("other numbers", f"{sizes}, {name}: {text}", count)
        count += 1
    return agreed(count)


def _with_lengths(feed: Arrays) -> Arrays:
    steps = feed["x"].shape[0] if "x" in feed else 1
    return {n: (a % (steps + 1)).astype(np.int32) if a.dtype == np.int32 else a for n, a in feed.items()}
