"""Signals that end the command: it prints one line, leaves no files and exits with 128 + the signal's number."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from rnn_lowering.files.uninterrupted import ENDING


class Interrupted(KeyboardInterrupt):
    """A signal ended the command; `code` is its exit code."""

    def __init__(self, number: int) -> None:
        self.code = 128 + number  # as in shells
        super().__init__()


def end_at_once(number: int, _: FrameType | None) -> None:
    """End the process, which has nothing to clean up yet; an exception during an import could be lost."""
    sys.stderr.write("rnn-lower: interrupted; nothing was written\n")
    sys.stderr.flush()
    os._exit(Interrupted(number).code)


def listen() -> None:
    """Let these signals end the process at once; ignored ones (nohup) stay ignored."""
    for number in ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, end_at_once)


@contextmanager
def unwinding() -> Iterator[None]:
    """Let these signals raise `Interrupted` in the block, so that its folders and processes are removed.

    After the first signal and after the block they are ignored. Without a call of `listen` nothing changes.
    """
    ours = [number for number in ENDING if signal.getsignal(number) is end_at_once]

    def ignore() -> None:
        for number in ours:
            signal.signal(number, signal.SIG_IGN)

    def unwind(number: int, _: FrameType | None) -> None:
        ignore()
        raise Interrupted(number)

    try:
        for number in ours:
            signal.signal(number, unwind)
        yield
    finally:
        ignore()
