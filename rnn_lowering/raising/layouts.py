"""Where a tensor of a step has its sequences of the batch and its units.

The step of a cell computes [batch, units]. Exporters also write [units], [units, batch], or axes of size 1 between.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rnn_lowering.emit.ops import Ops
from rnn_lowering.emit.tensor import Tensor
from rnn_lowering.types import Array


@dataclass(frozen=True)
class Layout:
    """The axes of a tensor that hold the batch and the units.

    Attributes:
        shape: The shape, with numbers for open sizes.
        batch, units: The axis of each; None if there is none, since the size is 1.
    """

    shape: tuple[int, ...]
    batch: int | None
    units: int | None

    @property
    def _held(self) -> list[int]:
        """The axes that hold the batch and the units, where there are such axes."""
        return [axis for axis in (self.batch, self.units) if axis is not None]

    @property
    def _others(self) -> list[int]:
        """The other axes, whose size is 1."""
        return [axis for axis in range(len(self.shape)) if axis not in self._held]

    @property
    def _absent(self) -> list[int]:
        """Which axes of [batch, units] the tensor lacks."""
        return [n for n, axis in enumerate((self.batch, self.units)) if axis is None]

    def _is_swapped(self) -> bool:
        return self._held != sorted(self._held)

    @property
    def sizes(self) -> tuple[int, int]:
        """The number of sequences and of units."""
        return tuple(1 if axis is None else self.shape[axis] for axis in (self.batch, self.units))  # type: ignore[return-value]

    def matrix(self, array: Array) -> Array:
        """Return an array of this shape as [batch, units]."""
        return array.transpose([*self._others, *self._held]).reshape(self.sizes)

    def places(self) -> Array:
        """Return the number of each element of the tensor as [batch, units]."""
        return self.matrix(np.arange(int(np.prod(self.shape))).reshape(self.shape))

    def to_matrix(self, op: Ops, x: Tensor, lead: int) -> Tensor:
        """Return a tensor [lead..., *shape] as [lead..., batch, units]."""
        if self._others:
            x = op.squeeze(x, [lead + axis for axis in self._others])
        if self._is_swapped():
            x = op.transpose(x, [*range(lead), lead + 1, lead])
        return op.unsqueeze(x, [lead + n for n in self._absent]) if self._absent else x

    def from_matrix(self, op: Ops, x: Tensor, lead: int) -> Tensor:
        """Return a tensor [lead..., batch, units] as [lead..., *shape]."""
        if self._absent:
            x = op.squeeze(x, [lead + n for n in self._absent])
        if self._is_swapped():
            x = op.transpose(x, [*range(lead), lead + 1, lead])
        return op.unsqueeze(x, [lead + axis for axis in self._others]) if self._others else x


def layouts(shape: Sequence[int], batch: int | None = None, open_axes: Sequence[int] = ()) -> Iterator[Layout]:
    """Yield the layouts that a shape may have, the usual one first.

    Args:
        shape: The shape.
        batch: The number of sequences, if known.
        open_axes: Axes of open sizes, which are the batch.
    """
    dims = tuple(shape)
    axes = [axis for axis, size in enumerate(dims) if size != 1 or axis in open_axes]
    if len(axes) > 2:
        return
    found: list[tuple[int | None, int | None]] = []
    if len(axes) == 2:
        found = [(axes[0], axes[1]), (axes[1], axes[0])]
    elif axes:
        found = [(None, axes[0]), (axes[0], None)]
        if axes[0] < len(dims) - 1:  # [batch, 1]: as [1, units], sequences would share what is not finite
            found.reverse()
    else:
        found = [(None, None)]
    for each in found:
        layout = Layout(dims, *each)
        if any(axis is not None and axis != layout.batch for axis in open_axes):
            continue
        if batch is None or layout.sizes[0] == batch:
            yield layout
