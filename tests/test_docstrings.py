"""Each public class and function has an example in its docstring, and the examples run."""

import doctest
import shutil
import warnings
from pathlib import Path

import numpy as np
import onnx
import onnx_ir
import pytest
from one_process import run_workers_here
from paths import ROOT

import rnn_lowering as rl

MODEL = ROOT / "examples" / "model.onnx"
NAMES = sorted(name for name in rl.__all__ if callable(getattr(rl, name)))

pytestmark = pytest.mark.skipif(not MODEL.exists(), reason="only in a checkout are there examples")


@pytest.mark.few(16)
@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("name", NAMES)
def test_the_example_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder with model.onnx, which is `model`."""
    run_workers_here(monkeypatch)
    monkeypatch.chdir(tmp_path)
    shutil.copy(MODEL, "model.onnx")
    names = {"rl": rl, "np": np, "onnx": onnx, "onnx_ir": onnx_ir, "model": onnx.load(MODEL)}
    test = doctest.DocTestParser().get_doctest(getattr(rl, name).__doc__ or "", names, name, None, None)
    assert test.examples
    said: list[str] = []
    with warnings.catch_warnings():
        doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(test, out=said.append)
    assert said == []
