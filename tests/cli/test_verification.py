"""The comparison as the command does it: options, feeds, failures and what is kept of them."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from cases import Array, Case, feed, model
from commands import SYMBOLIC, Command, Outcome, assert_refused, child, files, saved, table
from running import recurrent_left, run
from texts import parse

import rnn_lowering as rl

Reported = tuple[Outcome, Any]


def reported(rnn_lower: Command, source: Path, *options: object) -> Reported:
    """What the command says, and the verification in its report."""
    report = source.with_name("report.json")
    outcome = rnn_lower(source, source.with_name("out.onnx"), "--force", "--report", report, *options)
    return outcome, json.loads(report.read_text())["verification"]


@pytest.mark.few(1)
@pytest.mark.parametrize(("options", "runs"), [("", 3), ("--verify 1", 1), ("--verify 5", 5)])
def test_verified_runs(source: Path, rnn_lower: Command, options: str, runs: int) -> None:
    outcome, check = reported(rnn_lower, source, *options.split())
    assert outcome.code == 0
    assert re.search(rf"^(?:.* proven .*; )?verified.*: {runs} runs?, ", outcome.out, re.MULTILINE)
    assert check["runs"] == runs


@pytest.mark.parametrize("options", ["--verify 0"])
def test_without_verification(source: Path, rnn_lower: Command, options: str) -> None:
    outcome, check = reported(rnn_lower, source, *options.split())
    assert outcome.code == 0
    assert "verified" not in outcome.out
    assert check["status"] == "not compared"


@pytest.mark.usefixtures("own_processes")
@pytest.mark.parametrize("stream", [None, "seq"])
def test_without_verification_no_process_runs_models(
    source: Path, tmp_path: Path, started: list[subprocess.Popen[bytes]], stream: str | None
) -> None:
    report = rl.lower_file(source, tmp_path / "out.onnx", verify=0, stream=stream)
    assert report.verification.status == "not compared"
    assert started == []


def test_seed(rnn_lower: Command, tmp_path: Path) -> None:
    source = saved(tmp_path / "in.onnx", model(Case("cli_seed", "LSTM", T=20, H=16), 17))
    first, same, other = (reported(rnn_lower, source, "--seed", seed)[1]["outputs"] for seed in (0, 0, 1))
    assert first == same
    assert first != other


def test_verbose_shows_each_run(rnn_lower: Command, tmp_path: Path) -> None:
    case = Case("cli_verbose", "LSTM", x="batch", optional=("B", "sequence_lens"))
    outcome, check = reported(rnn_lower, saved(tmp_path / "in.onnx", model(case, 17)), "-v", "--verify", 2)
    assert (outcome.code, outcome.err) == (0, "")
    assert "compared by onnxruntime:" in outcome.lines
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
    """No kernel of onnxruntime supports layout 1."""
    source = saved(tmp_path / "in.onnx", model(Case("cli_layout", "LSTM", {"layout": 1}), 17))
    outcome, _ = reported(rnn_lower, source, "-v")
    assert outcome.code == 0
    (line,) = [line for line in outcome.lines if re.search("(nodes |not )?verified", line)]
    assert "float64" in line
    assert "compared by each node against float64 NumPy:" in outcome.lines
    names = {row[4] for row in table(outcome, "run")[1:]}
    assert names == {f"{symbol} of LSTM node 'recurrent' in main graph" for symbol in ("Y", "Y_h", "Y_c")}


@pytest.mark.few(1)
@pytest.mark.parametrize("options", ["", "-q", "-v --verify 0"])
def test_runs_are_shown_on_request_only(source: Path, rnn_lower: Command, options: str) -> None:
    outcome, _ = reported(rnn_lower, source, *options.split())
    assert outcome.code == 0
    assert "compared by" not in outcome.out
    assert "-q" not in options or outcome.out == ""


# A wrong lowering


@pytest.mark.few(3)
@pytest.mark.usefixtures("wrong_cell")
@pytest.mark.parametrize("options", ["", "--quiet", "--to loop --verify 1", "-v", "-vv"])
def test_a_failed_verification(source: Path, rnn_lower: Command, tmp_path: Path, options: str) -> None:
    (tmp_path / "out.onnx").write_bytes(b"precious")
    before = files(tmp_path)
    outcome, check = reported(rnn_lower, source, *options.split())
    assert outcome.code == 3
    assert ("Traceback" in outcome.err) == (options == "-vv")
    assert options == "-vv" or outcome.err.count("\n") == 1
    assert options == "-vv" or outcome.err.startswith("rnn-lower: error: verification failed")
    for told in ("output 'Y'", "Y_c", "--atol", "--keep-failed", "report.json'"):
        assert told in outcome.err
    if options.startswith("-v"):
        rows = table(outcome, "run")[1:]
        assert [row[4] for row in rows] == ["Y", "Y_h", "Y_c"] * 3
        assert all("out of tolerance" in row[6] for row in rows)
    else:
        assert outcome.lines == []
    assert {name: held for name, held in files(tmp_path).items() if name != "report.json"} == before
    assert check["status"] == "failed"
    assert not any(output["passed"] for output in check["outputs"])


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


@pytest.mark.few(1)
@pytest.mark.usefixtures("wrong_cell")
@pytest.mark.parametrize("lost", ["report.json", "report.html", "kept.onnx"])
def test_a_failed_verification_of_which_something_cannot_be_written(
    source: Path, rnn_lower: Command, tmp_path: Path, vanishing: Path, lost: str
) -> None:
    places = {name: tmp_path / name for name in ("report.json", "kept.onnx")}
    report, kept = {**places, lost.replace("html", "json"): vanishing / lost}.values()
    outcome = rnn_lower(source, tmp_path / "out.onnx", "--report", report, "--keep-failed", kept)
    assert (outcome.code, outcome.lines, outcome.err.count("\n")) == (3, [], 1)
    for fact in ("verification failed", "output 'Y'", f"cannot write '{vanishing / lost}'"):
        assert fact in outcome.err
    assert ("kept as" in outcome.err) == (lost != "kept.onnx")
    assert files(tmp_path).keys() == {"in.onnx", "kept.onnx" if "report" in lost else "report.json"}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["report.json", "report.html"])
def test_a_report_that_cannot_be_written(
    source: Path, rnn_lower: Command, tmp_path: Path, vanishing: Path, name: str
) -> None:
    outcome = rnn_lower(source, tmp_path / "out.onnx", "--report", vanishing / name)
    assert_refused(outcome, f"cannot write '{vanishing / name}'")
    assert files(tmp_path).keys() == {"in.onnx"}


@pytest.mark.usefixtures("wrong_cell")
def test_the_report_to_send_is_named(source: Path, rnn_lower: Command, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    for options, named in (((), "the file of --report FILE.json"), (("--report", report), f"'{report}'")):
        outcome = rnn_lower(source, tmp_path / "out.onnx", "--verify", "1", *options)
        assert outcome.code == 3
        assert outcome.err.endswith(f"with the original, the kept model and {named}\n")


def test_one_run_is_no_runs() -> None:
    assert "): 1 run, largest" in str(rl.Verification("verified", "onnxruntime", 1))


@pytest.mark.usefixtures("wrong_cell")
def test_a_wrong_model_is_written_within_a_tolerance_unverified_or_as_a_failed_one(
    source: Path, rnn_lower: Command, tmp_path: Path
) -> None:
    target, kept = tmp_path / "out.onnx", tmp_path / "kept.onnx"
    for options, code in (("--rtol 0.01", 3), ("--atol 9", 0), ("--rtol 1e9", 0), ("--verify 0", 0)):
        assert rnn_lower(source, target, "--force", *options.split()).code == code
        assert target.exists() == (code == 0 or options != "--rtol 0.01")
    wrong, right = (run(onnx.load(path), feed(SYMBOLIC))["Y"] for path in (target, source))
    assert not np.allclose(wrong, right, atol=1e-3)
    target.unlink()
    outcome = rnn_lower(source, target, "--keep-failed", kept)
    assert outcome.code == 3
    assert "kept.onnx" in outcome.err
    assert files(tmp_path).keys() == {"in.onnx", "kept.onnx"}
    assert recurrent_left(onnx.load(kept)) == []


def test_nothing_failed_is_kept(source: Path, rnn_lower: Command, tmp_path: Path) -> None:
    assert rnn_lower(source, tmp_path / "out.onnx", "--keep-failed", tmp_path / "kept.onnx").code == 0
    assert files(tmp_path).keys() == {"in.onnx", "out.onnx"}


# Given inputs


GOOD = np.full((3, 2, 2), 0.5, np.float32)
FEEDS: dict[str, tuple[str, Array | bytes | None, str]] = {
    "an unknown name": ("Z", GOOD, "no input 'Z'"),
    "another type": ("X", GOOD.astype(float), "float64"),
    "another size": ("X", np.zeros((3, 2, 5), np.float32), "[3, 2, 5]"),
    "another rank": ("X", np.zeros((3, 2), np.float32), "[3, 2]"),
    "no file": ("X", None, "x.npy' for input 'X': No such file or directory\n"),
    "an empty file": ("X", b"", "x.npy' for input 'X' is no .npy file\n"),
    "no array": ("X", b"not an array", "x.npy' for input 'X' is no .npy file\n"),
    "text": ("X", b"X=1\n", "x.npy' for input 'X' is no .npy file\n"),
    "objects": ("X", np.array([None]), "x.npy' for input 'X' holds Python objects, not numbers\n"),
    "half an array": ("X", b"\x93NUMPY", "cannot read '"),
    "several arrays": ("X", b"", "x.npy"),
}


@pytest.mark.parametrize("name", FEEDS)
def test_a_feed_that_does_not_fit_is_refused(source: Path, rnn_lower: Command, tmp_path: Path, name: str) -> None:
    given, held, fact = FEEDS[name]
    path = tmp_path / "x.npy"
    if isinstance(held, bytes):
        path.write_bytes(held)
    elif held is not None:
        np.save(path, held)
    if name == "several arrays":
        with path.open("wb") as file:
            np.savez(file, X=GOOD)
    outcome = rnn_lower(source, tmp_path / "out.onnx", "--test-input", f"{given}={path}")
    assert_refused(outcome, fact)
    assert not (tmp_path / "out.onnx").exists()


def test_feed(source: Path, rnn_lower: Command, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", GOOD)
    _, check = reported(rnn_lower, source, "--test-input", f"X={tmp_path / 'x.npy'}")
    assert (check["status"], check["method"], check["runs"]) == ("verified", "onnxruntime", 1)


def test_no_tolerance_is_advised_for_nan(source: Path, rnn_lower: Command, tmp_path: Path) -> None:
    """onnxruntime's LSTM does not pass NaN on as its equations do."""
    np.save(tmp_path / "x.npy", np.where(np.arange(3)[:, None, None] == 1, np.float32(np.nan), GOOD))
    outcome = rnn_lower(source, tmp_path / "out.onnx", "--test-input", f"X={tmp_path / 'x.npy'}")
    assert outcome.code == 3
    assert "NaN in different places" in outcome.err
    assert "please report it" in outcome.err
    assert "tolerance" not in outcome.err


