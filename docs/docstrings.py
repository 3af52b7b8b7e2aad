"""Lets the Python reference show the options as `help` does, and link the names that docstrings mention."""

import re
from typing import Any

import griffe

import rnn_lowering as rl


class OptionTexts(griffe.Extension):
    """Gives each kind of options the docstring that it has at run time."""

    def on_class_instance(self, *, cls: griffe.Class, **_: Any) -> None:
        if cls.name in ("Lowering", "Check") and cls.docstring:
            cls.docstring.value = getattr(rl, cls.name).__doc__


class Links(griffe.Extension):
    """Links each public name that stands in a docstring; errors that share a line become one each."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            lines = re.sub(_SHARED, _apart, obj.docstring.value)
            obj.docstring.value = re.sub(rf"`({'|'.join(rl.__all__)})`", r"[`\1`][rnn_lowering.\1]", lines)


_SHARED = re.compile(r"^( *)((?:\w+Error, )+\w+Error): (.*(?:\n\1 +.*)*)", re.MULTILINE)


def _apart(line: re.Match[str]) -> str:
    return "\n".join(f"{line[1]}{name}: {line[3]}" for name in line[2].split(", "))
