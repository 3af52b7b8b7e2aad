"""The command as its user meets it: what it prints, what it writes, and how it exits."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from cases import Array, Case, feed, model
from chains import Link, chain
from one_process import run_workers_here
from onnx import TensorProto, helper
from paths import SRC
from running import assert_close, operators, recurrent_left, run

import rnn_lowering as rl
from rnn_lowering import __main__
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


@pytest.fixture
def rnn_lower(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """The command, in this process."""
    run_workers_here(monkeypatch)

    def call(*arguments: object) -> Outcome:
        try:
            code: Any = main([str(argument) for argument in arguments])
        except SystemExit as end:
            code = end.code
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return call


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
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"]) for name in ("a", "b")]
    graph = helper.make_graph([helper.make_node("Relu", ["a"], ["b"])], "plain", infos[:1], infos[1:])
    return helper.make_model(graph, producer_name="a test", opset_imports=[helper.make_opsetid("", 17)])


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


# What it prints and writes


def test_success(rnn_lower: Command, tmp_path: Path) -> None:
    source, target = saved(tmp_path / "in.onnx", chain(*THREE)), tmp_path / "out.onnx"
    before = source.read_bytes()
    outcome = rnn_lower(source, target)
    assert (outcome.code, outcome.err) == (0, "")
    rows = [cells(line) for line in outcome.lines]
    assert rows[0] == ["node", "operator", "direction", "T", "N", "I", "H", "form"]
    assert rows[1] == ["/encoder/lstm", "LSTM-14", "forward", "?", "?", "3", "4", "scan"]
    assert rows[2] == ["/decoder/gru", "GRU-14", "bidirectional", "?", "?", "4", "4", "scan"]
    assert rows[3] == ["/decoder/rnn", "RNN-14", "forward", "?", "?", "8", "4", "scan"]
    assert ["operator", "before", "after"] in rows
    assert ["LSTM", "1", "0"] in rows
    assert ["Scan", "0", "4"] in rows
    assert not any(row[0] == "Reshape" for row in rows)  # as often as before
    assert re.search(r"^verified.*onnxruntime.*: 3 runs, largest difference \S+$", outcome.out, re.MULTILINE)
    assert outcome.lines[-1] == f"written to {target}"
    assert recurrent_left(onnx.load(target)) == []
    assert files(tmp_path).keys() == {"in.onnx", "out.onnx"}
    assert source.read_bytes() == before


@pytest.mark.parametrize(
    ("case", "to", "form"),
    [
        *[(STATIC, to, to) for to in ("scan", "loop", "unroll")],
        (STATIC, "auto", "scan"),
        (Case("cli_one_step", "LSTM", T=1), "auto", "unroll"),
        (SYMBOLIC, "auto", "scan"),
    ],
)
def test_form(rnn_lower: Command, tmp_path: Path, case: Case, to: str, form: str) -> None:
    source, target = saved(tmp_path / "in.onnx", model(case, 17)), tmp_path / "out.onnx"
    outcome = rnn_lower(source, target, "--to", to, "--no-verify")
    assert outcome.code == 0
    assert cells(outcome.lines[1])[-1] == form
    lowered = onnx.load(target)
    assert ("Scan" in operators(lowered), "Loop" in operators(lowered)) == (form == "scan", form == "loop")
    assert_close(run(lowered, feed(case)), run(onnx.load(source), feed(case)))


def test_auto_is_the_default(rnn_lower: Command, tmp_path: Path) -> None:
    source = saved(tmp_path / "in.onnx", model(STATIC, 8))
    assert rnn_lower(source, tmp_path / "default.onnx", "--no-verify").code == 0
    assert rnn_lower(source, tmp_path / "auto.onnx", "--to", "auto", "--no-verify").code == 0
    written = files(tmp_path)
    assert written["default.onnx"] == written["auto.onnx"]
    assert "Loop" in operators(onnx.load(tmp_path / "auto.onnx"))


def test_list(rnn_lower: Command, tmp_path: Path) -> None:
    source = saved(tmp_path / "in.onnx", chain(*THREE, dims=(6, "batch")))
    outcome = rnn_lower(source, "--list")
    assert (outcome.code, outcome.err) == (4, "")
    lines = outcome.lines
    assert len(lines) == 1 + len(THREE) + 2
    assert lines[-2] == "inputs: X [6, batch, 3]"
    assert lines[-1].startswith("outputs: ")
    for part in ("/decoder/gru", "GRU-14", "main graph", "bidirectional", "?", "4", "float", "Sigmoid, Tanh"):
        assert part in lines[2]
    assert cells(lines[1])[:10] == [
        "/encoder/lstm",
        "LSTM-14",
        "main",
        "graph",
        "forward",
        "6",
        "?",
        "3",
        "4",
        "float",
    ]
    assert files(tmp_path).keys() == {"in.onnx"}


def test_list_shows_nodes_in_subgraphs(rnn_lower: Command, tmp_path: Path) -> None:
    source = saved(tmp_path / "in.onnx", model(Case("cli_in_if", "GRU", scope="if"), 17))
    outcome = rnn_lower(source, "--list")
    assert outcome.code == 4
    assert "then_recurrent" in outcome.out
    assert "main graph > if (If) else_branch" in outcome.out


def test_list_of_none(rnn_lower: Command, tmp_path: Path) -> None:
    source = saved(tmp_path / "in.onnx", without_recurrent_nodes())
    outcome = rnn_lower(source, "--list")
    assert (outcome.code, outcome.err) == (0, "")
    assert "no recurrent nodes" in outcome.out


def test_list_writes_nothing_even_with_an_output(rnn_lower: Command, tmp_path: Path) -> None:
    source = saved(tmp_path / "in.onnx", chain(*THREE))
    assert rnn_lower(source, tmp_path / "out.onnx", "--list").code == 4
    assert files(tmp_path).keys() == {"in.onnx"}


def listed(outcome: Outcome) -> list[tuple[str, str, str]]:
    """T, form and reason of every node of a list."""
    titles, *rows = table(outcome, "node")
    assert [titles[n] for n in (0, 4, 10, 11)] == ["node", "T", "form", "why"]
    return [(row[4], row[10], row[11]) for row in rows]


LEFT = ("?", "left as it is", "not selected")
SCAN = ("?", "scan", "first choice for target portable")
UNKNOWN = ("?", "refused", "the sequence length is not known, so the steps cannot be unrolled")


@pytest.mark.parametrize(
    ("options", "rows"),
    [
        ([], [SCAN] * 3),
        (["--to", "loop"], [("?", "loop", "requested")] * 3),
        (["--to", "unroll"], [UNKNOWN] * 3),
        (["--to", "unroll", "--set-dim", "seq=9"], [("9", "unroll", "requested")] * 3),
        (["--set-dim", "seq=1"], [("1", "unroll", "sequence length 1 needs no loop")] * 3),
        (["--to", "unroll", "--input-shape", "X:5,2,3"], [("5", "unroll", "requested")] * 3),
        (
            ["--to", "unroll", "--set-dim", "seq=9", "--max-unroll", "8"],
            [("9", "refused", "9 steps are more than the limit of 8 for unrolling")] * 3,
        ),
        (["--only", "LSTM"], [SCAN, LEFT, LEFT]),
        (["--except", "/decoder/gru"], [SCAN, LEFT, SCAN]),
        (["--to", "unroll", "--only", "/decoder/*"], [LEFT, UNKNOWN, UNKNOWN]),
    ],
    ids=str,
)
def test_list_shows_what_would_be_done(
    rnn_lower: Command, tmp_path: Path, options: list[str], rows: list[tuple[str, str, str]]
) -> None:
    source = saved(tmp_path / "in.onnx", chain(*THREE))
    outcome = rnn_lower(source, "--list", *options)
    assert (outcome.code, outcome.err) == (4, "")
    assert listed(outcome) == rows
    hints = [line for line in outcome.lines if line.startswith("for refused nodes: ")]
    assert len(hints) == ("refused" in {form for _, form, _ in rows})
    assert files(tmp_path).keys() == {"in.onnx"}
    done = rnn_lower(source, tmp_path / "out.onnx", "--no-verify", *options)
    assert done.code == (1 if hints else 0)
    if not hints:
        given = [form for _, form, _ in rows if form != LEFT[1]]
        _, *rest = table(done, "node")
        assert [row[-1] for row in rest[: len(given)]] == given
        assert rest[len(given)][0].startswith("operator")  # the next table


def test_list_shows_a_form_that_the_opset_has_not(rnn_lower: Command, tmp_path: Path) -> None:
    outcome = rnn_lower(saved(tmp_path / "in.onnx", model(STATIC, 8)), "--list", "--to", "scan")
    assert outcome.code == 4
    assert listed(outcome) == [(str(STATIC.T), "refused", "Scan needs opset 9, this scope imports 8")]
    assert "use --to loop" in outcome.lines[-1]


def test_list_shows_a_node_that_is_left_because_it_is_wrong(rnn_lower: Command, tmp_path: Path) -> None:
    bad = Link("LSTM", "bad", {"activations": ["Foo", "Tanh", "Tanh"]})
    source = saved(tmp_path / "in.onnx", chain(THREE[0], bad))
    outcome = rnn_lower(source, "--list", "--except", "bad")
    assert outcome.code == 4
    assert listed(outcome) == [SCAN, LEFT]
    assert table(outcome, "node")[2][:4] == ["bad", "LSTM", "main graph", "?"]


def test_list_of_an_old_model(rnn_lower: Command, tmp_path: Path) -> None:
    good = rnn_lower(saved(tmp_path / "in.onnx", model(Case("cli_old", "LSTM"), 6)), "--list")
    assert (good.code, listed(good)) == (4, [("5", "scan", "first choice for target portable")])
    assert "converted from opset 6 to 13" in good.lines
    hard = rnn_lower(saved(tmp_path / "if.onnx", model(Case("cli_old_if", "GRU", scope="if"), 6)), "--list")
    assert hard.code == 4
    assert [form for _, form, _ in listed(hard)] == ["refused"] * 2


def test_list_refuses_what_the_lowering_refuses(rnn_lower: Command, tmp_path: Path) -> None:
    source = saved(tmp_path / "in.onnx", chain(*THREE))
    assert_refused(rnn_lower(source, "--list", "--set-dim", "time=3"), "'time'", "seq")
    assert_refused(rnn_lower(source, "--list", "--input-shape", "Z:3"), "'Z'")


@pytest.mark.parametrize(
    ("options", "lowered"),
    [
        (["--only", "LSTM"], [0]),
        (["--only", "LSTM", "--only", "RNN"], [0, 2]),
        (["--only", "/decoder/*"], [1, 2]),
        (["--only", "/decoder/gru"], [1]),
        (["--except", "/decoder/*"], [0]),
        (["--except", "GRU"], [0, 2]),
        (["--except", "GRU", "--except", "*/lstm"], [2]),
        (["--only", "LSTM", "--only", "GRU", "--except", "/decoder/*"], [0]),
        (["--only", "/decoder/?ru"], [1]),
    ],
)
def test_selection(rnn_lower: Command, tmp_path: Path, options: list[str], lowered: list[int]) -> None:
    source, target = saved(tmp_path / "in.onnx", chain(*THREE)), tmp_path / "out.onnx"
    outcome = rnn_lower(source, target, "--no-verify", *options)
    assert outcome.code == 0
    kept = [link for n, link in enumerate(THREE) if n not in lowered]
    assert recurrent_left(onnx.load(target)) == [f"{link.op_type} {link.name}" for link in kept]
    assert outcome.out.count("left as it is: ") == len(kept)
    for link in kept:
        assert f"{link.op_type} node '{link.name}' in main graph: not selected" in outcome.out


@pytest.mark.parametrize(("options", "runs"), [([], 3), (["--verify", 1], 1), (["--verify", 5], 5)])
def test_verified_runs(rnn_lower: Command, tmp_path: Path, options: list[object], runs: int) -> None:
    source, report = saved(tmp_path / "in.onnx", model(SYMBOLIC, 17)), tmp_path / "report.json"
    outcome = rnn_lower(source, tmp_path / "out.onnx", "--report", report, *options)
    assert outcome.code == 0
    assert re.search(rf"^verified.*: {runs} runs, ", outcome.out, re.MULTILINE)
    assert json.loads(report.read_text())["verification"]["runs"] == runs


@pytest.mark.parametrize("options", [["--no-verify"], ["--verify", 0]])
def test_without_verification(rnn_lower: Command, tmp_path: Path, options: list[object]) -> None:
    source, report = saved(tmp_path / "in.onnx", model(SYMBOLIC, 17)), tmp_path / "report.json"
    outcome = rnn_lower(source, tmp_path / "out.onnx", "--report", report, *options)
    assert outcome.code == 0
    assert "verified" not in outcome.out
    assert json.loads(report.read_text())["verification"] is None


@pytest.mark.parametrize("runs", [0, 3, 5])
def test_runs_and_no_runs_exclude_each_other(rnn_lower: Command, tmp_path: Path, runs: int) -> None:
    source = saved(tmp_path / "in.onnx", model(SYMBOLIC, 17))
    outcome = rnn_lower(source, tmp_path / "out.onnx", "--verify", runs, "--no-verify")
    assert (outcome.code, outcome.out) == (2, "")
    assert "not allowed with" in outcome.err
    assert not (tmp_path / "out.onnx").exists()


def test_a_pattern_that_matches_nothing_is_an_error(rnn_lower: Command, tmp_path: Path) -> None:
    source = saved(tmp_path / "in.onnx", chain(*THREE))
    outcome = rnn_lower(source, tmp_path / "out.onnx", "--only", "/DECODER/*")
    assert outcome.code == 1
    assert "there are LSTM '/encoder/lstm'" in outcome.err
    assert not (tmp_path / "out.onnx").exists()


def test_says_how_it_verified(rnn_lower: Command, tmp_path: Path) -> None:
    """No kernel of onnxruntime supports layout 1."""
    source = saved(tmp_path / "in.onnx", model(Case("cli_layout", "LSTM", {"layout": 1}), 17))
    outcome = rnn_lower(source, tmp_path / "out.onnx")
    assert outcome.code == 0
    (line,) = [line for line in outcome.lines if re.match("(nodes |not )?verified", line)]
    assert "float64" in line
    assert (tmp_path / "out.onnx").exists()


def test_seed(rnn_lower: Command, tmp_path: Path) -> None:
    source = saved(tmp_path / "in.onnx", model(Case("cli_seed", "LSTM", T=20, H=16), 17))
    reports = []
    for n, seed in enumerate((0, 0, 1)):
        report = tmp_path / f"{n}.json"
        assert rnn_lower(source, tmp_path / f"{n}.onnx", "--seed", seed, "--report", report).code == 0
        reports.append(json.loads(report.read_text())["verification"]["outputs"])
    assert reports[0] == reports[1]
    assert reports[0] != reports[2]


def test_report(rnn_lower: Command, tmp_path: Path) -> None:
    source, report = saved(tmp_path / "in.onnx", chain(*THREE, dims=("seq", 2))), tmp_path / "report.json"
    given = [source, tmp_path / "out.onnx", "--report", report, "--except", "RNN", "--to", "loop"]
    outcome = rnn_lower(*given)
    assert outcome.code == 0
    data = json.loads(report.read_text())
    about = {"schema", "version", "command", "target", "files", "set_inputs", "stream"}
    assert data["command"] == shlex.join(["rnn-lower", *map(str, given)])
    assert data.keys() == about | {"nodes", "left", "notes", "operators", "verification"}
    assert data["nodes"][1] == {
        "name": "/decoder/gru",
        "operator": "GRU",
        "version": 14,
        "scope": "main graph",
        "dtype": "float",
        "direction": "bidirectional",
        "seq_length": None,
        "batch_size": 2,
        "input_size": 4,
        "hidden_size": 4,
        "form": "loop",
        "reason": "requested",
        "warnings": [],
    }
    assert data["left"] == ["RNN node '/decoder/rnn' in main graph: not selected"]
    before, after = data["operators"]["before"], data["operators"]["after"]
    assert before == {"GRU": 1, "LSTM": 1, "RNN": 1, "Relu": 1, "Reshape": 3, "Transpose": 3}
    assert (after["Loop"], after["RNN"], after["Relu"]) == (3, 1, 1)
    assert not after.keys() & {"GRU", "LSTM"}
    check = data["verification"]
    assert check.keys() >= {"status", "method", "runs", "outputs", "reason"}
    assert (check["status"], check["method"], check["runs"]) == ("verified", "onnxruntime", 3)
    (output,) = check["outputs"]
    assert output.keys() == {"name", "max_abs", "passed", "reason"}
    assert (output["name"], output["passed"]) == ("out", True)
    assert 0 <= output["max_abs"] < 1e-5


def test_nothing_to_lower(rnn_lower: Command, tmp_path: Path) -> None:
    source, target = saved(tmp_path / "in.onnx", without_recurrent_nodes()), tmp_path / "out.onnx"
    outcome = rnn_lower(source, target, "--report", tmp_path / "report.json")
    assert (outcome.code, outcome.err) == (0, "")
    assert "nothing to lower" in outcome.out
    assert str(target) in outcome.out
    assert target.read_bytes() == source.read_bytes()
    assert json.loads((tmp_path / "report.json").read_text())["nodes"] == []


def test_quiet(rnn_lower: Command, tmp_path: Path) -> None:
    source = saved(tmp_path / "in.onnx", chain(*THREE))
    quiet = Outcome(0, "", "")
    assert rnn_lower(source, tmp_path / "out.onnx", "--quiet") == quiet
    assert rnn_lower(source, tmp_path / "q.onnx", "-q", "--no-verify", "--only", "GRU") == quiet
    assert rnn_lower(source, "--list", "-q") == Outcome(4, "", "")
    assert recurrent_left(onnx.load(tmp_path / "out.onnx")) == []
    assert_refused(rnn_lower(source, tmp_path / "out.onnx", "-q"), "exists")


def test_quiet_hides_warnings(rnn_lower: Command, tmp_path: Path) -> None:
    source = saved(tmp_path / "in.onnx", model(DISPUTED, 17))
    assert rnn_lower(source, tmp_path / "out.onnx", "--no-verify", "-q") == Outcome(0, "", "")


def test_verbose_shows_each_run(rnn_lower: Command, tmp_path: Path) -> None:
    case = Case("cli_verbose", "LSTM", x="symbolic", optional=("B", "sequence_lens"))
    source, report = saved(tmp_path / "in.onnx", model(case, 17)), tmp_path / "report.json"
    outcome = rnn_lower(source, tmp_path / "out.onnx", "-v", "--report", report, "--verify", 2)
    assert (outcome.code, outcome.err) == (0, "")
    assert "compared by onnxruntime:" in outcome.lines
    check = json.loads(report.read_text())["verification"]
    header, *rows = table(outcome, "run")
    assert header == ["run", "input", "shape", "lengths", "output", "largest difference", "result"]
    assert [row[0] for row in rows] == ["1", "", "", "2", "", ""]
    for held, (x, lengths, last) in zip(check["each_run"], (rows[:3], rows[3:]), strict=True):
        T, N, features = held["inputs"][0]["shape"]
        assert x[1:4] == ["X", f"{T},{N},{features}", ""]
        least, greatest = held["inputs"][1]["lengths"]
        assert lengths[1:4] == ["sequence_lens", str(N), f"{least}..{greatest}"]
        assert last[1:4] == ["", "", ""]
        for row, output in zip((x, lengths, last), held["outputs"], strict=True):
            assert row[4:] == [output["name"], f"{output['max_abs']:.2g}", "passed"]
    header, *rows = table(outcome, "output")
    assert header == ["output", "largest difference", "result"]
    assert rows == [[node["name"], f"{node['max_abs']:.2g}", "passed"] for node in check["nodes"]]
    assert len(rows) == 3


def test_verbose_shows_runs_of_single_nodes(rnn_lower: Command, tmp_path: Path) -> None:
    source = saved(tmp_path / "in.onnx", model(Case("cli_layout", "LSTM", {"layout": 1}), 17))
    outcome = rnn_lower(source, tmp_path / "out.onnx", "-v")
    assert "compared by each node against float64 NumPy:" in outcome.lines
    names = {row[4] for row in table(outcome, "run")[1:]}
    assert names == {f"{symbol} of LSTM node 'recurrent' in main graph" for symbol in ("Y", "Y_h", "Y_c")}


@pytest.mark.parametrize("options", [[], ["-q"], ["-q", "-v"], ["-v", "--no-verify"]])
def test_runs_are_shown_on_request_only(rnn_lower: Command, tmp_path: Path, options: list[str]) -> None:
    source = saved(tmp_path / "in.onnx", model(SYMBOLIC, 17))
    outcome = rnn_lower(source, tmp_path / "out.onnx", *options)
    assert outcome.code == 0
    assert "compared by" not in outcome.out
    assert "-q" not in options or outcome.out == ""


@pytest.mark.usefixtures("wrong_cell")
def test_verbose_shows_the_runs_that_failed(rnn_lower: Command, tmp_path: Path) -> None:
    source = saved(tmp_path / "in.onnx", model(SYMBOLIC, 17))
    outcome = rnn_lower(source, tmp_path / "out.onnx", "-v")
    assert outcome.code == 3
    assert outcome.err.count("\n") == 1
    rows = table(outcome, "run")[1:]
    assert [row[4] for row in rows] == ["Y", "Y_h", "Y_c"] * 3
    assert all("too far" in row[6] for row in rows)


def test_a_disputed_default_is_warned_of(rnn_lower: Command, tmp_path: Path) -> None:
    source = saved(tmp_path / "in.onnx", model(DISPUTED, 17))
    outcome = rnn_lower(source, tmp_path / "out.onnx", "--no-verify", "--report", tmp_path / "report.json")
    assert outcome.code == 0
    (line,) = outcome.err.splitlines()
    assert line.startswith("rnn-lower: warning: RNN node 'recurrent' in main graph: ")
    assert "Affine" in line
    (warning,) = json.loads((tmp_path / "report.json").read_text())["nodes"][0]["warnings"]
    assert warning in line


# What it refuses


@pytest.mark.parametrize("options", [[], ["--quiet"], ["--no-verify"]])
def test_an_existing_output_is_kept(rnn_lower: Command, tmp_path: Path, options: list[str]) -> None:
    source, target = saved(tmp_path / "in.onnx", model(SYMBOLIC, 17)), tmp_path / "out.onnx"
    target.write_bytes(b"precious")
    assert_refused(rnn_lower(source, target, *options), str(target), "--force")
    assert target.read_bytes() == b"precious"


def test_force(rnn_lower: Command, tmp_path: Path) -> None:
    source, target = saved(tmp_path / "in.onnx", model(SYMBOLIC, 17)), tmp_path / "out.onnx"
    target.write_bytes(b"old")
    assert rnn_lower(source, target, "--force", "--no-verify").code == 0
    assert recurrent_left(onnx.load(target)) == []


def test_force_keeps_the_output_when_refused(rnn_lower: Command, tmp_path: Path) -> None:
    source, target = saved(tmp_path / "in.onnx", model(SYMBOLIC, 17)), tmp_path / "out.onnx"
    target.write_bytes(b"precious")
    assert_refused(rnn_lower(source, target, "--force", "--to", "unroll"), "recurrent")
    assert target.read_bytes() == b"precious"


@pytest.mark.parametrize("alias", ["itself", "dotted", "symbolic link", "hard link"])
def test_the_input_is_no_output(rnn_lower: Command, tmp_path: Path, alias: str) -> None:
    source = saved(tmp_path / "in.onnx", model(SYMBOLIC, 17))
    before = source.read_bytes()
    target = {"itself": source, "dotted": tmp_path / "." / ".." / tmp_path.name / "in.onnx"}.get(
        alias, tmp_path / "alias.onnx"
    )
    if alias == "symbolic link":
        target.symlink_to(source)
    elif alias == "hard link":
        target.hardlink_to(source)
    assert rnn_lower(source, target).code == 1
    assert_refused(rnn_lower(source, target, "--force"), "input", "another file")
    assert source.read_bytes() == before


def bad_file(path: Path, kind: str) -> None:
    whole = model(SYMBOLIC, 17).SerializeToString()
    if kind == "directory":
        path.mkdir()
    elif kind == "no graph":
        path.write_bytes(onnx.ModelProto(ir_version=8).SerializeToString())
    elif kind != "missing":
        contents = {"text": b"This is not a model.\n" * 9, "empty": b"", "truncated": whole[: len(whole) // 2]}
        contents |= {"two lines": b"\n\n", "image": b"\x89PNG\r\n\x1a\n" + bytes(64)}
        path.write_bytes(contents[kind])


@pytest.mark.parametrize(
    "kind", ["text", "missing", "directory", "empty", "truncated", "no graph", "two lines", "image"]
)
@pytest.mark.parametrize("options", [["OUT"], ["--list"]])
def test_a_bad_file_is_refused(rnn_lower: Command, tmp_path: Path, kind: str, options: list[str]) -> None:
    source, target = tmp_path / "in.onnx", tmp_path / "out.onnx"
    bad_file(source, kind)
    before = files(tmp_path)
    outcome = rnn_lower(source, *[target if option == "OUT" else option for option in options])
    assert_refused(outcome, str(source))
    assert "Traceback" not in outcome.err
    assert files(tmp_path) == before


@pytest.mark.parametrize(
    ("name", "hint"), [("net.pt", "export it to ONNX first"), ("net.onnx", "is the file complete?")]
)
def test_a_model_of_a_framework_is_to_be_exported(rnn_lower: Command, tmp_path: Path, name: str, hint: str) -> None:
    (tmp_path / name).write_bytes(b"PK\x03\x04" + b"x" * 64)
    outcome = rnn_lower(tmp_path / name, tmp_path / "out.onnx")
    assert_refused(outcome, name)
    assert outcome.err.endswith(f"; {hint}\n")


@pytest.mark.parametrize("options", [["OUT"], ["--list"]])
def test_a_bad_node_is_refused(rnn_lower: Command, tmp_path: Path, options: list[str]) -> None:
    names = ["Foo", "Tanh", "Tanh"]
    source = saved(tmp_path / "in.onnx", model(Case("cli_bad", "LSTM", {"activations": names}), 17))
    outcome = rnn_lower(source, *[tmp_path / "out.onnx" if option == "OUT" else option for option in options])
    assert_refused(outcome, "LSTM node 'recurrent' in main graph", "'Foo'", "Sigmoid")
    assert files(tmp_path).keys() == {"in.onnx"}


def test_an_impossible_form_is_refused(rnn_lower: Command, tmp_path: Path) -> None:
    source = saved(tmp_path / "in.onnx", model(STATIC, 8))
    outcome = rnn_lower(source, tmp_path / "out.onnx", "--to", "scan")
    assert_refused(outcome, "GRU node 'recurrent' in main graph", "opset 9", "loop")


def test_max_unroll(rnn_lower: Command, tmp_path: Path) -> None:
    source, target = saved(tmp_path / "in.onnx", model(STATIC, 17)), tmp_path / "out.onnx"
    options = ["--to", "unroll", "--no-verify"]
    outcome = rnn_lower(source, target, *options, "--max-unroll", STATIC.T - 1)
    assert_refused(outcome, f"--max-unroll {STATIC.T}", "scan", "loop")
    assert files(tmp_path).keys() == {"in.onnx"}
    assert rnn_lower(source, target, *options, "--max-unroll", STATIC.T).code == 0


@pytest.mark.parametrize("target", ["missing/out.onnx", "in.onnx/out.onnx"])
def test_an_impossible_place_is_refused(rnn_lower: Command, tmp_path: Path, target: str) -> None:
    source = saved(tmp_path / "in.onnx", model(SYMBOLIC, 17))
    assert_refused(rnn_lower(source, tmp_path / target, "--no-verify"), "out.onnx")
    assert files(tmp_path).keys() == {"in.onnx"}


@pytest.mark.parametrize("options", [[], ["--force"]])
def test_a_directory_is_no_output(rnn_lower: Command, tmp_path: Path, options: list[str]) -> None:
    source, target = saved(tmp_path / "in.onnx", model(SYMBOLIC, 17)), tmp_path / "folder"
    target.mkdir()
    assert_refused(rnn_lower(source, target, "--no-verify", *options), "folder")
    assert target.is_dir()
    assert files(tmp_path).keys() == {"in.onnx"}


def test_an_impossible_report_is_refused(rnn_lower: Command, tmp_path: Path) -> None:
    source, report = saved(tmp_path / "in.onnx", model(SYMBOLIC, 17)), tmp_path / "missing" / "report.json"
    outcome = rnn_lower(source, tmp_path / "out.onnx", "--no-verify", "--report", report)
    assert_refused(outcome, "report.json")
    assert files(tmp_path).keys() == {"in.onnx"}


@pytest.mark.parametrize("name", ["in.onnx", "out.onnx"])
def test_the_report_does_not_replace_a_model(rnn_lower: Command, tmp_path: Path, name: str) -> None:
    source, target = saved(tmp_path / "in.onnx", model(SYMBOLIC, 17)), tmp_path / "out.onnx"
    before = source.read_bytes()
    outcome = rnn_lower(source, target, "--no-verify", "--report", tmp_path / name)
    assert outcome.code in (1, 2)
    assert source.read_bytes() == before


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["IN"],
        ["IN", "OUT", "third"],
        ["IN", "OUT", "--unknown"],
        ["IN", "OUT", "--to"],
        ["IN", "OUT", "--to", "while"],
        ["IN", "OUT", "--to", "SCAN"],
        ["IN", "OUT", "--verify", "-1"],
        ["IN", "OUT", "--verify", "many"],
        ["IN", "OUT", "--verify", "1", "--no-verify"],
        ["IN", "OUT", "--max-unroll", "-1"],
        ["IN", "OUT", "--max-unroll", "1.5"],
        ["IN", "OUT", "--rtol", "small"],
        ["IN", "OUT", "--atol"],
        ["IN", "OUT", "--seed", "x"],
        ["IN", "OUT", "--set-dim", "seq"],
        ["IN", "OUT", "--set-dim", "seq=long"],
        ["IN", "OUT", "--set-dim", "seq=-1"],
        ["IN", "OUT", "--input-shape", "X"],
        ["IN", "OUT", "--input-shape", "X:1,,2"],
        ["IN", "OUT", "--input-shape", "X:1,a"],
        ["IN", "OUT", "--compute", "int8"],
        ["IN", "OUT", "--only"],
        ["IN", "OUT", "--feed", "X"],
        ["IN", "OUT", "--report", "report.txt"],
    ],
    ids=" ".join,
)
def test_wrong_usage(rnn_lower: Command, tmp_path: Path, arguments: list[str]) -> None:
    source = saved(tmp_path / "in.onnx", model(SYMBOLIC, 17))
    places = {"IN": str(source), "OUT": str(tmp_path / "out.onnx")}
    outcome = rnn_lower(*[places.get(argument, argument) for argument in arguments])
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith("usage: rnn-lower ")
    assert "rnn-lower: error: " in outcome.err.splitlines()[-1]
    assert files(tmp_path).keys() == {"in.onnx"}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--target", "TVMM"], "; did you mean tvm?"),
        (["--target", "openvinno"], "; did you mean openvino?"),
        (["--target", "nncase"], ", stedgeai"),
        (["--tagret", "tvm"], "unrecognized arguments: --tagret tvm; did you mean --target?"),
        (["another.onnx"], "unrecognized arguments: another.onnx"),
        (["--verify", "a"], "'a' is no whole number"),
        (["--verify-timeout", "1m"], "'1m' is no number"),
        (["--set-dim", "seq"], "'seq' is not NAME=SIZE, such as seq=16"),
    ],
)
def test_wrong_usage_ends_in_what_is_wrong(rnn_lower: Command, arguments: list[str], told: str) -> None:
    lines = rnn_lower("in.onnx", "out.onnx", *arguments).err.splitlines()
    assert len(lines) == 4
    assert lines[-1].endswith(told)


@pytest.mark.parametrize("order", ["IN --to loop OUT -q", "--to loop IN -q OUT", "-q --to loop -- IN OUT"])
def test_options_may_be_anywhere(rnn_lower: Command, tmp_path: Path, order: str) -> None:
    places = {"IN": saved(tmp_path / "in.onnx", model(SYMBOLIC, 17)), "OUT": tmp_path / "out.onnx"}
    assert rnn_lower(*[places.get(word, word) for word in order.split()]).code == 0
    assert "Loop" in operators(onnx.load(tmp_path / "out.onnx"))


@pytest.mark.parametrize("options", [["--seed", "-1"], ["--rtol", "-1"], ["--atol", "nan"]])
def test_numbers_without_a_meaning(rnn_lower: Command, tmp_path: Path, options: list[str]) -> None:
    source = saved(tmp_path / "in.onnx", model(SYMBOLIC, 17))
    outcome = rnn_lower(source, tmp_path / "out.onnx", *options)
    assert outcome.code in (1, 2, 3)
    assert files(tmp_path).keys() == {"in.onnx"}


# Verification


@pytest.fixture
def wrong_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every LSTM be lowered with i and f exchanged."""
    from rnn_lowering.emit.ops import Ops
    from rnn_lowering.emit.tensor import Tensor
    from rnn_lowering.recurrence import cells

    def lstm(op: Ops, k: Any, state: Sequence[Tensor], x: Sequence[Tensor]) -> list[Tensor]:
        (h, c), (xw,), (R,), H = state, x, k.R, k.hidden_size
        f, o, i, g = op.split(h @ R + xw, [H, H, H, H])
        C = k.f(f) * c + k.f(i) * k.g(g)
        return [k.f(o) * k.h(C), C]

    monkeypatch.setitem(cells.CELLS, "LSTM", lstm)


