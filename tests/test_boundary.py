"""Nothing raw comes out: not an exception of another kind than the project's, not a name that moves the cursor."""

import contextlib
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from texts import parse

import rnn_lowering as rl
from rnn_lowering.cli.command import main
from rnn_lowering.errors import LINE, printable

LSTM = """
main (float[5,2,3] X) => (float[5,1,2,4] Y) <float[1,16,3] W = {}, float[1,16,4] R = {}> {
    [node] Y = LSTM <hidden_size=4> (X, W, R)
}
"""
HOSTILE = ("\x1b[2J\x1b]0;title\x07", "a\nrnn-lower: error: forged", "\u202ereversed", "n" * 70_000, "\x9b31m")


def model() -> onnx.ModelProto:
    return parse(LSTM)


# Exceptions


ENTRIES: dict[str, Callable[[Path], Any]] = {
    "lower": lambda _: rl.lower(model()),
    "lower in place": lambda _: rl.lower(ir.from_proto(model())),
    "the pass": lambda _: rl.LowerRecurrentPass()(ir.from_proto(model())),
    "lower_file": lambda file: rl.lower_file(file, file.with_name("out.onnx"), verify=0),
    "inspect": lambda file: rl.inspect(file),
    "preview": lambda file: rl.preview(file),
}
"""Calls that parse a node."""


def broken(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    def parse_attributes(*_: object) -> None:
        raise error

    monkeypatch.setattr("rnn_lowering.nodes.spec.NodeReader.check_attributes", parse_attributes)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    onnx.save(model(), tmp_path / "in.onnx")
    return tmp_path / "in.onnx"


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_fault_of_ours_is_an_error_that_asks_to_report_it(
    entry: str, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(KeyError("lost"), monkeypatch)
    with pytest.raises(
        rl.InternalError, match=r"LSTM node 'node' in main graph: KeyError.*please report"
    ) as caught:
        ENTRIES[entry](file)
    cause = caught.value.__cause__
    assert isinstance(cause, KeyError)
    assert caught.value.node is not None
    assert not file.with_name("out.onnx").exists()


@pytest.mark.parametrize(
    "error", [MemoryError(), RecursionError(), OSError(28, "No space left on device")], ids=repr
)
def test_exceptions_of_the_system_have_messages_of_their_own(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(error, monkeypatch)
    with pytest.raises(rl.RnnLoweringError) as caught:
        rl.lower(model())
    assert not isinstance(caught.value, rl.InternalError)
    assert caught.value.__cause__ is error


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(7)], ids=repr)
def test_interrupts_pass(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    broken(error, monkeypatch)
    with pytest.raises(type(error)) as caught:
        rl.lower(model())
    assert caught.value is error


@pytest.mark.skipif(sys.platform == "win32", reason="there is no such limit")
@pytest.mark.parametrize("more", range(5))
@pytest.mark.usefixtures("own_processes")
def test_too_many_open_files_are_an_error_with_what_to_do(file: Path, more: int) -> None:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(list(Path("/dev/fd").iterdir())) - 1 + more, hard))
    try:
        with pytest.raises(rl.ModelFileError) as caught:
            rl.lower_file(file, file.with_name("out.onnx"), verify=1)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert re.search(r"cannot (read|write) '.*': Too many|cannot open .*: Too many.*ulimit -n", str(caught.value))
    assert [path.name for path in file.parent.iterdir()] == ["in.onnx"]


