"""Standard streams that are closed, full or no longer read."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rnn_lowering.errors import RnnLoweringError


def open_closed() -> None:
    """Open the standard streams that are closed, or a model file would get their number: printing to stdout still
    fails, messages for stderr go nowhere."""
    for number, mode in enumerate((os.O_WRONLY, os.O_RDONLY, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, mode)
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


@contextmanager
def printing(fact: str = "") -> Iterator[None]:
    """Print in the block, and be sure that all of that has left.

    Args:
        fact: What is so although it cannot be printed.

    Raises:
        RnnLoweringError: stdout is closed, full, or nobody reads it.
    """
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())  # what is left to print would fail again when the process ends
        os.close(nowhere)
        raise RnnLoweringError(f"cannot print: {error.strerror or error}", hint=fact) from error
