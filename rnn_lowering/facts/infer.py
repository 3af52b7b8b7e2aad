"""Infer the types and shapes of a node's outputs: ONNX's inference first, then our own rules.

ONNX's inference carries a symbolic dimension through most operators and never guesses. It gets each polynomial as
such a symbol, and loses it if an operator computes a size (Reshape, Concat, Slice): these have a rule here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx
import onnx_ir as ir

from rnn_lowering.facts.known import KnownValues, SizingError, shape_of
from rnn_lowering.facts.node_outputs import infer_outputs
from rnn_lowering.facts.numbers import evaluate
from rnn_lowering.facts.operators import TO_THE_END, operator_of
from rnn_lowering.facts.size import PartialShape, Shape, Size, product, size

Outputs = Sequence[PartialShape | None]


def infer(known: KnownValues, node: ir.Node) -> None:
    """Add the types and shapes of a node's outputs, as far as they follow from its inputs.

    Raises:
        SizingError: The node does not accept the sizes that it gets.
    """
    if all(v is None or v in known.types for v in node.inputs) and _infer_by_onnx(known, node):
        rule = _rule_of(node)
        for output, dims in zip(node.outputs, () if rule is None else rule(known, node), strict=False):
            if dims is not None:
                known.set_shape(output, dims)


def follow(known: KnownValues, node: ir.Node, computes: Callable[[ir.Node], bool]) -> None:
    """Add the types and shapes of a node's outputs, and their numbers if `computes` then says so, as far as they
    follow from its inputs; nothing of a node that does not accept them."""
    if "broadcast" in node.attributes:  # before opset 7, which aligns other axes
        return
    try:
        infer(known, node)
        if computes(node):
            evaluate(known, node)
    except Exception:  # inference has no common error: nothing is known
        return


def _infer_by_onnx(known: KnownValues, node: ir.Node) -> bool:
    """Add what ONNX's inference finds; return whether it knows the operator."""
    types = [None if v is None else known.type_of(v) for v in node.inputs]
    data = {n: array for n, v in enumerate(node.inputs) if v is not None and (array := known.data(v)) is not None}
    try:
        inferred = infer_outputs(node, known.opsets, types, data)
    except onnx.defs.SchemaError:  # of another domain, or newer than the onnx package
        return False
    except Exception as error:  # inference, the checker and protobuf have no common error
        raise SizingError(node, str(error)) from error
    for output, inferred_type in zip(node.outputs, inferred, strict=True):
        if inferred_type is not None:
            known.add(output, inferred_type)
    return True


