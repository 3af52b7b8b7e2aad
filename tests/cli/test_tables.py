"""Tables fit the terminal, names are never cut, and a pipe gets what a terminal of 80 columns shows."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from cases import Case, model
from chains import Link, chain
from commands import Command, saved
from paths import EXAMPLES, SRC
from texts import parse

import rnn_lowering as rl
from rnn_lowering.cli import console
from rnn_lowering.cli.console import Table

LONG = "/encoder/layers.0/a_name_that_is_longer_than_a_third_of_the_terminal/lstm/LSTM"
MODEL = chain(
    Link("LSTM", LONG),
    Link("GRU", "/decoder/gru", {"direction": "bidirectional"}),
    Link("RNN", "/x", {"activations": ["Affine"], "activation_alpha": [1.0], "activation_beta": [0.0]}),
)
SHOWN = {
    "list": ("--list",),
    "refused": ("--list", "--to", "unroll"),
    "lowered": ("OUT", "-v", "--force"),
    "stream": ("OUT", "--stream", "seq=1", "--except", "/decoder/gru", "--to", "keep", "--force"),
    "targets": ("--targets",),
}


@pytest.mark.few(3)
@pytest.mark.parametrize("columns", [60, 80])
@pytest.mark.parametrize("name", SHOWN)
def test_a_table_fits(
    name: str, columns: int, tmp_path: Path, rnn_lower: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    links = [MODEL] if name != "stream" else [chain(Link("LSTM", LONG), Link("GRU", "/decoder/gru"))]
    source = saved(tmp_path / "in.onnx", links[0])
    monkeypatch.setenv("COLUMNS", str(columns))
    given = [tmp_path / "out.onnx" if each == "OUT" else each for each in SHOWN[name]]
    outcome = rnn_lower(source, *given)
    assert outcome.err == "" or "warning" in outcome.err
    tables = [line for line in outcome.lines if line.startswith(" ") and '"' not in line]
    assert tables
    assert "..." not in "".join(tables)
    assert "\N{HORIZONTAL ELLIPSIS}" not in outcome.out
    for line in tables:
        assert len(line) <= columns or LONG in line or max(map(len, line.split())) > columns // 2, line
    if name == "targets":
        assert [line.split()[0] for line in tables if not line.startswith("  ")] == ["target", *rl.TARGETS]
    else:
        assert all(node in outcome.out for node in (LONG, "/decoder/gru"))


@pytest.mark.parametrize("columns", [60, 80])
def test_the_names_of_a_run_have_lines_of_their_own(
    columns: int, tmp_path: Path, rnn_lower: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long they are, only they are wider than the terminal."""
    name, result = f"{LONG}/frames", f"{LONG}/result"
    text = f'''g (float[T,1,2] "{name}") => (float[T,1,1,4] "{result}")
        <float[1,4,2] W = {{}}, float[1,4,4] R = {{}}> {{
        "{result}" = RNN <hidden_size = 4> ("{name}", W, R) }}'''
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = rnn_lower(saved(tmp_path / "in.onnx", parse(text)), tmp_path / "out.onnx", "-v").lines
    runs = lines[lines.index(next(line for line in lines if line.startswith("compared by"))) + 1 :]
    table = [line for line in runs if line.startswith(" ")]
    assert len(table) > 6
    for line in table:
        assert len(line) <= columns or line.strip(" ';") in (name, result, f"-> {result}"), line


