"""Products as functions: an Einsum as MatMul, products of integers as sums."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper

from rnn_lowering.decomposition.operands import OLDEST_OPSET, Operands, function_of, integers, is_integer
from rnn_lowering.targets.misread import labels_of


def einsum(node: ir.Node, opset: int, operands: Operands) -> onnx.FunctionProto | None:
    """Two operands, each with every label once: Transpose and Reshape around a MatMul. More: one by one. One of
    which all is summed: ReduceSum."""
    if len(operands) > 2:
        return _two_by_two(node) if opset >= OLDEST_OPSET else None
    if len(operands) == 1:
        ((labels,), out) = labels_of(node)
        return function_of("sum_of_all", {}) if out == "" and len({*labels}) == len(labels) else None
    found = _labels(node)
    if opset < OLDEST_OPSET or found is None or any(each.shape is None for each in operands):
        return None
    a, b, out = found
    if not out and {*a} == {*b}:
        return function_of("sum_of_products", {"perm": [b.index(label) for label in a]})
    shapes = (*zip(a, operands[0].shape or (), strict=False), *zip(b, operands[1].shape or (), strict=False))
    sizes = _sizes(shapes)
    return None if sizes is None else _as_matmul(a, b, out, sizes)


def _sizes(dims: Iterable[tuple[str, int | None]]) -> dict[str, int | None] | None:
    """Return the size of each label, None if unknown; None if a label has several sizes, or none."""
    sizes: dict[str, int | None] = {}
    for label, size in dims:
        before = sizes.setdefault(label, size)
        if size == 0 or (size is not None and before not in (None, size)):
            return None
        sizes[label] = size if before is None else before
    return sizes


def _as_matmul(a: str, b: str, out: str, sizes: Mapping[str, int | None]) -> onnx.FunctionProto | None:
    """Return the product of operands with the labels a and b as a MatMul; None if a label of one operand is summed,
    or too many sizes are unknown."""
    batch, summed = ([x for x in a if x in b and (x in out) == kept] for kept in (True, False))
    rows, columns = [x for x in a if x not in b], [x for x in b if x not in a]
    if not {*rows, *columns} <= {*out}:
        return None
    whole = [*batch, *rows, *columns]
    perms = {
        "perm_a": [a.index(x) for x in (*batch, *rows, *summed)],
        "perm_b": [b.index(x) for x in (*batch, *summed, *columns)],
        "perm": [whole.index(x) for x in out],
    }
    if not batch and len(summed) == len(columns) == 1:  # MatMul takes all rows of a
        return function_of("einsum", perms)
    shapes = {
        "left": _target_shape(sizes, batch, rows, summed),
        "right": _target_shape(sizes, batch, summed, columns),
        "whole": _target_shape(sizes, batch, *([label] for label in (*rows, *columns))),
    }
    numbers = {name: integers(shape) for name, shape in shapes.items() if shape is not None}
    return function_of("einsum_by_shapes", {**perms, **numbers}) if len(numbers) == len(shapes) else None


def _labels(node: ir.Node) -> tuple[str, str, str] | None:
    """Return the labels of two operands and of the result, if each has a label once."""
    parts, out = labels_of(node)
    if len(parts) != 2 or any("." in part or len(set(part)) != len(part) for part in parts):
        return None
    a, b = parts
    return a, b, "".join(sorted(set(a) ^ set(b))) if out is None else out


def _target_shape(sizes: Mapping[str, int | None], batch: Sequence[str], *axes: Sequence[str]) -> list[int] | None:
    """Return the numbers of a Reshape to the axes of the batch, which stay, and to products of axes; None if more
    than one of these is unknown."""
    factors = [[sizes[label] for label in labels] for labels in axes]
    products = [-1 if None in each else math.prod(n for n in each if n is not None) for each in factors]
    return None if products.count(-1) > 1 else [0] * len(batch) + products


def _two_by_two(node: ir.Node) -> onnx.FunctionProto | None:
    """Return the product of the first two operands, with the labels that are used behind it, times the others."""
    equation = (node.attributes.get_string("equation", "") or "").replace(" ", "")
    terms, arrow, out = equation.partition("->")
    first, second, *others = terms.split(",")
    if "." in equation or not arrow:
        return None
    kept = "".join(dict.fromkeys(label for label in first + second if label in "".join((*others, out))))
    inputs = [f"x{n}" for n in range(len(node.inputs))]
    nodes = [
        helper.make_node("Einsum", inputs[:2], ["product"], equation=f"{first},{second}->{kept}"),
        helper.make_node("Einsum", ["product", *inputs[2:]], ["y"], equation=f"{','.join([kept, *others])}->{out}"),
    ]
    return helper.make_function("", "", inputs, ["y"], nodes, [])


_MATRIX, _SQUARE = 2, 2
"""The axes of an operand of MatMul that is no vector; an exponent."""


def integer_product(node: ir.Node, opset: int, operands: Operands) -> onnx.FunctionProto | None:
    """A MatMul of integers as a sum of products."""
    ranks = [0 if each.shape is None else len(each.shape) for each in operands]
    if opset < OLDEST_OPSET or not is_integer(operands[0]) or min(ranks) < _MATRIX:
        return None
    axes = {"last": -1, "before": -3, "along": -2}
    return function_of("product_as_sum", {name: integers([axis]) for name, axis in axes.items()})


def integer_square(node: ir.Node, opset: int, operands: Operands) -> onnx.FunctionProto | None:
    """A Mul of integers by themselves."""
    is_square = node.inputs[0] is node.inputs[1] and is_integer(operands[0])
    return function_of("square", {}, "x, same") if opset >= OLDEST_OPSET and is_square else None


def integer_power(node: ir.Node, opset: int, operands: Operands) -> onnx.FunctionProto | None:
    """A Pow of integers whose exponent is 2."""
    is_square = operands[1].integer == _SQUARE and is_integer(operands[0])
    return function_of("square", {}, "x, two") if opset >= OLDEST_OPSET and is_square else None


def remainder(node: ir.Node, opset: int, operands: Operands) -> onnx.FunctionProto | None:
    """A Mod of integers with the sign of the divisor; of floats with that of the dividend."""
    dtype = operands[0].dtype
    if opset < OLDEST_OPSET or dtype is None or is_integer(operands[0]) == bool(node.attributes.get_int("fmod", 0)):
        return None
    if is_integer(operands[0]):
        return function_of("integer_remainder", {})
    return function_of("signed_remainder", {"zero": np.zeros((), dtype.numpy())})
