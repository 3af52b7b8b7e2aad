"""What rounding explains: integers that are one unit off, and outputs that differ beyond the tolerance."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from rnn_lowering.compare.indices import as_right, picking_nodes
from rnn_lowering.compare.judgement import allowance, distance
from rnn_lowering.compare.options import Tolerance
from rnn_lowering.compare.result import OutputCheck, RunCheck
from rnn_lowering.compare.runs.runner import Outputs, Runner, SessionError
from rnn_lowering.compare.runs.sessions import Session, session_with
from rnn_lowering.errors import RnnLoweringError
from rnn_lowering.files.reading import ModelSource
from rnn_lowering.model.protobuf import bodies_in
from rnn_lowering.types import Array

_REAL = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16, onnx.TensorProto.DOUBLE)
_INTEGERS = frozenset(
    getattr(onnx.TensorProto, name)
    for name in ("INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64")
)


_ROUND = frozenset(("Round", "Floor", "Ceil"))
"""Operators that round, and return real numbers."""

_MOST_BEHIND = 4
"""Such an operator is looked for among this many nodes before the integers."""


@dataclass(frozen=True)
class _RoundedOutput:
    """The nodes that make an integer output from real numbers.

    Attributes:
        output: The name of the output.
        types: The element types of values, by name.
        reals: The real numbers that they read.
        given: The inputs of the model that they read.
        nodes: The nodes in order, those of constants too.
    """

    output: str
    types: Mapping[str, int]
    reals: Collection[str]
    given: Collection[str]
    nodes: Collection[int]


def integer_outputs(proto: onnx.ModelProto) -> set[str]:
    """Return the names of the outputs that are integers."""
    return {v.name for v in proto.graph.output if v.type.tensor_type.elem_type in _INTEGERS}


@dataclass(eq=False)
class UncertainIntegers:
    """The integers of outputs that may be one unit more or less, and indices that may be others; none until they
    are looked for.

    Attributes:
        runner: Runs the original again.
        tolerance: The tolerance of the real numbers.
        axes: The axis that gets no fixed size, by input name.
    """

    runner: Runner
    tolerance: Tolerance
    axes: Mapping[str, int] | None = None
    _found: dict[str, dict[str, Array]] = field(default_factory=dict)
    _picked: dict[str, dict[str, tuple[onnx.NodeProto, Array]]] = field(default_factory=dict)

    def of(
        self, feed: str, output: str, expected: Array | None = None, actual: Array | None = None
    ) -> Array | None:
        """Return how far elements of an output may differ for the inputs of a run; None: not at all. Indices may
        only if both arrays are given."""
        picked = self._picked.get(feed, {}).get(output)
        if picked is None:
            return self._found.get(feed, {}).get(output)
        return None if expected is None or actual is None else as_right(*picked, expected, actual, self.tolerance)

    def look_for(
        self, original: ModelSource, session: Session, feeds: Collection[str], runs: Iterable[RunCheck]
    ) -> bool:
        """Look for them if integers differ; return whether there are any.

        Args:
            original: The original.
            session: How onnxruntime runs it.
            feeds: The inputs of the runs.
            runs: The comparison.
        """
        integers = integer_outputs(original.proto)
        if any(check.name in integers and not check.passed for run in runs for check in run.outputs):
            for feed in feeds:
                self._found[feed] = uncertain = dict[str, Array]()
                with suppress(SessionError, RnnLoweringError, onnx.shape_inference.InferenceError):
                    for rounding in _roundings(original.proto):
                        uncertain[rounding.output] = self._moved(original, session, feed, rounding)
                with suppress(SessionError, RnnLoweringError):
                    self._picked[feed] = self._values_of_indices(original, session, feed)
        return any(self._found.get(feed) or self._picked.get(feed) for feed in feeds)

    def _values_of_indices(
        self, original: ModelSource, session: Session, feed: str
    ) -> dict[str, tuple[onnx.NodeProto, Array]]:
        """Return the node that each output of indices is of, and what it picks from in a run of the original."""
        integers = integer_outputs(original.proto)
        nodes = {name: node for name, node in picking_nodes(original.proto.graph).items() if name in integers}
        if not nodes:
            return {}
        path, values = self.runner.folder / "picked.onnx", {node.input[0] for node in nodes.values()}
        with_values = replace(session_with(original, path, values, self.axes), optimize=session.optimize)
        (run,) = self.runner.run(with_values, [[feed]]).accepted(all_must_run=True)
        arrays = {**self.runner.feed(feed), **run.tensors()}
        return {name: (n, arrays[n.input[0]]) for name, n in nodes.items() if n.input[0] in arrays}

    def note(self, checks: Iterable[OutputCheck]) -> str:
        """Return a note on outputs that passed though some integers differ; "" if none does."""
        differ = {check.name: f"'{check.name}'" for check in checks if check.passed and check.max_abs}
        picked = [shown for name, shown in differ.items() if any(name in each for each in self._picked.values())]
        units = [shown for name, shown in differ.items() if any(name in each for each in self._found.values())]
        units = [shown for shown in units if shown not in picked]
        notes = (
            (units, "integers of {} differ by one unit, where rounding moves real numbers over a boundary"),
            (picked, "indices of {} differ, where they pick numbers that are equal up to the tolerance"),
        )
        return "; ".join(text.format(", ".join(shown)) for shown, text in notes if shown)

    def _moved(self, original: ModelSource, session: Session, feed: str, rounding: _RoundedOutput) -> Array:
        """Return which integers change if the real numbers before them move by the tolerance."""
        runner = self.runner
        with_reals = session_with(original, runner.folder / "rounded.onnx", rounding.reals, self.axes)
        plain = replace(with_reals, optimize=session.optimize)
        (run,) = runner.run(plain, [[feed]]).accepted(all_must_run=True)
        arrays, given = run.tensors(), runner.feed(feed)
        reals = {name: arrays[name] if name in arrays else given[name] for name in rounding.reals}
        spread = {name: allowance(array, self.tolerance) for name, array in reals.items()}
        moved = [
            {name: (array + sign * spread[name]).astype(array.dtype) for name, array in reals.items()}
            for sign in (0, 1, -1)
        ]
        feeds = [runner.write_feed({**{n: given[n] for n in rounding.given}, **each}) for each in moved]
        alone = _alone(original, rounding, runner.folder / "rounding.onnx")
        runs = runner.run(alone, [[each] for each in feeds]).accepted(all_must_run=True)
        middle, *others = (np.asarray(each.outputs()["0:0"]) for each in runs)
        return np.asarray(np.logical_or(*(other != middle for other in others)))


def _roundings(proto: onnx.ModelProto) -> list[_RoundedOutput]:
    """Return how each integer output is made from real numbers, if that is known."""
    inferred = onnx.shape_inference.infer_shapes(proto).graph
    values = (*inferred.value_info, *inferred.input, *inferred.output)
    types = {value.name: value.type.tensor_type.elem_type for value in values}
    roundings = (_rounding(proto.graph, types, name) for name in integer_outputs(proto))
    return [rounding for rounding in roundings if rounding is not None and rounding.reals]


def _rounding(graph: onnx.GraphProto, types: Mapping[str, int], output: str) -> _RoundedOutput | None:
    makers = {name: n for n, node in enumerate(graph.node) for name in node.output if name}
    tensors = {tensor.name for tensor in graph.initializer}
    left, seen, rounded = [output], {output}, set[str]()
    reals, given, nodes = set[str](), set[str](), set[int]()
    while left:
        name = left.pop()
        if name in tensors:
            continue
        node = graph.node[makers[name]] if name in makers else None
        is_constant = node is not None and node.op_type == "Constant"
        is_real = types.get(name) in _REAL and not is_constant
        if is_real and name not in rounded:
            rounded |= _rounded(graph, makers, name)
        if is_real and name not in rounded:
            reals.add(name)
        elif node is None:
            given.add(name)
        elif any(bodies_in(node)) or (types.get(name) is None and not is_constant):
            return None
        else:
            nodes.add(makers[name])
            left += [read for read in node.input if read and read not in seen]
            seen.update(node.input)
    return _RoundedOutput(output, types, sorted(reals), sorted(given), sorted(nodes))


def _rounded(graph: onnx.GraphProto, makers: Mapping[str, int], name: str) -> set[str]:
    """Return the values from an operator that rounds on to this one; none if no such operator is near."""
    passed = set[str]()
    for _ in range(_MOST_BEHIND):
        passed.add(name)
        if name not in makers:
            break
        node = graph.node[makers[name]]
        if node.op_type in _ROUND:
            return passed
        name = next(iter(node.input), "")
    return set()


def _alone(original: ModelSource, rounding: _RoundedOutput, path: Path) -> Session:
    """Return the session of the nodes of a rounding alone."""
    proto, graph = onnx.ModelProto(), original.proto.graph
    proto.CopyFrom(original.proto)
    proto.graph.Clear()
    proto.graph.name = graph.name or "rounding"
    proto.graph.node.extend(graph.node[n] for n in rounding.nodes)
    read = {name for node in proto.graph.node for name in node.input}
    proto.graph.initializer.extend(tensor for tensor in graph.initializer if tensor.name in read)
    for name in (*rounding.reals, *rounding.given):
        proto.graph.input.add(name=name).type.tensor_type.elem_type = rounding.types[name]
    proto.graph.output.add(name=rounding.output)
    onnx.save(proto, path)
    return Session(path, original.path.parent, optimize=False, proto=proto)


# Whether rounding explains that the outputs of two models differ. What rounding can do is measured: the original
# runs again on inputs and weights that are moved by half a rounding, and with or without optimizations. The
# result in float64 counts as true only if it is as close to the original's as rounding explains.


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
