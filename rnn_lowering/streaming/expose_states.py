"""Turn the states of a model into inputs and outputs, with metadata for the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from rnn_lowering.inference.polynomials import in_chunk, size
from rnn_lowering.spec.node_spec import node_ref
from rnn_lowering.streaming.editor import Editor, dim_of, home, input_of, label_of, producer
from rnn_lowering.streaming.frames.flow import Flow
from rnn_lowering.streaming.frames.frame_counts import after_the_start
from rnn_lowering.streaming.frames.framing import Counter, Frames, Framing
from rnn_lowering.streaming.host.metadata import Dim, StreamPlan
from rnn_lowering.streaming.operators.counters import counts
from rnn_lowering.streaming.operators.recurrent_states import (
    held_until_first,
    keep_where_empty,
    lengths_of,
    skip_missing,
    state_slots,
    steps_and_batch,
)
from rnn_lowering.streaming.states import NodeState, States
from rnn_lowering.streaming.time_inputs import TimeInputs
from rnn_lowering.types import Array, array_of


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
        for edit in (*counts(self.flow), *self.flow.edits):
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
            read = past if first is None else after_the_start(self.editor, node, past, first)
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
                skip_missing(self.editor, node, delay, dtype)
            final = held_until_first(self.editor, node, delay, final, initial)
        elif lengths is not None and lengths not in self.flow.known.contents:
            final = keep_where_empty(self.editor, node, final, initial)
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
