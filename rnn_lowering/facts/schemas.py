"""Schemas of the recurrent operators of com.microsoft, which onnx lacks, and the shapes that they return.

From onnxruntime's docs/ContribOperators.md and core/graph/contrib_ops/quantization_defs.cc.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx
import onnx_ir as ir
from onnx.defs import OpSchema

DOMAIN = "com.microsoft"


_FLOATS = ("float", "float16", "bfloat16")


def _schema(
    operator: str,
    inputs: str,
    outputs: str,
    attributes: str = "",
    types: Mapping[str, Sequence[str]] = {"T": _FLOATS},
) -> OpSchema:
    """Return a schema from the names and types of inputs, outputs and attributes.

    Args:
        operator: The name of the operator.
        inputs, outputs: "name: type parameter, ...".
        attributes: "name: type, ...".
        types: The element types of each type parameter.
    """
    return OpSchema(
        operator,
        DOMAIN,
        1,
        inputs=_parameters(inputs),
        outputs=_parameters(outputs),
        type_constraints=[(name, [f"tensor({t})" for t in allowed], "") for name, allowed in types.items()],
        attributes=[
            OpSchema.Attribute(name, getattr(OpSchema.AttrType, kind), required=not optional)
            for name, kind, optional in _entries(attributes)
        ],
    )


def _parameters(text: str) -> list[OpSchema.FormalParameter]:
    options = OpSchema.FormalParameterOption
    return [
        OpSchema.FormalParameter(name, kind, param_option=options.Optional if optional else options.Single)
        for name, kind, optional in _entries(text)
    ]


def _entries(text: str) -> list[tuple[str, str, bool]]:
    """Return the name and type of each entry, and whether it is optional."""
    pairs = (entry.split(": ") for entry in text.split(", ") if entry)
    return [(name.rstrip("?"), kind, name.endswith("?")) for name, kind in pairs]


_ALL = (
    _schema(
        "DynamicQuantizeLSTM",  # the types are those that `dynamic_quantize_lstm` checks
        "X: T, W: T, R: T, B?: T, sequence_lens?: T, initial_h?: T, initial_c?: T, P?: T, "
        "W_scale: T, W_zero_point: T, R_scale: T, R_zero_point: T",
        "Y?: T, Y_h?: T, Y_c?: T",
        "activation_alpha?: FLOATS, activation_beta?: FLOATS, activations?: STRINGS, clip?: FLOAT, "
        "direction?: STRING, hidden_size?: INT, input_forget?: INT",
        {"T": ["float"]},
    ),
    _schema(
        "LinearAttention",
        "query: T, key: T, value: T, past_state?: S, decay?: T, beta?: T",
        "output: T, present_state: S",
        "q_num_heads: INT, kv_num_heads: INT, update_rule?: STRING, scale?: FLOAT, chunk_size?: INT, "
        "state_window?: INT",
        {"T": _FLOATS, "S": _FLOATS},
    ),
    _schema(
        "CausalConvWithState",
        "input: T, weight: T, bias?: T, past_state?: T",
        "output: T, present_state: T",
        "activation?: STRING, ndim?: INT, dilation?: INT, channels_last?: INT, state_window?: INT",
    ),
    _schema(
        "LinearAttentionGate",
        "a: T, dt_bias: TF, decay_scale: TF, b?: T",
        "decay: T, beta?: T",
        types={"T": _FLOATS, "TF": ["float"]},
    ),
    _schema("GatedRMSNorm", "X: T, scale: T, gate: T", "Y: T", "activation?: STRING, epsilon?: FLOAT"),
    _schema(
        "GatedDeltaNet",
        "query: T, key?: T, value?: T, cu_seqlens?: TI, decay?: TS, beta?: TS, initial_state?: TS, a_log?: TS, "
        "dt_bias?: TS, capture_count?: TI, state_update_active?: TI",
        "output: T, final_state?: TS, state_update?: TS",
        "gate_activation?: STRING, beta_activation?: STRING, update_rule?: STRING, state_update_capacity?: INT, "
        "chunk_size?: INT, qk_l2_norm?: INT, scale?: FLOAT, gate_lower_bound?: FLOAT",
        {"T": _FLOATS, "TS": ["float"], "TI": ["int32"]},
    ),
)


CONTRIB_SCHEMAS = {schema.name: schema for schema in _ALL}
"""By operator."""


_HEADS = ("q_num_heads", "kv_num_heads")


MOST_HEADS = 1 << 16


LIKE_INPUTS = {
    "CausalConvWithState": (0, 3),
    "GatedDeltaNet": (2, 6),
    "GatedRMSNorm": (0,),
    "LinearAttention": (2, 3),
    "LinearAttentionGate": (0, 3),
}
"""By operator, the number of the input whose shape each output has; LinearAttention repeats the last axis."""


def like_inputs(node: ir.Node) -> list[tuple[int, int]]:
    """Return, for each output of a node of com.microsoft, the number of the input whose shape it has, and how often
    axis 2 is repeated; an empty list for other nodes."""
    if node.domain != DOMAIN or node.op_type not in LIKE_INPUTS:
        return []
    copies = repeats(*heads_of(node))
    slots = LIKE_INPUTS[node.op_type][: len(node.outputs)]
    return [(slot, 1 if n else copies) for n, slot in enumerate(slots)]


def heads_of(node: ir.Node) -> tuple[int, int]:
    """Return how many heads the query and the state of a LinearAttention have; 1 for other nodes."""
    query, state = (node.attributes.get_int(name, 1) or 1 for name in _HEADS)
    return query, state


def heads_in(node: onnx.NodeProto) -> tuple[int, int]:
    """Return what `heads_of` does, of a node in a message."""
    heads = {a.name: a.i for a in node.attribute}
    query, state = (heads.get(name, 1) for name in _HEADS)
    return query, state


def repeats(query: int, state: int) -> int:
    return query // state if 0 < state <= query <= MOST_HEADS else 1
