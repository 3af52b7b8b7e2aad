"""What one node computes: types and shapes by ONNX's inference, numbers by onnx's reference evaluator.

A node is taken alone, between inputs i0, i1, ... and outputs o0, o1, ..., so names of its graph do not matter.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx_ir as ir

from rnn_lowering.facts.contrib_schemas import DOMAIN, INFERENCE_SCHEMAS
from rnn_lowering.types import Array, array_of

if TYPE_CHECKING:
    from onnx.reference import ReferenceEvaluator


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
    types_by_name = onnx.shape_inference.infer_node_outputs(
        schema,
        proto,
        {f"i{n}": given for n, given in enumerate(types) if given is not None},
        {f"i{n}": onnx.numpy_helper.from_array(array, f"i{n}") for n, array in data.items()},
        opset_imports=_imports(tuple(opsets.items())),
        ir_version=10,
    )
    return [types_by_name.get(name) for name in proto.output]


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
        from onnx.reference import ReferenceEvaluator  # its operators take time to import

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
                results = self._run(inputs) if quotient is None else [quotient]
        except Exception:  # the evaluator has no common error; what it cannot do is unknown
            return None
        for name, array, known in zip(self.node.output, results, expected, strict=bool(expected)):
            if name and known is not None and (element_of(array), array.shape) != known:
                return None
        return results

    def _run(self, inputs: Sequence[Array | None]) -> list[Array]:
        if self.node.op_type == "Slice" and len(inputs) == _INPUTS_OF_SLICE:
            inputs = _from_the_first(*inputs)
        if self.node.op_type in ("CumSum", "OneHot"):  # whose axis and depth may be vectors of one number
            inputs = [a.reshape(()) if a is not None and n == 1 else a for n, a in enumerate(inputs)]
        feed = {f"i{n}": array for n, array in enumerate(inputs) if array is not None}
        results: Any = iter(self._evaluator.run(None, feed))
        arrays = [next(results) if name else np.empty(0) for name in self.node.output]
        if not all(isinstance(result, np.ndarray | np.generic) for result in arrays):
            raise TypeError(f"{self.node.op_type} returns no tensors")
        return [np.asarray(result) for result in arrays]

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
        if name == "NonZero" and not given[0].ndim:
            return True
        if name in ("ArgMax", "ArgMin", "TopK"):
            return self._integer("sorted", 1) == 0 or bool(np.isnan(given[0]).any())
        if name == "Clip":  # runtimes have a largest number where there is no bound
            return len(given) < _INPUTS_OF_CLIP and bool(np.isinf(given[0].astype(np.float64)).any())
        if name in ("Mod", "Range", "CumSum"):  # sums of fractions are rounded
            return any((array != np.trunc(array)).any() for array in given)
        if name in ("Cast", "CastLike") and given[0].dtype.kind == "f":
            to = ir.DataType(self._integer("to", element_of(given[-1]))).numpy()
            return to.kind in "iu" and not _fit(given[0], to)
        return False

    def _integer(self, name: str, default: int) -> int:
        """Return the number of an attribute."""
        return next((attribute.i for attribute in self.node.attribute if attribute.name == name), default)

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
