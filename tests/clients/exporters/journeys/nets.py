"""A net as people build them in PyTorch, small, with random weights."""

# mypy: disable-error-code="misc, no-any-return"

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from inputs import LENGTHS, Sizes, Words
from torch import Tensor, nn


@dataclass(frozen=True)
class Net:
    """A net and its inputs.

    Attributes:
        make: Makes it.
        inputs: Its inputs, in order: see inputs.py.
        lengths: The sizes of each run.
        dynamo: The axes that dynamo can open; it fails at others.
    """

    make: Callable[[], nn.Module]
    inputs: Words
    lengths: tuple[Sizes, ...] = LENGTHS
    dynamo: Sequence[str] = ("batch", "time")


class Of(nn.Module):
    """Layers by name, and what they do together."""

    def __init__(self, forward: Callable[..., Any], **layers: Any) -> None:
        super().__init__()
        for name, layer in layers.items():
            setattr(self, name, layer)
        self.run = forward

    def forward(self, *inputs: Tensor) -> Any:
        return self.run(self, *inputs)


BATCH = ("batch",)
"""What dynamo opens of a net whose other axes it fixes."""

WORDS = {"tokens": "<20: batch time"}
ROWS = {"batch": 2, "time": 12}, {"batch": 2, "time": 20}
WAVES = {"batch": 2, "time": 160}, {"batch": 1, "time": 240}
STATES = {"h": "1 batch 8", "c": "1 batch 8"}
