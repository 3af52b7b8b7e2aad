"""A recurrent node of the original and its lowered form: both as models, the node in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import onnx
import onnx_ir as ir

from rnn_lowering.compare.references.node_reference import NodeReference, Symbols
from rnn_lowering.model.scopes import (
    NodePlace,
    RecurrentNode,
)
from rnn_lowering.spec.node_spec import NodeSpec
from rnn_lowering.types import Array, array_of


@dataclass(frozen=True, eq=False)
class LoweredNode:
    """A node of the original that the lowered model no longer has.

    Attributes:
        entry: The node.
        reference: The node in float64.
        feeds: As in `NodePair`.
        outputs: The values of the lowered model that have the names of its connected outputs.
    """

    entry: RecurrentNode
    reference: NodeReference[Any]
    feeds: Mapping[str, str]
    outputs: Sequence[ir.Value]


@dataclass(frozen=True)
class NodePair:
    """A recurrent node of the original and its lowered form.

    Attributes:
        place: The place of the node in the original.
        reference: The node in float64.
        feeds: The non-constant inputs: name of the value by symbol of the operator specification.
        cut: The subgraph that replaces it, as a model from those inputs to its connected outputs; None if the
            lowered model has no such subgraph.
        whole: Returns the node itself as a model.
        beside: The nodes that share a loop with this node. Their inputs are also inputs of `cut`.
        below: The layer whose Y is X of this node, if both share a loop. X is then no input of `cut`.
        moves: Returns X of this node for Y of the layer `below`.
    """

    place: NodePlace
    reference: NodeReference[Any]
    feeds: Mapping[str, str]
    cut: onnx.ModelProto | None
    whole: Callable[[], onnx.ModelProto]
    beside: Sequence[LoweredNode] = ()
    below: NodePair | None = None
    moves: Callable[[Array], Array] = lambda Y: Y

    @property
    def spec(self) -> NodeSpec:
        """What the node specifies."""
        return cast(NodeSpec, self.reference.spec)

    def layers_below(self) -> Iterator[NodePair]:
        """Yield the layer below, the layer below that one, and so on."""
        if self.below is not None:
            yield self.below
            yield from self.below.layers_below()

    def inputs(self, feed: Mapping[str, Array]) -> dict[str, Array]:
        """Return all inputs by symbol: the feed and the constants."""
        return {**{symbol: array_of(tensor) for symbol, tensor in self.spec.constants.items()}, **feed}

    def float64(self, feed: Mapping[str, Array]) -> dict[str, Array]:
        """The node's connected outputs by the operator specification, in float64."""
        result = self.reference.outputs(self.inputs(feed))
        return {symbol: result[symbol] for symbol in self.spec.outputs}

    def runs(self, rng: np.random.Generator) -> list[NodeFeed]:
        """Return inputs of several runs, chosen for this node, or for the lowest of its layers."""
        if self.below is None:
            return [NodeFeed(feed) for feed in self.reference.feeds(self.feeds, rng)]
        return [self._above(self.below, given) for given in self.below.runs(rng)]

    def usual_run(self, rng: np.random.Generator, steps: int) -> NodeFeed:
        """Return inputs of one ordinary run; see `NodeReference.usual_feed`."""
        if self.below is None:
            return NodeFeed(self.reference.usual_feed(self.feeds, rng, steps))
        return self._above(self.below, self.below.usual_run(rng, steps))

    def _above(self, below: NodePair, given: NodeFeed) -> NodeFeed:
        """Return the inputs of this layer for inputs of the layer below."""
        X = self.moves(below.reference.outputs(below.inputs(given.feed))["Y"])
        T, N = (X.shape[self.spec.axes(self.spec.data).index(axis)] for axis in ("T", "N"))
        own = random_inputs(self.reference, self.feeds, T, N)
        feed = {symbol: own[name] for symbol, name in self.feeds.items()}
        feed[self.spec.data] = X.astype(self.spec.dtype.numpy())
        named = {name: given.feed[symbol] for symbol, name in below.feeds.items()}
        return NodeFeed(feed, {**given.values, **named})

    def rounding_of_X(self, values: Mapping[str, Array]) -> Array | None:
        """Return the allowed difference of X, if the layer below computes X in the same loop.

        Args:
            values: The inputs of the layers below, by name.
        """
        if self.below is None:
            return None
        inputs = self.below.inputs({symbol: values[name] for symbol, name in self.below.feeds.items()})
        return self.moves(self.below.expected(inputs, self.below.rounding_of_X(values))[1]["Y"])

    def expected(self, inputs: Symbols, rounding: Array | None) -> tuple[Symbols, Symbols]:
        """Return the outputs in float64, and their allowed difference if X may differ by `rounding`."""
        truth, allowed = self.reference.outputs_and_allowed(inputs)
        if rounding is None:
            return truth, allowed
        rng, X = np.random.default_rng(0), self.spec.data
        far = np.where(np.isfinite(rounding), rounding, 0.0)
        for _ in range(2):
            moved = self.reference.outputs({**inputs, X: inputs[X] + far * rng.choice((-1.0, 1.0), far.shape)})
            allowed = {
                symbol: level + 2 * np.abs(moved[symbol] - truth[symbol]) for symbol, level in allowed.items()
            }
        return truth, allowed


@dataclass(frozen=True)
class NodeFeed:
    """Inputs of a node for one run.

    Attributes:
        feed: Its inputs by symbol.
        values: The inputs of the layers below it, by name.
    """

    feed: Symbols
    values: Mapping[str, Array] = field(default_factory=dict)


def random_inputs(reference: NodeReference[Any], feeds: Mapping[str, str], T: int, N: int) -> dict[str, Array]:
    """Return random inputs of a node of a length and batch size, by the names of the values."""
    at_sizes = replace(reference, spec=replace(reference.spec, seq_length=T, batch_size=N))
    made = at_sizes.usual_feed(feeds, np.random.default_rng(0), T)
    return {name: made[symbol] for symbol, name in feeds.items()}
