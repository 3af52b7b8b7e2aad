"""How far long work has come: what the callback is told, and the bar on a terminal."""

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from chains import Link, chain
from one_process import run_workers_here
from paths import SRC
from thinning import thinned

import rnn_lowering as rl

TWO = (Link("LSTM", "first", hidden=16), Link("GRU", "second", hidden=16))
Calls = list[tuple[str, int, int]]


def counted(phase: str, total: int) -> Calls:
    return [(phase, done, total) for done in range(total + 1)]


RUNS = (
    counted("running the original", 3) + counted("running the lowered model", 3) + counted("running each node", 2)
)


@pytest.mark.few(1)
@pytest.mark.parametrize("processes", ["here", "of their own"])
def test_the_runs_of_a_verification(processes: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if processes == "here":
        run_workers_here(monkeypatch)
    original = chain(*TWO)
    calls: Calls = []
    assert rl.verify(original, rl.lower(original), progress=lambda *call: calls.append(call))
    assert calls == RUNS


def test_tensors_and_runs_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_workers_here(monkeypatch)
    onnx.save(chain(*TWO), tmp_path / "in.onnx")
    calls: Calls = []

    def progress(*call: Any) -> None:
        calls.append(call)

    rl.lower_file(tmp_path / "in.onnx", tmp_path / "out.onnx", external_data="always", progress=progress)
    written = [call for call in calls if call[0] == "writing tensors"]
    assert len(written) > 1
    assert [done for _, done, _ in written] == list(range(1, len(written) + 1))
    assert {total for *_, total in written} == {len(written)}
    assert calls == counted("reading", 1) + counted("lowering", 1) + written + RUNS


@pytest.mark.usefixtures("own_processes")
def test_an_interrupt_ends_the_process_that_runs(started: list[subprocess.Popen[bytes]]) -> None:
    def interrupt(_: str, done: int, total: int) -> None:
        if done:
            raise KeyboardInterrupt

    original = chain(*TWO)
    feeds = [{"X": np.zeros((50, 20, 3), np.float32)}] * 300
    with pytest.raises(KeyboardInterrupt):
        rl.verify(original, rl.lower(original), feeds=feeds, progress=interrupt)
    (process,) = started
    assert process.returncode == -signal.SIGKILL


SLOW = """
import sys, time
from rnn_lowering.libraries import load_late
load_late()
from rnn_lowering.cli import command as cli
from rnn_lowering.compare.whole import ModelComparison
seconds, result = float(sys.argv.pop()), ModelComparison.result
def slow(comparison):
    if comparison.progress:
        comparison.progress("running the original", 1, 3)
    time.sleep(seconds)
    return result(comparison)
ModelComparison.result = slow
sys.exit(cli.main())
"""


def on_a_terminal(*arguments: object) -> str:
    """What the command writes to a terminal."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": str(SRC), "TERM": "xterm", "COLUMNS": "200"}
    command = [sys.executable, "-c", SLOW, *map(str, arguments)]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        text = b""
        while True:
            try:
                text += (more := os.read(ours, 65536))
            except OSError:  # how Linux says that the other end is closed
                break
            if not more:
                break
    os.close(ours)
    assert process.returncode == 0, text
    return text.decode()


@pytest.mark.parametrize(
    ("options", "shown"),
    thinned([([], True), (["--verify", "0"], False), (["-q"], False)], 3),
    ids=["slow", "fast", "quiet"],
)
def test_the_bar(tmp_path: Path, options: list[str], shown: bool) -> None:
    onnx.save(chain(Link("RNN", "rnn")), tmp_path / "in.onnx")
    text = on_a_terminal(tmp_path / "in.onnx", tmp_path / "out.onnx", *options, 2.0)
    assert ("running the original" in text) == shown
    assert shown or "lowering" not in text
    assert ("33%" in text) == shown
    assert ("written to" in text) == ("-q" not in options)


def test_no_bar_in_a_pipe(tmp_path: Path) -> None:
    onnx.save(chain(Link("RNN", "rnn")), tmp_path / "in.onnx")
    command = [sys.executable, "-c", SLOW, str(tmp_path / "in.onnx"), str(tmp_path / "out.onnx"), "2.0"]
    done = subprocess.run(command, capture_output=True, text=True, env={"PYTHONPATH": str(SRC)}, check=True)
    assert "running" not in done.stdout + done.stderr