@pytest.mark.usefixtures("wrong_cell")
@pytest.mark.parametrize("options", [[], ["--quiet"], ["--to", "loop", "--verify", "1"], ["--force"]])
def test_a_failed_verification(rnn_lower: Command, tmp_path: Path, options: list[str]) -> None:
    source, target = saved(tmp_path / "in.onnx", model(SYMBOLIC, 17)), tmp_path / "out.onnx"
    if "--force" in options:
        target.write_bytes(b"precious")
    before = files(tmp_path)
    outcome = rnn_lower(source, target, "--report", tmp_path / "report.json", *options)
    assert (outcome.code, outcome.lines) == (3, [])
    assert outcome.err.count("\n") == 1
    assert outcome.err.startswith("rnn-lower: error: verification failed")
    assert "output 'Y'" in outcome.err
    assert "Y_c" in outcome.err
    after = files(tmp_path)
    data = json.loads(after.pop("report.json"))
    assert after == before
    assert data["verification"]["status"] == "failed"
    assert not any(output["passed"] for output in data["verification"]["outputs"])


@pytest.fixture
def vanishing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is no more when the verification is done."""
    from rnn_lowering.compare.whole import ModelComparison

    folder, result = tmp_path / "vanishing", ModelComparison.result
    folder.mkdir()

    def remove_first(comparison: ModelComparison) -> rl.Verification:
        folder.rmdir()
        return result(comparison)

    monkeypatch.setattr(ModelComparison, "result", remove_first)
    return folder


@pytest.mark.usefixtures("wrong_cell")
@pytest.mark.parametrize("name", ["report.json", "report.html"])
def test_a_failed_verification_whose_report_cannot_be_written(
    rnn_lower: Command, tmp_path: Path, vanishing: Path, name: str
) -> None:
    source = saved(tmp_path / "in.onnx", model(SYMBOLIC, 17))
    options = ["--report", vanishing / name, "--keep-failed", tmp_path / "kept.onnx"]
    outcome = rnn_lower(source, tmp_path / "out.onnx", *options)
    assert (outcome.code, outcome.lines, outcome.err.count("\n")) == (3, [], 1)
    for fact in ("verification failed", "output 'Y'", f"cannot write '{vanishing / name}'", "kept as"):
        assert fact in outcome.err
    assert files(tmp_path).keys() == {"in.onnx", "kept.onnx"}


@pytest.mark.usefixtures("wrong_cell")
def test_a_failed_model_that_cannot_be_kept(rnn_lower: Command, tmp_path: Path, vanishing: Path) -> None:
    source, kept = saved(tmp_path / "in.onnx", model(SYMBOLIC, 17)), vanishing / "kept.onnx"
    options = ["--report", tmp_path / "report.json", "--keep-failed", kept]
    outcome = rnn_lower(source, tmp_path / "out.onnx", *options)
    assert outcome.code == 3
    for fact in ("verification failed", f"cannot write '{kept}'"):
        assert fact in outcome.err
    assert "kept as" not in outcome.err
    assert files(tmp_path).keys() == {"in.onnx", "report.json"}


@pytest.mark.parametrize("name", ["report.json", "report.html"])
def test_a_report_that_cannot_be_written(rnn_lower: Command, tmp_path: Path, vanishing: Path, name: str) -> None:
    source = saved(tmp_path / "in.onnx", model(SYMBOLIC, 17))
    outcome = rnn_lower(source, tmp_path / "out.onnx", "--report", vanishing / name)
    assert_refused(outcome, f"cannot write '{vanishing / name}'")
    assert files(tmp_path).keys() == {"in.onnx"}


@pytest.mark.usefixtures("wrong_cell")
@pytest.mark.parametrize(
    ("options", "code"), [(["--atol", "9"], 0), (["--rtol", "0.01"], 3), (["--rtol", "1e9"], 0)]
)
def test_tolerance(rnn_lower: Command, tmp_path: Path, options: list[str], code: int) -> None:
    source = saved(tmp_path / "in.onnx", model(SYMBOLIC, 17))
    assert rnn_lower(source, tmp_path / "out.onnx", *options).code == code


@pytest.mark.usefixtures("wrong_cell")
def test_a_wrong_model_is_written_only_unverified(rnn_lower: Command, tmp_path: Path) -> None:
    source, target = saved(tmp_path / "in.onnx", model(SYMBOLIC, 17)), tmp_path / "out.onnx"
    assert rnn_lower(source, target, "--no-verify").code == 0
    assert not np.allclose(
        run(onnx.load(target), feed(SYMBOLIC))["Y"], run(onnx.load(source), feed(SYMBOLIC))["Y"], atol=1e-3
    )


@pytest.mark.usefixtures("wrong_cell")
def test_keep_failed(rnn_lower: Command, tmp_path: Path) -> None:
    source, kept = saved(tmp_path / "in.onnx", model(SYMBOLIC, 17)), tmp_path / "kept.onnx"
    outcome = rnn_lower(source, tmp_path / "out.onnx", "--keep-failed", kept)
    assert outcome.code == 3
    assert "kept.onnx" in outcome.err
    assert files(tmp_path).keys() == {"in.onnx", "kept.onnx"}
    assert recurrent_left(onnx.load(kept)) == []


def test_nothing_failed_is_kept(rnn_lower: Command, tmp_path: Path) -> None:
    source = saved(tmp_path / "in.onnx", model(SYMBOLIC, 17))
    assert rnn_lower(source, tmp_path / "out.onnx", "--keep-failed", tmp_path / "kept.onnx").code == 0
    assert files(tmp_path).keys() == {"in.onnx", "out.onnx"}


def test_feed(rnn_lower: Command, tmp_path: Path) -> None:
    source, report = saved(tmp_path / "in.onnx", model(SYMBOLIC, 17)), tmp_path / "report.json"
    np.save(tmp_path / "x.npy", np.full((3, 2, 2), 0.5, np.float32))
    options = ["--feed", f"X={tmp_path / 'x.npy'}", "--report", report]
    assert rnn_lower(source, tmp_path / "out.onnx", *options).code == 0
    check = json.loads(report.read_text())["verification"]
    assert (check["status"], check["method"], check["runs"]) == ("verified", "onnxruntime", 1)


@pytest.mark.parametrize(
    ("name", "array", "fact"),
    [
        ("Z", np.zeros((3, 2, 2), np.float32), "no input 'Z'"),
        ("X", np.zeros((3, 2, 2)), "float64"),
        ("X", np.zeros((3, 2, 5), np.float32), "[3, 2, 5]"),
        ("X", np.zeros((3, 2), np.float32), "[3, 2]"),
    ],
)
def test_a_feed_that_does_not_fit_is_refused(
    rnn_lower: Command, tmp_path: Path, name: str, array: Array, fact: str
) -> None:
    source = saved(tmp_path / "in.onnx", model(SYMBOLIC, 17))
    np.save(tmp_path / "x.npy", array)
    outcome = rnn_lower(source, tmp_path / "out.onnx", "--feed", f"{name}={tmp_path / 'x.npy'}")
    assert_refused(outcome, fact)
    assert not (tmp_path / "out.onnx").exists()


@pytest.mark.parametrize(("required", "code"), [([], 0), (["--require-verified"], 5)])
def test_a_required_verification(rnn_lower: Command, tmp_path: Path, required: list[str], code: int) -> None:
    """onnxruntime has no RNN of float64, and given inputs are those of the whole model."""
    source = saved(tmp_path / "in.onnx", model(Case("cli_double", "RNN", dtype="float64", x="symbolic"), 17))
    np.save(tmp_path / "x.npy", np.zeros((3, 2, 2)))
    outcome = rnn_lower(source, tmp_path / "out.onnx", "--feed", f"X={tmp_path / 'x.npy'}", *required)
    assert outcome.code == code
    assert "not verified: onnxruntime cannot run the original" in outcome.err + outcome.out
    assert (tmp_path / "out.onnx").exists() == (code == 0)


def test_a_required_verification_of_single_nodes(rnn_lower: Command, tmp_path: Path) -> None:
    source = saved(tmp_path / "in.onnx", model(Case("cli_double", "RNN", dtype="float64", x="symbolic"), 17))
    outcome = rnn_lower(source, tmp_path / "out.onnx", "--require-verified")
    assert outcome.code == 0
    assert "nodes verified, not the whole model" in outcome.out


def test_a_required_verification_without_runs_is_wrong_usage(rnn_lower: Command, tmp_path: Path) -> None:
    source = saved(tmp_path / "in.onnx", model(SYMBOLIC, 17))
    assert rnn_lower(source, tmp_path / "out.onnx", "--require-verified", "--no-verify").code == 2


@pytest.mark.usefixtures("wrong_cell")
def test_what_to_do_about_a_failure(rnn_lower: Command, tmp_path: Path) -> None:
    source = saved(tmp_path / "in.onnx", model(SYMBOLIC, 17))
    outcome = rnn_lower(source, tmp_path / "out.onnx")
    assert all(text in outcome.err for text in ("--atol", "--keep-failed", "--report FILE.json"))


@pytest.mark.parametrize("contents", [None, b"", b"not an array", b"X=1\n"])
def test_a_bad_feed_is_refused(rnn_lower: Command, tmp_path: Path, contents: bytes | None) -> None:
    source, array = saved(tmp_path / "in.onnx", model(SYMBOLIC, 17)), tmp_path / "x.npy"
    if contents is not None:
        array.write_bytes(contents)
    assert_refused(rnn_lower(source, tmp_path / "out.onnx", "--feed", f"X={array}"), "x.npy")
    assert not (tmp_path / "out.onnx").exists()


def test_a_feed_of_several_arrays_is_refused(rnn_lower: Command, tmp_path: Path) -> None:
    source = saved(tmp_path / "in.onnx", model(SYMBOLIC, 17))
    np.savez(tmp_path / "x.npz", X=np.zeros((3, 2, 2), np.float32))
    outcome = rnn_lower(source, tmp_path / "out.onnx", "--feed", f"X={tmp_path / 'x.npz'}")
    assert_refused(outcome, "x.npz")
    assert not (tmp_path / "out.onnx").exists()


FAILING = """
import sys
from rnn_lowering.recurrence import cells
from rnn_lowering.cli import command as cli
good = cells.CELLS["LSTM"]
cells.CELLS["LSTM"] = lambda op, k, state, x: good(op, k, state[::-1], x)
sys.exit(cli.main())
"""


@pytest.mark.parametrize("verbosity", [[], ["-v"], ["-vv"]])
def test_exit_code_of_a_failed_verification(tmp_path: Path, verbosity: list[str]) -> None:
    source, target = saved(tmp_path / "in.onnx", model(SYMBOLIC, 17)), tmp_path / "out.onnx"
    done = child(source, target, *verbosity, code=FAILING)
    assert done.returncode == 3, done.stderr
    assert ("Traceback" in done.stderr) == (verbosity == ["-vv"])
    assert not target.exists()


# The process


@pytest.mark.parametrize(("verbosity", "traceback"), [([], False), (["-v"], False), (["-vv"], True)])
def test_traceback(tmp_path: Path, verbosity: list[str], traceback: bool) -> None:
    done = child(tmp_path / "missing.onnx", tmp_path / "out.onnx", *verbosity)
    assert done.returncode == 1
    assert ("Traceback (most recent call last)" in done.stderr) == traceback
    assert "missing.onnx" in done.stderr
    assert traceback or done.stderr.startswith("rnn-lower: error: ")


def test_as_a_module(tmp_path: Path) -> None:
    source, target = saved(tmp_path / "in.onnx", chain(*THREE)), tmp_path / "out.onnx"
    done = child(source, target, "--no-verify")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"written to {target}" in done.stdout
    assert recurrent_left(onnx.load(target)) == []
    assert child(source, "--list").returncode == 4
    assert child(source).returncode == 2


def test_entry_point() -> None:
    (script,) = entry_points(group="console_scripts", name="rnn-lower")
    assert script.load() is __main__.main


def test_installed_script(tmp_path: Path) -> None:
    script = Path(sys.executable).with_name("rnn-lower")
    if not script.exists():
        pytest.skip("rnn-lower is not installed beside this Python")
    source = saved(tmp_path / "in.onnx", chain(*THREE))
    done = subprocess.run([script, source, "--list"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (4, "")
    assert "/encoder/lstm" in done.stdout


def test_version(rnn_lower: Command) -> None:
    assert rnn_lower("--version") == Outcome(0, f"rnn-lower {rl.__version__}\n", "")


HEAVY = """
import sys
from rnn_lowering.cli.command import main
try:
    main()
