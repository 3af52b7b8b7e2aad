"""Integer outputs that round real numbers, as Cast and QuantizeLinear do: where they may differ by one unit.

An integer may be the next one where the real number before it is within the tolerance of a boundary.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import onnx

from rnn_lowering.compare.judgement.tolerance import allowance
from rnn_lowering.compare.options import Tolerance
from rnn_lowering.compare.result import OutputCheck, RunCheck
from rnn_lowering.compare.runs.runner import Runner, SessionError
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
