"""The options of opened axes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rnn_lowering.argument_checks import SIZES


@dataclass(frozen=True)
class OpeningOptions:
    """Which axes to open.

    Attributes:
        open_dims: Axes of inputs whose size the exporter fixed, as "X:1", and the names that their sizes get.
            Numbers in the model that were derived from such a size are adapted. If a number may mean something
            else, the model is refused.
    """

    open_dims: Mapping[str, str] = SIZES.option(
        "--open-dim INPUT:AXIS=NAME",
        "name",
        {},
        "make a fixed axis dynamic; numbers derived from its size are adapted, or the model is refused",
    )
