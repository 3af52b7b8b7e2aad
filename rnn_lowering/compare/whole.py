"""Compare two models: both run in onnxruntime, in a separate process, on random inputs.

If onnxruntime cannot run the original, each lowered node is cut out and compared with float64. If outputs differ,
each lowered node gets the inputs of the original one, and the first wrong node is named; if all are as close to
float64 as onnxruntime's own kernels, the model passes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property

import onnx

from rnn_lowering.compare.coverage import constant_outputs, runs_for, undetermined_outputs, zero_weights
from rnn_lowering.compare.feeds import candidate_feeds, length_inputs
from rnn_lowering.compare.nodes.one_by_one import Comparison, NodeComparison
from rnn_lowering.compare.result import (
    COMPARE_ELSEWHERE,
    OPTIMIZATIONS,
    WHOLE,
    OutputCheck,
    RunCheck,
    RunInput,
    Verification,
    over_all,
)
from rnn_lowering.compare.runner.process import Alternatives, Outputs, SessionError
from rnn_lowering.compare.runner.session import (
    Session,
    echoing_nodes,
    operator_counts,
    recurrent_inputs,
    repairs_note,
    session_of,
    session_with,
)
from rnn_lowering.compare.tolerance import compare
from rnn_lowering.errors import RnnLoweringError, UnsupportedError
from rnn_lowering.files.reading import from_proto
from rnn_lowering.model.fixed_inputs import has_record, recorded
from rnn_lowering.options import Tolerance
from rnn_lowering.spec.dynamic_quantize_lstm import OPERATOR
from rnn_lowering.types import LOWERED, ORIGINAL, Array, counter


class _NotAcceptedError(SessionError):
    """onnxruntime loads the model but accepts none of the inputs."""


class ModelComparison(Comparison):
    """A comparison of whole models."""

    @cached_property
    def nodes_one_by_one(self) -> NodeComparison:
        """The comparison of single nodes of the same models."""
        return NodeComparison(self.original, self.lowered, self.runner, self.check, self.progress, self.prepared)

    @cached_property
    def misread(self) -> dict[str, str]:
        """The nodes of the original that onnxruntime misreads (see `echoing_nodes`)."""
        return echoing_nodes(self.original.proto)

    def result(self) -> Verification:
        """Compare the models; raise the errors of `verify`."""
        check = self.check
        odd = self._odd_inputs()
        if odd:
            return self._nodes_only(f"cannot generate test data for non-numeric inputs: {odd}")
        feeds = [{}] * runs_for(self.original.proto.graph, check.runs) if check.feeds is None else check.feeds
        try:
            groups = self._write_feeds(feeds, check.shapes)
        except UnsupportedError as error:  # they would be too large
            return self._nodes_only(str(error))
        return self._compare_whole(groups, all_must_run=check.feeds is not None)

    def _nodes_only(self, reason: str) -> Verification:
        """Compare only the nodes. `reason` says why the whole models are not compared."""
        found = self.nodes_one_by_one.result(reason)
        return found if found.status != "not verified" else found.with_advice(COMPARE_ELSEWHERE)

    def _odd_inputs(self) -> list[str]:
        """Return the names of the original's inputs that are not numeric or boolean tensors."""
        graph = self.original.proto.graph
        given = {tensor.name for tensor in graph.initializer}
        text, none = onnx.TensorProto.STRING, onnx.TensorProto.UNDEFINED
        return [v.name for v in graph.input if v.name not in given and v.type.tensor_type.elem_type in (text, none)]

    def _write_feeds(
        self, given: Sequence[Mapping[str, Array]], shapes: Mapping[str, Sequence[int]] | None
    ) -> list[Alternatives]:
        """Write the inputs of all runs; return alternatives for each run, of which the first accepted one
        counts."""
        original, lowered = self.original.proto, self.lowered.proto
        names = [value.name for value in original.graph.input]
        constant: dict[str, Array] = {}
        with suppress(RnnLoweringError):  # what is no model is refused by onnxruntime
            constant = recorded(from_proto(original), from_proto(lowered)) if has_record(lowered) else {}
        groups: list[Alternatives] = []
        for run, feed in enumerate({**feed, **constant} for feed in given):
            alternatives = (
                iter([dict(feed)])
                if feed and feed.keys() >= set(names) - {t.name for t in original.graph.initializer}
                else candidate_feeds(original, run, self.check.seed, lowered, feed, shapes)
            )
            groups.append(self.runner.write_feeds(alternatives))
        return groups

    def _compare_whole(self, groups: list[Alternatives], *, all_must_run: bool) -> Verification:
        """Compare the outputs of the two models, then their nodes."""
        try:
            session, names, expected = self._run_original(groups, all_must_run)
        except SessionError as error:
            return self._without_original(error, groups, all_must_run=all_must_run)
        try:
            new_names, found, unoptimized = self._run_lowered(list(expected), session.optimize)
        except SessionError as error:
            if error.over_limit:
                return Verification("not verified", reason=f"the lowered model {error}")
            return Verification("failed", reason=f"onnxruntime cannot run the lowered model: {error}")
        if names != new_names:
            return Verification("failed", reason=f"outputs {names} became {new_names}")
        pairs: Mapping[str, tuple[Outputs, Outputs]] = {feed: (expected[feed], found[feed]) for feed in expected}
        result = self._compare(names, pairs)
        if not result:
            if undetermined := self._undetermined(result, session, expected):
                return self._nodes_only(undetermined)
            result = self._judged(result, names, session, pairs)
        if not result:
            return result
        facts = [
            self._only_sizes(groups, result),
            unoptimized,
            *constant_outputs(_by_name(names, expected.values())),
        ]
        return self._with_nodes(result, [*facts, *self._zero_weights()])

    def _judged(
        self, failed: Verification, names: list[str], session: Session, pairs: Mapping[str, tuple[Outputs, Outputs]]
    ) -> Verification:
        """Judge outputs that differ by float64 and by a run without optimizations."""
        session, pairs, changed = self._as_defined(names, session, pairs)
        result = self._compare(names, pairs) if changed else failed
        if not result and self.check.tolerance == Tolerance():
            result = self.nodes_one_by_one.find_wrong_node(result, pairs, session.optimize)
        if result and changed:
            result = replace(result, reason="; ".join(filter(None, (result.reason, OPTIMIZATIONS))))
        return result

    def _zero_weights(self) -> list[str]:
        with suppress(RnnLoweringError):  # what cannot be read has no nodes that are compared
            return zero_weights(
                (symbol, node.spec.node, node.spec.constants.get(symbol))
                for node in self.nodes_one_by_one.pairs
                for symbol in "WR"
            )
        return []

    def _as_defined(
        self, names: list[str], session: Session, pairs: Mapping[str, tuple[Outputs, Outputs]]
    ) -> tuple[Session, Mapping[str, tuple[Outputs, Outputs]], bool]:
        """Return the session and outputs to compare with, and whether optimizations change the original's outputs:
        if they do, the original runs without optimizations, and the lowered model may too."""
        with suppress(SessionError):
            plain = replace(session, optimize=False)
            _, before = self._run_all(plain, list(pairs))
            if not self._compare(names, {feed: (before[feed], theirs) for feed, (theirs, _) in pairs.items()}):
                found = {feed: (before[feed], ours) for feed, (_, ours) in pairs.items()}
                if not self._compare(names, found):
                    _, after = self._run_all(self._lowered_session(optimize=False), list(pairs))
                    alike = {feed: (before[feed], after[feed]) for feed in pairs}
                    found = alike if self._compare(names, alike) else found
                return plain, found, True
        return session, pairs, False

    def _lowered_session(self, optimize: bool = True) -> Session:
        session = session_of(self.lowered, self.runner.folder, self.misread)
        return replace(session, optimize=optimize)

    def _without_original(
        self, error: SessionError, groups: list[Alternatives], *, all_must_run: bool
    ) -> Verification:
        """Compare the nodes of an original that onnxruntime cannot run, or return why that is not possible."""
        if error.over_limit:
            return Verification("not verified", reason=f"the original {error}")
        reason = f"onnxruntime cannot run the original: {error}"
        if isinstance(error, _NotAcceptedError) and self._fixed_sizes() and not self._lowered_runs(groups):
            raise UnsupportedError(
                f"the result does not run at these sizes, and neither does the original: {error}",
                hint="choose sizes that the model supports; it may have been exported for fixed sizes",
            ) from None
        if all_must_run:
            return Verification("not verified", reason=f"{reason}; give other inputs (--feed, feeds=)")
        return self._nodes_only(reason)

    def _only_sizes(self, groups: list[Alternatives], found: Verification) -> str:
        """Return a note if the original accepted only one of several tried sizes; else ""."""
        tried = {
            tuple(array.shape for array in self.runner.feed(first).values())
            for first in (group[0] for group in groups)
        }
        ran = {tuple((given.name, given.shape) for given in run.inputs) for run in found.each_run}
        if len(tried) == 1 or len(found.each_run) == 1 or len(ran) > 1:
            return ""
        sizes = ", ".join(f"{name} {list(shape)}" for name, shape in next(iter(ran)))
        return f"of the tried sizes, the original accepted only {sizes}"

    def _with_nodes(self, result: Verification, facts: list[str]) -> Verification:
        """Also compare each node alone: a network may damp the error of one node."""
        each = self.nodes_one_by_one.result("no node was compared on its own")
        changed = what_changed(self.original.proto, self.lowered.proto, result.max_abs)
        facts = [result.reason, *facts, *changed, repairs_note(self.misread), "" if each else each.reason]
        if each.status == "failed":
            return each
        return replace(result, nodes=each.outputs, reason="; ".join(filter(None, facts)))

    def _fixed_sizes(self) -> bool:
        """Whether the lowered model fixes sizes of inputs that the original leaves open."""
        models = (self.original.proto, self.lowered.proto)
        before, after = ({v.name: v.type for v in model.graph.input} for model in models)
        return any(before[name] != given for name, given in after.items() if name in before)

    def _lowered_runs(self, groups: list[Alternatives]) -> bool:
        """Whether onnxruntime runs the lowered model on some of the inputs."""
        try:
            outcome = self.runner.run(self._lowered_session(), groups)
        except SessionError:
            return False
        return not outcome.runs or any(not run.error for run in outcome.runs)

    def _undetermined(self, failed: Verification, session: Session, expected: Mapping[str, Outputs]) -> str:
        """Return why the outputs that differ need not be equal: they are random, or the original differs from run
        to run; "" if any of them must be equal."""
        wrong = {check.name for check in failed.outputs if not check.passed}
        random = undetermined_outputs(self.original.proto)
        feed = next(iter(expected))
        (again,) = self.runner.run(session, [[feed]]).runs
        if not again.error:
            names = [check.name for check in failed.outputs]
            second = self._compare(names, {feed: (expected[feed], again.outputs())})
            random |= {
                c.name: "it differs from run to run"
                for c in second.outputs
                if not c.passed and c.name not in random
            }
        if not wrong <= random.keys():
            return ""
        facts = ", ".join(f"'{name}' ({random[name]})" for name in sorted(wrong))
        return f"the inputs do not determine the outputs {facts}"

    def _run_original(
        self, groups: list[Alternatives], all_must_run: bool
    ) -> tuple[Session, list[str], dict[str, Outputs]]:
        """Run the original; return its session, its output names, and the outputs by accepted feed."""
        session = session_with(self.original, self.runner.folder / "original.onnx", recurrent_inputs)
        try:
            outcome = self.runner.run(session, groups, counter(self.progress, ORIGINAL, len(groups)))
        except SessionError as error:
            if not error.crashed:
                raise
            session = replace(session, optimize=False)  # its optimizer crashes on some models, its kernels too
            outcome = self.runner.run(session, groups, counter(self.progress, ORIGINAL, len(groups)))
        accepted = [run for run in outcome.runs if not run.error]
        errors = [run.error for run in outcome.runs if run.error]
        if not accepted or (all_must_run and errors):
            raise _NotAcceptedError(errors[0] if errors else "no runs were requested")
        names = list(outcome.names[: len(self.original.proto.graph.output)])
        return session, names, {run.feed: run.outputs() for run in accepted}

    def _run_lowered(self, feeds: list[str], optimize: bool) -> tuple[list[str], dict[str, Outputs], str]:
        """Run the lowered model on all feeds. Return the names of its outputs, the outputs by feed, and why the
        optimizer was off, if it was: it refuses some models that it saved itself."""
        session = self._lowered_session(optimize)
        try:
            return *self._run_all(session, feeds), ""
        except SessionError as error:
            if not optimize:
                raise
            try:
                names, found = self._run_all(replace(session, optimize=False), feeds)
            except SessionError:
                raise error from None
            return names, found, f"the lowered model runs only with onnxruntime's optimizations disabled: {error}"

    def _run_all(self, session: Session, feeds: list[str]) -> tuple[list[str], dict[str, Outputs]]:
        outcome = self.runner.run(session, [[f] for f in feeds], counter(self.progress, LOWERED, len(feeds)))
        for run in outcome.runs:
            if run.error:
                raise SessionError(run.error)
        return list(outcome.names), {run.feed: run.outputs() for run in outcome.runs}

    def _compare(self, names: list[str], pairs: Mapping[str, tuple[Outputs, Outputs]]) -> Verification:
        """Compare the outputs of both models, by feed; outputs are numbered in the order of `names`."""
        lengths = length_inputs(self.original.proto.graph)
        each_run = []
        for feed, (before, after) in pairs.items():
            given = self.runner.feed(feed)
            inputs = tuple(RunInput.of(name, given[name], are_lengths=name in lengths) for name in given)
            outputs = tuple(self._compare_output(n, name, before, after) for n, name in enumerate(names))
            each_run.append(RunCheck(inputs, outputs))
        checks = over_all(each_run)
        wrong = "; ".join(f"output '{c.name}': {c.reason}" for c in checks if not c.passed)
        return Verification("failed" if wrong else "verified", WHOLE, len(pairs), checks, wrong, tuple(each_run))

    def _compare_output(self, n: int, name: str, before: Outputs, after: Outputs) -> OutputCheck:
        parts = [
            compare(before.get(key), after.get(key), self.check.tolerance)
            for key in sorted(before.keys() | after.keys())
            if key.split(":")[0] == str(n)
        ]
        reason = next((text for _, text in parts if text), "")
        return OutputCheck(name, max((d for d, _ in parts), default=0.0), not reason, reason)


def _by_name(names: list[str], runs: Iterable[Outputs]) -> Iterator[dict[str, Array]]:
    """Yield the outputs of runs by name, without outputs that are not tensors."""
    for outputs in runs:
        yield {name: outputs[f"{n}:0"] for n, name in enumerate(names) if f"{n}:0" in outputs}


def what_changed(original: onnx.ModelProto, lowered: onnx.ModelProto, largest: float) -> list[str]:
    """Return notes on how DynamicQuantizeLSTM ran, and on the effect of its rounding.

    Args:
        largest: The largest difference of the outputs.
    """
    before = operator_counts(original)
    if OPERATOR not in before:
        return []
    after = operator_counts(lowered)
    facts = [f"ran with one thread: the results of {OPERATOR} depend on the number of threads"]
    if after[OPERATOR] < before[OPERATOR] and after["DynamicQuantizeLinear"] <= before["DynamicQuantizeLinear"]:
        facts.append(f"without the rounding of X and H to 8 bits outputs differ by up to {largest:.2g}")
    return facts
