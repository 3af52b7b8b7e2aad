"""A kind of search whose judge says that a model with Tanh fails, and that ends its process at Exp."""

import os
import random

from graphs import Graph
from stream_models import random as numbers

from fuzz.case import Case, Outcome, agreed, fault

CASES = 8
CHAIN = ("Relu", "Neg", "Abs", "Sigmoid")


def generate(rng: random.Random) -> Case:
    """Make a row of operators; every fourth or so has Tanh, every eighth Exp."""
    graph = Graph()
    names = [graph.input("x", [2, 3]), graph.constant(numbers((2, 3)))]
    for op_type in [*rng.sample(CHAIN, 3), *rng.choice(([], [], [], [], ["Tanh"], ["Tanh"], ["Exp"]))]:
        names.append(graph.node("Add", graph.node(op_type, names[-1]), rng.choice(names)))
    for name in names[-2:]:
        graph.output(name, None)
    return Case(graph.model(), {"scale": rng.random()})


def judge(case: Case) -> Outcome:
    """Look at the operators."""
    used = {node.op_type for node in case.model.graph.node}
    if "Exp" in used:
        os._exit(3)
    return fault("tanh", str(case.options["scale"])) if "Tanh" in used else agreed(2)
