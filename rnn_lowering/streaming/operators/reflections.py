"""A Pad of mode reflect: the frames before the first are the next ones backwards, as around a centred STFT.

The first n frames of the result are x[n], ..., x[1], so the stream is n frames late: with x[j + n] comes frame j of
the result. It is x[n - j] for j < n, then x[j - n]. With n = 2 the result is x[2], x[1], x[0], x[1] and so on.
Behind the last frame the result is that of a sequence padded with zeros, as for every padding inside a net.

`first_repeated` does the same for mode edge in front of frames that come late.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import onnx_ir as ir

from rnn_lowering.streaming.editor import Editor, home, input_of
from rnn_lowering.streaming.flow import Flow
from rnn_lowering.streaming.frame_counts import frame_indices, frames_before, numbers_in_call
from rnn_lowering.streaming.frames import Frames, Framing
from rnn_lowering.streaming.operators.windows import KeepRows, settled


def reflected_in_front(
    flow: Flow, node: ir.Node, framing: Frames, amounts: Sequence[Fraction | None]
) -> list[Framing] | None:
    """Return the framing of a Pad of mode reflect along the frames alone; None for another Pad.

    Args:
        framing: The framing of what it pads.
        amounts: The paddings of all axes, those at the starts first.
    """
    rank = len(amounts) // 2
    left, right = (int(amounts[n] or 0) for n in (framing.axis, framing.axis + rank))
    others = [n for n, amount in enumerate(amounts) if amount != 0 and n % rank != framing.axis]
    if others or not framing.plain or framing.overlap or framing.cut or left < 1 or right < 0:
        return None
    late = replace(framing, extra=framing.extra + left + right, ready=framing.ready - left)
    final = settled(flow, node, framing, late, right)
    needed = (max(left, right) + 1 - framing.extra) / framing.rate
    flow.fewest_frames = max(flow.fewest_frames, math.ceil(needed))
    flow.edits.append(KeepRows(node, node.outputs[0], framing, 0, 2 * left))
    flow.change(node, _reflect, framing, left)
    return [flow.resampled(node, node.outputs[0], framing, final)]


def _reflect(editor: Editor, node: ir.Node, frames: Frames, left: int) -> None:
    """Pick the frames of the result, in place of a Pad, from the last 2 * `left` frames and the chunk."""
    emit, delay = editor.before(node), frames.delay.frames
    number, index = numbers_in_call(editor, frames.rate)
    twice = emit("Mul", frames_before(editor, frames.rate), emit.counts([2]))
    backwards = emit("Sub", emit("Sub", emit.counts([4 * left + 2 * delay]), twice), index)
    last = emit("Add", number, emit.counts([2 * left - 1]))
    within = emit.clipped(backwards, last)  # indices of frames that mean nothing may be others
    early = emit("Less", frame_indices(editor, frames.rate), emit.counts([2 * left + delay]))
    picked = emit("Gather", input_of(node), emit("Where", early, within, index), axis=frames.axis)
    graph = home(node)
    editor.replace(node.outputs[0], picked, graph)
    graph.remove(node, safe=True)


def first_repeated(flow: Flow, node: ir.Node, framing: Frames, left: int, right: int) -> list[Framing]:
    """Return the framing of a Pad of mode edge in front of frames that come late.

    Frame j of the result is x[max(j - left, 0)], and comes with x[j]: the stream is `left` frames later than with a
    constant, but frame 0 is there.
    """
    late = replace(framing, extra=framing.extra + left + right)
    final = settled(flow, node, framing, late, right)
    flow.edits.append(KeepRows(node, node.outputs[0], framing, 0, left))
    flow.change(node, _repeat_first, framing, left)
    return [flow.resampled(node, node.outputs[0], framing, final)]


def _repeat_first(editor: Editor, node: ir.Node, frames: Frames, left: int) -> None:
    """Pick the frames of the result, in place of a Pad, from the last `left` frames and the chunk."""
    emit = editor.before(node)
    number, index = numbers_in_call(editor, frames.rate)
    first = emit("Sub", emit.counts([frames.delay.frames + left]), frames_before(editor, frames.rate))
    from_first = emit("Where", emit("Less", index, first), first, index)  # Max of integers needs opset 12
    last = emit("Add", number, emit.counts([left - 1]))
    picked = emit("Gather", input_of(node), emit.clipped(from_first, last), axis=frames.axis)
    graph = home(node)
    editor.replace(node.outputs[0], picked, graph)
    graph.remove(node, safe=True)
