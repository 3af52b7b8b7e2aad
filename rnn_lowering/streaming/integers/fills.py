"""Fills: constants that stand for nothing, such as -1e9 in a mask or -infinity in front of a maximum.

An integer range that holds a fill holds little else. `fills_of` finds the fills of a stream and the data that each
meets, and `with_near_fills` moves each near to its data. `Meeting.near` says how near, so that what follows still
ignores it.

    Where(mask, -1e9, scores) -> Softmax    12 below the least score: exp(-12) is less than half a step of 16 bits
    Pad(x, -inf) -> MaxPool                 as low as the least x
    Add(scores, [0, -1e9]) -> Softmax       12 below the least score, whichever score the fill is added to
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

from rnn_lowering.model.protobuf import graphs_in, nodes_in
from rnn_lowering.streaming.integers.calibration import Recorder
from rnn_lowering.streaming.metadata import KEY, StreamPlan, initial_of
from rnn_lowering.types import Array, ArrayLike

_Ranges = dict[str, tuple[float, float]]

_HUGE = 1e4
"""Numbers from here on are fills wherever they meet data."""

_LARGE = 24.0
"""Numbers from here on are fills if what follows ignores them."""

_APART = 12.0
"""How far below the data a fill is in front of an exponential."""

_MAXIMA = ("GlobalMaxPool", "Max", "MaxPool", "ReduceMax", "Relu")
_MINIMA = ("Min", "ReduceMin")
_EXPONENTIALS = ("Exp", "LogSoftmax", "ReduceLogSumExp", "Softmax", "Softplus")
_SATURATES = ("Sigmoid", "Tanh")
_MOVES = (
    *("Cast", "Dropout", "Expand", "Flatten", "Gather", "Identity", "Reshape", "Slice", "Split", "Squeeze"),
    *("Tile", "Transpose", "Trilu", "Unsqueeze"),
)


@dataclass(frozen=True)
class Meeting:
    """Where a fill meets data, and what follows.

    Attributes:
        data: The tensors that it meets.
        added: It is added to them; else it stands beside them.
        masks: What it is multiplied by before, each with 1 or -1: it is a fill if these are 0 or that number.
        before, after: What it is multiplied by before it meets the data, and behind.
        apart: How far from the data it has to be; None: what follows may use it.
    """

    data: tuple[str, ...] = ()
    added: bool = False
    masks: tuple[tuple[str, int], ...] = ()
    before: float = 1.0
    after: float = 1.0
    apart: float | None = None

    def near(self, sign: int, low: float, high: float) -> float:
        """Return the number that stands for a fill of this sign, beside data of this range."""
        apart = (_APART if self.apart is None else self.apart) / abs(self.after)
        way = sign if self.before > 0 else -sign
        if self.added:
            return way * (high - low + apart) / self.before
        return (min(low, 0.0) - apart if way < 0 else max(high, 0.0) + apart) / self.before

    def times(self, factor: float) -> Meeting:
        if self.data:
            return replace(self, after=self.after * factor)
        return replace(self, before=self.before * factor)

    def with_data(self, data: tuple[str, ...], added: bool = False) -> Meeting:
        return self if self.data else replace(self, data=data, added=added)


@dataclass(frozen=True)
class Fill:
    """A constant with fills.

    Attributes:
        place: The number of a node and that of its input; or the name of a state's input.
        numbers: The constant in float64.
        dtype: Its own type.
        meetings: Where fills of each sign, -1 or 1, meet data.
    """

    place: tuple[int, int] | str
    numbers: Array
    dtype: np.dtype[Any]
    meetings: Mapping[int, tuple[Meeting, ...]]

    @property
    def masks(self) -> set[tuple[str, int]]:
        """The masks of all meetings."""
        return {mask for each in self.meetings.values() for meeting in each for mask in meeting.masks}

    def elements(self, sign: int) -> Array:
        """Return which elements are fills of a sign."""
        meetings = self.meetings[sign]
        least = _LARGE if all(meeting.apart is not None for meeting in meetings) else _HUGE
        return (self.numbers * sign >= least) & bool(meetings)


def fills_of(model: onnx.ModelProto, plan: StreamPlan) -> list[Fill]:
    """Return the fills of a stream."""
    reader = _Reader(model, plan)
    fills = [*reader.constants_with_fills(), *reader.states_with_fills()]
    return [fill for fill in fills if fill.elements(-1).any() or fill.elements(1).any()]


class _Reader:
    """Follows constants to the data that they meet, and from there to what ignores them."""

    def __init__(self, model: onnx.ModelProto, plan: StreamPlan) -> None:
        self.nodes, self.plan = model.graph.node, plan
        self.constants = {name: array for name, array in _constants(model) if array.dtype.kind == "f"}
        self.uses = defaultdict[str, list[tuple[int, int]]](list)
        for number, node in enumerate(self.nodes):
            for slot, name in enumerate(node.input):
                self.uses[name].append((number, slot))
        less = [node for node in self.nodes if node.op_type == "Sub" and node.input[1] in self.constants]
        self.negative = {node.output[0] for node in (*less, *(n for n in self.nodes if n.op_type == "Neg"))}
        self.next_inputs = {state.output: state.input for state in plan.states}

    def constants_with_fills(self) -> Iterator[Fill]:
        for name, array in self.constants.items():
            large = np.abs(array) >= _LARGE
            for number, slot in self.uses[name] if large.any() else ():
                if not (large.all() and self.nodes[number].op_type in ("Add", "Sub")):  # all data get it: no mask
                    meetings = {sign: (*self._read(number, slot, Meeting(), sign, set()),) for sign in (-1, 1)}
                    yield Fill((number, slot), array.astype(np.float64), array.dtype, meetings)

    def states_with_fills(self) -> Iterator[Fill]:
        for state in self.plan.states:
            if state.initial != "zeros" and state.dtype in ("float16", "float32", "float64"):
                start, numbers = Meeting((state.output,)), np.asarray(state.initial).astype(np.float64)
                meetings = {sign: (*self._follow(state.input, start, sign, set()),) for sign in (-1, 1)}
                yield Fill(state.input, numbers, np.dtype(state.dtype), meetings)

    def _follow(self, name: str, meeting: Meeting, sign: int, seen: set[str]) -> Iterator[Meeting]:
        """Yield where a value with fills meets data, once for each end of its ways."""
        if name in seen:
            return
        seen.add(name)
        if name in self.next_inputs:
            yield from self._follow(self.next_inputs[name], meeting, sign, seen)
        elif name in self.plan.outputs and meeting.data:
            yield meeting
        for number, slot in self.uses[name]:
            yield from self._read(number, slot, meeting, sign, seen)

    def _read(self, number: int, slot: int, meeting: Meeting, sign: int, seen: set[str]) -> Iterator[Meeting]:
        """Yield the same for a value that a node reads."""
        node = self.nodes[number]
        behind = self._behind(node, slot, meeting)
        if behind is not None:
            for output in node.output:
                yield from self._follow(output, behind, sign, seen)
        elif meeting.data:
            negative = sign * meeting.before * meeting.after < 0
            if node.op_type in (_MAXIMA if negative else _MINIMA):
                yield replace(meeting, apart=0.0)
            elif node.op_type in _SATURATES or (negative and node.op_type in _EXPONENTIALS):
                yield replace(meeting, apart=_APART)
            else:
                yield meeting

    def _behind(self, node: onnx.NodeProto, slot: int, meeting: Meeting) -> Meeting | None:
        """Return the meeting as the outputs of a node have it; None if the fill ends there."""
        others = tuple(v for n, v in enumerate(node.input) if n != slot and v and v not in self.constants)
        match node.op_type:
            case "Where" if slot:
                beside = tuple(v for v in others if v != node.input[0])
                return meeting.with_data(beside) if beside else meeting
            case "Pad" if slot in (0, 2):
                return meeting.with_data((node.input[0],)) if slot else meeting
            case "Concat":
                return meeting.with_data(others) if others else meeting
            case "Add" | "Sub":
                signed = meeting.times(-1.0) if node.op_type == "Sub" and slot else meeting
                return signed.with_data(others, added=True) if others else signed
            case "Neg":
                return meeting.times(-1.0)
            case "Mul" | "Div":
                return self._scaled(node, slot, meeting)
        return meeting if node.op_type in _MOVES and not slot else None

    def _scaled(self, node: onnx.NodeProto, slot: int, meeting: Meeting) -> Meeting | None:
        other = node.input[1 - slot]
        factor = self.constants.get(other)
        if factor is None:
            if meeting.data or node.op_type == "Div":
                return None
            sign = -1 if other in self.negative else 1
            return replace(meeting, masks=(*meeting.masks, (other, sign))).times(sign)
        if factor.size != 1 or not factor.any() or (node.op_type == "Div" and slot):
            return None
        return meeting.times(float(factor.reshape(-1)[0]) ** (1 if node.op_type == "Mul" else -1))


def _constants(model: onnx.ModelProto) -> Iterator[tuple[str, Array]]:
    """Yield the name and the numbers of each constant."""
    for tensor in model.graph.initializer:
        yield tensor.name, numpy_helper.to_array(tensor)
    for node in model.graph.node:
        for attribute in node.attribute if node.op_type == "Constant" else ():
            if attribute.name == "value":
                yield node.output[0], numpy_helper.to_array(attribute.t)


# Fills that move to where the data of a calibration are. Data are the elements that stay the same when all fills
# are doubled: the stream runs with both, side by side.


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
        places = fill.elements(sign)
        numbers[places] = sign * factor * np.minimum(np.abs(numbers[places]), np.finfo(fill.dtype).max ** 0.8)
    return numbers


def _near(fill: Fill, ranges: _Ranges) -> Array:
    """Return a constant whose fills are near the data that they meet."""
    numbers = fill.numbers.copy()
    for sign, meetings in fill.meetings.items():
        places, nears = fill.elements(sign), list[float]()
        for meeting in meetings:
            if data := [ranges[name] for name in meeting.data if name in ranges]:
                lows, highs = zip(*data, strict=True)
                nears.append(meeting.near(sign, min(lows), max(highs)))
        if nears:
            farthest = max(sign * near for near in nears)
            numbers[places] = sign * np.minimum(sign * numbers[places], farthest)
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
    read = {value.name for each in graphs_in(graph) for value in each.output}
    read |= {name for node in nodes_in(graph) for name in node.input}
    kept = [tensor for tensor in graph.initializer if tensor.name in read]
    nodes = [node for node in graph.node if node.op_type != "Constant" or node.output[0] in read]
    del graph.initializer[:], graph.node[:]
    graph.initializer.extend(kept)
    graph.node.extend(nodes)
