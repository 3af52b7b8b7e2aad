"""The fills of a stream, such as -1e9 in a mask, move to where the data of a calibration are.

Data are the elements that stay the same when all fills are doubled: the stream runs with both, side by side.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import count

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

from rnn_lowering.streaming.integers.calibration import Recorder
from rnn_lowering.streaming.integers.fills import Fill, fills_of
from rnn_lowering.streaming.metadata import KEY, StreamPlan, initial_of
from rnn_lowering.types import Array, ArrayLike

_Ranges = dict[str, tuple[float, float]]


def with_near_fills(
    model: onnx.ModelProto, plan: StreamPlan, sequences: Sequence[Mapping[str, ArrayLike]]
) -> onnx.ModelProto:
    """Return a stream whose fills lie in or near the ranges that the data of these sequences have."""
    fills = fills_of(model, plan)
    masks = _held(model, {mask for fill in fills for mask in fill.masks}, sequences)
    fills = [fill for fill in fills if masks.issuperset(fill.masks)]
    if not fills:
        return model
    ranges = _measured(model, fills, sequences)
    return _with(model, [(fill, _near(fill, ranges)) for fill in fills])


def _held(
    model: onnx.ModelProto, masks: set[tuple[str, int]], sequences: Sequence[Mapping[str, ArrayLike]]
) -> set[tuple[str, int]]:
    """Return those masks that are 0 or their number everywhere."""
    held = set(masks)
    run = _run_with(model, sorted({name for name, _ in masks}))
    for call in (call for sequence in sequences for call in run.calls(sequence) if held):
        for mask in masks:
            if not np.isin(call[mask[0]], (0, mask[1])).all():
                held.discard(mask)
    return held


def _measured(
    model: onnx.ModelProto, fills: Sequence[Fill], sequences: Sequence[Mapping[str, ArrayLike]]
) -> _Ranges:
    """Return the range of the data that fills meet, by tensor."""
    meetings = [meeting for fill in fills for each in fill.meetings.values() for meeting in each]
    names = sorted({name for meeting in meetings for name in meeting.data})
    runs = [_run_with(_with(model, [(fill, _times(fill, n)) for fill in fills]), names) for n in (1, 2)]
    ranges = _Ranges()
    for sequence in sequences:
        for one, two in zip(*(run.calls(sequence) for run in runs), strict=True):
            for name in names:
                array, other = one[name], two[name]
                if (data := array[(array == other) & np.isfinite(array)]).size:
                    low, high = ranges.get(name, (np.inf, -np.inf))
                    ranges[name] = min(low, float(data.min())), max(high, float(data.max()))
    return ranges


def _run_with(model: onnx.ModelProto, names: Sequence[str]) -> Recorder:
    """Return a run of a stream that records these tensors too."""
    work = onnx.ModelProto()
    work.CopyFrom(model)
    more = [name for name in names if name not in {v.name for v in (*work.graph.input, *work.graph.output)}]
    work.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in more)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(work.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return Recorder(session, len(more))


def _times(fill: Fill, factor: int) -> Array:
    """Return a constant whose fills are multiplied."""
    numbers = fill.numbers.copy()
    for sign in (-1, 1):
        found = fill.elements(sign)
        numbers[found] = sign * factor * np.minimum(np.abs(numbers[found]), np.finfo(fill.dtype).max ** 0.8)
    return numbers


def _near(fill: Fill, ranges: _Ranges) -> Array:
    """Return a constant whose fills are near the data that they meet."""
    numbers = fill.numbers.copy()
    for sign, meetings in fill.meetings.items():
        found, nears = fill.elements(sign), list[float]()
        for meeting in meetings:
            if data := [ranges[name] for name in meeting.data if name in ranges]:
                lows, highs = zip(*data, strict=True)
                nears.append(meeting.near(sign, min(lows), max(highs)))
        if nears:
            farthest = max(sign * near for near in nears)
            numbers[found] = sign * np.minimum(sign * numbers[found], farthest)
    return numbers


def _with(model: onnx.ModelProto, changes: Sequence[tuple[Fill, Array]]) -> onnx.ModelProto:
    """Return a copy of a stream with other fills."""
    work = onnx.ModelProto()
    work.CopyFrom(model)
    entry = next(each for each in work.metadata_props if each.key == KEY)
    plan = json.loads(entry.value)
    taken = {name for each in work.graph.node for name in (*each.input, *each.output)}
    for fill, numbers in changes:
        if isinstance(fill.place, str):
            state = next(each for each in plan["states"] if each["input"] == fill.place)
            state["initial"] = initial_of(numbers.astype(fill.dtype))
            continue
        node, slot = work.graph.node[fill.place[0]], fill.place[1]
        name = next(n for k in count() if (n := f"{node.input[slot]}_near_{k}") not in taken)
        taken.add(name)
        work.graph.initializer.append(numpy_helper.from_array(numbers.astype(fill.dtype), name))
        node.input[slot] = name
    entry.value = json.dumps(plan)
    _drop_unused(work)
    return work


def _drop_unused(model: onnx.ModelProto) -> None:
    """Remove the constants that nothing reads any more."""
    graph = model.graph
    read = {value.name for value in graph.output} | set(_read_names(graph))
    kept = [tensor for tensor in graph.initializer if tensor.name in read]
    nodes = [node for node in graph.node if node.op_type != "Constant" or node.output[0] in read]
    del graph.initializer[:], graph.node[:]
    graph.initializer.extend(kept)
    graph.node.extend(nodes)


def _read_names(graph: onnx.GraphProto) -> Iterator[str]:
    """Yield the names that nodes read, also those in their bodies."""
    for node in graph.node:
        yield from node.input
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                yield from _read_names(body)
                yield from (value.name for value in body.output)
