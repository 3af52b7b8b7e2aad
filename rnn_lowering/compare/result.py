"""The result of a comparison: its status, each run, each output.

What a comparison does not cover: untaken branches, zero weights, constant and random outputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import numpy_helper

from rnn_lowering.compare.tolerance import blocks
from rnn_lowering.model.messages import bodies_in, nodes_in
from rnn_lowering.spec.node_outputs import RANDOM
from rnn_lowering.types import Array, array_of

WHOLE = "onnxruntime"
EACH_NODE = "each node against float64 NumPy"
CHUNKED = "onnxruntime, in chunks"
COMPARE_ELSEWHERE = "compare both models in a runtime that supports the original"
OPTIMIZATIONS = "onnxruntime's optimizations change the original's outputs: compared without them"
JUDGED = "onnxruntime, differences judged by float64 NumPy"


@dataclass(frozen=True)
class OutputCheck:
    """One output of the model (or of one node), in one run or over all of them.

    Attributes:
        name: The name of an output of the model, or "Y of LSTM node 'name' in scope" for one of a node.
        max_abs: The largest absolute difference; infinite where type or shape differ, or only one side is NaN.
        passed: Whether it is within the tolerance.
        reason: Why it is not.
    """

    name: str
    max_abs: float
    passed: bool
    reason: str = ""

    @classmethod
    def of(cls, name: str, max_abs: float, reason: str) -> OutputCheck:
        """Return the check of an output, which failed if there is a reason."""
        return cls(name, max_abs, not reason, reason)


@dataclass(frozen=True)
class RunInput:
    """An input of a run: its name and shape; the least and the greatest number of an input of sequence lengths."""

    name: str
    shape: tuple[int, ...]
    lengths: tuple[int, int] | None = None

    @classmethod
    def of(cls, name: str, array: Array, *, are_lengths: bool) -> RunInput:
        lengths = (int(array.min()), int(array.max())) if are_lengths and array.size else None
        return cls(name, array.shape, lengths)


@dataclass(frozen=True)
class RunCheck:
    """One run: its inputs, and the differences of its outputs."""

    inputs: tuple[RunInput, ...]
    outputs: tuple[OutputCheck, ...]

    @property
    def wrong(self) -> bool:
        return not all(output.passed for output in self.outputs)


@dataclass(frozen=True)
class Verification:
    """The result of `verify`.

    Attributes:
        status: "verified", "failed", or "not verified" if nothing could be compared.
        method: How it was compared: `WHOLE`, `EACH_NODE`, `JUDGED`, or `CHUNKED` and the sizes of the chunks.
        runs: How many runs were compared.
        outputs: One entry per output of the model over all runs; with `EACH_NODE` per output of each node.
        reason: Why the comparison failed or was not possible, or which part was not possible.
        each_run: The runs one by one.
        nodes: One entry per output of each node that was also compared on its own with float64, over all its runs.

    Examples:
        >>> check = rl.verify(model, rl.lower(model), runs=1)
        >>> bool(check), check.status, check.max_abs < 1e-5
        (True, 'verified', True)
    """

    status: str
    method: str = WHOLE
    runs: int = 0
    outputs: tuple[OutputCheck, ...] = ()
    reason: str = ""
    each_run: tuple[RunCheck, ...] = ()
    nodes: tuple[OutputCheck, ...] = ()

    def __bool__(self) -> bool:
        return self.status == "verified"

    @property
    def whole(self) -> bool:
        """Whether the outputs of the two models were compared, not only those of single nodes."""
        return bool(self.runs) and self.method != EACH_NODE

    @property
    def max_abs(self) -> float:
        """The largest absolute difference of any output in any run."""
        return max((o.max_abs for o in self.outputs), default=0.0)

    def __str__(self) -> str:
        """Return the result in one line."""
        if self.status == "failed":
            return f"verification failed ({self.method}): {self.reason}"
        if self.status != "verified":
            return f"not verified: {self.reason}"
        numbers = f"{self.runs} runs, largest difference {self.max_abs:.2g}"
        if self.method == EACH_NODE:
            return f"nodes verified, not the whole model ({EACH_NODE}): {numbers}; {self.reason}"
        line = f"verified ({self.method}): {numbers}"
        return f"{line}; {self.reason}" if self.reason else line

    def with_advice(self, advice: str) -> Verification:
        """Return the same result with a hint appended."""
        return replace(self, reason=f"{self.reason}; {advice}")

    def judged(self, reason: str) -> Verification:
        """Return a failed comparison as verified, because float64 confirms it."""
        each_run = tuple(RunCheck(run.inputs, _passed(run.outputs)) for run in self.each_run)
        return Verification("verified", JUDGED, self.runs, _passed(self.outputs), reason, each_run)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data: the fields by name, `max_abs` and `whole`."""
        return asdict(self) | {"max_abs": self.max_abs, "whole": self.whole}


