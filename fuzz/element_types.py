"""The element types in a model."""

from collections.abc import Collection, Iterator
from typing import Any

import onnx
from onnx import TensorProto, helper, numpy_helper

Typed = onnx.TensorProto | onnx.TypeProto.Tensor | onnx.AttributeProto
"""A part of a model that names an element type: a tensor, a declared type, or the attribute of a Cast."""


def element_types(model: onnx.ModelProto) -> set[str]:
    """Return the names of all element types, in lower case."""
    found = set()
    for part in _typed(model):
        if isinstance(part, onnx.TensorProto):
            kind = part.data_type
        else:
            kind = part.i if isinstance(part, onnx.AttributeProto) else part.elem_type
        found.add(TensorProto.DataType.Name(kind).lower())
    return found


def retype(model: onnx.ModelProto, kinds: Collection[int], other: int) -> None:
    """Let all tensors and declared types of some kinds, at any depth, be of another, in place."""
    for part in list(_typed(model)):
        if isinstance(part, onnx.TensorProto):
            if part.data_type in kinds:
                array = numpy_helper.to_array(part).astype(helper.tensor_dtype_to_np_dtype(other))
                part.CopyFrom(numpy_helper.from_array(array, part.name))
        elif isinstance(part, onnx.AttributeProto):
            part.i = other if part.i in kinds else part.i
        else:
            part.elem_type = other if part.elem_type in kinds else part.elem_type


def _typed(message: Any) -> Iterator[Typed]:
    casts = isinstance(message, onnx.AttributeProto) and message.name in ("to", "dtype")
    if casts or isinstance(message, onnx.TensorProto | onnx.TypeProto.Tensor):
        yield message
        return
    for field, value in message.ListFields():
        if field.message_type is not None:
            for inner in [value] if hasattr(value, "ListFields") else value:
                yield from _typed(inner)
