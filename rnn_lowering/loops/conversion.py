"""Make a Loop of a Scan, and a Scan of a Loop whose number of steps is known before it starts.

Either way states that never change become captured values, and what does not depend on the others leaves the body
(`emptying`). A Loop that may have no step becomes an If around a Scan, since runtimes run no Scan of no steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from rnn_lowering.emit.run_time_sizes import count
from rnn_lowering.emit.tensor import Tensor
from rnn_lowering.errors import InvalidNodeError, UnsupportedError
from rnn_lowering.loops.body import LoopBody, ScanBody
from rnn_lowering.loops.body_copy import BodyCopy
from rnn_lowering.loops.emptying import EmptiedBody, emptied
from rnn_lowering.loops.errors import UnknownTripsError
from rnn_lowering.loops.facts import Elements, Item, Known, TensorKind
from rnn_lowering.loops.trips import Counters, LoopTrips, invariant_states, number_of_trips
from rnn_lowering.loops.unrolling import checked_axis

_INT64, _BOOL = ir.DataType.INT64, ir.DataType.BOOL
_WAY = "unroll it (--to unroll), or keep it, for a runtime that runs Loop (--targets)"


@dataclass(frozen=True)
class _Emptied:
    """A Loop or Scan whose body has less in it.

    Attributes:
        read: It.
        items: What stands for its first states.
        changing: The states that change.
        rows: By value of the body the rows of all steps, [steps, ...].
        trips: The number of steps; None where it is not known before it starts.
    """

    read: LoopBody | ScanBody
    items: Sequence[Item]
    changing: Sequence[int]
    rows: dict[ir.Value, Tensor]
    trips: LoopTrips | None

    def initial(self, copy: BodyCopy) -> list[ir.Value | None]:
        return [copy.value(self.items[n]) for n in self.changing]

    @property
    def wanted(self) -> list[ir.Value]:
        """What a step returns: the states that change, and what is stacked."""
        return [*(self.read.state_outputs[n] for n in self.changing), *self.read.rows]

    def results(self, found: Sequence[Item]) -> list[Item]:
        """Return an item for each output of the node, given those of what is emitted."""
        states = list(self.items)
        for n, item in zip(self.changing, found, strict=False):
            states[n] = item
        return [*states, *found[len(self.changing) :]]


def to_loop(copy: BodyCopy, read: LoopBody | ScanBody, items: Sequence[Item]) -> list[Item]:
    """Emit a Loop; return an item for each output of a Loop or Scan.

    Raises:
        InvalidNodeError: It breaks the specification of its operator.
        UnsupportedError: The rank of what a Scan takes is not known.
    """
    emptier = (
        _emptied_loop(copy, read, items, gathers=False)
        if isinstance(read, LoopBody)
        else _scanned(copy, read, items)
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
        emptier = _emptied_loop(copy, read, items, gathers=True, trips=trips)
    else:
        emptier = _scanned(copy, read, items)
    assert emptier.trips is not None
    found, kinds = _scan(copy, emptier)
    return emptier.results(_stacked(copy, emptier, found, kinds, emptier.trips.known))


def _emptied_loop(
    copy: BodyCopy, read: LoopBody, items: Sequence[Item], *, gathers: bool, trips: LoopTrips | None = None
) -> _Emptied:
    """Move out of the body of a Loop what can be.

    Args:
        gathers: Whether rows that are only gathered are moved too.
        trips: The number of steps, where it was emitted.
    """
    copy.bring_constants([read.body])
    constant = invariant_states(read)
    copy.put([read.state_inputs[n] for n in constant], [items[2 + n] for n in constant])
    if trips is None:
        try:
            trips = number_of_trips(copy, read, items)
        except UnknownTripsError:
            trips = None
    counters, number = Counters(copy, read, items), trips

    def find(node: ir.Node) -> Tensor | None:
        return None if number is None else _gathered(copy, read, counters, number, node)

    body = emptied(copy, read, {}, find, [read.state_inputs[n] for n in constant])
    if not gathers:
        body.keep_gathers()
    return _left(copy, read, items[2:], [n for n in range(len(read.initial)) if n not in constant], body, trips)


def _left(
    copy: BodyCopy,
    read: LoopBody | ScanBody,
    items: Sequence[Item],
    changing: Sequence[int],
    body: EmptiedBody,
    trips: LoopTrips | None,
) -> _Emptied:
    copy.moved |= body.moved
    return _Emptied(read, items, changing, body.used(read.body), trips)


def _gathered(copy: BodyCopy, read: LoopBody, counters: Counters, trips: LoopTrips, node: ir.Node) -> Tensor | None:
    """Return the rows that a Gather takes, one in each step; None where it takes something else."""
    data, index = node.inputs[:2]
    if data is None or index is None:
        return None
    kind, at = copy.facts.kind(copy.item(data)), copy.facts.kind(index)
    if kind is None or not kind.shape or at is None or at.shape != ():
        return None
    x, attribute = copy.tensor(copy.item(data), read.ref), node.attributes.get("axis")
    axis = (0 if attribute is None else attribute.as_int()) % x.rank
    if not (counters.counts(index) and trips.known is not None and trips.known == x.shape[axis]):
        positions = counters.positions(index, trips)
        if positions is None:
            return None
        shape = (*x.shape[:axis], trips.known, *x.shape[axis + 1 :])
        x = copy.op.emit("Gather", [x, positions], [shape], [x.dtype], axis=axis)[0]
        copy.made(x)
    return _in_front(copy, x, axis)


def _in_front(copy: BodyCopy, x: Tensor, axis: int) -> Tensor:
    """Return a tensor with an axis as its first one."""
    if axis:
        x = copy.op.transpose(x, [axis, *(n for n in range(x.rank) if n != axis)])
        copy.made(x)
    return x


def _scanned(copy: BodyCopy, read: ScanBody, items: Sequence[Item]) -> _Emptied:
    """Move out of the body of a Scan what can be."""
    op, count = copy.op, len(read.initial)
    copy.bring_constants([read.body])
    xs = [copy.tensor(item, read.ref) for item in items[count:]]
    axes = [checked_axis(axis, x.rank, read) for x, axis in zip(xs, read.axes, strict=True)]
    lengths = {x.shape[axis] for x, axis in zip(xs, axes, strict=True)} - {None}
    if len(lengths) > 1:
        raise InvalidNodeError(f"the lengths of what it scans differ: {sorted(map(str, lengths))}", node=read.ref)
    trips = LoopTrips(op.dim(xs[0], axes[0]), next(iter(lengths), None), positive=True)
    rows = {}
    for value, x, axis, backwards in zip(read.row_inputs, xs, axes, read.backwards, strict=True):
        rows[value] = _in_front(copy, op.given(copy.made(x), x.dtype, x.shape), axis)
        if backwards:
            rows[value] = _flipped(copy, rows[value], read)
    constant = invariant_states(read)
    copy.put([read.state_inputs[n] for n in constant], [items[n] for n in constant])
    body = emptied(copy, read, rows, lambda _: None, [read.state_inputs[n] for n in constant])
    return _left(copy, read, items[:count], [n for n in range(count) if n not in constant], body, trips)


def _flipped(copy: BodyCopy, x: Tensor, read: ScanBody) -> Tensor:
    if not copy.op.can_flip(x):
        raise UnsupportedError(
            f"rows of unknown number cannot be reversed at opset {copy.op.opset}",
            hint="convert the model to opset 10 or later (onnx.version_converter)",
            node=read.ref,
        )
    flipped = copy.op.flip(x)
    copy.made(flipped)
    return flipped


def _loop(copy: BodyCopy, left: _Emptied, items: Sequence[Item]) -> tuple[list[ir.Value], list[TensorKind | None]]:
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
        copy.nodes(read.body)
        outputs = [copy.item(value) for value in left.wanted]
        after = copy.item(read.going) if isinstance(read, LoopBody) and trips is None else going
        kinds = [copy.facts.kind(item) for item in outputs]
        types = [ir.TensorType(_BOOL), *(value.type for value in left.wanted)]
        body = copy.finished([i, going, *states], [after, *outputs], types)
    loop = copy.new("Loop", [most, first, *initial], [ir.AttrGraph("body", body)], len(outputs))
    for new, state in zip(loop.outputs, states, strict=False):
        copy.facts.declare(new, copy.facts.kind(state))
    return list(loop.outputs), kinds[len(states) :]


def _begin(copy: BodyCopy, left: _Emptied) -> list[ir.Value]:
    """Return the states at the start of a step, as inputs of the open body."""
    copy.bring_constants([left.read.body])
    states = [copy.input_like(left.read.state_inputs[n]) for n in left.changing]
    copy.put([left.read.state_inputs[n] for n in left.changing], states)
    return states


def _scan(copy: BodyCopy, left: _Emptied) -> tuple[list[ir.Value], list[TensorKind | None]]:
    """Emit a Scan; return its outputs and what it stacks in each step."""
    op, read, trips = copy.op, left.read, left.trips
    assert trips is not None
    initial = left.initial(copy)
    firsts = [copy.facts.kind(left.items[n]) for n in left.changing]
    scanned = [copy.made(x) for x in left.rows.values()]
    counts = isinstance(read, LoopBody) and (not scanned or _is_used(copy, read.number))
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
        copy.nodes(read.body)
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


def _row(copy: BodyCopy, x: Tensor, rows: ir.Value) -> ir.Value:
    """Return an input of the open body that is a row of a tensor."""
    value = copy.op.value(copy.op.body_input("x", x.dtype, x.shape[1:]))
    kind = copy.facts.kind(rows)
    assert kind is not None
    copy.facts.declare(value, TensorKind(kind.element, None if kind.shape is None else kind.shape[1:]))
    return value


def _is_used(copy: BodyCopy, value: ir.Value) -> bool:
    """Whether what is left in a body uses a value."""
    return value.is_graph_output() or any(node not in copy.moved for node, _ in value.uses())


def _check_tensor(copy: BodyCopy, read: LoopBody, value: ir.Value, item: Item) -> None:
    if isinstance(item, Elements) or isinstance(value.type, ir.SequenceType | ir.OptionalType):
        raise UnsupportedError(
            f"its state '{value.name}' is a sequence, which a Scan cannot carry", hint=_WAY, node=read.ref
        )


def _check_shapes(
    copy: BodyCopy, left: _Emptied, firsts: Sequence[TensorKind | None], kinds: Sequence[TensorKind | None]
) -> None:
    """Check that a step leaves the shapes of states as they are, by induction from the first ones."""
    for n, before, after in zip(left.changing, firsts, kinds, strict=False):
        same = before is not None and before == after and before.shape is not None and None not in before.shape
        if not same and isinstance(left.read, LoopBody):
            name = left.read.state_inputs[n].name
            raise UnsupportedError(
                f"the shape of its state '{name}' may change, which a Scan does not allow",
                hint=_WAY,
                node=left.read.ref,
            )
    for kind in kinds:
        if kind is None or kind.shape is None:
            raise UnsupportedError("the rank of what its steps return is not known", hint=_WAY, node=left.read.ref)


def _stacked(
    copy: BodyCopy,
    left: _Emptied,
    found: Sequence[ir.Value],
    kinds: Sequence[TensorKind | None],
    length: int | None,
) -> list[Item]:
    """Return the outputs of an emitted Loop or Scan, stacked as those of the original."""
    read, states = left.read, len(left.changing)
    results: list[Item] = list(found[:states])
    for n, (value, kind) in enumerate(zip(found[states:], kinds, strict=True)):
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
        x = _flipped(copy, x, read) if in_front else x
        axis = checked_axis(axis, x.rank, read)
        order = [*range(1, axis + 1), 0, *range(axis + 1, x.rank)]
        results.append(copy.made(copy.op.transpose(x, order) if axis else x))
    return results


def _guarded(copy: BodyCopy, read: LoopBody, items: Sequence[Item], trips: LoopTrips) -> list[Item]:
    """Emit a Scan in an If, for no steps; return an item for each output of the Loop."""
    op = copy.op
    ran = copy.made(op.squeeze(op.less(op.constant([0]), trips.tensor), [0]))
    with op.body(), copy.apart():
        left = _emptied_loop(copy, read, items, gathers=True, trips=trips)
        outputs, stacked = _scan(copy, left)
        _stacked(copy, left, outputs, stacked, trips.known)
        kinds = [copy.facts.kind(value) for value in outputs]
        types = [value.type for value in outputs]
        some = copy.finished([], outputs, types)
    with op.body(), copy.apart():
        empty = [_empty(copy, kind, value, read) for kind, value in zip(stacked, read.rows, strict=True)]
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
