"""Make an onnx_ir Model of a protobuf message; what that would misread or lose is refused."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

import onnx
import onnx_ir as ir

from rnn_lowering.errors import ModelFileError, UnsupportedError, deepest_cause
from rnn_lowering.libraries import without_collector
from rnn_lowering.model.copying import own_tensors, refuse_undefined_inputs
from rnn_lowering.model.model_sizes import open_negative_sizes
from rnn_lowering.model.opsets import refuse_imports
from rnn_lowering.model.protobuf import bodies_in, graphs_with_messages, mark_undeclared
from rnn_lowering.model.scopes import all_graphs


@without_collector()
def from_proto(proto: onnx.ModelProto, name: str = "the model") -> ir.Model:
    """Return a model as an onnx_ir Model.

    Raises:
        ModelFileError: It is not a valid model, or imports an opset that cannot exist.
        InvalidNodeError: A node has an input that nothing defines.
        UnsupportedError: It has sparse tensors or training information, which onnx_ir does not keep.
    """
    _refuse_unsupported(proto, name)
    try:
        model = ir.from_proto(proto)
        pairs = [*graphs_with_messages(model, proto)]
        own_tensors(graph for graph, _ in pairs)
        mark_undeclared(pairs)
        open_negative_sizes(graph for graph, _ in pairs)
    except Exception as error:  # the deserializer raises any exception on a malformed model
        cause = deepest_cause(error)
        reason = " ".join(str(cause).split()) or type(cause).__name__
        raise ModelFileError(f"{name} is not a valid ONNX model: {reason}") from error
    refuse_imports(model, name)
    refuse_undefined_inputs(model)
    for value in model.graph.outputs:
        if value.producer() is None and not (value.is_graph_input() or value.is_initializer()):
            reason = f"{name}: output '{value.name}' is no output of a node, no input and no initializer"
            raise ModelFileError(reason, hint="was the model cut? Export it again, or remove the output")
    return model


def _refuse_unsupported(proto: onnx.ModelProto, name: str) -> None:
    """Refuse what the deserializer would misread or lose."""
    if not proto.HasField("graph"):
        raise ModelFileError(f"{name} is not an ONNX model: no graph", hint="is the file complete?")
    if not proto.opset_import:
        hint = "export it again" if 0 < proto.ir_version < 3 else "is the file complete?"
        raise ModelFileError(f"{name} has no opset import", hint=hint)
    if proto.training_info:
        raise UnsupportedError(f"{name} contains training_info", hint="export it for inference")
    bodies = [onnx.GraphProto(name=function.name, node=function.node) for function in proto.functions]
    for graph in (proto.graph, *bodies):
        _refuse_graph(graph, name)


def _refuse_graph(graph: onnx.GraphProto, name: str) -> None:
    """Refuse what would be misread or lost of a graph, then of the bodies in it."""
    with_attributes = [node for node in graph.node if node.attribute]
    if not _is_text(graph, with_attributes):
        raise ModelFileError(f"{name} contains names that are not text", hint="is the file complete?")
    _refuse_twice("input", (value.name for value in graph.input), name)
    _refuse_twice("initializer", (tensor.name for tensor in graph.initializer), name)
    for tensor in graph.initializer:
        _refuse_tensor(tensor, name)
    for node in with_attributes:
        if len(node.attribute) > 1:
            _refuse_twice(f"in {_shown(node)}, attribute", (a.name for a in node.attribute), name)
    if graph.sparse_initializer:
        raise UnsupportedError(
            f"graph '{graph.name}' has sparse initializers", hint="make them dense before lowering"
        )
    for node, attribute in ((owner, each) for owner in with_attributes for each in owner.attribute):
        if attribute.ref_attr_name and attribute.type in _GRAPHS:  # its nodes would not be found
            raise UnsupportedError(
                f"{name}: attribute '{attribute.name}' of a node in a function is a graph that the caller passes",
                hint="inline the function first (onnx.inliner.inline_local_functions)",
            )
        for tensor in [attribute.t] if attribute.HasField("t") else attribute.tensors:
            _refuse_tensor(tensor, name)
        if attribute.type in _SPARSE:
            which = f"{_shown(node)} in graph '{graph.name}'"
            raise UnsupportedError(f"{which} has a sparse tensor", hint="make it dense before lowering")
    for body in (body for node in with_attributes for body in bodies_in(node)):
        _refuse_graph(body, name)


def _shown(node: onnx.NodeProto) -> str:
    name = node.name or next((f"-> {output}" for output in node.output if output), "unnamed")
    return f"{node.op_type} node '{name}'"


def _refuse_twice(what: str, names: Iterable[str], model: str) -> None:
    if twice := next((name for name, count in Counter(names).items() if count > 1), None):
        raise ModelFileError(f"{model}: {what} '{twice}' is declared twice", hint="keep one of them")


_DTYPES = {int(dtype): dtype for dtype in ir.DataType}
_COMPLEX = (ir.DataType.COMPLEX64, ir.DataType.COMPLEX128)
_TYPED = ("float_data", "int32_data", "string_data", "int64_data", "double_data", "uint64_data")
"""The fields of a tensor that have a number in each entry; the bits of types of less than a byte are packed."""


def _refuse_tensor(tensor: onnx.TensorProto, name: str) -> None:
    """Refuse a tensor that has no type, or other data in the message than its shape says."""
    if tensor.data_type == onnx.TensorProto.UNDEFINED:
        raise ModelFileError(f"{name}: tensor '{tensor.name}' has no type", hint="is the file complete?")
    dtype = _DTYPES.get(tensor.data_type)
    if dtype is None:
        reason = f"tensor '{tensor.name}' is of type {tensor.data_type}, which ONNX does not have"
        raise ModelFileError(f"{name} is not a valid ONNX model: {reason}")
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        return
    size = math.prod(tensor.dims)
    bits = 8 if dtype == ir.DataType.STRING else dtype.bitwidth
    if tensor.HasField("raw_data"):
        unit, given, wanted = "bytes", len(tensor.raw_data), -(-size * bits // 8)
    else:
        unit, given = "numbers", sum(len(getattr(tensor, field)) for field in _TYPED)
        wanted = math.ceil(size * (2 if dtype in _COMPLEX else min(bits, 8) / 8))
    if given != wanted or min(tensor.dims, default=0) < 0:
        shape = ",".join(map(str, tensor.dims))
        reason = f"{name}: tensor '{tensor.name}' [{shape}] has {given} {unit} instead of {max(wanted, 0)}"
        raise ModelFileError(reason, hint="is the file complete?")


_GRAPHS = (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)
_SPARSE = (onnx.AttributeProto.SPARSE_TENSOR, onnx.AttributeProto.SPARSE_TENSORS)
"""Attributes that onnx_ir cannot hold."""


def _is_text(graph: onnx.GraphProto, with_attributes: Iterable[onnx.NodeProto]) -> bool:
    """Return whether every name is valid UTF-8; protobuf returns bytes for a name that is not."""
    values = (*graph.input, *graph.output, *graph.value_info, *graph.initializer)
    names = [graph.name, *(v.name for v in values)]
    names += [attribute.name for node in with_attributes for attribute in node.attribute]
    for node in graph.node:
        if not node.SerializeToString().isascii():  # most nodes have no other text
            names += (node.name, node.op_type, node.domain, *node.input, *node.output)
    return {*map(type, names)} <= {str}


def refuse_external(model: ir.Model) -> None:
    """Refuse a model in memory that refers to files: their folder is not known.

    Raises:
        ModelFileError: It has external data.
    """
    tensors = [v.const_value for graph in all_graphs(model) for v in graph.initializers.values()]
    files = {str(tensor.path) for tensor in tensors if isinstance(tensor, ir.ExternalTensor)}
    if files:
        raise ModelFileError(
            f"the model refers to data that is not loaded: {', '.join(sorted(files))}",
            hint="load it with its data (onnx.load does), or use lower_file",
        )
