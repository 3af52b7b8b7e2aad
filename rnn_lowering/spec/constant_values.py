"""Find the tensor of a constant value, through the nodes that compute it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import onnx
import onnx_ir as ir

from rnn_lowering.limits import excess, most_bytes
from rnn_lowering.spec.node_outputs import NodeModel, is_of_default_domain
from rnn_lowering.types import Array, Dims, array_of

FOLDABLE = frozenset(
    (
        *("Identity", "Cast", "Transpose", "Unsqueeze", "Squeeze", "Reshape", "Slice", "Concat", "Split"),
        *("Gather", "Expand", "ConstantOfShape", "DequantizeLinear", "Constant", "Shape"),
    )
)
"""Operators of the default domain that exporters put between a constant and a recurrent node."""

KEPT_BYTES = 1 << 24
"""The most bytes of a computed constant that is kept; a larger one is computed again when it is read."""


def constant_of(value: ir.Value, opset: int) -> ir.TensorProtocol | None:
    """Return the tensor of an initializer, a Constant node or a chain of `FOLDABLE` operators over such; None for
    whatever a user may set (an initializer that is an input too is only a default) or a node computes, and where
    it would exceed the limit."""
    leaf = _leaf(value)
    if leaf is not None:
        return leaf
    nodes: dict[ir.Node, None] = {}
    leaves: dict[ir.Value, ir.TensorProtocol] = {}
    if value.producer() is None or not _collect(value, nodes, leaves):
        return None
    return computed(value, nodes, leaves, opset)


def computed(
    value: ir.Value, nodes: Iterable[ir.Node], leaves: Mapping[ir.Value, ir.TensorProtocol], opset: int
) -> ir.TensorProtocol | None:
    """Evaluate nodes, in order, on `leaves`, large tensors late; return None if they cannot be evaluated."""

    most = most_bytes()  # a lazy tensor is computed again when another limit may hold

    def evaluate() -> ir.TensorProtocol:
        return _evaluate(value, steps, leaves, most)

    try:
        steps = [_Step.of(node, opset) for node in nodes]
        tensor = evaluate()
    except Exception:  # the evaluator has no common error; what it cannot do stays in the graph
        return None
    if tensor.nbytes <= KEPT_BYTES:
        return tensor
    return ir.LazyTensor(evaluate, tensor.dtype, ir.Shape(tensor.shape.numpy()), name=value.name)


def dims_of(shape: Iterable[object] | None) -> Dims | None:
    """Return the dimensions of a shape, None where one is not a number; None for an unknown rank."""
    # Old exporters write -1 for a size that is not known.
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
        held = node.attributes["value"]
        return None if held.is_ref() else held.as_tensor()  # get_const_tensor would rename the user's tensor
    return ir.convenience.get_const_tensor(value)


def _collect(value: ir.Value, nodes: dict[ir.Node, None], leaves: dict[ir.Value, ir.TensorProtocol]) -> bool:
    """Gather, in order, the nodes that compute a value, and their constants; False where it is not constant."""
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
        if node is None or not _is_foldable(node):
            return False
        missing = [v for v in node.inputs if v is not None and v not in leaves and v.producer() not in nodes]
        if not missing:
            nodes[node] = None
        elif node in entered:  # it depends on itself
            return False
        entered.add(node)
        pending += reversed(missing)
    return True


def _is_foldable(node: ir.Node) -> bool:
    return node.op_type in FOLDABLE and node.op_type != "Shape" and is_of_default_domain(node)


def _filled(node: onnx.NodeProto, given: Sequence[Array]) -> int:
    value = next((a.t for a in node.attribute if a.name == "value"), None)
    itemsize = 4 if value is None else int(onnx.helper.tensor_dtype_to_np_dtype(value.data_type).itemsize)
    return _product(given[0]) * itemsize


def _expanded(_: onnx.NodeProto, given: Sequence[Array]) -> int:
    array, shape = given
    sizes = zip_longest(reversed(array.shape), reversed(shape.ravel().tolist()), fillvalue=1)
    numbers: int = math.prod(max(own, asked) for own, asked in sizes)
    return numbers * int(array.itemsize)


def _gathered(node: onnx.NodeProto, given: Sequence[Array]) -> int:
    axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
    return int(given[1].size * (given[0].nbytes // max(given[0].shape[axis], 1)))


def _joined(_: onnx.NodeProto, given: Sequence[Array]) -> int:
    return sum(array.nbytes for array in given)


def _product(sizes: Array) -> int:
    return math.prod(int(size) for size in sizes.ravel())


_BYTES: dict[str, Callable[[onnx.NodeProto, Sequence[Array]], int]] = {
    "ConstantOfShape": _filled,
    "Expand": _expanded,
    "Gather": _gathered,
    "Concat": _joined,
}
"""The bytes of the result, or a bound, of those foldable operators that make much of little."""


@dataclass(frozen=True)
class _Step:
    """A node of a chain, which the graph may lose before the chain is computed."""

    alone: NodeModel
    inputs: tuple[ir.Value | None, ...]
    outputs: tuple[ir.Value, ...]

    @classmethod
    def of(cls, node: ir.Node, opset: int) -> _Step:
        return cls(NodeModel.of(node, opset), tuple(node.inputs), tuple(node.outputs))

    @property
    def given(self) -> list[ir.Value]:
        return [value for value in dict.fromkeys(self.inputs) if value is not None]

    def run(self, tensors: Mapping[ir.Value, ir.TensorProtocol], most: int) -> dict[ir.Value, ir.TensorProtocol]:
        """Return the tensors of the outputs.

        Raises:
            MemoryError: They would have more than `most` bytes.
        """
        arrays = {value: array_of(tensors[value]) for value in self.given}
        node, given = self.alone.node, [arrays[value] for value in self.inputs if value is not None]
        if node.op_type in _BYTES and (fault := excess(node.op_type, _BYTES[node.op_type](node, given), most)):
            raise MemoryError(fault)
        results = self.alone.run([None if value is None else arrays[value] for value in self.inputs])
        pairs = zip(self.outputs, results, strict=True)
        return {v: ir.tensor(array, name=v.name) for v, array in pairs if array is not None}


def _evaluate(
    value: ir.Value, steps: Sequence[_Step], leaves: Mapping[ir.Value, ir.TensorProtocol], most: int
) -> ir.TensorProtocol:
    """Compute a constant with onnx's reference evaluator, node by node; a tensor is held until its last use."""
    last = {given: step for step in steps for given in step.given}
    known = dict(leaves)
    for step in steps:
        known |= step.run(known, most)
        for given in step.given:
            if last[given] is step:
                del known[given]
    return known[value]
