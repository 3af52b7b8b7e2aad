"""The values of the arguments: parsing their texts, and the option objects that they make."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from rnn_lowering.errors import RnnLoweringError

if TYPE_CHECKING:
    from rnn_lowering.options import Check, Lowering
    from rnn_lowering.types import Array, ArrayLike

N = TypeVar("N", int, float)
T = TypeVar("T")


def target(text: str) -> str:
    from rnn_lowering.targets.table import TARGETS, target_named

    try:
        return target_named(text).name
    except RnnLoweringError:
        known = f"{', '.join(TARGETS)}{meant(text, TARGETS)}"
        raise argparse.ArgumentTypeError(f"'{text}' is none of {known}") from None


def meant(text: str, known: Iterable[str]) -> str:
    """Return a question for the known word that is most like a text; empty if none is."""
    from difflib import get_close_matches

    found = get_close_matches(text.lower(), list(known), 1, 0.65)
    return f"; did you mean {found[0]}?" if found else ""


def _number(text: str, kind: type[N]) -> N:
    try:
        return kind(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is no {'whole ' * (kind is int)}number") from None


def count(text: str) -> int:
    number = _number(text, int)
    if number < 0:
        raise argparse.ArgumentTypeError("must be 0 or more")
    return number


def byte_count(text: str) -> int:
    factor = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:], 1)
    digits = text if factor == 1 else text[:-1]
    if not digits.isdecimal():
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of bytes, such as 800M or 4G")
    return int(digits) * factor


def report_file(text: str) -> Path:
    path = Path(text)
    if path.suffix not in (".json", ".html"):
        raise argparse.ArgumentTypeError(f"'{text}' ends in neither .json nor .html")
    return path


def tolerance(text: str) -> float:
    number = _number(text, float)
    if not number >= 0:
        raise argparse.ArgumentTypeError("must be 0 or more")
    return number


def seconds(text: str) -> float:
    number = _number(text, float)
    if not number > 0:
        raise argparse.ArgumentTypeError("must be more than 0")
    return number


def dim(text: str) -> tuple[str, int]:
    name, separator, size = text.rpartition("=")
    if not separator or not size.isdigit():
        raise argparse.ArgumentTypeError(f"'{text}' is not NAME=SIZE, such as seq=16")
    return name, int(size)


def stream(text: str) -> tuple[str, int | None]:
    from rnn_lowering.options import parse_stream

    try:
        ((axis, frames),) = parse_stream(text).items()
    except RnnLoweringError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return axis, frames


def shape(text: str) -> tuple[str, list[int]]:
    name, separator, shape = text.rpartition(":")
    sizes = shape.split(",") if shape else []
    if not separator or not all(size.strip().isdigit() for size in sizes):
        raise argparse.ArgumentTypeError(f"'{text}' is not NAME:D0,D1,..., such as X:16,1,80")
    return name, [int(size) for size in sizes]


def input_value(text: str) -> tuple[str, int | float | bool | str]:
    name, _, value = text.partition("=")
    if not name:
        raise argparse.ArgumentTypeError(f"'{text}' names no input")
    if value.endswith(".npy"):
        return name, value
    if value.lower() in ("true", "false"):
        return name, value.lower() == "true"
    for number in (int, float):
        with suppress(ValueError):
            return name, number(value)
    raise argparse.ArgumentTypeError(f"'{text}' is neither NAME=NUMBER nor NAME=FILE.npy")


def feed(text: str) -> tuple[str, str]:
    name, separator, path = text.partition("=")
    if not separator or not name or not path:
        raise argparse.ArgumentTypeError(f"'{text}' is not NAME=FILE.npy")
    return name, path


def lowering_options(args: argparse.Namespace) -> Lowering:
    """Return the options of the lowering that the arguments specify."""
    from rnn_lowering.options import Lowering

    return Lowering(
        to=args.to,
        target=args.target or "portable",
        only=args.only,
        except_=args.except_,
        max_unroll=args.max_unroll,
        max_nodes=args.max_nodes,
        max_bytes=args.max_bytes,
        compute=args.compute,
        dequantize=args.dequantize,
        dims=_once(args.set_dim, "--set-dim"),
        input_shapes=_once(args.input_shape, "--input-shape"),
        set_inputs=_read_values(_once(args.set_input, "--set-input")),
        stream=_once(args.stream, "--stream") or None,
    )


def check_options(args: argparse.Namespace) -> Check:
    """Return the options of the comparison that the arguments specify."""
    from rnn_lowering.options import Check, Tolerance

    return Check(
        runs=args.verify,
        seed=args.seed,
        tolerance=Tolerance(args.rtol, args.atol),
        feeds=[_read_feeds(args.feed)] if args.feed else None,
        shapes=_once(args.test_shape, "--test-shape"),
        timeout=args.verify_timeout,
        max_bytes=args.max_bytes,
    )


def _once(pairs: list[tuple[str, T]], option: str) -> dict[str, T]:
    """Return the values by name.

    Raises:
        RnnLoweringError: A name is given two different values.
    """
    result: dict[str, T] = {}
    for name, value in pairs:
        if result.setdefault(name, value) != value:
            raise RnnLoweringError(
                f"{option} gives '{name}' twice: {result[name]} and {value}", hint="give it once"
            )
    return result


def _read_values(given: dict[str, int | float | bool | str]) -> dict[str, ArrayLike]:
    """Return the values of inputs; text is the name of a .npy file."""
    arrays = _read_feeds([(name, value) for name, value in given.items() if isinstance(value, str)])
    return {name: arrays[name] if isinstance(value, str) else value for name, value in given.items()}


def _read_feeds(files: list[tuple[str, str]]) -> dict[str, Array]:
    """Return the arrays in .npy files by the names of their inputs."""
    import numpy as np

    feed = {}
    for name, path in files:
        try:
            array = np.load(path, allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise RnnLoweringError(f"cannot read '{path}' for input '{name}': {error}") from error
        if not isinstance(array, np.ndarray):
            raise RnnLoweringError(f"'{path}' holds several arrays", hint="give one .npy file for each input")
        feed[name] = array
    return feed
