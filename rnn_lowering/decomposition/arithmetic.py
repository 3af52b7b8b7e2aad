"""Comparisons, Abs, Neg, Sign and Trilu as functions, by comparisons that a runtime computes right, or masks.

Products of integers are sums; remainders have another sign.
"""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
from onnx import parser

from rnn_lowering.decomposition.operands import OLDEST_OPSET, Operands, function_of, holding, integers, is_integer

_OLDEST_WHERE, _OLDEST_EQUAL, _OLDEST_MAX, _OLDEST_OR_EQUAL = 9, 11, 12, 12
"""The first opsets of Where and of Less of integers, of Equal of floats, of Max of integers, and of LessOrEqual."""


def repeated(node: ir.Node, opset: int, operands: Operands) -> onnx.FunctionProto | None:
    """The same comparison of tensors of one shape."""
    return _of_one_shape(node, opset, operands, "ab")


def chosen(node: ir.Node, opset: int, operands: Operands) -> onnx.FunctionProto | None:
    """The same choice of tensors of one shape."""
    return _of_one_shape(node, opset, operands, "cab")


def _of_one_shape(node: ir.Node, opset: int, operands: Operands, names: str) -> onnx.FunctionProto | None:
    """The same node of tensors that have the shape of its result."""
    shapes = [operand.shape for operand in operands]
    if opset < _OLDEST_WHERE or None in shapes or all(shape == shapes[0] for shape in shapes):
        return None
    if any(None in (shape or ()) for shape in shapes):
        made = " ".join(f"s_{name} = Shape ({name}_in) z_{name} = ConstantOfShape (s_{name})" for name in names)
        *firsts, last = (f"z_{name}" for name in names)
        sums = " ".join(f"z{n} = Add ({f'z{n - 1}' if n else last}, {z})" for n, z in enumerate(firsts))
        text = f"{made} {sums} s = Shape (z{len(firsts) - 1})"
    else:
        sizes = np.broadcast_shapes(*(tuple(size or 0 for size in shape or ()) for shape in shapes))
        text = f"s = Constant <value = int64[{len(sizes)}] {{{', '.join(map(str, sizes))}}}> ()"
    same = " ".join(f"{name} = Expand ({name}_in, s)" for name in names)
    inputs = ", ".join(f"{name}_in" for name in names)
    head = f'<domain: "", opset_import: ["" : {opset}]> f ({inputs}) => (y)'
    return parser.parse_function(f"{head} {{ {text} {same} y = {node.op_type} ({', '.join(names)}) }}")


_MOST_NUMBERS = 1 << 20
"""Maximum numbers of a mask."""


def equal(node: ir.Node, opset: int, operands: Operands) -> onnx.FunctionProto | None:
    """Neither less nor greater, nor NaN; of booleans, not different."""
    dtype = operands[0].dtype
    if dtype is None or opset < (_OLDEST_WHERE if dtype == ir.DataType.BOOL else _OLDEST_OR_EQUAL):
        return None
    return function_of("equal_booleans" if dtype == ir.DataType.BOOL else "equal", {})


def as_boolean(node: ir.Node, opset: int, operands: Operands) -> onnx.FunctionProto | None:
    """A Cast to booleans: not 0, which NaN is not either."""
    dtype = operands[0].dtype
    if opset < _OLDEST_EQUAL or dtype is None or node.attributes.get_int("to", 0) != ir.DataType.BOOL:
        return None
    return function_of("not_zero", {"zero": np.zeros((), dtype.numpy())})


def absolute(node: ir.Node, opset: int, operands: Operands) -> onnx.FunctionProto | None:
    """The larger one of an integer and its negative."""
    return _of_integers("absolute" if opset >= _OLDEST_MAX else "absolute_9", opset, operands)


def negative(node: ir.Node, opset: int, operands: Operands) -> onnx.FunctionProto | None:
    """A difference from 0: of integers."""
    return _of_integers("negative", opset, operands)


def sign(node: ir.Node, opset: int, operands: Operands) -> onnx.FunctionProto | None:
    """A choice of 1, -1 and 0: of integers."""
    return _of_integers("sign", opset, operands, one=1, minus=-1)


def _of_integers(name: str, opset: int, operands: Operands, **numbers: int) -> onnx.FunctionProto | None:
    dtype = operands[0].dtype
    if opset < _OLDEST_WHERE or dtype is None or not (dtype.is_integer() and dtype.is_signed()):
        return None
    return function_of(name, {n: np.array(number, dtype.numpy()) for n, number in {"zero": 0, **numbers}.items()})


