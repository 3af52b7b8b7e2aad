"""A node, or its lowered form, as a small model that onnxruntime runs on its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path

import onnx
import onnx_ir as ir

from rnn_lowering.compare.references.evaluator import widen
from rnn_lowering.facts.bodies import captured_values
from rnn_lowering.facts.operators import default_opset
from rnn_lowering.files.locations import from_the_root, refer
from rnn_lowering.files.reading import ModelSource
from rnn_lowering.model.protobuf import graphs_with_messages
from rnn_lowering.model.scopes import RecurrentNode
from rnn_lowering.nodes.node_spec import NodeSpec
from rnn_lowering.types import array_of

_NEWEST_RUNNABLE = 26
"""The newest opset that onnxruntime runs. The operators of lowered nodes are the same in opsets 27 and 28."""


class LoweredFile:
    """A lowered model, and the messages of its nodes and tensors, of which its parts are made.

    Attributes:
        model: The model.
    """

    def __init__(self, source: ModelSource) -> None:
        self._source, self.model = source, source.model
        self._nodes: dict[ir.Node, onnx.NodeProto] = {}
        self._tensors: dict[ir.Value, onnx.TensorProto] = {}
        for graph, message in graphs_with_messages(self.model, source.proto):
            self._nodes |= zip(graph, message.node, strict=True)
            tensors = {t.name: t for t in message.initializer} if isinstance(message, onnx.GraphProto) else {}
            self._tensors |= {v: tensors[name] for name, v in graph.initializers.items() if name in tensors}
        self._order = {node: n for n, node in enumerate(self._nodes)}

    def part(
        self, inputs: Mapping[str, onnx.ValueInfoProto], outputs: Sequence[ir.Value], spec: NodeSpec
    ) -> onnx.ModelProto | None:
        """Return what is between values of the model, as a model; None if it needs values beside `inputs`.

        Args:
            inputs: Its possible inputs, by name. It has those that it needs.
            outputs: The values to compute, outputs of the node that `spec` describes.
        """
        needed: set[ir.Node] = set()
        tensors: dict[str, onnx.TensorProto] = {}
        used: set[str | None] = set()
        pending = list(outputs)
        while pending:
            value = pending.pop()
            node = value.producer()
            if value.name in inputs and value not in outputs:  # which may be an input of another node
                used.add(value.name)
            elif node is not None:
                pending += () if node in needed else _outer_inputs(node)
                needed.add(node)
            elif value in self._tensors:
                tensors[value.name or ""] = self._tensors[value]
            else:
                return None
        nodes = [self._nodes[node] for node in sorted(needed, key=self._order.__getitem__)]
        given = [info for name, info in inputs.items() if name in used]
        model = _model(nodes, tensors.values(), given, spec, default_opset(self.model.opset_imports))
        from_the_root(model, self._source.path, trust=self._source.trust)
        return _as_runnable(model)


def original_model(entry: RecurrentNode, spec: NodeSpec, feeds: Mapping[str, str]) -> onnx.ModelProto:
    """Return the node itself as a model from the values of `feeds` to its connected outputs."""
    tensors = [_message_of(tensor, spec.inputs[symbol].name or "") for symbol, tensor in spec.stored.items()]
    inputs = inputs_of(spec, feeds).values()
    return _as_runnable(_model([ir.to_proto(entry.node)], tensors, inputs, spec, entry.opset))


def inputs_of(spec: NodeSpec, feeds: Mapping[str, str]) -> dict[str, onnx.ValueInfoProto]:
    """Return declarations of the inputs of a node, by name.

    Args:
        feeds: Symbol of the operator specification -> name of the value.
    """
    return {name: _declared(name, spec, symbol, [None] * spec.rank(symbol)) for symbol, name in feeds.items()}


def with_shapes(model: onnx.ModelProto, shapes: Mapping[str, Sequence[int]]) -> onnx.ModelProto:
    """Return a copy of a model with the given input shapes."""
    copy = deepcopy(model)
    for value in copy.graph.input:
        for dim, size in zip(value.type.tensor_type.shape.dim, shapes.get(value.name, ()), strict=False):
            dim.dim_value = size
    return copy


def _declared(name: str, spec: NodeSpec, symbol: str, shape: list[None] | None) -> onnx.ValueInfoProto:
    return onnx.helper.make_tensor_value_info(name, int(spec.dtype_of(symbol)), shape)


def _outer_inputs(node: ir.Node) -> list[ir.Value]:
    """Return the values that a node uses, also in its bodies, without those that belong to a body."""
    own = [value for value in node.inputs if value is not None]
    return list(dict.fromkeys([*own, *captured_values(node)]))


def _model(
    nodes: Iterable[onnx.NodeProto],
    tensors: Iterable[onnx.TensorProto],
    inputs: Iterable[onnx.ValueInfoProto],
    spec: NodeSpec,
    opset: int,
) -> onnx.ModelProto:
    outputs = [_declared(value.name or "", spec, symbol, None) for symbol, value in spec.outputs.items()]
    graph = onnx.GraphProto(name="node", node=nodes, initializer=tensors, input=inputs, output=outputs)
    others = sorted({node.domain for node in graph.node} - {""})
    newest = max(_NEWEST_RUNNABLE, spec.version)  # the process of `Runner` runs newer operators
    versions = {"": min(opset, newest), **dict.fromkeys(others, 1)}
    imports = [onnx.helper.make_opsetid(domain, version) for domain, version in versions.items()]
    return onnx.helper.make_model(graph, opset_imports=imports, ir_version=10)


def _as_runnable(model: onnx.ModelProto) -> onnx.ModelProto:
    """Make float32 of the bfloat16 of a model, in place, which onnxruntime's CPU kernels do not know; return it.

    The locations of its tensors start from the root of the file system.
    """
    widen(model.graph, (onnx.TensorProto.BFLOAT16,), onnx.TensorProto.FLOAT, Path.cwd().anchor)
    return model


def _message_of(tensor: ir.TensorProtocol, name: str) -> onnx.TensorProto:
    """Return the message of a tensor: with its numbers, or with their place, from the root of the file system."""
    if not isinstance(tensor, ir.ExternalTensor):
        message: onnx.TensorProto = ir.to_proto(ir.Tensor(array_of(tensor), tensor.dtype, name=name))
        return message
    file = Path(tensor.path).resolve()
    proto = onnx.TensorProto(name=name, data_type=int(tensor.dtype), dims=list(tensor.shape.numpy()))
    refer(proto, file.relative_to(file.anchor).as_posix(), tensor.offset or 0, tensor.nbytes)
    return proto
