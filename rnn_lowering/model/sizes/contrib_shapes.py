"""The shapes of outputs of com.microsoft's operators, which ONNX's inference does not know.

It goes through functions: each such node becomes, in a message that is only inferred, a call of a function whose
outputs have the shapes of the node's. So one inference finds the sizes behind any number of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx
import onnx_ir as ir

from rnn_lowering.model.messages import nodes_in

_CONTRIB, _DOMAIN = "com.microsoft", "rnn_lowering.shapes"

_LIKE_INPUTS = {
    "CausalConvWithState": (0, 3),
    "GatedDeltaNet": (2, 6),
    "GatedRMSNorm": (0,),
    "LinearAttention": (2, 3),
    "LinearAttentionGate": (0, 3),
}
"""By operator, the number of the input whose shape each output has; LinearAttention repeats the last axis."""


def call_functions(proto: onnx.ModelProto) -> None:
    """Replace nodes of com.microsoft in a message, in place, where the model has no functions of their names."""
    own = {(function.domain, function.name) for function in proto.functions}
    functions: dict[str, onnx.FunctionProto] = {}
    opset = next((entry for entry in proto.opset_import if entry.domain == ""), None)
    for node in nodes_in(proto.graph):
        known = node.domain == _CONTRIB and node.op_type in _LIKE_INPUTS
        if opset is None or not known or (node.domain, node.op_type) in own:
            continue
        given = [bool(name) for name in node.input]
        copies = _copies(node)
        name = f"{node.op_type}_{''.join(map(str, map(int, given)))}_{len(node.output)}_{copies}"
        functions[name] = _function(name, given, _LIKE_INPUTS[node.op_type][: len(node.output)], copies, opset)
        node.domain, node.op_type = _DOMAIN, name
        del node.attribute[:]
    if functions:
        proto.functions.extend(functions.values())
        proto.opset_import.append(onnx.helper.make_opsetid(_DOMAIN, 1))


def like_inputs(node: ir.Node) -> list[tuple[int, int]]:
    """Return, for each output of a node of com.microsoft, the number of the input whose shape it has, and how often
    axis 2 is repeated; an empty list for other nodes."""
    if node.domain != _CONTRIB or node.op_type not in _LIKE_INPUTS:
        return []
    copies = _repeats(*heads_of(node))
    slots = _LIKE_INPUTS[node.op_type][: len(node.outputs)]
    return [(slot, 1 if n else copies) for n, slot in enumerate(slots)]


def heads_of(node: ir.Node) -> tuple[int, int]:
    """Return how many heads the query and the state of a LinearAttention have; 1 for other nodes."""
    query, state = (node.attributes.get_int(name, 1) or 1 for name in _HEADS)
    return query, state


def _copies(node: onnx.NodeProto) -> int:
    """Return how many heads of a LinearAttention's query read one of its value; 1 for other nodes."""
    heads = {a.name: a.i for a in node.attribute}
    return _repeats(*(heads.get(name, 1) for name in _HEADS))


def _repeats(query: int, state: int) -> int:
    return query // state if 0 < state <= query <= _MOST_HEADS else 1


_HEADS = ("q_num_heads", "kv_num_heads")
_MOST_HEADS = 1 << 16


def _function(
    name: str, given: Sequence[bool], like: Sequence[int], copies: int, opset: onnx.OperatorSetIdProto
) -> onnx.FunctionProto:
    inputs = [f"input{n}" for n in range(len(given))]
    outputs = [f"output{n}" for n in range(len(like))]
    nodes = [
        onnx.helper.make_node("Concat", [inputs[slot]] * copies, [output], axis=2)
        if n == 0 and copies > 1
        else onnx.helper.make_node("Identity", [inputs[slot]], [output])
        for n, (slot, output) in enumerate(zip(like, outputs, strict=True))
        if slot < len(given) and given[slot]
    ]
    return onnx.helper.make_function(_DOMAIN, name, inputs, outputs, nodes, [opset])
