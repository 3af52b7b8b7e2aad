"""Lowered nodes one by one: as close to the operator page in float64 as it takes, and the first that is not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from rnn_lowering.errors import RnnLoweringError
from rnn_lowering.files.reading import load_model
from rnn_lowering.options import Tolerance
from rnn_lowering.progress import NODES as RUNNING_NODES
from rnn_lowering.progress import Progress, counter
from rnn_lowering.types import Array
from rnn_lowering.verification.extra_outputs import watching
from rnn_lowering.verification.isolate import IsolatedNode, isolated_nodes, run_node
from rnn_lowering.verification.result import NODES, OutputCheck, RunCheck, RunInput, Verification, over_all
from rnn_lowering.verification.runner import Outputs, Runner, SessionError
from rnn_lowering.verification.tolerance import compare, distance, excess


@dataclass(frozen=True)
class Comparison:
    """Of two models: their files, what runs them, what counts as equal, and the seed of the inputs."""

    original: Path
    lowered: Path
    runner: Runner
    tolerance: Tolerance
    seed: int
    progress: Progress | None


class Judge(Comparison):
    """What judges lowered nodes."""

    def nodes(self, runs: int, reason: str) -> Verification:
        """Compare each lowered node with the operator page in float64; where float64 is too far, with the node as
        it was: a recurrence may amplify any rounding.

        Args:
            runs: How many random inputs each node gets.
            reason: Why nodes are compared, which is said where they cannot be.
        """
        try:
            each_run = tuple(self._node_runs(runs))
        except (SessionError, RnnLoweringError) as error:
            return Verification("not verified", NODES, reason=f"{reason}; a lowered node cannot be run: {error}")
        checks = over_all(each_run)
        if not checks:
            return Verification("not verified", reason=reason)
        wrong = [f"{c.name}: {c.reason}" for c in checks if not c.passed]
        status = "failed" if wrong else "verified"
        return Verification(status, NODES, runs, checks, wrong[0] if wrong else "", each_run, checks)

    def _node_runs(self, runs: int) -> Iterator[RunCheck]:
        rng = np.random.default_rng(self.seed)
        nodes = list(self._isolated())
        feeds = [[node.random_feed(rng) for _ in range(runs)] for node in nodes]
        ran = counter(self.progress, RUNNING_NODES, runs * len(nodes))
        results = [run_node(node, given, self.runner, ran=ran) for node, given in zip(nodes, feeds, strict=True)]
        for run in range(runs):
            inputs: list[RunInput] = []
            outputs: list[OutputCheck] = []
            for node, given, got in zip(nodes, feeds, results, strict=True):
                for symbol, array in given[run].items():
                    name = f"{symbol} of {node.spec.node}"
                    inputs.append(RunInput.of(name, array, are_lengths=symbol == "sequence_lens"))
                outputs += self._check_node(node, given[run], got[run])
            yield RunCheck(tuple(inputs), tuple(outputs))

    def _check_node(self, node: IsolatedNode, feed: Outputs, got: Outputs) -> Iterator[OutputCheck]:
        dtype = node.spec.dtype.numpy()
        want = node.expected(feed)
        for symbol, array in got.items():
            largest, reason = compare(want[symbol].astype(dtype), array.astype(dtype), self.tolerance)
            if reason and array.shape == want[symbol].shape and self._no_worse(node, feed, symbol, want, array):
                reason = ""
            if reason:
                reason += self._first_step(node, symbol, want[symbol].astype(dtype), array.astype(dtype))
            yield OutputCheck(f"{symbol} of {node.spec.node}", largest, not reason, reason)

    def _no_worse(self, node: IsolatedNode, feed: Outputs, symbol: str, want: Outputs, got: Array) -> bool:
        try:
            (native,) = run_node(node, [dict(feed)], self.runner, native=True)
        except SessionError:
            return False
        return _no_further(got, native[symbol], want[symbol])

    def _isolated(self) -> Iterator[IsolatedNode]:
        trusted = (load_model(path, trust_external_data=True) for path in (self.original, self.lowered))
        return isolated_nodes(*trusted)

    def examine(self, failed: Verification, feeds: list[str], optimise: bool) -> Verification:
        """Find the first lowered node that differs from the original's, given the same inputs, and say so. Where no
        node that differs is further from float64, the model passes after all.

        Args:
            failed: The comparison of the outputs.
            feeds: Files of the inputs that were compared.
            optimise: Whether onnxruntime optimises the original.
        """
        try:
            nodes = list(self._isolated())
            session = replace(
                watching(self.original, self.runner.folder, lambda _: _around(nodes)), optimise=optimise
            )
            outcome = self.runner.run(session, [[feed] for feed in feeds])
            differs = False
            for feed, run in zip(feeds, outcome.runs, strict=True):
                if run.error:
                    return failed
                outputs = run.outputs()
                values = {name: outputs.get(f"{n}:0") for n, name in enumerate(outcome.names)}
                values |= self.runner.feed(feed)
                for node in nodes:
                    where, closer = self._against_original(node, values)
                    if where and not closer:
                        return replace(failed, reason=f"{failed.reason}; first in {node.spec.node}{where}")
                    differs = differs or bool(where)
        except (SessionError, RnnLoweringError):
            return failed
        if not differs:
            return failed  # no lowered node explains the difference
        return failed.judged("no lowered node is further from float64")

    def _against_original(self, node: IsolatedNode, values: Mapping[str, Array | None]) -> tuple[str, bool]:
        """Return where a lowered node differs from the original's, and whether it is as close to float64."""
        feed = {symbol: values.get(name) for symbol, name in node.feeds.items()}
        if any(array is None for array in feed.values()):
            raise SessionError("the node stands in a subgraph")
        known = {symbol: array for symbol, array in feed.items() if array is not None}
        (got,), want = run_node(node, [known], self.runner), node.expected(known)
        where, closer = "", True
        for symbol, value in node.spec.outputs.items():
            native = values.get(value.name or "")
            if native is None:
                raise SessionError("the node stands in a subgraph")
            if compare(native, got[symbol], self.tolerance)[1] and not where:
                where = f", output {symbol}{self._first_step(node, symbol, native, got[symbol])}"
            closer = closer and _no_further(got[symbol], native, want[symbol])
        return where, closer

    def _first_step(self, node: IsolatedNode, symbol: str, native: Array, got: Array) -> str:
        if symbol != "Y" or native.shape != got.shape:
            return ""
        wrong = excess(native, got, self.tolerance) > 0
        time = 1 if node.spec.layout else 0
        steps = wrong.any(axis=tuple(axis for axis in range(wrong.ndim) if axis != time))
        order = np.flatnonzero(steps)
        first = int(order[-1] if node.spec.directions == ("reverse",) else order[0])
        return f", from time step {first}"


def _no_further(ours: Array, theirs: Array, truth: Array) -> bool:
    """Whether one is as close to float64 as the other, to within a rounding."""
    if ours.shape != truth.shape or ours.dtype != theirs.dtype:
        return False
    a, b = (float(distance(truth, x).max(initial=0.0)) for x in (ours, theirs))
    return a <= b + float(np.finfo(theirs.dtype).eps)


def _around(nodes: list[IsolatedNode]) -> Iterator[str]:
    """What enters and leaves the lowered nodes."""
    for node in nodes:
        yield from node.feeds.values()
        yield from (value.name or "" for value in node.spec.outputs.values())
