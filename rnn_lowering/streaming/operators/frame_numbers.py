"""Numbers of frames: Range, values calculated from a Range, tables with a row per frame, and sizes.

In a chunk, they start from 0. Numbers that pick frames of the chunk are right as they are. If a node reads them as
data, the edit adds the number of frames before the chunk, which is a state. Example: chunks of 4 frames. The Range
of the second chunk is [0, 1, 2, 3]; the edit adds 4: [4, 5, 6, 7].
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

import numpy as np
import onnx_ir as ir

from rnn_lowering.facts.infer import slice_bounds
from rnn_lowering.facts.node_outputs import compute_node
from rnn_lowering.facts.numbers import UnfollowedError, evaluate
from rnn_lowering.facts.operators import bodies_of, operator_of, values_used
from rnn_lowering.facts.size import size
from rnn_lowering.nodes.kinds import is_recurrent
from rnn_lowering.streaming.counts import frames_before, of_type
from rnn_lowering.streaming.editor import Editor, NodeEdit, home, input_of, producer
from rnn_lowering.streaming.flow import Flow
from rnn_lowering.streaming.frames import FirstFrame, FrameNumbers, Frames, Framing
from rnn_lowering.streaming.sizes import TIME, in_chunk
from rnn_lowering.types import Array

_MOST_OFFSETS = 1 << 12
"""Frame numbers with more offsets are read as data."""

_UNIQUE_SIZE = 997
"""A number of frames that no other axis has: it shows to which axis they go."""


def numbering(flow: Flow, node: ir.Node) -> list[Framing] | None:
    """Return the framing of the output of a node that counts frames; None for other nodes."""
    if node.domain or len(node.outputs) != 1 or node.outputs[0].is_graph_output():
        return None
    if node.op_type == "Range":
        return _range(flow, node)
    if node.op_type == "Slice":
        return _table_rows(flow, node)
    row = operator_of(node)
    if row.keeps_order or row.keeps_axes or node.op_type == "Cast":
        numbers = _rearranged(flow, node)
    else:
        numbers = _calculated(flow, node) if node.op_type in ("Add", "Mul", "Sub") else None
    return None if numbers is None else [numbers]


def _range(flow: Flow, node: ir.Node) -> list[Framing] | None:
    output, (first, _, step) = node.outputs[0], (flow.known.constant(v) for v in node.inputs)
    if first is None or step is None or not any(d.varies for d in flow.known.shapes.get(output, ())):
        return None
    start, change = float(first.reshape(-1)[0]), float(step.reshape(-1)[0])
    if start != int(start) or change != int(change):
        return None
    frames, lacking = flow.frames_and_lacking(output, node)
    if lacking:
        flow.change(node, _raise_limit, lacking * int(change), flow.known.types[output])
        flow.known.shapes[output] = (frames.size(),)
    return [FrameNumbers(frames, int(change), np.array([int(start)]))]


def _table_rows(flow: Flow, node: ir.Node) -> list[Framing] | None:
    """Return the framing of a table that a Slice cuts to the number of frames, from any row on."""
    table, output = node.inputs[0], node.outputs[0]
    shape = None if table is None else flow.known.shapes.get(table)
    if table is None or shape is None or flow.is_timed(table) or any(d.constant is None for d in shape):
        return None
    bounds = slice_bounds(flow.known, node, len(shape))
    if bounds is None or len(bounds) != 1 or flow.opset < 11:
        return None
    ((axis, (first, last, step)),) = bounds.items()
    row, count, rows = first.constant, last - first, shape[axis] - first
    if row is None or row < 0 or step != size(1) or not last.varies or not rows.at_least(1):
        return None
    flow.known.types.setdefault(output, flow.known.types[table])
    if rows == size(1) and count.coefficient(TIME) > 0 and count.coefficient() >= 0:
        # its only row, which serves every frame
        flow.known.shapes[output] = tuple(rows if n == axis else dim for n, dim in enumerate(shape))
        return [None]
    flow.known.shapes[output] = tuple(count if n == axis else dim for n, dim in enumerate(shape))
    frames = flow.by_size(output, node)
    if rows.constant is not None:
        flow.end_with(frames, int(rows.constant))
    flow.change(node, _pick_rows, axis, frames, int(row))
    return [frames]


def _rearranged(flow: Flow, node: ir.Node) -> FrameNumbers | None:
    """Return frame numbers whose axes or type a node changes."""
    read = _numbers_read(flow, node)
    narrow = node.op_type == "Cast" and ir.DataType(node.attributes.get_int("to", 1) or 1).itemsize < 4
    if read is None or read[0] != 0 or narrow or _UNIQUE_SIZE in read[1].offsets.shape:
        return None
    numbers = read[1]
    array = _run(flow, node, 0, np.repeat(numbers.offsets, _UNIQUE_SIZE, numbers.frames.axis))
    axes = [] if array is None else [n for n, length in enumerate(array.shape) if length == _UNIQUE_SIZE]
    if array is None or len(axes) != 1:
        return None
    return _fitting(flow, node, axes[0], numbers.step, array.take([0], axes[0]), numbers.frames)


def _calculated(flow: Flow, node: ir.Node) -> FrameNumbers | None:
    """Return frame numbers plus, minus or times a constant that is equal in each frame."""
    read, dtype = _numbers_read(flow, node), flow.known.types.get(node.outputs[0])
    if read is None or dtype is None or not dtype.is_integer():
        return None
    slot, numbers = read
    other = flow.known.constant(node.inputs[1 - slot])
    if other is None or (node.op_type == "Sub" and slot != 0) or (node.op_type == "Mul" and other.size != 1):
        return None
    step = numbers.step * int(other.reshape(-1)[0]) if node.op_type == "Mul" else numbers.step
    array = _run(flow, node, slot, numbers.offsets)
    if array is None:
        return None
    axis = numbers.frames.axis + array.ndim - numbers.offsets.ndim
    return _fitting(flow, node, axis, step, array, numbers.frames) if array.shape[axis] == 1 else None


def _numbers_read(flow: Flow, node: ir.Node) -> tuple[int, FrameNumbers] | None:
    """Return the input of a node that has frame numbers, and these, if all other inputs are constant."""
    slots = [n for n, v in enumerate(node.inputs) if v is not None and flow.known.constant(v) is None]
    numbers = flow.framings.get(input_of(node, slots[0])) if len(slots) == 1 else None
    if not isinstance(numbers, FrameNumbers) or numbers.offsets.size > _MOST_OFFSETS:
        return None
    return slots[0], numbers


def _run(flow: Flow, node: ir.Node, slot: int, frames: Array) -> Array | None:
    """Run a node on frame numbers."""
    constants = {v: array for v in node.inputs if v is not None and (array := flow.known.constant(v)) is not None}
    outputs = compute_node(node, {**constants, input_of(node, slot): frames}, flow.opset)
    return outputs[0] if outputs else None


def _fitting(
    flow: Flow, node: ir.Node, axis: int, step: int, offsets: Array, frames: Frames
) -> FrameNumbers | None:
    """Return the frame numbers that a node computes, if their shape matches the output."""
    numbers = FrameNumbers(replace(frames, axis=axis), step, offsets)
    shape = tuple(numbers.frames.size() if n == axis else size(length) for n, length in enumerate(offsets.shape))
    return numbers if flow.known.shapes.get(node.outputs[0]) == shape else None


def _raise_limit(editor: Editor, node: ir.Node, more: int, dtype: ir.DataType) -> None:
    """Raise the limit of a Range that lacks frames in each chunk: it is the size of a value padded on the right."""
    limit, emit = input_of(node, 1), editor.before(node)
    node.replace_input_with(1, emit("Add", limit, emit.constant(more, dtype)))


def _pick_rows(editor: Editor, node: ir.Node, axis: int, frames: Frames, first: int) -> None:
    """Pick the rows of a table by the numbers of the frames, where a Slice cuts it to the number of frames, from a
    first row on.

    A number beyond the end of the table is an error.
    """
    emit, table, rows = editor.after(node), input_of(node), node.outputs[0]
    rows.type = rows.type or table.type
    readers = list(rows.uses())
    count = in_chunk(frames.size(), editor.time.frames)
    if count is not None:
        indices = emit.counts(range(first, first + count))
    else:
        number = emit("Gather", emit("Shape", rows), emit.constant(axis), axis=0)
        last = emit("Add", number, emit.constant(first)) if first else number
        indices = emit.as_counts(emit("Range", emit.constant(first), last, emit.constant(1)))
    numbers = emit("Add", indices, frames_before(editor, frames.rate))
    picked = emit("Gather", table, numbers, axis=axis)
    picked.type = rows.type
    for reader, slot in readers:
        if reader.op_type != "Shape":
            reader.replace_input_with(slot, picked)


def continued_numbers(flow: Flow, used: Collection[ir.Node] | None = None) -> Iterator[NodeEdit]:
    """Yield the edits of the frame numbers that nodes read as data; of these nodes only, if they are given."""
    for value, all_readers in flow.numbers_read.items():
        readers = [node for node in all_readers if used is None or node in used]
        if not readers:
            continue
        numbers = flow.framings[value]
        assert isinstance(numbers, FrameNumbers)
        yield NodeEdit(producer(value), partial(_continue, value, numbers, readers, flow.known.types[value]))


def _continue(
    value: ir.Value, numbers: FrameNumbers, nodes: Sequence[ir.Node], dtype: ir.DataType, editor: Editor
) -> None:
    """Add the number of frames before the chunk to frame numbers that nodes read as data.

    Args:
        value: Their value.
        numbers: Their step and offsets.
        nodes: The nodes that read the value as data.
        dtype: The element type of the value.
    """
    readers = dict.fromkeys(nodes)
    as_indices = [reader for reader in readers if _picks_rows(reader, value)]
    if as_indices and dtype == ir.DataType.INT64 != editor.count_type:
        own = editor.after(producer(value))("Cast", value, to=int(editor.count_type))
        _add_frames_before(editor, value, own, numbers, as_indices, editor.count_type)
        readers = dict.fromkeys(reader for reader in readers if reader not in as_indices)
    if readers:
        _add_frames_before(editor, value, value, numbers, [*readers], dtype)


def _picks_rows(reader: ir.Node, value: ir.Value) -> bool:
    """Whether a node reads a value as indices only, which may have any type of integers."""
    slots = [slot for slot, read in enumerate(reader.inputs) if read is value]
    return reader.op_type == "Gather" and not reader.domain and slots == [1]


def _add_frames_before(
    editor: Editor,
    value: ir.Value,
    own: ir.Value,
    numbers: FrameNumbers,
    readers: Sequence[ir.Node],
    dtype: ir.DataType,
) -> None:
    """Give nodes that read a value the numbers in the chunk plus the number of the frames before it."""
    emit, before = editor.after(producer(own)), frames_before(editor, numbers.frames.rate)
    if numbers.step != 1:
        before = emit("Mul", before, emit.counts([numbers.step]))
    continued = emit("Add", own, of_type(emit, readers[0], before, dtype))
    for reader in readers:
        for slot, read in enumerate(reader.inputs):
            if read is value:
                reader.replace_input_with(slot, continued)


# Comparisons of two sizes whose result follows from the least number of frames of a sequence. A convolution of
# kernel 3 without padding needs 3 frames. Behind it, Max(T - 2, 0) is T - 2, and 0 < T - 2 is true. A chunk may
# be shorter, so the readers of such a node read the result.


_SETTLED = ("Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Min")


def settle_comparison(flow: Flow, node: ir.Node) -> bool:
    """Return whether a comparison of single sizes has the same result in each sequence that the model takes; note
    that its readers read the result."""
    values, known, output = [v for v in node.inputs if v is not None], flow.known, node.outputs[0]
    integers = all(v in known.types and known.types[v].is_integer() for v in values)
    single = all((sizes := known.numbers(v)) is not None and len(sizes) == 1 for v in values)
    if node.domain or node.op_type not in _SETTLED or not (integers and single):
        return False
    known.shortest = flow.shortest
    in_sequence = replace(known, contents={v: known.in_sequence(known.contents[v]) for v in values})
    with suppress(UnfollowedError):
        evaluate(in_sequence, node)
    result = in_sequence.contents.get(output)
    if result is None:
        return False
    shape = known.shapes.get(output)
    alike = [v for v in values if known.types[v] == known.types.get(output) and known.shapes.get(v) == shape]
    same = [v for v in alike if np.array_equal(in_sequence.contents[v], result)]
    if not same and result.dtype == object:
        return False
    known.contents[output] = known.contents[same[0]] if same else result
    flow.change(node, _replace_by, same[0] if same else result)
    return True


def _replace_by(editor: Editor, node: ir.Node, result: ir.Value | Array) -> None:
    editor.replace_node(node, result if isinstance(result, ir.Value) else editor.constant(result, home(node)))


# What is computed from frame 0 alone: the first call computes it, later calls get it as a state. A value of frame
# 0 has no frames. Every call computes it, from its own first frame. Where it meets frames
# (`alignment._keep_first`), comes before them or is an initial state, the value of the first call stays.


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
    timed = any(dim.varies for v in outputs for dim in flow.shape(v, node))
    if timed or operator_of(node).random or not (floats or not operator_of(node).may_fail):
        return None
    return [FirstFrame(first[0].error)] * len(outputs)


# Sizes that are constants of the stream


_MOST_ELEMENTS = 64
"""Maximum elements of a value that becomes a constant."""


def fold_sizes(flow: Flow, editor: Editor) -> None:
    """Replace integers that are equal in every call with constants, since most runtimes do not fold them. The nodes
    that computed them become unused."""
    frames = editor.time.frames
    numbered = [value for value, framing in flow.framings.items() if isinstance(framing, FrameNumbers)]
    for value in [*flow.known.contents, *numbered]:
        node, dtype = value.producer(), flow.known.types.get(value)
        if node is None or node.op_type == "Constant" or not value.uses() or value.is_graph_output():
            continue
        if dtype is None or not dtype.is_integer():
            continue
        array = _numbers_in_chunk(flow, value, frames)
        if array is not None and node.graph is not None:
            constant = editor.constant(array.astype(dtype.numpy()), home(node))
            value.replace_all_uses_with(constant)


def _numbers_in_chunk(flow: Flow, value: ir.Value, frames: int | None) -> Array | None:
    """Return the numbers of a value if every chunk has the same; None otherwise."""
    framing = flow.framings.get(value)
    if isinstance(framing, FrameNumbers):
        count = in_chunk(framing.frames.size(), frames)
        few = count is not None and count * framing.offsets.size <= _MOST_ELEMENTS
        return framing.of_first(count) if few and count is not None else None
    shape = [in_chunk(dim, frames) for dim in flow.known.shapes.get(value, (size(_MOST_ELEMENTS + 1),))]
    if None in shape or np.prod([float(n or 0) for n in shape]) > _MOST_ELEMENTS:
        return None
    whole = np.broadcast_to(flow.known.contents[value], [int(n or 0) for n in shape])
    numbers = [in_chunk(size(n), frames) for n in whole.reshape(-1).tolist()]
    return None if None in numbers else np.array(numbers, np.int64).reshape(whole.shape)
