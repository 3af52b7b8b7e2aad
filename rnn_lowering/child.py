"""A child process that runs jobs: native code may crash or hang it, and the caller continues.

Its program, `python -m rnn_lowering.child MODULE`, runs a module that does jobs: that calls `serve`. A message is a
line of JSON, followed by as many bytes as its "size" says. The child ends when its stdin is closed, even in the
middle of a job.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from runpy import run_module
from typing import IO, Any

from rnn_lowering.libraries import load_late

Message = dict[str, Any]
"""A value that JSON has, or bytes as "payload"."""

_START = 60.0
"""The fewest seconds that a child gets to start Python and import what its jobs need."""


class ChildError(Exception):
    """A child has died, or takes too long.

    Attributes:
        late: It takes too long.
        exit: Its exit code; None if it takes too long.
    """

    def __init__(self, exit_code: int | None = None) -> None:
        self.late, self.exit = exit_code is None, exit_code
        super().__init__("takes too long" if self.late else f"died (exit {exit_code})")


class Child:
    """A process that runs a module.

    Its messages are read in a thread, since not every operating system can wait for a pipe with a time limit.

    Attributes:
        process: The process.
        jobs: The number of jobs that were sent.
    """

    def __init__(self, module: str) -> None:
        pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
        command = [sys.executable, "-m", __name__, module]
        self.jobs, self._is_ready = 0, False
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=nowhere, env=_environment())
        self._messages: SimpleQueue[Message | None] = SimpleQueue()
        self._reader = threading.Thread(target=self._receive, daemon=True)
        self._reader.start()

    def tell(self, job: Message) -> None:
        """Send a job whose messages are not asked for."""
        self.jobs += 1
        assert self.process.stdin is not None
        with suppress(OSError):  # it has died, and its messages end
            _write(self.process.stdin, {**job, "job": self.jobs})

    def ask(self, job: Message, seconds: float | None) -> Iterator[Message]:
        """Send a job; yield the messages about it, without the last, which is "done".

        Args:
            job: What to do, as the module describes it.
            seconds: How long each message may take; None for no limit.

        Raises:
            ChildError: A message did not come in time, or never will.
        """
        if not self._is_ready:
            self._next(None if seconds is None else max(seconds, _START))
            self._is_ready = True
        self.tell(job)
        number = self.jobs
        while not (message := self._next(seconds)).get("done") or message["job"] < number:
            if message["job"] == number:  # an earlier one's messages need not have been read to the end
                yield message

    def _next(self, seconds: float | None) -> Message:
        try:
            message = self._messages.get(timeout=seconds)
        except Empty:
            raise ChildError from None
        if message is None:
            raise ChildError(self.process.wait())
        return message

    def _receive(self) -> None:
        assert self.process.stdout is not None
        for message in _messages(self.process.stdout):
            self._messages.put(message)
        self._messages.put(None)

    def end(self) -> None:
        """Kill the process, whatever it does, and wait for its end."""
        self.process.kill()
        self.process.wait()
        self._reader.join()
        for pipe in (self.process.stdin, self.process.stdout):
            with suppress(OSError):  # what was still to be written no longer can be
                pipe and pipe.close()


class ChildOwner:
    """What lets a child do jobs: it may end it at any time, and start another one for the next job."""

    _child: Child | None = None

    def end_child(self) -> None:
        """End the child, if there is one."""
        if self._child is not None:
            self._child.end()
            self._child = None


def serve(do: Callable[[Message], Iterator[Message]], prepare: Callable[[], object] = lambda: None) -> None:
    """Serve the jobs that come by stdin. The first message says that the process is ready.

    Args:
        do: Yields the messages about a job, without the last.
        prepare: Called before the first job, for work that takes long.
    """
    answers = os.fdopen(os.dup(1), "wb")  # native code may print to the descriptor that was stdout
    os.dup2(2, 1)
    jobs: SimpleQueue[Message] = SimpleQueue()
    threading.Thread(target=_take, args=(jobs,), daemon=True).start()
    prepare()
    _write(answers, {"ready": True})
    while True:
        job = jobs.get()
        for message in do(job):
            _write(answers, {**message, "job": job["job"]})
        _write(answers, {"done": True, "job": job["job"]})


def _take(jobs: SimpleQueue[Message]) -> None:
    for job in _messages(sys.stdin.buffer):
        jobs.put(job)
    os._exit(0)


def _write(pipe: IO[bytes], message: Message) -> None:
    payload = message.get("payload", b"")
    rest = {key: value for key, value in message.items() if key != "payload"}
    pipe.write(json.dumps({**rest, "size": len(payload)}).encode() + b"\n" + payload)
    pipe.flush()


def _messages(pipe: IO[bytes]) -> Iterator[Message]:
    """Yield the messages of a pipe until it ends, whole ones only."""
    while line := pipe.readline():
        with suppress(ValueError):  # a line that was cut off
            message = json.loads(line)
            payload = pipe.read(message["size"])
            if len(payload) == message["size"]:
                yield {**message, "payload": payload}


def _environment() -> dict[str, str]:
    inherited = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *inherited])}


if __name__ == "__main__":
    load_late()
    run_module(sys.argv[1], run_name="__main__")
