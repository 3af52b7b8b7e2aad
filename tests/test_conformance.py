"""The conformance suite: its models are valid, its numbers are onnxruntime's where that is right, and programs are
judged."""

import argparse
import json
import os
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import onnx
import onnxruntime as ort
import pytest
from paths import ROOT
from running import runs_in_onnxruntime
from thinning import thinned

import rnn_lowering as rl
from conformance import judging, scoreboard, streams, suite
from conformance.__main__ import _keep, main
from conformance.features import features

NOT_IN_ONNXRUNTIME = {
    "layout 1": "Batchwise recurrent operations",
    "standard operator": "official support for domain ai.onnx is till opset",
}
"""Features that some onnxruntime rejects, by a part of their name, and what it says."""

WRONG_IN_ONNXRUNTIME = {"rnn_softplus_saturated"}
"""Softplus is infinite from 89 on."""

TOOL = """
import pathlib, sys
import onnx
from onnx import numpy_helper
model, data, output, how = sys.argv[1:]
kinds = {node.op_type for node in onnx.load(model).graph.node}
if how == "rejects" or how == "no_lstm" and "LSTM" in kinds: sys.exit(print("no LSTM here", file=sys.stderr) or 3)
if how == "crashes": import os; os.abort()
import onnxruntime
session = onnxruntime.InferenceSession(model)
feed = {}
for n, value in enumerate(session.get_inputs()):
    read = onnx.TensorProto.FromString(pathlib.Path(data, f"input_{n}.pb").read_bytes())
    feed[value.name] = numpy_helper.to_array(read)
for n, array in enumerate(session.run(None, feed)):
    if how == "wrong": array = array + 0.01
    pathlib.Path(output, f"output_{n}.pb").write_bytes(numpy_helper.from_array(array).SerializeToString())
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("conformance") / "suite"
    assert main(["write", str(path)]) == 0
    return path


def test_every_feature_is_what_onnxruntime_computes(folder: Path) -> None:
    """Models and numbers are read from the files."""
    stored = list(suite.stored(folder))
    assert len(stored) >= 150
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1  # with more, DynamicQuantizeLSTM quantizes parts of a batch on their own
    for feature in stored:
        model = onnx.load(feature.folder / "model.onnx")
        onnx.checker.check_model(model)
        reason = next((said for part, said in NOT_IN_ONNXRUNTIME.items() if part in feature.label), None)
        if reason is not None and not runs_in_onnxruntime(model):
            with pytest.raises(Exception, match=re.escape(reason)):
                ort.InferenceSession(model.SerializeToString(), options)
            continue
        session = ort.InferenceSession(model.SerializeToString(), options)
        names = [value.name for value in session.get_outputs()]
        got = dict(zip(names, session.run(None, feature.arrays("input")), strict=True))
        wanted = "wrong" if feature.name in WRONG_IN_ONNXRUNTIME else "right"
        assert judging.judge(feature, got).kind == wanted, feature.name


STREAMS = (
    "gru_open_sizes",  # states of a size that the inputs tell
    "lstm_weights_are_inputs",
    "linearattention_gated__decay_of_each_key_dimension",  # five inputs have time, and one is the first state
    "causalconvwithstate_fewer_frames_than_the_kernel",
    "scan_over_axis_1",
)


def test_streams_give_what_whole_sequences_give(folder: Path) -> None:
    chosen = [feature for feature in suite.stored(folder) if feature.name in STREAMS]
    assert dict(streams.in_runtime("onnxruntime", chosen)) == dict.fromkeys(STREAMS, judging.Outcome("right"))


@pytest.mark.exhaustive
def test_all_but_35_models_are_streams(folder: Path) -> None:
    found = dict(streams.in_runtime("onnxruntime", suite.stored(folder)))
    refused = {name: outcome.reason for name, outcome in found.items() if outcome.kind != "right"}
    assert len(refused) == 35, refused
    assert all(reason.startswith("rnn-lower: ") for reason in refused.values()), refused


NAME = "lstm_peepholes_forward"


@pytest.fixture
def tool(tmp_path: Path) -> str:
    """The command of a driver; what is written behind it is how it behaves."""
    (tmp_path / "tool.py").write_text(TOOL)
    return shlex.join([sys.executable, str(tmp_path / "tool.py")]) + " {model} {data} {output} "


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("right", ""),
        ("wrong", "output Y differs by 0.01"),
        ("rejects", "exit code 3: no LSTM here"),
        ("crashes", "SIGABRT"),
    ],
)
def test_a_command_is_judged(how: str, reason: str, tool: str, folder: Path) -> None:
    chosen = [feature for feature in suite.stored(folder) if feature.name == NAME]
    assert dict(judging.by_command(tool + how, chosen)) == {NAME: judging.Outcome(how, reason)}


def test_each_outcome_is_told_with_its_reason(
    tool: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A model without a recurrent node runs; the others are rejected, and lowered they run."""
    said = ["run", "--command", tool + "no_lstm", "--only", "lstm_peepholes_", "--to", "unroll"]
    assert main([*said, "--json", str(tmp_path / "told.json")]) == 0
    names = ("lstm_peepholes_forward", "lstm_peepholes_bidirectional")
    assert capsys.readouterr().out.splitlines() == [
        "",
        "as exported:",
        *(f"   {n}/2 rejects  {name}: exit code 3: no LSTM here" for n, name in enumerate(names, 1)),
        "2 rejected",
        "",
        "lowered (--target portable --to unroll):",
        *(f"   {n}/2 right    {name}" for n, name in enumerate(names, 1)),
        "2 right",
    ]
    told = json.loads((tmp_path / "told.json").read_text())
    assert told["native"][names[0]] == {"kind": "rejects", "reason": "exit code 3: no LSTM here"}
    assert told["lowered"][names[0]] == {"kind": "right", "reason": ""}


