"""Checks of arguments: each converts what a caller gives, or raises one error."""

from __future__ import annotations

import math
import operator
import os
import re
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from threading import TIMEOUT_MAX
from typing import TYPE_CHECKING, Any, TypeVar

from rnn_lowering.errors import OptionError, callers
from rnn_lowering.flags import is_for_command
from rnn_lowering.types import Array, ArrayLike, Progress, SizeOrSizes

if TYPE_CHECKING:  # the command's --help needs none
    import numpy as np
    import onnx
    import onnx_ir as ir

T = TypeVar("T")

Take = Callable[[str, Any], T]
"""Takes the name of an argument and what was given, and returns its value or raises an `OptionError`."""

_LARGEST = 2**63 - 1


def meant(text: str, known: Iterable[str], most: int = 1, alike: float = 0.65) -> str:
    """Return "did you mean ...?" with the known words that have the letters of a text, or are most like it by a
    ratio of difflib; "" if none is."""
    from difflib import get_close_matches

    names = {name.lower(): name for name in known}
    exchanged = [name for name in names if sorted(name) == sorted(text.lower())][:most]
    alike_names = exchanged or get_close_matches(text.lower(), list(names), most, alike)
    return f"; did you mean {' or '.join(names[each] for each in alike_names)}?" if alike_names else ""


def listed(known: Iterable[str], text: str) -> str:
    """Return known words with commas between them, and a question if a text is like one."""
    words = list(known)
    return f"{', '.join(words) or 'none'}{meant(text, words)}"


def wrong(name: str, given: object, give: str) -> OptionError:
    """Return the error for an argument."""
    shown = reprlib.repr(given) if given is None or isinstance(given, str | int | float) else type(given).__name__
    return OptionError(f"{name} cannot be {shown}", hint=f"give {give}")


def flag(name: str, given: Any) -> bool:
    import numpy as np

    if not isinstance(given, bool | np.bool_):
        raise wrong(name, given, "True or False")
    return bool(given)


def text(name: str, given: Any) -> str:
    if not isinstance(given, str):
        raise wrong(name, given, "text")
    return given


def one_of(noun: str, known: Sequence[str]) -> Take[str]:
    def take(name: str, given: Any) -> str:
        if not isinstance(given, str):
            raise wrong(name, given, f"one of {', '.join(known)}")
        if given not in known:
            raise OptionError(f"{noun} '{given}' does not exist", hint=f"known are {listed(known, given)}")
        return given

    return take


def integer(least: int = 0, most: int = _LARGEST) -> Take[int]:
    """Take an integer, also one of NumPy, but no boolean."""

    def take(name: str, given: Any) -> int:
        limited = most < _LARGEST
        with suppress(TypeError):
            number = least - 1 if isinstance(given, bool) else operator.index(given)
            if least <= number <= most:
                return number
            limited = limited or number > most
        raise wrong(name, given, f"a whole number, {least} or more" + f", at most {most:,}" * limited)

    return take


def _number(name: str, given: Any, give: str) -> float:
    import numpy as np

    if (
        isinstance(given, bool | np.bool_)
        or not isinstance(given, int | float | np.number)
        or np.iscomplexobj(given)
    ):
        raise wrong(name, given, give)
    try:
        return float(given)
    except OverflowError:
        return math.inf


def seconds(name: str, given: Any) -> float:
    """Take a time limit in seconds; one that is too long for the operating system becomes infinite."""
    number = _number(name, given, "a number of seconds")
    if not number > 0:
        raise wrong(name, given, "more than 0 seconds")
    return number if number < TIMEOUT_MAX else math.inf


def tolerance(name: str, given: Any) -> float | None:
    if given is not None and not _number(name, given, "a number, 0 or more") >= 0:
        raise wrong(name, given, "0 or more")
    return None if given is None else float(given)


def instance(kind: type[T], give: str) -> Take[T]:
    def take(name: str, given: Any) -> T:
        if not isinstance(given, kind):
            raise wrong(name, given, give)
        return given

    return take


def optional(take: Take[T]) -> Take[T | None]:
    return lambda name, given: None if given is None else take(name, given)


def function(name: str, given: Any) -> Any:
    if not callable(given):
        raise wrong(name, given, "a function")
    return given


