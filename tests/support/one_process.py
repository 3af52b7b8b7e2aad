"""Child processes for tests: starting Python takes longest, so they are kept, or none is started."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from rnn_lowering.child import Child, Message
from rnn_lowering.compare.runs import runner, worker
from rnn_lowering.model import onnx_checks


class Kept:
    """A `Child` whose process waits for the next owner when it ends, unless it is in the middle of a job.

    To its owner it is a new one; a process that dies is not replaced.
    """

    waiting: ClassVar[dict[tuple[Any, ...], list[Child]]] = {}
    """By module and environment."""

    def __init__(self, module: str) -> None:
        given = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        self._kept = self.waiting.setdefault((module, *sorted(given.items())), [])
        self._child = self._kept.pop() if self._kept else Child(module)
        self.jobs, self._works = 0, False

    def tell(self, job: Message) -> None:
        self.jobs += 1
        self._child.tell(_absolute(job))

    def ask(self, job: Message, seconds: float | None) -> Iterator[Message]:
        self.jobs += 1
        self._works = True
        yield from self._child.ask(_absolute(job), seconds)
        self._works = False

    def end(self) -> None:
        if self._works:
            self._child.end()
        else:
            self._kept.append(self._child)

    @classmethod
    def end_all(cls) -> None:
        for child in (child for kept in cls.waiting.values() for child in kept):
            child.end()
        cls.waiting.clear()


def _absolute(job: Message) -> Message:
    """Return a job that names files from the root on: the process may have started in another folder."""
    return {**job, **{name: str(Path(job[name]).absolute()) for name in ("model", "data") if name in job}}


def keep_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what the package does in child processes be done in those that earlier tests started."""
    monkeypatch.setattr(runner, "Child", Kept)
    monkeypatch.setattr(onnx_checks, "Child", Kept)


class Here:
    """What `Child` does, in this process, which a crash would end; nothing here times out."""

    jobs = 0

    def __init__(self, module: str) -> None:
        """It is `worker`."""

    def tell(self, job: Message) -> None:
        list(worker.do(dict(job)))

    def ask(self, job: Message, seconds: float | None) -> Iterator[Message]:
        return worker.do(dict(job))

    def end(self) -> None:
        """There is nothing to end."""


def run_workers_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the jobs of a verification be done in this process."""
    monkeypatch.setattr(runner, "Child", Here)
    for name, setting in worker.NEW_OPSETS.items():
        monkeypatch.setenv(name, setting)
