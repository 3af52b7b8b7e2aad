"""Sizes that are the same in every call of a stream become constants: most runtimes fold none of them."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from rnn_lowering.streaming.edit import Editor, home, producer
from rnn_lowering.streaming.frames import Counter, Flow
from rnn_lowering.streaming.polynomials import CHUNK, TIME, Size, size
from rnn_lowering.types import Array

_MOST = 64
"""Values of more elements stay as they are computed."""


def hold_known_sizes(flow: Flow, editor: Editor) -> None:
    """Replace the integers in an edited model that follow from its sizes; their nodes are left without a use."""
    frames = None if editor.time is None else editor.time.frames
    for value in [*flow.known.contents, *(v for v, f in flow.framings.items() if isinstance(f, Counter))]:
        node, dtype = value.producer(), flow.known.types.get(value)
        if node is None or node.op_type == "Constant" or not value.uses() or value.is_graph_output():
            continue
        if dtype is None or not dtype.is_integer():
            continue
        array = _counted(flow, value, frames) if value in flow.framings else _held(flow, value, frames)
        if array is not None and node.graph is not None:
            constant = editor.constant(array.astype(dtype.numpy()), home(producer(value)))
            value.replace_all_uses_with(constant)


def _held(flow: Flow, value: ir.Value, frames: int | None) -> Array | None:
    """The numbers that a value holds in every chunk; None where they are not known or differ."""
    shape = [_in_chunk(dim, frames) for dim in flow.known.shapes.get(value, (size(_MOST + 1),))]
    if None in shape or np.prod([float(n or 0) for n in shape]) > _MOST:
        return None
    whole = np.broadcast_to(flow.known.contents[value], [int(n or 0) for n in shape])
    numbers = [_in_chunk(size(n), frames) for n in whole.reshape(-1).tolist()]
    return None if None in numbers else np.array(numbers, np.int64).reshape(whole.shape)


def _counted(flow: Flow, value: ir.Value, frames: int | None) -> Array | None:
    """What a counter counts in a chunk."""
    counter = flow.framings[value]
    assert isinstance(counter, Counter)
    count = _in_chunk(counter.frames.size(), frames)
    if count is None or count * counter.offsets.size > _MOST:
        return None
    places = [1] * counter.offsets.ndim
    places[counter.frames.axis] = count
    return counter.offsets + counter.step * np.arange(count).reshape(places)


def _in_chunk(number: Size, frames: int | None) -> int | None:
    """A size in every chunk; None where it is not the same in all."""
    if not number.symbols <= ({CHUNK} if frames is None else {TIME, CHUNK}):
        return None
    found = number.at({CHUNK: 1} if frames is None else {TIME: frames, CHUNK: 1})
    stays = found >= 0 or number.constant is not None  # -1 from sizes is none that a Reshape is to find
    return int(found) if stays and found.denominator == 1 else None