@pytest.mark.exhaustive
def test_a_reader_that_has_seen_enough(tool: str) -> None:
    """`| head -1` ends the run without a traceback."""
    command = [sys.executable, "-m", "conformance", "run", "--command", tool + "right", "--only", "lstm_peepholes_"]
    path = os.pathsep.join((str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "support")))
    environment = {**os.environ, "PYTHONPATH": path}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as run:
        assert run.stdout is not None
        assert run.stderr is not None
        assert run.stdout.readline() == b"\n"
        run.stdout.close()
        assert run.stderr.read() == b""
    assert run.returncode == 141


@pytest.mark.few(1)
@pytest.mark.parametrize("name", thinned(STREAMS, 2))
@pytest.mark.exhaustive
def test_streams_of_a_command(name: str, folder: Path, tool: str) -> None:
    """It is called once for each frame, with the states of the call before."""
    chosen = [feature for feature in suite.stored(folder) if feature.name == name]
    right = dict(streams.by_command(tool + "right", chosen, rl.Lowering()))
    assert right == {name: judging.Outcome("right")}
    if name == STREAMS[0]:
        wrong = dict(streams.by_command(tool + "wrong", chosen, rl.Lowering()))
        assert {outcome.kind for outcome in wrong.values()} == {"wrong"}


