"""A node, or its lowered form, as a small model that onnxruntime runs on its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from rnn_lowering.compare.references.evaluator import widen
from rnn_lowering.facts.bodies import bodies_of, values_used
from rnn_lowering.facts.operators import default_opset
from rnn_lowering.files.locations import ALIGNMENT, refer
from rnn_lowering.model.scopes import RecurrentNode
from rnn_lowering.nodes.node_spec import NodeSpec
from rnn_lowering.types import array_of

_NEWEST_RUNNABLE = 26
"""The newest opset that onnxruntime runs. The operators of lowered nodes are the same in opsets 27 and 28."""

_LARGE = 1 << 16
"""Smaller tensors, in bytes, stay in the model: onnxruntime folds and fuses only those."""


def cut_out(
    model: ir.Model,
    order: Mapping[ir.Node, int],
    inputs: Mapping[str, str],
    outputs: Sequence[ir.Value],
    spec: NodeSpec,
    tensors: TensorFile,
) -> onnx.ModelProto | None:
    """Return the part of a model between some of its values; None if it needs values beside `inputs`.

    Args:
        order: The position of each node of the model.
        inputs: Name of a value -> symbol of the operator specification.
        outputs: The values to compute, outputs of the node that `spec` describes.
    """
    needed: set[ir.Node] = set()
    initializers: dict[str, ir.TensorProtocol] = {}
    used: set[str | None] = set()
    pending = list(outputs)
    while pending:
        value = pending.pop()
        node = value.producer()
        if value.name in inputs:
            used.add(value.name)
        elif node is not None:
            pending += () if node in needed else outer_inputs(node)
            needed.add(node)
        elif value.const_value is None:
            return None
        else:
            initializers[value.name or ""] = value.const_value
    in_order = sorted(needed, key=order.__getitem__)
    given = {name: symbol for name, symbol in inputs.items() if name in used}
    return _model(in_order, initializers, given, spec, default_opset(model.opset_imports), tensors)


def original_model(
    entry: RecurrentNode, spec: NodeSpec, feeds: Mapping[str, str], tensors: TensorFile
) -> onnx.ModelProto:
    """Return the node itself as a model from the values of `feeds` to its connected outputs."""
    constants = {spec.inputs[symbol].name or "": tensor for symbol, tensor in spec.stored.items()}
    given = {name: symbol for symbol, name in feeds.items()}
    return _model([entry.node], constants, given, spec, entry.opset, tensors)


def outer_inputs(node: ir.Node) -> list[ir.Value]:
    """Return the values that a node uses, also in its bodies, without those that belong to a body."""
    inside = {graph for body in bodies_of(node) for graph in (body, *body.subgraphs())}
    return [value for value in values_used(node) if value.graph not in inside]


def with_shapes(model: onnx.ModelProto, shapes: Mapping[str, Sequence[int]]) -> onnx.ModelProto:
    """Return a copy of a model with the given input shapes."""
    copy = deepcopy(model)
    for value in copy.graph.input:
        for dim, size in zip(value.type.tensor_type.shape.dim, shapes.get(value.name, ()), strict=False):
            dim.dim_value = size
    return copy


def _model(
    nodes: Iterable[ir.Node],
    initializers: Mapping[str, ir.TensorProtocol],
    inputs: Mapping[str, str],
    spec: NodeSpec,
    opset: int,
    tensors: TensorFile,
) -> onnx.ModelProto:
    """Return a model of some nodes as onnxruntime's CPU runs it: bfloat16 as float32, an opset that it knows."""
    graph = onnx.GraphProto(name="node")
    graph.node.extend(_node(node, tensors) for node in nodes)
    graph.initializer.extend(tensors.proto(t, name) for name, t in initializers.items())
    for name, symbol in inputs.items():
        dtype, rank = int(spec.dtype_of(symbol)), spec.rank(symbol)
        graph.input.append(onnx.helper.make_tensor_value_info(name, dtype, [None] * rank))
    for symbol, value in spec.outputs.items():
        dtype = int(spec.dtype_of(symbol))
        graph.output.append(onnx.helper.make_tensor_value_info(value.name or "", dtype, None))
    widen(graph, (onnx.TensorProto.BFLOAT16,), onnx.TensorProto.FLOAT)
    others = sorted({node.domain for node in graph.node} - {""})
    newest = max(_NEWEST_RUNNABLE, spec.version)  # the process of `Runner` runs newer operators
    versions = {"": min(opset, newest), **dict.fromkeys(others, 1)}
    imports = [onnx.helper.make_opsetid(domain, version) for domain, version in versions.items()]
    return onnx.helper.make_model(graph, opset_imports=imports, ir_version=10)


