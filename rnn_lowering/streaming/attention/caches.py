"""The keys and values that an attention keeps from call to call, and its mask in a call.

The past rows of a window have a fixed number: the keys that a later query may still see. Without a window all rows
are kept, and the state grows, or has a row for each of `max_frames` frames. Past rows come before those of the
chunk. The mask is made anew. With one frame per call, the mask only removes the rows before frame 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from rnn_lowering.errors import UnsupportedError
from rnn_lowering.facts.operators import TO_THE_END
from rnn_lowering.facts.size import Shape
from rnn_lowering.streaming.alignment import FramesRead
from rnn_lowering.streaming.attention.masks import Bias, Mask, by_distance
from rnn_lowering.streaming.attention.shifts import replace_shape, shift_in_call
from rnn_lowering.streaming.counts import frame_indices, frames_before, numbers_in_call
from rnn_lowering.streaming.editor import Editor, input_of
from rnn_lowering.streaming.flow import Flow
from rnn_lowering.streaming.frames import Pairs
from rnn_lowering.streaming.operators.pooling import lowest
from rnn_lowering.streaming.sizes import in_chunk, least_of
from rnn_lowering.types import Array

_MOST_CONSTANT = 1 << 20
"""Maximum numbers of a mask that is a constant of the stream."""


def rows_of(flow: Flow, pairs: Pairs, mask: Mask) -> int | None:
    """Return how many past rows are kept, None if they grow; note after how many frames the stream ends."""
    rate = pairs.frames.rate
    known = None if mask.rows is None else int((mask.rows - pairs.frames.overlap) / rate)
    flow.last_frame = least_of(flow.last_frame, known, flow.max_frames if mask.back is None else None)
    if mask.back is not None:
        return mask.back + mask.ahead
    if flow.max_frames is None:
        return None
    most = max(int(flow.max_frames * rate) - 1, 1)
    return -(-most // mask.cell) * mask.cell + mask.ahead


def biases_of(flow: Flow, pairs: Pairs, mask: Mask, rows: int | None) -> tuple[Array, ...]:
    """Return what each bias adds, by the distance from -later on; beyond the last one the last number is added."""
    tables = []
    for bias in mask.biases:
        if rows is None and not bias.constant:
            raise flow.refuse(
                bias.term.node,
                "adds a bias to all past frames, so it needs a cache of fixed size",
                "--max-frames N, or a mask with a window",
            )
        back = bias.reach + 1 if rows is None else rows - mask.ahead + mask.cell - 1
        tables.append(by_distance(flow, bias, pairs, mask.later, back))
    return tuple(tables)


@dataclass(frozen=True)
class Kept(FramesRead):
    """An input of a node that gets past rows: keys or values.

    Attributes:
        slot: The input.
        kind: "k" or "v".
    """

    slot: int
    kind: str

    def keep(self, editor: Editor, softmax: ir.Node, rows: int | None) -> ir.Value:
        """Put the past rows before the rows of the chunk; return all."""
        axis, emit = self.frames.axis, editor.before(self.node)
        chunk = self.without_missing(editor, input_of(self.node, self.slot), 0.0)
        if rows == 0:
            self.node.replace_input_with(self.slot, chunk)
            return chunk
        dtype = editor.known.types[self.value]
        dims = editor.dims(self.value, {axis: rows or 0})
        past = editor.add_past(softmax, self.kind, dtype, dims, grows=axis if rows is None else None)
        everything = emit("Concat", past, chunk, axis=axis)
        again = self.frames.overlap  # these come again in the next call
        first, last = 0 if rows is None else -rows - again, -again or TO_THE_END
        all_stay = (first, last) == (0, TO_THE_END)
        present = everything if all_stay else emit.sliced(everything, [axis], [first], [last])
        editor.add_present(past, present)
        self.node.replace_input_with(self.slot, everything)
        return everything


@dataclass(frozen=True)
class KeepKeys:
    """Lets an attention weigh past values: keys and values are states, and the mask is made for each call.

    Attributes:
        node: The Softmax.
        pairs: Its scores.
        mask: Their mask.
        rows: The number of past rows; None: all.
        keys, values: Where they are read.
        tables: What each bias of the mask adds, by the distance.
        last_frame: After how many frames of the scores the stream ends; None: never.
    """

    node: ir.Node
    pairs: Pairs
    mask: Mask
    rows: int | None
    keys: Kept
    values: Kept
    tables: Sequence[Array]
    last_frame: int | None

    def apply(self, editor: Editor) -> None:
        self._check_end(editor)
        with self._advice():
            everything = self.keys.keep(editor, self.node, self.rows)
            self.values.keep(editor, self.node, self.rows)
        for scored in self.pairs.by_distance:
            shift_in_call(editor, scored, self.pairs.frames, self.rows, self.mask.ahead)
        self._replace_terms(editor, everything)
        call = _Call(editor, self, everything, self.node)
        removed, emit = call.removed(), editor.before(self.node)
        scores, dtype = input_of(self.node), editor.known.types[input_of(self.node)]
        if self.last_frame is not None:
            scores = emit("Add", scores, call.end(self.last_frame, dtype))
        if removed is not None:
            scores = emit.chosen(removed, emit.constant([lowest(dtype)], dtype), scores, dtype)
        self.node.replace_input_with(0, scores)

    @contextmanager
    def _advice(self) -> Iterator[None]:
        """Let the error of a state that is too large say what makes its rows fewer."""
        try:
            yield
        except UnsupportedError as error:
            error.advise(
                "use a smaller --max-frames" if self.mask.back is None else "use a mask with a smaller window"
            )
            raise

    def _check_end(self, editor: Editor) -> None:
        """Refuse calls that would go on after the last frame, when zeros follow the sequence."""
        late, count = self.pairs.frames.delay.frames + self.mask.ahead, editor.own_frames(self.pairs.frames.rate)
        if self.last_frame is not None and count is not None and late % count:
            raise UnsupportedError(
                f"ends after frame {self.last_frame}, and comes {late} late, "
                f"which is no multiple of the {count} frames in a call",
                hint="give calls of one frame",
                node=editor.ref(self.node),
            )

    def _replace_terms(self, editor: Editor, everything: ir.Value) -> None:
        """Drop the masks of whole sequences, and let biases be those of the call."""
        biases = {bias.term.node: (bias, table) for bias, table in zip(self.mask.biases, self.tables, strict=True)}
        for term in (*self.pairs.terms, *self.pairs.again):
            if term.node in biases:
                call = _Call(editor, self, everything, term.node)
                term.node.replace_input_with(term.slot, call.bias(*biases[term.node]))
                continue
            editor.replace_by_input(term.node, term.scores_slot)


class _Call:
    """The queries and keys of a call: their positions, and which pairs are removed.

    Query r of the call and key c of all rows have the distance r - c + `apart`.
    """

    def __init__(self, editor: Editor, edit: KeepKeys, everything: ir.Value, reader: ir.Node) -> None:
        """Emit before the node that reads what is emitted."""
        self.editor, self.edit, self.everything = editor, edit, everything
        self.emit = editor.before(reader)
        self.mask, self.past, self.frames = edit.mask, edit.rows, edit.pairs.frames
        self.delay = self.frames.delay.frames
        count = editor.own_frames(self.frames.rate)
        self.count = None if count is None else count + self.frames.overlap
        self.rank = len(editor.known.shapes[input_of(edit.node)])
        self.row_axis, self.column_axis = edit.pairs.rows_and_columns
        self._indices: ir.Value | None = None

    @property
    def _constant(self) -> bool:
        """Whether all calls have the same number of queries and keys."""
        return self.count is not None and self.past is not None and self.count * self._keys <= _MOST_CONSTANT

    @property
    def _keys(self) -> int:
        return (self.past or 0) + (self.count or 0)

    def _apart(self) -> Array:
        """Return the distance of each query and key, if all calls have the same number."""
        rows, columns = np.arange(self.count or 0)[:, None], np.arange(self._keys)
        return rows - columns + (self.past or 0) - self.mask.ahead

    # Removed pairs

    def removed(self) -> ir.Value | None:
        """Return which pairs are removed, as booleans that broadcast to the scores; None for none."""
        parts = [part for part in (self._by_mask(), self._before_frame_0()) if part is not None]
        if len(parts) == 2:
            return self.emit("Or", *parts)
        return parts[0] if parts else None

    def _by_mask(self) -> ir.Value | None:
        if self._constant:
            removed = ~self._kept()
            return self._on_axes(self.emit.constant(removed, ir.DataType.BOOL)) if removed.any() else None
        mask = self.mask
        if not mask.is_contiguous:
            raise UnsupportedError(
                "its mask has gaps, and calls have no fixed number of frames",
                hint="give the number of frames",
                node=self.editor.ref(self.edit.node),
            )
        if self.count == 1 and self.past is None:  # all rows are past ones
            return None
        distance = self._distance(self.mask.cell)
        later = self.emit("Less", distance, self.emit.counts([-mask.ahead]))
        if mask.back is None:
            return later
        back = mask.back // mask.cell
        return self.emit("Or", later, self.emit("Less", self.emit.counts([back]), distance))

    def _kept(self) -> Array:
        """Return which pairs the mask keeps, if all calls have the same number; a cell begins with them."""
        apart, mask = self._apart(), self.mask
        rows = np.arange(self.count or 0)[:, None] + (self.past or 0) - mask.ahead
        beyond = (apart >= len(mask.kept)) & (mask.back is not None)
        kept = mask.keeps(rows, np.arange(self._keys)) & ~beyond
        return np.asarray(kept & ((mask.cell > 1) | (apart >= -mask.ahead)))

    def _before_frame_0(self) -> ir.Value | None:
        """Return which keys belong to no frame."""
        if self.past is None:
            if not self.delay:
                return None
            limit = self.emit.counts([self.delay])
        elif self.past + self.delay == 0:
            return None
        else:
            before = frames_before(self.editor, self.frames.rate)
            limit = self.emit("Sub", self.emit.counts([self.past + self.delay]), before)
        return self._on_columns(self.emit("Less", self._column_indices(), limit))

    # Positions

    def _column_indices(self) -> ir.Value:
        if self.count is not None and self.past is not None:
            return self.emit.counts(range(self._keys))
        if self._indices is None:
            number = self.emit.size_of(self.everything, self.edit.keys.frames.axis)
            self._indices = self.emit.indices(self.emit.as_counts(number))
        return self._indices

    def _distance(self, cell: int) -> ir.Value:
        """Return the distance of each query and key; of cells of several frames, the distance of the cells."""
        emit = self.emit
        _, rows = numbers_in_call(self.editor, self.frames.rate, self.frames.overlap)
        if self.past is None:
            past = frames_before(self.editor, self.frames.rate)
            rows = emit(
                "Add", rows, past if not self.mask.ahead else emit("Sub", past, emit.counts([self.mask.ahead]))
            )
        elif self.past - self.mask.ahead:
            rows = emit("Add", rows, emit.counts([self.past - self.mask.ahead]))
        columns = self._column_indices()
        if cell > 1:
            rows, columns = (emit("Div", numbers, emit.counts([cell])) for numbers in (rows, columns))
        return emit("Sub", self._on_rows(rows), self._on_columns(columns))

    def _on_rows(self, value: ir.Value) -> ir.Value:
        return self.emit.along(value, self.row_axis, self.rank)

    def _on_columns(self, value: ir.Value) -> ir.Value:
        return value if self.column_axis == self.rank - 1 else self.emit.along(value, self.column_axis, self.rank)

    def _on_axes(self, matrix: ir.Value) -> ir.Value:
        """Return a matrix of queries and keys on their axes."""
        if self.column_axis < self.row_axis:
            matrix = self.emit("Transpose", matrix, perm=[1, 0])
        if (self.row_axis, self.column_axis) == (self.rank - 2, self.rank - 1):
            return matrix
        sizes = {self.row_axis: self.count or 1, self.column_axis: self._keys}
        return self.emit("Reshape", matrix, self.emit.constant([sizes.get(n, 1) for n in range(self.rank)]))

    # What is added

    def bias(self, bias: Bias, table: Array) -> ir.Value:
        """Return what a bias adds in a call."""
        emit, node = self.emit, bias.term.node
        dtype = self.editor.known.types[bias.value]
        rank = len(self.editor.known.shapes[node.outputs[0]])
        if self.edit.pairs.axes_of(bias.term) != (rank - 2, rank - 1):
            raise UnsupportedError(
                "adds a bias to scores whose last axes are not the queries and the keys",
                hint="transpose the scores after the bias",
                node=self.editor.ref(node),
            )
        last = table.shape[-1] - 1
        if self._constant:
            index = np.clip(self._apart() + self.mask.later, 0, last)
            return emit.constant(table.take(index.reshape(-1), -1).reshape(*table.shape[:-1], *index.shape), dtype)
        index = emit("Add", self._distance(1), emit.counts([self.mask.later]))
        index = emit("Min", emit("Max", index, emit.counts([0])), emit.counts([last]))
        matrix = emit(
            "Reshape", index, emit("Slice", emit("Shape", index), starts=[-2], ends=[TO_THE_END], axes=[0])
        )
        return emit("Gather", emit.constant(table, dtype), matrix, axis=table.ndim - 1)

    def end(self, last: int, dtype: ir.DataType) -> ir.Value:
        """Return zeros for the queries, which come with an error after the last frame."""
        more, start = self.delay + self.mask.ahead + self.frames.overlap, self.editor.start

        def picked() -> ir.Value:
            zeros = start.constant(np.zeros(last + more), dtype)
            return start("Gather", zeros, frame_indices(self.editor, self.frames.rate, self.frames.overlap), axis=0)

        return self._on_rows(self.editor.once(("end", last, self.frames.rate, more, dtype), picked))


def shape_of_rows(editor: Editor, node: ir.Node, pairs: Pairs) -> None:
    """Let a Shape of scores return the frames of the call for the keys too, as all other sizes do."""
    rows, columns = pairs.rows_and_columns
    rank, emit = len(editor.known.shapes[input_of(node)]), editor.after(node)
    axes = [rows if n == columns else n for n in range(rank)]
    replace_shape(emit, node, emit("Shape", input_of(node)), axes)


def sizes_of_scores(editor: Editor, node: ir.Node, after: Shape, first: int, by: int) -> None:
    """Let a Reshape of pairs keep the queries and keys of its input."""
    emit, data = editor.before(node), input_of(node)
    lead = [in_chunk(dim, editor.time.frames) for dim in after[: first + by]]
    tail = emit("Slice", emit("Shape", data), starts=[first], ends=[TO_THE_END], axes=[0])
    if None in lead:
        open_axes = [n for n, dim in enumerate(lead) if dim is None]
        sizes = [-1 if n == open_axes[0] else dim for n, dim in enumerate(lead)]
        if len(open_axes) > 1:
            raise UnsupportedError(
                "reshapes pairs of frames with several sizes that are open", node=editor.ref(node)
            )
        lead = sizes
    target = emit("Concat", emit.constant([int(n or 0) for n in lead]), tail, axis=0) if lead else tail
    node.replace_input_with(1, target)
    node.attributes.pop("allowzero", None)
