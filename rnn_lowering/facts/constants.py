"""The constant tensor behind a value, through the nodes that compute it; its integers if it is quantized; its sign.

A quantized constant is behind a DequantizeLinear: https://onnx.ai/onnx/operators/onnx__DequantizeLinear.html.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from rnn_lowering.facts.node_outputs import NodeModel
from rnn_lowering.facts.operators import (
    bodies_of,
    bounds_of,
    in_order,
    integers_of,
    is_of_default_domain,
    moved_inputs,
    operator_of,
    parameter,
    reached,
)
from rnn_lowering.limits import excess, most_bytes
from rnn_lowering.types import Array, Dims, array_of

KEPT_BYTES = 1 << 24
"""Maximum bytes of a computed constant that is cached; a larger one is computed at each read."""


def constant_of(value: ir.Value | None, opset: int, *, every: bool = False) -> ir.TensorProtocol | None:
    """Return the tensor of an initializer, a Constant node or foldable operators over these, or of every one.

    None if it is absent, depends on an input (an initializer that is an input too is only a default) or on other
    operators, or would exceed the limit.
    """
    if value is None:
        return None
    leaf = _leaf(value)
    if leaf is not None:
        return leaf
    nodes: dict[ir.Node, None] = {}
    leaves: dict[ir.Value, ir.TensorProtocol] = {}
    if value.producer() is None or not _collect(value, nodes, leaves, every=every):
        return None
    return computed(value, nodes, leaves, opset)


def is_constant(value: ir.Value) -> bool:
    """Return whether a value follows from constants alone; `constant_of` may yet find it too large to compute."""
    return _leaf(value) is not None or (value.producer() is not None and _collect(value, {}, {}))


def integers_at(node: ir.Node, name: str, opset: int) -> list[int] | None:
    """Return a parameter of integers of a node: none if it is absent, None if it is not constant."""
    held = parameter(node, name, opset)
    if isinstance(held, ir.Value):
        tensor = constant_of(held, opset)
        return None if tensor is None else integers_of(array_of(tensor))
    return [] if held is None else integers_of(held)


def bounds_at(node: ir.Node, opset: int) -> list[tuple[int, int, int, int]] | None:
    """Return the axis, start, end and step of each axis that a Slice names; None if they are not constant."""
    starts, ends, axes, steps = (integers_at(node, name, opset) for name in ("starts", "ends", "axes", "steps"))
    if starts is None or ends is None or axes is None or steps is None:
        return None
    try:
        return bounds_of(starts, ends, axes, steps)
    except ValueError:  # it is invalid
        return None


def filling(value: ir.Value | None, opset: int) -> Array | None:
    """Return the number that each element of a value is, also if its shape is computed; None if none is known."""
    parts, sources = list[Array](), dict[ir.Value, Sequence[ir.Value | None]]()
    for each in reached([value], lambda each: sources.get(each, ())):
        node, tensor = each.producer(), constant_of(each, opset)
        if tensor is not None:
            parts.append(array_of(tensor).reshape(-1))
        elif node is None or not is_of_default_domain(node):
            return None
        elif node.op_type == "ConstantOfShape":
            given = node.attributes.get_tensor("value")
            parts.append(np.zeros(1, np.float32) if given is None else array_of(given).reshape(-1))
        elif operator_of(node).moves:
            sources[each] = node.inputs[: moved_inputs(node)]
        else:
            return None
    numbers = np.unique(np.concatenate(parts)) if parts else np.zeros(0)
    return numbers.reshape(()) if numbers.size == 1 else None


_NOT_NEGATIVE = {
    *("Add", "Cast", "Concat", "Expand", "Gather", "Identity", "Mul", "Range", "Reshape", "Slice", "Squeeze"),
    *("Transpose", "Unsqueeze"),
}
"""Operators that make numbers from 0 on of such numbers."""

_COUNTS = ("ArgMax", "ArgMin", "NonZero", "Shape", "Size", "TopK")
"""Operators whose integers are sizes or places."""


def never_negative(value: ir.Value | None, opset: int) -> bool:
    """Whether integers follow from sizes, places and constants from 0 on, by operators that keep them there."""
    sources = dict[ir.Value, Sequence[ir.Value | None]]()
    for each in reached([value], lambda each: sources.get(each, ())):
        node, number = each.producer(), constant_of(each, opset)
        if number is not None:
            if (number.numpy() < 0).any():
                return False
        elif node is None or node.op_type not in (*_NOT_NEGATIVE, *_COUNTS):
            return False
        elif node.op_type not in _COUNTS:
            sources[each] = node.inputs[: moved_inputs(node) if operator_of(node).moves else None]
        elif node.op_type == "TopK" and each is node.outputs[0]:
            return False
    return True


def computed(
    value: ir.Value, nodes: Iterable[ir.Node], leaves: Mapping[ir.Value, ir.TensorProtocol], opset: int
) -> ir.TensorProtocol | None:
    """Evaluate nodes, in order, on `leaves`, large tensors late; return None if they cannot be evaluated."""
    try:
        return Evaluation(nodes, opset).computed(value, leaves)
    except Exception:  # the evaluator has no common error; what it cannot do stays in the graph
        return None


class Evaluation:
    """Nodes that are evaluated in their order, as often as they get other leaves; their graph may lose them."""

    def __init__(self, nodes: Iterable[ir.Node], opset: int) -> None:
        self._steps = [(NodeModel.of(node, opset), tuple(node.inputs), tuple(node.outputs)) for node in nodes]

    def computed(self, value: ir.Value, leaves: Mapping[ir.Value, ir.TensorProtocol]) -> ir.TensorProtocol:
        """Return a value, a large tensor late; raise whatever the evaluator raises."""
        most = most_bytes()  # a lazy tensor is computed again when another limit may hold

        def evaluate() -> ir.TensorProtocol:
            return self._evaluate(value, leaves, most)

        tensor = evaluate()
        if tensor.nbytes <= KEPT_BYTES:
            return tensor
        return ir.LazyTensor(evaluate, tensor.dtype, ir.Shape(tensor.shape.numpy()), name=value.name)

    def _evaluate(
        self, value: ir.Value, leaves: Mapping[ir.Value, ir.TensorProtocol], most: int
    ) -> ir.TensorProtocol:
        """Compute a constant with onnx's reference evaluator, node by node; a tensor is held until its last use.

        Raises:
            MemoryError: The outputs of a node would have more than `most` bytes.
            ValueError: onnxruntime may compute something else.
        """
        last = {given: n for n, (_, inputs, _) in enumerate(self._steps) for given in inputs}
        known = dict(leaves)
        for n, (alone, inputs, outputs) in enumerate(self._steps):
            arrays = {given: array_of(known[given]) for given in inputs if given is not None}
            feed = [None if given is None else arrays[given] for given in inputs]
            if fault := excess(alone.node.op_type, alone.bytes_of_outputs(feed), most):
                raise MemoryError(fault)
            results = alone.compute(feed)
            if results is None:
                raise ValueError(f"{alone.node.op_type} cannot be computed")
            known |= {v: ir.Tensor(array, name=v.name) for v, array in zip(outputs, results, strict=True)}
            for given in arrays:
                if last[given] == n:
                    del known[given]
        return known[value]


def dims_of(shape: Iterable[object] | None) -> Dims | None:
    """Return the dimensions of a shape, None for one that is not a number; None for an unknown rank."""
    # Old exporters write -1 for an unknown size.
    return None if shape is None else tuple(d if isinstance(d, int) and d >= 0 else None for d in shape)


def _leaf(value: ir.Value) -> ir.TensorProtocol | None:
    try:
        tensor = _tensor(value)
        if isinstance(tensor, ir.TensorProtoTensor):
            tensor.numpy()  # its numbers fit its type and shape
        return tensor
    except Exception:  # whatever damaged nodes and tensors raise: not known
        return None


def _tensor(value: ir.Value) -> ir.TensorProtocol | None:
    if value.is_graph_input():
        return None
    node = value.producer()
    if node is not None and node.op_type == "Shape" and node.domain == "" and not node.attributes:
        source = node.inputs[0]
        if source is not None and source.shape is not None and source.shape.is_static():
            return ir.tensor(source.shape.numpy(), dtype=ir.DataType.INT64, name=value.name)
    if node is not None and node.op_type == "Constant" and "value" in node.attributes:
        attribute = node.attributes["value"]  # get_const_tensor would rename the user's tensor
        return None if attribute.is_ref() else attribute.as_tensor()
    return ir.convenience.get_const_tensor(value)


def _collect(
    value: ir.Value, nodes: dict[ir.Node, None], leaves: dict[ir.Value, ir.TensorProtocol], *, every: bool = False
) -> bool:
    """Collect the nodes that compute a value, in order, and their constants; return False if it is not constant."""
    entered: set[ir.Node] = set()
    pending = [value]
    while pending:
        node = pending[-1].producer()
        if pending[-1] in leaves or node in nodes:
            pending.pop()
            continue
        leaf = _leaf(pending[-1])
        if leaf is not None:
            leaves[pending.pop()] = leaf
            continue
        if node is None or not (_is_foldable(node) or (every and is_steady(node))):
            return False
        missing = [v for v in node.inputs if v is not None and v not in leaves and v.producer() not in nodes]
        if not missing:
            nodes[node] = None
        elif node in entered:  # it depends on itself
            return False
        entered.add(node)
        pending += reversed(missing)
    return True


def is_steady(node: ir.Node) -> bool:
    """Whether a node has an operator of ONNX and no body, and gives the same at each run."""
    return is_of_default_domain(node) and not operator_of(node).random and not bodies_of(node)


def _is_foldable(node: ir.Node) -> bool:
    return operator_of(node).foldable and node.op_type != "Shape" and is_of_default_domain(node)


@dataclass(frozen=True)
class QuantizedTensor:
    """A constant: (integers - zero_point) * scale.

    Attributes:
        integers: Of the constant's shape.
        scale, zero_point: Of the constant's shape too, or of rank 0 if they are the same everywhere.
    """

    integers: ir.TensorProtocol
    scale: ir.TensorProtocol
    zero_point: ir.TensorProtocol


def quantized_of(value: ir.Value, opset: int) -> QuantizedTensor | None:
    """Return the integers of a dequantized constant, also where nodes move its elements afterwards; None for any
    other value."""
    path = _moves_and_sources(value)
    if path is None:
        return None
    moves, sources = path
    tensors = {source: q for source in sources if (q := _dequantized(source, opset)) is not None}
    if len(tensors) < len(sources) or len({(q.integers.dtype, q.scale.dtype) for q in tensors.values()}) > 1:
        return None
    others = {
        v: constant_of(v, opset) for node in moves for v in node.inputs[moved_inputs(node) :] if v is not None
    }

    def moved(part: Callable[[QuantizedTensor], ir.TensorProtocol]) -> ir.TensorProtocol | None:
        parts = {source: part(quantized) for source, quantized in tensors.items()}
        constants = {v: tensor for v, tensor in others.items() if tensor is not None}
        return parts[value] if value in parts else computed(value, moves, {**constants, **parts}, opset)

    integers = moved(lambda quantized: quantized.integers)
    first = next(iter(tensors.values()))
    uniform = len(tensors) == 1 and first.scale.size == first.zero_point.size == 1
    scale, zero_point = (
        (first.scale, first.zero_point)
        if uniform
        else (
            moved(lambda quantized: _full(quantized.scale, quantized.integers)),
            moved(lambda quantized: _full(quantized.zero_point, quantized.integers)),
        )
    )
    if integers is None or scale is None or zero_point is None:
        return None
    return QuantizedTensor(integers, scale, zero_point)


def _moves_and_sources(value: ir.Value) -> tuple[list[ir.Node], list[ir.Value]] | None:
    """Return the nodes that move the outputs of DequantizeLinear nodes, in order, and these outputs; None where any
    other node is behind a value."""
    moves, sources, done = dict[ir.Node, None](), list[ir.Value](), set[ir.Value]()

    def moved(value: ir.Value) -> Sequence[ir.Value | None]:
        node = value.producer()
        return () if node is None or not operator_of(node).moves else node.inputs[: moved_inputs(node)]

    for current in in_order(value, moved, done):
        done.add(current)
        node = current.producer()
        if node is None or not is_of_default_domain(node):
            return None
        if node.op_type == "DequantizeLinear":
            sources.append(current)
        elif operator_of(node).moves:
            moves[node] = None
        else:
            return None
    return list(moves), sources


def _dequantized(value: ir.Value, opset: int) -> QuantizedTensor | None:
    """Return what a DequantizeLinear node dequantizes, where all is constant."""
    node = value.producer()
    if node is None or not 2 <= len(node.inputs) <= 3:
        return None
    tensors = [constant_of(v, opset) for v in node.inputs]
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


def _full(part: ir.TensorProtocol, integers: ir.TensorProtocol) -> ir.TensorProtocol:
    if part.shape == integers.shape:
        return part
    return ir.tensor(np.broadcast_to(part.numpy(), integers.shape.numpy()), dtype=part.dtype)
