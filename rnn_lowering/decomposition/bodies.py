"""The body of the function that ONNX defines an operator by, or the one of `formulas`, as a function of a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from rnn_lowering.decomposition.formulas import FORMULAS, Operands

DOMAIN = "rnn_lowering.bodies"
"""The domain of the functions; they are inlined at once."""

WRONG_BODIES = frozenset(("AffineGrid", "SwiGLU"))
"""Operators whose body in onnx 1.23 does not compute what ONNX's tests want: AffineGrid's gives Range tensors of
rank 1, SwiGLU's is wrong for another alpha."""


def body_of(node: ir.Node, opset: int, operands: Operands) -> ir.Function | None:
    """Return a function of basic operators that computes a node; None if there is none.

    Args:
        node: A node of ONNX's default domain.
        opset: The version of the operators in the body.
        operands: What is known of the inputs.
    """
    formula = FORMULAS.get(node.op_type)
    proto = _of_onnx(node, opset, operands) if formula is None else formula(node, opset, operands)
    if proto is not None and node.op_type == "Attention":
        proto = _with_masked_scores(proto, node, operands)
    if proto is None:
        return None
    proto.domain, proto.name = DOMAIN, node.op_type
    computed = {name for each in proto.node for name in each.output}
    for name in proto.output:  # the body of Attention computes none that the node lacks
        if name not in computed:
            proto.node.append(onnx.helper.make_node("Identity", [proto.input[0]], [name]))
    del proto.opset_import[:]
    proto.opset_import.append(onnx.helper.make_opsetid("", opset))
    return ir.serde.deserialize_function(proto)


_MASK, _LENGTHS, _SCORES = 3, 6, 3
"""Inputs of Attention: its mask, and the lengths of keys; and the output that has the scores."""

_MASKED = 2
"""The `qk_matmul_output_mode` of scores behind their mask."""

_LATER_KEYS = "BoolMaskTri"
"""The value of the body that tells which keys are later than their query."""


def _with_masked_scores(proto: onnx.FunctionProto, node: ir.Node, operands: Operands) -> onnx.FunctionProto | None:
    """Return an Attention that returns the scores that onnxruntime does; None if it cannot be written so.

    Where a boolean mask, a causal mask or lengths mask a score, onnxruntime returns the lowest number of its type.
    ONNX's body returns minus infinity, as both do where a mask of floats is minus infinity.
    """
    given = [each.dtype for each in operands] + [None] * (_LENGTHS + 1)
    dtype, mask, causal = given[0], given[_MASK], node.attributes.get_int("is_causal", 0)
    if node.attributes.get_int("qk_matmul_output_mode", 0) != _MASKED or dtype is None:
        return proto
    if not (causal or given[_LENGTHS] is not None or mask == ir.DataType.BOOL):
        return proto
    scores, ours = proto.output[_SCORES], "scores_of_body"
    for each in proto.node:
        each.output[:] = [ours if name == scores else name for name in each.output]
        each.input[:] = [ours if name == scores else name for name in each.input]
    computed = {name for each in proto.node for name in each.output}
    if ours not in computed:  # nothing reads the scores
        return proto
    least = onnx.numpy_helper.from_array(np.array(dtype.min, dtype.numpy()), "least")
    proto.node.append(onnx.helper.make_node("Constant", [], ["least_score"], value=least))
    if mask in (None, ir.DataType.BOOL):
        proto.node.append(onnx.helper.make_node("Max", [ours, "least_score"], [scores]))
    elif _LATER_KEYS in computed and given[_LENGTHS] is None:
        proto.node.append(onnx.helper.make_node("Where", [_LATER_KEYS, "least_score", ours], [scores]))
    else:
        return None
    return proto


def call_of(node: ir.Node, opset: int, function: str) -> ir.Node:
    """Return a call of the function in the place of a node; attributes that the node omits have ONNX's defaults."""
    schema = onnx.defs.get_schema(node.op_type, opset, "")
    defaults = {n: a.default_value for n, a in schema.attributes.items() if a.default_value.type}
    given = {name: ir.serde.deserialize_attribute(a) for name, a in defaults.items()} | dict(node.attributes)
    return ir.Node(DOMAIN, function, node.inputs, given.values(), num_outputs=len(node.outputs), name=node.name)


def _of_onnx(node: ir.Node, opset: int, operands: Operands) -> onnx.FunctionProto | None:
    schema: Any = onnx.defs.get_schema(node.op_type, opset, "")
    if node.op_type in WRONG_BODIES:
        return None
    if version := _fitting(schema.function_opset_versions, opset):
        serialized = schema.get_function_with_opset_version(version)
    elif version := _fitting(schema.context_dependent_function_opset_versions, opset):
        types = [each.type_proto().SerializeToString() for each in operands]
        given = ir.to_proto(node).SerializeToString()
        serialized = schema.get_context_dependent_function_with_opset_version(version, given, types)
    else:
        return None
    if not serialized:
        return None
    proto = onnx.FunctionProto()
    proto.ParseFromString(serialized)
    return proto


def _fitting(versions: Sequence[int], opset: int) -> int:
    """Return the newest version that is not newer than an opset; if all are, the oldest, whose operators may exist
    before; 0 for none."""
    return max((version for version in versions if version <= opset), default=min(versions, default=0))