def _passed(checks: Iterable[OutputCheck]) -> tuple[OutputCheck, ...]:
    return tuple(replace(check, passed=True) for check in checks)


def over_all(runs: Iterable[RunCheck]) -> tuple[OutputCheck, ...]:
    """Merge the checks of several runs into one per output, with the reason of the worst."""
    found: dict[str, list[OutputCheck]] = {}
    for run in runs:
        for check in run.outputs:
            found.setdefault(check.name, []).append(check)
    return tuple(_over_all(checks) for checks in found.values())


def _over_all(checks: list[OutputCheck]) -> OutputCheck:
    worst = min(checks, key=lambda check: (check.passed, -check.max_abs))
    return OutputCheck(worst.name, max(check.max_abs for check in checks), worst.passed, worst.reason)


_MOVING = frozenset(("Constant", "Identity", "Squeeze", "Unsqueeze", "Reshape", "Cast"))
"""Branches of these alone compute nothing."""

_MOST_SWITCHES = 3


@dataclass(frozen=True)
class _Branch:
    """A branch, and the condition values under which it runs, by name."""

    label: str
    taken_if: tuple[tuple[str, bool], ...]


def conditions(graph: onnx.GraphProto) -> Iterator[str]:
    """Yield the names of the conditions of all Ifs, nested ones included."""
    for branch in _branches(graph, ()):
        yield branch.taken_if[-1][0]


def untaken(graph: onnx.GraphProto, runs: Iterable[Mapping[str, Array]]) -> str:
    """Return a note on the branches that no run is known to take; "" if there are none.

    Args:
        graph: The main graph of the model.
        runs: For each run its `conditions` by name, as far as they are known.
    """
    known = [{name: bool(np.all(array)) for name, array in run.items()} for run in runs]
    fixed = {tensor.name for tensor in graph.initializer} - {value.name for value in graph.input}
    missed = [
        branch.label
        for branch in _branches(graph, ())
        if not any(run.items() >= set(branch.taken_if) for run in known)
        and not any(name in fixed for name, _ in branch.taken_if)
    ]
    if not missed:
        return ""
    return f"the runs may have missed {', '.join(missed[:3])}{', ...' if len(missed) > 3 else ''}"


def _branches(graph: onnx.GraphProto, outer: tuple[tuple[str, bool], ...]) -> Iterator[_Branch]:
    for node in graph.node:
        for attribute in node.attribute:
            if node.op_type == "If" and attribute.name in ("then_branch", "else_branch"):
                taken_if = (*outer, (node.input[0], attribute.name == "then_branch"))
                if not {inner.op_type for inner in attribute.g.node} <= _MOVING:
                    yield _Branch(f"{attribute.name} of If node '{node.name or node.output[0]}'", taken_if)
                yield from _branches(attribute.g, taken_if)


def switches(graph: onnx.GraphProto) -> list[str]:
    """Return the names of the inputs that are a single boolean: they may choose a branch."""
    given = {tensor.name for tensor in graph.initializer}
    return [
        value.name
        for value in graph.input
        if value.name not in given
        and value.type.tensor_type.elem_type == onnx.TensorProto.BOOL
        and value.type.tensor_type.HasField("shape")
        and all(dim.dim_value == 1 for dim in value.type.tensor_type.shape.dim)
    ]


