"""Loops and Scans that are a cell in any spelling, traced loops over cells, and such with small changes, with
`raise_loops=True`: one that becomes a node computes the same, and one that stays is as it was."""

import random
from typing import Any

from changed_loops import changed
from loop_models import as_meant
from running import nodes
from spelled_cells import spelled
from traced_loops import random_trace

import rnn_lowering as rl
from fuzz.case import Case, Outcome, agreed, attempt, fault, reason
from fuzz.oracles import Running, difference, feeds, steady

CASES = 60
CELLS = ("RNN", "GRU", "LSTM")

_TRACED = 0.4
"""The share of loops that were traced step by step."""


def generate(rng: random.Random) -> Case:
    """Make a cell, or what is almost one."""
    if rng.random() < _TRACED:
        model = random_trace(rng)
    else:
        cell = spelled(rng.randrange(10**9))
        model = changed(cell.model, rng, rng.choice((1, 1, 2))) if rng.random() < 0.35 else cell.model
    runs = [{"T": rng.randint(1, 6), "N": rng.randint(1, 4)} for _ in range(2)]
    return Case(
        model, {"runs": runs, "seed": rng.randrange(1000), "to": rng.choice(("keep", "keep", "scan", "unroll"))}
    )


def judge(case: Case) -> Outcome:
    """Raise the loop, and compare with the original, which onnxruntime runs without optimizations."""
    given = [feeds(case.model, sizes, case.options["seed"] + n) for n, sizes in enumerate(case.options["runs"])]
    try:
        whole = Running(as_meant(case.model), exactly=True)
        expected = [whole(feed) for feed in given]
    except Exception as error:  # onnxruntime's errors have no common class
        return Outcome("invalid", f"the original does not run: {reason(str(error))}", str(error)[:500])
    raised = attempt(lambda: rl.lower(case.model, raise_loops=True))
    if isinstance(raised, Outcome):
        return raised
    if not any(node.op_type in CELLS for node in nodes(raised)):
        return agreed(0) if raised == case.model else fault("a model that stays is changed")
    models = [raised]
    if case.options["to"] != "keep":
        shapes = {name: array.shape for name, array in given[0].items()}
        options: Any = {"raise_loops": True, "input_shapes": shapes} if case.options["to"] == "unroll" else {}
        lowered = attempt(lambda: rl.lower(case.model, case.options["to"], **{"raise_loops": True, **options}))
        if isinstance(lowered, Outcome):
            return lowered
        models.append(lowered)
    for model in models:
        running = Running(model, exactly=True)
        for feed, wanted in zip(given[: len(given) if model is raised else 1], expected, strict=False):
            got = running(feed)
            for name, array in wanted.items():
                text = difference(got[name], array, near=whole.near)
                if text and not steady(whole, feed):
                    return Outcome("invalid", "the original amplifies rounding", text)
                if text:
                    return fault("other numbers", f"{name}: {text}")
    return agreed(len(given))
