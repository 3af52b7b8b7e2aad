"""Constants that stay integers in the file: operations move the integers, and a DequantizeLinear follows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from rnn_lowering.emit.constants import Constant, Literal, literal
from rnn_lowering.types import Array, dequantized_numbers

_FIRST_OPSET, FIRST_WITH_AXIS, _FIRST_WITH_BLOCKS = 10, 13, 21
"""Of DequantizeLinear: https://onnx.ai/onnx/operators/onnx__DequantizeLinear.html."""


@dataclass(frozen=True)
class Spread(Constant):
    """A constant, broadcast to a larger shape."""

    of: Constant

    def read(self) -> Array:
        return np.broadcast_to(self.of.read(), self.shape)


@dataclass(frozen=True)
class QuantParameters:
    """The scales and zero points of a DequantizeLinear: one number for all integers, or one per index of `axis`, or
    one per `block` of indices."""

    scale: Literal
    zero_point: Literal
    axis: int | None = None
    block: int = 0

    def parts(self, extra: tuple[int, ...] = ()) -> list[Constant]:
        """Return scale and zero point for integers with `extra` leading axes."""
        parts = self.scale, self.zero_point
        return [part.reshaped((*extra, *part.shape)) for part in parts] if self.block else [*parts]

    def attributes(self, extra: int) -> dict[str, int]:
        """Return the attributes for integers with this many extra leading axes."""
        found = {} if self.axis is None else {"axis": self.axis + extra}
        return found | ({"block_size": self.block} if self.block else {})


@dataclass(frozen=True)
class Dequantized(Constant):
    """(integers - zero_point) * scale, computed in the type of the scale.

    Attributes:
        integers: Of the same shape.
        scale, zero_point: Of the same shape, or of rank 0.
    """

    integers: Constant
    scale: Constant
    zero_point: Constant

    def read(self) -> Array:
        found = dequantized_numbers(self.integers.read(), self.scale.read(), self.zero_point.read())
        return found.astype(self.dtype.numpy())

    def transposed(self, perm: Sequence[int]) -> Constant:
        return self._moved(lambda part: part.transposed(perm))

    def sliced(self, axis: int, start: int, end: int) -> Constant:
        return self._moved(lambda part: part.sliced(axis, start, end))

    def reshaped(self, shape: tuple[int, ...]) -> Constant:
        return self._moved(lambda part: part.reshaped(shape))

    def flipped(self) -> Constant:
        return self._moved(Constant.flipped)

    def cast(self, dtype: ir.DataType) -> Constant:
        return replace(self, dtype=dtype)

    def followed_by(self, others: Sequence[Constant], axis: int) -> Constant:
        parts = [other for other in others if isinstance(other, Dequantized) and other._kind == self._kind]
        if len(parts) < len(others):
            return super().followed_by(others, axis)
        alike = all(part._uniform and part._uniform == self._uniform for part in parts)
        first, rest = (self, parts) if alike else (self._spread(), [part._spread() for part in parts])
        return first._moved(lambda part, *more: part.followed_by(more, axis), *rest)

    def stored(self, opset: int) -> QuantParameters | None:
        """Return the parameters of DequantizeLinear; None if the opset cannot express them, or floats are
        smaller."""
        if opset < _FIRST_OPSET:
            return None
        scale, zero_point = self.scale.read(), self.zero_point.read()
        varies = _varying_axes(scale, zero_point)
        if not varies:
            return self._stored(_picked(scale), _picked(zero_point))
        if len(varies) == 1 and opset >= FIRST_WITH_AXIS:
            (axis,) = varies
            return self._stored(_picked(scale, axis), _picked(zero_point, axis), axis)
        return self._blocked(scale, zero_point) if opset >= _FIRST_WITH_BLOCKS else None

    def _blocked(self, scale: Array, zero_point: Array) -> QuantParameters | None:
        """Return the largest blocks of equal scales and zero points, along whichever axis they run."""
        least = 8 * self.scale.dtype.itemsize // max(8 * self.dtype.itemsize - self.integers.dtype.bitwidth, 1)
        sizes = ((axis, block) for axis, size in enumerate(self.shape) for block in _divisors(size))
        for axis, block in sorted(sizes, key=lambda found: -found[1]):
            if block > least and all(_is_blocked(part, axis, block) for part in (scale, zero_point)):
                step = (*(slice(None),) * axis, slice(None, None, block))
                return self._stored(scale[step], zero_point[step], axis, block)
        return None

    def _stored(self, scale: Array, zero_point: Array, axis: int | None = None, block: int = 0) -> QuantParameters:
        return QuantParameters(
            literal(scale, self.scale.dtype, f"{self.name}_scale"),
            literal(zero_point, self.zero_point.dtype, f"{self.name}_zero_point"),
            axis,
            block,
        )

    @property
    def _kind(self) -> tuple[object, ...]:
        return self.dtype, self.integers.dtype, self.scale.dtype

    @property
    def _uniform(self) -> object:
        """What is equal for constants of one scale and zero point; None where they vary."""
        return (self.scale.key(), self.zero_point.key()) if self.scale.shape == () else None

    def _spread(self) -> Dequantized:
        full = [Spread(part.dtype, self.shape, part.name, part) for part in (self.scale, self.zero_point)]
        return Dequantized(self.dtype, self.shape, self.name, self.integers, *full)

    def _moved(self, move: Callable[..., Constant], *others: Dequantized) -> Dequantized:
        """Apply an operation to the integers and, if they vary, to the scales and zero points."""
        integers = move(self.integers, *(other.integers for other in others))
        scale, zero_point = self.scale, self.zero_point
        if scale.shape:
            scale = move(scale, *(other.scale for other in others))
            zero_point = move(zero_point, *(other.zero_point for other in others))
        return Dequantized(self.dtype, integers.shape, self.name, integers, scale, zero_point)


def dequantized_constant(integers: Constant, scale: Constant, zero_point: Constant) -> Dequantized:
    """Return dequantized integers as a constant, of the type of their scale."""
    return Dequantized(scale.dtype, integers.shape, integers.name, integers, scale, zero_point)


def _varying_axes(*arrays: Array) -> list[int]:
    """Return the axes along which numbers differ."""
    return [
        axis
        for axis in range(arrays[0].ndim)
        if any((array != array.take([0], axis)).any() for array in arrays if array.size)
    ]


def _picked(array: Array, axis: int | None = None) -> Array:
    """Return the numbers along an axis, or the only number if there is no axis."""
    return array[tuple(slice(None) if n == axis else 0 for n in range(array.ndim))]


def _divisors(size: int) -> Iterator[int]:
    return (number for number in range(1, size + 1) if size % number == 0)


def _is_blocked(array: Array, axis: int, block: int) -> bool:
    shape = (*array.shape[:axis], array.shape[axis] // block, block, *array.shape[axis + 1 :])
    blocks = array.reshape(shape)
    return bool((blocks == blocks.take([0], axis + 1)).all())
