"""Compare lowered nodes with float64, one by one, and find the first that differs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import zip_longest
from typing import Any, cast

import numpy as np

from rnn_lowering.compare.node_models import (
    NodeFeed,
    NodePair,
    Symbols,
    node_pairs,
    pairs_of_prepared,
    run_node,
)
from rnn_lowering.compare.process import Outputs, Runner, SessionError
from rnn_lowering.compare.references.node_reference import NodeReference
from rnn_lowering.compare.result import NODES, OutputCheck, RunCheck, RunInput, Verification, over_all
from rnn_lowering.compare.session import session_with
from rnn_lowering.compare.tolerance import allowance, compare, distance
from rnn_lowering.errors import RnnLoweringError, UnsupportedError
from rnn_lowering.files.reading import ModelSource
from rnn_lowering.files.tensor_file import TensorFile
from rnn_lowering.model.plan import PreparedModel
from rnn_lowering.model.scopes import NodePlace
from rnn_lowering.options import Check, Tolerance
from rnn_lowering.spec.node_spec import AxisName, NodeSpec
from rnn_lowering.types import NODES as RUNNING_NODES
from rnn_lowering.types import Array, Progress, counter

_ATTEMPTS = 4
"""How often a row may differ from a kernel that rounds before it counts as wrong."""


@dataclass(frozen=True)
class Comparison:
    """The files of two models, what runs them, and how they are compared."""

    original: ModelSource
    lowered: ModelSource
    runner: Runner
    check: Check
    progress: Progress | None
    prepared: PreparedModel | None = None


class NodeComparison(Comparison):
    """Compares the lowered nodes of two models one by one."""

    @cached_property
    def pairs(self) -> list[NodePair]:
        """The nodes, each as a model of its own."""
        tensors = TensorFile(self.runner.folder)
        if self.prepared is not None:
            return list(pairs_of_prepared(self.prepared.model, self.lowered.model, tensors, self.prepared.inferred))
        return list(node_pairs(self.original.model, self.lowered.model, tensors))

    def runs(self, places: Collection[NodePlace]) -> dict[NodePlace, NodeRun]:
        """Run some of the nodes on one random input each, for a report.

        Raises:
            RnnLoweringError: A node of the original cannot be read.
        """
        wanted = (node for node in self.pairs if node.place in places)
        return {run.node.place: run for run in node_runs(wanted, self.runner)}

    def result(self, reason: str) -> Verification:
        """Compare each lowered node with its operator in float64. If a node differs too much from float64,
        compare it with the original node in onnxruntime: a recurrence may amplify rounding.

        Args:
            reason: Why the comparison uses single nodes instead of whole models.
        """
        if not self.check.runs:
            return Verification("not verified", reason=reason)
        try:
            each_run = tuple(self._node_runs())
        except (SessionError, RnnLoweringError) as error:
            return Verification("not verified", NODES, reason=f"{reason}; a lowered node cannot be run: {error}")
        checks = over_all(each_run)
        if not checks:
            return Verification("not verified", reason=reason)
        wrong = [f"{c.name}: {c.reason}" for c in checks if not c.passed]
        if wrong:
            return Verification("failed", NODES, len(each_run), checks, wrong[0], each_run, checks)
        return Verification("verified", NODES, len(each_run), checks, reason, each_run, checks)

    def _node_runs(self) -> Iterator[RunCheck]:
        """Run each node on inputs chosen for it; yield the first run of all, then the second."""
        rng = np.random.default_rng(self.check.seed)
        nodes = self.pairs
        ran = counter(self.progress, RUNNING_NODES, len(nodes))
        checks = []
        for node in nodes:
            checks.append(list(self._check_runs(node, node.runs(rng))))
            ran()
        for run in zip_longest(*checks):
            there = [check for check in run if check is not None]
            inputs = tuple(given for check in there for given in check.inputs)
            yield RunCheck(inputs, tuple(output for check in there for output in check.outputs))

    def _check_runs(self, node: NodePair, feeds: list[NodeFeed]) -> Iterator[RunCheck]:
        rows = node.reference.single_rows([given.feed for given in feeds])
        if rows:
            yield from self._until_alike(node, rows)
            return
        results = run_node(node, feeds, self.runner)
        for given, got in zip(feeds, results, strict=True):
            yield RunCheck(_inputs(node, given.feed), self._check_node(node, given, got))

    def _until_alike(self, node: NodePair, rows: list[Symbols]) -> Iterator[RunCheck]:
        """Compare a node that rounds to 8 bits with onnxruntime's kernel, fed one row of the batch at a time.

        A row that differs is tried again with other numbers: on processors that add in another order, a rounding
        may tip over now and then, and what is wrong always shows.
        """
        left, checks = dict(enumerate(rows)), dict[int, RunCheck]()
        data = node.spec.data
        for _ in range(_ATTEMPTS):
            checks |= zip(left, self._beside_kernel(node, list(left.values())), strict=True)
            left = {n: row | {data: row[data] * np.float32(0.97)} for n, row in left.items() if checks[n].wrong}
            if not left:
                break
        yield from checks.values()

    def _beside_kernel(self, node: NodePair, rows: list[Symbols]) -> Iterator[RunCheck]:
        tolerance = BESIDE_KERNEL if self.check.tolerance == Tolerance() else self.check.tolerance
        feeds = [NodeFeed(row) for row in rows]
        both = (run_node(node, feeds, self.runner, original=original) for original in (False, True))
        for feed, got, kernel in zip(rows, *map(list, both), strict=True):
            compared = {symbol: compare(kernel[symbol], got[symbol], tolerance) for symbol in node.spec.outputs}
            checks = tuple(
                OutputCheck(
                    f"{s} of {node.spec.node}", far, not why, f"{why} beside onnxruntime's kernel" if why else ""
                )
                for s, (far, why) in compared.items()
            )
            yield RunCheck(_inputs(node, feed), checks)

    def _check_node(self, node: NodePair, given: NodeFeed, got: Symbols) -> tuple[OutputCheck, ...]:
        """Check the outputs of a lowered node, which may be large, a few rows of the batch at a time."""
        spec, inputs, rounding = node.spec, node.inputs(given.feed), node.rounding_of_X(given.values)
        original: Symbols | None = None
        blocks = []
        for rows in blocks_of_rows(spec, inputs[spec.data], got):
            of_rows = None if rounding is None else spec.of_rows({spec.data: rounding}, rows)[spec.data]
            outputs = self._outputs(node, spec.of_rows(inputs, rows), spec.of_rows(got, rows), of_rows)
            if original is None and not all(output.right for output in outputs):
                original = self._in_onnxruntime(node, given.feed)
            theirs = spec.of_rows(original or {}, rows)
            blocks.append(RunCheck((), tuple(_check(output, theirs) for output in outputs)))
        return over_all(blocks)

    def _outputs(self, node: NodePair, inputs: Symbols, got: Symbols, rounding: Array | None) -> list[NodeOutput]:
        """Compare the outputs of a lowered node with float64."""
        spec, tolerance = node.spec, self.check.tolerance
        truth, allowed = node.expected(inputs, rounding)
        if tolerance != Tolerance():
            types = {symbol: spec.dtype_of(symbol).numpy() for symbol in truth}
            allowed = {s: allowance(array.astype(types[s]), tolerance) for s, array in truth.items()}
        return [NodeOutput(node.reference, s, got[s], truth[s], allowed[s]) for s in spec.outputs]

    def _in_onnxruntime(self, node: NodePair, feed: Symbols) -> Symbols:
        """Return the outputs of the original node in onnxruntime, or no outputs if it has no kernel."""
        try:
            (outputs,) = run_node(node, [NodeFeed(feed)], self.runner, original=True)
        except SessionError:
            return {}
        return outputs

    def find_wrong_node(
        self, failed: Verification, pairs: Mapping[str, tuple[Outputs, Outputs]], optimize: bool
    ) -> Verification:
        """Name the first lowered node that is wrong on the inputs of the original node. If none is wrong, the
        model passes if its outputs are about as close to float64 as the outputs of the original.

        Args:
            failed: The comparison of the outputs.
            pairs: Outputs of both models, by the inputs that gave them.
            optimize: Whether onnxruntime optimizes the original.
        """
        feeds = list(pairs)
        try:
            nodes = self.pairs
            session = replace(
                session_with(
                    self.original, self.runner.folder / "nodes.onnx", lambda _: _inputs_and_outputs(nodes)
                ),
                optimize=optimize,
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
                    where, apart = self._against_original(node, values)
                    if where:
                        return replace(failed, reason=f"{failed.reason}; first in {node.spec.node}, {where}")
                    differs = differs or apart
        except (SessionError, RnnLoweringError):
            return failed
        closer = self._no_further(failed, pairs)
        if closer is None:  # no lowered node explains the difference where none differs
            return failed.judged("no lowered node is further from float64") if differs else failed
        return failed.judged("the outputs are as close to float64 as the original's") if closer else failed

    def _no_further(self, failed: Verification, pairs: Mapping[str, tuple[Outputs, Outputs]]) -> bool | None:
        """Whether the outputs that differ are about as close to float64 as the original's; None: not known."""
        verdicts: list[bool | None] = []
        for run, (feed, (before, after)) in zip(failed.each_run, pairs.items(), strict=True):
            wrong = [n for n, check in enumerate(run.outputs) if not check.passed]
            keys = {n: f"{n}:0" for n in wrong}
            if not all(key in before and key in after for key in keys.values()):
                return False
            truth = self.runner.float64(self.original.path, feed) if wrong else {}
            if truth is None:
                verdicts.append(None)
            else:
                verdicts += [_as_close(truth.get(str(n)), before[key], after[key]) for n, key in keys.items()]
            if False in verdicts:  # each of them takes a process
                return False
        return None if None in verdicts else True

    def _against_original(self, node: NodePair, values: Mapping[str, Array | None]) -> tuple[str, bool]:
        """Run a lowered node on the original's inputs. Return where it is wrong, and whether it differs from the
        original. Wrong is further from float64 than rounding and the original's kernel explain."""
        feed = {symbol: values.get(name) for symbol, name in node.feeds.items()}
        outputs = {symbol: values.get(value.name or "") for symbol, value in node.spec.outputs.items()}
        known = {symbol: array for symbol, array in feed.items() if array is not None}
        original = {symbol: array for symbol, array in outputs.items() if array is not None}
        if len(known) < len(feed) or len(original) < len(outputs):
            raise SessionError("the node is in a subgraph")
        there = {name: array for name, array in values.items() if array is not None}
        (got,) = run_node(node, [NodeFeed(known, there)], self.runner)
        for output in self._outputs(node, node.inputs(known), got, node.rounding_of_X(there)):
            if not output.right and not output.no_further(original[output.symbol]):
                return f"output {output.symbol}: {output.reason}", True
        return "", any(compare(original[symbol], got[symbol], self.check.tolerance)[1] for symbol in original)


