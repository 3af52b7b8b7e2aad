"""Lets the Python reference show the options as `help` does."""

from typing import Any

import griffe

import rnn_lowering as rl


class OptionTexts(griffe.Extension):
    """Gives each kind of options the docstring that it has at run time."""

    def on_class_instance(self, *, cls: griffe.Class, **_: Any) -> None:
        if cls.name in ("Lowering", "Check") and cls.docstring:
            cls.docstring.value = getattr(rl, cls.name).__doc__
