"""The last lines of a run say what processor time it took, and which files took most of it."""

import os
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

BUDGET = 210
"""Seconds that the default tests may take on two free cores."""

_files: dict[str, float] = defaultdict(float)
_workers: list[float] = []
_turn: tuple[str, float] = "start and collection", 0.0
"""What this process does, and what it had taken when that began."""


def _seconds() -> float:
    """Of this process and its children; workers say themselves what they took."""
    return sum(os.times()[: 2 if _workers else 4])


def _seconds_so_far() -> float:
    """The same, also of children that live on: one that is kept would count where it ends, with all it ever did."""
    return _seconds() + sum(map(_of_process, _children()))


def _children() -> Iterator[str]:
    for task in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):  # the thread has ended
            yield from task.read_text().split()


def _of_process(number: str) -> float:
    with suppress(OSError):
        fields = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def _turn_to(what: str) -> None:
    """Charge what was done so far, if that is something else: to look for children takes a millisecond."""
    global _turn
    done, began = _turn
    if what != done:
        _turn = what, _seconds_so_far()
        _files[done] += _turn[1] - began


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    _turn_to(item.nodeid.partition("::")[0])


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    if nextitem is None:
        _turn_to("end")


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["processor time"] = [_seconds(), {**_files}]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """A worker of xdist has ended."""
    seconds, files = getattr(node, "workeroutput", {}).get("processor time", (0.0, {}))
    _workers.append(seconds)
    for name, of_file in files.items():
        _files[name] += of_file


def pytest_terminal_summary(terminalreporter: Any) -> None:
    most = sorted(_files, key=_files.__getitem__, reverse=True)[:5]
    slowest = ", ".join(f"{name.removeprefix('tests/')} {_files[name]:.0f}" for name in most)
    total = _seconds() + sum(_workers)
    terminalreporter.write_line(
        f"processor time: {total:.0f} s (the default tests: at most {BUDGET}); most of it: {slowest}"
    )
