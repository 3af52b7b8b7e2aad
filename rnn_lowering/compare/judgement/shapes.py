"""The shapes of outputs: those that the lowered model declares must be those that it returns.

onnxruntime warns of another shape and goes on; other runtimes allocate what is declared. A shape that the original
declares wrongly too is no fault of the lowering.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import onnx

from rnn_lowering.types import Array, Dims


def are_no_rows(expected: Array | None, actual: Array | None) -> bool:
    """Whether two arrays have no rows, and differ at most in sizes that onnxruntime does not know.

    The specification does not say which shape a Loop of no steps stacks. onnxruntime takes the sizes that it
    infers for the body: 0 for a size that it does not know, and [0] if it does not even know the rank.
    """
    if expected is None or actual is None or expected.dtype != actual.dtype:
        return False
    if expected.shape[:1] != (0,) or actual.shape[:1] != (0,):
        return False
    pairs = zip(expected.shape, actual.shape, strict=False)
    return expected.ndim == 1 or (expected.ndim == actual.ndim and all(a in (0, b) for a, b in pairs))


@dataclass(frozen=True)
class DeclaredShapes:
    """The declared shapes of the outputs of two models.

    Attributes:
        original, lowered: The models; their outputs have the same names.
    """

    original: onnx.ModelProto
    lowered: onnx.ModelProto

    @cached_property
    def _before(self) -> Mapping[str, Dims | None]:
        return _shapes(self.original.graph.output)

    @cached_property
    def _after(self) -> Mapping[str, Dims | None]:
        return _shapes(self.lowered.graph.output)

    def fault(self, name: str, array: Array) -> str:
        """Return how an output of the lowered model contradicts its declared shape; "" if it does not.

        Args:
            name: The output.
            array: What was returned. onnxruntime gives rows that a Loop without a step stacks another rank.
        """
        before, after = self._before.get(name), self._after.get(name)
        if after is None or before == after:
            return ""
        same_rank = before is not None and len(before) == len(after)
        if len(after) != array.ndim:
            wrong = array.size > 0 and not same_rank
        else:
            sizes = zip(after, array.shape, before if before and same_rank else [None] * array.ndim, strict=True)
            wrong = any(declared not in (None, size, old) for declared, size, old in sizes)
        shown = ", ".join("?" if size is None else str(size) for size in after)
        return f"has shape {list(array.shape)}, but the lowered model declares [{shown}]" if wrong else ""

    def contradicted(self, name: str, array: Array) -> list[int]:
        """Return the axes of an output whose size both models declare, and a run contradicts."""
        before, after = self._before.get(name), self._after.get(name)
        if after is None or before != after or len(after) != array.ndim:
            return []
        return [axis for axis, size in enumerate(after) if size not in (None, array.shape[axis])]


def _shapes(values: Iterable[onnx.ValueInfoProto]) -> dict[str, Dims | None]:
    """Return shapes by name; None for an unknown rank, and for what is no tensor."""
    tensors = {value.name: value.type.tensor_type for value in values}
    return {
        name: tuple(dim.dim_value if dim.HasField("dim_value") else None for dim in tensor.shape.dim)
        if tensor.HasField("shape")
        else None
        for name, tensor in tensors.items()
    }
