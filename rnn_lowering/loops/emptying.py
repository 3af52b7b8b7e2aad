"""Move out of a body what does not depend on its states.

What is the same in each step is computed once. What depends only on a row of a tensor is computed for the rows of
all steps at once: X[i] W + b becomes (X W + b)[i]. Only operators that cannot fail on what they get are moved: a
Loop may have no step. Operators with chance in them stay.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from rnn_lowering.emit.constants import Constant
from rnn_lowering.emit.run_time_sizes import can_flip, flip
from rnn_lowering.emit.tensor import Tensor, broadcast
from rnn_lowering.emit.versions import parameter
from rnn_lowering.errors import InvalidNodeError, UnsupportedError
from rnn_lowering.loops.body import LoopBody, ScanBody
from rnn_lowering.loops.body_copy import BodyCopy
from rnn_lowering.loops.facts import Item, Known
from rnn_lowering.loops.gate_products import gates_apart
from rnn_lowering.loops.trips import Counters, LoopTrips, UnknownTripsError, invariant_states, number_of_trips
from rnn_lowering.model.scopes import bodies_of, values_used
from rnn_lowering.spec.node_spec import DEFAULT_DOMAIN

_UNARY = frozenset(
    (
        *("Relu", "Sigmoid", "Tanh", "Exp", "Neg", "Abs", "Sqrt", "Log", "Erf", "Softplus", "Softsign", "Identity"),
        *("Sin", "Cos", "Reciprocal", "Floor", "Ceil", "LeakyRelu", "Elu", "HardSigmoid", "Cast"),
    )
)
_MOVING = frozenset(("Split", "Squeeze", "Slice", "Reshape", "Concat", "Expand"))
"""Operators that cannot fail where all shapes are known."""

_BINARY = frozenset(("Add", "Sub", "Mul", "Div", "Pow"))


@dataclass
class EmptiedBody:
    """What is left in a body.

    Attributes:
        rows: For each value of the body that is a row in each step, the rows of all steps, [steps, ...].
        moved: The nodes that are not in the body any more.
    """

    rows: dict[ir.Value, Tensor] = field(default_factory=dict)
    moved: set[ir.Node] = field(default_factory=set)

    def keep_gathers(self) -> None:
        """Let the rows that a Gather takes in the body stay there, where what is left uses them."""
        for node in [node for node in self.moved if node.op_type == "Gather"]:
            value = node.outputs[0]
            if value in self.rows and any(user not in self.moved for user, _ in value.uses()):
                self.moved.discard(node)
                del self.rows[value]


Find = Callable[[ir.Node], "Tensor | None"]
"""Returns the rows that a Gather takes, one in each step; None where it is no such Gather."""


def _emptied(
    copy: BodyCopy,
    read: LoopBody | ScanBody,
    rows: Mapping[ir.Value, Tensor],
    find: Find,
    constant: Sequence[ir.Value],
) -> EmptiedBody:
    """Emit what can be moved out of a body into the open graph.

    Args:
        copy: Copies the body later; it has items for the values that never change.
        read: The Loop or Scan.
        rows: The inputs of the body that are rows of a tensor.
        find: Finds other rows.
        constant: The states that never change.
    """
    if copy.op.dialect.gemm_per_activation:
        gates_apart(copy, read, constant)
    result = EmptiedBody(dict(rows))
    varies = {*read.body.inputs} - {*constant}
    for node in read.body:
        inputs = [value for value in node.inputs if value is not None]
        if node.op_type == "Constant":
            copy.put(node.outputs, copy.results(node))
            result.moved.add(node)
            continue
        if node.domain not in DEFAULT_DOMAIN or bodies_of(node) or not inputs:
            varies.update(node.outputs)
            continue
        found: list[Tensor] | None = None
        if not varies.isdisjoint(inputs):
            one = _moved(copy, node, result.rows, varies)
            found = None if one is None else [one]
            if _reads_row(node, varies):
                rows_of = find(node)
                found = None if rows_of is None else [rows_of]
            elif node.op_type == "Split":
                found = _split(copy, node, result.rows)
        elif _is_safe(copy, node):
            copy.put(node.outputs, copy.results(node))
            result.moved.add(node)
            continue
        varies.update(node.outputs)
        if found is not None:
            result.rows.update(zip(node.outputs, found, strict=True))
            result.moved.add(node)
    return result


def _reads_row(node: ir.Node, varies: set[ir.Value]) -> bool:
    """Whether a node may take a row of what never changes: a Gather, or a Squeeze of a Slice."""
    source = node.inputs[0]
    if node.op_type == "Squeeze" and source is not None:
        sliced = source.producer()
        source = sliced.inputs[0] if sliced is not None and sliced.op_type == "Slice" else None
    elif node.op_type != "Gather":
        return False
    return source is not None and source not in varies


def _is_safe(copy: BodyCopy, node: ir.Node) -> bool:
    """Whether a node that is the same in each step may run where there is none."""
    items = [copy.item(value) for value in node.inputs]
    if all(isinstance(item, Known) for item in items) and copy.facts.evaluate(node, items) is not None:
        return True
    if node.op_type == "Slice" and copy.is_whole(items):
        return True
    kinds = copy.facts.infer(node, items)
    if node.op_type in _MOVING:
        return all(kind is not None and kind.is_static for kind in (*kinds, *map(copy.facts.kind, items)))
    known = node.op_type in (*_UNARY, *_BINARY, "MatMul", "Transpose", "Unsqueeze", "Shape")
    return known and all(kind is not None and kind.shape is not None for kind in kinds)


def _moved(copy: BodyCopy, node: ir.Node, rows: Mapping[ir.Value, Tensor], varies: set[ir.Value]) -> Tensor | None:
    """Emit what a node computes from the rows of all steps; None where it cannot be moved."""
    operands: list[Tensor | None] = []
    for value in node.inputs:
        if value is None or (value in varies and value not in rows):
            return None
        operands.append(rows.get(value) or _invariant(copy, copy.item(value)))
    if None in operands:
        return None
    given = [operand for operand in operands if operand is not None]
    are_rows = [value in rows for value in node.inputs if value is not None]
    if node.op_type in _UNARY and len(given) == 1:
        return _like(copy, node, given, given[0].shape)
    if node.op_type in _BINARY and len(given) == 2:
        return _elementwise(copy, node, given, are_rows)
    if node.op_type == "MatMul" and are_rows == [True, False] and given[1].rank == 2 and given[0].rank > 1:
        return _known(copy, given[0] @ given[1]) if _same_type(given) else None
    if node.op_type == "Gemm" and are_rows[:1] == [True] and not any(are_rows[1:]):
        return _gemm(copy, node, given)
    return None


def _invariant(copy: BodyCopy, item: Item) -> Tensor | None:
    """Return an item that is the same in each step as a tensor; None where its rank is not known."""
    kind = copy.facts.kind(item)
    if kind is None or kind.shape is None or ir.DataType(kind.element) == ir.DataType.STRING:
        return None
    value = copy.value(item)
    return None if value is None else copy.op.given(value, ir.DataType(kind.element), kind.dims)


def _same_type(given: Sequence[Tensor]) -> bool:
    return len({operand.dtype for operand in given}) == 1


def _like(copy: BodyCopy, node: ir.Node, given: Sequence[Tensor], shape: tuple[int | None, ...]) -> Tensor:
    """Emit a node for the rows of all steps."""
    values = [copy.made(operand) for operand in given]
    new = copy.new(node.op_type, values, list(node.attributes.values()))
    to = node.attributes.get("to") if node.op_type == "Cast" else None
    dtype = given[0].dtype if to is None else ir.DataType(to.as_int())
    result = copy.op.given(new.outputs[0], dtype, shape)
    copy.made(result)
    return result


def _elementwise(copy: BodyCopy, node: ir.Node, given: Sequence[Tensor], are_rows: Sequence[bool]) -> Tensor | None:
    """Emit an element-wise operator where the axis of the steps stays the first one."""
    ranks = {operand.rank for operand, is_row in zip(given, are_rows, strict=True) if is_row}
    others = [operand.rank for operand, is_row in zip(given, are_rows, strict=True) if not is_row]
    if not _same_type(given) or len(ranks) > 1 or any(rank >= max(ranks) for rank in others):
        return None
    return _like(copy, node, given, broadcast(*(operand.shape for operand in given)))


def _gemm(copy: BodyCopy, node: ir.Node, given: Sequence[Tensor]) -> Tensor | None:
    """Emit the product and the sum of a Gemm."""
    numbers = {name: a.value for name, a in node.attributes.items()}
    plain = numbers.get("alpha", 1.0) == 1.0 and numbers.get("beta", 1.0) == 1.0 and not numbers.get("transA", 0)
    rows, weights = given[0], given[1]
    if not plain or rows.rank != 3 or not _same_type(given):
        return None
    if len(given) > 2 and given[2].rank > 1:
        return None
    if numbers.get("transB", 0):
        weights = _known(copy, copy.op.transpose(weights, [1, 0]))
    product = _known(copy, rows @ weights)
    return product if len(given) < 3 else _known(copy, product + given[2])


def _split(copy: BodyCopy, node: ir.Node, rows: Mapping[ir.Value, Tensor]) -> list[Tensor] | None:
    """Emit the Split of a row for the rows of all steps."""
    data, axis = node.inputs[0], node.attributes.get("axis")
    x = None if data is None else rows.get(data)
    if x is None or not all(value.name for value in node.outputs):
        return None
    position = 0 if axis is None else axis.as_int()
    position = position % (x.rank - 1) + 1 if x.rank > 1 else 0
    count, length, given = len(node.outputs), x.shape[position], node.attributes.get("split")
    sizes = None if given is None else list(given.as_ints())
    if len(node.inputs) > 1 and node.inputs[1] is not None:
        held = copy.item(node.inputs[1])
        sizes = held.array.tolist() if isinstance(held, Known) else []
    if sizes is None and length is not None and length % count == 0:
        sizes = [length // count] * count
    if not position or not sizes or len(sizes) != count:
        return None
    return [_known(copy, part) for part in copy.op.split(x, sizes, position)]


def _known(copy: BodyCopy, tensor: Tensor) -> Tensor:
    copy.made(tensor)
    return tensor


@dataclass(frozen=True)
class EmptiedLoop:
    """A Loop or Scan whose body has less in it.

    Attributes:
        read: It.
        items: What stands for its first states.
        changing: The states that change and that something depends on.
        stacked: Which of the outputs are used.
        rows: By value of the body the rows of all steps, [steps, ...].
        used: The values of the body that something depends on.
        trips: The number of steps; None where it is not known before it starts.
    """

    read: LoopBody | ScanBody
    items: Sequence[Item]
    changing: Sequence[int]
    stacked: Sequence[int]
    rows: dict[ir.Value, Tensor]
    used: set[ir.Value]
    trips: LoopTrips | None

    def initial(self, copy: BodyCopy) -> list[ir.Value | None]:
        return [copy.value(self.items[n]) for n in self.changing]

    @property
    def wanted(self) -> list[ir.Value]:
        """What a step returns: the states that change, and what is stacked."""
        states = (self.read.state_outputs[n] for n in self.changing)
        return [*states, *(self.read.rows[n] for n in self.stacked)]

    def results(self, found: Sequence[Item]) -> list[Item]:
        """Return an item for each output of the node, given those of what is emitted."""
        results: list[Item] = [*self.items, *[None] * len(self.read.rows)]
        places = (*self.changing, *(len(self.items) + n for n in self.stacked))
        for place, item in zip(places, found, strict=True):
            results[place] = item
        return results


def emptied_loop(
    copy: BodyCopy,
    read: LoopBody,
    items: Sequence[Item],
    *,
    gathers: bool,
    constants: bool = True,
    trips: LoopTrips | None = None,
) -> EmptiedLoop:
    """Move out of the body of a Loop what can be.

    Args:
        copy: Copies the body later.
        read: The Loop.
        items: What stands for its inputs.
        gathers: Whether rows that are only gathered are moved too.
        constants: Whether rows of constants are; their numbers are not known then.
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
        data = node.inputs[0]
        held = not constants and (node.op_type != "Gather" or isinstance(copy.item(data), Known))
        return (
            None if number is None or held else _gathered(copy, read, counters, number, node, splits=not constants)
        )

    body = _emptied(copy, read, {}, find, [read.state_inputs[n] for n in constant])
    if not gathers:
        body.keep_gathers()
    return _left(copy, read, items[2:], constant, body, trips)


