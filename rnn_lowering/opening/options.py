"""The options of opened axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rnn_lowering import argument_checks
from rnn_lowering.argument_checks import SIZES
from rnn_lowering.errors import OptionError
from rnn_lowering.types import ModelOrPath


def _exports(name: str, given: Any) -> tuple[ModelOrPath, ...]:
    """Take models or paths, several or one."""
    several = given if isinstance(given, list | tuple) else (given,)
    return tuple(argument_checks.model_or_path(name, each) for each in several)


@dataclass(frozen=True)
class OpeningOptions:
    """Which axes to open.

    Attributes:
        open_dims: Axes of inputs whose size the exporter fixed, as "X:1", and the names that their sizes get.
            Example: `open_dims={"X:1": "time"}`.
        also: The same net, exported at larger sizes of these axes: models or paths. What differs between the
            exports must follow from a size, or the model is refused. Example: `open_dims={"X:1": "time"},
            also="long.onnx"`.
    """

    open_dims: Mapping[str, str] = SIZES.option(
        "--open-dim INPUT:AXIS=NAME",
        "name",
        {},
        "make a fixed axis dynamic; numbers derived from its size are adapted, or the model is refused",
    )
    also: Sequence[ModelOrPath] = SIZES.option(
        "--also LONG.onnx",
        "export",
        (),
        "with --open-dim: the same net, exported at a larger size; it decides which numbers are sizes",
        _exports,
    )

    def check_opening(self) -> None:
        """Check that other exports are given for an axis.

        Raises:
            OptionError: No axis is to be opened.
        """
        if self.also and not self.open_dims:
            raise OptionError(
                "another export opens an axis, and none is named", hint="add --open-dim INPUT:AXIS=NAME"
            )
