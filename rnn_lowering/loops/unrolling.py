"""Write the steps of a Loop or Scan one after the other."""

from __future__ import annotations

from collections.abc import Container, Sequence

import numpy as np
import onnx_ir as ir

from rnn_lowering.errors import InvalidNodeError, UnsupportedError
from rnn_lowering.loops.body import LoopBody, ScanBody
from rnn_lowering.loops.body_copy import BodyCopy
from rnn_lowering.loops.emptying import EmptiedLoop, checked_axis, emptied_loop, emptied_scan
from rnn_lowering.loops.facts import Item, Known, TensorKind
from rnn_lowering.loops.trips import LoopTrips, UnknownTripsError, depends_on_data, simulated_trips
from rnn_lowering.model.scopes import detach


def unroll(copy: BodyCopy, read: LoopBody | ScanBody, items: Sequence[Item]) -> list[Item]:
    """Emit the steps of a Loop or Scan; return an item for each of its outputs.

    Raises:
        InvalidNodeError: It breaks the specification of its operator.
        UnsupportedError: The number of its steps is not known, or over a limit.
    """
    copy.bring_constants([read.body, *read.body.subgraphs()])
    copy.moved.difference_update(read.body)
    return _loop(copy, read, items) if isinstance(read, LoopBody) else _scan(copy, read, items)


def _loop(copy: BodyCopy, read: LoopBody, items: Sequence[Item]) -> list[Item]:
    trips, going, states = known_trips(read, items), _first(read, items), list(items[2:])
    rows: list[list[Item]] = []
    most = (1 << 63) - 1 if trips is None else trips
    moved = _rows_of_loop(copy, read, items)
    while going and len(rows) < most:
        _count(copy, most, read)
        copy.put(list(moved), [each[len(rows)] for each in moved.values()])
        outputs = _step(copy, read.body, [*_start(len(rows)), *states], len(rows))
        states = outputs[1 : 1 + len(states)]
        rows.append(outputs[1 + len(states) :])
        going = len(rows) < most and _is_true(outputs[0], read)
    if not rows:
        return [*states, *_empty(copy, read, _kinds_of_outputs(copy, read.body, states)[1 + len(states) :])]
    used = zip(read.stacked, zip(*rows, strict=True), strict=False)
    return [*states, *(copy.stack(each, 0, read.ref) if v.name else None for v, each in used)]


def _rows_of_loop(copy: BodyCopy, read: LoopBody, items: Sequence[Item]) -> dict[ir.Value, list[Item]]:
    """Emit what all steps of a Loop compute from rows alone; return its rows by the values of the body."""
    trips = simulated_trips(copy, read, items)
    if trips is None or not 1 < trips <= copy.limits.steps - copy.steps:
        return {}
    number = LoopTrips(copy.op.constant([trips]), trips, positive=True)
    return _split(copy, emptied_loop(copy, read, items, gathers=False, constants=False, trips=number), trips)


def _split(copy: BodyCopy, left: EmptiedLoop, steps: int) -> dict[ir.Value, list[Item]]:
    """Return each row of the rows of all steps."""
    op = copy.op
    return {
        value: [copy.made(op.squeeze(part, [0])) for part in op.split(rows, [1] * steps, 0)]
        for value, rows in left.rows.items()
    }


def known_trips(read: LoopBody, items: Sequence[Item]) -> int | None:
    """Return the most steps of a Loop; None for no limit.

    Raises:
        UnknownTripsError: They are not known.
    """
    given = items[0] if items else None
    if given is None:
        return None
    if not isinstance(given, Known) or given.array.size != 1:
        raise UnknownTripsError("the number of its steps is not known", node=read.ref, value=read.trips)
    return max(int(given.array.reshape(())), 0)


def _first(read: LoopBody, items: Sequence[Item]) -> bool:
    given = items[1] if len(items) > 1 else None
    if given is None:
        return True
    if not isinstance(given, Known) or given.array.size != 1:
        raise depends_on_data(read.ref, read.condition)
    return bool(given.array.reshape(()))


def _is_true(going: Item, read: LoopBody) -> bool:
    if not isinstance(going, Known) or going.array.size != 1:
        raise depends_on_data(read.ref)
    return bool(going.array.reshape(()))


def _start(number: int) -> list[Item]:
    """Return the number of a step, and that it is taken."""
    return [Known(np.asarray(number, np.int64)), Known(np.asarray(True))]