def _node(node: ir.Node, tensors: TensorFile) -> onnx.NodeProto:
    """Return a node whose bodies refer to their tensors as `tensors` does."""
    proto: onnx.NodeProto = ir.to_proto(node)
    bodies = {a.name: a.as_graph() for a in node.attributes.values() if a.type == ir.AttributeType.GRAPH}
    for attribute in proto.attribute:
        if attribute.name in bodies:
            _refer_in_body(attribute.g, bodies[attribute.name], tensors)
    return proto


def _refer_in_body(proto: onnx.GraphProto, body: ir.Graph, tensors: TensorFile) -> None:
    for initializer in proto.initializer:
        tensor = body.initializers[initializer.name].const_value
        if isinstance(tensor, ir.ExternalTensor):
            initializer.CopyFrom(tensors.proto(tensor, initializer.name))
    for n, node in enumerate(body):
        proto.node[n].CopyFrom(_node(node, tensors))


class TensorFile:
    """Makes protos of tensors: small ones with their data, large ones as external data.

    Args:
        folder: Where large tensors that are in no file yet are written, each once. None: every proto has its data.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._file = None if folder is None else folder / "tensors.data"
        self._written: dict[int, tuple[ir.TensorProtocol, onnx.TensorProto]] = {}

    def proto(self, tensor: ir.TensorProtocol, name: str) -> onnx.TensorProto:
        """Return the proto of a tensor; bfloat16 becomes float32, which onnxruntime's CPU kernels support.

        Locations start from the root of the file system, links followed: a `Session` needs `data=root(...)`.
        """
        half = tensor.dtype == ir.DataType.BFLOAT16
        if self._file is None or tensor.nbytes < _LARGE or tensor.dtype == ir.DataType.STRING:
            return _inline(tensor, name, half)
        if isinstance(tensor, ir.ExternalTensor) and not half:
            return _reference(name, tensor, Path(tensor.path), tensor.offset or 0)
        if id(tensor) not in self._written:  # the tensor is kept too, so that no other gets its id
            self._written[id(tensor)] = tensor, self._write(tensor, half)
        copy = deepcopy(self._written[id(tensor)][1])
        copy.name = name
        return copy

    def _write(self, tensor: ir.TensorProtocol, half: bool) -> onnx.TensorProto:
        assert self._file is not None
        stored = ir.Tensor(array_of(tensor).astype(np.float32)) if half else tensor
        with self._file.open("ab") as file:
            file.write(bytes(-file.tell() % ALIGNMENT))
            offset = file.tell()
            file.write(stored.tobytes())
        return _reference("", stored, self._file, offset)


def root(path: Path) -> Path:
    """Return the folder that references start from."""
    return Path(path.absolute().anchor)


def _inline(tensor: ir.TensorProtocol, name: str, half: bool) -> onnx.TensorProto:
    array = array_of(tensor)
    stored = ir.Tensor(array.astype(np.float32), name=name) if half else ir.Tensor(array, tensor.dtype, name=name)
    proto: onnx.TensorProto = ir.to_proto(stored)
    return proto


def _reference(name: str, tensor: ir.TensorProtocol, path: Path, offset: int) -> onnx.TensorProto:
    file = path.resolve()
    proto = onnx.TensorProto(name=name, data_type=int(tensor.dtype), dims=list(tensor.shape.numpy()))
    refer(proto, file.relative_to(file.anchor).as_posix(), offset, tensor.nbytes)
    return proto
