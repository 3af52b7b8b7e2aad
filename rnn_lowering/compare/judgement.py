"""Which outputs count as equal: within a tolerance, or as close to float64 as rounding explains.

Also which integers may be the next one, and whether outputs have the declared shapes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
from onnx import numpy_helper

from rnn_lowering.compare.float64.node_reference import NodeReference
from rnn_lowering.compare.options import Tolerance
from rnn_lowering.compare.result import OutputCheck, RunCheck
from rnn_lowering.compare.runner import Outputs, Runner, Session, SessionError, session_with
from rnn_lowering.errors import RnnLoweringError
from rnn_lowering.files.reading import ModelSource
from rnn_lowering.model.protobuf import bodies_in
from rnn_lowering.nodes.kinds import AxisName, NodeSpec
from rnn_lowering.types import Array, Dims

_BY_TYPE = {
    "float32": (1e-4, 1e-5),
    "float64": (1e-9, 1e-10),
    "float16": (1e-2, 2e-3),
    "bfloat16": (8e-2, 4e-2),
}
"""Relative and absolute tolerance by element type; arrays of other types must be equal."""

BLOCK = 1 << 20
"""Elements that are compared at once: arrays may be files that are larger than memory."""


def allowance(expected: Array, tolerance: Tolerance, precision: str = "") -> Array:
    """Return the allowed difference of each element, in float64; `precision` as in `compare`.

    If the largest number is below 1, the default absolute tolerance is multiplied by it: small outputs are compared
    as closely as others.
    """
    rtol, atol = _limits(expected, tolerance, precision)
    allowed: Array = atol + rtol * _magnitudes(expected)
    return allowed


def _limits(expected: Array, tolerance: Tolerance, precision: str) -> tuple[float, float]:
    """Return the relative and absolute tolerance for an array."""
    name = expected.dtype.name
    rtol, atol = _BY_TYPE.get(precision if precision and name in _BY_TYPE else name, (0.0, 0.0))
    if tolerance.atol is None and atol:
        atol *= min(1.0, max((_magnitudes(part).max() for part in blocks(expected)), default=0.0))
    return rtol if tolerance.rtol is None else tolerance.rtol, atol if tolerance.atol is None else tolerance.atol


def _magnitudes(array: Array) -> Array:
    size: Array = np.abs(np.where(np.isfinite(array), array, 0).astype(np.float64))
    return size


def blocks(array: Array) -> Iterator[Array]:
    """Yield the elements in blocks, in C order."""
    flat = array.reshape(-1)
    for start in range(0, array.size, BLOCK):
        yield flat[start : start + BLOCK]


def distance(a: Array, b: Array) -> Array:
    """Return the absolute difference by element, infinite if only one of the two is NaN."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    with np.errstate(invalid="ignore"):
        far = np.abs(a - b)
    far = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, far)
    return np.where(np.isnan(far), np.inf, far)


def compare(
    expected: Array | None,
    actual: Array | None,
    tolerance: Tolerance,
    uncertain: Array | None = None,
    precision: str = "",
) -> tuple[float, str]:
    """Return the largest absolute difference, and the reason if it is out of tolerance.

    Args:
        expected, actual: Two outputs; None for a missing one.
        tolerance: The user's tolerance. Integers must be equal without one.
        uncertain: Which integers may be one unit more or less; None: none.
        precision: The least precise type on the way to real numbers; "" for their own.
    """
    if expected is None or actual is None:
        return np.inf, "a part is missing"
    if expected.dtype != actual.dtype or expected.shape != actual.shape:
        return np.inf, (f"{expected.dtype}{list(expected.shape)} became {actual.dtype}{list(actual.shape)}")
    if expected.dtype.name not in _BY_TYPE:
        return _compare_exact(expected, actual, tolerance, uncertain)
    pairs = zip(blocks(expected), blocks(actual), strict=True)
    rtol, atol = _limits(expected, tolerance, precision)
    wrong, largest, one_sided = 0, 0.0, False
    for a, b in pairs:
        far = distance(a, b)
        wrong += int((far > atol + rtol * _magnitudes(a)).sum())
        largest = max(largest, float(far.max()))
        one_sided = one_sided or not np.array_equal(np.isnan(a), np.isnan(b))
    if wrong and np.isinf(largest) and one_sided:
        return largest, f"NaN in different places, {wrong} of {expected.size} elements differ"
    return (
        largest,
        f"largest difference {largest:.2g}, {wrong} of {expected.size} out of tolerance" if wrong else "",
    )


