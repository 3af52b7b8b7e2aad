"""Rolls up the loops that an exporter traced step by step: each becomes a Scan over its steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from rnn_lowering.emit.draft import Names
from rnn_lowering.errors import NodeRef, UnsupportedError
from rnn_lowering.facts.constants import computed
from rnn_lowering.facts.operators import default_opset, is_of_default_domain, operator_of, reached
from rnn_lowering.loops.lowering import LoopReport
from rnn_lowering.loops.raising.raised_model import Raised, raise_loops
from rnn_lowering.loops.rolling.numbering import (
    Computation,
    NumberedGraph,
    ProductChain,
    chains,
    may_have_chains,
)
from rnn_lowering.loops.rolling.steps import NotRolledError, RolledSteps, StepBefore
from rnn_lowering.loops.rolling.writing import ScanWriter, name_of
from rnn_lowering.model.copying import clone, order_restored
from rnn_lowering.model.folding import with_constants
from rnn_lowering.model.scopes import all_names, repeating_nodes, sort_nodes
from rnn_lowering.options import Lowering
from rnn_lowering.types import array_of

OLDEST_OPSET = 9
"""From here on a Scan has no batch axis of its own."""

TRACED = "traced loop"
"""What a report calls it."""

_PLACE = "rnn_lowering.place"


@dataclass(frozen=True)
class _RolledLoop:
    """A loop that was rolled up.

    Attributes:
        name: The name of its Scan.
        steps: The number of its steps.
        place: Where it began in the model.
        heads: Whether the Scan computes what follows from each step too.
    """

    name: str
    steps: int
    place: int
    heads: bool


def raise_all(model: ir.Model, options: Lowering) -> Raised:
    """Raise the Loops and Scans of a model, and the loops that were traced step by step, in a copy of it.

    A traced loop that is no node stays as it is, unless the options ask for Loops or Scans.
    """
    rolling = _Rolling(model)
    while True:
        rolled, loops = rolling.rolled()
        raised = raise_loops(rolled, options)
        scans = {node.name for _, node in repeating_nodes(raised.model)}
        stay = {loop.name: loop for loop in loops if loop.name in scans}
        why = {ref.name: reason for ref, reason in raised.reasons.items() if ref.name in stay}
        again = [loop for loop in stay.values() if loop.heads or options.to not in ("scan", "loop")]
        if not again:
            break
        for loop in again:
            rolling.leave(loop, why.get(loop.name, ""))
    steps = {loop.name: loop.steps for loop in loops}
    reports = [
        replace(report, operator=TRACED, steps=steps[report.name]) if report.name in steps else report
        for report in raised.loops
    ]
    reports += [LoopReport(x.name, TRACED, "main graph", "scan", "requested", x.steps) for x in stay.values()]
    reasons = {ref: reason for ref, reason in raised.reasons.items() if ref.name not in stay}
    left = [f"{count} traced steps stay, the first at '{at}': {why}" for at, count, why in rolling.left.values()]
    return Raised(raised.model, reports, reasons, [*raised.notes, *left])


def _may_have_any(model: ir.Model) -> bool:
    """Return whether a loop may have been traced."""
    return default_opset(model.opset_imports) >= OLDEST_OPSET and may_have_chains(model.graph)


class _Rolling:
    """The traced loops of a model, rolled up in copies of it."""

    def __init__(self, model: ir.Model) -> None:
        self.model = model
        self.left: dict[int, tuple[str, int, str]] = {}
        self.bare: set[int] = set()
        by_sizes = _may_have_any(model) and any(
            node.op_type == "Shape" for node in model.graph
        )  # they say its rows
        with order_restored(model):
            self._start = with_constants(model, sizes=True) if by_sizes and _can_be_sorted(model) else None
        for number, node in enumerate((self._start or model).graph):
            node.meta[_PLACE] = number

    def rolled(self) -> tuple[ir.Model, list[_RolledLoop]]:
        """Return a copy with a Scan for each traced loop, but for those that are left; the model itself if there is
        none."""
        if not _may_have_any(self.model):
            return self.model, []
        opset = default_opset(self.model.opset_imports)
        start, loops = self._start or self.model, list[_RolledLoop]()
        with order_restored(start):
            if not _can_be_sorted(start):
                return self.model, []
            model = clone(start)
        tried, names = {*self.left}, Names(all_names(model))
        while (rolled := _roll_up_one(model, opset, tried, self.bare, names)) is not None:
            loops.append(rolled)
            if not _can_be_sorted(model):
                self.left[rolled.place] = rolled.name, rolled.steps, "a step reads what depends on a later one"
                return self.rolled()
        return (model, loops) if loops else (self.model, [])

    def leave(self, loop: _RolledLoop, reason: str) -> None:
        """Roll up a loop without what follows from each step, if it has that, else not at all, from now on."""
        if loop.heads:
            self.bare.add(loop.place)
        else:
            self.left[loop.place] = loop.name, loop.steps, reason


def _can_be_sorted(model: ir.Model) -> bool:
    """Sort the nodes of a model; return whether that is possible."""
    try:
        sort_nodes(model)
    except UnsupportedError:  # a value depends on itself
        return False
    return True


def traced_loops(model: ir.Model) -> Iterator[NodeRef]:
    """Yield the loops of a model that were traced step by step."""
    if not _may_have_any(model):
        return
    inside = set[int]()
    graph = NumberedGraph(model.graph, default_opset(model.opset_imports))
    for chain in chains(graph):
        if inside.isdisjoint(chain.cuts):
            with suppress(NotRolledError):
                steps = RolledSteps.of(graph, chain)
                inside.update(number for values in steps.values for number in values.values())
                yield NodeRef(name_of(steps), TRACED, "main graph")


def _roll_up_one(
    model: ir.Model, opset: int, tried: set[int], bare: Collection[int], names: Names
) -> _RolledLoop | None:
    graph = NumberedGraph(model.graph, opset)
    every = list(chains(graph))
    for chain in every:
        place = chain.products[0].node.meta.get(_PLACE, -1)
        if place in tried:
            continue
        tried.add(place)
        try:
            steps = RolledSteps.of(graph, chain)
        except NotRolledError:
            continue
        writer = ScanWriter(steps, model, names)
        if not writer.has_types:
            continue
        _add_folded_step(steps, writer)
        heads = place not in bare and _add_heads(steps, [other for other in every if other is not chain])
        writer.write()
        return _RolledLoop(writer.name, len(steps.values), place, heads)
    return None


# What follows from each step alike, as a head on its state: the Scan computes it too, and raising computes it for
# all steps at once.


_HEADS = ("MatMul", "Gemm", "Softmax", "LogSoftmax")
"""Operators beside those of elements that can follow a node for all steps at once."""


def _add_heads(steps: RolledSteps, others: Iterable[ProductChain]) -> bool:
    """Add what follows from each step, but for what other chains need; return whether there is any."""
    graph, step = steps.graph, steps.step
    users: dict[int | None, list[Computation]] = defaultdict(list)
    for computation in graph.computations:
        for number in dict.fromkeys(computation.inputs):
            users[number].append(computation)
    products = [product for chain in others for product in chain.products]
    needed = {*reached(products, lambda c: [graph.producers.get(n) for n in c.inputs if n is not None])}
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


def _depends(graph: NumberedGraph, number: int, of_steps: Container[int | None]) -> bool:
    """Whether a value depends on a step."""

    def before(value: int) -> tuple[int | None, ...]:
        return graph.producers[value].inputs if value in graph.producers else ()

    return any(value in of_steps for value in reached([number], before))


# A first step whose first states are zeros, and of which an exporter has computed what follows from them.


def _add_folded_step(steps: RolledSteps, writer: ScanWriter) -> None:
    """Add the step before the first one, if each constant in it is what zeros give.

    Args:
        steps: The steps.
        writer: Knows types and shapes, and adds the zeros to the graph.
    """
    before = steps.read_back()
    if before is None or not before.folded or not _has_rows(steps, before):
        return
    graph, kinds = steps.graph, writer.kinds
    zeros: dict[int, ir.TensorProtocol] = {}
    for state in steps.step.states:
        if state not in before.values:
            value = graph.values[steps.values[0][state]][0]
            value = kinds.get(value, value)
            if value.dtype is None or value.shape is None or not value.shape.is_static():
                return
            zeros[state] = ir.tensor(np.zeros(value.shape.numpy(), value.dtype.numpy()))
    if not all(_is_computed(steps, before, zeros, *pair) for pair in before.folded):
        return
    for number, _ in before.folded:
        before.values.pop(number, None)
    before.values.update((state, graph.of(writer.constant(zero.numpy()))) for state, zero in zeros.items())
    steps.add_before(before.values)


def _has_rows(steps: RolledSteps, before: StepBefore) -> bool:
    """Whether the rows of the step are those before the rows of the first one."""
    return all(
        row.other(steps.graph, row.index + stride * (steps.first - 1)) == before.values.get(number)
        for number, (row, stride) in steps.step.rows.items()
    )


def _is_computed(
    steps: RolledSteps, before: StepBefore, zeros: Mapping[int, ir.TensorProtocol], number: int, constant: int
) -> bool:
    """Whether a constant is what the step computes of its first states."""
    graph, needed = steps.graph, {number}
    nodes: list[ir.Node] = []
    for computation in reversed(steps.step.body):
        if not needed.isdisjoint(computation.outputs):
            nodes.insert(0, computation.node)
            needed.update(n for n in computation.inputs if n is not None)
    leaves: dict[ir.Value, ir.TensorProtocol] = {}
    for value in (value for node in nodes for value in node.inputs if value is not None):
        tensor = _tensor(graph, before, zeros, graph.of(value))
        if tensor is not None:
            leaves[value] = tensor
    result, expected = computed(graph.values[number][0], nodes, leaves, graph.opset), graph.tensor(constant)
    return result is not None and expected is not None and np.array_equal(array_of(result), array_of(expected))


def _tensor(
    graph: NumberedGraph, before: StepBefore, zeros: Mapping[int, ir.TensorProtocol], number: int
) -> ir.TensorProtocol | None:
    return zeros.get(number) or graph.tensor(before.values.get(number, number))
