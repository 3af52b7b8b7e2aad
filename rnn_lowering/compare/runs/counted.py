"""Which runs count: those at sizes that the model accepts, with a step for each recurrent node, as a Scan needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import onnx

from rnn_lowering.compare.result import ACCEPTED_ONLY, RunCheck
from rnn_lowering.compare.runs.runner import Alternatives, Runner
from rnn_lowering.nodes.kinds import is_recurrent, role_of
from rnn_lowering.types import Array

NO_STEPS = "the inputs give a Scan no step; give larger ones (--test-shape, --test-input), or use --to loop"


def lacks_steps(
    graph: onnx.GraphProto, arrays: Mapping[str, Array], *, only_states: bool = False, of_loops: bool = False
) -> bool:
    """Whether a recurrent node of a graph reads data without a step, of those whose arrays are given.

    Args:
        graph: The graph.
        arrays: Its arrays by name.
        only_states: Count only nodes that return a state, which onnxruntime then leaves as it lay in memory.
        of_loops: Count Loops too.
    """
    numbers = [arrays[n.input[0]] for n in graph.node if n.op_type == "Loop" and n.input[0] in arrays]
    if of_loops and any(number.size and (number <= 0).all() for number in numbers):
        return True
    for node in graph.node if any(not array.size for array in arrays.values()) else ():
        counts = is_recurrent(node) and (any(node.output[1:]) or not only_states)
        for slot, name in enumerate(node.input) if counts else ():
            role, shape = role_of(node, slot), arrays[name].shape if name in arrays else ()
            if role.is_data and ("T", 0) in zip(role.axes, shape, strict=False):
                return True
    return False


def larger_feeds(
    runner: Runner, groups: Sequence[Sequence[str]], lacking: Mapping[str, bool]
) -> tuple[list[Sequence[str]], str]:
    """Return groups of feeds in which larger ones take the place of those that lack steps, and which those are; ""
    if there are no larger ones.

    Args:
        runner: It has the feeds.
        groups: Alternative feeds for each run.
        lacking: Whether each feed that counted lacks steps.
    """
    larger, left_out = list(groups), ""
    for n, group in enumerate(groups):
        used = next((feed for feed in group if feed in lacking), "")
        if used and lacking[used]:
            others = Alternatives(feed for feed in group if _is_larger(runner.feed(feed), runner.feed(used)))
            if others[:1]:
                larger[n] = others
                left_out = ", ".join(f"{name} {list(array.shape)}" for name, array in runner.feed(used).items())
    return larger, left_out


def _is_larger(feed: Mapping[str, Array], other: Mapping[str, Array]) -> bool:
    """Whether an axis of an input is larger than in another feed."""
    shapes = ((array.shape, other[name].shape) for name, array in feed.items() if name in other)
    return any(a > b for pair in shapes for a, b in zip(*pair, strict=False))


def only_sizes(tried: Iterable[Mapping[str, Array]], runs: Sequence[RunCheck]) -> str:
    """Return a note about axes of which the original accepted only one of several tried sizes; else ""."""
    if len(runs) == 1:
        return ""
    sizes = _sizes_of_axes({name: array.shape for name, array in feed.items()} for feed in tried)
    accepted = _sizes_of_axes({given.name: given.shape for given in run.inputs} for run in runs)
    varied = [axis for axis, several in sizes.items() if len(several) > 1]
    single = [axis for axis in varied if len(accepted.get(axis, ())) == 1]
    if not single:
        return ""
    if len(single) == len(varied):
        texts = [f"{given.name} {list(given.shape)}" for given in runs[0].inputs]
    else:
        texts = [f"{min(accepted[name, axis])} on axis {axis} of '{name}'" for name, axis in single]
    return f"{ACCEPTED_ONLY} {', '.join(texts)}"


def _sizes_of_axes(runs: Iterable[Mapping[str, tuple[int, ...]]]) -> dict[tuple[str, int], set[int]]:
    """Return the sizes that each axis of an input has in some runs."""
    sizes: dict[tuple[str, int], set[int]] = {}
    for shapes in runs:
        for name, shape in shapes.items():
            for axis, size in enumerate(shape):
                sizes.setdefault((name, axis), set()).add(size)
    return sizes
