"""The command as a process: entry points, pipes, signals."""

import os
import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from chains import Link, chain
from commands import THREE, Command, Outcome, cells, child, saved, without_recurrent_nodes
from paths import SRC
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
import re
import sys
from rnn_lowering.cli.command import main
try:
    main()
finally:
    print("loaded:", sorted({"onnx", "numpy", "rich", "onnx_ir", "onnxruntime", "onnxscript"} & set(sys.modules)))
"""


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["in.onnx"], ["in.onnx", "out.onnx", "--to", "x"]]
)
def test_usage_is_instant(arguments: list[str]) -> None:
    done = child(*arguments, code=HEAVY)
    assert done.returncode == (0 if arguments[0].startswith("--") else 2)
    assert done.stdout.splitlines()[-1] == "loaded: []"


LATE = """
import os
import sys
os.environ.pop("OPENBLAS_NUM_THREADS", None)
from rnn_lowering.__main__ import main
if "loaded" in sys.argv:
    sys.argv.remove("loaded")
    import sympy, onnx_ir
code = main()
print("sympy.core" in sys.modules, os.environ["OPENBLAS_NUM_THREADS"])
import onnx_ir, sympy
dim = onnx_ir.SymbolicDim("T//2 + 1") + 1
print(dim.evaluate({"T": 9}), (onnx_ir.SymbolicDim("Max(T, 3)") - 1).evaluate({"T": 9}))
print(isinstance(dim._expr, sympy.Expr), onnx_ir._core.sympy is sympy is sys.modules["sympy"], sympy.core.__name__)
sys.exit(code)
"""


@pytest.mark.few(1)
@pytest.mark.parametrize("loaded", [False, True])
def test_the_command_starts_with_little(tmp_path: Path, loaded: bool) -> None:
    """onnx_ir calculates by it with sizes that are expressions; whoever imports it has the same module. Products of
    NumPy run on one thread: more would wait for each other."""
    source = saved(tmp_path / "in.onnx", chain(*THREE))
    options = [source, tmp_path / "out.onnx", "-q", "--verify", 0, *["loaded"] * loaded]
    done = child(*options, code=LATE)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [f"{loaded} 1", "6 8", "True True sympy.core"]


OTHER = """
import sympy
from sympy import Max, Symbol
import sympy.core.numbers
class Dim(Symbol): pass
largest = {Max: Max(Dim("T"), 3)}
"""


def test_another_onnx_ir_may_use_sympy_when_it_is_imported(tmp_path: Path) -> None:
    (tmp_path / "onnx_ir").mkdir()
    (tmp_path / "onnx_ir" / "__init__.py").write_text("from onnx_ir._symbolic_shapes import *")
    (tmp_path / "onnx_ir" / "_symbolic_shapes.py").write_text(OTHER)
    code = "from rnn_lowering.libraries import load_late; load_late(); import onnx_ir; print(onnx_ir.largest)"
    done = child(code=code, PYTHONPATH=f"{tmp_path}{os.pathsep}{SRC}")
    assert (done.stdout, done.stderr) == ("{Max: Max(3, T)}\n", "")


COLLECTED = """
import gc
from rnn_lowering.libraries import without_collector
kept = [[n] for n in range(20_000)]
{before}
with without_collector():
    made = [[n] for n in range(100_000)]
print(gc.isenabled(), len(gc.get_objects(2)) > 100_000, gc.get_freeze_count() > 10_000)
"""


@pytest.mark.parametrize(
    ("before", "found"),
    [("", "True True False\n"), ("gc.freeze()", "True False True\n"), ("gc.disable()", "False False False\n")],
)
def test_the_collector_takes_what_was_made_as_old_and_leaves_what_is_frozen(before: str, found: str) -> None:
    """Or it would look at all of a model at once."""
    assert child(code=COLLECTED.format(before=before)).stdout == found


MANY_MODELS = """
from weakref import ref
from rnn_lowering.libraries import without_collector
class Model: pass
with without_collector():
    model = Model()
    model.itself = model
    kept, gone = [], ref(model)
    del model
for _ in range(12):
    with without_collector():
        kept.append([[] for _ in range(100_000)])
