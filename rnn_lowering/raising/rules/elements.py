"""Arrays of polynomials and of numbers, and what the rules of operators ask of a step."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

import numpy as np
import onnx_ir as ir

from rnn_lowering.raising.polynomials import Polynomial, Variables, constant
from rnn_lowering.types import Array

REAL = (ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.BOOL)
"""Types that polynomials stand for."""

EXACT = (*REAL, ir.DataType.INT32, ir.DataType.INT64)
"""The same and integers that no sum of lengths leaves."""

_LARGEST_INTEGER = 1 << 31
"""Maximum of integers beside unknown ones: sums of larger ones may be rounded."""


class Step(Protocol):
    """What a rule may ask of the step that it is used in.

    Attributes:
        variables: Gives variables.
        opset: The version of the default domain.
        dtype: Returns the element type of a value; None if it is unknown.
        open_axes: Returns the axes of a value whose sizes are open.
    """

    variables: Variables
    opset: int
    dtype: Callable[[ir.Value], ir.DataType | None]
    open_axes: Callable[[ir.Value], Collection[int]]

    def integers(self, node: ir.Node, name: str) -> list[int] | None:
        """Return a parameter of a node that is a list of integers; None if it is absent."""

    def summed(self, node: ir.Node, rank: int) -> Sequence[int]:
        """Return the axes of a value that a node sums."""


Given = Sequence["Array | None"]
"""The inputs of a node; None for those that are absent."""

StepRule = Callable[[Step, ir.Node, Given], "Array | list[Array] | None"]
"""Computes the outputs of a node; None if they are unknown."""


def as_polynomials(array: Array) -> Array:
    """Return an array of polynomials for one of numbers."""
    if array.dtype == object:
        return array
    flat = np.empty(array.size, object)
    flat[:] = [constant(number) for number in _checked(array).ravel().tolist()]
    return flat.reshape(array.shape)


def as_numbers(array: Array) -> Array:
    """Return numbers as Python's, which polynomials take."""
    return array if array.dtype == object else _checked(array).astype(np.float64).astype(object)


def _checked(array: Array) -> Array:
    """Return numbers that can be coefficients.

    Raises:
        ValueError: One is infinite or none, or is too large an integer.
    """
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ValueError("no number")
    if array.dtype.kind in "iu" and array.size and max(-int(array.min()), int(array.max())) > _LARGEST_INTEGER:
        raise ValueError("a large integer")
    return array


def each(function: Callable[..., Polynomial], *arrays: Array) -> Array:
    """Apply a function to each element, which broadcast."""
    if not np.broadcast(*arrays).size:
        raise ValueError("empty")
    return np.asarray(np.frompyfunc(function, len(arrays), 1)(*map(as_polynomials, arrays)), object)
