"""The code of the page about frozen axes, in the environment of each exporter: what it exports is opened."""

import re
import subprocess
from pathlib import Path

import onnx
import pytest
from paths import SRC

import rnn_lowering as rl
from clients.environments import python, why_absent

EXPORTERS = {
    "torch, older exporter": "pytorch",
    "torch, dynamo": "pytorch",
    "Keras 3": "keras",
    "Paddle": "paddle",
    "JAX": "jax",
}
"""A section of the page -> an environment."""


def blocks() -> dict[str, str]:
    """Return the code of each section of the page."""
    text = (SRC / "docs" / "frozen-axis.md").read_text(encoding="utf-8")
    return dict(re.findall(r"^### (.*?)\n.*?^```python\n(.*?)^```", text, re.M | re.S))


def test_the_page_has_each_exporter() -> None:
    assert blocks().keys() == EXPORTERS.keys()


@pytest.mark.clients
@pytest.mark.parametrize("section", EXPORTERS)
def test_two_exports_of_the_page_are_opened(section: str, tmp_path: Path) -> None:
    client = EXPORTERS[section]
    if reason := why_absent(client):
        pytest.skip(reason)
    command = [str(python(client)), "-c", blocks()[section]]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    if missing := re.search(r"No module named '(\w+)'", done.stderr):
        pytest.skip(f"{missing[1]} is not installed for {section}")
    assert done.returncode == 0, done.stderr
    short, long = (onnx.load(tmp_path / name) for name in ("short.onnx", "long.onnx"))
    (given,) = short.graph.input
    sizes = [dim.dim_value for dim in given.type.tensor_type.shape.dim]
    assert sizes[1:] == [11, 6]
    axis = {f"{given.name}:1": "time"}
    report = rl.lower_file(
        tmp_path / "short.onnx", tmp_path / "out.onnx", open_dims=axis, also=[tmp_path / "long.onnx"]
    )
    assert report.verification is not None
    assert "verified at time = 11 and 160" in report.verification.reason
    assert rl.verify(long, tmp_path / "out.onnx", runs=1)
