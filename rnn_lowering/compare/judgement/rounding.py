"""Whether rounding explains that the outputs of two models differ.

What rounding can do is measured: the original runs again on inputs and weights that are moved by half a rounding,
and with or without optimizations. The result in float64 counts as true only if it is as close to the original's as
rounding explains.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
import onnx
from onnx import numpy_helper

from rnn_lowering.compare.judgement.tolerance import allowance, distance
from rnn_lowering.compare.options import Tolerance
from rnn_lowering.compare.result import RunCheck
from rnn_lowering.compare.runs.runner import Outputs, Runner, SessionError
from rnn_lowering.compare.runs.sessions import Session
from rnn_lowering.files.reading import ModelSource
from rnn_lowering.types import Array

_ROUNDINGS = 8
"""Rounding explains a difference of at most this many times what half a rounding of the inputs shows."""

_TIMES = 4
"""An output passes if its error against float64 is at most this many times the original's, or what half a rounding
of the inputs shows: the original may be close by luck."""

_MOST_WEIGHTS = 1 << 24
"""Maximum elements of the weights that are moved."""


@dataclass(frozen=True)
class Judgement:
    """Whether rounding explains the differences of a run.

    Attributes:
        explained: Whether it does.
        within: How far apart outputs may be, by name.
        unused: Why float64 is not the judge; "" if it is.
    """

    explained: bool
    within: Mapping[str, float]
    unused: str = ""


@dataclass(frozen=True)
class Judge:
    """Judges runs of two models whose outputs differ.

    Attributes:
        original: The original.
        session: How onnxruntime runs it.
        runner: Runs it again.
    """

    original: ModelSource
    session: Session
    runner: Runner

    def run(self, run: RunCheck, feed: str, before: Outputs, after: Outputs) -> Judgement:
        """Judge the outputs of one run that differ.

        Args:
            run: The comparison of its outputs.
            feed: Its inputs.
            before, after: The outputs of both models.
        """
        wrong = {f"{n}:0": check.name for n, check in enumerate(run.outputs) if not check.passed}
        parts = [key for key in (*before, *after) if f"{key.split(':')[0]}:0" in wrong]
        if not all(key in wrong and _may_be_rounding(before.get(key), after.get(key)) for key in parts):
            return Judgement(False, {})
        moves = self._moves(feed, before, wrong)
        within = {key: _ROUNDINGS * moves[key] + float(allowance(before[key], Tolerance()).max()) for key in wrong}
        named = {wrong[key]: bound for key, bound in within.items()}
        truth, unused = self._truth(feed, before, within)
        if truth is None:
            explained = all(_largest(before[key], after[key]) <= bound for key, bound in within.items())
        else:
            explained = all(_as_close(truth[key], before[key], after[key], moves[key]) for key in wrong)
        return Judgement(explained, named, unused)

    def _truth(self, feed: str, before: Outputs, within: Mapping[str, float]) -> tuple[Outputs | None, str]:
        """Return the outputs in float64, or None and why they are no truth."""
        try:
            truth = self.runner.float64(self.original.path, feed)
        except SessionError as error:
            return None, str(error)
        for key, bound in within.items():
            if key not in truth or truth[key].shape != before[key].shape:
                return None, "onnx's evaluator returns another shape"
            if not _largest(truth[key], before[key]) <= bound:
                return None, "onnx's evaluator is further from the original than rounding explains"
        return truth, ""

    def _moves(self, feed: str, before: Outputs, keys: Mapping[str, str]) -> dict[str, float]:
        """Return how far each output moves if the original runs again; 0 where it does not run."""
        moves = dict.fromkeys(keys, 0.0)
        for session, given in self._other_runs(feed):
            with suppress(SessionError):
                (run,) = self.runner.run(session, [[given]]).accepted(all_must_run=True)
                outputs = run.outputs()
                for key in keys:
                    if key in outputs and outputs[key].shape == before[key].shape:
                        moves[key] = max(moves[key], _largest(before[key], outputs[key]))
        return moves

    def _other_runs(self, feed: str) -> Iterator[tuple[Session, str]]:
        yield replace(self.session, optimize=not self.session.optimize), feed
        moved = self.runner.write_feed(moved_by_half_a_rounding(self.runner.feed(feed)))
        yield self.session, moved
        yield self._with_moved_weights(), moved

    def _with_moved_weights(self) -> Session:
        """Return the session of a copy with moved weights; of those in other files, none is moved."""
        proto = onnx.ModelProto()
        proto.CopyFrom(self.session.parsed)
        inline = {t.name: t for t in proto.graph.initializer if not t.external_data and t.data_type == t.FLOAT}
        if sum(int(np.prod(t.dims)) for t in inline.values()) <= _MOST_WEIGHTS:
            arrays = {name: numpy_helper.to_array(tensor) for name, tensor in inline.items()}
            for name, array in moved_by_half_a_rounding(arrays).items():
                inline[name].CopyFrom(numpy_helper.from_array(array, name))
        path = self.runner.folder / "moved.onnx"
        onnx.save(proto, path)
        return Session(path, self.session.data or self.session.model.parent, self.session.optimize, proto)


def moved_by_half_a_rounding(feed: Mapping[str, Array]) -> dict[str, Array]:
    """Return arrays of which each number is moved by half a rounding, up or down.

    Whole numbers stay, as they may be sizes or indices.
    """
    rng = np.random.default_rng(0)
    moved = dict(feed)
    for name, array in feed.items():
        if array.dtype.kind == "f":
            by = 1 + rng.choice([-0.5, 0.5], array.shape) * np.finfo(array.dtype).eps
            with np.errstate(invalid="ignore"):
                moved[name] = np.where(array == np.round(array), array, array * by).astype(array.dtype)
    return moved


def _may_be_rounding(before: Array | None, after: Array | None) -> bool:
    """Whether two outputs are real numbers of one type and shape, and finite in the same places."""
    if before is None or after is None or before.dtype.kind != "f":
        return False
    same = before.dtype == after.dtype and before.shape == after.shape
    return same and bool(np.isfinite(_largest(before, after)))


def _largest(a: Array, b: Array) -> float:
    return float(distance(a, b).max(initial=0.0))


def _as_close(truth: Array, before: Array, after: Array, move: float) -> bool:
    """Whether an output is about as close to float64 as the original's, or as rounding leaves it."""
    return _largest(truth, after) <= max(_TIMES * _largest(truth, before), move)
