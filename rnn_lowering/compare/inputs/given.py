"""Feeds and shapes that the user gives: whether they fit the models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from onnx import helper

from rnn_lowering.argument_checks import array_of_type, listed
from rnn_lowering.compare.inputs.sizes import dims_of, is_known
from rnn_lowering.compare.options import Check
from rnn_lowering.errors import OptionError
from rnn_lowering.types import Array, Shapes


def take_feeds(check: Check, graphs: Sequence[onnx.GraphProto], *, frames: bool = False) -> Check:
    """Return a check whose feeds and shapes fit the models, in native byte order.

    Args:
        check: The user's check.
        graphs: The graphs of the original and of the lowered model, which may fix sizes.
        frames: Whether inputs are whole sequences, which may not be empty.

    Raises:
        OptionError: A name that no input has, another type, rank or size, or two sizes for one symbolic name.
    """
    feeds, shapes = check.feeds, check.shapes or {}
    for graph in graphs:
        declared = {value.name: value for value in graph.input}
        feeds = None if feeds is None else [_feed(given, declared) for given in feeds]
        for name in shapes:
            _input(declared, name)
        for given in (*({n: a.shape for n, a in feed.items()} for feed in feeds or ()), shapes):
            _check_sizes(declared, given)
            empty = next((name for name, shape in given.items() if frames and not all(shape)), None)
            if empty is not None:
                raise OptionError(
                    f"input '{empty}' is empty: {list(given[empty])}", hint="give at least 1 frame and 1 row"
                )
    return replace(check, feeds=feeds)


def _feed(given: Mapping[str, Array], declared: Mapping[str, onnx.ValueInfoProto]) -> dict[str, Array]:
    return {
        name: array_of_type(f"input '{name}'", array, _dtype(_input(declared, name)))
        for name, array in given.items()
    }


def _input(declared: Mapping[str, onnx.ValueInfoProto], name: str) -> onnx.ValueInfoProto:
    if name not in declared:
        raise OptionError(f"the model has no input '{name}'", hint=f"its inputs are {listed(declared, name)}")
    return declared[name]


def _dtype(value: onnx.ValueInfoProto) -> np.dtype[Any] | None:
    elem_type = value.type.tensor_type.elem_type
    odd = (onnx.TensorProto.UNDEFINED, onnx.TensorProto.STRING)
    return None if elem_type in odd else helper.tensor_dtype_to_np_dtype(elem_type)


_Declared = Sequence[int | str]
"""Declared sizes: numbers, names, or "?" for unknown."""


def _check_sizes(declared: Mapping[str, onnx.ValueInfoProto], shapes: Shapes) -> None:
    named: dict[str, int] = {}
    for name, shape in shapes.items():
        value = declared[name]
        if not value.type.tensor_type.HasField("shape"):
            continue
        wanted = [dim.dim_value if is_known(dim) else dim.dim_param or "?" for dim in dims_of(value)]
        if not _fits(wanted, shape, named):
            sizes = {symbol: size for symbol, size in named.items() if symbol in wanted}
            known = f" with {', '.join(f'{s} = {n}' for s, n in sizes.items())}" if sizes else ""
            raise OptionError(
                f"input '{name}' is {_text(wanted)}{known}, but the given shape is {_text(shape)}",
                hint="give a shape that fits",
            )


def _fits(wanted: _Declared, shape: Sequence[int], named: dict[str, int]) -> bool:
    """Whether a shape has the declared rank and sizes; adds the sizes of its symbolic names to `named`."""
    if len(wanted) != len(shape):
        return False
    for size, given in zip(wanted, shape, strict=True):
        expected = size if isinstance(size, int) else given if size == "?" else named.setdefault(size, given)
        if expected != given:
            return False
    return True


def _text(sizes: _Declared) -> str:
    return f"[{', '.join(map(str, sizes))}]"
