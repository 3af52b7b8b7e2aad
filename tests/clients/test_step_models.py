"""A robot policy, an LSTM whose state is an input and an output, lowered as docs/step-models.md does."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from cases import Arrays
from paths import EXAMPLES, ROOT
from running import run

from clients.driving import Job, assert_right
from rnn_lowering.cli.command import main

PAGE = (ROOT / "docs" / "step-models.md").read_text(encoding="utf-8")
COMMANDS = {
    client: line.split()
    for line, client in re.findall(r"^    rnn-lower (robot.onnx .*--target (\S+))$", PAGE, re.M)
}
STEPS = 20


def episode(policy: onnx.ModelProto) -> tuple[dict[str, Arrays], dict[str, Arrays]]:
    """Return the inputs and outputs of each step, as onnxruntime computes the policy as exported."""
    feeds, results = {}, {}
    states = {name: np.zeros((1, 1, 64), np.float32) for name in ("h_in", "c_in")}
    for step, observation in enumerate(np.random.default_rng(0).random((STEPS, 1, 48), np.float32)):
        feeds[f"step {step}"] = {"obs": observation, **states}
        outputs = results[f"step {step}"] = run(policy, feeds[f"step {step}"])
        states = {"h_in": outputs["h_out"], "c_in": outputs["c_out"]}
    return feeds, results


@pytest.mark.parametrize("client", COMMANDS)
def test_a_policy_is_right_at_each_step(client: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    subprocess.run([sys.executable, EXAMPLES / "policy.py", "robot.onnx"], check=True)
    assert main(COMMANDS[client]) == 0
    lowered = onnx.load(COMMANDS[client][1])
    feeds, results = episode(onnx.load("robot.onnx"))
    jobs: dict[str, Job] = {step: (lowered, feed) for step, feed in feeds.items()}
    assert_right(client, jobs, results, tmp_path)
