"""Change the opset of a model: opsets 1 to 6 become 13, and an opset that only replaced nodes need goes down.

Runtimes no longer support opsets 1 to 6. onnx's version converter does not support the recurrent operators of these
opsets, and it needs the shapes of old element-wise operators, which onnx does not infer. So
1. the outputs of recurrent and old element-wise nodes are given their shapes, until no more are found;
2. the recurrent nodes, and element-wise nodes with legacy broadcasting (which the converter gets wrong unless the
   axis is the last), are moved to a private domain while the rest is converted;
3. they are moved back: recurrent nodes as version 7, which is the same without `output_sequence`; the inputs of
   element-wise nodes are aligned.

LinearAttention and CausalConvWithState exist from opset 27 on, which onnxruntime up to 1.31 and most other runtimes
refuse. Once they are replaced, the import goes down as far as the meaning of every other node stays the same. So
does that of a model that is too new for its target.
onnx's version converter drops functions, and relabels nodes whose meaning has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress

import onnx
import onnx_ir as ir
from onnx.defs import OpSchema

from rnn_lowering.errors import ModelFileError, RnnLoweringError, UnsupportedError
from rnn_lowering.facts.constants import dims_of
from rnn_lowering.facts.operators import DEFAULT_DOMAIN, bodies_of, default_opset, has_bodies, operator_of
from rnn_lowering.model import onnx_checks
from rnn_lowering.model.protobuf import SMALL
from rnn_lowering.model.scopes import all_graphs
from rnn_lowering.nodes.kinds import CELLS, is_recurrent
from rnn_lowering.nodes.rnn import RecurrentSpec
from rnn_lowering.types import in_memory


def import_opset(model: ir.Model, opset: int) -> list[str]:
    """Set the opset that a model and its functions import, which their nodes allow, in place; return what the user
    should know."""
    before = default_opset(model.opset_imports)
    notes = [f"the model's opset is {opset} instead of {before}, which no node needs any more"]
    for holder in (model.opset_imports, *(function.opset_imports for function in model.functions.values())):
        for domain in DEFAULT_DOMAIN:
            if holder.get(domain, 1) > opset:
                holder[domain] = opset
    imports = [onnx.helper.make_opsetid(domain, version) for domain, version in model.opset_imports.items()]
    ir_version = max(_IR_VERSION, onnx.helper.find_min_ir_version_for(imports, ignore_unknown=True))
    if model.ir_version > ir_version:
        notes.append(f"the model's IR version is {ir_version} instead of {model.ir_version}")
        model.ir_version = ir_version
    return notes


def refuse_imports(model: ir.Model, name: str = "the model") -> None:
    """Refuse versions of a domain that no integer of ONNX's own code holds.

    Raises:
        ModelFileError: The model or one of its functions imports one.
    """
    holders: list[ir.Model | ir.Function] = [model, *model.functions.values()]
    for holder in holders:
        for domain, version in holder.opset_imports.items():
            if not -_MANY <= version < _MANY:
                where = f"{name}: function '{holder.name}'" if isinstance(holder, ir.Function) else name
                reason = f"version {version} of domain '{domain or DEFAULT_DOMAIN[1]}', which cannot exist"
                raise ModelFileError(f"{where} imports {reason}", hint="correct the opset import")


_MANY = 2**31

OLDEST_LOWERED_OPSET = 7
"""Oldest opset whose nodes are lowered in place; before it, the model is converted to `NEW_OPSET`."""

NEW_OPSET = 13

_FIRST_OF_UNLISTED = 4
"""First IR version that allows an initializer that is no input of the graph."""

_DOMAIN = "rnn_lowering.hidden"


def modernize(model: ir.Model, opset: int) -> None:
    """Convert the main graph of a model to opset 13, in place.

    Raises:
        UnsupportedError: The model cannot be converted.
    """
    hint = "convert the model to opset 7 or later first, or fix its input shapes"
    if model.functions or has_bodies(model.graph):
        raise UnsupportedError(
            f"opset {opset} with functions or subgraphs cannot be converted",
            hint=f"export the model at opset {OLDEST_LOWERED_OPSET} or later",
        )
    try:
        with _files_as_inputs(model) as restore:
            proto = ir.to_proto(model)
        proto.ir_version = max(proto.ir_version, _FIRST_OF_UNLISTED)  # else the converter wants each as an input
        proto = _with_shapes(proto)
        _hide(proto, opset)
        converted = onnx_checks.convert(proto, NEW_OPSET)
        _unhide(converted)
        if model.ir_version < _FIRST_OF_UNLISTED and all(
            v.is_graph_input() for v in model.graph.initializers.values()
        ):
            _make_nodes_of_new_initializers(converted.graph)
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
def _files_as_inputs(model: ir.Model) -> Iterator[Callable[[ir.Graph], None]]:
    """Let initializers that are in files be inputs in the block, as the converter reads no files; small ones are
    read. Yield a function that gives them to the converted graph, in the order of the model."""
    graph = model.graph
    initializers = dict(graph.initializers)
    in_files: dict[str, ir.Value] = {}
    for name, value in initializers.items():
        tensor = value.const_value
        if isinstance(tensor, ir.ExternalTensor) and tensor.nbytes <= SMALL:
            value.const_value = in_memory(tensor)
        elif isinstance(tensor, ir.ExternalTensor):
            in_files[name] = value
    added = [value for value in in_files.values() if not value.is_graph_input()]

    def restore(converted: ir.Graph) -> None:
        values = {value.name: value for value in converted.inputs}
        for name, value in in_files.items():
            values[name].const_value = value.const_value
            if value in added:
                converted.inputs.remove(values[name])
            converted.initializers[name] = values[name]
        for name in [*initializers, *(name for name in converted.initializers if name not in initializers)]:
            if name in converted.initializers:
                converted.initializers[name] = converted.initializers.pop(name)

    for name in in_files:
        del graph.initializers[name]
    graph.inputs.extend(added)
    try:
        yield restore
    finally:
        for value in added:
            graph.inputs.remove(value)
        graph.initializers.clear()
        graph.initializers.update(initializers)


def _with_shapes(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with inferred shapes."""
    while True:
        proto = onnx_checks.with_inferred_shapes(proto)
        model = ir.from_proto(proto)
        shapeless = [(v, dtype, dims) for node in model.graph for v, dtype, dims in _shapeless_outputs(node, model)]
        if not shapeless:
            return proto
        outputs = {value.name: value for value in proto.graph.output}
        for value, dtype, dims in shapeless:
            info = outputs.get(value.name or "") or proto.graph.value_info.add()
            info.CopyFrom(onnx.helper.make_tensor_value_info(value.name or "", int(dtype), dims))


