"""The example and the README: what they say is so."""

import io
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from contextlib import redirect_stdout
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import onnx
import pytest
from paths import EXAMPLES, ROOT
from running import recurrent_left
from thinning import thinned

import rnn_lowering as rl
from rnn_lowering.cli.command import main, parser

DENOISER = EXAMPLES / "denoiser.onnx"
FORMS = ("scan", "loop", "unroll", "auto")

pytestmark = pytest.mark.skipif(not DENOISER.exists(), reason="only in a checkout are there a README and examples")


def readme() -> str:
    return (ROOT / "README.md").read_text(encoding="utf-8")


def code_lines() -> list[str]:
    """The indented lines of the README, without comments."""
    lines = [line[4:] for line in readme().splitlines() if line.startswith("    ")]
    return [re.sub(r"\s+# .*", "", line) for line in lines]


def tables() -> list[list[str]]:
    """The rows of the tables of the command line, in docs/getting-started.md."""
    text = (ROOT / "docs" / "getting-started.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip().strip("`") for cell in row.strip("|").split("|")] for row in rows]


# The example


def printed_by(script: str, *models: Path) -> str:
    """What an example prints."""
    with redirect_stdout(io.StringIO()) as printed, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [script, *map(str, models)])
        patch.syspath_prepend(EXAMPLES)
        runpy.run_path(str(EXAMPLES / script), run_name="__main__")
    return printed.getvalue()


def difference(printed: str, what: str = "largest difference to the first") -> float:
    """Check that both denoise alike; return the difference that is printed."""
    first, second = re.findall(r"SNR (\S+) dB -> (\S+) dB", printed)
    assert first == second
    assert float(first[1]) > float(first[0]) + 5
    found = re.search(rf"{what} (\S+)", printed)
    assert found is not None
    return float(found[1].rstrip(","))


SCRIPTS = sorted(path.name for path in EXAMPLES.glob("*.py"))
COMPLETE = ("generate_tokens.py", "join_models.py", "stream_gpt.py")
"""They need no arguments; other tests run them."""
LEFT_OUT = ("torch", "tvm", "tract", "openvino", "cv2")
"""What the tests do without; a script that trains would start to."""


def ended(script: str, folder: Path, *arguments: str, without: tuple[str, ...] = LEFT_OUT) -> tuple[int, str]:
    """The exit code of a script that is started in a folder where packages are missing, and what it prints last."""
    absent = folder / "absent"
    absent.mkdir(exist_ok=True)
    for name in without:
        text = f"raise ModuleNotFoundError(\"No module named '{name}'\", name='{name}')"
        (absent / f"{name}.py").write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, EXAMPLES / script, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(absent)},
    )
    return done.returncode, done.stderr or done.stdout


@pytest.mark.few(1)
@pytest.mark.parametrize("script", [script for script in SCRIPTS if script not in COMPLETE])
def test_a_script_without_arguments_says_what_to_do(script: str, tmp_path: Path) -> None:
    """In any folder."""
    code, said = ended(script, tmp_path)
    assert code
    assert "Traceback" not in said
    assert re.search(
        rf"{script} needs \w+: pip install \S+$|type in the folder of the project:\n.*python examples/{script}"
        rf"|{script} is used by other scripts; examples/README.md says how to start those$",
        said.strip(),
        re.DOTALL,
    )


@pytest.mark.few(3)
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_names_the_package_that_is_missing(script: str, tmp_path: Path) -> None:
    code, said = ended(script, tmp_path, without=("numpy", "torch"))
    if script != "guide.py":
        assert (code, re.sub("numpy|torch", "...", said)) == (1, f"{script} needs ...: pip install ...\n")


@pytest.mark.few(1)
@pytest.mark.parametrize("script", ["denoise.py", "stream_denoiser.py", "int8_gru.py", "join_models.py"])
def test_a_script_without_its_files_says_how_to_make_them(script: str, tmp_path: Path) -> None:
    code, said = ended(script, tmp_path, "absent.onnx", "step.onnx")
    assert code == 1
    assert re.match(
        rf"{script}: .*(absent|step).onnx.*; type in the folder of the project:\n.*{script} \w", said, re.S
    )
    assert "Traceback" not in said


@pytest.mark.parametrize("to", thinned(["scan", "loop"], 2))
def test_both_denoise_alike(tmp_path: Path, to: Any) -> None:
    lowered = tmp_path / "lowered.onnx"
    rl.lower_file(DENOISER, lowered, to, verify=0)
    assert recurrent_left(onnx.load(lowered)) == []
    assert difference(printed_by("denoise.py", DENOISER, lowered)) < 1e-5


def test_frame_by_frame_is_as_good_as_the_whole(tmp_path: Path) -> None:
    step = tmp_path / "step.onnx"
    rl.lower_file(EXAMPLES / "denoiser_forward.onnx", step, stream="time=1", verify=0)
    printed = printed_by("stream_denoiser.py", EXAMPLES / "denoiser_forward.onnx", step)
    assert difference(printed, "largest difference of the masks") < 1e-5
    assert re.search(r"\d+ microseconds per frame", printed)


def test_two_frames_of_look_ahead_frame_by_frame(tmp_path: Path) -> None:
    step = tmp_path / "step.onnx"
    rl.lower_file(EXAMPLES / "enhancer.onnx", step, stream="time=1", delay=2, verify=0)
    printed = printed_by("stream_enhancer.py", EXAMPLES / "enhancer.onnx", step)
    assert difference(printed, "largest difference of the spectra") < 1e-4
    assert ", 2 frames late" in printed


@pytest.mark.exhaustive
def test_an_int8_denoiser(tmp_path: Path) -> None:
    """The document shows what is printed; rounding may move the last digits."""
    printed = printed_by("int8_gru.py", EXAMPLES / "denoiser_forward.onnx", tmp_path / "int8.onnx")
    float_size, int8_size = (int(size.replace(",", "")) for size in re.findall(r"(\S+) bytes", printed))
    assert int8_size < 0.4 * float_size
    noisy, whole, stepped, int8 = (float(snr) for snr in re.findall(r"SNR +(\S+) dB", printed))
    assert whole == stepped
    assert noisy + 5 < int8 < whole < int8 + 0.5
    quantized = onnx.load(tmp_path / "int8.onnx").graph
    known = {node.output[0] for node in quantized.node if node.op_type == "DequantizeLinear"}
    assert all(set(node.input) <= known for node in quantized.node if node.op_type in ("MatMul", "Gemm"))
    shown = (ROOT / "docs" / "quantization.md").read_text(encoding="utf-8")
    for line in printed.splitlines():
        assert re.sub(r"\d", "0", line) in re.sub(r"\d", "0", shown)


def test_the_first_screen_of_the_readme(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the README shows is what is printed, but for the last digits of the difference."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(EXAMPLES / "model.onnx", tmp_path)
    command = next(line for line in code_lines() if line.startswith("rnn-lower"))
    assert main(shlex.split(command)[1:]) == 0
    printed = [line.split() for line in capsys.readouterr().out.splitlines()]
    block = re.search(r"\n    lowered 1 LSTM.*?\n\n", readme(), re.DOTALL)
    assert block is not None
    shown = [line.split() for line in block[0].strip().splitlines()]
    assert [row[:-1] if "verified" in row else row for row in printed] == [
        row[:-1] if "verified" in row else row for row in shown
    ]


def test_the_example_is_symbolic_and_small() -> None:
    proto = onnx.load(DENOISER)
    specs = rl.inspect(proto)
    assert [(s.op_type, len(s.directions)) for s in specs] == [("LSTM", 2), ("GRU", 1)]
    assert DENOISER.stat().st_size < 1_000_000
    assert all(s.seq_length is None for s in specs)


# The README


def test_the_two_commands() -> None:
    first, second = (line for line in code_lines() if re.match(r"python3 -m venv .* -e ", line))
    steps = [[part.strip() for part in line.split("&&")] for line in (first, second)]
    assert steps[0][:2] == steps[1][:2] == ["python3 -m venv .venv", '.venv/bin/pip install -e ".[test]"']
    script, *arguments = shlex.split(steps[0][2])
    assert script == ".venv/bin/rnn-lower"
    assert (ROOT / arguments[0]).is_file()
    assert steps[1][2:] == [".venv/bin/pytest"]
    names = {script.name for script in entry_points(group="console_scripts")}
    assert "rnn-lower" in names


def test_continuous_integration_runs_the_same() -> None:
    script = ROOT / ".ci" / "run"
    text = script.read_text(encoding="utf-8")
    assert os.access(script, os.X_OK)
    packages = '(.ci/package "$work" && .ci/extras "$work")'
    steps = ("python3 -m venv .venv", "\n.ci/lint >", packages, "\n.venv/bin/pytest")
    assert all(step in text for step in steps)
    tried = (ROOT / ".ci" / "extras").read_text(encoding="utf-8")
    lints = (ROOT / ".ci" / "lint").read_text(encoding="utf-8")
    assert all(f".venv/bin/{tool}" in lints for tool in ("ruff check", "ruff format --check", "mypy"))
    hooks = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    assert re.findall(r"entry: (.*?),", hooks) == [".ci/lint"]
    hosted = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    assert re.findall(r"- run: (.*)", hosted) == [
        ".ci/run",
        'python -m pip install -e ".[test]"',
        "python -m pytest",
    ]
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for name in ("pytest", "ruff", "mypy"):
        assert re.search(rf'"{name}>=', project)
    assert 'rnn-lower = "rnn_lowering.__main__:main"' in project
    extras = re.findall(
        r"^(\w+) = ", project.partition("[project.optional-dependencies]")[2].partition("\n[")[0], re.M
    )
    assert set(extras) - {"dev"} == set(re.findall(r"^ *fresh .*\[(\w+)\]", tried, re.MULTILINE))


def test_exit_codes() -> None:
    codes = {row[0]: row[1] for row in tables() if row[0].isdigit()}
    assert codes.keys() == {"0", "1", "2", "3", "4", "5"}
    help_text = parser().format_help()
    for code in codes:
        assert re.search(rf"^  {code}  \S", help_text, re.MULTILINE)


def test_forms() -> None:
    rows = {row[0]: row for row in tables()}
    for form in FORMS:
        assert form in rows
        parser().parse_args(["in.onnx", "out.onnx", "--to", form])
    limit = re.search(r"--max-unroll` \((\d+)\)", rows["unroll"][2])
    assert limit is not None
    assert rl.Lowering().max_unroll == int(limit[1])


def test_the_readme_is_short() -> None:
    assert len(readme().splitlines()) <= 150


def test_the_one_picture_is_that_of_a_report() -> None:
    """docs/picture.py takes it, of the command that the README shows."""
    (shown,) = re.findall(r'<img src="([^"]*)"', readme())
    picture = (ROOT / shown).read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) < 200_000
    taken = runpy.run_path(str(ROOT / "docs" / "picture.py"))
    assert taken["PICTURE"] == ROOT / shown
    assert f"rnn-lower {taken['COMMAND'].partition(' --report')[0]}" in code_lines()


