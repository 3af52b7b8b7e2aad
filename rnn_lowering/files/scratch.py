"""Temporary folders, removed when their block ends, and steps that signals cannot interrupt.

The command imports it first: it needs no library.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rnn_lowering.errors import ModelFileError

_FULL = {errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)}
"""The errors of a full disk; they do not always name a file."""

_folders: set[Path] = set()
"""The folders that may exist: added before they are made, removed after they are deleted."""


@contextmanager
def scratch_folder(output: Path | None = None) -> Iterator[Path]:
    """Yield a new folder that only this user can read; after the block it is removed with its content.

    Args:
        output: A file that will be written: the folder is hidden and beside it, so that a file in it can be renamed
            to `output`. None: the folder is in the system's folder for temporary files.

    Raises:
        ModelFileError: The folder or a file in it cannot be written.
    """
    parent, prefix = (output.parent, ".rnn-lower-") if output else (_temporary(), "rnn-lower-")
    folder = parent / f"{prefix}{os.urandom(8).hex()}"
    _folders.add(folder)  # before it exists: an interrupt may come between any two steps
    try:
        with writing(output or folder):
            folder.mkdir(mode=0o700)
        yield folder
    except OSError as error:
        if error.errno not in _FULL and folder not in Path(str(error.filename), "x").parents:
            raise
        hint = "" if output else "the environment variable TMPDIR names the folder for temporary files"
        raise cannot_write(output or folder, error, hint) from error
    finally:
        _remove(folder)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError of the block into the error for a file that cannot be written."""
    try:
        yield
    except ModelFileError:
        raise
    except OSError as error:
        raise cannot_write(path, error) from error


def cannot_write(path: Path, error: Exception, hint: str = "") -> ModelFileError:
    """Return the error for a file that cannot be written."""
    return ModelFileError(f"cannot write '{path}': {getattr(error, 'strerror', None) or error}", hint=hint)


def remove_scratch() -> None:
    """Remove every folder that is left because its block was interrupted; called when a command ends."""
    for folder in list(_folders):
        _remove(folder)


def _temporary() -> Path:
    try:
        return Path(tempfile.gettempdir()).absolute()
    except OSError as error:
        raise ModelFileError(f"no folder for temporary files: {error.strerror}", hint="set TMPDIR") from error


def _remove(folder: Path) -> None:
    for _ in range(20):  # a process that is ending may still write into it
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):  # takes fewer descriptors, where there are too many open files
            for name in os.listdir(folder):
                os.unlink(folder / name)
            folder.rmdir()
        if not folder.exists():
            break
        time.sleep(0.05)
    _folders.discard(folder)


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
