"""Replacing files atomically, a model together with its data file."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

from rnn_lowering.files.locations import rename_data
from rnn_lowering.files.outputs import Place, refuse_unwritable
from rnn_lowering.files.scratch import scratch_folder, writing
from rnn_lowering.files.uninterrupted import uninterrupted

_PATIENCE = 10.0
"""Seconds to wait for another process that replaces a file of the same folder; then both go on."""


@contextmanager
def replacing(place: Place, *, overwrite: bool = False) -> Iterator[Path]:
    """Yield a path in a new folder beside the place. If the block succeeds, the file written there gets its place;
    otherwise it is removed.

    After each step the model is either the old one with its old data or the new one with its new data: the new
    data file gets an unused name, then the new model replaces the old one, then the old data file is removed.
    Processes that replace the same file do so one after another.

    Args:
        place: The file to write, and the name of the data file that the block writes beside the yielded path.
        overwrite: Whether the file may be replaced.

    Raises:
        ModelFileError: A file cannot be written, or exists; nothing has changed.
    """
    path = place.path
    with scratch_folder(path) as folder:
        written = folder / path.name
        yield written
        with _alone(path.parent), uninterrupted():
            refuse_unwritable(path, overwrite=overwrite)
            outdated = place.outdated() if overwrite else []
            if place.data is not None and (folder / place.data).exists():
                _replace_both(written, place, place.data, overwrite)
            else:
                with writing(path):
                    os.replace(written, path)
            for file in outdated:
                with suppress(OSError):
                    file.unlink()


def _replace_both(written: Path, place: Place, data: str, overwrite: bool) -> None:
    path, now = place.path, place.unused(data) if overwrite else data
    target = path.with_name(now)
    refuse_unwritable(target, overwrite=False)
    with writing(target):
        if now != data:  # another process has taken the name meanwhile
            rename_data(written, data, now)
        os.replace(written.with_name(data), target)
    try:
        with writing(path):
            os.replace(written, path)
    except BaseException:
        if written.exists():
            target.unlink(missing_ok=True)
        raise


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep other processes from replacing files of a folder, where the system locks folders (not on Windows)."""
    with ExitStack() as held:
        with suppress(ImportError, OSError):
            import fcntl

            number = os.open(folder, os.O_RDONLY)
            held.callback(os.close, number)
            until = time.monotonic() + _PATIENCE
            while not _locked(partial(fcntl.flock, number, fcntl.LOCK_EX | fcntl.LOCK_NB)):
                if time.monotonic() > until:
                    break
                time.sleep(0.01)
        yield


def _locked(lock: Callable[[], None]) -> bool:
    try:
        lock()
    except BlockingIOError:
        return False
    return True
