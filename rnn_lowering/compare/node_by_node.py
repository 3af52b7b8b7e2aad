"""Compare each lowered node with float64, on its own, and name the first that differs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, groupby, repeat, zip_longest
from pathlib import Path
from threading import Event

import numpy as np
import onnx
import onnx_ir as ir

from rnn_lowering.compare.float64.node_reference import Symbols
from rnn_lowering.compare.judgement import NodeOutput, allowance, blocks_of_rows, compare
from rnn_lowering.compare.node_models import with_shapes
from rnn_lowering.compare.node_pairs import (
    NodePair,
    Values,
    node_pairs,
    pairs_of_prepared,
    with_weights,
)
from rnn_lowering.compare.options import Check, Tolerance
from rnn_lowering.compare.proof.of_nodes import proofs_of
from rnn_lowering.compare.result import (
    EACH_NODE,
    NodeProof,
    OutputCheck,
    RunCheck,
    RunInput,
    Verification,
    over_all,
)
from rnn_lowering.compare.rounding import Judge
from rnn_lowering.compare.runs.runner import Outputs, Runner, SessionError
from rnn_lowering.compare.runs.sessions import Session, session_with
from rnn_lowering.errors import RnnLoweringError, UnsupportedError
from rnn_lowering.files.reading import ModelSource
from rnn_lowering.model.preparation import PreparedModel
from rnn_lowering.model.scopes import REPEATING, NodePlace
from rnn_lowering.nodes.kinds import DYNAMIC_QUANTIZE_LSTM
from rnn_lowering.types import NODES, Array, Progress, counter

_LONG = 256
"""A model of more nodes gets a session for each combination of sizes, one for open sizes takes half a minute, and
is not optimized, which takes longer than to run it."""

_STEPS = 48
"""The sequence length of a run for a report, if the node does not fix it."""

_ATTEMPTS = 4
"""A row of a node that rounds to 8 bits is wrong if it differs from onnxruntime's kernel in this many tries."""

_BESIDE_KERNEL = Tolerance(rtol=1e-5, atol=1e-6)
"""By how much such a row may differ from the kernel."""

ORIGINAL_NODE, LOWERED_NODE = "original in onnxruntime", "lowered"


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
"""Runs the lowered nodes at some places, each on its own; leaves out those that cannot run."""


@dataclass(frozen=True)
class Comparison:
    """Two models in files, what runs them, and how they are compared; `prepared` and `early` as in
    `open_comparison`."""

    original: ModelSource
    lowered: ModelSource
    runner: Runner
    check: Check
    progress: Progress | None
    prepared: PreparedModel | None = None
    early: Session | None = None


