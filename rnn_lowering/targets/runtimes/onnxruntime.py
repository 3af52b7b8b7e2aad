"""onnxruntime (`pip install onnxruntime`) and onnxruntime-web (`npm install onnxruntime-web`): all operators."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import onnx_ir as ir

from rnn_lowering.emit.dialect import Dialect
from rnn_lowering.emit.draft import WEIGHTS, add_weights
from rnn_lowering.emit.ops import Ops
from rnn_lowering.targets.target import Target


def gemms(op: Ops, outputs: Sequence[ir.Value]) -> None:
    """Replace Add(MatMul(a, b), c) with Gemm(a, b, c) in a body, where the product has rank 2 and no other
    node uses it: onnxruntime runs one kernel for both, with the activation as FusedGemm."""
    if not op.in_body:
        return
    replaced: set[ir.Node] = set()
    for node in op.nodes:
        product = _product(node, outputs, op.matrices)
        if product is None:
            continue
        a, b, c = *product.inputs, node.inputs[1]
        node.op_type = "Gemm"
        add_weights(node, product.metadata_props.get(WEIGHTS, "").split(","))
        node.name = op.unique_name("Gemm")
        node.resize_inputs(3)
        for index, value in enumerate((a, b, c)):
            node.replace_input_with(index, value)
        for index in range(2):
            product.replace_input_with(index, None)
        replaced.add(product)
    op.nodes[:] = [node for node in op.nodes if node not in replaced]


def _product(node: ir.Node, outputs: Collection[ir.Value], matrices: Collection[ir.Value]) -> ir.Node | None:
    """Return the MatMul that is the first term of an Add and can be merged into a Gemm with it."""
    value = node.inputs[0] if node.op_type == "Add" else None
    if value is None or value not in matrices or value in outputs:
        return None
    return value.producer() if len(value.uses()) == 1 else None


_JOINED = Dialect(join_up_to=128, stack_up_to=128)
_BY_LENGTH = replace(_JOINED, by_length=True)

ONNXRUNTIME = Target(
    "onnxruntime",
    "1.31.1",
    ("scan", "loop", "unroll"),
    other_names=("ort",),
    attention=("chunked", "scan", "loop", "unroll"),
    integer_products=True,
    loops_of_chunks=True,
    dialect=_BY_LENGTH,
    loop_dialect=replace(_BY_LENGTH, gemm_per_activation=True, stack_outside=True),
    loop_finish=(gemms,),
)

WEB = Target(
    "onnxruntime-web",
    "1.30.0",
    ("scan", "loop", "unroll"),
    other_names=("ortweb",),
    attention=("scan", "loop", "unroll", "chunked"),
    integer_products=True,
    dialect=_JOINED,
)
