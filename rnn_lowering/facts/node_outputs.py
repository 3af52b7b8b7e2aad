"""What one node computes: its types, shapes and numbers; and the schemas of com.microsoft, which onnx lacks.

From onnxruntime's docs/ContribOperators.md and core/graph/contrib_ops/quantization_defs.cc.

ONNX's inference learns the operators under a domain of our own (`INFERENCE_DOMAIN`): the schemas that it finds for
com.microsoft, and what its checker accepts there, stay what a program that imports this package has set.
"""

from __future__ import annotations

import atexit
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx.defs import OpSchema
from onnx.reference import ReferenceEvaluator

from rnn_lowering.types import Array, array_of

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
    found = _type_of(context, slot)
    dims = [] if found is None else list(found.tensor_type.shape.dim)
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
    if _number(context, "transBatchA", 0) or _number(context, "transBatchB", 0):
        return
    shapes = []
    for slot, name in enumerate(("transA", "transB")):
        found = _type_of(context, slot)
        if found is None or not found.tensor_type.HasField("shape"):
            return
        dims = list(found.tensor_type.shape.dim)
        if _number(context, name, 0) and len(dims) > 1:
            dims[-2:] = dims[:-3:-1]
        shapes.append(dims)
    a, b = shapes
    if a and b:
        rows, columns = a[-2:-1], b[-1:] if len(b) > 1 else []
        _set(context, 0, 0, (*_broadcast(a[:-2], b[:-2]), *rows, *columns))


def _broadcast(first: Sequence[_Dim], second: Sequence[_Dim]) -> list[_Dim]:
    rank = max(len(first), len(second))
    padded = [[_Dim(dim_value=1)] * (rank - len(dims)) + list(dims) for dims in (first, second)]
    return [_larger(*pair) for pair in zip(*padded, strict=True)]


def _larger(first: _Dim, second: _Dim) -> _Dim:
    """Return the size of two that are broadcast; one that is unknown where either may be 1."""
    if second.dim_value == 1 or first.dim_value > 1 or first == second:
        return first
    return second if first.dim_value == 1 or second.dim_value > 1 else _Dim()


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


# What one node computes: types and shapes by ONNX's inference, numbers by onnx's reference evaluator. A node is
# taken alone, between inputs i0, i1, ... and outputs o0, o1, ..., so names of its graph do not matter.


_ALONG_ONE_AXIS = ("Softmax", "LogSoftmax", "Hardmax")
"""Operators that onnx's evaluator computes along one axis at each opset."""

_FIRST_ALONG_ONE_AXIS = 13
"""Since this opset they work along one axis, before along all from the axis on."""

_INPUTS_OF_SLICE = 5
"""Its inputs, if it has steps."""

_INPUTS_OF_CLIP = 3
"""Its inputs, if it has both bounds."""

MOST_SENT = 1 << 12
"""Maximum elements of a constant whose numbers ONNX's inference sees."""


MOST_AXES = 1 << 16
"""Maximum rank of a value, and maximum numbers that ONNX's inference computes for a value."""

SHAPES_OF = {"Reshape": 1, "Expand": 1, "ConstantOfShape": 0}
"""By operator the input whose length is the rank of the output."""


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
    if _rank_of(node, types) > MOST_AXES:  # it holds every size in memory
        raise ValueError(f"{node.op_type} would have more than {MOST_AXES:,} axes")
    own = INFERENCE_SCHEMAS.get(node.op_type) if node.domain == DOMAIN else None
    schema = own or onnx.defs.get_schema(node.op_type, opsets.get(node.domain, 1), node.domain)
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


def _rank_of(node: ir.Node, types: Sequence[onnx.TypeProto | None]) -> int:
    """Return the rank of the output of an operator that gets a shape, or joins ranks; 0 for other operators."""
    shapes = [[] if given is None else given.tensor_type.shape.dim for given in types]
    if node.op_type in SHAPES_OF and len(shapes) > SHAPES_OF[node.op_type]:
        return max((dim.dim_value for dim in shapes[SHAPES_OF[node.op_type]]), default=0)
    return sum(map(len, shapes)) if node.op_type in ("Gather", "GatherND") else 0


