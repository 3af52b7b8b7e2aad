"""Run nodes on their own in onnxruntime."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import onnx

from rnn_lowering.compare.nodes.cut import root, with_shapes
from rnn_lowering.compare.nodes.node_pair import NodeFeed, NodePair, random_inputs
from rnn_lowering.compare.references.node_reference import Symbols
from rnn_lowering.compare.runner.process import Runner, SessionError
from rnn_lowering.compare.runner.session import Session
from rnn_lowering.errors import UnsupportedError
from rnn_lowering.model.scopes import (
    NodePlace,
)
from rnn_lowering.types import Array

_LONG = 256
"""More nodes get a session for each combination of sizes: with open sizes, creating one takes half a minute."""


def run_node(
    node: NodePair, feeds: Sequence[NodeFeed], runner: Runner, *, original: bool = False
) -> Iterator[Symbols]:
    """Run a lowered node in onnxruntime, in one session; return its connected outputs by symbol, feed by feed.

    The arrays are mapped files, as `Run.outputs` returns them.

    Args:
        original: Run the node of the original.
        feeds: Its inputs; those of nodes beside it that have no values are random.

    Raises:
        SessionError: onnxruntime cannot run it.
    """
    model = node.whole() if original else node.cut
    if model is None:
        raise SessionError(f"{node.spec.node} has no counterpart in the lowered model")
    named = [_named(node, model, given.feed, given.values) for given in feeds]
    held: list[Mapping[str, Array]] = []
    try:
        for sizes, group in groupby(named, _sizes if len(model.graph.node) > _LONG else lambda _: {}):
            path = runner.folder / "node.onnx"
            proto = with_shapes(model, sizes)
            onnx.save(proto, path)
            groups = [[runner.write_feed(feed)] for feed in group]
            outcome = runner.run(Session(path, root(path), proto=proto), groups)
            held += [run.outputs() for run in outcome.accepted(all_must_run=True)]
    except SessionError as error:
        raise error.about(node.spec.node) from None
    return ({s: outputs[f"{k}:0"] for k, s in enumerate(node.spec.outputs)} for outputs in held)


def _sizes(feed: Symbols) -> dict[str, tuple[int, ...]]:
    return {name: array.shape for name, array in feed.items()}


def _named(
    node: NodePair, model: onnx.ModelProto, feed: Mapping[str, Array], values: Mapping[str, Array]
) -> Symbols:
    """Return all inputs of the model of a node by name, those of the nodes beside it too."""
    taken = {value.name for value in model.graph.input}
    arrays = {name: feed[symbol] for symbol, name in node.feeds.items() if name in taken}
    arrays |= {name: array for name, array in values.items() if name in taken - arrays.keys()}
    if taken - arrays.keys():
        data, axes = node.inputs(feed)[node.spec.data], node.spec.axes(node.spec.data)
        T, N = (data.shape[axes.index(axis)] for axis in ("T", "N"))
        made = [random_inputs(other.reference, other.feeds, T, N) for other in node.beside]
        arrays |= {name: array for given in made for name, array in given.items() if name in taken - arrays.keys()}
    return {n: a.astype(np.float32) if a.dtype.name == "bfloat16" else a for n, a in arrays.items()}


ORIGINAL_NODE, LOWERED_NODE = "original in onnxruntime", "lowered"

_STEPS = 48
"""The sequence length of a node for which it is not fixed."""


@dataclass(frozen=True)
class NodeRun:
    """A node that ran on its own.

    Attributes:
        node: The node and its lowered form.
        expected: Its outputs by the operator specification, computed in float64.
        outputs: The outputs in onnxruntime of the nodes that ran, by `ORIGINAL_NODE` and `LOWERED_NODE`.
        failures: The reason why a node did not run, by the same names.
    """

    node: NodePair
    expected: Symbols
    outputs: dict[str, Symbols]
    failures: dict[str, str]


RunNodes = Callable[[Collection[NodePlace]], Mapping[NodePlace, NodeRun]]
"""Runs lowered nodes on their own; returns the runs by the places of the nodes, without those that cannot be."""


def node_runs(nodes: Iterable[NodePair], runner: Runner) -> Iterator[NodeRun]:
    """Run each node that has a lowered form; leave out those whose inputs would be too large."""
    rng = np.random.default_rng(0)
    for node in nodes:
        if node.cut is not None:
            with suppress(UnsupportedError):
                yield _node_run(node, node.usual_run(rng, _STEPS), runner)


def _node_run(node: NodePair, given: NodeFeed, runner: Runner) -> NodeRun:
    run = NodeRun(node, node.float64(given.feed), {}, {})
    for name in (ORIGINAL_NODE, LOWERED_NODE):
        try:
            (outputs,) = run_node(node, [given], runner, original=name == ORIGINAL_NODE)
        except SessionError as error:
            run.failures[name] = str(error)
            continue
        other = [symbol for symbol, array in run.expected.items() if outputs[symbol].shape != array.shape]
        if other:
            run.failures[name] = f"its {other[0]} has shape {outputs[other[0]].shape}"
        else:
            run.outputs[name] = {symbol: np.array(array) for symbol, array in outputs.items()}
    return run
