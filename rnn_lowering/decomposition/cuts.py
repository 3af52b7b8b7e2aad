"""Operators that move rows as functions: rows are cut out of a tensor and joined, in an order that is known.

Updates are put in rows of zeros, whose sum is added.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper, parser

from rnn_lowering.decomposition.operands import OLDEST_OPSET, Operand, Operands, function_of, holding, integers
from rnn_lowering.model.onnx_checks import ANONYMOUS

_MOST_COPIES = 1 << 12
"""Maximum copies of a tensor in a Concat."""

_MOST_CUTS = 1 << 10
"""Maximum parts that a tensor is cut into and joined of, where constants choose them."""


def reverse_sequence(node: ir.Node, opset: int, operands: Operands) -> onnx.FunctionProto | None:
    x = operands[0]
    if opset < OLDEST_OPSET or x.shape is None:
        return None
    rank, axis, lengths = len(x.shape), node.attributes.get_int("time_axis", 0), operands[1].numbers
    steps = x.shape[axis]
    if steps and lengths is not None and (lengths == steps).all():
        return _reversed_rows(steps, axis)
    if steps and lengths is not None and 0 < lengths.size * steps <= _MOST_CUTS:
        return _each_reversed(steps, axis, [int(length) for length in lengths])
    if axis == 1:
        return function_of("reverse_sequence_of_rows", {"swap": [1, 0, *range(2, rank)]})
    numbers = {"zero": 0, "one": 1, "two": 2, "rest": [-1], "column": [-1, 1], "row": [1, -1]}
    numbers |= {"others": [*range(2, rank)]} if rank > 2 else {}
    name = "reverse_sequence" if rank > 2 else "reverse_sequence_of_numbers"
    return function_of(name, {constant: np.array(number, np.int64) for constant, number in numbers.items()})


def _reversed_rows(steps: int, axis: int) -> onnx.FunctionProto:
    """Split an axis into rows, and join them in reverse.

    pnnx ignores the step of most Slices, and MNN crashes at a step of -1 in tensors of 4 axes.
    """
    rows = [f"row_{n}" for n in range(steps)]
    nodes = [*_split("x", rows, [1] * steps, axis), helper.make_node("Concat", rows[::-1], ["y"], axis=axis)]
    return helper.make_function("", "", ["x", "lengths"], ["y"], nodes, [])


def _each_reversed(steps: int, axis: int, lengths: Sequence[int]) -> onnx.FunctionProto:
    """Split a tensor into its sequences, cut each into rows and what is behind its length, and join them again."""
    parts, nodes = [f"sequence_{n}" for n in range(len(lengths))], list[onnx.NodeProto]()
    nodes += _split("x", parts, [1] * len(lengths), 1 - axis)
    for part, length in zip(parts, lengths, strict=True):
        sizes = [*[1] * length, *([steps - length] if length < steps else [])]
        rows = [f"{part}_{n}" for n in range(len(sizes))]
        nodes += _split(part, rows, sizes, axis)
        nodes.append(
            helper.make_node("Concat", rows[:length][::-1] + rows[length:], [f"{part}_reversed"], axis=axis)
        )
    nodes.append(helper.make_node("Concat", [f"{part}_reversed" for part in parts], ["y"], axis=1 - axis))
    return helper.make_function("", "", ["x", "lengths"], ["y"], nodes, [])


def _split(value: str, parts: Sequence[str], sizes: Sequence[int], axis: int) -> list[onnx.NodeProto]:
    """Return the nodes that cut a value into parts; onnx2torch fails at a Split into one."""
    if len(parts) == 1:
        return [helper.make_node("Identity", [value], parts)]
    numbers = numpy_helper.from_array(integers(sizes))
    return [
        helper.make_node("Constant", [], [f"{value}_sizes"], value=numbers),
        helper.make_node("Split", [value, f"{value}_sizes"], parts, axis=axis),
    ]


def tile(node: ir.Node, opset: int, operands: Operands) -> onnx.FunctionProto | None:
    """Copies of x along each axis that is repeated."""
    counts = operands[1].numbers if len(operands) > 1 else None  # a number for each axis from opset 6 on
    if opset < OLDEST_OPSET or counts is None or min(counts, default=0) < 1 or max(counts) > _MOST_COPIES:
        return None
    nodes, value = list[onnx.NodeProto](), "x"
    for axis, count in enumerate(counts):
        if count > 1:
            nodes.append(helper.make_node("Concat", [value] * int(count), [f"copies_{axis}"], axis=axis))
            value = f"copies_{axis}"
    if nodes:
        nodes[-1].output[0] = "y"  # pnnx has no Identity of an output
    else:
        nodes = [helper.make_node("Identity", ["x"], ["y"])]
    return helper.make_function("", "", ["x", "repeats"], ["y"], nodes, [])


def gather(node: ir.Node, opset: int, operands: Operands) -> onnx.FunctionProto | None:
    axis, shape, numbers = node.attributes.get_int("axis", 0), operands[0].shape, operands[1].numbers
    if shape is None:
        return None
    if axis < 0:
        return function_of("gather", {"axis": axis + len(shape)})
    whole = [*shape[:axis], *(numbers.shape if numbers is not None else ()), *shape[axis + 1 :]]
    steps, known = shape[axis], whole.count(None) <= 1
    if opset < OLDEST_OPSET or numbers is None or not steps or not 0 < numbers.size <= _MOST_CUTS or not known:
        return None
    rows = [int(n) % steps for n in numbers.reshape(-1)]
    known_shape = numpy_helper.from_array(integers([-1 if size is None else size for size in whole]))
    nodes = [
        *_joined_cuts("x", rows, axis, "rows"),
        helper.make_node("Constant", [], ["shape"], value=known_shape),
        helper.make_node("Reshape", ["rows", "shape"], ["y"]),
    ]
    return helper.make_function("", "", ["x", "indices"], ["y"], nodes, [])


def _joined_cuts(value: str, rows: Sequence[int], axis: int, joined: str) -> list[onnx.NodeProto]:
    """Return the nodes that cut each run of rows that follow each other out of a value, and join them."""
    starts = [n for n, row in enumerate(rows) if n == 0 or row != rows[n - 1] + 1]
    nodes, cuts = list[onnx.NodeProto](), [f"{joined}_{n}" for n in starts]
    for cut, first, end in zip(cuts, starts, [*starts[1:], len(rows)], strict=True):
        bounds = {"start": rows[first], "end": rows[end - 1] + 1, "axis": axis}
        for name, number in bounds.items():
            constant = numpy_helper.from_array(integers([number]))
            nodes.append(helper.make_node("Constant", [], [f"{cut}_{name}"], value=constant))
        nodes.append(helper.make_node("Slice", [value, *(f"{cut}_{name}" for name in bounds)], [cut]))
    return [*nodes, helper.make_node("Concat", cuts, [joined], axis=axis)]


def _wrapped_rows(value: str, begin: int, end: int, axis: int) -> list[onnx.NodeProto]:
    """Return the nodes that gather the rows of an axis of any size, and so many before and behind them."""
    made = f"axis_{axis}"
    numbers = {"axis": axis, "first": -begin, "behind": end, "step": 1}
    held = {f"{made}_{name}": numpy_helper.from_array(np.array(n, np.int64)) for name, n in numbers.items()}
    return [
        *(helper.make_node("Constant", [], [name], value=number) for name, number in held.items()),
        helper.make_node("Shape", [value], [f"{made}_shape"]),
        helper.make_node("Gather", [f"{made}_shape", f"{made}_axis"], [f"{made}_size"], axis=0),
        helper.make_node("Add", [f"{made}_size", f"{made}_behind"], [f"{made}_end"]),
        helper.make_node("Range", [f"{made}_first", f"{made}_end", f"{made}_step"], [f"{made}_places"]),
        helper.make_node("Mod", [f"{made}_places", f"{made}_size"], [f"{made}_rows"]),
        helper.make_node("Gather", [value, f"{made}_rows"], [made], axis=axis),
    ]


def pad(node: ir.Node, opset: int, operands: Operands) -> onnx.FunctionProto | None:
    """Rows that repeat (mode wrap), cut out of x and joined along each axis that is padded."""
    x, pads, _, given = [*operands, *[Operand()] * 2][:4]
    if node.attributes.get_string("mode", "constant") != "wrap" or x.shape is None or pads.numbers is None:
        return None
    if given.dtype is not None and given.numbers is None:
        return None
    axes = [*range(len(x.shape))] if given.numbers is None else [int(n) % len(x.shape) for n in given.numbers]
    nodes, value = list[onnx.NodeProto](), "x"
    for axis, begin, end in zip(axes, *pads.numbers.reshape(2, -1).tolist(), strict=True):
        if begin < 0 or end < 0:
            return None
        if begin or end:
            steps = x.shape[axis]
            rows = [n % steps for n in range(-begin, steps + end)] if steps else []
            if steps is None:
                nodes += _wrapped_rows(value, begin, end, axis)
            elif not rows or len(rows) > _MOST_COPIES:
                return None
            else:
                nodes += _joined_cuts(value, rows, axis, f"axis_{axis}")
            value = f"axis_{axis}"
    nodes.append(helper.make_node("Identity", [value], ["y"]))
    return helper.make_function("", "", ["x", "pads", "number", "axes"][: len(operands)], ["y"], nodes, [])


_MOST_WEIGHTS = 1 << 22
"""The most elements of a kernel that puts each number of a block in its place."""


def col2im(node: ir.Node, opset: int, operands: Operands) -> onnx.FunctionProto | None:
    """A ConvTranspose whose kernels put each number of a block in its place, for known sizes."""
    x, image, block = operands
    if x.shape is None or x.shape[1] is None or x.dtype is None or image.numbers is None or block.numbers is None:
        return None
    size, window = [int(n) for n in image.numbers], [int(n) for n in block.numbers]
    rank, places = len(size), math.prod(window)
    strides, dilations = (list(node.attributes.get_ints(name, [1] * rank)) for name in ("strides", "dilations"))
    pads = list(node.attributes.get_ints("pads", [0] * 2 * rank))
    spans = [(n - 1) * step + 1 for n, step in zip(window, dilations, strict=True)]
    rooms = [n + pads[axis] + pads[axis + rank] - spans[axis] for axis, n in enumerate(size)]
    if min(rooms) < 0 or places**2 > _MOST_WEIGHTS or x.shape[1] % places:
        return None
    counts = [room // stride + 1 for room, stride in zip(rooms, strides, strict=True)]
    kernels = np.eye(places, dtype=x.dtype.numpy()).reshape(places, 1, *window)
    behind = [room % stride for room, stride in zip(rooms, strides, strict=True)]
    held = {
        "blocks": integers([-1, places, *counts]),
        "kernels": kernels,
        "whole": integers([-1, x.shape[1] // places, *size]),
    }
    windows: dict[str, Any] = {"strides": strides, "dilations": dilations, "pads": pads, "output_padding": behind}
    nodes = [
        *(helper.make_node("Constant", [], [name], value=numpy_helper.from_array(n)) for name, n in held.items()),
        helper.make_node("Reshape", ["x", "blocks"], ["rows"]),
        helper.make_node("ConvTranspose", ["rows", "kernels"], ["placed"], kernel_shape=window, **windows),
        helper.make_node("Reshape", ["placed", "whole"], ["y"]),
    ]
    return helper.make_function("", "", ["x", "image", "block"], ["y"], nodes, [])


# Rows that are added to others

_MOST_NUMBERS = 1 << 22
"""Maximum elements of the rows of zeros that updates are put in."""

_SCATTERED = {
    "add": ("ReduceSum", "Add", 0.0),
    "max": ("ReduceMax", "Max", -math.inf),
    "min": ("ReduceMin", "Min", math.inf),
}
"""By reduction: how updates of one element are reduced and joined with it, and what stands for none."""


def scatter_elements(node: ir.Node, opset: int, operands: Operands) -> onnx.FunctionProto | None:
    """Reductions: the updates have a row for each row of the data, but along the axis."""
    (data, indices), axis = operands[:2], node.attributes.get_int("axis", 0)
    reduction = node.attributes.get_string("reduction", "none")
    if reduction not in _SCATTERED or opset < OLDEST_OPSET or data.dtype is None:
        return None
    if not data.shape or indices.shape is None or (reduction != "add" and not data.dtype.is_floating_point()):
        return None
    axis %= len(data.shape)
    steps, count = data.shape[axis], indices.shape[axis]
    others = [shape[:axis] + shape[axis + 1 :] for shape in (data.shape, indices.shape)]
    sizes = [size for size in (*others[0], steps, count) if size is not None]
    known = len(sizes) > len(data.shape) and others[0] == others[1]
    if steps is None or count is None:
        return _scatter_open(axis, opset, reduction, data, indices)
    if not known or math.prod(sizes) > _MOST_NUMBERS:
        return None
    rows = np.arange(steps, dtype=np.int64).reshape(-1, *[1] * (len(data.shape) - axis - 1))
    reduces, joins, none = _SCATTERED[reduction]
    numbers = {"rows": rows, "below": rows - steps, "zero": np.array(none, data.dtype.numpy())}
    proto = function_of("scatter_sum", numbers | {"behind": integers([axis + 1]), "along": integers([axis])})
    for each in proto.node:
        each.op_type = {"ReduceSum": reduces, "Add": joins}.get(each.op_type, each.op_type)
    return proto


_PLACED = """s = Shape (data) n = Gather (s, axis) r = Range (first, n, one) rows = Reshape (r, column)
    whole = Cast <to = 7> (indices) below = Greater (first, whole) later = Add (whole, n)
    places = Where (below, later, whole) index = Unsqueeze (places, behind) update = Unsqueeze (updates, behind)
    here = Equal (index, rows) placed = Where (here, update, none)"""
"""Each update in a row of what stands for none, of as many as the data has along an axis."""


def _scatter_open(
    axis: int, opset: int, reduction: str, data: Operand, indices: Operand
) -> onnx.FunctionProto | None:
    """Reductions where a size is not known. A Reshape fails where the other axes are of unlike sizes."""
    dims = [list(each.dims or ()) for each in (data, indices)]
    others = [[_known(dim) for n, dim in enumerate(each) if n != axis] for each in dims]
    pairs = [*zip(*others, strict=True)]
    if data.dtype is None or any(a != b and None not in (a, b) for a, b in pairs):
        return None
    reduces, joins, number = _SCATTERED[reduction]
    text = f"{_PLACED} all = {reduces} <keepdims = 0> (placed, along)"
    fits = all(a == b is not None for a, b in pairs)
    text = f"{text} fitting = {'Identity (all)' if fits else 'Reshape (all, s)'} y = {joins} (data, fitting)"
    head = f'<domain: "", opset_import: ["" : {opset}]> f (data, indices, updates) => (y)'
    proto = parser.parse_function(f"{head} {{ {text} }}")
    column = [-1, *[1] * (len(dims[0]) - 1 - axis)]
    constants = {"axis": axis, "first": 0, "one": 1, "column": column, "behind": [axis + 1], "along": [axis]}
    held = {name: np.array(each, np.int64) for name, each in constants.items()}
    return holding(proto, {"none": np.array(number, data.dtype.numpy()), **held})


def _known(dim: int | str | None) -> int | str | None:
    """Return a size, or its name where that is one of the model's."""
    return None if isinstance(dim, str) and dim.startswith(ANONYMOUS) else dim


