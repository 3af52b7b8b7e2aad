"""Types that several folders share: arrays and their tensors, shapes, and the report of progress."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any, Protocol, Union

if TYPE_CHECKING:  # the command's --help needs none
    import numpy as np
    import onnx
    import onnx_ir as ir

    Array = np.ndarray[Any, np.dtype[Any]]
else:
    Array = Any

ArrayLike = Array | float | int | bool | Sequence[Any]
"""Anything that NumPy converts to an array of numbers."""

Dims = tuple["int | None", ...]
"""The shape of a value, None for unknown dimensions."""

PathLike = str | os.PathLike[str]

ModelOrPath = Union["onnx.ModelProto", "ir.Model", PathLike]
"""A model in memory, or the path of its file."""

SizeOrSizes = int | tuple[int, ...]
"""A size, or that of each export."""

Shapes = Mapping[str, Sequence[int]]
"""Shapes by the names of inputs."""


def in_brackets(shown: object) -> str:
    """The `repr` of a result: its text in angle brackets."""
    text = "; ".join(str(shown).splitlines())
    return f"<{type(shown).__name__}: {text}>" if text else f"<{type(shown).__name__}>"


def array_of(tensor: ir.TensorProtocol) -> Array:
    """Return the array of a tensor; the file that it is in is closed as soon as the array is released."""
    import onnx_ir as ir

    if not isinstance(tensor, ir.ExternalTensor):
        return tensor.numpy()
    anew = ir.ExternalTensor(
        tensor.location,
        tensor.offset,
        tensor.length,
        tensor.dtype,
        shape=tensor.shape,
        name=tensor.name or "",
        base_dir=tensor.base_dir,
    )
    return anew.numpy()


def dequantized_numbers(integers: Array, scale: Array, zero_point: Array) -> Array:
    """Return (integers - zero_point) * scale in the type of the scale, as DequantizeLinear computes it."""
    difference = integers.astype("int64") - zero_point.astype("int64")
    product: Array = difference.astype("float32") * scale.astype("float32")
    return product.astype(scale.dtype)


def in_memory(tensor: ir.ExternalTensor) -> ir.TensorProtocol:
    """Return a tensor of a file as one in memory; the file is closed."""
    import onnx_ir as ir

    return ir.Tensor(array_of(tensor).copy(), tensor.dtype, name=tensor.name)


class Progress(Protocol):
    """Called as progress(phase, done, total) when a phase begins (done = 0) and after each tensor or run.

    Examples:
        >>> def show(phase, done, total):
        ...     print(phase, done, total)
        >>> report = rl.lower_file("model.onnx", "lowered.onnx", verify=0, overwrite=True, progress=show)
    """

    def __call__(self, phase: str, done: int, total: int, /) -> None: ...


READING, LOWERING, WRITING = "reading", "lowering", "writing tensors"
ORIGINAL = "running the original"
LOWERED = "running the lowered model"
NODES = "running each node"
CHUNKS = "running the stream chunk by chunk"
TARGET = "running the result in its target"


def counter(progress: Progress | None, phase: str, total: int) -> Callable[[], None]:
    """Report the start of a phase; return a function to call after each of its `total` parts."""
    if progress is None:
        return lambda: None
    report, done = progress, count(1)
    report(phase, 0, total)
    return lambda: report(phase, next(done), total)