@lru_cache
def _imports(opsets: tuple[tuple[str, int], ...]) -> list[onnx.OperatorSetIdProto]:
    return [onnx.helper.make_opsetid(domain, version) for domain, version in opsets]


ElementAndShape = tuple[int, Sequence[int | None]]
"""An element type, as a number of `onnx.TensorProto`, and a shape."""


@dataclass(frozen=True)
class NodeModel:
    """A node as a model of its own, between values without types: its graph may lose it meanwhile."""

    model: onnx.ModelProto
    opset: int

    @classmethod
    def of(cls, node: ir.Node, opset: int) -> NodeModel:
        proto = _alone(node, [value is not None for value in node.inputs])
        given, returned = (
            [onnx.ValueInfoProto(name=name) for name in names if name] for names in (proto.input, proto.output)
        )
        graph = onnx.helper.make_graph([proto], "node", given, returned)
        # The evaluator knows DequantizeLinear from 19 on; it means the same before.
        version = max(opset, 19) if node.op_type == "DequantizeLinear" else opset
        return cls(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", version)]), opset)

    @property
    def node(self) -> onnx.NodeProto:
        node: onnx.NodeProto = self.model.graph.node[0]
        return node

    @cached_property
    def _evaluator(self) -> ReferenceEvaluator:
        return ReferenceEvaluator(self.model)

    def compute(
        self, inputs: Sequence[Array | None], expected: Sequence[ElementAndShape | None] = ()
    ) -> list[Array] | None:
        """Return the outputs, without numbers for one that is absent; None if onnxruntime may compute others.

        Args:
            inputs: None for one that is absent.
            expected: What is known of each output; nothing if nothing is known.
        """
        try:
            if self._may_differ(inputs):
                return None
            with np.errstate(all="ignore"):
                quotient = _integer_quotient(inputs) if self.node.op_type == "Div" else None
                found = self._run(inputs) if quotient is None else [quotient]
        except Exception:  # the evaluator has no common error; what it cannot do is unknown
            return None
        for name, array, known in zip(self.node.output, found, expected, strict=bool(expected)):
            if name and known is not None and (element_of(array), array.shape) != known:
                return None
        return found

    def _run(self, inputs: Sequence[Array | None]) -> list[Array]:
        if self.node.op_type == "Slice" and len(inputs) == _INPUTS_OF_SLICE:
            inputs = _from_the_first(*inputs)
        feed = {f"i{n}": array for n, array in enumerate(inputs) if array is not None}
        results: Any = iter(self._evaluator.run(None, feed))
        found = [next(results) if name else np.empty(0) for name in self.node.output]
        if not all(isinstance(result, np.ndarray | np.generic) for result in found):
            raise TypeError(f"{self.node.op_type} returns no tensors")
        return [np.asarray(result) for result in found]

    def _may_differ(self, inputs: Sequence[Array | None]) -> bool:
        """Whether the evaluator and onnxruntime may differ, or ONNX does not specify the result."""
        name, given = self.node.op_type, [array for array in inputs if array is not None]
        if any(attribute.name == "broadcast" for attribute in self.node.attribute):
            return True  # before opset 7, which aligns other axes
        if name in _ALONG_ONE_AXIS and self.opset < _FIRST_ALONG_ONE_AXIS:
            return True
        if name == "Squeeze" and self._axes_are_empty(given[1:]):
            return True  # onnx drops no axis then, onnxruntime all that have size 1
        if name in ("Div", "Mod") and given[0].dtype.kind in "iu":
            return not np.all(given[1])
        if name == "Pow" and given[0].dtype.kind in "iu":
            return bool(
                np.any(given[1] < 0) or not _fit(given[0].astype(np.float64) ** given[1], np.dtype(np.int32))
            )
        if name == "Clip":  # runtimes have a largest number where there is no bound
            return len(given) < _INPUTS_OF_CLIP and bool(np.isinf(given[0].astype(np.float64)).any())
        if name in ("Mod", "Range", "CumSum"):  # sums of fractions are rounded
            return any((array != np.trunc(array)).any() for array in given)
        if name in ("Cast", "CastLike") and given[0].dtype.kind == "f":
            to = next((ir.DataType(a.i).numpy() for a in self.node.attribute if a.name == "to"), given[-1].dtype)
            return to.kind in "iu" and not _fit(given[0], to)
        return False

    def _axes_are_empty(self, given: Sequence[Array]) -> bool:
        sizes = [len(attribute.ints) for attribute in self.node.attribute] + [array.size for array in given]
        return sizes == [0]

    def bytes_of_outputs(self, inputs: Sequence[Array | None]) -> int:
        """Return the bytes of the outputs, as far as ONNX infers their sizes from those of the inputs.

        Raises:
            Exception: Inference refuses the node: inference, the checker and protobuf have no common error.
        """
        given = {f"i{n}": array for n, array in enumerate(inputs) if array is not None}
        types = {n: onnx.helper.make_tensor_type_proto(element_of(a), a.shape) for n, a in given.items()}
        small = {n: a for n, a in given.items() if a.size <= MOST_SENT and a.dtype.kind in "iu"}
        data = {n: onnx.numpy_helper.from_array(a, n) for n, a in small.items()}
        imports = list(self.model.opset_import)
        schema = onnx.defs.get_schema(self.node.op_type, imports[0].version, "")
        inferred = onnx.shape_inference.infer_node_outputs(schema, self.node, types, data, None, imports, 10)
        outputs = [found.tensor_type for found in inferred.values()]
        counts = [math.prod(dim.dim_value for dim in output.shape.dim) for output in outputs]
        return sum(int(n * ir.DataType(each.elem_type).itemsize) for n, each in zip(counts, outputs, strict=True))


def compute_node(node: ir.Node, arrays: Mapping[ir.Value, Array], opset: int) -> list[Array]:
    """Return what a node computes from arrays, by input; nothing if that is not possible."""
    given = [None if value is None else arrays.get(value) for value in node.inputs]
    return NodeModel.of(node, opset).compute(given) or []


def element_of(array: Array) -> int:
    """Return the element type of an array, as a number of `onnx.TensorProto`."""
    return int(onnx.helper.np_dtype_to_tensor_dtype(array.dtype))


def _integer_quotient(arrays: Sequence[Array | None]) -> Array | None:
    """Divide integers and round towards 0, as ONNX says; the evaluator of some versions of onnx rounds down."""
    first, second = arrays
    if first is None or second is None or first.dtype.kind not in "iu":
        return None
    quotient, rest = np.floor_divide(first, second), np.remainder(first, second)
    return np.asarray(quotient + ((rest != 0) & ((first < 0) != (second < 0))).astype(quotient.dtype))


def _from_the_first(
    data: Array | None, starts: Array | None, ends: Array | None, axes: Array | None, steps: Array | None
) -> list[Array | None]:
    """Return the inputs of a Slice such that none starts before the first element and goes backwards: it takes the
    first, and onnx's evaluator nothing."""
    if data is not None and starts is not None and steps is not None:
        sizes = np.array(data.shape, starts.dtype)[slice(len(starts)) if axes is None else axes]
        starts = np.where(steps < 0, np.maximum(starts, -sizes), starts)
    return [data, starts, ends, axes, steps]


def _fit(numbers: Array, to: np.dtype[Any]) -> bool:
    """Whether real numbers are in the range of a type of integers."""
    limits, whole = np.iinfo(to), numbers.astype(np.float64)
    return bool(np.all((whole > float(limits.min) - 1) & (whole < float(limits.max))))


def _alone(node: ir.Node, present: Iterable[bool]) -> onnx.NodeProto:
    proto = onnx.NodeProto()
    ir.serde.serialize_node_into(proto, node)
    del proto.input[:], proto.output[:]
    proto.input.extend(f"i{n}" if given else "" for n, given in enumerate(present))
    proto.output.extend(f"o{n}" if value.name else "" for n, value in enumerate(node.outputs))
    return proto