_OF_ROWS = """s = Shape (data) sizes = Slice (s, first, depth) below = Greater (zero, indices)
    later = Add (indices, sizes) whole = Where (below, later, indices) {} terms = Mul (whole, strides)
    row = ReduceSum <keepdims = 1> (terms, last) rest = Slice (s, depth, end) shape = Concat <axis = 0> (last, rest)
    flat = Reshape (data, shape) made = ScatterND (flat, row, updates) y = Reshape (made, s)"""
"""A ScatterND of rows, whose numbers follow from indices of several axes."""


def _scatter_rows(opset: int, data: Operand, indices: Operand) -> onnx.FunctionProto | None:
    """Rows of the data whose indices have several axes: all but the first of these axes are known, or only two."""
    depth = (indices.shape or (None,))[-1]
    if opset < OLDEST_OPSET or depth is None or data.shape is None or not 1 < depth < len(data.shape):
        return None
    sizes, end = [size or 0 for size in data.shape[1:depth]], len(data.shape)
    numbers = {"first": [0], "depth": [depth], "zero": 0, "last": [-1], "end": [end], "one": [1]}
    if 0 in sizes and len(sizes) > 1:
        return None
    if 0 in sizes:
        strides = "width = Slice (s, one, depth) strides = Concat <axis = 0> (width, one)"
    else:
        strides, numbers["strides"] = "", [math.prod(sizes[n:]) for n in range(depth)]
    head = f'<domain: "", opset_import: ["" : {opset}]> f (data, indices, updates) => (y)'
    proto = parser.parse_function(f"{head} {{ {_OF_ROWS.format(strides)} }}")
    return holding(proto, {name: np.array(each, np.int64) for name, each in numbers.items()})


