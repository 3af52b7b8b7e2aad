"""Replace states of a Loop that only collect a row in each step with stacked outputs.

Three operators give a row to a state:

* SequenceInsert appends it to a list that is empty at first, and whose elements are only joined after the Loop.
* Concat joins it to a tensor that grows.
* ScatterND writes it into a tensor: step i writes row i, or the i-th one from the end. If there are more rows than
  steps, the others are those of the initial tensor.

A Scan carries neither lists nor states that grow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from rnn_lowering.emit.composites import flip
from rnn_lowering.emit.ops import Ops
from rnn_lowering.emit.tensor import Tensor
from rnn_lowering.errors import InvalidNodeError, UnsupportedError
from rnn_lowering.facts.known import Known
from rnn_lowering.facts.operators import DEFAULT_DOMAIN, detach, operator_of, values_used
from rnn_lowering.facts.size import ONE, PartialShape, Size, size
from rnn_lowering.loops.as_recurrence import rows_along
from rnn_lowering.loops.body import LoopBody
from rnn_lowering.loops.body_copy import BodyWriter
from rnn_lowering.loops.counters import STEP_NUMBER, Counters
from rnn_lowering.loops.loop_forms import unroll
from rnn_lowering.loops.step_values import LoopLimits
from rnn_lowering.loops.trips import runs_once_per_row, simulated_trips
from rnn_lowering.loops.value_facts import Facts
from rnn_lowering.model.model_sizes import take_over
from rnn_lowering.model.replace import drop_unused


@dataclass(frozen=True)
class JoinedRows:
    """A value after the Loop that the rows become.

    Attributes:
        value: The value.
        axis: The axis of the rows in it.
        dropped: The axes of a row, of size 1, that it does not have.
        backwards: Whether the row of the last step is the first one.
        before: A tensor in front of the rows.
        behind: A tensor whose rows from the number of steps on are behind them.
    """

    value: ir.Value
    axis: int
    dropped: Sequence[int] = ()
    backwards: bool = False
    before: ir.Value | None = None
    behind: ir.Value | None = None


@dataclass(frozen=True)
class StackedState:
    """A state that gets a row in each step.

    Attributes:
        number: Its number.
        row: What a step adds.
        joined: What the rows become.
        steps: The number of rows, if known, or its name.
    """

    number: int
    row: ir.Value
    joined: Sequence[JoinedRows]
    steps: int | Size | None = None


def stack_rows_of_states(
    facts: Facts, loop: LoopBody, emitter: Callable[[], Ops], *, written_only: bool = False
) -> ir.Node:
    """Replace a Loop whose states get rows by a Loop that stacks these rows; return the new node, or the given one
    if it has no such states.

    Args:
        facts: Facts about the model.
        loop: The Loop.
        emitter: Returns what emits into the graph of the Loop.
        written_only: Whether only rows that a ScatterND writes count.
    """
    scratch = emitter()
    states = [_stacked_state(facts, loop, n, scratch, written_only=written_only) for n in range(len(loop.results))]
    stacked = [each for each in states if each is not None]
    return (
        _replace_loop(facts, loop, stacked, emitter())
        if stacked and len(states) == len(loop.initial)
        else loop.node
    )


def _stacked_state(
    facts: Facts, loop: LoopBody, n: int, scratch: Ops, *, written_only: bool
) -> StackedState | None:
    """Return a state that gets a row in each step; None if that is not certain."""
    before, after, first = loop.state_inputs[n], loop.state_outputs[n], loop.initial[n]
    step = after.producer()
    if step is None or step.graph is not loop.body or step.domain not in DEFAULT_DOMAIN or first is None:
        return None
    if len(step.inputs) < 2 or step.inputs[0] is not before:
        return None
    rule = GIVES_A_ROW.get(step.op_type)
    if rule is None or (written_only and step.op_type != "ScatterND"):
        return None
    state = rule(facts, loop, step, n, first, scratch)
    if state is None or not _only_gets_rows(loop.body, before, after, state.row):
        return None
    return _without_dropped_axis(facts, state)


def _without_dropped_axis(facts: Facts, state: StackedState) -> StackedState:
    """Skip the Unsqueeze in front of a row, if every reader removes that axis again.

    tract 0.23 does not end with a Scan whose rows get an axis that is removed behind it.
    """
    row, shape = state.row, facts.shape(state.row)
    node, dropped = row.producer(), {tuple(each.dropped) for each in state.joined}
    axes = next(iter(dropped)) if len(dropped) == 1 else ()
    if node is None or shape is None or len(axes) != 1 or not operator_of(node).keeps_order:
        return state
    given, rest = node.inputs[0], (*shape[: axes[0]], *shape[axes[0] + 1 :])
    if given is None or given.graph is not node.graph or None in rest or facts.shape(given) != rest:
        return state
    return replace(state, row=given, joined=[replace(each, dropped=()) for each in state.joined])


def _only_gets_rows(body: ir.Graph, before: ir.Value, after: ir.Value, row: ir.Value) -> bool:
    """Whether a body gives a state a row of its own, and returns nothing else that depends on the state."""
    source = row.producer()
    if (row.graph if source is None else source.graph) is not body:
        return False
    depends = {before, *(value for node in _users(body, before) for value in node.outputs)}
    returned = list(body.outputs)
    return returned.count(after) == 1 and depends.isdisjoint({*returned, row} - {after})


def _users(body: ir.Graph, value: ir.Value) -> dict[ir.Node, None]:
    """Return the nodes of a body that depend on a value."""
    depends, users = {value}, dict[ir.Node, None]()
    for node in body:
        if not depends.isdisjoint(values_used(node)):
            users[node] = None
            depends.update(node.outputs)
    return users


def _state_of_list(
    facts: Facts, loop: LoopBody, step: ir.Node, n: int, first: ir.Value, scratch: Ops
) -> StackedState | None:
    """Return a list to which each step appends a row; None if its elements are used otherwise than joined."""
    row, final, source = step.inputs[1], loop.results[n], first.producer()
    users = [use.node for use in final.uses()]
    empty = source is not None and source.op_type == "SequenceEmpty"
    if row is None or len(step.inputs) > 2 or not empty or final.is_graph_output():
        return None
    if not all(user.op_type == "ConcatFromSequence" and user.graph is loop.node.graph for user in users):
        return None
    uses = [_rows_of_list(facts, user, row) for user in users]
    joined = [each for each in uses if each is not None]
    return StackedState(n, row, joined) if len(joined) == len(uses) else None


def _rows_of_list(facts: Facts, user: ir.Node, row: ir.Value) -> JoinedRows | None:
    """Return what a ConcatFromSequence makes of rows; None if the size of a row along its axis is not 1."""
    shape, new_axis = facts.shape(row), bool(user.attributes.get_int("new_axis", 0))
    if shape is None:
        return None
    axis, rank = user.attributes.get_int("axis", 0) or 0, len(shape) + new_axis
    axis += rank if axis < 0 else 0
    if not 0 <= axis < rank or not (new_axis or shape[axis] == ONE):
        return None
    return JoinedRows(user.outputs[0], axis, dropped=() if new_axis else (axis,))


def _state_of_concat(
    facts: Facts, loop: LoopBody, step: ir.Node, n: int, first: ir.Value, scratch: Ops
) -> StackedState | None:
    """Return a tensor to which each step joins a row."""
    row = step.inputs[1]
    shape = facts.shape(row)
    if row is None or len(step.inputs) > 2 or not shape or facts.kind(first) is None:
        return None
    axis = (step.attributes.get_int("axis", 0) or 0) % len(shape)
    joined = JoinedRows(loop.results[n], axis, dropped=(axis,), before=first)
    return StackedState(n, row, [joined]) if shape[axis] == ONE else None


def _state_of_writes(
    facts: Facts, loop: LoopBody, step: ir.Node, n: int, first: ir.Value, scratch: Ops
) -> StackedState | None:
    """Return a tensor into which each step writes a row with ScatterND.

    Args:
        facts: Facts about the model.
        loop: The Loop.
        step: The ScatterND.
        n: The number of the state.
        first: The tensor before the first step.
        scratch: Emits into a graph of its own, which is dropped.
    """
    plain = step.attributes.get_string("reduction", "none") == "none" and len(step.inputs) == 3
    index, shape, place = step.inputs[1], facts.shape(first), facts.kind(step.inputs[1])
    columns = place.dims[-1] if place is not None and place.dims else None
    if not (plain and loop.results[n].name and shape and index is not None and columns is not None):
        return None
    if not 1 <= columns <= len(shape):
        return None
    axis = columns - 1
    row, ones = _row(facts, step, (*shape[:axis], *shape[columns:]))
    if row is None:
        return None
    try:
        with scratch.body():
            writer = BodyWriter(scratch, facts, unroll, LoopLimits(0, 0))
            writer.bring_constants([loop.body])
            order = _order_of_rows(Counters(writer, loop), index, first, axis)
    except (InvalidNodeError, UnsupportedError):
        return None
    if order is None:
        return None
    backwards, steps = order
    behind = None if steps is None else first
    joined = JoinedRows(loop.results[n], axis, dropped=range(ones), backwards=backwards, behind=behind)
    return StackedState(n, row, [joined], shape[axis] if steps is None else steps)


GIVES_A_ROW: dict[str, Callable[[Facts, LoopBody, ir.Node, int, ir.Value, Ops], StackedState | None]] = {
    "Concat": _state_of_concat,
    "ScatterND": _state_of_writes,
    "SequenceInsert": _state_of_list,
}
"""By the operator with which a step gives a row to a state, its first input: what reads it.

