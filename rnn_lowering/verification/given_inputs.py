"""Checking the inputs and shapes that a user gives against the model's declarations, before anything runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from operator import index
from typing import Any

import numpy as np
import onnx
from onnx import helper

from rnn_lowering.errors import OptionError
from rnn_lowering.options import Check, Tolerance
from rnn_lowering.streaming.host import array_of_type
from rnn_lowering.types import Array, Shapes

Sizes = Sequence[int | str]
"""Declared sizes: numbers, names, "?" for one that is neither."""


def checked(check: Check, graphs: Sequence[onnx.GraphProto], *, frames: bool = False) -> Check:
    """Return a check whose inputs are arrays as onnxruntime reads them. One mapping instead of several is accepted,
    so are lists of numbers, and either byte order.

    Args:
        check: As it was given.
        graphs: Of the original, and of the lowered model, whose sizes may be fixed.
        frames: Inputs are whole sequences: they may not be empty.

    Raises:
        OptionError: A name that no input has, another type, rank or size, two sizes for one symbolic name, or what
            is no input, shape or tolerance.
    """
    if not isinstance(check.tolerance, Tolerance):
        raise OptionError(
            f"tolerance cannot be {check.tolerance!r}", hint="give rl.Tolerance(rtol=1e-3, atol=1e-5)"
        )
    feeds = None if check.feeds is None else [_feed(given, graphs) for given in _several(check.feeds)]
    shapes = {name: _shape(name, shape) for name, shape in _mapping("shapes", check.shapes or {}).items()}
    for graph in graphs:
        declared = {value.name: value for value in graph.input}
        for name in shapes:
            _input(declared, name)
        for given in (*({n: a.shape for n, a in feed.items()} for feed in feeds or ()), shapes):
            _check_sizes(declared, given)
            empty = next((name for name, shape in given.items() if frames and not all(shape)), None)
            if empty is not None:
                raise OptionError(
                    f"input '{empty}' is empty: {list(given[empty])}", hint="give 1 frame and 1 row or more"
                )
    return replace(check, feeds=feeds, shapes=shapes or None)


def _several(feeds: object) -> Sequence[object]:
    if isinstance(feeds, Mapping):
        return [feeds]
    given = list(feeds) if isinstance(feeds, Iterable) and not isinstance(feeds, str | bytes | np.ndarray) else []
    if not given:
        raise OptionError("feeds holds no inputs", hint='give arrays by name, one mapping for each run: [{"X": x}]')
    return given


def _mapping(what: str, given: object) -> Mapping[str, Any]:
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise OptionError(
            f"{what} is a {type(given).__name__}", hint="give a mapping whose keys are names of inputs"
        )
    return given


def _feed(given: object, graphs: Sequence[onnx.GraphProto]) -> dict[str, Array]:
    """Return one feed as arrays of the types that the inputs have."""
    arrays = dict(_mapping("a feed", given))
    for graph in graphs:
        declared = {value.name: value for value in graph.input}
        arrays = {
            name: array_of_type(f"input '{name}'", array, _dtype(_input(declared, name)))
            for name, array in arrays.items()
        }
    return arrays


def _shape(name: str, given: Any) -> tuple[int, ...]:
    try:
        shape = tuple(index(size) for size in given)
    except TypeError:
        shape = (-1,)
    if min(shape, default=0) < 0:
        raise OptionError(f"the shape of input '{name}' cannot be {given!r}", hint="give its sizes: [5, 1, 80]")
    return shape


def _input(declared: Mapping[str, onnx.ValueInfoProto], name: str) -> onnx.ValueInfoProto:
    if name not in declared:
        raise OptionError(
            f"the model has no input '{name}'", hint=f"its inputs are {', '.join(declared) or 'none'}"
        )
    return declared[name]


def _dtype(value: onnx.ValueInfoProto) -> np.dtype[Any] | None:
    elem_type = value.type.tensor_type.elem_type
    odd = (onnx.TensorProto.UNDEFINED, onnx.TensorProto.STRING)
    return None if elem_type in odd else helper.tensor_dtype_to_np_dtype(elem_type)


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