@dataclass(frozen=True)
class NodeComparison(Comparison):
    """The comparison of lowered nodes, each on its own.

    Attributes:
        as_written: How onnxruntime runs the lowered model without optimizations; None if it need not.
        given_up: Ends proofs that are being made.
    """

    as_written: Session | None = None
    given_up: Event = field(default_factory=Event)

    @cached_property
    def pairs(self) -> list[NodePair]:
        """Each lowered node, with what the lowered model has in its place."""
        if self.prepared is not None:
            pairs = pairs_of_prepared(self.prepared.model, self.lowered, self.prepared.known)
            return with_weights(pairs, self.prepared.model, self.lowered)
        return node_pairs(self.original.model, self.lowered)

    @cached_property
    def proofs(self) -> tuple[NodeProof, ...]:
        """The proof of each lowered node and of each converted Loop or Scan, or why there is none."""
        repeats = not REPEATING.isdisjoint(self.original.operators)
        try:
            original, lowered = (self.original.model, self.lowered.model) if repeats else (None, None)
            return proofs_of(self.pairs, original, lowered, given_up=self.given_up)
        except RnnLoweringError:  # a node cannot be read
            return ()

    def give_up_proofs(self, making: Future[object]) -> None:
        """End another thread's making of the proofs. They are made anew for the next who asks."""
        self.given_up.set()
        wait([making])
        self.given_up.clear()
        vars(self).pop("proofs", None)

    def runs(self, places: Collection[NodePlace]) -> dict[NodePlace, NodeRun]:
        """Run the nodes at these places on one random input each, for a report. Nodes without a lowered form, and
        those whose inputs would be too large, are left out.

        Raises:
            RnnLoweringError: A node of the original cannot be read.
        """
        rng = np.random.default_rng(0)
        runs = {}
        for node in self.pairs:
            if node.place in places and node.cut is not None:
                with suppress(UnsupportedError):
                    runs[node.place] = _node_run(node, node.usual_run(rng, _STEPS), self.runner)
        return runs

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
            why = f"a lowered node cannot be run: {error}"
            if isinstance(error, SessionError) and error.crashed:
                return Verification("failed", EACH_NODE, reason=why)
            late = isinstance(error, SessionError) and error.over_limit
            return Verification("not verified", EACH_NODE, reason=f"{reason}; {why}", over_limit=late)
        checks = over_all(each_run)
        if not checks:
            return Verification("not verified", reason=reason)
        wrong = next((f"{c.name}: {c.reason}" for c in checks if not c.passed), "")
        status = "failed" if wrong else "verified"
        return Verification(status, EACH_NODE, len(each_run), checks, wrong or reason, each_run, checks)

    def _node_runs(self) -> Iterator[RunCheck]:
        """Run each node on inputs chosen for it; yield the first runs of all nodes, then the second ones."""
        rng = np.random.default_rng(self.check.seed)
        nodes = self.pairs
        ran = counter(self.progress, NODES, len(nodes))
        checks = []
        for node, proof in zip(nodes, chain(self.proofs, repeat(None)), strict=False):
            checks.append(list(self._check_runs(node, node.runs(rng, is_proven=bool(proof)))))
            ran()
        for of_nodes in zip_longest(*checks, fillvalue=RunCheck((), ())):
            inputs = tuple(given for check in of_nodes for given in check.inputs)
            yield RunCheck(inputs, tuple(output for check in of_nodes for output in check.outputs))

    def _check_runs(self, node: NodePair, runs: list[Values]) -> Iterator[RunCheck]:
        rows = node.reference.single_rows([node.fed(values) for values in runs])
        if rows:
            yield from self._until_alike(node, rows)
            return
        results = self._whole(node, runs) or _run_node(node, runs, self.runner)
        for values, got in zip(runs, results, strict=True):
            yield RunCheck(_inputs(node, node.fed(values)), self._check_node(node, values, got))

    def _whole(self, node: NodePair, runs: Sequence[Values]) -> list[Symbols]:
        """Return what a long node computes in the whole model, which is loaded, if it is that; else nothing."""
        model, session = node.cut, self.as_written
        if session is None or model is None or len(model.graph.node) <= _LONG:
            return []
        if not _is_all_of(session.parsed, model):
            return []
        groups = [[self.runner.write_feed(_named(node, model, values))] for values in runs]
        with suppress(SessionError):  # alone it may run
            found = [run.tensors() for run in self.runner.run(session, groups).accepted(all_must_run=True)]
            return [{s: each[value.name or ""] for s, value in node.spec.outputs.items()} for each in found]
        return []

    def _until_alike(self, node: NodePair, rows: list[Symbols]) -> Iterator[RunCheck]:
        """Compare a node that rounds to 8 bits with onnxruntime's kernel, fed one row of the batch at a time.

        A row that differs is tried again with other numbers: processors add in different orders, so a rounding may
        differ by chance. A fault differs every time.
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
        tolerance = _BESIDE_KERNEL if self.check.tolerance == Tolerance() else self.check.tolerance
        runs = [node.values(row) for row in rows]
        both = (_run_node(node, runs, self.runner, original=original) for original in (False, True))
        for feed, got, kernel in zip(rows, *map(list, both), strict=True):
            checks = []
            for symbol in node.spec.outputs:
                far, why = compare(kernel[symbol], got[symbol], tolerance)
                reason = f"{why} compared with onnxruntime's kernel" if why else ""
                checks.append(OutputCheck.of(f"{symbol} of {node.spec.node}", far, reason))
            yield RunCheck(_inputs(node, feed), tuple(checks))

    def _check_node(self, node: NodePair, values: Values, got: Symbols) -> tuple[OutputCheck, ...]:
        """Check the outputs of a lowered node, a few rows of the batch at a time: they may be large."""
        spec, inputs, rounding = node.spec, node.inputs(values), node.rounding_of_X(values)
        original: Symbols | None = None
        blocks = []
        for rows in blocks_of_rows(spec, inputs[spec.data], got):
            of_rows = None if rounding is None else spec.of_rows({spec.data: rounding}, rows)[spec.data]
            outputs = self._outputs(node, spec.of_rows(inputs, rows), spec.of_rows(got, rows), of_rows)
            right = all(output.right for output in outputs)
            if not right and rounding is None and spec.dtype_of(spec.data) == ir.DataType.DOUBLE:
                # Neither is more precise than the other: how far does the last bit of X move the reference?
                last = np.spacing(np.abs(inputs[spec.data]))
                of_last = spec.of_rows({spec.data: last}, rows)[spec.data]
                outputs = self._outputs(node, spec.of_rows(inputs, rows), spec.of_rows(got, rows), of_last)
            elif original is None and not right:
                original = self._in_onnxruntime(node, values)
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

    def _in_onnxruntime(self, node: NodePair, values: Values) -> Symbols:
        """Return the outputs of the original node in onnxruntime, or no outputs if it has no kernel."""
        try:
            (outputs,) = _run_node(node, [values], self.runner, original=True)
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
        with suppress(SessionError, RnnLoweringError):  # nodes in subgraphs are compared alone only
            if where := self._first_wrong(pairs, optimize):
                return replace(failed, reason=f"{failed.reason}; first in {where}")
            if DYNAMIC_QUANTIZE_LSTM in self.original.operators:
                return failed.judged(
                    "each lowered node is as close to float64 as the original, which rounds to 8 bits"
                )
        try:
            session = session_with(self.original, self.runner.folder / "judged.onnx", ())
        except RnnLoweringError:
            return failed
        judge = Judge(self.original, replace(session, optimize=optimize), self.runner)
        within, unused = dict[str, float](), ""
        for check, (feed, (before, after)) in zip(failed.each_run, pairs.items(), strict=True):
            if not check.wrong:
                continue
            judgement = judge.run(check, feed, before, after)
            unused = unused or judgement.unused
            if not judgement.explained:
                return failed.with_advice(f"float64 was not used: {unused}") if unused else failed
            within |= {name: max(far, within.get(name, 0.0)) for name, far in judgement.within.items()}
        return failed.judged(_why_judged(within, unused))

    def _first_wrong(self, feeds: Iterable[str], optimize: bool) -> str:
        """Return the first lowered node that is wrong on the inputs of the original, and where; "" if none is."""
        session = session_with(self.original, self.runner.folder / "nodes.onnx", _inputs_and_outputs(self.pairs))
        outcome = self.runner.run(replace(session, optimize=optimize), [[feed] for feed in feeds])
        for run in outcome.accepted(all_must_run=True):
            values = {**run.tensors(), **self.runner.feed(run.feed)}
            for node in self.pairs:
                if where := self._against_original(node, values):
                    return f"{node.spec.node}, {where}"
        return ""

    def _against_original(self, node: NodePair, values: Values) -> str:
        """Run a lowered node on the original's inputs; return where it is wrong, or "".

        It is wrong if it is further from float64 than rounding and the original's kernel explain.
        """
        named = {symbol: value.name or "" for symbol, value in node.spec.outputs.items()}
        if not values.keys() >= {*node.feeds.values(), *named.values()}:
            raise SessionError("the node is in a subgraph")
        original = {symbol: values[name] for symbol, name in named.items()}
        try:
            (got,) = _run_node(node, [values], self.runner)
        except SessionError as error:
            if not error.crashed:
                raise
            return str(error)
        for output in self._outputs(node, node.inputs(values), got, node.rounding_of_X(values)):
            if not output.right and not output.no_further(original[output.symbol]):
                return f"output {output.symbol}: {output.reason}"
        return ""


def _why_judged(within: Mapping[str, float], unused: str) -> str:
    """Return how outputs that differ were judged.

    Args:
        within: How far apart they may be, by name.
        unused: Why float64 was not used; "" if it was.
    """
    why = "the outputs are as close to float64 as the original's"
    if unused:
        why = f"float64 was not used for the whole model ({unused}), each lowered node is as close as the original"
    bounds = ", ".join(f"'{name}' within {far:.2g}" for name, far in within.items())
    return f"{why}; a rounding of the inputs changes outputs of the original: compared {bounds}"


def _node_run(node: NodePair, values: Values, runner: Runner) -> NodeRun:
    run = NodeRun(node, node.float64(values), {}, {})
    for name in (ORIGINAL_NODE, LOWERED_NODE):
        try:
            (outputs,) = _run_node(node, [values], runner, original=name == ORIGINAL_NODE)
        except SessionError as error:
            run.failures[name] = str(error)
            continue
        other = [symbol for symbol, array in run.expected.items() if outputs[symbol].shape != array.shape]
        if other:
            run.failures[name] = f"its {other[0]} has shape {outputs[other[0]].shape}"
        else:
            run.outputs[name] = {symbol: np.array(array) for symbol, array in outputs.items()}
    return run


def _run_node(
    node: NodePair, runs: Sequence[Values], runner: Runner, *, original: bool = False
) -> Iterator[Symbols]:
    """Run a lowered node in onnxruntime; return its connected outputs by symbol, run by run.

    The arrays are mapped files, as `Run.outputs` returns them.

    Args:
        runs: Its inputs. Inputs of nodes that share its loop are random if they have no values.
        original: Run the node of the original instead.

    Raises:
        SessionError: onnxruntime cannot run it.
    """
    model = node.whole() if original else node.cut
    if model is None:
        raise SessionError(f"{node.spec.node} has no counterpart in the lowered model")
    named = [_named(node, model, values) for values in runs]
    returned: list[Mapping[str, Array]] = []
    try:
        long = len(model.graph.node) > _LONG
        for sizes, group in groupby(named, lambda feed: {n: a.shape for n, a in feed.items()} if long else {}):
            path = runner.folder / "node.onnx"
            proto = with_shapes(model, sizes)
            onnx.save(proto, path)
            groups = [[runner.write_feed(feed)] for feed in group]
            session = Session(path, Path(path.absolute().anchor), optimize=not long, proto=proto)
            outcome = runner.run(session, groups)
            returned += [run.outputs() for run in outcome.accepted(all_must_run=True)]
    except SessionError as error:
        if original:  # its process may die
            raise SessionError(f"{node.spec.node}: {error}", over_limit=error.over_limit) from None
        raise error.about(node.spec.node) from None
    return ({s: outputs[f"{k}:0"] for k, s in enumerate(node.spec.outputs)} for outputs in returned)


def _is_all_of(whole: onnx.ModelProto, part: onnx.ModelProto) -> bool:
    """Return whether a part of a model has all its nodes, inputs and outputs."""
    one, other = (
        ({v.name: v.type.tensor_type.elem_type for v in graph.input}, {value.name for value in graph.output})
        for graph in (whole.graph, part.graph)
    )
    return one == other and [n.output for n in whole.graph.node] == [n.output for n in part.graph.node]


def _named(node: NodePair, model: onnx.ModelProto, values: Values) -> Symbols:
    """Return all inputs of the model of a node by name, also those of the nodes beside it."""
    names, arrays = {value.name for value in model.graph.input}, dict(values)
    if names - arrays.keys():
        data, axes = node.inputs(values)[node.spec.data], node.spec.axes(node.spec.data)
        T, N = (data.shape[axes.index(axis)] for axis in ("T", "N"))
        for other in node.beside:
            arrays = other.random_values(T, N) | arrays
    inputs = {name: array for name, array in arrays.items() if name in names}
    return {n: a.astype(np.float32) if a.dtype.name == "bfloat16" else a for n, a in inputs.items()}


def _inputs(node: NodePair, feed: Symbols) -> tuple[RunInput, ...]:
    names = {symbol: f"{symbol} of {node.spec.node}" for symbol in feed}
    return tuple(RunInput.of(names[s], array, are_lengths=s == "sequence_lens") for s, array in feed.items())


def _check(output: NodeOutput, original: Mapping[str, Array]) -> OutputCheck:
    """Return whether an output is right, or at least as close to float64 as the onnxruntime kernel."""
    passed = output.right or (output.symbol in original and output.no_further(original[output.symbol]))
    return OutputCheck.of(f"{output.symbol} of {output.spec.node}", output.largest, "" if passed else output.reason)


def _inputs_and_outputs(nodes: list[NodePair]) -> Iterator[str]:
    """Yield the names of the inputs and outputs of the nodes, and of the layers that share their loops."""
    for node in (layer for upper in nodes for layer in (upper, *upper.layers_below())):
        yield from node.feeds.values()
        yield from (value.name or "" for value in node.spec.outputs.values())
