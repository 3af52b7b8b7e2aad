"""Faults in lowered nodes: a node that is proven computes the same as the original, at any sizes."""

import random
from dataclasses import replace

from case_list import random_case
from cases import model

import rnn_lowering as rl
from fuzz.case import Case, Outcome, agreed, attempt, fault
from fuzz.kinds.verify import visible, with_fault

CASES = 30
FORMS = ("scan", "loop", "auto")
TARGETS = ("portable", "onnxruntime", "openvino", "tract", "mnn", "tvm")
ANY = rl.Tolerance(rtol=1e30, atol=1e30)
"""With it each comparison agrees, so the proofs are told of wrong models too."""


def generate(rng: random.Random) -> Case:
    """Make a node with any attributes, in float32, without nodes beside it, and the number of a fault."""
    made = random_case(12 * rng.randrange(2**26) + rng.randrange(6))
    made = replace(made, weights="initializer", lengths_from="input", states_from="input", ir3=False)
    made = replace(made, x=rng.choice(("static", "batch", "length", "symbolic", "symbolic")))
    node = model(made, rng.choice((14, 17, 22)))
    for value in node.graph.input:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_param = {"seq": "T", "batch": "N"}[dim.dim_param]
    node.graph.input[0].name = node.graph.node[0].input[0] = "x"
    lowering = {"to": rng.choice(FORMS)} if rng.random() < 0.5 else {"target": rng.choice(TARGETS)}
    return Case(node, {"lowering": lowering, "fault": rng.randrange(2**31), "seed": rng.randrange(1000)})


def judge(case: Case) -> Outcome:
    """Plant the fault; if the node is proven all the same, look for inputs on which it shows."""
    models = with_fault(case)
    if isinstance(models, Outcome):
        return models
    lowered, wrong, what = models
    check = attempt(lambda: rl.verify(case.model, wrong, runs=1, tolerance=ANY))
    if isinstance(check, Outcome):
        return agreed(1) if check.kind == "refused" else check
    if not check.proofs or not all(check.proofs):
        return agreed(1)
    shows = visible(case.model, lowered, wrong, case.options["seed"])
    return fault(f"proven: {what.partition(':')[0]}", f"{what}; {shows}; {check}", 1) if shows else agreed(1)
