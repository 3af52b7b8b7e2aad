"""Folders for what is written on the way: gone when their block ends, however it ends."""

from __future__ import annotations

import errno
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rnn_lowering.errors import ModelFileError

_FULL = {errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)}
"""What a full disk answers; such an error does not always name a file."""

_held: set[Path] = set()
"""Every folder that may exist, from before it is made until after it is gone."""


@contextmanager
def scratch_folder(output: Path | None = None) -> Iterator[Path]:
    """Yield a new folder that only this user can read, and remove it with all that it holds.

    Args:
        output: A file that is to be written: the folder is beside it and hidden, so that what is written in the
            folder can be renamed. None: a folder for temporary files.

    Raises:
        ModelFileError: The folder or a file in it cannot be written.
    """
    parent, prefix = (output.parent, ".rnn-lower-") if output else (_temporary(), "rnn-lower-")
    folder = parent / f"{prefix}{secrets.token_hex(8)}"
    _held.add(folder)  # before it exists: an interrupt may come between any two steps
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
    except OSError as error:
        raise cannot_write(path, error) from error


def cannot_write(path: Path, error: Exception, hint: str = "") -> ModelFileError:
    """Return the error for a file that cannot be written."""
    return ModelFileError(f"cannot write '{path}': {getattr(error, 'strerror', None) or error}", hint=hint)


def has_scratch() -> bool:
    """Whether a folder may exist that is to be removed."""
    return bool(_held)


def remove_scratch() -> None:
    """Remove every folder whose block an interrupt has kept from doing so: the last thing that a command does."""
    for folder in list(_held):
        _remove(folder)


def _temporary() -> Path:
    try:
        return Path(tempfile.gettempdir()).absolute()
    except OSError as error:
        raise ModelFileError(f"no folder for temporary files: {error.strerror}", hint="set TMPDIR") from error


def _remove(folder: Path) -> None:
    for _ in range(20):  # a process that is being ended may still write into it
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            break
        time.sleep(0.05)
    _held.discard(folder)