def _left(
    copy: BodyCopy,
    read: LoopBody | ScanBody,
    items: Sequence[Item],
    constant: Container[int],
    body: EmptiedBody,
    trips: LoopTrips | None,
) -> EmptiedLoop:
    copy.moved |= body.moved
    stacked = [
        n for n, value in enumerate(read.stacked) if value.name and (value.uses() or value.is_graph_output())
    ]
    used = _used_values(copy, read, [read.rows[n] for n in stacked], ends=trips is None)
    changing = [n for n, value in enumerate(read.state_inputs) if n not in constant and value in used]
    rows = {value: x for value, x in body.rows.items() if value in used}
    return EmptiedLoop(read, items, changing, stacked, rows, used, trips)


def _used_values(copy: BodyCopy, read: LoopBody | ScanBody, rows: Sequence[ir.Value], ends: bool) -> set[ir.Value]:
    """Return the values of the body that what is used after the Loop depends on, or with `ends` its condition; the
    inputs of its states are among them where the states are used."""
    places = {value: n for n, value in enumerate(read.state_inputs)}
    final = [n for n, value in enumerate(read.results) if value.uses() or value.is_graph_output()]
    pending = [*rows, *(read.state_inputs[n] for n in final)]
    pending += [read.going] if ends and isinstance(read, LoopBody) else []
    used: set[ir.Value] = set()
    while pending:
        value = pending.pop()
        if value in used:
            continue
        used.add(value)
        if value in places:
            pending.append(read.state_outputs[places[value]])
        node = value.producer()
        if node is not None and node not in copy.moved and node.graph is read.body:
            pending += values_used(node)
    return used


