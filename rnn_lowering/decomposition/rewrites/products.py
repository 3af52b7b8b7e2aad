"""Products of integers that are quantized at run time, as products of floats.

onnxruntime's quantizer writes x W as DynamicQuantizeLinear(x), MatMulInteger or ConvInteger, Cast, and a Mul by
both scales. In floats x is not rounded to 8 bits any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from rnn_lowering.decomposition.rewrites.inserting import Inserter
from rnn_lowering.errors import UnsupportedError, counted
from rnn_lowering.facts.constants import constant_of
from rnn_lowering.facts.operators import default_opset, is_of_default_domain
from rnn_lowering.model.model_sizes import take_over
from rnn_lowering.model.replace import drop_unused
from rnn_lowering.model.scopes import standard_nodes
from rnn_lowering.nodes.kinds import node_ref
from rnn_lowering.targets.target import Target
from rnn_lowering.types import Array

_FLOATS = {"MatMulInteger": "MatMul", "ConvInteger": "Conv"}
_QUANTIZER = "DynamicQuantizeLinear"


@dataclass(frozen=True)
class QuantizedProduct:
    """A product of integers that can be one of floats.

    Attributes:
        quantizer: What makes integers of its operand.
        node: The product.
        cast: What makes floats of it.
        scales: The product of both scales.
        last: What multiplies by that.
        weights: The constant operand: integers, zero point and scale.
    """

    quantizer: ir.Node
    node: ir.Node
    cast: ir.Node
    scales: ir.Node
    last: ir.Node
    weights: tuple[Array, Array, Array]

    @property
    def nodes(self) -> set[ir.Node]:
        """The nodes that the product of floats replaces, if nothing else uses them."""
        return {self.node, self.cast, self.scales, self.last}

    def weights_as_floats(self) -> Array:
        """Return the constant operand in floats."""
        integers, zero, scale = (part.astype(np.float64) for part in self.weights)
        return ((integers - zero) * scale).astype(np.float32)


def products_as_floats(model: ir.Model) -> str | None:
    """Make products of floats of those of integers, in place; return what was done, for the user."""
    products = list(_products(model))
    if not products:
        return None
    inserter = Inserter(model)
    for product in products:
        _replace(product, inserter)
    which = counted(len(products), "product")
    return f"{which} of integers became floats, as requested; their operands are not rounded to 8 bits any more"


def refuse_products(model: ir.Model, target: Target) -> Iterator[UnsupportedError]:
    """Yield an error for each node that quantizes at run time, or multiplies integers; first those that
    `products_as_floats` leaves."""
    products = list(_products(model))
    replaced = {node for product in products for node in product.nodes}
    replaced |= {product.quantizer for product in products if _readers([product.quantizer]) <= replaced}
    nodes = [
        (node in replaced and not _is_returned(node), node_ref(node, scope.text))
        for scope, node in standard_nodes(model, *_FLOATS, _QUANTIZER)
    ]
    for as_floats, ref in sorted(nodes, key=lambda each: each[0]):
        hint = "convert the weights to floats (--dequantize)"
        if not as_floats:
            hint = "export the model without it, or drop --target"
        yield UnsupportedError(f"{target.name} rejects {ref.operator}, or computes it wrongly", hint=hint, node=ref)


def _products(model: ir.Model) -> Iterator[QuantizedProduct]:
    """Yield the products that can be in floats; those in functions cannot, which have no initializers."""
    opset = default_opset(model.opset_imports)
    for scope, node in standard_nodes(model, *_FLOATS):
        product = _product(node, opset) if scope.function is None else None
        if product is not None:
            yield product


def _product(node: ir.Node, opset: int) -> QuantizedProduct | None:
    """Return the product that a node computes, if it can be in floats."""
    if len(node.inputs) < 3:
        return None
    integers, weights, zero_point = node.inputs[:3]
    quantizer = None if integers is None else integers.producer()
    cast = _only_reader(node)
    last = None if cast is None else _only_reader(cast)
    if quantizer is None or cast is None or last is None or not _is(quantizer, _QUANTIZER):
        return None
    fits = integers is quantizer.outputs[0] and zero_point is quantizer.outputs[2] and _is(last, "Mul")
    if not fits or not _is(cast, "Cast") or cast.attributes.get_int("to", 0) != ir.DataType.FLOAT:
        return None
    factor = next((value for value in last.inputs if value is not cast.outputs[0]), None)
    scales = None if factor is None else factor.producer()
    if scales is None or not _is(scales, "Mul") or quantizer.outputs[1] not in scales.inputs:
        return None
    scale = next((value for value in scales.inputs if value is not quantizer.outputs[1]), None)
    zero = node.inputs[3] if len(node.inputs) > 3 else None
    parts = [None if value is None else constant_of(value, opset) for value in (weights, scale, zero)]
    if parts[0] is None or parts[1] is None or (zero is not None and parts[2] is None):
        return None
    numbers, factors = parts[0].numpy(), parts[1].numpy()
    zeros = np.zeros((), numbers.dtype) if parts[2] is None else parts[2].numpy()
    columns = numbers.shape[-1:] if node.op_type == "MatMulInteger" and numbers.ndim == 2 else None
    if numbers.ndim < 2 or not all(part.shape in ((), (1,), columns) for part in (factors, zeros)):
        return None
    return QuantizedProduct(quantizer, node, cast, scales, last, (numbers, zeros, factors))


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


def _replace(product: QuantizedProduct, inserter: Inserter) -> None:
    """Put a product of floats in the place of one of integers."""
    node, last, graph = product.node, product.last, product.last.graph
    assert isinstance(graph, ir.Graph)
    weights = inserter.constant(node, product.weights_as_floats(), np.float32, "weights")
    operator, x = _FLOATS[node.op_type], product.quantizer.inputs[0]
    name = inserter.unique(f"{node.name or node.op_type}/{operator}")
    new = ir.Node("", operator, [x, weights], node.attributes.values(), name=name)
    graph.insert_before(last, new)
    new.outputs[0].type, new.outputs[0].shape = _FLOAT, last.outputs[0].shape
    inputs = [value for value in last.inputs if value is not None]
    take_over(last.outputs[0], new.outputs[0])
    graph.remove(last, safe=True)
    drop_unused(inputs)


_FLOAT = ir.TensorType(ir.DataType.FLOAT)
