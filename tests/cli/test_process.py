"""The command as a process: entry points, pipes, signals."""

import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import onnx
import pytest
from chains import Link, chain
from commands import THREE, Command, Outcome, cells, child, files, saved, without_recurrent_nodes
from running import recurrent_left
from thinning import thinned

import rnn_lowering as rl
from rnn_lowering import __main__


@pytest.mark.parametrize(("verbosity", "traceback"), [([], False), (["-v"], False), (["-vv"], True)])
def test_traceback(rnn_lower: Command, tmp_path: Path, verbosity: list[str], traceback: bool) -> None:
    outcome = rnn_lower(tmp_path / "missing.onnx", tmp_path / "out.onnx", *verbosity)
    assert outcome.code == 1
    assert ("Traceback (most recent call last)" in outcome.err) == traceback
    assert "missing.onnx" in outcome.err
    assert traceback or outcome.err.startswith("rnn-lower: error: ")


def test_as_a_module(tmp_path: Path) -> None:
    source, target = saved(tmp_path / "in.onnx", chain(*THREE)), tmp_path / "out.onnx"
    done = child(source, target, "--no-verify")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"written to {target}" in done.stdout
    assert recurrent_left(onnx.load(target)) == []


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


@pytest.mark.parametrize(
    "environment", thinned([{"COLUMNS": "40", "TERM": "dumb"}, {"TERM": "xterm-256color"}], 2), ids=str
)
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
def test_interrupt(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.onnx"
    done = child(source, target, code=INTERRUPTED)
    assert done.returncode not in (0, 2, 3, 4)
    assert done.returncode == 130
    assert done.stderr.startswith("rnn-lower: interrupted")
    assert done.stderr.count("\n") == 1
    assert files(tmp_path).keys() == {"in.onnx"}


INTERRUPTED_RUN = """
import os, signal, subprocess, sys, threading
from rnn_lowering.cli import command as cli
class Soon(subprocess.Popen):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
signal.signal(signal.SIGINT, signal.default_int_handler)
subprocess.Popen = Soon
sys.exit(cli.main())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals differ")
@pytest.mark.parametrize(
    "options", thinned([["--report", "report.json", "--keep-failed", "kept.onnx", "-v"], []], 2), ids=str
)
def test_an_interrupt_while_a_model_runs(source: Path, tmp_path: Path, options: list[str]) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    options = [str(tmp_path / option) if "." in option else option for option in options]
    done = child(source, tmp_path / "out.onnx", *options, code=INTERRUPTED_RUN, TMPDIR=str(scratch))
    assert done.returncode == 130
    assert done.stderr == "rnn-lower: interrupted; nothing was written\n"
    assert done.stdout == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.onnx", "scratch"]
    assert [path.name for path in scratch.iterdir() if path.name != ".ses"] == []  # that one is onnxruntime's
