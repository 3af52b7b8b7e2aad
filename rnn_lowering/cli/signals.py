"""End the command cleanly on signals, and when a standard stream is closed, full or no longer read."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from rnn_lowering.errors import RnnLoweringError
from rnn_lowering.files.scratch import ENDING


class Interrupted(KeyboardInterrupt):
    """A signal ended the command; `code` is its exit code."""

    def __init__(self, number: int) -> None:
        self.code = 128 + number  # as in shells
        super().__init__()


def _end_at_once(number: int, _: FrameType | None) -> None:
    """End the process, which has nothing to clean up yet; an exception during an import could be lost."""
    sys.stderr.write("rnn-lower: interrupted; nothing was written\n")
    sys.stderr.flush()
    os._exit(Interrupted(number).code)


def listen() -> None:
    """End the process at once on signals that ask for it; ignored signals (nohup) stay ignored."""
    for number in ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _end_at_once)


@contextmanager
def unwinding() -> Iterator[None]:
    """Raise `Interrupted` on these signals in the block: its folders and processes are then removed.

    After the first signal and after the block they are ignored. Without a call of `listen` nothing changes.
    """
    ours = [number for number in ENDING if signal.getsignal(number) is _end_at_once]

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


def open_closed() -> None:
    """Open standard streams that are closed, since a model file could get their number otherwise. Printing to such
    a stdout still fails; messages to such a stderr are discarded."""
    for number, mode in enumerate((os.O_WRONLY, os.O_RDONLY, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, mode)
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


@contextmanager
def printing(fact: str = "") -> Iterator[None]:
    """Flush what the block prints, so that an error is noticed.

    Args:
        fact: Added to the error: what was done although it cannot be printed.

    Raises:
        RnnLoweringError: stdout is closed or full, or its reader has ended.
    """
    try:
        yield
        sys.stdout.flush()
    except RnnLoweringError:
        raise
    except OSError as error:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())  # flushing at the end of the process would fail again
        os.close(nowhere)
        raise RnnLoweringError(f"cannot print: {error.strerror or error}", hint=fact) from error