_PLACES = """s = Shape (x) one = Constant <value = int64 {{1}}> () first = Constant <value = int64 {{0}}> ()
    behind = Constant <value = int64[1] {{1}}> () before = Constant <value = int64[1] {{0}}> ()
    from_last = Constant <value = int64[2] {{-2, -1}}> () sizes = Gather (s, from_last)
    height = Gather (sizes, first) width = Gather (sizes, one)
    i = Range (first, height, one) j = Range (first, width, one)
    rows = Unsqueeze (i, behind) columns = Unsqueeze (j, before) places = Sub (columns, rows)
    outside = {} (places, {}) mask = Not (outside)"""
"""Which elements of a matrix of any size are on a diagonal, or on one side of it."""


def trilu(node: ir.Node, opset: int, operands: Operands) -> onnx.FunctionProto | None:
    """A choice by a mask: a constant one where rows, columns and the diagonal are known."""
    data, diagonal = operands[0], operands[1].numbers if len(operands) > 1 else np.zeros((), np.int64)
    if opset < OLDEST_OPSET or data.dtype is None or not data.shape:
        return None
    (rows, columns), upper = data.shape[-2:], node.attributes.get_int("upper", 1)
    constants = {"zero": np.zeros((), data.dtype.numpy())}
    if rows is not None and columns is not None and diagonal is not None and rows * columns <= _MOST_NUMBERS:
        mask = np.ones((rows, columns), bool)
        constants["mask"] = (np.triu if upper else np.tril)(mask, int(diagonal.item()))
        places = ""
    else:
        places = _PLACES.format("Less" if upper else "Greater", "k" if len(operands) > 1 else "first")
    keeps = "And (x, mask)" if data.dtype == ir.DataType.BOOL else "Where (mask, x, zero)"
    inputs = ", ".join(("x", "k")[: len(operands)])
    head = f'<domain: "", opset_import: ["" : {opset}]> f ({inputs}) => (y)'
    proto = parser.parse_function(f"{head} {{ {places} y = {keeps} }}")
    return holding(proto, constants)


def place_of_largest(node: ir.Node, opset: int, operands: Operands) -> onnx.FunctionProto | None:
    """An ArgMax or ArgMin of integers: of where they equal their largest or smallest."""
    x, kind = operands[0], node.op_type.replace("Arg", "Reduce")
    is_last = node.attributes.get_int("select_last_index", 0) != 0
    if opset < _OLDEST_EQUAL or x.shape is None or not is_integer(x) or is_last:
        return None
    axis = node.attributes.get_int("axis", 0) % max(len(x.shape), 1)
    axes = f"a = Constant <value = int64[1] {{{axis}}}> ()" if opset >= _AXES_ARE_INPUTS else ""
    most = f"{kind} (x, a)" if axes else f"{kind} <axes = [{axis}]> (x)"
    found = f"ArgMax <axis = {axis}, keepdims = {node.attributes.get_int('keepdims', 1)}> (f)"
    head = f'<domain: "", opset_import: ["" : {opset}]> f (x) => (y)'
    text = f"{axes} m = {most} e = Equal (x, m) f = Cast <to = 1> (e) y = {found}"
    return parser.parse_function(f"{head} {{ {text} }}")


_AXES_ARE_INPUTS = 18
"""The first opset at which ReduceMax has its axes as an input."""


def hardmax(node: ir.Node, opset: int, operands: Operands) -> onnx.FunctionProto | None:
    """1 where the number of a row is that of the largest, else 0."""
    x = operands[0]
    if opset < OLDEST_OPSET or x.shape is None or x.dtype != ir.DataType.FLOAT:
        return None
    axis = node.attributes.get_int("axis", -1) % len(x.shape)
    if not (size := x.shape[axis]):
        return None
    rows = np.arange(size, dtype=np.int64).reshape(-1, *[1] * (len(x.shape) - axis - 1))
    proto = parser.parse_function(
        f"""<domain: "", opset_import: ["" : {opset}]> f (x) => (y) {{
        m = ArgMax <axis = {axis}> (x) e = Equal (m, rows) y = Cast <to = 1> (e) }}"""
    )
    return holding(proto, {"rows": rows})


# Products and remainders

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
