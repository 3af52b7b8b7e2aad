"""Make a Loop of a Scan, and a Scan of a Loop whose number of steps is known before it starts.

Either way states that never change become captured values, and what does not depend on the others leaves the body
(`emptying`). A Loop that may have no step becomes an If around a Scan, since runtimes run no Scan of no steps.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from rnn_lowering.emit.run_time_sizes import count
from rnn_lowering.emit.tensor import Tensor
from rnn_lowering.errors import UnsupportedError
from rnn_lowering.loops.body import LoopBody, ScanBody
from rnn_lowering.loops.body_copy import BodyCopy
from rnn_lowering.loops.emptying import EmptiedLoop, checked_axis, emptied_loop, emptied_scan, flipped
from rnn_lowering.loops.facts import Elements, Item, Known, TensorKind
from rnn_lowering.loops.trips import LoopTrips, number_of_trips

_INT64, _BOOL = ir.DataType.INT64, ir.DataType.BOOL
_WAY = "unroll it (--to unroll), or keep it, for a runtime that runs Loop (--targets)"


def to_loop(copy: BodyCopy, read: LoopBody | ScanBody, items: Sequence[Item]) -> list[Item]:
    """Emit a Loop; return an item for each output of a Loop or Scan.

    Raises:
        InvalidNodeError: It breaks the specification of its operator.
        UnsupportedError: The rank of what a Scan takes is not known.
    """
    emptier = (
        emptied_loop(copy, read, items, gathers=False)
        if isinstance(read, LoopBody)
        else emptied_scan(copy, read, items)
    )
    found, kinds = _loop(copy, emptier, items)
    length = None if emptier.trips is None else emptier.trips.known
    return emptier.results(_stacked(copy, emptier, found, kinds, length))


def to_scan(copy: BodyCopy, read: LoopBody | ScanBody, items: Sequence[Item]) -> list[Item]:
    """Emit a Scan; return an item for each output of a Loop or Scan.

    Raises:
        UnsupportedError: The number of steps is not known before the Loop starts, or a state is no tensor of one
            shape.
    """
    if isinstance(read, LoopBody):
        for value, item in zip(read.state_inputs, items[2:], strict=True):
            _check_tensor(copy, read, value, item)
        copy.bring_constants([read.body])
        trips = number_of_trips(copy, read, items)
        if not trips.positive:
            return _guarded(copy, read, items, trips)
        emptier = emptied_loop(copy, read, items, gathers=True, trips=trips)
    else:
        emptier = emptied_scan(copy, read, items)
    assert emptier.trips is not None
    found, kinds = _scan(copy, emptier)
    return emptier.results(_stacked(copy, emptier, found, kinds, emptier.trips.known))


def _loop(
    copy: BodyCopy, left: EmptiedLoop, items: Sequence[Item]
) -> tuple[list[ir.Value], list[TensorKind | None]]:
    """Emit a Loop; return its outputs and what it stacks in each step."""
    op, read, trips = copy.op, left.read, left.trips
    initial = left.initial(copy)
    if trips is not None:
        most, first = copy.made(op.squeeze(trips.tensor, [0])), copy.made(op.true())
    else:
        most, first = (copy.value(items[n]) if len(items) > n else None for n in (0, 1))  # type: ignore[assignment]
    rows = {value: op.given(copy.made(x), x.dtype, x.shape) for value, x in left.rows.items()}
    with op.body(), copy.apart():
        number, still = op.loop_inputs()
        i, going = copy.made(number), copy.made(still)
        states = _begin(copy, left)
        if isinstance(read, LoopBody):
            copy.put((read.number, read.going_input), [i, going])
        copy.put(list(rows), [copy.made(op.take(x, number)) for x in rows.values()])
        copy.localize(read.body)
        copy.nodes(read.body, left.used)
        outputs = [copy.item(value) for value in left.wanted]
        after = copy.item(read.going) if isinstance(read, LoopBody) and trips is None else going
        kinds = [copy.facts.kind(item) for item in outputs]
        types = [ir.TensorType(_BOOL), *(value.type for value in left.wanted)]
        body = copy.finished([i, going, *states], [after, *outputs], types)
    loop = copy.new("Loop", [most, first, *initial], [ir.AttrGraph("body", body)], len(outputs))
    for new, state in zip(loop.outputs, states, strict=False):
        copy.facts.declare(new, copy.facts.kind(state))
    return list(loop.outputs), kinds[len(states) :]


def _begin(copy: BodyCopy, left: EmptiedLoop) -> list[ir.Value]:
    """Return the states at the start of a step, as inputs of the open body."""
    copy.bring_constants([left.read.body])
    states = [copy.input_like(left.read.state_inputs[n]) for n in left.changing]
    copy.put([left.read.state_inputs[n] for n in left.changing], states)
    return states


def _scan(copy: BodyCopy, left: EmptiedLoop) -> tuple[list[ir.Value], list[TensorKind | None]]:
    """Emit a Scan; return its outputs and what it stacks in each step."""
    op, read, trips = copy.op, left.read, left.trips
    assert trips is not None
    initial = left.initial(copy)
    firsts = [copy.facts.kind(left.items[n]) for n in left.changing]
    scanned = [copy.made(x) for x in left.rows.values()]
    counts = isinstance(read, LoopBody) and (not scanned or read.number in left.used)
    numbered = read.body.inputs[0] in left.used
    if counts and copy.needs_rows and not (numbered and _is_long(trips, copy)):
        taken = "the numbers of its steps" if numbered else "no rows"
        raise UnsupportedError(f"a Scan would take {taken}, which tract refuses", hint=_WAY, node=read.ref)
    numbers = [copy.made(count(op, trips.tensor))] if counts else []
    with op.body(), copy.apart():
        states = _begin(copy, left)
        for state, kind in zip(states, firsts, strict=True):
            copy.facts.declare(state, kind)
        rows = [_row(copy, x, value) for x, value in zip(left.rows.values(), scanned, strict=True)]
        copy.put(list(left.rows), rows)
        i = [copy.made(op.body_input("i", _INT64, ()))] if counts else []
        if isinstance(read, LoopBody):
            copy.put((read.number, read.going_input), [i[0] if i else None, Known(np.asarray(True))])
        copy.localize(read.body)
        copy.nodes(read.body, left.used)
        outputs = [copy.item(value) for value in left.wanted]
        kinds = [copy.facts.kind(item) for item in outputs]
        body = copy.finished([*states, *rows, *i], outputs, [value.type for value in left.wanted])
    _check_shapes(copy, left, firsts, kinds)
    for value, kind in zip(body.outputs, kinds, strict=True):
        copy.facts.declare(value, kind)
    given = [*scanned, *numbers]
    attributes = [ir.AttrGraph("body", body), ir.AttrInt64("num_scan_inputs", len(given))]
    scan = copy.new("Scan", [*initial, *given], attributes, len(outputs))
    for new, kind in zip(scan.outputs, firsts, strict=False):
        copy.facts.declare(new, kind)
    return list(scan.outputs), kinds[len(states) :]


def _is_long(trips: LoopTrips, copy: BodyCopy) -> bool:
    """Whether a Loop has too many steps to unroll, or a number of them that is not known."""
    return trips.known is None or trips.known > copy.limits.steps


def _row(copy: BodyCopy, x: Tensor, rows: ir.Value) -> ir.Value:
    """Return an input of the open body that is a row of a tensor."""
    value = copy.op.value(copy.op.body_input("x", x.dtype, x.shape[1:]))
    kind = copy.facts.kind(rows)
    assert kind is not None
    copy.facts.declare(value, TensorKind(kind.element, None if kind.shape is None else kind.shape[1:]))
    return value


def _check_tensor(copy: BodyCopy, read: LoopBody, value: ir.Value, item: Item) -> None:
    if isinstance(item, Elements) or isinstance(value.type, ir.SequenceType | ir.OptionalType):
        raise UnsupportedError(
            f"its state '{value.name}' is a sequence, which a Scan cannot carry", hint=_WAY, node=read.ref
        )


def _check_shapes(
    copy: BodyCopy, left: EmptiedLoop, firsts: Sequence[TensorKind | None], kinds: Sequence[TensorKind | None]
) -> None:
    """Check that a step leaves the shapes of states as they are, by induction from the first ones."""
    for n, before, after in zip(left.changing, firsts, kinds, strict=False):
        same = before is not None and before == after and before.shape is not None and None not in before.shape
        if not same and isinstance(left.read, LoopBody):
            name = left.read.state_inputs[n].name
            known = all(kind is not None and kind.is_static for kind in (before, after))
            raise UnsupportedError(
                f"the shape of its state '{name}' may change, which a Scan does not allow",
                hint=_WAY if known else f"fix the sizes of the inputs (--set-dim, --input-shape), {_WAY}",
                node=left.read.ref,
            )
    for kind in kinds:
        if kind is None or kind.shape is None:
            raise UnsupportedError("the rank of what its steps return is not known", hint=_WAY, node=left.read.ref)


def _stacked(
    copy: BodyCopy,
    left: EmptiedLoop,
    found: Sequence[ir.Value],
    kinds: Sequence[TensorKind | None],
    length: int | None,
) -> list[Item]:
    """Return the outputs of an emitted Loop or Scan, stacked as those of the original."""
    read, states = left.read, len(left.changing)
    results: list[Item] = list(found[:states])
    for n, value, kind in zip(left.stacked, found[states:], kinds, strict=True):
        if kind is not None:
            shape = None if kind.shape is None else (length, *kind.shape)
            copy.facts.declare(value, TensorKind(kind.element, shape))
        axis, in_front = (
            (read.stacked_axes[n], read.stacked_in_front[n]) if isinstance(read, ScanBody) else (0, False)
        )
        if axis == 0 and not in_front:
            results.append(value)
            continue
        assert isinstance(read, ScanBody)
        x = copy.tensor(value, read.ref)
        x = flipped(copy, x, read) if in_front else x
        axis = checked_axis(axis, x.rank, read)
        order = [*range(1, axis + 1), 0, *range(axis + 1, x.rank)]
        results.append(copy.made(copy.op.transpose(x, order) if axis else x))
    return results


def _guarded(copy: BodyCopy, read: LoopBody, items: Sequence[Item], trips: LoopTrips) -> list[Item]:
    """Emit a Scan in an If, for no steps; return an item for each output of the Loop."""
    op = copy.op
    ran = copy.made(op.squeeze(op.less(op.constant([0]), trips.tensor), [0]))
    with op.body(), copy.apart():
        left = emptied_loop(copy, read, items, gathers=True, trips=trips)
        outputs, stacked = _scan(copy, left)
        _stacked(copy, left, outputs, stacked, trips.known)
        kinds = [copy.facts.kind(value) for value in outputs]
        types = [value.type for value in outputs]
        some = copy.finished([], outputs, types)
    with op.body(), copy.apart():
        rows = zip(stacked, left.stacked, strict=True)
        empty = [_empty(copy, kind, read.rows[n], read) for kind, n in rows]
        none = copy.finished([], [*left.initial(copy), *empty], types)
    branches = [ir.AttrGraph("then_branch", some), ir.AttrGraph("else_branch", none)]
    found = copy.new("If", [ran], branches, len(outputs))
    for value, kind in zip(found.outputs, kinds, strict=True):
        copy.facts.declare(value, kind)
    return left.results(list(found.outputs))


def _empty(copy: BodyCopy, kind: TensorKind | None, value: ir.Value, read: LoopBody) -> ir.Value:
    """Return what no steps stack."""
    sizes = None if kind is None or kind.shape is None else [copy.size(size) for size in kind.shape]
    if kind is None or sizes is None or None in sizes:
        raise UnsupportedError(
            f"it may have no step, and the sizes of its empty output '{value.name}' are not known",
            hint="fix the sizes of the inputs (--set-dim, --input-shape), or unroll it (--to unroll)",
            node=read.ref,
        )
    op, dtype = copy.op, ir.DataType(kind.element)
    shape = op.concat([op.constant([0]), *(size for size in sizes if size is not None)], 0)
    fill = ir.tensor(np.zeros(1, dtype.numpy()), name="")
    return copy.made(op.emit("ConstantOfShape", [shape], [(0, *kind.dims)], [dtype], value=fill)[0])
