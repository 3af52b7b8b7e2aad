"""Writing files at once or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rnn_lowering.errors import ModelFileError


@contextmanager
def temporary_beside(destination: Path) -> Iterator[Path]:
    """Yield a path in a new folder beside `destination`; the files written there move beside `destination` when
    the block succeeds, and vanish when it does not.

    Raises:
        ModelFileError: The folder does not exist or cannot be written.
    """
    moved: list[Path] = []
    try:
        if destination.is_dir():
            raise IsADirectoryError("it is a folder")
        with tempfile.TemporaryDirectory(prefix=".rnn-lower-", dir=destination.parent) as folder:
            yield Path(folder) / destination.name
            for path in sorted(Path(folder).iterdir(), key=lambda p: p.name == destination.name):
                target = destination.parent / path.name
                moved += [] if target.exists() else [target]
                os.replace(path, target)
    except (OSError, ValueError) as error:
        for target in moved:
            target.unlink(missing_ok=True)
        reason = getattr(error, "strerror", None) or error
        raise ModelFileError(f"cannot write '{destination}': {reason}") from error
