"""A model at given sizes of its inputs: the shapes and constants that follow, by ONNX's own inference of each node.

Nothing runs on data: a node is evaluated only where all that it reads follows from constants and sizes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
import onnx
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator

from rnn_lowering.mapped import array_of
from rnn_lowering.spec.node import default_opset
from rnn_lowering.types import Array

Shape = tuple[int, ...]

_LARGEST = 1 << 22
"""Constants of more elements are not evaluated: only their shapes are known."""

_SENT = 1 << 12
"""Constants of so few elements are shown to the inference of shapes."""

_NEVER = frozenset(
    ("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial", "Bernoulli")
)


class SizingError(Exception):
    """The model does not work at these sizes: `node` refuses them, and why."""

    def __init__(self, node: ir.Node, reason: str) -> None:
        self.node = node
        self.reason = " ".join(reason.split())
        super().__init__(self.reason)


@dataclass
class Sized:
    """What is known of the values of a model's main graph and its branches of If.

    Attributes:
        shapes: By value; values of an unknown shape are absent.
        types: Element types by value.
        constants: What follows from constants and sizes alone.
    """

    opsets: Mapping[str, int]
    shapes: dict[ir.Value, Shape] = field(default_factory=dict)
    types: dict[ir.Value, ir.DataType] = field(default_factory=dict)
    constants: dict[ir.Value, Array] = field(default_factory=dict)
    fixed: dict[ir.Value, Array] = field(default_factory=dict)

    def constant(self, value: ir.Value) -> Array | None:
        """Return the constant that a value is, None where it is none (or too large)."""
        return self.constants.get(value, self.fixed.get(value))


def sized(model: ir.Model, inputs: Mapping[str, Shape], fixed: dict[ir.Value, Array] | None = None) -> Sized:
    """Evaluate the shapes of a model, whose nodes are sorted and whose functions are inlined.

    Args:
        model: The model; it stays as it is.
        inputs: Shapes of the inputs by name.
        fixed: Constants that depend on no size: filled here, for the next call.

    Raises:
        SizingError: A node refuses these sizes.
    """
    opsets = {**model.opset_imports, "": default_opset(model.opset_imports)}
    known = Sized(opsets, fixed={} if fixed is None else fixed)
    for value in model.graph.inputs:
        if value.name and value.name in inputs:
            known.shapes[value] = tuple(inputs[value.name])
        elif value.shape is not None and value.shape.is_static():
            known.shapes[value] = value.shape.numpy()
        if value.dtype is not None:
            known.types[value] = value.dtype
    _walk(model.graph, known)
    return known


def _walk(graph: ir.Graph, known: Sized) -> None:
    for value in graph.initializers.values():
        tensor = value.const_value
        if tensor is None:
            continue
        known.types[value] = tensor.dtype
        known.shapes[value] = tuple(tensor.shape.numpy())
        if not value.is_graph_input() and value not in known.fixed and tensor.size <= _LARGEST:
            with suppress(Exception):  # numbers that do not fit the type and shape of their tensor are not known
                known.fixed[value] = array_of(tensor)
    for node in graph:
        if not node.outputs:  # it gives nothing that could be known
            continue
        if node.domain == "" and node.op_type == "If":
            _branches(node, known)
        else:
            _infer(node, known)
            _evaluate(node, known)


def _branches(node: ir.Node, known: Sized) -> None:
    """Both branches; an output has the shape that they agree on, or that of the one that is taken."""
    branches = {name: node.attributes[name].as_graph() for name in ("then_branch", "else_branch")}
    if any(len(graph.outputs) != len(node.outputs) for graph in branches.values()):
        raise SizingError(node, "a branch has another number of outputs")
    condition = None if node.inputs[0] is None else known.constant(node.inputs[0])
    taken = None if condition is None else "then_branch" if condition.reshape(-1)[:1].all() else "else_branch"
    for name, graph in branches.items():
        try:
            _walk(graph, known)
        except SizingError:
            if taken in (None, name):
                raise
    for n, output in enumerate(node.outputs):
        ends = [graph.outputs[n] for name, graph in branches.items() if taken in (None, name)]
        shapes = {known.shapes.get(end) for end in ends}
        shape = shapes.pop() if len(shapes) == 1 else None
        if shape is not None:
            known.shapes[output] = shape
        if ends[0] in known.types:
            known.types[output] = known.types[ends[0]]
        constant = known.constant(ends[0]) if len(ends) == 1 else None
        if constant is not None:
            known.constants[output] = constant


def _infer(node: ir.Node, known: Sized) -> None:
    """Add the types and shapes of a node's outputs, where its inputs tell them."""
    given = [v for v in node.inputs if v is not None]
    if any(v not in known.types for v in given):
        return
    types, data = {}, {}
    for value in given:
        name = value.name or ""
        types[name] = onnx.helper.make_tensor_type_proto(int(known.types[value]), known.shapes.get(value))
        constant = known.constant(value)
        if constant is not None and constant.size <= _SENT and known.types[value] != ir.DataType.STRING:
            data[name] = onnx.numpy_helper.from_array(constant, name)
    try:
        schema = onnx.defs.get_schema(node.op_type, known.opsets.get(node.domain, 1), node.domain)
        imports = [onnx.helper.make_opsetid(domain, version) for domain, version in known.opsets.items()]
        inferred = onnx.shape_inference.infer_node_outputs(
            schema, ir.to_proto(node), types, data, opset_imports=imports, ir_version=10
        )
    except onnx.defs.SchemaError:  # of another domain, or newer than the onnx package
        return
    except Exception as error:  # inference, the checker and protobuf have no common error
        raise SizingError(node, str(error)) from error
    for output in node.outputs:
        held = inferred.get(output.name or "")
        if held is None or not held.HasField("tensor_type"):
            continue
        known.types[output] = ir.DataType(held.tensor_type.elem_type)
        dims = held.tensor_type.shape.dim
        if held.tensor_type.HasField("shape") and all(dim.HasField("dim_value") for dim in dims):
            known.shapes[output] = tuple(dim.dim_value for dim in dims)
    _check_elements(node, known)


