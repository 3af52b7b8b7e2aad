"""CumSum along the frames: the sum so far is a state."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import onnx_ir as ir

from rnn_lowering.emit.versions import TO_THE_END
from rnn_lowering.streaming.delays import Delay, replaced
from rnn_lowering.streaming.edit import Editor, NodeEdit, Path, dim_of, home, producer
from rnn_lowering.streaming.frame_by_frame import frame_by_frame
from rnn_lowering.streaming.frames import Flow, Framing
from rnn_lowering.streaming.inference import Shape
from rnn_lowering.streaming.operators.past_frames import framed_input


@dataclass(frozen=True)
class RunningSum(NodeEdit):
    """A CumSum along the frames.

    Attributes:
        axis: The axis of the frames.
        overlap: The number of extra frames of the input in each chunk.
        delay: Delay of the input; missing frames count as 0.
        path: The If nodes around the node, each with its branch.
        shape, dtype: Shape and element type of the sum.
        rate: Frames of the sum per frame of the stream.
    """

    node: ir.Node
    axis: int
    overlap: int
    path: Path
    shape: Shape
    dtype: ir.DataType
    rate: Fraction
    delay: Delay | None = None

    def apply(self, editor: Editor) -> None:
        """Add the sum so far to the chunk. The next state is the sum at the last frame of the chunk."""
        node, graph, value = self.node, home(self.node), self.node.outputs[0]
        dims = [1 if n == self.axis else dim_of(dim, n, value.name) for n, dim in enumerate(self.shape)]
        past = editor.add_past(node, "sum", self.dtype, dims)
        source = node.inputs[0]
        assert source is not None
        if self.delay:
            zeros = np.zeros(1, self.dtype.numpy())
            source = replaced(editor, source, self.delay, self.axis, len(self.shape), zeros, node)
            node.replace_input_with(0, source)
        exclusive = node.attributes.get_int("exclusive", 0)
        if editor.own_frames(self.rate) == 1 and not self.overlap and not exclusive:
            (total,) = editor.node("Add", [source, past])
            total.type = value.type
            graph.insert_before(node, [producer(total)])
            editor.replace(value, total, graph)
            graph.remove(node, safe=True)
            editor.add_present(node, "sum", past, total, self.path)
            return
        (total,) = editor.node("Add", [value, past])
        editor.put_behind(value, total, [total])
        last = total
        if exclusive:
            (last,) = editor.node("Add", [total, source])
            graph.insert_after(producer(total), [producer(last)])
        end = -self.overlap or TO_THE_END
        present = editor.sliced(last, graph, [self.axis], [-(self.overlap + 1)], [end])
        graph.insert_after(producer(last), [producer(present)])
        editor.add_present(node, "sum", past, present, self.path)


def summed(flow: Flow, node: ir.Node) -> list[Framing]:
    """The framing of a CumSum's output."""
    held, given = framed_input(flow, node), node.inputs[1]
    axis = None if given is None else flow.known.constant(given)
    if held is None or axis is None or int(axis.reshape(-1)[0]) % len(flow.shape(held[0], node)) != held[1].axis:
        return frame_by_frame(flow, node)
    value, framing = held
    if node.attributes.get_int("reverse", 0):
        raise flow.refuse(node, "sums from the last frame on, which a stream has not seen yet")
    if not framing.plain:
        raise flow.refuse(node, "its frames are merged with another axis")
    shape, dtype = flow.shape(value, node), flow.known.types[value]
    flow.edits.append(
        RunningSum(node, framing.axis, framing.overlap, flow.path, shape, dtype, framing.rate, framing.delay)
    )
    return [flow.framed(node, node.outputs[0], framing)]
