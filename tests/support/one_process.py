"""Verification without processes of its own, for tests that look at its answers: starting Python takes longest."""

from collections.abc import Callable
from pathlib import Path

import pytest

from rnn_lowering.verification import runner as sessions
from rnn_lowering.verification import worker


def run_workers_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `python -m rnn_lowering.verification.worker FOLDER` run in this process, which a crash would end."""

    def work(scratch: Path, ran: Callable[[], None]) -> int:
        worker.main(scratch, ran)
        return 0

    monkeypatch.setattr(sessions, "_work", work)