def scatter_nd(node: ir.Node, opset: int, operands: Operands) -> onnx.FunctionProto | None:
    """Sums: the data as rows that the indices choose; without a reduction, as rows of one axis."""
    (data, indices), sizes = operands[:2], operands[0].shape
    if node.attributes.get_string("reduction", "none") == "none":
        return _scatter_rows(opset, data, indices)
    if node.attributes.get_string("reduction", "none") != "add" or opset < OLDEST_OPSET or data.dtype is None:
        return None
    if not sizes or not indices.shape or None in sizes or None in indices.shape:
        return None
    known, places = [size or 0 for size in sizes], [size or 0 for size in indices.shape]
    depth, updates = places[-1], math.prod(places[:-1])
    count, width = math.prod(known[:depth]), math.prod(known[depth:])
    if not 0 < count * width * updates <= _MOST_NUMBERS:
        return None
    numbers = {"sizes": known[:depth], "strides": [math.prod(known[n + 1 : depth]) for n in range(depth)]}
    numbers |= {"flat": [1, updates, depth], "below": [0], "last": [-1], "along": [1], "rows": [*range(count)]}
    numbers |= {"parts": [1, updates, width], "whole": [count, width], "shape": known, "column": [-1, 1]}
    constants = {name: integers(each) for name, each in numbers.items()}
    return function_of("scatter_nd_sum", constants | {"zero": np.zeros((), data.dtype.numpy())})
