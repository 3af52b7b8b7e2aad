"""Loops written in onnxscript; the truth is what Python computes of the same lines, operator by operator."""

# mypy: ignore-errors
# ruff: noqa: F821

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from exported import Feed, main, numbers, save_runs
from onnxscript import FLOAT, INT64, script
from onnxscript import opset18 as op


@script()
def leaky_rows(x: FLOAT["T", 3]) -> FLOAT["T", 3]:
    """Rows of the input, stacked by Concat."""
    h = op.Constant(value_floats=[0.0, 0.0, 0.0])
    y = op.Slice(x, op.Constant(value_ints=[0]), op.Constant(value_ints=[0]))
    for i in range(op.Squeeze(op.Shape(x, start=0, end=1))):
        h = op.Tanh(0.5 * h + op.Gather(x, i))
        y = op.Concat(y, op.Unsqueeze(h, op.Constant(value_ints=[0])), axis=0)
    return y


@script()
def powers_until(x: FLOAT[3]) -> FLOAT[3]:
    """A for that a break ends."""
    n = op.Constant(value_int=0)
    for i in range(10):
        x = x * 2.0 - 0.5
        n = n + i
        stop = n > 9
        if stop:
            break
    return x


@script()
def while_counter(x: FLOAT[3]) -> tuple[FLOAT[3], INT64]:
    i = op.Constant(value_int=0)
    going = i < 7
    while going:
        x = op.Sin(x) + 0.1
        i = i + 2
        going = i < 7
    return x, i


@script()
def loop_in_loop(x: FLOAT[3]) -> FLOAT[3]:
    """The inner one has as many steps as the outer one had."""
    for i in range(4):
        for _j in range(i):
            x = op.Sin(x) + 0.1
        x = x * 0.5
    return x


def save(function: Any, feeds: list[Feed], path: Path) -> None:
    onnx.save(function.to_model_proto(), path)

    def compute(feed: Feed) -> list[Any]:
        found = function(*feed.values())
        return [np.asarray(value) for value in (found if isinstance(found, tuple) else (found,))]

    save_runs(path, feeds, compute)


if __name__ == "__main__":
    vector: list[Feed] = [{"x": numbers(3)}]
    main(
        {
            "leaky_rows": lambda path: save(leaky_rows, [{"x": numbers(n, 3, seed=n)} for n in (1, 5)], path),
            "powers_until": lambda path: save(powers_until, vector, path),
            "while_counter": lambda path: save(while_counter, vector, path),
            "loop_in_loop": lambda path: save(loop_in_loop, vector, path),
        }
    )
