"""A process of its own in which models run, since a native kernel may crash or never end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

_START = 60.0
"""Seconds for starting Python and importing onnxruntime, at least."""


_LATE = "timed out after {:g} seconds (raise the limit: --verify-timeout, timeout=; or give smaller inputs)"


class SessionError(Exception):
    """onnxruntime does not load or run the model.

    Attributes:
        crashed: Its process died.
        timed_out: It took longer than the runner's `timeout`.
        too_large: It needs more memory than the limit allows.
    """

    def __init__(
        self, reason: str, *, crashed: bool = False, timed_out: bool = False, too_large: bool = False
    ) -> None:
        self.crashed = crashed
        self.timed_out = timed_out
        self.too_large = too_large
        super().__init__(reason)

    def about(self, what: object) -> SessionError:
        """Return the same error about a part of the model."""
        return SessionError(
            f"{what}: {self}", crashed=self.crashed, timed_out=self.timed_out, too_large=self.too_large
        )

    @property
    def over_limit(self) -> bool:
        """Whether a limit of time or memory ended it: that says nothing of the model."""
        return self.timed_out or self.too_large


class Process:
    """A process that runs `rnn_lowering.verification.worker`.

    Its messages are read in a thread, since not every operating system can wait for a pipe with a time limit.

    Attributes:
        jobs: How many it was given.
    """

    def __init__(self) -> None:
        command = [sys.executable, "-m", "rnn_lowering.verification.worker"]
        pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
        self.jobs = 0
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=nowhere, env=_environment())
        self._messages: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
        self._reader = Thread(target=self._receive, daemon=True)
        self._reader.start()

    def messages(self, job: Mapping[str, Any], timeout: float | None) -> Iterator[dict[str, Any]]:
        """Send a job; yield the messages about it, without the last, which is "done".

        Args:
            job: What to do, as the module `worker` describes it.
            timeout: Seconds that each message may take; None for no limit.

        Raises:
            SessionError: A message did not come in time, or never will.
        """
        if not self.jobs:
            self._next(None if timeout is None else max(timeout, _START))
        self.jobs += 1
        with suppress(OSError):  # it has died, and its messages end
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(job).encode() + b"\n")
            self._process.stdin.flush()
        while not (message := self._next(timeout)).get("done"):
            yield message

    def _next(self, timeout: float | None) -> dict[str, Any]:
        try:
            message = self._messages.get(timeout=timeout)
        except Empty:
            raise SessionError(_LATE.format(timeout), timed_out=True) from None
        if message is None:
            raise SessionError(f"its process died (exit {self._process.wait()})", crashed=True)
        return message

    def _receive(self) -> None:
        for line in self._process.stdout or ():
            self._messages.put(json.loads(line))
        self._messages.put(None)

    def end(self) -> None:
        """Kill the process, whatever it does, and wait for its end."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError):  # what was still to be written no longer can be
                pipe and pipe.close()


def _environment() -> dict[str, str]:
    inherited = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *inherited])}
