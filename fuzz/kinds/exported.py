"""Loops and Scans with what exporters write around them: lowered in each form and as streams, against the original.

A refusal is a fault too where all sizes are fixed and the form can be had.
"""

import random
from typing import Any

import onnx

from fuzz.case import Case, Outcome, fault
from fuzz.kinds import loops, streams
from fuzz.nets.exported import Export, exported

CASES = 80
FORMS = ("auto", "scan", "loop", "unroll", "unroll", "unroll")
LOOPLESS = ("tvm", "ncnn", "litert")
TARGETS = (*LOOPLESS * 2, "tract", "mnn", "openvino", "onnxruntime")


def generate(rng: random.Random) -> Case:
    """Make a model as an exporter writes it, and how it is lowered or streamed."""
    model, e = exported(rng)
    seed, sizes = rng.randrange(1000), {"T": rng.choice((1, 2, 3, 5, 8)), "N": rng.choice((1, 2, 3))}
    named = any(d.dim_param == "T" for v in model.graph.input for d in v.type.tensor_type.shape.dim)
    if named and rng.random() < 0.2:
        more = {"axis": ["T"], "delay": False, "form": rng.choice(("auto", "scan", "unroll")), "target": "portable"}
        more |= {"frames": rng.choice((0, 1, 3)), "chunks": rng.choice(streams.CHUNKS), "lengths": [7, 19]}
        return Case(model, {**more, "seed": seed})
    options: dict[str, Any] = {"form": rng.choice(FORMS), "lower_loops": True}
    if rng.random() < 0.4:
        options = {"form": "auto", "target": rng.choice(TARGETS)}
    if rng.random() < 0.15:
        options["raise_loops"] = True
    runs = [sizes, {"T": 4, "N": 2}]
    straight = options["form"] == "unroll" or options.get("target") in LOOPLESS
    if straight or rng.random() < 0.3:
        fixed: dict[str, Any] = {"dims": {"T": sizes["T"]}} if named and rng.random() < 0.5 else {}
        options |= fixed or {"input_shapes": _shapes(model, sizes)}
        runs = runs[:1]
    runs = [{**each, "": each["T"]} for each in runs]
    open_batch = "dims" in options and options.get("target") == "litert"  # which needs one
    can = not open_batch and ((straight and not e.by_data) or _may_be_a_scan(e, options))
    return Case(model, {"options": options, "runs": runs, "given": {}, "seed": seed, "can": can})


def _may_be_a_scan(e: Export, options: dict[str, Any]) -> bool:
    """Whether each form can be had: of fixed sizes, without a list or growing state."""
    return "input_shapes" in options and not e.grows and not e.by_data


def _shapes(model: onnx.ModelProto, sizes: dict[str, int]) -> dict[str, list[int]]:
    """Return the shapes of the inputs."""
    found = {}
    for value in model.graph.input:
        dims = value.type.tensor_type.shape.dim
        found[value.name] = [d.dim_value if d.dim_value > 0 else sizes[d.dim_param or "T"] for d in dims]
    return found


def judge(case: Case) -> Outcome:
    """Compare at several lengths."""
    outcome = loops.judge(case)
    if outcome.kind == "refused" and case.options.get("can"):
        return fault(f"refused: {outcome.what}", outcome.detail)
    return outcome