def _gathered(
    copy: BodyCopy, read: LoopBody, counters: Counters, trips: LoopTrips, node: ir.Node, *, splits: bool
) -> Tensor | None:
    """Return the rows that a node takes, one in each step; None where it takes something else."""
    taken = _taken(copy, counters, node)
    kind = None if taken is None else copy.facts.kind(copy.item(taken[0]))
    if taken is None or kind is None or not kind.shape:
        return None
    data, index, axis = taken
    x = copy.tensor(copy.item(data), read.ref)
    axis %= x.rank
    if not (counters.counts(index) and counters.is_length(copy.item(data), axis, trips)):
        if copy.some_rows and x.shape[axis] is None:
            counters.check_row(index, trips, data)
        positions = counters.positions(index, trips)
        if positions is None:
            return None
        x = _rows_at(copy, x, axis, positions, trips.known, splits=splits)
        copy.made(x)
    return _in_front(copy, x, axis)


def _rows_at(copy: BodyCopy, x: Tensor, axis: int, positions: Tensor, steps: int | None, *, splits: bool) -> Tensor:
    """Return the rows of a tensor at positions: one after the other they are a Slice, others with
    `splits` parts of a Split; pnnx misreads a Gather."""
    length = x.shape[axis]
    numbers = positions.value.read().tolist() if isinstance(positions.value, Constant) else []
    if length is not None and numbers and 0 <= min(numbers) <= max(numbers) < length:
        if numbers == list(range(numbers[0], numbers[-1] + 1)):
            return copy.op.slice(x, axis, numbers[0], numbers[-1] + 1)
        if splits and length <= copy.limits.steps:
            parts = copy.op.split(x, [1] * length, axis)
            return copy.op.concat([parts[n] for n in numbers], axis)
    shape = (*x.shape[:axis], steps, *x.shape[axis + 1 :])
    return copy.op.emit("Gather", [x, positions], [shape], [x.dtype], axis=axis)[0]