def _inputs(node: NodePair, feed: Symbols) -> tuple[RunInput, ...]:
    names = {symbol: f"{symbol} of {node.spec.node}" for symbol in feed}
    return tuple(RunInput.of(names[s], array, are_lengths=s == "sequence_lens") for s, array in feed.items())


def _check(output: NodeOutput, original: Mapping[str, Array]) -> OutputCheck:
    """Return whether an output is right, or at least as close to float64 as the onnxruntime kernel."""
    passed = output.right or (output.symbol in original and output.no_further(original[output.symbol]))
    name = f"{output.symbol} of {output.spec.node}"
    return OutputCheck(name, output.largest, passed, "" if passed else output.reason)


def _inputs_and_outputs(nodes: list[NodePair]) -> Iterator[str]:
    """Yield the names of the inputs and outputs of the nodes."""
    for node in nodes:
        yield from node.feeds.values()
        yield from (value.name or "" for value in node.spec.outputs.values())


@dataclass(frozen=True, eq=False)
class NodeOutput:
    """An output of a lowered node, and what it should be.

    Attributes:
        reference: The node in float64.
        symbol: Its name in the operator specification.
        got: The output of the lowered node.
        expected: The output by the operator specification, in float64.
        allowed: The allowed difference, of the same shape; infinite for entries that are not compared.
    """

    reference: NodeReference[Any]
    symbol: str
    got: Array
    expected: Array
    allowed: Array

    @property
    def spec(self) -> NodeSpec:
        """What the node specifies."""
        return cast(NodeSpec, self.reference.spec)

    @property
    def comparable(self) -> bool:
        return bool(self.got.shape == self.expected.shape)

    @property
    def largest(self) -> float:
        """The largest absolute difference; infinite where the shapes differ."""
        return float(self._far(self.got).max(initial=0.0)) if self.comparable else np.inf

    @property
    def right(self) -> bool:
        return self.comparable and not bool(self._wrong().any())

    def no_further(self, original: Array) -> bool:
        """Whether no row is further from float64 than what the original node computed, to within a rounding."""
        if not self.comparable or original.shape != self.expected.shape or original.dtype != self.got.dtype:
            return False
        axes = self.reference.axes_of_a_row(self.symbol)
        ours, theirs = (self._far(x).max(axis=axes, initial=0.0) for x in (self.got, original))
        return bool((ours <= theirs + np.finfo(original.dtype).eps).all())

    @property
    def reason(self) -> str:
        """The reason why the output is wrong."""
        if not self.comparable:
            return f"shape {list(self.expected.shape)} became {list(self.got.shape)}"
        wrong = self._wrong()
        wide = f"{wrong.sum()} of {wrong.size} out of tolerance{self._first(wrong)}"
        return f"largest difference {self.largest:.2g}, {wide}"

    def _far(self, array: Array) -> Array:
        return np.where(np.isfinite(self.allowed), distance(self.expected, array), 0.0)

    def _wrong(self) -> Array:
        wrong: Array = self._far(self.got) > self.allowed
        return wrong

    def _first(self, wrong: Array) -> str:
        axes = self.spec.axes(self.symbol)
        if "T" not in axes:
            return ""
        time = axes.index("T")
        order = np.flatnonzero(wrong.any(axis=tuple(axis for axis in range(wrong.ndim) if axis != time)))
        return f", from time step {order[-1 if self.spec.direction == 'reverse' else 0]}"


