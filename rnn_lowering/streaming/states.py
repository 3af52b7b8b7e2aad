"""The states of a model become inputs and outputs, with metadata for the host.

`states_of` finds the states of recurrent nodes: their initial values, and inputs and outputs of the model that are
states already. `StateExposer` edits the model.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from rnn_lowering.errors import UnsupportedError, counted
from rnn_lowering.facts.node_outputs import compute_node
from rnn_lowering.facts.operators import moved_inputs, operator_of
from rnn_lowering.facts.size import Symbol
from rnn_lowering.nodes.kinds import kind_of
from rnn_lowering.nodes.node_spec import node_ref
from rnn_lowering.nodes.rnn import RecurrentSpec
from rnn_lowering.streaming.editor import Editor, dim_of, input_of, label_of
from rnn_lowering.streaming.flow import Flow, StatefulNode
from rnn_lowering.streaming.frame_counts import fold_sizes, past_or_first
from rnn_lowering.streaming.frames import NOT_LATE, Delay, Frames, TimeInputs, Unframed
from rnn_lowering.streaming.metadata import Dim, StreamPlan
from rnn_lowering.streaming.operators.frame_numbers import continued_numbers
from rnn_lowering.streaming.operators.recurrences import (
    keep_empty_rows,
    keep_until_frame_0,
    late_state_error,
    lengths_of,
    start_at_frame_0,
    state_slots,
    steps_and_batch,
)
from rnn_lowering.types import Array, array_of

_PRIMES = (5, 7, 11, 13, 17, 19, 23, 29)


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
    for node in flow.caches:
        labels = elements.get(input_of(node))
        sources = [v for v in returned if labels is not None and _includes(elements[v], labels)]
        for source in sources[:1]:
            _check_unread(flow, source, source.name or "")
            caches.append(Cache(node, source, returned[source]))
    nodes = _node_states(flow, elements, returned)
    _check_late_states(flow, {state.output for state in nodes})
    return States(nodes, caches)


def _numbered_elements(flow: Flow, graph: ir.Graph) -> dict[ir.Value, Array]:
    """Number the elements of inputs that may be states; return the numbers in each value that rearranges them."""
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


def _example(flow: Flow, graph: ir.Graph) -> dict[Symbol, int]:
    """Return a different size for each open axis: an order of elements found with these holds for all sizes."""
    symbols = {s for v in graph.inputs for dim in flow.known.shapes.get(v, ()) for s in dim.symbols}
    return {s: _PRIMES[n % len(_PRIMES)] for n, s in enumerate(sorted(symbols, key=str))}


def _rearranged(flow: Flow, graph: ir.Graph, labels: dict[ir.Value, Array]) -> dict[ir.Value, Array]:
    """Add the values of nodes that only rearrange numbered elements."""
    known, sizes = dict(labels), _example(flow, graph)
    for node in graph:
        if not operator_of(node).moves or not any(v in known for v in node.inputs):
            continue
        data = node.inputs[: moved_inputs(node)]
        feed = {v: known[v] for v in data if v is not None and v in known}
        rest = [v for v in node.inputs if v is not None and v not in known]
        parameters = {v: array for v in rest if (array := _parameter(flow, v, sizes)) is not None}
        if len(feed) == len(set(data)) and len(parameters) == len(set(rest)):
            rearranged = compute_node(node, feed | parameters, flow.opset)
            named = ((v, a) for v, a in zip(node.outputs, rearranged, strict=False) if v.name)
            known.update((v, a) for v, a in named if np.unique(a).size == a.size)  # equal rows part later
    return known


def _parameter(flow: Flow, value: ir.Value, sizes: Mapping[Symbol, int]) -> Array | None:
    """Return a parameter of a node, such as the target of a Reshape, at these sizes of open axes."""
    numbers = flow.known.numbers(value)
    if numbers is None or any(not number.symbols <= set(sizes) for number in numbers):
        return flow.known.constant(value)
    return np.array([int(number.at(sizes)) for number in numbers]).reshape(flow.known.contents[value].shape)


def _returned(flow: Flow, graph: ir.Graph, elements: Mapping[ir.Value, Array]) -> dict[ir.Value, ir.Value]:
    """Return, for each input that is a state, the output that returns it: each element in the same position."""
    final: dict[ir.Value, Array] = {}
    for recurrent in flow.recurrent:
        node = recurrent.node
        for slot, number in state_slots(node).values():
            initial = node.inputs[slot] if slot < len(node.inputs) else None
            if initial is not None and initial in elements and number < len(node.outputs):
                final[node.outputs[number]] = elements[initial]
    for cache, tails in flow.caches.items():
        lead = cache.inputs[0]
        if lead is not None and lead in elements:
            final.update(dict.fromkeys(tails, elements[lead]))
    rearranged = _rearranged(flow, graph, final)
    returned: dict[ir.Value, ir.Value] = {}
    for value in (v for v in graph.inputs if v in elements):
        for output in graph.outputs:
            if output in rearranged and np.array_equal(rearranged[output], elements[value]):
                returned.setdefault(value, output)
    return returned


def _includes(whole: Array, part: Array) -> bool:
    return bool(np.isin(part, whole).all())


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
        labels = set(elements[input_of(node, state.slot)].reshape(-1).tolist())
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
    if value in flow.known.contents:
        return NodeState(recurrent, kind, _constant_state(flow, node, kind, value))
    sources = []
    if (labels := elements.get(value)) is not None:
        sources = [v for v, own in elements.items() if v.is_graph_input() and _includes(own, labels)]
    if len(sources) == 1 and (sources[0] in returned or sources[0] is value):
        (source,) = sources
        _check_unread(flow, source, source.name or "")
        return NodeState(recurrent, kind, None, source, returned.get(source))
    return NodeState(recurrent, kind, None)


def _constant_state(flow: Flow, node: ir.Node, kind: str, value: ir.Value) -> Array:
    """Return a constant initial state, reduced to one row if all rows are equal."""
    constant, dims = flow.known.contents[value], flow.known.shapes[value]
    if constant.dtype == object:
        raise flow.refuse(
            node, f"{_input_name(node, kind)} depends on the size of an axis", "make it an input of the model"
        )
    if node.op_type == "Scan":
        return constant
    batch = 0 if kind == "s" else steps_and_batch(node)[1]
    first = constant.take([0], axis=batch) if constant.shape[batch] else np.zeros(())
    kept = first if (constant == first).all() else constant
    sizes = [kept.shape[n] if n == batch else int(dim.constant or 1) for n, dim in enumerate(dims)]
    return np.broadcast_to(kept, sizes) if kept.ndim else kept


def _input_name(node: ir.Node, kind: str) -> str:
    """Return the name of the input of a state in the operator's specification."""
    if kind_of(node) is RecurrentSpec:
        return f"initial_{kind}"
    return "past_state" if kind == "s" else kind


