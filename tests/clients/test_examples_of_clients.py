"""The example in TVM on real models, and the recipes of docs/runtimes.md, each in its client's environment."""

import os
import re
import subprocess
import sysconfig
from pathlib import Path

import numpy as np
import pytest
from test_real_models import MODELS

from clients.environments import HERE, python, why_absent

ROOT = HERE.parents[1]
SHOWN = {
    "github/snakers4__silero-vad/silero_vad_16k_op15.onnx": [
        "--input-shape=input:1,576",
        "--input-shape=state:2,1,128",
    ],
    "github/breizhn__DTLN/model_1.onnx": [],
    "exported/nets/nsnet2_op12.onnx": ["--set-dim=b=1", "--set-dim=t=5"],
    "exported/nets/crnn_ocr_op11.onnx": ["--set-dim=batch=1", "--set-dim=width=64"],
}


def run_in_tvm(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the example in TVM's environment, to which this project and what it needs are lent."""
    if reason := why_absent("tvm"):
        pytest.skip(reason)
    lent = os.pathsep.join([sysconfig.get_path("purelib"), str(ROOT)])
    return subprocess.run(
        [python("tvm"), ROOT / "examples" / "run_in_tvm.py", *arguments, "--runs=3"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": lent},
        timeout=200,
    )


@pytest.mark.skipif(not MODELS.exists(), reason=f"{MODELS.name} is not there")
@pytest.mark.parametrize("file", SHOWN)
def test_real_models_run_in_tvm(file: str) -> None:
    done = run_in_tvm(MODELS / file, *SHOWN[file])
    assert done.returncode == 0, done.stderr
    found = re.search(r"largest difference (\S+)", done.stdout)
    assert found
    assert float(found[1]) < 1e-5


def test_inputs_can_be_given_and_differences_are_noticed(tmp_path: Path) -> None:
    """The denoiser of this repository, by numbers of its own; a tolerance of -1 is always exceeded."""
    np.savez(tmp_path / "feed.npz", magnitude=np.ones((1, 4, 129), np.float32))
    arguments: list[str | Path] = [ROOT / "examples" / "denoiser.onnx", f"--feed={tmp_path / 'feed.npz'}"]
    arguments.append("--input-shape=magnitude:1,4,129")
    assert run_in_tvm(*arguments).returncode == 0
    failed = run_in_tvm(*arguments, "--atol=-1")
    assert failed.returncode == 1
    assert "that is more than -1" in failed.stderr
