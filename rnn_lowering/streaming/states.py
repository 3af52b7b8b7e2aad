"""The initial states of recurrent nodes, and which inputs and outputs of a model are states already."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from rnn_lowering.streaming.frame_rules import data_inputs
from rnn_lowering.streaming.frames import Flow, Recurrent
from rnn_lowering.streaming.sized import run_node
from rnn_lowering.types import Array

SLOTS = {"h": (5, 1), "c": (6, 2)}
"""The input and the output of a recurrent node that hold a state."""

_REARRANGING = frozenset(
    ("Identity", "Squeeze", "Unsqueeze", "Transpose", "Slice", "Concat", "Gather", "Split", "Reshape", "Flatten")
)


@dataclass(frozen=True)
class NodeState:
    """A state of one recurrent node, and where it comes from.

    Attributes:
        recurrent: The node.
        kind: "h" or "c".
        constant: Its initial value, an array that broadcasts to it; None where that is no constant.
        input: The input of the model that is its initial value, if there is one.
        output: The output of the model that returns the next value of that input, if there is one.
    """

    recurrent: Recurrent
    kind: str
    constant: Array | None
    input: ir.Value | None = None
    output: ir.Value | None = None


def node_states(flow: Flow, graph: ir.Graph) -> list[NodeState]:
    """Return the states of the recurrent nodes that carry one, in their order.

    Raises:
        UnsupportedError: One is computed from data, or comes from an input in another shape that nothing returns.
    """
    elements = _numbered_elements(flow, graph)
    returned = _returned(flow, graph, elements)
    states = [
        _node_state(flow, recurrent, kind, elements, returned)
        for recurrent in flow.recurrent
        for kind in ("h", "c")
        if kind == "h" or recurrent.node.op_type == "LSTM"
    ]
    read: set[int] = set()
    for state in (s for s in states if s.input is not None):
        node = state.recurrent.node
        labels = set(elements[node.inputs[SLOTS[state.kind][0]]].reshape(-1).tolist())  # type: ignore[index]
        if labels & read:
            raise flow.refuse(
                node,
                f"shares the initial state in input '{state.input and state.input.name}' with another node",
                "give each node an input of its own",
            )
        read |= labels
    return states


def _node_state(
    flow: Flow,
    recurrent: Recurrent,
    kind: str,
    elements: Mapping[ir.Value, Array],
    returned: Mapping[ir.Value, ir.Value],
) -> NodeState:
    node, (slot, _) = recurrent.node, SLOTS[kind]
    value = node.inputs[slot] if slot < len(node.inputs) else None
    if value is None:
        return NodeState(recurrent, kind, np.zeros(()))
    constant = flow.constant(value)
    if constant is not None:
        batch = 0 if node.attributes.get_int("layout", 0) else 1
        first = constant.take([0], axis=batch) if constant.shape[batch] else np.zeros(())
        return NodeState(recurrent, kind, first if (constant == first).all() else constant)
    labels = elements.get(value)
    sources = (
        []
        if labels is None
        else [v for v, own in elements.items() if v.is_graph_input() and _includes(own, labels)]
    )
    if len(sources) == 1:
        (source,) = sources
        if source in returned or source is value:
            return NodeState(recurrent, kind, None, source, returned.get(source))
    raise flow.refuse(
        node,
        f"initial_{kind} is computed from data"
        if not sources
        else f"initial_{kind} comes from input '{sources[0].name}' in another shape, and no output returns it",
        "make it an input of the model, of the shape that the node has it in, or a constant",
    )


def _includes(whole: Array, part: Array) -> bool:
    return bool(np.isin(part, whole).all())


def _numbered_elements(flow: Flow, graph: ir.Graph) -> dict[ir.Value, Array]:
    """Give each element of the inputs that may be states a number; return the numbers in every value that only
    rearranges them."""
    labels: dict[ir.Value, Array] = {}
    start = 1
    for value in graph.inputs:
        shape = flow.short.shapes.get(value)
        floats = value.dtype is not None and value.dtype.is_floating_point()
        if shape is not None and floats and value not in flow.framings and math.prod(shape) <= 1 << 20:
            labels[value] = np.arange(start, start + math.prod(shape)).reshape(shape)
            start += math.prod(shape)
    return _rearranged(flow, graph, labels)


def _returned(flow: Flow, graph: ir.Graph, elements: Mapping[ir.Value, Array]) -> dict[ir.Value, ir.Value]:
    """Return for each input that is a state the output that returns it: every element in the same position."""
    final: dict[ir.Value, Array] = {}
    for recurrent in flow.recurrent:
        node = recurrent.node
        for slot, number in SLOTS.values():
            initial = node.inputs[slot] if slot < len(node.inputs) else None
            if initial is not None and initial in elements and number < len(node.outputs):
                final[node.outputs[number]] = elements[initial]
    rearranged = _rearranged(flow, graph, final)
    found: dict[ir.Value, ir.Value] = {}
    for value in (v for v in graph.inputs if v in elements):
        for output in graph.outputs:
            if output in rearranged and np.array_equal(rearranged[output], elements[value]):
                found.setdefault(value, output)
    return found


def _rearranged(flow: Flow, graph: ir.Graph, labels: dict[ir.Value, Array]) -> dict[ir.Value, Array]:
    """Add the values that nodes compute from numbered elements, where these only rearrange them."""
    known = dict(labels)
    for node in graph:
        if node.domain or node.op_type not in _REARRANGING or not any(v in known for v in node.inputs):
            continue
        data = data_inputs(node)[:1] if node.op_type != "Concat" else data_inputs(node)
        feed = {v.name or "": known[v] for v in data if v in known}
        rest = [v for v in node.inputs if v is not None and v not in known]
        parameters = {v.name or "": held for v in rest if (held := flow.short.constant(v)) is not None}
        if len(feed) == len(set(data)) and len(parameters) == len(set(rest)):
            rearranged = run_node(node, feed | parameters, flow.opset)
            known.update((v, a) for v, a in zip(node.outputs, rearranged, strict=False) if v.name)
    return known
