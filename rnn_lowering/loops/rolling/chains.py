"""Chains of products with the same weights, each of which depends on the one before: a traced loop has one.

What a product multiplies with the weights is where a step begins. The level of a value is the number of the last
step that it depends on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rnn_lowering.loops.rolling.numbering import Computation, NumberedGraph, Signature

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


def chains(graph: NumberedGraph) -> Iterator[ProductChain]:
    """Yield the chains of a graph, in the order of their first products."""
    groups: dict[tuple[Signature, tuple[int | None, ...]], list[Computation]] = defaultdict(list)
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
    found: list[list[Computation]] = []
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
            grown = [chain for chain, length in ends.items() if length == len(found[chain])]
            if not grown:
                found.append([])
            chain = max(grown, default=len(found) - 1)
            found[chain].append(computation)
            ends = {chain: len(found[chain])}
        if ends:
            last.update(dict.fromkeys(computation.outputs, ends))
    return found


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
