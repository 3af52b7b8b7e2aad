"""Where onnxruntime is absent, as in Pyodide, the package lowers; what needs onnxruntime says so."""

import json
from pathlib import Path
from typing import Any

import pytest
from commands import child
from paths import EXAMPLES

BLOCKED = """
import json, subprocess, sys
from pathlib import Path

class Blocker:
    def find_spec(self, name, *_):
        if name.partition(".")[0] == "onnxruntime":
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)

def no_process(*_, **__):
    raise OSError(138, "emscripten does not support processes")

sys.meta_path.insert(0, Blocker())
subprocess.Popen.__init__ = no_process
source, folder = sys.argv[1], Path(sys.argv[2])

import numpy as np
import onnx
import rnn_lowering as rl

def said(function):
    try:
        return str(function())
    except rl.RnnLoweringError as error:
        return f"{type(error).__name__}: {error}"

lowered = rl.lower(source, "unroll", dims={"seq": 3})
stream = rl.lower(source, stream="seq=1", target="tvm")
answers = {
    "left": [spec.op_type for spec in rl.inspect(lowered)],
    "operators": sorted({node.op_type for node in lowered.graph.node}),
    "verify": said(lambda: rl.verify(source, lowered)),
    "verify_stream": said(lambda: rl.verify_stream(source, stream)),
    "Stream": said(lambda: rl.Stream(stream)),
    "Calibration": said(lambda: rl.Calibration),
    "lower_file": said(lambda: rl.lower_file(source, folder / "out.onnx").verification),
    "stream file": said(lambda: rl.lower_file(source, folder / "step.onnx", stream="seq=1").verification),
    "required": said(lambda: rl.lower_file(source, folder / "not.onnx", require_verified=True)),
    "page": said(lambda: rl.lower_file(source, folder / "p.onnx", report=folder / "p.html").verification),
}
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    folder = tmp_path_factory.mktemp("written")
    done = child(EXAMPLES / "model.onnx", folder, code=BLOCKED)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), folder


def test_it_lowers(answers: tuple[dict[str, Any], Path]) -> None:
    found, folder = answers
    assert found["left"] == []
    assert {"MatMul", "Tanh"} <= {*found["operators"]}
    assert {path.name for path in folder.iterdir()} == {"out.onnx", "step.onnx", "p.onnx", "p.html"}


@pytest.mark.parametrize("name", ["verify", "verify_stream", "lower_file", "stream file", "page"])
def test_a_comparison_says_what_it_needs(name: str, answers: tuple[dict[str, Any], Path]) -> None:
    needs = "a comparison needs onnxruntime, which is not installed (pip install onnxruntime)"
    assert answers[0][name] == f"not verified: {needs}"


@pytest.mark.parametrize("name", ["Stream", "Calibration", "required"])
def test_others_are_an_error_of_ours(name: str, answers: tuple[dict[str, Any], Path]) -> None:
    kind = "NotVerifiedError" if name == "required" else "UnsupportedError"
    assert answers[0][name].startswith(f"{kind}: ")
    assert "needs onnxruntime" in answers[0][name]
    assert "pip install onnxruntime" in answers[0][name]


def test_the_page_says_why_it_has_no_plots(answers: tuple[dict[str, Any], Path]) -> None:
    assert "No plots: a plot needs onnxruntime" in (answers[1] / "p.html").read_text(encoding="utf-8")


def test_the_blocker_blocks() -> None:
    assert child("x", "y", code=BLOCKED.partition("source,")[0] + "import onnxruntime").returncode == 1