def test_nodes_alone_prove_nothing_where_others_were_replaced(rnn_lower: Command, tmp_path: Path) -> None:
    """onnxruntime runs the original only where one size is eight times another."""
    text = """g (float[frames,1,2] X, float[samples] wave) => (float[a,b] out)
        <float[1,12,2] W = {}, float[1,12,4] R = {}, int64[2] rows = {-1, 4}, int64[2] eight = {-1, 8}>
        { Y = GRU <hidden_size = 4> (X, W, R) y = Reshape (Y, rows) s = Reshape (wave, eight)
          c = Concat <axis = 1> (y, s) out = LogSoftmax <axis = 1> (c) }"""
    source = saved(tmp_path / "in.onnx", parse(text))
    refused = rnn_lower(source, tmp_path / "out.onnx", "--target", "tract", "--require-verified")
    assert refused.code == 5
    assert "onnxruntime cannot run the original: " in refused.err
    assert "give inputs that it takes: --test-input, --test-shape; or replace none: --keep-rest" in refused.err
    shapes = ["--test-shape", "X:3,1,2", "--test-shape", "wave:24"]
    done = rnn_lower(source, tmp_path / "out.onnx", "--target", "tract", "--require-verified", *shapes)
    assert done.code == 0, done.err


def test_a_required_verification(rnn_lower: Command, tmp_path: Path) -> None:
    """onnxruntime has no RNN of float64, and given inputs are those of the whole model."""
    source = saved(tmp_path / "in.onnx", model(Case("cli_double", "RNN", dtype="float64", x="symbolic"), 17))
    np.save(tmp_path / "x.npy", np.zeros((3, 2, 2)))
    given, target = ["--test-input", f"X={tmp_path / 'x.npy'}"], tmp_path / "out.onnx"
    for options, code in ((["--require-verified"], 5), ([], 0)):
        outcome = rnn_lower(source, target, *given, *options)
        assert outcome.code == code
        assert "not verified: onnxruntime cannot run the original" in outcome.err + outcome.out
        assert target.exists() == (code == 0)
    outcome = rnn_lower(source, target, "--require-verified", "--force")
    assert outcome.code == 0
    assert "nodes verified, not the whole model" in outcome.out