def _shapeless_outputs(node: ir.Node, model: ir.Model) -> Iterator[tuple[ir.Value, ir.DataType, list[int | None]]]:
    """Yield the outputs of a node whose shapes onnx does not infer, with their types and shapes."""
    missing = [v for v in node.outputs if v.name and v.shape is None]
    if not missing:
        return
    if ("", node.op_type) in CELLS and node.inputs[0] is not None and node.inputs[0].shape is not None:
        spec = RecurrentSpec.parse(node, default_opset(model.opset_imports))
        T, N, dirs, H = spec.seq_length, spec.batch_size, len(spec.directions), spec.hidden_size
        for symbol, value in spec.outputs.items():
            if value in missing:
                yield value, spec.dtype, [T, dirs, N, H] if symbol == "Y" else [dirs, N, H]
    elif operator_of(node).elementwise and len(node.inputs) == 2 and node.inputs[0] is not None:
        first = node.inputs[0]
        dims = dims_of(first.shape)
        if dims is not None and first.dtype is not None:  # the second input is broadcast to the first one
            yield missing[0], ir.DataType.BOOL if operator_of(node).boolean else first.dtype, list(dims)


def _hide(proto: onnx.ModelProto, opset: int) -> None:
    """Move the recurrent nodes, and element-wise ones with legacy broadcasting, to the private domain."""
    ranks = _ranks(proto)
    nodes: list[onnx.NodeProto] = []
    for node in proto.graph.node:
        attributes = {a.name: a.i for a in node.attribute}
        if is_recurrent(node):
            node.domain = _DOMAIN
        elif operator_of(node).elementwise and attributes.get("broadcast", 0):
            nodes += _align(node, attributes.get("axis"), ranks, opset)
            node.domain = _DOMAIN
        nodes.append(node)
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del proto.graph.node[:]
    proto.graph.node.extend(copies)
    proto.opset_import.append(onnx.helper.make_opsetid(_DOMAIN, 1))


