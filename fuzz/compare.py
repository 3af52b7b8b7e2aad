"""A lowered model, or a stream of it, against the original: onnxruntime without optimizations, and float64 where
they differ or where onnxruntime has no kernel."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx
from cases import Array, Arrays
from onnx import TensorProto, helper
from running import nodes, session

from fuzz.double import truth
from fuzz.driver import Host

os.environ.setdefault("ALLOW_RELEASED_ONNX_OPSET_ONLY", "0")

NEAR = {"float32": 2e-4, "float64": 1e-9, "float16": 1e-2, "bfloat16": 8e-2}
"""The largest difference by type, relative to the largest number of an output."""

BRAIN: Any = helper.tensor_dtype_to_np_dtype(TensorProto.BFLOAT16)


class Running:
    """A model that runs on one set of inputs after another.

    Attributes:
        session: Of onnxruntime, if it has all kernels.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model, self.session, self.why = model, None, ""
        self.late = _fails_late(model)
        try:
            self.session = session(_with_floats(model), optimize=False)
        except Exception as error:  # onnxruntime has no common error
            self.why = " ".join(str(error).split())

    def run(self, feed: Arrays) -> Arrays:
        """Return the outputs by name; of the reference evaluator, if onnxruntime has no kernel."""
        if self.session is not None and not self.late:
            names = [output.name for output in self.model.graph.output]
            wanted = {value.name for value in self.session.get_inputs()}
            floats = {f"{n}/float": a.astype(np.float32) for n, a in feed.items() if a.dtype == BRAIN}
            given = {name: array for name, array in (feed | floats).items() if name in wanted}
            results = zip(names, self.session.run(None, given), strict=True)
            kinds = {v.name: v.type.tensor_type.elem_type for v in self.model.graph.output}
            return {n: a.astype(BRAIN) if kinds[n] == TensorProto.BFLOAT16 else a for n, a in results}
        return evaluated(self.model, feed)


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


def evaluated(model: onnx.ModelProto, feed: Arrays) -> Arrays:
    """Return the outputs in float64, of the types that the model declares."""
    kinds = {v.name: helper.tensor_dtype_to_np_dtype(v.type.tensor_type.elem_type) for v in model.graph.output}
    known = {value.name for value in model.graph.input}
    found = truth(model, {name: array for name, array in feed.items() if name in known})
    with np.errstate(all="ignore"):
        return {name: array.astype(kinds[name]) for name, array in found.items()}


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
    """Return whether got is about as near to the truth as expected is, or whether a single rounding of the inputs
    moves the truth as far: a recurrence amplifies rounding."""
    try:
        known = {value.name for value in model.graph.input}
        given = {name: array for name, array in feed.items() if name in known}
        true = truth(model, given)
        moved = truth(
            model, {n: np.nextafter(a, a.dtype.type(9)) if a.dtype == np.float32 else a for n, a in given.items()}
        )
    except Exception:
        return False
    for name, array in true.items():
        if array.dtype.kind != "f":
            continue
        amplified = 1e3 * distance(moved[name], array)
        bound = max(4 * distance(expected[name], array), amplified, NEAR.get(expected[name].dtype.name, 0.0))
        if expected[name].shape != got[name].shape or not distance(got[name], array) <= bound:
            return False
    return True


def judged_pair(model: onnx.ModelProto, lowered: onnx.ModelProto, feeds: Sequence[Arrays]) -> tuple[str, str, int]:
    """Compare two models on some inputs.

    Returns:
        What is wrong, "" for nothing; why nothing was compared, if so; the number of comparisons.
    """
    first, second = Running(model), Running(lowered)
    if second.session is None and first.session is not None:
        return f"onnxruntime refuses the result: {second.why}", "", 0
    count, why = 0, ""
    for feed in feeds:
        try:
            expected = first.run(feed)
        except Exception as error:  # also of the evaluator
            why = " ".join(str(error).split())
            continue
        try:
            got = second.run(feed)
        except Exception as error:
            if second.session is None:  # the evaluator misreads some bodies
                why = " ".join(str(error).split())
                continue
            return f"the result fails: {' '.join(str(error).split())}", "", count
        if not got.keys() <= expected.keys():
            return f"outputs {sorted(got)}, not {sorted(expected)}", "", count
        different = differ(got, expected, nearness(model))
        if different and not rounding(model, feed, got, expected):
            sizes = {name: list(array.shape) for name, array in feed.items()}
            return f"{different} for {sizes}", "", count
        count += 1
    return "", "" if count else why or first.why, count


def judged_stream(
    model: onnx.ModelProto, stream: onnx.ModelProto, feeds: Sequence[Arrays], chunks: Sequence[Sequence[int]]
) -> tuple[str, str, int]:
    """Compare a stream that is not late with the whole, by its metadata; returns as `judged_pair`."""
    first, second = Running(model), Running(stream)
    host = Host(stream, second.run)
    plan = host.plan
    if second.session is None and first.session is not None:
        return f"onnxruntime refuses the stream: {second.why}", "", 0
    if (
        plan["delay"]
        or plan["short"]
        or plan["unit"] != 1
        or (plan["rates"] and set(plan["rates"].values()) != {"1"})
    ):
        return "", "late, short, or of another rate", 0
    count, why = 0, ""
    for feed in feeds:
        length, size = host.frames(feed), host.call
        if length < size or length % size:
            continue
        try:
            expected = first.run(feed)
        except Exception as error:
            why = " ".join(str(error).split())
            continue
        for sizes in [[size]] if plan["frames"] else chunks:
            try:
                outputs, states = host(feed, sizes)
            except Exception as error:
                return f"the stream fails: {' '.join(str(error).split())}", "", count
            got = states | outputs
            wanted = {name: array for name, array in expected.items() if name in got}
            lost = expected.keys() - got.keys()
            if lost:
                return f"outputs {sorted(lost)} are missing", "", count
            carried = {state["dtype"] for state in plan["states"]}  # what rounds in each call
            rounded = 5 * max((NEAR[kind] for kind in carried & {"float16", "bfloat16"}), default=0.0)
            different = differ(got, wanted, max(rounded, nearness(model)))
            if different and not rounding(model, feed, got, wanted):
                return f"{different} for {length} frames in chunks of {sizes}", "", count
            count += 1
    return "", "" if count else why or "no sequence fits the chunks", count
