"""Rewriting a finished body: MatMul and Add become Gemm."""

from __future__ import annotations

from collections.abc import Callable, Collection

import onnx_ir as ir

from rnn_lowering.emit.provenance import WEIGHTS, add_weights

RANK = "rnn_lowering.rank"
"""Key of the rank of a product in the `meta` of its value."""


def with_gemms(nodes: list[ir.Node], outputs: Collection[ir.Value], unique: Callable[[str], str]) -> list[ir.Node]:
    """Return the nodes with Gemm(a, b, c) in place of Add(MatMul(a, b), c), where the product has rank 2 and no
    other node uses it.

    Args:
        nodes: Those of the body, which are changed.
        outputs: The outputs of the body.
        unique: Makes a name unique.
    """
    replaced: set[ir.Node] = set()
    for node in nodes:
        product = _product(node, outputs)
        if product is None:
            continue
        a, b, c = *product.inputs, node.inputs[1]
        node.op_type = "Gemm"
        add_weights(node, product.metadata_props.get(WEIGHTS, "").split(","))
        node.name = unique(f"{(node.name or '').rpartition('/')[0]}/Gemm")
        node.resize_inputs(3)
        for index, value in enumerate((a, b, c)):
            node.replace_input_with(index, value)
        for index in range(2):
            product.replace_input_with(index, None)
        replaced.add(product)
    return [node for node in nodes if node not in replaced]


def _product(node: ir.Node, outputs: Collection[ir.Value]) -> ir.Node | None:
    """Return the MatMul that is the first term of an Add and can be merged into a Gemm with it."""
    value = node.inputs[0] if node.op_type == "Add" else None
    product = None if value is None else value.producer()
    if value is None or product is None or product.op_type != "MatMul" or value.meta.get(RANK) != 2:
        return None
    return product if len(value.uses()) == 1 and value not in outputs else None