def _compare_exact(
    expected: Array, actual: Array, tolerance: Tolerance, uncertain: Array | None
) -> tuple[float, str]:
    """Compare integers, booleans or texts."""
    units = np.zeros(expected.shape, bool) if uncertain is None else uncertain
    rtol, atol = (tolerance.rtol or 0.0, tolerance.atol or 0.0) if expected.dtype.kind in "iu" else (0.0, 0.0)
    wrong, largest = 0, 0.0
    for a, b, unit in zip(blocks(expected), blocks(actual), blocks(units), strict=True):
        other = a != b
        if not other.any():
            continue
        far = distance(a, b) if a.dtype.kind in "iu" else np.ones(a.shape)
        far = np.where(other, np.maximum(far, 1.0), 0.0)  # float64 does not tell large integers apart
        largest = max(largest, float(far.max()))
        allowed = atol + rtol * _magnitudes(a) if atol or rtol else 0.0
        wrong += int((far > np.maximum(allowed, unit)).sum())
    text = f", by up to {largest:.4g}" if expected.dtype.kind in "iu" else ""
    return largest, f"{wrong} of {expected.size} elements differ{text}" if wrong else ""


def are_no_rows(expected: Array | None, actual: Array | None) -> bool:
    """Whether two arrays have no rows, and differ at most in sizes that onnxruntime does not know.

    The specification does not say which shape a Loop of no steps stacks. onnxruntime takes the sizes that it
    infers for the body: 0 for a size that it does not know, and [0] if it does not even know the rank.
    """
    if expected is None or actual is None or expected.dtype != actual.dtype:
        return False
    if expected.shape[:1] != (0,) or actual.shape[:1] != (0,):
        return False
    pairs = zip(expected.shape, actual.shape, strict=False)
    return expected.ndim == 1 or (expected.ndim == actual.ndim and all(a in (0, b) for a, b in pairs))


@dataclass(frozen=True, eq=False)
class NodeOutput:
    """An output of a lowered node, beside its operator in float64.

    Attributes:
        reference: The node in float64.
        symbol: Its name in the operator specification.
        got: The output of the lowered node.
        expected: The output by the operator specification, in float64.
        allowed: The allowed difference, of the same shape; infinite for numbers that are not compared.
    """

    reference: NodeReference[Any]
    symbol: str
    got: Array
    expected: Array
    allowed: Array

    @property
    def spec(self) -> NodeSpec:
        """The specification of the node."""
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


_ELEMENTS_AT_ONCE = 1 << 23
"""Maximum numbers in the outputs of rows that are compared together."""


