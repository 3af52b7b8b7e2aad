"""Replacing files atomically, a model together with its data file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rnn_lowering.files.outputs import refuse_unwritable
from rnn_lowering.files.scratch import scratch_folder, writing
from rnn_lowering.files.uninterrupted import uninterrupted


@contextmanager
def replacing(
    path: Path, data: str | None = None, *, overwrite: bool = False, outdated: Iterable[Path] = ()
) -> Iterator[Path]:
    """Yield a path in a new folder beside `path`. If the block succeeds, the file written there replaces `path`;
    otherwise it is removed.

    After each step `path` is either the old model with its old data or the new model with its new data: the new
    data file gets an unused name, then the new model replaces the old one, then the old data file is removed.

    Args:
        path: The file to write.
        data: The unused name of the model's data file, which the block writes beside the yielded path.
        overwrite: Whether `path` may be replaced.
        outdated: Files to remove when `path` is replaced.

    Raises:
        ModelFileError: A file cannot be written, or exists; nothing has changed.
    """
    with scratch_folder(path) as folder:
        written = folder / path.name
        yield written
        with uninterrupted():
            refuse_unwritable(path, overwrite=overwrite)
            if data is not None and (folder / data).exists():
                refuse_unwritable(path.with_name(data), overwrite=False)
                _replace_both(written, path, data)
            else:
                with writing(path):
                    os.replace(written, path)
            for file in outdated:
                with suppress(OSError):
                    file.unlink()


def _replace_both(written: Path, path: Path, data: str) -> None:
    target = path.with_name(data)
    with writing(target):
        os.replace(written.with_name(data), target)
    try:
        with writing(path):
            os.replace(written, path)
    except BaseException:
        if written.exists():
            target.unlink(missing_ok=True)
        raise
