"""The lowest opset that the nodes of a model need.

LinearAttention and CausalConvWithState exist from opset 27 on, which onnxruntime 1.31 and most other runtimes
refuse. Once they are replaced, the import goes down as far as the meaning of every other node stays the same.
onnx's version converter drops functions and relabels nodes whose meaning has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress

import onnx
import onnx_ir as ir
from onnx.defs import OpSchema

from rnn_lowering.model.scopes import all_graphs, bodies_of
from rnn_lowering.spec.node_spec import DEFAULT_DOMAIN, default_opset

FIRST_REFUSED = 27
"""The first opset at which onnxruntime refuses models (see ALLOW_RELEASED_ONNX_OPSET_ONLY)."""

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


def opset_without(model: ir.Model, nodes: Collection[ir.Node]) -> int:
    """Return the opset that a model needs once some nodes of its main graph are replaced: the lowest from 17 on at
    which all others mean the same, also those of functions (ONNX's checker wants one version of each operator).

    It is that of the model where it is older than `FIRST_REFUSED`, or has element types that opset 17 lacks.
    """
    opset, types = default_opset(model.opset_imports), _types(model)
    if opset < FIRST_REFUSED or types is None:
        return opset
    imports = ((function.graph, default_opset(function.opset_imports)) for function in model.functions.values())
    others = [_lowest(graph, own, types, ()) if own >= FIRST_REFUSED else own for graph, own in imports]
    return max(_lowest(model.graph, opset, types, nodes), *others, _FLOOR)


def import_opset(model: ir.Model, opset: int) -> list[str]:
    """Set the opset that a model and its functions import, which their nodes allow, in place; return what the user
    should know."""
    before = default_opset(model.opset_imports)
    notes = [f"the model's opset is {opset} instead of {before}, which no node needs any more"]
    for holder in (model.opset_imports, *(function.opset_imports for function in model.functions.values())):
        for domain in DEFAULT_DOMAIN:
            if holder.get(domain, 1) >= FIRST_REFUSED:
                holder[domain] = opset
    imports = [onnx.helper.make_opsetid(domain, version) for domain, version in model.opset_imports.items()]
    ir_version = max(_IR_VERSION, onnx.helper.find_min_ir_version_for(imports, ignore_unknown=True))
    if model.ir_version > ir_version:
        notes.append(f"the model's IR version is {ir_version} instead of {model.ir_version}")
        model.ir_version = ir_version
    return notes


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
    """Return the element types that a value of unknown type may have; None where a newer one than those of opset 17
    is among them."""
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
