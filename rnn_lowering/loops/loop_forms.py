"""Repeat the recurrence of a Loop or Scan in a Scan, in a Loop, or unrolled.

A Loop that may have no step becomes an If around a Scan, since runtimes run no Scan of no steps.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from rnn_lowering.emit.composites import count
from rnn_lowering.emit.tensor import Tensor
from rnn_lowering.errors import UnknownTripsError, UnsupportedError
from rnn_lowering.facts.known import Known
from rnn_lowering.facts.operators import detach, is_used
from rnn_lowering.loops.as_recurrence import (
    LoopRecurrence,
    loop_as_recurrence,
    reversed_rows,
    rows_along,
    scan_as_recurrence,
    scanned_inputs,
)
from rnn_lowering.loops.body import LoopBody, ScanBody, checked_axis
from rnn_lowering.loops.body_copy import BodyWriter
from rnn_lowering.loops.counters import Counters
from rnn_lowering.loops.trips import ENDLESS, LoopTrips, depends_on_data, number_of_trips, simulated_trips
from rnn_lowering.loops.value_facts import TRUE, Elements, Item, KnownTensor, number_of

_INT64, _BOOL_TENSOR = ir.DataType.INT64, ir.TensorType(ir.DataType.BOOL)

_STATELESS_LOOP = 11
"""First opset whose Loop may have no state."""

_IF_OF_ANY_SHAPES = 11
"""First opset whose If may have branches of different shapes."""

_UNLIMITED = (1 << 63) - 1
"""The number of steps of a Loop without a limit."""

_WAY = "unroll it (--to unroll)"


def to_scan(writer: BodyWriter, loop: LoopBody | ScanBody) -> list[Item]:
    """Emit a Scan; return an item for each output of a Loop or Scan.

    Raises:
        UnsupportedError: The number of steps is unknown before the Loop starts, or a state is not a tensor of one
            shape.
    """
    if isinstance(loop, LoopBody):
        _check_tensors(writer, loop)
        writer.bring_constants([loop.body])
        trips = number_of_trips(Counters(writer, loop))
        writer.assumes_steps |= writer.needs_steps and not trips.positive
        if not (trips.positive or writer.needs_steps):
            return _guarded(writer, loop, trips)
        r = loop_as_recurrence(writer, loop, gathers=True, trips=trips)
    else:
        r = scan_as_recurrence(writer, loop)
    return r.results(_in_order(writer, r, _scan(writer, r)))


def _check_tensors(writer: BodyWriter, loop: LoopBody) -> None:
    for value, first in zip(loop.state_inputs, loop.initial, strict=True):
        if isinstance(writer.item(first), Elements) or isinstance(value.type, ir.SequenceType | ir.OptionalType):
            raise UnsupportedError(
                f"its state '{value.name}' is a sequence, which a Scan cannot carry", hint=_WAY, node=loop.ref
            )


def _scan(writer: BodyWriter, r: LoopRecurrence) -> Sequence[ir.Value]:
    """Emit a Scan; return its outputs."""
    op, trips = writer.op, r.trips
    assert trips is not None
    initial = [writer.value(item) for item in r.init]
    firsts = [writer.facts.with_names(item) for item in r.init]
    xs = [writer.value_of(x) for x in r.xs.values()]
    xs += [writer.value_of(count(op, trips.tensor))] if _takes_numbers(writer, r) else []
    with op.body(), writer.inner_scope():
        states = [writer.input_like(value) for value in r.state_inputs]
        for state, kind in zip(states, firsts, strict=True):
            writer.facts.declare(state, kind)
        rows = [_row(writer, x, value) for x, value in zip(r.xs.values(), xs, strict=False)]
        i = [writer.value_of(op.body_input("i", _INT64, ()))] if len(xs) > len(rows) else []
        outputs = r.step(writer, states, rows, i[0] if i else None, TRUE)
        kinds = [writer.facts.kind(item) for item in outputs]
        body = writer.body_graph([*states, *rows, *i], outputs, [value.type for value in r.returned])
    _check_shapes(writer, r, firsts, kinds)
    _check_cuts(writer, r, body)
    for value, kind in zip(body.outputs, kinds, strict=True):
        writer.facts.declare(value, kind)
    attributes = [ir.AttrGraph("body", body), ir.AttrInt64("num_scan_inputs", len(xs))]
    scan = writer.new_node("Scan", [*initial, *xs], attributes, len(outputs))
    return _declared(writer, r, scan.outputs, firsts, kinds[len(states) :])


def _takes_numbers(writer: BodyWriter, r: LoopRecurrence) -> bool:
    """Whether a Scan takes the numbers of its steps too: a step of a Loop uses them, or there are no rows.

    Raises:
        UnsupportedError: The runtime needs rows, and the steps can be unrolled or use no numbers.
    """
    loop, trips = r.loop, r.trips
    numbered = isinstance(loop, LoopBody) and loop.number in r.used
    if r.xs and not numbered:
        return False
    long = trips is None or trips.static_count is None or trips.static_count > writer.limits.steps
    if writer.strict_scans and not (numbered and long):
        taken = "the numbers of its steps" if numbered else "no rows"
        raise UnsupportedError(f"a Scan would take {taken}, which the target refuses", hint=_WAY, node=loop.ref)
    return True


def _row(writer: BodyWriter, x: Tensor, rows: ir.Value) -> ir.Value:
    """Return an input of the open body that is a row of a tensor."""
    value = writer.op.value(writer.op.body_input("x", x.dtype, x.shape[1:]))
    kind = writer.facts.kind(rows)
    assert kind is not None
    writer.facts.declare(value, kind.row)
    return value


def _check_shapes(
    writer: BodyWriter, r: LoopRecurrence, firsts: Sequence[Known | None], kinds: Sequence[Known | None]
) -> None:
    """Check that a step leaves the shapes of states as they are, by induction from the first ones."""
    for state, before, after in zip(r.state_inputs, firsts, kinds, strict=False):
        same = before is not None and before == after and before.shape is not None and None not in before.shape
        if not same and isinstance(r.loop, LoopBody):
            known = all(kind is not None and kind.is_static for kind in (before, after))
            raise UnsupportedError(
                f"the shape of its state '{state.name}' may change, which a Scan does not allow",
                hint=_WAY if known else f"fix the sizes of the inputs (--set-dim, --set-shape), {_WAY}",
                node=r.loop.ref,
            )
    if any(kind is None or kind.shape is None for kind in kinds):
        raise UnsupportedError("the rank of what its steps return is not known", hint=_WAY, node=r.loop.ref)


def _check_cuts(writer: BodyWriter, r: LoopRecurrence, body: ir.Graph) -> None:
    """Check that no step cuts a value at positions that it computes, for a runtime that fails at such a Scan."""
    for node in body if writer.strict_scans else ():
        kind = writer.facts.kind(node.outputs[0]) if node.op_type == "Slice" else None
        if kind is not None and (kind.shape is None or None in kind.shape):
            reason = "a step of a Scan would cut a value at positions that it computes, where the target fails"
            raise UnsupportedError(reason, hint=_WAY, node=r.loop.ref)


def _guarded(writer: BodyWriter, loop: LoopBody, trips: LoopTrips) -> list[Item]:
    """Emit an If: a Scan, or no steps. Return an item for each output of the Loop."""
    op = writer.op
    ran = writer.value_of(op.squeeze(op.less(op.constant([0]), trips.tensor), [0]))
    with op.body(), writer.inner_scope():
        r = loop_as_recurrence(writer, loop, gathers=True, trips=trips)
        outputs = _scan(writer, r)
        kinds = [writer.facts.kind(value) for value in outputs]
        types = [value.type for value in outputs]
        some = writer.body_graph([], outputs, types)
    with op.body(), writer.inner_scope():
        initial = [writer.value(item) for item in r.init]
        rows = zip(kinds[len(initial) :], r.stacked, strict=True)
        empty = [_empty(writer, kind and kind.row, loop.rows[n], loop, trips) for kind, n in rows]
        none = writer.body_graph([], [*initial, *empty], types)
    branches = [ir.AttrGraph("then_branch", some), ir.AttrGraph("else_branch", none)]
    guard = writer.new_node("If", [ran], branches, len(outputs))
    for value, kind in zip(guard.outputs, kinds, strict=True):
        writer.facts.declare(value, kind)
    return r.results(list(guard.outputs))


def _empty(writer: BodyWriter, kind: Known | None, value: ir.Value, loop: LoopBody, trips: LoopTrips) -> ir.Value:
    """Emit the stacked output of no steps; its number of rows is a constant only where the shapes of branches may
    differ."""
    sizes = None if kind is None or kind.shape is None else [writer.size(size) for size in kind.shape]
    if kind is None or sizes is None or None in sizes:
        raise UnsupportedError(
            f"it may have no step, and the sizes of its empty output '{value.name}' are not known",
            hint="fix the sizes of the inputs (--set-dim, --set-shape), or unroll it (--to unroll)",
            node=loop.ref,
        )
    op, dtype = writer.op, kind.dtype
    rows = op.constant([0]) if op.opset >= _IF_OF_ANY_SHAPES else trips.tensor
    shape = op.concat([rows, *(size for size in sizes if size is not None)], 0)
    fill = ir.tensor(np.zeros(1, dtype.numpy()), name="")
    return writer.value_of(op.emit("ConstantOfShape", [shape], (rows.number, *kind.dims), dtype, value=fill))


def to_loop(writer: BodyWriter, loop: LoopBody | ScanBody) -> list[Item]:
    """Emit a Loop; return an item for each output of a Loop or Scan.

    Raises:
        InvalidNodeError: It breaks the specification of its operator.
        UnsupportedError: The rank of what a Scan takes is unknown.
    """
    if isinstance(loop, LoopBody):
        r = loop_as_recurrence(writer, loop, gathers=False)
    else:
        r = scan_as_recurrence(writer, loop)
    return r.results(_in_order(writer, r, _loop(writer, r)))


def _loop(writer: BodyWriter, r: LoopRecurrence) -> Sequence[ir.Value]:
    """Emit a Loop; return its outputs."""
    op, trips = writer.op, r.trips
    initial = [writer.value(item) for item in r.init]
    limits: list[ir.Value | None]
    if trips is not None:
        limits = [writer.value_of(op.squeeze(trips.tensor, [0])), writer.value_of(op.true())]
    else:
        assert isinstance(r.loop, LoopBody)
        limits = [writer.value(writer.item(value)) for value in (r.loop.trips, r.loop.cond)]
    xs = [writer.declared(x) for x in r.xs.values()]
    kept = [writer.value_of(op.constant(0))] if not initial and op.opset < _STATELESS_LOOP else []
    with op.body(), writer.inner_scope():
        number, still = op.loop_inputs()
        i, going = writer.value_of(number), writer.value_of(still)
        unchanged = [writer.value_of(op.body_input("kept", _INT64, ())) for _ in kept]
        states = [writer.input_like(value) for value in r.state_inputs]
        for state, item in zip(states if isinstance(r.loop, ScanBody) else (), r.init, strict=False):
            writer.facts.declare(state, writer.facts.kind(item))  # a Scan keeps the shapes of its states
        outputs = r.step(writer, states, [writer.value_of(op.take(x, number)) for x in xs], i, going)
        after = writer.item(r.loop.cond_out) if isinstance(r.loop, LoopBody) and trips is None else going
        kinds = [writer.facts.kind(item) for item in outputs]
        types = [_BOOL_TENSOR, *(value.type for value in (*unchanged, *r.returned))]
        body = writer.body_graph([i, going, *unchanged, *states], [after, *unchanged, *outputs], types)
    attributes = [ir.AttrGraph("body", body)]
    node = writer.new_node("Loop", [*limits, *kept, *initial], attributes, len(kept) + len(outputs))
    return _declared(
        writer, r, node.outputs[len(kept) :], list(map(writer.facts.kind, states)), kinds[len(states) :]
    )


def _declared(
    writer: BodyWriter,
    r: LoopRecurrence,
    outputs: Sequence[ir.Value],
    states: Sequence[Known | None],
    rows: Sequence[Known | None],
) -> Sequence[ir.Value]:
    """Declare the types and shapes of final states and of stacked rows, and return them."""
    length = None if r.trips is None else r.trips.static_count
    stacked = [None if row is None else row.stacked(length) for row in rows]
    for value, kind in zip(outputs, [*states, *stacked], strict=True):
        writer.facts.declare(value, kind)
    return outputs


def _in_order(writer: BodyWriter, r: LoopRecurrence, found: Sequence[ir.Value]) -> list[Item]:
    """Return the outputs of an emitted Loop or Scan, stacked along the axes of the original."""
    loop, states = r.loop, len(r.states)
    results: list[Item] = list(found[:states])
    for n, value in zip(r.stacked, found[states:], strict=True):
        if not (loop.stacked_axes[n] or loop.stacked_in_front[n]):
            results.append(value)
            continue
        x = writer.tensor(value, loop.ref)
        x = reversed_rows(writer, x) if loop.stacked_in_front[n] else x
        results.append(writer.value_of(rows_along(writer.op, x, checked_axis(loop.stacked_axes[n], x.rank, loop))))
    return results


def unroll(writer: BodyWriter, loop: LoopBody | ScanBody) -> list[Item]:
    """Emit the steps of a Loop or Scan, one after the other; return an item for each of its outputs.

    Raises:
        InvalidNodeError: It breaks the specification of its operator.
        UnsupportedError: The number of its steps is unknown, or over a limit.
    """
    writer.bring_constants([loop.body, *loop.body.subgraphs()])
    writer.moved.difference_update(loop.body)
    states = [writer.item(value) for value in loop.initial]
    if isinstance(loop, LoopBody):
        most, going = _most_steps(writer, loop), loop.cond is None or _is_true(writer, loop, loop.cond)
        rows = _rows_of_loop(writer, loop)
    else:
        most, going = _length(writer, loop), True
        rows = _rows_of_scan(writer, loop, most)
    stacked: list[list[Item]] = []
    while going and len(stacked) < most:
        _count_step(writer, most, loop)
        writer.bind(list(rows), [each[len(stacked)] for each in rows.values()])
        returned = _step(writer, loop, states, len(stacked), KnownTensor(np.asarray(len(stacked), np.int64)))
        states = returned[: len(states)]
        stacked.append(returned[len(states) :])
        if isinstance(loop, LoopBody) and len(stacked) < most:
            going = _is_true(writer, loop, loop.cond_out)
    if not stacked:
        return [*states, *_empty_constants(writer, loop, _kinds_of_rows(writer, loop, states))]
    axes = zip(loop.stacked_axes, loop.stacked_in_front, strict=True)
    return [
        *states,
        *(
            writer.stack(each[::-1] if in_front else each, axis, loop.ref) if is_used(value) else None
            for value, each, (axis, in_front) in zip(loop.stacked, zip(*stacked, strict=True), axes, strict=False)
        ),
    ]


def _most_steps(writer: BodyWriter, loop: LoopBody) -> int:
    """Return the most steps of a Loop.

    Raises:
        UnknownTripsError: They are unknown.
    """
    if loop.trips is None:
        return _UNLIMITED
    number = number_of(writer.item(loop.trips))
    if number is None:
        raise UnknownTripsError("the number of its steps is not known", node=loop.ref, value=loop.trips)
    return max(int(number), 0)


def _is_true(writer: BodyWriter, loop: LoopBody, condition: ir.Value) -> bool:
    """Return whether a condition of a Loop is true.

    Raises:
        UnknownTripsError: It depends on data.
    """
    number = number_of(writer.item(condition))
    if number is None:
        raise depends_on_data(loop.ref, None if condition is loop.cond_out else condition)
    return bool(number)


def _length(writer: BodyWriter, loop: ScanBody) -> int:
    """Return the number of steps of a Scan."""
    _, _, steps = scanned_inputs(writer, loop)
    if steps is None:
        value = next((item for x in loop.xs if isinstance(item := writer.item(x), ir.Value)), None)
        raise UnknownTripsError("the number of its steps is not known", node=loop.ref, value=value)
    if writer.steps + steps > writer.limits.steps:
        raise _too_many(writer, f"{steps:,} steps", str(writer.steps + steps), loop)
    return steps


def _count_step(writer: BodyWriter, most: int, loop: LoopBody | ScanBody) -> None:
    """Count a step.

    Raises:
        UnsupportedError: It is over the limit.
    """
    writer.steps += 1
    if writer.steps > writer.limits.steps:
        known = writer.steps < most < ENDLESS
        raise _too_many(
            writer,
            f"{most:,} steps" if known else f"more than {writer.limits.steps} steps",
            str(most) if known else "N",
            loop,
        )


def _too_many(writer: BodyWriter, needed: str, limit: str, loop: LoopBody | ScanBody) -> UnsupportedError:
    return UnsupportedError(
        f"{needed}, nested ones included, are over the limit of {writer.limits.steps} for unrolling",
        hint=f"raise the limit (--max-unroll {limit})",
        node=loop.ref,
    )


def _rows_of_loop(writer: BodyWriter, loop: LoopBody) -> dict[ir.Value, list[Item]]:
    """Emit what all steps of a Loop compute from rows alone; return its rows by the values of the body."""
    trips = simulated_trips(writer, loop)
    if trips is None or not 1 < trips <= writer.limits.steps - writer.steps:
        return {}
    number = LoopTrips(writer.op.constant([trips]), trips, positive=True)
    return _split(writer, loop_as_recurrence(writer, loop, gathers=False, constants=False, trips=number), trips)


def _rows_of_scan(writer: BodyWriter, loop: ScanBody, steps: int) -> dict[ir.Value, list[Item]]:
    """Emit what all steps of a Scan compute from rows alone; return its rows in the order of the steps.

    Those that are read backwards are split as they are, apart from the others, and taken from the last one on.
    """
    rows: dict[ir.Value, list[Item]] = {
        row: [KnownTensor(np.asarray(part)) for part in np.moveaxis(x.array, axis, 0)[:: -1 if backwards else 1]]
        for row, value, axis, backwards in zip(loop.row_inputs, loop.xs, loop.axes, loop.backwards, strict=True)
        if isinstance(x := writer.item(value), KnownTensor)
    }
    known = {*rows}
    for direction in sorted({*loop.backwards}) if steps else ():
        directions = zip(loop.row_inputs, loop.backwards, strict=True)
        excluded = {row for row, backwards in directions if row in known or backwards != direction}
        r = scan_as_recurrence(writer, loop, excluded, flips=False)
        rows |= {value: each[::-1] if direction else each for value, each in _split(writer, r, steps).items()}
    return rows


def _split(writer: BodyWriter, r: LoopRecurrence, steps: int) -> dict[ir.Value, list[Item]]:
    """Return each row of xs."""
    op = writer.op
    return {
        value: [writer.value_of(op.squeeze(part, [0])) for part in op.split(x, [1] * steps, 0)]
        for value, x in r.xs.items()
    }


def _step(
    writer: BodyWriter, loop: LoopBody | ScanBody, states: Sequence[Item], step: int, number: Item
) -> list[Item]:
    """Emit a step, given its rows; return the next states and the rows to stack.

    Args:
        writer: Writes the body.
        loop: The Loop or Scan.
        states: The states before the step.
        step: The number of the step, in names.
        number: What a Loop gets as that number.
    """
    writer.bind(loop.state_inputs, states)
    if isinstance(loop, LoopBody):
        writer.bind((loop.number, loop.cond_in), [number, TRUE])
    with writer.op.under(str(step)):
        writer.copy_nodes(loop.body)
        return [writer.item(value) for value in (*loop.state_outputs, *loop.rows)]


def _empty_constants(writer: BodyWriter, loop: LoopBody | ScanBody, kinds: Sequence[Known | None]) -> list[Item]:
    """Return the stacked outputs of a Loop that has no step."""
    results: list[Item] = []
    for value, kind in zip(loop.stacked, kinds, strict=False):
        if not is_used(value):
            results.append(None)
            continue
        if kind is None or not kind.is_static:
            raise UnsupportedError(
                f"it has no step, and the sizes of its empty output '{value.name}' are not known",
                hint="fix the sizes of all inputs (--set-shape), or give it a step",
                node=loop.ref,
            )
        dtype = kind.dtype.numpy()
        row = writer.tensor(KnownTensor(np.zeros((1, *(size or 0 for size in kind.dims)), dtype)), loop.ref)
        empty = writer.op.slice(row, 0, 0, 0)  # OpenVINO takes an empty constant for a scalar
        results.append(writer.value_of(empty))
    return results


def _kinds_of_rows(writer: BodyWriter, loop: LoopBody | ScanBody, states: Sequence[Item]) -> list[Known | None]:
    """Return the types and shapes of what a step of a Loop would stack.

    Step 0 may read a row that is not there; shapes then follow if the numbers of the step are unknown.

    Raises:
        UnsupportedError: It is a Scan.
    """
    if isinstance(loop, ScanBody):
        raise UnsupportedError(
            "a Scan of no steps has no result in onnxruntime", hint="fix a length of 1 or more", node=loop.ref
        )
    first = KnownTensor(np.asarray(0))
    kinds = _kinds_in_step(writer, loop, states, first)
    if all(kind is not None and kind.is_static for kind in kinds):
        return kinds
    unknown = [_unknown_tensor(writer, item) for item in states]
    more = _kinds_in_step(writer, loop, unknown, _unknown_tensor(writer, first))
    return [a if a is not None and a.is_static else b for a, b in zip(kinds, more, strict=True)]


def _unknown_tensor(writer: BodyWriter, item: Item) -> Item:
    """Return a value of the type and shape of a known tensor; another item as it is."""
    if not isinstance(item, KnownTensor):
        return item
    value = ir.Value(name=writer.op.unique_name("in"))
    writer.facts.declare(value, item.kind())
    return value


def _kinds_in_step(writer: BodyWriter, loop: LoopBody, states: Sequence[Item], number: Item) -> list[Known | None]:
    """Return the types and shapes of what a step of a Loop would stack."""
    with writer.op.body(), writer.inner_scope():
        try:
            kinds = [writer.facts.kind(item) for item in _step(writer, loop, states, 0, number)[len(states) :]]
        except UnsupportedError:
            kinds = [None] * len(loop.rows)
        for node in writer.op.nodes:
            detach(node)
    return kinds
