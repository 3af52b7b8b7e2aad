"""Tensors whose sizes may be known at run time only: zeros, and the numbers of the steps."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from rnn_lowering.emit.ops import Ops, is_short
from rnn_lowering.emit.tensors import Constant, Tensor, constant_zeros, static


def zeros(op: Ops, sizes: Sequence[Tensor]) -> Tensor:
    """Zeros of the recurrence's type; each size is an int64 [1]."""
    dims = tuple(int(s.value.read()[0]) if isinstance(s.value, Constant) else None for s in sizes)
    if None not in dims and is_short(math.prod(static(dims))):
        return op.known(constant_zeros(op.dtype, static(dims)))
    shape = op.concat(sizes, axis=0)
    if op.opset < 9:
        return op.emit("Tile", [op.known(constant_zeros(op.dtype, (1,) * len(dims))), shape], [dims])[0]
    zero = ir.Tensor(np.zeros(1, op.dtype.numpy()), dtype=op.dtype)
    return op.emit("ConstantOfShape", [shape], [dims], value=zero)[0]


def steps(op: Ops, length: Tensor) -> Tensor:
    """0, 1, ..., length - 1 as int64 [length]; `length` is an int64 [1]."""
    int64 = ir.DataType.INT64
    count = int(length.value.read()[0]) if isinstance(length.value, Constant) else None
    if count is not None and is_short(count):
        return op.known(Constant(int64, (count,), lambda: np.arange(count, dtype=np.int64), "steps"))
    if op.opset < 9:
        return _counted(op, length)
    if op.opset < 11:  # no Range: the indices of as many ones
        one = ir.Tensor(np.ones(1, np.float32))
        ones = op.emit("ConstantOfShape", [length], [(None,)], value=one)
        return op.squeeze(op.emit("NonZero", ones, [(1, None)], [int64])[0], [0])
    bounds = [op.constant(0, int64), op.squeeze(length, [0]), op.constant(1, int64)]
    return op.emit("Range", bounds, [(None,)], [int64])[0]


def _counted(op: Ops, length: Tensor) -> Tensor:
    """0, 1, ..., length - 1 as int64 [length], from the iterations of a Loop."""
    int64 = ir.DataType.INT64
    trips = op.squeeze(length, [0])
    with op.body():
        i, going = op.loop_inputs()
        carried = op.body_input("trips", int64, ())  # a Loop before opset 11 must carry something
        body = op.body_graph([i, going, carried], [going, carried, i])
    return op.emit("Loop", [trips, op.true(), trips], [(), (None,)], [int64] * 2, body=body)[1]
