"""Comparisons, Abs, Neg and Trilu as functions: by comparisons that a runtime computes right, and by a mask."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
from onnx import parser

from rnn_lowering.decomposition.operands import OLDEST_OPSET, Operands, function_of, is_integer


def repeated(node: ir.Node, opset: int, operands: Operands) -> onnx.FunctionProto | None:
    """The same comparison of tensors of one shape; of floats, whose difference may be NaN, only a known one."""
    shapes = [operand.shape for operand in operands]
    known = not any(shape is None or None in shape for shape in shapes)
    if opset < OLDEST_OPSET or shapes[0] == shapes[1] or not (known or all(map(is_integer, operands))):
        return None
    text = "c = Sub (a_in, a_in) d = Sub (b_in, b_in) a = Add (a_in, d) b = Add (b_in, c)"
    if known:
        sizes = np.broadcast_shapes(*(tuple(size or 0 for size in shape or ()) for shape in shapes))
        numbers = f"int64[{len(sizes)}] {{{', '.join(map(str, sizes))}}}"
        text = f"s = Constant <value = {numbers}> () a = Expand (a_in, s) b = Expand (b_in, s)"
    head = f'<domain: "", opset_import: ["" : {opset}]> f (a_in, b_in) => (y)'
    return parser.parse_function(f"{head} {{ {text} y = {node.op_type} (a, b) }}")


def chosen(node: ir.Node, opset: int, operands: Operands) -> onnx.FunctionProto | None:
    """The same choice of tensors of one shape."""
    shapes = [operand.shape for operand in operands]
    if opset < OLDEST_OPSET or None in shapes or all(shape == shapes[0] for shape in shapes):
        return None
    if any(None in (shape or ()) for shape in shapes):
        made = " ".join(f"s_{name} = Shape ({name}_in) z_{name} = ConstantOfShape (s_{name})" for name in "cab")
        text = f"{made} z_ab = Add (z_a, z_b) z = Add (z_c, z_ab) s = Shape (z)"
    else:
        sizes = np.broadcast_shapes(*(tuple(size or 0 for size in shape or ()) for shape in shapes))
        text = f"s = Constant <value = int64[{len(sizes)}] {{{', '.join(map(str, sizes))}}}> ()"
    same = " ".join(f"{name} = Expand ({name}_in, s)" for name in "cab")
    head = f'<domain: "", opset_import: ["" : {opset}]> f (c_in, a_in, b_in) => (y)'
    return parser.parse_function(f"{head} {{ {text} {same} y = Where (c, a, b) }}")


_MOST_NUMBERS = 1 << 20
"""Maximum numbers of a mask."""


def equal(node: ir.Node, opset: int, operands: Operands) -> onnx.FunctionProto | None:
    """Neither less nor greater, nor NaN; of booleans, not different."""
    dtype = operands[0].dtype
    if opset < OLDEST_OPSET or dtype is None:
        return None
    return function_of("equal_booleans" if dtype == ir.DataType.BOOL else "equal", {})


def as_boolean(node: ir.Node, opset: int, operands: Operands) -> onnx.FunctionProto | None:
    """A Cast to booleans: not 0, which NaN is not either."""
    dtype = operands[0].dtype
    if opset < OLDEST_OPSET or dtype is None or node.attributes.get_int("to", 0) != ir.DataType.BOOL:
        return None
    return function_of("not_zero", {"zero": np.zeros((), dtype.numpy())})


def absolute(node: ir.Node, opset: int, operands: Operands) -> onnx.FunctionProto | None:
    """The larger one of an integer and its negative."""
    return _of_integers("absolute", opset, operands)


def negative(node: ir.Node, opset: int, operands: Operands) -> onnx.FunctionProto | None:
    """A difference from 0: of integers."""
    return _of_integers("negative", opset, operands)


def _of_integers(name: str, opset: int, operands: Operands) -> onnx.FunctionProto | None:
    dtype = operands[0].dtype
    if opset < OLDEST_OPSET or dtype is None or not (dtype.is_integer() and dtype.is_signed()):
        return None
    return function_of(name, {"zero": np.zeros((), dtype.numpy())})


def trilu(node: ir.Node, opset: int, operands: Operands) -> onnx.FunctionProto | None:
    """A choice by a constant mask: rows, columns and the diagonal are known."""
    data, diagonal = operands[0], operands[1].numbers if len(operands) > 1 else np.zeros((), np.int64)
    rows, columns = (None, None) if data.shape is None else data.shape[-2:]
    if opset < OLDEST_OPSET or data.dtype is None or diagonal is None or rows is None or columns is None:
        return None
    if rows * columns > _MOST_NUMBERS:
        return None
    keep = np.triu if node.attributes.get_int("upper", 1) else np.tril
    mask = keep(np.ones((rows, columns), bool), int(diagonal.item()))
    return function_of(
        "trilu" if len(operands) > 1 else "triangle", {"mask": mask, "zero": np.zeros((), data.dtype.numpy())}
    )