def runs_for(graph: onnx.GraphProto, runs: int, given: Sequence[str] = ()) -> int:
    """Return the number of runs that covers every combination of the switches, if there are few."""
    free = [name for name in switches(graph) if name not in given]
    return max(runs, 2 ** min(len(free), _MOST_SWITCHES)) if runs else 0


def setting(graph: onnx.GraphProto, name: str, run: int) -> bool | None:
    """Return the value of a switch in a run; None if the input is not a switch."""
    names = switches(graph)
    return bool(run >> names.index(name) & 1) if name in names else None


def zero_weights(weights: Iterable[tuple[str, object, ir.TensorProtocol | None]]) -> list[str]:
    """Return a note for each weight that is all zeros.

    Args:
        weights: The symbol of each, its node, and its tensor where that is constant.
    """
    return [
        f"{symbol} of {node} is all zeros, which hides errors in what it multiplies"
        for symbol, node, tensor in weights
        if tensor is not None and tensor.size and not any(part.any() for part in blocks(array_of(tensor)))
    ]


def constant_outputs(runs: Iterable[Mapping[str, Array]]) -> list[str]:
    """Return a note for each output that is constant over all runs.

    Args:
        runs: The outputs of each run by name.
    """
    ranges: dict[str, tuple[float, float]] = {}
    sizes: dict[str, int] = {}
    for run in runs:
        for name, array in run.items():
            if array.dtype.kind != "f" or not array.size:
                continue
            low, high = ranges.get(name, (float("inf"), -float("inf")))
            ranges[name] = min(low, float(array.min())), max(high, float(array.max()))
            sizes[name] = sizes.get(name, 0) + array.size
    return [
        f"output '{name}' is {low:g} throughout: comparing it proves little"
        for name, (low, high) in ranges.items()
        if low == high and sizes[name] > 1
    ]


def undetermined_outputs(model: onnx.ModelProto) -> dict[str, str]:
    """Return the outputs that depend on random numbers, with the operator that draws them."""
    drawn_by = _RandomOperators(model)
    reached: dict[str, str] = {}
    before = -1
    while len(reached) > before:  # until nothing more is reached: a model need not be sorted
        before = len(reached)
        for node in model.graph.node:
            read = (name for inner in (node, *_inner(node)) for name in inner.input)
            source = next((reached[name] for name in read if name in reached), "") or drawn_by(node)
            reached |= {name: source for name in node.output if name and source}
    return {value.name: reached[value.name] for value in model.graph.output if value.name in reached}


def _inner(node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes in the bodies of a node."""
    for body in bodies_in(node):
        yield from nodes_in(body)


class _RandomOperators:
    """Finds the operator that draws random numbers in a node, its bodies or its function; "" for none.

    Each function is searched once, even if it calls itself or is called many times.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self._functions = {(f.domain, f.name): f for f in model.functions}
        self._found: dict[tuple[str, str], str] = {}
        self._off = {
            t.name for t in model.graph.initializer if t.data_type == onnx.TensorProto.BOOL and not _any(t)
        }

    def __call__(self, node: onnx.NodeProto) -> str:
        return next(filter(None, map(self._of_one, (node, *_inner(node)))), "")

    def _of_one(self, node: onnx.NodeProto) -> str:
        if node.op_type in RANDOM:
            return node.op_type
        if node.op_type == "Dropout" and len(node.input) > 2 and node.input[2] and node.input[2] not in self._off:
            return "Dropout in training mode"
        function = node.domain, node.op_type
        if function in self._functions and function not in self._found:
            self._found[function] = ""  # until its nodes are searched
            self._found[function] = next(filter(None, map(self, self._functions[function].node)), "")
        return self._found.get(function, "")


def _any(tensor: onnx.TensorProto) -> bool:
    return not tensor.external_data and bool(numpy_helper.to_array(tensor).any())