def _align(node: onnx.NodeProto, axis: int | None, ranks: dict[str, int], opset: int) -> list[onnx.NodeProto]:
    """Align the inputs of a node with legacy broadcasting at the last axis: its second input starts at `axis` of
    the first. Return the Unsqueeze node that this needs, if any."""
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
            kept = [a for a in node.attribute if a.name != "output_sequence" or ("", node.op_type) not in CELLS]
            for attribute in kept:
                if attribute.name == "direction" and attribute.s == b"foward":
                    attribute.s = b"forward"
            del node.attribute[:]
            node.attribute.extend(kept)
    imports = [entry for entry in proto.opset_import if entry.domain != _DOMAIN]
    del proto.opset_import[:]
    proto.opset_import.extend(imports)


def _make_nodes_of_new_initializers(graph: onnx.GraphProto) -> None:
    """Make initializers that are no inputs Constant nodes, as IR version 3 requires."""
    inputs = {value.name for value in graph.input}
    new = [n for n, tensor in enumerate(graph.initializer) if tensor.name not in inputs]
    tensors = [graph.initializer[n] for n in new]
    nodes = [onnx.helper.make_node("Constant", [], [tensor.name], value=tensor) for tensor in tensors]
    nodes += graph.node
    for n in reversed(new):
        del graph.initializer[n]
    del graph.node[:]
    graph.node.extend(nodes)


# The lowest opset that the nodes of a model need


FIRST_REFUSED = 27
"""First opset that onnxruntime refuses (see ALLOW_RELEASED_ONNX_OPSET_ONLY)."""

_FLOOR = 17
"""No import goes lower: every runtime that was tried takes it."""

_IR_VERSION = 10
"""The IR version of a model whose import goes down: the first with everything but newer element types."""

_ORDINARY = frozenset(
    (
        *("float", "double", "bool", "string", "uint8", "uint16", "uint32", "uint64"),
        *("int8", "int16", "int32", "int64"),
    )
)
"""Element types that any value may have."""

_RARE = frozenset(("float16", "bfloat16", "complex64", "complex128"))
"""Element types of opset 17 that only those values have that follow from such."""


def _always(_: ir.Node) -> bool:
    return True


def _without_ceil_mode(node: ir.Node) -> bool:
    return not _number(node, "ceil_mode")


def _without_wrap(node: ir.Node) -> bool:
    mode = node.attributes.get("mode")
    return mode is None or (not mode.is_ref() and mode.value != "wrap")


def _with_sizes(node: ir.Node) -> bool:
    return len(node.inputs) == 2 and node.inputs[1] is not None


_EXTENDED: Mapping[tuple[str, int], Callable[[ir.Node], bool]] = {
    **{("Cast", version): _always for version in (19, 24)},
    **{("CastLike", version): _always for version in (19, 24)},
    **{("DequantizeLinear", version): _always for version in (19, 21, 23)},
    **{("QuantizeLinear", version): _always for version in (19, 21, 23, 25)},
    **{(name, 20): _always for name in ("ReduceMax", "ReduceMin")},
    **{(name, 22): _without_ceil_mode for name in ("AveragePool", "MaxPool")},
    ("Attention", 25): _always,
    ("Pad", 18): _always,
    ("Pad", 19): _without_wrap,
    ("Range", 27): _always,
    ("SpaceToDepth", 28): _always,
    ("Split", 18): _with_sizes,
}
"""Versions that only add attributes, inputs or element types to the one before, each with a test whether a node
uses none of them. Any other version whose text differs has another meaning."""


def is_new(node: ir.Node, opset: int) -> bool:
    """Return whether a node is of an operator, or a version, that is new at `FIRST_REFUSED`."""
    if node.domain not in DEFAULT_DOMAIN or not onnx.defs.has(node.op_type, opset, ""):
        return False
    return bool(onnx.defs.get_schema(node.op_type, opset, "").since_version >= FIRST_REFUSED)


def opset_without(model: ir.Model, nodes: Collection[ir.Node], newest: int = FIRST_REFUSED - 1) -> int:
    """Return the opset that a model needs once some nodes of its main graph are replaced: the lowest from 17 on at
    which all others mean the same, also those of functions (ONNX's checker wants one version of each operator).

    It is that of the model if that is not above `newest`, or if the model has element types that opset 17 lacks.
    """
    opset, types = default_opset(model.opset_imports), _types(model)
    if opset <= newest or types is None:
        return opset
    imports = ((function.graph, default_opset(function.opset_imports)) for function in model.functions.values())
    others = [_lowest(graph, own, types, ()) if own > newest else own for graph, own in imports]
    return max(_lowest(model.graph, opset, types, nodes), *others, _FLOOR)


