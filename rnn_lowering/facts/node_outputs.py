"""What one node computes: types and shapes by ONNX's inference, numbers by onnx's reference evaluator.

A node is taken alone, between inputs i0, i1, ... and outputs o0, o1, ..., so names of its graph do not matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator

from rnn_lowering.facts.schemas import DOMAIN, INFERENCE_SCHEMAS
from rnn_lowering.types import Array, array_of


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