def _check_elements(node: ir.Node, known: Sized) -> None:
    """Refuse a Reshape to a constant shape of another number of elements, which inference lets pass."""
    if node.op_type != "Reshape" or node.domain or node.inputs[0] is None:
        return
    before, after = known.shapes.get(node.inputs[0]), known.shapes.get(node.outputs[0])
    if before is not None and after is not None and math.prod(before) != math.prod(after):
        raise SizingError(node, f"{list(before)} cannot be reshaped to {list(after)}")


def _evaluate(node: ir.Node, known: Sized) -> None:
    """Add the outputs of a node that follow from constants and sizes."""
    if node.domain or node.op_type in _NEVER:
        return
    first = node.inputs[0] if node.inputs else None
    if node.op_type in ("Shape", "Size"):
        shape = None if first is None else known.shapes.get(first)
        if shape is not None:
            start, end = (node.attributes.get_int(name, None) for name in ("start", "end"))
            held = np.array(shape[start:end] if node.op_type == "Shape" else math.prod(shape), np.int64)
            known.constants[node.outputs[0]] = held
        return
    given = [v for v in node.inputs if v is not None]
    sizes = [math.prod(known.shapes[v]) for v in node.outputs if v in known.shapes]
    if sum(sizes) > _LARGEST or any(a.type in _GRAPHS or a.is_ref() for a in node.attributes.values()):
        return
    if node.outputs[0] in known.fixed or any(known.constant(v) is None for v in given):
        return
    into = known.fixed if all(v in known.fixed for v in given) else known.constants
    feed = {v.name or "": array for v in given if (array := known.constant(v)) is not None}
    for output, array in zip(node.outputs, run_node(node, feed, known.opsets.get("", 1)), strict=False):
        if isinstance(array, np.ndarray) and array.size <= _LARGEST:
            into[output] = array
            known.shapes[output] = array.shape


_GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


def run_node(node: ir.Node, feed: Mapping[str, Array], opset: int) -> list[Array]:
    """Evaluate a node on arrays by name with onnx's reference evaluator; return nothing where that cannot."""
    proto = ir.to_proto(node)
    inputs = [onnx.ValueInfoProto(name=name) for name in feed]
    outputs = [onnx.ValueInfoProto(name=name) for name in proto.output if name]
    # The evaluator knows DequantizeLinear from 19 on; it means the same before.
    version = max(opset, 19) if node.op_type == "DequantizeLinear" else opset
    graph = onnx.helper.make_graph([proto], "constant", inputs, outputs)
    imports = [onnx.helper.make_opsetid("", version)]
    try:
        results = ReferenceEvaluator(onnx.helper.make_model(graph, opset_imports=imports)).run(None, dict(feed))
    except Exception:  # the evaluator has no common error; what it cannot do is not known
        return []
    named = dict(zip((o.name for o in outputs), results, strict=True))
    return [named[name] if name else np.empty(0) for name in proto.output]
