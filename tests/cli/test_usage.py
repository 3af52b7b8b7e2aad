"""What the command refuses: files, nodes and wrong usage. All places for outputs are in files/test_outputs.py."""

import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from cases import Case, model
from commands import STATIC, SYMBOLIC, Command, assert_refused, files, saved
from paths import EXAMPLES
from running import operators, recurrent_left


def test_an_existing_output_is_replaced_by_force(source: Path, rnn_lower: Command, tmp_path: Path) -> None:
    target = tmp_path / "out.onnx"
    target.write_bytes(b"precious")
    for options in ([], ["--quiet"], ["--verify", "0"]):
        assert_refused(rnn_lower(source, target, *options), str(target), "--force")
    assert_refused(rnn_lower(source, target, "--force", "--to", "unroll"), "recurrent")
    assert_refused(rnn_lower(source, source, "--force"), "input", "another file")
    assert target.read_bytes() == b"precious"
    assert rnn_lower(source, target, "--force", "--verify", "0").code == 0
    assert recurrent_left(onnx.load(target)) == []


WHOLE = model(SYMBOLIC, 17).SerializeToString()
BAD_FILES: dict[str, bytes | None] = {
    "missing": None,
    "no graph": onnx.ModelProto(ir_version=8).SerializeToString(),
    "text": b"This is not a model.\n" * 9,
    "empty": b"",
    "truncated": WHOLE[: len(WHOLE) // 2],
    "two lines": b"\n\n",
    "image": b"\x89PNG\r\n\x1a\n" + bytes(64),
}


@pytest.mark.parametrize("kind", [*BAD_FILES, "folder"])
def test_a_bad_file_is_refused(rnn_lower: Command, tmp_path: Path, kind: str) -> None:
    source = tmp_path / "in.onnx"
    contents = BAD_FILES.get(kind)
    if kind == "folder":
        source.mkdir()
    elif contents is not None:
        source.write_bytes(contents)
    before = files(tmp_path)
    for option in (tmp_path / "out.onnx", "--list"):
        outcome = rnn_lower(source, option)
        assert_refused(outcome, str(source))
        assert "Traceback" not in outcome.err
    assert files(tmp_path) == before


@pytest.mark.parametrize(
    ("name", "hint"), [("net.pt", "export it to ONNX first"), ("net.onnx", "unpack it, and name the model in it")]
)
def test_a_model_of_a_framework_is_to_be_exported(rnn_lower: Command, tmp_path: Path, name: str, hint: str) -> None:
    (tmp_path / name).write_bytes(b"PK\x03\x04" + b"x" * 64)
    outcome = rnn_lower(tmp_path / name, tmp_path / "out.onnx")
    assert_refused(outcome, name)
    assert outcome.err.endswith(f"; {hint}\n")


REFUSED: dict[str, tuple[onnx.ModelProto, str, tuple[str, ...]]] = {
    "a bad node": (
        model(Case("cli_bad", "LSTM", {"activations": ["Foo", "Tanh", "Tanh"]}), 17),
        "",
        ("LSTM node 'recurrent' in main graph", "'Foo'", "Sigmoid"),
    ),
    "an impossible form": (
        model(STATIC, 8),
        "--to scan",
        ("GRU node 'recurrent' in main graph", "opset 9", "--to loop"),
    ),
    "too many steps": (
        model(STATIC, 17),
        f"--to unroll --max-unroll {STATIC.T - 1}",
        (f"--max-unroll {STATIC.T}", "scan", "loop"),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_lowered_is_refused(rnn_lower: Command, tmp_path: Path, name: str) -> None:
    proto, options, facts = REFUSED[name]
    source = saved(tmp_path / "in.onnx", proto)
    assert_refused(rnn_lower(source, tmp_path / "out.onnx", *options.split()), *facts)
    if name == "a bad node":
        assert_refused(rnn_lower(source, "--list"), *facts)
    assert files(tmp_path).keys() == {"in.onnx"}


WRONG_USAGE = {
    "IN": "",
    "'' OUT": "the name of a file is empty; give a path",
    "IN OUT third": "several models need a folder for their results: add --out-dir DIR, or --list",
    "IN OUT --unknown": "",
    "IN OUT --to": "",
    "IN OUT --to while": "form 'while' does not exist; known are auto, scan, loop, unroll, chunked, keep",
    "IN OUT --to tvm": "form 'tvm' does not exist; it is a target: --target tvm",
    "IN OUT --target unroll": "target 'unroll' does not exist; it is a form: --to unroll",
    "IN OUT --require-v": "unrecognized arguments: --require-v; did you mean --require-verified?",
    "IN OUT --to SCAN": "; did you mean scan?",
    "IN OUT --to unrol": "; did you mean unroll?",
    "IN OUT --verify -1": "",
    "IN OUT --verify many": "'many' is not a whole number",
    "IN OUT --runs 1": "unrecognized arguments: --runs 1; did you mean --verify?",
    "IN OUT --quantize": "unrecognized arguments: --quantize; did you mean --calibrate?",
    "IN OUT --require-verified --verify 0": "needs a comparison; drop it, or compare 1 run or more",
    "IN OUT --require-proven --verify 0": "needs a comparison; drop it, or compare 1 run or more",
    "IN OUT --stream seq=1 --bits w8a16": "--bits needs a calibration; add --calibrate, or drop --bits",
    "IN --list --report report.json": "--list writes no report; drop --report or --list",
    "IN OUT --verify-timeout 1m": "'1m' is not a number",
    "IN OUT --max-unroll -1": "",
    "IN OUT --max-unroll 1.5": "",
    "IN OUT --rtol small": "",
    "IN OUT --atol": "",
    "IN OUT --seed x": "",
    "IN OUT --set-dim seq": "'seq' is not NAME=SIZE, such as seq=16",
    "IN OUT --set-dim seq=long": "",
    "IN OUT --set-dim seq=4,N=1": "names several dimensions; write --set-dim seq=4 --set-dim N=1",
    "IN OUT --open-dim X:0": "'X:0' is not INPUT:AXIS=NAME, such as X:1=time",
    "IN OUT --set-dim seq=4,N=x": "'seq=4,N=x' is not NAME=SIZE, such as seq=16",
    "IN OUT --target tensorflow": "; did you mean tensorflowlite?",
    "IN OUT --set-dim seq=-1": "",
    "IN OUT --set-shape X": "",
    "IN OUT --set-shape X:1,,2": "",
    "IN OUT --set-shape X:1,a": "",
    "IN OUT --compute int8": "known are native, float32",
    "IN OUT --compute float23": "; did you mean float32?",
    "IN OUT --stream seq=1 --bits w8a17": "; did you mean w8a16?",
    "IN OUT --only": "",
    "IN OUT --test-input X": "",
    "IN OUT --report report.txt": "",
    "IN OUT --stream time=0": "",
    "IN OUT --stream time=x": "",
    "IN OUT --stream time=-1": "",
    "IN OUT --stream ''": "",
    "IN OUT --target tvn": "; did you mean tvm?",
    "IN OUT --target trtexcc": "; did you mean trtexec?",
    "IN OUT --target TVMM": "; did you mean tvm?",
    "IN OUT --target openvinno": "; did you mean openvino?",
    "IN OUT --target nncase": "use --to unroll without a target; --targets lists 30",
    "IN OUT --target tensorflowjs": "; --targets lists 30",
    "IN --targets hailo": "; --targets lists 30",
    "IN OUT -q -v": "-q prints less and -v prints more; drop one of them",
    "IN OUT --only LSTM --except LSTM": "'LSTM' is to be lowered, and not to be; drop --only or --except",
    "IN OUT --only GRU --only a* --except a*": "'a*' is to be lowered, and not to be; drop --only or --except",
    "IN OUT --set-dim seq=4 --set-dim seq=5": "--set-dim gives 'seq' twice: 4 and 5; give it once",
    "IN OUT --target tvm --target trt": "argument --target: given twice: tvm and tensorrt; give it once",
    "IN OUT --atol 0 --atol 1": "argument --atol: given twice: 0.0 and 1.0; give it once",
    "IN OUT --stream seq=1 --delay --delay 1": "argument --delay: given twice: True and 1; give it once",
    "IN --out-dir a --out-dir b": "argument --out-dir: given twice: a and b; give it once",
    "IN OUT --max-frames 3": "a maximum of frames needs a stream; add --stream, or drop --max-frames",
    "IN OUT --verify 2000000": "--verify cannot be 2000000; give a whole number, 0 or more, at most 1,000,000",
    "IN OUT --preview": "unrecognized arguments: --preview; did you mean --list?",
    "https://x/in.onnx OUT": "'https://x/in.onnx' is an address, not a file; download the file, and give its path",
    "IN s3://x/out.onnx": "'s3://x/out.onnx' is an address, not a file; download the file, and give its path",
    "IN OUT --seed 99999999999999999999": "give a whole number, 0 or more, at most 9,223,372,036,854,775,807",
    "--hlep": "unrecognized arguments: --hlep; did you mean --help?",
    "--tagret tvm": "unrecognized arguments: --tagret; did you mean --target?",
    "-q": "IN.onnx is missing; name the model",
    "--list": "IN.onnx is missing; name the model",
    "IN OUT --unrol": "unrecognized arguments: --unrol; did you mean --to unroll?",
    "IN OUT --scan": "unrecognized arguments: --scan; did you mean --to scan?",
    "IN OUT --tvm": "unrecognized arguments: --tvm; did you mean --target tvm?",
    "IN OUT --dims seq=16": "unrecognized arguments: --dims seq=16; did you mean --set-dim?",
    "IN -o OUT": "; name the result without a flag: rnn-lower IN.onnx OUT.onnx",
    "IN OUT --target tmv": "; did you mean tvm?",
    "IN OUT --wat": "unrecognized arguments: --wat; --help-all shows all options",
    "IN OUT --tagret tvm": "unrecognized arguments: --tagret tvm; did you mean --target?",
}
"""Arguments, and how the error ends."""


@pytest.mark.parametrize("arguments", WRONG_USAGE)
def test_wrong_usage(source: Path, rnn_lower: Command, tmp_path: Path, arguments: str) -> None:
    places = {"IN": str(source), "OUT": str(tmp_path / "out.onnx"), "''": ""}
    outcome = rnn_lower(*[places.get(argument, argument) for argument in arguments.split()])
    assert (outcome.code, outcome.out) == (2, "")
    lines = outcome.err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("rnn-lower: error: ")
    assert lines[0].endswith(WRONG_USAGE[arguments])
    assert files(tmp_path).keys() == {"in.onnx"}


def test_without_arguments_the_help_is_shown(rnn_lower: Command) -> None:
    outcome = rnn_lower()
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err == rnn_lower("--help").out


@pytest.mark.few(2)
@pytest.mark.parametrize("order", ["IN --to loop OUT -q", "--to loop IN -q OUT", "-q --to loop -- IN OUT"])
def test_options_may_be_anywhere(source: Path, rnn_lower: Command, tmp_path: Path, order: str) -> None:
    places = {"IN": source, "OUT": tmp_path / "out.onnx"}
    assert rnn_lower(*[places.get(word, word) for word in order.split()]).code == 0
    assert "Loop" in operators(onnx.load(tmp_path / "out.onnx"))


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab\nsize 12345\n"
WHAT_IT_IS = {
    "a pointer of Git LFS": (LFS, "is a Git LFS pointer, not an ONNX model; git lfs pull gets the model"),
    "a page of an error": (
        b"<!doctype html>\n<title>404",
        "is text that begins with '<!doctype html>', not an ONNX model; download or export it again",
    ),
    "nothing": (b"", "'in.onnx' is empty; download or export it again"),
    "a zip archive": (b"PK\x03\x04" + bytes(40), "'in.onnx' is a zip archive, not an ONNX model; unpack it"),
    "a tar archive": (bytes(257) + b"ustar\x0000", "'in.onnx' is a tar archive, not an ONNX model; unpack it"),
    "a pickle": (b"\x80\x04\x95abc", "is a pickle, as PyTorch writes them, not an ONNX model; export it"),
    "a file of Keras": (b"\x89HDF\r\n\x1a\n" + b"x" * 50, "is an HDF5 file, as Keras writes them, not an ONNX"),
    "TensorFlow Lite": (b"\x1c\0\0\0TFL3" + bytes(9), "is a model of TensorFlow Lite, not an ONNX model;"),
    "an ORT file": (b"\0\0\0\0ORTM" + bytes(9), "of onnxruntime (.ort), not an ONNX model; give the .onnx file"),
    "safetensors": (b"@" + bytes(7) + b'{"w":{}}', "is weights without a graph (safetensors), not an ONNX"),
    "bytes": (b"\x0a\xff\x00\x01", "'in.onnx' is not an ONNX model: "),
}


@pytest.mark.parametrize("name", WHAT_IT_IS)
@pytest.mark.parametrize("arguments", [["--list"], ["out.onnx"], ["--stream"]], ids=lambda given: given[0])
def test_a_file_that_is_no_model_is_named_for_what_it_is(
    name: str, arguments: list[str], tmp_path: Path, rnn_lower: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    content, said = WHAT_IT_IS[name]
    monkeypatch.chdir(tmp_path)
    Path("in.onnx").write_bytes(content)
    outcome = rnn_lower("in.onnx", *arguments)
    assert_refused(outcome, said)


@pytest.mark.parametrize("arguments", [["--list"], ["out.onnx"], ["out.onnx", "--stream", "seq=1"]], ids=len)
def test_an_input_that_nothing_gives_is_named(
    arguments: list[str], tmp_path: Path, rnn_lower: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    proto = onnx.load(EXAMPLES / "model.onnx")
    (node,) = (node for node in proto.graph.node if node.op_type == "GRU")
    node.input[0] = "nowhere"
    outcome = rnn_lower(saved(tmp_path / "in.onnx", proto), *arguments)
    assert_refused(outcome, "GRU node '/gru/GRU' in main graph: its input 'nowhere' is no output of a node, ")
    assert len(outcome.err) < 250


def test_standard_input_and_output(tmp_path: Path, rnn_lower: Command) -> None:
    model, out = (EXAMPLES / "model.onnx").read_bytes(), tmp_path / "out.onnx"
    command = [sys.executable, "-m", "rnn_lowering", "-"]
    listed = subprocess.run([*command, "--list"], input=model, capture_output=True, check=False)
    assert (listed.returncode, listed.stderr) == (4, b"")
    done = subprocess.run([*command, str(out), "--verify", "0"], input=model, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert recurrent_left(onnx.load(out)) == []
    for refused in (["model.onnx", "-"], ["-", "-"]):
        ended = rnn_lower(*refused)
        assert ended.code == 2
        assert ended.err.endswith("rnn-lower: error: OUT.onnx cannot be stdout (-): name a file\n")