def _check_unread(flow: Flow, value: ir.Value, name: str) -> None:
    """Refuse an input that becomes a state if another node than a recurrent one also reads it."""
    carried = {recurrent.node for recurrent in flow.recurrent}
    for node, used_slot in value.uses():
        slots = [slot for slot, _ in state_slots(node).values()] if node in carried else []
        if used_slot in slots or (node.op_type in ("Shape", "Size") and node.domain == ""):
            continue
        if node in flow.caches and used_slot == 0:
            continue
        if not operator_of(node).moves or used_slot >= moved_inputs(node):
            raise flow.refuse(
                node,
                f"reads '{name}', a state, which changes after the first chunk",
                "give it its own input",
            )
        for output in node.outputs:
            _check_unread(flow, output, name)
    if value.is_graph_output():
        raise UnsupportedError(
            f"'{name}' is a state and an output, but changes after the first chunk",
            hint="drop that output",
        )


def _check_late_states(flow: Flow, paired: Collection[ir.Value | None]) -> None:
    """Refuse an output that is computed from a late state, unless the stream carries the output."""
    for recurrent in (each for each in flow.recurrent if each.late):
        slots = [slot for _, slot in state_slots(recurrent.node).values()]
        outputs = [v for v in recurrent.node.outputs if v.index() in slots]
        computed = [v for v in outputs if flow.framings.get(v) is Unframed.LAST]
        for each in computed:
            if each.is_graph_output() and each not in paired:
                raise late_state_error(flow, recurrent.node, recurrent.late)
            nodes = [reader for reader, _ in each.uses() if reader.op_type not in ("Shape", "Size")]
            computed += [v for node in nodes for v in node.outputs if v not in computed]


