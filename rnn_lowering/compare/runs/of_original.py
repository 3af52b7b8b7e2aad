"""Run an original on the inputs of a comparison: those count that it takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from types import MappingProxyType

from rnn_lowering.compare.feeds import candidate_feeds, declared_as, recorded_inputs
from rnn_lowering.compare.node_by_node import Comparison
from rnn_lowering.compare.runs.counted import lacks_steps, larger_feeds
from rnn_lowering.compare.runs.meeting_sizes import MeetingSizes, meeting_sizes
from rnn_lowering.compare.runs.runner import Alternatives, NotAcceptedError, Outputs, SessionError, tensors_by_name
from rnn_lowering.compare.runs.sessions import Session, session_of_original
from rnn_lowering.compare.sizes import Uses, given_in_runs, uses_of
from rnn_lowering.types import ORIGINAL, counter

_Ran = tuple[Session, dict[str, Outputs], str]
"""A session, its outputs by accepted feed, and why onnxruntime's optimizer was off, if it was."""


class RunsOfOriginal(Comparison):
    """The runs of the original of a comparison."""

    @cached_property
    def uses(self) -> Uses:
        """What the original does with its inputs."""
        return uses_of(self.original.proto.graph)

    def _write_feeds(self, meeting: MeetingSizes = MappingProxyType({})) -> list[Alternatives]:
        """Write the inputs of all runs; return alternatives for each run: the first that the model accepts
        counts. `meeting` are sizes that follow from others."""
        original, lowered, check = self.original.proto, self.lowered.proto, self.check
        recorded = recorded_inputs(original, lowered)
        declared = declared_as(original, lowered)
        runs = given_in_runs(check, original.graph, self.uses, lowered.graph)
        candidates = partial(candidate_feeds, original, self.uses, check=check, declared=declared, meeting=meeting)
        return [
            self.runner.write_feeds(candidates(run, given={**given, **recorded})) for run, given in enumerate(runs)
        ]

    def _run_original(self, groups: list[Alternatives]) -> _Ran:
        """Run the original, at sizes that it takes together if it takes none of the preferred ones."""
        try:
            ran = self._run_observed(groups)
        except NotAcceptedError:
            if together := self._run_together():
                return together
            raise
        taken = [self._shapes(feed) for feed in ran[1]]
        as_preferred = any(self._shapes(group[0]) in taken for group in groups)  # perhaps with other numbers
        return ran if as_preferred else self._run_together() or ran

    def _shapes(self, feed: str) -> dict[str, tuple[int, ...]]:
        return {name: array.shape for name, array in self.runner.feed(feed).items()}

    def _run_together(self) -> _Ran | None:
        """Run the original at sizes that follow from each other; None if it has none, or takes none."""
        if self.check.feeds is not None or self.check.shapes:
            return None
        meeting: MeetingSizes = {}
        with suppress(Exception):  # a model that cannot be followed says nothing
            meeting = meeting_sizes(self.original.proto)
        if meeting:
            with suppress(NotAcceptedError):
                return self._run_observed(self._write_feeds(meeting))
        return None

    def _run_observed(self, groups: list[Alternatives]) -> _Ran:
        """Run the original, and look which branches it takes, if it runs so."""
        folder = self.runner.folder
        observed = self.early or session_of_original(self.original, folder, observed=True)
        try:
            return self._run_session(observed, groups)
        except SessionError as error:
            if error.over_limit or not observed.branches:
                raise
        plain = session_of_original(self.original, folder, observed=False)  # it may run without more outputs
        return self._run_session(replace(plain, branches=observed.branches), groups)

    def _run_session(self, session: Session, groups: Sequence[Sequence[str]]) -> _Ran:
        ran, all_must_run = counter(self.progress, ORIGINAL, len(groups)), self.check.feeds is not None
        session, outcome, why = self.runner.run_optimized_or_not(session, groups, ran, all_must_run=all_must_run)
        outputs = {run.feed: run.outputs() for run in outcome.accepted(all_must_run=all_must_run)}
        larger, left_out = larger_feeds(self.runner, groups, self._lack_steps(session, outputs))
        if left_out:
            with suppress(NotAcceptedError):
                session, outputs, note = self._run_session(session, larger)
                return session, outputs, note or f"{self._why_no_steps} without a step, as {left_out}"
        return session, outputs, why and f"the original runs {why}"

    @property
    def _why_no_steps(self) -> str:
        return "the result takes no inputs" if "Scan" in self.lowered.operators else "onnxruntime sets no states"

    def _lack_steps(self, session: Session, found: Mapping[str, Outputs]) -> dict[str, bool]:
        """Return by feed whether a recurrent node of the original gets no step, which a Scan does not take; without
        a Scan only those whose states are read. The Scan of a Loop that may have none is in a branch."""
        only_states = "Scan" not in self.lowered.operators
        of_loops = any(node.op_type == "Scan" for node in self.lowered.proto.graph.node)
        names, graph = [value.name for value in session.parsed.graph.output], self.original.proto.graph
        arrays = {feed: {**self.runner.feed(feed), **tensors_by_name(names, each)} for feed, each in found.items()}
        return {
            feed: lacks_steps(graph, each, only_states=only_states, of_loops=of_loops)
            for feed, each in arrays.items()
        }
