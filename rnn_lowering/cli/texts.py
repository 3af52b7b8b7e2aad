"""The texts of options on the command line: each kind is parsed, or refused with what would do."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rnn_lowering import argument_checks
from rnn_lowering.argument_checks import Option, why_no_arrays
from rnn_lowering.compare.options import Check, Tolerance
from rnn_lowering.errors import OptionError, RnnLoweringError
from rnn_lowering.files.options import Files
from rnn_lowering.options import Lowering

if TYPE_CHECKING:
    from rnn_lowering.types import Array, ArrayLike, SizeOrSizes

N = TypeVar("N", int, float)
T = TypeVar("T")
Options = TypeVar("Options", Lowering, Check, Tolerance, Files)


def model_file(text: str) -> Path:
    with _refused():
        return argument_checks.path("", text)


def folder(text: str) -> Path:
    path = Path(text)
    if path.exists() and not path.is_dir():
        raise argparse.ArgumentTypeError(f"'{text}' is no folder")
    return path


def target(text: str) -> str:
    from rnn_lowering.targets.target import target_named

    with _refused():
        return target_named(text).name


def one_of(option: Option) -> Callable[[str], Any]:
    """Return what parses a text that an option has to take."""

    def parse(text: str) -> Any:
        with _refused():
            return option.take("", text)

    return parse


@contextmanager
def _refused() -> Iterator[None]:
    """Let argparse print an error of the block."""
    try:
        yield
    except RnnLoweringError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _number(text: str, kind: type[N]) -> N:
    try:
        return kind(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is not a {'whole ' * (kind is int)}number") from None


def count(text: str) -> int:
    number = _number(text, int)
    if number < 0:
        raise argparse.ArgumentTypeError("must be 0 or more")
    return number


def frames(text: str) -> int:
    number = _number(text, int)
    if number < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
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


def dim(text: str) -> tuple[str, SizeOrSizes]:
    name, separator, size = text.rpartition("=")
    parts = [part.strip() for part in text.split(",")]
    if len(parts) > 1 and all(re.fullmatch(r"[^=]+=\d+", part) for part in parts):
        each = " ".join(f"--set-dim {shlex.quote(part)}" for part in parts)
        raise argparse.ArgumentTypeError(f"'{text}' names several dimensions; write {each}")
    sizes = size.split(",")
    if not separator or not all(number.strip().isdigit() for number in sizes):
        raise argparse.ArgumentTypeError(f"'{text}' is not NAME=SIZE, such as seq=16")
    return name, int(size) if len(sizes) == 1 else tuple(map(int, sizes))


def axis_name(text: str) -> tuple[str, str]:
    axis, _, name = text.rpartition("=")
    if not axis or not name.isidentifier():
        raise argparse.ArgumentTypeError(f"'{text}' is not INPUT:AXIS=NAME, such as X:1=time")
    return axis, name


def stream(text: str) -> list[tuple[str, int | None]]:
    from rnn_lowering.streaming.options import parse_stream

    with _refused():
        return [*parse_stream(text).items()]


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


def options_of(kind: type[Options], args: argparse.Namespace, **more: Any) -> Options:
    """Return the option object that the arguments specify."""
    for declared in fields(kind):
        if declared.name in args:
            option: Option = declared.metadata["option"]
            more[declared.name] = TEXTS[option.kind].value(getattr(args, declared.name), option.flag)
    return kind(**more)


def _once(pairs: list[tuple[str, T]], option: str) -> dict[str, T]:
    """Return NAME=VALUE pairs as a dictionary; a name with two values is refused.

    Raises:
        OptionError: A name is given two different values.
    """
    result: dict[str, T] = {}
    for name, value in pairs:
        if result.setdefault(name, value) != value:
            raise OptionError(f"{option} gives '{name}' twice: {result[name]} and {value}", hint="give it once")
    return result


def _read_values(values: dict[str, int | float | bool | str]) -> dict[str, ArrayLike]:
    """Return the values of inputs; text is the name of a .npy file."""
    arrays = _read_feeds([(name, value) for name, value in values.items() if isinstance(value, str)])
    return {**values, **arrays}


def _read_feeds(files: list[tuple[str, str]]) -> dict[str, Array]:
    """Return the arrays in .npy files by the names of their inputs."""
    import numpy as np

    feed = {}
    for name, path in files:
        try:
            array = np.load(path, allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise RnnLoweringError(why_no_arrays(f"'{path}' for input '{name}'", ".npy", error)) from error
        if not isinstance(array, np.ndarray):
            raise RnnLoweringError(f"'{path}' contains several arrays", hint="give one .npy file per input")
        feed[name] = array
    return feed


class OneValue(argparse.Action):
    """Keep the one value of an option; another one is refused."""

    def __call__(self, _: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, *__: Any) -> None:
        before = getattr(namespace, self.dest, None)
        if before is not None and str(before) != str(values):
            raise argparse.ArgumentError(self, f"given twice: {before} and {values}; give it once")
        setattr(namespace, self.dest, values)


@dataclass(frozen=True)
class Text:
    """A kind of text of an option.

    Attributes:
        parse: Returns what one text says.
        more: Settings of argparse.
        value: Returns the value of the option from all parsed texts and the option's name.
    """

    parse: Callable[[str], Any] | None = None
    more: Mapping[str, Any] = field(default_factory=lambda: {"action": OneValue})
    value: Callable[[Any, str], Any] = lambda parsed, _: parsed

    @property
    def settings(self) -> dict[str, Any]:
        """Return the settings of the argument for argparse."""
        return {**self.more, **({"type": self.parse} if self.parse else {})}


_REPEATED = {"action": "append"}

TEXTS = {
    "": Text(),
    "file": Text(Path),
    "report": Text(report_file),
    "flag": Text(more={"action": "store_true"}),
    "no flag": Text(more={"action": "store_false"}),
    "target": Text(target),
    "pattern": Text(more=_REPEATED),
    "count": Text(count),
    "bytes": Text(byte_count),
    "frames": Text(frames),
    "seconds": Text(seconds),
    "tolerance": Text(tolerance),
    "name": Text(axis_name, _REPEATED, _once),
    "size": Text(dim, _REPEATED, _once),
    "export": Text(model_file, _REPEATED),
    "shape": Text(shape, _REPEATED, _once),
    "value": Text(input_value, _REPEATED, lambda pairs, name: _read_values(_once(pairs, name))),
    "delay": Text(count, {"action": OneValue, "nargs": "?", "const": True}),
    "stream": Text(stream, {**_REPEATED, "nargs": "?"}, lambda lists, name: _once([*chain(*lists)], name)),
    "feed": Text(feed, _REPEATED, lambda files, _: [_read_feeds(files)]),
}
"""The kinds of texts, by their names in `flags.KEYWORDS`."""
