"""Slices over the frames: what they trim of a padded stream, and the last frame."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import onnx_ir as ir

from rnn_lowering.streaming.frames import Flow, Frames, Framing, Trim, Unframed
from rnn_lowering.streaming.sized import Sized

TO_THE_END = (1 << 31) - 1
"""An end behind every axis; not the largest int64, which some runtimes get wrong."""


def sliced(flow: Flow, node: ir.Node) -> list[Framing]:
    """The framing of a Slice's output; where it trims frames, what it is to cut out of a chunk is noted."""
    value, output = node.inputs[0], node.outputs[0]
    framing = None if value is None else flow.framing(value, node)
    if not isinstance(framing, Frames) or value is None:
        return [framing if framing is None else flow.framed(node, output, framing)]
    rank = len(flow.shape(value, node))
    short, long = (_bounds(flow, node, sized, rank) for sized in (flow.short, flow.long))
    if any(short[axis] != long[axis] for axis in short if axis != framing.axis):
        raise flow.refuse(node, "cuts other axes by the number of frames")
    if framing.axis not in short:
        return [flow.framed(node, output, framing)]
    sizes = [framing.size(count) for count in flow.counts]
    cuts = [slice(*held[framing.axis]).indices(size) for held, size in zip((short, long), sizes, strict=True)]
    if any(step != 1 for _, _, step in cuts):
        raise flow.refuse(node, "reverses the frames, or leaves some of them out")
    lefts = {start for start, _, _ in cuts}
    rights = {size - stop for (_, stop, _), size in zip(cuts, sizes, strict=True)}
    if lefts == rights == {0}:
        return [flow.framed(node, output, framing)]
    if rights == {0} and all(stop - start == 1 for start, stop, _ in cuts) and framing.even and framing.plain:
        return [Unframed.LAST]
    if len(lefts) > 1 or len(rights) > 1 or not framing.plain:
        raise flow.refuse(
            node, "picks frames by their position in the whole sequence", "only the last one can be picked"
        )
    return [_trimmed(flow, node, framing, short, lefts.pop(), rights.pop())]


def _trimmed(
    flow: Flow, node: ir.Node, framing: Frames, bounds: dict[int, tuple[int, int, int]], left: int, right: int
) -> Framing:
    before, behind = framing.before - left, framing.behind - right
    if before < 0:
        raise flow.refuse(node, f"drops the first {-before} frames")
    cut = max(0, right - max(framing.behind, 0))
    here = bounds | {framing.axis: (left, -cut if cut else TO_THE_END, 1)}
    starts, ends, steps = zip(*here.values(), strict=True)
    flow.trims.append(Trim(node, tuple(here), starts, ends, steps))
    found = flow.framed(node, node.outputs[0], replace(framing, before=before, behind=behind))
    assert isinstance(found, Frames)
    # As many results as frames: what came before the first is a delay, and each chunk holds its own part.
    return replace(found, before=0, behind=0) if before + behind == 0 else found


def _bounds(flow: Flow, node: ir.Node, sized: Sized, rank: int) -> dict[int, tuple[int, int, int]]:
    """Start, end and step of each axis that a Slice names."""
    if flow.opset < 10:
        given = [node.attributes.get_ints(name, None) for name in ("starts", "ends", "axes")]
        starts, ends, axes = (list(g) if g is not None else None for g in given)
        steps: Sequence[int] | None = None
    else:
        starts, ends, axes, steps = (_input(flow, node, sized, slot) for slot in (1, 2, 3, 4))
    if starts is None or ends is None:
        raise flow.refuse(node, "starts or ends are no constants")
    axes = axes if axes is not None else list(range(len(starts)))
    steps = steps if steps is not None else [1] * len(starts)
    return {a % rank: (s, e, by) for a, s, e, by in zip(axes, starts, ends, steps, strict=True)}


def _input(flow: Flow, node: ir.Node, sized: Sized, slot: int) -> list[int] | None:
    value = node.inputs[slot] if slot < len(node.inputs) else None
    if value is None:
        return None
    held = sized.constant(value)
    if held is None:
        raise flow.refuse(node, f"input {slot} is no constant")
    return [int(n) for n in held.reshape(-1)]
