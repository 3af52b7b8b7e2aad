"""A lowered model, or a stream of it, against the original: onnxruntime without optimizations, and float64 where
they differ or where onnxruntime has no kernel."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np
import onnx
from cases import Array, Arrays

from fuzz.case import Outcome, agreed, fault
from fuzz.double import OVERFLOWS, truth, within_range
from fuzz.driver import Host
from fuzz.element_types import element_types
from fuzz.oracles import Running

NEAR = {"float32": 2e-4, "float64": 1e-9, "float16": 1e-2, "bfloat16": 8e-2}
"""The largest difference by type, relative to the largest number of an output."""


def nearness(model: onnx.ModelProto) -> float:
    """Return how near outputs must be at least: that of the coarsest type that a model computes with."""
    return max((NEAR[name] for name in element_types(model) & {"float16", "bfloat16"}), default=0.0)


def differ(got: Arrays, expected: Arrays, near: float = 0.0) -> str:
    """Return which output differs by more than its type or `near` allows, and by how much; "" for none."""
    for name, array in expected.items():
        if name not in got:
            return f"{name} is missing"
        if got[name].shape != array.shape or got[name].dtype != array.dtype:
            return f"{name} is {got[name].dtype}{list(got[name].shape)}, not {array.dtype}{list(array.shape)}"
        apart, bound = distance(got[name], array), max(near, NEAR.get(array.dtype.name, 0.0))
        if not apart <= bound:
            return f"{name} differs by {apart:.2g}"
    return ""


def distance(got: Array, expected: Array) -> float:
    """Return the largest difference, relative to the largest number or to 1e-3; infinite if one side is not
    finite."""
    if expected.dtype.kind not in "f" and expected.dtype.name != "bfloat16":
        return 0.0 if np.array_equal(got, expected) else np.inf
    if not expected.size:
        return 0.0
    first, second = got.astype(np.float64), expected.astype(np.float64)
    with np.errstate(all="ignore"):
        same = (first == second) | (np.isnan(first) & np.isnan(second))
        finite = np.abs(second[np.isfinite(second)])
        scale = max(1e-3, float(finite.max(initial=0)))
        apart = np.where(same, 0, np.abs(first - second))
    largest = float(apart.max())
    return largest / scale if np.isfinite(largest) else np.inf


def rounding(model: onnx.ModelProto, feed: Arrays, got: Arrays, expected: Arrays) -> bool:
    """Return whether got is about as near to the truth as expected is, or as rounding in the model's own types is,
    or whether a single rounding of the inputs moves the truth as far: a recurrence amplifies rounding."""
    try:
        known = {value.name for value in model.graph.input}
        given = {name: array for name, array in feed.items() if name in known}
        true, rounded = truth(model, given), truth(model, given, rounded=True)
        moved = truth(
            model, {n: np.nextafter(a, a.dtype.type(9)) if a.dtype == np.float32 else a for n, a in given.items()}
        )
    except Exception:
        return False
    for name, array in true.items():
        if array.dtype.kind != "f":
            continue
        own = max(distance(expected[name], array), distance(rounded[name], array))
        bound = max(4 * own, 1e3 * distance(moved[name], array), NEAR.get(expected[name].dtype.name, 0.0))
        if expected[name].shape != got[name].shape or not distance(got[name], array) <= bound < np.inf:
            return False
    return True


def judged_pair(model: onnx.ModelProto, lowered: onnx.ModelProto, feeds: Sequence[Arrays]) -> Outcome:
    """Compare two models on some inputs."""
    first, second = Running(model, narrow=False), Running(lowered, narrow=False)
    if second.why and not first.why:
        return fault("onnxruntime refuses the result", second.why)
    return _together(_judged(first, second, feed) for feed in feeds)


def judged_stream(
    model: onnx.ModelProto, stream: onnx.ModelProto, feeds: Sequence[Arrays], chunks: Sequence[Sequence[int]]
) -> Outcome:
    """Compare a stream that is not late with the whole, by its metadata."""
    first, second = Running(model, narrow=False), Running(stream, narrow=False)
    host = Host(stream, second)
    plan = host.plan
    if second.why and not first.why:
        return fault("onnxruntime refuses the stream", second.why)
    if (
        plan["delay"]
        or plan["short"]
        or plan["unit"] != 1
        or (plan["rates"] and set(plan["rates"].values()) != {"1"})
    ):
        return Outcome("invalid", "late, short, or of another rate")
    given = [feed for feed in feeds if host.frames(feed) >= host.call and not host.frames(feed) % host.call]
    calls = [[host.call]] if plan["frames"] else chunks
    return _together(_judged(first, second, feed, sizes) for feed in given for sizes in calls)


def _together(outcomes: Iterable[Outcome]) -> Outcome:
    """Return the first fault; else how many comparisons agreed, or why there was none."""
    count, last = 0, Outcome("invalid", "no sequence fits the chunks")
    for last in outcomes:
        if last.kind == "fault":
            return fault(last.what, last.detail, count)
        count += last.comparisons
    return agreed(count) if count else last


def _judged(first: Running, second: Running, feed: Arrays, sizes: Sequence[int] = ()) -> Outcome:
    """Compare on some inputs, or on smaller ones where a type overflows; a stream in calls of some sizes."""
    try:
        expected = first(feed)
    except Exception as error:  # also of the evaluator
        return _invalid(first.why or str(error))
    try:
        got = streamed(second, feed, expected, sizes) if sizes else second(feed)
    except Exception as error:
        # The evaluator misreads some bodies.
        return _invalid(str(error)) if second.why else fault("the result fails", str(error)[:500])
    if not got.keys() <= expected.keys():
        return fault("other outputs", f"{sorted(got)}, not {sorted(expected)}")
    different = differ(got, expected, nearness(first.model))
    if not different:
        return agreed(1)
    if rounding(first.model, feed, got, expected):  # less of it in float32
        return _judged(first.wide, second.wide, feed, sizes) if nearness(first.model) else agreed(1)
    less = within_range(first.model, feed)
    if less is None:
        return _invalid(OVERFLOWS)
    if less is not feed:
        return _judged(first, second, less, sizes)
    shapes = {name: list(array.shape) for name, array in feed.items()}
    return fault("other numbers", f"{different} for {shapes}" + (f" in calls of {sizes}" if sizes else ""))


def _invalid(why: str) -> Outcome:
    text = " ".join(why.split())
    return Outcome("invalid", text[:90], text)


def streamed(second: Running, feed: Arrays, names: Collection[str], sizes: Sequence[int]) -> Arrays:
    """Return those outputs and last states of a stream that the whole has."""
    outputs, states = Host(second.model, second)(feed, sizes)
    return {name: array for name, array in (states | outputs).items() if name in names}