def _taken(copy: BodyCopy, counters: Counters, node: ir.Node) -> tuple[ir.Value, ir.Value, int] | None:
    """Return a value, the position of a row in it, and the axis of its rows, where a node takes a row."""
    data = node.inputs[0]
    if node.op_type == "Gather" and data is not None and node.inputs[1] is not None:
        at, attribute = copy.facts.kind(node.inputs[1]), node.attributes.get("axis")
        scalar = at is not None and at.shape == ()
        return (data, node.inputs[1], 0 if attribute is None else attribute.as_int()) if scalar else None
    sliced = None if data is None else data.producer()
    if sliced is None or sliced.op_type != "Slice" or len(sliced.inputs) < 5:
        return None
    whole, starts, _, axes, steps = sliced.inputs
    held = [copy.item(value) for value in (axes, steps)]
    numbers = [item.array.ravel().tolist() if isinstance(item, Known) else [] for item in held]
    squeezed = _squeezed(copy, node)
    single = len(numbers[0]) == 1 and squeezed == numbers[0] and len(numbers[1]) == 1 and numbers[1][0] > 0
    if whole is None or starts is None or not single or not counters.counts_up(starts):
        return None
    return whole, starts, int(numbers[0][0])  # the Squeeze fails unless it is one row: that at the start


