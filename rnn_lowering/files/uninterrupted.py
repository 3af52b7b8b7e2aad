"""Steps that a signal must not interrupt."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

ENDING = tuple(
    number for name in ("SIGINT", "SIGTERM", "SIGHUP") if (number := getattr(signal, name, None)) is not None
)
"""The signals that ask a program to end."""


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Delay signals that ask the program to end until the end of the block. Python handles signals in the main
    thread only, so in other threads nothing is needed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    handlers = {number: handler for number in ENDING if (handler := signal.getsignal(number)) is not None}
    try:
        for number in handlers:
            signal.signal(number, lambda arrived, _: came.append(arrived))
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number in came:
            signal.raise_signal(number)
