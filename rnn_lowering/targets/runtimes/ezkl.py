"""ezkl (`pip install ezkl`): circuits for proofs, which compute in fixed point."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from rnn_lowering.emit.ops import Ops
from rnn_lowering.targets.target import EXPORTED_UNROLLED, STATIC, Target


def write_strides(op: Ops, _: Sequence[ir.Value]) -> None:
    """Give each Conv its strides, also where they are 1: ezkl rejects it without ("missing required params")."""
    for node in op.nodes:
        if node.op_type == "Conv" and "strides" not in node.attributes:
            axes = len(node.attributes.get_ints("kernel_shape"))
            node.attributes.add(ir.AttrInt64s("strides", [1] * axes))


TARGET = Target(
    "ezkl",
    "23.0.5",
    ("unroll", "scan"),
    exported_forms=EXPORTED_UNROLLED,
    unsupported=("Softplus",),
    sizes=STATIC,
    finish=(write_strides,),
    loses_copies=True,
    empty_tensors=False,
)
