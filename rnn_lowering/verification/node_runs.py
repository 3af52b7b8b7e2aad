"""Lowered nodes and their originals on one random input each, for the pictures of a report."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from rnn_lowering.errors import UnsupportedError
from rnn_lowering.model.scopes import NodePlace
from rnn_lowering.verification.isolate import IsolatedNode, Symbols, run_node
from rnn_lowering.verification.process import SessionError
from rnn_lowering.verification.runner import Runner

ORIGINAL, LOWERED = "original in onnxruntime", "lowered"

_STEPS = 48
"""The sequence length of a node for which it is not fixed."""


@dataclass(frozen=True)
class NodeRun:
    """A node that ran on its own.

    Attributes:
        node: The node and its lowered form.
        expected: Its outputs by the operator specification, computed in float64.
        outputs: The outputs of the `ORIGINAL` and of the `LOWERED` node in onnxruntime, if they ran.
        failures: Why one did not run, by the same names.
    """

    node: IsolatedNode
    expected: Symbols
    outputs: dict[str, Symbols]
    failures: dict[str, str]


RunNodes = Callable[[Collection[NodePlace]], Mapping[NodePlace, NodeRun]]
"""Runs lowered nodes on their own; returns the runs by the places of the nodes, without those that cannot be."""


def node_runs(nodes: Iterable[IsolatedNode], runner: Runner) -> Iterator[NodeRun]:
    """Run each node that has a lowered form; leave out those whose inputs would be too large."""
    rng = np.random.default_rng(0)
    for node in nodes:
        if node.cut is not None:
            with suppress(UnsupportedError):
                yield _node_run(node, node.random_feed(rng, seq_length=_STEPS), runner)


def _node_run(node: IsolatedNode, feed: Symbols, runner: Runner) -> NodeRun:
    run = NodeRun(node, node.expected(feed), {}, {})
    for name in (ORIGINAL, LOWERED):
        try:
            (outputs,) = run_node(node, [feed], runner, original=name == ORIGINAL)
        except SessionError as error:
            run.failures[name] = str(error)
            continue
        other = [symbol for symbol, array in run.expected.items() if outputs[symbol].shape != array.shape]
        if other:
            run.failures[name] = f"its {other[0]} has shape {outputs[other[0]].shape}"
        else:
            run.outputs[name] = {symbol: np.array(array) for symbol, array in outputs.items()}
    return run
