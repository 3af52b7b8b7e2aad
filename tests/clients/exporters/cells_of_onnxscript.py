"""Cells in onnxscript's loops; the truth is what Python computes of the same lines, operator by operator."""

# mypy: ignore-errors
# ruff: noqa: F821

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from exported import Feed, main, numbers, save_runs
from onnx import numpy_helper
from onnxscript import FLOAT, script
from onnxscript import opset18 as op

W, R, B = (
    numpy_helper.from_array(0.6 * numbers(*shape, seed=shape[-1]), name)
    for name, shape in {"W": (3, 12), "R": (4, 12), "B": (12,)}.items()
)


@script()
def gru(x: FLOAT["T", 2, 3], h0: FLOAT[2, 4]) -> FLOAT["T", 2, 4]:
    """z, r, n by Split, rows stacked by Concat."""
    h = op.Identity(h0)
    weights = op.Constant(value=W)
    recurrent = op.Constant(value=R)
    bias = op.Constant(value=B)
    y = op.Expand(op.Constant(value_float=0.0), op.Constant(value_ints=[0, 2, 4]))
    for i in range(op.Squeeze(op.Shape(x, start=0, end=1))):
        xz, xr, xn = op.Split(op.MatMul(op.Gather(x, i), weights) + bias, axis=1, num_outputs=3)
        hz, hr, hn = op.Split(op.MatMul(h, recurrent), axis=1, num_outputs=3)
        z = op.Sigmoid(xz + hz)
        n = op.Tanh(xn + op.Sigmoid(xr + hr) * hn)
        h = n + z * (h - n)
        y = op.Concat(y, op.Unsqueeze(h, op.Constant(value_ints=[0])), axis=0)
    return y


@script()
def rnn(x: FLOAT["T", 2, 3]) -> FLOAT[2, 4]:
    """The last state."""
    h = op.Expand(op.Constant(value_float=0.0), op.Constant(value_ints=[2, 4]))
    weights = op.Slice(
        op.Constant(value=W), op.Constant(value_ints=[0]), op.Constant(value_ints=[4]), op.Constant(value_ints=[1])
    )
    recurrent = op.Slice(
        op.Constant(value=R), op.Constant(value_ints=[0]), op.Constant(value_ints=[4]), op.Constant(value_ints=[1])
    )
    for i in range(op.Squeeze(op.Shape(x, start=0, end=1))):
        h = op.Softsign(op.MatMul(op.Gather(x, i), weights) + op.MatMul(h, recurrent))
    return h


@script()
def trap_zoneout(x: FLOAT["T", 2, 3]) -> FLOAT[2, 4]:
    """A part of the old state stays."""
    h = op.Expand(op.Constant(value_float=0.0), op.Constant(value_ints=[2, 4]))
    weights = op.Slice(
        op.Constant(value=W), op.Constant(value_ints=[0]), op.Constant(value_ints=[4]), op.Constant(value_ints=[1])
    )
    for i in range(op.Squeeze(op.Shape(x, start=0, end=1))):
        h = 0.9 * op.Tanh(op.MatMul(op.Gather(x, i), weights) + h) + 0.1 * h
    return h


def save(function: Any, states: int, path: Path) -> None:
    onnx.save(function.to_model_proto(), path)
    more = {"h0": numbers(2, 4)} if states else {}
    feeds: list[Feed] = [{"x": numbers(n, 2, 3, seed=n), **more} for n in (1, 5)]

    def compute(feed: Feed) -> list[Any]:
        return [np.asarray(function(*feed.values()))]

    save_runs(path, feeds, compute)


if __name__ == "__main__":
    main(
        {
            "gru": lambda path: save(gru, 1, path),
            "rnn": lambda path: save(rnn, 0, path),
            "trap_zoneout": lambda path: save(trap_zoneout, 0, path),
        }
    )