print(gone() is None)
"""


def test_what_many_lowerings_leave_is_collected() -> None:
    assert child(code=MANY_MODELS).stdout == "True\n"


def test_help_names_the_exit_codes(rnn_lower: Command) -> None:
    assert re.search(r"0 written.*\n4 --list", rnn_lower("--help").out)
    outcome = rnn_lower("--help-all")
    assert outcome.code == 0
    for option in ("--to", "--only", "--except", "--set-dim", "--set-shape", "--list", "--report", "--verify"):
        assert option in outcome.out
    lines = outcome.lines
    for code in range(5):
        assert any(line.strip().startswith(f"{code}  ") for line in lines)


def test_the_help_is_one_screen_of_14_options(rnn_lower: Command) -> None:
    """Each in one line; an option of it is one of all."""
    brief = rnn_lower("--help")
    assert (brief.code, brief.err) == (0, "")
    assert len(brief.out.splitlines()) <= 40
    assert max(map(len, brief.out.splitlines())) <= 80
    options = re.findall(r"^  (--[\w-]+) .*\S$", brief.out, re.MULTILINE)
    assert 10 <= len(options) <= 14
    every = rnn_lower("--help-all").out
    assert {option for option in options if f"  {option}" not in every} == set()
    assert rnn_lower("-h") == brief


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_the_options(shell: str, rnn_lower: Command) -> None:
    pytest.importorskip("shtab")
    done = rnn_lower("--completion", shell)
    assert (done.code, done.err) == (0, "")
    assert "rnn-lower" in done.out
    assert "set-shape" in done.out
    assert rnn_lower("--completion", "tcsh").err.endswith("--completion knows bash, zsh, fish, not 'tcsh'\n")


@pytest.mark.parametrize("columns", [60, 80])
def test_help_fits_the_terminal(columns: int, rnn_lower: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command of an example stays whole."""
    monkeypatch.setenv("COLUMNS", str(columns))
    wide = [line for line in rnn_lower("--help-all").lines if len(line) > columns]
    assert [line for line in wide if columns == 80 or not line.startswith("  rnn-lower ")] == []


@pytest.mark.parametrize(
    "environment", thinned([{"COLUMNS": "40", "TERM": "dumb"}, {"TERM": "xterm-256color"}], 2), ids=str
)
def test_a_pipe_gets_plain_lines(tmp_path: Path, environment: dict[str, str]) -> None:
    name = "/encoder" + "/a_layer_with_a_long_name" * 12 + "/LSTM"
    source, target = saved(tmp_path / "in.onnx", chain(Link("LSTM", name))), tmp_path / f"{'o' * 200}.onnx"
    done = child(source, target, "--verify", "0", "-v", **environment)
    assert done.returncode == 0, done.stderr
    listed = child(source, "--list", **environment)
    assert "\x1b" not in done.stdout + listed.stdout
    assert f"written to {target}" in done.stdout.splitlines()
    for printed in (done, listed):
        _, first, second, *_ = printed.stdout.splitlines()
        assert first.strip() == name
        assert cells(second)[0] == "LSTM-14"
        assert cells(second)[-1] == "scan"


@pytest.mark.parametrize("name", ["[bold]lstm[/bold]", "[lstm]", "layer[0]/lstm", ":smile:", "größe/ΔLSTM"])
def test_names_are_printed_as_they_are(rnn_lower: Command, tmp_path: Path, name: str) -> None:
    source = saved(tmp_path / "in.onnx", chain(Link("LSTM", name)))
    for outcome in (rnn_lower(source, "--list"), rnn_lower(source, tmp_path / "out.onnx", "--verify", "0", "-v")):
        assert cells(outcome.lines[1])[0] == name


def test_a_stream_that_cannot_hold_a_name(tmp_path: Path) -> None:
    source, target = saved(tmp_path / "in.onnx", chain(Link("LSTM", "größe"))), tmp_path / "out.onnx"
    done = child(source, target, "--verify", "0", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert "written to" in done.stdout


def test_paths_are_printed_as_they_are(rnn_lower: Command, tmp_path: Path) -> None:
    source, target = saved(tmp_path / "[bold]in.onnx", without_recurrent_nodes()), tmp_path / "[red]out.onnx"
    assert str(target) in rnn_lower(source, target).out
    assert str(source) in rnn_lower(source, "--list").out
