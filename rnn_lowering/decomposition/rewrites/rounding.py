"""QuantizeLinear and DequantizeLinear as arithmetic on floats that gives the same numbers.

For runtimes that compute computed values in integers wrongly. Of a scale s and a zero point z, in a type from lo to
hi, the pair computes round(min(max(x / s, lo - z), hi - z)) * s, and a DequantizeLinear alone (x - z) * s.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from rnn_lowering.decomposition.rewrites.inserting import Inserter
from rnn_lowering.emit.open_scopes import Names
from rnn_lowering.errors import NodeRef, UnsupportedError
from rnn_lowering.facts.constants import constant_of
from rnn_lowering.facts.operators import default_opset, is_of_default_domain
from rnn_lowering.model.model_sizes import Inferred, inferred_values, take_over
from rnn_lowering.model.replace import drop_unused
from rnn_lowering.model.scopes import add_constant, all_names, standard_nodes
from rnn_lowering.nodes.kinds import node_ref
from rnn_lowering.targets.target import Target
from rnn_lowering.types import Array, array_of

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
    for scope, node in standard_nodes(model, "QuantizeLinear"):
        why = "it is in a function" if scope.graph in functions else _why(node, opset)
        yield Rounding(node_ref(node, scope.text), node, why)


def unwritten(model: ir.Model, target: Target) -> Iterator[UnsupportedError]:
    """Yield an error for each QuantizeLinear that cannot be written as arithmetic on floats."""
    for rounding in roundings(model):
        if rounding.reason:
            wrong = f"{target.name} computes it wrongly, and it cannot become arithmetic on floats"
            hint = "export the model without it, or drop --target"
            yield UnsupportedError(f"{wrong}: {rounding.reason}", hint=hint, node=rounding.ref)


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
            name = names.unique("rounding")
            constants[graph, number] = add_constant(graph, name, ir.tensor(np.array(number, np.float32), name=name))
        step = ir.node(operator, [value, constants[graph, number]], name=names.unique(f"{reader.name}/{operator}"))
        graph.insert_before(reader, step)
        value = step.outputs[0]
        value.name, value.type = names.unique(f"{reader.name}/{operator}"), ir.TensorType(ir.DataType.FLOAT)
        value.shape = reader.outputs[0].shape
    take_over(reader.outputs[0], value)
    inputs = [given for given in reader.inputs[1:] if given is not None]
    graph.remove(reader, safe=True)
    drop_unused(inputs)


# A DequantizeLinear alone


def write_differences(model: ir.Model) -> int:
    """Write DequantizeLinear nodes as (x - z) * s, in place; return their number."""
    nodes, inserter = _differences(model), Inserter(model)
    for node, (scale, zero) in nodes.items():
        value = inserter.before(node, "Cast", node.inputs[:1], {"to": int(ir.DataType.FLOAT)})
        if zero.any():
            value = inserter.before(node, "Sub", [value, inserter.constant(node, zero, np.float32, "zero")])
        value = inserter.before(node, "Mul", [value, inserter.constant(node, scale, np.float32, "scale")])
        inputs = [each for each in node.inputs[1:] if each is not None]
        take_over(node.outputs[0], value)
        assert isinstance(node.graph, ir.Graph)
        node.graph.remove(node, safe=True)
        drop_unused(inputs)
    return len(nodes)


def written_as_differences(model: ir.Model) -> set[ir.Node]:
    """Return the nodes that `write_differences` replaces."""
    return {*_differences(model)}


def _differences(model: ir.Model) -> dict[ir.Node, tuple[Array, Array]]:
    """Return the DequantizeLinear nodes whose scales and zero points are known, and these as they broadcast."""
    nodes = list(standard_nodes(model, "DequantizeLinear"))
    known = inferred_values(model) if nodes else {}
    parts = {node: _broadcast(node, known, scope.opset) for scope, node in nodes}
    return {node: both for node, both in parts.items() if both is not None}


def _broadcast(node: ir.Node, known: Inferred, opset: int) -> tuple[Array, Array] | None:
    """Return the scale and the zero point of a DequantizeLinear as they broadcast; None if they are not known."""
    tensors = [value and constant_of(value, opset) for value in node.inputs[1:]]
    if None in tensors or any(name in node.attributes for name in ("block_size", "output_dtype")):
        return None
    scale, *zeros = [array_of(tensor) for tensor in tensors if isinstance(tensor, ir.TensorProtocol)]
    zero = zeros[0] if zeros else np.zeros_like(scale)
    if scale.dtype != np.float32 or scale.ndim > 1:
        return None
    if scale.size == 1:
        return scale.reshape(()), zero.reshape(())
    x = node.inputs[0]
    shape = None if x is None else known.get(x, x).shape
    if shape is None:
        return None
    behind = (1,) * (len(shape) - 1 - node.attributes.get_int("axis", 1) % len(shape))
    return scale.reshape(-1, *behind), zero.reshape(-1, *behind)
