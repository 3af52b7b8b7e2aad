"""Scores by distance, shifted to the pairs of frames.

A Pad, a Reshape, a Slice, a Reshape and a Slice make scores of pairs from those by distance. Row i has the
distances T - 1, T - 2, ... in its columns, so that of frames i and j is in column T - 1 - i + j. One column more in
front and rows of another length move it to column j.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import onnx_ir as ir

from rnn_lowering.facts.infer import pads, slice_bounds
from rnn_lowering.facts.numbers import evaluate
from rnn_lowering.facts.operators import axes_by_rule, operator_of
from rnn_lowering.facts.size import ONE, Shape, Size, size
from rnn_lowering.streaming.attention.masks import Mask
from rnn_lowering.streaming.attention.position_rows import are_few, emit_rows, numbers_of, position_rows
from rnn_lowering.streaming.counts import frames_before, numbers_in_call
from rnn_lowering.streaming.editor import Editor, Emitter, home, input_of
from rnn_lowering.streaming.flow import Flow
from rnn_lowering.streaming.frames import ByDistance, Frames, Framing, Pairs, Shifting, WholeSequenceValue
from rnn_lowering.streaming.sizes import in_whole, least_of
from rnn_lowering.types import Dims

_SHIFTED = ("Pad", "Reshape", "Slice", "Reshape", "Slice")
"""The nodes that move the columns. A Concat may be in place of the Pad; the last one may have nothing to cut."""

_ROWS = 1
"""The input of a product with the rows of the distances."""


def compared_by_distance(flow: Flow, node: ir.Node) -> list[Framing] | None:
    """Return the framing of a product of queries and rows of distances; None for other nodes."""
    if node.domain or node.op_type not in ("MatMul", "Einsum") or len(node.inputs) != 2 or None in node.inputs:
        return None
    query, rows = input_of(node), input_of(node, _ROWS)
    framing, shape = flow.framings.get(query), flow.known.shapes.get(query, ())
    if not isinstance(framing, Frames) or not isinstance(flow.framings.get(rows), WholeSequenceValue):
        return None
    if rows in flow.data or framing.ready > 0 or framing.cut or not framing.plain:
        return None
    count = in_whole(shape[framing.axis])
    by_distance = position_rows(flow.known, rows, count)
    lead = None if by_distance is None else _lead(node, by_distance.dims, shape, framing.axis)
    if by_distance is None or lead is None:
        return None
    columns = count * 2 - 1 if by_distance.least is None else count
    flow.known.shapes[node.outputs[0]] = (*lead, shape[framing.axis], columns)
    error = flow.refuse(
        node,
        "compares frames with distances: it reads scores by distance in a way that is not known",
        "move them by Pad, Reshape, Slice, Reshape and Slice, and add them to the scores of queries and keys",
    )
    axes, products = (len(lead), len(lead) + 1), node.outputs[0]
    return [Shifting(framing, axes, node, error, rows=by_distance, scores=products, lead=lead, count=count)]


def _lead(node: ir.Node, dims: Dims, shape: Shape, axis: int) -> Shape | None:
    """Return the axes before the queries in their product with rows of these sizes; None if its last axes are not
    the queries and the rows, or sizes differ."""
    ranks = dict(zip(node.inputs, (shape, tuple(size(n or 0) for n in dims)), strict=False))
    axes = axes_by_rule(node, 0, ranks.__getitem__, lambda _: None)
    if axes is None:
        return None
    first, second, output = axes.inputs[0], axes.inputs[_ROWS], axes.output
    if len(first) != len(shape) or len(second) != len(dims) or len(axes.inputs) != 2:
        return None
    query, row = first[axis], second[dims.index(None)]
    sizes: dict[object, Size] = dict(zip(first, shape, strict=True))
    others = {label: size(n) for label, n in zip(second, dims, strict=True) if n is not None and label in output}
    alike = all(own in (ONE, sizes.setdefault(label, own)) for label, own in others.items())
    once = all(len(set(labels)) == len(labels) for labels in (first, second, output))
    apart = query not in second and row not in first
    if not (alike and once and apart and list(output[-2:]) == [query, row]):
        return None
    return tuple(sizes[label] for label in output[:-2]) if sizes.keys() >= set(output[:-2]) else None


def shifted(flow: Flow, node: ir.Node, given: Shifting) -> Framing:
    """Return the framing behind a node that reads scores by distance."""
    if node.domain == "" and node.op_type == "Shape" and given.stage in (0, 4):
        evaluate(flow.known, node)
        flow.change(node, _shape_of_call, given)
        return None
    if given.stage == 0 and _scales(flow, node):
        return replace(given, scores=node.outputs[0])
    rank, count, columns = len(given.lead) + 2, given.count, _columns(given)
    after = flow.known.shapes.get(node.outputs[0], ())
    wanted: Sequence[Shape] = [
        (*given.lead, count, columns + 1),
        (*given.lead, columns + 1, count),
        (*given.lead, columns, count),
        (*given.lead, count, columns),
        (*given.lead, count, count),
    ]
    stage = given.stage
    moves = stage < len(wanted) and _whole(after) == _whole(wanted[stage]) and _moves(flow, node, stage, rank)
    if not moves or len(node.outputs) != 1:
        raise given.error
    done = stage == len(wanted) - 1 or (stage == len(wanted) - 2 and columns == count)
    if not done:
        return replace(given, stage=stage + 1)
    assert given.rows is not None
    assert given.scores is not None
    by_distance = ByDistance(given.product, given.rows, given.scores, node)
    return Pairs(given.frames, given.axes, given.product, given.error, by_distance=(by_distance,))


def _scales(flow: Flow, node: ir.Node) -> bool:
    """Whether a node computes each score from itself and from single numbers."""
    others = [flow.known.constant(v) for v in node.inputs if v is not None and v not in flow.framings]
    row = operator_of(node)
    alone = len(others) == len([v for v in node.inputs if v is not None]) - 1
    return row.elementwise and not row.random and alone and all(c is not None and c.size == 1 for c in others)


def _columns(given: Shifting) -> Size:
    return given.count * 2 - 1 if given.rows is not None and given.rows.least is None else given.count


def _whole(shape: Shape) -> Shape:
    return tuple(in_whole(dim) for dim in shape)


def _moves(flow: Flow, node: ir.Node, stage: int, rank: int) -> bool:
    """Whether a node has the operator of a stage and moves its rows as far; other sizes are checked later."""
    if node.domain or (node.op_type != _SHIFTED[stage] and (stage or node.op_type != "Concat")):
        return False
    if node.op_type == "Pad":
        mode = node.attributes.get_string("mode", "constant")
        amounts = pads(flow.known, node, rank)
        first = [ONE if axis == rank - 1 else size(0) for axis in range(2 * rank)]
        return mode == "constant" and amounts == first
    if node.op_type == "Concat":
        front = None if len(node.inputs) != 2 else flow.known.shapes.get(input_of(node))
        axis = (node.attributes.get_int("axis", 0) or 0) % rank
        behind = isinstance(flow.framings.get(input_of(node, 1)), Shifting)
        return behind and axis == rank - 1 and front is not None and front[-1] == ONE
    if node.op_type == "Slice":
        return _cuts(flow, node, rank, rank - 2 if stage == 2 else rank - 1, first=1 if stage == 2 else 0)
    return flow.framings.get(input_of(node)) is not None


def _cuts(flow: Flow, node: ir.Node, rank: int, axis: int, first: int) -> bool:
    """Whether a Slice starts at a row of one axis, in steps of 1, and takes the other axes whole."""
    bounds = slice_bounds(flow.known, node, rank) or {}
    starts = {n: own[0] for n, own in bounds.items() if own[2] == ONE}
    fits = all(start == size(first if n == axis else 0) for n, start in starts.items())
    return fits and axis in starts and len(starts) == len(bounds)


def added(flow: Flow, node: ir.Node, slots: Sequence[int]) -> Pairs | None:
    """Return the framing of the sum of scores and of scores by distance; None for other nodes."""
    both = [flow.framings[input_of(node, slot)] for slot in slots]
    if node.domain or node.op_type != "Add" or len(slots) != 2:
        return None
    first, second = sorted((each for each in both if isinstance(each, Pairs)), key=lambda each: each.is_by_distance)
    same = replace(first.frames, axis=0) == replace(second.frames, axis=0) and first.axes == second.axes
    alone = not second.terms and second.softmax is None and first.softmax is None and not first.terms
    if first.is_by_distance or not second.is_by_distance or not same or not alone:
        return None
    shape = flow.known.shapes.get(node.outputs[0])
    if any(flow.known.shapes.get(input_of(node, slot)) != shape for slot in slots):
        return None
    return replace(first, by_distance=first.by_distance + second.by_distance)


def limited(flow: Flow, node: ir.Node, mask: Mask, pairs: Pairs) -> Mask:
    """Return the mask of scores, which ends with a table of distances if a query may read the end of that.

    Raises:
        UnsupportedError: The mask keeps later frames, and the distances end at 0.
    """
    for scores in pairs.by_distance:
        most = scores.rows.most
        if scores.rows.least is not None and mask.later:
            raise flow.refuse(
                node, "sees later frames, for which it has no relative positions", "count positions from T-1 to 1-T"
            )
        if most is not None and (mask.back is None or mask.back >= most):
            mask = replace(mask, rows=least_of(mask.rows, most))
    return mask


def _shape_of_call(editor: Editor, node: ir.Node, given: Shifting) -> None:
    """Let a Shape of scores by distance return the sizes for the frames of the call, as all other sizes do."""
    emit, rank = editor.after(node), len(given.lead) + 2
    whole = emit("Shape", given.product.outputs[0])
    lead, rows = emit.sliced(whole, [0], [0], [rank - 1]), emit.sliced(whole, [0], [rank - 2], [rank - 1])
    columns = rows
    if given.rows is not None and given.rows.least is None:
        columns = emit("Sub", emit("Mul", rows, emit.constant([2])), emit.constant([1]))
    replace_shape(emit, node, emit("Concat", lead, columns, axis=0), range(rank))


def replace_shape(emit: Emitter, node: ir.Node, sizes: ir.Value, axes: Sequence[int]) -> None:
    """Let the readers of a Shape read the sizes at these places, as many of them as it returns."""
    start, end = node.attributes.get_int("start", 0) or 0, node.attributes.get_int("end", len(axes))
    returned = emit("Gather", sizes, emit.constant([*axes][start:end]), axis=0)
    emit.editor.replace(node.outputs[0], returned, emit.graph)


def shift_in_call(editor: Editor, each: ByDistance, frames: Frames, past: int | None, ahead: int) -> None:
    """Give the queries of a call the rows of its distances, and move the scores to its keys.

    Args:
        past: The number of past keys; None: those of all frames before the call.
        ahead: By how many frames the queries come behind the last keys.
    """
    call = _Shift(editor, each, frames, past, ahead)
    each.product.replace_input_with(_ROWS, call.rows())
    scores = call.scores(each.scores)
    editor.replace(each.last.outputs[0], scores, home(each.last))


class _Shift:
    """The scores by distance of a call of n queries and their past keys.

    Query r and key c have the distance r - c + past - ahead. The distances go down from the largest. With one query
    these are the keys already. Else there is one more for each query: column n - 1 - r + c of row r moves to c if
    the rows, one after another without the first n - 1 numbers, are cut into rows that are one shorter.
    """

    def __init__(self, editor: Editor, each: ByDistance, frames: Frames, past: int | None, ahead: int) -> None:
        self.editor, self.each, self.frames, self.ahead = editor, each, frames, ahead
        self.count, self.past = editor.own_frames(frames.rate), past

    def rows(self) -> ir.Value:
        """Emit the rows of the distances before the product."""
        emit, rows, known = self.editor.before(self.each.product), self.each.rows, self.editor.known
        if self.count is not None and self.past is not None:
            most = self.count - 1 + self.past - self.ahead
            number = self.past + (1 if self.count == 1 else 2 * self.count)
            if are_few(rows, number):
                least = most - number if rows.least is None else rows.least
                distances = [max(most - n, least) for n in range(number)]
                return emit.constant(numbers_of(known, rows, distances), known.types[self.each.product.outputs[0]])
        if self.count == 1 and self.past is None and not self.ahead:
            return self._kept_rows(emit)
        return emit_rows(self.editor, emit, rows, self._distances(emit))

    def _kept_rows(self, emit: Emitter) -> ir.Value:
        """Emit the row of the largest distance alone: with one query the call before had the others."""
        editor, product, rows = self.editor, self.each.product, self.each.rows
        axis, dims = rows.dims.index(None), [n or 0 for n in rows.dims]
        dtype = editor.known.types[input_of(product, _ROWS)]
        past = editor.add_past(product, "p", dtype, dims, grows=axis)
        first = emit_rows(editor, emit, rows, frames_before(editor, self.frames.rate))
        everything = emit("Concat", first, past, axis=axis)
        editor.add_present(past, everything)
        return everything

    def _distances(self, emit: Emitter) -> ir.Value:
        queries, before = self._numbers(emit)
        number = emit("Add", before, emit.counts([1]) if self.count == 1 else emit("Add", queries, queries))
        most = emit("Add", emit("Add", queries, before), emit.counts([-1 - self.ahead]))
        distances = emit("Sub", most, emit.indices(number))
        least = self.each.rows.least
        return distances if least is None else emit("Max", distances, emit.counts([least]))

    def _numbers(self, emit: Emitter) -> tuple[ir.Value, ir.Value]:
        """Return the numbers of queries and of past keys."""
        queries, _ = numbers_in_call(self.editor, self.frames.rate)
        return queries, frames_before(self.editor, self.frames.rate) if self.past is None else emit.counts(
            [self.past]
        )

    def scores(self, products: ir.Value) -> ir.Value:
        """Emit what moves the scores to the keys, before the last node that did."""
        if self.count == 1:
            return products
        emit = self.editor.before(self.each.last)
        queries, before = self._numbers(emit)
        keys = emit("Add", queries, before)
        queries, keys = (self._as_size(emit, number) for number in (queries, keys))
        lead = [0] * (len(self.editor.known.shapes[products]) - 2)
        flat = emit("Reshape", products, emit.constant([*lead, -1]))
        start = emit("Sub", queries, emit.constant([1]))
        cut = emit("Slice", flat, starts=start, ends=[-1], axes=[len(lead)])
        target = emit("Concat", emit.constant(lead), queries, emit.constant([-1]), axis=0)
        return emit("Slice", emit("Reshape", cut, target), starts=[0], ends=keys, axes=[len(lead) + 1])

    def _as_size(self, emit: Emitter, number: ir.Value) -> ir.Value:
        """Return a number of frames as int64, as sizes are."""
        counted = self.editor.count_type == ir.DataType.INT64
        return number if counted else emit("Cast", number, to=int(ir.DataType.INT64))
