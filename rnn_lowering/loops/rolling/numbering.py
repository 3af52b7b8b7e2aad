"""A traced graph in numbers, and the chains of products in it.

Values have numbers: those that equal nodes compute of equal values share one. An exporter writes a constant or a
Transpose of weights again in each step; such steps are alike by their numbers.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from rnn_lowering.facts.constants import constant_of
from rnn_lowering.facts.operators import bodies_of, is_of_default_domain, may_differ, nodes_within
from rnn_lowering.types import Array

_MOST_READ = 1 << 14
"""Maximum elements of a constant whose integers are read."""

_Signature = tuple[Hashable, ...]
"""Operator, domain, attributes and number of outputs of a node."""


@dataclass(eq=False)
class Computation:
    """Equal nodes of equal values.

    Attributes:
        signature: What they have alike beside their inputs.
        inputs, outputs: The numbers of their values.
        nodes: The nodes.
    """

    signature: _Signature
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

    def find(self, signature: _Signature, inputs: Iterable[int | None]) -> Computation | None:
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


def _signature(node: ir.Node) -> _Signature:
    """Return a signature; one of its own for a node with bodies, or one that may differ each time."""
    alone = bodies_of(node) or may_differ(node) or not is_of_default_domain(node)
    attributes = () if alone else tuple(sorted(map(_attribute, node.attributes.values())))
    return (id(node),) if alone else (node.op_type, attributes, len(node.outputs))


def _attribute(attribute: ir.Attr) -> tuple[str, str]:
    if attribute.type == ir.AttributeType.TENSOR:
        return attribute.name, repr(_key_of(attribute.as_tensor()))
    return attribute.name, f"{attribute.type} {attribute.value!r}"


# Chains of products with the same weights, each of which depends on the one before: a traced loop has one. What a
# product multiplies with the weights is where a step begins. The level of a value is the number of the last step
# that it depends on.


FEWEST_STEPS = 4

_PRODUCTS = ("MatMul", "Gemm")

_MOST_CHAINS = 8
"""Maximum chains of products with the same weights that come together in one value."""


@dataclass(frozen=True)
class ProductChain:
    """A chain of products.

    Attributes:
        products: They, in order.
        cuts: The numbers of what they multiply, one for each step.
        levels: By number, the last step, from 1 on, that a value depends on.
    """

    products: list[Computation]
    cuts: list[int]
    levels: Mapping[int | None, int]


def may_have_chains(graph: ir.Graph) -> bool:
    """Return whether a graph has enough products for a chain; a branch that is taken is counted too."""
    return sum(node.op_type in _PRODUCTS for node in nodes_within(graph)) >= FEWEST_STEPS


def chains(graph: NumberedGraph) -> Iterator[ProductChain]:
    """Yield the chains of a graph, in the order of their first products."""
    groups: dict[tuple[_Signature, tuple[int | None, ...]], list[Computation]] = defaultdict(list)
    slots = {}
    for computation in graph.computations:
        if computation.signature[0] in _PRODUCTS:
            for slot in (0, 1):
                rest = tuple(None if n == slot else number for n, number in enumerate(computation.inputs))
                groups[computation.signature, rest].append(computation)
                slots[computation.signature, rest] = slot
    for key, products in groups.items():
        if len(products) >= FEWEST_STEPS:
            for links in _links(graph, products):
                if len(links) >= FEWEST_STEPS:
                    yield from _chain(graph, links, slots[key])


def _links(graph: NumberedGraph, products: list[Computation]) -> list[list[Computation]]:
    """Return products in chains: each depends on the end of its chain, or on none. Products that only come together
    in the end, as those of rows, are none."""
    chains: list[list[Computation]] = []
    last: dict[int | None, dict[int, int]] = {}
    wanted = {id(product) for product in products}
    for computation in graph.computations:
        ends: dict[int, int] = {}
        for number in computation.inputs:
            for chain, length in last[number].items() if number in last else ():
                ends[chain] = max(length, ends.get(chain, 0))
        if len(ends) > _MOST_CHAINS:
            return []
        if id(computation) in wanted:
            grown = [chain for chain, length in ends.items() if length == len(chains[chain])]
            if not grown:
                chains.append([])
            chain = max(grown, default=len(chains) - 1)
            chains[chain].append(computation)
            ends = {chain: len(chains[chain])}
        if ends:
            last.update(dict.fromkeys(computation.outputs, ends))
    return chains


def _chain(graph: NumberedGraph, products: list[Computation], slot: int) -> Iterator[ProductChain]:
    """Yield a chain, if each of its steps begins where the one before ends."""
    cuts = [number for product in products if (number := product.inputs[slot]) is not None]
    steps: dict[int | None, int] = {number: step for step, number in enumerate(cuts, 1)}
    first = steps.pop(cuts[0])  # zeros, as the first step may begin with, are read by others too
    levels: dict[int | None, int] = {}
    for computation in graph.computations:
        read = [max(levels.get(number, 0), steps.get(number, 0)) for number in computation.inputs]
        level = max(read, default=0) if computation is not products[0] else first
        if level:
            levels.update(dict.fromkeys(computation.outputs, level))
    if len(steps) + 1 == len(products) and all(levels.get(cut, 0) == step for step, cut in enumerate(cuts)):
        yield ProductChain(products, cuts, levels)