def late_outputs(flow: Flow, states: States, frames: int | None) -> dict[str, Delay]:
    """Return how long after the sequence has ended the outputs come that return late states, by name.

    Args:
        frames: The number of frames of each call; None: any multiple of the unit.

    Raises:
        UnsupportedError: No call ends when the last state comes, or an output holds states that come at different
            times.
    """
    late: dict[str, Delay] = {}
    size = frames or flow.unit
    for output, recurrent in ((s.output, s.recurrent) for s in states.nodes if s.output is not None):
        name, node, own = output.name or "", recurrent.node, recurrent.late or NOT_LATE
        drop = "drop that output, since the stream carries the state"
        if late.setdefault(name, own) != own:
            raise flow.refuse(
                node,
                f"returns its last state in '{name}' with states that come earlier or later",
                f"{drop}, or give each state its own output",
            )
        if own.of_stream % size:
            fits = f", or give calls of {counted(own.of_stream, 'frame')}" * (own.of_stream % flow.unit == 0)
            raise flow.refuse(
                node,
                f"returns its last state, '{name}', {counted(own.of_stream, 'frame')} after the sequence has "
                f"ended, where no call of {counted(size, 'frame')} ends",
                drop + fits,
            )
    return {name: own for name, own in late.items() if own}


class StateExposer:
    """Makes the states of one model its inputs and outputs."""

    def __init__(
        self, work: ir.Model, flow: Flow, time: TimeInputs, count_type: ir.DataType = ir.DataType.INT64
    ) -> None:
        self.work, self.flow, self.time = work, flow, time
        self.editor = Editor(work, flow.known, time, count_type)
        self.positions = {value: n for n, value in enumerate(work.graph.outputs)}
        """The position of each output: an edit may replace its value."""
        self.sharing: dict[str, dict[str, None]] = {}
        """The nodes that share a state, by its input."""

    def expose(self, states: States, late: Mapping[str, Delay]) -> StreamPlan:
        """Edit the model and return the plan for its host.

        Args:
            states: The states.
            late: How long after the sequence has ended outputs come that return states, by name.
        """
        graph = self.work.graph
        inputs = [v for v in graph.inputs if not v.is_initializer()]
        outputs = list(graph.outputs)
        framings = {v.name or "": self.flow.framings.get(v) for v in outputs}
        nodes = states.nodes
        shapes = [self._dims_of(s) for s in nodes]
        for node in (s.recurrent.node for s in nodes):
            if self.flow.opset < 9 and lengths_of(node) is not None:
                raise self.flow.refuse(node, "a stream with sequence_lens needs opset 9", "convert the model first")
        own_inputs = [s.input for s in nodes if s.input is not None] + [cache.input for cache in states.caches]
        defaults = {value: _take_default(value, graph) for value in dict.fromkeys(own_inputs)}
        for state, dims in zip(nodes, shapes, strict=True):
            self._expose_node_state(state, dims, defaults)
        for cache in states.caches:
            dims = _state_dims(self.flow, cache.input)
            self._add_pair(cache.node, "x", cache.input, cache.output, dims, defaults[cache.input])
        kept = {cache.node for cache in states.caches}
        for edit in (*continued_numbers(self.flow), *self.flow.edits):
            if edit.node not in kept:
                edit.apply(self.editor)
        fold_sizes(self.flow, self.editor)
        exposed = self.editor.states
        of_states = {s.input for s in exposed} | {s.output for s in exposed}
        axes = {v.name or "": self.time.axes.get(v.name or "") for v in inputs}
        framed = {n: f for n, f in framings.items() if isinstance(f, Frames) and n not in of_states}
        delays = {name: framing.delay for name, framing in framed.items()} | {**late}
        return StreamPlan(
            frames=self.time.frames,
            inputs={name: axis for name, axis in axes.items() if name not in of_states},
            outputs={
                n: f.axis if isinstance(f, Frames) else None for n, f in framings.items() if n not in of_states
            },
            states=tuple(exposed),
            unit=self.flow.unit,
            rates={name: str(delay.rate) for name, delay in delays.items()},
            delay={name: delay.frames for name, delay in delays.items() if delay},
            short={name: -f.extra for name, f in framed.items() if f.extra},
            lengths=tuple(v.name or "" for v in inputs if v in self.flow.lengths),
            shortest=self.flow.shortest,
        )

    def _specified_dims(self, state: NodeState) -> tuple[Dim, ...]:
        """Return the dimensions of a state, as the operator specifies them."""
        node = state.recurrent.node
        if kind_of(node) is not RecurrentSpec:
            return _state_dims(self.flow, self._value_like(state))
        x, r = input_of(node), input_of(node, 2)
        batch_axis = steps_and_batch(node)[1]
        batch, hidden = state_dim(self.flow, x, batch_axis), state_dim(self.flow, r, 2)
        return (1, batch, hidden) if batch_axis else (batch, 1, hidden)

    def _dims_of(self, state: NodeState) -> tuple[Dim, ...]:
        """Return the dimensions of a state: those that its input declares, or that the operator specifies."""
        node, dims = state.recurrent.node, self._specified_dims(state)
        if state.input is None:
            return dims
        declared = _state_dims(self.flow, state.input)
        if state.input is not node.inputs[state.slot]:
            return declared
        return tuple(own if isinstance(own, int) else dim for own, dim in zip(declared, dims, strict=True))

    def _expose_node_state(
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
            node.replace_input_with(slot, past if first is None else past_or_first(self.editor, node, past, first))
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
        first_numbers = state.constant if state.input is None else defaults[state.input]
        if state.output is not None:
            self._add_pair(node, state.kind, past, state.output, dims, first_numbers)
        else:
            self.editor.add_present(node, state.kind, past, final, first_numbers, dims)

    def _dtype_of(self, state: NodeState) -> ir.DataType:
        """Return the element type of a state: the type of R, or of a value like the state."""
        node = state.recurrent.node
        return self.flow.known.types[
            input_of(node, 2) if kind_of(node) is RecurrentSpec else self._value_like(state)
        ]

    def _value_like(self, state: NodeState) -> ir.Value:
        """Return a value with the type and shape of a state of a LinearAttention or Scan."""
        node = state.recurrent.node
        return input_of(node, state.slot) if node.op_type == "Scan" else node.outputs[1]

    def _add_pair(
        self,
        node: ir.Node,
        kind: str,
        past: ir.Value,
        output: ir.Value,
        dims: tuple[Dim, ...],
        initial: Array | None,
    ) -> None:
        """Add an input that is a state already, because an output returns its next value."""
        for n, added in enumerate(self.editor.states):
            if added.input == past.name:
                nodes = self.sharing.setdefault(added.input, {added.node: None})
                nodes[node_ref(node, self.flow.scope).name] = None
                self.editor.states[n] = replace(added, node=", ".join(nodes))
                return
        present = self.work.graph.outputs[self.positions[output]]
        self.editor.add_state(past, present, node, kind, initial, dims)


def _take_default(value: ir.Value, graph: ir.Graph) -> Array | None:
    """Remove and return the default of an input that becomes a state: each call passes the state."""
    tensor = value.const_value
    if tensor is None:
        return None
    graph.initializers.pop(value.name or "", None)
    value.const_value = None
    return array_of(tensor)


def _state_dims(flow: Flow, value: ir.Value) -> tuple[Dim, ...]:
    return tuple(state_dim(flow, value, axis) for axis in range(len(flow.known.shapes[value])))


def state_dim(flow: Flow, value: ir.Value, axis: int) -> Dim:
    """Return a dimension of a value that becomes a state: a number, a name, or "2*name"."""
    return dim_of(flow.known.shapes[value][axis], axis, value.name)