def test_the_columns_that_do_not_fit_are_below_the_row(rnn_lower: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = rnn_lower(EXAMPLES / "model.onnx", "--list").lines
    assert lines[0].split() == ["node", "operator", "scope", "direction", "T", "N", "I", "H", "type", "form"]
    assert lines[2] == "     activations: Sigmoid, Tanh, Tanh; why: first choice for target portable"


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such terminals")
def test_a_pipe_gets_what_a_terminal_shows() -> None:
    command = [sys.executable, "-m", "rnn_lowering", str(EXAMPLES / "model.onnx"), "--list"]
    variables = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    variables |= {"PYTHONPATH": str(SRC), "TERM": "dumb"}
    piped = subprocess.run(command, capture_output=True, text=True, check=False, env=variables).stdout
    ours, theirs = pty.openpty()
    ended = subprocess.run(command, stdout=theirs, stderr=theirs, check=False, env={**variables, "COLUMNS": "80"})
    os.close(theirs)
    shown = os.read(ours, 1 << 16).decode().replace("\r\n", "\n")
    os.close(ours)
    assert ended.returncode == 4
    assert shown == piped


def test_what_failed_is_red(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other row is, and none of an input alone."""
    tables: list[Table] = []
    monkeypatch.setattr(console, "print_table", tables.append)
    right, wrong = (
        parse(f"g (float[2] a, float[2] b) => (float[2] c) {{ c = {op} (a, b) }}") for op in ("Add", "Sub")
    )
    for other, styles in ((right, ["", ""]), (wrong, ["red", ""])):
        console.print_runs(rl.verify(right, other, runs=1))
        assert [style for _, style in tables[-1].rows] == styles


def test_wide_characters_take_two_columns() -> None:
    table = Table(("node", "form"), ())
    table.add("\u540d\u524d", "scan")
    table.add("name", "loop")
    assert [text for text, _ in table.lines(40)] == [" node  form", " \u540d\u524d  scan", " name  loop"]


# What it says is what it did


def without_recurrent_nodes() -> onnx.ModelProto:
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[n] a) => (float[n] b) { b = Relu (a) }'
    return onnx.parser.parse_model(text)


def test_nothing_to_lower_and_other_inputs(tmp_path: Path, rnn_lower: Command) -> None:
    source, out = saved(tmp_path / "in.onnx", without_recurrent_nodes()), tmp_path / "out.onnx"
    changed = rnn_lower(source, out, "--set-dim", "n=4")
    assert "nothing to lower; the inputs are now a [4]\n" in changed.out
    assert "unchanged" not in changed.out
    assert changed.lines[-1] == f"written to {out}"
    same = rnn_lower(source, out, "--force")
    assert same.lines == [f"{source}: nothing to lower; unchanged", f"written to {out}"]
    assert out.read_bytes() == source.read_bytes()


def test_no_comparison_is_told(tmp_path: Path, rnn_lower: Command) -> None:
    source = saved(tmp_path / "in.onnx", model(Case("said", "GRU"), 17))
    lines = rnn_lower(source, tmp_path / "out.onnx", "--verify", "0").lines
    assert lines[1:3] == [
        "not compared with the original: no run was asked for",
        f"written to {tmp_path / 'out.onnx'}",
    ]
    assert "not compared" not in rnn_lower(source, tmp_path / "out.onnx", "--force").out


def test_a_list_with_a_loop_that_stays(tmp_path: Path, rnn_lower: Command) -> None:
    text = """<ir_version: 8, opset_import: ["": 17]>
        g (float[2] a) => (float[2] b) <int64 M = {3}, bool yes = {1}> {
        b = Loop (M, yes, a) <body = d (int64 i, bool c, float[2] s) => (bool c1, float[2] s1)
            { s1 = Add (s, s) c1 = Identity (c) }> }"""
    outcome = rnn_lower(saved(tmp_path / "in.onnx", onnx.parser.parse_model(text)), "--list")
    assert outcome.code == 0
    assert outcome.lines[0].endswith("in.onnx: no recurrent nodes other than a Loop, which stays as it is")
    two = onnx.parser.parse_model(text)
    two.graph.node.add().CopyFrom(two.graph.node[0])
    two.graph.node[1].output[0] = "b2"
    two.graph.output.add().CopyFrom(two.graph.output[0])
    two.graph.output[1].name = "b2"
    outcome = rnn_lower(saved(tmp_path / "two.onnx", two), "--list")
    assert outcome.lines[0].endswith("two.onnx: no recurrent nodes other than 2 Loops, which stay as they are")
