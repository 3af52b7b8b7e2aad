"""Verification without processes of its own, for tests that look at its results: starting Python takes longest."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from rnn_lowering.compare import process, worker


class Here:
    """What `Child` does, in this process, which a crash would end; nothing here times out."""

    jobs = 0

    def __init__(self, module: str) -> None:
        """It is `worker`."""

    def ask(self, job: Mapping[str, Any], seconds: float | None) -> Iterator[Mapping[str, Any]]:
        return worker.do(dict(job))

    def end(self) -> None:
        """There is nothing to end."""


def run_workers_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the jobs of a verification be done in this process."""
    monkeypatch.setattr(process, "Child", Here)
    for name, setting in worker.NEW_OPSETS.items():
        monkeypatch.setenv(name, setting)
