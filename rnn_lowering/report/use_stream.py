"""Code that calls a stream chunk by chunk with a function `run`, for runtimes that know nothing of its states."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from rnn_lowering.report.ports import Port, array_of, arrays
from rnn_lowering.streaming.metadata import State, StreamPlan

if TYPE_CHECKING:
    from fractions import Fraction

_MOST_NUMBERS = 64
"""The most numbers of a first state that are written out."""


def host_code(plan: StreamPlan, inputs: Sequence[Port], outputs: Sequence[Port]) -> list[str] | None:
    """Return code that runs the chunks of a sequence and joins what they give, line by line; the frames of delayed
    outputs are those of the sequence. None where a state starts with too many numbers."""
    if any(np.size(state.initial) > _MOST_NUMBERS for state in plan.states):
        return None
    states, late = {state.input for state in plan.states}, plan.frames_late
    chunk = [port for port in inputs if port.name not in states]
    lines = ["chunks = [{  # the first one of a sequence: add the others", *arrays(chunk), "}]"]
    lines += ["states = {", *(f"    {s.input!r}: {_first(s)}," for s in plan.states), "}"]
    behind = ""
    if late:
        lines += ["zeros = chunks[-1] | {  # behind the sequence: outputs come late", *_zeros(plan, chunk), "}"]
        behind = f" + [zeros] * {late // (plan.frames or late)}"
    lines += ["results = []", f"for chunk in chunks{behind}:", "    feed = {**chunk, **states}"]
    lines += [f"    arrays = run({{name: feed[name] for name in {_names(inputs)}}})"]
    lines += [f"    results.append(dict(zip({_names(outputs)}, arrays)))", "    states = {"]
    lines += [f"        {s.input!r}: np.asarray(results[-1][{s.output!r}], {s.dtype!r})," for s in plan.states]
    return [*lines, "    }", *_joined(plan)]


def _names(ports: Sequence[Port]) -> list[str]:
    return [port.name for port in ports]


def _first(state: State) -> str:
    """Return code that makes the first array of a state, with 1 for open sizes."""
    names = [dim.partition("*")[2] or dim for dim in state.shape if isinstance(dim, str)]
    sizes = list(state.sizes(dict.fromkeys(names, 1)))
    if state.initial == "zeros":
        return array_of(sizes, state.dtype)
    return f"np.broadcast_to(np.array({state.initial!r}, {state.dtype!r}), {sizes}).copy()"


def _zeros(plan: StreamPlan, chunk: Sequence[Port]) -> Iterator[str]:
    """Yield the lines of the inputs along time in a chunk of zeros."""
    for port in chunk:
        axis = plan.inputs[port.name]
        if axis is not None:
            sizes = port.sizes
            sizes[axis] = int((plan.frames or plan.frames_late) * plan.rate(port.name))
            yield f"    {port.name!r}: {array_of(sizes, port.dtype)},"


def _joined(plan: StreamPlan) -> Iterator[str]:
    """Yield the lines that join the frames of each output, without those before and behind the sequence."""
    if plan.frames_late:
        timed, along = next((name, axis) for name, axis in plan.inputs.items() if axis is not None)
        yield f"frames = sum(chunk[{timed!r}].shape[{along}] for chunk in chunks){_times(1 / plan.rate(timed))}"
    yield "outputs = {"
    for name, axis in plan.outputs.items():
        if axis is None:
            yield f"    {name!r}: results[-1][{name!r}],"
        else:
            parts = f"np.concatenate([result[{name!r}] for result in results], {axis})"
            yield f"    {name!r}: {parts}{_frames_of(plan, name, axis)},"
    yield "}"


def _frames_of(plan: StreamPlan, name: str, axis: int) -> str:
    """Return the slice of the frames that belong to the sequence; "" where all do."""
    if not plan.frames_late:
        return ""
    late, short = plan.delay.get(name, 0), plan.short.get(name, 0)
    end = f"{late} + frames" if late else "frames"
    stop = f"{end}{_times(plan.rate(name))}" + (f" - {short}" if short else "")
    return f"[{':, ' * axis}{late or ''}:{stop}]"


def _times(rate: Fraction) -> str:
    times = f" * {rate.numerator}" if rate.numerator != 1 else ""
    return times + (f" // {rate.denominator}" if rate.denominator != 1 else "")
