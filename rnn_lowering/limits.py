"""One memory limit for everything a model makes us compute."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path

from rnn_lowering.flags import spelled

MOST_BYTES = 1 << 28
"""The default limit in bytes, for one computed constant and for the inputs of one test run."""

RUN_FACTOR = 16
"""A test run may take this many times the limit, plus the weights: it holds many tensors."""

_most: ContextVar[int] = ContextVar("most", default=MOST_BYTES)


@contextmanager
def limited(most: int) -> Iterator[None]:
    """Set the limit in bytes for the block."""
    token = _most.set(most)
    try:
        yield
    finally:
        _most.reset(token)


def most_bytes() -> int:
    """Return the limit in bytes."""
    return _most.get()


def limit_memory(more: int) -> None:
    """Cap this process at its current memory plus `more` bytes (Linux)."""
    with suppress(ImportError, OSError, ValueError, IndexError):
        import resource

        current = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        soft = min(current + more, 2**62)
        resource.setrlimit(resource.RLIMIT_DATA, (soft if hard < 0 else min(soft, hard), hard))


def excess(what: str, needed: int, most: int | None = None) -> str:
    """Return an error message if `what` needs more bytes than the limit, else ""."""
    limit = most_bytes() if most is None else most
    if needed <= limit:
        return ""
    return f"{what} would need {_size(needed)}, more than the limit of {_size(limit)} {spelled('(--max-bytes)')}"


def _size(number: int) -> str:
    if number >= 10**18:
        return "more than a billion GB"
    for unit, size in (("GB", 10**9), ("MB", 10**6)):
        if number >= size:
            return f"{number / size:,.1f} {unit}"
    return f"{number:,} bytes"
