"""The code that a report page shows for a runtime runs there as it stands: models, and streams with a delay."""

import html
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from running import run
from texts import parse

import rnn_lowering as rl
from clients.environments import HERE_TOO
from clients.recipes import example, run_commands
from rnn_lowering.targets.calls import CALLS

CALLED = [target for target in CALLS if target not in HERE_TOO]
STREAMED = [target for target in CALLED if target != "jaxonnxruntime"]
OPEN = ("tract", "openvino")
"""Targets that take any length."""

CONV = """g (float[1, 3, time] X) => (float[1, 3, time] Y) <float[3, 3, 5] W = {}> {
C = Conv <kernel_shape = [5], pads = [2, 2]> (X, W)
Y = Tanh (C) }"""

LATE = """g (float[1, 3, time] X) => (float[1, 3, time] Y, float[1, time, 4] Z)
<float[3, 3, 5] W = {}, float[1, 4, 3] K = {}, float[1, 4, 4] R = {}, int64[1] one = {1}> {
C = Conv <kernel_shape = [5], pads = [2, 2]> (X, W)
Y = Tanh (C)
frames = Transpose <perm = [2, 0, 1]> (Y)
H, last = RNN <hidden_size = 4> (frames, K, R)
flat = Squeeze (H, one)
Z = Transpose <perm = [1, 0, 2]> (flat) }"""
"""An RNN behind a look-ahead, which counts frames; ncnn has no such integers."""


def codes(page: Path) -> list[str]:
    """The blocks of commands and code under the title "How to run it"."""
    _, text = page.read_text(encoding="utf-8").split('<h2 id="use">')
    return [
        html.unescape(block) for block in re.findall(r"<code>(.*?)</code></pre>", text.split("<h2")[0], re.DOTALL)
    ]


def run_page(client: str, page: Path, arrays: dict[str, Any], start: str, end: str, instead: str) -> Any:
    """Run the code of a page with other arrays than its zeros; return its outputs, by name or in their order."""
    *commands, code = codes(page)
    before, rest = code.split(start, 1)
    np.savez(page.parent / "given.npz", **arrays)
    save = (
        "named = outputs if isinstance(outputs, dict) else dict(zip('abc', outputs))\nnp.savez('got.npz', **named)"
    )
    (page.parent / "page.py").write_text(f"{before}{instead}{rest.split(end, 1)[1]}\n{save}\n", encoding="utf-8")
    run_commands(client, [*"".join(commands).splitlines(), "python page.py"], page.parent, DEV="PYTHON")
    with np.load(page.parent / "got.npz") as got:
        return dict(got)


@pytest.mark.parametrize("client", CALLED)
def test_a_model(client: Any, tmp_path: Path) -> None:
    expected, page = example(tmp_path), tmp_path / "page.html"
    shapes: Any = {} if client in OPEN else {"input_shapes": {"X": [16, 1, 80]}}
    rl.lower_file(tmp_path / "model.onnx", tmp_path / "a b.onnx", target=client, report=page, **shapes)
    (X,) = [np.load(tmp_path / "X.npy")]
    instead = "\noutputs = run(dict(np.load('given.npz')))\n"
    got = run_page(client, page, {"X": X}, "\noutputs = run({\n", "})\n", instead)
    np.testing.assert_allclose(got["a"], expected["Y"], atol=2e-5)


@pytest.mark.parametrize("client", STREAMED)
def test_a_late_stream(client: Any, tmp_path: Path) -> None:
    proto, page = parse(CONV if client == "ncnn" else LATE), tmp_path / "page.html"
    onnx.save(proto, tmp_path / "in.onnx")
    rl.lower_file(
        tmp_path / "in.onnx", tmp_path / "out.onnx", target=client, stream="time=2", delay=True, report=page
    )
    X = np.random.default_rng(0).standard_normal((1, 3, 12)).astype(np.float32)
    instead = "\nchunks = [{'X': cut.copy()} for cut in np.split(np.load('given.npz')['X'], 6, 2)]\n"
    got = run_page(client, page, {"X": X}, "\nchunks = [", "\n}]\n", instead)
    for name, array in run(proto, {"X": X}).items():
        np.testing.assert_allclose(got[name], array, atol=2e-5)
