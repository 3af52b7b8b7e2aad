"""The schemas of com.microsoft, which onnx lacks.

From onnxruntime's docs/ContribOperators.md and core/graph/contrib_ops/quantization_defs.cc.

ONNX's inference learns the operators under a domain of our own (`INFERENCE_DOMAIN`): the schemas that it finds for
com.microsoft, and what its checker accepts there, stay what a program that imports this package has set.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import onnx
from onnx.defs import OpSchema

if TYPE_CHECKING:
    from onnx.onnx_cpp2py_export.shape_inference import InferenceContext


DOMAIN = "com.microsoft"

INFERENCE_DOMAIN = "rnn_lowering.inference"

_FLOATS = ("float", "float16", "bfloat16")

_TYPES = (*_FLOATS, "double", "bool", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)))


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
            OpSchema.Attribute(name, getattr(OpSchema.AttrType, type_), required=not optional)
            for name, type_, optional in _entries(attributes)
        ],
    )


def _parameters(text: str) -> list[OpSchema.FormalParameter]:
    options = OpSchema.FormalParameterOption
    return [
        OpSchema.FormalParameter(name, type_, param_option=options.Optional if optional else options.Single)
        for name, type_, optional in _entries(text)
    ]


def _entries(text: str) -> list[tuple[str, str, bool]]:
    """Return the name and type of each entry, and whether it is optional."""
    pairs = (entry.split(": ") for entry in text.split(", ") if entry)
    return [(name.rstrip("?"), type_, name.endswith("?")) for name, type_ in pairs]


_ELEMENTWISE = (
    *(_schema(operator, "X: T", "Y: T", "alpha?: FLOAT") for operator in ("Gelu", "QuickGelu")),
    _schema("FastGelu", "X: T, bias?: T", "Y: T"),
    _schema("BiasGelu", "A: T, B: T", "C: T"),
)
"""Operators that are not recurrent, and whose output has the shape of the first input."""

_ALL = (
    *_ELEMENTWISE,
    _schema(
        "FusedMatMul",
        "A: T, B: T",
        "Y: T",
        "alpha?: FLOAT, transA?: INT, transB?: INT, transBatchA?: INT, transBatchB?: INT",
        {"T": (*_FLOATS, "double")},
    ),
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


# The types and shapes of outputs

_Dim = onnx.TensorShapeProto.Dimension


def _type_of(context: InferenceContext, slot: int) -> onnx.TypeProto | None:
    """Return the type of an input; None if it is absent or unknown."""
    return context.get_input_type(slot) if slot < context.get_num_inputs() else None


def _dims_of(context: InferenceContext, slot: int, rank: int) -> list[_Dim]:
    """Return the dimensions of an input, unknown ones if another rank or none is known."""
    kind = _type_of(context, slot)
    dims = [] if kind is None else list(kind.tensor_type.shape.dim)
    return dims if len(dims) == rank else [_Dim() for _ in range(rank)]


def _number(context: InferenceContext, name: str, default: int) -> int:
    attribute = context.get_attribute(name)
    return default if attribute is None else int(attribute.i)


def _set(context: InferenceContext, output: int, like: int, dims: Iterable[_Dim] | None = None) -> None:
    """Give an output, if the node has it, the element type of an input, and these dimensions or its shape."""
    found = _type_of(context, like)
    if found is None or output >= context.get_num_outputs():
        return
    if dims is not None:
        element, found = found.tensor_type.elem_type, onnx.TypeProto()
        found.tensor_type.elem_type = element
        found.tensor_type.shape.SetInParent()
        found.tensor_type.shape.dim.extend(dims)
    context.set_output_type(output, found)


def _times(dim: _Dim, factor: int) -> _Dim:
    if factor == 1:
        return dim
    return _Dim(dim_value=dim.dim_value * factor) if dim.HasField("dim_value") else _Dim()


def _part(dim: _Dim, parts: int) -> _Dim:
    """Return the size of one of so many equal parts."""
    if parts == 1:
        return dim
    whole = dim.HasField("dim_value") and not dim.dim_value % parts
    return _Dim(dim_value=dim.dim_value // parts) if whole else _Dim()


def _like(*slots: int) -> Callable[[InferenceContext], None]:
    """Give each output the type and shape of an input."""

    def infer(context: InferenceContext) -> None:
        for output, slot in enumerate(slots):
            _set(context, output, slot)

    return infer


def _lstm(context: InferenceContext) -> None:
    seq_length, batch_size, _ = _dims_of(context, 0, 3)
    direction, hidden_size = context.get_attribute("direction"), _number(context, "hidden_size", 0)
    directions = _Dim(dim_value=2 if direction is not None and direction.s == b"bidirectional" else 1)
    hidden = _Dim(dim_value=hidden_size) if hidden_size > 0 else _Dim()
    _set(context, 0, 0, (seq_length, directions, batch_size, hidden))
    for output in (1, 2):
        _set(context, output, 0, (directions, batch_size, hidden))


def _linear_attention(context: InferenceContext) -> None:
    readers, states = (_number(context, name, 1) for name in ("q_num_heads", "kv_num_heads"))
    if not 0 < readers <= _MOST_HEADS or not 0 < states <= _MOST_HEADS:
        return
    batch_size, _, keys = _dims_of(context, 0, 3)
    *rows, values = _dims_of(context, 2, 3)
    _set(context, 0, 2, (*rows, _times(values, max(readers // states, 1))))
    if _type_of(context, 3) is not None:
        _set(context, 1, 3)
    else:
        _set(context, 1, 0, (batch_size, _Dim(dim_value=states), _part(keys, readers), _part(values, states)))


def _fused_matmul(context: InferenceContext) -> None:
    """Infer the MatMul of inputs whose last two axes may change places; where others do too, nothing."""
    if _number(context, "transBatchA", 0) or _number(context, "transBatchB", 0):
        return
    factors: dict[str, onnx.TypeProto] = {}
    for slot, name in enumerate(("transA", "transB")):
        factor = _type_of(context, slot)
        if factor is None or not factor.tensor_type.HasField("shape"):
            return
        factors[name], dims = factor, factor.tensor_type.shape.dim
        if _number(context, name, 0) and len(dims) > 1:
            dims.extend([dims.pop(), dims.pop()])
    product = onnx.helper.make_node("MatMul", [*factors], ["Y"])
    outputs = onnx.shape_inference.infer_node_outputs(onnx.defs.get_schema("MatMul", 13), product, factors)
    context.set_output_type(0, outputs["Y"])


def _causal_conv(context: InferenceContext) -> None:
    _set(context, 0, 0)
    given = _type_of(context, 0)
    if _type_of(context, 3) is not None:
        _set(context, 1, 3)
    elif given is not None and len(dims := list(given.tensor_type.shape.dim)) > 2:
        kernel = _dims_of(context, 1, 3)[2]
        past = kernel.dim_value - 1 if kernel.HasField("dim_value") else -1
        frames = 1 if _number(context, "channels_last", 0) else len(dims) - 1
        dims[frames] = _Dim(dim_value=past * _number(context, "dilation", 1)) if past >= 0 else _Dim()
        _set(context, 1, 0, dims)


_MOST_HEADS = 1 << 16

_RULES: dict[str, Callable[[InferenceContext], None]] = {
    **{schema.name: _like(0) for schema in _ELEMENTWISE},
    "CausalConvWithState": _causal_conv,
    "DynamicQuantizeLSTM": _lstm,
    "FusedMatMul": _fused_matmul,
    "GatedDeltaNet": _like(2, 6),
    "GatedRMSNorm": _like(0),
    "LinearAttention": _linear_attention,
    "LinearAttentionGate": _like(0, 3),
}


def _for_inference(schema: OpSchema) -> OpSchema:
    """Return a schema of the same operator and attributes by which ONNX infers; no node contradicts it."""
    rule = _RULES[schema.name]

    def infer(context: InferenceContext) -> None:
        with suppress(Exception):  # one that is raised here ends the inference of the whole model
            rule(context)

    options = OpSchema.FormalParameterOption
    some = OpSchema.FormalParameter("some", "T", param_option=options.Variadic, is_homogeneous=False, min_arity=0)
    attributes = [OpSchema.Attribute(a.name, a.type, required=False) for a in schema.attributes.values()]
    types = [("T", [f"tensor({name})" for name in _TYPES], "")]
    names = f"{DOMAIN}.{schema.name}", INFERENCE_DOMAIN, 1  # onnx.reference needs different names in all domains
    made = OpSchema(*names, inputs=[some], outputs=[some], type_constraints=types, attributes=attributes)
    made.set_type_and_shape_inference_function(infer)
    return made


_SUPPORTED = hasattr(OpSchema, "set_type_and_shape_inference_function")  # since onnx 1.19

INFERENCE_SCHEMAS = {schema.name: _for_inference(schema) for schema in _ALL} if _SUPPORTED else {}
"""By operator. ONNX's inference finds them under `INFERENCE_DOMAIN`. With an older onnx, which paddle2onnx needs,
there are none: sizes behind these operators are then those that the model declares."""

for _made in INFERENCE_SCHEMAS.values():
    onnx.defs.register_schema(_made)
    atexit.register(onnx.defs.deregister_schema, _made.name, 1, INFERENCE_DOMAIN)  # onnx 1.19 would hang at exit
