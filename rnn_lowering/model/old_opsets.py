"""Convert models of opsets 1 to 6, which runtimes no longer support, to opset 13.

onnx's version converter does most of the work. But it does not support the recurrent operators of these opsets, and
it needs the shapes of old element-wise operators, which onnx does not infer. So
1. the outputs of recurrent and old element-wise nodes are given their shapes, until no more are found;
2. the recurrent nodes, and element-wise nodes with legacy broadcasting (which the converter converts wrongly where
   the axis is not the last), are moved to a private domain while the rest is converted;
3. they are moved back: recurrent nodes as version 7, which is the same without `output_sequence`; the inputs of
   element-wise nodes are aligned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import onnx
import onnx_ir as ir

from rnn_lowering.errors import RnnLoweringError, UnsupportedError
from rnn_lowering.model import onnx_checks
from rnn_lowering.model.messages import SMALL
from rnn_lowering.spec.constant_values import dims_of
from rnn_lowering.spec.kinds import is_recurrent
from rnn_lowering.spec.node_spec import default_opset
from rnn_lowering.spec.rnn import GATES, RecurrentSpec
from rnn_lowering.types import in_memory

FIRST_OPSET = 7
"""The oldest opset at which nodes are lowered in place."""

NEW_OPSET = 13

_FIRST_OF_UNLISTED = 4
"""The first IR version in which an initializer need not be an input."""

_DOMAIN = "rnn_lowering.hidden"

_LIKE_FIRST_INPUT = frozenset(
    ("Add", "Sub", "Mul", "Div", "Pow", "And", "Or", "Xor", "Greater", "Less", "Equal", "PRelu")
)
"""Operators with legacy broadcasting: the output has the shape of the first input."""


def modernize(model: ir.Model, opset: int) -> None:
    """Convert the main graph of a model to opset 13, in place.

    Raises:
        UnsupportedError: The model cannot be converted.
    """
    hint = "convert the model to opset 7 or later first, or fix its input shapes"
    if model.functions or list(model.graph.subgraphs()):
        raise UnsupportedError(f"opset {opset} with functions or subgraphs cannot be converted", hint=hint)
    try:
        with _files_apart(model) as restore:
            proto = ir.to_proto(model)
        proto.ir_version = max(proto.ir_version, _FIRST_OF_UNLISTED)  # else the converter wants each as an input
        proto = _annotated(proto)
        _hide(proto, opset)
        converted = onnx_checks.convert(proto, NEW_OPSET)
        _unhide(converted)
        if model.ir_version < _FIRST_OF_UNLISTED and all(
            v.is_graph_input() for v in model.graph.initializers.values()
        ):
            _list_initializers(converted.graph)
        onnx.checker.check_model(converted, full_check=True)
        graph = ir.from_proto(converted).graph
        restore(graph)
    except RnnLoweringError:
        raise
    except Exception as error:  # the checker and onnx_ir have no common class
        reason = " ".join(str(error).split())
        raise UnsupportedError(f"opset {opset} cannot be converted to {NEW_OPSET}: {reason}", hint=hint) from error
    model.graph = graph


@contextmanager
def _files_apart(model: ir.Model) -> Iterator[Callable[[ir.Graph], None]]:
    """Let initializers that are in files be inputs in the block, as the converter reads no files; small ones are
    read. Yield a function that gives them to the converted graph, in the order of the model."""
    graph = model.graph
    held = dict(graph.initializers)
    apart: dict[str, ir.Value] = {}
    for name, value in held.items():
        tensor = value.const_value
        if isinstance(tensor, ir.ExternalTensor) and tensor.nbytes <= SMALL:
            value.const_value = in_memory(tensor)
        elif isinstance(tensor, ir.ExternalTensor):
            apart[name] = value
    added = [value for value in apart.values() if not value.is_graph_input()]

    def restore(converted: ir.Graph) -> None:
        values = {value.name: value for value in converted.inputs}
        for name, value in apart.items():
            values[name].const_value = value.const_value
            if value in added:
                converted.inputs.remove(values[name])
            converted.initializers[name] = values[name]
        for name in [*held, *(name for name in converted.initializers if name not in held)]:
            if name in converted.initializers:
                converted.initializers[name] = converted.initializers.pop(name)

    for name in apart:
        del graph.initializers[name]
    graph.inputs.extend(added)
    try:
        yield restore
    finally:
        for value in added:
            graph.inputs.remove(value)
        graph.initializers.clear()
        graph.initializers.update(held)


def _annotated(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with inferred shapes."""
    while True:
        proto = onnx_checks.inferred(proto)
        model = ir.from_proto(proto)
        found = [(v, dtype, dims) for node in model.graph for v, dtype, dims in _outputs(node, model)]
        if not found:
            return proto
        outputs = {value.name: value for value in proto.graph.output}
        for value, dtype, dims in found:
            info = outputs.get(value.name or "") or proto.graph.value_info.add()
            info.CopyFrom(onnx.helper.make_tensor_value_info(value.name or "", int(dtype), dims))


