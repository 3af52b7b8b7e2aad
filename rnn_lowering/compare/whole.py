"""Compare the outputs of two models, which onnxruntime runs on the same inputs.

If onnxruntime cannot run the original, only the lowered nodes are compared (`node_by_node`). If outputs differ,
each lowered node runs on the inputs of the original node, and the first wrong one is named. If none is further from
float64 than onnxruntime's own kernel, the model passes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from contextvars import copy_context
from dataclasses import replace
from functools import cached_property
from threading import Thread

import onnx

from rnn_lowering.compare.coverage import constant_outputs, undetermined_outputs, untaken_branches, zero_weights
from rnn_lowering.compare.feeds import has_integers, lost_defaults, other_names
from rnn_lowering.compare.float64.as_floats import as_floats
from rnn_lowering.compare.judgement import DeclaredShapes, are_no_rows, compare, least_precise
from rnn_lowering.compare.node_by_node import NodeComparison
from rnn_lowering.compare.options import Tolerance
from rnn_lowering.compare.result import (
    COMPARE_ELSEWHERE,
    IN_FLOATS,
    OPTIMIZATIONS,
    WHOLE,
    OutputCheck,
    RunCheck,
    RunInput,
    Verification,
    over_all,
)
from rnn_lowering.compare.rounding import UncertainIntegers
from rnn_lowering.compare.runs.counted import NO_STEPS, only_sizes
from rnn_lowering.compare.runs.of_original import RunsOfOriginal
from rnn_lowering.compare.runs.refused import wrong_sizes
from rnn_lowering.compare.runs.runner import Alternatives, NotAcceptedError, Outputs, SessionError, tensors_by_name
from rnn_lowering.compare.runs.sessions import (
    Session,
    misread_nodes,
    operator_counts,
    outputs_of_rows,
    repairs_note,
    session_of,
    session_with,
)
from rnn_lowering.compare.sizes import fed_inputs, length_inputs
from rnn_lowering.errors import RnnLoweringError, UnsupportedError
from rnn_lowering.files.one_file import LARGE
from rnn_lowering.files.reading import ModelSource
from rnn_lowering.nodes.kinds import DYNAMIC_QUANTIZE_LSTM
from rnn_lowering.types import LOWERED, Array, counter

Pairs = Mapping[str, tuple[Outputs, Outputs]]
"""The outputs of the original and of the lowered model, by the feed that gave them."""


class ModelComparison(RunsOfOriginal):
    """A comparison of whole models.

    Attributes:
        contradicted: The axes of outputs whose declared size a run contradicts.
    """

    contradicted: Collection[tuple[str, int]] = ()
    _proving: Future[object] | None = None

    @property
    def nodes_one_by_one(self) -> NodeComparison:
        """The comparison of single nodes of the same models."""
        if self._proving is not None:
            wait([self._proving])  # only one thread at a time looks into models (`libraries`)
        return self._nodes

    def _give_up_proofs(self) -> None:
        """Prove no model that differs; one that is judged right after all is proven anew."""
        if self._proving is not None:
            self._nodes.give_up_proofs(self._proving)
            self._proving = None

    @cached_property
    def _nodes(self) -> NodeComparison:
        given = self.original, self.lowered, self.runner, self.check, self.progress, self.prepared
        return NodeComparison(*given, as_written=self._sessions[False])

    @cached_property
    def names(self) -> list[str]:
        """The names of the original's outputs."""
        return [value.name for value in self.original.proto.graph.output]

    @cached_property
    def lengths(self) -> set[str]:
        """The names of the original's inputs that are sequence lengths."""
        return length_inputs(self.uses)

    @cached_property
    def misread(self) -> dict[str, str]:
        """The nodes of the original that onnxruntime misreads."""
        return misread_nodes(self.original.proto)

    @cached_property
    def stacked(self) -> set[str]:
        """The names of the original's outputs that a Loop stacks."""
        return outputs_of_rows(self.original.proto.graph)

    @cached_property
    def precision(self) -> Mapping[str, str]:
        """By output the least precise type on the way to it."""
        return least_precise(self.original.proto)

    @cached_property
    def uncertain(self) -> UncertainIntegers:
        """The integers that may be one unit more or less."""
        return UncertainIntegers(self.runner, self.check.tolerance)

    def result(self) -> Verification:
        """Compare the models, and prove the nodes if they agree; raise the errors of `verify`."""
        compared = self._compared()
        if compared:
            return replace(compared, proofs=self.nodes_one_by_one.proofs)
        self._give_up_proofs()
        return compared

    def _compared(self) -> Verification:
        if other := other_names(self.original.proto, self.lowered.proto):
            return Verification("failed", reason=f"the models have different inputs or outputs: {other}")
        if odd := self._odd_inputs():
            return self._nodes_only(f"cannot generate test data for non-numeric inputs: {odd}")
        self._load_early(self._sessions[True])
        try:
            groups = self._write_feeds()
        except UnsupportedError as error:  # the inputs would be too large
            return self._nodes_only(str(error))
        return self._compare_whole(groups)

    def _nodes_only(self, reason: str) -> Verification:
        """Compare only the nodes. `reason` says why the whole models are not compared."""
        compared = self.nodes_one_by_one.result(reason)
        return compared if compared.status != "not verified" else compared.with_advice(COMPARE_ELSEWHERE)

    def _odd_inputs(self) -> list[str]:
        """Return the names of the original's inputs that are not numeric or boolean tensors."""
        odd, inputs = (onnx.TensorProto.STRING, onnx.TensorProto.UNDEFINED), fed_inputs(self.original.proto.graph)
        return [value.name for value in inputs if value.type.tensor_type.elem_type in odd]

    def _compare_whole(self, groups: list[Alternatives]) -> Verification:
        """Compare the outputs of the two models, then their nodes, which are proven while the models run."""
        self._proving = _in_a_thread(lambda: self._nodes.proofs)
        try:
            session, expected, plain = self._run_original(groups)
        except SessionError as error:
            return self._without_original(error, groups)
        try:
            names, computed, plain_lowered = self._run_lowered(list(expected), session.optimize)
        except SessionError as error:
            if error.over_limit:
                return Verification("not verified", reason=f"the lowered model {error}", over_limit=True)
            if "Scan" in self.lowered.operators and all(self._lack_steps(session, expected).values()):
                return Verification("not verified", reason=NO_STEPS)
            return Verification("failed", reason=f"onnxruntime cannot run the lowered model: {error}")
        if wrong := self._misses(names, computed.values()):
            return Verification("failed", reason=wrong)
        if session.optimize:
            self._load_early(self._sessions[False])
        pairs: Pairs = {feed: (expected[feed], computed[feed]) for feed in expected}
        result = self._compare(pairs)
        if not result and self.uncertain.look_for(self.original, session, pairs, result.each_run):
            result = self._compare(pairs)
        if not result:
            if undetermined := self._undetermined(result, session, expected):
                return self._nodes_only(undetermined)
            result = self._judged(result, session, pairs)
        result = self._as_written(result, session, pairs)
        if not result:
            return result
        sizes = only_sizes(map(self.runner.feed, (group[0] for group in groups)), result.each_run)
        facts = [self.uncertain.note(result.outputs), sizes, plain, plain_lowered]
        return self._with_nodes(result, [*facts, *self._not_shown(session, expected)])

    def _misses(self, names: Sequence[str], found: Iterable[Outputs]) -> str:
        """Return what the lowered model has otherwise than the original, but for numbers; "" if nothing."""
        if names != self.names:
            return f"outputs {self.names} became {names}"
        if lost := lost_defaults(self.original.proto, self.lowered.proto):
            return f"the model has lost the inputs with defaults {lost}"
        return self._check_shapes(found)

    def _not_shown(self, session: Session, expected: Mapping[str, Outputs]) -> Iterator[str]:
        """Yield what these runs of the original cannot show."""
        names = [value.name for value in session.parsed.graph.output]
        yield untaken_branches(session.branches, (tensors_by_name(names, each) for each in expected.values()))
        yield from constant_outputs(tensors_by_name(self.names, each) for each in expected.values())
        with suppress(RnnLoweringError):  # nodes that cannot be read are not compared
            yield from zero_weights(
                (symbol, node.spec.node, node.spec.constants.get(symbol))
                for node in self.nodes_one_by_one.pairs
                for symbol in "WR"
            )

    def _run_lowered(self, feeds: list[str], optimize: bool) -> tuple[list[str], dict[str, Outputs], str]:
        """Run the lowered model on all feeds; return the names of its outputs, the outputs by feed, and why the
        optimizer was off, if it was."""
        ran = counter(self.progress, LOWERED, len(feeds))
        groups = [[feed] for feed in feeds]
        _, outcome, why = self.runner.run_optimized_or_not(self._sessions[optimize], groups, ran, may_crash=False)
        outputs = {run.feed: run.outputs() for run in outcome.runs}
        return list(outcome.names), outputs, why and f"the lowered model runs {why}"

    @cached_property
    def _sessions(self) -> Mapping[bool, Session]:
        """The sessions of the lowered model, by whether onnxruntime optimizes it."""
        session = session_of(self.lowered, self.runner.folder, self.misread)
        return {optimize: replace(session, optimize=optimize) for optimize in (True, False)}

    def _load_early(self, session: Session) -> None:
        """Have a small lowered model loaded before it is to run, if the original was."""
        if self.early is not None and not session.is_external and session.model.stat().st_size < LARGE:
            self.runner.load(session)

    def _run_all(self, session: Session, feeds: Iterable[str]) -> dict[str, Outputs]:
        """Return the outputs by feed; all must be accepted."""
        outcome = self.runner.run(session, [[feed] for feed in feeds])
        return {run.feed: run.outputs() for run in outcome.accepted(all_must_run=True)}

    def _judged(self, failed: Verification, session: Session, pairs: Pairs) -> Verification:
        """Judge outputs that differ, by a run without optimizations and by float64."""
        floats = as_floats(self.original.proto, self.lowered.proto)
        if floats is not None:
            return self._beside_floats(floats, failed, pairs)
        defined, result = self._as_defined(session, pairs), failed
        if defined is not None:
            session, pairs = defined
            result = self._compare(pairs)
        if not result and self.check.tolerance == Tolerance():
            self._give_up_proofs()
            result = self.nodes_one_by_one.find_wrong_node(result, pairs, session.optimize)
        if result and defined is not None:
            result = replace(result, reason="; ".join(filter(None, (result.reason, OPTIMIZATIONS))))
        return result

    def _beside_floats(self, floats: onnx.ModelProto, failed: Verification, pairs: Pairs) -> Verification:
        """Compare outputs that differ with those of the original without the rounding to 8 bits."""
        source = replace(self.original, proto=floats)
        session = session_with(source, self.runner.folder / "floats.onnx", ())
        try:
            floats_of = self._run_all(replace(session, optimize=False), pairs)
        except SessionError as error:
            return failed.with_advice(f"onnxruntime cannot run the original in floats: {error}")
        result = self._compare({feed: (floats_of[feed], found) for feed, (_, found) in pairs.items()})
        if not result:
            return result.with_advice("compared with the original in floats")
        most = max((check.max_abs for check in failed.outputs), default=0.0)
        reason = (
            f"products do not round to 8 bits any more, so outputs differ from the original by up to {most:.2g}"
        )
        return failed.judged(reason, IN_FLOATS)

    def _as_defined(self, session: Session, pairs: Pairs) -> tuple[Session, Pairs] | None:
        """Return the original's session without optimizations, and the outputs to compare; None if optimizations do
        not change the original's outputs. The lowered model runs without them too, if it agrees only then."""
        plain = replace(session, optimize=False)
        with suppress(SessionError):
            before = self._run_all(plain, pairs)
            if self._compare({feed: (before[feed], theirs) for feed, (theirs, _) in pairs.items()}):
                return None
            outputs: Pairs = {feed: (before[feed], ours) for feed, (_, ours) in pairs.items()}
            if not self._compare(outputs):
                after = self._run_all(self._sessions[False], pairs)
                both_plain: Pairs = {feed: (before[feed], after[feed]) for feed in pairs}
                outputs = both_plain if self._compare(both_plain) else outputs
            return plain, outputs
        return None

    def _as_written(self, result: Verification, session: Session, pairs: Pairs) -> Verification:
        """Return a failure if the lowered model is only right with onnxruntime's optimizations.

        They drop what they do not need, such as a wrong size in the shape of a Reshape. Other runtimes need it.
        """
        if not result or not session.optimize:
            return result
        try:
            outputs = self._run_all(self._sessions[False], pairs)
        except SessionError as error:
            if error.over_limit or not self._runs_plain(session, pairs):
                return result
            reason = f"onnxruntime cannot run the lowered model without optimizations: {error}"
            return Verification("failed", reason=reason)
        plain: Pairs = {feed: (before, outputs[feed]) for feed, (before, _) in pairs.items()}
        differs = self._compare(plain)
        if differs or (differs := self._judged(differs, session, plain)):
            return result
        if self._undetermined(differs, session, {feed: before for feed, (before, _) in pairs.items()}):
            return result
        return differs.with_advice("onnxruntime's optimizations hide it")

    def _runs_plain(self, session: Session, feeds: Iterable[str]) -> bool:
        """Whether onnxruntime runs the original without optimizations."""
        with suppress(SessionError):
            self._run_all(replace(session, optimize=False), feeds)
            return True
        return False

    def _without_original(self, error: SessionError, groups: list[Alternatives]) -> Verification:
        """Compare the nodes of an original that onnxruntime cannot run, or return why that is not possible."""
        if error.over_limit:
            return Verification("not verified", reason=f"the original {error}", over_limit=True)
        reason = f"onnxruntime cannot run the original: {error}"
        refused = wrong_sizes(
            error,
            self.original,
            self.lowered,
            draws_integers=self._draws_integers(),
            lowered_runs=lambda: self._lowered_runs(groups),
        )
        if refused is not None:
            raise refused from None
        if self.check.feeds is not None:
            return Verification("not verified", reason=f"{reason}; give other inputs (--test-input)")
        if isinstance(error, NotAcceptedError) and self._draws_integers():
            reason += "; it may accept other integers (--test-input)"
        return self._nodes_only(reason)

    def _draws_integers(self) -> bool:
        """Whether integers are drawn of which no bound is known."""
        return self.check.feeds is None and has_integers(fed_inputs(self.original.proto.graph), self.uses)

    def _lowered_runs(self, groups: list[Alternatives]) -> bool:
        """Whether onnxruntime runs the lowered model on some of the inputs."""
        with suppress(SessionError):
            outcome = self.runner.run(self._sessions[True], groups)
            return not outcome.runs or bool(outcome.accepted(all_must_run=False))
        return False

    def _check_shapes(self, found: Iterable[Outputs]) -> str:
        """Return which output of the lowered model has another shape than it declares; "" if none has. Note what
        both declare, and a run contradicts."""
        declared = DeclaredShapes(self.original.proto, self.lowered.proto)
        arrays = [each for outputs in found for each in tensors_by_name(self.names, outputs).items()]
        self.contradicted = {(name, axis) for name, a in arrays for axis in declared.contradicted(name, a)}
        return next((f"output '{name}' {fault}" for name, a in arrays if (fault := declared.fault(name, a))), "")

    def _with_nodes(self, result: Verification, facts: list[str]) -> Verification:
        """Also compare each node alone: a network may damp the error of one node."""
        each = self.nodes_one_by_one.result("no node was compared on its own")
        if each.status == "failed":
            return each
        changed = _what_changed(self.original, self.lowered, result.max_abs)
        facts = [result.reason, *facts, *changed, repairs_note(self.misread), "" if each else each.reason]
        return replace(result, nodes=each.outputs, reason="; ".join(filter(None, facts)))

    def _undetermined(self, failed: Verification, session: Session, expected: Mapping[str, Outputs]) -> str:
        """Return why the outputs that differ need not be equal: they are random, or differ from run to run; "" if
        one of them must be equal."""
        wrong = {check.name for check in failed.outputs if not check.passed}
        random = undetermined_outputs(self.original.proto)
        feed = next(iter(expected))
        with suppress(SessionError):
            second = self._compare({feed: (expected[feed], self._run_all(session, [feed])[feed])})
            differ = [check.name for check in second.outputs if not check.passed]
            random = dict.fromkeys(differ, "it differs from run to run") | random
        if not wrong <= random.keys():
            return ""
        facts = ", ".join(f"'{name}' ({random[name]})" for name in sorted(wrong))
        return f"the inputs do not determine the outputs {facts}"

    def _compare(self, pairs: Pairs) -> Verification:
        """Compare the outputs of both models."""
        each_run = []
        for feed, (before, after) in pairs.items():
            given = self.runner.feed(feed)
            inputs = tuple(RunInput.of(name, given[name], are_lengths=name in self.lengths) for name in given)
            outputs = tuple(
                self._compare_output(n, name, before, after, self._uncertain(feed, n, name, before, after))
                for n, name in enumerate(self.names)
            )
            each_run.append(RunCheck(inputs, outputs))
        checks = over_all(each_run)
        wrong = "; ".join(f"output '{c.name}': {c.reason}" for c in checks if not c.passed)
        return Verification("failed" if wrong else "verified", WHOLE, len(pairs), checks, wrong, tuple(each_run))

    def _uncertain(self, feed: str, n: int, name: str, before: Outputs, after: Outputs) -> Array | None:
        return self.uncertain.of(feed, name, before.get(f"{n}:0"), after.get(f"{n}:0"))

    def _compare_output(
        self, n: int, name: str, before: Outputs, after: Outputs, uncertain: Array | None
    ) -> OutputCheck:
        keys = [key for key in sorted(before.keys() | after.keys()) if key.split(":")[0] == str(n)]
        parts = [
            compare(before.get(key), after.get(key), self.check.tolerance, uncertain, self.precision.get(name, ""))
            for key in keys
            if not (name in self.stacked and are_no_rows(before.get(key), after.get(key)))
        ]
        reason = next((text for _, text in parts if text), "")
        return OutputCheck.of(name, max((d for d, _ in parts), default=0.0), reason)


def _in_a_thread(compute: Callable[[], object]) -> Future[object]:
    """Compute in a thread, within the limits of this one; a process that ends does not wait for it."""
    result, context = Future[object](), copy_context()

    def run() -> None:
        try:
            result.set_result(context.run(compute))
        except BaseException as error:
            result.set_exception(error)

    Thread(target=run, daemon=True).start()
    return result


def _what_changed(original: ModelSource, lowered: ModelSource, largest: float) -> list[str]:
    """Return notes on how DynamicQuantizeLSTM ran, and on what its rounding changes.

    Args:
        largest: The largest difference of the outputs.
    """
    if DYNAMIC_QUANTIZE_LSTM not in original.operators:
        return []
    before, after = operator_counts(original.proto), operator_counts(lowered.proto)
    facts = [f"ran with one thread: the results of {DYNAMIC_QUANTIZE_LSTM} depend on the number of threads"]
    if (
        after[DYNAMIC_QUANTIZE_LSTM] < before[DYNAMIC_QUANTIZE_LSTM]
        and after["DynamicQuantizeLinear"] <= before["DynamicQuantizeLinear"]
    ):
        facts.append(f"X and H are not rounded to 8 bits any more, so outputs differ by up to {largest:.2g}")
    return facts