_BLOCK = 1 << 23
"""Numbers of the outputs of the rows that are judged together."""


def blocks_of_rows(spec: NodeSpec, data: Array, outputs: Mapping[str, Array]) -> Iterator[slice]:
    """Yield slices of the batch for which the outputs are small; all of it where an output does not have these
    rows."""
    rows = data.shape[spec.axes(spec.data).index("N")]
    largest = max((array.size for array in outputs.values()), default=0)
    at_once = max(1, _BLOCK * rows // max(1, largest))
    if at_once >= rows or not all(_has_rows(array, spec.axes(symbol), rows) for symbol, array in outputs.items()):
        yield slice(None)
        return
    for start in range(0, rows, at_once):
        yield slice(start, start + at_once)


def _has_rows(array: Array, axes: tuple[AxisName, ...], rows: int) -> bool:
    return array.ndim == len(axes) and array.shape[axes.index("N")] == rows


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
    for name in (ORIGINAL, LOWERED):
        try:
            (outputs,) = run_node(node, [given], runner, original=name == ORIGINAL)
        except SessionError as error:
            run.failures[name] = str(error)
            continue
        other = [symbol for symbol, array in run.expected.items() if outputs[symbol].shape != array.shape]
        if other:
            run.failures[name] = f"its {other[0]} has shape {outputs[other[0]].shape}"
        else:
            run.outputs[name] = {symbol: np.array(array) for symbol, array in outputs.items()}
    return run


BESIDE_KERNEL = Tolerance(rtol=1e-5, atol=1e-6)
"""By how much one row may differ from onnxruntime's kernel."""


_TIMES = 4
"""How many times as far from float64 as the original another rounding may be."""


def _as_close(truth: Array | None, before: Array, after: Array) -> bool:
    """Whether an output is about as close to float64 as the original's."""
    if truth is None or before.dtype.kind != "f" or not truth.shape == before.shape == after.shape:
        return False
    theirs, ours = (float(distance(truth, x).max(initial=0.0)) for x in (before, after))
    return bool(np.isfinite(ours)) and ours <= _TIMES * theirs