def _lowest(graph: ir.Graph, opset: int, types: frozenset[str], without: Collection[ir.Node]) -> int:
    left = (node for node in _nodes(graph, without) if node.domain in DEFAULT_DOMAIN)
    return max((_first_version(node, opset, types) for node in left), default=_FLOOR)


def _nodes(graph: ir.Graph, without: Collection[ir.Node]) -> Iterator[ir.Node]:
    for node in graph:
        if node not in without:
            yield node
        for body in bodies_of(node):
            yield from _nodes(body, without)


def _first_version(node: ir.Node, opset: int, types: frozenset[str]) -> int:
    """Return the oldest version of its operator, from the floor on, at which a node means the same."""
    if not onnx.defs.has(node.op_type, opset, ""):
        return opset  # the checker refuses it
    newer = onnx.defs.get_schema(node.op_type, opset, "")
    while newer.since_version > _FLOOR and onnx.defs.has(node.op_type, newer.since_version - 1, ""):
        older = onnx.defs.get_schema(node.op_type, newer.since_version - 1, "")
        if not (_means_the_same(node, older, newer) and _has_types(node, older, newer, types)):
            break
        newer = older
    return max(int(newer.since_version), _FLOOR)


def _means_the_same(node: ir.Node, older: OpSchema, newer: OpSchema) -> bool:
    """Whether a node uses nothing that the newer version added, and that version changed nothing else."""
    if older.deprecated or newer.deprecated:
        return False
    if _text(older) != _text(newer):
        same = _EXTENDED.get((node.op_type, newer.since_version))
        if same is None or not same(node):
            return False
    elif _defaults(older) != _defaults(newer):
        return False
    fits = len(node.inputs) <= older.max_input and len(node.outputs) <= older.max_output
    return fits and node.attributes.keys() <= older.attributes.keys()


def _text(schema: OpSchema) -> list[str]:
    return (schema.doc or "").split()


def _defaults(schema: OpSchema) -> dict[str, str]:
    return {name: f"{a.type} {a.default_value}" for name, a in schema.attributes.items()}


def _has_types(node: ir.Node, older: OpSchema, newer: OpSchema, types: frozenset[str]) -> bool:
    """Whether the older version allows every type that the inputs and outputs of a node may have."""
    for values, before, after in (
        (node.inputs, older.inputs, newer.inputs),
        (node.outputs, older.outputs, newer.outputs),
    ):
        for n, value in enumerate(values):
            if value is None or not value.name:
                continue
            allowed = set(before[min(n, len(before) - 1)].types)
            added = set(after[min(n, len(after) - 1)].types) - allowed
            possible = types if value.dtype is None else {_name(value.dtype)}
            if any(f"tensor({name})" in added for name in possible):
                return False
    return True


def _types(model: ir.Model) -> frozenset[str] | None:
    """Return the element types that a value of unknown type may have; None if one of them
    is newer than opset 17."""
    seen = {_name(dtype) for graph in all_graphs(model) for dtype in _dtypes(graph)}
    return None if seen - _ORDINARY - _RARE else _ORDINARY | seen


def _dtypes(graph: ir.Graph) -> Iterator[ir.DataType]:
    """Yield the element types that a graph names: all others follow from these."""
    values: Iterable[ir.Value] = (*graph.inputs, *graph.initializers.values())
    yield from (value.dtype for value in values if value.dtype is not None)
    for node in graph:
        yield from (value.dtype for value in node.outputs if value.dtype is not None)
        for name, attribute in node.attributes.items():
            if attribute.is_ref():
                continue
            if attribute.type == ir.AttributeType.TENSOR:
                yield attribute.as_tensor().dtype
            elif attribute.type == ir.AttributeType.INT and (name == "to" or name.endswith("dtype")):
                with suppress(ValueError):  # no such type: the checker's to refuse
                    yield ir.DataType(attribute.as_int() or int(ir.DataType.FLOAT))


def _name(dtype: ir.DataType) -> str:
    """Return the name of an element type in schemas."""
    return dtype.name.lower()


def _number(node: ir.Node, name: str) -> bool:
    """Whether an attribute may be another number than 0."""
    attribute = node.attributes.get(name)
    return attribute is not None and (attribute.is_ref() or bool(attribute.value))