def test_only_the_streams_of_a_command(tool: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = ["run", "--command", tool + "no_lstm", "--only", "lstm_peepholes_", "--target", "rten", "--streams"]
    assert main(said) == 0
    forward, backward, count = capsys.readouterr().out.splitlines()[2:]
    assert (forward, count) == ("   1/2 right    lstm_peepholes_forward", "1 right, 1 rejected")
    assert "rejects  lstm_peepholes_bidirectional: rnn-lower: LSTM node" in backward


@pytest.mark.exhaustive
def test_what_a_target_refuses_is_told(tool: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--command", tool + "right", "--only", "gru_open_sizes", "--target", "tvm"]) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "rnn-lower" in line)
    assert line.startswith("   1/1 rejects  gru_open_sizes: rnn-lower: GRU node")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--command", "no_such_program {model} {data} {output}"], "there is no program no_such_program"),
        (["--command", "TOOL"], "the command lacks {model}, {data}, {output}"),
        (["--command", "'TOOL {model} {data} {output}"], "the command cannot be read: No closing quotation"),
        (["--command", "PYTHON no_such.py {model} {data} {output}"], "it fails (exit code 2: "),
        (["--command", "PYTHON -c pass {model} {data} {output}"], "it returns something else (it writes 0 of 1"),
        (["--command", "TOOL {model} {data} {output} wrong"], "a model of one Sub: it returns something else"),
        (["--command", "TOOL {model} {data} {output} crashes"], "it crashes (SIGABRT"),
        (
            ["--command", "TOOL {model} {data} {output} right", "--target", "abacus"],
            "target 'abacus' does not exist",
        ),
        (
            ["--command", "TOOL {model} {data} {output} right", "--only", "abacus"],
            "no feature has 'abacus' in its name",
        ),
        (["--runtime", "tract", "--target", "tvm"], "--target and --to are for --command"),
        ([], "one of the arguments --runtime --command is required"),
    ],
)
def test_wrong_usage_is_an_error(
    arguments: list[str], message: str, tool: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A command that runs no model is no runtime that rejects all of them."""
    short = tool.partition(" {model}")[0]
    with pytest.raises(SystemExit) as ended:
        main(["run", *(a.replace("TOOL", short).replace("PYTHON", sys.executable) for a in arguments)])
    assert ended.value.code == 2
    *_, line = capsys.readouterr().err.splitlines()
    assert message in line


def test_the_driver_of_the_document(folder: Path, tmp_path: Path) -> None:
    """It has ten lines, and runs as it stands."""
    page = (ROOT / "docs" / "conformance.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert len(code.splitlines()) <= 10
    (tmp_path / "driver.py").write_text(code)
    chosen = [feature for feature in suite.stored(folder) if feature.name == NAME]
    command = f"{shlex.quote(sys.executable)} {tmp_path / 'driver.py'} {{model}} {{data}} {{output}}"
    assert f'--command "python driver.py {command.partition("driver.py ")[2]}"' in page
    judging.check(command, suite.plain(tmp_path / "plain"))
    assert dict(judging.by_command(command, chosen)) == {NAME: judging.Outcome("right")}


@pytest.mark.exhaustive
def test_it_is_run_as_a_module(tmp_path: Path) -> None:
    """In the folder of the project; a folder that is not empty is an error of one line."""
    (tmp_path / "kept.txt").touch()
    done = subprocess.run(
        [sys.executable, "-m", "conformance", "write", tmp_path],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].endswith("is not empty")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("package", ["filelock", "pytest"])
def test_without_the_test_extra_it_says_what_to_install(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] in ("clients", "conformance")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(SystemExit) as end:
        runpy.run_module("conformance", run_name="__main__")
    assert end.value.code == (
        f'the conformance suite needs {package}: pip install -e ".[test]", in the folder of the project'
    )


def test_an_old_folder_is_kept(folder: Path) -> None:
    before = (folder / suite.INDEX).read_bytes()
    with pytest.raises(FileExistsError):
        suite.write(folder)
    assert (folder / suite.INDEX).read_bytes() == before


def test_each_feature_of_each_runtime_is_stored(capsys: pytest.CaptureFixture[str]) -> None:
    """And the tables have all of them."""
    labels = {feature.name: (feature.group, feature.label) for feature in features()}
    for entry in scoreboard.read().values():
        for kind in ("native", "lowered"):
            assert entry[kind].keys() == labels.keys()
    assert main(["table"]) == 0
    printed = capsys.readouterr().out
    assert all(f"| {label} |" in printed for _, label in labels.values())
    assert all(f"| {runtime} {entry['version']} |" in printed for runtime, entry in scoreboard.read().items())


def test_a_part_of_the_suite_is_not_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoreboard, "RESULTS", tmp_path / "results.json")
    scoreboard.RESULTS.write_text("{}")
    for only, kept in (("lstm", set()), ("", {"tract"})):
        given = argparse.Namespace(json=None, runtime="tract", only=only, streams=False)
        _keep(given, {"native": {"lstm": judging.Outcome("right")}})
        assert set(scoreboard.read()) == kept