def test_names_of_the_readme() -> None:
    used = set(re.findall(r"\brl\.(\w+)", readme()))
    assert {"lower", "lower_file", "verify", "inspect", "LowerRecurrentPass"} <= used
    for name in used:
        assert name in rl.__all__
        assert callable(getattr(rl, name))


def test_an_encoder_and_two_decoders_become_one_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One by one they lose their states; the document shows what is printed, up to rounding."""
    printed = printed_by("join_models.py").splitlines()
    shown = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    number = re.compile(r"\d\.\de[-+]\d+")
    for line in printed:
        assert number.sub("0", line) in number.sub("0", shown)
    one_by_one, stream = (list(map(float, number.findall(line))) for line in printed[1:])
    assert min(one_by_one) > 0.1
    assert max(stream) < 1e-5
    monkeypatch.syspath_prepend(EXAMPLES)
    example = runpy.run_path(str(EXAMPLES / "join_models.py"))
    monkeypatch.chdir(tmp_path)
    for name, net in example["nets"]().items():
        onnx.save(net, f"{name}.onnx")
    section = shown.partition("## Three files that keep no states")[2].partition("\n## ")[0]
    join, lower = (line.split() for line in section.splitlines() if ".onnx" in line and line.startswith("    "))
    example["main"](join[2:])
    assert f"next: {shlex.join(lower)}" in capsys.readouterr().out
    assert main([*lower[1:], "--verify", "1"]) == 0
    assert "verified" in capsys.readouterr().out
    assert [value.name for value in onnx.load("joined.onnx").graph.output] == ["lsnr", "m", "coefs"]


def test_a_gpt_token_by_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The document shows what is printed, up to rounding and time; its command makes a stream of 400 tokens."""
    printed = printed_by("stream_gpt.py", tmp_path / "gpt.onnx", tmp_path / "step.onnx")
    said, states, times = printed.splitlines()
    assert float(said.rpartition(" ")[2]) < 1e-5
    section = (EXAMPLES / "README.md").read_text(encoding="utf-8").partition("## A GPT token by token")[2]
    assert re.sub(r"\S+$", "", said) in section
    assert states in section
    assert re.sub(r"\d+", "0", times) in re.sub(r"\d+", "0", section)
    command = next(line for line in section.splitlines() if "--max-frames" in line)
    monkeypatch.chdir(tmp_path)
    assert main([*shlex.split(command)[1:], "--verify", "1"]) == 0
    assert "verified" in capsys.readouterr().out
    shapes = {s.state: s.shape for s in rl.Stream(str(tmp_path / "gpt_fixed.onnx")).plan.states}
    assert shapes == {"t": (1,), "k": (1, 4, 16, 399), "v": (1, 4, 399, 16)}


