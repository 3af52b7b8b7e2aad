"""Several models in one call, and the action and the hook that list models."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import onnx
import pytest
from commands import Command
from paths import EXAMPLES, ROOT
from running import recurrent_left
from thinning import exhaustive

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


BOTH = ("nets/model.onnx", "denoiser.onnx")


def test_each_recurrent_node_has_a_line(models: Path, rnn_lower: Command) -> None:
    done = rnn_lower(*BOTH, "--list", "--target", "openvino")
    assert (done.code, done.err) == (4, "")
    assert done.lines == [
        f"nets/model.onnx: {LSTM}: loop",
        f"nets/model.onnx: {GRU}: loop",
        "denoiser.onnx: LSTM node '/both_ways/LSTM' in main graph: loop",
        "denoiser.onnx: GRU node '/onward/GRU' in main graph: loop",
    ]


def test_a_node_that_cannot_be_lowered_is_the_exit_code(models: Path, rnn_lower: Command) -> None:
    done = rnn_lower(*BOTH, "--list", "--target", "tvm", "--set-dim", "seq=16")
    assert done.code == 1
    assert done.lines[:2] == [f"nets/model.onnx: {LSTM}: unroll", f"nets/model.onnx: {GRU}: unroll"]
    for line in done.lines[2:]:
        assert line.startswith("denoiser.onnx: ")
        assert ": refused: the sequence length is not known" in line
        assert "--set-dim time=?" in line
    assert len(done.lines) == 4


def test_what_is_no_model_is_named_and_the_others_are_listed(models: Path, rnn_lower: Command) -> None:
    done = rnn_lower("text.onnx", "absent.onnx", "nets/model.onnx", "--list")
    assert done.code == 1
    first, second = done.err.splitlines()
    assert first.startswith("rnn-lower: error: text.onnx: ")
    assert second.startswith("rnn-lower: error: absent.onnx: ")
    assert "No such file" in second
    assert done.lines == [f"nets/model.onnx: {LSTM}: scan", f"nets/model.onnx: {GRU}: scan"]


def test_a_list_as_json_has_an_entry_for_each_model(models: Path, rnn_lower: Command) -> None:
    one, other, none = json.loads(rnn_lower(*BOTH, "text.onnx", "--list", "--json").out)
    assert one["file"] == "nets/model.onnx"
    assert [(node["operator"], node["form"], node["hidden_size"]) for node in one["nodes"]] == [
        ("LSTM", "scan", 16),
        ("GRU", "scan", 16),
    ]
    assert [port["name"] for port in one["inputs"]] == ["X"]
    assert other["states"] == []
    assert none["file"] == "text.onnx"
    assert "error" in none
    (stream,) = json.loads(rnn_lower("nets/model.onnx", "--list", "--json", "--stream", "seq=1").out)
    assert len(stream["states"]) == 3


def test_models_are_lowered_into_a_folder(models: Path, rnn_lower: Command) -> None:
    done = rnn_lower(*BOTH, "--out-dir", "lowered/new", "--to", "loop", "--set-dim", "seq=16", "--verify", 1)
    assert (done.code, done.err) == (0, "")
    assert done.lines[1].split() == ["nets/model.onnx", "1", "LSTM,", "1", "GRU", "verified"]
    assert done.lines[2].split()[-1] == "verified"
    for name in ("model.onnx", "denoiser.onnx"):
        assert recurrent_left(onnx.load(f"lowered/new/{name}")) == []
    assert onnx.load("lowered/new/model.onnx").graph.input[0].type.tensor_type.shape.dim[0].dim_value == 16
    again = rnn_lower(*BOTH, "--out-dir", "lowered/new")
    assert again.code == 1
    assert "exists" in again.err


@pytest.mark.few(1)
@pytest.mark.parametrize("keep_going", [False, True])
def test_an_error_ends_the_series_unless_it_is_to_go_on(models: Path, rnn_lower: Command, keep_going: bool) -> None:
    options = ["--verify", 1, *(["--keep-going"] if keep_going else [])]
    done = rnn_lower("text.onnx", *BOTH, "--out-dir", "lowered", *options)
    assert done.code == 1
    assert done.err.count("rnn-lower: error: text.onnx: ") == 1
    lines = done.lines[1:-1] if keep_going else done.lines[1:]
    assert (done.lines[-1] == "2 files written to lowered") == keep_going
    results = [line.split()[-2:] for line in lines]
    assert results[0] == ["not", "written"]
    assert Path("lowered/model.onnx").exists() == keep_going
    assert all((row[-1] == "verified") == keep_going for row in results[1:])
    assert len(results) == 3


def test_no_result_takes_the_place_of_another_or_of_a_model(models: Path, rnn_lower: Command) -> None:
    shutil.copy("denoiser.onnx", "nets/denoiser.onnx")
    done = rnn_lower("denoiser.onnx", "nets/denoiser.onnx", "--out-dir", "out")
    assert (done.code, Path("out").exists()) == (1, False)
    assert "would both be written to 'out/denoiser.onnx'; lower them into different folders" in done.err
    before = Path("denoiser.onnx").read_bytes()
    done = rnn_lower("denoiser.onnx", "--out-dir", ".", "--force")
    assert done.code == 1
    assert "input" in done.err
    assert Path("denoiser.onnx").read_bytes() == before


def test_a_folder_that_cannot_be_made_is_named(models: Path, rnn_lower: Command) -> None:
    done = rnn_lower("denoiser.onnx", "--out-dir", "text.onnx/below")
    assert done.code == 1
    assert "cannot write 'text.onnx/below': Not a directory" in done.err


WRONG = {
    "A B C": "several models need a folder for their results: add --out-dir DIR, or --list",
    "A B --out-dir text.onnx": "'text.onnx' is no folder",
    "A B --out-dir out --report r.html": "--report needs one model; drop it",
    "A B --out-dir out --open-dim X:1=time --also C": "--also needs one model; drop it",
    "A B --out-dir out --stream": "--stream needs an AXIS; rnn-lower MODEL.onnx --stream lists them",
    "A B --out-dir out --list": "--list writes nothing; drop --out-dir or --list",
    "A - --list": "one of several models cannot be stdin",
    "A B --json": "--json prints a list; add --list",
    "A B --list --json -q": "-q prints less and --json prints more",
    "A out.onnx --keep-going": "--keep-going needs several models",
    "A B --list --target abacus": "abacus",
}


@pytest.mark.parametrize("line", WRONG)
def test_wrong_usage(line: str, models: Path, rnn_lower: Command) -> None:
    given = [{"A": BOTH[0], "B": BOTH[1]}.get(word, word) for word in line.split()]
    done = rnn_lower(*given)
    assert done.code == 2
    assert WRONG[line] in done.err
    assert not Path("out").exists()


def test_the_options_of_a_hint_can_be_given(models: Path, rnn_lower: Command) -> None:
    """An input that a model does not have is no error: others may have it."""
    arguments = [*BOTH, "--list", "--to", "unroll", "--set-dim", "seq=600", "--set-dim", "time=600"]
    done = rnn_lower(*arguments)
    assert done.code == 1
    assert "--max-unroll 600" in done.out
    more = ("--max-unroll", "600", "--set-shape", "other:1,2", "--set-input", "third=1")
    assert rnn_lower(*arguments, *more).code == 4


# The action and the hook


@pytest.fixture
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the program as it is installed."""
    folder = tmp_path_factory.mktemp("programs")
    path = folder / "rnn-lower"
    path.write_text(f"#!/bin/sh\nexec '{sys.executable}' -m rnn_lowering \"$@\"\n")
    path.chmod(0o755)
    return folder


