"""Lists and tensors that grow by a row in each step of a Loop: their rows are stacked instead.

A Scan carries no sequences, nor states that grow. SequenceInsert into an empty list whose elements are only joined
after the Loop, and Concat of a state with a row, become a stacked output; so do rows that a ScatterND writes
(`buffers`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import onnx_ir as ir

from rnn_lowering.emit.ops import Ops
from rnn_lowering.loops.buffers import Buffer, Buffers, drop_users
from rnn_lowering.loops.facts import Facts, TensorKind
from rnn_lowering.model.replace import drop_unused, take_over
from rnn_lowering.model.scopes import graphs_of, values_used
from rnn_lowering.spec.node_spec import DEFAULT_DOMAIN


@dataclass(frozen=True)
class _Grown:
    """A state that grows.

    Attributes:
        state: Its number.
        row: What a step adds.
        axis: The axis along which a tensor grows; None for a list.
        buffer: The tensor of which it is a row, where that does not grow.
    """

    state: int
    row: ir.Value
    axis: int | None = None
    buffer: Buffer | None = None


def stack_grown_states(
    facts: Facts, node: ir.Node, emitter: Callable[[ir.Node], Ops], *, written_only: bool = False
) -> ir.Node:
    """Return a Loop that stacks the rows of the states that grow, in the place of one; itself if there are none.

    Args:
        facts: Facts about the model.
        node: A Loop.
        emitter: Returns what emits into the graph of the node.
        written_only: Whether only the states whose rows are written count, not those that grow.
    """
    attribute = node.attributes.get("body")
    bodies = () if attribute is None else graphs_of(attribute)
    if (
        len(bodies) != 1
        or len(bodies[0].inputs) != len(node.inputs)
        or len(bodies[0].outputs) < len(node.inputs) - 1
    ):
        return node
    (body,), states = bodies, len(node.inputs) - 2
    named = range(min(states, len(node.outputs)))
    if len(node.outputs) < states:
        return node
    grown = [] if written_only else [each for n in named if (each := _grown(facts, node, body, n)) is not None]
    buffers = Buffers(facts, node, body, emitter(node))
    found = {n: buffer for n in named if (buffer := buffers.find(n)) is not None}
    grown += [_Grown(n, buffer.row, buffer=buffer) for n, buffer in found.items()]
    if not grown:
        return node
    places = {each.state for each in grown}
    kept = [n for n in range(states) if n not in places]
    outputs = [node.outputs[n] for n in (*kept, *range(states, len(node.outputs)))]
    inputs = [*node.inputs[:2], *(node.inputs[2 + n] for n in kept)]
    new = ir.Node(
        "", "Loop", inputs, [ir.AttrGraph("body", body)], num_outputs=len(outputs) + len(grown), name=node.name
    )
    graph = node.graph
    assert graph is not None
    graph.insert_before(node, new)
    for old, value in zip(outputs, new.outputs, strict=False):
        take_over(old, value)
    op = emitter(node)
    for each, value in zip(grown, new.outputs[len(outputs) :], strict=True):
        value.name = op.unique_name("rows")
        _join(facts, op, node, each, value)
    rows = list(body.outputs)[1 + states :]
    given = [body.outputs[0], *(body.outputs[1 + n] for n in kept), *rows, *(each.row for each in grown)]
    body.outputs[:] = given
    for n in places:
        drop_users(body, body.inputs[2 + n])
    for n in sorted(places, reverse=True):
        del body.inputs[2 + n]
    graph.insert_after(new, op.nodes)
    for value in op.initializers:
        graph.register_initializer(value)
    node.attributes.pop("body")
    used = values_used(node)
    graph.remove(node, safe=True)
    drop_unused(used)
    return new


def _grown(facts: Facts, node: ir.Node, body: ir.Graph, n: int) -> _Grown | None:
    """Return a state as one that grows; None where it is none, or its use is unknown."""
    before, after = body.inputs[2 + n], body.outputs[1 + n]
    step, final, first = after.producer(), node.outputs[n], node.inputs[2 + n]
    if step is None or step.graph is not body or step.domain not in DEFAULT_DOMAIN or first is None:
        return None
    if len(before.uses()) != 1 or len(after.uses()) > 0 or list(body.outputs).count(after) > 1:
        return None
    row = step.inputs[1] if len(step.inputs) == 2 and step.inputs[0] is before else None
    if row is None or (source := row.producer()) is None or source.graph is not body:
        return None
    if step.op_type == "SequenceInsert":
        source = first.producer()
        empty = source is not None and source.op_type == "SequenceEmpty"
        users = [use.node for use in final.uses()]
        joined = all(user.op_type == "ConcatFromSequence" and user.graph is node.graph for user in users)
        if not empty or not joined or final.is_graph_output():
            return None
        known = [_places(facts, user, row) for user in users]
        return None if None in known else _Grown(n, row, None)
    if step.op_type == "Concat":
        kind = facts.kind(row)
        if kind is None or not kind.shape or facts.kind(first) is None:
            return None
        axis = (step.attributes.get_int("axis", 0) or 0) % len(kind.shape)
        return _Grown(n, row, axis) if kind.shape[axis] == 1 else None
    return None


def _places(facts: Facts, user: ir.Node, row: ir.Value) -> tuple[TensorKind, int, bool] | None:
    """Return the kind of a row, the axis along which a ConcatFromSequence joins rows, and whether that is new."""
    kind, axis, new_axis = (
        facts.kind(row),
        user.attributes.get_int("axis", 0) or 0,
        user.attributes.get_int("new_axis", 0),
    )
    if kind is None or kind.shape is None:
        return None
    rank = len(kind.shape) + bool(new_axis)
    axis += rank if axis < 0 else 0
    fits = 0 <= axis < rank and (new_axis or kind.shape[axis] == 1)
    return (kind, axis, bool(new_axis)) if fits else None


def _join(facts: Facts, op: Ops, node: ir.Node, grown: _Grown, rows: ir.Value) -> None:
    """Emit what the rows become after the Loop, in the place of what was."""
    if grown.buffer is not None:
        grown.buffer.emit(facts, op, rows, node.outputs[grown.state])
        return
    kind = facts.kind(grown.row)
    assert kind is not None
    facts.declare(rows, TensorKind(kind.element, (None, *(kind.shape or ()))))
    stacked, final = op.given(rows, ir.DataType(kind.element), (None, *kind.dims)), node.outputs[grown.state]
    for old, axis, new_axis in _joins(facts, grown, final):
        order = [*range(1, axis + 1), 0, *range(axis + 1, stacked.rank)]
        joined = op.transpose(stacked, order) if axis else stacked
        joined = joined if new_axis else op.squeeze(joined, [axis + 1])
        if grown.axis is not None:
            first = node.inputs[2 + grown.state]
            known = facts.kind(first)
            assert first is not None
            assert known is not None
            joined = op.concat([op.given(first, ir.DataType(kind.element), known.dims), joined], axis)
        (value,) = op.outputs([joined])
        take_over(old, value)
        facts.declare(value, TensorKind(kind.element, joined.shape))
        user = old.producer()
        if user is not None and user is not node and user.graph is not None:
            user.replace_input_with(0, None)
            user.graph.remove(user, safe=True)


def _joins(facts: Facts, grown: _Grown, final: ir.Value) -> Iterator[tuple[ir.Value, int, bool]]:
    if grown.axis is not None:
        yield final, grown.axis, False
        return
    for use in list(final.uses()):
        found = _places(facts, use.node, grown.row)
        assert found is not None
        yield use.node.outputs[0], found[1], found[2]
