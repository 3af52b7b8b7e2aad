"""Rewriting a finished body: MatMul and Add become Gemm."""

from __future__ import annotations

from collections.abc import Callable, Collection

import onnx_ir as ir

from rnn_lowering.emit.names import WEIGHTS, add_weights


def with_gemms(
    nodes: list[ir.Node], outputs: Collection[ir.Value], matrices: Collection[ir.Value], name: Callable[[str], str]
) -> list[ir.Node]:
    """Return the nodes with Gemm(a, b, c) in place of Add(MatMul(a, b), c), where the product has rank 2 and no
    other node uses it.

    Args:
        nodes: Those of the body, which are changed.
        outputs: The outputs of the body.
        matrices: The products of rank 2.
        name: Returns a unique name for a node.
    """
    replaced: set[ir.Node] = set()
    for node in nodes:
        product = _product(node, outputs, matrices)
        if product is None:
            continue
        a, b, c = *product.inputs, node.inputs[1]
        node.op_type = "Gemm"
        add_weights(node, product.metadata_props.get(WEIGHTS, "").split(","))
        node.name = name("Gemm")
        node.resize_inputs(3)
        for index, value in enumerate((a, b, c)):
            node.replace_input_with(index, value)
        for index in range(2):
            product.replace_input_with(index, None)
        replaced.add(product)
    return [node for node in nodes if node not in replaced]


def _product(node: ir.Node, outputs: Collection[ir.Value], matrices: Collection[ir.Value]) -> ir.Node | None:
    """Return the MatMul that is the first term of an Add and can be merged into a Gemm with it."""
    value = node.inputs[0] if node.op_type == "Add" else None
    if value is None or value not in matrices or value in outputs:
        return None
    return value.producer() if len(value.uses()) == 1 else None
