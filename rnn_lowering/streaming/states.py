"""The initial states of recurrent nodes, and which inputs and outputs of a model are states already.

Turn the states of a model into inputs and outputs, with metadata for the host.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from rnn_lowering.errors import UnsupportedError
from rnn_lowering.inference.shape_arithmetic import compute_node
from rnn_lowering.inference.symbolic_values import Symbol, in_chunk, size
from rnn_lowering.spec.kinds import is_recurrent
from rnn_lowering.spec.node_spec import node_ref
from rnn_lowering.streaming.editor import Editor, dim_of, home, input_of, label_of, producer
from rnn_lowering.streaming.flow import Flow, StatefulNode
from rnn_lowering.streaming.frame_counts import past_or_first
from rnn_lowering.streaming.frames import Counter, Frames, Framing, TimeInputs
from rnn_lowering.streaming.metadata import Dim, StreamPlan
from rnn_lowering.streaming.operators.counters import continued_counters
from rnn_lowering.streaming.operators.frame_by_frame import data_slots
from rnn_lowering.streaming.operators.recurrences import (
    keep_empty_rows,
    keep_until_frame_0,
    lengths_of,
    start_at_frame_0,
    state_slots,
    steps_and_batch,
)
from rnn_lowering.types import Array, array_of


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


def state_dims(flow: Flow, value: ir.Value) -> tuple[Dim, ...]:
    """Return the dimensions of a value that becomes a state: numbers, names, or "2*name"."""
    return tuple(state_dim(flow, value, axis) for axis in range(len(flow.known.shapes[value])))


def state_dim(flow: Flow, value: ir.Value, axis: int) -> Dim:
    """Return one dimension of a value that becomes a state."""
    return dim_of(flow.known.shapes[value][axis], axis, value.name)


class StateExposer:
    """Makes the states of one model its inputs and outputs."""

    def __init__(
        self, work: ir.Model, flow: Flow, time: TimeInputs, count_type: ir.DataType = ir.DataType.INT64
    ) -> None:
        self.work, self.flow, self.time = work, flow, time
        self.editor = Editor(work, flow.opset, time, count_type)
        self.positions = {value: n for n, value in enumerate(work.graph.outputs)}
        """The position of each output: an edit may replace its value."""
        self.sharing: dict[str, dict[str, None]] = {}
        """The nodes that share a state, by its input."""

    def expose(self, states: States) -> StreamPlan:
        """Edit the model and return the plan for its host."""
        graph = self.work.graph
        inputs = [v for v in graph.inputs if not v.is_initializer()]
        outputs = list(graph.outputs)
        framings = {v.name or "": self.flow.framings.get(v) for v in outputs}
        nodes = states.nodes
        shapes = [self._state_dims(s) for s in nodes]
        self._check(nodes)
        given = [s.input for s in nodes if s.input is not None] + [cache.input for cache in states.caches]
        defaults = {value: _default(value, graph) for value in dict.fromkeys(given)}
        for state, dims in zip(nodes, shapes, strict=True):
            self._recurrent(state, dims, defaults)
        for cache in states.caches:
            dims = state_dims(self.flow, cache.input)
            self._pair(cache.node, "x", cache.input, cache.output, dims, defaults[cache.input])
        kept = {cache.node for cache in states.caches}
        for edit in (*continued_counters(self.flow), *self.flow.edits):
            if edit.node not in kept:
                edit.apply(self.editor)
        _hold_known_sizes(self.flow, self.editor)
        exposed = self.editor.states
        taken = {s.input for s in exposed} | {s.output for s in exposed}
        named = {v.name or "": self.time.axes.get(v.name or "") for v in inputs}
        return StreamPlan(
            self.time.frames,
            {name: axis for name, axis in named.items() if name not in taken},
            {name: _axis(framing) for name, framing in framings.items() if name not in taken},
            tuple(exposed),
            self.flow.unit,
            {n: str(f.rate) for n, f in framings.items() if isinstance(f, Frames) and n not in taken},
            {n: f.delay.frames for n, f in framings.items() if isinstance(f, Frames) and f.delay},
            {n: -f.extra for n, f in framings.items() if isinstance(f, Frames) and f.extra},
        )

    def _check(self, states: Sequence[NodeState]) -> None:
        for state in states:
            node = state.recurrent.node
            if self.flow.opset < 9 and lengths_of(node) is not None:
                raise self.flow.refuse(node, "a stream with sequence_lens needs opset 9", "convert the model first")

    def _dims_of(self, state: NodeState) -> tuple[Dim, ...]:
        """Return the dimensions of a state, as the operator specifies them."""
        node = state.recurrent.node
        if state.kind not in ("h", "c"):
            return state_dims(self.flow, self._alike(state))
        x, r = input_of(node), input_of(node, 2)
        batch_axis = steps_and_batch(node)[1]
        batch, hidden = state_dim(self.flow, x, batch_axis), state_dim(self.flow, r, 2)
        return (1, batch, hidden) if batch_axis else (batch, 1, hidden)

    def _state_dims(self, state: NodeState) -> tuple[Dim, ...]:
        node, dims = state.recurrent.node, self._dims_of(state)
        if state.input is None:
            return dims
        declared = state_dims(self.flow, state.input)
        if state.input is not node.inputs[state.slot]:
            return declared
        return tuple(own if isinstance(own, int) else dim for own, dim in zip(declared, dims, strict=True))

    def _recurrent(
        self, state: NodeState, dims: tuple[Dim, ...], defaults: Mapping[ir.Value, Array | None]
    ) -> None:
        node = state.recurrent.node
        slot, output = state_slots(node)[state.kind]
        dtype = self._dtype_of(state)
        past = state.input
        if past is None:
            past = self.editor.add_past(node, state.kind, dtype, dims)
            first = node.inputs[slot] if slot < len(node.inputs) and state.constant is None else None
            node.resize_inputs(max(len(node.inputs), slot + 1))
            read = past if first is None else past_or_first(self.editor, node, past, first)
            node.replace_input_with(slot, read)
        if len(node.outputs) <= output:
            node.resize_outputs(output + 1)
        final = node.outputs[output]
        if not final.name:
            final.name = self.editor.name(f"{label_of(node)}_Y_{state.kind}")
        final.type = final.type or ir.TensorType(dtype)
        initial, lengths = input_of(node, slot), lengths_of(node)
        if delay := state.recurrent.delay:
            if state.kind == "h":
                start_at_frame_0(self.editor, node, delay, dtype)
            final = keep_until_frame_0(self.editor, node, delay, final, initial)
        elif lengths is not None and lengths not in self.flow.known.contents:
            final = keep_empty_rows(self.editor, node, final, initial)
        start = state.constant if state.input is None else defaults[state.input]
        if state.output is not None:
            self._pair(node, state.kind, past, state.output, dims, start)
            return
        self.editor.add_present(node, state.kind, past, final, state.recurrent.path, start, dims)

    def _dtype_of(self, state: NodeState) -> ir.DataType:
        """Return the element type of a state: the type of R, or of a value like the state."""
        of_cell = state.kind in ("h", "c")
        return self.flow.known.types[input_of(state.recurrent.node, 2) if of_cell else self._alike(state)]

    def _alike(self, state: NodeState) -> ir.Value:
        """Return a value with the type and shape of a state of a LinearAttention or Scan."""
        node = state.recurrent.node
        first = node.inputs[state.slot] if node.op_type == "Scan" else None
        return first or node.outputs[1]

    def _pair(
        self,
        node: ir.Node,
        kind: str,
        past: ir.Value,
        output: ir.Value,
        dims: tuple[Dim, ...],
        initial: Array | None,
    ) -> None:
        """Record an input that is a state already, because an output returns its next value."""
        for n, known in enumerate(self.editor.states):
            if known.input == past.name:
                ref = node_ref(node, self.flow.scope).name
                nodes = self.sharing.setdefault(known.input, {known.node: None})
                nodes[ref] = None
                self.editor.states[n] = replace(known, node=", ".join(nodes))
                return
        present = self.work.graph.outputs[self.positions[output]]
        self.editor.add_state(past, present, node, kind, initial, dims)


def _default(value: ir.Value, graph: ir.Graph) -> Array | None:
    """Remove and return the default of an input that becomes a state: each call passes the state."""
    tensor = value.const_value
    if tensor is None:
        return None
    graph.initializers.pop(value.name or "", None)
    value.const_value = None
    return array_of(tensor)


def _axis(framing: Framing) -> int | None:
    return framing.axis if isinstance(framing, Frames) else None


# Sizes that are equal in every call become constants, since most runtimes do not fold them


_MOST = 64
"""Values of more elements do not become constants."""


def _hold_known_sizes(flow: Flow, editor: Editor) -> None:
    """Replace integers that follow from sizes by constants; the nodes that computed them become unused."""
    frames = None if editor.time is None else editor.time.frames
    for value in [*flow.known.contents, *(v for v, f in flow.framings.items() if isinstance(f, Counter))]:
        node, dtype = value.producer(), flow.known.types.get(value)
        if node is None or node.op_type == "Constant" or not value.uses() or value.is_graph_output():
            continue
        if dtype is None or not dtype.is_integer():
            continue
        array = _counted(flow, value, frames) if value in flow.framings else _held(flow, value, frames)
        if array is not None and node.graph is not None:
            constant = editor.constant(array.astype(dtype.numpy()), home(producer(value)))
            value.replace_all_uses_with(constant)


def _held(flow: Flow, value: ir.Value, frames: int | None) -> Array | None:
    """Return the numbers in a value if every chunk has the same, else None."""
    shape = [in_chunk(dim, frames) for dim in flow.known.shapes.get(value, (size(_MOST + 1),))]
    if None in shape or np.prod([float(n or 0) for n in shape]) > _MOST:
        return None
    whole = np.broadcast_to(flow.known.contents[value], [int(n or 0) for n in shape])
    numbers = [in_chunk(size(n), frames) for n in whole.reshape(-1).tolist()]
    return None if None in numbers else np.array(numbers, np.int64).reshape(whole.shape)


def _counted(flow: Flow, value: ir.Value, frames: int | None) -> Array | None:
    """Return the numbers of a counter in a chunk."""
    counter = flow.framings[value]
    assert isinstance(counter, Counter)
    count = in_chunk(counter.frames.size(), frames)
    if count is None or count * counter.offsets.size > _MOST:
        return None
    places = [1] * counter.offsets.ndim
    places[counter.frames.axis] = count
    return counter.offsets + counter.step * np.arange(count).reshape(places)