def _outputs(node: ir.Node, model: ir.Model) -> Iterator[tuple[ir.Value, ir.DataType, list[int | None]]]:
    """Yield the outputs of a node whose shapes onnx does not infer, with their types and shapes."""
    missing = [v for v in node.outputs if v.name and v.shape is None]
    if not missing:
        return
    if node.op_type in GATES and node.inputs[0] is not None and node.inputs[0].shape is not None:
        spec = RecurrentSpec.parse(node, default_opset(model.opset_imports))
        T, N, dirs, H = spec.seq_length, spec.batch_size, len(spec.directions), spec.hidden_size
        for symbol, value in spec.outputs.items():
            if value in missing:
                yield value, spec.dtype, [T, dirs, N, H] if symbol == "Y" else [dirs, N, H]
    elif node.op_type in _LIKE_FIRST_INPUT and node.inputs[0] is not None:
        first = node.inputs[0]
        dims = dims_of(first.shape)
        compares = node.op_type in ("Greater", "Less", "Equal")
        if dims is not None and first.dtype is not None:
            yield missing[0], ir.DataType.BOOL if compares else first.dtype, list(dims)


def _hide(proto: onnx.ModelProto, opset: int) -> None:
    """Move the recurrent nodes, and element-wise ones with legacy broadcasting, to the private domain."""
    ranks = _ranks(proto)
    nodes: list[onnx.NodeProto] = []
    for node in proto.graph.node:
        attributes = {a.name: a.i for a in node.attribute}
        if is_recurrent(node):
            node.domain = _DOMAIN
        elif node.op_type in _LIKE_FIRST_INPUT and attributes.get("broadcast", 0):
            nodes += _aligned(node, attributes.get("axis"), ranks, opset)
            node.domain = _DOMAIN
        nodes.append(node)
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del proto.graph.node[:]
    proto.graph.node.extend(copies)
    proto.opset_import.append(onnx.helper.make_opsetid(_DOMAIN, 1))


def _aligned(node: onnx.NodeProto, axis: int | None, ranks: dict[str, int], opset: int) -> list[onnx.NodeProto]:
    """Change a node with legacy broadcasting, where the second input starts at `axis` of the first, so that both
    are aligned at the last axis; return the Unsqueeze node that this needs, if any."""
    first, second = node.input
    if first not in ranks or second not in ranks:
        raise UnsupportedError(
            f"opset {opset} cannot be converted to {NEW_OPSET}: the legacy broadcast of {node.op_type} "
            f"'{node.name or node.output[0]}' needs the ranks of its inputs",
            hint="fix the input shapes first (onnx.shape_inference)",
        )
    kept = [a for a in node.attribute if a.name not in ("broadcast", "axis")]
    del node.attribute[:]
    node.attribute.extend(kept)
    start = ranks[first] - ranks[second] if axis is None else axis % max(ranks[first], 1)
    missing = ranks[first] - start - ranks[second]
    if missing <= 0:
        return []
    name = f"{node.output[0]}/aligned"
    node.input[1] = name
    axes = list(range(ranks[second], ranks[second] + missing))
    return [onnx.helper.make_node("Unsqueeze", [second], [name], name, axes=axes)]


def _ranks(proto: onnx.ModelProto) -> dict[str, int]:
    infos = (*proto.graph.input, *proto.graph.value_info, *proto.graph.output)
    ranks = {v.name: len(v.type.tensor_type.shape.dim) for v in infos if v.type.tensor_type.HasField("shape")}
    return ranks | {tensor.name: len(tensor.dims) for tensor in proto.graph.initializer}


def _unhide(proto: onnx.ModelProto) -> None:
    for node in proto.graph.node:
        if node.domain == _DOMAIN:
            node.domain = ""
            kept = [a for a in node.attribute if a.name != "output_sequence" or node.op_type not in GATES]
            for attribute in kept:
                if attribute.name == "direction" and attribute.s == b"foward":
                    attribute.s = b"forward"
            del node.attribute[:]
            node.attribute.extend(kept)
    imports = [entry for entry in proto.opset_import if entry.domain != _DOMAIN]
    del proto.opset_import[:]
    proto.opset_import.extend(imports)


def _list_initializers(graph: onnx.GraphProto) -> None:
    """Add new initializers to the inputs, as IR version 3 requires."""
    inputs = {value.name for value in graph.input}
    for tensor in graph.initializer:
        if tensor.name not in inputs:
            graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