ENDLESS = """g (float[T,N,3] X) => (float[T,1,N,4] Y, int64 sum)
    <float[1,12,3] W = {}, float[1,12,4] R = {}, int64 trips = {1000000000000}, bool go = {1}, int64 zero = {0}>
    {
    Y = GRU <hidden_size = 4> (X, W, R)
    sum = Loop (trips, go, zero) <body = b (int64 step, bool go_in, int64 state) => (bool go_out, int64 next) {
        go_out = Identity (go_in)  next = Add (state, step) }> }"""


@pytest.mark.few(1)
@pytest.mark.parametrize("options", [[], ["-q"]])
def test_a_comparison_that_ran_out_of_time(tmp_path: Path, options: list[str]) -> None:
    source, target = saved(tmp_path / "in.onnx", parse(ENDLESS)), tmp_path / "out.onnx"
    done = child(str(source), str(target), "--verify-timeout", "0.2", *options)
    assert (done.returncode, target.exists()) == (0, True)
    assert done.stderr.startswith(
        "rnn-lower: warning: out.onnx is written, but not verified: the original timed out"
    )
    assert "(raise the limit: --verify-timeout; or" in done.stderr
    assert "with --require-verified it would not be" in done.stderr


@pytest.mark.usefixtures("own_processes")
def test_python_is_warned_of_a_comparison_that_ran_out_of_time(tmp_path: Path) -> None:
    source, target = saved(tmp_path / "in.onnx", parse(ENDLESS)), tmp_path / "out.onnx"
    with pytest.warns(
        rl.RnnLoweringWarning, match=r"raise the limit: .*timeout.*require_verified=True it would not"
    ):
        report = rl.lower_file(source, target, check=rl.Check(timeout=0.2))
    assert report.verification is not None
    assert report.verification.over_limit


@pytest.mark.exhaustive
def test_a_large_result_says_how_long_its_comparison_takes(rnn_lower: Command, tmp_path: Path) -> None:
    signs = "  ".join(f"x{n + 1} = Neg (x{n})" for n in range(10_000))
    text = "g (float[2,1,3] x0) => (float[2,1,1,4] Y) <float[1,12,3] W = {}, float[1,12,4] R = {}> {"
    net = parse(f"{text} {signs}  Y = GRU <hidden_size = 4> (x10000, W, R) }}")
    source, target = saved(tmp_path / "in.onnx", net), tmp_path / "out.onnx"
    outcome = rnn_lower(source, target, "--verify", "1")
    assert outcome.code == 0
    assert re.search(r"warning: the result has 10,0\d\d nodes, so its comparison takes about \d+ s", outcome.err)
    assert "--verify 1 compares fewer inputs, and --verify 0 none" in outcome.err
    assert rnn_lower(source, target, "--force", "--verify", "0").err == ""
