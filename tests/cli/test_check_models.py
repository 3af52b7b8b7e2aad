"""`rnn-lower-check`, and the action and the hook that call it."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from paths import EXAMPLES, ROOT
from thinning import exhaustive

from rnn_lowering.cli.check_models import main

LSTM, GRU = "LSTM node '/lstm/LSTM' in main graph", "GRU node '/gru/GRU' in main graph"


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with models in two folders, and a file that is none."""
    (tmp_path / "nets").mkdir()
    shutil.copy(EXAMPLES / "model.onnx", tmp_path / "nets")
    shutil.copy(EXAMPLES / "denoiser.onnx", tmp_path)
    (tmp_path / "text.onnx").write_text("no model")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_each_recurrent_node_has_a_line(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nets/model.onnx", "--target", "openvino"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"nets/model.onnx: {LSTM}: loop",
        f"nets/model.onnx: {GRU}: loop",
    ]


def test_one_model_that_cannot_be_lowered_fails_all(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nets/model.onnx", "denoiser.onnx", "--target", "tvm", "--set-dim", "seq=16"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [f"nets/model.onnx: {LSTM}: unroll", f"nets/model.onnx: {GRU}: unroll"]
    for line in lines[2:]:
        assert line.startswith("denoiser.onnx: ")
        assert ": refused: the sequence length is not known" in line
        assert "--set-dim time=?" in line
    assert len(lines) == 4


def test_what_is_no_model_fails(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["text.onnx", "absent.onnx"]) == 1
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("text.onnx: ")
    assert "No such file" in second


@pytest.mark.parametrize("wrong", [["--target", "abacus"], ["--to", "abacus"], ["--set-dim", "seq"], []])
def test_wrong_usage(wrong: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*wrong, "model.onnx"] if wrong else [])
    assert ended.value.code == 2


def test_the_options_of_a_hint_can_be_given(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An input that a model does not have is no error: others may have it."""
    arguments = ["nets/model.onnx", "--to", "unroll", "--set-dim", "seq=600"]
    assert main(arguments) == 1
    assert "--max-unroll 600" in capsys.readouterr().out
    assert main([*arguments, "--max-unroll", "600", "--input-shape", "other:1,2", "--set-input", "third=1"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"nets/model.onnx: {LSTM}: unroll",
        f"nets/model.onnx: {GRU}: unroll",
    ]


def test_a_stream_needs_an_axis(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["model.onnx", "--stream"])
    assert ended.value.code == 2
    assert "error: --stream needs an AXIS; rnn-lower MODEL.onnx --stream lists them" in capsys.readouterr().err


# The action and the hook


@pytest.fixture
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the program as it is installed."""
    folder = tmp_path_factory.mktemp("programs")
    path = folder / "rnn-lower-check"
    path.write_text(f"#!/bin/sh\nexec '{sys.executable}' -c 'import sys; {ENTRY}' \"$@\"\n")
    path.chmod(0o755)
    return folder


ENTRY = "from rnn_lowering.cli.check_models import main; sys.exit(main())"


@pytest.mark.skipif(os.name != "posix" or not (ROOT / "action.yml").exists(), reason="needs bash and a checkout")
@pytest.mark.parametrize(
    ("given", "code", "said"),
    [
        ({"MODELS": "**/model.onnx", "TARGET": "tvm", "OPTIONS": "--set-dim seq=16"}, 0, f"{LSTM}: unroll"),
        exhaustive(({"MODELS": "**/model.onnx", "TARGET": "tvm", "OPTIONS": ""}, 1, "refused")),
        exhaustive(({"MODELS": "**/*.onnx", "TARGET": "portable", "OPTIONS": ""}, 1, "text.onnx: ")),
        ({"MODELS": "**/*.tflite", "TARGET": "portable", "OPTIONS": ""}, 1, "no file matches **/*.tflite"),
    ],
)
def test_the_last_step_of_the_action(
    given: dict[str, str], code: int, said: str, models: Path, program: Path
) -> None:
    """As it stands, with the inputs of a workflow."""
    step = (ROOT / "action.yml").read_text(encoding="utf-8").split("run: |\n")[1]
    paths = os.pathsep.join([str(program), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step],  # as GitHub runs it
        cwd=models,
        env={**os.environ, **given, "PATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert said in done.stdout + done.stderr


def test_the_programs_that_the_hook_and_the_image_run_are_installed() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    programs = re.findall(r'^([\w-]+) = "rnn_lowering', project, re.MULTILINE)
    hook = (ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8")
    image = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert re.findall(r"entry: (.*)", hook) + re.findall(r'ENTRYPOINT \["(.*)"\]', image) == programs[::-1]
