"""Faults in right models and streams: each that shows on reasonable inputs must fail the comparison, or what it
hides in must be named as not compared."""

import random
from typing import Any

import numpy as np
import onnx
from cases import Arrays
from oracle import GATES

import rnn_lowering as rl
from fuzz.case import Case, Outcome, agreed, attempt, fault
from fuzz.compare import distance, streamed
from fuzz.driver import plan_of
from fuzz.nets import attention, joined
from fuzz.oracles import Running
from fuzz.planting import planted
from fuzz.sizes import feeds

CASES = 16
CHUNKS = (3, 1, 17, 2)
VISIBLE = 1e-3
"""The least difference that counts, relative to the largest number of an output."""


def generate(rng: random.Random) -> Case:
    """Make a net in float32, and the number of a fault."""
    seed = rng.randrange(2**31)
    if rng.random() < 0.3:
        net = attention.net_of(seed, exact=True)
        model, axis = net.model(), "x:1"
    else:
        made = joined.net_of(rng, (13, 17, 21))
        while made.dtype != "float32":
            made = joined.net_of(rng, (13, 17, 21))
        model = joined.in_a_body(made) if rng.random() < 0.2 else made.model(made.opset, ir_version=8)
        axis = "x:0"
    lowering: dict[str, Any] = {"to": rng.choice(("auto", "scan", "loop"))}
    if rng.random() < 0.5 and _may_stream(model):
        lowering["stream"] = axis
    return Case(model, {"lowering": lowering, "fault": rng.randrange(2**31), "seed": seed})


def _may_stream(model: onnx.ModelProto) -> bool:
    """Return whether all nodes run forward from states that are not computed."""
    made = {name for node in model.graph.node for name in node.output}
    recurrent = [node for node in model.graph.node if node.op_type in GATES]
    forward = all(a.name != "direction" for node in recurrent for a in node.attribute)
    plain = all(name not in made for node in recurrent for name in node.input[5:7])
    scopes = {"Loop", "If", "GatedDeltaNet"} & {node.op_type for node in model.graph.node}
    return forward and plain and not scopes and not model.functions


def with_fault(case: Case) -> tuple[onnx.ModelProto, onnx.ModelProto, str] | Outcome:
    """Return the lowered model, the same with the fault of the case, and what that is."""
    lowered = attempt(lambda: rl.lower(case.model, **case.options["lowering"]))
    if isinstance(lowered, Outcome):
        return lowered
    wrong, what = planted(lowered, case.options["fault"])
    return (lowered, wrong, what) if what else agreed(0)


def judge(case: Case) -> Outcome:
    """Compare the model with the fault, if it shows; see what the package says."""
    options, models = case.options, with_fault(case)
    if isinstance(models, Outcome):
        return models
    lowered, wrong, what = models
    shows = visible(case.model, lowered, wrong, options["seed"])
    if not shows:
        return agreed(0)
    check: Any = rl.verify_stream if "stream" in options["lowering"] else rl.verify
    result = attempt(lambda: check(case.model, wrong))
    if isinstance(result, Outcome):
        return agreed(1) if result.kind == "refused" else result
    if result.status != "verified":
        return agreed(1)
    if result.reason or not result.whole:
        return Outcome("refused", f"named: {result.reason[:60]}", f"{what}; {shows}; {result}")
    return fault(what.partition(":")[0], f"{what}; {shows}; {result}", 1)


def visible(model: onnx.ModelProto, right: onnx.ModelProto, wrong: onnx.ModelProto, seed: int) -> str:
    """Return on which inputs the fault shows, where the right model agrees with the original; "" for none.

    A stream shows what its host sees of a sequence: states that only it knows may differ.
    """
    stream = any(entry.key == "rnn_lowering.stream" for entry in right.metadata_props)
    whole, good, bad = (Running(each, narrow=False) for each in (model, right, wrong))
    if bad.why:
        return ""

    def run(running: Running, given: Arrays) -> Arrays:
        return streamed(running, given, whole.names, CHUNKS) if stream else running(given)

    for number in range(12):
        rng = random.Random(seed + number)
        sizes = {"T": rng.choice((1, 2, 5, 17, 40, 60)), "N": rng.choice((1, 3, 8)), "B": rng.choice((1, 3, 8))}
        given = _lengths(feeds(model, sizes, seed + number), stream, right)
        try:
            expected, got = whole(given), run(good, given)
        except Exception:
            continue
        try:
            other = run(bad, given)
        except Exception:
            return "it fails"
        for name, array in expected.items():
            if got[name].shape != array.shape:  # a late stream
                continue
            far = distance(other[name], array) if other[name].shape == array.shape else np.inf
            if far > VISIBLE and distance(got[name], array) < VISIBLE / 30 and np.isfinite(array).all():
                return f"'{name}' {far:.2g} at {sizes}"
    return ""


def _lengths(feed: Arrays, stream: bool, right: onnx.ModelProto) -> Arrays:
    """Let lengths be those of rows, all of a chunk in a stream; states keep what feeds gave."""
    steps = feed["x"].shape[0] if "x" in feed else 1
    for name, array in feed.items():
        if array.dtype == np.int32:
            feed[name] = np.full_like(array, steps) if stream else (array % (steps + 1)).astype(np.int32)
    if stream:
        assert plan_of(right)["states"] is not None
    return feed
