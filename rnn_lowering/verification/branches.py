"""The branches of If that runs of a model took: what is in the others was not compared."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from rnn_lowering.types import Array

_MOVING = frozenset(("Constant", "Identity", "Squeeze", "Unsqueeze", "Reshape", "Cast"))
"""Branches of these alone compute nothing."""

_MOST_SWITCHES = 3


@dataclass(frozen=True)
class _Branch:
    """A branch, and the conditions under which it runs: the names of values and what they must be."""

    label: str
    taken_if: tuple[tuple[str, bool], ...]


def conditions(graph: onnx.GraphProto) -> Iterator[str]:
    """Name the conditions of all Ifs; those computed in a branch are among them."""
    for branch in _branches(graph, ()):
        yield branch.taken_if[-1][0]


def untaken(graph: onnx.GraphProto, runs: Iterable[Mapping[str, Array]]) -> str:
    """Say which branches none of the runs is known to have taken; "" for none.

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
    return f"no run is known to have taken {', '.join(missed[:3])}{', ...' if len(missed) > 3 else ''}"


def _branches(graph: onnx.GraphProto, outer: tuple[tuple[str, bool], ...]) -> Iterator[_Branch]:
    for node in graph.node:
        for attribute in node.attribute:
            if node.op_type == "If" and attribute.name in ("then_branch", "else_branch"):
                taken_if = (*outer, (node.input[0], attribute.name == "then_branch"))
                if not {inner.op_type for inner in attribute.g.node} <= _MOVING:
                    yield _Branch(f"{attribute.name} of If node '{node.name or node.output[0]}'", taken_if)
                yield from _branches(attribute.g, taken_if)


def switches(graph: onnx.GraphProto) -> list[str]:
    """Name the inputs that are single truth values: they may choose branches."""
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
    """Return how many runs to make so that switches which are not given take each combination, if few."""
    free = [name for name in switches(graph) if name not in given]
    return max(runs, 2 ** min(len(free), _MOST_SWITCHES)) if runs else 0


def setting(graph: onnx.GraphProto, name: str, run: int) -> bool | None:
    """Return what a switch is in a run; None for an input that is none."""
    names = switches(graph)
    return bool(run >> names.index(name) & 1) if name in names else None