def mapping(take: Take[T], give: str) -> Take[dict[str, T]]:
    """Take a mapping from names."""

    def each(name: str, given: Any) -> dict[str, T]:
        if not isinstance(given, Mapping) or not all(isinstance(key, str) for key in given):
            raise wrong(name, given, give)
        return {key: take(f"'{key}' of {name}", value) for key, value in given.items()}

    return each


def _axis_name(name: str, given: Any) -> str:
    if not isinstance(given, str) or not given.isidentifier():
        raise wrong(name, given, "a name, such as 'time'")
    return given


names_of_axes = mapping(_axis_name, "names of axes, such as {'X:1': 'time'}")


def _size(name: str, given: Any) -> SizeOrSizes:
    """Take a size, or several: one for each export."""
    if isinstance(given, list | tuple) and given:
        return tuple(integer()(name, size) for size in given)
    return integer()(name, given)


sizes = mapping(_size, "sizes by name, such as {'seq': 16}")


def _shape(name: str, given: Any) -> list[int]:
    if isinstance(given, str | bytes | Mapping | set) or not isinstance(given, Iterable):
        raise wrong(name, given, "a list of sizes, such as [16, 1, 80]")
    return [integer()(f"a size of {name}", size) for size in given]


shapes = mapping(_shape, "shapes by name, such as {'X': [16, 1, 80]}")


def array(name: str, given: Any) -> Array:
    """Take what NumPy converts to an array of numbers, but no masked array."""
    import numpy as np

    try:
        made = np.asarray(given)
    except Exception as error:  # whatever an object that claims to be an array raises
        raise OptionError(f"{name} is not an array: {error}", hint="give a NumPy array") from error
    if np.ma.isMaskedArray(given) or made.dtype.hasobject:
        raise wrong(name, given, "a NumPy array of numbers without a mask")
    return made


def array_of_type(what: str, given: ArrayLike, dtype: np.dtype[Any] | None) -> Array:
    """Return an array of a type, in native byte order: onnxruntime reads no other.

    Raises:
        OptionError: It is an array of another type, or does not hold numbers.
    """
    import numpy as np  # the command's --help needs none

    if np.ma.is_masked(given):
        raise OptionError(f"{what} has masked elements", hint="fill them")
    converted = isinstance(given, list | tuple | int | float)
    try:
        array = np.asarray(given)
        if converted and dtype is not None and np.can_cast(array.dtype, dtype, "same_kind"):
            array = np.asarray(given, dtype)
    except (ValueError, TypeError, OverflowError) as error:
        raise OptionError(
            f"{what} is not an array of numbers: {error}", hint="give rows of equal length"
        ) from error
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    if dtype is not None and dtype.kind not in "OSU" and array.dtype != dtype:
        raise OptionError(f"{what} has type {array.dtype}, expected {dtype}", hint=f'use .astype("{dtype}")')
    return array


def _value(name: str, given: Any) -> ArrayLike:
    array(name, given)
    return given  # type: ignore[no-any-return]


values = mapping(_value, "values by name, such as {'lens': 16}")

_feed = mapping(array, "arrays by the names of inputs, such as {'X': x}")


def feeds(name: str, given: Any) -> list[dict[str, Array]]:
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise wrong(name, given, "a list of inputs by name: [{'X': x}]")
    return [_feed(f"{name}[{n}]", feed) for n, feed in enumerate(given)]


def path(name: str, given: Any) -> Path:
    text = None
    with suppress(TypeError):
        text = os.fspath(given)
    if not isinstance(text, str):
        raise wrong(name, given, "a path")
    if not text:
        raise OptionError("the name of a file is empty", hint="give a path")
    if re.match(r"[A-Za-z][\w+.-]+://", text):
        raise OptionError(f"'{text}' is an address, not a file", hint="download the file, and give its path")
    return Path(text)


def ir_model(name: str, given: Any) -> ir.Model:
    import onnx_ir as ir

    return instance(ir.Model, "an onnx_ir.Model; rl.lower takes an onnx.ModelProto too")(name, given)


def model_or_path(name: str, given: Any) -> onnx.ModelProto | ir.Model | Path:
    """Take a model in memory, or the path of one."""
    import onnx
    import onnx_ir as ir

    if isinstance(given, str | os.PathLike):
        return path(name, given)
    if not isinstance(given, onnx.ModelProto | ir.Model):
        kind = type(given).__name__
        raise OptionError(f"{name} cannot be {kind}", hint="give a path, an onnx.ModelProto or an onnx_ir.Model")
    return given


