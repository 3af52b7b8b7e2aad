"""QuantizeLinear and DequantizeLinear as arithmetic on floats, for runtimes that compute such integers wrongly.

The numbers are the same. Of a scale s and a zero point z, in a type from lo to hi, the pair computes
round(min(max(x / s, lo - z), hi - z)) * s, and a DequantizeLinear alone (x - z) * s.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from rnn_lowering.decomposition.adapted_model import AdaptedModel
from rnn_lowering.errors import NodeRef, UnsupportedError
from rnn_lowering.facts.constants import constant_of
from rnn_lowering.facts.operators import is_of_default_domain
from rnn_lowering.model.replace import drop_unused
from rnn_lowering.model.scopes import add_constant, standard_nodes
from rnn_lowering.nodes.spec import node_ref
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


def _roundings(model: AdaptedModel) -> Iterator[Rounding]:
    """Yield the QuantizeLinear nodes of a model, in every scope."""
    functions = [function.graph for function in model.model.functions.values()]
    for scope, node in standard_nodes(model.model, "QuantizeLinear"):
        why = "it is in a function" if scope.graph in functions else _why(node, model)
        yield Rounding(node_ref(node, scope.text), node, why)


def unwritten(model: AdaptedModel, target: Target) -> Iterator[UnsupportedError]:
    """Yield an error for each QuantizeLinear that cannot be written as arithmetic on floats."""
    for rounding in _roundings(model):
        if rounding.reason:
            wrong = f"{target.name} computes it wrongly, and it cannot become arithmetic on floats"
            hint = "export the model without it, or drop --target"
            yield UnsupportedError(f"{wrong}: {rounding.reason}", hint=hint, node=rounding.ref)


def written_as_floats(model: AdaptedModel) -> set[ir.Node]:
    """Return the nodes that `write_as_floats` replaces."""
    nodes = [each.node for each in _roundings(model) if not each.reason]
    return {*nodes, *(use.node for node in nodes for use in node.outputs[0].uses())}


def write_as_floats(model: AdaptedModel) -> int:
    """Replace, in place, the QuantizeLinear nodes that can be; return their number."""
    nodes, constants = [each.node for each in _roundings(model) if not each.reason], _SharedConstants()
    for node in nodes:
        for reader in dict.fromkeys(use.node for use in node.outputs[0].uses()):
            _round(node, reader, model, constants)
        graph, inputs = node.graph, node.inputs
        assert isinstance(graph, ir.Graph)
        graph.remove(node, safe=True)
        drop_unused(inputs)
    return len(nodes)


def _why(node: ir.Node, model: AdaptedModel) -> str:
    """Return why a QuantizeLinear cannot be written as floats, or ""."""
    quantized = _parameters(node, model)
    if quantized is None:
        return "its scale or its zero point is no constant float32 or integer of the whole tensor"
    integers = node.outputs[0]
    for reader, index in integers.uses():
        if index or reader.op_type != "DequantizeLinear" or not is_of_default_domain(reader):
            return f"{reader.op_type} uses its integers"
        if _parameters(reader, model) is None or reader.graph is not node.graph:
            return "the scale behind it is no constant of the whole tensor"
    return "its integers are an output" if integers.is_graph_output() else ""


def _parameters(node: ir.Node, model: AdaptedModel) -> tuple[float, int, ir.DataType] | None:
    """Return scale, zero point and integer type of a QuantizeLinear or DequantizeLinear; None unless constant."""
    if len(node.inputs) < 2 or any(name in node.attributes for name in ("output_dtype", "precision", "block_size")):
        return None
    scale, zero = (*map(model.constant_of, node.inputs[1:]), None)[:2]
    if zero is None and any(value is not None for value in node.inputs[2:]):
        return None
    dtype = ir.DataType.UINT8 if zero is None else zero.dtype
    fits = scale is not None and scale.dtype == ir.DataType.FLOAT and scale.size == 1 and dtype in _TYPES
    if scale is None or not fits or (zero is not None and zero.size != 1):
        return None
    return float(scale.numpy().item()), 0 if zero is None else int(zero.numpy().item()), dtype


_SharedConstants = dict[tuple[ir.Graph, float], ir.Value]


def _round(node: ir.Node, reader: ir.Node, model: AdaptedModel, constants: _SharedConstants) -> None:
    """Replace a DequantizeLinear by what it makes of the input of a QuantizeLinear."""
    graph, quantized, back = reader.graph, _parameters(node, model), _parameters(reader, model)
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
            name = model.unique("rounding")
            constants[graph, number] = add_constant(graph, name, ir.tensor(np.array(number, np.float32), name=name))
        value = model.before(reader, operator, [value, constants[graph, number]])
        value.type, value.shape = ir.TensorType(ir.DataType.FLOAT), reader.outputs[0].shape
    model.replace(reader, value, reader.inputs[1:])


# A DequantizeLinear alone


def write_differences(model: AdaptedModel) -> int:
    """Write DequantizeLinear nodes as (x - z) * s, in place; return their number."""
    nodes = _differences(model)
    for node, (scale, zero) in nodes.items():
        value = model.before(node, "Cast", node.inputs[:1], to=int(ir.DataType.FLOAT))
        if zero.any():
            value = model.before(node, "Sub", [value, model.constant(node, zero, np.float32, "zero")])
        value = model.before(node, "Mul", [value, model.constant(node, scale, np.float32, "scale")])
        model.replace(node, value, node.inputs[1:])
    return len(nodes)


def written_as_differences(model: AdaptedModel) -> set[ir.Node]:
    """Return the nodes that `write_differences` replaces."""
    return {*_differences(model)}


def _differences(model: AdaptedModel) -> dict[ir.Node, tuple[Array, Array]]:
    """Return the DequantizeLinear nodes whose scales and zero points are known, and these as they broadcast."""
    nodes = list(standard_nodes(model.model, "DequantizeLinear"))
    parts = {node: _broadcast(node, model, scope.opset) for scope, node in nodes}
    return {node: both for node, both in parts.items() if both is not None}


def _broadcast(node: ir.Node, model: AdaptedModel, opset: int) -> tuple[Array, Array] | None:
    """Return the scale and the zero point of a DequantizeLinear as they broadcast; None if they are not known."""
    tensors = [constant_of(value, opset) for value in node.inputs[1:]]
    if None in tensors or any(name in node.attributes for name in ("block_size", "output_dtype")):
        return None
    scale, *zeros = [array_of(tensor) for tensor in tensors if isinstance(tensor, ir.TensorProtocol)]
    zero = zeros[0] if zeros else np.zeros_like(scale)
    if scale.dtype != np.float32 or scale.ndim > 1:
        return None
    if scale.size == 1:
        return scale.reshape(()), zero.reshape(())
    shape = model.shape_of(node.inputs[0])
    if shape is None:
        return None
    behind = (1,) * (len(shape) - 1 - node.attributes.get_int("axis", 1) % len(shape))
    return scale.reshape(-1, *behind), zero.reshape(-1, *behind)
