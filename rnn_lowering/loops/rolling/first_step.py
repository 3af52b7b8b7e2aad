"""A first step whose first states are zeros, and of which an exporter has computed what follows from them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from rnn_lowering.facts.constants import computed
from rnn_lowering.loops.rolling.numbering import NumberedGraph
from rnn_lowering.loops.rolling.steps import RolledSteps, StepBefore
from rnn_lowering.loops.rolling.writing import ScanWriter
from rnn_lowering.types import array_of


def add_folded_step(steps: RolledSteps, writer: ScanWriter) -> None:
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