It gets the Loop, the node, the number of the state, the initial state, and what emits into a graph that is dropped.
"""


def _order_of_rows(
    counters: Counters, index: ir.Value, first: ir.Value, axis: int
) -> tuple[bool, int | None] | None:
    """Return whether step 0 writes the last row, and the number of steps if there are more rows; None if the index
    is neither that of row i in step i nor that of the i-th row from the end."""
    kind = counters.writer.facts.kind(first)
    sizes = () if kind is None else kind.dims
    length, front = sizes[axis], sizes[:axis]
    steps = simulated_trips(counters.writer, counters.loop)
    fills = runs_once_per_row(counters, first, axis) if steps is None else steps == length
    if not fills and (steps is None or length is None or not 0 < steps < length):
        return None
    if _is_index_of_row(counters, index, STEP_NUMBER, front):
        return False, None if fills else steps
    rows = counters.count_of_rows(first, axis)
    from_end = None if rows is None else rows - 1 - STEP_NUMBER
    return (True, None) if fills and from_end and _is_index_of_row(counters, index, from_end, front) else None


def _row(facts: Facts, write: ir.Node, shape: PartialShape) -> tuple[ir.Value | None, int]:
    """Go back from the written value to the first value with the shape of a row. Return it, and how many axes of
    size 1 were put in front of it."""
    value = write.inputs[2]
    earliest: tuple[ir.Value | None, int] = None, 0
    while value is not None:
        node, given = value.producer(), facts.shape(value)
        if node is None or node.graph is not write.graph:
            break
        ones = 0 if given is None else len(given) - len(shape)
        if given is not None and given == (*[ONE] * ones, *shape) and None not in given:
            earliest = value, ones
        if not (operator_of(node).keeps_order or node.op_type == "Expand"):  # of as many elements
            break
        value = node.inputs[0]
    return earliest


def _is_index_of_row(counters: Counters, index: ir.Value, number: Size, front: Sequence[int | None]) -> bool:
    """Whether an index is that of each element of a row, in order.

    Args:
        counters: The numbers of the Loop.
        index: The index, of the body.
        number: The number of the row.
        front: The sizes before the axis of the rows.
    """
    numbers, sizes = counters.numbers(index), [size for size in front if size is not None]
    if not numbers or len(sizes) < len(front) or len(numbers) != math.prod(sizes) * (len(front) + 1):
        return False
    return numbers == [each for place in np.ndindex(*sizes) for each in (*map(size, place), number)]


# The Loop without these states


def _replace_loop(facts: Facts, loop: LoopBody, stacked: Sequence[StackedState], op: Ops) -> ir.Node:
    """Replace a Loop by a Loop that stacks the rows of these states instead, and return the new node."""
    node, body, graph, states = loop.node, loop.body, loop.node.graph, len(loop.initial)
    assert graph is not None
    places = {each.number for each in stacked}
    kept = [n for n in range(states) if n not in places]
    inputs = [*node.inputs[:2], *(loop.initial[n] for n in kept)]
    outputs = [node.outputs[n] for n in (*kept, *range(states, len(node.outputs)))]
    count = len(outputs) + len(stacked)
    new = ir.Node("", "Loop", inputs, [ir.AttrGraph("body", body)], num_outputs=count, name=node.name)
    graph.insert_before(node, new)
    for old, value in zip(outputs, new.outputs, strict=False):
        take_over(old, value)
    for state, value in zip(stacked, new.outputs[len(outputs) :], strict=True):
        value.name = op.unique_name("rows")
        _join(facts, op, node, state, value)
    identities = [ir.node("Identity", [state.row], name=op.unique_name("Identity")) for state in stacked]
    for identity in identities:  # a row may be an input or an output of the body: runtimes misread such bodies
        identity.outputs[0].name = identity.name
        body.append(identity)
    carried = [loop.cond_out, *(loop.state_outputs[n] for n in kept)]
    body.outputs[:] = [*carried, *loop.rows, *(each.outputs[0] for each in identities)]
    for n in sorted(places, reverse=True):
        for user in reversed(_users(body, body.inputs[2 + n])):
            detach(user)
            body.remove(user, safe=False)
        del body.inputs[2 + n]
    graph.insert_after(new, op.nodes)
    for value in op.initializers:
        graph.register_initializer(value)
    node.attributes.pop("body")
    used = values_used(node)
    graph.remove(node, safe=True)
    drop_unused(used)
    return new


def _join(facts: Facts, op: Ops, node: ir.Node, state: StackedState, rows: ir.Value) -> None:
    """Emit the values that the rows of all steps become after the Loop, and replace the original ones."""
    kind = facts.kind(state.row)
    assert kind is not None
    facts.declare(rows, kind.stacked(state.steps))

    def given(value: ir.Value) -> Tensor:
        known = facts.kind(value)
        assert known is not None
        return op.given(value, known.dtype, known.dims)

    for each in state.joined:
        x = given(rows)
        x = op.squeeze(x, [1 + axis for axis in each.dropped]) if each.dropped else x
        x = flip(op, x) if each.backwards else x
        x = rows_along(op, x, each.axis)
        x = x if each.before is None else op.concat([given(each.before), x], each.axis)
        if each.behind is not None:
            assert isinstance(state.steps, int)
            x = op.concat([x, op.slice(given(each.behind), each.axis, state.steps, None)], each.axis)
        (value,) = [rows] if x.value is rows and len(state.joined) == 1 else op.outputs([x])
        shape = [dim for n, dim in enumerate(kind.shape or ()) if n not in each.dropped]
        rows_in_all = state.steps if each.before is each.behind is None else x.shape[each.axis]
        shape.insert(each.axis, size(rows_in_all) if isinstance(rows_in_all, int) else rows_in_all)
        user = each.value.producer()
        take_over(each.value, value)
        facts.declare(value, Known(kind.dtype, tuple(shape)))
        if user is not None and user is not node and user.graph is not None:
            user.replace_input_with(0, None)
            user.graph.remove(user, safe=True)
