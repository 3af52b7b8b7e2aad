"""Standard streams that are closed, full or no longer read."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rnn_lowering.errors import RnnLoweringError


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
    except OSError as error:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())  # flushing at the end of the process would fail again
        os.close(nowhere)
        raise RnnLoweringError(f"cannot print: {error.strerror or error}", hint=fact) from error
