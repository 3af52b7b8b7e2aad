"""The command in this process or in one of its own, and the models that it is given."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import pytest
from cases import Case, model
from chains import Link
from faults import gates
from one_process import run_workers_here
from paths import SRC
from planting import Planting
from texts import parse

from rnn_lowering.cli.command import main

SYMBOLIC = Case("cli_symbolic", "LSTM", x="symbolic")
STATIC = Case("cli_static", "GRU")
DISPUTED = Case("cli_disputed", "RNN", {"activations": ["Affine"]})
THREE = (
    Link("LSTM", "/encoder/lstm"),
    Link("GRU", "/decoder/gru", {"direction": "bidirectional"}),
    Link("RNN", "/decoder/rnn"),
)


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        """What stdout got, without blank lines."""
        return [line for line in self.out.splitlines() if line]


Command = Callable[..., Outcome]


def child(*arguments: object, code: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """`python -m rnn_lowering`, or a script that gets these arguments, in a process of its own."""
    command = ["-c", code] if code else ["-m", "rnn_lowering"]
    return subprocess.run(
        [sys.executable, *command, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(SRC), **environment},
    )


def saved(path: Path, proto: onnx.ModelProto) -> Path:
    onnx.save(proto, path)
    return path


def without_recurrent_nodes() -> onnx.ModelProto:
    model = parse("plain (float[n] a) => (float[n] b) { b = Relu (a) }")
    model.producer_name = "a test"
    return model


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def cells(line: str) -> list[str]:
    return line.split()


def table(outcome: Outcome, first: str) -> list[list[str]]:
    """The rows of the table whose header starts so, by the columns in which its titles begin."""
    start = next(n for n, line in enumerate(outcome.lines) if line.split()[:1] == [first])
    header = outcome.lines[start]
    columns = [match.start() for match in re.finditer(r"(?<!\S)\S+(?: \S+)*", header)]
    ends = [*columns[1:], None]
    rows = []
    for line in outcome.lines[start:]:
        if not line.startswith(" "):
            break
        rows.append([line[a:b].strip() for a, b in zip(columns, ends, strict=True)])
    return rows


def assert_refused(outcome: Outcome, *facts: str) -> None:
    """One line on stderr that states the facts, nothing on stdout."""
    assert outcome.code == 1
    assert outcome.lines == []
    assert outcome.err.startswith("rnn-lower: error: ")
    assert outcome.err.count("\n") == 1
    assert outcome.err.endswith("\n")
    for fact in facts:
        assert fact in outcome.err


@pytest.fixture
def rnn_lower(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """The command, in this process."""
    run_workers_here(monkeypatch)
    monkeypatch.setenv("COLUMNS", "1000")  # each row of a table is one line

    def call(*arguments: object) -> Outcome:
        try:
            code: Any = main([str(argument) for argument in arguments])
        except SystemExit as end:
            code = end.code
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return call


@pytest.fixture
def wrong_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every LSTM be lowered with i and f exchanged."""
    gates("LSTM", 3, lambda op, i, o, f: [f, o, i])(Planting(monkeypatch))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """The file of an LSTM of any length and batch size."""
    return saved(tmp_path / "in.onnx", model(SYMBOLIC, 17))