def _squeezed(copy: BodyCopy, node: ir.Node) -> list[int]:
    """Return the axes that a Squeeze drops."""
    held = parameter(node, "axes", copy.op.opset)
    if isinstance(held, ir.Attr):
        return list(held.as_ints())
    item = copy.item(held)
    return item.array.ravel().tolist() if isinstance(item, Known) else []


def _in_front(copy: BodyCopy, x: Tensor, axis: int) -> Tensor:
    """Return a tensor with an axis as its first one."""
    if axis:
        x = copy.op.transpose(x, [axis, *(n for n in range(x.rank) if n != axis)])
        copy.made(x)
    return x


def emptied_scan(
    copy: BodyCopy,
    read: ScanBody,
    items: Sequence[Item],
    but: Container[ir.Value] = (),
    *,
    flips: bool = True,
) -> EmptiedLoop:
    """Move out of the body of a Scan what can be.

    Args:
        copy: Copies the body later.
        read: The Scan.
        items: What stands for its inputs.
        but: Inputs of the body that are not taken as rows.
        flips: Whether rows that are read backwards are put into the order of the steps.
    """
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
        if value in but:
            continue
        rows[value] = _in_front(copy, op.given(copy.made(x), x.dtype, x.shape), axis)
        if backwards and flips:
            rows[value] = flipped(copy, rows[value], read)
    constant = invariant_states(read)
    copy.put([read.state_inputs[n] for n in constant], [items[n] for n in constant])
    body = _emptied(copy, read, rows, lambda _: None, [read.state_inputs[n] for n in constant])
    return _left(copy, read, items[:count], constant, body, trips)


def flipped(copy: BodyCopy, x: Tensor, read: ScanBody) -> Tensor:
    if not can_flip(copy.op.opset, x.shape[0]):
        raise UnsupportedError(
            f"rows of unknown number cannot be reversed at opset {copy.op.opset}",
            hint="convert the model to opset 10 or later (onnx.version_converter)",
            node=read.ref,
        )
    flipped = flip(copy.op, x)
    copy.made(flipped)
    return flipped


def checked_axis(axis: int, rank: int, read: ScanBody) -> int:
    """Return an axis of what a Scan takes, counted from the front.

    Raises:
        InvalidNodeError: There is none.
    """
    if not -rank <= axis < rank:
        raise InvalidNodeError(f"it scans axis {axis} of {rank}", node=read.ref)
    return axis % rank