def _broadcast(known: KnownValues, shapes: Sequence[Shape]) -> PartialShape:
    """Broadcast shapes; an axis is None if its size is unknown."""
    rank = max((len(shape) for shape in shapes), default=0)
    padded = [(size(1),) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    return [_broadcast_size(known, [shape[axis] for shape in padded]) for axis in range(rank)]


def _broadcast_size(known: KnownValues, dims: Sequence[Size]) -> Size | None:
    sizes = list(dict.fromkeys(dim for dim in dims if dim != size(1)))
    if len(sizes) <= 1:
        return sizes[0] if sizes else size(1)
    if any(dim.varies for dim in sizes):
        return None
    constant = next((dim for dim in sizes if dim.constant is not None), None)
    if constant is not None or known.any_size:
        return constant
    return known.unknown(f"the largest of {sorted(map(repr, sizes))}")  # the others are 1, or all are equal


def _elementwise(known: KnownValues, node: ir.Node) -> Outputs:
    shapes = [known.shapes.get(v) for v in node.inputs if v is not None]
    return [] if None in shapes else [_broadcast(known, [s for s in shapes if s is not None])]


def _same_shape(known: KnownValues, node: ir.Node) -> Outputs:
    return [shape_of(known, node)]


def _reshape(known: KnownValues, node: ir.Node) -> Outputs:
    before, target = shape_of(known, node), known.numbers_of_input(node, 1)
    if target is None:
        return []
    if before is None:
        return [[None if n.constant in (0, -1) else n for n in target]]
    keep = not node.attributes.get_int("allowzero", 0)
    after: list[Size | None] = [
        before[n] if keep and d == size(0) and n < len(before) else d for n, d in enumerate(target)
    ]
    total, rest = product(before), product(d for d in after if d is not None and d != size(-1))
    if size(-1) in after:
        left = total.divided(rest)
        fits = left is not None and known.is_whole(left)
        return [[(left if fits else None) if d == size(-1) else d for d in after]]
    first, second = (product(dims) for dims in _unlike(before, after))
    if first != second and (first.varies or second.varies or first.constant is not None):
        texts = [f"[{', '.join(map(str, dims))}]" for dims in (before, target)]
        raise SizingError(node, f"{texts[0]} cannot be reshaped to {texts[1]}")
    return [after]


def _unlike(before: Shape, after: Sequence[Size | None]) -> tuple[Shape, Shape]:
    """Drop the equal axes at both ends of two shapes."""
    first, second = list(before), [dim for dim in after if dim is not None]
    for end in (0, -1):
        while first and second and first[end] == second[end]:
            first.pop(end)
            second.pop(end)
    return tuple(first), tuple(second)


def _flatten(known: KnownValues, node: ir.Node) -> Outputs:
    shape, axis = shape_of(known, node), node.attributes.get_int("axis", 1) or 0
    return [] if shape is None else [[product(shape[:axis]), product(shape[axis:])]]


def _expand(known: KnownValues, node: ir.Node) -> Outputs:
    shape, target = shape_of(known, node), known.numbers_of_input(node, 1)
    if shape is None or target is None:
        return []
    for dims in zip(reversed(shape), reversed(target), strict=False):
        if len({dim for dim in dims if dim != size(1)}) > 1 and None not in [dim.constant for dim in dims]:
            raise SizingError(node, f"a size of {dims[0]} cannot be expanded to {dims[1]}")
    return [_broadcast(known, [shape, tuple(target)])]


def _tile(known: KnownValues, node: ir.Node) -> Outputs:
    shape, times = shape_of(known, node), known.numbers_of_input(node, 1)
    return [] if shape is None or times is None else [[a * b for a, b in zip(shape, times, strict=True)]]


def _of_shape(known: KnownValues, node: ir.Node) -> Outputs:
    return [known.numbers_of_input(node, 0)]


def _range(known: KnownValues, node: ir.Node) -> Outputs:
    bounds = [known.numbers_of_input(node, slot) for slot in range(3)]
    first, limit, step = (None if b is None or len(b) != 1 else b[0] for b in bounds)
    if first is None or limit is None or step is None:
        return []
    count = (limit - first).divided(step)
    if count is not None and all(known.denominator(n) == 1 for n in (first, limit, step)):
        below = known.floor(-count)  # a rest is one number more; fractions of floats are rounded
        count = None if below is None else -below
    return [[count if count is not None and known.is_whole(count) and _is_size(known, count) else None]]


def _is_size(known: KnownValues, number: Size) -> bool:
    """Return whether a number is never negative; without `any_size`, one with symbols counts as such."""
    return number.at_least(0) or (number.constant is None and not known.any_size)


def _concat(known: KnownValues, node: ir.Node) -> Outputs:
    shapes = [known.shapes.get(v) for v in node.inputs if v is not None]
    if not shapes or any(s is None or not s for s in shapes):
        return []
    rank = len(shapes[0] or ())
    axis = (node.attributes.get_int("axis", 1) or 0) % rank
    dims: list[Size | None] = [None] * rank
    dims[axis] = sum((s[axis] for s in shapes if s is not None), size(0))
    return [dims]


def slice_bounds(known: KnownValues, node: ir.Node, rank: int) -> dict[int, tuple[Size, Size, Size]] | None:
    """Return (start, end, step) for each axis that a Slice names; None if unknown."""
    starts, ends, axes, steps = (known.parameter(node, name) for name in ("starts", "ends", "axes", "steps"))
    if starts is None or ends is None or axes is None or steps is None:
        return None
    numbers = [a.constant for a in axes] or range(len(starts))
    if any(n is None for n in numbers):
        return None
    bounds = zip(numbers, starts, ends, steps or [size(1)] * len(starts), strict=True)
    return {int(n or 0) % rank: (first, last, step) for n, first, last, step in bounds}


def position(known: KnownValues, bound: Size, length: Size) -> Size | None:
    """Return a bound of a Slice as a position from 0 to the length; None if no polynomial is right for all lengths.

    Args:
        known: Its `any_size`: Whether the axis may have fewer rows than a negative bound counts back.
        bound: The bound.
        length: The size of the axis.
    """
    constant, any_size, never_negative = bound.constant, known.any_size, known.never_negative
    if constant is not None and constant >= TO_THE_END:
        return length
    if constant is not None and constant <= -TO_THE_END:
        return size(0)
    backwards = constant < 0 if constant is not None else not any_size and never_negative(-bound - 1)
    place = length + bound if backwards else bound
    if (constant is None or any_size) and not never_negative(place):
        return None
    if never_negative(length - place):
        return place
    return length if never_negative(place - length) else None


def _slice(known: KnownValues, node: ir.Node) -> Outputs:
    shape = shape_of(known, node)
    if not shape:
        return []
    bounds = slice_bounds(known, node, len(shape))
    if bounds is None:
        axes = [axis.constant for axis in known.parameter(node, "axes") or ()]
        named = {int(axis) % len(shape) for axis in axes if axis is not None}
        return [[None if n in named else dim for n, dim in enumerate(shape)]] if axes and None not in axes else []
    dims: list[Size | None] = [None if axis in bounds else dim for axis, dim in enumerate(shape)]
    for axis, (first, last, step) in bounds.items():
        if shape[axis].constant is None and step.constant is not None:
            dims[axis] = _size_of_slice(known, shape[axis], first, last, step)
    return [dims]


def _size_of_slice(known: KnownValues, length: Size, first: Size, last: Size, step: Size) -> Size | None:
    """Return how much of an axis a Slice takes."""
    if (step, first) == (size(-1), size(-1)) and last.constant is not None and last.constant <= -TO_THE_END:
        return length
    begin, end = (position(known, bound, length) for bound in (first, last))
    if begin == size(0) and end is None and step == size(1) and last.constant is not None:
        return known.rows_up_to(int(last.constant), length)
    if begin is None or end is None or (step.constant or 0) <= 0:
        return None
    count: Size | None = end - begin
    if step != size(1):
        rounded = (end - begin + step - 1).divided(step)
        count = None if rounded is None else known.floor(rounded)
    return count if count is not None and _is_size(known, count) else None


def pads(known: KnownValues, node: ir.Node, rank: int) -> list[Size] | None:
    """Return the paddings of all axes, those at the starts first; None if unknown."""
    amounts, axes = known.parameter(node, "pads"), known.parameter(node, "axes")
    if amounts is None or axes is None or any(a.constant is None for a in axes):
        return None
    paddings, numbers = [size(0)] * 2 * rank, [int(a.constant or 0) % rank for a in axes] or range(rank)
    for n, axis in enumerate(numbers if amounts else ()):
        paddings[axis], paddings[axis + rank] = amounts[n], amounts[n + len(numbers)]
    return paddings


def _pad(known: KnownValues, node: ir.Node) -> Outputs:
    shape = shape_of(known, node)
    amounts = None if shape is None else pads(known, node, len(shape))
    if shape is None or amounts is None:
        return []
    return [[dim + amounts[n] + amounts[n + len(shape)] for n, dim in enumerate(shape)]]


def _split(known: KnownValues, node: ir.Node) -> Outputs:
    shape = shape_of(known, node)
    if not shape:
        return []
    axis, count = (node.attributes.get_int("axis", 0) or 0) % len(shape), len(node.outputs)
    parts: Sequence[Size | None] | None = known.parameter(node, "split")
    if not parts:
        part = None if parts is None else shape[axis].divided(count)
        parts = [part if part is not None and known.is_whole(part) else None] * count
    return [[part if n == axis else dim for n, dim in enumerate(shape)] for part in parts]


def _one_hot(known: KnownValues, node: ir.Node) -> Outputs:
    shape, depth = shape_of(known, node), known.numbers_of_input(node, 1)
    if shape is None or depth is None or len(depth) != 1:
        return []
    axis = (node.attributes.get_int("axis", -1) or 0) % (len(shape) + 1)
    return [[*shape[:axis], depth[0], *shape[axis:]]]


def _resize(known: KnownValues, node: ir.Node) -> Outputs:
    shape = shape_of(known, node)
    sizes, scales = known.parameter(node, "sizes"), known.parameter(node, "scales")
    if shape is None or node.attributes.get_ints("axes"):
        return []
    if scales is not None and len(scales) == len(shape):
        grown = [dim * scale for dim, scale in zip(shape, scales, strict=True)]
        return [[dim if known.is_whole(dim) else None for dim in grown]]
    keeps_ratio = node.attributes.get_string("keep_aspect_ratio_policy", "stretch") != "stretch"
    return [sizes] if sizes is not None and len(sizes) == len(shape) and not keeps_ratio else []


def _col2im(known: KnownValues, node: ir.Node) -> Outputs:
    shape, image, block = shape_of(known, node), known.numbers_of_input(node, 1), known.numbers_of_input(node, 2)
    if shape is None or image is None or block is None:
        return []
    return [[shape[0], shape[1].divided(product(block)), *image]]


def _stft(known: KnownValues, node: ir.Node) -> Outputs:
    shape, window, length = shape_of(known, node), shape_of(known, node, 2), known.numbers_of_input(node, 3)
    length_of_window = length[0].constant if length else window[0].constant if window else None
    if shape is None or length_of_window is None:
        return []
    bins = int(length_of_window) // 2 + 1 if node.attributes.get_int("onesided", 1) else int(length_of_window)
    return [[shape[0], None, size(bins), size(2)]]


_RULES: dict[str, Callable[[KnownValues, ir.Node], Outputs]] = {
    "Col2Im": _col2im,
    "Concat": _concat,
    "ConstantOfShape": _of_shape,
    "Expand": _expand,
    "Flatten": _flatten,
    "OneHot": _one_hot,
    "Pad": _pad,
    "Range": _range,
    "Reshape": _reshape,
    "Resize": _resize,
    "Slice": _slice,
    "STFT": _stft,
    "Split": _split,
    "Tile": _tile,
    "Upsample": _resize,
}


def _rule_of(node: ir.Node) -> Callable[[KnownValues, ir.Node], Outputs] | None:
    operator = operator_of(node)
    if operator.elementwise or operator.same_shape:
        return _elementwise if operator.elementwise else _same_shape
    return _RULES.get(node.op_type) if node.domain == "" else None