def blocks_of_rows(spec: NodeSpec, data: Array, outputs: Mapping[str, Array]) -> Iterator[slice]:
    """Yield slices of the batch for which the outputs are small; the whole batch if an output has other rows."""
    rows = data.shape[spec.axes(spec.data).index("N")]
    largest = max((array.size for array in outputs.values()), default=0)
    at_once = max(1, _ELEMENTS_AT_ONCE * rows // max(1, largest))
    if at_once >= rows or not all(_has_rows(array, spec.axes(symbol), rows) for symbol, array in outputs.items()):
        yield slice(None)
        return
    for start in range(0, rows, at_once):
        yield slice(start, start + at_once)


def _has_rows(array: Array, axes: tuple[AxisName, ...], rows: int) -> bool:
    return array.ndim == len(axes) and array.shape[axes.index("N")] == rows


# Integer outputs that round real numbers, as Cast and QuantizeLinear do: where they may differ by one unit. An
# integer may be the next one where the real number before it is within the tolerance of a boundary.


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
    """The integers of outputs that may be one unit more or less; none until they are looked for.

    Attributes:
        runner: Runs the original again.
        tolerance: The tolerance of the real numbers.
        axes: The axis that gets no fixed size, by input name.
    """

    runner: Runner
    tolerance: Tolerance
    axes: Mapping[str, int] | None = None
    _found: dict[str, dict[str, Array]] = field(default_factory=dict)

    def of(self, feed: str, output: str) -> Array | None:
        """Return which elements of an output may differ for the inputs of a run; None: none."""
        return self._found.get(feed, {}).get(output)

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
                self._found[feed] = found = dict[str, Array]()
                with suppress(SessionError, RnnLoweringError, onnx.shape_inference.InferenceError):
                    for rounding in _roundings(original.proto):
                        found[rounding.output] = self._moved(original, session, feed, rounding)
        return any(self._found.get(feed) for feed in feeds)

    def note(self, checks: Iterable[OutputCheck]) -> str:
        """Return a note on outputs that passed though some integers differ by one unit; "" if none does."""
        names = {name for each in self._found.values() for name in each}
        found = [f"'{check.name}'" for check in checks if check.passed and check.max_abs and check.name in names]
        if not found:
            return ""
        return (
            f"integers of {', '.join(found)} differ by one unit, where rounding moves real numbers over a boundary"
        )

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
    found = (_rounding(proto.graph, types, name) for name in integer_outputs(proto))
    return [rounding for rounding in found if rounding is not None and rounding.reals]


def _rounding(graph: onnx.GraphProto, types: Mapping[str, int], output: str) -> _RoundedOutput | None:
    makers = {name: n for n, node in enumerate(graph.node) for name in node.output if name}
    tensors = {tensor.name for tensor in graph.initializer}
    left, seen, rounded = [output], {output}, set[str]()
    reals, given, nodes = set[str](), set[str](), set[int]()
    while left:
        name = left.pop()
        constant = name in makers and graph.node[makers[name]].op_type == "Constant"
        if name in tensors:
            continue
        if types.get(name) in _REAL and not constant and name not in rounded:
            rounded |= _rounded(graph, makers, name)
        if types.get(name) in _REAL and not constant and name not in rounded:
            reals.add(name)
        elif name not in makers:
            given.add(name)
        else:
            node = graph.node[makers[name]]
            if any(bodies_in(node)) or (types.get(name) is None and not constant):
                return None
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


# The shapes that a lowered model declares for its outputs: they must be those that it returns. onnxruntime warns
# of another shape and goes on; other runtimes allocate what is declared. A shape that the original declares
# wrongly too is no fault of the lowering.


@dataclass(frozen=True)
class DeclaredShapes:
    """The declared shapes of the outputs of two models.

    Attributes:
        original, lowered: The models; their outputs have the same names.
    """

    original: onnx.ModelProto
    lowered: onnx.ModelProto

    @cached_property
    def _before(self) -> Mapping[str, Dims | None]:
        return _shapes(self.original.graph.output)

    @cached_property
    def _after(self) -> Mapping[str, Dims | None]:
        return _shapes(self.lowered.graph.output)

    def fault(self, name: str, array: Array) -> str:
        """Return how an output of the lowered model contradicts its declared shape; "" if it does not.

        Args:
            name: The output.
            array: What was returned. onnxruntime gives rows that a Loop without a step stacks another rank.
        """
        before, after = self._before.get(name), self._after.get(name)
        if after is None or before == after:
            return ""
        same_rank = before is not None and len(before) == len(after)
        if len(after) != array.ndim:
            wrong = array.size > 0 and not same_rank
        else:
            sizes = zip(after, array.shape, before if before and same_rank else [None] * array.ndim, strict=True)
            wrong = any(declared not in (None, size, old) for declared, size, old in sizes)
        shown = ", ".join("?" if size is None else str(size) for size in after)
        return f"has shape {list(array.shape)}, but the lowered model declares [{shown}]" if wrong else ""

    def contradicted(self, name: str, array: Array) -> list[int]:
        """Return the axes of an output whose size both models declare, and a run contradicts."""
        before, after = self._before.get(name), self._after.get(name)
        if after is None or before != after or len(after) != array.ndim:
            return []
        return [axis for axis, size in enumerate(after) if size not in (None, array.shape[axis])]


def _shapes(values: Iterable[onnx.ValueInfoProto]) -> dict[str, Dims | None]:
    """Return shapes by name; None for an unknown rank, and for what is no tensor."""
    tensors = {value.name: value.type.tensor_type for value in values}
    return {
        name: tuple(dim.dim_value if dim.HasField("dim_value") else None for dim in tensor.shape.dim)
        if tensor.HasField("shape")
        else None
        for name, tensor in tensors.items()
    }
