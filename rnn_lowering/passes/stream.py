"""The pass: a model of whole sequences becomes one that is called chunk by chunk, its states inputs and outputs."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import onnx_ir as ir

from rnn_lowering.boundary import boundary
from rnn_lowering.errors import UnsupportedError
from rnn_lowering.model.copying import clone, replace_content, restored_on_failure
from rnn_lowering.model.inlining import inline_all
from rnn_lowering.model.old_opsets import FIRST_OPSET, modernize
from rnn_lowering.model.onnx_inference import infer_shapes, is_sound
from rnn_lowering.model.plan import read
from rnn_lowering.model.prepare import sort_nodes
from rnn_lowering.model.scopes import recurrent_nodes
from rnn_lowering.model.sizing import at_sizes
from rnn_lowering.options import Lowering, Stream, parse_stream
from rnn_lowering.spec.node import default_opset
from rnn_lowering.streaming.exposing import Naming, StateExposer
from rnn_lowering.streaming.frames import Flow
from rnn_lowering.streaming.plan import KEY, StreamPlan
from rnn_lowering.streaming.states import node_states
from rnn_lowering.streaming.time_inputs import TimeInputs, time_inputs
from rnn_lowering.streaming.timeline import follow

_LOG = logging.getLogger("rnn_lowering")


@dataclass
class StreamResult(ir.passes.PassResult):
    """What the pass returns: `model`, `modified` and `plan`."""

    plan: StreamPlan


class StreamPass(ir.passes.InPlacePass):
    """Let a model that computes whole sequences be called chunk by chunk: its states become inputs and outputs.

    Recurrent nodes stay recurrent nodes. Convolutions, poolings and paddings along time keep their past frames.
    Nothing runs; a model that is refused is exactly as it was.

    Args:
        stream: The axis of time, or the number of frames of a chunk by axis: None for any number.

    Raises:
        OptionError: An axis that no input has, or a number of frames that is not possible.
        UnsupportedError: A node looks beyond its frame, or a state cannot be brought out.
        InvalidNodeError: A recurrent node specifies what its operator does not allow.
    """

    def __init__(self, stream: Stream) -> None:
        super().__init__()
        self.stream = parse_stream(stream)

    if TYPE_CHECKING:  # the result of a call is that of `call`

        def __call__(self, model_or_result: ir.Model | ir.passes.PassResult, /) -> StreamResult: ...

    def call(self, model: ir.Model) -> StreamResult:
        """Change `model` in place."""
        with boundary():
            return self._streamed(model)

    def _streamed(self, model: ir.Model) -> StreamResult:
        with restored_on_failure(model):
            sort_nodes(model)  # a copy needs that
            work = _prepared(model)
            time = time_inputs(work, self.stream)
            flow, size = follow(work, time)
            _check_strides(flow, time)
            states = node_states(flow, work.graph)
            plan = StateExposer(work, flow, time, Naming(work, time, size)).expose(states)
            _declare(work, flow, time)
            work.metadata_props[KEY] = plan.to_json()
            if time.frames is not None:
                work = at_sizes(work, {time.symbol: time.frames}, {}).model
        replace_content(model, work.graph, work.functions)
        model.metadata_props[KEY] = plan.to_json()
        for state in plan.states:
            _LOG.info("%s of %s: state '%s', returned as '%s'", state.state, state.node, state.input, state.output)
        return StreamResult(model, True, plan)


def _prepared(model: ir.Model) -> ir.Model:
    """Return a copy without functions, of an opset that is edited, its recurrent nodes valid."""
    work = clone(model)
    inline_all(work, Lowering.max_nodes)
    read(work, list(recurrent_nodes(work)))  # every node is validated before the first edit
    opset = default_opset(work.opset_imports)
    if opset < FIRST_OPSET:
        modernize(work, opset)
    if not is_sound(work):  # each node is given to ONNX's inference, in this process
        raise UnsupportedError(
            "the model is not valid, so its frames cannot be followed", hint="see what onnx.checker reports"
        )
    return work


def _check_strides(flow: Flow, time: TimeInputs) -> None:
    for node, _ in flow.strided:
        strides = math.lcm(*(stride for _, stride in flow.strided))
        if time.frames is None or time.frames % strides:
            raise flow.refuse(
                node,
                f"a stride over time needs a number of frames that {strides} divides",
                f"give {' or '.join(f'{axis}={strides}' for axis in list(time.axes)[:1])}: one for each call",
            )


def _declare(work: ir.Model, flow: Flow, time: TimeInputs) -> None:
    """Let the inputs say which axes are open, and infer all shapes that hold frames anew."""
    for value in work.graph.inputs:
        name = value.name or ""
        if name in time.others:
            dims = list(time.others[name])
            if name in time.axes:
                dims[time.axes[name]] = time.symbol
            value.shape = ir.Shape(dims)
    for value in (v for node in work.graph.all_nodes() for v in node.outputs):
        shape = flow.short.shapes.get(value)
        if shape is not None and shape != flow.long.shapes.get(value):
            value.shape = None if value.type is None else ir.Shape([None] * len(shape))
    infer_shapes(work)
