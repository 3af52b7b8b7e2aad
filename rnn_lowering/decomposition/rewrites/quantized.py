"""Quantized numbers as floats: products of integers, and tables.

onnxruntime's quantizer writes x W as DynamicQuantizeLinear(x), MatMulInteger or ConvInteger, Cast, and a Mul by
both scales. In floats x is not rounded to 8 bits any more.

Tables of integers whose rows become floats, such as quantized embeddings, become tables of floats. The results are
the same numbers: each element becomes a float by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from rnn_lowering.decomposition.adapted_model import AdaptedModel
from rnn_lowering.errors import UnsupportedError, counted
from rnn_lowering.facts.operators import is_of_default_domain, moved_inputs, operator_of
from rnn_lowering.model.replace import drop_unused
from rnn_lowering.model.scopes import standard_nodes
from rnn_lowering.nodes.spec import node_ref
from rnn_lowering.targets.target import Target
from rnn_lowering.types import Array, array_of, dequantized_numbers

_FLOATS = {"MatMulInteger": "MatMul", "ConvInteger": "Conv"}
_QUANTIZER = "DynamicQuantizeLinear"


@dataclass(frozen=True)
class _RowsOfTable:
    """Integers that are moved out of a constant, such as rows of a quantized embedding.

    Attributes:
        moves: The nodes that move them, the one that reads the table first.
        numbers: The table less its zero point, in floats.
    """

    moves: tuple[ir.Node, ...]
    numbers: Array


@dataclass(frozen=True)
class _QuantizedProduct:
    """A product of integers that can be one of floats.

    Attributes:
        operand: What makes integers of its operand, or takes them out of a table.
        node: The product.
        cast: What makes floats of it.
        scales: The product of both scales; None where that is a constant.
        last: What multiplies by that.
        weights: The constant operand: integers, zero point and scale, which is that of both if there is a table.
    """

    operand: ir.Node | _RowsOfTable
    node: ir.Node
    cast: ir.Node
    scales: ir.Node | None
    last: ir.Node
    weights: tuple[Array, Array, Array]

    @property
    def quantizer(self) -> ir.Node | None:
        """What makes integers of its operand at run time."""
        return self.operand if isinstance(self.operand, ir.Node) else None

    @property
    def nodes(self) -> set[ir.Node]:
        """The nodes that the product of floats replaces, if nothing else uses them."""
        return {node for node in (self.node, self.cast, self.scales, self.last) if node is not None}

    def weights_as_floats(self) -> Array:
        """Return the constant operand in floats."""
        integers, zero, scale = (part.astype(np.float64) for part in self.weights)
        return ((integers - zero) * scale).astype(np.float32)


def products_as_floats(model: ir.Model) -> str | None:
    """Make products of floats of those of integers, in place; return what was done, for the user."""
    adapted = AdaptedModel(model)
    products = list(_products(adapted))
    if not products:
        return None
    for product in products:
        _multiply_floats(product, adapted)
    which = counted(len(products), "product")
    return f"{which} of integers became floats, as requested; their operands are not rounded to 8 bits any more"


def refuse_products(model: AdaptedModel, target: Target) -> Iterator[UnsupportedError]:
    """Yield an error for each node that quantizes at run time, or multiplies integers; first those that
    `products_as_floats` leaves."""
    products = list(_products(model))
    replaced = {node for product in products for node in product.nodes}
    quantizers = [product.quantizer for product in products if product.quantizer is not None]
    replaced |= {quantizer for quantizer in quantizers if _readers([quantizer]) <= replaced}
    nodes = [
        (node in replaced and not _is_returned(node), node_ref(node, scope.text))
        for scope, node in standard_nodes(model.model, *_FLOATS, _QUANTIZER)
    ]
    for as_floats, ref in sorted(nodes, key=lambda each: each[0]):
        hint = "convert the weights to floats (--dequantize)"
        if not as_floats:
            hint = "export the model without it, or drop --target"
        yield UnsupportedError(f"{target.name} rejects {ref.operator}, or computes it wrongly", hint=hint, node=ref)


def _products(model: AdaptedModel) -> Iterator[_QuantizedProduct]:
    """Yield the products that can be in floats; those in functions cannot, which have no initializers."""
    for node in model.nodes(*_FLOATS, in_functions=False):
        product = _product(node, model)
        if product is not None:
            yield product


def _product(node: ir.Node, model: AdaptedModel) -> _QuantizedProduct | None:
    """Return the product that a node computes, if it can be in floats."""
    if len(node.inputs) < 3:
        return None
    cast = _only_reader(node)
    last = None if cast is None else _only_reader(cast)
    if cast is None or last is None or not _is(last, "Mul"):
        return None
    if not _is(cast, "Cast") or cast.attributes.get_int("to", 0) != ir.DataType.FLOAT:
        return None
    factor = next((value for value in last.inputs if value is not cast.outputs[0]), None)
    of_operand = _of_quantizer(node, factor, model) or _of_table(node, factor, model)
    weights, zero = node.inputs[1], node.inputs[3] if len(node.inputs) > 3 else None
    integers, zeros = model.constant_of(weights), model.constant_of(zero)
    if of_operand is None or integers is None or (zero is not None and zeros is None):
        return None
    (operand, scales, scale), numbers = of_operand, integers.numpy()
    zero_point = np.zeros((), numbers.dtype) if zeros is None else zeros.numpy()
    columns = numbers.shape[-1:] if node.op_type == "MatMulInteger" and numbers.ndim == 2 else None
    if numbers.ndim < 2 or not all(part.shape in ((), (1,), columns) for part in (scale, zero_point)):
        return None
    return _QuantizedProduct(operand, node, cast, scales, last, (numbers, zero_point, scale))


def _of_quantizer(
    node: ir.Node, factor: ir.Value | None, model: AdaptedModel
) -> tuple[ir.Node, ir.Node, Array] | None:
    """Return what makes integers of the operand, the product of both scales, and the scale of the weights."""
    integers, _, zero_point = node.inputs[:3]
    quantizer = None if integers is None else integers.producer()
    scales = None if factor is None else factor.producer()
    if quantizer is None or scales is None or not _is(quantizer, _QUANTIZER) or not _is(scales, "Mul"):
        return None
    fits = integers is quantizer.outputs[0] and zero_point is quantizer.outputs[2]
    scale = _other(scales, quantizer.outputs[1])
    factors = model.constant_of(scale)
    return None if factors is None or not fits else (quantizer, scales, factors.numpy())


def _of_table(
    node: ir.Node, factor: ir.Value | None, model: AdaptedModel
) -> tuple[_RowsOfTable, ir.Node | None, Array] | None:
    """Return the rows of a table that are multiplied, the product of both scales if nodes compute it, and its
    number."""
    moves = _movers(node)
    table = _array(moves[0].inputs[0], model) if moves else None
    zero, scales = _array(node.inputs[2], model), None if factor is None else factor.producer()
    parts = [factor] if scales is None or not _is(scales, "Mul") else [*scales.inputs]
    numbers = [array for value in parts if (array := _array(value, model)) is not None]
    if table is None or len(numbers) < len(parts) or (zero is not None and zero.size != 1):
        return None
    if (node.inputs[2] is not None and zero is None) or any(len(move.outputs) > 1 for move in moves):
        return None
    lessened = table.astype(np.float32) - np.float32(0 if zero is None else zero.item())
    scale = np.asarray(np.prod(np.broadcast_arrays(*(each.astype(np.float64) for each in numbers)), axis=0))
    return _RowsOfTable(tuple(moves), lessened), scales if len(parts) > 1 else None, scale


def _other(node: ir.Node, value: ir.Value) -> ir.Value | None:
    """Return the input of a node with two that is not this one; None if this is none of them, or both."""
    others = [each for each in node.inputs if each is not value]
    return others[0] if len(others) == 1 else None


def _is(node: ir.Node, *operators: str) -> bool:
    return node.op_type in operators and is_of_default_domain(node)


def _only_reader(node: ir.Node) -> ir.Node | None:
    """Return what uses the output of a node, if nothing else does and it is in the same graph."""
    uses = list(node.outputs[0].uses())
    alone = len(uses) == 1 and not node.outputs[0].is_graph_output() and uses[0].node.graph is node.graph
    return uses[0].node if alone else None


def _readers(nodes: Iterable[ir.Node]) -> set[ir.Node]:
    """Return the nodes that use what some nodes compute, and those that use a product of scales among them."""
    readers = {use.node for node in nodes for value in node.outputs for use in value.uses()}
    scales = {node for node in readers if node.op_type == "Mul"}
    return readers | {use.node for node in scales for use in node.outputs[0].uses()}


def _is_returned(node: ir.Node) -> bool:
    return any(value.is_graph_output() for value in node.outputs)


def _multiply_floats(product: _QuantizedProduct, model: AdaptedModel) -> None:
    """Put a product of floats in the place of one of integers."""
    node, last, graph = product.node, product.last, product.last.graph
    assert isinstance(graph, ir.Graph)
    weights = model.constant(node, product.weights_as_floats(), np.float32, "weights")
    operator, x = _FLOATS[node.op_type], _as_floats(product, model)
    name = model.unique(f"{node.name or node.op_type}/{operator}")
    new = ir.Node("", operator, [x, weights], node.attributes.values(), name=name)
    graph.insert_before(last, new)
    new.outputs[0].type, new.outputs[0].shape = ir.TensorType(ir.DataType.FLOAT), last.outputs[0].shape
    model.replace(last, new.outputs[0], last.inputs)


def _as_floats(product: _QuantizedProduct, model: AdaptedModel) -> ir.Value | None:
    """Return the operand in floats: that of the quantizer, or what moves make of a table of floats."""
    operand = product.operand
    if isinstance(operand, ir.Node):
        return operand.inputs[0]
    value, graph = model.constant(product.node, operand.numbers, np.float32, "table"), product.node.graph
    assert isinstance(graph, ir.Graph)
    for move in operand.moves:
        name = model.unique(f"{move.name or move.op_type}/floats")
        moved = ir.Node("", move.op_type, [value, *move.inputs[1:]], move.attributes.values(), name=name)
        graph.insert_before(product.node, moved)
        (value,) = moved.outputs
        value.name, value.shape = model.unique(name), move.outputs[0].shape
        value.type = ir.TensorType(ir.DataType.FLOAT)
    return value


@dataclass(frozen=True)
class _IntegerTable:
    """A constant of integers whose elements are moved, and become floats by one scale only.

    Attributes:
        moves: The nodes that move its elements, the one that reads the table first.
        readers: The DequantizeLinear nodes behind them.
        numbers: The table in floats.
    """

    moves: list[ir.Node]
    readers: list[ir.Node]
    numbers: Array


def tables_as_floats(model: AdaptedModel) -> int:
    """Make floats of tables, in place; return how many DequantizeLinear nodes are left out."""
    tables = _tables(model)
    for table in tables:
        _store_floats(table, model)
    return sum(len(table.readers) for table in tables)


def nodes_of_tables(model: AdaptedModel) -> set[ir.Node]:
    """Return the DequantizeLinear nodes that `tables_as_floats` leaves out; none in a function."""
    return {node for table in _tables(model) for node in table.readers}


def _tables(model: AdaptedModel) -> list[_IntegerTable]:
    readers = model.nodes("DequantizeLinear", in_functions=False)
    firsts = dict.fromkeys(first for node in readers if (first := _first_move(node)) is not None)
    return [table for first in firsts if (table := _table(first, model)) is not None]


def _table(first: ir.Node, model: AdaptedModel) -> _IntegerTable | None:
    """Return the table that a node reads; None unless its moved elements become floats by one scale only."""
    moves, readers, pending = [first], list[ir.Node](), [*first.outputs]
    for value in pending:
        for node, index in value.uses():
            if value.is_graph_output() or index or node.graph is not first.graph or node.domain:
                return None
            if _moves(node):
                moves.append(node)
                pending += node.outputs
            elif node.op_type == "DequantizeLinear":
                readers.append(node)
            elif node.op_type not in ("Shape", "Size"):
                return None
    table, scales = _array(first.inputs[0], model), {_scale(node, model) for node in readers}
    scale = scales.pop() if len(scales) == 1 else None
    if table is None or scale is None:
        return None
    factor, zero = scale
    return _IntegerTable(moves, readers, dequantized_numbers(table, np.array(factor, np.float32), np.array(zero)))


def _scale(node: ir.Node, model: AdaptedModel) -> tuple[float, int] | None:
    """Return the scale and the zero point of a DequantizeLinear; None unless both are constants of one number."""
    scale, *zero = (_array(value, model) for value in node.inputs[1:])
    if scale is None or scale.size != 1 or scale.dtype != np.float32 or not is_of_default_domain(node):
        return None
    if not zero:
        return float(scale.item()), 0
    return None if zero[0] is None or zero[0].size != 1 else (float(scale.item()), int(zero[0].item()))


def _array(value: ir.Value | None, model: AdaptedModel) -> Array | None:
    tensor = model.constant_of(value)
    return None if tensor is None else array_of(tensor)


def _store_floats(table: _IntegerTable, model: AdaptedModel) -> None:
    """Leave out the DequantizeLinear nodes of a table: the elements that move are floats."""
    first, *_ = table.moves
    old = first.inputs[0]
    first.replace_input_with(0, model.constant(first, table.numbers, table.numbers.dtype, "floats"))
    for value in (output for move in table.moves for output in move.outputs):
        value.type = ir.TensorType(ir.DataType.FLOAT)
    for node in table.readers:
        integers, *rest = node.inputs
        assert integers is not None
        is_shared = node.outputs[0].is_graph_output() and len(list(integers.uses())) > 1
        model.replace(node, model.before(node, "Identity", [integers]) if is_shared else integers, rest)
    drop_unused([old])


def _first_move(node: ir.Node) -> ir.Node | None:
    """Return the first of the nodes of its graph that only move elements for a node."""
    return next(iter(_movers(node)), None)


def _movers(node: ir.Node) -> list[ir.Node]:
    """Return the nodes of its graph that only move elements for a node, the first of them first."""
    movers, value = list[ir.Node](), node.inputs[0]
    while value is not None and (mover := value.producer()) is not None:
        if not _moves(mover) or mover.graph is not node.graph:
            break
        movers, value = [mover, *movers], mover.inputs[0]
    return movers


def _moves(node: ir.Node) -> bool:
    """Whether a node only moves elements of its first input."""
    return is_of_default_domain(node) and operator_of(node).moves and moved_inputs(node) == 1
