"""The states of a model become inputs and outputs, with metadata for the host.

`states_of` finds the states of recurrent nodes: their initial values, and inputs and outputs of the model that are
states already. `expose` edits the model.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from rnn_lowering.errors import UnsupportedError, counted
from rnn_lowering.facts.node_outputs import compute_node, numbered
from rnn_lowering.facts.operators import captured_values, input_at, moved_inputs, operator_of, reached, with_bodies
from rnn_lowering.facts.size import Symbol
from rnn_lowering.streaming.editor import Editor, input_of
from rnn_lowering.streaming.flow import Flow, StatefulNode
from rnn_lowering.streaming.frames import NO_DELAY, Delay, Frames, Framing, Unframed
from rnn_lowering.streaming.metadata import StreamPlan
from rnn_lowering.streaming.operators.frame_numbers import continued_numbers, fold_sizes
from rnn_lowering.streaming.operators.node_states import (
    NodeState,
    dims_of,
    expose_state,
    input_name,
    state_slots,
    steps_and_batch,
)
from rnn_lowering.streaming.operators.recurrences import late_state_error
from rnn_lowering.streaming.sizes import TimeInputs
from rnn_lowering.types import Array, array_of

_PRIMES = (5, 7, 11, 13, 17, 19, 23, 29)


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
    shapes: dict[ir.Value, list[int]] = {}
    sizes = _example(flow, graph)
    for value in graph.inputs:
        dims = flow.known.shapes.get(value)
        floats = value.dtype is not None and value.dtype.is_floating_point()
        if dims is None or not floats or flow.is_timed(value):
            continue
        shape = [int(dim.at(sizes)) for dim in dims]
        if math.prod(shape) <= 1 << 20:
            shapes[value] = shape
    labels = numbered([np.empty(shape, bool) for shape in shapes.values()])
    return _rearranged(flow, graph, dict(zip(shapes, labels, strict=True)))


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
            initial = input_at(node, slot)
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
    value = input_at(node, slot)
    if value is None:
        return NodeState(recurrent, kind, np.zeros(()))
    if value in flow.known.contents:
        return NodeState(recurrent, kind, _constant_state(flow, node, kind, value))
    sources = []
    if (labels := elements.get(value)) is not None:
        sources = [v for v, numbers in elements.items() if v.is_graph_input() and _includes(numbers, labels)]
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
            node, f"{input_name(node, kind)} depends on the size of an axis", "make it an input of the model"
        )
    if node.op_type == "Scan":
        return constant
    batch = 0 if kind == "s" else steps_and_batch(node)[1]
    first = constant.take([0], axis=batch) if constant.shape[batch] else np.zeros(())
    kept = first if (constant == first).all() else constant
    sizes = [kept.shape[n] if n == batch else int(dim.constant or 1) for n, dim in enumerate(dims)]
    return np.broadcast_to(kept, sizes) if kept.ndim else kept


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
                node, f"reads '{name}', a state, which changes after the first chunk", "give it its own input"
            )
        for output in node.outputs:
            _check_unread(flow, output, name)
    if value.is_graph_output():
        raise UnsupportedError(
            f"'{name}' is a state and an output, but changes after the first chunk", hint="drop that output"
        )


def _check_late_states(flow: Flow, paired: Collection[ir.Value | None]) -> None:
    """Refuse an output that is computed from a late state, unless the stream carries the output."""
    for recurrent in (value for value in flow.recurrent if value.late):
        slots = [slot for _, slot in state_slots(recurrent.node).values()]
        outputs = [v for v in recurrent.node.outputs if v.index() in slots]
        computed = [v for v in outputs if flow.framings.get(v) is Unframed.LAST]
        for value in computed:
            if value.is_graph_output() and value not in paired:
                raise late_state_error(flow, recurrent.node, recurrent.late)
            nodes = [reader for reader, _ in value.uses() if reader.op_type not in ("Shape", "Size")]
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
        name, node, delay = output.name or "", recurrent.node, recurrent.late or NO_DELAY
        drop = "drop that output, since the stream carries the state"
        if late.setdefault(name, delay) != delay:
            raise flow.refuse(
                node,
                f"returns its last state in '{name}' with states that come earlier or later",
                f"{drop}, or give each state its own output",
            )
        if delay.of_stream % size:
            fits = f", or give calls of {counted(delay.of_stream, 'frame')}" * (delay.of_stream % flow.unit == 0)
            raise flow.refuse(
                node,
                f"returns its last state, '{name}', {counted(delay.of_stream, 'frame')} after the sequence has "
                f"ended, where no call of {counted(size, 'frame')} ends",
                drop + fits,
            )
    return {name: delay for name, delay in late.items() if delay}


def expose(
    work: ir.Model,
    flow: Flow,
    time: TimeInputs,
    states: States,
    late: Mapping[str, Delay],
    count_type: ir.DataType = ir.DataType.INT64,
) -> StreamPlan:
    """Make the states of a model its inputs and outputs, and return the plan for its host.

    Args:
        work: The model; it is changed.
        flow: What `follow` found.
        time: The axes of the frames.
        states: The states of recurrent nodes, and those that the caller keeps.
        late: How long after the sequence has ended outputs come that return states, by name.
        count_type: The integers in which frames are counted at run time.
    """
    graph = work.graph
    inputs = [v for v in graph.inputs if not v.is_initializer()]
    framings = {v.name or "": flow.framings.get(v) for v in graph.outputs}
    editor = Editor(work, flow.known, time, count_type)
    shapes = [dims_of(editor, state) for state in states.nodes]
    own_inputs = dict.fromkeys([s.input for s in states.nodes] + [cache.input for cache in states.caches])
    defaults = {value: _take_default(value, graph) for value in own_inputs if value is not None}
    for state, dims in zip(states.nodes, shapes, strict=True):
        expose_state(editor, flow, state, dims, state.constant if state.input is None else defaults[state.input])
    for cache in states.caches:
        editor.add_pair(cache.node, "x", cache.input, cache.output, editor.dims(cache.input), defaults[cache.input])
    kept = {cache.node for cache in states.caches}
    used = _used_nodes(flow, graph)
    for edit in (*continued_numbers(flow, used), *flow.edits):
        if edit.node not in kept and (used is None or edit.node in used):
            edit.make(editor)
    fold_sizes(flow, editor)
    return _plan(editor, flow, inputs, framings, late)


def _plan(
    editor: Editor,
    flow: Flow,
    inputs: Sequence[ir.Value],
    framings: Mapping[str, Framing],
    late: Mapping[str, Delay],
) -> StreamPlan:
    """Return the plan of an edited model, from its inputs and the framings of its outputs before."""
    time = editor.time
    of_states = {s.input for s in editor.states} | {s.output for s in editor.states}
    rest = {name: framing for name, framing in framings.items() if name not in of_states}
    framed = {name: framing for name, framing in rest.items() if isinstance(framing, Frames)}
    delays = {name: framing.delay for name, framing in framed.items()} | {**late}
    plan = StreamPlan(
        frames=time.frames,
        inputs={v.name or "": time.axes.get(v.name or "") for v in inputs if v.name not in of_states},
        outputs={name: framing.axis if isinstance(framing, Frames) else None for name, framing in rest.items()},
        states=tuple(editor.states),
        unit=flow.unit,
        rates={
            **{name: str(rate) for name, rate in time.rates.items()},
            **{k: str(d.rate) for k, d in delays.items()},
        },
        delay={name: delay.frames for name, delay in delays.items() if delay},
        short={name: -f.extra for name, f in framed.items() if f.extra},
        lengths=tuple(v.name or "" for v in inputs if v in flow.lengths),
        shortest=flow.shortest,
        max_frames=flow.last_frame,
    )
    return plan if flow.last_call is None else _ended(plan, flow.last_call)


def _ended(plan: StreamPlan, last_call: int) -> StreamPlan:
    """Return the plan with so many frames that the zeros behind them come before the end of each attention too."""
    most = min(plan.max_frames or last_call, last_call - plan.frames_late)
    if most < (plan.frames or plan.unit):
        raise UnsupportedError(
            f"the stream ends after {counted(last_call, 'frame')}, "
            f"of which {plan.frames_late} are the zeros behind a sequence",
            hint="--max-frames N, or a mask with a window",
        )
    return replace(plan, max_frames=most)


def _used_nodes(flow: Flow, graph: ir.Graph) -> set[ir.Node] | None:
    """Return the nodes on which the outputs depend without the masks that edits replace; None: on all."""
    if not flow.replaced:
        return None

    def before(node: ir.Node) -> list[ir.Node | None]:
        read = [v for slot, v in enumerate(node.inputs) if v is not None and (node, slot) not in flow.replaced]
        return [v.producer() for v in (*read, *captured_values(node))]

    used = reached((v.producer() for v in graph.outputs), before)
    return {inner for node in used for inner in with_bodies(node)}


def _take_default(value: ir.Value, graph: ir.Graph) -> Array | None:
    """Remove and return the default of an input that becomes a state: each call passes the state."""
    tensor = value.const_value
    if tensor is None:
        return None
    graph.initializers.pop(value.name or "", None)
    value.const_value = None
    return array_of(tensor)
