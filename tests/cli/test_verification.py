"""The comparison as the command does it: options, feeds, failures and what is kept of them."""

import json
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from cases import Array, Case, feed, model
from commands import (
    SYMBOLIC,
    Command,
    assert_refused,
    files,
    saved,
    table,
)
from running import recurrent_left, run

import rnn_lowering as rl


@pytest.mark.parametrize(("options", "runs"), [([], 3), (["--verify", 1], 1), (["--verify", 5], 5)])
def test_verified_runs(source: Path, rnn_lower: Command, tmp_path: Path, options: list[object], runs: int) -> None:
    report = tmp_path / "report.json"
    outcome = rnn_lower(source, tmp_path / "out.onnx", "--report", report, *options)
    assert outcome.code == 0
    assert re.search(rf"^verified.*: {runs} runs, ", outcome.out, re.MULTILINE)
    assert json.loads(report.read_text())["verification"]["runs"] == runs


@pytest.mark.parametrize("options", [["--no-verify"], ["--verify", 0]])
def test_without_verification(source: Path, rnn_lower: Command, tmp_path: Path, options: list[object]) -> None:
    report = tmp_path / "report.json"
    outcome = rnn_lower(source, tmp_path / "out.onnx", "--report", report, *options)
    assert outcome.code == 0
    assert "verified" not in outcome.out
    assert json.loads(report.read_text())["verification"] is None


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
def test_runs_are_shown_on_request_only(
    source: Path, rnn_lower: Command, tmp_path: Path, options: list[str]
) -> None:
    outcome = rnn_lower(source, tmp_path / "out.onnx", *options)
    assert outcome.code == 0
    assert "compared by" not in outcome.out
    assert "-q" not in options or outcome.out == ""


@pytest.mark.usefixtures("wrong_cell")
def test_verbose_shows_the_runs_that_failed(source: Path, rnn_lower: Command, tmp_path: Path) -> None:
    outcome = rnn_lower(source, tmp_path / "out.onnx", "-v")
    assert outcome.code == 3
    assert outcome.err.count("\n") == 1
    rows = table(outcome, "run")[1:]
    assert [row[4] for row in rows] == ["Y", "Y_h", "Y_c"] * 3
    assert all("out of tolerance" in row[6] for row in rows)


@pytest.mark.usefixtures("wrong_cell")
@pytest.mark.parametrize("options", [[], ["--quiet"], ["--to", "loop", "--verify", "1"], ["--force"]])
def test_a_failed_verification(source: Path, rnn_lower: Command, tmp_path: Path, options: list[str]) -> None:
    target = tmp_path / "out.onnx"
    if "--force" in options:
        target.write_bytes(b"precious")
    before = files(tmp_path)
    outcome = rnn_lower(source, target, "--report", tmp_path / "report.json", *options)
    assert (outcome.code, outcome.lines) == (3, [])
    assert outcome.err.count("\n") == 1
    assert outcome.err.startswith("rnn-lower: error: verification failed")
    for told in ("output 'Y'", "Y_c", "--atol", "--keep-failed", "--report FILE.json"):
        assert told in outcome.err
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
    source: Path, rnn_lower: Command, tmp_path: Path, vanishing: Path, name: str
) -> None:
    options = ["--report", vanishing / name, "--keep-failed", tmp_path / "kept.onnx"]
    outcome = rnn_lower(source, tmp_path / "out.onnx", *options)
    assert (outcome.code, outcome.lines, outcome.err.count("\n")) == (3, [], 1)
    for fact in ("verification failed", "output 'Y'", f"cannot write '{vanishing / name}'", "kept as"):
        assert fact in outcome.err
    assert files(tmp_path).keys() == {"in.onnx", "kept.onnx"}


@pytest.mark.usefixtures("wrong_cell")
def test_a_failed_model_that_cannot_be_kept(
    source: Path, rnn_lower: Command, tmp_path: Path, vanishing: Path
) -> None:
    kept = vanishing / "kept.onnx"
    options = ["--report", tmp_path / "report.json", "--keep-failed", kept]
    outcome = rnn_lower(source, tmp_path / "out.onnx", *options)
    assert outcome.code == 3
    for fact in ("verification failed", f"cannot write '{kept}'"):
        assert fact in outcome.err
    assert "kept as" not in outcome.err
    assert files(tmp_path).keys() == {"in.onnx", "report.json"}


