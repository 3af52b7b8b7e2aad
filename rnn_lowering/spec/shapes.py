"""The shapes that the specification gives a node's inputs, and the sizes on which the actual ones agree."""

from __future__ import annotations

from collections.abc import Mapping

from rnn_lowering.types import Dims

SpecifiedShape = tuple["str | int", ...]
"""A shape in the operator specification: sizes that are known, and names of sizes."""


def specified_shapes(gates: int, dirs: int, hidden: int, layout: int) -> dict[str, SpecifiedShape]:
    """Return the shapes of the inputs by symbol; "seq_length", "batch_size" and "input_size" are to be found."""
    state: SpecifiedShape = ("batch_size", dirs, hidden) if layout else (dirs, "batch_size", hidden)
    return {
        "W": (dirs, gates * hidden, "input_size"),
        "R": (dirs, gates * hidden, hidden),
        "B": (dirs, 2 * gates * hidden),
        "P": (dirs, 3 * hidden),
        "sequence_lens": ("batch_size",),
        "initial_h": state,
        "initial_c": state,
        "X": (*(("batch_size", "seq_length") if layout else ("seq_length", "batch_size")), "input_size"),
    }


def agree(shapes: Mapping[str, Dims], wanted: Mapping[str, SpecifiedShape]) -> tuple[dict[str, int], str | None]:
    """Return the sizes that shapes agree on, and the input that is to blame where they do not.

    The first in the order of `wanted` that does not fit those before it is to blame, but sequence_lens where all
    others agree among themselves: then those others' sizes are returned.
    """
    sizes, wrong = _in_turn(shapes, wanted)
    if wrong is None or "sequence_lens" not in shapes:
        return sizes, wrong
    others = {symbol: shape for symbol, shape in shapes.items() if symbol != "sequence_lens"}
    found, still_wrong = _in_turn(others, wanted)
    return (sizes, wrong) if still_wrong else (found, "sequence_lens")


def describe(specified: SpecifiedShape, sizes: Mapping[str, int]) -> str:
    """Return a specified shape as text, with the sizes that are known."""
    return (
        "[" + ", ".join(f"{n}={sizes[n]}" if isinstance(n, str) and n in sizes else str(n) for n in specified) + "]"
    )


def _in_turn(shapes: Mapping[str, Dims], wanted: Mapping[str, SpecifiedShape]) -> tuple[dict[str, int], str | None]:
    """Return the sizes known before the first input that does not fit, and that one."""
    sizes: dict[str, int] = {}
    for symbol, specified in wanted.items():
        matched = _match(shapes[symbol], specified, sizes) if symbol in shapes else sizes
        if matched is None:
            return sizes, symbol
        sizes = matched
    return sizes, None


def _match(actual: Dims, specified: SpecifiedShape, sizes: Mapping[str, int]) -> dict[str, int] | None:
    """Return the sizes known after a shape has been matched with the specified one; None where it does not fit."""
    if len(actual) != len(specified):
        return None
    found = dict(sizes)
    for size, wanted in zip(actual, specified, strict=True):
        expected = found.setdefault(wanted, size) if isinstance(wanted, str) and size is not None else wanted
        if size is not None and size != expected:
            return None
    return found