finally:
    print("loaded:", sorted({"onnx", "numpy", "rich", "onnx_ir", "onnxruntime", "onnxscript"} & set(sys.modules)))
"""


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["in.onnx"], ["in.onnx", "out.onnx", "--to", "x"]]
)
def test_usage_is_instant(arguments: list[str]) -> None:
    done = child(*arguments, code=HEAVY)
    assert done.returncode == (0 if arguments[0].startswith("--") else 2)
    assert done.stdout.splitlines()[-1] == "loaded: []"


def test_help_names_the_exit_codes(rnn_lower: Command) -> None:
    outcome = rnn_lower("--help")
    assert outcome.code == 0
    for option in ("--to", "--only", "--except", "--set-dim", "--input-shape", "--list", "--report", "--verify"):
        assert option in outcome.out
    lines = outcome.lines
    for code in range(5):
        assert any(line.strip().startswith(f"{code}  ") for line in lines)


@pytest.mark.parametrize("environment", [{"COLUMNS": "40", "TERM": "dumb"}, {"TERM": "xterm-256color"}])
def test_a_pipe_gets_plain_lines(tmp_path: Path, environment: dict[str, str]) -> None:
    name = "/encoder" + "/a_layer_with_a_long_name" * 12 + "/LSTM"
    source, target = saved(tmp_path / "in.onnx", chain(Link("LSTM", name))), tmp_path / f"{'o' * 200}.onnx"
    done = child(source, target, "--no-verify", **environment)
    assert done.returncode == 0, done.stderr
    listed = child(source, "--list", **environment)
    assert "\x1b" not in done.stdout + listed.stdout
    assert done.stdout.splitlines()[-1] == f"written to {target}"
    assert cells(done.stdout.strip().splitlines()[1]) == [name, "LSTM-14", "forward", "?", "?", "3", "4", "scan"]
    assert len(listed.stdout.splitlines()) == 4
    assert cells(listed.stdout.splitlines()[1])[:2] == [name, "LSTM-14"]


@pytest.mark.parametrize("name", ["[bold]lstm[/bold]", "[lstm]", "layer[0]/lstm", ":smile:", "größe/ΔLSTM"])
def test_names_are_printed_as_they_are(rnn_lower: Command, tmp_path: Path, name: str) -> None:
    source = saved(tmp_path / "in.onnx", chain(Link("LSTM", name)))
    for outcome in (rnn_lower(source, "--list"), rnn_lower(source, tmp_path / "out.onnx", "--no-verify")):
        assert cells(outcome.lines[1])[0] == name


def test_a_stream_that_cannot_hold_a_name(tmp_path: Path) -> None:
    source, target = saved(tmp_path / "in.onnx", chain(Link("LSTM", "größe"))), tmp_path / "out.onnx"
    done = child(source, target, "--no-verify", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert "written to" in done.stdout


def test_paths_are_printed_as_they_are(rnn_lower: Command, tmp_path: Path) -> None:
    source, target = saved(tmp_path / "[bold]in.onnx", without_recurrent_nodes()), tmp_path / "[red]out.onnx"
    assert str(target) in rnn_lower(source, target).out
    assert str(source) in rnn_lower(source, "--list").out


INTERRUPTED = """
import os, signal, sys
from rnn_lowering.cli import command as cli
from rnn_lowering.compare.whole import ModelComparison
def stop(_):
    os.kill(os.getpid(), signal.SIGINT)
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
ModelComparison.result = stop
sys.exit(cli.main())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals differ")
def test_interrupt(tmp_path: Path) -> None:
    source, target = saved(tmp_path / "in.onnx", model(SYMBOLIC, 17)), tmp_path / "out.onnx"
    done = child(source, target, code=INTERRUPTED)
    assert done.returncode not in (0, 2, 3, 4)
    assert done.returncode == 130
    assert done.stderr.startswith("rnn-lower: interrupted")
    assert done.stderr.count("\n") == 1
    assert files(tmp_path).keys() == {"in.onnx"}


INTERRUPTED_RUN = """
import os, signal, sys, threading
from rnn_lowering.cli import command as cli
from rnn_lowering import child as sessions
environment = sessions._environment
def soon():
    sessions._environment = environment
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
    return environment()
signal.signal(signal.SIGINT, signal.default_int_handler)
sessions._environment = soon
sys.exit(cli.main())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals differ")
@pytest.mark.parametrize("options", [[], ["--report", "report.json", "--keep-failed", "kept.onnx", "-v"]], ids=str)
def test_an_interrupt_while_a_model_runs(tmp_path: Path, options: list[str]) -> None:
    source, scratch = saved(tmp_path / "in.onnx", model(SYMBOLIC, 17)), tmp_path / "scratch"
    scratch.mkdir()
    options = [str(tmp_path / option) if "." in option else option for option in options]
    done = child(source, tmp_path / "out.onnx", *options, code=INTERRUPTED_RUN, TMPDIR=str(scratch))
    assert done.returncode == 130
    assert done.stderr == "rnn-lower: interrupted; nothing was written\n"
    assert done.stdout == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.onnx", "scratch"]
    assert [path.name for path in scratch.iterdir() if path.name != ".ses"] == []  # that one is onnxruntime's