@pytest.mark.parametrize("name", ["report.json", "report.html"])
def test_a_report_that_cannot_be_written(
    source: Path, rnn_lower: Command, tmp_path: Path, vanishing: Path, name: str
) -> None:
    outcome = rnn_lower(source, tmp_path / "out.onnx", "--report", vanishing / name)
    assert_refused(outcome, f"cannot write '{vanishing / name}'")
    assert files(tmp_path).keys() == {"in.onnx"}


@pytest.mark.usefixtures("wrong_cell")
@pytest.mark.parametrize(
    ("options", "code"), [(["--atol", "9"], 0), (["--rtol", "0.01"], 3), (["--rtol", "1e9"], 0)]
)
def test_tolerance(source: Path, rnn_lower: Command, tmp_path: Path, options: list[str], code: int) -> None:
    assert rnn_lower(source, tmp_path / "out.onnx", *options).code == code


@pytest.mark.usefixtures("wrong_cell")
def test_a_wrong_model_is_written_only_unverified(source: Path, rnn_lower: Command, tmp_path: Path) -> None:
    target = tmp_path / "out.onnx"
    assert rnn_lower(source, target, "--no-verify").code == 0
    assert not np.allclose(
        run(onnx.load(target), feed(SYMBOLIC))["Y"], run(onnx.load(source), feed(SYMBOLIC))["Y"], atol=1e-3
    )


@pytest.mark.usefixtures("wrong_cell")
def test_keep_failed(source: Path, rnn_lower: Command, tmp_path: Path) -> None:
    kept = tmp_path / "kept.onnx"
    outcome = rnn_lower(source, tmp_path / "out.onnx", "--keep-failed", kept)
    assert outcome.code == 3
    assert "kept.onnx" in outcome.err
    assert files(tmp_path).keys() == {"in.onnx", "kept.onnx"}
    assert recurrent_left(onnx.load(kept)) == []


def test_nothing_failed_is_kept(source: Path, rnn_lower: Command, tmp_path: Path) -> None:
    assert rnn_lower(source, tmp_path / "out.onnx", "--keep-failed", tmp_path / "kept.onnx").code == 0
    assert files(tmp_path).keys() == {"in.onnx", "out.onnx"}


def test_feed(source: Path, rnn_lower: Command, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
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
    source: Path, rnn_lower: Command, tmp_path: Path, name: str, array: Array, fact: str
) -> None:
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


def test_a_required_verification_without_runs_is_wrong_usage(
    source: Path, rnn_lower: Command, tmp_path: Path
) -> None:
    assert rnn_lower(source, tmp_path / "out.onnx", "--require-verified", "--no-verify").code == 2


@pytest.mark.parametrize("contents", [None, b"", b"not an array", b"X=1\n"])
def test_a_bad_feed_is_refused(source: Path, rnn_lower: Command, tmp_path: Path, contents: bytes | None) -> None:
    array = tmp_path / "x.npy"
    if contents is not None:
        array.write_bytes(contents)
    assert_refused(rnn_lower(source, tmp_path / "out.onnx", "--feed", f"X={array}"), "x.npy")
    assert not (tmp_path / "out.onnx").exists()


def test_a_feed_of_several_arrays_is_refused(source: Path, rnn_lower: Command, tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", X=np.zeros((3, 2, 2), np.float32))
    outcome = rnn_lower(source, tmp_path / "out.onnx", "--feed", f"X={tmp_path / 'x.npz'}")
    assert_refused(outcome, "x.npz")
    assert not (tmp_path / "out.onnx").exists()


@pytest.mark.parametrize("verbosity", [[], ["-vv"]])
def test_exit_code_of_a_failed_verification(
    rnn_lower: Command, wrong_cell: None, source: Path, tmp_path: Path, verbosity: list[str]
) -> None:
    target = tmp_path / "out.onnx"
    outcome = rnn_lower(source, target, *verbosity)
    assert outcome.code == 3, outcome.err
    assert ("Traceback" in outcome.err) == (verbosity == ["-vv"])
    assert not target.exists()