def test_a_conformer_chunk_by_chunk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The document shows what is printed, up to rounding and time, and the command."""
    section = (EXAMPLES / "README.md").read_text(encoding="utf-8").partition("## A conformer")[2]
    monkeypatch.chdir(ROOT)
    command = next(line for line in section.splitlines() if "rnn-lower examples" in line)
    step = tmp_path / "step.onnx"
    words = [str(step) if word == "conformer_step.onnx" else word for word in shlex.split(command)[1:]]
    assert main([*words, "--verify", "1"]) == 0
    assert "verified" in capsys.readouterr().out
    printed = printed_by("stream_conformer.py", EXAMPLES / "conformer.onnx", step)
    said, states, times = printed.splitlines()
    assert float(said.rpartition(" ")[2]) < 1e-5
    assert re.sub(r"\S+$", "", said) in section
    assert states in section
    assert re.sub(r"\d+", "0", times) in re.sub(r"\d+", "0", section)


def test_tokens_by_linear_attention(tmp_path: Path) -> None:
    said, operators = printed_by("generate_tokens.py", tmp_path / "layer.onnx", tmp_path / "step.onnx").splitlines()
    assert float(said.rpartition(" ")[2]) < 1e-6
    assert "LinearAttention" not in operators
    assert "LinearAttention" in {node.op_type for node in onnx.load(tmp_path / "layer.onnx").graph.node}
    assert recurrent_left(onnx.load(tmp_path / "step.onnx")) == []
    kept = [value.name for value in onnx.load(tmp_path / "step.onnx").graph.input]
    assert kept == ["hidden", "past_conv", "past_state"]
