"""The stage that makes a stream of a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from shlex import quote

import onnx_ir as ir

from rnn_lowering.errors import UnsupportedError
from rnn_lowering.facts.operators import default_opset
from rnn_lowering.model.copying import inline_functions
from rnn_lowering.model.model_sizes import forget_sizes
from rnn_lowering.model.opsets import import_opset
from rnn_lowering.model.preparation import NodePlan, read
from rnn_lowering.model.replace import prefix_of, replace_nodes
from rnn_lowering.model.scopes import recurrent_nodes, sort_nodes
from rnn_lowering.nodes.kinds import has_steps
from rnn_lowering.passes.nodes import opset_behind, planned
from rnn_lowering.passes.report import NodeReport
from rnn_lowering.passes.stages import Edit, StreamInputs, Work
from rnn_lowering.streaming.attention.operators import set_softmax_apart
from rnn_lowering.streaming.metadata import StreamPlan
from rnn_lowering.streaming.options import Stream, parse_stream
from rnn_lowering.streaming.stream_pass import StreamPass, open_time
from rnn_lowering.streaming.time_axes import time_inputs

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
        set_softmax_apart(model)
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


def _lower_without_steps(work: Work, stream: Stream) -> dict[str, NodePlan]:
    """Lower the nodes without steps, in place: a stream then keeps the past frames of their convolutions, which
    must not depend on the number of frames.

    Return them by the prefix of the names in their equivalents.
    """
    model, lowering, report = work.model, work.lowering, work.report
    inline_functions(model, lambda entry: not has_steps(entry.node), lowering.max_nodes)
    found = [entry for entry in recurrent_nodes(model) if not has_steps(entry.node)]
    if found:
        open_time(model, time_inputs(model, parse_stream(stream)))
        forget_sizes(model)
    opset = opset_behind(work, model, [entry.node for entry in found])
    if opset < default_opset(model.opset_imports):
        report.notes += import_opset(model, opset)
    calls = None not in parse_stream(stream).values()
    pairs = zip(found, read(model, found), strict=True)
    plan = [planned(work, entry, spec, model, opset, in_calls=calls) for entry, spec in pairs]
    plan = [replace(each, choice=each.choice.for_any_length()) for each in plan]
    report.nodes = [NodeReport.of(each) for each in plan]
    lowered = {prefix_of(each.found.node): each for each in plan}
    report.notes += replace_nodes(model, plan, widen=lowering.widens)
    return lowered
