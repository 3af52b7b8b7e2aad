"""Constants that a model stores as integers behind DequantizeLinear.

Specification: https://onnx.ai/onnx/operators/onnx__DequantizeLinear.html.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from rnn_lowering.spec.constant_values import computed, constant_of
from rnn_lowering.spec.node_outputs import MOVING, is_of_default_domain, moved_inputs
from rnn_lowering.types import Array, array_of


@dataclass(frozen=True)
class QuantizedTensor:
    """A constant: (integers - zero_point) * scale.

    Attributes:
        integers: Of the constant's shape.
        scale, zero_point: Of the constant's shape too, or of rank 0 where they are the same everywhere.
    """

    integers: ir.TensorProtocol
    scale: ir.TensorProtocol
    zero_point: ir.TensorProtocol


def quantized_of(value: ir.Value, opset: int) -> QuantizedTensor | None:
    """Return the integers of a dequantized constant, also where nodes move its elements afterwards; None for any
    other value."""
    found = _behind(value)
    if found is None:
        return None
    moves, sources = found
    known = {source: _dequantized(source, opset) for source in sources}
    held = {source: quantized for source, quantized in known.items() if quantized is not None}
    if len(held) < len(known) or len({(q.integers.dtype, q.scale.dtype) for q in held.values()}) > 1:
        return None
    others = {
        v: constant_of(v, opset) for node in moves for v in node.inputs[moved_inputs(node) :] if v is not None
    }

    def moved(part: Callable[[QuantizedTensor], ir.TensorProtocol]) -> ir.TensorProtocol | None:
        parts = {source: part(quantized) for source, quantized in held.items()}
        constants = {v: tensor for v, tensor in others.items() if tensor is not None}
        return parts[value] if value in parts else computed(value, moves, {**constants, **parts}, opset)

    integers = moved(lambda quantized: quantized.integers)
    first = next(iter(held.values()))
    uniform = len(held) == 1 and first.scale.size == first.zero_point.size == 1
    scale, zero_point = (first.scale, first.zero_point) if uniform else (moved(_scale), moved(_zero_point))
    if integers is None or scale is None or zero_point is None:
        return None
    return QuantizedTensor(integers, scale, zero_point)


def _behind(value: ir.Value) -> tuple[list[ir.Node], list[ir.Value]] | None:
    """Return the nodes that move the outputs of DequantizeLinear nodes, in order, and these outputs; None where any
    other node is behind a value."""
    moves: dict[ir.Node, None] = {}
    sources: dict[ir.Value, None] = {}
    pending: list[ir.Value | ir.Node | None] = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, ir.Node):
            moves[item] = None
            continue
        node = None if item is None else item.producer()
        if item is None or node is None or not is_of_default_domain(node):
            return None
        if node.op_type == "DequantizeLinear":
            sources[item] = None
        elif node.op_type not in MOVING:
            return None
        elif node not in moves:
            pending += [node, *node.inputs[: moved_inputs(node)]]
    return list(moves), list(sources)


def _dequantized(value: ir.Value, opset: int) -> QuantizedTensor | None:
    """Return what a DequantizeLinear node dequantizes, where all is constant."""
    node = value.producer()
    if node is None or not 2 <= len(node.inputs) <= 3:
        return None
    tensors = [None if v is None else constant_of(v, opset) for v in node.inputs]
    integers, scale, zero_point = (*tensors, None)[:3]
    if (
        integers is None
        or not integers.dtype.is_integer()
        or scale is None
        or (zero_point is None and node.inputs[2:] not in ((), (None,)))
    ):
        return None
    if zero_point is None:
        zero_point = ir.tensor(np.zeros(scale.shape.numpy(), integers.dtype.numpy()))
    if scale.size == 1:
        flat = [ir.tensor(part.numpy().reshape(()), dtype=part.dtype) for part in (scale, zero_point)]
        return QuantizedTensor(integers, *flat)
    shape = tuple(int(size) for size in integers.shape.numpy())
    attributes = {name: attribute.value for name, attribute in node.attributes.items()}
    scale, zero_point = (_spread(part, shape, attributes) for part in (scale, zero_point))
    return QuantizedTensor(integers, scale, zero_point)


def _spread(part: ir.TensorProtocol, shape: tuple[int, ...], attributes: Mapping[str, int]) -> ir.TensorProtocol:
    """Return scales or zero points, of each index of an axis or of each block, one for each integer."""
    axis = attributes.get("axis", 1) % len(shape)
    block = attributes.get("block_size", 0)

    def spread() -> ir.TensorProtocol:
        array: Array = array_of(part)
        if block:
            array = array.repeat(block, axis).take(range(shape[axis]), axis)
        else:
            array = array.reshape((-1, *(1,) * (len(shape) - axis - 1)))
        return ir.tensor(np.broadcast_to(array, shape), dtype=part.dtype)

    return ir.LazyTensor(spread, part.dtype, ir.Shape(shape))


def _scale(quantized: QuantizedTensor) -> ir.TensorProtocol:
    return _full(quantized.scale, quantized.integers)


def _zero_point(quantized: QuantizedTensor) -> ir.TensorProtocol:
    return _full(quantized.zero_point, quantized.integers)


def _full(part: ir.TensorProtocol, integers: ir.TensorProtocol) -> ir.TensorProtocol:
    if part.shape == integers.shape:
        return part
    return ir.tensor(np.broadcast_to(part.numpy(), integers.shape.numpy()), dtype=part.dtype)
