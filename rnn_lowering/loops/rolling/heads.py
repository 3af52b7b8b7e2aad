"""What follows from each step alike, as a head on its state: the Scan computes it too, and raising computes it for
all steps at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable

from rnn_lowering.facts.operators import is_of_default_domain, operator_of
from rnn_lowering.facts.walks import reached
from rnn_lowering.loops.rolling.chains import Chain
from rnn_lowering.loops.rolling.numbering import Computation, NumberedGraph
from rnn_lowering.loops.rolling.steps import RolledSteps

_HEADS = ("MatMul", "Gemm", "Softmax", "LogSoftmax")
"""Operators beside those of elements that can follow a node for all steps at once."""


def add_heads(steps: RolledSteps, others: Iterable[Chain]) -> bool:
    """Add what follows from each step, but for what other chains need; return whether there is any."""
    graph, step = steps.graph, steps.step
    users: dict[int | None, list[Computation]] = defaultdict(list)
    for computation in graph.computations:
        for number in dict.fromkeys(computation.inputs):
            users[number].append(computation)
    needed = _ancestors(graph, [product for chain in others for product in chain.products])
    of_steps = {n for values in steps.values for c in step.body for n in map(values.get, c.outputs)}
    seen, before = {*step.body}, len(step.body)
    pending = [user for c in step.body for number in c.outputs for user in users[number]]
    while pending:
        head = pending.pop(0)
        if head in seen or head in needed or not _is_head(head):
            continue
        seen.add(head)
        known = {*step.states, *step.rows, *step.outer, *(n for c in step.body for n in c.outputs)}
        outer = {n for n in head.inputs if n is not None and n not in known}
        if not any(_depends(graph, n, of_steps) for n in outer) and steps.extend(head, outer):
            pending += [user for number in head.outputs for user in users[number]]
    return len(step.body) > before


def _is_head(computation: Computation) -> bool:
    node = computation.node
    return is_of_default_domain(node) and (operator_of(node).elementwise or node.op_type in _HEADS)


def _ancestors(graph: NumberedGraph, computations: Iterable[Computation]) -> set[Computation]:
    """Return computations and what they depend on."""
    return {*reached(computations, lambda c: [graph.producers.get(n) for n in c.inputs if n is not None])}


def _depends(graph: NumberedGraph, number: int, of_steps: Container[int | None]) -> bool:
    """Whether a value depends on a step."""

    def before(value: int) -> tuple[int | None, ...]:
        return graph.producers[value].inputs if value in graph.producers else ()

    return any(value in of_steps for value in reached([number], before))
