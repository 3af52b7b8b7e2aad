"""Verification without processes of its own, for tests that look at its answers: starting Python takes longest."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from rnn_lowering import worker

_run = subprocess.run


def run_workers_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `python -m rnn_lowering.worker FOLDER` run in this process, which a crash would end."""

    def run(command: list[Any], *args: Any, **options: Any) -> Any:
        if list(command[1:3]) != ["-m", "rnn_lowering.worker"]:
            return _run(command, *args, **options)
        worker.main(Path(command[3]))
        return subprocess.CompletedProcess(command, 0, b"", b"")

    monkeypatch.setattr(subprocess, "run", run)
