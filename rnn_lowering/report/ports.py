"""The inputs and outputs of a model, and code that makes arrays for them."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

import onnx_ir as ir


@dataclass(frozen=True)
class Port:
    """An input or output of a model: its NumPy type and its shape, None if unknown."""

    name: str
    dtype: str | None
    shape: tuple[int | str | None, ...] | None

    @classmethod
    def of(cls, value: ir.Value) -> Port:
        dims = None if value.shape is None else [d if isinstance(d, int) else d.value for d in value.shape]
        shape = None if dims is None else tuple(None if d == -1 else d for d in dims)
        dtype = None
        with suppress(TypeError):  # of a type that NumPy lacks
            dtype = None if value.dtype is None else value.dtype.numpy().name
        return cls(value.name or "", dtype, shape)

    def __str__(self) -> str:
        dims = (
            "unknown shape" if self.shape is None else ", ".join("?" if d is None else str(d) for d in self.shape)
        )
        return f"{self.name} [{dims}]"

    @property
    def sizes(self) -> list[int]:
        """Its sizes, with 1 for open ones."""
        return [dim if isinstance(dim, int) else 1 for dim in self.shape or ()]

    @property
    def zeros(self) -> str:
        """Code that makes an array for it."""
        return array_of(self.sizes, self.dtype)

    @property
    def comment(self) -> str:
        """A comment on its open sizes; "" where all are known."""
        names = [str(dim) if dim is not None else "?" for dim in self.shape or ()]
        return "" if names == list(map(str, self.sizes)) else f"  # [{', '.join(names)}]"


def array_of(sizes: list[int], dtype: str | None) -> str:
    """Return code that makes an array of zeros."""
    return f"np.zeros({sizes}, {dtype!r})"


def arrays(ports: Iterable[Port]) -> list[str]:
    """Return the lines of a dictionary with an array for each input."""
    return [f"    {port.name!r}: {port.zeros},{port.comment}" for port in ports]
