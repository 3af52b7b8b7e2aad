"""Progress of long work: one callback for writing and for verifying."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Protocol

from rnn_lowering import arguments
from rnn_lowering.boundary import callers


class Progress(Protocol):
    """Called as progress(phase, done, total) when a phase begins (done = 0) and after each tensor or run."""

    def __call__(self, phase: str, done: int, total: int, /) -> None: ...


WRITING = "writing tensors"
ORIGINAL = "running the original"
LOWERED = "running the lowered model"
NODES = "running each node"
CHUNKS = "running the stream chunk by chunk"


def given_progress(progress: Progress | None) -> Progress | None:
    """Return a callback that a caller gave; its exceptions pass all boundaries unchanged.

    Raises:
        OptionError: It is no function.
    """
    return None if progress is None else callers(arguments.function("progress", progress))


def counter(progress: Progress | None, phase: str, total: int) -> Callable[[], None]:
    """Report the start of a phase; return a function to call after each of its `total` parts."""
    if progress is None:
        return lambda: None
    report, done = progress, count(1)
    report(phase, 0, total)
    return lambda: report(phase, next(done), total)
