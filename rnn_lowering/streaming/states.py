"""The initial states of recurrent nodes, and which inputs and outputs of a model are states already."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from rnn_lowering.errors import UnsupportedError
from rnn_lowering.inference.polynomials import Symbol
from rnn_lowering.inference.shape_arithmetic import compute_node
from rnn_lowering.spec.kinds import is_recurrent
from rnn_lowering.streaming.frames.flow import Flow, StatefulNode
from rnn_lowering.streaming.operators.frame_by_frame import data_slots
from rnn_lowering.streaming.operators.recurrent_states import state_slots, steps_and_batch
from rnn_lowering.types import Array


def _name_of(kind: str) -> str:
    return {"s": "past_state", "h": "initial_h", "c": "initial_c"}.get(kind, kind)


_REARRANGING = frozenset(
    ("Identity", "Squeeze", "Unsqueeze", "Transpose", "Slice", "Concat", "Gather", "Split", "Reshape", "Flatten")
)


@dataclass(frozen=True)
class NodeState:
    """A state of one recurrent node, and its source.

    Attributes:
        recurrent: The node.
        kind: "h", "c", "s", or "state0" and so on of a Scan.
        constant: The initial value if it is constant: an array that broadcasts to the state.
        input: The model input that is the initial value. Without a constant or an input, the model computes the
            initial value from inputs without frames.
        output: The model output that returns the next value of `input`, or None.
    """

    recurrent: StatefulNode
    kind: str
    constant: Array | None
    input: ir.Value | None = None
    output: ir.Value | None = None

    @property
    def slot(self) -> int:
        """The input of the node that holds the state."""
        return state_slots(self.recurrent.node)[self.kind][0]


@dataclass(frozen=True)
class Cache:
    """Past frames that the caller already keeps.

    Attributes:
        node: The Concat that puts the past frames before the chunk.
        input: The model input with the past frames.
        output: The model output with the past frames for the next call.
    """

    node: ir.Node
    input: ir.Value
    output: ir.Value


@dataclass(frozen=True)
class States:
    """The states of recurrent nodes, in the order of the nodes, and the caches that the caller keeps."""

    nodes: list[NodeState]
    caches: list[Cache]


def states_of(flow: Flow, graph: ir.Graph) -> States:
    """Return the states of recurrent nodes; a model input may already hold some of them.

    Raises:
        UnsupportedError: Another node also reads an input that is a state.
    """
    elements = _numbered_elements(flow, graph)
    returned = _returned(flow, graph, elements)
    caches = []
    for node in flow.caches.values():
        labels = elements.get(node.inputs[0])  # type: ignore[arg-type]
        sources = [v for v in returned if labels is not None and _includes(elements[v], labels)]
        for source in sources[:1]:
            check_unread(flow, source, source.name or "")
            caches.append(Cache(node, source, returned[source]))
    nodes = _node_states(flow, elements, returned)
    _check_late_states(flow, {state.output for state in nodes})
    return States(nodes, caches)


def _check_late_states(flow: Flow, paired: Collection[ir.Value | None]) -> None:
    """Refuse an output that is computed from a late state, unless the stream carries the output."""
    for value, error in flow.late_states.items():
        read = [value]
        for each in read:
            if each.is_graph_output() and each not in paired:
                raise error
            nodes = [use.node for use in each.uses() if use.node.op_type not in ("Shape", "Size")]
            read += [v for node in nodes for v in node.outputs if v not in read]


def _node_states(
    flow: Flow, elements: Mapping[ir.Value, Array], returned: Mapping[ir.Value, ir.Value]
) -> list[NodeState]:
    states = [
        _node_state(flow, recurrent, kind, elements, returned)
        for recurrent in flow.recurrent
        for kind in state_slots(recurrent.node)
    ]
    read: set[int] = set()
    for state in (s for s in states if s.input is not None):
        node = state.recurrent.node
        labels = set(elements[node.inputs[state.slot]].reshape(-1).tolist())  # type: ignore[index]
        if labels & read:
            raise flow.refuse(
                node,
                f"shares the initial state in input '{state.input and state.input.name}' with another node",
                "give each node its own input",
            )
        read |= labels
    return states


def _node_state(
    flow: Flow,
    recurrent: StatefulNode,
    kind: str,
    elements: Mapping[ir.Value, Array],
    returned: Mapping[ir.Value, ir.Value],
) -> NodeState:
    node = recurrent.node
    slot, _ = state_slots(node)[kind]
    value = node.inputs[slot] if slot < len(node.inputs) else None
    if value is None:
        return NodeState(recurrent, kind, np.zeros(()))
    constant = flow.known.contents.get(value)
    if constant is not None:
        return NodeState(recurrent, kind, _same_rows(flow, node, kind, value))
    labels = elements.get(value)
    sources = (
        []
        if labels is None
        else [v for v, own in elements.items() if v.is_graph_input() and _includes(own, labels)]
    )
    if len(sources) == 1:
        (source,) = sources
        if source in returned or source is value:
            check_unread(flow, source, source.name or "")
            return NodeState(recurrent, kind, None, source, returned.get(source))
    return NodeState(recurrent, kind, None)


def _same_rows(flow: Flow, node: ir.Node, kind: str, value: ir.Value) -> Array:
    """Return a constant initial state, reduced to one row if all rows are equal."""
    constant, dims = flow.known.contents[value], flow.known.shapes[value]
    if constant.dtype == object:
        raise flow.refuse(node, f"{_name_of(kind)} depends on the size of an axis", "make it an input of the model")
    if node.op_type == "Scan":
        return constant
    batch = 0 if kind == "s" else steps_and_batch(node)[1]
    first = constant.take([0], axis=batch) if constant.shape[batch] else np.zeros(())
    kept = first if (constant == first).all() else constant
    sizes = [kept.shape[n] if n == batch else int(dim.constant or 1) for n, dim in enumerate(dims)]
    return np.broadcast_to(kept, sizes) if kept.ndim else kept


def check_unread(flow: Flow, value: ir.Value, name: str) -> None:
    """Refuse an input that becomes a state if another node than a recurrent one also reads it."""
    carried = {recurrent.node for recurrent in flow.recurrent}
    caches = set(flow.caches.values())
    for use in value.uses():
        node = use.node
        slots = [slot for slot, _ in state_slots(node).values()] if node in carried else []
        if use.idx in slots or (node.op_type in ("Shape", "Size") and node.domain == ""):
            continue
        if node in caches and use.idx == 0:
            continue
        if is_recurrent(node) or node.domain or node.op_type not in _REARRANGING or use.idx not in data_slots(node):
            raise flow.refuse(
                node,
                f"reads '{name}', a state, which changes after the first chunk",
                "give it its own input",
            )
        for output in node.outputs:
            check_unread(flow, output, name)
    if value.is_graph_output():
        raise UnsupportedError(
            f"'{name}' is a state and an output, but changes after the first chunk",
            hint="drop that output",
        )


def _includes(whole: Array, part: Array) -> bool:
    return bool(np.isin(part, whole).all())


_PRIMES = (5, 7, 11, 13, 17, 19, 23, 29)


def _example(flow: Flow, graph: ir.Graph) -> dict[Symbol, int]:
    """Return a different size for each open axis: an order of elements found with these holds for all sizes."""
    symbols = {s for v in graph.inputs for dim in flow.known.shapes.get(v, ()) for s in dim.symbols}
    return {s: _PRIMES[n % len(_PRIMES)] for n, s in enumerate(sorted(symbols, key=str))}


def _numbered_elements(flow: Flow, graph: ir.Graph) -> dict[ir.Value, Array]:
    """Number the elements of inputs that may be states; return the numbers in every value that rearranges them."""
    labels: dict[ir.Value, Array] = {}
    start, sizes = 1, _example(flow, graph)
    for value in graph.inputs:
        dims = flow.known.shapes.get(value)
        floats = value.dtype is not None and value.dtype.is_floating_point()
        if dims is None or not floats or flow.is_timed(value):
            continue
        shape = [int(dim.at(sizes)) for dim in dims]
        if math.prod(shape) <= 1 << 20:
            labels[value] = np.arange(start, start + math.prod(shape)).reshape(shape)
            start += math.prod(shape)
    return _rearranged(flow, graph, labels)


def _returned(flow: Flow, graph: ir.Graph, elements: Mapping[ir.Value, Array]) -> dict[ir.Value, ir.Value]:
    """Return for each input that is a state the output that returns it: every element in the same position."""
    final: dict[ir.Value, Array] = {}
    for recurrent in flow.recurrent:
        node = recurrent.node
        for slot, number in state_slots(node).values():
            initial = node.inputs[slot] if slot < len(node.inputs) else None
            if initial is not None and initial in elements and number < len(node.outputs):
                final[node.outputs[number]] = elements[initial]
    for tail, cache in flow.tails.items():
        lead = cache.inputs[0]
        if lead is not None and lead in elements:
            final[tail] = elements[lead]
    rearranged = _rearranged(flow, graph, final)
    found: dict[ir.Value, ir.Value] = {}
    for value in (v for v in graph.inputs if v in elements):
        for output in graph.outputs:
            if output in rearranged and np.array_equal(rearranged[output], elements[value]):
                found.setdefault(value, output)
    return found


def _rearranged(flow: Flow, graph: ir.Graph, labels: dict[ir.Value, Array]) -> dict[ir.Value, Array]:
    """Add the values that nodes compute from numbered elements, where these only rearrange them."""
    known, sizes = dict(labels), _example(flow, graph)
    for node in graph:
        if node.domain or node.op_type not in _REARRANGING or not any(v in known for v in node.inputs):
            continue
        data = [node.inputs[n] for n in (data_slots(node) if node.op_type == "Concat" else [0])]
        feed = {v: known[v] for v in data if v is not None and v in known}
        rest = [v for v in node.inputs if v is not None and v not in known]
        parameters = {v: held for v in rest if (held := _parameter(flow, v, sizes)) is not None}
        if len(feed) == len(set(data)) and len(parameters) == len(set(rest)):
            rearranged = compute_node(node, feed | parameters, flow.opset)
            known.update((v, a) for v, a in zip(node.outputs, rearranged, strict=False) if v.name)
    return known


def _parameter(flow: Flow, value: ir.Value, sizes: Mapping[Symbol, int]) -> Array | None:
    """Return a parameter of a node, such as the target of a Reshape, at these sizes of open axes."""
    numbers = flow.known.numbers(value)
    if numbers is None or any(not number.symbols <= set(sizes) for number in numbers):
        return flow.known.constant(value)
    return np.array([int(number.at(sizes)) for number in numbers]).reshape(flow.known.contents[value].shape)