TAKES: dict[str, Take[Any]] = {
    "": text,
    **dict.fromkeys(("flag", "no flag"), flag),
    **dict.fromkeys(("count", "bytes"), integer()),
    "frames": optional(integer(1)),
    "seconds": seconds,
    "tolerance": tolerance,
    "name": names_of_axes,
    "size": sizes,
    "shape": shapes,
    "value": values,
    "feed": optional(feeds),
    **dict.fromkeys(("file", "report"), optional(path)),
}
"""By kind of text on the command line (`cli.arguments.TEXTS`), what takes a value if the option does not say."""


@dataclass(frozen=True)
class Option:
    """An option, as the metadata of a field.

    Attributes:
        flag: Its flag; "" where the command has no such option.
        kind: The kind of its text.
        take: Takes what is given.
        help: The text of --help, with {default} for the default.
        group: Its place in --help.
        metavar: What stands for its value in --help.
        choices: The values that it may have; () for any.
        keyword: How Python spells it, if not by the name of the field.
    """

    flag: str
    kind: str
    take: Take[Any]
    help: str = ""
    group: str = ""
    metavar: str | None = None
    choices: tuple[str, ...] = ()
    keyword: str = ""


@dataclass(frozen=True)
class OptionGroup:
    """A group of options in --help, which declares them: a flag and its metavar, a kind of text, a default."""

    title: str

    def option(self, flag: str, kind: str, default: T, help: str, take: Take[Any] | None = None, **more: Any) -> T:
        """Return a field of a dataclass with this default and these metadata (see `Option`)."""
        name, _, metavar = flag.partition(" ")
        take = take or (one_of(metavar, more["choices"]) if "choices" in more else TAKES[kind])
        given: Any = {"default_factory": dict} if default == {} else {"default": default}
        metadata = {"option": Option(name, kind, take, help, self.title, metavar or None, **more)}
        made: Any = field(**given, metadata=metadata)
        return made  # type: ignore[no-any-return]  # its values have the type of the default

    def switch(self, flag: str, help: str) -> bool:
        """Return a field that is False unless it is given."""
        return self.option(flag, "flag", False, help)


GROUPS = tuple(
    map(
        OptionGroup,
        (
            "which nodes, in which form",
            "sizes and inputs of the result",
            "limits",
            "comparison with the original",
            "integers, with --stream AXIS=FRAMES",
            "files",
        ),
    )
)
"""The groups of the options in --help."""

FORM, SIZES, LIMITS, COMPARISON, QUANTIZATION, FILES = GROUPS


def take_fields(options: object) -> None:
    """Check and convert every field of a frozen dataclass by its metadata."""
    for each in fields(options):  # type: ignore[arg-type]
        option = each.metadata["option"]
        name = option.flag if option.flag and is_for_command() else each.name
        taken = option.take(name, getattr(options, each.name))
        object.__setattr__(options, each.name, taken)


def given_progress(progress: Progress | None) -> Progress | None:
    """Return a callback that a caller gave; its exceptions pass all boundaries unchanged.

    Raises:
        OptionError: It is not a function.
    """
    return None if progress is None else callers(function("progress", progress))


def why_no_arrays(file: str, kinds: str, error: Exception) -> str:
    """Return why a file gives no arrays.

    Args:
        file: Its name, as the text begins with it.
        kinds: The endings of the files that would do.
        error: What `numpy.load` raised without pickles.
    """
    text = str(error)
    if isinstance(error, OSError):
        return f"cannot read {file}: {error.strerror or text}"
    if text.startswith("Object arrays"):
        return f"{file} holds Python objects, not numbers"
    if isinstance(error, EOFError) or "pickle" in text:  # it begins as neither
        return f"{file} is no {kinds} file"
    return f"cannot read {file}: {text}"


def changed_options(shown: Any) -> str:
    """The `repr` of options: those that are not the default, as they are typed."""
    usual = type(shown)()
    texts = {field.name: repr(getattr(shown, field.name)) for field in fields(shown)}
    given = (f"{name}={text}" for name, text in texts.items() if text != repr(getattr(usual, name)))
    return f"{type(shown).__name__}({', '.join(given)})"


def with_keywords(given: T, options: Mapping[str, Any]) -> T:
    """Return options with keywords, which take precedence; None counts as none."""
    return replace(given, **{name: value for name, value in options.items() if value is not None})  # type: ignore[type-var]