def test_verify_has_the_boundary(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise KeyError("lost")

    monkeypatch.setattr("rnn_lowering.compare.verify.as_file", fail)
    with pytest.raises(rl.InternalError, match="please report"):
        rl.verify(model(), model())


def test_what_the_callers_function_raises_reaches_the_caller(file: Path) -> None:
    class CancelledError(ValueError):
        pass

    def cancel(*_: object) -> None:
        raise CancelledError

    with pytest.raises(CancelledError):
        rl.lower_file(file, file.with_name("out.onnx"), verify=1, progress=cancel)
    assert not file.with_name("out.onnx").exists()
    with pytest.raises(CancelledError):
        rl.verify(file, file, progress=cancel)


def test_the_command_shows_the_traceback_at_vv_only(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken(KeyError("lost\x1b"), monkeypatch)
    assert main([str(file), "--list"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "please report" in line
    assert main([str(file), "--list", "-vv"]) == 1
    shown = capsys.readouterr().err
    assert "Traceback" in shown
    assert "KeyError" in shown
    assert "\x1b" not in shown


# Text


@pytest.mark.parametrize(
    "text", [*HOSTILE, "\udcff", "\0", "a\r\nb", "\u2028", "tab\t"], ids=range(len(HOSTILE) + 5)
)
def test_printable(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    assert len(shown) <= LINE + 30


@pytest.mark.parametrize("text", ["", "conv/1 (x)", "naïve 名前 Ω", "C:\\new"])
def test_what_can_be_printed_stays(text: str) -> None:
    assert printable(text) == text


def hostile_models(name: str) -> dict[str, onnx.ModelProto]:
    """Models that make every kind of message speak of a name."""
    found = {
        "lowered": LSTM,
        "refused": LSTM.replace("hidden_size=4", "hidden_size=5"),
        "unknown activation": LSTM.replace("hidden_size=4", 'hidden_size=4, activations=["A","B","C"]'),
        "warned": LSTM.replace("hidden_size=4", 'hidden_size=4, activations=["Affine","Tanh","Tanh"]'),
    }
    models = {}
    for kind, text in found.items():
        proto = parse(text)
        (node,) = proto.graph.node
        node.name = name
        node.output[0] = proto.graph.output[0].name = name
        for attribute in node.attribute:
            if kind == "unknown activation" and attribute.name == "activations":
                attribute.strings[0] = name.encode()
        models[kind] = proto
    return models


@pytest.mark.few(3)
@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_names_never_reach_the_terminal_as_they_are(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for kind, proto in hostile_models(name).items():
        source = tmp_path / f"{kind}.onnx"
        onnx.save(proto, source)
        for arguments in (["--list"], [str(tmp_path / f"{kind}.out.onnx"), "--verify", "0"]):
            main([str(source), *arguments])
            out, err = capsys.readouterr()
            for line in (out + err).split("\n"):
                assert line.isprintable(), ascii(line)
                assert len(line) < 6000
            assert "\nrnn-lower: error: forged" not in out + err
            assert len([line for line in err.split("\n") if line.startswith("rnn-lower: error")]) <= 1


def test_the_report_keeps_the_whole_name() -> None:
    proto = hostile_models(HOSTILE[3])["lowered"]
    _, report = rl.lower(proto, full=True)
    assert report.nodes[0].name == HOSTILE[3]


def test_errors_keep_what_they_found() -> None:
    error = rl.UnsupportedError("name '" + "n" * 5000 + "\n'", hint="h\n")
    assert "\n" not in str(error)
    assert len(str(error)) < 2 * LINE
    assert len(error.reason) > 5000


@pytest.mark.few(1)
@pytest.mark.parametrize("name", [HOSTILE[0] + HOSTILE[2], HOSTILE[3]], ids=range(2))
def test_the_page_and_its_drawings_show_no_such_name(name: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    onnx.save(hostile_models(name)["lowered"], tmp_path / "in.onnx")
    page = tmp_path / "r.html"
    rl.lower_file(tmp_path / "in.onnx", tmp_path / "out.onnx", verify=1, report=page)
    text = page.read_text(encoding="utf-8")
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "n" * 5000 not in text


def test_a_name_of_a_file_that_is_no_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a\udcff\x1b.onnx"
    with contextlib.suppress(OSError):
        path.write_bytes(b"not a model")
    assert main([str(path), "--list"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.isprintable()


def test_inputs_of_hostile_names_in_dims_and_feeds() -> None:
    with pytest.raises(rl.RnnLoweringError) as caught:
        rl.lower(model(), dims={HOSTILE[0]: 3})
    assert str(caught.value).isprintable()
    check = rl.verify(model(), rl.lower(model()), feeds=[{"X": np.zeros((5, 2, 3), np.float32)}])
    assert check.status == "verified"


# The command's other texts


@pytest.mark.parametrize("option", ["--set-dim", "--to", "--report", "--max-unroll", "--test-input", HOSTILE[0]])
@pytest.mark.parametrize("value", HOSTILE, ids=range(len(HOSTILE)))
def test_usage_errors_show_no_hostile_value(option: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["in.onnx", "out.onnx", "more", option, value])
    lines = capsys.readouterr().err.removesuffix("\n").split("\n")
    assert all(line.isprintable() and len(line) < 2000 for line in lines)
    assert [n for n, line in enumerate(lines) if line.startswith("rnn-lower: error")] == [len(lines) - 1]


@pytest.mark.parametrize("ending", ["onnxtxt", "textproto", "json"])
def test_formats_of_text_are_read_as_onnx_reads_them(
    ending: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / f"in.{ending}"
    with warnings.catch_warnings(action="ignore"):
        onnx.save(model(), source)
    with warnings.catch_warnings(action="error"):
        assert len(rl.inspect(source)) == 1
        assert main([str(source), str(tmp_path / "out.onnx"), "-q"]) == 0
    assert capfd.readouterr().err == ""
    source.write_bytes(b"{ \x1b not a model")
    with pytest.raises(rl.ModelFileError):
        rl.inspect(source)


SPEAKS = """
import sys, logging
def speak(*_):
    logging.getLogger("onnx_ir.serde").warning("inner")
    return 0
import rnn_lowering.cli.command as command
command.main = speak
from rnn_lowering.__main__ import main
speak() if sys.argv[1:] else main()
"""


@pytest.mark.parametrize(("arguments", "shown"), [((), ""), (("library",), "inner\n")])
def test_what_libraries_log_is_shown_to_callers_and_not_by_the_command(arguments: tuple[str], shown: str) -> None:
    command = [sys.executable, "-c", SPEAKS, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == shown


def test_a_result_that_cannot_be_written_has_an_error_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(given: object) -> None:
        raise ir.serde.SerdeError("outer") from ValueError("a tensor\nof text")

    monkeypatch.setattr(ir, "to_proto", fail)
    with pytest.raises(rl.UnsupportedError, match="the model cannot be written: a tensor of text"):
        rl.lower(model())
