"""What the command refuses: files, places and wrong usage."""

from pathlib import Path

import onnx
import pytest
from cases import Case, model
from commands import STATIC, SYMBOLIC, Command, assert_refused, files, saved
from running import operators, recurrent_left


@pytest.mark.parametrize("options", [[], ["--quiet"], ["--no-verify"]])
def test_an_existing_output_is_kept(source: Path, rnn_lower: Command, tmp_path: Path, options: list[str]) -> None:
    target = tmp_path / "out.onnx"
    target.write_bytes(b"precious")
    assert_refused(rnn_lower(source, target, *options), str(target), "--force")
    assert target.read_bytes() == b"precious"


def test_force(source: Path, rnn_lower: Command, tmp_path: Path) -> None:
    target = tmp_path / "out.onnx"
    target.write_bytes(b"old")
    assert rnn_lower(source, target, "--force", "--no-verify").code == 0
    assert recurrent_left(onnx.load(target)) == []


def test_force_keeps_the_output_when_refused(source: Path, rnn_lower: Command, tmp_path: Path) -> None:
    target = tmp_path / "out.onnx"
    target.write_bytes(b"precious")
    assert_refused(rnn_lower(source, target, "--force", "--to", "unroll"), "recurrent")
    assert target.read_bytes() == b"precious"


@pytest.mark.parametrize("alias", ["itself", "dotted", "symbolic link", "hard link"])
def test_the_input_is_no_output(source: Path, rnn_lower: Command, tmp_path: Path, alias: str) -> None:
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
    assert f"; {hint} (see docs/" in outcome.err


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
def test_an_impossible_place_is_refused(source: Path, rnn_lower: Command, tmp_path: Path, target: str) -> None:
    assert_refused(rnn_lower(source, tmp_path / target, "--no-verify"), "out.onnx")
    assert files(tmp_path).keys() == {"in.onnx"}


@pytest.mark.parametrize("options", [[], ["--force"]])
def test_a_directory_is_no_output(source: Path, rnn_lower: Command, tmp_path: Path, options: list[str]) -> None:
    target = tmp_path / "folder"
    target.mkdir()
    assert_refused(rnn_lower(source, target, "--no-verify", *options), "folder")
    assert target.is_dir()
    assert files(tmp_path).keys() == {"in.onnx"}


def test_an_impossible_report_is_refused(source: Path, rnn_lower: Command, tmp_path: Path) -> None:
    report = tmp_path / "missing" / "report.json"
    outcome = rnn_lower(source, tmp_path / "out.onnx", "--no-verify", "--report", report)
    assert_refused(outcome, "report.json")
    assert files(tmp_path).keys() == {"in.onnx"}


@pytest.mark.parametrize("name", ["in.onnx", "out.onnx"])
def test_the_report_does_not_replace_a_model(source: Path, rnn_lower: Command, tmp_path: Path, name: str) -> None:
    target = tmp_path / "out.onnx"
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
def test_wrong_usage(source: Path, rnn_lower: Command, tmp_path: Path, arguments: list[str]) -> None:
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
        (["--verify", "a"], "'a' is not a whole number"),
        (["--verify-timeout", "1m"], "'1m' is not a number"),
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
