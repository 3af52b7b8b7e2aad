"""What one node computes: types and shapes by ONNX's inference, numbers by onnx's reference evaluator.

A node is taken alone, between inputs i0, i1, ... and outputs o0, o1, ..., so names of its graph do not matter. The
onnx package lacks the recurrent operators of com.microsoft: their schemas are here (`CONTRIB_SCHEMAS`), from
onnxruntime's docs/ContribOperators.md and core/graph/contrib_ops/quantization_defs.cc.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx.defs import OpSchema
from onnx.reference import ReferenceEvaluator

from rnn_lowering.types import Array, array_of

RANDOM = frozenset(
    ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial")
)
"""Operators whose results differ each time."""

ELEMENTWISE = frozenset(
    (
        *("Abs", "Acos", "Acosh", "Add", "And", "Asin", "Asinh", "Atan", "Atanh", "BitShift", "BitwiseAnd"),
        *("BitwiseNot", "BitwiseOr", "BitwiseXor", "Cast", "Ceil", "Celu", "Clip", "Cos", "Cosh", "Div", "Elu"),
        *("Equal", "Erf", "Exp", "Floor", "Gelu", "Greater", "GreaterOrEqual", "HardSigmoid", "HardSwish"),
        *("Identity", "IsInf", "IsNaN", "LeakyRelu", "Less", "LessOrEqual", "Log", "Max", "Mean", "Min", "Mish"),
        *("Mod", "Mul", "Neg", "Not", "Or", "PRelu", "Pow", "Reciprocal", "Relu", "Round", "Selu", "Shrink"),
        *("Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Sub", "Sum", "Swish", "Tan", "Tanh"),
        *("ThresholdedRelu", "Where", "Xor"),
    )
)
"""Operators that act on each element by itself, of inputs that broadcast."""

SAME_SHAPE = frozenset(
    (
        *("BatchNormalization", "CastLike", "CumSum", "DequantizeLinear", "Dropout", "GroupNormalization"),
        *("Hardmax", "InstanceNormalization", "LRN", "LayerNormalization", "LogSoftmax", "LpNormalization"),
        *("MeanVarianceNormalization", "QuantizeLinear", "RMSNormalization", "Softmax"),
    )
)
"""Operators whose first output has the shape of the first input."""

MOVING = frozenset(
    (
        *("Concat", "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Identity", "Reshape", "Slice"),
        *("Split", "Squeeze", "Tile", "Transpose", "Unsqueeze"),
    )
)
"""Operators that move elements of all inputs (Concat) or of the first one."""


def moved_inputs(node: ir.Node) -> int:
    """Return how many of the first inputs of a node of `MOVING` are those whose elements it moves."""
    return len(node.inputs) if node.op_type == "Concat" else 1


def is_of_default_domain(node: ir.Node) -> bool:
    """Whether a node's operator is ONNX's own and no attribute refers to those of a function."""
    return node.domain == "" and not any(attribute.is_ref() for attribute in node.attributes.values())


def numbers_in(tensor: ir.TensorProtocol) -> Array | None:
    """Return the array of a tensor; None if its numbers do not fit its type and shape."""
    try:
        return array_of(tensor)
    except Exception:  # whatever a damaged tensor raises
        return None


def numbered(arrays: Sequence[Array]) -> list[Array]:
    """Number the elements of arrays, from 0 on: a node that only moves elements then shows where each goes."""
    ends = np.cumsum([0, *(array.size for array in arrays)])
    return [np.arange(end - a.size, end).reshape(a.shape) for a, end in zip(arrays, ends[1:], strict=True)]


def infer_outputs(
    node: ir.Node, opsets: Mapping[str, int], types: Sequence[onnx.TypeProto | None], data: Mapping[int, Array]
) -> list[onnx.TypeProto | None]:
    """Return the types and shapes of a node's outputs as ONNX infers them; None if it does not.

    Args:
        node: The node.
        opsets: The version of each domain.
        types: The type of each input, None for one that is absent.
        data: The numbers of inputs, by their place.

    Raises:
        onnx.defs.SchemaError: The operator is of another domain, or newer than the onnx package.
        Exception: Inference refuses the node: inference, the checker and protobuf have no common error.
    """
    schema = onnx.defs.get_schema(node.op_type, opsets.get(node.domain, 1), node.domain)
    proto = _alone(node, [given is not None for given in types])
    found = onnx.shape_inference.infer_node_outputs(
        schema,
        proto,
        {f"i{n}": given for n, given in enumerate(types) if given is not None},
        {f"i{n}": onnx.numpy_helper.from_array(array, f"i{n}") for n, array in data.items()},
        opset_imports=_imports(tuple(opsets.items())),
        ir_version=10,
    )
    return [found.get(name) for name in proto.output]


@lru_cache
def _imports(opsets: tuple[tuple[str, int], ...]) -> list[onnx.OperatorSetIdProto]:
    return [onnx.helper.make_opsetid(domain, version) for domain, version in opsets]


@dataclass(frozen=True)
class NodeModel:
    """A node as a model of its own, between values without types: its graph may lose it meanwhile."""

    model: onnx.ModelProto

    @classmethod
    def of(cls, node: ir.Node, opset: int) -> NodeModel:
        proto = _alone(node, [value is not None for value in node.inputs])
        given, returned = (
            [onnx.ValueInfoProto(name=name) for name in names if name] for names in (proto.input, proto.output)
        )
        graph = onnx.helper.make_graph([proto], "node", given, returned)
        # The evaluator knows DequantizeLinear from 19 on; it means the same before.
        version = max(opset, 19) if node.op_type == "DequantizeLinear" else opset
        return cls(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", version)]))

    @property
    def node(self) -> onnx.NodeProto:
        node: onnx.NodeProto = self.model.graph.node[0]
        return node

    @cached_property
    def _evaluator(self) -> ReferenceEvaluator:
        return ReferenceEvaluator(self.model)

    def run(self, inputs: Sequence[Array | None]) -> list[Array | None]:
        """Return the outputs, None for one that is absent; may raise any exception."""
        feed = {f"i{n}": array for n, array in enumerate(inputs) if array is not None}
        results: Any = iter(self._evaluator.run(None, feed))
        found = [next(results) if name else None for name in self.node.output]
        if not all(result is None or isinstance(result, np.ndarray | np.generic) for result in found):
            raise TypeError(f"{self.node.op_type} returns no tensors")
        return [None if result is None else np.asarray(result) for result in found]


def _alone(node: ir.Node, present: Iterable[bool]) -> onnx.NodeProto:
    proto = onnx.NodeProto()
    ir.serde.serialize_node_into(proto, node)
    del proto.input[:], proto.output[:]
    proto.input.extend(f"i{n}" if given else "" for n, given in enumerate(present))
    proto.output.extend(f"o{n}" if value.name else "" for n, value in enumerate(node.outputs))
    return proto


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
