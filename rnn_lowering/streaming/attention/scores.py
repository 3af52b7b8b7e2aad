"""Pair values: scores of attention and their weights, from the product of queries and keys to that of the values.

A product of frames on different axes of its inputs gives a score for each pair of frames. Until the Softmax, scores
may be scaled, bent, biased and masked; the weights may be dropped out, and weigh values. All else is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import onnx_ir as ir

from rnn_lowering.errors import UnsupportedError, counted
from rnn_lowering.facts.infer import position, slice_bounds
from rnn_lowering.facts.numbers import evaluate
from rnn_lowering.facts.operators import operator_of, values_used
from rnn_lowering.facts.size import ONE, Shape, size
from rnn_lowering.nodes.spec import node_ref
from rnn_lowering.streaming.alignment import FramesRead, check_parameters, joined, known_axes, wait
from rnn_lowering.streaming.attention.caches import (
    KeepKeys,
    Kept,
    biases_of,
    rows_of,
    shape_of_rows,
    sizes_of_scores,
)
from rnn_lowering.streaming.attention.masks import REMOVES, Mask, mask_of, masked_again
from rnn_lowering.streaming.attention.shifts import added, limited, shifted
from rnn_lowering.streaming.editor import Editor, input_of
from rnn_lowering.streaming.flow import Flow
from rnn_lowering.streaming.frames import FrameNumbers, Frames, Framing, Pairs, Shifting, Term
from rnn_lowering.streaming.sizes import least_of

_PRODUCTS = ("MatMul", "Einsum")

_OPERANDS = 2


def compared(flow: Flow, node: ir.Node) -> list[Framing] | None:
    """Return the framing of a product whose inputs have frames on different axes; None for other nodes."""
    axes = _axes_of_product(flow, node)
    if axes is None:
        return None
    framing, by_slot = joined(flow, node, (0, 1))
    if not isinstance(framing, Frames) or by_slot.keys() != {0, 1}:
        return None
    known = known_axes(flow, node)
    check_parameters(flow, node, known, by_slot, (0, 1))
    if not framing.plain or framing.cut or (framing.ready > 0 and framing.ready != framing.extra):
        raise flow.refuse(
            node,
            "compares frames that were padded, cut or merged with another axis",
            "compare exactly the frames of the stream",
        )
    first, second = (known.output.index(known.label(slot, by_slot[slot])) for slot in (0, 1))
    error = flow.refuse(node, "compares frames with each other", "let it act on each frame alone, or be attention")
    return [Pairs(framing, (first, second), node, error)]


def _axes_of_product(flow: Flow, node: ir.Node) -> tuple[int, int] | None:
    """Return the axes of the output with the frames of each input, if they are different ones."""
    if node.domain or node.op_type not in _PRODUCTS or len(node.inputs) != _OPERANDS:
        return None
    places = []
    for slot in (0, 1):
        value = node.inputs[slot]
        framing = None if value is None else flow.framings.get(value)
        framing = framing.frames if isinstance(framing, FrameNumbers) else framing
        if not isinstance(framing, Frames):
            return None
        known = known_axes(flow, node)
        label = known.label(slot, framing.axis)
        if label is None or label not in known.output:
            return None
        places.append(known.output.index(label))
    return None if places[0] == places[1] else (places[0], places[1])


def of_pairs(flow: Flow, node: ir.Node) -> list[Framing]:
    """Return the framing of the output of a node that reads a pair value."""
    slots = [n for n, v in enumerate(node.inputs) if v is not None and isinstance(flow.framings.get(v), Pairs)]
    pairs = flow.framings[input_of(node, slots[0])] if slots else None
    if isinstance(pairs, Shifting) and len(slots) == 1:
        return [shifted(flow, node, pairs)]
    if not isinstance(pairs, Pairs) or isinstance(pairs, Shifting):
        raise next(m.error for v in values_used(node) if isinstance(m := flow.framings.get(v), Pairs))
    if node.domain == "" and node.op_type == "Shape":
        evaluate(flow.known, node)
        flow.change(node, shape_of_rows, pairs)
        return [None]
    if (kept := _without_nan(flow, node)) is not None:
        return [kept]
    if (both := added(flow, node, slots)) is not None:
        return [both]
    if node.domain or len(slots) > 1 or pairs.of_nan or len([v for v in node.outputs if v.name]) > 1:
        raise _misread(flow, node, pairs)
    moved = _moved(flow, node, pairs, slots[0])
    if moved is not None:
        return [moved]
    if (masked := _masked_again(flow, node, pairs, slots[0])) is not None:
        return [masked]
    return [(_scored if pairs.softmax is None else _weighed)(flow, node, pairs, slots[0])]


def _without_nan(flow: Flow, node: ir.Node) -> Pairs | None:
    """Return the framing of IsNaN of weights, and of a Where that puts 0 in place of NaN; None for other nodes. It
    acts on each weight; there is no NaN if each query keeps a key."""
    first = flow.framings.get(input_of(node)) if node.inputs and node.inputs[0] is not None else None
    if node.domain or not isinstance(first, Pairs) or first.softmax is None:
        return None
    if node.op_type == "IsNaN" and not first.of_nan:
        return replace(first, of_nan=True)
    if node.op_type != "Where" or not first.of_nan:
        return None
    weights, constant = flow.framings.get(input_of(node, 2)), flow.known.number(node.inputs[1]) is not None
    same = isinstance(weights, Pairs) and replace(weights, of_nan=True) == first
    same = same and not flow.is_timed(input_of(node, 1))
    return weights if same and isinstance(weights, Pairs) and constant else None


def _masked_again(flow: Flow, node: ir.Node, pairs: Pairs, slot: int) -> Pairs | None:
    """Return the framing of weights that are masked again: by a Where that puts 0 there, or a product; None for
    other nodes."""
    others = [n for n, v in enumerate(node.inputs) if v is not None and n != slot]
    terms = [n for n in others if _is_positional(flow, input_of(node, n))]
    if pairs.softmax is None or len(terms) != 1 or node.op_type not in ("Mul", "Where"):
        return None
    if flow.shape(node.outputs[0], node) != flow.shape(input_of(node, slot), node):
        return None
    term = Term(node, terms[0], pairs.axes)
    if node.op_type == "Where":
        if term.slot or flow.known.number(node.inputs[3 - slot]) != 0:
            return None
        term = replace(term, removes=slot == 2)
    return replace(pairs, again=(*pairs.again, term))


def _misread(flow: Flow, node: ir.Node, pairs: Pairs) -> UnsupportedError:
    if pairs.softmax is None:
        return flow.refuse(
            node,
            "compares frames with each other: it reads scores of pairs of frames in a way that is not known",
            "between the product and the Softmax over the keys, scale them, add a bias and a mask of i - j",
        )
    return flow.refuse(
        node,
        "compares frames with each other: it reads weights of pairs of frames other than to weigh values",
        "mask scores before the Softmax, and multiply the weights with values",
    )


# Both


def _moved(flow: Flow, node: ir.Node, pairs: Pairs, slot: int) -> Pairs | None:
    """Return the framing behind a node that moves pairs, or changes their type; None for other nodes."""
    row, values = operator_of(node), (input_of(node, slot), node.outputs[0])
    before, after = (flow.shape(value, node) for value in values)
    if slot == 0 and node.op_type in ("Dropout", "Identity"):
        return pairs
    if slot == 0 and node.op_type == "Slice" and _takes_all(flow, node, before):
        flow.known.shapes[node.outputs[0]] = before
        flow.change(node, Editor.replace_by_input)
        return pairs
    if node.op_type == "Cast":
        dtype = flow.known.types.get(node.outputs[0])
        return pairs if dtype is not None and dtype.is_floating_point() and dtype.itemsize > 1 else None
    if slot or (not row.keeps_order and not row.keeps_axes):
        return None
    if node.op_type == "Transpose":
        labels = [*known_axes(flow, node).output]
        return replace(pairs, axes=(labels.index(pairs.axes[0]), labels.index(pairs.axes[1])))
    first, by = min(pairs.axes), len(after) - len(before)
    same = first + by >= 0 and after[first + by :] == before[first:]
    if not same or any(dim.varies for dim in after[: max(first + by, 0)]):
        raise _misread(flow, node, pairs)
    if node.op_type == "Reshape":
        flow.change(node, sizes_of_scores, after, first, by)
    return replace(pairs, axes=(pairs.axes[0] + by, pairs.axes[1] + by))


def _takes_all(flow: Flow, node: ir.Node, shape: Shape) -> bool:
    """Whether a Slice takes all of its input, as `x[:, :, :, :T]` does of scores."""
    bounds = slice_bounds(flow.known, node, len(shape))
    return bounds is not None and all(
        (position(flow.known, first, dim), position(flow.known, last, dim), step) == (size(0), dim, ONE)
        for dim, (first, last, step) in ((shape[axis], own) for axis, own in bounds.items())
    )


# Scores


def _scored(flow: Flow, node: ir.Node, pairs: Pairs, slot: int) -> Pairs:
    if node.op_type == "Softmax":
        return _softmax(flow, node, pairs)
    if not operator_of(node).elementwise:
        raise _misread(flow, node, pairs)
    shape = flow.shape(node.outputs[0], node)
    if shape != flow.shape(input_of(node, slot), node):
        raise flow.refuse(node, "repeats scores along another axis", "give scores and masks the same axes")
    others = [n for n, v in enumerate(node.inputs) if v is not None and n != slot]
    fill = [n for n in others if n and node.op_type == "Where" and flow.known.constant(node.inputs[n]) is not None]
    terms = [n for n in others if n not in fill and _is_positional(flow, input_of(node, n))]
    for n in others:
        if n not in terms and (n not in fill or not terms):
            _check_operand(flow, node, n, pairs, shape)
    if terms:
        return _with_term(flow, node, pairs, slot, terms)
    return replace(pairs, terms=_after_masks(flow, node, pairs, slot, others))


def _is_positional(flow: Flow, value: ir.Value) -> bool:
    """Whether a value is computed from positions, not from what inputs hold."""
    return value not in flow.data and flow.is_timed(value)


def _check_operand(flow: Flow, node: ir.Node, slot: int, pairs: Pairs, shape: Shape) -> None:
    """Refuse an operand of scores that has frames, or a number for each of a fixed number of frames."""
    value = input_of(node, slot)
    if flow.is_timed(value):
        flow.read(value, node)
        raise flow.refuse(
            node,
            f"its operand '{value.name}' has frames, and meets scores of pairs of frames",
            "build masks in the model, from positions",
        )
    dims = flow.shape(value, node)
    offset = len(shape) - len(dims)
    for axis in pairs.axes:
        if axis >= offset and dims[axis - offset] != ONE:
            raise flow.refuse(
                node,
                f"axis {axis - offset} of '{value.name}' has size {dims[axis - offset]} and meets the frames, "
                "but has none itself",
                "give it size 1 there, or export with a dynamic time axis",
            )


def _with_term(flow: Flow, node: ir.Node, pairs: Pairs, slot: int, terms: Sequence[int]) -> Pairs:
    """Return the framing of scores with a mask or a bias that is computed from positions."""
    if len(terms) > 1:
        raise flow.refuse(node, "gives scores two masks at once", "use a Where or an Add for each")
    (place,) = terms
    if node.op_type == "Where" and place == 0 and slot in (1, 2):
        fill = flow.known.number(node.inputs[3 - slot])
        if fill is None or not fill <= REMOVES:
            given = "numbers" if fill is None else f"{fill:g}"
            raise flow.refuse(
                node,
                f"its mask sets {given}, which does not remove a frame",
                "use -inf, or a number of at most -1e4",
            )
        return replace(pairs, terms=(*pairs.terms, Term(node, place, pairs.axes, removes=slot == 2)))
    if node.op_type in ("Add", "Sub") and (node.op_type == "Add" or slot == 0):
        factor = 1.0 if node.op_type == "Add" else -1.0
        return replace(pairs, terms=(*pairs.terms, Term(node, place, pairs.axes, factor=factor)))
    value = input_of(node, place)
    raise flow.refuse(
        node,
        f"scales scores by '{value.name}', which depends on positions or on the number of frames",
        "scale scores by a constant, and mask them with a Where or an Add",
    )


def _after_masks(flow: Flow, node: ir.Node, pairs: Pairs, slot: int, others: Sequence[int]) -> tuple[Term, ...]:
    """Return the terms of scores behind an element-wise node: after a mask it may scale them only."""
    if not pairs.terms or node.op_type in ("Add", "Sub"):
        if pairs.terms and (slot or any(flow.known.constant(node.inputs[n]) is None for n in others)):
            raise _after_mask(flow, node)
        return pairs.terms
    number = (flow.known.number(node.inputs[others[0]]) if len(others) == 1 else None) or 0.0
    if node.op_type == "Max" and number <= REMOVES:
        return pairs.terms
    if node.op_type not in ("Mul", "Div") or not 0 < number < float("inf") or (node.op_type == "Div" and slot):
        raise _after_mask(flow, node)
    by = number if node.op_type == "Mul" else 1 / number
    for term in pairs.terms:
        fill = term.fill(flow.known)
        if fill is not None and fill * term.factor * by > REMOVES:
            raise flow.refuse(node, "scales a mask, so that it does not remove a frame", "use -inf")
    return tuple(replace(term, factor=term.factor * by) for term in pairs.terms)


def _after_mask(flow: Flow, node: ir.Node) -> UnsupportedError:
    return flow.refuse(
        node,
        "changes scores after their mask, so keys may not be removed",
        "mask the scores just before the Softmax",
    )


def _softmax(flow: Flow, node: ir.Node, pairs: Pairs) -> Pairs:
    """Return the framing of weights, from scores."""
    if pairs.is_by_distance:  # no keys are compared
        raise pairs.error
    rank = len(flow.shape(input_of(node), node))
    axis = (node.attributes.get_int("axis", -1 if flow.opset >= 13 else 1) or 0) % rank
    if axis not in pairs.axes or (flow.opset < 13 and axis != rank - 1):
        raise flow.refuse(
            node, "weighs pairs of frames along another axis than the keys", "use a Softmax over the keys"
        )
    columns = pairs.axes.index(axis)
    return replace(pairs, softmax=node, columns=columns)


# Weights


def _check_prefix(flow: Flow, softmax: ir.Node, pairs: Pairs, mask: Mask) -> None:
    """Refuse rows before those of the stream where only its own frames are moved, counted or waited for."""
    if pairs.frames.overlap and (mask.ahead or mask.cell > 1 or pairs.by_distance):
        does = f"sees {counted(mask.ahead, 'frame')} ahead"
        does = f"sees chunks of {mask.cell} frames" if mask.cell > 1 else does
        does = "has scores by distance" if pairs.by_distance else does
        raise flow.refuse(
            softmax,
            f"{does}, and has {counted(pairs.frames.overlap, 'row')} before the frames of the stream",
            "put these rows behind the attention, or let it see past frames only",
        )


def _weighed(flow: Flow, node: ir.Node, pairs: Pairs, slot: int) -> Frames:
    """Return the framing of values that are weighed, and record the keys and values that are kept."""
    if pairs.softmax is None or node.op_type not in _PRODUCTS or len(node.inputs) != _OPERANDS:
        raise _misread(flow, node, pairs)
    softmax, framing, (rows, _) = pairs.softmax, _values(flow, node, pairs, slot), pairs.rows_and_columns
    _read_once(flow, node, pairs)
    pairs, mask = _masked(flow, softmax, pairs)
    kept, last = rows_of(flow, pairs, mask), _last_row(flow, pairs, mask)
    keys, value = input_of(pairs.product, pairs.columns), input_of(node, 1 - slot)
    both = (
        Kept(pairs.product, keys, _compared_frames(flow, node, pairs, keys), pairs.columns, "k"),
        Kept(node, value, framing, 1 - slot, "v"),
    )
    edit = KeepKeys(softmax, pairs, mask, kept, *both, biases_of(flow, pairs, mask, kept), last)
    if mask.ahead:
        _let_queries_wait(flow, node, pairs, mask.ahead)
    flow.keep(softmax, edit.apply)
    flow.replaced |= {(term.node, term.slot) for term in (*pairs.terms, *pairs.again)}
    if mask.cell > 1:
        if not pairs.frames.even:
            raise flow.refuse(
                softmax, f"sees chunks of {mask.cell} frames that come late", "chunk the frames of the stream"
            )
        flow.require_multiple(node_ref(softmax, flow.scope), (mask.cell / pairs.frames.rate).numerator)
    known = known_axes(flow, node)
    before = replace(pairs.frames, axis=known.output.index(known.label(slot, rows)))
    after = replace(before, ready=before.ready - mask.ahead)
    return flow.resampled(softmax if mask.ahead else node, node.outputs[0], before, after)


def _values(flow: Flow, node: ir.Node, pairs: Pairs, slot: int) -> Frames:
    """Return the framing of the values that weights weigh: the frames of the keys."""
    framing, known = flow.read(input_of(node, 1 - slot), node), known_axes(flow, node)
    rows, columns = (known.label(slot, axis) for axis in pairs.rows_and_columns)
    if rows not in known.output:
        raise flow.refuse(node, "weighs over its queries, not its keys", "use a Softmax over the keys")
    along = isinstance(framing, Frames) and known.label(1 - slot, framing.axis) == columns
    same = isinstance(framing, Frames) and replace(framing, axis=0) == replace(pairs.frames, axis=0)
    if not isinstance(framing, Frames) or columns in known.output or not along or not same:
        raise flow.refuse(node, "weighs other frames than it compares", "give values the frames of the keys")
    return framing


def _read_once(flow: Flow, node: ir.Node, pairs: Pairs) -> None:
    """Record that a node weighs values by the scores of products; another node must not."""
    products = dict.fromkeys([pairs.product, *(scores.product for scores in pairs.by_distance)])
    if not flow.attended.keys().isdisjoint(products):
        raise flow.refuse(node, "weighs values by scores that are read twice", "compute the scores again")
    flow.attended.update(dict.fromkeys(products, node))


def _masked(flow: Flow, softmax: ir.Node, weights: Pairs) -> tuple[Pairs, Mask]:
    """Return weights on the axes of their Softmax, and the mask of their scores."""
    scores = flow.framings[input_of(softmax)]
    assert isinstance(scores, Pairs)
    pairs = replace(scores, softmax=softmax, columns=weights.columns)
    mask = mask_of(flow, softmax, pairs)
    for term in weights.again:
        mask = masked_again(flow, pairs, mask, term)
    mask, pairs = limited(flow, softmax, mask, pairs), replace(pairs, again=weights.again)
    _check_prefix(flow, softmax, pairs, mask)
    return pairs, mask


def _last_row(flow: Flow, pairs: Pairs, mask: Mask) -> int | None:
    """Return the number of rows after which an attention to all past frames ends, and let the stream end there."""
    ends = mask.rows is not None or (mask.back is None and flow.max_frames is not None)
    if flow.last_frame is None or not ends:
        return None
    last = int(flow.last_frame * pairs.frames.rate)
    calls = int((last + pairs.frames.delay.frames + mask.ahead) / pairs.frames.rate)
    flow.last_call = least_of(calls, flow.last_call)
    return last


def _compared_frames(flow: Flow, node: ir.Node, pairs: Pairs, value: ir.Value) -> Frames:
    """Return the framing of queries or keys, which come as late as the scores."""
    framing = flow.read(value, node)
    assert isinstance(framing, Frames)
    return replace(framing, ready=pairs.frames.ready)


def _let_queries_wait(flow: Flow, node: ir.Node, pairs: Pairs, ahead: int) -> None:
    """Let the queries come so many frames behind the keys."""
    for product, slot in ((pairs.product, 1 - pairs.columns), *((each.product, 0) for each in pairs.by_distance)):
        queries = input_of(product, slot)
        frames = _compared_frames(flow, node, pairs, queries)
        wait(flow, FramesRead(product, queries, frames), slot, ahead, ahead)