def _scan(copy: BodyCopy, read: ScanBody, items: Sequence[Item]) -> list[Item]:
    count = len(read.initial)
    states, xs = list(items[:count]), items[count:]
    steps = _length(copy, read, xs)
    known = {
        value: np.moveaxis(x.array, axis, 0)[:: -1 if backwards else 1]
        for value, x, axis, backwards in zip(read.row_inputs, xs, read.axes, read.backwards, strict=True)
        if isinstance(x, Known)
    }
    moved = _rows_of_scan(copy, read, items, steps, known) if steps else {}
    stacked: list[list[Item]] = []
    for n in range(steps):
        _count(copy, steps, read)
        copy.put(list(known), [Known(np.asarray(rows[n])) for rows in known.values()])
        copy.put(list(moved), [rows[n] for rows in moved.values()])
        outputs = _step(copy, read.body, states, n)
        states = outputs[:count]
        stacked.append(outputs[count:])
    if not stacked:
        raise UnsupportedError(
            "a Scan of no steps has no result in onnxruntime", hint="fix a length of 1 or more", node=read.ref
        )
    results: list[Item] = []
    for value, each, axis, in_front in zip(
        read.stacked, zip(*stacked, strict=True), read.stacked_axes, read.stacked_in_front, strict=False
    ):
        results.append(copy.stack(each[::-1] if in_front else each, axis, read.ref) if value.name else None)
    return [*states, *results]


def _rows_of_scan(
    copy: BodyCopy, read: ScanBody, items: Sequence[Item], steps: int, known: Container[ir.Value]
) -> dict[ir.Value, list[Item]]:
    """Emit what all steps of a Scan compute from rows alone; return its rows in the order of the steps.

    Those that are read backwards are split as they are, apart from the others, and taken from the last one on.
    """
    moved: dict[ir.Value, list[Item]] = {}
    for backwards in sorted({*read.backwards}):
        pairs = zip(read.row_inputs, read.backwards, strict=True)
        but = {value for value, other in pairs if value in known or other != backwards}
        left = emptied_scan(copy, read, items, but, flips=False)
        for value, rows in _split(copy, left, steps).items():
            moved[value] = rows[::-1] if backwards else rows
    return moved


def _step(copy: BodyCopy, body: ir.Graph, given: Sequence[Item], number: int) -> list[Item]:
    copy.put(body.inputs[: len(given)], given)
    with copy.op.under(str(number)):
        copy.nodes(body)
        return [copy.item(value) for value in body.outputs]


def _length(copy: BodyCopy, read: ScanBody, xs: Sequence[Item]) -> int:
    """Return the number of steps of a Scan."""
    lengths = set()
    for item, axis in zip(xs, read.axes, strict=True):
        x = copy.tensor(item, read.ref)
        length = x.shape[checked_axis(axis, x.rank, read)]
        if length is None:
            value = item if isinstance(item, ir.Value) else None
            raise UnknownTripsError("the number of its steps is not known", node=read.ref, value=value)
        lengths.add(length)
    if len(lengths) > 1:
        raise InvalidNodeError(f"the lengths of what it scans differ: {sorted(lengths)}", node=read.ref)
    steps = lengths.pop()
    if copy.steps + steps > copy.limits.steps:
        raise _too_many(copy, f"{steps:,} steps", str(copy.steps + steps), read)
    return steps


def _count(copy: BodyCopy, most: int, read: LoopBody | ScanBody) -> None:
    copy.steps += 1
    if copy.steps > copy.limits.steps:
        known = copy.steps < most < 1 << 62
        raise _too_many(
            copy,
            f"{most:,} steps" if known else f"more than {copy.limits.steps} steps",
            str(most) if known else "N",
            read,
        )


def _too_many(copy: BodyCopy, needed: str, limit: str, read: LoopBody | ScanBody) -> UnsupportedError:
    return UnsupportedError(
        f"{needed}, nested ones included, are over the limit of {copy.limits.steps} for unrolling",
        hint=f"raise the limit (--max-unroll {limit})",
        node=read.ref,
    )


def _kinds_of_outputs(copy: BodyCopy, body: ir.Graph, states: Sequence[Item]) -> list[TensorKind | None]:
    """Return what the first step of a Loop would compute, without writing it."""
    with copy.op.body(), copy.apart():
        try:
            kinds = [copy.facts.kind(item) for item in _step(copy, body, [*_start(0), *states], 0)]
        except UnsupportedError:
            kinds = [None] * len(body.outputs)
        for node in copy.op.nodes:
            detach(node)
    return kinds


def _empty(copy: BodyCopy, read: LoopBody, kinds: Sequence[TensorKind | None]) -> list[Item]:
    """Return what a Loop without steps stacks."""
    results: list[Item] = []
    for value, kind in zip(read.stacked, kinds, strict=False):
        if not value.name:
            results.append(None)
            continue
        if kind is None or not kind.is_static:
            raise UnsupportedError(
                f"it has no step, and the sizes of its empty output '{value.name}' are not known",
                hint="fix the sizes of all inputs (--input-shape), or give it a step",
                node=read.ref,
            )
        dtype = ir.DataType(kind.element).numpy()
        row = copy.tensor(Known(np.zeros((1, *(size or 0 for size in kind.dims)), dtype)), read.ref)
        results.append(copy.made(copy.op.slice(row, 0, 0, 0)))  # OpenVINO takes an empty constant for a scalar
    return results
