"""A lowered model, or a stream of it, against the original: onnxruntime without optimizations, and float64 where
they differ or where onnxruntime has no kernel."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from cases import Array, Arrays
from onnx import TensorProto, helper
from running import nodes, session

from fuzz.case import Outcome, agreed, fault
from fuzz.double import OVERFLOWS, truth, within_range
from fuzz.driver import Host
from fuzz.oracles import retype

os.environ.setdefault("ALLOW_RELEASED_ONNX_OPSET_ONLY", "0")

NEAR = {"float32": 2e-4, "float64": 1e-9, "float16": 1e-2, "bfloat16": 8e-2}
"""The largest difference by type, relative to the largest number of an output."""

BRAIN: Any = helper.tensor_dtype_to_np_dtype(TensorProto.BFLOAT16)


class Running:
    """A model that runs on one set of inputs after another.

    Attributes:
        session: Of onnxruntime, if it has all kernels.
    """

    def __init__(self, model: onnx.ModelProto, widened: bool = False) -> None:
        self.model, self.session, self.why, self.widened = model, None, "", widened
        self.late = _fails_late(model)
        try:
            self.session = session(_with_floats(model), optimize=False)
        except Exception as error:  # onnxruntime has no common error
            self.why = " ".join(str(error).split())

    @cached_property
    def wide(self) -> Running:
        """The same in float32, with inputs of any floats."""
        copy: onnx.ModelProto = onnx.ModelProto.FromString(self.model.SerializeToString())
        retype(copy, (TensorProto.FLOAT16, TensorProto.BFLOAT16), TensorProto.FLOAT)
        return Running(copy, widened=True)

    def run(self, feed: Arrays) -> Arrays:
        """Return the outputs by name; in float32 or of the reference evaluator, if onnxruntime has no kernel."""
        if self.widened:
            feed = {n: a.astype(np.float32) if a.dtype.name in NEAR else a for n, a in feed.items()}
        outputs = self.model.graph.output
        kinds = {v.name: helper.tensor_dtype_to_np_dtype(v.type.tensor_type.elem_type) for v in outputs}
        if self.session is not None and not self.late:
            wanted = {value.name for value in self.session.get_inputs()}
            floats = {f"{n}/float": a.astype(np.float32) for n, a in feed.items() if a.dtype == BRAIN}
            given = {name: array for name, array in (feed | floats).items() if name in wanted}
            results = zip(kinds, self.session.run(None, given), strict=True)
            return {n: a.astype(BRAIN) if kinds[n] == BRAIN else a for n, a in results}
        if nearness(self.model) and self.wide.session is not None:
            wide = self.wide.run(feed)
        else:
            known = {value.name for value in self.model.graph.input}
            wide = truth(self.model, {name: array for name, array in feed.items() if name in known})
        with np.errstate(all="ignore"):
            return {name: array.astype(kinds[name]) for name, array in wide.items()}


def _fails_late(model: onnx.ModelProto) -> bool:
    """Return whether onnxruntime loads a model that it cannot run: GRU and LSTM in float64."""
    wide = any(v.type.tensor_type.elem_type == TensorProto.DOUBLE for v in model.graph.input)
    return wide and any(node.op_type in ("GRU", "LSTM") for node in nodes(model))


def _with_floats(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model with inputs and outputs of float where they are of bfloat16, which Python cannot pass."""
    brains = [
        v for v in (*model.graph.input, *model.graph.output) if v.type.tensor_type.elem_type == TensorProto.BFLOAT16
    ]
    if not brains:
        return model
    new: onnx.ModelProto = onnx.ModelProto.FromString(model.SerializeToString())
    for value in new.graph.input:
        if value.type.tensor_type.elem_type == TensorProto.BFLOAT16:
            new.graph.node.insert(
                0, helper.make_node("Cast", [f"{value.name}/float"], [value.name], to=TensorProto.BFLOAT16)
            )
            value.name, value.type.tensor_type.elem_type = f"{value.name}/float", TensorProto.FLOAT
    for value in new.graph.output:
        if value.type.tensor_type.elem_type == TensorProto.BFLOAT16:
            new.graph.node.append(
                helper.make_node("Cast", [value.name], [f"{value.name}/float"], to=TensorProto.FLOAT)
            )
            value.name, value.type.tensor_type.elem_type = f"{value.name}/float", TensorProto.FLOAT
    return new


def nearness(model: onnx.ModelProto) -> float:
    """Return how near outputs must be at least: that of the coarsest type that a model computes with."""
    found = {TensorProto.DataType.Name(kind).lower() for kind in _types(model)}
    return max((NEAR[name] for name in ("float16", "bfloat16") if name in found), default=0.0)


def _types(message: Any) -> Iterator[int]:
    """Yield the element types that are in a message, at any depth."""
    if isinstance(message, onnx.TensorProto):
        yield message.data_type
    elif isinstance(message, onnx.TypeProto.Tensor):
        yield message.elem_type
    elif isinstance(message, onnx.AttributeProto) and message.name in ("to", "dtype"):
        yield message.i
    else:
        for field, value in message.ListFields():
            if field.message_type is not None:
                for inner in [value] if hasattr(value, "ListFields") else value:
                    yield from _types(inner)


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
    first, second = Running(model), Running(lowered)
    if second.session is None and first.session is not None:
        return fault("onnxruntime refuses the result", second.why)
    return _together(_judged(first, second, feed) for feed in feeds)


def judged_stream(
    model: onnx.ModelProto, stream: onnx.ModelProto, feeds: Sequence[Arrays], chunks: Sequence[Sequence[int]]
) -> Outcome:
    """Compare a stream that is not late with the whole, by its metadata."""
    first, second = Running(model), Running(stream)
    host = Host(stream, second.run)
    plan = host.plan
    if second.session is None and first.session is not None:
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
        expected = first.run(feed)
    except Exception as error:  # also of the evaluator
        return _invalid(first.why or str(error))
    try:
        got = _streamed(second, feed, expected, sizes) if sizes else second.run(feed)
    except Exception as error:
        # The evaluator misreads some bodies.
        return _invalid(str(error)) if second.session is None else fault("the result fails", str(error)[:500])
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


def _streamed(second: Running, feed: Arrays, names: Collection[str], sizes: Sequence[int]) -> Arrays:
    """Return those outputs and last states of a stream that the whole has."""
    outputs, states = Host(second.model, second.run)(feed, sizes)
    return {name: array for name, array in (states | outputs).items() if name in names}
