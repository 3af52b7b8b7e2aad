"""Move out of a body what does not depend on its states.

What is the same in each step is computed once. What depends only on a row of a tensor is computed for the rows of
all steps at once: X[i] W + b becomes (X W + b)[i]. A Loop may have no step, so operators that may fail stay, and so
do random ones.

With `gemm_per_activation` a body gets one product for each gate first, which onnxruntime runs fastest:
Split(h R + b) becomes h R0 + b0 and so on. What a gate adds to its part is added to b0 instead, and this sum leaves
the body unless it depends on the states.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from rnn_lowering.emit.tensor import Tensor, broadcast_shape
from rnn_lowering.facts.operators import (
    DEFAULT_DOMAIN,
    bodies_of,
    inputs_and_attributes,
    is_used,
    operator_of,
    values_used,
)
from rnn_lowering.loops.body import LoopBody, ScanBody, TakenRow
from rnn_lowering.loops.body_copy import BodyWriter
from rnn_lowering.loops.value_facts import Item, KnownTensor

_FindRows = Callable[[ir.Node], "Tensor | None"]
"""Returns the rows that a Gather takes, one in each step; None if it is another Gather."""


_ALONG_AN_AXIS = ("Softmax", "LogSoftmax", "Hardmax")
_ONE_AXIS_OPSET = 13


@dataclass
class HoistedBody:
    """The rows and nodes that leave a body.

    Attributes:
        rows: For each value of the body that is a row in each step, the rows of all steps, [steps, ...].
        moved: The nodes that are not in the body any more.
    """

    rows: dict[ir.Value, Tensor] = field(default_factory=dict)
    moved: set[ir.Node] = field(default_factory=set)

    def keep_gathers(self) -> None:
        """Leave a Gather of X[i] in the body if nodes that stay there use its row."""
        for node in [node for node in self.moved if node.op_type == "Gather" and node.inputs[1] not in self.rows]:
            value = node.outputs[0]
            if value in self.rows and any(user not in self.moved for user, _ in value.uses()):
                self.moved.discard(node)
                del self.rows[value]


def hoist_invariants(
    writer: BodyWriter,
    loop: LoopBody | ScanBody,
    rows: Mapping[ir.Value, Tensor],
    find_rows: _FindRows,
    constant: Sequence[ir.Value],
) -> HoistedBody:
    """Emit what can be moved out of a body into the open graph.

    Args:
        writer: Writes the body later; it has items for the values that never change.
        loop: The Loop or Scan.
        rows: The inputs of the body that are rows of a tensor.
        find_rows: Finds other rows.
        constant: The states that never change.
    """
    if writer.op.dialect.gemm_per_activation:
        _split_weights_of_gates(writer, loop, constant)
    result = HoistedBody(dict(rows))
    varies = {*loop.body.inputs} - {*constant}
    for node in loop.body:
        inputs = [value for value in node.inputs if value is not None]
        invariant = varies.isdisjoint(inputs)
        moves = node.domain in DEFAULT_DOMAIN and bool(inputs) and not bodies_of(node)
        if node.op_type == "Constant" or (moves and invariant and _is_safe(writer, node)):
            writer.bind(node.outputs, writer.results_of(node))
            result.moved.add(node)
            continue
        all_rows = _of_all_steps(writer, node, result.rows, varies, find_rows) if moves and not invariant else None
        varies.update(node.outputs)
        if all_rows is not None:
            result.rows.update(zip(node.outputs, all_rows, strict=True))
            result.moved.add(node)
    return result


def _is_safe(writer: BodyWriter, node: ir.Node) -> bool:
    """Whether a node may run before the loop, even if the loop has no step."""
    items = [writer.item(value) for value in node.inputs]
    if all(isinstance(item, KnownTensor) for item in items) and writer.facts.evaluate(node, items) is not None:
        return True
    if node.op_type == "Slice" and writer.is_whole(items):
        return True
    operator, kinds, given = operator_of(node), writer.facts.infer(node, items), [*map(writer.facts.kind, items)]
    if operator.may_fail or any(kind is not None and _may_fail(node, kind.dtype) for kind in given):
        return False
    if operator.moves and (node.op_type == "Squeeze" or not operator.keeps_axes):  # its sizes must fit
        return all(kind is not None and kind.is_static for kind in (*kinds, *given))
    return all(kind is not None and kind.shape is not None for kind in kinds)


def _may_fail(node: ir.Node, dtype: ir.DataType) -> bool:
    """Whether an operator may fail for some numbers of a type: a division of integers, a cast of texts."""
    divides = node.op_type in ("Div", "Mod") and not dtype.is_floating_point()
    return operator_of(node).may_fail or divides or dtype == ir.DataType.STRING


def _of_all_steps(
    writer: BodyWriter, node: ir.Node, rows: Mapping[ir.Value, Tensor], varies: set[ir.Value], find_rows: _FindRows
) -> list[Tensor] | None:
    """Emit what a node computes in all steps; None if it stays in the body."""
    if node.op_type == "Split":
        return _split(writer, node, rows)
    looks_up = node.op_type == "Gather" and node.inputs[1] in rows
    taken = None if looks_up else TakenRow.of(node)
    reads_row = taken is not None and taken.data not in varies
    all_rows = find_rows(node) if reads_row else _from_rows(writer, node, rows, varies)
    return None if all_rows is None else [all_rows]


def _from_rows(
    writer: BodyWriter, node: ir.Node, rows: Mapping[ir.Value, Tensor], varies: set[ir.Value]
) -> Tensor | None:
    """Emit what a node computes from the rows of all steps; None if it cannot be moved."""
    operands: list[Tensor | None] = []
    for value in node.inputs:
        if value is None or (value in varies and value not in rows):
            return None
        operands.append(rows.get(value) or _invariant(writer, writer.item(value)))
    if None in operands:
        return None
    given = [operand for operand in operands if operand is not None]
    are_rows = [value in rows for value in node.inputs if value is not None]
    if operator_of(node).elementwise:
        return _elementwise(writer, node, given, are_rows)
    if node.op_type == "MatMul" and are_rows == [True, False] and given[1].rank == 2 and given[0].rank > 1:
        return writer.declared(given[0] @ given[1]) if _same_type(given) else None
    if node.op_type == "Gemm" and are_rows[:1] == [True] and not any(are_rows[1:]):
        return _gemm(writer, node, given)
    if node.op_type in _ALONG_AN_AXIS:
        return _along_an_axis(writer, node, given[0])
    if node.op_type == "Gather" and are_rows == [False, True] and not node.attributes.get_int("axis", 0):
        return _like(writer, node, given, (*given[1].shape, *given[0].shape[1:]))
    return None


def _invariant(writer: BodyWriter, item: Item) -> Tensor | None:
    """Return an item that is the same in each step as a tensor; None if its rank is unknown."""
    kind = writer.facts.kind(item)
    if kind is None or kind.shape is None or kind.dtype == ir.DataType.STRING:
        return None
    value = writer.value(item)
    return None if value is None else writer.op.given(value, kind.dtype, kind.dims)


def _same_type(given: Sequence[Tensor]) -> bool:
    return len({operand.dtype for operand in given}) == 1


def _like(writer: BodyWriter, node: ir.Node, given: Sequence[Tensor], shape: tuple[int | None, ...]) -> Tensor:
    """Emit a node for the rows of all steps."""
    values = [writer.value_of(operand) for operand in given]
    new = writer.new_node(node.op_type, values, list(node.attributes.values()))
    to = node.attributes.get("to")
    dtype = given[0].dtype if to is None else ir.DataType(to.as_int())
    dtype = ir.DataType.BOOL if operator_of(node).boolean else dtype
    return writer.declared(writer.op.given(new.outputs[0], dtype, shape))


def _elementwise(
    writer: BodyWriter, node: ir.Node, given: Sequence[Tensor], are_rows: Sequence[bool]
) -> Tensor | None:
    """Emit an element-wise operator if the axis of the steps stays the first one."""
    ranks = {operand.rank for operand, is_row in zip(given, are_rows, strict=True) if is_row}
    others = [operand.rank for operand, is_row in zip(given, are_rows, strict=True) if not is_row]
    if not _same_type(given) or len(ranks) > 1 or any(rank >= max(ranks) for rank in others):
        return None
    if _may_fail(node, given[0].dtype):
        return None
    return _like(writer, node, given, broadcast_shape(*(operand.shape for operand in given)))


def _gemm(writer: BodyWriter, node: ir.Node, given: Sequence[Tensor]) -> Tensor | None:
    """Emit the product and the sum of a Gemm."""
    numbers = {name: a.value for name, a in node.attributes.items()}
    plain = numbers.get("alpha", 1.0) == 1.0 and numbers.get("beta", 1.0) == 1.0 and not numbers.get("transA", 0)
    rows, weights = given[0], given[1]
    if not plain or rows.rank != 3 or not _same_type(given):
        return None
    if len(given) > 2 and given[2].rank > 1:
        return None
    if numbers.get("transB", 0):
        weights = writer.declared(writer.op.transpose(weights, [1, 0]))
    product = writer.declared(rows @ weights)
    return product if len(given) < 3 else writer.declared(product + given[2])


def _along_an_axis(writer: BodyWriter, node: ir.Node, rows: Tensor) -> Tensor | None:
    """Emit a Softmax of rows, its axis counted from the end; before opset 13 it is one of several axes."""
    axis, rank = node.attributes.get_int("axis", -1) or 0, rows.rank - 1
    if writer.facts.opset < _ONE_AXIS_OPSET or not -rank <= axis < rank:
        return None
    from_the_end = ir.AttrInt64("axis", axis if axis < 0 else axis - rank)
    new = writer.new_node(node.op_type, [writer.value_of(rows)], [from_the_end])
    return writer.declared(writer.op.given(new.outputs[0], rows.dtype, rows.shape))


def _split(writer: BodyWriter, node: ir.Node, rows: Mapping[ir.Value, Tensor]) -> list[Tensor] | None:
    """Emit the Split of a row for the rows of all steps."""
    data = node.inputs[0]
    x = None if data is None else rows.get(data)
    if x is None or x.rank < 2 or not all(value.name for value in node.outputs):
        return None
    axis = 1 + (node.attributes.get_int("axis", 0) or 0) % (x.rank - 1)
    sizes = writer.split_sizes(node, x.shape[axis])
    return None if sizes is None else [writer.declared(part) for part in writer.op.split(x, sizes, axis)]


# A product for each gate


@dataclass(frozen=True)
class _SplitProduct:
    """h R + b behind a Split: the values, and the size of each part."""

    h: ir.Value
    weights: ir.Value
    bias: ir.Value | None
    sizes: Sequence[int]


def _split_weights_of_gates(writer: BodyWriter, loop: LoopBody | ScanBody, constant: Container[ir.Value]) -> None:
    """Split the weights of the products with a state instead of these products, in the body, in place.

    Args:
        writer: Writes the body later; it has items for the values that never change.
        loop: The Loop or Scan.
        constant: Its states that never change.
    """
    pairs = zip(loop.state_inputs, loop.initial, strict=True)
    changing = {value for value, first in pairs if value not in constant and _is_float(writer, first)}
    for node in list(loop.body):
        if not changing.isdisjoint(values_used(node)):
            changing.update(node.outputs)
        product = _product(writer, node, changing) if node.op_type == "Split" else None
        if product is not None:
            _replace_split(writer, node, product, changing)


def _is_float(writer: BodyWriter, value: ir.Value | None) -> bool:
    kind = writer.facts.kind(writer.item(value))
    return kind is not None and kind.dtype == ir.DataType.FLOAT


def _product(writer: BodyWriter, split: ir.Node, changing: Container[ir.Value]) -> _SplitProduct | None:
    """Return the product that a Split along its columns takes, and nothing else; None if there is none."""
    value, bias = split.inputs[0], None
    node = _only_for(value, split)
    if node is not None and node.op_type == "Add":
        pairs = [(a, b) for a, b in (node.inputs, node.inputs[::-1]) if b is not None and b not in changing]
        value, bias = pairs[0] if len(pairs) == 1 else (None, None)
        node = _only_for(value, node)
    if node is None or node.op_type != "MatMul" or value is None:
        return None
    h, weights = node.inputs
    columns, added = _static_shape(writer, weights), (1,) if bias is None else _static_shape(writer, bias)
    if h is None or h not in changing or weights is None or weights in changing:
        return None
    rank = _rank(writer, split, h)
    if columns is None or len(columns) != 2 or (bias is not None and added != columns[1:]):
        return None
    axis, sizes = split.attributes.get_int("axis", 0) or 0, writer.split_sizes(split, columns[1])
    last = axis == -1 or (rank is not None and axis == rank - 1)
    return _SplitProduct(h, weights, bias, sizes) if last and sizes and all(sizes) else None


def _only_for(value: ir.Value | None, user: ir.Node) -> ir.Node | None:
    """Return the node that computes a value, if only one other node of the body uses it."""
    node = None if value is None or value.is_graph_output() or len(value.uses()) != 1 else value.producer()
    return node if node is not None and node.graph is user.graph and node.domain in DEFAULT_DOMAIN else None


def _static_shape(writer: BodyWriter, value: ir.Value | None) -> tuple[int, ...] | None:
    kind = None if value is None else writer.facts.kind(writer.item(value))
    return tuple(size or 0 for size in kind.dims) if kind is not None and kind.is_static else None


def _rank(writer: BodyWriter, split: ir.Node, h: ir.Value) -> int | None:
    shapes = [writer.facts.shape(value) for value in (split.inputs[0], h)]
    return next((len(shape) for shape in shapes if shape is not None), None)


def _replace_split(writer: BodyWriter, split: ir.Node, product: _SplitProduct, changing: set[ir.Value]) -> None:
    """Put a product for each part in the place of a Split."""
    weights = _parts(writer, split, product.weights, product.sizes, 1)
    biases = None if product.bias is None else _parts(writer, split, product.bias, product.sizes, 0)
    for n, part in enumerate(split.outputs):
        if not is_used(part):
            continue
        (new,) = _insert(writer, split, "MatMul", [product.h, weights[n]])
        changing.add(new)
        user, other = _sum_with(part)
        if biases is not None and user is not None and other is not None and other not in changing:
            (added,) = _insert(writer, user, "Add", [other, biases[n]])
            user.replace_input_with(0, new)
            user.replace_input_with(1, added)
            continue
        if biases is not None:
            (new,) = _insert(writer, split, "Add", [new, biases[n]])
            changing.add(new)
        if user is not None and other is not None:
            user.replace_input_with(1, other)
            user.replace_input_with(0, new)
        part.replace_all_uses_with(new, replace_graph_outputs=True)


def _parts(
    writer: BodyWriter, before: ir.Node, value: ir.Value, sizes: Sequence[int], axis: int
) -> Sequence[ir.Value]:
    """Return the parts of a value that never changes, by a Split in the body, which then leaves it (`hoisting`)."""

    def constant(numbers: Sequence[int]) -> ir.Value:
        return _insert(writer, before, "Constant", [], {"value_ints": numbers})[0]

    inputs, attributes = inputs_and_attributes(
        "Split", writer.facts.opset, [value], {"axis": axis, "split": list(sizes)}, constant
    )
    return _insert(writer, before, "Split", inputs, attributes, len(sizes))


def _sum_with(part: ir.Value) -> tuple[ir.Node | None, ir.Value | None]:
    """Return the Add that alone uses a part of a product, and what it adds."""
    users, node = [use.node for use in part.uses()], part.producer()
    if len(users) != 1 or users[0].op_type != "Add" or part.is_graph_output() or node is None:
        return None, None
    others = [value for value in users[0].inputs if value is not part]
    return (users[0], others[0]) if len(others) == 1 and users[0].graph is node.graph else (None, None)


def _insert(
    writer: BodyWriter,
    before: ir.Node,
    op_type: str,
    inputs: Sequence[ir.Value | None],
    attributes: Mapping[str, int | Sequence[int]] | None = None,
    outputs: int = 1,
) -> Sequence[ir.Value]:
    """Insert a node before one of the body; return its outputs."""
    node = ir.node(op_type, inputs, attributes, num_outputs=outputs, name=writer.op.unique_name(op_type))
    writer.op.name_outputs(node)
    assert before.graph is not None
    before.graph.insert_before(before, node)
    return node.outputs
