"""What runtimes compute wrongly, written in another way: QuantizeLinear, convolutions, and rows of a table.

QuantizeLinear and the DequantizeLinear nodes behind it become arithmetic on floats that gives the same numbers.

For runtimes that compute computed values in integers wrongly. Of a scale s and a zero point z, in a type from lo to
hi, the pair computes round(min(max(x / s, lo - z), hi - z)) * s.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from rnn_lowering.emit.open_scopes import Names
from rnn_lowering.errors import NodeRef
from rnn_lowering.facts.constants import constant_of
from rnn_lowering.facts.operators import default_opset, is_of_default_domain
from rnn_lowering.model.model_sizes import inferred_values, take_over
from rnn_lowering.model.replace import drop_unused
from rnn_lowering.model.scopes import all_names, scopes
from rnn_lowering.nodes.kinds import node_ref
from rnn_lowering.types import Array

_TYPES = (ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT16, ir.DataType.UINT16)

_ROUNDS = 1.5 * 2**23
"""A float32 below 2 ** 22 is rounded, halves to even, if this is added and subtracted. MNN's Round is not used: it
rounds halves up."""


@dataclass(frozen=True)
class Rounding:
    """A QuantizeLinear node, and the nodes that make floats of its integers.

    Attributes:
        ref: Its name, operator and scope.
        node: The node.
        reason: Why it cannot be written as floats, or "".
    """

    ref: NodeRef
    node: ir.Node
    reason: str


def roundings(model: ir.Model) -> Iterator[Rounding]:
    """Yield the QuantizeLinear nodes of a model, in every scope."""
    opset = default_opset(model.opset_imports)
    functions = [function.graph for function in model.functions.values()]
    for scope in scopes(model):
        for node in scope.graph:
            if is_of_default_domain(node) and node.op_type == "QuantizeLinear":
                why = "it is in a function" if scope.graph in functions else _why(node, opset)
                yield Rounding(node_ref(node, scope.text), node, why)


def written_as_floats(model: ir.Model) -> set[ir.Node]:
    """Return the nodes that `write_as_floats` replaces."""
    found = [each.node for each in roundings(model) if not each.reason]
    return {*found, *(use.node for node in found for use in node.outputs[0].uses())}


def write_as_floats(model: ir.Model) -> int:
    """Replace, in place, the QuantizeLinear nodes that can be; return their number."""
    opset, found = default_opset(model.opset_imports), [each.node for each in roundings(model) if not each.reason]
    names, constants = Names(all_names(model) if found else ()), dict[tuple[ir.Graph, float], ir.Value]()
    for node in found:
        for reader in dict.fromkeys(use.node for use in node.outputs[0].uses()):
            _replace(node, reader, opset, names, constants)
        graph, inputs = node.graph, [value for value in node.inputs if value is not None]
        assert isinstance(graph, ir.Graph)
        graph.remove(node, safe=True)
        drop_unused(inputs)
    return len(found)


def _why(node: ir.Node, opset: int) -> str:
    """Return why a QuantizeLinear cannot be written as floats, or ""."""
    quantized = _parameters(node, opset)
    if quantized is None:
        return "its scale or its zero point is no constant float32 or integer of the whole tensor"
    integers = node.outputs[0]
    for reader, index in integers.uses():
        if index or reader.op_type != "DequantizeLinear" or not is_of_default_domain(reader):
            return f"{reader.op_type} uses its integers"
        if _parameters(reader, opset) is None or reader.graph is not node.graph:
            return "the scale behind it is no constant of the whole tensor"
    return "its integers are an output" if integers.is_graph_output() else ""


def _parameters(node: ir.Node, opset: int) -> tuple[float, int, ir.DataType] | None:
    """Return scale, zero point and integer type of a QuantizeLinear or DequantizeLinear; None unless constant."""
    if len(node.inputs) < 2 or any(name in node.attributes for name in ("output_dtype", "precision", "block_size")):
        return None
    given = [value if value is None else constant_of(value, opset) for value in node.inputs[1:]]
    scale, zero = (*given, None)[:2]
    if zero is None and any(value is not None for value in node.inputs[2:]):
        return None
    dtype = ir.DataType.UINT8 if zero is None else zero.dtype
    fits = scale is not None and scale.dtype == ir.DataType.FLOAT and scale.size == 1 and dtype in _TYPES
    if scale is None or not fits or (zero is not None and zero.size != 1):
        return None
    return float(scale.numpy().item()), 0 if zero is None else int(zero.numpy().item()), dtype


def _replace(
    node: ir.Node, reader: ir.Node, opset: int, names: Names, constants: dict[tuple[ir.Graph, float], ir.Value]
) -> None:
    """Replace a DequantizeLinear by what it makes of the input of a QuantizeLinear."""
    graph, quantized, back = reader.graph, _parameters(node, opset), _parameters(reader, opset)
    assert isinstance(graph, ir.Graph)
    assert quantized is not None
    assert back is not None
    scale, zero, dtype = quantized
    bounds = np.iinfo(dtype.numpy())
    steps = {"Div": scale, "Max": bounds.min - zero, "Min": bounds.max - zero, "Add": _ROUNDS, "Sub": _ROUNDS}
    if back[1] != zero:
        steps["Sub"] = _ROUNDS + back[1] - zero
    value = node.inputs[0]
    assert value is not None
    for operator, number in {**steps, "Mul": back[0]}.items():
        if (graph, number) not in constants:
            constants[graph, number] = _scalar(graph, number, names.unique("rounding"))
        step = ir.node(operator, [value, constants[graph, number]], name=names.unique(f"{reader.name}/{operator}"))
        graph.insert_before(reader, step)
        value = step.outputs[0]
        value.name, value.type = names.unique(f"{reader.name}/{operator}"), ir.TensorType(ir.DataType.FLOAT)
        value.shape = reader.outputs[0].shape
    take_over(reader.outputs[0], value)
    inputs = [given for given in reader.inputs[1:] if given is not None]
    graph.remove(reader, safe=True)
    drop_unused(inputs)


def _scalar(graph: ir.Graph, number: float, name: str) -> ir.Value:
    tensor = ir.tensor(np.array(number, np.float32), name=name)
    value = ir.Value(name=name, const_value=tensor, shape=ir.Shape(()), type=ir.TensorType(ir.DataType.FLOAT))
    graph.register_initializer(value)
    return value


# Convolutions that onnxruntime-web 1.30 computes wrongly on WebGPU, without an error: with a multiple of 3 input
# channels, but not of 4 nor 3 itself, and a multiple of 4 output channels. With one more output channel, which is
# cut off, they are right. Measured with 1 to 10, 12, 13, 16, 33, 129 and 132 input channels, and 1 to 5, 8, 16
# and 128 output channels: wrong are 6, 9, 33 and 129 with 4, 8, 16 and 128.


_SLICE_OF_INPUTS = 10
"""The opset from which on the bounds of a Slice are inputs."""


def add_output_channels(model: ir.Model) -> int:
    """Add an output channel to such convolutions of constant weights, in place; return their number."""
    opset, names, count = default_opset(model.opset_imports), Names(all_names(model)), 0
    for node in list(model.graph) if opset >= _SLICE_OF_INPUTS else ():
        if node.op_type != "Conv" or not is_of_default_domain(node):
            continue
        held = [None if value is None else constant_of(value, opset) for value in node.inputs[1:]]
        if None not in held and _is_wrong(node, held):
            _widen(model.graph, node, [each.numpy() for each in held if each is not None], names)
            count += 1
    return count


def _is_wrong(node: ir.Node, held: list[ir.TensorProtocol | None]) -> bool:
    weights = held[0]
    assert weights is not None
    outputs, inputs = (int(size) for size in weights.shape.numpy()[:2])
    in_threes = inputs > 3 and inputs % 3 == 0 and inputs % 4 != 0
    return in_threes and outputs % 4 == 0 and node.attributes.get_int("group", 1) == 1


def _widen(graph: ir.Graph, node: ir.Node, held: list[Array], names: Names) -> None:
    """Give a Conv a last output channel of zeros, and cut it off."""

    def constant(array: Array, hint: str) -> ir.Value:
        tensor = ir.tensor(array)
        value = ir.Value(name=names.unique(f"{node.name}/{hint}"), const_value=tensor)
        value.type, value.shape = ir.TensorType(tensor.dtype), ir.Shape(array.shape)
        graph.register_initializer(value)
        return value

    given, count = list(node.inputs[1:]), len(held[0])
    for index, array in enumerate(held, 1):
        zeros = np.zeros((1, *array.shape[1:]), array.dtype)
        node.replace_input_with(index, constant(np.concatenate([array, zeros]), "wide"))
    output = node.outputs[0]
    bounds = [constant(np.array([number]), hint) for number, hint in ((0, "first"), (count, "count"), (1, "axis"))]
    cut = ir.node("Slice", [output, *bounds], name=names.unique(f"{node.name}/Slice"))
    graph.insert_after(node, cut)
    name, declared = output.name, output.shape
    take_over(output, cut.outputs[0])
    cut.replace_input_with(0, output)
    output.name = names.unique(f"{name}/wide")
    if declared is not None:
        output.shape = ir.Shape([count + 1 if axis == 1 else size for axis, size in enumerate(declared)])
    drop_unused([value for value in given if value is not None])


# Rows of a table, such as an embedding, as pnnx takes them. pnnx runs a model on uninitialized integers, so it
# crashes if such an integer is an index beyond the table. It makes an Embed of a Gather without the attribute
# axis. If the Gather says `axis = 0`, ncnn does not load it.


_CLIP_OF_INTEGERS = 12
"""The opset from which on a Clip takes integers."""

_SIZES = ("Shape", "Size")
"""Operators whose results do not depend on the numbers of their input."""


def bound_lookups(model: ir.Model) -> int:
    """Clip the indices of each Gather along the first axis of a constant that follow from an integer input of the
    model, and leave out its attribute axis, in place; return how many were changed.

    An index that a Clip changes is one that Gather forbids.
    """
    opset, names, count = default_opset(model.opset_imports), Names(all_names(model)), 0
    for node in list(model.graph):
        rows = _rows(node, opset)
        if not rows:
            continue
        written = node.attributes.pop("axis", None) is not None
        dtype = (
            _dtype(model, node) if opset >= _CLIP_OF_INTEGERS and _follows_from_integers(node.inputs[1]) else None
        )
        if dtype is not None:
            _clip(model.graph, node, rows, dtype, names)
        count += written or dtype is not None
    return count


def _rows(node: ir.Node, opset: int) -> int:
    """Return the number of rows of a constant that a node takes rows of by computed indices; 0 if it does not."""
    if node.op_type != "Gather" or not is_of_default_domain(node):
        return 0
    data, indices = node.inputs
    table = None if data is None else constant_of(data, opset)
    if table is None or table.shape.rank() == 0 or indices is None or constant_of(indices, opset) is not None:
        return 0
    return int(table.shape.numpy()[0]) if node.attributes.get_int("axis", 0) in (0, -table.shape.rank()) else 0


def _follows_from_integers(value: ir.Value | None) -> bool:
    """Return whether numbers of an integer input of the model lead to a value."""
    seen, pending = set(), [value]
    while pending:
        top = pending.pop()
        if top is None or top in seen:
            continue
        seen.add(top)
        if top.is_graph_input() and top.dtype is not None and top.dtype.is_integer():
            return True
        node = top.producer()
        pending += node.inputs if node is not None and node.op_type not in _SIZES else ()
    return False


def _dtype(model: ir.Model, node: ir.Node) -> ir.DataType | None:
    """Return the type of the indices of a Gather, if it is known."""
    indices = node.inputs[1]
    assert indices is not None
    return indices.dtype or inferred_values(model).get(indices, indices).dtype


def _clip(graph: ir.Graph, node: ir.Node, rows: int, dtype: ir.DataType, names: Names) -> None:
    """Clip the indices of a Gather to those that it takes."""
    indices = node.inputs[1]
    assert indices is not None
    bounds = []
    for number, hint in ((-rows, "first"), (rows - 1, "last")):
        tensor = ir.tensor(np.array(number, dtype.numpy()))
        bound = ir.Value(name=names.unique(f"{node.name}/{hint}"), const_value=tensor)
        bound.type, bound.shape = ir.TensorType(tensor.dtype), ir.Shape(())
        graph.register_initializer(bound)
        bounds.append(bound)
    clip = ir.node("Clip", [indices, *bounds], name=names.unique(f"{node.name}/Clip"))
    clip.outputs[0].name = names.unique(f"{node.name}/clipped")
    clip.outputs[0].type, clip.outputs[0].shape = ir.TensorType(dtype), indices.shape
    graph.insert_before(node, clip)
    node.replace_input_with(1, clip.outputs[0])
