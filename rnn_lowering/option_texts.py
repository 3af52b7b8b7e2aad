"""The attributes of a kind of options in its docstring, and in those of functions that take them as keywords."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable
from dataclasses import MISSING, fields
from inspect import cleandoc
from typing import Any, TypeVar

T = TypeVar("T")

Function = TypeVar("Function", bound=Callable[..., Any])

_WIDTH = 110

_TYPES = {
    **dict.fromkeys(("FormName", "TargetName", "ComputeName"), "str"),
    "Selection": "str | Iterable[str] | function",
    "SizeOrSizes": "int | tuple[int, ...]",
    "Shapes": "Mapping[str, Sequence[int]]",
    "StreamAxis": "str | Mapping[str, int | None]",
    "ModelOrPath": "model | path",
    "PathLike": "path",
    "ArrayLike": "array | number",
    "Array": "array",
}
"""Names of types that only the package knows, as its users call them."""

_SECTION = re.compile(r"^Attributes:\n((?:(?: .*)?(?:\n|\Z))*)", re.MULTILINE)
_ENTRY = re.compile(r"^    (\w+): (.*(?:\n {8}.*)*)", re.MULTILINE)


def attribute_texts(kind: type) -> dict[str, str]:
    """Return what the docstring of a kind of options, and those of its parts, say about each attribute.

    A text ends with an example.
    """
    found = [_SECTION.search(cleandoc(each.__doc__ or "")) for each in kind.__mro__ if each is not object]
    return {
        name: " ".join(text.split()) for section in found if section for name, text in _ENTRY.findall(section[1])
    }


def with_attributes(kind: type[T]) -> type[T]:
    """Let the docstring of a kind of options have each attribute with its type, its default and its text."""
    if kind.__doc__:  # Python leaves docstrings out if it is asked to
        kind.__doc__ = _with_section(_SECTION.sub("", cleandoc(kind.__doc__)), f"Attributes:\n{_entries(kind)}")
    return kind


def with_keywords_of(kind: type) -> Callable[[Function], Function]:
    """Return a decorator: the docstring of a function has the attributes of a kind of options as keywords."""

    def decorate(function: Function) -> Function:
        if function.__doc__:
            function.__doc__ = _with_section(cleandoc(function.__doc__), f"Keyword Args:\n{_entries(kind)}")
        return function

    return decorate


def _with_section(text: str, section: str) -> str:
    """Return a docstring with a section before what it returns, raises or shows."""
    place = re.search(r"^(Returns|Raises|Examples):$", text, re.MULTILINE)
    end = place.start() if place else len(text)
    return f"{text[:end].rstrip()}\n\n{section}\n\n{text[end:]}".rstrip() + "\n"


def plain_type(name: object) -> str:
    """Return a type as the users of the package call it."""
    return re.sub(r"\w+", lambda word: _TYPES.get(word[0], word[0]), str(name))


def _entries(kind: type[Any]) -> str:
    texts, lines = attribute_texts(kind), []
    for each in fields(kind):
        type_ = plain_type(each.type)
        default = {} if each.default is MISSING else each.default
        text, colon, example = texts[each.name].rpartition("Example:")
        text = f"{each.name} ({type_}): {text}Default: `{default!r}`. {colon}{example}"
        lines.append(textwrap.fill(text, _WIDTH, initial_indent=" " * 4, subsequent_indent=" " * 8))
    return "\n".join(lines)
