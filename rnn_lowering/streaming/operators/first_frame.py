"""What is computed from frame 0 alone: the first call computes it, later calls get it as a state.

A value of frame 0 has no frames. Every call computes it, from its own first frame. Where it meets frames
(`alignment.KeepFirst`), comes before them or is an initial state, the value of the first call stays.
"""

from __future__ import annotations

import onnx_ir as ir

from rnn_lowering.facts.bodies import bodies_of, values_used
from rnn_lowering.facts.operators import operator_of
from rnn_lowering.facts.parameters import TO_THE_END
from rnn_lowering.nodes.kinds import is_recurrent
from rnn_lowering.streaming.editor import Editor, input_of
from rnn_lowering.streaming.flow import Flow
from rnn_lowering.streaming.frame_counts import past_or_first
from rnn_lowering.streaming.frames import FirstFrame, Frames, Framing
from rnn_lowering.streaming.operators.windows import Computed, Window


def of_first_frame(flow: Flow, node: ir.Node) -> list[Framing] | None:
    """Return the framing of the outputs of a node that reads frame 0 and nothing else of the stream; else None.

    It must not fail on another frame, as an index may be too large.
    """
    read = [v for v in values_used(node) if flow.is_timed(v)]
    first = [found for v in read if isinstance(found := flow.framings.get(v), FirstFrame)]
    if not first or len(first) < len(read) or bodies_of(node) or is_recurrent(node):
        return None
    floats = all(flow.known.types[v].is_floating_point() for v in read)
    outputs = [v for v in node.outputs if v.name]
    timed = any(dim.timed for v in outputs for dim in flow.shape(v, node))
    if timed or operator_of(node).random or not (floats or not operator_of(node).may_fail):
        return None
    return [FirstFrame(first[0].error)] * len(outputs)


def computed_in_front(flow: Flow, values: list[ir.Value], axis: int) -> list[int]:
    """Return the indices of values that are frames of the first chunk only: frame 0, or frames from an input."""

    def is_computed(value: ir.Value) -> bool:
        if isinstance(flow.framings.get(value), FirstFrame):
            return True
        shape = flow.known.shapes.get(value)
        fixed = shape is not None and shape[axis].constant is not None
        return fixed and not flow.is_timed(value) and value not in flow.known.contents

    computed = [n for n, v in enumerate(values) if is_computed(v)]
    return computed if computed and any(v in flow.framings for v in values[max(computed) + 1 :]) else []


def window_after_computed(flow: Flow, node: ir.Node, framing: Frames, slot: int) -> Window:
    """Return the window of a Concat of computed frames and a stream: how many frames they are. Record its changes.

    Args:
        framing: The framing of the stream.
        slot: The input of the node that has the stream.
    """
    counts = [flow.shape(input_of(node, n), node)[framing.axis].constant for n in range(slot)]
    if slot + 1 != len(node.inputs) or None in counts:
        raise flow.refuse(
            node,
            "joins the frames of the stream with others on both sides, or with some that a short sequence lacks",
            "use two Concats",
        )
    left = int(sum(count or 0 for count in counts))
    delay = framing.delay
    if delay and (delay.frames != left or delay.of_stream > flow.unit):
        raise flow.refuse(
            node,
            "puts computed frames before frames that come late",
            "put constants there: the stream keeps past frames itself",
        )
    if slot > 1:
        flow.change(node, _join_in_front, slot)
    if delay:
        flow.change(node, _in_place_of_missing, framing)
    return Window(left=left, initial=Computed(0))


def _join_in_front(editor: Editor, node: ir.Node, slot: int) -> None:
    """Let a Concat read one value in front of the stream: a Concat of those that it reads there."""
    axis, stream = node.attributes["axis"].as_int(), input_of(node, slot)
    front = editor.before(node)("Concat", *(input_of(node, n) for n in range(slot)), axis=axis)
    front.type = input_of(node).type
    node.resize_inputs(2)
    node.replace_input_with(0, front)
    node.replace_input_with(1, stream)


def _in_place_of_missing(editor: Editor, node: ir.Node, frames: Frames) -> None:
    """Let a Concat read computed frames in place of as many missing ones, all of which are in the first call."""
    front, stream, emit = input_of(node), input_of(node, 1), editor.before(node)
    real = emit.sliced(stream, [frames.axis], [frames.delay.frames], [TO_THE_END])
    first = emit("Concat", front, real, axis=frames.axis)
    chosen = past_or_first(editor, node, stream, first)
    chosen.type = stream.type
    node.replace_input_with(1, chosen)
