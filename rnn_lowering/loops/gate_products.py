"""One product for each gate in a body, which onnxruntime runs fastest: Split(h R + b) becomes h R0 + b0 and so on.

What a gate adds is added to its part of b first: the sum leaves the body unless it depends on the states.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from rnn_lowering.emit.versions import inputs_and_attributes
from rnn_lowering.loops.body import LoopBody, ScanBody
from rnn_lowering.loops.body_copy import BodyCopy
from rnn_lowering.model.scopes import values_used
from rnn_lowering.spec.node_spec import DEFAULT_DOMAIN


@dataclass(frozen=True)
class _Product:
    """h R + b behind a Split: the values, and the size of each part."""

    h: ir.Value
    weights: ir.Value
    bias: ir.Value | None
    sizes: Sequence[int]


def split_weights_of_gates(copy: BodyCopy, read: LoopBody | ScanBody, constant: Container[ir.Value]) -> None:
    """Split the weights of the products with a state instead of these products, in the body, in place.

    Args:
        copy: Copies the body later; it has items for the values that never change.
        read: The Loop or Scan.
        constant: Its states that never change.
    """
    pairs = zip(read.state_inputs, read.initial, strict=True)
    changing = {value for value, first in pairs if value not in constant and _is_float(copy, first)}
    for node in list(read.body):
        if not changing.isdisjoint(values_used(node)):
            changing.update(node.outputs)
        product = _product(copy, node, changing) if node.op_type == "Split" else None
        if product is not None:
            _replace_split(copy, node, product, changing)


def _is_float(copy: BodyCopy, value: ir.Value | None) -> bool:
    kind = copy.facts.kind(copy.item(value))
    return kind is not None and kind.element == int(ir.DataType.FLOAT)


def _product(copy: BodyCopy, split: ir.Node, changing: Container[ir.Value]) -> _Product | None:
    """Return the product that a Split along its columns takes, and nothing else; None where there is none."""
    value, bias = split.inputs[0], None
    node = _only_for(value, split)
    if node is not None and node.op_type == "Add":
        pairs = [(a, b) for a, b in (node.inputs, node.inputs[::-1]) if b is not None and b not in changing]
        value, bias = pairs[0] if len(pairs) == 1 else (None, None)
        node = _only_for(value, node)
    if node is None or node.op_type != "MatMul" or value is None:
        return None
    h, weights = node.inputs
    columns, added = _shape(copy, weights), (1,) if bias is None else _shape(copy, bias)
    if h is None or h not in changing or weights is None or weights in changing:
        return None
    rank = _rank(copy, split, h)
    if columns is None or len(columns) != 2 or (bias is not None and added != columns[1:]):
        return None
    axis, sizes = split.attributes.get_int("axis", 0) or 0, copy.split_sizes(split, columns[1])
    last = axis == -1 or (rank is not None and axis == rank - 1)
    return _Product(h, weights, bias, sizes) if last and sizes and all(sizes) else None


def _only_for(value: ir.Value | None, user: ir.Node) -> ir.Node | None:
    """Return the node that computes a value, if only one other node of the body uses it."""
    node = None if value is None or value.is_graph_output() or len(value.uses()) != 1 else value.producer()
    return node if node is not None and node.graph is user.graph and node.domain in DEFAULT_DOMAIN else None


def _shape(copy: BodyCopy, value: ir.Value | None) -> tuple[int, ...] | None:
    kind = None if value is None else copy.facts.kind(copy.item(value))
    return tuple(size or 0 for size in kind.dims) if kind is not None and kind.is_static else None


def _rank(copy: BodyCopy, split: ir.Node, h: ir.Value) -> int | None:
    kinds = [copy.facts.kind(value) for value in (split.inputs[0], h)]
    return next((len(kind.shape) for kind in kinds if kind is not None and kind.shape is not None), None)


def _replace_split(copy: BodyCopy, split: ir.Node, product: _Product, changing: set[ir.Value]) -> None:
    """Put a product for each part in the place of a Split."""
    weights = _parts(copy, split, product.weights, product.sizes, 1)
    biases = None if product.bias is None else _parts(copy, split, product.bias, product.sizes, 0)
    for n, part in enumerate(split.outputs):
        if not part.uses() and not part.is_graph_output():
            continue
        (new,) = _insert(copy, split, "MatMul", [product.h, weights[n]])
        changing.add(new)
        user, other = _sum_with(part, changing)
        if biases is not None and user is not None and other is not None and other not in changing:
            (added,) = _insert(copy, user, "Add", [other, biases[n]])
            user.replace_input_with(0, new)
            user.replace_input_with(1, added)
            continue
        if biases is not None:
            (new,) = _insert(copy, split, "Add", [new, biases[n]])
            changing.add(new)
        if user is not None and other is not None:
            user.replace_input_with(1, other)
            user.replace_input_with(0, new)
        part.replace_all_uses_with(new, replace_graph_outputs=True)


def _parts(copy: BodyCopy, before: ir.Node, value: ir.Value, sizes: Sequence[int], axis: int) -> Sequence[ir.Value]:
    """Return the parts of a value that never changes, by a Split in the body, which then leaves it (`emptying`)."""

    def constant(numbers: Sequence[int]) -> ir.Value:
        return _insert(copy, before, "Constant", [], {"value_ints": numbers})[0]

    inputs, attributes = inputs_and_attributes(
        "Split", copy.facts.opset, [value], {"axis": axis, "split": list(sizes)}, constant
    )
    return _insert(copy, before, "Split", inputs, attributes, len(sizes))


def _sum_with(part: ir.Value, changing: Container[ir.Value]) -> tuple[ir.Node | None, ir.Value | None]:
    """Return the Add that alone uses a part of a product, and what it adds."""
    users, node = [use.node for use in part.uses()], part.producer()
    if len(users) != 1 or users[0].op_type != "Add" or part.is_graph_output() or node is None:
        return None, None
    others = [value for value in users[0].inputs if value is not part]
    return (users[0], others[0]) if len(others) == 1 and users[0].graph is node.graph else (None, None)


def _insert(
    copy: BodyCopy,
    before: ir.Node,
    op_type: str,
    inputs: Sequence[ir.Value | None],
    attributes: Mapping[str, int | Sequence[int]] | None = None,
    outputs: int = 1,
) -> Sequence[ir.Value]:
    """Insert a node before one of the body; return its outputs."""
    node = ir.node(op_type, inputs, attributes, num_outputs=outputs, name=copy.op.unique_name(op_type))
    for n, output in enumerate(node.outputs):
        output.name = node.name if outputs == 1 else f"{node.name}.{n}"
    assert before.graph is not None
    before.graph.insert_before(before, node)
    return node.outputs
