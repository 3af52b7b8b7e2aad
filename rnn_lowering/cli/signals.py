"""Signals that ask the command to end: one line, an exit code of 128 + the signal's number, and nothing is left."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from rnn_lowering.files.uninterrupted import ENDING


class Interrupted(KeyboardInterrupt):
    """A signal asks the command to end; `code` is its exit code."""

    def __init__(self, number: int) -> None:
        self.code = 128 + number  # as shells say of what a signal ends
        super().__init__()


def end_at_once(number: int, _: FrameType | None) -> None:
    """End the process, which has nothing to tidy up yet: an exception in the middle of an import may be lost."""
    sys.stderr.write("rnn-lower: interrupted; nothing was written\n")
    sys.stderr.flush()
    os._exit(Interrupted(number).code)


def listen() -> None:
    """Let these signals end the process at once; what it was told to ignore (nohup) stays ignored."""
    for number in ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, end_at_once)


@contextmanager
def unwinding() -> Iterator[None]:
    """Let these signals raise `Interrupted` in the block instead, so that every folder and process that it has made
    goes with it. After the first, and after the block, they are ignored. Where nothing listens, nothing changes."""
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