@pytest.mark.few(1)
@pytest.mark.skipif(os.name != "posix" or not (ROOT / "action.yml").exists(), reason="needs a shell and a checkout")
@pytest.mark.parametrize(
    ("given", "code", "said"),
    [
        (
            {"MODELS": "**/model.onnx", "TARGET": "tvm", "OPTIONS": "--set-dim seq=16"},
            0,
            "first choice for target tvm",
        ),
        exhaustive(({"MODELS": "**/model.onnx", "TARGET": "tvm", "OPTIONS": ""}, 1, "refused")),
        exhaustive(({"MODELS": "**/*.onnx", "TARGET": "portable", "OPTIONS": ""}, 1, "text.onnx: ")),
        ({"MODELS": "**/*.tflite", "TARGET": "portable", "OPTIONS": ""}, 1, "no file matches **/*.tflite"),
    ],
)
def test_the_last_step_of_the_action(
    given: dict[str, str], code: int, said: str, models: Path, program: Path
) -> None:
    """As it stands, with the inputs of a workflow."""
    step = dedent((ROOT / "action.yml").read_text(encoding="utf-8").split("run: |\n")[1])
    paths = os.pathsep.join([str(program), os.environ["PATH"]])
    done = subprocess.run(
        [sys.executable, "-c", step],
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
    assert re.findall(r"- id: (.*)", hook) == re.findall(r'ENTRYPOINT \["(.*)"\]', image) == programs


@pytest.mark.few(1)
@pytest.mark.skipif(os.name != "posix" or not (ROOT / "action.yml").exists(), reason="needs a shell and a checkout")
@pytest.mark.parametrize(("options", "code"), [("--set-dim seq=16", 0), ("", 1)])
def test_the_hook_fails_where_a_node_cannot_be_lowered(
    options: str, code: int, models: Path, program: Path
) -> None:
    (entry,) = re.findall(r"entry: (.*)", (ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    paths = os.pathsep.join([str(program), os.environ["PATH"]])
    command = [*shlex.split(entry), "--target", "tvm", *options.split(), "nets/model.onnx"]
    done = subprocess.run(command, env={**os.environ, "PATH": paths}, capture_output=True, check=False)
    assert done.returncode == code, done.stderr
