"""Numbers for the values of a graph: those that equal nodes compute of equal values share one.

An exporter writes a constant or a Transpose of weights again in each step; such steps are alike by their numbers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from rnn_lowering.facts.constants import constant_of
from rnn_lowering.facts.operators import bodies_of, is_of_default_domain, may_differ
from rnn_lowering.types import Array

_MOST_READ = 1 << 14
"""Maximum elements of a constant whose integers are read."""

Signature = tuple[Hashable, ...]
"""Operator, domain, attributes and number of outputs of a node."""


@dataclass(eq=False)
class Computation:
    """Equal nodes of equal values.

    Attributes:
        signature: What they have alike beside their inputs.
        inputs, outputs: The numbers of their values.
        nodes: The nodes.
    """

    signature: Signature
    inputs: tuple[int | None, ...]
    outputs: range
    nodes: list[ir.Node] = field(default_factory=list)

    @property
    def node(self) -> ir.Node:
        return self.nodes[0]


class NumberedGraph:
    """A graph and the numbers of its values.

    Attributes:
        graph: The graph; its nodes are sorted.
        computations: In the order of their first nodes.
        producers: By number, the computation; graph inputs and constants have none.
        values: By number, the values.
        integers: By number, the integers of a small constant.
    """

    def __init__(self, graph: ir.Graph, opset: int) -> None:
        self.graph, self.opset = graph, opset
        self.computations: list[Computation] = []
        self.producers: dict[int, Computation] = {}
        self.values: dict[int, list[ir.Value]] = {}
        self.integers: dict[int, Array] = {}
        self._numbers: dict[ir.Value, int] = {}
        self._constants: dict[Hashable, int] = {}
        self._tensors: set[int] = set()
        self._by_key: dict[Hashable, Computation] = {}
        for node in graph:
            self._add(node)

    def of(self, value: ir.Value) -> int:
        """Return the number of a value."""
        if value not in self._numbers:
            self._number(value, self._constant(value))
        return self._numbers[value]

    def find(self, signature: Signature, inputs: Iterable[int | None]) -> Computation | None:
        """Return what nodes with this signature compute of values."""
        return self._by_key.get((signature, tuple(inputs)))

    def inputs_of_both(self, a: int, b: int) -> list[tuple[int, int]] | None:
        """Return the pairs of inputs of what computes two values alike; None if it differs."""
        of_a, of_b = self.producers.get(a), self.producers.get(b)
        if of_a is None or of_b is None or of_a.signature != of_b.signature:
            return None
        if a - of_a.outputs.start != b - of_b.outputs.start or len(of_a.inputs) != len(of_b.inputs):
            return None
        pairs = list(zip(of_a.inputs, of_b.inputs, strict=True))
        if any((x is None) != (y is None) for x, y in pairs):
            return None
        return [(x, y) for x, y in pairs if x is not None and y is not None]

    def tensor(self, number: int) -> ir.TensorProtocol | None:
        """Return a constant."""
        return constant_of(self.values[number][0], self.opset) if self.is_constant(number) else None

    def is_constant(self, number: int) -> bool:
        """Whether a value is a constant."""
        return number in self._tensors

    def size(self, number: int, axis: int) -> int | None:
        """Return a size of a value that is declared as a number."""
        shape = self.values[number][0].shape
        size = shape[axis] if shape is not None and 0 <= axis < len(shape) else None
        return size if isinstance(size, int) else None

    def constant(self, like: int, integer: int) -> int | None:
        """Return the number of the constant that has another integer in the place of the only one of `like`."""
        return self._constants.get(_key_of(ir.tensor(np.full_like(self.integers[like], integer))))

    def _add(self, node: ir.Node) -> None:
        if node.op_type == "Identity" and node.domain == "" and node.inputs[0] is not None:
            self._number(node.outputs[0], self.of(node.inputs[0]))
            return
        if node.op_type == "Constant" and node.domain == "":
            self.of(node.outputs[0])
            return
        inputs = tuple(None if value is None else self.of(value) for value in node.inputs)
        signature = _signature(node)
        computation = self._by_key.get((signature, inputs))
        if computation is None:
            first = len(self.values)
            computation = Computation(signature, inputs, range(first, first + len(node.outputs)))
            self.values.update((number, []) for number in computation.outputs)
            self.producers.update(dict.fromkeys(computation.outputs, computation))
            self.computations.append(computation)
            self._by_key[signature, inputs] = computation
        computation.nodes.append(node)
        for value, number in zip(node.outputs, computation.outputs, strict=True):
            self._number(value, number)

    def _number(self, value: ir.Value, number: int) -> None:
        self._numbers[value] = number
        self.values.setdefault(number, []).append(value)

    def _constant(self, value: ir.Value) -> int:
        """Return the number of a constant or of a value from outside."""
        tensor = constant_of(value, self.opset)
        if tensor is None or tensor.dtype == ir.DataType.STRING:
            return len(self.values)
        key = _key_of(tensor)
        number = self._constants.setdefault(key, len(self.values))
        self._tensors.add(number)
        if tensor.size <= _MOST_READ and tensor.dtype in (ir.DataType.INT64, ir.DataType.INT32):
            self.integers.setdefault(number, tensor.numpy())
        return number


def _key_of(tensor: ir.TensorProtocol) -> Hashable:
    return int(tensor.dtype), tuple(tensor.shape), hashlib.sha256(tensor.tobytes()).digest()


def _signature(node: ir.Node) -> Signature:
    """Return a signature; one of its own for a node with bodies, or one that may differ each time."""
    alone = bodies_of(node) or may_differ(node) or not is_of_default_domain(node)
    attributes = () if alone else tuple(sorted(map(_attribute, node.attributes.values())))
    return (id(node),) if alone else (node.op_type, attributes, len(node.outputs))


def _attribute(attribute: ir.Attr) -> tuple[str, str]:
    if attribute.type == ir.AttributeType.TENSOR:
        return attribute.name, repr(_key_of(attribute.as_tensor()))
    return attribute.name, f"{attribute.type} {attribute.value!r}"
