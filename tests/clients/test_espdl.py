"""Models that esp-ppq quantizes for ESP-DL, as docs/runtimes.md does."""

import re
from pathlib import Path

import numpy as np
import pytest

from clients.driving import run_python
from clients.recipes import RECIPES, example
from rnn_lowering.cli.command import main

pytestmark = pytest.mark.environments("espdl")

LEAST = 55.0
"""The ratio of signal to noise in dB; the page says 65, on random sequences."""

COMPUTED = """
import numpy as np
from esp_ppq.executor import TorchExecutor
Y = TorchExecutor(graph, device="cpu").forward({"X": torch.from_numpy(np.load("X.npy"))}, ["Y"])[0].numpy()
np.save("Y.npy", Y)
"""


def quantizing() -> str:
    """The Python of the page that writes an .espdl file."""
    section = RECIPES.read_text(encoding="utf-8").split("\n## ESP-DL\n")[1].split("\n## ")[0]
    _, code = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    return str(code)


def test_16_bits_are_near_to_floats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = example(tmp_path)["Y"]
    monkeypatch.chdir(tmp_path)
    assert main(["model.onnx", "espdl.onnx", "--target", "espdl", "--set-shape", "X:16,1,80"]) == 0
    (tmp_path / "quantize.py").write_text(f"import torch\ntorch.manual_seed(0)\n{quantizing()}{COMPUTED}")
    run_python("espdl", "quantize.py", cwd=tmp_path)
    assert (tmp_path / "model.espdl").read_bytes()[:4] == b"EDL2"
    error = np.load(tmp_path / "Y.npy") - expected
    assert 10 * np.log10((expected**2).sum() / (error**2).sum()) > LEAST


def test_as_exported_it_is_not_quantized(tmp_path: Path) -> None:
    """The example has no initial state that is an input; once this passes, the page is to say so."""
    example(tmp_path)
    (tmp_path / "quantize.py").write_text(quantizing().replace("espdl.onnx", "model.onnx"))
    with pytest.raises(AssertionError, match="IndexError: list index out of range"):
        run_python("espdl", "quantize.py", cwd=tmp_path)
