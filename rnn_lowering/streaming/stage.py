"""The stage, and the pass, that make a stream of a model of whole sequences: it is called chunk by chunk."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from shlex import quote
from typing import TYPE_CHECKING

import onnx_ir as ir

from rnn_lowering import argument_checks
from rnn_lowering.emit.draft import Names
from rnn_lowering.errors import NodeRef, RnnLoweringError, UnsupportedError, boundary, counted, documented, warn
from rnn_lowering.facts.operators import default_opset, in_order, operator_of, values_used
from rnn_lowering.loops.door import LoopForms, LoopLimits, LoopReport, lower_loops
from rnn_lowering.model.copying import clone, inline_functions, inline_holders, order_restored, replace_content
from rnn_lowering.model.fixed_inputs import fix_dimensions
from rnn_lowering.model.model_sizes import forget_sizes
from rnn_lowering.model.onnx_checks import infer_shapes, is_sound
from rnn_lowering.model.opsets import OLDEST_LOWERED_OPSET, import_opset, modernize
from rnn_lowering.model.preparation import NodePlan, read
from rnn_lowering.model.replace import prefix_of, replace_nodes
from rnn_lowering.model.scopes import ORIGIN, all_names, recurrent_nodes, sort_nodes
from rnn_lowering.nodes.kinds import has_cell, has_steps
from rnn_lowering.nodes.spec import node_ref
from rnn_lowering.options import Lowering
from rnn_lowering.passes.nodes import opset_behind, planned
from rnn_lowering.passes.report import NodeReport
from rnn_lowering.passes.stages import Edit, StreamInputs, Work
from rnn_lowering.streaming.anchored_sizes import AnchoredSizes, anchor_sizes
from rnn_lowering.streaming.attention.expansion import InPlaceOf, expand_attention
from rnn_lowering.streaming.editor import remove_unused
from rnn_lowering.streaming.flow import MAIN_GRAPH, Flow
from rnn_lowering.streaming.follow_frames import follow
from rnn_lowering.streaming.frames import Delay, Frames
from rnn_lowering.streaming.loop_branches import choose_in_loops
from rnn_lowering.streaming.metadata import LONGEST_DELAY, StreamPlan
from rnn_lowering.streaming.operators.node_states import axis_of_steps, lengths_of
from rnn_lowering.streaming.options import StreamAxis, check_whole_calls, parse_delay, parse_stream
from rnn_lowering.streaming.sizes import TimeInputs, time_inputs
from rnn_lowering.streaming.states import expose, late_outputs, states_of

_WHATEVER_THE_LENGTH = ("train a forward model", "name the time axis")
"""The hint of a node that is no stream at any length."""

_ENDLESS = "--max-frames had no effect: the stream has no attention to all past frames"


def make_stream(work: Work) -> Edit:
    """Make a stream of the working copy; return what writes its metadata.

    Raises:
        OptionError, UnsupportedError: As `StreamPass`; or the target needs states of fixed sizes.
    """
    lowering, model, stream = work.lowering, work.model, work.lowering.stream
    assert stream is not None
    sort_nodes(model)
    lowered = _lower_without_steps(work, stream)
    result = StreamPass(
        stream, lowering.delay, max_frames=lowering.max_frames, count_type=lowering.runtime.dialect.index_type
    ).call(model)
    plan = result.plan
    _check_growing_states(work, plan)
    if lowering.runtime.streams.softmax_apart:
        _set_softmax_apart(model)
    if lowering.max_frames is not None and plan.max_frames is None:
        work.report.notes.append(_ENDLESS)
    if lowered and plan.frames is not None:
        from rnn_lowering.attention.causal_conv import shorten_convolutions

        shorten_convolutions(model, lowered, widen=lowering.widens)
    work.report.stream = plan
    work.report.loops += result.loops
    work.inputs = _inputs_of(model, plan, parse_stream(stream))
    work.put(model)
    return lambda: plan.write(work.model)


def _inputs_of(model: ir.Model, plan: StreamPlan, axes: Mapping[str, int | None]) -> StreamInputs:
    """Return the inputs of a model with this plan; `axes` are the time axes as the user names them, with the frames
    of each call."""
    fewest = {axis: (frames or 1) // (plan.frames or 1) * plan.unit for axis, frames in axes.items()}
    option = " ".join(f"--stream {quote(f'{axis}={frames}')}" for axis, frames in fewest.items())
    shapes = {v.name: v.shape for v in model.graph.inputs if v.shape is not None}
    timed = [shapes[name][axis] for name, axis in plan.inputs.items() if axis is not None and name in shapes]
    frames = {dim.value: option for dim in timed if isinstance(dim, ir.SymbolicDim) and dim.value}
    return StreamInputs(frozenset(state.input for state in plan.states), frames, option, bool(plan.lengths))


def _check_growing_states(work: Work, plan: StreamPlan) -> None:
    """Refuse states that grow, for a runtime whose sizes must be fixed."""
    growing = next((state for state in plan.states if state.grows is not None), None)
    if growing is not None and not work.lowering.runtime.streams.growing_states:
        target = work.lowering.target
        raise UnsupportedError(
            f"the state '{growing.input}' of '{growing.node}' grows, and {target} needs a cache of fixed size",
            hint="--max-frames N, or a mask with a window",
        )


def _lower_without_steps(work: Work, stream: StreamAxis) -> dict[str, NodePlan]:
    """Lower the nodes without steps, in place: a stream then keeps the past frames of their convolutions, which
    must not depend on the number of frames.

    Return them by the prefix of the names in their equivalents.
    """
    model, lowering, report = work.model, work.lowering, work.report
    inline_functions(model, lambda entry: not has_steps(entry.node), lowering.max_nodes)
    stepless = [entry for entry in recurrent_nodes(model) if not has_steps(entry.node)]
    if stepless:
        _open_time(model, time_inputs(model, parse_stream(stream)))
        forget_sizes(model)
    opset = opset_behind(work, model, [entry.node for entry in stepless])
    if opset < default_opset(model.opset_imports):
        report.notes += import_opset(model, opset)
    calls = None not in parse_stream(stream).values()
    pairs = zip(stepless, read(model, stepless), strict=True)
    plan = [planned(work, entry, spec, model, opset, in_calls=calls) for entry, spec in pairs]
    plan = [replace(each, choice=each.choice.for_any_length()) for each in plan]
    report.nodes = [NodeReport.of(each) for each in plan]
    lowered = {prefix_of(each.found.node): each for each in plan}
    report.notes += replace_nodes(model, plan, widen=lowering.widens)
    return lowered


_ANY_AXIS_OPSET = 13
"""The first opset whose Softmax does not flatten the axes behind its own."""


def _set_softmax_apart(model: ir.Model) -> None:
    """Put an Unsqueeze before each Softmax over an axis of open size, and a Squeeze behind it, for runtimes that
    join it with its products and are wrong."""
    opset = default_opset(model.opset_imports)
    nodes = [node for node in model.graph.all_nodes() if node.op_type == "Softmax" and node.domain == ""]
    names = Names(all_names(model)) if nodes else None
    for node in nodes:
        value = node.inputs[0]
        axis = node.attributes.get_int("axis", -1 if opset >= _ANY_AXIS_OPSET else 1) or 0
        if names is None or value is None or (value.shape is not None and isinstance(value.shape[axis], int)):
            continue
        emit = InPlaceOf(node, names, opset)
        weights = emit("Softmax", emit("Unsqueeze", value, axes=[0]), axis=axis if axis < 0 else axis + 1)
        emit.replace(emit("Squeeze", weights, axes=[0]))


# The pass: states become inputs and outputs.


_LOG = logging.getLogger("rnn_lowering")


@dataclass
class StreamResult(ir.passes.PassResult):
    """The result of the pass: `model`, `modified`, `plan`, and in `loops` the Loops that became Scans."""

    plan: StreamPlan
    loops: Sequence[LoopReport] = ()


class StreamPass(ir.passes.InPlacePass):
    """Turn a model of whole sequences into one that is called chunk by chunk: states become inputs and outputs.

    Recurrent nodes stay recurrent nodes. Convolutions, poolings and paddings along time keep their past frames.
    Nothing runs. A refused model stays as it was.

    Args:
        stream: The time axis, or the number of frames of a chunk by axis: None for any number.
        delay: The largest delay of the outputs in frames, if nodes read future frames; True: any delay.
        max_frames: The number of frames of the longest sequence, for an attention to all past frames; None: its
            states grow.
        count_type: The type in which frames are counted, INT64 or INT32: some runtimes have no int64.

    Raises:
        OptionError: An axis that no input has, or an impossible number of frames.
        UnsupportedError: A node looks beyond its frame, or further than the delay allows, or a state cannot become
            an input and an output.
        InvalidNodeError: A recurrent node specifies what its operator does not allow.

    Warns:
        RnnLoweringWarning: No state is carried from chunk to chunk: the axis is probably not the time axis.

    Examples:
        >>> work = onnx_ir.load("model.onnx")
        >>> rl.StreamPass("seq")(work).modified
        True
        >>> [value.name for value in work.graph.inputs]
        ['X', 'past_lstm_LSTM_h', 'past_lstm_LSTM_c', 'past_gru_GRU_h']
    """

    def __init__(
        self,
        stream: StreamAxis,
        delay: bool | int = False,
        *,
        max_frames: int | None = None,
        count_type: ir.DataType = ir.DataType.INT64,
    ) -> None:
        super().__init__()
        self.stream = parse_stream(stream)
        self.delay = parse_delay("delay", delay)
        self.max_frames = argument_checks.optional(argument_checks.integer(1))("max_frames", max_frames)
        check_whole_calls(self.stream, self.max_frames)
        give = "INT32 or INT64 of onnx_ir.DataType"
        self.count_type = argument_checks.instance(ir.DataType, give)("count_type", count_type)
        if self.count_type not in (ir.DataType.INT32, ir.DataType.INT64):
            raise argument_checks.wrong("count_type", count_type, give)

    if TYPE_CHECKING:  # the result of a call is that of `call`

        def __call__(self, model_or_result: ir.Model | ir.passes.PassResult, /) -> StreamResult: ...

    def call(self, model: ir.Model) -> StreamResult:
        """Change `model` in place."""
        argument_checks.ir_model("model", model)
        with boundary(), documented("streaming-reference.md#my-net-is-refused-because"):
            try:
                result, text = self._streamed(model)
            except UnsupportedError as error:
                if not error.hint.startswith(_WHATEVER_THE_LENGTH) and (options := self._opening(model)):
                    error.advise(f"the exporter fixed the length: add {options}")
                raise
        if text:
            warn(text)
        return result

    def _opening(self, model: ir.Model) -> str:
        """Return the options that open the time axes, if they have a fixed size and a stream is possible then."""
        from rnn_lowering.opening.open_dims import open_dims  # most models are exported with open axes

        with suppress(RnnLoweringError):
            time = time_inputs(model, self.stream)
            axes = {f"{name}:{axis}": time.symbol_of(name) for name, axis in time.axes.items()}
            if all(isinstance(time.shapes[name][axis], int) for name, axis in time.axes.items()):
                options = " ".join(f"--open-dim {quote(f'{axis}={name}')}" for axis, name in axes.items())
                copy = clone(model)
                try:
                    open_dims(copy, axes, Lowering.max_nodes)
                except UnsupportedError:
                    return f"{options} --also LONG.onnx (an export at a larger size)"
                self._streamed(copy)
                return options
        return ""

    def _streamed(self, model: ir.Model) -> tuple[StreamResult, str]:
        """Return the result, and a warning if no state is carried, else ""."""
        with order_restored(model, on_success=False):
            sort_nodes(model)  # a copy needs that
            work = _prepared(model)
            time = time_inputs(work, self.stream)
            work, loops, flow = self._followed(work, time)
            _check_unit(flow, time, self.stream)
            states = states_of(flow, work.graph)
            late = late_outputs(flow, states, time.frames)
            _check_delay(flow, work, late, self.delay)
            text = "" if states.nodes else _nothing_carried(work, time, flow)
            plan = expose(work, flow, time, states, late, self.count_type)
            text = "" if plan.states else text
            remove_unused(work)
            _declare(work, flow, time)
            plan.write(work)
            if sizes := time.in_calls():
                fix_dimensions(work, sizes)
        replace_content(model, work.graph, work.functions)
        plan.write(model)
        for state in plan.states:
            _LOG.info("%s of %s: state '%s', returned as '%s'", state.state, state.node, state.input, state.output)
        return StreamResult(model, True, plan, loops), text

    def _followed(self, work: ir.Model, time: TimeInputs) -> tuple[ir.Model, list[LoopReport], Flow]:
        """Return the model with Scans for its Loops, their reports, and the framing of its values.

        Nodes read sizes by floor division from other values if the frames cannot be followed without that.
        """

        def attempt(anchored: AnchoredSizes | None = None) -> tuple[ir.Model, list[LoopReport], Flow]:
            with_scans, loops, refused = _with_scans(work, time)
            return with_scans, loops, follow(with_scans, time, refused, self.max_frames, anchored)

        try:
            return attempt()
        except UnsupportedError:
            if (anchored := anchor_sizes(work, time)) is None:
                raise
            with suppress(UnsupportedError):
                return attempt(anchored)
            raise


def _prepared(model: ir.Model) -> ir.Model:
    """Return a copy without functions, with valid recurrent nodes, at an opset that can be edited."""
    work = clone(model)
    inline_holders(work, work.functions.keys(), Lowering.max_nodes)
    read(work, list(recurrent_nodes(work)))  # every node is validated before the first edit
    opset = default_opset(work.opset_imports)
    if opset < OLDEST_LOWERED_OPSET:
        modernize(work, opset)
    if not is_sound(work):  # ONNX's inference reads each node, in this process
        raise UnsupportedError(
            "the model is not valid, so its frames cannot be followed", hint="check it with onnx.checker"
        )
    expand_attention(work)
    remove_unused(work)  # a chunk may be too short for what no output needs
    _read_numbers(work)
    return work


def _read_numbers(work: ir.Model) -> None:
    """Let a node read each output that is a Range or rows of a table: what is read continues in the next chunk."""
    graph, names = work.graph, Names(all_names(work))
    for n, output in enumerate(graph.outputs):
        node = output.producer()
        if node is None or node.domain or not (node.op_type == "Range" or _cuts_table(node)):
            continue
        node.meta.setdefault(ORIGIN, node_ref(node, MAIN_GRAPH))
        reader = ir.node("Identity", [output])
        reader.meta[ORIGIN] = node.meta[ORIGIN]
        read = reader.outputs[0]
        read.name, read.type, read.shape = output.name, output.type, output.shape
        output.name = names.unique(f"{output.name}_numbers")
        graph.append(reader)
        graph.outputs[n] = read


def _cuts_table(node: ir.Node) -> bool:
    """Whether a node is a Slice of a constant."""
    table = node.inputs[0] if node.op_type == "Slice" else None
    source = None if table is None else table.producer()
    return table is not None and (table.const_value is not None if source is None else source.op_type == "Constant")


_MOST_ELEMENTS = 1 << 12
"""A longer list stays."""


def _with_scans(
    work: ir.Model, time: TimeInputs
) -> tuple[ir.Model, list[LoopReport], dict[NodeRef, UnsupportedError]]:
    """Return the model with Scans for Loops that read the stream, their reports, and the errors of others."""
    _open_time(work, time)
    reached: dict[ir.Value, bool] = {}

    def reads_stream(node: ir.Node) -> bool:
        return node.op_type == "Loop" and any(_reads(value, time, reached) for value in values_used(node))

    def choose(node: ir.Node) -> LoopForms:
        chosen = reads_stream(node)
        return LoopForms(("scan",) if chosen else (), "a stream carries its states", stays_in_bodies=not chosen)

    choose_in_loops(work, time, reads_stream)
    reached.clear()
    refused: dict[NodeRef, UnsupportedError] = {}
    limits = LoopLimits(_MOST_ELEMENTS, Lowering.max_nodes)  # nothing is unrolled
    lowered, loops, _ = lower_loops(work, choose, limits, refused, some_rows=True)
    return lowered, loops, refused


def _open_time(work: ir.Model, time: TimeInputs) -> None:
    """Make the time axes symbolic: no Loop may depend on the number of frames that the model has now, and no
    equivalent of a node."""
    for value in work.graph.inputs:
        name = value.name or ""
        if name in time.axes:
            value.shape = ir.Shape(
                time.open_shape(name), None if value.shape is None else _denotations(value.shape)
            )


def _reads(value: ir.Value, time: TimeInputs, reached: dict[ir.Value, bool]) -> bool:
    """Whether a value is computed from an input with frames; `reached` has the earlier answers by value."""

    def used(value: ir.Value) -> list[ir.Value]:
        node = value.producer()
        return [] if node is None else values_used(node)

    for current in in_order(value, used, reached):  # what is before one may be new: a Loop was lowered meanwhile
        reached[current] = current.name in time.axes or any(reached[v] for v in used(current))
    return reached[value]


def _nothing_carried(work: ir.Model, time: TimeInputs, flow: Flow) -> str:
    """Return a warning that no state is carried, with the axes along which recurrent nodes run."""
    axes = " and ".join(f"axis {axis} of '{name}' ({time.shapes[name][axis]})" for name, axis in time.axes.items())
    states: dict[str, None] = {}
    runs: dict[str, NodeRef] = {}
    for entry in recurrent_nodes(work):
        node = entry.node
        sources = [_rearranged(value) for value in node.inputs[5:7]]
        states |= {v.name: None for v in sources if v is not None and v.name and v.name in time.axes}
        if has_cell(node) and (steps := axis_of_steps(flow, node)):
            runs.setdefault(steps, entry.ref)
    said = [f"no state is carried from chunk to chunk along {axes}"]
    said += [f"{ref} runs along {axis}" for axis, ref in list(runs.items())[:3]]
    said += [f"'{name}' is an initial state" for name in states]
    return "; ".join(said)


def _rearranged(value: ir.Value | None) -> ir.Value | None:
    """Return the value that this one rearranges."""
    while value is not None and (node := value.producer()) is not None:
        value = node.inputs[0] if operator_of(node).moves else None
    return value


def _check_unit(flow: Flow, time: TimeInputs, stream: Mapping[str, int | None]) -> None:
    if time.frames is not None and time.frames % flow.unit:
        counts = {axis: (count or 1) // time.frames * flow.unit for axis, count in stream.items()}
        raise UnsupportedError(
            f"the chunk size must be a multiple of {' and '.join(map(str, dict.fromkeys(counts.values())))}",
            hint=f"give {' and '.join(f'{axis}={count}' for axis, count in counts.items())}",
            node=flow.units[0][0],
        )


def _check_delay(flow: Flow, work: ir.Model, late_states: Mapping[str, Delay], most: bool | int) -> None:
    """Refuse a stream whose outputs are later than the option allows."""
    framed = {v: framing for v in work.graph.outputs if isinstance(framing := flow.framings.get(v), Frames)}
    for value, framing in framed.items():
        if (late := max(framing.delay.frames, -framing.extra)) > LONGEST_DELAY:
            raise UnsupportedError(
                f"output '{value.name}' is {late} frames late or short, over the limit of {LONGEST_DELAY}",
                hint="use a shorter padding, cut or dilation over time",
            )
    delays = [*(framing.delay for framing in framed.values()), *late_states.values()]
    frames = max((math.ceil(delay.of_stream) for delay in delays), default=0)
    if not frames:
        return
    for node in (recurrent.node for recurrent in flow.recurrent):
        lengths = lengths_of(node)
        if lengths is not None and lengths not in flow.known.contents:
            raise flow.refuse(node, "has sequence_lens, in a stream that looks ahead", "drop sequence_lens")
    if most is True or (most is not False and frames <= most):
        return
    ref, ahead = flow.ahead[0]
    own, all_ = (counted(n, "frame") for n in (ahead, frames))
    raise UnsupportedError(
        f"looks {own} ahead, so the stream would need a delay of {all_}"
        + (f", more than the {most} that are allowed" if most else ""),
        hint=f"--delay {frames} allows it; a causal model has padding on the left only",
        node=ref,
    )


def _declare(work: ir.Model, flow: Flow, time: TimeInputs) -> None:
    """Mark the open axes of the inputs, and infer all shapes with frames again."""
    computed = [v for node in work.graph.all_nodes() for v in node.outputs]
    denoted = {v: _denotations(v.shape) for v in (*work.graph.inputs, *computed) if v.shape is not None}
    for value in work.graph.inputs:
        name = value.name or ""
        if name in time.shapes:
            value.shape = ir.Shape(time.open_shape(name))
    for value in computed:
        shape = flow.known.shapes.get(value)
        if shape is not None and any(dim.varies for dim in shape):
            value.shape = None if value.type is None else ir.Shape([None] * len(shape))
    infer_shapes(work)
    for value, texts in denoted.items():
        if any(texts) and value.shape is not None and len(value.shape) == len(texts):
            value.shape = ir.Shape(list(value.shape), texts)


def _denotations(shape: ir.Shape) -> list[str | None]:
    """Return the denotations of the axes of a shape."""
    return [shape.get_denotation(axis) for axis in range(len(shape))]
