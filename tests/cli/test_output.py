"""What the command prints and writes."""

import json
import re
import shlex
from pathlib import Path

import onnx
import pytest
from cases import Case, feed, model
from chains import chain
from commands import (
    DISPUTED,
    STATIC,
    SYMBOLIC,
    THREE,
    Command,
    Outcome,
    assert_refused,
    cells,
    files,
    saved,
    without_recurrent_nodes,
)
from running import assert_close, operators, recurrent_left, run


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
    assert ["Scan", "0", "3"] in rows  # both directions share one
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


def test_a_pattern_that_matches_nothing_is_an_error(rnn_lower: Command, tmp_path: Path) -> None:
    source = saved(tmp_path / "in.onnx", chain(*THREE))
    outcome = rnn_lower(source, tmp_path / "out.onnx", "--only", "/DECODER/*")
    assert outcome.code == 1
    assert "there are LSTM '/encoder/lstm'" in outcome.err
    assert not (tmp_path / "out.onnx").exists()


def test_report(rnn_lower: Command, tmp_path: Path) -> None:
    source, report = saved(tmp_path / "in.onnx", chain(*THREE, dims=("seq", 2))), tmp_path / "report.json"
    given = [source, tmp_path / "out.onnx", "--report", report, "--except", "RNN", "--to", "loop"]
    outcome = rnn_lower(*given)
    assert outcome.code == 0
    data = json.loads(report.read_text())
    about = {"schema", "version", "command", "target", "files", "set_inputs", "stream"}
    assert data["command"] == shlex.join(["rnn-lower", *map(str, given)])
    assert data.keys() == about | {"nodes", "loops", "left", "notes", "operators", "verification"}
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
    assert (after["Loop"], after["RNN"], after["Relu"]) == (2, 1, 1)  # both directions share one
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


def test_a_disputed_default_is_warned_of(rnn_lower: Command, tmp_path: Path) -> None:
    source = saved(tmp_path / "in.onnx", model(DISPUTED, 17))
    outcome = rnn_lower(source, tmp_path / "out.onnx", "--no-verify", "--report", tmp_path / "report.json")
    assert outcome.code == 0
    (line,) = outcome.err.splitlines()
    assert line.startswith("rnn-lower: warning: RNN node 'recurrent' in main graph: ")
    assert "Affine" in line
    (warning,) = json.loads((tmp_path / "report.json").read_text())["nodes"][0]["warnings"]
    assert warning in line
