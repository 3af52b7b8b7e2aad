"""Nodes of a model as small models of their own: one of the original, or what a lowered model has in its place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import onnx
import onnx_ir as ir

from rnn_lowering.compare.float64.as_floats import widen
from rnn_lowering.emit.draft import NODE
from rnn_lowering.facts.operators import default_opset
from rnn_lowering.files.data_folders import from_the_root, refer
from rnn_lowering.files.reading import ModelSource
from rnn_lowering.model.protobuf import GraphMessage, bodies_in
from rnn_lowering.model.scopes import RecurrentNode, ScopePath
from rnn_lowering.nodes.kinds import calls_function, is_recurrent
from rnn_lowering.nodes.spec import NodeSpec
from rnn_lowering.types import array_of

_NEWEST_RUNNABLE = 26
"""The newest opset that onnxruntime runs. The operators of lowered nodes are the same in opsets 27 and 28."""


@dataclass(frozen=True)
class _FileValue:
    """A computed value of a file: its node, the graph of that, and the number of the node in the file."""

    node: onnx.NodeProto
    path: ScopePath
    number: int


class LoweredFile:
    """The messages of a lowered model, of which its parts are made.

    Attributes:
        values: The computed values, by the path of their graph and their name; None for a name that is there twice.
        left: The recurrent nodes that were not emitted, each with the path of its graph.
    """

    def __init__(self, source: ModelSource) -> None:
        self._source = source
        self.values: dict[tuple[ScopePath, str], _FileValue | None] = {}
        self.left: list[tuple[ScopePath, onnx.NodeProto]] = []
        self._tensors: dict[tuple[ScopePath, str], onnx.TensorProto] = {}
        self._opset = default_opset({entry.domain: entry.version for entry in source.proto.opset_import})
        functions = {(f.domain, f.name, f.overload): f for f in source.proto.functions}
        names, numbers = {f.name for f in source.proto.functions}, count()
        for path, graph in _graphs(
            {("",): source.proto.graph} | {("::".join(i),): f for i, f in functions.items()}
        ):
            if isinstance(graph, onnx.GraphProto):
                self._tensors |= {(path, tensor.name): tensor for tensor in graph.initializer}
            for node in graph.node:
                computed = _FileValue(node, path, next(numbers))
                for name in filter(None, node.output):
                    key = path, name
                    self.values[key] = None if key in self.values else computed
                if (
                    is_recurrent(node)
                    and not _is_emitted(node)
                    and not (node.op_type in names and calls_function(ir.serde.deserialize_node(node), functions))
                ):
                    self.left.append((path, node))

    def part(
        self, path: ScopePath, inputs: Mapping[str, onnx.ValueInfoProto], outputs: Iterable[str], spec: NodeSpec
    ) -> onnx.ModelProto | None:
        """Return what is between values of the model, as a model; None if it needs values beside `inputs`.

        Args:
            path: The graph of the outputs.
            inputs: Its possible inputs, by name. It has those that it needs.
            outputs: The values to compute, outputs of the node that `spec` describes.
        """
        wanted, needed = list(outputs), dict[int, onnx.NodeProto]()
        tensors, used = dict[str, onnx.TensorProto](), set[str]()
        pending = [(path, name) for name in wanted]
        while pending:
            scope, name = pending.pop()
            if name in inputs and (scope, name) not in ((path, output) for output in wanted):
                used.add(name)  # it may be an input of another node
                continue
            while scope and (scope, name) not in self.values and (scope, name) not in self._tensors:
                scope = scope[:-_BODY]
            computed = self.values.get((scope, name))
            if computed is not None:
                pending += () if computed.number in needed else ((scope, n) for n in _used_names(computed.node))
                needed[computed.number] = computed.node
            elif (scope, name) in self._tensors:
                tensors[name] = self._tensors[scope, name]
            else:
                return None
        nodes = [needed[number] for number in sorted(needed)]
        given = [info for name, info in inputs.items() if name in used]
        model = _model(nodes, tensors.values(), given, spec, self._opset)
        if self._source.is_external:
            from_the_root(model, self._source.path, trust=self._source.trust)
        return _as_runnable(model, spec)


_BODY = 3
"""The entries of a path that name a body: the first output of its node, the attribute, and the number in it."""


def _graphs(roots: Mapping[ScopePath, GraphMessage]) -> Iterator[tuple[ScopePath, GraphMessage]]:
    """Yield graphs and the bodies in them, each with its path."""
    for path, graph in roots.items():
        yield path, graph
        for node in graph.node:
            if node.attribute:
                first = next(filter(None, node.output), "")
                for attribute in node.attribute:
                    bodies = [attribute.g] if attribute.HasField("g") else attribute.graphs
                    yield from _graphs({(*path, first, attribute.name, str(n)): b for n, b in enumerate(bodies)})


def _is_emitted(node: onnx.NodeProto) -> bool:
    return any(entry.key == NODE for entry in node.metadata_props)


def _used_names(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the names that a node uses, also in its bodies, without those that belong to a body."""
    yield from filter(None, node.input)
    for body in bodies_in(node) if node.attribute else ():
        own = {value.name for value in (*body.input, *body.initializer)}
        own.update(name for inner in body.node for name in inner.output)
        used = [*(name for inner in body.node for name in _used_names(inner)), *(v.name for v in body.output)]
        yield from (name for name in used if name and name not in own)


def original_model(entry: RecurrentNode, spec: NodeSpec, feeds: Mapping[str, str]) -> onnx.ModelProto:
    """Return the node itself as a model from the values of `feeds` to its connected outputs."""
    tensors = [message_of(tensor, spec.inputs[symbol].name or "") for symbol, tensor in spec.stored.items()]
    inputs = inputs_of(spec, feeds).values()
    return _as_runnable(_model([ir.serde.serialize_node(entry.node)], tensors, inputs, spec, entry.opset), spec)


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


def _as_runnable(model: onnx.ModelProto, spec: NodeSpec) -> onnx.ModelProto:
    """Make float32 of a node in bfloat16, in place, which onnxruntime's CPU kernels do not know; return it.

    The locations of its tensors start from the root of the file system.
    """
    if spec.dtype == ir.DataType.BFLOAT16:
        widen(model.graph, (onnx.TensorProto.BFLOAT16,), onnx.TensorProto.FLOAT, Path.cwd().anchor)
    return model


def message_of(tensor: ir.TensorProtocol, name: str) -> onnx.TensorProto:
    """Return the message of a tensor: with its numbers, or with their place, from the root of the file system."""
    if not isinstance(tensor, ir.ExternalTensor):
        return ir.serde.serialize_tensor(ir.Tensor(array_of(tensor), tensor.dtype, name=name))
    file = Path(tensor.path).resolve()
    proto = onnx.TensorProto(name=name, data_type=int(tensor.dtype), dims=list(tensor.shape.numpy()))
    refer(proto, file.relative_to(file.anchor).as_posix(), tensor.offset or 0, tensor.nbytes)
    return proto
