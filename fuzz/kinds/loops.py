"""Loops and Scans of opsets 8 to 28, lowered in each form and as streams, against the original."""

import random
from typing import Any

from loop_models import as_meant

import rnn_lowering as rl
from fuzz.case import Case, Outcome, agreed, attempt, fault, reason
from fuzz.kinds import streams
from fuzz.nets.loops import loops
from fuzz.oracles import Running, are_no_rows, difference, feeds, steady

CASES = 100
FORMS = ("auto", "scan", "scan", "loop", "unroll", "unroll")
TARGETS = ("tvm", "ncnn", "openvino", "tract", "mnn", "opencv", "onnxruntime", "tinygrad", "iree")
TYPES = ("float32",) * 12 + ("float16", "float64")


def generate(rng: random.Random) -> Case:
    """Make loops, and how they are lowered or streamed."""
    frames: int | str = rng.choice(("T", "T", "T", 3, 5))
    opset = rng.choice(
        (8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28)
    )
    _, model = loops(rng, opset, rng.choice(TYPES), frames)
    seed = rng.randrange(1000)
    if frames == "T" and rng.random() < 0.2:
        more = {
            "axis": ["T"],
            "delay": False,
            "form": rng.choice(("auto", "scan", "loop", "unroll")),
            "high": {"M": 5},
        }
        more |= {"target": "portable", "frames": rng.choice((0, 1, 1, 3)), "chunks": rng.choice(streams.CHUNKS)}
        return Case(model, {**more, "seed": seed, "lengths": [7, 19]})
    options: dict[str, Any] = {"form": rng.choice(FORMS)}
    if rng.random() < 0.3:
        options = {"form": "auto", "target": rng.choice(TARGETS)}
    options["lower_loops"] = "target" not in options or rng.random() < 0.5
    if rng.random() < 0.2:
        options["raise_loops"] = True
    runs = [{"T": size} for size in rng.sample((1, 2, 3, 5, 8), 3)]
    if frames == "T" and (options["form"] == "unroll" or rng.random() < 0.3):
        options["dims"] = runs[0]
        runs = runs[:1]
    given = {}
    if any(v.name == "M" for v in model.graph.input):
        given["M"] = rng.choice((0, 1, 2, 3))
        if options["form"] == "unroll" or rng.random() < 0.3:
            options["set_inputs"] = dict(given)
    return Case(model, {"options": options, "runs": runs, "given": given, "seed": seed})


def judge(case: Case) -> Outcome:
    """Compare the lowered model with the original, at several lengths."""
    if "axis" in case.options:
        return streams.judge(Case(as_meant(case.model), case.options))
    options, runs = dict(case.options["options"]), case.options["runs"]
    given = [
        feeds(case.model, sizes, case.options["seed"] + n, given=case.options["given"])
        for n, sizes in enumerate(runs)
    ]
    try:
        whole = Running(as_meant(case.model))
    except Exception as error:
        return Outcome("invalid", f"the original is not loaded: {reason(str(error))}", str(error)[:500])
    expected = [_run(whole, feed) for feed in given]
    if all(isinstance(results, str) for results in expected):
        return Outcome("invalid", f"the original does not run: {reason(str(expected[0]))}", str(expected[0]))
    lowered = attempt(lambda: rl.lower(case.model, options.pop("form"), **options))
    if isinstance(lowered, Outcome):
        return lowered
    try:
        running = Running(as_meant(lowered), exactly=options.get("target", "portable") == "portable")
    except Exception as error:
        return fault(f"the result is not loaded: {reason(str(error))}", str(error)[:500])
    compared = 0
    for feed, wanted, sizes in zip(given, expected, runs, strict=True):
        if isinstance(wanted, str):
            continue
        got = _run(running, feed)
        if isinstance(got, str):
            return fault(f"the result does not run: {reason(got)}", f"{sizes}: {got}", compared)
        for name, array in wanted.items():
            text = "" if are_no_rows(got[name], array) else difference(got[name], array, near=whole.near)
            if text and not steady(whole, feed):
                return Outcome("invalid", "the original amplifies rounding", text)
            if text:
                return fault("other numbers", f"{sizes}, {name}: {text}", compared)
        compared += 1
    return agreed(compared)


def _run(running: Running, feed: Any) -> Any:
    """Return the outputs, or why there are none."""
    try:
        return running(feed)
    except Exception as error:  # onnxruntime has no common error
        return " ".join(str(error).split())[:500]
