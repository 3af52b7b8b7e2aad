"""Checking the inputs and shapes that a user gives against the model's declarations, before anything runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx
from onnx import helper

from rnn_lowering.errors import OptionError
from rnn_lowering.types import Array, Shapes

Sizes = Sequence[int | str]
"""Declared sizes: numbers, names, "?" for one that is neither."""


def check_given(graphs: Sequence[onnx.GraphProto], feeds: Sequence[Mapping[str, Array]], shapes: Shapes) -> None:
    """Refuse given inputs and shapes that the models cannot accept.

    Args:
        graphs: Of the original, and of the lowered model, whose sizes may be fixed.
        feeds: Given inputs, by name.
        shapes: Given shapes, by name.

    Raises:
        OptionError: A name that no input has, another type, rank or size, or two sizes for one symbolic name.
    """
    for graph in graphs:
        declared = {value.name: value for value in graph.input}
        for given in feeds:
            for name, array in given.items():
                _check_type(_input(declared, name), array)
            _check_sizes(declared, {name: array.shape for name, array in given.items()})
        for name in shapes:
            _input(declared, name)
        _check_sizes(declared, shapes)


def _input(declared: Mapping[str, onnx.ValueInfoProto], name: str) -> onnx.ValueInfoProto:
    if name not in declared:
        raise OptionError(
            f"the model has no input '{name}'", hint=f"its inputs are {', '.join(declared) or 'none'}"
        )
    return declared[name]


def _check_type(value: onnx.ValueInfoProto, array: Array) -> None:
    elem_type = value.type.tensor_type.elem_type
    if elem_type in (onnx.TensorProto.UNDEFINED, onnx.TensorProto.STRING):
        return
    wanted = helper.tensor_dtype_to_np_dtype(elem_type)
    if array.dtype != wanted:
        raise OptionError(
            f"input '{value.name}' is {wanted}, the given array is {array.dtype}",
            hint=f"save it as array.astype('{wanted}')",
        )


def _check_sizes(declared: Mapping[str, onnx.ValueInfoProto], shapes: Shapes) -> None:
    named: dict[str, int] = {}
    for name, shape in shapes.items():
        value = declared[name]
        if not value.type.tensor_type.HasField("shape"):
            continue
        dims = value.type.tensor_type.shape.dim
        wanted = [dim.dim_value if dim.HasField("dim_value") else dim.dim_param or "?" for dim in dims]
        if not _fits(wanted, shape, named):
            sizes = {symbol: size for symbol, size in named.items() if symbol in wanted}
            known = f" with {', '.join(f'{s} = {n}' for s, n in sizes.items())}" if sizes else ""
            raise OptionError(
                f"input '{name}' is {_text(wanted)}{known}, the given shape is {_text(shape)}",
                hint="give it a shape that fits",
            )


def _fits(wanted: Sizes, shape: Sequence[int], named: dict[str, int]) -> bool:
    """Whether a shape has the declared rank and sizes; adds the sizes of its symbolic names to `named`."""
    if len(wanted) != len(shape):
        return False
    for size, given in zip(wanted, shape, strict=True):
        expected = size if isinstance(size, int) else given if size == "?" else named.setdefault(size, given)
        if expected != given:
            return False
    return True


def _text(sizes: Sizes) -> str:
    return f"[{', '.join(map(str, sizes))}]"
