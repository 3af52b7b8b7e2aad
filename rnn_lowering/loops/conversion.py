"""Make a Loop of a Scan, and a Scan of a Loop whose number of steps is known before it starts.

A Loop that may have no step becomes an If around a Scan, since runtimes run no Scan of no steps.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from rnn_lowering.emit.run_time_sizes import count
from rnn_lowering.emit.tensor import Tensor
from rnn_lowering.errors import InvalidNodeError, UnsupportedError
from rnn_lowering.loops.body import LoopBody, ScanBody
from rnn_lowering.loops.body_copy import BodyCopy
from rnn_lowering.loops.facts import Elements, Item, Known, TensorKind
from rnn_lowering.loops.trips import LoopTrips, invariant_states, number_of_trips
from rnn_lowering.loops.unrolling import checked_axis

_INT64, _BOOL = ir.DataType.INT64, ir.DataType.BOOL


def to_loop(copy: BodyCopy, read: LoopBody | ScanBody, items: Sequence[Item]) -> list[Item]:
    """Emit a Loop; return an item for each output of a Loop or Scan.

    Raises:
        InvalidNodeError: It breaks the specification of its operator.
        UnsupportedError: The rank of what a Scan takes is not known.
    """
    if isinstance(read, LoopBody):
        return copy.copied(read.node, items)
    op, count = copy.op, len(read.initial)
    xs = [copy.tensor(item, read.ref) for item in items[count:]]
    axes = [checked_axis(axis, x.rank, read) for x, axis in zip(xs, read.axes, strict=True)]
    lengths = {x.shape[axis] for x, axis in zip(xs, axes, strict=True)} - {None}
    if len(lengths) > 1:
        raise InvalidNodeError(f"the lengths of what it scans differ: {sorted(map(str, lengths))}", node=read.ref)
    length = op.dim(xs[0], axes[0])
    last = op.squeeze(length - op.constant([1]), [0]) if any(read.backwards) else None
    trips, going = copy.made(op.squeeze(length, [0])), copy.made(op.true())
    xs = [op.given(copy.made(x), x.dtype, x.shape) for x in xs]
    with op.body(), copy.apart():
        i, still = op.loop_inputs()
        states = [copy.input_like(value) for value in read.state_inputs]
        copy.bring_constants([read.body])
        position = i if last is None else last - i
        rows: list[Item] = [
            _row(copy, x, axis, position if backwards else i)
            for x, axis, backwards in zip(xs, axes, read.backwards, strict=True)
        ]
        copy.put((*read.state_inputs, *read.row_inputs), [*states, *rows])
        copy.localize(read.body)
        copy.nodes(read.body)
        outputs = [copy.item(value) for value in read.body.outputs]
        kinds = [copy.facts.kind(item) for item in outputs]
        types = [ir.TensorType(_BOOL), *(v.type for v in read.body.outputs)]
        body = copy.finished([copy.made(i), copy.made(still), *states], [copy.made(still), *outputs], types)
    loop = copy.new(
        "Loop", [trips, going, *map(copy.value, items[:count])], [ir.AttrGraph("body", body)], len(outputs)
    )
    T = next(iter(lengths), None)
    return [*_states(copy, read, loop), *_in_place(copy, read, loop.outputs[count:], kinds[count:], T)]


def _row(copy: BodyCopy, x: Tensor, axis: int, position: Tensor) -> ir.Value:
    shape = (*x.shape[:axis], *x.shape[axis + 1 :])
    return copy.made(copy.op.emit("Gather", [x, position], [shape], [x.dtype], axis=axis)[0])


def _states(copy: BodyCopy, read: LoopBody | ScanBody, node: ir.Node) -> list[ir.Value]:
    """Return the final states of an emitted node, which are like the states in the body."""
    results = list(node.outputs[: len(read.initial)])
    for new, state in zip(results, read.state_inputs, strict=True):
        copy.facts.declare(new, copy.facts.kind(state))
    return results


def _in_place(
    copy: BodyCopy,
    read: ScanBody,
    stacked: Sequence[ir.Value],
    kinds: Sequence[TensorKind | None],
    length: int | None,
) -> list[Item]:
    """Return what a Loop stacks along the axes and in the directions of the Scan."""
    results: list[Item] = []
    for value, kind, axis, in_front in zip(stacked, kinds, read.stacked_axes, read.stacked_in_front, strict=True):
        whole = None if kind is None or kind.shape is None else TensorKind(kind.element, (length, *kind.shape))
        copy.facts.declare(value, whole or (kind and TensorKind(kind.element, None)))
        if axis == 0 and not in_front:
            results.append(value)
            continue
        x = copy.tensor(value, read.ref)
        axis = checked_axis(axis, x.rank, read)
        if in_front and not copy.op.can_flip(x):
            raise UnsupportedError(
                f"an output of unknown length that is stacked in front cannot be reversed at opset {copy.op.opset}",
                hint="convert the model to opset 10 or later (onnx.version_converter)",
                node=read.ref,
            )
        x = copy.op.flip(x) if in_front else x
        order = [*range(1, axis + 1), 0, *range(axis + 1, x.rank)]
        results.append(copy.made(copy.op.transpose(x, order) if axis else x))
    return results


def to_scan(copy: BodyCopy, read: LoopBody | ScanBody, items: Sequence[Item]) -> list[Item]:
    """Emit a Scan; return an item for each output of a Loop or Scan.

    Raises:
        UnsupportedError: The number of steps is not known before the Loop starts, or a state is no tensor of one
            shape.
    """
    if isinstance(read, ScanBody):
        return copy.copied(read.node, items)
    copy.bring_constants([read.body])
    constant = invariant_states(read)
    changing = [n for n in range(len(read.initial)) if n not in constant]
    _check_states(copy, read, changing, items[2:])
    trips = number_of_trips(copy, read, items)
    states = [items[2 + n] for n in changing]
    if trips.known == 0 or (trips.known is None and not trips.positive):
        found = _guarded(copy, read, items, changing, trips)
    else:
        found = _scan(copy, read, items, changing, trips, [copy.value(state) for state in states])
    results: list[Item] = list(items[2:])
    for n, value in zip(changing, found, strict=False):
        results[n] = value
    return [*results, *found[len(changing) :]]


def _check_states(copy: BodyCopy, read: LoopBody, changing: Sequence[int], initial: Sequence[Item]) -> None:
    for n in changing:
        name, first = read.state_inputs[n].name, initial[n]
        if isinstance(first, Elements) or isinstance(read.state_inputs[n].type, ir.SequenceType):
            raise UnsupportedError(
                f"its state '{name}' is a sequence, which a Scan cannot carry", hint=_WAY, node=read.ref
            )
        before, after = copy.facts.kind(first), copy.facts.kind(read.state_inputs[n])
        fits = before is not None and after is not None and before.shape is not None and before.shape == after.shape
        if not fits or None in before.shape:  # type: ignore[union-attr,operator]
            raise UnsupportedError(
                f"the shape of its state '{name}' may change, which a Scan does not allow", hint=_WAY, node=read.ref
            )


_WAY = "unroll it (--to unroll), or keep it, for a runtime that runs Loop (--targets)"


def _scan(
    copy: BodyCopy,
    read: LoopBody,
    items: Sequence[Item],
    changing: Sequence[int],
    trips: LoopTrips,
    initial: Sequence[ir.Value | None],
) -> list[ir.Value]:
    """Emit the Scan; return its outputs."""
    op = copy.op
    numbers = copy.made(count(op, trips.tensor))
    with op.body(), copy.apart():
        copy.bring_constants([read.body])
        states = [copy.input_like(read.state_inputs[n]) for n in changing]
        i = copy.made(op.body_input("i", _INT64, ()))
        copy.put(read.state_inputs, items[2:])
        copy.put([read.state_inputs[n] for n in changing], states)
        copy.put((read.number, read.going_input), [i, Known(np.asarray(True))])
        copy.localize(read.body)
        copy.nodes(read.body)
        wanted = [*(read.state_outputs[n] for n in changing), *read.rows]
        outputs = [copy.item(value) for value in wanted]
        kinds = [copy.facts.kind(item) for item in outputs]
        kinds[: len(changing)] = [copy.facts.kind(state) for state in states]
        body = copy.finished([*states, i], outputs, [value.type for value in wanted])
    for value, kind in zip(body.outputs, kinds, strict=True):
        if kind is None or kind.shape is None:
            raise UnsupportedError("the rank of what its steps stack is not known", hint=_WAY, node=read.ref)
        copy.facts.declare(value, kind)
    attributes = [ir.AttrGraph("body", body), ir.AttrInt64("num_scan_inputs", 1)]
    scan = copy.new("Scan", [*initial, numbers], attributes, len(outputs))
    for new, n in zip(scan.outputs, changing, strict=False):
        copy.facts.declare(new, copy.facts.kind(read.state_inputs[n]))
    for new, kind in zip(scan.outputs[len(changing) :], kinds[len(changing) :], strict=True):
        shape = None if kind is None or kind.shape is None else (trips.known, *kind.shape)
        copy.facts.declare(new, kind and TensorKind(kind.element, shape))
    return list(scan.outputs)


def _guarded(
    copy: BodyCopy, read: LoopBody, items: Sequence[Item], changing: Sequence[int], trips: LoopTrips
) -> list[ir.Value]:
    """Emit the Scan in an If, for no steps; return its outputs."""
    op = copy.op
    initial = [copy.value(items[2 + n]) for n in changing]
    ran = copy.made(op.squeeze(op.less(op.constant([0]), trips.tensor), [0]))
    with op.body(), copy.apart():
        outputs = _scan(copy, read, items, changing, trips, initial)
        kinds = [copy.facts.kind(value) for value in outputs]
        types = [value.type for value in outputs]
        some = copy.finished([], outputs, types)
    with op.body(), copy.apart():
        empty = [
            _empty(copy, kind, value, read) for kind, value in zip(kinds[len(changing) :], read.rows, strict=True)
        ]
        none = copy.finished([], [*initial, *empty], types)
    branches = [ir.AttrGraph("then_branch", some), ir.AttrGraph("else_branch", none)]
    found = copy.new("If", [ran], branches, len(outputs))
    for value, kind in zip(found.outputs, kinds, strict=True):
        copy.facts.declare(value, kind)
    return list(found.outputs)


def _empty(copy: BodyCopy, kind: TensorKind | None, value: ir.Value, read: LoopBody) -> ir.Value:
    """Return what no steps stack."""
    sizes = None if kind is None or kind.shape is None else [copy.size(size) for size in kind.shape[1:]]
    if kind is None or sizes is None or None in sizes:
        raise UnsupportedError(
            f"it may have no step, and the sizes of its empty output '{value.name}' are not known",
            hint="fix the sizes of the inputs (--set-dim, --input-shape), or unroll it (--to unroll)",
            node=read.ref,
        )
    op = copy.op
    shape = op.concat([op.constant([0]), *(size for size in sizes if size is not None)], 0)
    fill = ir.tensor(np.zeros(1, ir.DataType(kind.element).numpy()), name="")
    dims = (0, *kind.dims[1:])
    return copy.made(op.emit("ConstantOfShape", [shape], [dims], [ir.DataType(kind.element)], value=fill)[0])
